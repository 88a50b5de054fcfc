# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The plain commands of a begin and of a commit: where they are enough, that no
# script is asked; where they are not, that one is; and that a record has the
# life that it is to have.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($redis, $proxy);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $proxy = start_redis_proxy($redis);

    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    if ($redis) {
        $redis->command('FLUSHALL');
        $proxy->tell('cut');
    }
});

our $stores = <<'_EOC_';
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
    idempotency_store near redis {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix  near:;
        cache   hot:1m ttl=30s;
    }
    idempotency_store far redis { server 127.0.0.1:$TEST_NGINX_PROXY_PORT; }
_EOC_

our $locations = <<'_EOC_';
    idempotency_max_response  2m;
    idempotency_ttl           1h;
    idempotency_lease         60s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /near/ {
        idempotency  near;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /far/ {
        idempotency  far;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /far/minute/ {
        idempotency      far;
        idempotency_ttl  1m;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /minute/ {
        idempotency      own;
        idempotency_ttl  1m;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /least/ {
        idempotency        own;
        idempotency_ttl    100s;
        idempotency_lease  12s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /quick/ {
        idempotency        own;
        idempotency_lease  3s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /grace/ {
        idempotency                own;
        idempotency_expired_grace  1h;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /held/ {
        idempotency                  own;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /nowait/ {
        idempotency       own;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

sub record { ($redis->keys)[0] }

sub life { $redis->command('PTTL', record()) }

# the commands that a piece of code takes, save for looking at them

sub commands
{
    my ($code) = @_;

    $redis->reset_calls;
    $code->();

    my $calls = $redis->calls;
    return join ' ', map { "$_=$calls->{$_}" }
                     grep { !/^(?:config|info|client|keys|auth)\b/ }
                     sort keys %$calls;
}

run_tests();

__DATA__

=== TEST 1: a first execution and a replay take no script
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
for my $n (0, 10, 5000, 1_000_000) {
    http_post('/size?n=1', 'x', key());

    my ($key, $first, $retry) = key();
    is(commands(sub { $first = http_post("/size?op=s$n&n=$n", 'x', $key) }),
       'linsert=1 lrange=1 restore=1', "first execution, $n bytes");
    is($::redis->errors('BUSYKEY'), 0, 'which is no error');

    is(commands(sub { $retry = http_post("/size?op=s$n&n=$n", 'x', $key) }),
       'lrange=1 restore=1', "replay, $n bytes");
    is($::redis->errors('BUSYKEY'), 1, 'which is one, to Redis');

    is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
    is(length $retry->body, $n, 'whole');
    ok($retry->body eq $first->body, 'byte for byte');
    is(app_count("s$n"), 1, 'ran once');
}

my $key = key();
http_post('/ok?op=c', 'x', $key);
is(commands(sub { is(http_post('/ok?op=c', 'y', $key)->status, 409, 'a conflict') }),
   'lrange=1 restore=1', 'nor does that');



=== TEST 2: with a cache, what is left of a record is asked for
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
http_post('/near/ok', 'x', key());

my $key = key();
is(commands(sub { http_post('/near/ok?op=a', 'x', $key) }),
   'linsert=1 lrange=1 pttl=1 restore=1', 'first execution');
is(commands(sub { http_post('/near/ok?op=a', 'x', $key) }), '', 'replay');

# as if it had been run on another host, a while ago
$key = key();
my $c = send_post('/near/hold?op=b', 'x', $key);
app_wait_parked('b');

my ($name) = grep { $::redis->record($_)->{s} == 1 } $::redis->keys;
my $there = (grep { $::redis->record($_)->{s} == 2 } $::redis->keys)[0];
my $lock = $::redis->record($name);
$::redis->write_record($name, { %$lock, t => 'x' x 16, s => 2, g => 0,
                                b => $::redis->record($there)->{b} }, 1500);
app_release('b');
$c->read_response;

my $r;
is(commands(sub { $r = http_post('/near/hold?op=b', 'x', $key) }),
   'lrange=1 pttl=1 restore=1', 'replay of another');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');
is(commands(sub { $r = http_post('/near/hold?op=b', 'x', $key) }), '',
   'and then from here');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');

ok(wait_for(sub { !$::redis->command('EXISTS', $name) }, 3), 'it is over');
Time::HiRes::sleep(0.1);
$c = send_post('/near/hold?op=b', 'x', $key);
is(app_wait('b', 2), 2, 'here, too');
app_release('b');
$c->read_response;



=== TEST 3: the life of a record: its ttl, and a hundredth more at most
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
for my $t ([ '', 3_600_000, 36_000 ], [ '/least', 100_000, 1_000 ],
           [ '/quick', 3_600_000, 1_000 ])
{
    my ($where, $ttl, $margin) = @$t;

    http_post("$where/ok", 'x', key());

    # half of a margin is half a second at least; a busy machine may take longer
    my ($calls, $took);
    for (1 .. 10) {
        $::redis->command('FLUSHALL');
        $took = -Time::HiRes::time();
        $calls = commands(sub { is(http_post("$where/ok", 'x', key())->status, 200,
                                   'ran') });
        $took += Time::HiRes::time();
        last if $took < 0.5;
    }

    is($calls, 'linsert=1 lrange=1 restore=1', "$where: plain");
    cmp_ok(life(), '>=', $ttl, 'its ttl at least');
    cmp_ok(life(), '<=', $ttl + $margin, 'and not much more');
    is($::redis->record(record())->{g}, 0, 'as long as its key');
}



=== TEST 4: a commit that can't be plain sets the life
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my %life = ('/minute' => 60_000, '/grace' => 7_200_000, '/held' => 3_600_000);

for my $where (sort keys %life) {
    http_post("$where/ok", 'x', key());
    $::redis->command('FLUSHALL');

    my $key = key();
    is(commands(sub { http_post("$where/ok?op=$where", 'x', $key) })
       =~ /evalsha=(\d+)/ ? $1 : 0, 1, "$where: a script");
    cmp_ok(life(), '<=', $life{$where}, 'its ttl');
    cmp_ok(life(), '>', $life{$where} - 1000, 'not less');
    is(http_post("$where/ok?op=$where", 'x', $key)->body, "run 1\n", 'replayed');
    is(app_count($where), 1, 'ran once');
}

# the application has another one than begin was told
http_post('/ok', 'x', key());
$::redis->command('FLUSHALL');
http_post('/ok?op=t&header=X-Idempotency-Store:%201800', 'x', key());
cmp_ok(life(), '<=', 1_800_000, 'that of the application');
cmp_ok(life(), '>', 1_799_000, 'not less');

# a record that outlives its ttl is replayed without a script
my $key = key();
http_post('/grace/ok?op=g', 'x', $key);
is(commands(sub { http_post('/grace/ok?op=g', 'x', $key) }),
   'lrange=1 pttl=1 restore=1', 'plain commands, and PTTL');



=== TEST 5: a commit that comes too late for its life sets it
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
# the lease is 3 s and the margin 1 s: half of that is over, no renewal came yet
http_post('/quick/ok', 'x', key());
$::redis->command('FLUSHALL');

my $c = send_post('/quick/hold?op=a', 'x', key());
app_wait_parked('a');
cmp_ok(life(), '>', 3_600_000, 'a lock lives for longer');
Time::HiRes::sleep(0.7);
like(commands(sub { app_release('a');
                    is($c->read_response->status, 200, 'ran') }),
     qr/eval(?:sha)?=1/, 'by its script');
cmp_ok(life(), '<=', 3_600_000, 'for its ttl');
cmp_ok(life(), '>', 3_599_000, 'from the commit on');



=== TEST 6: the lease ends when it does, however long the key lives
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- provokes: exited on signal 9
--- client
my $key = key();
send_post('/quick/hold?op=a', 'x', $key);
app_wait_parked('a');

my $name = record();
my $left = sub { $::redis->command('PTTL', $name) - $::redis->record($name)->{g} };
cmp_ok($left->(), '<=', 3_000, 'a lease');
cmp_ok($left->(), '>', 2_000, 'not less');

kill_worker();

my $start = Time::HiRes::time();
my $w = send_post('/quick/hold?op=a', 'x', $key);
is(app_wait('a', 2, 10), 2, 'it is taken over');
cmp_ok(Time::HiRes::time() - $start, '>', 1.5, 'not before');
cmp_ok(Time::HiRes::time() - $start, '<', 4, 'nor long after');
error_log_like(qr/a lease of 3000 ms ran out without an outcome/, 'says so');
app_release('a');
is($w->read_response->body, "run 2\n", 'answered');
is($::redis->record($name)->{n}, 3, 'a whole record');



=== TEST 7: a holder that lost its lock does not commit
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
http_post('/ok', 'x', key());

for my $w (0, 1) {
    $::redis->command('FLUSHALL');

    my $key = key();
    my $c = send_post("/hold?op=f$w", 'x', $key);
    app_wait_parked("f$w");

    my $name = record();
    my $other = { %{ $::redis->record($name) }, t => 'o' x 16, q => $w, g => 1000 };
    $::redis->write_record($name, $other, 60_000);
    my $was = $::redis->command('LRANGE', $name, 0, -1);

    my $calls = commands(sub { app_release("f$w");
                               is($c->read_response->body, "run 1\n", 'answered') });
    like($calls, qr/linsert=1/, 'it was tried');
    unlike($calls, qr/publish/, 'nobody is woken');
    is_deeply($::redis->command('LRANGE', $name, 0, -1), $was,
              'the record is as it was');
}

is(scalar(() = error_log() =~ /the lock had been lost to another request/g), 2,
   'it is told so');



=== TEST 8: a lock in progress, for who does not wait
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my $key = key();
my $c = send_post('/nowait/hold?op=a', 'x', $key);
app_wait_parked('a');

my $r = http_post('/nowait/hold?op=a', 'x', $key);
is($r->status, 409, 'refused');
is($r->error_code, 'CONCURRENT_REQUEST', 'it runs');

# the first was EVAL
is(commands(sub { http_post('/nowait/hold?op=a', 'x', $key) }),
   'evalsha=1 lrange=2 pttl=1 restore=1', 'its script had to be asked');
is($::redis->record(record())->{q}, 0, 'nobody waits');

is(commands(sub { app_release('a');
                  is($c->read_response->body, "run 1\n", 'ran') }),
   'linsert=1', 'a plain commit, and nothing is published');
is(http_post('/nowait/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');



=== TEST 9: a waiter elsewhere is woken by a plain commit
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my $other = start_host(free_port());
my $quickest = 9;

for my $n (0 .. 4) {
    my $key = key();
    my $c = send_post("/hold?op=w$n", 'x', $key);
    app_wait_parked("w$n");

    my $w = send_post("/hold?op=w$n", 'x', $key, port => $other->{port});
    my $name = (grep { $::redis->record($_)->{s} == 1 } $::redis->keys)[0];
    ok(wait_for(sub { $::redis->record($name)->{q} }), 'it waits');

    # it looks by itself after three quarters of a second at least
    $::redis->reset_calls;
    my $start = Time::HiRes::time();
    app_release("w$n");
    is($w->read_response->body, "run 1\n", 'answered');
    my $took = Time::HiRes::time() - $start;
    $quickest = $took if $took < $quickest;

    is($c->read_response->body, "run 1\n", 'the holder');
    is($::redis->calls->{publish}, 1, 'published');
    is($::redis->calls->{linsert}, 1, 'behind a plain commit');
    is($::redis->calls->{eval}, undef, 'without a script');
    is(app_count("w$n"), 1, 'ran once');
}

cmp_ok($quickest, '<', 0.5, 'at once');
ok($other->stop, 'the other leaves');



=== TEST 10: replies that are another record's
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
# the same request under another key: nothing but its id tells the records apart
my ($one, $two) = (key(), key());

is(http_post('/far/ok?op=a', 'x', $one)->body, "run 1\n", 'ran');
is(http_post('/far/ok?op=a', 'x', $two)->body, "run 2\n", 'ran');
is(http_post('/far/ok?op=a', 'x', $one)->body, "run 1\n", 'replayed');

$::proxy->tell('stale');
is(http_post('/far/ok?op=a', 'x', $two)->body, "run 2\n", 'its own');
error_log_like(qr/a reply does not fit its command/, 'the other was noticed');

# those of a begin that took its lock
my $c = send_post('/far/hold?op=b', 'x', key());
app_wait_parked('b');
$::proxy->tell('stale');
my $three = key();
is(http_post('/far/ok?op=c', 'x', $three)->body, "run 1\n", 'ran');
is(http_post('/far/ok?op=c', 'x', $three)->body, "run 1\n", 'replayed');
is(app_count('c'), 1, 'ran once');
app_release('b');
is($c->read_response->body, "run 1\n", 'and that');
is(scalar(() = error_log() =~ /a reply does not fit its command/g), 2,
   'noticed again');

# and those of a replay, for a script
my $four = key();
$c = send_post('/far/minute/hold?op=d', 'x', $four);
app_wait_parked('d');
is(http_post('/far/ok?op=a', 'x', $one)->body, "run 1\n", 'replayed');
$::proxy->tell('stale');
app_release('d');
is($c->read_response->body, "run 1\n", 'ran');
is(http_post('/far/minute/hold?op=d', 'x', $four)->body, "run 1\n", 'replayed');
is(scalar(() = error_log() =~ /a reply does not fit its command/g), 3,
   'and again');
error_log_unlike(qr/commit in store "far" failed/, 'it is no answer to a commit');



=== TEST 11: a waiter elsewhere is woken although the reply to the commit is lost
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my $other = start_host(free_port());
my $quickest = 9;

for my $n (0 .. 3) {
    my $key = key();
    my $c = send_post("/far/hold?op=w$n", 'x', $key);
    app_wait_parked("w$n");

    my $w = send_post("/far/hold?op=w$n", 'x', $key, port => $other->{port});
    my $name = (grep { $::redis->record($_)->{s} == 1 } $::redis->keys)[0];
    ok(wait_for(sub { $::redis->record($name)->{q} }), 'it waits');
    Time::HiRes::sleep(0.1);

    $::redis->reset_calls;
    $::proxy->tell('lose');
    my $start = Time::HiRes::time();
    app_release("w$n");
    is($w->read_response->body, "run 1\n", 'answered');
    my $took = Time::HiRes::time() - $start;
    $quickest = $took if $took < $quickest;

    is($c->read_response->body, "run 1\n", 'the holder');
    is($::redis->calls->{linsert}, 1, 'committed by the first');
    is($::redis->calls->{publish}, 1, 'published by the second');
    is($::redis->record($name)->{n}, 3, 'it is there once');
}

cmp_ok($quickest, '<', 0.5, 'at once');
ok($other->stop, 'the other leaves');
