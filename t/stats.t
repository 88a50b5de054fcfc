# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_stats: the figures for Prometheus and as JSON.  promtool has the
# last word on the text; every outcome moves its counter; the number of series
# is bounded whatever the configuration is called.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our $stats = <<'_EOC_';
    location = /stats {
        idempotency_stats;
    }
_EOC_

our $api = <<'_EOC_';
    location / {
        idempotency    $TEST_STORE;
        proxy_pass     http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_


sub figures {
    my $r = http_get('/stats', { Accept => 'text/plain' }, @_);

    die 'figures: ' . $r->status . "\n" if $r->status != 200;

    return parse_prometheus($r->body);
}

sub outcome {
    return sample(figures(), 'nginx_idempotency_requests_total',
                  outcome => $_[0]) // 0;
}

run_tests();

__DATA__

=== TEST 1: promtool, and every family that there must be
--- config eval: $::stats . $::api
--- client
http_post('/ok', 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 3;

my $r = http_get('/stats');

is($r->status, 200, 'served');
is($r->header('Content-Type'), 'text/plain; version=0.0.4; charset=utf-8',
   'type of the text format');
is($r->header('Cache-Control'), 'no-store', 'not to be cached');
is(promtool('check metrics', $r->body), '', 'promtool has nothing to say');

my $f = parse_prometheus($r->body);

my %wanted = (
    requests_total => 'counter', replays_total => 'counter',
    conflicts_total => 'counter', waiters => 'gauge',
    wait_seconds => 'histogram', lock_held_seconds => 'histogram',
    lock_abandoned_total => 'counter', lease_renewals_total => 'counter',
    lease_lost_total => 'counter', store_operations_total => 'counter',
    store_operation_seconds => 'histogram',
    breaker_opened_total => 'counter', breaker_rejected_total => 'counter',
    cache_hits_total => 'counter', cache_misses_total => 'counter',
    replicas_missed_total => 'counter',
    commit_failures_total => 'counter', unprotected_total => 'counter',
    events_dropped_total => 'counter', build_info => 'gauge',
    evictions_total => 'counter', records => 'gauge', store_bytes => 'gauge',
    node_operations_total => 'counter', node_breaker_state => 'gauge',
    request_duration_seconds => 'histogram', replay_age_seconds => 'histogram',
    expired_total => 'counter', store_size_bytes => 'gauge',
    record_lifetime_seconds => 'histogram', purges_total => 'counter',
    purge_failures_total => 'counter',
);

for my $name (sort keys %wanted) {
    my $family = $f->{"nginx_idempotency_$name"};

    is($family->{type}, $wanted{$name}, "$name is a $wanted{$name}");
    like($family->{help}, qr/^[A-Z].*\.$/, "$name has its help");
}

is_deeply([ grep { !/^nginx_idempotency_/ } keys %$f ], [], 'all ours');

my %labels;

for my $family (values %$f) {
    $labels{$_} = 1 for map { keys %{ $_->{labels} } }
                            @{ $family->{samples} // [] };
}

delete @labels{qw(store group outcome operation result state le version nginx
                  kind layer replayed age)};
is_deeply([ keys %labels ], [], 'no other labels');

is(sample($f, 'nginx_idempotency_build_info'), 1, 'build info');
is(sample($f, 'nginx_idempotency_requests_total', outcome => 'EXECUTED'), 3,
   'three ran');
is(sample($f, 'nginx_idempotency_requests_total', outcome => 'CONFLICT'), 0,
   'outcomes that did not happen are noughts');
is(sample($f, 'nginx_idempotency_store_operations_total',
          operation => 'begin', result => 'acquired'), 3, 'three begins');
is(sample($f, 'nginx_idempotency_store_operations_total',
          operation => 'begin', result => 'error'), 0, 'no error so far');
is(sample($f, 'nginx_idempotency_store_operation_seconds_count',
          operation => 'commit'), 3, 'three commits were timed');
is(sample($f, 'nginx_idempotency_lock_held_seconds_count'), 3,
   'three locks were held');
is(sample($f, 'nginx_idempotency_record_lifetime_seconds_count'), 3,
   'three records have a lifetime');

for my $h (qw(wait_seconds lock_held_seconds store_operation_seconds
              request_duration_seconds replay_age_seconds
              record_lifetime_seconds)) {
    my (%last, %inf);

    for my $s (@{ $f->{"nginx_idempotency_$h"}{samples} }) {
        my $le = delete $s->{labels}{le};
        my $series = join ',', map { "$_=$s->{labels}{$_}" }
                                   sort keys %{ $s->{labels} };

        if (defined $le) {
            cmp_ok($s->{value}, '>=', $last{$series} // 0,
                   "$h of $series grows to $le") if $s->{value};
            $last{$series} = $s->{value};
            $inf{$series} = $s->{value} if $le eq '+Inf';

        } elsif ($s->{name} =~ /_count$/) {
            is($s->{value}, $inf{$series}, "$h of $series ends in its count");
        }
    }
}



=== TEST 2: every outcome is counted
--- http_config
    idempotency_store small memory { zone small:64k; }
--- config eval
$::stats . <<'_EOC_' . $::api;
    idempotency_lease  1s;

    location /busy/ {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /wait/ {
        idempotency              $TEST_STORE;
        idempotency_wait         3s;
        idempotency_max_waiters  1;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /little/ {
        idempotency               $TEST_STORE;
        idempotency_max_response  1k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /bypass/ {
        idempotency         $TEST_STORE;
        idempotency_bypass  1;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /full/ {
        idempotency     small;
        proxy_pass      http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /pass/ {
        idempotency                 small;
        idempotency_on_store_error  pass;
        proxy_pass                  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my %was = map { $_ => 0 } qw(EXECUTED REPLAYED CONFLICT BUSY TIMEOUT WAITERS
                             INVALID UNKNOWN TOO_LARGE RELEASED UNAVAILABLE
                             UNPROTECTED BYPASS);

# since the last time: { outcome => how many }

my $moved = sub {
    my ($wanted, $name) = @_;
    my $f = figures();
    my %got;

    for my $outcome (keys %was) {
        my $n = sample($f, 'nginx_idempotency_requests_total',
                       outcome => $outcome) // 0;
        $got{$outcome} = $n - $was{$outcome} if $n != $was{$outcome};
        $was{$outcome} = $n;
    }

    is_deeply(\%got, $wanted, $name);
};

my %key = ('Idempotency-Key' => new_key());

http_post('/ok', 'x', \%key);
$moved->({ EXECUTED => 1 }, 'ran');

http_post('/ok', 'x', \%key) for 1, 2;
$moved->({ REPLAYED => 2 }, 'replayed');

http_post('/ok', 'y', \%key);
$moved->({ CONFLICT => 1 }, 'conflict');

http_post('/ok', 'x', { 'Idempotency-Key' => 'not a token' });
$moved->({ INVALID => 1 }, 'invalid');

http_post('/bypass/ok', 'x', \%key);
http_post('/ok', 'x');
http_get('/ok');
$moved->({ BYPASS => 3 }, 'bypass, no key, another method');

http_post('/status/503', 'x', { 'Idempotency-Key' => new_key() });
$moved->({ RELEASED => 1 }, 'released');

my %large = ('Idempotency-Key' => new_key());

http_post('/little/size?n=5000', 'x', \%large);
$moved->({ TOO_LARGE => 1 }, 'too large');
http_post('/little/size?n=5000', 'x', \%large);
$moved->({ TOO_LARGE => 1 }, 'and its retry');

my %lost = ('Idempotency-Key' => new_key());

http_post('/reset', 'x', \%lost);
$moved->({ UNKNOWN => 1 }, 'unknown');
http_post('/reset', 'x', \%lost);
$moved->({ UNKNOWN => 1 }, 'and its retry');

# one that holds the lock, those that find it

my %hold = ('Idempotency-Key' => new_key());
my $holder = send_post('/busy/hold?op=h', 'x', \%hold);

app_wait_parked('h');
is(http_post('/busy/hold?op=h', 'x', \%hold)->status, 409, 'busy');
$moved->({ BUSY => 1 }, 'busy is counted, the holder not yet');

app_release('h');
is($holder->read_response->status, 200, 'the holder');
$moved->({ EXECUTED => 1 }, 'the holder is');

%hold = ('Idempotency-Key' => new_key());
$holder = send_post('/wait/hold?op=w', 'x', \%hold);
app_wait_parked('w');

my $waiter = send_post('/wait/hold?op=w', 'x', \%hold);

ok(wait_for(sub { sample(figures(), 'nginx_idempotency_waiters') == 1 }),
   'one waits');
is(http_post('/wait/hold?op=w', 'x', \%hold)->status, 429, 'one too many');
is($waiter->read_response->status, 503, 'in vain');

app_release('w');
is($holder->read_response->status, 200, 'the holder');
$moved->({ WAITERS => 1, TIMEOUT => 1, EXECUTED => 1 }, 'and so they are');

my $f = figures();

is(sample($f, 'nginx_idempotency_waiters'), 0, 'nobody waits any more');
is(sample($f, 'nginx_idempotency_wait_seconds_count', result => 'timeout'), 1,
   'one wait ended so');
cmp_ok(sample($f, 'nginx_idempotency_wait_seconds_sum', result => 'timeout'),
       '>=', 0.1, 'and took its time');

is(sample($f, 'nginx_idempotency_replays_total'), 2, 'replays');
is(sample($f, 'nginx_idempotency_conflicts_total'), 1, 'conflicts');
cmp_ok(sample($f, 'nginx_idempotency_lock_held_seconds_sum'), '>', 0.1,
       'a lock was held for some time');

# a zone that has no room for another record

for (1 .. 2000) {
    last if http_post('/full/status/299?n=1', $_,
                      { 'Idempotency-Key' => new_key() })->status == 503;
}

%was = (%was, EXECUTED => outcome('EXECUTED'));
$moved->({ UNAVAILABLE => 1 }, 'unavailable');

is(http_post('/pass/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 200,
   'runs unprotected');
$moved->({ UNPROTECTED => 1 }, 'unprotected');

$f = figures();

is(sample($f, 'nginx_idempotency_unprotected_total', store => 'small'), 1,
   'in its own family, too');
cmp_ok(sample($f, 'nginx_idempotency_store_operations_total',
              store => 'small', operation => 'begin', result => 'full'),
       '>=', 2, 'begins that found no room');
cmp_ok(sample($f, 'nginx_idempotency_evictions_total', store => 'small'), '>',
       0, 'responses gave way before');



=== TEST 3: JSON says the same
--- config eval: $::stats . $::api
--- client
my %key = ('Idempotency-Key' => new_key());

http_post('/ok', 'x', \%key) for 1 .. 3;
http_post('/ok', 'y', \%key);

my $r = http_get('/stats?format=json');

is($r->header('Content-Type'), 'application/json', 'type');

my $json = $r->json;
my $f = figures();

is($json->{waiters}, sample($f, 'nginx_idempotency_waiters'), 'waiters');
is($json->{events_dropped}, 0, 'events dropped');
is(@{ $json->{stores} }, 1, 'one store');

my $store = $json->{stores}[0];
my $n = 0;

for my $s (@{ $f->{nginx_idempotency_requests_total}{samples} }) {
    my $l = $s->{labels};

    is($l->{store}, $store->{name}, 'the store');
    is($store->{requests}{ $l->{group} }{ $l->{outcome} } // 0, $s->{value},
       "requests, $l->{outcome}");
    $n++;
}

is($n, 13, 'every outcome');

for my $s (@{ $f->{nginx_idempotency_store_operations_total}{samples} }) {
    my $l = $s->{labels};

    is($store->{operations}{ $l->{operation} }{ $l->{result} }, $s->{value},
       "operations, $l->{operation}, $l->{result}");
}

for my $op (qw(begin commit renew release)) {
    my $h = $store->{operations}{$op}{time};
    my $all = 0;

    $all += $_->[1] for @{ $h->{buckets} };

    is($all, sample($f, 'nginx_idempotency_store_operation_seconds_count',
                    operation => $op), "how many $op were timed");
    is(sprintf('%.6f', $h->{sum} / 1e6),
       sprintf('%.6f',
               sample($f, 'nginx_idempotency_store_operation_seconds_sum',
                      operation => $op)), "their time");
}

my %counts = (lock_abandoned => 'lock_abandoned_total',
              lease_renewals => 'lease_renewals_total',
              lease_lost => 'lease_lost_total',
              commit_failures => 'commit_failures_total',
              breaker_opened => 'breaker_opened_total',
              breaker_rejected => 'breaker_rejected_total',
              cache_hits => 'cache_hits_total',
              cache_misses => 'cache_misses_total',
              replicas_missed => 'replicas_missed_total',
              purges => 'purges_total',
              purge_failures => 'purge_failures_total',
              expired => 'expired_total');

is_deeply([ sort keys %{ $store->{counts} } ], [ sort keys %counts ],
          'all counts');

is($store->{counts}{$_}, sample($f, "nginx_idempotency_$counts{$_}"), $_)
    for sort keys %counts;



=== TEST 4: which form is served
--- config
    location = /stats       { idempotency_stats; }
    location = /prometheus  { idempotency_stats prometheus; }
    location = /json        { idempotency_stats json; }
    location = /html        { idempotency_stats html; }
--- client
my %type = (prometheus => 'text/plain; version=0.0.4; charset=utf-8',
            json => 'application/json', html => 'text/html; charset=utf-8');

my $is = sub {
    my ($form, $uri, $accept) = @_;

    is(http_get($uri, defined $accept ? { Accept => $accept } : {})
           ->header('Content-Type'),
       $type{$form}, "$uri for " . ($accept // 'a client that says nothing'));
};

$is->(prometheus => '/stats');
$is->(prometheus => '/stats', '*/*');
$is->(prometheus => '/stats', 'application/openmetrics-text;version=1.0.0,'
                  . 'text/plain;version=0.0.4;q=0.5,*/*;q=0.1');
$is->(html => '/stats', 'text/html,application/xhtml+xml,application/xml;q=0.9,'
            . 'image/avif,image/webp,*/*;q=0.8');
$is->(json => '/stats', 'application/json');
$is->(json => '/stats', 'Application/JSON');
$is->(json => '/stats', 'application/json, text/html;q=0.9');
$is->(json => '/stats', 'text/html; q=0.5, application/json');
$is->(html => '/stats', 'text/html, application/json');
$is->(prometheus => '/stats', 'text/html;q=0');
$is->(prometheus => '/stats', 'text/html;q=nonsense, ,;,');
$is->(prometheus => '/stats', 'image/png');

$is->(json => '/stats?format=json', 'text/html');
$is->(html => '/stats?format=html');
$is->(prometheus => '/stats?format=prometheus', 'text/html');
$is->(json => '/stats?format=xml', 'application/json');

$is->($_ => "/$_", 'text/html, application/json;q=0.1') for sort keys %type;
$is->(prometheus => '/prometheus?format=json');
$is->(json => '/json?format=html');
$is->(json => '/html?format=json');
$is->(html => '/html?something=else');



=== TEST 5: a wrong form
--- config
    location = /stats { idempotency_stats xml; }
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "xml".*"prometheus", "json" or "html".* in .*nginx\.conf:\d+/



=== TEST 6: methods, and access control
--- config eval
$::api . <<'_EOC_';
    location = /stats   { idempotency_stats; }
    location = /denied  { idempotency_stats; deny all; }
    location = /secret  {
        auth_basic            closed;
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/html/users;
        idempotency_stats;
    }
_EOC_
--- user_files
>>> users
ann:{PLAIN}pass
--- client
my $head = http_raw("HEAD /stats HTTP/1.1\r\nHost: localhost\r\n"
                    . "Connection: close\r\n\r\n");

is($head->status, 200, 'HEAD');
cmp_ok($head->header('Content-Length'), '>', 500, 'says how long it were');
is($head->body, '', 'and no more');

my $page = http_raw("HEAD /stats?format=html HTTP/1.1\r\nHost: localhost\r\n"
                    . "Connection: close\r\n\r\n");

is($page->status, 200, 'HEAD of the page');
is($page->body, '', 'no body either');

# counters: a gauge changes with a look at a server's records, at its time

my $figures = sub {
    return join "\n", grep { /^nginx_idempotency_\w+_total\b/ }
                      split /\n/, http_get('/stats')->body;
};

my $f = $figures->();

is(http_request($_, '/stats', 'x')->status, 405, "$_ is not allowed")
    for qw(POST PUT DELETE PATCH);

is(http_request('POST', '/stats', 'x')->header('Allow'), 'GET, HEAD',
   'what is');
is($figures->(), $f, 'and changes nothing');

is(http_get('/denied')->status, 403, 'deny');
is(http_get('/secret')->status, 401, 'auth_basic, no password');
is(http_get('/secret', { Authorization => 'Basic YW5uOnBhc3M=' })->status, 200,
   'auth_basic, with it');



=== TEST 7: no store, then one, then none
--- config eval
$::stats . <<'_EOC_';
    # here
_EOC_
--- client
my $nothing = sub {
    my ($name) = @_;
    my $r = http_get('/stats');

    is($r->status, 200, $name);
    is(promtool('check metrics', $r->body), '', "$name: promtool");
    is(sample(parse_prometheus($r->body), 'nginx_idempotency_waiters'), 0,
       "$name: nobody waits");
    is_deeply(http_get('/stats?format=json')->json->{stores}, [],
              "$name: no stores");
    is(http_get('/stats?format=html')->status, 200, "$name: the page");
};

$nothing->('no store');

edit_config(sub { s{# here}{location /api/ { idempotency on; } # here} });
ok(nginx_reload(), 'one now');
is(sample(figures(), 'nginx_idempotency_records', state => 'completed'), 0,
   'and it is empty');

edit_config(sub { s{location /api/ \S idempotency on; \S}{} });
ok(nginx_reload(), 'none again');

$nothing->('no store any more');



=== TEST 8: a reload keeps the figures, and the policy of the page
--- config eval: $::stats . $::api
--- client
my %key = ('Idempotency-Key' => new_key());

http_post('/ok', 'x', \%key) for 1 .. 3;

my $figures = sub {
    my $f = figures();

    return join ' ', map { "$_->{labels}{outcome}=$_->{value}" }
                         @{ $f->{nginx_idempotency_requests_total}{samples} };
};

my $policy = http_get('/stats?format=html')->header('Content-Security-Policy');
my $before = $figures->();

like($before, qr/EXECUTED=1 REPLAYED=2/, 'figures');
like($policy, qr/^default-src 'none'; script-src 'sha256-[\w+\/=]{44}'; /,
     'policy');

for my $n (1 .. 3) {
    ok(nginx_reload(), "reload $n");
    is($figures->(), $before, 'the figures are as they were');
    is(http_get('/stats?format=html')->header('Content-Security-Policy'),
       $policy, 'and so is the policy');
}

http_post('/ok', 'x', \%key);
like($figures->(), qr/EXECUTED=1 REPLAYED=3/, 'and go on from there');

# names of their own keep their figures, wherever they stand

edit_config(sub { s/(idempotency \s+ \S+;)/$1 idempotency_group another;/x });
ok(nginx_reload(), 'with another group');

http_post('/ok', 'x', \%key);

my $f = figures();

is(sample($f, 'nginx_idempotency_requests_total', outcome => 'REPLAYED',
          group => 'localhost'), 3, 'the old one');
is(sample($f, 'nginx_idempotency_requests_total', outcome => 'REPLAYED',
          group => 'another'), 1, 'the new one');



=== TEST 9: workers add up
--- workers: 4
--- config eval: $::stats . $::api
--- client
my @c = map { connect_client() } 1 .. 16;
my %key = ('Idempotency-Key' => new_key());

http_post('/ok', 'x', \%key);

for my $round (1 .. 5) {
    $_->send_part("POST /ok HTTP/1.1\r\nHost: localhost\r\n"
                  . "Content-Length: 1\r\n"
                  . "Idempotency-Key: $key{'Idempotency-Key'}\r\n\r\nx")
        for @c;
    is($_->read_response->status, 200, 'replayed') for @c;
}

# a worker counts when it has answered

wait_for(sub { outcome('REPLAYED') >= 80 });

for (1 .. 8) {
    my $f = figures();

    is(sample($f, 'nginx_idempotency_requests_total', outcome => 'REPLAYED'),
       80, 'whichever worker is asked');
    is(sample($f, 'nginx_idempotency_requests_total', outcome => 'EXECUTED'),
       1, 'and one ran');
}



=== TEST 10: what the store holds, and leases
--- store: memory
--- config eval
$::stats . <<'_EOC_' . $::api;
    idempotency_lease  300ms;

    location /little/ {
        idempotency               $TEST_STORE;
        idempotency_max_response  1k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my $records = sub {
    my $f = figures();

    return join ' ', map {
        sample($f, 'nginx_idempotency_records', state => $_)
    } qw(in_progress completed unusable);
};

is($records->(), '0 0 0', 'empty');

my $bytes = sample(figures(), 'nginx_idempotency_store_bytes');

http_post('/size?n=50000', 'x', { 'Idempotency-Key' => new_key() }) for 1, 2;
is($records->(), '0 2 0', 'two are completed');
cmp_ok(sample(figures(), 'nginx_idempotency_store_bytes') - $bytes, '>=',
       100000, 'and take their room');

http_post('/little/size?n=5000', 'x', { 'Idempotency-Key' => new_key() });
is($records->(), '0 2 1', 'one is unusable');

my $c = send_post('/hold?op=a', 'x', { 'Idempotency-Key' => new_key() });
app_wait_parked('a');
is($records->(), '1 2 1', 'one is in progress');

ok(wait_for(sub {
    sample(figures(), 'nginx_idempotency_lease_renewals_total') >= 2
}), 'its lease is renewed');

app_release('a');
$c->read_response;
is($records->(), '0 3 1', 'and then completed');

my $json = http_get('/stats?format=json')->json->{stores}[0];

is_deeply($json->{records}, { in_progress => 0, completed => 3, unusable => 1 },
          'JSON has them');
is($json->{bytes}, sample(figures(), 'nginx_idempotency_store_bytes'),
   'and the bytes');
cmp_ok($json->{size}, '>', $json->{bytes}, 'of so many');
is(sample(figures(), 'nginx_idempotency_store_size_bytes'), $json->{size},
   'for Prometheus as well');



=== TEST 11: a waiter that was answered, one that ran, one that left
--- config eval: $::stats . $::api
--- client
my $f = sub {
    sample(figures(), 'nginx_idempotency_wait_seconds_count',
           result => $_[0]) // 0;
};

my $waiters = sub {
    my ($n) = @_;
    wait_for(sub { sample(figures(), 'nginx_idempotency_waiters') == $n });
};

my %key = ('Idempotency-Key' => new_key());
my $holder = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');
my @waiters = map { send_post('/hold?op=a', 'x', \%key) } 1 .. 3;

ok($waiters->(3), 'three wait');
(shift @waiters)->abort;
ok($waiters->(2), 'one left');
is($f->('gone'), 1, 'is counted as gone');

app_release('a');
is($_->read_response->status, 200, 'the others') for $holder, @waiters;
is($f->('answered'), 2, 'were answered');
ok($waiters->(0), 'nobody waits');

%key = ('Idempotency-Key' => new_key());
$holder = send_post('/hold?op=b&status=503', 'x', \%key);
app_wait_parked('b');
my $heir = send_post('/hold?op=b&status=503', 'x', \%key);
ok($waiters->(1), 'one waits');

app_release('b');
is($holder->read_response->status, 503, 'released');
app_release('b');
is($heir->read_response->status, 503, 'the waiter ran');
is($f->('acquired'), 1, 'and is counted so');
is($f->('timeout'), 0, 'nobody waited in vain');



=== TEST 12: 70 groups are 64 and the others, however they are called
--- config eval
my $conf = $::stats;

for my $n (1 .. 70) {
    $conf .= <<_EOC_;
    location /g$n/ {
        idempotency        \$TEST_STORE;
        idempotency_group  g$n;
        proxy_pass         http://127.0.0.1:\$TEST_NGINX_APP_PORT;
    }
_EOC_
}

$conf;
--- client
http_post("/g$_/ok", 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 70;

my $r = http_get('/stats');

is(promtool('check metrics', $r->body), '', 'promtool');

my $f = parse_prometheus($r->body);
my %groups;

$groups{ $_->{labels}{group} } += $_->{value}
    for @{ $f->{nginx_idempotency_requests_total}{samples} };

is(keys %groups, 65, 'so many groups');
is($groups{other}, 6, 'six among the others');
is_deeply([ grep { $groups{$_} != 1 } grep { $_ ne 'other' } keys %groups ],
          [], 'one in each of the rest');

my $json = http_get('/stats?format=json')->json->{stores}[0]{requests};

is(keys %$json, 65, 'JSON has them, too');
is($json->{other}{EXECUTED}, 6, 'and the others');



=== TEST 13: odd names
--- http_config eval
my $odd = <<'_EOC_';
    idempotency_store 'a"b\\c' memory { zone odd:256k; }
    idempotency_store "a'b_c"  memory { zone odder:256k; }
    idempotency_store "a_b_c"  memory { zone oddest:256k; }

    server {
        listen       127.0.0.1:$TEST_NGINX_PORT_2;
        server_name  "~^(?<x>[a-z\"]+)\\.example$";

        location / {
            idempotency  'a"b\\c';
            proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }

        location /two/ {
            idempotency        "a_b_c";
            idempotency_group  "Zürich \"1\" {x}";
            proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }

        location /other/ {
            idempotency        "a'b_c";
            idempotency_group  other;
            proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }

        location /long/ {
            idempotency        "a'b_c";
            idempotency_group  LONG;
            proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
        }
    }
_EOC_

my $long = 'l' x 500;
$odd =~ s/LONG/$long/;
$odd;
--- config eval: $::stats . "location /ops/ { idempotency_admin; }\n"
--- client
for my $path ('', '/two', '/other', '/long') {
    is(http_post("$path/ok", 'x',
                 { 'Idempotency-Key' => new_key(), Host => 'a.example' },
                 port => $ENV{TEST_NGINX_PORT_2})->status, 200, "$path/");
}

my $there = http_get('/ops/')->json->{stores};
is($there->[0], 'a"b\\c', 'as it is named, in JSON');
is(http_get("/ops/$_->[0]")->json->{ $_->[1] }[0]{ $_->[2] }, $there->[0], $_->[0])
    for [ 'health', 'stores', 'name' ],
        [ 'records/a%22b%5Cc', 'records', 'store' ];

my $r = http_get('/stats');

is(promtool('check metrics', $r->body), '', 'promtool');
unlike($r->body, qr/[^\x0a\x20-\x7e]/, 'plain characters only');

my $f = parse_prometheus($r->body);

is(sample($f, 'nginx_idempotency_requests_total', outcome => 'EXECUTED'), 4,
   'each is counted once');
is(sample($f, 'nginx_idempotency_requests_total', outcome => 'EXECUTED',
          group => 'other'), 1, 'a group that is called other');

cmp_ok(length, '<=', 64, "bounded: $_")
    for map { $_->{labels}{group} }
            @{ $f->{nginx_idempotency_requests_total}{samples} };

my $json = http_get('/stats?format=json')->json;
my $all = 0;

for my $store (@{ $json->{stores} }) {
    $all += $_->{EXECUTED} // 0 for values %{ $store->{requests} };
}

is($all, 4, 'JSON parses, and has them all');



=== TEST 14: many stores are bounded, too
--- http_config eval
CORE::join '', map {
    "    idempotency_store s$_ memory { zone s$_:64k; }\n"
} 1 .. 20
--- config eval
$::stats . CORE::join '', map { <<_EOC_ } 1 .. 20;
    location /s$_/ {
        idempotency  s$_;
        proxy_pass   http://127.0.0.1:\$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
http_post("/s$_/ok", 'x', { 'Idempotency-Key' => new_key() }) for 1 .. 20;

my $r = http_get('/stats');

is(promtool('check metrics', $r->body), '', 'promtool');

my $f = parse_prometheus($r->body);
my %stores;

$stores{ $_->{labels}{store} } = 1
    for @{ $f->{nginx_idempotency_requests_total}{samples} };

is(keys %stores, 16, 'so many stores');
is(sample($f, 'nginx_idempotency_requests_total', outcome => 'EXECUTED'), 20,
   'and nothing is lost');
is(sample($f, 'nginx_idempotency_requests_total', outcome => 'EXECUTED',
          store => 'other'), 5, 'counted with the others');
is(@{ http_get('/stats?format=json')->json->{stores} }, 16, 'JSON as well');
