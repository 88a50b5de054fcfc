# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A Redis Cluster that fails under load: a master killed, frozen, slots moved,
# all nodes restarted one by one.  After each, for every key: how often it ran,
# and what was answered.
#
# With "replicas 1" a key whose commit was acknowledged runs once and is
# answered the same for ever.  What may run twice is told apart: the commit was
# on the master only, and the master is gone.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $cluster;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster();
    $ENV{TEST_NGINX_NODES} = join ' ', $cluster->servers;
}

our $http = <<'_EOC_';
    idempotency_store c redis {
        server    $TEST_NGINX_NODES;
        cluster   on;
        replicas  1 timeout=1s;
    }
_EOC_

our $server = <<'_EOC_';
    idempotency_lease  3s;
    idempotency_wait   5s;
    add_header         X-Record $idempotency_record always;
    location / {
        idempotency  c;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

run_tests();

__DATA__

=== TEST 1: a master is killed
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 120
--- client
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my ($master) = $::cluster->masters;
my $replica = $::cluster->replica_of($master);
my $since = Time::HiRes::time();
$master->kill_it;
$::cluster->wait_promoted($replica);
sleep(2);
$load->stop;

$::cluster->heal;
judge_load($load, check_load($load, $other), $since);
ok($other->stop, 'the other leaves');



=== TEST 2: a master is killed, without replicas that count
--- store: redis
--- http_config eval: $::http =~ s/ replicas .*//r
--- config eval: $::server
--- client_timeout: 120
--- client
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1.5);

my ($master) = $::cluster->masters;
my $replica = $::cluster->replica_of($master);
my $since = Time::HiRes::time();
$master->kill_it;
$::cluster->wait_promoted($replica);
sleep(2);
$load->stop;

$::cluster->heal;
my $r = check_load($load, $other);

# only what was answered about when the master died may have been lost

my @wrong = grep { my $f = $r->{first}{$_};
                   $f && ($f->{to} < $since - 1 || $f->{from} > $since + 5) }
            @{ $r->{broken} };

is_deeply(\@wrong, [], 'what was not under way ran once');
$r->{broken} = [];
judge_load($load, $r, $since);
ok($other->stop, 'the other leaves');



=== TEST 3: a master is frozen, and comes back when another is the master
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 120
--- client
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my ($master) = $::cluster->masters;
my $replica = $::cluster->replica_of($master);
my $since = Time::HiRes::time();
$master->pause;
$::cluster->wait_promoted($replica);
sleep(1);
$master->resume;
sleep(1.5);
$load->stop;

$::cluster->heal;
judge_load($load, check_load($load, $other), $since);
ok($other->stop, 'the other leaves');



=== TEST 4: slots move
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 120
--- client
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(0.5);

# there and back, while records are in them and on their way
my ($from, $to) = $::cluster->masters;
my ($v) = grep { $_->{node} == $from } $::cluster->view;
my $first = $v->{ranges}[0][0];
my $since = Time::HiRes::time();
my $moved = 0;

for my $slot ($first .. $first + 149) {
    $::cluster->begin_move($slot, $from, $to);
    $moved += $::cluster->move_keys($slot, $from, $to);
    $::cluster->end_move($slot, $from, $to);
}

sleep(0.5);

for my $slot ($first .. $first + 149) {
    $moved += $::cluster->move_keys($slot, $to, $from)
        if eval { $::cluster->begin_move($slot, $to, $from); 1 };
    $::cluster->end_move($slot, $to, $from);
}

sleep(0.5);
$load->stop;
cmp_ok($moved, '>', 10, "$moved records moved");

$::cluster->heal;
my $r = check_load($load, $other);
judge_load($load, $r, $since);
is_deeply($r->{twice}, [], 'nothing ran twice');
is($r->{refused}, 0, 'and nothing was refused');
ok($other->stop, 'the other leaves');



=== TEST 5: all nodes are restarted, one by one
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 150
--- client
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 6);
sleep(0.5);

my $since = Time::HiRes::time();

for my $node ($::cluster->nodes) {
    my ($v) = grep { $_->{node} == $node } $::cluster->view;

    if ($v->{flags} =~ /master/) {
        $::cluster->fail_over($node);
        wait_for(sub { $node->command('INFO', 'replication') =~ /role:slave/ },
                 10) or die "it does not step down\n";
    }

    $node->restart('TERM');
    $::cluster->wait_ready;
}

sleep(0.5);
$load->stop;

my $r = check_load($load, $other);
judge_load($load, $r, $since);
is_deeply($r->{twice}, [], 'nothing ran twice');
ok($other->stop, 'the other leaves');



=== TEST 6: what only the dead master had, and was not acknowledged, is written again
--- store: redis
--- http_config eval: $::http =~ s/timeout=1s/timeout=300ms/r
--- config eval: $::server
--- client_timeout: 120
--- client
my ($master) = $::cluster->masters;
my $replica = $::cluster->replica_of($master);

# it has no replica any more; frozen alone, that would get it all later

$replica->pause;
$master->command('CLIENT', 'KILL', 'TYPE', 'replica');

my @keys = map { new_key() } 1 .. 40;
my @c = map { send_post("/ok?op=$_", 'x', { 'Idempotency-Key' => $_ }) } @keys;
my %record;

for my $key (@keys) {
    my $r = (shift @c)->read_response(15);
    is($r->body, "run 1\n", 'answered');
    $record{$key} = $r->header('X-Record');
}

my %there = map { $_ => $::cluster->node_of("idempotency:$record{$_}")
                        == $master } @keys;

# exactly those of that master are told to be on no replica

my %told = map { $_ => 1 } error_log()
    =~ /a commit is on 0 of 1 replicas.*record ([0-9a-f]{16})/g;
is_deeply([ sort grep { $told{ substr $record{$_}, 0, 16 } } @keys ],
          [ sort grep { $there{$_} } @keys ], 'those without a replica');

my $other = start_host();

$master->kill_it;
$replica->resume;
$::cluster->wait_promoted($replica);

# nobody asks for them: who kept them writes them

my @lost = grep { $there{$_} } @keys;
my $written = 0;
ok(wait_for(sub {
    $written = grep { ($replica->record("idempotency:$record{$_}") || { s => 0 })->{s} == 2 }
                    @lost;
    $written == @lost;
}, 20), 'the new master has them') or diag("$written of " . @lost);

$::cluster->heal;

for my $key (@keys) {
    my $r;
    wait_for(sub { $r = http_post("/ok?op=$key", 'x',
                                  { 'Idempotency-Key' => $key },
                                  port => $other->{port});
                   $r->status == 200 }, 20);
    is($r->body, "run 1\n", 'replayed, on another host');
}

ok($other->stop, 'the other leaves');
