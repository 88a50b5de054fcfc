# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The clients of OpenAI and Anthropic for node, with their automatic retries,
# through examples/llm.conf as it is: a stream that the client lost is there for
# the retry, from its begin to its end, and the application ran once.
#
# The packages are fetched into build/npm when they are not there yet.  Where
# there is no npm to be had this test says so, and is skipped.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use IdempotencyTest::Npm;
use Test::Nginx::Socket;
use vars qw(%PACKAGE $WHOLE);

%PACKAGE = ('openai' => '6.49.0', '@anthropic-ai/sdk' => '1.8.0');

for my $name (sort keys %PACKAGE) {
    $PACKAGE{$name} = npm_package($name, $PACKAGE{$name},
                                  'the clients of OpenAI and Anthropic');
}

plan('no_plan');

$WHOLE = 'The money is spent once.';

# where the application listens

$ENV{TEST_NGINX_LLM_PORT} = free_port();

sub client
{
    my $name = shift;

    my $r = run_node($PACKAGE{$name}, 'llm.mjs',
                     { package => $name, port => $ENV{TEST_NGINX_PORT_2} + 0,
                       server => $ENV{TEST_NGINX_LLM_PORT} + 0 });

    my ($runs, $seen) = @$r{qw(runs seen)};

    my $whole = sub {
        my ($got, $what) = @_;

        is($got->{text}, $WHOLE, "$what: each event");
        is($got->{ended}, 'stop', "$what: and the end");
        like($got->{id}, qr/\D1$/, "$what: of the first run");
        is($got->{error}, undef, "$what: no error");
    };

    $whole->($r->{plain}, 'plain');

    $whole->($r->{before}, 'lost before the answer');
    is($runs->{before}, 1, 'ran once');
    is_deeply($seen->{before}, [ map { { key => 'before', retry => $_ } } 0, 1 ],
              'the client retried by itself, with the same key');

    my ($lost, $again) = @{$r->{middle}};

    like($lost->{text}, qr/^The money/, 'lost in the middle: some words came');
    isnt($lost->{text}, $WHOLE, 'and not all');
    ok($lost->{error}, 'the client says so');
    ok(!$r->{early}, 'the application goes on');
    $whole->($again, 'the retry');
    is($runs->{middle}, 1, 'ran once');

    is($r->{busy}{text}, $WHOLE, 'an error of the application is retried');
    is($runs->{busy}, 2, 'and runs again');

    $whole->($r->{large}[0], 'larger than what is kept');
    is($r->{large}[1]{error}, 'status 507', 'its retry gets an error');
    is($runs->{large}, 1, 'ran once');
    is(scalar @{$seen->{large}}, 2, 'the client does not insist');

    is($r->{conflict}{error}, 'status 422', 'another prompt under a key');
    is($runs->{conflict}, undef, 'does not run');
    is(scalar @{$seen->{conflict}}, 1, 'nor is it tried again');

    is_deeply($seen->{without}, [ map { { key => undef, retry => $_ } } 0, 1 ],
              'by itself the client sends no key');
    is($runs->{without}, 2, 'so that its retry runs');

    is($r->{cuts}, 3, 'three connections were lost');
}

run_tests();

__DATA__

=== TEST 1: OpenAI's client
--- client_timeout: 90
--- http_config eval
main::example('llm', sub { s/\$TEST_NGINX_APP_PORT/\$TEST_NGINX_LLM_PORT/ })
--- config
    location /unused { }
--- client
client('openai');



=== TEST 2: Anthropic's client
--- client_timeout: 90
--- http_config eval
main::example('llm', sub { s/\$TEST_NGINX_APP_PORT/\$TEST_NGINX_LLM_PORT/ })
--- config
    location /unused { }
--- client
client('@anthropic-ai/sdk');
