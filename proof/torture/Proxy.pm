# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A network between nginx and its store: it delays, truncates, swallows, refuses,
# cuts and is silent.  What is delayed still arrives when its sender has closed,
# behind what was sent later on another connection; what is sent into silence
# arrives when that is over.

package Proxy;

use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Socket;
use Time::HiRes qw(time);


# start($port, $to): a handle to tell() it

sub start
{
    my ($port, $to) = @_;

    socketpair my $ours, my $theirs, AF_UNIX, SOCK_DGRAM, PF_UNSPEC or die $!;

    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 511,
        LocalPort => $port, ReuseAddr => 1) or die "proxy: $!";

    my $pid = fork;
    return { pid => $pid, control => $ours } if $pid;

    $SIG{PIPE} = 'IGNORE';
    $SIG{TERM} = 'DEFAULT';
    serve($listen, $theirs, $to);
}


# pass | delay <ms> | hold | refuse | silent | cut | truncate: the next ones

# and to the other server, where there are two

sub tell
{
    my ($self, $mode) = @_;

    send $self->{control}, $mode, 0;
    Proxy::tell($self->{other}, $mode) if $self->{other};
}


sub serve
{
    my ($listen, $control, $to) = @_;

    my ($mode, $ms) = ('pass', 0);
    my %peer;                           # fd -> { fh, other, queue, ended, swallowed }
    my $select = IO::Select->new($listen, $control);

    my $close = sub {
        for my $fd (@_) {
            my $end = delete $peer{$fd} or next;
            $select->remove($end->{fh});
            close $end->{fh};
        }
    };

    while (1) {
        my @due = map { $_->{queue}[0][0] } grep { @{ $_->{queue} } } values %peer;
        my $wait = 0.2;
        for (@due) { my $left = $_ - time; $wait = $left if $left < $wait }

        my $heard = $mode eq 'silent' ? IO::Select->new($control) : $select;

        for my $fh ($heard->can_read($wait > 0 ? $wait : 0)) {

            if ($fh == $control) {
                recv $control, my $told, 100, 0;
                ($mode, $ms) = split ' ', $told;

                if ($mode eq 'cut') {
                    $close->(keys %peer);
                    $mode = 'pass';
                }

            } elsif ($fh == $listen) {
                my $c = $listen->accept or next;
                my $s = $mode eq 'refuse' ? undef
                      : IO::Socket::INET->new(PeerAddr => "127.0.0.1:$to");

                if (!$s) { close $c; next }

                $_->blocking(0) for $c, $s;
                $peer{fileno $c} = { fh => $c, other => fileno $s, queue => [] };
                $peer{fileno $s} = { fh => $s, other => fileno $c, queue => [] };
                $select->add($c, $s);

            } else {
                my $fd = fileno $fh;
                next if !defined $fd || !$peer{$fd};
                my $end = $peer{$fd};
                my $other = $peer{ $end->{other} };
                my $n = sysread $fh, my $bytes, 65536;

                if (!$n) {
                    next if !defined $n && $!{EAGAIN};
                    $end->{ended} = 1;
                    $select->remove($fh);

                    # what is on its way arrives before the end does

                    push @{ $other->{queue} }, [ time + ($mode eq 'delay' ? $ms / 1000 : 0), undef ];
                    next;
                }

                # swallowed, and with it what comes after: TCP leaves no gap

                $end->{swallowed} = 1 if $mode eq 'hold' && rand() < 0.7;
                next if $end->{swallowed};

                if ($mode eq 'truncate') {
                    $bytes = substr $bytes, 0, int rand length $bytes;
                    push @{ $other->{queue} }, [ time, $bytes ], [ time, undef ];
                    $mode = 'pass';
                    next;
                }

                my $late = $mode eq 'delay' ? rand($ms) / 1000 : 0;
                my $last = @{ $other->{queue} } ? $other->{queue}[-1][0] : 0;
                my $due = time + $late;
                push @{ $other->{queue} }, [ $due > $last ? $due : $last, $bytes ];
            }
        }

        next if $mode eq 'silent';

        for my $fd (keys %peer) {
            my $end = $peer{$fd} or next;

            while (@{ $end->{queue} } && $end->{queue}[0][0] <= time) {
                my $first = $end->{queue}[0];

                if (!defined $first->[1]) {
                    $close->($end->{other}, $fd);
                    last;
                }

                my $n = syswrite $end->{fh}, $first->[1];

                if (!defined $n) {
                    last if $!{EAGAIN};
                    $close->($end->{other}, $fd);
                    last;
                }

                substr $first->[1], 0, $n, '';
                last if length $first->[1];
                shift @{ $end->{queue} };
            }
        }
    }
}


1;
