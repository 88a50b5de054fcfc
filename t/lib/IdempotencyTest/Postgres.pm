# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Postgres;

# A PostgreSQL server of a test's own: start, stop, freeze, crash, promote, ask.
# It is Debian's, run by an unprivileged user where the tests are root's, on
# a port of the loopback address and a unix socket, with its data in a directory
# below /dev/shm or /tmp (that user may not see the tree).  The data directory is a copy of
# one that was made once, with the schema of sql/ installed in the database
# "idempotency" by its owner, and the login "nginx" that may call it.
#
# It dies with the test.  See README.md beside this directory.

use strict;
use warnings;

use Cwd ();
use Digest::SHA ();
use Fcntl qw(LOCK_EX);
use File::Path ();
use File::Temp ();
use POSIX ();

use IdempotencyTest::Process;

our @All;

my $Root = Cwd::cwd();
my ($Bin) = sort { version($b) <=> version($a) }
            glob '/usr/lib/postgresql/*/bin';

sub version { $_[0] =~ m{/(\d+)/bin$} ? $1 : 0 }

sub bin { defined $Bin ? "$Bin/$_[0]" : $_[0] }


# port: where, or one that is free; options: "name=value" for the server;
# lazy: not now, but when it is spawned; from: a standby of that server

sub start
{
    my ($class, %o) = @_;

    $o{port} ||= IdempotencyTest::Process::free_port();

    my $self = bless { host => '127.0.0.1', %o }, $class;
    push @All, $self;

    $self->{base} = $o{base} || File::Temp::tempdir('idempotency-pg-XXXXXX',
                                                    DIR => place());
    $self->{dir} = "$self->{base}/data";

    if ($> == 0) {
        chown((getpwnam 'postgres')[2, 3], $self->{base});
        chmod 0755, $self->{base};
    }

    if ($o{from}) {
        $self->as_user(bin('pg_basebackup'), '-h', $o{from}{base},
                       '-p', $o{from}{port}, '-U', 'postgres', '-R',
                       '-X', 'stream', '-c', 'fast', '-D', $self->{dir}, '-d',
                       'application_name=standby')
            and die "pg_basebackup failed\n";
    } else {
        my $template = template();
        local $self->{stdin} = $template;
        $self->as_user('tar', '-xf', '-', '-C', $self->{base})
            and die "tar -xf $template failed\n";
    }

    $self->spawn if !$o{lazy};

    return $self;
}


# In memory where there is room: a thousand files are made, and removed, for each
# server, at a second of processor time on a disk.

sub place
{
    my ($free) = `df -Pk /dev/shm 2>/dev/null` =~ /(\d+) +\d+%/;

    return ($free // 0) > 1_000_000 ? '/dev/shm' : '/tmp';
}


# runs a program as the user of the server, who may have no way to this tree;
# its exit status

sub as_user
{
    my ($self, @command) = @_;

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        chdir $self->{base};
        open STDIN, '<', $self->{stdin} // '/dev/null';
        open STDOUT, '>>', "$self->{base}/log";
        open STDERR, '>&', \*STDOUT;
        exec become(), @command or POSIX::_exit(127);
    }

    waitpid $pid, 0;
    return $? >> 8 || $? & 127;
}

sub become
{
    return () if $> != 0;
    return ('setpriv', '--reuid', 'postgres', '--regid', 'postgres',
            '--clear-groups');
}


# The data directory that all begin with, as a tar file.  Made anew when sql/
# or the version of the server changed.

sub template
{
    my $digest = Digest::SHA->new(1);
    $digest->add("$Bin\n");
    $digest->addfile($_) for glob("$Root/sql/*.sql $Root/sql/v*/*.sql"),
                             $INC{'IdempotencyTest/Postgres.pm'};

    my $dir = "$Root/build/postgres";
    my $file = "$dir/" . substr($digest->hexdigest, 0, 16) . '.tar';

    File::Path::make_path($dir);
    open my $lock, '>', "$dir/lock" or die "$dir/lock: $!\n";
    flock $lock, LOCK_EX;

    return $file if -e $file;

    unlink glob "$dir/*.tar";

    my $self = bless {
        base => File::Temp::tempdir('idempotency-pg-XXXXXX', DIR => place()),
        port => IdempotencyTest::Process::free_port(), host => '127.0.0.1',
    }, __PACKAGE__;

    $self->{dir} = "$self->{base}/data";
    chown((getpwnam 'postgres')[2, 3], $self->{base}) if $> == 0;
    chmod 0755, $self->{base};

    $self->as_user(bin('initdb'), '-D', $self->{dir}, '-U', 'postgres',
                   '-A', 'trust', '-E', 'UTF8', '--locale=C', '-N',
                   '--wal-segsize=1')
        and die "initdb failed, see $self->{base}/log\n";

    $self->spawn;

    $self->sql('CREATE ROLE keeper LOGIN CREATEROLE',
               db => 'postgres', user => 'postgres');
    $self->sql('CREATE DATABASE idempotency OWNER keeper',
               db => 'postgres', user => 'postgres');
    $self->install or die "sql/install.sql failed: $self->{said}\n";
    $self->sql('CREATE ROLE nginx LOGIN; GRANT idempotency_nginx TO nginx; '
               . 'GRANT idempotency_admin TO nginx', user => 'keeper');

    $self->kill_it('INT');

    system('tar', '-cf', "$file.new", '-C', $self->{base}, 'data') == 0
        or die "tar failed\n";
    rename "$file.new", $file or die "$file: $!\n";

    File::Path::remove_tree($self->{base});

    return $file;
}


sub install
{
    my ($self, %o) = @_;

    return $self->psql(user => 'keeper', file => "$Root/sql/install.sql", %o);
}


# launch() does not wait until it answers

sub spawn
{
    my ($self) = @_;

    $self->launch;
    $self->wait_up;
}

sub launch
{
    my ($self) = @_;

    my @options = map { ('-c', $_) }
        ('listen_addresses=127.0.0.1', "unix_socket_directories=$self->{base}",
         'fsync=off', 'shared_buffers=16MB', 'max_connections=150',
         'min_wal_size=2MB', 'logging_collector=off',
         'restart_after_crash=on', 'log_min_messages=warning',
         'shared_preload_libraries=pg_stat_statements',
         'pg_stat_statements.save=off',
         @{ $self->{options} || [] });

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        chdir $self->{base};
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', "$self->{base}/log";
        open STDERR, '>&', \*STDOUT;

        # an immediate shutdown, which leaves nothing behind

        my @become = $> == 0 ? become() : 'setpriv';
        exec @become, '--pdeathsig', 'QUIT', bin('postgres'),
             '-D', $self->{dir}, '-p', $self->{port}, @options
            or POSIX::_exit(127);
    }

    $self->{pid} = $pid;
    delete @$self{qw(stopped paused)};
}


sub wait_up
{
    my ($self) = @_;

    my $up = IdempotencyTest::Process::wait_for(sub {
        return 1 if !IdempotencyTest::Process::is_alive($self->{pid});
        return $self->psql(db => 'postgres', user => 'postgres',
                           sql => 'SELECT 1', quiet => 1);
    }, 60);

    die "postgres does not start, see $self->{base}/log: ",
        $self->log, "\n"
        if !$up || !IdempotencyTest::Process::is_alive($self->{pid});
}

sub log
{
    my ($self) = @_;

    open my $in, '<', "$self->{base}/log" or return '';
    local $/;
    return scalar <$in>;
}


# sql, or a file; as whom, where, and with which variables (vars => { ... }).
# What it printed is in {said}; true if it went well.

sub psql
{
    my ($self, %o) = @_;

    # an argument can't be of any length

    if (length($o{sql} // '') > 50_000) {
        $o{file} = "$self->{base}/long.sql";
        open my $out, '>', $o{file} or die "$o{file}: $!\n";
        print $out $o{sql};
        close $out;
        delete $o{sql};
    }

    my @what = defined $o{sql} ? ('-c', $o{sql}) : ('-f', $o{file});
    my @vars = map { ('-v', "$_=$o{vars}{$_}") } sort keys %{ $o{vars} || {} };

    my $pid = open my $out, '-|';
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        open STDIN, '<', '/dev/null';
        open STDERR, '>&', \*STDOUT;
        $ENV{PGCONNECT_TIMEOUT} = 5;
        exec bin('psql'), '-XAtq', '-v', 'ON_ERROR_STOP=1', @vars,
             '-h', $self->{base}, '-p', $self->{port},
             '-U', $o{user} || 'nginx', '-d', $o{db} || 'idempotency', @what
            or POSIX::_exit(127);
    }

    local $/;
    $self->{said} = <$out>;
    $self->{said} = '' if !defined $self->{said};
    $self->{said} =~ s{\n+\z}{};
    { local $?; close $out; $self->{status} = $?; }

    return $self->{status} == 0;
}


# what a statement gives, rows by line and columns by "|"; dies of an error

sub sql
{
    my ($self, $sql, %o) = @_;

    $self->psql(user => 'postgres', %o, sql => $sql)
        or die "psql: $self->{said}\n";

    return $self->{said};
}


# runs a statement in a transaction that stays open for some seconds, and so
# keeps its locks; returns the pid to wait for, once it has them

sub hold
{
    my ($self, $sql, $seconds) = @_;

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        $self->psql(user => 'postgres',
                    sql => "BEGIN; $sql; SELECT pg_sleep($seconds)");
        POSIX::_exit(0);
    }

    IdempotencyTest::Process::wait_for(sub {
        $self->sql("SELECT count(*) FROM pg_stat_activity WHERE query ~ "
                   . "'pg_slee[p]' AND wait_event = 'PgSleep'");
    }, 10) or die "no lock\n";

    return $pid;
}


# an array of pids that run the script of pgbench at once; -> wait_bench

sub pgbench
{
    my ($self, $script, @options) = @_;

    my $file = "$self->{base}/bench.sql";
    open my $out, '>', $file or die "$file: $!\n";
    print $out $script;
    close $out;

    my @command = (bin('pgbench'), '-n', '-h', $self->{base}, '-p',
                   $self->{port}, '-U', 'nginx', '-f', $file, @options,
                   'idempotency');
    my $said = `@command 2>&1`;

    return $said;
}


sub clear
{
    my ($self) = @_;

    $self->sql('TRUNCATE idempotency.idempotency_keys, '
               . 'idempotency.idempotency_archive, '
               . 'idempotency.idempotency_events');
}


sub count
{
    return $_[0]->sql('SELECT count(*) FROM idempotency.idempotency_keys');
}


# its calls of each step since reset_calls, and how many there were

sub reset_calls
{
    my ($self) = @_;

    $self->sql('CREATE EXTENSION IF NOT EXISTS pg_stat_statements; '
               . 'SELECT pg_stat_statements_reset()');
}

sub calls
{
    my ($self) = @_;

    my %calls;
    for (split /\n/, $self->sql(
        "SELECT substring(query from 'idempotency_(\\w+)'), sum(calls) "
        . "FROM pg_stat_statements JOIN pg_roles r ON r.oid = userid "
        . "WHERE rolname = 'nginx' AND query ~ 'idempotency_\\w+\\(' "
        . "AND query !~ '^PREPARE' GROUP BY 1"))
    {
        my ($step, $n) = split /\|/;
        $calls{$step} = $n;
    }

    return \%calls;
}


sub round_trips
{
    my $calls = $_[0]->calls;
    my $n = 0;

    $n += $calls->{$_} || 0 for qw(begin renew commit release watch);

    return $n;
}


# As of a Redis, so that a test can be of both: the hex ids of all records; one
# of them, field by field, and one to be written in its place, for "life" ms;
# FLUSHALL, DEL, PTTL, PEXPIRE and PERSIST.  See Redis.pm for the fields; a list it has not.

sub keys
{
    # one that was given back while somebody waited leaves a row, but is gone

    return split /\n/, $_[0]->sql("SELECT encode(id, 'hex') FROM "
                                  . 'idempotency.idempotency_keys '
                                  . 'WHERE state < 4 ORDER BY 1');
}

sub record
{
    my ($self, $name) = @_;

    my @row = split /\|/, $self->sql(
        "SELECT state, reason, CASE WHEN hold THEN 1 WHEN again THEN 2 ELSE 0 "
        . "END, waiting::int, encode(token, 'hex'), encode(claim, 'hex'), "
        . "encode(coalesce(response, ''), 'hex'), "
        . "encode(coalesce(details, ''), 'hex'), "
        . "(1000 * extract(epoch FROM forget_at - CASE state WHEN 1 THEN "
        . "lease_until ELSE expires_at END))::bigint "
        . "FROM idempotency.idempotency_keys "
        . "WHERE id = decode('$name', 'hex')"), -1;

    return if !@row;

    my %f;
    @f{qw(s r h q t c b d g)} = @row;
    $_ = pack 'H*', $_ for @f{qw(t c b d)};
    $f{n} = $f{s} == 1 ? 2 : 3;

    return \%f;
}

sub write_record
{
    my ($self, $name, $f, $life) = @_;

    my %hex = map { $_ => unpack 'H*', $f->{$_} } qw(t c b d);
    my $until = "clock_timestamp() + interval '1 ms' * ($life - $f->{g})";

    # one transaction: nginx may be about to begin it

    $self->sql("DELETE FROM idempotency.idempotency_keys
        WHERE id = decode('$name', 'hex');
        INSERT INTO idempotency.idempotency_keys (id, state, reason,
        hold, again, waiting, token, claim, response, details, created_at,
        lease_until, expires_at, forget_at, purge_at)
        VALUES (decode('$name', 'hex'), $f->{s}, $f->{r},
        ${\($f->{h} == 1 ? 'true' : 'false')},
        ${\($f->{h} == 2 ? 'true' : 'false')},
        ${\($f->{q} ? 'true' : 'false')}, '\\x$hex{t}', '\\x$hex{c}',
        nullif('\\x$hex{b}'::bytea, ''), nullif('\\x$hex{d}'::bytea, ''),
        now(), $until,
        $until, clock_timestamp() + interval '1 ms' * $life,
        now() + interval '1 day')");
}

# A record that no begin can use; one whose commits the server refuses, until it
# is accepted again; no room for responses, and room again; all connections of
# nginx are closed

sub corrupt
{
    my ($self, $name) = @_;

    $self->sql("UPDATE idempotency.idempotency_keys SET claim = "
               . "decode(repeat('ff', 69), 'hex') WHERE id = '\\x$name'");
}

sub refuse
{
    my ($self, $name) = @_;

    $self->raise("NEW.id = '\\x$name' AND NEW.state > 1", 'check_violation');
}

sub accept { $_[0]->sql('DROP FUNCTION idempotency.raise() CASCADE') }

sub full { $_[0]->raise('NEW.response IS NOT NULL', 'disk_full') }

sub not_full { $_[0]->sql('DROP FUNCTION IF EXISTS idempotency.raise() CASCADE') }

sub hang_up
{
    $_[0]->sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
               . "WHERE usename = 'nginx'");
}

# a row that is written so is an error

sub raise
{
    my ($self, $when, $code) = @_;

    $self->sql(<<"_EOC_");
CREATE FUNCTION idempotency.raise() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '$code'; END \$\$;
CREATE TRIGGER raise BEFORE INSERT OR UPDATE ON idempotency.idempotency_keys
    FOR EACH ROW WHEN ($when) EXECUTE FUNCTION idempotency.raise();
_EOC_
}

sub command
{
    my ($self, $command, @keys) = @_;

    return $self->clear if $command eq 'FLUSHALL';

    if ($command eq 'PTTL') {
        my $left = $self->sql('SELECT floor(1000 * extract(epoch FROM forget_at '
            . '- clock_timestamp())) FROM idempotency.idempotency_keys '
            . "WHERE id = decode('$keys[0]', 'hex')");
        return $left eq '' ? -2 : $left;
    }

    if ($command eq 'PEXPIRE') {
        return $self->sql("UPDATE idempotency.idempotency_keys SET forget_at = "
            . "clock_timestamp() + interval '$keys[1] ms', expires_at = "
            . "clock_timestamp() + interval '$keys[1] ms' "
            . "- (forget_at - expires_at) WHERE id = decode('$keys[0]', 'hex')");
    }

    # for a day: there are no times without an end

    if ($command eq 'PERSIST') {
        return $self->command('PEXPIRE', $keys[0], 86_400_000);
    }

    die "postgres: no command $command\n" if $command ne 'DEL';

    $self->sql('DELETE FROM idempotency.idempotency_keys WHERE id IN ('
               . join(', ', map { "decode('$_', 'hex')" } @keys) . ')')
        if @keys;
}


# who connects over TCP has to have a password

sub ask_passwords
{
    my ($self) = @_;

    open my $hba, '>', "$self->{dir}/pg_hba.conf"
        or die "$self->{dir}/pg_hba.conf: $!\n";
    print $hba "local all all trust\nhost all all all scram-sha-256\n";
    close $hba;

    $self->sql('SELECT pg_reload_conf()');
}


# a frozen server has its connections open, and answers nothing

sub processes
{
    my ($self) = @_;

    my @pids = ($self->{pid});

    for my $dir (glob '/proc/[0-9]*') {
        open my $in, '<', "$dir/stat" or next;
        my $stat = <$in>;
        push @pids, $1 if defined $stat
                          && $stat =~ /^(\d+) \(.*\) \S (\d+) /s
                          && $2 == $self->{pid};
    }

    return @pids;
}

sub pause
{
    my ($self) = @_;

    $self->{paused} = 1;
    kill STOP => $self->processes;
}

sub resume
{
    my ($self) = @_;

    return if !delete $self->{paused};
    kill CONT => $self->processes;
}


# INT: fast; QUIT, and KILL: at once, as a crash, and recovery follows

sub kill_it
{
    my ($self, $signal) = @_;

    return if $self->{stopped}++ || !$self->{pid};

    $self->resume;

    my $pid = $self->{pid};

    # TERM would wait until all clients have left

    $signal = 'QUIT' if !$signal || $signal eq 'KILL';
    $signal = 'INT' if $signal eq 'TERM';

    kill $signal, $pid;
    IdempotencyTest::Process::wait_for(
        sub { !IdempotencyTest::Process::is_alive($pid) }, 20)
        or kill KILL => $pid;
    waitpid $pid, 0;
}

sub restart
{
    my ($self, $signal) = @_;

    $self->kill_it($signal);
    $self->spawn;
}


sub promote
{
    my ($self) = @_;

    $self->sql('SELECT pg_promote()', db => 'postgres');
}

sub stop
{
    my ($self) = @_;

    $self->kill_it('QUIT');
    File::Path::remove_tree($self->{base}) if !$self->{keep_base};
}

sub stop_all { $_->stop for splice @All }

1;
