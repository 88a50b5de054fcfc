# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest;

# The test toolkit: what t/*.t have on top of Test::Nginx::Socket.  It gives
# every test process a server root and ports of its own, loads the module,
# starts the scripted application (app.pl) and, where asked, a Redis, runs the
# "--- client" sections, and looks at the end of every block whether nginx left
# in order and what it logged.  README.md beside this directory tells how to
# write a test with it.

use strict;
use warnings;

# first, and above every "my" of this file, so that a client section sees none

sub run_client_code { eval $_[0] }

use Cwd ();
use File::Basename ();
use File::Path ();
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep time);

use IdempotencyTest::Process qw(free_port wait_for is_alive is_listening);

our (@EXPORT, $port, $h2_port);

my ($Slow, $Root, $ServRoot, $Name, $DeadPort);


BEGIN {
    require Exporter;
    our @ISA = 'Exporter';

    # sleep: that of Time::HiRes, so that a part of a second is not none

    @EXPORT = qw(
        $port $h2_port
        http_request http_get http_post http_put http_raw
        send_request send_post connect_client h2_connect new_key
        app_count app_wait app_wait_parked app_wait_closed app_release
        app_closed app_parked app_last app_reset app_control
        nginx_master nginx_workers nginx_reload edit_config kill_worker
        error_log error_log_like error_log_unlike access_log access_log_like
        wait_for sleep grace start_redis start_redis_proxy free_port
        start_cluster start_sentinels start_dns start_host start_load
        check_load judge_load start_postgres start_remote start_proxied
        store_server every_block
    );

    if ($INC{'Test/Nginx/Util.pm'}) {
        die "\"use IdempotencyTest\" has to come before Test::Nginx::Socket\n";
    }

    $Root = Cwd::cwd();
    die "run the tests from the root of the tree\n" if !-f "$Root/t/lib/app.pl";

    ($Name) = File::Basename::basename($0) =~ /^(.*?)(?:\.t)?$/;

    # The machine is busy with other tests, and sanitizers and valgrind make
    # nginx slow: all waits are stretched.  Who waits does so for something that
    # comes, so only a test that fails takes longer by that.
    $Slow = $ENV{IDEMPOTENCY_VALGRIND} ? 8
          : $ENV{IDEMPOTENCY_SANITIZER_LOGS} ? 5 : 3;
    $IdempotencyTest::Process::Slow = $Slow;

    $ServRoot = "$Root/build/servroot/$Name.$$";
    File::Path::make_path("$Root/build/servroot");

    $port = free_port();
    $h2_port = free_port();

    $ENV{TEST_NGINX_SERVROOT} = $ServRoot;
    $ENV{TEST_NGINX_SERVER_PORT} = $port;
    $ENV{TEST_NGINX_H2_PORT} = $h2_port;
    $ENV{TEST_NGINX_STREAM_PORT} = free_port();
    $ENV{TEST_NGINX_PORT_2} = free_port();
    $ENV{TEST_NGINX_PORT_3} = free_port();
    $ENV{TEST_NGINX_BINARY} ||= '/usr/sbin/nginx';
    $ENV{TEST_NGINX_TIMEOUT} ||= 10 * $Slow;
    $ENV{TEST_NGINX_LOG_LEVEL} ||= 'info';
    delete $ENV{TEST_NGINX_RANDOMIZE};
    delete $ENV{http_proxy};

    # A port that refuses: bound, so that nobody else has it, and not listened
    # on.
    $DeadPort = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Proto => 'tcp')
        or die "no port to be had: $!\n";
    $ENV{TEST_NGINX_DEAD_PORT} = $DeadPort->sockport;

    # The runtime takes the options when nginx starts; Test::Nginx adds the
    # name of the block to log_path.

    if (my $logs = $ENV{IDEMPOTENCY_SANITIZER_LOGS}) {
        $ENV{ASAN_OPTIONS} = join ',', "detect_leaks=1",
            "detect_odr_violation=0", "abort_on_error=0", "handle_abort=1",
            "log_path=$logs/log";
        $ENV{LSAN_OPTIONS} = "suppressions=$Root/tools/lsan.supp,"
                             . "print_suppressions=0";
        $ENV{UBSAN_OPTIONS} = "print_stacktrace=1,"
                              . "suppressions=$Root/tools/ubsan.supp,"
                              . "log_path=$logs/ubsan-$Name";
    }

    # for the use of uninitialised memory, which the sanitizers do not see;
    # leaks they do see, and the stock nginx leaves some of its own at exit

    if (my $logs = $ENV{IDEMPOTENCY_VALGRIND}) {
        $ENV{TEST_NGINX_USE_VALGRIND} = '--tool=memcheck --leak-check=no --vgdb=no '
            . '--num-callers=30 '
            . "--log-file=$logs/$Name.%p";
    }
}

use Test::Nginx::Socket ();
use Test::Nginx::Util ();
use Test::More ();

use IdempotencyTest::Client;
use IdempotencyTest::H2;
use IdempotencyTest::Cluster;
use IdempotencyTest::Dns;
use IdempotencyTest::Host;
use IdempotencyTest::Load;
use IdempotencyTest::Postgres;
use IdempotencyTest::Redis;
use IdempotencyTest::Sentinel;

my $Module = $ENV{IDEMPOTENCY_MODULE}
             || "$Root/build/ngx_http_idempotency_module.so";
my $Store = $ENV{IDEMPOTENCY_STORE} || 'memory';

# the PostgreSQL store is a module of its own, beside the first, where libpq is
my $PostgresModule = $Module
                     =~ s/idempotency_module\.so$/idempotency_postgres_module.so/r;
my $StockModules = '/usr/lib/nginx/modules';

my ($App, $Redis, $Postgres, $FailedBefore, $Ended, %Leaving);

# servers on loopback only: the template writes "listen $ServerPort"
$Test::Nginx::Util::ServerPort = "127.0.0.1:$port";
$Test::Nginx::Util::ServerPortForClient = $port;
$Test::Nginx::Util::WorkerConnections = 1024;
$Test::Nginx::Util::NoShuffle = 1;

# A worker that a master started leaves in order when told to; the single
# process that Test::Nginx prefers does not.
$Test::Nginx::Util::MasterProcessEnabled = 'on';

my $SocketHelper = $Test::Nginx::Util::RunTestHelper;
$Test::Nginx::Util::RunTestHelper = \&run_block;

# One bad block fails, and the others still run: Test::Nginx would try for half
# a minute to start nginx with a configuration that is wrong, and then stop the
# whole run.

{
    no warnings 'redefine';

    my $run_test = \&Test::Nginx::Util::run_test;
    my $write_config = \&Test::Nginx::Util::write_config_file;

    *Test::Nginx::Util::run_test = sub ($) {
        my $block = shift;

        eval { $run_test->($block); 1 }
            or Test::More::fail($block->name . " - $@");
    };

    *Test::Nginx::Util::write_config_file = sub ($$$) {
        my $block = $_[0];

        $write_config->(@_);
        return if defined $block->must_die;

        # "-t" leaves without freeing the configuration it has read
        local $ENV{ASAN_OPTIONS} = ($ENV{ASAN_OPTIONS} || '')
                                   . ',detect_leaks=0';

        my $conf = $Test::Nginx::Util::ConfFile;
        local $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0';
        my $said = `$ENV{TEST_NGINX_BINARY} -t -q -e stderr -p $ServRoot/ -c $conf 2>&1`;
        die "nginx refuses the configuration: $said" if $?;
    };

    *Test::Nginx::Util::bail_out = sub (@) { die @_, "\n" };
}

Test::Nginx::Util::add_block_preprocessor(\&prepare_block);
Test::Nginx::Util::add_test_cleanup_handler(\&end_block);

# run the END blocks, so that nothing is left behind
$SIG{INT} = $SIG{TERM} = $SIG{HUP} = sub { exit 130 };
$SIG{PIPE} = 'IGNORE';

# nginx daemonizes: be the one who reaps it, since not every container has an
# init that does (prctl(PR_SET_CHILD_SUBREAPER))

if (my $prctl = { x86_64 => 157, aarch64 => 167 }->{(POSIX::uname())[4]}) {
    syscall $prctl, 36, 1, 0, 0, 0;
}

start_app();

if ($Store eq 'redis') {
    $Redis = start_redis();
    $ENV{TEST_NGINX_REDIS_PORT} = $Redis->{port};
}

if ($Store eq 'postgres') {
    $Postgres = start_postgres();
    $ENV{TEST_NGINX_POSTGRES_PORT} = $Postgres->{port};
}


# --- the life of a block --------------------------------------------------

# Sections of all blocks of a file; one that has such a section keeps its own.

my %Every;

sub every_block { %Every = @_ }

sub prepare_block
{
    my $block = shift;

    for (grep { !defined $block->$_ } keys %Every) {
        $block->set_value($_, $Every{$_});
    }

    my $skip = reason_to_skip($block);

    if (defined $skip) {
        $block->set_value('SKIP', 1);
        Test::More->builder->skip($block->name . " - $skip");
        return;
    }

    my $main = value($block, 'main_config');
    my $http = value($block, 'http_config');
    my $config = value($block, 'config');

    my $uses_store = "$http$config" =~ /\$TEST_STORE\b/;
    my $name = $Store eq 'memory' ? 'on' : 'tested';

    s/\$TEST_STORE\b/$name/g for $http, $config;

    # the kind of a store of the test's own: see start_remote()
    s/\$TEST_REMOTE\b/$Store/g for $http, $config;

    # its server never fails, and a busy machine may be late

    if ($uses_store && $Store ne 'memory') {
        my $server = $Redis || $Postgres;
        $http = "idempotency_store tested $Store {\n"
                . "    server 127.0.0.1:$server->{port};\n"
                . "    timeout 10s;\n"
                . "    connect_timeout 10s;\n}\n$http";
    }

    if (defined $block->h2) {
        $config = ($Test::Nginx::Util::NginxVersion >= 1.025001
                   ? "listen 127.0.0.1:$h2_port;\nhttp2 on;\n"
                   : "listen 127.0.0.1:$h2_port http2;\n") . $config;
    }

    $main = load_stock(value($block, 'modules_after')) . $main;

    if ($Module ne 'static') {
        $main = "load_module $PostgresModule;\n$main" if -e $PostgresModule;
        $main = "load_module $Module;\n$main";
    }

    $main = load_stock(value($block, 'modules')) . $main;

    $block->set_value('main_config', $main);
    $block->set_value('http_config', $http);
    $block->set_value('config', $config);

    # Test::Nginx adds one, unless told not to
    $Test::Nginx::Util::NoRootLocation = $config =~ m{\blocation\s+/\s*\{};

    $Test::Nginx::Util::Workers = value($block, 'workers') || 1;

    # what an nginx that gives up leaves unfreed is no leak (Test::Nginx makes
    # ASAN_OPTIONS out of this)

    if ($ENV{IDEMPOTENCY_SANITIZER_LOGS}) {
        my $leaks = defined $block->must_die ? 0 : 1;
        $ENV{ORI_ASAN_OPTIONS} ||= $ENV{ASAN_OPTIONS};
        $ENV{ORI_ASAN_OPTIONS} =~ s/detect_leaks=\d/detect_leaks=$leaks/;
    }

    if (defined $block->must_die) {
        $block->set_value('suppress_stderr', 1);
    } elsif (!defined $block->client && !defined $block->request
             && !defined $block->raw_request
             && !defined $block->pipelined_requests)
    {
        Test::Nginx::Util::bail_out($block->name
            . ' - has neither --- client nor --- request nor --- must_die');
    }

    $Redis->command('FLUSHALL') if $Redis;
    $Postgres->clear if $Postgres;
    app_reset();
    $FailedBefore = failures();
}


# lines that load modules of the distribution

sub load_stock
{
    my ($modules) = @_;

    return join '', map { m{^/} ? "load_module $_;\n"
                          : "load_module $StockModules/${_}_module.so;\n" }
                    map { m{^/} ? $_
                          : $_ eq 'lua' ? qw(ndk_http ngx_http_lua)
                                      : "ngx_http_$_" }
                    reverse split ' ', $modules;
}


sub reason_to_skip
{
    my $block = shift;

    my $stores = value($block, 'store');

    if ($stores && !grep { $_ eq $Store } split ' ', $stores) {
        return "not for the store $Store";
    }

    if ((value($block, 'modules') || value($block, 'modules_after'))
        && $ENV{TEST_NGINX_BINARY} ne '/usr/sbin/nginx')
    {
        return "the distribution's modules fit its own nginx only";
    }

    return undef;
}


sub run_block
{
    my ($block, $dry_run, $index) = @_;

    my $name = $block->name;

    # the process that daemonized is not yet done when its parent returns
    if (!wait_for(sub { is_listening($port) && nginx_master() }, 10 * $Slow)) {
        Test::More::fail("$name - nginx is up");
        return;
    }

    if (defined $block->request || defined $block->raw_request
        || defined $block->pipelined_requests)
    {
        $SocketHelper->($block, $dry_run, $index);
        return if !defined $block->client;
    }

    my $code = $block->client;
    my ($file, $line) = source_of($code);

    {
        local $SIG{ALRM} = sub { die "client section takes too long\n" };
        alarm((value($block, 'client_timeout') || 60) * $Slow);

        run_client_code("package main; use strict; use warnings;\n"
                        . "#line $line \"$file\"\n$code\n; 1")
            or Test::More::fail("$name - client section died: $@");

        alarm 0;
    }

    # it warns of alerts, which are looked at when the block ends
    local $SIG{__WARN__} = sub { warn @_ if $_[0] !~ /^WARNING: .*\[\w+\]/ };
    $Test::Nginx::Util::CheckErrorLog->($block, undef, $dry_run, $index, 0);
}


sub end_block
{
    my $block = shift;

    return if defined $block->SKIP;

    my $name = $block->name;

    IdempotencyTest::Client::close_all();
    IdempotencyTest::Load::stop_all();
    IdempotencyTest::Host::stop_all();
    app_reset();

    if (!stop_nginx()) {
        Test::More::fail("$name - nginx leaves when told to");
    }

    if (!defined $block->must_die) {
        my $allowed = value($block, 'provokes');
        my @bad = grep { /\[(?:alert|crit|emerg)\]/ } split /^/, error_log();

        if ($allowed ne '') {
            $allowed = qr/$allowed/;
            @bad = grep { !/$allowed/ } @bad;
        }

        if (@bad) {
            Test::More::fail("$name - no alert, crit or emerg in error.log");
            Test::More::diag(@bad);
        } else {
            Test::More::pass("$name - no alert, crit or emerg in error.log");
        }
    }

    if ($ENV{IDEMPOTENCY_SANITIZER_LOGS}) {
        check_sanitizers($name);
    }

    if (failures() > $FailedBefore) {
        my @lines = grep { !/\[(?:debug|notice)\]/ } split /^/, error_log();
        splice @lines, 0, @lines - 40 if @lines > 40;
        Test::More::diag("error.log of $name:\n", @lines);

        if ($ENV{IDEMPOTENCY_KEEP}) {
            my $kept = "$ServRoot.failed" . ++(our $kept_number);
            system 'cp', '-r', $ServRoot, $kept;
            Test::More::diag("kept in $kept");
        }
    }

    # Test::Nginx wants an empty server root, less what it knows

    for my $entry (glob "$ServRoot/*") {
        next if $entry =~ m{/(?:conf|logs|html|cache|[^/]*_(?:temp|cache))$};
        File::Path::remove_tree($entry);
    }
}


# Logs of this block: Test::Nginx put the number of the test in their name.

sub check_sanitizers
{
    my $name = shift;

    our %seen_logs;

    for my $file (glob "$ENV{IDEMPOTENCY_SANITIZER_LOGS}/*") {
        next if $seen_logs{$file} || !-s $file;
        next if $file !~ m{/(?:log|ubsan)-\Q$Name\E[-.]};

        $seen_logs{$file} = 1;
        Test::More::fail("$name - the sanitizers have nothing to say");
        Test::More::diag("see $file");
    }
}


sub value
{
    my ($block, $section) = @_;

    my $value = $block->$section;
    return defined $value ? $value : '';
}


sub failures
{
    return scalar grep { !$_->{ok} } Test::More->builder->details;
}


# where a client section stands in the test file, for messages

sub source_of
{
    my $code = shift;

    if (open my $in, '<', $0) {
        local $/;
        my $text = <$in>;
        my $at = index $text, $code;
        return ($0, 1 + (substr($text, 0, $at) =~ tr/\n//)) if $at >= 0;
    }

    return ("$0 (client section)", 1);
}


# --- requests -------------------------------------------------------------

sub connect_client
{
    my %o = @_;

    return IdempotencyTest::Client->connect(port => $port, %o);
}


# sends and returns the connection: ->read_response, ->abort, ->reset ...

sub send_request
{
    my ($method, $uri, $body, $headers, %o) = @_;

    my $c = connect_client(%o);
    $c->request($method, $uri, $body, $headers);

    return $c;
}

sub send_post { send_request('POST', @_) }


# the same and waits for the response

sub http_request
{
    my ($method, $uri, $body, $headers, %o) = @_;

    my @headers = ref $headers eq 'ARRAY' ? @$headers : %{ $headers || {} };

    if (!grep { lc $_ eq 'connection' } @headers) {
        $headers = ref $headers eq 'ARRAY'
            ? [ @$headers, Connection => 'close' ]
            : { %{ $headers || {} }, Connection => 'close' };
    }

    my $timeout = $o{timeout} || 15 * $Slow;
    my $c = send_request($method, $uri, $body, $headers, %o);
    my $response = $c->read_response($timeout);

    $c->abort;
    die "no response to $method $uri within $timeout s\n" if !$response;

    return $response;
}

sub http_get  { my ($uri, $headers, %o) = @_;
                http_request('GET', $uri, undef, $headers, %o) }
sub http_post { http_request('POST', @_) }
sub http_put  { http_request('PUT', @_) }


sub http_raw
{
    my ($bytes, %o) = @_;

    my $timeout = $o{timeout} || 15 * $Slow;
    my $c = connect_client(%o);

    $c->send_part($bytes);
    my $response = $c->read_response($timeout);
    $c->abort;

    die "no response within $timeout s\n" if !$response;

    return $response;
}


sub h2_connect
{
    my %o = @_;

    return IdempotencyTest::H2->connect(port => $h2_port, %o);
}


# a key that no other call of this process got

my $Keys = 0;

sub new_key { sprintf 'key-%d-%d', $$, ++$Keys }


# --- the scripted application ---------------------------------------------

sub start_app
{
    pipe my $in_read, my $in_write or die "pipe: $!\n";
    pipe my $out_read, my $out_write or die "pipe: $!\n";

    my $pid = fork;
    die "fork: $!\n" if !defined $pid;

    if ($pid == 0) {
        POSIX::dup2(fileno $in_read, 0);
        POSIX::dup2(fileno $out_write, 1);
        close $_ for $in_write, $out_read;
        exec $^X, "$Root/t/lib/app.pl" or POSIX::_exit(127);
    }

    close $in_read;
    close $out_write;

    my $line = <$out_read>;
    die "the application does not start\n" if !defined $line;

    my %port = $line =~ /(\w+)=(\d+)/g;

    # it ends when this end of its standard input is closed, at our end
    $App = { pid => $pid, stdin => $in_write, port => $port{http} };

    $ENV{TEST_NGINX_APP_PORT} = $port{http};
    $ENV{TEST_NGINX_APP2_PORT} = $port{http2};
    $ENV{TEST_NGINX_FCGI_PORT} = $port{fastcgi};
}


sub app_control
{
    my ($what, %arg) = @_;

    my $query = join '&', map {
        my $value = $arg{$_};
        $value =~ s/([^A-Za-z0-9_.\/-])/sprintf '%%%02X', ord $1/ge;
        "$_=$value";
    } sort keys %arg;

    my $r = http_request('GET', "/_$what?$query", undef, undef,
                         port => $App->{port}, timeout => 30 * $Slow);

    return $r->body;
}

sub app_reset  { app_control('reset') }
sub app_count  { my ($op, %o) = @_; app_control('count', op => $op, %o) }
sub app_closed { app_control('closed', op => shift) }
sub app_parked { app_control('parked', op => shift) }

sub app_last
{
    require JSON::PP;
    return JSON::PP::decode_json(app_control('last', op => shift));
}

sub app_wait_for
{
    my ($for, $op, $n, $timeout) = @_;

    my $got = app_control('wait', for => $for, op => $op, n => $n || 1,
                          ms => 1000 * IdempotencyTest::Client::patience(
                              $timeout || 5));

    return $got eq 'timeout' ? 0 : $got;
}

sub app_wait        { app_wait_for('count', @_) }
sub app_wait_parked { app_wait_for('parked', @_) }
sub app_wait_closed { app_wait_for('closed', @_) }


# lets held answers go, once there is one

sub app_release
{
    my ($op, $n, $timeout) = @_;

    app_wait_parked($op, $n, $timeout) or die "nothing of \"$op\" is held\n";

    return app_control('release', op => $op);
}


# --- nginx ----------------------------------------------------------------

sub nginx_master
{
    my $file = $Test::Nginx::Util::PidFile;

    open my $in, '<', $file or return undef;
    my $pid = <$in>;
    return defined $pid && $pid =~ /^(\d+)/ ? $1 : undef;
}


# Pids of the workers that take requests, in order; with "all" also of those
# that are shutting down.

sub nginx_workers
{
    my $all = shift;

    my $n = $Test::Nginx::Util::Workers;
    my @pids;

    wait_for(sub { @pids = workers_now(0); @pids >= $n }, 5 * $Slow);

    return $all ? workers_now(1) : @pids;
}


sub workers_now
{
    my $all = shift;

    my $master = nginx_master() or return ();
    my @pids;

    for my $pid (children($master)) {
        if ($ENV{IDEMPOTENCY_VALGRIND}) {        # there are no titles then
            push @pids, $pid if $all || !$Leaving{$pid};
            next;
        }

        open my $in, '<', "/proc/$pid/cmdline" or next;
        my $title = <$in>;
        next if !defined $title || $title !~ /worker process/;
        next if !$all && $title =~ /shutting down/;
        push @pids, $pid;
    }

    return sort { $a <=> $b } @pids;
}


sub children
{
    my $parent = shift;

    # a kernel that does not tell has it looked up among all processes

    if (open my $in, '<', "/proc/$parent/task/$parent/children") {
        return grep { is_alive($_) } split ' ', <$in> // '';
    }

    my @pids;

    for my $dir (glob '/proc/[0-9]*') {
        open my $in, '<', "$dir/stat" or next;
        my $stat = <$in>;
        next if !defined $stat || $stat !~ /^(\d+) \(.*\) (\S) (\d+) /s;
        push @pids, $1 if $3 == $parent && $2 ne 'Z';
    }

    return @pids;
}


# Reloads and returns once new workers are up and the old ones were told to
# leave; false if the master refused the configuration.

sub nginx_reload
{
    # those that have yet to start would be taken for new ones
    my %old = map { $_ => 1 } nginx_workers(1);
    my $seen = length error_log();

    kill HUP => nginx_master();

    my $refused;

    my $done = wait_for(sub {
        $refused = substr(error_log(), $seen) =~ /\[emerg\]/ and return 1;

        my @now = workers_now(0);
        my @new = grep { !$old{$_} } @now;
        return @new >= $Test::Nginx::Util::Workers
               && (@new == @now || $ENV{IDEMPOTENCY_VALGRIND});
    }, 10 * $Slow);

    if ($ENV{IDEMPOTENCY_VALGRIND} && $done && !$refused) {
        %Leaving = (%Leaving, %old);
        sleep 1;
    }

    return $done && !$refused;
}


# changes nginx.conf for the next reload: the code sees it in $_

sub edit_config
{
    my $code = shift;

    my $file = $Test::Nginx::Util::ConfFile;

    open my $in, '<', $file or die "$file: $!\n";
    local $_ = do { local $/; <$in> };
    close $in;

    $code->();

    open my $out, '>', $file or die "$file: $!\n";
    print $out $_;
    close $out or die "$file: $!\n";
}


# kills a worker (the first) as a crash would, and waits until the master has
# another; returns the pid that was killed

sub kill_worker
{
    my ($pid, $signal) = @_;

    ($pid) = nginx_workers() if !$pid;

    kill $signal || 'KILL', $pid;

    wait_for(sub {
        my @now = workers_now(0);
        return !is_alive($pid) && @now >= $Test::Nginx::Util::Workers;
    }, 10 * $Slow) or die "no new worker for $pid\n";

    return $pid;
}


sub stop_nginx
{
    my $pid = nginx_master();
    return 1 if !$pid || !is_alive($pid);

    kill QUIT => $pid;
    return 1 if wait_for(sub { !is_alive($pid) },
                         $Slow > 3 ? 10 * $Slow : 20);

    my @pids = ($pid, children($pid));

    for my $signal (qw(TERM KILL)) {
        kill $signal => grep { is_alive($_) } @pids;
        last if wait_for(sub { !grep { is_alive($_) } @pids }, 5);
    }

    unlink $Test::Nginx::Util::PidFile;

    return 0;
}


# --- logs -----------------------------------------------------------------

sub read_log
{
    my $file = shift;

    open my $in, '<', $file or return '';
    local $/;
    my $text = <$in>;
    return defined $text ? $text : '';
}

sub error_log  { read_log($Test::Nginx::Util::ErrLogFile) }
sub access_log { read_log($Test::Nginx::Util::AccLogFile) }

sub error_log_like
{
    my ($re, $name, $timeout) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $ok = wait_for(sub { error_log() =~ $re }, $timeout || 5 * $Slow);
    return Test::More::ok($ok, $name || "error.log has $re");
}

sub error_log_unlike
{
    my ($re, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    return Test::More::unlike(error_log(), $re, $name || "no $re in error.log");
}

sub access_log_like
{
    my ($re, $name, $timeout) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $ok = wait_for(sub { access_log() =~ $re }, $timeout || 5 * $Slow);
    return Test::More::ok($ok, $name || "access.log has $re");
}


# --- the rest -------------------------------------------------------------

# Seconds that this machine may be late now, for what has to be "at once": some
# hundredths where it is idle, so that there the bound is as narrow as it says,
# and more the more others want of it.

sub grace
{
    my $start = time;
    app_count('') for 1 .. 10;
    my $grace = 5 * (time - $start);

    my ($load, $cores) = (0, 1);

    if (open my $in, '<', '/proc/loadavg') {
        ($load) = split ' ', <$in>;
    }

    if (open my $in, '<', '/proc/cpuinfo') {
        $cores = grep { /^processor\b/ } <$in>;
    }

    my $by_load = 0.2 * ($load / ($cores || 1) - 1);

    return $by_load > $grace ? $by_load : $grace;
}


# A Redis of this process alone, without persistence.  It dies with us, even if
# we are killed.

sub start_redis
{
    my @options = @_;

    my $number = free_port();

    return IdempotencyTest::Redis->start(port => $number,
        options => \@options,
        dir => "$Root/build/servroot/$Name.$$.redis$number");
}


# A PostgreSQL of this process alone, with the schema installed; options are
# "name=value" for the server.  See IdempotencyTest/Postgres.pm.

sub start_postgres
{
    my @options = @_;

    return IdempotencyTest::Postgres->start(options => \@options);
}


# Whichever of both the tests run on; undef on memory.  Its kind in a
# configuration is $TEST_REMOTE, and blocks have "--- store: redis postgres".

sub start_remote
{
    return $Store eq 'redis' ? start_redis()
         : $Store eq 'postgres' ? start_postgres() : undef;
}


# the one that is declared for the tests: a Redis, a PostgreSQL, or undef

sub store_server { return $Redis || $Postgres }


# A proxy before it: ->tell('lose') and more, see IdempotencyTest/Redis.pm.

sub start_redis_proxy
{
    my $redis = shift;

    return IdempotencyTest::RedisProxy->start(port => free_port(),
                                              to => $redis->{port});
}


# Both: a start_remote() and the proxy before it, and none on memory.  Their
# ports are $TEST_NGINX_OWN_PORT and $TEST_NGINX_PROXY_PORT in a configuration.

sub start_proxied
{
    my $remote = start_remote() or return;
    my $proxy = start_redis_proxy($remote);

    $ENV{TEST_NGINX_OWN_PORT} = $remote->{port};
    $ENV{TEST_NGINX_PROXY_PORT} = $proxy->{port};

    return ($remote, $proxy);
}


# Several of them: a cluster, or a master with replicas and sentinels.  See
# IdempotencyTest/Cluster.pm and Sentinel.pm for what they can be told.

sub start_cluster
{
    return IdempotencyTest::Cluster->start(
        dir => "$Root/build/servroot/$Name.$$.cluster", @_);
}

sub start_sentinels
{
    return IdempotencyTest::Sentinel->start(
        dir => "$Root/build/servroot/$Name.$$.sentinel", @_);
}

sub start_dns { IdempotencyTest::Dns->start(@_) }


# another nginx of the same configuration, see IdempotencyTest/Host.pm

sub start_host
{
    my $to = shift || $ENV{TEST_NGINX_PORT_2};

    return IdempotencyTest::Host->start(root => $ServRoot, port => $port,
                                        to => $to);
}


# clients that go on asking, see IdempotencyTest/Load.pm

sub start_load
{
    our $loads;

    # records of another block are still there: no key is used twice

    $loads++;

    return IdempotencyTest::Load->start(ports => [ $port ],
        name => "load$loads",
        dir => "$Root/build/servroot/$Name.$$.load$loads", @_);
}


sub check_load
{
    my ($load, @hosts) = @_;

    my $counts = sub {
        return { map { /^(\d+) (.*)/ ? ($2 => $1) : () }
                 split /\n/, app_control('counts') };
    };

    # what they log while all keys are asked for once more does not count
    return $load->check($counts, error_log(),
                        map { $_->error_log } @hosts);
}


# Whether that is in order, whatever happened at the time $since: more than
# $part of the keys, a half, were acknowledged, and each of those ran once.

sub judge_load
{
    my ($load, $r, $since, $part) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    Test::More::diag(sprintf
         '%d keys, %d answers, %d refused (%s), %d acknowledged, %d ran twice; '
         . 'none refused %.1f s later, none answered for %.1f s',
         $r->{keys}, $r->{answers}, $r->{refused},
         join(', ', map { "$r->{codes}{$_} $_" } sort keys %{ $r->{codes} }),
         $r->{acknowledged}, scalar @{ $r->{twice} },
         $load->recovery($since), $load->gap($since));

    Test::More::cmp_ok($r->{keys}, '>', 50, 'there was load');
    Test::More::cmp_ok($r->{acknowledged}, '>', $r->{keys} * ($part || 0.5),
                       'enough were acknowledged');
    Test::More::is_deeply($r->{unanswered}, [],
                          'every key was answered in the end');
    Test::More::is_deeply($r->{none}, [], 'by an execution');
    Test::More::is_deeply($r->{broken}, [],
                          'acknowledged keys ran once and have one answer');
}


# Runs before the END block of Test::Nginx, which was compiled earlier.

END {
    my $status = $?;

    # a child that left by exit() is not the test
    if (!$Test::Nginx::Util::InSubprocess && !$Ended++) {
        IdempotencyTest::Client::close_all();
        IdempotencyTest::Load::stop_all();
        IdempotencyTest::Host::stop_all();
        stop_nginx();

        IdempotencyTest::Redis::stop_all();
        IdempotencyTest::Postgres::stop_all();
        IdempotencyTest::Dns::stop_all();

        if ($App) {
            close $App->{stdin};
            if (!wait_for(sub { !is_alive($App->{pid}) }, 2)) {
                kill KILL => $App->{pid};
                waitpid $App->{pid}, 0;
            }
        }

        File::Path::remove_tree($ServRoot);
    }

    $? = $status;
}

1;
