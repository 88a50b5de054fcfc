# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Load;

# Clients that go on asking while a test breaks something: each operation has a
# key of its own, and is asked for until it is answered with 200, as a client
# that retries would.  Every answer is written down.  Afterwards all keys are
# asked for once more, and what was answered is held against what the
# application says it ran.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep time);

use IdempotencyTest::Process qw(wait_for);

my @All;


# ports: of the nginx hosts; uri: what is asked, without arguments; clients:
# how many at a time; pause: s between two operations of one; ms: executions
# take none of it, once and twice that, so that whatever is broken finds some
# that run; name: what keys begin with; dir: where the clients write, made and removed

sub start
{
    my ($class, %o) = @_;

    my $self = bless { clients => 6, pause => 0.01, uri => '/ok',
                       name => 'load', ms => 30, limit => 20, %o }, $class;

    push @All, $self;

    mkdir $self->{dir};
    $self->{start} = time;
    $self->{pids} = [ map { $self->client($_) } 1 .. $self->{clients} ];

    return $self;
}


sub child
{
    my ($self, $code) = @_;

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;
    return $pid if $pid;

    our $Stop = 0;
    $SIG{TERM} = sub { $Stop = 1 };
    $SIG{INT} = 'DEFAULT';
    $SIG{PIPE} = 'IGNORE';
    $SIG{ALRM} = 'DEFAULT';

    eval { $code->(); 1 } or print STDERR "# load: $@";
    POSIX::_exit(0);
}


sub client
{
    my ($self, $number) = @_;

    return $self->child(sub {
        our $Stop;
        my %sockets;

        srand $number;
        open my $log, '>>', "$self->{dir}/answers.$number" or die $!;

        for (my $n = 1; !$Stop; $n++) {
            my $key = "$self->{name}-$number-$n";

            $self->until_answered($log, \%sockets, $key, $self->{limit})
                or next;

            # one that did not hear the answer, on another host as likely

            $self->ask($log, \%sockets, $key) if rand() < 0.3;

            sleep $self->{pause};
        }
    });
}


sub until_answered
{
    my ($self, $log, $sockets, $key, $limit) = @_;

    my $end = time + $limit;

    while (time < $end) {
        return 1 if $self->ask($log, $sockets, $key) eq '200';
        sleep 0.05;
    }

    return 0;
}


# asks once, on any host, and writes down what came; returns the status

sub ask
{
    my ($self, $log, $sockets, $key) = @_;

    my $port = $self->{ports}[rand @{ $self->{ports} }];
    my $from = time;

    my $s = $sockets->{$port} ||= IO::Socket::INET->new(
        PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 5);

    my ($head, $body) = ('', '');

    # the same for each try

    my ($n) = $key =~ /(\d+)$/;
    my $ms = $n % 3 * $self->{ms};

    if ($s) {
        my $out = "POST $self->{uri}?op=$key&ms=$ms HTTP/1.1\r\n"
                  . "Host: localhost\r\nIdempotency-Key: $key\r\n"
                  . "Content-Length: 1\r\n\r\nx";

        if (syswrite $s, $out) {
            ($head, $body) = read_answer($s, $self->{patience} || 15);
        }
    }

    if ($head eq '' || $head =~ /^Connection: close/mi) {
        delete $sockets->{$port};
    }

    my ($status) = $head =~ m{^HTTP/1\.1 (\d+)};
    my ($record) = $head =~ /^X-Record: ([0-9a-f]{16})/mi;
    my ($code) = $body =~ /"code":"(\w+)"/;
    my $replayed = $head =~ /^Idempotent-Replayed: true/mi ? 1 : 0;

    $status ||= 'gone';
    $body =~ s/\s+/_/g;
    $body = '-' if $status ne '200' || $body eq '';

    syswrite $log, sprintf "%.4f %.4f %s %s %s %d %s %s %d\n", $from, time,
                           $key, $status, $code || '-', $replayed, $body,
                           $record || '-', $port;

    return $status;
}


sub read_answer
{
    my ($s, $patience) = @_;

    my ($in, $end) = ('', time + $patience);
    my $select = IO::Select->new($s);

    while (1) {
        if ($in =~ /\A(.*?\r\n)\r\n(.*)\z/s) {
            my ($head, $body) = ($1, $2);
            my ($length) = $head =~ /^Content-Length: (\d+)/mi;
            return ($head, $body) if length $body >= ($length || 0);
        }

        my $left = $end - time;
        return ('', '') if $left <= 0;

        # told to stop meanwhile (EINTR): what was asked is still answered

        $select->can_read($left) or next;
        sysread $s, $in, 65536, length $in or return ('', '');
    }
}


# what was answered so far: [ { from, to, key, status, ... } ... ], by time

sub answers
{
    my ($self, $which) = @_;

    my @answers;

    for my $file (glob "$self->{dir}/" . ($which || 'answers') . '.*') {
        open my $in, '<', $file or die $!;

        while (<$in>) {
            my %a;
            @a{qw(from to key status code replayed body record port)} = split;
            push @answers, \%a;
        }
    }

    return sort { $a->{to} <=> $b->{to} } @answers;
}


sub stop
{
    my ($self) = @_;

    kill TERM => $_ for @{ $self->{pids} };

    for my $pid (splice @{ $self->{pids} }) {
        wait_for(sub { waitpid($pid, POSIX::WNOHANG()) != 0 },
                 $self->{limit} + 20) or kill KILL => $pid;
    }

    $self->{stop} ||= time;
}


sub stop_all
{
    for my $self (splice @All) {
        kill KILL => @{ $self->{pids} };
        waitpid $_, 0 for @{ $self->{pids} };
        unlink glob "$self->{dir}/*";
        rmdir $self->{dir};
    }
}


# Asks for every key once more, and compares.  counts: { key => executions };
# logs: the text of the hosts' error logs, which say of which records the
# commit was not acknowledged.  A key is "acknowledged" if its first answer of
# an execution was not among these.

sub check
{
    my ($self, $counts, @logs) = @_;

    $self->stop;

    my @answers = $self->answers;
    my %keys = map { $_->{key} => 1 } @answers;
    my @keys = sort keys %keys;

    for my $n (0 .. 3) {
        push @{ $self->{pids} }, $self->child(sub {
            my %sockets;
            open my $log, '>>', "$self->{dir}/again.$n" or die $!;
            $self->until_answered($log, \%sockets, $_, 10)
                for @keys[grep { $_ % 4 == $n } 0 .. $#keys];
        });
    }

    waitpid $_, 0 for splice @{ $self->{pids} };

    $counts = $counts->();

    my %unsure;
    for my $text (@logs) {
        $unsure{$1} = 1
            while $text =~ /(?:commit\ in\ store|not\ stored|\d\ replicas?\b)
                            [^\n]*record\ ([0-9a-f]{16})/gx;
    }

    my %r = (keys => scalar @keys, answers => scalar @answers,
             unanswered => [], none => [], different => [], twice => [],
             broken => [], acknowledged => 0);
    my (%first, %bodies, %codes);

    for my $a (@answers, $self->answers('again')) {
        if ($a->{status} ne '200') {
            $codes{ $a->{code} eq '-' ? $a->{status} : $a->{code} }++;
            next;
        }

        $bodies{ $a->{key} }{ $a->{body} }++;
        $first{ $a->{key} } ||= $a if !$a->{replayed};
    }

    my @refused = grep { $_->{status} ne '200' } @answers;

    $r{refused} = @refused;
    $r{codes} = \%codes;

    if (@refused) {
        $r{refused_from} = $refused[0]{from} - $self->{start};
        $r{refused_to} = $refused[-1]{to} - $self->{start};
    }

    for my $key (@keys) {
        my $runs = $counts->{$key} || 0;
        my $f = $first{$key};
        my $sure = $f && !$unsure{ $f->{record} };

        $r{acknowledged}++ if $sure;
        push @{ $r{unanswered} }, $key if !$bodies{$key};
        push @{ $r{none} }, $key if $bodies{$key} && !$runs;
        push @{ $r{different} }, $key if keys %{ $bodies{$key} || {} } > 1;
        push @{ $r{twice} }, $key if $runs > 1;
        push @{ $r{broken} }, $key
            if $sure && ($runs > 1 || keys %{ $bodies{$key} } > 1);
    }

    $r{first} = \%first;
    $r{unsure} = \%unsure;

    return \%r;
}


# the longest time without a 200, from then on, s

sub gap
{
    my ($self, $since) = @_;

    my ($last, $most) = ($since, 0);

    for my $a ($self->answers) {
        next if $a->{status} ne '200' || $a->{to} < $since;
        $most = $a->{to} - $last if $a->{to} - $last > $most;
        $last = $a->{to};
    }

    return $most;
}


# from then on until no request is refused any more, s

sub recovery
{
    my ($self, $since) = @_;

    my $last = $since;

    for my $a ($self->answers) {
        $last = $a->{to} if $a->{status} ne '200' && $a->{to} > $since;
    }

    return $last - $since;
}

1;
