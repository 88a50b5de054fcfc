# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Who may run a request again whose lease ran out: the same request, and no
# other, for as long as its record would have lived.  And no record expires
# while its holder runs, however short the TTL.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $redis;

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $redis = start_remote();
    $ENV{TEST_NGINX_LOST_PORT} = $redis->{port};
}

sub code_of
{
    my $r = shift;

    return $r->error_code ne '' ? $r->error_code : $r->status;
}

run_tests();

__DATA__

=== TEST 1: an unknown outcome under lease keeps its fingerprint for the TTL
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  300ms;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency_ttl  2s;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my %short = ('Idempotency-Key' => new_key());

# a connection to the store takes its time, and may take a short lease's

wait_for(sub { http_post('/ok?op=warm', 'a',
                         { 'Idempotency-Key' => new_key() })->status == 200 });

is(http_post('/close', 'a', \%key)->status, 502, 'the connection is closed');
is(http_post('/short/close', 'a', \%short)->status, 502, 'with a short TTL');

select undef, undef, undef, 0.5;

is(code_of(http_post('/close', 'b', \%key)), 'IDEMPOTENCY_CONFLICT',
   'after the lease: another body');
is(code_of(http_post('/close?x=1', 'a', \%key)), 'IDEMPOTENCY_CONFLICT',
   'another URI');
is(code_of(http_post('/close', 'a', { %key, Authorization => 'Bearer b' })),
   'IDEMPOTENCY_CONFLICT', 'another identity');
is(app_count('/close'), 1, 'none of them ran');

is(http_post('/close', 'a', \%key)->status, 502, 'the same request runs');
is(app_count('/close'), 2, 'it reached the application');
is(code_of(http_post('/close', 'a', \%key)), 'OUTCOME_UNKNOWN',
   'and its outcome is unknown again');

ok(wait_for(sub {
       http_post('/short/close', 'b', \%short)->status == 502
   }, 10), 'after the TTL the key is free');



=== TEST 2: so does the lock of a holder that died
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  300ms;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: exited on signal 9
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold', 'a', \%key);
app_wait_parked('/hold');
kill_worker();

select undef, undef, undef, 1.0;

is(code_of(http_post('/hold', 'b', \%key)), 'IDEMPOTENCY_CONFLICT',
   'another body, long after the lease');
is(code_of(http_post('/hold', 'a', { %key, Authorization => 'Bearer b' })),
   'IDEMPOTENCY_CONFLICT', 'another identity');
is(app_count('/hold'), 1, 'neither ran');

$c = send_post('/hold', 'a', \%key);
is(app_wait('/hold', 2), 2, 'the same request runs');
app_release('/hold');
is($c->read_response->status, 200, 'and is answered');



=== TEST 3: ... also when a retry took it over, and did not run
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  300ms;
    set $port  $http_x_port;

    location / {
        proxy_pass  http://127.0.0.1:$port;
    }
--- provokes: exited on signal 9
--- client
my %up = ('X-Port' => $ENV{TEST_NGINX_APP_PORT});
my %down = ('X-Port' => $ENV{TEST_NGINX_DEAD_PORT});

my %unknown = ('Idempotency-Key' => new_key());
my %dead = ('Idempotency-Key' => new_key());

is(http_post('/close', 'a', { %unknown, %up })->status, 502, 'unknown');
send_post('/hold', 'a', { %dead, %up });
app_wait_parked('/hold');
kill_worker();

select undef, undef, undef, 0.5;

is(http_post('/close', 'a', { %unknown, %down })->status, 502,
   'a retry finds no application');
is(http_post('/hold', 'a', { %dead, %down })->status, 502, 'likewise');

is(code_of(http_post('/close', 'b', { %unknown, %up })),
   'IDEMPOTENCY_CONFLICT', 'another body is a conflict still');
is(code_of(http_post('/hold', 'b', { %dead, %up })), 'IDEMPOTENCY_CONFLICT',
   'likewise');

is(http_post('/close', 'a', { %unknown, %up })->status, 502,
   'the same runs, at once');
my $c = send_post('/hold', 'a', { %dead, %up });
is(app_wait('/hold', 2), 2, 'likewise');
app_release('/hold');
is($c->read_response->status, 200, 'and is answered');
is(app_count('/close'), 2, 'twice in all');

# what was never taken over is gone when it is released

my %fresh = ('Idempotency-Key' => new_key());
is(http_post('/ok', 'a', { %fresh, %down })->status, 502, 'never sent');
is(http_post('/ok', 'b', { %fresh, %up })->status, 200, 'the key is free');



=== TEST 4: another scheme of fingerprints is not another request
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  300ms;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/close', 'a', \%key)->status, 502, 'unknown');

edit_config(sub { s/idempotency_lease/idempotency_fingerprint json;
    idempotency_lease/ });
ok(nginx_reload(), 'reloaded with another scheme');

select undef, undef, undef, 0.5;

is(code_of(http_post('/close?x=1', 'a', \%key)), 'IDEMPOTENCY_CONFLICT',
   'another URI is another request');
is(http_post('/close', 'a', \%key)->status, 502, 'the same URI runs');
is(app_count('/close'), 2, 'twice in all');



=== TEST 5: a TTL that is shorter than the run
--- config
    idempotency             $TEST_STORE;
    idempotency_ttl         300ms;
    idempotency_ttl_header  X-Idempotency-TTL max=1h;
    idempotency_wait        0;

    location /hold/ {
        idempotency_unknown_outcome  hold;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /client/ {
        idempotency_ttl              1h;
        idempotency_unknown_outcome  hold;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /lease/ {
        idempotency_lease            500ms;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /both/ {
        idempotency_lease            500ms;
        idempotency_unknown_outcome  hold;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key() } }
          qw(hold client lease both);

$key{client}{'X-Idempotency-TTL'} = 200;

my %c = map { $_ => send_post("/$_/hold?op=$_", 'x', $key{$_}) } keys %key;
app_wait_parked($_) for keys %key;

select undef, undef, undef, 1.5;

for my $how (sort keys %key) {
    is(code_of(http_post("/$how/hold?op=$how", 'x', $key{$how})),
       'CONCURRENT_REQUEST', "$how: still in progress");
    is(app_count($how), 1, "$how: runs once");
    app_release($how);
    is($c{$how}->read_response->body, "run 1\n", "$how: is answered");
}



=== TEST 6: a worker that dies under hold, with a TTL shorter than the lease
--- config
    idempotency                  $TEST_STORE;
    idempotency_ttl              300ms;
    idempotency_lease            3s;
    idempotency_unknown_outcome  hold;
    idempotency_wait             0;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: exited on signal 9
--- client
my %key = ('Idempotency-Key' => new_key());

send_post('/hold', 'x', \%key);
app_wait_parked('/hold');
kill_worker();

select undef, undef, undef, 0.6;

is(code_of(http_post('/hold', 'x', \%key)), 'CONCURRENT_REQUEST',
   'after the TTL, within the lease');
is(app_count('/hold'), 1, 'ran once');



=== TEST 7: an unknown outcome that could not reach its store
--- store: redis postgres
--- http_config
    idempotency_store lost $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_LOST_PORT;
        timeout  300ms;
    }
--- config
    idempotency        lost;
    idempotency_lease  2s;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold', 'a', \%key);
app_wait_parked('/hold');

$main::redis->pause;
app_reset();
is($c->read_response->status, 502, 'the application is gone, and the store');

error_log_like(qr/commit in store "lost" failed/, 'it is kept here', 10);

is(code_of(http_post('/hold', 'b', \%key)), 'IDEMPOTENCY_CONFLICT',
   'another body, while it is kept');

my $r = http_post('/hold', 'a', \%key);

# its lease may have ended meanwhile: then nobody knows, and nothing runs

if ($r->error_code eq 'OUTCOME_UNKNOWN') {
    cmp_ok($r->json->{error}{retryAfterMs}, '<=', 2000,
           'the same: what is left of the lease');
} else {
    is($r->error_code, 'STORE_UNAVAILABLE', 'the same: after the lease');
}

is(app_count('/hold'), 0, 'nothing ran since');

$main::redis->resume;
select undef, undef, undef, 2.5;

is(code_of(http_post('/hold', 'b', \%key)), 'IDEMPOTENCY_CONFLICT',
   'another body, when the store is back');
$c = send_post('/hold', 'a', \%key);
is(app_wait('/hold', 1), 1, 'the same runs');
app_release('/hold');
is($c->read_response->status, 200, 'and is answered');



=== TEST 8: in the ledger of a fallback
--- store: redis postgres
--- http_config
    idempotency_store ledger memory { zone ledger:1m; }
    idempotency_store lost $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_DEAD_PORT;
        timeout  300ms;
    }
--- config
    idempotency        lost fallback=ledger;
    idempotency_lease  300ms;
    idempotency_wait   0;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency_ttl              200ms;
        idempotency_unknown_outcome  hold;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my %short = ('Idempotency-Key' => new_key());

is(http_post('/close', 'a', \%key)->status, 502, 'unknown');
my $c = send_post('/short/hold', 'x', \%short);
app_wait_parked('/short/hold');

select undef, undef, undef, 1.0;

is(code_of(http_post('/close', 'b', \%key)), 'IDEMPOTENCY_CONFLICT',
   'another body');
is(http_post('/close', 'a', \%key)->status, 502, 'the same runs');
is(app_count('/close'), 2, 'twice in all');

is(code_of(http_post('/short/hold', 'x', \%short)), 'CONCURRENT_REQUEST',
   'a short TTL: still in progress');
app_release('/short/hold');
is($c->read_response->status, 200, 'and answered');



=== TEST 9: taken over by a request under hold: nobody takes over from that
--- config
    idempotency                  $TEST_STORE;
    idempotency_lease            300ms;
    idempotency_wait             0;
    idempotency_unknown_outcome  $http_x_policy;
    set $port  $http_x_port;

    location / {
        proxy_pass  http://127.0.0.1:$port;
    }
--- provokes: exited on signal 9
--- client
my %up = ('X-Port' => $ENV{TEST_NGINX_APP_PORT});
my %down = ('X-Port' => $ENV{TEST_NGINX_DEAD_PORT});
my %lease = ('X-Policy' => 'lease');
my %hold = ('X-Policy' => 'hold');

my %dead = ('Idempotency-Key' => new_key(), %up);
my %unknown = ('Idempotency-Key' => new_key(), %up);
my %back = ('Idempotency-Key' => new_key());

# what a configuration before this one, or another host, left under lease

wait_for(sub { http_post('/ok?op=warm', 'a',
                         { 'Idempotency-Key' => new_key(), %up,
                           %lease })->status == 200 });

is(http_post('/reset?op=b', 'a', { %unknown, %lease })->status, 502, 'unknown');
send_post('/hold?op=a', 'a', { %dead, %lease });
send_post('/hold?op=c', 'a', { %back, %up, %lease });
app_wait_parked($_) for qw(a c);
kill_worker();

select undef, undef, undef, 1.0;

# retries under hold

send_post('/hold?op=a', 'a', { %dead, %hold });
is(app_wait('a', 2), 2, 'a retry under hold takes over, and runs');
is(http_post('/hold?op=c', 'a', { %back, %down, %hold })->status, 502,
   'one that takes over, and does not run');
is(http_post('/reset?op=b', 'a', { %unknown, %hold })->status, 502,
   'one of an unknown outcome runs');

is(code_of(http_post('/hold?op=c', 'b', { %back, %up, %hold })),
   'IDEMPOTENCY_CONFLICT', 'another body, where it did not run');

my $c = send_post('/hold?op=c', 'a', { %back, %up, %hold });
is(app_wait('c', 2), 2, 'the same runs');

kill_worker();

select undef, undef, undef, 1.0;

for my $policy (\%hold, \%lease) {
    is(code_of(http_post('/hold?op=a', 'a', { %dead, %$policy })),
       'OUTCOME_UNKNOWN', "it died under hold: unknown");
    is(code_of(http_post('/hold?op=c', 'a', { %back, %up, %$policy })),
       'OUTCOME_UNKNOWN', 'also behind the one that did not run');
    is(code_of(http_post('/reset?op=b', 'a', { %unknown, %$policy })),
       'OUTCOME_UNKNOWN', 'and what was unknown stays so');
}

is(app_count($_), 2, "$_ did not run again") for qw(a b c);



=== TEST 10: a lease that became shorter does not end a longer one
--- config
    idempotency        $TEST_STORE;
    idempotency_lease  $http_x_lease;
    idempotency_wait   0;
    idempotency_ttl    32s;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /derived/ {
        idempotency_dedupe  body window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# The lease of the configuration before, and of the one after a reload.  What is
# left of these locks beside their lease would be the same: 30 s, and 60 s.

my %tries = ('/hold?op=a' => { 'Idempotency-Key' => new_key() },
             '/derived/hold?op=b' => {});
my %answer;

for my $uri (sort keys %tries) {
    $answer{$uri} = send_post($uri, 'x', { %{ $tries{$uri} }, 'X-Lease' => '30s' });
    app_wait_parked($uri =~ /(\w)$/);
}

for my $pause (0, 1.5) {
    select undef, undef, undef, $pause;

    is(code_of(http_post($_, 'x', { %{ $tries{$_} }, 'X-Lease' => '1s' })),
       'CONCURRENT_REQUEST', "$_: still runs") for sort keys %tries;
}

for my $uri (sort keys %tries) {
    my ($op) = $uri =~ /(\w)$/;

    app_release($op);
    is($answer{$uri}->read_response->status, 200, "$uri: answered");
    is(app_count($op), 1, "$uri: ran once");
}



=== TEST 11: an unknown outcome under hold, with a TTL shorter than the lease
The client may ask for one.
--- config
    idempotency                  $TEST_STORE;
    idempotency_ttl_header       X-TTL max=1d;
    idempotency_lease            3s;
    idempotency_unknown_outcome  hold;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key(), 'X-TTL' => 100);

is(http_post('/close?op=a', 'x', \%key)->status, 502, 'the connection is closed');
select undef, undef, undef, 0.6;
is(code_of(http_post('/close?op=a', 'x', \%key)), 'OUTCOME_UNKNOWN', 'after the TTL');
is(app_count('a'), 1, 'ran once');
