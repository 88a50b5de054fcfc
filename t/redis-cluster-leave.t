# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A node leaves the cluster for good while requests run: what is asked of its
# slots goes to who has them, and nothing is left of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $cluster;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $cluster = start_cluster();
    $ENV{TEST_NGINX_SEED} = ($cluster->servers)[1];
}

run_tests();

__DATA__

=== TEST 1: a node leaves
--- store: redis
--- http_config
    idempotency_store own redis { server $TEST_NGINX_SEED; cluster on; }
--- config
    location / {
        idempotency  own;
        idempotency_wait 5s;
        add_header X-Record $idempotency_record always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 90
--- client
my ($old) = $::cluster->masters;
my $other = ($::cluster->nodes)[2];
my $load = start_load(ports => [ $port ]);
sleep(1);

$::cluster->fail_over($old);

# it may hear of the others once more, before it is reset

my $forget = sub {
    eval { $_->command('CLUSTER', 'FORGET', $old->{id}) }
        for grep { $_ != $old } $::cluster->nodes;
};

$forget->();
$old->command('CLUSTER', 'RESET', 'HARD');
$forget->();

# whoever loses a connection asks for the map

$other->command('CLIENT', 'KILL', 'TYPE', 'normal');

ok(wait_for(sub { error_log()
                  =~ /Redis at 127\.0\.0\.1:$old->{port} left the cluster/ },
            15), 'it left');

sleep(1);
$old->reset_calls;
sleep(1);
is($old->round_trips, 0, 'it is not asked any more');
$load->stop;

my $r = check_load($load);

cmp_ok($r->{keys}, '>', 100, 'there was load');
is_deeply($r->{unanswered}, [], 'every key was answered');
is_deeply($r->{twice}, [], 'nothing ran twice');
