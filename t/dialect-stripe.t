# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/stripe.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

sub headers
{
    return { 'Content-Type' => 'application/x-www-form-urlencoded',
             Authorization => 'Bearer sk_test_1',
             'Idempotency-Key' => new_key(), @_ };
}

run_tests();

__DATA__

=== TEST 1: what clients of Stripe expect
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
# the same status as the original, whatever it was

for my $status (200, 201, 400, 402, 404, 500, 503) {
    my $h = headers();
    my $first = example_post("/v1/status/$status", 'amount=1', $h);
    my $retry = example_post("/v1/status/$status", 'amount=1', $h);

    is($first->status, $status, "$status: ran");
    is($retry->status, $status, "$status: the same status");
    is($retry->body, $first->body, "$status: the same body");
    is($retry->header('Idempotent-Replayed'), 'true', "$status: replayed");
    is(app_count("/v1/status/$status"), 1, "$status: ran once");

    is($_->header('Stripe-Should-Retry'), $status >= 500 ? 'false' : undef,
       "$status: Stripe-Should-Retry") for $first, $retry;
    is($_->header('Idempotency-Key'), $h->{'Idempotency-Key'},
       "$status: the key is echoed") for $first, $retry;
}

# save where nothing was done

for my $status (401, 409, 429) {
    my $h = headers();
    example_post("/v1/status/$status", 'amount=1', $h);
    is(example_post("/v1/status/$status", 'amount=1', $h)->body, "run 2\n",
       "$status: may be tried again");
}

# 409 while it runs

my $h = headers();
my $c = example_send('/v1/hold?op=hold', 'amount=1', $h);
app_wait_parked('hold');

my $r = example_post('/v1/hold?op=hold', 'amount=1', $h);
is($r->status, 409, 'while it runs');
is_deeply($r->json->{error}, {
    type => 'invalid_request_error', code => 'idempotency_key_in_use',
    message => 'There is currently another in-progress request using this '
               . 'Idempotent Key (that probably means you submitted twice, and '
               . 'the other request is still going through). Please try again '
               . 'later.' }, 'as Stripe says it');
is($r->header('Stripe-Should-Retry'), 'true', 'Stripe-Should-Retry: true');
is($r->header('Retry-After'), 1, 'Retry-After: 1');
is($r->header('Idempotency-Key'), $h->{'Idempotency-Key'},
   'Idempotency-Key is echoed');
app_release('hold');
is($c->read_response->body, "run 1\n", 'done');

# other parameters

$h = headers();
is(example_post('/v1/charges', 'amount=1&currency=usd', $h)->body, "run 1\n",
   'ran');
is(example_post('/v1/charges', 'currency=usd&amount=%31', $h)->body,
   "run 1\n", 'the same parameters');
$r = example_post('/v1/charges', 'amount=2&currency=usd', $h);
is($r->status, 400, 'other parameters are refused');
is($r->header('Content-Type'), 'application/json', 'in JSON');
is_deeply($r->json->{error}, {
    type => 'idempotency_error',
    message => 'Keys for idempotent requests can only be used with the same '
               . 'parameters they were first used with. Try using a different '
               . 'key if you meant to execute a different request.',
    }, 'as Stripe says it');
is($r->header('Stripe-Should-Retry'), 'false', 'Stripe-Should-Retry: false');
is($r->header('Idempotency-Key'), $h->{'Idempotency-Key'},
   'Idempotency-Key is echoed');
is(example_post('/v1/refunds', 'amount=1&currency=usd', $h)->status, 400,
   'so is another operation');
is(app_count('/v1/charges'), 1, 'ran once');

# keys up to 255

for my $key ('k', 'a key:with/any+characters', 'x' x 255) {
    $h = headers('Idempotency-Key' => $key =~ / / ? "\"$key\"" : $key);
    my $op = length $key;

    is(example_post("/v1/ok?op=$op", 'a=1', $h)->body, "run 1\n",
       "a key of $op");
    is(example_post("/v1/ok?op=$op", 'a=1', $h)->body, "run 1\n", 'counts');
}

is(example_post('/v1/ok', 'a=1', headers('Idempotency-Key' => 'x' x 256))
   ->status, 400, 'not of 256');

# POST only, and only with a key

$h = headers();
example_request('DELETE', '/v1/ok?op=d', undef, $h);
is(example_request('DELETE', '/v1/ok?op=d', undef, $h)->body, "run 2\n",
   'DELETE is not covered');



=== TEST 2: 24 h
--- http_config eval
main::example('stripe', sub { s/(idempotency_ttl +)24h;/${1}500ms;/ })
--- config
    location /unused { }
--- client
my $h = headers();

is(example_post('/v1/ok', 'a=1', $h)->body, "run 1\n", 'ran');
is(example_post('/v1/ok', 'a=1', $h)->body, "run 1\n", 'replayed');
ok(wait_for(sub { example_post('/v1/ok', 'a=1', $h)->body eq "run 2\n" }, 10),
   'until the time is over');



=== TEST 3: money is moved at most once
--- http_config eval
main::example('stripe', sub { s/(idempotency_ttl )/idempotency_lease 1s; $1/ })
--- config
    location /unused { }
--- client
my $h = headers();

is(example_post('/v1/close', 'amount=1', $h)->status, 502,
   'the application dies with it');

# also when a lease would be over

select undef, undef, undef, 1.5;

my $r = example_post('/v1/close', 'amount=1', $h);

is($r->status, 409, 'a retry is refused');
is($r->json->{error}{type}, 'api_connection_error', 'says why');
is($r->header('Stripe-Should-Retry'), 'false', 'Stripe-Should-Retry: false');
is(app_count('/v1/close'), 1, 'ran once');


=== TEST 4: what nginx itself refuses
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
# a chunk without a length: no error of the module, and yet one of this shape

my $r = http_raw("POST /v1/charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "
                 . "550e8400-e29b-41d4-a716-446655440000\r\n"
                 . "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                 port => $ENV{TEST_NGINX_PORT_2});

is($r->status, 400, 'refused with 400');
is_deeply($r->json, { error => {
    type => 'api_error',
    message => 'The request was refused by nginx (status 400)' } },
          'with a body that says so');
