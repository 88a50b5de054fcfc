# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The lease: renewed while the holder lives, however slow its upstream; when
# the holder's worker dies it runs out, and only then a retry runs; a holder
# that lost it does not overwrite what came after.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

use Time::HiRes ();

# workers with a socket each, so that a test can choose one of them

our $spread = <<'_EOC_';
    server {
        listen        127.0.0.1:$TEST_NGINX_PORT_2 reuseport;
        server_name   localhost;

        idempotency        $TEST_STORE;
        idempotency_lease  1s;

        location / {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location = /pid {
            return  200 $pid;
        }
    }
_EOC_


# a keepalive connection to the given worker, or to any but that

sub connect_worker
{
    my ($pid, $other) = @_;

    for (1 .. 200) {
        my $c = connect_client(port => $ENV{TEST_NGINX_PORT_2});
        $c->request('GET', '/pid');
        my $got = $c->read_response->body;

        return $c if $other ? $got != $pid : $got == $pid;
        $c->abort;
    }

    die "no connection to the right worker\n";
}

sub seconds { Time::HiRes::time() }

run_tests();

__DATA__

=== TEST 1: a slow upstream does not lose its lock
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  600ms;

    location / {
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /now/ {
        idempotency_wait  0;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /once/ {
        idempotency_unknown_outcome  hold;
        idempotency_wait  0;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $start = seconds();
my %key = map { $_ => { 'Idempotency-Key' => new_key() } } qw(/ /now/ /once/);
my %c = map { $_ => send_post("${_}slow?ms=2500", 'x', $key{$_}) } keys %key;

app_wait("${_}slow") for keys %key;
my $waiter = send_post('/slow?ms=2500', 'x', $key{'/'});

# several leases go by

my $busy = 0;

while (seconds() - $start < 2) {
    for my $where ('/now/', '/once/') {
        my $r = http_post("${where}slow?ms=2500", 'x', $key{$where});
        $busy++ if $r->error_code eq 'CONCURRENT_REQUEST';
        if ($r->error_code ne 'CONCURRENT_REQUEST') {
            fail("$where: " . $r->status . ' ' . $r->body);
        }
    }

    select undef, undef, undef, 0.1;
}

cmp_ok($busy, '>=', 4, 'busy all the time');
is($waiter->read_response(0.01), undef, 'the waiter waits');

is($c{$_}->read_response->body, "run 1\n", "$_: answered") for sort keys %c;
is($waiter->read_response->body, "run 1\n", 'so is the waiter');
is(app_count("${_}slow"), 1, "$_: ran once") for sort keys %key;
error_log_unlike(qr/lease/, 'no lease was lost');



=== TEST 2: a lease is also renewed while a response is being read
--- config
    location / {
        idempotency        $TEST_STORE;
        idempotency_lease  300ms;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=5000&hold=body&op=a';

my $c = send_post($uri, 'x', \%key);
app_wait_parked('a');

my $end = seconds() + 1;
my %seen;

while (seconds() < $end) {
    $seen{ http_post($uri, 'x', \%key)->error_code }++;
    select undef, undef, undef, 0.1;
}

is_deeply([ keys %seen ], [ 'CONCURRENT_REQUEST' ], 'busy');
app_release('a');
is(length $c->read_response->body, 5000, 'answered');
is(length http_post($uri, 'x', \%key)->body, 5000, 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 3: the worker of the holder dies
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  1s;

    location / {
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /now/ {
        idempotency_wait  0;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /once/ {
        idempotency_unknown_outcome  hold;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: exited on signal 9
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key() } } qw(/ /now/ /once/);

send_post("${_}hold", 'x', $key{$_}) for keys %key;
app_wait_parked("${_}hold") for keys %key;

kill_worker();
my $start = seconds();

is(http_post('/now/hold', 'x', $key{'/now/'})->error_code,
   'CONCURRENT_REQUEST', 'the lease still lasts');
is(http_post('/now/hold', 'y', $key{'/now/'})->error_code,
   'IDEMPOTENCY_CONFLICT', 'another body is a conflict');

# a waiter takes over when it runs out

my $c = send_post('/hold', 'x', $key{'/'});
my $held = send_post('/once/hold', 'x', $key{'/once/'});

is(app_wait('/hold', 2), 2, 'a waiter runs');
cmp_ok(seconds() - $start, '<', 4, 'when the lease ran out');
app_release('/hold');
is($c->read_response->body, "run 2\n", 'it is answered');
is(http_post('/hold', 'x', $key{'/'})->body, "run 2\n", 'and replayed');
is(app_count('/hold'), 2, 'no more than that');
error_log_like(qr/\[warn\] .*a lease .*ran out/, 'told in the log');

# so does a retry after that

$c = send_post('/now/hold', 'x', $key{'/now/'});
is(app_wait('/now/hold', 2), 2, 'a retry runs');
app_release('/now/hold');
is($c->read_response->body, "run 2\n", 'it is answered');

# under hold it does not run again

my $r = $held->read_response;
is($r->status, 409, 'hold: a waiter is refused');
is($r->error_code, 'OUTCOME_UNKNOWN', 'hold: unknown');
ok(!$r->json->{error}{retryable}, 'hold: not retryable');
is(http_post('/once/hold', 'x', $key{'/once/'})->error_code,
   'OUTCOME_UNKNOWN', 'hold: a retry is refused');
is(app_count('/once/hold'), 1, 'hold: ran once');

is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'no lock of the store is left');



=== TEST 4: others wait in another worker
--- workers: 2
--- http_config eval: $::spread
--- config
--- provokes: exited on signal 9
--- log_level: debug
--- client
my %key = ('Idempotency-Key' => new_key());
my ($pid) = nginx_workers();

my $holder = connect_worker($pid);
$holder->request('POST', '/hold?op=a', 'x', \%key);
app_wait_parked('a');

my @c = map { connect_worker($pid, 'other') } 1 .. 3;
$_->request('POST', '/hold?op=a', 'x', \%key) for @c;
my $there = connect_worker($pid);
$there->request('POST', '/hold?op=a', 'x', \%key);
ok(wait_for(sub {
       4 <= (() = error_log() =~ /idempotency: begin -> wait: /g)
   }), 'four wait');

kill_worker($pid);
my $start = seconds();

ok($holder->closed && $there->closed, 'the dead worker answers nobody');
is(app_wait('a', 2), 2, 'one of the others runs');
cmp_ok(seconds() - $start, '<', 4, 'when the lease ran out');
is(app_release('a'), 1, 'one at a time');

is($_->read_response->body, "run 2\n", 'all are answered') for @c;
is(app_count('a'), 2, 'no more than that');



=== TEST 5: a worker that stalled does not overwrite
--- workers: 2
--- http_config eval: $::spread
--- config
--- client
my %key = ('Idempotency-Key' => new_key());
my ($pid) = nginx_workers();

my $holder = connect_worker($pid);
my $other = connect_worker($pid, 'other');

$holder->request('POST', '/hold?op=a', 'x', \%key);
app_wait_parked('a');
kill STOP => $pid;

# its lease runs out

my $start = seconds();
$other->request('POST', '/hold?op=a', 'x', \%key);
my $runs = app_wait('a', 2);
kill CONT => $pid;
is($runs, 2, 'another runs');
cmp_ok(seconds() - $start, '>', 0.5, 'not before the lease ran out');

# the first is answered late, and both hold what they believe to be theirs

error_log_like(qr/\[warn\] .*lease of a running request was lost/,
               'it knows by its next renewal');
app_release('a', 2);
is($holder->read_response->body, "run 1\n", 'its client gets its response');
is($other->read_response->body, "run 2\n", 'so does the other');
error_log_like(qr/\[warn\] .*was not stored, the lock had been lost/,
               'the first was not stored');
is(http_post('/hold?op=a', 'x', \%key, port => $ENV{TEST_NGINX_PORT_2})->body,
   "run 2\n", 'the record is of the one that held the lock');
is(app_count('a'), 2, 'no more than that');



=== TEST 6: ... nor release
--- workers: 2
--- http_config eval: $::spread
--- config
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/slow?ms=1700&op=a&status=503';
my ($pid) = nginx_workers();

my $holder = connect_worker($pid);
my $other = connect_worker($pid, 'other');
my $third = connect_worker($pid, 'other');

$holder->request('POST', $uri, 'x', \%key);
app_wait('a');
kill STOP => $pid;

$other->request('POST', $uri, 'x', \%key);
my $runs = app_wait('a', 2);
kill CONT => $pid;
is($runs, 2, 'another runs');

# an answer that would release the record, if it were still its own

is($holder->read_response->body, "run 1\n", 'the first is answered');
$third->request('POST', $uri, 'x', \%key);
is(app_wait('a', 3, 0.3), 0, 'the lock is the other one\'s');

is($other->read_response->body, "run 2\n", 'until that is answered');
is(app_wait('a', 3), 3, 'then the next one runs');
