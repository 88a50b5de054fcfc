# The application of the torture: counts the executions of each operation, in
# a file for each, and misbehaves as its request asks, the first time only.

package App;

use strict;
use warnings;
use Fcntl qw(:flock);
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time sleep);


# start($port, $dir): its pid

sub start
{
    my ($port, $dir) = @_;

    my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 511,
        LocalPort => $port, ReuseAddr => 1) or die "app: $!";

    my $pid = fork;
    return $pid if $pid;

    $SIG{CHLD} = 'IGNORE';
    $SIG{TERM} = 'DEFAULT';

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


sub serve
{
    my ($c, $dir) = @_;

    local $SIG{PIPE} = 'IGNORE';
    my ($in, $body) = ('', 0);

    while ($in !~ /\r\n\r\n/) {
        sysread($c, $in, 65536, length $in) or return;
    }

    my ($op, $what, $ms) = $in =~ m{^\S+ \S*?\?op=(\w+)&what=(\w+)&ms=(\d+)}
        or return;
    my ($length) = $in =~ /^content-length: (\d+)/mi;
    my ($from) = $in =~ /^x-from: (\w+)/mi;

    while (length($in) - index($in, "\r\n\r\n") - 4 < ($length || 0)) {
        sysread($c, $in, 65536, length $in) or return;
    }

    # it is there in full: that is an execution

    open my $log, '+>>', "$dir/$op" or die $!;
    flock $log, LOCK_EX;
    seek $log, 0, 0;
    my $run = 1 + (() = <$log>);
    syswrite $log, sprintf "%.4f %d %s %s %d\n", time, $run, $from, $what, $ms;
    close $log;

    sleep $ms / 1000 if $what !~ /^timeout$/ || $run == 1;

    if ($run == 1 && $what eq 'reset') {
        setsockopt $c, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
        return;
    }

    my $text = "run $run of $op\n" . ('x' x ($what eq 'big' ? 90000 : 0));
    my $status = $what eq 'missing' ? '404 Not Found'
               : $what eq 'refuse' && $run == 1 ? '503 Service Unavailable'
               : '200 OK';

    my $answer = "HTTP/1.1 $status\r\nConnection: close\r\nX-App: $run\r\n"
                 . "Content-Length: " . length($text) . "\r\n\r\n$text";

    $answer = substr $answer, 0, length($answer) - 5
        if $run == 1 && $what eq 'truncate';

    while (length $answer) {
        my $n = syswrite $c, $answer or return;
        substr $answer, 0, $n, '';
    }
}


# what was executed: [ { time, run, from, what, ms } ... ]

sub executions
{
    my ($dir, $op) = @_;

    open my $log, '<', "$dir/$op" or return;

    return map { my %e; @e{qw(time run from what ms)} = split; \%e } <$log>;
}


1;
