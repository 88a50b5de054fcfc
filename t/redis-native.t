# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The native commands of a begin, a renewal, a commit and a release: where they
# are enough, that no script is asked; where they are not, that one is; and that
# a record has the life that it is to have.  What a server knows of them depends
# on its version: make test-redis SERVER=...

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
    idempotency_store own redis {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout  10s;
    }
    idempotency_store near redis {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout  10s;
        prefix   near:;
        cache    hot:1m ttl=30s;
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
    location /held/quick/ {
        idempotency                  own;
        idempotency_lease            3s;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency      own;
        idempotency_ttl  5s;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
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

    my $calls = $redis->commands;
    return join ' ', map { "$_=$calls->{$_}" }
                     grep { !/^(?:config|info|client|keys|auth|ping|get|hello|multi|type)\b/ }
                     sort keys %$calls;
}

# what a begin is, after a PTTL if one is needed

sub begun
{
    my ($pttl) = @_;

    return $redis->knows('NX GET') ? ($pttl ? 'pttl=1 ' : '') . 'set=1'
                                   : 'evalsha=1';
}

# what a commit, a release or a renewal is, beside so many SETs of a begin

sub native
{
    my ($command, $sets) = @_;

    return 'evalsha=' . ($sets + 1) if !$redis->knows('NX GET');

    return 'delifeq=1' . ($sets ? " set=$sets" : '')
        if $command eq 'DELIFEQ' && $redis->knows('DELIFEQ');

    return 'set=' . ($sets + 1)
        if $command eq 'IFEQ' && $redis->knows('IFEQ');

    return 'evalsha=1' . ($sets ? " set=$sets" : '');
}

sub no_errors
{
    is($redis->command('INFO', 'errorstats') =~ s/^#.*\s*//r, '', 'no error');
}

every_block(
    http_config => $stores,
    config      => $locations,
);

run_tests();

__DATA__

=== TEST 1: a first execution and a replay
--- store: redis
--- client
for my $n (0, 10, 5000, 1_000_000) {
    http_post('/size?n=1', 'x', key());

    my ($key, $first, $retry) = key();
    is(commands(sub { $first = http_post("/size?op=s$n&n=$n", 'x', $key) }),
       native('IFEQ', 1), "first execution, $n bytes");
    no_errors();

    is(commands(sub { $retry = http_post("/size?op=s$n&n=$n", 'x', $key) }),
       begun(), "replay, $n bytes");
    no_errors();

    is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
    is(length $retry->body, $n, 'whole');
    ok($retry->body eq $first->body, 'byte for byte');
    is(app_count("s$n"), 1, 'ran once');
}

my $key = key();
http_post('/ok?op=c', 'x', $key);
is(commands(sub { is(http_post('/ok?op=c', 'y', $key)->status, 409, 'a conflict') }),
   begun(), 'a conflict, too');
no_errors();



=== TEST 2: with a cache, what is left of a record is asked for
--- store: redis
--- client
http_post('/near/ok', 'x', key());

my $key = key();
is(commands(sub { http_post('/near/ok?op=a', 'x', $key) }),
   native('IFEQ', 1) =~ s/( ?)(?=set)/$1pttl=1 /r, 'first execution');
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
   begun('pttl'), 'replay of another');
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



=== TEST 3: the life of a record is its ttl
--- store: redis
--- client
my %life = ('' => 3_600_000, '/minute' => 60_000, '/quick' => 3_600_000,
            '/grace' => 7_200_000, '/held' => 3_600_000);

for my $where (sort keys %life) {
    http_post("$where/ok", 'x', key());
    $::redis->command('FLUSHALL');

    my $key = key();
    is(commands(sub { http_post("$where/ok?op=o$where", 'x', $key) })
       =~ s/pttl=1 //r, native('IFEQ', 1), "$where: as any other");
    cmp_ok(life(), '<=', $life{$where}, 'its ttl');
    cmp_ok(life(), '>', $life{$where} - 10_000, 'not less');
    is($::redis->record(record())->{g}, $where eq '/grace' ? 3_600_000 : 0,
       'less its grace');
    is(http_post("$where/ok?op=o$where", 'x', $key)->body, "run 1\n", 'replayed');
    is(app_count("o$where"), 1, 'ran once');
}

# the application has another one than begin was told
http_post('/ok', 'x', key());
$::redis->command('FLUSHALL');
is(commands(sub { http_post('/ok?op=t&header=X-Idempotency-Store:%201800', 'x', key()) }),
   native('IFEQ', 1), 'that of the application');
cmp_ok(life(), '<=', 1_800_000, 'it has');
cmp_ok(life(), '>', 1_790_000, 'not less');

# a record that outlives its ttl is replayed without a script
my $key = key();
http_post('/grace/ok?op=g', 'x', $key);
is(commands(sub { http_post('/grace/ok?op=g', 'x', $key) }), begun('pttl'),
   'and PTTL');



=== TEST 4: a release, and a renewal
--- store: redis
--- client
http_post('/status/503', 'x', key());
ok(wait_for(sub { !record() }), 'released');

is(commands(sub { http_post('/status/503', 'x', key());
                  wait_for(sub { !record() }) }) =~ s/exists=\d+ //r,
   native('DELIFEQ', 1), 'a release');
no_errors();

# the lease is 3 s
my $key = key();
my $c = send_post('/quick/hold?op=a', 'x', $key);
app_wait_parked('a');
my $name = record();
my $lock = $::redis->command('GET', $name);
$::redis->reset_calls;
ok(wait_for(sub { life() > 3_599_000 && $::redis->round_trips }, 5), 'renewed');
like(join(' ', sort keys %{ $::redis->commands }),
     $::redis->knows('IFEQ') ? qr/\bset\b/ : qr/\beval\b/, 'as it is to be');
is($::redis->command('GET', $name), $lock, 'it is the same');

# somebody waits: that stays
my $w = send_post('/quick/hold?op=a', 'x', $key);
ok(wait_for(sub { $::redis->record($name)->{q} }), 'one waits');
$::redis->command('PEXPIRE', $name, 3_598_500);
ok(wait_for(sub { life() > 3_598_500 }, 5), 'renewed');
is($::redis->record($name)->{q}, 1, 'it still waits');
app_release('a');
is($_->read_response->body, "run 1\n", 'answered') for $c, $w;
no_errors();



=== TEST 5: a large response for which somebody waits does not pass through a script
--- store: redis
--- client
for my $n (10, 1_000_000) {
    my $key = key();
    my $c = send_post("/size?op=l$n&n=$n&hold=1", 'x', $key);
    app_wait_parked("l$n");
    my $w = send_post("/size?op=l$n&n=$n&hold=1", 'x', $key);
    my ($name) = grep { $::redis->record($_)->{s} == 1 } $::redis->keys;
    ok(wait_for(sub { $::redis->record($name)->{q} }), 'one waits');

    $::redis->reset_calls;
    app_release("l$n");
    is(length $_->read_response->body, $n, 'answered') for $c, $w;

    my $calls = $::redis->commands;
    is($calls->{publish}, $::redis->knows('IFEQ') ? 1 : undef, 'published');
    is($::redis->calls->{publish}, 1, 'once');

    is($::redis->calls->{set} - ($calls->{set} || 0),
       $::redis->knows('IFEQ') ? 0 : 1, 'no script, where it can be helped');
    is($::redis->record($name)->{q}, 0, 'nobody waits any more');
    is(app_count("l$n"), 1, 'ran once');
}

no_errors();



=== TEST 6: the lease ends when it does, however long the key lives
--- store: redis
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
cmp_ok(Time::HiRes::time() - $start, '<', 4 + 2 * grace(), 'nor long after');
error_log_like(qr/a lease of 3000 ms ran out without an outcome/, 'says so');
app_release('a');
is($w->read_response->body, "run 2\n", 'answered');
is($::redis->record($name)->{s}, 2, 'completed');



=== TEST 7: a holder that lost its lock does not commit
--- store: redis
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
    my $was = $::redis->command('GET', $name);

    my $calls = commands(sub { app_release("f$w");
                               is($c->read_response->body, "run 1\n", 'answered') });
    like($calls, qr/set|eval/, 'it was tried');
    unlike($calls, qr/publish/, 'nobody is woken');
    is($::redis->command('GET', $name), $was, 'the record is as it was');
}

is(scalar(() = error_log() =~ /the lock had been lost to another request/g), 2,
   'it is told so');



=== TEST 8: a lock in progress, for who does not wait
--- store: redis
--- client
my $key = key();
my $c = send_post('/nowait/hold?op=a', 'x', $key);
app_wait_parked('a');

my $r = http_post('/nowait/hold?op=a', 'x', $key);
is($r->status, 409, 'refused');
is($r->error_code, 'CONCURRENT_REQUEST', 'it runs');

# the first was EVAL
is(commands(sub { http_post('/nowait/hold?op=a', 'x', $key) }),
   $::redis->knows('NX GET') ? 'evalsha=1 set=1' : 'evalsha=1',
   'its script had to be asked');
is($::redis->record(record())->{q}, 0, 'nobody waits');

is(commands(sub { app_release('a');
                  is($c->read_response->body, "run 1\n", 'ran') }),
   $::redis->knows('IFEQ') ? 'set=1' : 'eval=1', 'nothing is published');
is(http_post('/nowait/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');



=== TEST 9: a waiter elsewhere is woken by a commit
--- store: redis
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
    is(app_count("w$n"), 1, 'ran once');
}

cmp_ok($quickest, '<', 0.5 + grace(), 'at once');
ok($other->stop, 'the other leaves');



=== TEST 10: replies that are another record's
--- store: redis
--- client
# the same request under another key: nothing but its id tells the records apart
my ($one, $two) = (key(), key());

is(http_post('/far/ok?op=a', 'x', $one)->body, "run 1\n", 'ran');
is(http_post('/far/ok?op=a', 'x', $two)->body, "run 2\n", 'ran');
is(http_post('/far/ok?op=a', 'x', $one)->body, "run 1\n", 'replayed');

$::proxy->tell('stale');
is(http_post('/far/ok?op=a', 'x', $two)->body, "run 2\n", 'its own');
error_log_like(qr/a reply does not fit its command|an unasked reply came/, 'the other was noticed');

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
is(scalar(() = error_log() =~ /a reply does not fit its command|an unasked reply came/g), 2,
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
is(scalar(() = error_log() =~ /a reply does not fit its command|an unasked reply came/g), 3,
   'and again');
error_log_unlike(qr/commit in store "far" failed/, 'it is no answer to a commit');



=== TEST 11: a waiter elsewhere is woken although the reply to the commit is lost
--- store: redis
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
    cmp_ok($::redis->calls->{publish}, '>=', 1, 'published');
    is($::redis->record($name)->{s}, 2, 'committed');
}

cmp_ok($quickest, '<', 0.5 + grace(), 'at once');
ok($other->stop, 'the other leaves');



=== TEST 12: a lock that was renewed while somebody waits is given back once
The answer to the renewal came: no copy of it is on its way.
--- store: redis
--- client
my $key = key();
my $c = send_post('/held/quick/hold?op=a&status=503', 'x', $key);
app_wait_parked('a');

my $name = record();
my $w = send_post('/held/quick/hold?op=a&status=503', 'x', $key);
ok(wait_for(sub { $::redis->record($name)->{q} }), 'one waits');

my $life = life() - 500;
$::redis->command('PEXPIRE', $name, $life);
ok(wait_for(sub { life() > $life }, 5), 'renewed');

app_release('a');
is($c->read_response->status, 503, 'not kept');
is(app_wait('a', 2), 2, 'the other runs');
app_release('a');
is($w->read_response->status, 503, 'not kept either');
ok(wait_for(sub { !record() }), 'given back');
error_log_unlike(qr/a lock is given back until its record expires/, 'and not again and again');



=== TEST 13: a short TTL
Its record stays a while longer, for who waited.
--- store: redis
--- client
http_post('/brief/ok', 'x', key());

my ($key, $retry) = key();
http_post('/brief/ok?op=a', 'x', $key);
is(commands(sub { $retry = http_post('/brief/ok?op=a', 'x', $key) }), begun('pttl'), 'replay');
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
no_errors();
