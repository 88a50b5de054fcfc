# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The module loaded but not used: nothing changes, and nothing is said.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: a plain file
--- config
--- request
GET /index.html
--- error_code: 200
--- response_body_like: It works!
--- response_headers
! Idempotent-Replayed
--- no_error_log
[warn]
[error]



=== TEST 2: a proxied POST with a key runs each time
--- config
    location / {
        proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => 'k');

is(http_post('/ok', 'a', \%key)->body, "run 1\n", 'first');
is(http_post('/ok', 'a', \%key)->body, "run 2\n", 'second');

my $r = http_post('/ok', 'b', \%key);

is($r->body, "run 3\n", 'another body');
is($r->header('Idempotent-Replayed'), undef, 'no header of ours');
--- no_error_log
[warn]
[error]
