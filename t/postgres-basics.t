# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The PostgreSQL store on a server that works: what it costs, what it leaves
# there, how it is reached (names, a unix socket, a pooler), two hosts, the
# purge, and which configurations are refused.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(time sleep);

our ($pg, $dns, $bouncer);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $pg = start_postgres();
    $ENV{TEST_NGINX_OWN_PORT} = $pg->{port};
    $ENV{TEST_NGINX_OWN_DIR} = $pg->{base};

    $dns = start_dns(names => { 'db.test' => [ '127.0.0.1' ] }, ttl => 1);
    $ENV{TEST_NGINX_DNS_PORT} = $dns->{port};
}

add_block_preprocessor(sub {
    if ($pg) {
        $pg->clear;
        $pg->sql('ALTER DATABASE idempotency RESET ALL');
    }
});

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# once, and once more

sub twice
{
    my ($name) = @_;

    my $key = key();
    my $op = new_key();

    my $first = http_post("/headers?op=$op", 'x', $key);
    my $retry = http_post("/headers?op=$op", 'x', $key);

    is($first->status, 201, "$name: ran");
    is($retry->header('Idempotent-Replayed'), 'true', "$name: replayed");
    is($retry->body, $first->body, "$name: the same");
    is(app_count($op), 1, "$name: ran once");
}


# PgBouncer in transaction mode, with one connection to the server

sub start_bouncer
{
    my $port = free_port();
    my $ini = "$pg->{base}/bouncer.ini";

    open my $out, '>', $ini or die "$ini: $!\n";
    print $out <<"_EOC_";
[databases]
idempotency = host=$pg->{base} port=$pg->{port} dbname=idempotency
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
logfile = $pg->{base}/bouncer.log
_EOC_
    close $out;

    # auth_type any: every client is this user of the server
    open $out, '>', $ini . '.tmp' or die $!;
    open my $in, '<', $ini or die $!;
    while (<$in>) {
        s/dbname=idempotency/dbname=idempotency user=nginx/;
        print $out $_;
    }
    close $out;
    rename "$ini.tmp", $ini;

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        open STDOUT, '>', "$pg->{base}/bouncer.out";
        open STDERR, '>&', \*STDOUT;
        my @become = $> == 0 ? IdempotencyTest::Postgres::become() : 'setpriv';
        exec @become, '--pdeathsig', 'KILL', '/usr/sbin/pgbouncer', $ini
            or POSIX::_exit(127);
    }

    wait_for(sub { IdempotencyTest::Process::is_listening($port) }, 10)
        or die "pgbouncer does not start\n";

    return { pid => $pid, port => $port };
}

if ($pg) {
    $bouncer = start_bouncer();
    $ENV{TEST_NGINX_BOUNCER_PORT} = $bouncer->{port};
}

run_tests();

END {
    if ($bouncer && !$Test::Nginx::Util::InSubprocess) {
        my $status = $?;
        kill TERM => $bouncer->{pid};
        waitpid $bouncer->{pid}, 0;
        $? = $status;
    }
}

__DATA__

=== TEST 1: two round trips to run, one to replay
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        purge   off;
    }
--- config eval: $::location
--- client
main::twice('the first ever');

my $key = main::key();

$::pg->reset_calls;
http_post('/ok?op=a', 'x', $key);
is($::pg->round_trips, 2, 'begin and commit');
is_deeply($::pg->calls, { begin => 1, commit => 1 }, 'and nothing else');

$::pg->reset_calls;
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is($::pg->round_trips, 1, 'begin');

is($::pg->sql("SELECT status, host <> '' FROM idempotency.idempotency_keys "
              . "WHERE state = 2 AND status = 200"), '200|t',
   'people see the status, and the host');



=== TEST 2: with a cache, none
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        cache   hot:1m;
        purge   off;
    }
--- config eval: $::location
--- client
my $key = main::key();
http_post('/ok?op=a', 'x', $key);
$::pg->reset_calls;
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'replayed');
is($::pg->round_trips, 0, 'without a round trip');



=== TEST 3: a unix socket, several servers, a name, more connections
--- store: postgres
--- http_config
    resolver 127.0.0.1:$TEST_NGINX_DNS_PORT;
    idempotency_store own postgres {
        server  unix:$TEST_NGINX_OWN_DIR/.s.PGSQL.$TEST_NGINX_OWN_PORT;
    }
    idempotency_store two postgres {
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT 127.0.0.1:$TEST_NGINX_OWN_PORT;
        connections  3;
    }
    idempotency_store named postgres {
        server  db.test:$TEST_NGINX_OWN_PORT;
        durable all;
    }
--- config
    location /one/ { idempotency own; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    location /two/ { idempotency two; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
    location /named/ { idempotency named; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
--- client
for my $where (qw(one two named)) {
    for (1 .. 3) {
        my $key = main::key();
        my $op = new_key();
        is(http_post("/$where/ok?op=$op", 'x', $key)->body, "run 1\n", "$where: ran");
        is(http_post("/$where/ok?op=$op", 'x', $key)->body, "run 1\n", "$where: replayed");
    }
}
cmp_ok($::dns->asked('db.test'), '>', 0, 'the name was looked up by nginx');
error_log_like(qr/\[warn\] .*host not found in "server db.test/, 'not before');



=== TEST 4: two hosts: replayed, and waiters woken at once
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config
    idempotency_wait  30s;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $other = start_host();
my $key = main::key();

is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'here');
is(http_post('/ok?op=a', 'x', $key, port => $other->{port})->body, "run 1\n",
   'replayed there');

my @took;

for my $n (1 .. 9) {
    $key = main::key();
    my $c = send_post("/hold?op=h$n", 'x', $key);
    app_wait_parked("h$n");
    my $w = send_post("/hold?op=h$n", 'x', $key, port => $other->{port});
    wait_for(sub { $::pg->sql('SELECT count(*) FROM '
        . 'idempotency.idempotency_keys WHERE state = 1 AND waiting') });
    sleep 0.05;

    # from before the application answers, so this is more than the wake-up
    my $start = time;
    app_release("h$n");
    is($w->read_response->body, "run 1\n", 'the waiter of the other host');
    push @took, time - $start;
    is($c->read_response->body, "run 1\n", 'ran');
}

my $median = 1000 * (sort { $a <=> $b } @took)[4];
cmp_ok($median, '<', 500, sprintf 'woken, not by looking once a second: '
       . '%.1f ms after the execution, median', $median);
ok($other->stop, 'the other leaves in order');



=== TEST 5: wake poll
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server 127.0.0.1:$TEST_NGINX_OWN_PORT;
        wake   poll;
    }
--- config eval: $::location
--- client
$::pg->reset_calls;
my $other = start_host();
my $key = main::key();
my $c = send_post('/hold?op=h', 'x', $key);
app_wait_parked('h');
my $w = send_post('/hold?op=h', 'x', $key, port => $other->{port});
sleep 0.3;
app_release('h');
is($c->read_response->body, "run 1\n", 'ran');
is($w->read_response->body, "run 1\n", 'the waiter looks by itself');
is($::pg->sql("SELECT count(*) FROM pg_stat_statements "
              . "WHERE query ~ '^LISTEN'"), 0, 'nobody listens');



=== TEST 6: PgBouncer in transaction mode
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_BOUNCER_PORT;
        pooler  on;
    }
--- config eval: $::location
--- client
main::twice("pooler $_") for 1 .. 5;
my $key = main::key();
my $c = send_post('/hold?op=h', 'x', $key);
app_wait_parked('h');
my @w = map { send_post('/hold?op=h', 'x', $key) } 1 .. 5;
app_release('h');
is($_->read_response->body, "run 1\n", 'answered') for $c, @w;
is(app_count('h'), 1, 'ran once');



=== TEST 7: a database whose default is serializable, or that has odd defaults
--- store: postgres
--- workers: 2
--- http_config
    idempotency_store own postgres { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
$::pg->sql("ALTER DATABASE idempotency SET default_transaction_isolation = "
           . "'serializable'; ALTER DATABASE idempotency SET search_path = ''; "
           . "ALTER DATABASE idempotency SET bytea_output = 'escape'; "
           . "ALTER DATABASE idempotency SET timezone = 'Asia/Kolkata'; "
           . "ALTER DATABASE idempotency SET synchronous_commit = off");
main::twice('serializable');

my $n = 20;
my @keys = map { main::key() } 1 .. $n;
my @c = map { my $k = $_ % $n; send_post("/ok?op=s$k&ms=20", 'x', $keys[$k]) }
        1 .. 3 * $n;
my %bad = map { $_ => 1 } grep { $_ ne "run 1\n" }
          map { my $r = $_->read_response; $r ? $r->body : 'none' } @c;
is(join(' ', keys %bad), '', 'all have the one answer');
is(scalar(grep { app_count("s$_") != 1 } 0 .. $n - 1), 0, 'each ran once');
is($::pg->sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'nginx' "
              . "AND wait_event_type = 'Lock'"), 0, 'nobody waits for a lock');



=== TEST 8: what has expired is purged, into the archive
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        purge   on every=100ms batch=2 archive;
    }
--- config eval: $::location . 'location = /stats { idempotency_stats; }'
--- client
http_post("/ok?op=p$_", 'x', main::key()) for 1 .. 5;
is($::pg->count, 5, 'five records');
$::pg->sql("UPDATE idempotency.idempotency_keys SET forget_at = now(), "
           . "expires_at = now(), purge_at = now() WHERE ctid <> "
           . "(SELECT min(ctid) FROM idempotency.idempotency_keys)");
ok(wait_for(sub { $::pg->count == 1 }, 10), 'one is left, which has not');
is($::pg->sql('SELECT count(*) FROM idempotency.idempotency_archive'), 4,
   'the archive has the others');

# purges are counted, and logged

my $figure = sub {
    my ($n) = http_get('/stats')->body
              =~ /^nginx_idempotency_$_[0]\{store="own"\} (\d+)$/m;
    return $n;
};

is($figure->('records_expired_total'), 4, 'four were removed');
cmp_ok($figure->('purges_total'), '>=', 2, 'by two purges at least');
is($figure->('purge_failures_total'), 0, 'none of which failed');
error_log_like(qr/\[info\].* expired records were removed from store "own"/,
               'it is logged');

$::pg->sql('ALTER FUNCTION idempotency.idempotency_purge RENAME TO away');
ok(wait_for(sub { $figure->('purge_failures_total') }, 15),
   'one that fails is counted, too');
$::pg->sql('ALTER FUNCTION idempotency.away RENAME TO idempotency_purge');



=== TEST 9: another schema
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        schema  other;
    }
--- config eval: $::location
--- client
$::pg->install(vars => { schema => 'other' }) or die $::pg->{said};
main::twice('other');
is($::pg->sql('SELECT count(*) FROM other.idempotency_keys'), 1, 'is there');
is($::pg->count, 0, 'and not here');
$::pg->sql('DROP SCHEMA other CASCADE');



=== TEST 10: responses of 1 MB, one and many
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout 5s;
    }
--- config
    idempotency_max_response  2m;
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @keys = map { main::key() } 1 .. 5;
my @c = map { send_post("/size?n=1000000&op=l$_", 'x', $keys[$_]) } 0 .. 4;
my @first = map { $_->read_response(30) } @c;
is(length $_->body, 1_000_000, 'ran') for @first;
for (0 .. 4) {
    my $r = http_post("/size?n=1000000&op=l$_", 'x', $keys[$_]);
    is($r->header('Idempotent-Replayed'), 'true', 'replayed');
    ok($r->body eq $first[$_]->body, 'byte for byte');
}



=== TEST 11: it is another module
--- store: postgres
--- http_config
    idempotency_store own postgresql { server 127.0.0.1:1; }
--- config
--- must_die
--- error_log
unknown kind of store "postgresql" in "idempotency_store" directive: there is "memory", "redis", "postgres"



=== TEST 12: no server
--- store: postgres
--- http_config
    idempotency_store own postgres { database a; }
--- config
--- must_die
--- error_log
store "own" in
has no "server": it needs one, for example "server 127.0.0.1:5432"



=== TEST 13: values that are wrong
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; durable maybe; }
--- config
--- must_die
--- error_log
invalid value "maybe" in "durable" directive: it is "all", "commits" or "off"



=== TEST 14: a schema that could be anything
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; schema "a;b"; }
--- config
--- must_die
--- error_log
invalid value "a;b" in "schema" directive: it is lower-case letters



=== TEST 15: a pooler and notifications
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; pooler on; wake notify; }
--- config
--- must_die
--- error_log
behind a pooler there is "wake poll" only



=== TEST 16: purge
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; purge on each=1s; }
--- config
--- must_die
--- error_log
invalid value "each=1s" in "purge" directive: it is "purge on | off [every=1s] [batch=500] [archive]"



=== TEST 17: an unknown directive
--- store: postgres
--- http_config
    idempotency_store own postgres { prefix a; }
--- config
--- must_die
--- error_log
unknown directive "prefix" in a postgres store: it has server, database, user



=== TEST 18: TLS on a unix socket, and without TLS
--- store: postgres
--- http_config
    idempotency_store own postgres { server unix:/tmp; tls on; }
--- config
--- must_die
--- error_log
PostgreSQL has no TLS there



=== TEST 19: TLS directives without TLS
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; tls_name a; }
--- config
--- must_die
--- error_log
has "tls_..." directives without "tls on"



=== TEST 20: the module is not loaded
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
SKIP: {
skip 'it is in the binary', 1 if ($ENV{IDEMPOTENCY_MODULE} || '') eq 'static';

# nginx -t leaves what it read a configuration into
local $ENV{ASAN_OPTIONS} = 'detect_leaks=0';

edit_config(sub { s/^load_module \S*postgres_module\.so;//m });
like(`$ENV{TEST_NGINX_BINARY} -t -q -e stderr -p $ENV{TEST_NGINX_SERVROOT}/ -c $ENV{TEST_NGINX_SERVROOT}/conf/nginx.conf 2>&1`,
     qr{"load_module modules/ngx_http_idempotency_postgres_module\.so"},
     'says what to write');
}



=== TEST 21: every twice
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; purge on every=1s batch=9 every=2s; }
--- config
--- must_die
--- error_log
duplicate parameter "every=2s" in "purge" directive



=== TEST 22: archive twice
--- store: postgres
--- http_config
    idempotency_store own postgres { server 127.0.0.1:1; purge on archive archive; }
--- config
--- must_die
--- error_log
duplicate parameter "archive" in "purge" directive



=== TEST 23: a URL in place of an address: no password in the message
--- store: postgres
--- http_config
    idempotency_store own postgres { server postgres://user:s3cret@127.0.0.1:5432/db; }
--- config
--- must_die
--- error_log
a "server" has no user and no password in it: write them as "user" and "password"
--- no_error_log
s3cret



=== TEST 24: a key that is no file is not in the message
--- store: postgres
--- http_config
    idempotency_store own postgres {
        server               127.0.0.1:1;
        tls                  on;
        tls_certificate      /dev/null;
        tls_certificate_key  data:s3cret;
    }
--- config
--- must_die
--- error_log
has a certificate or a key as "data:": libpq takes files only
--- no_error_log
s3cret
