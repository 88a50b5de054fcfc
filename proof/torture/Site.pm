# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What is tortured: a Redis, and nginx: A and B on that Redis by way of a proxy
# each, B with a cache and a breaker; C on the embedded store; D on the Redis,
# with a ledger to fall back to; E and F as A and B, on a PostgreSQL with a
# synchronous standby, by way of a proxy for each of them.  Starts them, and looks
# at them from outside.

package Site;

use strict;
use warnings;
use IO::Socket::INET;
use JSON::PP ();
use POSIX ();
use Time::HiRes qw(time sleep);

use IdempotencyTest::Process qw(free_port);


use constant {
    LEASE   => 3,                       # s; from that on commits are plain
    TIMEOUT => 0.5,                     # of the store
    BRIEF   => 2,                       # ttl of the brief ones
    READ    => 3.5,                     # proxy_read_timeout
};


# those to a standby have a number

my @proxies = qw(proxyA proxyB proxyD proxyE proxyE2 proxyF proxyF2);


sub new
{
    my ($class, %o) = @_;

    my $self = bless { %o, pid => {}, proxied => 0 }, $class;
    my @names = (qw(app redis), @proxies, map { ($_, "${_}2") } qw(A B C D E F));

    @{ $self->{port} }{@names} = map { free_port() } @names;

    return $self;
}


sub listening { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$_[0]", Timeout => 1) }

sub wait_for
{
    my ($code, $limit) = @_;
    my $until = time + ($limit || 10);

    while (time < $until) { return 1 if $code->(); sleep 0.02 }

    return 0;
}

sub slurp { open my $f, '<', $_[0] or return ''; local $/; my $t = <$f>; defined $t ? $t : '' }


sub start_redis
{
    my $self = shift;
    my $pid = fork;

    if (!$pid) {
        open STDOUT, '>>', "$self->{dir}/redis.log"; open STDERR, '>&', \*STDOUT;
        exec 'redis-server', '--port', $self->{port}{redis}, '--bind', '127.0.0.1', '--dir', $self->{dir},
             '--appendonly', 'yes', '--appendfsync', 'always', '--save', ''
            or POSIX::_exit(1);
    }

    $self->{pid}{redis} = $pid;
    wait_for(sub { listening($self->{port}{redis}) }, 20) or die "redis does not start\n";
}


# the configuration of proof/history, on ports of the loopback address

sub start_postgres
{
    my $self = shift;
    my $class = require 'config/postgres-standby.pm';

    $self->{postgres} = $class->new(network => bless({ dir => $self->{dir} }, 'Site::Loopback'));
    $self->{postgres}->start;
}

{
    package Site::Loopback;
    sub servers { '127.0.0.1' }
}


sub start_nginx
{
    my ($self, $name) = @_;
    my ($dir, $port) = @$self{qw(dir port)};
    my $kind = { C => '', E => 'postgres', F => 'postgres' }->{$name};
    my $cached = 'breaker fails=5 reset=1s; cache hot:4m ttl=5s;';
    my $layers = { B => $cached, F => $cached, D => 'breaker fails=5 reset=1s;' }->{$name} || '';
    my $ledger = $name eq 'D' ? 'idempotency_store ledger memory { zone ledger:8m; }' : '';
    my $servers = join ' ', map { "127.0.0.1:$port->{$_}" } grep { /^proxy$name/ } @proxies;

    # locks are on the disk, and with the standby, before they count

    $kind = 'redis' if !defined $kind;
    $layers .= ' durable all;' if $kind eq 'postgres';

    my $store = $kind ? <<"" : "    idempotency_store brief memory { zone brief:2m; }\n";
    idempotency_store shared $kind {
        server           $servers;
        timeout          @{[ TIMEOUT * 1000 ]}ms;
        connect_timeout  @{[ TIMEOUT * 1000 ]}ms;
        $layers
    }
    $ledger

    my $which = $name eq 'D' ? 'shared fallback=ledger' : $kind ? 'shared' : 'on';
    my $brief = $kind ? '' : <<"";
        location /brief/ { idempotency brief; idempotency_ttl @{[ BRIEF ]}s;
                           proxy_pass http://127.0.0.1:$port->{app}; }

    my $user = $> == 0 ? 'user root;' : '';
    my $load = $self->{module} eq 'static' ? ''
             : join "\n", map { "load_module $_;" } $self->{module}, $kind eq 'postgres' ? $self->{postgres_module} : ();

    open my $f, '>', "$dir/$name/nginx.conf" or die $!;
    print $f <<"";
$load
$user
daemon off;
worker_processes 2;
pid $dir/$name/nginx.pid;
error_log $dir/$name/logs/error.log info;
worker_shutdown_timeout 20s;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path $dir/$name/t1;  proxy_temp_path $dir/$name/t2;
    fastcgi_temp_path $dir/$name/t3;  uwsgi_temp_path $dir/$name/t4;
    scgi_temp_path $dir/$name/t5;
$store
    server {
        listen 127.0.0.1:$port->{$name} backlog=511;
        listen 127.0.0.1:$port->{"${name}2"} http2 backlog=511;
        idempotency        $which;
        idempotency_lease  @{[ LEASE ]}s;
        idempotency_wait   3s;
        idempotency_ttl    1h;
        idempotency_required on;
        idempotency_log    $dir/$name/logs/events.json;
        proxy_read_timeout @{[ READ * 1000 ]}ms;
        proxy_set_header   X-From $name;
        proxy_set_header   X-Pid \$pid;
        proxy_set_header   X-Begin \$msec;
        proxy_set_header   X-Record \$idempotency_record;
        location /lease/ { proxy_pass http://127.0.0.1:$port->{app}; }
        location /hold/  { idempotency_unknown_outcome hold;
                           proxy_pass http://127.0.0.1:$port->{app}; }
$brief
        location = /stats { idempotency off; idempotency_stats json; }
    }
}

    close $f;

    $self->make_faults($name) if $self->{locks};

    my $pid = fork;

    if (!$pid) {
        open STDOUT, '>>', "$dir/$name/logs/out"; open STDERR, '>&', \*STDOUT;
        $ENV{ASAN_OPTIONS} = 'detect_leaks=0';
        $ENV{NGX_IDEMPOTENCY_FAULTS} = "$dir/$name/faults" if $self->{locks};
        exec $self->{binary}, '-p', "$dir/$name/", '-c', "$dir/$name/nginx.conf",
             '-e', "$dir/$name/logs/error.log"
            or POSIX::_exit(1);
    }

    $self->{pid}{$name} = $pid;
    wait_for(sub { listening($port->{$name}) }, 20)
        or die "nginx $name does not start: " . slurp("$dir/$name/logs/error.log");
}


# The module of tools/build-faults kills a worker that has a lock; a file of
# each nginx tells it when (proof/faults/faults.c).

use constant { FAULTS_SIZE => 32768, FAULTS_KILL => 112 + 8 + 24 * 1024 };

sub make_faults
{
    my ($self, $name) = @_;

    open my $f, '+>', "$self->{dir}/$name/faults" or die $!;
    syswrite $f, "\0" x FAULTS_SIZE;
    $self->{faults}{$name} = $f;
}

sub kill_with_lock
{
    my ($self, $name, $n, $steps) = @_;
    my $f = $self->{faults}{$name};

    for ([ 0, 0 ], [ 8, $steps ], [ 0, $n ]) {
        sysseek $f, FAULTS_KILL + $_->[0], 0;
        syswrite $f, pack 'Q<', $_->[1];
    }
}

# how many died so, and the last one's pid

sub lock_kills
{
    my ($self, $name) = @_;
    my $f = $self->{faults}{$name};

    sysseek $f, FAULTS_KILL + 16, 0;
    sysread $f, my $bytes, 16;
    my @got = unpack 'Q<2', $bytes;

    return wantarray ? @got : $got[0];
}


sub workers
{
    my ($self, $name) = @_;
    my $pid = $self->{pid}{$name};

    return split ' ', slurp("/proc/$pid/task/$pid/children");
}


# the figures of a store of that nginx; undef if it does not answer

sub figures
{
    my ($self, $name, $store) = @_;

    my $c = listening($self->{port}{$name}) or return;
    syswrite $c, "GET /stats HTTP/1.0\r\nHost: localhost\r\n\r\n";
    my $text = do { local $/; <$c> };
    my ($body) = ($text || '') =~ /\r\n\r\n(.*)/s or return;
    my $json = eval { JSON::PP::decode_json($body) } or return;
    my ($figures) = grep { $_->{name} eq $store } @{ $json->{stores} };

    return $figures;
}


# the TCP connections of a worker, by what they are for

sub connections
{
    my ($self, $name, $worker) = @_;
    my (%inode, %count);

    for (glob "/proc/$worker/fd/*") {
        my $to = readlink or next;
        $inode{$1} = 1 if $to =~ /^socket:\[(\d+)\]/;
    }

    my %for = map { sprintf('%04X', $self->{port}{$_}) => $_ } 'app', @proxies, map { ($_, "${_}2") } qw(A B C D E F);

    for (split /\n/, slurp('/proc/net/tcp')) {
        my ($local, $remote, $state, $inode) = /^ *\d+: \w+:(\w+) \w+:(\w+) (\w\w) (?:\S+ +){5}(\d+) / or next;
        next if !$inode{$inode} || $state eq '0A';
        my $for = $for{$remote} || ($for{$local} ? 'client' : 'other');
        $count{ $for =~ /^proxy/ ? 'proxy' : $for }++;
    }

    return \%count;
}


# all records of both that are in progress: name, ms to live, grace, hold

sub locks
{
    my $self = shift;

    return $self->{postgres} ? $self->{postgres}->locks : () if !$self->{pid}{redis};

    my $c = listening($self->{port}{redis}) or die "redis is not there\n";
    my $ask = sub {
        my $text = '*' . @_ . "\r\n" . join '', map { '$' . length($_) . "\r\n$_\r\n" } @_;
        syswrite $c, $text;
        return reply($c);
    };

    my $found = $ask->('EVAL', <<'_LUA_', 0);
        local out = {}
        for _, key in ipairs(redis.call('KEYS', '*')) do
            local record = redis.call('GETRANGE', key, 0, 15)
            if #record == 16 and string.byte(record, 4) == 1 then
                out[#out + 1] = key
                out[#out + 1] = tostring(redis.call('PTTL', key))
                out[#out + 1] = string.format('%.0f', struct.unpack('>I8', record, 9))
                out[#out + 1] = tostring(string.byte(record, 6))
            end
        end
        return out
_LUA_
    my @locks;
    push @locks, [ splice @$found, 0, 4 ] while @$found;
    push @locks, $self->{postgres}->locks if $self->{postgres};

    return @locks;
}

sub reply
{
    my $c = shift;
    my $line = <$c>;
    my ($type, $rest) = $line =~ /^(.)(.*)\r\n/ or die "redis: no reply\n";

    if ($type eq '*') { return [ map { reply($c) } 1 .. $rest ] }
    if ($type eq '$') { return if $rest < 0; read $c, my $text, $rest + 2; return substr $text, 0, $rest }
    die "redis: $rest\n" if $type eq '-';

    return $rest;
}


1;
