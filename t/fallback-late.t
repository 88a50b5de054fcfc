# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# "idempotency shared fallback=ledger": the first store is slow.  The ledger comes
# into use, or the lock in it ends, while the first is being asked; what the first
# then answers is not all that counts.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep);

our ($redis, $second, $proxy);

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $redis = start_remote();
    $second = start_remote();
    $proxy = start_redis_proxy($second);
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $ENV{TEST_NGINX_SECOND_PORT} = $second->{port};
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    for my $server ($redis ? ($redis, $second) : ()) {
        $server->resume;
        $server->command('FLUSHALL');
    }

    $proxy->tell('cut') if $proxy;
});

# the time in which all of a block has to happen that is to happen before an
# answer is given up; if the machine is too busy for that, nothing is shown, and
# nothing fails

our $stores = <<'_EOC_';
    idempotency_store shared $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout  2s;
        breaker  fails=1 reset=60s;
    }
    idempotency_store ledger memory { zone ledger:1m; }
    idempotency_store second $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_SECOND_PORT;
        timeout  2s;
    }
_EOC_

our $location = <<'_EOC_';
    idempotency_lease  1s;
    idempotency_wait   60s;
    location / {
        idempotency  shared fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /strict/ {
        idempotency                  shared fallback=ledger;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /remote/ {
        idempotency  shared fallback=second;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /only/ {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }
sub records { my @names = $redis->keys; return scalar @names }

# locks that last.  A begin that was given up, or sent twice, may come behind its
# own release, on a connection that was closed while the server stood still: its
# lock ends with its lease, and stays as a record of it

sub locks
{
    return scalar grep {
        my $record = $redis->record($_);

        $record && ($record->{s} != 1 || $record->{h} == 1
                    || $redis->command('PTTL', $_) > $record->{g});
    } $redis->keys;
}

# the breaker is closed again; nothing is in the first

sub back
{
    ok(wait_for(sub { http_post('/only/ok?op=back', 'x', key())->status == 200
                      || (sleep(0.05), 0)[1] }, 8), 'the first store is back');
    $redis->command('FLUSHALL');
}

# stores that are waited for, for longer than a lease; another host has the first
# alone

our $silent = $stores =~ s/timeout  2s/timeout  4s/gr =~ s/ +breaker .*?;//r . <<'_EOC_';
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;
        location / {
            idempotency        shared;
            idempotency_lease  1s;
            idempotency_wait   0;
            proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_

# the ledger has a record: both are asked from now on

sub in_use
{
    my ($uri) = @_;

    $redis->pause;
    is(http_post($uri, 'x', key())->status, 200, 'the ledger is in use');
    $redis->resume;
    back();
}

run_tests();

__DATA__

=== TEST 1: the ledger comes into use while the first is being asked
One is on its way to the first store when the breaker opens; a retry of it runs
from the ledger at once.  Then the first answers that nobody runs there.
--- store: redis postgres
--- workers: 1
--- http_config eval: $::stores
--- config eval: $::location
--- client_timeout: 60
--- client
back();                     # there is a connection that begins are sent on

my $n = 0;
for my $way ('', '/strict', '/remote') {
    my $op = 'k' . ++$n;
    my $key = key();

    $::redis->pause;
    my $fails = send_post("/ok?op=fails$op", 'x', key());
    sleep 1;
    my $late = send_post("$way/hold?op=$op", 'x', $key);

    ok(wait_for(sub { my @n = error_log() =~ /its breaker is open/g;
                      @n == $n }, 10), 'the breaker is open');
    is($fails->read_response->status, 200, 'the other key ran');

    my $c = send_post("$way/hold?op=$op", 'x', $key);
    is(app_wait_parked($op), 1, 'the retry runs from the ledger');

    # its begin is answered now
    $::redis->resume;
    is(app_wait($op, 2, 1), 0, 'the first one does not run beside it');

    app_release($op);
    is($_->read_response->body, "run 1\n", 'both have the one answer')
        for $c, $late;
    is(app_count($op), 1, 'ran once');
    ok(wait_for(sub { !locks() }, 15), 'nothing is left in the first');
    back();
}



=== TEST 2: ... and the client goes away while the ledger is asked again
--- store: redis postgres
--- workers: 1
--- http_config eval: $::stores =~ s/timeout  2s/timeout  4s/gr
--- config eval: $::location
--- client_timeout: 60
--- client
my $key = key();

back();
$::redis->pause;
send_post('/ok?op=fails', 'x', key());
sleep 2;
my $late = send_post('/remote/hold?op=a', 'x', $key);
error_log_like(qr/its breaker is open/, 'the breaker is open', 10);
my $c = send_post('/remote/hold?op=a', 'x', $key);
is(app_wait_parked('a'), 1, 'the retry runs from the ledger');

$::second->pause;
$::redis->resume;
ok(wait_for(sub { records() == 1 }, 5), 'the first lets the other one run');
$late->reset;
ok(wait_for(sub { !records() }, 10), 'its lock is given back there');

$::second->resume;
app_release('a');
is($c->read_response->body, "run 1\n", 'the retry is answered');
is(app_count('a'), 1, 'ran once');



=== TEST 3: a holder in both outlasts its lease while the first is silent
The renewal waits for the first store, for longer than a lease; the lock in the
ledger is renewed meanwhile.
--- store: redis postgres
--- workers: 1
--- http_config eval: $::silent
--- config eval: $::location
--- client_timeout: 90
--- client
for my $way ('', '/strict') {
    in_use("$way/ok?op=use$way");
    my $op = 'r' . length $way;
    my $key = key();
    my $c = send_post("$way/hold?op=$op", 'x', $key);
    is(app_wait_parked($op), 1, 'it runs, and holds the lock in both');

    $::redis->pause;
    sleep 2;
    my $retry = send_post("$way/hold?op=$op", 'x', $key);
    is(app_wait($op, 2, 5), 0, 'its retry does not run beside it');

    $::redis->resume;
    app_release($op);
    is($_->read_response(20)->body, "run 1\n", 'both have the one answer') for $c, $retry;
    is(app_count($op), 1, 'ran once');
}



=== TEST 4: ... while its commit waits for the first
--- store: redis postgres
--- workers: 1
--- http_config eval: $::silent
--- config eval: $::location
--- client_timeout: 60
--- client
in_use('/ok?op=use');
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
is(app_wait_parked('a'), 1, 'it runs, and holds the lock in both');

$::redis->pause;
app_release('a');
sleep 3.4;
my $retry = send_post('/hold?op=a', 'x', $key);
is(app_wait('a', 2, 5), 0, 'its retry does not run');
is($_->read_response(20)->body, "run 1\n", 'both have the one answer') for $c, $retry;
is(app_count('a'), 1, 'ran once');



=== TEST 5: a holder in both outlasts its lease while the ledger is silent
--- store: redis postgres
--- workers: 1
--- http_config eval: $::silent
--- config eval: $::location
--- client_timeout: 60
--- client
in_use('/remote/ok?op=use');
my $key = key();
my $c = send_post('/remote/hold?op=a', 'x', $key);
is(app_wait_parked('a'), 1, 'it runs, and holds the lock in both');

$::second->pause;
sleep 3;
is(http_post('/remote/hold?op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->error_code,
   'CONCURRENT_REQUEST', 'another host finds it in the first');
$::second->resume;
app_release('a');
is($c->read_response(20)->body, "run 1\n", 'it has its answer');
is(app_count('a'), 1, 'ran once');



=== TEST 6: a holder in both gives both back while the ledger is silent
The answer, and another host, do not wait for the ledger.
--- store: redis postgres
--- workers: 1
--- http_config eval: $::silent =~ s/(SECOND_PORT;\s+timeout  )4s/${1}60s/r
--- config eval: $::location
--- client_timeout: 60
--- client
in_use('/remote/ok?op=use');
my $key = key();
my $uri = '/remote/hold?op=a&status=503';
my $c = send_post($uri, 'x', $key);
is(app_wait_parked('a'), 1, 'it runs, and holds the lock in both');

$::second->pause;
app_release('a');
my $r = $c->read_response;
is($r && $r->status, 503, 'it is answered');

$c = send_post($uri, 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
is(app_wait('a', 2), 2, 'its retry on another host runs');
app_release('a');
is($c->read_response->status, 503, 'and is answered');

$::second->resume;
ok(wait_for(sub { my @left = $::second->keys; @left == 1 }),
   'the ledger has only what brought it into use');



=== TEST 7: the ledger goes away while the first is being asked
The lock that the request has in the ledger is given back when the ledger is there
again: it did not run.
--- store: redis postgres
--- workers: 1
--- http_config eval
$::silent =~ s/SECOND_PORT/PROXY_PORT/r
--- config
    idempotency_wait  0;
    location / {
        idempotency  shared fallback=second;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /only/ {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
in_use('/ok?op=use');
my $key = key();
my $uri = '/ok?op=a';

$::redis->pause;
my $c = send_post($uri, 'x', $key);
my $locked = sub { grep { ($::second->record($_) || { s => 0 })->{s} == 1 } $::second->keys };
ok(wait_for($locked), 'it has the lock in the ledger, and asks the first');
$::proxy->tell('down');
is($c->read_response->error_code, 'STORE_UNAVAILABLE', 'both are away: refused');
ok(scalar($locked->()), 'its lock is in the ledger');

$::proxy->tell('pass');
ok(wait_for(sub { !$locked->() }), 'and is given back');
is(app_count('a'), 0, 'it did not run');
is(http_post($uri, 'x', $key)->body, "run 1\n", 'a retry runs');
$::redis->resume;



=== TEST 8: a holder in both gives both back, and its worker exits meanwhile
Under hold the lock in the first store would stay: another worker gives it back.
--- store: redis postgres
--- workers: 1
--- http_config eval: $::silent =~ s/OWN_PORT/PROXY_PORT/r =~ s/timeout  4s/timeout  1s/gr
--- config eval: $::location
--- client_timeout: 60
--- client
my $locked = sub { grep { ($::second->record($_) || { s => 0 })->{s} == 1 } $::second->keys };

$::proxy->tell('down');
is(http_post('/strict/ok?op=use', 'x', key())->status, 200, 'the ledger is in use');
$::proxy->tell('pass');
back();
$::second->command('FLUSHALL');

my $key = key();
my $uri = '/strict/hold?op=a&status=503';
my $c = send_post($uri, 'x', $key);
is(app_wait_parked('a'), 1, 'it runs, and holds the lock in both');
is(scalar($locked->()), 1, 'the first has its lock');

my ($old) = nginx_workers();
$::proxy->tell('down');
app_release('a');
is($c->read_response->status, 503, 'it is answered');
$c->abort;
ok(nginx_reload(), 'a reload');
ok(wait_for(sub { !kill 0, $old }, 10), 'its worker exits');
is(scalar($locked->()), 1, 'its lock is there');

$::proxy->tell('pass');
ok(wait_for(sub { !$locked->() }, 20), 'and is given back');
$c = send_post($uri, 'x', $key);
is(app_wait('a', 2), 2, 'a retry runs');
app_release('a');
is($c->read_response->status, 503, 'and is answered');



=== TEST 9: a duplicate that came within the window, and waited for the first store
Both ask the ledger when the window is over.
--- store: redis postgres
--- workers: 1
--- http_config eval: $::silent
--- config
    location / {
        idempotency         shared fallback=ledger;
        idempotency_dedupe  body window=1s;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /only/ {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
is(http_post('/ok?op=warm', 'x')->status, 200, 'the first store answers');
$::redis->pause;
my $c = send_post('/ok?op=a', 'x');
sleep 0.5;
my $d = send_post('/ok?op=a', 'x');
is($c->read_response->body, "run 1\n", 'runs from the ledger');
my $r = $d->read_response;
is($r->body, "run 1\n", 'the other folds');
is($r->header('Idempotent-Replayed'), 'true', 'and says so');
is(app_count('a'), 1, 'ran once');
$::redis->resume;
