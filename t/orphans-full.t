# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Under hold, begins that were given up while the store stood still: their locks
# are given back when the store is there again, by another worker if this one is
# gone by then.  The table by which that one knows of them has room for 64 of
# those whose ids are alike; the log says that there are more.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Digest::SHA qw(sha256);
use Time::HiRes qw(sleep);

use constant { SETS => 128, SET => 64, MORE => 6 };

our ($store, $proxy);

if ($store = start_remote()) {
    $proxy = start_redis_proxy($store);
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};
}

add_block_preprocessor(sub {
    if ($store) {
        $proxy->tell('cut');
        $store->command('FLUSHALL');
    }
});

# keys whose records are in one set of the table

sub alike
{
    my ($n, @keys) = @_;

    while (@keys < $n) {
        my $key = new_key();
        my $id = sha256(map { pack('Q>', length) . $_ } 'all', $key);
        push @keys, $key if ord($id) % SETS == 7;
    }

    return @keys;
}

# begins of these are sent, not read by the store, and given up

sub give_up
{
    my @keys = @_;

    ok(wait_for(sub {
        http_post('/ok?op=z', 'x', { 'Idempotency-Key' => new_key() })
            ->status == 200;
    }), 'it works');
    $store->command('FLUSHALL');
    $proxy->tell('deaf');

    my $h2 = h2_connect();
    my @sent = map { $h2->request('POST', '/ok?op=a', 'x',
                                  { 'idempotency-key' => $_ }) } @keys;
    my @codes = map { ($h2->response($_, 30) || die "no response\n")
                          ->error_code } @sent;

    is(scalar(grep { $_ eq 'STORE_UNAVAILABLE' } @codes), scalar @keys,
       'they are given up');
    error_log_like(qr/\[error\] .*store "shared": too many locks are to be given back; if the worker exits before that, the key of a request that did not run is refused until its record expires/,
                   'more than there is room for');
    $h2->abort;
}

sub locks { return scalar(() = $store->keys) }

our $shared = <<'_EOC_';
    idempotency_store shared $TEST_REMOTE {
        server       127.0.0.1:$TEST_NGINX_PROXY_PORT;
        timeout      3s;
        connections  1;
    }
_EOC_

our $location = <<'_EOC_';
    location / {
        idempotency                  shared;
        idempotency_scope            all;
        idempotency_unknown_outcome  hold;
        idempotency_wait             0;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

every_block(http_config => $shared, config => $location);

run_tests();

__DATA__

=== TEST 1: the worker stays: each is given back
--- store: redis postgres
--- h2
--- client_timeout: 90
--- client
my @keys = main::alike(main::SET + main::MORE);

main::give_up(@keys);
$::proxy->tell('pass');

# they may come and be given back between two looks

for (1 .. 10) { last if main::locks(); sleep 0.1 }
ok(wait_for(sub { main::locks() == 0 }, 60), 'no lock is left');

my %status;
$status{ http_post('/ok?op=a', 'x', { 'Idempotency-Key' => $_ })->status }++
    for @keys;
is_deeply(\%status, { 200 => scalar @keys }, 'each key runs');



=== TEST 2: the worker exits: as many as there was room for are given back
--- store: redis postgres
--- h2
--- client_timeout: 90
--- client
my @keys = main::alike(main::SET + main::MORE);
my ($old) = nginx_workers();

main::give_up(@keys);
ok(nginx_reload(), 'reloaded');
ok(wait_for(sub { !kill 0, $old }, 20), 'the worker is gone');
$::proxy->tell('pass');

ok(wait_for(sub {
    my $n = 0;
    $n += $_ for error_log() =~ /store "shared": locks are given back for workers that are gone: (\d+)/g;
    return $n >= main::SET;
}, 60), 'another one gives back what it knows of');
ok(wait_for(sub { main::locks() <= main::MORE }, 60),
   'no more are left than it was told');
