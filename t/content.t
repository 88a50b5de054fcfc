# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Whatever makes the response (a proxied application of any protocol, files,
# dav, Lua, or a location reached by an internal redirect), it runs once, and
# its response is kept and replayed.  What answers before access control, as
# "return" does, is not covered.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub own { qw(Date Connection Idempotent-Replayed X-Original-Request-Time) }
sub framing { own(), qw(Content-Length Transfer-Encoding) }


sub twice
{
    my ($method, $uri, $body, %headers) = @_;

    $headers{'Idempotency-Key'} = new_key();

    return map { http_request($method, $uri, $body, \%headers) } 1 .. 2;
}


sub is_replay
{
    my ($first, $retry, $name, @less) = @_;

    @less = own() if !@less;

    is($first->header('Idempotent-Replayed'), undef, "$name: the first ran");
    is($retry->header('Idempotent-Replayed'), 'true', "$name: replayed");
    is($retry->status . ' ' . $retry->reason,
       $first->status . ' ' . $first->reason, "$name: same status line");
    is($retry->header_lines(@less), $first->header_lines(@less),
       "$name: same headers");
    ok($retry->body eq $first->body, "$name: same body");
}


sub content_of
{
    my $name = shift;

    open my $in, '<', "$ENV{TEST_NGINX_SERVROOT}/html/$name" or return undef;
    local $/;
    return scalar <$in>;
}


# files that request bodies were read into; they go when the request does

sub bodies_left
{
    my @left = glob "$ENV{TEST_NGINX_SERVROOT}/client_body_temp/*";

    return scalar @left;
}

run_tests();

__DATA__

=== TEST 1: FastCGI
--- config
    idempotency        $TEST_STORE;
    fastcgi_param      REQUEST_METHOD  $request_method;
    fastcgi_param      REQUEST_URI     $request_uri;
    fastcgi_param      CONTENT_LENGTH  $content_length;
    location / {
        fastcgi_pass   127.0.0.1:$TEST_NGINX_FCGI_PORT;
    }
    location /unbuffered/ {
        fastcgi_pass   127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_buffering  off;
    }
    location /kept/ {
        fastcgi_pass   127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_keep_conn  on;
    }
--- client
for my $where ('', '/unbuffered', '/kept') {
    my ($first, $retry) = twice('POST', "$where/headers", 'hello');
    is($first->status . $first->reason, '201Made It', "'$where': ran");
    is_replay($first, $retry, "'$where' headers", framing());
    is(app_count("$where/headers", peer => 'fastcgi'), 1, "'$where': once");

    ($first, $retry) = twice('PUT', "$where/echo", 'hello');
    is($first->json->{length}, 5, "'$where': the body got there");
    is_replay($first, $retry, "'$where' echo", framing());

    ($first, $retry) = twice('POST', "$where/size?n=300000", '');
    is(length $first->body, 300000, "'$where': large");
    is_replay($first, $retry, "'$where' large", framing());

    is_replay(twice('DELETE', "$where/204", undef), "'$where' 204");

    ($first, $retry) = twice('POST', "$where/status/503", 'x');
    is($retry->header('Idempotent-Replayed'), undef, "'$where' 503 not kept");
}
--- no_error_log
[error]



=== TEST 2: SCGI and uwsgi
--- config
    idempotency       $TEST_STORE;
    location /scgi {
        scgi_pass     127.0.0.1:$TEST_NGINX_PORT_2;
        scgi_param    REQUEST_METHOD  $request_method;
    }
    location /uwsgi {
        uwsgi_pass    127.0.0.1:$TEST_NGINX_PORT_2;
        uwsgi_param   REQUEST_METHOD  $request_method;
    }
--- client
my $app = IO::Socket::INET->new(LocalAddr => '127.0.0.1', ReuseAddr => 1,
                                LocalPort => $ENV{TEST_NGINX_PORT_2},
                                Listen => 5) or die "listen: $!";

for my $what ('scgi', 'uwsgi') {
    my %key = ('Idempotency-Key' => new_key());
    my $c = send_post("/$what", 'a body', \%key);

    # the body comes last in both
    my $request = $app->accept or die "accept: $!";
    my $got = '';
    while ($got !~ /a body$/) {
        sysread $request, $got, 4096, length $got or last;
    }

    print $request "Status: 201 Made It\r\nContent-Type: text/plain\r\n"
                   . "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\n"
                   . ('x' x 100_000);
    close $request;

    my $first = $c->read_response;
    is($first->status, 201, "$what: ran");
    is(length $first->body, 100_000, "$what: whole");

    # nobody accepts this time
    is_replay($first, http_post("/$what", 'a body', \%key), $what, framing());
}
--- no_error_log
[error]



=== TEST 3: files
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD POST;
    location / { }
    location /threads/ {
        alias     html/;
        aio       threads;
        sendfile  on;
    }
    location /tried/ {
        try_files  /nothing.txt /large.txt =404;
    }
    location /elsewhere/ {
        try_files  /nothing.txt /large.txt;
    }
    location /listed/ {
        alias      html/dir/;
        autoindex  on;
    }
--- user_files eval
">>> large.txt\n" . ('0123456789abcde' x 20_000) . "\n"
. ">>> dir/index.html\nindex\n>>> empty.txt\n"
--- client
my ($first, $retry);

for my $uri ('/large.txt', '/threads/large.txt', '/tried/a', '/elsewhere/a') {
    ($first, $retry) = twice('GET', $uri);
    is($first->status, 200, "$uri: found");
    is(length $first->body, 300_001, "$uri: whole");
    is_replay($first, $retry, $uri);
    is_replay(twice('HEAD', $uri), "HEAD $uri");
}

is_replay(twice('GET', '/empty.txt'), 'an empty file');

($first, $retry) = twice('GET', '/dir/');
is($first->body, "index\n", 'index');
is_replay($first, $retry, 'index');

($first, $retry) = twice('GET', '/dir');
is($first->status, 301, 'a directory');
is($first->header('Location'), "http://localhost:$port/dir/", 'redirected');
is_replay($first, $retry, 'a directory');

# a condition at first: what it made of it

my $etag = http_get('/large.txt')->header('ETag');
($first, $retry) = twice('GET', '/large.txt', undef, 'If-None-Match' => $etag);
is($first->status, 304, 'not modified');
is_replay($first, $retry, 'not modified');

($first, $retry) = twice('GET', '/large.txt', undef, 'If-Match' => '"other"');
is($first->status, 412, 'no match');
is($retry->status, 412, 'no match, again');

# the file of then, not of now

my %key = ('Idempotency-Key' => new_key());
$first = http_get('/dir/index.html', \%key);
open my $out, '>', "$ENV{TEST_NGINX_SERVROOT}/html/dir/index.html";
print $out "another\n";
close $out;
is_replay($first, http_get('/dir/index.html', \%key), 'a changed file');
is(http_get('/dir/index.html')->body, "another\n", 'which did change');



=== TEST 4: dav
--- config
    location / {
        idempotency   $TEST_STORE;
        idempotency_methods  PUT DELETE MKCOL MOVE COPY;
        dav_methods   PUT DELETE MKCOL MOVE COPY;
        create_full_put_path  on;
    }
    location /limited/ {
        idempotency   $TEST_STORE;
        dav_methods   PUT;
        client_body_buffer_size  1k;
        create_full_put_path  on;
    }
--- client
my ($first, $retry);

($first, $retry) = twice('PUT', '/put/small.txt', 'hello');
is($first->status, 201, 'made');
is(content_of('put/small.txt'), 'hello', 'and there');
is_replay($first, $retry, 'PUT');

($first, $retry) = twice('PUT', '/put/small.txt', 'hello again');
is($first->status, 204, 'changed');
is(content_of('put/small.txt'), 'hello again', 'and there');
is_replay($first, $retry, 'PUT again');

($first, $retry) = twice('PUT', '/limited/large.txt', 'x' x 200_000);
is($first->status, 201, 'large');
is(length content_of('limited/large.txt'), 200_000, 'large: and there');
is_replay($first, $retry, 'PUT, large');

($first, $retry) = twice('PUT', '/put/empty.txt', '');
is($first->status, 201, 'empty');
is(content_of('put/empty.txt'), '', 'empty: and there');
is_replay($first, $retry, 'PUT, empty');

my %chunked = ('Transfer-Encoding' => 'chunked');
($first, $retry) = twice('PUT', '/put/chunked.txt',
                         "5\r\nhello\r\n0\r\n\r\n", %chunked);
is($first->status, 201, 'chunked');
is(content_of('put/chunked.txt'), 'hello', 'chunked: and there');
is_replay($first, $retry, 'PUT, chunked');

# a replay does not write

my %key = ('Idempotency-Key' => new_key());
is(http_put('/put/once.txt', 'hello', \%key)->status, 201, 'once');
unlink "$ENV{TEST_NGINX_SERVROOT}/html/put/once.txt";
is(http_put('/put/once.txt', 'hello', \%key)->status, 201, 'twice');
is(content_of('put/once.txt'), undef, 'written once');

# without a replay the second of these would be an error

($first, $retry) = twice('DELETE', '/put/small.txt');
is($first->status, 204, 'deleted');
is_replay($first, $retry, 'DELETE');

($first, $retry) = twice('MKCOL', '/col/');
is($first->status, 201, 'a collection');
is_replay($first, $retry, 'MKCOL');

($first, $retry) = twice('MOVE', '/put/chunked.txt', undef,
                         Destination => '/put/moved.txt');
is($first->status, 204, 'moved');
is(content_of('put/moved.txt'), 'hello', 'moved: and there');
is_replay($first, $retry, 'MOVE');

# what COPY and MOVE do is in their header, too

for my $method (qw(COPY MOVE)) {
    my %key = ('Idempotency-Key' => new_key());
    my $ask = sub { http_request($method, '/put/empty.txt', undef, { %key, @_ }) };
    my $other = "$ENV{TEST_NGINX_SERVROOT}/html/put/other-$method.txt";

    $first = $ask->(Destination => "/put/$method.txt", Overwrite => 'F');
    is($first->status, 204, "$method: once");
    is($ask->(Destination => "/put/other-$method.txt", Overwrite => 'F')->error_code, 'IDEMPOTENCY_CONFLICT',
       "$method to another destination");
    ok(!-e $other, '... where nothing is');
    is($ask->(Destination => "/put/$method.txt", Overwrite => 'T')->error_code, 'IDEMPOTENCY_CONFLICT',
       "$method that may overwrite");
    is($ask->(Destination => "/put/$method.txt", Overwrite => 'F', Depth => 0)->error_code, 'IDEMPOTENCY_CONFLICT',
       "$method of another depth");
    is_replay($first, $ask->(Destination => "/put/$method.txt", Overwrite => 'F'), "$method: the same again");
}

# ... and nothing else does so

my %put = ('Idempotency-Key' => new_key());
$first = http_put('/put/dest.txt', 'x', { %put, Destination => '/a' });
is($first->status, 201, 'PUT');
is_replay($first, http_put('/put/dest.txt', 'x', { %put, Destination => '/b' }), 'PUT, with another Destination');

# nothing is left behind

ok(wait_for(sub { !bodies_left() }, 5), 'no file left behind');
--- no_error_log
[error]



=== TEST 5: dav does not write what is refused
--- config
    location / {
        idempotency   $TEST_STORE;
        dav_methods   PUT;
    }
    location /denied/ {
        idempotency   $TEST_STORE;
        dav_methods   PUT;
        deny          all;
    }
--- client
my ($first, $retry) = twice('PUT', '/denied/a.txt', 'hello');

is($first->status, 403, 'refused');
is($retry->status, 403, 'again');
is(content_of('denied/a.txt'), undef, 'nothing written');

# a conflict writes nothing, and leaves nothing

my %key = ('Idempotency-Key' => new_key());
is(http_put('/a.txt', 'hello', \%key)->status, 201, 'written');
$retry = http_put('/a.txt', 'other', \%key);
is($retry->error_code, 'IDEMPOTENCY_CONFLICT', 'conflict');
is(content_of('a.txt'), 'hello', 'not written over');

ok(wait_for(sub { !bodies_left() }, 5), 'no file left behind');



=== TEST 6: return is not covered, unless a redirect led there
--- http_config
    log_format  status  '$uri [$idempotency_status]';
--- config
    access_log   logs/access.log status;
    idempotency  $TEST_STORE;
    location = /return {
        return      200 "$request_id\n";
        add_header  X-Status "[$idempotency_status]" always;
    }
    location = /if {
        if ($request_method = POST) {
            return  201 "$request_id\n";
        }
    }
    location /proxy/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /internal {
        internal;
        idempotency  off;
        return      202 "$request_id\n";
    }
    location = /tried {
        try_files   /nothing @named;
    }
    location = /no-content {
        internal;
        return      204;
    }
    location @named {
        return      203 "$request_id\n";
    }
    location = /error {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/status/404;
        proxy_intercept_errors  on;
        error_page  404 =404 /error.html;
    }
    location = /error.html { }
    location = /file {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/accel?to=/sent;
    }
    location = /sent {
        internal;
        alias       html/error.html;
    }
--- user_files
>>> error.html
a page
--- client
for my $uri ('/return', '/if') {
    my ($first, $retry) = twice('POST', $uri, 'x');

    like($first->body, qr/^[0-9a-f]{32}$/, "$uri: answers");
    isnt($retry->body, $first->body, "$uri: each time anew");
    is($retry->header('Idempotent-Replayed'), undef, "$uri: no replay");
    is($first->header('X-Status'), '[]', "$uri: no status") if $uri eq '/return';
    access_log_like(qr/^$uri \[-\]\n$uri \[-\]$/m, "$uri: none in the log");
}

# not even what is wrong with the key
is(http_post('/return', 'x', { 'Idempotency-Key' => 'a b' })->status, 200,
   'the key is not looked at');

my ($first, $retry) = twice('POST', '/proxy/accel?to=/internal&op=a', 'x');
is($first->status, 202, 'X-Accel-Redirect');
like($first->body, qr/^[0-9a-f]{32}$/, 'X-Accel-Redirect: to a return');
is_replay($first, $retry, 'X-Accel-Redirect');
is(app_count('a'), 1, 'X-Accel-Redirect: ran once');
access_log_like(qr/\[EXECUTED\]\n.* \[REPLAYED\]$/, 'X-Accel-Redirect: said');

($first, $retry) = twice('POST', '/proxy/accel?to=/no-content', 'x');
is($first->status, 204, 'X-Accel-Redirect to 204');
is_replay($first, $retry, 'X-Accel-Redirect to 204');

($first, $retry) = twice('POST', '/tried', 'x');
is($first->status, 203, 'try_files');
is($retry->header('Idempotent-Replayed'), undef,
   'try_files, to a return in a named location: before begin');
is($retry->status, 203, 'try_files: each time anew');

($first, $retry) = twice('POST', '/error', 'x');
is($first->status, 404, 'error_page');
is($first->body, "a page\n", 'error_page: a file');
is_replay($first, $retry, 'error_page, to a file');

($first, $retry) = twice('POST', '/file', 'x');
is($first->status, 200, 'X-Accel-Redirect to a file');
is($first->body, "a page\n", 'X-Accel-Redirect to a file: sent');
is_replay($first, $retry, 'X-Accel-Redirect to a file');



=== TEST 7: Lua
--- modules: lua
--- config
    idempotency  $TEST_STORE;
    location = /say {
        content_by_lua_block {
            ngx.status = 201
            ngx.header["Set-Cookie"] = {"a=1", "b=2"}
            ngx.header["X-Body"] = ngx.req.get_body_data()
            ngx.say(ngx.var.request_id)
            ngx.flush(true)
            ngx.sleep(0.01)
            ngx.print(string.rep("x", 100000))
            ngx.flush(true)
            ngx.say("end")
        }
    }
    location = /exit {
        content_by_lua_block {
            ngx.header["X-Id"] = ngx.var.request_id
            return ngx.exit(204)
        }
    }
    location = /redirect {
        content_by_lua_block { return ngx.redirect("/there", 303) }
    }
    location = /exec {
        content_by_lua_block { return ngx.exec("/proxy/headers?op=exec") }
    }
    location = /capture {
        content_by_lua_block {
            local res = ngx.location.capture("/proxy/ok?op=capture",
                            { method = ngx.HTTP_POST, body = "x" })
            ngx.say(res.status, " ", res.body)
        }
    }
    location = /fail {
        content_by_lua_block { return ngx.exit(503) }
    }
    location /proxy/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /changed/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        header_filter_by_lua_block {
            ngx.header["X-Lua"] = (ngx.header["X-Lua"] or "") .. "+"
            ngx.header["Content-Length"] = nil
        }
        body_filter_by_lua_block {
            ngx.arg[1] = string.gsub(ngx.arg[1], "run", "run run")
        }
    }
--- client
my ($first, $retry) = twice('POST', '/say', 'hello');

is($first->status, 201, 'content_by_lua');
is($first->header('X-Body'), 'hello', 'it got the body');
like($first->body, qr/^[0-9a-f]{32}\nx+end\n$/, 'from the first to the last');
is(length $first->body, 33 + 100_000 + 4, 'whole');
is_replay($first, $retry, 'content_by_lua', framing());

($first, $retry) = twice('POST', '/exit', 'x');
is($first->status, 204, 'ngx.exit');
is_replay($first, $retry, 'ngx.exit');

($first, $retry) = twice('POST', '/redirect', 'x');
is($first->status, 303, 'ngx.redirect');
is_replay($first, $retry, 'ngx.redirect');

($first, $retry) = twice('POST', '/exec', 'x');
is($first->header('Location'), '/things/1', 'ngx.exec');
is_replay($first, $retry, 'ngx.exec');
is(app_count('exec'), 1, 'ngx.exec: ran once');

($first, $retry) = twice('POST', '/capture', 'x');
is($first->body, "200 run 1\n\n", 'subrequest');
is_replay($first, $retry, 'subrequest', framing());
is(app_count('capture'), 1, 'subrequest: ran once');

($first, $retry) = twice('POST', '/fail', 'x');
is($retry->status, 503, 'failed');
is($retry->header('Idempotent-Replayed'), undef, 'not kept');

($first, $retry) = twice('POST', '/changed/ok', 'x');
is($retry->header('Idempotent-Replayed'), 'true', 'filters: replayed');
is(app_count('/changed/ok'), 1, 'filters: ran once');



=== TEST 8: a cache beneath
--- http_config
    proxy_cache_path  cache keys_zone=cache:1m;
--- config
    location / {
        idempotency          $TEST_STORE;
        idempotency_methods  GET POST;
        proxy_cache          cache;
        proxy_cache_methods  GET POST;
        proxy_cache_key      $uri;
        proxy_cache_valid    any 1m;
        add_header           X-Cache $upstream_cache_status;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($first, $retry) = twice('POST', '/size?n=300000', 'x');

is($first->header('X-Cache'), 'MISS', 'a miss');
is(length $first->body, 300000, 'whole');
is_replay($first, $retry, 'a miss', own(), 'X-Cache');

my $hit = http_post('/size?n=300000', 'x', { 'Idempotency-Key' => new_key() });

is($hit->header('X-Cache'), 'HIT', 'another key: from the cache');
is($hit->body, $first->body, 'the same');
is(app_count('/size'), 1, 'ran once');

# what is in the cache answers conditions; the replay does not

my %key = ('Idempotency-Key' => new_key());
is(http_get('/headers?status=200', \%key)->status, 200, 'first');
is(http_get('/headers?status=200', { %key, 'If-None-Match' => '"v1"' })->status,
   200, 'a replay is not conditional');
--- no_error_log
[error]



=== TEST 9: a server without a location
--- http_config
    server {
        listen        127.0.0.1:$TEST_NGINX_PORT_2;
        root          html;
        idempotency   $TEST_STORE;
        dav_methods   PUT;
    }
--- config
--- client
my @ask = ('PUT', '/server.txt', 'hello', { 'Idempotency-Key' => new_key() },
           port => $ENV{TEST_NGINX_PORT_2});

my $first = http_request(@ask);
is($first->status, 201, 'written');
is(content_of('server.txt'), 'hello', 'and there');
is_replay($first, http_request(@ask), 'PUT');
--- no_error_log
[error]
