# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_compress: bodies lie compressed in the store, and nobody else
# can tell.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# everything that a replay adds, and what differs by the time

sub own { qw(Date Idempotent-Replayed X-Original-Request-Time) }

# what zlib can make no smaller

sub random_bytes
{
    srand 17;

    return join '', map { chr int rand 256 } 1 .. shift;
}

run_tests();

__DATA__

=== TEST 1: a replay is byte for byte the original
--- config
    proxy_http_version   1.1;
    proxy_set_header     Connection "";
    idempotency          $TEST_STORE;
    idempotency_methods  POST HEAD GET;
    location / {
        idempotency_compress  on;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /all/ {
        idempotency_compress  on min=0;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /large/ {
        idempotency_compress  on min=64k;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /small/ {
        idempotency_compress     on min=0;
        proxy_buffer_size        4k;
        proxy_buffers            4 4k;
        proxy_busy_buffers_size  4k;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_compress  off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /files/ {
        idempotency_compress  on min=0;
        alias                 html/;
    }
--- user_files eval
">>> random\n" . main::random_bytes(200_000) . "\n>>> short\nab"
--- client
for my $where ('', '/all', '/large', '/small', '/off') {
    for my $what ('/size?n=0', '/size?n=1', '/size?n=1023', '/size?n=1024',
                  '/size?n=65535', '/size?n=65536', '/size?n=300000',
                  '/size?n=300000&chunked=1', '/binary', '/headers', '/204',
                  '/gzip', '/status/404', '/json')
    {
        my %key = ('Idempotency-Key' => new_key());
        my @r = map { http_post("$where$what", 'x', \%key) } 1, 2;

        is($r[1]->header('Idempotent-Replayed'), 'true',
           "$where$what: replayed");
        is($r[1]->status, $r[0]->status, "$where$what: status");
        ok($r[1]->body eq $r[0]->body, "$where$what: body");
        is($r[1]->header_lines(own(), qw(Transfer-Encoding Content-Length)),
           $r[0]->header_lines(own(), qw(Transfer-Encoding Content-Length)),
           "$where$what: headers");
        is($r[1]->header('Content-Length') // 0, length $r[0]->body,
           "$where$what: length");
    }
}

for my $file ('random', 'short') {
    my %key = ('Idempotency-Key' => new_key());
    my @r = map { http_get("/files/$file", \%key) } 1, 2;

    is($r[1]->header('Idempotent-Replayed'), 'true', "$file: replayed");
    ok($r[1]->body eq $r[0]->body, "$file: body");
}

my %key = ('Idempotency-Key' => new_key());
my @r = map { http_request('HEAD', '/all/size?n=5000', undef, \%key) } 1, 2;
is($r[1]->header('Idempotent-Replayed'), 'true', 'HEAD: replayed');
is($r[1]->header('Content-Length'), 5000, 'HEAD: the length of what is not');
--- no_error_log
[error]



=== TEST 2: the configuration may change meanwhile
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_compress  on min=0;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %one = ('Idempotency-Key' => new_key());
my %two = ('Idempotency-Key' => new_key());

my $one = http_post('/size?n=20000&op=1', 'x', \%one);

edit_config(sub { s/idempotency_compress  on min=0;// or die });
ok(nginx_reload(), 'reloaded: off');

my $r = http_post('/size?n=20000&op=1', 'x', \%one);
is($r->header('Idempotent-Replayed'), 'true', 'what was compressed');
ok($r->body eq $one->body, 'is read all the same');

my $two = http_post('/size?n=20000&op=2', 'x', \%two);

edit_config(sub { s/(idempotency  \S+;)/$1 idempotency_compress on;/ or die });
ok(nginx_reload(), 'reloaded: on');

$r = http_post('/size?n=20000&op=2', 'x', \%two);
is($r->header('Idempotent-Replayed'), 'true', 'what was not compressed');
ok($r->body eq $two->body, 'as well');



=== TEST 3: with what nginx makes of it for the client
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_compress  on min=0;
        gzip                  on;
        gzip_types            text/plain;
        gzip_http_version     1.0;
        add_header            X-Added yes;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
require IO::Uncompress::Gunzip;

my %key = ('Idempotency-Key' => new_key());
my $plain = http_post('/size?n=20000', 'x', \%key);
is(length $plain->body, 20000, 'plain');

my $zipped = http_post('/size?n=20000', 'x',
                       { %key, 'Accept-Encoding' => 'gzip' });
is($zipped->header('Content-Encoding'), 'gzip', 'compressed for this client');
is($zipped->header('Idempotent-Replayed'), 'true', 'replayed');
is($zipped->header('X-Added'), 'yes', 'with its headers');
cmp_ok(length $zipped->body, '<', 2000, 'small');
IO::Uncompress::Gunzip::gunzip(\$zipped->body, \my $text);
ok($text eq $plain->body, 'the same text');

my $again = http_post('/size?n=20000', 'x', \%key);
is($again->header('Content-Encoding'), undef, 'and not for another');
ok($again->body eq $plain->body, 'the same text');

# the other way round: first for a client that takes gzip

%key = ('Idempotency-Key' => new_key());
http_post('/size?n=20000', 'x', { %key, 'Accept-Encoding' => 'gzip' });
$again = http_post('/size?n=20000', 'x', \%key);
is($again->header('Content-Encoding'), undef, 'kept as the application made it');
is(length $again->body, 20000, 'the whole of it');



=== TEST 4: more fits into the store
--- store: memory
--- http_config
    idempotency_store  plain memory { zone plain:512k; }
    idempotency_store  small memory { zone small:512k; }
--- config
    location /plain/ {
        idempotency           plain;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /small/ {
        idempotency           small;
        idempotency_compress  on;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /min/ {
        idempotency           plain;
        idempotency_compress  on min=64k;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# 80 responses of 30 kB: 2.4 MB of them

for my $where (qw(plain small)) {
    http_post("/$where/size?n=30000&op=$where$_", 'x',
              { 'Idempotency-Key' => "$where-$_" }) for 1 .. 80;

    my @kept = grep { http_post("/$where/size?n=30000&op=$where$_", 'x',
                                { 'Idempotency-Key' => "$where-$_" })
                      ->status == 200 } 1 .. 80;

    if ($where eq 'plain') {
        cmp_ok(scalar @kept, '<', 40, 'plain: some had to go');
        cmp_ok(scalar @kept, '>', 0, 'plain: the last are there');
    } else {
        is(scalar @kept, 80, 'compressed: all of them are there');
    }

    is(app_count("$where$_"), 1, "$where $_: ran once") for 1, 40, 80;
}

# below the minimum they are as they are

http_post("/min/size?n=30000&op=min$_", 'x', { 'Idempotency-Key' => "min-$_" })
    for 1 .. 80;
my @kept = grep { http_post("/min/size?n=30000&op=min$_", 'x',
                            { 'Idempotency-Key' => "min-$_" })->status == 200 }
           1 .. 80;
cmp_ok(scalar @kept, '<', 40, 'min=: not compressed');



=== TEST 5: neither on nor off
--- config
    idempotency_compress gzip;
--- must_die
--- error_log eval
qr/\[emerg\] .*"gzip".* in .*nginx\.conf:\d+/



=== TEST 6: a minimum that is no size
--- config
    idempotency_compress on min=much;
--- must_die
--- error_log eval
qr/\[emerg\] .*"min=much".* in .*nginx\.conf:\d+/



=== TEST 7: a large one is compressed in turns
--- log_level: debug
--- config
    idempotency               $TEST_STORE;
    idempotency_compress      on;
    idempotency_max_response  20m;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $first = http_post('/size?n=5000000&op=a', 'x', \%key);
is(length $first->body, 5_000_000, 'the first is whole');
my @turns = error_log() =~ /idempotency: a turn of compression/g;
cmp_ok(scalar @turns, '>=', 4, 'in turns');

my $retry = http_post('/size?n=5000000&op=a', 'x', \%key);
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
ok($retry->body eq $first->body, 'the same');
is($retry->header_lines(own()), $first->header_lines(own()), 'same headers');

# a client that leaves, and a worker that is to leave: it is stored

%key = ('Idempotency-Key' => new_key());
my $seen = length error_log();
my $c = send_post('/size?n=8000000&op=b', 'x', \%key);
ok(wait_for(sub { index(error_log(), 'hold -> compress', $seen) >= 0 }, 60),
   'being compressed');
$c->abort;
ok(nginx_reload(), 'reloaded');
ok(wait_for(sub { http_post('/size?n=8000000&op=b', 'x', \%key)->status == 200 },
            30), 'answered again');
is(app_count('b'), 1, 'ran once');



=== TEST 8: and decompressed in turns
--- h2
--- log_level: debug
--- provokes: exited on signal 9
--- config
    idempotency               $TEST_STORE;
    idempotency_compress      on;
    idempotency_max_response  20m;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
sub turns
{
    my @turns = error_log() =~ /idempotency: a turn of \Q$_[0]\E,/g;
    return scalar @turns;
}

my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=12000000&op=a';
my $first = http_post($uri, 'x', \%key);
is(length $first->body, 12_000_000, 'the first is whole');
is(turns('decompression'), 0, 'nothing to decompress yet');

my $retry = http_post($uri, 'x', \%key);
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
ok($retry->body eq $first->body, 'the same');
is($retry->header_lines(own()), $first->header_lines(own()), 'same headers');
cmp_ok(turns('decompression'), '>=', 20, 'in turns');

# in the middle of it: a client leaves, over HTTP/2, too; the worker is to
# leave, or is killed

sub begun
{
    my ($what) = @_;

    my $before = turns($what);
    return sub { wait_for(sub { turns($what) > $before }, 20) };
}

my $begun = begun('decompression');
my $c = send_post($uri, 'x', \%key);
ok($begun->(), 'begun');
$c->abort;

my $h2 = h2_connect();
$begun = begun('decompression');
my $id = $h2->request('POST', $uri, 'x',
                      { 'idempotency-key' => $key{'Idempotency-Key'} });
ok($begun->(), 'HTTP/2: begun');
$h2->rst($id);

$begun = begun('decompression');
$c = send_post($uri, 'x', \%key);
ok($begun->(), 'reload: begun');
ok(nginx_reload(), 'reloaded');
my $r = $c->read_response(30);
ok($r && $r->body eq $first->body, 'answered in full');

$begun = begun('decompression');
$c = send_post($uri, 'x', \%key);
ok($begun->(), 'kill: begun');
kill_worker();

$retry = http_post($uri, 'x', \%key);
ok($retry->body eq $first->body, 'the same, after all of that');
is(app_count('a'), 1, 'ran once');

# a client that leaves while its response is compressed: it is stored

for my $how (qw(abort rst)) {
    my $key = new_key();
    $uri = "/size?n=8000000&op=$how";
    $begun = begun('compression');

    if ($how eq 'abort') {
        $c = send_post($uri, 'x', { 'Idempotency-Key' => $key });
        ok($begun->(), "$how: begun");
        $c->abort;

    } else {
        $h2 = h2_connect();
        $id = $h2->request('POST', $uri, 'x', { 'idempotency-key' => $key });
        ok($begun->(), "$how: begun");
        $h2->rst($id);
    }

    $r = http_post($uri, 'x', { 'Idempotency-Key' => $key });
    is($r->status, 200, "$how: status");
    is($r->header('Idempotent-Replayed'), 'true', "$how: replayed");
    is(length $r->body, 8_000_000, "$how: whole");
    is(app_count($how), 1, "$how: ran once");
}



=== TEST 9: an empty one
--- config
    idempotency           $TEST_STORE;
    idempotency_compress  on min=0;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $uri ('/ok?n=0', '/204?x=1', '/ok?n=0&type=text/event-stream',
             '/ok?n=0&nolength=1&type=text/event-stream', '/ok?n=1')
{
    my %key = ('Idempotency-Key' => new_key());

    my $first = http_post($uri, 'x', \%key);
    my $retry = http_post($uri, 'x', \%key);

    is($retry->header('Idempotent-Replayed'), 'true', "$uri: replayed");
    is($retry->body, $first->body, "$uri: as it was");
}



=== TEST 10: a client that leaves meanwhile, with a post_action
--- log_level: debug
--- config
    idempotency               $TEST_STORE;
    idempotency_compress      on;
    idempotency_max_response  20m;
    location / {
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /after {
        idempotency  off;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/size?n=12000000&op=a', 'x', \%key);
ok(wait_for(sub { error_log() =~ /idempotency: hold -> compress/ }, 60),
   'being compressed');
$c->abort;

is(app_wait('after'), 1, 'the action');
like(error_log(), qr/idempotency: commit -> send/, 'after the commit');

is(http_post('/size?n=12000000&op=a', 'x', \%key)
       ->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count('a'), 1, 'ran once');
--- no_error_log
[alert]
