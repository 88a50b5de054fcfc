# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A tunnel (CONNECT and tunnel_pass, nginx 1.31 and later) is no response that
# can be held: it goes through, and is not kept.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket;

my $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';

`$nginx -v 2>&1` =~ m{nginx/(\d+)\.(\d+)} or die "$nginx has no version\n";

if ($1 == 1 && $2 < 31) {
    plan(skip_all => "no tunnels in this nginx ($1.$2)");
}

plan('no_plan');

run_tests();

__DATA__

=== TEST 1: a covered CONNECT
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  CONNECT;

    location / {
        tunnel_pass      127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();

sub tunnel
{
    my $c = connect_client();

    $c->send_part("CONNECT app:80 HTTP/1.1\r\nHost: app:80\r\n"
                  . "Idempotency-Key: $key\r\n\r\n");
    return $c;
}

my $c = tunnel();
like($c->read_some(15, 5), qr{^HTTP/1.1 200 OK\r\n}, 'the tunnel is there');

$c->send_part("POST /ok?op=through HTTP/1.1\r\nHost: app\r\n"
              . "Content-Length: 1\r\n\r\nx");
ok(wait_for(sub { !$c->closed(0.05) && $c->read_some =~ m{run 1\n$} }, 5),
   'what goes through it is answered');
is(app_count('through'), 1, 'ran');

is(tunnel()->read_response->status, 409, 'another one with its key is refused');
