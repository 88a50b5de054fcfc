#!/usr/bin/perl

# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The scripted application of the tests: an HTTP/1 and FastCGI server that
# counts what it executes and behaves, or misbehaves, as the URI says.  What it
# can do is listed in README.md beside this file.
#
# One process and one select() loop, so that the counts need no locks.  It
# listens on loopback ports of the kernel's choice, prints them on one line
# ("http=<port> http2=<port> fastcgi=<port>"), and ends when its standard input
# is closed: it cannot outlive the test that started it.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use IO::Select;
use IO::Socket::INET;
use JSON::PP ();
use POSIX qw(EAGAIN EWOULDBLOCK EINTR);
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

$SIG{PIPE} = 'IGNORE';
$| = 1;

# endless answers and forgotten waits end some time
use constant ENDLESS => 60;

my %reason = (
    101 => 'Switching Protocols', 200 => 'OK', 201 => 'Created',
    202 => 'Accepted', 204 => 'No Content', 301 => 'Moved Permanently',
    302 => 'Found', 303 => 'See Other', 304 => 'Not Modified',
    400 => 'Bad Request', 401 => 'Unauthorized', 403 => 'Forbidden',
    404 => 'Not Found', 409 => 'Conflict', 422 => 'Unprocessable Entity',
    429 => 'Too Many Requests', 500 => 'Internal Server Error',
    502 => 'Bad Gateway', 503 => 'Service Unavailable',
    504 => 'Gateway Timeout',
);

my (%listen, %conn, @timers);
my (%count, %by_peer, %closed, %parked, @waiting, %last, %script);

my $read = IO::Select->new(\*STDIN);
my $write = IO::Select->new;


# --- event loop -----------------------------------------------------------

for my $kind (qw(http http2 fastcgi)) {
    my $socket = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => 0, Proto => 'tcp',
        Listen => 511, ReuseAddr => 1, Blocking => 0)
        or die "app: cannot listen: $!\n";

    $listen{$socket->fileno} = { socket => $socket, kind => $kind };
    $read->add($socket);
}

print join(' ', map { "$_->{kind}=" . $_->{socket}->sockport }
                sort { $a->{socket}->fileno <=> $b->{socket}->fileno }
                values %listen), "\n";

while (1) {
    my $now = time;

    @timers = sort { $a->[0] <=> $b->[0] } @timers;
    while (@timers && $timers[0][0] <= $now) {
        (shift @timers)->[1]->();
    }

    my $wait = @timers ? $timers[0][0] - time : 10;
    $wait = 0 if $wait < 0;

    my ($r, $w) = IO::Select->select($read, $write, undef, $wait);

    for my $fh (@{ $r || [] }) {
        my $fd = fileno $fh;
        next if !defined $fd;

        if ($fd == fileno STDIN) {
            my $n = sysread STDIN, my $buf, 512;
            exit 0 if !$n;
            next;
        }

        if ($listen{$fd}) {
            on_accept($listen{$fd});
        } elsif ($conn{$fd}) {
            on_readable($conn{$fd});
        }
    }

    for my $fh (@{ $w || [] }) {
        my $fd = fileno $fh;
        on_writable($conn{$fd}) if defined $fd && $conn{$fd};
    }
}


sub after
{
    my ($seconds, $code) = @_;

    push @timers, [time + $seconds, $code];
}


sub on_accept
{
    my $l = shift;

    while (my $socket = $l->{socket}->accept) {
        $socket->blocking(0);

        $conn{$socket->fileno} = {
            socket => $socket, fd => $socket->fileno, kind => $l->{kind},
            in => '', out => '',
        };

        $read->add($socket);
    }
}


sub on_readable
{
    my $c = shift;

    my $n = sysread $c->{socket}, $c->{in}, 65536, length $c->{in};

    if (!defined $n) {
        return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
        return gone($c);
    }

    return gone($c) if $n == 0;

    $c->{kind} eq 'fastcgi' ? fastcgi_input($c) : http_input($c);
}


sub on_writable
{
    my $c = shift;

    if (length $c->{out}) {
        my $n = syswrite $c->{socket}, $c->{out};

        if (!defined $n) {
            return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
            return gone($c);
        }

        substr($c->{out}, 0, $n, '');
    }

    if (!length $c->{out}) {
        $write->remove($c->{socket});
        my $then = delete $c->{then};
        $then->() if $then;
    }
}


sub put
{
    my ($c, $data, $then) = @_;

    return if $c->{dead};

    $c->{out} .= $data;
    $c->{then} = $then;
    $write->add($c->{socket});
}


# the peer closed, or the connection broke: while a request was unanswered it
# is remembered for /_closed

sub gone
{
    my $c = shift;

    if ($c->{op} && !$c->{done}) {
        $closed{$c->{op}}++;
    }

    drop($c);
    look_at_waiting();
}


sub drop
{
    my ($c, $reset) = @_;

    return if $c->{dead};

    $c->{dead} = 1;
    $read->remove($c->{socket});
    $write->remove($c->{socket});
    delete $conn{$c->{fd}};

    if ($c->{op} && $parked{$c->{op}}) {
        @{ $parked{$c->{op}} } = grep { $_->{c} != $c } @{ $parked{$c->{op}} };
    }

    if ($reset) {
        setsockopt $c->{socket}, SOL_SOCKET, SO_LINGER, pack 'II', 1, 0;
    }

    close $c->{socket};
}


# --- HTTP/1 ---------------------------------------------------------------

sub http_input
{
    my $c = shift;

    if ($c->{raw}) {                       # after 101: an echo
        put($c, $c->{in});
        $c->{in} = '';
        return;
    }

    return if $c->{busy};

    if (!$c->{req}) {
        $c->{in} =~ /\G(.*?\r\n)\r\n/sg or return;

        my $head = $1;
        substr($c->{in}, 0, length($head) + 2, '');
        pos($c->{in}) = undef;

        my ($line, @lines) = split /\r\n/, $head;
        my ($method, $uri, $version) = split / /, $line;
        my @headers = map { [ /^([^:]+):[ \t]*(.*?)[ \t]*$/ ] } @lines;
        my %h = map { lc $_->[0] => $_->[1] } @headers;

        $c->{req} = {
            method => $method, uri => $uri, version => $version || 'HTTP/0.9',
            headers => \@headers, h => \%h, body => '',
            left => $h{'content-length'} || 0,
            chunked => ($h{'transfer-encoding'} || '') =~ /chunked/i ? 1 : 0,
        };
    }

    my $req = $c->{req};

    if ($req->{chunked}) {
        while ($c->{in} =~ /^([0-9A-Fa-f]+)[^\r\n]*\r\n/) {
            my ($size, $skip) = (hex $1, length $&);
            return if length $c->{in} < $skip + $size + 2;

            $req->{body} .= substr $c->{in}, $skip, $size;
            substr($c->{in}, 0, $skip + $size + 2, '');

            if ($size == 0) {
                $req->{chunked} = 0;
                last;
            }
        }

        return if $req->{chunked};

    } elsif ($req->{left}) {
        my $part = substr $c->{in}, 0, $req->{left}, '';
        $req->{body} .= $part;
        $req->{left} -= length $part;
        return if $req->{left};
    }

    delete $c->{req};
    $c->{busy} = 1;
    $c->{done} = 0;

    $c->{keepalive} = $req->{version} eq 'HTTP/1.1'
                      && ($req->{h}{connection} || '') !~ /close/i;

    request($c, $req);
}


# --- FastCGI --------------------------------------------------------------

sub fastcgi_input
{
    my $c = shift;

    while (length $c->{in} >= 8) {
        my ($version, $type, $id, $length, $pad) = unpack 'CCnnC', $c->{in};

        return if length $c->{in} < 8 + $length + $pad;

        my $data = substr $c->{in}, 8, $length;
        substr($c->{in}, 0, 8 + $length + $pad, '');

        if ($type == 1) {                                  # BEGIN_REQUEST
            $c->{id} = $id;
            $c->{params} = $c->{stdin} = '';
            $c->{keepalive} = unpack('x2C', $data) & 1;

        } elsif ($type == 4) {                             # PARAMS
            $c->{params} .= $data;

        } elsif ($type == 5) {                             # STDIN
            if ($length) {
                $c->{stdin} .= $data;
                next;
            }

            my %param = fastcgi_params($c->{params});
            my @headers;

            for my $name (sort keys %param) {
                next if $name !~ /^HTTP_(.*)/;
                push @headers, [ join('-', map { ucfirst lc } split /_/, $1),
                                 $param{$name} ];
            }

            $c->{busy} = 1;
            $c->{done} = 0;

            request($c, {
                method => $param{REQUEST_METHOD}, uri => $param{REQUEST_URI},
                version => 'FastCGI', headers => \@headers,
                h => { map { lc $_->[0] => $_->[1] } @headers },
                body => $c->{stdin},
            });
        }
    }
}


sub fastcgi_params
{
    my $data = shift;
    my @pairs;

    while (length $data) {
        my @size;

        for (1, 2) {
            my $n = unpack 'C', $data;
            if ($n & 0x80) {
                $n = unpack('N', $data) & 0x7fffffff;
                substr($data, 0, 4, '');
            } else {
                substr($data, 0, 1, '');
            }
            push @size, $n;
        }

        push @pairs, substr($data, 0, $size[0], ''),
                     substr($data, 0, $size[1], '');
    }

    return @pairs;
}


sub fastcgi_record
{
    my ($c, $type, $data) = @_;
    my $out = '';

    do {
        my $part = substr $data, 0, 65528, '';
        $out .= pack('CCnnCx', 1, $type, $c->{id}, length $part, 0) . $part;
    } while (length $data);

    return $out;
}


# --- answers --------------------------------------------------------------



sub head
{
    my ($c, $status, $reason, $headers) = @_;

    $reason = $reason{$status} || 'Unknown' if !defined $reason;

    my $line = $c->{kind} eq 'fastcgi' ? "Status: $status $reason\r\n"
                                       : "HTTP/1.1 $status $reason\r\n";

    return $line . join('', map { "$_->[0]: $_->[1]\r\n" } @$headers) . "\r\n";
}


# $a: status, reason, headers [[name, value] ...], body, framing (length,
# chunked, close), hold_body: wait for a release in the middle of the body

sub answer
{
    my ($c, $req, $a) = @_;

    my $status = $a->{status} || 200;
    my @headers = @{ $a->{headers} || [] };
    my $body = defined $a->{body} ? $a->{body} : '';
    my $framing = $a->{framing} || 'length';
    my $bodiless = $status == 204 || $status == 304
                   || $req->{method} eq 'HEAD';

    push @headers, [ 'X-App', $c->{kind} eq 'http2' ? 2 : 1 ];

    if ($c->{kind} eq 'fastcgi') {
        my $out = head($c, $status, $a->{reason}, \@headers)
                  . ($bodiless ? '' : $body);
        $c->{done} = 1;
        put($c, fastcgi_record($c, 6, $out) . fastcgi_record($c, 6, '')
                . fastcgi_record($c, 3, pack 'NCx3', 0, 0),
            sub { finish($c) });
        return;
    }

    if ($framing eq 'chunked' && $req->{version} eq 'HTTP/1.0') {
        $framing = 'close';
    }

    $c->{keepalive} = 0 if $framing eq 'close';

    if ($status >= 200 && $status != 204) {
        if ($framing eq 'length') {
            push @headers, [ 'Content-Length', length $body ];
        } elsif ($framing eq 'chunked') {
            push @headers, [ 'Transfer-Encoding', 'chunked' ];
        }
    }

    push @headers, [ 'Connection', 'close' ] if !$c->{keepalive};

    my $head = head($c, $status, $a->{reason}, \@headers);

    if ($bodiless) {
        $c->{done} = 1;
        put($c, $head, sub { finish($c) });
        return;
    }

    my @parts = ($body);
    if ($framing eq 'chunked' || $a->{hold_body}) {
        my $half = int(length($body) / 2);
        @parts = (substr($body, 0, $half), substr($body, $half));
    }

    if ($framing eq 'chunked') {
        @parts = map { sprintf("%x\r\n", length $_) . "$_\r\n" }
                 grep { length } @parts;
        push @parts, '' if @parts < 2;
        $parts[-1] .= "0\r\n\r\n";
    }

    if ($a->{hold_body}) {
        put($c, $head . shift @parts);
        park($c, sub {
            $c->{done} = 1;
            put($c, join('', @parts), sub { finish($c) });
        });
        return;
    }

    $c->{done} = 1;
    put($c, $head . join('', @parts), sub { finish($c) });
}


sub finish
{
    my $c = shift;

    delete $c->{op};

    if (!$c->{keepalive}) {
        drop($c);
        return;
    }

    $c->{busy} = 0;
    http_input($c) if $c->{kind} ne 'fastcgi' && length $c->{in};
}


# --- what the URI says ----------------------------------------------------

sub args
{
    my $query = shift;
    my %arg = (header => []);

    for my $pair (split /&/, defined $query ? $query : '') {
        my ($name, $value) = map { s/\+/ /g; s/%([0-9A-Fa-f]{2})/chr hex $1/ge;
                                   $_ } split /=/, $pair, 2;
        $value = '' if !defined $value;

        if ($name eq 'header') {
            push @{ $arg{header} }, [ split /: */, $value, 2 ];
        } else {
            $arg{$name} = $value;
        }
    }

    return \%arg;
}


sub request
{
    my ($c, $req) = @_;

    my ($path, $query) = split /\?/, $req->{uri}, 2;
    my $arg = args($query);

    return control($c, $req, $path, $arg) if $path =~ m{^/_};

    my $op = defined $arg->{op} ? $arg->{op} : $path;

    $c->{op} = $op;
    $req->{op} = $op;
    $req->{path} = $path;
    $req->{arg} = $arg;
    $req->{run} = ++$count{$op};
    $by_peer{$c->{kind}}{$op}++;
    $last{$op} = $req;

    look_at_waiting();

    my $run = sub { execute($c, $req) };

    my $answer = scripted($req);

    $run = sub { perform($c, $req, $answer) } if $answer;

    my $hold = $answer ? $answer->{hold}
                       : $path =~ m{/hold$} || ($arg->{hold} || '') eq '1';

    if ($hold) {
        my $next = $run;
        $run = sub { park($c, $next) };
    }

    my $ms = $answer ? $answer->{ms}
                     : $arg->{ms} || ($path =~ m{/slow$} ? 300 : 0);

    if ($ms) {
        after($ms / 1000, sub { $run->() if !$c->{dead} });
    } else {
        $run->();
    }
}


sub park
{
    my ($c, $code) = @_;

    push @{ $parked{$c->{op}} }, { c => $c, code => $code };
    look_at_waiting();
}


# What /_answer told to answer to this operation: one answer for each run, and
# the last one for all further runs.

sub scripted
{
    my $req = shift;

    my $answers = $script{$req->{op}} or return undef;
    my $n = $req->{run} < @$answers ? $req->{run} : @$answers;

    return $answers->[$n - 1];
}


sub perform
{
    my ($c, $req, $answer) = @_;

    if ($answer->{close} || $answer->{reset}) {
        return drop($c, $answer->{reset});
    }

    my $body = defined $answer->{body} ? $answer->{body} : '';

    $body =~ s/\{run\}/$req->{run}/g;
    $body =~ s/\{request:(\w+)\}/member_of($req->{body}, $1)/ge;

    answer($c, $req, { %$answer, body => $body });
}


# a member of a JSON body, as JSON

sub member_of
{
    my ($body, $name) = @_;

    my $json = eval { JSON::PP->new->decode($body) };
    my $value = ref $json eq 'HASH' ? $json->{$name} : undef;

    return JSON::PP->new->canonical->allow_nonref->ascii->encode($value);
}


# The last segment of the path names the behaviour, so that a location prefix
# of the test does not matter.

sub execute
{
    my ($c, $req) = @_;

    my ($arg, $path) = ($req->{arg}, $req->{path});
    my ($name) = $path =~ m{/([^/]*)$};
    my $body = "run $req->{run}\n";

    my %a = (
        status    => $arg->{status},
        headers   => [ [ 'Content-Type', $arg->{type} || 'text/plain' ],
                       @{ $arg->{header} } ],
        body      => $body,
        framing   => $arg->{chunked} ? 'chunked'
                     : $arg->{nolength} ? 'close' : 'length',
        hold_body => ($arg->{hold} || '') eq 'body',
    );

    if (defined $arg->{n} && $name ne 'sse') {
        $a{body} = body_of($req->{run}, $arg->{n});
    }

    if ($path =~ m{/status/(\d+)$}) {
        $a{status} = $1;

    } elsif ($name eq 'reset') {
        if ($arg->{after}) {
            put($c, head($c, 200, undef, [ [ 'Content-Length', 1000 ],
                                           @{ $arg->{header} } ])
                    . 'x' x 500,
                sub { after(0.05, sub { drop($c, 1) }) });
        } else {
            drop($c, 1);
        }
        return;

    } elsif ($name eq 'close') {
        drop($c);
        return;

    } elsif ($name eq 'truncate') {
        # a half of what it says, or of "n"
        my $status = $arg->{status} || 200;
        my $n = $arg->{n} || 1000;
        my $half = 'x' x ($n / 2);
        my $sent = $c->{kind} eq 'fastcgi'
            ? fastcgi_record($c, 6, head($c, $status, undef, $a{headers})
                                    . $half)
            : $arg->{chunked}
            ? head($c, $status, undef, [ [ 'Transfer-Encoding', 'chunked' ],
                                         @{ $arg->{header} } ])
              . sprintf("%x\r\n", $n / 2) . "$half\r\n"
            : head($c, $status, undef, [ [ 'Content-Length', $n ],
                                         @{ $arg->{header} } ]) . $half;
        put($c, $sent, sub { drop($c) });
        return;

    } elsif ($name eq 'garbage') {
        put($c, "HTTP/1.1 200 OK\r\n\x01\x02: x\r\n\r\n", sub { drop($c) });
        return;

    } elsif ($name eq 'early') {
        # an answer of its own, and the real one after it
        my $early = $arg->{early} || 103;
        my $answer = sub { answer($c, $req, \%a) };
        my $link = '</a' . 'a' x ($arg->{hint} || 0) . '>; rel=preload';
        put($c, "HTTP/1.1 $early Early\r\nLink: $link\r\n\r\n", sub {
            return drop($c) if $arg->{alone};
            return park($c, $answer) if ($arg->{hold} || '') eq 'answer';
            $answer->();
        });
        return;

    } elsif ($name eq 'http09') {
        put($c, $body, sub { drop($c) });
        return;

    } elsif ($name eq 'invalid') {
        # a body that is not what its header says it is
        if ($c->{kind} eq 'fastcgi') {
            put($c, fastcgi_record($c, 6, head($c, 200, undef, $a{headers})
                                          . 'x' x 500)
                    . "\xff" x 64, sub { after(5, sub { drop($c) }) });
            return;
        }
        my $head = head($c, 200, undef,
                        [ @{ $a{headers} },
                          [ 'Transfer-Encoding', 'chunked' ] ]);
        my $bad = "1f4\r\n" . 'x' x 500 . "\r\nno chunk\r\n";
        # $arg->{apart}: nginx has the header before the rest comes
        put($c, $arg->{apart} ? $head : "$head$bad", sub {
            after(0.05, sub { put($c, $bad, sub { }) }) if $arg->{apart};
        });
        return;

    } elsif ($name eq 'hang') {
        return;

    } elsif ($name eq 'stream') {
        my $end = time + ENDLESS;
        my $more;

        $more = sub {
            return if $c->{dead};
            return drop($c) if time > $end;
            put($c, "400\r\n" . 'x' x 1024 . "\r\n",
                sub { after(0.01, $more) });
        };

        put($c, head($c, 200, undef,
                     [ @{ $a{headers} }, [ 'Transfer-Encoding', 'chunked' ] ]),
            $more);
        return;

    } elsif ($name eq 'sse') {
        my $left = defined $arg->{n} ? $arg->{n} : 3;
        my ($end, $i, $more) = (time + ENDLESS, 0);

        $c->{keepalive} = 0;

        $more = sub {
            return if $c->{dead};
            $i++;

            if ($i > $left && $left > 0 || time > $end) {
                $c->{done} = 1;
                return finish($c);
            }

            put($c, "data: run $req->{run} event $i\n\n",
                sub { after(0.02, $more) });
        };

        put($c, head($c, 200, undef, [ [ 'Content-Type', 'text/event-stream' ],
                                       [ 'Cache-Control', 'no-cache' ],
                                       @{ $arg->{header} },
                                       [ 'Connection', 'close' ] ]), $more);
        return;

    } elsif ($name eq 'headers') {
        $a{status} ||= 201;
        $a{reason} = 'Made It';
        push @{ $a{headers} },
            [ 'Location', "/things/$req->{run}" ],
            [ 'Set-Cookie', "a=$req->{run}; Path=/; HttpOnly" ],
            [ 'X-Repeated', 'one' ],
            [ 'Set-Cookie', 'b=2, with comma; Path=/b' ],
            [ 'X-Repeated', 'two' ],
            [ 'ETag', "\"v$req->{run}\"" ],
            [ 'Last-Modified', 'Wed, 28 Jan 2026 10:00:00 GMT' ],
            [ 'Link', '</a>; rel="next"' ],
            [ 'Link', '</b>; rel="prev"' ],
            [ 'WWW-Authenticate', 'Basic realm="x"' ],
            [ 'X-Empty', '' ],
            [ 'X-Lower-case', 'CaSe kept' ];

    } elsif ($name eq 'binary') {
        $a{headers}[0][1] = 'application/octet-stream';
        $a{body} = join('', map { chr } 0 .. 255) x 4;

    } elsif ($name eq 'size') {
        $a{body} = body_of($req->{run}, 1024) if !defined $arg->{n};

    } elsif ($name eq '204') {
        $a{status} = 204;
        $a{headers} = [ @{ $arg->{header} } ];

    } elsif ($name eq 'echo') {
        $a{headers}[0][1] = 'application/json';
        $a{body} = JSON::PP->new->canonical->encode({
            run => $req->{run} + 0, method => $req->{method},
            uri => $req->{uri}, headers => $req->{headers},
            length => length($req->{body}) + 0,
            sha256 => sha256_hex($req->{body}),
        });

    } elsif ($name eq 'json') {
        $a{headers}[0][1] = 'application/json';
        $a{body} = "{\"run\":$req->{run},\"ok\":true}";

    } elsif ($name eq 'accel') {
        push @{ $a{headers} }, [ 'X-Accel-Redirect', $arg->{to} ];

    } elsif ($name eq 'gzip') {
        require IO::Compress::Gzip;
        my $plain = "run $req->{run} " . 'z' x 2000;
        IO::Compress::Gzip::gzip(\$plain, \my $zipped, -Minimal => 1);
        push @{ $a{headers} }, [ 'Content-Encoding', 'gzip' ],
                               [ 'Vary', 'Accept-Encoding' ];
        $a{body} = $zipped;

    } elsif ($name eq 'upgrade') {
        $c->{done} = 1;
        put($c, head($c, 101, undef, [ [ 'Upgrade', 'test' ],
                                       [ 'Connection', 'Upgrade' ] ]));
        $c->{raw} = 1;
        return;
    }

    answer($c, $req, \%a);
}


# n bytes that tell which run made them, and where in them one is

sub body_of
{
    my ($run, $n) = @_;

    my $body = "run $run ";
    my $line = join('', 'a' .. 'z', 0 .. 9) . "\n";

    $body .= $line x (1 + int($n / length $line));

    return substr $body, 0, $n;
}


# --- control --------------------------------------------------------------

sub control
{
    my ($c, $req, $path, $arg) = @_;

    my $op = defined $arg->{op} ? $arg->{op} : '';

    my $reply = sub {
        answer($c, $req, { body => shift,
                           headers => [ [ 'Content-Type', 'text/plain' ] ] });
    };

    if ($path eq '/_count') {
        my %kind = (1 => 'http', 2 => 'http2', fastcgi => 'fastcgi');
        my $from = defined $arg->{peer} ? $by_peer{$kind{$arg->{peer}} || ''}
                                        : \%count;
        return $reply->($from->{$op} || 0);
    }

    if ($path eq '/_counts') {                # of all operations
        return $reply->(join '', map { "$count{$_} $_\n" } sort keys %count);
    }

    if ($path eq '/_closed') {
        return $reply->($closed{$op} || 0);
    }

    if ($path eq '/_parked') {
        return $reply->(scalar @{ $parked{$op} || [] });
    }

    if ($path eq '/_last') {                  # the last request, as /echo has
        my $last = $last{$op} or return $reply->('{}');
        return $reply->(JSON::PP->new->canonical->encode({
            run => $last->{run} + 0, method => $last->{method},
            uri => $last->{uri}, headers => $last->{headers},
            length => length($last->{body}) + 0,
            sha256 => sha256_hex($last->{body}),
        }));
    }

    if ($path eq '/_release') {
        my @now = @{ delete $parked{$op} || [] };
        $_->{code}->() for @now;
        return $reply->(scalar @now);
    }

    if ($path eq '/_answer') {                # the body: a list of answers
        $script{$op} = JSON::PP->new->latin1->decode($req->{body});
        return $reply->('ok');
    }

    if ($path eq '/_reset') {
        for my $other (values %conn) {
            drop($other) if $other != $c;
        }

        (%count, %by_peer, %closed, %parked, %last, %script) = ();
        @waiting = ();
        return $reply->('ok');
    }

    # answered once n executions started, n are parked, or n were closed by
    # the peer; or with "timeout" when that does not come to pass

    if ($path eq '/_wait') {
        my $what = $arg->{for} || 'count';
        my $wait = {
            op => $op, n => $arg->{n} || 1, what => $what, reply => $reply,
        };

        push @waiting, $wait;
        after(($arg->{ms} || 5000) / 1000, sub {
            return if $wait->{over};
            $wait->{over} = 1;
            @waiting = grep { $_ != $wait } @waiting;
            $reply->('timeout') if !$c->{dead};
        });

        return look_at_waiting();
    }

    answer($c, $req, { status => 404, body => "no such control\n" });
}


sub look_at_waiting
{
    for my $wait (@waiting) {
        my $n = $wait->{what} eq 'count' ? $count{$wait->{op}} || 0
              : $wait->{what} eq 'closed' ? $closed{$wait->{op}} || 0
              : scalar @{ $parked{$wait->{op}} || [] };

        next if $n < $wait->{n};

        $wait->{over} = 1;
        $wait->{reply}->($n);
    }

    @waiting = grep { !$_->{over} } @waiting;
}
