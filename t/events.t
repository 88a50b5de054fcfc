# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_log: every event that the embedded store can have, as a line of
# JSON; nothing of a key, a body or a credential in it, nor in what the module
# writes to error.log at debug level; and a log that never stands in the way
# of a request.

use strict;
use warnings;
use lib 't/lib';
use IO::Select;
use IO::Socket::INET;
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our $syslog = IO::Socket::INET->new(Proto => 'udp', LocalAddr => '127.0.0.1')
    or die "no socket: $!\n";
our $syslog_port = $syslog->sockport;

our $stats = <<'_EOC_';
    location = /stats {
        idempotency_stats;
    }
_EOC_

our $api = <<'_EOC_';
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;

    location / {
        idempotency       $TEST_STORE;
        add_header        X-Key-Hash $idempotency_key_hash always;
        add_header        X-Record $idempotency_record always;
        proxy_set_header  X-Pid $pid;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# events of that name; all if there is none

sub events {
    my ($name, $file) = @_;

    return grep { !$name || $_->{event} eq "idempotency.$name" }
                read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/"
                            . ($file // 'events.json'));
}

# once there are that many of them; lines are written when they are a second
# old, or when the file is reopened

sub wait_events {
    my ($name, $n, $file) = @_;

    kill USR1 => nginx_master() if events($name, $file) < $n;

    wait_for(sub { events($name, $file) >= $n });
    my @events = events($name, $file);

    is(scalar @events, $n, "$n of " . ($name ? "idempotency.$name" : 'all'));
    return @events;
}

# how many were dropped; and those that say that a storage was slow, which is up
# to the machine, two for each request at most and none of the embedded one

sub dropped {
    return sample(parse_prometheus(http_get('/stats')->body),
                  'nginx_idempotency_events_dropped_total');
}

sub is_dropped {
    my ($requests, $name) = @_;

    my $slow = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 0 : 2;
    my $all = 2 * $requests;
    my $n = dropped();

    ok($n >= $all && $n <= $all + $slow * $requests, $name)
        or diag("$n, not $all");
}

run_tests();

__DATA__

=== TEST 1: ran, replayed, conflict, and what a line has
--- config eval: $::api
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/ok', 'x', \%key);
http_post('/ok', 'x', \%key);
my $conflict = http_post('/ok', 'y', \%key);

is($conflict->status, 409, 'conflict');

# by itself, within a second or so

ok(wait_for(sub { events() == 4 }), 'four events');

my @events = events();

is_deeply([ map { $_->{event} } @events ],
          [ map { "idempotency.$_" } qw(key.created processed replay conflict) ],
          'one after the other');
is_deeply([ map { $_->{level} } @events ], [ qw(info info info error) ],
          'their levels');

for my $e (@events) {
    my $name = $e->{event};

    like($e->{timestamp}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
         "$name: timestamp");
    is($e->{component}, 'idempotency', "$name: component");
    like($e->{store}, qr/^\w+$/, "$name: store");
    is($e->{key_hash}, $first->header('X-Key-Hash'), "$name: key_hash");
    is($e->{record}, $first->header('X-Record'), "$name: record");
    like($e->{record}, qr/^[0-9a-f]{64}$/, "$name: of its form");
    is($e->{method}, 'POST', "$name: method");
    is($e->{uri_group}, 'localhost', "$name: uri_group");
    like($e->{duration_ms}, qr/^\d+$/, "$name: duration_ms");
}

is($events[0]{status}, undef, 'no status before there is one');
is($events[1]{status}, 200, 'status of the one that ran');
is($events[2]{status}, 200, '... was replayed');
is($events[3]{status}, 409, '... was refused');
is($events[1]{outcome}, 'EXECUTED', 'outcome');
is($events[2]{outcome}, 'REPLAYED', 'outcome');
is($events[3]{outcome}, 'CONFLICT', 'outcome');



=== TEST 2: the other outcomes are processed
--- config eval
$::api . <<'_EOC_';
    idempotency_bypass  $http_x_bypass;
_EOC_
--- client
http_post('/ok', 'x', { 'Idempotency-Key' => 'two words' });
http_post('/status/503', 'x', { 'Idempotency-Key' => new_key() });
http_post('/reset', 'x', { 'Idempotency-Key' => new_key() });
http_post('/ok', 'x');
http_post('/ok', 'x', { 'Idempotency-Key' => new_key(), 'X-Bypass' => 1 });
http_post('/ok', 'x', { 'Idempotency-Key' => new_key() });

my @events = wait_events('processed', 4);

is_deeply([ map { $_->{outcome} } @events ],
          [ qw(INVALID RELEASED UNKNOWN EXECUTED) ], 'by their outcome');
is_deeply([ map { $_->{status} } @events ], [ 400, 503, 502, 200 ],
          'and their status');
is_deeply([ map { $_->{response_size_bytes} } @events ],
          [ undef, undef, undef, length "run 1\n" ],
          'and the size of what was stored');
is($events[0]{key_hash}, undef, 'no key, no hash');
is($events[0]{record}, undef, 'and no record');



=== TEST 3: contention, and waiting in vain
--- config eval
$::stats . $::api . <<'_EOC_';
    idempotency_wait         $http_x_wait;
    idempotency_max_waiters  1;
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key(), 'X-Wait' => '9s');
my $holder = send_post('/hold?op=a', 'x', \%key);

app_wait_parked('a');

my $waiting = sub {
    my ($n) = @_;

    wait_for(sub {
        sample(parse_prometheus(http_get('/stats')->body),
               'nginx_idempotency_waiters') == $n
    });
};

my $waiter = send_post('/hold?op=a', 'x', \%key);

ok($waiting->(1), 'one waits');
is(http_post('/hold?op=a', 'x', \%key)->error_code, 'TOO_MANY_WAITERS',
   'one too many');

$waiter->abort;
ok($waiting->(0), 'nobody waits');

$key{'X-Wait'} = '200ms';
is(http_post('/hold?op=a', 'x', \%key)->error_code, 'LOCK_TIMEOUT',
   'waited in vain');

app_release('a');
$holder->read_response;

my ($timeout) = wait_events('lock.timeout', 1);
my @contention = wait_events('lock.contention', 3);

is($timeout->{level}, 'error', 'an error');
is($timeout->{status}, 503, 'status');
cmp_ok($timeout->{wait_ms}, '>=', 150, 'how long it waited');
is_deeply([ map { $_->{outcome} } @contention ], [ undef, 'WAITERS', undef ],
          'two that waited, and one that was not let');
is($contention[1]{status}, 429, 'status of that');
is($contention[0]{wait_ms}, 0, 'no time of those that begin to');



=== TEST 4: a record that expired
--- config eval
$::api . <<'_EOC_';
    idempotency_ttl            300ms;
    idempotency_expired_grace  1h;
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/ok', 'x', \%key)->body, "run 1\n", 'ran');
ok(wait_for(sub { http_post('/ok', 'x', \%key)->body eq "run 2\n" }),
   'ran again');

my ($created) = wait_events('key.created', 1);
my ($expired) = wait_events('key.expired', 1);

is($expired->{record}, $created->{record}, 'the same record');



=== TEST 5: a lock that was abandoned
--- provokes: exited on signal 9
--- config eval
$::stats . $::api . <<'_EOC_';
    idempotency_lease  500ms;
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/hold?op=a', 'x', \%key);

app_wait_parked('a');
kill_worker();

my $retry = send_post('/hold?op=a', 'x', \%key);

ok(app_wait('a', 2), 'ran again');
app_release('a', 1);
is($retry->read_response->status, 200, 'answered');

my ($e) = wait_events('lock.abandoned', 1);

is($e->{level}, 'warn', 'a warning');
like($e->{record}, qr/^[0-9a-f]{64}$/, 'says which record');
is($e->{outcome}, undef, 'it goes on');
is(sample(parse_prometheus(http_get('/stats')->body),
          'nginx_idempotency_lock_abandoned_total'), 1, 'and is counted');



=== TEST 6: a lock that was lost
--- workers: 2
--- config eval
$::stats . $::api . <<'_EOC_';
    idempotency_lease  500ms;
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());
my $first = send_post('/hold?op=a', 'x', \%key);

app_wait_parked('a');

# its worker stalls for longer than the lease

my ($pid) = map { $_->[1] } grep { $_->[0] eq 'X-Pid' }
                                 @{ app_last('a')->{headers} };

kill STOP => $pid;

my $second = send_post('/hold?op=a', 'x', \%key);

ok(app_wait('a', 2, 10), 'another request took over');
kill CONT => $pid;

my ($e) = wait_events('lock.lost', 1);

is($e->{reason}, 'renew', 'when it was noticed');
is($e->{level}, 'warn', 'a warning');

app_release('a', 2);
$_->read_response for $first, $second;

cmp_ok(sample(parse_prometheus(http_get('/stats')->body),
              'nginx_idempotency_lease_lost_total'), '>=', 1, 'counted');



=== TEST 7: a store that is full
--- store: memory
--- http_config
    idempotency_store small memory { zone small:64k; }
--- config
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json level=warn;

    location / {
        idempotency  small;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(http_post('/size?n=200000', 'x', { 'Idempotency-Key' => new_key() })->status,
   200, 'larger than the store');

my ($commit) = wait_events('storage.error', 1);

is($commit->{reason}, 'no room for the response', 'told at the commit');
is($commit->{level}, 'error', 'an error');
is($commit->{store}, 'small', 'of that store');

my $n = 0;

while (http_post('/204', ++$n, { 'Idempotency-Key' => new_key() })->status
       == 204)
{
    die "it is never full\n" if $n > 2000;
}

my $begin = wait_for(sub {
    (grep { $_->{reason} eq 'no room for a record' } events('storage.error'))[0]
});

ok($begin, 'told at begin');
ok($begin->{record}, 'with the record');
is($begin->{status}, undef, 'before there is a status');



=== TEST 8: a response that is too large
--- config eval
$::api . <<'_EOC_';
    idempotency_max_response  1k;
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/size?n=5000', 'x', \%key)->status, 200, 'went through');
is(http_post('/size?n=5000', 'x', \%key)->status, 507, 'can not be replayed');

my ($e) = wait_events('response.too_large', 1);

is($e->{level}, 'error', 'an error');
is($e->{status}, 200, 'the one that ran');
is($e->{response_size_bytes}, 5000, 'how large it is');
is($e->{max_size_bytes}, 1024, 'and how large it may be');
is_deeply([ map { $_->{status} } wait_events('processed', 2) ], [ 200, 507 ],
          'and both are processed');



=== TEST 9: no key, body or credential, here or in error.log
--- log_level: debug
--- workers: 1
--- provokes: exited on signal 9
--- config eval
$::api . <<'_EOC_';
    idempotency_lease            400ms;
    idempotency_wait             1s;
    idempotency_identity         $http_authorization $http_x_api_key
                                 $cookie_session;
    idempotency_conflict_detail  values;
    idempotency_fingerprint      json;
    idempotency_replay_json      seen $idempotency_replayed;

    location /member/ {
        idempotency      $TEST_STORE;
        idempotency_key  json:secret_id;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /derived/ {
        idempotency         $TEST_STORE;
        idempotency_dedupe  json:secret_id window=5s when=always;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /dry/ {
        idempotency          $TEST_STORE;
        idempotency_dry_run  on;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my $mark = 'sEcReT' . $$;

my %headers = ('Idempotency-Key' => "$mark-key",
               Authorization     => "Bearer $mark-token",
               'X-Api-Key'       => "$mark-api",
               Cookie            => "session=$mark-cookie",
               'Content-Type'    => 'application/json');

my $body = qq({"secret_id":"$mark-id","card":"$mark-card"});

for my $path ('', '/member', '/derived', '/dry') {
    my %h = (%headers, 'Idempotency-Key' => "$mark-key" . ($path =~ s{/}{-}r));

    http_post("$path/json", $body, \%h) for 1, 2;
    http_post("$path/json", $body =~ s/-card/-other/r, \%h);
    http_post("$path/json", $body, { %h, Authorization => "$mark-b" });
    http_post("$path/json", "{broken $mark", \%h);
    http_post("$path/json", $body,
              { %h, 'Idempotency-Key' => "$mark not a key" });
    http_post("$path/json", $body, { %h, 'Idempotency-Key' => qq("$mark) });
    http_post("$path/json", $body,
              [ %h, 'Idempotency-Key' => "$mark-twice" ]);
    http_post("$path/status/503", $body,
              { %h, 'Idempotency-Key' => "$mark$path-503" =~ tr{/}{-}r });
    http_post("$path/reset", $body,
              { %h, 'Idempotency-Key' => "$mark$path-reset" =~ tr{/}{-}r });
}

# contention, time-out, a worker that dies

my %h = (%headers, 'Idempotency-Key' => "$mark-hold");
my $c = send_post('/hold?op=a', $body, \%h);

app_wait_parked('a');
is(http_post('/hold?op=a', $body, \%h)->error_code, 'LOCK_TIMEOUT',
   'waited in vain');
kill_worker();

my $retry = send_post('/hold?op=a', $body, \%h);
ok(app_wait('a', 2), 'taken over');
app_release('a', 1);
is($retry->read_response->status, 200, 'and answered');

wait_events('lock.abandoned', 1);

my $text = do {
    local $/;
    open my $fh, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json" or die;
    <$fh>;
};

cmp_ok(scalar(my @lines = $text =~ /\n/g), '>', 30, 'so many events');
unlike($text, qr/\Q$mark/i, 'none has a secret in it');

# nginx's own lines at this level have headers and bodies; ours are known by
# the module's name, which no header of the requests has in lower case

my @own = grep { /idempotency/ && !/nginx\.conf|idempotency_module\.so/ }
               split /\n/, error_log();

cmp_ok(scalar @own, '>', 100, 'so many lines of our own at debug level');
is_deeply([ grep { /\Q$mark/i } @own ], [], 'none has a secret in it');
like(error_log(), qr/\Q$mark/, '(nginx itself has written them)');



=== TEST 10: levels
--- config
    idempotency  $TEST_STORE;

    location /info/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/info.json level=info;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /warn/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/warn.json level=warn;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /error/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/error.json level=error;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    # the same file once more
    location /again/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/error.json level=warn;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $path (qw(info warn error again)) {
    my %key = ('Idempotency-Key' => new_key());

    http_post("/$path/ok", $_, \%key) for 'x', 'x', 'y';
}

wait_events(undef, 4, 'info.json');
wait_events('conflict', 1, 'warn.json');
wait_events('conflict', 2, 'error.json');

is(scalar events(undef, 'warn.json'), 1, 'and nothing else');
is(scalar events(undef, 'error.json'), 2, 'nor there: a conflict is an error');



=== TEST 11: samples are spread evenly, each level by itself
--- config
    idempotency        $TEST_STORE;
    idempotency_log    $TEST_NGINX_SERVER_ROOT/logs/events.json
                       sample=info:0.25,error:0.5;
    idempotency_scope  all;

    location /a/ { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT/; idempotency_group a; }
    location /b/ { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT/; idempotency_group b; }
    location /c/ { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT/; idempotency_group c; }
    location /d/ { proxy_pass http://127.0.0.1:$TEST_NGINX_APP_PORT/; idempotency_group d; }

    location /none/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/none.json sample=0;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /tenth/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/tenth.json sample=0.1;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = map { $_ => { 'Idempotency-Key' => new_key() } } qw(a b c d);

# two events each, in the order a a b b c c d d

http_post("/$_/ok", 'x', $key{$_}) for qw(a b c d);

for (1 .. 10) {
    http_post("/$_/ok", 'x', $key{$_}) for qw(a b c d);
}

http_post('/a/ok', 'y', $key{a}) for 1 .. 10;

my @replays = wait_events('replay', 10);

is_deeply([ map { $_->{uri_group} } @replays ], [ ('d') x 10 ],
          'every fourth, and no other');
is(scalar(events('processed')) + events('key.created'), 2,
   'of those that ran as well');
wait_events('conflict', 5);

my %none = ('Idempotency-Key' => new_key());
my %tenth = ('Idempotency-Key' => new_key());

http_post('/none/ok', 'x', \%none) for 1 .. 20;
http_post('/none/ok', 'y', \%none);
http_post('/tenth/ok', 'x', \%tenth) for 1 .. 49;     # 50 events
http_post('/tenth/ok', 'y', \%tenth) for 1 .. 3;

wait_events('conflict', 3, 'tenth.json');
is(scalar(events(undef, 'tenth.json')), 5 + 3, 'a tenth of info, all warnings');
wait_events('conflict', 1, 'none.json');
is(scalar(events(undef, 'none.json')), 1, 'none of info, and the warning');



=== TEST 12: wrong values
--- config
    idempotency_log  events.json sample=2;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "sample=2".*0 to 1.* in .*nginx\.conf:\d+/



=== TEST 13: a wrong level
--- config
    idempotency_log  events.json level=loud;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "level=loud".* in .*nginx\.conf:\d+/



=== TEST 14: off stands alone
--- config
    idempotency_log  off level=warn;
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "level=warn".*"off" stands alone.* in .*nginx\.conf:\d+/



=== TEST 15: inherited, replaced, off
--- http_config
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/http.json;
--- config
    idempotency  $TEST_STORE;

    location /http/ {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /off/ {
        idempotency_log  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /own/ {
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/own.json;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;

        location /own/inner/ {
            proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
--- client
is(http_post("$_/ok", 'x', { 'Idempotency-Key' => new_key() })->status, 200, $_)
    for '/http', '/off', '/own', '/own/inner';

wait_events('processed', 1, 'http.json');
wait_events('processed', 2, 'own.json');

is(scalar events('processed', 'http.json'), 1, 'no more in the other');



=== TEST 16: reopened on USR1, and nothing is lost
--- workers: 2
--- client_timeout: 60
--- config eval: $::api
--- client
my $logs = "$ENV{TEST_NGINX_SERVER_ROOT}/logs";
my $n = 0;

my $some = sub {
    for (1 .. $_[0]) {
        $n++;
        http_post('/204', 'x', { 'Idempotency-Key' => new_key() });
    }
};

$some->(20);

for my $turn (1 .. 3) {
    rename "$logs/events.json", "$logs/events.$turn" or die "rename: $!";
    $some->(5);
    kill USR1 => nginx_master();
    $some->(20);
    ok(wait_for(sub { -e "$logs/events.json" }), 'a new file');
}

$some->(5);

my $all = sub {
    my @found = map { events('processed', $_) } 'events.json',
                map { "events.$_" } 1 .. 3;
    return scalar @found;
};

wait_for(sub { $all->() == $n });
is($all->(), $n, 'each event is in one of the files');
cmp_ok(scalar(events('processed')), '>', 0, 'some in the last');
cmp_ok(scalar(events('processed', 'events.1')), '>=', 1, 'some in the first');

# a worker that has had the signal writes no more to what was renamed

my $before = events('processed', 'events.3');

$some->(3);
wait_for(sub { $all->() == $n });
is(scalar(events('processed', 'events.3')), $before, 'the old one is left');



=== TEST 17: syslog
--- config eval
$::stats . <<"_EOC_";
    idempotency      \$TEST_STORE;
    idempotency_log  syslog:server=127.0.0.1:$::syslog_port,tag=idem,nohostname
                     level=info;

    location / {
        proxy_pass  http://127.0.0.1:\$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());

http_post('/ok', $_, \%key) for 'x', 'x', 'y';

my (@events, @priorities);

while (@events < 4 && IO::Select->new($::syslog)->can_read(15)) {
    $::syslog->recv(my $datagram, 65536);
    next if $datagram =~ /storage\.slow/;

    like($datagram, qr/^<\d+>\w{3} [ \d]\d \d\d:\d\d:\d\d idem: \{.*\}$/,
         'a line of syslog');

    my ($priority, $json) = $datagram =~ /^<(\d+)>.*?(\{.*)/;

    push @events, JSON::PP::decode_json($json);
    push @priorities, $priority & 7;
}

is_deeply([ map { $_->{event} } @events ],
          [ map { "idempotency.$_" } qw(key.created processed replay conflict) ],
          'the events');
is_deeply(\@priorities, [ 6, 6, 6, 3 ], 'their severity');



=== TEST 18: nobody listens at syslog's
--- config eval
$::stats . <<'_EOC_';
    idempotency      $TEST_STORE;
    idempotency_log  syslog:server=unix:$TEST_NGINX_SERVER_ROOT/nobody;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- provokes: connect\(\) failed
--- client
is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'requests run') for 1 .. 5;

is_dropped(5, 'each event is counted as dropped');



=== TEST 19: a full disk
--- config eval
$::stats . <<'_EOC_';
    idempotency      $TEST_STORE;
    idempotency_log  /dev/full;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my $n = 400;
my $c = connect_client();

for (1 .. $n) {
    $c->request('POST', '/204', 'x', { 'Idempotency-Key' => new_key() });

    my $r = $c->read_response;
    last if !ok($r && $r->status == 204, 'runs');
}

wait_for(sub { dropped() >= 2 * $n });
is_dropped($n, 'every event is counted');
error_log_like(qr/\[error\] .*events could not be written to "\/dev\/full"/,
               'said in error.log');
is(scalar(my @said = error_log() =~ /could not be written/g), 1,
   'and only now and then');



=== TEST 20: a worker that leaves writes what it has
--- workers: 1
--- config eval: $::api
--- client
my ($worker) = nginx_workers();
http_post('/204', 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 3;

kill QUIT => $worker;
ok(wait_for(sub { !kill 0, $worker }), 'left');
is(scalar events('processed'), 3, 'all there');

http_post('/204', 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 3;
ok(nginx_reload(), 'reload');
wait_events('processed', 6);



=== TEST 21: several workers, whole lines
--- workers: 4
--- config eval: $::api
--- client
my @c = map { connect_client() } 1 .. 12;

for my $round (1 .. 40) {
    for my $c (@c) {
        my $key = new_key();
        $c->send_part("POST /204 HTTP/1.1\r\nHost: localhost\r\n"
                      . "Content-Length: 1\r\nIdempotency-Key: $key\r\n\r\nx");
    }

    $_->read_response->status == 204 or fail('204') for @c;
}

wait_events('processed', 480);
wait_events('key.created', 480);

my %records = map { $_->{record} => 1 } events('processed');

is(keys %records, 480, 'each once');



=== TEST 22: a group beyond the sixty-fourth
--- config eval
CORE::join '', <<'_EOC_', map { <<_EOC2_ } 1 .. 66;
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;
_EOC_
    location /g$_/ {
        idempotency        \$TEST_STORE;
        idempotency_group  g$_;
        proxy_pass         http://127.0.0.1:\$TEST_NGINX_APP_PORT;
    }
_EOC2_
--- client
http_post("/g$_/ok", 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 66;

my %groups;

$groups{ $_->{uri_group} }++ for wait_events('processed', 66);

is($groups{other}, 2, 'as in the figures');
is(keys %groups, 65, 'and the others by name');
