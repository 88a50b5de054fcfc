# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The torture (proof/torture), in its short form: faults from a fixed seed.
# What it asserts must hold whatever the timing; what a fault meets is up to
# the machine.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it runs nginx as it is, not under valgrind' if $ENV{IDEMPOTENCY_VALGRIND};

my $store = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'redis' ? 'redis,fallback' : 'memory';
my $seconds = $ENV{TORTURE_SECONDS} || 9;

local $ENV{SECONDS} = $seconds;
local $ENV{SEED} = $ENV{TORTURE_SEED} || 20261116;
local $ENV{CLIENTS} = 8;
local $ENV{RATE} = 8;
local $ENV{STORE} = $store;

my $text = qx(proof/torture/run 2>&1);
my $exit = $?;

is($exit, 0, "every promise is kept, on the $store store")
    or diag(join "\n", grep { /BROKEN|make torture|^\D+ at / } split /\n/, $text);

my %figure = $text =~ /^torture: (\S.*?) +(\d+)$/mg;

cmp_ok($figure{operations} || 0, '>', 2 * $seconds, 'operations were tried');
cmp_ok($figure{requests} || 0, '>', 5 * $seconds, 'by many');
cmp_ok($figure{'requests over HTTP/2'} || 0, '>', $seconds, 'over HTTP/2, too');
cmp_ok($figure{'streams replayed'} || 0, '>', 0, 'streams were replayed');
cmp_ok($figure{faults} || 0, '>=', 3, 'with faults');
cmp_ok($figure{'clients: left'} || 0, '>', $seconds / 2, 'and clients that left');

is($figure{$_}, 0, "no $_")
    for 'double executions', 'stuck locks', 'clients: hang', 'crashes', 'connections of clients left';

note($text);

done_testing();
