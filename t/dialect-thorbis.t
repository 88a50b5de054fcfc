# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/thorbis.conf, as it is, gets the keys, routes and bodies of Thorbis'
# strategy, and answers what is printed there.  docs/dialects.md has the table.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';
use vars qw($ONE $TWO $HOLD $DRAFT $LINK $KEY $BOOKING $STORE $PG);

# the tenants, keys and routes that are printed

$ONE = '1' x 32;
$TWO = '2' x 32;

$HOLD = '/api/bookings/hold';
$DRAFT = '/api/estimates/draft';
$LINK = '/api/payments/link';

$KEY = "$ONE:POST:bookings-hold:a1b2c3d4e5f6g7h8";

$BOOKING = '{"customer_info":{"name":"Ann","phone":"+1-512-555-0100"},'
           . '"requested_time":"2024-02-16T10:00:00Z"}';

# what the store under test is called

$STORE = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 'default'
                                                              : 'tested';

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $PG = start_postgres();
    $ENV{TEST_NGINX_OWN_PORT} = $PG->{port};
}

sub headers
{
    my %h = ('X-Tenant-Id' => $ONE, 'Content-Type' => 'application/json', @_);

    delete $h{$_} for grep { !defined $h{$_} } keys %h;

    return \%h;
}

sub key { ('Idempotency-Key' => defined $_[0] ? $_[0] : new_key()) }

# all records of a list, page by page

sub listed
{
    my ($which) = @_;

    my (@records, $cursor);

    do {
        my $page = example_request('GET', "/idem/records/$STORE?$which"
                                   . ($cursor ? "&cursor=$cursor" : ''))->json;

        push @records, @{ $page->{records} };
        $cursor = $page->{cursor};
    } while ($cursor);

    return @records;
}

# what is answered: the route is called "hold", which means something else to
# the application of the tests

sub booked { app_answer($HOLD, { body => "run {run}\n", @_ }) }

run_tests();

__DATA__

=== TEST 1: the keys that are printed
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
my @printed = (
    [ $HOLD,  $ONE, "$ONE:POST:bookings-hold:a1b2c3d4e5f6g7h8" ],
    [ $DRAFT, $TWO, "$TWO:POST:estimates-draft:x9y8z7w6v5u4t3s2" ],
    [ $LINK,  $ONE, "$ONE:POST:payments-link:m1n2o3p4q5r6s7t8" ],
);

for (@printed) {
    my ($uri, $tenant, $key) = @$_;
    my $h = headers('X-Tenant-Id' => $tenant, key($key));

    app_answer($uri, { status => 200, body => '{"id":{run}}' });

    my $first = example_post($uri, $BOOKING, $h);
    is($first->status, 200, "$key: is a key");
    is($first->header('X-Idempotency-Replay'), undef, 'ran');

    my $retry = example_post($uri, $BOOKING, $h);
    is($retry->status, 200, 'an exact duplicate: 200');
    is($retry->body, $first->body, 'with the original payload');
    is($retry->header('X-Idempotency-Replay'), 'true',
       'X-Idempotency-Replay: true');
    is($retry->header('X-Idempotency-Conflict'), undef, 'no conflict');
    is(app_count($uri), 1, 'ran once');
}

# with the route as it is written: customers-{id}

my $put = headers(key("$ONE:PUT:customers-{id}:a1b2c3d4e5f6g7h8"));

for (1, 2) {
    is(example_request('PUT', '/api/customers/7', '{"name":"Ann"}', $put)
       ->body, "run 1\n", "PUT:customers-{id}, try $_");
}

is(example_request('PUT', '/api/customers/8', '{"name":"Ann"}', $put)->status,
   409, 'another customer is another request');

# status 201 stays what it was

example_post('/api/other?status=201', '{}', headers(key('k')));
is(example_post('/api/other?status=201', '{}', headers(key('k')))->status, 201,
   'a replay has the stored status');



=== TEST 2: the conflict, member by member
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
booked();

my $h = headers(key($KEY));
my $first = example_post($HOLD, $BOOKING, $h);

(my $other = $BOOKING) =~ s/0100/0200/;
$other =~ s/T10:/T11:/;

my $r = example_post($HOLD, $other, $h);

is($r->status, 409, 'a 409');
is($r->reason, 'Conflict', 'CONFLICT');
is($r->header('X-Idempotency-Conflict'), 'body-mismatch',
   'X-Idempotency-Conflict: body-mismatch');
is($r->header('X-Idempotency-Replay'), undef, 'no replay');
like($r->header('Content-Type'), qr{^application/json}, 'JSON');

my $json = $r->json;
my $details = $json->{error}{details};

is_deeply([ keys %$json ], [ 'error' ], 'error');
is_deeply([ sort keys %{ $json->{error} } ], [ qw(code details message) ],
          'code, message, details');
is($json->{error}{code}, 'IDEMPOTENCY_CONFLICT', 'code');
is($json->{error}{message}, 'Request body differs from original request with '
   . 'same idempotency key', 'message');

is_deeply([ sort keys %$details ],
          [ qw(current_hash diff_summary original_hash original_key
               original_timestamp retry_after) ], 'details, as printed');
is($details->{original_key}, $KEY, 'original_key');
like($details->{current_hash}, qr/^[0-9a-f]{16}$/, 'current_hash');
like($details->{original_hash}, qr/^[0-9a-f]{16}$/, 'original_hash');
isnt($details->{current_hash}, $details->{original_hash}, 'which differ');
is_deeply($details->{diff_summary}, [
    "customer_info.phone: '+1-512-555-0100' \x{2192} '+1-512-555-0200'",
    "requested_time: '2024-02-16T10:00:00Z' \x{2192} '2024-02-16T11:00:00Z'",
], 'diff_summary');
is($details->{original_timestamp},
   example_post($HOLD, $BOOKING, $h)->header('X-Original-Request-Time'),
   'original_timestamp');
is($details->{retry_after}, 1800, 'retry_after');

# the hash is that of the content: the same for the same, whatever its form

(my $again = $other) =~ s/^\{/{ "trace_id": 17, /;

is(example_post($HOLD, $again, $h)->json->{error}{details}{current_hash},
   $details->{current_hash}, 'a stable hash');

# a body with what JSON has to escape

$r = example_post($HOLD, '{"customer_info":"\"quoted\" \\\\ back"}', $h);
ok($r->json, 'is JSON whatever the bodies say');



=== TEST 3: tenant, route and content make the key
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
# a client's key belongs to tenant and METHOD:route

my @key = key('k-1');

is(example_post($LINK, '{"total":1}', headers(@key))->body, "run 1\n", 'ran');
is(example_post($LINK, '{"total":1}', headers(@key, 'X-Tenant-Id' => $TWO))
   ->body, "run 2\n", 'another tenant');
is(example_request('PUT', $LINK, '{"total":1}', headers(@key))->body,
   "run 3\n", 'another method');
is(example_post($DRAFT, '{"total":1}', headers(@key))->body, "run 1\n",
   'another route');
is(example_post($DRAFT, '{"total":1}', headers(@key))
   ->header('X-Idempotency-Replay'), 'true', 'each replays its own');

# a tenant can't be written so that it is another one's route

is(example_post($LINK, '{"total":1}',
                headers(@key, 'X-Tenant-Id' => "$ONE:POST"))->body,
   "run 4\n", 'a tenant with a colon');

# no key: one is made of tenant, route and content

is(example_post($LINK, '{"total":2}', headers())->body, "run 5\n", 'no key');
my $folded = example_post($LINK, '{"total":2}', headers());
is($folded->body, "run 5\n", 'the same content');
is($folded->header('X-Idempotency-Replay'), 'true', 'is replayed');
is(example_post($LINK, '{"total":3}', headers())->body, "run 6\n",
   'other content');
is(example_post($LINK, '{"total":2}', headers('X-Tenant-Id' => $TWO))->body,
   "run 7\n", 'another tenant');
is(example_post($DRAFT, '{"total":2}', headers())->body, "run 2\n",
   'another route');

# two customers with the same content are two requests

my @put = map { scalar example_request('PUT', "/api/customers/$_",
                                       '{"name":"Ann"}', headers())
                       ->header('X-Idempotency-Replay') } 7, 8, 7;
is_deeply(\@put, [ undef, undef, 'true' ], 'customers-{id}: each has its own');

# a user's double click, while the first one runs

booked(hold => 1);

my @c = map { example_send($HOLD, $BOOKING, headers()) } 1, 2;

app_release($HOLD);
is_deeply([ map { $_->read_response->body } @c ], [ ("run 1\n") x 2 ],
          'a double click');
is(app_count($HOLD), 1, 'is one booking');



=== TEST 4: what counts of the content
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
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
    my @key = key();

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
    my @key = key();

    example_post('/api/x', $one, headers(@key));
    is(example_post('/api/x', $other, headers(@key))->status, 409,
       "not the same: $other");
}



=== TEST 5: which TTL by which route
--- http_config eval
"log_format ttl '\$request_method \$uri \$thorbis_route \$thorbis_ttl';\n"
. main::example('thorbis', sub {
    s/(listen .*)/$1 access_log logs\/access.log ttl;/
    && s/(\n    location \/ \{)/\n    location \/idem\/ { idempotency_admin; }\n$1/
    or die })
--- config
    location /unused { }
--- client
booked();

my @ttl = (
    [ POST => $HOLD,                'POST:bookings-hold',   '30m' ],
    [ POST => $DRAFT,               'POST:estimates-draft', '24h' ],
    [ POST => $LINK,                'POST:payments-link',   '7d' ],
    [ PUT  => '/api/customers/7',   'PUT:customers-{id}',   '1h' ],
    [ PUT  => '/api/jobs/7',        'PUT:jobs-{id}',        '4h' ],
    [ POST => '/v1/payments/link',  'POST:payments-link',   '7d' ],
    [ POST => '/api/anything',      'POST:other',           '1h' ],
    [ PUT  => $HOLD,                'PUT:other',            '1h' ],
    [ POST => '/api/bookings/holdx', 'POST:other',          '1h' ],
);

for (@ttl) {
    my ($method, $uri, $route, $ttl) = @$_;

    example_request($method, $uri, '{}', headers());
    access_log_like(qr/^\Q$method $uri $route $ttl\E$/m, "$route: $ttl");

    # what the store keeps it for, by the client's key and by a generated one

    my ($n, $unit) = $ttl =~ /^(\d+)(.)$/;
    my $ms = $n * { m => 60, h => 3600, d => 86400 }->{$unit} * 1000;

    example_request($method, $uri, '{}', headers(key("t-$route")));

    (my $scope = "$ONE:$route") =~ s/([{}])/sprintf '%%%02X', ord $1/ge;

    my $left = example_request('GET', "/idem/records/$STORE?scope=$scope&key=t-"
                               . substr $scope, 33)->json->{ttl_left_ms};

    cmp_ok($left, '<=', $ms, "$route: kept for $ttl");
    cmp_ok($left, '>', $ms - 60000, "$route: and not for less");

    my @kept = grep { ($_->{group} || '') eq $route } listed("tenant=$ONE");
    my @generated = grep { $_->{ttl_left_ms} > $ms - 60000
                           && $_->{ttl_left_ms} <= $ms } @kept;

    cmp_ok(scalar @generated, '==', @kept, "$route: so are generated ones");
    cmp_ok(scalar @kept, '>=', 2, "$route: which are there");
}



=== TEST 6: after the TTL it is a new request
--- client_timeout: 60
--- http_config eval
main::example('thorbis', sub { s/30m;/1s;/ && s/7d;/60s;/ or $_ = '' })
--- config
    location /unused { }
--- client
booked();

my $short = headers(key("$ONE:POST:bookings-hold:a1b2c3d4e5f6g7h8"));
my $long = headers(key("$ONE:POST:payments-link:m1n2o3p4q5r6s7t8"));

example_post($HOLD, $BOOKING, $short);
example_post($LINK, '{}', $long);

my $r;
ok(wait_for(sub { ($r = example_post($HOLD, $BOOKING, $short))->body
                  eq "run 2\n" }, 10), 'a short one expires');
is($r->header('X-Idempotency-Expired'), 'true',
   'X-Idempotency-Expired: true');
is($r->header('X-Idempotency-Replay'), undef, 'it ran');

$r = example_post($HOLD, $BOOKING, $short);
is($r->body, "run 2\n", 'which is replayed');
is($r->header('X-Idempotency-Expired'), undef, 'and nothing expired');

$r = example_post($LINK, '{}', $long);
is($r->body, "run 1\n", 'a long one does not');
is($r->header('X-Idempotency-Replay'), 'true', 'it is replayed');

# a generated key expires as well

my $run = example_post($HOLD, '{"n":2}', headers())->body;

ok(wait_for(sub { ($r = example_post($HOLD, '{"n":2}', headers()))->body
                  ne $run }, 10), 'a generated one expires');
is($r->header('X-Idempotency-Expired'), 'true', 'and says so, too');
is($r->header('X-Idempotency-Replay'), undef, 'it ran');
is(example_post($HOLD, '{"n":2}', headers())->header('X-Idempotency-Replay'),
   'true', 'from then on it is replayed again');



=== TEST 7: the errors that are not printed have the same shape
--- http_config eval: main::example('thorbis', sub { s/(key_format.*)/$1 idempotency_wait 0;/ })
--- config
    location /unused { }
--- client
booked();

my $r = example_post($HOLD, $BOOKING, headers(key('x' x 256)));

is($r->status, 400, 'a key that is none');
is($r->json->{error}{code}, 'IDEMPOTENCY_KEY_INVALID', 'says so');
ok(exists $r->json->{error}{details}, 'in its shape');

my $h = headers(key());
my $c = example_send('/api/hold?op=hold', '{}', $h);
app_wait_parked('hold');

$r = example_post('/api/hold?op=hold', '{}', $h);
is($r->status, 409, 'while the first one runs');
is($r->json->{error}{code}, 'CONCURRENT_REQUEST', 'says so');
cmp_ok($r->json->{error}{details}{retry_after}, '>', 0, 'and when to come again');
is($r->header('X-Idempotency-Conflict'), undef, 'it is no conflict');

app_release('hold');
is($c->read_response->status, 200, 'which ends in order');



=== TEST 8: routes are the labels of the figures
--- http_config eval
main::example('thorbis', sub {
    s/(\n    location \/ \{)/\n    location = \/stats { idempotency_stats prometheus; }\n$1/ })
--- config
    location /unused { }
--- client
booked();

example_post($HOLD, $BOOKING, headers(key($KEY))) for 1, 2;
example_request('PUT', "/api/customers/$_", '{}', headers(key())) for 7, 8;
example_post("/api/whatever/$_", '{}', headers(key())) for 1 .. 3;

my $stats = example_request('GET', '/stats')->body;

for my $count ([ 'POST:bookings-hold', 'EXECUTED', 1 ],
               [ 'POST:bookings-hold', 'REPLAYED', 1 ],
               [ 'PUT:customers-{id}', 'EXECUTED', 2 ],
               [ 'POST:other', 'EXECUTED', 3 ])
{
    my ($group, $outcome, $n) = @$count;

    like($stats, qr/requests_total\{[^\n]*group="\Q$group\E"[^\n]*outcome="$outcome"\} $n$/m,
         "$group: $n $outcome");
}

unlike($stats, qr/$ONE|whatever/, 'nothing that a client sent');



=== TEST 9: the audit trail, by tenant and route
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
booked();

example_post($HOLD, $BOOKING, headers(key($KEY))) for 1, 2;
example_post($HOLD, '{}', headers(key($KEY)));
example_post($HOLD, $BOOKING, headers('X-Tenant-Id' => $TWO));

my @events;
my $file = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/idempotency.json";

ok(wait_for(sub {
    open my $in, '<', $file or return 0;
    @events = map { JSON::PP->new->decode($_) }
              grep { /\n\z/ && !/storage\.slow/ } <$in>;
    return scalar grep { ($_->{tenant} || '') eq $TWO } @events;
}, 10), 'all tenants are there');

my %seen;
$seen{"$_->{tenant} $_->{event}"}++ for grep { $_->{tenant} } @events;

ok($seen{"$ONE idempotency.$_"}, "$_ of the one") for qw(key.created replay conflict);
ok($seen{"$TWO idempotency.key.created"}, 'key.created of the other');
ok(!$seen{"$TWO idempotency.replay"}, 'which replayed nothing');
is($events[0]{uri_group}, 'POST:bookings-hold', 'by route');
unlike(join('', map { JSON::PP->new->encode($_) } @events), qr/bookings-hold:a1b2/,
       'and never the key');



=== TEST 10: the document's queries, and row level security
--- store: postgres
--- http_config eval
"idempotency_store ledger postgres { server 127.0.0.1:\$TEST_NGINX_OWN_PORT; }\n"
. main::example('thorbis', sub {
    s/\$TEST_STORE/ledger/g && s/(idempotency_log +)\S+;/${1}store:ledger;/ or die })
--- config
    location /unused { }
--- client
booked();

example_post($HOLD, $BOOKING, headers(key($KEY))) for 1, 2;
example_post($HOLD, "{\"n\":$_}", headers()) for 1, 2;
example_post($HOLD, "{\"other\":$_}", headers(key($KEY))) for 1 .. 3;
example_post($DRAFT, '{}', headers('X-Tenant-Id' => $TWO));

my $c = example_send('/api/hold?op=hold', '{}', headers());
app_wait_parked('hold');

# whoever sends SQL for a key or a tenant has a key or a tenant with odd letters

my $evil = "'); DROP TABLE idempotency.idempotency_keys; --";

for (1, 2) {
    my $r = example_post($LINK, '{}', headers(key(qq("$evil")), 'X-Tenant-Id' => $evil));
    is($r->body, "run 1\n", "SQL in the key, try $_");
}

$PG->sql("CREATE ROLE one LOGIN; CREATE ROLE all_of_them LOGIN;
          GRANT idempotency_reader TO one, all_of_them;
          INSERT INTO idempotency.idempotency_tenants
          VALUES ('one', '$ONE'), ('all_of_them', '*')");

my $ask = sub { [ map { [ split /\|/, $_, -1 ] }
                  split /\n/, $PG->sql($_[0], user => $_[1] || 'all_of_them') ] };

# use by tenant and route

my $usage = "SELECT tenant, label, count(*) AS total_keys, "
            . "count(CASE WHEN completed_at IS NOT NULL THEN 1 END), "
            . "avg(extract(epoch FROM completed_at - created_at)) "
            . "FROM idempotency.idempotency_records "
            . "WHERE created_at > now() - interval '24 hours' "
            . "GROUP BY tenant, label ORDER BY total_keys DESC, tenant, label";

my %usage = map { ("$_->[0] $_->[1]" => $_) } @{ $ask->($usage) };

is_deeply([ map { @{ $usage{"$ONE POST:bookings-hold"} }[2, 3] } 1 ], [ 3, 3 ],
          'three keys, all of them completed');
like($usage{"$ONE POST:bookings-hold"}[4], qr/^\d+\.\d+/,
     'and how long it took');
is_deeply([ @{ $usage{"$ONE POST:other"} }[2, 3] ], [ 1, 0 ],
          'one that runs');
is($usage{"$TWO POST:estimates-draft"}[2], 1, 'the other tenant');

app_release('hold');
$c->read_response;

# conflicts by hour, from the audit log

my $conflicts = "SELECT date_trunc('hour', at) AS hour, count(*) AS conflicts "
                . "FROM idempotency.idempotency_events "
                . "WHERE event = 'idempotency.conflict' "
                . "AND at > now() - interval '24 hours' "
                . "GROUP BY hour ORDER BY hour";
my $hours;

ok(wait_for(sub { my $n = 0;
                  $hours = $ask->($conflicts, 'one');
                  $n += $_->[1] for @$hours;
                  $n == 3 }, 10), 'three conflicts');
cmp_ok(scalar @$hours, '<=', 2, 'in this hour, or over its end');

# what became of their TTLs

my $ttl = "SELECT label, count(*), "
          . "count(CASE WHEN expires_at < now() THEN 1 END), "
          . "avg(extract(epoch FROM expires_at - completed_at)) "
          . "FROM idempotency.idempotency_records GROUP BY label";

my %ttl = map { ($_->[0] => $_) } @{ $ask->($ttl) };

is_deeply([ @{ $ttl{'POST:bookings-hold'} }[1, 2] ], [ 3, 0 ],
          'three keys, none of them expired');
cmp_ok(abs($ttl{'POST:bookings-hold'}[3] - 1800), '<', 30, 'avg_ttl_seconds');

$PG->sql("UPDATE idempotency.idempotency_keys SET expires_at = now() - interval "
         . "'1 second', forget_at = now() - interval '1 second', purge_at = "
         . "now() - interval '1 second' WHERE label = 'POST:estimates-draft'");
%ttl = map { ($_->[0] => $_) } @{ $ask->($ttl) };
my $draft = $ttl{'POST:estimates-draft'};
is($draft ? $draft->[2] : 1, 1, 'one that expired, if the purge has left it');

# cleanup_expired_idempotency_keys(), which nginx calls by itself

$PG->sql('SELECT idempotency.idempotency_purge()', user => 'nginx');
ok(wait_for(sub { $PG->sql("SELECT count(*) FROM idempotency.idempotency_keys "
                           . "WHERE label = 'POST:estimates-draft'") == 0 }, 10),
   'what expired is gone');

# a business sees its own

is_deeply([ map { $_->[0] } @{ $ask->('SELECT DISTINCT tenant FROM '
                                      . 'idempotency.idempotency_records', 'one') } ],
          [ $ONE ], 'row level security: the tenant');
is_deeply($ask->("SELECT count(id) FROM idempotency.idempotency_keys WHERE "
                 . "tenant = '$TWO'", 'one'), [ [ 0 ] ],
          'and nobody else, by the table neither');


=== TEST 11: what nginx itself refuses
--- http_config eval: main::example('thorbis')
--- config
    location /unused { }
--- client
# a chunk without a length: no error of the module, and yet one of this shape

my $r = http_raw("POST /api/bookings/hold HTTP/1.1\r\nHost: a\r\nIdempotency-Key: "
                 . "550e8400-e29b-41d4-a716-446655440000\r\n"
                 . "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                 port => $ENV{TEST_NGINX_PORT_2});

is($r->status, 400, 'refused with 400');
is_deeply($r->json, { error => {
    code => 'HTTP_400', message => 'The request was refused by nginx',
    details => { retry_after => undef } } },
          'with a body that says so');
