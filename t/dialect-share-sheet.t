# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/share-sheet.conf, as it is, keeps every sentence that docs/dialects.md has
# of it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

sub headers
{
    return { 'X-User-Id' => 'u1', 'Content-Type' => 'application/json', @_ };
}

sub key { ('Idempotency-Key' => defined $_[0] ? $_[0] : new_key()) }

run_tests();

__DATA__

=== TEST 1: three layers
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
# 1. the key

my $share = '/api/share?op=share';
my @key = key();

is(example_post($share, '{"url":"a","t":1}', headers(@key))->body, "run 1\n",
   'ran');
is(example_post($share, '{"url":"a","t":1}', headers(@key))->body, "run 1\n",
   'the same key');
is(example_post($share, '{"url":"b"}', headers(@key))->status, 409,
   'for another link is a conflict');

# 2. a double tap: the same request under another key, or none; there is no
#    link in it by which it could be told

my $text = '/api/share?op=text';

is(example_post($text, '{"text":"x"}', headers(key()))->body, "run 1\n",
   'a text');
is(example_post($text, '{"text":"x"}', headers(key()))->body, "run 1\n",
   'a double tap, with a new key');
is(example_post($text, '{"text":"x"}', headers())->body, "run 1\n",
   'and without one');
is(example_post($text, '{"text":"y"}', headers(key()))->body, "run 2\n",
   'another text');

# both at the same moment

my $hold = '/api/share?hold=1&op=hold';
my $c = example_send($hold, '{"text":"x"}', headers(key()));
app_wait_parked('hold');
my $tap = example_send($hold, '{"text":"x"}', headers(key()));
app_release('hold');
is($_->read_response->body, "run 1\n", 'two taps') for $c, $tap;

# 3. the link, of the same user, even under a new key, and with another body

@key = key();
my $r = example_post($share, '{"url":"a","t":2,"more":[]}', headers(@key));
is($r->body, "run 1\n", 'the same link under a new key');
is($r->header('Idempotent-Replayed'), 'true', 'is replayed');
is(example_post($share, '{"t":3,"url":"a"}', headers())->body, "run 1\n",
   'without a key too');
is(example_post($share, '{"url":"a","t":2,"more":[]}', headers(@key))->body,
   "run 1\n", 'the new key has it now');
is(example_post($share, '{"url":"c"}', headers(key()))->body, "run 2\n",
   'another link');
is(example_post($share, '{"url":"a"}', headers(key(), 'X-User-Id' => 'u2'))
   ->body, "run 3\n", 'the same link of another user');
is(app_count('share'), 3, 'no other execution');



=== TEST 2: for 60 s
--- client_timeout: 60
--- http_config eval
main::example('share-sheet', sub { s/window=60s/window=500ms/ })
--- config
    location /unused { }
--- client
my $uri = '/api/share';
my @key = key();

is(example_post($uri, '{"url":"a"}', headers(key()))->body, "run 1\n", 'ran');
is(example_post($uri, '{"url":"a","t":1}', headers(@key))->body, "run 1\n",
   'folds');

# a derived record lives for 5 s at least

my $r;
ok(wait_for(sub { ($r = example_post($uri, '{"url":"a","t":2}', headers()))
                  ->body eq "run 2\n" }, 20), 'until the window is over');
is(example_post($uri, '{"url":"a","t":1}', headers(@key))->body, "run 1\n",
   'the key has its own time');



=== TEST 3: settings by endpoint, and job ids
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
# a batch wants a key, and has no layer of links

my $batch = '/api/share/batch';

is(example_post($batch, '{"url":"a"}', headers())->error_code,
   'IDEMPOTENCY_KEY_MISSING', 'batch: a key is a must');
is(example_post($batch, '{"url":"a","n":1}', headers(key()))->body, "run 1\n",
   'batch: with one it runs');
is(example_post($batch, '{"url":"a","n":1}', headers(key()))->body, "run 1\n",
   'batch: a double tap');
is(example_post($batch, '{"url":"a","n":2}', headers(key()))->body, "run 2\n",
   'batch: the same link again');

# of notes only the key counts

my @key = key();
is(example_post('/api/notes', 'x', headers())->body, "run 1\n", 'a note');
is(example_post('/api/notes', 'x', headers())->body, "run 2\n", 'once more');
is(example_post('/api/notes', 'x', headers(@key))->body, "run 3\n",
   'with a key');
is(example_post('/api/notes', 'x', headers(@key))->body, "run 3\n",
   'which counts');

# job ids: the same for each try, of each kind another, for each key another

my %seen;

for my $n (1, 2) {
    my $uri = "/api/share?status=503&op=job$n";
    my @key = key("job-$n");

    for my $try (1, 2) {
        example_post($uri, "{\"url\":\"job$n\"}", headers(@key));

        my %h = map { lc $_->[0] => $_->[1] }
                @{ app_last("job$n")->{headers} };

        like($h{'x-job-id'}, qr/^[0-9a-f]{64}$/, "$n: a job id");
        like($h{'x-notify-job-id'}, qr/^[0-9a-f]{64}$/, "$n: and another");
        $seen{"$h{'x-job-id'} $h{'x-notify-job-id'}"}++;
        $seen{$h{'x-job-id'}}++;
        $seen{$h{'x-notify-job-id'}}++;
    }

    is(app_count("job$n"), 2, "$n: it ran twice");
}

is(join(' ', sort { $a <=> $b } values %seen), '2 2 2 2 2 2',
   'each try of a key with the same, all others with another');



=== TEST 4: waits at most 5 s, then 503
--- http_config eval
main::example('share-sheet', sub { s/(idempotency_wait +)5s;/${1}500ms;/ })
--- config
    location /unused { }
--- client
for my $uri ('/api/share', '/api/share/batch', '/api/notes') {
    my @key = key();
    my $c = example_send("$uri?hold=1&op=$uri", 'x', headers(@key));
    app_wait_parked($uri);

    my $r = example_post("$uri?hold=1&op=$uri", 'x', headers(@key));
    is($r->status, 503, "$uri: waited in vain");
    is($r->error_code, 'LOCK_TIMEOUT', "$uri: and says so");

    app_release($uri);
    is($c->read_response->body, "run 1\n", "$uri: done");
}



=== TEST 5: strict when the store fails
--- store: memory
--- http_config eval
"idempotency_store tiny memory { zone tiny:64k; }\n"
. main::example('share-sheet', sub { s/\$TEST_STORE/tiny/g })
--- config
    location /unused { }
--- client
my ($r, $n);

for ($n = 1; $n < 2000; $n++) {
    $r = example_post("/api/notes?op=$n", 'x', headers(key()));
    last if $r->status != 200;
}

is($r->status, 503, 'there is no store');
is($r->error_code, 'STORE_UNAVAILABLE', 'which is said');
is(app_count($n), 0, 'it did not run');

$r = example_post('/api/share?op=share', '{"url":"a"}', headers(key()));
is($r->error_code, 'STORE_UNAVAILABLE', 'nor did this');
is(app_count('share'), 0, 'at all');



=== TEST 6: strict when the store fails, with Redis
--- store: redis
--- http_config eval
"idempotency_store away redis { server 127.0.0.1:\$TEST_NGINX_DEAD_PORT; }\n"
. main::example('share-sheet', sub { s/\$TEST_STORE/away/g })
--- config
    location /unused { }
--- client
my $r = example_post('/api/share?op=share', '{"url":"a"}', headers(key()));
is($r->error_code, 'STORE_UNAVAILABLE', 'there is no store');
is(app_count('share'), 0, 'it did not run');
