# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_replay_json: a replay sets top-level members in the JSON object
# it answers with.  The first answer, and what is no JSON object, stay as they
# are.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# a file that nginx serves is the response: any bytes, of any type

sub files
{
    my %files = @_;

    return join '', map { ">>> $_\n$files{$_}\n" } sort keys %files;
}

run_tests();

__DATA__

=== TEST 1: members are set
--- config
    idempotency              $TEST_STORE;
    idempotency_replay_json  idempotent true;
    idempotency_replay_json  originalSubmittedAt $idempotency_original_time;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /all/ {
        idempotency_replay_json  text    "it was \"so\" \\ and so";
        idempotency_replay_json  number  12345678901234567890.50;
        idempotency_replay_json  null    null;
        idempotency_replay_json  object  '{"a":[1,2]}';
        idempotency_replay_json  string  '"true"';
        idempotency_replay_json  empty   "";
        idempotency_replay_json  broken  '{"a":';
        idempotency_replay_json  agent   $http_user_agent;
        idempotency_replay_json  'a "b"' 1;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /none/ {
        idempotency_replay_json  run 17;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /status/ {
        idempotency_replay_status  200;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /dedupe/ {
        idempotency_dedupe    body window=60s;
        idempotency_compress  on min=0;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/json', 'x', \%key);
my $retry = http_post('/json', 'x', \%key);

is($first->body, '{"run":1,"ok":true}', 'the first is as it is');
is($retry->header('X-Original-Request-Time'),
   $retry->json->{originalSubmittedAt}, 'the time');
like($retry->body, qr/^\{"run":1,"ok":true,"idempotent":true,
                       "originalSubmittedAt":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
                      \}$/x, 'two members more');
is($retry->header('Content-Length'), length $retry->body, 'and its length');
is($retry->header('Content-Type'), 'application/json', 'its type');
is($retry->status, 200, 'its status');
is(http_post('/json', 'x', \%key)->body, $retry->body, 'each time the same');

# values: JSON where they are, else a string

%key = ('Idempotency-Key' => new_key(), 'User-Agent' => "\"a\" <\\b\t>");
http_post('/all/json', 'x', \%key);
$retry = http_post('/all/json', 'x', \%key);

is($retry->body, '{"run":1,"ok":true,"text":"it was \"so\" \\\\ and so",'
   . '"number":12345678901234567890.50,"null":null,"object":{"a":[1,2]},'
   . '"string":"true","empty":"","broken":"{\"a\":",'
   . '"agent":"\"a\" <\\\\b\t>","a \"b\"":1}', 'values of all kinds');
ok($retry->json, 'is JSON');

# what is no text can't be a string

$retry = http_post('/all/json', 'x', { %key, 'User-Agent' => "\xff\xc3" });
is($retry->json->{agent}, undef, 'no UTF-8');
like($retry->body, qr/"agent":null,/, 'null in place of it');

# in place of a member that is there

%key = ('Idempotency-Key' => new_key());
http_post('/none/json', 'x', \%key);
is(http_post('/none/json', 'x', \%key)->body, '{"ok":true,"run":17}',
   'set, not added');

# other statuses

%key = ('Idempotency-Key' => new_key());
http_post('/status/json?status=201', 'x', \%key);
$retry = http_post('/status/json?status=201', 'x', \%key);
is($retry->status, 200, 'with another status');
ok($retry->json->{idempotent}, 'set');

%key = ('Idempotency-Key' => new_key());
http_post('/json?status=422', 'x', \%key);
$retry = http_post('/json?status=422', 'x', \%key);
is($retry->status, 422, 'an error');
ok($retry->json->{idempotent}, 'set as well');

# by a derived key, out of a compressed record

http_post('/dedupe/json', 'x');
ok(http_post('/dedupe/json', 'x')->json->{idempotent}, 'derived');

# who waits gets a replay

%key = ('Idempotency-Key' => new_key());
my $c = send_post('/json?op=w&hold=1', 'x', \%key);
app_wait_parked('w');
my $waiter = send_post('/json?op=w&hold=1', 'x', \%key);
app_release('w');
is($c->read_response->body, '{"run":1,"ok":true}', 'the holder');
ok($waiter->read_response->json->{idempotent}, 'the waiter');

# our own refusals are no replays

is(http_post('/json?op=w&hold=1', 'y', \%key)->json->{idempotent}, undef,
   'a conflict');



=== TEST 2: what is left alone
--- config
    idempotency              $TEST_STORE;
    idempotency_replay_json  idempotent true;
    idempotency_methods      GET;
    location / {
        default_type  application/json;
        root          html;
    }
    location /app/ {
        proxy_http_version  1.1;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        idempotency_methods  POST HEAD;
    }
--- user_files eval
main::files(
    'kept'    => '{"z":1.0,"a":9007199254740993,"e":1e400,"s":"\u00e9/\n",'
                 . '"o":{"idempotent":false},"l":[],"z":2}',
    'set'     => '{"idempotent":{"a":[{}]},"x":1,"idempotent":[1,[2]]}',
    'blank'   => '{}',
    'spaced'  => '{ "a" : [ 1 , 2 ] }',
    'array'   => '[{"a":1}]',
    'string'  => '"a"',
    'number'  => '17',
    'text'    => 'some text',
    'cut'     => '{"a":1',
    'two'     => '{"a":1}{"b":2}',
    'comment' => '{"a":1} // x',
    'latin'   => "{\"a\":\"\xe9\"}",
    'deep'    => '{"a":' . '[' x 1000 . ']' x 1000 . '}',
    'deepest' => '[' x 100_000,
)
--- client
my $replay = sub {
    my $file = shift;

    my %key = ('Idempotency-Key' => new_key());
    my $first = http_get("/$file", \%key);
    my $retry = http_get("/$file", \%key);

    is($retry->header('Idempotent-Replayed'), 'true', "$file: replayed");
    is($retry->header('Content-Length'), length $retry->body,
       "$file: its length");

    s/\n\z// for my ($one, $two) = ($first->body, $retry->body);
    return ($one, $two);
};

# numbers keep their text, names their order, even twice

is(($replay->('kept'))[1],
   '{"z":1.0,"a":9007199254740993,"e":1e400,"s":"é/\n",'
   . '"o":{"idempotent":false},"l":[],"z":2,"idempotent":true}',
   'the rest stays');
is(($replay->('set'))[1], '{"x":1,"idempotent":true}',
   'whatever it was, and how often');
is(($replay->('blank'))[1], '{"idempotent":true}', 'an empty object');
is(($replay->('spaced'))[1], '{"a":[1,2],"idempotent":true}', 'white space');

for my $file (qw(array string number text cut two comment latin deep
                 deepest))
{
    my ($first, $retry) = $replay->($file);
    ok($retry eq $first, "$file: byte for byte");
}

# what the application encoded itself is not opened, and no body stays none

my $twice = sub {
    my ($method, $uri) = @_;

    my %key = ('Idempotency-Key' => new_key());
    return map { http_request($method, "/app$uri", undef, \%key) } 1, 2;
};

my ($first, $retry) = $twice->('POST', '/gzip');
is($retry->header('Content-Encoding'), 'gzip', 'gzip');
ok($retry->body eq $first->body, 'gzip: byte for byte');

($first, $retry) = $twice->('POST', '/json?header=Content-Encoding:%20own');
is($retry->body, $first->body, 'even if it looks like JSON');

($first, $retry) = $twice->('POST', '/204');
is($retry->status, 204, 'no content');
is($retry->header('Content-Length'), undef, '204: no length');

($first, $retry) = $twice->('HEAD', '/json');
is($retry->header('Idempotent-Replayed'), 'true', 'HEAD: replayed');
is($retry->header('Content-Length'), $first->header('Content-Length'),
   'HEAD: its length');

($first, $retry) = $twice->('POST', '/json?chunked=1');
ok($retry->json->{idempotent}, 'chunked: set');



=== TEST 3: together with nginx's own filters
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_replay_json  idempotent $idempotency_replayed;
        gzip                     on;
        gzip_min_length          1;
        gzip_types               application/json;
        sub_filter               '"ok"' '"fine"';
        sub_filter_types         application/json;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
require IO::Uncompress::Gunzip;

my %key = ('Idempotency-Key' => new_key());

is(http_post('/json', 'x', \%key)->body, '{"run":1,"fine":true}', 'first');

my $r = http_post('/json', 'x', { %key, 'Accept-Encoding' => 'gzip' });
is($r->header('Content-Encoding'), 'gzip', 'compressed for the client');
IO::Uncompress::Gunzip::gunzip(\$r->body, \my $text);
is($text, '{"run":1,"fine":true,"idempotent":true}', 'all of it');
