# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Faults;

# Allocations that fail on demand: the module of tools/build-faults, and the
# file that is shared with it (proof/faults/faults.c).
#
#   use IdempotencyTest::Faults;       # before IdempotencyTest
#
#   faults_arm(7);                     the 7th allocation from now on fails
#   faults_arm(7, all => 1);           ... and all after it
#   faults_arm(2, slab => 1);          of shared memory only
#   faults_arm(2, shared => 1);        of shared memory too
#   my $f = faults_disarm();           { count, failed, name, where }
#   faults_balance();                  blocks and pools that are not freed
#   faults_sites();                    { where => failures } of all so far
#   faults_kill(3, 120);               the worker that takes the 3rd lock of
#                                      shared memory from now on dies 120
#                                      instructions later, with the lock
#   faults_kills();                    how many did so far

use strict;
use warnings;

use Cwd ();
use File::Basename ();
use File::Path ();
use Exporter 'import';

our @EXPORT = qw(faults_arm faults_disarm faults_balance faults_sites
                 faults_calls faults_kill faults_kills);

use constant POSTGRES => 1 << 40;
use constant { POOL => 1, SLAB => 2, LIBRARY => 4 };

# offsets in the file

use constant { NAME => 48, BALANCE => 96, SITES => 112, SIZE => 32768,
               KILL => 112 + 8 + 24 * 1024 };

my ($File, $Handle, $Module);
my $Owner = $$;


BEGIN {
    my $given = $ENV{IDEMPOTENCY_MODULE} || '';

    my $skip = $given eq 'static' ? 'it takes a dynamic module'
             : $ENV{IDEMPOTENCY_VALGRIND} ? 'thousands of requests' : undef;

    if ($skip) {
        require Test::More;
        Test::More::plan(skip_all => $skip);
    }

    my $objs = $given =~ m{^(.*/objs)/[^/]*$} ? $1 : 'build/nginx/objs';
    my $kind = $objs =~ /asan/ ? 'faults-asan' : 'faults';

    system('tools/build-faults', $objs, "build/$kind") == 0
        or die "tools/build-faults failed\n";

    $Module = Cwd::cwd() . "/build/$kind/ngx_http_idempotency_module.so";
    $ENV{IDEMPOTENCY_MODULE} = $Module;

    # the file is shared with nginx by its name

    File::Path::make_path('build/servroot');
    $File = Cwd::cwd() . '/build/servroot/'
            . File::Basename::basename($0) . ".$$.faults";

    open $Handle, '+>', $File or die "$File: $!\n";
    binmode $Handle;
    syswrite $Handle, "\0" x SIZE;

    $ENV{NGX_IDEMPOTENCY_FAULTS} = $File;
}


sub faults_arm
{
    my ($n, %o) = @_;

    my $classes = $o{slab} ? SLAB : $o{shared} ? POOL | SLAB | LIBRARY
                : POOL | LIBRARY;

    put(0, pack 'Q<6 a48', 0, $o{all} ? 1 : 0, 0, 0, 0, 0, '');
    put(0, pack 'Q<3', $n, $o{all} ? 1 : 0, $classes);
}


sub faults_disarm
{
    put(0, pack 'Q<3', 0, 0, 0);

    my ($at, $mode, $classes, $count, $failed, $address, $name)
        = unpack 'Q<6 Z48', get(0, BALANCE);

    return { count => $count, failed => $failed, name => $name,
             where => $failed ? place($address) : '' };
}


sub faults_balance
{
    return join ' ', unpack 'q<2', get(BALANCE, 16);
}


sub faults_kill
{
    my ($n, $steps) = @_;

    put(KILL, pack 'q<', 0);
    put(KILL + 8, pack 'Q<', $steps);
    put(KILL, pack 'q<', $n);
}


sub faults_kills { return unpack 'Q<', get(KILL + 16, 8) }


sub faults_sites
{
    my $n = unpack 'Q<', get(SITES, 8);
    my %sites;

    for my $i (0 .. $n - 1) {
        my ($address, $calls, $failures) = unpack 'Q<3', get(SITES + 8 + 24 * $i, 24);
        $sites{$address} = $failures;
    }

    return \%sites;
}


# every call in the module of what can be made to fail: where it returns to

sub faults_calls
{
    my @calls;
    my $call;
    my @files = ([ $Module, 0 ]);

    push @files, [ $Module =~ s/idempotency_module/idempotency_postgres_module/r,
                   POSTGRES ] if ($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres';

    for (@files) {
        my ($file, $at) = @$_;

        for (qx(objdump -d --no-show-raw-insn $file)) {
            my ($address) = /^ *([0-9a-f]+):/ or next;

            push @calls, $at + hex $address if $call;
            $call = /\bcall\b.*<__wrap_(?!free|ngx_destroy_pool|ngx_http_idem_mutex)/;
        }
    }

    return @calls;
}


my %Places;

sub place
{
    my $address = shift;

    return $Places{$address} ||= do {
        my $file = $Module;

        # of the module of PostgreSQL
        if ($address >= POSTGRES) {
            $file =~ s/idempotency_module/idempotency_postgres_module/;
            $address -= POSTGRES;
        }

        my $said = sprintf 'addr2line -s -f -e %s 0x%x', $file, $address - 1;
        my ($function, $line) = split /\n/, qx($said);
        "$function at $line";
    };
}


sub put
{
    my ($at, $bytes) = @_;

    sysseek $Handle, $at, 0;
    syswrite $Handle, $bytes;
}


sub get
{
    my ($at, $length) = @_;

    my $bytes;

    sysseek $Handle, $at, 0;
    sysread $Handle, $bytes, $length;

    return $bytes;
}


END { unlink $File if $File && $$ == $Owner }

1;
