# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Certificates of a remote store that change while requests run: a server that
# is not who it was gets nothing, what has to be written waits for the right
# one, and nothing runs twice.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Tls;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep);

our $remote = $ENV{IDEMPOTENCY_STORE} || '';
our ($tls, $store);

# what the server shows is in served.pem, what nginx trusts in trusted.pem

if ($remote =~ /^(?:redis|postgres)$/) {
    $tls = IdempotencyTest::Tls->new('ca', 'other');
    $tls->certificate('served', 'IP:127.0.0.1');
    $ENV{TEST_NGINX_TLS_DIR} = $tls->{dir};
    trust('ca.pem');
}

# a new file: nginx 1.27 and later keep what they have read of one that seems to
# be the same

sub trust
{
    my @files = map { "$tls->{dir}/$_" } @_;

    system("cat @files > $tls->{dir}/new.pem") == 0 or die;
    rename "$tls->{dir}/new.pem", "$tls->{dir}/trusted.pem" or die;
}

# the server has a new certificate, by that authority, and its data

sub serve
{
    my ($ca) = @_;

    $tls->certificate('served', 'IP:127.0.0.1', $ca);

    if ($remote eq 'postgres') {
        own_key();
        $store->restart('INT');
        return;
    }

    $store->command('CONFIG', 'SET', 'save', '3600 1');
    $store->command('SAVE');
    $store->restart('KILL');
    wait_for(sub { IdempotencyTest::is_listening($ENV{TEST_NGINX_SECURE_PORT}) });
}

# PostgreSQL takes a key that nobody else can read

sub own_key
{
    my $key = "$tls->{dir}/served.key";

    chmod 0600, $key;
    chown((getpwnam 'postgres')[2, 3], $key) if $> == 0;
}

if ($remote eq 'redis') {
    $ENV{TEST_NGINX_SECURE_PORT} = free_port();
    $store = start_redis($tls->redis($ENV{TEST_NGINX_SECURE_PORT}, 'served'));
    wait_for(sub { IdempotencyTest::is_listening($ENV{TEST_NGINX_SECURE_PORT}) });

} elsif ($remote eq 'postgres') {
    own_key();
    $store = start_postgres('ssl=on', "ssl_cert_file=$tls->{dir}/served.pem",
                            "ssl_key_file=$tls->{dir}/served.key");
    $ENV{TEST_NGINX_SECURE_PORT} = $store->{port};
}

every_block(http_config => <<'_EOC_', config => <<'_LOCATION_');
    idempotency_store shared $TEST_REMOTE {
        server                   127.0.0.1:$TEST_NGINX_SECURE_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/trusted.pem;
        breaker                  fails=3 reset=300ms;
    }
_EOC_
    idempotency_unknown_outcome  hold;
    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_LOCATION_

sub post
{
    my ($op, $key) = @_;

    return http_post("/ok?op=$op", 'x', $key);
}

# asks until it is not refused for the store

sub until_back
{
    my ($op, $key) = @_;

    my $r;
    ok(wait_for(sub { $r = post($op, $key);
                      $r->error_code ne 'STORE_UNAVAILABLE' }, 30), 'it is back');
    return $r;
}

run_tests();

__DATA__

=== TEST 1: the server comes back with a certificate that is not accepted
--- store: redis postgres
--- client_timeout: 120
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key() } } qw(a b c);

is(post('b', $key{b})->body, "run 1\n", 'one that is through');
my $c = send_post('/hold?op=a', 'x', $key{a});
is(app_wait_parked('a'), 1, 'one runs');

serve('other');
app_release('a');
is($c->read_response->body, "run 1\n", 'and has its response');

is(http_post('/hold?op=a', 'x', $key{a})->body, "run 1\n", 'kept here');
is(post($_, $key{$_})->error_code, 'STORE_UNAVAILABLE', "$_ is refused") for qw(b c c c c);
is(app_count('c'), 0, 'and does not run');
error_log_like(qr/can't connect to \w+ at \S+: .*(?:certificate is not accepted|certificate verify failed)/,
               'says why');

serve('ca');
is(until_back('c', $key{c})->body, "run 1\n", 'runs now');
is(post('b', $key{b})->body, "run 1\n", 'replayed');

# by another nginx, which has nothing of its own

my $other = start_host(free_port());
my $r;
ok(wait_for(sub { $r = http_post('/hold?op=a', 'x', $key{a}, port => $other->{port});
                  $r->status == 200 }, 30), 'the commit landed');
is($r->body, "run 1\n", 'as it was');
is(app_count($_), 1, "$_ ran once") for qw(a b c);
ok($other->stop, 'the other one leaves');



=== TEST 2: the trusted certificate changes, then the server's
--- store: redis postgres
--- provokes: SSL_CTX_load_verify_locations\(|cannot load certificate|can't be loaded
--- client_timeout: 120
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key() } } qw(a b c);

my $c = send_post('/hold?op=a', 'x', $key{a});
is(app_wait_parked('a'), 1, 'one runs');
is(post('b', $key{b})->body, "run 1\n", 'one is through');

# both are trusted; what was begun before ends in its old worker

trust('ca.pem', 'other.pem');
ok(nginx_reload(), 'reload');
serve('other');
is(until_back('b', $key{b})->body, "run 1\n", 'replayed over the new one');
app_release('a');
is($c->read_response->body, "run 1\n", 'the first has its response');
is(http_post('/hold?op=a', 'x', $key{a})->body, "run 1\n", 'and so has its retry');

# one that can't be read is no reload

trust('served.ext');
ok(!nginx_reload(), 'refused');
error_log_like(qr/store "shared" in \S+:\d+ has a "tls_trusted_certificate" that can't be loaded/,
               'whose it is');
is(post('c', $key{c})->body, "run 1\n", 'goes on');
is(app_count($_), 1, "$_ ran once") for qw(a b c);

trust('ca.pem');
serve('ca');
