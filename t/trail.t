# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The audit trail in a store: idempotency_log store:<name>.  Events of all hosts
# are in one place, in batches, off the request path; while the store is away
# they are kept as far as there is room, then dropped and counted; they are
# read, exported and removed through idempotency_admin.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';
use File::Temp qw(tempdir);
use JSON::PP;
use Digest::SHA qw(sha256_hex);

our $kind = $ENV{IDEMPOTENCY_STORE} || 'memory';
our ($redis, $pg, $cluster, $sentinels, $own);

if ($kind eq 'redis') {
    $redis = start_redis();
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
    $cluster = start_cluster(masters => 3, replicas => 0);
    $ENV{TEST_NGINX_CLUSTER} = join ' ', $cluster->servers;
    $sentinels = start_sentinels(replicas => 1, sentinels => 3, timeout => 1000);
    $own = "redis { server 127.0.0.1:$redis->{port}; prefix t:; timeout 10s; }";

} elsif ($kind eq 'postgres') {
    $pg = start_postgres('max_connections=60');
    $own = "postgres { server 127.0.0.1:$pg->{port}; database idempotency; "
           . "user nginx; timeout 10s; }";
}

our $note = 'a, b : c';

our $api = <<'_EOC_';
    location / {
        idempotency           trail;
        idempotency_scope     api;
        idempotency_identity  off;
        idempotency_actor     $http_x_actor;
        idempotency_log       store:trail;
        idempotency_log_field note $http_x_note;
        add_header            X-Record $idempotency_record always;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /plain/ {
        idempotency           trail;
        idempotency_actor     $http_x_actor plain;
        idempotency_log       store:trail;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ops/  { idempotency_admin; }
    location /look/ { idempotency_admin read; }
    location /stats { idempotency_stats json; }
_EOC_

sub own { return "    idempotency_store trail " . ($own || "") . "\n" }

sub post {
    my ($uri, $key, $actor, @o) = @_;

    return http_post($uri, 'body', { 'Idempotency-Key' => $key, 'X-Note' => $note,
                                     'X-Actor' => $actor || 'ann' }, @o);
}

# events of the store, as JSON; less those that a busy machine makes, by being
# slow
sub trail { return grep { $_->{event} !~ /storage\.slow/ } whole_trail(@_) }

sub whole_trail {
    my ($more, @o) = @_;

    my $r = http_get('/ops/events?store=trail&follow=0' . ($more || ''), {},
                     @o);
    return map { decode_json($_) } $r->body =~ /^data: (.*)$/mg;
}

sub wait_trail {
    my ($n, $more, @o) = @_;

    my @found;
    wait_for(sub { (@found = trail($more, @o)) >= $n || (sleep(0.05), 0)[1] },
             10);
    return @found;
}

# after a lost reply an event may be there twice, under one id
sub each_once {
    my %seen;
    return grep { !$seen{ $_->{event_id} }++ } @_;
}

sub ctl {
    my $command = join ' ', map { "'$_'" } 'build/idempotencyctl', '--url',
                  "http://127.0.0.1:$port/ops/", @_;
    my $out = qx($command 2>&1);

    return wantarray ? ($out, $? >> 8) : $out;
}

sub dropped { return http_get('/stats')->json->{events_dropped} }

run_tests();

__DATA__

=== TEST 1: a store that keeps no events is refused, and so is a wrong syslog
--- store: memory
--- config
    location / {
        idempotency      on;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /logged {
        idempotency      on;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/ { idempotency_admin; }
--- provokes: idempotency_log|syslog
--- client
for ([ 'store:default', qr/"store:default" in "idempotency_log" directive in .*nginx\.conf:\d+: a store of kind "memory" keeps no events; take a file, syslog/ ],
     [ 'store:nowhere', qr/unknown store "nowhere" in "idempotency_log" directive in/ ],
     [ 'store:', qr/it is "store:<name>"/ ],
     [ 'syslog:foo,x', qr/"syslog:foo,x" in "idempotency_log" directive: it is "syslog:server=/ ],
     [ 'syslog:', qr/"syslog:" in "idempotency_log" directive: it is "syslog:server=/ ],
     [ 'logs/e.json max=5', qr/it is "level=\.\.\." or "sample=\.\.\."/ ])
{
    my ($value, $message) = @$_;

    edit_config(sub { s{(location /logged \{)}{$1 idempotency_log $value;} });
    ok(!nginx_reload(), "$value is refused");
    error_log_like($message, 'and why');
    edit_config(sub { s{ idempotency_log \Q$value\E;}{} });
}

is(http_get('/ops/events?store=default')->json->{error}{code}, 'NO_EVENTS',
   'and nobody asks it for events');



=== TEST 2: events of all hosts are in one place
--- store: redis postgres
--- http_config eval: ::own()
--- config eval: $::api
--- client
my $other = start_host(free_port());
my @there = (port => $other->{port});
my $key = new_key();
my $id = post('/ok?op=a', $key)->header('X-Record');
post('/ok?op=a', $key, 'bob', @there);

my @found = wait_trail(3, "&record=$id");

is(join(' ', sort map { $_->{event} } @found), 'idempotency.key.created '
   . 'idempotency.processed idempotency.replay', 'all events of the record');

my ($replay) = grep { $_->{event} eq 'idempotency.replay' } @found;

is($replay->{level}, 'info', 'a level');
is($replay->{record}, $id, 'the record');
is($replay->{actor}, sha256_hex('bob'), 'who');
like($replay->{timestamp}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'when');
like($replay->{event_id}, qr/^\S{16,}$/, 'its id');
is($replay->{status}, 200, 'and the rest');
is($replay->{note}, $::note, 'a field with spaces');

like(http_get("/ops/events?store=trail&follow=0&record=$id")->body, qr/"record":"$id"/, 'as a log has it');

is(scalar(trail("&record=$id", @there)), 3, 'every host can tell');
is(scalar(trail("&key=$key&scope=api")), 3, 'by the key');
is(scalar(trail("&actor=bob")), 1, 'by an actor');

# by name where it is plain, whatever it has in it, and nobody else's
for my $actor ("m\xc3\xbcller", 'm__ller', 'a"b', 'a_b', 'a\\b') {
    post('/plain/ok?op=p', new_key(), $actor);
    my $name = $actor =~ s/([^\w])/sprintf '%%%02X', ord $1/ger;
    is(scalar(wait_trail(2, "&actor=$name")), 2, "by a plain actor, $name");
}
is(scalar(trail('&since=1h')), scalar(trail('')), 'since an hour');
is(scalar(trail('&since=2000-01-01&until=2000-01-02')), 0, 'of a day');
is(http_get('/ops/events?store=trail&since=ever')->status, 400, 'or not');

# tail of the other host's events, from here
my $pid = open my $tail, '-|', 'build/idempotencyctl', '--url',
               "http://127.0.0.1:$port/ops/", 'tail', '--store', 'trail',
               '--record', $id, '--since', '1h' or die $!;
is(decode_json(scalar <$tail>)->{record}, $id, 'tail tells what was') for 1 .. 3;
post('/ok?op=a', $key, 'eve', @there);
is(decode_json(scalar <$tail>)->{actor}, sha256_hex('eve'), 'and what is');
kill 'TERM', $pid;
close $tail;

ok($other->stop, 'it left in order');
is(dropped(), 0, 'nothing was dropped');



=== TEST 3: a worker that leaves flushes what it has
--- store: redis postgres
--- http_config eval: ::own()
--- config eval: $::api
--- client
my @ids = map { post("/ok?op=l$_", new_key(), 'leaver')->header('X-Record') } 1 .. 20;
my $old = (nginx_workers())[0];
kill 'QUIT', $old;
ok(wait_for(sub { !kill 0, $old }, 10), 'it left');

my %seen = map { $_->{record} => 1 } wait_trail(40, '&actor=leaver');
is(scalar(grep { $seen{$_} } @ids), 20, 'of all requests');
is(scalar(trail('&actor=leaver')), 40, 'each event once');
is(dropped(), 0, 'nothing was dropped');



=== TEST 4: retention, export and deletion by actor
--- store: redis postgres
--- http_config eval: ::own()
--- config eval: $::api
--- client
my $dir = tempdir(CLEANUP => 1);
post("/ok?op=e$_", new_key(), $_ % 2 ? 'odd' : 'even') for 1 .. 6;
is(scalar(wait_trail(6, '&actor=odd')), 6, 'two events of each of three');
wait_trail(6, '&actor=even');

my ($out, $code) = ctl('export', '--store', 'trail', '--dir', $dir);
my $all = whole_trail('');
is("$out$code", "exported $all events\n0", 'exported');

my @files = glob "$dir/events-????-??-??.json";
ok(@files >= 1, 'a file for each day');
is(`cat @files | wc -l` + 0, $all, 'with a line for each event');
is(`cat @files | grep -c @{[ sha256_hex('odd') ]}` + 0, 6, 'those of one actor');

is((ctl('export', '--store', 'trail', '--dir', $dir, '--older', '90d'))[0],
   "exported 0 events\n", 'none is older than 90 days');
is((ctl('cleanup', '--events', '--store', 'trail', '--older', '90d'))[0],
   "deleted 0 events\n", 'and none is deleted');
is((ctl('purge', '--events', '--store', 'trail', '--actor', 'odd', '--dry-run'))[0],
   "would delete 6 events\n", 'a dry run');
is((ctl('purge', '--events', '--store', 'trail', '--actor', 'odd'))[0],
   "deleted 6 events\n", 'deleted by actor');
is(scalar(trail('&actor=odd')), 0, 'they are gone');
is(scalar(trail('&actor=even')), 6, 'the others are there');

is(http_request('DELETE', '/look/events?store=trail&older=1s', '', {})->status,
   403, 'not where it is read only');
is(http_request('DELETE', '/ops/events?store=trail', '', {})->json->{error}{code},
   'FILTER_MISSING', 'not all');

# what is ignored in a deletion would delete more than was meant

for ([ 'older=0s&tenant=a', 'ARGUMENT_UNKNOWN' ],
     [ 'older=0s&actor=', 'FILTER_EMPTY' ],
     [ 'older=0s&dryrun=1', 'ARGUMENT_UNKNOWN' ],
     [ 'older=0s&scope=a', 'ARGUMENT_UNKNOWN' ],
     [ 'older=0s&older=90d', 'ARGUMENT_INVALID' ],
     [ 'older=0s&actor=%4', 'ARGUMENT_INVALID' ],
     [ 'older=2026-13-01', 'ARGUMENT_INVALID' ],
     [ 'older=2026-02-30', 'ARGUMENT_INVALID' ],
     [ 'older=2026-01-28T10:00:00%2B02:00', 'ARGUMENT_INVALID' ],
     [ 'actor=even&key=a', 'FILTER_INVALID' ])
{
    my ($args, $error) = @$_;
    my $r = http_request('DELETE', "/ops/events?store=trail&$args", '', {});

    is($r->status, 400, "DELETE events?$args");
    is($r->json->{error}{code}, $error, $error);
}

is(http_request('DELETE', '/ops/events?store=trail&older=0026-01-28', '', {})
   ->json->{deleted}, 0, 'none is older than nginx');
is((ctl('cleanup', '--events', '--store', 'trail', '--older', '0s', '--tenant',
        'a'))[1], 2, 'cleanup of events by tenant');
is((ctl('purge', '--events', '--store', 'trail', '--actor', 'even', '--tenant',
        'a'))[1], 2, 'or purge');
is(scalar(trail('&actor=even')), 6, 'nothing was deleted');
is((ctl('tail', '--since', '1h'))[1], 2, 'tail wants a store');

# a scope is a namespace: the same key elsewhere is another record

my $key = new_key();

post('/ok?op=k', $key, 'even');
post('/plain/ok?op=k', $key, 'even');
is(scalar(wait_trail(4, "&key=$key")), 4, 'a key in two scopes');
is(scalar(trail("&key=$key&scope=api")), 2, 'one scope');
is(http_request('DELETE', "/ops/events?store=trail&key=$key&scope=api", '', {})
   ->json->{deleted}, 2, 'deleted in one scope');
is(scalar(trail("&key=$key")), 2, 'not in the other');
is(http_request('DELETE', "/ops/events?store=trail&key=$key", '', {})
   ->json->{deleted}, 2, 'by the key in every scope');

sleep 1.1;
is((ctl('cleanup', '--events', '--store', 'trail', '--older', '1s'))[0],
   'deleted ' . ($all - 6) . " events\n", 'deleted by age');
is(scalar(whole_trail('')), 0, 'none is left');



=== TEST 5: a store that is away: kept, then dropped and counted; no request waits
--- store: redis
--- http_config
    idempotency_store trail redis {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix           away:;
        timeout          300ms;
        connect_timeout  300ms;
    }
--- config
    location / {
        idempotency           on;
        idempotency_identity  off;
        idempotency_log       store:trail max=50;
        idempotency_actor     $http_x_actor;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/  { idempotency_admin; }
    location /stats { idempotency_stats json; }
--- provokes: events could not be written to store "trail"
--- client_timeout: 120
--- client
post('/ok?op=w', new_key());
wait_trail(2);

$::redis->pause;
my $key = new_key();
post('/ok?op=k', $key, 'kept');
post('/ok?op=k', $key, 'kept') for 1 .. 20;
error_log_like(qr/events could not be written to store "trail"/, 'it is told');
is(dropped(), 0, 'nothing is dropped yet');
is(http_get('/ops/events?store=trail&follow=0')->status, 503, 'nobody can read');

$::redis->resume;
ok(wait_for(sub { each_once(trail('&actor=kept')) >= 22
                  || (sleep(0.05), 0)[1] }, 30), 'all came in the end');
is(scalar(each_once(trail('&actor=kept'))), 22, 'and no other');

$::redis->pause;
my $n = 0;
ok(wait_for(sub { post('/ok?op=k', $key, 'lost'); ++$n; dropped() > 0 }, 120),
   'at last they are dropped, and counted');
cmp_ok($n, '>', 50, 'not before there were many');
$::redis->resume;

is((grep { $_->{actor} eq sha256_hex('after') }
         wait_for(sub { post('/ok?op=k', $key, 'after'); trail('&actor=after') },
                  10) ? trail('&actor=after') : ())[0]{event},
   'idempotency.replay', 'and it goes on');
ok(wait_for(sub { my $l = $::redis->command('XLEN', 'away:events');
                  $l >= 50 && $l < 400 }, 10), 'about "max" of them stay');



=== TEST 6: in a cluster, one server has the stream
--- store: redis
--- http_config
    idempotency_store trail redis {
        server   $TEST_NGINX_CLUSTER;
        cluster  on;
    }
--- config eval: $::api
--- client
post("/ok?op=c$_", new_key(), 'clu') for 1 .. 10;
is(scalar(wait_trail(20, '&actor=clu')), 20, 'all of them');
is(scalar(grep { eval { $_->command('XLEN', 'idempotency:events') } } $::cluster->nodes), 1,
   'on one server');



=== TEST 7: native commands are used after people asked
--- store: redis
--- http_config eval: ::own()
--- config eval: $::api
--- client
my $id = post('/ok?op=n', new_key())->header('X-Record');
http_get("/ops/records/trail/$id") for 1 .. 2;
http_get('/ops/records/trail') for 1 .. 2;
wait_trail(2, "&record=$id");

return pass('there are none') if !$::redis->knows('NX GET');

$::redis->reset_calls;
post("/ok?op=n$_", new_key()) for 1 .. 3;
my $commands = $::redis->commands;
cmp_ok($commands->{SET} || $commands->{set} || 0, '>=', 3, 'SET begins');



=== TEST 8: behind sentinels, also after a failover
--- store: redis
--- http_config eval
"    idempotency_store trail redis {
        sentinel  " . ($::sentinels ? CORE::join(' ', $::sentinels->servers) : 'none') . " master=main;
        timeout   2s;
    }
"
--- config eval: $::api
--- client
my $before = post('/ok?op=s', new_key(), 'sen');
is(scalar(wait_trail(2, '&actor=sen')), 2, 'by way of the master');

# the old master takes writes for a while: what counts is what the new one has

my $new = $::sentinels->fail_over;
my $ter = sha256_hex('ter');
my $has;
$has = sub { return ref $_[0] ? scalar grep { $has->($_) } @{ $_[0] }
                              : ($_[0] // '') =~ /$ter/ };

ok(wait_for(sub { post('/ok?op=t', new_key(), 'ter')->status == 200
                  && $has->($new->command(qw(XRANGE idempotency:events - +)))
                  || (sleep(0.2), 0)[1] }, 30), 'the next one gets events');
ok(wait_for(sub { trail('&actor=ter') || (sleep(0.2), 0)[1] }, 10),
   'and tells them');

my $id = post('/ok?op=u', new_key(), 'ter')->header('X-Record');
ok((grep { $_->{record} eq $id }
         @{ http_get('/ops/records/trail?limit=1000')->json->{records} }),
   'its records are listed');
is(http_request('DELETE', "/ops/records/trail/$id", '', {})->json->{deleted}, 1,
   'and deleted');



=== TEST 9: a deletion of events that the store does not answer
--- store: redis postgres
--- http_config eval: ::own()
--- config eval: $::api
--- provokes: timed out|did not answer|could not be written
--- client
my $server = $::redis || $::pg;

post("/ok?op=f$_", new_key(), 'fail') for 1 .. 3;
is(scalar(wait_trail(6, '&actor=fail')), 6, 'events');

$server->pause;
my $r = http_request('DELETE', '/ops/events?store=trail&actor=fail', '', {});
$server->resume;

is($r->status, 503, 'the store is away');
is($r->json->{ok}, JSON::PP::false, 'and that is said');

# what the server has read by then it does when it goes on

ok(wait_for(sub { http_request('DELETE', '/ops/events?store=trail&actor=fail',
                               '', {})->status == 200 }, 10),
   'it is deleted when it is asked again');
is(scalar(trail('&actor=fail')), 0, 'all of it');
is(scalar(trail('')) > 0, 1, 'and nothing else')
    if post('/ok?op=g', new_key(), 'other') && wait_trail(2, '&actor=other');
--- no_check_log



=== TEST 10: a worker leaves while its log is full and the store away
--- store: redis
--- http_config
    idempotency_store trail redis {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix           leave:;
        timeout          300ms;
        connect_timeout  300ms;
    }
--- config
    location / {
        idempotency           on;
        idempotency_identity  off;
        idempotency_log       store:trail;
        idempotency_actor     $http_x_actor;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/  { idempotency_admin; }
    location /stats { idempotency_stats json; }
--- client
my $key = new_key();

post('/ok?op=k', $key, 'first');
wait_trail(2, '&actor=first');

$::redis->pause;
ok(wait_for(sub { post('/ok?op=k', $key, 'lost'); dropped() > 0 }, 40),
   'the log is full');

my $before = dropped();
my $old = (nginx_workers())[0];
kill 'QUIT', $old;
ok(wait_for(sub { !kill 0, $old }, 20), 'the worker leaves all the same');
my $n = dropped() - $before;
$::redis->resume;

ok(wait_for(sub { post('/ok?op=k', $key, 'next'); trail('&actor=next') }, 15),
   'the next one goes on');
cmp_ok($n, '>', 50, 'what the old one could not send is counted');
--- no_check_log



=== TEST 11: a user without the rights for events
--- store: redis
--- http_config
    idempotency_store trail redis {
        server    127.0.0.1:$TEST_NGINX_OWN_PORT;
        prefix    rights:;
        user      few;
        password  few;
    }
--- config
    location / {
        idempotency      on;
        idempotency_log  store:trail;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/  { idempotency_admin; }
--- provokes: events could not be written to store "trail"
--- client
$::redis->command(qw(ACL SETUSER few on >few ~* &* +@all -xadd -xrange -xdel));

http_post('/ok?op=k', 'x', { 'Idempotency-Key' => new_key() });
error_log_like(qr/events could not be written to store "trail": the user may not do that, give it \+xadd: [^\n]*[^.]; it is tried again/,
               'the right is named');

for ([ 'GET', 'follow=0', '' ],
     [ 'DELETE', 'older=1h', ' 0 events were deleted before that.' ])
{
    my ($method, $args, $more) = @$_;
    my $r = http_request($method, "/ops/events?store=trail&$args", '', {});

    is($r->status, 403, "$method: refused");
    like($r->json->{error}{message},
         qr/^Store "trail" refuses: the user may not do that, give it \+xrange \+xdel: (?:(?!deleted).)*[^.]\.\Q$more\E$/,
         'and why');
}

$::redis->command(qw(ACL SETUSER few +xadd +xrange));
ok(wait_for(sub { http_get('/ops/events?store=trail&follow=0')->body =~ /key\.created/ }, 10),
   'with the rights they are there');
