# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What a variable decides for each request of one location: which statuses are
# kept, how a key is written, what a conflict tells.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: statuses that are kept
--- http_config
    map $http_x_route $keep {
        default   "";
        payment   "2xx 500";
        all       "any   !404";
        less      "!404";
        wrong     "2xx 6xx";
    }
    idempotency_keep_status  $keep;
--- config
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /with/ {
        idempotency              $TEST_STORE;
        idempotency_keep_status  $keep 418;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /own/ {
        idempotency              $TEST_STORE;
        idempotency_keep_status  500;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /app/ {
        idempotency              $TEST_STORE;
        idempotency_keep_status  2xx $upstream_http_x_keep;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $n = 0;
my $runs = sub {
    my ($uri, $route) = @_;
    my $op = 'op' . $n++;
    my %h = ('Idempotency-Key' => new_key(), 'X-Route' => $route);
    http_post("$uri" . ($uri =~ /\?/ ? '&' : '?') . "op=$op", 'x', \%h)
        for 1, 2;
    return app_count($op);
};

for ([ '/status/500', '', 2, 'the default' ],
     [ '/status/404', '', 1, 'which keeps 404' ],
     [ '/status/500', 'payment', 1, '500 as well' ],
     [ '/status/404', 'payment', 2, 'and 404 not' ],
     [ '/status/503', 'all', 1, 'all' ],
     [ '/status/404', 'all', 2, 'but one' ],
     [ '/status/404', 'less', 2, 'the default but one' ],
     [ '/status/400', 'less', 1, 'which keeps 400' ],
     [ '/status/404', 'wrong', 1, 'the default if it is wrong' ],
     [ '/status/500', 'wrong', 2, 'which does not keep 500' ],
     [ '/with/status/418', '', 1, 'beside a constant' ],
     [ '/with/status/404', '', 2, 'which is no default' ],
     [ '/with/status/500', 'payment', 1, 'both' ],
     [ '/own/status/500', 'all', 1, 'a level of its own' ],
     [ '/own/status/404', '', 2, 'has no variable' ],
     [ '/app/status/500?header=X-Keep:%20500', '', 2,
       'it is known before the request runs' ])
{
    my ($uri, $route, $count, $name) = @$_;
    is($runs->($uri, $route), $count, "$uri $route: $name");
}

error_log_like(qr/"idempotency_keep_status" evaluates to "2xx 6xx" with "6xx"/,
               'what is wrong is told');



=== TEST 2: the format of keys
--- http_config
    map $http_x_client $format {
        default  "";
        new      uuid4;
        free     String;
        wrong    guid;
    }
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_key_format  $format max=40;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /own/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  uuid;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /arg/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  $arg_format quoted=required;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $uuid = '16fd2706-8baf-433b-82eb-8c7fada847da';

for ([ '/ok', '', 'token-1', 200 ], [ '/ok', '', '"a b"', 400 ],
     [ '/ok', 'new', $uuid, 200 ], [ '/ok', 'new', 'token-2', 400 ],
     [ '/ok', 'free', '"a b"', 200 ], [ '/ok', 'free', '"' . 'a' x 41 . '"', 400 ],
     [ '/ok', 'wrong', 'token-3', 200 ], [ '/ok', 'wrong', '"a b"', 400 ],
     [ '/own/ok', '', 'token-4', 400 ],
     [ '/arg/ok?format=uuid', '', "\"$uuid\"", 409 ],
     [ '/arg/ok?format=uuid', '', $uuid, 400 ],
     [ '/arg/ok?format=uuid', '', '"token-5"', 400 ],
     [ '/arg/ok', '', '"token-5"', 200 ])
{
    my ($uri, $client, $key, $status) = @$_;

    my $r = http_post($uri, 'x', { 'Idempotency-Key' => $key,
                                   'X-Client' => $client });
    is($r->status, $status, "$uri $client: $key");
    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'invalid') if $status == 400;
}

error_log_like(qr/"idempotency_key_format" evaluates to "guid"/,
               'what is wrong is told');



=== TEST 3: what a conflict tells
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_conflict_detail  $http_x_detail redact=card;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $post = sub {
    my ($key, $detail, $body) = @_;
    return http_post('/ok', $body, { 'Idempotency-Key' => $key,
                                     'Content-Type' => 'application/json',
                                     'X-Detail' => $detail });
};

my $told = sub {
    my ($first, $second) = @_;
    my $key = new_key();
    is($post->($key, $first, '{"a":"one","card":"4111"}')->status, 200, 'ran');
    my $r = $post->($key, $second, '{"a":"two","card":"4222"}');
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict');
    my $diff = $r->json->{error}{details}{diff_summary};
    return '' if !$diff;
    return join ' ', map { my $d = $_; join ',', map { $d->{$_} // '' }
                           qw(path old new) } @$diff;
};

is($told->('', ''), '', 'nothing, by default');
is($told->('paths', 'paths'), '/a,, /card,,', 'paths');
like($told->('values', 'values'),
     qr{^/a,one,two /card,[0-9a-f]{8}\*\*\*,[0-9a-f]{8}\*\*\*$}, 'values');
is($told->('values', 'off'), '', 'kept, and not told to this one');
is($told->('values', 'paths'), '/a,, /card,,', 'paths are told to this one');
is($told->('off', 'values'), '', 'nothing was kept');
unlike($told->('paths', 'values'), qr/one/, 'no value was kept');
is($told->('Values', 'nonsense'), '', 'nothing if it is wrong');

error_log_like(qr/"idempotency_conflict_detail" evaluates to "nonsense"/,
               'what is wrong is told');
