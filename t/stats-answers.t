# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The figures of how requests were answered: replays by layer and age,
# conflicts by kind, what expired, how long it took; and a breaker, which is no
# fast store.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

sub figures {
    return parse_prometheus(http_get('/stats', { Accept => 'text/plain' })
                                ->body);
}

# of a family, by the values of a label: "a=1 b=2"

sub by {
    my ($f, $name, $label) = @_;

    return join ' ', map { "$_->{labels}{$label}=$_->{value}" }
                     grep { $_->{name} eq "nginx_idempotency_$name" }
                          @{ $f->{ "nginx_idempotency_$name"
                                   =~ s/_(?:count|sum)$//r }{samples} };
}

run_tests();

__DATA__

=== TEST 1: layers, kinds, durations, ages
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency         $TEST_STORE;
        idempotency_dedupe  body window=60s;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /json/ {
        idempotency         $TEST_STORE;
        idempotency_dedupe  json:email window=60s when=always;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /reject/ {
        idempotency         $TEST_STORE;
        idempotency_dedupe  body window=60s when=always action=reject;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /who/ {
        idempotency           $TEST_STORE;
        idempotency_scope     global;
        idempotency_identity  $http_x_who;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /dry/ {
        idempotency          $TEST_STORE;
        idempotency_dry_run  on;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /bypass/ {
        idempotency         $TEST_STORE;
        idempotency_bypass  1;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $f = figures();

is(by($f, 'replays_total', 'layer'), 'key=0 body=0 json=0', 'noughts');
is(by($f, 'conflicts_total', 'kind'), 'payload=0 identity=0 duplicate=0',
   'here, too');

sub key { return { 'Idempotency-Key' => new_key(), @_ } }

my $key = key();

http_post('/ok', 'a', $key) for 1 .. 4;                  # 1 ran, 3 by key
http_post('/ok', 'b', $key);                             # payload
http_post('/ok', 'a') for 1 .. 3;                        # 1 ran, 2 by body

my %type = ('Content-Type' => 'application/json');

http_post('/json/ok', '{"email":"a@b.c"}', key(%type)) for 1, 2;   # 1, 1
http_post('/reject/ok', 'r', key()) for 1 .. 3;          # 1 ran, 2 duplicates

my $who = new_key();

http_post('/who/ok', 'w', { 'Idempotency-Key' => $who, 'X-Who' => $_ })
    for qw(ann bob ann eve);                             # 1, key, 2 identity

http_post('/bypass/ok', 'x', key());

$f = figures();

is(by($f, 'replays_total', 'layer'), 'key=4 body=2 json=1', 'by layer');
is(by($f, 'created_total', 'layer'), 'key=4 body=1 json=0',
   'those that ran, by the record that is their own');
is(by($f, 'conflicts_total', 'kind'), 'payload=1 identity=2 duplicate=2',
   'by kind');
is(sample($f, 'nginx_idempotency_conflicts_total'),
   sample($f, 'nginx_idempotency_requests_total', outcome => 'CONFLICT'),
   'all of that outcome');
is(by($f, 'request_duration_seconds_count', 'replayed'), 'false=10 true=7',
   'each has its duration, but for a bypass');
is(sample($f, 'nginx_idempotency_replay_age_seconds_count'), 7,
   'and each replay its age');
cmp_ok(sample($f, 'nginx_idempotency_replay_age_seconds_sum'), '<', 7 * 60,
       'which is that of this test');

# what was held for some time took it, and is as old when it is replayed

$key = key();

my $c = send_post('/hold?op=h', 'h', $key);

app_wait_parked('h');
select undef, undef, undef, 0.6;
app_release('h');
is($c->read_response->status, 200, 'held');

my $was = $f;

http_post('/hold?op=h', 'h', $key);
$f = figures();

my $more = sub {
    my ($name, %labels) = @_;

    return sample($f, "nginx_idempotency_$name", %labels)
           - sample($was, "nginx_idempotency_$name", %labels);
};

cmp_ok($more->('request_duration_seconds_sum', replayed => 'false'), '>=', 0.55,
       'a duration');
cmp_ok($more->('replay_age_seconds_sum'), '>=', 0.55, 'an age');
is($more->('request_duration_seconds_bucket', replayed => 'false',
           le => '0.5'), 0, 'it took longer than 0.5 s');

# without a key the first rule counts

http_post('/json/ok', '{"email":"d@e.f"}', \%type);
is(by(figures(), 'created_total', 'layer'), 'key=5 body=1 json=1',
   'a record of a member');

# a dry run that would have been replayed ran

$was = figures();
$key = key();
http_post('/dry/ok', 'd', $key) for 1, 2;
$f = figures();

is($more->('request_duration_seconds_count', replayed => 'false'), 2,
   'a dry run is not replayed');

# JSON

my $json = http_get('/stats?format=json')->json->{stores}[0];

is_deeply($json->{replays},
          { map { $_->{labels}{layer} => $_->{value} }
                @{ $f->{nginx_idempotency_replays_total}{samples} } },
          'JSON: replays');
is_deeply($json->{conflicts}, { payload => 1, identity => 2, duplicate => 2 },
          'JSON: conflicts');

my %histogram = (
    'request_duration_seconds replayed=true'
        => $json->{request_duration}{replayed},
    'request_duration_seconds replayed=false'
        => $json->{request_duration}{not_replayed},
    'replay_age_seconds' => $json->{replay_age},
);

for my $name (sort keys %histogram) {
    my ($family, %labels) = split /[ =]/, $name;
    my $all = 0;

    $all += $_->[1] for @{ $histogram{$name}{buckets} };
    is($all, sample($f, "nginx_idempotency_${family}_count", %labels),
       "JSON: $name");
    cmp_ok(abs($histogram{$name}{sum} / 1e6
               - sample($f, "nginx_idempotency_${family}_sum", %labels)),
           '<', 0.000002, 'and its sum');
}



=== TEST 2: 0.5 s and 0.9 s are told apart
--- config
    location = /stats { idempotency_stats; }
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $f = figures();

for my $family (qw(wait_seconds lock_held_seconds store_operation_seconds
                   request_duration_seconds))
{
    my %le = map { $_->{labels}{le} => 1 }
             grep { $_->{name} =~ /_bucket$/ }
                  @{ $f->{"nginx_idempotency_$family"}{samples} };
    my @le = sort { $a <=> $b } grep { $_ ne '+Inf' } keys %le;

    ok((grep { $_ == 0.5 } @le), "$family: 0.5 s is a bound");
    ok((grep { $_ == 0.25 } @le), "$family: 0.25 s, too");
    cmp_ok(scalar(grep { $_ > 0.5 && $_ < 0.9 } @le), '>=', 2,
           "$family: and there are others up to 0.9 s");
}

my @age = sort { $a <=> $b } grep { $_ ne '+Inf' }
          map { $_->{labels}{le} // () }
              @{ $f->{nginx_idempotency_replay_age_seconds}{samples} };

cmp_ok($age[-1], '==', 604800, 'ages go up to a week');



=== TEST 3: what expired
--- config
    location = /stats { idempotency_stats; }
    location / {
        idempotency                $TEST_STORE;
        idempotency_ttl            300ms;
        idempotency_expired_grace  60s;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = { 'Idempotency-Key' => new_key() };

http_post('/ok?op=a', 'x', $key);
is(sample(figures(), 'nginx_idempotency_expired_total'), 0, 'a new one is not');

ok(wait_for(sub { http_post('/ok?op=a', 'x', $key)->body eq "run 2\n" }, 10),
   'ran again');
is(sample(figures(), 'nginx_idempotency_expired_total'), 1, 'one expired');
is(http_get('/stats?format=json')->json->{stores}[0]{counts}{expired}, 1,
   'JSON');



=== TEST 4: what a breaker turned away is no operation
--- http_config
    idempotency_store away redis {
        server           127.0.0.1:$TEST_NGINX_PORT_3;
        connect_timeout  300ms;
        timeout          300ms;
        breaker          fails=3 reset=60s;
    }
--- config
    location = /stats { idempotency_stats; }
    location / {
        idempotency  away;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(http_post('/ok', 'x', { 'Idempotency-Key' => new_key() })->status, 503,
   'unavailable') for 1 .. 10;

my $f = figures();
my @begin = (store => 'away', operation => 'begin');

is(sample($f, 'nginx_idempotency_breaker_state', store => 'away'), 1, 'open');
is(sample($f, 'nginx_idempotency_breaker_rejected_total', store => 'away'), 7,
   'seven were turned away');
is(sample($f, 'nginx_idempotency_store_operations_total', @begin,
          result => 'error'), 3, 'three were operations');
is(sample($f, 'nginx_idempotency_store_operation_seconds_count', @begin), 3,
   'and took their time');
is(sample($f, 'nginx_idempotency_requests_total', store => 'away',
          outcome => 'UNAVAILABLE'), 10, 'all were requests');
--- no_check_log



=== TEST 5: how long records live
--- config
    location = /stats { idempotency_stats; }
    location /day/ {
        idempotency        $TEST_STORE;
        idempotency_group  day;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
    location /hours/ {
        idempotency        $TEST_STORE;
        idempotency_group  hours;
        idempotency_ttl    5h;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
--- client
http_post("/day/ok?op=d", 'x', { 'Idempotency-Key' => new_key() });
http_post("/hours/ok?op=h$_", 'x', { 'Idempotency-Key' => new_key() })
    for 1, 2;

# one that is not kept has none

http_post("/hours/status/500?op=e", 'x', { 'Idempotency-Key' => new_key() });

my $f = figures();
my $name = 'nginx_idempotency_record_lifetime_seconds';

my $below = sub { sample($f, "${name}_bucket", group => $_[0], le => $_[1]) };

is(sample($f, "${name}_count", group => 'hours'), 2, 'two of five hours');
is($below->('hours', 14400), 0, 'longer than four');
is($below->('hours', 21600), 2, 'within six');
is($below->('day', 43200), 0, 'one of a day: longer than half of it');
is($below->('day', 259200), 1, 'within three');
ok(http_get('/stats?format=json')->json->{stores}[0]{record_lifetime}, 'JSON');
