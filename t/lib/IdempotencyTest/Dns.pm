# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Dns;

# A name server of a test's own: UDP on loopback, and what it answers can be
# changed while it runs.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use Socket qw(AF_INET AF_INET6 inet_pton);

use IdempotencyTest::Process qw(start_child);

my @All;


# names => { 'redis.test' => [ '127.0.0.1', '::1' ] }, ttl => s

sub start
{
    my ($class, %o) = @_;

    my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
                                       LocalPort => 0, Proto => 'udp')
        or die "dns: $!\n";

    my ($pid, $control)
        = start_child('dns', sub { run($socket, shift, $o{ttl} || 1) });

    my $self = bless { pid => $pid, control => $control,
                       port => $socket->sockport }, $class;
    push @All, $self;

    $self->set($_, @{ $o{names}{$_} }) for keys %{ $o{names} || {} };

    return $self;
}


# the addresses of a name from now on: none is "there is no such name",
# "silent" is no answer at all

sub set
{
    my ($self, $name, @addresses) = @_;

    syswrite $self->{control}, "$name @addresses\n";
    sysread $self->{control}, my $ok, 1;
}


# how often a name was asked for

sub asked
{
    my ($self, $name) = @_;

    syswrite $self->{control}, "? $name\n";
    sysread $self->{control}, my $n, 20;

    return 0 + $n;
}


sub stop_all
{
    for my $self (splice @All) {
        kill KILL => $self->{pid};
        waitpid $self->{pid}, 0;
    }
}


sub run
{
    my ($socket, $control, $ttl) = @_;

    my $select = IO::Select->new($socket, $control);
    my (%names, %asked);

    while (1) {
        for my $s ($select->can_read) {

            if ($s == $control) {
                sysread($control, my $text, 1000) or return;
                my ($name, @addresses) = split ' ', $text;

                if ($name eq '?') {
                    syswrite $control, $asked{$addresses[0]} || '0';
                    next;
                }

                $names{$name} = \@addresses;
                syswrite $control, '.';
                next;
            }

            my $peer = recv $s, my $query, 512, 0;
            next if !defined $peer || length $query < 17;

            my ($at, @labels) = 12;
            while (my $len = unpack "x${at}C", $query) {
                push @labels, substr $query, $at + 1, $len;
                $at += 1 + $len;
            }

            my $name = lc join '.', @labels;
            my ($type) = unpack 'x' . ($at + 1) . 'n', $query;
            my @found = @{ $names{$name} || [] };

            $asked{$name}++;
            next if "@found" eq 'silent';

            my @rr = map { pack('nnnNn/a', 0xc00c, $type, 1, $ttl, $_) }
                     grep { defined }
                     map { $type == 1 && !/:/ ? inet_pton(AF_INET, $_)
                         : $type == 28 && /:/ ? inet_pton(AF_INET6, $_)
                         : undef } @found;

            my $rcode = @found ? 0 : 3;

            send $s, pack('a2nnnnn', $query, 0x8180 | $rcode, 1,
                          scalar @rr, 0, 0)
                     . substr($query, 12, $at + 5 - 12) . join('', @rr),
                 0, $peer;
        }
    }
}

1;
