# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A Redis Cluster as the store: records on all masters, redirects, waiters
# wherever a record is, and what a node that is down does to the others.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $cluster;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster();
    $ENV{TEST_NGINX_NODES} = join ' ', $cluster->servers;
    $ENV{TEST_NGINX_ONE_NODE} = ($cluster->servers)[0];
}

our $http = <<'_EOC_';
    idempotency_store c redis {
        server   $TEST_NGINX_NODES;
        cluster  on;
    }
_EOC_

our $server = <<'_EOC_';
    idempotency_max_waiters  1000;
    idempotency_wait         20s;
    add_header               X-Record $idempotency_record always;
    location / {
        idempotency  c;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub post
{
    my ($uri, $key, %o) = @_;
    return http_post($uri, 'x', { 'Idempotency-Key' => $key }, %o);
}

sub record_key { 'idempotency:' . $_[0]->header('X-Record') }

# keys that ran, by the master that has their record: { port => [ [ key,
# record ] ... ] }, at least so many on each

sub ran_on_all
{
    my ($least) = @_;

    my %on;

    for (1 .. 500) {
        my $key = new_key();
        my $r = post("/ok?op=$key", $key);
        die $r->status . "\n" if $r->status != 200;
        push @{ $on{ $cluster->node_of(record_key($r))->{port} } },
             [ $key, record_key($r) ];
        last if 3 == grep { @$_ >= $least } values %on;
    }

    return \%on;
}

every_block(
    http_config => $http,
    config      => $server,
);

run_tests();

__DATA__

=== TEST 1: records are on all masters, and known on every host
--- store: redis
--- client
my $other = start_host();
$::cluster->reset_calls;
my $on = ran_on_all(5);

is(scalar keys %$on, 3, 'on three masters');
cmp_ok($::cluster->calls('set'), '>=', 30, 'begins and commits');

# one of the workers asks each for its maxmemory-policy
cmp_ok($::cluster->calls('eval') + $::cluster->calls('evalsha'), '<=', 3,
       'and no script')
    if ($::cluster->masters)[0]->knows('IFEQ');

for my $node ($::cluster->masters) {
    my @keys = @{ $on->{ $node->{port} } };
    cmp_ok(scalar @keys, '>=', 5, "records on $node->{port}");

    for (@keys) {
        my ($key, $record) = @$_;
        my @there = eval { $node->keys($record) };
        is($there[0], $record, 'it is where its slot is');

        my $r = post("/ok?op=$key", $key, port => $other->{port});
        is($r->header('Idempotent-Replayed'), 'true', 'replayed there');
        is($r->body, "run 1\n", 'as it was');
        is(http_post("/ok?op=$key", 'y', { 'Idempotency-Key' => $key },
                     port => $other->{port})->status, 409, 'a conflict there');
        is(app_count($key), 1, 'ran once');
    }
}

error_log_unlike(qr/\[(?:warn|error)\]/, 'nothing to say');
ok($other->stop, 'the other leaves');



=== TEST 2: one node of the configuration is enough
--- store: redis
--- http_config eval: $::http =~ s/NODES/ONE_NODE/r
--- client
is(scalar keys %{ ran_on_all(1) }, 3, 'it names the others');



=== TEST 3: a waiter on another host is woken, whichever node it is on
--- store: redis
--- client
my $other = start_host();
my (%on, @late);

for my $n (1 .. 40) {
    my $key = new_key();
    my $c = send_post("/hold?op=$key", 'x', { 'Idempotency-Key' => $key });
    app_wait_parked($key);

    my $w = send_post("/hold?op=$key", 'x', { 'Idempotency-Key' => $key },
                      port => $other->{port});

    # it waits: the mark is in the record
    my $at;
    wait_for(sub {
        for my $node ($::cluster->masters) {
            for ($node->keys('idempotency:*')) {
                my $f = $node->record($_) or next;
                next if $f->{s} != 1 || !$f->{q};
                $at = $node;
                return 1;
            }
        }
    }) or die "nobody waits\n";

    app_release($key);
    is($c->read_response->body, "run 1\n", 'the holder');

    my $start = Time::HiRes::time();
    is($w->read_response->body, "run 1\n", 'the waiter');
    push @late, Time::HiRes::time() - $start;
    $on{ $at->{port} }++;
    $::cluster->flush;
    last if $n >= 12 && 3 == keys %on;
}

is(scalar keys %on, 3, 'records on all three');
my $median = (sort { $a <=> $b } @late)[@late / 2];
cmp_ok($median, '<', 0.3 + grace(), sprintf 'median %.1f ms', 1000 * $median);
ok($other->stop, 'the other leaves');



=== TEST 4: MOVED is followed, and the map is asked for again
--- store: redis
--- client
my $on = ran_on_all(1);
my ($from, $to) = $::cluster->masters;
my ($key, $record) = @{ $on->{ $from->{port} }[0] };
my $slot = $::cluster->slot($record);

$::cluster->move($slot, $from, $to);

is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
   'replayed from its new place');

# a first execution, too
$to->command('DEL', $record);
is(post("/ok?op=$key", $key)->body, "run 2\n", 'runs');
is(($to->keys($record))[0], $record, 'stored there');

# by then it knows
select undef, undef, undef, 1.2;
post("/ok?op=$key", $key);
$::cluster->reset_calls;
is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true', 'replayed');
ok(!$from->errors('MOVED'), 'without a detour');

# a large commit, and the slot has moved since its begin
$to->command('DEL', $record);
my $c = send_post('/size?op=m&n=300000&hold=1', 'x', { 'Idempotency-Key' => $key });
is(app_wait_parked('m'), 1, 'runs');
$::cluster->move($slot, $to, $from);
app_release('m');
is(length(my $body = $c->read_response->body), 300_000, 'answered');
ok(post('/size?op=m&n=300000&hold=1', $key)->body eq $body, 'replayed, whole');
is(($from->keys($record))[0], $record, 'from where it is now');
is(app_count('m'), 1, 'ran once');
$::cluster->wait_ready;



=== TEST 5: ASK is followed while a slot is on its way
--- store: redis
--- client
my $on = ran_on_all(1);
my ($from, $to) = $::cluster->masters;
my ($key, $record) = @{ $on->{ $from->{port} }[0] };
my $slot = $::cluster->slot($record);

$::cluster->begin_move($slot, $from, $to);
is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
   'still here: replayed from here');

$::cluster->move_keys($slot, $from, $to);
is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
   'there already: replayed from there');

# what is new in that slot begins, waits and is committed there

$from->command('CLUSTER', 'SETSLOT', $slot, 'STABLE');
$to->command('CLUSTER', 'SETSLOT', $slot, 'STABLE');
$to->command('FLUSHALL');
$::cluster->begin_move($slot, $from, $to);

my $new = send_post("/size?op=n&n=300000&hold=1", 'x', { 'Idempotency-Key' => $key });
is(app_wait_parked('n'), 1, 'runs');
app_release('n');
is(length(my $body = $new->read_response->body), 300_000, 'answered');

is(scalar @{ $from->command('CLUSTER', 'GETKEYSINSLOT', $slot, 10) }, 0,
   'nothing is left behind');
is_deeply($to->command('CLUSTER', 'GETKEYSINSLOT', $slot, 10), [ $record ],
          'it is there');

$::cluster->end_move($slot, $from, $to);
ok(post("/size?op=n&n=300000&hold=1", $key)->body eq $body,
   'and stays there, whole');
is(app_count('n'), 1, 'ran once');

$::cluster->move($slot, $to, $from);
$::cluster->wait_ready;



=== TEST 6: many redirects ask for the map once in a while
--- store: redis
--- client
my $on = ran_on_all(25);
my ($from, $to) = $::cluster->masters;
my @moved = @{ $on->{ $from->{port} } };
my %slots;

$::cluster->reset_calls;
my $start = Time::HiRes::time();

# each is a reason to ask for it

for (@moved) {
    my ($key, $record) = @$_;
    my $slot = $::cluster->slot($record);

    $::cluster->move($slot, $from, $to) if !$slots{$slot}++;
    is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
       'replayed');
}

my $took = Time::HiRes::time() - $start;
my $redirects = $from->errors('MOVED');
my $asked = $::cluster->calls('cluster|slots')
            + $::cluster->calls('cluster|shards');

SKIP: {
    skip 'the server does not count that', 3
        if !IdempotencyTest::Redis->knows('subcommandstats');

    diag(sprintf '%d redirects, the map was asked for %d times in %.1f s',
         $redirects, $asked, $took);
    cmp_ok($redirects, '>=', 20, 'there were many redirects');
    cmp_ok($asked, '<=', 2 + 2 * $took, 'and few questions');
    ok(wait_for(sub { $::cluster->calls('cluster|slots')
                      + $::cluster->calls('cluster|shards') > $asked
                      || $asked > 1 }, 5), 'the last change is asked for, too');
}

$::cluster->move($_, $to, $from) for keys %slots;
$::cluster->wait_ready;



=== TEST 7: a node that is down affects its slots only
--- store: redis
--- client_timeout: 90
--- client
my $on = ran_on_all(4);
my ($dead, @alive) = $::cluster->masters;

# nobody takes its place
my $replica = $::cluster->replica_of($dead);
$replica->kill_it;
$dead->kill_it;

for my $node (@alive) {
    for (@{ $on->{ $node->{port} } }[0 .. 3]) {
        my $start = Time::HiRes::time();
        is(post("/ok?op=$_->[0]", $_->[0])->header('Idempotent-Replayed'),
           'true', 'a record on another node is replayed');
        cmp_ok(Time::HiRes::time() - $start, '<', 0.9 + grace(),
               'without waiting');
    }
}

for (@{ $on->{ $dead->{port} } }[0 .. 3]) {
    my $r = post("/ok?op=$_->[0]", $_->[0]);
    is($r->status, 503, 'one on that node is not');
    is($r->error_code, 'STORE_UNAVAILABLE', 'says why');
    is(app_count($_->[0]), 1, 'and does not run again');
}

$::cluster->heal;

# it is empty now, but it is there
my ($key) = @{ $on->{ $dead->{port} }[0] };
ok(wait_for(sub { post("/ok?op=$key", $key)->status == 200 }, 20),
   'and when it is back it is asked again');
