# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# worker_shutdown_timeout ends requests, and not what is under way in a remote
# store: nginx exits when that has ended, too.  Nobody else would do it: it is
# the whole nginx that exits.  What is not under way any more keeps no worker.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($store, $proxy) = start_proxied();

add_block_preprocessor(sub {
    if ($store) {
        $store->resume;
        $proxy->tell('cut');
        $store->command('FLUSHALL');
    }
});

our $stores = <<'_EOC_';
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout          20s;
        connect_timeout  20s;
        connections      1;
    }
_EOC_

our $locations = <<'_EOC_';
    idempotency_unknown_outcome  hold;
    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# those in that state

sub records
{
    my ($state) = @_;

    return scalar grep { $_ && $_->{s} == $state } map { $store->record($_) } $store->keys;
}

# nginx is to exit, and the client of $c is cut off

sub quit
{
    my ($c) = @_;

    kill QUIT => nginx_master();
    ok($c->closed(10), 'worker_shutdown_timeout ends the request');
}

sub gone
{
    my ($worker) = @_;

    ok(wait_for(sub { !kill 0, $worker }, 30), 'nginx is gone');
}

every_block(
    main_config    => 'worker_shutdown_timeout  300ms;',
    http_config    => $stores,
    config         => $locations,
    client_timeout => 90,
);

run_tests();

__DATA__

=== TEST 1: a commit that waits for a connection
--- store: redis postgres
--- client
my ($worker) = nginx_workers();
my @c = map { send_post("/hold?op=$_", 'x', key()) } qw(a b);
is(app_wait_parked($_), 1, "$_ runs") for qw(a b);

$::proxy->tell('cut');
$::store->pause;
app_release('a');
sleep 0.5;
quit($c[1]);
ok(kill(0, $worker), 'the worker is there');
$::store->resume;
gone($worker);
is(records(2), 1, 'the response is stored');
is(records(1), 0, 'and what became of the other one');



=== TEST 2: a begin that is given up with its request
--- store: redis postgres
--- client
my ($worker) = nginx_workers();
my $warm = http_post('/ok?op=warm', 'x', { %{ key() }, Connection => 'close' });
is($warm->status, 200, 'there is a connection');
$::store->command('FLUSHALL');

$::proxy->tell('deaf');
my $c = send_post('/ok?op=a', 'x', key());
sleep 0.5;
quit($c);
$::proxy->tell('pass');
gone($worker);
is(records(1), 0, 'no lock is left');
is(app_count('a'), 0, 'it did not run');



=== TEST 3: nothing is under way: the timeout of what was keeps no worker
--- store: redis postgres
--- client
my ($worker) = nginx_workers();
my $start = Time::HiRes::time();

is(http_post('/ok', 'x', { %{ key() }, Connection => 'close' })->status, 200, 'ran');

kill QUIT => nginx_master();
gone($worker);
cmp_ok(Time::HiRes::time() - $start, '<', 15, 'before the timeout of 20 s');



=== TEST 4: operations time out one after the other, each in its own time
--- store: redis postgres
--- http_config eval: $::stores =~ s/timeout +20s/timeout 2s/gr
--- client
my $warm = http_post('/ok?op=warm', 'x', key());
is($warm->status, 200, 'there is a connection');

$::store->pause;

my (@c, @sent);

for (0 .. 2) {
    push @sent, Time::HiRes::time();
    push @c, send_post("/ok?op=t$_", 'x', key());
    sleep 0.5;
}

for (0 .. 2) {
    is($c[$_]->read_response->error_code, 'STORE_UNAVAILABLE', "$_: refused");

    my $took = Time::HiRes::time() - $sent[$_];
    cmp_ok($took, '>', 1.8, "$_: not before its timeout");
    cmp_ok($took, '<', 2 + 2 * grace(), "$_: and not long after");
}

is(app_count("t$_"), 0, "$_: did not run") for 0 .. 2;
