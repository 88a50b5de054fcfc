# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The schema and the functions of sql/, asked by psql: what each step answers,
# who may call and read what, purge and archive, installing twice, a version
# that is newer, and many connections that begin one record at once.

use strict;
use warnings;
use lib 't/lib';
use Test::More;
use POSIX ();
use Time::HiRes qw(sleep);

use IdempotencyTest::Postgres;

if (($ENV{IDEMPOTENCY_STORE} || '') ne 'postgres') {
    plan skip_all => 'for the store postgres';
}

# a client that dies on the way leaves no server behind

$SIG{INT} = $SIG{TERM} = $SIG{HUP} = sub { exit 130 };
END { my $s = $?; IdempotencyTest::Postgres::stop_all(); $? = $s; }

my $pg = IdempotencyTest::Postgres->start(options => [ 'max_connections=120' ]);

sub ask { return $pg->sql($_[0], user => 'nginx') }

sub id    { my $name = shift; return "sha256('$name')" }
sub token { my $n = shift; return sprintf "decode(repeat('%02x', 16), 'hex')", $n }

# a claim: scheme, fingerprint, identity and target, each a letter

sub claim
{
    my ($c) = @_;

    my ($scheme, $print, $identity, $target) = split //, $c;
    my $hex = '01' . unpack('H2', $scheme) x 4 . '00' x 8
              . unpack('H2', $print) x 32 . unpack('H2', $identity) x 16
              . unpack('H2', $target) x 8;

    return "'\\x$hex'";
}

my $same = 'sfit';

sub begin
{
    my ($name, $token, %o) = @_;

    my $answer = ask(sprintf "SELECT o_how, o_state, o_reason, o_left, "
        . "encode(o_response, 'escape'), encode(o_details, 'escape') "
        . "FROM idempotency.idempotency_begin(%s, %s, %s, %s, %d, %d, %s, %d, "
        . "%s, %d::smallint, 'group', 'acme', 'me', 'host1')",
        id($name), token($token), claim($o{claim} || $same),
        defined $o{details} ? "'$o{details}'" : 'NULL',
        $o{lease} || 30000, $o{ttl} || 86400000, $o{hold} ? 'true' : 'false',
        $o{age} || 0, $o{key_alone} ? 'true' : 'false', $o{waits} || 0);

    my %b;
    @b{qw(how state reason left response details)} = split /\|/, $answer, -1;

    return wantarray ? %b : $b{how};
}

sub commit
{
    my ($name, $token, %o) = @_;

    return ask(sprintf "SELECT idempotency.idempotency_commit(%s, %s, %s, "
        . "%d::smallint, %d::smallint, 201::smallint, %d, %d, %d, %s, false, "
        . "'group', 'acme', 'me', 'host1', %s)",
        id($name), token($token), claim($o{claim} || $same), $o{state} || 2,
        $o{reason} || 0, $o{ttl} || 86400000, $o{grace} || 0,
        $o{lease} || 30000, $o{hold} ? 'true' : 'false',
        defined $o{response} ? "'$o{response}'" : 'NULL');
}

sub renew
{
    my ($name, $token, %o) = @_;

    return ask(sprintf "SELECT idempotency.idempotency_renew(%s, %s, %s, NULL, "
        . "%d, %d, %s, false, 'group', 'acme', 'me', 'host1')",
        id($name), token($token), claim($o{claim} || $same),
        $o{lease} || 30000, $o{ttl} || 86400000, $o{hold} ? 'true' : 'false');
}

sub release
{
    my ($name, $token) = @_;
    return ask(sprintf 'SELECT idempotency.idempotency_release(%s, %s)',
               id($name), token($token));
}

sub watch { ask('SELECT idempotency.idempotency_watch(' . id($_[0]) . ')') }

sub row
{
    my ($name, $columns) = @_;
    return $pg->sql("SELECT $columns FROM idempotency.idempotency_keys "
                    . 'WHERE id = ' . id($name));
}

# --- begin, commit, replay

is(begin('a', 1), 0, 'nothing was there: ours');
is(begin('a', 1), 0, 'asked again with the same token: ours');

my %b = begin('a', 2);
is("$b{how} $b{state}", '3 1', 'in progress: found');
cmp_ok($b{left}, '>', 25000, '... with what is left of the lease');
is(row('a', 'waiting'), 'f', 'who would not wait does not say so');
begin('a', 2, waits => 1);
is(row('a', 'waiting'), 't', 'who would wait says so at once');

is(commit('a', 2, response => 'other'), 4, 'commit of another: still runs');
is(commit('a', 1, response => 'hello'), 1, 'commit');
is(commit('a', 1, response => 'hello'), 1, 'commit, sent again');
is(commit('a', 7, response => 'other'), 0, 'commit of another: lost');
is(renew('a', 1), 0, 'a record that is over is not renewed');
is(release('a', 1), 0, '... and not released');

%b = begin('a', 2);
is("$b{how} $b{state} $b{response}", '3 2 hello', 'completed: the response');
cmp_ok($b{left}, '>', 86000000, '... with what is left of the ttl');

is(commit('c', 1, response => 'x'), 1, 'a commit where the record is gone');
is(renew('n', 1), 1, 'a renewal where the record is gone lays it anew');
is(begin('n', 2), 3, '... as a lock');

begin('d', 1, details => 'what was sent');
is({ begin('d', 2) }->{details}, 'what was sent', 'details are kept');

# --- a clock that was set back

{
    my @times = (lease => 1000, ttl => 60000);
    my $later = "interval '1 hour'";

    begin('back', 1, @times);
    begin('held', 1, @times, hold => 1);
    begin('unknown', 1, @times);
    commit('unknown', 1, @times, state => 3, reason => 1);

    $pg->sql("UPDATE idempotency.idempotency_keys SET "
             . "lease_until = lease_until + $later, "
             . "expires_at = expires_at + $later, "
             . "forget_at = forget_at + $later WHERE id IN ("
             . join(', ', map { id($_) } qw(back held unknown)) . ')');

    %b = begin('back', 2, lease => 1000, ttl => 90000);
    cmp_ok($b{left}, '>', 3_000_000, 'a lock with other times is left alone');

    for my $name (qw(back held unknown)) {
        %b = begin($name, 2, @times);
        is($b{how}, 3, "$name: found");
        cmp_ok($b{left}, '<=', 1000, '... with no more than its lease');
    }

    sleep 1.1;
    is(begin('back', 2, @times), 1, 'its holder is gone, after a lease');
    is(begin('unknown', 2, @times), 0, 'an outcome that is not known: as well');
    %b = begin('held', 2, @times);
    is("$b{how} $b{state} $b{reason}", '3 3 1', 'under hold: it is not known');
}

# --- leases that ran out

begin('l', 1, lease => 1, ttl => 60000);
begin('h', 1, lease => 1, ttl => 60000, hold => 1);
begin('o', 1, lease => 1, ttl => 60000);
begin('g', 1, lease => 1, ttl => 60000);
begin('t', 1, lease => 1, ttl => 60000);
begin('t2', 1, lease => 1, ttl => 60000);
begin('k', 1, lease => 1, ttl => 60000);
begin('short', 1, lease => 60000, ttl => 1);
sleep 0.02;

is(begin('l', 2), 1, 'its holder is gone: taken over by the same request');
is(commit('l', 1), 4, '... whose commit is the one that counts then');
is(release('l', 2), 1, 'released');
is(row('l', 'state, reason'), '3|1', '... but the first may have run');
is(begin('l', 3, claim => 'sxit'), 3, '... so another request finds it');
is(begin('l', 3), 0, '... and the same one may run');

%b = begin('h', 2);
is("$b{how} $b{state} $b{reason}", '3 3 1', 'hold: the outcome is unknown');
cmp_ok($b{left}, '>', 50000, '... for the whole ttl');

for my $other (qw(sxit sfxt xfix)) {
    %b = begin('o', 2, claim => $other);
    is("$b{how} $b{state} $b{reason}", '3 3 1',
       "another request ($other) does not take it over");
}
is(begin('o', 2, claim => 'xxit'), 1,
   'of another scheme the target decides');
is(begin('k', 2, claim => 'xxix', key_alone => 1), 1, '... or the key alone');
is(begin('g', 2, waits => 3), 4, 'a lock older than the one waited for');
is(begin('nothing', 2, waits => 2), 4, 'what was waited for is gone');
is(row('nothing', 'count(*)'), 0, '... and not taken');

is(commit('t', 2, response => 'late'), 1,
   'a commit takes back what one that is gone has left');
is(renew('t2', 2), 1, '... and so does a renewal');
is(row('t2', 'again'), 't', '... which remembers that it was taken over');
is(commit('t2', 3, claim => 'sxit'), 4, '... but not from one that lives');

# --- outcomes that are unknown

begin('u', 1);
is(commit('u', 1, state => 3, reason => 1, lease => 60000), 1, 'unknown');
%b = begin('u', 2);
is("$b{how} $b{state} $b{reason}", '3 3 1', '... until its lease is over');
cmp_ok($b{left}, '<=', 60000, '... which is what is left');

begin('v', 1);
commit('v', 1, state => 3, reason => 1, lease => 1);
begin('w', 1, hold => 1);
commit('w', 1, state => 3, reason => 1, lease => 1, hold => 1);
sleep 0.02;
is(begin('v', 2, claim => 'sxit'), 3, 'then another request is a conflict');
is(begin('v', 2), 0, '... and the same may run');
is(begin('w', 2), 3, 'under hold it may not');

# --- expiry and grace

commit('e', 1, ttl => 1, grace => 60000, response => 'old');
commit('f', 1, ttl => 1, response => 'old');
sleep 0.02;
is(begin('e', 2, age => 60000), 3, 'it had not expired when the asker came');
is(begin('e', 2), 2, 'expired within grace');
is(begin('f', 2), 0, 'forgotten');
is(row('f', 'state, response IS NULL'), '1|t', '... with its response');
is(begin('short', 2), 3, 'a lock outlives a ttl that is shorter than it');

# --- release, and who waits

begin('r', 1);
is(release('r', 2), 0, 'released by another: no');
is(release('r', 1), 1, 'released');
is(row('r', 'count(*)'), 0, '... nothing is left');
is(release('r', 1), 1, 'released, sent again');

begin('r', 1);
cmp_ok(watch('r'), '>', 25000, 'watch: what is left of the lease');
is(release('r', 1), 1, 'released while somebody waits');
is(row('r', 'state'), 4, '... leaves a mark');
is(watch('r'), 0, 'watch: look now');
is(begin('r', 3, waits => 2, claim => 'xyzw'), 0, '... which lets one run');
is(row('r', 'waiting'), 't', '... and the others wait for that');
is(commit('r2', 1), 1, 'whatever');
is(watch('r2'), 0, 'watch: nothing in progress');

# --- a notification for those who wait, and for nobody else

{
    my $heard = $pg->sql("LISTEN idempotency;
        SELECT idempotency.idempotency_commit(${\id('r')}, ${\token(3)},
            ${\claim('xyzw')}, 2::smallint, 0::smallint, 200::smallint, 1000,
            0, 1000, false, false, '', '', '', '', NULL);", user => 'nginx');
    like($heard, qr/notification "idempotency" .*"[0-9a-f]{64}"/,
         'a commit that somebody waits for notifies');

    begin('q', 1);
    $heard = $pg->sql("LISTEN idempotency;
        SELECT idempotency.idempotency_commit(${\id('q')}, ${\token(1)},
            ${\claim($same)}, 2::smallint, 0::smallint, 200::smallint, 1000,
            0, 1000, false, false, '', '', '', '', NULL);", user => 'nginx');
    unlike($heard, qr/notification/, 'nobody waits: it does not');
}

# --- rights

for my $sql ('SELECT * FROM idempotency.idempotency_keys',
             'DELETE FROM idempotency.idempotency_keys',
             'SELECT * FROM idempotency.idempotency_records',
             'SELECT * FROM idempotency.idempotency_meta',
             "SELECT idempotency.idempotency_archive_rotate('1 day')",
             'CREATE TABLE idempotency.mine (a int)')
{
    ok(!$pg->psql(sql => $sql, user => 'nginx'), "nginx may not: $sql");
    like($pg->{said}, qr/permission denied/, '... permission denied');
}

$pg->sql("CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE eve LOGIN;
          GRANT idempotency_reader TO ann, bob;
          INSERT INTO idempotency.idempotency_tenants
          VALUES ('ann', 'acme'), ('bob', 'other')");

cmp_ok($pg->sql('SELECT count(*) FROM idempotency.idempotency_records',
                user => 'ann'), '>', 5, 'a reader sees its tenant');
is($pg->sql('SELECT count(*) FROM idempotency.idempotency_records',
            user => 'bob'), 0, '... and no other');
is($pg->sql('SELECT count(id) FROM idempotency.idempotency_keys',
            user => 'bob'), 0, '... by the table neither');
cmp_ok($pg->sql('SELECT count(id) FROM idempotency.idempotency_keys',
                user => 'ann'), '>', 5, '... while the one who may does');
ok(!$pg->psql(sql => 'SELECT response FROM idempotency.idempotency_keys',
              user => 'ann'), 'no response for readers');
ok(!$pg->psql(sql => 'SELECT token FROM idempotency.idempotency_keys',
              user => 'ann'), 'no token for readers');
ok(!$pg->psql(sql => 'SELECT * FROM idempotency.idempotency_records',
              user => 'eve'), 'nothing for anybody else');
$pg->sql("INSERT INTO idempotency.idempotency_tenants VALUES ('bob', '*')");
cmp_ok($pg->sql('SELECT count(*) FROM idempotency.idempotency_records',
                user => 'bob'), '>', 5, 'who may see all tenants does');
is($pg->sql("SELECT state, status, label, actor FROM "
            . "idempotency.idempotency_records WHERE id = encode(${\id('a')}, "
            . "'hex')", user => 'ann'), 'completed|201|group|me',
   'a record for people');

# --- administration

is(ask("SELECT o_state, o_status, o_tenant, o_host FROM "
       . "idempotency.idempotency_get(${\id('a')})"), '2|201|acme|host1', 'get');
is(ask("SELECT count(*) FROM idempotency.idempotency_list(p_state => "
       . "3::smallint, p_label => 'group')"),
   $pg->sql("SELECT count(*) FROM idempotency.idempotency_keys
              WHERE (state = 3 OR hold AND lease_until < now())
                AND expires_at > now()"), 'list by state');
is(ask("SELECT count(*) FROM (SELECT o_id FROM idempotency.idempotency_list("
       . "p_limit => 2)) x"), 2, 'list by pages');
is(ask("SELECT idempotency.idempotency_remove(${\id('a')})"), 't', 'remove');
is(ask("SELECT idempotency.idempotency_remove(${\id('a')})"), 'f', '... once');
is(ask("SELECT count(*) FROM idempotency.idempotency_get(${\id('a')})"), 0,
   'gone');
like(ask('SELECT * FROM idempotency.idempotency_figures()'), qr/^\d+\|\d+$/,
     'figures');

is(ask("SELECT idempotency.idempotency_log('[{\"event\": \"x.y\", "
       . "\"record\": \"00ff\", \"tenant\": \"acme\", \"n\": 3}]')"), 1, 'log');
is($pg->sql("SELECT event, record, tenant, data FROM "
            . "idempotency.idempotency_events", user => 'ann'),
   'x.y|\x00ff|acme|{"n": 3}', '... for readers of the tenant');

# --- purge and archive

$pg->clear;
commit("p$_", 1, ttl => 1) for 1 .. 3;
commit('stays', 1);
begin('runs', 1, lease => 1, ttl => 60000);
sleep 0.02;
is(ask('SELECT idempotency.idempotency_purge()'), 0, 'not yet: by 5 minutes');
$pg->sql("UPDATE idempotency.idempotency_keys SET purge_at = now()");
is(ask('SELECT idempotency.idempotency_purge(2, true)'), 2, 'a batch');
is(ask('SELECT idempotency.idempotency_purge(500, true)'), 1, '... the rest');
is($pg->count, 2, 'what has not expired stays');
is($pg->sql('SELECT count(*) FROM idempotency.idempotency_archive'), 3,
   'the archive has them');

$pg->sql("SELECT idempotency.idempotency_archive_rotate('1 year')",
         user => 'keeper');
$pg->sql("SELECT idempotency.idempotency_archive_rotate('1 year')",
         user => 'keeper');
is($pg->sql("SELECT count(*) FROM pg_inherits WHERE inhparent = "
            . "'idempotency.idempotency_archive'::regclass"), 3,
   'partitions for the months to come, and the rest');

# --- 100 connections begin the same records

$pg->clear;
$pg->sql('CREATE TABLE acquired (id int); GRANT ALL ON acquired TO nginx');

my $race = <<'_EOC_';
\set k random(1, 150)
SELECT o_how AS how FROM idempotency.idempotency_begin(sha256(:k::text::bytea), substr(sha256((random()::text || pg_backend_pid())::bytea), 1, 16), decode(repeat('aa', 69), 'hex'), NULL, 30000, 60000, false, 0, false, (random() * 1.4)::smallint, '', '', '', '') \gset
\if :how < 3
INSERT INTO acquired VALUES (:k);
\endif
_EOC_

$race =~ s/\\if :how < 3/\\set ours :how < 3\n\\if :ours/;

my $said = $pg->pgbench($race, '-c', 100, '-j', 2, '-t', 15);
like($said, qr{actually processed: 1500/1500}, 'all 1500 begins have an answer')
    or diag($said);
is($pg->sql('SELECT max(n), min(n) FROM (SELECT count(*) AS n FROM acquired '
            . 'GROUP BY id) x'), '1|1', 'each record went to one of them');

# the same where serializable is the default: some are refused, to be asked
# again, and none is acquired twice

$pg->clear;
$pg->sql('TRUNCATE acquired');
$pg->sql("ALTER DATABASE idempotency SET default_transaction_isolation = "
         . "'serializable'");
$said = $pg->pgbench($race, '-c', 20, '-j', 2, '-t', 15, '--max-tries=50');
is($pg->sql('SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM '
            . 'acquired GROUP BY id) x'), 1, 'serializable: one of them');
unlike($said, qr/ERROR:(?!.*(?:could not serialize|changed 20 times))/,
       'no error but those of serialization') or diag($said);
$pg->sql('ALTER DATABASE idempotency RESET default_transaction_isolation');

# --- traps: a plan that was made while the table was small, attributes that
# CREATE OR REPLACE drops, updates that touch the index, a vacuum that locks

ok($pg->install, 'installed once more') or diag($pg->{said});

my $steps = sub {
    my ($from, $to) = @_;

    return "DO \$\$ BEGIN FOR i IN $from .. $to LOOP "
           . "PERFORM idempotency.idempotency_begin(sha256(i::text::bytea), "
           . "${\token(1)}, ${\claim($same)}, NULL, 30000, 86400000, false, 0, "
           . "false, 0::smallint, 'g', '', '', ''); "
           . "PERFORM idempotency.idempotency_watch(sha256(i::text::bytea)); "
           . "PERFORM idempotency.idempotency_commit(sha256(i::text::bytea), "
           . "${\token(1)}, ${\claim($same)}, 2::smallint, 0::smallint, "
           . "200::smallint, 86400000, 0, 30000, false, false, 'g', '', '', '', "
           . "repeat('x', 300)::bytea); "
           . "PERFORM idempotency.idempotency_release(sha256(i::text::bytea), "
           . "${\token(2)}); END LOOP; END \$\$; "
};

$pg->clear;
$pg->sql($steps->(1, 3));
$pg->sql('ANALYZE idempotency.idempotency_keys');
is($pg->sql($steps->(4, 10)
            . "INSERT INTO idempotency.idempotency_keys (id, token, claim, state, "
            . "created_at, lease_until, expires_at, forget_at, purge_at) SELECT "
            . "sha256(('x' || n)::bytea), ${\token(1)}, ${\claim($same)}, 2, now(), "
            . "now(), now(), now(), now() FROM generate_series(1, 3000) n; "
            . $steps->(11, 60)
            . "SELECT seq_scan FROM pg_stat_xact_user_tables "
            . "WHERE relname = 'idempotency_keys'"), 0,
   'no step reads the whole table, although it was small at first');

$pg->clear;
$pg->sql('VACUUM idempotency.idempotency_keys');
is($pg->sql($steps->(1, 200)
            . "SELECT n_tup_hot_upd * 10 > n_tup_upd * 6 FROM "
            . "pg_stat_xact_user_tables WHERE relname = 'idempotency_keys'"),
   't', 'most updates leave the index alone');
like($pg->sql("SELECT reloptions FROM pg_class WHERE oid = "
              . "'idempotency.idempotency_keys'::regclass"),
     qr/vacuum_truncate=off/, 'vacuum takes no exclusive lock');

# --- what the documents tell people to type into psql

for my $file (qw(docs/postgres.md docs/howto-postgres.md)) {
    open my $in, '<', $file or die "$file: $!\n";
    my @typed = grep { /^ +(?:SELECT|INSERT|GRANT|CREATE) .*;$/ } <$in>;

    cmp_ok(scalar @typed, '>', 3, "$file has statements");

    # its roles under other names, and all within a transaction

    my $sql = join '', map { s/\b(nginx|ann)\b/typed_$1/gr
                             =~ s/ CONCURRENTLY//r } @typed;

    for my $role (grep { $sql !~ /CREATE ROLE $_/ } qw(typed_nginx typed_ann)) {
        $sql = "CREATE ROLE $role;\n$sql";
    }

    ok($pg->psql(user => 'postgres', sql => "BEGIN;\n$sql ROLLBACK"),
       '... which work') or diag($pg->{said});
}

# --- installing

ok($pg->install, 'installing again changes nothing') or diag($pg->{said});

# somebody reads for long, as pg_dump does: an exclusive lock would wait for
# that, and every step of nginx behind it

{
    my $pid = fork;

    if ($pid == 0) {
        $pg->psql(user => 'postgres', sql => 'BEGIN; SELECT count(*) FROM '
            . 'idempotency.idempotency_keys, idempotency.idempotency_events; '
            . 'SELECT pg_sleep(60) /* a long read */');
        POSIX::_exit(0);
    }

    my $reads = "FROM pg_stat_activity WHERE query LIKE '%a long read%' "
                . "AND wait_event = 'PgSleep'";

    for (1 .. 600) {
        last if $pg->sql("SELECT count(*) $reads");
        sleep 0.05;
    }

    ok($pg->sql("SELECT count(*) $reads"), 'somebody reads');
    ok($pg->install, 'installing again waits for no reader')
        or diag($pg->{said});

    $pg->sql("SELECT pg_terminate_backend(pid) $reads");
    waitpid $pid, 0;
}

is($pg->sql("SELECT count(*) FROM pg_policy WHERE polname = 'tenant_reads' "
            . "AND polrelid::regclass::text LIKE 'idempotency.%'"), 2,
   'the rules for readers are there, once');
is($pg->sql('SELECT count(*) FROM idempotency.idempotency_meta'), 1,
   '... one version');

ok($pg->install(vars => { schema => 'other' }), 'another schema')
    or diag($pg->{said});
is(ask('SELECT * FROM other.idempotency_version()'), '1|1', '... has it all');
is(ask("SELECT o_how FROM other.idempotency_begin(${\id('z')}, ${\token(1)}, "
       . "${\claim($same)}, NULL, 1000, 1000, false, 0, false, 0::smallint, "
       . "'', '', '', '')"), 0, '... and works there');
is($pg->sql('SELECT count(*) FROM other.idempotency_keys'), 1, '... only');

# "make sql" prints one script, and applies it

{
    my $conninfo = "host=$pg->{base} port=$pg->{port} user=keeper "
                   . "dbname=idempotency";

    my $script = `make -s sql SCHEMA=printed`;
    ok($pg->psql(user => 'keeper', file => do {
        my $file = "$pg->{base}/printed.sql";
        open my $out, '>', $file or die "$file: $!\n";
        print $out $script;
        close $out;
        $file;
    }), 'make sql prints it') or diag($pg->{said});
    is(ask('SELECT * FROM printed.idempotency_version()'), '1|1', '... whole');

    is(system("make -s sql SCHEMA=applied DATABASE='$conninfo' >/dev/null"), 0,
       'make sql DATABASE= applies it');
    is(ask('SELECT * FROM applied.idempotency_version()'), '1|1', '... there');
}

$pg->sql('INSERT INTO other.idempotency_meta VALUES (2, 2)');
ok(!$pg->install(vars => { schema => 'other' }), 'a newer one is left alone');
like($pg->{said}, qr/newer release/, '... and says why');

ok($pg->psql(user => 'keeper', file => 'sql/uninstall.sql',
             vars => { schema => 'other' }), 'uninstall');
is($pg->sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'other'"), 0,
   '... takes it away');
is($pg->sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency'"),
   1, '... and no other');

done_testing();
