# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# How long each process that takes part was ready to run and had no processor,
# by the kernel's own account (/proc/<pid>/schedstat).  A worker that stood still
# for a lease lost its locks by a named exception, and a server that answers late
# is not away: on a busy machine both are to be told from what is proved here.

package Starved;

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time sleep);

use Site;


use constant EVERY => 0.1;              # s
use constant LEAST => 0.1;              # s, to be worth a line


# watch($file, $top): of all that descend from that process

sub watch
{
    my ($class, $file, $top) = @_;

    open my $log, '>', $file or die $!;

    my $pid = fork;
    return bless { pid => $pid, file => $file }, $class if $pid;

    $SIG{TERM} = $SIG{INT} = 'DEFAULT';
    my $parent = getppid;
    my %before;

    while (getppid == $parent) {
        my %now;

        for my $p (descendants($top)) {
            my (undef, $waited) = split ' ', Site::slurp("/proc/$p/schedstat");
            next if !defined $waited;

            $now{$p} = $waited / 1e9;
            my $for = exists $before{$p} ? $now{$p} - $before{$p} : 0;
            syswrite $log, sprintf "%.4f %d %.4f\n", time, $p, $for if $for >= LEAST;
        }

        %before = %now;
        sleep EVERY;
    }

    POSIX::_exit(0);
}

sub descendants
{
    my @all = split ' ', Site::slurp("/proc/$_[0]/task/$_[0]/children");

    return map { ($_, descendants($_)) } grep { $_ != $$ } @all;
}

sub stop { kill KILL => $_[0]{pid}; waitpid $_[0]{pid}, 0 }


# Seconds for which that process waited between these times.  A line tells of
# what ended then, so it may lie a moment behind.

sub of
{
    my ($self, $pid, $since, $until) = @_;
    my $sum = 0;

    $sum += $_->[1] for grep { $_->[0] - $_->[1] <= $until && $_->[0] >= $since } @{ $self->seen->{$pid} || [] };

    return $sum;
}

# ... whichever waited most

sub most
{
    my ($self, $since, $until) = @_;
    my $key = sprintf '%.1f %.1f', $since, $until;
    my $most = 0;

    return $self->{most}{$key} if defined $self->{most}{$key};

    for my $pid (keys %{ $self->seen }) {
        my $sum = $self->of($pid, $since, $until);
        $most = $sum if $sum > $most;
    }

    return $self->{most}{$key} = $most;
}

# ... within any so many seconds of that time

sub within
{
    my ($self, $pid, $seconds, $since, $until) = @_;
    my $most = 0;

    for my $e (grep { $_->[0] >= $since && $_->[0] - $_->[1] <= $until } @{ $self->seen->{$pid} || [] }) {
        my $sum = $self->of($pid, $e->[0] - $seconds > $since ? $e->[0] - $seconds : $since, $e->[0]);
        $most = $sum if $sum > $most;
    }

    return $most;
}

sub longest
{
    my $self = shift;
    my $most = 0;

    for my $e (map { @$_ } values %{ $self->seen }) { $most = $e->[1] if $e->[1] > $most }

    return $most;
}

# what was seen until this is asked for the first time

sub seen
{
    my $self = shift;

    if (!$self->{seen}) {
        $self->{seen} = {};
        open my $log, '<', $self->{file} or die $!;

        # asked for in the middle of a grep, which has $_ of its own

        while (defined(my $line = <$log>)) {
            my ($at, $pid, $for) = split ' ', $line;
            push @{ $self->{seen}{$pid} }, [ $at, $for ];
        }
    }

    return $self->{seen};
}


1;
