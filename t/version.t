# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The version has one place, the file VERSION: what runs says it, and what
# packages carry agrees with it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub slurp {
    open my $fh, '<', $_[0] or die "$_[0]: $!\n";
    local $/;
    return scalar <$fh>;
}

our $version = slurp('VERSION');

like($version, qr/\A\d+\.\d+\.\d+\n\z/, 'VERSION is one line, a.b.c');
chomp $version;

# where a version stands, and how

my %says = (
    'README.md'        => qr/^Version ([\d.]+\d)/m,
    'debian/changelog' => qr/\A[\w-]+ \(([\d.]+)/,
    'packaging/rpm/nginx-mod-http-idempotency.spec'
                       => qr/^Version:\s+(\S+)/m,
    'packaging/docker/Dockerfile'
                       => qr/org\.opencontainers\.image\.version="([^"]+)"/,
    'packaging/kubernetes/nginx.yaml'
                       => qr/nginx-idempotency:([\d.]+\d)/,
    'docs/howto-kubernetes.md'
                       => qr/nginx-idempotency:([\d.]+\d)/,
    'docs/reliability.md'
                       => qr/^Version ([\d.]+\d)/m,
);

for my $file (sort keys %says) {
    my ($found) = slurp($file) =~ $says{$file};
    is($found, $version, "$file says $version");
}

# those of clients, in whatever language

for my $file (glob('clients/*/package.json clients/*/pyproject.toml '
                   . 'clients/*/Cargo.toml'))
{
    next if $file =~ /[*]/;

    my ($found) = slurp($file) =~ /^\s*"?version"?\s*[:=]\s*"([^"]+)"/m;
    is($found, $version, "$file says $version");
}

for my $file (glob('clients/*/*/__init__.py')) {
    next if !-f $file;

    my ($found) = slurp($file) =~ /^__version__\s*=\s*"([^"]+)"/m;
    is($found, $version, "$file says $version") if defined $found;
}

# that of the terminal is compiled in; "make check" does without it

SKIP: {
    skip('idempotencyctl is not built', 1) if !-x 'build/idempotencyctl';

    is(scalar `build/idempotencyctl --version`, "idempotencyctl $version\n",
       'idempotencyctl --version');
}

# and the manual page of the module is made with it

like(scalar `tools/man docs/directives.md`, qr/^\.TH .* \Q$version\E"/m,
     'the manual page');

# release notes: by version, newest first, each once

my @notes = slurp('CHANGELOG.md') =~ /^## (.+)$/mg;
my @numbers = map { /^(\d+\.\d+\.\d+)\b/ ? $1 : () } @notes;
my %seen;

is_deeply([ grep { $seen{$_}++ } @notes ], [], 'each release has one section');
is_deeply(\@numbers,
          [ sort { pack('N3', split /\./, $b) cmp pack('N3', split /\./, $a) }
                 @numbers ],
          'the newest comes first');
ok($notes[0] =~ /^\Q$version\E\b/ || $notes[0] eq 'Not released yet',
   'the first section is of this version, or not released yet');

run_tests();

__DATA__

=== TEST 1: what runs says which version it is
--- config
    location = /stats { idempotency_stats; }
--- client
my $metrics = http_get('/stats')->body;
my ($build) = $metrics =~ /^nginx_idempotency_build_info\{version="([^"]*)"/m;

is($build, $::version, 'nginx_idempotency_build_info');
