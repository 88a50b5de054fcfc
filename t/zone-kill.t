# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Workers that are killed while they hold the lock of shared memory, after any
# number of instructions.  nginx frees the lock and nothing else: what the
# worker left half done is repaired by whoever takes the lock next.  Whatever
# happens, nothing runs twice under "hold", each replay is exact, and nginx
# goes on.
#
# t/unit/zone_kill.c does so after every single store to the zone; here it is
# the module as it is shipped, under load, in all that has a lock.
#
#     ZONE_KILLS=500 prove -v t/zone-kill.t     for a long run

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest::Faults;              # before IdempotencyTest
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes ();

our $kills = $ENV{ZONE_KILLS} || 25;

our $redis;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();
    $ENV{TEST_NGINX_KILL_REDIS_PORT} = $redis->{port};
}

# what was sent: key => [ uri, body of the response or undef ]
our (%sent, @keys, $number);

srand($ENV{ZONE_KILL_SEED} || 1113);


sub details { return '{"amount":' . (length($_[0]) * 7) . ',"note":"' . 'n' x 900 . '"}' }


sub post
{
    my ($key, $uri) = @_;

    return send_post($uri, details($key), [ 'Idempotency-Key' => $key,
                                   'Content-Type' => 'application/json' ]);
}


# what came, or undef where the worker died

sub answer
{
    my $c = shift;

    my $r = eval { $c->read_response(10) };

    return $r && $r->status && !$r->truncated ? $r : undef;
}


# a new operation, small, large, or one that is given back

sub new_op
{
    my $key = 'k' . ++$number;
    my @kinds = ('/ok?', '/size?n=700&', '/size?n=9000&', '/slow?ms=20&',
                 '/size?n=2000&chunked=1&', '/status/503?');

    $sent{$key} = [ ($_[0] || '') . $kinds[rand @kinds] . "op=$key", undef ];
    push @keys, $key;

    return $key;
}


# one that was sent before, a late one rather than an early one

sub old_op { return $keys[ @keys - 1 - int rand(@keys < 40 ? @keys : 40) ] }


our @bad;

sub judge
{
    my ($key, $r) = @_;

    return if !$r;

    my ($uri, $body) = @{ $sent{$key} };
    my $code = $r->error_code;

    if ($r->status == 200) {
        my ($n) = $uri =~ /n=(\d+)/;

        push @bad, "$key: " . length($r->body) . ' bytes'
            if $n && length $r->body != $n;
        push @bad, "$key: " . substr($r->body, 0, 20)
            if !$n && $r->body ne "run 1\n";
        push @bad, "$key: another response"
            if defined $body && $body ne $r->body;

        $sent{$key}[1] = $r->body;

    } elsif ($uri =~ /503/ && $r->status == 503) {
        # its own

    } elsif ($code !~ /^(?:OUTCOME_UNKNOWN|CONCURRENT_REQUEST|RESPONSE_NOT_KEPT|LOCK_TIMEOUT)$/) {
        push @bad, "$key: " . $r->status . " $code";
    }
}


# a few at once, new and old, some of them the same twice

sub burst
{
    my $prefix = shift;
    my @ops = map { rand() < 0.6 || !@keys ? new_op($prefix) : old_op() } 1 .. 6;

    push @ops, $ops[-1];

    my @c = map { [ $_, eval { post($_, $sent{$_}[0]) } ] } @ops;

    judge($_->[0], answer($_->[1])) for grep { $_->[1] } @c;
}


# every length of a stay with the lock comes up, the short ones more often

sub arm { faults_kill(1 + int rand 12, 1 + int rand 2 ** (3 + rand 10)) }


# new requests until that many more workers have died

sub until_killed
{
    my ($n, $prefix) = @_;

    my $end = Time::HiRes::time() + 60;

    while ($n--) {
        my $before = faults_kills();
        arm();

        while (faults_kills() == $before) {
            burst($prefix);
            return 0 if Time::HiRes::time() > $end;
        }

        $end = Time::HiRes::time() + 60;
    }

    faults_kill(0, 0);

    return 1;
}


sub goes_on
{
    my $workers = shift;

    ok(wait_for(sub { nginx_workers() == $workers }, 20), 'all workers are there');

    is_deeply([ map { /exited on signal (\d+)/ && $1 != 9 ? $1 : () }
                split /\n/, error_log() ], [], 'none of them crashed');

    is_deeply(\@bad, [], 'each response is exact, or there is a reason');

    # those that are released run again, and only those
    is_deeply([ grep { $sent{$_}[0] !~ /503/ && app_count($_) > 1 } @keys ], [],
              'nothing ran twice');
}


run_tests();

__DATA__

=== TEST 1: workers die with the lock
--- store: memory
--- workers: 2
--- client_timeout: 600
--- provokes: exited on signal 9|was locked by
--- http_config
    idempotency_store ledger memory { zone ledger:192k; }
--- config
    location / {
        idempotency                   ledger;
        idempotency_unknown_outcome   hold;
        idempotency_conflict_detail   values;
        idempotency_fingerprint       json;
        idempotency_wait              1s;
        idempotency_lease             1s;
        proxy_pass                    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
ok(until_killed($::kills), "$::kills workers died");
goes_on(2);
error_log_like(qr/a worker died while it changed zone "ledger", the zone has been repaired: \d+ records, \d+ of them in progress, 0 could not be read/,
               'the zone was repaired');

# all of them once more
judge($_, http_post($::sent{$_}[0], details($_),
                    [ 'Idempotency-Key' => $_, 'Content-Type' => 'application/json' ]))
    for grep { $::sent{$_}[0] !~ /503/ } @::keys[-60 .. -1];

goes_on(2);



=== TEST 2: an old worker dies with the lock, after a reload
--- store: memory
--- workers: 1
--- client_timeout: 300
--- provokes: exited on signal 9|was locked by
--- http_config
    idempotency_store ledger memory { zone ledger:192k; }
--- config
    location / {
        idempotency                   ledger;
        idempotency_unknown_outcome   hold;
        idempotency_wait              0;
        idempotency_lease             1s;
        proxy_pass                    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
(%::sent, @::keys, @::bad) = ();

my $died = 0;

for my $n (1 .. 6) {
    my $key = "held-$n";
    my $c = send_post("/hold?op=$key&n=5000", 'x', { 'Idempotency-Key' => $key });
    app_wait_parked($key);

    ok(nginx_reload(), "reload $n");

    # the commit of the old one: the new one has nothing to do meanwhile
    my $before = faults_kills();
    faults_kill(1, 1 + int rand 600);
    app_release($key);
    my $r = answer($c);
    faults_kill(0, 0);
    $died += faults_kills() - $before;

    my $again = http_post("/hold?op=$key&n=5000", 'x', { 'Idempotency-Key' => $key });

    if ($again->status == 200) {
        is(length $again->body, 5000, "$key: replayed");
        is($again->header('Idempotent-Replayed'), 'true', "$key: says so");

    } else {
        is($again->status, 409, "$key: may have run");
        like($again->error_code, qr/^(?:OUTCOME_UNKNOWN|CONCURRENT_REQUEST)$/, "$key: says so");
    }

    is(app_count($key), 1, "$key: ran once");
    burst();
}

cmp_ok($died, '>', 0, 'old ones died');
goes_on(1);



=== TEST 3: cache, outbox and breaker
--- store: redis
--- workers: 2
--- client_timeout: 600
--- provokes: exited on signal 9|was locked by
--- http_config
    idempotency_store shared redis {
        server   127.0.0.1:$TEST_NGINX_KILL_REDIS_PORT;
        timeout  300ms;
        cache    copies:192k ttl=10s;
        breaker  fails=3 reset=200ms;
    }
--- config
    location / {
        idempotency                   shared;
        idempotency_unknown_outcome   hold;
        idempotency_conflict_detail   values;
        idempotency_fingerprint       json;
        idempotency_wait              1s;
        idempotency_lease             1s;
        proxy_pass                    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
(%::sent, @::keys, @::bad) = ();

ok(until_killed(int($::kills / 2) + 1), 'workers died');
goes_on(2);

# its commits are kept while Redis is away, and replayed from the outbox
for my $n (1 .. 8) {
    my $key = "kept-$n";

    wait_for(sub { my $r = answer(post(new_key(), '/ok?op=back'));
                   $r && $r->status == 200 }, 20) or die "Redis is not back\n";

    my $c = send_post("/hold?op=$key&n=3000", 'x', { 'Idempotency-Key' => $key });
    app_wait_parked($key) or die "$key is not held\n";

    $::redis->pause;
    faults_kill(1 + int rand 3, 1 + int rand 600);

    # its worker may be dead already: timers change the zone, too
    app_control('release', op => $key);
    my $r = answer($c);
    my $again = answer(send_post("/hold?op=$key&n=3000", 'x', { 'Idempotency-Key' => $key }));
    faults_kill(0, 0);

    for ($r, $again) {
        is(length $_->body, 3000, "$key: exact") if $_ && $_->status == 200;
    }

    $::redis->resume;

    # what was held by a worker that died stays so under "hold"
    is(app_count($key), 1, "$key: ran once");
}

goes_on(2);



=== TEST 4: a zone that a reload has left to the old workers
--- store: redis
--- workers: 2
--- client_timeout: 120
--- provokes: exited on signal 9|was locked by
--- http_config
    idempotency_store shared redis {
        server   127.0.0.1:$TEST_NGINX_KILL_REDIS_PORT;
        cache    copies:192k ttl=60s;
    }
--- config
    location / {
        idempotency       shared;
        proxy_set_header  X-Pid $pid;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# one in each of the two workers
my (%held, $n);

while (keys %held < 2 && ++$n < 60) {
    my $key = "old-$n";
    my $c = send_post("/hold?op=$key", 'x', { 'Idempotency-Key' => $key });
    app_wait_parked($key) or die "$key is not held\n";

    my ($pid) = map { $_->[1] } grep { lc $_->[0] eq 'x-pid' }
                @{ app_last($key)->{headers} };
    $held{$pid} ||= [ $key, $c ];
}

is(keys %held, 2, 'both workers hold one') or return;

my ($first, $second) = map { $held{$_} } sort keys %held;

# a cache of another size is a new one: the master knows the old one no more
edit_config(sub { s/copies:192k/copies:256k/ });
ok(nginx_reload(), 'reload');

my $before = faults_kills();
faults_kill(1, 40);
app_release($first->[0]);
ok(wait_for(sub { faults_kills() > $before }, 10), 'one died with its lock');
faults_kill(0, 0);

app_release($second->[0]);
my $r = answer($second->[1]);
is($r && $r->status, 200, 'the other one answers');
