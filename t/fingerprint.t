# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What counts as the same request: a body that is parsed as JSON or as a form
# counts by what it says, all else by its bytes, and a multipart boundary never.
# The pairs are those that a parser which is too kind takes for one.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# sends two bodies under one key: "same" if the second gets the response of
# the first, "other" if it is a conflict

sub verdict
{
    my ($uri, $one, $two, %o) = @_;

    my %key = ('Idempotency-Key' => new_key());
    my %type = (json => 'application/json',
                form => 'application/x-www-form-urlencoded');
    my @headers = map { { %key, defined $_ ? ('Content-Type' => $type{$_} || $_)
                                           : () } }
                  $o{type}, exists $o{type2} ? $o{type2} : $o{type};

    my $first = http_post($uri, $one, $headers[0]);
    my $second = http_post($uri, $two, $headers[1]);

    return 'first: ' . $first->status if $first->status != 200;

    return $second->status == 200
           && $second->header('Idempotent-Replayed')
           && $second->body eq $first->body ? 'same'
         : $second->error_code eq 'IDEMPOTENCY_CONFLICT' ? 'other'
         : 'second: ' . $second->status;
}

sub same
{
    my ($name, $one, $two, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(verdict($o{uri}, $one, $two, %o), 'same', "same: $name");
}

sub other
{
    my ($name, $one, $two, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(verdict($o{uri}, $one, $two, %o), 'other', "not the same: $name");
}

# parts of a multipart body: [ header, content ] each

sub multipart
{
    my ($boundary, @parts) = @_;

    return join('', map { "--$boundary\r\n$_->[0]\r\n\r\n$_->[1]\r\n" } @parts)
           . "--$boundary--\r\n";
}

sub chunked
{
    my ($uri, $key, @chunks) = @_;

    return http_raw("POST $uri HTTP/1.1\r\nHost: localhost\r\n"
                    . "Idempotency-Key: $key\r\nConnection: close\r\n"
                    . "Content-Type: application/json\r\n"
                    . "Transfer-Encoding: chunked\r\n\r\n"
                    . join('', map { sprintf "%x\r\n%s\r\n", length $_, $_ }
                               @chunks) . "0\r\n\r\n");
}

run_tests();

__DATA__

=== TEST 1: JSON counts by what it says
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  json;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /raw/ {
        idempotency              $TEST_STORE;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @o = (uri => '/ok', type => 'json');

same('bytes', '{"a":1}', '{"a":1}', @o);
same('order of members', '{"a":1,"b":[2,{"c":3,"d":4}]}',
     '{"b":[2,{"d":4,"c":3}],"a":1}', @o);
same('white space', '{"a":[1,2]}', " {\n\t\"a\" : [ 1 ,2 ] }\r\n", @o);
same('escapes', '{"caf\u00e9":"a\/b\u0041\ud83d\ude00"}',
     "{\"caf\xc3\xa9\":\"a/bA\xf0\x9f\x98\x80\"}", @o);
same('a name that is escaped', '{"\u0061":1}', '{"a":1}', @o);
same('no object at all', '[1,2]', '[1, 2]', @o);
same('one string', '"a"', ' "\u0061" ', @o);

# a number is its text

other('next to 2^53', '{"n":9007199254740993}', '{"n":9007199254740992}', @o);
other('over a double', '1e400', '1e401', @o);
other('under a double', '1e-400', '0', @o);
other('1 and 1.0', '[1]', '[1.0]', @o);
other('1e0 and 1E0', '[1e0]', '[1E0]', @o);
other('0 and -0', '[0]', '[-0]', @o);
other('digits beyond a double', '[0.1]', '[0.1000000000000000055]', @o);
other('number and string', '{"n":1}', '{"n":"1"}', @o);

# what is there, and what is not

other('a name twice', '{"a":1,"a":2}', '{"a":1}', @o);
other('a name twice, the last', '{"a":1,"a":2}', '{"a":2}', @o);
other('a name twice, in another order', '{"a":1,"a":2}', '{"a":2,"a":1}', @o);
other('null and missing', '{"a":null}', '{}', @o);
other('null and false', '[null]', '[false]', @o);
other('null and its name', '[null]', '["null"]', @o);
other('empty string and null', '{"a":""}', '{"a":null}', @o);
other('empty array and empty object', '{"a":[]}', '{"a":{}}', @o);
other('array and object', '["a"]', '{"0":"a"}', @o);
other('nothing and an empty object', '', '{}', @o);
other('true and true twice', '[true]', '[true,true]', @o);

# where one ends and the next begins

other('borders of strings', '["ab","c"]', '["a","bc"]', @o);
other('borders of names', '{"ab":"c"}', '{"a":"bc"}', @o);
other('borders of arrays', '[["a"],["b"]]', '[["a","b"],[]]', @o);
other('borders of objects', '{"a":{"b":1},"c":2}', '{"a":{"b":1,"c":2}}', @o);
other('a string that looks like two', '["a","b"]', '["a\",\"b"]', @o);
other('order of an array', '[1,2]', '[2,1]', @o);
other('case', '{"A":1}', '{"a":1}', @o);
other('white space in a string', '"a b"', '"a  b"', @o);
other('NUL', '["a\u0000b"]', '["a"]', @o);
other('composed and not', "\"\xc3\xa9\"", "\"e\xcc\x81\"", @o);

# the rest of the request still counts

other('media type', '{"a":1}', '{"a":1}', @o, type2 => 'application/ld+json');
same('case of the media type', '{"a":1}', '{"a":1}', @o,
     type2 => 'Application/JSON');

my %key = ('Idempotency-Key' => new_key());
http_post('/ok?x=1', '{}', \%key);
is(http_post('/ok?x=2', '{}', \%key)->status, 409, 'arguments count');

# "json" is asked for: whatever the media type says

same('no media type', '{"a":1,"b":2}', '{"b":2,"a":1}', uri => '/ok');
same('another media type', '{"a":1,"b":2}', '{"b":2,"a":1}', uri => '/ok',
     type => 'text/plain');

# and the default is to compare bytes

other('raw', '{"a":1,"b":2}', '{"b":2,"a":1}', @o, uri => '/raw/ok');
same('raw', '{"a":1,"b":2}', '{"a":1,"b":2}', @o, uri => '/raw/ok');



=== TEST 2: what does not parse counts raw
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  json;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /form/ {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  form;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @o = (uri => '/ok', type => 'json');

my %broken = (
    'no end'              => '{"a":1,"b":2',
    'a comma too many'    => '{"a":1,}',
    'single quotes'       => "{'a':1}",
    'a comment'           => '{"a":1} // x',
    'two documents'       => '{"a":1} {"b":2}',
    'a byte order mark'   => "\xef\xbb\xbf{\"a\":1}",
    'invalid UTF-8'       => "{\"a\":\"\xff\"}",
    'overlong UTF-8'      => "{\"a\":\"\xc0\x80\"}",
    'half a surrogate'    => '{"a":"\ud800"}',
    'NaN'                 => '{"a":NaN}',
    'a leading zero'      => '{"a":01}',
    'a control character' => "{\"a\":\"\x01\"}",
    'no JSON'             => 'amount=1&to=me',
);

for my $name (sort keys %broken) {
    my $body = $broken{$name};

    same("$name: bytes", $body, $body, @o);
    other("$name: a space more", $body, "$body ", @o);
}

# what did not parse is never what did

other('parsed and not', '{"a":1}', '{"a":1}}', @o);

# not even bytes that are just what is hashed of the parsed one

other('the encoding of it', '{"a":1}', "jsono\x06s\x01an\x011", @o);

# two that only differ in what a kind parser would replace

other('invalid UTF-8', "{\"a\":\"\xff\"}", "{\"a\":\"\xfe\"}", @o);
other('halves of surrogates', '["\ud800"]', '["\udfff"]', @o);

same('form: a bad escape: bytes', 'a=%zz&b=1', 'a=%zz&b=1',
     uri => '/form/ok', type => 'form');
other('form: a bad escape', 'a=%zz&b=1', 'a=%zy&b=1',
      uri => '/form/ok', type => 'form');
--- no_error_log
[error]



=== TEST 3: nesting and size have a limit, beyond which bytes count
--- config
    location / {
        client_max_body_size     8m;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  json;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /form/ {
        client_max_body_size     8m;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  form;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @o = (uri => '/ok', type => 'json');

# 100,000 open brackets, closed or not, in arrays or objects

my $n = 100_000;

same('brackets', '[' x $n, '[' x $n, @o);
other('one bracket more', '[' x $n, '[' x ($n + 1), @o);
same('closed brackets', '[' x $n . ']' x $n, '[' x $n . ']' x $n, @o);
other('closed brackets, a space', '[' x $n . ']' x $n,
      '[' x $n . ' ' . ']' x $n, @o);
same('objects', '{"a":' x $n . '1' . '}' x $n, '{"a":' x $n . '1' . '}' x $n,
     @o);

# 100 deep is nothing special

my $deep = '[' x 100 . '{"a":1,"b":2}' . ']' x 100;
(my $turned = $deep) =~ s/\{.*\}/{"b": 2, "a": 1}/;

same('100 deep', $deep, $turned, @o);

# to 1 MiB it is parsed, over it bytes count

my $limit = 1024 * 1024;
my $fill = sub { my ($end, $len) = @_;
                 '{"fill":"' . 'x' x ($len - 12 - length $end) . "\",$end}" };

my $one = $fill->('"a":1,"b":2', $limit);
my $two = $fill->('"b":2,"a":1', $limit);

is(length $one, $limit, 'just the limit');
same('at the limit: order', $one, $two, @o);
other('at the limit: a value', $one, $fill->('"b":3,"a":1', $limit), @o);

$one = $fill->('"a":1,"b":2', $limit + 1);
$two = $fill->('"b":2,"a":1', $limit + 1);

same('over the limit: bytes', $one, $one, @o);
other('over the limit: order', $one, $two, @o);
other('far over the limit: the last byte', 'x' x 5_000_000 . 'a',
      'x' x 5_000_000 . 'b', @o);

@o = (uri => '/form/ok', type => 'form');
my $long = 'x' x ($limit - 10);

same('form, near the limit', "a=1&b=2&$long", "$long&b=2&a=1", @o);
same('form, over the limit: bytes', "a=1&b=2&xxx$long", "a=1&b=2&xxx$long", @o);
other('form, over the limit: order', "a=1&b=2&xxx$long", "xxx$long&b=2&a=1",
      @o);
--- no_error_log
[error]



=== TEST 4: however the body comes
--- config
    idempotency  $TEST_STORE;
    idempotency_fingerprint  json;
    location / {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /spooled/ {
        client_body_buffer_size  1k;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /file/ {
        client_body_in_file_only  clean;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /streamed/ {
        proxy_http_version       1.1;
        proxy_request_buffering  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $one = '{"fill":"' . 'x' x 100_000 . '","a":1,"b":2}';
my $two = '{"b":2,"a":1,"fill":"' . 'x' x 100_000 . '"}';
my $three = '{"b":3,"a":1,"fill":"' . 'x' x 100_000 . '"}';

for my $where ('', '/spooled', '/file', '/streamed') {
    my @o = (uri => "$where/ok", type => 'json');

    same("$where: order", $one, $two, @o);
    other("$where: a value", $one, $three, @o);

    # piece by piece, with cuts within names, strings, numbers and escapes

    my $text = '{"caf\u00e9":"\ud83d\ude00","number":-12.5e+30,"t":true}';
    my $key = new_key();

    is(chunked("$where/ok", $key, split //, $text)->status, 200,
       "$where: chunks of a byte");
    is(chunked("$where/ok", $key, $text)->header('Idempotent-Replayed'),
       'true', "$where: one chunk");
    is(http_post("$where/ok", $text, [ 'Idempotency-Key' => $key,
                 'Content-Type' => 'application/json' ])
       ->header('Idempotent-Replayed'), 'true', "$where: no chunks");
    is(chunked("$where/ok", $key, split //, $text =~ s/true/null/r)->status,
       409, "$where: another value");

    # the application gets it all

    my %new = ('Idempotency-Key' => new_key());
    is(http_post("$where/echo", $one, \%new)->json->{length}, length $one,
       "$where: all of it arrives");
}



=== TEST 5: members that do not count, and arrays without an order
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_fingerprint  json exclude=created_at,trace_id;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /more/ {
        idempotency_fingerprint  json exclude=a exclude=b,c;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /sets/ {
        idempotency_fingerprint  json arrays=unordered;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /both/ {
        idempotency_fingerprint  json exclude=id arrays=unordered;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /form/ {
        idempotency_fingerprint  form exclude=csrf;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @o = (uri => '/ok', type => 'json');

same('excluded, another value', '{"a":1,"trace_id":"x"}',
     '{"a":1,"trace_id":{"y":[1,2]}}', @o);
same('excluded, not there', '{"a":1,"created_at":5}', '{"a":1}', @o);
same('excluded, twice', '{"a":1,"trace_id":1,"trace_id":2}', '{"a":1}', @o);
same('excluded, at any depth', '[{"b":[{"trace_id":1,"c":2}]}]',
     '[{"b":[{"c":2}]}]', @o);
same('excluded, its name escaped', '{"\u0074race_id":1}', '{}', @o);
other('its neighbour', '{"a":1,"trace_id":"x"}', '{"a":2,"trace_id":"x"}',
      @o);
other('not its name', '{"trace_ids":1}', '{}', @o);
other('case', '{"Trace_id":1}', '{}', @o);
other('a value of that name', '["trace_id"]', '[]', @o);
other('only what is below it is left out', '{"trace_id":{"a":1},"a":1}',
      '{"trace_id":{"a":1},"a":2}', @o);

same('several lists', '{"a":1,"b":2,"c":3,"d":4}', '{"d":4}', @o,
     uri => '/more/ok');
other('several lists', '{"a":1,"b":2,"c":3,"d":4}', '{"d":5}', @o,
      uri => '/more/ok');

@o = (uri => '/sets/ok', type => 'json');

same('another order', '{"a":[1,"b",{"c":[2,3]},null]}',
     '{"a":[null,{"c":[3,2]},"b",1]}', @o);
other('how many', '[1,1,2]', '[1,2,2]', @o);
other('how many', '[1,1]', '[1]', @o);
other('of another array', '[[1,2],[3,4]]', '[[1,3],[2,4]]', @o);
other('array and its element', '[[1]]', '[1]', @o);
same('arrays in arrays', '[[1,2],[3,4]]', '[[4,3],[2,1]]', @o);

same('both', '{"a":[{"id":1,"v":1},{"id":2,"v":2}]}',
     '{"a":[{"v":2,"id":7},{"v":1}]}', type => 'json', uri => '/both/ok');

same('form: excluded', 'a=1&csrf=abc', 'csrf=def&a=1', type => 'form',
     uri => '/form/ok');
other('form: its neighbour', 'a=1&csrf=abc', 'csrf=def&a=2', type => 'form',
      uri => '/form/ok');



=== TEST 6: forms
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  form;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @o = (uri => '/ok', type => 'form');

same('bytes', 'a=1&b=2', 'a=1&b=2', @o);
same('order of fields', 'a=1&b=2', 'b=2&a=1', @o);
same('escapes', 'name=a%20b&x=%41', 'name=a+b&x=A', @o);
same('case of escapes', 'a=%c3%a9', 'a=%C3%A9', @o);

other('a value', 'a=1&b=2', 'a=1&b=3', @o);
other('a name twice', 'a=1&a=2', 'a=1', @o);
other('a name twice, in another order', 'a=1&a=2', 'a=2&a=1', @o);
other('missing and empty', 'a=1&b=', 'a=1', @o);
other('borders', 'ab=c', 'a=bc', @o);
other('an escaped border', 'a=1%26b=2', 'a=1&b=2', @o);
other('an escaped equals sign', 'a%3D=1', 'a==1', @o);
other('an escaped plus', 'a=1%2B1', 'a=1+1', @o);
other('case', 'A=1', 'a=1', @o);



=== TEST 7: multipart, whose boundary is made anew for each try
--- config
    idempotency  $TEST_STORE;
    location / {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /multipart/ {
        idempotency_fingerprint  multipart;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /auto/ {
        idempotency_fingerprint  auto;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /spooled/ {
        client_body_buffer_size  1k;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @parts = (
    [ 'Content-Disposition: form-data; name="a"', '1' ],
    [ "Content-Disposition: form-data; name=\"f\"; filename=\"x\"\r\n"
      . 'Content-Type: application/octet-stream',
      join('', map { chr } 0 .. 255) . "\r\n--not a boundary\r\n" x 100 ],
);

my $b1 = '----WebKitFormBoundary7MA4YWxkTrZu0gW';
my $b2 = 'x' x 70;

for my $where ('', '/multipart', '/auto', '/spooled') {
    my @o = (uri => "$where/ok",
             type => "multipart/form-data; boundary=$b1",
             type2 => "multipart/form-data; boundary=\"$b2\"");

    same("$where: another boundary", multipart($b1, @parts),
         multipart($b2, @parts), @o);
    same("$where: the same boundary", multipart($b1, @parts),
         multipart($b1, @parts), @o, type2 => $o[3]);

    my @changed = ($parts[0], [ $parts[1][0], $parts[1][1] . 'x' ]);
    other("$where: content", multipart($b1, @parts), multipart($b2, @changed),
          @o);

    @changed = ([ $parts[0][0] =~ s/"a"/"b"/r, 1 ], $parts[1]);
    other("$where: a name", multipart($b1, @parts), multipart($b2, @changed),
          @o);

    other("$where: order of parts", multipart($b1, @parts),
          multipart($b2, reverse @parts), @o);
    other("$where: a part less", multipart($b1, @parts),
          multipart($b2, $parts[0]), @o);
    other("$where: the kind of multipart", multipart($b1, @parts),
          multipart($b2, @parts), @o,
          type2 => "multipart/mixed; boundary=$b2");

    # only a boundary of its own is one

    other("$where: the other boundary as content",
          multipart($b1, [ 'X: 1', "a\r\n--$b1\r\nb" ]),
          multipart($b2, [ 'X: 1', "a\r\n--$b1\r\nb" ]), @o);
    other("$where: the boundary in the text", multipart($b1, [ 'X: 1', $b1 ]),
          multipart($b2, [ 'X: 1', $b2 ]), @o);
}



=== TEST 8: by media type
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  auto exclude=skip;
    location / {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($j1, $j2) = ('{"a":1,"b":2,"skip":1}', '{"b":2,"a":1}');
my ($f1, $f2) = ('a=1&b=%32&skip=1', 'b=2&a=1');

for my $type ('application/json', 'application/json; charset=utf-8',
              'Application/JSON', 'application/problem+json',
              'application/vnd.api+json;version=1')
{
    same("$type: JSON", $j1, $j2, uri => '/ok', type => $type);
    other("$type: no form", $f1, $f2, uri => '/ok', type => $type);
}

for my $type ('application/x-www-form-urlencoded',
              'application/x-www-form-urlencoded;charset=UTF-8')
{
    same("$type: a form", $f1, $f2, uri => '/ok', type => $type);
}

for my $type ('text/plain', 'application/jsonp', 'text/json5', undef) {
    my $name = $type // 'no media type';

    other("$name: bytes", $j1, $j2, uri => '/ok', type => $type);
    other("$name: bytes", $f1, $f2, uri => '/ok', type => $type);
}



=== TEST 9: the key alone decides
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    location / {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
same('another body', '{"a":1}', 'b=2', uri => '/ok');

my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=off', 'x', { %key, Authorization => 'a' })->status, 200,
   'one');
is(http_put('/ok?op=off&x=1', 'y', { %key, Authorization => 'a' })->body,
   "run 1\n", 'another method, other arguments');
is(http_post('/ok?op=off', 'x', { %key, Authorization => 'b' })->error_code,
   'IDEMPOTENCY_CONFLICT', 'but who asks counts');
is(app_count('off'), 1, 'ran once');



=== TEST 10: a changed configuration is not a changed request
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  raw;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $body = '{"a":[1,2],"b":2}';
my $send = sub {
    my ($key, $body, @more) = @_;

    return http_post('/ok?op=kept', $body,
                     { 'Idempotency-Key' => $key, @more,
                       'Content-Type' => 'application/json' });
};

# a record of each scheme, which all those after it find

my @keys = ('raw');
is($send->('raw', $body)->status, 200, 'ran');
is($send->('raw', '{"a":[3]}')->status, 409, 'raw: a conflict');

for my $how ('json', 'json exclude=b', 'json exclude=c',
             'json exclude=b arrays=unordered', 'auto exclude=b', 'auto',
             'form', 'off')
{
    edit_config(sub { s/(idempotency_fingerprint  )[^;]*/$1$how/
                          or die 'no such line' });
    ok(nginx_reload(), "reloaded: $how");

    for my $key (@keys) {
        my $r = $send->($key, $body);

        is($r->status, 200, "$how: the retry is replayed");
        is($r->header('Idempotent-Replayed'), 'true', "$how: from the record");

        # what can't be compared is not let through to somebody else

        is($send->($key, $body, Authorization => 'other')->status, 409,
           "$how: another client still gets a conflict");
    }

    # of the same scheme it is compared

    my $key = new_key();
    $send->($key, $body);
    push @keys, $key;

    is($send->($key, '{"a":[3]}')->status, $how eq 'off' ? 200 : 409,
       "$how: compared");
}

is(app_count('kept'), 9, 'no other execution');
