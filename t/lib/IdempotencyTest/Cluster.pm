# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Cluster;

# A Redis Cluster of a test's own: masters with replicas, on loopback, that can
# be killed, frozen, restarted, failed over and resharded.
#
# The nodes start with a nodes.conf that already has all of them, as they would
# have written it themselves: nobody has to meet.  What is left to wait for is
# the two seconds that Redis gives a master before it trusts its cluster.

use strict;
use warnings;

use IO::Socket::INET;

use IdempotencyTest::Process qw(free_port wait_for);
use IdempotencyTest::Redis;

use constant SLOTS => 16384;


# dir: where; masters, replicas (of each), timeout: ms after which a node that
# does not answer is taken for dead; options: more for each redis-server;
# host; announce: sub that has a node, and returns more options for it

sub start
{
    my ($class, %o) = @_;

    my $self = bless { masters => 3, replicas => 1, timeout => 1000,
                       host => '127.0.0.1', %o }, $class;

    for my $n (0 .. $self->{masters} * (1 + $self->{replicas}) - 1) {
        my ($port, $bus) = free_ports();

        my $node = IdempotencyTest::Redis->start(
            lazy => 1, host => $self->{host}, port => $port,
            dir => "$self->{dir}.$port", number => $n,
            bus => $bus, id => sprintf('%040x', 0xabc0 + $n),
            first => $n % $self->{masters});

        $node->{auth} = $self->{auth};
        push @{ $self->{nodes} }, $node;
    }

    for my $node ($self->nodes) {
        $node->{options} = [
            '--cluster-enabled', 'yes',
            $node->knows('cluster-port') ? ('--cluster-port', $node->{bus}) : (),
            '--cluster-node-timeout', $self->{timeout},
            '--cluster-replica-validity-factor', 0,
            '--cluster-require-full-coverage', 'no',
            $node->knows('migration')
                ? ('--cluster-allow-replica-migration', 'no')
                : ('--cluster-migration-barrier', 100),
            '--repl-diskless-sync', 'yes', '--repl-diskless-sync-delay', 0,
            '--repl-ping-replica-period', 1,
            @{ $self->{options} || [] },
            $self->{announce} ? $self->{announce}->($node) : (),
        ];

        $self->write_nodes($node);
        $node->launch;
    }

    $_->wait_up for $self->nodes;
    $self->wait_ready;

    return $self;
}


# for clients, and for the other nodes: up to Redis 6 the second is the first and
# 10000, and both are to be below the ports of clients

sub free_ports
{
    return (free_port(), free_port())
        if IdempotencyTest::Redis->knows('cluster-port');

    for (1 .. 500) {
        my $port = free_port();
        my $bus = $port + 10000;

        return ($port, $bus)
            if $bus < 32768
               && IO::Socket::INET->new(LocalAddr => '127.0.0.1',
                      LocalPort => $bus, Proto => 'tcp', Listen => 1,
                      ReuseAddr => 1);
    }

    die "no free ports\n";
}


sub nodes { @{ $_[0]{nodes} } }


sub write_nodes
{
    my ($self, $me) = @_;

    my $per = SLOTS / $self->{masters};

    open my $out, '>', "$me->{dir}/nodes.conf" or die $!;

    for my $node ($self->nodes) {
        my $m = $node->{first};
        my $is_master = $node->{number} < $self->{masters};

        printf $out "%s %s:%d@%d %s%s %s 0 0 %d connected%s\n",
            $node->{id}, $self->{host}, $node->{port}, $node->{bus},
            $node == $me ? 'myself,' : '', $is_master ? 'master' : 'slave',
            $is_master ? '-' : $self->{nodes}[$m]{id}, $m + 1,
            $is_master ? sprintf ' %d-%d', int($m * $per),
                                 int(($m + 1) * $per) - 1 : '';
    }

    printf $out "vars currentEpoch %d lastVoteEpoch 0\n", $self->{masters};
    close $out;
}


# Every node that is up sees the same masters with all slots and no failure,
# and every replica has its master's data.

sub wait_ready
{
    my ($self, $timeout) = @_;

    my $why;

    wait_for(sub { $why = $self->not_ready; !$why }, $timeout || 30)
        or die "the cluster is not ready: $why\n";
}


sub not_ready
{
    my ($self) = @_;

    my ($first, $why);

    for my $node (grep { $_->is_up } $self->nodes) {
        eval {
            $node->command('CLUSTER', 'INFO') =~ /cluster_state:ok\r?\n.*
                                      cluster_slots_ok:@{[ SLOTS ]}\r?\n/sx
                or $why = "$node->{port} does not say ok";

            # who has which slots, as this node sees it; who is not up, not

            my %up = map { $_->{id} => $_->is_up } $self->nodes;
            my $view = join "\n", sort map {
                my @f = split ' ';
                $f[7] = '-' if $f[7] && $f[7] ne 'connected' && $up{$f[0]};
                my $role = $f[2] =~ /(master|slave)/ ? $1 : '?';
                $why = "$node->{port} does not hear " . substr $f[0], -4
                    if $up{$f[0]} && ($f[2] =~ /fail|handshake/
                       || $f[2] !~ /myself/ && $f[7] && $f[7] ne 'connected');
                $up{$f[0]} ? "$f[0] $role @f[8 .. $#f]" : ();
            } split /\n/, $node->command('CLUSTER', 'NODES');

            $first = $view if !defined $first;
            $why = "$node->{port} sees others" if $view ne $first;

            my $info = $node->command('INFO', 'replication');
            $why = "$node->{port} has no link to its master"
                if $info =~ /role:slave/ && $info !~ /master_link_status:up/;
            1;
        } or $why = "$node->{port}: $@";

        return $why if $why;
    }

    return undef;
}


# the masters now, in the order of their slots, as one that is up sees it

sub masters
{
    my ($self) = @_;

    return map { $_->{node} } sort { $a->{from} <=> $b->{from} }
           grep { $_->{from} >= 0 } $self->view;
}


sub view
{
    my ($self) = @_;

    for my $node (grep { $_->is_up } $self->nodes) {
        my $text = eval { $node->command('CLUSTER', 'NODES') } or next;

        return map {
            my @f = split ' ';
            my ($that) = grep { $_->{id} eq $f[0] } $self->nodes;
            my @ranges = map { [ /^(\d+)-?(\d*)$/ ] } grep { /^\d/ }
                         @f[8 .. $#f];
            $_->[1] = $_->[0] for grep { $_->[1] eq '' } @ranges;

            $that ? { node => $that, flags => $f[2], of => $f[3],
                      ranges => \@ranges,
                      from => @ranges && $f[2] =~ /master/ ? $ranges[0][0]
                                                           : -1 } : ();
        } split /\n/, $text;
    }

    die "no node of the cluster answers\n";
}


sub replica_of
{
    my ($self, $master) = @_;

    my ($v) = grep { $_->{of} eq $master->{id} && $_->{node}->is_up }
              $self->view;

    return $v ? $v->{node} : undef;
}


# CRC16 (XMODEM) of the key, modulo the number of slots; no hash tags

sub slot
{
    my ($self, $key) = @_;

    my $crc = 0;

    for my $byte (unpack 'C*', $key) {
        $crc ^= $byte << 8;
        $crc = ($crc & 0x8000 ? ($crc << 1) ^ 0x1021 : $crc << 1) & 0xffff
            for 1 .. 8;
    }

    return $crc % SLOTS;
}


sub node_of
{
    my ($self, $key) = @_;

    my $slot = $key =~ /^\d+$/ ? $key : $self->slot($key);

    for my $v ($self->view) {
        return $v->{node} if $v->{flags} =~ /master/
            && grep { $_->[0] <= $slot && $slot <= $_->[1] } @{ $v->{ranges} };
    }

    return undef;
}


# a slot on its way: what is still here is here, what is not is there (ASK)

sub begin_move
{
    my ($self, $slot, $from, $to) = @_;

    $to->command('CLUSTER', 'SETSLOT', $slot, 'IMPORTING', $from->{id});
    $from->command('CLUSTER', 'SETSLOT', $slot, 'MIGRATING', $to->{id});
}


sub move_keys
{
    my ($self, $slot, $from, $to) = @_;

    my $n = 0;

    while (1) {
        my $keys = $from->command('CLUSTER', 'GETKEYSINSLOT', $slot, 100);
        last if !@$keys;
        $from->command('MIGRATE', $self->{host}, $to->{port}, '', 0, 5000,
                       'KEYS', @$keys);
        $n += @$keys;
    }

    return $n;
}


# who takes it is told first, so that a slot has an owner at any time

sub end_move
{
    my ($self, $slot, $from, $to) = @_;

    for my $node ($to, $from, grep { $_->{id} ne $to->{id}
                                     && $_->{id} ne $from->{id} }
                              $self->masters)
    {
        $node->command('CLUSTER', 'SETSLOT', $slot, 'NODE', $to->{id});
    }
}


sub move
{
    my ($self, $slot, $from, $to) = @_;

    $self->begin_move($slot, $from, $to);
    $self->move_keys($slot, $from, $to);
    $self->end_move($slot, $from, $to);
}


# a replica takes the place of its master, which agrees; returns the new one

sub fail_over
{
    my ($self, $master) = @_;

    my $replica = $self->replica_of($master)
        or die "$master->{port} has no replica\n";

    $replica->command('CLUSTER', 'FAILOVER');
    $self->wait_promoted($replica);

    return $replica;
}


sub wait_promoted
{
    my ($self, $replica, $timeout) = @_;

    wait_for(sub {
        eval { $replica->command('INFO', 'replication') =~ /role:master/ };
    }, $timeout || 20) or die "$replica->{port} is not promoted\n";
}


# whatever was done to it: all nodes are up and know each other

sub heal
{
    my ($self) = @_;

    for my $node ($self->nodes) {
        $node->resume if $node->{paused};
        $node->launch if $node->{stopped};
    }

    $_->wait_up for $self->nodes;
    $self->wait_ready;
}


sub stop { $_->stop('KILL') for $_[0]->nodes }

sub flush { $_->command('FLUSHALL') for $_[0]->masters }

sub reset_calls { $_->reset_calls for $_[0]->nodes }


# how often a command was called, on all nodes that are up

sub calls
{
    my ($self, $name) = @_;

    my $n = 0;

    $n += $_->calls->{$name} || 0 for grep { $_->is_up } $self->nodes;

    return $n;
}


sub keys
{
    my ($self, $pattern) = @_;

    return sort map { $_->keys($pattern) } $self->masters;
}


# addresses for a configuration

sub servers
{
    my ($self) = @_;

    my $host = $self->{host} =~ /:/ ? "[$self->{host}]" : $self->{host};

    return map { "$host:$_->{port}" } $self->nodes;
}

1;
