# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# $idempotency_replay_count: how often this nginx has replayed a record.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: counted by record, and anew for a new response
--- config
    idempotency      $TEST_STORE;
    idempotency_ttl  2s;
    add_header       X-Count "$idempotency_replay_count" always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($a, $b) = (new_key(), new_key());
my $count = sub {
    return scalar http_post('/headers?op=a', 'x',
                            { 'Idempotency-Key' => $_[0] })->header('X-Count');
};

is($count->($a), undef, 'the first one is no replay');
is($count->($a), 1, 'the first replay');
is($count->($a), 2, 'the second');
$count->($b);
is($count->($b), 1, 'another record');
is($count->($a), 3, 'the third');

sleep 3;

is($count->($a), undef, 'it expired, and runs again');
is($count->($a), 1, 'the new response has no replays yet');
