# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The reference clients (clients/), in the short form: their own tests, and the
# scenarios of the conformance kit that are marked so, through a scripted peer
# and through the real gateway.  "make test-clients" runs all of them.
#
# CLIENTS_FULL=1 runs every scenario.

use strict;
use warnings;

use Test::More;

plan skip_all => 'it runs nginx as it is, not under valgrind'
    if $ENV{IDEMPOTENCY_VALGRIND};

my $store = $ENV{IDEMPOTENCY_STORE} || 'memory';
my $short = $ENV{CLIENTS_FULL} ? '' : '--tags short';

plan skip_all => "the kit has no store $store"
    if $store !~ /^(?:memory|redis)$/;

# what a killed worker leaves unfreed is no leak

if (my $logs = $ENV{IDEMPOTENCY_SANITIZER_LOGS}) {
    $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0,'
                         . "log_path=$logs/clients";
}

versions_follow_the_module();

SKIP: {
    skip_loudly('python3 3.9 or later')
        if system('python3 -c "import sys; sys.exit(sys.version_info < (3, 9))"'
                  . ' 2>/dev/null') != 0;

    scenarios('python', 'python3 clients/conformance/adapters/python.py');

    my $said = qx(python3 -m unittest discover clients/python/tests 2>&1);

    is($?, 0, 'python: its own tests') or diag($said);

    SKIP: {
        skip_loudly('node 18 or later')
            if system('node -e "process.exit(+(process.versions.node.split'
                      . '(\'.\')[0] < 18))" 2>/dev/null') != 0;

        scenarios('js', 'node clients/conformance/adapters/js.mjs');

        # later ones take files only, earlier ones no patterns of their own

        $said = qx(node --test clients/js/test/*.mjs 2>&1);
        is($?, 0, 'js: its own tests') or diag($said);
    }
}

done_testing();


# Both clients at once would be quicker, and hide what a busy machine shows.

sub scenarios {
    my ($name, $command) = @_;

    my $text = qx(clients/conformance/run --store $store $short \\
                  --client '$command' 2>&1);
    my $exit = $?;

    is($exit, 0, "$name: the scenarios, on the $store store")
        or diag(join "\n", grep { !/^ok/ } split /\n/, $text);

    my ($passed) = $text =~ /^# scenarios: (\d+) passed/m;

    cmp_ok($passed || 0, '>=', 18, "$name: and there are many of them");
    note($text);
}


sub skip_loudly {
    my $what = shift;

    diag("there is no $what: a client is NOT tested (\"make setup\" names "
         . 'the packages)');
    skip("no $what", 1);
}


sub versions_follow_the_module {
    my ($version) = text('VERSION') =~ /\A(\d+\.\d+\.\d+)\n/;

    ok($version, 'the module has a version');

    my %says = (
        'clients/js/package.json'                       => qr/"version": "(.*?)"/,
        'clients/python/pyproject.toml'                 => qr/^version = "(.*?)"/m,
        'clients/python/idempotency_client/__init__.py' => qr/__version__ = "(.*?)"/,
    );

    for my $file (sort keys %says) {
        is((text($file) =~ $says{$file})[0], $version, "$file follows it");
    }
}


sub text {
    my $file = shift;

    open my $in, '<', $file or die "$file: $!\n";
    local $/;
    return <$in>;
}
