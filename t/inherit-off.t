# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A list that is inherited from an outer level: a level of its own replaces it
# as a whole, and "off" ends it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: headers, members, what is kept by its JSON, fields of events
--- http_config
    idempotency_log          $TEST_NGINX_SERVER_ROOT/logs/events.json;
    idempotency_keep_header  X-Repeated Location;
    idempotency_replay_json  replayed true;
    idempotency_log_field    outer a;
    idempotency_keep_json    /ok=false;
--- config
    idempotency              $TEST_STORE;
    idempotency_hide_header  Location;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /own/ {
        idempotency_keep_header  ETag Location;
        idempotency_hide_header  X-None;
        idempotency_replay_json  own 1;
        idempotency_log_field    inner b;
        idempotency_keep_json    /ok=true;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_keep_header  off;
        idempotency_hide_header  off;
        idempotency_replay_json  off;
        idempotency_log_field    off;
        idempotency_keep_json    off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;

        location /off/deeper/ {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- client
my $twice = sub {
    my ($uri) = @_;
    my %key = ('Idempotency-Key' => new_key());
    my $first = http_post($uri, 'x', \%key);
    return ($first, http_post($uri, 'x', \%key));
};

my ($first, $retry) = $twice->('/headers?op=a');
is($retry->header('Idempotent-Replayed'), 'true', 'inherited: replayed');
is($retry->header('X-Repeated'), 'one', 'inherited: kept');
is($retry->header($_), undef, "inherited: not kept: $_") for qw(ETag Location);

(undef, $retry) = $twice->('/own/headers?op=b');
is($retry->header('ETag'), $first->header('ETag'), 'own: kept');
is($retry->header('Location'), $first->header('Location'), 'own: not hidden');
is($retry->header('X-Repeated'), undef, 'own: not kept');

for my $at ('/off', '/off/deeper') {
    (undef, $retry) = $twice->("$at/headers?op=c$at");
    is($retry->header('Idempotent-Replayed'), 'true', "$at: replayed");
    is($retry->header($_), $first->header($_), "$at: $_")
        for qw(ETag Location Set-Cookie);
    is(scalar(my @r = $retry->header('X-Repeated')), 2, "$at: X-Repeated");
}

# by its JSON the first is released
(undef, $retry) = $twice->('/json?op=d');
is($retry->json->{run}, 2, 'inherited: not kept by its JSON');

(undef, $retry) = $twice->('/own/json?op=e');
is($retry->json->{run}, 1, 'own: kept by its JSON');
is($retry->json->{own}, 1, 'own: a member');
ok(!exists $retry->json->{replayed}, 'and not the outer one');

for my $at ('/off', '/off/deeper') {
    ($first, $retry) = $twice->("$at/json?op=f$at");
    is($retry->header('Idempotent-Replayed'), 'true', "$at: replayed");
    is($retry->body, $first->body, "$at: no member, kept");
}

my @events;
wait_for(sub {
    @events = grep { $_->{event} eq 'idempotency.processed' }
        read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json");
    return @events == 9;
});

is(scalar(grep { defined $_->{outer} && !defined $_->{inner} } @events), 3,
   'inherited: the outer field');
is(scalar(grep { !defined $_->{outer} && defined $_->{inner} } @events), 2,
   'own: its field alone');
is(scalar(grep { !defined $_->{outer} && !defined $_->{inner} } @events), 4,
   'off: none');
