# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Where method, host or URI do not count, a retry is checked as if it had asked
# for what its original asked for, and is not told what that was.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# one who is let in runs it; a retry by another way is refused with %$out, and
# replayed with %$in

sub kept_out {
    my ($what, $first, $retry, $in, $out, $refused) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my %key = ('Idempotency-Key' => new_key());

    is(http_request(@$first, 'x', { %key, %$in })->body, "run 1\n",
       "$what: ran");

    my $r = http_request(@$retry, 'x', { %key, %$out });

    is($r->status, $refused || 403, "$what: refused");
    is($r->header('Idempotent-Replayed'), undef, "$what: not replayed");
    unlike($r->body, qr/run/, "$what: nothing of it");

    $r = http_request(@$retry, 'x', { %key, %$in });

    is($r->header('Idempotent-Replayed'), 'true', "$what: who is let in");
    is($r->body, "run 1\n", "$what: gets it");

    return $r;
}

# by a key of hers bob asks for a file of his own, and she for another of hers

sub file_of_alice {
    my %key = ('Idempotency-Key' => new_key());
    my %alice = (%key, 'X-User' => 'alice');

    is(http_post('/files/alice/x?op=a', 'x', \%alice)->body, "run 1\n", 'ran');

    my $r = http_post('/files/bob/x?op=a', 'x', { %key, 'X-User' => 'bob' });

    is($r->status, 403, 'refused as if asked for that of alice');
    is($r->header('Idempotent-Replayed'), undef, 'not replayed');

    $r = http_post('/files/alice/y?op=a', 'x', \%alice);

    is($r->header('Idempotent-Replayed'), 'true', 'alice');

    return $r;
}

# what a conflict tells of the original

sub told {
    my $r = shift;

    return $r->error_code ? $r->json->{error}{details} : 'all';
}

run_tests();

__DATA__

=== TEST 1: servers with different names at the same address
--- http_config
    server {
        listen                   127.0.0.1:$TEST_NGINX_PORT_2;
        server_name              open;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        idempotency_scope        all;

        location / {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }

    server {
        listen                   127.0.0.1:$TEST_NGINX_PORT_2;
        server_name              closed;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        idempotency_scope        all;

        location / {
            if ($http_x_token = "") {
                return  403;
            }

            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
--- client
my @at = (port => $ENV{TEST_NGINX_PORT_2});
my %key = ('Idempotency-Key' => new_key());
my %in = (%key, 'X-Token' => 1);

is(http_post('/ok?op=a', 'x', { %in, Host => 'closed' }, @at)->body, "run 1\n",
   'ran');

for my $uri ('/ok?op=a', '/other?op=a') {
    my $r = http_post($uri, 'x', { %key, Host => 'open' }, @at);

    is($r->status, 403, "$uri: refused by the other server, too");
    is($r->header('Idempotent-Replayed'), undef, "$uri: not replayed");

    $r = http_post($uri, 'x', { %in, Host => 'open' }, @at);

    is($r->header('Idempotent-Replayed'), 'true', "$uri: who is let in there");
    is($r->body, "run 1\n", "$uri: gets it");
}

is(app_count('a'), 1, 'ran once');



=== TEST 2: a method that is checked
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    set_real_ip_from         127.0.0.1;
    real_ip_header           X-Client;

    location /except/ {
        limit_except POST {
            allow  10.0.0.1;
            deny   all;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /if/ {
        set     $asked "$request_method:$http_x_client";

        if ($asked = "DELETE:") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
for my $at ('/except/', '/if/') {
    ::kept_out($at, ['DELETE', "$at?op=$at"], ['POST', "$at?op=$at"],
               { 'X-Client' => '10.0.0.1' }, {});

    is(app_count($at), 1, "$at: ran once");
}

is(app_last('/if/')->{method}, 'DELETE', 'by its own method');

# the other way round: a retry by DELETE is checked as such first

my %key = ('Idempotency-Key' => new_key());

is(http_post('/if/?op=p', 'x', \%key)->body, "run 1\n", 'POST ran');
is(http_request('DELETE', '/if/?op=p', 'x', \%key)->status, 403,
   'DELETE is refused');
is(app_count('p'), 1, 'ran once');



=== TEST 3: a host that is checked
--- config
    server_name              alice bob;
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_scope        all;

    location / {
        auth_request  /auth;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /auth {
        internal;
        set     $asked "$http_x_user:$host:$http_host";

        if ($asked !~ "^(\w+):\1:\1$") {
            return  403;
        }

        return  204;
    }
--- client
::kept_out('bob', ['POST', '/ok?op=a'], ['POST', '/ok?op=a'],
           { 'X-User' => 'alice', Host => 'alice' },
           { 'X-User' => 'bob', Host => 'bob' });
is(app_count('a'), 1, 'ran once');



=== TEST 4: a map that was evaluated for the URI of the retry
--- http_config
    map "$http_x_user:$request_uri" $refused {
        "~^(\w+):/\w+/\1/"  0;
        default             1;
    }
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    if ($refused) {
        return  403;
    }

    location / {
        add_header  X-Refused $refused always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

--- client
my $r = ::file_of_alice();

is($r->header('X-Refused'), '0', 'the map is there again');



=== TEST 5: what the original asked for is not told
--- h2
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;
    error_page               409 = @quiet;

    location /open/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /login/ {
        if ($http_x_token = "") {
            return  302 /enter?next=$request_uri;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /text/ {
        if ($http_x_token = "") {
            return  403 "no way to $uri$is_args$args";
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /header/ {
        add_header  X-Asked "$request_method $host $uri?$args $request_uri" always;

        if ($http_x_token = "") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /page/ {
        error_page  403 = @page;

        if ($http_x_token = "") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location @page {
        return  302 /enter?next=$uri&$args&$request_uri;
    }

    location /recursive/ {
        recursive_error_pages  on;
        error_page             403 = @page;

        if ($http_x_token = "") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /quiet/ {
        idempotency_error_body  off;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location @quiet {
        return  409 "$idempotency_error_code $request_uri";
    }
--- client
my %status = (login => 409, text => 409, header => 403, page => 302,
              recursive => 409);

for my $at (sort keys %status) {
    my $uri = "/$at/secret?op=$at&token=secret";
    my $r = ::kept_out($at, ['POST', $uri], ['POST', "/open/?op=$at"],
                       { 'X-Token' => 1 }, {}, $status{$at});

    is(app_count($at), 1, "$at: ran once");

    my %key = ('Idempotency-Key' => new_key());

    http_post($uri, 'x', { %key, 'X-Token' => 1 });

    for my $version (1, 2) {
        if ($version == 1) {
            $r = http_post('/open/me?mine', 'x', \%key);

        } else {
            my $h2 = h2_connect();
            $r = $h2->response($h2->request('POST', '/open/me?mine', 'x',
                                            \%key));
        }

        is($r->status, $status{$at}, "$at, $version: refused");
        unlike($version == 1 ? $r->raw : $r->header_lines . $r->body,
               qr/secret/, "$at, $version: nothing is told");
        is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$at, $version: why")
            if $status{$at} == 409;
    }

    if ($at eq 'page') {
        like($r->header('Location'),
             qr{/enter\?next=/open/me&mine&/open/me\?mine$}, 'its own URI');
    }

    if ($at eq 'header') {
        is($r->header('X-Asked'), 'POST localhost /open/me?mine /open/me?mine',
           'its own request');
    }

    is(http_post('/open/me?mine', 'x', \%key)->status, $status{$at},
       "$at: as before");
}

my %key = ('Idempotency-Key' => new_key());

http_post('/login/secret?op=q', 'x', { %key, 'X-Token' => 1 });

my $r = http_post('/quiet/', 'x', \%key);

is($r->status, 409, 'a body of one\'s own');
is($r->body, 'IDEMPOTENCY_CONFLICT /quiet/', 'which knows why');



=== TEST 6: checks that spare internal redirects
--- modules: lua
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    location /open/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /closed/ {
        access_by_lua_block {
            if not ngx.req.is_internal() and not ngx.var.http_x_token then
                return ngx.exit(403)
            end
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /lua/ {
        access_by_lua_block {
            if not ngx.var.http_x_token then
                ngx.status = 403
                ngx.say("no way to ", ngx.var.request_uri)
                return ngx.exit(403)
            end
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /moved/ {
        rewrite_by_lua_block {
            if not ngx.var.http_x_token then
                return ngx.redirect("/enter?next=" .. ngx.var.request_uri)
            end
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
::kept_out('internal', ['POST', '/closed/?op=a'], ['POST', '/open/?op=a'],
           { 'X-Token' => 1 }, {});

for my $at ('lua', 'moved') {
    ::kept_out($at, ['POST', "/$at/secret?op=$at"], ['POST', "/open/?op=$at"],
               { 'X-Token' => 1 }, {}, 409);
}

is(app_count($_), 1, "$_: ran once") for qw(a lua moved);



=== TEST 7: the error page is in the location that refuses
--- user_files
>>> site/403.html
refused
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    # by a move after it has begun

    location /api/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/accel?op=a&to=/closed/x;
    }

    location /closed/ {
        internal;
        set  $refused 1;

        if ($uri = /closed/403.html) {
            set  $refused 0;
        }

        if ($http_x_token) {
            set  $refused 0;
        }

        if ($refused) {
            return  403;
        }

        error_page  403 /closed/403.html;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP2_PORT/ok?op=closed;
    }

    # the original was refused, too, and its page ran

    location /page/ {
        recursive_error_pages  on;
        error_page             502 = /closed-to-all/x;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location /closed-to-all/ {
        deny        all;
        error_page  403 = /paid/x;
    }

    location /paid/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=paid;
    }

    # where it begins

    location /open/ {
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /site/ {
        idempotency_fingerprint  off;
        recursive_error_pages    on;
        error_page               403 = /site/403.html;
        set                      $refused 1;

        if ($uri = /site/403.html) {
            set  $refused 0;
        }

        if ($http_x_token) {
            set  $refused 0;
        }

        if ($refused) {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
for my $uri ('/api/', '/site/x?op=b') {
    my %key = ('Idempotency-Key' => new_key());

    is(http_post($uri, 'x', { %key, 'X-Token' => 1 })->body, "run 1\n",
       "$uri: ran");

    my $r = http_post($uri =~ /site/ ? '/open/?op=b' : $uri, 'x', \%key);

    is($r->header('Idempotent-Replayed'), undef, "$uri: not replayed");
    unlike($r->body, qr/run/, "$uri: nothing of it");

    $r = http_post($uri, 'x', { %key, 'X-Token' => 1 });

    is($r->header('Idempotent-Replayed'), 'true', "$uri: who is let in");
}

my %key = ('Idempotency-Key' => new_key());

is(http_post('/page/', 'x', \%key)->body, "run 1\n", 'a page ran');
is(http_post('/page/', 'x', \%key)->header('Idempotent-Replayed'), 'true',
   'and is replayed');



=== TEST 8: a retry is led past the location of its URI
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    idempotency_fingerprint      json;
    idempotency_conflict_detail  values;

    # at the level of the server nginx does not count it

    if ($http_x_server) {
        rewrite  ^/closed/(.*) /open/$1 last;
    }

    location /closed/ {
        if ($http_x_location) {
            rewrite  ^/closed/(.*) /open/$1 last;
        }

        auth_request  /auth;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /moved/ {
        if ($http_x_location) {
            rewrite  ^/moved/(.*) /open/$1 last;
        }

        auth_request  /auth;
        error_page    502 = @app;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @app {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /open/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # a page with a directive of its own is covered

    location /page/ {
        if ($http_x_token = "") {
            return  403;
        }

        error_page  403 = @page;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @page {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /auth {
        internal;

        if ($http_x_token = "") {
            return  403;
        }

        return  204;
    }
--- client
my %json = ('Content-Type' => 'application/json');

for my $way (['Server', 'closed'], ['Location', 'closed'],
             ['Location', 'moved'], ['Page', 'page'])
{
    my ($by, $at) = @$way;
    my $op = "$by-$at";
    my $uri = "/$at/ok?op=$op";
    my %key = (%json, 'Idempotency-Key' => new_key());
    my %in = (%key, 'X-Token' => 1);
    my %by = (%key, "X-$by" => 1);

    is(http_post($uri, '{"a":1}', \%in)->body, "run 1\n", "$op: ran");

    my $r = http_post($uri, '{"a":1}', \%by);

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$op: by another way");
    is($r->header('Idempotent-Replayed'), undef, "$op: not replayed");
    is_deeply(::told($r), {}, "$op: nothing is told");

    $r = http_post($uri, '{"a":2}', \%by);

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$op: another body");
    is_deeply(::told($r), {}, "$op: nothing of the first");

    $r = http_post($uri, '{"a":1}', \%in);

    is($r->header('Idempotent-Replayed'), 'true', "$op: who is let in");
    is(app_count($op), 1, "$op: ran once");

    # the other way round

    @key{'Idempotency-Key'} = @in{'Idempotency-Key'} = @by{'Idempotency-Key'}
                            = new_key();
    $uri .= '-2';

    is(http_post($uri, '{"a":1}', \%by)->body, "run 1\n", "$op: ran there");

    $r = http_post($uri, '{"a":1}', \%by);
    is($r->header('Idempotent-Replayed'), 'true', "$op: the same way");

    $r = http_post($uri, '{"a":1}', \%in);
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$op: and back");

    is(app_count("$op-2"), 1, "$op: ran once");
}

# while it runs

for my $by ('Server', 'Location') {
    my %key = (%json, 'Idempotency-Key' => new_key());
    my $uri = "/closed/hold?op=$by";
    my $c = send_post($uri, '{"iban":"secret"}', { %key, 'X-Token' => 1 });

    app_wait_parked($by);

    my $r = http_post($uri, '{"iban":"x"}', { %key, "X-$by" => 1 });

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$by: while it runs");
    is_deeply(::told($r), {}, "$by: nothing of the first");

    my $waiter = send_post($uri, '{"iban":"secret"}',
                           { %key, "X-$by" => 1 });

    app_release($by);

    is($c->read_response(10)->body, "run 1\n", "$by: ran");
    is($waiter->read_response(10)->error_code, 'IDEMPOTENCY_CONFLICT',
       "$by: one that waited for it");
    is(app_count($by), 1, "$by: ran once");
}



=== TEST 9: by try_files, once it was let in
--- user_files
>>> open/there
a file
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /open/ {
        if ($http_x_token = "") {
            return  403;
        }

        try_files   $http_x_there @app;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location @app {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key(), 'X-Token' => 1);

is(http_post('/open/ok?op=a', 'x', { %key, 'X-There' => '/open/there' })->body,
   "run 1\n", 'ran where it came to');
is(http_post('/open/ok?op=a', 'x', \%key)->header('Idempotent-Replayed'),
   'true', 'replayed where try_files leads');
is(http_post('/open/ok?op=a', 'x',
             { 'Idempotency-Key' => $key{'Idempotency-Key'} })->status, 403,
   'who is not let in');
is(app_count('a'), 1, 'ran once');



=== TEST 10: two locations by one name, after it has begun
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $host;

    location /api/ {
        error_page  502 = /next/$arg_file?op=a;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location /next/ {
        if ($http_x_open) {
            rewrite  ^/next/(.*) /open/$1 last;
        }

        rewrite  ^/next/(.*) /closed/$1 last;
    }

    location /open/ {
        location ~ \.php$ {
            proxy_method  POST;
            proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }

    location /closed/ {
        location ~ \.php$ {
            auth_request  /auth;
            proxy_method  POST;
            proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }

    location = /auth {
        internal;

        if ($http_x_token = "") {
            return  403;
        }

        return  204;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/api/?file=a.php&op=a';

is(http_post($uri, 'x', { %key, 'X-Token' => 1 })->body, "run 1\n", 'ran');

my $r = http_post($uri, 'x', { %key, 'X-Open' => 1 });

is($r->header('Idempotent-Replayed'), undef, 'by the other one: not replayed');
is($r->error_code, 'RESPONSE_NOT_KEPT', 'refused');

is(http_post($uri, 'x', \%key)->status, 403, 'who is not let in');

$r = http_post($uri, 'x', { %key, 'X-Token' => 1 });

is($r->header('Idempotent-Replayed'), 'true', 'who is let in');
is(app_count('a'), 1, 'ran once');



=== TEST 11: the URI is the key to the door
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    location /secure/ {
        secure_link_md5  "$uri secret";
        secure_link      $arg_md5;

        if ($secure_link = "") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /token/ {
        if ($arg_token != secret) {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /asked/ {
        auth_request  /auth;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location = /auth {
        internal;

        if ($request_uri ~ token=secret) {
            return  204;
        }

        return  403;
    }

    location /open/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
use Digest::MD5 ();

my $link = sub {
    my $md5 = Digest::MD5::md5_base64("$_[0] secret");
    $md5 =~ tr{+/}{-_};
    return "$_[0]?op=$_[1]&md5=$md5";
};

my %uri = (
    link => [$link->('/secure/a', 'link'), $link->('/secure/b', 'link')],
    token => ['/token/?token=secret&op=token', '/open/?op=token'],
    asked => ['/asked/?token=secret&op=asked', '/open/?op=asked'],
);

# what a client does not say is not said for it

for my $op (sort keys %uri) {
    my %key = ('Idempotency-Key' => new_key());
    my ($uri, $other) = @{ $uri{$op} };

    is(http_post($uri, 'x', \%key)->body, "run 1\n", "$op: ran");

    my $r = http_post($other, 'x', \%key);

    is($r->status, 403, "$op: without it, refused");
    is($r->header('Idempotent-Replayed'), undef, "$op: not replayed");

    is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
       "$op: with it, replayed");

    next if $op eq 'link';

    $r = http_post('/open/?token=secret&more', 'x', \%key);
    is($r->header('Idempotent-Replayed'), 'true', "$op: elsewhere, too");
    is(app_count($op), 1, "$op: ran once");
}



=== TEST 12: the page of who is refused is where try_files leads
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    location /open/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /marked/ {
        auth_request  /auth;
        error_page    403 = @app;
        try_files     /none @app;
    }

    location /unmarked/ {
        recursive_error_pages  on;
        auth_request           /auth;
        error_page             403 = @page;
        try_files              /none @page;
    }

    location @app {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @page {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /auth {
        internal;

        if ($http_x_token = "") {
            return  403;
        }

        return  204;
    }
--- client
for my $at ('marked', 'unmarked') {
    my %key = ('Idempotency-Key' => new_key());
    my %in = (%key, 'X-Token' => 1);

    is(http_post("/$at/ok?op=$at", 'x', \%in)->body, "run 1\n", "$at: ran");

    my $r = http_post("/open/?op=$at", 'x', \%key);

    is($r->header('Idempotent-Replayed'), undef, "$at: not replayed");
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$at: a conflict");

    for my $uri ("/$at/ok?op=$at", "/open/?op=$at") {
        $r = http_post($uri, 'x', \%in);
        is($r->header('Idempotent-Replayed'), 'true', "$uri: who is let in");
    }

    is(app_count($at), 1, "$at: ran once");
}



=== TEST 13: the request line is what is checked
--- http_config
    map "$http_x_user $request" $stranger {
        "~^(\w+) POST /files/\1/\w+\?op=\w HTTP/1\.1$"  0;
        default                                          1;
    }
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    location / {
        if ($stranger) {
            return  403;
        }

        add_header  X-Request $request always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }
--- client
my $r = ::file_of_alice();

is($r->header('X-Request'), 'POST /files/alice/y?op=a HTTP/1.1',
   'the request line is its own again');



=== TEST 14: a reload, a client that leaves, a kill, between the two askings of a retry
With another path and other arguments a retry is checked twice: with its own
arguments, then with those of the original.
--- provokes: exited on signal 9
--- h2
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_identity     $host;

    location /open/ {
        set_real_ip_from  127.0.0.1;
        real_ip_header    X-Client;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location /closed/ {
        auth_request  /check;
        add_header    X-Asked "$request_uri $uri?$args" always;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
    }

    location = /check {
        internal;
        idempotency  off;
        set          $how $http_x_own;

        if ($request_uri ~ secret) {
            set  $how $http_x_original;
        }

        set                      $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_method             GET;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        proxy_pass               $app/$how?op=check;
    }
--- client_timeout: 90
--- client
my $key = new_key();
my ($there, $here) = ('/closed/x?op=run&secret', '/open/?op=run&mine');

my $headers = sub {
    my %how = (own => 'ok', original => 'ok', @_);
    return { 'idempotency-key' => $key, 'x-own' => $how{own},
             'x-original' => $how{original}, 'x-client' => '10.0.0.7' };
};

# how many requests that their clients gave up are logged as they came
my $left = sub {
    my $n = () = access_log() =~ m{^10\.0\.0\.7 .*"POST \Q$here\E .*" 499 }mg;
    return $n;
};
my $all = 0;

my $replays = sub {
    my ($what, $r) = @_;

    is($r && $r->header('Idempotent-Replayed'), 'true', "$what: replayed");
    is($r && $r->body, "run 1\n", "$what: the response");
    unlike($r && $r->raw, qr/secret/, "$what: not what it was asked by")
        if $r && $r->can('raw');
};

is(http_post($there, 'x', $headers->())->body, "run 1\n", 'ran');

my $checks = app_count('check');
$replays->('twice', http_post($here, 'x', $headers->()));
is(app_count('check'), $checks + 2, 'checked twice');

for my $at (qw(own original)) {
    my $held = sub {
        my $c = send_post($here, 'x', $headers->($at => 'hold'));
        app_wait_parked('check');
        return $c;
    };
    my $again = sub { http_post($here, 'x', $headers->()) };

    my $c = $held->();
    ok(nginx_reload(), "$at: reloaded");
    app_release('check');
    $replays->("$at: reload", $c->read_response(15));

    my $closed = app_closed('check');
    $c = $held->();
    $c->abort;
    ok(app_wait_closed('check', $closed + 1), "$at: ends with its client");
    $all++;
    ok(wait_for(sub { $left->() == $all }, 5), "$at: and is logged as it came");
    $replays->("$at: a client that left", $again->());

    my $h2 = h2_connect();
    my $stream = $h2->request('POST', $here, 'x', $headers->($at => 'hold'));
    app_wait_parked('check');
    $h2->rst($stream);
    is($h2->ping, 1, "$at: a stream is reset");
    ok(app_wait_closed('check', $closed + 2), "$at: and ends");
    $all++;
    ok(wait_for(sub { $left->() == $all }, 5), "$at: logged as it came, too");
    $replays->("$at: a stream that was reset", $again->());

    $c = $held->();
    kill_worker();
    ok($c->closed(10), "$at: the worker was killed");
    $replays->("$at: a kill", $again->());

    my $r = http_post($here, 'x', $headers->($at => 'status/403'));
    is($r->status, 403, "$at: counts");
    unlike($r->raw, qr/secret/, "$at: and tells nothing");
}

is(app_count('run'), 1, 'ran once');



=== TEST 15: the address that realip takes from a header
The place of the original trusts another header than the place of the retry, or
none.
--- modules: lua
--- http_config
    server {
        listen                   127.0.0.1:$TEST_NGINX_PORT_2;
        server_name              open;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        idempotency_scope        all;
        add_header               X-Addr "$remote_addr $realip_remote_addr";

        location / {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location /trusting/ {
            set_real_ip_from  127.0.0.1;
            real_ip_header    X-Spoofed;
            proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT/;
        }
        location /led/ {
            set_real_ip_from  127.0.0.1;
            real_ip_header    X-Spoofed;
            try_files         /none @led;
        }
        location @led {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location /checks/ {
            allow       10.0.0.1;
            deny        all;
            satisfy     any;
            access_by_lua_block {
                if ngx.var.http_x_token ~= "1" then ngx.exit(403) end
            }
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/;
        }
    }

    server {
        listen                   127.0.0.1:$TEST_NGINX_PORT_2;
        server_name              closed;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        idempotency_scope        all;
        set_real_ip_from         127.0.0.1;
        real_ip_header           X-Client;

        location / {
            if ($remote_addr != 10.0.0.1) {
                return  403;
            }

            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location /own {
            if ($remote_addr != 127.0.0.1) {
                return  403;
            }

            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok;
        }
    }
--- config
--- client
my @at = (port => $ENV{TEST_NGINX_PORT_2});

my $post = sub {
    my ($host, $uri, $key, %headers) = @_;

    return http_post($uri, 'x', { Host => $host, 'Idempotency-Key' => $key,
                                  %headers }, @at);
};

my %in = ('X-Token' => 1);
my %spoofed = ('X-Spoofed' => '10.0.0.1');
my $key = new_key();

is($post->('open', '/checks/ok?op=a', $key, %in)->body, "run 1\n", 'ran');

for my $uri ('/ok?op=a', '/trusting/ok?op=a', '/led/ok?op=a') {
    my $r = $post->('open', $uri, $key, %spoofed);

    is($r->status, 403, "$uri: not by another address");
    is($r->header('Idempotent-Replayed'), undef, "$uri: not replayed");
    unlike($r->body, qr/run/, "$uri: nothing of it");

    $r = $post->('open', $uri, $key, %spoofed, %in);

    is($r->header('Idempotent-Replayed'), 'true', "$uri: who is let in");
    is($r->body, "run 1\n", "$uri: gets it");
    is($r->header('X-Addr'),
       ($uri =~ /^.ok/) ? '127.0.0.1 127.0.0.1' : '10.0.0.1 127.0.0.1',
       "$uri: with the address that it came with");
}

$key = new_key();
is($post->('closed', '/ok?op=b', $key, 'X-Client' => '10.0.0.1')->body,
   "run 1\n", 'a header that is trusted: ran');
is($post->('open', '/trusting/ok?op=b', $key, %spoofed)->status, 403,
   'another header does not do');

my $r = $post->('open', '/ok?op=b', $key, 'X-Client' => '10.0.0.1');
is($r->header('Idempotent-Replayed'), 'true', 'this one does');

$key = new_key();
is($post->('closed', '/own?op=c', $key)->body, "run 1\n", 'no header: ran');
is($post->('open', '/ok?op=c', $key, 'X-Client' => '10.0.0.2')->status, 403,
   'the header counts where the original came in');

# the next request of a connection has the address of the connection

my $c = connect_client(@at);

for my $try (1, 2) {
    $c->request('POST', '/trusting/ok?op=b', 'x',
                { Host => 'open', 'Idempotency-Key' => $key, %spoofed,
                  'X-Client' => '10.0.0.2' });
    is($c->read_response->status, 403, "on one connection, $try: refused");

    $c->request('GET', '/ok?op=d', '', { Host => 'open' });
    is($c->read_response->header('X-Addr'), '127.0.0.1 127.0.0.1',
       "on one connection, $try: its own address");
}



=== TEST 16: checks in an "if"
Lua checks access there, and the "if" looks for what is no part of the request.
--- modules: lua
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;
    idempotency_wait             0;

    location /stricter/ {
        if ($http_x_admin) {
            access_by_lua_block {
                if ngx.var.http_x_admin ~= "pw" then ngx.exit(403) end
            }
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        if ($http_x_other) {
            rewrite_by_lua_block {
                if ngx.var.http_x_other ~= "pw" then ngx.exit(403) end
            }
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /laxer/ {
        access_by_lua_block {
            if ngx.var.http_x_admin ~= "pw" then ngx.exit(403) end
        }
        if ($http_x_guest) {
            access_by_lua_block { ngx.ctx.guest = true }
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        if ($http_x_plain) {
            set  $plain 1;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %type = ('Content-Type' => 'application/json');

my $post = sub {
    my ($uri, $key, $body, %headers) = @_;
    return http_post($uri, $body, { 'Idempotency-Key' => $key, %type,
                                    %headers });
};

for my $case ([ 'stricter', 'X-Admin', { } ],
              [ 'stricter', 'X-Other', { } ],
              [ 'stricter', 'X-Admin', { 'X-Other' => 'pw' } ],
              [ 'laxer', 'X-Admin', { 'X-Guest' => 1 } ])
{
    my ($location, $header, $around) = @$case;
    my $what = "$location, $header past by " . join(' ', %$around, 'it');
    my $key = new_key();
    my %in = ($header => 'pw');
    my @first = ("/$location/ok?op=$key", $key, '{"a":"secret"}');

    is($post->(@first, %in)->body, "run 1\n", "$what: ran");
    is($post->(@first, $header => 'no')->status, 403, "$what: refused");

    my $r = $post->(@first, %$around);
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$what: a conflict");
    is($r->header('Idempotent-Replayed'), undef, "$what: not replayed");

    $r = $post->(@first[0, 1], '{"a":"other"}', %$around);
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$what: another body");
    unlike($r->body, qr/secret/, "$what: tells nothing");

    $r = $post->(@first[0, 1], '{"a":"other"}', %in);
    like($r->body, qr/secret/, "$what: tells those who are let in");

    $r = $post->(@first, %in, 'X-Plain' => 1);
    is($r->header('Idempotent-Replayed'), 'true', "$what: let in");
    is($r->body, "run 1\n", "$what: gets it");
    is(app_count($key), 1, "$what: ran once");
}

my $key = new_key();
my %in = ('X-Admin' => 'pw');
my @first = ("/stricter/hold?op=$key", $key, '{"a":"secret"}');

my $c = send_post(@first[0, 2], { 'Idempotency-Key' => $key, %type, %in });
app_wait_parked($key);

my $r = $post->(@first[0, 1], '{"a":"other"}');
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'while it runs: another body');
unlike($r->body, qr/secret/, 'while it runs: tells nothing');

app_release($key);
is($c->read_response->status, 200, 'ran');



=== TEST 17: another form of the same path
A check by $request_uri may tell the forms apart.
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;

    location /files/ {
        set  $asked "$request_uri $http_x_token";

        if ($asked ~ "^[^ ]*(%2F|//|/\./)[^ ]* $") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $form ('a%2Fok', 'a//ok', 'a/./ok') {
    my %key = ('Idempotency-Key' => new_key());
    my %in = (%key, 'X-Token' => 1);
    my $op = '?op=' . $key{'Idempotency-Key'};

    is(http_post("/files/$form$op", 'x', \%in)->body, "run 1\n", "$form: ran");
    is(http_post("/files/$form$op", 'x', \%key)->status, 403,
       "$form: refused");

    for my $other ("a/ok$op", "b/ok$op", 'a/ok') {
        my $r = http_post("/files/$other", 'x', \%key);

        is($r->header('Idempotent-Replayed'), undef,
           "$form: not replayed to $other");
        is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$form: $other");
        unlike($r->body, qr/run/, "$form: nothing of it");
    }

    my $r = http_post("/files/$form$op", 'x', \%in);
    is($r->header('Idempotent-Replayed'), 'true', "$form: let in");
}

my %key = ('Idempotency-Key' => new_key());
is(http_post('/files/a%20b/ok?op=s', 'x', \%key)->body, "run 1\n", 'a space');

for my $uri ('/files/a%20b/ok?op=s', '/files/other/ok') {
    is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
       "$uri: replayed, as ever");
}

# digits of escapes in small letters are the same path as those in capitals

%key = ('Idempotency-Key' => new_key());
is(http_post('/files/caf%c3%a9/ok?op=l', 'x', \%key)->body, "run 1\n",
   'small digits');

for my $uri ('/files/caf%c3%a9/ok?op=l', '/files/caf%C3%A9/ok?op=l',
             '/files/other/ok')
{
    is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
       "$uri: replayed");
}



=== TEST 18: a response of a location where the URI counts, where it does not
--- log_level: debug
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;

    location /closed/ {
        if ($http_x_token = "") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /moved/ {
        internal;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /open/ {
        idempotency_fingerprint  off;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /raw/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %type = ('Content-Type' => 'application/json');
my $body = '{"iban":"secret"}';

for my $uri ('/closed/ok?op=a', '/closed/accel?to=/moved/ok&op=b') {
    for my $other ('/open/ok?op=a', '/open/ok') {
        kept_out("$uri, $other", [ 'POST', $uri ], [ 'POST', $other ],
                 { 'X-Token' => 1 }, {});
        app_reset();
    }
}

# while it runs: neither to one that waits, nor what its body was

my %key = (%type, 'Idempotency-Key' => new_key());
my %in = (%key, 'X-Token' => 1);
my $c = send_post('/closed/hold?op=c', $body, \%in);
app_wait_parked('c');

like(http_post('/closed/hold?op=c', '{"iban":"x"}', \%in)->body, qr/secret/,
     'who asks for the same is told');
unlike(http_post('/raw/ok', '{"iban":"x"}', \%key)->body, qr/secret|iban/,
       'by another URI not');

my $waiter = send_post('/open/ok', $body, \%key);
ok(wait_for(sub { error_log() =~ /idempotency: begin -> wait: / }), 'waits');
app_release('c');

is($c->read_response->body, "run 1\n", 'ran');
is($waiter->read_response->status, 403, 'one that waited is refused');

unlike(http_post('/raw/ok', '{"iban":"x"}', \%key)->body, qr/secret|iban/,
       'nor is it told later');



=== TEST 19: the same, where the place of the original is not known
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;

    location /closed/ {
        if ($http_x_token = "") {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /moved/ {
        internal;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /open/ {
        idempotency_fingerprint  raw;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %type = ('Content-Type' => 'application/json');
my (%key, %in);

for my $uri ('/closed/ok?op=a', '/closed/accel?to=/moved/ok&op=b') {
    $key{$uri} = { %type, 'Idempotency-Key' => new_key() };
    $in{$uri} = { %{ $key{$uri} }, 'X-Token' => 1 };

    like(http_post($uri, '{"iban":"secret"}', $in{$uri})->body, qr/^run /,
         "$uri: ran");
    unlike(http_post('/open/ok', '{"iban":"x"}', $key{$uri})->body,
           qr/secret|iban/, "$uri: nothing of the body");
}

edit_config(sub { s/fingerprint  raw/fingerprint  off/ });
ok(nginx_reload(), 'reloaded');

for my $uri (sort keys %key) {
    my $r = http_post('/open/ok', '{"iban":"secret"}', $key{$uri});

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$uri: a conflict");
    is($r->header('Idempotent-Replayed'), undef, "$uri: not replayed");

    $r = http_post($uri, '{"iban":"secret"}', $in{$uri});
    is($r->header('Idempotent-Replayed'), 'true', "$uri: its own URI");
}



=== TEST 20: what the server of the original sets, for a retry to another one
--- http_config
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;
        idempotency  $TEST_STORE;

        location / {
            auth_request      /check;
            auth_request_set  $user  $upstream_http_x_user;
            set               $mark  closed;
            add_header        X-Set  "$user $mark";
            proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location = /check {
            internal;
            idempotency              off;
            set                      $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
            proxy_method             GET;
            proxy_pass_request_body  off;
            proxy_set_header         Content-Length "";
            proxy_pass               $app/ok?op=check&header=X-User:%20alice;
        }
    }
--- config
    idempotency  $TEST_STORE;
    set          $mark  open;

    location / {
        add_header   X-Set  "$mark";
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $r = http_post('/ok?op=a', 'x', \%key, port => $ENV{TEST_NGINX_PORT_2});
is($r->body, "run 1\n", 'ran');
is($r->header('X-Set'), 'alice closed', 'with what was set');

$r = http_post('/ok?op=a', 'x', \%key);
is($r->header('Idempotent-Replayed'), 'true', 'replayed');
is($r->header('X-Set'), 'alice closed', 'with the same');
is(app_count('check'), 2, 'checked in that server');
is(app_count('a'), 1, 'ran once');
