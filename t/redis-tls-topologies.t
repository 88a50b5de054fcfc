# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# TLS to the nodes of a cluster, and to sentinels, apart from the servers.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Tls;
use Test::Nginx::Socket 'no_plan';

{
    package TlsSentinel;
    our @ISA = ('IdempotencyTest::Redis');

    sub arguments { ("$_[0]{dir}/sentinel.conf", '--sentinel') }
}

our ($certificates, $dir, $cluster, $master);
our $me = $$;

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $certificates = IdempotencyTest::Tls->new('ca');
    $certificates->certificate('server', 'IP:127.0.0.1');
    $dir = $certificates->{dir};

    my %tls = ('tls-cert-file' => "$dir/server.pem",
               'tls-key-file' => "$dir/server.key",
               'tls-ca-cert-file' => "$dir/ca.pem",
               'tls-auth-clients' => 'no');
    my @options = map { ("--$_", $tls{$_}) } sort keys %tls;

    # other nodes are clients of theirs, and show no certificate

    my @ports;

    $cluster = start_cluster(
        replicas => 0, options => [ @options, '--tls-cluster', 'yes' ],
        announce => sub { push @ports, free_port();
                          ('--tls-port', $ports[-1]) });

    $ENV{TEST_NGINX_SEED} = "127.0.0.1:$ports[0]";

    # a master without TLS, and one with, and a sentinel that has them both

    $master = start_redis('--tls-port', free_port(),
                          @options);

    my $port = free_port();
    my $sentinel_port = free_port();

    mkdir "$dir/sentinel";
    open my $conf, '>', "$dir/sentinel/sentinel.conf" or die $!;
    print $conf "bind 127.0.0.1\nport $port\ntls-port $sentinel_port\n",
        "dir $dir/sentinel\n", map({ "$_ $tls{$_}\n" } sort keys %tls),
        "sentinel monitor main 127.0.0.1 $master->{port} 1\n";
    close $conf;

    TlsSentinel->start(host => '127.0.0.1', port => $port,
                       dir => "$dir/sentinel");
    wait_for(sub { IdempotencyTest::is_listening($sentinel_port) }, 10);

    $ENV{TEST_NGINX_SENTINEL} = "127.0.0.1:$port";
    $ENV{TEST_NGINX_TLS_SENTINEL} = "127.0.0.1:$sentinel_port";
    $ENV{TEST_NGINX_TLS_DIR} = $dir;
}

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub post { http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status }

run_tests();

END {
    local $?;

    # they write into that directory

    IdempotencyTest::Redis::stop_all() if $dir && $$ == $me;
}

__DATA__

=== TEST 1: a cluster
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   $TEST_NGINX_SEED;
        cluster                  on;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- client
$::cluster->flush;

is(post(), 200, 'ran') for 1 .. 30;

for my $node ($::cluster->masters) {
    my @keys = $node->keys;
    cmp_ok(scalar @keys, '>', 0, "node $node->{number} has some");
}



=== TEST 2: a cluster whose nodes are not who they should be
--- store: redis
--- http_config
    idempotency_store own redis {
        server                   $TEST_NGINX_SEED;
        cluster                  on;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
        tls_name                 redis.test;
    }
--- config eval: $::location
--- client
is(post(), 503, 'refused');
error_log_like(qr/\[error\] .*nobody tells the slots of the cluster, .* its certificate is not for "redis\.test"/, 'told');



=== TEST 3: a sentinel with TLS, servers without
--- store: redis
--- http_config
    idempotency_store own redis {
        sentinel                 $TEST_NGINX_TLS_SENTINEL master=main;
        sentinel_tls             on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- client
$::master->command('FLUSHALL');

is(post(), 200, 'ran') for 1 .. 3;

my @keys = $::master->keys;
is(scalar @keys, 3, 'there');



=== TEST 4: a sentinel without TLS, servers with
--- store: redis
--- http_config
    idempotency_store own redis {
        sentinel                 $TEST_NGINX_SENTINEL master=main;
        sentinel_tls             off;
        tls                      on;
        tls_trusted_certificate  $TEST_NGINX_TLS_DIR/ca.pem;
    }
--- config eval: $::location
--- client
is(post(), 503, 'refused: the sentinel names a port without TLS');
error_log_like(qr/\[notice\] .*the master "main" is at 127\.0\.0\.1:$::master->{port}/, 'it was asked');
error_log_like(qr/can't connect to Redis at 127\.0\.0\.1:$::master->{port}: /, 'and the server not');
