# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/formbridge.conf, as it is, gets the requests that FormBridge's design
# prints, and answers what is printed there.  docs/dialects.md has the table.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';
use vars qw($URI $KEY $BODY $CREATED);

$URI = '/api/intakes/vendor-onboarding/submit';
$KEY = 'idem_abc123xyz';
$BODY = '{"fields": {"companyName": "Acme Corp"}}';
$CREATED = '{
  "ok": true,
  "submissionId": "sub_{run}",
  "state": "submitted"
}';

sub headers
{
    return { 'Idempotency-Key' => $KEY, 'Content-Type' => 'application/json',
             @_ };
}

sub key { ('Idempotency-Key' => defined $_[0] ? $_[0] : new_key()) }

# what the application answers at this place

sub created { app_answer($_[0] || $URI, { status => 201, body => $CREATED,
                                          @_[1 .. $#_] }) }

# an error of the gateway: as it is printed, and nothing else

sub is_error
{
    my ($r, $status, $error, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is($r->status, $status, "$name: $status");
    like($r->header('Content-Type'), qr{^application/json}, "$name: JSON");
    is_deeply($r->json, { ok => JSON::PP::false, error => $error },
              "$name: as it is printed");
}

sub lines
{
    my ($file, $n) = @_;
    my @lines;

    wait_for(sub {
        open my $in, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/logs/$file" or return 0;
        @lines = grep { /\n\z/ && !/storage\.slow/ } <$in>;
        return @lines >= $n;
    });

    return map { JSON::PP->new->decode($_) } @lines;
}

# a call of an MCP tool, as clients write it

sub call_tool
{
    my ($id, $tool, $arguments, $meta) = @_;

    $meta = $meta ? ",\"_meta\":$meta" : '';

    return example_post('/mcp', "{\"jsonrpc\":\"2.0\",\"id\":$id,\"method\":"
                        . "\"tools/call\",\"params\":{\"name\":\"$tool\","
                        . "\"arguments\":$arguments$meta}}",
                        { 'Content-Type' => 'application/json' });
}

run_tests();

__DATA__

=== TEST 1: the printed request, its replay and its conflict
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
created();

my $first = example_post($URI, $BODY, headers());

is($first->status, 201, 'initial request: 201');
is($first->reason, 'Created', 'Created');
is($first->header('Content-Type'), 'application/json', 'application/json');
is_deeply($first->json, { ok => JSON::PP::true, submissionId => 'sub_1',
                          state => 'submitted' }, 'the response');
is($first->header('Idempotent-Replayed'), undef, 'no replay');

my $retry = example_post($URI, $BODY, headers());

is($retry->status, 200, 'replayed request: 200');
is($retry->reason, 'OK', 'OK');
is($retry->header('Idempotent-Replayed'), 'true', 'Idempotent-Replayed: true');
like($retry->header('X-Original-Request-Time'),
     qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'X-Original-Request-Time');
is($retry->header('Content-Type'), 'application/json', 'application/json');
is($retry->body, $first->body, 'the same response');
is(app_count($URI), 1, 'processed once');

# the payload is compared as JSON

for my $same ("{ \"fields\":\n{\"companyName\":\"Acme Corp\"} }",
              '{"fields":{"companyName":"\u0041cme Corp"}}')
{
    is(example_post($URI, $same, headers())->status, 200, "the same: $same");
}

my $two = '/api/intakes/vendor-onboarding/submit2';

created($two);
example_post($two, '{"fields":{"a":1,"b":2},"c":3}', headers(key('order')));
is(example_post($two, '{"c":3,"fields":{"b":2,"a":1}}', headers(key('order')))
   ->status, 200, 'reordered JSON is a replay');

# the conflict

my $conflict = example_post($URI, '{"fields": {"companyName": "Evil Corp"}}',
                            headers());
my $error = $conflict->json->{error};

like($error->{originalHash}, qr/^[0-9a-f]{64}$/, 'originalHash');
like($error->{currentHash}, qr/^[0-9a-f]{64}$/, 'currentHash');
isnt($error->{currentHash}, $error->{originalHash}, 'which differ');
like($error->{originalTimestamp}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
     'originalTimestamp');
is(substr($error->{originalTimestamp}, 0, 19),
   substr($retry->header('X-Original-Request-Time'), 0, 19),
   'is that of the original');

is_error($conflict, 409, {
    type => 'conflict', retryable => JSON::PP::false,
    message => "Idempotency key 'idem_abc123xyz' already used with different "
               . 'payload',
    map { $_ => $error->{$_} } qw(originalHash currentHash originalTimestamp),
}, 'conflict');

is(app_count($URI), 1, 'nothing ran');
is(example_post($URI, '{"fields": {"companyName": "Evil Corp"}}',
                headers(key()))->status, 201, 'a new key does');

# without a key

for (1, 2) {
    is(example_post($URI, $BODY, { 'Content-Type' => 'application/json' })
       ->status, 201, 'no key: processed normally');
}

is(app_count($URI), 4, 'each time');



=== TEST 2: a key belongs to one intake
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
my @uri = map { "/api/intakes/$_/submit" } qw(vendor-onboarding access-request);

created($_) for @uri;

for my $key ('abc123', 'workflow-123_step-1') {
    for my $uri (@uri) {
        is(example_post($uri, $BODY, headers(key($key)))->status, 201,
           "$key: $uri runs");
        is(example_post($uri, $BODY, headers(key($key)))->status, 200,
           "$key: $uri replays its own");
    }
}

is(app_count($_), 2, "$_: twice in all") for @uri;

# one intake is one namespace for all that it does: a key for each operation

my $create = '/api/intakes/vendor-onboarding/submissions';

created($create);
is(example_post($create, $BODY, headers(key('abc123')))->status, 409,
   'createSubmission with the key of a submit');
is(example_post($create, $BODY,
                headers(key('workflow-onboard-vendor-123_step-create')))
   ->status, 201, 'createSubmission with its own');

# setFields

my $fields = '/api/submissions/sub_001/fields';

created($fields);
my $h = headers(key('workflow-onboard-vendor-123_step-set-tax-info'));

example_request('PATCH', $fields, '{"fields":{"taxId":"12-3456789"}}', $h)
    for 1, 2;
is(app_count($fields), 1, 'setFields');

# each submission has its own keys

my $other = '/api/submissions/sub_009/fields';

created($other);
is(example_request('PATCH', $other, '{"fields":{"taxId":"12-3456789"}}', $h)
   ->status, 201, 'setFields of another submission, with the same key');

# reads are not in scope

example_request('GET', '/api/submissions/sub_002', undef, headers()) for 1, 2;
is(app_count('/api/submissions/sub_002'), 2, 'getSubmission');



=== TEST 3: keys
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
created();

my $all = join '', 'A' .. 'Z', 'a' .. 'z', 0 .. 9, '_.-';

for my $good ('idem_7f3a9d2e-8c4b-4f1a-9d6e-2c8f1b3e4a5d',
              'workflow-abc123_step-onboarding', '20240129T120000Z_abc123',
              'job_17', 'test_vendor-onboarding_1', 'a', $all, 'x' x 255)
{
    is(example_post($URI, $BODY, headers(key($good)))->status, 201,
       'a key of ' . length $good);
}

# capital and small letters are different keys

example_post($URI, $BODY, headers(key('case')));
is(example_post($URI, $BODY, headers(key('CASE')))->status, 201,
   'case-sensitive');

my $runs = app_count($URI);

for my $bad ('a b', 'a#b', 'a/b', 'a?b', 'a&b', 'a=b', 'a%b', 'a:b', 'a+b',
             'a~b', "caf\xc3\xa9")
{
    is_error(example_post($URI, $BODY, headers(key($bad))), 400, {
        type => 'invalid_request', retryable => JSON::PP::false,
        message => 'Idempotency key contains invalid characters',
    }, $bad);
}

for my $bad ('', 'x' x 256) {
    is_error(example_post($URI, $BODY, headers(key($bad))), 400, {
        type => 'invalid_request', retryable => JSON::PP::false,
        message => 'Idempotency key must be 1-255 characters',
    }, 'a key of ' . length $bad);
}

is(app_count($URI), $runs, 'none of them ran');

# not in the URL

my %plain = ('Content-Type' => 'application/json');

example_post("$URI?idempotencyKey=abc123", $BODY, \%plain) for 1, 2;
is(app_count($URI), $runs + 2, 'a key in the URL is none');



=== TEST 4: concurrent requests
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
created($URI, hold => 1);

my @c = map { example_send($URI, $BODY, headers()) } 'A' .. 'C';

app_wait_parked($URI);
is(app_count($URI), 1, 'one of them runs');
app_release($URI);

my @r = map { $_->read_response } @c;

is_deeply([ sort map { $_->status } @r ], [ 200, 200, 201 ],
          'one 201, two 200');
is(scalar(grep { $_->json->{submissionId} eq 'sub_1' } @r), 3,
   'all get the same submission');
is(app_count($URI), 1, 'no duplicate');

# ten may wait, not more

my $uri = '/api/intakes/access-request/submit';

created($uri, hold => 1);

@c = map { example_send($uri, $BODY, headers()) } 0 .. 10;
app_wait_parked($uri);

my $over = example_send($uri, $BODY, headers());
my $r = $over->read_response;

is_error($r, 429, {
    type => 'too_many_requests', retryable => JSON::PP::true,
    retryAfterMs => 5000,
    message => 'Too many concurrent requests for key "idem_abc123xyz". '
               . 'Maximum 10 waiters allowed. Please retry after a delay.',
}, 'the twelfth');

is($r->header('Retry-After'), 5, 'Retry-After');

# a different payload does not wait

is(example_post($uri, '{"fields":{}}', headers())->status, 409,
   'a conflict, while the first one runs');

app_release($uri);
is(scalar(grep { $_->read_response->json->{submissionId} eq 'sub_1' } @c), 11,
   'all that waited are answered');
is(app_count($uri), 1, 'once');



=== TEST 5: a duplicate that waited in vain
--- http_config eval
main::example('formbridge', sub { s/(idempotency_wait +)30s;/${1}300ms;/ })
--- config
    location /unused { }
--- client
created($URI, hold => 1);

my $c = example_send($URI, $BODY, headers());
app_wait_parked($URI);

is_error(example_post($URI, $BODY, headers()), 503, {
    type => 'service_unavailable', retryable => JSON::PP::true,
    retryAfterMs => 5000,
    message => 'Request timed out waiting for concurrent request to complete. '
               . 'This typically means the first request is taking longer than '
               . 'expected. Please retry after a short delay.',
}, 'waited in vain');

app_release($URI);
is($c->read_response->status, 201, 'the first one ends in order');
is(example_post($URI, $BODY, headers())->status, 200, 'a retry finds it');
is(app_count($URI), 1, 'ran once');



=== TEST 6: the first response is lost
--- http_config eval
main::example('formbridge', sub { s/(idempotency_lease +)30s;/${1}3s;/ })
--- client_timeout: 60
--- config
    location /unused { }
--- client
# it succeeded, and nobody heard of it

created($URI, hold => 1);

my $c = example_send($URI, $BODY, headers());
app_wait_parked($URI);
$c->abort;
app_release($URI);

my $r = example_post($URI, $BODY, headers());
is($r->status, 200, 'it ran to its end');
is($r->header('Idempotent-Replayed'), 'true', 'Idempotent-Replayed: true');
is(app_count($URI), 1, 'once');

# it failed before it was processed: the application refused to take it

my $uri = '/api/intakes/failing/submit';

app_answer($uri, { status => 503, body => '{}' },
           { status => 201, body => $CREATED });
is(example_post($uri, $BODY, headers())->status, 503, 'failed');
is(example_post($uri, $BODY, headers())->status, 201, 'a retry is processed');

# still processing when the retry arrives

$uri = '/api/intakes/slow/submit';
created($uri, hold => 1);
$c = example_send($uri, $BODY, headers());
app_wait_parked($uri);
$c->abort;

my $again = example_send($uri, $BODY, headers());
app_release($uri);
is($again->read_response->status, 200, 'waits, and gets the same');
is(app_count($uri), 1, 'once');

# the server dies while it holds the lock: after the lease a retry runs

$uri = '/api/intakes/crash/submit';
app_answer($uri, { close => 1 }, { status => 201, body => $CREATED });

is(example_post($uri, $BODY, headers())->status, 502, 'it crashed');

$r = example_post($uri, $BODY, headers());
is($r->status, 503, 'until its lock expires, a retry is told to come again');
is($r->json->{error}{type}, 'unknown_outcome', 'and why');
ok($r->json->{error}{retryable}, 'as what may be retried');
like($r->header('Retry-After'), qr/^[1-9]\d*$/, 'and when');
ok(wait_for(sub { example_post($uri, $BODY, headers())->status == 201 }, 20),
   'its lock expires, and a retry runs');
is(example_post($uri, $BODY, headers())->status, 200, 'which is kept');



=== TEST 7: how long a key lasts
--- client_timeout: 60
--- http_config eval: main::example('formbridge', sub { s/(vendor-onboarding +)24h;/${1}1s;/ })
--- config
    location /unused { }
--- client
# per intake

created();
is(example_post($URI, $BODY, headers())->json->{submissionId}, 'sub_1',
   'time 0: 201');
is(example_post($URI, $BODY, headers())->status, 200, 'within: 200');

my $r;
ok(wait_for(sub { ($r = example_post($URI, $BODY, headers()))->status == 201 },
            10), 'after: 201, without an error');
is($r->json->{submissionId}, 'sub_2', 'and a new submission');

# per request: the curl line

my $uri = '/api/intakes/access-request/submit';
my $h = headers(key('test_key_123'));

created($uri);
example_post($uri, '{"fields": {}}', { %$h, 'X-Idempotency-TTL' => 1000 });
is(example_post($uri, '{"fields": {}}', $h)->status, 200, 'X-Idempotency-TTL');
ok(wait_for(sub { example_post($uri, '{"fields": {}}', $h)->status == 201 },
            10), 'is over by then');

$h = headers(key('test_key_124'));
example_post($uri, '{"fields": {}}', { %$h, 'X-Idempotency-TTL' => 3600000 });
is(example_post($uri, '{"fields": {}}', $h)->status, 200,
   'X-Idempotency-TTL: 3600000');



=== TEST 8: what does not fit, and what is not kept
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
app_answer($URI, { status => 201, body => '"' . 'x' x 1200000 . '"' });

is(example_post($URI, $BODY, headers())->status, 201, 'a large response');

my $r = example_post($URI, $BODY, headers());

is($r->status, 507, 'its retry is a 507');
is_deeply($r->json, { error => 'Response too large to cache for idempotency' },
          'as it is printed');
is(app_count($URI), 1, 'ran once');



=== TEST 9: without its store nothing runs
--- store: memory
--- http_config eval
"idempotency_store tiny memory { zone tiny:64k; }\n"
. main::example('formbridge', sub { s/\$TEST_STORE/tiny/g })
--- config
    location /unused { }
--- client
created();

my $r;

for my $n (1 .. 400) {
    $r = example_post($URI, $BODY, headers(key("k-$n")));
    last if $r->status == 503;
}

my $runs = app_count($URI);

is_error($r, 503, {
    type => 'service_unavailable', retryable => JSON::PP::true,
    retryAfterMs => 5000,
    message => 'Idempotency service is temporarily unavailable. Please retry '
               . 'in a few seconds.',
}, 'no room');

is(app_count($URI), $runs, 'it did not run');
is(example_post($URI, $BODY, { 'Content-Type' => 'application/json' })->status,
   201, 'without a key requests are processed');



=== TEST 10: without its store nothing runs
--- store: redis postgres
--- provokes: redis
--- http_config eval
"idempotency_store dead \$TEST_REMOTE { server 127.0.0.1:\$TEST_NGINX_DEAD_PORT; }\n"
. main::example('formbridge', sub { s/\$TEST_STORE/dead/g })
--- config
    location /unused { }
--- client
created();

is_error(example_post($URI, $BODY, headers()), 503, {
    type => 'service_unavailable', retryable => JSON::PP::true,
    retryAfterMs => 5000,
    message => 'Idempotency service is temporarily unavailable. Please retry '
               . 'in a few seconds.',
}, 'Redis is away');

is(app_count($URI), 0, 'it did not run');
is(example_post($URI, $BODY, { 'Content-Type' => 'application/json' })->status,
   201, 'without a key requests are processed');



=== TEST 11: MCP tool calls
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
app_answer('/mcp', { status => 200, body => '{"jsonrpc":"2.0","id":{request:id},'
                     . '"result":{"content":[{"type":"text","text":"sub_{run}"}]}}' });

my $tool = 'formbridge_vendor-onboarding_submit';
my $arguments = '{"fields":{"companyName":"Acme Corp"},"idempotencyKey":"'
                . 'idem_7f3a9d2e-8c4b-4f1a-9d6e-2c8f1b3e4a5d"}';
my $text = sub { $_[0]->json->{result}{content}[0]{text} };

is($text->(call_tool(1, $tool, $arguments)), 'sub_1', 'a call');
is($text->(call_tool(1, $tool, $arguments)), 'sub_1', 'its retry');

my $again = call_tool(2, $tool, $arguments);
is($text->($again), 'sub_1', 'also with another JSON-RPC id');
is($again->json->{id}, 2, 'which the answer carries');
is(call_tool('"a-b"', $tool, $arguments)->json->{id}, 'a-b',
   'and so if it is a string');

my $last = '{"method":"tools/call","params":{"name":"' . $tool
           . '","arguments":' . $arguments . '},"jsonrpc":"2.0","id":7}';
is(example_post('/mcp', $last, { 'Content-Type' => 'application/json' })
   ->json->{id}, 7, 'wherever it stands');

is($text->(call_tool(3, $tool, $arguments, '{"progressToken":3}')), 'sub_1',
   'or another progress token');
is(app_count('/mcp'), 1, 'ran once');

(my $other = $arguments) =~ s/Acme/Evil/;
my $r = call_tool(4, $tool, $other);
is($r->status, 409, 'other fields are a conflict');
is($r->json->{error}{type}, 'conflict', 'that says so');

# a call that failed is not kept, whichever way it says so

for my $failed ('"error":{"code":-32603,"message":"no"}',
                '"result":{"isError":true,"content":[{"type":"text","text":"no"}]}')
{
    my $runs = app_count('/mcp');

    app_answer('/mcp', ({}) x $runs,
               { body => "{\"jsonrpc\":\"2.0\",\"id\":{request:id},$failed}" },
               { body => '{"jsonrpc":"2.0","id":{request:id},"result":'
                         . '{"content":[{"type":"text","text":"done"}]}}' });

    (my $own = $arguments) =~ s/idem_\w+/idem_failed$runs/;

    is(call_tool(20, $tool, $own)->status, 200, 'a call that fails');
    is($text->(call_tool(21, $tool, $own)), 'done', 'runs again');
    is($text->(call_tool(22, $tool, $own)), 'done', 'and is kept then');
    is(app_count('/mcp'), $runs + 2, 'two executions');
}

app_answer('/mcp', { body => '{"jsonrpc":"2.0","id":{request:id},'
                     . '"result":{"content":[{"type":"text","text":"sub_{run}"}]}}' });

# the key belongs to one intake here, too

is($text->(call_tool(5, 'formbridge_access-request_submit', $arguments)),
   'sub_6', 'the tool of another intake');

# … whose name may have underscores, and however the call is written

$arguments =~ s/idem_[\w-]+/idem_under/;

my @intakes = map { $text->($_) } (
    call_tool(8, 'formbridge_vendor_onboarding_submit', $arguments),
    call_tool(9, 'formbridge_vendor_offboarding_submit', $arguments),
    example_post('/mcp', "{\"params\":{\n\"arguments\":$arguments,\n\"name\": "
                 . '"formbridge_vendor_exit_submit"},"method":"tools/call",'
                 . '"jsonrpc":"2.0","id":10}',
                 { 'Content-Type' => 'application/json' }));

is_deeply(\@intakes, [ qw(sub_7 sub_8 sub_9) ], 'each intake for itself');
is($text->(call_tool(11, 'formbridge_vendor_onboarding_submit', $arguments)),
   'sub_7', 'and each of them again');

# the key is optional

call_tool(6, $tool, '{"fields":{}}') for 1, 2;
is(app_count('/mcp'), 11, 'without a key each call runs');



=== TEST 12: replays are events
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
created($URI, headers => [ [ 'Content-Type', 'application/json' ],
                           [ 'X-Submission-Id', 'sub_abc123' ] ]);

example_post($URI, $BODY, headers('X-Agent-Id' => 'agent_xyz')) for 1 .. 3;

my @events = lines('replays.json', 2);

is(@events, 2, 'one for each replay, none for the original');
is($events[0]{submissionId}, 'sub_abc123', 'submissionId, if it is a header');

my $e = $events[1];

like($e->{eventId}, qr/^evt_[0-9a-f]{32}$/, 'eventId');
is($e->{type}, 'submission.replayed', 'type');
like($e->{timestamp}, qr/^\d{4}-\d\d-\d\dT[\d:]+(?:Z|[+-]\d\d:\d\d)$/,
     'timestamp');
is_deeply($e->{actor}, { type => 'agent', id => 'agent_xyz' }, 'actor');
like($e->{payload}{originalTimestamp}, qr/^\d{4}-\d\d-\d\dT/,
     'when the original came');
like($e->{payload}{timeSinceOriginal_ms}, qr/^(?:0|[1-9]\d*)$/, 'how long ago');
like($e->{payload}{idempotencyKey}, qr/^[0-9a-f]{64}$/, 'the key, hashed');
like($e->{payload}{originalEventId}, qr/^[0-9a-f]{64}$/, 'what it belongs to');
is($events[0]{payload}{originalEventId}, $e->{payload}{originalEventId},
   'the same for each replay');
is_deeply([ map { $_->{payload}{replayNumber} } @events ], [ 1, 2 ],
          'replayNumber');

my ($original) = lines('audit.json', 3);

is($original->{eventType}, 'idempotency.key.created', 'the original');
is($original->{metadata}{submissionId}, 'sub_abc123', 'of that submission');
is($original->{metadata}{record}, $e->{payload}{originalEventId},
   'is found by it');

# without the header, setFields has it in its path

my $fields = '/api/submissions/sub_001/fields';

created($fields);
example_post($fields, $BODY, headers()) for 1, 2;
is((lines('replays.json', 3))[2]{submissionId}, 'sub_001', 'that of the path');



=== TEST 13: the audit stream
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
created();

my @agent = ('X-Agent-Id' => 'agent_456');

example_post($URI, $BODY, headers(@agent)) for 1, 2;
example_post($URI, '{"fields":{}}', headers('X-Agent-Id' => 'agent_789'));
example_post($URI, $BODY, { 'Content-Type' => 'application/json' });

my @events = lines('audit.json', 3);

is_deeply([ map { $_->{eventType} } @events ],
          [ map { "idempotency.$_" } qw(key.created replay conflict) ],
          'what became of each request with a key');
is_deeply([ map { $_->{actor} } @events ],
          [ map { { type => 'agent', id => "agent_$_" } } 456, 456, 789 ],
          'of whom');

for my $e (@events) {
    my $m = $e->{metadata};

    like($e->{eventId}, qr/^evt_/, "$e->{eventType}: eventId");
    is($m->{intakeId}, 'vendor-onboarding', "$e->{eventType}: intakeId");
    is($m->{operation}, 'submit', "$e->{eventType}: operation");
    like($m->{idempotencyKey}, qr/^[0-9a-f]{64}$/,
         "$e->{eventType}: the key, hashed");
}

# each with the members that are printed for it

is($events[0]{metadata}{ttl_ms}, 86400000, 'created: ttl_ms');
is($events[1]{metadata}{replayCount}, 1, 'replay: replayCount');
like($events[1]{metadata}{timeSinceOriginal_ms}, qr/^(?:0|[1-9]\d*)$/,
     'replay: timeSinceOriginal_ms');

my $m = $events[2]{metadata};

is($m->{conflictType}, 'payload_mismatch', 'conflict: conflictType');
like($m->{$_}, qr/^[0-9a-f]{64}$/, "conflict: $_")
    for qw(conflictingRequestHash originalRequestHash);
isnt($m->{conflictingRequestHash}, $m->{originalRequestHash}, 'which differ');
like($m->{originalTimestamp}, qr/^\d{4}-/, 'conflict: originalTimestamp');

# the module's own events, with what only it knows

my @own = grep { $_->{event} =~ /\.(?:key\.created|replay|conflict)$/ }
          lines('idempotency.json', 4);
my ($created, $replay, $conflict) = @own;

is_deeply([ map { $_->{event} } @own ], [ map { $_->{eventType} } @events ],
          'the same, in the log of the module');
is_deeply([ map { $_->{actor} } @own ], [ qw(agent_456 agent_456 agent_789) ],
          'with their actors');

for my $e (@own) {
    is($e->{component}, 'idempotency', "$e->{event}: component");
    like($e->{event_id}, qr/^[0-9a-f]{32}$/, "$e->{event}: event_id");
    like($e->{timestamp}, qr/^\d{4}-\d\d-\d\dT.*Z$/, "$e->{event}: timestamp");
    is($e->{intakeId}, 'vendor-onboarding', "$e->{event}: intakeId");
    is($e->{operation}, 'submit', "$e->{event}: operation");
    like($e->{key_hash}, qr/^[0-9a-f]{64}$/, "$e->{event}: the key, hashed");
    like($e->{duration_ms}, qr/^\d+$/, "$e->{event}: duration_ms");
}

is_deeply([ map { $_->{level} } @own ], [ qw(info info error) ], 'levels');
is($created->{ttl_ms}, 86400000, 'key.created: ttl_ms');
like($created->{expires_at}, qr/^\d{4}-\d\d-\d\dT/, 'key.created: expires_at');
is($replay->{replay_count}, 1, 'replay: replay_count');
like($replay->{original_timestamp}, qr/^\d{4}-/, 'replay: original_timestamp');
like($replay->{time_since_original_ms}, qr/^\d+$/,
     'replay: time_since_original_ms');
is($conflict->{conflict_type}, 'payload', 'conflict: conflict_type');
is($conflict->{original_fingerprint}, $m->{originalRequestHash},
   'conflict: the hash of the original');
is($conflict->{fingerprint}, $m->{conflictingRequestHash}, 'conflict: and of the request');
is($conflict->{original_actor}, 'agent_456', 'conflict: original_actor');



=== TEST 14: intake and operation are labels of the figures
--- http_config eval
main::example('formbridge', sub {
    s/(\n    location \/ \{)/\n    location = \/stats { idempotency_stats prometheus; }\n$1/ })
--- config
    location /unused { }
--- client
created();
created($_) for qw(/api/submissions/sub_001/fields /mcp);

example_post($URI, $BODY, headers()) for 1, 2;
example_post('/api/submissions/sub_001/fields', $BODY, headers());
call_tool(1, 'formbridge_access-request_submit',
          '{"fields":{},"idempotencyKey":"k"}');

my $stats = example_request('GET', '/stats')->body;

for my $count ([ 'vendor-onboarding:submit', 'EXECUTED', 1 ],
               [ 'vendor-onboarding:submit', 'REPLAYED', 1 ],
               [ 'submissions', 'EXECUTED', 1 ], [ 'mcp', 'EXECUTED', 1 ])
{
    my ($group, $outcome, $n) = @$count;

    like($stats, qr/requests_total\{[^\n]*group="$group"[^\n]*outcome="$outcome"\} $n$/m,
         "$group: $n $outcome");
}

# histograms can tell apart what the document's buckets do, in milliseconds

my %buckets = (
    request_duration => [ 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000 ],
    store_operation => [ 1, 5, 10, 25, 50, 100, 250, 500, 1000 ],
    wait => [ 10, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000 ],
    lock_held => [ 10, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000 ],
    record_lifetime => [ 60000, 300000, 600000, 1800000, 3600000, 21600000,
                         86400000 ],
);

for my $name (sort keys %buckets) {
    my %le = map { $_ * 1000 => 1 }
             $stats =~ /^nginx_idempotency_${name}_seconds_bucket\{[^\n]*le="([\d.]+)"/mg;

    is_deeply([ grep { !$le{$_} } @{ $buckets{$name} } ], [], "$name: buckets");
}



=== TEST 15: keys that collide
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
created();

# two clients with one key, and other payloads

my $a = example_post($URI, '{"fields": {"name": "Acme Corp"}}',
                     headers(key('shared_key'), Authorization => 'Bearer a'));
is($a->status, 201, 'client A');

my $b = example_post($URI, '{"fields": {"name": "Evil Corp"}}',
                     headers(key('shared_key'), Authorization => 'Bearer b'));
is($b->status, 409, 'client B');
is($b->json->{ok}, JSON::PP::false, 'ok');
is($b->json->{error}{type}, 'conflict', 'type');
is($b->json->{error}{message}, "Idempotency key 'shared_key' already used with "
   . 'different payload', 'message');
is($b->json->{error}{retryable}, JSON::PP::false, 'retryable');
unlike($b->body, qr/sub_1|Acme/, 'and nothing of the other one');

# two that count up

my @status = map {
    my $who = $_;

    [ map { example_post($URI, "{\"fields\":{\"who\":\"$who\"}}",
                         headers(key("request-$_")))->status } 0 .. 4 ]
} qw(a b);

is_deeply(\@status, [ [ (201) x 5 ], [ (409) x 5 ] ],
          'sequential keys: each of the second client is a conflict');

# and two that put a client's id before

@status = map {
    my $who = $_;

    [ map { example_post($URI, "{\"fields\":{\"who\":\"$who\"}}",
                         headers(key("$who-$_")))->status } 0 .. 4 ]
} '7f3a9d2e-8c4b-4f1a-9d6e-2c8f1b3e4a5d', '9d6e2c8f-8c4b-4f1a-9d6e-2c8f1b3e4a5d';

is_deeply(\@status, [ [ (201) x 5 ], [ (201) x 5 ] ], 'no collision');
is(app_count($URI), 16, 'each ran once');


=== TEST 16: what nginx itself refuses
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
# a chunk without a length: no error of the module, and yet one of this shape

my $r = http_raw("POST /api/intakes/x/submit HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "
                 . "550e8400-e29b-41d4-a716-446655440000\r\n"
                 . "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                 port => $ENV{TEST_NGINX_PORT_2});

is($r->status, 400, 'refused with 400');
is_deeply($r->json, { ok => JSON::PP::false, error => {
    type => 'invalid_request', retryable => JSON::PP::false,
    message => 'The request was refused by nginx (status 400)' } },
          'with a body that says so');
