# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One Redis with an append-only file, and what is common to all that have one.

package RedisStore;

use strict;
use warnings;
use parent 'Store';

use IdempotencyTest::Process qw(free_port);
use IdempotencyTest::Redis;


use constant TIMEOUT => 0.5;

# What is written before it is answered is there after a kill -9 of the server;
# that the machine survives is not asked for.

our @options = ('--appendonly', 'yes', '--appendfsync', 'no', '--protected-mode', 'no');


sub start
{
    my $self = shift;

    $self->{redis} = IdempotencyTest::Redis->start(
        host => $self->{network}->servers, port => free_port(), dir => "$self->{dir}/redis", options => \@options);
}

sub stop { IdempotencyTest::Redis::stop_all() }

sub hosts_of { my ($self, $i, @hosts) = @_; return @hosts }
sub which { 'shared' }
sub outboxes { 'shared' }

sub can_cut { $_[0]{network}->can_cut }
sub nodes { $_[0]{redis} }
sub masters { $_[0]{redis} }


# place(): where the servers are; layers(): what stands around the store

sub stores
{
    my ($self, $host) = @_;
    my $ms = TIMEOUT * 1000;

    return <<"" . $self->more($host);
    idempotency_store shared redis {
        @{[ $self->place($host) ]}
        timeout          ${ms}ms;
        connect_timeout  ${ms}ms;
        @{[ $self->layers($host) ]}
    }

}

sub place { my ($self, $host) = @_; return 'server ' . $self->{network}->way($host, $self->{redis}{port}) . ';' }
sub layers { my ($self, $host) = @_; return '' }
sub more { my ($self, $host) = @_; return '' }


sub faults
{
    my $self = shift;

    return (
        [ 3, 'server frozen', sub { my ($s, @d) = @_; $self->freeze($s, $self->{redis}, 0, @d) } ],
        [ 3, 'server killed, restarted', sub { my ($s, @d) = @_; $self->restart($s, $self->{redis}, 0, @d) } ],
    );
}


# mostly shorter than a lease, sometimes longer

sub for_a_while { my (@d) = @_; return $d[0] < 0.7 ? 0.1 + 1.5 * $d[1] : 2 + 5 * $d[1] }

sub answers { my $node = pop; return eval { $node->command('PING') eq 'PONG' } }

sub freeze
{
    my ($self, $s, $node, $shard, @d) = @_;
    my $away = $s->outage(shard => $shard);

    return (sub { $s->away($away); $node->pause; for_a_while(@d) },
            sub { $s->lifts($away); $node->resume; 0 },
            sub { answers($node) or return 'again'; $s->back($away) });
}

sub restart
{
    my ($self, $s, $node, $shard, @d) = @_;
    my $away = $s->outage(shard => $shard);

    return (sub { $s->away($away); $node->kill_it('KILL'); 0.7 * $d[1] },
            sub { $s->lifts($away); $node->launch; 0 },
            sub { answers($node) or return 'again'; $s->back($away) });
}


sub heal
{
    my $self = shift;

    for my $node ($self->nodes) {
        $node->resume if $node->{paused};
        $node->spawn if $node->{stopped};
    }
}


sub locks
{
    my $self = shift;
    my @locks;

    for my $node ($self->masters) {
        my $found = $node->command('EVAL', <<'_LUA_', 0);
            local out = {}
            for _, key in ipairs(redis.call('KEYS', '*')) do
                if redis.call('TYPE', key).ok == 'string' then
                    local record = redis.call('GETRANGE', key, 0, 15)
                    if #record == 16 and string.byte(record, 4) == 1 then
                        out[#out + 1] = key
                        out[#out + 1] = tostring(redis.call('PTTL', key))
                        out[#out + 1] = string.format('%.0f', struct.unpack('>I8', record, 9))
                        out[#out + 1] = tostring(string.byte(record, 6))
                    end
                end
            end
            return out
_LUA_
        push @locks, [ splice @$found, 0, 4 ] while @$found;
    }

    return @locks;
}


# which executions that server has the responses of: operation => run

sub responses
{
    my ($self, $node) = @_;

    my $found = eval { $node->command('EVAL', <<'_LUA_', 0) } || [];
        local out = {}
        for _, key in ipairs(redis.call('KEYS', '*')) do
            if redis.call('TYPE', key).ok == 'string' then
                local record = redis.call('GETRANGE', key, 117, 1116)
                local run, op = string.match(record, 'run (%d+) of (op%d+)')
                if run then
                    out[#out + 1] = op
                    out[#out + 1] = run
                end
            end
        end
        return out
_LUA_
    my %run = @$found;

    return \%run;
}


1;
