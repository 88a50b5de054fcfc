# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/formbridge.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

sub key { ('Idempotency-Key' => defined $_[0] ? $_[0] : new_key()) }

run_tests();

__DATA__

=== TEST 1: scope, keys, replays and conflicts
--- http_config eval: main::example('formbridge')
--- config
    location /unused { }
--- client
my $uri = '/intakes/contact/submissions?status=201';
my %key = key();

my $first = example_post($uri, '{"name":"a"}', \%key);
my $retry = example_post($uri, '{"name":"a"}', \%key);

is($first->status, 201, 'ran');
is($first->header('Idempotent-Replayed'), undef, 'no replay');
is($retry->status, 200, 'a replay answers 200');
is($retry->body, $first->body, 'with the same body');
is($retry->header('Idempotent-Replayed'), 'true', 'Idempotent-Replayed');
like($retry->header('X-Original-Request-Time'),
     qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'X-Original-Request-Time');

# the intake of the URI is the scope

my $other = example_post('/intakes/support/submissions?status=201',
                         '{"name":"a"}', \%key);
is($other->status, 201, 'the same key for another intake runs');

# the conflict

my $conflict = example_post($uri, '{"name":"b"}', \%key);
my $json = $conflict->json;

is($conflict->status, 409, 'another submission');
ok(!$json->{ok}, 'ok:false');
is($json->{error}{type}, 'conflict', 'type:"conflict"');
ok(!$json->{error}{retryable}, 'retryable:false');
like($conflict->body, qr/"ok":false,"error":\{"type":"conflict",
                         .*"retryable":false/x, 'as literals');
is(app_count('/intakes/contact/submissions'), 1, 'ran once');

# keys: 1 to 255 of A-Za-z0-9_.-

my $all = join '', 'A' .. 'Z', 'a' .. 'z', 0 .. 9, '_.-';

for my $good ('a', $all, 'x' x 255) {
    is(example_post($uri, 'x', { key($good) })->status, 201,
       'a key of ' . length $good);
}

for my $bad ('', 'x' x 256, 'a b', 'a/b', 'a:b', 'a+b', 'a~b', "caf\xc3\xa9") {
    my $r = example_post($uri, 'x', { key($bad) });

    is($r->status, 400, 'no key: ' . substr $bad, 0, 10);
    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'and says so');
}

# too large to be kept

%key = key();
is(example_post("$uri&n=1200000", 'x', \%key)->status, 201, 'large');
$retry = example_post("$uri&n=1200000", 'x', \%key);
is($retry->status, 507, 'its retry is a 507');
is($retry->error_code, 'RESPONSE_TOO_LARGE', 'that says why');

# a duplicate waits, and gets the same

%key = key();
my $c = example_send("$uri&hold=1&op=wait", 'x', \%key);
app_wait_parked('wait');
my $waiter = example_send("$uri&hold=1&op=wait", 'x', \%key);
is($waiter->read_response(0.5), undef, 'it waits');
app_release('wait');
is($c->read_response->body, "run 1\n", 'the first');
is($waiter->read_response->body, "run 1\n", 'the duplicate');

# what is no submission is not covered

%key = key();
example_post('/other?op=other', 'x', \%key);
is(example_post('/other?op=other', 'x', \%key)->body, "run 2\n", 'elsewhere');



=== TEST 2: up to 30 s, then 503
--- http_config eval
main::example('formbridge', sub { s/(idempotency_wait +)30s;/${1}700ms;/ })
--- config
    location /unused { }
--- client
my $uri = '/intakes/a/submissions?hold=1&op=a';
my %key = key();

my $c = example_send($uri, 'x', \%key);
app_wait_parked('a');

my $r = example_post($uri, 'x', \%key);

is($r->status, 503, 'waited in vain');
ok($r->json->{error}{retryable}, 'retryable');
ok($r->header('Retry-After'), 'Retry-After');
ok(!$r->json->{ok}, 'not ok');

app_release('a');
is($c->read_response->status, 200, 'the first');



=== TEST 3: 24 h, and X-Idempotency-TTL
--- http_config eval
main::example('formbridge', sub { s/(idempotency_ttl +)24h;/${1}1s;/
                                      and s/max=24h;/max=2s;/ or $_ = '' })
--- config
    location /unused { }
--- client
my $uri = '/intakes/a/submissions?op=';
my %key = map { $_ => { key() } } qw(none short long odd);

$key{short}{'X-Idempotency-TTL'} = 200;
$key{long}{'X-Idempotency-TTL'} = 86400000;

my @runs = map { example_post("$uri$_", 'x', $key{$_})->body } qw(none long);
is("@runs", "run 1\n run 1\n", 'ran');

example_post("${uri}short", 'x', $key{short});
my $start = Time::HiRes::time();

my $again = sub {
    my $op = shift;

    wait_for(sub { example_post("$uri$op", 'x', $key{$op})->body
                   eq "run 2\n" }, 10) or return 99;
    return Time::HiRes::time() - $start;
};

my $short = $again->('short');
is(example_post("${uri}long", 'x', $key{long})->body, "run 1\n",
   'shorter than the others');
my $none = $again->('none');
is(example_post("${uri}long", 'x', $key{long})->body, "run 1\n",
   'longer than without');
my $long = $again->('long');

cmp_ok($short, '<', $none, 'the header shortens it');
cmp_ok($none, '<', $long, 'or sets it');
cmp_ok($long, '<', 9, 'up to its limit');



=== TEST 4: without its store it fails fast
--- store: memory
--- http_config eval
"idempotency_store tiny memory { zone tiny:64k; }\n"
. main::example('formbridge', sub { s/\$TEST_STORE/tiny/ })
--- config
    location /unused { }
--- client
# a store that can't take another record is as good as none

my $r;
my $n = 0;

while ($n++ < 2000) {
    $r = example_post("/intakes/a/submissions?op=$n", 'x', { key() });
    last if $r->status != 200;
}

is($r->status, 503, "the store is away, after $n");
is($r->error_code, 'STORE_UNAVAILABLE', 'and that is said');
ok($r->json->{error}{retryable}, 'retryable');
is(app_count($n), 0, 'nothing ran');
--- error_log
is full, the request is refused



=== TEST 5: without its store it fails fast, with Redis
--- store: redis
--- http_config eval
"idempotency_store away redis { server 127.0.0.1:\$TEST_NGINX_DEAD_PORT; }\n"
. main::example('formbridge', sub { s/\$TEST_STORE/away/ })
--- config
    location /unused { }
--- client
my $start = Time::HiRes::time();
my $r = example_post('/intakes/a/submissions?op=a', 'x', { key() });

is($r->status, 503, 'the store is away');
is($r->error_code, 'STORE_UNAVAILABLE', 'and that is said');
cmp_ok(Time::HiRes::time() - $start, '<', 5, 'fast');
is(app_count('a'), 0, 'nothing ran');
