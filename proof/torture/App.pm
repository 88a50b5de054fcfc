# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The application: notes the start and the end of each execution, with its key
# and its body, in one file, and misbehaves as its request asks, the first time
# only.  It may be killed with all that it does, and started again.

package App;

use strict;
use warnings;
use Digest::MD5 qw(md5_hex);
use IO::Socket::INET;
use POSIX ();
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time sleep);

use Loop;


# start($port, $file, $host): its pid, which is that of its process group

sub start
{
    my ($port, $file, $host) = @_;
    my $listen;

    for (1 .. 100) {
        $listen = IO::Socket::INET->new(LocalAddr => $host || '127.0.0.1', Listen => 511,
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
    $SIG{TERM} = $SIG{INT} = 'DEFAULT';
    $SIG{PIPE} = 'IGNORE';

    my $parent = getppid;
    my $self = bless { loop => Loop->new, runs => {} }, __PACKAGE__;

    $self->{runs}{$_} = @{ history($file)->{$_} } for keys %{ history($file) };
    open $self->{log}, '>>', $file or die "app: $!";

    $listen->blocking(0);
    $self->{loop}->on($listen, read => sub {
        while (my $c = $listen->accept) { $self->welcome($c) }
    });

    $self->{loop}->turn(1) while getppid == $parent;
    POSIX::_exit(0);
}


sub note { my ($self, @words) = @_; syswrite $self->{log}, "@words\n" }

sub welcome
{
    my ($self, $c) = @_;
    my $in = '';

    $c->blocking(0);

    $self->{loop}->on($c, read => sub {
        my $n = sysread $c, $in, 262144, length $in;

        return if !defined $n && $!{EAGAIN};
        return $self->drop($c) if !$n;

        my $head = index $in, "\r\n\r\n";
        return if $head < 0;

        my ($length) = $in =~ /^content-length: (\d+)/mi;
        return if length($in) - $head - 4 < ($length || 0);

        $self->{loop}->off($c);
        $self->execute($c, $in, substr $in, $head + 4);
    });
}

sub drop { my ($self, $c) = @_; $self->{loop}->off($c); close $c }


# it is there in full: that is an execution

sub execute
{
    my ($self, $c, $in, $body) = @_;

    my ($op, $what, $ms) = $in =~ m{^\S+ \S*?\?op=(\w+)&what=(\w+)&ms=(\d+)} or return $self->drop($c);
    my %x = (from => '-', pid => 0, begin => 0, record => '-');

    $x{ lc $1 } = $2 while $in =~ /^x-(from|pid|begin|record): (\S+)/mig;
    my ($key) = $in =~ /^idempotency-key: (\S+)/mi;

    my $run = ++$self->{runs}{$op};
    my $now = sprintf '%.4f', time;

    $self->note('run', $op, $run, $now, @x{qw(from pid begin record)}, $key || '-', md5_hex($body));

    return $self->stream($c, $op, $run, $what, $ms) if is_stream($what);

    my $wait = $what ne 'timeout' || $run == 1 ? $ms / 1000 : 0;

    $self->{loop}->at($now + $wait, sub { $self->answer($c, $op, $run, $what) });
}


# what an execution says: the judge holds it against what clients were told

use constant EVENTS => 8;

sub is_stream { return $_[0] =~ /^(stream|broken)$/ }

sub events
{
    my ($op, $run) = @_;

    return map { "data: run $run of $op event $_ " . ('x' x ($_ * 150)) . "\n\n" } 1 .. EVENTS;
}

sub text
{
    my ($op, $run, $what) = @_;

    return join '', events($op, $run) if is_stream($what);
    return "run $run of $op\n" . ('x' x ($what eq 'big' ? 90000 : 0));
}


# one event after the other; the first time, "broken" has no end

sub stream
{
    my ($self, $c, $op, $run, $what, $ms) = @_;

    my $broken = $run == 1 && $what eq 'broken';
    my @events = events($op, $run);
    my $head = "HTTP/1.1 200 OK\r\nConnection: close\r\nX-App: $run\r\nContent-Type: text/event-stream\r\n"
               . "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n";
    my $end = sub { $self->note('end', $op, $run, sprintf('%.4f', time), $_[0]) };

    $#events = EVENTS / 2 if $broken;

    my $next; $next = sub {
        my $event = shift @events;
        my $bytes = sprintf "%s%x\r\n%s\r\n", $head, length $event, $event;

        $head = '';

        if (!@events && !$broken) {
            $bytes .= "0\r\n\r\n";
            $end->('sending');
        }

        my $n = syswrite $c, $bytes;
        my $gone = !defined $n || $n < length $bytes;

        if (@events && !$gone) {
            return $self->{loop}->at(time + $ms / 1000 / EVENTS, $next);
        }

        $end->($gone ? 'gone' : $broken ? 'truncated' : 200);
        $self->drop($c);
        undef $next;
    };

    $next->();
}


sub answer
{
    my ($self, $c, $op, $run, $what) = @_;
    my $end = sub { $self->note('end', $op, $run, sprintf('%.4f', time), $_[0]) };

    if ($run == 1 && $what eq 'reset') {
        $end->('reset');
        setsockopt $c, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0;
        return $self->drop($c);
    }

    my $text = text($op, $run, $what);
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

    my $send = sub {
        my $n = syswrite $c, $answer;

        return if !defined $n && $!{EAGAIN};
        substr $answer, 0, $n, '' if $n;
        return if $n && length $answer;

        $end->($n ? $status =~ /^(\d+|truncated)/ : 'gone');
        $self->drop($c);
    };

    $self->{loop}->on($c, write => $send);
    $send->();
}


# what was executed: [ { run, time, from, pid, begin, record, key, body, end,
# how } ... ] of an operation; it is read again when there is more of it

my %known;

sub executions { my ($file, $op) = @_; return @{ history($file)->{$op} || [] } }

sub history
{
    my $file = shift;
    my $size = -s $file || 0;

    return $known{$file}{of} if $known{$file} && $known{$file}{size} == $size;

    my %of;
    open my $log, '<', $file or return {};

    while (<$log>) {
        my ($what, $op, $run, @rest) = split;

        if ($what eq 'run') {
            my %e = (run => $run);
            @e{qw(time from pid begin record key body)} = @rest;
            $of{$op}[$run - 1] = \%e;

        } else {
            @{ $of{$op}[$run - 1] }{qw(end how)} = @rest;
        }
    }

    $known{$file} = { size => $size, of => \%of };

    return \%of;
}


1;
