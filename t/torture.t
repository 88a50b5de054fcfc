# A short form of the torture (proof/torture): faults at random, and every
# promise is kept.  A seed that failed is run again with SEED=.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it has both stores in one run'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';
plan skip_all => 'too slow under valgrind' if $ENV{IDEMPOTENCY_VALGRIND};

local $ENV{SECONDS} = $ENV{SECONDS} || 10;
local $ENV{CLIENTS} = $ENV{CLIENTS} || 8;
local $ENV{RATE} = $ENV{RATE} || 6;

my $text = qx(proof/torture/run 2>&1);

is($?, 0, 'every promise kept') or diag($text);

like($text, qr/^torture: $_ +0$/m, "no $_")
    for 'double executions', 'stuck locks', 'crashes', 'client: hang', 'client connections left';

cmp_ok($text =~ /^torture: operations +(\d+)$/m ? $1 : 0, '>', 30, 'operations were tried');
cmp_ok(scalar(() = $text =~ /^torture: fault: /mg), '>', 2, 'faults of several kinds');

note($text);

done_testing();
