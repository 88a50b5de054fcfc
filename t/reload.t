# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Reloads and exits in order: what is in flight is finished and stored by the
# old worker, who waits in it is answered, and what the new workers are asked
# meanwhile waits for it or gets it.  Records outlive reloads.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

use Time::HiRes ();

our $config = <<'_EOC_';
    lingering_close   off;
    idempotency       $TEST_STORE;
    idempotency_wait  20s;
    add_header        X-Pid  $pid  always;

    location / {
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub wait_waiting
{
    my $n = shift;

    return wait_for(sub {
        $n <= (() = error_log() =~ /idempotency: begin -> wait: /g)
    }, 10);
}


# the old workers have left, and did not take a minute for it

sub wait_workers
{
    my $n = shift;

    return wait_for(sub { my @all = nginx_workers('all'); @all == $n }, 30);
}

sub old_are_gone
{
    my @now = nginx_workers();

    return wait_workers(scalar @now);
}

run_tests();

__DATA__

=== TEST 1: a request in flight, and its retry to a new worker
--- h2
--- log_level: debug
--- config eval: $::config
--- client
my ($old) = nginx_workers();

my %key = ('Idempotency-Key' => new_key());
my %other = ('idempotency-key' => new_key());

my $c = send_post('/hold?op=a', 'x', \%key);
my $h2 = h2_connect();
my $id = $h2->request('POST', '/hold?op=b', 'x', \%other);
app_wait_parked($_) for qw(a b);

ok(nginx_reload(), 'reload');
my ($new) = nginx_workers();
isnt($new, $old, 'a new worker');

my $retry = send_post('/hold?op=a', 'x', \%key);
my $retry2 = send_post('/hold?op=b', 'x', \%other);
ok(wait_waiting(2), 'retries wait in the new worker');

my $start = Time::HiRes::time();
app_release($_) for qw(a b);
my $r = $retry->read_response;
is($r->body, "run 1\n", 'the retry is answered');
is($r->header('X-Pid'), $new, 'by the new worker');
is($r->header('Idempotent-Replayed'), 'true', 'with a replay');
is($retry2->read_response->body, "run 1\n", 'so is the other');
my $took = Time::HiRes::time() - $start;

$r = $c->read_response;
is($r->body, "run 1\n", 'the first is answered');
is($r->header('X-Pid'), $old, 'by the old worker');
is($h2->response($id)->body, "run 1\n", 'also over HTTP/2');

$start = Time::HiRes::time();
is(http_post('/hold?op=a', 'x', \%key)->body, "run 1\n", 'and replayed');
my $replay = Time::HiRes::time() - $start;

# a busy machine is slow in all things

cmp_ok($took, '<', 0.6 + 10 * $replay + grace(), 'woken, not polling');
is(app_count($_), 1, "$_: ran once") for qw(a b);
ok(old_are_gone(), 'the old worker is gone');



=== TEST 2: waiters in an old worker
--- log_level: debug
--- config eval: $::config
--- client
my ($old) = nginx_workers();
my %key = ('Idempotency-Key' => new_key());

my @c = map { send_post('/hold?op=a', 'x', \%key) } 1 .. 4;
ok(wait_waiting(3), 'three wait');
app_wait_parked('a');

ok(nginx_reload(), 'reload');
is($_->read_response(0.02), undef, 'still there') for @c;
ok(!$_->closed(0), 'not dropped') for @c;

# longer than a look by themselves would take: nothing but the deadline
# keeps that worker

select undef, undef, undef, 1.2;
is(scalar(my @all = nginx_workers('all')), 2, 'the old worker is there');

app_release('a');
my @r = map { $_->read_response } @c;
is(scalar(grep { $_ && $_->body eq "run 1\n" } @r), 4, 'all are answered');
is(scalar(grep { $_ && $_->header('X-Pid') == $old } @r), 4,
   'by the old worker');
is(app_count('a'), 1, 'ran once');
ok(old_are_gone(), 'the old worker is gone');



=== TEST 3: waiters in old and new workers, holders in either
--- log_level: debug
--- config eval: $::config
--- client
my %key = ('Idempotency-Key' => new_key());
my $uri = '/hold?op=a&status=503';

my @c = map { send_post($uri, 'x', \%key) } 1 .. 3;
ok(wait_waiting(2), 'two wait');
app_wait_parked('a');

ok(nginx_reload(), 'reload');
push @c, map { send_post($uri, 'x', \%key) } 1 .. 2;
ok(wait_waiting(4), 'and two in the new worker');

ok(nginx_reload(), 'reload once more');
push @c, map { send_post($uri, 'x', \%key) } 1 .. 2;
ok(wait_waiting(6), 'and two in a third one');

for my $run (1 .. 7) {
    is(app_wait_parked('a'), 1, "run $run: one runs");
    is(app_count('a'), $run, "run $run: only one");
    app_release('a');
}

my @r = map { $_->read_response } @c;
is_deeply([ sort map { $_->body } @r ], [ map { "run $_\n" } 1 .. 7 ],
          'each is answered');
is(scalar(keys %{ { map { $_->header('X-Pid') => 1 } @r } }), 3,
   'by three workers');
ok(old_are_gone(), 'the old workers are gone');



=== TEST 4: the worker of a waiter leaves before the holder's
--- log_level: debug
--- config
    location / {
        lingering_close   off;
        idempotency       $TEST_STORE;
        idempotency_wait  500ms;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');
ok(nginx_reload(), 'reload');

my $waiter = send_post('/hold?op=a', 'x', \%key);
ok(wait_waiting(1), 'one waits in the new worker');
ok(nginx_reload(), 'reload');

is($waiter->read_response->error_code, 'LOCK_TIMEOUT', 'it waited in vain');
ok(wait_workers(2), 'its worker is gone');

app_release('a');
is($c->read_response->body, "run 1\n", 'the first is answered');
is(http_post('/hold?op=a', 'x', \%key)->body, "run 1\n", 'and replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 5: records outlive reloads
--- workers: 2
--- config eval: $::config
--- client
my %key = ('Idempotency-Key' => new_key());
my %lost = ('Idempotency-Key' => new_key());

my $first = http_post('/headers?op=a', 'x', \%key);
is($first->status, 201, 'ran');
is(http_post('/close?op=b', 'x', \%lost)->status, 502, 'unknown');

my $c = send_post('/hold?op=c', 'x', { 'Idempotency-Key' => 'c' });
app_wait_parked('c');

for my $n (1 .. 4) {
    edit_config(sub { s/idempotency_wait \s+ \d+s/idempotency_wait 1${n}s/x });
    ok(nginx_reload(), "reload $n");

    my $r = http_post('/headers?op=a', 'x', \%key);
    is($r->body, $first->body, "reload $n: replayed");
    is($r->header('Idempotent-Replayed'), 'true', "reload $n: says so");
    is(http_post('/headers?op=a', 'y', \%key)->error_code,
       'IDEMPOTENCY_CONFLICT', "reload $n: conflict");
    is(http_post('/close?op=b', 'x', \%lost)->error_code, 'OUTCOME_UNKNOWN',
       "reload $n: unknown");
    is(http_post('/hold?op=c', 'y', { 'Idempotency-Key' => 'c' })->error_code,
       'IDEMPOTENCY_CONFLICT', "reload $n: in progress");
}

app_release('c');
is($c->read_response->body, "run 1\n", 'the oldest worker answered');
is(http_post('/hold?op=c', 'x', { 'Idempotency-Key' => 'c' })->body,
   "run 1\n", 'and stored');
is(app_count($_), 1, "$_: ran once") for qw(a b c);
ok(old_are_gone(), 'the old workers are gone');



=== TEST 6: a refused reload changes nothing
--- log_level: debug
--- config eval: $::config
--- provokes: unknown directive
--- client
my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');
edit_config(sub { s/location/bad_directive; location/ });
ok(!nginx_reload(), 'refused');

my $waiter = send_post('/hold?op=a', 'x', \%key);
ok(wait_waiting(1), 'a retry waits');
app_release('a');
is($c->read_response->body, "run 1\n", 'answered');
is($waiter->read_response->body, "run 1\n", 'so is the retry');
is(app_count('a'), 1, 'ran once');



=== TEST 7: another file of the module
--- log_level: debug
--- config eval: $::config
--- client
my $file;
edit_config(sub { ($file) = /load_module\s+(\S*idempotency\S*);/ });

my $dir = "$ENV{TEST_NGINX_SERVROOT}/html";

my %key = ('Idempotency-Key' => new_key());
is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran');

my $c = send_post('/hold?op=b', 'x', { 'Idempotency-Key' => 'b' });
app_wait_parked('b');

SKIP: {
    Test::More::skip('the module is built in', 1) if !$file;

    # Two elsewhere, then one in place of the last, as an upgrade of a package
    # does.  A word in them tells whose code is at work: of a file elsewhere its
    # own, though that of the one before is still loaded.  One in its place is
    # not loaded while the other is: the dynamic linker goes by the name.

    for my $n (1 .. 3) {
        my $name = "$dir/module" . ($n == 3 ? 2 : $n) . '.so';
        my $so = do { local (@ARGV, $/) = $file; <> };

        $so =~ s/Idempotency-Key is already used/Idempotency-Key is already #$n##/
            or die "$file has another text now\n";

        open my $out, '>:raw', "$dir/new.so" or die "$dir/new.so: $!\n";
        print $out $so;
        close $out or die "$dir/new.so: $!\n";
        rename "$dir/new.so", $name or die "$name: $!\n";
        edit_config(sub { s/load_module\s+\S*(?:idempotency|html)\S*;
                           /load_module $name;/x });

        ok(nginx_reload(), "file $n: reload");
        my $r = http_post('/ok?op=a', 'x', \%key);
        is($r->body, "run 1\n", "file $n: the record is there");
        is($r->header('Idempotent-Replayed'), 'true', "file $n: a replay");

        $r = http_post('/ok?op=a', 'y', \%key);
        is($r->json->{title}, "Idempotency-Key is already #$n##",
           "file $n: is at work") if $n < 3;
        is($r->error_code, 'IDEMPOTENCY_CONFLICT', "file $n: a conflict");
    }
}

my $retry = send_post('/hold?op=b', 'x', { 'Idempotency-Key' => 'b' });
ok(wait_waiting(1), 'a retry waits for what the old file runs');
app_release('b');
is($c->read_response->body, "run 1\n", 'answered');
is($retry->read_response->body, "run 1\n", 'so is the retry');
is(app_count($_), 1, "$_: ran once") for qw(a b);
ok(old_are_gone(), 'the old workers are gone');



=== TEST 8: quit with requests in flight
--- workers: 2
--- log_level: debug
--- config eval: $::config
--- client
my %key = ('Idempotency-Key' => new_key());
my $master = nginx_master();

my @c = map { send_post('/hold?op=a', 'x', \%key) } 1 .. 3;
ok(wait_waiting(2), 'two wait');
app_wait_parked('a');

kill QUIT => $master;
ok(wait_for(sub { error_log() =~ /gracefully shutting down/ }), 'told to quit');
select undef, undef, undef, 0.3;

app_release('a');
my @r = map { $_->read_response } @c;
is(scalar(grep { $_ && $_->body eq "run 1\n" } @r), 3, 'all are answered');
ok(wait_for(sub { !kill 0, $master or IdempotencyTest::is_alive($master) == 0 },
            8), 'nginx is gone');
is(app_count('a'), 1, 'ran once');



=== TEST 9: a request that is cut off by worker_shutdown_timeout
--- main_config
    worker_shutdown_timeout 300ms;
--- log_level: debug
--- config eval: $::config
--- client
# it may have run: no lock is left that lasts, and no second run at once

my %key = ('Idempotency-Key' => new_key());

my $c = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');
my $waiter = send_post('/hold?op=a', 'x', \%key);
ok(wait_waiting(1), 'a retry waits');
ok(nginx_reload(), 'reload');

my $r = http_post('/hold?op=a', 'x', \%key);
is($r->error_code, 'OUTCOME_UNKNOWN', 'unknown');
ok($c->closed, 'the client was cut off');
ok($waiter->closed, 'so was a waiter');
is(app_count('a'), 1, 'ran once');
ok(old_are_gone(), 'the old worker is gone');



=== TEST 10: reloads under load
--- workers: 2
--- config eval: $::config
--- client
my ($n, $reloads, %bad) = (0, 0);

# four operations at a time, each twice; never waiting for a reload to be over

for my $round (1 .. 60) {
    my @c;

    if ($round % 6 == 0) {
        kill HUP => nginx_master();
        $reloads++;
    }

    for (1 .. 4) {
        my $op = 'op' . ++$n;
        my %h = ('Idempotency-Key' => $op, Connection => 'close');
        my $uri = "/slow?ms=20&op=$op";

        push @c, map { [ $op, send_post($uri, 'x', \%h) ] } 1 .. 2;
    }

    for my $pair (@c) {
        my ($op, $c) = @$pair;
        my $r = $c->read_response;
        $bad{$r ? $r->status . $r->body : 'none'}++
            if !$r || $r->body ne "run 1\n";
    }
}

is_deeply(\%bad, {}, 'all are answered');
is($reloads, 10, 'ten reloads');

my @wrong = grep { app_count("op$_") != 1 } 1 .. $n;
is("@wrong", '', 'each ran once');
is(http_post('/slow?ms=20&op=op1', 'x', { 'Idempotency-Key' => 'op1' })->body,
   "run 1\n", 'the first record is there');
ok(old_are_gone(), 'the old workers are gone');
