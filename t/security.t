# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Somebody who means ill: one block for each question of the table "Security" in
# docs/reliability.md.  The victim and the stranger reach the same location,
# and the stranger has got hold of the key.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $location = <<'_EOC_';
    location / {
        idempotency        $TEST_STORE;
        idempotency_wait   0;
        idempotency_lease  3s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

our $tenants = <<'_EOC_';
    location / {
        idempotency        $TEST_STORE;
        idempotency_scope  $http_authorization;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub as
{
    my ($who, $key, @more) = @_;

    return [ 'Idempotency-Key' => $key, Authorization => "Bearer $who", @more ];
}

sub victim_has_it
{
    my ($uri, $key, $first, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $r = http_post($uri, 'x', as('victim', $key));

    is($r->header('Idempotent-Replayed'), 'true', "$name: still replayed");
    is($r->body, $first->body, "$name: the same");
}

# what is on the wire, less what differs by the moment

sub wire
{
    my $r = shift;

    return join "\n", $r->status, $r->header_lines('Date'), $r->body;
}

# seconds of CPU that the workers have used

sub cpu
{
    my $ticks = 0;

    for my $pid (nginx_workers('all')) {
        open my $in, '<', "/proc/$pid/stat" or next;
        my @f = split ' ', (<$in> =~ s/^.*\) //sr);
        $ticks += $f[11] + $f[12];
    }

    return $ticks / 100;
}

run_tests();

__DATA__

=== TEST 1: who can read a record
--- config eval: $::location
--- client
my $key = new_key();
my $uri = '/headers?op=read&header=X-Secret:%20mine';
my $first = http_post($uri, 'x', as('victim', $key));
is($first->status, 201, 'ran');
is($first->header('X-Secret'), 'mine', 'with something to hide');

my %tries = (
    'another token'      => [ $uri, 'x', as('stranger', $key) ],
    'none'               => [ $uri, 'x', [ 'Idempotency-Key' => $key ] ],
    'an empty one'       => [ $uri, 'x', [ 'Idempotency-Key' => $key,
                                           Authorization => '' ] ],
    'in another case'    => [ $uri, 'x', [ 'Idempotency-Key' => $key,
                                           Authorization => 'bearer victim' ] ],
    'as another header'  => [ $uri, 'x', [ 'Idempotency-Key' => $key,
                                        'X-Api-Key' => 'Bearer victim' ] ],
    'a condition'        => [ $uri, 'x', as('stranger', $key,
                                            'If-None-Match' => '*') ],
    'a range'            => [ $uri, 'x', as('stranger', $key,
                                            Range => 'bytes=0-3') ],
    'another body'       => [ $uri, 'y', as('stranger', $key) ],
    'a quoted key'       => [ $uri, 'x', as('stranger', qq("$key")) ],
);

for my $what (sort keys %tries) {
    my $r = http_post(@{ $tries{$what} });

    is($r->status, 409, "$what: a conflict");
    unlike($r->raw, qr/mine|Set-Cookie|ETag|run 1/i, "$what: nothing of it");
    is($r->header('X-Original-Request-Time'), undef, "$what: not when");
    is_deeply($r->json->{error}{details}, {}, "$what: no details");
}

is(app_count('read'), 1, 'ran once');



=== TEST 2: who can delete one
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_wait        0;
        idempotency_ttl_header  X-TTL max=1h;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();
my $uri = '/ok?op=del';
my $first = http_post($uri, 'x', as('victim', $key));

# by a conflict, by methods, by a life of a millisecond, by failing
http_post($uri, 'x', as('stranger', $key, 'X-TTL' => 1));
http_post($uri, 'x', as('victim', $key, 'X-TTL' => 1));
http_request($_, $uri, 'x', as('stranger', $key)) for qw(DELETE PUT PATCH);
http_post("/status/503?op=other", 'x', as('stranger', $key));
http_post($uri, 'x', as('stranger', $key, 'X-Idempotency-Store' => 'off'));

my $c = send_post($uri, 'y', as('stranger', $key));
$c->abort;
my $d = connect_client();
$d->send_part("POST $uri HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: $key"
              . "\r\nContent-Length: 10\r\n\r\nx");
$d->reset;

select undef, undef, undef, 0.1;
victim_has_it($uri, $key, $first, 'after all of that');

# nor does a stranger's release end a lock

my $held = new_key();
my $holder = send_post('/hold?op=held', 'x', as('victim', $held));
app_wait_parked('held');
http_post('/status/503?op=other', 'x', as('stranger', $held));
http_post('/hold?op=held', 'y', as('victim', $held));

my $busy = http_post('/hold?op=held', 'x', as('victim', $held));
is($busy->error_code, 'CONCURRENT_REQUEST', 'the lock is still there');
app_release('held');
is($holder->read_response->body, "run 1\n", 'and its holder gets its answer');
is(app_count('held'), 1, 'ran once');
is(app_count('del'), 1, 'ran once');



=== TEST 3: who can poison one
--- config
    location / {
        idempotency        $TEST_STORE;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /checked/ {
        idempotency        $TEST_STORE;
        idempotency_wait   0;
        if ($http_x_never) { return 400; }
        deny               all;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# the first to use a key: the victim gets no answer that was not meant for it

my $key = new_key();
http_post('/ok?op=evil', 'x', as('stranger', $key));

my $r = http_post('/ok?op=evil', 'x', as('victim', $key));
is($r->status, 409, 'a conflict');
is($r->header('Idempotent-Replayed'), undef, 'and not what the stranger got');

# who is refused leaves nothing behind

$key = new_key();
is(http_post('/checked/ok', 'x', as('stranger', $key))->status, 403, 'refused');
is(http_post('/ok?op=free', 'x', as('victim', $key))->body, "run 1\n",
   'the key is free');

# headers of ours in a request mean nothing

$key = new_key();
my @ours = ('Idempotent-Replayed' => 'true', 'X-Idempotency-Store' => 9999,
            'X-Original-Request-Time' => '1970-01-01T00:00:00Z');
$r = http_post('/ok?op=ours', 'x', as('victim', $key, @ours));
is($r->body, "run 1\n", 'ran');
is($r->header($_), undef, "no $_") for 'Idempotent-Replayed',
   'X-Original-Request-Time';

# a key that would be two, or a header, or more than text, is no key

for my $bad ("a b", "a,b", "\"a", "a\tb", "\xff", "a;b=c", 'a' x 256, '""') {
    $r = http_post('/ok?op=bad', 'x', as('victim', $bad));
    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'no key');
}

$r = http_post('/ok?op=bad', 'x', as('victim', 'one',
                                     'Idempotency-Key' => 'two'));
is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', 'nor are two of them');

# whichever of them is looked at: two identities are not one of them

$key = new_key();
my @twice = ('X-Api-Key' => 'victim', 'X-Api-Key' => 'stranger');
http_post('/ok?op=twice', 'x', [ 'Idempotency-Key' => $key,
                                 'X-Api-Key' => 'victim' ]);
$r = http_post('/ok?op=twice', 'x',
               [ 'Idempotency-Key' => $key, 'X-Api-Key' => 'stranger',
                 'X-Api-Key' => 'victim' ]);
is($r->status, 409, 'the stranger first');
is(app_count('bad'), 0, 'none of the bad ones ran');



=== TEST 4: who can lock one for somebody else
--- config eval
$::location . <<'_EOC_';
    location /tenant/ {
        idempotency        $TEST_STORE;
        idempotency_scope  $http_authorization;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my $key = new_key();
my $c = send_post('/hold?op=lock', 'x', as('stranger', $key));
app_wait_parked('lock');

my $r = http_post('/hold?op=lock', 'x', as('victim', $key));
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'by default: told at once');
is(app_count('lock'), 1, 'and does not run');

# with the tenant in the scope it can't

$key = new_key();
my $d = send_post('/tenant/hold?op=mine', 'x', as('stranger', $key));
app_wait_parked('mine');
is(http_post('/tenant/ok?op=mine2', 'x', as('victim', $key))->body, "run 1\n",
   'with the tenant in the scope: runs');

# who has not sent all of a request has locked nothing

$key = new_key();
my $slow = connect_client();
$slow->send_part("POST /ok?op=slow HTTP/1.1\r\nHost: localhost\r\n"
                 . "Idempotency-Key: $key\r\nAuthorization: Bearer stranger"
                 . "\r\nContent-Length: 100\r\n\r\nx");
select undef, undef, undef, 0.1;
is(http_post('/ok?op=slow', 'x', as('victim', $key))->body, "run 1\n",
   'a request that is not all there');

app_release('lock');
is($c->read_response->body, "run 1\n", 'the one that ran was not disturbed');



=== TEST 5: can one learn that a key exists, by what comes back
--- config eval: $::location
--- client
# whatever state it is in, a stranger reads the same bytes

my %state = map { $_ => new_key() } qw(completed running unknown large);

http_post('/ok?op=s', 'x', as('victim', $state{completed}));
http_post('/close?op=s', 'x', as('victim', $state{unknown}));
http_post('/size?n=2000000&op=s', 'x', as('victim', $state{large}));
my $c = send_post('/hold?op=running', 'x', as('victim', $state{running}));
app_wait_parked('running');

my %told = map {
    $_ => wire(http_post('/ok?op=s', 'x', as('stranger', $state{$_})))
} keys %state;

is($told{$_}, $told{completed}, "$_: the same answer") for sort keys %told;
like($told{completed}, qr/^409\b/, 'which is a conflict');
unlike($told{completed}, qr/Retry-After/i, 'and tells nothing of the time');

app_release('running');



=== TEST 6: with the tenant in the scope nothing is learnt, nor in how long
--- config eval: $::tenants
--- log_level: debug
--- client
my ($used, $unused) = (new_key(), new_key());

http_post('/size?n=500000&op=a', 'x', as('victim', $used));

# the same answer, and the same way through the module

my %way;

for my $key ($used, $unused) {
    my $seen = length error_log();
    my $r = http_post("/204?op=$key", 'x', as('stranger', $key));
    is($r->status, 204, 'ran');

    my @steps = grep { defined }
        map { /(idempotency: .*?)(?:, client:|$)/ ? $1 : undef }
        grep { /\[debug\]/ } split /^/, substr error_log(), $seen;
    s/[0-9a-f]{16,}|\d+/N/g for @steps;

    $way{$key} = [ wire($r), @steps ];
}

cmp_ok(scalar @{ $way{$used} }, '>', 4, 'there are steps to compare');
is_deeply($way{$used}, $way{$unused}, 'the same, step by step');



=== TEST 7: who can fill the store
--- store: memory
--- http_config
    idempotency_store small memory { zone small:256k; }
--- config
    location / {
        idempotency               small;
        idempotency_wait          0;
        idempotency_max_response  16k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats { idempotency_stats json; }
--- client
my $key = new_key();
http_post('/ok?op=victim', 'x', as('victim', $key));

# a long key takes no more than a short one; a response no more than it may

my (%seen, @keys);

for my $n (1 .. 300) {
    my $long = sprintf('%s%05d', 'k' x 250, $n);
    my $r = http_post("/size?n=" . ($n % 3 ? 15_000 : 100_000) . '&op=fill',
                      'x', as('stranger', $long));
    $seen{ $r->status }++;
}

ok($seen{200}, 'some were stored');

my $r = http_post('/ok?op=victim', 'x', as('victim', $key));
ok($r->status == 507 || $r->header('Idempotent-Replayed'),
   "the victim's record is known: " . $r->status);
is(app_count('victim'), 1, 'and did not run again');

# full is an error, never a run without protection

my $fresh = new_key();
$r = http_post("/ok?op=$fresh", 'x', as('victim', $fresh));
my $again = http_post("/ok?op=$fresh", 'x', as('victim', $fresh));
ok($r->status == 503 ? app_count($fresh) == 0 : app_count($fresh) == 1,
   'served once, or refused');



=== TEST 8: who can make a worker spend time
--- http_config
    client_max_body_size 20m;
--- config
    client_body_buffer_size 16m;
    location /json/ {
        idempotency                  $TEST_STORE;
        idempotency_key              $http_idempotency_key json:id;
        idempotency_fingerprint      json exclude=a,b arrays=unordered;
        idempotency_conflict_detail  values;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /form/ {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  form exclude=a;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /multipart/ {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  multipart;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        idempotency              $TEST_STORE;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    large_client_header_buffers 16 64k;
--- client_timeout: 120
--- client
my $mega = 1_000_000;
my %bodies = (
    '/json/ok deep'        => '[' x $mega,
    '/json/ok deeper'      => '{"a":' x 200_000,
    '/json/ok nearly deep' => ('[' x 127 . '1' . ']' x 127) ,
    '/json/ok same names'  => '{' . join(',', ('"x":1') x 150_000) . '}',
    '/json/ok many names'  => '{' . join(',', map { "\"$_\":1" } 1 .. 80_000)
                              . '}',
    '/json/ok numbers'     => '[' . join(',', reverse 1 .. 120_000) . ']',
    '/json/ok equal'       => '[' . join(',', ('{"y":[1,2]}') x 70_000) . ']',
    '/json/ok a string'    => '"' . 'a' x $mega,
    '/json/ok escapes'     => '"' . '\u0041' x 160_000 . '"',
    '/json/ok white'       => ' ' x $mega . '1',
    '/json/ok large'       => '[' . '1,' x 5_000_000 . '1]',
    '/form/ok same'        => 'x=1&' x 250_000,
    '/form/ok empty'       => '&' x $mega,
    '/form/ok names'       => join('&', map { "$_=1" } 1 .. 120_000),
    '/form/ok escapes'     => '%41' x 330_000,
    '/form/ok excluded'    => 'a=1&' x 250_000,
    '/multipart/ok nearly' => "\r\n--bound" x 110_000,
    '/multipart/ok ends'   => "\r\n--" x 250_000,
    '/multipart/ok parts'  => "--boundary\r\n\r\n\r\n" x 60_000,
    '/ok raw'              => 'x' x 10_000_000,
);

my %types = (json => 'application/json', ok => 'text/plain',
             form => 'application/x-www-form-urlencoded',
             multipart => 'multipart/form-data; boundary=boundary');

# a worker is slowed by a tool, not by the machine being busy: CPU time counts
my $slow = $ENV{IDEMPOTENCY_VALGRIND} ? 60
         : $ENV{IDEMPOTENCY_SANITIZER_LOGS} ? 8 : 1;

for my $what (sort keys %bodies) {
    my ($uri, $name) = split ' ', $what, 2;
    my ($kind) = $uri =~ m{^/(\w+)};
    my $key = new_key();
    my $before = cpu();

    for my $n (1, 2) {
        my $r = http_post("$uri?op=$key", $bodies{$what},
                          { 'Idempotency-Key' => $key,
                            'Content-Type' => $types{$kind} }, timeout => 60);
        is($r->body, "run 1\n", "$what: try $n");
    }

    my $took = cpu() - $before;
    cmp_ok($took, '<', $slow, sprintf '%s: %.2f s of CPU', $what, $took);
}

# headers: as many as nginx lets pass, and keys that are long

my $before = cpu();
for (1 .. 20) {
    http_post('/ok?op=h', 'x', [ 'Idempotency-Key' => new_key(),
                                 map { ("X-H$_" => 'v' x 50) } 1 .. 2000 ]);
}
cmp_ok(cpu() - $before, '<', 2 * $slow, 'many headers');



=== TEST 9: nor by waiting in crowds
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_wait         30s;
        idempotency_max_waiters  5;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();
my $holder = send_post('/hold?op=crowd', 'x', as('victim', $key));
app_wait_parked('crowd');

my $before = cpu();
my @crowd = map { send_post('/hold?op=crowd', 'x', as('victim', $key)) }
            1 .. 200;
my @told = grep { $_ } map { $_->read_response(0.5) } @crowd;

is(scalar @told, 195, 'all but five are sent away at once');
is(scalar(grep { $_->error_code ne 'TOO_MANY_WAITERS' } @told), 0,
   'as too many');
cmp_ok(cpu() - $before, '<', 5, 'without much ado');

app_release('crowd');
is($holder->read_response->body, "run 1\n", 'the holder is served');
is(app_count('crowd'), 1, 'ran once');

# a stranger does not wait, so that it takes no place

$key = new_key();
$holder = send_post('/hold?op=places', 'x', as('victim', $key));
app_wait_parked('places');
http_post('/hold?op=places', 'x', as('stranger', $key)) for 1 .. 10;
my $waiter = send_post('/hold?op=places', 'x', as('victim', $key));
is($waiter->read_response(0.2), undef, 'there is a place to wait');
app_release('places');
is($waiter->read_response->body, "run 1\n", 'and what it waited for');



=== TEST 10: what gets into logs, figures and events
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_wait             0;
        idempotency_fingerprint      json;
        idempotency_conflict_detail  values;
        idempotency_log              logs/events.json;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /json       { idempotency_stats json; }
    location /prometheus { idempotency_stats prometheus; }
    location /html       { idempotency_stats html; }
--- client
my $mark = "sEcReT$$";

for my $uri ('/ok', '/status/503', '/close', '/size?n=2000000') {
    for my $who ('victim', 'stranger') {
        for my $body ("{\"card\":\"$mark-card\"}", "{broken $mark") {
            for my $key ("$mark-key", "$mark not a key", qq("$mark)) {
                http_post($uri, $body,
                          [ 'Idempotency-Key' => $key,
                            'Content-Type' => 'application/json',
                            Authorization => "Bearer $mark-$who",
                            'X-Api-Key' => "$mark-api",
                            Cookie => "session=$mark-cookie" ]);
            }
        }
    }
}

for my $page (qw(json prometheus html)) {
    my $r = http_get("/$page");
    is($r->status, 200, "$page: served");
    cmp_ok(length $r->body, '>', 500, "$page: with something in it");
    unlike($r->body, qr/\Q$mark\E/, "$page: nothing of a client");
}

my $events = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json";
ok(wait_for(sub { -s $events && -s $events > 1000 }), 'there are events');
open my $in, '<', $events or die "$events: $!\n";
unlike(join('', <$in>), qr/\Q$mark\E/, 'events: nothing of a client');
unlike(error_log(), qr/\Q$mark\E/, 'error.log: nothing of a client');
