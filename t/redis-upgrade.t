# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A host of this version beside one of the version before, which kept a record
# as a list: whatever that left in Redis, nothing runs twice.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $redis;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
}

add_block_preprocessor(sub { $redis->command('FLUSHALL') if $redis });

our $store = <<'_EOC_';
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
_EOC_

our $locations = <<'_EOC_';
    idempotency_ttl    1h;
    idempotency_lease  10s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /nowait/ {
        idempotency       own;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /held/ {
        idempotency                  own;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

sub record { ($redis->keys)[0] }

# the record of a request that ran here, as the version before would have it

sub ran_before
{
    my ($uri, $key, $change, $life) = @_;

    is(http_post($uri, 'x', $key)->status, 200, "$uri: ran");

    my $name = record();
    my $f = { %{ $redis->record($name) }, %{ $change || {} } };
    $redis->write_old($name, $f, $life || 100_000);

    is($redis->command('TYPE', $name), 'list', 'a list');
    return $name;
}

every_block(
    http_config => $store,
    config      => $locations,
);

run_tests();

__DATA__

=== TEST 1: what is completed is replayed
--- store: redis
--- client
for my $n (0, 10, 100_000) {
    $::redis->command('FLUSHALL');

    my $key = key();
    my $name = ran_before("/size?op=s$n&n=$n", $key);

    my $r = http_post("/size?op=s$n&n=$n", 'x', $key);
    is($r->header('Idempotent-Replayed'), 'true', 'replayed');
    is(length $r->body, $n, 'whole');
    is($::redis->command('TYPE', $name), 'string', 'it is a string by now');
    my $left = $::redis->command('PTTL', $name);
    cmp_ok($left, '<=', 100_000, 'it lives as long as it would have');
    cmp_ok($left, '>', 50_000, 'and not less');

    is(http_post("/size?op=s$n&n=$n", 'x', $key)->header('Idempotent-Replayed'),
       'true', 'once more');
    is(http_post("/size?op=s$n&n=$n", 'y', $key)->status, 409, 'a conflict');
    is(app_count("s$n"), 1, 'ran once');
}



=== TEST 2: another request under that key is a conflict
--- store: redis
--- client
my $key = key();
ran_before('/ok?op=a', $key);
is(http_post('/ok?op=a', 'y', $key)->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict');
is(app_count('a'), 1, 'ran once');



=== TEST 3: what can't be replayed says so
--- store: redis
--- client
my $key = key();
ran_before('/ok?op=a', $key, { s => 3, r => 4, b => '' });
is(http_post('/ok?op=a', 'x', $key)->error_code, 'RESPONSE_NOT_KEPT', 'says why');
is(app_count('a'), 1, 'ran once');



=== TEST 4: a holder of that version is waited for
--- store: redis
--- client
my $key = key();
my $name = ran_before('/ok?op=a', $key, { s => 1, b => '', g => 40_000 });
my $f = $::redis->command('LRANGE', $name, 0, -1);

is(http_post('/nowait/ok?op=b', 'x', key())->status, 200, 'others run');
is(http_post('/ok?op=a', 'y', $key)->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict');
is_deeply($::redis->command('LRANGE', $name, 0, 1), $f, 'the lock is as it was');

my $w = send_post('/ok?op=a', 'x', $key);
ok(wait_for(sub { $::redis->command('LINDEX', $name, -1) eq 'w' }), 'one waits, and says so');
ok(!$w->read_response(0.5), 'it waits');
is($::redis->command('TYPE', $name), 'list', 'the lock is a list');
is(app_count('a'), 1, 'did not run again');

# that holder is through, as its LINSERT leaves it
my $done = pack 'a2 C3 Q> N a*', 'id', 1, 3, 2, 0, 0, '';
$::redis->command('LINSERT', $name, 'BEFORE', $f->[1], $done);
$::redis->command('PUBLISH', 'idempotency:wake', $name);
is($w->read_response->error_code, 'RESPONSE_TOO_LARGE', 'it has the outcome');
is(app_count('a'), 1, 'ran once');



=== TEST 5: a holder of that version that is gone
--- store: redis
--- client
my $key = key();
my $name = ran_before('/ok?op=a', $key, { s => 1, b => '', g => 200_000 });
is(http_post('/ok?op=a', 'y', $key)->status, 409, 'another request is a conflict');
is(http_post('/ok?op=a', 'x', $key)->body, "run 2\n", 'it is taken over');
is($::redis->record($name)->{s}, 2, 'and completed');
is(http_post('/ok?op=a', 'x', $key)->body, "run 2\n", 'replayed');

# under hold it is not
$key = key();
$::redis->command('FLUSHALL');
ran_before('/held/ok?op=h', $key, { s => 1, b => '', g => 200_000 });
is(http_post('/held/ok?op=h', 'x', $key)->error_code, 'OUTCOME_UNKNOWN', 'nobody knows');
is(app_count('h'), 1, 'ran once');



=== TEST 6: a holder that lost its lock to one of that version
--- store: redis
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $name = record();
$::redis->write_old($name, { %{ $::redis->record($name) }, t => 'o' x 16, g => 1000 },
                    60_000);
my $was = $::redis->command('LRANGE', $name, 0, -1);

app_release('a');
is($c->read_response->body, "run 1\n", 'the client has its response');
is_deeply($::redis->command('LRANGE', $name, 0, -1), $was, 'the record is as it was');
