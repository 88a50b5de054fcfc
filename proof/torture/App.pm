# The application of the torture: notes the executions of each operation, in a
# file for each, and misbehaves as its request asks, the first time only.  It
# may be killed with all that it does, and started again.

package App;

use strict;
use warnings;
use Fcntl qw(:flock SEEK_SET);
use IO::Socket::INET;
use POSIX ();
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time sleep);


# start($port, $dir): its pid, which is that of its process group

sub start
{
    my ($port, $dir) = @_;
    my $listen;

    for (1 .. 100) {
        $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 511,
            LocalPort => $port, ReuseAddr => 1) and last;
        sleep 0.02;
    }

    die "app: $!" if !$listen;

    my $pid = fork;

    if ($pid) {
        setpgrp $pid, $pid;
        return $pid;
    }

    setpgrp 0, 0;
    $SIG{CHLD} = 'IGNORE';
    $SIG{TERM} = $SIG{INT} = 'DEFAULT';

    while (1) {
        my $c = $listen->accept or next;
        my $child = fork;

        if (defined $child && !$child) {
            $listen->close;
            eval { serve($c, $dir) };
            $c->close;
            POSIX::_exit(0);
        }

        $c->close;
    }
}


sub note
{
    my ($log, $line) = @_;
    syswrite $log, $line;
}


sub serve
{
    my ($c, $dir) = @_;

    local $SIG{PIPE} = 'IGNORE';
    my $in = '';

    while ($in !~ /\r\n\r\n/) {
        sysread($c, $in, 65536, length $in) or return;
    }

    my ($op, $what, $ms) = $in =~ m{^\S+ \S*?\?op=(\w+)&what=(\w+)&ms=(\d+)}
        or return;
    my ($length) = $in =~ /^content-length: (\d+)/mi;
    my %x = (from => '-', pid => 0, begin => 0, record => '-');
    $x{ lc $1 } = $2 while $in =~ /^x-(from|pid|begin|record): (\S+)/mig;

    while (length($in) - index($in, "\r\n\r\n") - 4 < ($length || 0)) {
        sysread($c, $in, 65536, length $in) or return;
    }

    # it is there in full: that is an execution

    open my $log, '+>>', "$dir/$op" or die $!;
    flock $log, LOCK_EX;
    seek $log, 0, SEEK_SET;
    my $run = 1 + (() = grep { /^run / } <$log>);
    note($log, sprintf "run %d %.4f %s %s %s %s\n", $run, time,
         @x{qw(from pid begin record)});
    flock $log, LOCK_UN;

    my $end = sub { note($log, sprintf "end %d %.4f %s\n", $run, time, $_[0]) };

    sleep $ms / 1000 if $what ne 'timeout' || $run == 1;

    if ($run == 1 && $what eq 'reset') {
        $end->('reset');
        setsockopt $c, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
        return;
    }

    my $text = "run $run of $op\n" . ('x' x ($what eq 'big' ? 90000 : 0));
    my $status = $what eq 'missing' ? '404 Not Found'
               : $what eq 'refuse' && $run == 1 ? '503 Service Unavailable'
               : '200 OK';

    my $answer = "HTTP/1.1 $status\r\nConnection: close\r\nX-App: $run\r\n"
                 . "Content-Length: " . length($text) . "\r\n\r\n$text";

    # killed from here on, the answer may be out in full all the same

    $end->('sending');

    if ($run == 1 && $what eq 'truncate') {
        $answer = substr $answer, 0, length($answer) - 5;
        $status = 'truncated';
    }

    while (length $answer) {
        my $n = syswrite $c, $answer;

        if (!$n) {
            $end->('gone');
            return;
        }

        substr $answer, 0, $n, '';
    }

    $end->($status =~ /^(\d+|truncated)/);
}


# what was executed: [ { run, time, from, pid, begin, record, end, how } ... ]

sub executions
{
    my ($dir, $op) = @_;
    my @run;

    open my $log, '<', "$dir/$op" or return;

    while (<$log>) {
        my ($what, $run, @rest) = split;

        if ($what eq 'run') {
            my %e = (run => $run);
            @e{qw(time from pid begin record)} = @rest;
            $run[$run - 1] = \%e;

        } else {
            @{ $run[$run - 1] }{qw(end how)} = @rest;
        }
    }

    return @run;
}


1;
