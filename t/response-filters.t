# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Filters of nginx that act on a response once it is stored: those that make
# another one of it, those that need a body to answer a HEAD, ranges, and what
# a content handler reads back after it has sent its header.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub own
{
    qw(Date Idempotent-Replayed X-Original-Request-Time Transfer-Encoding)
}


# a replay has Last-Modified at another place, and always a length

sub sorted
{
    my ($response, @less) = @_;

    return join "\n", sort split /\n/, $response->header_lines(own(), @less);
}


# twice with a key, and once without one: what nginx makes of it

sub as_uncovered
{
    my ($method, $uri, $name, %headers) = @_;

    my $plain = http_request($method, $uri, undef, \%headers);

    my $key = new_key();
    my ($first, $retry) = map {
        http_request($method, $uri, undef,
                     { %headers, 'Idempotency-Key' => $key }, timeout => 5)
    } 1, 2;

    for ([ $first, 'the first' ], [ $retry, 'the replay' ]) {
        my ($r, $which) = @$_;

        is($r->status, $plain->status, "$name, $which: status");
        my @less = $plain->header('Content-Length') ? () : 'Content-Length';
        is(sorted($r, @less), sorted($plain, @less),
           "$name, $which: headers");
        ok($r->body eq $plain->body, "$name, $which: body");
    }

    return ($first, $retry);
}


sub gif
{
    return "GIF89a\1\0\1\0\x80\0\0\xff\xff\xff\0\0\0!\xf9\4\0\0\0\0\0,"
           . "\0\0\0\0\1\0\1\0\0\2\2D\1\0;";
}

our $gif = gif();

run_tests();

__DATA__

=== TEST 1: a filter that has another status for a response
--- modules: image_filter
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD POST;
    location / {
        alias         html/;
        image_filter  size;
    }
    location /small/ {
        alias                html/;
        image_filter         rotate 90;
        image_filter_buffer  10;
    }
    location /page/ {
        alias                html/;
        error_page           415 = /error.html;
        image_filter         rotate 90;
        image_filter_buffer  10;
    }
    location /app/ {
        image_filter         rotate 90;
        image_filter_buffer  10;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /error.html { root html; }
--- user_files eval
# of one time: a page that a filter leads to has the Last-Modified of what was
# stored on a replay

[ [ 'it.gif' => $main::gif, '202611170101.01' ],
  [ 'it.txt' => 'no image', '202611170101.01' ],
  [ 'error.html' => "a page\n", '202611170101.01' ] ]
--- client
my ($first, $retry) = as_uncovered('GET', '/it.gif', 'an image');
is($first->status, 200, 'an image: status');
like($first->body, qr/"type": "gif"/, 'an image: what it is');

as_uncovered('GET', '/it.txt', 'none');

($first, $retry) = as_uncovered('GET', '/small/it.gif', 'too large');
is($first->status, 415, 'too large: the status of the filter');

($first, $retry) = as_uncovered('GET', '/page/it.gif', 'with an error_page');
is($first->body, "a page\n", 'with an error_page: it is served');

my %key = ('Idempotency-Key' => new_key());
my @r = map { http_post('/app/size?n=1000&op=app', 'x', \%key) } 1, 2;
is($_->status, 415, 'of an application') for @r;
is(app_count('app'), 1, 'ran once');

# a HEAD

for my $uri (qw(/it.gif /small/it.gif /page/it.gif)) {
    ($first, $retry) = as_uncovered('HEAD', $uri, "HEAD $uri");
}
--- no_error_log
[alert]



=== TEST 2: xslt
--- modules: xslt_filter
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD;
    location / {
        alias            html/;
        types            { text/xml xml; }
        xslt_stylesheet  html/it.xslt;
    }
--- user_files
>>> it.xslt
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:template match="/">seen: <xsl:value-of select="a"/></xsl:template>
</xsl:stylesheet>
>>> it.xml
<a>it</a>
--- client
my ($first, $retry) = as_uncovered('GET', '/it.xml', 'GET');
like($first->body, qr/seen: it/, 'transformed');
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
($first, $retry) = as_uncovered('HEAD', '/it.xml', 'HEAD');
is($first->status, 200, 'HEAD: answered');
is($retry->header('Idempotent-Replayed'), 'true', 'HEAD: replayed');
--- no_error_log
[error]



=== TEST 3: HEAD
--- http_config
    proxy_cache_path  cache keys_zone=heads:1m;
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD;
    location /gzip/ {
        alias            html/;
        gzip             on;
        gzip_min_length  1;
        gzip_types       *;
        gzip_vary        on;
    }
    location /files/ {
        idempotency_max_response  1k;
        alias                     html/;
    }
    location /app/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /cached/ {
        proxy_cache        heads;
        proxy_cache_valid  any 1h;
        proxy_cache_key    $uri$http_idempotency_key;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files eval
">>> it.txt\n" . ('0123456789' x 1000)
--- client
my ($first, $retry) = as_uncovered('HEAD', '/gzip/it.txt', 'gzip',
                                   'Accept-Encoding' => 'gzip');
is($first->header('Content-Encoding'), 'gzip', 'gzip: says so');
is($retry->header('Idempotent-Replayed'), 'true', 'gzip: replayed');

($first, $retry) = as_uncovered('HEAD', '/files/it.txt', 'a file that is large');
is($first->header('Content-Length'), 10_000, 'a large file: its length');
is($retry->header('Idempotent-Replayed'), 'true', 'a large file: replayed');

($first, $retry) = as_uncovered('HEAD', '/files/it.txt', 'a range',
                                Range => 'bytes=5-9');

# a body that a HEAD does not get may break off: it has its header

for my $uri (qw(/cached/truncate /cached/truncate?chunked=1)) {
    my %key = ('Idempotency-Key' => new_key());
    my $r = http_request('HEAD', $uri, undef, \%key, timeout => 5);
    is($r->status, 200, "HEAD $uri");
    $r = http_request('HEAD', $uri, undef, \%key, timeout => 5);
    is($r->status, 409, "HEAD $uri: but its outcome is unknown");
}

# nothing of a body comes before the next response on the connection

for my $uri (qw(/gzip/it.txt /files/it.txt /app/size?n=100000 /cached/size?n=100000
                /cached/size?n=3000000&chunked=1))
{
    my %key = ('Idempotency-Key' => new_key());
    my $c = connect_client();

    for my $try (1, 2) {
        $c->send_part("HEAD $uri HTTP/1.1\r\nHost: localhost\r\n"
                      . "Idempotency-Key: $key{'Idempotency-Key'}\r\n\r\n");
    }
    $c->send_part("GET /app/ok?op=$key{'Idempotency-Key'} HTTP/1.1\r\n"
                  . "Host: localhost\r\nConnection: close\r\n\r\n");

    ok($c->closed(10), "HEAD $uri: closed in the end");
    my $all = $c->read_some(0, 0);
    like($all, qr{\A(?:HTTP/1\.1\ 200\ OK\r\n(?:[^\r\n]+\r\n)+\r\n){3}run\ 1\n\z}x,
         "HEAD $uri: three headers and a body");
}
--- no_error_log
[alert]



=== TEST 4: ranges
--- h2
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD POST;
    location / {
        alias  html/;
    }
    location /none/ {
        alias       html/;
        max_ranges  0;
    }
    location /gzip/ {
        alias            html/;
        gzip             on;
        gzip_min_length  1;
        gzip_types       *;
    }
    location /compressed/ {
        idempotency_compress  on min=0;
        alias                 html/;
    }
    location /app/ {
        proxy_force_ranges  on;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /trailers/ {
        alias        html/;
        add_trailer  X-Trailer here;
    }
--- user_files eval
">>> it.txt\n" . CORE::join('', map { sprintf '%09d,', $_ } 1 .. 10000)
--- client
my $whole = http_get('/it.txt');
my $etag = $whole->header('ETag');

for my $range ('bytes=0-0', 'bytes=70000-80000', 'bytes=-5', 'bytes=99990-',
               'bytes=0-', 'bytes=5-2', 'bytes=1000000-', 'lines=1-2')
{
    my ($first, $retry) = as_uncovered('GET', '/it.txt', $range,
                                       Range => $range);
    is($first->status, 416, 'not satisfiable')
        if $range eq 'bytes=1000000-';
}

as_uncovered('GET', '/it.txt', 'If-Range', Range => 'bytes=7-9',
             'If-Range' => $etag);
as_uncovered('GET', '/it.txt', 'If-Range, other', Range => 'bytes=7-9',
             'If-Range' => '"other"');
as_uncovered('GET', '/it.txt', 'If-Range, time', Range => 'bytes=7-9',
             'If-Range' => $whole->header('Last-Modified'));
as_uncovered('GET', '/none/it.txt', 'no ranges', Range => 'bytes=7-9');
as_uncovered('GET', '/compressed/it.txt', 'compressed', Range => 'bytes=7-9');
as_uncovered('GET', '/gzip/it.txt', 'gzip', Range => 'bytes=7-9',
             'Accept-Encoding' => 'gzip');
as_uncovered('HEAD', '/it.txt', 'HEAD', Range => 'bytes=7-9');
as_uncovered('GET', '/trailers/it.txt', 'trailers', Range => 'bytes=7-9');

# several are too many for what is held: then it is the whole

my %key = ('Idempotency-Key' => new_key(), Range => 'bytes=0-1,5-6');
for my $which ('the first', 'the replay') {
    my $r = http_get('/it.txt', \%key);
    is($r->status, 200, "several, $which: status");
    ok($r->body eq $whole->body, "several, $which: the whole");
}

# nor for a POST

%key = ('Idempotency-Key' => new_key(), Range => 'bytes=0-1');
for my $which ('the first', 'the replay') {
    my $r = http_post('/app/size?n=1000', 'x', \%key);
    is($r->status, 200, "POST, $which: status");
    is(length $r->body, 1000, "POST, $which: the whole");
}

my $h2 = h2_connect();
my $key = new_key();

for my $which ('the first', 'the replay') {
    my $id = $h2->request('GET', '/it.txt', undef,
                          { 'idempotency-key' => $key, range => 'bytes=70000-80000' });
    my $r = $h2->response($id);
    is($r->status, 206, "HTTP/2, $which: status");
    ok($r->body eq substr($whole->body, 70000, 10001), "HTTP/2, $which: bytes");
}
--- no_error_log
[error]



=== TEST 5: autoindex, with names in UTF-8
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET;
    autoindex            on;
    location /utf8/ {
        charset  utf-8;
        alias    html/dir/;
    }
    location /variable/ {
        set      $its UTF-8;
        charset  $its;
        alias    html/dir/;
    }
    location /none/ {
        alias    html/dir/;
    }
    location /other/ {
        charset  iso-8859-1;
        alias    html/dir/;
    }
    location /json/ {
        charset           utf-8;
        autoindex_format  json;
        alias             html/dir/;
    }
--- user_files eval
[ [ 'dir/' . ("\xd1\x84" x 60) . '.txt' => 'x' ],
  [ "dir/\xd1\x84.txt" => 'x' ] ]
--- client
for my $where (qw(utf8 variable none other json)) {
    my ($first, $retry) = as_uncovered('GET', "/$where/", $where);
    is($retry->header('Idempotent-Replayed'), 'true', "$where: replayed");
}

my $r = http_get('/utf8/', { 'Idempotency-Key' => new_key() });
my $body = $r->body;
ok(utf8::decode($body), 'no character is cut in two');
--- no_error_log
[error]



=== TEST 6: another status, for handlers that do not look what filters return
--- modules: perl js echo lua image_filter
--- h2
--- http_config
    js_import it from ../html/it.js;
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET HEAD POST;
    location /perl {
        perl 'sub {
            my $r = shift;
            $r->header_out("Content-Length", 10);
            $r->allow_ranges;
            $r->send_http_header("text/plain");
            return OK if $r->header_only;
            $r->print("01234");
            $r->print("56789");
            return OK;
        }';
    }
    location /off {
        perl 'sub {
            my $r = shift;
            $r->header_out("Content-Length", 10);
            $r->header_out("X-Idempotency-Store", "off");
            $r->allow_ranges;
            $r->send_http_header("text/plain");
            $r->print("0123456789");
            return OK;
        }';
    }
    location /page {
        error_page  416 =200 /page.txt;
        perl 'sub {
            my $r = shift;
            $r->header_out("Content-Length", 10);
            $r->allow_ranges;
            $r->send_http_header("text/plain");
            $r->print("0123456789");
            return OK;
        }';
    }
    location /image/ {
        image_filter         rotate 90;
        image_filter_buffer  10;
        location /image/perl {
            perl 'sub {
                my $r = shift;
                $r->header_out("Content-Length", 20);
                $r->send_http_header("text/plain");
                $r->print("0123456789" x 2);
                return OK;
            }';
        }
        location /image/js {
            js_content  it.all;
        }
        location /image/echo {
            echo_duplicate  2 0123456789;
        }
        location /image/lua {
            content_by_lua_block {
                ngx.header.content_length = 20
                ngx.print("01234567890123456789")
            }
        }
        location /image/eof {
            content_by_lua_block {
                ngx.header.content_length = 20
                ngx.print("01234567890123456789")
                ngx.eof()
                ngx.sleep(0.1)
            }
        }
    }
    location = /page.txt { root html; }
    location /app/ {
        proxy_force_ranges  on;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> page.txt
a page
>>> it.js
function all(r) {
    r.headersOut['Content-Length'] = 20;
    r.status = 200;
    r.sendHeader();
    r.send('0123456789');
    r.send('0123456789');
    r.finish();
}
export default { all };
--- client
for my $uri (qw(/perl /page /app/binary)) {
    for my $range ('bytes=5000-', 'bytes=2-5') {
        my ($first, $retry) = as_uncovered('GET', $uri, "$uri $range",
                                           Range => $range);
        is($retry->header('Idempotent-Replayed'), 'true', "$uri: replayed")
            if $range eq 'bytes=2-5';
    }
}

is(http_get('/perl', { 'Idempotency-Key' => new_key(),
                       Range => 'bytes=5000-' })->status, 416, 'perl: 416');

as_uncovered('HEAD', '/perl', 'HEAD', Range => 'bytes=5000-');

# the connection goes on, and has not a byte too many

my $c = connect_client();
for my $i (1 .. 3) {
    $c->request('GET', '/perl', undef, { 'Idempotency-Key' => new_key(),
                                         Range => 'bytes=5000-' });
    my $r = $c->read_response;
    is($r && $r->status, 416, "request $i of a connection");
    $c->request('GET', '/app/ok', undef, {});
    $r = $c->read_response;
    is($r && $r->status, 200, "... and what comes next");
}

# of another filter

for my $uri (qw(/image/perl /image/js /image/lua /image/eof)) {
    my $key = new_key();
    for my $which ('the first', 'the replay') {
        my $r = http_get($uri, { 'Idempotency-Key' => $key });
        is($r->status, 415, "$uri, $which");
    }
}

# what is not kept

for my $which ('the first', 'the next') {
    my $r = http_get('/off', { 'Idempotency-Key' => 'off',
                               Range => 'bytes=5000-' });
    is($r->status, 416, "not kept, $which");
}

my $h2 = h2_connect();
for my $i (1, 2) {
    my $id = $h2->request('GET', '/perl', undef,
                          { 'idempotency-key' => new_key(),
                            range => 'bytes=5000-' });
    is($h2->response($id)->status, 416, 'HTTP/2');
}
--- no_error_log
[alert]



=== TEST 7: a response that a filter makes in place of another is sent, too
--- modules: lua
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET POST;
    location / {
        content_by_lua_block {
            ngx.header["ETag"] = '"abc"'
            ngx.header["Last-Modified"] = "Tue, 17 Nov 2026 09:00:00 GMT"
            ngx.say("x")
        }
    }
--- client
for my $method (qw(GET POST)) {
    my %headers = ('If-Match' => '"other"', 'Idempotency-Key' => new_key());

    is(http_request($method, '/', '', \%headers)->status, 412, "$method: $_")
        for 'the first', 'the same again';
}



=== TEST 8: Last-Modified of a page that a filter leads to
nginx leaves the header of an upstream where it is, and so does a replay of it.
--- modules: image_filter
--- config
    location /page/ {
        idempotency          $TEST_STORE;
        idempotency_methods  GET;
        error_page           415 = /error.html;
        image_filter         rotate 90;
        image_filter_buffer  10;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /error.html { root html; }
--- user_files eval
[ [ 'error.html' => "a page\n", '202611170101.01' ] ]
--- client
my $header = 'Last-Modified:%20Tue,%2003%20Nov%202026%2009:00:00%20GMT';
my ($first, $retry) = as_uncovered('GET', "/page/size?n=1000&op=a&header=$header",
                                   'an upstream');

is($first->body, "a page\n", 'the page');
is($_->header('Last-Modified'), 'Tue, 03 Nov 2026 09:00:00 GMT',
   'with what the upstream said') for $first, $retry;



=== TEST 9: image_filter and refusals
A refusal is no image, and is sent as it is; so is nginx's own page of it.
--- modules: image_filter
--- config
    idempotency           $TEST_STORE;
    idempotency_required  on;

    location / {
        image_filter  test;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        image_filter            test;
        idempotency_error_body  off;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /again/ {
        image_filter            test;
        idempotency_error_body  off;
        error_page              400 409 @again;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @again {
        image_filter  test;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where ('', '/off', '/again') {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "$where/ok?op=$key{'Idempotency-Key'}";

    is(http_post($uri, 'x', \%key)->status, 415, "$where: no image");

    my $none = http_post($uri, 'x');
    my $other = http_post($uri, 'y', \%key);

    is($none->status, 400, "$where: no key");
    is($other->status, 409, "$where: a conflict");

    if ($where eq '') {
        is($none->error_code, 'IDEMPOTENCY_KEY_MISSING', 'no key: a problem');
        is($other->error_code, 'IDEMPOTENCY_CONFLICT', 'conflict: a problem');
    }

    is(app_count($key{'Idempotency-Key'}), 1, "$where: ran once");
}
