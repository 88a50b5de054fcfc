# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Memory that can't be had while the variables of a policy are evaluated: what
# is kept does not become less, and nothing runs twice for it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest::Faults;              # before IdempotencyTest
use IdempotencyTest;
use IdempotencyTest::Walk;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: statuses, format, details and a long label by variables
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_wait             0;
        idempotency_keep_status      "2xx $http_x_keep" $arg_keep;
        idempotency_key_format       "${arg_format}en";
        idempotency_conflict_detail  "${arg_detail}s";
        idempotency_tenant           "$http_x_tenant-$http_x_tenant";
        idempotency_actor            "$http_x_tenant+$http_x_tenant" plain;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 180
--- client
my $send = sub {
    my ($key, $body) = @_;

    send_post("/status/501?op=$key&keep=501&format=tok&detail=value",
              $body || '{"a":1}',
              { 'Idempotency-Key' => $key, 'X-Keep' => '!204 3xx',
                'X-Tenant' => 'a' x 60, 'Content-Type' => 'application/json' })
        ->read_response(6);
};

walk(name => 'fresh', request => $send, answers => [501], retry => [501, 507]);
walk(name => 'replay', request => $send, prepare => $send, answers => [501],
     retry => [501]);
walk(name => 'conflict', answers => [409], retry => [501], again => $send,
     prepare => $send, request => sub { $send->($_[0], '{"a":2}') });
