# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# 10,000 requests (on a remote store 4,000) that wait for 100 records: each
# record is watched once in each worker, however many wait for it, and all are
# answered.  On a busy machine it takes minutes until all of them wait: nobody
# gives up before.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($records, $waiters) = (100, ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 10_000 : 4_000);

worker_connections(16384);
run_tests();

__DATA__

=== TEST 1: many waiters of 100 records
--- workers: 2
--- main_config
    worker_rlimit_nofile  16384;
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_wait         1800s;
        idempotency_max_waiters  1000;
        proxy_read_timeout       1800s;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats {
        idempotency_stats  json;
    }
--- client_timeout: 1800
--- client
my $start = time;
my @keys = map { new_key() } 1 .. $::records;

my @holders = map { send_post("/hold?op=m$_", 'x',
                              { 'Idempotency-Key' => $keys[$_] }) }
              0 .. $#keys;
app_wait_parked("m$_") for 0 .. $#keys;

my @w = map { my $n = $_ % $::records;
              send_post("/hold?op=m$n", 'x',
                        { 'Idempotency-Key' => $keys[$n] }) }
        1 .. $::waiters;

ok(wait_for(sub { http_get('/stats')->json->{waiters} == $::waiters }, 900),
   'all wait');

app_release("m$_") for 0 .. $#keys;

my ($answered, $wrong) = (0, 0);

for my $c (@holders, @w) {
    my $r = $c->read_response(60);
    $r && $r->body eq "run 1\n" ? $answered++ : $wrong++;
}

is($answered, $::records + $::waiters, 'all answered');
is($wrong, 0, 'none otherwise');
is(scalar(grep { app_count("m$_") == 1 } 0 .. $#keys), $::records,
   'each ran once');

my $j = http_get('/stats')->json;

is($j->{waiters}, 0, 'nobody waits any more');
# a watch looks by itself once a second; there is one for each record in each
# of two workers, not one for each waiter

my $watches = $j->{stores}[0]{operations}{watch}{ok};

cmp_ok($watches, '<', 2 * $::records * (1.2 * (time - $start) + 3),
       "watched $watches times");
