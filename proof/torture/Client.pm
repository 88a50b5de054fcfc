# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Clients that retry, lose patience, or never give up: requests of operations
# that others ask for at the same time, over HTTP/1 cut off at any byte, over
# HTTP/2 reset at any point.  Each writes down what it was told.

package Client;

use strict;
use warnings;
use Digest::MD5 qw(md5 md5_hex);
use FindBin;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time sleep);

use lib "$FindBin::Bin/../../t/lib";
use IdempotencyTest::H2;


use constant LIMIT => 15;               # seconds; longer is a hang
use constant LONGEST => 4.5;            # an execution
use constant STUBBORN => 40;            # one that does not give up has it then

# what an execution does, how often of a hundred, and for how long, ms

our @what = (
    [ ok => 26, 0, 20 ],        [ slow => 20, 30, 600 ], [ long => 5, 2200, 3000 ],
    [ missing => 5, 0, 20 ],    [ big => 8, 0, 50 ],     [ refuse => 8, 0, 50 ],
    [ reset => 6, 0, 100 ],     [ truncate => 6, 0, 100 ], [ timeout => 4, 4500, 4500 ],
    [ stream => 8, 50, 1500 ],  [ broken => 4, 50, 400 ],
);


# the operation with that number: the same in every process of a seed

sub operation
{
    my ($o, $i) = @_;
    my @n = unpack 'L4', md5("$o->{seed}/$i");
    my $dice = $n[0] % 100;
    my $what;

    for (@{ $o->{what} || \@what }) { $what = $_; last if ($dice -= $_->[1]) < 0 }

    my $store = $o->{kinds}[ $n[1] % @{ $o->{kinds} } ];
    my $policy = ($n[1] >> 8) % 4 ? 'lease' : 'hold';
    my $ms = $what->[2] + $n[2] % ($what->[3] - $what->[2] + 1);

    $policy = 'brief' if $store eq 'memory' && ($n[1] >> 16) % 8 == 0;

    return { id => "op$i", store => $store, policy => $policy, what => $what->[0], ms => $ms,
             uri => "/$policy/$what->[0]?op=op$i&what=$what->[0]&ms=$ms",
             body => "$o->{seed}/$i " x (1 + $n[3] % 40), key => "key-$o->{seed}-$i" };
}


sub request
{
    my $op = shift;

    return "POST $op->{uri} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIdempotency-Key: $op->{key}\r\n"
           . "Content-Length: " . length($op->{body}) . "\r\n\r\n$op->{body}";
}


# asks once: { status, body, replayed, code, app }, or one of hang, gone (the
# server closed) and left (we did)

sub ask
{
    my ($op, $port, $how) = @_;

    my $bytes = request($op);

    my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port", Timeout => 5)
        or return { gone => 1 };

    local $SIG{PIPE} = 'IGNORE';
    my ($part, $patience) = (length $bytes, LIMIT);

    if ($how && $how->{bytes}) {
        $part = int $how->{bytes} * length $bytes;

    } elsif ($how && defined $how->{patience}) {
        $patience = $how->{patience};
    }

    syswrite $c, substr $bytes, 0, $part;

    if ($part < length $bytes) {
        sleep $how->{pause};
        return { left => 1 };
    }

    my $until = time + $patience;
    my $in = '';
    my $select = IO::Select->new($c);

    while (1) {
        my $left = $until - time;

        if ($left <= 0 || !$select->can_read($left)) {
            setsockopt $c, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0
                if $how && $how->{reset};
            return $how && defined $how->{patience} ? { left => 1 } : { hang => 1 };
        }

        my $n = sysread $c, $in, $how && $how->{read} || 262144, length $in;
        last if !$n;

        # gone in the middle of the answer

        return { left => 1 } if $how && $how->{read} && length $in >= $how->{read};
    }

    return parse($in);
}


sub parse
{
    my ($head, $body) = split /\r\n\r\n/, $_[0], 2;
    return { gone => 1 } if !defined $body;

    my ($length) = $head =~ /^Content-Length: (\d+)/mi;
    return { gone => 1 } if defined $length && $length != length $body;

    if ($head =~ /^Transfer-Encoding: chunked/mi) {
        $body = unchunked($body);
        return { gone => 1 } if !defined $body;
    }

    my ($status) = $head =~ m{^HTTP/1\.1 (\d+)};
    my ($run) = $head =~ /^X-App: (\d+)/mi;

    return answer($status, $run, scalar($head =~ /^Idempotent-Replayed: true/mi), $body);
}


# a stream has its end, or it broke off

sub unchunked
{
    my ($in, $body) = ($_[0], '');

    while ($in =~ /\G([0-9a-f]+)\r\n/gci) {
        my ($size, $at) = (hex $1, pos $in);

        return $body if !$size;
        return undef if length($in) < $at + $size + 2;

        $body .= substr $in, $at, $size;
        pos($in) = $at + $size + 2;
    }

    return undef;
}


sub answer
{
    my ($status, $run, $replayed, $body) = @_;
    my ($code) = $body =~ /"code":"(\w+)"/;

    return { status => $status, body => md5_hex($body), code => $code || '-',
             app => $run || 0, replayed => $replayed ? 1 : 0 };
}


# the same over HTTP/2; $how: { rst => head | body | wait | answer, ... }

sub ask_h2
{
    my ($op, $port, $how) = @_;

    local $SIG{PIPE} = 'IGNORE';

    my $r = eval {
        my $h2 = IdempotencyTest::H2->connect(host => '127.0.0.1', port => $port);
        my $got = ask_stream($h2, $op, $how);
        $how && $how->{reset} ? $h2->reset : $h2->abort;
        $got;
    };

    return $r || { gone => 1 };
}


sub ask_stream
{
    my ($h2, $op, $how) = @_;
    my $rst = $how ? $how->{rst} : '';

    my $id = $h2->request('POST', $op->{uri}, undef,
                          { 'idempotency-key' => $op->{key} }, more => 1);

    if ($rst eq 'head') {
        sleep $how->{pause};
        $h2->rst($id);
        return { left => 1 };
    }

    if ($rst eq 'body') {
        $h2->data($id, substr($op->{body}, 0, int $how->{bytes} * length $op->{body}), 0);
        sleep $how->{pause};
        $h2->rst($id);
        return { left => 1 };
    }

    $h2->data($id, $op->{body}, 1);

    if ($rst eq 'wait') {
        my $r = $h2->response($id, $how->{patience});

        if (!$r) {
            $h2->rst($id);
            $h2->ping(LIMIT) if !$how->{reset};
            return { left => 1 };
        }

    } elsif ($rst eq 'answer') {
        $h2->body_so_far($id, 1, LIMIT);
        $h2->rst($id);
        return { left => 1 };
    }

    my $r = $h2->response($id, LIMIT) or return { hang => 1 };

    return { gone => 1 } if $r->truncated || !$r->status;

    my $length = $r->header('content-length');
    return { gone => 1 } if defined $length && $length != length $r->body;

    return answer($r->status, scalar $r->header('x-app'),
                  ($r->header('idempotent-replayed') || '') eq 'true', $r->body);
}


sub how
{
    my $dice = rand;

    return { bytes => rand, pause => rand 0.2 } if $dice < 0.10;
    return { patience => rand 0.3, reset => rand() < 0.5 } if $dice < 0.23;
    return { read => 1 + int rand 400, patience => LIMIT } if $dice < 0.26;
    return undef;
}

sub how_h2
{
    my $dice = rand;

    return { rst => 'head', pause => rand 0.1 } if $dice < 0.06;
    return { rst => 'body', bytes => rand, pause => rand 0.1 } if $dice < 0.14;
    return { rst => 'wait', patience => rand 0.4, reset => rand() < 0.3 } if $dice < 0.32;
    return { rst => 'answer' } if $dice < 0.38;
    return undef;
}


# asks one of the hosts, and writes it down; the answer

sub try_one
{
    my ($o, $log, $i, $op, $polite) = @_;

    my @hosts = @{ $o->{hosts}{ $op->{store} } };
    my $host = $hosts[rand @hosts];
    my $h2 = rand() < 0.35;
    my $how = $polite ? undef : $h2 ? how_h2() : how();

    my $start = time;
    my $r = $h2 ? ask_h2($op, $o->{port}{"${host}2"}, $how)
                : ask($op, $o->{port}{$host}, $how);

    write_down($log, $start, $i, $host, $h2 ? 2 : 1, $r);

    return $r;
}


sub write_down
{
    my ($log, $start, $i, $host, $proto, $r) = @_;

    my $result = $r->{hang} ? 'hang' : $r->{gone} ? 'gone' : $r->{left} ? 'left' : $r->{status};

    syswrite $log, sprintf "%.4f %.4f %d %s %d %s %s %d %d %s\n", $start, time, $i, $host, $proto, $result,
        $r->{code} || '-', $r->{app} || 0, $r->{replayed} || 0, $r->{body} || '-';
}


# it has what it can have of this operation

sub settled
{
    my ($op, $r) = @_;

    return 0 if !$r->{status};
    return 1 if $r->{code} eq '-' && $r->{status} =~ /^(200|404)$/;
    return 1 if $r->{code} eq 'OUTCOME_UNKNOWN' && $op->{policy} eq 'hold';
    return 0;
}


# one client, until the time is over; each fourth does not give up

sub start
{
    my ($o, $number) = @_;

    my $pid = fork;
    return $pid if $pid;

    $SIG{TERM} = $SIG{INT} = 'DEFAULT';
    srand $o->{seed} * 1000 + $number;

    open my $log, '>', "$o->{dir}/client.$number" or die $!;
    my $stubborn = $number % 4 == 0;

    while (time < $o->{until}) {
        my $now = int((time - $o->{start}) * $o->{rate});
        my $back = rand() < 0.6 ? int rand 3 : int rand 60;
        my $i = $now > $back ? $now - $back : 0;
        my $op = operation($o, $i);

        my $r = try_one($o, $log, $i, $op, $stubborn);
        my $limit = time + STUBBORN;

        while ($stubborn && !settled($op, $r) && time < $limit) {
            sleep 0.1 + rand 0.3;
            $r = try_one($o, $log, $i, $op, 1);
        }

        syswrite $log, sprintf "%.4f %.4f %d - 0 unsettled - 0 0 -\n", $limit - STUBBORN, time, $i
            if $stubborn && !settled($op, $r);

        sleep rand 0.05;
    }

    POSIX::_exit(0);
}


1;
