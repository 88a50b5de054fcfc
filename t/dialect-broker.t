# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/broker.conf, as it is, gets the requests that the broker's document
# prints, and answers what is printed there.  docs/dialects.md has the table.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';
use vars qw($URI $CONTEXT $FIRST $MS);

# the document's own request

$URI = '/api/forms/test-form/submit';
$CONTEXT = 'test-form:550e8400-e29b-41d4-a716-446655440000';

$FIRST = '{
    "contextId": "test-form:550e8400-e29b-41d4-a716-446655440000",
    "formData": {"name": "John Doe", "email": "john@example.com"}
  }';

sub form
{
    my ($fields, $context) = @_;

    $context = $CONTEXT if !defined $context;

    return "{\n    \"contextId\": \"$context\",\n    \"formData\": $fields\n  }";
}

sub submit
{
    my ($body, %headers) = @_;

    return example_post($URI, $body, { 'Content-Type' => 'application/json',
                                       %headers });
}

# the document's own answer; each execution makes records of its own

sub answers
{
    return { status => 200, body => '{
  "success": true,
  "recordId": "a0B{run}",
  "businessRecordIds": [{"id": "00Q{run}", "objectType": "Lead"}],
  "relationshipIds": ["a0C{run}"],
  "contextId": {request:contextId},
  "message": "Form submitted successfully"
}' };
}

$MS = qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

# the duplicate, member by member

sub is_duplicate
{
    my ($r, $n, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $json = $r->json;

    like($json->{originalSubmittedAt}, $MS, "$name: when it was first sent");
    delete $json->{originalSubmittedAt};

    is($r->status, 200, "$name: 200, not 409");
    is_deeply($json, {
        success => JSON::PP::true, recordId => "a0B$n",
        businessRecordIds => [ { id => "00Q$n", objectType => 'Lead' } ],
        relationshipIds => [ "a0C$n" ], contextId => $CONTEXT,
        message => 'This submission was already processed. '
                   . 'Returning original response.',
        idempotent => JSON::PP::true,
    }, "$name: the original response, and that it is one");
}

sub is_new
{
    my ($r, $n, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $json = $r->json;

    is($r->status, 200, "$name: ran");
    is($json->{recordId}, "a0B$n", "$name: a record of its own");
    is($json->{message}, 'Form submitted successfully', "$name: its message");
    ok(!exists $json->{$_}, "$name: no $_")
        for qw(idempotent originalSubmittedAt);
}

run_tests();

__DATA__

=== TEST 1: the three tests that the document prints
--- http_config eval: main::example('broker')
--- config
    location /unused { }
--- client
app_answer($URI, answers());

# Test 1: the same data

is_new(submit($FIRST), 1, 'first submission');
is_duplicate(submit($FIRST), 1, 'same data');
is(app_count($URI), 1, 'one record');

# Test 2: different data

is_new(submit(form('{"name": "John Doe", "email": "john2@example.com"}')), 2,
       'different email');
is_duplicate(submit($FIRST), 1, 'the first one stays');

# Test 3: a custom key wins over other data

my %key = ('Idempotency-Key' => 'my-custom-key-12345');

is_new(submit(form('{"name": "Jane Doe", "email": "jane@example.com"}'), %key),
       3, 'custom key');
is_duplicate(submit(form('{"name": "DIFFERENT NAME", '
                         . '"email": "different@example.com"}'), %key),
             3, 'custom key with different data');
is(app_count($URI), 3, 'three records in all');



=== TEST 2: what makes the key, and what does not
--- http_config eval: main::example('broker')
--- config
    location /unused { }
--- client
app_answer($URI, answers());

submit($FIRST);

# sorted form data: the order of fields and white space do not count

is_duplicate(submit('{"formData":{"email":"john@example.com",'
                    . '"name":"John Doe"},"contextId":"' . $CONTEXT . '"}'),
             1, 'other order, no white space');

# all submitted fields count, and each value by itself

is_new(submit(form('{"name": "John  Doe", "email": "john@example.com"}')), 2,
       'white space within a value');
is_new(submit(form('{"name": "John Doe"}')), 3, 'a field less');
is_new(submit(form('{"email": "John Doe", "name": "john@example.com"}')), 4,
       'values exchanged');
is_new(submit(form('{"name": "John Doe", "email": "john@example.com", "x": 1}')),
       5, 'a field more');

# a new session is a new submission (a correction that looks the same)

is_new(submit(form('{"name": "John Doe", "email": "john@example.com"}',
                   'test-form:7c9e6679-7425-40de-944b-e07fc1f90ae7')), 6,
       'another session');

# an application that says 201: its duplicate says 200

app_answer('/api/forms/made/submit', { %{ answers() }, status => 201 });

is_deeply([ map { example_post('/api/forms/made/submit', $FIRST,
                               { 'Content-Type' => 'application/json' })->status }
            1, 2 ], [ 201, 200 ], 'created once, 200 the second time');

# what is no part of contextId and formData does not count

is_duplicate(submit('{"contextId":"' . $CONTEXT . '","formData":{"name":'
                    . '"John Doe","email":"john@example.com"},"clicked":2}'),
             1, 'beside them');

# another form is another form

app_answer('/api/forms/other-form/submit', answers());
is(example_post('/api/forms/other-form/submit', $FIRST,
                { 'Content-Type' => 'application/json' })
   ->json->{recordId}, 'a0B1', 'another form');
is(app_count('/api/forms/other-form/submit'), 1, 'runs');

# a double click, while the first one runs

app_answer($URI, { %{ answers() }, hold => 1 });

my $body = form('{"name": "Twice"}');
my @click = map { example_send($URI, $body,
                               { 'Content-Type' => 'application/json' }) } 1, 2;

app_wait_parked($URI);
app_release($URI);

my @r = sort map { $_->read_response->json->{recordId} } @click;
is($r[0], $r[1], 'both clicks get one record');



=== TEST 3: only successes are kept
--- http_config eval: main::example('broker')
--- config
    location /unused { }
--- client
for my $status (200, 400, 422, 500, 503) {
    my $uri = "/api/forms/f$status/submit";

    app_answer($uri, { status => $status, body => '{"success":false}' },
               answers());

    my $send = sub {
        example_post($uri, $FIRST, { 'Content-Type' => 'application/json' })
    };

    is($send->()->status, $status, "$status: failed");

    my $again = $send->();
    is($again->status, 200, "$status: and may be sent again");
    is($again->json->{recordId}, 'a0B2', "$status: which runs");
    is($send->()->json->{idempotent}, JSON::PP::true,
       "$status: and is then kept");
    is(app_count($uri), 2, "$status: no third time");
}



=== TEST 4: 24 hours, and one line in the log
--- http_config eval
main::example('broker', sub {
    s/(json:contextId,formData window=)24h;/${1}700ms;/;
    s/(idempotency_ttl +)24h;/${1}700ms;/ })
--- config
    location /unused { }
--- client
app_answer($URI, answers());

my %key = ('Idempotency-Key' => 'my-custom-key-12345');

submit($FIRST);
submit($FIRST, %key);
submit($FIRST, %key);
submit(form('{"name": "Generated"}')) for 1, 2;

ok(wait_for(sub { submit($FIRST)->json->{recordId} ne 'a0B1' }, 10),
   'a derived key expires');
ok(wait_for(sub { submit($FIRST, %key)->json->{recordId} ne 'a0B2' }, 10),
   'so does a custom one');

# a custom key with a timestamp is a new submission, at once

my $before = app_count($URI);

for my $time (1762194600000, 1762194600001, '2025-11-03T18:30:00.000Z',
              'form/7:2025-11-03T18:30:01Z')
{
    is(submit($FIRST, 'Idempotency-Key' => $time)->status, 200, "$time: a key")
        for 1, 2;
}

is(app_count($URI), $before + 4, 'keys with a timestamp are submissions');

my $log = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/duplicates.log";

ok(wait_for(sub { -s $log }), 'duplicates are logged');

open my $in, '<', $log or die "$log: $!";
my @lines = <$in>;

like($lines[0], qr/^\xf0\x9f\x94\x84\ Duplicate\ submission\ detected\ -
                   \ returning\ stored\ response\ for\ idempotency\ key:
                   \ [0-9a-f]{8}\.\.\.$/x, 'with the head of a hash');
like($lines[1], qr/^ {3}Original submission time: \d{4}-\d\d-\d\dT[\d:]+\.\d{3}Z$/,
     'and the original time');
like($lines[2], qr/key: [0-9a-f]{8}\.\.\.$/, 'also for a key that was generated');
unlike(join('', @lines), qr/my-custom-key/, 'and without the key');



=== TEST 5: several hosts, one store
--- store: redis postgres
--- http_config eval: main::example('broker')
--- config
    location /unused { }
--- client
app_answer($URI, answers());

# the broker's restart, and its second instance: the other nginx has the same
# configuration and nothing but the store in common with this one

is_new(submit($FIRST), 1, 'first submission');

edit_config(sub {
    s/(127\.0\.0\.1):$ENV{TEST_NGINX_PORT_2}\b/$1:$ENV{TEST_NGINX_PORT_3}/;
});
my $host = start_host(free_port());

is_duplicate(http_post($URI, $FIRST, { 'Content-Type' => 'application/json' },
                       port => $ENV{TEST_NGINX_PORT_3}), 1, 'another host');
is(app_count($URI), 1, 'ran once');
ok($host->stop, 'left in order');

# SETEX ... 86400: what the server itself keeps it for

my @keys = store_server()->keys;
is(@keys, 1, 'one record');

my $left = store_server()->command('PTTL', $keys[0]);
cmp_ok($left, '>', 86_000_000, 'for 24 hours');
cmp_ok($left, '<=', 86_410_000, 'and not for more');
