# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# "make install" puts the module where nginx looks for it, and "make uninstall"
# takes away all of it, and nothing else.

use strict;
use warnings;

use File::Find qw(find);
use File::Temp qw(tempdir);
use Test::More;

my $nginx  = $ENV{TEST_NGINX_BINARY} || '/usr/sbin/nginx';
my $module = 'ngx_http_idempotency_module.so';

sub files {
    my $dir = shift;
    my @found;
    find(sub { push @found, $File::Find::name =~ s/^\Q$dir\E//r if -f }, $dir);
    return sort @found;
}

sub make {
    my ($what, %env) = @_;
    local @ENV{keys %env} = values %env;
    local $ENV{MAKEFLAGS} = '';
    my $said = `make --no-print-directory $what 2>&1`;
    is($?, 0, "make $what") or diag($said);
    return $said;
}

my ($path) = `$nginx -V 2>&1` =~ /--modules-path=(\S+)/;

if (!defined $path) {
    my ($prefix) = `$nginx -V 2>&1` =~ /--prefix=(\S+)/;
    $path = ($prefix // '/usr/local/nginx') . '/modules';
}

my $dir = tempdir(CLEANUP => 1);

# somebody else's file, beside ours

system("mkdir -p $dir$path $dir/usr/share/doc/nginx-idempotency");
for my $other ("$path/ngx_other_module.so", '/usr/share/doc/nginx-idempotency/x')
{
    open my $f, '>', "$dir$other" or die "$other: $!";
    close $f;
}

my @before = files($dir);

my $said = make('install', DESTDIR => $dir, prefix => '/usr', NGINX_BIN => $nginx);
my %now = map { $_ => 1 } files($dir);

ok($now{"$path/$module"}, 'the module is where nginx looks for it');
ok($now{'/usr/share/doc/nginx-idempotency/README.md'}, 'with documents');
ok($now{'/usr/share/man/man7/ngx_http_idempotency_module.7'},
   'with a manual page');
ok($now{'/usr/share/doc/nginx-idempotency/examples/stripe.conf'},
   'with examples');
ok($now{'/usr/share/doc/nginx-idempotency/examples/monitoring/alerts.yml'},
   'with alerts');
like($said, qr{^ +load_module modules/$module;$}m, 'says how to load it');

my $postgres = $module =~ s/_module/_postgres_module/r;
is(scalar($said =~ m{^ +load_module modules/$postgres;}m), scalar(-f "build/$postgres" ? 1 : ''),
   'and the store that has a module of its own, if that was built');

is((stat "$dir$path/$module")[2] & 0777, 0644, 'its mode');
is(system("cmp -s build/$module $dir$path/$module"), 0, 'it is the one built');
is_deeply([ grep { m{/\.new$} } keys %now ], [], 'nothing half done');

make('install', DESTDIR => $dir, prefix => '/usr', NGINX_BIN => $nginx);
is_deeply([ sort keys %now ], [ files($dir) ], 'a second time is the same');

make('uninstall', DESTDIR => $dir, prefix => '/usr', NGINX_BIN => $nginx);
is_deeply([ files($dir) ], \@before, 'uninstall leaves what was there before');

# no nginx to ask

my $none = `DESTDIR=$dir NGINX_BIN=/nowhere/nginx tools/install install 2>&1`;

isnt($?, 0, 'without an nginx it fails');
like($none, qr/MODULES_PATH=/, 'and says what to do');

make('install', DESTDIR => $dir, NGINX_BIN => '/nowhere/nginx',
     MODULES_PATH => '/opt/modules');
ok(-f "$dir/opt/modules/$module", 'a folder that is named is used');

done_testing();
