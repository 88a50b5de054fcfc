# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Npm;

# Real clients from npm, for tests: npm_package('stripe', '23.1.0') puts the
# package of that version into a directory of its own under build/npm, if it is
# not there yet, and returns that directory.  Without node, npm or a registry the
# whole test is skipped, and says why, loudly.  A third argument is what is not
# tested then.
#
# run_node($dir, $script, \%arguments, $timeout) runs a script of t/clients
# with the packages of that directory, and with the arguments as JSON.  What it
# prints is JSON, too, and is returned decoded.

use strict;
use warnings;

use Cwd ();
use Fcntl qw(:flock);
use File::Path ();
use File::Temp ();
use JSON::PP ();
use Test::More ();

require Exporter;

our @ISA = 'Exporter';
our @EXPORT = qw(npm_package run_node);


sub npm_package
{
    my ($name, $version, $what) = @_;

    for my $tool (qw(node npm)) {
        if (!grep { -x "$_/$tool" } split /:/, $ENV{PATH}) {
            skip_all($what, "there is no $tool on this machine");
        }
    }

    (my $dir = "build/npm/$name-$version") =~ s/[@]//g;

    File::Path::make_path($dir);

    # tests run side by side

    open my $lock, '>', "$dir/lock" or die "$dir/lock: $!\n";
    flock $lock, LOCK_EX or die "$dir/lock: $!\n";

    if (!-e "$dir/complete") {
        my $failed = system("cd '$dir' && timeout 180 npm install --no-audit "
                            . '--no-fund --ignore-scripts --fetch-retries=1 '
                            . '--fetch-timeout=20000 --prefix . '
                            . "'$name\@$version' > log 2>&1");

        if ($failed) {
            skip_all($what, "$name $version can't be fetched with npm: "
                            . "see $dir/log");
        }

        open my $complete, '>', "$dir/complete" or die "$dir/complete: $!\n";
    }

    return Cwd::abs_path($dir);
}

sub skip_all
{
    my ($what, $why) = @_;

    Test::More::diag("\nSKIPPED, NOT tested: $what: $why\n");
    Test::More::plan(skip_all => $why);
}


sub run_node
{
    my ($dir, $script, $arguments, $timeout) = @_;

    # node looks for packages beside the script, and above it

    my $file = "$dir/" . ($script =~ s{.*/}{}r);

    system('cp', "t/clients/$script", $file) == 0 or die "$script: $?\n";

    my $in = File::Temp->new;
    my $out = File::Temp->new;

    print $in JSON::PP->new->canonical->encode($arguments);
    close $in;

    my $status = system('timeout ' . ($timeout || 150) . " node '$file' '$in' "
                        . "> '$out' 2>&1");

    open my $result, '<', "$out" or die "$out: $!\n";
    my $text = do { local $/; <$result> } // '';

    die "$script ends with $status:\n$text" if $status != 0;

    return JSON::PP->new->utf8->decode($text);
}

1;
