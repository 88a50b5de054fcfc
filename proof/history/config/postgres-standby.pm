# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A PostgreSQL with a synchronous standby, which is promoted.  The primary that
# was is fenced, as whoever promotes has to see to: it is killed first, and comes
# back as the standby of the other one.

package config::postgres_standby;

use strict;
use warnings;
use parent 'PostgresStore';
use File::Path qw(remove_tree);
use POSIX ();
use Time::HiRes qw(time);

use IdempotencyTest::Postgres;


sub start
{
    my $self = shift;

    $self->SUPER::start;
    $self->{standby} = $self->server($self->{network}->servers, from => $self->{node});
    $self->{standby}->launch;

    Site::wait_for(sub { $self->streams }, 60) or die "the standby does not follow\n";
    $self->await_standby('*');
}

sub nodes { @{ $_[0] }{qw(node standby)} }
sub found_within { 2 }

# one of two servers is past any proxy

sub can_cut { $_[0]{network}{own} }

sub place
{
    my ($self, $host) = @_;
    my $address = $self->{network}->servers;

    return 'server ' . join(' ', map { "$address:$_->{port}" } sort { $a->{port} <=> $b->{port} } $self->nodes) . ';';
}

sub streams
{
    my $node = $_[0]{node};

    return $node->psql(db => 'postgres', user => 'postgres',
                       sql => "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") && $node->{said} eq '1';
}

# the standbys that commits wait for; the file is copied with the others

sub await_standby
{
    my ($self, $names) = @_;
    my $node = $self->{node};

    $node->sql($_, db => 'postgres')
        for "ALTER SYSTEM SET synchronous_standby_names = '$names'", 'SELECT pg_reload_conf()';

    return 0;
}


sub faults
{
    my $self = shift;
    my $some = sub { my ($do) = @_; sub { my ($s, @d) = @_; $self->$do($s, @d) } };

    return (
        [ 2, 'server frozen', sub { my ($s, @d) = @_; $self->freeze($s, $self->{node}, @d) } ],
        [ 1, 'server crashed, restarted', $some->('crash_primary') ],
        [ 3, 'failover: primary killed', $some->('kill_primary') ],
        [ 2, 'failover: primary frozen, killed', $some->('freeze_primary') ],
        [ 2, 'failover, planned', $some->('switch_over') ],
        [ 2, 'standby killed, restarted', $some->('restart_standby') ],
    );
}

sub in_step { my $self = shift; return sub { $self->streams ? 0 : 'again' } }


# it answers before the standby has found it, and commits wait for that

sub crash_primary
{
    my ($self, $s, @d) = @_;
    my @steps = $self->crash($s, $self->{node}, @d);

    return (@steps[0 .. $#steps - 1], sub { $self->answers($self->{node}) ? 0 : 'again' }, $self->in_step, $steps[-1]);
}

sub kill_primary
{
    my ($self, $s, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $self->{node}->kill_it('KILL'); 0.5 * $d[0] }, $self->promote($s, $away, 1, @d));
}

# to be killed it goes on for a moment, and answers what it can

sub freeze_primary
{
    my ($self, $s, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $self->{node}->pause; 0.2 + 2 * $d[0] },
            sub { $away->{mute} = time - ($away->{since} || 0); $self->{node}->kill_it('KILL'); 0 }, $self->promote($s, $away, 1, @d));
}

# it leaves when the standby has all of it: nothing is lost, no lock either

sub switch_over
{
    my ($self, $s, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $self->{node}->kill_it('INT'); 0 }, $self->promote($s, $away, 0, @d));
}


sub promote
{
    my ($self, $s, $away, $loses, @d) = @_;
    my ($old, $new, $copy);

    return (sub { ($old, $new) = $self->nodes;
                  $s->lifts($away);
                  $new->sql('SELECT pg_promote(false)', db => 'postgres'); 0 },
            sub { $self->answers($new) or return 'again';
                  @$self{qw(node standby)} = ($new, $old);
                  $s->failover(shard => 0, since => $away->{since}, has => $self->responses($new),
                                mute => $away->{mute} || 9e9) if $loses;
                  $s->back($away);
                  1 + 2 * $d[1] },
            sub { remove_tree($old->{dir}); $copy = $self->copy($old, $new); 0 },
            sub { waitpid($copy, POSIX::WNOHANG()) ? 0 : 'again' },
            sub { $old->launch; 0 },
            $self->in_step,
            sub { $self->await_standby('*') });
}

# beside all that goes on

sub copy
{
    my ($self, $to, $from) = @_;
    my $pid = fork;

    return $pid if $pid;

    POSIX::_exit($to->as_user(IdempotencyTest::Postgres::bin('pg_basebackup'), '-h', $from->{base}, '-p', $from->{port},
                              '-U', 'postgres', '-R', '-X', 'stream', '-c', 'fast', '-D', $to->{dir},
                              '-d', 'application_name=standby'));
}


# commits wait for it meanwhile, and no timeout of the server ends that

sub restart_standby
{
    my ($self, $s, @d) = @_;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $self->{standby}->kill_it('KILL'); 0.2 + 2 * $d[0] },
            sub { $s->lifts($away); $self->{standby}->launch; 0 },
            $self->in_step,
            sub { $s->back($away) });
}


return __PACKAGE__;
