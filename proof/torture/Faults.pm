# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What goes wrong, at random from the seed, and the account of it: which worker
# was killed when, from when to when the store was at fault, when the
# application was killed.

package Faults;

use strict;
use warnings;
use Time::HiRes qw(time sleep);

use App;
use Proxy;


# new(site => ..., proxy => ..., count => sub { ... })

sub new
{
    my ($class, %o) = @_;

    my $self = bless { %o, kills => [], reloads => [], store => [], apps => [] }, $class;
    my @any = (qw(reload kill app), $o{site}{locks} ? 'lock' : ());
    my @network = qw(delay hold refuse truncate cut part);

    $self->{names} = [ sort @any, (grep { %{ $o{proxy} } } @network),
                       $o{site}{pid}{redis} ? qw(pause restart) : (),
                       $o{site}{postgres} ? qw(freeze crash stop promote promote) : () ];
    $self->{proxies} = [ sort keys %{ $o{proxy} } ];

    return $self;
}


sub one
{
    my $self = shift;
    my $name = $self->{names}[rand @{ $self->{names} }];

    $self->tend;
    $self->can("do_$name")->($self);
}


sub some_nginx { my @n = @{ $_[0]{site}{nginx} }; $n[rand @n] }


sub do_reload
{
    my $self = shift;
    my $n = $self->some_nginx;

    $self->{count}('reload');
    push @{ $self->{reloads} }, { at => time, from => $n };
    kill HUP => $self->{site}{pid}{$n};
}


sub do_kill
{
    my $self = shift;
    my $n = $self->some_nginx;
    my @w = $self->{site}->workers($n) or return;
    my $worker = $w[rand @w];

    $self->{count}('worker kill -9');
    my $since = time;
    kill KILL => $worker;
    push @{ $self->{kills} }, { since => $since, at => time, from => $n, pid => $worker };
}


# a worker dies with a lock of shared memory, after any number of instructions
# (proof/faults/faults.c); if none takes a lock for a while, none dies

sub do_lock
{
    my $self = shift;
    my $n = $self->some_nginx;

    my $before = $self->{site}->lock_kills($n);
    my $since = time;
    $self->{site}->kill_with_lock($n, 1 + int rand 20, 1 + int rand 2 ** (3 + rand 10));

    for (1 .. 20) {
        sleep 0.02;
        my $now = time;
        last if $self->{site}->lock_kills($n) > $before;
        $since = $now;
    }

    # one that has the lock just now may still die

    $self->{site}->kill_with_lock($n, 0, 0);
    sleep 0.1;
    my $at = time;

    my ($kills, $worker) = $self->{site}->lock_kills($n);
    return if $kills == $before;

    $self->{count}('worker killed with a lock');
    push @{ $self->{kills} }, { since => $since, at => $at, from => $n, pid => $worker };
}


sub do_app
{
    my $self = shift;
    my $site = $self->{site};

    $self->{count}('application killed, restarted');
    my $at = time;
    kill KILL => -$site->{pid}{app};
    waitpid $site->{pid}{app}, 0;
    sleep rand 0.4;
    $site->{pid}{app} = App::start($site->{port}{app}, "$site->{dir}/executions");
    push @{ $self->{apps} }, $at;
}


# a fault of the store lasts from ... to

sub store_fault
{
    my ($self, $name, $for, $begin, $end) = @_;
    my $since = time;

    printf "torture: %s, %.1f s\n", $name, $for if $ENV{VERBOSE};
    $self->{count}($name);
    $self->aim if $name ne 'one host cut off';
    my ($server) = $name =~ /^(Redis|PostgreSQL)/;
    my $aim = !$server ? $self->{aim} : [ grep { /^[EF]/ xor $server eq 'Redis' } @{ $self->{proxies} } ];
    $begin->();
    sleep $for;
    $end->();
    push @{ $self->{store} }, { since => $since, until => time, name => $name, aim => { map { $_ => 1 } @$aim } };
}

# what happens to the network happens to one host, or to all

sub tell
{
    my ($self, $mode) = @_;
    Proxy::tell($self->{proxy}{$_}, $mode) for @{ $self->{aim} };
}

sub aim { my ($self) = @_; $self->{aim} = rand() < 0.5 ? $self->{proxies} : [ $self->one_host ] }
sub one_host { my @p = @{ $_[0]{proxies} }; return $p[rand @p] }

sub do_pause
{
    my $self = shift;
    my $redis = $self->{site}{pid}{redis};

    $self->store_fault('Redis paused', 0.1 + rand(rand() < 0.2 ? 3 : 0.8),
        sub { kill STOP => $redis }, sub { kill CONT => $redis });
}

sub do_restart
{
    my $self = shift;
    my $site = $self->{site};

    $self->store_fault('Redis killed, restarted', rand 0.8,
        sub { kill KILL => $site->{pid}{redis}; waitpid $site->{pid}{redis}, 0 },
        sub { $site->start_redis });
}

sub do_delay
{
    my $self = shift;
    my $ms = int rand(rand() < 0.3 ? 2500 : 300);

    $self->store_fault('network delays', 0.5 + rand 1.5, sub { $self->tell("delay $ms") },
        sub { $self->tell('pass') });
}

sub do_hold
{
    my $self = shift;
    $self->store_fault('network swallows', rand 1, sub { $self->tell('hold') },
        sub { $self->tell('cut') });
}

sub do_refuse
{
    my $self = shift;
    $self->store_fault('network refuses', rand 1.5, sub { $self->tell('cut'); $self->tell('refuse') },
        sub { $self->tell('pass') });
}

sub do_part
{
    my $self = shift;
    $self->{aim} = [ $self->one_host ];
    $self->store_fault('one host cut off', 1.5 + rand 2.5, sub { $self->tell('cut'); $self->tell('refuse') },
        sub { $self->tell('pass') });
}

sub do_truncate
{
    my $self = shift;
    $self->store_fault('network truncates', 0.05, sub { $self->tell('truncate') }, sub { });
}

sub do_cut
{
    my $self = shift;
    $self->store_fault('network cuts', 0.01, sub { $self->tell('cut') }, sub { });
}


# --- PostgreSQL.  The steps are those of proof/history; what a fault needs until
# its server answers again is done at once, and the new standby is made meanwhile.

sub do_freeze { my $self = shift; $self->server_fault('PostgreSQL paused', freeze => $self->{site}{postgres}{node}) }
sub do_crash { my $self = shift; $self->server_fault('PostgreSQL crashed', crash => $self->{site}{postgres}{node}) }
sub do_stop { my $self = shift; $self->server_fault('PostgreSQL restarted', restart => $self->{site}{postgres}{node}) }
sub do_promote { my $self = shift; $self->server_fault('PostgreSQL failed over', qw(kill_primary freeze_primary switch_over)[rand 3]) }

sub server_fault
{
    my ($self, $name, $do, @node) = @_;

    return if $self->{steps};
    return if !$self->{site}{postgres}->streams;

    my $stub = bless {}, 'Faults::Account';
    my @steps = $self->{site}{postgres}->$do($stub, @node, 0, rand, rand, rand);

    $self->store_fault($name, 0, sub {
        while (@steps && !$stub->{back}) {
            my $after = $steps[0]();

            if ($after eq 'again') { sleep 0.02; next }
            shift @steps;
            sleep $after if !$stub->{back};
        }
    }, sub { });

    $self->{steps} = \@steps;
    $self->tend;
}

sub tend
{
    my $self = shift;
    my $steps = $self->{steps} or return;

    while (@$steps) {
        my $after = $steps->[0]();

        return 'again' if $after eq 'again';
        shift @$steps;
    }

    delete $self->{steps};
    return;
}

# what proof/history writes down; here nginx's own word is taken

{
    package Faults::Account;
    sub outage { return {} }
    sub away { }
    sub lifts { }
    sub failover { }
    sub back { $_[0]{back} = 1; return 0 }
}


1;
