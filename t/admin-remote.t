# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_admin on stores that are elsewhere: a deletion reaches the caches
# of other hosts, a cluster is listed server by server, and a store that is away
# is told.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Admin;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';
use JSON::PP;

our ($store, $proxy) = start_proxied();
our $cluster;
our $is_redis = ($ENV{IDEMPOTENCY_STORE} || '') eq 'redis';

if ($is_redis) {
    $cluster = start_cluster(masters => 3, replicas => 0);
    $ENV{TEST_NGINX_CLUSTER} = join ' ', $cluster->servers;
}

our $api = admin_config('shared');

run_tests();

__DATA__

=== TEST 1: a deletion reaches the caches of other hosts
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        cache   copies:1m ttl=60s;
    }
--- config eval: $::api
--- client
my $other = start_host(free_port());
my @there = (port => $other->{port});
my $key = new_key();

my $id = post('/ok?op=a', $key)->header('X-Record');

is(post('/ok?op=a', $key, @there)->header('X-Status'), 'REPLAYED',
   'the other host has a copy by now');

# it hears of deletions
ok(wait_for(sub { ($::store->command('PUBSUB', 'NUMSUB',
                   @{ $::store->command('PUBSUB', 'CHANNELS') })->[1] || 0) >= 2
                }, 5), 'both hosts listen') if $::is_redis;

is(http_request('DELETE', "/ops/records/shared/$id", '', {})->json->{deleted},
   1, 'deleted here');
is(post('/ok?op=a', $key)->body, "run 2\n", 'this host forgot it at once');

ok(wait_for(sub { post('/ok?op=a', $key, @there)->body eq "run 2\n" }, 10),
   'and so did the other, long before its copy was too old');
is(app_count('a'), 2, 'it ran once more, and no more');
ok($other->stop, 'it left in order');



=== TEST 2: all servers of a cluster are listed, and purged
--- store: redis
--- http_config
    idempotency_store shared redis {
        server   $TEST_NGINX_CLUSTER;
        cluster  on;
    }
--- config eval: $::api
--- client
my (%id, %seen, $cursor);

$id{ post("/ok?op=c$_", new_key())->header('X-Record') } = 1 for 1 .. 40;

for (1 .. 100) {
    my $r = http_get('/ops/records/shared?limit=9'
                     . ($cursor ? "&cursor=$cursor" : ''));

    is($r->status, 200, 'a page') or last;
    $seen{ $_->{record} }++ for @{ $r->json->{records} };
    $cursor = $r->json->{cursor} or last;
}

is(join(' ', sort keys %seen), join(' ', sort keys %id), 'all of them');

my ($one) = keys %id;

is(http_get("/ops/records/shared/$one")->json->{state}, 'completed', 'one');

my $out = qx(build/idempotencyctl --url http://127.0.0.1:$port/ops/ cleanup --state completed --older 1ms);

is($out, "deleted 40 records\n", 'all are deleted');
is(http_get("/ops/records/shared/$one")->status, 404, 'they are gone');



=== TEST 3: a store that is away
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_DEAD_PORT;
        connect_timeout  200ms;
        timeout          200ms;
    }
--- config eval: $::api
--- client
my $r = http_get('/ops/health');

is($r->status, 503, 'not well');
is($r->json->{status}, 'failing', 'said so');
is($r->json->{stores}[0]{ok}, JSON::PP::false, 'which');
ok($r->json->{stores}[0]{error}, 'and why');

my $list = http_get('/ops/records/shared');

is($list->status, 503, 'no list');
is($list->json->{error}{code}, 'STORE_UNAVAILABLE', 'but a clear word');



=== TEST 4: a deletion reaches an outbox of another host
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
        timeout  500ms;
    }
--- config eval: $::api . "\n    location /stats { idempotency_stats json; }\n"
--- client
my $other = start_host(free_port());
my @there = (port => $other->{port});

# this host is behind a proxy from now on, the other is not
my $proxy = start_redis_proxy($::store);
edit_config(sub { s/127\.0\.0\.1:$::store->{port}/127.0.0.1:$proxy->{port}/ });
ok(nginx_reload(), 'behind a proxy');

my $key = new_key();
my $c = send_post('/hold?op=o', 'body', { 'Idempotency-Key' => $key });
app_wait_parked('o');
$proxy->tell('silent');
app_release('o');
my $r = $c->read_response;
is($r->body, "run 1\n", 'it ran, and its commit is kept here');
my $id = $r->header('X-Record');

my $outbox = sub { http_get('/stats')->json->{stores}[0]{outbox} };

ok(wait_for(sub { $outbox->()->{kept} }, 10), 'in the outbox');
$::store->command('FLUSHALL');

is(http_request('DELETE', "/ops/records/shared/$id", '', {}, @there)->status,
   404, 'the other host knows of none');

$proxy->tell('cut');
ok(wait_for(sub { my $o = $outbox->(); $o->{lost} + $o->{landed} }, 20),
   'this host is back, and has tried');
is($outbox->()->{lost}, 1, 'its commit is lost');

is(post('/ok?op=o', $key, @there)->body, "run 2\n", 'the key runs again');
is(post('/ok?op=o', $key)->body, "run 2\n", 'and this host replays that');
is(app_count('o'), 2, 'it ran once more, and no more');
ok($other->stop, 'the other left in order');



=== TEST 5: a lost reply to a removal, and a reload with one under way
The record is looked up first; what is lost is the reply to the removal: nothing
else is asked meanwhile.
--- store: redis postgres
--- http_config eval
'    idempotency_store shared $TEST_REMOTE {
        server   127.0.0.1:' . ($::proxy ? $::proxy->{port} : 1) . ';
        timeout  30s;
        ' . ($::is_redis ? '' : 'purge off; wake poll;') . '
    }
'
--- config eval: $::api
--- client
my $key = new_key();
my $id = post('/ok?op=d', $key)->header('X-Record');

$::proxy->tell('lose 1');
is(http_request('DELETE', "/ops/records/shared/$id", '', {})->json->{deleted},
   1, 'deleted, although its reply was lost');
is(http_get("/ops/records/shared/$id")->status, 404, 'it is gone');
is(http_request('DELETE', "/ops/records/shared/$id", '', {})->status, 404,
   'there is none to be deleted twice');
is(post('/ok?op=d', $key)->body, "run 2\n", 'it runs again');

# the first copy leaves something in its place, and the second finds that

$::proxy->tell('lose 1');
is(http_request('DELETE', '/ops/records/shared/' . 'ab' x 32, '', {})->status,
   404, 'of none that there was');

$::proxy->tell('hold');
my $c = send_request('DELETE', "/ops/records/shared/$id", '', {});
ok(nginx_reload(), 'a reload');
$::proxy->tell('cut');
is(($c->read_response(40) or die 'no answer')->json->{deleted}, 1,
   'the old worker answers');
is(post('/ok?op=d', $key)->body, "run 3\n", 'it runs again');



=== TEST 6: a reply that comes after the deletion leaves no copy
--- store: redis
--- http_config eval
"    idempotency_store shared redis {
        server   127.0.0.1:" . ($::proxy ? $::proxy->{port} : 1) . ";
        timeout  30s;
        cache    copies:1m ttl=60s;
    }
" . '
    idempotency_store direct redis {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  localhost;
        location / {
            idempotency           direct;
            idempotency_scope     api;
            idempotency_identity  off;
            add_header            X-Record $idempotency_record always;
            proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
        location /ops/ {
            idempotency_admin;
        }
    }
'
--- config eval: $::api
--- client
$::store->command('FLUSHALL');
$::proxy->tell('cut');

my @there = (port => $ENV{TEST_NGINX_PORT_2});
my $key = new_key();

is(post('/ok?op=warm', new_key())->status, 200, 'connected');
ok(wait_for(sub { ($::store->command('PUBSUB', 'NUMSUB',
                   @{ $::store->command('PUBSUB', 'CHANNELS') })->[1] || 0) >= 1
                }, 5), 'it listens');

my $id = post('/ok?op=a', $key, @there)->header('X-Record');

# the reply stays behind the message that tells of the deletion

$::proxy->tell('after 0');
my $c = send_post('/ok?op=a', 'body', { 'Idempotency-Key' => $key });
$::proxy->tell('kept');

is(http_request('DELETE', "/ops/records/direct/$id", '', {}, @there)
   ->json->{deleted}, 1, 'deleted');
is($c->read_response->body, "run 1\n", 'asked for before that: replayed');

is(post('/ok?op=a', $key)->body, "run 2\n", 'after it: runs again');
is(post('/ok?op=a', $key)->header('X-Status'), 'REPLAYED', 'and is replayed');
is(app_count('a'), 2, 'ran twice');



=== TEST 7: a deletion in a store that only people use here is an event
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
    idempotency_store looked $TEST_REMOTE {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
--- config eval
$::api =~ s/(location \/ops\/ \{)/$1 idempotency_log logs\/ops.json;/r
--- client
my $id = post('/ok?op=a', new_key())->header('X-Record');

is(http_request('DELETE', "/ops/records/looked/$id", '', {})->json->{deleted},
   1, 'deleted');

my @events;

ok(wait_for(sub {
       @events = read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/ops.json")
   }, 8), 'told');
is($events[0]{event}, 'idempotency.record.deleted', 'what');
is($events[0]{record}, $id, 'of which');
is($events[0]{by}, '127.0.0.1', 'by whom');



=== TEST 8: a record that got its outcome after it was listed stays
--- store: redis postgres
--- http_config eval
'    idempotency_store shared $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
    idempotency_store looked $TEST_REMOTE {
        server   127.0.0.1:' . ($::proxy ? $::proxy->{port} : 1) . ';
        timeout  30s;
        ' . ($::is_redis ? '' : 'purge off; wake poll;') . '
    }
'
--- config eval: $::api
--- client
my %key = map { $_ => new_key() } 'a', 'b';
my %c = map {
    $_ => send_post("/hold?op=$_", 'body', { 'Idempotency-Key' => $key{$_} })
} 'a', 'b';

app_wait_parked($_) for 'a', 'b';

my $all = '/ops/records/looked?state=in_progress';

is(scalar(@{ http_get($all)->json->{records} }), 2, 'both run');

# the list is made, and its reply is on its way

$::proxy->tell('late 2000');
my $admin = send_request('DELETE', $all, '', {});
select undef, undef, undef, 1;
app_release('a');
is($c{a}->read_response->body, "run 1\n", 'one is answered meanwhile');
$::proxy->tell('pass');

is($admin->read_response(40)->json->{deleted}, 1, 'the other one is deleted');
is(post('/hold?op=a', $key{a})->header('X-Status'), 'REPLAYED',
   'what was answered is replayed');
is(app_count('a'), 1, 'ran once');

# its lock was deleted, and it still runs

app_release('b');
is($c{b}->read_response->body, "run 1\n", 'the other one');
my $again = send_post('/hold?op=b', 'body', { 'Idempotency-Key' => $key{b} });
is(app_wait_parked('b'), 1, 'runs again, as it was told to');
app_release('b');
is($again->read_response->body, "run 2\n", 'and is answered');



=== TEST 9: a list misses no record that stays, whatever goes between its pages
What expires makes room: SCAN reaches further than with the page before.
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
--- config eval: $::api
--- client
my (@stay, @go, %seen, $cursor);

for my $i (1 .. 400) {
    push @{ $i % 2 ? \@stay : \@go },
         post("/ok?op=p$i", new_key())->header('X-Record');
}

for (1 .. 200) {
    my $r = http_get('/ops/records/shared?limit=7'
                     . ($cursor ? "&cursor=$cursor" : ''))->json;

    $seen{ $_->{record} }++ for @{ $r->{records} };

    $cursor = $r->{cursor} or last;

    for my $id (splice @go, 0, 6) {
        $::is_redis
            ? $::store->command('DEL', "idempotency:$id")
            : $::store->sql("DELETE FROM idempotency.idempotency_keys "
                            . "WHERE id = '\\x$id'", user => 'keeper');
    }
}

is($cursor, undef, 'the list ends');
is(scalar(grep { !$seen{$_} } @stay), 0, 'none that stayed is missing');



=== TEST 10: a user without the rights of the administration
--- store: redis
--- http_config
    idempotency_store shared redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        user      few;
        password  few;
    }
--- config eval: $::api
--- client
$::store->set_user(qw(few on >few ~* &* +@all -scan -strlen));

my $id = post('/ok?op=f', new_key())->header('X-Record');

is(http_get('/ops/health')->status, 200, 'health needs no right');

for ([ 'GET', '' ], [ 'GET', "/$id" ], [ 'DELETE', "/$id" ],
     [ 'DELETE', '?state=completed' ])
{
    my $r = http_request($_->[0], "/ops/records/shared$_->[1]", '', {});

    is($r->status, 403, "$_->[0] $_->[1]: refused");
    is($r->json->{error}{code}, 'STORE_FORBIDDEN', 'its code');
    like($r->body, qr/the user may not do that, give it \+scan \+strlen: /,
         'and what to grant');
}

my $out = qx(build/idempotencyctl --url http://127.0.0.1:$port/ops/ list --store shared 2>&1);

is($? >> 8, 1, 'idempotencyctl exits as for a store that does not answer');
like($out, qr/give it \+scan \+strlen/, 'and says so');

$::store->command(qw(ACL SETUSER few +scan +strlen));
is(http_get("/ops/records/shared/$id")->status, 200, 'with the rights it is there');

# what else is missing is named by Redis itself
for ([ '-evalsha', qr/'evalsha' command/ ], [ 'resetkeys', qr{access (?:one of the keys|a key)} ]) {
    $::store->command('ACL', 'SETUSER', 'few', $_->[0]);

    my $r = http_get('/ops/health');

    is($r->status, 503, "$_->[0]: health");
    like($r->body, qr/the user may not do that: NOPERM .*$_->[1]/, 'what Redis says');
    $::store->command(qw(ACL SETUSER few ~* +evalsha));
}

$::store->command(qw(ACL DELUSER few));



=== TEST 11: a deletion that comes late deletes no later record
--- store: redis postgres
--- http_config eval
'    idempotency_store shared $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_OWN_PORT;
    }
    idempotency_store slow $TEST_REMOTE {
        server   127.0.0.1:' . ($::proxy ? $::proxy->{port} : 1) . ';
        timeout  3s;
        ' . ($::is_redis ? '' : 'purge off; wake poll;') . '
    }
'
--- config eval: $::api
--- client
my %key = map { $_ => new_key() } 'warm', 'found', 'sent';
my %id = map { $_ => post("/ok?op=$_", $key{$_})->header('X-Record') } keys %key;
my %by = map { $_ => "/ops/records/slow/$id{$_}" } keys %id;

is(http_request('DELETE', $by{warm}, '', {})->json->{deleted}, 1, 'there are connections');
is(http_get($by{$_})->status, 200, 'of each') for 'found', 'sent';

my $again = sub {
    my $op = shift;

    is(http_request('DELETE', "/ops/records/shared/$id{$op}", '', {})->json->{deleted}, 1,
       "$op: the record is deleted another way");
    is(post("/ok?op=$op", $key{$op})->body, "run 2\n", "$op: and the request runs again");
    $::proxy->tell('pass');
};

my $stays = sub {
    my $op = shift;

    is(http_get($by{$op})->status, 200, "$op: the deletion that comes then leaves its record");
    is(post("/ok?op=$op", $key{$op})->header('X-Status'), 'REPLAYED', "$op: which is replayed");
    is(app_count($op), 2, "$op: two runs in all");
};

# it was found, and its deletion does not get through

$::proxy->tell('late 1500');
my $admin = send_request('DELETE', $by{found}, '', {});
select undef, undef, undef, 0.5;
$::proxy->tell('deaf');
$again->('found');
isnt($admin->read_response(40)->status, 200, 'found: it tells of no deletion');
$stays->('found');

# nothing gets through

is(http_get($by{sent})->status, 200, 'its connection');
$::proxy->tell('deaf');
is(http_request('DELETE', $by{sent}, '', {})->status, 503, 'sent: no answer');
$again->('sent');
select undef, undef, undef, 0.5;
$stays->('sent');



=== TEST 12: a message of a deletion takes no commit that is kept
It may be late: of a deletion before the request ran.
--- store: redis
--- http_config
    idempotency_store shared redis {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        cache   copies:1m;
    }
--- config eval: ::admin_config('shared', 'idempotency_lease 2s;')
--- client
$::store->command('FLUSHALL');

my $key = new_key();
my $channel;

ok(wait_for(sub { ($channel) = @{ $::store->command('PUBSUB', 'CHANNELS') } }), 'it listens');

my $c = send_post('/ok?op=m&hold=1', 'body', { 'Idempotency-Key' => $key });
app_wait_parked('m');
my ($record) = $::store->keys;

$::store->command(qw(CONFIG SET min-replicas-to-write 1));
app_release('m');
is($c->read_response->body, "run 1\n", 'it ran');
error_log_like(qr/commit in store "shared" failed: .*it is kept here/, 'and its commit is kept');
is($::store->command('PUBLISH', $channel, "$record-"), 1, 'the message comes');

select undef, undef, undef, 2.5;
$::store->command(qw(CONFIG SET min-replicas-to-write 0));

is(post('/ok?op=m&hold=1', $key)->header('X-Status'), 'REPLAYED', 'a retry after the lease');
is(app_count('m'), 1, 'ran once');
