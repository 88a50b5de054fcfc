# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A master and two replicas, with three sentinels.

package config::sentinel;

use strict;
use warnings;
use parent 'RedisStore';
use Time::HiRes qw(time);

use IdempotencyTest::Sentinel;


sub replicas { 0 }

sub start
{
    my $self = shift;

    $self->{set} = IdempotencyTest::Sentinel->start(
        host => $self->{network}->servers, dir => "$self->{dir}/node", options => \@RedisStore::options);
}

sub nodes { $_[0]{set}->nodes }
sub masters { $_[0]{set}->master }
sub heal { $_[0]{set}->heal }

sub place
{
    my ($self, $host) = @_;
    return 'sentinel ' . join(' ', $self->{set}->servers) . ' master=main;';
}

sub layers { my $n = $_[0]->replicas; return $n ? "replicas $n timeout=300ms;" : '' }
sub acknowledged { $_[0]->replicas >= 2 }
sub found_within { 2 }


# a sentinel has to rest between two failovers

sub faults
{
    my $self = shift;
    my $some = sub { my ($do) = @_; sub { my ($s, @d) = @_; $self->$do($s, @d) } };

    return (
        [ 4, 'server frozen for a moment', $some->('freeze_briefly') ],
        [ 2, 'failover: master killed', $some->('kill_master') ],
        [ 2, 'failover: master frozen', $some->('freeze_master') ],
        [ 2, 'failover, planned', $some->('step_down') ],
        [ 2, 'replica killed, restarted', $some->('restart_replica') ],
    );
}

sub freeze_briefly
{
    my ($self, $s, @d) = @_;

    $d[0] = 0;
    $d[1] *= 0.3;

    return $self->freeze($s, $self->{set}->master, 0, @d);
}

sub role { my $node = shift; return (eval { $node->command('ROLE') } || [ '' ])->[0] }

# another master, by its own word; what the sentinels say

sub other { my ($self, $old) = @_; return grep { $_ != $old && $_->is_up && role($_) eq 'master' } $self->nodes }

sub named
{
    my ($self, $new) = @_;

    return grep { my $s = $_; my $at = eval { $s->command('SENTINEL', 'get-master-addr-by-name', 'main') };
                  $at && $at->[1] == $new->{port} } $self->{set}->sentinels;
}


# Promoted; told by the first sentinel; $then; told by all, the old one a
# replica, and the other one, too.  Then the sentinels have to rest.

sub fail_over
{
    my ($self, $s, $old, $away, $then) = @_;
    my ($new, $over, $since);

    return (
        sub { $since ||= time;
              ($new) = $self->other($old) or return 'again';
              $over = $s->failover(shard => 0, since => $away->{since} || $since, has => $self->responses($new),
                                   mute => $away->{since} ? 9e9 : 0); 0 },
        sub { $self->named($new) or return 'again';
              $s->known($over);
              $s->back($away); 0 },
        $then->(sub { $new }, sub { $over }),
        sub { $self->named($new) == 3 && role($old) eq 'slave' or return 'again';
              $s->say('all sentinels tell, and the old master is a replica'); 0 },
        sub { $self->{set}->not_ready('soon') ? 'again' : $s->rest(9) });
}


# starts again, as a replica of that one

sub follow
{
    my ($self, $node, $master) = @_;
    my @options = @{ $node->{options} };

    splice @options, -2 if ($options[-2] || '') eq '--replicaof';
    $node->{options} = [ @options, '--replicaof', "$self->{set}{host} $master->{port}" ];
    $node->launch;
}

sub kill_master
{
    my ($self, $s, @d) = @_;
    my $old = $self->{set}->master;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $old->kill_it('KILL'); 0 },
            $self->fail_over($s, $old, $away, sub { my $new = shift;
                (sub { 0.5 + 2 * $d[1] },
                 sub { $self->follow($old, $new->()); 0 },
                 sub { $self->answers($old) ? 0 : 'again' }) }));
}

sub freeze_master
{
    my ($self, $s, @d) = @_;
    my $old = $self->{set}->master;
    my $away = $s->outage(shard => 0);

    return (sub { $s->away($away); $old->pause; 0 },
            $self->fail_over($s, $old, $away, sub { my ($new, $over) = @_;
                (sub { $d[1] },
                 sub { $over->()->{mute} = time - $over->()->{since}; $old->resume; 0 }) }));
}


# both are masters for a while, and what the old one is told is lost

sub step_down
{
    my ($self, $s, @d) = @_;
    my $old = $self->{set}->master;
    my $sentinel = ($self->{set}->sentinels)[ int 3 * $d[1] ];

    return (sub { eval { $sentinel->command('SENTINEL', 'FAILOVER', 'main') } ? 0 : 'again' },
            $self->fail_over($s, $old, $s->outage(shard => 0), sub { () }));
}

sub restart_replica
{
    my ($self, $s, @d) = @_;
    my $replica = $self->{set}->replica or return;

    return (sub { $replica->kill_it('KILL'); 0.2 + $d[0] },
            sub { my $master = $self->{set}->master or return 'again';
                  $self->follow($replica, $master); 0 },
            sub { $self->answers($replica) ? 0 : 'again' });
}


return __PACKAGE__;
