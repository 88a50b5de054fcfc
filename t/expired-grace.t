# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_expired_grace: who comes back after the record has expired runs
# the operation again, and is told.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# retries until it runs again; returns that response

sub until_run
{
    my ($run, @request) = @_;

    my $r;

    wait_for(sub { $r = http_post(@request); $r->body eq "run $run\n" }, 10)
        or die "never ran for the time number $run\n";

    return $r;
}

run_tests();

__DATA__

=== TEST 1: an execution after the record expired says so
--- config
    idempotency      $TEST_STORE;
    idempotency_ttl  400ms;
    location / {
        idempotency_expired_grace  60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /none/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency_expired_grace  400ms;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /quiet/ {
        idempotency_expired_grace  60s;
        idempotency_headers        off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /long/ {
        idempotency_ttl            1h;
        idempotency_expired_grace  60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key() } }
          qw(a other failed none short quiet long conflict);

my $first = http_post('/ok?op=a', 'x', $key{a});

is($first->body, "run 1\n", 'ran');
is($first->header('X-Idempotency-Expired'), undef, 'nothing had expired');

http_post('/ok?op=other', 'x', $key{other});
http_post('/status/422?op=failed', 'x', $key{failed});
http_post('/none/ok', 'x', $key{none});
http_post('/short/ok', 'x', $key{short});
http_post('/quiet/ok', 'x', $key{quiet});
http_post('/long/ok', 'x', $key{long});

my $again = until_run(2, '/ok?op=a', 'x', $key{a});

is($again->header('X-Idempotency-Expired'), 'true', 'expired');
is($again->header('Idempotent-Replayed'), undef, 'it ran');
is($again->status, 200, 'as any other');

# what replays the second execution is no new one

my $replay = http_post('/ok?op=a', 'x', $key{a});

is($replay->body, "run 2\n", 'the second is replayed');
is($replay->header('Idempotent-Replayed'), 'true', 'which it says');
is($replay->header('X-Idempotency-Expired'), undef, 'nothing expired');

# once expired, the key is free for anything

my $other = until_run(2, '/ok?op=other', 'y', $key{other});

is($other->body, "run 2\n", 'another request');
is($other->header('X-Idempotency-Expired'), 'true', 'is told as well');
is(http_post('/ok?op=other', 'x', $key{other})->status, 409,
   'the first is in conflict with it now');

my $failed = until_run(2, '/status/422?op=failed', 'x', $key{failed});
is($failed->header('X-Idempotency-Expired'), 'true', 'an error says so too');

is(until_run(2, '/none/ok', 'x', $key{none})->header('X-Idempotency-Expired'),
   undef, 'no grace, no header');
is(until_run(2, '/quiet/ok', 'x', $key{quiet})
   ->header('X-Idempotency-Expired'), undef, 'no headers of ours');
is(http_post('/long/ok', 'x', $key{long})->body, "run 1\n",
   'what has not expired is replayed');

# the grace is over as well: nobody remembers

my $t = time;
wait_for(sub { time > $t + 1 }, 5);
is(http_post('/short/ok', 'x', $key{short})->header('X-Idempotency-Expired'),
   undef, 'after the grace');
is(app_count('/short/ok'), 2, 'it ran');



=== TEST 2: what runs again and is not kept
--- config
    idempotency                $TEST_STORE;
    idempotency_expired_grace  60s;
    idempotency_ttl            300ms;
    idempotency_lease          500ms;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# the one that runs while others wait for it is told, and they are not

my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/ok?op=a&hold=1', 'x', \%key);
app_release('a');
is($c->read_response->body, "run 1\n", 'ran');

my $second;
wait_for(sub {
    $second = send_post('/ok?op=a&hold=1', 'x', \%key);

    # it runs, or is answered with what has not expired yet
    wait_for(sub { app_parked('a') || $second->read_response(0.05) });
    return app_parked('a');
}, 10);

my $third = send_post('/ok?op=a&hold=1', 'x', \%key);
app_release('a');

is($second->read_response->header('X-Idempotency-Expired'), 'true',
   'it runs again');

my $r = $third->read_response;
is($r->body, "run 2\n", 'who waited gets the same');
is($r->header('X-Idempotency-Expired'), undef, 'and nothing of the old one');

# released: the next one starts from nothing

%key = ('Idempotency-Key' => new_key());

is(http_post('/status/503?op=b', 'x', \%key)->status, 503, 'not kept');
is(http_post('/status/503?op=b', 'x', \%key)
   ->header('X-Idempotency-Expired'), undef, 'there was no record');



=== TEST 3: a key that was derived expires as well
--- config
    idempotency      $TEST_STORE;
    idempotency_ttl  60s;
    location / {
        idempotency_expired_grace  60s;
        idempotency_dedupe         body window=400ms;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /none/ {
        idempotency_dedupe         body window=400ms;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /beside/ {
        idempotency_expired_grace  60s;
        idempotency_dedupe         body window=400ms when=always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $first = http_post('/ok?op=a', 'x');

is($first->body, "run 1\n", 'ran');
is($first->header('X-Idempotency-Expired'), undef, 'nothing had expired');

http_post('/none/ok', 'x');
http_post('/beside/ok?op=b', 'x', { 'Idempotency-Key' => new_key() });

my $again = until_run(2, '/ok?op=a', 'x');

is($again->header('X-Idempotency-Expired'), 'true', 'expired');
is($again->header('Idempotent-Replayed'), undef, 'it ran');

is(http_post('/ok?op=a', 'y')->header('X-Idempotency-Expired'), undef,
   'another body is new');
is(until_run(2, '/none/ok', 'x')->header('X-Idempotency-Expired'), undef,
   'no grace, no header');

# a key that is new has not expired because a window has

my ($r, %key);
wait_for(sub {
    %key = ('Idempotency-Key' => new_key());
    $r = http_post('/beside/ok?op=b', 'x', \%key);
    $r->body eq "run 2\n";
}, 10);

is($r->body, "run 2\n", 'a new key after the window runs');
is($r->header('X-Idempotency-Expired'), undef, 'and is a new key');
