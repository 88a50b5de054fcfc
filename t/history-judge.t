# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The judge of the history (proof/history/Verdict.pm) by itself, on accounts that
# are written here: it excuses a second execution by evidence for that very one,
# and by nothing else.  A machine that is busy is evidence where it was measured.

use strict;
use warnings;
use lib qw(proof/history proof/torture t/lib);
use File::Temp qw(tempdir);
use Test::More;

use Starved;
use Stalls;
use Verdict;

my $dir = tempdir(CLEANUP => 1);
my $number = 0;

{
    package Kind;
    sub new { my ($class, %o) = @_; return bless { %o }, $class }
    sub shard { 0 }
    sub has_fallback { $_[0]{fallback} }
    sub found_within { 2 }
    sub lost_with_host { 0 }
    sub acknowledged { $_[0]{durable} }
    sub loses_responses { !$_[0]{durable} }
    sub ledger_is_shared { $_[0]{shared} }
    sub keeps_lock { $_[0]{durable} && ($_[1]{policy} eq 'hold' || $_[2] > 1) }
}

sub file
{
    my ($name, @lines) = @_;

    open my $f, '>', "$dir/$name" or die $!;
    print $f "$_\n" for @lines;
    close $f;

    return "$dir/$name";
}

# A run is [ host, pid, begin, end, how, time ]; times are seconds from 1000 on

sub judge_of
{
    my ($runs, %o) = @_;
    my $n = ++$number;
    my $run = 0;
    my @lines;

    for my $r (@$runs) {
        my ($host, $pid, $begin, $end, $how, $time) = @$r;
        my $at = sprintf '%.3f', 1000 + (defined $time ? $time : $begin);

        push @lines, sprintf 'run op1 %d %s %s %d %.3f %s key-1 0', ++$run, $at, $host, $pid, 1000 + $begin, '0' x 64;
        push @lines, sprintf 'end op1 %d %.3f %s', $run, 1000 + $end, $how || '200' if defined $end;
    }

    mkdir "$dir/$n" or die $!;
    file("$n/executions", @lines);

    my $account = sub { [ map { my %f = %$_; $f{$_} += 1000 for grep { exists $f{$_} } qw(since until lifts at to); \%f }
                          @{ $_[0] || [] } ] };

    my $judge = Verdict->new(
        site => { dir => "$dir/$n" }, store => Kind->new(map { $_ => $o{$_} } qw(fallback shared durable)), lease => 3, read => 7, timeout => 0.5,
        stalls => bless({ file => file("$n/stalls") }, 'Stalls'), operation => sub { },
        starved => bless({ file => file("$n/starved", map { $_->[0] += 1000; "@$_" } @{ $o{starved} || [] }) }, 'Starved'),
    );

    $judge->{told}{1} = $account->($o{told});
    $judge->{stored} = { op1 => $o{stored} || 0 };
    $judge->{faults} = { moves => {}, apps => [],
                         map { $_ => $account->($o{$_}) } qw(outages failovers freezes deaths kills reloads) };

    return $judge;
}

# why($policy, \@runs, %account): of the second run

sub why
{
    my ($policy, $runs, %o) = @_;
    my $judge = judge_of($runs, %o);
    my $why = $judge->why(1, { id => 'op1', policy => $policy, what => 'ok' },
                          App::executions("$judge->{site}{dir}/executions", 'op1'));

    return defined $why ? $why : 'nothing';
}

# whether an outcome that is unknown in the end, under hold, has a reason

sub may_be_unknown
{
    my ($runs, %o) = @_;
    return judge_of($runs, %o)->unknown(1, { id => 'op1', policy => 'hold', what => 'ok' });
}


# --- no outcome, by the clock of the one that waits for it

is(why('lease', [ [ 'A', 1, 0, 1 ], [ 'A', 1, 5 ] ]), 'nothing', 'it ran, and runs again');
is(why('lease', [ [ 'A', 1, 0, 7.4, '200', 2.3 ], [ 'A', 1, 11 ] ]), 'unknown outcome',
   'the application had it late: nginx waits from its own begin on');
is(why('lease', [ [ 'A', 1, 0, 5.4, '200', 2.3 ], [ 'A', 1, 11 ] ]), 'nothing', '... but its answer came in time');

ok(!may_be_unknown([ [ 'A', 1, 0, 5 ] ]), 'an answer in time: its outcome is known');
ok(may_be_unknown([ [ 'A', 1, 0, 5 ] ], freezes => [ { from => 'A', pid => 1, since => 4, until => 7.5 } ]),
   '... unless its worker was frozen until it had waited long enough');
ok(!may_be_unknown([ [ 'A', 1, 0, 5 ] ], freezes => [ { from => 'A', pid => 2, since => 4, until => 7.5 } ]),
   '... not another one');


# --- a store out of reach

my @out = (outages => [ { host => 'A', shard => undef, since => 1, lifts => 8, until => 8.2 } ]);

is(why('lease', [ [ 'A', 1, 0, 2 ], [ 'B', 2, 5 ] ], @out), 'store out of reach', 'another host took over');
is(why('lease', [ [ 'A', 1, 0, 2 ], [ 'A', 1, 5 ] ], @out), 'nothing', '... the same one keeps what it ran');
is(why('lease', [ [ 'A', 1, 0, 2 ], [ 'B', 2, 12 ] ], @out), 'nothing', '... and writes it when the store is back');
is(why('lease', [ [ 'A', 1, 0, 2 ], [ 'A', 3, 5 ] ], freezes => [ { from => 'A', pid => 1, since => 1, until => 6 } ]),
   'store out of reach', 'a worker that is frozen keeps nothing yet');


# --- a worker without a processor

is(why('lease', [ [ 'A', 7, 0, 6 ], [ 'B', 8, 4 ] ], starved => [ [ 2.5, 7, 2.3 ] ]), 'worker starved',
   'its worker had no processor for what a renewal leaves of a lease');
is(why('lease', [ [ 'A', 7, 0, 6 ], [ 'B', 8, 4 ] ], starved => [ map { [ 1 + $_ / 5, 7, 0.19 ] } 1 .. 12 ]),
   'worker starved', '... in many pieces');
is(why('lease', [ [ 'A', 7, 0, 6 ], [ 'B', 8, 4 ] ], starved => [ [ 2.5, 9, 2.3 ] ]), 'nothing',
   '... another had none');
is(why('lease', [ [ 'A', 7, 0, 6 ], [ 'B', 8, 4 ] ], starved => [ [ 2.5, 7, 0.8 ] ]), 'nothing', '... for less');
is(why('lease', [ [ 'A', 7, 0, 6 ], [ 'B', 8, 4 ] ], starved => [ [ 20, 7, 2.5 ] ]), 'nothing', '... later');


# --- a crash: of durable commits it takes the last locks, and no response

my %crash = (durable => 1, failovers => [ { shard => 0, since => 10, at => 11, mute => 9e9, has => {}, what => 'crash' } ]);

is(why('lease', [ [ 'A', 1, 9.5, 12 ], [ 'B', 2, 11.2 ] ], %crash), 'lost in a crash, its lock', 'the last locks');
is(why('lease', [ [ 'A', 1, 8.5, 12 ], [ 'B', 2, 11.2 ] ], %crash), 'nothing', '... and no others');
is(why('hold', [ [ 'A', 1, 9.5, 12 ], [ 'B', 2, 11.2 ] ], %crash), 'nothing', '... none under hold');
is(why('lease', [ [ 'A', 1, 9.5, 12 ], [ 'B', 2, 16 ] ], %crash), 'nothing', '... and laid anew when the server is back');
is(why('lease', [ [ 'A', 1, 9.5, 9.8 ], [ 'B', 2, 11.2 ] ], %crash), 'lost in a crash, its response',
   'a response that was not acknowledged');
is(why('lease', [ [ 'A', 1, 9.5, 9.8 ], [ 'B', 2, 11.2 ] ], %crash, told => [ { run => 1, replayed => 1, to => 9.9 } ]),
   'nothing', '... one that was replayed is not lost');


# --- a fallback: what the store has in the end ran there

my @away = (host => 'A', shard => undef, since => 10, lifts => 15, until => 15.2);
my @fallback = (fallback => 1, outages => [ { @away } ]);

is(why('hold', [ [ 'A', 1, 2, 3 ], [ 'A', 1, 12 ] ], @fallback, stored => 1), 'fallback, ran in the store before',
   'it ran in the store, which is away');
is(why('hold', [ [ 'A', 1, 2, 3 ], [ 'A', 1, 12 ] ], @fallback), 'nothing',
   '... but the store does not have it: it ran in the ledger, which knows it');
is(why('hold', [ [ 'A', 1, 11, 12 ], [ 'A', 1, 13 ] ], @fallback), 'nothing', 'both in the ledger');
is(why('hold', [ [ 'A', 1, 9, 12 ], [ 'A', 1, 13 ] ], @fallback, stored => 1), 'nothing',
   'it ended while the store was away: it was kept, and that is known');
is(why('hold', [ [ 'A', 1, 9, 12 ], [ 'A', 1, 12.2 ] ], @fallback, stored => 1), 'fallback, ran in the store before',
   '... not while its commit waits for an answer');
is(why('hold', [ [ 'A', 1, 15.1, 15.15 ], [ 'A', 1, 16 ] ], @fallback, stored => 1), 'fallback, ran in the store before',
   'the store may answer before it says so');
is(why('hold', [ [ 'A', 1, 2, 3 ], [ 'A', 1, 30 ] ], @fallback, stored => 1), 'nothing', 'the store was there');

is(why('hold', [ [ 'A', 1, 12, 13 ], [ 'B', 2, 20 ] ], @fallback, stored => 2), 'fallback, another host',
   'another host does not see the ledger');
is(why('hold', [ [ 'A', 1, 12, 13 ], [ 'B', 2, 20 ] ], @fallback, stored => 1), 'nothing',
   '... but it is in the store');
is(why('hold', [ [ 'B', 2, 2, 3 ], [ 'A', 1, 12 ] ], @fallback, stored => 2), 'nothing',
   'nor is one excused that is in the store itself');
is(why('hold', [ [ 'B', 2, 2, 3 ], [ 'A', 1, 12 ] ], fallback => 0, outages => [ { @away } ]), 'nothing',
   'nor is any, where there is no fallback');

is(why('hold', [ [ 'A', 1, 12, 13 ], [ 'A', 2, 20 ] ], @fallback, deaths => [ { from => 'A', at => 14 } ]),
   'fallback, the ledger was lost with its host', 'a ledger ends with its nginx');
is(why('hold', [ [ 'A', 1, 12, 13 ], [ 'A', 2, 20 ] ], @fallback, deaths => [ { from => 'B', at => 14 } ]), 'nothing',
   '... with its own');

is(why('hold', [ [ 'A', 1, 10.5, 10.8 ], [ 'B', 2, 11.1 ] ], fallback => 1, outages => [ { @away }, { @away, host => 'B' } ]),
   'fallback, another host', 'two hosts, each with a ledger of its own');
is(why('hold', [ [ 'A', 1, 10.5, 10.8 ], [ 'B', 2, 11.1 ] ], fallback => 1, shared => 1,
       outages => [ { @away }, { @away, host => 'B' } ]), 'nothing', '... with one ledger');
is(why('hold', [ [ 'B', 1, 8, 9 ], [ 'A', 2, 13 ] ], @fallback, shared => 1), 'fallback, another host',
   '... which is not asked by who reaches the store');

my @frozen = (fallback => 1, freezes => [ { from => 'A', pid => 1, since => 5, until => 11 } ]);

is(why('hold', [ [ 'B', 2, 2, 3 ], [ 'A', 1, 11.3 ] ], @frozen, stored => 1), 'fallback, another host',
   'a worker that was frozen comes back with what broke meanwhile');
is(why('hold', [ [ 'B', 2, 2, 3 ], [ 'A', 1, 16 ] ], @frozen, stored => 1), 'nothing', '... for a moment');
is(why('hold', [ [ 'A', 1, 4, 7 ], [ 'A', 2, 10.9 ] ], @fallback, @frozen), 'fallback, ran in the store before',
   'a worker that is frozen has not seen the end of what ran: only the store, which is away, knows of it');
is(why('hold', [ [ 'A', 3, 4, 7 ], [ 'A', 2, 10.9 ] ], @fallback, @frozen), 'nothing', '... another worker has');


# --- the judge of the torture: the same account of who had no processor

sub tortured
{
    my ($policy, $runs, %o) = @_;
    my $judge = bless judge_of($runs, %o), 'Judge';

    $judge->{start} = 1000;
    $judge->judge_again(1, { id => 'op1', policy => $policy, what => 'ok', store => 'memory' },
                        App::executions("$judge->{site}{dir}/executions", 'op1'));

    my ($why) = map { /^run again: (.*)/ } keys %{ $judge->{figure} };
    return defined $why ? $why : ($judge->{broken}[0] =~ /: ([^:]*)$/)[0];
}

sub waited { return (starved => [ [ 3, 1, 2.5 ] ]) }

is(tortured('lease', [ [ 'C', 1, 0, 5 ], [ 'C', 2, 4 ] ]), 'nothing excuses it', 'a second run');
is(tortured('lease', [ [ 'C', 1, 0, 5 ], [ 'C', 2, 4 ] ], waited()), 'worker starved', 'its worker had no processor');
is(tortured('lease', [ [ 'C', 1, 0, 5 ], [ 'C', 2, 4 ] ], starved => [ [ 3, 2, 2.5 ] ]), 'nothing excuses it',
   '... not another one');
is(tortured('lease', [ [ 'C', 1, 0, 5 ], [ 'C', 2, 4 ] ], starved => [ [ 3, 1, 1.5 ] ]), 'nothing excuses it',
   '... for so long that it lost its lock');
is(tortured('hold', [ [ 'C', 1, 0, 5 ], [ 'C', 2, 4 ] ], waited()), 'worker starved, but under hold',
   '... which is no excuse under hold');
is(tortured('lease', [ [ 'C', 1, 0, 7.4, '200', 2.3 ], [ 'C', 2, 11 ] ]), 'unknown outcome',
   'the application had it late');
is(tortured('lease', [ [ 'C', 1, 0, 5.4, '200', 2.3 ], [ 'C', 2, 11 ] ]), 'nothing excuses it',
   '... but its answer came in time');
is(tortured('hold', [ [ 'C', 1, 0, 7.4, '200', 2.3 ], [ 'C', 2, 11 ] ]), 'unknown outcome, but under hold',
   '... which is no excuse under hold, either');


# --- an outcome that is unknown under hold, of what never ran: a worker was killed
# with the request in its hands

sub never_ran
{
    my ($told, @kill) = @_;
    my $judge = bless judge_of([], told => [ { host => 'E', code => '-', run => 0, %$told } ],
                               kills => [ @kill ]), 'Judge';

    for my $e (@{ $judge->{told}{1} }) { $e->{from} += 1000 }

    return $judge->unknown(1, { id => 'op1', policy => 'hold', what => 'ok', store => 'postgres' });
}

my %killed = (from => 'E', pid => 7, since => 11, at => 11.02);

ok(never_ran({ from => 10, to => 11.1, status => 'gone' }, \%killed), 'its worker was killed, and its client saw that');
ok(!never_ran({ from => 10, to => 11.1, status => 'gone', host => 'F' }, \%killed), '... not one of another nginx');
ok(!never_ran({ from => 11.5, to => 12, status => 'gone' }, \%killed), '... before it came');
ok(!never_ran({ from => 10, to => 10.5, status => 'gone' }, \%killed), '... after its client was let go');
ok(!never_ran({ from => 10, to => 11.1, status => 'gone' }), 'nobody was killed');
ok(never_ran({ from => 10, to => 10.2, status => 'left' }, \%killed), 'its client had left');
ok(!never_ran({ from => 2, to => 3, status => 'left' }, \%killed), '... long before');
ok(never_ran({ from => 10, to => 10.7, status => 503 }, \%killed), 'its release may have been on the way');
ok(!never_ran({ from => 10, to => 14, status => 503 }, \%killed), '... of a worker that answered it later on');
ok(!never_ran({ from => 5, to => 6, status => 503, code => 'STORE_UNAVAILABLE' }, \%killed),
   'a begin that was given up is given back by another worker');


# --- two that were kept, and what is replayed

sub replayed
{
    my ($told, @log) = @_;
    my @kills = map { +{ from => $_->[0], pid => $_->[3], at => $_->[2] } } grep { $_->[1] eq 'killed' } @log;
    my $judge = bless judge_of([ [ 'E', 1, 0, 1 ], [ 'F', 2, 5, 6 ] ], kills => \@kills), 'Judge';

    $judge->{start} = 1000;
    $judge->{told}{1} = [ { replayed => 1, from => 1000 + $told->[2], to => 1000.1 + $told->[2], host => $told->[0],
                            run => $told->[1] } ];
    push @{ $judge->{log}{ '0' x 16 } }, { from => $_->[0], what => $_->[1], at => 1000 + $_->[2] } for @log;
    $judge->judge_replays(1, { policy => 'lease', store => 'postgres' },
                          App::executions("$judge->{site}{dir}/executions", 'op1'));

    return $judge->{broken}[0] || 'right';
}

my @first = ([ 'E', 'kept', 1 ], [ 'F', 'kept', 6 ], [ 'E', 'landed', 8 ]);

is(replayed([ 'F', 1, 12 ], @first, [ 'F', 'dropped', 9 ]), 'right', 'both were kept, and the first run landed first');
is(replayed([ 'F', 1, 12 ], [ 'E', 'kept', 1 ], [ 'E', 'landed', 5 ], [ 'F', 'lost', 6 ]), 'right',
   '... or the second run lost its lock to that');
is(replayed([ 'F', 1, 12 ], [ 'E', 'kept', 1 ], [ 'F', 'killed', 5.5, 2 ], [ 'E', 'landed', 8 ]), 'right',
   '... or its worker was killed before it had a response');
like(replayed([ 'F', 1, 12 ], [ 'E', 'kept', 1 ], [ 'F', 'killed', 5.5, 3 ], [ 'E', 'landed', 8 ]), qr/but run 2 began/,
     '... not another worker');
like(replayed([ 'F', 1, 12 ], [ 'E', 'kept', 1 ], [ 'E', 'landed', 8 ]), qr/but run 2 began/,
     'the commit of the second run was in the store');
like(replayed([ 'F', 1, 12 ], [ 'E', 'kept', 1 ], [ 'F', 'kept', 6 ], [ 'F', 'landed', 7 ], [ 'E', 'landed', 9 ]),
     qr/but run 2 began/, '... or had landed before');
like(replayed([ 'F', 1, 12 ], [ 'E', 'kept', 1 ], [ 'F', 'kept', 6 ]), qr/but run 2 began/, 'nothing of the first had landed');
like(replayed([ 'F', 1, 7 ], @first), qr/but run 2 began/, '... not yet');
like(replayed([ 'F', 1, 3 ], @first), qr/but run 2 began/, 'the store had it before the second run: a true double');

done_testing();
