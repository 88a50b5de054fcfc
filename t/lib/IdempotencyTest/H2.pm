# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::H2;

# A small HTTP/2 client for cleartext connections with prior knowledge: enough
# to send requests in pieces, read responses, and reset a stream.  Requests are
# encoded as literals without indexing; responses are decoded in full, Huffman
# strings and dynamic table included (RFC 7541).

use strict;
use warnings;

use IO::Select;
use IdempotencyTest::Client;
use Time::HiRes qw(time);

use constant {
    DATA => 0, HEADERS => 1, RST_STREAM => 3, SETTINGS => 4, PING => 6,
    GOAWAY => 7, WINDOW_UPDATE => 8, CONTINUATION => 9,

    END_STREAM => 1, ACK => 1, END_HEADERS => 4, PADDED => 8, PRIORITY => 32,

    NO_ERROR => 0, CANCEL => 8,
};


sub connect
{
    my ($class, %o) = @_;

    my $self = bless { c => IdempotencyTest::Client->connect(%o), next => 1,
                       stream => {}, table => [], window => 65535,
                       initial => 65535 }, $class;

    # an own window so large that the server need not wait for us
    $self->{c}->send_part("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        . frame(SETTINGS, 0, 0, pack 'nN', 4, 0x7fffffff)
        . frame(WINDOW_UPDATE, 0, 0, pack 'N', 0x3fffffff));

    return $self;
}


sub frame
{
    my ($type, $flags, $stream, $payload) = @_;

    my $length = length $payload;

    return pack('CnCCN', $length >> 16, $length & 0xffff, $type, $flags,
                $stream) . $payload;
}


# Sends a request and returns its stream.  Without a body given, the stream is
# ended at once unless $o{more}; with $o{more} the body can go on with data().

sub request
{
    my ($self, $method, $uri, $body, $headers, %o) = @_;

    my $id = $self->{next};
    $self->{next} += 2;

    my @headers = ref $headers eq 'ARRAY' ? @$headers
                : map { $_ => $headers->{$_} } sort keys %{ $headers || {} };

    my $block = '';
    my @all = (':method' => $method, ':scheme' => 'http', ':path' => $uri,
               ':authority' => 'localhost', @headers);

    while (@all) {
        my ($name, $value) = splice @all, 0, 2;
        next if !defined $value;
        $block .= "\0" . literal(lc $name) . literal($value);
    }

    my $has_body = defined $body && length $body;
    my $end = !$has_body && !$o{more};

    $self->{stream}{$id} = { headers => [], body => '', window =>
                             $self->{initial} };
    $self->{c}->send_part(frame(HEADERS,
                                END_HEADERS | ($end ? END_STREAM : 0),
                                $id, $block));

    $self->data($id, $body, !$o{more}) if $has_body;

    return $id;
}


sub data
{
    my ($self, $id, $bytes, $end) = @_;

    my $s = $self->{stream}{$id};
    my $limit = time + 10;

    while (1) {
        my $size = length $bytes;
        for my $max (16384, $self->{window}, $s->{window}) {
            $size = $max if $size > $max;
        }

        if ($size <= 0 && length $bytes) {
            return 0 if time > $limit || $s->{done};
            $self->pump(0.1);
            next;
        }

        my $part = substr $bytes, 0, $size, '';
        $self->{window} -= $size;
        $s->{window} -= $size;

        $self->{c}->send_part(frame(DATA, $end && !length $bytes
                                          ? END_STREAM : 0, $id, $part));
        last if !length $bytes;
    }

    return 1;
}


sub rst
{
    my ($self, $id, $code) = @_;

    $self->{c}->send_part(frame(RST_STREAM, 0, $id,
                                pack 'N', defined $code ? $code : CANCEL));
}


# the response of a stream, or undef if it is not whole within $timeout
# seconds (10); status 0 and truncated() if the stream or connection broke

sub response
{
    my ($self, $id, $timeout) = @_;

    my $s = $self->{stream}{$id};
    my $end = time + IdempotencyTest::Client::patience($timeout // 10);

    while (!$s->{done}) {
        if ($self->{c}{eof}) {
            $s->{broken} = $s->{done} = 1;
            last;
        }

        my $left = $end - time;
        return undef if $left <= 0;
        $self->pump($left);
    }

    my @headers = grep { $_->[0] !~ /^:/ } @{ $s->{headers} };
    my ($status) = map { $_->[1] } grep { $_->[0] eq ':status' }
                   @{ $s->{headers} };

    return IdempotencyTest::Response->new($status || 0, '', \@headers,
                                          $s->{body}, $s->{body},
                                          $s->{broken} ? 1 : 0);
}


# what of a body came so far

sub body_so_far
{
    my ($self, $id, $n, $timeout) = @_;

    my $s = $self->{stream}{$id};
    my $end = time + IdempotencyTest::Client::patience($timeout || 10);

    while (length $s->{body} < ($n || 1) && !$s->{done} && time < $end) {
        $self->pump($end - time);
        last if $self->{c}{eof};
    }

    return $s->{body};
}


sub ping
{
    my ($self, $timeout) = @_;

    my $end = time + IdempotencyTest::Client::patience($timeout || 10);

    $self->{pong} = 0;
    $self->{c}->send_part(frame(PING, 0, 0, 'idempote'));

    while (!$self->{pong} && time < $end && !$self->{c}{eof}) {
        $self->pump($end - time);
    }

    return $self->{pong};
}


sub abort { $_[0]{c}->abort }
sub reset { $_[0]{c}->reset }


# reads and handles frames, waiting at most $timeout seconds for more

sub pump
{
    my ($self, $timeout) = @_;

    my $c = $self->{c};
    $c->fill($timeout);

    while (length $c->{in} >= 9) {
        my ($high, $low, $type, $flags, $id) = unpack 'CnCCN', $c->{in};
        my $length = $high << 16 | $low;

        last if length $c->{in} < 9 + $length;

        my $payload = substr $c->{in}, 9, $length;
        substr($c->{in}, 0, 9 + $length, '');

        $self->on_frame($type, $flags, $id & 0x7fffffff, $payload);
    }
}


sub on_frame
{
    my ($self, $type, $flags, $id, $payload) = @_;

    my $s = $self->{stream}{$id} || {};

    if ($type == SETTINGS && !($flags & ACK)) {
        while (length $payload) {
            my ($name, $value) = unpack 'nN', substr $payload, 0, 6, '';

            if ($name == 4) {
                $_->{window} += $value - $self->{initial}
                    for values %{ $self->{stream} };
                $self->{initial} = $value;
            }
        }

        $self->{c}->send_part(frame(SETTINGS, ACK, 0, ''));

    } elsif ($type == PING) {
        if ($flags & ACK) {
            $self->{pong} = 1;
        } else {
            $self->{c}->send_part(frame(PING, ACK, 0, $payload));
        }

    } elsif ($type == WINDOW_UPDATE) {
        my $more = unpack 'N', $payload;
        $id ? ($s->{window} += $more) : ($self->{window} += $more);

    } elsif ($type == HEADERS || $type == CONTINUATION) {
        if ($type == HEADERS) {
            my $pad = 0;
            $pad = unpack 'C', substr $payload, 0, 1, '' if $flags & PADDED;
            substr($payload, 0, 5, '') if $flags & PRIORITY;
            $payload = substr $payload, 0, length($payload) - $pad;
            $s->{block} = '';
            $s->{ended} = $flags & END_STREAM;
        }

        $s->{block} .= $payload;

        if ($flags & END_HEADERS) {
            push @{ $s->{headers} }, $self->decode(delete $s->{block});
            $s->{done} = 1 if $s->{ended};
        }

    } elsif ($type == DATA) {
        my $pad = 0;
        $pad = unpack 'C', substr $payload, 0, 1, '' if $flags & PADDED;
        $s->{body} .= substr $payload, 0, length($payload) - $pad;
        $s->{done} = 1 if $flags & END_STREAM;

    } elsif ($type == RST_STREAM) {
        $s->{error} = unpack 'N', $payload;
        $s->{broken} = $s->{done} = 1;

    } elsif ($type == GOAWAY) {
        $self->{goaway} = unpack 'x4N', $payload;
    }
}


# --- HPACK ----------------------------------------------------------------

my @static = map { [ split /=/, $_, 2 ] } split /\n/, <<'_TABLE_';
=
:authority=
:method=GET
:method=POST
:path=/
:path=/index.html
:scheme=http
:scheme=https
:status=200
:status=204
:status=206
:status=304
:status=400
:status=404
:status=500
accept-charset=
accept-encoding=gzip, deflate
accept-language=
accept-ranges=
accept=
access-control-allow-origin=
age=
allow=
authorization=
cache-control=
content-disposition=
content-encoding=
content-language=
content-length=
content-location=
content-range=
content-type=
cookie=
date=
etag=
expect=
expires=
from=
host=
if-match=
if-modified-since=
if-none-match=
if-range=
if-unmodified-since=
last-modified=
link=
location=
max-forwards=
proxy-authenticate=
proxy-authorization=
range=
referer=
refresh=
retry-after=
server=
set-cookie=
strict-transport-security=
transfer-encoding=
user-agent=
vary=
via=
www-authenticate=
_TABLE_

# The code of RFC 7541, appendix B, is canonical, so the lengths say all: one
# letter a byte value, "a" for 5 bits and so on to "z" for 30.

my $lengths =
    'isxxxxxxxtzxxzxxxxxxxxzxxxxxxxxxbffhibdgffdgdbbbaaabbbbbbbcdkbhf'
  . 'ibccccccccccccccccccccccdcdioijbkabababbbaccbbbabcbaabccccckgjix'
  . 'prpprrrsrssssststtrstssssqrsrsstrqprrssqsrrtqrssqqrqsrssprrrsrrs'
  . 'vvporsruvvvwwvtuoqvwwvwtqqvvxwwwptpqrqqsrruuttvsvwvvwwwwwxwwwwwv';

my %symbol;

{
    my @length = map { ord($_) - ord('a') + 5 } split //, $lengths;
    my ($code, $previous) = (0, 5);

    for my $byte (sort { $length[$a] <=> $length[$b] || $a <=> $b } 0 .. 255) {
        $code <<= $length[$byte] - $previous;
        $previous = $length[$byte];
        $symbol{sprintf "%0${previous}b", $code++} = chr $byte;
    }
}


sub literal
{
    my $value = shift;

    return integer(length $value, 7) . $value;
}


sub integer
{
    my ($n, $bits) = @_;

    my $max = (1 << $bits) - 1;
    return chr $n if $n < $max;

    my $out = chr $max;
    $n -= $max;

    while ($n >= 128) {
        $out .= chr($n & 127 | 128);
        $n >>= 7;
    }

    return $out . chr $n;
}


sub read_integer
{
    my ($in, $bits) = @_;

    my $max = (1 << $bits) - 1;
    my $n = ord(substr $$in, 0, 1, '') & $max;
    return $n if $n < $max;

    my $shift = 0;

    while (1) {
        my $byte = ord substr $$in, 0, 1, '';
        $n += ($byte & 127) << $shift;
        $shift += 7;
        return $n if $byte < 128;
    }
}


sub read_string
{
    my $in = shift;

    my $huffman = ord($$in) & 128;
    my $data = substr $$in, 0, read_integer($in, 7), '';

    return $data if !$huffman;

    my ($out, $code) = ('', '');

    for my $bit (split //, unpack 'B*', $data) {
        $code .= $bit;

        if (defined $symbol{$code}) {
            $out .= $symbol{$code};
            $code = '';
        }
    }

    return $out;
}


sub decode
{
    my ($self, $in) = @_;

    my $table = $self->{table};
    my @headers;

    my $entry = sub {
        my $n = shift;
        my $found = $n < @static ? $static[$n] : $table->[$n - @static];
        die "h2: no header $n in the table\n" if !$found;
        return [ $found->[0], defined $found->[1] ? $found->[1] : '' ];
    };

    while (length $in) {
        my $first = ord $in;

        if ($first & 128) {
            push @headers, $entry->(read_integer(\$in, 7));
            next;
        }

        if (($first & 0xe0) == 0x20) {                # a new table size
            read_integer(\$in, 5);
            next;
        }

        my $keep = $first & 64;
        my $n = read_integer(\$in, $keep ? 6 : 4);
        my $name = $n ? $entry->($n)->[0] : read_string(\$in);
        my $header = [ $name, read_string(\$in) ];

        push @headers, $header;

        if ($keep) {
            unshift @$table, $header;

            my $size = 0;
            for my $i (0 .. $#$table) {
                $size += 32 + length($table->[$i][0]) + length $table->[$i][1];
                if ($size > 4096) {
                    $#$table = $i - 1;
                    last;
                }
            }
        }
    }

    return @headers;
}

1;
