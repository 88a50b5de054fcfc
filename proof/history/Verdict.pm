# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Holds what happened to each operation against the promises, as the torture's
# judge does, whose excuses these are, too: a status that is not kept, an
# unknown outcome.  The others are taken from the account of the faults, not
# from what nginx says, for the very operation, its host and its part of the
# store:
#
#   unknown outcome      also where nginx waited for as long as it does, counted
#                        from its own begin: the application was late
#   worker starved       its worker was ready to run and had no processor, by the
#                        kernel's account, for what a renewal leaves of a lease
#   holder died          its worker or its host was killed between its begin and
#                        the end of its commit; and it had renewed until then
#   kept commit lost     its host died while what it kept could not be written
#   store out of reach   from before its commit until it was taken over, or less
#   or worker frozen     than found_within() before that; for what a renewal
#                        leaves of a lease, at least; and not to a host that has
#                        its response itself
#   lost in a failover   what the new master had when it was promoted lacks its
#   or a crash           response; it ended (or its lock was taken) at most a
#                        second before the fault, or before the change was told
#   fallback             one of both ran in a ledger that the other did not ask
#   lost with its host   the embedded store, or a ledger
#
# All but the last three take a lease, and do not happen under hold.  A second
# execution that waited for the first is not excused by a lock that was lost.

package Verdict;

use strict;
use warnings;
use parent 'Judge';
use Digest::MD5 qw(md5_hex);

use App;


use constant SLACK => 0.3;
use constant WAITED => 0.2;             # s, from the client's request to its begin


# --- the account

# From when to when that host, or that worker of it, did not reach that record;
# and until when it surely did not: what made it so was not taken back before.
# What lies less than it takes to be found apart is one; or $each is.

sub out
{
    my ($self, $host, $record, $pid, $each) = @_;
    my $s = $self->{faults};
    my $shard = $self->{store}->shard($record);
    my $key = join ' ', $host, $shard, $pid || 0, $each || 0;

    return @{ $self->{out}{$key} } if $self->{out}{$key};

    my %of = ($shard => 1, %{ $s->{moves}{$shard} || {} });

    my @out = grep { (!$_->{host} || $_->{host} eq $host) && (!defined $_->{shard} || $of{ $_->{shard} }) }
              @{ $s->{outages} };
    push @out, grep { $_->{from} eq $host && $_->{pid} == $pid } @{ $s->{freezes} } if $pid;

    my @merged;

    for my $o (sort { $a->{since} <=> $b->{since} } @out) {
        my $until = $o->{until} || 9e9;
        my $lifts = $o->{lifts} || $until;

        if (@merged && $o->{since} <= $merged[-1][1] + ($each ? 0 : $self->found($merged[-1][1]))) {
            $merged[-1][1] = $until if $until > $merged[-1][1];
            $merged[-1][2] = $lifts if $lifts > $merged[-1][2];

        } else {
            push @merged, [ $o->{since}, $until, $lifts ];
        }
    }

    $self->{out}{$key} = \@merged;

    return @merged;
}

sub found
{
    my ($self, $since) = @_;
    my $within = $self->{store}->found_within;

    return $within + SLACK + $self->busy($since, $since + $within) + $self->lag($since, $since + $within + 1);
}

# how long requests took from their begin to the application, at most: a machine
# that does not keep up after an outage is no fault of what is to be proved

sub lag
{
    my ($self, $since, $until) = @_;

    if (!$self->{lag}) {
        my %frozen = map { ("$_->{from} $_->{pid}" => 1) } @{ $self->{faults}{freezes} };

        for my $run (map { @$_ } values %{ App::history("$self->{site}{dir}/executions") }) {
            my $lag = $run->{time} - $run->{begin};
            my $second = int $run->{begin};

            next if $frozen{"$run->{from} $run->{pid}"};
            $self->{lag}{$second} = $lag if $lag > ($self->{lag}{$second} || 0);
        }
    }

    my $most = 0;

    for my $second (int $since .. int $until) {
        my $lag = $self->{lag}{$second} || 0;
        $most = $lag if $lag > $most;
    }

    return $most;
}

# The last outage in which that host was then, or of which it had not recovered.
# A worker that was frozen comes back with connections that broke meanwhile, and
# with answers that are overdue: they open the breaker of its host.

sub away
{
    my ($self, $host, $record, $at) = @_;
    my $then = sub { $_[0] <= $at + SLACK && $at <= $_[1] + $self->found($_[1]) };

    my @out = grep { $then->(@$_) } $self->out($host, $record, 0, 'each');
    return $out[-1] if @out;

    my ($thawed) = grep { $_->{until} && $_->{from} eq $host && $then->($_->{until}, $_->{until}) }
                   @{ $self->{faults}{freezes} };

    return $thawed ? [ ($thawed->{until}) x 3 ] : undef;
}

sub late { my ($self, $at) = @_; return SLACK + $self->{timeout} + $self->busy($at, $at + 2) }


# --- what excuses

sub at_once
{
    my ($self, $why) = @_;

    return $why =~ /^(?:lost|fallback)/ || $self->SUPER::at_once($why);
}

sub why
{
    my ($self, $i, $op, $before, $this) = @_;

    $self->count('executions that overlap') if $this->{begin} < ($before->{end} || 9e9);

    return 'status not kept' if ($before->{how} || '') eq '503';

    # what takes a lease comes first, where one has passed

    my @excuses = qw(lost_with_host fallback lost);
    my @with_lease = qw(without_outcome holder_died kept_lost out_of_reach starved);

    unshift @excuses, @with_lease
        if $op->{policy} ne 'hold' && $this->{begin} - $before->{begin} >= $self->{lease};

    for my $excuse (@excuses, @with_lease) {
        my $why = $self->$excuse($i, $op, $before, $this);
        return $why if $why;
    }

    return 'machine stood still for a lease'
        if $self->{stalls}->longest($before->{begin}, $this->{begin}) >= $self->{lease} * 2 / 3;

    return undef;
}


# ... or its worker was frozen for longer than it waits for an answer

sub without_outcome
{
    my ($self, $i, $op, $before) = @_;

    return 'unknown outcome' if $self->no_outcome($before);
    return 'unknown outcome'
        if grep { $_->{from} eq $before->{from} && $_->{pid} == $before->{pid}
                  && $_->{since} <= ($before->{end} ? $before->{end} + 1 + $self->late($before->{end}) : 9e9)
                  && ($_->{until} || 9e9) >= $before->{time} + $self->{read} - SLACK } @{ $self->{faults}{freezes} };

    return undef;
}

sub died
{
    my ($self, $host, $since, $until) = @_;
    return grep { $_->{from} eq $host && $_->{at} >= $since && $_->{at} <= $until } @{ $self->{faults}{deaths} };
}

sub lost_with_host
{
    my ($self, $i, $op, $before, $this) = @_;

    return $self->{store}->lost_with_host
           && $self->died($before->{from}, $before->{begin} - SLACK, $this->{begin}) ? 'lost with its host' : undef;
}


sub holder_died
{
    my ($self, $i, $op, $before, $this) = @_;
    my $end = $before->{end} || $before->{time} + $self->{read};
    my $s = $self->{faults};

    for my $kill (@{ $s->{deaths} }, grep { $_->{pid} == $before->{pid} } @{ $s->{kills} }) {
        next if $kill->{from} ne $before->{from};
        next if $kill->{at} < $before->{begin} - SLACK || $kill->{at} > $end + $self->late($end);
        next if grep { $_->{run} == $before->{run} && $_->{to} < $kill->{at} } @{ $self->{told}{$i} };

        # it was renewed a third of a lease before, if that was possible

        next if $this->{begin} < $kill->{at} + $self->{lease} * 2 / 3 - $self->late($kill->{at})
                && !grep { $_->[0] < $kill->{at} && $_->[1] > $kill->{at} - $self->{lease} }
                    $self->out($before->{from}, $before->{record}, $before->{pid});

        return 'holder died';
    }

    return undef;
}


sub kept_lost
{
    my ($self, $i, $op, $before, $this) = @_;
    my $end = $before->{end} or return;
    my ($o) = grep { $_->[0] <= $end + $self->late($end) && $_->[1] + $self->found($_->[1]) >= $end }
              $self->out($before->{from}, $before->{record}, $before->{pid});

    return $o && $self->died($before->{from}, $end, $o->[1] + $self->found($o->[1])) ? 'kept commit lost' : undef;
}


sub out_of_reach
{
    my ($self, $i, $op, $before, $this) = @_;
    my $end = $before->{end} || $this->{begin};
    my $at = $this->{begin};

    # its own host keeps its response, and knows it, if its worker got that far

    return undef if $this->{from} eq $before->{from} && $end + $self->late($end) < $at
                    && !grep { $_->{from} eq $before->{from} && $_->{pid} == $before->{pid}
                               && $_->{since} <= $end + $self->late($end) && ($_->{until} || 9e9) >= $end }
                        @{ $self->{faults}{freezes} };

    for my $o ($self->out($before->{from}, $before->{record}, $before->{pid})) {
        next if $o->[0] > $end + $self->late($end) || $o->[0] > $at;
        next if $at > $o->[1] + $self->found($o->[1]);
        next if $at < $o->[0] + $self->{lease} * 2 / 3 - $self->late($o->[0]);
        return 'store out of reach';
    }

    return undef;
}


# a master that did not have it took over

sub lost
{
    my ($self, $i, $op, $before, $this) = @_;
    my $shard = $self->{store}->shard($before->{record});
    my $moves = $self->{faults}{moves}{$shard} || {};
    my $end = $before->{end} || 9e9;

    for my $f (@{ $self->{faults}{failovers} }) {
        next if $f->{shard} != $shard && !$moves->{ $f->{shard} };

        my $known = $f->{known} || $f->{at};
        my $told = $known + $self->found($known);

        next if $this->{begin} < $f->{since} - SLACK || ($f->{has}{ $op->{id} } || 0) == $before->{run};
        next if $before->{begin} > $told || $end < $f->{since} - 1 - $self->late($f->{since} - 1);
        next if $self->{store}->keeps_lock($op, $f->{since} - $before->{begin} - $self->busy($f->{since} - 2, $f->{since}));

        # What began while the old master answered nothing began with the new
        # one.  What still ran is locked again once it is told.  What the old one
        # did not answer, or not for its replicas, is written again.

        my $mute = sub { $_[0] > $f->{since} + SLACK && $_[0] < $f->{since} + $f->{mute} - 1 };

        next if $mute->($before->{begin});
        next if $this->{begin} > $told && ($end > $told || $mute->($end) || $self->{store}->acknowledged);

        # what was replayed before was on the disk, and with the standby

        next if !$self->{store}->loses_responses
                && grep { $_->{run} == $before->{run} && $_->{replayed} && $_->{to} < $f->{since} } @{ $self->{told}{$i} };

        my $lost = 'lost in a ' . ($f->{what} || 'failover');

        return "$lost, its response" if $this->{begin} > $end;

        next if grep { $_->{run} == $this->{run} && !$_->{replayed} && $_->{from} < $f->{at}
                       && $_->{from} < $this->{begin} - WAITED } @{ $self->{told}{$i} };

        return "$lost, its lock";
    }

    return undef;
}


# One that begins while its host is cut off runs in the ledger of that.  Another
# host does not see it, save that both were cut off from the store and have one
# ledger.  The same host does; it does not know in its ledger what ran in the store
# before, but has what it kept.  What the store has in the end ran there, and then
# it is the other one that has to have been cut off.

sub fallback
{
    my ($self, $i, $op, $before, $this) = @_;

    return undef if !$self->{store}->has_fallback;

    my ($host, $record) = @$this{qw(from record)};
    my $stored = $self->{stored}{ $op->{id} } || 0;
    my $ours = $stored != $this->{run} && $self->away($host, $record, $this->{begin});
    my $theirs = $self->away($before->{from}, $record, $before->{begin});

    # it began when nothing but the ledger answered

    my $surely = sub { my ($out, $at) = @_; return $out && $at > $out->[0] + SLACK && $at < $out->[2] };

    return undef if $self->{store}->ledger_is_shared
                    && $surely->($ours, $this->{begin}) && $surely->($theirs, $before->{begin});

    return $ours || $stored != $before->{run} && $theirs ? 'fallback, another host' : undef
        if $host ne $before->{from};

    # with its nginx, or what that knew of it

    return 'fallback, the ledger was lost with its host'
        if $theirs && $stored != $before->{run} && $self->died($host, $before->{begin}, $this->{begin});

    return undef if !$ours;

    # a worker that is frozen sees the end when it is let go

    my $end = $before->{end} || 9e9;
    my ($frozen) = grep { $_->{from} eq $host && $_->{pid} == $before->{pid} && $_->{since} <= $end
                          && ($_->{until} || 9e9) > $end } @{ $self->{faults}{freezes} };
    $end = $frozen->{until} || 9e9 if $frozen;

    my $died = $self->holder_died($i, $op, $before, { begin => 9e9 });

    # kept in this nginx, once the store had its time to answer, and not yet written

    return undef if $end > $ours->[0] + SLACK && $end < $ours->[2] && $end + $self->late($end) < $this->{begin} && !$died;
    return 'fallback, ran in the store before' if $stored == $before->{run};

    # in the ledger, which has it; or it was over before and is not in the store

    return undef if $surely->($theirs, $before->{begin});
    return undef if ($before->{how} || '') =~ /^(?:200|404)$/ && $end < $ours->[0] - $self->late($end)
                    && !$self->died($host, $before->{begin}, $this->{begin}) && !$died;

    return 'fallback, ran in the store before';
}


# --- answers

sub note_answer
{
    my ($self, $t, $kind) = @_;
    my $s = $self->{faults};

    if ($t->{status} eq 'gone' && $kind ne 'more') {
        my $fault = grep({ $_->{from} eq $t->{host} && $_->{at} >= $t->{from} - SLACK && $_->{at} <= $t->{to} + SLACK }
                         @{ $s->{kills} })
                    || grep { $_->{from} eq $t->{host} && $_->{at} <= $t->{to} + SLACK
                              && ($_->{until} || 9e9) >= $t->{from} - SLACK } @{ $s->{deaths} };

        if (!$fault) {
            $self->count('requests without an answer');
            $self->broken(sprintf 'op%d: no answer from %s at %.2f, where nobody was killed', $t->{op}, $t->{host},
                          $t->{to} - $self->{start});
        }
    }

    # a worker that is frozen keeps its requests waiting

    my $frozen = grep { $_->{from} eq $t->{host} && $_->{since} <= $t->{to} && ($_->{until} || 9e9) >= $t->{from} }
                 @{ $s->{freezes} };

    $t->{status} = 'left' if $t->{status} eq 'hang' && $frozen;

    my $op = $self->{operation}($t->{op});

    if ($t->{status} =~ /^5/ && $t->{code} eq '-' && !($t->{status} == 504 && $frozen)
        && $op->{what} !~ /^(?:refuse|reset|truncate|timeout)$/
        && !($t->{status} == 504 && $self->waited_out($t, $op)))
    {
        $self->broken(sprintf 'op%d: %s at %.2f', $t->{op}, $t->{status}, $t->{to} - $self->{start});
    }

    $self->SUPER::note_answer($t, $kind);
}

# an execution that it asked for took longer than nginx waits

sub waited_out
{
    my ($self, $t, $op) = @_;

    return grep { $_->{from} eq $t->{host} && $_->{begin} >= $t->{from} - SLACK && $_->{begin} <= $t->{to}
                  && $self->no_outcome($_) } App::executions("$self->{site}{dir}/executions", $op->{id});
}


sub judge
{
    my ($self, $i) = @_;
    my $op = $self->{operation}($i);

    for my $run (App::executions("$self->{site}{dir}/executions", $op->{id})) {
        $self->broken("op$i: run $run->{run} had another body, or key")
            if $run->{body} ne md5_hex($op->{body}) || $run->{key} ne $op->{key};
    }

    $self->SUPER::judge($i);
    $self->judge_refusals($i, $op) if $op->{policy} ne 'hold';
}


# What was stored is replayed from then on, by every host: after a client was
# told of one execution, nobody is told of another, save that a host that is cut
# off tells what it kept, and that a failover or a death lost it.

sub judge_replays
{
    my ($self, $i, $op, @run) = @_;
    my %last;

    for my $t (sort { $a->{to} <=> $b->{to} } grep { $_->{run} } @{ $self->{told}{$i} || [] }) {
        my $run = $run[ $t->{run} - 1 ];

        if (!$run || ($run->{how} || '') !~ /^(200|404|sending)$/) {
            $self->broken("op$i: a replay of run $t->{run}, which the application did not complete") if $t->{replayed};
            next;
        }

        # its own client is told of what was not stored, too

        next if !$t->{replayed} && $self->said('lost|kept|dropped', $run, $t->{host}, $run->{begin}, $t->{to} + 1);
        next if $t->{host} eq $run->{from} && $self->away($t->{host}, $run->{record}, $t->{to});

        my $last = \$last{ $self->{store}->has_fallback ? $t->{host} : '' };

        if ($$last && $$last->{run} != $t->{run} && $$last->{to} < $t->{from}) {
            my @lost = $self->lost_since($run, $$last->{from}, $t, @run);

            $self->count('operations with replays of two executions');
            $self->broken(sprintf 'op%d: told of run %d by %s at %.2f, of run %d by %s at %.2f', $i,
                          $$last->{run}, $$last->{host}, $$last->{to} - $self->{start}, $t->{run}, $t->{host},
                          $t->{from} - $self->{start}) if !@lost;
        }

        $$last = $t if !$$last || $t->{replayed} || $$last->{run} < $t->{run};
    }
}

sub lost_since
{
    my ($self, $run, $since, $t, @all) = @_;
    my $shard = $self->{store}->shard($run->{record});
    my $moves = $self->{faults}{moves}{$shard} || {};

    my @lost = grep { ($_->{shard} == $shard || $moves->{ $_->{shard} }) && $_->{since} <= $t->{to}
                      && ($_->{known} || $_->{at}) + $self->{lease} >= $since }
               $self->{store}->loses_responses ? @{ $self->{faults}{failovers} } : ();

    push @lost, map { $self->died($_, $since - $self->{lease}, $t->{to}) } $t->{host}, $run->{from}
        if $self->{store}->lost_with_host || $self->{store}->has_fallback;

    # one that ran in a ledger is told by that, whatever is in the store

    push @lost, grep { $self->away($_->{from}, $_->{record}, $_->{begin}) } @all if $self->{store}->has_fallback;

    return @lost;
}


# A lock that stands in somebody's way has a holder, or had one less than a
# lease ago: an execution, or a request of which nobody knows how far it came

sub judge_refusals
{
    my ($self, $i, $op) = @_;
    my @told = @{ $self->{told}{$i} };
    my @run = App::executions("$self->{site}{dir}/executions", $op->{id});

    for my $t (grep { $_->{code} =~ /^(?:CONCURRENT_REQUEST|LOCK_TIMEOUT|OUTCOME_UNKNOWN)$/ } @told) {
        my $alive = 0;
        my $live = sub { my ($at) = @_; $at = $t->{to} if $at > $t->{to}; $alive = $at if $at > $alive };

        for my $run (@run) {
            next if $run->{begin} > $t->{to};
            $live->($run->{end} || 9e9);
            $live->($_->[1]) for grep { $_->[0] <= ($run->{end} || 9e9) + $self->{lease} && $_->[1] >= $run->{begin} }
                                 $self->out($run->{from}, $run->{record}, $run->{pid});
        }

        for my $other (grep { $_ != $t && $_->{from} <= $t->{to} } @told) {
            next if $other->{code} =~ /^(?:CONCURRENT_REQUEST|LOCK_TIMEOUT|OUTCOME_UNKNOWN)$/;

            # one whose worker froze may have had the lock before it was replayed

            next if $other->{replayed}
                    && !grep { $_->{from} eq $other->{host} && $_->{since} <= $other->{to}
                               && ($_->{until} || 9e9) >= $other->{from} } @{ $self->{faults}{freezes} };

            $live->($other->{to});
            next if !@run;
            $live->($_->[1]) for grep { $_->[0] <= $other->{to} + $self->{lease} && $_->[1] >= $other->{from} }
                                 $self->out($other->{host}, $run[0]{record});
        }

        $live->($_->{until} || 9e9) for grep { $_->{from} eq $t->{host} && $_->{since} <= $t->{to} }
                                        @{ $self->{faults}{freezes} };

        # who can't see the store waits for what was there

        $live->($_->[1]) for grep { $_->[0] <= $t->{to} && $_->[1] >= $t->{from} }
                             @run ? $self->out($t->{host}, $run[0]{record}) : ();

        my $late = $t->{to} - $alive - $self->{lease};

        next if $late < 1 + $self->late($alive) + $self->{stalls}->sum($alive, $t->{to});

        $self->count('locks that outlived their lease');
        $self->broken(sprintf 'op%d (%s): %s at %.2f, %.2f s after its lease was over', $i, $op->{what}, $t->{code},
                      $t->{to} - $self->{start}, $late);
    }
}


# why there is no outcome under hold: what the torture's judge has, and a host
# that died, a store that was away or a failover while a request for it was
# under way

sub unknown
{
    my ($self, $i, $op) = @_;
    my $s = $self->{faults};
    my @run = App::executions("$self->{site}{dir}/executions", $op->{id});

    return 1 if $self->SUPER::unknown($i, $op);

    for my $t (@{ $self->{told}{$i} }) {
        return 1 if grep { $_->{from} eq $t->{host} && $_->{at} >= $t->{from} - SLACK
                           && $_->{at} <= $t->{to} + $self->{read} } @{ $s->{deaths} };
        return 1 if grep { ($_->{known} || $_->{at}) + 2 >= $t->{from} && $_->{since} - 1 <= $t->{to} }
                    @{ $s->{failovers} };
        return 1 if $self->left_begin($t, $run[0]{record});
    }

    for my $run (@run) {
        return 1 if $self->kept_lost($i, $op, $run, { begin => 9e9 });
        return 1 if $self->holder_died($i, $op, $run, { begin => 9e9 });
        return 1 if $self->without_outcome($i, $op, $run);
    }

    return 0;
}

# its begin was given up while the store was out of reach, and its nginx ended
# before it could be given back; of a worker that ends another one goes on

sub left_begin
{
    my ($self, $t, $record) = @_;
    my $s = $self->{faults};

    for my $o (grep { $_->[0] <= $t->{to} + SLACK && $_->[1] >= $t->{from} - SLACK }
               $self->out($t->{host}, defined $record ? $record : '0'))
    {
        return 1 if grep { $_->{from} eq $t->{host} && $_->{at} >= $t->{from}
                           && $_->{at} <= $o->[1] + $self->found($o->[1]) }
                    @{ $s->{deaths} };
    }

    return 0;
}


1;
