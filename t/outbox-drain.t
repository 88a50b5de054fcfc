# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The outbox drains: kept commits land soon after their server is back, a
# thousand of them, whatever else is down.  Bounds are generous: it is a
# matter of a second, and without pipelining, or with one queue for all nodes,
# of minutes.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis, $proxy) = start_proxied();
our $cluster;

use constant N => 1000;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster(masters => 3, replicas => 0);
    $ENV{TEST_NGINX_NODES} = join ' ', $cluster->servers;
}

worker_connections(8192);

add_block_preprocessor(sub {
    if ($redis) {
        $redis->resume if $redis->{paused};
        $redis->command('FLUSHALL');
        $proxy->tell('cut');
    }
});

sub store
{
    my ($more) = @_;

    return "idempotency_store s \$TEST_REMOTE {
        connect_timeout  500ms;
        timeout          500ms;
        $more
    }";
}

our $location = <<'_EOC_';
    location / {
        idempotency        s;
        idempotency_lease  30s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats json; }
_EOC_

sub outbox { http_get('/stats')->json->{stores}[0]{outbox} }

# runs so many requests at a time; while they run, "code" takes the store away;
# returns when all are answered and their commits are kept

sub keep
{
    my ($n, $code) = @_;

    my @c;

    # not all at once: on a slow machine the store would answer some too late

    while (@c < $n) {
        push @c, send_post("/ok?op=k&hold=1", 'x',
                           { 'Idempotency-Key' => new_key() });

        @c % 50 == 0 || @c == $n or next;
        app_wait_parked('k', scalar @c, 60) or die "they do not run\n";
    }

    $code->();
    app_release('k');

    my $answered = grep { my $r = $_->read_response(60); $r && $r->status == 200 }
                        @c;
    is($answered, $n, 'all are answered');
    $_->abort for @c;

    return $n;
}

# seconds until so many have landed

sub drained
{
    my ($n, $limit) = @_;

    my $start = time;
    my $landed = 0;

    wait_for(sub { $landed = outbox()->{landed}; $landed >= $n }, $limit || 20);
    my $took = time - $start;

    cmp_ok($landed, '>=', $n, "$landed of $n landed");
    diag(sprintf '%d commits in %.2f s', $landed, $took);

    return $took;
}

# ... are in the store, whoever has acknowledged that

sub committed
{
    my ($n, $limit) = @_;

    my $start = time;
    my $there = 0;

    wait_for(sub {
        $there = $redis->command('EVAL', <<'_EOC_', 0); $there >= $n }, $limit);
            local n = 0
            for _, key in ipairs(redis.call('KEYS', '*')) do
                if redis.call('GETRANGE', key, 3, 3) ~= '\1' then n = n + 1 end
            end
            return n
_EOC_

    my $took = time - $start;
    is($there, $n, 'they are in the store');
    diag(sprintf '%d commits are there in %.2f s', $there, $took);

    return $took;
}

run_tests();

__DATA__

=== TEST 1: one server
--- store: redis postgres
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_OWN_PORT;')
--- config eval: $::location
--- client_timeout: 180
--- client
keep(N, sub { $::redis->pause });
is(outbox()->{kept}, N, 'kept');
$::redis->resume;
cmp_ok(drained(N), '<', 4, 'soon');
ok(wait_for(sub { outbox()->{waiting} == 0 }), 'none is left');
is(app_count('k'), N, 'each ran once');



=== TEST 2: a replica is missing
--- store: redis
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_OWN_PORT; replicas 1 timeout=1s;')
--- config eval: $::location
--- client_timeout: 180
--- client
# it comes back without its data: all have to be sent

keep(N, sub { $::redis->kill_it });
is(outbox()->{kept}, N, 'kept');
$::redis->spawn;
cmp_ok(committed(N, 20), '<', 3, 'sent at once');
cmp_ok(drained(N), '<', 10, 'only the acknowledgement waits');
is(outbox()->{waiting}, 0, 'none waits to be sent');



=== TEST 3: another node of the cluster stays away
--- store: redis
--- http_config eval: main::store('server $TEST_NGINX_NODES; cluster on;')
--- config eval: $::location
--- client_timeout: 180
--- client
my ($dead, $back, $up) = $::cluster->masters;

keep(N, sub { $_->pause for $dead, $back });

# of the one that is up, all were committed

my $kept = outbox()->{kept};
cmp_ok($kept, '>', N / 3, 'kept');
cmp_ok($kept, '<', N, 'but not those of the node that is up');

$back->resume;
my $theirs = grep { $back->record($_)->{s} != 3 } $back->keys;
cmp_ok($theirs, '>', N / 5, 'records on the one that is back');

# a slow machine may have kept some of the node that is up as well
my @up = $up->keys;
my $others = N - $theirs - @up;

cmp_ok(drained($kept - $others), '<', 5, 'soon');
is(scalar(grep { $back->record($_)->{s} == 2 } $back->keys), $theirs,
   'all of the node that is back are there');
is(outbox()->{waiting}, $others, 'the others wait');

$dead->resume;
cmp_ok(drained($kept, 30), '<', 10, 'until theirs is back, too');
is(outbox()->{waiting}, 0, 'none is left');



=== TEST 4: packets are dropped, and then not
The client of Redis knocks anew beside an attempt that may last; libpq has one
attempt, which connect_timeout ends.
--- store: redis
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_PROXY_PORT;') =~ s/connect_timeout  500ms/connect_timeout 60s/r
--- config eval: $::location
--- client_timeout: 180
--- client
# The kernel repeats an attempt to connect ever more rarely: after 7 and 15 s,
# or after 11 and 19.

keep(1, sub { $::proxy->tell('silent') });
ok(wait_for(sub { outbox()->{kept} == 1 }), 'kept');
sleep 11.5;
is(outbox()->{landed}, 0, 'it is away');

$::proxy->tell('cut');
cmp_ok(drained(1), '<', 2, 'soon');
