# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# nginx's filters treat a replay as any response, and once: what is stored is
# what the application said, before compression, added headers, substitutions.
# And what the client asks for beside its request (a range, a condition) does
# not change what it gets back.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

use Compress::Zlib ();

sub own { qw(Date Connection Idempotent-Replayed X-Original-Request-Time) }
sub framing { own(), qw(Content-Length Transfer-Encoding) }


# the same request once for each set of headers

sub tries
{
    my ($method, $uri, @headers) = @_;

    my $key = new_key();
    my $body = $method eq 'GET' ? undef : 'x';

    return map { http_request($method, $uri, $body,
                              { 'Idempotency-Key' => $key, %$_ }) } @headers;
}


sub replayed { $_[0]->header('Idempotent-Replayed') || 'no' }


sub same
{
    my ($first, $retry, $name, @less) = @_;

    is(replayed($first), 'no', "$name: the first ran");
    is(replayed($retry), 'true', "$name: replayed");
    is($retry->status, $first->status, "$name: same status");
    is($retry->header_lines(@less ? @less : own()),
       $first->header_lines(@less ? @less : own()), "$name: same headers");
    ok($retry->body eq $first->body, "$name: same body");
}


# bytes 2 to 4 of a response that has ranges

sub part
{
    my ($whole, $part, $name, $replayed) = @_;

    is(replayed($part), $replayed || 'true', "$name: replayed");
    is($whole->header('Accept-Ranges'), 'bytes', "$name: there are ranges");
    is($part->status, 206, "$name: partial");
    is($part->body, substr($whole->body, 2, 3), "$name: its bytes");
    is($part->header('Content-Range'), 'bytes 2-4/' . length $whole->body,
       "$name: which they are");
    is($part->header('Content-Length'), 3, "$name: how many");
    is($part->header_lines(framing(), qw(Accept-Ranges Content-Range)),
       $whole->header_lines(framing(), 'Accept-Ranges'),
       "$name: same headers otherwise");
}

run_tests();

__DATA__

=== TEST 1: gzip and gunzip, for each client anew
--- config
    idempotency          $TEST_STORE;
    location / {
        gzip             on;
        gzip_types       *;
        gzip_min_length  1;
        gzip_vary        on;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /typed/ {
        gzip             on;
        gzip_types       application/json;
        gzip_min_length  1;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /gunzip/ {
        gunzip           on;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $gzip = { 'Accept-Encoding' => 'gzip' };
my $etag = 'header=ETag:%20%22v%22';
my $less = [ framing(), qw(Content-Encoding ETag) ];

for my $order ([ $gzip, {}, $gzip ], [ {}, $gzip, {} ]) {
    my @r = tries('POST', "/size?n=50000&$etag", @$order);

    for my $i (0 .. 2) {
        my $zipped = $order->[$i] == $gzip;
        my $name = 'try ' . ($i + 1) . ($zipped ? ' (gzip)' : ' (plain)');

        is(replayed($r[$i]), $i ? 'true' : 'no', "$name: ran once");
        is($r[$i]->header('Content-Encoding'), $zipped ? 'gzip' : undef,
           "$name: Content-Encoding");
        is_deeply([ $r[$i]->header('Vary') ], [ 'Accept-Encoding' ],
                  "$name: Vary, once");
        is($r[$i]->header('ETag'), $zipped ? 'W/"v"' : '"v"', "$name: ETag");

        my $body = $r[$i]->body;
        $body = Compress::Zlib::memGunzip($body) if $zipped;
        is(length $body, 50000, "$name: whole");
        like($body, qr/^run \d /, "$name: and the right one");
        is($r[$i]->header_lines(@$less), $r[0]->header_lines(@$less),
           "$name: other headers");
    }
}

# by media type, whatever its parameters

for my $type ('application/json', 'application/json;%20charset=utf-8') {
    my @r = tries('POST', "/typed/size?n=5000&type=$type", $gzip, {}, $gzip);

    is($r[0]->header('Content-Encoding'), 'gzip', "$type: compressed");
    is($r[1]->header('Content-Encoding'), undef, "$type: plain");
    same($r[0], $r[2], "$type: compressed again");
}

# what the application encoded stays as it is

for my $where ('', '/plain') {
    my @r = tries('POST', "$where/gzip", $gzip, $gzip, {});

    like($r[0]->body, qr/^\x1f\x8b/, "'$where', encoded by the application");
    like(Compress::Zlib::memGunzip(my $copy = $r[0]->body), qr/^run 1 z+$/,
         "'$where': once");
    same($r[0], $r[1], "'$where', encoded by the application");
    same($r[0], $r[2], "'$where', whatever the client takes");
}

# and is decoded for those who can't do it

my @r = tries('POST', '/gunzip/gzip', {}, $gzip, {});

like($r[0]->body, qr/^run 1 z+$/, 'gunzip: the first');
is($r[1]->header('Content-Encoding'), 'gzip', 'gunzip: a replay as it was');
like(Compress::Zlib::memGunzip(my $copy = $r[1]->body), qr/^run 1 z+$/,
     'gunzip: as it was');
same($r[0], $r[2], 'gunzip: a replay decoded', framing());
--- no_error_log
[error]



=== TEST 2: headers that nginx adds are added once
--- config
    idempotency        $TEST_STORE;
    location / {
        add_header     X-Added   on-success;
        add_header     X-Always  $idempotency_status always;
        add_header     Set-Cookie  nginx=1;
        expires        epoch;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /max/ {
        expires        max;
        charset        utf-8;
        source_charset utf-8;
        charset_types  text/plain;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /as-is/ {
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /rewritten/ {
        proxy_redirect     /things/  /things/of/;
        proxy_cookie_path  /  /api/;
        proxy_hide_header  X-Repeated;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($first, $retry, $more) = tries('POST', '/headers', {}, {}, {});

same($first, $retry, 'add_header', own(), 'X-Always');
is_deeply([ $retry->header('X-Added') ], [ 'on-success' ], 'add_header');
is_deeply([ $first->header('X-Always') ], [ 'EXECUTED' ], 'of the first');
is_deeply([ $retry->header('X-Always') ], [ 'REPLAYED' ], 'of the replay');
is(scalar(my @cookies = $retry->header('Set-Cookie')), 3, 'one cookie more');
is_deeply([ $retry->header('Cache-Control') ], [ 'no-cache' ], 'expires');
is(scalar(my @expires = $retry->header('Expires')), 1, 'Expires once');
same($first, $more, 'and again', own(), 'X-Always');

($first, $retry) = tries('POST', '/status/404', {}, {});
is($retry->header('X-Added'), undef, '404: not added');
is_deeply([ $retry->header('X-Always') ], [ 'REPLAYED' ], '404: always');

# of the application and of nginx

my $app = 'header=Cache-Control:%20private&header=Cache-Control:%20no-store'
          . '&header=Expires:%20Thu,%2001%20Jan%202026%2000:00:00%20GMT';

same(tries('POST', "/ok?$app", {}, {}), 'expires epoch', own(), 'X-Always');
same(tries('POST', "/max/ok?$app", {}, {}), 'expires max');
same(tries('POST', '/max/ok?type=text/html', {}, {}), 'charset');
same(tries('POST', '/max/ok?type=text/html;%20charset=koi8-r', {}, {}),
     "charset of the application's own");

($first, $retry) = tries('POST', "/as-is/ok?$app&type=text/html", {}, {});
same($first, $retry, 'caching, as the application says');
is_deeply([ $retry->header('Cache-Control') ], [ 'private', 'no-store' ],
          'two of Cache-Control');
is($retry->header('Expires'), 'Thu, 01 Jan 2026 00:00:00 GMT', 'its Expires');

($first, $retry) = tries('POST', '/max/ok?type=text/html', {}, {});
is($retry->header('Content-Type'), 'text/html; charset=utf-8', 'one charset');

# nginx has the charset in fields of its own, and the type may be without it

($first, $retry) = tries('POST', '/as-is/ok?type=text/html'
                                 . '&header=X-Accel-Charset:%20utf-8', {}, {});
is($first->header('Content-Type'), 'text/html; charset=utf-8',
   'X-Accel-Charset');
same($first, $retry, 'X-Accel-Charset');
is($retry->header('X-Accel-Charset'), undef, 'not for the client');

($first, $retry) = tries('POST', '/as-is/ok?type=text/html;%20charset=koi8-r'
                                 . '&header=Content-Type:%20text/plain',
                         {}, {});

# up to nginx 1.22 the last type counts, with the charset of the first; then the
# first of them

is($first->header('Content-Type'),
   ($Test::Nginx::Util::NginxVersion < 1.023 ? 'text/plain' : 'text/html')
   . '; charset=koi8-r', 'Content-Type twice');
same($first, $retry, 'Content-Type twice');

same(tries('POST', '/max/ok?type=text/html;%20charset=', {}, {}),
     'an empty charset');

($first, $retry) = tries('POST', '/rewritten/headers', {}, {});
same($first, $retry, 'rewritten');
is($retry->header('Location'), "http://localhost:$port/things/of/1",
   'Location rewritten once');
is(($retry->header('Set-Cookie'))[0], 'a=1; Path=/api/; HttpOnly',
   'Set-Cookie rewritten once');
is($retry->header('X-Repeated'), undef, 'hidden by the proxy');
--- no_error_log
[error]



=== TEST 3: bodies that nginx changes are changed once
--- http_config
    server {
        listen  127.0.0.1:$TEST_NGINX_PORT_2;
        location / {
            return 200 '[<!--# include virtual="/inc.txt" -->]';
        }
    }
--- config
    idempotency           $TEST_STORE;
    location /sub/ {
        sub_filter        'run '  'run run ';
        sub_filter_once   off;
        sub_filter_types  *;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /add/ {
        add_before_body   /inc.txt;
        add_after_body    /inc.txt;
        addition_types    *;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ssi/ {
        ssi               on;
        ssi_types         *;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location = /inc.txt { }
--- user_files
>>> inc.txt
included
--- client
my ($first, $retry) = tries('POST', '/sub/ok', {}, {});
is($first->body, "run run 1\n", 'sub_filter: the first');
same($first, $retry, 'sub_filter', framing());

($first, $retry) = tries('POST', '/add/ok', {}, {});
is($first->body, "included\nrun 1\nincluded\n", 'addition: the first');
same($first, $retry, 'addition', framing());

($first, $retry) = tries('POST', '/ssi/', {}, {});
is($first->body, "[included\n]", 'ssi: the first');
same($first, $retry, 'ssi', framing());

is(app_count('/sub/ok') + app_count('/add/ok'), 2, 'each ran once');
--- no_error_log
[error]



=== TEST 4: ranges and conditions
--- config
    idempotency           $TEST_STORE;
    idempotency_methods   GET POST;
    location / {
        proxy_force_ranges  on;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /file/ {
        alias  html/;
    }
--- user_files
>>> it.txt
0123456789
--- client
my @asks = (
    { 'Range' => 'bytes=2-4' },
    { 'If-None-Match' => '*' },
    { 'If-None-Match' => '"v1"' },
    { 'If-Match' => '"other"' },
    { 'If-Modified-Since' => 'Wed, 28 Jan 2026 10:00:00 GMT' },
    { 'If-Unmodified-Since' => 'Mon, 28 Jan 2013 10:00:00 GMT' },
    { 'Range' => 'bytes=2-4', 'If-Range' => '"v1"' },
);

for my $what ([ 'POST', '/headers', 201 ], [ 'POST', '/headers?status=200', 200 ],
              [ 'GET', '/headers?status=200', 200 ],
              [ 'GET', '/file/it.txt', 200 ])
{
    my ($method, $uri, $status) = @$what;

    my ($first, @replays) = tries($method, $uri, {}, @asks);
    is($first->status, $status, "$method $uri: the first");

    if ($uri =~ /file/) {
        is($first->body, "0123456789\n", 'a file');
        my $etag = $first->header('ETag');
        my $time = $first->header('Last-Modified');
        ok($etag && $time, 'with an ETag and a time');

        ($first, @replays) = tries($method, $uri, {}, @asks[0 .. 1],
                                   { 'If-None-Match' => $etag }, $asks[3],
                                   { 'If-Modified-Since' => $time }, $asks[5],
                                   { 'Range' => 'bytes=2-4',
                                     'If-Range' => $etag });
    }

    for my $i (0 .. $#asks) {
        my $name = "$method $uri, " . join ', ',
                   map { "$_: $asks[$i]{$_}" } sort keys %{ $asks[$i] };

        # the application's ETag is another one for each run

        if ($method eq 'GET' && $asks[$i]{Range}
            && !($asks[$i]{'If-Range'} && $uri !~ /file/))
        {
            part($first, $replays[$i], $name);
            next;
        }

        same($first, $replays[$i], $name);
    }
}

# a range asked for at first: the record has the whole, and a GET its range

for my $what ([ 'POST', '/size?n=1000' ], [ 'GET', '/size?n=1000' ],
              [ 'GET', '/file/it.txt' ])
{
    my ($method, $uri) = @$what;
    my ($first, $retry, $ranged) = tries($method, $uri, $asks[0], {}, $asks[0]);

    if ($method eq 'GET') {
        is($first->status, 206, "$method $uri: the first");
        is(replayed($first), 'no', "$method $uri: the first ran");
        is($retry->status, 200, "$method $uri: the whole");
        is(replayed($retry), 'true', "$method $uri: the whole is replayed");
        part($retry, $first, "$method $uri, range asked for at first", 'no');
        same($first, $ranged, "$method $uri, and again");
        next;
    }

    is($first->status, 200, "$method $uri: the first");
    same($first, $retry, "$method $uri, range asked for at first");
    same($first, $ranged, "$method $uri, and again");
}

# a range of the application's own making

my ($first, $retry) = tries('GET', '/ok?status=206&header=Content-Range:%20'
                                   . 'bytes%202-7/20', $asks[0], $asks[0]);
is($first->status, 206, 'partial, says the application');
same($first, $retry, 'partial, says the application');
is($retry->header('Content-Range'), 'bytes 2-7/20', 'its Content-Range');
--- no_error_log
[error]



=== TEST 5: slow sending, and old clients
--- config
    idempotency         $TEST_STORE;
    proxy_http_version  1.1;
    location / {
        proxy_pass      http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /slowly/ {
        limit_rate      200k;
        proxy_pass      http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($first, $retry) = tries('POST', '/slowly/size?n=250000', {}, {});

is(length $first->body, 250000, 'limit_rate: whole');
same($first, $retry, 'limit_rate');

sub old
{
    my ($key, $how) = @_;

    return http_raw("POST /size?n=70000&op=$key&$how HTTP/1.0\r\n"
                    . "Idempotency-Key: $key\r\nContent-Length: 1\r\n\r\nx");
}

for my $how ('', 'chunked=1', 'nolength=1') {
    my $key = new_key();
    my $old = old($key, $how);

    is(length $old->body, 70000, "HTTP/1.0, '$how': whole");
    is($old->header('Transfer-Encoding'), undef, "HTTP/1.0, '$how': plain");

    my $again = old($key, $how);
    is(replayed($again), 'true', "HTTP/1.0, '$how': replayed");
    is($again->header('Transfer-Encoding'), undef,
       "HTTP/1.0, '$how': still plain");
    ok($again->body eq $old->body, "HTTP/1.0, '$how': the same");
    is(app_count($key), 1, "HTTP/1.0, '$how': ran once");
}

# a client that does not read yet gets all of it when it does

my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=900000';
$first = http_post($uri, 'x', \%key);
my $c = send_post($uri, 'x', \%key);

is(http_post($uri, 'x', \%key)->body, $first->body, 'another meanwhile');
is($c->read_response->body, $first->body, 'all of it in the end');
--- no_error_log
[error]



=== TEST 6: "Server" of the upstream, or none
--- config
    idempotency        $TEST_STORE;
    proxy_pass_header  Server;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $server ([ 'none', '' ], [ 'its own', '&header=Server:%20app', 'app' ],
                [ 'an empty one', '&header=Server:', '' ])
{
    my ($name, $args, $value) = @$server;

    my ($first, $retry) = tries('POST', "/ok?op=server$args", {}, {});

    is($first->header('Server'), $value, "$name: the first");
    same($first, $retry, $name, framing());
}
