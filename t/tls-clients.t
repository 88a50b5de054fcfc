# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Clients over TLS, with certificates, behind PROXY protocol and on a
# UNIX-domain socket: who gets a stored response, and what becomes of an
# execution whose client leaves.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Tls;
use Test::Nginx::Socket 'no_plan';

our $tls = IdempotencyTest::Tls->new('ca');
$tls->certificate($_, "DNS:$_.test") for qw(server alice bob);

# alice once more, as if it was renewed
system("cp $tls->{dir}/alice.pem $tls->{dir}/old.pem; "
       . "cp $tls->{dir}/alice.key $tls->{dir}/old.key");
$tls->certificate('alice', 'DNS:alice.test');

$ENV{TEST_NGINX_TLS_DIR} = $tls->{dir};

our $http = <<'_EOC_';
    ssl_certificate         $TEST_NGINX_TLS_DIR/server.pem;
    ssl_certificate_key     $TEST_NGINX_TLS_DIR/server.key;
    ssl_client_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
_EOC_

every_block(http_config => $http);

sub h2 { return $Test::Nginx::Util::NginxVersion >= 1.025001 ? '; http2 on;' : ' http2;' }

sub key { return { 'Idempotency-Key' => new_key() } }

# of that client, over TLS

sub ask
{
    my ($uri, $key, $name, @options) = @_;

    return http_post($uri, 'x', $key,
                     socket => $tls->dial($ENV{TEST_NGINX_PORT_2}, $name, @options));
}

sub told
{
    my ($response) = @_;

    return $response->header('Idempotent-Replayed') ? 'replayed'
         : $response->error_code || $response->status . ' ' . $response->body;
}

run_tests();

__DATA__

=== TEST 1: the certificate is who it is
--- store: memory
--- config eval
"    listen 127.0.0.1:\$TEST_NGINX_PORT_2 ssl" . main::h2() . <<'_EOC_'
    ssl_verify_client    optional;
    ssl_session_cache    shared:tls:1m;
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my $key = key();
my $session = "$::tls->{dir}/session";

is(told(ask('/ok?op=a', $key, 'alice', '-sess_out', $session)), "200 run 1\n", 'ran');
is(told(ask('/ok?op=a', $key, 'alice')), 'replayed', 'to her');
ok(-s $session, 'there is a session');
is(told(ask('/ok?op=a', $key, 'alice', '-sess_in', $session)), 'replayed', 'in the same session');
is(told(ask('/ok?op=a', $key, 'alice', '-tls1_2')), 'replayed', 'by another version');

for my $name ('bob', 'old', '') {
    my $r = ask('/ok?op=a', $key, $name);
    is(told($r), 'IDEMPOTENCY_CONFLICT', "not to somebody else: '$name'");
    unlike($r->body, qr/original/, 'who is told nothing');
}

is(told(http_post('/ok?op=a', 'x', $key)), 'IDEMPOTENCY_CONFLICT', 'nor without TLS');

# HTTP/2: the body in pieces, its end late; a stream that waits; the holder's
# stream is reset

my $h2 = h2_connect(socket => $::tls->dial($ENV{TEST_NGINX_PORT_2}, 'alice', '-alpn', 'h2'));
my $other = key();
my $holder = $h2->request('POST', '/hold?op=b', 'one', $other, more => 1);
$h2->data($holder, 'two', 0);
$h2->data($holder, '', 1);
is(app_wait_parked('b'), 1, 'runs');
my @waiters = map { $h2->request('POST', '/hold?op=b', 'onetwo', $other) } 1 .. 5;
$h2->ping;
$h2->rst($holder);
$h2->ping;
app_release('b');
is($h2->response($_)->body, "run 1\n", 'waited for the holder that left') for @waiters;
is(app_count($_), 1, "$_ ran once") for qw(a b);



=== TEST 2: the subject is who it is: a renewed certificate gets the response
--- store: memory
--- config
    listen 127.0.0.1:$TEST_NGINX_PORT_2 ssl;
    ssl_verify_client     on;
    idempotency_identity  $ssl_client_s_dn;
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = key();
is(told(ask('/ok?op=a', $key, 'old')), "200 run 1\n", 'ran');
is(told(ask('/ok?op=a', $key, 'alice')), 'replayed', 'renewed');
is(told(ask('/ok?op=a', $key, 'bob')), 'IDEMPOTENCY_CONFLICT', 'another one');
like(told(ask('/ok?op=a', $key)), qr/^400 .*No required SSL certificate/s, 'none');
is(app_count('a'), 1, 'ran once');



=== TEST 3: a server that asks for certificates, and others around it
The identity does not tell clients apart, so only the servers do.
--- store: memory
--- http_config eval
$::http . <<'_EOC_';
    idempotency_identity  $http_x_user;
    idempotency_scope     all;
    server {
        listen               127.0.0.1:$TEST_NGINX_PORT_2 ssl;
        server_name          open.test;
        location / {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
    server {
        listen               127.0.0.1:$TEST_NGINX_PORT_2 ssl;
        listen               127.0.0.1:$TEST_NGINX_PORT_3;
        server_name          closed.test;
        ssl_verify_client    on;
        location / {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
    server {
        listen               127.0.0.1:$TEST_NGINX_PORT_2 ssl;
        server_name          never.test;
        ssl_reject_handshake on;
        location / {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_
--- config
    server_name closed.test;
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = { %{ key() }, Host => 'closed.test', 'X-User' => 'u' };
my @closed = ('-servername', 'closed.test');
my @open = ('-servername', 'open.test');

is(told(ask('/ok?op=a', $key, 'alice', @closed)), "200 run 1\n", 'ran');
is(told(ask('/ok?op=a', $key, 'bob', @closed)), 'replayed', 'to who may');
like(told(ask('/ok?op=a', $key, '', @closed)), qr/^400 /, 'no certificate');
like(told(ask('/ok?op=a', $key, '', @open)), qr/^421 /, 'the name of another server');
like(told(ask('/ok?op=a', $key, '', '-noservername')), qr/^400 /, 'no name');
is(told(http_post('/ok?op=a', 'x', $key)), 'IDEMPOTENCY_CONFLICT', 'another server of that name');
is(told(http_post('/ok?op=a', 'x', { %$key, Host => 'never.test' })), 'IDEMPOTENCY_CONFLICT',
   'by its default server');
is(told(ask('/ok?op=a', { %$key, Host => 'open.test' }, '', @open)), 'IDEMPOTENCY_CONFLICT',
   'another host');
is(told(ask('/ok?op=a', { %$key, Host => 'never.test' }, '', @open)), 'IDEMPOTENCY_CONFLICT',
   'one that shakes no hands');
is(app_count('a'), 1, 'ran once');



=== TEST 4: the address that a proxy tells is who it is
--- store: memory
--- http_config
    server {
        listen                127.0.0.1:$TEST_NGINX_PORT_2 proxy_protocol;
        listen                unix:$TEST_NGINX_SERVER_ROOT/html/pp.sock proxy_protocol;
        set_real_ip_from      127.0.0.1;
        set_real_ip_from      unix:;
        real_ip_header        proxy_protocol;
        idempotency_identity  $remote_addr;
        location / {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    location / { return 404; }
--- client
my $key = key();

sub by
{
    my ($line, %o) = @_;

    my $c = connect_client(port => $ENV{TEST_NGINX_PORT_2}, %o);
    $c->send_part("PROXY $line\r\n");
    $c->request('POST', '/ok?op=a', 'x', $key);
    return $c->read_response;
}

my %unix = (unix => "$ENV{TEST_NGINX_SERVROOT}/html/pp.sock");

is(told(by('TCP4 192.0.2.1 192.0.2.9 1000 80')), "200 run 1\n", 'ran');
is(told(by('TCP4 192.0.2.1 192.0.2.9 1001 80')), 'replayed', 'the same');
is(told(by('TCP4 192.0.2.1 192.0.2.9 1001 80', %unix)), 'replayed', 'by another listener');
is(told(by('TCP4 192.0.2.2 192.0.2.9 1001 80')), 'IDEMPOTENCY_CONFLICT', 'another');
is(told(by('TCP6 2001:db8::1 2001:db8::9 1001 80')), 'IDEMPOTENCY_CONFLICT', 'and another');
is(told(by('UNKNOWN')), 'IDEMPOTENCY_CONFLICT', 'unknown');
is(app_count('a'), 1, 'ran once');
