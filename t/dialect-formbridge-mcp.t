# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The MCP SDK as a client, through examples/formbridge.conf as it is: a tool that
# is called again with its idempotencyKey gets its result again, and runs once.
#
# The package is fetched into build/npm when it is not there yet.  Where there is
# no npm to be had this test says so, and is skipped.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use IdempotencyTest::Npm;
use Test::Nginx::Socket;
use vars qw($PACKAGE);

$PACKAGE = npm_package('@modelcontextprotocol/sdk', '1.32.2', 'the MCP SDK');

plan('no_plan');

# where the SDK's own server listens

$ENV{TEST_NGINX_MCP_PORT} = free_port();

run_tests();

__DATA__

=== TEST 1: an agent and its tool
--- client_timeout: 90
--- http_config eval
main::example('formbridge', sub { s/\$TEST_NGINX_APP_PORT/\$TEST_NGINX_MCP_PORT/ })
--- config
    location /unused { }
--- client
my $r = run_node($PACKAGE, 'mcp.mjs', { port => $ENV{TEST_NGINX_PORT_2} + 0,
                                        server => $ENV{TEST_NGINX_MCP_PORT} + 0 });

is_deeply($r->{tools}, [ 'formbridge_vendor-onboarding_submit' ],
          'the SDK works through the gateway');

is($r->{first}, 'sub_1', 'a call');
is($r->{retry}, 'sub_1', 'the same call again, which has another id');
is($r->{runs}, 1, 'ran once');

like($r->{conflict}, qr/^error: .*already used with different payload/s,
     'other fields under its key are an error of the client');
is($r->{runsAfterConflict}, 1, 'nothing ran');

like($r->{lost}, qr/^error: fetch failed/, 'a response that is lost');
is($r->{found}, 'sub_2', 'is found by the retry');
is($r->{runsAfterLoss}, 2, 'and ran once');

is_deeply($r->{together}, [ 'sub_3', 'sub_3' ], 'two at once get one result');
is($r->{runsTogether}, 3, 'and run once');

is_deeply($r->{without}, [ 'sub_4', 'sub_5' ], 'without a key each call runs');
