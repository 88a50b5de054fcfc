# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Workers that leave, in order or not, while something of theirs is under way
# in Redis.  That none leaves a socket open is looked at after every block.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($redis, $proxy);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $proxy = start_redis_proxy($redis);

    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    if ($redis) {
        $redis->spawn if $redis->{stopped};
        $redis->resume;
        $redis->command('FLUSHALL');
        $proxy->tell('cut');
    }
});

our $store = <<'_EOC_';
    idempotency_store far redis {
        server   127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout  5s;
    }
_EOC_

our $locations = <<'_EOC_';
    location / {
        idempotency        far;
        idempotency_lease  2s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

sub record { my ($name) = $redis->keys; return $name }

# the old worker is gone; how long that took

sub left
{
    my ($pid, $timeout) = @_;

    my $start = Time::HiRes::time();
    ok(wait_for(sub { !kill 0, $pid }, $timeout), 'the old worker left');
    return Time::HiRes::time() - $start;
}

every_block(
    http_config => $store,
    config      => $locations,
);

run_tests();

__DATA__

=== TEST 1: idle connections keep no worker
--- store: redis
--- client
http_post('/ok?op=a', 'x', key());

# the subscriber, too
my $key = key();
my $c = send_post('/hold?op=w', 'x', $key);
app_wait_parked('w');
my $w = send_post('/hold?op=w', 'x', $key);
sleep 0.3;
app_release('w');
$_->read_response, $_->abort for $c, $w;

my ($old) = nginx_workers();
ok(nginx_reload(), 'reload');
cmp_ok(left($old, 5), '<', 1 + grace(), 'at once');
is(http_post('/ok?op=b', 'x', key())->status, 200, 'the new one serves');



=== TEST 2: a begin is under way
--- store: redis
--- client
http_post('/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');

my ($old) = nginx_workers();
my $key = key();

$::redis->pause;
my $c = send_post('/ok?op=a', 'x', $key);
sleep 0.2;
ok(nginx_reload(), 'reload');
sleep 0.5;
ok(kill(0, $old), 'the old worker stays');
$::redis->resume;

is($c->read_response->body, "run 1\n", 'its request ran');
$c->abort;
left($old, 5);
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed by the new');
is(app_count('a'), 1, 'ran once');



=== TEST 3: a commit is under way
--- store: redis
--- client
my ($old) = nginx_workers();
my $key = key();

my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
ok(nginx_reload(), 'reload');
$::redis->pause;
app_release('a');
sleep 0.5;
ok(kill(0, $old), 'the old worker stays');
is($c->read_response(0.1), undef, 'no answer before the commit');
$::redis->resume;

is($c->read_response->body, "run 1\n", 'answered');
$c->abort;
left($old, 5);
is(http_post('/ok?op=a', 'x', $key)->status, 409, 'the record is there');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'and replayed');



=== TEST 4: a release that nobody waits for is under way
--- store: redis
--- client
my ($old) = nginx_workers();

my $c = send_post('/status/503?op=a&hold=1', 'x', key());
app_wait_parked('a');
$::redis->pause;
app_release('a');
is($c->read_response->status, 503, 'answered');
$c->abort;
ok(nginx_reload(), 'reload');
sleep 0.3;
$::redis->resume;
ok(wait_for(sub { !record() }), 'released');
left($old, 5);



=== TEST 5: a waiter is woken in the old worker
--- store: redis
--- client
my ($old) = nginx_workers();
my $key = key();

my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $w = send_post('/hold?op=a', 'x', $key);
sleep 0.3;
ok(nginx_reload(), 'reload');
my $v = send_post('/hold?op=a', 'x', $key);
sleep 0.3;
app_release('a');

is($_->read_response->body, "run 1\n", 'answered') for $c, $w, $v;
is(app_count('a'), 1, 'ran once');
$_->abort for $c, $w, $v;
left($old, 5);



=== TEST 6: told to leave while Redis is frozen
--- store: redis
--- http_config
    idempotency_store far redis { server 127.0.0.1:$TEST_NGINX_PROXY_PORT; }
--- client
http_post('/ok?op=warm', 'x', key());
my ($old) = nginx_workers();

$::redis->pause;
my $c = send_post('/ok?op=a', 'x', key());
sleep 0.2;
ok(nginx_reload(), 'reload');
is($c->read_response->error_code, 'STORE_UNAVAILABLE', 'refused in time');
$c->abort;

# what remains to be undone keeps it a timeout longer, not a lease
cmp_ok(left($old, 10), '<', 3, 'soon');
$::redis->resume;



=== TEST 7: a worker is killed with a begin under way
--- store: redis
--- provokes: exited on signal 9
--- client
http_post('/ok?op=warm', 'x', key());
$::redis->command('FLUSHALL');

my $key = key();
$::proxy->tell('hold');
my $c = send_post('/ok?op=a', 'x', $key);
ok(wait_for(sub { record() }), 'its begin took the lock');
kill_worker();
$::proxy->tell('cut');

my $start = Time::HiRes::time();
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n",
   'a retry runs when the lease is over');
cmp_ok(Time::HiRes::time() - $start, '<', 5 + grace(), 'not later');
is(app_count('a'), 1, 'once');



=== TEST 8: a worker is killed with a commit under way
--- store: redis
--- provokes: exited on signal 9
--- client
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
$::proxy->tell('hold');
app_release('a');
ok(wait_for(sub { $::redis->record(record())->{s} == 2 }),
   'the commit arrived');
kill_worker();
$::proxy->tell('cut');

is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n",
   'replayed');
is(app_count('a'), 1, 'ran once');
