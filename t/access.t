# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A stored response never goes to a client that an access check would refuse:
# whatever the check, whatever its place, and wherever an error_page leads.
# A refused client leaves no record and no lock behind, waits for nobody, and
# can't tell a key that was used from one that was not.

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
our @bob   = (Authorization => 'Basic Ym9iOnNlY3JldA==');
our @wrong = (Authorization => 'Basic YWxpY2U6d3Jvbmc=');

# What the client with headers @$in is given, the one with @$out never gets:
# not a response that is stored, nor one that is on its way, nor a word on
# whether there is any.  And what it asked for first is not taken.

my $n = 0;

sub kept_out {
    my ($what, $uri, $in, $out, $status) = @_;

    my $op = $uri . '-' . ++$n;
    my ($used, $fresh) = (new_key(), new_key());

    my $post = sub {
        my ($path, $key, $who) = @_;
        return http_post("$uri$path?op=$op", 'x',
                         { @$who, 'Idempotency-Key' => $key });
    };

    is($post->('ok', $used, $in)->body, "run 1\n", "$what: let in, ran");

    my $one = $post->('ok', $used, $out);
    my $two = $post->('ok', $fresh, $out);

    is($one->status, $status, "$what: kept out, of a used key");
    is($two->status, $status, "$what: kept out, of an unused key");
    is($one->header_lines('Date'), $two->header_lines('Date'),
       "$what: header tells nothing");
    is($one->body, $two->body, "$what: body tells nothing");
    is($one->header('X-Idem'), undef, "$what: not looked at");
    is(app_count($op), 1, "$what: did not run");

    my $r = $post->('ok', $used, $in);

    is($r->header('Idempotent-Replayed'), 'true', "$what: let in, replayed");
    is($r->body, "run 1\n", "$what: the response of the first");

    $r = $post->('ok', $fresh, $in);

    is($r->header('Idempotent-Replayed'), undef, "$what: no record was left");
    is($r->body, "run 2\n", "$what: nor a lock");

    # beside a holder: neither waits nor conflicts

    my $c = send_post("${uri}hold?op=$op", 'x',
                      { @$in, 'Idempotency-Key' => (my $held = new_key()) });

    app_wait_parked($op);

    is($post->('hold', $held, $out)->status, $status,
       "$what: kept out beside a holder");
    is($post->('ok', $held, $out)->status, $status,
       "$what: also with another request");

    app_release($op);
    is($c->read_response->body, "run 3\n", "$what: the holder goes on");

    # a key that is none: refused for one reason or for the other

    like($post->('ok', '"', $out)->status, qr/^(?:400|$status)$/,
         "$what: malformed key");
    is(app_count($op), 3, "$what: three runs in all");
}

run_tests();

__DATA__

=== TEST 1: allow and deny
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
--- config
    location / {
        allow        10.0.0.1;
        deny         all;
        add_header   X-Idem $idempotency_status always;
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out('address', '/', [ 'X-Client' => '10.0.0.1' ],
         [ 'X-Client' => '10.0.0.2' ], 403);



=== TEST 2: auth_basic
--- user_files eval: $::users
--- config
    location / {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        add_header            X-Idem $idempotency_status always;
        idempotency           $TEST_STORE;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /anyone/ {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        add_header            X-Idem $idempotency_status always;
        idempotency           $TEST_STORE;
        idempotency_identity  $host;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out('password', '/', \@::alice, [], 401);
kept_out('wrong password', '/', \@::alice, \@::wrong, 401);
kept_out('password, one identity for all', '/anyone/', \@::alice, [], 401);

my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=i', 'x', { %key, @::alice })->body, "run 1\n", 'ran');

my $r = http_post('/ok?op=i', 'x', { %key, @::bob });

is($r->error_code, 'IDEMPOTENCY_CONFLICT', "somebody else's key");
is_deeply($r->json->{error}{details}, {}, 'and no more is told');
is(app_count('i'), 1, 'ran once');



=== TEST 3: an error_page of the check does not lead to the record either
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
--- config
    idempotency  $TEST_STORE;

    # the page inherits idempotency, and an address that it does not check

    location /page/ {
        allow       10.0.0.1;
        deny        all;
        error_page  403 @denied;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /recursive/ {
        allow       10.0.0.1;
        deny        all;
        error_page  403 = @denied;
        recursive_error_pages  on;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /late/ {
        allow             10.0.0.1;
        deny              all;
        error_page        403 = @denied;
        idempotency_key   $uri$http_idempotency_key;
        idempotency_key_format  string;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /off/ {
        allow       10.0.0.1;
        deny        all;
        error_page  403 = @denied_off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @denied {
        add_header  X-Page denied always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        rewrite     ^ /ok?op=denied? break;
    }

    location @denied_off {
        idempotency  off;
        add_header   X-Page denied always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        rewrite      ^ /ok?op=denied? break;
    }
--- client
my @in  = ('X-Client' => '10.0.0.1');
my @out = ('X-Client' => '10.0.0.2');

for my $where (qw(page recursive late off)) {
    app_reset();

    my $post = sub {
        my ($key, $who) = @_;
        return http_post("/$where/ok?op=a", 'x',
                         { @$who, 'Idempotency-Key' => $key });
    };

    my ($used, $fresh) = (new_key(), new_key());

    is($post->($used, \@in)->body, "run 1\n", "$where: ran");

    my $r = $post->($used, \@out);

    is($r->header('X-Page'), 'denied', "$where: page, of a used key");
    is($r->header('Idempotent-Replayed'), undef, "$where: not replayed");
    is($r->body, "run 1\n", "$where: it is the page's own");
    is(app_count('denied'), 1, "$where: made for this one");

    $r = $post->($fresh, \@out);

    is($r->header('X-Page'), 'denied', "$where: page, of an unused key");
    is($r->body, "run 2\n", "$where: not stored as of the request");

    $r = $post->($fresh, \@out);

    is($r->body, "run 3\n", "$where: not stored at all");

    $r = $post->($fresh, \@in);

    is($r->header('X-Page'), undef, "$where: the key was not taken");
    is($r->header('Idempotent-Replayed'), undef, "$where: nor is there a record");
    is(app_count('a'), 2, "$where: ran");
}



=== TEST 4: satisfy any: one check grants, the other does, none does
--- user_files eval: $::users
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
--- config
    location / {
        satisfy               any;
        allow                 10.0.0.1;
        deny                  all;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        add_header            X-Idem $idempotency_status always;
        idempotency           $TEST_STORE;
        idempotency_identity  $host;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @in  = ('X-Client' => '10.0.0.1');
my @out = ('X-Client' => '10.0.0.2');

kept_out('any, by address', '/', \@in, \@out, 401);
kept_out('any, by password', '/', [ @out, @::alice ], [ @out, @::wrong ], 401);

my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=s', 'x', { %key, @in })->body, "run 1\n",
   'the first check grants');
is(http_post('/ok?op=s', 'x', { %key, @out, @::alice })->body, "run 1\n",
   'the second check grants');
is(http_post('/ok?op=s', 'x', { %key, @out })->status, 401, 'none grants');
is(http_post('/ok?op=s', 'x', { %key, @in, @::wrong })->body, "run 1\n",
   'one of them is enough');



=== TEST 5: satisfy all: the one check does not stand for the other
--- user_files eval: $::users
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
--- config
    location / {
        satisfy               all;
        allow                 10.0.0.1;
        deny                  all;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        add_header            X-Idem $idempotency_status always;
        idempotency           $TEST_STORE;
        idempotency_identity  $host;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @in  = ('X-Client' => '10.0.0.1');
my @out = ('X-Client' => '10.0.0.2');

kept_out('all, no password', '/', [ @in, @::alice ], \@in, 401);
kept_out('all, wrong address', '/', [ @in, @::alice ], [ @out, @::alice ], 403);



=== TEST 6: auth_request
--- config
    # untouched as a subrequest: it takes no lock, and needs no key
    idempotency           $TEST_STORE;
    idempotency_required  on;

    location / {
        auth_request      /auth;
        auth_request_set  $user $upstream_http_x_user;

        add_header            X-Idem $idempotency_status always;
        idempotency_identity  $user;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /scope/ {
        auth_request      /auth;
        auth_request_set  $user $upstream_http_x_user;

        idempotency_identity  $user;
        idempotency_scope     $user;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /any/ {
        satisfy       any;
        deny          all;
        auth_request  /auth;

        add_header            X-Idem $idempotency_status always;
        idempotency_identity  $host;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /auth {
        internal;

        if ($http_x_token = "") {
            return 401;
        }

        if ($http_x_token = "banned") {
            return 403;
        }

        proxy_method             POST;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=auth&header=X-User:%20$http_x_token;
    }
--- client
my @ann = ('X-Token' => 'ann');
my @ben = ('X-Token' => 'ben');

kept_out('auth_request', '/', \@ann, [], 401);
kept_out('auth_request, 403', '/', \@ann, [ 'X-Token' => 'banned' ], 403);
kept_out('auth_request, satisfy any', '/any/', \@ann, [], 401);

# the record is of the user that the check has found out

app_reset();

my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok?op=u', 'x', { %key, @ann })->body, "run 1\n", 'ran');
is(http_post('/ok?op=u', 'x', { %key, @ann })->body, "run 1\n", 'replayed');
is(app_count('auth'), 2, 'each was checked');

my $r = http_post('/ok?op=u', 'x', { %key, @ben });

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'identity: not to another user');
is_deeply($r->json->{error}{details}, {}, 'identity: nor a word about it');
is(app_count('u'), 1, 'identity: ran once');

is(http_post('/scope/ok?op=v', 'x', { %key, @ann })->body, "run 1\n",
   'scope: the first user');
is(http_post('/scope/ok?op=v', 'x', { %key, @ben })->body, "run 2\n",
   'scope: another user, another operation');
is(http_post('/scope/ok?op=v', 'x', { %key, @ann })->body, "run 1\n",
   'scope: the first again');
is(http_post('/scope/ok?op=v', 'x', { %key, @ben })->body, "run 2\n",
   'scope: the other again');



=== TEST 7: access_by_lua
--- modules: lua
--- config
    location / {
        access_by_lua_block {
            if ngx.var.http_x_token ~= "good" then
                return ngx.exit(403)
            end
        }

        add_header   X-Idem $idempotency_status always;
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # the check takes its time

    location /late/ {
        access_by_lua_block {
            ngx.sleep(0.01)

            if ngx.var.http_x_token ~= "good" then
                return ngx.exit(403)
            end
        }

        add_header   X-Idem $idempotency_status always;
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # the check reads the body, which counts all the same

    location /body/ {
        access_by_lua_block {
            ngx.req.read_body()

            if ngx.var.http_x_token ~= "good" then
                return ngx.exit(403)
            end
        }

        client_body_buffer_size  4k;
        add_header   X-Idem $idempotency_status always;
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /page/ {
        access_by_lua_block {
            if ngx.var.http_x_token ~= "good" then
                return ngx.exit(403)
            end
        }

        error_page   403 = @denied;
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @denied {
        idempotency  $TEST_STORE;
        rewrite      ^ /ok?op=denied? break;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # a check that sends who is let in elsewhere

    location /exec/ {
        access_by_lua_block { ngx.exec("@backend") }
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location @backend {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # a scope that the check sets

    location /scope/ {
        set $tenant "";
        access_by_lua_block { ngx.var.tenant = ngx.var.http_x_tenant }

        idempotency        $TEST_STORE;
        idempotency_scope  $tenant;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @good = ('X-Token' => 'good');

kept_out('Lua', '/', \@good, [], 403);
kept_out('Lua that sleeps', '/late/', \@good, [], 403);
kept_out('Lua that reads the body', '/body/', \@good, [], 403);

my %key = ('Idempotency-Key' => new_key());

for my $size (100, 100_000) {
    my %key = ('Idempotency-Key' => new_key(), @good);

    my $r = http_post("/body/echo?op=b$size", 'a' x $size, \%key);
    is($r->json->{length}, $size, "body read before, $size: ran");

    $r = http_post("/body/echo?op=b$size", 'a' x $size, \%key);
    is($r->header('Idempotent-Replayed'), 'true', "$size: replayed");

    $r = http_post("/body/echo?op=b$size", 'a' x ($size - 1) . 'b', \%key);
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$size: another body");
}

is(http_post('/page/ok?op=p', 'x', { %key, @good })->body, "run 1\n", 'ran');

my $r = http_post('/page/ok?op=p', 'x', \%key);

is($r->header('Idempotent-Replayed'), undef, 'page: not replayed');
is(app_count('denied'), 1, "page: it is the page's own");

%key = ('Idempotency-Key' => new_key());

is(http_post('/exec/ok?op=e', 'x', \%key)->body, "run 1\n", 'exec: ran');
is(http_post('/exec/ok?op=e', 'x', \%key)->body, "run 1\n", 'exec: replayed');
is(app_count('e'), 1, 'exec: once');

for my $tenant ('one', 'two', 'one') {
    http_post('/scope/ok?op=s', 'x', { %key, 'X-Tenant' => $tenant });
}

is(app_count('s'), 2, 'scope: one for each');



=== TEST 8: limit_except, internal, and a limit on requests
--- http_config
    set_real_ip_from  127.0.0.1;
    real_ip_header    X-Client;
    limit_req_zone    $http_x_limit zone=limit:1m rate=1r/m;
--- config
    idempotency  $TEST_STORE;

    location /except/ {
        limit_except GET {
            allow  10.0.0.1;
            deny   all;
        }

        add_header  X-Idem $idempotency_status always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /inside/ {
        internal;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /door/ {
        rewrite  ^/door/(.*) /inside/$1 last;
    }

    location /limited/ {
        limit_req   zone=limit;
        error_page  503 = @busy;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @busy {
        add_header  X-Page busy always;
        rewrite     ^ /ok?op=busy? break;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
kept_out('limit_except', '/except/', [ 'X-Client' => '10.0.0.1' ],
         [ 'X-Client' => '10.0.0.2' ], 403);

my %key = ('Idempotency-Key' => new_key());

is(http_post('/door/ok?op=d', 'x', \%key)->body, "run 1\n",
   'internal: by the door');
is(http_post('/door/ok?op=d', 'x', \%key)->body, "run 1\n",
   'internal: replayed');
is(http_post('/inside/ok?op=d', 'x', \%key)->status, 404,
   'internal: not from outside');
is(app_count('d'), 1, 'internal: once');

my $used = new_key();
my $fresh = new_key();

is(http_post('/limited/ok?op=l', 'x',
             { 'Idempotency-Key' => $used, 'X-Limit' => 'a' })->body,
   "run 1\n", 'limit: ran');

my $r = http_post('/limited/ok?op=l', 'x',
                  { 'Idempotency-Key' => $used, 'X-Limit' => 'a' });

is($r->header('X-Page'), 'busy', 'limit: beyond it');
is($r->header('Idempotent-Replayed'), undef, 'limit: no replay');

is(http_post('/limited/ok?op=l', 'x',
             { 'Idempotency-Key' => $fresh, 'X-Limit' => 'a' })
       ->header('X-Page'), 'busy', 'limit: an unused key');

$r = http_post('/limited/ok?op=l', 'x',
               { 'Idempotency-Key' => $fresh, 'X-Limit' => 'b' });

is($r->header('Idempotent-Replayed'), undef, 'limit: it was not taken');
is($r->header('X-Page'), undef, 'limit: let in');
is(app_count('l'), 2, 'limit: ran');



=== TEST 9: a malformed or missing key grants nothing, and is not held against access
--- user_files eval: $::users
--- config
    location / {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /any/ {
        satisfy               any;
        allow                 127.0.0.1;
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/htpasswd;
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $who ([], \@::wrong) {
    for my $key ([], [ 'Idempotency-Key' => '' ],
                 [ 'Idempotency-Key' => "a b" ],
                 [ 'Idempotency-Key' => 'a', 'Idempotency-Key' => 'b' ])
    {
        like(http_post('/ok', 'x', [ @$who, @$key ])->status, qr/^40[01]$/,
             'kept out');
    }
}

is(app_count('/ok'), 0, 'none ran');

is(http_post('/ok', 'x', { @::alice })->error_code,
   'IDEMPOTENCY_KEY_MISSING', 'let in: the key is missing');
is(http_post('/ok', 'x', { @::alice, 'Idempotency-Key' => 'a b' })->error_code,
   'IDEMPOTENCY_KEY_INVALID', 'let in: the key is malformed');
is(http_post('/any/ok', 'x', { 'Idempotency-Key' => 'a b' })->error_code,
   'IDEMPOTENCY_KEY_INVALID', 'satisfy any: the key is malformed');
is(http_post('/any/ok', 'x', { 'Idempotency-Key' => 'ab' })->body,
   "run 1\n", 'satisfy any: it is not');



=== TEST 10: access_by_lua sets the header with the key, or changes it
--- modules: lua
--- config
    idempotency  $TEST_STORE;

    location /set/ {
        access_by_lua_block {
            ngx.req.set_header("Idempotency-Key", ngx.var.http_x_order)
        }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /required/ {
        idempotency_required  on;
        access_by_lua_block {
            ngx.req.set_header("Idempotency-Key", ngx.var.http_x_order)
        }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /changed/ {
        access_by_lua_block {
            ngx.req.set_header("Idempotency-Key", ngx.var.http_x_tenant
                               .. "-" .. ngx.var.http_idempotency_key)
        }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /bypass/ {
        idempotency_bypass  $http_x_bypass;
        access_by_lua_block { ngx.req.set_header("X-Bypass", "1") }
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $path (qw(set required)) {
    my %order = ('X-Order' => new_key());

    is(http_post("/$path/ok?op=$path", 'x', \%order)->body, "run 1\n",
       "$path: ran");

    my $r = http_post("/$path/ok?op=$path", 'x', \%order);
    is($r->header('Idempotent-Replayed'), 'true', "$path: replayed");
    is(app_count($path), 1, "$path: ran once");
}

is(http_post('/required/ok?op=none', 'x')->error_code,
   'IDEMPOTENCY_KEY_MISSING', 'required: Lua has none, either');

my %key = ('Idempotency-Key' => new_key());

for my $tenant (qw(one two one two)) {
    http_post('/changed/ok?op=c', 'x', { %key, 'X-Tenant' => $tenant });
}

is(app_count('c'), 2, 'changed: once for each');

http_post('/bypass/ok?op=b', 'x', \%key) for 1 .. 2;
is(app_count('b'), 2, 'bypass: what Lua says counts');



=== TEST 11: Lua throws the body away: it counts as an empty one
--- modules: lua
--- h2
--- config
    idempotency              $TEST_STORE;
    proxy_pass_request_body  off;
    proxy_set_header         Content-Length "";

    location / {
        access_by_lua_block { ngx.req.discard_body() }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /rewrite/ {
        rewrite_by_lua_block { ngx.req.discard_body() }
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $path ('/', '/rewrite/') {
    for my $size (1, 200_000) {
        my %key = ('Idempotency-Key' => new_key());
        my $op = new_key();

        is(http_post("${path}ok?op=$op", 'x' x $size, \%key)->body,
           "run 1\n", "$path, $size: ran");

        my $r = http_post("${path}ok?op=$op", 'y' x $size, \%key);
        is($r->header('Idempotent-Replayed'), 'true', "$path, $size: replayed");
        is(app_count($op), 1, "$path, $size: ran once");

        $r = http_post("${path}ok?op=$op", '', \%key);
        is($r->header('Idempotent-Replayed'), 'true', "$path: as an empty one");
    }
}

my $h2 = h2_connect();

for my $try (1, 2) {
    my $id = $h2->request('POST', '/ok?op=h2', 'x',
                          { 'idempotency-key' => 'h2' });
    is($h2->response($id)->body, "run 1\n", "HTTP/2: $try");
}

is(app_count('h2'), 1, 'HTTP/2: ran once');
