# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency.key.expired: of a record that nobody came back for, as far as a
# store can tell (Redis can not), and of one that somebody did.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our $api = <<'_EOC_';
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;

    location = /stats { idempotency_stats; }
    location /ops/ { idempotency_admin; }

    location / {
        idempotency         $TEST_STORE;
        idempotency_scope   api;
        idempotency_group   orders;
        idempotency_tenant  $http_x_tenant;
        idempotency_actor   $http_x_user plain;
        idempotency_ttl     400ms;
        add_header          X-Record $idempotency_record always;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

sub events
{
    my ($name) = @_;

    return grep { $_->{event} eq "idempotency.$name" }
                read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json");
}

sub wait_events
{
    my ($name, $n) = @_;

    my @found;

    wait_for(sub { (@found = events($name)) >= $n }, 20);
    is(scalar @found, $n, "$n of idempotency.$name");
    return @found;
}

sub post
{
    my ($uri, $key) = @_;

    return http_post($uri, 'x', { 'Idempotency-Key' => $key,
                                  'X-Tenant' => 'acme', 'X-User' => 'jane' });
}

sub figure
{
    my ($name) = @_;

    my ($s) = @{ parse_prometheus(http_get('/stats', {
                     Accept => 'text/plain' })->body)
                 ->{"nginx_idempotency_$name"}{samples} // [] };
    return $s && $s->{value};
}

# PostgreSQL rounds the time of a purge up to five minutes

sub let_purge
{
    my $pg = IdempotencyTest::store_server() or return;

    $pg->sql('UPDATE idempotency.idempotency_keys SET purge_at = now() '
             . 'WHERE forget_at <= now()', user => 'keeper');
}

run_tests();

__DATA__

=== TEST 1: nobody came back
--- store: memory postgres
--- config eval: $::api
--- client
my $key = new_key() . '-sEcReT';

my $record = post('/ok', $key)->header('X-Record');
is(post('/ok', $key)->status, 200, 'replayed');

sleep 0.6;
main::let_purge();

my ($e) = wait_events('key.expired', 1);

is($e->{record}, $record, 'the record');
is($e->{level}, 'info', 'level');
is($e->{ttl_ms}, 400, 'ttl_ms');
cmp_ok($e->{lifetime_ms}, '>=', 400, 'lifetime_ms');
cmp_ok($e->{lifetime_ms}, '<', 20000, '... of its size');
is($e->{replay_count}, 1, 'replay_count');
is($e->{group}, 'orders', 'group');
is($e->{tenant}, 'acme', 'tenant');
is($e->{actor}, 'jane', 'actor');
like($e->{event_id}, qr/^[0-9a-f]{32}$/, 'event_id');

sleep 1.5;
is(scalar(main::events('key.expired')), 1, 'told once');



=== TEST 2: somebody came back, after the record was over
--- store: memory postgres
--- config eval: $::api
--- client
my $key = new_key();

my $record = post('/ok', $key)->header('X-Record');
sleep 0.6;
is(post('/ok', $key)->status, 200, 'ran again');

my ($e) = wait_events('key.expired', 1);

is($e->{record}, $record, 'the record');
is($e->{ttl_ms}, 400, 'ttl_ms');
cmp_ok($e->{lifetime_ms}, '>=', 400, 'lifetime_ms');
is($e->{replay_count}, 0, 'replay_count');
wait_events('key.created', 2);



=== TEST 3: within the grace, without a replay
--- config eval
$::api =~ s/400ms;/400ms; idempotency_expired_grace 1h;/r
--- client
my $key = new_key();

post('/ok', $key);
sleep 0.6;
is(post('/ok', $key)->header('X-Idempotency-Expired'), 'true', 'ran again');

my ($e) = wait_events('key.expired', 1);

is($e->{ttl_ms}, 400, 'ttl_ms');
cmp_ok($e->{lifetime_ms}, '>=', 400, 'lifetime_ms');
cmp_ok($e->{lifetime_ms}, '<', 20000, '... of its size');
is($e->{replay_count}, 0, 'replay_count');

is(main::figure('records_expired_total'), 1, 'counted')
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory';



=== TEST 4: many at once
--- store: memory
--- config eval: $::api =~ s/400ms;/2s;/r
--- client
for (1 .. 40) {
    my @c = map { send_post('/ok', 'x', { 'Idempotency-Key' => new_key() }) }
            1 .. 10;
    $_->read_response for @c;
}

my @e = wait_events('key.expired', 400);
my %records = map { $_->{record} => 1 } @e;

is(scalar keys %records, 400, 'each record once');
is(main::figure('records_expired_total'), 400, 'and so many are counted');
is(http_get('/stats', { Accept => 'application/json' })
       ->json->{events_dropped}, 0, 'none was dropped');



=== TEST 5: what was deleted does not expire
--- store: memory postgres
--- config eval: $::api =~ s/400ms;/400ms; idempotency_lease 1s;/r
--- client
my $store = http_get('/ops/')->json->{stores}[0];
my ($key, $running) = (new_key(), new_key());

post('/ok', $key);
my $c = send_post('/hold?op=a', 'x', { 'Idempotency-Key' => $running });
app_wait_parked('a');

for ($key, $running) {
    is(http_request('DELETE', "/ops/records/$store?key=$_&scope=api", '', {})
           ->status, 200, 'deleted');
}

app_release('a', 1);
$c->read_response;

my @deleted = wait_events('record.deleted', 2);
is($deleted[0]{tenant}, 'acme', 'whose it was');
is($deleted[0]{actor}, 'jane', 'who had sent it');
is($deleted[0]{group}, 'orders', 'its group');
like($deleted[0]{by}, qr/^127\.0\.0\.1$/, 'who deleted it');

# the tombstone of a lock goes after twice the lease

sleep 3.5;
main::let_purge();
sleep 1.5;

is(scalar(main::events('key.expired')), 0, 'no event');
is(main::figure('records_expired_total'), 0, 'nor is it counted')
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory';



=== TEST 6: who follows is told, without a log
--- store: memory
--- config eval
$::api =~ s/idempotency_log .*;//r
--- client
my $key = new_key();
my $follow = connect_client();

$follow->send_part("GET /ops/events?key=$key&scope=api HTTP/1.1\r\n"
                   . "Host: localhost\r\n\r\n");
$follow->read_some(200, 2);

my $record = post('/ok', $key)->header('X-Record');

my $text = '';
wait_for(sub { $text = $follow->read_some(1 << 20, 0.2) // '';
               $text =~ /key\.expired/ }, 15);
$follow->abort;

like($text, qr/key\.created.*"key_hash"/, 'the request, by its key');
like($text, qr/key\.expired.*"record":"$record"/,
     'and the record, of which the store does not know the key');
