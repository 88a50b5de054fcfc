# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A cluster of three masters with a replica each, resharded and failed over.

package config::cluster;

use strict;
use warnings;
use parent 'RedisStore';

use IdempotencyTest::Cluster;


sub replicas { 0 }

sub start
{
    my $self = shift;

    $self->{cluster} = IdempotencyTest::Cluster->start(
        host => $self->{network}->servers, dir => "$self->{dir}/node", options => \@RedisStore::options);
}

sub nodes { $_[0]{cluster}->nodes }
sub masters { $_[0]{cluster}->masters }
sub heal { $_[0]{cluster}->heal }

sub place { my ($self, $host) = @_; return "cluster on;\n        server " . join(' ', $self->{cluster}->servers) . ';' }
sub layers { my $n = $_[0]->replicas; return $n ? "replicas $n timeout=300ms;" : '' }
sub acknowledged { $_[0]->replicas }

# the map is asked for again, and then what waits

sub found_within { 2 }


# the third of the slots in which it was at the beginning

sub shard
{
    my ($self, $record) = @_;
    return int($self->{cluster}->slot("idempotency:$record") / (IdempotencyTest::Cluster::SLOTS / 3));
}

sub master
{
    my ($self, $shard) = @_;
    return ($self->{cluster}->masters)[$shard];
}


sub faults
{
    my $self = shift;
    my $some = sub { my ($do) = @_; sub { my ($s, @d) = @_; $self->$do($s, int 3 * $d[2], @d) } };

    return (
        [ 2, 'server frozen for a moment', $some->('freeze_briefly') ],
        [ 2, 'server killed, restarted', $some->('restart_master') ],
        [ 2, 'failover: master killed', $some->('kill_master') ],
        [ 2, 'failover: master frozen', $some->('freeze_master') ],
        [ 2, 'failover, planned', $some->('step_down') ],
        [ 2, 'slot moved', $some->('move_slot') ],
        [ 1, 'replica killed, restarted', $some->('restart_replica') ],
    );
}

sub ready { my $self = shift; return $self->{cluster}->not_ready ? 'again' : 0 }


# shorter than what the others take for dead

sub freeze_briefly
{
    my ($self, $s, $shard, @d) = @_;
    my $master = $self->master($shard);

    $d[0] = 0;
    $d[1] *= 0.3;

    return ($self->freeze($s, $master, $shard, @d), sub { $self->ready });
}

sub restart_master
{
    my ($self, $s, $shard, @d) = @_;
    my $master = $self->master($shard);
    my $replica = $self->{cluster}->replica_of($master);

    $d[1] *= 0.3;

    # late on a busy machine, it is a failover

    my @steps = $self->restart($s, $master, $shard, @d);
    my $back = pop @steps;
    my $since = Time::HiRes::time;
    my $over;

    return (@steps,
            sub { $over ||= $self->note_failover($s, $shard, $since, $replica) if role($replica) eq 'master'; 0 },
            $back, sub { $self->ready },
            sub { $self->note_failover($s, $shard, $since, $replica) if !$over && role($replica) eq 'master'; 0 });
}

sub role { my $node = shift; return (eval { $node->command('INFO', 'replication') } || '') =~ /role:(\w+)/ ? $1 : '' }

sub note_failover
{
    my ($self, $s, $shard, $since, $new, $mute) = @_;

    return $s->failover(shard => $shard, since => $since, has => $self->responses($new), mute => $mute || 0);
}


sub kill_master
{
    my ($self, $s, $shard, @d) = @_;
    my $master = $self->master($shard);
    my $replica = $self->{cluster}->replica_of($master) or return;
    my $away = $s->outage(shard => $shard);

    return (sub { $s->away($away); $master->kill_it('KILL'); 0 },
            sub { role($replica) eq 'master' or return 'again';
                  $self->note_failover($s, $shard, $away->{since}, $replica, 9e9); 0 },
            sub { $self->{cluster}->node_of($shard * 5461 + 100) == $replica or return 'again';
                  $s->back($away); 0.5 + 2 * $d[1] },
            sub { $master->launch; 0 },
            sub { $self->answers($master) ? 0 : 'again' },
            sub { $self->ready });
}

sub freeze_master
{
    my ($self, $s, $shard, @d) = @_;
    my $master = $self->master($shard);
    my $replica = $self->{cluster}->replica_of($master) or return;
    my $away = $s->outage(shard => $shard);
    my $over;

    return (sub { $s->away($away); $master->pause; 0 },
            sub { role($replica) eq 'master' or return 'again';
                  $over = $self->note_failover($s, $shard, $away->{since}, $replica, 9e9); $s->back($away); $d[1] },
            sub { $over->{mute} = Time::HiRes::time - $over->{since}; $master->resume; 0 },
            sub { role($master) eq 'slave' ? 0 : 'again' },
            sub { $self->ready });
}


# pauses by itself: nothing is excused by it

sub step_down
{
    my ($self, $s, $shard, @d) = @_;
    my $master = $self->master($shard);
    my $replica = $self->{cluster}->replica_of($master) or return;

    return (sub { eval { $replica->command('CLUSTER', 'FAILOVER') } ? 0 : 'again' },
            sub { role($replica) eq 'master' ? 0 : 'again' },
            sub { $self->ready });
}

sub move_slot
{
    my ($self, $s, $shard, @d) = @_;
    my ($from, $to) = ($self->master($shard), $self->master(($shard + 1) % 3));
    my $key = $from->command('RANDOMKEY') or return;
    my $slot = $self->{cluster}->slot($key);

    $s->moved($shard, ($shard + 1) % 3);

    # there and back, so that each third stays where it is

    my $cluster = $self->{cluster};
    my @move = map { my ($a, $b) = @$_;
        (sub { $cluster->begin_move($slot, $a, $b); 0.2 + $d[0] },
         sub { $cluster->move_keys($slot, $a, $b); 0.2 * $d[1] },
         sub { $cluster->end_move($slot, $a, $b); 0.3 + $d[1] }) } [ $from, $to ], [ $to, $from ];

    return (@move, sub { $self->ready });
}

sub restart_replica
{
    my ($self, $s, $shard, @d) = @_;
    my $replica = $self->{cluster}->replica_of($self->master($shard)) or return;

    return (sub { $replica->kill_it('KILL'); 0.2 + $d[0] },
            sub { $replica->launch; 0 },
            sub { $self->answers($replica) ? 0 : 'again' },
            sub { $self->ready });
}


return __PACKAGE__;
