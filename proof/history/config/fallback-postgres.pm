# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# One Redis, a breaker, and PostgreSQL for when it is away: a ledger that all
# hosts have in common, and that no fault of the network cuts.  Redis comes and
# goes many times a second, too.

package config::fallback_postgres;

use strict;
use warnings;
use parent 'RedisStore';

use PostgresStore;


sub start
{
    my $self = shift;

    $self->SUPER::start;
    $self->{ledger} = PostgresStore->new(network => $self->{network}, dir => $self->{dir});
    $self->{ledger}{node} = $self->{ledger}->server($self->{network}->app);
    $self->{ledger}{node}->spawn;
}

sub stop { my $self = shift; $self->SUPER::stop; $self->{ledger}->stop if $self->{ledger} }

sub wants_postgres { 1 }
sub outboxes { qw(shared ledger) }
sub which { 'shared fallback=ledger' }
sub layers { 'breaker fails=5 reset=1s;' }

sub more
{
    my ($self, $host) = @_;

    return $self->{ledger}->block('ledger', 'server ' . $self->{network}->app . ":$self->{ledger}{node}{port};");
}

sub has_fallback { 1 }
sub ledger_is_shared { 1 }
sub found_within { 2 }

sub locks { my $self = shift; return ($self->SUPER::locks, $self->{ledger}->locks) }


sub faults
{
    my $self = shift;

    return ($self->SUPER::faults, $self->can_cut ? [ 3, 'network flaps', sub { my ($s, @d) = @_; $self->flap($s, @d) } ] : ());
}

sub flap
{
    my ($self, $s, @d) = @_;
    my @all = $s->{hosts}->names;
    my @hosts = $d[2] < 0.5 ? @all : $all[ @all * $d[3] ];
    my @out = map { $s->outage(host => $_) } @hosts;
    my ($down, $up) = (0.02 + 0.2 * $d[0], 0.02 + 0.2 * $d[1]);

    # one outage, in which it may answer all the time

    return (sub { $s->away($_), $s->lifts($_) for @out; 0 },
            (map { (sub { $s->{network}->refuse($_) for @hosts; $down },
                    sub { $s->{network}->mend($_) for @hosts; $up }) } 1 .. 10),
            sub { $s->back($_) for @out; 0 });
}


return __PACKAGE__;
