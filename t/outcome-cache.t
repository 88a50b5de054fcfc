# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Covered requests and nginx's own cache: an answer out of it is an answer, but
# a stale one, in place of what an upstream did not say, tells nothing of what
# that did with the request.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $http = <<'_EOC_';
    proxy_cache_path  $TEST_NGINX_SERVER_ROOT/cache keys_zone=cache:1m;

    # requests with X-To go elsewhere
    map $http_x_to $to {
        default  127.0.0.1:$TEST_NGINX_APP_PORT;
        dead     127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    map $http_x_path $path {
        default  $http_x_path;
        ""       $uri;
    }
_EOC_

our $config = <<'_EOC_';
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  $TEST_POLICY;
    add_header                   X-Outcome  $idempotency_status  always;
    add_header                   X-Cache    $upstream_cache_status  always;

    proxy_cache                  cache;
    proxy_cache_methods          POST;
    proxy_cache_key              $arg_entry;
    proxy_cache_valid            any 1s;
    proxy_read_timeout           300ms;

    location / {
        proxy_pass               http://$to$path$is_args$args;
    }
    location /fresh/ {
        proxy_cache_valid        any 1h;
        proxy_pass               http://$to$path$is_args$args;
    }
    location /stale/ {
        proxy_cache_use_stale    error timeout http_500 http_503;
        proxy_pass               http://$to$path$is_args$args;
    }
    location /updating/ {
        proxy_cache_use_stale    updating;
        proxy_cache_background_update  on;
        proxy_pass               http://$to$path$is_args$args;
    }
    location /revalidate/ {
        proxy_cache_revalidate   on;
        proxy_pass               http://$to$path$is_args$args;
    }
_EOC_

sub config
{
    my $policy = shift;

    (my $config = $::config) =~ s/\$TEST_POLICY/$policy/;
    return $config;
}


our $entries = 0;

sub entry
{
    my ($uri, $more) = @_;

    my $entry = 'e' . ++$::entries;

    http_post("$uri?entry=$entry&op=$entry" . ($more || ''), 'x');
    return $entry;
}

sub one
{
    my ($uri, $entry, $cache, $status, $outcome, @headers) = @_;

    my $op = "of$entry";
    my @key = ('Idempotency-Key' => new_key());
    my $name = "$uri $cache @headers";

    my $to = "$uri?entry=$entry&op=$op";
    my $r = http_post($to, 'x', [ @key, @headers ]);

    is($r->header('X-Cache') || '', $cache, "$name: cache");
    is($r->status, $status, "$name: status");
    is($r->header('X-Outcome'), $outcome, "$name: outcome");

    my $runs = app_count($op);
    my $retry = http_post($to, 'x', \@key);

    if ($outcome eq 'EXECUTED') {
        is($retry->header('Idempotent-Replayed'), 'true', "$name: replayed");
        is($retry->body, $r->body, "$name: same body");
        is(app_count($op), $runs, "$name: did not run again");

    } elsif ($outcome eq 'UNKNOWN') {
        is($retry->error_code, 'OUTCOME_UNKNOWN', "$name: refused");
        is($runs, 1, "$name: ran");
        is(app_count($op), 1, "$name: once");

    } else {
        is($retry->header('Idempotent-Replayed'), undef, "$name: not replayed");
        is($retry->error_code, '', "$name: nor refused");
    }
}


sub cache
{
    # fresh: a hit is an answer, and nothing was sent to anybody

    one('/fresh/ok', entry('/fresh/ok'), 'HIT', 200, 'EXECUTED');
    one('/fresh/status/404', entry('/fresh/status/404'), 'HIT', 404,
        'EXECUTED');
    one('/fresh/status/503', entry('/fresh/status/503'), 'HIT', 503,
        'RELEASED');

    my %e = map { $_ => entry('/stale/ok') } qw(close hang 500 503 dead);

    my $updating = entry('/updating/ok');
    my $failing = entry('/updating/status/503');
    my $modified = entry('/revalidate/ok', '&header=Last-Modified:%20'
                         . 'Wed,%2028%20Jan%202026%2010:00:00%20GMT');

    # all of these expire

    sleep 2.2;

    # stale, in place of an answer that did not come

    one('/stale/ok', $e{close}, 'STALE', 200, 'UNKNOWN', 'X-Path' => '/close');
    one('/stale/ok', $e{hang}, 'STALE', 200, 'UNKNOWN', 'X-Path' => '/hang');

    # ... or of one that says that it failed

    one('/stale/ok', $e{500}, 'STALE', 200, 'RELEASED',
        'X-Path' => '/status/500');
    one('/stale/ok', $e{503}, 'STALE', 200, 'RELEASED',
        'X-Path' => '/status/503');

    # ... or where nothing was sent

    one('/stale/ok', $e{dead}, 'STALE', 200, 'RELEASED', 'X-To' => 'dead');

    one('/revalidate/ok', $modified, 'REVALIDATED', 200, 'EXECUTED',
        'X-Path' => '/status/304');

    # what the client was told, while nginx asks once more beside it

    my %key = ('Idempotency-Key' => new_key());
    my $to = "/updating/ok?entry=$updating&op=beside";

    my $r = http_post($to, 'x', \%key);
    is($r->header('X-Cache'), 'STALE', 'updating: stale');
    is($r->header('X-Outcome'), 'EXECUTED', 'updating: kept');
    is(app_wait('beside'), 1, 'updating: ran beside it');
    is(http_post($to, 'x', \%key)->header('Idempotent-Replayed'), 'true',
       'updating: replayed') for 1 .. 2;
    is(app_count('beside'), 1, 'updating: once');

    # ... nor does a stale answer that is not kept say that it failed

    %key = ('Idempotency-Key' => new_key());
    $to = "/updating/status/503?entry=$failing&op=failing";

    is(http_post($to, 'x', \%key)->status, 503, 'updating, 503: stale');
    is(app_wait('failing'), 1, 'updating, 503: ran beside it');
    is(http_post($to, 'x', \%key)->error_code, 'OUTCOME_UNKNOWN',
       'updating, 503: unknown');
    is(app_count('failing'), 1, 'updating, 503: once');
}

run_tests();

__DATA__

=== TEST 1: hold
--- http_config eval: $::http
--- config eval: ::config('hold')
--- client
cache();



=== TEST 2: lease
--- http_config eval: $::http
--- config eval: ::config('lease')
--- client
cache();
