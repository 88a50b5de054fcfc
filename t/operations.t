# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The questions of docs/operations.md, answered by the commands that stand
# there: they are taken out of the document and run as they are.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';
use Cwd ();
use Sys::Hostname ();

our ($redis, $doc);

$redis = start_redis();
$redis->set_user(qw(app on >before ~* &* +@all));
$ENV{TEST_NGINX_OWN_PORT} = $redis->{port};

$doc = do {
    open my $fh, '<', 'docs/operations.md' or die "operations.md: $!\n";
    local $/;
    <$fh> =~ s/.*^## Questions, by command$//msr =~ s/^## .*//msr;
};

# examples of one kind under a heading

sub examples {
    my ($heading, $kind) = @_;
    my ($text) = $doc =~ /^### \Q$heading\E\n(.*?)(?=^### |\z)/ms
        or die "no \"$heading\"\n";

    return $text =~ /^```$kind\n(.*?)^```$/msg;
}

# the n-th example of a heading, with those names: what it says, its exit code

sub answer {
    my ($heading, $n, %env) = @_;

    my $root = $env{ROOT} // $ENV{TEST_NGINX_SERVER_ROOT};
    my @sh = examples($heading, 'sh');
    my ($names) = $doc =~ /^```sh\n(export .*?)^```$/ms;

    mkdir "$root/bin";
    open my $fh, '>', "$root/bin/nginx" or die "nginx: $!\n";
    print $fh "#!/bin/sh\nexec /usr/sbin/nginx -p $root/ "
              . "-c $root/conf/nginx.conf \"\$@\"\n";
    close $fh;
    chmod 0755, "$root/bin/nginx";

    my $build = Cwd::abs_path('build');

    local %ENV = (%ENV, PATH => "$root/bin:$build:$ENV{PATH}",
                  CONF => "$root/conf/nginx.conf", LOGS => "$root/logs",
                  IDEMPOTENCY_URL => "http://127.0.0.1:$port/ops/",
                  STATS => "http://127.0.0.1:$port/stats",
                  SCOPE => 'api.example.com', %env);

    open $fh, '>', "$root/command" or die "command: $!\n";
    print $fh $names, $sh[$n - 1] // die "no example $n of \"$heading\"\n";
    close $fh;

    my $said = `bash -e -u $root/command 2>&1`;

    return wantarray ? ($said, $? >> 8) : $said;
}

# a part of the configuration, as documented, in a test

sub documented {
    my ($heading, $from, $to) = @_;
    my ($text) = examples($heading, 'nginx');

    $text =~ /($from.*?$to)/ms or die "no $from in \"$heading\"\n";

    return $1 =~ s{http://app;}{http://127.0.0.1:\$TEST_NGINX_APP_PORT;}r
              =~ s{/etc/nginx/}{\$TEST_NGINX_SERVER_ROOT/}r
              =~ s{idempotency( +)on;}{idempotency$1\$TEST_STORE;}r;
}

our $api = <<'_EOC_';
    idempotency_scope     api.example.com;
    idempotency_identity  off;

    location / {
        idempotency         $TEST_STORE;
        idempotency_wait    0;
        idempotency_tenant  $http_x_tenant;
        idempotency_log     logs/idempotency.json;
        add_header          X-Record $idempotency_record always;
        add_header          X-Status $idempotency_status always;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /stats { idempotency_stats; }
    location /ops/    { idempotency_admin; }
_EOC_

sub post {
    my ($uri, $key, %headers) = @_;

    return http_post($uri, 'x', { 'Idempotency-Key' => $key, %headers });
}

run_tests();

__DATA__

=== TEST 1: records: charged twice, 409 for hours, delete, purge, which host
--- config eval: $::api
--- client
my $key = new_key();
my $first = post('/ok?op=a', $key, 'X-Tenant' => 'acme');
my $id = $first->header('X-Record');

post('/ok?op=a', $key, 'X-Tenant' => 'acme') for 1, 2;

my ($said, $code);

ok(wait_for(sub {
    ($said, $code) = answer('A customer was charged twice', 1, KEY => $key);
    $said =~ /\n1\n\z/;
}, 10), 'charged twice: it ran once') or diag($said);
is($code, 0, 'and the command succeeded');
like($said, qr/^record\s+$id$/m, 'with its record');
like($said, qr/^state\s+completed$/m, 'and its state');

# one that ran, and nobody knows what became of it; a retry is refused

my $unknown = new_key();

is(post('/reset?op=c', $unknown)->header('X-Status'), 'UNKNOWN',
   'no answer') for 1, 2;

ok(wait_for(sub {
    $said = answer('A customer was charged twice', 1, KEY => $unknown);
    $said =~ /\n1\n\z/;
}, 10), 'charged twice: it ran once, of two tries') or diag($said);

# a request that goes on and on

my $long = new_key();
my $c = send_post('/hold?op=h', 'x', { 'Idempotency-Key' => $long,
                                       'X-Tenant' => 'acme' });

app_wait_parked('h');

my $held = post('/hold?op=h', $long, 'X-Tenant' => 'acme');

is($held->status, 409, 'a key that answers 409');

$said = answer('A key answers 409 for hours', 1, KEY => $long,
               OLDER => '1ms');
like($said, qr/^state\s+in_progress$/m, '409 for hours: it is in progress');
like($said, qr/^@{[ $held->header('X-Record') ]} +in_progress /m,
     'and is listed');

$said = answer('Which host holds a lock', 1, KEY => $long);
like($said, qr/^host\s+\Q@{[ lc Sys::Hostname::hostname() ]}\E$/mi,
     'which host');
like($said, qr/^lease_left_ms\s+\d+$/m, 'and for how long');

app_release('h');
is($c->read_response->status, 200, 'the holder');

is(scalar answer('Delete one record', 1, KEY => $key),
   "would delete 1 record\ndeleted 1 record\n", 'delete one record');
is(post('/ok?op=a', $key, 'X-Tenant' => 'acme')->header('X-Status'),
   'EXECUTED', 'it runs again');

my $other = new_key();

post('/ok?op=o', $other, 'X-Tenant' => 'other');

is(scalar answer('Purge a tenant', 1, TENANT => 'acme'),
   "would delete 2 records\ndeleted 2 records\n", 'purge a tenant');
is(post('/ok?op=o', $other, 'X-Tenant' => 'other')->header('X-Status'),
   'REPLAYED', 'others have theirs');



=== TEST 2: how full; change a zone's size; upgrade the module
--- http_config
    idempotency_store default memory { zone orders:1m; }
--- config eval: $::api =~ s/\$TEST_STORE/on/gr
--- store: memory
--- client
my $key = new_key();

post('/ok?op=a', $key);

like(scalar answer('How full, and until when', 1),
     qr/^nginx_idempotency_store_bytes\{store="default"\} \d+\.\d % of 1048576 bytes$/,
     'how full');

my ($said, $code) = answer("Change a zone's size", 1, ZONE => 'orders',
                           SIZE => '2m');

is($code, 0, "change a zone's size: the reload was refused")
    or diag($said);
like($said, qr/keep the size, give the zone a new name, or restart/,
     'and says what to do');
is(post('/ok?op=a', $key)->header('X-Status'), 'REPLAYED',
   'nginx goes on as it was');

edit_config(sub { s/zone orders:2m/zone orders:1m/ });

my $root = $ENV{TEST_NGINX_SERVER_ROOT};
my %old = map { $_ => 1 } nginx_workers();

($said, $code) = answer('Upgrade the module', 1, MODULES => $root,
                        NEW_MODULE => 'build/ngx_http_idempotency_module.so');
is($code, 0, 'upgrade the module') or diag($said);

ok(wait_for(sub { my @now = nginx_workers();
                  @now && !grep { $old{$_} } @now }, 20), 'new workers');
is(post('/ok?op=a', $key)->header('X-Status'), 'REPLAYED',
   'which have the records');

open my $maps, '<', '/proc/' . (nginx_workers())[0] . '/maps' or die;
ok((grep { /ngx_http_idempotency_module-new\.so/ } <$maps>),
   'and the new file');
--- provokes: the size of zone



=== TEST 3: roll out to 1 %; switch it off at once
--- http_config eval: ::documented('Roll out to 1 %', 'split_clients', '^}')
--- config eval
$::api . ::documented('Switch it off at once, without a reload',
                      'location /api/', '^}')
       . <<'_EOC_';
    location /some/ {
        idempotency          $TEST_STORE;
        idempotency_dry_run  $idempotency_watch_only;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_
--- client
my $replayed = sub {
    my $n = 0;

    for (1 .. 150) {
        my $key = new_key();
        post('/some/ok', $key);
        $n++ if post('/some/ok', $key)->header('Idempotent-Replayed');
    }

    return $n;
};

cmp_ok($replayed->(), '<', 15, 'one in a hundred');

my ($said, $code) = answer('Roll out to 1 %', 1);

is($code, 0, 'roll out to more') or diag($said);
ok(wait_for(sub { my $n = $replayed->(); $n > 10 && $n < 75 }, 60),
   'one in five');

my $key = new_key();
my $off = "$ENV{TEST_NGINX_SERVER_ROOT}/idempotency.off";

post('/api/ok?op=off', $key);
post('/api/ok?op=off', $key);
is(app_count('off'), 1, 'on');

answer('Switch it off at once, without a reload', 1, OFF_FILE => $off);
post('/api/ok?op=off', $key);
is(app_count('off'), 2, 'off at once');

answer('Switch it off at once, without a reload', 2, OFF_FILE => $off);
post('/api/ok?op=off', $key);
is(app_count('off'), 2, 'and on again');



=== TEST 4: rotate the password of Redis; upgrade nginx
--- http_config
    idempotency_store shared redis {
        server         127.0.0.1:$TEST_NGINX_OWN_PORT;
        user           app;
        password_file  $TEST_NGINX_SERVER_ROOT/html/password;
    }
--- config eval: $::api =~ s/\$TEST_STORE/shared/gr
--- user_files
>>> password
before
--- client
my $key = new_key();
my %names = (REDIS_PORT => $::redis->{port}, REDIS_USER => 'app',
             OLD_PASSWORD => 'before', NEW_PASSWORD => 'after',
             PASSWORD_FILE => "$ENV{TEST_NGINX_SERVER_ROOT}/html/password");
my %old = map { $_ => 1 } nginx_workers();

is(post('/ok?op=a', $key)->header('X-Status'), 'EXECUTED', 'runs');

my ($said, $code) = answer('Rotate the Redis password', 1, %names);

is($code, 0, 'rotate the password') or diag($said);
ok(wait_for(sub { my @now = nginx_workers('all');
                  @now && !grep { $old{$_} } @now }, 20), 'new workers');

($said, $code) = answer('Rotate the Redis password', 2, %names);
is($code, 0, 'the old one is taken away') or diag($said);

# connections that were made with the old one are cut

$::redis->command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
ok(wait_for(sub { post('/ok?op=a', $key)->header('X-Status') eq 'REPLAYED' },
            10), 'nginx has the new one');

# another nginx, which is stopped and started

my $root = "$ENV{TEST_NGINX_SERVER_ROOT}/own";
my $own = free_port();

mkdir $_ for $root, "$root/conf", "$root/logs";

open my $in, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/conf/nginx.conf" or die;
my $conf = do { local $/; <$in> };

$conf =~ s/127\.0\.0\.1:$port\b|(?<=listen )\s*$port\b/ 127.0.0.1:$own/g;
$conf =~ s{\bpid\s+[^;]+;}{pid $root/logs/nginx.pid;};
$conf =~ s{\b(error_log|access_log)\s+[^;]+;}{$1 $root/logs/$1;}g;
$conf =~ s/\blisten\b[^;]*\b$h2_port\b[^;]*;//g;

open my $out, '>', "$root/conf/nginx.conf" or die;
print $out $conf;
close $out;

my @pid = (ROOT => $root, PID_FILE => "$root/logs/nginx.pid");
my $pid = sub {
    open my $fh, '<', "$root/logs/nginx.pid" or return 0;
    return (<$fh> // 0) + 0;
};

$said = `/usr/sbin/nginx -p $root/ -c $root/conf/nginx.conf 2>&1`;
is($?, 0, 'another nginx') or diag($said);
ok(wait_for($pid, 10), 'runs');

my $before = $pid->();

($said, $code) = answer('Upgrade nginx', 1, @pid);
is($code, 0, 'upgrade nginx') or diag($said);
ok(wait_for(sub { $pid->() && $pid->() != $before }, 10), 'is another one');
is(http_post('/ok?op=a', 'x', { 'Idempotency-Key' => $key }, port => $own)
       ->header('X-Status'), 'REPLAYED', 'which has the records');

kill QUIT => $pid->();
ok(wait_for(sub { !-e "$root/logs/nginx.pid" }, 15), 'left');
--- no_check_log
