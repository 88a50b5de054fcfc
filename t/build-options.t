# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A module that was built without an option that its nginx has: --with-compat
# lets nginx load it.  Without TLS it would not see who a client with a
# certificate is, and replay to anybody what one of them was told.  So such a
# module is refused where it is used.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;

my $nginx  = $ENV{TEST_NGINX_BINARY} || '/usr/sbin/nginx';
my $module = $ENV{IDEMPOTENCY_MODULE} || '';
my $cc     = $ENV{CC} || 'cc';

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';
plan skip_all => 'it takes a dynamic module' if $module eq 'static';

my $built = $module =~ m{^(.*)/objs/[^/]*$} ? $1 : getcwd() . '/build/nginx';

# what nginx says of a configuration; nothing if it takes it

sub check {
    my ($file, $location) = @_;

    my $dir = tempdir(CLEANUP => 1);
    my $user = $> ? '' : "user root;\n";
    my $temp = join '', map { "${_}_temp_path $dir/$_;\n" }
                            qw(client_body proxy fastcgi uwsgi scgi);

    open my $f, '>', "$dir/nginx.conf" or die "$dir/nginx.conf: $!\n";
    print {$f} <<"END";
${user}load_module $file;
pid $dir/pid;
events {}
http {
    access_log off;
    $temp
    server {
        listen unix:$dir/sock;
        location / { $location }
    }
}
END
    close $f;

    local $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0';
    return scalar `$nginx -t -q -e stderr -p $dir/ -c $dir/nginx.conf 2>&1`;
}

# The module of this build, with the files anew that ask for the option.  What
# nginx's configure would not have defined is 0.

sub without {
    my ($define) = @_;

    my $dir = tempdir('idempotency-test-XXXXXX', TMPDIR => 1, CLEANUP => 1);

    system("cp -a '$built/.' $dir") == 0 or die "cp: $?\n";

    for (split ' ', `grep -rl --include='*.c' $define src`) {
        my ($name) = m{([^/]+)\.c$};
        unlink glob "$dir/objs/addon/*/$name.o";
    }

    my $said = `MAKEFLAGS= make -s -C $dir -f objs/Makefile CC='$cc -D$define=0' modules 2>&1`;
    die "make: $said\n" if $?;

    return "$dir/objs/ngx_http_idempotency_module.so";
}

is(check("$built/objs/ngx_http_idempotency_module.so", 'idempotency on;'), '',
   'built as nginx was');

for my $option (qw(http_ssl_module http_v2_module)) {
    my $define = uc "ngx_$option" =~ s/_module$//r;
    my $file = without($define);

    like(check($file, 'idempotency on;'),
         qr/ \[emerg\] .*built without "--with-$option", which this nginx has$/m,
         "without --with-$option it is refused");
    is(check($file, ''), '', 'not where it is loaded only');
}

done_testing();
