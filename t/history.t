# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The history (proof/history), in its short form: three hosts, faults from a
# fixed seed, on loopback, so that it needs no rights.  What it asserts must hold
# whatever the timing; what a fault meets is up to the machine.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it runs nginx as it is, not under valgrind' if $ENV{IDEMPOTENCY_VALGRIND};

my $config = $ENV{IDEMPOTENCY_STORE} || 'memory';
my $seconds = $ENV{HISTORY_SECONDS} || 8;

local $ENV{CONFIG} = $ENV{HISTORY_CONFIG} || $config;
local $ENV{SECONDS} = $seconds;
local $ENV{SEED} = $ENV{HISTORY_SEED} || 20261117;
local $ENV{RATE} = 12;
local $ENV{LEASE} = 2;
local $ENV{NETWORK} = 'loopback';

my $text = qx(proof/history/run 2>&1);
my $exit = $?;

is($exit, 0, "every promise is kept, on $ENV{CONFIG}")
    or diag(join "\n", grep { /BROKEN|make history|^\D+ at / } split /\n/, $text);

my %figure = $text =~ /^history: (\S.*?) +(\d+)$/mg;

cmp_ok($figure{operations} || 0, '>', 8 * $seconds, 'operations were tried');
cmp_ok($figure{requests} || 0, '>', 12 * $seconds, 'and retried');
cmp_ok($figure{executions} || 0, '>', 0.9 * ($figure{operations} || 1), 'and ran');
cmp_ok($figure{faults} || 0, '>=', 3, 'with faults');

is($figure{$_}, 0, "no $_")
    for 'double executions', 'stuck locks', 'locks that outlived their lease', 'clients: hang',
        'clients that never got an answer', 'requests without an answer', 'crashes';

note($text);

done_testing();
