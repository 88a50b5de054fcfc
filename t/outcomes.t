# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What the outcome of an execution does to its record: kept and replayed,
# released so that a retry runs again, or unknown, since it may have run.
# Judged by what was sent to which upstream, not by the status that comes out.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $http = <<'_EOC_';
    map $http_x_to $to {
        default  127.0.0.1:$TEST_NGINX_APP_PORT;
        dead     127.0.0.1:$TEST_NGINX_DEAD_PORT;
        nowhere  nowhere.invalid;
        none     nobody;
        both     refusing;
    }

    upstream nobody {
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT down;
    }

    upstream refusing {
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT max_fails=0;
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT max_fails=0 backup;
    }

    upstream one_alive {
        server  127.0.0.1:$TEST_NGINX_APP_PORT max_fails=0;
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT max_fails=0 backup;
    }
_EOC_

our $op = 0;


# A first try with the status that the client is to see, and its retry, which
# tells what became of the record.  The headers of the first try may differ
# from those of the retry: they are not part of the fingerprint.

sub outcome
{
    my ($uri, $status, $record, %o) = @_;

    my $id = $o{op} || 'op' . ++$::op;
    my $name = $o{name} || $uri;
    my $method = $o{method} || 'POST';
    my @key = ('Idempotency-Key' => new_key());

    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$id";

    my $first = http_request($method, $uri, 'x', [ @key, @{ $o{first} || [] } ]);

    is($first->status, $status, "$name: answered $status");
    ok(!$first->truncated, "$name: in full");
    is($first->header('X-Outcome'),
       { kept => 'EXECUTED', released => 'RELEASED',
         unknown => 'UNKNOWN' }->{$record}, "$name: $record");

    my $ran = app_count($id);
    my $retry = http_request($method, $uri, 'x', \@key);

    if ($record eq 'kept') {
        is($ran, 1, "$name: ran");
        is($retry->status, $status, "$name: replayed");
        is($retry->body, $first->body, "$name: its body");
        is($retry->header('Idempotent-Replayed'), 'true', "$name: says so");
        is(app_count($id), $ran, "$name: ran once");

    } elsif ($record eq 'released') {
        is($retry->header('Idempotent-Replayed'), undef, "$name: no replay");
        is($retry->error_code, '', "$name: not refused");
        is(app_count($id), $ran + 1, "$name: the retry ran");

    } else {
        is($ran, 1, "$name: ran");
        is($retry->status, 409, "$name: refused");
        is($retry->error_code, 'OUTCOME_UNKNOWN', "$name: outcome unknown");
        is($retry->header('X-Outcome'), 'UNKNOWN', "$name: status");
        is(app_count($id), $ran, "$name: ran once");
    }

    return ($first, $retry);
}

run_tests();

__DATA__

=== TEST 1: complete responses, by status
--- config
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location / {
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /fcgi/ {
        fastcgi_pass   127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param  REQUEST_METHOD  $request_method;
        fastcgi_param  REQUEST_URI     $request_uri;
        fastcgi_param  CONTENT_LENGTH  $content_length;
    }
--- client
for my $status (200, 201, 202, 206, 299, 301, 302, 303, 307, 400, 402, 404, 405,
                410, 412, 422, 451)
{
    outcome("/status/$status", $status, 'kept');
}

outcome('/204', 204, 'kept');
outcome('/ok?chunked=1', 200, 'kept');
outcome('/ok?nolength=1', 200, 'kept', name => 'ends by closing');

for my $status (500, 501, 503, 505, 507, 401, 403, 407, 408, 409, 423, 425, 429) {
    outcome("/status/$status", $status, 'released');
}

outcome('/fcgi/status/404', 404, 'kept');
outcome('/fcgi/status/503', 503, 'released');
outcome('/fcgi/status/502', 502, 'unknown');



=== TEST 2: nothing was sent to any upstream
--- http_config eval: $::http
--- config
    recursive_error_pages  on;
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location = /page.html {
    }
    location / {
        proxy_pass  http://$to;
    }
    location /static/ {
        error_page  502 =200 /page.html;
        proxy_pass  http://$to;
    }
    location /named/ {
        error_page  502 =201 @return;
        proxy_pass  http://$to;
    }
    location @return {
        return  201 "fallback\n";
    }
    location /file/ {
        error_page  502 =202 @file;
        proxy_pass  http://$to;
    }
    location @file {
        error_page  405 =202 /page.html;
        try_files   /page.html =404;
    }
    location /other/ {
        error_page  502 = @other;
        proxy_pass  http://$to;
    }
    location @other {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location /others/ {
        error_page  502 = @dead;
        proxy_pass  http://$to;
    }
    location @dead {
        error_page  502 =200 /page.html;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
--- user_files
>>> page.html
page
--- client
my @dead = (first => [ 'X-To' => 'dead' ]);

outcome('/ok', 502, 'released', @dead, name => 'refused');
outcome('/ok', 502, 'released', @dead, name => 'PUT refused', method => 'PUT');
outcome('/ok', 502, 'released', first => [ 'X-To' => 'none' ],
        name => 'no live peer');
outcome('/ok', 502, 'released', first => [ 'X-To' => 'both' ],
        name => 'refused by all peers');
outcome('/ok', 502, 'released', first => [ 'X-To' => 'nowhere' ],
        name => 'no address');

# whatever error_page makes of it

my ($first) = outcome('/static/ok', 200, 'released', @dead);
is($first->body, "page\n", 'a file');

($first) = outcome('/named/ok', 201, 'released', @dead);
is($first->body, "fallback\n", 'return');

($first) = outcome('/file/ok', 202, 'released', @dead);
is($first->body, "page\n", 'a file in a named location');

($first) = outcome('/others/ok', 200, 'released', @dead);
is($first->body, "page\n", 'refused twice');

# ... unless it leads to one that is sent something

my %key = ('Idempotency-Key' => new_key());
$first = http_post('/other/ok?op=other', 'x', { %key, 'X-To' => 'dead' });
is($first->header('X-App'), 2, 'the other application answered');
is($first->header('X-Outcome'), 'EXECUTED', 'kept');
my $retry = http_post('/other/ok?op=other', 'x', \%key);
is($retry->header('X-App'), 2, 'replayed');
is($retry->header('Idempotent-Replayed'), 'true', 'says so');
is(app_count('other'), 1, 'ran once');

%key = ('Idempotency-Key' => new_key());
$first = http_post('/other/close?op=close', 'x', { %key, 'X-To' => 'dead' });
is($first->status, 502, 'the other application failed');
is(http_post('/other/close?op=close', 'x', \%key)->error_code,
   'OUTCOME_UNKNOWN', 'it was sent the request');
is(app_count('close'), 1, 'ran once');



=== TEST 3: something was sent, and no complete response came
--- http_config eval: $::http
--- config
    idempotency               $TEST_STORE;
    idempotency_max_response  2m;
    add_header                X-Outcome  $idempotency_status  always;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /timeout/ {
        proxy_read_timeout    250ms;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_buffering       off;
        proxy_read_timeout    250ms;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /http11/ {
        proxy_http_version    1.1;
        proxy_set_header      Connection "";
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /tries/ {
        proxy_next_upstream   error non_idempotent;
        proxy_pass            http://one_alive;
    }
    location /any/ {
        idempotency_keep_status  any;
        proxy_read_timeout    250ms;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
outcome('/reset', 502, 'unknown');
outcome('/close', 502, 'unknown');
outcome('/close', 502, 'unknown', method => 'PUT', name => 'PUT /close');
outcome('/garbage', 502, 'unknown');
outcome('/timeout/hang', 504, 'unknown');

# a response that breaks off: the client gets an error, not a part of it

outcome('/truncate', 502, 'unknown');
outcome('/truncate?chunked=1', 502, 'unknown');
outcome('/reset?after=1', 502, 'unknown');
outcome('/http11/truncate', 502, 'unknown');
outcome('/http11/truncate?chunked=1', 502, 'unknown');
outcome('/http11/reset?after=1', 502, 'unknown');
outcome('/unbuffered/truncate', 502, 'unknown');
outcome('/unbuffered/truncate?chunked=1', 502, 'unknown');
outcome('/timeout/size?n=1&hold=body', 502, 'unknown', name => 'only a header');
outcome('/timeout/size?n=1000&hold=body', 502, 'unknown', name => 'half');
outcome('/timeout/size?n=400000&hold=body', 502, 'unknown',
        name => 'half of much');
outcome('/unbuffered/size?n=400000&hold=body', 502, 'unknown');

# the next peer was sent nothing: that does not undo the first

outcome('/tries/close', 502, 'unknown');

# who knows what is behind a gateway

outcome('/status/502', 502, 'unknown');
outcome('/status/504', 504, 'unknown');

# "any" is about answers

outcome('/any/status/500', 500, 'kept');
outcome('/any/status/502', 502, 'kept');
outcome('/any/status/504', 504, 'kept');
outcome('/any/status/429', 429, 'kept');
outcome('/any/close', 502, 'unknown');
outcome('/any/hang', 504, 'unknown');
outcome('/any/truncate', 502, 'unknown');



=== TEST 4: a truncated response over HTTP/2
--- h2
--- config
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();
my %key = ('idempotency-key' => new_key());

my $r = $h2->response($h2->request('POST', '/truncate?op=a', 'x', \%key));
is($r->status, 502, 'an error');
ok(!$r->truncated, 'in full');

$r = $h2->response($h2->request('POST', '/truncate?op=a', 'x', \%key));
is($r->status, 409, 'retry');
is($r->error_code, 'OUTCOME_UNKNOWN', 'unknown');
is(app_count('a'), 1, 'ran once');



=== TEST 5: unknown outcome: retry, lease, hold
--- config
    idempotency                      $TEST_STORE;
    idempotency_lease                1s;
    idempotency_ttl                  2500ms;

    location /retry/ {
        idempotency_unknown_outcome  retry;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /lease/ {
        idempotency_unknown_outcome  lease;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /hold/ {
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        idempotency_ttl              24h;
        idempotency_lease            30s;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $start = Time::HiRes::time();
is(http_post('/lease/close', 'x', \%key)->status, 502, 'lease');
is(http_post('/hold/close', 'x', { 'Idempotency-Key' => 'held' })->status, 502,
   'hold');
is(http_post('/retry/close', 'x', { 'Idempotency-Key' => 'again' })->status,
   502, 'retry');
is(http_post('/close', 'x', { 'Idempotency-Key' => 'default' })->status, 502,
   'default');

is(http_post('/retry/close', 'x', { 'Idempotency-Key' => 'again' })->status,
   502, 'retry: tried again');
is(app_count('/retry/close'), 2, 'retry: ran again');
is(http_post('/retry/ok', 'y', { 'Idempotency-Key' => 'again' })->body,
   "run 1\n", 'retry: the key is free, for any request');
is(http_post('/lease/ok', 'y', \%key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'lease: it is not');

my $r = http_post('/lease/close', 'x', \%key);
is($r->status, 409, 'lease: refused');
is($r->error_code, 'OUTCOME_UNKNOWN', 'lease: code');
is($r->json->{error}{type}, 'unknown_outcome', 'lease: type');
ok($r->json->{error}{retryable}, 'lease: retryable');
cmp_ok($r->json->{error}{retryAfterMs}, '<=', 1000, 'lease: what is left');
cmp_ok($r->json->{error}{retryAfterMs}, '>', 0, 'lease: something is left');
is($r->header('Retry-After'), 1, 'lease: Retry-After');

$r = http_post('/hold/close', 'x', { 'Idempotency-Key' => 'held' });
is($r->status, 409, 'hold: refused');
is($r->error_code, 'OUTCOME_UNKNOWN', 'hold: code');
ok(!$r->json->{error}{retryable}, 'hold: not retryable');
is($r->header('Retry-After'), undef, 'hold: no Retry-After');
is($r->json->{error}{retryAfterMs}, undef, 'hold: nor in the body');

# the default is lease, with its 30 s

$r = http_post('/close', 'x', { 'Idempotency-Key' => 'default' });
is($r->error_code, 'OUTCOME_UNKNOWN', 'default: refused');
cmp_ok($r->header('Retry-After'), '>=', 20, 'default: Retry-After');
cmp_ok($r->header('Retry-After'), '<=', 30, 'default: not above the lease');

# a conflict comes first

is(http_post('/lease/close', 'y', \%key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'lease: another body');
is(http_post('/hold/close', 'y', { 'Idempotency-Key' => 'held' })->error_code,
   'IDEMPOTENCY_CONFLICT', 'hold: another body');

# the lease ends: a retry runs

is(app_count('/lease/close'), 1, 'lease: once so far');
ok(wait_for(sub {
       http_post('/lease/close', 'x', \%key)->status == 502
   }, 5), 'lease: let through');
cmp_ok(Time::HiRes::time() - $start, '>=', 0.95, 'lease: not before its end');
is(app_count('/lease/close'), 2, 'lease: ran again');

# hold is for the ttl, which outlives the lease

$r = http_post('/hold/close', 'x', { 'Idempotency-Key' => 'held' });
is($r->error_code, 'OUTCOME_UNKNOWN', 'hold: still refused');
is(app_count('/hold/close'), 1, 'hold: once so far');
ok(wait_for(sub {
       http_post('/hold/close', 'x', { 'Idempotency-Key' => 'held' })->status
           == 502
   }, 6), 'hold: let through');
cmp_ok(Time::HiRes::time() - $start, '>=', 2.4, 'hold: not before the ttl');
is(app_count('/hold/close'), 2, 'hold: ran again');



=== TEST 6: error_page after a request was sent
--- config
    recursive_error_pages  on;
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location = /page.html {
    }
    location / {
        error_page              502 504 =200 /page.html;
        proxy_read_timeout      250ms;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /return/ {
        error_page              502 =201 @return;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @return {
        return                  201 "fallback\n";
    }
    location /refused/ {
        error_page              502 = @dead;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @dead {
        error_page              502 =200 /page.html;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /intercept/ {
        proxy_intercept_errors  on;
        error_page              404 500 502 =200 /page.html;
        error_page              410 =202 @return;
        error_page              503 = @other;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @other {
        rewrite                 ^ /ok break;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
--- user_files
>>> page.html
page
--- client
my ($first) = outcome('/hang', 200, 'unknown');
is($first->body, "page\n", 'a page');
($first) = outcome('/close', 200, 'unknown');
is($first->body, "page\n", 'a page');
($first) = outcome('/truncate', 200, 'unknown');
is($first->body, "page\n", 'a page in place of what broke off');
($first) = outcome('/return/reset', 201, 'unknown');
is($first->body, "fallback\n", 'return');

# what was sent to the first counts, though the last was sent nothing

($first) = outcome('/refused/close', 200, 'unknown');
is($first->body, "page\n", 'refused afterwards');

# the application's own errors, made into something else

($first) = outcome('/intercept/status/404', 200, 'kept');
is($first->body, "page\n", 'intercepted');
($first) = outcome('/intercept/status/410', 202, 'kept');
is($first->body, "fallback\n", 'intercepted');
outcome('/intercept/status/500', 200, 'released');
outcome('/intercept/status/502', 200, 'unknown');

# another upstream has the last word

my %key = ('Idempotency-Key' => new_key());
$first = http_post('/intercept/status/503?op=i', 'x', \%key);
is($first->status, 200, 'another application answered');
is($first->header('X-App'), 2, 'the second');
is(app_count('i'), 2, 'both ran');
my $retry = http_post('/intercept/status/503?op=i', 'x', \%key);
is($retry->body, $first->body, 'kept');
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count('i'), 2, 'neither ran again');



=== TEST 7: X-Accel-Redirect
--- config
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /return {
        internal;
        return      200 "there\n";
    }
    location /second/ {
        internal;
        idempotency off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location /dead {
        internal;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @named {
        rewrite     ^ /ok break;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location /files/ {
        internal;
    }
--- user_files
>>> files/page.html
page
--- client
my ($first) = outcome('/accel?to=/files/page.html', 200, 'kept');
is($first->body, "page\n", 'a file');

($first) = outcome('/accel?to=/return', 200, 'kept');
is($first->body, "there\n", 'return');

# the application did run, though there is nothing to be had

outcome('/accel?to=/files/none.html', 404, 'kept');

# the last upstream that was sent something decides, if what it says is kept;
# otherwise the first has said that it ran.  Each counts apart

for my $to (
    [ '/second/ok', 200, 'kept' ],
    [ '/second/status/404', 404, 'kept' ],
    [ '/second/status/503', 503, 'unknown' ],
    [ '/second/close', 502, 'unknown' ],
    [ '/second/truncate', 502, 'unknown' ],
    [ '@named', 200, 'kept' ],
) {
    my ($uri, $status, $record) = @$to;

    my $id = 'first' . ++$::op;
    ($first) = outcome("/accel?to=$uri", $status, $record, op => $id)
        if $uri ne '@named';

    if ($uri eq '@named') {
        my %key = ('Idempotency-Key' => new_key());
        $first = http_post("/accel?to=\@named&op=$id", 'x', \%key);
        is($first->header('X-App'), 2, 'a named location');
        my $retry = http_post("/accel?to=\@named&op=$id", 'x', \%key);
        is($retry->body, $first->body, 'a named location: replayed');
        is(app_count($id), 2, 'a named location: each ran once');
        next;
    }

    my ($path) = $uri =~ m{^/second(/.*)};
    is(app_count("/second$path"), 1, "$uri: the second one");
}

# a destination that refuses does not undo what the application did

my %key = ('Idempotency-Key' => new_key());
http_post('/accel?to=/dead&op=dead', 'x', \%key);
http_post('/accel?to=/dead&op=dead', 'x', \%key);
is(app_count('dead'), 1, 'a dead end: ran once');



=== TEST 8: try_files and named locations
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET POST;
    add_header           X-Outcome  $idempotency_status  always;

    location / {
        try_files   $uri @app;
    }
    location @app {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /error/ {
        error_page  404 405 = @app;
    }
    location /refused/ {
        error_page  502 = @app;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /page.html {
    }
--- user_files
>>> page.html
page
--- client
outcome('/ok', 200, 'kept');
outcome('/status/503', 503, 'released');
outcome('/close', 502, 'unknown');
outcome('/error/ok', 200, 'kept');
outcome('/error/status/503', 503, 'released');
outcome('/error/truncate', 502, 'unknown');
outcome('/refused/ok', 200, 'kept');
outcome('/refused/status/503', 503, 'released');
outcome('/refused/close', 502, 'unknown');

# a file, by GET

my %key = ('Idempotency-Key' => new_key());
my $first = http_get('/page.html', \%key);
is($first->status, 200, 'a file');
is($first->header('X-Outcome'), 'EXECUTED', 'kept');
my $retry = http_get('/page.html', \%key);
is($retry->body, "page\n", 'replayed');
is($retry->header('Idempotent-Replayed'), 'true', 'says so');



=== TEST 9: a gateway that is not one of nginx's upstreams
--- modules: lua
--- config
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /lua/ {
        content_by_lua_block {
            local status = tonumber(ngx.var.arg_status)
            local socket = ngx.socket.tcp()

            socket:connect("127.0.0.1", $TEST_NGINX_APP_PORT)
            socket:send("GET /ok?op=" .. ngx.var.arg_op .. " HTTP/1.0\r\n\r\n")
            socket:receive("*a")

            ngx.status = status
            ngx.say("lua")
        }
    }
--- client
# what it sent to whom is not known: its status is all there is

outcome('/lua/x?status=200', 200, 'kept');
outcome('/lua/x?status=404', 404, 'kept');
outcome('/lua/x?status=503', 503, 'released');
outcome('/lua/x?status=502', 502, 'unknown');
outcome('/lua/x?status=504', 504, 'unknown');
