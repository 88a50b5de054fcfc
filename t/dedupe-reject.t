# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_dedupe ... action=reject: a duplicate is told so, and gets no
# response of another request.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($server, $proxy) = start_proxied();

run_tests();

__DATA__

=== TEST 1: a duplicate is refused, while the first runs and after it
--- config
    idempotency  $TEST_STORE;
    add_header   X-Layer $idempotency_layer always;
    add_header   X-Status $idempotency_status always;
    add_header   X-Conflict $idempotency_conflict always;

    location / {
        idempotency_dedupe  json:email window=60s action=reject;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /replay/ {
        idempotency_dedupe  json:email window=60s action=replay;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $c = send_post('/hold?op=a', '{"email":"a@b.c","n":1}');
app_wait_parked('a');

my $r = http_post('/hold?op=a', '{"email":"a@b.c","n":2}');
is($r->status, 409, 'while it runs');
is($r->error_code, 'DUPLICATE_REQUEST', 'code');

my $error = $r->json->{error};
is($error->{type}, 'duplicate', 'type');
ok(!$error->{retryable}, 'not retryable');
is($r->json->{type}, 'about:blank#idempotency-duplicate-request', 'problem');
is($r->header('Retry-After'), undef, 'no Retry-After');
is($r->header('X-Layer'), 'email', 'by which layer');
is($r->header('X-Status'), 'CONFLICT', 'status');
is($r->header('X-Conflict'), undef, 'but no mismatch');
is($r->header('Idempotent-Replayed'), undef, 'is no replay');

app_release('a');
is($c->read_response->body, "run 1\n", 'the first got its answer');

$r = http_post('/hold?op=a', '{"email":"a@b.c","n":3}');
is($r->error_code, 'DUPLICATE_REQUEST', 'after it');
like($r->json->{error}{details}{original_time}, qr/^\d{4}-/, 'since when');

is(app_count('a'), 1, 'ran once');

# another one runs

is(http_post('/ok?op=b', '{"email":"d@e.f"}')->body, "run 1\n", 'another');

# somebody else's is another one

is(http_post('/ok?op=c', '{"email":"a@b.c"}', { Authorization => 'x' })->body,
   "run 1\n", "somebody else's");

# a location that replays

$r = http_post('/replay/hold?op=a', '{"email":"a@b.c","n":4}');
is($r->body, "run 1\n", 'replayed where it is to be');



=== TEST 2: one that was not kept is no reason to refuse another
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_dedupe  body window=60s action=reject;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(http_post('/status/503?op=a', 'x')->status, 503, 'failed');
is(http_post('/status/503?op=a', 'x')->status, 503, 'again');
is(app_count('a'), 2, 'both ran');

is(http_post('/ok?op=b', 'x')->status, 200, 'ran');
is(http_post('/ok?op=b', 'x')->error_code, 'DUPLICATE_REQUEST', 'refused');
is(http_post('/ok?op=b', 'y')->status, 200, 'another body ran');



=== TEST 3: beside a key: a retry is replayed, a new key is refused
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_dedupe  json:url window=60s when=always action=reject;
        idempotency_error_body off;
        error_page 409 = @told;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @told {
        return 422 "$idempotency_error_code $idempotency_error_type $idempotency_retryable\n";
    }
--- client
my %first = ('Idempotency-Key' => new_key());
my %other = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=a', '{"url":"u"}', \%first)->body, "run 1\n", 'ran');
is(http_post('/ok?op=a', '{"url":"u"}', \%first)->body, "run 1\n",
   'its retry is replayed');

for (1, 2) {
    my $r = http_post('/ok?op=a', '{"url":"u"}', \%other);
    is($r->status, 422, 'in the words of the operator');
    is($r->body, "DUPLICATE_REQUEST duplicate false\n",
       'another key, and nothing was stored under it');
}

is(http_post('/ok?op=a', '{"url":"v"}', \%other)->body, "run 2\n",
   'the key is free');



=== TEST 4: a dry run does not refuse
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_dry_run  on;
        idempotency_dedupe  body window=60s action=reject;
        add_header   X-Status $idempotency_status always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
http_post('/ok?op=a', 'x');
my $r = http_post('/ok?op=a', 'x');
is($r->body, "run 2\n", 'ran');
is($r->header('X-Status'), 'CONFLICT', 'and is told');



=== TEST 5: a wrong action
--- config
    location / { idempotency on; idempotency_dedupe body window=1s action=merge; }
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "action=merge".*"action=reject".* in .*nginx\.conf:\d+/



=== TEST 6: rules count in the order in which they stand
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_dedupe  body window=60s when=always;
        idempotency_dedupe  json:email window=60s when=always action=reject;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /strict/ {
        idempotency  $TEST_STORE;
        idempotency_dedupe  json:email window=60s when=always action=reject;
        idempotency_dedupe  body window=60s when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# which of its records a request asks for first is a matter of their hashes:
# so it is tried with several addresses, of requests without a key and with one

for my $n (1 .. 6) {
    for my $keyed (0, 1) {
        my $op = "$n$keyed";
        my $body = "{\"email\":\"$n$keyed\@b.c\",\"n\":1}";
        my $key = sub { $keyed ? { 'Idempotency-Key' => new_key() } : {} };

        my @c = map { send_post("/hold?op=a$op", $body, $key->()) } 1, 2;
        app_wait_parked("a$op");
        app_release("a$op");

        my @r = map { $_->read_response } @c;
        is_deeply([ map { $_->body } @r ], [ ("run 1\n") x 2 ],
                  "$op: a double tap gets the answer");
        is(http_post("/hold?op=a$op", $body, $key->())->body, "run 1\n",
           "$op: and so does who comes after it");

        my $other = "{\"email\":\"$n$keyed\@b.c\",\"n\":2}";
        is(http_post("/hold?op=a$op", $other, $key->())->error_code,
           'DUPLICATE_REQUEST', "$op: another body is refused");
        is(app_count("a$op"), 1, "$op: ran once");

        http_post("/strict/ok?op=b$op", $body, $key->());
        is(http_post("/strict/ok?op=b$op", $body, $key->())->error_code,
           'DUPLICATE_REQUEST', "$op: refused where that rule comes first");
    }
}



=== TEST 7: one that was refused its lock for a while is asked again
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_dedupe  body window=60s when=always;
        idempotency_dedupe  json:email window=60s when=always action=reject;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# the first one is not kept: who waited for it runs, and is no duplicate

for my $n (1 .. 6) {
    for my $same (0, 1) {
        my $op = "$n$same";
        my $body = "{\"email\":\"$op\@b.c\"}";
        my @key = map { { 'Idempotency-Key' => $_ } } $same ? ("k$op") x 2
                                                            : ("k$op", "l$op");

        my $first = send_post("/hold?op=$op&status=503", $body, $key[0]);
        app_wait_parked($op);

        my $second = send_post("/hold?op=$op&status=503", $body, $key[1]);
        select undef, undef, undef, 0.05;
        app_release($op);
        is($first->read_response->status, 503, "$op: failed");

        app_wait_parked($op);
        app_release($op);
        is($second->read_response->status, 503, "$op: who waited ran, too");
        is(app_count($op), 2, "$op: two executions");
    }
}



=== TEST 8: a retry is no duplicate of its own first try
The first try has the record of the rule, and not yet that of its key, when the
retry comes to another host.
--- store: redis postgres
--- http_config
    idempotency_store far $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout  20s;
    }
    idempotency_store near $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
    idempotency_dedupe  json:email window=60s when=always action=reject;
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;
        location / {
            idempotency  near;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    location / {
        idempotency  far;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
my @there = (port => $ENV{TEST_NGINX_PORT_2});
my $records = sub { return scalar(() = $::server->keys) };
my $email = sub { return '{"email":"' . $_[0] . '@b.c"}' };

http_post("/ok?op=$_", $email->($_), { 'Idempotency-Key' => new_key() }, @there)
    for 'near';
http_post("/ok?op=$_", $email->($_), { 'Idempotency-Key' => new_key() })
    for 'far';

# which record is the first is a matter of hashes: so there are several

for my $n (1 .. 8) {
    my @retry = ("/ok?op=a$n", $email->($n), { 'Idempotency-Key' => new_key() });
    my $before = $records->();

    $::proxy->tell('hold');
    my $first = send_post(@retry);
    ok(wait_for(sub { $records->() > $before }), "$n: its first lock");

    my $retry = send_post(@retry, @there);
    my $early = $retry->read_response(0.5);
    is($early && $early->body, undef, "$n: the retry waits");
    $::proxy->tell('cut');

    for ($first, $early ? () : $retry) {
        my $r = $_->read_response(20);
        is($r && $r->body, "run 1\n", "$n: the one answer");
    }

    is(app_count("a$n"), 1, "$n: ran once");
}

is(http_post('/ok?op=a1', $email->(1), { 'Idempotency-Key' => new_key() },
             @there)->error_code, 'DUPLICATE_REQUEST', 'another key is refused');
