# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# "idempotency shared fallback=ledger" with Redis first and PostgreSQL behind it,
# and the other way round, while the first store is up and down many times a
# second.  Of what runs twice, the first execution was in the first store, where
# the ledger could not know of it (docs/layers.md, "What it can't promise"); with
# a cache in front of it, what was answered does not run again.
#
# With IDEMPOTENCY_LONG=1 ("make test-postgres") it takes ten times as long.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(time sleep);

our ($redis, $pg, %proxy);
our $long = $ENV{IDEMPOTENCY_LONG};

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $redis = start_redis();
    $pg = start_postgres();

    for ([ redis => $redis ], [ postgres => $pg ]) {
        my ($kind, $server) = @$_;
        $proxy{$kind} = start_redis_proxy($server);
        $ENV{"TEST_NGINX_\U$kind\E_PROXY"} = $proxy{$kind}{port};
        $ENV{"TEST_NGINX_\U$kind\E_OWN"} = $server->{port};
    }
}

add_block_preprocessor(sub {
    if ($pg) {
        $_->command('FLUSHALL') for $redis, $pg;
        $_->tell('pass') for values %proxy;
    }
});

# the first one, whose network fails, and the ledger behind it

sub stores
{
    my ($first, $ledger, $more) = @_;

    return "idempotency_store shared $first {
        server           127.0.0.1:\$TEST_NGINX_\U$first\E_PROXY;
        connect_timeout  300ms;
        timeout          300ms;
        ${\($more || '')}
    }
    idempotency_store ledger $ledger {
        server           127.0.0.1:\$TEST_NGINX_\U$ledger\E_OWN;
        connect_timeout  10s;
        timeout          10s;
    }";
}

our $location = <<'_EOC_';
    idempotency_wait   20s;
    idempotency_lease  10s;
    add_header         X-Record $idempotency_record always;

    location / {
        idempotency  shared fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /stats {
        idempotency_stats  json;
    }
_EOC_

# up and down, with replies that are lost on the way; ends with it up

sub flap
{
    my ($proxy) = @_;

    $proxy->tell($_), sleep rand 0.08
        for rand() < 0.7 ? qw(down pass) : rand() < 0.5 ? qw(hold cut) : qw(lose pass);
    $proxy->tell('pass');
}

# Sends keys, each of them so many times, while the first store flaps.  Returns
# what was answered: { key => { record, bodies => { text => n }, op } ... }.

sub run_flapping
{
    my ($proxy, $times, $at_once) = @_;

    my $end = time + ($long ? 20 : 2);
    my (%told, $n, $flaps);

    # of these the ledger knows nothing when it is asked first

    for (1 .. 5) {
        my $key = new_key();
        $told{$key} = { op => 'f' . ++$n, bodies => {}, record => '' };

        for my $mode (qw(pass down)) {
            $proxy->tell($mode);
            note_answer($told{$key}, http_post("/ok?op=f$n", 'x',
                                               { 'Idempotency-Key' => $key }));
        }

        $proxy->tell('pass');
    }

    while (time < $end) {
        my @sent;

        for (1 .. 5) {
            my $key = new_key();
            my $op = 'f' . ++$n;
            $told{$key} = { op => $op, bodies => {}, record => '' };

            my $uri = "/ok?op=$op&ms=" . int rand 60;

            # some of them begin in the ledger
            $proxy->tell('down') if $n % 3 == 0;

            for my $time (1 .. $times) {
                my $c = send_post($uri, 'x', { 'Idempotency-Key' => $key });
                flap($proxy) if $flaps++ % 3 == 0;

                $at_once ? push @sent, [ $key, $c ]
                         : note_answer($told{$key}, $c->read_response(30));
            }
        }

        flap($proxy);
        note_answer($told{ $_->[0] }, $_->[1]->read_response(30)) for @sent;
    }

    ok(wait_for(sub { my ($s) = grep { $_->{name} eq 'shared' }
                                @{ http_get('/stats')->json->{stores} };
                      $s->{outbox}{waiting} == 0 }, 30),
       'all that was kept has landed');

    diag(scalar(keys %told), " keys, $flaps requests") if $long;

    return \%told;
}

sub note_answer
{
    my ($told, $r) = @_;

    $told->{bodies}{ $r ? $r->status == 200 ? $r->body : $r->error_code : 'none' }++;
    $told->{record} ||= $r->header('X-Record') || '' if $r;
}

# what a store has of a record: "run 1", or nothing

sub run_of
{
    my ($server, $id) = @_;

    my ($name) = $server == $pg ? $id : grep { /\Q$id\E/ } $server->keys;
    my $record = $name && $server->record($name);

    return $record && $record->{s} == 2 && $record->{b} =~ /(run \d+)\n/ ? $1 : '';
}

# after it: what ran more than once, and why that was

sub judge
{
    my ($told, $first, $ledger) = @_;

    my (@bad, $twice, $unanswered);

    for my $key (sort keys %$told) {
        my $t = $told->{$key};
        my $runs = app_count($t->{op});
        my @other = grep { !/^run [12]\n$/ } keys %{ $t->{bodies} };

        $unanswered++ if @other;
        push @bad, "$key: @other" if grep { $_ ne 'STORE_UNAVAILABLE' } @other;

        my $again = http_post("/ok?op=$t->{op}&ms=0", 'x',
                              { 'Idempotency-Key' => $key });

        if ($runs && app_count($t->{op}) != $runs) {
            push @bad, "$key: ran once more when all was well";
        }

        next if $runs < 2;
        $twice++;

        if ($runs > 2) {
            push @bad, "$key: ran $runs times";
            next;
        }

        my ($in_first, $in_ledger) = map { run_of($_, $t->{record}) }
                                         $first, $ledger;

        push @bad, "$key: the first store has \"$in_first\", the ledger "
                   . "\"$in_ledger\""
            if $in_first ne 'run 1' || $in_ledger ne 'run 2';
    }

    my ($n, $m) = map { scalar(() = $_->keys) } $first, $ledger;

    diag(scalar(keys %$told), ' keys, ', $twice || 0, ' ran twice, ',
         $unanswered || 0, " were refused; the first store has $n, the ",
         "ledger $m") if $long;

    return \@bad, $twice || 0;
}

run_tests();

__DATA__

=== TEST 1: Redis first, PostgreSQL behind it
--- store: postgres
--- workers: 2
--- http_config eval: main::stores('redis', 'postgres')
--- config eval: $::location
--- client_timeout: 300
--- client
my $told = main::run_flapping($::proxy{redis}, 3, 1);
cmp_ok(scalar keys %$told, '>', 4, 'many were asked for');
my ($bad) = main::judge($told, $::redis, $::pg);
is_deeply($bad, [], 'nothing runs twice that is not named');
cmp_ok($::pg->count, '>', 0, 'the ledger was in use');



=== TEST 2: PostgreSQL first, Redis behind it
--- store: postgres
--- workers: 2
--- http_config eval: main::stores('postgres', 'redis')
--- config eval: $::location
--- client_timeout: 300
--- client
my $told = main::run_flapping($::proxy{postgres}, 3, 1);
cmp_ok(scalar keys %$told, '>', 4, 'many were asked for');
my ($bad) = main::judge($told, $::pg, $::redis);
is_deeply($bad, [], 'nothing runs twice that is not named');
my @records = $::redis->keys;
cmp_ok(scalar @records, '>', 0, 'the ledger was in use');



=== TEST 3: with a cache, one after the other: nothing runs twice
--- store: postgres
--- workers: 2
--- http_config eval: main::stores('redis', 'postgres', 'cache hot:4m ttl=60s;')
--- config eval: $::location
--- client_timeout: 300
--- client
my $told = main::run_flapping($::proxy{redis}, 2, 0);
my ($bad, $twice) = main::judge($told, $::redis, $::pg);
is_deeply($bad, [], 'as without');
is($twice, 0, 'nothing ran twice at all');



=== TEST 4: the other way round
--- store: postgres
--- workers: 2
--- http_config eval: main::stores('postgres', 'redis', 'cache hot:4m ttl=60s;')
--- config eval: $::location
--- client_timeout: 300
--- client
my $told = main::run_flapping($::proxy{postgres}, 2, 0);
my ($bad, $twice) = main::judge($told, $::pg, $::redis);
is_deeply($bad, [], 'as without');
is($twice, 0, 'nothing ran twice at all');
