# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_activity: how often a client had something executed lately, and
# windows of derived keys that adapt to it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# "<count> <age or ->", as they were before the request

sub activity
{
    my ($uri, $body, %headers) = @_;

    my $r = http_post($uri, $body, \%headers);

    return join ' ', map { $r->header($_) // '-' } qw(X-Count X-Age);
}

run_tests();

__DATA__

=== TEST 1: executions are counted, by scope and identity
--- workers: 2
--- http_config
    idempotency_activity  activity:64k window=1h;
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  $http_x_user;
    idempotency_scope     $host$http_x_scope;
    add_header            X-Count $idempotency_activity_count;
    add_header            X-Age $idempotency_activity_age;

    location / {
        idempotency_activity  on;
        idempotency_dedupe    json:url window=60s;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_dedupe    json:url window=60s;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %a = ('X-User' => 'a');

is(activity('/ok', '{"url":1}', %a), '0 -', 'the first');
like(activity('/ok', '{"url":2}', %a), qr/^1 \d\.\d{3}$/, 'one before');
like(activity('/ok', '{"url":2}', %a), qr/^2 \d\.\d{3}$/, 'a replay, after two');
like(activity('/ok', '{"url":2}', %a), qr/^2 \d\.\d{3}$/, '... is none');

is(activity('/ok', '{"url":1}', 'X-User' => 'b'), '0 -', 'somebody else');
is(activity('/ok', '{"url":1}', %a, 'X-Scope' => 'x'), '0 -', 'another scope');
is(activity('/off/ok', '{"url":5}', %a), '- -', 'off');
like(activity('/ok', '{"url":3}', %a), qr/^2 /, 'and was not counted there');

my $age;
wait_for(sub {
    ($age) = activity('/ok', '{"url":3}', %a) =~ /^3 (\S+)/;
    return $age >= 0.05;
});
cmp_ok($age, '>=', 0.05, 'the age grows');
cmp_ok($age, '<', 60, 'in seconds');

# all workers have the same, also after a reload and a kill

activity('/ok', qq({"url":"n$_"}), %a) for 1 .. 20;
like(activity('/ok', '{"url":"m"}', %a), qr/^23 /, 'of all workers');

ok(nginx_reload(), 'reload');
like(activity('/ok', '{"url":"r"}', %a), qr/^24 /, 'a reload goes on');

kill_worker();
like(activity('/ok', '{"url":"k"}', %a), qr/^25 /, 'so does a new worker');
--- provokes: exited on signal 9



=== TEST 2: outside of the window
--- http_config
    idempotency_activity  activity:32k window=400ms;
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_activity  on;
        idempotency_dedupe    body window=1ms;
        add_header            X-Count $idempotency_activity_count;
        add_header            X-Age $idempotency_activity_age;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(activity('/ok', 'a'), '0 -', 'the first');

select undef, undef, undef, 0.45;

is(activity('/ok', 'b'), '0 -', 'forgotten');
select undef, undef, undef, 0.45;

# many clients in a small zone: the oldest give way, and nothing fails

my $bad = 0;

for (1 .. 700) {
    $bad++ if activity('/ok', "c$_", Authorization => "u$_") ne '0 -';
}

is($bad, 0, '700 clients');



=== TEST 3: windows that adapt
--- http_config
    idempotency_activity  activity:1m window=1h;

    map $idempotency_activity_age $in_session {
        ""                 "";
        ~^[0-9]\.          yes;
        ~^[1-5][0-9]\.     yes;
        default            "";
    }
    map "$in_session:$idempotency_activity_count" $window {
        ~^yes:             1ms;
        ~:[1-9][0-9]+$     5m;
        default            24h;
    }
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_activity  on;
        idempotency_dedupe    json:url window=$window;
        add_header            X-Window $window;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $share = sub { return http_post('/ok?op=a', qq({"url":"$_[0]"})) };

my $r = $share->('a');
is($r->header('X-Window'), '24h', 'nobody has been here');
is($r->body, "run 1\n", 'ran');
is($share->('a')->body, "run 1\n", 'folds for long');

$r = $share->('b');
is($r->header('X-Window'), '1ms', 'in a session');
is($r->body, "run 2\n", 'ran');

select undef, undef, undef, 0.05;
is($share->('b')->body, "run 3\n", 'folds for a moment');
is($share->('a')->body, "run 1\n", 'the first one still folds');



=== TEST 4: what is refused
--- store: memory
--- http_config
    # http
--- config
    location / { idempotency on; }
--- client
for (
    [ 'idempotency_activity a:1m window=1h; idempotency_activity b:1m window=1h;', '', 'is duplicate' ],
    [ 'idempotency_activity a window=1h;', '', 'activity:1m' ],
    [ 'idempotency_activity :1m window=1h;', '', 'activity:1m' ],
    [ 'idempotency_activity a:1k window=1h;', '', 'of 32k at least' ],
    [ 'idempotency_activity a:1m window=0;', '', 'window=24h' ],
    [ 'idempotency_activity a:1m windows=1h;', '', 'window=24h' ],
    [ '', 'idempotency_activity maybe;', 'it is "on" or "off"' ],
    [ '', 'idempotency_activity a:1m window=1h;', 'a zone is declared in http' ],
    [ 'idempotency_store s memory { zone a:1m; } idempotency_activity a:1m window=1h;', '', 'already used' ],
) {
    my ($http, $location, $right) = @$_;

    edit_config(sub { s/# http.*/# http\n$http/; s/idempotency on;.*\}/idempotency on; $location }/ });
    ok(!nginx_reload(), "refused: $http$location");
    error_log_like(qr/\[emerg\].*\Q$right\E/, "says: $right");
    edit_config(sub { s/# http\n.*/# http/; s/idempotency on;.*\}/idempotency on; }/ });
}

ok(nginx_reload(), 'and without them');
--- provokes: \[emerg\]



=== TEST 5: a reload that fails does not hurt workers that come after it
--- http_config
    idempotency_activity  activity:64k window=1h;
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_activity  on;
        idempotency_dedupe    body window=1ms;
        add_header            X-Count $idempotency_activity_count;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
http_post('/ok', 'a');

# the zone of another size is made, and then the port can't be had

edit_config(sub { s/activity:64k/activity:128k/;
                  s/(listen\s+)(\d)/listen 192.0.2.1:1;\n        $1$2/ });
ok(!nginx_reload(), 'refused');

kill_worker();
is(http_post('/ok', 'b')->header('X-Count'), 1, 'still there');
--- provokes: exited on signal 9|\[emerg\]
