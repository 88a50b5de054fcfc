# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/thorbis.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

sub headers
{
    my %h = ('X-Tenant-Id' => 'acme', 'Content-Type' => 'application/json',
             @_);

    delete $h{$_} for grep { !defined $h{$_} } keys %h;

    return \%h;
}

run_tests();

__DATA__

=== TEST 1: scope, derived keys, what counts, headers
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
my $uri = '/api/invoices';
my @key = ('Idempotency-Key' => 'k-1');

my $first = example_post($uri, '{"total":1}', headers(@key));
my $retry = example_post($uri, '{"total":1}', headers(@key));

is($first->body, "run 1\n", 'ran');
is($first->header('X-Idempotency-Replay'), undef, 'no replay');
is($retry->body, "run 1\n", 'replayed');
is($retry->header('X-Idempotency-Replay'), 'true',
   'X-Idempotency-Replay: true');
is($retry->header('X-Idempotency-Conflict'), undef, 'no conflict');

# tenant and METHOD:route are the scope

is(example_post($uri, '{"total":1}', headers(@key, 'X-Tenant-Id' => 'other'))
   ->body, "run 2\n", 'another tenant');
is(example_request('PUT', $uri, '{"total":1}', headers(@key))->body,
   "run 3\n", 'another method');
is(example_post('/api/payments', '{"total":1}', headers(@key))->body,
   "run 1\n", 'another route');
is(example_post('/api/payments', '{"total":1}', headers(@key))
   ->header('X-Idempotency-Replay'), 'true', 'each replays its own');

# no key: one is made of the content

is(example_post($uri, '{"total":2}', headers())->body, "run 4\n", 'no key');
my $folded = example_post($uri, '{"total":2}', headers());
is($folded->body, "run 4\n", 'the same content');
is($folded->header('X-Idempotency-Replay'), 'true', 'is replayed');
is(example_post($uri, '{"total":3}', headers())->body, "run 5\n",
   'other content');
is(example_post($uri, '{"total":2}', headers('X-Tenant-Id' => 'other'))->body,
   "run 6\n", 'another tenant');

# JSON is normalised, arrays have no order, and some members do not count

my $one = '{"lines":[{"sku":"a","n":1},{"sku":"b","n":2}],"to":"x"}';

example_post('/api/x', $one, headers());

for my $same (
    '{"to":"x","lines":[{"n":1,"sku":"a"},{"n":2,"sku":"b"}]}',
    '{ "lines" : [{"sku":"b","n":2}, {"sku":"a","n":1}], "to" : "\u0078" }',
    (map { "{\"$_\":17,\"lines\":[{\"sku\":\"a\",\"n\":1,\"$_\":{\"z\":1}},"
           . '{"sku":"b","n":2}],"to":"x"}' }
     qw(created_at updated_at timestamp _metadata request_id trace_id
        session_id)))
{
    my @key = ('Idempotency-Key' => new_key());

    example_post('/api/x', $one, headers(@key));
    is(example_post('/api/x', $same, headers(@key))
       ->header('X-Idempotency-Replay'), 'true', "the same: $same");

    # and without a key

    is(example_post('/api/x', $same, headers())->header('X-Idempotency-Replay'),
       'true', 'the same content');
}

for my $other ('{"lines":[{"sku":"a","n":2},{"sku":"b","n":1}],"to":"x"}',
               '{"lines":[{"sku":"a","n":1}],"to":"x"}',
               '{"id":1,' . substr $one, 1)
{
    my @key = ('Idempotency-Key' => new_key());

    example_post('/api/x', $one, headers(@key));
    is(example_post('/api/x', $other, headers(@key))->status, 409,
       "not the same: $other");
}

# the conflict

my $conflict = example_post($uri, '{"total":5,"note":"n"}', headers(@key));

is($conflict->status, 409, 'a conflict');
is($conflict->header('X-Idempotency-Conflict'), 'body-mismatch',
   'X-Idempotency-Conflict: body-mismatch');
is($conflict->header('X-Idempotency-Replay'), undef, 'no replay');

my $details = $conflict->json->{error}{details};

is_deeply($details->{diff_summary},
          [ { path => '/note', change => 'added', new => 'n' },
            { path => '/total', change => 'changed', old => 1, new => 5 } ],
          'names what differs, old and new');
is($details->{original_time}, $retry->header('X-Original-Request-Time'),
   'with the original time');



=== TEST 2: which TTL by which route
--- http_config eval
"log_format ttl '\$request_method \$uri \$thorbis_ttl';\n"
. main::example('thorbis', sub { s/(listen .*)/$1 access_log logs\/access.log ttl;/ })
--- config
    location /unused { }
--- client
my %ttl = (
    '/api/estimates'     => '30m', '/api/estimates/7'   => '30m',
    '/api/invoices'      => '24h', '/api/invoices/7'    => '24h',
    '/api/payments'      => '7d',  '/api/payments/7'    => '7d',
    '/api/customers'     => '1h',  '/api/customers/7'   => '1h',
    '/api/work-orders'   => '4h',  '/api/work-orders/7' => '4h',
    '/api/anything'      => '1h',  '/api/paymentsabc'   => '1h',
);

for my $uri (sort keys %ttl) {
    example_post($uri, '{}', headers());
    access_log_like(qr/^POST \Q$uri\E $ttl{$uri}$/m, "$uri: $ttl{$uri}");
}



=== TEST 3: the TTL of a route is that of its records
--- client_timeout: 60
--- http_config eval
main::example('thorbis', sub { s/30m;/1s;/ && s/7d;/60s;/ or $_ = '' })
--- config
    location /unused { }
--- client
my %short = %{ headers('Idempotency-Key' => 'short') };
my %long = %{ headers('Idempotency-Key' => 'long') };

my ($one, $two) = ('/api/estimates', '/api/payments');

example_post($one, '{}', \%short);
example_post($two, '{}', \%long);

my $r;
ok(wait_for(sub { ($r = example_post($one, '{}', \%short))->body
                  eq "run 2\n" }, 10), 'a short one expires');
is($r->header('X-Idempotency-Expired'), 'true',
   'X-Idempotency-Expired: true');
is($r->header('X-Idempotency-Replay'), undef, 'it ran');

$r = example_post($one, '{}', \%short);
is($r->body, "run 2\n", 'which is replayed');
is($r->header('X-Idempotency-Expired'), undef, 'and nothing expired');

$r = example_post($two, '{}', \%long);
is($r->body, "run 1\n", 'a long one does not');
is($r->header('X-Idempotency-Replay'), 'true', 'it is replayed');
