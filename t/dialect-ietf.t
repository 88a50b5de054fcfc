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



=== TEST 2: the scenarios of idempot-js: keys
--- http_config eval: main::example('ietf')
--- config
    location /unused { }
--- client
my $body = '{"foo":"bar"}';

app_answer('/api', { body => '{"success":true,"order":{run}}' });

# missing, empty, too long, with commas: each is a problem, not to be retried

my %bad = (
    'missing'   => [ undef, 'IDEMPOTENCY_KEY_MISSING' ],
    'empty'     => [ '', 'IDEMPOTENCY_KEY_INVALID' ],
    'too long'  => [ '"' . 'a' x 256 . '"', 'IDEMPOTENCY_KEY_INVALID' ],
    'commas'    => [ 'key,with,commas,longer-than-twenty-chars',
                     'IDEMPOTENCY_KEY_INVALID' ],
);

for my $name (sort keys %bad) {
    my ($value, $code) = @{ $bad{$name} };
    my $r = example_post('/api', $body, defined $value
                         ? { 'Idempotency-Key' => $value } : {});
    my $json = $r->json;

    is($r->status, 400, "$name: 400");
    is($r->header('Content-Type'), 'application/problem+json',
       "$name: a problem");
    ok(defined $json->{$_}, "$name: has $_") for qw(type title detail status);
    is($json->{error}{code}, $code, "$name: its code");
    ok(exists $json->{error}{retryable} && !$json->{error}{retryable},
       "$name: retryable is false");
}

is(app_count('/api'), 0, 'none of them ran');

# a valid one

is(example_post('/api', $body, { key('8e03978e-40d5-43e8-bc93-6894a57f9324') })
   ->status, 200, 'a valid key is accepted');

# where the draft is on our side: the value is a String of RFC 8941, so a comma
# may be in it, and a bare word is none

is(example_post('/api', $body, { key('key,with,commas') })->status, 200,
   'a String may have commas');
is(example_post('/api', $body, { 'Idempotency-Key' => 'abc123456789012345678' })
   ->status, 400, 'a bare word is no String');



=== TEST 3: the scenarios of idempot-js: first, duplicate, conflict
--- http_config eval: main::example('ietf')
--- config
    location /unused { }
--- client
my ($body, $other) = ('{"foo":"bar"}', '{"baz":"qux"}');
my %key = key('abc123456789012345678');

app_answer('/api', { body => '{"success":true,"order":{run}}' });

# the first request

my $first = example_post('/api', $body, \%key);

is($first->status, 200, 'the first one runs');
like($first->body, qr/success/, 'with its response');
is($first->header('Idempotent-Replayed'), undef, 'it is no replay');
is(app_count('/api'), 1, 'one order');

# its duplicates

for my $n (1 .. 3) {
    my $r = example_post('/api', $body, \%key);

    is($r->status, 200, "duplicate $n: the same status");
    is($r->body, $first->body, "duplicate $n: the same body");
    is($r->header('Idempotent-Replayed'), 'true', "duplicate $n: says so");
}

is(app_count('/api'), 1, 'still one order');

# the key with another body

my $r = example_post('/api', $other, \%key);
is_problem($r, 422, 'Idempotency-Key is already used');
ok(!$r->json->{error}{retryable}, 'not to be retried');
is(app_count('/api'), 1, 'one order');

# another key with the same body: where the draft is on our side.  A new key is
# a new request; idempot-js refuses it with 409

is(example_post('/api', $body, { key('key2-12345678901234567') })->status, 200,
   'another key with the same body is another request');
is(app_count('/api'), 2, 'and runs');

# while the first one runs

app_answer('/slow-order', { body => '{"success":true}', hold => 1 });

%key = key('slow-12345678901234567');
my $c = example_send('/slow-order', $body, \%key);
app_wait_parked('/slow-order');

$r = example_post('/slow-order', $body, \%key);
is_problem($r, 409, 'A request is outstanding for this Idempotency-Key');
ok($r->json->{error}{retryable}, 'to be retried');
ok($r->header('Retry-After'), 'and when');

is_problem(example_post('/slow-order', $other, \%key), 422,
           'Idempotency-Key is already used');

app_release('/slow-order');
is($c->read_response->status, 200, 'it ends in order');

# methods and bodies

for my $method (qw(GET PUT DELETE)) {
    is(example_request($method, '/api', $method eq 'PUT' ? $body : undef,
                       { key('abc123456789012345678') })->status, 200,
       "$method passes");
}

%key = key('empty-2345678901234567');
is(example_post('/api', '', \%key)->status, 200, 'an empty body');
is(example_post('/api', '', \%key)->header('Idempotent-Replayed'), 'true',
   'is a body');

%key = key('patch-2345678901234567');
my @patch = map { example_request('PATCH', '/api', $body, \%key) } 1, 2;
is($patch[1]->body, $patch[0]->body, 'PATCH is covered');



=== TEST 4: the scenarios of idempot-js: no store
--- store: redis postgres
--- provokes: redis
--- http_config eval
"idempotency_store away \$TEST_REMOTE { server 127.0.0.1:\$TEST_NGINX_DEAD_PORT; }\n"
. main::example('ietf', sub { s/\$TEST_STORE/away/g })
--- config
    location /unused { }
--- client
my $r = example_post('/api', '{"foo":"bar"}', { key('abc123456789012345678') });

is($r->status, 503, 'the store is away');
is($r->header('Content-Type'), 'application/problem+json', 'a problem');
is($r->error_code, 'STORE_UNAVAILABLE', 'which says so');
ok($r->json->{error}{retryable}, 'to be retried');
is(app_count('/api'), 0, 'nothing ran');
