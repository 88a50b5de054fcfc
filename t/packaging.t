# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What is shipped as an example of a deployment is in order: nginx takes its
# configurations, Prometheus its own, and the files that it names are there.

use strict;
use warnings;
use lib 't/lib';

use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use IdempotencyTest::Figures;
use Test::More;

my $nginx  = $ENV{TEST_NGINX_BINARY} || '/usr/sbin/nginx';
my $module = $ENV{IDEMPOTENCY_MODULE}
             || abs_path('build/ngx_http_idempotency_module.so');

plan skip_all => 'it has nothing to do with the store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

sub slurp {
    open my $fh, '<', $_[0] or die "$_[0]: $!\n";
    local $/;
    return scalar <$fh>;
}

# a block of text in YAML: "name: |", and what is further in

sub block {
    my ($file, $name) = @_;

    slurp($file) =~ /^( *)(?:\S+\/)?\Q$name\E: \|\n((?:\1 +.*\n|\n)+)/m
        or return fail("$file has $name");

    my $text = $2;
    my ($indent) = $text =~ /^( +)/;
    return $text =~ s/^$indent//mgr;
}

sub takes {
    my ($what, %part) = @_;

    my $dir = tempdir(CLEANUP => 1);
    my $load = $module eq 'static' ? '' : "load_module $module;\n";
    my $user = $> ? '' : "user root;\n";
    my $temp = join '', map { "${_}_temp_path $dir/$_;\n" }
                            qw(client_body proxy fastcgi uwsgi scgi);

    for ($part{http}) {
        s/\b(?:valkey|app)[\w.]*:(\d+)/127.0.0.1:$1/g;
        my $n = 0;
        s/^(\s*listen) +\S+;/"$1 unix:$dir\/" . $n++ . '.sock;'/mge;
    }

    open my $f, '>', "$dir/nginx.conf" or die $!;
    print {$f} "$user${load}pid $dir/pid;\nevents {}\nhttp {\n$temp"
               . "access_log off;\n$part{http}\n}\n";
    close $f;
    mkdir "$dir/logs";

    local $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0';
    my $said = `$nginx -t -q -e stderr -p $dir/ -c $dir/nginx.conf 2>&1`;

    is($?, 0, "nginx takes $what") or diag($said);
}

takes('the configuration of the compose file',
      http => slurp('packaging/docker/nginx.conf'));

takes('the ConfigMap of the gateway',
      http => block('packaging/kubernetes/nginx.yaml', 'idempotency.conf'));

my $ingress = 'packaging/kubernetes/ingress-nginx.yaml';

takes('the snippets of the Ingress',
      http => block($ingress, 'http-snippet')
              . "server { listen unix:a.sock; location /payments {\n"
              . block($ingress, 'configuration-snippet')
              . 'proxy_pass http://127.0.0.1:1; } }');

like(block($ingress, 'main-snippet'),
     qr{^load_module \S+/ngx_http_idempotency_module\.so;$},
     'and its module is loaded');

# files that the compose file mounts or builds from

my $compose = slurp('packaging/docker/compose.yaml');
my @mounted = grep { /^\./ } $compose =~ /^ +- (\S+?):\S+:ro$/mg;

cmp_ok(scalar @mounted, '>=', 3, 'files are mounted');
ok(-f "packaging/docker/$_", "$_ is there") for @mounted;

my ($dockerfile) = $compose =~ /dockerfile: (\S+)/;
ok(-f $dockerfile, "$dockerfile is there");

# The macro of Fedora names no option of nginx.  A module without TLS or HTTP/2
# is refused by its nginx: t/build-options.t.

my $spec = slurp('packaging/rpm/nginx-mod-http-idempotency.spec');

for my $option (qw(http_ssl_module http_v2_module threads)) {
    like($spec, qr/^%nginx_modconfigure .*--with-$option\b/m,
         "the rpm is built with --with-$option");
}

# Prometheus

my $promtool = promtool_path();
my $dir = tempdir(CLEANUP => 1);
my $conf = slurp('packaging/docker/prometheus.yml');
my $alerts = abs_path('examples/monitoring/alerts.yml');

ok($conf =~ s{/etc/prometheus/alerts\.yml}{$alerts}, 'it reads the rules');
open my $f, '>', "$dir/prometheus.yml" or die $!;
print {$f} $conf;
close $f;

my $said = `$promtool check config $dir/prometheus.yml 2>&1`;
is($?, 0, 'promtool takes the configuration') or diag($said);

done_testing();
