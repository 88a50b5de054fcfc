# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/ietf.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

sub key { ('Idempotency-Key' => '"' . (defined $_[0] ? $_[0] : new_key()) . '"') }

# a problem as the draft shows it

sub is_problem
{
    my ($r, $status, $title) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $json = $r->json;

    is($r->status, $status, "$status: $title");
    is($r->header('Content-Type'), 'application/problem+json', 'a problem');
    is($r->header('Content-Language'), 'en', 'in English');
    is($json->{title}, $title, 'its title');
    is($json->{status}, $status, 'its status');
    ok($json->{detail}, 'a detail');
    is($json->{type}, 'https://developer.example.com/idempotency',
       'its type is the documentation');
    is($r->header('Link'),
       '<https://developer.example.com/idempotency>; rel="describedby"',
       'which a link leads to');
}

run_tests();

__DATA__

=== TEST 1: draft-ietf-httpapi-idempotency-key-header-07
--- http_config eval: main::example('ietf')
--- config
    location /unused { }
--- client
# POST and PATCH

for my $method (qw(POST PATCH)) {
    my %key = key();
    my $uri = "/headers?op=$method";

    my $first = example_request($method, $uri, '{"a":1}', \%key);
    my $retry = example_request($method, $uri, '{"a":1}', \%key);

    is($first->status, 201, "$method: ran");
    is($retry->status, 201, "$method: the same status");
    is($retry->body, $first->body, "$method: the same body");
    is($retry->header('Location'), $first->header('Location'),
       "$method: the same headers");
    is(app_count($method), 1, "$method: ran once");

    is_problem(example_request($method, $uri, '{"a":1}'), 400,
               'Idempotency-Key is missing');
    is_problem(example_request($method, $uri, '{"a":2}', \%key), 422,
               'Idempotency-Key is already used');

    my $hold = "/hold?op=hold$method";
    %key = key();

    my $c = connect_client(port => $ENV{TEST_NGINX_PORT_2});
    $c->request($method, $hold, 'x', \%key);
    app_wait_parked("hold$method");

    is_problem(example_request($method, $hold, 'x', \%key), 409,
               'A request is outstanding for this Idempotency-Key');
    is_problem(example_request($method, $hold, 'y', \%key), 422,
               'Idempotency-Key is already used');

    app_release("hold$method");
    is($c->read_response->body, "run 1\n", "$method: done");
    is(app_count("hold$method"), 1, "$method: ran once");
}

# the others need none, and are not covered

for my $method (qw(GET PUT DELETE)) {
    example_request($method, "/ok?op=$method", 'x', { key('same') });
    is(example_request($method, "/ok?op=$method", 'x', { key('same') })->body,
       "run 2\n", "$method: not covered");
    is(example_request($method, "/ok?op=$method", 'x')->body, "run 3\n",
       "$method: and needs no key");
}

# a String in quotes

for my $bad ('bare', 'f81d4fae-7dec-41d0-a765-00a0c91e6bf6', '"open', 'a"b"',
             '"a" "b"', '"a", "b"', '17', '?1', ':YQ==:', '"a\\b"', '""', '',
             "\"caf\xc3\xa9\"")
{
    my $r = example_post('/ok?op=bad', 'x', { 'Idempotency-Key' => $bad });

    is($r->status, 400, "no String: $bad");
    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'and says so');
    is($r->json->{type}, 'https://developer.example.com/idempotency',
       'with the documentation');
}

is(app_count('bad'), 0, 'none of them ran');

for my $good ('"8e03978e-40d5-43dd-bc93-6894a57f9324"', '"a b, c; d=e"',
              '"a \"quoted\" \\\\ key"')
{
    is(example_post('/ok?op=good', 'x', { 'Idempotency-Key' => $good })->status,
       200, "a String: $good");
}

# parameters are no part of it

my %key = key('with-parameters');
is(example_post('/ok?op=p', 'x', \%key)->body, "run 1\n", 'a key');
is(example_post('/ok?op=p', 'x',
                { 'Idempotency-Key' => '"with-parameters";a=1;b' })->body,
   "run 1\n", 'is the same with parameters');

is_deeply([ map { $_->status } map { example_post('/ok?op=t', 'x', $_) }
            [ 'Idempotency-Key' => '"a"', 'Idempotency-Key' => '"b"' ] ],
          [ 400 ], 'twice');
