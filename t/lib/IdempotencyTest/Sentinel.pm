# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Sentinel;

# One master, replicas and sentinels of a test's own, on loopback.  The
# sentinels start with a configuration that already has each other and the
# replicas, as they would have written it themselves after some seconds.

use strict;
use warnings;

use IdempotencyTest::Process qw(free_port wait_for);
use IdempotencyTest::Redis;


# dir: where; replicas, sentinels: how many; timeout: ms after which a master
# that does not answer is taken for dead; options: more for each redis-server;
# auth, sentinel_auth: [ password ] or [ user, password ] of clients

sub start
{
    my ($class, %o) = @_;

    my $self = bless { replicas => 2, sentinels => 3, timeout => 1000,
                       name => 'main', host => '127.0.0.1', %o }, $class;

    my $password = $self->{auth} ? $self->{auth}[-1] : undef;
    my $master_port;

    for my $n (0 .. $self->{replicas}) {
        my $port = free_port();
        $master_port ||= $port;

        push @{ $self->{nodes} }, IdempotencyTest::Redis->start(
            lazy => 1, host => $self->{host}, port => $port, number => $n,
            dir => "$self->{dir}.$port", auth => $self->{auth},
            options => [
                '--repl-diskless-sync', 'yes',
                '--repl-diskless-sync-delay', 0,
                '--repl-ping-replica-period', 1,
                defined $password ? ('--requirepass', $password,
                                     '--masterauth', $password) : (),
                @{ $self->{options} || [] },
                $n ? ('--replicaof', $self->{host}, $master_port) : (),
            ]);
    }

    for my $n (1 .. $self->{sentinels}) {
        my $port = free_port();

        push @{ $self->{watchers} }, IdempotencyTest::SentinelServer->start(
            lazy => 1, host => $self->{host}, port => $port, number => $n,
            dir => "$self->{dir}.$port", id => sprintf('%040x', 0xdef0 + $n),
            auth => $self->{sentinel_auth});
    }

    $self->write_config($_) for @{ $self->{watchers} };

    $_->launch for $self->nodes, $self->sentinels;
    $_->wait_up for $self->nodes, $self->sentinels;
    $self->wait_ready;

    return $self;
}


sub nodes { @{ $_[0]{nodes} } }
sub sentinels { @{ $_[0]{watchers} } }


sub write_config
{
    my ($self, $me) = @_;

    my $name = $self->{name};
    my $host = $self->{host};
    my ($master, @replicas) = $self->nodes;
    my $quorum = int($self->{sentinels} / 2) + 1;

    open my $out, '>', "$me->{dir}/sentinel.conf" or die $!;

    print $out "port $me->{port}\nbind $host\ndir $me->{dir}\n",
        "daemonize no\n",
        "sentinel myid $me->{id}\n",
        "sentinel monitor $name $host $master->{port} $quorum\n",
        "sentinel down-after-milliseconds $name $self->{timeout}\n",
        "sentinel failover-timeout $name ", 4 * $self->{timeout}, "\n",
        "sentinel parallel-syncs $name 2\n";

    print $out "sentinel auth-pass $name $self->{auth}[-1]\n"
        if $self->{auth};
    print $out "requirepass $self->{sentinel_auth}[-1]\n",
               "sentinel sentinel-pass $self->{sentinel_auth}[-1]\n"
        if $self->{sentinel_auth};

    print $out "sentinel known-replica $name $host $_->{port}\n"
        for @replicas;
    print $out "sentinel known-sentinel $name $host $_->{port} $_->{id}\n"
        for grep { $_ != $me } $self->sentinels;

    close $out;
}


# Every sentinel that is up would fail over, names the same master and knows
# as many replicas as there are; and these have its data.  A sentinel looks at
# its replicas every ten seconds only, so after a change it is enough that the
# servers themselves are ready ("soon").

sub wait_ready
{
    my ($self, $soon) = @_;

    my $why;

    wait_for(sub { $why = $self->not_ready($soon); !$why }, 30)
        or die "the sentinels are not ready: $why\n";
}


sub not_ready
{
    my ($self, $soon) = @_;

    my $why;
    my $up = grep { $_->is_up } $self->nodes;

    eval {
        my $master = $self->master or die "there is no master\n";

        for my $s (grep { $_->is_up } $self->sentinels) {
            my %m = @{ $s->command('SENTINEL', 'MASTER', $self->{name}) };

            die "$s->{port} says $m{port}\n" if $m{port} != $master->{port};
            die "$s->{port} says $m{flags}\n" if $m{flags} ne 'master';
            $s->command('SENTINEL', 'CKQUORUM', $self->{name});
            next if $soon;

            my $ok = grep { my %r = @$_;
                            $r{flags} eq 'slave'
                            && $r{'master-port'} == $master->{port}
                            && $r{'master-link-status'} eq 'ok' }
                     @{ $s->command('SENTINEL', 'REPLICAS', $self->{name}) };
            die "$s->{port} has $ok replicas\n" if $ok != $up - 1;
        }

        my $online = () = $master->command('INFO', 'replication')
                          =~ /state=online/g;
        die "$online replicas are online\n" if $online != $up - 1;

        1;
    } or $why = $@;

    return $why;
}


# as a majority of the sentinels says

sub master
{
    my ($self) = @_;

    my %votes;

    for my $s (grep { $_->is_up } $self->sentinels) {
        my $addr = eval { $s->command('SENTINEL', 'GET-MASTER-ADDR-BY-NAME',
                                      $self->{name}) } or next;
        $votes{$addr->[1]}++;
    }

    my ($port) = grep { 2 * $votes{$_} > $self->{sentinels} } keys %votes;

    return if !$port;

    my ($node) = grep { $_->{port} == $port } $self->nodes;

    return $node;
}


sub replica
{
    my ($self) = @_;

    my $master = $self->master;
    my ($node) = grep { $_ != $master && $_->is_up } $self->nodes;

    return $node;
}


# another master than that one, by the word of the sentinels and its own

sub wait_failed_over
{
    my ($self, $old, $timeout) = @_;

    my $new;

    wait_for(sub {
        $new = $self->master;
        return $new && $new != $old
               && eval { $new->command('INFO', 'replication')
                         =~ /role:master/ };
    }, $timeout || 30) or die "no other master\n";

    return $new;
}


# planned: the sentinels change master and replica, both alive

sub fail_over
{
    my ($self) = @_;

    my $old = $self->master;

    # on a busy machine its last look at the replicas may be too long ago

    wait_for(sub {
        eval { ($self->sentinels)[0]->command('SENTINEL', 'FAILOVER',
                                              $self->{name}) };
    }, 15) or die "the sentinel does not want to: $@";

    return $self->wait_failed_over($old);
}


sub heal
{
    my ($self) = @_;

    for my $node ($self->nodes, $self->sentinels) {
        $node->resume if $node->{paused};
        $node->launch if $node->{stopped};
    }

    $_->wait_up for $self->nodes, $self->sentinels;

    # the sentinels would do that, too, once they have looked long enough

    my $master = wait_for(sub { $self->master }, 10)
        or die "no master\n";

    for my $node (grep { $_ != $master } $self->nodes) {
        $node->command('REPLICAOF', $self->{host}, $master->{port});
    }

    $self->wait_ready('soon');
}


sub stop { $_->stop('KILL') for $_[0]->nodes, $_[0]->sentinels }

sub flush { $_[0]->master->command('FLUSHALL') }


# addresses for a configuration

sub servers
{
    my ($self) = @_;

    my $host = $self->{host} =~ /:/ ? "[$self->{host}]" : $self->{host};

    return map { "$host:$_->{port}" } $self->sentinels;
}


package IdempotencyTest::SentinelServer;

our @ISA = 'IdempotencyTest::Redis';

sub arguments { ("$_[0]{dir}/sentinel.conf", '--sentinel') }

1;
