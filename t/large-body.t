# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Bodies that are parsed in turns of the event loop: they count as they would
# at once, and nobody else has to wait.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub numbers
{
    my ($n, $seed) = @_;

    my $x = $seed || 1;
    return [ map { $x = ($x * 1103515245 + 12345) % 2**31; $x } 1 .. $n ];
}


sub json
{
    my ($type, @items) = @_;

    return '{"type":"' . $type . '","list":[' . join(',', @items) . ']}';
}


sub post
{
    my ($uri, $body, $key, $type) = @_;

    return http_post($uri, $body,
                     { 'Idempotency-Key' => $key,
                       'Content-Type' => $type || 'application/json' });
}


run_tests();

__DATA__

=== TEST 1: JSON
--- h2
--- config
    client_body_buffer_size  2m;
    idempotency              $TEST_STORE;
    location / {
        idempotency_fingerprint  json;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unordered/ {
        idempotency_fingerprint  json arrays=unordered;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /spooled/ {
        client_body_buffer_size  1k;
        idempotency_fingerprint  json;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /keyed/ {
        idempotency_key  json:id;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @n = @{ numbers(80_000) };

for my $where ('', '/unordered', '/spooled') {
    for my $n (5_000, 6_500, 80_000) {
        my $key = new_key();
        my $name = "$where, $n";
        my @items = @n[0 .. $n - 1];

        my $body = json('a', @items);
        my $other = '{"list": [' . join(', ', @items) . '], "type": "a" }';
        my $wrong = json('a', @items[0 .. $n - 2], $items[$n - 1] + 1);

        is(post("$where/ok?op=$key", $body, $key)->status, 200, "$name: ran");
        is(post("$where/ok?op=$key", $other, $key)->header('Idempotent-Replayed'),
           'true', "$name: the same, written in another way");
        is(post("$where/ok?op=$key", $wrong, $key)->error_code,
           'IDEMPOTENCY_CONFLICT', "$name: another one");
        is(post("$where/ok?op=$key", substr($body, 0, -1), $key)->error_code,
           'IDEMPOTENCY_CONFLICT', "$name: cut, and so raw");

        my $turned = json('a', reverse @items);
        my $r = post("$where/ok?op=$key", $turned, $key);

        if ($where eq '/unordered') {
            is($r->header('Idempotent-Replayed'), 'true', "$name: turned");
        } else {
            is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$name: turned");
        }

        is(app_count($key), 1, "$name: ran once");
        is(app_last($key)->{length}, length $body, "$name: with its body");
    }
}

# beyond what is parsed it counts raw

my $key = new_key();
my $body = json('a', @n, @n);
is(post('/ok?op=raw', $body, $key)->status, 200, 'larger: ran');
is(post('/ok?op=raw', $body, $key)->header('Idempotent-Replayed'), 'true',
   'larger: replayed');
$body =~ s/,/, /;
is(post('/ok?op=raw', $body, $key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'larger: another one');

# the key is in it

$body = '{"list":[' . join(',', @n) . '],"id":"keyed-1"}';
my @r = map { http_post('/keyed/ok?op=k', $body, {}) } 1, 2;
is($r[1]->header('Idempotent-Replayed'), 'true', 'a key at the end of it');

my $h2 = h2_connect();
$key = new_key();
for my $try (1, 2) {
    my $id = $h2->request('POST', '/ok?op=h2', json('a', @n[0 .. 5000]),
                          { 'idempotency-key' => $key });
    my $r = $h2->response($id);
    is($r->status, 200, "HTTP/2, $try");
    is($r->header('idempotent-replayed'), $try == 2 ? 'true' : undef,
       "HTTP/2, $try: replayed");
}
--- no_error_log
[error]



=== TEST 2: forms
--- config
    client_body_buffer_size  2m;
    idempotency              $TEST_STORE;
    idempotency_fingerprint  form;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $n = 0;
my @fields = map { $n++; "n$n=$_" } @{ numbers(50_000) };
my $type = 'application/x-www-form-urlencoded';
my $key = new_key();
my $body = join '&', @fields;

is(post('/ok?op=a', $body, $key, $type)->status, 200, 'ran');
is(post('/ok?op=a', join('&', reverse @fields), $key, $type)
   ->header('Idempotent-Replayed'), 'true', 'in another order');
$fields[-1] .= '0';
is(post('/ok?op=a', join('&', @fields), $key, $type)->error_code,
   'IDEMPOTENCY_CONFLICT', 'another value');
is(app_count('a'), 1, 'ran once');
--- no_error_log
[error]



=== TEST 3: read before by another module
--- modules: lua
--- config
    client_body_buffer_size  2m;
    idempotency              $TEST_STORE;
    idempotency_fingerprint  json;
    location / {
        access_by_lua_block { ngx.req.read_body() }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @items = @{ numbers(80_000) };
my $key = new_key();
is(post('/ok?op=a', json('a', @items), $key)->status, 200, 'ran');
is(post('/ok?op=a', '{"list": [' . join(', ', @items) . '], "type": "a" }',
        $key)->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count('a'), 1, 'ran once');
is(app_last('a')->{length}, length json('a', @items), 'with its body');
--- no_error_log
[error]



=== TEST 4: a client that leaves meanwhile, and a worker that is to leave
--- config
    client_body_buffer_size  2m;
    idempotency              $TEST_STORE;
    idempotency_fingerprint  json arrays=unordered;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $body = json('a', map { $_ % 10 } 1 .. 500_000);

for (1 .. 5) {
    my $c = send_post('/ok?op=gone', $body, { 'Idempotency-Key' => new_key() });
    $c->abort;
}

my @c = map { send_post("/ok?op=stay$_", $body,
                        { 'Idempotency-Key' => new_key() }) } 1 .. 3;
ok(nginx_reload(), 'reloaded');
is($_->read_response->status, 200, 'answered') for @c;
--- no_error_log
[error]



=== TEST 5: in turns, also if all of it is there at once
--- log_level: debug
--- config
    client_body_buffer_size  2m;
    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  auto arrays=unordered;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %bodies = ('application/json' => json('a', map { $_ % 10 } 1 .. 500_000),
              'application/x-www-form-urlencoded'
              => join '&', map { $_ % 10 } 1 .. 500_000);

for my $type (sort keys %bodies) {
    my @before = error_log() =~ /idempotency: a turn of parsing/g;
    is(post('/ok', $bodies{$type}, new_key(), $type)->status, 200, "$type: ran");
    my @after = error_log() =~ /idempotency: a turn of parsing/g;

    # 15 pieces; then half a million values are sorted and hashed

    cmp_ok(@after - @before, '>=', 24, "$type: a piece in each turn");
}

# a small one is parsed at once

my @before = error_log() =~ /idempotency: a turn of parsing/g;
is(post('/ok', json('a', 1 .. 5000), new_key())->status, 200, 'small: ran');
my @after = error_log() =~ /idempotency: a turn of parsing/g;
is(@after - @before, 0, 'small: in one');



=== TEST 6: hashed in turns, if another module has read it
--- modules: lua
--- log_level: debug
--- config
    idempotency           $TEST_STORE;
    access_by_lua_block   { ngx.req.read_body() }

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /memory/ {
        client_body_buffer_size  20m;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /files/ {
        client_body_in_file_only  clean;
        idempotency_fingerprint   json;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 60
--- client
sub turns { scalar(() = error_log() =~ /idempotency: a turn of parsing/g) }

my $body = join '', map { sprintf "%09d\n", $_ } 1 .. 1_200_000;

for my $where ('', '/memory', '/files') {
    my $key = new_key();
    my $uri = "$where/ok?op=late";

    my $before = turns();
    is(post($uri, $body, $key)->status, 200, "$uri: ran");
    cmp_ok(turns() - $before, '>=', 10, "$uri: 1 MB in each turn");

    is(post($uri, $body, $key)->header('Idempotent-Replayed'), 'true',
       "$uri: replayed");

    # a byte anywhere in it counts

    for my $at (0, 1024 * 1024 - 1, 1024 * 1024, 11_999_998) {
        my $other = $body;
        substr($other, $at, 1, 'x');
        is(post($uri, $other, $key)->error_code, 'IDEMPOTENCY_CONFLICT',
           "$uri: byte $at");
    }

    is(app_count('late'), 1, "$uri: ran once");
    is(app_last('late')->{length}, length $body, "$uri: with its body");
    app_reset();
}

# as it would count if nginx had read it here

my %key = ('Idempotency-Key' => new_key());
my $form = sub {
    return http_post('/ok?op=form', "--$_[0]\r\n\r\n$body\r\n--$_[0]--\r\n",
            { %key, 'Content-Type' => "multipart/form-data; boundary=$_[0]" });
};
is($form->('a')->status, 200, 'multipart: ran');
is($form->('bcd')->header('Idempotent-Replayed'), 'true',
   'multipart: another boundary');

# a small one is hashed at once

my $before = turns();
is(post('/ok?op=small', 'x' x 1_000_000, new_key())->status, 200, 'small: ran');
is(turns(), $before, 'small: in one');

# clients that leave meanwhile, and a worker that is to leave

for (1 .. 3) {
    my $c = send_post('/ok?op=gone', $body, { 'Idempotency-Key' => new_key() });
    $c->abort;
}

my @c = map { send_post("/ok?op=stay$_", $body,
                        { 'Idempotency-Key' => new_key() }) } 1 .. 3;
ok(nginx_reload(), 'reloaded');
is($_->read_response(20)->status, 200, 'answered') for @c;
--- no_error_log
[error]
