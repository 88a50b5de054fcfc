# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Once something was sent to a peer, nginx does not try the next one: by
# default it would, for PUT, DELETE, GET and the like, and the operation would
# run twice.  What was never sent may go on.  The method is as it was for
# whatever comes afterwards.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $http = <<'_EOC_';
    upstream peers {
        server  127.0.0.1:$TEST_NGINX_APP_PORT   max_fails=0;
        server  127.0.0.1:$TEST_NGINX_APP2_PORT  max_fails=0 backup;
    }
    upstream keepalive_peers {
        server  127.0.0.1:$TEST_NGINX_APP_PORT   max_fails=0;
        server  127.0.0.1:$TEST_NGINX_APP2_PORT  max_fails=0 backup;
        keepalive 4;
    }
    upstream first_refuses {
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT  max_fails=0;
        server  127.0.0.1:$TEST_NGINX_APP2_PORT  max_fails=0 backup;
    }
_EOC_

our @methods = qw(PUT DELETE POST PATCH GET HEAD OPTIONS);

run_tests();

__DATA__

=== TEST 1: a peer that fails after the request was sent is the last
--- http_config eval: $::http
--- config
    idempotency              $TEST_STORE;
    idempotency_methods      PUT DELETE POST PATCH GET HEAD OPTIONS;

    location / {
        proxy_next_upstream  error timeout invalid_header http_500 http_503
                             http_404 http_429;
        proxy_read_timeout   250ms;
        proxy_pass           http://peers;
    }
    location /keepalive/ {
        proxy_http_version   1.1;
        proxy_set_header     Connection "";
        proxy_pass           http://keepalive_peers;
    }
    location /default/ {
        proxy_pass           http://peers;
    }
--- client
my $n = 0;

for my $method (@::methods) {
    my @ways = $method eq 'PUT'
        ? qw(close reset hang garbage status/503 status/404)
        : qw(close status/503);

    for my $way (@ways) {
        my $op = 'op' . ++$n;
        my $status = $way =~ m{/(\d+)} ? $1 : $way eq 'hang' ? 504 : 502;

        my $r = http_request($method, "/$way?op=$op", 'x',
                             { 'Idempotency-Key' => new_key() });

        is($r->status, $status, "$method $way: an answer");
        is(app_count($op, peer => 1), 1, "$method $way: the first peer ran");
        is(app_count($op, peer => 2), 0, "$method $way: the second did not");
    }
}

for my $method (qw(PUT DELETE)) {
    my %key = ('Idempotency-Key' => new_key());

    http_request($method, "/default/close?op=default$method", 'x', \%key);
    is(app_count("default$method", peer => 2), 0, "$method: by default");

    is(http_request($method, "/default/close?op=default$method", 'x',
                    \%key)->error_code, 'OUTCOME_UNKNOWN', "$method: unknown");
    is(app_count("default$method"), 1, "$method: ran once");
}

# over a connection that was used before

is(http_put('/keepalive/ok?op=k', 'x')->status, 200, 'a connection to keep');
my $r = http_put('/keepalive/close?op=k', 'x', { 'Idempotency-Key' => 'k' });
is($r->status, 502, 'keepalive: fails');
is(app_count('k', peer => 2), 0, 'keepalive: the second peer did not run');

# without a key nginx is as it was

http_put('/close?op=plain', 'x');
is(app_count('plain', peer => 2), 1, 'not covered: the next peer was tried');



=== TEST 2: non_idempotent is the operator's word for it
--- http_config eval: $::http
--- config
    location / {
        idempotency          $TEST_STORE;
        proxy_next_upstream  error non_idempotent;
        proxy_pass           http://peers;
    }
--- client
for my $method (qw(PUT DELETE POST)) {
    http_request($method, "/close?op=$method", 'x',
                 { 'Idempotency-Key' => new_key() });
    is(app_count($method, peer => 1), 1, "$method: the first peer ran");
    is(app_count($method, peer => 2), 1, "$method: the second one, too");
}



=== TEST 3: a peer that refuses is passed over
--- http_config eval: $::http
--- config
    location / {
        idempotency          $TEST_STORE;
        idempotency_methods  PUT DELETE POST PATCH GET HEAD OPTIONS;
        proxy_pass           http://first_refuses;
    }
--- client
for my $method (@::methods) {
    my %key = ('Idempotency-Key' => new_key());

    my $r = http_request($method, "/ok?op=$method", 'x', \%key);
    is($r->status, 200, "$method: answered");
    is($r->header('X-App'), 2, "$method: by the second peer");

    $r = http_request($method, "/ok?op=$method", 'x', \%key);
    is($r->status, 200, "$method: replayed");
    is($r->header('Idempotent-Replayed'), 'true', "$method: says so");
    is(app_count($method), 1, "$method: ran once");
}

# the filters see a HEAD as one: the size it tells is not that of its body

my %head = ('Idempotency-Key' => new_key());
http_request('HEAD', '/size?n=2000000&op=head', undef, \%head);
my $head = http_request('HEAD', '/size?n=2000000&op=head', undef, \%head);
is($head->status, 200, 'HEAD: of something large');
is($head->header('Content-Length'), 2000000, 'HEAD: which is told');
is($head->header('Idempotent-Replayed'), 'true', 'HEAD: replayed');

# the second peer fails after the request was sent: that is the end of it

my %key = ('Idempotency-Key' => new_key());
is(http_put('/close?op=second', 'x', \%key)->status, 502, 'fails');
is(http_put('/close?op=second', 'x', \%key)->error_code, 'OUTCOME_UNKNOWN',
   'unknown');
is(app_count('second'), 1, 'ran once');



=== TEST 4: the method afterwards
--- http_config eval: $::http
--- config
    idempotency                 $TEST_STORE;
    idempotency_methods         PUT DELETE GET;

    location / {
        error_page              502 = @after;
        proxy_intercept_errors  on;
        error_page              503 = @after;
        proxy_pass              http://peers;
    }
    location /accel {
        proxy_pass              http://peers;
    }
    location @after {
        limit_except PUT DELETE GET {
            deny                all;
        }
        rewrite                 ^ /echo break;
        proxy_set_header        X-Method $request_method;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location /file {
        internal;
        limit_except GET {
            deny                all;
        }
    }
--- user_files
>>> file
page
--- client
for my $method (qw(PUT DELETE GET)) {
    my $n = 0;

    for my $uri ('/close', '/truncate', '/status/503', '/accel?to=@after') {
        my $op = $method . ++$n;
        my $r = http_request($method, $uri . ($uri =~ /\?/ ? '&' : '?')
                                      . "op=$op", 'x',
                             { 'Idempotency-Key' => new_key() });

        is($r->status, 200, "$method $uri: the other location let it in");
        my $echo = $r->status == 200 ? $r->json : { headers => [] };
        is($echo->{method}, $method, "$method $uri: with its method");
        is_deeply([ map { $_->[1] } grep { $_->[0] eq 'X-Method' }
                    @{ $echo->{headers} } ], [ $method ],
                  "$method $uri: in a variable");
        access_log_like(qr{"$method \S*op=$op}, "$method $uri: in the log");
    }

    my $r = http_request($method, '/accel?to=/file', 'x',
                         { 'Idempotency-Key' => new_key() });
    is($r->body, "page\n", "$method: X-Accel-Redirect to a file");
}



=== TEST 5: an upstream that starts late, or in another location, or below
--- modules: lua
--- http_config eval
"    proxy_cache_path  \$TEST_NGINX_SERVER_ROOT/cache keys_zone=cache:1m;\n"
. $::http
--- config
    idempotency              $TEST_STORE;
    idempotency_methods      PUT DELETE POST GET;

    location / {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /locked/ {
        proxy_cache          cache;
        proxy_cache_key      locked;
        proxy_cache_lock     on;
        proxy_cache_lock_timeout  100ms;
        proxy_pass           http://peers;
    }
    location /dead/ {
        error_page           502 = @peers;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @peers {
        proxy_pass           http://peers;
    }
    location /lua/ {
        content_by_lua_block {
            local res = ngx.location.capture("/peers/close", {
                method = ngx["HTTP_" .. ngx.var.request_method],
                args = ngx.var.args
            })
            ngx.exit(res.status)
        }
    }
    location /peers/ {
        proxy_pass           http://peers;
    }
--- client
# somebody has the lock of the cache entry

my $c = send_request('GET', '/locked/hold?op=lock', '');
app_wait_parked('lock');

my $op = 0;

for (1 .. 2) {
    my $id = 'late' . ++$op;
    my $r = http_get("/locked/close?op=$id", { 'Idempotency-Key' => new_key() });

    is($r->status, 502, "late: failed");
    is(app_count($id, peer => 1), 1, "late: the first peer ran");
    is(app_count($id, peer => 2), 0, "late: the second did not");
}

app_release('lock');
$c->read_response;

for my $method (qw(PUT DELETE GET POST)) {
    my $id = "dead$method";
    my $r = http_request($method, "/dead/close?op=$id", 'x',
                         { 'Idempotency-Key' => new_key() });

    is($r->status, 502, "$method: failed");
    is(app_count($id, peer => 1), 1, "$method: the first peer ran");
    is(app_count($id, peer => 2), 0, "$method: the second did not");

    $r = http_request($method, "/dead/echo?op=$id", 'x',
                      { 'Idempotency-Key' => new_key() });
    is($r->json->{method}, $method, "$method: as it was");
}

for my $method (qw(PUT DELETE POST)) {
    my $id = "lua$method";
    my $r = http_request($method, "/lua/?op=$id", 'x',
                         { 'Idempotency-Key' => new_key() });

    is($r->status, 502, "Lua, $method: failed");
    is(app_count($id, peer => 1), 1, "Lua, $method: the first peer ran");
    is(app_count($id, peer => 2), 0, "Lua, $method: the second did not");
}
