# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The end of a stream is passed on after its commit: a client that saw it can
# have the whole again.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $redis;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis();

    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
}

run_tests();

__DATA__

=== TEST 1: a store that is slow to answer holds up the end only
--- store: redis
--- http_config
    idempotency_store far redis {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout  30s;
    }
--- config
    location / {
        idempotency      far;
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $how ('', '&chunked=1') {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "/size?n=2000&hold=body&type=text/event-stream&op=slow$how";

    my $c = send_post($uri, 'x', \%key);
    app_wait_parked('slow');
    cmp_ok(length $c->read_some(900), '>=', 900, "$uri: begins");
    $::redis->pause;
    app_release('slow');

    ok(!defined $c->read_response(1), "$uri: no end before the commit");
    cmp_ok(length $c->{in}, '>', 1999, "$uri: but all the rest");

    $::redis->resume;
    my $first = $c->read_response(10);
    is(length $first->body, 2000, "$uri: the end");
    ok(http_post($uri, 'x', \%key)->body eq $first->body, "$uri: replayed");
    is(app_count('slow'), 1, "$uri: ran once");
    app_reset();
}
