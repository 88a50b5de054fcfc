# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The model of the record (proof/model), in its short form: the protocol holds
# whatever goes wrong, and a protocol that was broken on purpose does not.

use strict;
use warnings;
use Test::More;

plan skip_all => 'there is no spin, see tools/setup' if !grep { -x "$_/spin" } split /:/, $ENV{PATH};
plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

my @lines = qx(proof/model/check --short 2>&1);
my $exit = $?;
my $text = join '', @lines;

is($exit, 0, 'every variant does what it must') or diag($text);

like($text, qr/^model: two requests, $_ +holds, [1-9]\d{4,} states$/m,
     "at most once, $_") for qw(lease hold);

like($text, qr/^model: $_ +holds, [1-9]\d{4,} states$/m, "with $_")
    for 'outbox, two hosts', 'expiry', 'fallback, one ledger for two';

like($text, qr/^model: broken: $_ +fails, /m, "seen to fail: $_")
    for 'commit without a fence', 'release without a fence',
        'a token used again', 'wake-ups trusted in',
        'outbox, no look at lease', 'outbox, lease from keep',
        'outbox, lost is told', 'locks expire', 'fallback, half held';

note($text);

done_testing();
