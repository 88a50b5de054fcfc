# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A master that sentinels name: it is found, followed through failovers, under
# load and with operations under way, and left when it comes back as another's
# replica.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $set;

# each block has its own: a failover leaves sentinels busy for a while

sub fresh
{
    my %o = @_;

    $set->stop if $set;
    $set = start_sentinels(%o);

    edit_config(sub { my $list = join ' ', $set->servers;
                      s/127\.0\.0\.1:1 master/$list master/ });
    nginx_reload() or die "no reload\n";
}

our $http = <<'_EOC_';
    idempotency_store s redis {
        sentinel  127.0.0.1:1 master=main;
        replicas  1 timeout=1s;
    }
_EOC_

our $server = <<'_EOC_';
    idempotency_lease  3s;
    idempotency_wait   5s;
    add_header         X-Record $idempotency_record always;
    location / {
        idempotency  s;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub post
{
    my ($uri, $key, %o) = @_;
    return http_post($uri, 'x', { 'Idempotency-Key' => $key }, %o);
}

run_tests();

__DATA__

=== TEST 1: the master is found, also if most sentinels are away
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client
fresh();
my ($one, $two) = $::set->sentinels;
my $key = new_key();

is(post("/ok?op=$key", $key)->body, "run 1\n", 'ran');
is(scalar(my @k = $::set->master->keys('idempotency:*')), 1,
   'the master has it');
is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
   'replayed');

$_->kill_it for $one, $two;
nginx_reload() or die "no reload\n";
is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
   'one sentinel is enough to find it');

# and without any it goes on with the master it has
($::set->sentinels)[2]->kill_it;
is(post("/ok?op=$key", $key)->header('Idempotent-Replayed'), 'true',
   'and none to go on');



=== TEST 2: no sentinel answers
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client
my $r = post('/ok?op=none', new_key());
is($r->status, 503, 'refused');
is($r->error_code, 'STORE_UNAVAILABLE', 'says why');
is(app_count('none'), 0, 'did not run');
error_log_like(qr/\[error\].*store "s": nobody tells which server is the master/,
               'logged');



=== TEST 3: the master is killed
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 120
--- client
fresh();
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my $old = $::set->master;
my $since = Time::HiRes::time();
$old->kill_it;
my $new = $::set->wait_failed_over($old);
sleep(2);
$load->stop;

my $r = check_load($load, $other);
judge_load($load, $r, $since);
cmp_ok($new->round_trips, '>', 20, 'the new master was asked');
error_log_like(qr/store "s".*master.*127\.0\.0\.1:$new->{port}/, 'logged');
ok($other->stop, 'the other leaves');



=== TEST 4: a planned failover, all replicas count
For the time it takes, about a second, there are two masters, and the old one
may still have a replica: one of two is not enough.
--- store: redis
--- http_config eval: $::http =~ s/replicas .*/replicas 2 timeout=300ms;/r
--- config eval: $::server
--- client_timeout: 120
--- client
fresh();
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my $since = Time::HiRes::time();
my $old = $::set->master;
my $new = $::set->fail_over;

# it becomes a replica: nothing is asked of it any more

# the sentinels close the connections of a master that they demote

wait_for(sub { eval { $old->command('INFO', 'replication') =~ /role:slave/ } }, 15)
    or die "it does not become a replica\n";
sleep(0.5);
$old->reset_calls;
sleep(1.5);
is($old->errors('READONLY') || 0, 0, 'the former master is left');
$load->stop;

my $r = check_load($load, $other);
judge_load($load, $r, $since, 0.05);
ok($other->stop, 'the other leaves');



=== TEST 5: a frozen master comes back, and is left
--- store: redis
--- http_config eval: $::http
--- config eval: $::server
--- client_timeout: 120
--- client
fresh();
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my $since = Time::HiRes::time();
my $old = $::set->master;
$old->pause;
my $new = $::set->wait_failed_over($old);
sleep(1);

# for a while it takes itself for the master, with all it was sent meanwhile
$old->resume;
sleep(0.3);
$old->reset_calls;
sleep(1.5);
my $calls = $old->calls;
is_deeply([ grep { $calls->{$_} } qw(set delifeq eval evalsha) ], [], 'nobody asks it');
$load->stop;

judge_load($load, check_load($load, $other), $since);
ok($other->stop, 'the other leaves');



=== TEST 6: what is under way at a failover is asked again
--- store: redis
--- http_config eval: $::http =~ s/replicas.*/timeout 20s;/r
--- config eval: $::server =~ s/_lease  3s/_lease 30s/r
--- client_timeout: 90
--- client
fresh();

# its commit, and the begin of another
my ($a, $b) = (new_key(), new_key());
my $first = send_post('/hold?op=a', 'x', { 'Idempotency-Key' => $a });
app_wait_parked('a');

# the lock is on the replicas, too
my ($record) = $::set->master->keys('idempotency:*');
wait_for(sub { 2 == grep { my @k = $_->keys($record); @k }
                    grep { $_ != $::set->master } $::set->nodes })
    or die "it is not replicated\n";

my $old = $::set->master;
$old->pause;
app_release('a');
my $second = send_post('/ok?op=b', 'x', { 'Idempotency-Key' => $b });

$::set->wait_failed_over($old);

is($first->read_response(20)->body, "run 1\n", 'the commit');
is($second->read_response(20)->body, "run 1\n", 'the begin');
error_log_unlike(qr/commit in store .* failed|STORE_UNAVAILABLE/,
                 'within their time');

is(post('/hold?op=a', $a)->header('Idempotent-Replayed'), 'true', 'replayed');
is(post('/ok?op=b', $b)->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count($_), 1, 'ran once') for qw(a b);



=== TEST 7: credentials of sentinels are their own
--- store: redis
--- http_config eval
$::http =~ s/replicas.*/password of-redis; sentinel_password of-sentinels;/r
--- config eval: $::server
--- client
return pass('such sentinels are new in 6.2')
    if !IdempotencyTest::Redis->knows('sentinel acl');

fresh(auth => [ 'of-redis' ], sentinel_auth => [ 'of-sentinels' ]);
my $key = new_key();

is(post("/ok?op=$key", $key)->body, "run 1\n", 'ran');

edit_config(sub { s/of-sentinels/wrong/ });
nginx_reload() or die "no reload\n";
is(post("/ok?op=$key", $key)->status, 503, 'with a wrong one, nothing');
error_log_like(qr/authentication failed \(WRONGPASS\)/, 'says why');
error_log_unlike(qr/of-redis|of-sentinels|wrong[^_]*$/m, 'and no password');



=== TEST 8: a sentinel that publishes nothing to us is asked
--- store: redis
--- http_config eval
$::http =~ s/replicas.*/sentinel_user poller; sentinel_password p;/r
--- config eval: $::server
--- client_timeout: 120
--- client
return pass('such sentinels are new in 6.2')
    if !IdempotencyTest::Redis->knows('sentinel acl');

fresh();

for ($::set->sentinels) {
    $_->set_user('poller', 'on', '>p', 'resetchannels', '-@all', '+sentinel',
                 '+ping', '+auth');
}

my $key = new_key();
is(post("/ok?op=$key", $key)->body, "run 1\n", 'ran');

my $old = $::set->master;
$old->kill_it;
$::set->wait_failed_over($old);

ok(wait_for(sub { my $k = new_key(); post("/ok?op=$k", $k)->status == 200 },
            25), 'the new master is found');



=== TEST 9: a planned failover, with writes paused before
Then there is no time with two masters, and nothing runs twice, whether
replicas count or not.
--- store: redis
--- http_config eval: $::http =~ s/replicas .*//r
--- config eval: $::server
--- client_timeout: 120
--- client
return pass('the server can not pause writes')
    if !IdempotencyTest::Redis->knows('pause writes');

fresh();
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my $since = Time::HiRes::time();
$::set->master->command('CLIENT', 'PAUSE', 5000, 'WRITE');
$::set->fail_over;
sleep(1.5);
$load->stop;

my $r = check_load($load, $other);
judge_load($load, $r, $since);
is_deeply($r->{twice}, [], 'nothing ran twice');
ok($other->stop, 'the other leaves');



=== TEST 10: a planned failover, as it comes
Nothing is asked of the old master from when the failover begins: what is lost
is what was under way then, and not what comes in a second or more.
--- store: redis
--- http_config eval: $::http =~ s/replicas .*/timeout 2s;/r
--- config eval: $::server
--- client_timeout: 120
--- client
fresh();
my $other = start_host();
my $load = start_load(ports => [ $port, $other->{port} ], clients => 10);
sleep(1);

my $since = Time::HiRes::time();
$::set->fail_over;
sleep(1.5);
$load->stop;

my $r = check_load($load, $other);
diag(sprintf '%d keys, %d refused, %d ran twice', $r->{keys}, $r->{refused},
     scalar @{ $r->{twice} });
cmp_ok($r->{keys}, '>', 50, 'there was load');
is_deeply($r->{unanswered}, [], 'every key was answered in the end');
cmp_ok(scalar @{ $r->{twice} }, '<', 0.04 * $r->{keys},
       'hardly anything ran twice');
ok($other->stop, 'the other leaves');



=== TEST 11: a list that is read while another server takes over
The new master has its own order of records.
--- store: redis
--- http_config eval: $::http =~ s/replicas .*//r
--- config eval: $::server . "location /ops/ { idempotency_admin; }\n"
--- client_timeout: 120
--- client
fresh();

my (%seen, $cursor);
my %stay = map { $_ => 1 } map { my $key = new_key();
                                 post("/ok?op=$_", $key)->header('X-Record') }
                           1 .. 400;

my $page = sub {
    my $r = http_get('/ops/records/s?limit=150' . ($cursor ? "&cursor=$cursor" : ''));

    is($r->status, 200, 'a page') or return;
    $seen{ $_->{record} }++ for @{ $r->json->{records} };
    return $cursor = $r->json->{cursor};
};

$page->();
cmp_ok(scalar keys %seen, '<', 400, 'there is more');

# no write is lost

wait_for(sub { 3 == grep { (() = $_->keys('idempotency:*')) == 400 } $::set->nodes })
    or die "it is not replicated\n";
my $new = $::set->fail_over;
ok(wait_for(sub { my $k = new_key(); post("/ok?op=$k", $k)->status == 200 }, 25),
   'the new master is found');

for (1 .. 40) { $page->() or last }

is($cursor, undef, 'the list ends');
is(scalar(grep { !$seen{$_} } keys %stay), 0, 'none is missing');
