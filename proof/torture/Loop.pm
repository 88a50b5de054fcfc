# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# An event loop: what the application, and clients that are many, are made of.

package Loop;

use strict;
use warnings;
use Time::HiRes qw(time);


sub new { bless { read => {}, write => {}, timers => [], rbits => '', wbits => '' }, $_[0] }


# on($fh, read => sub { ... }, write => sub { ... }): in place of what was; a
# handle is off() before it is closed

sub on
{
    my ($self, $fh, %do) = @_;
    my $fd = fileno $fh;

    for my $way (qw(read write)) {
        my $bits = $way eq 'read' ? \$self->{rbits} : \$self->{wbits};

        if ($do{$way}) { $self->{$way}{$fd} = $do{$way} } else { delete $self->{$way}{$fd} }
        vec($$bits, $fd, 1) = $do{$way} ? 1 : 0;
    }
}

sub off { $_[0]->on($_[1]) }


# at($time, sub { ... }): a timer, which cancel() ends

sub at
{
    my ($self, $time, $do) = @_;
    my $timer = [ $time, $do ];
    my $timers = $self->{timers};
    my ($low, $high) = (0, scalar @$timers);

    while ($low < $high) {
        my $middle = int(($low + $high) / 2);
        if ($timers->[$middle][0] <= $time) { $low = $middle + 1 } else { $high = $middle }
    }

    splice @$timers, $low, 0, $timer;

    return $timer;
}

sub cancel { $_[1][1] = undef if $_[1] }


# what is due, and what comes within that time at most

sub turn
{
    my ($self, $limit) = @_;
    my $timers = $self->{timers};

    while (@$timers && $timers->[0][0] <= time) {
        my $timer = shift @$timers;
        $timer->[1]() if $timer->[1];
    }

    my $wait = @$timers ? $timers->[0][0] - time : $limit;
    $wait = $limit if $wait > $limit;
    $wait = 0 if $wait < 0;

    my $n = select my $readable = $self->{rbits}, my $writable = $self->{wbits}, undef, $wait;
    return if $n <= 0;

    for my $fd (keys %{ $self->{write} }) {
        my $do = $self->{write}{$fd};
        $do->() if $do && vec $writable, $fd, 1;
    }

    for my $fd (keys %{ $self->{read} }) {
        my $do = $self->{read}{$fd};
        $do->() if $do && vec $readable, $fd, 1;
    }
}


1;
