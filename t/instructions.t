# Instructions for a request, by callgrind: they do not depend on how busy the
# machine is.  Fresh and replay may not get more than 5 % dearer than what is
# recorded in bench/instructions.txt, and a module that is loaded and not used
# may not cost anything.  A change that is meant to cost more, or that made it
# cheaper, records anew: bench/instructions --record.

use strict;
use warnings;

use Test::More;

my $tolerance = 0.05;
my $unused_tolerance = 0.005;
my $beside_tolerance = 0.006;    # 0.005 is meant, and a bit for noise
my @cases = qw(memory-fresh memory-replay redis-fresh redis-replay
               cache-fresh cache-replay);

# they are of the stock nginx and the ordinary build, with both stores at once

if ($ENV{IDEMPOTENCY_SANITIZER_LOGS} || $ENV{IDEMPOTENCY_VALGRIND}) {
    plan skip_all => 'an nginx with other instructions';

} elsif (($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory') {
    plan skip_all => 'done with the memory store, for both';

} elsif (system('command -v callgrind_control >/dev/null') != 0) {
    plan skip_all => 'there is no valgrind: tools/setup test';
}

my %recorded = figures(slurp('bench/instructions.txt'));
my $output = `bench/instructions 2>&1`;
is($?, 0, 'measured') or diag($output);
my %now = figures($output);

SKIP: {
    if ($now{nginx}[0] ne $recorded{nginx}[0]) {
        diag("no figures for nginx $now{nginx}[0]: those in "
             . "bench/instructions.txt are of $recorded{nginx}[0]");
        skip 'no figures for this version of nginx', scalar @cases;
    }

    for my $case (@cases) {
        my ($was, $is) = ($recorded{$case}[0], $now{$case}[0]);

        cmp_ok($is, '<=', $was * (1 + $tolerance),
               sprintf '%s: %d instructions, %+.1f %%', $case, $is,
               100 * ($is - $was) / $was);

        if ($is < $was * (1 - $tolerance)) {
            diag("$case is cheaper than recorded: bench/instructions --record");
        }
    }
}

my ($without, $with) = map { $now{$_}[1] } qw(plain loaded);

cmp_ok(abs($with - $without), '<=', $without * $unused_tolerance,
       sprintf 'loaded, and not used: %d instructions, without it %d', $with,
       $without);

# a location without it, beside one that has it: three handlers are passed by

my $beside = $now{unused}[1];

cmp_ok($beside, '<=', $without * (1 + $beside_tolerance),
       sprintf 'a location without it: %d instructions, without the module %d',
       $beside, $without);

done_testing();


# "<name> <figure> ..." by name

sub figures
{
    my %by_name;

    for (split /\n/, shift) {
        my ($name, @figures) = split;
        $by_name{$name} = \@figures if @figures && $name =~ /^[a-z]/;
    }

    return %by_name;
}

sub slurp
{
    my $file = shift;

    open my $in, '<', $file or BAIL_OUT("$file: $!");
    local $/;
    return scalar <$in>;
}
