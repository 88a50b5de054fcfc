# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_admin and clients that read slowly, or leave: a list that does not
# fit into the socket at once is sent to its end.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Errno;
use Socket qw(SOL_SOCKET SO_RCVBUF);
use IO::Socket::INET;

run_tests();

__DATA__

=== TEST 1: a list that its client reads slowly
--- http_config
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2 sndbuf=8k;
        server_name  localhost;

        location /ops/ {
            idempotency_admin;
        }
    }
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_scope     api;
        idempotency_identity  off;
        idempotency_tenant    $http_x_tenant;
        idempotency_group     pay;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
my ($n, $tenant) = (200, 'x' x 120);

http_post('/ok?op=a', 'x', { 'Idempotency-Key' => new_key(),
                             'X-Tenant' => $tenant }) for 1 .. $n;

my $name = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 'default'
                                                             : 'tested';

my $c = IO::Socket::INET->new(Proto => 'tcp') or die $!;
$c->sockopt(SO_RCVBUF, 4096);
$c->connect(Socket::pack_sockaddr_in($ENV{TEST_NGINX_PORT_2},
                                     Socket::inet_aton('127.0.0.1'))) or die $!;
print $c "GET /ops/records/$name?limit=1000 HTTP/1.1\r\nHost: localhost\r\n"
         . "Connection: close\r\n\r\n";
$c->flush;

# it reads once what is there fills the sockets

vec(my $readable = '', fileno $c, 1) = 1;
ok(wait_for(sub { select(my $ready = $readable, undef, undef, 1) > 0 }),
   'it begins');
sleep 0.3;

my $text = '';
my $end = time + 20 + grace();

while (time < $end) {
    select(my $more = $readable, undef, undef, 1) or next;
    my $got = sysread $c, $text, 65536, length $text;

    next if !defined $got && $!{EINTR};
    last if !$got;
}

my ($head, $body) = split /\r\n\r\n/, $text, 2;
my ($length) = $head =~ /^Content-Length: (\d+)/mi;

cmp_ok($length, '>', 50_000, 'more than fits at once');
is(length $body, $length, 'and all of it comes');
is(scalar(() = $body =~ /"record":/g), $n, 'each record');
