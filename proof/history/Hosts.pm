# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The nginx hosts: each with two workers, on the store of the configuration.

package Hosts;

use strict;
use warnings;
use File::Path qw(make_path);
use IO::Socket::INET;
use JSON::PP ();
use POSIX ();
use Time::HiRes qw(time sleep);

use IdempotencyTest::Process qw(free_port);
use Site;


# new(dir, network, store, app (address), names, lease, wait, read, modules,
# binary)

sub new
{
    my ($class, %o) = @_;

    my $self = bless { %o, pid => {}, deaths => {} }, $class;

    for my $name ($self->names) {
        make_path("$o{dir}/$name/logs");
        $self->{port}{$name} = free_port();
        $self->configure($name);
    }

    return $self;
}

sub names { @{ $_[0]{names} } }

sub address { my ($self, $name) = @_; return $self->{network}->address($name) . ":$self->{port}{$name}" }


sub configure
{
    my ($self, $name) = @_;
    my $dir = "$self->{dir}/$name";
    my $stores = $self->{store}->stores($name);
    my $which = $self->{store}->which;
    my $user = $> == 0 ? 'user root;' : '';
    my $load = join "\n", map { $_ eq 'static' ? () : "load_module $_;" } @{ $self->{modules} };

    open my $f, '>', "$dir/nginx.conf" or die $!;
    print $f <<"";
$load
$user
daemon off;
worker_processes 2;
pid $dir/nginx.pid;
error_log $dir/logs/error.log info;
worker_shutdown_timeout 20s;
events { worker_connections 2048; }
http {
    access_log off;
    client_body_temp_path $dir/t1;  proxy_temp_path $dir/t2;
    fastcgi_temp_path $dir/t3;  uwsgi_temp_path $dir/t4;
    scgi_temp_path $dir/t5;
$stores
    server {
        listen @{[ $self->address($name) ]} backlog=511;
        idempotency             $which;
        idempotency_lease       $self->{lease}s;
        idempotency_wait        $self->{wait}s;
        idempotency_max_waiters 100;
        idempotency_ttl         1h;
        idempotency_required    on;
        proxy_read_timeout $self->{read}s;
        proxy_set_header   X-From $name;
        proxy_set_header   X-Pid \$pid;
        proxy_set_header   X-Begin \$msec;
        proxy_set_header   X-Record \$idempotency_record;
        location /lease/ { proxy_pass http://$self->{app}; }
        location /hold/  { idempotency_unknown_outcome hold;
                           proxy_pass http://$self->{app}; }
        location = /stats { idempotency off; idempotency_stats json; }
    }
}

    close $f;
}


# in a process group of its own, so that all of it can die at once

sub launch
{
    my ($self, $name) = @_;
    my $dir = "$self->{dir}/$name";
    my $pid = fork;

    if (!$pid) {
        setpgrp 0, 0;
        open STDOUT, '>>', "$dir/logs/out"; open STDERR, '>&', \*STDOUT;
        $ENV{ASAN_OPTIONS} = 'detect_leaks=0';
        @ENV{qw(LD_PRELOAD IDEMPOTENCY_TURNS IDEMPOTENCY_TURNS_CLOCK)} = ("$self->{dir}/turns.so", "$self->{dir}/turns", 'wall')
            if $ENV{TURNS};
        exec $self->{network}->inside($name), $self->{binary}, '-p', "$dir/", '-c', "$dir/nginx.conf",
             '-e', "$dir/logs/error.log"
            or POSIX::_exit(1);
    }

    setpgrp $pid, $pid;
    $self->{pid}{$name} = $pid;
}

sub start
{
    my ($self, $name) = @_;

    $self->launch($name);
    Site::wait_for(sub { $self->is_up($name) }, 30)
        or die "nginx $name does not start: " . Site::slurp("$self->{dir}/$name/logs/error.log");
}

sub is_up { my ($self, $name) = @_; return IO::Socket::INET->new(PeerAddr => $self->address($name), Timeout => 1) }


# its master, which nobody killed

sub is_alive
{
    my ($self, $name) = @_;
    my $pid = $self->{pid}{$name} or return 0;

    return waitpid($pid, POSIX::WNOHANG()) == 0;
}


sub workers
{
    my ($self, $name) = @_;
    my $pid = $self->{pid}{$name} or return;

    return grep { Site::slurp("/proc/$_/cmdline") =~ /worker process\0*$/ }
           split ' ', Site::slurp("/proc/$pid/task/$pid/children");
}


sub crash
{
    my ($self, $name) = @_;
    my $pid = delete $self->{pid}{$name} or return;

    kill KILL => -$pid;
    kill KILL => $pid;
    waitpid $pid, 0;
}


# in order: whether it left

sub leave
{
    my ($self, $name) = @_;
    my $pid = $self->{pid}{$name} or return 1;

    kill QUIT => $pid;
    Site::wait_for(sub { waitpid($pid, POSIX::WNOHANG()) != 0 }, 30) or return 0;
    delete $self->{pid}{$name};

    return 1;
}


# the longest turn of an event loop, ms, of workers that nobody had frozen

sub longest_turn
{
    my ($self, %frozen) = @_;
    my $longest = 0;

    for (split /\n/, Site::slurp("$self->{dir}/turns")) {
        my ($took, $pid) = split;
        $longest = $took if !$frozen{$pid} && $took > $longest;
    }

    return int $longest / 1000;
}


# the figures of a store; undef if it does not answer

sub figures
{
    my ($self, $name, $store) = @_;

    my $c = $self->is_up($name) or return;
    syswrite $c, "GET /stats HTTP/1.0\r\nHost: localhost\r\n\r\n";
    my $text = do { local $/; <$c> };
    my ($body) = ($text || '') =~ /\r\n\r\n(.*)/s or return;
    my $json = eval { JSON::PP::decode_json($body) } or return;
    my ($figures) = grep { $_->{name} eq $store } @{ $json->{stores} };

    return $figures;
}


sub stop
{
    my $self = shift;

    for my $name (grep { $self->{pid}{$_} } $self->names) {
        kill CONT => $_ for $self->workers($name);
        $self->crash($name);
    }
}


1;
