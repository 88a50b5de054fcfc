# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What a JSON-RPC gateway needs: a replay that carries the id of the retry, with
# its JSON type (idempotency_replay_json), and errors that are not kept although
# their status is 200 (idempotency_keep_json).

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# the application: its answer is in a header of the request

our $app = <<'CONF';
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_2;
        location / {
            default_type application/json;
            add_header   X-Run $request_id;
            return       200 $http_x_answer;
        }
    }
CONF

sub call
{
    my ($uri, $body, $answer, %headers) = @_;

    return http_post($uri, $body, { 'Content-Type' => 'application/json',
                                    'X-Answer' => $answer, %headers });
}

run_tests();

__DATA__

=== TEST 1: the id of the retry
--- http_config eval: $::app
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_key          json:/params/_meta/key;
        idempotency_fingerprint  json exclude=/id;
        idempotency_replay_json  /id json:/id;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /off {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        idempotency_replay_json  id json:id;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $key = new_key();
my $body = sub { return qq({"jsonrpc":"2.0",$_[0]"params":{"_meta":{"key":"$key"}}}) };
my $answer = '{"jsonrpc":"2.0","id":1,"result":{"id":5}}';

my $r = call('/', $body->('"id":1,'), $answer);
is($r->body, $answer, 'ran');
my $run = $r->header('X-Run');

for (
    [ '"id":2,', '2', 'a number' ],
    [ '"id":"a\"b",', '"a\"b"', 'a string' ],
    [ '"id":"3",', '"3"', 'a string of digits' ],
    [ '"id":null,', 'null', 'null' ],
    [ '"id":1.50,', '1.50', 'its text' ],
) {
    my ($id, $expected, $name) = @$_;

    $r = call('/', $body->($id), $answer);
    is($r->header('X-Run'), $run, "$name: replayed");
    is($r->body, qq({"jsonrpc":"2.0","result":{"id":5},"id":$expected}), $name);
}

for my $id ('', '"id":{},', '"id":1,"id":2,') {
    $r = call('/', $body->($id), $answer);
    is($r->header('X-Run'), $run, 'replayed');
    is($r->json->{id}, 1, "the stored one stays: $id");
}

my %key = ('Idempotency-Key' => new_key());
call('/off', '{"id":1}', $answer, %key);
is(call('/off', '{"id":9}', $answer, %key)->json->{id}, 9,
   'also where the body does not count');



=== TEST 2: what an answer says decides
--- http_config eval: $::app
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_keep_json  /result/isError=!true /error=!*;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /ok {
        idempotency_keep_json  /status=done;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $kept = sub {
    my ($uri, $answer) = @_;
    my %key = ('Idempotency-Key' => new_key());
    my @runs = map { call($uri, 'x', $answer, %key)->header('X-Run') } 1, 2;
    return $runs[0] eq $runs[1];
};

ok($kept->('/', '{"result":{"isError":false}}'), 'kept: not true');
ok($kept->('/', '{"result":{}}'), 'kept: not there');
ok($kept->('/', 'no JSON'), 'kept: no JSON');
ok($kept->('/', '{"result":{"isError":"true, in a way"}}'), 'kept: another');
ok(!$kept->('/', '{"result":{"isError":true}}'), 'released: true');
ok(!$kept->('/', '{"error":{"code":-32000}}'), 'released: there is an error');
ok(!$kept->('/', '{"error":null}'), 'released: of any value');

ok($kept->('/ok', '{"status":"done"}'), 'kept: it is that');
ok(!$kept->('/ok', '{"status":"failed"}'), 'released: it is not');
ok(!$kept->('/ok', '{}'), 'released: nor there');



=== TEST 3: what is refused
--- store: memory
--- config
    location / { idempotency on; }
--- client
for (
    [ 'idempotency_keep_json ok=true', '/ok=true' ],
    [ 'idempotency_keep_json /ok', '/ok=true' ],
    [ 'idempotency_keep_json /a~b=1', '"~0"' ],
    [ 'idempotency_replay_json /a/b x', '/id' ],
    [ 'idempotency_replay_json id json:', 'json:/id' ],
    [ 'idempotency_replay_json id json:a.b', 'json:/a/b' ],
) {
    my ($directive, $right) = @$_;

    edit_config(sub { s/idempotency on;.*\}/idempotency on; $directive; }/ });
    ok(!nginx_reload(), "refused: $directive");
    error_log_like(qr/\[emerg\] .* directive: .*\Q$right\E/, "says: $right");
}

edit_config(sub { s/idempotency on;.*\}/idempotency on; }/ });
--- provokes: \[emerg\]
