# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Upstreams over TLS: a handshake that fails has sent nothing of the request, so
# the lock is given back, and a next peer may be tried; what comes after it may
# have run.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Tls;
use Test::Nginx::Socket 'no_plan';

our $tls = IdempotencyTest::Tls->new('ca', 'other');
$tls->certificate('server', 'DNS:server.test');
$tls->certificate('wrong', 'DNS:server.test', 'other');

$ENV{TEST_NGINX_TLS_DIR} = $tls->{dir};
$ENV{TEST_NGINX_GOOD_PORT} = free_port();
$ENV{TEST_NGINX_WRONG_PORT} = free_port();
$ENV{TEST_NGINX_REJECT_PORT} = free_port();
$ENV{TEST_NGINX_GRPC_PORT} = free_port();

sub h2 { return $Test::Nginx::Util::NginxVersion >= 1.025001 ? '; http2 on;' : ' http2;' }

our $http = <<'_EOC_';
    ssl_certificate      $TEST_NGINX_TLS_DIR/server.pem;
    ssl_certificate_key  $TEST_NGINX_TLS_DIR/server.key;
    server {
        listen  127.0.0.1:$TEST_NGINX_GOOD_PORT ssl;
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    }
    server {
        listen  127.0.0.1:$TEST_NGINX_GRPC_PORT ssl@h2@
        location / { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    }
    server {
        listen  127.0.0.1:$TEST_NGINX_WRONG_PORT ssl;
        ssl_certificate      $TEST_NGINX_TLS_DIR/wrong.pem;
        ssl_certificate_key  $TEST_NGINX_TLS_DIR/wrong.key;
    }
    server {
        listen  127.0.0.1:$TEST_NGINX_REJECT_PORT ssl;
        ssl_reject_handshake  on;
    }
    upstream some {
        server 127.0.0.1:$TEST_NGINX_WRONG_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_REJECT_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_GOOD_PORT max_fails=0;
        server 127.0.0.1:$TEST_NGINX_GRPC_PORT max_fails=0;
    }
    proxy_ssl_name                 server.test;
    proxy_ssl_verify               on;
    proxy_ssl_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    proxy_ssl_session_reuse        off;      # nginx would leave sessions unfreed
    grpc_ssl_session_reuse         off;
    grpc_ssl_name                  server.test;
    grpc_ssl_verify                on;
    grpc_ssl_trusted_certificate   $TEST_NGINX_TLS_DIR/ca.pem;
    idempotency_unknown_outcome    hold;
    add_header                     X-Outcome $idempotency_status always;
_EOC_

# twice by PUT, which nginx itself would send to a next peer; what was said

sub twice
{
    my ($uri) = @_;

    my $key = { 'Idempotency-Key' => new_key() };

    return join ', ', map {
        my $r = http_put($uri, 'x' x 100_000, $key);
        $r->status . ' ' . ($r->header('X-Outcome'))[-1];
    } 1, 2;
}

run_tests();

__DATA__

=== TEST 1: handshakes that fail, and what comes after one
--- store: memory
--- http_config eval: $::http =~ s/\@h2\@/main::h2()/er
--- config
    idempotency  $TEST_STORE;
    client_body_buffer_size  16k;
    location /good/ { proxy_pass https://127.0.0.1:$TEST_NGINX_GOOD_PORT; }
    location /wrong/ { proxy_pass https://127.0.0.1:$TEST_NGINX_WRONG_PORT; }
    location /reject/ { proxy_pass https://127.0.0.1:$TEST_NGINX_REJECT_PORT; }
    location /some/ {
        proxy_pass               https://some;
        proxy_next_upstream      error timeout http_502;
        proxy_request_buffering  off;
    }
    location /page/ {
        proxy_pass  https://127.0.0.1:$TEST_NGINX_WRONG_PORT;
        error_page  502 =200 /fine.html;
    }
    location = /fine.html { return 200 "fine\n"; }
    location /grpc/ { grpc_pass grpcs://127.0.0.1:$TEST_NGINX_GRPC_PORT; }
    location /grpc-wrong/ { grpc_pass grpcs://127.0.0.1:$TEST_NGINX_WRONG_PORT; }
--- provokes: SSL_do_handshake\(\) failed
--- client
my $ran = '200 EXECUTED, 200 REPLAYED';
my $released = '502 RELEASED, 502 RELEASED';
my $unknown = '502 UNKNOWN, 409 UNKNOWN';

is(twice('/wrong/ok?op=wrong'), $released, 'a certificate that is not accepted');
is(twice('/reject/ok?op=reject'), $released, 'a handshake that is refused');
is(twice('/grpc-wrong/ok?op=grpcwrong'), $released, 'the same for gRPC');
is(twice('/page/ok?op=page'), '200 RELEASED, 200 RELEASED', 'behind an error page');
is(twice('/good/ok?op=good'), $ran, 'one that is accepted');
is(twice('/grpc/ok?op=grpc'), $ran, 'the same for gRPC');

# each begins at another peer

is(twice("/some/ok?op=some$_"), $ran, 'the next peer is tried after a handshake') for 1 .. 3;
is(twice("/some/close?op=close$_"), $unknown, 'but not after the request') for 1 .. 3;

is(twice('/good/reset?op=reset'), $unknown, 'a connection that is reset');
is(twice('/good/truncate?op=cut'), $unknown, 'a response that is cut');
is(twice('/grpc/close?op=grpcclose'), $unknown, 'the same for gRPC');

is(app_count($_), 0, "$_ did not run") for qw(wrong reject grpcwrong page);
is(app_count($_), 1, "$_ ran once")
    for qw(good grpc some1 some2 some3 close1 close2 close3 reset cut grpcclose);
