# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What the operator sees of a request: the variables, in the access log, in
# add_header, proxy_set_header and map, whatever became of the request.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Digest::SHA ();

# a line of JSON for each request
our $log_format = <<'_EOC_';
    log_format vars escape=json
        '{"status":"$idempotency_status","key":"$idempotency_key",'
        '"key_hash":"$idempotency_key_hash","record":"$idempotency_record",'
        '"fingerprint":"$idempotency_fingerprint",'
        '"replayed":"$idempotency_replayed","conflict":"$idempotency_conflict",'
        '"original_time":"$idempotency_original_time",'
        '"age":"$idempotency_age","wait_time":"$idempotency_wait_time",'
        '"store_time":"$idempotency_store_time",'
        '"job":"$idempotency_job_mail","code":"$status"}';
    access_log  logs/vars.log vars;
_EOC_

my $lines;

# the next line that was logged

sub next_logged
{
    my $file = "$ENV{TEST_NGINX_SERVROOT}/logs/vars.log";

    my @lines;

    wait_for(sub {
        open my $in, '<', $file or return 0;
        @lines = <$in>;
        return @lines > $lines && $lines[$lines] =~ /\n\z/;
    }) or return {};

    require JSON::PP;
    return JSON::PP::decode_json($lines[$lines++]);
}

sub start_log { $lines = 0 }


# SHA-256 over strings, each with its length before it

sub hash_of
{
    return Digest::SHA::sha256_hex(join '', map { pack('Q>', length), $_ } @_);
}

my $time = qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/;
my $seconds = qr/^\d+\.\d{3}$/;

sub is_time { like($_[0], $time, $_[1]) }
sub is_seconds { like($_[0], $seconds, $_[1]) }

run_tests();

__DATA__

=== TEST 1: executed, replayed, conflict
--- http_config eval: $::log_format
--- config
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
start_log();

my %key = ('Idempotency-Key' => '"abc-1";p=1', Authorization => 'Basic secret');

http_post('/ok?op=a', 'x', \%key);
my $first = next_logged();

is($first->{status}, 'EXECUTED', 'executed');
is($first->{key}, '"abc-1";p=1', 'the key as sent');
is($first->{record}, hash_of('localhost', 'abc-1'), 'the record');
like($first->{fingerprint}, qr/^[0-9a-f]{64}$/, 'the fingerprint');
like($first->{key_hash}, qr/^[0-9a-f]{64}$/, 'the hash of the key');
is($first->{job}, Digest::SHA::sha256_hex('abc-1:mail'), 'the job');
is($first->{replayed}, '', 'not a replay');
is($first->{conflict}, '', 'not a conflict');
is($first->{original_time}, '', 'no time of an original');
is($first->{age}, '', 'no age');
is_seconds($first->{wait_time}, 'wait time');
is_seconds($first->{store_time}, 'store time');

my $r = http_post('/ok?op=a', 'x', { %key, 'Idempotency-Key' => 'abc-1' });
my $retry = next_logged();

is($retry->{status}, 'REPLAYED', 'replayed');
is($retry->{replayed}, 'true', 'says so');
is($retry->{key}, 'abc-1', 'its key as sent');
is($retry->{$_}, $first->{$_}, "the same $_")
    for qw(key_hash record fingerprint job);
is($retry->{conflict}, '', 'not a conflict');
is_time($retry->{original_time}, 'the time of the original');
is($retry->{original_time}, $r->header('X-Original-Request-Time'),
   'as the header has it');
is_seconds($retry->{age}, 'its age');
is_seconds($retry->{wait_time}, 'wait time');
is_seconds($retry->{store_time}, 'store time');

http_post('/ok?op=a', 'y', \%key);
my $conflict = next_logged();

is($conflict->{status}, 'CONFLICT', 'conflict');
is($conflict->{conflict}, 'body-mismatch', 'says so');
is($conflict->{replayed}, '', 'not a replay');
is($conflict->{record}, $first->{record}, 'the same record');
isnt($conflict->{fingerprint}, $first->{fingerprint}, 'another fingerprint');
is_time($conflict->{original_time}, 'the time of the original');
is_seconds($conflict->{age}, 'its age');

http_post('/ok?op=a', 'x', { %key, Authorization => 'Basic other' });
my $foreign = next_logged();

is($foreign->{status}, 'CONFLICT', 'of another identity');
is($foreign->{original_time}, '', 'which learns nothing of the original');
is($foreign->{age}, '', 'nor its age');

# another key, another host, another everything
http_post('/ok?op=a', 'x', { %key, 'Idempotency-Key' => 'abc-2' });
my $other = next_logged();
isnt($other->{$_}, $first->{$_}, "another key has another $_")
    for qw(key_hash record job);
is($other->{fingerprint}, $first->{fingerprint}, 'and the same fingerprint');

http_post('/ok?op=a', 'x', { %key, Host => 'Other:8080' });
$other = next_logged();
is($other->{record}, hash_of('other', 'abc-1'), 'the record on another host');
is($other->{key_hash}, $first->{key_hash}, 'the hash of the key there');
isnt($other->{fingerprint}, $first->{fingerprint}, 'another fingerprint');

# what is hashed is not to be read
unlike(join(' ', map { @$_{qw(key_hash record fingerprint job)} }
                 $first, $retry, $conflict, $other), qr/abc|secret/,
       'no key, no credential');
--- no_error_log
secret
abc-1



=== TEST 2: every other status
--- http_config eval: $::log_format
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_wait      0;
        idempotency_bypass    $http_x_bypass;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /required/ {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /wait/ {
        idempotency              $TEST_STORE;
        idempotency_wait         300ms;
        idempotency_max_waiters  1;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /large/ {
        idempotency               $TEST_STORE;
        idempotency_max_response  100;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
start_log();

my $logged = sub {
    my ($uri, @headers) = @_;
    http_post($uri, 'x', \@headers);
    return next_logged();
};

# INVALID
my $v = $logged->('/ok', 'Idempotency-Key' => 'a b');
is($v->{status}, 'INVALID', 'malformed');
is($v->{code}, 400, 'malformed: 400');
is($v->{key}, 'a b', 'malformed: as sent');
is($v->{$_}, '', "malformed: no $_")
    for qw(record fingerprint key_hash job replayed conflict original_time age);

$v = $logged->('/required/ok');
is($v->{status}, 'INVALID', 'missing');
is($v->{$_}, '', "missing: no $_") for qw(key record fingerprint key_hash job);

# BYPASS
$v = $logged->('/ok');
is($v->{status}, 'BYPASS', 'no key');
$v = $logged->('/ok', 'Idempotency-Key' => 'k', 'X-Bypass' => 1);
is($v->{status}, 'BYPASS', 'bypassed');
is($v->{record}, '', 'bypassed: no record');
http_get('/ok', { 'Idempotency-Key' => 'k' });
is(next_logged()->{status}, 'BYPASS', 'a method that is not covered');

# where it is off
$v = $logged->('/off/ok', 'Idempotency-Key' => 'k');
is($v->{$_}, '', "off: no $_")
    for qw(status key key_hash record fingerprint replayed conflict
           original_time age wait_time store_time job);

# RELEASED
$v = $logged->('/status/503', 'Idempotency-Key' => 'released');
is($v->{status}, 'RELEASED', 'a status that is not kept');
is($v->{code}, 503, 'its code');

# UNKNOWN: who finds out, and who asks afterwards
$v = $logged->('/close', 'Idempotency-Key' => 'unknown');
is($v->{status}, 'UNKNOWN', 'no answer');
$v = $logged->('/close', 'Idempotency-Key' => 'unknown');
is($v->{status}, 'UNKNOWN', 'asked again');
is($v->{code}, 409, 'asked again: 409');
is_time($v->{original_time}, 'asked again: the time of the original');

# TOO_LARGE
$v = $logged->('/large/size?n=5000', 'Idempotency-Key' => 'large');
is($v->{status}, 'TOO_LARGE', 'too large');
is($v->{code}, 200, 'too large: goes out');
$v = $logged->('/large/size?n=5000', 'Idempotency-Key' => 'large');
is($v->{status}, 'TOO_LARGE', 'asked again');
is($v->{code}, 507, 'asked again: 507');

# BUSY
my $c = send_post('/hold?op=h', 'x', { 'Idempotency-Key' => 'h' });
app_wait_parked('h');
$v = $logged->('/hold?op=h', 'Idempotency-Key' => 'h');
is($v->{status}, 'BUSY', 'busy');
app_release('h');
$c->read_response;
is(next_logged()->{status}, 'EXECUTED', 'the holder');

# TIMEOUT and WAITERS
$c = send_post('/wait/hold?op=w', 'x', { 'Idempotency-Key' => 'w' });
app_wait_parked('w');
my @waiters = map { send_post('/wait/hold?op=w', 'x',
                              { 'Idempotency-Key' => 'w' }) } 1, 2;
$_->read_response for @waiters;
my ($many, $timeout) = (next_logged(), next_logged());

is($many->{status}, 'WAITERS', 'too many waiters');
is($many->{wait_time}, '0.000', 'did not wait');
is($timeout->{status}, 'TIMEOUT', 'waited in vain');
cmp_ok($timeout->{wait_time}, '>=', 0.29, 'for as long as it was to');
cmp_ok($timeout->{wait_time}, '<', 10, 'and not for long');
app_release('w');
$c->read_response;
next_logged();

# a waiter that was answered
$c = send_post('/wait/hold?op=x', 'x', { 'Idempotency-Key' => 'x' });
app_wait_parked('x');
my $waiter = send_post('/wait/hold?op=x', 'x', { 'Idempotency-Key' => 'x' });
is($waiter->read_response(0.1), undef, 'it waits');
app_release('x');
is($_->read_response->body, "run 1\n", 'answered') for $c, $waiter;
my ($replay) = grep { $_->{status} eq 'REPLAYED' } next_logged(), next_logged();
cmp_ok($replay->{wait_time}, '>=', 0.05, 'its time');



=== TEST 3: in add_header, proxy_set_header, map
--- http_config
    map $idempotency_status $class {
        default   other;
        EXECUTED  first;
        REPLAYED  again;
        CONFLICT  refused;
        ""        off;
    }
    log_format class "$class";
--- config
    access_log  logs/vars.log class;

    add_header  X-Status       $idempotency_status always;
    add_header  X-Record       $idempotency_record always;
    add_header  X-Replayed     $idempotency_replayed always;
    add_header  X-Conflict     $idempotency_conflict always;
    add_header  X-Key          $idempotency_key always;
    add_header  X-Class        $class always;

    proxy_set_header  X-Status       $idempotency_status;
    proxy_set_header  X-Record       $idempotency_record;
    proxy_set_header  X-Key-Hash     $idempotency_key_hash;
    proxy_set_header  X-Fingerprint  $idempotency_fingerprint;
    proxy_set_header  X-Job-A        $idempotency_job_a;
    proxy_set_header  X-Job-B        $idempotency_job_b_2;
    proxy_set_header  X-Replayed     $idempotency_replayed;

    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => 'k-1');
my $record = hash_of('localhost', 'k-1');

my $r = http_post('/echo?op=a', 'x', \%key);
my %sent = map { @$_ } @{ $r->json->{headers} };

is($sent{'X-Status'}, 'EXECUTED', 'upstream: status');
is($sent{'X-Record'}, $record, 'upstream: record');
like($sent{'X-Key-Hash'}, qr/^[0-9a-f]{64}$/, 'upstream: hash of the key');
like($sent{'X-Fingerprint'}, qr/^[0-9a-f]{64}$/, 'upstream: fingerprint');
is($sent{'X-Job-A'}, Digest::SHA::sha256_hex('k-1:a'), 'upstream: a job');
is($sent{'X-Job-B'}, Digest::SHA::sha256_hex('k-1:b_2'), 'upstream: another type');
ok(!exists $sent{'X-Replayed'}, 'upstream: not a replay');

is($r->header('X-Status'), 'EXECUTED', 'client: status');
is($r->header('X-Record'), $record, 'client: record');
is($r->header('X-Key'), 'k-1', 'client: key');
is($r->header('X-Replayed'), undef, 'client: not a replay');
is($r->header('X-Class'), 'first', 'client: map');

$r = http_post('/echo?op=a', 'x', \%key);
is_deeply([ $r->header('X-Status') ], [ 'REPLAYED' ], 'replay: status');
is_deeply([ $r->header('X-Class') ], [ 'again' ], 'replay: map');
is($r->header('X-Replayed'), 'true', 'replay: says so');

$r = http_post('/echo?op=a', 'y', \%key);
is($r->status, 409, 'conflict');
is($r->header('X-Status'), 'CONFLICT', 'conflict: status');
is($r->header('X-Conflict'), 'body-mismatch', 'conflict: says so');
is($r->header('X-Class'), 'refused', 'conflict: map');

$r = http_post('/off/echo', 'x', \%key);
%sent = map { @$_ } @{ $r->json->{headers} };
ok(!(grep { /^X-(?:Status|Record|Key|Finger|Job)/ } keys %sent),
   'off: nothing is sent');
is($r->header('X-Status'), undef, 'off: no status');
is($r->header('X-Class'), 'off', 'off: map');

my $file = "$ENV{TEST_NGINX_SERVROOT}/logs/vars.log";
my $text = '';
wait_for(sub {
    open my $in, '<', $file or return 0;
    local $/;
    $text = <$in>;
    return $text =~ tr/\n// >= 4;
});
is($text, "first\nagain\nrefused\noff\n", 'map in the log');



=== TEST 4: read too early, they are empty, and right later
--- http_config eval: $::log_format
--- config
    location / {
        idempotency  $TEST_STORE;
        set          $early "$idempotency_status$idempotency_record";
        if ($idempotency_replayed) {
            return 500;
        }
        add_header   X-Early "<$early>";
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /return/ {
        idempotency  $TEST_STORE;
        return       200 "status <$idempotency_status>\n";
    }
    location /denied/ {
        idempotency  $TEST_STORE;
        deny         all;
    }
--- client
start_log();

my %key = ('Idempotency-Key' => new_key());
my $r = http_post('/ok', 'x', \%key);
is($r->header('X-Early'), '<>', 'in the rewrite phase');
is(next_logged()->{status}, 'EXECUTED', 'in the log');
http_post('/ok', 'x', \%key);
is(next_logged()->{status}, 'REPLAYED', 'a replay in the log');

# return answers before the module is asked
is(http_post('/return/', 'x', \%key)->body, "status <>\n", 'return');
is(next_logged()->{status}, '', 'return in the log');

is(http_post('/denied/', 'x', \%key)->status, 403, 'denied');
my $v = next_logged();
is($v->{status}, '', 'denied: no status');
is($v->{record}, '', 'denied: no record');



=== TEST 5: a long scope, and a key with every character
--- http_config eval: $::log_format
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_scope       "$host|$arg_tenant";
        idempotency_key_format  string;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
start_log();

my $tenant = 't' x 1000;
my $key = join '', map { chr } 0x20 .. 0x7e;
(my $quoted = $key) =~ s/(["\\])/\\$1/g;

http_post("/ok?tenant=$tenant", 'x', { 'Idempotency-Key' => "\"$quoted\"" });
my $v = next_logged();
is($v->{status}, 'EXECUTED', 'ran');
is($v->{record}, hash_of("localhost|$tenant", $key), 'the record');
is($v->{job}, Digest::SHA::sha256_hex("$key:mail"), 'the job');
is($v->{key}, "\"$quoted\"", 'the key as sent');



=== TEST 6: as nginx's own: by name from Lua, beside those of the configuration
--- modules: lua
--- http_config
    map $idempotency_status $idempotency_mine { EXECUTED ran; REPLAYED told; default none; }
--- config
    location / {
        idempotency  $TEST_STORE;
        set          $idempotency_set "set";
        add_header   X-Mine "$idempotency_mine $idempotency_set";
        content_by_lua_block {
            ngx.say(ngx.var.idempotency_status, " ", ngx.var.idempotency_key, " ",
                    ngx.var.idempotency_job_mail, " ", ngx.var.idempotency_nothing)
        }
    }
--- client
my $key = new_key();
my @r = map { http_post('/', 'x', { 'Idempotency-Key' => $key }) } 1, 2;
like($r[0]->body, qr/\AEXECUTED \Q$key\E [0-9a-f]{64} nil\n\z/, 'by name');
is($r[0]->header('X-Mine'), 'ran set', 'the first');
is($r[1]->header('X-Mine'), 'told set', 'the replay');
--- no_error_log
[error]



=== TEST 7: a name that is none
Where it is used is not known when it is found, and no other line is named.
--- config
    location / {
        idempotency  $TEST_STORE;
        add_header   X-Status $idempotency_statuss;
    }
--- must_die
--- error_log eval
qr/\[emerg\] \S+ unknown "idempotency_statuss" variable$/



=== TEST 8: a name that is ours
--- config
    location / {
        idempotency  $TEST_STORE;
        set          $idempotency_status mine;
    }
--- must_die
--- error_log eval
qr/\[emerg\] \S+ the duplicate "idempotency_status" variable$/



=== TEST 9: loaded, it takes no room in nginx's hash of variables
--- config
    location / { idempotency $TEST_STORE; }
--- client
my $module = $ENV{IDEMPOTENCY_MODULE}
             || 'build/ngx_http_idempotency_module.so';
$module = Cwd::abs_path($module) if $module ne 'static';
my $root = $ENV{TEST_NGINX_SERVER_ROOT};

my $warns = sub {
    my ($size, $load) = @_;

    open my $conf, '>', "$root/conf/hash.conf" or die "hash.conf: $!";
    print $conf "$load\npid $root/hash.pid;\nerror_log stderr;\nevents { }\n"
                . "http { variables_hash_max_size $size; access_log off; }\n";
    close $conf or die "hash.conf: $!";

    my $said = `$ENV{TEST_NGINX_BINARY} -t -c $root/conf/hash.conf 2>&1`;
    like($said, qr/test is successful/, "$size: it starts");

    return $said =~ /could not build optimal variables_hash/ ? 1 : 0;
};

for my $size (128, 256, 320, 384, 448, 512, 640, 768, 896, 1024) {
    is($warns->($size, $module eq 'static' ? '' : "load_module $module;"),
       $warns->($size, ''), "$size: the same with it");
}
