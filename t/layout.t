# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The rooms and their doors: which may include which, and by what header.  A
# room that is not named here fails, so that its place has to be thought about.

use strict;
use warnings;
use Test::More;
use File::Find;

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';
plan skip_all => 'it has nothing to do with how nginx was built'
    if $ENV{IDEMPOTENCY_SANITIZER_LOGS} || $ENV{IDEMPOTENCY_VALGRIND};

# what a room may include beside itself and the headers in src/; from the
# bottom to the top
my %below = (
    'canonical'      => [],
    'record'         => [],
    'redis'          => [],
    'observe'        => [],
    'store/zone'     => ['store', 'record', 'observe'],
    'store/memory'   => ['store', 'store/zone', 'record', 'observe'],
    'store/redis'    => ['store', 'redis', 'record', 'observe'],
    'store/postgres' => ['store', 'record', 'observe'],
    'store/layers'   => ['store', 'store/zone', 'record', 'observe'],
    'store'          => ['store/zone', 'store/memory', 'store/redis',
                         'record', 'observe'],
    'conf'           => ['store', 'store/layers', 'record', 'canonical',
                         'observe'],
    'claim'          => ['conf', 'request', 'store', 'record', 'observe',
                         'store/zone'],
    'response'       => ['conf', 'claim', 'request', 'canonical', 'record',
                         'store', 'observe'],
    'request'        => ['conf', 'claim', 'response', 'canonical', 'record',
                         'store', 'observe'],
    'admin'          => ['conf', 'claim', 'response', 'request', 'store',
                         'store/layers', 'observe', 'record', 'canonical'],
);

# by which headers a room is entered; those of pure rooms are all doors
my %door = (
    'conf'     => qr/^ngx_http_idem_conf\.h$/,
    'claim'    => qr/^ngx_http_idem_claim\.h$/,
    'request'  => qr/^ngx_http_idem_request\.h$/,
    'response' => qr/^ngx_http_idem_response\.h$/,
    'store'    => qr/^ngx_http_idem_(store|nodes)\.h$/,
    'redis'    => qr/^ngx_redis\.h$/,
    'store/memory' => qr/^ngx_http_idem_memory\.h$/,
    'store/redis'  => qr/^ngx_http_idem_redis\.h$/,
    'store/layers' => qr/^ngx_http_idem_layers\.h$/,
);

my @files;
find({ wanted => sub { push @files, $_ if /\.[ch]$/ }, no_chdir => 1 },
     'src');

cmp_ok(scalar @files, '>', 100, 'the sources are found');

my @wrong;

for my $file (sort @files) {
    my ($dir, $name) = $file =~ m{^src/(?:(.*)/)?([^/]+)$};
    my $room = defined $dir ? room($dir) : '';

    open my $in, '<', $file or die "$file: $!";

    while (<$in>) {
        if (m{^\#include <ngx_http\.h>} && $room =~ /^(store|observe|record|canonical|redis)/) {
            push @wrong, "$file:$.: <ngx_http.h> below the requests";
        }

        next unless m{^\#include "(?:(.*)/)?([^/"]+)"};
        my ($to, $header) = (defined $1 ? room($1) : '', $2);

        next if $to eq $room || $to eq '';

        if ($room eq '') {
            push @wrong, "$file:$.: src/ itself includes a room";

        } elsif (!exists $below{$room}) {
            push @wrong, "$file: \"$room\" is a room that nobody knows";
            last;

        } elsif (!grep { $_ eq $to } @{ $below{$room} }) {
            push @wrong, "$file:$.: \"$room\" includes \"$to\"";

        } elsif ($door{$to} && $header !~ $door{$to}) {
            push @wrong, "$file:$.: \"$header\" is not the door of \"$to\"";
        }
    }
}

is_deeply(\@wrong, [], 'every room includes only what is below it, and by '
          . 'its door') or diag(join "\n", @wrong);


# topologies and the like are corners of the room they are in

sub room {
    my ($dir) = @_;

    return $1 if $dir =~ m{^(store/[^/]+)};
    return $1 if $dir =~ m{^([^/]+)};
}

done_testing();
