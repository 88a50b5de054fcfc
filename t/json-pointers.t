# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# JSON Pointers (RFC 6901): keys and derived keys from any place in a body, and
# what of a body counts; what can never match is refused.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';


sub outcome
{
    my ($uri, $body, %headers) = @_;

    my $r = http_post($uri, $body, { 'Content-Type' => 'application/json',
                                     %headers });
    my $text = $r->status == 200 ? $r->body : $r->error_code;

    $text =~ s/\n\z//;
    $text .= ' replayed' if $r->header('Idempotent-Replayed');

    return $text;
}

run_tests();

__DATA__

=== TEST 1: a key from any place in the body
--- config
    idempotency  $TEST_STORE;

    location / {
        idempotency_key          json:/params/arguments/idempotencyKey json:/params/_meta/a~1key json:/list/1;
        idempotency_fingerprint  json exclude=/id,/params/_meta;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $call = sub {
    my ($id, $key, $meta) = @_;
    return qq({"jsonrpc":"2.0","id":$id,"method":"tools/call","params":)
           . qq({"name":"pay","arguments":{"idempotencyKey":"$key"},)
           . qq("_meta":$meta}});
};

is(outcome('/ok?op=mcp', $call->(1, 'k-1', '{"token":1}')), 'run 1', 'ran');
is(outcome('/ok?op=mcp', $call->(2, 'k-1', '{"token":2}')),
   'run 1 replayed', 'its retry, with another id');
is(outcome('/ok?op=mcp', $call->(3, 'k-2', '{}')), 'run 2', 'another key');
is(outcome('/ok?op=mcp', '{"params":{"arguments":{"idempotencyKey":"k-1"}}}'),
   'IDEMPOTENCY_CONFLICT', 'another call with that key');

is(outcome('/ok?op=b', '{"params":{"_meta":{"a/key":"m"}},"x":1}'), 'run 1',
   'a name with a slash');
is(outcome('/ok?op=b', '{"x":1,"params":{"_meta":{"a/key":"m"}}}'),
   'run 1 replayed', 'again');
is(outcome('/ok?op=c', '{"list":["a","l-1"]}'), 'run 1', 'an element');
is(outcome('/ok?op=c', '{"list":["a","l-1"]}'), 'run 1 replayed', 'again');

# not at that place: no key

for my $body ('{"idempotencyKey":"k-1"}', '{"arguments":{"idempotencyKey":"k"}}',
              '{"/list/1":"k-1"}', '{"list":{"0":"k"}}', '["k","k"]')
{
    outcome('/ok?op=no', $body) for 1, 2;
}

is(app_count('no'), 10, 'those have no key');



=== TEST 2: a derived key from any place in the body
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_dedupe  json:/from/id,/to/0,amount window=60s;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $first = '{"from":{"id":1,"n":1},"to":["a","b"],"amount":5,"at":1}';

is(outcome('/ok?op=a', $first), 'run 1', 'ran');
is(outcome('/ok?op=a', '{"amount":5,"to":["a"],"from":{"id":1}}'),
   'run 1 replayed', 'the same in these places');
is(outcome('/ok?op=a', '{"amount":6,"to":["a"],"from":{"id":1}}'), 'run 2',
   'another amount');
is(outcome('/ok?op=a', '{"amount":5,"to":["b"],"from":{"id":1}}'), 'run 3',
   'to somebody else');
is(outcome('/ok?op=a', '{"amount":5,"to":["a"],"id":1}'), 'run 4',
   'from nobody');
is(outcome('/ok?op=b', '{"id":1}'), 'run 1', 'none of the places');
is(outcome('/ok?op=b', '{"id":1}'), 'run 2', '... is no derived key');



=== TEST 3: what of a body counts
--- config
    idempotency  $TEST_STORE;

    location /exclude/ {
        idempotency_fingerprint  json exclude=trace,/meta/at,/items/0/seen;
        idempotency_conflict_detail  values;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /include/ {
        idempotency_fingerprint  auto include=/amount,/to/id exclude=/to/id/seen;
        idempotency_conflict_detail  values;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(outcome('/exclude/ok?op=e', '{"a":1,"meta":{"at":1},"items":[{"seen":1}],"trace":1}',
           %key), 'run 1', 'ran');
is(outcome('/exclude/ok?op=e', '{"items":[{"seen":2}],"meta":{"at":2},"a":1}',
           %key), 'run 1 replayed', 'what is excluded does not count');
is(outcome('/exclude/ok?op=e', '{"a":1,"meta":{"at":1},"items":[{"seen":1}],"at":1}',
           %key), 'IDEMPOTENCY_CONFLICT', 'the same name elsewhere does');

my $r = http_post('/exclude/ok?op=e', '{"a":2,"meta":{"at":3},"items":[{"seen":9}]}',
                  \%key);
is_deeply($r->json->{error}{details}{diff_summary},
          [ { path => '/a', change => 'changed', old => 1, new => 2 } ],
          'and what does not count does not differ');

%key = ('Idempotency-Key' => new_key(), 'Content-Type' => 'application/json');

is(outcome('/include/ok?op=i', '{"amount":1,"to":{"id":{"n":1,"seen":1}},"x":1}',
           %key), 'run 1', 'ran');
is(outcome('/include/ok?op=i', '{"to":{"id":{"n":1},"y":1},"amount":1,"x":2}',
           %key), 'run 1 replayed', 'only what is included counts');

$r = http_post('/include/ok?op=i', '{"to":{"id":{"n":2}},"amount":1,"x":3}',
               \%key);
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'another recipient');
is_deeply($r->json->{error}{details}{diff_summary},
          [ { path => '/to/id/n', change => 'changed', old => 1, new => 2 } ],
          'which is all that differs');

is(outcome('/include/ok?op=i', '{"x":1}', %key), 'IDEMPOTENCY_CONFLICT',
   'nothing of it is there');

%key = ('Idempotency-Key' => new_key());
is(outcome('/include/ok?op=n', '{"x":1}', %key), 'run 1', 'none of it: ran');
is(outcome('/include/ok?op=n', '{"x":2}', %key), 'IDEMPOTENCY_CONFLICT',
   'then all of it counts');



=== TEST 4: what can never match is refused
--- store: memory
--- config
    location / { idempotency on; }
--- client
for (
    [ 'idempotency_key json:a.b', 'what is deeper is json:/a/b' ],
    [ 'idempotency_key json:/a~2', '"~0"' ],
    [ 'idempotency_dedupe json:a.b window=1s', 'what is deeper is json:/a/b' ],
    [ 'idempotency_dedupe json:url,a.b window=1s',
      'what is deeper is json:/a/b' ],
    [ 'idempotency_dedupe json:/a~ window=1s', '"~0"' ],
    [ 'idempotency_dedupe json:/a,,/b window=1s', 'it is "body", or "json:"' ],
    [ 'idempotency_dedupe json:/a, window=1s', 'it is "body", or "json:"' ],
    [ 'idempotency_dedupe url window=1s', 'it is "body", or "json:"' ],
    [ 'idempotency_fingerprint json exclude=/a~b', '"~0"' ],
    [ 'idempotency_fingerprint json include=/a~b', '"~0"' ],
    [ 'idempotency_fingerprint json include=a', 'is a JSON Pointer' ],
    [ 'idempotency_fingerprint form exclude=/a', 'a form has names' ],
    [ 'idempotency_fingerprint raw include=/a', 'only what is parsed' ],
    [ 'idempotency_fingerprint json inklude=/a', '"include=/<pointer>,..."' ],
) {
    my ($directive, $right) = @$_;

    edit_config(sub { s/idempotency on;.*\}/idempotency on; $directive; }/ });
    ok(!nginx_reload(), "refused: $directive");

    my ($name, $value) = $directive =~ /^(\S+)(?: \w+)? (\S+)/;

    error_log_like(qr/\[emerg\].* in "$name" directive: .*\Q$right\E.* in \S+:\d+/,
                   "says what would be right");
    edit_config(sub { s/idempotency on;.*\}/idempotency on; }/ });
}
--- provokes: \[emerg\]
