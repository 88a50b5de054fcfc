# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Client;

# An HTTP/1 client on a bare socket, so that a test can send what no client
# library would, stop anywhere, and close or reset when it likes.  Also the
# response object that both this and the HTTP/2 client (H2.pm) return.

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use Socket qw(SOL_SOCKET SO_LINGER IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

use IdempotencyTest::Process ();

# every connection made, so that a block can end with none left open
my %open;


sub connect
{
    my ($class, %o) = @_;

    my $socket = $o{socket} ? $o{socket}
        : $o{unix}
        ? IO::Socket::UNIX->new(Peer => $o{unix})
        : IO::Socket::INET->new(PeerAddr => $o{host} || '127.0.0.1',
                                PeerPort => $o{port}, Proto => 'tcp',
                                Timeout => 5);

    die "client: cannot connect to port $o{port}: $!\n" if !$socket;

    setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1 if !$o{unix} && !$o{socket};
    $socket->blocking(0);

    my $self = bless { socket => $socket, in => '', eof => 0,
                       head => $o{head} }, $class;
    $open{$self} = $self;

    return $self;
}


sub close_all
{
    $_->abort for values %open;
    %open = ();
}


# less than this is a look whether nothing came

sub patience
{
    my ($seconds) = @_;

    return $seconds < 5 ? $seconds : $seconds * $IdempotencyTest::Process::Slow;
}


# the bytes of a request; $headers is a hash, or a list of name => value where
# order or repetition matters

sub request_bytes
{
    my ($method, $uri, $body, $headers) = @_;

    my @headers = ref $headers eq 'ARRAY' ? @$headers
                : map { $_ => $headers->{$_} } sort keys %{ $headers || {} };
    my $given = '';
    my $out = "$method $uri HTTP/1.1\r\n";
    my $lines = '';

    while (@headers) {
        my ($name, $value) = splice @headers, 0, 2;
        next if !defined $value;
        $given .= lc "$name\n";
        $lines .= "$name: $value\r\n";
    }

    $out .= "Host: localhost\r\n" if $given !~ /^host$/m;
    $out .= $lines;

    if (defined $body && $given !~ /^(?:content-length|transfer-encoding)$/m) {
        $out .= "Content-Length: " . length($body) . "\r\n";
    }

    return "$out\r\n" . (defined $body ? $body : '');
}


sub send_part
{
    my ($self, $bytes, $timeout) = @_;

    my $end = time + patience($timeout || 10);

    while (length $bytes) {
        my $n = syswrite $self->{socket}, $bytes;

        if (defined $n) {
            substr($bytes, 0, $n, '');
            next;
        }

        # a peer that answered and closed takes no more: not our affair
        return 0 if $! != EAGAIN && $! != EINTR;
        return 0 if time > $end;

        # the peer may be waiting for us to read
        IO::Select->select(undef, IO::Select->new($self->{socket}), undef, 0.1);
        $self->fill(0);
    }

    return 1;
}


# one request more on the same connection

sub request
{
    my ($self, $method, $uri, $body, $headers) = @_;

    $self->{head} = $method eq 'HEAD';
    return $self->send_part(request_bytes($method, $uri, $body, $headers));
}


# reads what is there within $timeout seconds; true if something came, or the
# end

sub fill
{
    my ($self, $timeout) = @_;

    return 0 if $self->{eof} || !$self->{socket};
    return 0 if !IO::Select->new($self->{socket})->can_read($timeout);

    my $n = sysread $self->{socket}, $self->{in}, 65536, length $self->{in};

    if (!defined $n) {
        return 0 if $! == EAGAIN || $! == EINTR;
        $self->{error} = "$!";
        $n = 0;
    }

    $self->{eof} = 1 if $n == 0;

    return 1;
}


# The next response, or undef if it is not there, whole, within $timeout
# seconds (10).  If the connection ends before: what came, with status 0 if
# there was no header, and truncated() true.  Who waits for long waits for
# something that comes, and a busy machine may be late with it.

sub read_response
{
    my ($self, $timeout) = @_;

    my $end = time + patience(defined $timeout ? $timeout : 10);

    while (1) {
        my $response = $self->parse;

        if ($response && $response->status == 100) {
            next;
        }

        return $response if $response;

        my $left = $end - time;
        return undef if $left <= 0;

        $self->fill($left);
    }
}


sub parse
{
    my $self = shift;

    my $in = $self->{in};
    my $eof = $self->{eof};

    if ($in !~ /^(.*?\r\n)\r\n/s) {
        return undef if !$eof;
        $self->{in} = '';
        return IdempotencyTest::Response->new(0, '', [], '', $in, 1);
    }

    my $head = $1;
    my $at = length($head) + 2;

    my ($line, @lines) = split /\r\n/, $head;
    my ($status, $reason) = $line =~ m{^HTTP/\S+ (\d+) ?(.*)};
    $status = 0 if !defined $status;
    my @headers = map { [ /^([^:]*):[ \t]*(.*?)[ \t]*$/ ] } @lines;
    my %h = map { lc $_->[0] => $_->[1] } @headers;
    my ($body, $truncated) = ('', 0);

    if ($self->{head} || $status && $status < 200 || $status == 204 || $status == 304) {
        # no body

    } elsif (($h{'transfer-encoding'} || '') =~ /chunked/i) {
        while (1) {
            if (substr($in, $at) !~ /^([0-9A-Fa-f]+)[^\r\n]*\r\n/) {
                return undef if !$eof;
                $truncated = 1;
                last;
            }

            my ($size, $skip) = (hex $1, length $&);

            if (length $in < $at + $skip + $size + 2) {
                return undef if !$eof;
                $body .= substr $in, $at + $skip;
                $truncated = 1;
                last;
            }

            $body .= substr $in, $at + $skip, $size;
            $at += $skip + $size + 2;
            last if $size == 0;
        }

    } elsif (defined $h{'content-length'}) {
        my $have = length($in) - $at;

        if ($have < $h{'content-length'}) {
            return undef if !$eof;
            $truncated = 1;
            $body = substr $in, $at;
            $at = length $in;

        } else {
            $body = substr $in, $at, $h{'content-length'};
            $at += $h{'content-length'};
        }

    } else {
        return undef if !$eof;
        $body = substr $in, $at;
        $at = length $in;
    }

    $at = length $in if $truncated;
    substr($self->{in}, 0, $at, '');

    return IdempotencyTest::Response->new($status, $reason, \@headers, $body,
                                          substr($in, 0, $at), $truncated);
}


# what came so far and is not yet part of a response; waits until there are
# $n bytes

sub read_some
{
    my ($self, $n, $timeout) = @_;

    my $end = time + patience($timeout || 10);

    while (length $self->{in} < ($n || 1) && !$self->{eof} && time < $end) {
        $self->fill($end - time);
    }

    return $self->{in};
}


# did the peer close, within $timeout seconds?

sub closed
{
    my ($self, $timeout) = @_;

    my $end = time + patience(defined $timeout ? $timeout : 10);

    while (!$self->{eof} && time < $end) {
        $self->fill($end - time);
    }

    return $self->{eof};
}


sub finish_sending
{
    my $self = shift;

    shutdown $self->{socket}, 1;
}


sub abort
{
    my $self = shift;

    delete $open{$self};
    close delete $self->{socket} if $self->{socket};
}


sub reset
{
    my $self = shift;

    setsockopt $self->{socket}, SOL_SOCKET, SO_LINGER, pack 'II', 1, 0;
    $self->abort;
}


package IdempotencyTest::Response;

use strict;
use warnings;

sub new
{
    my ($class, $status, $reason, $headers, $body, $raw, $truncated) = @_;

    return bless { status => $status, reason => $reason, headers => $headers,
                   body => $body, raw => $raw, truncated => $truncated },
                 $class;
}

sub status    { $_[0]{status} }
sub reason    { $_[0]{reason} }
sub headers   { $_[0]{headers} }      # [[name, value], ...] as received
sub body      { $_[0]{body} }
sub raw       { $_[0]{raw} }
sub truncated { $_[0]{truncated} }

# the first value of a header, or undef; in list context all of them

sub header
{
    my ($self, $name) = @_;

    my @values = map { $_->[1] } grep { lc $_->[0] eq lc $name }
                 @{ $self->{headers} };

    return wantarray ? @values : $values[0];
}

# "Name: value" lines in order, less those named: for comparing two responses

sub header_lines
{
    my ($self, @less) = @_;

    my %less = map { lc $_ => 1 } @less;

    return join '', map { "$_->[0]: $_->[1]\n" }
                    grep { !$less{lc $_->[0]} } @{ $self->{headers} };
}

sub json
{
    my $self = shift;

    require JSON::PP;
    return JSON::PP->new->utf8->decode($self->{body});
}

# error.code of one of the module's own answers, or ''

sub error_code
{
    my $self = shift;

    my $json = eval { $self->json };
    return '' if ref $json ne 'HASH' || ref $json->{error} ne 'HASH';
    return $json->{error}{code} // '';
}

1;
