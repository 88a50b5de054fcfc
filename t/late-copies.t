# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What was sent on a connection that broke is asked again on another; the first
# copy may still come, later than all that followed it.  A lock that it lays is
# given back again.  Under hold, where it does not end by itself, another worker
# does that if the one that gave it up is gone.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep);

our ($store, $proxy) = start_proxied();

add_block_preprocessor(sub {
    if ($store) {
        $proxy->tell('cut');
        accept_releases();
        $store->command('FLUSHALL');
    }
});

# the server refuses to give back a lock that is there

sub refuse_releases
{
    if ($ENV{IDEMPOTENCY_STORE} eq 'redis') {
        eval { $store->command(qw(ACL SETUSER default), $_) } for qw(-@scripting -del -delex -delifeq);
        return;
    }

    $store->sql(<<'_EOC_');
CREATE FUNCTION idempotency.keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'lock_not_available'; END $$;
CREATE TRIGGER keep BEFORE DELETE OR UPDATE ON idempotency.idempotency_keys
    FOR EACH ROW EXECUTE FUNCTION idempotency.keep();
_EOC_
}

sub accept_releases
{
    return $store->command(qw(ACL SETUSER default +@all)) if $ENV{IDEMPOTENCY_STORE} eq 'redis';
    $store->sql('DROP FUNCTION IF EXISTS idempotency.keep() CASCADE');
}

our $stores = <<'_EOC_';
    idempotency_store shared $TEST_REMOTE {
        server       127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout      2s;
        connections  1;
    }
    idempotency_store slow $TEST_REMOTE {
        server       127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout      8s;
        connections  1;
    }
    idempotency_store hasty $TEST_REMOTE {
        server       127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout      500ms;
        connections  1;
    }
    idempotency_store brisk $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout  150ms;
    }
    idempotency_store other $TEST_REMOTE {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;
        location / {
            idempotency  other;
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_

our $locations = <<'_EOC_';
    idempotency_unknown_outcome  hold;
    idempotency_lease            20s;
    idempotency_wait             0;
    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /hasty/ {
        idempotency  hasty;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /slow/ {
        idempotency  slow;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brisk/ {
        idempotency  brisk;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /brief/ {
        idempotency        shared;
        idempotency_lease  3s;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub key { return { 'Idempotency-Key' => new_key() } }

# the records that are locked

sub locked
{
    return grep { my $r = $store->record($_); $r && $r->{s} == 1 } $store->keys;
}

# there is a connection

sub warm
{
    my $at = shift || '';
    my $path = shift || '/ok';

    ok(wait_for(sub { (http_post("$at$path?op=z", 'x', key())->error_code || '')
                      ne 'STORE_UNAVAILABLE' }), 'it works');
    $store->command('FLUSHALL');
}

# requests whose first copy is not read before "pass": another one is given up,
# and their connection with it

sub twice
{
    my ($uri, $key) = @_;

    $proxy->tell('deaf');
    my $given_up = send_post('/ok?op=y', 'x', key());
    sleep 1.2;
    my $c = send_post($uri, 'x', $key);
    is($given_up->read_response->error_code, 'STORE_UNAVAILABLE', 'one is given up');

    return $c;
}

# a request whose begin is not read before "pass", and is given up; its copy
# comes after $meanwhile, and its lock is given back after $then

sub given_up
{
    my ($meanwhile, $then) = @_;
    my ($uri, $key) = ('/hasty/ok?op=a&hold=1', key());

    warm('/hasty');
    $proxy->tell('deaf');
    is(http_post($uri, 'x', $key)->error_code, 'STORE_UNAVAILABLE', 'it is given up');
    $meanwhile->() if $meanwhile;
    comes(1, meanwhile => $then);
    given_back($uri, $key, 1);
}

# the first copy comes, behind all releases that were sent so far; its lock would
# last for 60 s

sub comes_behind
{
    my ($uri, $key, $run) = @_;

    ok(wait_for(sub { locked() == 0 }), 'there is no lock');
    sleep 0.4;
    $proxy->tell('pass');

    # it may be given back between two looks

    for (1 .. 60) { last if locked(); sleep 0.05 }
    ok(wait_for(sub { locked() == 0 }, 5), 'its lock is given back');
    is(http_post($uri, 'x', $key)->body, "run $run\n", 'and the next one runs');
}

# ... by another worker

sub adopted
{
    given_up(@_);
    error_log_like(qr/store "hasty": locks are given back for workers that are gone: 1/, 'by another worker');
}

# The first copies come, and lay $n locks, which stay while they are looked at,
# and for as long as "meanwhile" takes; not those of a renewal, which may be a
# script as a release is.

sub comes
{
    my ($n, %o) = @_;

    # a client may have its answer a moment before the lock is given back

    ok(wait_for(sub { locked() == 0 }), 'there is no lock');

    # up to Redis 6 a begin is a script as a release is: none can be refused

    my $scripts = $ENV{IDEMPOTENCY_STORE} eq 'redis' && !$store->knows('NX GET');

    refuse_releases() if !$o{renewal} && !$scripts;
    $proxy->tell('pass');

    if ($scripts) {
        for (1 .. 60) { last if locked(); sleep 0.05 }
        return;
    }

    ok(wait_for(sub { locked() == $n }, 10), 'the first copy comes, and lays one');
    $o{meanwhile}->() if $o{meanwhile};
    accept_releases();
}

sub given_back
{
    my ($uri, $key, $run) = @_;

    my ($op) = $uri =~ /op=(\w+)/;
    my $r;

    ok(wait_for(sub {
        my $c = send_post($uri, 'x', $key);

        undef $r;
        wait_for(sub { app_parked($op) || ($r = $c->read_response(0.05)) });
        app_release($op) if !$r;
        $r ||= $c->read_response;

        return $r->status != 409 || (sleep 0.2) && 0;
    }, 40), 'it is given back');

    is($r->body, "run $run\n", 'and the next one runs');
}

every_block(
    http_config    => $stores,
    config         => $locations,
    client_timeout => 120,
);

run_tests();

__DATA__

=== TEST 1: a begin, after the lock was given back
--- store: redis postgres
--- client
main::warm();

my $key = main::key();
my $c = main::twice('/status/503?op=a', $key);
is($c->read_response->status, 503, 'ran, and is not kept');
main::comes(2);
main::given_back('/status/503?op=a', $key, 2);



=== TEST 2: a begin, after another one was found to run
--- store: redis postgres
--- client
main::warm();

my $key = main::key();
my $holder = send_post('/status/503?op=a&hold=1', 'x', $key, port => $ENV{TEST_NGINX_PORT_2});
is(app_wait_parked('a'), 1, 'one runs on another host');

my $c = main::twice('/status/503?op=a&hold=1', $key);
is($c->read_response->error_code, 'CONCURRENT_REQUEST', 'the other one is found');
app_release('a');
is($holder->read_response->status, 503, 'which is not kept');
main::comes(2);

main::given_back('/status/503?op=a&hold=1', $key, 2);



=== TEST 3: a renewal, after the lock was given back
--- store: redis postgres
--- client
main::warm();

my $key = main::key();
my $c = send_post('/brief/status/503?op=a&hold=1', 'x', $key);
is(app_wait_parked('a'), 1, 'it runs');
$::proxy->tell('deaf');
error_log_like(qr/lost the connection .*no reply within/, 'it is renewed in vain', 10);
app_release('a');
is($c->read_response->status, 503, 'it is not kept');
ok(wait_for(sub { main::locked() == 0 }, 10), 'given back');

# SET ... IFEQ lays no lock where there is none

if ($ENV{IDEMPOTENCY_STORE} eq 'redis' && $::store->knows('IFEQ')) {
    $::proxy->tell('pass');
    sleep 0.5;
    is(scalar(main::locked()), 0, 'the first copy comes, and lays none');

} else {
    main::comes(1, renewal => 1);
}

main::given_back('/brief/status/503?op=a&hold=1', $key, 2);



=== TEST 4: a begin, after a lock was found whose holder is gone, and deleted
--- store: redis postgres
--- provokes: exited on signal 9
--- client
main::warm();

my $key = main::key();
send_post('/brief/ok?op=a&hold=1', 'x', $key);
is(app_wait_parked('a'), 1, 'it runs');
kill_worker();
ok(wait_for(sub { http_post('/brief/ok?op=a&hold=1', 'x', $key)->error_code eq 'OUTCOME_UNKNOWN' }, 20),
    'its lease is over');

my $c = main::twice('/brief/ok?op=a&hold=1', $key);
is($c->read_response->error_code, 'OUTCOME_UNKNOWN', 'its lock is found');
$::store->command('FLUSHALL');
main::comes(2);

main::given_back('/brief/ok?op=a&hold=1', $key, 2);



=== TEST 5: a begin that was given up by a worker that exits
--- store: redis postgres
--- client
main::adopted(sub { ok(nginx_reload(), 'its worker exits') });



=== TEST 6: a begin that was given up by a worker that is killed
--- store: redis postgres
--- provokes: exited on signal 9
--- client
main::adopted(sub { kill_worker() });



=== TEST 7: a lock that a worker could not give back before it exited
--- store: redis postgres
--- client
main::warm();

my $key = main::key();
my $c = send_post('/hasty/status/503?op=a&hold=1', 'x', $key);
is(app_wait_parked('a'), 1, 'it runs');
$::proxy->tell('down');
app_release('a');
is($c->read_response->status, 503, 'it is not kept');
error_log_like(qr/release in store "hasty" failed/, 'its lock is not given back');
ok(nginx_reload(), 'its worker exits');
is(scalar(main::locked()), 1, 'the lock is there');
$::proxy->tell('pass');
ok(wait_for(sub { main::locked() == 0 }, 20), 'another worker gives it back');



=== TEST 8: a release that the server refuses for the time being
--- store: redis postgres
--- client
main::given_up(undef, sub {
    sleep 4;
    is(scalar(main::locked()), 1, 'the lock is still there');
});



=== TEST 9: many that were given up by a worker that exits
--- store: redis postgres
--- h2
--- client_timeout: 180
--- client
main::warm('/slow');
$::proxy->tell('deaf');

# sent before the first is given up, which ends their connection; what a busy
# machine sends later runs

my @h2 = map { h2_connect() } 1 .. 8;
my @sent = map { my $h2 = $_; map { [ $h2, $h2->request('POST', '/slow/ok?op=a', 'x', main::key()) ] } 1 .. 110 } @h2;
my @answers = map { my ($h2, $id) = @$_; $h2->response($id, 30) || die "no response\n" } @sent;
my $ran = grep { $_->status == 200 } @answers;
cmp_ok(scalar(grep { $_->error_code eq 'STORE_UNAVAILABLE' } @answers), '==', 880 - $ran, 'they are given up');
$_->abort for @h2;
ok(nginx_reload(), 'their worker exits');

$::proxy->tell('pass');

# they may come and be given back between two looks

my $locks = sub { sleep 0.2; return scalar(() = $::store->keys) };
for (1 .. 10) { last if $locks->() > $ran }
ok(wait_for(sub { $locks->() == $ran }, 60), 'no lock is left');

my $adopted = 0;
$adopted += $_ for error_log() =~ /store "slow": locks are given back for workers that are gone: (\d+)/g;
cmp_ok($adopted, '>', $ran < 180 ? 512 : 0, 'another worker gave them back');



=== TEST 10: a release that the server refuses for long is sent again and again
The lock is there, so the pauses do not grow.
--- store: redis
--- workers: 1
--- http_config eval: $::stores
--- config eval: $::locations
--- client_timeout: 120
--- client
return pass('the server does not count errors')
    if !$::store->knows('errorstats');

my ($key, $c);
my $uri = '/brisk/hold?op=a&status=503';

ok(wait_for(sub {
    $key = main::key();
    $c = send_post($uri, 'x', $key);
    wait_for(sub { app_parked('a') || $c->read_response(0.05) });
    return app_parked('a');
}), 'it runs');

main::refuse_releases();
$::store->reset_calls;
app_release('a');
is($c->read_response->status, 503, 'not kept');

ok(wait_for(sub { $::store->errors('NOPERM') >= 12 }), 'sent again and again');
is(scalar(main::locked()), 1, 'the lock is still there');
main::accept_releases();

ok(wait_for(sub { !main::locked() }), 'it is given back');



=== TEST 11: a begin that was given up, under lease
--- store: redis postgres
--- config eval: $::locations =~ s/ hold;/ lease;/r =~ s/20s/60s/r
--- client
my ($uri, $key) = ('/hasty/ok?op=a', main::key());

main::warm('/hasty');
$::proxy->tell('deaf');
is(http_post($uri, 'x', $key)->error_code, 'STORE_UNAVAILABLE', 'it is given up');
main::comes_behind($uri, $key, 1);



=== TEST 12: a begin, after the lock was given back, under lease
--- store: redis postgres
--- config eval: $::locations =~ s/ hold;/ lease;/r =~ s/20s/60s/r
--- client
main::warm();

my $key = main::key();
my $c = main::twice('/status/503?op=a', $key);
is($c->read_response->status, 503, 'ran, and is not kept');
main::comes_behind('/status/503?op=a', $key, 2);



=== TEST 13: a derived lock whose release is refused for longer than the TTL
It lives for the window, and is given back for as long.
--- store: redis postgres
--- http_config eval: $::stores
--- config
    idempotency_unknown_outcome  hold;
    idempotency_lease            500ms;
    idempotency_ttl              1s;
    idempotency_wait             0;
    location / {
        idempotency         hasty;
        idempotency_dedupe  body window=60s;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $uri = '/status/503?op=a&hold=1';

main::warm();

my $c = send_post($uri, 'x');
is(app_wait_parked('a'), 1, 'it runs, without a key');
main::refuse_releases();
app_release('a');
is($c->read_response->status, 503, 'and is not kept');
sleep 3;
is(scalar(main::locked()), 1, 'its lock is still there');
main::accept_releases();

ok(wait_for(sub { main::locked() == 0 }), 'it is given back');
main::given_back($uri, undef, 2);



=== TEST 14: a begin, after the response was kept and its TTL is over
--- store: redis postgres
--- config eval: "idempotency_ttl 1s;\n" . $::locations =~ s/20s/60s/r
--- client
main::warm('', '/status/503');

my $key = main::key();
my $c = main::twice('/ok?op=a', $key);
is($c->read_response->body, "run 1\n", 'ran, and is kept');
sleep 1.2;
main::comes_behind('/ok?op=a', $key, 2);



=== TEST 15: a begin that found a response, after the TTL of that is over
--- store: redis postgres
--- config eval: $::locations =~ s/20s/60s/r
--- client
main::warm();

my ($uri, $key) = ('/ok?op=a&header=X-Idempotency-Store:%205', main::key());
is(http_post($uri, 'x', $key, port => $ENV{TEST_NGINX_PORT_2})->body, "run 1\n", 'ran elsewhere');
my $c = main::twice($uri, $key);
is($c->read_response->body, "run 1\n", 'replayed');
sleep 3.2;
main::comes_behind($uri, $key, 2);
