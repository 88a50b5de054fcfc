# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The clients: for each operation one to three of them, which ask one host or
# another, with the same key and body, until they have an answer.  Some leave a
# host that does not answer soon, and some ask again long after.  Many of them
# are in one process; each request is written down when it is over.

package Driver;

use strict;
use warnings;
use Errno qw(EINPROGRESS);
use IO::Socket::INET;
use POSIX ();
use Socket;
use Time::HiRes qw(time);

use Client;
use Loop;


use constant GIVES_UP => 75;            # s: longer than any outage
use constant MOST => 300;               # requests at a time, of a process


# start(\%shared, $number, $of): a process with its part of them.  In %shared
# are seed, dir, start, until, rate, operation (sub), hosts_of (sub), address
# (host => ip:port), limit

sub start
{
    my ($o, $number, $of) = @_;

    my $pid = fork;
    return $pid if $pid;

    $SIG{TERM} = $SIG{INT} = 'DEFAULT';
    $SIG{PIPE} = 'IGNORE';
    srand $o->{seed} * 1000 + $number;

    my $self = bless { %$o, loop => Loop->new, busy => 0, asking => 0 }, __PACKAGE__;
    my $parent = getppid;

    open $self->{log}, '>', "$o->{dir}/client.$number" or die $!;
    $self->next_operation($number - 1, $of);

    $self->{loop}->turn(0.5) while getppid == $parent && (time < $o->{until} || $self->{busy});
    POSIX::_exit(0);
}


sub next_operation
{
    my ($self, $i, $step) = @_;
    my $at = $self->{start} + $i / $self->{rate};

    return if $at >= $self->{until};

    $self->{loop}->at($at, sub {
        my $clients = rand() < 0.5 ? 1 : rand() < 0.7 ? 2 : 3;

        for my $n (1 .. $clients) {
            $self->later($n == 1 ? 0 : rand() < 0.5 ? rand 0.05 : rand 4,
                         { i => $i, op => $self->{operation}($i), since => time, pause => 0.15 });
        }

        $self->next_operation($i + $step, $step);
    });
}

sub later
{
    my ($self, $after, $client) = @_;

    $self->{busy}++ if !$client->{busy}++;
    $self->{loop}->at(time + $after, sub { $self->ask($client) });
}


sub ask
{
    my ($self, $client) = @_;
    my ($i, $op) = @$client{qw(i op)};

    # a machine that does not keep up is not to be taken for a host

    return $self->later(0.1 + rand 0.2, $client) if $self->{asking} >= MOST;
    $self->{asking}++;

    my @hosts = $self->{hosts_of}($i);
    my $host = $hosts[rand @hosts];
    my $patience = !$self->{patient} && rand() < 0.1 ? 0.05 + rand 1.5 : $self->{limit};
    my $start = time;
    my ($c, $timer);
    my $in = '';

    my $over = sub {
        my $r = shift;

        $self->{asking}--;
        $self->{loop}->cancel($timer);
        if ($c) { $self->{loop}->off($c); close $c }
        Client::write_down($self->{log}, $start, $i, $host, 1, $r);
        $self->heard($client, $r);
    };

    my ($ip, $port) = split /:/, $self->{address}{$host};
    socket $c, PF_INET, SOCK_STREAM, 0 or die "socket: $!";
    $c->blocking(0);

    connect $c, sockaddr_in($port, inet_aton($ip)) or $!{EINPROGRESS} or return $over->({ gone => 1 });

    my $bytes = Client::request($op);

    # what is there is read before the time is over

    my $read = sub {
        while (1) {
            my $n = sysread $c, $in, 262144, length $in;

            return if !defined $n && $!{EAGAIN};
            return $over->(Client::parse($in)) if !$n;
        }
    };

    $timer = $self->{loop}->at($start + $patience, sub {
        $read->() if !length $bytes;
        $over->($patience < $self->{limit} ? { left => 1 } : { hang => 1 }) if fileno $c;
    });

    $self->{loop}->on($c, write => sub {
        my $n = syswrite $c, $bytes;

        return if !defined $n && $!{EAGAIN};
        return $over->({ gone => 1 }) if !$n;

        substr $bytes, 0, $n, '';
        $self->{loop}->on($c, read => $read) if !length $bytes;
    });
}


# each operation once, of a host that may know it, twenty at a time

sub once_more
{
    my ($o, $which, $file) = @_;
    my $self = bless { %$o, loop => Loop->new, busy => 0, asking => 0, until => 0, patient => 1 }, __PACKAGE__;
    my @todo = @$which;

    open $self->{log}, '>', $file or die $!;

    while (@todo || $self->{busy}) {
        while (@todo && $self->{busy} < 20) {
            my $i = shift @todo;
            $self->later(0, { i => $i, op => $self->{operation}($i), once => 1 });
        }

        $self->{loop}->turn(0.5);
    }
}


# again, until it has what it can have; each third then asks once more

sub heard
{
    my ($self, $client, $r) = @_;

    if (!Client::settled($client->{op}, $r) && !$client->{once}) {
        if (time > $client->{since} + GIVES_UP) {
            syswrite $self->{log}, sprintf "%.4f %.4f %d - 0 unsettled - 0 0 -\n", $client->{since}, time, $client->{i};

        } else {
            $client->{pause} *= 1.5 if $client->{pause} < 1;
            return $self->later($client->{pause} * (0.5 + rand), $client);
        }

    } elsif (!$client->{once} && rand() < 0.35 && time < $self->{until}) {
        $client->{once} = 1;
        return $self->later(rand 15, $client);
    }

    $self->{busy}--;
}


1;
