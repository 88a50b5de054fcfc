# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The embedded store and the room it has: what happens when there is no more
# of it, over a reload, and over a long time of use.  Whatever happens, what
# ran once does not run again.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes ();

our $store = "idempotency_store ledger memory { zone ledger:64k; }\n";

our $location = <<'_EOC_';
    add_header X-Status $idempotency_status always;

    location / {
        idempotency  ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_


# one request of the operation that has the name of its key

sub run_key
{
    my ($key, $uri, %o) = @_;

    $uri ||= '/ok';
    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$key";

    return http_post($uri, 'x', { 'Idempotency-Key' => $key,
                                  %{ $o{headers} || {} } });
}


# new keys until the store has no room: those that ran, and the refusal

sub fill
{
    my ($prefix, $uri) = @_;

    my @ran;

    for my $n (1 .. 2000) {
        my $r = run_key("$prefix-$n", $uri);
        return (\@ran, $r, "$prefix-$n") if $r->status == 503;
        die $r->raw if $r->status != 200;
        push @ran, "$prefix-$n";
    }

    return (\@ran, undef);
}


# each replays, or is refused for good; none runs again

sub none_runs_again
{
    my ($keys, $uri, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my (%seen, @bad);

    for my $key (@$keys) {
        my $r = run_key($key, $uri);

        my $what = $r->status == 200
                       && ($r->header('Idempotent-Replayed') || '') eq 'true'
                       ? 'replayed'
                   : $r->status == 507 && $r->error_code eq 'RESPONSE_NOT_KEPT'
                       ? 'not kept' : $r->status . ' ' . $r->error_code;
        $seen{$what}++;
        push @bad, $key if app_count($key) != 1;
    }

    is_deeply(\@bad, [], "$name: each ran once");
    is_deeply([ grep { !/^(?:replayed|not kept)$/ } sort keys %seen ], [],
              "$name: each replays, or says that it can't");

    return \%seen;
}

run_tests();

__DATA__

=== TEST 1: full when a request begins
--- store: memory
--- http_config eval: $::store
--- config
    add_header X-Status $idempotency_status always;

    location / {
        idempotency                 ledger;
        idempotency_retry_after     4s;
        proxy_pass                  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency                 ledger;
        idempotency_on_store_error  pass;
        proxy_pass                  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# It begins while there is room, and ends when there is none: of its size, for
# what is left of a page that is in use may do for a small one.
my $held = '/hold?op=held&n=6000';
my $c = send_post($held, 'x', { 'Idempotency-Key' => 'held' });
app_wait_parked('held');

my ($ran, $r, $refused) = fill('a');

cmp_ok(scalar @$ran, '>', 50, 'some fit');
ok($r, 'but not all') or return;

is($r->status, 503, 'refused');
is($r->error_code, 'STORE_UNAVAILABLE', 'code');
is($r->json->{error}{type}, 'service_unavailable', 'type');
ok($r->json->{error}{retryable}, 'retryable');
is($r->json->{error}{retryAfterMs}, 4000, 'retryAfterMs');
is($r->header('Retry-After'), 4, 'Retry-After');
is($r->header('X-Status'), 'UNAVAILABLE', '$idempotency_status');
is(app_count($refused), 0, 'did not run');
error_log_like(qr/\[error\] .*store "ledger" is full, the request is refused/,
               'logged');

none_runs_again($ran, undef, 'full');

# the holder of before
app_release('held');
like($c->read_response->body, qr/^run 1\b/, 'the holder gets its response');
$r = http_post($held, 'x', { 'Idempotency-Key' => 'held' });
is($r->status, 507, 'which could not be kept');
is($r->error_code, 'RESPONSE_NOT_KEPT', 'says so');
is(app_count('held'), 1, 'ran once');
error_log_like(qr/there is no room for a response in store "ledger"/,
               'logged, too');

# a conflict is a conflict
is(http_post('/ok?op=a-1', 'other', { 'Idempotency-Key' => 'a-1' })->status,
   409, 'a conflict');

# unprotected, if so configured
for my $n (1, 2) {
    $r = run_key('unprotected', '/pass/ok');
    is($r->body, "run $n\n", "runs $n times");
    is($r->header('X-Status'), 'UNPROTECTED', 'and says so');
}

error_log_like(qr/store "ledger" is full, the request runs unprotected/,
               'in the log as well');

# what is known is still known there
$r = run_key($ran->[-1], '/pass/ok');
is($r->status, 409, 'another URI: a conflict');



=== TEST 2: full when a response is to be stored
--- store: memory
--- http_config
    idempotency_store ledger memory { zone ledger:512k; }
--- config eval: $::location
--- client
my @keys = map { "k-$_" } 1 .. 60;

is(length run_key($_, '/size?n=20000')->body, 20000, "$_ ran") for @keys;

my $seen = none_runs_again(\@keys, '/size?n=20000', 'evicted');

cmp_ok($seen->{replayed}, '>', 5, 'some are there');
cmp_ok($seen->{'not kept'}, '>', 20, 'others are not');

# the oldest went first
my $gone = 0;

for my $key (@keys) {
    last if run_key($key, '/size?n=20000')->status == 200;
    $gone++;
}

is($gone, $seen->{'not kept'}, 'the oldest are gone, and no others');

my $r = run_key($keys[0], '/size?n=20000');
is($r->error_code, 'RESPONSE_NOT_KEPT', 'code');
is($r->header('X-Status'), 'TOO_LARGE', '$idempotency_status');
is($r->header('Retry-After'), undef, 'for good');

error_log_like(qr/\[warn\] .*zone "ledger" is full: \d+ of its \d+ records lost their response/,
               'logged');

# an evicted record still knows its request
is(http_post('/size?n=20000&op=k-1', 'y', { 'Idempotency-Key' => 'k-1' })
   ->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict with it');

# what can't fit at all costs nobody else its response
$r = run_key('huge', '/size?n=600000');
is(length $r->body, 600000, 'a response larger than the zone goes out');
$r = run_key('huge', '/size?n=600000');
is($r->status, 507, 'and is not kept');
is($r->error_code, 'RESPONSE_NOT_KEPT', 'code');
is(app_count('huge'), 1, 'ran once');

is(run_key($keys[-1], '/size?n=20000')->status, 200, 'the last is there');
is(run_key($keys[$gone], '/size?n=20000')->status, 200,
   'the oldest that was there still is');



=== TEST 3: what has expired gives room, all of it
--- store: memory
--- http_config
    idempotency_store ledger memory { zone ledger:64k; }
--- config
    location / {
        idempotency             ledger;
        idempotency_ttl         12s;
        idempotency_ttl_header  X-TTL max=1h;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# most of the zone
my $uri = '/size?n=28000';
my %long = (headers => { 'X-TTL' => 3600_000 });

is(run_key('large-1', $uri, %long)->status, 200, 'ran');
is(run_key('large-1', $uri, %long)->status, 200, 'fits');

my ($ran, $r) = fill('small');
is($r && $r->status, 503, 'full');
is(run_key('large-1', $uri, %long)->status, 507, 'has lost its response');

# nobody comes while they expire, and nobody takes them out
my $end = Time::HiRes::time() + 12.1;
wait_for(sub { Time::HiRes::time() > $end }, 30);

is(run_key('large-2', $uri)->status, 200, 'ran, when they have expired');
error_log_like(qr/\[info\].* \d+ expired records were removed from store "ledger"/,
               'and it is logged how many');
is(run_key('large-2', $uri)->status, 200, 'as large as at first, and fits');
is(run_key($ran->[0])->body, "run 2\n", 'an expired one runs anew');
is(run_key($ran->[0])->body, "run 2\n", 'and is stored');



=== TEST 4: over a reload
--- store: memory
--- workers: 2
--- http_config eval: $::store
--- config eval: $::location
--- client
my @keys = map { "k-$_" } 1 .. 20;

run_key($_) for @keys;

my $c = send_post('/hold?op=held', 'x', { 'Idempotency-Key' => 'held' });
app_wait_parked('held');

for my $n (1, 2) {
    ok(nginx_reload(), "reload $n");
    my $seen = none_runs_again(\@keys, undef, "reload $n");
    is($seen->{replayed}, 20, "reload $n: all are there");
}

# a lock is there, too
is(http_post('/hold?op=held', 'y', { 'Idempotency-Key' => 'held' })->status,
   409, 'the holder of the old worker holds it');
app_release('held');
is($c->read_response->body, "run 1\n", 'and ends');
is(http_post('/hold?op=held', 'x', { 'Idempotency-Key' => 'held' })->body,
   "run 1\n", 'what it stored is there');
is(app_count('held'), 1, 'ran once');



=== TEST 5: another size is refused at a reload
--- store: memory
--- http_config eval: $::store
--- config eval: $::location
--- provokes: size of zone "ledger" was changed
--- client
run_key('k');

for my $size ('128k', '1m') {
    edit_config(sub { s/ledger:\w+/ledger:$size/ });
    ok(!nginx_reload(), "$size: refused");

    my $r = run_key('k');
    is($r->status, 200, "$size: the old one goes on");
    is($r->header('Idempotent-Replayed'), 'true', "$size: with its records");
    is(run_key("new-$size")->status, 200, "$size: and takes new ones");
}

my ($said) = error_log() =~ /(\[emerg\] .*)/;

like($said, qr/changed from 65536 to 131072 bytes/, 'names both');
like($said, qr/keep the size, give the zone a new name, or restart nginx/,
     'and the way out');
like($said, qr/ in \S*nginx\.conf:\d+/, 'and the file');

# nginx -t tells nothing of it, since it knows of no zone: the way out works
edit_config(sub { s/ledger:\w+/ledger2:1m/ });
ok(nginx_reload(), 'another name');
is(run_key('k')->body, "run 2\n", 'and a new beginning');

edit_config(sub { s/ledger2:1m/ledger2:1024k/ });
ok(nginx_reload(), 'the same size in other words');
is(run_key('k')->body, "run 2\n", 'all is there');



=== TEST 6: the default store grows at a reload
--- store: memory
--- config
    location / {
        idempotency  on;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
run_key('k');
ok(nginx_reload(), 'reload');
is(run_key('k')->body, "run 1\n", 'made by itself, it lives on');

edit_config(sub { s/^(http \{)/$1 idempotency_store default memory { zone mine:1m; }/m });
ok(nginx_reload(), 'declared');
is(run_key('k')->body, "run 2\n", 'a zone of another name');
is(run_key('k')->body, "run 2\n", 'and in use');



=== TEST 7: two stores do not know of each other
--- store: memory
--- http_config
    idempotency_store one memory { zone one:64k; }
    idempotency_store two memory { zone two:64k; }
--- config
    idempotency_fingerprint  off;

    location /one/ {
        idempotency  one;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /two/ {
        idempotency  two;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /also-one/ {
        idempotency  one;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /on/ {
        idempotency  on;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(run_key('k', '/one/ok')->body, "run 1\n", 'one');
is(run_key('k', '/two/ok')->body, "run 2\n", 'the other');
is(run_key('k', '/on/ok')->body, "run 3\n", 'and the one by itself');
is(run_key('k', '/one/ok')->body, "run 1\n", 'one, again');
is(run_key('k', '/also-one/ok')->body, "run 1\n", 'from another location');
is(run_key('k', '/two/ok')->body, "run 2\n", 'the other, again');

# a lock is of one store, too
my $c = send_post('/one/hold?op=h', 'x', { 'Idempotency-Key' => 'h' });
app_wait_parked('h');
is(run_key('h', '/two/ok')->status, 200, 'not locked in the other');
app_release('h');
is($c->read_response->status, 200, 'nor disturbed');

# one that is full takes no room from the other
my ($ran, $r) = fill('f', '/one/ok');
ok($r, 'one is full');
is(run_key('k2', '/two/ok')->status, 200, 'the other is not');



=== TEST 8: used for long, with responses of all sizes
--- store: memory
--- workers: 2
--- client_timeout: 120
--- http_config
    idempotency_store ledger memory { zone ledger:1m; }
--- config
    location / {
        idempotency             ledger;
        idempotency_ttl_header  X-TTL max=1h;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
srand 20;

# sizes about those of slab slots and pages, very small, and large
my @sizes = (0, 1, 20, 60, 100, 250, 256, 500, 1000, 2000, 2040, 2048, 4000,
             4080, 4096, 4100, 8000, 8190, 12000, 20000, 50000, 100000);

my (%kept, @bad);
my %count = (replayed => 0, 'not kept' => 0);

my $check = sub {
    my $key = shift;
    my ($uri, $body) = @{ $kept{$key} };
    my $r = run_key($key, $uri);

    if ($r->status == 200 && $r->body eq $body
        && ($r->header('Idempotent-Replayed') || '') eq 'true')
    {
        $count{replayed}++;
    } elsif ($r->error_code eq 'RESPONSE_NOT_KEPT') {
        $count{'not kept'}++;
    } else {
        push @bad, "$key: " . $r->status . ' ' . length $r->body;
    }
};

for my $n (1 .. 600) {
    my $key = "f-$n";
    my $size = $sizes[rand @sizes];
    my $uri = "/size?n=$size" . ($n % 3 ? '' : '&chunked=1')
              . "&header=X-N:%20$n";

    # every second one is gone soon, and leaves a hole
    my $short = $n % 2;
    my $r = run_key($key, $uri, headers => $short ? { 'X-TTL' => 1 } : {});

    if ($r->status != 200 || length $r->body != $size) {
        push @bad, "$key at first: " . $r->status;
        next;
    }

    $kept{$key} = [ $uri, $r->body ] if !$short;

    my @keys = keys %kept;
    $check->($keys[rand @keys]) if $n % 2 == 0 && @keys;
}

$check->($_) for sort keys %kept;

is_deeply(\@bad, [], 'each replays exactly, or says that it can\'t');
is_deeply([ grep { app_count($_) != 1 } sort keys %kept ], [],
          'each ran once');
cmp_ok($count{replayed}, '>', 100, 'many were replayed');
cmp_ok($count{'not kept'}, '>', 20, 'some were not');



=== TEST 9: the same key again and again does not fill it
--- store: memory
--- http_config eval: $::store
--- config eval: $::location
--- client
# released records leave nothing behind
for my $n (1 .. 400) {
    my $r = run_key("r-$n", '/status/503');
    is($r->header('X-App'), 1, "ran: $n"), last if !$r->header('X-App');
}

is(app_count('r-400'), 1, 'the last one ran as well');

# too large, and refused each time
run_key('same', '/size?n=100000') for 1 .. 200;
is(app_count('same'), 1, 'ran once');
is(run_key('other')->status, 200, 'there is room');



=== TEST 10: details give way before responses, and these before records
--- store: memory
--- client_timeout: 120
--- http_config
    idempotency_store ledger memory { zone ledger:1m; }
--- config
    add_header X-Status $idempotency_status always;

    location / {
        idempotency                  ledger;
        idempotency_fingerprint      json;
        idempotency_conflict_detail  values;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# 31 kB that are kept beside each record: more than three times the zone
my $send = sub {
    my ($key, $amount, $uri) = @_;

    my $body = '{"amount":' . $amount . ',"lines":['
               . join(',', map { sprintf '"%-25d"', $_ } 1 .. 1100) . ']}';

    return http_post(($uri || '/size?n=700') . "&op=$key", $body,
                     { 'Idempotency-Key' => $key,
                       'Content-Type' => 'application/json' });
};

my @keys = map { "d-$_" } 1 .. 100;
my %ran;

for my $key (@keys) {
    my $r = $send->($key, 1);
    $ran{ $r->status }++;
    last if $r->status != 200;
}

is_deeply(\%ran, { 200 => 100 }, 'all have room') or return;

my %again;

for my $key (@keys) {
    my $r = $send->($key, 1);
    $again{ $r->status . ' ' . ($r->header('Idempotent-Replayed') || '') }++;
}

is_deeply(\%again, { '200 true' => 100 }, 'none lost its response');

# the newest details are there, the oldest are not; a conflict is one all the same
my $r = $send->($keys[-1], 2);
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict');
is_deeply([ map { $_->{path} } @{ $r->json->{error}{details}{diff_summary} } ],
          ['/amount'], 'that says what differs');

$r = $send->($keys[0], 2);
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'one of the oldest');
is($r->json->{error}{details}{diff_summary}, undef, 'does not any more');

error_log_like(qr/\[notice\] .*zone "ledger" is full: \d+ of its records lost what idempotency_conflict_detail keeps/,
               'logged');
error_log_unlike(qr/lost their response/, 'no response was lost');

# responses that fill it take the room of all details, and then of each other
my @large = map { "l-$_" } 1 .. 60;

is($send->($_, 1, '/size?n=40000')->status, 200, "$_ ran") for @large;
is($send->($large[-1], 1, '/size?n=40000')->status, 200, 'the last is there');
is($send->($large[0], 1, '/size?n=40000')->error_code, 'RESPONSE_NOT_KEPT',
   'the first is not');

is_deeply([ grep { app_count($_) != 1 } @keys, @large ], [], 'each ran once');



=== TEST 11: responses without room are one line, and then a count
--- store: memory
--- workers: 1
--- http_config eval: $::store
--- config eval: $::location
--- client
my ($ran) = fill('a', '/size?n=300');

cmp_ok(scalar @$ran, '>', 100, 'more ran than there is room for responses');
error_log_like(qr/\[error\] [^\n]*there is no room for a response in store "ledger", its retry is refused, record [0-9a-f]{16}/,
               'the first is logged');
error_log_like(qr/there is no room for a response in store "ledger", its retry is refused: \d+ more in the last second/,
               'the others are counted');
cmp_ok(scalar(() = error_log() =~ /there is no room for a response/g), '<=',
       6, 'in few lines');
