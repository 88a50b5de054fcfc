# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Internal redirects.  Once a request has begun, the configuration of the
# location where it did holds, wherever error_page, X-Accel-Redirect,
# try_files, index or a named location lead; what comes out in the end is the
# one response, and is replayed as it was.  Before that, the location counts
# where the request arrives.  Subrequests pass untouched.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# the same response, but for what a replay adds

sub same_response {
    my ($first, $retry, $what) = @_;

    my @less = qw(Date Connection Idempotent-Replayed X-Original-Request-Time
                  Transfer-Encoding Content-Length);

    is($retry->header('Idempotent-Replayed'), 'true', "$what: replayed");
    is($retry->status, $first->status, "$what: same status");
    is($retry->reason, $first->reason, "$what: same reason");
    is($retry->header_lines(@less), $first->header_lines(@less),
       "$what: same header");
    is($retry->body, $first->body, "$what: same body");
}

# Content of its own for a file below html/

sub write_file {
    my ($name, $text) = @_;

    my $path = "$ENV{TEST_NGINX_SERVER_ROOT}/html/$name";

    open my $fh, '>', $path or die "$path: $!";
    print $fh $text;
    close $fh or die "$path: $!";
}

run_tests();

__DATA__

=== TEST 1: error_page, into locations that have it off, or otherwise
--- store: memory
--- http_config
    idempotency_store one memory { zone one:1m; }
    idempotency_store two memory { zone two:1m; }
--- config
    idempotency_fingerprint  off;

    location /off/ {
        idempotency  one;
        error_page   502 = @off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @off {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /other/ {
        idempotency  one;
        error_page   502 = @other;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @other {
        idempotency             two;
        idempotency_key_format  uuid;
        idempotency_methods     GET;
        idempotency_keep_status 5xx;
        idempotency_max_response 1;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /two/ {
        idempotency  two;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where (qw(off other)) {
    my %key = ('Idempotency-Key' => new_key());

    my $first = http_post("/$where/headers?op=$where", 'x', \%key);
    my $retry = http_post("/$where/headers?op=$where", 'x', \%key);

    is($first->status, 201, "$where: ran");
    same_response($first, $retry, $where);
    is(app_count($where), 1, "$where: once");

    http_post("/two/ok?op=$where", 'x', \%key);
    is(app_count($where), 2, "$where: the other store knows nothing of it");
}



=== TEST 2: error_page, on the way to several peers
--- config
    idempotency  $TEST_STORE;

    location /chain/ {
        recursive_error_pages  on;
        error_page  502 = @a;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @a {
        recursive_error_pages  on;
        error_page  502 = @b;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @b {
        recursive_error_pages  on;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_intercept_errors  on;
        error_page  404 = @c;
    }

    location @c {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }

    # the application's own error, with nginx's page for it

    location /intercept/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_intercept_errors  on;
        error_page  404 /404.html;
        error_page  500 =200 /404.html;
    }

    location = /404.html { }

    # nothing was sent to anybody

    location /sorry/ {
        error_page  502 =200 @sorry;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @sorry {
        return 200 "sorry\n";
    }
--- user_files
>>> 404.html
not here
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/chain/ok?op=c', 'x', \%key);
my $retry = http_post('/chain/ok?op=c', 'x', \%key);

is($first->header('X-App'), 1, 'by the third peer');
same_response($first, $retry, 'third peer');
is(app_count('c'), 1, 'third peer: once');

%key = ('Idempotency-Key' => new_key());

$first = http_post('/chain/x?op=d&status=404', 'x', \%key);

is($first->header('X-App'), 2, 'by the fourth peer');
same_response($first, http_post('/chain/x?op=d&status=404', 'x', \%key),
              'fourth peer');
is(app_count('d', peer => 1), 1, 'fourth peer: the third ran once');
is(app_count('d', peer => 2), 1, 'fourth peer: once');

%key = ('Idempotency-Key' => new_key());

$first = http_post('/intercept/x?op=e&status=404', 'x', \%key);

is($first->body, "not here\n", 'a page of nginx');
is($first->status, 404, 'with the status of the application');
same_response($first, http_post('/intercept/x?op=e&status=404', 'x', \%key),
              'page');
is(app_count('e'), 1, 'page: ran once');

# judged by what the application said, not by what is made of it

%key = ('Idempotency-Key' => new_key());

is(http_post('/intercept/x?op=f&status=500', 'x', \%key)->status, 200,
   'a 200 for an error');
http_post('/intercept/x?op=f&status=500', 'x', \%key);
is(app_count('f'), 2, 'which is not kept');

%key = ('Idempotency-Key' => new_key());

for (1 .. 2) {
    my $r = http_post('/sorry/ok', 'x', \%key);

    is($r->body, "sorry\n", 'a 200 for a refused connection');
    is($r->header('Idempotent-Replayed'), undef, 'which is not kept');
}



=== TEST 3: X-Accel-Redirect
--- store: memory
--- http_config
    idempotency_store other memory { zone other:1m; }
--- config
    location /accel {
        idempotency  $TEST_STORE;
        add_header   X-From origin;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /file/ {
        internal;
    }

    location /text {
        internal;
        return 200 "text\n";
    }

    location /inner/ {
        internal;
        idempotency             other;
        idempotency_required    on;
        idempotency_key_format  uuid;
        idempotency_methods     GET POST;
        add_header              X-From inner;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }

    location @named {
        idempotency             other;
        idempotency_key_format  uuid;
        rewrite                 ^ /ok?op=named? break;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }

    location /closed/ {
        internal;
        deny         all;
    }
--- user_files
>>> file/a.txt
a file
--- client
my $n = 0;

for my $to ('/file/a.txt', '/text', '/inner/headers?op=inner',
            '/file/missing')
{
    my %key = ('Idempotency-Key' => new_key());
    my $op = 'accel' . ++$n;
    my $uri = "/accel?op=$op&to=" . $to =~ s/([?&=])/sprintf '%%%02X', ord $1/egr;

    my $first = http_post($uri, 'x', \%key);
    my $retry = http_post($uri, 'x', \%key);

    my @less = qw(Date Connection X-From Idempotent-Replayed X-Original-Request-Time);

    is($retry->header('Idempotent-Replayed'), 'true', "$to: replayed");
    is($retry->status, $first->status, "$to: same status");
    is($retry->header_lines(@less), $first->header_lines(@less),
       "$to: same header");
    is($retry->body, $first->body, "$to: same body");
    is(app_count($op), 1, "$to: ran once");

    is(http_post($uri, 'y', \%key)->error_code, 'IDEMPOTENCY_CONFLICT',
       "$to: another body");

    # each response has the headers of the location that sends it, once

    if ($first->status == 201) {
        is(join(' ', $first->header('X-From')), 'inner', "$to: add_header");
    }

    # what a return said was let in nowhere but where it began

    if ($first->status < 400) {
        is(join(' ', $retry->header('X-From')),
           $to eq '/text' ? 'origin' : join(' ', $first->header('X-From')),
           "$to: add_header on a replay");
    }
}

is(app_count('inner', peer => 2), 1, 'the inner one ran once');

# refused there: a status that is not kept says nothing about what ran

my %key = ('Idempotency-Key' => new_key());

is(http_post('/accel?op=closed&to=/closed/x', 'x', \%key)->status, 403,
   'refused');
is(http_post('/accel?op=closed&to=/closed/x', 'x', \%key)->error_code,
   'OUTCOME_UNKNOWN', 'refused: unknown');
is(app_count('closed'), 1, 'refused: ran once');

%key = ('Idempotency-Key' => new_key());

is(http_post('/accel?op=n&to=@named', 'x', \%key)->header('X-App'), 2,
   'a named location');
is(http_post('/accel?op=n&to=@named', 'x', \%key)->header('X-App'), 2,
   'replayed');
is(app_count('n', peer => 1), 1, 'ran once');
is(app_count('named'), 1, 'there too');

# by PUT, whose method nginx is kept from passing on with

%key = ('Idempotency-Key' => new_key());

my $r = http_put('/accel?op=put&to=/inner/echo', 'x', \%key);
is($r->json->{method}, 'GET', 'PUT: as GET, as nginx does');
is(http_put('/accel?op=put&to=/inner/echo', 'x', \%key)->body, $r->body,
   'PUT: replayed');



=== TEST 4: try_files
--- config
    location /named/ {
        idempotency  $TEST_STORE;
        try_files    $uri @app;
    }

    location @app {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /uri/ {
        idempotency  $TEST_STORE;
        try_files    $uri /app/echo?op=uri;
    }

    location /app/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /script/ {
        idempotency  $TEST_STORE;
        try_files    $uri =404;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /none/ {
        idempotency  $TEST_STORE;
        try_files    $uri =404;
    }
--- user_files
>>> script/there
a script
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/named/headers?op=a', 'x', \%key);

is($first->status, 201, 'ran');
same_response($first, http_post('/named/headers?op=a', 'x', \%key), 'named');
is(app_count('a'), 1, 'named: once');

$first = http_post('/uri/x', 'hello', { 'Idempotency-Key' => "$key{'Idempotency-Key'}b" });

is($first->json->{method}, 'POST', 'by URI: as it was');
is($first->json->{length}, 5, 'by URI: with its body');
same_response($first, http_post('/uri/x', 'hello',
                         { 'Idempotency-Key' => "$key{'Idempotency-Key'}b" }),
              'by URI');
is(app_count('uri'), 1, 'by URI: once');

%key = ('Idempotency-Key' => new_key());

is(http_post('/script/there', 'x', \%key)->body, "run 1\n", 'found: ran');
is(http_post('/script/there', 'x', \%key)->body, "run 1\n", 'found: replayed');

# an early error of nginx's own: nothing has run, and nothing is kept

%key = ('Idempotency-Key' => new_key());

is(http_post('/script/late', 'x', \%key)->status, 404, 'not found');
write_file('script/late', 'here now');
is(http_post('/script/late', 'x', \%key)->body, "run 1\n",
   'not found is not kept');

%key = ('Idempotency-Key' => new_key());

for (1 .. 2) {
    my $r = http_post('/none/x', 'x', \%key);

    is($r->status, 404, 'not found either');
    is($r->header('Idempotent-Replayed'), undef, 'and not kept');
}



=== TEST 5: before it has begun, the location counts where it arrives
--- config
    location /last/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  uuid;
        rewrite                 ^/last/(.*) /app/$1 last;
    }

    location /dispatch/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  uuid;
        error_page              418 = @app;
        return                  418;
    }

    location /off/ {
        rewrite  ^/off/(.*) /app/$1 last;
    }

    location /away/ {
        idempotency  $TEST_STORE;
        rewrite      ^/away/(.*) /plain/$1 last;
    }

    location /app/ {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @app {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /plain/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where (qw(last dispatch off)) {
    my %key = ('Idempotency-Key' => new_key());

    my $first = http_post("/$where/headers?op=$where", 'x', \%key);
    my $retry = http_post("/$where/headers?op=$where", 'x', \%key);

    is($first->status, 201, "$where: ran");
    same_response($first, $retry, $where);
    is(app_count($where), 1, "$where: once");

    # the request is what the client sent, not what nginx makes of it

    is(http_post("/app/headers?op=$where", 'x', \%key)->error_code,
       'IDEMPOTENCY_CONFLICT', "$where: another URI");
}

my %key = ('Idempotency-Key' => new_key());

http_post('/away/ok?op=away', 'x', \%key) for 1 .. 2;
is(app_count('away'), 2, 'where it is off');



=== TEST 6: index
--- config
    location /dir/ {
        idempotency          $TEST_STORE;
        idempotency_methods  GET;
        index                page.html;
    }

    location = /dir/page.html {
        idempotency  off;
    }
--- user_files
>>> dir/page.html
first
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_get('/dir/', \%key);

is($first->body, "first\n", 'the page');

write_file('dir/page.html', "second, and longer\n");

same_response($first, http_get('/dir/', \%key), 'index');
is(http_get('/dir/')->body, "second, and longer\n", 'without the key');



=== TEST 7: a body that is too large, or does not come
--- config
    client_body_timeout   300ms;
    idempotency           $TEST_STORE;

    location / {
        client_max_body_size  1k;
        error_page  413 = @large;
        error_page  408 = @large;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /plain/ {
        client_max_body_size  1k;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @large {
        client_max_body_size  1m;
        add_header  X-Page large always;
        rewrite     ^ /ok?op=large? break;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
    }
--- client
my $large = 'x' x 2000;

my $chunked = sub {
    my ($uri, $key) = @_;
    return http_raw("POST $uri HTTP/1.1\r\nHost: localhost\r\n"
                    . "Idempotency-Key: $key\r\nConnection: close\r\n"
                    . "Transfer-Encoding: chunked\r\n\r\n"
                    . sprintf("%x\r\n%s\r\n0\r\n\r\n", length $large, $large));
};

for my $path ('/', '/plain/') {
    my $key = new_key();
    my %key = ('Idempotency-Key' => $key);

    for (1 .. 2) {
        my $r = http_post("${path}ok?op=a$path", $large, \%key);

        is($r->status, $path eq '/' ? 200 : 413, "$path: too large");
        is($r->header('Idempotent-Replayed'), undef, "$path: not kept");

        $r = $chunked->("${path}ok?op=a$path", $key);

        is($r->status, $path eq '/' ? 200 : 413, "$path: too large, chunked");
        is($r->header('Idempotent-Replayed'), undef, "$path: not kept");
    }

    is(app_count("a$path"), 0, "$path: none of them ran");

    my $c = connect_client();

    $c->send_part("POST ${path}ok?op=a$path HTTP/1.1\r\nHost: localhost\r\n"
                  . "Idempotency-Key: $key\r\nContent-Length: 10\r\n\r\n123");
    ok($c->closed(10), "$path: the body does not come");

    my $r = http_post("${path}ok?op=a$path", 'x', \%key);

    is($r->body, "run 1\n", "$path: the key was not taken");
    is($r->header('X-Page'), undef, "$path: the request itself");
}

is(app_count('large'), 4, 'the page was made each time');

# an empty body, then one that is thrown away: not the same request

my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=e', '', \%key)->body, "run 1\n", 'an empty body');

my $r = http_post('/ok?op=e', $large, \%key);

is($r->header('X-Page'), 'large', 'one that is too large');
is($r->header('Idempotent-Replayed'), undef, 'is not an empty one');



=== TEST 8: post_action
--- config
    location / {
        idempotency  $TEST_STORE;
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /plain-error/ {
        idempotency             $TEST_STORE;
        idempotency_error_body  off;
        post_action             /after;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /page/ {
        idempotency             $TEST_STORE;
        idempotency_error_body  off;
        error_page              400 409 /page.html;
        post_action             /after;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /page.html {
        post_action  /after;
    }

    location /plain/ {
        post_action  @after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /after {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }

    location @after {
        idempotency  $TEST_STORE;
        rewrite      ^ /ok?op=named? break;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> page.html
a page
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = connect_client();

for (1 .. 2) {
    $c->request('POST', '/ok?op=a', 'x', \%key);
    is($c->read_response->body, "run 1\n", 'as without it');
}

is(app_count('a'), 1, 'ran once');

# it is for what ran, and not for a replay, nor for what is refused: here, by
# nginx's own page, by a page of another location, and by one with an action

is(app_wait('after'), 1, 'the action of the first');

for my $uri (qw(/ok /plain-error/ok /page/ok)) {
    my %other = ('Idempotency-Key' => new_key());
    my $op = $uri =~ s/\W/-/gr;

    app_reset();

    is(http_post("$uri?op=$op", 'x', \%other)->body, "run 1\n", "$uri: ran");
    is(app_wait('after'), 1, "$uri: the action");

    is(http_post("$uri?op=$op", 'y', \%other)->status, 409, "$uri: refused");
    is(http_post("$uri?op=$op", 'x', { 'Idempotency-Key' => '"' })->status,
       400, "$uri: refused, its key");
    is(http_post("$uri?op=$op", 'x', \%other)->header('Idempotent-Replayed'),
       'true', "$uri: replayed");

    # the one worker does one after another: what they did is done

    is(http_post("$uri?op=last$op", 'x', { 'Idempotency-Key' => new_key() })
           ->body, "run 1\n", "$uri: the next one runs");
    ok(app_wait('after', 2), "$uri: with its action");
    is(app_count('after'), 2, "$uri: and no other");
}

$c = connect_client();

# afterwards it is an action of its own, and nothing to be locked

%key = ('Idempotency-Key' => new_key());

for my $n (1 .. 3) {
    $c->request('POST', '/plain/ok?op=b', 'x', \%key);
    is($c->read_response->body, "run $n\n", 'where it is off');
    is(app_wait('named', $n), $n, 'the action');
}

# the key of the action's location is free

is(http_post('/ok?op=c', 'x', \%key)->body, "run 1\n", 'no lock');



=== TEST 9: SSI and what is added to a body: of each response anew, once
--- config
    ssi  on;

    location = /page.html {
        idempotency          $TEST_STORE;
        idempotency_methods  GET;
    }

    location = /added.html {
        idempotency          $TEST_STORE;
        idempotency_methods  GET;
        addition_types       *;
        add_before_body      /part/ok?op=before;
        add_after_body       /part/ok?op=after;
    }

    location /part/ {
        idempotency          $TEST_STORE;
        idempotency_methods  GET POST;
        idempotency_required on;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> page.html
one <!--# include virtual="/part/ok?op=part" -->two <!--# echo var="arg_x" default="none" -->
>>> added.html
body
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_get('/page.html?x=1', \%key)->body, "one run 1\ntwo 1\n", 'first');
is(app_count('part'), 1, 'one subrequest');

write_file('page.html', 'changed');

my $r = http_get('/page.html?x=1', \%key);

is($r->header('Idempotent-Replayed'), 'true', 'replayed');
is($r->body, "one run 2\ntwo 1\n", 'the page as it was, its parts anew');
is(app_count('part'), 2, 'one more subrequest');

%key = ('Idempotency-Key' => new_key());

for my $n (1 .. 2) {
    is(http_get('/added.html', \%key)->body, "run $n\nbody\nrun $n\n",
       'added around, once');
}

# subrequests took no lock and left no record: the keys are free there

is(http_get('/part/ok?op=part', { 'Idempotency-Key' => new_key() })->body,
   "run 3\n", 'by itself');
is(http_get('/part/ok?op=part')->error_code, 'IDEMPOTENCY_KEY_MISSING',
   'where a key is required');



=== TEST 10: Lua: subrequests into an idempotent location, and out of one
--- modules: lua
--- config
    location /into {
        content_by_lua_block {
            local res = ngx.location.capture("/part/ok?op=into",
                { method = ngx.HTTP_POST, body = "x" })
            ngx.print("got ", res.status, " ", res.body)
        }
    }

    location /out {
        idempotency  $TEST_STORE;
        content_by_lua_block {
            local res = ngx.location.capture("/part/ok?op=out",
                { method = ngx.HTTP_POST, body = "x" })
            ngx.header["X-Lua"] = "yes"
            ngx.print("got ", res.status, " ", res.body)
        }
    }

    location /exec {
        idempotency  $TEST_STORE;
        content_by_lua_block { ngx.exec("/app/ok", "op=exec") }
    }

    location /error {
        idempotency  $TEST_STORE;
        content_by_lua_block { ngx.exit(tonumber(ngx.var.arg_status)) }
    }

    location /app/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  uuid;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /part/ {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

for my $n (1 .. 2) {
    is(http_post('/into', 'x', \%key)->body, "got 200 run $n\n",
       'a subrequest is not replayed');
}

my $first = http_post('/out', 'x', \%key);

is($first->body, "got 200 run 1\n", 'Lua as the content');
same_response($first, http_post('/out', 'x', \%key), 'Lua');
is(app_count('out'), 1, 'Lua: ran once');

%key = ('Idempotency-Key' => new_key());

is(http_post('/exec', 'x', \%key)->body, "run 1\n", 'exec');
is(http_post('/exec', 'x', \%key)->body, "run 1\n", 'exec: replayed');
is(app_count('exec'), 1, 'exec: once');

%key = ('Idempotency-Key' => new_key());

$first = http_post('/error?status=404', 'x', \%key);
is($first->status, 404, 'an error of its own');
same_response($first, http_post('/error?status=404', 'x', \%key), 'error');

%key = ('Idempotency-Key' => new_key());

for (1 .. 2) {
    is(http_post('/error?status=503', 'x', \%key)
           ->header('Idempotent-Replayed'), undef, 'an error that is not kept');
}



=== TEST 11: a refused request, with nginx's own pages
--- config
    idempotency             $TEST_STORE;
    idempotency_error_body  off;
    idempotency_wait        0;

    location / {
        error_page  409 = @run;
        error_page  400 = /run/400;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /page/ {
        error_page  400 409 /page.html;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /text/ {
        error_page  409 = @text;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /again/ {
        recursive_error_pages  on;
        error_page  409 @again;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @again {
        recursive_error_pages  on;
        error_page  409 = @run;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /other/ {
        error_page  409 = @other;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @other {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @run {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /run/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @text {
        return 409 "text\n";
    }

    location = /page.html { }
--- user_files
>>> page.html
a page
--- client
for my $where ('/', '/page/', '/text/', '/again/', '/other/') {
    my %key = ('Idempotency-Key' => new_key());

    is(http_post("${where}ok?op=a$where", 'x', \%key)->body, "run 1\n",
       "$where: ran");

    my $r = http_post("${where}ok?op=a$where", 'y', \%key);

    is($r->status, 409, "$where: refused");
    is($r->header('X-App'), undef, "$where: by nginx");
    is(app_count("a$where"), 1, "$where: never run");

    if ($where eq '/page/') {
        is($r->body, "a page\n", "$where: a page");
    }

    if ($where eq '/text/') {
        is($r->body, "text\n", "$where: a text");
    }

    my $c = send_post("${where}hold?op=b$where", 'x',
                      { 'Idempotency-Key' => (my $held = new_key()) });

    app_wait_parked("b$where");

    $r = http_post("${where}hold?op=b$where", 'x',
                   { 'Idempotency-Key' => $held });

    is($r->status, 409, "$where: busy");
    app_release("b$where");
    is($c->read_response->body, "run 1\n", "$where: the holder");
    is(app_count("b$where"), 1, "$where: once");
}

my $r = http_post('/ok', 'x', { 'Idempotency-Key' => '"' });

is($r->status, 400, 'malformed');
is($r->header('X-App'), undef, 'by nginx');
is(app_count('/run/400'), 0, 'never run');

$r = http_post('/page/ok', 'x', { 'Idempotency-Key' => '"' });

is($r->status, 400, 'malformed');
is($r->body, "a page\n", 'a page');



=== TEST 12: post_action of a request that did not begin
--- http_config
    limit_req_zone  $server_name  zone=slow:1m  rate=1r/s;
--- config
    idempotency  $TEST_STORE;
    location / {
        limit_req    zone=slow burst=9;
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /named/ {
        limit_req    zone=slow burst=9;
        post_action  @after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /after {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }
    location @after {
        rewrite      ^ /ok?op=after? break;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /use {
        idempotency  off;
        limit_req    zone=slow burst=9;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
# the first one is let in at once, so that the next is delayed

http_post('/use', 'x');

for my $uri (qw(/ok?op=a /named/ok?op=b)) {
    my %key = ('Idempotency-Key' => new_key());
    my $delayed = () = error_log() =~ /delaying request/g;

    app_reset();

    my $c = send_post($uri, 'x', \%key);
    ok(wait_for(sub { (() = error_log() =~ /delaying request/g) > $delayed }),
       "$uri: delayed");
    $c->abort;

    # nginx runs it for each client that leaves

    is(app_wait('after'), 1, "$uri: the action");

    my $r = http_post($uri, 'x', \%key);

    is($r->body, "run 1\n", "$uri: has not begun for it");
    is($r->header('Idempotent-Replayed'), undef, "$uri: and left nothing");
    is(app_wait('after', 2), 2, "$uri: its own action");
}



=== TEST 13: post_action of a request that breaks off
--- modules: lua
--- config
    idempotency  $TEST_STORE;
    location /work {
        post_action  /after;
        content_by_lua_block {
            ngx.location.capture("/app", {
                method = ngx.HTTP_POST, args = ngx.var.args
            })
            ngx.exit(ngx.ERROR)
        }
    }
    location /refused {
        post_action  /after;
        access_by_lua_block {
            if not ngx.var.http_x_in then
                ngx.exit(ngx.ERROR)
            end
        }
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
    location = /app {
        rewrite      ^ /ok break;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /after {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }
--- client
# nginx answers nothing; what the action answers is not the response

my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/work?op=a', 'x', \%key);
is(app_wait('after'), 1, 'the action');

my $r = http_post('/work?op=a', 'x', \%key);

is($r->error_code, 'OUTCOME_UNKNOWN', 'it may have run');
is(app_count('a'), 1, 'ran once');
$c->abort;

# nor does it begin for one that was refused

app_reset();
%key = ('Idempotency-Key' => new_key());

$c = send_post('/refused?op=b', 'x', \%key);
is(app_wait('after'), 1, 'refused: the action');

$key{'X-In'} = 1;
is(http_post('/refused?op=b', 'x', \%key)->body, "run 1\n", 'let in');
$c->abort;



=== TEST 14: post_action of a retry that is refused where its original began
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    location /open/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /closed/ {
        if ($http_x_in = "") {
            return 403;
        }
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /named/ {
        if ($http_x_in = "") {
            return 403;
        }
        post_action  @after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /after {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }
    location @after {
        rewrite      ^ /ok?op=after? break;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where ('/closed/', '/named/') {
    my %key = ('Idempotency-Key' => new_key());

    app_reset();

    is(http_post("${where}ok?op=a", 'x', { %key, 'X-In' => 1 })->body,
       "run 1\n", "$where: ran");
    is(app_wait('after'), 1, "$where: its action");

    my $c = connect_client();

    $c->request('POST', '/open/ok?op=a', 'x', \%key);
    is($c->read_response->status, 403, "$where: refused");
    is(app_wait('after', 2), 2, "$where: the action");

    $c->request('POST', '/open/ok?op=b', 'x',
                { 'Idempotency-Key' => new_key() });
    is($c->read_response->body, "run 1\n", "$where: on the same connection");
}
--- no_error_log
[alert]



=== TEST 15: post_action of a request whose body was parsed in turns
--- config
    client_body_buffer_size  2m;

    location / {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  json;
        post_action              /after;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /after {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $body = '[' . join(',', 1 .. 100_000) . ']';
my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=a', $body, \%key)->body, "run 1\n", 'ran');
is(app_wait('/after'), 1, 'and its action');

is(http_post('/ok?op=a', $body, \%key)->header('Idempotent-Replayed'), 'true',
   'replayed');
is(http_post('/ok?op=b', '[]', { 'Idempotency-Key' => new_key() })->status, 200,
   'another one');
is(app_wait('/after', 2), 2, 'no action for the replay');



=== TEST 16: a body that is too large only after its beginning
--- h2
--- config
    location / {
        client_max_body_size  1k;
        error_page  413 = @large;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /bypassed/ {
        idempotency           $TEST_STORE;
        idempotency_bypass    1;
        client_max_body_size  1k;
        error_page  413 = @large;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @large {
        idempotency           $TEST_STORE;
        client_max_body_size  1m;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
    }
--- client
my $chunks = sub {
    return join '', map { sprintf "%x\r\n%s\r\n", length, $_ } @_;
};

# the chunk that is too large comes by itself, or with the one before it

for my $case ([ '', 1 ], [ '', 0 ], [ '/bypassed', 1 ], [ '/bypassed', 0 ]) {
    my ($at, $apart) = @$case;

    my $key = new_key();
    my $op = new_key();
    my $name = $at . ($apart ? ' apart' : ' at once');

    for my $letter ('a', 'b') {
        my $c = connect_client();

        $c->send_part("POST $at/ok?op=$op HTTP/1.1\r\n"
                      . "Host: localhost\r\nConnection: close\r\n"
                      . "Idempotency-Key: $key\r\n"
                      . "Transfer-Encoding: chunked\r\n\r\n"
                      . $chunks->('x' x 100));

        ok(!$c->closed(0.2), "$name: waits for more") if $apart;

        $c->send_part($chunks->($letter x 2000) . "0\r\n\r\n");

        my $r = $c->read_response(5);

        is($r->status, 200, "$name, $letter: passes");
        is($r->header('Idempotent-Replayed'), undef, "$name: not replayed");
    }

    is(app_count($op), 2, "$name: not covered");
}

# HTTP/2, without a length

my $h2 = h2_connect();
my $key = new_key();

for my $parts ([ 'x' x 100, 'a' x 2000 ], [ 'x' x 100, 'b' x 2000 ],
               [ 'a' x 2000 ], [ 'b' x 2000 ])
{
    my @parts = @$parts;
    my $id = $h2->request('POST', '/ok?op=h2', shift @parts,
                          { 'idempotency-key' => $key }, more => 1);
    $h2->ping;
    $h2->data($id, $_) for @parts;
    $h2->data($id, '', 1);

    my $r = $h2->response($id);

    is($r->status, 200, 'HTTP/2: passes');
    is($r->header('Idempotent-Replayed'), undef, 'HTTP/2: not replayed');
}

is(app_count('h2'), 4, 'HTTP/2: not covered');



=== TEST 17: a body that was streamed to an upstream is not there any more
--- config
    location / {
        proxy_http_version       1.1;
        proxy_request_buffering  off;
        error_page  502 = @next;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @next {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP2_PORT;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        rewrite  ^ /ok? break;
    }
--- client
for my $where ('/close', '/garbage') {
    my $op = new_key();
    my %key = ('Idempotency-Key' => new_key());

    for my $letter ('a', 'b') {
        my $r = http_post("$where?op=$op", $letter x 100_000, \%key);

        is($r->status, 200, "$where: passes");
        is($r->header('Idempotent-Replayed'), undef,
           "$where: $letter is not replayed");
    }

    is(app_count($op), 2, "$where: ran, as it was");

    # a small body comes with the header, and stays

    %key = ('Idempotency-Key' => new_key());

    http_post("$where?op=$op", 'a', \%key);

    is(http_post("$where?op=$op", 'a', \%key)->header('Idempotent-Replayed'),
       'true', "$where: a small body is covered");
    is(http_post("$where?op=$op", 'b', \%key)->error_code,
       'IDEMPOTENCY_CONFLICT', "$where: and no other");
}
