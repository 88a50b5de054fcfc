# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Wherever on its way through nginx a request is checked, a stored response goes
# to no client that would have been refused: whether the location that checks
# is where it begins, where try_files leads before that, or where a content
# handler leads after it.  One block for each way to another location.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $users = <<'_EOC_';
>>> htpasswd
alice:{PLAIN}secret
bob:{PLAIN}secret
_EOC_

our @alice = (Authorization => 'Basic YWxpY2U6c2VjcmV0');

# a session that auth_request checks, and whose user it tells

our $auth = <<'_EOC_';
    location = /auth {
        internal;

        if ($http_x_token = "") {
            return 401;
        }

        proxy_method             POST;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=auth&header=X-User:%20$http_x_token;
    }
_EOC_

# two servers: an inner one that checks who comes, and one around it that does
# not

our $inner = <<'_EOC_';
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;

    server {
        listen                127.0.0.1:$TEST_NGINX_PORT_2;
        #listen               127.0.0.1:$TEST_NGINX_PORT_3;
        server_name           inner;
        idempotency           $TEST_STORE;

        location / {
            allow             10.0.0.1;
            deny              all;
            proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_

our $outer = <<'_EOC_';
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# @$in is let in; @$out is not, and is told the same of a key that was used and
# of one that was not.  %$more: status of the refusal (401), method, body.

my $n = 0;

sub kept_out {
    my ($what, $uri, $in, $out, %more) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $op = 'op' . ++$n;
    my ($used, $fresh) = (new_key(), new_key());
    my $status = $more{status} || 401;

    my $ask = sub {
        my ($key, $who) = @_;
        return http_request($more{method} || 'POST',
                            $uri . ($uri =~ /\?/ ? '&' : '?') . "op=$op", 'x',
                            { @$who, 'Idempotency-Key' => $key });
    };

    my $first = $ask->($used, $in);

    is($first->status, 200, "$what: let in");
    is($first->body, "run 1\n", "$what: ran");

    my $one = $ask->($used, $out);
    my $two = $ask->($fresh, $out);

    is($one->status, $status, "$what: kept out, of a used key");
    is($one->header('Idempotent-Replayed'), undef, "$what: not replayed");
    is($two->status, $status, "$what: kept out, of an unused key");
    is($one->header_lines('Date'), $two->header_lines('Date'),
       "$what: header tells nothing");
    is($one->body, $two->body, "$what: body tells nothing");
    is(app_count($op), 1, "$what: did not run");

    my $retry = $ask->($used, $in);

    is($retry->header('Idempotent-Replayed'), 'true', "$what: replayed");
    is($retry->body, "run 1\n", "$what: to whom it may be");
    is(app_count($op), 1, "$what: ran once");
    is($retry->header('X-Idempotency-Moves'), undef, "$what: nothing else");

    my @less = qw(Date Connection Transfer-Encoding Content-Length
                  Idempotent-Replayed X-Original-Request-Time);

    is($retry->header_lines(@less), $first->header_lines(@less),
       "$what: with the header that it had");

    $two = $ask->($fresh, $in);

    is($two->header('Idempotent-Replayed'), undef, "$what: no record was left");
    is($two->body, "run 2\n", "$what: nor a lock");
}

# the same, and of two who are let in each has its own

sub kept_apart {
    my ($what, $uri, $one, $other, %more) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $op = 'op' . ++$n;
    my %key = ('Idempotency-Key' => new_key());

    is(http_post("$uri?op=$op", 'x', { %key, @$one })->body, "run 1\n",
       "$what: ran");

    my $r = http_post("$uri?op=$op", 'x', { %key, @$other });

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$what: somebody else's");
    is_deeply($r->json->{error}{details}, {}, "$what: no more is told");

    is(http_post("$uri?op=$op", 'x', { %key, @$one })->body, "run 1\n",
       "$what: replayed");
    is(app_count($op), 1, "$what: ran once");
}

# a response to the first run, or none

sub replays
{
    my ($name, $r) = @_;

    is($r && $r->status, 200, "$name: status");
    is($r && $r->header('Idempotent-Replayed'), 'true', "$name: replayed");
    is($r && $r->body, "run 1\n", "$name: the same");
}

run_tests();

__DATA__

=== TEST 1: try_files to a named location that checks, and to a URI
--- user_files eval: $::users
--- config eval
$::auth . <<'_EOC_';
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location / {
        try_files  $uri @app;
    }

    location @app {
        auth_request  /auth;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /uri/ {
        try_files  $uri /app/$uri?$args;
    }

    location /app/ {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }

    # through two of them

    location /twice/ {
        try_files  $uri @twice;
    }

    location @twice {
        try_files  $uri @app;
    }

    # the first one checks, the last one does not

    location /first/ {
        auth_request  /auth;
        try_files     $uri @plain;
    }

    location @plain {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my @ann = ('X-Token' => 'ann');

kept_out('named', '/ok', \@ann, []);
kept_out('URI', '/uri/ok', \@::alice, []);
kept_out('twice', '/twice/ok', \@ann, []);
kept_out('first', '/first/ok', \@ann, []);



=== TEST 2: what the check there finds out counts
--- config eval
$::auth . <<'_EOC_';
    idempotency  $TEST_STORE;

    location / {
        try_files  $uri @app;
    }

    location @app {
        auth_request          /auth;
        auth_request_set      $user $upstream_http_x_user;
        idempotency_identity  $user;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # said where it begins

    location /origin/ {
        idempotency           $TEST_STORE;
        idempotency_identity  $user;
        try_files             $uri @silent;
    }

    location @silent {
        auth_request          /auth;
        auth_request_set      $user $upstream_http_x_user;
        idempotency_identity  $user;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # and where a content handler leads

    location /dir/ {
        index  ok;
    }

    location = /dir/ok {
        auth_request          /auth;
        auth_request_set      $user $upstream_http_x_user;
        idempotency_identity  $user;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- user_files
>>> dir/ok
a script
--- client
my @ann = ('X-Token' => 'ann');
my @ben = ('X-Token' => 'ben');

kept_out('try_files', '/ok', \@ann, []);
kept_apart('try_files', '/ok', \@ann, \@ben);
kept_apart('in the origin', '/origin/ok', \@ann, \@ben);
kept_apart('index', '/dir/', \@ann, \@ben);



=== TEST 3: what the location says where it comes to, before it has begun
--- config
    location /silent/ {
        idempotency  $TEST_STORE;
        try_files    $uri @silent;
    }

    location @silent {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /off/ {
        idempotency  $TEST_STORE;
        try_files    $uri @off;
    }

    location @off {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /other/ {
        idempotency          $TEST_STORE;
        idempotency_key      $http_x_other;
        idempotency_methods  PUT;
        try_files            $uri @other;
    }

    location @other {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # an error of files, and of no check

    location /error/ {
        idempotency  $TEST_STORE;
        error_page   404 = @silent;
        try_files    $uri =404;
    }

    location /recursive/ {
        idempotency            $TEST_STORE;
        recursive_error_pages  on;
        error_page             403 404 = @silent;
        try_files              $uri @silent;
    }
--- client
for my $where (qw(silent other error recursive)) {
    my %key = ('Idempotency-Key' => new_key());

    for (1 .. 2) {
        is(http_post("/$where/ok?op=$where", 'x', \%key)->body, "run 1\n",
           "$where: covered");
    }

    is(app_count($where), 1, "$where: ran once");
}

my %key = ('Idempotency-Key' => new_key());

for my $n (1 .. 2) {
    my $r = http_post('/off/ok?op=off', 'x', \%key);

    is($r->body, "run $n\n", 'off: not covered');
    is($r->header('Idempotent-Replayed'), undef, 'off: nor replayed');
}



=== TEST 4: index, and the location of the page checks
--- user_files eval: $::users . ">>> index.php\nscript\n>>> nested/index.php\nscript\n"
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;
    index                 index.php;

    location / {
        add_header  X-Where dir always;
    }

    location ~ \.php$ {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        add_header            X-Where script always;
        fastcgi_pass          127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param         REQUEST_METHOD $request_method;
        fastcgi_param         REQUEST_URI $request_uri;
        fastcgi_param         CONTENT_LENGTH $content_length;
    }

    # a location that rewrites, and one that goes on by try_files

    location /rewritten/ {
        index  /closed/ok;
    }

    location /closed/ {
        rewrite               ^/closed/(.*) /$1 break;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /tried/ {
        index  /try/ok;
    }

    location /try/ {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        try_files             $uri @plain;
    }

    location @plain {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out('index', '/', \@::alice, []);
kept_out('nested', '/nested/', \@::alice, []);
kept_out('rewritten', '/rewritten/', \@::alice, []);
kept_out('tried', '/tried/', \@::alice, []);



=== TEST 5: random_index
--- user_files eval: $::users . ">>> dir/ok.txt\na file\n"
--- config
    location /dir/ {
        idempotency           $TEST_STORE;
        idempotency_identity  $host;
        idempotency_methods   GET;
        random_index          on;
    }

    location = /dir/ok.txt {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_get('/dir/', { %key, @::alice })->body, "a file\n", 'let in');
is(http_get('/dir/', \%key)->status, 401, 'kept out');

my $r = http_get('/dir/', { %key, @::alice });
is($r->body, "a file\n", 'let in again');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');



=== TEST 6: error_page after it has begun
--- user_files eval: $::users . ">>> static/ok\na file\n"
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    # of a static file: 405 for POST, 404 for none

    location /static/ {
        error_page  404 405 = @app;
    }

    location @app {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        add_header            X-Where app always;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # of a gateway

    location /dead/ {
        error_page  502 = @app;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    # by URI: as GET

    location /uri/ {
        error_page  502 = /app/ok?op=$arg_op;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location /app/ {
        limit_except  GET {
            deny  all;
        }

        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # one after the other, the checks in the first, the last, or both

    location /chain/ {
        recursive_error_pages  on;
        error_page             502 = @chain;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @chain {
        recursive_error_pages  on;
        auth_basic             closed;
        auth_basic_user_file   $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        error_page             502 = @plain;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @plain {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out('static, 405', '/static/ok', \@::alice, []);
kept_out('static, 404', '/static/none/ok', \@::alice, []);
kept_out('gateway', '/dead/ok', \@::alice, []);
kept_out('by URI', '/uri/ok', \@::alice, []);
kept_out('chain', '/chain/ok', \@::alice, []);



=== TEST 7: X-Accel-Redirect
--- user_files eval: $::users
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }

    location /inner/ {
        internal;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

for my $n (1 .. 2) {
    my $r = http_post('/accel?to=/inner/ok%3Fop%3Da', 'x', { %key, @::alice });

    is($r->body, "run 1\n", 'let in');
    is($r->header('Idempotent-Replayed'), $n == 2 ? 'true' : undef,
       "try $n");

    $r = http_post('/accel?to=/inner/ok%3Fop%3Da', 'x', \%key);
    is($r->status, 401, 'kept out');
    is($r->header('X-App'), undef, 'of all of it');
}

is(app_count('a'), 1, 'ran once');
is(app_count('/accel'), 1, 'before, too');



=== TEST 8: ngx.exec, in the content and before it
--- modules: lua
--- user_files eval: $::users
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /content/ {
        content_by_lua_block { ngx.exec("@app") }
    }

    location /uri/ {
        content_by_lua_block { ngx.exec("/closed/ok", ngx.var.args) }
    }

    location /access/ {
        access_by_lua_block { ngx.exec("@app") }
    }

    location /rewrite/ {
        rewrite_by_lua_block { ngx.exec("@app") }
    }

    location @app {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /closed/ {
        access_by_lua_block {
            if not ngx.var.http_authorization then
                return ngx.exit(401)
            end
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out("$_", "/$_/ok", \@::alice, []) for qw(content uri access rewrite);



=== TEST 9: Lua's access check says 404, with pages for that
--- modules: lua
--- config
    recursive_error_pages  on;
    idempotency            $TEST_STORE;
    idempotency_identity   $host;

    location / {
        access_by_lua_block {
            if ngx.var.http_x_token ~= "good" then
                return ngx.exit(404)
            end
        }

        error_page  404 = @page;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @page {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=a', 'x', { %key, 'X-Token' => 'good' })->header('X-App'),
   1, 'let in');

my $r = http_post('/ok?op=a', 'x', \%key);

is($r->header('X-App'), 2, 'kept out: the page');
is($r->header('Idempotent-Replayed'), undef, 'not replayed');



=== TEST 10: njs
--- modules: js
--- user_files eval: $::users . ">>> moves.js\nfunction move(r) { r.internalRedirect('\@app'); }\nexport default { move };\n"
--- http_config
    js_path    $TEST_NGINX_SERVER_ROOT/html;
    js_import  moves.js;
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location / {
        js_content  moves.move;
    }

    location @app {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out('internalRedirect', '/ok', \@::alice, []);



=== TEST 11: rewrite, if, satisfy any, limit_except
--- user_files eval: $::users
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /last/ {
        rewrite  ^/last/(.*) /closed/$1 last;
    }

    location /if/ {
        if ($request_method = POST) {
            rewrite  ^/if/(.*) /closed/$1 last;
        }
    }

    location /closed/ {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /any/ {
        try_files  $uri @any;
    }

    location @any {
        satisfy               any;
        allow                 10.0.0.1;
        deny                  all;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /except/ {
        try_files  $uri @except;
    }

    location @except {
        limit_except  GET {
            auth_basic            closed;
            auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /return/ {
        error_page  418 = @returned;
        return      418;
    }

    location @returned {
        idempotency           $TEST_STORE;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /nested/ {
        try_files  $uri /nested/in/$uri?$args;

        location /nested/in/ {
            auth_basic            closed;
            auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
            proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- client
kept_out("$_", "/$_/ok", \@::alice, []) for qw(last if except return nested);
kept_out('any', '/any/ok', [ 'X-Client' => '10.0.0.1' ],
         [ 'X-Client' => '10.0.0.2' ]);



=== TEST 12: a waiter is checked before it gets the response
--- user_files eval: $::users . ">>> hold\nscript\n"
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location / {
        error_page  405 = @app;
    }

    location @app {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $holder = send_post('/hold?op=a', 'x', { %key, @::alice });
app_wait_parked('a');

my $in  = send_post('/hold?op=a', 'x', { %key, @::alice });
my $out = send_post('/hold?op=a', 'x', \%key);

is($out->read_response(0.5), undef, 'both wait');
app_release('a');

is($holder->read_response->body, "run 1\n", 'the holder');
is($in->read_response->body, "run 1\n", 'the one that may');
is($out->read_response->status, 401, 'the one that may not');
is(app_count('a'), 1, 'ran once');



=== TEST 13: another request is told nothing of the one that was let in
--- user_files eval: $::users . ">>> ok\nscript\n"
--- config
    idempotency                  $TEST_STORE;
    idempotency_identity         $host;
    idempotency_conflict_detail  values;

    location / {
        error_page  405 = @app;
    }

    location @app {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /here/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $uri (qw(/ok /here/ok)) {
    my %key = ('Idempotency-Key' => new_key());

    is(http_post($uri, '{"pin":"1234"}', { %key, @::alice })->status, 200,
       "$uri: ran");

    my $r = http_post($uri, '{"pin":"1"}', \%key);

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$uri: another request");

    if ($uri eq '/ok') {
        is_deeply($r->json->{error}{details}, {}, 'not checked: nothing');

    } else {
        like($r->body, qr/1234/, 'checked: what differs');
    }
}



=== TEST 14: the way has changed since
--- provokes: its retry came to
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_methods   GET;
        index                 page.html;
    }

    location = /page.html {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=page;
    }

    #location ~ ^/page { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=other; }
--- user_files
>>> page.html
a page
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_get('/', \%key)->body, "run 1\n", 'ran');

edit_config(sub { s/location = \/page/location = \/elsewhere/;
                  s/#location ~ (\S+) \{ proxy_pass (\S+);/location ~ $1 { rewrite ^ \/ok?op=other? break; proxy_pass http:\/\/127.0.0.1:$ENV{TEST_NGINX_APP_PORT};/ });
ok(nginx_reload(), 'reloaded');

my $r = http_get('/', \%key);

is($r->error_code, 'RESPONSE_NOT_KEPT', 'not replayed to whom it may concern');
is(app_count('other'), 0, 'and never run');
error_log_like(qr/was made in location "\/page.html", its retry came to "\^\/page"/,
               'which is told');



=== TEST 15: a reload, a client that leaves, a kill, while a replay makes its moves
--- provokes: exited on signal 9
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location / {
        proxy_intercept_errors  on;
        error_page              404 = @page;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @page {
        auth_request  /check;
        set           $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass    $app/ok?op=page;
    }

    location = /check {
        internal;
        idempotency  off;
        set          $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_method             GET;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        proxy_pass   $app/$http_x_check?op=check;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/status/404?op=run';

my $first = http_post($uri, 'x', { %key, 'X-Check' => 'ok' });
is($first->status, 200, 'ran, and the page has the response');
is($first->body, "run 1\n", 'its own');

sub held
{
    my $c = send_post($uri, 'x', { %key, 'X-Check' => 'hold' });
    app_wait_parked('check');
    return $c;
}

# a worker that is to leave stays until it is answered

my $c = held();
ok(nginx_reload(), 'reloaded');
app_release('check');
replays('reload', $c->read_response(15));

# nobody is left to answer

$c = held();
$c->abort;
ok(app_wait_closed('check'), 'the check ends with its client');
replays('a client that left',
        http_post($uri, 'x', { %key, 'X-Check' => 'ok' }));

# the record is as it was

$c = held();
kill_worker();
ok($c->closed(10), 'the worker was killed');
replays('a kill', http_post($uri, 'x', { %key, 'X-Check' => 'ok' }));

is(app_count('run'), 1, 'ran once');
is(app_count('page'), 1, 'as did the page');

# who is refused on the way is refused

is(http_post($uri, 'x', { %key, 'X-Check' => 'status/403' })->status, 403,
   'the check counts');



=== TEST 16: where it begins depends on more than its URI
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /api/ {
        if ($http_x_inside) {
            rewrite  ^/api/(.*) /closed/$1 last;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /closed/ {
        internal;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my %in = (%key, 'X-Inside' => 1);

is(http_post('/api/ok?op=a', 'x', \%in)->body, "run 1\n", 'ran inside');

my $r = http_post('/api/ok?op=a', 'x', \%key);

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'elsewhere: a conflict');
is($r->header('Idempotent-Replayed'), undef, 'elsewhere: not replayed');
is_deeply($r->json->{error}{details}, {}, 'elsewhere: is told nothing');

$r = http_post('/api/ok?op=a', 'x', \%in);

is($r->body, "run 1\n", 'the same way');
is($r->header('Idempotent-Replayed'), 'true', 'the same way: replayed');
is($r->header('X-Idempotency-Moves'), undef, 'the same way: nothing else');
is($r->header('X-Idempotency-Place'), undef, 'nor of the place');

$r = http_post('/api/ok?op=a', 'y', \%key);

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'another body, elsewhere');
is_deeply($r->json->{error}{details}, {}, 'is told nothing');

$r = http_post('/api/ok?op=a', 'y', \%in);

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'another body, there');
isnt($r->json->{error}{details}{original_time}, undef, 'is told when');

is(app_count('a'), 1, 'ran once');



=== TEST 17: a server that its client has come to by a "Host" of its choice
--- http_config eval: $::inner
--- config eval: $::outer
--- client
my @inner = (port => $ENV{TEST_NGINX_PORT_2});

for my $made ('inner', 'outer') {
    my %key = ('Idempotency-Key' => new_key(), Host => 'inner');
    my %in = (%key, 'X-Client' => '10.0.0.1');
    my $uri = "/ok?op=$made";

    is(http_post($uri, 'x', \%in, $made eq 'inner' ? @inner : ())->body,
       "run 1\n", "$made: ran");

    my $r = http_post($uri, 'x', \%key, @inner);

    is($r->status, 403, "$made: who is kept out of the inner server");
    is($r->header('Idempotent-Replayed'), undef, "$made: gets nothing there");

    $r = http_post($uri, 'x', \%key);

    if ($made eq 'inner') {
        is($r->status, 403, 'inner: nor by the outer one');
        is($r->header('Idempotent-Replayed'), undef, 'inner: not replayed');

        $r = http_post($uri, 'y', \%key);
        is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'inner: another body');
        is_deeply($r->json->{error}{details}, {}, 'inner: is told nothing');

    } else {
        is($r->body, "run 1\n", 'outer: is replayed by the outer one');
    }

    for my $at ([], \@inner) {
        $r = http_post($uri, 'x', \%in, @$at);

        is($r->body, "run 1\n", "$made: who is let in");
        is($r->header('Idempotent-Replayed'), 'true', "$made: replayed");
        is($r->header('X-Idempotency-Place'), undef, "$made: nothing else");
    }

    is(app_count($made), 1, "$made: ran once");
}



=== TEST 18: the URI does not count
--- user_files eval: $::users
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /open/ {
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /closed/ {
        idempotency_fingerprint  off;
        auth_basic               closed;
        auth_basic_user_file     $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /strip/ {
        idempotency_fingerprint  off;
        rewrite                  ^/strip/(.*) /$1 break;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /two {
        idempotency_fingerprint  off;
        auth_basic               closed;
        auth_basic_user_file     $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT/status/404;
    }

    location /two {
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /fold/open/ {
        idempotency_dedupe       json:id window=60s;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /fold/closed/ {
        idempotency_dedupe       json:id window=60s;
        auth_basic               closed;
        auth_basic_user_file     $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# another URI in the same location, also where that makes another one of it

my %key = ('Idempotency-Key' => new_key());

is(http_post('/strip/ok?op=strip', 'x', \%key)->body, "run 1\n", 'ran');
is(http_post("/strip/$_&op=strip", 'x', \%key)->body, "run 1\n",
   "replayed: $_") for 'ok?try=2', 'headers?x=1';

# ... and two locations by one name

%key = ('Idempotency-Key' => new_key());

is(http_post('/two?op=two', 'x', { %key, @::alice })->status, 404, 'of two');

my $r = http_post('/two/ok?op=two', 'x', \%key);

is($r->status, 401, 'of two: the one checks');
is($r->header('Idempotent-Replayed'), undef, 'of two: not replayed');

for my $at ('', '/fold') {
    my %key = $at ? ('Content-Type' => 'application/json')
                  : ('Idempotency-Key' => new_key());
    my $op = $at ? 'fold' : 'off';
    my $body = '{"id":1}';

    is(http_post("$at/closed/ok?op=$op", $body, { %key, @::alice })->body,
       "run 1\n", "$op: ran");

    my $r = http_post("$at/open/ok?op=$op", $body, \%key);

    is($r->status, 401, "$op: another URI, checked where it ran");
    is($r->header('Idempotent-Replayed'), undef, "$op: not replayed");

    $r = http_post("$at/open/ok?op=$op", $body, { %key, @::alice });

    is($r->body, "run 1\n", "$op: let in there");
    is($r->header('Idempotent-Replayed'), 'true', "$op: replayed");
    is(app_count($op), 1, "$op: ran once");
}



=== TEST 19: a named location that rewrites, and one with an "if"
--- user_files eval: $::users
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /front/ {
        error_page  502 = @front;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @front {
        rewrite  ^/front/(.*) /closed/$1 last;
    }

    location /closed/ {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        rewrite               ^/closed/(.*) /$1 break;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /if/ {
        error_page  502 = @if;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @if {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;

        if ($request_method = POST) {
            set  $post 1;
        }

        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out($_, "/$_/ok", \@::alice, []) for qw(front if);



=== TEST 20: locations by the same name in different locations
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    # the URI does not count

    location /closed/ {
        allow                    10.0.0.1;
        deny                     all;
        idempotency_fingerprint  off;

        location ~ ok$ {
            proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }

    location /open/ {
        idempotency_fingerprint  off;

        location ~ ok$ {
            proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }

    # a regular expression, and a prefix that looks the same

    location ~ /kind/ {
        allow                    10.0.0.1;
        deny                     all;
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location ^~ /kind/ {
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # the way depends on the client

    location /way/ {
        if ($http_x_inside) {
            rewrite  ^/way/(.*) /closed/way/$1 last;
        }

        rewrite  ^/way/(.*) /open/way/$1 last;
    }
--- client
my %in = ('X-Client' => '10.0.0.1');

for my $case (['/closed/ok', '/open/ok'], ['/a/kind/ok', '/kind/ok']) {
    my ($closed, $open) = @$case;
    my %key = ('Idempotency-Key' => new_key());

    is(http_post("$closed?op=$closed", 'x', { %key, %in })->body, "run 1\n",
       "$closed: ran");

    my $r = http_post("$open?op=$closed", 'x', \%key);

    is($r->status, 403, "$open: checked where it ran");
    is($r->header('Idempotent-Replayed'), undef, "$open: not replayed");

    $r = http_post("$open?op=$closed", 'x', { %key, %in });

    is($r->body, "run 1\n", "$open: let in there");
    is($r->header('Idempotent-Replayed'), 'true', "$open: replayed");
    is(app_count($closed), 1, "$closed: ran once");
}

my %key = ('Idempotency-Key' => new_key());

is(http_post('/way/ok?op=way', 'x', { %key, %in, 'X-Inside' => 1 })->body,
   "run 1\n", 'way: ran inside');

my $r = http_post('/way/ok?op=way', 'x', \%key);

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'way: elsewhere');
is($r->header('Idempotent-Replayed'), undef, 'way: not replayed');

$r = http_post('/way/ok?op=way', 'x', { %key, %in, 'X-Inside' => 1 });

is($r->header('Idempotent-Replayed'), 'true', 'way: the same way');



=== TEST 21: a URI without a path, by a way that is remembered
--- config
    location / {
        rewrite  ^/(.*) /app/$1 last;
    }

    location /app/ {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
my $key = new_key();
my $request = "POST http://example.com?op=a HTTP/1.1\r\nHost: example.com\r\n"
              . "Idempotency-Key: $key\r\nContent-Length: 1\r\n"
              . "Connection: close\r\n\r\nx";

my $r = http_raw($request);

is($r->body, "run 1\n", 'ran');

$r = http_raw($request);

is($r->body, "run 1\n", 'the same');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 22: a server whose addresses have changed since
--- http_config eval: $::inner
--- config eval: $::outer
--- client
my @inner = (port => $ENV{TEST_NGINX_PORT_2});
my %key = ('Idempotency-Key' => new_key(), Host => 'inner');
my %in = (%key, 'X-Client' => '10.0.0.1');

is(http_post('/ok?op=a', 'x', \%in, @inner)->body, "run 1\n", 'ran');

edit_config(sub { s/#listen/listen/ });
ok(nginx_reload(), 'reloaded');

my $r = http_post('/ok?op=a', 'x', \%key);

is($r->status, 403, 'who is kept out of the inner server');
is($r->header('Idempotent-Replayed'), undef, 'gets nothing by the outer one');

for my $at ([], \@inner, [port => $ENV{TEST_NGINX_PORT_3}]) {
    $r = http_post('/ok?op=a', 'x', \%in, @$at);

    is($r->body, "run 1\n", 'who is let in');
    is($r->header('Idempotent-Replayed'), 'true', 'who is let in: replayed');
}

is(app_count('a'), 1, 'ran once');



=== TEST 23: a server that is out of reach
--- http_config
    server {
        listen           unix:$TEST_NGINX_SERVER_ROOT/inner.sock;
        server_name      inner;

        location / {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config eval: $::outer
--- client
my @inner = (unix => "$ENV{TEST_NGINX_SERVER_ROOT}/inner.sock");

for my $made ('inner', 'outer') {
    my %key = ('Idempotency-Key' => new_key(), Host => 'inner');
    my @at = $made eq 'inner' ? @inner : ();

    is(http_post("/ok?op=$made", 'x', \%key, @at)->body, "run 1\n",
       "$made: ran");

    my $r = http_post("/ok?op=$made", 'x', \%key);

    if ($made eq 'inner') {
        is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'inner: not by TCP');
        is($r->header('Idempotent-Replayed'), undef, 'inner: not replayed');
        is_deeply($r->json->{error}{details}, {}, 'inner: is told nothing');

    } else {
        is($r->header('Idempotent-Replayed'), 'true', 'outer: by TCP');
    }

    $r = http_post("/ok?op=$made", 'x', \%key, @inner);

    is($r->header('Idempotent-Replayed'), 'true', "$made: by its socket");
    is(app_count($made), 1, "$made: ran once");
}



=== TEST 24: the URI does not count, but decides who may see it
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    location /files/ {
        auth_request  /auth;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /pages/ {
        auth_request  /auth;
        error_page    403 = @login;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location @login {
        return  302 /login?next=$request_uri;
    }

    location /other/ {
        auth_request  /auth;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    # everybody has a folder

    location = /auth {
        internal;
        set     $asked "$http_x_user:$request_uri";

        if ($asked !~ "^(\w+):/\w+/\1/") {
            return  403;
        }

        return  204;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my %alice = (%key, 'X-User' => 'alice');
my %bob = (%key, 'X-User' => 'bob');

is(http_post('/files/alice/x%20y?op=a', 'x', \%alice)->body, "run 1\n", 'ran');

for my $uri ('/files/bob/x', '/other/bob/x') {
    my $r = http_post("$uri?op=a", 'x', \%bob);

    is($r->status, 403, "$uri: refused as if asked for that of alice");
    is($r->header('Idempotent-Replayed'), undef, "$uri: not replayed");
}

for my $uri ('/files/alice/x%20y', '/files/alice/z', '/other/alice/z') {
    my $r = http_post("$uri?op=a", 'x', \%alice);

    is($r->body, "run 1\n", "$uri: alice");
    is($r->header('Idempotent-Replayed'), 'true', "$uri: replayed");
}

is(app_count('a'), 1, 'ran once');

# who is refused is not told what was asked for

$_->{'Idempotency-Key'} = 'of-pages' for \%alice, \%bob;

is(http_post('/pages/alice/x?op=p', 'x', \%alice)->body, "run 1\n", 'ran');

my $r = http_post('/other/bob/x?op=p', 'x', \%bob);

is($r->status, 302, 'an error page');
like($r->header('Location'), qr{/login\?next=/other/bob/x\?op=p$},
     'has its own URI');



=== TEST 25: details of a conflict with what has no response
--- config
    idempotency                  $TEST_STORE;
    idempotency_identity         $host;
    idempotency_fingerprint      json;
    idempotency_conflict_detail  values;

    location /api/ {
        if ($http_x_inside) {
            rewrite  ^/api/(.*) /closed/$1 last;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /closed/ {
        internal;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key(),
           'Content-Type' => 'application/json');
my %in = (%key, 'X-Inside' => 1);
my $uri = '/api/hold?op=a';

my $c = send_post($uri, '{"iban":"secret"}', \%in);
app_wait_parked('a');

my $r = http_post($uri, '{"iban":"x"}', \%key);

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'elsewhere');
is_deeply($r->json->{error}{details}, {}, 'elsewhere: is told nothing');

$r = http_post($uri, '{"iban":"x"}', \%in);

is($r->json->{error}{details}{diff_summary}[0]{old}, 'secret',
   'the same way: is told what differs');

app_release('a');
$c->read_response(5);



=== TEST 26: a reload, a client that leaves, a kill, while a retry is led to where its original began
--- provokes: exited on signal 9
--- h2
--- http_config
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;

        location / {
            idempotency              $TEST_STORE;
            idempotency_identity     $host;
            idempotency_fingerprint  off;
            proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    idempotency              $TEST_STORE;
    idempotency_identity     $host;
    idempotency_fingerprint  off;

    location /open/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /closed/ {
        auth_request  /check;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /check {
        internal;
        idempotency  off;
        set          $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_method             GET;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        proxy_pass   $app/$http_x_check?op=check;
    }
--- client
my $key = new_key();
my ($there, $here) = ('/closed/ok?op=run', '/open/ok?op=run');
my $other = $ENV{TEST_NGINX_PORT_2};

sub headers { return { 'idempotency-key' => $key, 'x-check' => shift } }

is(http_post($there, 'x', headers('ok'))->body, "run 1\n", 'ran');

# by another location, and by another server

for my $port ($port, $other) {
    my $held = sub {
        my $c = send_post($here, 'x', headers('hold'), port => $port);
        app_wait_parked('check');
        return $c;
    };
    my $again = sub { http_post($here, 'x', headers('ok'), port => $port) };

    my $c = $held->();
    ok(nginx_reload(), 'reloaded');
    app_release('check');
    replays('reload', $c->read_response(15));

    my $closed = app_closed('check');
    $c = $held->();
    $c->abort;
    ok(app_wait_closed('check', $closed + 1), 'the check ends with its client');
    replays('a client that left', $again->());

    $c = $held->();
    $c->reset;
    ok(app_wait_closed('check', $closed + 2), 'the check ends with its client');
    replays('a client that reset', $again->());

    $c = $held->();
    kill_worker();
    ok($c->closed(10), 'the worker was killed');
    replays('a kill', $again->());

    is(http_post($here, 'x', headers('status/403'), port => $port)->status, 403, 'the check counts');
}

# streams

my $h2 = h2_connect();
my $stream = $h2->request('POST', $here, 'x', headers('hold'));
app_wait_parked('check');
$h2->rst($stream);
is($h2->ping, 1, 'a stream is reset');
$h2->request('POST', $here, 'x', headers('hold'));
app_wait_parked('check');
$h2->reset;

replays('streams that were reset', http_post($here, 'x', headers('ok')));
is(app_count('run'), 1, 'ran once');



=== TEST 27: who is kept out is not told when it was, either
--- user_files eval: $::users
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;
    add_header            X-When  "$idempotency_original_time" always;
    add_header            X-Ms    "$idempotency_original_time_ms" always;
    add_header            X-Age   "$idempotency_age" always;
    add_header            X-What  "$idempotency_original_fingerprint" always;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }

    location /inner/ {
        internal;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/accel?to=/inner/ok';

is(http_post($uri, 'x', { %key, @::alice })->status, 200, 'ran');

my $r = http_post($uri, 'x', \%key);

is($r->status, 401, 'kept out');
is($r->header($_), undef, "kept out: no $_") for qw(X-When X-Ms X-Age X-What);

$r = http_post($uri, 'x', { %key, @::alice });

is($r->header('Idempotent-Replayed'), 'true', 'let in');
like($r->header($_), qr/./, "let in: $_") for qw(X-When X-Ms X-Age X-What);
