# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The programs that docs/clients-*.md show do what is said of them: each is run
# against a real gateway that loses an answer, where its tool is to be had.
#
# CLIENTS_FULL=1 lets npm fetch what some of them import.

use strict;
use warnings;

use Test::More;

plan skip_all => 'it runs nginx as it is, not under valgrind'
    if $ENV{IDEMPOTENCY_VALGRIND};

my $store = $ENV{IDEMPOTENCY_STORE} || 'memory';

plan skip_all => "the kit has no store $store"
    if $store !~ /^(?:memory|redis)$/;

# one store will do: the programs know nothing of it

plan skip_all => 'it is run on the memory store'
    if $store ne 'memory' && !$ENV{CLIENTS_FULL};

if (system('python3 -c "import sys; sys.exit(sys.version_info < (3, 9))"'
           . ' 2>/dev/null') != 0)
{
    diag('there is no python3 3.9: the programs of docs/clients-*.md are NOT run');
    plan skip_all => 'no python3 3.9 or later';
}

local $ENV{FETCH} = $ENV{CLIENTS_FULL} || '';
local $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0';

my $text = qx(clients/conformance/snippets --store $store);

is($?, 0, 'the programs end in order')
    or diag(join "\n", grep { !/^ok/ } split /\n/, $text);

# what is left out is no success

for (split /\n/, $text) {
    if (/^ok \d+ - (\S+) # SKIP (.*)/) {
        SKIP: { skip("$1: $2", 1) }
    } elsif (/^(not )?ok \d+ - (\S+)/) {
        ok(!$1, $2);
    }
}

cmp_ok(scalar(() = $text =~ /^ok \d+ - \S+$/mg), '>=', 2,
       'some were run');

done_testing();
