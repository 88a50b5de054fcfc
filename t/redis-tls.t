# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The Redis store over TLS: the server's certificate is checked, by its issuer,
# its time and its name; ours is shown where it is asked for.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Tls;
use Test::Nginx::Socket 'no_plan';

our ($tls, $dir);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $tls = IdempotencyTest::Tls->new('ca', 'other');
    $dir = $tls->{dir};

    $tls->certificate('server', 'DNS:redis.test,IP:127.0.0.1');
    $tls->certificate('named', 'DNS:redis.test');
    $tls->certificate('client', 'DNS:nginx.test');

    $tls->certificate('expired', 'DNS:redis.test');
    make_ca_config();
    $tls->openssl("ca -batch -config $dir/ca.cnf -in $dir/expired.csr",
                  "-out $dir/expired.pem -notext",
                  "-startdate 20200101000000Z -enddate 20200201000000Z");

    for (['GOOD', 'server', 'no'], ['NAMED', 'named', 'no'],
         ['EXPIRED', 'expired', 'no'], ['STRICT', 'server', 'yes'])
    {
        my ($env, $name, $clients) = @$_;
        my $port = free_port();

        start_redis($tls->redis($port, $name, clients => $clients));

        wait_for(sub { IdempotencyTest::is_listening($port) });
        $ENV{"TEST_NGINX_${env}_PORT"} = $port;
    }

    $ENV{TEST_NGINX_TLS_DIR} = $dir;
}

# what "openssl ca" needs: only that makes certificates of the past

sub make_ca_config
{
    open my $out, '>', "$dir/ca.cnf" or die $!;
    print $out <<"_EOC_";
[ca]
default_ca = d
[d]
new_certs_dir = $dir
database = $dir/index.txt
serial = $dir/serial
certificate = $dir/ca.pem
private_key = $dir/ca.key
default_md = sha256
policy = p
x509_extensions = x
[p]
commonName = supplied
[x]
subjectAltName = DNS:redis.test,IP:127.0.0.1
_EOC_
    close $out;

    open my $index, '>', "$dir/index.txt";
    open my $serial, '>', "$dir/serial";
    print $serial "1000\n";
}

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub works
{
    my %key = ('Idempotency-Key' => new_key());

    is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran');
    is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'replayed');
}

sub fails
{
    my ($said) = @_;

    my $r = http_post('/ok?op=a', 'x', { 'Idempotency-Key' => new_key() });

    is($r->error_code, 'STORE_UNAVAILABLE', 'refused');
    is(app_count('a'), 0, 'did not run');
    error_log_like(qr/can't connect to Redis at \S+: $said/, 'says why');
}

run_tests();

__DATA__

=== TEST 1: a certificate that is right
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_GOOD_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
        tls_name                 redis.test;
    }
--- config eval: $::location
--- client
works();

# a waiter, over TLS as well
my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/hold?op=w', 'x', \%key);
app_wait_parked('w');
my $w = send_post('/hold?op=w', 'x', \%key);
sleep 0.3;
app_release('w');
is($w->read_response->body, "run 1\n", 'woken');



=== TEST 2: an address for a name
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_GOOD_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- client
works();



=== TEST 3: much at a time
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_GOOD_PORT;
        timeout                  10s;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config
    location / {
        idempotency               own;
        idempotency_max_response  4m;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @keys = map { new_key() } 0 .. 19;

for my $round (1, 2) {
    my @c = map { send_post("/size?op=b$_&n=2000000", 'x',
                            { 'Idempotency-Key' => $keys[$_] }) } 0 .. 19;
    is(scalar(grep { length $_->read_response(30)->body == 2_000_000 } @c), 20,
       "whole, round $round");
}

is(scalar(grep { app_count("b$_") == 1 } 0 .. 19), 20, 'each ran once');



=== TEST 4: another name
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_GOOD_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
        tls_name                 other.test;
    }
--- config eval: $::location
--- client
fails(qr/its certificate is not for "other.test"/);



=== TEST 5: another address
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_NAMED_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- client
fails(qr/its certificate is not for "127.0.0.1"/);



=== TEST 6: another issuer
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_GOOD_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/other.pem;
    }
--- config eval: $::location
--- client
fails(qr/its certificate is not accepted: (?:self|unable)/);



=== TEST 7: checked against the system's issuers if none is named
--- store: redis
--- http_config
    idempotency_store own redis {
        server  127.0.0.1:$TEST_NGINX_GOOD_PORT;
        tls     on;
    }
--- config eval: $::location
--- client
fails(qr/its certificate is not accepted/);



=== TEST 8: expired
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_EXPIRED_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- client
fails(qr/its certificate is not accepted: certificate has expired/);



=== TEST 9: not checked
--- store: redis
--- http_config
    idempotency_store own redis {
        server      127.0.0.1:$TEST_NGINX_EXPIRED_PORT;
        tls         on;
        tls_verify  off;
    }
--- config eval: $::location
--- client
works();



=== TEST 10: a server that wants our certificate
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_STRICT_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
        tls_certificate          $TEST_NGINX_TLS_DIR/client.pem;
        tls_certificate_key      $TEST_NGINX_TLS_DIR/client.key;
    }
--- config eval: $::location
--- client
works();



=== TEST 11: ... and does not get it
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1:$TEST_NGINX_STRICT_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- provokes: SSL_.*failed
--- client
my $r = http_post('/ok?op=a', 'x', { 'Idempotency-Key' => new_key() });
is($r->error_code, 'STORE_UNAVAILABLE', 'refused');
is(app_count('a'), 0, 'did not run');



=== TEST 12: a server that does not speak TLS
--- store: redis
--- http_config
    idempotency_store own redis {
        server           127.0.0.1:$TEST_NGINX_REDIS_PORT;
        connect_timeout  300ms;
        tls              on;
        tls_verify       off;
    }
--- config eval: $::location
--- provokes: SSL_.*failed
--- client
fails(qr/the TLS handshake failed|no answer within 300 ms/);



=== TEST 13: a certificate without its key
--- store: redis
--- http_config
    idempotency_store own redis {
        server           127.0.0.1;
        tls              on;
        tls_certificate  /tmp/none.pem;
    }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*store "own" in .*nginx\.conf:\d+ has one of "tls_certificate" and "tls_certificate_key" without the other/



=== TEST 14: an issuer that is not there
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   127.0.0.1;
        tls                      on;
        tls_trusted_certificate  /tmp/none.pem;
    }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*none\.pem/
