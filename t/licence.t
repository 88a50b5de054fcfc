# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Each file says whose it is and under which licence: those that are code, a
# configuration or a script.  Documents and data have it elsewhere.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

my @files = split /\n/, `git ls-files 2>/dev/null`;

@files = split /\n/, `find . \\( -path ./build -o -path ./.git \\) -prune -o -type f -printf '%P\\n'`
    if !@files;

my @bare;

for my $file (@files) {
    next if $file =~ m{^debian/};
    next if !-f $file;

    open my $fh, '<', $file or die "$file: $!\n";
    read $fh, my $head, 1500;

    my $code = $file =~ m{\.(?:[ch]|t|pm|pl|pml|conf|ya?ml|sh|py|js|mjs|sql|lua|spec|html|css)$
                          |(?:^|/)(?:Makefile|Dockerfile|config)$}x
               || $head =~ /^#!/;

    push @bare, $file if $code
        && $head !~ /Copyright \(C\) the contributors of .*\n.*SPDX-License-Identifier: BSD-2-Clause/;
}

cmp_ok(scalar @files, '>', 200, 'files are found');
is_deeply(\@bare, [], 'each has its two lines');

done_testing();
