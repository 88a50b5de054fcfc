# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_dry_run: for the first week in production.  Everything is done
# but to refuse, to wait and to replay; $idempotency_status, the figures and
# the events tell what would have happened.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our $proxy = <<'_EOC_';
        add_header  X-Status $idempotency_status always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
_EOC_

our $config = <<"_EOC_";
    idempotency_dry_run  on;
    idempotency_log      \$TEST_NGINX_SERVER_ROOT/logs/events.json;

    location = /stats { idempotency_stats; }

    location / {
        idempotency  \$TEST_STORE;
$proxy
    }
_EOC_

# what the client sees of the last of some requests: status of HTTP, ours, and
# the body without its end

sub seen {
    my ($r) = @_;

    return join ' ', $r->status, $r->header('X-Status') // '-',
                     $r->body =~ s/\n//r;
}

sub counted {
    my ($outcome) = @_;

    return sample(parse_prometheus(http_get('/stats')->body),
                  'nginx_idempotency_requests_total', outcome => $outcome) // 0;
}

run_tests();

__DATA__

=== TEST 1: replay, conflict, a bad key, no key
--- config eval
$::config . <<"_EOC_";
    location /required/ {
        idempotency           \$TEST_STORE;
        idempotency_required  on;
$::proxy
    }
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());

is(seen(http_post('/ok', 'x', \%key)), '200 EXECUTED run 1', 'ran');

my $again = http_post('/ok', 'x', \%key);

is(seen($again), '200 REPLAYED run 2', 'runs again, and says so');
is($again->header('Idempotent-Replayed'), undef, 'as it is no replay');
is($again->header('X-Original-Request-Time'), undef, 'nor has its headers');
is(seen(http_post('/ok', 'x', \%key)), '200 REPLAYED run 3', 'and again');

is(seen(http_post('/ok', 'y', \%key)), '200 CONFLICT run 4', 'a conflict runs');
is(seen(http_post('/ok', 'x', { %key, Authorization => 'other' })),
   '200 CONFLICT run 5', 'that of another identity, too');
is(seen(http_post('/ok', 'x', { 'Idempotency-Key' => 'a b' })),
   '200 INVALID run 6', 'a bad key runs');
is(seen(http_post('/ok', 'x', [ 'Idempotency-Key' => 'a',
                                'Idempotency-Key' => 'b' ])),
   '200 INVALID run 7', 'and a key twice');
is(seen(http_post('/required/ok?op=r', 'x')), '200 INVALID run 1',
   'a key that is missing where it is required');
is(seen(http_post('/ok', 'x')), '200 BYPASS run 8', 'no key where it is not');

is(counted('EXECUTED'), 1, 'figures: EXECUTED');
is(counted('REPLAYED'), 2, 'figures: REPLAYED');
is(counted('CONFLICT'), 2, 'figures: CONFLICT');
is(counted('INVALID'), 3, 'figures: INVALID');
is(counted('BYPASS'), 1, 'figures: BYPASS');

my $file = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json";

kill USR1 => nginx_master();
ok(wait_for(sub { read_events($file) == 9 }), 'events');

my %events;
$events{ $_->{event} =~ s/^idempotency\.//r }++ for read_events($file);

is_deeply(\%events, { 'key.created' => 1, processed => 4, replay => 2,
                      conflict => 2 }, 'each tells what would have happened');



=== TEST 2: nobody waits, and nobody is refused
--- config eval
$::config . <<"_EOC_";
    location /at-once/ {
        idempotency       \$TEST_STORE;
        idempotency_wait  0;
$::proxy
    }

    location /none/ {
        idempotency              \$TEST_STORE;
        idempotency_max_waiters  0;
$::proxy
    }
_EOC_
--- client
for my $path ('', '/at-once', '/none') {
    my %key = ('Idempotency-Key' => new_key());
    my $op = "op=a$path";
    my $holder = send_post("$path/ok?hold=1&$op", 'x', \%key);

    app_wait_parked("a$path");

    # the holder runs: so does the second, beside it

    my $second = send_post("$path/ok?hold=1&$op", 'x', \%key);

    ok(app_wait_parked("a$path", 2), 'both run');
    app_release("a$path", 2);

    like(seen($second->read_response), qr/^200 BUSY run \d$/,
         "$path/: the second");
    like(seen($holder->read_response), qr/^200 EXECUTED run \d$/,
         "$path/: the first");

    # what the second did is not taken for the outcome of the first

    is(seen(http_post("$path/ok?hold=&$op", 'x', \%key)), '200 CONFLICT run 3',
       "$path/: the record is of the first");
}

is(counted('BUSY'), 3, 'figures: BUSY');



=== TEST 3: what can not be told or kept
--- config eval
$::config . <<"_EOC_";
    location /little/ {
        idempotency               \$TEST_STORE;
        idempotency_max_response  1k;
$::proxy
    }
_EOC_
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/little/size?n=5000', 'x', \%key)->header('X-Status'),
   'TOO_LARGE', 'too large');

my $again = http_post('/little/size?n=5000', 'x', \%key);

is($again->status . ' ' . $again->header('X-Status'), '200 TOO_LARGE',
   'its retry runs');
is(length $again->body, 5000, 'in full');

%key = ('Idempotency-Key' => new_key());

is(http_post('/reset', 'x', \%key)->header('X-Status'), 'UNKNOWN', 'unknown');
is(http_post('/reset', 'x', \%key)->status, 502, 'its retry runs');
is(app_count('/reset'), 2, 'it did');

%key = ('Idempotency-Key' => new_key());

is(seen(http_post('/status/503', 'x', \%key)), '503 RELEASED run 1',
   'released');
is(seen(http_post('/status/503', 'x', \%key)), '503 RELEASED run 2',
   'runs again, as it would anyway');

is(counted('TOO_LARGE'), 2, 'figures: TOO_LARGE');
is(counted('UNKNOWN'), 2, 'figures: UNKNOWN');
is(counted('RELEASED'), 2, 'figures: RELEASED');



=== TEST 4: a store that fails
--- store: memory
--- http_config
    idempotency_store small memory { zone small:64k; }
--- config eval
$::config . <<"_EOC_";
    location /fail/ {
        idempotency  small;
$::proxy
    }

    location /pass/ {
        idempotency                 small;
        idempotency_on_store_error  pass;
$::proxy
    }
_EOC_
--- client
my ($r, $n);

do {
    $r = http_post('/fail/ok', ++$n, { 'Idempotency-Key' => new_key() });
} while ($r->header('X-Status') eq 'EXECUTED' && $n < 2000);

is(seen($r), "200 UNAVAILABLE run $n", 'would have been refused, and runs');
is(counted('UNAVAILABLE'), 1, 'figures: UNAVAILABLE');

is(seen(http_post('/pass/ok', 'x', { 'Idempotency-Key' => new_key() })),
   '200 UNPROTECTED run 1', 'would have run, and runs');
is(counted('UNPROTECTED'), 1, 'figures: UNPROTECTED');



=== TEST 5: switched off, the records of the dry run count
--- config eval: $::config
--- client
my %key = ('Idempotency-Key' => new_key());

is(seen(http_post('/ok', 'x', \%key)), '200 EXECUTED run 1', 'ran');
is(seen(http_post('/ok', 'x', \%key)), '200 REPLAYED run 2', 'ran again');

edit_config(sub { s/idempotency_dry_run +on/idempotency_dry_run off/ });
ok(nginx_reload(), 'no dry run any more');

my $r = http_post('/ok', 'x', \%key);

is(seen($r), '200 REPLAYED run 1', 'the first response');
is($r->header('Idempotent-Replayed'), 'true', 'is replayed');
is(http_post('/ok', 'y', \%key)->status, 409, 'and a conflict is one');



=== TEST 6: one location only
--- config eval
<<"_EOC_";
    idempotency  \$TEST_STORE;

    location / {
$::proxy
    }

    location /dry/ {
        idempotency_dry_run  on;
$::proxy

        location /dry/not/ {
            idempotency_dry_run  off;
$::proxy
        }
    }
_EOC_
--- client
for ([ '' => 'run 1' ], [ '/dry' => 'run 2' ], [ '/dry/not' => 'run 1' ]) {
    my ($path, $second) = @$_;
    my %key = ('Idempotency-Key' => new_key());

    http_post("$path/ok", 'x', \%key);
    is(seen(http_post("$path/ok", 'x', \%key)), "200 REPLAYED $second",
       "$path/");
}
