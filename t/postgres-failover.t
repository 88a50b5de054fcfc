# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What is lost, and what is not, when a PostgreSQL server crashes under load or
# an asynchronous standby takes over; records that are purged while somebody
# takes them over; statements that the server ends, and connections on which it
# takes no writes any more.
#
# With IDEMPOTENCY_LONG=1 ("make test-postgres") there is more of it, and what
# was lost is told.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(time sleep);

our ($pg, $primary, $standby);
our $long = $ENV{IDEMPOTENCY_LONG};

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $pg = start_postgres('max_connections=60');
    $ENV{TEST_NGINX_OWN_PORT} = $pg->{port};
    $ENV{TEST_NGINX_STANDBY_PORT} = free_port();
    $ENV{TEST_NGINX_PRIMARY_PORT} = free_port();
}

add_block_preprocessor(sub {
    if ($pg) {
        $pg->spawn if $pg->{stopped};
        $pg->clear;
    }
});

sub store
{
    my ($more) = @_;

    return "idempotency_store own postgres {
        server           127.0.0.1:\$TEST_NGINX_OWN_PORT;
        timeout          2s;
        connect_timeout  2s;
        ${\($more || '')}
    }";
}

our $location = <<'_EOC_';
    idempotency_wait  20s;
    add_header        X-Record $idempotency_record always;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# asked again until the store answers

sub until_answered
{
    my ($uri, $key) = @_;

    my $r;
    wait_for(sub {
        $r = http_post($uri, 'x', $key);
        return $r->status < 500;
    }, 30);

    return $r;
}

# a trigger that runs so many seconds, on a kind of statement

sub slow
{
    my ($on, $seconds) = @_;

    $pg->sql(<<"_EOC_");
CREATE FUNCTION idempotency.slow() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN PERFORM pg_sleep($seconds); RETURN NEW; END \$\$;
CREATE TRIGGER slow BEFORE $on ON idempotency.idempotency_keys
    FOR EACH ROW EXECUTE FUNCTION idempotency.slow();
_EOC_
}

sub not_slow
{
    $pg->sql('DROP FUNCTION idempotency.slow() CASCADE');
}

# a server cancels the statement that sleeps, as statement_timeout does

sub cancel
{
    wait_for(sub { $pg->sql("SELECT count(pg_cancel_backend(pid)) FROM "
        . "pg_stat_activity WHERE wait_event = 'PgSleep' "
        . "AND usename = 'nginx'") }, 10) or diag('nothing to cancel');
}

run_tests();

__DATA__

=== TEST 1: an asynchronous standby takes over, and is behind
What it lacks may run again, and nothing else; what runs meanwhile has its lock
laid anew there; who waits for it gets its response.
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_PRIMARY_PORT;
        server  127.0.0.1:$TEST_NGINX_STANDBY_PORT;
        timeout 2s;
    }
--- config eval: $::location
--- client_timeout: 120
--- client
my ($n, $m) = $::long ? (200, 100) : (10, 5);

$::primary = IdempotencyTest::Postgres->start(
    port => $ENV{TEST_NGINX_PRIMARY_PORT}, options => [ 'max_wal_senders=4' ]);
$::standby = IdempotencyTest::Postgres->start(
    port => $ENV{TEST_NGINX_STANDBY_PORT}, from => $::primary);

my @had = map { main::key() } 1 .. $n;
http_post("/ok?op=h$_", 'x', $had[$_]) for 0 .. $n - 1;
my $running = main::key();
my $c = send_post('/hold?op=r', 'x', $running);
app_wait_parked('r');
wait_for(sub { $::standby->count == $n + 1 }, 20) or diag('not replicated');

$::standby->sql("ALTER SYSTEM SET primary_conninfo = ''");
$::standby->sql('SELECT pg_reload_conf()');
wait_for(sub { $::primary->sql('SELECT count(*) FROM pg_stat_replication') == 0 },
         20) or diag('still replicated');

my @lacks = map { main::key() } 1 .. $m;
http_post("/ok?op=l$_", 'x', $lacks[$_]) for 0 .. $m - 1;
my $unseen = main::key();
my $u = send_post('/hold?op=u', 'x', $unseen);
app_wait_parked('u');
my $w = send_post('/hold?op=u', 'x', $unseen);
is($::primary->count, $n + $m + 2, 'all are there');
is($::standby->count, $n + 1, 'and not all of them here');

$::primary->kill_it('QUIT');
my $start = time;
$::standby->promote;

is(main::until_answered("/ok?op=h$_", $had[$_])->body, "run 1\n",
   'what it had is replayed') for 0 .. $n - 1;
ok(wait_for(sub { $::standby->sql('SELECT count(*) FROM '
    . 'idempotency.idempotency_keys WHERE state = 1') == 2 }, 20),
   'both that run have their locks there');
is($::standby->count, $n + 2, 'one of them anew');
my $v = send_post('/hold?op=u', 'x', $unseen);
app_release('u');
is($u->read_response(30)->body, "run 1\n", 'ran, without a record for a while');
like($w->read_response(30)->body, qr/^run 1\n|STORE_UNAVAILABLE/,
     'who waited is answered, or told that the store was away');
is($v->read_response(30)->body, "run 1\n", 'who came later gets that response');
app_release('r');
is($c->read_response(30)->body, "run 1\n", 'this ran all along');
is(main::until_answered('/hold?op=r', $running)->body, "run 1\n", 'replayed');
is(app_count('r') . app_count('u'), '11', 'each ran once');

my %answer;
$answer{ main::until_answered("/ok?op=l$_", $lacks[$_])->body }++ for 0 .. $m - 1;
is_deeply(\%answer, { "run 2\n" => $m }, 'what it lacked runs again: documented');
is(main::until_answered("/ok?op=l$_", $lacks[$_])->body, "run 2\n", 'and not a third time')
    for 0 .. $m - 1;
is(scalar(grep { app_count("h$_") != 1 } 0 .. $n - 1), 0, 'the others ran once');
$::standby->stop;
$::primary->stop;



=== TEST 2: crashes under load: no commit that was answered is lost
--- store: postgres
--- http_config eval: main::store('durable commits;')
--- config eval: $::location
--- client_timeout: 300
--- client
my $host = start_host();
my $load = start_load(ports => [ $port, $host->{port} ], clients => 6);
my $crashes = $::long ? 10 : 1;

for (1 .. $crashes) {
    sleep 1;
    $::pg->kill_it('QUIT');
    sleep rand 0.5;
    $::pg->spawn;
}

sleep 0.5;
$load->stop;
my $told = check_load($load, $host);
diag("$crashes crashes: ", join ', ', map {
     my $v = $told->{$_}; "$_ " . (ref $v ? scalar @$v : $v) }
     qw(keys answers refused acknowledged twice different broken))
    if $::long;
cmp_ok($told->{acknowledged}, '>', 10, 'many were acknowledged');
is("@{ $told->{broken} }", '', 'none of these is lost');
is("@{ $told->{none} }", '', 'none was answered without an execution');
is("@{ $told->{unanswered} }", '', 'all are answered in the end');
ok($host->stop, 'the other leaves in order');



=== TEST 3: a row that is purged while somebody takes it over
Twenty begin 200 records that have expired, and two purge at the same time: each
goes to one of them, and its lock stays.
--- store: postgres
--- http_config eval: main::store('purge off;')
--- config eval: $::location
--- client
$::pg->sql('CREATE TABLE IF NOT EXISTS acquired (k int, token bytea); '
           . 'GRANT ALL ON acquired TO nginx');

for my $round (1 .. ($::long ? 20 : 3)) {
    $::pg->sql("TRUNCATE acquired; TRUNCATE idempotency.idempotency_keys; "
        . "INSERT INTO idempotency.idempotency_keys (id, token, claim, state, "
        . "created_at, lease_until, expires_at, forget_at, purge_at) SELECT "
        . "sha256(k::text::bytea), substr(sha256('old'), 1, 16), "
        . "decode(repeat('aa', 69), 'hex'), 1 + k % 2, n, n, n, n, n "
        . "FROM generate_series(1, 200) k, (SELECT now() - interval '1 min') x (n)");

    my $said = $::pg->pgbench(<<'_EOC_', qw(-c 22 -j 2 -t 40));
\set purges :client_id < 2
\set k random(1, 200)
\if :purges
SELECT idempotency.idempotency_purge(7, true);
\else
\set t :client_id * 1000000 + random(1, 999999)
SELECT o_how < 3 AS ours FROM idempotency.idempotency_begin(sha256(:k::text::bytea), substr(sha256(:t::text::bytea), 1, 16), decode(repeat('aa', 69), 'hex'), NULL, 30000, 60000, false, 0, false, 0::smallint, '', '', '', '') \gset
\if :ours
INSERT INTO acquired VALUES (:k, substr(sha256(:t::text::bytea), 1, 16));
\endif
\endif
_EOC_

    like($said, qr{actually processed: 880/880}, 'all have an answer') or diag($said);
    is($::pg->sql('SELECT count(*) - count(DISTINCT k) FROM acquired'), 0,
       'none went to two');
    is($::pg->sql('SELECT count(*) FROM acquired a LEFT JOIN '
        . 'idempotency.idempotency_keys k ON k.id = sha256(a.k::text::bytea) AND '
        . 'k.token = a.token AND k.state = 1 WHERE k.id IS NULL'), 0,
       'the lock of each is there');
    is($::pg->sql("SELECT count(*) FROM idempotency.idempotency_archive a JOIN "
        . "idempotency.idempotency_keys k USING (id) WHERE k.created_at = a.created_at"),
       0, 'none was archived and kept');
    cmp_ok($::pg->sql('SELECT count(*) FROM acquired'), '>', 100, 'many were taken');
}

$::pg->sql('DROP TABLE acquired');



=== TEST 4: the purge of one host against requests of two
--- store: postgres
--- http_config eval: main::store('purge on every=20ms batch=3;')
--- config eval: $::location
--- client_timeout: 60
--- client
my $n = $::long ? 200 : 30;
my $other = start_host();
my @ports = ($port, $other->{port});
my @keys = map { main::key() } 1 .. $n;

http_post("/ok?op=p$_", 'x', $keys[$_]) for 0 .. $n - 1;

# they expire all at once; the purge is at it when they are asked for

$::pg->sql("UPDATE idempotency.idempotency_keys SET expires_at = now(), "
           . "forget_at = now(), purge_at = now()");

my @c = map { my $k = $_; map { send_post("/ok?op=p$k", 'x', $keys[$k],
              port => $ports[$_ % 2]) } 1 .. 3 } 0 .. $n - 1;
my %answer;
$answer{ $_->read_response(30)->body }++ for @c;
is_deeply(\%answer, { "run 2\n" => 3 * $n }, 'each ran again, and all have that');
is(scalar(grep { app_count("p$_") != 2 } 0 .. $n - 1), 0, 'once');
is($::pg->count, $n, 'their records stay');
ok($other->stop, 'the other leaves in order');



=== TEST 5: a statement that the server ends
--- store: postgres
--- http_config eval: main::store('timeout 5s; purge off;') =~ s/timeout +2s;//r
--- config eval: $::location
--- client
is(http_post('/ok', 'x', main::key())->status, 200, 'it works');

my ($key, $other) = (main::key(), main::key());
main::slow('INSERT', 3);
my $c = send_post('/ok?op=a', 'x', $key);
main::cancel();
main::not_slow();
my $r = $c->read_response;
is($r->error_code, 'STORE_UNAVAILABLE', 'a begin: the store did not answer');
error_log_like(qr/failed: it took too long: canceling statement/, 'says why');
is(app_count('a'), 0, 'it did not run');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'and left no lock');

$c = send_post('/hold?op=b', 'x', $key = main::key());
app_wait_parked('b');
main::slow('UPDATE', 3);
app_release('b');
main::cancel();
is($c->read_response->body, "run 1\n", 'a commit: the client has its answer');
error_log_like(qr/commit .* failed: it took too long: .*kept here/, 'it is kept here');
main::not_slow();
is(http_post('/hold?op=b', 'x', $key)->body, "run 1\n", 'replayed');
ok(wait_for(sub { $::pg->sql("SELECT count(*) FROM "
    . "idempotency.idempotency_keys WHERE state = 2") == 3 }, 20), 'and lands');
is(app_count('b'), 1, 'ran once');



=== TEST 6: a connection on which no writes are taken any more
--- store: postgres
--- http_config eval: main::store()
--- config eval: $::location
--- client
my $old = main::key();
is(http_post('/ok?op=o', 'x', $old)->status, 200, 'it works');
my $c = send_post('/hold?op=h', 'x', my $held = main::key());
app_wait_parked('h');

$::pg->sql('ALTER SYSTEM SET default_transaction_read_only = on');
$::pg->sql('SELECT pg_reload_conf()');
wait_for(sub { $::pg->sql('SHOW default_transaction_read_only') eq 'on' }, 10);

my $key = main::key();
is(http_post('/ok?op=a', 'x', $key)->error_code, 'STORE_UNAVAILABLE', 'a new key: no');
error_log_like(qr/read-only/, 'says why');
is(app_count('a'), 0, 'it did not run');
app_release('h');
is($c->read_response->body, "run 1\n", 'what ran is answered');

$::pg->psql(user => 'postgres', file => do {
    my $file = "$::pg->{base}/writable.sql";
    open my $out, '>', $file or die $!;
    print $out "SET default_transaction_read_only = off;\n"
        . "ALTER SYSTEM RESET default_transaction_read_only;\n"
        . "SELECT pg_reload_conf();\n";
    close $out;
    $file;
}) or diag($::pg->{said});

is(main::until_answered('/ok?op=a', $key)->body, "run 1\n", 'it takes writes again');
is(main::until_answered('/hold?op=h', $held)->body, "run 1\n", 'and what ran is replayed');
is(main::until_answered('/ok?op=o', $old)->body, "run 1\n", 'as is the old one');
ok(wait_for(sub { $::pg->sql("SELECT count(*) FROM "
    . "idempotency.idempotency_keys WHERE state = 2") == 3 }, 20), 'all landed');
is(app_count('h'), 1, 'ran once');



=== TEST 7: after an outage a worker that had nothing to do asks each server
--- store: postgres
--- workers: 1
--- http_config
    idempotency_store own postgres {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        server           127.0.0.1:$TEST_NGINX_PRIMARY_PORT;
        timeout          2s;
        connect_timeout  2s;
        purge            off;
        wake             poll;
    }
--- config eval: $::location
--- client_timeout: 60
--- client
is(http_post('/ok?op=z', 'x', main::key())->status, 200, 'it works');
$::pg->kill_it('QUIT');

for (1 .. 9) {
    is(http_post('/ok?op=y', 'x', main::key())->status, 503, 'both are away');
    sleep 0.3;
}

# each begin is one attempt by now: the next is at the server that is away

my $at = sub { my @at = error_log() =~ /can't connect to PostgreSQL at 127\.0\.0\.1:(\d+)/g; return $at[-1] };

for (1 .. 4) {
    last if $at->() == $::pg->{port};
    http_post('/ok?op=y', 'x', main::key());
    sleep 0.5;
}

sleep 3;
$::pg->spawn;
is(http_post('/ok?op=a', 'x', main::key())->status, 200, 'the first request runs');
