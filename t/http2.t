# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# HTTP/2: the same contract, with many requests on one connection, whose
# streams wait for each other and end one by one.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub own { qw(date connection idempotent-replayed x-original-request-time) }


sub post
{
    my ($h2, $uri, $body, $key, %headers) = @_;

    return $h2->request('POST', $uri, $body,
                        { 'idempotency-key' => $key, %headers });
}


sub answer
{
    my ($h2, @request) = @_;

    return $h2->response(post($h2, @request))
           || die "no response to $request[0]\n";
}

run_tests();

__DATA__

=== TEST 1: fresh, replay, conflict
--- h2
--- config
    idempotency  $TEST_STORE;
    idempotency_methods  POST PUT DELETE HEAD;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /needed/ {
        idempotency_required  on;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();

for my $what ([ '/headers', 201 ], [ '/204', 204 ], [ '/binary', 200 ],
              [ '/size?n=0', 200 ], [ '/size?n=300000', 200 ],
              [ '/size?n=300000&nolength=1', 200 ], [ '/status/404', 404 ],
              [ '/status/304', 304 ])
{
    my ($uri, $status) = @$what;
    my $key = new_key();
    my $first = answer($h2, "$uri", 'hello', $key);
    my $retry = answer($h2, "$uri", 'hello', $key);

    is($first->status, $status, "$uri: ran");
    is($first->header('idempotent-replayed'), undef, "$uri: the first");
    is($retry->header('idempotent-replayed'), 'true', "$uri: replayed");
    is($retry->status, $first->status, "$uri: same status");
    is($retry->header_lines(own(), $uri =~ /nolength/ ? 'content-length' : ()),
       $first->header_lines(own()), "$uri: same headers");
    ok($retry->body eq $first->body, "$uri: same body");

    my $other = answer($h2, "$uri", 'hullo', $key);
    is($other->status, 409, "$uri: another body");
    is($other->error_code, 'IDEMPOTENCY_CONFLICT', "$uri: a conflict");
    is($other->header('content-type'), 'application/problem+json',
       "$uri: a problem");
}

# without a body, and with a large one

for my $method ('PUT', 'DELETE', 'HEAD') {
    my %key = ('idempotency-key' => new_key());
    my @r = map { $h2->response($h2->request($method, '/headers', undef,
                                             \%key)) } 1, 2;

    is($r[1]->header('idempotent-replayed'), 'true', "$method: replayed");
    is($r[1]->header_lines(own()), $r[0]->header_lines(own()),
       "$method: same headers");
}

my $key = new_key();
my $body = 'x' x 200_000;
is(answer($h2, '/echo', $body, $key)->json->{length}, 200_000, 'a large body');
is(answer($h2, '/echo', $body, $key)->header('idempotent-replayed'), 'true',
   'replayed');
substr($body, -1) = 'y';
is(answer($h2, '/echo', $body, $key)->status, 409, 'its last byte counts');

# in parts

$key = new_key();
my @r;
for my $parts ([ 'hel', 'lo' ], [ 'hello' ]) {
    my $id = $h2->request('POST', '/echo?op=parts', undef,
                          { 'idempotency-key' => $key }, more => 1);
    $h2->data($id, $_, 0) for @$parts;
    is($h2->response($id, 0.05), undef, 'not before the end of the body');
    $h2->data($id, '', 1);
    push @r, $h2->response($id);
}

is($r[0]->json->{length}, 5, 'in parts');
is($r[1]->header('idempotent-replayed'), 'true', 'the same in other parts');

# the same as over HTTP/1

is(http_post('/echo?op=parts', 'hello', { 'Idempotency-Key' => $key })->body,
   $r[0]->body, 'and over HTTP/1');
is(app_count('parts'), 1, 'ran once');

# what is wrong

my $id = $h2->request('POST', '/needed/ok', 'x', {});
is($h2->response($id)->error_code, 'IDEMPOTENCY_KEY_MISSING', 'no key');
is(answer($h2, '/ok', 'x', 'a b')->error_code, 'IDEMPOTENCY_KEY_INVALID',
   'a wrong key');
$id = $h2->request('POST', '/ok', 'x', [ 'idempotency-key' => 'a',
                                         'idempotency-key' => 'a' ]);
is($h2->response($id)->error_code, 'IDEMPOTENCY_KEY_INVALID', 'a key twice');

is($h2->ping, 1, 'all on one connection');
--- no_error_log
[error]



=== TEST 2: streams that wait for each other
--- h2
--- config
    idempotency  $TEST_STORE;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /at-once/ {
        idempotency_wait  0;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();
my $key = new_key();
my $uri = '/size?n=100000&hold=1&op=a';

my @ids = map { post($h2, $uri, 'x', $key) } 1 .. 6;

is(app_wait_parked('a'), 1, 'one runs');
$h2->ping;

# meanwhile

is(answer($h2, '/ok?op=b', 'x', new_key())->body, "run 1\n",
   'another stream is not held up');
is(answer($h2, $uri, 'y', $key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'nor is a conflict');
is($h2->response($_, 0), undef, 'they wait') for @ids;

app_release('a');

my @r = map { $h2->response($_) || die "no response\n" } @ids;

is(length $_->body, 100_000, 'answered') for @r;
is(scalar(grep { $_->body eq $r[0]->body } @r), 6, 'all the same');
is(scalar(grep { $_->header('idempotent-replayed') } @r), 5, 'five replays');
is(app_count('a'), 1, 'ran once');

# those that do not wait

$key = new_key();
my $id = post($h2, '/at-once/hold?op=c', 'x', $key);
app_wait_parked('c');
my $busy = answer($h2, '/at-once/hold?op=c', 'x', $key);
is($busy->status, 409, 'waiting is off');
is($busy->error_code, 'CONCURRENT_REQUEST', 'concurrent');
is($busy->header('retry-after'), 5, 'to be tried again');
app_release('c');
is($h2->response($id)->body, "run 1\n", 'the holder');

# the first of them is released: one of the others runs

$key = new_key();
@ids = map { post($h2, '/status/503?hold=1&op=d', 'x', $key) } 1 .. 3;
app_wait_parked('d');
app_release('d') for 1 .. 3;
@r = map { $h2->response($_) } @ids;
is(scalar(grep { $_->status == 503 } @r), 3, 'three failures');
is(app_count('d'), 3, 'one after the other');

is($h2->ping, 1, 'all on one connection');
--- no_error_log
[error]



=== TEST 3: a stream that is reset
--- h2
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_max_waiters  1;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();
my $key = new_key();
my $uri = '/hold?op=a';

my $holder = post($h2, $uri, 'x', $key);
app_wait_parked('a');

my $waiter = post($h2, $uri, 'x', $key);
is(answer($h2, $uri, 'x', $key)->error_code, 'TOO_MANY_WAITERS', 'one waits');

# a waiter: its place is free again

$h2->rst($waiter);
$h2->ping;
$waiter = post($h2, $uri, 'x', $key);
is(answer($h2, $uri, 'x', $key)->error_code, 'TOO_MANY_WAITERS',
   'another one waits');
is($h2->response($waiter, 0), undef, 'it does');

# the holder: it goes on without its client

$h2->rst($holder);
is($h2->ping, 1, 'the connection lives on');
is(app_closed('a'), 0, 'so does the execution');
app_release('a');

my $r = $h2->response($waiter) || die "no response\n";
is($r->body, "run 1\n", 'the waiter is answered');
is($r->header('idempotent-replayed'), 'true', 'by a replay');
is(answer($h2, $uri, 'x', $key)->body, "run 1\n", 'the response was kept');
is(app_count('a'), 1, 'ran once');

# a replay, as it is sent

$key = new_key();
my $large = '/size?n=900000';
answer($h2, $large, 'x', $key);
for (1 .. 3) {
    my $id = post($h2, $large, 'x', $key);
    $h2->body_so_far($id, 1000);
    $h2->rst($id);
}
is(length answer($h2, $large, 'x', $key)->body, 900_000, 'whole after all');

# the connection, with a holder and a waiter on it

$key = new_key();
post($h2, '/hold?op=b', 'x', $key);
app_wait_parked('b');
post($h2, '/hold?op=b', 'x', $key);
$h2->ping;
$h2->reset;

$h2 = h2_connect();
$waiter = post($h2, '/hold?op=b', 'x', $key);
is($h2->response($waiter, 0.1), undef, 'one more waits');
app_release('b');
$r = $h2->response($waiter) || die "no response\n";
is($r->header('idempotent-replayed'), 'true', 'it is answered');
is(app_count('b'), 1, 'ran once');
is($h2->ping, 1, 'all on one connection');
--- no_error_log
[error]



=== TEST 4: large responses
--- h2
--- config
    location / {
        idempotency               $TEST_STORE;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /small/ {
        idempotency               $TEST_STORE;
        idempotency_max_response  100k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();

# several at once, some of them replays

my $key = new_key();
answer($h2, '/size?n=500000&op=r', 'x', $key);

my @ids = map { ( post($h2, '/size?n=500000&op=r', 'x', $key),
                  post($h2, "/size?n=500000&op=$_", 'x', new_key()) ) }
          1 .. 4;
is(length $h2->response($_)->body, 500_000, 'interleaved') for @ids;
is(app_count('r'), 1, 'ran once');

# too large to be kept

for my $how ('', '&nolength=1') {
    my $key = new_key();
    my $uri = "/small/size?n=500000&op=large$how";
    my $first = answer($h2, $uri, 'x', $key);

    is(length $first->body, 500_000, "'$how': goes through");
    is(answer($h2, $uri, 'x', $key)->error_code, 'RESPONSE_TOO_LARGE',
       "'$how': and is not kept");
}

is(app_count('large'), 2, 'each ran once');
is($h2->ping, 1, 'all on one connection');
--- no_error_log
[error]



=== TEST 5: worker_shutdown_timeout ends what runs, a client that leaves does not
--- h2
--- main_config
    worker_shutdown_timeout  2s;
--- config
    idempotency       $TEST_STORE;
    proxy_buffering   off;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
my ($old) = nginx_workers();
my ($a, $b, $c) = map { new_key() } 1 .. 3;

# one that stays, one that leaves while its worker does, a stream

my @h2 = map { h2_connect() } 1 .. 3;
post($h2[0], '/hold?op=a', 'x', $a);
post($h2[1], '/hold?op=b', 'x', $b);
post($h2[2], '/size?n=2000&hold=body&type=text/event-stream&op=c', 'x', $c);
app_wait_parked($_) for qw(a b c);

ok(nginx_reload(), 'reloaded');
$h2[1]->abort;
sleep 1;
app_release('b');
my $h2 = h2_connect();
is(answer($h2, '/hold?op=b', 'x', $b)->body, "run 1\n",
   'a client that leaves meanwhile ends nothing');

ok(wait_for(sub { !kill 0, $old }, 10), 'the old worker is gone in time');
is(answer($h2, '/hold?op=a', 'x', $a)->error_code, 'OUTCOME_UNKNOWN',
   'what became of the other one is unknown');
is(answer($h2, '/size?n=2000&hold=body&type=text/event-stream&op=c', 'x', $c)
   ->error_code, 'OUTCOME_UNKNOWN', 'so is that of the stream');
is(app_count($_), 1, "$_ ran once") for qw(a b c);



=== TEST 6: a refusal comes after the body
nginx resets a stream that it answers while the client still sends, and curl
7.88 drops the answer with it.
--- h2
--- config
    idempotency           $TEST_STORE;
    idempotency_required  on;
    location / {
        client_max_body_size  200k;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        idempotency_error_body  off;
        error_page              400 = @page;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @page { return 400 $idempotency_error_code; }
    location /short/ {
        lingering_timeout  200ms;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /closed/ {
        deny        all;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();

for my $where ('', '/page') {
    for my $key ([], [ 'idempotency-key' => 'a b' ]) {
        my $name = $where . (@$key ? ' a wrong key' : ' no key');
        my $id = $h2->request('POST', "$where/ok?op=a", undef, $key,
                              more => 1);

        $h2->data($id, 'x' x 100_000, 0);
        is($h2->response($id, 0.1), undef, "$name: not before the body");

        $h2->data($id, 'x', 1);
        my $r = $h2->response($id);
        is($r->status, 400, "$name: refused");
        like($r->body, @$key ? qr/KEY_INVALID/ : qr/KEY_MISSING/,
             "$name: and told why");
        is($r->header('content-type'), 'application/problem+json',
           "$name: a problem") if $where eq '';

        ok($h2->ping, "$name: the connection lives");
        is($h2->{stream}{$id}{error}, undef, "$name: the stream is not reset");
    }
}

# too large

my $id = $h2->request('POST', '/ok?op=a', undef, {}, more => 1);
$h2->data($id, 'x' x 250_000, 1);
is($h2->response($id)->status, 413, 'too large');

# a body that does not come

$id = $h2->request('POST', '/short/ok?op=a', undef, {}, more => 1);
$h2->data($id, 'x', 0);
is($h2->response($id)->error_code, 'IDEMPOTENCY_KEY_MISSING',
   'refused without the rest');

# clients that leave meanwhile

for my $how (qw(rst abort reset)) {
    my $other = h2_connect();
    $id = $other->request('POST', '/ok?op=a', undef, {}, more => 1);
    $other->data($id, 'x', 0);
    $other->ping;
    $how eq 'rst' ? $other->rst($id) : $other->$how;
}

# who is not let in is not read

$id = $h2->request('POST', '/closed/ok?op=a', undef, {}, more => 1);
is($h2->response($id)->status, 403, 'access checks come first');

ok($h2->ping, 'the connection lives');
is(app_count('a'), 0, 'nothing ran');
--- no_error_log
[alert]



=== TEST 7: a refusal does not follow an answer that the body has got
--- h2
--- config
    idempotency           $TEST_STORE;
    idempotency_required  on;
    lingering_timeout     300ms;
    location / {
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /late/ {
        client_body_timeout  100ms;
        post_action          /after;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /large/ {
        client_max_body_size  10k;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /after {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/slow?ms=600&op=after;
    }
--- client
# clients that leave, and one that is too slow

my @clients;

for my $how (qw(rst abort reset late)) {
    my $h2 = h2_connect();
    my $id = $h2->request('POST', $how eq 'late' ? '/late/ok?op=a' : '/ok?op=a',
                          undef, {}, more => 1);
    $h2->data($id, 'x', 0);
    $h2->ping;
    $how eq 'rst' ? $h2->rst($id) : $how eq 'late' ? push @clients, $h2
                                                   : $h2->$how;
}

# a client that does not take the 413: its window is closed

my $h2 = h2_connect();
my $window = sub { pack('CnCCN', 0, 6, 4, 0, 0) . pack 'nN', 4, $_[0] };

$h2->{c}->send_part($window->(0));
my $id = $h2->request('POST', '/large/ok?op=a', undef, {}, more => 1);
$h2->data($id, 'x' x 20_000, 0);

sleep 1;

$h2->{c}->send_part($window->(100_000));
is($h2->response($id)->status, 413, 'too large');
ok($h2->ping, 'the connection lives');

is(app_count('a'), 0, 'nothing ran');
is(app_count('after'), 0, 'no action for who is refused');
--- no_error_log
[alert]
