# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# ngx_http_idempotency_module: build, try, test.  The work is done by the
# scripts in tools/; everything made goes to build/.

NGINX_SRC ?= /usr/share/nginx/src
PORT      ?= 8080

CFLAGS    ?= -g -O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2 \
             -Wformat -Werror=format-security

MODULE = build/ngx_http_idempotency_module.so
POSTGRES = build/ngx_http_idempotency_postgres_module.so
BUILD  = tools/build "$(NGINX_SRC)" build/nginx dynamic \
             --with-compat --with-http_ssl_module --with-http_v2_module \
             --with-threads --with-debug --with-cc-opt="$(CFLAGS)"

# Tests need an nginx that runs.  Debian has one; of another tree it is built
# beside the module, with what the tests want of it.
ifneq ($(NGINX_SRC),/usr/share/nginx/src)
check test: BUILD += --with-binary --with-pcre-jit \
             --with-http_realip_module --with-http_auth_request_module \
             --with-http_dav_module --with-http_slice_module \
             --with-http_addition_module --with-http_gunzip_module \
             --with-http_gzip_static_module --with-http_stub_status_module \
             --with-http_sub_module --with-http_random_index_module \
             --with-http_secure_link_module
endif

# where "make install" puts things; the modules go where nginx looks for them
NGINX_BIN ?= nginx
prefix    ?= /usr/local

# the tools read these
export JOBS PORT DEMO STORE TESTS IDEMPOT_JS NGINX_SRC NGINX_BIN DESTDIR prefix

.PHONY: build modules run check test test-postgres install uninstall deb test-deb docs docs-look lint unit test-asan test-valgrind check-style setup clean \
        help bench bench-quick bench-scale bench-instructions model fuzz torture \
        analyse fresh nginx-tests test-idempot history sql test-redis \
        test-clients torture-clients clients test-http3 outage

build: setup-build modules
	@$(MAKE) -s build/idempotencyctl

# a new file each time: an nginx that runs has the old one mapped
modules:
	@$(BUILD)
	@cmp -s build/nginx/objs/$(notdir $(MODULE)) $(MODULE) \
	    || { cp build/nginx/objs/$(notdir $(MODULE)) $(MODULE).new \
	         && mv -f $(MODULE).new $(MODULE); }
	@echo "built $(MODULE)"
	@if grep -q $(notdir $(POSTGRES)) build/nginx/objs/Makefile; then \
	    cmp -s build/nginx/objs/$(notdir $(POSTGRES)) $(POSTGRES) \
	        || { cp build/nginx/objs/$(notdir $(POSTGRES)) $(POSTGRES).new \
	             && mv -f $(POSTGRES).new $(POSTGRES); }; \
	    echo "built $(POSTGRES)"; \
	else rm -f $(POSTGRES); fi

build/idempotencyctl: $(wildcard ctl/*.[ch]) VERSION
	@mkdir -p build
	@$(or $(CC),cc) -O2 -W -Wall -Werror $(CFLAGS) $(CPPFLAGS) $(LDFLAGS) \
	    -DIDEMPOTENCY_VERSION='"$(shell cat VERSION)"' \
	    -o $@ $(filter %.c,$^) -lcurl -lcrypto
	@echo "built $@"

run: setup-run $(if $(filter valkey redis,$(STORE)),setup-valkey) \
     $(if $(filter postgres,$(STORE)),setup-postgres) build
	@tools/run

# without idempotencyctl: libcurl's headers bring thirty packages
check: setup-check modules
	@tools/test core

test: setup-test build
	@tools/test unit stock

test-postgres: setup-test build
	@tools/test postgres

# the Redis part of the suite on one server: redis-7.0, redis-8.0, valkey-8.1
# or valkey-9.1
test-redis: setup-test build
	@tools/test redis $(or $(SERVER),redis-7.0)

# the promises over QUIC: an nginx with HTTP/3 is built, a curl with it fetched
test-http3: setup-test setup-asan
	@tools/build-http3
	@prove t/http3.t
	@IDEMPOTENCY_STORE=redis prove t/http3.t

install:
	@tools/install install

uninstall:
	@tools/install uninstall

deb: setup-build setup-deb
	@tools/deb

test-deb: setup-build setup-deb setup-fresh
	@tools/test-deb $(SUITE)

unit: setup-build
	@$(BUILD) --configure-only
	@tools/test unit

test-asan: setup-test setup-asan build
	@tools/test asan

test-valgrind: setup-test setup-valgrind build
	@tools/test valgrind

bench: setup-bench build
	@bench/fetch
	@bench/run

bench-quick: setup-bench build
	@bench/fetch
	@bench/run --quick

bench-scale: setup-bench build
	@bench/scale

bench-instructions: setup-bench build
	@bench/instructions --top

docs: setup-docs
	@tools/docs

docs-look: docs setup-test
	@tools/docs-look

lint: setup-lint
	@tools/lint

check-style:
	@tools/check-style

model: setup-test
	@proof/model/check

fuzz: setup-fuzz build
	@proof/fuzz/run

analyse: setup-build setup-analyse
	@$(BUILD) --configure-only
	@tools/analyse

torture: setup-test build
	@proof/torture/run

nginx-tests: setup-test setup-suite build
	@proof/nginx-tests/run

# the specification of idempot-js, from a checkout: t/dialect-ietf-spec.t
test-idempot: setup-test build
	@test -e "$${IDEMPOT_JS:-build/idempot-js}/tests/spec/idempotency.feature" || { \
	    echo "test-idempot: IDEMPOT_JS=<checkout of idempot-dev/idempot-js>" >&2; \
	    exit 1; }
	@prove t/dialect-ietf-spec.t

fresh: setup-fresh
	@tools/fresh $(or $(SUITE),trixie) run 'make check' test

history: setup-test build
	@proof/history/run

# an hour: a real outage under a real Prometheus
outage: setup-outage build
	@tools/outage redis
	@tools/outage zone

# the schema of the PostgreSQL store: printed, or applied where DATABASE says
sql:
	@tools/sql $(if $(DATABASE),"$(DATABASE)")

clients:
	@clients/pack

test-clients: setup-test setup-clients build
	@clients/test

torture-clients: setup-test setup-clients build
	@clients/conformance/torture

setup: setup-build setup-test

setup-%:
	@tools/setup $*

clean:
	rm -rf build

help:
	@echo "make [build]        $(MODULE), for the nginx of the distribution"
	@echo "make build NGINX_SRC=<tree>   the same for the nginx of a source tree"
	@echo "make build IDEMPOTENCY_JSON=yajl   with that JSON library; yyjson where it is installed"
	@echo "make run            try it on 127.0.0.1:8080 (PORT=<n> for another)"
	@echo "make run DEMO=traffic  with a little traffic, for the stats page; STORE=valkey|postgres"
	@echo "make check          the core of the tests: 3 minutes, few packages"
	@echo "make test           every test, on the nginx of the distribution"
	@echo "make check NGINX_SRC=<tree>   on an nginx that is built from that tree; test likewise"
	@echo "make test TESTS='t/a.t t/b.t' some of them"
	@echo "make test-postgres  every test on the store postgres, with the long form of some"
	@echo "make test-redis SERVER=<s>   the Redis part on redis-7.0, redis-8.0, valkey-8.1 or valkey-9.1"
	@echo "make unit           the tests of single C files only"
	@echo "make test-http3     t/http3.t, with an nginx and a curl that have HTTP/3"
	@echo "make test-asan      every test, on an nginx built with sanitizers"
	@echo "make test-valgrind  every test under valgrind: uninitialised memory"
	@echo "make bench          speed, beside others (15 minutes; an idle machine)"
	@echo "make bench-quick    the same in 6 minutes, less exact"
	@echo "make bench-scale    a cluster, sentinels: recovery, throughput, sizing (5 minutes)"
	@echo "make bench-instructions  instructions per request, by function"
	@echo "make model          the protocol, in every order it can happen in"
	@echo "make fuzz           parsers and decoders, FUZZ_SECONDS=60 each"
	@echo "make analyse        gcc -fanalyzer, clang-tidy, cppcheck"
	@echo "make torture        faults at random; SECONDS=180, SEED=<n>"
	@echo "make nginx-tests    nginx's own suite, NGINX_TESTS=<its checkout>"
	@echo "make test-idempot   the specification of idempot-js, IDEMPOT_JS=<its checkout>"
	@echo "make fresh          run, check and test on a new SUITE=trixie in a folder"
	@echo "make history        three hosts, each execution judged; CONFIG=redis, SECONDS=60, SEED=<n>"
	@echo "                    many runs, one row each: CONFIG=all OPERATIONS=100000"
	@echo "make outage         54 minutes: a real outage under a real Prometheus, and the alerts it fired"
	@echo "make sql            the schema for PostgreSQL, for psql; DATABASE=<name or URI>: applies it"
	@echo "make clients        packages of the clients, in build/clients"
	@echo "make test-clients   the reference clients: every scenario, on memory and Redis"
	@echo "make torture-clients  CLIENT=js|python, OPERATIONS=1000, STORE=memory, SEED=<n>"
	@echo "make check-style    tabs, long lines, trailing space in C"
	@echo "make install        the module to where nginx looks for it; DESTDIR=, prefix="
	@echo "make uninstall      what that installed"
	@echo "make deb            Debian packages, in build/deb"
	@echo "make test-deb       installs, tries and purges them on a new Debian in a folder"
	@echo "make docs           the documents as a site with search, build/site"
	@echo "make docs-look      looks at that site in a browser"
	@echo "make lint           rpm spec, Dockerfile, manifests: read, not run"
	@echo "make setup          only install what is missing (as root)"
	@echo "make clean          remove build/"
