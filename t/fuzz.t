# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A few seconds of fuzzing for each parser and decoder; make fuzz runs longer.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

# without clang nothing is fuzzed, and that is not to look like success
ok(!system('echo "int LLVMFuzzerTestOneInput(void) { return 0; }" '
           . '| clang -w -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null'),
   'there is clang with its fuzzer: tools/setup test');

my @targets = (qw(key multipart record json diff form resp),
               -f 'build/ngx_http_idempotency_postgres_module.so' ? 'rows' : ());

local $ENV{FUZZ_SECONDS} = $ENV{FUZZ_SECONDS} || 2;

my $text = qx(proof/fuzz/run 2>&1);

for my $target (@targets) {
    like($text, qr/^fuzz: $target +[1-9]\d{2,} executions.*nothing found$/m,
         "$target: nothing found") or diag($text);
}

like($text, qr/^fuzz: config +[1-9]\d* configurations.*nothing found$/m,
     'config: nothing found') or diag($text);

note($text);

done_testing();
