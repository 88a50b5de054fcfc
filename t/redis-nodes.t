# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A store that is several servers has a breaker and figures for each of them:
# one that is down is asked only now and then, and keeps nobody from the others.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our $cluster;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster();
    $ENV{TEST_NGINX_NODES} = join ' ', $cluster->servers;
}

our $http = <<'_EOC_';
    idempotency_store c redis {
        server   $TEST_NGINX_NODES;
        cluster  on;
        timeout  300ms;
        breaker  fails=3 reset=60s;
    }
_EOC_

our $server = <<'_EOC_';
    add_header  X-Record $idempotency_record always;
    location / {
        idempotency  c;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats; }
_EOC_

sub post
{
    my ($key) = @_;
    return http_post("/ok?op=$key", 'x', { 'Idempotency-Key' => $key });
}

# keys by the master that has their record, whether it answers or not

sub keys_on
{
    my ($least) = @_;

    my %on;

    for (1 .. 500) {
        my $key = new_key();
        my $r = post($key);
        push @{ $on{ $cluster->node_of('idempotency:' . $r->header('X-Record'))
                     ->{port} } }, $key;
        last if 3 == grep { @$_ >= $least } values %on;
    }

    return \%on;
}

sub figures
{
    my $f = parse_prometheus(http_get('/stats?format=prometheus')->body);
    my %nodes;

    for my $family (qw(node_operations_total node_breaker_state)) {
        for (@{ $f->{"nginx_idempotency_$family"}{samples} }) {
            my $l = $_->{labels};
            my ($port) = $l->{node} =~ /:(\d+)$/;
            $nodes{$port}{ $l->{result} // 'breaker' } = $_->{value};
        }
    }

    return (\%nodes,
            $f->{nginx_idempotency_breaker_state}{samples}[0]{value});
}

run_tests();

__DATA__

=== TEST 1: the breaker of a node that is down, and of those that are not
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 90
--- client
my $on = keys_on(8);
my ($nodes, $whole) = figures();

is($whole, 0, 'closed');

for my $node ($::cluster->masters) {
    my $f = $nodes->{ $node->{port} };
    cmp_ok($f->{answered}, '>=', 16, 'each has answered');
    is($f->{failed}, 0, 'without a failure');
    is($f->{breaker}, 0, 'its breaker is closed');
}

my ($dead, @alive) = $::cluster->masters;
$::cluster->replica_of($dead)->kill_it;
$dead->pause;

my @dead = @{ $on->{ $dead->{port} } };
is(post($_)->status, 503, 'refused') for @dead[0 .. 2];

error_log_like(qr/\[warn\] .*node 127.0.0.1:$dead->{port} of store "c" failed 3 times in a row, its breaker is open/,
               'the log names it');

for (@dead[3 .. 7]) {
    my $start = Time::HiRes::time();
    is(post($_)->status, 503, 'refused');
    cmp_ok(Time::HiRes::time() - $start, '<', 0.25 + grace(), 'at once');
}

for my $node (@alive) {
    is(post($_)->header('Idempotent-Replayed'), 'true',
       'others are replayed') for @{ $on->{ $node->{port} } }[0 .. 3];
}

($nodes, $whole) = figures();
is($whole, 1, 'the worst is that of the store');
is($nodes->{ $dead->{port} }{breaker}, 1, 'that node is open');
cmp_ok($nodes->{ $dead->{port} }{failed}, '>=', 3, 'its failures are counted');
is($nodes->{ $_->{port} }{breaker}, 0, 'the others are closed') for @alive;

my ($json) = grep { $_->{name} eq 'c' }
             @{ JSON::PP::decode_json(http_get('/stats?format=json')->body)
                ->{stores} };
my %breaker = map { $_->{name} => $_->{breaker} } @{ $json->{nodes} };
is($breaker{"127.0.0.1:$dead->{port}"}, 'open', 'so says the JSON');
is(scalar(grep { $_ eq 'closed' } values %breaker), keys(%breaker) - 1,
   'of that only');

$dead->resume;
$::cluster->heal;



=== TEST 2: redirects are counted
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 90
--- client
my $on = keys_on(1);
my ($from, $to) = $::cluster->masters;
my ($key) = @{ $on->{ $from->{port} } };
my $slot = $::cluster->slot('idempotency:' . post($key)->header('X-Record'));

$::cluster->move($slot, $from, $to);
is(post($key)->header('Idempotent-Replayed'), 'true', 'replayed from there');

my ($nodes) = figures();
cmp_ok($nodes->{ $from->{port} }{redirected}, '>=', 1, 'counted');
$::cluster->move($slot, $to, $from);
$::cluster->wait_ready;
