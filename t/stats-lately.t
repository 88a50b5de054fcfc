# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What happened lately, in the figures: records of any store are counted, the
# locks held longest and the last conflicts are told by their ids; a store that
# is away is told with its reason, and forgotten when it is back; rows of the
# last hour.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our ($server);

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $server = start_remote();
    $ENV{TEST_NGINX_OWN_PORT} = $server->{port};
}

our $away = <<'_EOC_';
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        connect_timeout  400ms;
        timeout          400ms;
    }
_EOC_

sub figures {
    return parse_prometheus(http_get('/stats', { Accept => 'text/plain' })
                                ->body);
}

sub store {
    return http_get('/stats?format=json' . ($_[0] // ''))->json->{stores}[0];
}

sub gauge { return sample(figures(), "nginx_idempotency_$_[0]", @_[1 .. $#_]) }

run_tests();

__DATA__

=== TEST 1: records are counted, the oldest lock and the last conflicts are told
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency        $TEST_STORE;
        idempotency_group  api;
        idempotency_wait   0;
        add_header         X-Record $idempotency_record always;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @keys = map { { 'Idempotency-Key' => new_key() } } 1 .. 6;

http_post('/size?n=2000', 'x', $_) for @keys;

my $conflict = http_post('/size?n=2000', 'y', $keys[2]);

is($conflict->status, 409, 'a conflict');

my $held = { 'Idempotency-Key' => new_key() };
my $c = send_post('/hold?op=h', 'x', $held);

app_wait_parked('h');

my $record = http_post('/hold?op=h', 'x', $held)->header('X-Record');

select undef, undef, undef, 1.2;
figures();                                       # begins to count

my $state = sub { gauge('records', state => $_[0]) };

ok(wait_for(sub { ($state->('completed') // 0) == 6 }, 15), 'six are counted');
is($state->('in_progress'), 1, 'one is in progress');
cmp_ok(gauge('store_bytes'), '>=', 12000, 'their bytes');
ok(wait_for(sub { defined gauge('scan_age_seconds') }, 15),
   'says how old that is');
cmp_ok(gauge('oldest_lock_seconds'), '>=', 1, 'age of the lock');
is(gauge('locks', age => '0-1m'), 1, 'a lock of up to a minute');
is(gauge('locks', age => $_), 0, "none of $_") for '1-5m', '5m+';

my $store = store();

is($store->{backend}, $ENV{IDEMPOTENCY_STORE} || 'memory', 'the true kind');
is_deeply([ map { $_->{record} } @{ $store->{longest_held} } ], [ $record ],
          'held longest');
is_deeply([ map { "$_->{record} $_->{kind} $_->{group}" }
            @{ $store->{last_conflicts} } ],
          [ $conflict->header('X-Record') . ' payload api' ],
          'the last conflict');
cmp_ok(abs($store->{last_conflicts}[0]{time} - time), '<', 60, 'just now');

my $text = http_get('/stats?format=json&history=1')->body;

unlike($text, qr/\Q$_->{'Idempotency-Key'}\E/, 'never a key')
    for @keys, $held;

# waits and locks have a group

my $f = figures();

is(sample($f, 'nginx_idempotency_lock_held_seconds_count', group => 'api'), 6,
   'locks by group');
is(sample($f, 'nginx_idempotency_request_duration_seconds_count',
          group => 'api', replayed => 'false'), 8,
   'durations by group: six that ran, a conflict, one that was busy');
is(sample($f, 'nginx_idempotency_wait_seconds_count', group => 'api'), 0,
   'waits by group, noughts as well');

app_release('h');
is($c->read_response->status, 200, 'the holder');

# rows: one at once, then one every ten seconds

ok(wait_for(sub { @{ store('&history=1')->{history}{rows} } }, 15),
   'a row of the last hour');

my $history = store('&history=1')->{history};
my %row;

@row{ @{ $history->{columns} } } = @{ $history->{rows}[0] };

is($history->{every}, 10, 'every ten seconds');
is(@{ $history->{columns} }, @{ $history->{rows}[0] }, 'a number each');
cmp_ok(abs($row{time} / 1000 - time), '<', 60, 'of now');
cmp_ok($row{EXECUTED}, '<=', 7, 'outcomes');

my $json = http_get('/stats?format=json')->json;

ok(length $json->{host}, 'the host');
cmp_ok($json->{uptime}, '<', 600, 'and since when');



=== TEST 2: a store that is away, and why; and that it was, when it is back
--- http_config eval: $::away
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- store: redis postgres
--- client
my $key = sub { return { 'Idempotency-Key' => new_key() } };

is(http_post('/ok', 'x', $key->())->status, 200, 'well');
is(gauge('store_up'), 1, 'up');
ok(!store()->{outage} && !store()->{last_outage}, 'no outage');

$::server->kill_it;

my $from = time;

ok(wait_for(sub { http_post('/ok', 'x', $key->())->status == 503 }, 15),
   'away');
is(gauge('store_up'), 0, 'not up');

my $outage = store()->{outage};

cmp_ok($outage->{since}, '>=', $from - 1, 'since when');
cmp_ok($outage->{since}, '<=', time, 'not later than now');
like($outage->{error}, qr/\w/, "why: $outage->{error}");

select undef, undef, undef, 1.1;
http_post('/ok', 'x', $key->());
is(store()->{outage}{since}, $outage->{since}, 'the same outage');

$::server->spawn;

ok(wait_for(sub { http_post('/ok', 'x', $key->())->status == 200 }, 20),
   'back');
is(gauge('store_up'), 1, 'up');

my $store = store();

ok(!$store->{outage}, 'it is over');
is($store->{last_outage}{since}, $outage->{since}, 'and is remembered');
cmp_ok($store->{last_outage}{until}, '>=', $outage->{since} + 1, 'its end');

# nobody sends a request: whoever looks finds out that it is back

$::server->kill_it;
ok(wait_for(sub { http_post('/ok', 'x', $key->())->status == 503 }, 15),
   'away again');
$::server->spawn;
ok(wait_for(sub { gauge('store_up') == 1 }, 30), 'up, without a request');
--- no_check_log



=== TEST 3: operations that wait for a connection
--- http_config
    idempotency_store shared redis {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        connections      1;
        timeout          8s;
    }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- store: redis
--- client
is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'well');
is(gauge('store_queued'), 0, 'nothing is queued');

# who is connected anew gets no answer, and nothing can be sent

$::server->kill_it;

my $silent = IO::Socket::INET->new(LocalAddr => '127.0.0.1',
                                   LocalPort => $::server->{port}, Listen => 50,
                                   ReuseAddr => 1) or die "silent: $!";

my @c = map { send_post('/ok', 'x', { 'Idempotency-Key' => new_key() }) }
            1 .. 5;

ok(wait_for(sub { gauge('store_queued') >= 5 }, 6), 'five are queued');

close $silent;
$::server->spawn;
$_->read_response(20) for @c;

ok(wait_for(sub { gauge('store_queued') == 0 }, 10), 'and are not any more');
--- no_check_log



=== TEST 4: a store that nobody uses any more is not full of what has expired
--- http_config
    idempotency_store default memory { zone orders:128k; }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency      on;
        idempotency_ttl  300ms;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- store: memory
--- client
my $empty = gauge('store_bytes');

http_post('/size?n=2000', 'x', { 'Idempotency-Key' => new_key() })
    for 1 .. 20;
cmp_ok(gauge('store_bytes'), '>', $empty + 20000, 'it filled up');
ok(wait_for(sub { gauge('store_bytes') == $empty }, 15), 'and is empty again');
is(gauge('records'), 0, 'without a record');
cmp_ok(gauge('records_expired_total'), '>=', 20, 'which expired');



=== TEST 5: how full a server is, if it has a limit and the user may ask
--- store: redis
--- http_config
    idempotency_store shared redis {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix  full:;
    }
    idempotency_store humble redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix    humble:;
        user      humble;
        password  secret;
    }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /humble/ {
        idempotency  humble;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
--- client
$::server->command(qw(CONFIG SET maxmemory 67108864));
$::server->set_user(qw(humble on >secret ~* &* +@all -@dangerous));
$::server->command(qw(CONFIG RESETSTAT));

for ('/', '/humble/') {
    is(http_post("${_}size?n=2000", 'x', { 'Idempotency-Key' => new_key() })
           ->status, 200, 'ran');
}

figures();

SKIP: {
    skip 'the server can not tell rights', 4
        if !$::server->knows('rights');

    ok(wait_for(sub { gauge('store_size_bytes', store => 'shared') }, 15),
       'a size is told');
    is(gauge('store_size_bytes', store => 'shared'), 67108864, 'maxmemory');
    cmp_ok(gauge('server_used_bytes', store => 'shared'), '>', 100000,
           'with what is in use');

    my ($s) = grep { $_->{name} eq 'shared' }
              @{ http_get('/stats?format=json')->json->{stores} };
    is($s->{size}, 67108864, 'in JSON, too');
}

ok(wait_for(sub { gauge('records', store => 'humble',
                        state => 'completed') }, 15), 'who may not is counted');
is(gauge($_, store => 'humble'), undef, "without $_")
    for qw(store_size_bytes server_used_bytes);
unlike($::server->command('INFO', 'errorstats'), qr/NOPERM/,
       'and did not ask');
is(scalar @{ $::server->command('ACL', 'LOG') }, 0, 'nor was refused');

$::server->command(qw(CONFIG SET maxmemory 0));



=== TEST 6: what a store takes: keys and records, or the table
--- store: redis postgres
--- http_config eval: $::away
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
http_post('/size?n=2000', 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 3;
figures();

ok(wait_for(sub { (gauge('records', store => 'shared', state => 'completed')
                   // 0) >= 3 }, 30), 'counted');

my $bytes = gauge('store_bytes', store => 'shared');
my ($json) = grep { $_->{name} eq 'shared' }
             @{ http_get('/stats?format=json')->json->{stores} };

is($json->{bytes}, $bytes, 'in JSON, too');

if ($ENV{IDEMPOTENCY_STORE} eq 'postgres') {
    is($bytes, $::server->sql("SELECT pg_total_relation_size("
                              . "'idempotency.idempotency_keys')"),
       'the table, its indexes and large responses');
    is(gauge($_, store => 'shared'), undef, "there is no $_")
        for qw(store_size_bytes server_used_bytes);

    $::server->sql('TRUNCATE idempotency.idempotency_keys', user => 'keeper');
    ok(wait_for(sub { (gauge('records', store => 'shared',
                             state => 'completed') // 1) == 0 }, 40),
       'a table without a record');
    is(gauge('store_bytes', store => 'shared'),
       $::server->sql("SELECT pg_total_relation_size("
                      . "'idempotency.idempotency_keys')"), 'has its size, too');

} else {
    my $sum = 0;

    for my $key (@{ $::server->command('KEYS', '*') }) {
        $sum += length($key) + $::server->command('STRLEN', $key)
            if $key =~ /^idempotency:[0-9a-f]{64}$/;
    }

    is($bytes, $sum, 'keys and whole records');
    cmp_ok($bytes, '>', 6000, 'which have a size');
}



=== TEST 7: a lock of a holder that is gone is not an old lock, but under hold
--- provokes: exited on signal 9
--- workers: 1
--- config
    location = /stats { idempotency_stats; }

    idempotency_lease  1s;

    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /keep/ {
        idempotency                  $TEST_STORE;
        idempotency_unknown_outcome  hold;
        add_header                   X-Record $idempotency_record always;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
--- client
my $held = { 'Idempotency-Key' => new_key() };

send_post('/hold?op=g', 'x', { 'Idempotency-Key' => new_key() });
app_wait_parked('g');
send_post('/keep/hold?op=k', 'x', $held);
app_wait_parked('k');
kill_worker();
select undef, undef, undef, 1.6;

my $record = http_post('/keep/hold?op=k', 'x', $held)->header('X-Record');

figures();
ok(wait_for(sub { defined gauge('scan_age_seconds') }, 20), 'counted');
is_deeply([ map { $_->{record} } @{ store()->{longest_held} } ], [ $record ],
          'that one which nobody can have again');



=== TEST 8: who may not list records of Redis is told no number, and refused nothing
--- store: redis
--- http_config
    idempotency_store shared redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix    "sto[re]:";
        user      clerk;
        password  secret;
    }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
$::server->set_user(qw(clerk on >secret resetkeys), '~sto\\[re\\]:*',
                    qw(&* +@all -scan -strlen));
$::server->command(qw(ACL LOG RESET));
$::server->command(qw(CONFIG RESETSTAT));

my $scripts = sub {
    my $calls = $::server->calls;
    return ($calls->{eval} // 0) + ($calls->{evalsha} // 0);
};

is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'ran');

my $before = $scripts->();

figures();
ok(wait_for(sub { $scripts->() > $before }, 15), 'the server was asked');
figures();

SKIP: {
    skip 'the server can not tell rights', 2
        if !$::server->knows('rights');

    is($::server->command('INFO', 'errorstats') =~ s/^#.*\s*//r, '',
       'no error in its statistics');
    is(scalar @{ $::server->command('ACL', 'LOG') }, 0, 'nor in its log');
}

is(gauge('records', state => 'completed'), undef, 'no number');
is(gauge('store_up'), 1, 'the store is not away');

$::server->command(qw(ACL SETUSER clerk +scan +strlen));
ok(wait_for(sub { (gauge('records', state => 'completed') // 0) == 1 }, 30),
   'with the rights it is counted');
is($::server->command('ACL', 'DELUSER', 'clerk'), 1, 'gone');



=== TEST 9: nginx counts records of PostgreSQL without the right to list them
--- store: postgres
--- http_config
    idempotency_store shared postgres {
        server  127.0.0.1:$TEST_NGINX_OWN_PORT;
        user    clerk;
    }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  shared;
        add_header   X-Record $idempotency_record always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
$::server->sql('CREATE ROLE clerk LOGIN; GRANT idempotency_nginx TO clerk',
               user => 'keeper');

# more than a slice has, and all in one store

$::server->sql(<<'_EOC_', user => 'keeper');
INSERT INTO idempotency.idempotency_keys (id, token, claim, state, created_at,
            lease_until, completed_at, expires_at, forget_at, purge_at)
SELECT sha256(i::text::bytea), decode(repeat('00', 16), 'hex'),
       decode('01' || repeat('00', 68), 'hex'), 2, now(), now(), now(),
       now() + interval '1 h', now() + interval '1 h', now() + interval '2 h'
  FROM generate_series(1, 250) i
_EOC_

my $held = { 'Idempotency-Key' => new_key() };
my $c = send_post('/hold?op=h', 'x', $held);

app_wait_parked('h');
figures();
ok(wait_for(sub { (gauge('records', state => 'completed') // 0) == 250 }, 30),
   'all are counted');
is(gauge('records', state => 'in_progress'), 1, 'and the lock');
is(gauge('locks', age => '0-1m'), 1, 'by its age');
cmp_ok(gauge('store_bytes'), '>', 8192, 'their bytes');

app_release('h');

my $record = $c->read_response->header('X-Record');
my ($longest) = @{ store()->{longest_held} };

is($longest->{record}, substr($record, 0, 16) . '0' x 48,
   'of an id as much as leads to no record');
ok(!exists $longest->{host}, 'and no label');

is($::server->sql('SELECT count(*) FROM idempotency.idempotency_tally(NULL, 300) '
                  . 'WHERE substr(o_id, 9) <> decode(repeat($$00$$, 24), $$hex$$) '
                  . 'OR substr(o_claim, 14) <> decode(repeat($$00$$, 56), $$hex$$) '
                  . 'OR o_details IS NOT NULL', user => 'clerk'), 0,
   'nor by asking for it');
unlike($::server->log, qr/permission denied/, 'no error on the server');

$::server->sql('TRUNCATE idempotency.idempotency_keys; DROP OWNED BY clerk; '
               . 'DROP ROLE clerk', user => 'postgres');
