# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The key as it is sent: which values are one, which are the same one, and that
# no other byte sequence gets an execution or upsets the server.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $location = <<'_EOC_';
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_


# bytes of the header's value, just as they are

sub send_key
{
    my ($uri, @values) = @_;

    return http_raw("POST $uri HTTP/1.1\r\nHost: localhost\r\n"
                    . join('', map { "Idempotency-Key:$_\r\n" } @values)
                    . "Content-Length: 1\r\nConnection: close\r\n\r\nx");
}

sub is_invalid
{
    my ($r, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    is($r->status, 400, "$name: status");
    is($r->error_code, 'IDEMPOTENCY_KEY_INVALID', "$name: code");
}


# sends each, and expects one execution in all

sub same_key
{
    my ($op, @values) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for my $value (@values) {
        my $r = send_key("/ok?op=$op", $value);
        is($r->status, 200, "$op: <$value>");
        is($r->body, "run 1\n", "$op: <$value>: the same key");
    }

    is(app_count($op), 1, "$op: ran once");
}

run_tests();

__DATA__

=== TEST 1: quoted and bare are the same, parameters are ignored
--- config eval: $::location
--- client
same_key('a', ' abc-1', ' "abc-1"', '"abc-1"', ' "abc-1";a', ' "abc-1";a=1',
         ' "abc-1"; a=1; b="x;y\\"z"; c=?1; d=tok/en; e=:YWJj:; f=-1.5',
         ' "abc-1";a=1;a=2', ' "abc-1";*x=1');

# white space around is not part of it
same_key('b', 'k2', ' k2', '    k2', "\tk2", " \t k2", ' k2 ', " k2\t",
         " k2 \t ", ' "k2" ', "\t\"k2\"\t");

# case counts
send_key('/ok?op=c', ' Case');
is(send_key('/ok?op=c', ' case')->body, "run 2\n", 'case counts');



=== TEST 2: what is not an Item
--- config eval: $::location
--- client
for my $value ('"', '""', '"a', 'a"', '"a"b', '"a""b"', '"a" "b"', '"a", "b"',
               '"a","a"', 'a,b', 'a, b', 'a b', '"a\\b"', '"a\\', '"a\\"',
               "'a'", '"a";', '"a";A', '"a";a=', '"a"; ;b', '"a";a="',
               '"a";a=?2', '"a";a=?', '"a";1', '"a" ;a', '"a";a =1',
               '"a";a=1.', '"a";a=1.2345', '"a";a=1234567890123456',
               '"a";a=:!:', '"a";a=:YQ', '"a";a=-', '"a";a=(b)', 'a;b', ';a',
               ':YWJj:', '(a)', '"a b"', '"a\\"b"', '*', '?1')
{
    is_invalid(send_key('/ok?op=a', " $value"), "<$value>");
}

is(app_count('a'), 0, 'nothing ran');



=== TEST 3: sent twice
--- config eval: $::location
--- client
is_invalid(send_key('/ok?op=a', ' a', ' b'), 'two keys');
is_invalid(send_key('/ok?op=a', ' a', ' a'), 'the same twice');
is_invalid(send_key('/ok?op=a', ' "a"', ' a'), 'quoted and bare');
is_invalid(send_key('/ok?op=a', ' a', ''), 'one of them empty');
is_invalid(send_key('/ok?op=a', '', ' a'), 'the first empty');
is_invalid(send_key('/ok?op=a', ('') x 2), 'both empty');
is_invalid(send_key('/ok?op=a', (' a') x 30), 'thirty times');

like(send_key('/ok?op=a', ' a', ' a')->json->{detail}, qr/more than once/,
     'says what is wrong');

# its name has no case
is_invalid(http_post('/ok?op=a', 'x', [ 'Idempotency-Key' => 'a',
                                        'idempotency-key' => 'a' ]),
           'in another case');

is(app_count('a'), 0, 'nothing ran');



=== TEST 4: length
--- config eval: $::location
--- client
is_invalid(send_key('/ok?op=a', ''), '0 characters');
is_invalid(send_key('/ok?op=a', '   '), 'white space');
is_invalid(send_key('/ok?op=a', " \t "), 'white space with a tab');
is_invalid(send_key('/ok?op=a', ' ""'), '0 characters, quoted');
is_invalid(send_key('/ok?op=a', ' ' . 'k' x 256), '256 characters');
is_invalid(send_key('/ok?op=a', ' "' . 'k' x 256 . '"'), '256, quoted');
is_invalid(send_key('/ok?op=a', ' ' . 'k' x 6000), '6000 characters');
is(app_count('a'), 0, 'nothing ran');

same_key('one', ' k', ' "k"');
same_key('max', ' ' . 'k' x 255, ' "' . 'k' x 255 . '"',
         ' "' . 'k' x 255 . '";a="' . 'x' x 300 . '"');

# one character less is another key
is(send_key('/ok?op=max', ' ' . 'k' x 254)->body, "run 2\n", 'one less');



=== TEST 5: every byte in a bare key
--- config eval: $::location
--- client
my $good = join '', 'A' .. 'Z', 'a' .. 'z', 0 .. 9, '_.-';

for my $n (1 .. 255) {
    my $byte = chr $n;
    my $r = send_key("/ok?op=$n", " ab${byte}cd");

    if (index($good, $byte) >= 0) {
        is($r->status, 200, "byte $n is of a key");
        is(app_count($n), 1, "byte $n: ran");

    } elsif ($byte eq "\n") {

        # the header ends there, and is a key
        is($r->status, 200, "byte $n ends the line");

    } else {
        is($r->status, 400, "byte $n is refused");
        is(app_count($n), 0, "byte $n: did not run");
    }
}

# nginx itself refuses this one
is(send_key('/ok?op=0', " ab\0cd")->status, 400, 'byte 0 is refused');
is(app_count(0), 0, 'byte 0: did not run');

# the server is still well
is(send_key('/ok?op=last', ' last')->body, "run 1\n", 'serves');



=== TEST 6: every byte in a quoted string
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_key_format  string;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $n (1 .. 255) {
    next if $n == 10;

    my $byte = chr $n;
    my $r = send_key("/ok?op=$n", " \"ab${byte}cd\"");

    if ($n >= 0x20 && $n <= 0x7e && $byte ne '"' && $byte ne '\\') {
        is($r->status, 200, "byte $n is of a string");
        is(app_count($n), 1, "byte $n: ran");

    } else {
        is($r->status, 400, "byte $n is refused");
        is(app_count($n), 0, "byte $n: did not run");
    }
}

is(send_key('/ok?op=a', ' "a\\"b\\\\c"')->status, 200, 'escaped');
is(send_key('/ok?op=a', ' "a\\"b\\\\c";p')->body, "run 1\n", 'the same');
same_key('s', ' "a:b/c@d"', ' a:b/c@d');
is_invalid(send_key('/ok?op=t', ' a b'), 'a bare one with a space');
is_invalid(send_key('/ok?op=t', ' a,b'), 'a bare list');
is_invalid(send_key('/ok?op=t', " \xc3\xa4"), 'not ASCII');



=== TEST 7: an empty header is not a request without a key
--- config
    location / {
        idempotency           $TEST_STORE;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /required/ {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is_invalid(send_key('/ok?op=a', ''), 'not required');
is_invalid(send_key('/required/ok?op=a', ''), 'required');
is(send_key('/required/ok?op=a')->error_code, 'IDEMPOTENCY_KEY_MISSING',
   'none at all, and required');
is(app_count('a'), 0, 'nothing ran');
is(send_key('/ok?op=a')->status, 200, 'none at all');



=== TEST 8: formats
--- config
    location /uuid/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  uuid;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /uuid4/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  uuid4;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /length/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  token min=4 max=6;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /long/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  token max=1000;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /quoted/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  token quoted=required;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /optional/ {
        idempotency             $TEST_STORE;
        idempotency_key_format  string min=2 quoted=optional max=3;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $v1 = '6ba7b810-9dad-11d1-80b4-00c04fd430c8';
my $v4 = '16fd2706-8baf-433b-82eb-8c7fada847da';

my $takes = sub {
    my ($where, $value) = @_;
    is(send_key("/$where/ok?op=" . new_key(), " $value")->status, 200,
       "$where: <$value>");
};

my $refuses = sub {
    my ($where, $value) = @_;
    is_invalid(send_key("/$where/ok?op=refused", " $value"),
               "$where: <$value>");
};

$takes->('uuid', $_) for $v1, $v4, uc $v1 =~ s/6b/7b/r,
    '"00000000-0000-0000-0000-000000000000"';
$refuses->('uuid', $_) for 'abc', "$v1-", substr($v1, 1), "{$v1}",
    "urn:uuid:$v1", $v1 =~ tr/-//dr, $v1 =~ s/6b/6g/r, $v1 =~ s/-/_/r, "${v1}0",
    '6ba7b8109-dad-11d1-80b4-00c04fd430c8';

$takes->('uuid4', $_)
    for $v4 =~ s/16/17/r, uc '26fd2706-8baf-433b-B2eb-8c7fada847da',
        '"36fd2706-8baf-433b-92eb-8c7fada847da"',
        '46fd2706-8baf-433b-a2eb-8c7fada847da';
$refuses->('uuid4', $_)
    for $v1, $v4 =~ s/-433b/-533b/r, $v4 =~ s/-82eb/-72eb/r,
        $v4 =~ s/-82eb/-c2eb/r, $v4 =~ s/-82eb/-02eb/r;

$takes->('length', $_) for 'abcd', 'abcdef', '"abcde"', '"abcdeg";x=1';
$refuses->('length', $_) for 'abc', 'abcdefg', '"abc"', '"abcdefg"', 'a';

$takes->('long', 'l' x 1000);
$refuses->('long', 'l' x 1001);

$takes->('quoted', '"q1"');
$refuses->('quoted', $_) for 'q1', "'q1'", 'q1;a';

$takes->('optional', $_) for '"a b"', '"a\\"b"', '"\\"\\\\"', 'a/b', 'ab';
$refuses->('optional', $_) for '"a"', '"abcd"', 'a';

is(app_count('refused'), 0, 'nothing ran that was refused');



=== TEST 9: where the key comes from
--- http_config
    map $http_x_user $user_key {
        default  "";
        ~.       user-$http_x_user;
    }
--- config
    location / {
        idempotency      $TEST_STORE;
        idempotency_key  $http_x_request_key $arg_key $user_key;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /joined/ {
        idempotency      $TEST_STORE;
        idempotency_key  "$arg_a.$arg_b";
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $run = sub {
    my ($uri, @headers) = @_;
    return http_post($uri, 'x', \@headers);
};

# the standard header is not looked at where another source is named
$run->('/ok?op=std', 'Idempotency-Key' => 'k');
is($run->('/ok?op=std', 'Idempotency-Key' => 'k')->body, "run 2\n",
   'not the standard header');

$run->('/ok?op=h', 'X-Request-Key' => 'h');
is($run->('/ok?op=h', 'X-Request-Key' => 'h')->body, "run 1\n", 'a header');
is($run->('/ok?op=h', 'X-Request-Key' => 'h2')->body, "run 2\n",
   'another key');

$run->('/ok?op=a&key=arg');
is($run->('/ok?op=a&key=arg')->body, "run 1\n", 'an argument');

$run->('/ok?op=u', 'X-User' => '1');
is($run->('/ok?op=u', 'X-User' => '1')->body, "run 1\n", 'a map');

# the first that is not empty
$run->('/ok?op=o&key=first', 'X-User' => '2');
is($run->('/ok?op=o&key=first', 'X-User' => '3')->body, "run 1\n",
   'the argument comes first');
$run->('/ok?op=p&key=second', 'X-Request-Key' => 'before');
is($run->('/ok?op=p&key=second', 'X-Request-Key' => 'before')->body,
   "run 1\n", 'the header comes first');
is($run->('/ok?op=p&key=second', 'X-Request-Key' => 'other')->body,
   "run 2\n", 'the argument was not looked at');

# an empty header of ours, and another source that has one: a key
$run->('/ok?op=e&key=fallback', 'X-Request-Key' => '');
is($run->('/ok?op=e&key=fallback', 'X-Request-Key' => '')->body, "run 1\n",
   'an empty header, and a fallback');

# ... and none that has
is_invalid($run->('/ok?op=f', 'X-Request-Key' => ''), 'an empty header');
is_invalid($run->('/ok?op=f', 'X-Request-Key' => 'a', 'X-Request-Key' => 'a'),
           'this header twice');
is_invalid($run->('/ok?op=f&key=a%20b'), 'a malformed argument');
is(app_count('f'), 0, 'nothing ran');

$run->('/joined/ok?op=j&a=1&b=2');
is($run->('/joined/ok?op=j&a=1&b=2')->body, "run 1\n", 'joined');



=== TEST 10: a key that an access check sets
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_PORT_2;
        location / {
            add_header X-Key $http_x_session;
            return 204;
        }
    }
--- config
    location = /auth {
        internal;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_PORT_2;
        proxy_pass_request_body  off;
        proxy_set_header         Content-Length "";
    }
    location / {
        idempotency           $TEST_STORE;
        idempotency_key       $auth_key;
        idempotency_required  on;
        auth_request          /auth;
        auth_request_set      $auth_key $upstream_http_x_key;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $first = http_post('/ok?op=a', 'x', { 'X-Session' => 's1' });
my $retry = http_post('/ok?op=a', 'x', { 'X-Session' => 's1' });

is($first->status, 200, 'ran');
is($retry->body, "run 1\n", 'replayed');
is($retry->header('Idempotent-Replayed'), 'true', 'says so');
is(http_post('/ok?op=a', 'x', { 'X-Session' => 's2' })->body, "run 2\n",
   'another session');
is(http_post('/ok?op=a', 'x')->error_code, 'IDEMPOTENCY_KEY_MISSING',
   'none was set');
is_invalid(http_post('/ok?op=a', 'x', { 'X-Session' => 'a b' }),
           'a malformed one was set');
is(app_count('a'), 2, 'ran twice');



=== TEST 11: a variable of the configuration that is named like a header
--- http_config
    map $arg_key $http_x_mapped { default $arg_key; }
--- config
    set $http_x_api_key $arg_tenant;

    location /mapped/ {
        idempotency           $TEST_STORE;
        idempotency_key       $http_x_mapped;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
    location /tenant/ {
        idempotency           $TEST_STORE;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
--- client
my $first = http_post('/mapped/ok?op=a&key=k1', 'x', { 'X-Mapped' => 'h1' });

is($first->status, 200, 'ran, with the key of the map');
is(http_post('/mapped/ok?op=a&key=k1', 'x', { 'X-Mapped' => 'h2' })->body,
   $first->body, 'the header does not count');
is(http_post('/mapped/ok?op=b', 'x', { 'X-Mapped' => 'h1' })->error_code,
   'IDEMPOTENCY_KEY_MISSING', 'nor is it a key');

my $key = new_key();
my @as = map { [ 'Idempotency-Key' => $key, 'X-Api-Key' => $_ ] } 'a', 'b';

$first = http_post('/tenant/ok?op=c&tenant=t', 'x', $as[0]);

is($first->status, 200, 'ran, as the tenant that was set');
is(http_post('/tenant/ok?op=c&tenant=t', 'x', $as[1])->body, $first->body,
   'the header is not the identity');
is(app_count('a'), 1, 'ran once');
is(app_count('c'), 1, 'ran once');



=== TEST 12: keys with colons and braces, bare, as some systems make them
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_key_format  string;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $key ('11111111111111111111111111111111:POST:bookings-hold:a1b2c3d4e5f6g7h8',
             '{tenant}:PUT:customers-{id}:{hash}', "a!#\$%&'()*+/:;<=>?@[]^_`{|}~z")
{
    my $op = length $key;

    is(send_key("/ok?op=$op", " $key")->body, "run 1\n", "ran: $key");
    is(send_key("/ok?op=$op", " $key")->body, "run 1\n", 'replayed');
    is(send_key("/ok?op=$op", " \"$key\"")->body, "run 1\n",
       'the same, quoted');
}



=== TEST 13: a key joined from headers, one of which was sent twice
--- http_config
    map $http_x_a $http_x_mapped { default same; }
--- config
    location / {
        idempotency      $TEST_STORE;
        idempotency_key  "$http_x_a-$http_x_b";
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /braces/ {
        idempotency      $TEST_STORE;
        idempotency_key  "${http_x_a}";
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /capitals/ {
        idempotency      $TEST_STORE;
        idempotency_key  $HTTP_X_A;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /others/ {
        idempotency      $TEST_STORE;
        idempotency_key  "$http_x_a-$http_x_mapped";
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $run = sub { my $uri = shift; return http_post($uri, 'x', [ @_ ]) };
my @one = ('X-A' => 'a', 'X-B' => 'b');

is($run->('/ok?op=a', @one)->body, "run 1\n", 'each once: ran');
is($run->('/ok?op=a', @one)->body, "run 1\n", 'replayed');

is_invalid($run->('/ok?op=a', @one, 'X-A' => 'a'), 'the first twice');
is_invalid($run->('/ok?op=a', @one, 'x-b' => 'c'), 'the second twice');
is_invalid($run->("/$_/ok?op=a", @one, 'X-A' => 'c'), $_)
    for 'braces', 'capitals';

is(app_count('a'), 1, 'nothing else ran');

# a variable of the configuration is no header

my @two = (@one, 'X-Mapped' => 1, 'X-Mapped' => 2);

is($run->('/others/ok?op=o', @two)->body, "run 1\n", 'another one twice: ran');
is($run->('/others/ok?op=o', @two)->body, "run 1\n", 'replayed');
