# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_on_store_error pass: a request that runs although the store does
# not answer.  Its response is kept in this nginx for the retry, and for the
# store when it is back.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis, $proxy) = start_proxied();

add_block_preprocessor(sub {
    if ($redis) {
        $redis->command('FLUSHALL');
        $proxy->tell('cut');
    }
});

sub stores
{
    my ($more) = @_;

    return "idempotency_store s \$TEST_REMOTE {
        server           127.0.0.1:\$TEST_NGINX_PROXY_PORT;
        connect_timeout  300ms;
        timeout          300ms;
        $more
    }
    idempotency_store other \$TEST_REMOTE { server 127.0.0.1:\$TEST_NGINX_OWN_PORT; }
    server {
        listen 127.0.0.1:\$TEST_NGINX_PORT_2;
        server_name localhost;
        add_header  X-Status \$idempotency_status always;
        location / {
            idempotency  other;
            proxy_pass   http://127.0.0.1:\$TEST_NGINX_APP_PORT;
        }
    }";
}

our $location = <<'_EOC_';
    add_header  X-Status $idempotency_status always;
    idempotency_on_store_error  pass;
    idempotency_lease           2s;
    idempotency_wait            8s;
    location / {
        idempotency  s;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /small/ {
        idempotency               s;
        idempotency_max_response  1k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /members/ {
        idempotency         s;
        idempotency_dedupe  json:a window=60s when=always;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats json; }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }
sub status { $_[0]->header('X-Status') }
sub outbox
{
    my ($s) = grep { $_->{name} eq 's' } @{ http_get('/stats')->json->{stores} };
    return $s->{outbox};
}
sub landed { scalar(() = error_log() =~ /that was kept is in store/g) }
sub part { $proxy->tell('down') }
sub join_again { $proxy->tell('pass') }

# headers of a response, without those that each has of its own

sub same_headers
{
    my ($r) = @_;

    return join '', sort map { "$_->[0]: $_->[1]\n" }
           grep { $_->[0] !~ /^(?:Date|Connection|X-Status|Idempotent-Replayed|X-Original-Request-Time)$/i }
           @{ $r->headers };
}

run_tests();

__DATA__

=== TEST 1: the retry is replayed, and the store has it when it is back
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
part();
my $key = key();
my $first = http_post('/headers?op=a', 'x', $key);
is($first->status, 201, 'it runs');
is(status($first), 'UNPROTECTED', 'and says so');
error_log_like(qr/store "s" failed: .*the request runs unprotected/, 'logged');

my $r = http_post('/headers?op=a', 'x', $key);
is($r->status, 201, 'a retry');
is(status($r), 'REPLAYED', 'is replayed');
is($r->header('Idempotent-Replayed'), 'true', 'as any');
is($r->body, $first->body, 'the same body');
is(same_headers($r), same_headers($first), 'the same headers');

$r = http_post('/headers?op=a', 'y', $key);
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'another request is a conflict');
is(app_count('a'), 1, 'ran once');
is(outbox()->{kept}, 1, 'counted');

join_again();
ok(wait_for(sub { landed() }, 8), 'the store has it');
$r = http_post('/headers?op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
is(status($r), 'REPLAYED', 'another host replays it');
is($r->body, $first->body, 'the same');
is(status(http_post('/headers?op=a', 'x', $key)), 'REPLAYED', 'and this one');
is(app_count('a'), 1, 'ran once');



=== TEST 2: duplicates that come while it runs wait for it
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
part();
my $key = key();
my $c = send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
my @w = map { send_post('/hold?op=a', 'x', $key) } 1 .. 5;
my $other = http_post('/hold?op=a', 'y', $key);
is($other->error_code, 'IDEMPOTENCY_CONFLICT', 'another request does not');

# longer than the lease
sleep 3;
is(app_count('a'), 1, 'one runs');
app_release('a');
my $r = $c->read_response;
is(status($r), 'UNPROTECTED', 'the first');
is($r->body, "run 1\n", 'ran');
for (@w) {
    $r = $_->read_response;
    is($r && $r->body, "run 1\n", 'a duplicate');
    is(status($r), 'REPLAYED', 'is replayed');
}
is(app_count('a'), 1, 'ran once');



=== TEST 3: another host ran it: what is here is dropped
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
part();
my $key = key();
is(http_post('/ok?op=a', 'x', $key)->body, "run 1\n", 'here');
is(http_post('/ok?op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->body,
   "run 2\n", 'there: that is what unprotected means');
join_again();
is(http_post('/ok?op=a', 'x', $key)->body, "run 2\n", 'what the store has counts');
is(landed(), 0, 'ours is not written');
is(app_count('a'), 2, 'no more');



=== TEST 4: what has no response to keep
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
part();
my ($big, $again, $unknown) = map { key() } 1 .. 3;

my $r = http_post('/small/size?n=5000&op=big', 'x', $big);
is(status($r), 'UNPROTECTED', 'too large, and says what matters more');
is(http_post('/small/size?n=5000&op=big', 'x', $big)->error_code,
   'RESPONSE_TOO_LARGE', 'a retry does not run');

is(http_post('/status/503?op=again', 'x', $again)->status, 503, 'not kept');
is(status(http_post('/status/503?op=again', 'x', $again)), 'UNPROTECTED',
   'a retry runs');
is(app_count('again'), 2, 'again');

is(http_post('/status/502?op=unknown', 'x', $unknown)->status, 502, 'unknown');
is(http_post('/status/502?op=unknown', 'x', $unknown)->error_code,
   'OUTCOME_UNKNOWN', 'a retry is told so');
is(app_count('unknown'), 1, 'and does not run before the lease is over');



=== TEST 5: whoever runs leaves, or is killed
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- provokes: exited on signal 9
--- client
part();
my ($gone, $killed) = (key(), key());

my $c = send_post('/hold?op=gone', 'x', $gone);
app_wait_parked('gone');
$c->reset;
sleep 0.2;
app_release('gone');
my $r = http_post('/hold?op=gone', 'x', $gone);
is($r->body, "run 1\n", 'a client that left gets it when it comes back');

# its worker is gone: its lock ends with its lease
send_post('/hold?op=killed', 'x', $killed);
app_wait_parked('killed');
kill_worker($_) for nginx_workers();
sleep 2.2;
my $d = send_post('/hold?op=killed', 'x', $killed);
ok(app_wait('killed', 2), 'then another one runs');
app_release('killed');
is($d->read_response->body, "run 2\n", 'and is answered');



=== TEST 6: with a breaker and a cache
--- store: redis postgres
--- http_config eval: main::stores('breaker fails=2 reset=60s; cache hot:1m;')
--- config eval: $::location
--- client
part();
http_post('/ok?op=b', 'x', key()) for 1 .. 3;
my $key = key();
is(status(http_post('/ok?op=a', 'x', $key)), 'UNPROTECTED', 'runs');
is(status(http_post('/ok?op=a', 'x', $key)), 'REPLAYED', 'replayed');
join_again();
ok(wait_for(sub { landed() >= 4 }, 10), 'all land');
is(app_count('a'), 1, 'ran once');



=== TEST 7: several records for one request
--- store: redis postgres
--- http_config eval: main::stores('')
--- config eval: $::location
--- client
part();
my $json = { 'Content-Type' => 'application/json' };
my ($one, $two) = (key(), key());
is(status(http_post('/members/ok?op=a', '{"a":1}', { %$one, %$json })),
   'UNPROTECTED', 'runs');
is(status(http_post('/members/ok?op=a', '{"a":1}', { %$two, %$json })),
   'REPLAYED', 'by the member, under another key');
is(status(http_post('/members/ok?op=a', '{"a":1}', { %$two, %$json })),
   'REPLAYED', 'by that key');
is(app_count('a'), 1, 'ran once');
join_again();
ok(wait_for(sub { outbox()->{waiting} == 0 }, 8), 'all are in the store');



=== TEST 8: those that wait for one that is not kept are next
The store is still away: the next runs as the first did, and not when its time
to wait is over.
--- store: redis
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location =~ s/_wait +8s/_wait 60s/r
--- client_timeout: 60
--- client
part();
my $key = key();
my $uri = '/status/503?op=a&hold=1';
my $c = send_post($uri, 'x', $key);
app_wait_parked('a');
my @w = map { send_post($uri, 'x', $key) } 1 .. 3;
sleep 1;
is(app_count('a'), 1, 'one runs');

for my $n (2 .. 4) {
    app_release('a');
    is(app_wait('a', $n, 10), $n, "run $n");
}

app_release('a');
for ($c, @w) {
    my $r = $_->read_response(10);
    is($r && $r->status, 503, 'answered');
    is(status($r), 'UNPROTECTED', 'and says how') if $r;
}
is(app_count('a'), 4, 'each ran once');



=== TEST 9: ... and in the store, if that is back
The store never had the record of the first, and did not lose it: nobody waits
for a holder that may write it again.
--- store: redis postgres
--- http_config eval: main::stores('') =~ s/300ms/10s/gr
--- config eval: $::location =~ s/_wait +8s/_wait 300s/r =~ s/_lease +2s/_lease 200s/r
--- client_timeout: 60
--- client
part();
my $key = key();
my $c = send_post('/hold?op=a&status=503', 'x', $key);
app_wait_parked('a');
my $w = send_post('/hold?op=a&status=503', 'x', $key);
sleep 1;
join_again();
ok(wait_for(sub { status(http_post('/ok?op=back', 'x', key())) eq 'EXECUTED' },
            10), 'the store is back');
is(app_count('a'), 1, 'one runs');
app_release('a');
is($c->read_response->status, 503, 'it is not kept');
is(app_wait('a', 2, 10), 2, 'the other is next');
app_release('a');
is(status($w->read_response), 'RELEASED', 'and ran in the store');



=== TEST 10: under "hold" nobody is next where the holder was killed
Whoever waits for it, or comes later, learns so when the lease is over.
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('breaker fails=1 reset=60s;')
--- config eval: "idempotency_unknown_outcome hold;\n" . $::location
--- provokes: exited on signal 9
--- client
part();
my $key = key();
send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');
kill_worker($_) for nginx_workers();
my @w = map { send_post('/hold?op=a', 'x', $key) } 1 .. 3;
is($_->read_response(20)->error_code, 'OUTCOME_UNKNOWN', 'it waited') for @w;
is(http_post('/hold?op=a', 'x', $key)->error_code, 'OUTCOME_UNKNOWN',
   'the next one does not wait');
is(http_post('/hold?op=a', 'y', $key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'another request is a conflict');
is(app_count('a'), 1, 'it ran once');



=== TEST 11: those that wait for a holder that is killed
One of them takes over when the lease is over, and the worker of the others
goes on with its work.
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location =~ s/_wait +8s/_wait 60s/r
--- provokes: exited on signal 9
--- client
part();
my $key = key();
send_post('/hold?op=a', 'x', $key);
app_wait_parked('a');

# those of a worker that is killed are gone; the last four wait in any case

my @w;

for my $pid (nginx_workers()) {
    push @w, map { send_post('/hold?op=a', 'x', $key) } 1 .. 3;
    sleep 0.3;
    kill_worker($pid);
    last if wait_for(sub { app_closed('a') }, 4);
}

push @w, map { send_post('/hold?op=a', 'x', $key) } 1 .. 3;

is(app_wait('a', 2, 10), 2, 'one takes over');
is(http_get('/stats')->status, 200, 'others are answered meanwhile') for 1 .. 4;
app_release('a');

my @got = grep { defined && $_->status } map { $_->read_response(10) } @w;
is(scalar(grep { $_->body ne "run 2\n" } @got), 0, 'all get its response');
is(app_count('a'), 2, 'it ran once more');



=== TEST 12: a lock that was taken over and given back keeps its fingerprint
The holder before may have run: the same request may run again, and no other.
--- store: redis postgres
--- workers: 2
--- http_config eval: main::stores('')
--- config eval: $::location
--- provokes: exited on signal 9
--- client_timeout: 60
--- client
part();
my $key = key();
my $uri = '/hold?op=a&status=503';

send_post($uri, 'x', $key);
app_wait_parked('a');
kill_worker($_) for nginx_workers();
sleep 2.2;

for my $n (2, 3) {
    my $c = send_post($uri, 'x', $key);
    ok(app_wait('a', $n, 10), "run $n");
    app_release('a');
    is($c->read_response->status, 503, 'is not kept');

    my $other = http_post('/ok?op=b', 'y', $key);
    is($other->error_code, 'IDEMPOTENCY_CONFLICT', 'another request is a conflict');
}

join_again();
ok(wait_for(sub { outbox()->{waiting} == 0 }, 8), 'the store knows');

my @there = (port => $ENV{TEST_NGINX_PORT_2});
is(http_post('/ok?op=b', 'y', $key, @there)->error_code, 'IDEMPOTENCY_CONFLICT',
   'on another host, too');
is(app_count('b'), 0, 'it did not run');

my $c = send_post($uri, 'x', $key, @there);
ok(app_wait('a', 4, 10), 'the same request may');
app_release('a');
is($c->read_response->status, 503, 'and is answered');



=== TEST 13: an outbox that gets full while a request runs
There is no room for another record, but for the outcome in place of the lock.
--- store: redis postgres
--- http_config eval: main::stores('outbox 64k;')
--- config eval: $::location
--- client_timeout: 60
--- client
part();
my ($key, $large) = (key(), key());
my $c = send_post('/hold?op=a', 'x', $key);
my $d = send_post('/small/size?op=b&hold=1&n=5000', 'x', $large);
app_wait_parked($_) for 'a', 'b';

for (1 .. 300) {
    http_post('/ok?op=z', 'x', key());
    last if error_log() =~ /store "s" is full/;
}
error_log_like(qr/store "s" is full, the request runs unprotected/, 'the outbox is full');

app_release($_) for 'a', 'b';
is($c->read_response->body, "run 1\n", 'it is answered');
is($d->read_response->status, 200, 'and one that is too large');

my $r = http_post('/hold?op=a', 'x', $key);
is($r->error_code, 'RESPONSE_NOT_KEPT', 'a retry does not run');
is(http_post('/hold?op=a', 'y', $key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'another request is a conflict');
is(http_post('/small/size?op=b&hold=1&n=5000', 'x', $large)->error_code,
   'RESPONSE_TOO_LARGE', 'the reason is kept');
is(app_count($_), 1, "$_ ran once") for 'a', 'b';

join_again();
ok(wait_for(sub { outbox()->{waiting} == 0 }, 20), 'all are in the store');
is(http_post('/hold?op=a', 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->error_code,
   'RESPONSE_NOT_KEPT', 'another host knows');
