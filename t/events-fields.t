# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What the line of an event has: members that each has, those of one event, and
# the events of level debug.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Sys::Hostname ();
use Time::HiRes qw(sleep time);
use Test::Nginx::Socket 'no_plan';

our $api = <<'_EOC_';
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;

    location / {
        idempotency           $TEST_STORE;
        idempotency_identity  $http_authorization;
        idempotency_group     orders;
        idempotency_tenant    $http_x_tenant;
        idempotency_actor     $http_x_user plain;
        idempotency_ttl       1h;
        add_header            X-Request-Id $request_id always;
        add_header            X-Fingerprint $idempotency_fingerprint always;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

our $iso = qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

sub text
{
    open my $f, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json"
        or return '';
    local $/;
    return <$f>;
}

# events of that name, once there are that many

sub wait_events
{
    my ($name, $n) = @_;

    my @found;

    wait_for(sub {
        @found = grep { $_->{event} eq "idempotency.$name" }
                      read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/"
                                  . 'events.json');
        return @found >= $n;
    }, 20);

    is(scalar @found, $n, "$n of idempotency.$name");
    return @found;
}

run_tests();

__DATA__

=== TEST 1: members of each, and those of created, replay and conflict
--- config eval: $::api
--- client
my %h = ('Idempotency-Key' => new_key() . '-sEcReT',
         Authorization     => 'Bearer sEcReT-token',
         'X-Tenant'        => 'acme', 'X-User' => 'jane');

my @r = (http_post('/ok', 'sEcReT-body', \%h),
         http_post('/ok', 'sEcReT-body', \%h),
         http_post('/ok', 'sEcReT-other', \%h),
         http_post('/ok', 'sEcReT-body',
                   { %h, Authorization => 'Bearer sEcReT-b' }),
         http_post('/ok', 'sEcReT-other', { %h, 'X-User' => 'joe' }),
         http_post('/ok', 'sEcReT-body', { %h, 'X-User' => 'joe' }));

is_deeply([ map { $_->status } @r ], [ 200, 200, 409, 409, 409, 200 ],
          'ran, replayed, three conflicts, replayed');

my ($created) = wait_events('key.created', 1);
my ($processed) = wait_events('processed', 1);
my ($replay, $second) = wait_events('replay', 2);
my ($payload, $identity, $joe) = wait_events('conflict', 3);

my @all = ($created, $processed, $replay, $payload, $identity);
my %ids = map { $_->{event_id} => 1 } @all;

is(scalar keys %ids, 5, 'each has an id of its own');

for my $e (@all) {
    my $name = $e->{event};

    like($e->{event_id}, qr/^[0-9a-f]{32}$/, "$name: event_id");
    like($e->{timestamp}, $::iso, "$name: timestamp");
    is($e->{component}, 'idempotency', "$name: component");
    is($e->{host}, lc Sys::Hostname::hostname(), "$name: host");
    like($e->{store}, qr/^\w+$/, "$name: store");
    is($e->{group}, 'orders', "$name: group");
    is($e->{uri_group}, 'orders', "$name: uri_group");
    is($e->{tenant}, 'acme', "$name: tenant");
    is($e->{actor}, 'jane', "$name: actor");
    like($e->{$_}, qr/^[0-9a-f]{64}$/, "$name: $_") for qw(key_hash record);
    is($e->{method}, 'POST', "$name: method");
    like($e->{duration_ms}, qr/^\d+$/, "$name: duration_ms");
}

is_deeply([ map { $_->{request_id} } @all ],
          [ map { $_->header('X-Request-Id') } @r[0, 0, 1, 2, 3] ],
          'the id of the request, as the client has it');

is($created->{ttl_ms}, 3600000, 'ttl_ms');
like($created->{expires_at}, $::iso, 'expires_at');
cmp_ok($created->{expires_at}, 'gt', $created->{timestamp}, 'later than now');

like($replay->{original_timestamp}, $::iso, 'original_timestamp');
cmp_ok($replay->{original_timestamp}, 'le', $replay->{timestamp}, 'before');
like($replay->{time_since_original_ms}, qr/^\d+$/, 'time_since_original_ms');
cmp_ok($replay->{time_since_original_ms}, '<', 60000, 'of its size');
is($replay->{replay_count}, 1, 'replay_count');
is($replay->{original_actor}, 'jane', 'original_actor');

is($payload->{conflict_type}, 'payload', 'another body');
is($payload->{original_fingerprint}, $r[0]->header('X-Fingerprint'),
   'the fingerprint of the first');
is($payload->{fingerprint}, $r[2]->header('X-Fingerprint'), 'and its own');
is($payload->{original_timestamp}, $replay->{original_timestamp},
   'when that was');

is($identity->{conflict_type}, 'identity', 'somebody else');
is($identity->{original_fingerprint}, undef, 'whose fingerprint is not told');
is($identity->{fingerprint}, $r[3]->header('X-Fingerprint'), 'its own is');
is($identity->{original_timestamp}, $replay->{original_timestamp},
   'when that was');

# another one, who is told apart by what is in the record

is($joe->{actor}, 'joe', 'another actor is in conflict');
is($_->{original_actor}, 'jane', 'original_actor')
    for $payload, $identity, $joe, $second;
is($second->{actor}, 'joe', 'and gets the response');
is($second->{replay_count}, 2, 'as the second');

unlike(main::text(), qr/sEcReT/, 'no key, body or credential');



=== TEST 2: contention, and a lock that is abandoned
--- workers: 1
--- provokes: exited on signal 9
--- config eval
$::api . <<'_EOC_';
    idempotency_lease  3s;
    idempotency_wait   20s;
_EOC_
--- client
my %h = ('Idempotency-Key' => new_key());
my $first = send_post('/hold?op=a', 'x', \%h);

app_wait_parked('a');

my @waiters = (send_post('/hold?op=a', 'x', \%h));
my ($one) = wait_events('lock.contention', 1);

is($one->{wait_ms}, 0, 'it begins to wait');
is($one->{queue_depth}, 1, 'alone');
is($one->{lock_holder}, lc Sys::Hostname::hostname(), 'for this host');

push @waiters, send_post('/hold?op=a', 'x', \%h);
my (undef, $two) = wait_events('lock.contention', 2);

is($two->{queue_depth}, 2, 'one more');

app_release('a', 1);
is($_->read_response->status, 200, 'answered') for $first, @waiters;

# its worker dies, and a retry waits for the lease to end

%h = ('Idempotency-Key' => new_key());
send_post('/hold?op=b', 'x', \%h);
app_wait_parked('b');
kill_worker();

my $retry = send_post('/hold?op=b', 'x', \%h);
ok(app_wait('b', 2, 20), 'the retry took over');

my ($abandoned) = wait_events('lock.abandoned', 1);

is($abandoned->{level}, 'warn', 'a warning');
cmp_ok($abandoned->{lock_age_ms} // 0, '>=', 3000, 'older than its lease');
cmp_ok($abandoned->{lock_age_ms} // 0, '<', 60000, 'by not much');
is($abandoned->{lock_holder}, lc Sys::Hostname::hostname(), 'of this host');

app_release('b', 1);
is($retry->read_response->status, 200, 'answered');

# ... or comes when it has ended

%h = ('Idempotency-Key' => new_key());
send_post('/hold?op=c', 'x', \%h);
app_wait_parked('c');
kill_worker();
sleep 3.5;

$retry = send_post('/hold?op=c', 'x', \%h);
ok(app_wait('c', 2, 20), 'the retry took over at once');

(undef, $abandoned) = wait_events('lock.abandoned', 2);

is($abandoned->{lock_holder}, lc Sys::Hostname::hostname(),
   'it did not wait, and knows the host all the same');
cmp_ok($abandoned->{lock_age_ms} // 0, '>=', 3000, 'and the age');

app_release('c', 1);
is($retry->read_response->status, 200, 'answered');



=== TEST 3: who holds a lock, where no directive names labels
--- workers: 1
--- provokes: exited on signal 9
--- config
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;

    location / {
        idempotency           $TEST_STORE;
        idempotency_identity  off;
        idempotency_lease     1s;
        idempotency_wait      0;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %h = ('Idempotency-Key' => new_key());

send_post('/hold?op=n', 'x', \%h);
app_wait_parked('n');
is(http_post('/hold?op=n', 'x', \%h)->status, 409, 'busy');
is((wait_events('lock.contention', 1))[0]{lock_holder},
   lc Sys::Hostname::hostname(), 'this host');

kill_worker();
sleep 1.5;

my $retry = send_post('/hold?op=n', 'x', \%h);
ok(app_wait('n', 2, 20), 'taken over');
is((wait_events('lock.abandoned', 1))[0]{lock_holder},
   lc Sys::Hostname::hostname(), 'from this host');
app_release('n', 1);
is($retry->read_response->status, 200, 'answered');



=== TEST 4: a record that expired
--- config eval
$::api =~ s/1h;/1500ms; idempotency_expired_grace 1m;/r
--- client
my %h = ('Idempotency-Key' => new_key());

is(http_post('/ok', 'x', \%h)->status, 200, 'ran');
is(http_post('/ok', 'x', \%h)->status, 200, 'replayed');
sleep 1.8;
is(http_post('/ok', 'x', \%h)->status, 200, 'ran again');

my ($e) = wait_events('key.expired', 1);
is($e->{replay_count}, 1, 'how often it was replayed');
cmp_ok($e->{lifetime_ms}, '>=', 1500, 'and how long it was there');

is($e->{ttl_ms}, 1500, 'ttl_ms');



=== TEST 5: debug
--- config
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json level=debug;

    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /info/ {
        idempotency      $TEST_STORE;
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/info.json;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %h = ('Idempotency-Key' => new_key() . '-sEcReT',
         Authorization     => 'Bearer sEcReT-token');

http_post('/ok', 'sEcReT-body', \%h) for 1, 2;
http_post('/info/ok', 'x', { 'Idempotency-Key' => new_key() });

my @attempts = wait_events('lock.attempt', 2);
my @lookups = wait_events('cache.lookup', 2);

is_deeply([ map { $_->{level} } @attempts, @lookups ], [ ('debug') x 4 ],
          'their level');
is_deeply([ map { $_->{reason} } @lookups ], [ 'miss', 'hit' ],
          'what was there');
is($_->{record}, $attempts[0]{record}, 'of the record')
    for @attempts, @lookups;

my @info;
wait_for(sub { @info = read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/"
                                   . 'info.json') });
is_deeply([ map { $_->{event} } @info ],
          [ 'idempotency.key.created', 'idempotency.processed' ],
          'none of them at level info');

unlike(main::text(), qr/sEcReT/, 'no key, body or credential');



=== TEST 6: a wrong level names the right ones
--- config
    idempotency_log  events.json level=loud;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "level=loud".*"info" or "debug".* in .*nginx\.conf:\d+/



=== TEST 7: what every request would repeat is told once a second
--- store: redis postgres
--- workers: 1
--- http_config
    idempotency_store away $TEST_REMOTE {
        server  127.0.0.1:1;
    }
--- config
    location / {
        idempotency  away;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency                 away;
        idempotency_lease           1s;
        idempotency_on_store_error  pass;
        proxy_pass                  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for (1 .. 30) {
    http_post('/ok', 'x', { 'Idempotency-Key' => new_key() });
    http_post('/pass/ok', 'x', { 'Idempotency-Key' => new_key() });
}

for my $what ('the request is refused', 'the request runs unprotected',
              'it ran unprotected; it is kept here and tried again')
{
    my $count = sub {
        my ($n, $lines, $log) = (0, 0, error_log());

        while ($log =~ /store "away" failed: [^\n]*$what(?:: (\d+) more in the last second)?/g) {
            $n += $1 // 1;
            $lines++;
        }

        return ($n, $lines);
    };

    ok(wait_for(sub { ($count->())[0] >= 30 }, 10), "$what: each is counted");

    my ($n, $lines) = $count->();
    is($n, 30, 'once');
    cmp_ok($lines, '<', 15, 'in a few lines');
}

error_log_like(qr/kept here and tried again, record [0-9a-f]{16}/,
               'the first names its record');



=== TEST 8: who held a lock, of those that are in this nginx while the store is away
--- store: redis postgres
--- workers: 1
--- provokes: exited on signal 9|runs unprotected|failed|can't connect|without an outcome
--- http_config
    idempotency_store away $TEST_REMOTE {
        server  127.0.0.1:1;
    }
    idempotency_store ledger memory {
        zone  ledger:1m;
    }
--- config
    idempotency_log       $TEST_NGINX_SERVER_ROOT/logs/events.json;
    idempotency_identity  off;
    idempotency_lease     1s;

    location / {
        idempotency  away fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency                 away;
        idempotency_on_store_error  pass;
        proxy_pass                  http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
--- client
my $n = 0;

for ('/', '/pass/') {
    my %h = ('Idempotency-Key' => new_key());
    my $op = 'f' . ++$n;

    send_post("${_}hold?op=$op", 'x', \%h);
    app_wait_parked($op);
    kill_worker();
    sleep 1.5;

    my $retry = send_post("${_}hold?op=$op", 'x', \%h);
    ok(app_wait($op, 2, 20), "$_: taken over");

    my $e = (wait_events('lock.abandoned', $n))[-1];
    is($e->{lock_holder}, lc Sys::Hostname::hostname(), 'from this host');
    cmp_ok($e->{lock_age_ms} // 0, '>=', 1000, 'that long ago');

    app_release($op, 1);
    is($retry->read_response->status, 200, 'answered');
}
--- no_check_log



=== TEST 9: a file is the same for every request
--- config
    idempotency_log  logs/$host.json;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "logs\/\$host\.json".*no variables.* in .*nginx\.conf:\d+/
