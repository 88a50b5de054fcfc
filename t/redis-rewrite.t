# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Commits that too few replicas have are kept in this nginx, and written again
# when another server has taken over, or the same one came back without them.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis, $set);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis('--repl-diskless-sync-delay', 0,
                         '--repl-ping-replica-period', 1);
    $set = start_sentinels(replicas => 1, sentinels => 3);

    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_SENTINELS} = join ' ', $set->servers;
}

add_block_preprocessor(sub { $redis->command('FLUSHALL') if $redis });

sub store
{
    my ($more) = @_;

    return "idempotency_store s redis {
        $more
        timeout          500ms;
        connect_timeout  500ms;
    }";
}

our $location = <<'_EOC_';
    add_header  X-Record $idempotency_record always;
    add_header  X-Status $idempotency_status always;
    location / {
        idempotency        s;
        idempotency_lease  30s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency      s;
        idempotency_ttl  2s;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats json; }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

sub outbox
{
    my ($s) = grep { $_->{name} eq 's' } @{ http_get('/stats')->json->{stores} };
    return $s->{outbox};
}

# so many requests whose commits no replica has; their keys and record ids

sub run_alone
{
    my ($n) = @_;

    my @keys = map { key() } 1 .. $n;
    my @c = map { send_post('/ok?op=a', 'x', $_) } @keys;
    my @ids = map { $_->read_response->header('X-Record') } @c;

    my $missed = () = error_log() =~ /a commit is on 0 of 1 replicas/g;
    is($missed, $n, 'no replica has them');

    return (\@keys, \@ids);
}

sub there
{
    my ($server, $ids) = @_;

    return scalar grep {
        (eval { $server->record("idempotency:$_") } || { s => 0 })->{s} == 2
    } @$ids;
}

run_tests();

__DATA__

=== TEST 1: the server comes back without its data
--- store: redis
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_OWN_PORT; replicas 1 timeout=200ms;')
--- config eval: $::location
--- client
my ($keys, $ids) = run_alone(30);
is(outbox()->{waiting}, 0, 'nothing waits: the store has them');
is(outbox()->{unacknowledged}, 30, 'but no replica');

$::redis->restart('KILL');
ok(wait_for(sub { there($::redis, $ids) == @$ids }, 15),
   'all are there again, and nobody asked');

my @again = map { http_post('/ok?op=a', 'x', $_) } @$keys;
is(scalar(grep { $_->header('X-Status') eq 'REPLAYED' } @again), 30, 'replayed');
is(app_count('a'), 30, 'each ran once');



=== TEST 2: a retry that comes before that
--- store: redis
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_OWN_PORT; replicas 1 timeout=200ms;')
--- config eval: $::location
--- client
my ($keys) = run_alone(1);

# as if it had restarted just now, and nobody had noticed
$::redis->command('FLUSHALL');
my $r = http_post('/ok?op=a', 'x', $keys->[0]);
is($r->header('X-Status'), 'REPLAYED', 'is replayed');
is(scalar(() = $::redis->keys), 1, 'and the store has it again');
is(http_post('/ok?op=a', 'y', $keys->[0])->error_code, 'IDEMPOTENCY_CONFLICT',
   'another request is a conflict');
is(app_count('a'), 1, 'ran once');



=== TEST 3: replicas that are back acknowledge what they lacked
--- store: redis
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_OWN_PORT; replicas 1 timeout=200ms;')
--- config eval: $::location
--- client_timeout: 60
--- client
my ($keys) = run_alone(30);
my $replica = start_redis('--replicaof', '127.0.0.1', $::redis->{port});

# then nothing is kept any more, and the store alone decides

ok(wait_for(sub { outbox()->{unacknowledged} == 0 }, 30), 'nothing is kept');

is($replica->command('DBSIZE'), 30, 'the replica has them');
$::redis->command('FLUSHALL');
is(http_post('/ok?op=a', 'x', $keys->[0])->header('X-Status'), 'EXECUTED',
   'forgotten here');
$replica->stop;



=== TEST 4: its time is over: nothing is said to be lost
--- store: redis
--- http_config eval: main::store('server 127.0.0.1:$TEST_NGINX_OWN_PORT; replicas 1 timeout=200ms;')
--- config eval: $::location
--- client
my $key = key();
http_post('/brief/ok?op=a', 'x', $key);
sleep 2.5;
is(http_post('/brief/ok?op=a', 'x', $key)->header('X-Status'), 'EXECUTED',
   'runs again');
error_log_unlike(qr/never reached/, 'it had been there');



=== TEST 5: sentinels promote a replica that lacks them
--- store: redis
--- workers: 2
--- http_config eval: main::store('sentinel $TEST_NGINX_SENTINELS master=main; replicas 1 timeout=300ms;')
--- config eval: $::location
--- client_timeout: 120
--- client
my $master = $::set->master;
my $replica = $::set->replica;

# a link that is only frozen would still deliver what was sent
$replica->pause;
$master->command('CLIENT', 'KILL', 'TYPE', 'replica');

my ($keys, $ids) = run_alone(30);

$master->kill_it;
$replica->resume;
ok($::set->wait_failed_over($master), 'the replica is the master');
ok(wait_for(sub { there($replica, $ids) == @$ids }, 20),
   'it has them, and nobody asked') or diag(there($replica, $ids));

my @again = map { my ($r, $key) = (undef, $_);
                  wait_for(sub { $r = http_post('/ok?op=a', 'x', $key);
                                 $r->status == 200 }, 15);
                  $r } @$keys;
is(scalar(grep { $_->header('X-Status') eq 'REPLAYED' } @again), 30, 'replayed');
is(app_count('a'), 30, 'each ran once');
