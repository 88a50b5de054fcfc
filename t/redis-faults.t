# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A Redis that fails: killed, frozen, emptied, full, a replica, or talking
# nonsense.  Nothing runs twice, nothing hangs, and no lock is left behind.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($redis, $proxy, $kept);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $kept = start_redis('--appendonly', 'yes', '--appendfsync', 'always');
    $proxy = start_redis_proxy($redis);

    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_KEPT_PORT} = $kept->{port};
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    if ($redis) {
        $redis->spawn if $redis->{stopped};
        $redis->command('CONFIG', 'SET', 'maxmemory', 0);
        $redis->command('REPLICAOF', 'NO', 'ONE');
        $redis->command('FLUSHALL');
        $proxy->tell('cut');
    }
});

our $stores = <<'_EOC_';
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
    idempotency_store kept redis { server 127.0.0.1:$TEST_NGINX_KEPT_PORT; }
    idempotency_store far redis { server 127.0.0.1:$TEST_NGINX_PROXY_PORT; }
    idempotency_store slow redis { server 127.0.0.1:$TEST_NGINX_PROXY_PORT;
                                   timeout 5s;
                                   connect_timeout 10s; }
_EOC_

our $locations = <<'_EOC_';
    idempotency_max_response  2m;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /far/ {
        idempotency  far;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /held/ {
        idempotency                  far;
        idempotency_lease            1s;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /twelve/ {
        idempotency        far;
        idempotency_lease  12s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /kept/ {
        idempotency  kept;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency        own;
        idempotency_lease  1s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /slow/ {
        idempotency               slow;
        idempotency_lease         600s;
        idempotency_max_response  32m;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        client_max_body_size     8m;
        client_body_buffer_size  8m;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# a request whose commit meets a proxy that was told so: its response

sub run_told
{
    my ($mode, $uri, $key) = @_;

    my ($op) = $uri =~ /op=(\w+)/;
    my $c = send_post("$uri&hold=1", 'x', $key);
    app_wait_parked($op)
        or die "$uri does not run: " . $c->read_response->status . "\n";

    $proxy->tell($mode);
    app_release($op);

    return $c->read_response(20);
}

# no connection to it is being made: the last command of each stays

sub settled
{
    my ($server) = @_;

    my $last = '';

    wait_for(sub {
        my $now = join ' ', sort grep { !/:client/ }
                  map { /^id=(\d+) .* cmd=(\S+)/ ? "$1:$2" : () }
                  split /\n/, $server->command('CLIENT', 'LIST');
        my $same = $now eq $last;
        $last = $now;
        sleep 0.5;
        return $same;
    }) or die "connections come and go\n";
}

# what the application makes

sub body_of
{
    my $n = shift;

    return substr 'run 1 ' . (join('', 'a' .. 'z', 0 .. 9) . "\n")
                             x (1 + $n / 37), 0, $n;
}

# the only record there is

sub record
{
    my ($name) = $redis->keys;
    return $name;
}

every_block(
    http_config => $stores,
    config      => $locations,
);

run_tests();

__DATA__

=== TEST 1: the reply to a begin is lost
--- store: redis
--- client
http_post('/far/ok?op=warm', 'x', key());

for (1 .. 3) {
    my $key = key();

    $::proxy->tell('lose');
    is(http_post("/far/ok?op=a$_", 'x', $key)->body, "run 1\n", 'ran');
    is(http_post("/far/ok?op=a$_", 'x', $key)->body, "run 1\n", 'replayed');
    is(app_count("a$_"), 1, 'once');
}
error_log_like(qr/lost the connection to Redis at \S+: the server closed it/,
               'it was');
--- no_error_log
is refused



=== TEST 2: the reply to a commit is lost
--- store: redis
--- client
my $key = key();
my $c = send_post('/far/hold?op=a', 'x', $key);
app_wait_parked('a');

$::proxy->tell('lose');
app_release('a');
is($c->read_response->body, "run 1\n", 'answered');

my $r = http_post('/far/hold?op=a', 'x', $key);
is($r->body, "run 1\n", 'replayed');
is($r->header('Idempotent-Replayed'), 'true', 'really');
is(app_count('a'), 1, 'ran once');
error_log_unlike(qr/failed: |was not stored/, 'the commit succeeded');



=== TEST 3: the reply to a release is lost
--- store: redis
--- client
my $key = key();
my $c = send_post('/far/status/503?op=a&hold=1', 'x', $key);
app_wait_parked('a');

$::proxy->tell('lose');
app_release('a');
is($c->read_response->status, 503, 'answered');
ok(wait_for(sub { !record() }), 'released');
is(http_post('/far/status/503?op=a', 'x', key())->status, 503, 'goes on');
error_log_unlike(qr/failed: /, 'the release succeeded');



=== TEST 4: killed before begin
--- store: redis
--- client
http_post('/ok?op=warm', 'x', key());
$::redis->kill_it;

my $key = key();
my $start = Time::HiRes::time();

for (1 .. 20) {
    my $r = http_post('/ok?op=a', 'x', $key);
    is($r->error_code, 'STORE_UNAVAILABLE', "refused, $_");
    cmp_ok($r->json->{error}{retryAfterMs}, '>', 0, 'try later');
}

cmp_ok(Time::HiRes::time() - $start, '<', 5 + 5 * grace(),
       'does not wait each time');
is(app_count('a'), 0, 'did not run');
is(http_post('/plain/ok', 'x')->status, 200, 'others are served');

$::redis->spawn;
ok(wait_for(sub { http_post('/ok?op=a', 'x', $key)->status == 200 }, 10),
   'back');
is(app_count('a'), 1, 'ran once');
error_log_like(qr/Redis at \S+ answers again/, 'says so');

# not one line for each attempt
cmp_ok(scalar(() = error_log() =~ /\[error\] .*to Redis at/g), '<', 3,
       'the log is not flooded');



=== TEST 5: killed between begin and commit
--- store: redis
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
$::redis->kill_it;
app_release('a');

is($c->read_response->body, "run 1\n", 'the client has its response');
error_log_like(qr/\[warn\] .*commit in store "own" failed: .* kept here/, 'says so');



=== TEST 6: restarted empty between begin and commit
--- store: redis
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
$::redis->restart;

# the holder lays its lock anew at once, and not where it does not know
ok(wait_for(sub { record() }, 5), 'the lock is there again');
$::redis->command('FLUSHALL');
is(record(), undef, 'it is empty');
app_release('a');

is($c->read_response->body, "run 1\n", 'answered');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 7: restarted empty while the holder runs: the lock is laid anew
--- store: redis
--- client
my $key = key();
my $c = send_post('/short/hold?op=a', 'x', $key);
app_wait_parked('a');
$::redis->restart;
ok(wait_for(sub { record() }), 'the lock is there again');
cmp_ok($::redis->command('PTTL', record()), '>', 0, 'with a life');

my $w = send_post('/short/hold?op=a', 'x', $key);
sleep 2;
is($w->read_response(0.1), undef, 'a second one waits');
app_release('a');
is($c->read_response->body, "run 1\n", 'answered');
is($w->read_response->body, "run 1\n", 'the second one, too');
is(app_count('a'), 1, 'ran once');



=== TEST 8: restarted during commit
--- store: redis
--- client
my $key = key();
my $c = send_post('/far/hold?op=a', 'x', $key);
app_wait_parked('a');

# the commit reaches Redis, which then dies with it
$::proxy->tell('hold');
app_release('a');
ok(wait_for(sub { $::redis->record(record())->{s} == 2 }),
   'it is there');
$::redis->restart;
$::proxy->tell('cut');

is($c->read_response->body, "run 1\n", 'answered');
is(http_post('/far/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 9: restarted with its data
--- store: redis
--- client
my $key = key();
is(http_post('/kept/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');

my $held = key();
my $c = send_post('/kept/hold?op=h', 'x', $held);
app_wait_parked('h');

$::kept->restart;

is(http_post('/kept/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
my $w = send_post('/kept/hold?op=h', 'x', $held);
app_release('h');
is($c->read_response->body, "run 1\n", 'the holder ended');
is($w->read_response->body, "run 1\n", 'the waiter has its answer');
is(app_count('a'), 1, 'ran once');
is(app_count('h'), 1, 'ran once');



=== TEST 10: LOADING
--- store: redis
--- client
http_post('/ok?op=warm', 'x', key());

$::redis->command('CONFIG', 'SET', 'rdbcompression', 'no');

# while it loads, it answers between pieces of 2 MB

$::redis->command('SET', "filler$_", 'x' x 2_500_000) for 1 .. 20;
$::redis->command('SAVE');

push @{ $::redis->{options} }, '--key-load-delay', 100000;
$::redis->kill_it;
$::redis->spawn;

my $key = key();
my $r = http_post('/ok?op=l', 'x', $key);
is($r->error_code, 'STORE_UNAVAILABLE', 'refused');
error_log_like(qr/store "own" failed: LOADING/, 'says why');

splice @{ $::redis->{options} }, -2;
unlink "$::redis->{dir}/dump.rdb";
$::redis->restart;

ok(wait_for(sub { http_post('/ok?op=l', 'x', $key)->status == 200 }, 10),
   'later it works');
is(app_count('l'), 1, 'ran once');



=== TEST 11: frozen
--- store: redis
--- client
http_post('/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');
$::redis->pause;

my $key = key();
my $start = Time::HiRes::time();
my @c = map { send_post("/ok?op=f$_", 'x', key()) } 1 .. 10;

is(http_post('/plain/ok', 'x')->status, 200, 'others are served');
cmp_ok(Time::HiRes::time() - $start, '<', 0.5 + grace(), 'at once');

is($_->read_response->error_code, 'STORE_UNAVAILABLE', 'refused') for @c;
my $took = Time::HiRes::time() - $start;
cmp_ok($took, '>', 0.7, 'not before its timeout');
cmp_ok($took, '<', 2 + 2 * grace(), 'and not long after');

$::redis->resume;
ok(wait_for(sub { http_post('/ok?op=b', 'x', $key)->status == 200 }),
   'goes on');

# the begins arrived at last, and so did the releases that followed
ok(wait_for(sub { my @k = $::redis->keys; @k == 1 }), 'no lock is left');
is(app_count('f1'), 0, 'none of them ran');



=== TEST 12: frozen between begin and commit
--- store: redis
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
$::redis->pause;
app_release('a');
sleep 0.3;
$::redis->resume;

is($c->read_response->body, "run 1\n", 'answered');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 13: a client that goes away before begin is answered
--- store: redis
--- client
http_post('/far/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');

$::proxy->tell('hold');
my $key = key();
my $c = send_post('/far/ok?op=a', 'x', $key);
ok(wait_for(sub { record() }), 'begin took the lock');
$c->abort;
ok(wait_for(sub { !record() }), 'the release followed, on the same connection');
$::proxy->tell('cut');

is(http_post('/far/ok?op=a', 'x', $key)->body, "run 1\n", 'a retry runs');
is(app_count('a'), 1, 'once');



=== TEST 14: the same, and the connection breaks as well
--- store: redis
--- client
http_post('/far/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');

$::redis->pause;
my $key = key();
my $c = send_post('/far/ok?op=a', 'x', $key);
sleep 0.2;
$c->abort;
sleep 0.2;
$::proxy->tell('cut');
$::redis->resume;

is(http_post('/far/ok?op=a', 'x', $key)->body, "run 1\n", 'a retry runs');
ok(wait_for(sub { my @k = $::redis->keys; @k == 1 }), 'no lock is left');



=== TEST 15: SCRIPT FLUSH in between
--- store: redis
--- client
my $key = key();
http_post('/ok?op=warm', 'x', key());

$::redis->command('SCRIPT', 'FLUSH');
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $w = send_post('/hold?op=a', 'x', $key);
sleep 0.2;
$::redis->command('SCRIPT', 'FLUSH');
app_release('a');

is($c->read_response->body, "run 1\n", 'answered');
is($w->read_response->body, "run 1\n", 'woken');
$::redis->command('SCRIPT', 'FLUSH');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 16: a replica
--- store: redis
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key);

$::redis->command('REPLICAOF', '127.0.0.1', $ENV{TEST_NGINX_DEAD_PORT});

is(http_post('/ok?op=b', 'x', key())->error_code, 'STORE_UNAVAILABLE',
   'refused');
error_log_like(qr/store "own" failed: the server is a replica: .*READONLY/,
               'says why');
is(app_count('b'), 0, 'did not run');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'a replay works');

$::redis->command('CONFIG', 'SET', 'replica-serve-stale-data', 'no');
is(http_post('/ok?op=a', 'x', $key)->error_code, 'STORE_UNAVAILABLE',
   'refused');
error_log_like(qr/store "own" failed: MASTERDOWN/, 'says why');

$::redis->command('CONFIG', 'SET', 'replica-serve-stale-data', 'yes');
$::redis->command('REPLICAOF', 'NO', 'ONE');
is(http_post('/ok?op=b', 'x', key())->body, "run 1\n", 'a master again');



=== TEST 17: full before begin
--- store: redis
--- client
$::redis->command('CONFIG', 'SET', 'maxmemory', 1);

is(http_post('/ok?op=a', 'x', key())->error_code, 'STORE_UNAVAILABLE',
   'refused');
error_log_like(qr/store "own" is full/, 'says why');
is(app_count('a'), 0, 'did not run');
is(record(), undef, 'nothing is left');



=== TEST 18: full between begin and commit
--- store: redis
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');

my $w = send_post('/hold?op=a', 'x', $key);
sleep 0.2;

$::redis->command('CONFIG', 'SET', 'maxmemory', 1);
$::redis->reset_calls;
app_release('a');

is($c->read_response->body, "run 1\n", 'the client has its response');
my $r = $w->read_response;
is($r->status, 507, 'a waiter');
is($r->error_code, 'RESPONSE_NOT_KEPT', 'is told so');
is(http_post('/hold?op=a', 'x', $key)->error_code, 'RESPONSE_NOT_KEPT',
   'and a retry');
is(app_count('a'), 1, 'ran once');
error_log_like(qr/there is no room for a response in store "own"/, 'logged');
cmp_ok($::redis->command('PTTL', record()), '>', 3_600_000, 'for its ttl');



=== TEST 19: full while the holder runs: its lease is renewed
--- store: redis
--- client
my $key = key();
my $c = send_post('/short/hold?op=a', 'x', $key);
app_wait_parked('a');
$::redis->command('CONFIG', 'SET', 'maxmemory', 1);

my $w = send_post('/short/hold?op=a', 'x', $key);
ok(wait_for(sub { $::redis->record(record())->{q} }), 'that it waits is marked');
sleep 3;
is($w->read_response(0.1), undef, 'a second one still waits');
is(app_count('a'), 1, 'did not run again');

$::redis->command('CONFIG', 'SET', 'maxmemory', 0);
my $start = Time::HiRes::time();
app_release('a');
is($c->read_response->body, "run 1\n", 'answered');
is($w->read_response->body, "run 1\n", 'woken');
cmp_ok(Time::HiRes::time() - $start, '<', 0.5 + grace(), 'at once');



=== TEST 20: records that are not ours, or broken
--- store: redis
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key);

my $name = record();
my $good = $::redis->record($name);
my $whole = $::redis->packed($good);
my $life = 100_000;

my $write = sub { $::redis->write($name, $_[0], $life) };

# what to write in place of the record, and what is said of it
my @cases = (
    [ 'another type', sub { $::redis->command('HSET', $name, 'v', 1) },
      qr/its key is not a string/ ],
    [ 'a foreign list', sub { $::redis->write_list($name, $life, ('x' x 200) x 3) },
      qr/its key is not a string/ ],
    [ 'a foreign string', sub { $write->('x' x 200) }, qr/it is not one of ours/ ],
    [ 'an empty string', sub { $write->('') }, qr/it is not one of ours/ ],
    [ 'another version', { v => 4 }, qr/it is of a version that/ ],
    [ 'another id', { i => 'x' x 8 }, qr/it is another one's/ ],
    [ 'a strange claim', { c => "\x7f" x 69 }, qr/its claim is corrupt/ ],
    [ 'a strange state', { s => 7 }, qr/its state is corrupt/ ],
    [ 'no state', { s => 0 }, qr/its state is corrupt/ ],
    [ 'no response', { b => '' }, qr/its response is missing/ ],
    [ 'no reason', { s => 3 }, qr/its reason is corrupt/ ],
    [ 'a strange reason', { s => 3, r => 99 }, qr/its reason is/ ],
    [ 'no lease', { s => 1, g => ~0 }, qr/its lease or ttl is corrupt/ ],
    [ 'no ttl', { g => 1 << 50 }, qr/its lease or ttl is corrupt/ ],
    [ 'a part of its head', sub { $write->(substr($whole, 0, 116)) },
      qr/it is cut off/ ],
    [ 'a part of its response', sub { $write->(substr($whole, 0, -1)) },
      qr/its response is cut off/ ],
    [ 'a byte too many', sub { $write->("$whole.") }, qr/its response is cut off/ ],
    [ 'no expiry', sub { $::redis->write_record($name, { %$good, s => 1, b => '' }) },
      qr/it has no expiry/ ],
);

for my $case (@cases) {
    my ($what, $record, $said) = @$case;

    $::redis->command('DEL', $name);

    if (ref $record eq 'CODE') {
        $record->();
    } else {
        $::redis->write_record($name, { %$good, %$record }, $life);
    }

    my $there = $::redis->command('DUMP', $name);
    my $lines = () = error_log() =~ /is not usable: $said/g;

    my $r = http_post('/ok?op=a', 'x', $key);
    is($r->error_code, 'STORE_UNAVAILABLE', $what);

    cmp_ok(scalar(() = error_log() =~ /record [0-9a-f]{16} is not usable: $said/g),
           '>', $lines, "$what: in the log");
    is($::redis->command('DUMP', $name), $there, "$what: nothing is changed");
}

# every byte of a response counts
for my $at (0, 1, 10, length($good->{b}) - 1) {
    my $bad = $good->{b};
    substr($bad, $at, 1) = chr(ord(substr $bad, $at, 1) ^ 0x41);

    $::redis->command('DEL', $name);
    $::redis->write_record($name, { %$good, b => $bad }, $life);

    my $r = http_post('/ok?op=a', 'x', $key);
    cmp_ok($r->status, '>=', 500, "a changed byte at $at");
    is($r->header('Idempotent-Replayed'), undef, 'is not replayed');
}

is(app_count('a'), 1, 'none of them ran');

# that it lasts as long as its key is all that is known of one that is over
$::redis->write($name, $whole);
my $r = http_post('/ok?op=a', 'x', $key);

if ($::redis->knows('NX GET')) {
    is($r->body, "run 1\n", 'over, without an expiry');
} else {
    is($r->error_code, 'STORE_UNAVAILABLE', 'a script looks at the expiry');
}

is(app_count('a'), 1, 'did not run either');

for my $v (1, 3) {
    $::redis->command('DEL', $name);
    $::redis->write_record($name, { %$good, v => $v }, $life);
    is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", "version $v is read");
}



=== TEST 21: replies torn into single bytes
--- store: redis
--- http_config eval: $::stores =~ s/(PROXY_PORT;)/$1 timeout 60s;/r
--- client
my $key = key();

is(length http_post('/far/size?op=a&n=1000000', 'x', $key)->body, 1_000_000,
   'a megabyte');
my $whole = http_post('/far/size?op=a&n=1000000', 'x', $key);

$::proxy->tell('tear');
my $torn = http_post('/far/size?op=a&n=1000000', 'x', $key, timeout => 60);
is($torn->header('Idempotent-Replayed'), 'true', 'replayed');
ok($torn->body eq $whole->body, 'and whole');

my $c = send_post('/far/hold?op=b', 'x', key());
app_wait_parked('b');
app_release('b');
is($c->read_response->body, "run 1\n", 'a short one');
$::proxy->tell('pass');



=== TEST 22: a reply too many
--- store: redis
--- client
http_post('/far/ok?op=warm', 'x', key());

my $key = key();
$::proxy->tell('twice');
is(http_post('/far/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
is(http_post('/far/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');

# and one that comes while others wait for theirs
my @keys = map { key() } 0 .. 49;
for my $round (1, 2) {
    $::proxy->tell('twice');
    my @c = map { send_post("/far/echo?op=m$_", 'x', $keys[$_]) } 0 .. 49;

    is(scalar(grep { $c[$_]->read_response->json->{uri} eq "/far/echo?op=m$_" }
              0 .. 49), 50, 'each has its own');
}

is(scalar(grep { app_count("m$_") == 1 } 0 .. 49), 50, 'each ran once');
error_log_like(qr/an unasked reply came|a reply does not fit its command/,
               'the connection was dropped');



=== TEST 23: no reply at all, but bytes
--- store: redis
--- client
my $key = key();
http_post('/far/ok?op=warm', 'x', key());

$::proxy->tell('garbage');
is(http_post('/far/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
is(app_count('a'), 1, 'once');
error_log_like(qr/it does not speak the protocol/, 'the connection was dropped');



=== TEST 24: a server that closes every connection
--- store: redis
--- client
$::proxy->tell('refuse');

my $key = key();
my $start = Time::HiRes::time();
is(http_post('/far/ok?op=a', 'x', $key)->error_code, 'STORE_UNAVAILABLE',
   'refused');
cmp_ok(Time::HiRes::time() - $start, '<', 2 + grace(), 'in time');

$::proxy->tell('pass');
ok(wait_for(sub { http_post('/far/ok?op=a', 'x', $key)->status == 200 }, 10),
   'later it works');
is(app_count('a'), 1, 'ran once');



=== TEST 25: waiters while the subscriber can't connect
--- store: redis
--- client
my $key = key();
my $c = send_post('/far/hold?op=a', 'x', $key);
app_wait_parked('a');

# what is there stays, the subscriber is refused
$::proxy->tell('refuse');
my $w = send_post('/far/hold?op=a', 'x', $key);
sleep 0.5;
$::proxy->tell('pass');
app_release('a');

is($c->read_response->body, "run 1\n", 'answered');
is($w->read_response->body, "run 1\n", 'woken, or looked');



=== TEST 26: a reply that is another one's
--- store: redis
--- client
my ($one, $two) = (key(), key());

http_post('/far/echo?op=one', 'x', $one);
http_post('/far/echo?op=two', 'x', $two);
http_post('/far/echo?op=one', 'x', $one);

$::proxy->tell('stale');
my $r = http_post('/far/echo?op=two', 'x', $two);
is($r->status, 200, 'replayed');
is($r->json->{uri}, '/far/echo?op=two', 'its own');
error_log_like(qr/a reply does not fit its command|an unasked reply came/, 'the other was noticed');



=== TEST 27: Redis 6, which has none of the native commands
--- store: redis
--- client
$::proxy->tell('cut');
$::proxy->tell('old');
$::redis->reset_calls;
http_post('/far/ok?op=warm', 'x', key());

my $key = key();
my $c = send_post('/far/hold?op=a', 'x', $key);
app_wait_parked('a');
my $w = send_post('/far/hold?op=a', 'x', $key);
sleep 0.3;
app_release('a');

is($c->read_response->body, "run 1\n", 'ran');
is($w->read_response->body, "run 1\n", 'a waiter');
is(http_post('/far/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(http_post('/far/hold?op=a', 'y', $key)->status, 409, 'a conflict');
is(app_count('a'), 1, 'ran once');
is($::redis->commands->{set}, undef, 'all by scripts');
ok(!$::redis->errors('ERR'), 'nothing was tried in vain');



=== TEST 28: a user that may not use one of the commands
--- store: redis
--- http_config
    idempotency_store own redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        user      few;
        password  few;
    }
--- config
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $released = $::redis->knows('DELIFEQ');
$::redis->set_user('few', 'on', '>few', '~*', '&*', '+@all',
                   $released ? '-delifeq' : ());
$::redis->reset_calls;

for my $op (1 .. 3) {
    is(http_post("/status/503?op=$op", 'x', key())->status, 503, 'ran');
    ok(wait_for(sub { !record() }), 'released');
    is(app_count($op), 1, 'ran once');
}

is($::redis->errors('NOPERM') || 0, $released ? 1 : 0, 'found out once');

$::redis->command('ACL', 'SETUSER', 'few', '-set');
is(http_post('/ok?op=b', 'x', key())->error_code, 'STORE_UNAVAILABLE', 'refused');
is(app_count('b'), 0, 'did not run');



=== TEST 29: a renewal that failed is tried again soon, not a third of the lease later
--- store: redis
--- client
my $c = send_post('/twelve/hold?op=a', 'x', key());
app_wait_parked('a');
my $name = record();
my @others = map { send_post("/twelve/hold?op=o$_", 'x', key()) } 1 .. 6;
app_wait_parked("o$_") for 1 .. 6;
$::proxy->tell('down');
error_log_like(qr/a lease could not be renewed/, 'it fails', 8);
error_log_like(qr/could not be renewed [^\n]*: \d+ more in the last second/,
               'those of the others are counted', 8);
my $left = sub {
    return $::redis->command('PTTL', $name) - $::redis->record($name)->{g};
};
ok(wait_for(sub { $left->() < 4_000 }, 12), 'the lease goes on');
$::proxy->tell('pass');
ok(wait_for(sub { $left->() > 8_000 }, 2),
   'and is renewed when the store is back');
app_release('a');
is($c->read_response->body, "run 1\n", 'answered');



=== TEST 30: under hold the lock of a begin that was given up goes, however long Redis was away
--- store: redis
--- client
http_post('/far/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');
$::proxy->tell('hold');
my $key = key();
my $c = send_post('/held/ok?op=a', 'x', $key);
ok(wait_for(sub { record() }, 5), 'the lock is laid, nobody knows');
$::proxy->tell('down');
is($c->read_response->error_code, 'STORE_UNAVAILABLE', 'refused');
sleep 2.5;
ok(record(), 'longer than a lease');
$::proxy->tell('pass');
ok(wait_for(sub { !record() }, 8), 'it goes when Redis is back');
is(app_count('a'), 0, 'did not run');
is(http_post('/held/ok?op=a', 'x', $key)->body, "run 1\n", 'and can');



=== TEST 31: a large response
--- store: redis
--- client
my $key = key();
http_post('/size?op=warm&n=20000', 'x', key());
$::redis->command('FLUSHALL');

my $c = send_post('/size?op=a&n=20000&hold=1', 'x', $key);
app_wait_parked('a');
my $w = send_post('/size?op=a&n=20000&hold=1', 'x', $key);
ok(wait_for(sub { $::redis->record(record())->{q} }), 'who is marked');
$::redis->reset_calls;
app_release('a');

is(length $c->read_response->body, 20000, 'ran');
is(length $w->read_response->body, 20000, 'a waiter');
is($::redis->calls->{set}, $::redis->knows('IFEQ') ? 2 : 1, 'written');
is($::redis->calls->{publish}, 1, 'published');
is(length http_post('/size?op=a&n=20000&hold=1', 'x', $key)->body, 20000, 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 32: the reply to a commit is lost
--- store: redis
--- client
for my $n (10, 20000) {
    $::redis->command('FLUSHALL');

    my $key = key();
    my $c = send_post("/far/size?op=a$n&n=$n&hold=1", 'x', $key);
    app_wait_parked("a$n");

    # replies to connections that are being made are not the ones to lose
    settled($::redis);

    $::redis->reset_calls;
    $::proxy->tell('lose');
    app_release("a$n");
    is(length $c->read_response->body, $n, 'answered');
    is($::redis->calls->{set}, 1, 'it was written');
    my $calls = $::redis->commands;
    is(($calls->{eval} || 0) + ($calls->{evalsha} || 0),
       $::redis->knows('IFEQ') ? 1 : 2, 'and asked again');

    my $r = http_post("/far/size?op=a$n&n=$n&hold=1", 'x', $key);
    is($r->header('Idempotent-Replayed'), 'true', 'replayed');
    is(length $r->body, $n, 'whole');
    is(app_count("a$n"), 1, 'ran once');
    error_log_unlike(qr/failed: |was not stored/, 'the commit succeeded');
}



=== TEST 33: the memory is full when a large response is committed
--- store: redis
--- client
my $key = key();
my $c = send_post('/size?op=a&n=20000&hold=1', 'x', $key);
app_wait_parked('a');

my $name = record();
$::redis->command('CONFIG', 'SET', 'maxmemory', 1);
app_release('a');
is(length $c->read_response->body, 20000, 'the client has its response');
is(http_post('/size?op=a&n=20000&hold=1', 'x', $key)->error_code,
   'RESPONSE_NOT_KEPT', 'a retry is told so');
is($::redis->record($name)->{s}, 3, 'the record says that it ran');
is($::redis->record($name)->{b}, '', 'and has no response');
is(app_count('a'), 1, 'ran once');
$::redis->command('CONFIG', 'SET', 'maxmemory', 0);



=== TEST 34: a commit, and the record is somebody else's by now
--- store: redis
--- client
http_post('/ok?op=warm', 'x', key());

for my $n (10, 20000) {
    for my $state (1, 2) {
        $::redis->command('FLUSHALL');

        my $op = "s$state-$n";
        my $c = send_post("/size?op=$op&n=$n&hold=1", 'x', key());
        app_wait_parked($op);

        my $name = record();
        my $other = { %{ $::redis->record($name) }, s => $state, t => 'x' x 16,
                      b => $state == 2 ? 'theirs' : '', g => 1000 };
        $::redis->write_record($name, $other, 50_000);

        $::redis->reset_calls;
        app_release($op);
        is(length $c->read_response->body, $n, 'the client has its response');
        cmp_ok($::redis->round_trips, '>', 0, 'it was tried');
        is_deeply($::redis->record($name), $other, 'the record is as it was');
        cmp_ok($::redis->command('PTTL', $name), '<=', 50_000,
               'nor is its life another');
    }
}

is(scalar(() = error_log() =~ /the lock had been lost to another request/g), 4,
   'each was told that it lost');



=== TEST 35: a commit, and the record is gone
--- store: redis
--- client
for my $n (10, 20000) {
    my $key = key();
    my $c = send_post("/size?op=a$n&n=$n&hold=1", 'x', $key);
    app_wait_parked("a$n");
    $::redis->command('FLUSHALL');
    app_release("a$n");
    is(length $c->read_response->body, $n, 'answered');
    is(length http_post("/size?op=a$n&n=$n&hold=1", 'x', $key)->body, $n,
       'replayed');
    is(app_count("a$n"), 1, 'ran once');
    cmp_ok($::redis->command('PTTL', record()), '>', 3_590_000, 'for its ttl');
}



=== TEST 36: a begin that comes late, behind the commit of another
--- store: redis
--- client
my $key = key();
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');

return pass('it would be a script') if !$::redis->knows('NX GET');

my $name = record();
my $lock = $::redis->packed({ %{ $::redis->record($name) }, s => 1, b => '' });
isnt($::redis->command('SET', $name, $lock, 'NX', 'GET', 'PX', 1000), undef,
     'something is there');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'and stays');
is(app_count('a'), 1, 'ran once');



=== TEST 37: a lock that is taken over keeps that others wait
--- store: redis
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');

my $name = record();
my $gone = { %{ $::redis->record($name) }, t => 'x' x 16, q => 1, g => 100_000 };
$::redis->write_record($name, $gone, 50_000);

my $w = send_post('/hold?op=a', 'x', $key);
ok(wait_for(sub { $::redis->record($name)->{t} ne $gone->{t} }), 'taken over');
is($::redis->record($name)->{s}, 1, 'in progress');
is($::redis->record($name)->{q}, 1, 'somebody waits');
ok(wait_for(sub { app_count('a') == 2 }), 'it runs');
app_release('a');



=== TEST 38: under hold a begin that comes after its own release leaves no lock
--- store: redis
--- client
http_post('/far/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');
$::proxy->tell('hold');
my $key = key();
my $c = send_post('/held/ok?op=a', 'x', $key);
ok(wait_for(sub { record() }, 5), 'the lock is laid, nobody knows');
my $name = record();
my $lock = $::redis->command('DUMP', $name);
$c->abort;
ok(wait_for(sub { !record() }, 5), 'it is given back');
$::proxy->tell('pass');

# as if the begin had been under way all the time
$::redis->command('RESTORE', $name, 3_600_000, $lock);
ok(wait_for(sub { !record() }, 12), 'once more');
is(app_count('a'), 0, 'did not run');
is(http_post('/held/ok?op=a', 'x', $key)->body, "run 1\n", 'and can');
sleep 1;
is(http_post('/held/ok?op=a', 'x', $key)->body, "run 1\n", 'others are not touched');



=== TEST 39: a large commit that is never taken: given up in the middle of it
--- store: redis
--- client
my $n = 12_000_000;
my $key = key();
my $r = run_told('deaf', "/slow/size?op=a&n=$n", $key);

ok($r->body eq body_of($n), 'the client has its response, whole');
error_log_like(qr/commit in store "slow" failed: no reply in time/,
               'the commit had its time');
is(http_post("/slow/size?op=a&n=$n&hold=1", 'x', $key)->error_code,
   'RESPONSE_NOT_KEPT', 'a retry does not run: the outbox knows that it ran');

$::proxy->tell('cut');
is(http_post('/slow/ok?op=b', 'x', key())->body, "run 1\n",
   'others run again');
is(app_count('a'), 1, 'ran once');



=== TEST 40: a large commit is answered before it is sent: what is left of it is
--- store: redis
--- client_timeout: 120
--- client
for my $n (60_000, map { 500_000 * $_ } 2 .. 8) {
    my $key = key();
    my $r = run_told('early', "/slow/size?op=a$n&n=$n", $key);
    ok($r->body eq body_of($n), "$n: the client has its response, whole");

    # the memory of that response is somebody else's now
    http_post('/plain/ok', 'z' x $_) for $n, $n + 200;
    $::proxy->tell('pass');

    # by what is left of the command; where that is long, by the outbox only
    ok(wait_for(sub {
        my $log = error_log();
        (() = $log =~ /kept here and tried again/g)
            == (() = $log =~ /that was kept is in store/g)
    }, 40), 'it is in the store');

    my $again = http_post("/slow/size?op=a$n&n=$n&hold=1", 'x', $key);
    is($again->header('Idempotent-Replayed'), 'true', 'replayed');
    ok($again->body eq body_of($n), 'whole');
    is(app_count("a$n"), 1, 'ran once');
}



=== TEST 41: many large ones at a time, each with its own bytes
--- store: redis
--- http_config eval: $::stores =~ s/(PROXY_PORT;)/$1 timeout 60s;/r
--- client
my @n = map { 20_000 + 150_001 * $_ } 0 .. 12;
my %key = map { $_ => key() } @n;

for my $what ('ran', 'replayed') {
    my @c = map { [ $_, send_post("/far/size?op=a$_&n=$_", 'x', $key{$_}) ] } @n;
    my @wrong = grep { $_->[1]->read_response(30)->body ne body_of($_->[0]) } @c;
    is(join(' ', map { $_->[0] } @wrong), '', "$what, whole");
}

is(scalar(grep { app_count("a$_") != 1 } @n), 0, 'once each');



=== TEST 42: the clock of the server is set back: a dead holder's lease still ends
Keys then live longer by as much.
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
for my $state (1, 3) {
    my $key = key();
    my $c = send_post("/short/hold?op=a$state", 'x', $key);
    app_wait_parked("a$state");

    my $name = record();
    my $lock = $::redis->record($name);
    my $life = $::redis->command('PTTL', $name);
    app_release("a$state");
    is($c->read_response->status, 200, 'it ran');

    # as if its holder had died, or had left an unknown outcome
    $::redis->write_record($name, { %$lock, s => $state, r => $state == 3 ? 1 : 0,
                                    t => 'x' x 16, b => '' }, $life + 3_600_000);

    my $again;
    ok(wait_for(sub {
        $again = send_post("/short/hold?op=a$state", 'x', $key);
        wait_for(sub { app_parked("a$state") || $again->read_response(0.05) });
        return app_parked("a$state");
    }), 'after a lease it runs again');
    app_release("a$state");
    is($again->read_response->body, "run 2\n", 'to its end');
    $::redis->command('FLUSHALL');
}

# another lifetime than ours: nothing is known of its lease

my $key = key();
my $c = send_post('/short/hold?op=b', 'x', $key);
app_wait_parked('b');
my $name = record();
my $lock = $::redis->record($name);
app_release('b');
$c->read_response;
$::redis->write_record($name, { %$lock, t => 'x' x 16, b => '', g => 90_000_000 },
                       93_600_000);
my $w = send_post('/short/hold?op=b', 'x', $key);
ok(!$w->read_response(1.5), 'a lock of another kind is waited for');
cmp_ok($::redis->command('PTTL', $name), '>', 93_000_000, 'as long as it says');
is(app_count('b'), 1, 'ran once');



=== TEST 43: a lock that somebody has written to: the commit of its holder is whole
--- store: redis
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my $n = 0;

for my $change (sub { $::redis->command('APPEND', $_[0], 'more') },
                sub { $::redis->command('SETRANGE', $_[0], 112, "\1") },
                sub { $::redis->command('SET', $_[0], substr($_[1], 0, 60), 'KEEPTTL') })
{
    my $op = 'a' . $n++;
    my $key = key();

    $::redis->command('FLUSHALL');
    my $c = send_post("/hold?op=$op", 'x', $key);
    app_wait_parked($op);
    my $name = record();
    $change->($name, $::redis->command('GET', $name));
    app_release($op);
    is($c->read_response->body, "run 1\n", 'it ran');
    is(http_post("/hold?op=$op", 'x', $key)->body, "run 1\n", 'and is replayed');
    is(app_count($op), 1, 'ran once');
}



=== TEST 44: a response with headers that this module does not store
Somebody else has written it, with a valid check sum.
--- http_config eval: $::stores
--- config eval: $::locations
--- store: redis
--- client
use Compress::Raw::Zlib qw(adler32);

my $key = key();
http_post('/ok?op=a', 'x', $key);

my $name = record();
my $good = $::redis->record($name);

my @strange = ([ 'Content-Length' => 3 ], [ 'Transfer-Encoding' => 'chunked' ],
               [ Connection => 'close' ], [ Upgrade => 'x' ],
               [ 'X-Fine' => 'yes' ]);

my $length = unpack('x28 N', $good->{b});
my $body = substr($good->{b}, $length);
my $head = substr($good->{b}, 0, $length)
           . join('', map { pack('C n N a* a*', 0, length($_->[0]),
                                 length($_->[1]), @$_) } @strange);

substr($head, 10, 2) = pack('n', unpack('x10 n', $head) + @strange);
substr($head, 28, 4) = pack('N', length $head);

my $sum = adler32(substr($head, 0, 4) . substr($head, 8));
substr($head, 4, 4) = pack('N', adler32(pack('N', adler32($body)), $sum));

$::redis->command('DEL', $name);
$::redis->write_record($name, { %$good, b => $head . $body }, 100_000);

my $r = http_post('/ok?op=a', 'x', $key);

is($r->header('Idempotent-Replayed'), 'true', 'replayed');
is($r->body, "run 1\n", 'whole');
is($r->header('X-Fine'), 'yes', 'with its headers');
is(join(' ', $r->header('Content-Length')), 6, 'one length');
is($r->header('Transfer-Encoding'), undef, 'no coding');
is($r->header('Upgrade'), undef, 'no other protocol');
unlike($r->header('Connection') || '', qr/close.*close/, 'one connection');



=== TEST 45: a master that became a replica, and its address leads to another
What is before it, a proxy or a name, follows the failover; connections that are
open stay where they are.
--- store: redis
--- client
my $next = start_redis();

# a replica that lost its master says READONLY, or MASTERDOWN

for my $stale ('yes', 'no') {
    $::redis->command('CONFIG', 'SET', 'replica-serve-stale-data', $stale);
    is(http_post('/far/ok?op=a', 'x', key())->status, 200, 'ran');
    sleep 1.1;

    $::redis->command('REPLICAOF', '127.0.0.1', $ENV{TEST_NGINX_DEAD_PORT});
    $::proxy->tell("lead $next->{port}");

    ok(wait_for(sub { http_post("/far/ok?op=$stale", 'x', key())->status == 200 }, 10),
       'the next one is asked');
    is(app_count($stale), 1, 'ran once');
    cmp_ok(scalar(() = $next->keys), '>', 0, 'and has the record');

    $::redis->command('REPLICAOF', 'NO', 'ONE');
    $::proxy->tell("lead $::redis->{port}");
    $::proxy->tell('cut');
    $next->command('FLUSHALL');
}

$::redis->command('CONFIG', 'SET', 'replica-serve-stale-data', 'yes');
$next->stop;



=== TEST 46: a replica for good is not connected to again and again
--- store: redis
--- client
is(http_post('/ok?op=a', 'x', key())->status, 200, 'ran');

$::redis->command('REPLICAOF', '127.0.0.1', $ENV{TEST_NGINX_DEAD_PORT});
my $connections = sub {
    ($::redis->command('INFO', 'stats') =~ /total_connections_received:(\d+)/)[0];
};
my ($before, $start, $asked) = ($connections->(), time, 0);

while (time - $start < 3) {
    is(http_post('/ok?op=b', 'x', key())->status, 503, 'refused') for 1 .. 5;
    $asked += 5;
    sleep 0.1;
}

cmp_ok($connections->() - $before, '<', 12, "few for $asked requests");
is(app_count('b'), 0, 'none ran');



=== TEST 47: ... and waiters listen to the next one
--- store: redis
--- client
my $next = start_redis();

my $waits = sub {
    my ($op, $server) = @_;

    my $key = key();
    my $c = send_post("/far/hold?op=$op", 'x', $key);
    app_wait_parked($op);
    my $w = send_post("/far/hold?op=$op", 'x', $key);

    ok(wait_for(sub { $server->command(qw(CLIENT LIST TYPE pubsub)) =~ /sub=1/ }, 5),
       'it listens');
    app_release($op);
    is($_->read_response->body, "run 1\n", 'answered') for $c, $w;
};

$waits->('a', $::redis);
sleep 1.1;

$::redis->command('REPLICAOF', '127.0.0.1', $ENV{TEST_NGINX_DEAD_PORT});
$::proxy->tell("lead $next->{port}");

ok(wait_for(sub { http_post('/far/ok?op=b', 'x', key())->status == 200 }, 10),
   'the next one is asked');
$waits->('c', $next);

$::proxy->tell("lead $::redis->{port}");
$::proxy->tell('cut');
$next->stop;
