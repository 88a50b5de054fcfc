# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Process;

# Ports and processes: what the toolkit and the programs beside the tests
# (bench/scale) both need to start servers, and nothing of Test::Nginx.

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Socket qw(AF_UNIX SOCK_DGRAM SOCK_STREAM);
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(free_port wait_for is_alive is_listening start_child);

our $Slow = 1;               # how much longer all waits are, see the toolkit

my @PortNames;


# A port for a server.  It has to be free whenever that starts anew, so it is
# not one of those the kernel gives to outgoing connections, and a name keeps it
# from other tests while this process lives: that of an abstract socket, so that
# it counts for other trees on this machine, and goes when we go.

sub free_port
{
    my $above = 32767;
    if (open my $in, '<', '/proc/sys/net/ipv4/ip_local_port_range') {
        my ($first) = split ' ', <$in>;
        $above = $first - 1 if $first > 12000;
    }

    for (1 .. 500) {
        my $try = 10000 + int rand($above - 10000);

        my $name = IO::Socket::UNIX->new(Type => SOCK_DGRAM,
                       Local => "\0ngx_http_idempotency_module:port:$try")
            or next;

        IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $try,
                              Proto => 'tcp', Listen => 1, ReuseAddr => 1)
            or next;

        push @PortNames, $name;
        return $try;
    }

    die "no free port\n";
}


# calls the code until it returns true, at most $timeout seconds; where all
# waits are stretched, no fewer than a default wait is

sub wait_for
{
    my ($code, $timeout) = @_;

    $timeout = 5 if !defined $timeout;

    my $end = time + ($timeout > 5 * $Slow ? $timeout : 5 * $Slow);

    while (1) {
        my $got = $code->();
        return $got if $got;
        return $got if time > $end;
        sleep 0.01;
    }
}


# a zombie counts as gone: who reaps an orphan is not our affair

sub is_alive
{
    my $pid = shift;

    waitpid $pid, POSIX::WNOHANG();

    open my $in, '<', "/proc/$pid/stat" or return 0;
    my $stat = <$in>;

    return defined $stat && $stat =~ /^\d+ \(.*\) ([^ZX]) /s ? 1 : 0;
}


sub is_listening
{
    my $number = sprintf '%04X', shift;

    for my $file ('/proc/net/tcp', '/proc/net/tcp6') {
        open my $in, '<', $file or next;

        while (<$in>) {
            return 1
                if /^ *\d+: [0-9A-F]+:$number [0-9A-F]+:[0-9A-F]{4} 0A /;
        }
    }

    return 0;
}


# A child that runs the code, which gets a socket, and ends with it.  Returns
# its pid and our end of the socket.

sub start_child
{
    my ($name, $code) = @_;

    socketpair my $mine, my $its, AF_UNIX, SOCK_STREAM, 0
        or die "socketpair: $!\n";

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        close $mine;
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        eval { $code->($its) };
        print STDERR "# $name: $@" if $@;
        POSIX::_exit(0);
    }

    return ($pid, $mine);
}

1;
