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
use File::Path qw(remove_tree);

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

    # this test runs on several stores at a time: the first one's is taken

    if (!-e "$dir/$file") {
        system("mkdir -p $dir.$$ && cd $dir.$$"
               . ' && apt-get -qq -o APT::Sandbox::User=root download'
               . ' libnginx-mod-nchan > log 2>&1'
               . ' && dpkg -x libnginx-mod-nchan_*.deb . >> log 2>&1');
        rename "$dir.$$", $dir;
        remove_tree("$dir.$$");
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



=== TEST 2: streams of nchan are not kept as empty responses
Its subscribers say header_only, and the body follows.
--- modules eval: $::nchan
--- config
    location /publish/ {
        nchan_publisher;
        nchan_channel_id  c;
    }
    location /subscribe/ {
        idempotency               $TEST_STORE;
        idempotency_methods       GET;
        nchan_subscriber;
        nchan_subscriber_timeout  1s;
        nchan_channel_id          c;
    }
    location /dav/ {
        idempotency  $TEST_STORE;
        alias        html/;
        dav_methods  PUT DELETE;
    }
--- client
is(http_post('/publish/x', 'a message')->status, 202, 'published');

my @how = ([ 'long poll', 1 ], [ 'events', 0, Accept => 'text/event-stream' ],
           [ 'chunked', 0, TE => 'chunked' ],
           [ 'multipart', 0, Accept => 'multipart/mixed' ]);

for my $how (@how) {
    my ($name, $kept, @headers) = @$how;
    my @request = ('GET', '/subscribe/x', '',
                   [ 'Idempotency-Key' => new_key(), @headers ]);

    my $first = http_request(@request);
    like($first->body, qr/a message/, "$name: the first");

    my $retry = http_request(@request);

    if ($kept) {
        is($retry->body, $first->body, "$name: replayed");
    } else {
        is($retry->error_code, 'RESPONSE_NOT_KEPT', "$name: not kept");
    }
}

# responses that have no body are

my %key = ('Idempotency-Key' => new_key());
my @r = map { http_request('PUT', '/dav/it', 'x', \%key) } 1, 2;

is($_->status, 201, 'created') for @r;
is($r[1]->header('Idempotent-Replayed'), 'true', 'replayed');
--- no_error_log
[alert]
