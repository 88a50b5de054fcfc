# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/guardian.conf, as it is, gets the requests that Guardian's policy
# prints, and answers what is printed there.  docs/dialects.md has the table.

use strict;
use warnings;
use Digest::SHA ();
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';
use vars qw($URI $KEY $BODY $CONCURRENT);

$URI = '/api/v1/users';
$KEY = '550e8400-e29b-41d4-a716-446655440000';
$BODY = '{
  "meta": {"op": "createUser"},
  "payload": {"email": "test@example.com"}
}';

$CONCURRENT = { error => {
    code => 'CONCURRENT_REQUEST',
    message => 'Request with this idempotency key is already processing',
} };

# the request as it is printed

sub headers
{
    return { 'Idempotency-Key' => $KEY, Authorization => 'Bearer alice',
             'Content-Type' => 'application/json', @_ };
}

# what the store under test is called

our $STORE = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 'default'
                                                              : 'tested';

my $uuids = 0;

sub uuid4
{
    return sprintf '%08x-%04x-4%03x-8%03x-%012x', $$, $uuids & 0xffff,
                   $uuids++ & 0xfff, 1, $uuids;
}

sub created { { status => 201, body => '{"user_id":"{run}"}', @_ } }

# what is in the log, once there are $n lines of it

sub events
{
    my $n = shift;
    my $file = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/idempotency.json";
    my @lines;

    wait_for(sub {
        open my $in, '<', $file or return 0;
        @lines = grep { /\n\z/ && !/storage\.slow/ } <$in>;
        return @lines >= $n;
    });

    return map { JSON::PP->new->decode($_) } @lines;
}

run_tests();

__DATA__

=== TEST 1: the printed request, and its retries
--- http_config eval: main::example('guardian')
--- config
    location /unused { }
--- client
app_answer($URI, created());

my $first = example_post($URI, $BODY, headers());

is($first->status, 201, 'attempt 1');
is_deeply($first->json, { user_id => 1 }, 'ran');

for my $attempt (2, 3) {
    my $retry = example_post($URI, $BODY, headers());

    is($retry->status, 201, "attempt $attempt: the stored status");
    is_deeply($retry->json, { user_id => 1 }, "attempt $attempt: the response");
}

# what the app says about one try does not count, nor how it writes JSON

for my $again ($BODY =~ s/"createUser"/"createUser", "attempt": 2/r,
               '{"payload":{"email":"test@example.com"},"meta":{}}')
{
    is(example_post($URI, $again, headers())->json->{user_id}, 1,
       'another "meta", another order');
}

is(app_count($URI), 1, 'called once');

# an operation that was changed has a new key; under the old one it is refused

(my $edited = $BODY) =~ s/test\@/new@/;

is(example_post($URI, $edited, headers('Idempotency-Key' => uuid4()))
   ->json->{user_id}, 2, 'a changed operation under a new key runs');

my $r = example_post($URI, $edited, headers());
is($r->status, 409, 'under the old key it does not');
is($r->json->{error}{code}, 'IDEMPOTENCY_CONFLICT', 'and says so');
is_deeply([ sort keys %{ $r->json->{error} } ], [ 'code', 'message' ],
          'in its own shape');
is(app_count($URI), 2, 'nothing ran');

# an operation that HTTP calls idempotent is covered, too

app_answer('/api/v1/rooms/7', created());
example_request('PUT', '/api/v1/rooms/7', $BODY, headers('Idempotency-Key' => $_))
    for (uuid4()) x 2;
is(app_count('/api/v1/rooms/7'), 1, 'PUT');



=== TEST 2: keys are scoped by user
--- http_config eval: main::example('guardian')
--- config
    location /unused { }
--- client
app_answer($URI, created());

is(example_post($URI, $BODY, headers())->json->{user_id}, 1, 'alice');

# no X-User-Id: the request has nothing but its token

my $bob = example_post($URI, $BODY, headers(Authorization => 'Bearer bob'));
is($bob->json->{user_id}, 2, 'bob runs his own operation under the same key');
is($bob->header('Idempotent-Replayed'), undef, 'and gets no stored response');

(my $other = $BODY) =~ s/test\@/eve@/;
is(example_post($URI, $other, headers(Authorization => 'Bearer eve'))
   ->json->{user_id}, 3, 'eve, with another body, learns of no conflict');

is(example_post($URI, $BODY, headers())->json->{user_id}, 1, 'alice again');
is(example_post($URI, $BODY, headers(Authorization => 'Bearer bob'))
   ->json->{user_id}, 2, 'bob again');
is(example_post($URI, $BODY, { %{ headers() }, 'X-User-Id' => 'bob' })
   ->json->{user_id}, 1, 'a header that anybody can send counts nothing');



=== TEST 3: a renewed token is the same user, if the access check says so
--- http_config eval
main::example('guardian', sub {
    s/# (auth_request)/$1/g;
    s/(\n    location \@guardian_error)/
    location = \/check {
        internal;
        proxy_pass  http:\/\/guardian_app\/check;
        proxy_pass_request_body  off;
        proxy_set_header  Content-Length "";
    }
$1/ })
--- config
    location /unused { }
--- client
my @user = map { [ 'X-User-Id', $_ ] } qw(alice alice bob alice);

app_answer($URI, created());
app_answer('/check', map { { status => 204, headers => [ $_ ] } } @user);

is(example_post($URI, $BODY, headers())->json->{user_id}, 1, 'alice');
is(example_post($URI, $BODY, headers(Authorization => 'Bearer renewed'))
   ->json->{user_id}, 1, 'alice with a new token is alice');
is(example_post($URI, $BODY, headers(Authorization => 'Bearer renewed'))
   ->json->{user_id}, 2, 'bob is not');

# and so the log names the user

my ($hit) = events(1);

is($hit->{event}, 'idempotency_cache_hit', 'the hit is logged');
is($hit->{user_id}, 'alice', 'with the user');



=== TEST 4: concurrent requests
--- http_config eval: main::example('guardian')
--- config
    location /unused { }
--- client
app_answer($URI, created(hold => 1));

my $c = example_send($URI, $BODY, headers());
app_wait_parked($URI);

my $r = example_post($URI, $BODY, headers());

is($r->status, 409, 'while it runs: 409');
is($r->reason, 'Conflict', 'Conflict');
is($r->header('Content-Type'), 'application/json', 'application/json');
is_deeply($r->json, $CONCURRENT, 'the body that is printed');
is($r->header('Retry-After'), 2, 'and when to come again');

app_release($URI);
is($c->read_response->status, 201, 'the first one');
is(example_post($URI, $BODY, headers())->json->{user_id}, 1,
   'a retry after it gets its response');
is(app_count($URI), 1, 'called once');

my @log = events(2);

is($log[0]{event}, 'idempotency_concurrent_request', 'logged');
is($log[0]{level}, 'warn', 'as a warning');
is($log[0]{idempotency_key}, Digest::SHA::sha256_hex($KEY), 'of which key');
is($log[0]{operation_type}, 'createUser', 'of which operation');
is_deeply([ sort keys %{ $log[0] } ],
          [ qw(event idempotency_key level operation_type user_id) ],
          'of whom, if an access check says so; and nothing else');
is($log[1]{event}, 'idempotency_cache_hit', 'so is the hit');
is($log[1]{level}, 'info', 'as information');
is($log[1]{cached_status}, 'completed', 'what is stored');
like($log[1]{cached_at}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
     'since when');
is($log[1]{operation_type}, 'createUser', 'of which operation');
is($log[1]{idempotency_key}, Digest::SHA::sha256_hex($KEY),
   'and the key, as sha256sum makes it');



=== TEST 5: failures are kept
--- http_config eval: main::example('guardian')
--- config
    location /unused { }
--- client
for my $status (400, 401, 403, 404, 409, 422, 429, 500, 501, 503) {
    my $uri = "/api/v1/fail$status";
    my $h = headers('Idempotency-Key' => uuid4());

    app_answer($uri, { status => $status, body => '{"error":{"run":{run}}}' });

    is(example_post($uri, $BODY, $h)->status, $status, "$status: ran");

    my $retry = example_post($uri, $BODY, $h);
    is($retry->status, $status, "$status again");
    is($retry->body, '{"error":{"run":1}}', "$status: the stored error");
    is(app_count($uri), 1, "$status: ran once");
}

my @log = events(10);
is($log[-1]{cached_status}, 'failed', 'the log says that it failed');
is($log[-1]{operation_type}, 'POST /api/v1/fail503',
   'and names an operation that it has no word for');



=== TEST 6: UUID v4, and nothing else
--- http_config eval
main::example('guardian', sub {
    s/(\n    location \/ \{)/\n    location = \/stats { idempotency_stats prometheus; }\n$1/ })
--- config
    location /unused { }
--- client
app_answer($URI, created());

for my $bad ('test-key-123', '550e8400-e29b-11d4-a716-446655440000',
             '550e8400-e29b-41d4-c716-446655440000',
             '550e8400e29b41d4a716446655440000', '1',
             '{550e8400-e29b-41d4-a716-446655440000}')
{
    my $r = example_post($URI, $BODY, headers('Idempotency-Key' => $bad));

    is($r->status, 400, "no key: $bad");
    is_deeply($r->json, { error => { code => 'IDEMPOTENCY_KEY_INVALID',
        message => 'Invalid idempotency key format' } }, 'and says so');
}

is(app_count($URI), 0, 'none of them ran');

# without a key requests run as ever

example_post($URI, $BODY, { Authorization => 'Bearer alice' }) for 1, 2;
is(app_count($URI), 2, 'no key, no protection');

# every tenth request is a retry: the document's load test, by the figures

my $uri = '/api/v1/rooms';
app_answer($uri, created());

my @recent;
my $hits = 0;

my $figure = sub {
    my ($n) = example_request('GET', '/stats')->body =~
        /requests_total\{[^\n]*group="createRoom"[^\n]*outcome="$_[0]"\} (\d+)$/m;

    return $n;
};

for my $i (1 .. 300) {
    my $key = $i % 10 == 0 ? $recent[-1] : uuid4();
    my $body = $i % 10 == 0 ? $i - 1 : $i;

    push @recent, $key;
    my $r = example_post($uri, $body, headers('Idempotency-Key' => $key));
    $hits++ if $r->header('Idempotent-Replayed');
}

cmp_ok($hits / 300, '>', 0.09, 'hit rate above 0.09');
cmp_ok($hits / 300, '<', 0.11, 'and below 0.11');
is(app_count($uri), 270, 'each operation ran once');

my $replayed = $figure->('REPLAYED');
my $rate = $replayed / ($replayed + $figure->('EXECUTED'));

cmp_ok($rate, '>', 0.09, "cache_hit_rate by the figures is above 0.09");
cmp_ok($rate, '<', 0.11, 'and below 0.11');
is($figure->('BUSY'), 0, 'concurrent_requests.count');



=== TEST 7: responses lie compressed in the store
--- store: memory
--- http_config eval
"idempotency_store tiny memory { zone tiny:512k; }\n"
. main::example('guardian', sub { s/\$TEST_STORE/tiny/ })
--- config
    location /unused { }
--- client
# 2.4 MB of responses in half a megabyte

my @h = map { headers('Idempotency-Key' => uuid4()) } 1 .. 80;

example_post("/size?n=30000&op=$_", 'x', $h[$_ - 1]) for 1 .. 80;

my @r = map { example_post("/size?n=30000&op=$_", 'x', $h[$_ - 1]) } 1 .. 80;

is(scalar(grep { $_->status == 200 && length $_->body == 30000 } @r), 80,
   'all of them are there');
is(app_count(1), 1, 'the first ran once');



=== TEST 8: 24 h
--- http_config eval
main::example('guardian', sub { s/(idempotency_ttl +)24h;/${1}700ms;/ })
--- config
    location /unused { }
--- client
app_answer($URI, created());

is(example_post($URI, $BODY, headers())->json->{user_id}, 1, 'ran');
is(example_post($URI, $BODY, headers())->json->{user_id}, 1, 'replayed');
ok(wait_for(sub { example_post($URI, $BODY, headers())->json->{user_id} != 1 },
            10), 'until the time is over');



=== TEST 9: the backend dies while it runs
--- http_config eval
main::example('guardian', sub { s/(idempotency_ttl )/idempotency_lease 1s; $1/ })
--- config
    location /unused { }
--- client
# nobody knows whether it ran: it does not run again, also when a lease would
# be over

app_answer($URI, { close => 1 }, created());

is(example_post($URI, $BODY, headers())->status, 502, 'the backend dies');

select undef, undef, undef, 1.5;

my $retry = example_post($URI, $BODY, headers());
is($retry->status, 409, 'its retry is refused');
is($retry->json->{error}{code}, 'OUTCOME_UNKNOWN', 'and says why');
is(app_count($URI), 1, 'it did not run twice');



=== TEST 10: what is kept of a key
--- http_config eval
main::example('guardian', sub {
    s/(\n    location \/ \{)/\n    location \/idem\/ { idempotency_admin read; }\n$1/ })
--- config
    location /unused { }
--- client
# status, user, operation, times: the columns of the document's table

app_answer($URI, created(hold => 1));

my $inspect = sub {
    return example_request('GET', '/idem/records/' . $main::STORE . "?key=$KEY"
                           . '&scope=token:Bearer%20alice')->json;
};

my $c = example_send($URI, $BODY, headers());
app_wait_parked($URI);
is($inspect->()->{state}, 'in_progress', 'processing');

app_release($URI);
$c->read_response;

my $record = $inspect->();

is($record->{state}, 'completed', 'completed');
is($record->{status}, 201, 'its status');
is($record->{group}, 'createUser', 'operation_type');
is($record->{actor}, Digest::SHA::sha256_hex('token:Bearer alice'),
   'user_id, as a hash');
like($record->{$_}, qr/^20\d\d-\d\d-\d\dT/, $_) for qw(created expires);


=== TEST 11: what nginx itself refuses
--- http_config eval: main::example('guardian')
--- config
    location /unused { }
--- client
# a chunk without a length: no error of the module, and yet one of this shape

my $r = http_raw("POST /api/v1/users HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "
                 . "550e8400-e29b-41d4-a716-446655440000\r\n"
                 . "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                 port => $ENV{TEST_NGINX_PORT_2});

is($r->status, 400, 'refused with 400');
is_deeply($r->json, { error => {
    code => 'HTTP_400', message => 'The request was refused by nginx' } },
          'with a body that says so');
