# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A machine with much else to do runs nobody for a while.  What stands still
# is not the module's fault, nor may it be taken for an excuse: it is measured.

package Stalls;

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time sleep);


sub watch
{
    my ($class, $file) = @_;

    open my $log, '>', $file or die $!;

    my $pid = fork;
    return bless { pid => $pid, file => $file }, $class if $pid;

    $SIG{TERM} = $SIG{INT} = 'DEFAULT';
    my $parent = getppid;

    while (getppid == $parent) {
        my $before = time;
        sleep 0.02;
        my $late = time - $before - 0.02;
        syswrite $log, sprintf "%.4f %.4f\n", $before, $late if $late > 0.05;
    }

    POSIX::_exit(0);
}

sub stop { kill KILL => $_[0]{pid}; waitpid $_[0]{pid}, 0 }


# how long it stood still in that time, all in all, and at a stretch; what
# counts is what was seen until this is asked for the first time

sub sum { my $sum = 0; $sum += $_ for all(@_); return $sum }
sub longest { my $most = 0; for (all(@_)) { $most = $_ if $_ > $most } return $most }

sub all
{
    my ($self, $since, $until) = @_;

    if (!$self->{seen}) {
        open my $log, '<', $self->{file} or die $!;
        $self->{seen} = [ map { [ split ] } <$log> ];
    }

    # they are in order, and many

    my $seen = $self->{seen};
    my ($low, $high) = (0, scalar @$seen);

    while ($low < $high) {
        my $middle = int(($low + $high) / 2);
        if ($seen->[$middle][0] + $seen->[$middle][1] <= $since) { $low = $middle + 1 } else { $high = $middle }
    }

    my @in;

    for (; $low < @$seen && $seen->[$low][0] < $until; $low++) {
        push @in, $seen->[$low][1];
    }

    return @in;
}


1;
