# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Checks that a content handler makes are not made for a replay.  Where they
# can be recognised, nginx warns when it reads the configuration: with the
# nchan of the distribution.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket;
use Cwd qw(getcwd);

# installed, or fetched once and not installed

our $nchan = nchan();

if (!$nchan) {
    plan(skip_all => 'NOT TESTED: warnings of nchan, whose package can\'t be '
                     . 'had');
}

plan('no_plan');

sub nchan
{
    my $file = 'usr/lib/nginx/modules/ngx_nchan_module.so';
    my $dir = getcwd() . '/build/nchan';

    return "/$file" if -e "/$file";

    if (!-e "$dir/$file") {
        system("mkdir -p $dir && cd $dir"
               . ' && apt-get -qq -o APT::Sandbox::User=root download'
               . ' libnginx-mod-nchan'
               . ' && dpkg -x libnginx-mod-nchan_*.deb . && rm *.deb'
               . " > $dir.log 2>&1");
    }

    return -e "$dir/$file" && "$dir/$file";
}

sub warnings_of
{
    my ($change) = @_;

    edit_config($change);

    my $root = $ENV{TEST_NGINX_SERVROOT};
    return `$ENV{TEST_NGINX_BINARY} -t -q -e stderr -p $root/ -c $root/conf/nginx.conf 2>&1`;
}

run_tests();

__DATA__

=== TEST 1: nchan_authorize_request
--- store: memory
--- modules eval: $::nchan
--- config
    nchan_authorize_request  /auth;     # server

    location /publish/ {
        idempotency       $TEST_STORE;
        nchan_publisher;
        nchan_channel_id  c;
    }
    location /app/ {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /uncovered/ {
        nchan_publisher;
        nchan_channel_id  c;
    }
    location = /auth {
        if ($http_x_user = '') { return 403; }
        return 204;
    }
--- client
is(http_post('/publish/x', 'x', { 'Idempotency-Key' => new_key() })->status,
   403, 'nchan asks');

my $said = warnings_of(sub {});

like($said, qr{\[warn\].*"nchan_authorize_request" in location "/publish/" is not asked for replays},
     'warned of');
like($said, qr/"auth_request"/, 'with a way out');
unlike($said, qr{"/app/"|"/uncovered/"}, 'of no other location');

unlike(warnings_of(sub { s/nchan_authorize_request.*# server// }),
       qr/\[warn\]/, 'without it: no warning');
--- no_error_log
[alert]
