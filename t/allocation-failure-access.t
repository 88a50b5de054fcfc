# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Memory that can't be had while a retry goes the way of its original and is
# checked there: whatever fails, nobody gets a stored response who would have
# been refused, and error pages neither run the request nor bring nginx down.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest::Faults;              # before IdempotencyTest
use IdempotencyTest;
use IdempotencyTest::Walk;
use Test::Nginx::Socket 'no_plan';

# a location that does not take part: walk() looks there whether all is well

our $works = <<'_EOC_';
    location /status/ {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /auth {
        internal;

        if ($http_x_token = "") {
            return  403;
        }

        return  204;
    }
_EOC_

# Walks a first request, its replay, and a retry that is refused.  URIs have OP
# for the key.  "to": URI of the retries, if it is another one; "to_in": of those
# who are let in; "first", "again" and "out": headers of the first, of the
# retries, of those who are refused.

sub ways
{
    my ($name, $uri, %o) = @_;

    my %in = (%{ $o{again} || $o{first} || {} }, 'X-Token' => 1);
    my %first = (%{ $o{first} || {} }, 'X-Token' => 1);
    my $to = $o{to} || $uri;

    my $ask = sub {
        my ($asked, $method, $headers) = @_;

        return sub {
            my $key = shift;
            (my $at = $asked) =~ s/OP/$key/g;
            return send_request($method || 'POST', $at, 'x',
                                { 'Idempotency-Key' => $key, %$headers })
                ->read_response(6);
        };
    };

    my $first = $ask->($uri, $o{first_method}, \%first);
    my $retry = $ask->($o{to_in} || $to, undef, \%in);
    my $out = $ask->($to, undef, $o{out} || $o{again} || $o{first} || {});

    walk(name => "$name: first", request => $first,
         retry => $o{retry} || [200, 507])
        if !$o{replay_only};
    walk(name => "$name: replay", prepare => $first, request => $retry);
    walk(name => "$name: refused", prepare => $first, request => $out,
         again => $retry, answers => $o{refused} || [403], never => qr/run \d/);
}

run_tests();

walked(30);

__DATA__

=== TEST 1: where a content handler has led
--- config eval
$::works . <<'_EOC_'
    idempotency           $TEST_STORE;
    idempotency_identity  $host;
    idempotency_wait      0;

    location /accel/ {
        error_page  500 = @broken;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /page/ {
        error_page  502 = @page;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }

    location /next/ {
        auth_request  /auth;
        error_page    500 = @broken;
        proxy_method  POST;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }

    location @page {
        auth_request  /auth;
        error_page    500 /500.html;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # what an error page runs beside the request

    location @broken {
        proxy_method  POST;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- user_files
>>> 500.html
sorry
--- client_timeout: 120
--- client
# where the application has led and there is no memory for that, its outcome is
# not known

main::ways('X-Accel-Redirect', '/accel/accel?op=OP&to=/next/ok',
           retry => [200, 507, 409]);
main::ways('error_page', '/page/ok?op=OP');



=== TEST 2: where a rewrite and try_files have led before it began
--- config eval
$::works . <<'_EOC_'
    idempotency           $TEST_STORE;
    idempotency_identity  $host;
    idempotency_wait      0;
    error_page            500 /500.html;

    if ($http_x_server) {
        rewrite  ^/server/(.*) /closed/$1 last;
    }

    location /location/ {
        rewrite  ^/location/(.*) /closed/$1 last;
    }

    location /closed/ {
        auth_request  /auth;
        try_files     /none @app;
    }

    location @app {
        auth_request  /auth;
        error_page    500 = @broken;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @broken {
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- user_files
>>> 500.html
sorry
--- client_timeout: 120
--- client
main::ways('rewrite of the server', '/server/ok?op=OP',
           first => { 'X-Server' => 1 });
main::ways('rewrite of a location', '/location/ok?op=OP', replay_only => 1);



=== TEST 3: what the original asked for
--- http_config
    server {
        listen                   127.0.0.1:$TEST_NGINX_SERVER_PORT;
        server_name              other;
        idempotency              $TEST_STORE;
        idempotency_fingerprint  off;
        idempotency_scope        all;
        idempotency_identity     off;
        error_page               500 /500.html;

        location / {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }

        location = /500.html {
            internal;
        }
    }
--- config eval
$::works . <<'_EOC_'
    idempotency              $TEST_STORE;
    idempotency_fingerprint  off;
    idempotency_scope        all;
    idempotency_wait         0;
    idempotency_identity     off;
    set_real_ip_from         127.0.0.1;
    real_ip_header           X-Client;

    location /open/ {
        error_page  500 = @broken;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /static/ {
        error_page  500 /500.html;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /500.html {
        internal;
    }

    # checked by its address

    location /behind/ {
        allow       10.0.0.1;
        deny        all;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # checked by what it asks for

    location /mine/ {
        set  $asked "$http_x_user:$request_uri";

        if ($asked !~ "^(\w+):/mine/\1/") {
            return  403;
        }

        error_page  500 = @broken;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /token/ {
        if ($arg_token != secret) {
            return  403;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /method/ {
        limit_except POST {
            deny   all;
        }

        auth_request  /auth;
        satisfy       any;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /login/ {
        if ($http_x_token = "") {
            return  302 /enter?next=$request_uri;
        }

        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @broken {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- user_files
>>> 500.html
sorry
--- client_timeout: 180
--- client
my %of = map { $_ => { 'X-User' => $_ } } qw(alice bob);

main::ways('another URI', '/mine/alice/ok?op=OP', to => '/mine/bob/ok?op=OP',
           to_in => '/open/ok?op=OP', first => $of{alice}, out => $of{bob},
           replay_only => 1);
main::ways('other arguments', '/token/ok?op=OP&token=secret',
           to => '/open/ok?op=OP', replay_only => 1,
           to_in => '/open/ok?token=secret&op=OP');
main::ways('a method', '/method/ok?op=OP', first_method => 'PUT',
           replay_only => 1);
main::ways('a redirect that tells', '/login/secret/ok?op=OP',
           to => '/static/ok?op=OP', refused => [409], replay_only => 1);
main::ways('another server', '/login/secret/ok?op=OP',
           to => '/ok?op=OP', again => { Host => 'other' }, refused => [409]);
main::ways('an address', '/behind/ok?op=OP', to => '/open/ok?op=OP',
           first => { 'X-Client' => '10.0.0.1' },
           out => { 'X-Client' => '10.0.0.2' }, replay_only => 1);
