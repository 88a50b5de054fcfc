# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Streams where HTTP, nginx or a client is at an edge: no body, conditions,
# ranges, compression, slow and silent clients, workers that die.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: HEAD, 204, 304, conditions, ranges
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD POST;
    idempotency_wait     10s;

    location / {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $type = 'type=text/event-stream';

for my $at ('', '/off') {

    # no body, and no wait for one

    for my $what ('204', 'status/204', 'status/304') {
        my %key = ('Idempotency-Key' => new_key());
        my ($status) = $what =~ /(\d+)/;

        my $c = send_post("$at/$what?$type&op=none", 'x', \%key);
        my $first = $c->read_response(10);
        is($first->status, $status, "$at/$what");
        is($first->body, '', "$at/$what: no body");

        $c->request('POST', "$at/$what?$type&op=none", 'x', \%key);
        my $retry = $c->read_response(10);
        is($retry->status, $status, "$at/$what: replayed");
        is($retry->header('Idempotent-Replayed'), 'true', "$at/$what: is one");
        is(app_count('none'), 1, "$at/$what: ran once");
        app_reset();
    }

    my %key = ('Idempotency-Key' => new_key());
    my @head = map {
        http_raw("HEAD $at/sse?n=3&op=head HTTP/1.1\r\nHost: localhost\r\n"
                 . "Connection: close\r\n"
                 . "Idempotency-Key: $key{'Idempotency-Key'}\r\n\r\n")
    } 1, 2;
    is($_->header('Content-Type'), 'text/event-stream', "$at HEAD") for @head;
    is($head[1]->header('Idempotent-Replayed'), 'true', "$at HEAD: replayed");
    is($_->body, '', "$at HEAD: no body") for @head;
    is(app_count('head'), 1, "$at HEAD: ran once");
    app_reset();

    # a range: the whole, live and replayed alike

    %key = ('Idempotency-Key' => new_key());
    my $uri = "$at/size?n=3000&$type&header=Accept-Ranges:%20bytes&op=range";

    for my $n (1, 2) {
        my $got = http_request('GET', $uri, undef,
                               { %key, Range => 'bytes=100-199' });
        is($got->status, 200, "$at Range: $n") if $n == 1;
        is(length $got->body, $got->status == 206 ? 100 : 3000,
           "$at Range: $n is whole for what it says");
    }
    is(app_count('range'), 1, "$at Range: ran once");
    app_reset();
}



=== TEST 2: a condition that the client makes
--- modules: lua
--- http_config
    proxy_cache_path  $TEST_NGINX_SERVER_ROOT/cache keys_zone=cache:1m;
--- config
    idempotency            $TEST_STORE;
    idempotency_wait       10s;

    location /cache/ {
        proxy_cache          cache;
        proxy_cache_methods  POST;
        proxy_cache_valid    1m;
        proxy_cache_key      $http_idempotency_key;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /lua/ {
        content_by_lua_block {
            local res = ngx.location.capture("/ran/ok?op=if",
                                             { method = ngx.HTTP_POST })
            ngx.header["Content-Type"] = "text/event-stream"
            ngx.header["ETag"] = '"x"'
            ngx.header["Last-Modified"] = "Mon, 28 Sep 2026 00:00:00 GMT"
            for i = 1, 3 do
                ngx.print(("x"):rep(1000))
                ngx.flush(true)
                ngx.sleep(0.01)
            end
        }
    }
    location /ran/ {
        internal;
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# what nginx makes of it is the response, for the retry as well

for my $at ('/cache', '/lua') {
    for my $if (['If-None-Match' => '"x"', 304],
                ['If-Modified-Since' => 'Mon, 28 Sep 2026 00:00:00 GMT', 304])
    {
        my %key = ('Idempotency-Key' => new_key());
        my ($name, $value, $status) = @$if;
        my $uri = "$at/size?n=3000&ms=20&type=text/event-stream&op=if"
                  . '&header=ETag:%20%22x%22&header=Last-Modified:%20'
                  . 'Mon,%2028%20Sep%202026%2000:00:00%20GMT';

        my $c = send_post($uri, 'x', { %key, $name => $value });
        my $first = $c->read_response(10);
        is($first && $first->status, $status, "$at $name: $status");
        is(length $first->body, 0, "$at $name: no body");

        my $retry = http_post($uri, 'x', \%key);
        is($retry->status, $status, "$at $name: replayed");
        is($retry->header('Idempotent-Replayed'), 'true', "$at $name: is one");
        is(app_count('if'), 1, "$at $name: ran once");
        app_reset();
    }
}



=== TEST 3: clients of HTTP/2 that take nothing, and one that takes all
--- h2
--- config
    idempotency                $TEST_STORE;
    idempotency_wait           10s;
    idempotency_max_response   2m;
    send_timeout               3s;

    location / {
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering        off;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
for my $at ('', '/off') {
    for my $n (1_000_000, 3_000_000) {
        my %key = ('idempotency-key' => new_key());
        my $uri = "$at/size?n=$n&type=text/event-stream&op=still&chunked=1";

        # no window is given beyond the first 65,535 bytes

        my $h2 = h2_connect();
        $h2->request('POST', $uri, 'x', \%key);
        app_wait('still');
        my $retry = http_post($uri, 'x', \%key);

        if ($n < 2_000_000) {
            is(length $retry->body, $n, "$uri: the retry has all of it");
        } else {
            is($retry->error_code, 'RESPONSE_TOO_LARGE', "$uri: too large");
        }

        is(app_count('still'), 1, "$uri: ran once");
        app_reset();
    }

    # two streams side by side, read at last

    my $h2 = h2_connect();
    my %key = ('idempotency-key' => new_key());
    my %two = ('idempotency-key' => new_key());
    my $uri = "$at/size?n=60000&hold=body&type=text/event-stream&op=side";
    my $one = $h2->request('POST', "${uri}1", 'x', \%key);
    my $other = $h2->request('POST', "${uri}2", 'x', \%two);
    app_wait_parked('side1');
    app_wait_parked('side2');
    app_release('side2');
    is(length $h2->response($other)->body, 60_000, "$uri: the second first");
    app_release('side1');
    is(length $h2->response($one)->body, 60_000, "$uri: then the first");
    is(length http_post("${uri}1", 'x', \%key)->body, 60_000, "$uri: kept");
    app_reset();
}



=== TEST 4: filters behind it, a rate, a record that is compressed
--- http_config
    gzip               on;
    gzip_types         text/event-stream;
    gzip_min_length    1;
    gzip_proxied       any;
--- config
    idempotency        $TEST_STORE;
    idempotency_wait   10s;

    location /sub/ {
        sub_filter           run  RUN;
        sub_filter_types     text/event-stream;
        sub_filter_once      off;
        proxy_buffering      off;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /rate/ {
        limit_rate           40k;
        idempotency_compress on min=1;
        proxy_buffering      off;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        idempotency_compress on min=1;
        proxy_buffering      off;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $all = join('', map { "data: RUN 1 event $_\n\n" } 1 .. 5);
my $got = http_post('/sub/sse?n=5&op=sub', 'x', \%key);
is($got->body, $all, 'sub_filter');
$got = http_post('/sub/sse?n=5&op=sub', 'x', \%key);
is($got->body, $all, 'sub_filter: once, on the replay as well');
is($got->header('Idempotent-Replayed'), 'true', 'sub_filter: it is one');

# a rate is not a client that does not read

%key = ('Idempotency-Key' => new_key());
my $uri = '/rate/size?n=60000&type=text/event-stream&chunked=1&op=rate';
$got = http_post($uri, 'x', \%key);
is(length $got->body, 60_000, 'limit_rate: all of it');
ok(http_post($uri, 'x', \%key)->body eq $got->body, 'limit_rate: replayed');

# gzip holds back what it has not compressed yet, and its client leaves

%key = ('Idempotency-Key' => new_key());
$uri = '/size?n=30000&type=text/event-stream&hold=body&op=gz';
my $c = send_post($uri, 'x', { %key, 'Accept-Encoding' => 'gzip' });
app_wait_parked('gz');
like($c->read_some(100), qr/Content-Encoding: gzip/, 'gzip: begins');
$c->reset;
app_release('gz');
is(length http_post($uri, 'x', \%key)->body, 30_000, 'gzip: kept');
is(app_count('gz'), 1, 'gzip: ran once');

# one request behind the other on a connection

my @keys = map { { 'Idempotency-Key' => new_key() } } 1 .. 3;
$c = connect_client();
$c->request('POST', "/sse?n=3&op=line$_", 'x', $keys[$_]) for 0 .. 2;
is($c->read_response(10)->body,
   join('', map { "data: run 1 event $_\n\n" } 1 .. 3), "pipelined: $_")
    for 0 .. 2;
$c->request('POST', "/sse?n=3&op=line$_", 'x', $keys[$_]) for 0 .. 2;
is($c->read_response(10)->header('Idempotent-Replayed'), 'true',
   "pipelined: $_ again") for 0 .. 2;



=== TEST 5: a worker that is killed in the middle
--- store: memory
--- provokes: exited on signal 9
--- config
    idempotency                  $TEST_STORE;
    idempotency_lease            1s;
    idempotency_wait             0;
    proxy_buffering              off;

    location / {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /hold/ {
        idempotency_unknown_outcome  hold;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $at ('', '/hold') {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "$at/size?n=2000&hold=body&type=text/event-stream&op=killed";

    my $c = send_post($uri, 'x', \%key);
    app_wait_parked('killed');
    cmp_ok(length $c->read_some(900), '>=', 900, "$uri: begins");
    kill_worker();
    ok($c->read_response(10)->truncated, "$uri: the client sees it break off");

    my $retry = http_post($uri, 'x', \%key);
    is($retry->status, 409, "$uri: a retry at once is told so");

    if ($at) {
        sleep 1.2;
        is(http_post($uri, 'x', \%key)->error_code, 'OUTCOME_UNKNOWN',
           "$uri: at most once, always");
        is(app_count('killed'), 1, "$uri: ran once");

    } else {
        wait_for(sub {
            $retry = send_post($uri, 'x', \%key);

            # it runs, or is refused
            wait_for(sub { app_count('killed') == 2
                           || $retry->read_response(0.05) });
            return app_count('killed') == 2;
        });
        app_release('killed', 1);
        is(length $retry->read_response(10)->body, 2000, "$uri: runs again");
        is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
           "$uri: and is kept");
    }
    app_reset();
}



=== TEST 6: a worker that may not wait for it
--- main_config
    worker_shutdown_timeout  1s;
--- config
    idempotency          $TEST_STORE;
    idempotency_wait     0;
    proxy_buffering      off;

    location / {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=2000&hold=body&type=text/event-stream&op=old';

my $c = send_post($uri, 'x', \%key);
app_wait_parked('old');
cmp_ok(length $c->read_some(900), '>=', 900, 'begins');
ok(nginx_reload(), 'reloaded');
ok($c->read_response(10)->truncated, 'the client sees it break off');

# the store may learn it a little later than the client

ok(wait_for(sub {
    http_post($uri, 'x', \%key)->error_code eq 'OUTCOME_UNKNOWN';
}), 'what became of it is unknown, and told');
is(app_count('old'), 1, 'ran once');



=== TEST 7: JSON-RPC in a stored stream: the id of the retry, and errors
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  json exclude=/id;
    idempotency_replay_json  id json:/id;
    idempotency_keep_json    /result/isError=!true /error=!*;

    location / {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
sub events { [ [ 'Content-Type', 'text/event-stream' ] ] }

sub ask
{
    my ($path, $id, $key) = @_;

    return http_post($path, qq({"jsonrpc":"2.0","id":$id,"method":"m"}),
                     { 'Idempotency-Key' => $key,
                       'Content-Type' => 'application/json' });
}

my $frame = ": hello\n\nevent: message\r\nid: 7\r\n%s\r\n\r\n"
    . 'data: {"jsonrpc":"2.0","method":"notifications/progress",'
    . '"params":{"id":1}}' . "\n\n"
    . 'data: {"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}'
    . "\n\ndata: [DONE]\n\ndata:{\"id\":1,\"result\":0}\r\r"
    . "%s\rretry: 5\r\rdata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":2}\n";

my $body = sprintf $frame,
    'data:{"jsonrpc":"2.0", "id":1, "result":{"id":1,"text":"a\\nb"}}',
    "data: {\"jsonrpc\":\"2.0\",\ndata: \"error\":null,\"result\":1,\rdata:\"id\":1}";

my $want = sprintf $frame,
    'data: {"jsonrpc":"2.0","result":{"id":1,"text":"a\\nb"},"id":%s}',
    'data: {"jsonrpc":"2.0","error":null,"result":1,"id":%s}';

app_answer('/rpc', { headers => events(), body => $body });

my $key = new_key();

is(ask('/rpc', 1, $key)->body, $body, 'the first');
for my $id (2, '"three"', 'null') {
    my $again = ask('/rpc', $id, $key);
    is($again->header('Idempotent-Replayed'), 'true', "$id: a replay");
    is($again->body, sprintf($want, $id, $id),
       "$id: in the responses, and nowhere else");
}
is(app_count('/rpc'), 1, 'ran once');

# nothing to set, and no object at all

app_answer('/none', { headers => events(), body => "data: 1\n\ndata\n\n" });
$key = new_key();
is(ask('/none', $_, $key)->body, "data: 1\n\ndata\n\n", "none: $_") for 1, 2;

# a call that failed may be made again; one of a batch that did not keeps all

my $ok = 'data: {"jsonrpc":"2.0","id":1,"result":{}}' . "\n\n";
my $note = 'data: {"jsonrpc":"2.0","method":"m","params":{}}' . "\n\n";

my %failed = (
    tool => 'data: {"jsonrpc":"2.0","id":1,"result":{"isError":true}}' . "\n\n",
    wrong => 'data: {"jsonrpc":"2.0","id":1,"error":{"code":1}}' . "\n\n");

for my $how (sort keys %failed) {
    my $key = new_key();
    app_answer("/$how", { headers => events(), body => "$note$failed{$how}" },
               { headers => events(), body => "$note$failed{$how}$ok" });
    is(ask("/$how", 1, $key)->body, "$note$failed{$how}", "$how: failed");
    is(ask("/$how", 1, $key)->header('Idempotent-Replayed'), undef,
       "$how: runs again");
    is(ask("/$how", 1, $key)->header('Idempotent-Replayed'), 'true',
       "$how: is kept");
    is(app_count("/$how"), 2, "$how: ran twice");
}



=== TEST 8: an EventSource that comes back
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET POST;
    idempotency_key      $arg_key $http_idempotency_key;

    location / {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $body = "id: 1\ndata: a\n\n: x\n\ndata: b\nid:2\n\ndata: c\r\n\r\n"
           . "id: two words\rdata: d\r\rid: 2\ndata: e\n\nid: 9";
my $events = { headers => [ [ 'Content-Type', 'text/event-stream' ] ],
               body => $body };

for my $method ('GET', 'POST') {
    my $uri = '/events?key=' . new_key();
    my ($path) = $uri =~ /^(\/\w+)/;

    app_answer($path, $events);

    my $ask = sub {
        my $got = http_request($method, $uri, $method eq 'POST' ? 'x' : undef,
                     { $_[0] ? ('Last-Event-ID' => $_[0]) : () });
        return $got->body;
    };

    is($ask->(), $body, "$method: runs");
    is($ask->(), $body, "$method: the whole");
    is($ask->(1), substr($body, index $body, ': x'), "$method: after the first");
    is($ask->(2), substr($body, index $body, 'data: c'), "$method: in the middle");
    is($ask->('two words'), substr($body, index $body, "id: 2\ndata: e"),
       "$method: after one with words");
    is($ask->($_), $body, "$method: $_ has no end, or is not there") for 9, 7;
    is(app_count($path), 1, "$method: ran once");
    app_reset();
}

# only what is an event stream

app_answer('/plain', { headers => [ [ 'Content-Type', 'text/plain' ] ],
                       body => "id: 1\n\nrest" });
my %key = ('Idempotency-Key' => new_key(), 'Last-Event-ID' => 1);
is(http_post('/plain', 'x', \%key)->body, "id: 1\n\nrest", 'plain') for 1, 2;



=== TEST 9: SCGI and uwsgi, buffered and not
--- config
    idempotency           $TEST_STORE;
    idempotency_wait      0;
    scgi_param            REQUEST_METHOD  $request_method;
    uwsgi_param           REQUEST_METHOD  $request_method;

    location /scgi {
        scgi_pass         127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /scgi/off {
        scgi_buffering    off;
        scgi_pass         127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi {
        uwsgi_pass        127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi/off {
        uwsgi_buffering   off;
        uwsgi_pass        127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $app = IO::Socket::INET->new(LocalAddr => '127.0.0.1', ReuseAddr => 1,
                                LocalPort => $ENV{TEST_NGINX_PORT_2},
                                Listen => 5) or die "listen: $!";

sub begin
{
    my ($uri, $key, $header) = @_;

    my $c = send_post($uri, 'a body', $key);

    # the body comes last in both
    my $request = $app->accept or die "accept: $!";
    my $got = '';
    while ($got !~ /a body$/) {
        sysread $request, $got, 4096, length $got or last;
    }

    $request->autoflush(1);
    print $request "Status: 200 OK\r\n$header\r\n\r\ndata: 1\n\n";

    like($c->read_some(150), qr/data: 1\n/, "$uri: goes out as it comes");
    is(http_post($uri, 'a body', $key)->error_code, 'CONCURRENT_REQUEST',
       "$uri: a retry meanwhile");

    return ($c, $request);
}

for my $uri ('/scgi', '/scgi/off', '/uwsgi', '/uwsgi/off') {
    for my $how ('stays', 'leaves') {
        my %key = ('Idempotency-Key' => new_key());
        my ($c, $request) = begin($uri, \%key,
                                  'Content-Type: text/event-stream');
        $c->reset if $how eq 'leaves';

        for (2 .. 40) {
            print $request "data: $_\n\n";
        }
        close $request;

        my $all = join '', map { "data: $_\n\n" } 1 .. 40;
        is($c->read_response->body, $all, "$uri: all of it")
            if $how eq 'stays';

        # nobody accepts this time
        my $retry;
        wait_for(sub {
            $retry = http_post($uri, 'a body', \%key);
            return $retry->status == 200;
        });
        is($retry->body, $all, "$uri, $how: the retry has all of it");
        is($retry->header('Idempotent-Replayed'), 'true', "$uri, $how: kept");
    }

    my %key = ('Idempotency-Key' => new_key());
    my ($c, $request) = begin($uri, \%key, "X-Accel-Buffering: no\r\n"
                                           . 'Content-Length: 100');
    close $request;
    ok($c->read_response->truncated, "$uri: breaks off for the client");
    is(http_post($uri, 'a body', \%key)->error_code, 'OUTCOME_UNKNOWN',
       "$uri: unknown");
}



=== TEST 10: a stream that nginx caches is buffered, or it would not be cached
--- http_config
    proxy_cache_path  $TEST_NGINX_SERVER_ROOT/cache keys_zone=cache:1m;
--- config
    idempotency          $TEST_STORE;

    location / {
        proxy_cache          cache;
        proxy_cache_methods  POST;
        proxy_cache_valid    1m;
        proxy_cache_key      $uri;
        add_header           X-Cache  $upstream_cache_status;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $uri = '/size?n=30000&type=text/event-stream&op=cached';

for my $want ('MISS', 'HIT') {
    my %key = ('Idempotency-Key' => new_key());
    my $got = http_post($uri, 'x', \%key);
    is($got->header('X-Cache'), $want, $want);
    is(length $got->body, 30_000, "$want: all of it");

    my $retry = http_post($uri, 'x', \%key);
    is($retry->header('Idempotent-Replayed'), 'true', "$want: replayed");
    ok($retry->body eq $got->body, "$want: the same");
}

is(app_count('cached'), 1, 'ran once');



=== TEST 11: a client that leaves while the application is silent
--- h2
--- config
    idempotency          $TEST_STORE;

    location / {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $at ('', '/off') {
    for my $how ('abort', 'reset', 'h2 rst', 'h2 abort', 'h2 reset') {
        my %key = ('idempotency-key' => new_key());
        my $uri = "$at/size?n=20000&hold=body&type=text/event-stream&op=silent";

        if ($how =~ /^h2 (.*)/) {
            my $h2 = h2_connect();
            my $id = $h2->request('POST', $uri, 'x', \%key);
            app_wait_parked('silent');
            cmp_ok(length $h2->body_so_far($id, 8000), '>=', 8000, "$uri: begins");
            $1 eq 'rst' ? $h2->rst($id) : $h2->$1;

        } else {
            my $c = send_post($uri, 'x', \%key);
            app_wait_parked('silent');
            cmp_ok(length $c->read_some(8000), '>=', 8000, "$uri: begins");
            $c->$how;
        }

        # the only worker has seen the end of that connection, too

        is(http_post('/ok?op=next', 'x', {})->status, 200, "$uri, $how: next");
        is(app_closed('silent'), 0, "$uri, $how: goes on");

        app_release('silent');
        my $retry = http_post($uri, 'x', \%key);
        is(length $retry->body, 20_000, "$uri, $how: the retry has all of it");
        is($retry->header('Idempotent-Replayed'), 'true', "$uri, $how: kept");
        is(app_count('silent'), 1, "$uri, $how: ran once");
        app_reset();
    }
}
