# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_admin on PostgreSQL, beyond what t/admin.t and t/admin-remote.t ask
# of every store: caches that listen, long lists, rights that are missing, and
# labels.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Admin;
use Test::Nginx::Socket 'no_plan';
use Digest::SHA ();
use JSON::PP;
use POSIX ();

our $pg;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $pg = start_postgres('max_connections=60');
    $ENV{TEST_NGINX_OWN_PORT} = $pg->{port};
    $pg->sql('CREATE ROLE plain LOGIN; GRANT idempotency_nginx TO plain',
             user => 'keeper');
}

our $api = admin_config('shared');

sub own {
    my ($more, $user) = @_;

    $user ||= 'nginx';

    return <<"_EOC_";
    idempotency_store shared postgres {
        server    127.0.0.1:\$TEST_NGINX_OWN_PORT;
        database  idempotency;
        user      $user;
        timeout   5s;
        $more
    }
_EOC_
}

run_tests();

__DATA__

=== TEST 1: who keeps copies listens before anybody asks, and again afterwards
--- store: postgres
--- http_config eval: ::own('cache copies:1m ttl=60s;')
--- config eval: $::api
--- client
my $listens = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
my $count = sub { $::pg->sql($listens, user => 'postgres') };

ok(wait_for(sub { $count->() >= 1 }, 10), 'connected without a request');

$::pg->sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
           . "WHERE usename = 'nginx'", user => 'postgres');
ok(wait_for(sub { $count->() >= 1 }, 10), 'and again');

my $key = new_key();
my $id = post('/ok?op=b', $key)->header('X-Record');

is(post('/ok?op=b', $key)->header('X-Status'), 'REPLAYED', 'a copy');
is($::pg->sql("SELECT idempotency.idempotency_remove('\\x$id')"), 't',
   'removed with SQL');
ok(wait_for(sub { post('/ok?op=b', $key)->body eq "run 2\n" }, 10),
   'is forgotten, too');



=== TEST 2: a list of several slices, with rows that are no records in it
--- store: postgres
--- http_config eval: ::own('')
--- config eval: $::api
--- client
my (%id, %seen, $cursor);

$::pg->sql('TRUNCATE idempotency.idempotency_keys', user => 'keeper');

my $key = new_key();
my $id = post('/ok?op=c', $key)->header('X-Record');

$::pg->sql("INSERT INTO idempotency.idempotency_keys (created_at, lease_until, "
           . "completed_at, expires_at, forget_at, purge_at, size, state, "
           . "status, id, token, claim, response) SELECT created_at, "
           . "lease_until, completed_at, CASE WHEN n % 3 = 0 THEN now() "
           . "ELSE expires_at END, forget_at, purge_at, size, state, status, "
           . "sha256(n::text::bytea), token, claim, response "
           . "FROM idempotency.idempotency_keys, generate_series(1, 360) n",
           user => 'keeper');

for (1 .. 100) {
    my $r = http_get('/ops/records/shared?limit=50'
                     . ($cursor ? "&cursor=$cursor" : ''));

    is($r->status, 200, 'a page') or last;
    $seen{ $_->{record} }++ for @{ $r->json->{records} };
    $cursor = $r->json->{cursor} or last;
}

is(scalar(keys %seen), 241, 'all that did not expire');
is(scalar(grep { $_ > 1 } values %seen), 0, 'none twice');
ok($seen{$id}, 'and the one that ran');

# a machine that is slow needs more than one page for it
my $deleted = 0;

for (1 .. 100) {
    my $r = http_request('DELETE', '/ops/records/shared?state=completed'
                         . '&limit=1000' . ($cursor ? "&cursor=$cursor" : ''),
                         '', {})->json;
    $deleted += $r->{deleted};
    $cursor = $r->{cursor} or last;
}

is($deleted, 241, 'deleted');
is(scalar @{ http_get('/ops/records/shared')->json->{records} }, 0, 'none left');
is(post('/ok?op=c', $key)->body, "run 2\n", 'it runs again');
is($::pg->sql("SELECT count(*) FROM idempotency.idempotency_keys "
              . "WHERE reason = 6 AND (response IS NOT NULL "
              . "OR details IS NOT NULL)", user => 'keeper'), 0,
   'nothing of a response stays');



=== TEST 3: without the right to, records are seen by their id only
--- store: postgres
--- http_config eval: ::own('', 'plain')
--- config eval: $::api . "location = /stats { idempotency_stats json; }\n"
--- client
my $id = post('/ok?op=d', new_key())->header('X-Record');

is(http_get('/ops/health')->status, 200, 'health needs no right');
is(http_get('/ops/health')->json->{stores}[0]{ok}, JSON::PP::true, 'it was asked');
is(http_get("/ops/records/shared/$id")->json->{state}, 'completed', 'by its id');

for ([ 'GET', '' ], [ 'DELETE', "/$id" ]) {
    my $r = http_request($_->[0], "/ops/records/shared$_->[1]", '', {});

    is($r->status, 403, "$_->[0] is refused");
    is($r->json->{error}{code}, 'STORE_FORBIDDEN', 'its code');
    like($r->body, qr/may not do that, grant it idempotency_admin: permission/,
         'and says why, and what to grant');
}

unlike(http_get('/stats')->body, qr/"outage":\{/, 'the store is not away');

is(http_get("/ops/records/shared/$id")->status, 200, 'it is still there');

# labels, and then what idempotency_conflict_detail keeps
for ([ '4c0003000161', '4c0003000161' ], [ '', '' ], [ '4c', '' ]) {
    $::pg->sql("UPDATE idempotency.idempotency_keys SET label = '', "
               . "host = '', details = "
               . "'\\x$_->[0]' || CASE WHEN '$_->[0]' = '4c' THEN '' "
               . "ELSE 'secret' END::bytea WHERE id = '\\x$id'",
               user => 'keeper');
    is($::pg->sql("SELECT encode(o_details, 'hex') FROM "
                  . "idempotency.idempotency_entry('\\x$id')"), $_->[1],
       'labels are told, details are not');
}



=== TEST 4: a schema that was installed before there was any of this
--- store: postgres
--- http_config eval: ::own('')
--- config eval: $::api
--- client
$::pg->sql("ALTER FUNCTION idempotency.idempotency_$_ RENAME TO old_$_", user => 'keeper')
    for qw(entry entries delete);

my $key = new_key();
my $id = post('/ok?op=f', $key)->header('X-Record');

is(post('/ok?op=f', $key)->header('X-Status'), 'REPLAYED', 'requests are served');
is(http_get('/ops/health')->status, 200, 'the store is well');

for ([ 'GET', '', 503 ], [ 'DELETE', "/$id", 503 ], [ 'GET', "/$id", 409 ]) {
    my $r = http_request($_->[0], "/ops/records/shared$_->[1]", '', {});

    is($r->status, $_->[2], "$_->[0] $_->[1]");
    like($r->body, qr{apply sql/install\.sql}, 'what to do is said');
}

$::pg->sql("ALTER FUNCTION idempotency.old_$_ RENAME TO idempotency_$_", user => 'keeper')
    for qw(entry entries delete);
is(http_get("/ops/records/shared/$id")->status, 200, 'and then it works');



=== TEST 5: labels are columns, for people and for deletion
--- store: postgres
--- http_config eval: ::own('')
--- config
    add_header  X-Status $idempotency_status always;

    location / {
        idempotency         shared;
        idempotency_tenant  $http_x_tenant;
        idempotency_actor   $http_x_actor;
        idempotency_group   pay;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        idempotency         shared;
        idempotency_group   orders;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/ {
        idempotency_admin;
    }
--- client
my $columns = sub {
    return $::pg->sql("SELECT label, tenant, left(actor, 8), host <> '', state "
                      . "FROM idempotency.idempotency_keys "
                      . "ORDER BY label, tenant, state");
};
my $send = sub {
    my ($uri, $tenant, $key) = @_;
    return http_post($uri, 'x', { 'Idempotency-Key' => $key || new_key(),
        'X-Tenant' => $tenant, 'X-Actor' => 'jane' });
};
my $jane = substr Digest::SHA::sha256_hex('jane'), 0, 8;

$::pg->clear;
is($send->('/plain/ok', '')->status, 200, 'without tenant and actor');
is($columns->(), 'orders|||t|2', 'group and host are there');

$::pg->clear;
is($send->('/ok', "caf\xc3\xa9")->status, 200, 'a name in UTF-8');
is($columns->(), "pay|caf\xc3\xa9|$jane|t|2", 'is kept');

for ([ "caf\xe9", 'caf?' ], [ "\xc0\xafx", '??x' ], [ "\xed\xa0\x80", '???' ],
     [ "\xc3\xffx", '??x' ], [ "\xe2\x82\xc3", '???' ],
     [ "\xf8\x90\x80\x80\x80", '?????' ], [ 'a' x 94 . "\xc3\xa9", 'a' x 94 . "\xc3\xa9" ],
     map { [ $_, 'sha256:' . Digest::SHA::sha256_hex($_) ] } 'a' x 95 . "\xc3\xa9", 'a' x 200)
{
    $::pg->clear;
    my $key = new_key();
    is($send->('/ok', $_->[0], $key)->status, 200, 'any bytes');
    is($send->('/ok', $_->[0], $key)->header('X-Status'), 'REPLAYED', 'and again');
    is($columns->(), "pay|$_->[1]|$jane|t|2", 'as far as they are text, and a hash of what is too long');
}

# a row that is lost while its holder runs

$::pg->clear;
my $c = send_post('/hold?op=l', 'x', { 'Idempotency-Key' => new_key(),
    'X-Tenant' => 'acme', 'X-Actor' => 'jane' });
app_wait_parked('l');
is($columns->(), "pay|acme|$jane|t|1", 'in progress, with its labels');
$::pg->clear;
app_release('l');
is($c->read_response->status, 200, 'ran');
is($columns->(), "pay|acme|$jane|t|2", 'written anew, with its labels');
is(scalar @{ http_get('/ops/records/shared?tenant=acme')->json->{records} }, 1,
   'which people find it by');
is(http_get('/ops/records/shared?tenant=acme')->json->{records}[0]{group}, 'pay',
   'all of them');

# readers see their tenants

$send->('/ok', 'zeta');
$::pg->sql("CREATE ROLE ann LOGIN; GRANT idempotency_reader TO ann; INSERT INTO "
           . "idempotency.idempotency_tenants VALUES ('ann', 'zeta')",
           user => 'keeper');
is($::pg->sql('SELECT label, tenant, state, status FROM '
              . 'idempotency.idempotency_records', user => 'ann'),
   'pay|zeta|completed|200', 'a reader sees its tenant');
$::pg->sql('DROP OWNED BY ann; DROP ROLE ann', user => 'postgres');

# deletion by tenant, and by actor

is(http_request('DELETE', '/ops/records/shared?tenant=acme', '', {})->json
   ->{deleted}, 1, 'deleted by tenant');
is($::pg->sql("SELECT count(*) FROM idempotency.idempotency_keys WHERE "
              . "tenant = 'acme'"), 0, 'and nothing names it any more');

my $key = new_key();
$send->('/ok?op=f', 'acme', $key);
$send->('/ok', 'zeta');
$::pg->sql("UPDATE idempotency.idempotency_keys SET expires_at = now(), "
           . "forget_at = now() WHERE tenant = 'zeta'");
$::pg->sql("SELECT idempotency.idempotency_log('[{\"event\": \"x\", "
           . "\"actor\": \"" . Digest::SHA::sha256_hex('jane') . "\"}]')");
is($::pg->sql("SELECT idempotency.idempotency_forget(NULL, '"
              . Digest::SHA::sha256_hex('jane') . "')"), 4,
   'with SQL: records, what has expired, and events');
is($::pg->sql("SELECT count(*) FROM idempotency.idempotency_keys WHERE "
              . "actor <> '' OR response IS NOT NULL"), 0, 'nothing is left');
is($send->('/ok?op=f', 'acme', $key)->body, "run 2\n", 'it may run again');
ok(!$::pg->psql(user => 'postgres', sql => 'SELECT idempotency.idempotency_forget()'),
   'everybody at once: no');



=== TEST 6: a deletion reaches an outbox of another host
--- store: postgres
--- http_config eval: ::own('')
--- config eval: $::api
--- client
my $key = new_key();
my $id = post('/ok?op=x', $key)->header('X-Record');
$::pg->sql('DELETE FROM idempotency.idempotency_keys', db => 'idempotency');

is(http_request('DELETE', "/ops/records/shared/$id", '', {})->status, 404,
   'there is none');

# what an outbox tries again
my $commit = sub {
    return $::pg->sql("SELECT idempotency.idempotency_commit('\\x$id', "
        . "'\\x" . ('ab' x 16) . "', '\\x01" . ('00' x 68) . "', 2::int2, "
        . "0::int2, 200::int2, 60000, 0, 1000, false, false, '', '', '', '', "
        . "'\\x00')", db => 'idempotency');
};

like($commit->(), qr/^\s*0\s*$/, 'a commit of a host that was away is lost');
is(http_get("/ops/records/shared/$id")->status, 404, 'it does not come back');
is(post('/ok?op=x', $key)->body, "run 2\n", 'the key runs again');
is(post('/ok?op=x', $key)->body, "run 2\n", 'once');
like($commit->(), qr/^\s*0\s*$/, 'and the old commit stays lost');



=== TEST 7: labels and events in a database of another encoding
What is not ASCII may have no place in it.
--- store: postgres
--- http_config eval: ::own('') =~ s/database  idempotency/database  latin/r
--- config
    location / {
        idempotency         shared;
        idempotency_tenant  $http_x_tenant;
        idempotency_actor   $http_x_tenant plain;
        idempotency_log     store:shared;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/ { idempotency_admin; }
--- client
$::pg->sql("CREATE DATABASE latin OWNER keeper TEMPLATE template0 "
           . "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
           db => 'postgres');
ok($::pg->install(db => 'latin'), 'installed');

for my $name ("caf\xc3\xa9", "\xe6\x97\xa5", 'a"b') {
    is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key(),
                               'X-Tenant' => $name })->status, 200, 'ran');

    my $actor = $name =~ s/([^\w]|[^\x00-\x7f])/sprintf '%%%02X', ord $1/ger;

    ok(wait_for(sub {
           2 == (() = http_get('/ops/events?store=shared&follow=0&actor='
                               . $actor)->body =~ /^data: /mg)
       }, 10), "two events of $actor");
}

is($::pg->sql('SELECT DISTINCT tenant FROM idempotency.idempotency_events '
              . 'ORDER BY 1', db => 'latin'), "???\na\"b\ncaf??",
   'as far as they are ASCII');
is($::pg->sql('SELECT tenant FROM idempotency.idempotency_keys ORDER BY 1',
              db => 'latin'), "???\na\"b\ncaf??", 'as records have them');



=== TEST 8: a record that is completed while its deletion waits for it stays
The deletion finds it in progress, and waits for the lock of its row. So does
its commit, which was there first.
--- store: postgres
--- http_config eval
::own('lock_timeout 4900ms;')
. ::own('lock_timeout 4900ms; purge off;') =~ s/store shared/store looked/r
--- config eval: $::api
--- client
my $waits = sub {
    my ($n) = @_;

    return wait_for(sub {
        $::pg->sql("SELECT count(*) FROM pg_stat_activity WHERE "
                   . "usename = 'nginx' AND wait_event_type = 'Lock'") == $n;
    }, 10);
};

$::pg->sql('TRUNCATE idempotency.idempotency_keys', user => 'keeper');

my $key = new_key();
my $c = send_post('/hold?op=w', 'body', { 'Idempotency-Key' => $key });

app_wait_parked('w');

my $pid = fork // die "fork: $!\n";

if ($pid == 0) {
    $::pg->psql(user => 'keeper', sql => 'BEGIN; SELECT 1 FROM '
                . 'idempotency.idempotency_keys FOR UPDATE; '
                . 'SELECT pg_sleep(3)');
    POSIX::_exit(0);
}

ok(wait_for(sub { $::pg->sql("SELECT count(*) FROM pg_stat_activity WHERE "
                             . "wait_event = 'PgSleep'") }, 10), 'it is locked');

app_release('w');
ok($waits->(1), 'the commit waits');

my $admin = send_request('DELETE', '/ops/records/looked?state=in_progress', '', {});

ok($waits->(2), 'so does the deletion');
waitpid $pid, 0;

is($c->read_response->body, "run 1\n", 'it is answered');
is($admin->read_response(20)->json->{deleted}, 0, 'and was not deleted');
is(post('/hold?op=w', $key)->header('X-Status'), 'REPLAYED', 'but is replayed');
is(app_count('w'), 1, 'ran once');
