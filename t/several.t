# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Several servers, locations and stores: those that name one store share its
# records, the scope keeps them apart or together, and two stores know
# nothing of each other.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: several locations and servers on one store
--- http_config
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  other;
        idempotency  $TEST_STORE;

        location / {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    idempotency  $TEST_STORE;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /b/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /off/ {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $port_2 = $ENV{TEST_NGINX_PORT_2};

is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran');

# another location: the same record, and another request

my $r = http_post('/b/ok?op=a', 'x', \%key);

is($r->status, 409, 'another location');
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'is another request');

# another server: the same record if it is asked by the same name

$r = http_post('/ok?op=a', 'x', \%key, port => $port_2);

is($r->body, "run 1\n", 'another server');
is($r->header('Idempotent-Replayed'), 'true', 'replays the same request');

$r = http_post('/ok?op=a', 'x', { %key, Host => 'other' }, port => $port_2);

is($r->body, "run 2\n", 'by another name: another scope');
is($r->header('Idempotent-Replayed'), undef, 'so that it runs');
is(app_count('a'), 2, 'twice in all');

http_post('/off/ok?op=off', 'x', \%key) for 1 .. 2;
is(app_count('off'), 2, 'where it is off');

# while the holder runs in one, the other waits for it

%key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold?op=h', 'x', \%key);

app_wait_parked('h');

$r = http_post('/b/hold?op=h', 'x', \%key);
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict beside the holder');

my $w = send_post('/hold?op=h', 'x', \%key, port => $port_2);

is($w->read_response(0.2), undef, 'a waiter in another server');
app_release('h');

is($c->read_response->body, "run 1\n", 'the holder');

$r = $w->read_response;

is($r->body, "run 1\n", 'the waiter');
is($r->header('Idempotent-Replayed'), 'true', 'has its response');
is(app_count('h'), 1, 'ran once');



=== TEST 2: the scope keeps apart, or brings together
--- http_config
    server {
        listen             127.0.0.1:$TEST_NGINX_PORT_2;
        idempotency        $TEST_STORE;
        idempotency_scope  fixed;

        location / {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    idempotency        $TEST_STORE;
    idempotency_scope  fixed;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /route/ {
        idempotency_scope  $host$uri;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /tenant/ {
        idempotency_scope  $http_x_tenant;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();
my %key = ('Idempotency-Key' => $key);

# one scope: a key can't be used for two things, whichever host was meant

is(http_post('/ok?op=a', 'x', { %key, Host => 'one' })->body, "run 1\n",
   'ran');
is(http_post('/ok?op=a', 'x', { %key, Host => 'two' })->error_code,
   'IDEMPOTENCY_CONFLICT', 'another host: another request');
is(http_post('/ok?op=a', 'x', { %key, Host => 'one' },
             port => $ENV{TEST_NGINX_PORT_2})->body, "run 1\n",
   'another server: the same');

# a scope by route: a key for each

is(http_post('/route/ok?op=r', 'x', \%key)->body, "run 1\n", 'a route');
is(http_post('/route/ok2?op=r', 'x', \%key)->body, "run 2\n", 'another');
is(http_post('/route/ok?op=r', 'x', \%key)->body, "run 1\n", 'the first');
is(http_post('/route/ok?op=r&x', 'x', \%key)->error_code,
   'IDEMPOTENCY_CONFLICT', 'the same with other arguments');

# scope and key are two things: "a" and "bc" is not "ab" and "c"

for ([ 'a', "b$key" ], [ 'ab', $key ], [ '', "ab$key" ]) {
    my ($tenant, $k) = @$_;

    http_post('/tenant/ok?op=t', 'x',
              { 'Idempotency-Key' => $k, 'X-Tenant' => $tenant }) for 1 .. 2;
}

is(app_count('t'), 3, 'one for each');



=== TEST 3: two stores
--- store: memory
--- http_config
    idempotency_store one memory { zone one:1m; }
    idempotency_store two memory { zone two:1m; }
--- config
    idempotency              one;
    idempotency_fingerprint  off;

    location /one/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /again/ {
        idempotency  one;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /two/ {
        idempotency  two;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /default/ {
        idempotency  on;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /single/ {
        idempotency              two;
        idempotency_max_waiters  1;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /first/ {
        idempotency_max_waiters  1;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/one/ok?op=a', 'x', \%key)->body, "run 1\n", 'one');
is(http_post('/two/ok?op=a', 'x', \%key)->body, "run 2\n",
   'two knows nothing of it');
is(http_post('/default/ok?op=a', 'x', \%key)->body, "run 3\n",
   'nor does the default');

is(http_post('/again/ok?op=a', 'x', \%key)->body, "run 1\n",
   'one by its name, or inherited');
is(http_post('/two/ok?op=a', 'x', \%key)->body, "run 2\n", 'two again');
is(http_post('/default/ok?op=a', 'x', \%key)->body, "run 3\n",
   'the default again');

# the lock of one is not in the way of the other, nor are its waiters

%key = ('Idempotency-Key' => new_key());

my $one = send_post('/first/hold?op=one', 'x', \%key);
my $two = send_post('/single/hold?op=two', 'x', \%key);

app_wait_parked('one');
app_wait_parked('two');

my @one = (send_post('/first/hold?op=one', 'x', \%key));
my @two = (send_post('/single/hold?op=two', 'x', \%key));

is($one[0]->read_response(0.2), undef, 'waits in one');
is($two[0]->read_response(0.2), undef, 'waits in two');

is(http_post('/single/hold?op=two', 'x', \%key)->error_code,
   'TOO_MANY_WAITERS', 'a second one may not');

app_release('one');

is($one->read_response->body, "run 1\n", 'the holder in one');
is($one[0]->read_response->body, "run 1\n", 'its waiter');
is($two[0]->read_response(0.2), undef, 'two still waits');

app_release('two');

is($two->read_response->body, "run 1\n", 'the holder in two');
is($two[0]->read_response->body, "run 1\n", 'its waiter');



=== TEST 4: nginx behind nginx
--- http_config
    server {
        listen            127.0.0.1:$TEST_NGINX_PORT_2;
        idempotency_wait  500ms;
        idempotency_ttl   1h;
        location / {
            idempotency  $TEST_STORE;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location /short/ {
            idempotency                $TEST_STORE;
            idempotency_ttl            300ms;
            idempotency_expired_grace  1h;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- config
    add_header        X-Idem $idempotency_status always;
    proxy_set_header  Host $host;
    idempotency       $TEST_STORE;
    idempotency_wait  500ms;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /moved/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_PORT_2/;
    }
    location /apart/ {
        idempotency_scope  "edge $host";
        proxy_pass         http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /plain/ {
        idempotency_scope    "edge $host";
        idempotency_headers  off;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /short/ {
        idempotency_scope          "edge $host";
        idempotency_ttl            300ms;
        idempotency_expired_grace  1h;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /without/ {
        proxy_set_header  Host $host;
        proxy_set_header  Idempotency-Key "";
        proxy_pass        http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my @inner = (port => $ENV{TEST_NGINX_PORT_2});

my $values = sub {
    my ($r, $name) = @_;

    return join '|', $r->header_lines =~ /^\Q$name\E: (.*?)\r?$/mg;
};

# one record for both: nothing runs, and nothing is left

my %key = ('Idempotency-Key' => new_key());

for (1 .. 2) {
    my $r = http_post('/ok?op=one', 'x', \%key);
    is($r->status, 503, 'each waits for the other');
    is($r->error_code, 'LOCK_TIMEOUT', 'in vain');
    is($r->header('X-Idem'), 'RELEASED', 'no record is left');

    $r = http_post('/moved/ok?op=one', 'x', { 'Idempotency-Key' => new_key() });
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'another URI');
    is($r->header('X-Idem'), 'RELEASED', 'no record is left');
}

is(app_count('one'), 0, 'the application was not asked');

# as the documents say

for my $how (qw(apart without)) {
    %key = ('Idempotency-Key' => new_key());

    my @r = map { http_post("/$how/ok?op=$how", 'x', \%key) } 1 .. 3;

    is($_->body, "run 1\n", "$how: one execution") for @r;
    is($values->($r[0], 'Idempotent-Replayed'), '', "$how: ran");
    is($values->($r[1], 'Idempotent-Replayed'), 'true', "$how: replayed");
}

# what the second one knows, the first one learns; and says so once

for my $how (qw(apart plain)) {
    %key = ('Idempotency-Key' => new_key());

    is(http_post("/$how/ok?op=in$how", 'x', \%key, @inner)->body, "run 1\n",
       "$how: ran behind");

    my @r = map { http_post("/$how/ok?op=in$how", 'x', \%key) } 1 .. 3;

    is(join(' ', map { $_->header('X-Idem') } @r),
       'EXECUTED REPLAYED REPLAYED', "$how: learnt");

    for my $r (@r) {
        is($r->body, "run 1\n", "$how: the same response");
        is($values->($r, 'Idempotent-Replayed'), 'true', "$how: once");
        like($values->($r, 'X-Original-Request-Time'),
             qr/^\d{4}-\d\d-\d\dT[0-9:]+Z$/, "$how: one time");
    }
}

%key = ('Idempotency-Key' => new_key());
my @r = map { http_post('/short/ok?op=short', 'x', \%key) } 1;
sleep 0.6;
push @r, map { http_post('/short/ok?op=short', 'x', \%key) } 1 .. 2;

is(join(' ', map { $_->header('X-Idem') } @r), 'EXECUTED EXECUTED REPLAYED',
   'expired in both');
is($values->($r[1], 'X-Idempotency-Expired'), 'true', 'said once');
is($values->($r[2], 'X-Idempotency-Expired'), '', 'a replay is none');
