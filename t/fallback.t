# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# "idempotency shared fallback=ledger": where the first store does not answer,
# the second is asked in its place, and what begins there ends there.  While
# it may hold records, both are asked.  Also what that can't promise.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis, $second);

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $redis = start_remote();
    $second = start_remote();
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_SECOND_PORT} = $second->{port};
}

add_block_preprocessor(sub {
    for my $server ($redis ? ($redis, $second) : ()) {
        $server->resume;
        $server->spawn if $server->{stopped};
        $server->command('FLUSHALL');
    }
});

sub stores
{
    my ($more) = @_;

    return "idempotency_store shared \$TEST_REMOTE {
        server           127.0.0.1:\$TEST_NGINX_OWN_PORT;
        connect_timeout  300ms;
        timeout          300ms;
        $more
    }
    idempotency_store ledger memory { zone ledger:1m; }
    idempotency_store second \$TEST_REMOTE {
        server           127.0.0.1:\$TEST_NGINX_SECOND_PORT;
        connect_timeout  5s;
        timeout          5s;
    }
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT_2;
        server_name localhost;
        location / {
            idempotency        shared;
            idempotency_lease  1s;
            proxy_pass         http://127.0.0.1:\$TEST_NGINX_APP_PORT;
        }
        location /moved {
            idempotency        shared;
            idempotency_lease  1s;
            set                \$to /ok?op=o&hold=1;
            proxy_pass         http://127.0.0.1:\$TEST_NGINX_APP_PORT\$to;
        }
    }
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT_3;
        server_name localhost;
        location / {
            idempotency        ledger;
            idempotency_lease  1s;
            proxy_pass         http://127.0.0.1:\$TEST_NGINX_APP_PORT;
        }
    }";
}

our $location = <<'_EOC_';
    location / {
        idempotency        shared fallback=ledger;
        idempotency_lease  1s;
        idempotency_wait   5s;
        add_header         X-Status $idempotency_status always;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency        shared fallback=ledger;
        idempotency_ttl    1s;
        idempotency_lease  500ms;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /strict/ {
        idempotency                  shared fallback=ledger;
        idempotency_lease            1s;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /remote/ {
        idempotency        shared fallback=second;
        idempotency_lease  1s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

sub in_ledger
{
    my ($uri, $key) = @_;

    return http_post($uri, 'x', $key, port => $ENV{TEST_NGINX_PORT_3});
}

# the first store is back, and was asked

sub back
{
    $redis->spawn if $redis->{stopped};
    $redis->resume;

    # for each worker: one that has not connected again yet refuses for a moment

    my $serves = sub {
        http_post('/ok?op=back', 'x', key(),
                  port => $ENV{TEST_NGINX_PORT_2})->status == 200;
    };

    ok(wait_for(sub { !(grep { !$serves->() } 1 .. 12)
                      || (sleep(0.05), 0)[1] }, 8), 'the first store is back');
}

sub records { my @names = $redis->keys; return scalar @names }

run_tests();

__DATA__

=== TEST 1: while the first store answers, the ledger has no part in it
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(records(), 1, 'there');
is(in_ledger('/ok?op=a', $key)->body, "run 2\n", 'not here');



=== TEST 2: while it does not, the ledger is asked
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $key = key();
my $r = http_post('/ok?op=a', 'x', $key);
is($r->body, "run 1\n", 'ran');
is($r->header('X-Status'), 'EXECUTED', 'protected');
$r = http_post('/ok?op=a', 'x', $key);
is($r->body, "run 1\n", 'replayed');
is($r->header('X-Status'), 'REPLAYED', 'it says so');
is(http_post('/ok?op=a', 'y', $key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'another request is a conflict');
is(in_ledger('/ok?op=a', $key)->body, "run 1\n", 'it is here');
is(app_count('a'), 1, 'ran once');
error_log_like(qr/\[warn\] .*store "shared" failed: .*; "ledger" is asked in its place/, 'the log says so');



=== TEST 3: back again: both are asked, and new records are in the first
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $old = key();
http_post('/ok?op=a', 'x', $old);

back();
my $n = records();
is(http_post('/ok?op=a', 'x', $old)->body, "run 1\n", 'from the ledger');
is(records(), $n, 'only from there');

my $new = key();
is(http_post('/ok?op=b', 'x', $new)->body, "run 1\n", 'a new one');
is(records(), $n + 1, 'is in the first');
is(http_post('/ok?op=b', 'x', $new)->body, "run 1\n", 'and replayed');
is(in_ledger('/ok?op=b', $new)->body, "run 1\n",
   'the ledger has a copy, for a while');

my $not_kept = key();
http_post('/status/503?op=c', 'x', $not_kept) for 1 .. 2;
is(app_count('c'), 2, 'one that is not kept is free in both');



=== TEST 4: what it can't promise: it ran in the first, and runs in the ledger
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
$::redis->kill_it;
is(http_post('/ok?op=a', 'x', $key)->body, "run 2\n", 'ran again');
back();
is(http_post('/ok?op=a', 'x', $key)->body, "run 2\n", 'the ledger comes first');



=== TEST 5: the same, with what the cache remembers
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my $key = key();
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
$::redis->kill_it;
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 6: waiting for a holder in the ledger
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my @w = map { send_post('/hold?op=a', 'x', $key) } 1 .. 4;
sleep 0.3;
back();
sleep 0.3;
app_release('a');
my $start = time;
is($_->read_response->body, "run 1\n", 'answered') for $c, @w;
cmp_ok(time - $start, '<', 1.5 + grace(), 'soon');
is(app_count('a'), 1, 'ran once');



=== TEST 7: it outlasts its lease in the ledger, and is not kept there
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $key = key();
my $c = send_post('/hold?op=a&status=503', 'x', $key);
app_wait_parked('a');
sleep 2.2;
my $w = send_post('/hold?op=a&status=503', 'x', $key);
sleep 0.3;
is(app_count('a'), 1, 'its lease is renewed');
app_release('a');
is($c->read_response->status, 503, 'a response that is not kept');
is(app_wait('a', 2), 2, 'the waiter runs');
app_release('a');
is($w->read_response->status, 503, 'answered');
error_log_unlike(qr/could not be renewed|was lost|release in store/, 'in order');



=== TEST 8: who waits for a holder in the first does not run in the ledger
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my @w = map { send_post('/hold?op=a', 'x', $key) } 1 .. 4;
sleep 0.3;
$::redis->kill_it;
sleep 1.5;
is(app_count('a'), 1, 'it waits');
app_release('a');
is($_->read_response->body, "run 1\n", 'answered') for $c, @w;
is(app_count('a'), 1, 'ran once');
error_log_like(qr/is kept here and tried again/, 'from the outbox');



=== TEST 9: who waited in the ledger finds a holder in the first, and waits there
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $uri = '/moved?hold=1&op=a&status=503';

$::redis->kill_it;
my $key = key();
my $c = send_post($uri, 'x', $key);
app_wait_parked('a');
my $w = send_post($uri, 'x', $key);
sleep 0.3;
back();

# as on another host, which knows nothing of the ledger
my $other = send_post($uri, 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
app_wait_parked('o');

$::redis->reset_calls;
app_release('a');
is($c->read_response->status, 503, 'the holder in the ledger is done');
sleep 0.6;
is(app_count('a'), 1, 'the waiter does not run');
cmp_ok($::redis->round_trips, '<', 15, 'nor does it ask all the time');

app_release('o');
is($other->read_response->body, "run 1\n", 'the other is done');
is($w->read_response->body, "run 1\n", 'that is the answer');
is(app_count('a'), 1, 'it did not run');



=== TEST 10: the first is slow: a second request does not find another way
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
http_post('/ok?op=warm', 'x', key());
back();

$::redis->pause;
my $key = key();
my @c = map { send_post('/hold?op=a', 'x', $key) } 1 .. 5;
sleep 0.1;
$::redis->resume;
app_wait_parked('a');
sleep 0.5;
is(app_count('a'), 1, 'one of them runs');
app_release('a');
is($_->read_response->body, "run 1\n", 'all are answered') for @c;
is(app_count('a'), 1, 'ran once');



=== TEST 11: the first is there for one worker, and not yet for another
--- store: redis postgres
--- workers: 4
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $twice = 0;
for my $round (1 .. 4) {
    $::redis->kill_it;
    http_post('/ok?op=warm', 'x', key()) for 1 .. 20;
    back();

    # some of the workers wait to connect again
    for my $n (1 .. 10) {
        my $key = key();
        my @c = map { send_post("/slow?ms=20&op=r${round}k$n", 'x', $key) }
                1 .. 4;
        $_->read_response for @c;
        http_post("/slow?ms=20&op=r${round}k$n", 'x', $key);
        $twice++ if app_count("r${round}k$n") != 1;
    }
}
is($twice, 0, 'nothing runs twice');



=== TEST 12: nothing is asked twice once the ledger has nothing more
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $key = key();
is(http_post('/brief/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
is(http_post('/brief/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
sleep 1.2;
back();
is(http_post('/brief/ok?op=a', 'x', $key)->body, "run 2\n", 'its life is over');
is(in_ledger('/brief/ok?op=a', $key)->body, "run 3\n", 'not in the ledger');



=== TEST 13: under "hold", also in the ledger
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
$::redis->kill_it;
my $key = key();
send_post('/strict/hold?op=a', 'x', $key);
app_wait_parked('a');
kill_worker();
sleep 1.2;
is(http_post('/strict/hold?op=a', 'x', $key)->error_code, 'OUTCOME_UNKNOWN',
   'it may have run');
back();
is(http_post('/strict/hold?op=a', 'x', $key)->error_code, 'OUTCOME_UNKNOWN',
   'also when the first is back');

# a begin that was looking in the ledger when its worker was killed
my $other = key();
$::redis->pause;
send_post('/strict/ok?op=b', 'x', $other);
sleep 0.1;
kill_worker();
$::redis->resume;
sleep 2.2;
is(in_ledger('/strict/ok?op=b', $other)->status, 200, 'leaves nothing unknown');



=== TEST 14: a worker is killed while it runs in the ledger
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
$::redis->kill_it;
my $key = key();
send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
kill_worker();
my $w = send_post('/hold?op=a', 'x', $key);
is(app_wait('a', 2, 4), 2, 'its lease runs out, then a retry runs');
app_release('a');
is($w->read_response->body, "run 2\n", 'answered');
error_log_like(qr/ran out without an outcome/, 'the log says so');



=== TEST 15: a reload in between
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $key = key();
http_post('/ok?op=a', 'x', $key);
back();
ok(nginx_reload(), 'reloaded');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'the ledger is asked');
is(app_count('a'), 1, 'ran once');



=== TEST 16: with a breaker: at once
--- store: redis postgres
--- http_config eval: main::stores('breaker fails=2 reset=60s;')
--- config eval: $::location
--- client
$::redis->pause;
http_post('/ok?op=w', 'x', key()) for 1 .. 2;
error_log_like(qr/breaker is open/, 'open');
sleep 1.1;
my $start = time;
is(http_post('/ok?op=a', 'x', key())->status, 200, 'ran') for 1 .. 3;
cmp_ok(time - $start, '<', ($ENV{IDEMPOTENCY_VALGRIND} ? 5 : 0.8) + 3 * grace(),
       'at once');
error_log_like(qr/store "shared" failed: the breaker is open; "ledger" is asked/, 'the log says why');



=== TEST 17: a record that can't be used is no reason to run it elsewhere
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key);
$::redis->corrupt($::redis->keys);
is(http_post('/ok?op=a', 'x', $key)->status, 503, 'refused');
is(app_count('a'), 1, 'ran once');



=== TEST 18: the client goes away while both are asked
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
http_post('/ok?op=warm', 'x', key());
back();
$::redis->pause;
my $key = key();
my $c = send_post('/ok?op=a', 'x', $key);
sleep 0.1;
$c->reset;
sleep 0.5;
$::redis->resume;
ok(wait_for(sub { in_ledger('/ok?op=a', $key)->status == 200 }, 3),
   'no lock is left in the ledger');
is(http_post('/ok?op=b', 'x', key())->status, 200, 'all is well');



=== TEST 19: a fallback that is elsewhere itself
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
$::redis->kill_it;
my $key = key();
is(http_post('/remote/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
is(http_post('/remote/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
back();
is(http_post('/remote/ok?op=a', 'x', $key)->body, "run 1\n", 'both are asked');
is(http_post('/remote/ok?op=b', 'x', key())->body, "run 1\n", 'a new one');
is_deeply([ sort { $a <=> $b } map { $::second->command('PTTL', $_) > 11_000 }
            $::second->keys ], [ '', 1 ], 'of which the second has a copy');

$::redis->kill_it;
$::second->kill_it;
is(http_post('/remote/ok?op=c', 'x', key())->error_code, 'STORE_UNAVAILABLE',
   'both away');
is(app_count('c'), 0, 'did not run');



=== TEST 20: many at once, while the first comes and goes
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('breaker fails=3 reset=1s; cache hot:1m;')
--- config eval: $::location
--- client_timeout: 120
--- client
my ($wrong, $answers) = (0, 0);
for my $round (1 .. 12) {
    $::redis->kill_it if $round % 4 == 1;
    $::redis->spawn if $round % 4 == 3;
    my @keys = map { key() } 1 .. 5;
    my @c = map { my $n = $_;
                  map { send_post("/slow?ms=30&op=r${round}k$n", 'x',
                                  $keys[$n]) } 1 .. 4 } 0 .. 4;
    for my $c (@c) {
        my $r = $c->read_response or next;
        $answers++;
        $wrong++ if $r->status == 200 && $r->body ne "run 1\n";
    }
}
is($answers, 12 * 20, 'all are answered');
is($wrong, 0, 'no second run is seen');



=== TEST 21: of itself
--- config
    location / { idempotency on fallback=default; }
--- must_die
--- error_log
invalid value "fallback=default" in "idempotency" directive: a store is no fallback of itself



=== TEST 22: of the embedded store
--- http_config
    idempotency_store ledger memory { zone a:1m; }
--- config
    location / {
        idempotency  on fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats json; }
--- client
my ($one, $other) = (key(), key());

is(http_post('/ok?op=a', 'x', $one)->body, "run 1\n", 'ran');
is(http_post('/ok?op=a', 'x', $one)->body, "run 1\n", 'replayed');

my $c = send_post('/hold?op=b', 'x', $other);
app_wait_parked('b');
my $w = send_post('/hold?op=b', 'x', $other);
ok(wait_for(sub { http_get('/stats')->json->{waiters} == 1 }), 'one waits');
app_release('b');
is($_->read_response->body, "run 1\n", 'woken') for $c, $w;

my %stores = map { $_->{name} => $_ } @{ http_get('/stats')->json->{stores} };

is($stores{default}{records}{completed}, 2, 'both are in the first');
is($stores{ledger}{records}{completed}, 0, 'and none in the second');
is($stores{default}{requests}{localhost}{REPLAYED}, 2, 'its figures');
--- error_log
[warn]
the fallback of store "default" in
is never asked



=== TEST 23: not declared
--- config
    location / { idempotency on fallback=nowhere; }
--- must_die
--- error_log
unknown store "nowhere"



=== TEST 24: another word
--- config
    location / { idempotency on ledger; }
--- must_die
--- error_log
invalid value "ledger" in "idempotency" directive: it is "idempotency <store> [fallback=<store>]"



=== TEST 25: where it is off
--- config
    location / { idempotency off fallback=on; }
--- must_die
--- error_log
where it is off there is no fallback



=== TEST 26: who waits in the first finds that the same key runs in the ledger
Its holder in the first is gone with its host, and then the record; meanwhile
a retry was sent to the ledger, and runs from there.
--- store: redis postgres
--- workers: 1
--- http_config eval: main::stores('')
--- config eval
$::location =~ s/_wait   5s/_wait 60s/r
. "location = /stats { idempotency_stats json; }\n"
--- client_timeout: 60
--- client
my $key = key();
my $uri = '/hold?op=a&status=503';
my $gone = send_post($uri, 'x', $key);
app_wait_parked('a');
my ($name) = $::redis->keys;
my $lock = $::redis->record($name);
app_release('a');
is($gone->read_response->status, 503, 'it was not kept');

# it gives its lock back after the answer, and would do so with this one
ok(wait_for(sub { !records() }, 10), 'given back');

# as if it were another host's
$::redis->write_record($name, { %$lock, t => 'y' x 16 }, $lock->{g} + 60_000);
my $w = send_post($uri, 'x', $key);

# the store knows of it before it does: killed between the two, it would not wait
ok(wait_for(sub { http_get('/stats')->json->{waiters} == 1 }, 10),
   'one waits in the first');
ok($::redis->record($name)->{q}, 'and is known there');

$::redis->kill_it;
my $c = send_post($uri, 'x', $key);
is(app_wait_parked('a', 1, 10), 1, 'a retry runs from the ledger');
is(app_count('a'), 2, 'beside nobody');

back();
$::redis->command('DEL', $name);        # a server that keeps its data has it
sleep 3;
is(app_count('a'), 2, 'the waiter does not');

app_release('a');
is($c->read_response->status, 503, 'it is not kept');
is(app_wait('a', 3, 20), 3, 'the waiter is next');
app_release('a');
is($w->read_response->status, 503, 'and answered');



=== TEST 27: events of both stores, which no location uses by themselves
A breaker, an expired record and a deletion are events of one of the two.
--- store: redis postgres
--- http_config eval
main::stores('breaker fails=2 reset=60s;') =~ s/ server \{.*//sr
--- config
    location / {
        idempotency        shared fallback=ledger;
        idempotency_lease  1s;
        idempotency_log    logs/events.json;
        add_header         X-Record $idempotency_record always;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency        shared fallback=ledger;
        idempotency_lease  500ms;
        idempotency_ttl    1s;
        idempotency_log    logs/events.json;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/ { idempotency_admin; }
--- client
sub told
{
    my ($event, $store) = @_;

    ok(wait_for(sub {
           grep { $_->{event} eq "idempotency.$event" && $_->{store} eq $store }
               read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json")
       }, 8), "$event of $store");
}

sub delete_of
{
    my ($store, $r) = @_;

    is(http_request('DELETE', "/ops/records/$store/" . $r->header('X-Record'),
                    '', {})->status, 200, "deleted in $store");
}

delete_of('shared', http_post('/ok?op=a', 'x', key()));
told('record.deleted', 'shared');

$::redis->kill_it;
http_post('/ok?op=b', 'x', key()) for 1 .. 2;
told('storage.error', 'shared');
told('circuit_breaker.opened', 'shared');

delete_of('ledger', http_post('/ok?op=c', 'x', key()));
told('record.deleted', 'ledger');

is(http_post('/brief/ok?op=d', 'x', key())->status, 200, 'ran in the ledger');
told('key.expired', 'ledger');



=== TEST 28: under "hold", also in a ledger that is elsewhere, and in use
--- store: redis postgres
--- http_config eval: main::stores('')
--- config
    location / {
        idempotency                  shared fallback=second;
        idempotency_lease            1s;
        idempotency_wait             0;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: exited on signal 9
--- client
$::redis->kill_it;

# the ledger comes into use: from now on it is asked first, and once more when
# the first store does not answer
is(http_post('/ok?op=first', 'x', key())->status, 200, 'ran in the ledger');

my $key = key();
send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
kill_worker();
sleep 1.5;
is(http_post('/hold?op=a', 'x', $key, timeout => 5)->error_code,
   'OUTCOME_UNKNOWN', 'it may have run');
is(app_count('a'), 1, 'and did not run again');



=== TEST 29: copies push nothing out of the ledger
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client_timeout: 90
--- client
$::redis->kill_it;
my $key = key();
my $first = http_post('/size?n=2000&op=out', 'x', $key);
is($first->status, 200, 'ran in the ledger');
back();

# of each of these the ledger, of 1 MB, has a copy for 10 s
my %keys = map { $_ => key() } 1 .. 450;
my $failed = grep { http_post("/size?n=3000&op=c$_", 'x', $keys{$_})->status
                    != 200 } sort { $a <=> $b } keys %keys;
is($failed, 0, 'many others run');

my $again = http_post('/size?n=2000&op=out', 'x', $key);
is($again->status, 200, 'what ran in the ledger has its response');
is($again->body, $first->body, 'the same');

my %status;
$status{http_post("/size?n=3000&op=c$_", 'x', $keys{$_})->status}++
    for keys %keys;
is_deeply(\%status, { 200 => 450 }, 'so has what the first store has');
is((grep { app_count("c$_") != 1 } keys %keys), 0, 'none ran again');

# while the first store is away, a copy without its response is no leave to run
my $last = key();
is(http_post('/size?n=3000&op=last', 'x', $last)->status, 200, 'one more');
$::redis->kill_it;
my $r = http_post('/size?n=3000&op=last', 'x', $last);
like($r->status . $r->error_code, qr/^(?:200|507RESPONSE_NOT_KEPT)$/,
     'replayed or refused');
is(app_count('last'), 1, 'did not run again');



=== TEST 30: many wait for a holder in the first, which goes away
--- store: redis postgres
--- workers: 2
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        connect_timeout  300ms;
        timeout          300ms;
    }
    idempotency_store ledger memory { zone ledger:1m; }
    idempotency_lease  30s;
    idempotency_wait   12s;
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_2;
        server_name localhost;
        location / {
            idempotency  shared;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    location / {
        idempotency  shared fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
$::redis->kill_it;
is(http_post('/ok?op=first', 'x', key())->status, 200, 'the ledger is in use');
back();

# as another host would run it: the ledger knows nothing of it
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
app_wait_parked('a');

# who asks whether it may run has a lock in the ledger meanwhile, which the
# others find there
my @waiters = map { send_post('/hold?op=a', 'x', $key) } 1 .. 8;
sleep 0.5;
$::redis->pause;
sleep 3;
is(app_count('a'), 1, 'none of them runs, since the first does not answer');
$::redis->resume;
app_release('a');
is($c->read_response->body, "run 1\n", 'the holder is answered');
is((grep { $_->read_response(12)->body ne "run 1\n" } @waiters), 0,
   'and so are those that wait');
is(app_count('a'), 1, 'it ran once');
