# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_admin: records are found, listed and deleted, over HTTP, on every
# store; nothing that a client sent or got is in an answer.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Admin 'admin_config';
use Test::Nginx::Socket 'no_plan';
use Digest::SHA 'sha256_hex';
use JSON::PP;

our $api = admin_config('$TEST_STORE', 'idempotency_wait  5s;');

# the same keys in a scope of their own

our $elsewhere = <<'_EOC_';
    location /elsewhere/ {
        idempotency        $TEST_STORE;
        idempotency_scope  elsewhere;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

our $store;

# the name of the store under test
sub store {
    return $store //= http_get('/ops/')->json->{stores}[0];
}

sub admin {
    my ($method, $path) = @_;

    $path =~ s{STORE}{store()}e;

    return http_request($method, "/ops/$path", '', {});
}

sub post {
    my ($uri, $key) = @_;

    return http_post($uri, 'secret body', { 'Idempotency-Key' => $key });
}

# all pages of a list
sub all {
    my ($path, $method) = @_;
    my (@records, $cursor);

    for (1 .. 500) {
        my $r = admin($method || 'GET', $path . ($cursor ? "&cursor=$cursor" : ''));

        is($r->status, 200, 'a page') or do { diag($r->body); last };
        push @records, @{ $r->json->{records} };

        $cursor = $r->json->{cursor} or last;
    }

    return @records;
}

run_tests();

__DATA__

=== TEST 1: one record, by its id and by its key
--- config eval: $::api
--- client
my $key = new_key();
my $first = post('/headers?op=a', $key);
my $id = $first->header('X-Record');

my $r = admin('GET', "records/STORE/$id");

is($r->status, 200, 'there');
like($r->header('Content-Type'), qr{^application/json}, 'JSON');
is($r->header('Cache-Control'), 'no-store', 'not to be cached');

my $record = $r->json;

is($record->{record}, $id, 'its id');
is($record->{state}, 'completed', 'its state');
is($record->{status}, 201, 'the status of its response');
is($record->{store}, store(), 'its store');
like($record->{created}, qr/^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'when');
like($record->{expires}, qr/^20\d\d-\d\d-\d\dT/, 'until when');
cmp_ok($record->{ttl_left_ms}, '>', 86_000_000, 'how long from now');
cmp_ok($record->{age_ms}, '<', 60_000, 'how old it is');
cmp_ok($record->{size}, '>', 100, 'its size');
like($record->{fingerprint}, qr/^[0-9a-f]{64}$/, 'its fingerprint');
is($record->{replays}, 0, 'not replayed yet');

post('/headers?op=a', $key) for 1 .. 2;
is(admin('GET', "records/STORE/$id")->json->{replays}, 2, 'replayed twice');

my $same = admin('GET', "records/STORE?key=$key&scope=api");

is($same->json->{record}, $id, 'by key and scope');

is(admin('GET', "records/STORE?key=$key&scope=other")->status, 404,
   'not in another scope');

my $which = admin('GET', "id?key=$key&scope=api")->json;

is($which->{record}, $id, 'the id of a key');
is($which->{key_hash}, sha256_hex($key), 'and its hash');

# as it may be sent: quotes, escapes and parameters

my %sent = ("%22$key%22" => $key, "%22$key%22;a=1" => $key,
            '%22q%5C%22%5C%5Cz%22' => 'q"\\z', '%22open' => '"open');

is(admin('GET', "id?key=$_&scope=api")->json->{key_hash},
   sha256_hex($sent{$_}), "the key of $_") for sort keys %sent;

unlike($r->body, qr/\Q$key\E|run 1|secret|Set-Cookie|token/i,
       'no key, body, header or token in it');
is(http_get("/look/records/" . store() . "/$id")->status, 200,
   'read only is enough');



=== TEST 2: deleting one: the next request runs
--- config eval: $::api
--- client
my $key = new_key();
my $id = post('/ok?op=b', $key)->header('X-Record');

my $dry = admin('DELETE', "records/STORE/$id?dry_run=1");

is($dry->status, 200, 'a dry run');
is($dry->json->{deleted}, 0, 'deletes nothing');
is($dry->json->{matched}, 1, 'and tells what it would');
is($dry->json->{records}[0]{record}, $id, 'namely this');
is(post('/ok?op=b', $key)->header('X-Status'), 'REPLAYED', 'it is there');

is(http_request('DELETE', '/look/records/' . store() . "/$id", '', {})->status,
   403, 'not where it is read only');
is(post('/ok?op=b', $key)->header('X-Status'), 'REPLAYED', 'it is still there');

my $r = admin('DELETE', "records/STORE?key=$key&scope=api");

is($r->status, 200, 'deleted by key');
is($r->json->{deleted}, 1, 'one');
is($r->json->{dry_run}, JSON::PP::false, 'not dry');

is(admin('GET', "records/STORE/$id")->status, 404, 'gone');
is(admin('DELETE', "records/STORE/$id")->status, 404, 'once only');

my $again = post('/ok?op=b', $key);

is($again->header('X-Status'), 'EXECUTED', 'runs');
is($again->body, "run 2\n", 'anew');
is(post('/ok?op=b', $key)->body, "run 2\n", 'and that is kept');

is(app_count('b'), 2, 'two runs');
error_log_like(qr/a record of store "\w+" was deleted by "127\.0\.0\.1"/,
               'who it was');

# a filter beside a key or an id is refused, not ignored
for my $path ("records/STORE/$id?state=in_progress",
              "records/STORE?key=$key&scope=api&tenant=other",
              "records/STORE?state=completed&scope=other",
              "records/STORE?state=completed&tenant=%4")
{
    is(admin('DELETE', $path)->status, 400, "DELETE $path");
}

is(admin('GET', "records/STORE/$id")->status, 200, 'nothing was deleted');



=== TEST 3: deleting a lock: its holder loses it, and who waits runs
--- config eval: $::api
--- client
my $key = new_key();
my $holder = send_post('/hold?op=c', 'secret body', { 'Idempotency-Key' => $key });

app_wait_parked('c');

my $list = admin('GET', 'records/STORE?state=in_progress')->json;

is(scalar @{ $list->{records} }, 1, 'one is in progress');

my $id = $list->{records}[0]{record};

cmp_ok($list->{records}[0]{lease_left_ms}, '>', 0, 'its lease');
ok(!exists $list->{records}[0]{status}, 'no status yet');

my $waiter = send_post('/hold?op=c', 'secret body', { 'Idempotency-Key' => $key });

ok(!$waiter->closed(0.3), 'another waits');

is(admin('DELETE', "records/STORE/$id")->json->{deleted}, 1, 'deleted');
is(app_wait_parked('c', 2, 5), 2, 'the one that waited runs at once');

app_release('c', 2);

my @body = sort map { $_->read_response->body } $holder, $waiter;

is_deeply(\@body, [ "run 1\n", "run 2\n" ], 'each has its own answer');
error_log_like(qr/a response was not stored, the lock had been lost/,
               'the first says that it lost its lock');

is(post('/hold?op=c', $key)->body, "run 2\n", 'the second is kept');
is(app_count('c'), 2, 'two runs');



=== TEST 4: a holder does not write anew what was deleted under it
--- config eval: $::api
--- client
my $key = new_key();
my $holder = send_post('/hold?op=d', 'secret body', { 'Idempotency-Key' => $key });

app_wait_parked('d');

my ($record) = all('records/STORE?state=in_progress');

is(admin('DELETE', "records/STORE/$record->{record}")->json->{deleted}, 1,
   'deleted');
is(scalar(all('records/STORE?limit=1000')), 0, 'nothing is there');

app_release('d');
is($holder->read_response->body, "run 1\n", 'its client gets its answer');

error_log_like(qr/a response was not stored, the lock had been lost/, 'lost');
is(admin('GET', "records/STORE/$record->{record}")->status, 404,
   'it did not come back');

my $next = send_post('/hold?op=d', 'secret body', { 'Idempotency-Key' => $key });

app_release('d');
is($next->read_response->body, "run 2\n", 'the next one runs');



=== TEST 5: a lease that is renewed after its record was deleted is lost
--- config eval
my $c = $::api;
$c =~ s/idempotency_wait .*/idempotency_lease 300ms; idempotency_wait 0;/;
$c
--- client
my $key = new_key();
my $holder = send_post('/hold?op=e', 'secret body', { 'Idempotency-Key' => $key });

app_wait_parked('e');

my ($record) = all('records/STORE?state=in_progress');

admin('DELETE', "records/STORE/$record->{record}");
error_log_like(qr/the lease of a running request was lost/, 'told while it runs');
is(scalar(all('records/STORE?limit=10')), 0, 'and it is not there again');

app_release('e');
$holder->read_response;



=== TEST 6: lists: pages, states, age
--- config eval: $::api
--- client
my %id;

for my $i (1 .. 45) {
    $id{ post("/ok?op=l$i", new_key())->header('X-Record') } = 1;
}

post('/ok?op=gone', new_key());

my @all = all('records/STORE?limit=7');
my %seen;

$seen{ $_->{record} }++ for @all;

is(scalar(keys %seen), 46, 'all of them');
is(scalar(grep { $_ > 1 } values %seen), 0, 'none twice');
is(scalar(grep { !$seen{$_} } keys %id), 0, 'none is missing');

my $page = admin('GET', 'records/STORE?limit=7')->json;

is(scalar @{ $page->{records} }, 7, 'a page is as long as was asked for');
ok($page->{cursor}, 'and there are more');

is(scalar(all('records/STORE?state=completed')), 46, 'all are completed');
is(scalar(all('records/STORE?state=unusable')), 0, 'none is unusable');
is(scalar(all('records/STORE?older=1h')), 0, 'none is old');
is(scalar(all('records/STORE?older=1ms')), 46, 'all are older than that');

is(scalar(all('records/STORE?state=completed&older=1ms&limit=10', 'DELETE')), 46,
   'deleted, a page at a time');
is(scalar(all('records/STORE')), 0, 'none is left');



=== TEST 7: questions that are not right
--- config eval: $::api
--- client
my $none = '0' x 64;

for ([ 'GET', 'records/nowhere', 404, 'STORE_UNKNOWN' ],
     [ 'GET', 'records/STORE/123', 400, 'RECORD_INVALID' ],
     [ 'GET', "records/STORE/$none", 404, 'RECORD_UNKNOWN' ],
     [ 'GET', 'records/STORE?state=done', 400, 'STATE_INVALID' ],
     [ 'GET', 'records/STORE?older=long', 400, 'OLDER_INVALID' ],
     [ 'GET', 'records/STORE?limit=0', 400, 'LIMIT_INVALID' ],
     [ 'GET', 'records/STORE?cursor=!!', 400, 'CURSOR_INVALID' ],
     [ 'GET', 'records/STORE?cursor=zzz', 400, 'CURSOR_INVALID' ],
     [ 'DELETE', 'records/STORE', 400, 'FILTER_MISSING' ],
     [ 'DELETE', 'records/STORE?older=0s&tenant=', 400, 'FILTER_EMPTY' ],
     [ 'DELETE', 'records/STORE?state=completed&key=', 400, 'FILTER_EMPTY' ],
     [ 'DELETE', 'records/STORE?older=0s&tenant', 400, 'FILTER_EMPTY' ],
     [ 'DELETE', 'records/STORE?older=0s&dry_run', 400, 'FILTER_EMPTY' ],
     [ 'DELETE', 'records/STORE?older=0s&tennant=a', 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', 'records/STORE?older=0s&dryrun=1', 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', "records/STORE/$none?dryrun=1", 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', "records/STORE/$none?tenant=a", 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', "records/STORE/$none?key=a", 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', 'records/STORE?key=a&older=1h', 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', 'records/STORE?older=0s&scope=a', 400, 'ARGUMENT_UNKNOWN' ],
     [ 'DELETE', 'records/STORE?older=0s&older=1h', 400, 'ARGUMENT_INVALID' ],
     [ 'DELETE', 'records/STORE?older=0s&tenant=%4', 400, 'ARGUMENT_INVALID' ],
     [ 'DELETE', 'records/STORE?older=0s&tenant=a%4x', 400, 'ARGUMENT_INVALID' ],
     [ 'DELETE', 'records/STORE?older=0s&dry_run=%', 400, 'ARGUMENT_INVALID' ],
     [ 'POST', 'records/STORE', 405, 'METHOD_NOT_ALLOWED' ],
     [ 'DELETE', 'health', 405, 'METHOD_NOT_ALLOWED' ],
     [ 'GET', 'id', 400, 'KEY_MISSING' ],
     [ 'GET', 'nothing', 404, 'NOT_FOUND' ])
{
    my ($method, $path, $status, $code) = @$_;
    my $r = admin($method, $path);

    is($r->status, $status, "$method $path");
    is($r->json->{error}{code}, $code, $code);
    like($r->json->{error}{message}, qr/^[A-Z"].*[.?]$/, 'a sentence');
}

# whoever forgets the scope takes the record for gone

my $said = 'The scope was "localhost", the host of this request: name another with "scope".';

for my $method ('GET', 'DELETE') {
    like(admin($method, 'records/STORE?key=none')->json->{error}{message},
         qr/deleted\..* \Q$said\E$/, "$method: in which scope");
    unlike(admin($method, "records/STORE$_")->json->{error}{message},
           qr/scope/, "$method $_: not if it is named")
        for '?key=none&scope=localhost', "/$none";
}



=== TEST 8: health asks the stores
--- config eval: $::api
--- client
my $r = admin('GET', 'health');

is($r->status, 200, 'well');
is($r->json->{status}, 'ok', 'said so');
is($r->json->{stores}[0]{name}, store(), 'which store');
is($r->json->{stores}[0]{ok}, JSON::PP::true, 'answers');



=== TEST 9: events as they happen, of every worker
--- workers: 2
--- config eval: $::api . $::elsewhere
--- client
my $key = new_key();
my $all = connect_client();
my $mine = connect_client();
my $any = connect_client();

$all->send_part("GET /ops/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
$mine->send_part("GET /ops/events?key=$key&scope=api HTTP/1.1\r\n"
                 . "Host: localhost\r\n\r\n");
like($all->read_some(200, 10) || '', qr{200 OK.*text/event-stream}s, 'a stream');
$any->send_part("GET /ops/events?key=$key HTTP/1.1\r\n"
                . "Host: localhost\r\n\r\n");
$mine->read_some(200, 10);
$any->read_some(200, 10);

my $id = post('/ok?op=ev', $key)->header('X-Record');
post('/ok?op=ev', $key);
post('/ok?op=other', new_key());
post('/elsewhere/ok?op=scope', $key);
admin('DELETE', "records/STORE/$id");

my $text = '';

wait_for(sub { $text = $all->read_some(1 << 20, 0.1) // '';
               $text =~ /record\.deleted/ }, 5);

like($text, qr/^data: \{.*"event":"idempotency\.replay".*\}$/m, 'a replay');
like($text, qr/"event":"idempotency\.record\.deleted".*"record":"$id".*"by":"127/,
     'a deletion, and by whom');
unlike($text, qr/\Q$key\E/, 'no key');

my $own = $mine->read_some(1 << 20, 0.3) // '';

like($own, qr/"event":"idempotency\.replay"/, 'of one key');
is(scalar(() = $own =~ /"event":"idempotency\.processed"/g), 1,
   'and of no other, also of that key in another scope');
like($own, qr/"event":"idempotency\.record\.deleted".*"record":"$id"/,
     'with its deletion, which knows the record only');

$own = $any->read_some(1 << 20, 0.3) // '';

is(scalar(() = $own =~ /"event":"idempotency\.processed"/g), 2,
   'without a scope, of the key in every one');
$_->abort for $all, $mine, $any;



=== TEST 10: a wrong word
--- config
    location /ops/ { idempotency_admin write; }
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "write" in .*idempotency_admin.*nginx\.conf:\d+|invalid value "write"/



=== TEST 11: a client that goes away, and a nginx that leaves, in the middle
--- config eval: $::api
--- client
my $c = connect_client();

$c->send_part("GET /ops/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
$c->read_some(100, 10);
ok(nginx_reload(), 'reloaded while somebody follows');
ok(wait_for(sub { $c->closed(0.1) }, 5), 'the old worker lets go of him');
is(http_get('/ops/')->status, 200, 'and the new one serves');



=== TEST 12: labels: whose a record is, who sent it; purged by these
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_scope            api;
        idempotency_identity         off;
        idempotency_tenant           $http_x_tenant;
        idempotency_actor            $http_x_actor;
        idempotency_group            pay;
        idempotency_conflict_detail  paths;
        add_header                   X-Record $idempotency_record always;
        add_header                   X-Status $idempotency_status always;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ { idempotency_admin; }
--- client
my %sent;

for (qw(acme:ann acme:bob zeta:ann)) {
    my ($tenant, $actor) = split /:/;

    $sent{$_} = { 'Idempotency-Key' => new_key(), 'X-Tenant' => $tenant,
                  'X-Actor' => $actor, 'Content-Type' => 'application/json' };
    http_post("/ok?op=$tenant", '{"a":1}', $sent{$_});
}

my ($record) = all('records/STORE?tenant=zeta');

is($record->{tenant}, 'zeta', 'its tenant');
is($record->{actor}, sha256_hex('ann'), 'its actor, as a hash');
is($record->{group}, 'pay', 'its group');
ok($record->{host}, 'the host of its holder');

http_post('/ok?op=u', '{"a":1}', { 'Idempotency-Key' => new_key(),
                                   'X-Tenant' => "M\xc3\xbc\"\\" });
($record) = all('records/STORE?tenant=M%C3%BC%22%5C');
is($record->{tenant}, "M\x{fc}\"\\", 'a tenant as it was named');
is(scalar(all('records/STORE?tenant=M%C3%BC%22%5C', 'DELETE')), 1, 'deleted');

is(http_post('/ok?op=acme', '{"a":1}', $sent{'acme:ann'})->header('X-Status'),
   'REPLAYED', 'replays are as ever');

my $conflict = http_post('/ok?op=acme', '{"a":2}', $sent{'acme:ann'});

is($conflict->json->{error}{details}{diff_summary}[0]{path}, '/a',
   'and a conflict names what differs');

is(scalar(all('records/STORE?tenant=acme')), 2, 'by tenant');
is(scalar(all('records/STORE?actor=ann')), 2, 'by actor');
is(scalar(all('records/STORE?actor=' . sha256_hex('ann'))), 2, 'by the hash');
is(scalar(all('records/STORE?tenant=acme&actor=ann')), 1, 'by both');
is(scalar(all('records/STORE?group=pay')), 3, 'by group');
is(scalar(all('records/STORE?tenant=acm')), 0, 'not by a part');

# labels of any length up to the longest

for my $n (map { 8 * $_ } 1 .. 12) {
    my $tenant = 'x' x $n;

    http_post('/ok?op=long', 'no JSON', { 'Idempotency-Key' => new_key(),
                                          'X-Tenant' => $tenant });
    ($record) = all("records/STORE?tenant=$tenant");
    is($record->{tenant}, $tenant, "a tenant of $n");
    ok($record->{host}, 'and its host');
    admin('DELETE', "records/STORE/$record->{record}") if $record;
}

my $url = "http://127.0.0.1:$port/ops/";

is(scalar(qx(build/idempotencyctl --url $url purge --tenant acme)),
   "deleted 2 records\n", 'purged');
is(scalar(all('records/STORE')), 1, 'the other tenant has its own');



=== TEST 13: a group is a label of records, too, wherever it is set
--- http_config
    idempotency_group  everywhere;
--- config
    location / {
        idempotency        $TEST_STORE;
        idempotency_scope  api;
        add_header         X-Record $idempotency_record always;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /own/ {
        idempotency        $TEST_STORE;
        idempotency_scope  api;
        idempotency_group  own-$http_x_route;
        add_header         X-Record $idempotency_record always;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }

    location /ops/ { idempotency_admin; }
--- client
my %h = ('X-Route' => 'r');
my $one = http_post('/ok', 'x', { 'Idempotency-Key' => new_key(), %h });
my $two = http_post('/own/ok', 'x', { 'Idempotency-Key' => new_key(), %h });

is(join(' ', map { $_->{record} } all('records/STORE?group=everywhere')),
   $one->header('X-Record'), 'that of http');
is(join(' ', map { $_->{record} } all('records/STORE?group=own-r')),
   $two->header('X-Record'), 'that of a location, by a variable');
ok($_->{host}, 'with its host') for all('records/STORE');


=== TEST 14: an unknown outcome lives on when its lease is over
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_scope     api;
        idempotency_identity  off;
        idempotency_lease     1s;
        add_header            X-Record $idempotency_record always;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ { idempotency_admin; }
--- client
my $id = post('/close?op=a', new_key())->header('X-Record');

for my $when ('at once', 'after its lease') {
    my $record = admin('GET', "records/STORE/$id")->json;

    is($record->{reason}, 'outcome_unknown', "unknown, $when");
    cmp_ok($record->{ttl_left_ms}, '>', 86_000_000, "how long from now, $when");

    sleep 1.2 if $when eq 'at once';
}



=== TEST 15: behind a regular expression there is no address of its own
--- config
    location ~ ^/ops/ { idempotency_admin; }
--- must_die
--- error_log eval
qr/\[emerg\] .*"idempotency_admin" directive takes a location with a prefix.*nginx\.conf:\d+/



=== TEST 16: no key where one is required around it
--- config
    idempotency           $TEST_STORE;
    idempotency_required  on;
    idempotency_scope     api;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ {
        idempotency_admin;
        add_header  X-Status "<$idempotency_status>" always;
    }

    location = /figures {
        idempotency_stats  json;
    }
--- client
my $key = new_key();
post('/ok?op=a', $key);

my $r = admin('DELETE', "records/STORE?key=$key&scope=api");

is($r->status, 200, 'deleted');
is($r->header('X-Status'), '<>', 'and not covered itself');
is(post('/ok?op=a', $key)->body, "run 2\n", 'so it runs again');
is(http_post('/figures', '', {})->status, 405, 'nor for figures');
is(http_post('/ok?op=a', 'secret body', {})->status, 400, 'but elsewhere');



=== TEST 17: "if" and "limit_except" are the location around them
--- config eval
$::api =~ s/read;/read; if (\$args) { set \$x 1; }/r . <<'_EOC_';
    location /few/ {
        idempotency_admin;

        limit_except GET {
            allow  127.0.0.1;
            deny   all;
        }
    }

    location = /figures {
        idempotency_stats  json;

        if ($args) {
            set  $x 1;
        }
    }
_EOC_
--- client
my $key = new_key();
post('/ok?op=a', $key);

my $uri = 'records/' . store() . "?key=$key&scope=api";

is(http_request('DELETE', "/look/$uri", '', {})->status, 403, 'read is read');
is(http_get('/look/?a=1')->json->{read_only}, JSON::PP::true, 'as it says');
is(http_get("/few/$uri")->status, 200, 'it is still there');
is(http_request('DELETE', "/few/$uri", '', {})->json->{deleted}, 1,
   'deleted by whom limit_except lets in');
like(http_get('/figures?a=1')->header('Content-Type'), qr{^application/json},
     'figures of the kind that was asked for');



=== TEST 18: conditions in a request do not count
nginx made 412 or 304 of the answer to a deletion that was made.
--- config eval: $::api
--- client
for my $condition ([ 'If-Match' => '"x"' ], [ 'If-None-Match' => '*' ],
                   [ 'If-Unmodified-Since' => 'Thu, 01 Jan 1998 00:00:00 GMT' ])
{
    my $key = new_key();
    my $id = post("/ok?op=$key", $key)->header('X-Record');
    my $name = $condition->[0];

    for my $method ('GET', 'DELETE') {
        my $r = http_request($method, '/ops/records/' . store() . "/$id", '',
                             $condition);
        is($r->status, 200, "$name: $method");
        ok(length $r->body, "$name: $method is told");
    }

    is(post("/ok?op=$key", $key)->body, "run 2\n", "$name: it was deleted");
}



=== TEST 19: a deletion of many pages leaves none of them
What came into reach of a slice with the next page was skipped.
--- http_config
    idempotency_store  small  memory { zone small:512k; }
--- config
    location / {
        idempotency         small;
        idempotency_tenant  $http_x_tenant;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ {
        idempotency_admin;
    }
--- client
for my $i (1 .. 400) {
    http_post('/ok?op=m', 'x', { 'Idempotency-Key' => new_key(),
                                 'X-Tenant' => $i % 10 ? 'a' : 'b' });
}

is(scalar(all('records/small?tenant=a&limit=7&dry_run=1', 'DELETE')), 360,
   'a dry run counts them');
is(scalar(all('records/small?tenant=a&limit=7', 'DELETE')), 360,
   'all are deleted, each once');
is(scalar(all('records/small?tenant=a')), 0, 'none is left');
is(scalar(all('records/small?limit=7')), 40, 'the others are');



=== TEST 20: a list misses no record that stays, whatever goes between its pages
--- http_config
    idempotency_store  small  memory { zone small:512k; }
--- config
    location / {
        idempotency         small;
        idempotency_tenant  $http_x_tenant;
        add_header          X-Record $idempotency_record;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ {
        idempotency_admin;
    }
--- client
my (%id, %seen, $cursor, $longest);

for my $i (1 .. 400) {
    my $tenant = $i % 2 ? 'a' : 'b';
    my $r = http_post('/ok?op=m', 'x', { 'Idempotency-Key' => new_key(),
                                         'X-Tenant' => $tenant });

    push @{ $id{$tenant} }, $r->header('X-Record');
}

for (1 .. 100) {
    my $r = admin('GET', 'records/small?limit=7'
                         . ($cursor ? "&cursor=$cursor" : ''))->json;

    $seen{ $_->{record} }++ for @{ $r->{records} };
    $longest = @{ $r->{records} } if @{ $r->{records} } > ($longest // 0);

    $cursor = $r->{cursor} or last;

    admin('DELETE', "records/small/$_") for splice @{ $id{b} }, 0, 6;
}

is($cursor, undef, 'the list ends');
is($longest, 7, 'no page is longer than was asked for');
is(scalar(grep { !$seen{$_} } @{ $id{a} }), 0, 'none that stayed is missing');
is(scalar(grep { $_ > 1 } values %seen), 0, 'none is there twice');



=== TEST 21: events that are followed take no more memory with each
--- log_level: debug
--- http_config
    request_pool_size  512;
--- config eval: $::api
--- client
my $c = connect_client();

$c->send_part("GET /ops/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
$c->read_some(200, 10);

my ($id) = error_log() =~ m{\*(\d+) http request line: "GET /ops/events};
my $blocks = sub { my @n = error_log() =~ /\*$id posix_memalign: \w+:512 /g };
my $before = $blocks->();
my $text;

for my $n (1 .. 30) {
    post('/ok?op=m', new_key());
    wait_for(sub { $text = $c->read_some(1 << 20, 0.1) // '';
                   (() = $text =~ /"idempotency\.processed"/g) >= $n });
}

is(scalar(() = $text =~ /"idempotency\.processed"/g), 30, 'all came');
cmp_ok($before, '>', 0, 'blocks of memory are seen');
is($blocks->(), $before, 'none was added');
$c->abort;
