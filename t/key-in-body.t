# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_key json:<member>: the key is a top-level member of a JSON body.
# A string or a number is a key; what is there and can't be one is an error,
# what is not there is no key.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub outcome
{
    my ($uri, $body, @headers) = @_;

    my $r = http_post($uri, $body, [ 'Content-Type' => 'application/json',
                                     @headers ]);

    return $r->error_code if $r->error_code ne '';

    my $text = $r->body;
    chomp $text;

    return $r->header('Idempotent-Replayed') ? "$text replayed" : $text;
}

run_tests();

__DATA__

=== TEST 1: a member is the key
--- http_config
    log_format  key  '$arg_op "$idempotency_key" $idempotency_status';
--- config
    access_log       logs/access.log key;
    idempotency      $TEST_STORE;
    idempotency_key  json:requestId;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /spooled/ {
        client_body_buffer_size  1k;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /job/ {
        proxy_set_header  X-Job  $idempotency_job_mail;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(outcome('/ok', '{"requestId":"a-1","n":1}'), 'run 1', 'ran');
is(outcome('/ok', '{"requestId":"a-1","n":1}'), 'run 1 replayed', 'replayed');
is(outcome('/ok', '{"requestId":"a-1","n":2}'), 'IDEMPOTENCY_CONFLICT',
   'another body');
is(outcome('/ok', '{"requestId":"a-2","n":1}'), 'run 2', 'another key');
is(outcome('/ok', '{"n":1,"requestId":"a\u002d1"}'), 'IDEMPOTENCY_CONFLICT',
   'wherever it stands, however it is written');
is(outcome('/ok', '{"requestId":"\"a-3\""}'), 'run 3', 'a quoted key');
is(outcome('/ok', '{"requestId":"a-3"}'), 'IDEMPOTENCY_CONFLICT',
   'is the same key');

# a number, by its text

is(outcome('/ok?op=n', '{"requestId":9007199254740993}'), 'run 1', 'a number');
is(outcome('/ok?op=n', '{"requestId":9007199254740993}'), 'run 1 replayed',
   'again');
is(outcome('/ok?op=n', '{"requestId":9007199254740992}'), 'run 2',
   'the next one is another');
is(outcome('/ok?op=n', '{"requestId":"9007199254740992"}'),
   'IDEMPOTENCY_CONFLICT', 'as a string it is the same key');

# neither is a key: it runs, and is not covered

for my $body ('{"requestId":null}', '{}', '{"n":1}', '[1]', '"requestId"',
              '{"x":{"requestId":"a-1"}}', '{"requestid":"a-1"}', '',
              '{"requestId":"a-1"', 'requestId=a-1', "{\"requestId\":\"\xff\"}")
{
    my $op = 'none' . length($body) . unpack('%32C*', $body);

    is(outcome("/ok?op=$op", $body), 'run 1', "no key: $body");
    is(outcome("/ok?op=$op", $body), 'run 2', "no record: $body");
}

# these were meant to be one

for my $value ('""', 'true', 'false', '[]', '["a"]', '{}', '{"a":1}',
               '"a b"', '"a\u0000b"', '"caf\u00e9"', '"\n"', '1.5e+3',
               '"' . 'x' x 256 . '"')
{
    is(outcome('/ok?op=bad', "{\"requestId\":$value}"),
       'IDEMPOTENCY_KEY_INVALID', 'no key can be ' . substr $value, 0, 20);
}

is(outcome('/ok?op=bad', '{"requestId":"a","requestId":"b"}'),
   'IDEMPOTENCY_KEY_INVALID', 'twice');
is(outcome('/ok?op=bad', '{"requestId":"a","requestId":"a"}'),
   'IDEMPOTENCY_KEY_INVALID', 'twice the same');
is(outcome('/ok?op=bad', '{"requestId":"a","requestId":null}'),
   'IDEMPOTENCY_KEY_INVALID', 'twice, once null');
is(app_count('bad'), 0, 'none of them ran');

is(outcome('/ok?op=long', '{"requestId":"' . 'x' x 255 . '"}'), 'run 1',
   '255 characters');

# the header is not asked for here

is(outcome('/ok?op=header', '{}', 'Idempotency-Key' => 'h'), 'run 1', 'ran');
is(outcome('/ok?op=header', '{}', 'Idempotency-Key' => 'h'), 'run 2',
   'the header is no key');

# behind a lot of other things, in a file

my $big = '{"fill":"' . 'x' x 300_000 . '","requestId":"big"}';
is(outcome('/spooled/ok', $big), 'run 1', 'a large body');
is(outcome('/spooled/ok', $big), 'run 1 replayed', 'again');

# the variables know it

outcome('/ok?op=var', '{"requestId":"v-1"}');
outcome('/ok?op=var', '{"requestId":"v-1"}');
access_log_like(qr/^var "v-1" EXECUTED\nvar "v-1" REPLAYED$/m,
                '$idempotency_key');

outcome('/job/ok?op=job', '{"requestId":"v-2"}');
like(join(' ', map { @$_ } @{ app_last('job')->{headers} }),
     qr/X-Job [0-9a-f]{64}/, 'a job id');



=== TEST 2: sources in their order
--- config
    idempotency  $TEST_STORE;
    location /header/ {
        idempotency_key  $http_idempotency_key json:id json:other;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /body/ {
        idempotency_key  json:id $http_idempotency_key;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# the same key has the same record, from wherever it comes; another body is a
# conflict then: that tells which key counted

sub takes
{
    my ($uri, $body, $headers, $key) = @_;

    my $fresh = outcome('/header/ok?op=probe', "{\"probe\":\"$key\"}",
                        'Idempotency-Key' => $key);
    return "probe: $fresh" if $fresh !~ /^run \d+$/;

    return outcome($uri, $body, @$headers) eq 'IDEMPOTENCY_CONFLICT';
}

ok(takes('/header/ok', '{"id":"b1"}', [ 'Idempotency-Key' => 'h1' ], 'h1'),
   'the header first');
ok(takes('/header/ok', '{"id":"b2"}', [], 'b2'), 'then the member');
ok(takes('/header/ok', '{"other":"b3"}', [], 'b3'), 'then the other member');
ok(takes('/header/ok', '{"id":null,"other":"b4"}', [], 'b4'),
   'null is not there');
ok(takes('/header/ok', '{"other":"b6","id":"b5"}', [], 'b5'),
   'in the order of the directive');
ok(takes('/body/ok', '{"id":"b7"}', [ 'Idempotency-Key' => 'h7' ], 'b7'),
   'the member first');
ok(takes('/body/ok', '{}', [ 'Idempotency-Key' => 'h8' ], 'h8'),
   'then the header');
ok(takes('/body/ok', 'no JSON', [ 'Idempotency-Key' => 'h9' ], 'h9'),
   'no JSON: the header');

is(outcome('/header/ok', '{"id":true}', 'Idempotency-Key' => 'h10'), 'run 1',
   'a source that is not needed is not looked at');
is(outcome('/header/ok', '{"id":true,"other":"b11"}'),
   'IDEMPOTENCY_KEY_INVALID', 'one that can be no key is not passed over');
is(outcome('/body/ok?op=twice', '{}', 'Idempotency-Key' => 'a',
           'Idempotency-Key' => 'b'), 'IDEMPOTENCY_KEY_INVALID',
   'the header twice');
is(outcome('/header/ok', '{"id":"b12"}', 'Idempotency-Key' => 'not a token'),
   'IDEMPOTENCY_KEY_INVALID', 'a bad header is not passed over either');



=== TEST 3: where a key is required, and of which form
--- config
    idempotency           $TEST_STORE;
    idempotency_key       json:id;
    idempotency_required  on;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /uuid/ {
        idempotency_key_format  uuid4;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /dedupe/ {
        idempotency_required  off;
        idempotency_dedupe    body window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /parsed/ {
        idempotency_fingerprint  json exclude=id;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_fingerprint  off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $body ('{}', '{"id":null}', '', 'x', '[{"id":"a"}]', '{"id":"a"',
              '{"id":"a","fill":"' . 'x' x (1024 * 1024) . '"}')
{
    my $r = http_post('/ok?op=r', $body);

    is($r->status, 400, 'missing: ' . substr $body, 0, 20);
    is($r->error_code, 'IDEMPOTENCY_KEY_MISSING', 'and says so');
}

is(outcome('/ok?op=r', '{"id":1}'), 'run 1', 'there it is');
is(app_count('r'), 1, 'the others did not run');

is(outcome('/uuid/ok', '{"id":"a"}'), 'IDEMPOTENCY_KEY_INVALID',
   'not of the form');
is(outcome('/uuid/ok', '{"id":"f81d4fae-7dec-41d0-a765-00a0c91e6bf6"}'),
   'run 1', 'of the form');

is(outcome('/dedupe/ok', '{"n":1}'), 'run 1', 'no key, a derived one');
is(outcome('/dedupe/ok', '{"n":1}'), 'run 1 replayed', 'folds');
is(outcome('/dedupe/ok', '{"id":"k","n":1}'), 'run 2', 'a key');
is(outcome('/dedupe/ok', '{"id":"k","n":1}'), 'run 2 replayed',
   'its own record');

# what is left out of the fingerprint may still be the key

is(outcome('/parsed/ok', '{"id":"p","a":1,"b":2}'), 'run 1', 'parsed');
is(outcome('/parsed/ok', '{"b":2,"a":1,"id":"p"}'), 'run 1 replayed',
   'in another order');
is(outcome('/parsed/ok', '{"b":2,"a":3,"id":"p"}'), 'IDEMPOTENCY_CONFLICT',
   'with another value');

is(outcome('/off/ok', '{"id":"o","a":1}'), 'run 1', 'fingerprint off');
is(outcome('/off/ok', '{"id":"o","a":2}'), 'run 1 replayed',
   'the key is read all the same');



=== TEST 4: a member without a name
--- config
    idempotency_key json:;
--- must_die
--- error_log eval
qr/\[emerg\] .*"json:".* in .*nginx\.conf:\d+/



=== TEST 5: a JSON string needs no quotes beside its own
--- config
    idempotency      $TEST_STORE;
    idempotency_key  $http_idempotency_key json:id;
    location /string/ {
        idempotency_key_format  string min=2 max=8;
        idempotency_fingerprint  json exclude=id;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /required/ {
        idempotency_key_format  string quoted=required;
        idempotency_fingerprint  json exclude=id;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# the same key in a body, in quotes there, and in a header

for (['a b', '"a b"'], [' a ', '" a "'], ['  ', '"  "'], ['a,b', '"a,b"'],
     ['it\"s', '"it\"s"'], ['a\\\\b', '"a\\\\b"'], ['\"ab', '"\"ab"'],
     ['\"ab\"', '"ab"'], ['(a)', '(a)'], ['12345678', '12345678'])
{
    my ($text, $field) = @$_;
    my $op = unpack 'H*', $text;

    is(outcome("/string/ok?op=$op", "{\"id\":\"$text\"}"), 'run 1',
       "a key: $text");
    is(outcome("/string/ok?op=$op", "{\"id\":\"$text\"}"), 'run 1 replayed',
       "again: $text");
    is(outcome("/string/ok?op=$op", '{}', 'Idempotency-Key' => $field),
       'run 1 replayed', "in a header: $field");
}

is(outcome('/string/ok?op=item', '{"id":"\"a b\""}'),
   'IDEMPOTENCY_CONFLICT', 'an Item is the key in it');

for my $text ('a', '123456789', 'a\tb', 'a\u0000b', 'caf\u00e9', 'a\u007f') {
    is(outcome('/string/ok?op=bad', "{\"id\":\"$text\"}"),
       'IDEMPOTENCY_KEY_INVALID', "no key: $text");
}

is(outcome('/required/ok?op=req', '{"id":"a-b"}'), 'run 1',
   'quotes are required: JSON has them');
is(outcome('/required/ok?op=req', '{}', 'Idempotency-Key' => '"a-b"'),
   'run 1 replayed', 'the header, too');
is(outcome('/required/ok?op=bad', '{}', 'Idempotency-Key' => 'a-b'),
   'IDEMPOTENCY_KEY_INVALID', 'unless they are missing');
is(outcome('/required/ok?op=bad', '{"id":17}'), 'IDEMPOTENCY_KEY_INVALID',
   'a number has none');

is(outcome('/ok?op=bad', '{"id":" a"}'), 'IDEMPOTENCY_KEY_INVALID',
   'a token has no spaces around it');
is(app_count('bad'), 0, 'none of them ran');
