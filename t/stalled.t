# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A worker that stands still for longer than a lease while the store is asked:
# it reads that the lock is its own when another host has taken over.  It asks
# again before it runs.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($store, $proxy) = start_proxied();
our $worker;

add_block_preprocessor(sub {
    if ($store) {
        $proxy->tell('cut');
        $store->resume;
        $store->command('FLUSHALL');
    }
});

our $stores = <<'_EOC_';
    idempotency_store own $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout  20s;
    }
    idempotency_store distant $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout  20s;
    }
    idempotency_store ledger memory { zone ledger:1m; }
_EOC_

our $locations = <<'_EOC_';
    idempotency_lease  1s;
    idempotency_wait   20s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /late/ {
        idempotency  distant;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /two/ {
        idempotency         own;
        idempotency_dedupe  body window=30s when=always;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /both/ {
        idempotency  own fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats {
        idempotency_stats  json;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }
sub records { my @names = $store->keys; return scalar @names }

# both have a connection to the store; nothing is in it

sub warm
{
    my @ports = @_;

    for (@ports) {
        is(http_post('/ok?op=z', 'x', key(), port => $_)->status, 200,
           'it works');
    }

    $store->command('FLUSHALL');
    ($worker) = nginx_workers();
}

# a request whose begin is answered while its worker stands still

sub stall
{
    my ($uri, $key, $n) = @_;

    $store->pause;
    my $c = send_post($uri, 'x', $key);
    sleep 0.3;
    kill STOP => $worker;
    $store->resume;

    ok(wait_for(sub { records() == ($n || 1) }), 'its begin is through');

    return $c;
}

# ... and another host runs the same when the lease is over

sub taken_over
{
    my ($at) = @_;

    my $host = start_host();
    my $key = key();

    warm($port, $host->{port});

    my $c = stall("$at/hold?op=a", $key);
    my $other = send_post("$at/hold?op=a", 'x', $key, port => $host->{port});
    is(app_wait_parked('a'), 1, 'the other host runs it when the lease is over');

    kill CONT => $worker;
    is(app_wait('a', 2, 2), 0, 'the worker does not');

    app_release('a');
    is($_->read_response->body, "run 1\n", 'both have the one answer')
        for $other, $c;
    is(app_count('a'), 1, 'ran once');
    ok($host->stop, 'the other host leaves');
}

every_block(
    http_config => $stores,
    config      => $locations,
);

run_tests();

__DATA__

=== TEST 1: another host took over: the worker does not run beside it
--- store: redis postgres
--- client
taken_over('');
error_log_like(qr/\[warn\] .*was over before its lock was seen/, 'it says so');



=== TEST 2: nobody did: it runs, and nothing was taken over
--- store: redis postgres
--- client
warm($port);

my $key = key();
my $c = stall('/ok?op=a', $key);
sleep 1.3;
kill CONT => $::worker;

my $r = $c->read_response;
is($r->status, 200, 'served');
is($r->body, "run 1\n", 'ran');
is(http_post('/ok?op=a', 'x', $key)->header('Idempotent-Replayed'), 'true',
   'its retry is replayed');
is(app_count('a'), 1, 'ran once');

# long enough for the lock to be gone altogether, where it ends by itself

$key = key();
$c = stall('/ok?op=b', $key, 2);
sleep 2.5;
kill CONT => $::worker;
is($c->read_response->body, "run 1\n", 'the same after two leases');
error_log_unlike(qr/ran out without an outcome/, 'it is nobody else\'s lock');



=== TEST 3: the client goes away while the worker stands still
--- store: redis postgres
--- client
my $host = start_host();
warm($port, $host->{port});

my $key = key();
my $c = stall('/hold?op=a', $key);
my $other = send_post('/hold?op=a', 'x', $key, port => $host->{port});
is(app_wait_parked('a'), 1, 'the other host runs it when the lease is over');

$c->reset;
kill CONT => $::worker;
is(app_wait('a', 2, 1), 0, 'the worker does not');

app_release('a');
is($other->read_response->body, "run 1\n", 'answered');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'its record is kept');
is(app_count('a'), 1, 'ran once');
ok($host->stop, 'the other host leaves');



=== TEST 4: two records cover it
--- store: redis postgres
--- client
taken_over('/two');



=== TEST 5: with a fallback
--- store: redis postgres
--- client
taken_over('/both');



=== TEST 6: a store that answers later than a lease lasts, each time
--- store: redis postgres
--- config eval: $::locations =~ s/lease  1s/lease  100ms/r
--- client_timeout: 60
--- client
is(http_post('/late/ok?op=z', 'x', key())->status, 200, 'it works');

$::proxy->tell('late 400');
my $r = http_post('/late/ok?op=a', 'x', key(), timeout => 30);
is($r->status, 503, 'it does not ask for ever');
is(app_count('a'), 0, 'nor run');
error_log_like(qr/answers later than a lease lasts/, 'why');

$::proxy->tell('pass');
ok(wait_for(sub { http_post('/late/ok?op=b', 'x', key())->status == 200 }),
   'others run');



=== TEST 7: the store answers when most of the lease is over
The lease is renewed at once, and not a third of it later.
--- store: redis postgres
--- config eval: $::locations =~ s/lease  1s/lease  3s/r
--- client
my $key = key();

is(http_post('/late/ok?op=z', 'x', key())->status, 200, 'it works');

$::proxy->tell('late 2600');
my $c = send_post('/late/hold?op=a', 'x', $key);
sleep 1;
$::proxy->tell('pass');
is(app_wait_parked('a'), 1, 'it runs');

my $w = send_post('/late/hold?op=a', 'x', $key);
is(app_wait('a', 2, 1), 0, 'a retry waits for it');

app_release('a');
is($_->read_response->body, "run 1\n", 'both have the one answer') for $c, $w;
is(app_count('a'), 1, 'ran once');
