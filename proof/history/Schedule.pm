# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What goes wrong, drawn from the seed before anything runs, in two lanes that
# go on at the same time: what happens to hosts, and what happens to the store
# and to the network.  And the account of it, which is all the evidence that the
# judge takes for an excuse.
#
# A fault is a list of steps.  Each returns after how many seconds the next one
# is due, or "again": it is asked once more, a little later.

package Schedule;

use strict;
use warnings;
use Time::HiRes qw(time);


use constant STUCK => 150;              # s until a step has failed

my @journal = qw(kills deaths reloads freezes outages failovers apps);


# new(seed, seconds, lease, hosts, store, network, count, log)

sub new
{
    my ($class, %o) = @_;

    my $self = bless { %o, moves => {}, (map { $_ => [] } @journal) }, $class;

    open $self->{file}, '>', $o{log} or die $!;
    $self->{file}->autoflush;

    my @host = $self->host_faults;
    my @store = ($o{store}->can_cut ? $self->network_faults : (), $o{store}->faults);

    srand $o{seed};
    $self->{lanes} = [ map { $self->draw(@$_) } [ 2, @host ], @store ? [ 1.5, @store ] : () ];

    return $self;
}


# as many as there is time for, if none takes any

sub draw
{
    my ($self, $pause, @faults) = @_;
    my ($sum, @drawn) = (0);

    $sum += $_->[0] for @faults;

    for (0 .. $self->{seconds} / 0.1) {
        my $dice = rand $sum;
        my $fault;

        for (@faults) { $fault = $_; last if ($dice -= $_->[0]) < 0 }
        push @drawn, { fault => $fault, pause => 0.1 + rand $pause, dice => [ map { rand } 1 .. 4 ] };
    }

    return { todo => \@drawn, steps => [], at => 0 };
}


# whatever is due; $more: new ones may begin.  Whether anything goes on.

sub turn
{
    my ($self, $more) = @_;
    my $busy = 0;

    for my $lane (@{ $self->{lanes} }) {
        $busy = 1 if @{ $lane->{steps} };
        next if time < $lane->{at};

        if (!@{ $lane->{steps} }) {
            next if !$more;

            my $next = shift @{ $lane->{todo} } or next;

            if (!$lane->{begun}++) {
                $lane->{at} = time + $next->{pause};
                unshift @{ $lane->{todo} }, $next;
                next;
            }

            my ($weight, $name, $do) = @{ $next->{fault} };
            my @steps = $do->($self, @{ $next->{dice} });

            $lane->{at} = time + $next->{pause} if !@steps;
            next if !@steps;

            $self->{count}($name);
            $self->say($name);
            @$lane{qw(steps name pause since)} = (\@steps, $name, $next->{pause}, time);
        }

        my $after = $lane->{steps}[0]();

        if ($after && $after eq 'again') {
            die "$lane->{name}: does not come to its end\n" if time > $lane->{since} + STUCK;
            $lane->{at} = time + 0.02;
            next;
        }

        shift @{ $lane->{steps} };
        $lane->{since} = time;
        $lane->{at} = time + ($after || 0);

        if (!@{ $lane->{steps} }) {
            $self->say("$lane->{name}: over");
            $lane->{at} += $lane->{pause};
        }
    }

    return $busy;
}

sub say { my ($self, $what) = @_; printf { $self->{file} } "%.3f %s\n", time - ($self->{start} || time), $what }


# --- the account

# a part of the store, or all of it, is out of reach of one host, or of all

sub outage { my ($self, %o) = @_; return { host => undef, shard => undef, %o } }

sub away
{
    my ($self, $o) = @_;

    $o->{since} = time;
    push @{ $self->{outages} }, $o;
    $self->say(sprintf '%s is away%s', defined $o->{shard} ? "part $o->{shard}" : 'the store',
               $o->{host} ? " for $o->{host}" : '');
    return $o;
}

# from now on it may answer again; back() when it does, by its own word

sub lifts { my ($self, $o) = @_; $o->{lifts} = time }

sub back
{
    my ($self, $o) = @_;

    return 0 if $o->{until} || !$o->{since};
    $o->{until} = time;
    $o->{lifts} ||= $o->{until};
    $self->say(sprintf 'it was away for %.2f s', $o->{until} - $o->{since});

    return 0;
}

# another master from now on; "has": the executions whose response it has;
# "mute": for how long the old one had answered nothing, since the fault

sub failover
{
    my ($self, %o) = @_;

    push @{ $self->{failovers} }, { mute => 0, %o, at => time };
    $self->say(sprintf 'another master after %.2f s, with %d responses', time - $o{since}, scalar keys %{ $o{has} });

    return $self->{failovers}[-1];
}

sub known { my ($self, $over) = @_; $over->{known} = time; $self->say('it is told'); return 0 }

# slots of one part went to another one, and back

sub moved { my ($self, $from, $to) = @_; $self->{moves}{$from}{$to} = 1 }

# a pause that is not needed when all is over

sub rest { my ($self, $for) = @_; return $self->{ending} ? 0 : $for }


# --- hosts

sub host_faults
{
    my $self = shift;
    my @all = $self->{hosts}->names;
    my $some = sub { $all[ @all * $_[0] ] };

    return (
        [ 5, 'worker kill -9', sub { my ($s, @d) = @_; $s->kill_worker($some->($d[0]), $d[1]) } ],
        [ 2, 'worker frozen', sub { my ($s, @d) = @_; $s->freeze_worker($some->($d[0]), @d[1 .. 3]) } ],
        [ 3, 'reload', sub { my ($s, @d) = @_; $s->reload($some->($d[0])) } ],
        [ 2, 'host dead, back', sub { my ($s, @d) = @_; $s->host_dies($some->($d[0]), $d[1]) } ],
    );
}

sub kill_worker
{
    my ($self, $host, $dice) = @_;

    return sub {
        my @workers = $self->{hosts}->workers($host) or return 0;
        my $worker = $workers[ @workers * $dice ];
        my $at = time;

        kill KILL => $worker;
        push @{ $self->{kills} }, { at => $at, from => $host, pid => $worker };
        $self->say("$host: worker $worker");
        return 0;
    };
}

sub freeze_worker
{
    my ($self, $host, @d) = @_;
    my $freeze;

    return (sub {
        my @workers = $self->{hosts}->workers($host) or return 0;

        $freeze = { since => time, from => $host, pid => $workers[ @workers * $d[0] ] };
        kill STOP => $freeze->{pid};
        push @{ $self->{freezes} }, $freeze;
        $self->say("$host: worker $freeze->{pid}");
        return $d[1] < 0.6 ? 0.1 + $d[2] : $self->{lease} * (1.2 + $d[2]);
    }, sub {
        return 0 if !$freeze;
        kill CONT => $freeze->{pid};
        $freeze->{until} = time;
        return 0;
    });
}

sub reload
{
    my ($self, $host) = @_;

    return sub {
        my $pid = $self->{hosts}{pid}{$host} or return 0;

        push @{ $self->{reloads} }, { at => time, from => $host };
        $self->say($host);
        kill HUP => $pid;
        return 0;
    };
}

sub host_dies
{
    my ($self, $host, $dice) = @_;
    my $death;

    return (sub { $death = { at => time, from => $host };
                  $self->{hosts}->crash($host);
                  push @{ $self->{deaths} }, $death;
                  $self->say($host);
                  return 0.1 + 2 * $dice },
            sub { $self->{hosts}->launch($host); return 0 },
            sub { $self->{hosts}->is_up($host) or return 'again'; $death->{until} = time; return 0 });
}


# --- the network

sub network_faults
{
    my $self = shift;
    my @all = $self->{hosts}->names;

    my $cut = sub {
        my ($how) = @_;

        return sub {
            my ($s, @d) = @_;
            my @hosts = $d[2] < 0.3 ? @all : $all[ @all * $d[3] ];
            my @out = map { $s->outage(host => $_) } @hosts;

            return (sub { $s->away($_) for @out;
                          $s->{network}->$how($_) for @hosts;
                          return $d[0] < 0.6 ? 0.1 + 1.5 * $d[1] : 2 + 5 * $d[1] },
                    sub { $s->lifts($_) for @out;
                          $s->{network}->mend($_) for @hosts;
                          $s->back($_) for @out;
                          return 0 });
        };
    };

    return ([ 3, 'network silent', $cut->('silent') ], [ 3, 'network refuses', $cut->('refuse') ]);
}


1;
