# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The PostgreSQL store when something goes wrong: restarts and crashes, a frozen
# server, lost replies, locks, transactions that are refused, a standby that
# takes over, a disk that is full, a schema, a password or a certificate that is
# not the right one.  Nothing runs twice, and nobody blocks a worker.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(time sleep);

our ($pg, $proxy, $primary, $standby, $tls);

# certificates of this test alone

sub openssl
{
    my $out = `openssl @_ 2>&1`;
    die "openssl @_: $out" if $?;
}

sub make_certificates
{
    my ($dir) = @_;

    for my $ca (qw(ca other)) {
        openssl("req -x509 -newkey rsa:2048 -nodes -keyout $dir/$ca.key",
                "-out $dir/$ca.pem -days 2 -subj /CN=$ca");
    }

    for my $who (qw(server nginx)) {
        open my $ext, '>', "$dir/$who.ext" or die $!;
        print $ext "subjectAltName=DNS:db.test\n";
        close $ext;

        openssl("req -newkey rsa:2048 -nodes -keyout $dir/$who.key",
                "-out $dir/$who.csr -subj /CN=$who");
        openssl("x509 -req -in $dir/$who.csr -CA $dir/ca.pem",
                "-CAkey $dir/ca.key -CAcreateserial -out $dir/$who.pem",
                "-extfile $dir/$who.ext -days 2");
    }

    my ($uid, $gid) = $> == 0 ? (getpwnam 'postgres')[2, 3] : ($>, $));
    chown $uid, $gid + 0, "$dir/server.key";
    chmod 0600, "$dir/server.key";

    # libpq takes a key that only its user can read; workers are nobody
    my ($nobody) = $> == 0 ? (getpwnam 'nobody')[2] : $>;
    chown $nobody, -1, "$dir/nginx.key";
    chmod 0600, "$dir/nginx.key";
}

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $pg = start_postgres('max_connections=60');
    $proxy = start_redis_proxy($pg);
    $ENV{TEST_NGINX_OWN_PORT} = $pg->{port};
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
    $ENV{TEST_NGINX_STANDBY_PORT} = free_port();
    $ENV{TEST_NGINX_PRIMARY_PORT} = free_port();
    $ENV{TEST_NGINX_TLS_PORT} = free_port();
    $ENV{TEST_NGINX_TLS_DIR} = $pg->{base};
    make_certificates($pg->{base});
}

add_block_preprocessor(sub {
    if ($pg) {
        $proxy->tell('pass');
        $pg->resume;
        $pg->spawn if $pg->{stopped};
        $pg->sql('ALTER DATABASE idempotency RESET ALL');
        $pg->clear;
    }
});

sub store
{
    my ($port, $more) = @_;

    return "idempotency_store own postgres {
        server           127.0.0.1:\$TEST_NGINX_${port}_PORT;
        timeout          1s;
        connect_timeout  1s;
        ${\($more || '')}
    }";
}

our $location = <<'_EOC_';
    idempotency_wait  20s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# asked again until it is answered by the application's response

sub until_answered
{
    my ($uri, $key, $timeout) = @_;

    my $r;
    wait_for(sub {
        $r = http_post($uri, 'x', $key);
        return $r->status < 500;
    }, $timeout || 20);

    return $r;
}

run_tests();

__DATA__

=== TEST 1: a restart while it runs
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
my $key = main::key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $w = send_post('/hold?op=a', 'x', $key);
$::pg->restart('INT');
app_release('a');
is($c->read_response->body, "run 1\n", 'ran');
like($w->read_response(30)->body, qr/^run 1\n|STORE_UNAVAILABLE/,
     'who waits is answered, or told that the store is away');
is(main::until_answered('/hold?op=a', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 2: a crash while it runs, and while commits are on their way
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
my $key = main::key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');

my @keys = map { main::key() } 1 .. 30;
my @c = map { send_post("/ok?op=c$_&ms=50", 'x', $keys[$_]) } 0 .. 29;
$::pg->kill_it('QUIT');
app_release('a');
is($c->read_response->body, "run 1\n", 'ran; its commit is kept here');
$_->read_response(30) for @c;
$::pg->spawn;

for (0 .. 29) {
    main::until_answered("/ok?op=c$_", $keys[$_]);
}

is(main::until_answered('/hold?op=a', $key)->body, "run 1\n", 'replayed');
is(scalar(grep { app_count("c$_") != 1 } 0 .. 29), 0, 'each ran once');
is(app_count('a'), 1, 'this as well');



=== TEST 3: a frozen server blocks nobody, and leaves no lock behind
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
is(http_post('/ok?op=z', 'x', main::key())->status, 200, 'it works');
$::pg->pause;

my $key = main::key();
my $c = send_post('/ok?op=a', 'x', $key);
my $start = time;
is(http_post('/plain/ok', 'x')->status, 200, 'others are served');
cmp_ok(time - $start, '<', 0.5 + grace(), 'meanwhile');
my $r = $c->read_response;
is($r->error_code, 'STORE_UNAVAILABLE', 'the store is away');
is(app_count('a'), 0, 'not run');

$::pg->resume;
is(main::until_answered('/ok?op=a', $key)->body, "run 1\n",
   'runs: the begin that was given up has left no lock');
ok(wait_for(sub { $::pg->sql('SELECT count(*) FROM '
    . 'idempotency.idempotency_keys WHERE state = 1') == 0 }), 'none at all');



=== TEST 16: who waits for a frozen server stays in its queue
--- store: postgres
--- http_config eval
main::store('OWN', 'purge off; connections 4;')
    =~ s/ timeout +1s/ timeout 400ms/r =~ s/connect_timeout +1s/connect_timeout 200ms/r
--- config eval: "idempotency_lease 1s;\n$::location"
--- client
is(http_post('/ok?op=z', 'x', main::key())->status, 200, 'it works');
$::pg->sql($_) for 'ALTER SYSTEM SET log_connections = on', 'SELECT pg_reload_conf()';

my @c = map { send_post("/slow?ms=4000&op=a$_", 'x', main::key()) } 1 .. 12;
ok(wait_for(sub { 12 == grep { app_count("a$_") } 1 .. 12 }), 'many run');
ok(wait_for(sub { $::pg->sql('SHOW log_connections') eq 'on' }));
$::pg->pause;
my $count = sub { my @n = $::pg->log =~ /connection received: host=127/g; return scalar @n };
my $before = $count->();

is(scalar(grep { $_->read_response->status == 200 } @c), 12, 'their commits are kept');
sleep 1;
$::pg->resume;

# the server starts a process for each attempt that was made meanwhile

ok(wait_for(sub { $::pg->sql('SELECT count(*) FROM idempotency.idempotency_keys '
                             . 'WHERE state = 2') == 13 }), 'and land');
cmp_ok($count->() - $before, '<=', 30, 'few connections were made meanwhile');
$::pg->sql($_) for 'ALTER SYSTEM RESET log_connections', 'SELECT pg_reload_conf()';



=== TEST 17: a worker that stood still for a lease does not trust in its lock
--- store: postgres
--- http_config eval: main::store('OWN') =~ s/ timeout +1s/ timeout 20s/r
--- config eval: "idempotency_lease 1s;\n$::location"
--- client
is(http_post('/ok?op=z', 'x', main::key())->status, 200, 'it works');

my $key = main::key();
my ($worker) = nginx_workers();
$::pg->pause;
my $c = send_post('/ok?op=a', 'x', $key);
sleep 0.2;
kill STOP => $worker;
$::pg->resume;

ok(wait_for(sub { $::pg->sql("SELECT count(*) FROM idempotency.idempotency_keys WHERE state = 1 "
                             . "AND lease_until < now()") == 1 }), 'its begin is through, and its lease over');
kill CONT => $worker;

is($c->read_response->body, "run 1\n", 'it asks again, and runs');
error_log_like(qr/was over before its lock was seen/, 'it says so');
is(main::until_answered('/ok?op=a', $key)->body, "run 1\n", 'its retry is replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 18: a missing standby does not use up the connections of the server
--- store: postgres
--- http_config eval: main::store('OWN') =~ s/1s;/400ms;/gr
--- config eval: $::location
--- client_timeout: 120
--- client
is(http_post('/ok?op=z', 'x', main::key())->status, 200, 'it works');
$::pg->sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$::pg->sql('SELECT pg_reload_conf()');

my @key = map { main::key() } 1 .. 12;
my $n = 0;

for (@key) {
    is(http_post('/ok?op=q' . $n++, 'x', $_)->status, 200, 'ran, and is kept');
}

cmp_ok($::pg->sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
       '<=', 4, 'few processes of the server wait for the standby');

$::pg->sql('ALTER SYSTEM RESET synchronous_standby_names');
$::pg->sql('SELECT pg_reload_conf()');
ok(wait_for(sub { $::pg->sql('SELECT count(*) FROM idempotency.idempotency_keys '
                             . 'WHERE state = 2') == 13 }, 20), 'all of them land');



=== TEST 19: a lock under hold that is laid after its begin was given up
A begin waits for a standby that is away, its client is told that the store does
not answer, and then the standby is back.
--- store: postgres
--- http_config eval: main::store('OWN', 'purge off;') =~ s/1s;/200ms;/gr
--- config eval: "idempotency_unknown_outcome hold;\n" . $::location =~ s/(idempotency_wait) +\w+;/$1 0;/r
--- client_timeout: 120
--- client
is(main::until_answered('/ok?op=z', main::key())->status, 200, 'it works');
$::pg->sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
$::pg->sql('SELECT pg_reload_conf()');

# each process of the server learns it by itself

ok(wait_for(sub { $::pg->sql('SHOW synchronous_standby_names') eq 'nobody' }), 'it waits for a standby');
sleep 1;

my $key = main::key();
is(http_post('/ok?op=a', 'x', $key)->error_code, 'STORE_UNAVAILABLE', 'the begin fails');

# longer than the first releases that follow it

sleep 7;
is($::pg->sql('SELECT count(*) FROM idempotency.idempotency_keys WHERE state = 1'), 0, 'there is no lock');
$::pg->sql('ALTER SYSTEM RESET synchronous_standby_names');
$::pg->sql('SELECT pg_reload_conf()');
ok(wait_for(sub { $::pg->sql('SELECT count(*) FROM idempotency.idempotency_keys '
                             . 'WHERE state = 1') == 1 }, 10), 'now there is one');

my $r;
ok(wait_for(sub { ($r = http_post('/ok?op=a', 'x', $key))->status == 200 || (sleep 0.5) && 0 }, 30),
   'it is given back');
is($r->body, "run 1\n", 'and the next one runs');



=== TEST 20: a lock under hold that was given back does not come back with a crash
Its begin is on the disk before it is answered, and so is its release.
--- store: postgres
--- http_config eval: main::store('OWN', 'purge off;')
--- config eval: "idempotency_unknown_outcome hold;\n" . $::location =~ s/(idempotency_wait) +\w+;/$1 0;/r
--- client_timeout: 120
--- client
is(main::until_answered('/ok?op=z', main::key())->status, 200, 'it works');

# only what has to be is written at once

$::pg->sql($_) for "ALTER SYSTEM SET wal_writer_delay = '10s'", 'SELECT pg_reload_conf()';
ok(wait_for(sub { $::pg->sql('SHOW wal_writer_delay') eq '10s' }), 'the server is in no hurry');
sleep 0.5;

my $key = main::key();
is(http_post('/status/503?op=a', 'x', $key)->status, 503, 'ran, and is not kept');
ok(wait_for(sub { $::pg->sql('SELECT count(*) FROM idempotency.idempotency_keys WHERE state = 1') == 0 }),
   'its lock is given back');
$::pg->restart('QUIT');
$::pg->sql($_) for 'ALTER SYSTEM RESET wal_writer_delay', 'SELECT pg_reload_conf()';

is($::pg->sql('SELECT count(*) FROM idempotency.idempotency_keys WHERE state = 1'), 0, 'still so after a crash');
my $r;
ok(wait_for(sub { ($r = http_post('/status/503?op=a', 'x', $key))->body eq "run 2\n" || (sleep 0.3) && 0 }, 20),
   'and the next one runs');



=== TEST 4: the reply to a begin is lost, and that to a commit
--- store: postgres
--- http_config eval: main::store('PROXY', 'purge off; wake poll;')
--- config eval: $::location
--- client
is(http_post('/ok?op=z', 'x', main::key())->status, 200, 'it works');

my $key = main::key();
$::proxy->tell('lose');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'begin: asked again');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');

$key = main::key();
my $c = send_post('/hold?op=b', 'x', $key);
app_wait_parked('b');
$::proxy->tell('lose');
app_release('b');
is($c->read_response->body, "run 1\n", 'commit: asked again');
is(http_post('/hold?op=b', 'x', $key)->body, "run 1\n", 'replayed');
is(app_count('b'), 1, 'ran once');
error_log_unlike(qr/is kept here|took over|was lost/, 'none was LOST');



=== TEST 5: a record that somebody has locked
The others of its lot are asked again, each by itself.
--- store: postgres
--- http_config eval: main::store('OWN', 'timeout 3s; lock_timeout 250ms;') =~ s/timeout +1s;//r
--- config eval: $::location
--- client
my $key = main::key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $pid = $::pg->hold('SELECT 1 FROM idempotency.idempotency_keys '
                      . 'FOR UPDATE', 4);

my @keys = map { main::key() } 1 .. 10;
my $locked = send_post('/hold?op=a', 'x', $key);
my @c = map { send_post("/ok?op=o$_", 'x', $keys[$_]) } 0 .. 9;

my $r = $locked->read_response;
is($r->error_code, 'STORE_UNAVAILABLE', 'refused, after lock_timeout');
error_log_like(qr/the record is locked/, 'with the reason');
is($_->read_response->body, "run 1\n", 'the others run') for @c;
is(scalar(grep { app_count("o$_") != 1 } 0 .. 9), 0, 'each once');

waitpid $pid, 0;
app_release('a');
is($c->read_response->body, "run 1\n", 'and the first is answered');
is(app_count('a'), 1, 'ran once');



=== TEST 6: a commit that can't get its lock is kept, and lands
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
my $key = main::key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my $pid = $::pg->hold('SELECT 1 FROM idempotency.idempotency_keys '
                      . 'FOR UPDATE', 3);
app_release('a');
is($c->read_response->body, "run 1\n", 'ran');
error_log_like(qr/commit in store "own" failed: the record is locked.*kept here/,
               'its commit is kept');
is(http_post('/hold?op=a', 'x', $key)->body, "run 1\n", 'replayed from here');
waitpid $pid, 0;
ok(wait_for(sub { $::pg->sql('SELECT count(*) FROM '
    . 'idempotency.idempotency_keys WHERE state = 2') == 1 }, 20), 'it landed');
is(app_count('a'), 1, 'ran once');



=== TEST 7: transactions that are refused for the time being
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
$::pg->sql(<<'_EOC_');
CREATE FUNCTION idempotency.refuse() RETURNS trigger SECURITY DEFINER
LANGUAGE plpgsql AS $$ BEGIN
    IF random() < 0.3 THEN
        RAISE EXCEPTION 'not now' USING ERRCODE = 'serialization_failure';
    ELSIF random() < 0.4 THEN
        RAISE EXCEPTION 'not now' USING ERRCODE = 'deadlock_detected';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON idempotency.idempotency_keys
    FOR EACH ROW EXECUTE FUNCTION idempotency.refuse();
_EOC_

my @keys = map { main::key() } 1 .. 10;
my @c = map { send_post("/ok?op=s$_", 'x', $keys[$_]) } 0 .. 9;
is($_->read_response->body, "run 1\n", 'asked again until it is done') for @c;
is(http_post("/ok?op=s$_", 'x', $keys[$_])->body, "run 1\n", 'replayed')
    for 0 .. 9;
is(scalar(grep { app_count("s$_") != 1 } 0 .. 9), 0, 'each ran once');
$::pg->sql('DROP TRIGGER refuse ON idempotency.idempotency_keys; '
           . 'DROP FUNCTION idempotency.refuse()');



=== TEST 8: a lot that is torn down after it had answered
A statement that answered is rolled back with a later one.
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
$::pg->sql(<<'_EOC_');
CREATE FUNCTION idempotency.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF get_byte(NEW.id, 0) >= 128 THEN
        RAISE EXCEPTION 'never' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON idempotency.idempotency_keys
    FOR EACH ROW EXECUTE FUNCTION idempotency.refuse();
_EOC_

my @keys = map { main::key() } 1 .. 40;
my @c = map { send_post("/ok?op=t$_", 'x', $keys[$_]) } 0 .. 39;
my @status = map { $_->read_response->status } @c;

my $ran = grep { $_ == 200 } @status;
is($ran + grep({ $_ == 503 } @status), 40, 'each ran, or was refused');
cmp_ok($ran, '>', 0, 'some ran');
cmp_ok($ran, '<', 40, 'some did not');
is(scalar(grep { app_count("t$_") != ($status[$_] == 200 ? 1 : 0) } 0 .. 39),
   0, 'none that was refused ran, and none twice');
is($::pg->count, $ran, 'those that ran have a record');
$::pg->sql('DROP TRIGGER refuse ON idempotency.idempotency_keys; '
           . 'DROP FUNCTION idempotency.refuse()');



=== TEST 9: a server that is read-only
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
$::pg->sql('ALTER DATABASE idempotency SET default_transaction_read_only = on');
is(http_post('/ok?op=a', 'x', main::key())->status, 503, 'no');
error_log_like(qr/can't connect to PostgreSQL at \S+ it is read-only/, 'why');
$::pg->sql('ALTER DATABASE idempotency RESET ALL', db => 'postgres');
is(main::until_answered('/ok?op=a', main::key())->body, "run 1\n", 'back');
error_log_like(qr/answers again/, 'and says so');



=== TEST 10: a synchronous standby takes over
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_PRIMARY_PORT;
        server  127.0.0.1:$TEST_NGINX_STANDBY_PORT;
        timeout 1s;
    }
--- config eval: $::location
--- client_timeout: 120
--- client
$::primary = IdempotencyTest::Postgres->start(
    port => $ENV{TEST_NGINX_PRIMARY_PORT},
    options => [ 'max_wal_senders=4', 'wal_level=replica' ]);
$::standby = IdempotencyTest::Postgres->start(
    port => $ENV{TEST_NGINX_STANDBY_PORT}, from => $::primary);
$::primary->sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'");
$::primary->sql('SELECT pg_reload_conf()');
wait_for(sub { $::primary->sql("SELECT count(*) FROM pg_stat_replication "
                               . "WHERE sync_state = 'sync'") }, 20)
    or diag('no synchronous standby');

my @keys = map { main::key() } 1 .. 20;
is(http_post("/ok?op=f$_", 'x', $keys[$_])->body, "run 1\n", 'ran')
    for 0 .. 19;

my $held = main::key();
my $c = send_post('/hold?op=h', 'x', $held);
app_wait_parked('h');

$::primary->kill_it('QUIT');
$::standby->promote;
app_release('h');
is($c->read_response(30)->body, "run 1\n", 'one that ran meanwhile');

is(main::until_answered("/ok?op=f$_", $keys[$_], 30)->body, "run 1\n",
   'replayed by the other server') for 0 .. 19;
is(main::until_answered('/hold?op=h', $held)->body, "run 1\n", 'this as well');
is(scalar(grep { app_count("f$_") != 1 } 0 .. 19) + (app_count('h') != 1), 0,
   'each ran once');
is(main::until_answered('/ok?op=new', main::key())->body, "run 1\n", 'and new ones');
$::standby->stop;
$::primary->stop;



=== TEST 11: the synchronous standby is gone: a commit hangs
--- store: postgres
--- http_config eval: main::store('PRIMARY')
--- config eval: $::location
--- client_timeout: 120
--- client
$::primary = IdempotencyTest::Postgres->start(
    port => $ENV{TEST_NGINX_PRIMARY_PORT});
$::primary->sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'; ");
$::primary->sql('SELECT pg_reload_conf()');

my $key = main::key();
my $start = time;
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'ran');
cmp_ok(time - $start, '<', 10, 'its client does not wait for ever');
error_log_like(qr/commit in store "own" failed.*kept here/, 'the commit is kept');
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed from here');
is(http_post('/plain/ok', 'x')->status, 200, 'others are served');

$::primary->sql("ALTER SYSTEM RESET synchronous_standby_names");
$::primary->sql('SELECT pg_reload_conf()');
ok(wait_for(sub { $::primary->sql('SELECT count(*) FROM '
    . 'idempotency.idempotency_keys WHERE state = 2') == 1 }, 30), 'it landed');
is(app_count('a'), 1, 'ran once');
$::primary->stop;



=== TEST 12: a disk that is full
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
my $dir = "$::pg->{base}/full";
mkdir $dir;
system('mount', '-t', 'tmpfs', '-o', 'size=3m,mode=0777', 'tmpfs', $dir) == 0
    or die "mount: no tmpfs\n";

eval {
    chmod 0700, $dir;
    chown((getpwnam 'postgres')[2, 3], $dir) if $> == 0;

    $::pg->sql("CREATE TABLESPACE small LOCATION '$dir'");
    $::pg->sql('ALTER TABLE idempotency.idempotency_keys SET TABLESPACE small');

    my $before = main::key();
    is(http_post('/size?n=1000&op=b', 'x', $before)->status, 200, 'there is room');

    # in the holder's record a small update still fits
    my $key = main::key();
    $::pg->sql('ALTER TABLE idempotency.idempotency_keys '
               . 'ALTER response SET STORAGE EXTERNAL');
    my $c = send_post('/size?n=900000&hold=1&op=a', 'x', $key);
    app_wait_parked('a');
    system("head -c 10000000 /dev/urandom > $dir/rest 2>/dev/null");
    app_release('a');
    my $r = $c->read_response;
    is($r->status, 200, 'ran');
    is(length $r->body, 900000, 'its client has all of it');

    $r = http_post('/size?n=900000&hold=1&op=a', 'x', $key);
    is($r->error_code, 'RESPONSE_NOT_KEPT', 'that it ran is on record');
    is($::pg->sql('SELECT state, reason, size FROM idempotency.idempotency_keys '
                  . 'WHERE state = 3'), '3|4|0', 'without its response');

    my @new = map { http_post("/size?op=x$_", 'x', main::key()) } 1 .. 60;
    my ($full) = grep { $_->status == 503 } @new;
    is($full && $full->error_code, 'STORE_UNAVAILABLE', 'at last there is no room '
       . 'for a lock');
    error_log_like(qr/store "own" is full/, 'says why');
    is(scalar(grep { app_count("x$_") != ($new[$_ - 1]->status == 200) } 1 .. 60),
       0, 'which did not run, and the others once');

    $r = http_post('/size?n=1000&op=b', 'x', $before);
    is($r->header('Idempotent-Replayed'), 'true', 'replays work');

    unlink "$dir/rest";
    is(main::until_answered('/size?n=1000&op=n', main::key())->status, 200, 'room again');
    is(app_count('a'), 1, 'ran once');
    1;
} or fail("died: $@");

$::pg->sql('TRUNCATE idempotency.idempotency_keys');
$::pg->sql('ALTER TABLE idempotency.idempotency_keys SET TABLESPACE pg_default, '
           . 'ALTER response SET STORAGE EXTENDED');
$::pg->sql('DROP TABLESPACE small');
system('umount', $dir);



=== TEST 13: no schema, an older one, a newer one, no right
--- store: postgres
--- http_config eval: main::store('OWN', 'schema nowhere;')
--- config eval: $::location
--- client
is(http_post('/ok?op=a', 'x', main::key())->status, 503, 'no schema');
error_log_like(qr/has no schema "nowhere" of this release: apply sql\/install.sql/,
               'says what to do');

$::pg->install(vars => { schema => 'nowhere' }) or die $::pg->{said};
$::pg->sql('UPDATE nowhere.idempotency_meta SET version = 0');
ok(wait_for(sub { http_post('/ok?op=a', 'x', main::key());
    error_log() =~ /schema "nowhere" has version 0, this module needs 1: apply/ }, 10),
   'too old');

$::pg->sql('UPDATE nowhere.idempotency_meta SET version = 7, compatible = 7');
ok(wait_for(sub { http_post('/ok?op=a', 'x', main::key());
    error_log() =~ /has version 7, for modules from version 7 on, and this one has 1: upgrade it/ }, 10),
   'too new');

$::pg->sql('UPDATE nowhere.idempotency_meta SET compatible = 1');
is(main::until_answered('/ok?op=a', main::key())->status, 200,
   'newer, and serves this one still');
is(app_count('a'), 1, 'ran once');
$::pg->sql('DROP SCHEMA nowhere CASCADE');



=== TEST 14: a user without rights
--- store: postgres
--- http_config eval: main::store('OWN', 'user stranger;')
--- config eval: $::location
--- client
$::pg->sql('CREATE ROLE stranger LOGIN');
is(http_post('/ok?op=a', 'x', main::key())->status, 503, 'no');
error_log_like(qr/user "stranger" lacks a right: "GRANT idempotency_nginx TO stranger"/,
               'says what to do');
$::pg->sql('GRANT idempotency_nginx TO stranger');
is(main::until_answered('/ok?op=a', main::key())->status, 200, 'now it may');
$::pg->sql('REVOKE idempotency_nginx FROM stranger; DROP ROLE stranger');



=== TEST 15: TLS with SCRAM and a client certificate
--- store: postgres
--- http_config
    idempotency_store good postgres {
        server    127.0.0.1:$TEST_NGINX_TLS_PORT;
        password  secret;
        tls       on;
        tls_name  db.test;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
        tls_certificate          $TEST_NGINX_TLS_DIR/nginx.pem;
        tls_certificate_key      $TEST_NGINX_TLS_DIR/nginx.key;
        timeout 3s; connect_timeout 3s;
    }
    idempotency_store issuer postgres {
        server    127.0.0.1:$TEST_NGINX_TLS_PORT;
        password  secret;
        tls       on;
        tls_name  db.test;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/other.pem;
    }
    idempotency_store name postgres {
        server    127.0.0.1:$TEST_NGINX_TLS_PORT;
        password  secret;
        tls       on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
    idempotency_store password postgres {
        server    127.0.0.1:$TEST_NGINX_TLS_PORT;
        password  wrong;
        tls       on;
        tls_verify off;
        tls_certificate          $TEST_NGINX_TLS_DIR/nginx.pem;
        tls_certificate_key      $TEST_NGINX_TLS_DIR/nginx.key;
    }
--- config
    idempotency_max_response  2m;
    location /good/ { idempotency good; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    location /issuer/ { idempotency issuer; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    location /name/ { idempotency name; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    location /password/ { idempotency password; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
--- client
my $dir = $::pg->{base};
$::tls = IdempotencyTest::Postgres->start(port => $ENV{TEST_NGINX_TLS_PORT},
    lazy => 1, options => [ 'ssl=on', "ssl_cert_file=$dir/server.pem",
    "ssl_key_file=$dir/server.key", "ssl_ca_file=$dir/ca.pem" ]);
$::tls->spawn;
$::tls->sql("ALTER ROLE nginx PASSWORD 'secret'");
open my $hba, '>', "$::tls->{dir}/pg_hba.conf" or die $!;
print $hba "local all all trust\nhostssl all all all scram-sha-256 clientcert=verify-ca\n";
close $hba;
$::tls->sql('SELECT pg_reload_conf()');

my $key = main::key();
is(main::until_answered('/good/ok?op=a', $key)->body, "run 1\n", 'ran');
is(http_post('/good/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');

$key = main::key();
my $first = http_post('/good/size?n=700000&op=l', 'x', $key);
my $retry = http_post('/good/size?n=700000&op=l', 'x', $key);
is($retry->header('Idempotent-Replayed'), 'true', 'a large one is replayed');
ok($retry->body eq $first->body, 'as it was');
is($::tls->sql("SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity "
               . "USING (pid) WHERE usename = 'nginx'"), 't', 'over TLS');

is(http_post("/$_/ok?op=$_", 'x', main::key())->status, 503, "$_: refused")
    for qw(issuer name password);
error_log_like(qr/store "issuer": can't connect .*certificate/, 'its issuer');
error_log_like(qr/store "name": can't connect .*certificate.*127\.0\.0\.1/, 'its name');
error_log_like(qr/store "password": can't connect .*password authentication failed/, 'the password');
error_log_unlike(qr/secret|wrong/, 'which is in no log');
$::tls->stop;



=== TEST 21: a purge that gets no answer does not end the purge
As where the server died and its address is another one's by now: nothing
comes any more, not even a reset.
--- store: postgres
--- http_config eval: main::store('OWN', 'purge on every=200ms;')
--- config eval: $::location
--- client
is(http_post('/ok', 'x', main::key())->status, 200, 'it works');

my $purges = "SELECT pid FROM pg_stat_activity WHERE usename = 'nginx' "
             . "AND query LIKE '%idempotency_purge(%' AND state = 'idle'";
my $stopped;

ok(wait_for(sub {
    $stopped = $::pg->sql($purges) || return;
    kill STOP => $stopped;
    return 1 if $::pg->sql("$purges AND pid = $stopped");
    kill CONT => $stopped;                      # it was at it
    return;
}), 'there is a session of the purge, and it answers no more');

$::pg->sql('UPDATE idempotency.idempotency_keys SET forget_at = now(), '
           . 'expires_at = now(), purge_at = now()');
ok(wait_for(sub { $::pg->count == 0 }), 'what expires is purged by another one');
error_log_like(qr/lost the connection to PostgreSQL .*no reply within/, 'says so');
kill CONT => $stopped;



=== TEST 22: functions that are made anew with a column more
As the schema of a later release may have them: open sessions have plans of the
old ones.
--- store: postgres
--- http_config eval: main::store('OWN')
--- config eval: $::location
--- client
my $function = 'idempotency.idempotency_begin';

is(http_post('/ok?op=a', 'x', main::key())->status, 200, 'ran');

my $text = $::pg->sql("SELECT pg_get_functiondef('$function'::regproc)");
$text =~ s/(OUT o_response bytea)/$1, OUT o_more integer/ or die $text;

$::pg->sql("BEGIN; DROP FUNCTION $function; $text;
            GRANT EXECUTE ON FUNCTION $function TO idempotency_nginx; COMMIT");

for my $n (1 .. 3) {
    is(http_post("/ok?op=b$n", 'x', main::key())->status, 200, 'ran');
    is(app_count("b$n"), 1, 'once');
}

$::pg->sql("DROP FUNCTION $function");
$::pg->install or die $::pg->{said};
