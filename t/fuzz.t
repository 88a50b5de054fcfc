# A few seconds of fuzzing for each parser and decoder; make fuzz runs longer.

use strict;
use warnings;
use Test::More;

plan skip_all => 'there is no clang, see tools/setup fuzz'
    if system('echo "int LLVMFuzzerTestOneInput(void) { return 0; }" '
              . '| clang -w -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null');
plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

my @targets = qw(key multipart record json diff form resp);

local $ENV{FUZZ_SECONDS} = $ENV{FUZZ_SECONDS} || 2;

my $text = qx(proof/fuzz/run 2>&1);

for my $target (@targets) {
    like($text, qr/^fuzz: $target +[1-9]\d{2,} executions.*nothing found$/m,
         "$target: nothing found") or diag($text);
}

note($text);

done_testing();
