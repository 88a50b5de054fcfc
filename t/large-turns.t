# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Large responses go into the embedded store and out of it in many turns of
# the event loop, and so does a file, and a JSON object that a replay rewrites.
# Whatever happens between two turns (a client leaves, nginx is reloaded, a
# worker is killed, the zone fills up, a record is evicted or deleted): a
# response is whole or there is none, and what ran once does not run again.
#
# How long a turn takes is measured by bench/loop-turns.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $size = 10_000_000;

our $store = "idempotency_store ledger memory { zone ledger:40m; }\n";

our $location = <<'_EOC_';
    idempotency_max_response  60m;
    proxy_http_version        1.1;
    proxy_read_timeout        60s;

    location / {
        idempotency  ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /admin/ { idempotency_admin; }
_EOC_


sub body_of
{
    my $n = shift;

    my $line = join('', 'a' .. 'z', 0 .. 9) . "\n";

    return substr 'run 1 ' . $line x (1 + int($n / length $line)), 0, $n;
}

our $body = body_of($size);

sub start { my ($key, $n) = @_;
            send_post('/size?n=' . ($n || $size) . "&op=$key", 'x',
                      { 'Idempotency-Key' => $key }) }

sub ask { start(@_)->read_response(60) }

sub is_whole
{
    my ($r, $name, $replayed) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    ok($r && $r->status == 200 && $r->body eq $body, "$name: whole")
        or diag($r ? $r->status . ' ' . length $r->body : 'nothing');
    is($r && $r->header('Idempotent-Replayed'), $replayed, "$name: replayed?");
}

# a 200 has all of it; otherwise there is a reason

sub is_exact
{
    my ($r, $name) = @_;

    return if $r && $r->status == 200 && $r->body eq $body;
    return if $r && $r->error_code =~ /^(?:RESPONSE_NOT_KEPT|OUTCOME_UNKNOWN|CONCURRENT_REQUEST|LOCK_TIMEOUT)$/;

    return $name . ': ' . ($r ? $r->status . ' ' . $r->error_code . ' '
                                . length $r->body : 'nothing');
}

run_tests();

__DATA__

=== TEST 1: whole, with those who wait, and several at once
--- store: memory
--- workers: 2
--- client_timeout: 200
--- http_config eval: $::store
--- config eval: $::location
--- client
my @c = map { start('a') } 1 .. 4;
my @r = map { $_->read_response(60) } @c;

is(scalar(grep { $_->header('Idempotent-Replayed') } @r), 3, 'three waited');
is_deeply([ map { is_exact($_, 'at once') } @r ], [], 'each is whole');
is(scalar(grep { $_->status == 200 } @r), 4, 'and none was refused');

@r = map { $_->read_response(60) } map { start('a') } 1 .. 4;
is_whole($_, 'replay', 'true') for @r;
is(app_count('a'), 1, 'ran once');



=== TEST 2: the client leaves while it is stored
--- store: memory
--- client_timeout: 200
--- http_config eval: $::store
--- config eval: $::location
--- client
for my $n (1 .. 4) {
    my $c = start("gone-$n");
    app_wait("gone-$n");
    select undef, undef, undef, 0.03 * $n;
    $c->abort;

    is_whole(ask("gone-$n"), "client $n is gone", 'true');
    is(app_count("gone-$n"), 1, "$n: ran once");
}

# and while it is read
for my $n (1 .. 4) {
    my $c = start('gone-4');
    select undef, undef, undef, 0.01 * $n;
    $c->abort;
}

is_whole(ask('gone-4'), 'after that', 'true');



=== TEST 3: nginx is reloaded while it is stored, and while it is read
--- store: memory
--- client_timeout: 200
--- http_config eval: $::store
--- config eval: $::location
--- client
for my $n (1 .. 2) {
    my $c = start("reload-$n");
    app_wait("reload-$n");
    select undef, undef, undef, 0.04 * $n;
    ok(nginx_reload(), 'reload');
    is_whole($c->read_response(60), "reload $n", undef);

    my $replay = start("reload-$n");
    select undef, undef, undef, 0.01 * $n;
    ok(nginx_reload(), 'reload');
    is_whole($replay->read_response(60), "reload $n, again", 'true');
    is(app_count("reload-$n"), 1, "$n: ran once");
}



=== TEST 4: the worker is killed meanwhile
--- store: memory
--- workers: 2
--- client_timeout: 300
--- provokes: exited on signal 9|was locked by|a worker died while it changed zone
--- http_config eval: $::store
--- config
    idempotency_max_response     60m;
    idempotency_unknown_outcome  hold;
    idempotency_lease            1s;
    idempotency_wait             0;
    proxy_http_version           1.1;

    location / {
        idempotency  ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /admin/ { idempotency_admin; }
    location = /stats { idempotency_stats json; }
--- client
my @wrong;

for my $n (1 .. 8) {
    my $key = "kill-$n";
    my $c = start($key);
    app_wait($key);
    select undef, undef, undef, 0.02 * $n;
    kill 'KILL', $_ for nginx_workers();
    $c->abort;

    ok(wait_for(sub { my $r = eval { http_get('/stats') }; $r && $r->status == 200 }, 20),
       "$n: nginx is there");

    push @wrong, is_exact(ask($key), $key);
    push @wrong, "$key ran twice" if app_count($key) > 1;
}

is_deeply(\@wrong, [], 'whole, or there is a reason');

# what they left is no loss for ever: three fit as at first
select undef, undef, undef, 1.2;

for my $key (qw(x y z)) {
    is_whole(ask($key), "$key: fresh", undef);
}
is_whole(ask($_), "$_: kept", 'true') for qw(x y z);



=== TEST 5: the zone is full meanwhile
--- store: memory
--- workers: 2
--- client_timeout: 300
--- provokes: is full|there is no room
--- http_config
    idempotency_store ledger memory { zone ledger:17m; }
--- config eval: $::location
--- client
my (@wrong, %kept);

for my $n (1 .. 3) {
    my @keys = map { "full-$n-$_" } 1 .. 2;
    my @c = map { start($_) } @keys;
    my @r = map { $_->read_response(60) } @c;
    is_deeply([ map { $_->body eq $::body ? () : 'not whole' } @r ], [],
              'both are answered');

    # replays while another one wants the room
    my $more = start("more-$n");
    @r = map { $_->read_response(60) } map { start($_) } @keys;
    push @wrong, is_exact($_, 'replay') for @r;
    $kept{200} += grep { $_->status == 200 } @r;
    is($more->read_response(60)->body, $::body, 'so is another');

    push @wrong, "$_ ran twice" for grep { app_count($_) > 1 } @keys, "more-$n";
}

is_deeply(\@wrong, [], 'each is whole, or was not kept');

is_whole(ask('last'), 'the last', undef);
is_whole(ask('last'), 'the last, again', 'true');



=== TEST 6: deleted while it is read
--- store: memory
--- client_timeout: 200
--- http_config eval: $::store
--- config eval: $::location
--- client
my @wrong;

for my $n (1 .. 4) {
    my $key = "deleted-$n";
    ask($key);

    my $c = start($key);
    select undef, undef, undef, 0.005 * $n;
    my $r = http_request('DELETE', "/admin/records/ledger?key=$key&scope=127.0.0.1");
    like($r->status, qr/^(?:200|404)$/, "$n: deleted");

    $r = $c->read_response(60);
    my $ran = app_count($key);
    my $text = $r->body;
    $text =~ s/^run 2/run 1/ if $ran == 2;
    push @wrong, "$key: " . $r->status . ' ' . length $r->body
        if $r->status != 200 || $text ne $::body || $ran > 2;
}

is_deeply(\@wrong, [], 'a replay, or it ran anew: whole');



=== TEST 7: a file
--- client_timeout: 200
--- config
    idempotency_methods       GET;
    idempotency_max_response  60m;

    location /file/      { idempotency $TEST_STORE; alias html/; }
    location /sendfile/  { idempotency $TEST_STORE; sendfile on; alias html/; }
    location /large/     { idempotency $TEST_STORE; output_buffers 1 4m; alias html/; }
    location /direct/    { idempotency $TEST_STORE; directio 1m; alias html/; }
    location /short/     { idempotency $TEST_STORE; send_timeout 1; alias html/; }
    location /max/       { idempotency $TEST_STORE; idempotency_max_response 9m; alias html/; }
    location /admin/     { idempotency_admin; }
    location = /store    { return 200 "$TEST_STORE"; }
--- client
my $html = Test::Nginx::Util::html_dir();
my $store = http_get('/store')->body;
$store = 'default' if $store eq 'on';

for my $name (qw(file sendfile large direct short)) {
    open my $f, '>', "$html/$name" or die;
    print $f $::body;
    close $f;

    my %key = ('Idempotency-Key' => "file-$name");

    # its client leaves when it is being read, and before all of it is sent
    my $c = send_request('GET', "/$name/$name", '', \%key);
    ok(wait_for(sub { http_get("/admin/records/$store?key=file-$name"
                               . '&scope=localhost')->status == 200 }),
       "$name: begun");
    $c->abort;

    my $r = http_get("/$name/$name", \%key);
    ok($r->body eq $::body, "$name: whole");
    is($r->header('Idempotent-Replayed'), 'true', "$name: replayed");

    unlink "$html/$name";
    $r = http_get("/$name/$name", \%key);
    ok($r->body eq $::body, "$name: replayed without it");

    $r = http_get("/$name/$name", { %key, Range => 'bytes=10-29' });
    is($r->body, substr($::body, 10, 20), "$name: a range of it");
}

open my $f, '>', "$html/max" or die;
print $f $::body;
close $f;

my %key = ('Idempotency-Key' => 'file-max');
ok(http_get('/max/max', \%key)->body eq $::body, 'too large to be kept: whole');
is(http_get('/max/max', \%key)->error_code, 'RESPONSE_TOO_LARGE', 'and not kept');



=== TEST 8: a JSON object that is rewritten
--- client_timeout: 200
--- config
    idempotency_max_response  60m;
    idempotency_methods       GET;
    default_type              application/json;

    location / {
        idempotency              $TEST_STORE;
        idempotency_replay_json  replayed true;
        root                     html;
    }
    location /compress/ {
        idempotency              $TEST_STORE;
        idempotency_compress     on;
        idempotency_replay_json  replayed true;
        alias                    html/;
    }
--- client
my $html = Test::Nginx::Util::html_dir();
my $list = join ',', map { "\"entry number $_\"" } 1 .. 200_000;
my %text = (object => "{ \"replayed\": false, \"list\": [$list] }",
            broken => "{ \"replayed\": false, \"list\": [$list]",
            array  => "[ $list ]");

for my $name (sort keys %text) {
    open my $f, '>', "$html/$name" or die;
    print $f $text{$name};
    close $f;

    for my $at ('', 'compress/') {
        my %key = ('Idempotency-Key' => "json-$name-$at" =~ s/\W/-/gr);
        is(http_get("/$at$name", \%key)->body eq $text{$name}, 1, "$at$name");

        my $want = $name eq 'object' ? "{\"list\":[$list],\"replayed\":true}"
                                     : $text{$name};

        # some leave before it is answered
        for (1 .. 3) {
            my $c = send_request('GET', "/$at$name", '', \%key);
            select undef, undef, undef, 0.004 * $_;
            $c->abort;
        }

        my @c = map { send_request('GET', "/$at$name", '', \%key) } 1 .. 3;
        my @r = map { $_->read_response(60) } @c;
        is(scalar(grep { $_->body eq $want } @r), 3, "$at$name: replayed");
    }
}
