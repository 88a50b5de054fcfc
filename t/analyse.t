# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The quick one of the analysers; make analyse runs all three.  What it finds
# is mended, or has its reason in tools/analyse.exceptions.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';
plan skip_all => 'it has nothing to do with how nginx was built'
    if $ENV{IDEMPOTENCY_SANITIZER_LOGS} || $ENV{IDEMPOTENCY_VALGRIND};

my $text = qx(tools/analyse cppcheck 2>&1);

is($?, 0, 'cppcheck finds nothing that has no reason') or diag($text);
like($text, qr/^analyse: cppcheck, [4-9]\d files|^analyse: cppcheck, \d{3}/m,
     'in all of the files');

done_testing();
