# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Which requests are covered, in which namespace, and for how long.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes ();


# the number of times that two equal requests ran

sub runs_of_two
{
    my ($method, $uri, $headers) = @_;

    my $op = new_key();
    my @headers = ('Idempotency-Key' => $op, @{ $headers || [] });
    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$op";

    http_request($method, $uri, 'x', \@headers) for 1, 2;

    return app_count($op);
}


run_tests();

__DATA__

=== TEST 1: a required key
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /optional/ {
        idempotency           $TEST_STORE;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /bypassed/ {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        idempotency_bypass    $http_x_bypass;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $method (qw(POST PUT PATCH DELETE)) {
    my $r = http_request($method, "/ok?op=$method", 'x');
    is($r->status, 400, "$method without a key");
    is($r->error_code, 'IDEMPOTENCY_KEY_MISSING', "$method: code");
    is($r->json->{title}, 'Idempotency-Key is missing', "$method: title");
    is(app_count($method), 0, "$method: did not run");
    is(runs_of_two($method, '/ok'), 1, "$method with a key");
}

is(http_get('/ok')->status, 200, 'GET needs none');
is(http_request('HEAD', '/ok')->status, 200, 'HEAD needs none');
is(http_request('OPTIONS', '/ok')->status, 200, 'OPTIONS needs none');

is(http_post('/optional/ok', 'x')->status, 200, 'not required');
is(http_post('/optional/ok', 'x')->body, "run 2\n", 'runs each time');
is(http_post('/optional/ok', 'x')->header('Idempotent-Replayed'), undef,
   'untouched');

is(http_post('/bypassed/ok', 'x')->status, 400, 'not bypassed');
is(http_post('/bypassed/ok', 'x', { 'X-Bypass' => 1 })->status, 200,
   'bypassed');



=== TEST 2: methods
--- config
    location / {
        idempotency          $TEST_STORE;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /custom/ {
        idempotency          $TEST_STORE;
        idempotency_methods  GET LOCK X-RUN;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(runs_of_two($_, '/ok'), 1, "$_ is covered") for qw(POST PUT PATCH DELETE);
is(runs_of_two($_, '/ok'), 2, "$_ is not")
    for qw(GET HEAD OPTIONS PROPFIND LOCK X-RUN POSTS);

is(runs_of_two($_, '/custom/ok'), 1, "custom: $_ is covered")
    for qw(GET LOCK X-RUN);
is(runs_of_two($_, '/custom/ok'), 2, "custom: $_ is not")
    for qw(POST PUT PATCH DELETE HEAD UNLOCK);

# what is not covered is not looked at either
my $r = http_get('/ok', [ 'Idempotency-Key' => '!', 'Idempotency-Key' => '' ]);
is($r->status, 200, 'a malformed key with GET');
is($r->header('Idempotent-Replayed'), undef, 'no header of ours');



=== TEST 3: bypass
--- http_config
    map $http_x_map $mapped {
        default  0;
        yes      1;
        empty    "";
    }
--- config
    location / {
        idempotency         $TEST_STORE;
        idempotency_bypass  $http_x_bypass $arg_nokey $mapped;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /joined/ {
        idempotency         $TEST_STORE;
        idempotency_bypass  $http_x_a$http_x_b;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /set/ {
        set                 $skip "";
        if ($http_x_skip) {
            set             $skip 1;
        }
        idempotency         $TEST_STORE;
        idempotency_bypass  $skip;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(runs_of_two('POST', '/ok'), 1, 'no value');
is(runs_of_two('POST', '/ok', [ 'X-Bypass' => '' ]), 1, 'an empty one');
is(runs_of_two('POST', '/ok', [ 'X-Bypass' => '0' ]), 1, '"0"');
is(runs_of_two('POST', '/ok', [ 'X-Bypass' => '1' ]), 2, '"1"');
is(runs_of_two('POST', '/ok', [ 'X-Bypass' => '00' ]), 2, '"00"');
is(runs_of_two('POST', '/ok', [ 'X-Bypass' => 'no' ]), 2, '"no"');
is(runs_of_two('POST', '/ok?nokey=y'), 2, 'the second value');
is(runs_of_two('POST', '/ok?nokey=0', [ 'X-Bypass' => '0' ]), 1, 'two "0"');
is(runs_of_two('POST', '/ok', [ 'X-Map' => 'yes' ]), 2, 'a map');
is(runs_of_two('POST', '/ok', [ 'X-Map' => 'empty' ]), 1, 'an empty map');
is(runs_of_two('POST', '/joined/ok', [ 'X-A' => '0' ]), 1, 'joined: "0"');
is(runs_of_two('POST', '/joined/ok', [ 'X-A' => '0', 'X-B' => '0' ]), 2,
   'joined: "00"');
is(runs_of_two('POST', '/set/ok'), 1, 'set: no');
is(runs_of_two('POST', '/set/ok', [ 'X-Skip' => 'x' ]), 2, 'set: yes');

# a bypassed request neither reads nor writes the record
my %key = ('Idempotency-Key' => new_key());
is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'stored');
my $r = http_post('/ok?op=a', 'x', { %key, 'X-Bypass' => 1 });
is($r->body, "run 2\n", 'bypassed');
is($r->header('Idempotent-Replayed'), undef, 'untouched');
is(http_post('/ok?op=a', 'y', { %key, 'X-Bypass' => 1 })->body, "run 3\n",
   'no conflict either');
is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'as it was stored');
is(http_post('/ok?op=a', 'x', { 'Idempotency-Key' => '?', 'X-Bypass' => 1 })
   ->status, 200, 'a malformed key is not looked at');



=== TEST 4: scope
--- config
    location / {
        idempotency              $TEST_STORE;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /tenant/ {
        idempotency              $TEST_STORE;
        idempotency_scope        $http_x_tenant;
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /route/ {
        idempotency              $TEST_STORE;
        idempotency_scope        $host$uri;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /none/ {
        idempotency              $TEST_STORE;
        idempotency_scope        $unset;
        if ($http_x_never) {
            set                  $unset 1;
        }
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $run = sub {
    my ($uri, $key, @headers) = @_;
    return http_post($uri, 'x', [ 'Idempotency-Key' => $key, @headers ]);
};

# a+bc is not ab+c, nor any other way to cut it
my $n = 0;

for my $pair ([ 'a', 'bc' ], [ 'ab', 'c' ], [ '', 'abc' ], [ 'abc', 'a' ],
              [ 'bc', 'a' ], [ 'a', 'b.c' ], [ 'a.b', 'c' ])
{
    my ($tenant, $key) = @$pair;
    $n++;
    is($run->('/tenant/ok?op=t', $key, 'X-Tenant' => $tenant)->body,
       "run $n\n", "scope <$tenant>, key <$key>: another operation");
}

is($run->('/tenant/ok?op=t', 'bc', 'X-Tenant' => 'a')->body, "run 1\n",
   'the first is still there');
is($run->('/tenant/ok?op=t', 'c', 'X-Tenant' => 'ab')->body, "run 2\n",
   'and the second');

# by default a host is a namespace, and a route is not
my $key = new_key();
is($run->('/ok?op=h', $key)->body, "run 1\n", 'one host');
is($run->('/ok?op=h', $key, Host => 'other')->body, "run 2\n", 'another');
is($run->('/ok?op=h', $key, Host => 'OTHER:80')->body, "run 2\n",
   'as nginx normalizes it');
is($run->('/ok2?op=h', $key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'another route is a conflict');

# a route of its own namespace
is($run->('/route/a?op=r', $key)->body, "run 1\n", 'a route');
is($run->('/route/b?op=r', $key)->body, "run 2\n", 'another');
is($run->('/route/a?op=r', $key)->body, "run 1\n", 'replayed');

# a variable that was never set is an empty scope
is($run->('/none/ok?op=n', $key)->body, "run 1\n", 'unset');
is($run->('/none/ok?op=n', $key)->body, "run 1\n", 'replayed, unset');
--- no_error_log
[error]



=== TEST 5: on, off, and inheritance
--- http_config
    idempotency           $TEST_STORE;
    idempotency_required  on;
    idempotency_methods   POST;
    idempotency_key       $http_x_key;
--- config
    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;

        location /off/ {
            idempotency  off;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;

            location /off/on/ {
                idempotency           $TEST_STORE;
                idempotency_required  off;
                proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
            }
        }
        location /put/ {
            idempotency_methods  PUT;
            proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
    location /if/ {
        if ($http_x_off) {
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /limited/ {
        limit_except GET {
            allow  127.0.0.1;
            deny   all;
        }
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $runs = sub {
    my ($method, $uri, @headers) = @_;
    my $op = new_key();
    http_request($method, "$uri?op=$op", 'x', [ 'X-Key' => $op, @headers ])
        for 1, 2;
    return app_count($op);
};

is($runs->('POST', '/ok'), 1, 'on in http');
is($runs->('PUT', '/ok'), 2, 'its methods');
is(http_post('/ok', 'x')->status, 400, 'required');
is($runs->('POST', '/off/ok'), 2, 'off in a location');
is(http_post('/off/ok', 'x')->status, 200, 'nothing is required');
is($runs->('POST', '/off/on/ok'), 1, 'on again below');
is(http_post('/off/on/ok', 'x')->status, 200, 'not required there');
is($runs->('PUT', '/put/ok'), 1, 'another method below');
is($runs->('POST', '/put/ok'), 2, 'in place of the outer one');
is($runs->('POST', '/if/ok'), 1, 'beside if');
is($runs->('POST', '/if/ok', 'X-Off' => 1), 1, 'inside if');
is($runs->('POST', '/limited/ok'), 1, 'inside limit_except');



=== TEST 6: what lives for how long
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_ttl         600ms;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /by/ {
        idempotency             $TEST_STORE;
        idempotency_ttl         $http_x_ttl;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /header/ {
        idempotency             $TEST_STORE;
        idempotency_ttl_header  Idempotency-TTL max=1h;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /capped/ {
        idempotency             $TEST_STORE;
        idempotency_ttl_header  Idempotency-TTL max=600ms;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /longer/ {
        idempotency             $TEST_STORE;
        idempotency_ttl         600ms;
        idempotency_ttl_header  Idempotency-TTL max=1h;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency             $TEST_STORE;
        idempotency_ttl_header  off;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# all at once: each is stored, is there, and is asked for again when the short
# ones have had their time

my @short = (
    [ '/ok', [], 'short' ],
    [ '/by/ok', [ 'X-TTL' => '600ms' ], 'by a variable' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '600' ], 'by the client' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '0600' ], 'with a zero before' ],
    [ '/capped/ok', [ 'Idempotency-TTL' => '3600000' ], 'capped' ],
    [ '/capped/ok', [ 'Idempotency-TTL' => '9' x 40 ], 'more than a number' ],
    [ '/longer/ok', [], 'as configured, the client says nothing' ],
    [ '/longer/ok', [ 'Idempotency-TTL' => 'x' ], 'as configured' ],
);

my @long = (
    [ '/by/ok', [], 'an empty variable' ],
    [ '/by/ok', [ 'X-TTL' => 'soon' ], 'a variable that is no time' ],
    [ '/by/ok', [ 'X-TTL' => '0' ], 'a variable that is zero' ],
    [ '/header/ok', [], 'no header' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '' ], 'empty' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '0' ], 'zero' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '-600' ], 'negative' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '600ms' ], 'a unit' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '600.5' ], 'a fraction' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '0x1' ], 'hexadecimal' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '1 600' ], 'two numbers' ],
    [ '/header/ok', [ 'Idempotency-TTL' => '600',
                      'Idempotency-TTL' => '600' ], 'twice' ],
    [ '/longer/ok', [ 'Idempotency-TTL' => '60000' ], 'longer than set' ],
    [ '/off/ok', [ 'Idempotency-TTL' => '600' ], 'off' ],
);

for my $try (@short, @long) {
    my ($uri, $headers, $name) = @$try;
    push @$try, my $op = new_key();

    my $r = http_post("$uri?op=$op", 'x',
                      [ 'Idempotency-Key' => $op, @$headers ]);
    is($r->status, 200, "$name: ran");
}

my $end = Time::HiRes::time() + 0.7;

for my $try (@long) {
    my ($uri, $headers, $name, $op) = @$try;
    http_post("$uri?op=$op", 'x', [ 'Idempotency-Key' => $op, @$headers ]);
    is(app_count($op), 1, "$name: still there");
}

wait_for(sub { Time::HiRes::time() > $end }, 5);

for my $try (@short) {
    my ($uri, $headers, $name, $op) = @$try;
    my $r = http_post("$uri?op=$op", 'x',
                      [ 'Idempotency-Key' => $op, @$headers ]);
    is($r->body, "run 2\n", "$name: has expired");
    is($r->header('Idempotent-Replayed'), undef, "$name: ran anew");
}

for my $try (@long) {
    my ($uri, $headers, $name, $op) = @$try;
    my $r = http_post("$uri?op=$op", 'x',
                      [ 'Idempotency-Key' => $op, @$headers ]);
    is($r->body, "run 1\n", "$name: has not");
}

error_log_like(qr/\[error\] .*"idempotency_ttl" evaluates to "soon"/,
               'a variable that is no time is named');



=== TEST 7: an expired record is no conflict, and the time counts from the end
--- config
    location / {
        idempotency      $TEST_STORE;
        idempotency_ttl  800ms;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold?op=h', 'x', \%key);
app_wait_parked('h');
my $started = Time::HiRes::time();
wait_for(sub { Time::HiRes::time() - $started > 0.9 }, 5);
app_release('h');
is($c->read_response->status, 200, 'ran for longer than it lives');

is(http_post('/hold?op=h', 'x', \%key)->body, "run 1\n", 'stored');

ok(wait_for(sub { http_post('/ok?op=o', 'y', \%key)->status == 200 }, 5),
   'another request with this key, in the end');
is(app_count('h'), 1, 'the first ran once');
is(app_count('o'), 1, 'the other ran once');
