# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What people see of a request: tenant, actor and fields of one's own in events;
# a dry run that a variable decides; values of a conflict that are redacted.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Digest::SHA ();
use JSON::PP ();

sub events
{
    my $n = shift;

    my $file = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.log";
    my @lines;

    wait_for(sub {
        open my $in, '<', $file or return 0;
        @lines = <$in>;
        return @lines >= $n;
    });

    return map { JSON::PP::decode_json($_) } @lines;
}

run_tests();

__DATA__

=== TEST 1: labels and fields in events
--- config
    idempotency_log        logs/events.log;
    idempotency_tenant     $http_x_tenant;
    idempotency_log_field  platform $http_x_platform;
    idempotency_log_field  app.version "v$http_x_version";

    location / {
        idempotency        $TEST_STORE;
        idempotency_actor  $http_x_user;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        idempotency        $TEST_STORE;
        idempotency_actor  $http_x_user plain;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $send = sub {
    my ($uri, %headers) = @_;
    http_post($uri, 'x', { 'Idempotency-Key' => new_key(), %headers });
};

$send->('/ok', 'X-Tenant' => 'acme', 'X-User' => 'jane', 'X-Platform' => 'i"os',
        'X-Version' => 7);
$send->('/plain/ok', 'X-User' => 'jane', 'X-Platform' => 'a' x 3000);
$send->('/ok');
$send->('/plain/ok', 'X-Tenant' => "M\xc3\xbcller \\", 'X-User' => "j\xe9\x01",
        'X-Platform' => "\xc2\x9b\xe2\xff" . "\xe2\x82\xac" x 50);

my @processed = grep { $_->{event} eq 'idempotency.processed' } events(8);

is(scalar @processed, 4, 'four ran');

is($processed[0]{tenant}, 'acme', 'tenant');
is($processed[0]{actor}, Digest::SHA::sha256_hex('jane'), 'actor, as a hash');
is($processed[0]{platform}, 'i"os', 'a field');
is($processed[0]{'app.version'}, 'v7', 'another');

is($processed[1]{actor}, 'jane', 'actor, plain');
is($processed[1]{tenant}, undef, 'no tenant');
is($processed[1]{platform}, 'a' x 128, 'bounded');

is($processed[2]{actor}, undef, 'nobody');
is($processed[2]{platform}, '', 'empty');

is($processed[3]{tenant}, "M\x{fc}ller \\", 'UTF-8');
is($processed[3]{actor}, 'j__', 'neither UTF-8 nor control characters');
is($processed[3]{platform}, '____' . "\x{20ac}" x 41 . '_', 'and cut');



=== TEST 2: what is refused
--- store: memory
--- config
    location / { idempotency on; }
--- client
for (
    [ 'idempotency_actor $http_a hashed;', 'it is "plain"' ],
    [ 'idempotency_log_field status x;', 'by itself' ],
    [ 'idempotency_log_field "a b" x;', 'it is a name' ],
    [ 'idempotency_log_field a x; idempotency_log_field a y;', 'is duplicate' ],
    [ join('', map { "idempotency_log_field f$_ x; " } 1 .. 17), '16 already' ],
    [ 'idempotency_dry_run yes;', '"on", "off", or a value' ],
    [ 'idempotency_conflict_detail paths redact=/a;', 'with "values"' ],
    [ 'idempotency_conflict_detail values redact=/a~;', '"~0"' ],
    [ 'idempotency_conflict_detail values redact=a,,b;', 'a name is empty' ],
    [ 'idempotency_conflict_detail value;', '"off" or "paths" or "values"' ],
) {
    my ($directives, $right) = @$_;

    edit_config(sub { s/idempotency on;.*\}/idempotency on; $directives }/ });
    ok(!nginx_reload(), "refused: $directives");
    error_log_like(qr/\[emerg\].*\Q$right\E/, "says: $right");
}

edit_config(sub { s/idempotency on;.*\}/idempotency on; }/ });
--- provokes: \[emerg\]



=== TEST 3: a dry run by a variable
--- config
    location / {
        idempotency          $TEST_STORE;
        idempotency_dry_run  $http_x_dry;
        add_header           X-Status $idempotency_status always;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());
my $n = 0;

is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran');

for my $dry (qw(1 on yes)) {
    my $r = http_post('/ok?op=a', 'x', { %key, 'X-Dry' => $dry });
    is($r->body, 'run ' . (++$n + 1) . "\n", "$dry: ran");
    is($r->header('X-Status'), 'REPLAYED', 'and would have been replayed');

    $r = http_post('/ok?op=b', 'y', { %key, 'X-Dry' => $dry });
    is($r->body, "run $n\n", "$dry: ran");
    is($r->header('X-Status'), 'CONFLICT', 'and would have been refused');
}

for my $dry ('', '0', 'off') {
    my $r = http_post('/ok?op=a', 'x', { %key, 'X-Dry' => $dry });
    is($r->body, "run 1\n", "\"$dry\": replayed");
}

is(http_post('/ok?op=a', 'y', \%key)->status, 409, 'refused');



=== TEST 4: values that are redacted
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_conflict_detail  values redact=/email,/card/number,phone;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /sets/ {
        idempotency                  $TEST_STORE;
        idempotency_fingerprint      json arrays=unordered;
        idempotency_conflict_detail  values redact=email;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $hash = sub { return substr(Digest::SHA::sha256_hex(shift), 0, 8) . '***' };

my %key = ('Idempotency-Key' => new_key());
http_post('/ok', '{"email":"a@b.c","card":{"number":4111,"name":"J"},"to":[{"phone":"+1"}],"n":1}',
          \%key);
my $r = http_post('/ok', '{"email":"d@e.f","card":{"number":4222,"name":"K"},"to":[{"phone":null}],"n":2}',
                  \%key);

is_deeply($r->json->{error}{details}{diff_summary}, [
    { path => '/card/name', change => 'changed', old => 'J', new => 'K' },
    { path => '/card/number', change => 'changed', old => $hash->('4111'),
      new => $hash->('4222') },
    { path => '/email', change => 'changed', old => $hash->('a@b.c'),
      new => $hash->('d@e.f') },
    { path => '/n', change => 'changed', old => 1, new => 2 },
    { path => '/to/0/phone', change => 'changed', old => $hash->('+1'),
      new => $hash->('null') },
], 'a hash in place of the value');

# a whole container, and within an array that is told as one

%key = ('Idempotency-Key' => new_key());
http_post('/sets/ok', '{"list":[{"email":"a@b.c","x":1}],"email":{"y":["z"]}}',
          \%key);
$r = http_post('/sets/ok', '{"list":[{"email":"d@e.f","x":1}],"email":{"y":["w"]}}',
               \%key);
unlike($r->body, qr/a\@b|d\@e|"z"|"w"/, 'nothing of it is told');
is(scalar @{ $r->json->{error}{details}{diff_summary} }, 2, 'but that it differs');



=== TEST 5: long names with the same beginning are not one
--- config
    idempotency_log     logs/events.log;
    idempotency_tenant  $http_x_tenant;
    idempotency_actor   $http_x_user plain;

    location / {
        idempotency        $TEST_STORE;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ops/ { idempotency_admin; }
--- client
my $post = sub {
    http_post('/ok', 'x', { 'Idempotency-Key' => new_key(), @_ })->status;
};
my $hash = sub { 'sha256:' . Digest::SHA::sha256_hex($_[0]) };

my $long = 'a' x 96;
my @tenants = ($long, "${long}1", "${long}2", 'b' x 4000, $hash->("${long}1"));

is($post->('X-Tenant' => $_, 'X-User' => "u$_"), 200, 'ran') for @tenants;

my ($store) = @{ http_get('/ops/')->json->{stores} };
my $records = sub {
    my ($method, $filter) = @_;
    return http_request($method, "/ops/records/$store?$filter")->json;
};
my $n = sub { scalar @{ $records->('GET', $_[0])->{records} } };

is($n->('limit=100'), 5, 'five records');
is($n->("tenant=$_"), 1, 'one of ' . length) for @tenants[0 .. 3];
is($n->("actor=u$_"), 1, 'one of its actor') for @tenants[0 .. 3];
is($n->("tenant=${long}3"), 0, 'none of a third one');

my ($r) = @{ $records->('GET', "tenant=${long}2")->{records} };
is($r->{tenant}, $hash->("${long}2"), 'what a record has');
is($n->("tenant=$r->{tenant}"), 1, 'by which it is found, too');

is($records->('DELETE', "tenant=${long}1")->{deleted}, 1, 'one is deleted');
is($n->("tenant=$_"), 1, 'the others are not')
    for $long, "${long}2", 'b' x 4000;
is($n->('limit=100'), 4, 'nor is the one that is called as the hash');

my @events = grep { $_->{event} eq 'idempotency.processed' } events(10);
is_deeply([ map { $_->{tenant} } @events[0 .. 2] ],
          [ $long, map { $hash->($_) } "${long}1", "${long}2" ], 'in events');
is($events[2]{actor}, $hash->("u${long}2"), 'the actor, too');
