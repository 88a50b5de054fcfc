# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A response goes out when the store has what became of its record, also where
# there is no response to store: a client that retries at once is not told that
# the first try still runs.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($store, $proxy) = start_proxied();

add_block_preprocessor(sub {
    if ($store) {
        $proxy->tell('cut');
        $store->command('FLUSHALL');
    }
});

our $stores = <<'_EOC_';
    idempotency_store shared $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout  3s;
    }
_EOC_

our $locations = <<'_EOC_';
    idempotency       shared;
    idempotency_wait  0;
    add_header        X-Outcome  $idempotency_status  always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /twice/ {
        idempotency_dedupe  body window=10s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# A held execution, which ends while the store hears nothing.  Returns the
# connection of its client, and what its retry needs.

sub end_unheard
{
    my ($uri, $op, $how) = @_;
    my %key = ('Idempotency-Key' => new_key());

    $uri .= "op=$op";

    my $c = send_post($uri, 'x', \%key);
    app_wait_parked($op);
    $proxy->tell($how || 'deaf');
    app_release($op);

    return ($c, $uri, \%key);
}

run_tests();

__DATA__

=== TEST 1: a retry right after an answer that is not kept runs
--- config
    idempotency       $TEST_STORE;
    idempotency_wait  0;
    add_header        X-Outcome  $idempotency_status  always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /dead/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
--- client
my (%status, %code);

for my $uri ('/status/503', '/dead/ok', '/close') {
    for my $n (1 .. 60) {
        my %key = ('Idempotency-Key' => new_key());
        http_post("$uri?op=many", 'x', \%key);
        my $retry = http_post("$uri?op=many", 'x', \%key);
        $status{$uri}{$retry->header('X-Outcome')}++;
        $code{$uri}{$retry->error_code}++;
    }
}

is_deeply(\%status, { '/status/503' => { RELEASED => 60 },
                      '/dead/ok' => { RELEASED => 60 },
                      '/close' => { UNKNOWN => 60 } }, 'what the retries found');
is($code{'/close'}{OUTCOME_UNKNOWN}, 60, 'they are told what is unknown');



=== TEST 2: the answer waits for the store
--- store: redis postgres
--- http_config eval: $::stores
--- config eval: $::locations
--- client
for (['/hold?status=503&', 503], ['/hold?status=504&', 504],
     ['/twice/hold?status=503&', 503], ['/hold?status=503&type=text/event-stream&', 503])
{
    my ($uri, $status) = @$_;
    my ($c) = end_unheard($uri, "op$uri" =~ s/\W//gr);

    ok(!$c->read_response(0.5), "$uri: no answer before the store has it");
    $::proxy->tell('pass');
    is($c->read_response->status, $status, "$uri: it came then");
}



=== TEST 3: not longer than its timeout
--- store: redis postgres
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my ($c, $uri, $key) = end_unheard('/hold?status=503&', 'a', 'hold');

my $answer = $c->read_response;
is($answer->status, 503, 'answered');
is($answer->header('X-Outcome'), 'RELEASED', 'released');

$::proxy->tell('cut');

ok(wait_for(sub {
    my $r = send_post($uri, 'x', $key);
    my $ran = app_wait('a', 2, 0.3);
    $r->abort if !$ran;
    $ran;
}), 'a retry runs once the store answers');



=== TEST 4: its client goes away, and a worker leaves
--- store: redis postgres
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my ($c, $uri, $key) = end_unheard('/hold?status=503&', 'a');
$c->abort;

my ($d, $other, $its) = do {
    $::proxy->tell('pass');
    end_unheard('/hold?status=503&', 'b');
};

my ($worker) = nginx_workers();
ok(nginx_reload(), 'reloaded');
$::proxy->tell('pass');

is($d->read_response->status, 503, 'the other one is answered');
ok(wait_for(sub { !kill 0, $worker }), 'the worker leaves');

for ([$uri, $key, 'a'], [$other, $its, 'b']) {
    my $r = send_post($_->[0], 'x', $_->[1]);
    is(app_wait($_->[2], 2), 2, "$_->[2]: a retry runs");
    $r->abort;
}



=== TEST 5: waiters that nobody wakes, and a short TTL
--- store: redis
--- http_config eval: $::stores
--- config
    idempotency             shared;
    idempotency_lease       6s;
    idempotency_ttl_header  X-TTL max=1h;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# on another host: the worker that commits wakes its own

$::store->command(qw(ACL SETUSER default -subscribe),
                  $::store->knows('shards') ? '-ssubscribe' : ());

my $host = start_host($ENV{TEST_NGINX_PORT_2});
my (%first, %waits);
my %key = map { $_ => { 'Idempotency-Key' => new_key(), 'X-TTL' => 1 } } 'a' .. 'e';

for (sort keys %key) {
    $first{$_} = send_post("/hold?op=$_", 'x', $key{$_});
    app_wait_parked($_);
    $waits{$_} = send_post("/hold?op=$_", 'x', $key{$_}, port => $host->{port});
}

# they look once a second by now: some of them have looked just before

select undef, undef, undef, 2;

for (sort keys %key) {
    app_release($_);
    is($first{$_}->read_response->status, 200, "$_: answered");
    select undef, undef, undef, 0.2;
}

for (sort keys %key) {
    my $answer = $waits{$_}->read_response(5);
    is($answer && $answer->header('Idempotent-Replayed'), 'true', "$_: replayed");
    is(app_count($_), 1, "$_: ran once");
}

ok($host->stop, 'it leaves in order');
$::store->command(qw(ACL SETUSER default +@all));



=== TEST 6: a release that failed is sent again while the breaker is open
--- store: redis postgres
--- http_config
    idempotency_store guarded $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_PROXY_PORT;
        connect_timeout  300ms;
        timeout          300ms;
        breaker          fails=2 reset=60s;
    }
--- config
    idempotency  guarded;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $c = send_post('/hold?op=a&status=503', 'x', { 'Idempotency-Key' => new_key() });
app_wait_parked('a');
$::proxy->tell('down');

sub ask { return http_post('/ok?op=b', 'x', { 'Idempotency-Key' => new_key() })->status }

ok(wait_for(sub { ask(); error_log() =~ /breaker is open/ }), 'the breaker opens');

app_release('a');
is($c->read_response->status, 503, 'answered');
is(scalar(() = $::store->keys), 1, 'the lock is there');

$::proxy->tell('pass');
ok(wait_for(sub { !(() = $::store->keys) }), 'it is given back');
is(ask(), 503, 'begins are still turned away');
error_log_unlike(qr/its breaker is closed/, 'a release that is sent again does not close it');



=== TEST 7: a waiter on another host that hears late, and a short TTL
--- store: redis postgres
--- http_config eval
$::stores . <<'_EOC_'
    idempotency_store other $TEST_REMOTE { server 127.0.0.1:$TEST_NGINX_OWN_PORT; }
    idempotency_ttl_header  X-TTL max=1h;
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;
        location / {
            idempotency  other;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_
--- config
    idempotency  shared;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key(), 'X-TTL' => 1 } } 1 .. 3;
my (%first, %waits);

for (1 .. 3) {
    $first{$_} = send_post("/hold?op=$_", 'x', $key{$_}, port => $ENV{TEST_NGINX_PORT_2});
    app_wait_parked($_);
    $waits{$_} = send_post("/hold?op=$_", 'x', $key{$_});
}

select undef, undef, undef, 0.5;
$::proxy->tell('hold');

for (1 .. 3) {
    app_release($_);
    is($first{$_}->read_response->body, "run 1\n", "$_: answered");
}

select undef, undef, undef, 4;
$::proxy->tell('pass');

for (1 .. 3) {
    my $answer = $waits{$_}->read_response(20);
    is($answer && $answer->header('Idempotent-Replayed'), 'true', "$_: who waited is replayed to");
    is(app_count($_), 1, "$_: ran once");
}



=== TEST 8: a retry right after a replay by another key's record
Its own record has the response by then.
--- config
    idempotency       $TEST_STORE;
    idempotency_wait  0;
    location / {
        idempotency_dedupe  body window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %replayed;

for my $n (1 .. 60) {
    my %key = ('Idempotency-Key' => new_key());

    http_post("/ok?op=o$n", 'x', { 'Idempotency-Key' => new_key() });

    for my $try (1, 2) {
        my $r = http_post("/ok?op=o$n", 'x', \%key);
        $replayed{$try} += ($r->header('Idempotent-Replayed') || '') eq 'true';
    }
}

is_deeply(\%replayed, { 1 => 60, 2 => 60 }, 'each time');



=== TEST 9: a client that leaves while its own record is written, and a worker
--- store: redis postgres
--- http_config eval: $::stores
--- config eval: $::locations
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/twice/ok?op=a', 'x', { 'Idempotency-Key' => new_key() })->body,
   "run 1\n", 'ran');

$::proxy->tell('late 400');
my $c = send_post('/twice/ok?op=a', 'x', \%key);
select undef, undef, undef, 1;
$c->reset;
$c = send_post('/twice/ok?op=a', 'x', { 'Idempotency-Key' => new_key() });
select undef, undef, undef, 1;
ok(nginx_reload(), 'a reload');
$::proxy->tell('pass');

is($c->read_response->body, "run 1\n", 'the old worker answers');
ok(wait_for(sub { http_post('/twice/ok?op=a', 'x', \%key)->body eq "run 1\n" }),
   'the key of the client that left has a response');
is(app_count('a'), 1, 'ran once');



=== TEST 10: send_timeout is not for the store
--- store: redis postgres
--- h2
--- http_config eval: $::stores
--- config
    idempotency   shared;
    send_timeout  200ms;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /action/ {
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /limited/ {
        limit_rate   2k;
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /after {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }
--- client
# commits to PostgreSQL have a connection of their own

http_post('/ok?op=first', 'x', { 'Idempotency-Key' => new_key() });

for my $uri ('/hold?', '/hold?status=503&', '/hold?type=text/event-stream&',
             '/action/hold?', '/action/hold?status=503&')
{
    my ($c) = end_unheard($uri, "op$uri" =~ s/\W//gr);

    ok(!$c->read_response(0.6), "$uri: no answer before the store has it");
    $::proxy->tell('pass');

    my $answer = $c->read_response;
    is($answer->status, $uri =~ /503/ ? 503 : 200, "$uri: it came then");
    is($answer->body, "run 1\n", "$uri: all of it");
}

is(app_wait('after', 2), 2, 'actions of those that ran');

# over HTTP/2, and a client that leaves

my $h2 = h2_connect();
my @ids = map { $h2->request('POST', "/action/hold?op=b", $_,
                             [ 'idempotency-key' => new_key() ]) } 1 .. 2;

app_wait_parked('b', 2);
$::proxy->tell('deaf');
app_release('b', 2);

is($h2->response($ids[0], 0.6), undef, 'no answer on a stream');
$h2->rst($ids[1]);
$h2->ping;
$::proxy->tell('pass');

is($h2->response($ids[0])->status, 200, 'it came then');
is(app_wait('after', 4), 4, 'actions of both');

# a stream of which a part is still to be sent, but not yet

my ($c) = end_unheard('/limited/size?type=text/event-stream&n=5000&hold=body&',
                      'c');
ok(!$c->read_response(2), 'a stream is not through before the store has it');
$::proxy->tell('pass');
is(length $c->read_response->body, 5000, 'all of it came');
is(app_wait('after', 5), 5, 'and its action');
