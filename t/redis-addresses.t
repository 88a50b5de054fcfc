# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Addresses of Redis servers: IPv6, and such as a cluster announces, which are
# not those that its servers have.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($six, $cluster, $sentinels, $announced, %proxy);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $six = IdempotencyTest::Redis->start(host => '::1', port => free_port(),
        dir => $ENV{TEST_NGINX_SERVROOT} . '.six');

    $cluster = start_cluster(host => '::1');
    $sentinels = start_sentinels(host => '::1', replicas => 1);

    # every node is behind a proxy, and says that it is the proxy

    $announced = start_cluster(replicas => 0, announce => sub {
        my $node = shift;
        my $p = free_port();

        $proxy{ $node->{number} } = IdempotencyTest::RedisProxy->start(
            port => $p, to => $node->{port});
        return ('--cluster-announce-port', $p);
    });

    $ENV{TEST_NGINX_SIX} = "[::1]:$six->{port}";
    $ENV{TEST_NGINX_SIX_NODES} = join ' ', $cluster->servers;
    $ENV{TEST_NGINX_SIX_SENTINELS} = join ' ', $sentinels->servers;
    $ENV{TEST_NGINX_ANNOUNCED} = ($announced->servers)[0];
}

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub both
{
    my $key = new_key();

    is(http_post("/ok?op=$key", 'x', { 'Idempotency-Key' => $key })->body,
       "run 1\n", 'ran');
    is(http_post("/ok?op=$key", 'x', { 'Idempotency-Key' => $key })
       ->header('Idempotent-Replayed'), 'true', 'replayed');
}

sub records { my @keys = $_[0]->keys('idempotency:*'); scalar @keys }

run_tests();

__DATA__

=== TEST 1: one server
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_SIX; }
--- config eval: $::location
--- client
both();
is(records($::six), 1, 'there');



=== TEST 2: a cluster, with replicas that count, and a master that dies
--- store: redis
--- http_config
    idempotency_store own redis {
        server    $TEST_NGINX_SIX_NODES;
        cluster   on;
        replicas  1;
    }
--- config eval: $::location
--- client
both() for 1 .. 15;
cmp_ok(records($_), '>', 0, 'a master has some') for $::cluster->masters;
error_log_unlike(qr/\[error\]|replicas/, 'nothing to say');

my ($master) = $::cluster->masters;
my $replica = $::cluster->replica_of($master);
$master->kill_it;
$::cluster->wait_promoted($replica);

my @keys = map { new_key() } 1 .. 6;
ok(wait_for(sub {
    @keys == grep { http_post('/ok', 'x', { 'Idempotency-Key' => $_ })->status
                    == 200 } @keys }, 20), 'the other is found');



=== TEST 3: sentinels and their master
--- store: redis
--- http_config
    idempotency_store own redis {
        sentinel  $TEST_NGINX_SIX_SENTINELS master=main;
    }
--- config eval: $::location
--- client
both() for 1 .. 3;
is(records($::sentinels->master), 3, 'there');



=== TEST 4: ports that are announced
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_ANNOUNCED; cluster on; }
--- config eval: $::location
--- client
# the one of the configuration leads to all, by their other ports
both() for 1 .. 15;
cmp_ok(records($_), '>', 0, 'a master has some') for $::announced->masters;

my @clients = map { my $n = $_; scalar grep { /cmd=(?:eval|set)/ }
                    split /\n/, $n->command('CLIENT', 'LIST') }
              $::announced->masters;
cmp_ok($_, '>=', 1, 'it is asked') for @clients;

# by way of the proxies: without them nothing
$_->tell('refuse') for values %::proxy;
$_->tell('cut') for values %::proxy;
$_->tell('refuse') for values %::proxy;

my @refused = grep { http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })
                     ->status == 503 } 1 .. 10;
is(scalar @refused, 10, 'by the announced ports only');
