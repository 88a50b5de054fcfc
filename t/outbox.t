# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A commit that could not reach the store after the application ran: the
# client has its response, its retries are answered from this nginx, and the
# commit is tried again until it lands, is lost to somebody else, or its time
# is over.  Whoever of the workers is there does it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis, $proxy);

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $redis = start_remote();
    $proxy = start_redis_proxy($redis);
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    if ($redis) {
        $redis->resume;
        $redis->spawn if $redis->{stopped};
        $redis->not_full;
        $redis->command('FLUSHALL');
        $proxy->tell('cut');
    }
});

# "shared" is reached by way of the proxy; "other" as another host reaches it.
# Where an answer has to come when the network is there again, it has longer: one
# that does not come in time is no answer, and what is kept is told.

sub stores
{
    my ($more, $time) = @_;

    $time ||= '300ms';

    return "idempotency_store shared \$TEST_REMOTE {
        server           127.0.0.1:\$TEST_NGINX_PROXY_PORT;
        connect_timeout  $time;
        timeout          $time;
        $more
    }
    idempotency_store other \$TEST_REMOTE { server 127.0.0.1:\$TEST_NGINX_OWN_PORT; }
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT_2;
        server_name localhost;
        location / {
            idempotency        other;
            idempotency_lease  1s;
            proxy_pass         http://127.0.0.1:\$TEST_NGINX_APP_PORT;
        }
    }";
}

our $location = <<'_EOC_';
    location / {
        idempotency        shared;
        idempotency_lease  1s;
        idempotency_wait   4s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /long/ {
        idempotency        shared;
        idempotency_lease  30s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency        shared;
        idempotency_ttl    1500ms;
        idempotency_lease  500ms;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /third/ {
        idempotency        shared;
        idempotency_lease  3s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /held/ {
        idempotency                  shared;
        idempotency_lease            1s;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats json; }
    location /small/ {
        idempotency               shared;
        idempotency_max_response  1k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# the network between this nginx and the store is gone, and comes back

sub part { $proxy->tell('down') }
sub join_again { $proxy->tell('pass') }

# runs requests, given as URI and key, whose commits do not reach the store;
# their responses

sub run_apart
{
    my (@requests) = @_;

    my (@ops, @c);

    while (my ($uri, $key) = splice @requests, 0, 2) {
        push @ops, $uri =~ /op=(\w+)/;

        # on a busy machine it takes longer to connect than the store may take

        for my $try (1 .. 5) {
            my $c = send_post($uri . '&hold=1', 'x', $key);

            wait_for(sub { app_parked($ops[-1]) || $c->read_response(0.05) });

            if (app_parked($ops[-1])) {
                push @c, $c;
                last;
            }

            $try < 5 or die "$uri does not run\n";
        }
    }

    part();
    app_release($_) for @ops;

    my @responses = map { $_->read_response } @c;
    return wantarray ? @responses : $responses[0];
}

# the answer of a store that is there again: on a busy machine one that did not
# come in its 300 ms says nothing of the record

sub asked
{
    my ($uri, $key) = @_;

    my $r;
    wait_for(sub { $r = http_post($uri, 'x', $key);
                   $r->error_code ne 'STORE_UNAVAILABLE' });
    return $r;
}

sub landed { scalar(() = error_log() =~ /that was kept is in store/g) }
sub failed { scalar(() = error_log() =~ /is kept failed again/g) }

# its lease runs out, and another host runs it; what that one answers

sub take_over
{
    my ($uri, $key) = @_;
    my ($op) = $uri =~ /op=(\w+)/;

    my $c = send_post("$uri&hold=1", 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
    app_wait($op, 2) or die "the other host does not run it\n";
    app_release($op);

    return $c->read_response->body;
}

# seconds that so many retries take, one after the other

sub seconds
{
    my ($n, $uri, $key) = @_;
    my $start = time;

    http_post("$uri&hold=1", 'x', $key)->body eq "run 1\n" or return 999
        for 1 .. $n;

    return time - $start;
}

# of the store "shared"

sub figure
{
    my ($s) = grep { $_->{name} eq 'shared' } @{ http_get('/stats')->json->{stores} };

    return $s->{counts}{ $_[0] } // $s->{ $_[0] };
}

run_tests();

__DATA__

=== TEST 1: answered from here, then in the store
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
my $first = run_apart('/headers?op=a', $key);
is($first->status, 201, 'the client has its response');
error_log_like(qr/\[warn\] .*commit in store "shared" failed: .*; it is kept here and tried again, 1 waiting/, 'the log says so');

my $r = http_post('/headers?op=a&hold=1', 'x', $key);
is($r->status, 201, 'a retry');
is($r->header('Idempotent-Replayed'), 'true', 'is replayed');
is($r->body, $first->body, 'with the same bytes');
is(http_post('/headers?op=a&hold=1', 'y', $key)->error_code,
   'IDEMPOTENCY_CONFLICT', 'another request is a conflict');
is(http_post('/ok?op=b', 'x', key())->status, 503, 'others are refused');

my ($name) = $::redis->keys;
is($::redis->record($name)->{s}, 1, 'the store does not have it');

join_again();
ok(wait_for(sub { ($::redis->record($name) || { s => 0 })->{s} == 2 }, 5),
   'then it has');
cmp_ok($::redis->command('PTTL', $name), '>', 80_000_000, 'for its time');
error_log_like(qr/\[notice\] .*a commit that was kept is in store "shared" now/,
               'the log says so');

is(http_post('/headers?op=a&hold=1', 'x', $key,
             port => $ENV{TEST_NGINX_PORT_2})->body,
   $first->body, 'another host replays it');
is(http_post('/headers?op=a&hold=1', 'x', $key)->body, $first->body, 'and we');
is(app_count('a'), 1, 'ran once');



=== TEST 2: the record is gone from the store meanwhile
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
$::redis->command('FLUSHALL');
join_again();
ok(wait_for(sub { landed() }, 5), 'it lands');
is(http_post('/ok?op=a&hold=1', 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->body,
   "run 1\n", 'and is replayed there');
is(app_count('a'), 1, 'ran once');



=== TEST 3: one that has no response
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
is(run_apart('/small/size?n=5000&op=a', $key)->status, 200, 'ran');
error_log_like(qr/is kept here and tried again/, 'kept');
is(http_post('/small/size?n=5000&op=a&hold=1', 'x', $key)->error_code,
   'RESPONSE_TOO_LARGE', 'told from here');
join_again();
ok(wait_for(sub { landed() }, 5), 'it lands');
my ($name) = $::redis->keys;
is($::redis->record($name)->{s}, 3, 'as what it is');



=== TEST 4: the store answers others: tried soon, however long it was away
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
run_apart(map { ("/ok?op=a$_", key()) } 1 .. 5);
sleep 4;
is(landed(), 0, 'it was away');

join_again();
ok(wait_for(sub { http_post('/ok?op=b', 'x', key())->status == 200
                  || (sleep(0.05), 0)[1] }, 8), 'it is back');
ok(wait_for(sub { landed() == 5 }, 2), 'and all are there');
cmp_ok(scalar(() = error_log() =~ /is kept failed again/g), '<', 12,
       'it was not tried all the time');



=== TEST 5: somebody else took over
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'ours');

# its lease runs out, and another host runs it
my $c = send_post('/ok?op=a&hold=1', 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
app_wait('a', 2) or die "the other host does not run it\n";
app_release('a');
is($c->read_response->body, "run 2\n", 'theirs');

join_again();
error_log_like(qr/\[warn\] .*a commit that was kept is dropped, another request had taken over in store "shared"/, 'ours is dropped');
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 2\n",
   'theirs is replayed, not what was here');
is(landed(), 0, 'nothing was written');



=== TEST 6: its time is over
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
run_apart('/brief/ok?op=a', $key);
is(http_post('/brief/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'replayed');
sleep 1.6;
is(http_post('/brief/ok?op=a&hold=1', 'x', $key)->status, 503, 'not any more');
error_log_like(qr/\[warn\] .*1 commits that were kept never reached store "shared"/, 'the log says so');
join_again();
sleep 1;
is(landed(), 0, 'it is not written later');



=== TEST 7: a worker is killed
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
my $key = key();
run_apart('/ok?op=a', $key);
kill_worker();
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'still here');
join_again();
ok(wait_for(sub { landed() }, 8), 'its successor gets it through');
is(app_count('a'), 1, 'ran once');



=== TEST 8: the worker that tries is killed, others are there
--- store: redis postgres
--- workers: 3
--- http_config eval: main::stores('')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
run_apart(map { ("/ok?op=a$_", key()) } 1 .. 3);
for (1 .. 3) {
    sleep 0.3;
    kill_worker((nginx_workers())[0]);
}
join_again();
ok(wait_for(sub { landed() >= 3 }, 10), 'all land');
is(landed(), 3, 'each once');



=== TEST 9: a reload
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
ok(nginx_reload(), 'reloaded');
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'still here');
ok(wait_for(sub { @{ [ nginx_workers('all') ] } == 2 }, 5),
   'the old ones left');
join_again();
ok(wait_for(sub { landed() }, 8), 'the new ones get it through');
is(landed(), 1, 'once');

edit_config(sub { s/timeout +300ms;/timeout 300ms; outbox 1m;/ });
ok(!nginx_reload(), 'another size is refused');
error_log_like(qr/the size of zone "idempotency_outbox_shared" was changed from 8388608 to 1048576 bytes; a reload would forget the commits in it: keep "outbox 8388608", or restart nginx when no commit waits/,
               'and how to change it: an outbox has no other name');
--- provokes: the size of zone "idempotency_outbox_shared" was changed



=== TEST 10: one worker at a time
--- store: redis postgres
--- workers: 4
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
run_apart(map { ("/ok?op=a$_", key()) } 1 .. 20);
my $before = () = error_log() =~ /is kept failed again/g;
sleep 2;
my $after = () = error_log() =~ /is kept failed again/g;
cmp_ok($after - $before, '<=', 5, 'few tries, by whomever');

join_again();
ok(wait_for(sub { landed() >= 20 }, 12), 'all land');
sleep 0.5;
is(landed(), 20, 'each once');
is(scalar(grep { $::redis->record($_)->{s} == 2 } $::redis->keys),
   20, 'and are there');



=== TEST 11: no room for a response: it is known that it ran, here and in the store
--- store: redis postgres
--- http_config eval: main::stores('outbox 64k;')
--- config eval: $::location
--- client
my @keys = map { key() } 1 .. 6;
my @r = run_apart(map { ("/size?n=8000&op=a$_", $keys[$_]) } 0 .. $#keys);
is(length $_->body, 8000, 'the client has its response') for @r;
error_log_like(qr/\[error\] .*there is no room for its response in zone "idempotency_outbox_shared" with \d+ waiting: its retry is refused/, 'the log says what is lost');
error_log_unlike(qr/commit in store "shared" failed: [^\n;]*, record/,
                 'and nothing else of it');

@r = map { http_post("/size?n=8000&op=a$_&hold=1", 'x',
                     $keys[$_]) } 0 .. $#keys;
is($r[0]->status, 200, 'what was there first stays');
is($r[-1]->error_code, 'RESPONSE_NOT_KEPT', 'of the last it is known that it ran');

join_again();
ok(wait_for(sub { landed() >= 6 }, 12), 'all land');
is(http_post("/size?n=8000&op=a$#keys&hold=1", 'x', $keys[-1],
             port => $ENV{TEST_NGINX_PORT_2})->error_code,
   'RESPONSE_NOT_KEPT', 'another host knows, too');
is(app_count("a$_"), 1, 'ran once') for 0 .. $#keys;



=== TEST 12: who waits is answered from here
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my @w = map { send_post('/hold?op=a', 'x', $key) } 1 .. 6;
sleep 0.3;
part();
app_release('a');

is($c->read_response->body, "run 1\n", 'the holder');
is($_->read_response->body, "run 1\n", 'a waiter') for @w;
is(app_count('a'), 1, 'ran once');



=== TEST 13: one that the store refuses holds up no other
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my ($bad, $good) = (key(), key());
run_apart('/ok?op=bad', $bad, '/ok?op=good', $good);

# the one that was asked for first is the one that is tried first
my ($kept) = error_log() =~ /1 waiting, record (\w+)/;
my ($name) = grep { /\Q$kept\E/ } $::redis->keys;
$::redis->refuse($name);

join_again();
ok(wait_for(sub { landed() == 1 }, 8), 'the good one lands');
is(http_post('/ok?op=bad&hold=1', 'x', $bad)->body, "run 1\n",
   'the other is replayed from here');
$::redis->accept($name);
ok(wait_for(sub { landed() == 2 }, 12), 'and lands when it can');



=== TEST 14: a commit whose reply was lost had landed
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
http_post('/ok?op=warm', 'x', key());
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
$::proxy->tell('hold');
app_release('a');
is($c->read_response->body, "run 1\n", 'answered');
error_log_like(qr/is kept here and tried again/, 'nobody knows');
my ($name) = grep { $::redis->record($_)->{s} == 2 } $::redis->keys;
join_again();
$::proxy->tell('cut');
ok(wait_for(sub { landed() }, 5), 'it is recognised');
error_log_unlike(qr/is dropped/, 'as our own');



=== TEST 15: a lock that could not be given back
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
is(run_apart('/long/status/503?op=a', $key)->status, 503, 'not kept');
sleep 0.5;
is(scalar(() = $::redis->keys), 1, 'the lock is there');
join_again();
ok(wait_for(sub { !(() = $::redis->keys) }, 4), 'it goes when the store is back');
is(http_post('/long/ok?op=b', 'x', $key)->status, 200, 'and is free');



=== TEST 16: a worker leaves with commits and releases waiting
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
run_apart('/ok?op=a', key(), '/long/status/503?op=b', key());
kill QUIT => nginx_master();
ok(wait_for(sub { !nginx_master() || !IdempotencyTest::is_alive(nginx_master()) }, 5),
   'nginx does not wait for them');
error_log_like(qr/nginx exits with 1 commits that store "shared" lacks/, 'and says what is lost');



=== TEST 17: with a breaker that is open
--- store: redis postgres
--- http_config eval: main::stores('breaker fails=2 reset=60s; cache hot:1m;')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
http_post('/ok?op=b', 'x', key()) for 1 .. 3;
error_log_like(qr/breaker is open/, 'open');
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'replayed');
join_again();
ok(wait_for(sub { landed() }, 10), 'it lands');
error_log_like(qr/its breaker is closed/, 'which closes the breaker');



=== TEST 18: not for the embedded store
--- http_config
    idempotency_store ledger memory { zone a:1m; outbox 1m; }
--- config
--- must_die
--- error_log
"outbox" is of no use in a memory store



=== TEST 19: too small
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; outbox 1k; }
--- config
--- must_die
--- error_log
zone "outbox" is too small: 1024 bytes



=== TEST 20: the lease is over, and another host ran: what is here is not told
--- store: redis postgres
--- http_config eval: main::stores('', '3s')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
is(take_over('/ok?op=a', $key), "run 2\n", 'another host');
my @c = map { send_post('/ok?op=a&hold=1', 'x', $key) } 1 .. 3;
join_again();
is($_->read_response->body, "run 2\n", 'theirs, the first time we are asked')
    for @c;
error_log_like(qr/is dropped, another request had taken over/, 'ours is gone');
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 2\n", 'and stays so');
is(app_count('a'), 2, 'no more');
is(landed(), 0, 'nothing was written');



=== TEST 21: the lease is over, and nobody ran: it is in the store before it is told
--- store: redis postgres
--- http_config eval: main::stores('', '3s')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
my ($name) = $::redis->keys;
sleep 1.2;
is($::redis->record($name)->{s}, 1, 'not there');
my $c = send_post('/ok?op=a&hold=1', 'x', $key);
join_again();
is($c->read_response->body, "run 1\n", 'replayed');
is($::redis->record($name)->{s}, 2, 'it is there by then');
error_log_like(qr/a commit that was kept is in store/, 'landed');
is(landed(), 1, 'counted once');
is(http_post('/ok?op=a&hold=1', 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->body,
   "run 1\n", 'and is replayed elsewhere');
is(app_count('a'), 1, 'ran once');



=== TEST 22: the lease is over, and there is no answer: told from here, after one try for all
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
sleep 4;
my $before = failed();
my @c = map { send_post('/ok?op=a&hold=1', 'x', $key) } 1 .. 20;
is($_->read_response->body, "run 1\n", 'replayed') for @c;
my $tries = failed() - $before;
cmp_ok($tries, '>=', 1, 'it was tried');
cmp_ok($tries, '<=', 5, 'not by each of them');
is(http_post('/ok?op=a&hold=1', 'y', $key)->error_code,
   'IDEMPOTENCY_CONFLICT', 'another request is a conflict');
is(app_count('a'), 1, 'ran once');



=== TEST 23: while the lease lasts it is told at once
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
# a try takes 300 ms

my ($long, $third, $held) = map { key() } 1 .. 3;
my $c = send_post('/third/ok?op=c&hold=1', 'x', $third);
app_wait_parked('c');
sleep 3.5;
run_apart('/long/ok?op=a', $long, '/held/ok?op=b', $held);
app_release('c');
$c->read_response;

cmp_ok(seconds(10, '/third/ok?op=c', $third), '<', 1.5 + grace(),
       'from the last renewal on');
cmp_ok(seconds(20, '/long/ok?op=a', $long), '<', 3, 'a long one');
sleep 1;
cmp_ok(seconds(20, '/held/ok?op=b', $held), '<', 3,
       'under hold nobody takes over');



=== TEST 24: whoever asks leaves while it is tried, or nginx is reloaded
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);
sleep 1.2;
my @c = map { send_post('/ok?op=a&hold=1', 'x', $key) } 1 .. 8;
sleep 0.05;
$_->reset for @c[0 .. 3];
ok(nginx_reload(), 'reloaded');
is($_->read_response->body, "run 1\n", 'the others are answered') for @c[4 .. 7];
join_again();
ok(wait_for(sub { landed() }, 8), 'it lands');
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 25: a kept one with a cache: what was lost does not come back
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s; breaker fails=2 reset=60s;', '3s')
--- config eval: $::location
--- client
my ($key, $other) = (key(), key());
run_apart('/ok?op=a', $key, '/ok?op=b', $other);
is(take_over('/ok?op=a', $key), "run 2\n", 'another host');
my @c = map { send_post('/ok?op=a&hold=1', 'x', $key) } 1 .. 2;
my $d = send_post('/ok?op=b&hold=1', 'x', $other);
join_again();
is($_->read_response->body, "run 2\n", 'theirs') for @c;
is($d->read_response->body, "run 1\n", 'ours landed');
part();
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 2\n", 'cached: theirs');
is(http_post('/ok?op=b&hold=1', 'x', $other)->body, "run 1\n", 'cached: ours');
is(app_count('a'), 2, 'ran twice');
is(app_count('b'), 1, 'ran once');



=== TEST 26: there is no room when it is tried again
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my ($key, $gone) = (key(), key());
run_apart('/long/size?n=5000&op=a', $key, '/long/size?n=5000&op=b', $gone);
my ($b) = error_log() =~ /2 waiting, record (\w+)/;
$::redis->command('DEL', grep { /\Q$b\E/ } $::redis->keys);
$::redis->full;
join_again();
error_log_like(qr/\[error\] .*there is no room in store "shared" for a response that was kept/, 'the log says so');
ok(wait_for(sub { 2 == (() = error_log() =~ /no room in store/g) }, 5), 'of both');
ok(wait_for(sub { 2 == grep { $_ && $_->{s} == 3 } map { $::redis->record($_) } $::redis->keys }, 3),
   'the store knows that they ran, also of the one it had lost');
is(asked('/long/size?n=5000&op=a&hold=1', $key)->error_code,
   'RESPONSE_NOT_KEPT', 'a retry is refused');
is(asked('/long/size?n=5000&op=b&hold=1', $gone)->error_code,
   'RESPONSE_NOT_KEPT', 'and of the other');
is(app_count($_), 1, "$_ ran once") for 'a', 'b';



=== TEST 27: commits that nobody waits for are counted
--- store: redis postgres
--- http_config eval: main::stores('outbox 64k;')
--- config eval: $::location
--- client
# the outcome is unknown: its record is written when the client has its answer

my $key = key();
my $c = send_post('/long/status/502?op=a&hold=1', 'x', $key);
app_wait_parked('a');
my ($name) = $::redis->keys;
$::redis->write_record($name, { %{ $::redis->record($name) }, t => 'x' x 16, g => 1000 }, 60000);
app_release('a');
is($c->read_response->status, 502, 'answered');
error_log_like(qr/commit in store "shared" failed: the lock was lost/, 'lost');
is(figure('lease_lost'), 1, 'counted');
is(figure('commit_failures'), 0, 'as that');

my $n = 150;
run_apart(map { ($_ < 6 ? "/long/size?n=8000&op=b$_" : "/long/status/502?op=b$_", key()) } 1 .. $n);
error_log_like(qr/there is no room for it in zone/, 'the outbox is full');
ok(wait_for(sub { figure('commit_failures') >= $n }, 8), 'each is counted');
is(figure('commit_failures'), $n, 'once');
my $o = figure('outbox');
is($o->{kept} + $o->{dropped}, $n, 'kept or lost');



=== TEST 28: taken over, but given back: what is kept is the only response there is
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
run_apart('/ok?op=a', $key);

# somebody has the lock now, for long
my ($name) = $::redis->keys;
my $lock = $::redis->record($name);
$lock->{t} = reverse $lock->{t};
$lock->{g} = 1000;
$::redis->write_record($name, $lock, 30_000);
sleep 1.2;
join_again();

error_log_like(qr/\[info\] .*has to wait, another request has taken over in store "shared" and still runs/, 'the log says so');
my $c = send_post('/ok?op=a&hold=1', 'x', $key);
is($c->read_response(1), undef, 'a retry waits for the other');
error_log_unlike(qr/is dropped/, 'it is not dropped');

# ... and gives it back without having run
$::redis->command('DEL', $name);
is($c->read_response->body, "run 1\n", 'replayed');
ok(wait_for(sub { landed() }, 12), 'it lands');
is(http_post('/ok?op=a&hold=1', 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->body,
   "run 1\n", 'for all');
is(app_count('a'), 1, 'ran once');



=== TEST 29: another one took over, and is gone: what ran is not yielded to it
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
# a lock whose lease is over; what its release left; and those of another request

my %left = (
    lock    => { s => 1 },
    unknown => { s => 3, r => 1, b => '' },
    other   => { s => 1, c => 1 },
);

my %key = map { $_ => key() } keys %left;
my %name;

run_apart(map { ("/ok?op=$_", $key{$_}) } sort keys %left);

for my $name ($::redis->keys) {
    my $lock = $::redis->record($name);
    my ($what) = grep { !$name{$_} } sort keys %left;
    $name{$what} = $name;

    my $f = { %$lock, %{ $left{$what} }, t => scalar(reverse $lock->{t}), g => 600_000 };
    $f->{c} = $lock->{c};
    substr($f->{c}, 20, 1) ^= "\1" if $left{$what}{c};     # of its fingerprint
    $::redis->write_record($name, $f, 500_000);
}

sleep 1.2;
join_again();

ok(wait_for(sub { $::redis->record($name{$_})->{s} == 2 }, 12), "$_: it lands")
    for qw(lock unknown);

error_log_like(qr/has to wait, another request has taken over/, 'of another request: it waits');
is($::redis->record($name{other})->{s}, 1, 'and is not written');



=== TEST 30: a holder whose lock is that of a dead one takes it back
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my $key = key();
my $c = send_post('/ok?op=a&hold=1', 'x', $key);
app_wait_parked('a');

my ($name) = $::redis->keys;
my $lock = $::redis->record($name);
$::redis->write_record($name, { %$lock, t => scalar(reverse $lock->{t}), g => 600_000 }, 500_000);

ok(wait_for(sub { $::redis->record($name)->{t} eq $lock->{t} }, 5), 'a renewal takes it back');
app_release('a');
is($c->read_response->body, "run 1\n", 'it is answered');
is(http_post('/ok?op=a&hold=1', 'x', $key)->body, "run 1\n", 'and replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 31: kept by a worker that exits, and no request comes to the others
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
my ($old) = nginx_workers();
my $c;

# on a busy machine a begin may take longer than the store may take

ok(wait_for(sub {
    $c = send_post('/long/ok?op=a&hold=1', 'x', key());
    wait_for(sub { app_parked('a') || $c->read_response(0.05) });
    return app_parked('a');
}), 'it runs');

ok(nginx_reload(), 'reload');
part();
app_release('a');
is($c->read_response->body, "run 1\n", 'answered by the old worker');
error_log_like(qr/it is kept here and tried again/, 'which keeps the commit');
$c->abort;
ok(wait_for(sub { !kill 0, $old }, 10), 'and is gone');
join_again();
ok(wait_for(sub { landed() }, 10), 'the new one gets it through');



=== TEST 32: a response that does not get through, to a store that answers
Another host would run it when the lease is over.
--- store: redis
--- http_config eval: main::stores('outbox 2m;')
--- config eval: $::location
--- client
my ($key, $small) = (key(), key());
my $uri = '/long/size?n=300000&op=a&hold=1';

my $c = send_post($uri, 'x', $key);
app_wait_parked('a');
$::proxy->tell('narrow 100000');
app_release('a');
is(length $c->read_response->body, 300_000, 'the client has its response');
is(asked('/long/ok?op=b', $small)->body, "run 1\n", 'the store answers others');

error_log_like(qr/\[error\] .*a response of \d+ bytes that is kept does not get into store "shared", which answers: it is dropped, its retry is refused/,
               'tried a few times, then dropped', 30);
ok(wait_for(sub { landed() }, 12), 'but not that it ran');
is(asked($uri, $key)->error_code, 'RESPONSE_NOT_KEPT', 'a retry is refused');
is(http_post($uri, 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->error_code,
   'RESPONSE_NOT_KEPT', 'and on another host');
is(app_count('a'), 1, 'ran once');



=== TEST 33: a large response, and a store that is away: the response stays
--- store: redis postgres
--- http_config eval: main::stores('outbox 2m;')
--- config eval: $::location
--- client
my $key = key();
my $uri = '/long/size?n=300000&op=a';

is(length run_apart($uri, $key)->body, 300_000, 'the client has its response');
ok(wait_for(sub { failed() >= 4 }), 'tried in vain');
is(length http_post("$uri&hold=1", 'x', $key)->body, 300_000, 'replayed from here');
join_again();
ok(wait_for(sub { landed() }, 12), 'it lands');
is(length http_post("$uri&hold=1", 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->body,
   300_000, 'and is replayed on another host');
is(app_count('a'), 1, 'ran once');



=== TEST 34: a lock that was lost is not counted on: what is kept is asked for first
An administrator deletes the record of a request that runs, and another host runs
it.  The renewal told that the lock is lost, long before its lease would be over.
--- store: redis postgres
--- http_config eval: main::stores('', '1s')
--- config eval
$::location . <<'_EOC_'
    location /ops/ { idempotency_admin; }
    location /lost/ {
        idempotency                  shared;
        idempotency_lease            12s;
        idempotency_wait             0;
        idempotency_unknown_outcome  $arg_policy;
        add_header                   X-Record $idempotency_record always;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client_timeout: 90
--- client
for my $policy (qw(lease hold)) {
    my $key = key();
    my $uri = "/lost/hold?op=$policy&policy=$policy";
    my $c = send_post($uri, 'x', $key);
    is(app_wait_parked($policy), 1, 'it runs');

    my $found = http_post($uri, 'x', $key);
    is(http_request('DELETE', '/ops/records/shared/' . $found->header('X-Record'))->status, 200, 'deleted');

    my $lost = sub { scalar(() = error_log() =~ /lease of a running request was lost/g) };
    my $before = $lost->();
    ok(wait_for(sub { $lost->() > $before }, 20), 'its renewal tells that it is lost');

    part();
    app_release($policy);
    is($c->read_response->body, "run 1\n", 'it is answered, and its commit is kept');

    my $other = send_post($uri, 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
    is(app_wait($policy, 2), 2, 'another host runs it');
    join_again();

    is(asked($uri, $key)->error_code, 'CONCURRENT_REQUEST', 'a retry learns of that one');
    app_release($policy);
    is($other->read_response->body, "run 2\n", 'which is answered');
    is(asked($uri, $key)->body, "run 2\n", 'and replayed here');
}



=== TEST 35: the response expires before its lock would: the lock does not stay
The application gives its response a shorter time than a lock has, or the window
of a derived record is over.
--- store: redis postgres
--- http_config eval
main::stores('', '1s') . <<'_EOC_'
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_3;
        location / {
            idempotency                  other;
            idempotency_scope            all;
            idempotency_dedupe           json:n window=100ms;
            idempotency_lease            10s;
            idempotency_wait             0;
            idempotency_unknown_outcome  hold;
            proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_
--- config
    location / {
        idempotency                  shared;
        idempotency_scope            all;
        idempotency_dedupe           json:n window=100ms;
        idempotency_lease            10s;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = key();
my @json = ('/ok?op=b&hold=1', '{"n":1}', { 'Content-Type' => 'application/json' });
my @keyed = ('/ok?op=a&hold=1&header=X-Idempotency-Store:%201', 'x', $key);
my $c = send_post(@keyed);
my $d = send_post(@json);
app_wait_parked($_) for qw(a b);
part();
app_release($_) for qw(a b);
is($_->read_response->body, "run 1\n", 'answered') for $c, $d;
ok(wait_for(sub { 2 == (() = error_log() =~ /is kept here and tried again/g) }), 'kept');

is(scalar(() = $::redis->keys), 2, 'the locks are in the store');
sleep 6.5;
error_log_unlike(qr/never reached store/, 'it is kept as long as they are');

join_again();
ok(wait_for(sub { landed() == 2 }, 12), 'both land');

my @there = (port => $ENV{TEST_NGINX_PORT_3});
$c = send_post(@keyed, @there);
$d = send_post(@json, @there);
ok(wait_for(sub { app_parked($_) }), 'its time is over: another host runs it') for qw(a b);
app_release($_) for qw(a b);
is($_->read_response->body, "run 2\n", 'and answers') for $c, $d;



=== TEST 36: a duplicate came within the window of another host, and waits for the commit that is kept
That commit turns out to be lost when the window is over.
--- store: redis postgres
--- http_config eval
main::stores('', '2s') . <<'_EOC_'
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_3;
        location / {
            idempotency         other;
            idempotency_scope   all;
            idempotency_dedupe  body window=2500ms;
            idempotency_lease   1s;
            proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_
--- config
    location / {
        idempotency         shared;
        idempotency_scope   all;
        idempotency_dedupe  body window=5s;
        idempotency_lease   1s;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $uri = '/ok?op=a&hold=1';
my $start = time;
is(run_apart('/ok?op=a', {})->body, "run 1\n", 'answered, and its commit is kept');

my $c = send_post($uri, 'x', {}, port => $ENV{TEST_NGINX_PORT_3});
my $there = time;
is(app_wait('a', 2), 2, 'its lease is over: another host runs it');
app_release('a');
is($c->read_response->body, "run 2\n", 'and answers');

my $left = $start + 4 - time;
sleep $left if $left > 0;
my $late = time - $there > 2.3;
$c = send_post($uri, 'x');
sleep 1;
join_again();

SKIP: {
    skip 'the machine is too busy', 2 if $late;
    my $r = $c->read_response;
    is($r && $r->body, "run 2\n", 'folds into that one');
    is(app_count('a'), 2, 'and does not run');
}
