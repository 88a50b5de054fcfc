# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The MCP SDK, client and server, over streamable HTTP through examples/mcp.conf
# as it is: connections are lost, agents call again, each call runs once.
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

=== TEST 1: agents, their tools, and connections that break
--- client_timeout: 90
--- http_config eval
main::example('mcp', sub { s/\$TEST_NGINX_APP_PORT/\$TEST_NGINX_MCP_PORT/ })
--- config
    location /unused { }
--- client
my $r = run_node($PACKAGE, 'mcp-agents.mjs',
                 { port => $ENV{TEST_NGINX_PORT_2} + 0,
                   server => $ENV{TEST_NGINX_MCP_PORT} + 0 });

is_deeply($r->{tools}, [ 'pay' ], 'the SDK works through the gateway');

my $runs = $r->{runs};

like($r->{request}[0], qr/^error: /, 'a connection lost before the answer');
is($r->{request}[1], 'one paid, run 1', 'the call made anew gets it');
is($runs->{one}, 1, 'ran once');

like($r->{response}[0], qr/^error: /, 'a connection lost in the answer');
is($r->{response}[1], 'two paid, run 1', 'the call made anew gets it');
is($runs->{two}, 1, 'ran once');

like($r->{other}, qr/^error: .*IDEMPOTENCY_CONFLICT/s,
     'other arguments under a key are an error');
is($runs->{three}, undef, 'and do not run');

is_deeply($r->{failed},
          [ 'failed: no', 'four paid, run 2', 'four paid, run 2' ],
          'a call that failed is not kept, the one that did not is');
is($runs->{four}, 2, 'ran twice: the failure, and the other');

is_deeply($r->{two}, [ map { "$_ paid, run 1" } qw(a b a b) ],
          'two agents at once, each twice');
is_deeply([ @$runs{qw(a b)} ], [ 1, 1 ], 'ran once each');

like($r->{stolen}, qr/^error: .*IDEMPOTENCY_CONFLICT/s,
     'an agent does not get what is another\'s');

is_deeply($r->{stream}, [ 'six paid, run 1' ],
          'an event stream: the same message again gets the whole');
is($r->{streamIds}[0], $r->{streamIds}[1], 'it has the same id');
is(scalar @{$r->{streamIds}}, 2, 'and was sent twice');
is($r->{progress}, 1, 'its progress is in the stream, too');
is($runs->{six}, 1, 'ran once');

is_deeply($r->{anew}, [ ('seven paid, run 1') x 3 ],
          'an event stream: calls made anew find their ids in it');
is($r->{anewIds}, 3, 'which were three');
is($runs->{seven}, 1, 'ran once');

is_deeply($r->{failedStream}, [ 'failed: no', 'eight paid, run 2',
                                'eight paid, run 2' ],
          'a call that failed in a stream is not kept, the next one is');
is($runs->{eight}, 2, 'ran twice: the failure, and the other');

is($r->{cuts}, 3, 'three connections were lost');
