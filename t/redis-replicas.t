# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# replicas: a commit counts once so many replicas have it.  With enough of
# them, with too few, with one that is frozen, and what waits meanwhile.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our ($master, @replicas);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $master = start_redis('--repl-diskless-sync-delay', 0,
                          '--repl-ping-replica-period', 1);
    $ENV{TEST_NGINX_MASTER_PORT} = $master->{port};
}

# so many replicas, with the master's data

sub with_replicas
{
    my $n = shift;

    $_->resume for grep { $_->{paused} } @replicas;
    $_->stop for splice @replicas, $n;

    while (@replicas < $n) {
        push @replicas, start_redis('--replicaof',
                                    '127.0.0.1', $master->{port});
    }

    # they answer, too: a write, and WAIT on its connection

    my $c = IO::Socket::INET->new("127.0.0.1:$master->{port}") or die $!;

    print $c "SET ready 1\r\nWAIT $n 20000\r\n";
    IdempotencyTest::Redis::read_reply($c);
    IdempotencyTest::Redis::read_reply($c) >= $n
        or die "the replicas are not there\n";

    $master->command('FLUSHALL');
    $master->reset_calls;
}

sub missed
{
    my ($n) = http_get('/stats', { Accept => 'text/plain' })->body
        =~ /^nginx_idempotency_replicas_missed_total\{[^}]*\} (\d+)/m;
    return $n;
}

# connections of the master that wait: a WAIT is not counted before it ends

sub waiting
{
    my ($n) = $master->command('INFO', 'clients') =~ /^blocked_clients:(\d+)/m;
    return $n;
}

sub seconds
{
    my $code = shift;

    my $start = Time::HiRes::time();
    $code->();
    return Time::HiRes::time() - $start;
}

our $server = <<'_EOC_';
    location = /stats { idempotency_stats prometheus; }
    location / {
        idempotency  r;
        add_header   X-Record $idempotency_record always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

our $patient = <<'_EOC_';
    idempotency_store r redis {
        server    127.0.0.1:$TEST_NGINX_MASTER_PORT;
        timeout   3s;
        replicas  1 timeout=20s;
    }
_EOC_

our $hasty = $patient =~ s/timeout=20s/timeout=300ms/r;

run_tests();

__DATA__

=== TEST 1: enough replicas
--- store: redis
--- http_config eval: $::hasty
--- config eval: $::server
--- client
with_replicas(1);

my @keys = map { new_key() } 1 .. 20;

for my $key (@keys) {
    is(http_post("/ok?op=$key", 'x', { 'Idempotency-Key' => $key })->body,
       "run 1\n", 'ran');

    # it is there before the answer is
    cmp_ok(scalar(grep { $::replicas[0]->record($_)->{s} == 2 }
                       $::replicas[0]->keys('idempotency:*')),
           '==', ++(our $there), 'the replica has it');
}

is(http_post("/ok?op=$_", 'x', { 'Idempotency-Key' => $_ })
   ->header('Idempotent-Replayed'), 'true', 'replayed') for @keys;

is(missed(), 0, 'none was missed');
is($::master->calls->{wait}, 20, 'one WAIT for a commit, none for a replay');
error_log_unlike(qr/replicas/, 'nothing to say');



=== TEST 2: no replica at all: the response goes out, and it is told
--- store: redis
--- http_config eval: $::hasty
--- config eval: $::server
--- client
with_replicas(0);

my %key = ('Idempotency-Key' => new_key());
my $r;

my $took = seconds(sub { $r = http_post('/ok?op=a', 'x', \%key) });

is($r->body, "run 1\n", 'answered');
cmp_ok($took, '>', 0.25, 'after its time');
is(missed(), 1, 'counted');

my $record = substr $r->header('X-Record'), 0, 16;
error_log_like(qr/\[warn\].* a commit is on 0 of 1 replicas of 127\.0\.0\.1:\d+, after \d{3} ms;.* record $record/,
               'logged, with how many had it');

is(http_post('/ok?op=a', 'x', \%key)->header('Idempotent-Replayed'), 'true',
   'it is stored all the same');
is(app_count('a'), 1, 'ran once');
is(missed(), 1, 'a replay waits for nobody');



=== TEST 3: two are wanted, one is there
--- store: redis
--- http_config eval: $::hasty =~ s/replicas  1/replicas 2/r
--- config eval: $::server
--- client
with_replicas(1);

is(http_post('/ok?op=a', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'answered');
error_log_like(qr/a commit is on 1 of 2 replicas/, 'one had it');
is(missed(), 1, 'counted');

with_replicas(2);

is(http_post('/ok?op=b', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'answered');
is(missed(), 1, 'two have it');



=== TEST 4: a frozen replica holds up commits, and nothing else
--- store: redis
--- http_config eval: $::patient
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);

my %done = ('Idempotency-Key' => new_key());
is(http_post('/ok?op=done', 'x', \%done)->status, 200, 'while all is well');

$::replicas[0]->pause;

my %held = ('Idempotency-Key' => new_key());
my $held = send_post('/ok?op=held', 'x', \%held);
is(app_wait('held'), 1, 'it runs');
ok(wait_for(sub { waiting() == 1 }), 'its commit waits');

# what does not wait for replicas

cmp_ok(seconds(sub {
    is(http_post('/ok?op=done', 'x', \%done)->header('Idempotent-Replayed'),
       'true', 'a replay');
    is(http_post('/ok?op=done', 'y', \%done)->status, 409, 'a conflict');
    is(http_post('/status/503?op=r', 'x',
                 { 'Idempotency-Key' => new_key() })->status, 503,
       'a release');
    is(http_post('/ok?op=held', 'x', \%held)->body, "run 1\n",
       'a replay of what waits');
}), '<', 3, 'at once');

ok(!$held->read_response(0.5), 'the holder waits');

$::replicas[0]->resume;
my $r = $held->read_response(20);
is($r && $r->body, "run 1\n", 'until the replica is back');
is(missed(), 0, 'which then has it');
is(app_count('held'), 1, 'ran once');



=== TEST 5: commits that come while one waits go together
--- store: redis
--- http_config eval: $::patient
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);

$::replicas[0]->pause;

my @c = map { send_post("/ok?op=m$_", 'x', { 'Idempotency-Key' => new_key() }) }
        1 .. 60;
ok(app_wait("m$_"), 'runs') for 1 .. 60;
ok(wait_for(sub { waiting() == 1 }), 'the first waits');
select undef, undef, undef, 0.3;

$::replicas[0]->resume;
is(scalar(grep { my $r = $_->read_response(20); $r && $r->status == 200 } @c),
   60, 'all are answered');

my $waits = $::master->calls->{wait};
cmp_ok($waits, '<=', 20, "$waits times WAIT for 60 commits");
is(missed(), 0, 'the replica has all');



=== TEST 6: a commit whose WAIT broke off is asked again, and waits again
--- store: redis
--- http_config eval: $::patient
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);
$::replicas[0]->pause;

my $c = send_post('/ok?op=b', 'x', { 'Idempotency-Key' => new_key() });
ok(wait_for(sub { waiting() == 1 }), 'its commit waits');

# only those that wait: it is committed, and its WAIT is gone
my @waiting = map { /\bid=(\d+) .*flags=\w*b.*cmd=wait/ ? $1 : () }
              split /\n/, $::master->command('CLIENT', 'LIST');
is(scalar @waiting, 1, 'on one connection');
my $before = $::master->calls->{pexpire} || 0;
$::master->command('CLIENT', 'KILL', 'ID', $waiting[0]);

ok(wait_for(sub { waiting() == 1 && ($::master->calls->{pexpire} || 0) > $before }),
   'it waits again');
error_log_like(qr/lost the connection/, 'on a new connection');
ok(!$c->read_response(0.5), 'and is not answered before');

$::replicas[0]->resume;
my $r = $c->read_response(20);
is($r && $r->body, "run 1\n", 'the replica has it');
is(missed(), 0, 'none was missed');



=== TEST 7: the master does not answer: the commit failed, and is kept
--- store: redis
--- http_config eval: $::patient =~ s/3s/500ms/r =~ s/20s/400ms/r
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);
$::replicas[0]->pause;

my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/ok?op=f', 'x', \%key);
ok(wait_for(sub { waiting() == 1 }), 'its commit waits');
$::master->pause;

my $r = $c->read_response(20);
is($r && $r->body, "run 1\n", 'answered');

if (error_log() =~ /is on \d of 1 replicas/) {
    diag('the master was frozen after WAIT had ended');
} else {
    error_log_like(qr/commit in store "r" failed: .*kept here/, 'kept');
}

$::replicas[0]->resume;
$::master->resume;
is(http_post('/ok?op=f', 'x', \%key)->body, "run 1\n", 'replayed');
is(app_count('f'), 1, 'ran once');



=== TEST 8: 0 is off
--- store: redis
--- http_config eval: $::patient =~ s/replicas  1 timeout=20s/replicas 0/r
--- config eval: $::server
--- client
with_replicas(0);
is(http_post('/ok?op=a', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'answered');
is($::master->calls->{wait}, undef, 'without WAIT');



=== TEST 9: a user that may not WAIT is told
--- store: redis
--- http_config eval: $::hasty =~ s/replicas/user u; password p;\n replicas/r
--- config eval: $::server
--- client
with_replicas(0);
$::master->set_user('u', 'on', '>p', 'allkeys', 'allchannels', '+@all',
                    '-wait');
is(http_post('/ok?op=a', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'answered');
error_log_like(qr/\[warn\].*WAIT is refused: NOPERM/, 'says why');
is(missed(), 1, 'counted');



=== TEST 10: the default time
--- store: redis
--- http_config eval: $::patient =~ s/ timeout=20s//r
--- config eval: $::server
--- client
with_replicas(0);
cmp_ok(seconds(sub { http_post('/ok?op=a', 'x',
                               { 'Idempotency-Key' => new_key() }) }),
       '>', 0.4, 'half a second');
is(missed(), 1, 'counted');



=== TEST 11: wrong number
--- http_config
    idempotency_store r redis { server 127.0.0.1:1; replicas two; }
--- must_die
--- error_log eval
qr/invalid number of replicas "two" in "replicas" directive: it is from 0 \(off\) to 100 in .*nginx\.conf:\d+/



=== TEST 12: wrong time
--- http_config
    idempotency_store r redis { server 127.0.0.1:1; replicas 1 timeout=0; }
--- must_die
--- error_log eval
qr/invalid value "timeout=0" in "replicas" directive: it is a time from 1ms to 1h, for example timeout=500ms in .*nginx\.conf:\d+/



=== TEST 13: wrong parameter
--- http_config
    idempotency_store r redis { server 127.0.0.1:1; replicas 1 time=1s; }
--- must_die
--- error_log eval
qr/invalid parameter "time=1s" in "replicas" directive: it takes a number and a time, for example "replicas 1 timeout=500ms" in .*nginx\.conf:\d+/



=== TEST 14: twice
--- http_config
    idempotency_store r redis { server 127.0.0.1:1; replicas 1; replicas 2; }
--- must_die
--- error_log eval
qr/"replicas" directive is duplicate in .*nginx\.conf:\d+/



=== TEST 15: a master that takes no writes without replicas
--- store: redis
--- http_config eval: $::hasty
--- config eval: $::server
--- client
with_replicas(0);

my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');

$::master->command('CONFIG', 'SET', 'min-replicas-to-write', 1);

is(http_post('/ok?op=b', 'x', { 'Idempotency-Key' => new_key() })->status, 503,
   'nothing begins');
is(app_count('b'), 0, 'nor runs');

app_release('a');
is($c->read_response->body, "run 1\n", 'what ran is answered');
error_log_like(qr/commit in store "r" failed: .*NOREPLICAS.* kept here/,
               'and kept');

$::master->command('CONFIG', 'SET', 'min-replicas-to-write', 0);
error_log_like(qr/a commit that was kept is in store "r"/,
               'until it can be stored', 15);
is(http_post('/hold?op=a', 'x', \%key)->body, "run 1\n", 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 16: waiters elsewhere need not wait for the replicas
--- store: redis
--- http_config eval: $::patient
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);

my $other = start_host(free_port());
my $quickest = 9;

for my $n (0 .. 2) {
    my %key = ('Idempotency-Key' => new_key());
    my $c = send_post("/hold?op=w$n", 'x', \%key);
    app_wait_parked("w$n");

    my $w = send_post("/hold?op=w$n", 'x', \%key, port => $other->{port});
    ok(wait_for(sub {
        grep { $::master->record($_)->{q} && $::master->record($_)->{s} == 1 }
             $::master->keys('idempotency:*') }), 'one waits');

    $::replicas[0]->pause;
    my $took = seconds(sub {
        app_release("w$n");
        is($w->read_response->body, "run 1\n", 'the waiter');
    });
    $quickest = $took if $took < $quickest;

    ok(!$c->read_response(0.2), 'the holder waits for the replica');
    $::replicas[0]->resume;
    is($c->read_response(20)->body, "run 1\n", 'and is answered');
    is(app_count("w$n"), 1, 'ran once');
}

# it looks by itself after three quarters of a second at least
cmp_ok($quickest, '<', 0.6 + grace(), 'woken');
ok($other->stop, 'the other leaves');



=== TEST 17: a commit that comes while another waits is sent at once
--- store: redis
--- http_config eval: $::patient
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);
$::replicas[0]->pause;

my (@c, @ids);
my $done = sub { scalar grep { $::master->record($_)->{s} == 2 }
                 $::master->keys('idempotency:*') };

for my $n (1 .. 5) {
    push @c, send_post("/ok?op=s$n", 'x', { 'Idempotency-Key' => new_key() });
    ok(wait_for(sub { $done->() == $n }), "$n are on the master");
}

is(waiting(), 1, 'one connection waits');
ok(!$c[$_]->read_response(0.1), 'not answered') for 0 .. 4;

# there are replicas, but the connection that waits for them breaks

my ($id) = map { /\bid=(\d+) .*flags=\w*b.*cmd=wait/ ? $1 : () }
           split /\n/, $::master->command('CLIENT', 'LIST');
$::master->command('CLIENT', 'KILL', 'ID', $id);
ok(!$c[$_]->read_response(0.2), 'still not') for 0 .. 4;

$::replicas[0]->resume;

for my $n (1 .. 5) {
    my $r = $c[$n - 1]->read_response(20);
    is($r && $r->body, "run 1\n", 'answered when the replica has it');
}

is(missed(), 0, 'none was missed');



=== TEST 18: many of them, and the replica stays away
--- store: redis
--- http_config eval: $::hasty =~ s/300ms/700ms/r
--- config eval: $::server
--- client_timeout: 90
--- client
with_replicas(1);
$::replicas[0]->pause;

my @c;

for my $n (1 .. 60) {
    push @c, send_post("/ok?op=m$n", 'x', { 'Idempotency-Key' => new_key() });
    select undef, undef, undef, 0.02;
}

is(scalar(grep { my $r = $_->read_response(20); $r && $r->status == 200 } @c),
   60, 'all are answered');
is(missed(), 60, 'and told to be on the master only');
error_log_unlike(qr/commit in store "r" failed/, 'no commit failed');
my $waits = $::master->calls->{wait};
cmp_ok($waits, '<=', 8, "$waits times WAIT");



=== TEST 19: an unknown outcome that replicas lack ends with its lease
It is kept here until they have it; the same request may run again meanwhile, and
another one is a conflict.
--- store: redis
--- http_config eval: $::hasty
--- config eval: "idempotency_lease 2s;\n" . $::server
--- client_timeout: 60
--- client
with_replicas(0);
my $key = { 'Idempotency-Key' => new_key() };

is(http_post('/status/502?op=u', 'x', $key)->status, 502, 'unknown');
is(http_post('/status/502?op=u', 'x', $key)->error_code, 'OUTCOME_UNKNOWN',
   'a retry is told so');

select undef, undef, undef, 2.3;
is(http_post('/status/502?op=u', 'y', $key)->error_code,
   'IDEMPOTENCY_CONFLICT', 'another request does not run');
is(http_post('/status/502?op=u', 'x', $key)->status, 502, 'the same does');
is(app_count('u'), 2, 'once more');

is(http_post('/status/502?op=u', 'x', $key)->error_code, 'OUTCOME_UNKNOWN',
   'and is unknown again');
is(app_count('u'), 2, 'for a lease');
