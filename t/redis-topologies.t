# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The block of a Redis store that is more than one server: what goes together
# and what does not, and a cluster that is taken for one server.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $cluster;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster(replicas => 0);
    $ENV{TEST_NGINX_SEED} = ($cluster->servers)[0];
    $ENV{TEST_NGINX_SEEDS} = join ' ', $cluster->servers;
}

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

our $in = qr/store "own" in .*nginx\.conf:\d+/;

run_tests();

__DATA__

=== TEST 1: sentinels and a server
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1; sentinel 127.0.0.1:2 master=a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has "sentinel" and "server": the sentinels tell which server it is/



=== TEST 2: sentinels and a cluster
--- store: redis
--- http_config
    idempotency_store own redis { cluster on; sentinel 127.0.0.1:2 master=a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has "sentinel" and "cluster on": a cluster elects its masters itself/



=== TEST 3: a sentinel without a master
--- store: redis
--- http_config
    idempotency_store own redis { sentinel 127.0.0.1:2; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has a "sentinel" without "master=": .*for example/



=== TEST 4: a master without a sentinel
--- store: redis
--- http_config
    idempotency_store own redis { sentinel master=a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has a "sentinel" without an address: .*for example/



=== TEST 5: two masters
--- store: redis
--- http_config
    idempotency_store own redis {
        sentinel 127.0.0.1:1 master=a;
        sentinel 127.0.0.1:2 master=b;
    }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid "master=b" in "sentinel" directive: it is the name that all sentinels have for the one master.* in .*nginx\.conf:\d+/



=== TEST 6: an empty master
--- store: redis
--- http_config
    idempotency_store own redis { sentinel 127.0.0.1:1 master=; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid "master=" in "sentinel" directive: .* in .*nginx\.conf:\d+/



=== TEST 7: a sentinel that is no address
--- store: redis
--- http_config
    idempotency_store own redis { sentinel 127.0.0.1:x master=a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid sentinel "127\.0\.0\.1:x", invalid port: it is <host>:<port>, for example 127\.0\.0\.1:26379 in .*nginx\.conf:\d+/



=== TEST 8: a sentinel on a unix socket
--- store: redis
--- http_config
    idempotency_store own redis { sentinel unix:/tmp/none master=a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has a "sentinel" that is a unix socket/



=== TEST 9: credentials of sentinels without any
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1; sentinel_password a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has "sentinel_\.\.\." directives without a "sentinel"/



=== TEST 10: a user of sentinels without a password
--- store: redis
--- http_config
    idempotency_store own redis { sentinel 127.0.0.1:1 master=a; sentinel_user a; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has a "sentinel_user" without a "sentinel_password" or "sentinel_password_file"/



=== TEST 11: two passwords of sentinels
--- store: redis
--- http_config
    idempotency_store own redis { sentinel 127.0.0.1:1 master=a; sentinel_password a; sentinel_password_file nginx.conf; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*"sentinel_password_file" directive is duplicate: there is one password/



=== TEST 12: several servers that are no cluster
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1 127.0.0.1:2; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has more than one "server": this is for "cluster on"/



=== TEST 13: a cluster and a db
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1; cluster on; db 1; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has "cluster on" and a "db" other than 0/



=== TEST 14: a cluster on a unix socket
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1; server unix:/tmp/none; cluster on; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has "cluster on" and a "server" that is a unix socket/



=== TEST 15: a cluster without a server
--- store: redis
--- http_config
    idempotency_store own redis { cluster on; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*$::in has no "server": it needs one/



=== TEST 16: a cluster that is taken for one server
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_SEED; }
--- config eval: $::location
--- client
my %seen;

$seen{ http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status }++
    for 1 .. 30;

cmp_ok($seen{200}, '>', 0, 'some of its records');
cmp_ok($seen{503}, '>', 0, 'not those of others');
error_log_like(qr/the server is of a cluster, and there is no "cluster on": MOVED \d+ /, 'told');



=== TEST 17: one server that is taken for a cluster
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_REDIS_PORT; cluster on; }
--- config eval: $::location
--- client
is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 503,
   'refused');
error_log_like(qr/\[error\] .*store "own": nobody tells the slots of the cluster, 127\.0\.0\.1:\d+ was asked last: ERR This instance has cluster support disabled/, 'told');



=== TEST 18: a prefix with a hash tag, and db 0
--- store: redis
--- http_config
    idempotency_store own redis {
        server   $TEST_NGINX_SEED;
        server   $TEST_NGINX_SEEDS;
        cluster  on;
        db       0;
        prefix   "a{prod}b:";
    }
--- config eval: $::location
--- client
$::cluster->flush;

is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'ran') for 1 .. 10;

my @has = grep { my @k = $_->keys('a{prod}b:*'); @k == 10 } $::cluster->masters;

is(scalar @has, 1, 'all on one node');
is($has[0]->command('CLUSTER', 'COUNTKEYSINSLOT', $::cluster->slot('prod')),
   10, 'in the slot of the tag');
like(error_log(), qr/\[warn\] .*$::in has a "prefix" with a hash tag, "a\{prod\}b:": all records are in one slot/, 'told');



=== TEST 19: a prefix with braces that are no hash tag
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_SEED; cluster on; prefix "a{}b:"; }
--- config eval: $::location
--- client
$::cluster->flush;

is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'ran') for 1 .. 30;

is(scalar(grep { my @k = $_->keys; @k } $::cluster->masters), 3, 'on all');
error_log_unlike(qr/hash tag/, 'no warning');



=== TEST 20: a slot that no node has
--- store: redis
--- http_config
    idempotency_store own redis {
        server   $TEST_NGINX_SEED;
        cluster  on;
        prefix   "{prod}:";
        timeout  3s;
    }
--- config eval: $::location
--- client_timeout: 60
--- client
sub post { http_post('/ok?op=slot', 'x', { 'Idempotency-Key' => new_key() }) }

my $slot = $::cluster->slot('prod');
my $owner = $::cluster->node_of($slot);

is(post()->status, 200, 'ran');

$_->command('CLUSTER', 'DELSLOTS', $slot) for $::cluster->nodes;
$::cluster->reset_calls;

is(post()->status, 503, 'refused');
is(app_count('slot'), 1, 'did not run');
SKIP: {
    skip 'the server does not count that', 3
        if !IdempotencyTest::Redis->knows('subcommandstats');

    ok($owner->errors('CLUSTERDOWN') || $::cluster->calls('cluster|slots'),
       'it was asked, or for the map');
    cmp_ok($owner->errors('CLUSTERDOWN'), '<', 100, 'not all the time');
    cmp_ok($::cluster->calls('cluster|slots'), '<', 30, 'nor is the map');
}

# what waits goes on when it has one again

my $c = send_post('/ok?op=slot', 'x', { 'Idempotency-Key' => new_key() });

$owner->command('CLUSTER', 'ADDSLOTS', $slot);
$_->command('CLUSTER', 'SETSLOT', $slot, 'NODE', $owner->{id})
    for grep { $_->{id} ne $owner->{id} } $::cluster->nodes;

ok(wait_for(sub { post()->status == 200 }, 20), 'ran again');
like($c->read_response->status, qr/^(?:200|503)$/, 'the one that waited');
