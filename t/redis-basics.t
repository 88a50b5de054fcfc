# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The Redis store on a server that works: what it costs, what it leaves there,
# how it is reached, and which configurations are refused.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($redis, $socket);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $socket = "/tmp/idempotency-$$.sock";

    $redis = start_redis('--unixsocket', $socket, '--unixsocketperm', '777');
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_OWN_SOCKET} = $socket;
}

add_block_preprocessor(sub {
    my $block = shift;

    if ($redis) {
        $redis->command('FLUSHALL');
        $redis->command('CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
        $redis->command('CONFIG', 'SET', 'requirepass', '');
    }
});

our $location = <<'_EOC_';
    location / {
        idempotency  own;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# once, and once more

sub twice
{
    my ($name) = @_;

    my %key = ('Idempotency-Key' => new_key());
    my $op = new_key();

    my $first = http_post("/headers?op=$op", 'x', \%key);
    my $retry = http_post("/headers?op=$op", 'x', \%key);

    is($first->status, 201, "$name: ran");
    is($retry->header('Idempotent-Replayed'), 'true', "$name: replayed");
    is($retry->body, $first->body, "$name: the same");
    is(app_count($op), 1, "$name: ran once");
}

run_tests();

unlink $socket if $socket;

__DATA__

=== TEST 1: two round trips to run, one to replay
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
twice('the first ever');
http_post('/status/503', 'x', { 'Idempotency-Key' => new_key() });
wait_for(sub { $::redis->command('DBSIZE') == 1 });

my %key = ('Idempotency-Key' => new_key());

$::redis->reset_calls;
http_post('/ok?op=a', 'x', \%key);
is($::redis->round_trips, 2, 'begin and commit');
is($::redis->calls->{publish}, undef, 'nobody waited, nothing was published');

$::redis->reset_calls;
is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'replayed');
is($::redis->round_trips, 1, 'begin');

$::redis->reset_calls;
is(http_post('/ok?op=a', 'y', \%key)->status, 409, 'conflict');
is($::redis->round_trips, 1, 'begin');

$::redis->reset_calls;
http_post('/status/503', 'x', { 'Idempotency-Key' => new_key() });
wait_for(sub { $::redis->round_trips == 2 });
is($::redis->round_trips, 2, 'begin and release');

is($::redis->calls->{publish}, undef, 'nor by the release');



=== TEST 2: a hundred at a time on one connection
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
twice('one before');

my @keys = map { new_key() } 1 .. 100;

for my $round (1, 2) {
    my @c = map { send_post("/ok?op=many$_", 'x',
                            { 'Idempotency-Key' => $keys[$_] }) } 0 .. 99;
    is(scalar(grep { $_->read_response->body eq "run 1\n" } @c), 100,
       "answered, round $round");
}

is(scalar(grep { app_count("many$_") == 1 } 0 .. 99), 100, 'each ran once');

my @clients = grep { !/cmd=(?:client|monitor)/ }
              split /\n/, $::redis->command('CLIENT', 'LIST');
is(scalar @clients, 1, 'one connection');



=== TEST 3: what is in Redis
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config
    location / {
        idempotency        own;
        idempotency_ttl    1h;
        idempotency_lease  10s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => 'very-secret-key-of-a-client');

my $c = send_post('/hold?op=k', 'the-body', \%key);
app_wait_parked('k');

my ($name, @more) = $::redis->keys;
is(scalar @more, 0, 'one key');
like($name, qr/^idempotency:[0-9a-f]{64}$/, 'prefix and record id');
is($::redis->command('TYPE', $name), 'string', 'a string');

my %f = %{ $::redis->record($name) };
is($f{magic}, 'id', 'a record');
is($f{v}, 2, 'its version');
is($f{s}, 1, 'in progress');
is(length $f{t}, 16, 'the token');
is(length $f{c}, 69, 'the claim');
is($f{b}, '', 'no response yet');
is($f{i}, pack('H16', substr $name, 12), 'whose it is');
is($::redis->command('STRLEN', $name), 117, 'and nothing else');

my $left = $::redis->command('PTTL', $name);
cmp_ok($left, '>', 3_590_000, 'as long as its ttl');
cmp_ok($left, '<=', 3_600_000, 'and no longer');
is($f{g}, 3_590_000, 'the lease is what is left, less this');

app_release('k');
is($c->read_response->status, 200, 'done');

%f = %{ $::redis->record($name) };
is($f{s}, 2, 'completed');
is($f{g}, 0, 'it lasts as long as its key');
ok(length $f{b}, 'a response');
unlike(join('', %f), qr/very-secret|the-body/, 'nothing of the request');

$left = $::redis->command('PTTL', $name);
cmp_ok($left, '>', 3_599_000, 'lives for its ttl');
cmp_ok($left, '<=', 3_600_000, 'and no longer');

http_post('/status/503', 'x', { 'Idempotency-Key' => 'other' });
ok(wait_for(sub { my @k = $::redis->keys; @k == 1 }), 'released: nothing left');

is(scalar(grep { $::redis->command('PTTL', $_) < 0 } $::redis->keys), 0,
   'no key without an expiry');



=== TEST 4: a lease under hold lives for the ttl
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config
    location / {
        idempotency                  own;
        idempotency_ttl              1h;
        idempotency_lease            1s;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: exited on signal 9
--- client
my %key = ('Idempotency-Key' => new_key());

send_post('/hold?op=h', 'x', \%key);
app_wait_parked('h');

my ($name) = $::redis->keys;
cmp_ok($::redis->command('PTTL', $name), '>', 3_590_000, 'for its ttl');

kill_worker();
ok(wait_for(sub {
    $::redis->command('PTTL', $name) < $::redis->record($name)->{g};
}), 'the lease is over');

my $r = http_post('/hold?op=h', 'x', \%key);
is($r->error_code, 'OUTCOME_UNKNOWN', 'nobody knows');
is(app_count('h'), 1, 'and nobody tries');



=== TEST 5: unix socket, db, prefix
--- store: redis
--- http_config
    idempotency_store own redis {
        server       unix:$TEST_NGINX_OWN_SOCKET;
        db           3;
        prefix       "prod eu:";
        connections  2;
        timeout      2s;
    }
--- config eval: $::location
--- client
twice("number $_") for 1 .. 8;

is($::redis->command('DBSIZE'), 0, 'nothing in db 0');
like($::redis->command('INFO', 'keyspace'), qr/db3:keys=8,expires=8/, 'in db 3');

my @clients = grep { /db=3/ } split /\n/, $::redis->command('CLIENT', 'LIST');
is(scalar @clients, 2, 'two connections');

my $c = send_post('/hold?op=w', 'x', { 'Idempotency-Key' => 'w' });
app_wait_parked('w');
my $w = send_post('/hold?op=w', 'x', { 'Idempotency-Key' => 'w' });
ok(wait_for(sub {
    my $n = $::redis->command('PUBSUB', 'NUMSUB', 'prod eu:wake');
    $n->[1] == 1;
}), 'the channel has the prefix');

app_release('w');
is($w->read_response->body, "run 1\n", 'woken');



=== TEST 6: a user with just the rights that docs/redis.md names
--- store: redis
--- http_config
    idempotency_store own redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        user      nginx;
        password  "s3cret w0rd";
        prefix    prod:;
    }
--- config
    location / {
        idempotency        own;
        idempotency_lease  500ms;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /long/ {
        idempotency        own;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: exited on signal 9
--- client
open my $in, '<', 'docs/redis.md' or die "docs/redis.md: $!";
my ($line) = join('', <$in>) =~ /^    (ACL SETUSER nginx .*)$/m;
$line =~ s/<password>/s3cret w0rd/;

my @words = split / (?!w0rd)/, $line;
unlike($line, qr/\+restore|\+\@|config|info/, 'nothing that is dangerous');
push @words, '+delifeq' if $::redis->knows('DELIFEQ');
push @words, '+hello' if !$::redis->knows('channels');
is($::redis->set_user(@words[2 .. $#words]), 'OK', $line);
is($::redis->command('ACL', 'LOG', 'RESET'), 'OK', 'nothing denied yet');
$::redis->reset_calls;

twice('own user');
my %once = ('Idempotency-Key' => new_key());
http_post('/ok?op=o', 'x', \%once);
is(http_post('/ok?op=o', 'y', \%once)->status, 409, 'a conflict');

# lease renewed, a waiter woken, one released
my $c = send_post('/hold?op=w', 'x', { 'Idempotency-Key' => 'w' });
app_wait_parked('w');
my $w = send_post('/hold?op=w', 'x', { 'Idempotency-Key' => 'w' });
sleep 1;
app_release('w');
is($w->read_response->body, "run 1\n", 'woken');

my $q = send_post('/status/503?op=r&hold=1', 'x', { 'Idempotency-Key' => 'r' });
app_wait_parked('r');
my $v = send_post('/status/503?op=r&hold=1', 'x', { 'Idempotency-Key' => 'r' });
sleep 1;
app_release('r');
is($q->read_response->status, 503, 'not kept');
app_release('r');
is($v->read_response->status, 503, 'the waiter ran');

ok(wait_for(sub { my @k = $::redis->keys; @k == 3 }, 8), 'and is released');

# a holder that is gone
my %gone = ('Idempotency-Key' => new_key());
$c = send_post('/hold?op=g', 'x', \%gone);
app_wait_parked('g');
kill_worker();
$w = send_post('/hold?op=g', 'x', \%gone);
is(app_wait('g', 2), 2, 'taken over');
app_release('g');
is($w->read_response->body, "run 2\n", 'and ran');

is($::redis->command('INFO', 'errorstats') =~ s/^#.*\s*//r, '',
   'no error in the statistics');

my @denied = map { my %e = @$_; $e{object} } @{ $::redis->command('ACL', 'LOG') };
is(join(' ', @denied), '', 'nor in the log of what was denied');
--- no_error_log
[error]



=== TEST 7: a wrong password
--- store: redis
--- log_level: debug
--- http_config
    idempotency_store own redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        password  notTheRightOne;
    }
--- config eval: $::location
--- client
$::redis->command('CONFIG', 'SET', 'requirepass', 'theRightOne');
$::redis->{auth} = [ 'theRightOne' ];

my $r = http_post('/ok', 'x', { 'Idempotency-Key' => new_key() });
is($r->status, 503, 'refused');
is($r->error_code, 'STORE_UNAVAILABLE', 'the store');
is(app_count('/ok'), 0, 'did not run');

error_log_like(qr/\[error\] .*store "own": can't connect to Redis at \S+: authentication failed \(WRONGPASS\)/,
               'says why');
error_log_unlike(qr/notTheRightOne/, 'and not the password');

$::redis->command('CONFIG', 'SET', 'requirepass', '');
delete $::redis->{auth};



=== TEST 8: no password where one is wanted
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
$::redis->command('CONFIG', 'SET', 'requirepass', 'theRightOne');
$::redis->{auth} = [ 'theRightOne' ];

is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 503,
   'refused');
error_log_like(qr/the server wants a password: /, 'says why');

$::redis->command('CONFIG', 'SET', 'requirepass', '');
delete $::redis->{auth};



=== TEST 9: a password in a file
--- store: redis
--- log_level: debug
--- user_files
>>> secret
theRightOne
--- http_config
    idempotency_store own redis {
        server         127.0.0.1:$TEST_NGINX_OWN_PORT;
        password_file  $TEST_NGINX_SERVER_ROOT/html/secret;
    }
--- config eval: $::location
--- client
$::redis->command('CONFIG', 'SET', 'requirepass', 'theRightOne');
$::redis->{auth} = [ 'theRightOne' ];

twice('with it');
error_log_unlike(qr/theRightOne/, 'not in the log');

$::redis->command('CONFIG', 'SET', 'requirepass', '');
delete $::redis->{auth};



=== TEST 10: a server that may evict
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- workers: 2
--- client
$::redis->command('CONFIG', 'SET', 'maxmemory-policy', 'volatile-lru');

twice("number $_") for 1 .. 20;

error_log_like(qr/\[warn\] .*maxmemory-policy of Redis is "volatile-lru"/,
               'warns');
is(scalar(() = error_log() =~ /maxmemory-policy/g), 1, 'once');



=== TEST 11: a server that does not
--- store: redis
--- http_config
    idempotency_store own redis { server localhost:$TEST_NGINX_OWN_PORT; }
--- config eval: $::location
--- client
twice('noeviction');
--- no_error_log
maxmemory-policy



=== TEST 12: no server
--- store: redis
--- http_config
    idempotency_store own redis { prefix a:; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*store "own" in .*nginx\.conf:\d+ has no "server"/



=== TEST 13: an unknown directive
--- store: redis
--- http_config
    idempotency_store own redis { host 127.0.0.1; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*unknown directive "host" in a redis store: it has server, user, password.*tls_certificate_key, .*breaker.* in .*nginx\.conf:\d+/



=== TEST 14: a wrong address
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:none; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid server "127.0.0.1:none", invalid port: it is <host>:<port> or unix:<path>.* in .*nginx\.conf:\d+/



=== TEST 15: a wrong number
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1; connections 0; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "0" in "connections" directive: it is a number from 1 to 64 in .*nginx\.conf:\d+/



=== TEST 16: a wrong time
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1; timeout soon; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "soon" in "timeout" directive: it is a time from 1ms to 1h, for example 1s or 500ms in .*nginx\.conf:\d+/



=== TEST 17: two passwords, neither of which is shown
--- store: redis
--- http_config
    idempotency_store own redis {
        server         127.0.0.1;
        password       hidden;
        password_file  /dev/null;
    }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*"password_file" directive is duplicate: there is one password.* in .*nginx\.conf:\d+/
--- no_error_log
hidden



=== TEST 18: an empty password file
--- store: redis
--- http_config
    idempotency_store own redis {
        server         127.0.0.1;
        password_file  /dev/null;
    }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid password_file "\/dev\/null": it is empty/



=== TEST 19: a user without a password
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1; user nginx; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*store "own" in .*nginx\.conf:\d+ has a "user" without a "password"/



=== TEST 20: TLS directives without TLS
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1; tls_verify off; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*store "own" in .*nginx\.conf:\d+ has "tls_\.\.\." directives without "tls on"/



=== TEST 21: several arguments
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1; prefix a: b:; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid number of arguments in "prefix" directive: it takes one .* in .*nginx\.conf:\d+/



=== TEST 22: on or off
--- store: redis
--- http_config
    idempotency_store own redis { server 127.0.0.1:1; tls yes; }
--- config
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "yes" in "tls" directive: it is "on" or "off" in .*nginx\.conf:\d+/



=== TEST 23: a password file of two lines
--- user_files
>>> secret
nginx
secret
--- http_config
    idempotency_store own redis {
        server         127.0.0.1:1;
        password_file  $TEST_NGINX_SERVER_ROOT/html/secret;
    }
--- config
    location / { return 200; }
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid password_file "\S+\/secret": it has more than one line, or a NUL.* in .*nginx\.conf:\d+/



=== TEST 24: a server that may evict, of a user without CONFIG
--- store: redis
--- http_config
    idempotency_store own redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        user      looks;
        password  looks;
    }
--- config eval: $::location
--- client
$::redis->command('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-lru');
$::redis->set_user(qw(looks on >looks ~* &* +@all -config));

twice('INFO');

if ($::redis->knows('rights')) {
    error_log_like(qr/\[warn\] .*maxmemory-policy of Redis is "allkeys-lru"/,
                   'warns');
} else {
    error_log_unlike(qr/maxmemory-policy/, 'Redis 6 is not asked');
}

$::redis->command(qw(ACL DELUSER looks));
