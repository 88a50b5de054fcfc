# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# nginx exits while a connection to a remote store shakes hands, asks a sentinel
# or waits for replicas, or has nothing to do until worker_shutdown_timeout ends
# a request.  What has to be written is written: nobody else would do it.
# t/shutdown.t has the rest.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Tls;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep);

our $remote = $ENV{IDEMPOTENCY_STORE} || '';
our ($tls, $store, $proxy, $set, $next, $replica);

if ($remote =~ /^(?:redis|postgres)$/) {
    $tls = IdempotencyTest::Tls->new('ca');
    $tls->certificate('server', 'IP:127.0.0.1,DNS:localhost');
    $ENV{TEST_NGINX_TLS_DIR} = $tls->{dir};
}

# TLS behind a proxy; a sentinel, and a server that it is to name later; a
# replica

if ($remote eq 'redis') {
    my $secure = free_port();

    # its first bytes after the handshake are a reply, and no ticket as in 1.3

    $store = start_redis($tls->redis($secure, 'server'),
                         '--tls-protocols', 'TLSv1.2',
                         '--repl-diskless-sync-delay', 0);
    wait_for(sub { IdempotencyTest::is_listening($secure) });
    $proxy = IdempotencyTest::RedisProxy->start(port => free_port(), to => $secure);

    $set = start_sentinels(replicas => 0, sentinels => 1);
    $next = start_redis();
    $replica = start_redis('--replicaof', '127.0.0.1', $store->{port});
    wait_for(sub { $replica->command('ROLE')->[3] eq 'connected' });

    $ENV{TEST_NGINX_SECURE_PORT} = $proxy->{port};
    $ENV{TEST_NGINX_SENTINEL} = '127.0.0.1:' . ($set->sentinels)[0]{port};
}

# PostgreSQL takes a key that nobody else can read

if ($remote eq 'postgres') {
    my $key = "$tls->{dir}/server.key";

    chmod 0600, $key;
    chown((getpwnam 'postgres')[2, 3], $key) if $> == 0;

    $store = start_postgres('ssl=on', "ssl_cert_file=$tls->{dir}/server.pem",
                            "ssl_key_file=$key");
    $proxy = start_redis_proxy($store);
    $ENV{TEST_NGINX_SECURE_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    if ($store) {
        $store->resume;
        $proxy->tell('cut');
        $store->command('FLUSHALL');
        $ENV{TEST_NGINX_OWN_PORT} = $store->{port};
    }
});

our $times = <<'_EOC_';
        timeout          10s;
        connect_timeout  10s;
        connections      1;
    }
_EOC_

our $secure = <<'_EOC_' . $times;
    idempotency_store shared $TEST_REMOTE {
        server                   127.0.0.1:$TEST_NGINX_SECURE_PORT;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
_EOC_

our $plain = <<'_EOC_' . $times;
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
_EOC_

every_block(config => <<'_EOC_', main_config => 'worker_shutdown_timeout 1s;');
    idempotency_unknown_outcome  hold;
    idempotency_lease            1500ms;
    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub hold
{
    my ($op) = @_;

    my $c = send_post("/hold?op=$op", 'x', { 'Idempotency-Key' => new_key() });
    is(app_wait_parked($op), 1, "$op runs");

    return $c;
}

sub records
{
    my ($state, $server) = @_;

    $server ||= $store;
    return scalar grep { $_ && $_->{s} == $state }
                  map { $server->record($_) } $server->keys;
}

sub gone
{
    my ($worker) = @_;

    ok(wait_for(sub { !kill 0, $worker }, 30), 'nginx is gone');
    error_log_unlike(qr/nginx exits with/, 'with nothing left to do');
}

run_tests();

__DATA__

=== TEST 1: a commit that waits for a TLS handshake
--- store: redis postgres
--- http_config eval: $::secure
--- client_timeout: 90
--- client
my ($worker) = nginx_workers();
my ($first, $second) = map { hold($_) } qw(a b);

$::store->pause;
$::proxy->tell('cut');
app_release('a');
error_log_like(qr/lost the connection|closed the connection/, 'no connection');
kill QUIT => nginx_master();
ok($second->closed(10), 'worker_shutdown_timeout ends the request');
ok(kill(0, $worker), 'the worker is there');
$::store->resume;
gone($worker);
is(records(2), 1, 'the response is stored');
is(records(1), 0, 'and what became of the other one');



=== TEST 2: the connection has nothing to do until a request is ended
Its outcome is written on it, after worker_shutdown_timeout was over for both.
--- store: redis postgres
--- http_config eval: $::plain
--- client_timeout: 90
--- client
my ($worker) = nginx_workers();
my $c = hold('a');
kill QUIT => nginx_master();
ok($c->closed(10), 'worker_shutdown_timeout ends the request');
gone($worker);
is(records(1), 0, 'no lock is left');
is(records(3), 1, 'it may have run');



=== TEST 3: a commit that waits for the answer of a sentinel
--- store: redis
--- http_config
    idempotency_store shared redis {
        sentinel         $TEST_NGINX_SENTINEL master=main;
        timeout          6s;
        connect_timeout  2s;
        connections      1;
    }
--- client_timeout: 90
--- client
my ($worker) = nginx_workers();
my ($sentinel) = $::set->sentinels;
my $c = hold('a');

$sentinel->command(qw(SENTINEL REMOVE main));
$sentinel->command(qw(SENTINEL MONITOR main 127.0.0.1), $::next->{port}, 1);
$sentinel->pause;
($::set->nodes)[0]->kill_it;
app_release('a');
error_log_like(qr/nobody tells which server/, 'the sentinel is silent');
sleep 1.5;
kill QUIT => nginx_master();
sleep 0.3;
$sentinel->resume;
gone($worker);
is(records(2, $::next), 1, 'the response is stored');



=== TEST 4: a commit that waits for a replica
--- store: redis
--- http_config eval: $::plain =~ s/connections/replicas 1 timeout=10s; connections/r
--- client_timeout: 90
--- client
my ($worker) = nginx_workers();
my ($first, $second) = map { hold($_) } qw(a b);

$::replica->pause;
app_release('a');
ok(wait_for(sub { records(2) }), 'the master has it');
kill QUIT => nginx_master();
ok($second->closed(10), 'worker_shutdown_timeout ends the request');
ok(kill(0, $worker), 'the worker is there');
$::replica->resume;
gone($worker);
ok(wait_for(sub { records(2, $::replica) == 1 && records(1, $::replica) == 0 }),
   'the replica has both');
