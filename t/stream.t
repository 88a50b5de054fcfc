# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A stream goes to the client as it comes and is captured meanwhile: its retry
# gets the whole of it, whatever became of the first client.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# of test 3, for a client that is waited for and one that is not

our $reads = <<'_EOC_';
    idempotency                $TEST_STORE;
    idempotency_wait           10s;
    idempotency_max_response   8m;
    sendfile                   off;

    location / {
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering        off;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /little/ {
        proxy_max_temp_file_size  0;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

run_tests();

__DATA__

=== TEST 1: events go out as they come, and a retry gets them all
--- http_config
    gzip                 on;
    gzip_types           text/event-stream;
    gzip_min_length      1;
    gzip_proxied         any;
--- config
    idempotency          $TEST_STORE;
    idempotency_wait     0;

    location / {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /fcgi/ {
        fastcgi_param    REQUEST_METHOD  $request_method;
        fastcgi_param    REQUEST_URI     $request_uri;
        fastcgi_param    CONTENT_LENGTH  $content_length;
        fastcgi_pass     127.0.0.1:$TEST_NGINX_FCGI_PORT;
    }
--- client
for my $at ('', '/off') {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "$at/sse?n=40&op=sse";

    my $c = send_post($uri, 'x', \%key);

    # whether nginx would buffer it or not

    like($c->read_some(200), qr/event 1\n/, "$uri: the first events");

    is(http_post($uri, 'x', \%key)->error_code, 'CONCURRENT_REQUEST',
       "$uri: a retry meanwhile");

    my $first = $c->read_response(15);
    my $retry = http_post($uri, 'x', \%key);

    my $all = join('', map { "data: run 1 event $_\n\n" } 1 .. 40);

    is($first->body, $all, "$uri: all events");
    is($retry->body, $all, "$uri: replayed");
    is($retry->header('Idempotent-Replayed'), 'true', "$uri: says so");
    is($retry->header('Content-Type'), 'text/event-stream', "$uri: type");
    is($retry->header('Cache-Control'), 'no-cache', "$uri: header");
    is(app_count('sse'), 1, "$uri: ran once");
    app_reset();
}

# half of it is there when the application has sent no more

for my $how ('type=text/event-stream', 'header=X-Accel-Buffering:%20no',
             'chunked=1&type=text/event-stream;%20charset=utf-8',
             'nolength=1&header=x-accel-buffering:%20No')
{
    for my $at ('', '/off') {
        my %key = ('Idempotency-Key' => new_key(), 'X-Try' => 1);
        my $uri = "$at/size?n=20000&hold=body&op=half&$how";

        my $c = send_post($uri, 'x', \%key);
        app_wait_parked('half');
        cmp_ok(length $c->read_some(8000), '>=', 8000, "$uri: begins");
        app_release('half');
        my $first = $c->read_response(10);
        my $retry = http_post($uri, 'x', \%key);
        is(length $first->body, 20_000, "$uri: whole");
        ok($retry->body eq $first->body, "$uri: replayed");
        is(app_count('half'), 1, "$uri: ran once");
        app_reset();
    }
}

# FastCGI, gzip, HTTP/1.0

my %key = ('Idempotency-Key' => new_key());
my $uri = '/fcgi/ok?header=X-Accel-Buffering:%20no';
is(http_post($uri, 'x', \%key)->body, "run 1\n", "FastCGI") for 1, 2;

%key = ('Idempotency-Key' => new_key());
$uri = '/fcgi/ok?n=20000&type=text/event-stream&op=fcgi';
is(length http_post($uri, 'x', \%key)->body, 20_000, "$uri: all of it")
    for 1, 2;
is(app_count('fcgi', peer => 'fastcgi'), 1, "$uri: ran once");

%key = ('Idempotency-Key' => new_key());
my $gz = http_post('/sse?n=3&op=gz', 'x', { %key, 'Accept-Encoding' => 'gzip' });
is($gz->header('Content-Encoding'), 'gzip', 'gzip: the first');
is(http_post('/sse?n=3&op=gz', 'x', \%key)->body,
   join('', map { "data: run 1 event $_\n\n" } 1 .. 3), 'gzip: kept plain');

%key = ('Idempotency-Key' => new_key());
my $old = http_raw("POST /sse?n=3&op=old HTTP/1.0\r\nHost: localhost\r\n"
                   . "Content-Length: 1\r\n"
                   . "Idempotency-Key: $key{'Idempotency-Key'}\r\n\r\nx");
is($old->body, join('', map { "data: run 1 event $_\n\n" } 1 .. 3), 'HTTP/1.0');
is(http_post('/sse?n=3&op=old', 'x', \%key)->body, $old->body,
   'HTTP/1.0: replayed');

# a status that is not kept

%key = ('Idempotency-Key' => new_key());
$uri = '/status/503?type=text/event-stream';
is(http_post($uri, 'x', \%key)->body, "run $_\n", "503: run $_") for 1, 2;



=== TEST 2: a client that leaves does not end it
--- h2
--- config
    idempotency          $TEST_STORE;
    idempotency_wait     10s;

    location / {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
for my $at ('', '/off') {
    for my $how (qw(abort reset)) {
        my %key = ('Idempotency-Key' => new_key());
        my $uri = "$at/sse?n=30&op=left";

        my $c = send_post($uri, 'x', \%key);
        $c->read_some(200);
        $c->$how;

        my $retry = http_post($uri, 'x', \%key);
        is($retry->body, join('', map { "data: run 1 event $_\n\n" } 1 .. 30),
           "$uri, $how: the retry gets the whole");
        is($retry->header('Idempotent-Replayed'), 'true', "$uri, $how: stored");
        is(app_count('left'), 1, "$uri, $how: ran once");
        is(app_closed('left'), 0, "$uri, $how: to its end");
        app_reset();
    }

    for my $how (qw(rst abort)) {
        my %key = ('idempotency-key' => new_key());
        my $uri = "$at/sse?n=30&op=left2";

        my $h2 = h2_connect();
        my $id = $h2->request('POST', $uri, 'x', \%key);
        $h2->body_so_far($id, 60);
        $how eq 'rst' ? $h2->rst($id) : $h2->abort;

        my $retry = http_post($uri, 'x', \%key);
        is($retry->body, join('', map { "data: run 1 event $_\n\n" } 1 .. 30),
           "$uri, HTTP/2 $how: the retry gets the whole");
        is(app_count('left2'), 1, "$uri, HTTP/2 $how: ran once");
        app_reset();
    }

    # before there was a header

    my %key = ('Idempotency-Key' => new_key());
    my $uri = "$at/ok?hold=1&type=text/event-stream&op=early";
    my $c = send_post($uri, 'x', \%key);
    app_wait_parked('early');
    $c->reset;
    app_release('early');
    is(http_post($uri, 'x', \%key)->body, "run 1\n", "$uri: kept");
    is(app_count('early'), 1, "$uri: ran once");
    app_reset();
}

my $h2 = h2_connect();
my %key = ('idempotency-key' => new_key());
my $first = $h2->response($h2->request('POST', '/sse?n=5&op=two', 'x', \%key));
my $again = $h2->response($h2->request('POST', '/sse?n=5&op=two', 'x', \%key));
is($first->body, join('', map { "data: run 1 event $_\n\n" } 1 .. 5), 'HTTP/2');
is($again->body, $first->body, 'HTTP/2: replayed');



=== TEST 3: a client that reads nothing does not hold it up
--- http_config eval
"server {
    listen       127.0.0.1:\$TEST_NGINX_PORT_2;
    server_name  localhost;
$::reads
}"
--- config eval: "    send_timeout               3s;\n" . $::reads
--- client_timeout: 60
--- client
# who reads may not get a processor for longer than the one has that does not

my @patient = (port => $ENV{TEST_NGINX_PORT_2});

for my $at ('', '/off', '/little') {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "$at/size?n=7000000&op=much&type=text/event-stream";

    my $c = send_post($uri, 'x', \%key);
    app_wait('much');
    my $retry = http_post($uri, 'x', \%key, @patient);
    is($retry->status, 200, "$uri: the retry gets it");
    is(length $retry->body, 7_000_000, "$uri: all of it");
    is(app_count('much'), 1, "$uri: ran once");
    $c->abort;

    # one that reads late, but does, gets every byte

    %key = ('Idempotency-Key' => new_key());
    $c = send_post($uri, 'x', \%key, @patient);
    select undef, undef, undef, 0.3;
    is(length $c->read_response(10)->body, 7_000_000, "$uri: read late");
    app_reset();
}



=== TEST 4: broken off, too large, not kept
--- config
    idempotency                $TEST_STORE;
    idempotency_wait           0;
    idempotency_max_response   10k;

    location / {
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering        off;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency_stream     pass;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /lines/ {
        idempotency_stream     tee application/x-ndjson;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $at ('', '/off') {
    for my $what ('truncate', 'truncate?chunked=1', 'reset?after=1') {
        my %key = ('Idempotency-Key' => new_key());
        my $uri = "$at/$what" . ($what =~ /\?/ ? '&' : '?')
                  . 'header=X-Accel-Buffering:%20no&op=broke';

        my $first = http_post($uri, 'x', \%key);
        ok($first->truncated, "$uri: the client sees it break off");
        is($first->status, 200, "$uri: after its header");
        is(http_post($uri, 'x', \%key)->error_code, 'OUTCOME_UNKNOWN',
           "$uri: unknown");
        is(app_count('broke'), 1, "$uri: ran once");
        app_reset();
    }

    # known to be too large by its length, or found out on the way

    for my $how ('', '&chunked=1') {
        my %key = ('Idempotency-Key' => new_key());
        my $uri = "$at/size?n=20000&type=text/event-stream&op=large$how";

        is(length http_post($uri, 'x', \%key)->body, 20_000, "$uri: whole");
        is(http_post($uri, 'x', \%key)->error_code, 'RESPONSE_TOO_LARGE',
           "$uri: too large to be kept");
        is(app_count('large'), 1, "$uri: ran once");
        app_reset();
    }
}

my %key = ('Idempotency-Key' => new_key());
is(http_post('/pass/sse', 'x', \%key)->status, 200, 'pass: goes out');
is(http_post('/pass/sse', 'x', \%key)->error_code, 'RESPONSE_NOT_KEPT',
   'pass: is not kept');

# a type that the configuration names

%key = ('Idempotency-Key' => new_key());
my $uri = '/lines/size?n=900&hold=body&type=application/x-ndjson&op=lines';
my $c = send_post($uri, 'x', \%key);
app_wait_parked('lines');
cmp_ok(length $c->read_some(400), '>=', 400, 'lines: begin');
app_release('lines');
my $whole = $c->read_response->body;

# what went out as it came is committed when its client has it, perhaps later
ok(wait_for(sub { http_post($uri, 'x', \%key)->body eq $whole }),
   'lines: replayed');
is(app_count('lines'), 1, 'lines: ran once');



=== TEST 5: what only a buffered response has: a file, a rate
--- config
    idempotency        $TEST_STORE;

    location /file/ {
        proxy_store    $TEST_NGINX_SERVER_ROOT/html/stored;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /rate/ {
        limit_rate     2k;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $stored = "$ENV{TEST_NGINX_SERVROOT}/html/stored";
my $post = sub {
    return http_post("$_[0]&type=text/event-stream", 'x',
                     { 'Idempotency-Key' => new_key(), 'X-Try' => 1 });
};

is(length $post->('/file/size?n=3000')->body, 3000, 'a file: all of it');
ok(wait_for(sub { (-s $stored || 0) == 3000 }), 'it is stored');

# two seconds or so

my $start = time;
is(length $post->('/rate/size?n=6000')->body, 6000, 'a rate: all of it');
cmp_ok(time - $start, '>=', 1, 'at that rate');



=== TEST 6: Lua that flushes
--- modules: lua
--- config
    idempotency          $TEST_STORE;

    location /lua {
        content_by_lua_block {
            ngx.header["Content-Type"] = "text/event-stream"
            for i = 1, 10 do
                ngx.print("data: " .. i .. "\n\n")
                ngx.flush(true)
                ngx.sleep(0.05)
            end
            local res = ngx.location.capture("/ran", { method = ngx.HTTP_POST })
            ngx.print("data: " .. res.body .. "\n")
        }
    }
    location /ran {
        internal;
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $all = join('', map { "data: $_\n\n" } 1 .. 10) . "data: run 1\n\n";

my $c = send_post('/lua', 'x', \%key);
like($c->read_some(150), qr/data: 1\n/, 'begins');
$c->reset;
my $retry = http_post('/lua', 'x', \%key);
is($retry->body, $all, 'the client gone, a retry gets all');
is(app_count('/ran'), 1, 'ran once');

%key = ('Idempotency-Key' => new_key());
$all =~ s/run 1/run 2/;
is(http_post('/lua', 'x', \%key)->body, $all, 'a client that stays') for 1, 2;



=== TEST 7: a reload lets a stream come to its end
--- config
    idempotency          $TEST_STORE;

    location / {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=2000&hold=body&type=text/event-stream&op=old';

my $c = send_post($uri, 'x', \%key);
app_wait_parked('old');
cmp_ok(length $c->read_some(900), '>=', 900, 'begins');
ok(nginx_reload(), 'reloaded');
$c->abort;
app_release('old');
my $retry = http_post($uri, 'x', \%key);
is(length $retry->body, 2000, 'the new worker has all of it');
is($retry->header('Idempotent-Replayed'), 'true', 'stored by the old one');
is(app_count('old'), 1, 'ran once');



=== TEST 8: a wrong value
--- config
    idempotency_stream attach;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "attach" in .*nginx\.conf:\d+/



=== TEST 9: X-Accel-Buffering that nginx is told to ignore
--- config
    idempotency           $TEST_STORE;
    idempotency_wait      0;
    proxy_ignore_headers  X-Accel-Buffering;

    location / {
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=20000&hold=body&op=held&header=X-Accel-Buffering:%20no';

my $c = send_post($uri, 'x', \%key);

app_wait_parked('held');
is($c->read_some(1, 0.5), '', 'held');
app_release('held');

is(length $c->read_response(5)->body, 20_000, 'then sent');
is(length http_post($uri, 'x', \%key)->body, 20_000, 'replayed');

# what is a stream for another reason still is

$uri = '/sse?n=40&op=sse';
%key = ('Idempotency-Key' => new_key());
$c = send_post($uri, 'x', \%key);

like($c->read_some(200), qr/event 1\n/, 'an event stream goes out');
is(http_post($uri, 'x', \%key)->error_code, 'CONCURRENT_REQUEST',
   'before its end');
$c->read_response(15);
