# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Subrequests that write while the main response is held: what the client gets
# is in order, with a status line before it, and a retry gets the same or is
# told that it ran.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub own { qw(Date Idempotent-Replayed X-Original-Request-Time) }

our %key;


sub post
{
    my ($uri, $key) = @_;

    return http_post($uri, 'x', { 'Idempotency-Key' => $key });
}


# the response is right, and its retry does not run

sub not_kept
{
    my ($uri, $body, $name) = @_;

    is(post("$uri?off=1", new_key())->body, $body, "$name: what nginx makes");

    my $key = new_key();
    my $first = post($uri, $key);
    my $retry = post($uri, $key);

    like($first->raw, qr{\AHTTP/1\.1 200 }, "$name: a status line");
    is($first->body, $body, "$name: all of it, in order");
    is($retry->status, 507, "$name: was not kept");
    is($retry->error_code, 'RESPONSE_NOT_KEPT', "$name: so is told");
}


sub kept
{
    my ($uri, $body, $name) = @_;

    my $key = new_key();
    my $first = post($uri, $key);
    my $retry = post($uri, $key);

    like($first->raw, qr{\AHTTP/1\.1 200 }, "$name: a status line");
    is($first->body, $body, "$name: all of it, in order");
    is($retry->header('Idempotent-Replayed'), 'true', "$name: replayed");
    is($retry->body, $body, "$name: the same");
}

run_tests();

__DATA__

=== TEST 1: echo_location and its kin
--- modules: echo
--- config
    idempotency  $TEST_STORE;
    idempotency_bypass  $arg_off;
    location = /plain  { echo main; echo_flush; echo after; }
    location = /one    { echo main; echo_flush; echo_location /sub; echo after; }
    location = /first  { echo_location /sub; echo after; }
    location = /two    { echo a; echo_location /sub; echo b; echo_location /app/size?n=3; echo c; }
    location = /sub2   { echo main; echo_subrequest GET /sub; echo after; }
    location = /async  { echo a; echo_location_async /app/slow?ms=200&n=3; echo b;
                         echo_location_async /sub; echo c; }
    location = /last   { echo a; echo_location_async /app/slow?ms=200&n=3; }
    location = /nested { echo a; echo_location /one; echo b; }
    location = /large  { echo a; echo_location /app/size?n=300000; echo b; }
    location = /empty  { echo a; echo_location /nothing; echo b; }
    location = /sub    { echo sub; }
    location = /nothing { echo -n ""; }
    location /app/     { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
--- client
kept('/plain', "main\nafter\n", 'no subrequest');
not_kept('/one', "main\nsub\nafter\n", 'echo_location');
not_kept('/first', "sub\nafter\n", 'echo_location at first');
not_kept('/two', "a\nsub\nb\n" . substr(post('/app/size?n=3', new_key())->body, 0, 3)
         . "c\n", 'two');
not_kept('/sub2', "main\nsub\nafter\n", 'echo_subrequest');
my $first = post('/async', new_key());
like($first->body, qr{\Aa\n(.{3})b\nsub\nc\n\z}s, 'asynchronous: in order');
like($first->raw, qr{\AHTTP/1\.1 200 }, 'asynchronous: a status line');
$first = post('/last', new_key());
like($first->body, qr{\Aa\n.{3}\z}s, 'asynchronous, at the end');
not_kept('/nested', "a\nmain\nsub\nafter\nb\n", 'nested');
my $large = post('/large', new_key());
is(length $large->body, 300_004, 'a large one: all of it');
like($large->body, qr{\Aa\n.+b\n\z}s, 'a large one: in order');
kept('/empty', "a\nb\n", 'one without output');

# keep-alive: nothing is left behind for the next response

my $c = connect_client();
$c->request('POST', '/one', 'x', { 'Idempotency-Key' => new_key() });
my $r = $c->read_response;
is($r->body, "main\nsub\nafter\n", 'the first on a connection');
$c->request('POST', '/plain', 'x', { 'Idempotency-Key' => new_key() });
$r = $c->read_response;
is($r->body, "main\nafter\n", 'the second');
--- no_error_log
[error]



=== TEST 2: echo, over HTTP/2
--- modules: echo
--- h2
--- config
    idempotency  $TEST_STORE;
    location = /one    { echo main; echo_flush; echo_location /sub; echo after; }
    location = /sub    { echo sub; }
--- client
my $h2 = h2_connect();
my $key = new_key();
my $id = $h2->request('POST', '/one', 'x', { 'idempotency-key' => $key });
my $r = $h2->response($id);
is($r->status, 200, 'a status');
is($r->body, "main\nsub\nafter\n", 'in order');
$id = $h2->request('POST', '/one', 'x', { 'idempotency-key' => $key });
is($h2->response($id)->status, 507, 'was not kept');
--- no_error_log
[error]



=== TEST 3: filters of the subrequest, and of the main request
--- modules: echo
--- config
    idempotency  $TEST_STORE;
    idempotency_bypass  $arg_off;
    location = /one {
        sub_filter main MAIN;
        sub_filter_types *;
        sub_filter_once off;
        echo main; echo_flush; echo_location /sub; echo after main;
    }
    location = /sub {
        sub_filter sub "SUB main";
        sub_filter_types *;
        sub_filter_once off;
        echo sub;
    }
    location = /ssi {
        ssi on;
        ssi_types *;
        echo '<!--# include virtual="/inc" -->'; echo_flush; echo_location /sub; echo end;
    }
    location = /inc { echo included; }
    location = /gzip {
        gzip on; gzip_types *; gzip_min_length 1;
        echo main; echo_flush; echo_location /sub; echo after;
    }
--- client
not_kept('/one', "MAINSUB main\n\nafter MAIN\n", 'sub_filter');
not_kept('/ssi', "included\n\nSUB main\nend\n", 'ssi in what was held');

require Compress::Zlib;
my $r = http_post('/gzip', 'x', { 'Idempotency-Key' => new_key(),
                                  'Accept-Encoding' => 'gzip' });
is($r->header('Content-Encoding'), 'gzip', 'gzip');
is(Compress::Zlib::memGunzip($r->body), "main\nSUB main\nafter\n",
   'gzip: in order');
--- no_error_log
[error]



=== TEST 4: ssi and addition, which act on a replay, too
--- config
    idempotency  $TEST_STORE;
    location / {
        ssi on;
        ssi_types *;
        add_before_body /before;
        add_after_body /after;
        addition_types *;
        proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /before { idempotency off; return 200 "before "; }
    location /after  { idempotency off; return 200 " after"; }
--- client
my $key = new_key();
my @r = map { post('/ok?op=a', $key) } 1, 2;
is($r[0]->body, "before run 1\n after", 'the first');
is($r[1]->body, "before run 1\n after", 'the replay');
is($r[1]->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count('a'), 1, 'ran once');
--- no_error_log
[error]



=== TEST 5: subrequests of Lua, which keep their output
--- modules: lua
--- config
    idempotency  $TEST_STORE;
    location = /lua {
        content_by_lua_block {
            ngx.say("a")
            ngx.flush(true)
            local r = ngx.location.capture("/sub")
            ngx.say("b ", r.body)
            local x, y = ngx.location.capture_multi({ { "/sub" }, { "/app/slow?ms=100&op=m" } })
            ngx.say("c ", x.body, y.body)
        }
    }
    location = /threads {
        content_by_lua_block {
            ngx.say("a")
            ngx.flush(true)
            local t = ngx.thread.spawn(function ()
                local r = ngx.location.capture("/app/slow?ms=200&op=t")
                ngx.say("sub ", r.body)
            end)
            ngx.say("b")
            ngx.flush(true)
            ngx.thread.wait(t)
            ngx.say("c")
        }
    }
    location = /sub { content_by_lua_block { ngx.print("sub") } }
    location /app/  { idempotency off; proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT; }
--- client
kept('/lua', "a\nb sub\nc subrun 1\n\n", 'ngx.location.capture');
kept('/threads', "a\nb\nsub run 1\n\nc\n", 'beside another thread');
--- no_error_log
[error]



=== TEST 6: slices of a file
--- http_config
    proxy_cache_path  cache keys_zone=slices:1m;
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET;
    location /cached/ {
        slice                      10k;
        proxy_cache                slices;
        proxy_cache_key            $uri$slice_range;
        proxy_cache_valid          200 206 1h;
        proxy_set_header           Range $slice_range;
        proxy_set_header           Idempotency-Key "";
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_SERVER_PORT/files/;
    }
    location /sliced/ {
        slice                      10k;
        proxy_set_header           Range $slice_range;
        proxy_set_header           Idempotency-Key "";
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_SERVER_PORT/files/;
    }
    location /small/ {
        idempotency_max_response   30k;
        slice                      10k;
        proxy_set_header           Range $slice_range;
        proxy_set_header           Idempotency-Key "";
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_SERVER_PORT/files/;
    }
    location /files/ {
        idempotency  off;
        alias        html/;
    }
--- user_files eval
">>> large.txt\n" . CORE::join('', map { sprintf '%09d,', $_ } 1 .. 5000)
--- client
my $file = http_get('/files/large.txt')->body;
is(length $file, 50_000 + ($file =~ /\n\z/ ? 1 : 0), 'a file');

for my $try (1, 2) {
    my $r = http_get('/cached/large.txt', { 'Idempotency-Key' => new_key() });
    is($r->status, 200, "cached, $try: status");
    ok($r->body eq $file, "cached, $try: bytes");

    my %key = ('Idempotency-Key' => new_key());
    my @r = map { http_get('/sliced/large.txt', \%key) } 1, 2;

    is($r[0]->status, 200, "whole, $try: status");
    ok($r[0]->body eq $file, "whole, $try: bytes");
    is($r[1]->header('Idempotent-Replayed'), 'true', "whole, $try: replayed");
    ok($r[1]->body eq $file, "whole, $try: the same");
    is($r[0]->header('Accept-Ranges'), 'bytes', "whole, $try: ranges");
    is($r[1]->header_lines(own()), $r[0]->header_lines(own()),
       "whole, $try: same headers");

    my $part = http_get('/sliced/large.txt',
                        { %key, Range => 'bytes=15000-25999' });
    is($part->status, 206, "whole, $try: a range of it");
    ok($part->body eq substr($file, 15000, 11000), "whole, $try: right");
}

# a range from the beginning is cut out of the whole; another one is not kept

my %key = ('Idempotency-Key' => new_key(), Range => 'bytes=5-14');
my $r = http_get('/sliced/large.txt', \%key);
is($r->status, 206, 'range in the first slice');
is($r->body, substr($file, 5, 10), 'range in the first slice: right');
$r = http_get('/sliced/large.txt', \%key);
is($r->header('Idempotent-Replayed'), 'true', 'range in the first: kept');
is($r->body, substr($file, 5, 10), 'range in the first slice: right again');

for my $uri ('/sliced/large.txt', '/cached/large.txt') {
    %key = ('Idempotency-Key' => new_key(), Range => 'bytes=9990-20100');

    for my $try ('first', 'again') {
        $r = http_get($uri, \%key);
        is($r->status, 206, "$uri, range over slices, $try");
        ok($r->body eq substr($file, 9990, 10111), "$uri, $try: right");
    }

    is($r->header('Idempotent-Replayed'), 'true', "$uri: kept");
}

%key = ('Idempotency-Key' => new_key(), Range => 'bytes=15000-35999');
$r = http_get('/sliced/large.txt', \%key);
is($r->status, 206, 'range in other slices');
ok($r->body eq substr($file, 15000, 21000), 'range in other slices: right');
$r = http_get('/sliced/large.txt', \%key);
is($r->status, 507, 'range in other slices: was not kept');

# too large to be kept, as its header says

%key = ('Idempotency-Key' => new_key());
$r = http_get('/small/large.txt', \%key);
is($r->status, 200, 'too large');
ok($r->body eq $file, 'too large: whole');
is(http_get('/small/large.txt', \%key)->error_code, 'RESPONSE_TOO_LARGE',
   'too large: refused');
--- no_error_log
[error]



=== TEST 7: a slice that breaks off is no whole response
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET;
    location /sliced/ {
        slice             1000;
        proxy_set_header  Range $slice_range;
        proxy_set_header  Idempotency-Key "";
        proxy_pass        http://127.0.0.1:$TEST_NGINX_PORT_2/files/;
    }
--- http_config
    limit_req_zone  $uri zone=slices:1m rate=1r/m;
    server {
        listen  127.0.0.1:$TEST_NGINX_PORT_2;
        location /files/ {
            alias             html/;
            limit_req         zone=slices burst=1 nodelay;
            limit_req_status  503;
        }
    }
--- user_files eval
">>> large.txt\n" . ('0123456789' x 500)
--- client
my %key = ('Idempotency-Key' => new_key());
my $c = send_request('GET', '/sliced/large.txt', undef, \%key);
my $r = $c->read_response;
ok(!$r || $r->truncated || $r->status >= 500, 'broken off');
my $retry = http_get('/sliced/large.txt', \%key);
is($retry->header('Idempotent-Replayed'), undef, 'not replayed');
is($retry->status, 409, 'its outcome is unknown');



=== TEST 8: a slice that lacks its end
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET;
    location /sliced/ {
        slice             10;
        proxy_set_header  Range $slice_range;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_PORT_2/;
    }
--- client
my $app = IO::Socket::INET->new(Listen => 5, ReuseAddr => 1,
                                LocalAddr => "127.0.0.1:$ENV{TEST_NGINX_PORT_2}")
    or die "listen: $!";
my %key = ('Idempotency-Key' => new_key());
my $c = send_request('GET', '/sliced/it', undef, \%key);

for my $slice ([ '0-9', '0123456789' ], [ '10-19', '01234' ],
               [ '20-29', '0123456789' ])
{
    my ($range, $bytes) = @$slice;
    $app->timeout(10);
    my $s = $app->accept or last;
    my $request = '';
    sysread $s, $request, 4096, length $request
        while $request !~ /\r\n\r\n/;
    syswrite $s, "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\n"
                 . "Content-Range: bytes $range/30\r\nConnection: close\r\n"
                 . "\r\n$bytes";
    close $s;
}

my $r = $c->read_response;
ok(!$r || $r->truncated, 'it lacks something');
my $retry = http_get('/sliced/it', \%key);
is($retry->header('Idempotent-Replayed'), undef, 'not replayed');
is($retry->status, 409, 'its outcome is unknown');
