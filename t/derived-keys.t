# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_dedupe: requests without a key, or with a new key for each try,
# fold into the first of them by what they are; every record that covers a
# request replays, and the record of its key has the last word.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes ();

sub json_type { ('Content-Type' => 'application/json', @_) }

sub key { ('Idempotency-Key' => defined $_[0] ? $_[0] : new_key()) }

# what became of a request: "run N", with "replayed" if it was, or the code of
# the error

sub outcome
{
    my $r = shift;

    return $r->error_code if $r->error_code ne '';

    my $body = $r->body;
    chomp $body;

    return $r->header('Idempotent-Replayed') ? "$body replayed" : $body;
}

run_tests();

__DATA__

=== TEST 1: a double tap folds
--- http_config
    log_format  status  '$arg_op $idempotency_status';
--- config
    access_log          logs/access.log status;
    idempotency         $TEST_STORE;
    idempotency_dedupe  body window=60s;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /json/ {
        idempotency_fingerprint  json exclude=t;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_fingerprint  off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /scoped/ {
        idempotency_scope  $http_x_tenant;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /required/ {
        idempotency_required  on;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $first = http_post('/headers?op=tap', 'x');
my $again = http_post('/headers?op=tap', 'x');

is($first->status, 201, 'ran');
is($again->status, 201, 'folds');
is($again->header('Idempotent-Replayed'), 'true', 'and says so');
is($again->header('Location'), $first->header('Location'), 'same response');
access_log_like(qr/^tap EXECUTED\ntap REPLAYED$/m, '$idempotency_status');

# only what is the same

is(outcome(http_post('/ok?op=a', 'x')), 'run 1', 'one');
is(outcome(http_post('/ok?op=a', 'x')), 'run 1 replayed', 'folds');
is(outcome(http_post('/ok?op=a', 'y')), 'run 2', 'another body');
is(outcome(http_post('/ok?op=a&b=1', 'x')), 'run 3', 'other arguments');
is(outcome(http_put('/ok?op=a', 'x')), 'run 4', 'another method');
is(outcome(http_post('/ok?op=a', 'x', { 'Content-Type' => 'text/x' })), 'run 5',
   'another media type');
is(outcome(http_post('/ok?op=a', 'x', { Host => 'other' })), 'run 6',
   'another host');
is(outcome(http_post('/ok?op=a', 'x', { Authorization => 'one' })), 'run 7',
   'somebody else');
is(outcome(http_post('/ok?op=a', 'x', { Authorization => 'two' })), 'run 8',
   'and another');
is(outcome(http_post('/ok?op=a', 'x', { Authorization => 'one' })),
   'run 7 replayed', 'each gets its own');
is(outcome(http_post('/ok?op=a', 'x')), 'run 1 replayed', 'the first as well');
is(outcome(http_post('/ok?op=empty', '')), 'run 1', 'no body');
is(outcome(http_post('/ok?op=empty', '')), 'run 1 replayed', 'folds too');

# with a key it is the key that counts

is(outcome(http_post('/ok?op=a', 'x', { key('k1') })), 'run 9', 'a key');
is(outcome(http_post('/ok?op=a', 'x', { key('k2') })), 'run 10', 'another key');
is(outcome(http_post('/ok?op=a', 'x', { key('k1') })), 'run 9 replayed',
   'the key again');
is(outcome(http_post('/ok?op=a', 'y', { key('k1') })), 'IDEMPOTENCY_CONFLICT',
   'the key with another body');

# the fingerprint is the one that is configured

is(outcome(http_post('/json/ok', '{"a":1,"b":2,"t":1}')), 'run 1', 'JSON');
is(outcome(http_post('/json/ok', '{"b":2, "a":1}')), 'run 1 replayed',
   'folds by what it says');
is(outcome(http_post('/json/ok', '{"b":3, "a":1}')), 'run 2', 'not the same');

# with a fingerprint of the key alone, there is still a body to derive from

is(outcome(http_post('/off/ok', 'x')), 'run 1', 'fingerprint off');
is(outcome(http_post('/off/ok', 'x')), 'run 1 replayed', 'folds by its body');
is(outcome(http_post('/off/ok', 'y')), 'run 2', 'and only by that');

is(outcome(http_post('/scoped/ok', 'x', { 'X-Tenant' => 'a' })), 'run 1', 'a');
is(outcome(http_post('/scoped/ok', 'x', { 'X-Tenant' => 'b' })), 'run 2',
   'another scope');
is(outcome(http_post('/scoped/ok', 'x', { 'X-Tenant' => 'a' })),
   'run 1 replayed', 'its own scope');

is(outcome(http_post('/required/ok', 'x')), 'IDEMPOTENCY_KEY_MISSING',
   'required is required');

is(outcome(http_post('/ok?op=a', 'x', { key('') })), 'IDEMPOTENCY_KEY_INVALID',
   'an empty key is no missing one');
is(app_count('a'), 10, 'each ran once');



=== TEST 2: by members of a JSON body
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_dedupe  json:url window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /two/ {
        idempotency_dedupe  json:from,to window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /either/ {
        idempotency_dedupe  json:a window=60s;
        idempotency_dedupe  json:b window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %json = json_type();
my $post = sub { my ($uri, $body, %h) = @_;
                 outcome(http_post($uri, $body, { %json, %h })) };

is($post->('/ok', '{"url":"http://a/","n":1}'), 'run 1', 'one');
is($post->('/ok', '{"n":2, "url":"http:\/\/a/"}'), 'run 1 replayed',
   'the rest of the body does not matter');
is($post->('/ok?op=/ok', '{"url":"http://a/"}'), 'run 1 replayed',
   'nor do the arguments');
is($post->('/ok', '{"url":"http://b/","n":1}'), 'run 2', 'another value');
is($post->('/ok', '{"url":"http://a/"}', Authorization => 'x'), 'run 3',
   'somebody else');
is($post->('/ok', '{"url":"http://a/"}', Host => 'other'), 'run 4',
   'another scope');

is($post->('/ok', '{"url":1}'), 'run 5', 'a number');
is($post->('/ok', '{"url":"1"}'), 'run 6', 'is not a string');
is($post->('/ok', '{"url":1.0}'), 'run 7', 'and not another number');
is($post->('/ok', '{"url":{"a":1,"b":[2]}}'), 'run 8', 'an object');
is($post->('/ok', '{"url":{"b":[2],"a":1}}'), 'run 8 replayed', 'folds');

# nothing to derive a key from: it runs, each time

is($post->('/ok', '{"x":1}'), 'run 9', 'no such member');
is($post->('/ok', '{"x":1}'), 'run 10', 'is not covered');
is($post->('/ok', '{"x":{"url":"http://a/"}}'), 'run 11', 'not at the top');
is($post->('/ok', '["url","http://a/"]'), 'run 12', 'no object');
is($post->('/ok', '{"url":"http://a/"'), 'run 13', 'no JSON');
is($post->('/ok', '{"url":"http://a/","url":"http://b/"}'), 'run 14',
   'twice: nobody knows which one counts');

is($post->('/two/ok', '{"from":"a","to":"b"}'), 'run 1', 'two members');
is($post->('/two/ok', '{"to":"b","from":"a","x":1}'), 'run 1 replayed',
   'both the same');
is($post->('/two/ok', '{"from":"b","to":"a"}'), 'run 2', 'the other way');
is($post->('/two/ok', '{"from":"ab","to":""}'), 'run 3', 'other borders');
is($post->('/two/ok', '{"from":"a"}'), 'run 4', 'one of them missing');
is($post->('/two/ok', '{"from":"a"}'), 'run 4 replayed', 'folds as well');
is($post->('/two/ok', '{"to":"a"}'), 'run 5', 'the other one missing');

is($post->('/either/ok', '{"a":1,"b":2}'), 'run 1', 'two rules');
is($post->('/either/ok', '{"a":1,"b":3}'), 'run 1 replayed', 'by the one');
is($post->('/either/ok', '{"a":2,"b":2}'), 'run 1 replayed',
   'by the other');
is($post->('/either/ok', '{"a":2,"b":3}'), 'run 2',
   'what was given back and what was not asked for is free');



=== TEST 3: a new key for each try
--- config
    idempotency         $TEST_STORE;
    idempotency_dedupe  body window=60s when=always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency_ttl  1s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /either/ {
        idempotency_dedupe  body window=60s when=always;
        idempotency_dedupe  json:url window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# several keys, since records are asked for in the order of their ids

for my $n (1 .. 8) {
    my ($one, $two, $three) = map { "$n-$_" } 1 .. 3;

    is(outcome(http_post("/ok?op=$n", "x$n", { key($one) })), 'run 1', 'one');

    my $folded = http_post("/ok?op=$n", "x$n", { key($two) });
    is(outcome($folded), 'run 1 replayed', 'a new key folds');
    ok($folded->header('X-Original-Request-Time'), 'with the time');

    is(outcome(http_post("/ok?op=$n", "x$n")), 'run 1 replayed', 'so does none');
    is(outcome(http_post("/ok?op=$n", "x$n", { key($one) })), 'run 1 replayed',
       'the first key replays');
    is(outcome(http_post("/ok?op=$n", "x$n", { key($two) })), 'run 1 replayed',
       'the second key replays');

    # each key has a record of its own now, with the fingerprint of its request

    is(outcome(http_post("/ok?op=$n", 'y', { key($_) })), 'IDEMPOTENCY_CONFLICT',
       "$_: another body is a conflict") for $one, $two;
    is(outcome(http_post("/ok?op=$n", "x$n", { key($_), Authorization => 'b' })),
       'IDEMPOTENCY_CONFLICT', "$_: another client as well") for $one, $two;

    # a conflict took no lock with it

    is(outcome(http_post("/ok?op=$n", 'y', { key($three) })), 'run 2',
       'the other body is free');
    is(app_count($n), 2, 'no other execution');
}

# the TTL is that of the key: when it is over, the key is free for another
# request, though the derived record still replays

is(outcome(http_post('/short/ok', 'x', { key('s1') })), 'run 1', 'short TTL');
is(outcome(http_post('/short/ok', 'x', { key('s2') })), 'run 1 replayed',
   'folds');
is(outcome(http_post('/short/ok', 'y', { key('s2') })), 'IDEMPOTENCY_CONFLICT',
   'the key is taken');
ok(wait_for(sub { outcome(http_post('/short/ok', 'y', { key('s2') }))
                  eq 'run 2' }, 10), 'until its TTL is over');
is(outcome(http_post('/short/ok', 'x', { key('s3') })), 'run 1 replayed',
   'the window is not');

# several rules: any of them folds

my $body = '{"url":"a","n":%d}';
my %json = json_type();

is(outcome(http_post('/either/ok', sprintf($body, 1), { %json, key('e1') })),
   'run 1', 'two rules');
is(outcome(http_post('/either/ok', sprintf($body, 1), { %json, key('e2') })),
   'run 1 replayed', 'same body');
is(outcome(http_post('/either/ok', sprintf($body, 2), { %json, key('e3') })),
   'run 1 replayed', 'same member');
is(outcome(http_post('/either/ok', sprintf($body, 2), { %json, key('e3') })),
   'run 1 replayed', 'its key replays');
is(outcome(http_post('/either/ok', sprintf($body, 3), { %json, key('e3') })),
   'IDEMPOTENCY_CONFLICT', 'its key has its own fingerprint');



=== TEST 4: while the first runs, however long that takes
--- workers: 2
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  500ms;
    location / {
        idempotency_dedupe  body window=100ms when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /busy/ {
        idempotency_dedupe  body window=100ms when=always;
        idempotency_wait    0;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /timeout/ {
        idempotency_dedupe  body window=100ms;
        idempotency_wait    300ms;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# longer than window and lease

my @first = map { send_post("/hold?op=h$_", "x$_", { key("first-$_") }) } 1 .. 6;
my $busy = send_post('/busy/hold?op=busy', 'x');
my $slow = send_post('/timeout/hold?op=slow', 'x');

app_wait_parked($_) for (map { "h$_" } 1 .. 6), 'busy', 'slow';
Time::HiRes::sleep(1.5);

my @waiting;

for my $n (1 .. 6) {
    my $uri = "/hold?op=h$n";

    push @waiting,
        [ "$n: the same key", send_post($uri, "x$n", { key("first-$n") }) ],
        [ "$n: another key", send_post($uri, "x$n", { key("other-$n") }) ],
        [ "$n: the other key", send_post($uri, "x$n", { key("other-$n") }) ],
        [ "$n: no key", send_post($uri, "x$n") ];
}

is(outcome(http_post('/busy/hold?op=busy', 'x')), 'CONCURRENT_REQUEST',
   'no waiting: no key');
is(outcome(http_post('/busy/hold?op=busy', 'x', { key() })),
   'CONCURRENT_REQUEST', 'no waiting: a key');
is(outcome(http_post('/timeout/hold?op=slow', 'x')), 'LOCK_TIMEOUT',
   'waited in vain');

for my $n (1 .. 6) {
    is(app_count("h$n"), 1, "$n: one runs");
    app_release("h$n");
    is(outcome($first[$n - 1]->read_response), 'run 1', "$n: it is done");
}

is(outcome($_->[1]->read_response), 'run 1 replayed', $_->[0]) for @waiting;

for my $n (1 .. 6) {
    is(outcome(http_post("/hold?op=h$n", "x$n", { key("other-$n") })),
       'run 1 replayed', "$n: the other key has it");
    is(outcome(http_post("/hold?op=h$n", 'y', { key("other-$n") })),
       'IDEMPOTENCY_CONFLICT', "$n: as its own");
    is(app_count("h$n"), 1, "$n: one ran");
}

app_release('busy');
is(outcome($busy->read_response), 'run 1', 'busy: done');
app_release('slow');
is(outcome($slow->read_response), 'run 1', 'slow: done');



=== TEST 5: how long a derived record folds
--- client_timeout: 60
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_dedupe  body window=100ms when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /long/ {
        idempotency_dedupe  body window=5s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /linger/ {
        idempotency_dedupe  body window=100ms linger=$arg_linger;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %uri = (tap => '/ok?op=tap&hold=1', long => '/long/ok?op=long&hold=1',
           linger => '/linger/ok?op=linger&hold=1&linger=3s');

my %c = map { $_ => send_post($uri{$_}, 'x', { $_ eq 'tap' ? key('first') : () }) }
        keys %uri;

app_wait_parked($_) for keys %uri;
my $arrived = Time::HiRes::time();

# while the first runs everything folds, however long that takes

Time::HiRes::sleep(1);
my @waiters = map { send_post($uri{tap}, 'x', { key("waiter-$_") }) } 1 .. 4;
Time::HiRes::sleep(1);

my $committed = Time::HiRes::time();
app_release($_) for keys %uri;
is(outcome($c{$_}->read_response), 'run 1', "$_ ran") for sort keys %uri;

is(outcome($_->read_response), 'run 1 replayed',
   'a waiter that came in time gets the response') for @waiters;

# the window is over, and the first is through: the next one runs, and
# whatever comes while it does folds into that

my $next = send_post($uri{tap}, 'x', { key('second') });
is(app_wait_parked('tap'), 1, '100 ms means 100 ms');
my $third = send_post($uri{tap}, 'x', { key('third') });

# those that linger, or whose window is long, fold still

is(outcome(http_post($uri{$_}, 'x')), 'run 1 replayed', "$_ folds")
    for qw(linger long);

# ... and then run; what runs is held, so that nothing else folds into it

for my $what (qw(linger long)) {
    my $end;

    while (1) {
        $end = Time::HiRes::time();
        die 'no end' if $end > $committed + 30;

        my $c = send_post($uri{$what}, 'x');
        my $r;
        wait_for(sub { app_parked($what) || ($r = $c->read_response(0.05)) });

        if (!$r) {
            $c{$what} = $c;
            last;
        }

        is(outcome($r), 'run 1 replayed', "$what folds") or last;
        Time::HiRes::sleep(0.1);
    }

    cmp_ok($end - $committed, '>=', 2.9, 'linger counts from the response')
        if $what eq 'linger';
    cmp_ok($end - $arrived, '>=', 4.9, 'a window from the arrival')
        if $what eq 'long';

    app_release($what);
    is(outcome($c{$what}->read_response), 'run 2', "$what ran again");
}

app_release('tap');
is(outcome($next->read_response), 'run 2', 'it ran');
is(outcome($third->read_response), 'run 2 replayed', 'its own duplicate folds');

# the keys replay for their TTL, whatever runs under the derived record now

is(outcome(http_post($uri{tap}, 'x', { key($_) })),
   'run 1 replayed', "the key $_ still replays")
    for 'first', map { "waiter-$_" } 1 .. 4;
is(app_count('tap'), 2, 'two runs in all');



=== TEST 6: what is not kept gives back every record
--- config
    idempotency       $TEST_STORE;
    idempotency_wait  0;
    location / {
        idempotency_dedupe  body window=60s when=always;
        idempotency_dedupe  json:url window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /dead/ {
        idempotency_dedupe  body window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /large/ {
        idempotency_max_response  1k;
        idempotency_dedupe  body window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unknown/ {
        idempotency_lease   1s;
        idempotency_dedupe  body window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %json = json_type();
my $body = '{"url":"a"}';

for my $n (1 .. 4) {
    is(http_post("/status/503?op=s$n", $body, { %json, key("s$n") })->body,
       "run 1\n", 'failed');
    is(http_post("/status/503?op=s$n", $body, { %json, key("s$n") })->body,
       "run 2\n", 'the key is free');
    is(http_post("/status/503?op=s$n", $body, { %json, key() })->body,
       "run 3\n", 'another key');
    is(http_post("/status/503?op=s$n", $body, { %json })->body, "run 4\n",
       'no key');
}

my $off = '/ok?op=off&header=X-Idempotency-Store:%20off';
is(outcome(http_post($off, $body, { %json, key('o') })), 'run 1',
   'not to be stored');
is(outcome(http_post($off, $body, { %json, key('p') })), 'run 2',
   'is not, under any record');
is(outcome(http_post($off, $body, { %json, key('o') })), 'run 3', 'of its');

is(http_post('/dead/ok', 'x', { key('d') })->status, 502, 'refused');
is(http_post('/dead/ok', 'x', { key('e') })->status, 502,
   'never sent: no record is left');

# a response that can't be kept is known to every record

is(http_post('/large/size?n=2000&op=l', 'x', { key('l') })->status, 200,
   'too large');
is(outcome(http_post('/large/size?n=2000&op=l', 'x', { key('l') })),
   'RESPONSE_TOO_LARGE', 'by its key');
is(outcome(http_post('/large/size?n=2000&op=l', 'x', { key('m') })),
   'RESPONSE_TOO_LARGE', 'by another key');
is(outcome(http_post('/large/size?n=2000&op=l', 'x')), 'RESPONSE_TOO_LARGE',
   'by none');
is(app_count('l'), 1, 'ran once');

is(http_post('/unknown/reset?op=u', 'x', { key('u') })->status, 502,
   'outcome unknown');
is(outcome(http_post('/unknown/reset?op=u', 'x', { key('u') })),
   'OUTCOME_UNKNOWN', 'by its key');
is(outcome(http_post('/unknown/reset?op=u', 'x', { key('v') })),
   'OUTCOME_UNKNOWN', 'by another key');
is(app_count('u'), 1, 'ran once');
ok(wait_for(sub { http_post('/unknown/reset?op=u', 'x', { key('v') })
                  ->status == 502 }, 10), 'for a lease');
is(app_count('u'), 2, 'ran again');



=== TEST 7: the record of the key has the last word
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_dedupe  json:url window=60s when=always;
        idempotency_wait    0;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /wait/ {
        idempotency_dedupe  json:url window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %json = json_type();
my %prefix = ('' => 'a', '/wait' => 'b');

# a key that was used for another request: whatever became of the one that has
# the derived record, it is a conflict

for my $where ('', '/wait') {
    my @n = map { "$prefix{$where}$_" } 1 .. 8;
    my $b = sub { my ($n, $x) = @_; "{\"url\":\"$n\",\"x\":$x}" };

    is(outcome(http_post("$where/ok?op=o$_", '{"x":1}',
                         { %json, key("k$_") })),
       'run 1', "$_: ran") for @n;

    my @held = map { send_post("$where/hold?op=h$_", $b->($_, 1),
                               { %json, key() }) } @n;
    app_wait_parked("h$_") for @n;

    for my $n (@n) {
        my $start = Time::HiRes::time();

        is(outcome(http_post("$where/ok?op=o$n", $b->($n, 2),
                          { %json, key("k$n") })),
           'IDEMPOTENCY_CONFLICT',
           "$n: conflict, though the derived record is locked");
        cmp_ok(Time::HiRes::time() - $start, '<', 5 + grace(),
               'at once');
    }

    app_release("h$_") for @n;
    is(outcome($_->read_response), 'run 1', 'done') for @held;

    for my $n (@n) {
        is(outcome(http_post("$where/ok?op=o$n", $b->($n, 2),
                          { %json, key("k$n") })),
           'IDEMPOTENCY_CONFLICT',
           "$n: conflict, though the derived record has a response");
    }
}



=== TEST 8: a worker that dies leaves no lock behind, by any record
--- workers: 2
--- provokes: exited on signal 9
--- config
    idempotency         $TEST_STORE;
    idempotency_lease   1s;
    idempotency_dedupe  body window=100ms when=always;
    idempotency_dedupe  json:url window=100ms when=always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %json = json_type();
my @held = map { send_post("/hold?op=$_", "{\"url\":\"$_\"}",
                           { %json, key("k$_") }) } 1 .. 3;

app_wait_parked($_) for 1 .. 3;

kill_worker($_) for nginx_workers();
app_reset();

# by the key, by the body, by the member: each waits for the lease, and runs

my @retry = (
    send_post('/hold?op=1', '{"url":"1"}', { %json, key('k1') }),
    send_post('/hold?op=2', '{"url":"2"}', { %json }),
    send_post('/hold?op=3&x=1', '{"url":"3","x":1}', { %json, key() }),
);

for my $n (1 .. 3) {
    app_release($n, 1, 10);
    is(outcome($retry[$n - 1]->read_response(10)), 'run 1',
       ('by its key', 'by its body', 'by its member')[$n - 1]);
}



=== TEST 9: where it is configured, and for which requests
--- http_config
    map $uri $window {
        ~/long/  60s;
        ~/odd/   often;
        ~/zero/  0;
    }
--- config
    idempotency         $TEST_STORE;
    idempotency_dedupe  body window=60s;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_dedupe  off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;

        location /off/inner/ {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
    location /own/ {
        idempotency_dedupe  json:url window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /map/ {
        idempotency_dedupe  body window=$window;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /get/ {
        idempotency_methods  PUT;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $twice = sub { my $uri = shift; http_post($uri, @_);
                  outcome(http_post($uri, @_)) };

is($twice->('/ok', 'x'), 'run 1 replayed', 'inherited');
is($twice->('/off/ok', 'x'), 'run 2', 'off');
is($twice->('/off/inner/ok', 'x'), 'run 2', 'off is inherited');
is($twice->('/own/ok', 'x'), 'run 2', 'its own in place of it');
is($twice->('/own/ok?op=url', '{"url":1}', { json_type() }),
   'run 1 replayed', 'its own');
is($twice->('/get/ok', 'x'), 'run 2', 'a method that is not covered');

# a window that differs by request; without one there is no derived key

is($twice->('/map/long/ok', 'x'), 'run 1 replayed', 'a variable');
is($twice->('/map/ok', 'x'), 'run 2', 'of no value');
is($twice->('/map/zero/ok', 'x'), 'run 2', 'of no time');
error_log_unlike(qr/\[error\]/, 'which is no error');
is($twice->('/map/odd/ok', 'x'), 'run 2', 'of another value');
error_log_like(qr/"idempotency_dedupe" evaluates to "often"/, 'which is');



=== TEST 10: many at once, each with a key of its own
--- workers: 2
--- config
    idempotency              $TEST_STORE;
    idempotency_max_waiters  200;
    idempotency_dedupe       body window=60s when=always;
    idempotency_dedupe       json:a window=60s when=always;
    idempotency_dedupe       json:b window=60s when=always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# they have some records in common with each other, and hardly any the same

my @c = map { my $body = sprintf '{"a":%d,"b":%d,"c":%d}', 1, $_ % 3, $_ % 5;
              send_post('/slow?ms=300&op=many', $body,
                        { json_type(key("many-$_")) }) } 1 .. 60;

my @got = map { outcome($_->read_response(15)) } @c;

is(scalar(grep { $_ eq 'run 1' } @got), 1, 'one ran');
is(scalar(grep { $_ eq 'run 1 replayed' } @got), 59, 'for all of them');
is(app_count('many'), 1, 'at the application');

@got = map { outcome(http_post('/slow?ms=300&op=many',
                     sprintf('{"a":%d,"b":%d,"c":%d}', 1, $_ % 3, $_ % 5),
                     { json_type(key("many-$_")) })) } 1 .. 60;
is(scalar(grep { $_ eq 'run 1 replayed' } @got), 60, 'each key has it now');



=== TEST 11: no window
--- config
    idempotency_dedupe body;
--- must_die
--- error_log eval
qr/\[emerg\] .*window.* in .*nginx\.conf:\d+/



=== TEST 12: a window of no time
--- config
    idempotency_dedupe body window=0;
--- must_die
--- error_log eval
qr/\[emerg\] .*"window=0".* in .*nginx\.conf:\d+/



=== TEST 13: neither body nor members
--- config
    idempotency_dedupe header window=1s;
--- must_die
--- error_log eval
qr/\[emerg\] .*"header".* in .*nginx\.conf:\d+/



=== TEST 14: a member without a name
--- config
    idempotency_dedupe json:a,,b window=1s;
--- must_die
--- error_log eval
qr/\[emerg\] .*"json:a,,b".* in .*nginx\.conf:\d+/



=== TEST 15: another time than missing and always
--- config
    idempotency_dedupe body window=1s when=never;
--- must_die
--- error_log eval
qr/\[emerg\] .*"when=never".* in .*nginx\.conf:\d+/



=== TEST 16: no members
--- config
    idempotency_dedupe json: window=1s;
--- must_die
--- error_log eval
qr/\[emerg\] .*"json:".* in .*nginx\.conf:\d+/



=== TEST 17: off, and something
--- config
    idempotency_dedupe off;
    idempotency_dedupe body window=1s;
--- must_die
--- error_log eval
qr/\[emerg\] .*"idempotency_dedupe" directive is duplicate in .*nginx\.conf:\d+/



=== TEST 18: an unknown outcome under hold, when the window is over
It stays as long as the lock of a holder that died: the window, and two leases.
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    idempotency_dedupe           body window=100ms when=always;
    location / {
        idempotency_lease  30s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency_lease  3s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $op ('long', 'brief') {
    my $uri = ($op eq 'brief' ? '/brief' : '') . "/close?op=$op&hold=1";
    my $c = send_post($uri, 'x', { key("$op-1") });

    is(app_wait_parked($op), 1, "$op: it runs");
    Time::HiRes::sleep(0.2);
    app_release($op);
    is($c->read_response->status, 502, "$op: for longer than the window, and its outcome is unknown");

    is(outcome(http_post($uri, 'x', { key("$op-2") })), 'OUTCOME_UNKNOWN', "$op: by another key");
    is(outcome(http_post($uri, 'x')), 'OUTCOME_UNKNOWN', "$op: by none");
    is(outcome(http_post($uri, 'x', { key("$op-1") })), 'OUTCOME_UNKNOWN', "$op: by its own");
    is(app_count($op), 1, "$op: ran once");
}

my ($c, $r);
my $uri = '/brief/close?op=brief&hold=1';

ok(wait_for(sub {
    $c = send_post($uri, 'x', { key() });
    undef $r;
    wait_for(sub { app_parked('brief') || ($r = $c->read_response(0.05)) });
    return app_parked('brief');
}), 'a new key runs when it is over');

app_release('brief');
is(outcome(http_post($uri, 'x', { key('brief-1') })), 'OUTCOME_UNKNOWN', 'the key has its TTL');



=== TEST 19: a body that comes slowly
Both requests arrive within the window; one body takes 6 s, the other as long
again, and a little more.
--- config
    idempotency         $TEST_STORE;
    idempotency_dedupe  body window=5s;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
my ($late, $first) = map { connect_client() } 1, 2;

for ($late, $first) {
    $_->send_part("POST /ok?op=slow HTTP/1.1\r\nHost: localhost\r\n"
                  . "Content-Length: 4\r\n\r\nab");
}

Time::HiRes::sleep(6);
$first->send_part('cd');
is(outcome($first->read_response), 'run 1', 'the first');

# the embedded store forgets what has expired when it is asked for something

Time::HiRes::sleep(7);
http_post('/ok?op=other', $_) for 1 .. 40;

$late->send_part('cd');
is(outcome($late->read_response), 'run 1 replayed', 'folds');
is(app_count('slow'), 1, 'ran once');



=== TEST 20: two rules derive one key
The request does not wait for itself: the longer times count, and the first action.
--- config
    idempotency         $TEST_STORE;
    idempotency_dedupe  body window=100ms linger=100ms;
    idempotency_dedupe  body window=60s when=always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /url/ {
        idempotency_dedupe  json:url window=60s;
        idempotency_dedupe  json:url window=1ms normalize=url action=reject;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(outcome(http_post('/ok?op=a', 'x')), 'run 1', 'without a key');
sleep 0.5;
is(outcome(http_post('/ok?op=a', 'x')), 'run 1 replayed', 'folds by the longer window');
is(outcome(http_post('/ok?op=b', 'x', { key('k1') })), 'run 1', 'with a key');
is(outcome(http_post('/ok?op=b', 'x', { key('k2') })), 'run 1 replayed', 'folds');

my @c = map { send_post('/ok?op=c&hold=1', 'x') } 1 .. 4;
app_wait_parked('c');
app_release('c');
is($_->read_response->body, "run 1\n", 'at once') for @c;
is(app_count('c'), 1, 'ran once');

for my $url ('no url', 'http://a/', 'HTTP://A') {
    my @r = map { outcome(http_post('/url/ok?op=' . length $url, qq({"url":"$url"}), { json_type() })) } 1, 2;
    is($r[0], 'run 1', "$url: runs");
    is($r[1], 'run 1 replayed', 'folds');
}
