# A client that retries, or loses patience: requests of operations that others
# ask for at the same time, cut off at any byte.  Writes down what it was told.

package Client;

use strict;
use warnings;
use Digest::MD5 qw(md5 md5_hex);
use IO::Select;
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time sleep);


use constant LIMIT => 15;               # seconds; longer is a hang

# what an execution does, how often of a hundred, and for how long

our @what = (
    [ ok => 38, 0, 20 ],        [ slow => 20, 30, 600 ], [ long => 5, 2200, 3000 ],
    [ missing => 5, 0, 20 ],    [ big => 8, 0, 50 ],     [ refuse => 8, 0, 50 ],
    [ reset => 6, 0, 100 ],     [ truncate => 6, 0, 100 ], [ timeout => 4, 4500, 4500 ],
);


# the operation with that number: the same in every process of a seed

sub operation
{
    my ($seed, $i) = @_;
    my @n = unpack 'L4', md5("$seed/$i");
    my $dice = $n[0] % 100;
    my $what;

    for (@what) { $what = $_; last if ($dice -= $_->[1]) < 0 }

    my $store = $n[1] % 3 ? 'redis' : 'memory';
    my $policy = ($n[1] >> 8) % 4 ? 'lease' : 'hold';
    my $ms = $what->[2] + $n[2] % ($what->[3] - $what->[2] + 1);

    return { id => "op$i", store => $store, policy => $policy, what => $what->[0], ms => $ms,
             uri => "/$policy/$what->[0]?op=op$i&what=$what->[0]&ms=$ms",
             body => "$seed/$i " x (1 + $n[3] % 40), key => "key-$seed-$i" };
}


# asks once: { status, body, replayed, code, end }, or { gone => 1 }

sub ask
{
    my ($op, $port, $how) = @_;

    my $bytes = "POST $op->{uri} HTTP/1.1\r\nHost: torture\r\nConnection: close\r\n"
                . "Idempotency-Key: $op->{key}\r\n"
                . "Content-Length: " . length($op->{body}) . "\r\n\r\n$op->{body}";

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

        sysread $c, $in, 262144, length $in or last;
    }

    my ($head, $body) = split /\r\n\r\n/, $in, 2;
    return { gone => 1 } if !defined $body;

    my ($status) = $head =~ m{^HTTP/1\.1 (\d+)};
    my ($length) = $head =~ /^Content-Length: (\d+)/mi;
    my ($run) = $head =~ /^X-App: (\d+)/mi;
    my ($code) = $body =~ /"code":"(\w+)"/;

    return { gone => 1 } if defined $length && $length != length $body;

    return { status => $status, body => md5_hex($body), code => $code || '-',
             app => $run || 0,
             replayed => $head =~ /^Idempotent-Replayed: true/mi ? 1 : 0 };
}


# one client, until the time is over

sub start
{
    my ($o, $number) = @_;

    my $pid = fork;
    return $pid if $pid;

    $SIG{TERM} = 'DEFAULT';
    srand $o->{seed} * 1000 + $number;

    open my $log, '>', "$o->{dir}/client.$number" or die $!;

    while (time < $o->{until}) {
        my $now = int((time - $o->{start}) * $o->{rate});
        my $back = rand() < 0.6 ? int rand 3 : int rand 60;
        my $i = $now > $back ? $now - $back : 0;
        my $op = operation($o->{seed}, $i);
        my @ports = @{ $o->{ports}{ $op->{store} } };
        my $port = $ports[rand @ports];
        my $dice = rand;

        my $how = $dice < 0.10 ? { bytes => rand, pause => rand 0.2 }
                : $dice < 0.25 ? { patience => rand 0.3, reset => rand() < 0.5 }
                : undef;

        my $start = time;
        my $r = ask($op, $port, $how);
        my $end = time;

        my $result = $r->{hang} ? 'hang' : $r->{gone} ? 'gone' : $r->{left} ? 'left'
                   : "$r->{status} $r->{code} $r->{app} $r->{replayed} $r->{body}";

        syswrite $log, sprintf "%.4f %.4f %d %s\n", $start, $end, $i, $result;
        sleep rand 0.05;
    }

    POSIX::_exit(0);
}


1;
