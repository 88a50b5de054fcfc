# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Two nginx instances on one Redis: what one stores the other replays, and a
# commit on one wakes the waiters of both.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $locations = <<'_EOC_';
    idempotency_max_waiters  1000;
    idempotency_wait         60s;
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency        $TEST_STORE;
        idempotency_lease  1s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats {
        idempotency_stats  json;
    }
_EOC_

our $other_port = $ENV{TEST_NGINX_PORT_2};

our ($other, $redis, $proxy);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $proxy = start_redis_proxy($redis);

    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

# the same configuration, another port, another place

sub start_other
{
    my $root = $ENV{TEST_NGINX_SERVROOT};
    my $dir = "$root/html/other";

    mkdir $_ for $dir, "$dir/logs";

    open my $in, '<', "$root/conf/nginx.conf" or die $!;
    local $/;
    my $conf = <$in>;

    $conf =~ s/\Q$root\E/$dir/g;
    $conf =~ s/127\.0\.0\.1:\Q$port\E\b/127.0.0.1:$other_port/g;
    $conf =~ s/127\.0\.0\.1:$proxy->{port}\b/127.0.0.1:$redis->{port}/g;

    open my $out, '>', "$dir/nginx.conf" or die $!;
    print $out $conf;
    close $out;

    system($ENV{TEST_NGINX_BINARY}, '-p', "$dir/", '-c', "$dir/nginx.conf",
           '-e', "$dir/logs/error.log") == 0
        or die "the other nginx does not start\n";

    wait_for(sub { -s "$dir/logs/nginx.pid" });
    open my $pid, '<', "$dir/logs/nginx.pid" or die $!;

    $other = { dir => $dir, pid => <$pid> + 0 };
}

sub stop_other
{
    kill QUIT => $other->{pid};
    ok(wait_for(sub { !kill 0, $other->{pid} or waitpid $other->{pid}, 1 }, 30),
       'the other leaves');

    open my $in, '<', "$other->{dir}/logs/error.log" or die $!;
    local $/;
    unlike(<$in>, qr/\[(?:alert|crit|emerg)\]/, 'and has nothing to say');

    undef $other;
}

# should a test have died before

my $owner = $$;

END { kill TERM => $other->{pid} if $other && $$ == $owner }

sub median { (sort { $a <=> $b } @_)[@_ / 2] }

run_tests();

__DATA__

=== TEST 1: one record for both
--- store: redis
--- config eval: $::locations
--- client
start_other();

my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran here');
my $r = http_post('/ok?op=a', 'x', \%key, port => $::other_port);
is($r->body, "run 1\n", 'replayed there');
is($r->header('Idempotent-Replayed'), 'true', 'really');
is(http_post('/ok?op=a', 'y', \%key, port => $::other_port)->status, 409,
   'another request is a conflict there');
is(app_count('a'), 1, 'ran once');

stop_other();



=== TEST 2: a waiter on the other host is woken at once
--- store: redis
--- config eval: $::locations
--- client
start_other();

my (@late, @asked);

for my $n (1 .. 30) {
    my %key = ('Idempotency-Key' => new_key());

    my $c = send_post("/hold?op=w$n", 'x', \%key);
    app_wait_parked("w$n");
    my $w = send_post("/hold?op=w$n", 'x', \%key, port => $::other_port);

    # it waits: the mark is in the record
    my $redis = bless { port => $ENV{TEST_NGINX_REDIS_PORT} },
                      'IdempotencyTest::Redis';
    wait_for(sub {
        1 == grep { $_->{s} == 1 && $_->{q} }
             map { $redis->record($_) } $redis->keys('idempotency:*');
    }) or die "nobody waits\n";

    app_release("w$n");
    is($c->read_response->status, 200, 'answered') if $n == 1;
    $c->read_response if $n > 1;

    my $start = Time::HiRes::time();
    my $r = $w->read_response;
    push @late, 1000 * (Time::HiRes::time() - $start);

    is($r->body, "run 1\n", 'the waiter') if $n == 1;
    is(app_count("w$n"), 1, 'ran once');

    $start = Time::HiRes::time();
    http_post("/hold?op=w$n", 'x', \%key, port => $::other_port);
    push @asked, 1000 * (Time::HiRes::time() - $start);
}

# on a busy machine everything takes its time: a replay tells how long

my ($median, $replay) = (median(@late), median(@asked));
diag(sprintf 'waiter on the other host after the holder: median %.2f ms, '
             . 'worst %.2f ms; a replay: %.2f ms', $median,
             (sort { $a <=> $b } @late)[-1], $replay);
cmp_ok($median, '<', $replay < 2 ? 10 : 5 * $replay,
       'in under 10 ms, or five replays');

stop_other();



=== TEST 3: a release lets one of them run
--- store: redis
--- config eval: $::locations
--- client
start_other();

my %key = ('Idempotency-Key' => new_key());
my $uri = '/status/503?op=r&hold=1';

my $c = send_post($uri, 'x', \%key);
app_wait_parked('r');

my @w = map { send_post($uri, 'x', \%key,
                        port => $_ % 2 ? $::other_port : $port) } 1 .. 4;
sleep 0.5;

# each turn one more runs, and one only
for my $n (2 .. 5) {
    app_release('r');
    is(app_wait_parked('r', 1), 1, "run $n is there");
    sleep 0.1;
    is(app_count('r'), $n, "and no other");
}

app_release('r');
is($_->read_response->status, 503, 'answered') for $c, @w;

stop_other();



=== TEST 4: the host of the holder dies
--- store: redis
--- config eval: $::locations
--- client
start_other();

my %key = ('Idempotency-Key' => new_key());

send_post('/short/hold?op=d', 'x', \%key, port => $::other_port);
app_wait_parked('d');
my $w = send_post('/short/hold?op=d', 'x', \%key);

kill KILL => $::other->{pid}, IdempotencyTest::children($::other->{pid});

is(app_wait('d', 2, 10), 2, 'its lease ran out, the waiter runs');
app_release('d');
is($w->read_response->body, "run 2\n", 'and is answered');
error_log_like(qr/a lease .*ran out without an outcome/, 'says so');



=== TEST 5: many waiters of many records, on both
--- store: redis
--- config eval: $::locations
--- client_timeout: 120
--- client
start_other();

my ($records, $each) = (50, 10);
my @keys = map { new_key() } 1 .. $records;

my $redis = bless { port => $ENV{TEST_NGINX_REDIS_PORT} },
                  'IdempotencyTest::Redis';

# the first one to wait on a host subscribes: looks until then are not counted

my %first = ('Idempotency-Key' => new_key());
my @first = send_post('/hold?op=first', 'x', \%first);
app_wait_parked('first');
push @first, map { send_post('/hold?op=first', 'x', \%first, port => $_) }
             $port, $::other_port;
ok(wait_for(sub {
    2 == (() = $redis->command('CLIENT', 'LIST') =~ / sub=1 /g)
}, 20), 'both hosts subscribed');
app_release('first');
is($_->read_response->body, "run 1\n", 'answered') for @first;

my @holders = map { send_post("/hold?op=m$_", 'x',
                              { 'Idempotency-Key' => $keys[$_] }) }
              0 .. $#keys;
app_wait_parked("m$_") for 0 .. $#keys;

$redis->reset_calls;
my $start = Time::HiRes::time();

my @w;
for my $n (0 .. $#keys) {
    push @w, map { send_post("/hold?op=m$n", 'x',
                             { 'Idempotency-Key' => $keys[$n] },
                             port => $_ % 2 ? $::other_port : $port) }
             1 .. $each;
}

ok(wait_for(sub {
    my $n = 0;
    $n += http_get('/stats', {}, port => $_)->json->{waiters}
        for $port, $::other_port;
    return $n == $records * $each;
}, 40), 'all wait');

# one begin each, which takes a second round trip, and one watch for each record
# and host; after three quarters of a second at least it looks by itself, which
# is a begin and a watch again

my $asked = $redis->round_trips;
my $looks = 2 * $records
            * (2 + 3 * int((Time::HiRes::time() - $start) / 0.75));

cmp_ok($asked, '<=', 2 * $records * $each + $looks, "asked $asked times");

app_release("m$_") for 0 .. $#keys;

is(scalar(grep { $_->read_response(30)->body eq "run 1\n" } @holders, @w),
   $records * ($each + 1), 'all answered');
is(scalar(grep { app_count("m$_") == 1 } 0 .. $#keys), $records,
   'each ran once');

stop_other();



=== TEST 6: a wake-up that is read together with the reply of its watch
--- store: redis
--- workers: 1
--- http_config
    idempotency_store far redis {
        server       127.0.0.1:$TEST_NGINX_PROXY_PORT;
        connections  1;
        timeout      15s;
    }
--- config
    location / {
        idempotency  far;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
start_other();

# The holder is there and the waiter here.  A waiter that was not woken looks
# by itself after three quarters of a second at least.

my ($worker) = nginx_workers();
my $quickest = 9;

for my $n (0 .. 5) {
    my %key = ('Idempotency-Key' => new_key());

    my $c = send_post("/hold?op=t$n", 'x', \%key, port => $::other_port);
    app_wait_parked("t$n");

    # what begin is told, by plain commands and by its script, but not what the
    # watch is; the first time is for connections, the subscription and scripts

    $::proxy->tell('after 2') if $n;

    my $w = send_post("/hold?op=t$n", 'x', \%key);
    $n ? $::proxy->tell('kept') : sleep 2;

    # the message is there before the reply, and both before they are read

    kill STOP => $worker if $n;
    app_release("t$n");
    my $r = $c->read_response;
    sleep 0.3;
    kill CONT => $worker;

    is($r && $r->body, "run 1\n", 'the holder') or last;

    my $start = Time::HiRes::time();
    $r = $w->read_response;
    is($r && $r->body, "run 1\n", 'the waiter') or last;

    my $late = Time::HiRes::time() - $start;
    $quickest = $late if $n && $late < $quickest;
}

cmp_ok($quickest, '<', 0.6 + grace(), 'woken, and not by its own look');

stop_other();
