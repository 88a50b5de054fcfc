# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The order of load_module does not matter.  A filter of a module that is
# loaded later acts once on the first response and once on each replay, and
# what is stored is the response before it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $config = <<'_EOC_';
    idempotency  $TEST_STORE;

    location /lua/ {
        header_filter_by_lua_block {
            ngx.header.content_length = nil
            ngx.header["X-Seen"] = (ngx.header["X-Seen"] or "") .. "a"
        }
        body_filter_by_lua_block {
            ngx.arg[1] = string.gsub(ngx.arg[1], "run", "run run")
        }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /js/ {
        js_header_filter  filters.header;
        js_body_filter    filters.body;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /echo/ {
        echo_before_body  before;
        echo_after_body   after;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

our $http = <<'_EOC_';
    js_path    $TEST_NGINX_SERVER_ROOT/html;
    js_import  filters from filters.js;
_EOC_

our $files = <<'_EOC_';
>>> filters.js
function header(r) {
    delete r.headersOut['Content-Length'];
    r.headersOut['X-Seen'] = (r.headersOut['X-Seen'] || '') + 'a';
}
function body(r, data, flags) {
    r.sendBuffer(data.replace('run', 'run run'), flags);
}
export default { header, body };
_EOC_

our %first = (
    lua  => "run run 1\n",
    js   => "run run 1\n",
    echo => "before\nrun 1\nafter\n",
);

sub same_twice
{
    for my $kind (sort keys %first) {
        my %key = ('Idempotency-Key' => new_key());

        for my $try ('the first', 'a replay', 'another') {
            my $r = http_post("/$kind/ok?op=$kind", 'x', \%key);

            is($r->body, $first{$kind}, "$kind: body, $try");
            is($r->header('X-Seen'), $kind eq 'echo' ? undef : 'a',
               "$kind: header, $try");
            is($r->header('Idempotent-Replayed'),
               $try eq 'the first' ? undef : 'true', "$kind: $try");
        }

        is(app_count($kind), 1, "$kind: ran once");
    }
}

run_tests();

__DATA__

=== TEST 1: other filters are loaded after the module
--- modules_after: lua js echo
--- http_config eval: $::http
--- config eval: $::config
--- user_files eval: $::files
--- client
same_twice();



=== TEST 2: before it
--- modules: lua js echo
--- http_config eval: $::http
--- config eval: $::config
--- user_files eval: $::files
--- client
same_twice();



=== TEST 3: it is on in one location only, and so it is after a reload
--- modules_after: lua
--- config
    location /off/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        body_filter_by_lua_block {
            ngx.arg[1] = string.gsub(ngx.arg[1], "run", "RUN")
        }
        location /on/ {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/on/ok?op=a', 'x', \%key)->body, "RUN 1\n", 'ran');

nginx_reload();

my $r = http_post('/on/ok?op=a', 'x', \%key);
is($r->body, "RUN 1\n", 'replayed');
is($r->header('Idempotent-Replayed'), 'true', 'says so');

%key = ('Idempotency-Key' => new_key());
http_post('/on/ok?op=b', 'x', \%key);
is(http_post('/on/ok?op=b', 'x', \%key)->body, "RUN 1\n", 'a new one, too');
