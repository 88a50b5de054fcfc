# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Waiters: requests that come while the holder runs.  They get its response as
# soon as it is there, whichever worker they are in; a record that is released
# lets one of them run, and the others go on waiting; their deadline is
# absolute, their number bounded.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

use Time::HiRes ();

# a second server whose workers each have a socket of their own, so that
# connections spread over them

our $spread = <<'_EOC_';
    server {
        listen        127.0.0.1:$TEST_NGINX_PORT_2 reuseport;
        server_name   localhost;

        idempotency              $TEST_STORE;
        idempotency_max_waiters  100;
        add_header    X-Pid     $pid                 always;
        add_header    X-Status  $idempotency_status  always;

        location / {
            proxy_set_header  X-Pid  $pid;
            proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location /few/ {
            idempotency_max_waiters  3;
            proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location = /pid {
            return  200 $pid;
        }
    }
_EOC_

our $app = <<'_EOC_';
    idempotency  $TEST_STORE;
    add_header   X-Status  $idempotency_status  always;

    location / {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /now/ {
        idempotency_wait         0;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency_wait         500ms;
        idempotency_retry_after  2s;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /few/ {
        idempotency_max_waiters  2;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /none/ {
        idempotency_max_waiters  0;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /retry/ {
        idempotency_unknown_outcome  retry;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency_ttl          1ms;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_


# how often a request was put aside to wait, since nginx started

sub waiting { my @n = error_log() =~ /idempotency: begin -> wait: /g; @n }

sub wait_waiting
{
    my $n = shift;

    return wait_for(sub { waiting() >= $n }, 10);
}


# keepalive connections to the second server, one for each worker

sub by_worker
{
    my %c;

    for (1 .. 200) {
        my $c = connect_client(port => $ENV{TEST_NGINX_PORT_2});
        $c->request('GET', '/pid');
        $c->{pid} = $c->read_response->body;
        push @{ $c{$c->{pid}} }, $c;
        last if keys %c == nginx_workers() && !grep { @$_ < 3 } values %c;
    }

    return map { $c{$_} } sort { $a <=> $b } keys %c;
}

sub seconds { Time::HiRes::time() }

run_tests();

__DATA__

=== TEST 1: waiters get the response at once
--- log_level: debug
--- config eval: $::app
--- client
my %key = ('Idempotency-Key' => new_key());

my @c = map { send_post('/headers?op=a&hold=1', 'x', \%key) } 1 .. 6;

ok(wait_waiting(5), 'five wait');
app_wait_parked('a');
is($c[0]->read_response(0.05), undef, 'nobody is answered yet');

my $start = seconds();
app_release('a');
my @r = map { $_->read_response } @c;
cmp_ok(seconds() - $start, '<', 0.5 + grace(), 'woken, not polling');

is(scalar(grep { $_->status == 201 } @r), 6, 'all answered');
is(scalar(grep { $_->body eq "run 1\n" } @r), 6, 'the same body');
is(scalar(grep { ($_->header('Idempotent-Replayed') || '') eq 'true' } @r), 5,
   'five are replays');
is_deeply([ sort map { $_->header('X-Status') } @r ],
          [ 'EXECUTED', ('REPLAYED') x 5 ], 'their status');
is(app_count('a'), 1, 'ran once');



=== TEST 2: over four workers
--- workers: 4
--- log_level: debug
--- http_config eval: $::spread
--- config
--- client
my @workers = by_worker();
is(scalar @workers, 4, 'connections to four workers');

# the holder in each of them in turn

my $waited = 0;

for my $holder (0 .. 3) {
    my %key = ('Idempotency-Key' => new_key());
    my $op = "op$holder";

    my $c = $workers[$holder][0];
    $c->request('POST', "/hold?op=$op", 'x', \%key);
    app_wait_parked($op);

    my @c = map { ($_->[1], $_->[2]) } @workers;
    $_->request('POST', "/hold?op=$op", 'x', \%key) for @c;

    ok(wait_waiting($waited += 8), "$op: eight wait");

    my $start = seconds();
    app_release($op);
    my @r = map { $_->read_response } $c, @c;
    my $took = seconds() - $start;

    cmp_ok($took, '<', 0.5 + grace(), "$op: woken, not polling");
    is(scalar(grep { $_ && $_->body eq "run 1\n" } @r), 9, "$op: all answered");
    is(scalar(keys %{ { map { $_->header('X-Pid') => 1 } @r } }), 4,
       "$op: by four workers");
    is(app_count($op), 1, "$op: ran once");
}



=== TEST 3: wait 0
--- config eval: $::app
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/now/hold?op=a', 'x', \%key);
app_wait_parked('a');

my $start = seconds();
my $r = http_post('/now/hold?op=a', 'x', \%key);
is($r->status, 409, 'refused');
is($r->error_code, 'CONCURRENT_REQUEST', 'code');
is($r->json->{error}{type}, 'concurrent', 'type');
ok($r->json->{error}{retryable}, 'retryable');
is($r->json->{error}{retryAfterMs}, 5000, 'retryAfterMs');
is($r->header('Retry-After'), 5, 'Retry-After');
is($r->json->{title}, 'A request is outstanding for this Idempotency-Key',
   'title');
is($r->header('X-Status'), 'BUSY', 'status');
cmp_ok(seconds() - $start, '<', 2, 'at once');

app_release('a');
is($c->read_response->body, "run 1\n", 'the holder is answered');
is(http_post('/now/hold?op=a', 'x', \%key)->body, "run 1\n", 'a replay now');
is(app_count('a'), 1, 'ran once');



=== TEST 4: waited in vain
--- config eval: $::app
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/short/hold?op=a', 'x', \%key);
app_wait_parked('a');

my $start = seconds();
my $r = http_post('/short/hold?op=a', 'x', \%key);
my $took = seconds() - $start;

is($r->status, 503, 'refused');
is($r->error_code, 'LOCK_TIMEOUT', 'code');
is($r->json->{error}{type}, 'service_unavailable', 'type');
ok($r->json->{error}{retryable}, 'retryable');
is($r->json->{error}{retryAfterMs}, 2000, 'retryAfterMs');
is($r->header('Retry-After'), 2, 'Retry-After');
is($r->header('X-Status'), 'TIMEOUT', 'status');
cmp_ok($took, '>', 0.45, 'not before its time');
cmp_ok($took, '<', 3, 'nor much later');

app_release('a');
is($c->read_response->body, "run 1\n", 'the holder is answered');
is(http_post('/short/hold?op=a', 'x', \%key)->body, "run 1\n", 'a replay now');
is(app_count('a'), 1, 'ran once');



=== TEST 5: the deadline is absolute
--- log_level: debug
--- config
    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  2s;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/hold?op=a&status=503';

my $holder = send_post($uri, 'x', \%key);
app_wait_parked('a');

my $start = seconds();
my $first = send_post($uri, 'x', \%key);
ok(wait_waiting(1), 'the first waits');
my $second = send_post($uri, 'x', \%key);
ok(wait_waiting(2), 'the second waits');

# more than half of its time goes by, then another runs: it has what is left

select undef, undef, undef, 1.2;
app_release('a');
is($holder->read_response->status, 503, 'the holder is through');
is(app_wait('a', 2), 2, 'the first waiter runs');

my $r = $second->read_response(8);
my $took = seconds() - $start;
is($r->error_code, 'LOCK_TIMEOUT', 'the second waited in vain');
cmp_ok($took, '>', 1.9, 'for its whole time');
cmp_ok($took, '<', 2.9, 'which did not start anew');

app_release('a');
is($first->read_response->status, 503, 'the first got its own');
is(app_count('a'), 2, 'two ran');



=== TEST 6: too many waiters
--- log_level: debug
--- config eval: $::app
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/few/hold?op=a';

my @c = map { send_post($uri, 'x', \%key) } 1 .. 3;
ok(wait_waiting(2), 'two wait');
app_wait_parked('a');

my $r = http_post($uri, 'x', \%key);
is($r->status, 429, 'a third is refused');
is($r->error_code, 'TOO_MANY_WAITERS', 'code');
is($r->json->{error}{type}, 'too_many_requests', 'type');
ok($r->json->{error}{retryable}, 'retryable');
is($r->header('Retry-After'), 5, 'Retry-After');
is($r->header('X-Status'), 'WAITERS', 'status');

# per record: another one has its own two

my %other = ('Idempotency-Key' => new_key());
my @d = map { send_post('/few/hold?op=b', 'x', \%other) } 1 .. 3;
ok(wait_waiting(4), 'two wait for another record');

# a conflict is not a waiter: it is told at once

is(http_post($uri, 'y', \%key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'another body');

app_release($_) for qw(a b);
is(scalar(grep { $_->read_response->body eq "run 1\n" } @c, @d), 6,
   'all answered');

# the places are free again

%key = ('Idempotency-Key' => new_key());
@c = map { send_post('/few/hold?op=c', 'x', \%key) } 1 .. 3;
ok(wait_waiting(6), 'two wait again');
app_release('c');
$_->read_response for @c;
is(join(' ', map { app_count($_) } qw(a b c)), '1 1 1', 'each ran once');

# none may wait

%key = ('Idempotency-Key' => new_key());
my $c = send_post('/none/hold?op=none', 'x', \%key);
app_wait_parked('none');
is(http_post('/none/hold?op=none', 'x', \%key)->error_code, 'TOO_MANY_WAITERS',
   'max 0');
app_release('none');
is($c->read_response->body, "run 1\n", 'the holder is answered');



=== TEST 7: too many waiters, counted over all workers
--- workers: 2
--- log_level: debug
--- http_config eval: $::spread
--- config
--- client
my @workers = by_worker();
my %key = ('Idempotency-Key' => new_key());
my $uri = '/few/hold?op=a';

$workers[0][0]->request('POST', $uri, 'x', \%key);
app_wait_parked('a');

$_->request('POST', $uri, 'x', \%key)
    for $workers[0][1], $workers[1][0], $workers[1][1];
ok(wait_waiting(3), 'three wait, in two workers');

for my $worker (@workers) {
    $worker->[2]->request('POST', $uri, 'x', \%key);
    is($worker->[2]->read_response->error_code, 'TOO_MANY_WAITERS',
       'a fourth is refused');
}

# one that leaves makes room, for whichever worker

$workers[1][0]->abort;
ok(wait_for(sub { error_log() =~ /client prematurely closed/ }),
   'one left');
$workers[0][2]->request('POST', $uri, 'x', \%key);
ok(wait_waiting(4), 'another may wait');

app_release('a');
is($_->read_response->body, "run 1\n", 'answered')
    for $workers[0][0], $workers[0][1], $workers[1][1], $workers[0][2];
is(app_count('a'), 1, 'ran once');



=== TEST 8: a released record lets one waiter run at a time
--- log_level: debug
--- config eval: $::app
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/hold?op=a&status=503';

my @c = map { send_post($uri, 'x', \%key) } 1 .. 4;
ok(wait_waiting(3), 'three wait');

for my $run (1 .. 4) {
    is(app_wait_parked('a'), 1, "run $run: one runs");
    is(app_count('a'), $run, "run $run: only one");
    app_release('a');
}

my @r = map { $_->read_response } @c;
is_deeply([ sort map { $_->body } @r ], [ map { "run $_\n" } 1 .. 4 ],
          'each got the answer to its own try');
is(scalar(grep { $_->header('X-Status') eq 'RELEASED' } @r), 4, 'released');

# none is left over

my $c = send_post($uri, 'x', \%key);
is(app_wait_parked('a'), 1, 'no lock is left');
app_release('a');
is($c->read_response->body, "run 5\n", 'runs');



=== TEST 9: the same over two workers
--- workers: 2
--- log_level: debug
--- http_config eval: $::spread
--- config
--- client
my @workers = by_worker();
my %key = ('Idempotency-Key' => new_key());
my $uri = '/hold?op=a&status=503';

$workers[0][0]->request('POST', $uri, 'x', \%key);
app_wait_parked('a');

my @c = map { @$_[1, 2] } @workers;
$_->request('POST', $uri, 'x', \%key) for @c;
ok(wait_waiting(4), 'four wait');

for my $run (1 .. 5) {
    my $start = seconds();
    is(app_wait_parked('a'), 1, "run $run: one runs");
    cmp_ok(seconds() - $start, '<', 0.6 + grace(),
           "run $run: woken, not polling");
    is(app_count('a'), $run, "run $run: only one");
    app_release('a');
}

my @r = map { $_->read_response } $workers[0][0], @c;
is_deeply([ sort map { $_->body } @r ], [ map { "run $_\n" } 1 .. 5 ],
          'each got the answer to its own try');



=== TEST 10: the first waiter to run answers those behind it
--- log_level: debug
--- config eval: $::app
--- client
# the holder breaks off, under a policy that lets the next one run

my %key = ('Idempotency-Key' => new_key());
my $uri = '/retry/close?hold=1&op=a';

my @c = map { send_post($uri, 'x', \%key) } 1 .. 3;
ok(wait_waiting(2), 'two wait');

for my $run (1 .. 3) {
    is(app_wait_parked('a'), 1, "run $run");
    app_release('a');
}

is(scalar(grep { $_->read_response->status == 502 } @c), 3, 'each ran');
is(app_count('a'), 3, 'one after the other');

# under the default they are told that the outcome is unknown, at once

%key = ('Idempotency-Key' => new_key());
@c = map { send_post('/close?hold=1&op=b', 'x', \%key) } 1 .. 4;
ok(wait_waiting(5), 'three wait');
app_wait_parked('b');

my $start = seconds();
app_release('b');
my @r = map { $_->read_response } @c;
cmp_ok(seconds() - $start, '<', 0.5 + grace(), 'woken, not polling');
is_deeply([ sort map { $_->status } @r ], [ 409, 409, 409, 502 ], 'refused');
is(scalar(grep { $_->error_code eq 'OUTCOME_UNKNOWN' } @r), 3, 'unknown');
is(app_count('b'), 1, 'ran once');



=== TEST 11: a waiter that leaves
--- h2
--- log_level: debug
--- config eval: $::app
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/few/hold?op=a';

my $holder = send_post($uri, 'x', \%key);
app_wait_parked('a');

my $n = 0;
my ($first, $second);

my $left = sub {
    my $how = shift;

    my $before = () = error_log() =~ /http close request/g;
    $how->();
    return wait_for(sub {
        my $now = () = error_log() =~ /http close request/g;
        return $now > $before;
    }, 5);
};

for my $how (qw(abort reset finish_sending)) {
    $first = send_post($uri, 'x', \%key);
    ok(wait_waiting(++$n), "$how: the first waits");
    $second = send_post($uri, 'x', \%key);
    ok(wait_waiting(++$n), "$how: the second waits");

    is(http_post($uri, 'x', \%key)->error_code, 'TOO_MANY_WAITERS',
       "$how: no room");
    ok($left->(sub { $first->$how }), "$how: the first leaves");
    ok($left->(sub { $second->$how }), "$how: the second leaves");
}

my $h2 = h2_connect();
my @id = map { $h2->request('POST', $uri, 'x', \%key) } 1 .. 2;
ok(wait_waiting($n += 2), 'HTTP/2: two wait');
ok($left->(sub { $h2->rst($id[0]) }), 'HTTP/2: a stream is reset');
ok($h2->ping, 'HTTP/2: the connection lives');

$second = send_post($uri, 'x', \%key);
ok(wait_waiting(++$n), 'there is room again');

my $other = h2_connect();
ok($left->(sub { $second->abort }), 'it leaves');
$other->request('POST', $uri, 'x', \%key);
ok(wait_waiting(++$n), 'HTTP/2: one on another connection');
ok($left->(sub { $other->abort }), 'HTTP/2: which is closed');

$second = send_post($uri, 'x', \%key);
ok(wait_waiting(++$n), 'there is room again');

is(app_count('a'), 1, 'one ran all the time');
is(app_closed('a'), 0, 'undisturbed');

my $start = seconds();
app_release('a');
is($holder->read_response->body, "run 1\n", 'the holder is answered');
is($second->read_response->body, "run 1\n", 'who stayed is answered');
is($h2->response($id[1])->body, "run 1\n", 'who stayed, over HTTP/2');
cmp_ok(seconds() - $start, '<', 0.5 + grace(), 'at once');
is(app_count('a'), 1, 'ran once');



=== TEST 12: a waiter leaves, and the holder fails
--- log_level: debug
--- config eval: $::app
--- client
# whoever came first would have run: now it is the next one

my %key = ('Idempotency-Key' => new_key());
my $uri = '/hold?op=a&status=503';

my $holder = send_post($uri, 'x', \%key);
app_wait_parked('a');
my $first = send_post($uri, 'x', \%key);
ok(wait_waiting(1), 'the first waits');
my $second = send_post($uri, 'x', \%key);
ok(wait_waiting(2), 'the second waits');

# both at once: whether it is gone by then or not, the second gets its turn

$first->reset;
app_release('a');
is($holder->read_response->status, 503, 'the holder failed');

my $runs = app_wait('a', 2);
is(app_release('a'), 1, 'one runs');

if (!$second->read_response(0.5)) {
    app_release('a');
    ok($second->read_response, 'after the one that is gone');
} else {
    pass('the second ran');
}



=== TEST 13: two hundred waiters
--- log_level: debug
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_max_waiters  300;
        idempotency_wait         30s;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/size?n=20000&hold=1&op=a';

my @c = map { send_post($uri, 'x', \%key) } 1 .. 201;
ok(wait_waiting(200), 'two hundred wait');
app_wait_parked('a');

is(http_post($uri, 'y', \%key)->error_code, 'IDEMPOTENCY_CONFLICT',
   'another body is told at once');

my $start = seconds();
app_release('a');
my @r = map { $_->read_response } @c;
cmp_ok(seconds() - $start, '<', 5, 'soon');
my $body = $r[0]->body;
is(length $body, 20000, 'a body');
is(scalar(grep { $_ && $_->body eq $body } @r), 201, 'all have it');
is(app_count('a'), 1, 'ran once');



=== TEST 14: duplicates on one connection
--- config eval: $::app
--- client
# pipelined: the second is looked at when the first is answered

my %key = ('Idempotency-Key' => new_key());
my $c = connect_client();

$c->request('POST', '/hold?op=a', 'x', \%key) for 1 .. 3;
app_wait_parked('a');
app_release('a');

my @r = map { $c->read_response } 1 .. 3;
is(scalar(grep { $_ && $_->body eq "run 1\n" } @r), 3, 'all answered');
is_deeply([ map { $_->header('X-Status') } @r ],
          [ qw(EXECUTED REPLAYED REPLAYED) ], 'in order');
is(app_count('a'), 1, 'ran once');

# a waiter with more behind it

%key = ('Idempotency-Key' => new_key());
my $holder = send_post('/hold?op=b', 'x', \%key);
app_wait_parked('b');

$c->request('POST', '/hold?op=b', 'x', \%key) for 1 .. 2;
is($c->read_response(0.1), undef, 'waits');
app_release('b');
is($c->read_response->body, "run 1\n", 'answered') for 1 .. 2;
is($holder->read_response->body, "run 1\n", 'so is the holder');
is(app_count('b'), 1, 'ran once');



=== TEST 15: who waited for a response gets it, however short its TTL
--- config eval: $::app
--- log_level: debug
--- client
my %key = ('Idempotency-Key' => new_key());
my @c = send_post('/brief/hold?op=a', 'x', \%key);
app_wait_parked('a');
push @c, send_post('/brief/hold?op=a', 'x', \%key) for 1 .. 4;
ok(wait_waiting(4), 'four wait');
app_release('a');

my @r = map { $_->read_response(5) } @c;
is(scalar(grep { $_ && $_->body eq "run 1\n" } @r), 5, 'all have the response');
is(app_count('a'), 1, 'which was made once');

# who comes later did not wait for it: more than the TTL of 1 ms

sleep 0.01;
my $c = send_post('/brief/hold?op=a', 'x', \%key);
is(app_wait_parked('a'), 1, 'the next one runs');
app_release('a');
is($c->read_response->body, "run 2\n", 'and has its own');
is($c->read_response(0.1), undef, 'nothing else');



=== TEST 16: a waiter that leaves has no post_action
--- log_level: debug
--- config
    location / {
        idempotency  $TEST_STORE;
        post_action  /after;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /after {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/ok?op=after;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $holder = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');

my @c = map { send_post('/hold?op=a', 'x', \%key) } 1 .. 3;
ok(wait_waiting(3), 'three wait');

my $closed = sub { my @n = error_log() =~ /http close request/g; @n };
my $before = $closed->();

$_->abort for @c[0, 1];
ok(wait_for(sub { $closed->() >= $before + 2 }, 5), 'two leave');
is(app_count('after'), 0, 'they did not run');

app_release('a');
is($_->read_response(5)->body, "run 1\n", 'answered') for $holder, $c[2];

is(http_post('/ok?op=b', 'x', { 'Idempotency-Key' => new_key() })->body,
   "run 1\n", 'the next one runs');
is(app_wait('after', 2), 2, 'the actions of those that ran');
is(app_count('after'), 2, 'and no other');
is(app_count('a'), 1, 'ran once');

# one that is to wait and then runs has its own

%key = ('Idempotency-Key' => new_key());

$holder = send_post('/hold?op=c&status=503', 'x', \%key);
app_wait_parked('c');
my $waiter = send_post('/hold?op=c&status=503', 'x', \%key);
ok(wait_waiting(4), 'one waits');
app_release('c');
is($holder->read_response(5)->status, 503, 'released');
is(app_wait_parked('c'), 1, 'the waiter runs');
app_release('c');
is($waiter->read_response(5)->status, 503, 'through');
is(app_wait('after', 4), 4, 'an action for each of the two');
