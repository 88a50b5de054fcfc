# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Operations that have more time than a failover takes live to see it: what
# was asked of a master that is frozen is asked of its successor.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $cluster;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster();
    $ENV{TEST_NGINX_SEEDS} = join ' ', $cluster->servers;
}

run_tests();

__DATA__

=== TEST 1: a begin and a commit
--- store: redis
--- http_config
    idempotency_store own redis {
        server   $TEST_NGINX_SEEDS;
        cluster  on;
        prefix   "{prod}:";
        timeout  25s;
    }
--- config
    location / {
        idempotency        own;
        idempotency_lease  60s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 90
--- client
my $master = $::cluster->node_of($::cluster->slot('prod'));
my $replica = $::cluster->replica_of($master);

my %a = ('Idempotency-Key' => new_key());
my %b = ('Idempotency-Key' => new_key());

my $first = send_post('/hold?op=a', 'x', \%a);
app_wait_parked('a');

# its lock is on the replica, too

wait_for(sub { my @k = $replica->keys('{prod}:*'); @k }, 10)
    or die "it is not replicated\n";

$master->pause;
app_release('a');
my $second = send_post('/ok?op=b', 'x', \%b);

is($first->read_response(25)->body, "run 1\n", 'the commit');
is($second->read_response(25)->body, "run 1\n", 'the begin');
error_log_unlike(qr/commit in store .* failed|STORE_UNAVAILABLE/,
                 'within their time');

is(http_post('/hold?op=a', 'x', \%a)->header('Idempotent-Replayed'), 'true',
   'replayed');
is(http_post('/ok?op=b', 'x', \%b)->header('Idempotent-Replayed'), 'true',
   'replayed');
is(app_count($_), 1, 'ran once') for qw(a b);

my @keys = $replica->keys('{prod}:*');
is(scalar @keys, 2, 'at the successor');

# and what the old one was sent is worth nothing when it is back

$master->resume;
$::cluster->heal;

is(http_post('/ok?op=b', 'x', \%b)->header('Idempotent-Replayed'), 'true',
   'replayed');
is(app_count('b'), 1, 'ran once');
