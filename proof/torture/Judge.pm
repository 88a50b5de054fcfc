# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Holds what happened to each operation against the promises (README,
# "Guarantees").  A further execution needs an exception that is named there,
# and that can be shown to have happened to this very operation:
#
#   status not kept   the application's own account: it answered 503 in full
#   unknown outcome   ... it reset, truncated, took longer than nginx waits, as
#                     nginx counts: from its own begin; or was killed while it
#                     ran
#   holder killed     the worker that asked the application is one that was
#                     killed, between its begin and the end of its commit, and
#                     nobody had been told the response by then
#   store out of      the module's account: that worker's nginx could not renew
#   reach             or commit this very record, and got no other commit
#                     through before somebody took over
#   worker starved    its worker was ready to run and had no processor, by the
#                     kernel's account, for what a renewal leaves of a lease
#   fallback          it began while its nginx could not reach Redis, in the
#                     ledger, which does not know what ran in Redis before
#   expired           a brief one, after its ttl
#
# Each but the first and the last two takes a lease, and does not happen under
# hold.

package Judge;

use strict;
use warnings;
use Digest::MD5 qw(md5_hex);
use JSON::PP ();
use POSIX ();
use Time::HiRes qw(time);

use App;
use Client;
use Site;


use constant SLACK => 0.15;


sub new
{
    my ($class, %o) = @_;

    my $self = bless { lease => Site::LEASE, timeout => Site::TIMEOUT, read => Site::READ, brief => Site::BRIEF,
                       name => 'torture', %o, told => {}, log => {}, landed => {}, broken => [], figure => {} }, $class;

    $self->{count} = sub { $self->{figure}{ $_[0] } += defined $_[1] ? $_[1] : 1 };

    return $self;
}

sub count { $_[0]{count}($_[1]) }

sub broken
{
    my ($self, $text) = @_;

    push @{ $self->{broken} }, $text if @{ $self->{broken} } < 50;
    $self->count('broken');
}


# --- what the clients were told

sub read_clients
{
    my ($self, $kind, @files) = @_;

    for my $file (@files) {
        open my $log, '<', $file or die $!;

        while (<$log>) {
            my %t;
            @t{qw(from to op host proto status code run replayed body)} = split;

            if ($t{status} eq 'unsettled') {
                $self->count('clients that never got an answer');
                $self->broken(sprintf 'op%d: asked for %.0f s, and never settled', $t{op}, $t{to} - $t{from});
                next;
            }

            push @{ $self->{told}{ $t{op} } }, \%t;
            $self->note_answer(\%t, $kind);
        }
    }
}


sub note_answer
{
    my ($self, $t, $kind) = @_;
    my $op = "op$t->{op}";

    $self->count($kind eq 'more' ? 'keys asked for once more' : 'requests');
    $self->count('requests over HTTP/2') if $t->{proto} == 2 && $kind ne 'more';

    if ($t->{status} =~ /^(hang|gone|left)$/) {
        $self->count("clients: $t->{status}");
        $self->broken(sprintf '%s: no answer for %.0f s, at %.2f', $op, $t->{to} - $t->{from},
                      $t->{from} - $self->{start}) if $t->{status} eq 'hang';

        # it may run for the first time then, and be cut off as it is to be

        $self->broken("$op: $t->{status} when asked once more")
            if $kind eq 'more' && !($t->{status} eq 'gone' && grep { ($_->{how} || '') eq 'truncated' }
                                    App::executions("$self->{site}{dir}/executions", $op));
        return;
    }

    $self->count(($kind eq 'more' ? 'once more: ' : 'answers: ')
                 . ($t->{code} ne '-' ? $t->{code} : $t->{replayed} ? 'replayed' : 'ran'));

    return if !$t->{run};

    my $what = $self->{operation}($t->{op})->{what};

    $self->count('streams ' . ($t->{replayed} ? 'replayed' : 'that came to their end')) if App::is_stream($what);
    $self->broken("$op: not the bytes of run $t->{run}")
        if $t->{code} eq '-' && $t->{status} =~ /^(?:200|404)$/
           && $t->{body} ne md5_hex(App::text($op, $t->{run}, $what));

    my $same = \$self->{answer}{ $t->{op} }{ $t->{run} };

    $self->broken("$op: two answers of run $t->{run}") if $$same && $$same ne "$t->{status} $t->{body}";
    $$same = "$t->{status} $t->{body}";
}


# nothing but an outcome that is unknown under hold stands in the way for ever

sub judge_more
{
    my ($self, $i) = @_;
    my $op = $self->{operation}($i);
    my ($t) = grep { $_->{more} } @{ $self->{told}{$i} };

    return if !$t || $t->{status} !~ /^\d/ || $t->{code} eq '-';

    my $wrong = "$t->{code} after the lease is over";

    if ($t->{code} eq 'OUTCOME_UNKNOWN' && $op->{policy} eq 'hold') {
        return if $self->unknown($i, $op);
        $wrong = 'its outcome is unknown, and nothing says why';
    }

    $self->count('stuck locks');
    $self->broken("op$i ($op->{store}, $op->{policy}, $op->{what}): $wrong");
}


# why there is no outcome under hold: an execution that has none; an
# application that was killed before it could note one; or a worker that was
# killed with a request for it in its hands.  A begin that was given up is no
# reason, nor is a release that failed: another worker goes on with those,
# whatever becomes of the one that had them

sub unknown
{
    my ($self, $i, $op) = @_;

    for my $run (App::executions("$self->{site}{dir}/executions", $op->{id})) {
        return 1 if $self->no_outcome($run) || $self->killed($i, $run);
    }

    for my $t (@{ $self->{told}{$i} }) {
        return 1 if $t->{status} =~ /^50[24]$/ && grep { $_ >= $t->{from} - SLACK && $_ <= $t->{to} + SLACK }
                                                  @{ $self->{faults}{apps} };
        return 1 if $t->{status} eq 'left' && grep { $_ >= $t->{from} - SLACK && $_ <= $t->{to} + 2 }
                                              @{ $self->{faults}{apps} };
        return 1 if $self->died_with($t);
    }

    return 0;
}


# A worker of that nginx was killed while it may have had this request: before
# it answered; or right after that, when a release may be on its way for as long
# as the store has to answer: from then on the other workers know of it.  Of a
# client that left nginx may hear late.

sub died_with
{
    my ($self, $t) = @_;
    my $answered = $t->{status} =~ /^\d/;
    my $busy = SLACK + $self->busy($t->{to} - 1, $t->{to} + 2);
    my $since = $answered ? $t->{to} - $busy : $t->{from} - SLACK;
    my $until = $t->{to} + $busy + ($answered ? $self->{timeout} : $t->{status} eq 'left' ? 2 : 0);

    return scalar grep { $_->{from} eq $t->{host} && $_->{at} >= $since && ($_->{since} || $_->{at}) <= $until }
                  @{ $self->{faults}{kills} };
}


# --- what nginx says of single records.  error.log is there when a worker is
# killed, to the second; the events may be lost with it

my @lines = (
    [ kept      => qr/is kept here and tried again/ ],
    [ again     => qr/that is kept failed again/ ],
    [ landed    => qr/that was kept is in store/ ],
    [ dropped   => qr/that was kept is dropped/ ],
    [ unrenewed => qr/a lease could not be renewed/ ],
    [ abandoned => qr/ran out without an outcome/ ],
    [ lost      => qr/lease of a running request was lost|the lock had been lost/ ],
);

sub read_logs
{
    my ($self, $name) = @_;

    open my $log, '<', "$self->{site}{dir}/$name/logs/error.log" or die $!;

    while (<$log>) {
        my ($date, $level) = /^(\d+\/\d+\/\d+ \d+:\d+:\d+) \[(\w+)\]/ or next;

        if ($level =~ /^(alert|crit|emerg)$/ && !/exited on signal 9|shared memory zone "\S+" was locked by/) {
            $self->count('crashes') if /exited on signal/;
            chomp;
            $self->broken("nginx $name: $_");
            next;
        }

        my ($record) = /idempotency: .*record ([0-9a-f]{16})/ or next;
        my $line = $_;
        my ($what) = map { $_->[0] } grep { $line =~ $_->[1] } @lines or next;
        my ($y, $m, $d, $H, $M, $S) = split /\D/, $date;

        # a second as it was logged: something in [at, at + 1)

        my $entry = { at => POSIX::mktime($S, $M, $H, $d, $m - 1, $y - 1900, 0, 0, -1), what => $what, from => $name };

        push @{ $self->{log}{$record} }, $entry;
        push @{ $self->{landed}{$name} }, $entry if $what eq 'landed';
        $self->count("log: $what");
    }

    # nginx itself says nothing there; sanitizers do

    for (split /\n/, Site::slurp("$self->{site}{dir}/$name/logs/out")) {
        $self->broken("nginx $name: $_") if /Sanitizer|runtime error/;
    }

    my %event;
    open my $events, '<', "$self->{site}{dir}/$name/logs/events.json" or return;

    while (<$events>) {
        my $e = eval { JSON::PP::decode_json($_) };
        if (!$e) { $self->broken("nginx $name: an event is not JSON: $_"); next }
        $event{ substr $e->{record} || '', 0, 16 }{ $e->{event} }++;
    }

    $self->{event}{$name} = \%event;
}

# lines of that kind, of that record and nginx, that may lie in that time

sub said
{
    my ($self, $what, $run, $host, $since, $until) = @_;

    return grep { $_->{what} =~ /^(?:$what)$/ && $_->{from} eq $host && $_->{at} + 1 >= $since && $_->{at} <= $until }
           @{ $self->{log}{ substr $run->{record}, 0, 16 } || [] };
}


# --- one operation

sub judge
{
    my ($self, $i) = @_;
    my $op = $self->{operation}($i);
    my @run = App::executions("$self->{site}{dir}/executions", $op->{id});

    $self->count('operations');
    $self->{figure}{executions} += @run;
    $self->count('never ran') if !@run;

    # one that was held up on its way to the application began before

    my @begun = sort { $a->{begin} <=> $b->{begin} } @run;

    for my $n (1 .. $#begun) {
        $self->judge_again($i, $op, @begun[$n - 1, $n]);
    }

    $self->judge_replays($i, $op, @run);
}


sub judge_again
{
    my ($self, $i, $op, $before, $this) = @_;
    my $gap = $this->{begin} - $before->{begin};
    my $why = $self->why($i, $op, $before, $this);

    # Redis counts from when it was asked, the request from when it was told

    my $slack = SLACK + ($op->{store} ne 'memory' ? $self->{timeout} : 0)
                + $self->busy($before->{begin} - 1, $before->{begin} + 1);

    my $where = sprintf 'op%d (%s, %s, %s): run %d on %s at %.2f, %.2f s after run %d on %s (%s)', $i,
                        @$op{qw(store policy what)}, $this->{run}, $this->{from}, $this->{begin} - $self->{start},
                        $gap, $before->{run}, $before->{from}, $before->{how} || 'no end';

    my $wrong = !$why ? 'nothing excuses it'
              : $self->at_once($why) ? undef
              : $op->{policy} eq 'hold' ? "$why, but under hold"
              : $gap < $self->{lease} - $slack ? "$why, but before its lease was over"
              : undef;

    if ($wrong) {
        $self->count('double executions');
        $self->broken("$where: $wrong");
        return;
    }

    $self->count("run again: $why");
    print "$self->{name}: $where: $why\n" if $ENV{VERBOSE};
}

# no lease has to pass before that, and hold does not help

sub at_once { my ($self, $why) = @_; return $why =~ /^(?:status not kept|expired|fallback)$/ }


sub why
{
    my ($self, $i, $op, $before, $this) = @_;

    return 'expired'
        if $op->{policy} eq 'brief' && $this->{begin} - $before->{begin} >= $self->{brief} - SLACK;

    return 'status not kept' if ($before->{how} || '') eq '503';

    # what else would excuse it takes a lease, and does not under hold

    return 'fallback'
        if $op->{store} eq 'fallback'
           && ($op->{policy} eq 'hold' || $this->{begin} - $before->{begin} < $self->{lease})
           && $self->fell_back($before, $this);

    return 'unknown outcome' if $self->no_outcome($before);
    return 'holder killed' if $self->killed($i, $before);
    return 'store out of reach' if $op->{store} ne 'memory' && $self->out_of_reach($before, $this);
    return 'fallback' if $op->{store} eq 'fallback' && $self->fell_back($before, $this);

    my $starved = $self->starved($i, $op, $before, $this);
    return $starved if $starved;

    return 'machine stood still for a lease'
        if $self->{stalls}->longest($before->{begin}, $this->{begin}) >= $self->{lease};

    return undef;
}


# how much later than otherwise things may have happened: all stood still, or one

sub busy
{
    my ($self, $since, $until) = @_;
    my ($all, $one) = ($self->{stalls}->sum($since, $until), $self->{starved}->most($since, $until));

    return $all > $one ? $all : $one;
}

# a worker that could not renew is one that stalled

sub starved
{
    my ($self, $i, $op, $before, $this) = @_;
    my $lease = $self->{lease};

    return $self->{starved}->within($before->{pid}, $lease, $before->{begin}, $this->{begin}) >= $lease * 2 / 3
           ? 'worker starved' : undef;
}


# by the application's own account; one that had it late ends it when nginx does
# not wait any more

sub no_outcome
{
    my ($self, $run) = @_;
    my $how = $run->{how} || '';

    return 1 if $how =~ /^(reset|truncated)$/;
    return 1 if $run->{end} && $run->{end} - $run->{begin} > $self->{read} - 0.2;
    return 0 if $how !~ /^(sending)?$/;

    return scalar grep { $_ >= $run->{time} - SLACK && $_ <= $run->{time} + Client::LONGEST + 1 }
                  @{ $self->{faults}{apps} };
}


# the worker that held it, while it did, before anybody was told

sub killed
{
    my ($self, $i, $before) = @_;
    my $end = $before->{end} || $before->{time} + $self->{read};
    my $late = $end + $self->{timeout} + 0.3 + $self->busy($end, $end + 2);

    for my $kill (@{ $self->{faults}{kills} }) {
        next if $kill->{pid} != $before->{pid} || $kill->{from} ne $before->{from};
        next if $kill->{at} < $before->{begin} - SLACK || ($kill->{since} || $kill->{at}) > $late;
        next if grep { $_->{run} == $before->{run} && $_->{to} < ($kill->{since} || $kill->{at}) } @{ $self->{told}{$i} };
        return 1;
    }

    return 0;
}


# its nginx tried, in vain, and no other of its commits got through

sub out_of_reach
{
    my ($self, $before, $this) = @_;
    my $host = $before->{from};

    my @tried = $self->said('kept|unrenewed', $before, $host, $before->{begin}, $this->{begin}) or return 0;

    # the outbox gets all through, once it gets one

    my @kept = grep { $_->{what} eq 'kept' } @tried or return 1;
    my ($dropped) = $self->said('dropped', $before, $host, $kept[0]{at}, $this->{begin});
    my $over = $dropped ? $dropped->{at} : $this->{begin} - 0.5;

    return !grep { $_->{at} > $kept[0]{at} + 1 && $_->{at} + 1 < $over } @{ $self->{landed}{$host} || [] };
}


# The store was at fault for its nginx, or had been a moment ago, and a breaker
# may have been open; and it was not when the one before began, or no more.

sub fell_back
{
    my ($self, $before, $this) = @_;
    my @all = grep { $_->{aim}{ $this->{from} } } @{ $self->{faults}{store} };
    my $at = sub { my ($t, $tail) = @_; return grep { $_->{since} - SLACK <= $t && $t <= $_->{until} + $tail } @all };

    return 0 if !$at->($this->{begin}, 2 + $self->{timeout} + $self->busy($this->{begin} - 2, $this->{begin}));

    # what surely began in the ledger is known there: nothing got through then

    return !grep { $_->{name} =~ /refuses|cut off|paused/ && $_->{since} + $self->{timeout} + SLACK < $before->{begin} }
            $at->($before->{begin}, 0);
}


# A replay is of an execution whose response is stored, or kept by the nginx
# that replays it.  What was replayed is over, save that another nginx does not
# know of what is kept; and once another may have run, what is kept is replayed
# only after it was tried in vain.  Or both were kept, and the first to reach the
# store was not the last to run.

sub judge_replays
{
    my ($self, $i, $op, @run) = @_;
    my %of;

    for my $t (grep { $_->{replayed} && $_->{run} } @{ $self->{told}{$i} || [] }) {
        my $run = $run[ $t->{run} - 1 ];

        if (!$run || ($run->{how} || '') !~ /^(200|404|sending)$/) {
            $self->broken("op$i: a replay of run $t->{run}, which the application did not complete");
            next;
        }

        $of{ $t->{run} } = 1;

        for my $next (@run[ $t->{run} .. $#run ]) {
            next if $op->{policy} eq 'brief' || $op->{store} eq 'fallback';

            my $before = $t->{to} + SLACK < $next->{begin};
            my $after = $t->{from} > $next->{begin} + SLACK;

            if ($after && $self->landed_first($i, $t, $run, $next)) {
                $self->count('replays of what was kept, and landed before another');

            } elsif ($before || $after) {
                $self->count('replays of what was kept, and run again elsewhere');

                if ($t->{host} ne $run->{from}
                    || !$self->said('kept', $run, $run->{from}, $run->{begin}, $next->{begin} + 1))
                {
                    $self->count('double executions') if $before;
                    $self->broken(sprintf 'op%d: run %d, replayed by %s at %.2f, but run %d began at %.2f', $i,
                                  $t->{run}, $t->{host}, $t->{to} - $self->{start}, $next->{run},
                                  $next->{begin} - $self->{start});

                } elsif ($after && !$self->said('again', $run, $t->{host}, $t->{from} - 1, $t->{to} + 1)) {
                    $self->broken(sprintf 'op%d: %s replayed run %d at %.2f without having tried, run %d began at %.2f',
                                  $i, $t->{host}, $t->{run}, $t->{from} - $self->{start}, $next->{run},
                                  $next->{begin} - $self->{start});
                }
            }
        }
    }

    $self->count('operations with replays of two executions') if keys %of > 1 && $op->{policy} ne 'brief';
}


# Two nginx could not reach the store, and one ran what the other had run.  The
# commit that the first one kept reached the store while that of the second was
# not there: it was kept as well, or was lost to this one, or there was none.  A
# commit that lands on one that is there is none of this.

sub landed_first
{
    my ($self, $i, $t, $run, $next) = @_;

    return 0 if $run->{from} eq $next->{from};

    my ($kept) = $self->said('kept', $run, $run->{from}, $run->{begin}, $t->{to}) or return 0;
    my ($landed) = $self->said('landed', $run, $run->{from}, $kept->{at}, $t->{to}) or return 0;

    return 1 if $self->no_outcome($next) || $self->killed($i, $next);
    return 0 if $self->said('landed', $next, $next->{from}, $next->{begin}, $landed->{at} - 1);
    return scalar $self->said('kept|lost', $next, $next->{from}, $next->{begin}, $landed->{at} + $self->{read});
}


1;
