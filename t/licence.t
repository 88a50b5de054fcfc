# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Each file says whose it is and under which licence, whatever kind of file it
# is.  Left out are those that can't have a comment, and documents: LICENSE is
# theirs.  debian/copyright is for the files of debian/ that debhelper reads.

use strict;
use warnings;
use Test::More;

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

my @files = split /\n/, `git ls-files 2>/dev/null`;

@files = split /\n/, `find . \\( -path ./build -o -path ./.git \\) -prune -o -type f -printf '%P\\n'`
    if !@files;

my $without = qr{
    \.(?:md|json|png)$
    |^(?:LICENSE|VERSION)$
    |^proof/fuzz/corpus/
    |^debian/(?:changelog|control|copyright|source/.*
               |[^/]*\.(?:docs|examples|install|lintian-overrides|manpages|nginx))$
}x;

my @bare;

for my $file (grep { !/$without/ && -f } @files) {
    open my $fh, '<', $file or die "$file: $!\n";
    read $fh, my $head, 1500;

    push @bare, $file
        if ($head // '') !~ /Copyright \(C\) the contributors of .*\n.*SPDX-License-Identifier: BSD-2-Clause/;
}

cmp_ok(scalar @files, '>', 200, 'files are found');
is_deeply(\@bare, [], 'each has its two lines');

done_testing();
