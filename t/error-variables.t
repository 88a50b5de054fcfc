# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# An error body of any shape: idempotency_error_body off, an error_page and a
# "return" that uses the variables of an answer.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $json = <<'CONF';
    idempotency             $TEST_STORE;
    idempotency_error_body  off;
    error_page              400 409 503 507 = @problem;
    add_header              X-Code $idempotency_error_code always;
    add_header              X-Layer $idempotency_layer always;
    add_header              X-Original-Ms $idempotency_original_time_ms always;
    add_header              X-Original $idempotency_original_fingerprint always;
    add_header              X-Fingerprint $idempotency_fingerprint always;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /required {
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /busy {
        idempotency_wait         0;
        idempotency_retry_after  7s;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT/hold?op=busy;
    }

    location = /paths {
        idempotency_conflict_detail  paths;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /values {
        idempotency_conflict_detail  values;
        idempotency_conflict_status  400;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location @problem {
        default_type  application/json;
        return 409 '{"code":"$idempotency_error_code","type":"$idempotency_error_type","message":"$idempotency_error_message","retryable":$idempotency_retryable,"retry_after":"$idempotency_retry_after","diff":$idempotency_diff_json,"text":$idempotency_diff_text_json,"key":$idempotency_key_json,"time":"$idempotency_original_time_ms","original":"$idempotency_original_fingerprint","now":"$idempotency_fingerprint"}';
    }
CONF

run_tests();

__DATA__

=== TEST 1: each error in the operator's own words
--- config eval: $::json
--- client
my $key = new_key();
my %key = ('Idempotency-Key' => $key);

my $first = http_post('/values', '{"customer":{"phone":"+1-100"},"n":1,"t~/":"x"}', \%key);
is($first->status, 200, 'ran');
is($first->header('X-Code'), undef, 'no error');
is($first->header('X-Layer'), undef, 'not folded');
is($first->header('X-Original'), undef, 'it is the original');

my $r = http_post('/values', '{"customer":{"phone":"+1-\"200"},"n":2.5,"new":[]}', \%key);

is($r->status, 409, 'as the page says');
is($r->header('Content-Type'), 'application/json', 'its type');
is($r->header('X-Code'), 'IDEMPOTENCY_CONFLICT', 'in a header');
is($r->header('X-Layer'), undef, 'a conflict is not folded');

my $j = $r->json;
ok($j, 'is JSON') or diag($r->body);

is($j->{code}, 'IDEMPOTENCY_CONFLICT', 'code');
is($j->{type}, 'conflict', 'type');
is($j->{message}, 'This Idempotency-Key was used before with a different '
   . 'request.', 'message');
ok(!$j->{retryable}, 'not retryable');
is($j->{retry_after}, '', 'nor after a time');
is($j->{key}, $key, 'the key');
like($j->{time}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/, 'milliseconds');
like($j->{original}, qr/^[0-9a-f]{64}$/, 'fingerprint of the original');
is($j->{original}, $first->header('X-Fingerprint'), '... it is that');
isnt($j->{now}, $j->{original}, '... and not this one\'s');

is_deeply($j->{diff}, [
    { path => '/customer/phone', change => 'changed', old => '+1-100',
      new => '+1-"200' },
    { path => '/n', change => 'changed', old => 1, new => 2.5 },
    { path => '/new', change => 'added', new => [] },
    { path => '/t~0~1', change => 'removed', old => 'x' },
], 'diff as objects');

my $arrow = "\x{2192}";
is_deeply($j->{text}, [
    "customer.phone: '+1-100' $arrow '+1-\"200'",
    "n: '1' $arrow '2.5'",
    "new: (none) $arrow '[]'",
    "t~/: 'x' $arrow (none)",
], 'diff as lines');

my $replay = http_post('/values', '{"customer":{"phone":"+1-100"},"n":1,"t~/":"x"}', \%key);
is($replay->header('X-Layer'), 'key', 'folded by its key');
is($replay->header('X-Original-Ms'), $j->{time}, 'the same time');
is($replay->header('X-Original'), $j->{original}, 'the same original');
is($replay->header('X-Code'), undef, 'no error');

# no values are kept

my %other = ('Idempotency-Key' => new_key());
http_post('/paths', '{"a":{"b":1}}', \%other);
$j = http_post('/paths', '{"a":{"b":2}}', \%other)->json;
is_deeply($j->{text}, [ 'a.b: changed' ], 'a line without values');
is_deeply($j->{diff}, [ { path => '/a/b', change => 'changed' } ],
          'an object without values');

# nothing is known of what differs

my %plain = ('Idempotency-Key' => new_key());
http_post('/ok', 'a', \%plain);
$j = http_post('/ok', 'b', \%plain)->json;
is_deeply([ @$j{qw(code diff text)} ], [ 'IDEMPOTENCY_CONFLICT', [], [] ],
          'empty arrays');

# somebody else's: nothing is told

$j = http_post('/values', '{"n":1}', { %key, Authorization => 'x' })->json;
is_deeply([ @$j{qw(code diff text time original)} ],
          [ 'IDEMPOTENCY_CONFLICT', [], [], '', '' ],
          'nothing of another identity\'s');



=== TEST 2: keys that are missing, malformed, or of any bytes
--- config eval: $::json
--- client
my $j = http_post('/required', 'a')->json;
is_deeply([ @$j{qw(code type message key diff time)} ],
          [ 'IDEMPOTENCY_KEY_MISSING', 'invalid_request',
            'This operation takes an Idempotency-Key, and the request has '
            . 'none.', undef, [], '' ], 'missing');

$j = http_post('/ok', 'a', { 'Idempotency-Key' => "a\\b \xff\"\x7f" })->json;
is($j->{code}, 'IDEMPOTENCY_KEY_INVALID', 'malformed');
is($j->{key}, "a\\b \x{fffd}\"\x7f", 'told as JSON can have it');
is($j->{message}, 'The Idempotency-Key contains a character that is not '
   . 'allowed.', 'and why');

is(app_count('required') + app_count('ok'), 0, 'none ran');



=== TEST 3: a retryable one
--- config eval: $::json
--- client
my %key = ('Idempotency-Key' => '"a-quoted-key"');

my $c = send_post('/busy', 'x', \%key);
app_wait_parked('busy');

my $r = http_post('/busy', 'x', \%key);
my $j = $r->json;

is_deeply([ @$j{qw(code type retry_after key)} ],
          [ 'CONCURRENT_REQUEST', 'concurrent', '7', 'a-quoted-key' ],
          'busy');
ok($j->{retryable}, 'is retryable');
is($r->header('Retry-After'), 7, 'Retry-After stays');
is($r->header('X-Layer'), 'key', 'folded by its key');

app_release('busy');
is($c->read_response->status, 200, 'the holder got its answer');



=== TEST 4: hashes as sha256sum makes them
--- config
    location / {
        idempotency  $TEST_STORE;
        idempotency_key_format  string;
        add_header   X-Hash $idempotency_key_hash always;
        add_header   X-Job $idempotency_job_mail always;
        add_header   X-Record $idempotency_record always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /body {
        idempotency  $TEST_STORE;
        idempotency_dedupe  body window=10s;
        add_header   X-Job $idempotency_job_mail always;
        add_header   X-Record $idempotency_record always;
        add_header   X-Layer $idempotency_layer always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /url {
        idempotency  $TEST_STORE;
        idempotency_dedupe  json:url window=10s;
        add_header   X-Layer $idempotency_layer always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location = /off {
        add_header   X-Job $idempotency_job_mail always;
        add_header   X-Layer $idempotency_layer always;
        add_header   X-Code $idempotency_error_code always;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
require Digest::SHA;

my $r = http_post('/ok', 'a', { 'Idempotency-Key' => '"order 17"' });
is($r->header('X-Hash'), Digest::SHA::sha256_hex('order 17'), 'of the key');
is($r->header('X-Job'), Digest::SHA::sha256_hex('order 17:mail'), 'of a job');

$r = http_post('/body', 'tap');
is($r->header('X-Job'),
   Digest::SHA::sha256_hex($r->header('X-Record') . ':mail'),
   'of a job without a key');
is($r->header('X-Layer'), undef, 'the first');

my $again = http_post('/body', 'tap');
is($again->header('X-Layer'), 'body', 'the second was folded');
is($again->header('X-Job'), $r->header('X-Job'), 'into the same job');

http_post('/url', '{"url":"a","n":1}');
is(http_post('/url', '{"url":"a","n":2}')->header('X-Layer'), 'url',
   'by a member');

is(scalar http_post('/off', 'a')->header($_), undef, "off: no $_")
    for qw(X-Job X-Layer X-Code);
