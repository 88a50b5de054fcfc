# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A key that was used before with another request is refused, and never runs:
# what makes two requests the same, and what does not.  A stored response never
# reaches another identity, and the refusal tells that one nothing.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $location = <<'_EOC_';
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_


# an answer is a conflict, of our own request or of somebody else's

sub is_conflict
{
    my ($r, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is($r->status, 409, "$name: status");
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$name: code");
    is($r->header('Idempotent-Replayed'), undef, "$name: not a replay");
}

sub is_replay
{
    my ($r, $first, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is($r->status, $first->status, "$name: status");
    is($r->body, $first->body, "$name: body");
    is($r->header('Idempotent-Replayed'), 'true', "$name: a replay");
}

sub body_of
{
    my ($boundary, $content) = @_;

    return "--$boundary\r\n"
           . "Content-Disposition: form-data; name=\"a\"\r\n\r\n"
           . "$content\r\n--$boundary--\r\n";
}

sub chunked
{
    my ($uri, $key, @parts) = @_;

    return http_raw("POST $uri HTTP/1.1\r\nHost: localhost\r\n"
                    . "Connection: close\r\nIdempotency-Key: $key\r\n"
                    . "Transfer-Encoding: chunked\r\n\r\n"
                    . join('', map { sprintf "%x\r\n%s\r\n", length, $_ }
                               @parts)
                    . "0\r\n\r\n");
}

run_tests();

__DATA__

=== TEST 1: body, query string, method, host, media type
--- config
    location / {
        idempotency        $TEST_STORE;
        idempotency_scope  all;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @base = ('Content-Type' => 'application/json', 'X-Other' => '1');
my $key = new_key();
my $first = http_post('/ok?op=a&b=1', '{"a":1}', [ 'Idempotency-Key' => $key, @base ]);

is($first->status, 200, 'ran');
is($first->header('Idempotent-Replayed'), undef, 'not a replay');

my $try = sub {
    my ($method, $uri, $body, @headers) = @_;
    return http_request($method, $uri, $body,
                        [ 'Idempotency-Key' => $key, @headers ]);
};

is_conflict($try->('POST', '/ok?op=a&b=1', '{"a":2}', @base), 'body');
is_conflict($try->('POST', '/ok?op=a&b=1', '{"a":1} ', @base), 'longer body');
is_conflict($try->('POST', '/ok?op=a&b=1', '', @base), 'no body');
is_conflict($try->('POST', '/ok?op=a&b=2', '{"a":1}', @base), 'argument');
is_conflict($try->('POST', '/ok?b=1&op=a', '{"a":1}', @base), 'order');
is_conflict($try->('POST', '/ok', '{"a":1}', @base), 'no arguments');
is_conflict($try->('POST', '/ok2?op=a&b=1', '{"a":1}', @base), 'path');
is_conflict($try->('PUT', '/ok?op=a&b=1', '{"a":1}', @base), 'method');
is_conflict($try->('POST', '/ok?op=a&b=1', '{"a":1}', @base,
                   Host => 'other'), 'host');
is_conflict($try->('POST', '/ok?op=a&b=1', '{"a":1}',
                   'Content-Type' => 'text/plain'), 'media type');
is_conflict($try->('POST', '/ok?op=a&b=1', '{"a":1}'), 'no media type');
is_conflict($try->('POST', '/ok?op=a&b=1', '{"a":1}',
                   'Content-Type' => 'application/json; charset=x'),
            'parameter of the media type');

# what does not count
is_replay($try->('POST', '/ok?op=a&b=1', '{"a":1}', 'X-Other' => '2',
                 'Content-Type' => 'application/json'), $first,
          'another header');
is_replay($try->('POST', '/ok?op=a&b=1', '{"a":1}',
                 'Content-Type' => 'Application/JSON'), $first,
          'case of the media type');
is_replay($try->('POST', '/ok?op=a&b=1', '{"a":1}', @base,
                 Host => 'LocalHost'), $first, 'case of the host');

is(app_count('a'), 1, 'ran once');
is(app_count('/ok'), 0, 'nothing else ran');
is(app_count('/ok2'), 0, 'nowhere');

# a conflict left the record as it was
is_replay($try->('POST', '/ok?op=a&b=1', '{"a":1}', @base), $first, 'after');



=== TEST 2: what a conflict tells
--- config eval: $::location
--- client
my %key = ('Idempotency-Key' => new_key());

http_post('/ok?op=a', 'x', { %key, Authorization => 'Bearer one' });

my $r = http_post('/ok?op=a', 'y', { %key, Authorization => 'Bearer one' });

is_conflict($r, 'of the same client');
like($r->json->{error}{details}{original_time},
     qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'tells when the original was');

for my $try ([ 'x', 'same body' ], [ 'y', 'other body' ]) {
    my ($body, $name) = @$try;

    $r = http_post('/ok?op=a', $body, { %key, Authorization => 'Bearer two' });

    is_conflict($r, "another identity, $name");
    is_deeply($r->json->{error}{details}, {}, "$name: tells nothing");
    unlike($r->raw, qr/original/i, "$name: nowhere");
}

is(app_count('a'), 1, 'ran once');



=== TEST 3: who asks
--- config
    location / {
        idempotency           $TEST_STORE;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /cookie/ {
        idempotency           $TEST_STORE;
        idempotency_identity  $cookie_session;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /two/ {
        idempotency           $TEST_STORE;
        idempotency_identity  $http_x_a $http_x_b;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $check = sub {
    my ($uri, $same, $name, @others) = @_;

    my $key = new_key();
    my $op = "$uri" . new_key();
    my $try = sub { http_post("$uri?op=$op", 'x',
                              [ 'Idempotency-Key' => $key, @{ $_[0] } ]) };

    my $first = $try->($same);
    is($first->status, 200, "$name: ran");
    is_replay($try->($same), $first, $name);

    for my $other (@others) {
        is_conflict($try->($other), "$name: not for @$other");
    }

    is(app_count($op), 1, "$name: ran once");
};

$check->('/ok', [ Authorization => 'Bearer a' ], 'Authorization',
         [], [ Authorization => 'Bearer b' ], [ 'X-Api-Key' => 'Bearer a' ],
         [ Authorization => 'bearer a' ],
         [ Authorization => 'Bearer a', 'X-Api-Key' => 'k' ]);

$check->('/ok', [ 'X-Api-Key' => 'k' ], 'X-Api-Key',
         [], [ 'X-Api-Key' => 'l' ], [ Authorization => 'k' ]);

$check->('/ok', [], 'anonymous',
         [ Authorization => 'Basic YTpi' ], [ 'X-Api-Key' => 'k' ]);

$check->('/cookie/ok', [ Cookie => 'a=b; session=1' ], 'cookie',
         [ Cookie => 'session=2' ], [ Cookie => 'a=b' ], []);

# each value counts by itself: a+bc is not ab+c
$check->('/two/ok', [ 'X-A' => 'a', 'X-B' => 'bc' ], 'two values',
         [ 'X-A' => 'ab', 'X-B' => 'c' ], [ 'X-A' => 'abc' ],
         [ 'X-B' => 'abc' ], [ 'X-A' => 'bc', 'X-B' => 'a' ]);

# where the cookie is the identity, a header is not
my %key = ('Idempotency-Key' => new_key(), Cookie => 'session=1');
my $first = http_post('/cookie/ok?op=h', 'x', \%key);
is_replay(http_post('/cookie/ok?op=h', 'x', { %key, Authorization => 'b' }),
          $first, 'a header that is not named');



=== TEST 4: while the holder still runs
--- config eval: $::location
--- client
my %key = ('Idempotency-Key' => new_key(), Authorization => 'a');

my $c = send_post('/hold?op=h', 'x', \%key);
is(app_wait_parked('h'), 1, 'runs');

is_conflict(http_post('/hold?op=h', 'y', \%key), 'body');
is_conflict(http_post('/hold?op=h&a', 'x', \%key), 'query string');
is_conflict(http_put('/hold?op=h', 'x', \%key), 'method');

my $r = http_post('/hold?op=h', 'x', { %key, Authorization => 'b' });
is_conflict($r, 'identity');
is_deeply($r->json->{error}{details}, {}, 'tells nothing');

app_release('h');
is($c->read_response->body, "run 1\n", 'the holder was not disturbed');
is(http_post('/hold?op=h', 'x', \%key)->body, "run 1\n", 'replayed');
is(app_count('h'), 1, 'ran once');



=== TEST 5: a released key is free for another request
--- config eval: $::location
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold?op=h&status=503', 'x', \%key);
is(app_wait_parked('h'), 1, 'runs');
app_release('h');
is($c->read_response->status, 503, 'not kept');

is(http_post('/ok?op=o', 'y', \%key)->status, 200, 'another request may run');
is_conflict(http_post('/hold?op=h&status=503', 'x', \%key), 'the first one');
is(app_count('h'), 1, 'the first ran once');
is(app_count('o'), 1, 'the other ran once');



=== TEST 6: status 422
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_conflict_status  422;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/ok?op=a', 'x', \%key);
my $r = http_post('/ok?op=a', 'y', \%key);

is($r->status, 422, 'status');
is($r->json->{status}, 422, 'in the body');
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'code');
is_replay(http_post('/ok?op=a', 'x', \%key), $first, 'the same request');
is(app_count('a'), 1, 'ran once');



=== TEST 7: a multipart boundary does not count, everything else does
--- config eval: $::location
--- client
my %key = ('Idempotency-Key' => new_key());
my $type = 'multipart/form-data; boundary=';

my $first = http_post('/ok?op=a', body_of('one', 'hello'),
                      { %key, 'Content-Type' => "${type}one" });
is($first->status, 200, 'ran');

for my $b ('two', 'one', 'a-much-longer-boundary-0123456789') {
    is_replay(http_post('/ok?op=a', body_of($b, 'hello'),
                        { %key, 'Content-Type' => "$type$b" }), $first,
              "boundary $b");
}

is_replay(http_post('/ok?op=a', body_of('q', 'hello'),
                    { %key, 'Content-Type' => $type . '"q"' }), $first,
          'a quoted boundary');

is_conflict(http_post('/ok?op=a', body_of('two', 'hellO'),
                      { %key, 'Content-Type' => "${type}two" }), 'content');
is_conflict(http_post('/ok?op=a', body_of('two', '--two'),
                      { %key, 'Content-Type' => "${type}two" }),
            'content like a boundary');
is_conflict(http_post('/ok?op=a', body_of('two', "hello\r\n"),
                      { %key, 'Content-Type' => "${type}two" }),
            'an empty line more');

(my $named = body_of('two', 'hello')) =~ s/name="a"/name="b"/;
is_conflict(http_post('/ok?op=a', $named,
                      { %key, 'Content-Type' => "${type}two" }),
            'header of a part');

is_conflict(http_post('/ok?op=a', body_of('two', 'hello'),
                      { %key, 'Content-Type' => "${type}one" }),
            'a boundary that is not there');
is_conflict(http_post('/ok?op=a', body_of('one', 'hello'),
                      { %key, 'Content-Type' => 'multipart/mixed; boundary=one' }),
            'another media type');
is_conflict(http_post('/ok?op=a', body_of('one', 'hello'),
                      { %key, 'Content-Type' => "${type}one; charset=utf-8" }),
            'another parameter');

# a boundary is one of multipart: in a text it is text
my %text = ('Idempotency-Key' => new_key(), 'Content-Type' => 'text/plain');
http_post('/ok?op=t', body_of('one', 'hello'), \%text);
is_conflict(http_post('/ok?op=t', body_of('two', 'hello'), \%text),
            'not multipart');

is(app_count('a'), 1, 'ran once');
is(app_count('t'), 1, 'the text ran once');



=== TEST 8: without a fingerprint the key alone decides, and who asks
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key(), Authorization => 'a');
my $first = http_post('/ok?op=a', 'x', \%key);

is_replay(http_post('/ok?op=a', 'y', \%key), $first, 'another body');
is_replay(http_post('/ok?op=b', 'y', \%key), $first, 'another query string');
is_conflict(http_post('/ok?op=a', 'x', { %key, Authorization => 'b' }),
            'another identity');

is(app_count('a'), 1, 'ran once');
is(app_count('b'), 0, 'nothing else ran');



=== TEST 9: a changed configuration is not taken for a changed request
--- store: memory
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key(), Authorization => 'a');
my $first = http_post('/ok?op=a', 'x', \%key);

edit_config(sub { s/idempotency_fingerprint  off/idempotency_fingerprint  raw/ });
ok(nginx_reload(), 'reload');

is_replay(http_post('/ok?op=a', 'x', \%key), $first, 'the same request');
is_conflict(http_post('/ok?op=a', 'x', { %key, Authorization => 'b' }),
            'another identity');

# what is stored now is compared
my %new = ('Idempotency-Key' => new_key());
http_post('/ok?op=b', 'x', \%new);
is_conflict(http_post('/ok?op=b', 'y', \%new), 'a new record');

is(app_count('a'), 1, 'ran once');
is(app_count('b'), 1, 'ran once, too');



=== TEST 10: the request URI counts as it was received
--- config
    location / {
        idempotency  $TEST_STORE;
        rewrite      ^/old/(.*)$ /$1 break;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $first = http_post('/a/../a/ok?op=a', 'x', \%key);

is_replay(http_post('/a/../a/ok?op=a', 'x', \%key), $first, 'the same');
is_conflict(http_post('/a/ok?op=a', 'x', \%key), 'normalized');
is_conflict(http_post('/a/../%61/ok?op=a', 'x', \%key), 'escaped');
is_conflict(http_post('/a/../a//ok?op=a', 'x', \%key), 'two slashes');

# rewritten to the same thing, received as another
%key = ('Idempotency-Key' => new_key());
$first = http_post('/old/ok?op=r', 'x', \%key);
is_replay(http_post('/old/ok?op=r', 'x', \%key), $first, 'rewritten');
is_conflict(http_post('/ok?op=r', 'x', \%key), 'not rewritten');

is(app_count('a'), 1, 'ran once');
is(app_count('r'), 1, 'ran once, too');



=== TEST 11: bodies of every size and shape
--- config
    location / {
        idempotency              $TEST_STORE;
        client_body_buffer_size  8k;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /file/ {
        idempotency              $TEST_STORE;
        client_body_in_file_only clean;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /single/ {
        idempotency                   $TEST_STORE;
        client_body_in_single_buffer  on;
        client_body_buffer_size       2m;
        proxy_pass                    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        idempotency              $TEST_STORE;
        proxy_request_buffering  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $megabyte = join '', map { sprintf '%07d ', $_ } 1 .. 131072;
my $sha = sub { require Digest::SHA; Digest::SHA::sha256_hex($_[0]) };

for my $where ('', '/file', '/single', '/unbuffered') {

    for my $body ('', 'x', 'x' x 8192, $megabyte) {
        my $name = "$where/ with " . length($body) . ' bytes';
        my %key = ('Idempotency-Key' => new_key());
        my $uri = "$where/echo?op=" . $key{'Idempotency-Key'};

        my $first = http_post($uri, $body, \%key);
        my $echo = $first->json;

        is($echo->{length}, length $body, "$name: length");
        is($echo->{sha256}, $sha->($body), "$name: arrived");
        is_replay(http_post($uri, $body, \%key), $first, $name);
        is_conflict(http_post($uri, "$body.", \%key), "$name: longer");

        next if $body eq '';

        # the last byte counts as well as the first
        my $other = $body;
        substr($other, -1) = chr(1 + ord substr($other, -1));
        is_conflict(http_post($uri, $other, \%key), "$name: the last byte");

        is(app_count($key{'Idempotency-Key'}), 1, "$name: ran once");
    }
}

# no body at all is a body of no bytes
my $key = new_key();
my $first = http_post('/echo?op=none', '', { 'Idempotency-Key' => $key });
is_replay(http_raw("POST /echo?op=none HTTP/1.1\r\nHost: localhost\r\n"
                   . "Connection: close\r\nIdempotency-Key: $key\r\n\r\n"),
          $first, 'no body');



=== TEST 12: a chunked body is the same body
--- config
    location / {
        idempotency              $TEST_STORE;
        client_body_buffer_size  8k;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();
my $first = chunked('/echo?op=a', $key, 'abc', 'def', 'g');

is($first->json->{length}, 7, 'arrived');
is_replay(chunked('/echo?op=a', $key, 'abc', 'def', 'g'), $first, 'the same');
is_replay(chunked('/echo?op=a', $key, 'a', 'bcdefg'), $first, 'other chunks');
is_replay(http_post('/echo?op=a', 'abcdefg', { 'Idempotency-Key' => $key }),
          $first, 'with a length');
is_conflict(chunked('/echo?op=a', $key, 'abc', 'deg'), 'shorter');
is_conflict(chunked('/echo?op=a', $key, 'abc', 'def', 'h'), 'another byte');
is_conflict(chunked('/echo?op=a', $key), 'empty');

# the other way about, and large enough for a file
$key = new_key();
my $large = join '', map { chr(33 + $_ % 90) } 1 .. 300_000;
$first = http_post('/echo?op=b', $large, { 'Idempotency-Key' => $key });
is_replay(chunked('/echo?op=b', $key, unpack '(a9999)*', $large), $first,
          'chunked');
is_conflict(chunked('/echo?op=b', $key, unpack '(a9999)*', "$large!"),
            'chunked and longer');

# nothing, and no chunk
$key = new_key();
$first = http_post('/echo?op=c', '', { 'Idempotency-Key' => $key });
is_replay(chunked('/echo?op=c', $key), $first, 'no chunk');

is(app_count($_), 1, "$_ ran once") for qw(a b c);



=== TEST 13: a body that another module read before
--- modules: lua
--- config
    location / {
        idempotency              $TEST_STORE;
        client_body_buffer_size  8k;
        access_by_lua_block      { ngx.req.read_body() }
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /rewrite/ {
        idempotency              $TEST_STORE;
        rewrite_by_lua_block     { ngx.req.read_body() }
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        idempotency              $TEST_STORE;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where ('', '/rewrite') {

    for my $body ('', 'hello', 'x' x 100_000) {
        my $key = new_key();
        my %key = ('Idempotency-Key' => $key);
        my $name = "$where/ with " . length($body) . ' bytes';
        my $uri = "$where/echo?op=$key";

        my $first = http_post($uri, $body, \%key);

        is($first->json->{length}, length $body, "$name: arrived");
        is_replay(http_post($uri, $body, \%key), $first, $name);
        is_replay(chunked($uri, $key, unpack '(a999)*', $body), $first,
                  "$name, chunked");
        is_conflict(http_post($uri, "$body.", \%key), "$name: longer");
        is_conflict(http_post($uri, 'jello', \%key), "$name: other bytes");
        is(app_count($key), 1, "$name: ran once");
    }
}

# a boundary does not count here either
my %key = ('Idempotency-Key' => new_key());
my $type = 'multipart/form-data; boundary=';
my $first = http_post('/ok?op=m', body_of('one', 'hello'),
                      { %key, 'Content-Type' => "${type}one" });
is_replay(http_post('/ok?op=m', body_of('two', 'hello'),
                    { %key, 'Content-Type' => "${type}two" }), $first,
          'multipart');
is_conflict(http_post('/ok?op=m', body_of('two', 'hellO'),
                      { %key, 'Content-Type' => "${type}two" }), 'multipart');



=== TEST 14: the same request over HTTP/2 is the same request
--- h2
--- config eval: $::location
--- client
my $key = new_key();
my $first = http_post('/ok?op=a', 'hello',
                      { 'Idempotency-Key' => $key, Authorization => 'a',
                        'Content-Type' => 'text/plain' });
is($first->status, 200, 'ran');

my $h2 = h2_connect();
my $try = sub {
    my ($uri, $body, $who) = @_;
    return $h2->response($h2->request('POST', $uri, $body,
        { 'idempotency-key' => $key, authorization => $who,
          'content-type' => 'text/plain' }));
};

is_replay($try->('/ok?op=a', 'hello', 'a'), $first, 'over HTTP/2');
is_conflict($try->('/ok?op=a', 'jello', 'a'), 'body');
is_conflict($try->('/ok?op=b', 'hello', 'a'), 'query string');
is_conflict($try->('/ok?op=a', 'hello', 'b'), 'identity');

# in two frames
my $id = $h2->request('POST', '/ok?op=a', undef,
                      { 'idempotency-key' => $key, authorization => 'a',
                        'content-type' => 'text/plain' }, more => 1);
$h2->data($id, 'hel', 0);
$h2->data($id, 'lo', 1);
is_replay($h2->response($id), $first, 'in two frames');

is(app_count('a'), 1, 'ran once');



=== TEST 90: locations with other fingerprints do not replay each other
--- config
    location /a {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /b {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  json;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /c {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/a/ok?op=a', '{}', \%key)->body, "run 1\n", 'ran');
is(http_post('/b/ok?op=b', '{}', \%key)->status, 409,
   'another operation, though its fingerprint is of another kind');
is(http_post('/c/ok?op=c', '{}', \%key)->body, "run 1\n",
   'where the key alone decides, it does');
is(app_count($_), $_ eq 'a' ? 1 : 0, "executions of $_") for qw(a b c);
