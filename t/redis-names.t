# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Names of Redis servers, looked up by nginx's resolver while it runs: of the
# configuration, and such as a cluster announces.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($dns, $v4, $v6, $cluster);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $dns = start_dns(ttl => 1);
    $ENV{TEST_NGINX_DNS_PORT} = $dns->{port};

    # two servers, told apart by their address only

    $v4 = start_redis();
    $ENV{TEST_NGINX_OWN_PORT} = $v4->{port};

    $v6 = IdempotencyTest::Redis->start(
        host => '::1', port => $v4->{port}, dir => "$v4->{dir}.v6");

    my $n = 0;

    $cluster = start_cluster(replicas => 0, announce => sub {
        my $name = 'node' . $n++ . '.cluster.test';
        $dns->set($name, '127.0.0.1');
        return if !IdempotencyTest::Redis->knows('hostnames');
        ('--cluster-announce-hostname', $name,
         '--cluster-preferred-endpoint-type', 'hostname');
    });

    $ENV{TEST_NGINX_SEED} = ($cluster->servers)[0];
}

add_block_preprocessor(sub {
    if ($dns) {
        $dns->set('redis.test', '127.0.0.1');
        $_->command('FLUSHALL') for $v4, $v6;
        $cluster->flush;
    }
});

our $http = <<'_EOC_';
    resolver  127.0.0.1:$TEST_NGINX_DNS_PORT;

    idempotency_store own redis {
        server           redis.test:$TEST_NGINX_OWN_PORT;
        connect_timeout  500ms;
    }
_EOC_

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub once { http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status }

sub records { my @keys = $_[0]->keys; scalar @keys }

run_tests();

__DATA__

=== TEST 1: a name that only the resolver knows
--- store: redis
--- http_config eval: $::http
--- config eval: $::location
--- client
is(once(), 200, 'ran') for 1 .. 3;
is(records($::v4), 3, 'there');
like(error_log(), qr/\[warn\] .*host not found in "server redis\.test:\d+" of store "own" in .*nginx\.conf:\d+; workers will look for it/, 'told');



=== TEST 2: it gets another address
--- store: redis
--- http_config eval: $::http
--- config eval: $::location
--- client
is(once(), 200, 'ran');
is(records($::v4), 1, 'at the one');

$::dns->set('redis.test', '::1');

ok(wait_for(sub { once(); records($::v6) }, 10), 'at the other');

my $before = records($::v4);
is(once(), 200, 'ran') for 1 .. 5;
is(records($::v4), $before, 'at the other only');



=== TEST 3: a server that is down, and its name leads elsewhere
--- store: redis
--- http_config eval: $::http
--- config eval: $::location
--- client
is(once(), 200, 'ran');

$::v4->kill_it('KILL');
$::dns->set('redis.test', '::1');

ok(wait_for(sub { once() == 200 }, 10), 'found');
cmp_ok(records($::v6), '>', 0, 'at the other');

$::v4->spawn;



=== TEST 4: the name server is silent, then knows no such name, then knows it
--- store: redis
--- http_config eval: $::http
--- config eval: $::location
--- client
$::dns->set('redis.test', 'silent');

is(once(), 503, 'no answer');

$::dns->set('redis.test');

ok(wait_for(sub { error_log() =~ /\[error\] .*the name of Redis at redis\.test:\d+ could not be resolved/ && once() == 503 }, 10), 'told');

$::dns->set('redis.test', '127.0.0.1');

ok(wait_for(sub { once() == 200 }, 15), 'found');



=== TEST 5: a worker quits while it looks a name up
--- store: redis
--- http_config eval
my $http = $::http;
$http =~ s/500ms/60s/;
$http;
--- config eval: $::location
--- client
$::dns->set('redis.test', 'silent');

is(once(), 503, 'no answer');



=== TEST 6: the name server is away, and an address is known
--- store: redis
--- http_config
    resolver  127.0.0.1:$TEST_NGINX_DEAD_PORT;
    idempotency_store own redis { server localhost:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
is(once(), 200, 'ran') for 1 .. 3;



=== TEST 7: no resolver
--- store: redis
--- http_config
    idempotency_store own redis { server redis.test:$TEST_NGINX_OWN_PORT; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*host not found in "server redis\.test:\d+" of store "own" in .*nginx\.conf:\d+; with a "resolver" in the http block, workers would look for it/



=== TEST 8: names that a cluster announces
--- store: redis
--- http_config
    resolver  127.0.0.1:$TEST_NGINX_DNS_PORT;
    idempotency_store own redis { server $TEST_NGINX_SEED; cluster on; }
--- config eval: $::location
--- client
is(once(), 200, 'ran') for 1 .. 30;

cmp_ok(records($_), '>', 0, "node $_->{number} has some")
    for $::cluster->masters;

return pass('nodes announce no names')
    if !IdempotencyTest::Redis->knows('hostnames');

cmp_ok($::dns->asked("node$_.cluster.test"), '>', 0, "node $_ was asked for")
    for 0 .. 2;



=== TEST 9: names that a cluster announces, and no resolver
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_SEED; cluster on; }
--- config eval: $::location
--- client
return pass('nodes announce no names')
    if !IdempotencyTest::Redis->knows('hostnames');

is(once(), 503, 'not found') for 1 .. 5;

my @told = error_log() =~ /(\[error\] .*a server is announced as "node\d\.cluster\.test:\d+", and there is no "resolver" directive in the http block)/g;

is(scalar @told, 1, 'told once');



=== TEST 10: a cluster that announces no host: it is where it was asked
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_SEED; cluster on; }
--- config eval: $::location
--- client
return pass('nodes announce their addresses')
    if !IdempotencyTest::Redis->knows('hostnames');

for my $set ([ 'cluster-preferred-endpoint-type', 'unknown-endpoint' ],
             [ 'cluster-preferred-endpoint-type', 'hostname',
               'cluster-announce-hostname', '' ])
{
    $::cluster->flush;
    $_->command('CONFIG', 'SET', @$set) for $::cluster->nodes;

    # "?", or nothing at all

    wait_for(sub {
        3 == grep { !defined $_->[2][0] || $_->[2][0] eq '?' }
             map { @$_ } $::cluster->{nodes}[0]->command('CLUSTER', 'SLOTS');
    }, 10) or die "a host is announced\n";

    nginx_reload() or die "no reload\n";

    is(once(), 200, 'ran') for 1 .. 30;

    cmp_ok(records($_), '>', 0, "node $_->{number} has some")
        for $::cluster->masters;
}
