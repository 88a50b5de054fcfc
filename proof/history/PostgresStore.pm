# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One PostgreSQL, and what is common to all that have one.  Its psql goes by a
# unix socket, which no fault of the network cuts.

package PostgresStore;

use strict;
use warnings;
use parent 'Store';
use Time::HiRes qw(time);

use IdempotencyTest::Postgres;
use RedisStore ();


use constant TIMEOUT => 0.5;

# Under "durable commits" a lock is on the disk within three turns of the WAL
# writer, 0.2 s each

use constant FLUSHED => 1;


sub start
{
    my $self = shift;

    $self->{node} = $self->server($self->{network}->servers);
    $self->{node}->spawn;
}

# a server that listens there, and has not begun

sub server
{
    my ($self, $address, %o) = @_;
    my $node = IdempotencyTest::Postgres->start(%o, lazy => 1, options => [ "listen_addresses=$address" ]);

    open my $hba, '>>', "$node->{dir}/pg_hba.conf" or die $!;
    print $hba "host all all 0.0.0.0/0 trust\n";
    close $hba;

    return $node;
}

sub stop { IdempotencyTest::Postgres::stop_all() }

sub wants_postgres { 1 }
sub hosts_of { my ($self, $i, @hosts) = @_; return @hosts }
sub which { 'shared' }
sub outboxes { 'shared' }

sub can_cut { $_[0]{network}->can_cut }
sub nodes { $_[0]{node} }
sub masters { $_[0]{node} }
sub acknowledged { 1 }
sub loses_responses { 0 }

# a lock under hold is as durable as a commit

sub keeps_lock { my ($self, $op, $age) = @_; return $op->{policy} eq 'hold' || $age > FLUSHED }


sub stores
{
    my ($self, $host) = @_;

    return $self->block('shared', $self->place($host));
}

sub block
{
    my ($self, $name, $place) = @_;
    my $ms = TIMEOUT * 1000;

    return <<"";
    idempotency_store $name postgres {
        $place
        timeout          ${ms}ms;
        connect_timeout  ${ms}ms;
    }

}

sub place { my ($self, $host) = @_; return 'server ' . $self->{network}->way($host, $self->{node}{port}) . ';' }


sub faults
{
    my $self = shift;
    my $some = sub { my ($do) = @_; sub { my ($s, @d) = @_; $self->$do($s, $self->masters, @d) } };

    return (
        [ 3, 'server frozen', $some->('freeze') ],
        [ 2, 'server restarted', $some->('restart') ],
        [ 3, 'server crashed, restarted', $some->('crash') ],
        [ 2, 'server process killed', $some->('kill_process') ],
    );
}

sub answers
{
    my $node = pop;

    return $node->psql(db => 'postgres', user => 'postgres', sql => 'SELECT pg_is_in_recovery()') && $node->{said} eq 'f';
}

sub freeze
{
    my ($self, $s, $node, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $node->pause; RedisStore::for_a_while(@d) },
            sub { $s->lifts($away); $node->resume; 0 },
            sub { answers($node) or return 'again'; $s->back($away) });
}


# in order: what it had answered is on the disk then, locks as well

sub restart
{
    my ($self, $s, $node, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $node->kill_it('INT'); 0.7 * $d[1] },
            sub { $s->lifts($away); $node->launch; 0 },
            sub { answers($node) or return 'again'; $s->back($away) });
}

sub crash
{
    my ($self, $s, $node, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $node->kill_it('KILL'); 0.7 * $d[1] },
            sub { $s->lifts($away); $node->launch; 0 },
            sub { answers($node) or return 'again'; $self->recovered($s, $away, $node) });
}


# one of its processes: the server ends all of them, recovers, and goes on

sub kill_process
{
    my ($self, $s, $node, @d) = @_;
    my $away = $s->outage(shard => 0);
    my $pid;

    return (sub { $pid = $node->sql("SELECT pid FROM pg_stat_activity WHERE usename = 'nginx' ORDER BY pid LIMIT 1");
                  $s->away($away);
                  kill KILL => $pid if $pid;
                  0.05 },
            sub { $pid && kill(0 => $pid) ? 'again' : 0 },
            sub { answers($node) or return 'again'; $self->recovered($s, $away, $node) });
}

sub recovered
{
    my ($self, $s, $away, $node) = @_;

    $s->failover(shard => 0, since => $away->{since}, has => $self->responses($node), mute => 9e9, what => 'crash');
    return $s->back($away);
}


sub heal
{
    my $self = shift;

    for my $node ($self->nodes) {
        $node->resume if $node->{paused};
        $node->spawn if $node->{stopped};
    }
}


sub locks
{
    my $self = shift;
    my @locks;

    for my $node ($self->masters) {
        push @locks, map { [ split /\|/ ] } split /\n/, $node->sql(<<'_SQL_');
            SELECT encode(id, 'hex'), round(1000 * extract(epoch FROM lease_until - clock_timestamp())), 0, hold::int
              FROM idempotency.idempotency_keys WHERE state = 1
_SQL_
    }

    return @locks;
}


# which executions that server has the responses of: operation => run

sub responses
{
    my ($self, $node) = @_;

    $node->psql(user => 'postgres', sql => <<'_SQL_') or return {};
        SELECT DISTINCT substring(encode(substring(response FROM 1 FOR 1200), 'escape') FROM 'run [0-9]+ of op[0-9]+')
          FROM idempotency.idempotency_keys WHERE response IS NOT NULL
_SQL_

    my %run = map { /^run (\d+) of (op\d+)/ ? ($2 => $1) : () } split /\n/, $node->{said};

    return \%run;
}


1;
