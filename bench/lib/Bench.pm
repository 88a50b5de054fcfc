# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package Bench;

# What bench/run and bench/instructions have in common: servers on free ports
# of 127.0.0.1, each pinned to a core and ended by its process id, the
# configurations of the gateways, and wrk.
#
# The gateway has core 0 for itself; the application, Redis and the client
# share core 1.

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use File::Path qw(make_path remove_tree);
use IO::Socket::INET;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(
    $root $dir $nginx $module $body_size $body $answer
    set_up free_port start stop stop_all start_app start_redis start_server
    start_gateway
    nginx_conf worker_pids cpu_time wrk redis_command has_module note
    write_file read_file slurp median percentile quartiles
);

our $root   = dirname(dirname(dirname(abs_path(__FILE__))));
our $dir    = "$root/build/bench/run.$$";
our $nginx  = $ENV{NGINX} || '/usr/sbin/nginx';
our $module = "$root/build/ngx_http_idempotency_module.so";

our $gateway_cores = '0';
our $other_cores   = '1';

our $body_size = 480;
our $body      = '{"amount":1200,"currency":"EUR","note":"';
$body .= 'n' x ($body_size - 2 - length $body) . '"}';

our $answer = '{"id":"ord_0123456789","status":"created","items":"';
$answer .= 'i' x (190 - 2 - length $answer) . '"}';

my (%running, %taken, $owner);


sub set_up
{
    -e $module or die "bench: no $module: make build\n";

    $owner = $$;
    remove_tree($dir);
    make_path($dir);

    $SIG{INT} = $SIG{TERM} = $SIG{HUP} = sub { exit 130 };
    $| = 1;
}


# nothing is left: neither processes nor files

END {
    if ($owner && $owner == $$) {
        my $status = $?;
        stop_all();
        remove_tree($dir) if !$ENV{BENCH_KEEP};
        $? = $status;
    }
}


# progress goes to the terminal, results to the standard output

sub note { print STDERR @_, "\n" }


sub free_port
{
    for (1 .. 500) {
        my $try = 10000 + int rand 20000;
        next if $taken{$try};

        IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $try,
                              Listen => 1, ReuseAddr => 1)
            or next;

        $taken{$try} = 1;
        return $try;
    }

    die "bench: no free port\n";
}


# Starts a program in the foreground of a child; returns when its port answers.

sub start
{
    my ($name, $cores, $port, @command) = @_;

    my $pid = fork // die "bench: fork: $!\n";

    if ($pid == 0) {
        $owner = 0;
        open STDIN, '<', '/dev/null';
        open STDOUT, '>>', "$dir/$name.out";
        open STDERR, '>&', \*STDOUT;
        setpgrp;
        exec 'taskset', '-c', $cores, @command or POSIX::_exit(127);
    }

    $running{$pid} = $name;

    my $end = time + 60;

    while ($port && !IO::Socket::INET->new("127.0.0.1:$port")) {
        if (waitpid($pid, 1) == $pid) {
            delete $running{$pid};
            die "bench: $name does not start: ", slurp("$dir/$name.out"), "\n";
        }

        time < $end or die "bench: $name does not answer\n";
        sleep 0.02;
    }

    return $pid;
}


sub stop
{
    for my $pid (grep { $running{$_} } @_) {
        kill TERM => $pid;

        my $end = time + 5;
        while (waitpid($pid, 1) == 0) {
            if (time > $end) {
                kill KILL => worker_pids($pid), $pid;
                waitpid $pid, 0;
                last;
            }
            sleep 0.01;
        }

        delete $running{$pid};
    }
}

sub stop_all { stop(keys %running) }


# ------------------------------------------------------------ configurations

sub nginx_conf
{
    my ($name, %arg) = @_;

    my $user = $> ? '' : 'user root;';
    my $load = join '', map { "load_module $_;\n" } @{ $arg{modules} || [] };
    my $workers = $arg{workers} || 1;
    my $here = "$dir/$name";
    my $single = $arg{single} ? 'master_process off;' : '';

    make_path($here);

    return <<"END";
$user
$load
daemon off;
$single
pid $here/nginx.pid;
error_log $here/error.log @{[ $arg{log} || 'error' ]};
worker_processes $workers;
worker_rlimit_nofile 65536;
events { worker_connections 16384; }
http {
    access_log off;
    client_body_temp_path $here/body;
    proxy_temp_path $here/proxy;
    fastcgi_temp_path $here/fastcgi;
    uwsgi_temp_path $here/uwsgi;
    scgi_temp_path $here/scgi;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    default_type application/json;
    @{[ $arg{http} || '' ]}
    server {
        listen 127.0.0.1:$arg{port} backlog=4096;
        server_name bench;
        client_body_buffer_size 16k;
        @{[ $arg{server} || '' ]}
    }
}
END
}


# the application: an nginx that answers by itself

sub start_app
{
    my $port = free_port();
    my $files = "$dir/app/size";

    make_path($files);
    for my $size (200, 2_000, 10_000, 20_000, 200_000, 1_000_000) {
        write_file("$files/$size", 'x' x $size);
    }

    write_file("$dir/app.conf", nginx_conf('app', port => $port,
        server => <<"END"));
        location / { return 201 '$answer'; }
        location /size/ { root $dir/app; error_page 405 =200 \$uri; }
END

    start('app', $other_cores, $port, $nginx, '-p', "$dir/app/",
          '-c', "$dir/app.conf", '-e', "$dir/app/error.log");

    return $port;
}


sub start_redis
{
    my $port = free_port();

    start('redis', $other_cores, $port, 'redis-server', '--port', $port,
          '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no',
          '--dir', $dir, '--maxclients', '20000');

    return $port;
}


# A server of records of a given version, see tools/redis-server-of: its port
# and its pid.

sub start_server
{
    my $name = shift;

    my $binary = `$root/tools/redis-server-of $name 2>/dev/null`;
    chomp $binary;

    return { missing => "there is no $name" } if !$binary;

    my $port = free_port();
    my $pid = start($name, $other_cores, $port, $binary, '--port', $port,
                    '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no',
                    '--dir', $dir, '--maxclients', '20000');

    return { port => $port, pid => $pid };
}


sub redis_command
{
    my ($port, @words) = @_;

    my $s = IO::Socket::INET->new("127.0.0.1:$port")
        or die "bench: redis: $!\n";
    print $s '*' . @words . "\r\n",
          map { '$' . length($_) . "\r\n$_\r\n" } @words;
    my $line = <$s> // '';
    if ($line =~ /^\$(\d+)/) { read $s, $line, $1 }
    $line =~ s/^[:+]|\r\n$//g;

    return $line;
}


# An nginx gateway.  What nginx -t does not accept is undef: such a row is
# missing.

sub start_gateway
{
    my ($name, %arg) = @_;

    my $port = free_port();
    my $app = $arg{app};
    my $cores = $arg{cores} || $gateway_cores;

    $arg{http} = ($arg{http} || '') . <<"END";
    upstream app { server 127.0.0.1:$app; keepalive 1024; keepalive_requests 1000000000; }
    proxy_http_version 1.1;
    proxy_set_header Connection '';
END

    write_file("$dir/$name.conf", nginx_conf($name, %arg, port => $port));

    my @command = ($nginx, '-p', "$dir/$name/", '-c', "$dir/$name.conf",
                   '-e', "$dir/$name/error.log");

    if (system(join(' ', @command, '-t', ">$dir/$name.test", '2>&1')) != 0) {
        my ($why) = slurp("$dir/$name.test")
                    =~ m{\[emerg\] (.*?)(?:: it | in /|$)}m;
        return { missing => $why || 'nginx -t refuses it' };
    }

    my $pid = start($name, $cores, $port, @{ $arg{under} || [] }, @command);

    return { port => $port, pid => $pid, name => $name };
}


sub has_module
{
    my $name = shift;

    my ($file) = grep { -e } map { "$_/$name" } '/usr/lib/nginx/modules',
                 '/usr/lib64/nginx/modules';

    return $file;
}


# ------------------------------------------------------------------- measures

sub worker_pids
{
    my $pid = shift;

    my $children = slurp("/proc/$pid/task/$pid/children");
    my @children = split ' ', $children;

    return @children ? @children : $pid;
}


# seconds of processor time that a gateway has used: its workers, or itself

sub cpu_time
{
    my $pid = shift;
    my $ticks = 0;

    for my $worker (worker_pids($pid)) {
        # schedstat has nanoseconds; stat has ticks of 10 ms
        my ($ns) = slurp("/proc/$worker/schedstat") =~ /^(\d+)/;
        $ticks += $ns if $ns;
    }

    return $ticks / 1e9;
}


# One run of wrk: requests a second, and processor time of the gateway, and of
# its server of records, for each request, in microseconds.

sub wrk
{
    my ($gateway, %arg) = @_;

    my $seconds = $arg{seconds} || 2;
    my $connections = $arg{connections} || 32;
    my $uri = $arg{uri} || '/orders';

    local $ENV{BENCH_BODY}   = $body;
    local $ENV{BENCH_PREFIX} = $arg{prefix} // sprintf '%x-%x', time * 1000, rand 1e6;
    local $ENV{BENCH_KEYS}   = $arg{keys} // 1000;

    my $server = $gateway->{server};
    my $server_before = $server ? cpu_time($server) : 0;
    my $before = cpu_time($gateway->{pid});
    my $out = `taskset -c $other_cores wrk -t1 -c$connections -d${seconds}s --timeout 10s -s $root/bench/$arg{script}.lua http://127.0.0.1:$gateway->{port}$uri 2>&1`;
    my $used = cpu_time($gateway->{pid}) - $before;
    my $server_used = $server ? cpu_time($server) - $server_before : 0;

    my ($requests, $took, $bad)
        = $out =~ /^result: (\d+) requests, (\d+) us, (\d+) bad/m
        or die "bench: wrk on $gateway->{name}: $out\n";

    $requests or die "bench: $gateway->{name} answered nothing\n";

    if ($bad) {
        die "bench: $gateway->{name}: $bad of $requests failed: $out\n";
    }

    return { rate => $requests / ($took / 1e6), cpu => $used * 1e6 / $requests,
             server => $server_used * 1e6 / $requests, requests => $requests };
}


sub write_file
{
    my ($file, $text) = @_;

    open my $out, '>', $file or die "bench: $file: $!\n";
    print $out $text;
    close $out or die "bench: $file: $!\n";
}

sub slurp
{
    my $file = shift;

    open my $in, '<', $file or return '';
    local $/;
    return scalar <$in> // '';
}

sub read_file { slurp(@_) }

sub percentile
{
    my ($part, @values) = @_;

    @values = sort { $a <=> $b } @values;
    my $at = int($part * @values);

    return $values[$at > $#values ? $#values : $at];
}

sub median { percentile(0.5, @_) }

sub quartiles
{
    my @values = @_;

    return sprintf '%.2f (%.2f to %.2f)',
           map { percentile($_, @values) } 0.5, 0.25, 0.75;
}

1;
