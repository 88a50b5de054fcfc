# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Instructions for a request, by callgrind: they do not depend on how busy the
# machine is.  Fresh and replay may not get more than 5 % dearer than what is
# recorded in bench/instructions.txt, and a module that is loaded and not used
# may not cost anything.  A change that is meant to cost more, or that made it
# cheaper, records anew: bench/instructions --record.
#
# What is recorded is of one version of nginx.  On another, with its own
# compiler and libraries, the ratio is compared: of a request that runs to one
# without the module, of a replay to an answer that nginx gives by itself.

use strict;
use warnings;

use Test::More;

my $tolerance = 0.05;
my $ratio_tolerance = 0.2;       # compilers, and OpenSSL's part
my $unused_tolerance = 0.005;
my $admin_tolerance = 0.01;
my $beside_tolerance = 0.014;    # handlers of four phases: 226 to 254 of 19,731
                                 # instructions, by how the heap happens to lie
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

# Small differences are told of the smallest of two measurements, or up to five
# as long as they do not hold: on a busy machine a request takes more turns of
# the event loop, and each has its cost.  Nothing makes it take fewer.

for my $round (2 .. 5) {
    last if $round > 2 && small_differences_hold();

    my %again = figures(scalar `bench/instructions plain loaded unused memory-fresh memory-replay admin-fresh admin-replay 2>&1`);

    for my $case (keys %again) {
        next if $case eq 'nginx';
        $now{$case} = $again{$case} if $again{$case}[1] < $now{$case}[1];
    }
}

my $same = $now{nginx}[0] eq $recorded{nginx}[0];

for my $case (@cases) {
    $same ? compare($case) : compare_ratio($case);
}

my ($without, $with) = map { $now{$_}[1] } qw(plain loaded);

cmp_ok(abs($with - $without), '<=', $without * $unused_tolerance,
       sprintf 'loaded, and not used: %d instructions, without it %d', $with,
       $without);

# idempotency_admin and idempotency_stats that nobody asks; without libc, whose
# part differs from run to run

for my $kind (qw(fresh replay)) {
    my ($alone, $admin) = map { $now{"$_-$kind"}[1] } qw(memory admin);

    cmp_ok($admin, '<=', $alone * (1 + $admin_tolerance),
           sprintf '%s beside an unused idempotency_admin: %d instructions, '
                   . 'without it %d', $kind, $admin, $alone);
    cmp_ok($now{"events-$kind"}[1], '>', $alone,
           sprintf '%s with idempotency_log: %d', $kind,
                   $now{"events-$kind"}[1]);
}

# a location without it, beside one that has it: the handlers decline

my $beside = $now{unused}[1];

cmp_ok($beside, '<=', $without * (1 + $beside_tolerance),
       sprintf 'a location without it: %d instructions, without the module %d',
       $beside, $without);

done_testing();


sub small_differences_hold
{
    my %n = map { $_ => $now{$_}[1] } grep { $_ ne 'nginx' } keys %now;

    return abs($n{loaded} - $n{plain}) <= $n{plain} * $unused_tolerance
           && $n{unused} <= $n{plain} * (1 + $beside_tolerance)
           && $n{'admin-fresh'} <= $n{'memory-fresh'} * (1 + $admin_tolerance)
           && $n{'admin-replay'}
              <= $n{'memory-replay'} * (1 + $admin_tolerance);
}


sub compare
{
    my $case = shift;
    my ($was, $is) = ($recorded{$case}[0], $now{$case}[0]);

    cmp_ok($is, '<=', $was * (1 + $tolerance),
           sprintf '%s: %d instructions, %+.1f %%', $case, $is,
           100 * ($is - $was) / $was);

    if ($is < $was * (1 - $tolerance)) {
        diag("$case is cheaper than recorded: bench/instructions --record");
    }
}

sub compare_ratio
{
    my $case = shift;
    my $base = $case =~ /fresh/ ? 'plain' : 'floor';

    # without libc

    my ($was, $is) = map { $_->{$case}[1] / $_->{$base}[1] } \%recorded, \%now;

    cmp_ok($is, '<=', $was * (1 + $ratio_tolerance),
           sprintf '%s: %.2f times what "%s" takes, with nginx %s %.2f', $case,
           $is, $base, $recorded{nginx}[0], $was);
}


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
