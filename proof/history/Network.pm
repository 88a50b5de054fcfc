# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The network between the hosts and the servers of their store.
#
# As root, where the machine has network namespaces: each host is in one of its
# own, with a cable (veth) to this one, where the servers, the application and
# the clients are.  This one is private, too: nothing is seen from outside, and
# all of it is gone with the processes that live in it.  A host is cut off
# silently by a route to an address that nobody has, and refused by one that
# says so.
#
# Otherwise, or with NETWORK=loopback: ports of 127.0.0.1, and a proxy for each
# host before a store that is one server.  One of several servers tells its own
# addresses, past any proxy, and can't be cut off that way.

package Network;

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(time sleep);

use IdempotencyTest::Process qw(free_port);
use Proxy;


use constant {
    SERVERS => '10.78.0.1',
    APP     => '10.79.0.1',
};


# runs this program again in a namespace of its own, if it can be had

sub enter
{
    my $want = $ENV{NETWORK} || 'auto';

    return if $ENV{HISTORY_INSIDE} || $want eq 'loopback';

    my $can = $> == 0 && system('unshare -n ip link set lo up >/dev/null 2>&1') == 0
              && system('unshare -n ip link add try0 type veth peer name try1 >/dev/null 2>&1') == 0;

    die "there are no network namespaces here\n" if !$can && $want eq 'namespaces';
    return if !$can;

    $ENV{HISTORY_INSIDE} = 1;
    exec 'unshare', '-n', $^X, $0, @ARGV or die "unshare: $!\n";
}


sub new
{
    my ($class, @hosts) = @_;

    my $self = bless { hosts => \@hosts, own => $ENV{HISTORY_INSIDE} ? 1 : 0, port => {}, proxy => {} }, $class;

    if ($self->{own}) {
        do_ip('link set lo up', 'addr add ' . SERVERS . '/32 dev lo', 'addr add ' . APP . '/32 dev lo');
        $self->lay_cable($_) for @hosts;
    }

    return $self;
}

sub do_ip
{
    my @inside = ref $_[0] ? @{ shift() } : ();

    for (@_) {
        system(@inside, 'ip', split) == 0 or die "ip $_ failed\n";
    }
}


sub lay_cable
{
    my ($self, $host) = @_;
    my $n = 1 + grep { $_ lt $host } @{ $self->{hosts} };

    # its namespace lives as long as this process

    my $pid = fork;

    if (!$pid) {
        exec 'setpriv', '--pdeathsig', 'KILL', 'unshare', '-n', 'sleep', 1_000_000 or POSIX::_exit(1);
    }

    $self->{keeper}{$host} = $pid;
    $self->{number}{$host} = $n;

    for (1 .. 200) {
        last if (readlink("/proc/$pid/ns/net") || '') ne readlink("/proc/$$/ns/net");
        sleep 0.02;
    }

    do_ip("link add cable$n type veth peer name eth0 netns $pid", "addr add 10.77.$n.1/24 dev cable$n",
          "link set cable$n up");
    do_ip([ $self->inside($host) ], 'link set lo up', "addr add 10.77.$n.2/24 dev eth0", 'link set eth0 up',
          "route add default via 10.77.$n.1", 'route add ' . SERVERS . "/32 via 10.77.$n.1",
          "neigh add 10.77.$n.99 lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
}


# what a command has to begin with to run on that host

sub inside
{
    my ($self, $host) = @_;

    return $self->{own} ? ('nsenter', '-t', $self->{keeper}{$host}, '-n', '--') : ();
}


# addresses: of a host; of the servers and of the application, for all

sub address { my ($self, $host) = @_; return $self->{own} ? "10.77.$self->{number}{$host}.2" : '127.0.0.1' }
sub servers { $_[0]{own} ? SERVERS : '127.0.0.1' }
sub app { $_[0]{own} ? APP : '127.0.0.1' }


# where that host finds the one server of its store

sub way
{
    my ($self, $host, $port) = @_;

    return SERVERS . ":$port" if $self->{own};

    if (!$self->{proxy}{$host}) {
        $self->{port}{$host} = free_port();
        $self->{proxy}{$host} = Proxy::start($self->{port}{$host}, $port);
    }

    return "127.0.0.1:$self->{port}{$host}";
}

sub can_cut { $_[0]{own} || %{ $_[0]{proxy} } }


sub silent
{
    my ($self, $host) = @_;
    my $n = $self->{number}{$host};

    return Proxy::tell($self->{proxy}{$host}, 'silent') if !$self->{own};
    do_ip([ $self->inside($host) ], 'route replace ' . SERVERS . "/32 via 10.77.$n.99");
}

sub refuse
{
    my ($self, $host) = @_;

    if (!$self->{own}) {
        Proxy::tell($self->{proxy}{$host}, $_) for 'cut', 'refuse';
        return;
    }

    do_ip([ $self->inside($host) ], 'route replace unreachable ' . SERVERS . '/32');
}

sub mend
{
    my ($self, $host) = @_;
    my $n = $self->{number}{$host};

    return Proxy::tell($self->{proxy}{$host}, 'pass') if !$self->{own};
    do_ip([ $self->inside($host) ], 'route replace ' . SERVERS . "/32 via 10.77.$n.1");
}


sub stop
{
    my $self = shift;
    my @pids = (values %{ $self->{keeper} || {} }, map { $_->{pid} } values %{ $self->{proxy} });

    kill KILL => $_ for @pids;
    waitpid $_, 0 for @pids;
}


1;
