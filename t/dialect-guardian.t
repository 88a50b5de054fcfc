# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/guardian.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

# a UUID of version 4 that is new in this process

sub uuid
{
    our $n;

    return sprintf 'f81d4fae-7dec-41d0-a765-%012x', ++$n;
}

sub headers { return { 'X-User-Id' => 'u1', 'Idempotency-Key' => uuid(), @_ } }

run_tests();

__DATA__

=== TEST 1: keys, users, failures, concurrency
--- http_config eval: main::example('guardian')
--- config
    location /unused { }
--- client
my $h = headers();

is(example_post('/ok?op=a', 'x', $h)->body, "run 1\n", 'ran');
is(example_post('/ok?op=a', 'x', $h)->body, "run 1\n", 'replayed');

# UUID v4 only

for my $bad ('abc', 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6',
             'f81d4fae-7dec-51d0-a765-00a0c91e6bf6',
             'f81d4fae-7dec-41d0-c765-00a0c91e6bf6',
             'f81d4fae7dec41d0a76500a0c91e6bf6',
             '{f81d4fae-7dec-41d0-a765-00a0c91e6bf6}',
             'f81d4fae-7dec-41d0-a765-00a0c91e6bf', '')
{
    my $r = example_post('/ok?op=bad', 'x', headers('Idempotency-Key' => $bad));

    is($r->status, 400, "no UUID v4: $bad");
    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'and says so');
}

is(app_count('bad'), 0, 'none of them ran');
is(example_post('/ok?op=upper', 'x',
   headers('Idempotency-Key' => uc uuid()))->status, 200, 'in capitals');

# scoped by user

is(example_post('/ok?op=a', 'x', { %$h, 'X-User-Id' => 'u2' })->body,
   "run 2\n", 'the same key of another user');
is(example_post('/ok?op=a', 'y', { %$h, 'X-User-Id' => 'u2' })->status, 409,
   'is a key of its own');
is(example_post('/ok?op=a', 'x', { %$h, Authorization => 'new token' })->body,
   "run 1\n", 'a new token is the same user');

# 409 CONCURRENT_REQUEST at once

$h = headers();
my $c = example_send('/hold?op=hold', 'x', $h);
app_wait_parked('hold');

my $r = example_post('/hold?op=hold', 'x', $h);
is($r->status, 409, 'while it runs');
is($r->error_code, 'CONCURRENT_REQUEST', 'CONCURRENT_REQUEST');
app_release('hold');
is($c->read_response->body, "run 1\n", 'it was still running');

# failures are replayed as well

for my $status (400, 401, 403, 404, 409, 422, 429, 500, 501, 503) {
    $h = headers();
    is(example_post("/status/$status", 'x', $h)->status, $status, "$status: ran");

    $r = example_post("/status/$status", 'x', $h);
    is($r->status, $status, "$status: replayed");
    is($r->header('Idempotent-Replayed'), 'true', "$status: which it says");
    is(app_count("/status/$status"), 1, "$status: ran once");
}



=== TEST 2: compressed records
--- store: memory
--- http_config eval
"idempotency_store tiny memory { zone tiny:512k; }\n"
. main::example('guardian', sub { s/\$TEST_STORE/tiny/ })
--- config
    location /unused { }
--- client
# 2.4 MB of responses in half a megabyte

my @h = map { headers() } 1 .. 80;

example_post("/size?n=30000&op=$_", 'x', $h[$_ - 1]) for 1 .. 80;

my @r = map { example_post("/size?n=30000&op=$_", 'x', $h[$_ - 1]) } 1 .. 80;

is(scalar(grep { $_->status == 200 && length $_->body == 30000 } @r), 80,
   'all of them are there');
is(app_count(1), 1, 'the first ran once');



=== TEST 3: 24 h
--- http_config eval
main::example('guardian', sub { s/(idempotency_ttl +)24h;/${1}500ms;/ })
--- config
    location /unused { }
--- client
my $h = headers();

is(example_post('/ok', 'x', $h)->body, "run 1\n", 'ran');
is(example_post('/ok', 'x', $h)->body, "run 1\n", 'replayed');
ok(wait_for(sub { example_post('/ok', 'x', $h)->body eq "run 2\n" }, 10),
   'until the time is over');
