# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A mirror gets what runs, once: not a replay, nor what is refused or waits.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: mirrored once
--- config
    idempotency       $TEST_STORE;
    location / {
        mirror        /mirror;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /no-body/ {
        mirror        /no-body;
        mirror_request_body  off;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /mirror {
        internal;
        set           $mirrored /mirrored;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP2_PORT$mirrored;
    }
    location = /no-body {
        internal;
        set           $mirrored /mirrored;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP2_PORT$mirrored;
        proxy_pass_request_body  off;
        proxy_set_header  Content-Length "";
    }
--- client
sub mirrored { app_count('/mirrored', peer => 2) }

# what a mirror gets is sent beside the request: another one after it, that is
# not covered, tells that all of them have got there

my $others = 0;

sub settled
{
    my $n = shift;

    http_post("/ok?op=other", 'other');
    $others++;
    app_wait('/mirrored', $n + $others);

    return mirrored() - $others;
}

my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/headers?op=a', 'hello', \%key);
is(app_wait('/mirrored'), 1, 'an execution is mirrored');
is(app_last('/mirrored')->{length}, 5, 'with its body');
is($first->header('X-App'), 1, 'and answered by the application');

is(settled(1), 1, 'once');

for (1 .. 3) {
    is(http_post('/headers?op=a', 'hello', \%key)->header('Idempotent-Replayed'),
       'true', 'replayed');
}

is(http_post('/headers?op=a', 'other', \%key)->status, 409, 'a conflict');
is(http_post('/headers?op=a', 'hello', { 'Idempotency-Key' => 'a b' })->status,
   400, 'no key');
is(settled(1), 1, 'none of them is mirrored');
is(app_count('a'), 1, 'ran once');

# one that waits

%key = ('Idempotency-Key' => new_key());
my $holder = send_post('/hold?op=b', 'hello', \%key);
app_wait_parked('b');
my $waiter = send_post('/hold?op=b', 'hello', \%key);
is($waiter->read_response(0.1), undef, 'waits');
app_release('b');

is($holder->read_response->body, "run 1\n", 'the holder');
is($waiter->read_response->header('Idempotent-Replayed'), 'true', 'the waiter');
is(settled(2), 2, 'mirrored once');

# what is released runs, and is mirrored, each time

%key = ('Idempotency-Key' => new_key());
is(http_post('/status/503?op=c', 'hello', \%key)->status, 503, 'released')
    for 1, 2;
is(settled(4), 4, 'mirrored twice');

# without the body

%key = ('Idempotency-Key' => new_key());
http_post('/no-body/echo?op=d', 'hello', \%key);
is(app_wait('/mirrored', 5 + $others), 5 + $others, 'mirrored');
is(app_last('/mirrored')->{length}, 0, 'without a body');
is(http_post('/no-body/echo?op=d', 'hello', \%key)->json->{length}, 5,
   'replayed');
is(settled(5), 5, 'not mirrored again');
is(app_count('d'), 1, 'ran once');

# a large one

%key = ('Idempotency-Key' => new_key());
$first = http_post('/echo?op=e', 'x' x 300_000, \%key);
is($first->json->{length}, 300_000, 'a large body');
is(settled(6), 6, 'mirrored');
is(http_post('/echo?op=e', 'x' x 300_000, \%key)->body, $first->body,
   'replayed');
is(settled(6), 6, 'not mirrored again');
--- no_error_log
[error]



=== TEST 2: a mirror that fails or hangs does not count
--- config
    idempotency       $TEST_STORE;
    location / {
        mirror        /mirror;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /mirror {
        internal;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP2_PORT$arg_mirror;
    }
--- client
for my $how (qw(/close /status/503 /hold)) {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "/ok?op=a&mirror=$how";

    is(http_post($uri, 'x', \%key)->body, "run 1\n", "$how: ran");
    is(app_wait($how), 1, "$how: mirrored");
    is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
       "$how: replayed");
    is(app_count($how), 1, "$how: mirrored once");
    app_reset();
}
