# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A client that an access check refused gets the page of that error, wherever
# error_page takes it from: never a stored response, and it never takes the
# lock of a key.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $auth = <<'_EOC_';
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_2;

        location / {
            if ($http_x_deny) {
                return 403;
            }

            return 204;
        }
    }
_EOC_

our $auth_location = <<'_EOC_';
    location = /auth {
        internal;
        idempotency              off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_PORT_2;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
    }
_EOC_


# a key that was used, one that was not, and the same again for a client that
# may

sub check_denied
{
    my ($uri, $status) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $used = new_key();
    my $first = http_post("$uri?op=$used", 'x', { 'Idempotency-Key' => $used });

    is($first->status, 200, "$uri: ran");

    my $unused = new_key();

    for my $key ($used, $unused) {
        my $name = "$uri: " . ($key eq $used ? 'a used key' : 'a new key');

        my $r = http_post("$uri?op=$key&page=1", 'x',
                          { 'Idempotency-Key' => $key, 'X-Deny' => 1 });
        is($r->status, $status, "$name: denied, another request");

        $r = http_post("$uri?op=$key", 'x',
                       { 'Idempotency-Key' => $key, 'X-Deny' => 1 });
        is($r->status, $status, "$name: denied");
        is($r->header('Idempotent-Replayed'), undef, "$name: not replayed");
        is($r->header('X-Page'), 'denied', "$name: the page of the error");
    }

    my $r = http_post("$uri?op=$used", 'x', { 'Idempotency-Key' => $used });
    is($r->body, $first->body, "$uri: the record is as it was");
    is($r->header('Idempotent-Replayed'), 'true', "$uri: replayed");

    app_reset();
    $r = http_post("$uri?op=$unused", 'x', { 'Idempotency-Key' => $unused });
    is($r->status, 200, "$uri: the denied client left no record");
    is($r->body, "run 1\n", "$uri: it runs");
    is($r->header('Idempotent-Replayed'), undef, "$uri: for the first time");
}

run_tests();

__DATA__

=== TEST 1: error_page to a named location, to a path, with another status
--- http_config eval: $::auth
--- config eval
$::auth_location . <<'_EOC_';
    location /named/ {
        idempotency   $TEST_STORE;
        auth_request  /auth;
        error_page    403 @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ok/ {
        idempotency   $TEST_STORE;
        auth_request  /auth;
        error_page    403 =200 @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /path/ {
        idempotency   $TEST_STORE;
        auth_request  /auth;
        error_page    403 /denied/ok;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /recursive/ {
        idempotency            $TEST_STORE;
        auth_request           /auth;
        recursive_error_pages  on;
        error_page             403 = @denied;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @denied {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /denied/ {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
check_denied('/named/ok', 403);
check_denied('/ok/ok', 200);
check_denied('/path/ok', 403);
check_denied('/recursive/ok', 200);



=== TEST 2: idempotency is on for the page, too
--- http_config eval: $::auth
--- config eval
$::auth_location . <<'_EOC_';
    idempotency  $TEST_STORE;

    location / {
        auth_request  /auth;
        error_page    403 @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /path/ {
        auth_request  /auth;
        error_page    403 =200 /denied/ok;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @denied {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /denied/ {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
check_denied('/ok', 403);
check_denied('/path/ok', 200);



=== TEST 3: a key that is known after the access phase only
--- http_config eval: $::auth
--- config eval
$::auth_location . <<'_EOC_';
    idempotency      $TEST_STORE;
    set              $header $http_idempotency_key;
    idempotency_key  $header;

    location / {
        auth_request  /auth;
        error_page    403 @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @denied {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
check_denied('/ok', 403);



=== TEST 4: refused ahead of every access check
--- http_config
    limit_req_zone $http_x_deny zone=deny:64k rate=1r/m;
--- config
    idempotency  $TEST_STORE;

    location / {
        if ($http_x_deny) {
            return 403;
        }
        error_page    403 @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /path/ {
        if ($http_x_deny) {
            return 403;
        }
        error_page    403 =200 /denied/ok;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /limited/ {
        limit_req         zone=deny;
        limit_req_status  429;
        error_page        429 @denied;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @denied {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /denied/ {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
check_denied('/ok', 403);
check_denied('/path/ok', 200);

# the first of a minute is let in
http_post('/limited/ok', 'x', { 'X-Deny' => 1 });
check_denied('/limited/ok', 429);



=== TEST 5: what is not an error of access is still covered
--- config
    location / {
        idempotency  $TEST_STORE;
        error_page   405 = @app;
    }
    location /plain/ {
        error_page   405 = @covered;
    }
    location @app {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @covered {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;

        if ($http_x_if) {
            set $nothing 1;
        }
    }
--- user_files
>>> ok
file
>>> plain/ok
file
--- client
for my $try ([ '/ok' ], [ '/plain/ok' ], [ '/plain/ok', 'X-If' => 1 ]) {
    my ($uri, %headers) = @$try;
    my $op = new_key();
    my $name = join ' ', @$try;

    $headers{'Idempotency-Key'} = $op;

    is(http_post("$uri?op=$op", 'x', \%headers)->body, "run 1\n", "$name: ran");

    my $r = http_post("$uri?op=$op", 'x', \%headers);
    is($r->body, "run 1\n", "$name: replayed");
    is($r->header('Idempotent-Replayed'), 'true', "$name: says so");
    is(app_count($op), 1, "$name: ran once");
}



=== TEST 6: a request that Lua sends elsewhere stays covered
--- modules: lua
--- config
    location / {
        idempotency           $TEST_STORE;
        access_by_lua_block   { ngx.exec("@app") }
    }
    location @app {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran');
is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 7: refused ahead of every access check, and nginx leaves no mark
--- modules: lua
--- config
    idempotency            $TEST_STORE;
    recursive_error_pages  on;

    location / {
        if ($http_x_deny) {
            return 403;
        }
        error_page    403 = @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /lua/ {
        rewrite_by_lua_block {
            if ngx.var.http_x_deny then
                return ngx.exit(403)
            end
        }
        error_page    403 = @denied;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @denied {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
check_denied('/ok', 200);
check_denied('/lua/ok', 200);



=== TEST 8: ... with a variable, with a URI
--- config
    idempotency            $TEST_STORE;
    idempotency_methods    POST GET HEAD;
    recursive_error_pages  on;

    location / {
        set $page @denied;
        if ($http_x_deny) {
            return 403;
        }
        error_page    403 = $page;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /uri/ {
        if ($http_x_deny) {
            return 403;
        }
        error_page    403 = /denied/ok?$args;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @denied {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /denied/ {
        add_header    X-Page denied always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
check_denied('/ok', 200);
check_denied('/uri/ok', 200);

for my $method (qw(GET HEAD)) {
    my %key = ('Idempotency-Key' => new_key());

    http_request($method, "/uri/ok?op=$method", undef, \%key);

    my $r = http_request($method, "/uri/ok?op=$method", undef,
                         { %key, 'X-Deny' => 1 });
    is($r->header('Idempotent-Replayed'), undef, "$method: not replayed");
    is($r->header('X-Page'), 'denied', "$method: the page of the error");
}



=== TEST 9: ... and what is not refused is covered there as ever
--- modules: lua
--- config
    idempotency            $TEST_STORE;
    recursive_error_pages  on;
    error_page             404 = @missing;

    location /exec/ {
        rewrite_by_lua_block { return ngx.exec("@app") }
    }
    location /rewrite/ {
        rewrite  ^/rewrite(/.*) $1 last;
    }
    location /access/ {
        error_page  403 = /sorry.html;
        access_by_lua_block { return ngx.exec("@app") }
    }
    location /args/ {
        error_page  403 = /sorry.html?$args;
        access_by_lua_block { return ngx.exec("@app") }
    }
    location /files/ {
        error_page  404 405 = @missing;
    }
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @app {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @missing {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $path (qw(exec rewrite access args files)) {
    my %key = ('Idempotency-Key' => new_key());

    is(http_post("/$path/ok?op=$path", 'x', \%key)->body, "run 1\n",
       "$path: ran");
    is(http_post("/$path/ok?op=$path", 'x', \%key)->body, "run 1\n",
       "$path: replayed");
    is(app_count($path), 1, "$path: ran once");
}



=== TEST 10: "return" and an error_page choose a location: a warning
--- config
    idempotency  $TEST_STORE;

    location / {
        error_page  418 = @write;
        if ($request_method = POST) {
            return 418;
        }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @write {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /own/ {
        error_page  418 = @own;
        if ($request_method = POST) {
            return 418;
        }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @own {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

http_post('/own/ok?op=own', 'x', \%key) for 1 .. 2;
is(app_count('own'), 1, 'covered where the directive stands');

http_post('/ok?op=inherited', 'x', \%key) for 1 .. 2;
is(app_count('inherited'), 2, 'not covered where it is inherited');
--- error_log eval
qr/\[warn\] .*error_page led a request to location "\@write" .*not covered/
--- no_error_log
@own
