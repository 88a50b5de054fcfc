# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A store that lost the locks of requests that still run: Redis was flushed or
# restarted empty, or a replica without them became the master.  Holders lay
# their locks anew, at once where a connection broke, and those that wait for
# them give them the time to; but a record that was given back lets a waiter
# run without delay.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($redis, $set, $cluster);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
}

add_block_preprocessor(sub {
    return if !$redis;

    $redis->spawn if $redis->{stopped};
    $redis->command('FLUSHALL');
});

our $http = <<'_EOC_';
    idempotency_store own redis {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        connect_timeout  5s;
        timeout          5s;
    }
_EOC_

our $server = <<'_EOC_';
    idempotency_lease  30s;
    idempotency_wait   60s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# one that runs and one that waits, of each of so many keys, on this host and
# on that

our (%key, @holders, @waiters);

sub hold_and_wait
{
    my ($n, @ports) = @_;

    @ports = ($port) if !@ports;
    %key = ();

    for my $op (map { "k$_" } 1 .. $n) {
        $key{$op} = { 'Idempotency-Key' => new_key() };
        push @holders, send_post("/hold?op=$op", 'x', $key{$op},
                                 port => $ports[0]);
    }

    app_wait_parked($_) for keys %key;
    @waiters = map { send_post("/hold?op=$_", 'x', $key{$_},
                               port => $ports[-1]) } sort keys %key;
}

# all records say that somebody waits

sub wait_marked
{
    my ($n, @servers) = @_;

    wait_for(sub {
        $n == grep { $_->{q} } map { my $s = $_; map { $s->record($_) }
                                     $s->keys('idempotency:*') } @servers;
    }, 20) or die "they do not wait\n";
}

sub judge
{
    my @twice = grep { app_count($_) != 1 } sort keys %key;

    diag(sprintf '%d of %d ran twice', scalar @twice, scalar keys %key);
    is_deeply(\@twice, [], 'none ran twice');
    app_release($_) for keys %key;
    is(scalar(grep { my $r = $_->read_response(20);
                     $r && $r->body eq "run 1\n" } @holders, @waiters),
       2 * keys %key, 'all have the one answer');
    is_deeply([ grep { app_count($_) != 1 } sort keys %key ], [],
              'nor after that');
    @holders = ();
}

# the replicas forget what they have, and become masters

sub forget
{
    for my $replica (@_) {
        $replica->command('CONFIG', 'SET', 'replica-read-only', 'no');
        $replica->command('FLUSHALL');
    }
}

every_block(
    http_config => $http,
    config      => $server,
);

run_tests();

__DATA__

=== TEST 1: Redis was flushed
--- store: redis
--- workers: 2
--- config eval: $::server =~ s/_lease  30s/_lease 4s/r
--- client_timeout: 60
--- client
hold_and_wait(5);
wait_marked(5, $::redis);
$::redis->command('FLUSHALL');

ok(wait_for(sub { 5 == grep { 1 } $::redis->keys('idempotency:*') }, 10),
   'the locks are laid anew');
sleep(2);
error_log_like(qr/\[warn\] .*store "own" lost the record of a request that may still run/, 'told');
judge();



=== TEST 2: Redis is restarted empty, and the leases are long
--- store: redis
--- client_timeout: 90
--- client
my $other = start_host();
hold_and_wait(10, $port, $other->{port});
wait_marked(10, $::redis);
$::redis->restart('KILL');

# that is before a renewal is due
ok(wait_for(sub { 10 == grep { 1 } $::redis->keys('idempotency:*') }, 6),
   'the locks are laid anew at once');
is(http_post('/ok?op=new', 'x', { 'Idempotency-Key' => new_key() })->status,
   200, 'others run');
my @late = map { send_post("/hold?op=$_", 'x', $::key{$_}) } sort keys %::key;
sleep(3);
push @::waiters, @late;
is_deeply([ grep { app_count($_) != 1 } sort keys %::key ], [],
          'nor do retries');
app_release($_) for keys %::key;
is(scalar(grep { my $r = $_->read_response(20); $r && $r->body eq "run 1\n" }
          @::holders, @::waiters), 30, 'all have the one answer');
@::holders = ();
ok($other->stop, 'the other leaves');



=== TEST 3: a record that is given back lets one of the waiters run at once
--- store: redis
--- workers: 2
--- client_timeout: 60
--- client
my $key = { 'Idempotency-Key' => new_key() };
my $uri = '/status/503?op=r&hold=1';
my $c = send_post($uri, 'x', $key);
app_wait_parked('r');
my @w = map { send_post($uri, 'x', $key) } 1 .. 3;
wait_marked(1, $::redis);

for my $n (2 .. 4) {
    app_release('r');
    is(app_wait('r', $n, 5), $n, "run $n");
}

app_release('r');
is($_->read_response->status, 503, 'answered') for $c, @w;
is(app_count('r'), 4, 'each ran');
ok(wait_for(sub { !grep { 1 } $::redis->keys('idempotency:*') }, 10),
   'nothing is left of it');
error_log_unlike(qr/lost the record/, 'nothing was lost');



=== TEST 4: ... whenever that is
The waiters come at any time before it is given back, the first of them while
there is no subscriber yet.
--- store: redis
--- workers: 2
--- client_timeout: 90
--- client
my @c;
for my $n (1 .. 40) {
    my $key = { 'Idempotency-Key' => new_key() };
    push @c, map { send_post("/status/503?op=g$n&ms=" . $n % 8, 'x', $key) }
             1 .. 3;
}

# nobody is put off until a renewal would be due
my $start = Time::HiRes::time();
is(scalar(grep { my $r = $_->read_response(30); $r && $r->status == 503 } @c),
   120, 'all are answered');
cmp_ok(Time::HiRes::time() - $start, '<', 9, 'and none waited for a renewal');
is(scalar(grep { app_count("g$_") == 3 } 1 .. 40), 40, 'each ran');
error_log_unlike(qr/lost the record/, 'nothing was lost');



=== TEST 5: another request may use the key of one that was given back
--- store: redis
--- client
my $key = { 'Idempotency-Key' => new_key() };
my $c = send_post('/status/503?op=f&hold=1', 'x', $key);
app_wait_parked('f');
my $w = send_post('/status/503?op=f&hold=1', 'x', $key);
wait_marked(1, $::redis);
$w->abort;
app_release('f');
is($c->read_response->status, 503, 'it was not kept');
is(http_post('/ok?op=f2', 'y', $key)->body, "run 1\n", 'another runs');
is(http_post('/ok?op=f2', 'y', $key)->body, "run 1\n", 'and is kept');



=== TEST 6: the holder is gone, and the record, too
--- store: redis
--- workers: 2
--- config eval: $::server =~ s/_lease  30s/_lease 3s/r
--- client_timeout: 60
--- client
my $other = start_host();
hold_and_wait(1, $other->{port}, $port);
wait_marked(1, $::redis);
kill KILL => $other->{pid}, IdempotencyTest::children($other->{pid});
$other->{pid} = 0;
$::redis->command('FLUSHALL');
is(app_wait('k1', 2, 10), 2, 'the waiter runs in the end');
app_release('k1');
is($::waiters[0]->read_response(10)->body, "run 2\n", 'and is answered');
@::holders = ();



=== TEST 7: a replica that lost them becomes the master, by the sentinels' word
--- store: redis
--- http_config
    idempotency_store own redis {
        sentinel         127.0.0.1:1 master=main;
        connect_timeout  2s;
        timeout          20s;
    }
--- client_timeout: 120
--- client
$::set = start_sentinels();
edit_config(sub { my $list = join ' ', $::set->servers;
                  s/127\.0\.0\.1:1 master/$list master/ });
nginx_reload() or die "no reload\n";
my $other = start_host();

hold_and_wait(20, $port, $other->{port});
my $old = $::set->master;
wait_marked(20, $old);
main::forget(grep { $_ != $old } $::set->nodes);
$old->kill_it;
my $new = $::set->wait_failed_over($old);

# that is before a renewal is due
ok(wait_for(sub { 20 == grep { 1 } $new->keys('idempotency:*') }, 9),
   'the locks are laid anew');
sleep(2);
judge();
ok($other->stop, 'the other leaves');
$::set->stop;



=== TEST 8: ... of a cluster
--- store: redis
--- http_config
    idempotency_store own redis {
        server           127.0.0.1:1;
        cluster          on;
        connect_timeout  2s;
        timeout          20s;
    }
--- client_timeout: 120
--- client
$::cluster = start_cluster();
edit_config(sub { my $list = join ' ', $::cluster->servers;
                  s/127\.0\.0\.1:1;/$list;/ });
nginx_reload() or die "no reload\n";
my $other = start_host();

hold_and_wait(20, $port, $other->{port});
my @masters = $::cluster->masters;
wait_marked(20, @masters);
my ($old) = sort { @{[ $b->keys('idempotency:*') ]}
                   <=> @{[ $a->keys('idempotency:*') ]} } @masters;
my $n = () = $old->keys('idempotency:*');
my $new = $::cluster->replica_of($old);
main::forget($new);
$old->kill_it;
$::cluster->wait_promoted($new);

ok(wait_for(sub { $n == grep { 1 } $new->keys('idempotency:*') }, 9),
   "the $n locks are laid anew");
sleep(2);
judge();
ok($other->stop, 'the other leaves');
$::cluster->stop;



=== TEST 9: the new master has the lock of an earlier holder
That one's lease is over; the holder took over from it on the old master, which
the new one did not learn, and still runs.  Its waiter is told so at once.
--- store: redis
--- client_timeout: 60
--- client
my $other = start_host();
hold_and_wait(1, $other->{port}, $port);
wait_marked(1, $::redis);

my ($name) = $::redis->keys('idempotency:*');
my $lock = $::redis->record($name);

# the clocks of an earlier one: 1 s less than what is left after a lease
$::redis->write_record($name, { %$lock, t => 'x' x 16 }, $lock->{g} - 1000);
$::redis->command('CLIENT', 'KILL', 'TYPE', 'pubsub');

error_log_like(qr/lost the record of a request that may still run/,
               'the waiter looked, and holds back', 10);
sleep(1);
is(app_count('k1'), 1, 'it does not run');
ok(wait_for(sub { $::redis->record($name)->{t} eq $lock->{t} }, 20),
   'the holder takes its lock back');
sleep(1);
judge();
ok($other->stop, 'the other leaves');



=== TEST 10: the lease of the holder is longer than that of the waiter
--- store: redis
--- config
    idempotency_lease  $http_x_lease;
    idempotency_wait   60s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $holder = send_post('/hold?op=a', 'x', { %key, 'X-Lease' => '30s' });
app_wait_parked('a');
my $waiter = send_post('/hold?op=a', 'x', { %key, 'X-Lease' => '1s' });
wait_marked(1, $::redis);

$::redis->command('FLUSHALL');
error_log_like(qr/lost the record of a request/, 'the waiter found it lost');
is(app_wait('a', 2, 3), 0, 'it does not run before the holder renews its lease');

app_release('a');
is($holder->read_response->body, "run 1\n", 'the holder is answered');
is($waiter->read_response->body, "run 1\n", 'and so is the waiter');
is(app_count('a'), 1, 'ran once');
