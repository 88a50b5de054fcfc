# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A store that fails some times in a row is asked only now and then: requests
# are told at once, whichever worker they come to, until one that is let
# through as a probe gets an answer.  What comes after the application ran is
# never held back.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis);

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $redis = start_remote();
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
}

add_block_preprocessor(sub {
    if ($redis) {
        $redis->resume;
        $redis->spawn if $redis->{stopped};
        $redis->command('FLUSHALL');
    }
});

sub store
{
    my ($breaker) = @_;

    return "idempotency_store shared \$TEST_REMOTE {
        server           127.0.0.1:\$TEST_NGINX_OWN_PORT;
        connect_timeout  300ms;
        timeout          300ms;
        $breaker
    }";
}

our $location = <<'_EOC_';
    location / {
        idempotency       shared;
        idempotency_wait  3s;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }


# status and seconds of a request with a new key

sub ask
{
    my $start = time;
    my $r = http_post('/ok?op=ask', 'x', key());
    return ($r->status, time - $start);
}

# in the end it is answered, asked again now and then

sub answered
{
    my ($timeout) = @_;

    return wait_for(sub { (ask())[0] == 200 || (sleep(0.05), 0)[1] },
                    $timeout);
}


# requests in vain until the breaker is open; how many

sub open_it
{
    for my $n (1 .. 20) {
        return $n - 1 if error_log() =~ /breaker is open/;
        ask();
    }

    die "it does not open\n";
}

# how long "at once" may take, on a machine that does other things as well
our $at_once = $ENV{IDEMPOTENCY_VALGRIND} ? 2
             : $ENV{IDEMPOTENCY_SANITIZER_LOGS} ? 0.8 : 0.25;

run_tests();

__DATA__

=== TEST 1: opens after some failures in a row, and closes when the probe is answered
--- store: redis postgres
--- http_config eval: main::store('breaker fails=3 reset=1s;')
--- config eval: $::location
--- client
is((ask())[0], 200, 'the store answers');
$::redis->pause;

for (1 .. 3) {
    my ($status, $time) = ask();
    is($status, 503, 'refused');
    cmp_ok($time, '>', 0.2, 'after the timeout');
}

error_log_like(qr/\[warn\] .*store "shared" failed 3 times in a row, its breaker is open for 1000 ms: no (?:reply|answer)/, 'it is open');

for (1 .. 5) {
    my ($status, $time) = ask();
    is($status, 503, 'refused');
    cmp_ok($time, '<', $::at_once + grace(), 'at once');
}

error_log_like(qr/store "shared" failed: the breaker is open, the request is refused/, 'the log says why');

$::redis->resume;
ok(answered(3), 'it closes again');
error_log_like(qr/\[notice\] .*store "shared" answers again, its breaker is closed/, 'and says so');
is((ask())[0], 200, 'from then on') for 1 .. 3;



=== TEST 2: failures that are not in a row
--- store: redis postgres
--- http_config eval: main::store('breaker fails=6 reset=60s;')
--- config eval: $::location
--- client
# six in all; on a slow machine the store may be late once more when it is back

for (1 .. 3) {
    $::redis->pause;
    is((ask())[0], 503, 'fails') for 1 .. 2;
    $::redis->resume;
    ok(answered(3), 'answers');
}
error_log_unlike(qr/breaker is open/, 'closed all the time');



=== TEST 3: without the directive there is none
--- store: redis postgres
--- http_config eval: main::store('')
--- config eval: $::location
--- client
$::redis->pause;
is((ask())[0], 503, 'refused') for 1 .. 10;
error_log_unlike(qr/breaker/, 'no word of it');



=== TEST 4: one probe for all workers
--- store: redis postgres
--- workers: 4
--- http_config eval: main::store('breaker fails=3 reset=1s;')
--- config eval
$::location . 'location = /stats { idempotency_stats prometheus; }'
--- client
$::redis->pause;
main::open_it();
sleep 1.1;

my @c = map { send_post('/ok?op=p', 'x', main::key()) } 1 .. 12;
is($_->read_response->status, 503, 'refused') for @c;

# a line that is repeated is told once a second, with a count

my $told = sub {
    my ($n, $log) = (0, error_log());
    $n += $1 // 1
        while $log =~ /: no (?:reply|answer)[^,\n]+, the request is refused(?:: (\d+) more)?/g;
    return $n;
};

wait_for(sub { $told->() >= 3 + 1 }, 10);
is($told->(), 3 + 1, 'three opened it, and one was let through');

# its state, as a number: open, half open while the probe is under way, closed

my $state = sub {
    my ($n) = http_get('/stats')->body
              =~ /^nginx_idempotency_breaker_state\{[^}]*\} (\d)$/m;
    return $n;
};

# on a slow machine one of the twelve came so late that it was a second probe

ok(wait_for(sub { $state->() == 1 }), 'open');

ok(wait_for(sub {
    my $probe = send_post('/ok?op=p', 'x', main::key());
    my $half = 0;

    $half ||= $state->() == 2 for 1 .. 5;
    $probe->read_response;

    return $half;
}, 20), 'half open');

$::redis->resume;
ok(main::answered(10), 'it answers');
is($state->(), 0, 'closed');



=== TEST 5: open in every worker
--- store: redis postgres
--- workers: 4
--- http_config eval: main::store('breaker fails=5 reset=60s;')
--- config eval: $::location
--- client
$::redis->pause;
is(main::open_it(), 5, 'five failures, wherever they were');
for (1 .. 20) {
    my ($status, $time) = ask();
    is($status, 503, 'refused');
    cmp_ok($time, '<', $::at_once + grace(), 'at once');
}
is(scalar(() = error_log() =~ /breaker is open for/g), 1, 'opened once');



=== TEST 6: a commit is not held back, and its answer closes the breaker
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=60s;')
--- config eval: $::location
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');

$::redis->pause;
main::open_it();

# while it is away: once it is back, the first reply closes the breaker, and that
# may be the reply to the release of a begin that was given up

my ($status, $time) = ask();
is($status, 503, 'begins are');
cmp_ok($time, '<', $::at_once + grace(), 'at once');
$::redis->resume;

app_release('a');
is($c->read_response->body, "run 1\n", 'answered');
error_log_unlike(qr/commit .*failed/, 'the commit got through');
error_log_like(qr/its breaker is closed/, 'the store is there');
is((ask())[0], 200, 'begins are let through');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 7: a release is not held back
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=60s;')
--- config eval: $::location
--- client
my $key = key();
my $c = send_post('/hold?op=a&status=503', 'x', $key);
app_wait_parked('a');

$::redis->pause;
main::open_it();
$::redis->resume;

app_release('a');
is($c->read_response->status, 503, 'answered');
ok(wait_for(sub { !(() = $::redis->keys) }), 'the lock is gone');



=== TEST 8: a worker is killed with the probe under way
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=1s;')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
$::redis->kill_it;
main::open_it();
$::redis->spawn;
$::redis->pause;
sleep 1.1;

send_post('/ok?op=p', 'x', key());
sleep 0.1;
kill_worker();
is((ask())[0], 503, 'the probe has its time');
error_log_like(qr/the breaker is open, the request is refused/, 'open');

$::redis->resume;
ok(answered(4), 'then there is another');



=== TEST 9: the client of the probe goes away
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=3s;')
--- config eval: $::location
--- client
$::redis->kill_it;
main::open_it();
$::redis->spawn;
$::redis->pause;
sleep 3.1;

my $c = send_post('/ok?op=p', 'x', key());
sleep 0.1;
$c->abort;
sleep 0.1;
$::redis->resume;

my $start = time;
ok(answered(4), 'the next one is the probe');
cmp_ok(time - $start, '<', 1.5 + grace(), 'at once');



=== TEST 10: a probe that fails
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=1s;')
--- config eval: $::location
--- client
$::redis->kill_it;
main::open_it();
$::redis->spawn;
$::redis->pause;
sleep 1.1;

is((ask())[0], 503, 'refused');
error_log_like(qr/\[notice\] .*still fails, its breaker stays open for 1000 ms/,
               'the probe failed');
my ($status, $time) = ask();
cmp_ok($time, '<', $::at_once + grace(), 'open again');
$::redis->resume;
ok(answered(4), 'closed in the end');



=== TEST 11: a reload does not close it
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=60s;')
--- config eval: $::location
--- client
$::redis->pause;
main::open_it();
ok(nginx_reload(), 'reloaded');

my ($status, $time) = ask();
is($status, 503, 'refused');
cmp_ok($time, '<', $::at_once + grace(), 'at once');

$::redis->resume;
edit_config(sub { s/breaker fails=2 reset=60s;// });
ok(nginx_reload(), 'reloaded without');
is((ask())[0], 200, 'then there is none');



=== TEST 12: a record that can't be used is no failure of the store
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=60s;')
--- config eval: $::location
--- client
my ($wrong, $broken, $name) = (key(), key(), '');

# keys of other types are Redis's own

if ($::redis->isa('IdempotencyTest::Redis')) {
    http_post('/ok?op=w', 'x', $wrong);
    ($name) = $::redis->keys;
    $::redis->command('DEL', $name);
    $::redis->command('LPUSH', $name, 'mine');
}

http_post('/ok?op=b', 'x', $broken);
my ($other) = grep { $_ ne $name } $::redis->keys;
$::redis->corrupt($other);

for (1 .. 4) {
    is(http_post('/ok?op=w', 'x', $wrong)->status, 503, 'wrong type') if $name;
    is(http_post('/ok?op=b', 'x', $broken)->status, 503, 'corrupt');
}
is((ask())[0], 200, 'others are served');
error_log_unlike(qr/breaker is open/, 'it is closed');



=== TEST 13: who waits goes on waiting while it is open
--- store: redis postgres
--- http_config eval: main::store('breaker fails=2 reset=1s;')
--- config eval: $::location
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $w = send_post('/hold?op=a', 'x', $key);
sleep 0.2;

$::redis->pause;
main::open_it();
sleep 0.5;
my $asked = () = error_log() =~ /idempotency/g;
cmp_ok($asked, '<', 50, 'it does not ask all the time');
$::redis->resume;
app_release('a');

is($c->read_response->body, "run 1\n", 'the holder is answered');
is($w->read_response->body, "run 1\n", 'and the waiter');
is(app_count('a'), 1, 'ran once');



=== TEST 14: not for the embedded store
--- http_config
    idempotency_store ledger memory { zone a:1m; breaker fails=5 reset=60s; }
--- config
--- must_die
--- error_log
"breaker" is of no use in a memory store: its records are in this nginx itself



=== TEST 15: wrong values
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; breaker fails=0; }
--- config
--- must_die
--- error_log
invalid value "fails=0" in "breaker" directive: a number of failures, at least 1



=== TEST 16: and times
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; breaker reset=soon; }
--- config
--- must_die
--- error_log
invalid value "reset=soon" in "breaker" directive: a time above 0



=== TEST 17: and words
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; breaker 5; }
--- config
--- must_die
--- error_log
invalid value "5" in "breaker" directive: it is "breaker [fails=5] [reset=60s]"



=== TEST 18: twice
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; breaker; breaker; }
--- config
--- must_die
--- error_log
"breaker" directive is duplicate
