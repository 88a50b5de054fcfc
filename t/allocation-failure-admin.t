# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Memory that can't be had while an operator looks at records and events, while
# events are written to a store, and in what few requests need: variables,
# post_action, subrequests, files, large bodies.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest::Faults;              # before IdempotencyTest
use IdempotencyTest;
use IdempotencyTest::Walk;
use Test::Nginx::Socket 'no_plan';

# what a client has read of a response that has no end

package Begun;

sub new { my ($class, $text) = @_; return bless { raw => $text }, $class }
sub status { return $_[0]{raw} =~ m{^HTTP/1.1 (\d+)} ? $1 : 0 }
sub raw { return $_[0]{raw} }
sub body { return $_[0]{raw} }
sub error_code { return '' }
sub truncated { return 0 }

package main;

sub begun
{
    my ($uri, $key) = @_;

    my $c = connect_client();

    $c->send_part("GET $uri HTTP/1.1\r\nHost: localhost\r\n\r\n");
    $c->read_some(1);

    if ($key) {
        post($key, 'X-Actor' => 'ann');
        $c->read_some(1 << 20, 0.02);
    }

    my $got = Begun->new($c->read_some(1));
    $c->abort;

    return $got;
}

# the name of the store under test

our $Store = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 'default'
                                                               : 'tested';

sub post
{
    my ($key, %headers) = @_;

    return send_post("/ok?op=$key", '{"a":1}',
                     { 'Idempotency-Key' => $key,
                       'Content-Type' => 'application/json', %headers })
        ->read_response(6);
}

# asks for /ops/<path>, with the store for STORE and the key for KEY

sub admin
{
    my ($method, $path) = @_;

    return sub {
        my $key = shift;
        (my $at = $path) =~ s/KEY/$key/;
        $at =~ s/STORE/$Store/;
        return send_request($method, "/ops/$at", undef, {})->read_response(6);
    };
}

run_tests();

walked(30);

__DATA__

=== TEST 1: records are shown, listed and deleted
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_scope            api;
        idempotency_identity         off;
        idempotency_wait             0;
        idempotency_fingerprint      json;
        idempotency_conflict_detail  values;
        idempotency_tenant           $http_x_tenant;
        idempotency_actor            ann;
        idempotency_group            pay;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ { idempotency_admin; }
--- client_timeout: 180
--- client
my @after = (prepare => sub { main::post($_[0], 'X-Tenant' => $_[0]) },
             again => sub { main::post($_[0], 'X-Tenant' => $_[0]) });

walk(name => 'a record', request => main::admin('GET', 'records/STORE?key=KEY&scope=api'),
     @after);
walk(name => 'a deletion', runs => 2,
     request => main::admin('DELETE', 'records/STORE?key=KEY&scope=api'),
     @after);
# of one tenant, and not of others, whatever argument is lost

my $other = new_key();

walk(name => 'a deletion of many', runs => 2, upto => 40, @after,
     request => main::admin('DELETE', 'records/STORE?tenant=KEY&state=completed'),
     again => sub {
         main::post($other, 'X-Tenant' => 'other');
         die "deleted more\n" if app_count($other) != 1;
         main::post($_[0], 'X-Tenant' => $_[0]);
     });

walk(name => 'a deletion of none', upto => 20, @after,
     request => main::admin('DELETE', 'records/STORE?tenant=KEY&dry_run=1'));

main::post(new_key(), 'X-Tenant' => 'acme') for 1 .. 5;

walk(name => 'a list', truncated => 1, upto => 40,
     request => main::admin('GET', 'records/STORE?tenant=acme&limit=3'));

my $cursor = main::admin('GET', 'records/STORE?limit=2')->('')->json->{cursor};

walk(name => 'the next page', truncated => 1, upto => 40,
     request => main::admin('GET', "records/STORE?limit=2&cursor=$cursor"));

walk(name => 'health', request => main::admin('GET', 'health'));

my $follow = sub { main::begun('/ops/events', $_[0]) };

# one that breaks off may not have begun

walk(name => 'events as they happen', request => $follow, answers => [200, 0]);



=== TEST 2: events in a store
--- store: redis postgres
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_scope     api;
        idempotency_identity  off;
        idempotency_wait      0;
        idempotency_actor     $http_x_actor;
        idempotency_log       store:$TEST_STORE;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/ { idempotency_admin; }
--- client_timeout: 180
--- client
my $events = 'events?store=STORE&follow=0';

walk(name => 'a request with events', retry => [200, 507],
     request => sub { main::post($_[0], 'X-Actor' => $_[0]) });

main::post(new_key(), 'X-Actor' => 'ann');
wait_for(sub { main::admin('GET', "$events&actor=ann")->('')->body =~ /data/ });

walk(name => 'events of an actor', truncated => 1, answers => [200, 0],
     request => main::admin('GET', "$events&actor=ann"));
walk(name => 'events that come', truncated => 1, answers => [200, 0],
     upto => 40, request => sub {
    main::begun('/ops/events?store=' . $main::Store . '&since=1h')
});
walk(name => 'a deletion of events',
     request => main::admin('DELETE', 'events?store=STORE&actor=KEY'));



=== TEST 3: variables, post_action, and a page that tells
--- http_config
    log_format idempotency '$idempotency_activity_count '
                           '$idempotency_activity_age '
                           '$idempotency_replay_count $idempotency_key_json '
                           '$idempotency_retry_after $idempotency_error_message '
                           '$idempotency_original_time_ms '
                           '$idempotency_original_fingerprint '
                           '$idempotency_diff_json $idempotency_wait_time';
--- config
    access_log  logs/access.log  idempotency;

    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        set               $op $arg_op;
        post_action       /after;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /after {
        internal;
        idempotency              off;
        proxy_method             POST;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
        set                      $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass               $app/ok?op=after-$op;
    }
--- client_timeout: 120
--- client
walk(name => 'a replay with a post_action', request => \&main::post,
     prepare => sub { main::post($_[0]); app_wait("after-$_[0]", 1) });

walk(name => 'an invalid key', runs => 0, answers => [400], retry => [400],
     request => sub {
         send_post('/ok', 'x', { 'Idempotency-Key' => 'x' x 300 })
             ->read_response(6);
     });



=== TEST 4: parts of a response, and a file that is read in turns
--- modules: echo
--- config
    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /parts/ {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        echo              one;
        echo_location     /part;
        echo              two;
    }

    location = /part {
        internal;
        idempotency   off;
        proxy_method  POST;
        set           $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass    $app/ok?op=$arg_op;
    }

    location /file/ {
        idempotency               $TEST_STORE;
        idempotency_max_response  3m;
        idempotency_wait          0;
        sendfile                  off;
        output_buffers            2 512k;
        set         $app http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass  $app/accel?to=/large&op=$arg_op;
    }

    location = /large {
        internal;
    }
--- user_files eval
">>> large\n" . 'x' x 2_300_000
--- client_timeout: 120
--- client
my $ask = sub {
    my $uri = shift;

    return sub {
        send_post("$uri?op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
            ->read_response(10);
    };
};

# what is sent in parts breaks off where there is no memory for the next one,
# and may not have begun

walk(name => 'a response of several requests', truncated => 1, runs => 2,
     answers => [200, 0], retry => [200, 507, 409], request => $ask->('/parts/'));
walk(name => 'a large file', retry => [200, 507, 409],
     request => $ask->('/file/'));



=== TEST 5: details of who was led elsewhere, and members that are URLs
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_wait             0;
        idempotency_fingerprint      json;
        idempotency_conflict_detail  paths;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /led/ {
        rewrite  ^/led/(.*) /$1 last;
    }

    location /dedupe/ {
        idempotency         $TEST_STORE;
        idempotency_dedupe  json:url window=60s when=always normalize=url strip=x;
        idempotency_wait    0;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $ask = sub {
    my ($at, $body) = @_;

    return sub {
        my $key = shift;
        (my $text = $body) =~ s/KEY/$key/;
        send_post("$at/ok?op=$key", $text,
                  { 'Idempotency-Key' => $key,
                    'Content-Type' => 'application/json' })->read_response(6);
    };
};

my ($one, $two) = map { $ask->('/led', qq({"a":$_})) } 1, 2;

walk(name => 'led: first', request => $one, retry => [200, 507]);
walk(name => 'led: a conflict', prepare => $one, request => $two,
     again => $one, answers => [409]);

walk(name => 'a member that is a URL', retry => [200, 507],
     request => $ask->('/dedupe', '{"url":"HTTP://Host/KEY?x=1&b=2"}'));
