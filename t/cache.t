# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Completed records of a store that is elsewhere are kept in this nginx for a
# while: a replay then costs no round trip, and works while the store is away.
# Never longer than the record lives, and nothing that could still change.

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
        $redis->spawn if $redis->{stopped};
        $redis->command('FLUSHALL');
    }
});

# one store with a cache, and the same without, as another host would have it

sub stores
{
    my ($cache) = @_;

    return "idempotency_store shared \$TEST_REMOTE {
        server 127.0.0.1:\$TEST_NGINX_OWN_PORT;
        $cache
    }
    idempotency_store bare \$TEST_REMOTE { server 127.0.0.1:\$TEST_NGINX_OWN_PORT; }
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT_2;
        server_name localhost;
        location / {
            idempotency  bare;
            proxy_pass   http://127.0.0.1:\$TEST_NGINX_APP_PORT;
        }
    }";
}

our $location = <<'_EOC_';
    idempotency_max_response  256k;
    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency      shared;
        idempotency_ttl  2s;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /small/ {
        idempotency               shared;
        idempotency_max_response  1k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# round trips of a piece of code

sub trips
{
    my ($code) = @_;

    $redis->reset_calls;
    $code->();
    return $redis->round_trips;
}

run_tests();

__DATA__

=== TEST 1: what was committed here
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
http_post('/ok?op=warm', 'x', key());

my ($key, $first, $retry) = key();
is(trips(sub { $first = http_post('/headers?op=a', 'x', $key) }), 2,
   'begin and commit');
is(trips(sub { $retry = http_post('/headers?op=a', 'x', $key) }), 0,
   'no round trip');
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
is($retry->body, $first->body, 'same body');
is($retry->header_lines(qw(Date Connection Idempotent-Replayed
                           X-Original-Request-Time)),
   $first->header_lines(qw(Date Connection)), 'same headers');

my $other;
is(trips(sub { $other = http_post('/headers?op=a', 'y', $key) }), 0,
   'nor for another request');
is($other->error_code, 'IDEMPOTENCY_CONFLICT', 'which is a conflict');

is(trips(sub { $other = http_post('/headers?op=a', 'x',
                            { %$key, Authorization => 'Basic eDp4' }) }), 0,
   'nor for somebody else');
is($other->error_code, 'IDEMPOTENCY_CONFLICT', 'which is one, too');
is(app_count('a'), 1, 'ran once');



=== TEST 2: what another host committed
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my ($key, $r) = key();
http_post('/size?n=20000&op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
http_post('/ok?op=warm', 'x', key());

is(trips(sub { $r = http_post('/size?n=20000&op=a', 'x', $key) }), 1, 'found');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');
my $body = $r->body;

is(trips(sub { $r = http_post('/size?n=20000&op=a', 'x', $key) }), 0, 'kept');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');
ok($r->body eq $body, 'the same bytes');
is(app_count('a'), 1, 'ran once');



=== TEST 3: while the store is away
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key);
$::redis->kill_it;

my $r = http_post('/ok?op=a', 'x', $key);
is($r->body, "run 1\n", 'replayed');
is($r->header('Idempotent-Replayed'), 'true', 'it says so');
is(http_post('/ok?op=b', 'x', key())->status, 503, 'others are refused');



=== TEST 4: not longer than its ttl
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=4s;')
--- config eval: $::location
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key);
is(trips(sub { http_post('/ok?op=a', 'x', $key) }), 0, 'here');
sleep 4.1;
is(trips(sub { http_post('/ok?op=a', 'x', $key) }), 1, 'asked again');
is(trips(sub { http_post('/ok?op=a', 'x', $key) }), 0, 'and here again');
is(app_count('a'), 1, 'ran once');



=== TEST 5: not longer than the record lives, whoever committed it
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my $key = key();
http_post('/brief/ok?op=a', 'x', $key);
is(http_post('/brief/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
sleep 2.1;
is(http_post('/brief/ok?op=a', 'x', $key)->body, "run 2\n", 'runs again');

# found, with a part of its life over
my $found = key();
http_post('/ok?op=b', 'x', $found, port => $ENV{TEST_NGINX_PORT_2});
my ($name) = grep { $::redis->command('PTTL', $_) > 10_000 } $::redis->keys;
$::redis->command('PEXPIRE', $name, 3000);
is(http_post('/ok?op=b', 'x', $found)->body, "run 1\n", 'found');
$::redis->command('PERSIST', $name);
is(http_post('/ok?op=b', 'x', $found)->body, "run 1\n", 'here');
$::redis->command('DEL', $name);
sleep 3.1;
is(http_post('/ok?op=b', 'x', $found)->body, "run 2\n", 'its life is over');



=== TEST 6: what has no response is asked for
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my ($key, $r) = key();
is(http_post('/small/size?n=5000&op=a', 'x', $key)->status, 200, 'ran');

# its client does not wait for the commit
my ($name) = $::redis->keys;
wait_for(sub { $::redis->record($name)->{s} == 3 });
for (1 .. 2) {
    is(trips(sub { $r = http_post('/small/size?n=5000&op=a', 'x', $key) }), 1,
       'asked');
    is($r->error_code, 'RESPONSE_TOO_LARGE', 'told why');
}



=== TEST 7: what has to give way is forgotten, and the store has it
--- store: redis postgres
--- http_config eval: main::stores('cache hot:128k ttl=30s;')
--- config eval: $::location
--- client
my @keys = map { key() } 1 .. 60;
http_post("/size?n=4000&op=a$_", 'x', $keys[$_]) for 0 .. $#keys;

my ($right, $trips) = (0, 0);
for my $n (0 .. $#keys) {
    my $r;
    $trips += trips(sub {
        $r = http_post("/size?n=4000&op=a$n", 'x', $keys[$n]);
    });
    $right++ if $r->status == 200 && $r->header('Idempotent-Replayed');
}
is($right, 60, 'all replayed');
cmp_ok($trips, '>', 20, "most of them not from here ($trips)");
is(trips(sub { http_post('/size?n=4000&op=a59', 'x', $keys[59]) }), 0,
   'but the last is');

my ($key, $r) = key();
http_post('/size?n=100000&op=big', 'x', $key);
is(trips(sub { $r = http_post('/size?n=100000&op=big', 'x', $key) }), 1,
   'one that is too large for it');
is(length $r->body, 100000, 'is replayed all the same');
is(trips(sub { http_post('/size?n=4000&op=a59', 'x', $keys[59]) }), 0,
   'and takes no place');



=== TEST 8: one for all workers, over a reload and a killed worker
--- store: redis postgres
--- workers: 4
--- http_config eval: main::stores('cache hot:1m ttl=60s;')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key);
is(trips(sub { http_post('/ok?op=a', 'x', $key) for 1 .. 20 }), 0, 'no trip');

ok(nginx_reload(), 'reloaded');
is(trips(sub { http_post('/ok?op=a', 'x', $key) for 1 .. 20 }), 0, 'none');

kill_worker();
is(trips(sub { http_post('/ok?op=a', 'x', $key) for 1 .. 20 }), 0, 'none');

edit_config(sub { s/hot:1m/hot:2m/ });
ok(nginx_reload(), 'it may be made larger');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 9: a record that is corrupt is no better from here
--- store: redis postgres
--- http_config eval: main::stores('cache hot:1m ttl=30s;')
--- config eval: $::location
--- client
my $key = key();
http_post('/ok?op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
my ($name) = $::redis->keys;
my $record = $::redis->record($name);
substr $record->{b}, -3, 1, 'X';
$::redis->write_record($name, $record, 100_000);

is(http_post('/ok?op=a', 'x', $key)->status, 503, 'refused') for 1 .. 3;
is(app_count('a'), 1, 'ran once');



=== TEST 10: not for the embedded store
--- http_config
    idempotency_store ledger memory { zone a:1m; cache hot:16m; }
--- config
--- must_die
--- error_log
"cache" is of no use in a memory store: its records are in this nginx itself



=== TEST 11: without a size
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; cache hot; }
--- config
--- must_die
--- error_log
invalid zone "hot": it is <name>:<size>



=== TEST 12: a word too many
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE { server 127.0.0.1:1; cache hot:1m 30s; }
--- config
--- must_die
--- error_log
invalid value "30s" in "cache" directive: it is "cache <zone>:<size> [ttl=30s]"



=== TEST 13: one zone for two
--- store: redis postgres
--- http_config
    idempotency_store one $TEST_REMOTE { server 127.0.0.1:1; cache hot:1m; }
    idempotency_store two $TEST_REMOTE { server 127.0.0.1:1; cache hot:1m; }
--- config
--- must_die
--- error_log
zone "hot" is already used by another store
