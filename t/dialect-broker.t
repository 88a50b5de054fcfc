# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/broker.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

sub headers
{
    return { Cookie => 'session=s1; other=1',
             'Content-Type' => 'application/x-www-form-urlencoded', @_ };
}

run_tests();

__DATA__

=== TEST 1: with a key and without
--- http_config eval: main::example('broker')
--- config
    location /unused { }
--- client
my $uri = '/submit/json?status=201';

# no key: session and fields make one

my $first = example_post($uri, 'name=a&sum=1', headers());
my $retry = example_post($uri, 'name=a&sum=1', headers());

is($first->status, 201, 'ran');
is($first->body, '{"run":1,"ok":true}', 'as the application has it');
is($retry->json->{run}, 1, 'sent again: the same');
is(example_post($uri, 'name=a&sum=2', headers())->json->{run}, 2,
   'other fields');
is(example_post($uri, 'name=a&sum=1', headers(Cookie => 'session=s2'))
   ->json->{run}, 3, 'another session');
is(example_post($uri, 'name=a&sum=1', headers(Cookie => 'other=2; session=s1'))
   ->json->{run}, 1, 'only that cookie counts');

# the replay says so, and answers 200

is($retry->status, 200, 'answers 200');
ok($retry->json->{idempotent}, '"idempotent": true');
like($retry->body, qr/"idempotent":true/, 'as a literal');
is($retry->json->{originalSubmittedAt},
   $retry->header('X-Original-Request-Time'), 'originalSubmittedAt');
like($retry->json->{originalSubmittedAt},
     qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'a time');
ok($retry->json->{ok}, 'the rest is as it was');

# an upload, whose boundary is another each time

my $part = "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
my @r = map { example_post('/submit/json?op=up', "--$_$part--$_--\r\n",
                           headers('Content-Type' =>
                                   "multipart/form-data; boundary=$_")) }
        qw(one two);
is($r[1]->json->{run}, 1, 'an upload again');
ok($r[1]->json->{idempotent}, 'is replayed');

# a key wins, even with other data

my @key = ('Idempotency-Key' => new_key());

is(example_post($uri, 'name=k&sum=1', headers(@key))->json->{run}, 4,
   'with a key');

$retry = example_post($uri, 'name=other&sum=99', headers(@key));
is($retry->json->{run}, 4, 'the key with other data is replayed');
is($retry->status, 200, 'answers 200');
ok($retry->json->{idempotent}, 'says so');

# the fields of another key do not matter either

is(example_post($uri, 'name=k&sum=1',
                headers('Idempotency-Key' => new_key()))->json->{run}, 5,
   'another key with the same data runs');
is(example_post($uri, 'name=a&sum=1',
                headers('Idempotency-Key' => new_key()))->json->{run}, 6,
   'also with data that were sent without');

# but nobody gets the answer of another session

is(example_post($uri, 'name=k&sum=1', headers(@key, Cookie => 'session=s2'))
   ->status, 409, 'the key of another session');

is(app_count('/submit/json'), 6, 'no other execution');
