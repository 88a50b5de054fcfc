# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Values that may differ by request, where it matters when they are looked at:
# keys and bypasses that depend on the body, groups that a variable names.  And
# values that can't mean what they say: the configuration is refused.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $map = <<'_EOC_';
    map $request_body $from_body {
        "~\"id\":\"(?<id>[a-z0-9-]+)\""  $id;
    }

    map $http_x_header $from_header {
        default  $http_x_header;
    }

    map $request_body $skip {
        ~skip    1;
        default  0;
    }
_EOC_

# twice: the second is a replay, and the application ran once

sub covered {
    my ($what, $uri, $body, $headers) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $op = $what =~ s/\W/-/gr;
    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$op";

    for my $n (1 .. 2) {
        my $r = http_post($uri, $body, $headers);

        is($r->body, "run 1\n", "$what: try $n");
        is($r->header('X-Idem'), $n == 1 ? 'EXECUTED' : 'REPLAYED',
           "$what: covered, try $n");
    }

    is(app_count($op), 1, "$what: ran once");
}

run_tests();

__DATA__

=== TEST 1: a key that depends on the body
--- http_config eval: $::map
--- config
    idempotency  $TEST_STORE;
    add_header   X-Idem $idempotency_status always;
    add_header   X-Key $idempotency_key always;
    add_header   X-Body $request_body always;

    location / {
        idempotency_key         $request_body;
        idempotency_key_format  string;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /map/ {
        idempotency_key  $from_body;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /both/ {
        idempotency_key  $from_header $from_body;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /prefixed/ {
        idempotency_key  "$arg_prefix-$from_body";
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /required/ {
        idempotency_key       $from_body;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # somebody has asked for it before

    location /asked/ {
        if ($request_body = "nothing") {
            return 400;
        }

        idempotency_key  $from_body;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /tried/ {
        idempotency_key  $from_body;
        try_files        $uri @app;
    }

    location @app {
        idempotency_key  $from_body;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $n = 0;
my $body = sub { return '{"id":"' . new_key() . '"}' };

covered('itself', '/ok', 'a-body-' . new_key());
covered('map', '/map/ok', $body->());
covered('asked', '/asked/ok', $body->());
covered('tried', '/tried/ok', $body->());
covered('both, by the body', '/both/ok', $body->());
covered('both, by the header', '/both/ok', 'x', { 'X-Header' => new_key() });
covered('prefixed', '/prefixed/ok?prefix=a', my $one = $body->());
covered('required', '/required/ok', $body->());

my ($id) = $one =~ /:"(.*)"/;
my $r = http_post('/prefixed/ok?prefix=b', $one);

is($r->header('X-Key'), "b-$id", 'the whole of it is the key');
is($r->header('X-Body'), $one, 'others find the body, too');

# without one

$r = http_post('/map/ok?op=none', 'x') for 1 .. 2;
is($r->header('X-Idem'), 'BYPASS', 'no key in the body');
is(app_count('none'), 2, 'runs each time');

is(http_post('/required/ok?op=none', 'x')->error_code,
   'IDEMPOTENCY_KEY_MISSING', 'where it is required');
error_log_unlike(qr/asked for before the body was read/, 'nothing to tell');



=== TEST 2: a body that is too large for the variable, and one that is set
--- http_config eval: $::map
--- config
    idempotency  $TEST_STORE;
    add_header   X-Idem $idempotency_status always;

    location / {
        client_body_buffer_size  1k;
        idempotency_key          $from_body;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /set/ {
        set              $key $request_body;
        idempotency_key  $key;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $large = '{"id":"' . new_key() . '","x":"' . 'x' x 5000 . '"}';

for (1 .. 2) {
    my $r = http_post('/ok?op=a', $large);

    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'nobody knows its key');
    like($r->body, qr/too large for it/, 'which is told');
}

is(app_count('a'), 0, 'so it does not run');

my $r = http_post('/set/ok?op=b', '{}');
is($r->header('X-Idem'), 'BYPASS', 'set: the body comes later');
error_log_like(qr/\[warn\] .*\$request_body was asked for before the body was read.*"map"/,
               'set: and it is told what would be right');



=== TEST 3: a bypass that depends on the body
--- http_config eval: $::map
--- config
    add_header   X-Idem $idempotency_status always;

    location / {
        idempotency         $TEST_STORE;
        idempotency_bypass  $http_x_skip $skip;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

covered('not skipped', '/ok', 'keep', \%key);

for my $n (1 .. 2) {
    my $r = http_post('/ok?op=b', 'skip', { 'Idempotency-Key' => 'b' });

    is($r->body, "run $n\n", 'skipped by its body');
    is($r->header('X-Idem'), 'BYPASS', 'and says so');
}



=== TEST 4: json: anywhere in the body
--- config
    idempotency  $TEST_STORE;
    add_header   X-Idem $idempotency_status always;
    add_header   X-Key $idempotency_key always;

    location / {
        idempotency_key  json:/params/arguments/idempotencyKey json:/params/_meta/a~1b json:id;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /list/ {
        idempotency_key  json:/items/1/id json:/a.b;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %uri = (
    deep    => [ '/ok', '{"id":1,"params":{"arguments":{"x":1,"idempotencyKey":"%s"}}}' ],
    second  => [ '/ok', '{"id":1,"params":{"_meta":{"a/b":"%s"}}}' ],
    third   => [ '/ok', '{"params":{},"id":"%s"}' ],
    element => [ '/list/ok', '{"items":[{"id":"0"},{"id":"%s"}]}' ],
    dot     => [ '/list/ok', '{"a":{"b":"no"},"a.b":"%s"}' ],
);

for my $what (sort keys %uri) {
    my ($uri, $body) = @{ $uri{$what} };
    my $key = new_key();

    $body = sprintf $body, $key;
    covered($what, $uri, $body);
    is(http_post($uri, $body)->header('X-Key'), $key, "$what: by that key");
}

is(http_post('/ok', '{"params":{"arguments":{"idempotencyKey":{}}}}')->error_code,
   'IDEMPOTENCY_KEY_INVALID', 'an object is no key');
is(http_post('/list/ok', '{"items":[]}')->header('X-Idem'), 'BYPASS', 'none');



=== TEST 5: json: a path that is none
--- config
    idempotency_key json:a.b;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "json:a\.b" in "idempotency_key" directive: .*json:\/a\/b.* in .*nginx\.conf:\d+/



=== TEST 6: json: an element
--- config
    idempotency_key json:a[0];
--- must_die
--- error_log eval
qr/invalid value "json:a\[0\]" in "idempotency_key" directive/



=== TEST 7: json: a slash too late
--- config
    idempotency_key json:a/b;
--- must_die
--- error_log eval
qr/invalid value "json:a\/b" in "idempotency_key" directive/



=== TEST 8: json: no proper pointer
--- config
    idempotency_key json:/a~b;
--- must_die
--- error_log eval
qr/invalid value "json:\/a~b" in "idempotency_key" directive: .*"~0"/



=== TEST 9: a key that is the same for everybody
--- config
    idempotency_key http_idempotency_key;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "http_idempotency_key" in "idempotency_key" directive: it is the same for every request.*nginx\.conf:\d+/



=== TEST 10: a group of a variable
--- http_config
    map $uri $group {
        ~^/(?<part>[a-z0-9]+)/  $part;
    }
--- config
    idempotency_log  logs/events.log;

    location / {
        idempotency        $TEST_STORE;
        idempotency_group  $group;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /prefixed/ {
        idempotency        $TEST_STORE;
        idempotency_group  "x-$arg_group";
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /stats { idempotency_stats prometheus; }
--- client
my $post = sub {
    return http_post(shift, 'x', { 'Idempotency-Key' => new_key() });
};

my $count = sub {
    my $stats = http_get('/stats')->body;
    my %runs;
    $runs{$1} = $2 while $stats =~
        /requests_total\{store="[^"]*",group="([^"]*)",[^}]*EXECUTED"\} (\d+)/gi;
    return \%runs;
};

$post->('/ok');
$post->($_) for qw(/one/ok /two/ok /two/ok /prefixed/ok?group=p);

my $runs = $count->();

is($runs->{one}, 1, 'of the first');
is($runs->{two}, 2, 'of the second');
is($runs->{'x-p'}, 1, 'a part of it');
is($runs->{localhost}, 1, 'of none: that of the server');
is($runs->{'$group'}, undef, 'not taken literally');

# a client could name as many as it likes

$post->("/part$_/ok") for 1 .. 70;

$runs = $count->();

is($runs->{part1}, 1, 'one more');
is($runs->{part70}, undef, 'one too many');
cmp_ok($runs->{other}, '>=', 6, 'which are counted together');
cmp_ok(scalar(keys %$runs), '<=', 65, 'so there are 64 at most, and the rest');

ok(nginx_reload(), 'reloaded');
$post->('/two/ok');
is($count->()->{two}, 3, 'goes on counting');

my $log = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.log";

ok(wait_for(sub {
    open my $in, '<', $log or return;
    my $text = do { local $/; <$in> };
    return $text =~ /"uri_group":"two"/;
}, 10), 'in events, too');



=== TEST 11: an empty group
--- config
    idempotency_group "";
--- must_die
--- error_log eval
qr/invalid value "" in "idempotency_group" directive/



=== TEST 12: njs and perl ask for the body by name
--- modules: js perl
--- http_config
    js_path    $TEST_NGINX_SERVER_ROOT/html;
    js_import  keys from keys.js;
    js_set     $js_key keys.of_body;
    perl_set   $perl_key 'sub {
        my $r = shift;
        my $body = $r->variable("request_body");
        return defined $body ? unpack("H*", $body) : "";
    }';
--- config
    idempotency  $TEST_STORE;

    location /js/ {
        idempotency_key  $js_key;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /perl/ {
        idempotency_key  $perl_key;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> keys.js
function of_body(r) {
    var body = r.variables.request_body;
    return body ? Buffer.from(body).toString('hex') : '';
}
export default { of_body };
--- client
for my $by (qw(js perl)) {
    is(http_post("/$by/ok?op=$by", "$by one")->body, "run 1\n", "$by: ran");

    my $r = http_post("/$by/ok?op=$by", "$by one");
    is($r->header('Idempotent-Replayed'), 'true', "$by: replayed");
    is(http_post("/$by/ok?op=$by", "$by two")->body, "run 2\n", "$by: another");
    is(http_post("/$by/ok?op=$by-none", '')->body, "run 1\n", "$by: none");
    is(app_count($by), 2, "$by: ran once for each");
}



=== TEST 13: policies that a variable names
--- http_config
    idempotency_store away redis {
        server  127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
--- config
    add_header                   X-Idem $idempotency_status always;
    idempotency_required         $http_x_required;
    idempotency_conflict_status  $http_x_conflict;
    idempotency_replay_status    $http_x_replay;
    idempotency_max_waiters      $http_x_waiters;
    idempotency_unknown_outcome  $http_x_outcome;
    idempotency_on_store_error   $http_x_error;
    idempotency_lease            1s;
    idempotency_identity         off;

    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /away/ {
        idempotency  away;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: its default is used|store "away"
--- client
# a header that is not there is an empty value: the default

for ([ undef, 200 ], [ 'on', 400 ], [ 1, 400 ], [ 0, 200 ], [ 'off', 200 ]) {
    my ($value, $status) = @$_;

    is(http_post('/ok', 'x', { defined $value ? ('X-Required' => $value) : () })->status,
       $status, 'idempotency_required ' . ($value // 'empty'));
}

my $key = { 'Idempotency-Key' => new_key() };
is(http_post('/ok?op=a', 'x', $key)->status, 200, 'ran');

for ([ undef, 409 ], [ 422, 422 ], [ 400, 400 ], [ 418, 409 ]) {
    my ($value, $status) = @$_;

    is(http_post('/ok?op=a', 'y', { %$key, $value ? ('X-Conflict' => $value) : () })->status,
       $status, 'idempotency_conflict_status ' . ($value // 'empty'));
}

error_log_like(qr/"idempotency_conflict_status" evaluates to "418", it is "400" or "409" or "422"; its default/,
               'what is none of them is told');

for ([ undef, 200 ], [ 'original', 200 ], [ 208, 208 ], [ 100, 200 ], [ 'x', 200 ]) {
    my ($value, $status) = @$_;

    my $r = http_post('/ok?op=a', 'x', { %$key, $value ? ('X-Replay' => $value) : () });
    is($r->status, $status, 'idempotency_replay_status ' . ($value // 'empty'));
    is($r->body, "run 1\n", 'a replay');
}

my $held = { 'Idempotency-Key' => new_key() };
my $c = send_post('/hold?op=h', 'x', $held);
app_wait_parked('h');
is(http_post('/hold?op=h', 'x', { %$held, 'X-Waiters' => 0 })->error_code,
   'TOO_MANY_WAITERS', 'idempotency_max_waiters 0');
my $waits = send_post('/hold?op=h', 'x', { %$held, 'X-Waiters' => 1 });
ok(wait_for(sub { http_post('/hold?op=h', 'x', { %$held, 'X-Waiters' => 1 })->status == 429 }),
   'idempotency_max_waiters 1: the second does not wait');
app_release('h');
is($_->read_response->body, "run 1\n", 'one answer for both') for $c, $waits;

for ([ 'retry', 502, 2 ], [ 'lease', 409, 1 ], [ 'hold', 409, 1 ], [ 'ever', 409, 1 ]) {
    my ($value, $status, $runs) = @$_;
    my %of = ('Idempotency-Key' => new_key(), 'X-Outcome' => $value);

    is(http_post("/close?op=$value", 'x', \%of)->status, 502, "$value: broke off");
    is(http_post("/close?op=$value", 'x', \%of)->status, $status, "$value: at once");
    is(app_count($value), $runs, "$value: runs");

    next if $value eq 'retry';

    sleep 1.2;
    is(http_post("/close?op=$value", 'x', \%of)->status, $value eq 'hold' ? 409 : 502,
       "$value: after the lease");
}

for ([ undef, 503 ], [ 'fail', 503 ], [ 'pass', 200 ], [ 'maybe', 503 ]) {
    my ($value, $status) = @$_;

    my $r = http_post('/away/ok', 'x', { 'Idempotency-Key' => new_key(),
                                         $value ? ('X-Error' => $value) : () });
    is($r->status, $status, 'idempotency_on_store_error ' . ($value // 'empty'));
    is($r->header('X-Idem'), $status == 200 ? 'UNPROTECTED' : 'UNAVAILABLE', 'and its status');
}



=== TEST 14: responses that a variable shapes
--- config
    add_header              X-Record $idempotency_record always;
    idempotency             $TEST_STORE;
    idempotency_headers     $http_x_headers;
    idempotency_error_body  $http_x_body;
    idempotency_stream      $http_x_stream application/x-ndjson;
    idempotency_compress    $http_x_compress min=$http_x_min;
    idempotency_ttl         500ms;
    idempotency_ttl_header  X-TTL max=$http_x_max;
    error_page              409 = @conflict;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /grace/ {
        idempotency_expired_grace  1h;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /admin/ {
        idempotency_admin read;
    }
    location @conflict {
        return  409 "mine\n";
    }
--- provokes: its default is used
--- client
my $of = sub {
    my ($name, $value) = @_;

    return ([ 'X-TTL' => 60000, 'X-Max' => '1h',
              defined $value ? ($name => $value) : () ],
            "$name: " . ($value // 'empty'));
};

my $post = sub {
    my ($uri, $body, $key, @more) = @_;

    return http_post($uri, $body, [ 'Idempotency-Key' => $key, @more ]);
};

# what is not there, and what is none of them, is the default

for ([ undef, 1 ], [ on => 1 ], [ 1 => 1 ], [ ON => 1 ], [ maybe => 1 ],
     [ off => 0 ], [ 0 => 0 ], [ Off => 0 ])
{
    my ($value, $on) = @$_;
    my $key = new_key();

    my ($more, $name) = $of->('X-Headers', $value);
    my @r = map { $post->('/ok', 'x', $key, @$more) } 1 .. 2;

    is($r[1]->body, $r[0]->body, "$name: a replay");
    is($r[1]->header('Idempotent-Replayed'), $on ? 'true' : undef,
       "$name: says so");
    is($r[1]->header('X-Original-Request-Time') ? 1 : 0, $on, "$name: when");

    ($more, $name) = $of->('X-Body', $value);
    $post->('/ok', 'x', $key = new_key(), @$more);
    my $r = $post->('/ok', 'y', $key, @$more);

    is($r->status, 409, "$name: refused");
    is($r->error_code, $on ? 'IDEMPOTENCY_CONFLICT' : '', "$name: code");
    is($r->header('Content-Language'), $on ? 'en' : undef, "$name: language");
    is($r->body, "mine\n", "$name: its error_page") if !$on;
}

error_log_like(qr/"idempotency_headers" evaluates to "maybe", it is "on" or "off"; its default/,
               'what is neither is told');

for ([ undef, 200 ], [ tee => 200 ], [ pass => 507 ], [ both => 200 ]) {
    my ($value, $status) = @$_;
    my ($more, $name) = $of->('X-Stream', $value);
    my $key = new_key();

    is($post->('/sse', 'x', $key, @$more)->status, 200, "$name: ran");
    is($post->('/sse', 'x', $key, @$more)->status, $status, "$name: a retry");
}

my ($more) = $of->('X-Any', undef);
my $store = http_get('/admin/')->json->{stores}[0];

for ([ undef, undef, 0 ], [ on => undef, 1 ], [ off => undef, 0 ],
     [ on => '8k', 0 ], [ on => '1k', 1 ], [ on => 'much', 1 ])
{
    my ($value, $min, $small) = @$_;
    my $name = join ' min=', $value // 'empty', $min // 'empty';

    my $r = $post->('/size?n=4000', 'x', new_key(), @$more,
                    $value ? ('X-Compress' => $value) : (),
                    $min ? ('X-Min' => $min) : ());
    my $id = $r->header('X-Record');
    my $size = http_get("/admin/records/$store/$id")->json->{size};

    is($size < 4000 ? 1 : 0, $small, "idempotency_compress $name");
}

# without a limit the client sets nothing, and the TTL is 500 ms

for ([ undef, 2 ], [ 0 => 2 ], [ ever => 2 ], [ '1ms' => 2 ], [ '1h' => 1 ]) {
    my ($max, $runs) = @$_;
    my $name = 'max=' . ($max // 'empty');
    my $op = "max" . ($max // '');
    my $key = new_key();
    my @ttl = ('X-TTL' => 60_000, defined $max ? ('X-Max' => $max) : ());

    $post->("/ok?op=$op", 'x', $key, @ttl);
    sleep 0.8;
    is($post->("/ok?op=$op", 'x', $key, @ttl)->body, "run $runs\n", $name);
}

# the header of an execution

for ([ undef, 'true' ], [ off => undef ]) {
    my ($value, $expired) = @$_;
    my @value = $value ? ('X-Headers' => $value) : ();
    my $key = new_key();

    $post->('/grace/ok', 'x', $key, @value);
    sleep 0.8;
    is($post->('/grace/ok', 'x', $key, @value)
           ->header('X-Idempotency-Expired'), $expired,
       'expired, headers ' . ($value // 'empty'));
}



=== TEST 15: rules of derived keys that a variable shapes
--- config
    idempotency           $TEST_STORE;
    idempotency_identity  "";
    idempotency_dedupe    body window=1m when=$http_x_when
                          action=$http_x_action;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: its default is used
--- client
my $n = 0;

for my $when (undef, qw(missing always ever)) {
    for my $action (undef, qw(replay reject drop)) {
        my $name = join ' ', $when // 'empty', $action // 'empty';
        my @how = (($when ? ('X-When' => $when) : ()),
                   ($action ? ('X-Action' => $action) : ()));
        my $op = 'd' . $n++;

        my $again = sub {
            my $r = http_post("/ok?op=$op", 'x', [ @how, @_ ]);

            return $r->error_code eq 'DUPLICATE_REQUEST' ? 'rejected'
                   : $r->header('Idempotent-Replayed') ? 'replayed'
                   : 'ran';
        };

        my $folded = ($action // '') eq 'reject' ? 'rejected' : 'replayed';
        my $keyed = ($when // '') eq 'always' ? $folded : 'ran';

        is($again->(), 'ran', "$name: ran");
        is($again->(), $folded, "$name: without a key");
        is($again->('Idempotency-Key' => new_key()), $keyed,
           "$name: with a key");
    }
}

error_log_like(qr/"idempotency_dedupe" evaluates to "ever", it is "missing" or "always"/,
               'told');



=== TEST 16: a bad value of every request is one line, and then a count
--- workers: 1
--- config
    idempotency                  $TEST_STORE;

    location / {
        idempotency_ttl          $arg_ttl;
        idempotency_keep_status  $arg_keep;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# the values may be those of clients, each another one

for my $n (1 .. 40) {
    is(http_post("/ok?op=a$n&ttl=soon$n&keep=all$n&header=X-Idempotency-Store:%20no$n",
                 'x', { 'Idempotency-Key' => new_key() })->status, 200, "runs $n");
}

for ('"idempotency_ttl" evaluates to', '"idempotency_keep_status" evaluates to',
     'upstream sent')
{
    error_log_like(qr/\[(?:error|warn)\] [^\n]*idempotency: \Q$_\E [^\n]*"[a-zA-Z:\- ]+1"/,
                   "$_: logged");
    error_log_like(qr/idempotency: \Q$_\E [^\n]*: \d+ more in the last second/,
                   'and counted');
    cmp_ok(scalar(() = error_log() =~ /idempotency: \Q$_\E/g), '<=', 6,
           'in few lines');
}
