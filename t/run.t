# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# "make run" is what a stranger sees first: what it prints is true, the stats
# page is there, traffic comes when asked for, and nothing stays behind.

use strict;
use warnings;
use lib 't/lib';

use File::Temp qw(tempdir);
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use IdempotencyTest::Process;
use Test::More;
use Time::HiRes qw(sleep time);

plan skip_all => 'it brings its own stores'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';
plan skip_all => 'it is for the nginx of the distribution'
    if ($ENV{TEST_NGINX_BINARY} || '/usr/sbin/nginx') ne '/usr/sbin/nginx';

sub until_true {
    my ($seconds, $sub) = @_;
    my $end = time + $seconds;

    while (time < $end) {
        my $value = $sub->();
        return $value if $value;
        sleep 0.1;
    }

    return;
}

# runs it; calls $sub with its port and its words; then ends it

sub demonstration {
    my ($what, $env, $sub) = @_;

    my $port = IdempotencyTest::Process::free_port();
    my $said = "build/run.said.$$";
    local @ENV{keys %$env, 'PORT', 'NGINX_BIN'} = (values %$env, $port, '');

    my $pid = fork // die "fork: $!";

    if ($pid == 0) {
        POSIX::setsid();
        open STDIN, '<', '/dev/null';
        open STDOUT, '>', $said;
        open STDERR, '>&', \*STDOUT;
        exec 'tools/run';
    }

    my $up = until_true(60, sub {
        IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port")
            || waitpid($pid, WNOHANG) > 0 && die slurp($said);
    });

    ok($up, "$what: it listens");
    until_true(60, sub { slurp($said) =~ /Ctrl-C ends it/ });
    $sub->($port, slurp($said)) if $up;

    kill 'TERM', $pid;
    ok(until_true(60, sub { waitpid($pid, WNOHANG) != 0 }), "$what: it ends");

    # its session has nobody left: neither nginx, nor a store, nor traffic

    ok(until_true(60, sub { !kill 0, -$pid }), "$what: and leaves nobody");

    unlink $said;
}

sub slurp {
    open my $fh, '<', $_[0] or return '';
    local $/;
    return scalar <$fh>;
}

# what the lines that it prints answer

sub lines_are_true {
    my ($what, $said) = @_;

    my @lines = $said =~ /^(curl .*)$/mg;
    is(scalar @lines, 3, "$what: three lines to paste");

    my @answers = map { `$_ 2>/dev/null` =~ s/\r//gr } @lines;
    my ($first, $second) = map { /\n\n(.*)/s } @answers;

    # each answer has the lines that were promised, as far as they go

    my @promised = $said =~ /^curl .*\n\n((?: {7}.*\n)+)/mg;
    is(scalar @promised, 3, "$what: three answers to expect");

    for my $n (0 .. 2) {
        for my $line (split /\n/, $promised[$n] // '') {
            my $like = join '.*', map { quotemeta }
                       split /\.\.\./, $line =~ s/^ +//r;
            like($answers[$n], qr/^$like/m, "$what: line $n: $line");
        }
    }

    unlike($answers[0], qr/Replayed/, "$what: the first one ran");
    is($second, $first, "$what: the second is the same order");
}

demonstration('memory', { DEMO => '', STORE => '' }, sub {
    my ($port, $said) = @_;

    lines_are_true('memory', $said);

    my ($page) = $said =~ m{stats page: (http://\S+)};
    my $html = `curl -s -i -H 'Accept: text/html' $page`;

    like($html, qr{^HTTP/1.1 200 }, 'the stats page is there');
    like($html, qr{<html}i, 'for a browser');
    like(`curl -s $page`, qr/^nginx_idempotency_requests_total.*REPLAYED.*1$/mi,
         'with the replay');
    like($said, qr/make run DEMO=traffic/, 'it says how to see more');
    like($said, qr/make run STORE=valkey/, 'and how to try a server');
    like($said, qr/make run STORE=postgres/, 'or the other');
});

demonstration('traffic, valkey', { DEMO => 'traffic', STORE => 'valkey' }, sub {
    my ($port, $said) = @_;

    lines_are_true('valkey', $said);

    for my $outcome (qw(executed replayed)) {
        ok(until_true(60, sub {
            `curl -s http://127.0.0.1:$port/idempotency`
                =~ /^nginx_idempotency_requests_total
                    \{(?=[^}]*store="demo").*"$outcome".*\}\s[2-9]/xmi
        }), "traffic: $outcome");
    }
});

# Root starts PostgreSQL by setpriv.  One stands before it that makes the server
# late: its socket is there, and nobody accepts yet.

my $late = tempdir(CLEANUP => 1);

open my $fh, '>', "$late/setpriv" or die "setpriv: $!\n";
print $fh <<'_EOF_';
#!/bin/sh
PATH=${PATH#*:}
for word; do
    case $word in
    unix_socket_directories=*)
        perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => shift,
            Listen => 1) or die' "${word#*=}/.s.PGSQL.5432"
        sleep 1
        ;;
    esac
done
exec setpriv "$@"
_EOF_
close $fh;
chmod 0755, "$late/setpriv" or die "setpriv: $!\n";

demonstration('postgres', { DEMO => '', STORE => 'postgres',
                            PATH => "$late:$ENV{PATH}" }, sub {
    my ($port, $said) = @_;

    lines_are_true('postgres', $said);

    like(`curl -s http://127.0.0.1:$port/idempotency`,
         qr/^nginx_idempotency_requests_total\{(?=[^}]*store="demo").*
            "REPLAYED".*\}\s1$/xmi, 'postgres: the records are there');
});

# what can't be

for my $bad ([ PORT => '80x', 'number' ], [ DEMO => 'film', 'traffic' ],
             [ STORE => 'floppy', 'valkey' ])
{
    my ($name, $value, $word) = @$bad;
    local $ENV{$name} = $value;
    my $said = `tools/run 2>&1 </dev/null`;

    isnt($?, 0, "$name=$value is refused");
    like($said, qr/^run: $name.*$word.*"\Q$value\E"$/m, 'and says what is right');
}

done_testing();
