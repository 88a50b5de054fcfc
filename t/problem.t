# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What a refused client gets: every row of the table of errors, as an RFC 9457
# problem and as the envelope; and what nginx's own error_page makes of it.
# However it is answered, a refused request never runs.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';


# every field of a problem; "retry" is the retryAfterMs expected, or a range

sub is_problem
{
    my ($r, $status, $code, $type, %o) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my $name = $o{name} || $code;

    is($r->status, $status, "$name: status");
    is($r->header('Content-Type'), 'application/problem+json',
       "$name: Content-Type");
    is($r->header('Content-Language'), 'en', "$name: Content-Language");
    is($r->header('Content-Length'), length $r->body, "$name: length");
    is($r->header('Idempotent-Replayed'), undef, "$name: not a replay");

    my $json = $r->json;

    ok(ref $json eq 'HASH', "$name: valid JSON") or return;

    is($json->{status}, $status, "$name: member status");
    is(ref $json->{ok}, 'JSON::PP::Boolean', "$name: ok is a boolean");
    ok(!$json->{ok}, "$name: ok is false");
    ok(length $json->{title}, "$name: has a title");
    ok(length $json->{detail}, "$name: has a detail");
    is($json->{title}, $o{title}, "$name: title") if $o{title};

    my $slug = $code;
    $slug =~ s/^IDEMPOTENCY_//;
    $slug = lc $slug;
    $slug =~ tr/_/-/;
    is($json->{type}, $o{url} || "about:blank#idempotency-$slug",
       "$name: type");

    my $error = $json->{error};

    is($error->{code}, $code, "$name: error.code");
    is($error->{type}, $type, "$name: error.type");
    ok(length $error->{message}, "$name: error.message");
    is(ref $error->{details}, 'HASH', "$name: error.details");
    is(ref $error->{retryable}, 'JSON::PP::Boolean',
       "$name: error.retryable is a boolean");

    if (defined $o{retry}) {
        my ($min, $max) = ref $o{retry} ? @{ $o{retry} } : ($o{retry}) x 2;

        ok($error->{retryable}, "$name: is retryable");
        cmp_ok($error->{retryAfterMs}, '>=', $min, "$name: retryAfterMs");
        cmp_ok($error->{retryAfterMs}, '<=', $max, "$name: retryAfterMs");
        is($r->header('Retry-After'),
           int(($error->{retryAfterMs} + 999) / 1000), "$name: Retry-After");

    } else {
        ok(!$error->{retryable}, "$name: is not retryable");
        ok(!exists $error->{retryAfterMs}, "$name: no retryAfterMs");
        is($r->header('Retry-After'), undef, "$name: no Retry-After");
    }
}

run_tests();

__DATA__

=== TEST 1: the key is missing, malformed; conflict
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /422/ {
        idempotency                  $TEST_STORE;
        idempotency_conflict_status  422;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is_problem(http_post('/ok', 'x'), 400, 'IDEMPOTENCY_KEY_MISSING',
           'invalid_request', title => 'Idempotency-Key is missing');

is_problem(http_post('/ok', 'x', { 'Idempotency-Key' => $_ }), 400,
           'IDEMPOTENCY_KEY_INVALID', 'invalid_request', name => "<$_>")
    for '', '!', '"', 'k' x 256;

is_problem(http_post('/ok', 'x', [ ('Idempotency-Key' => 'k') x 2 ]), 400,
           'IDEMPOTENCY_KEY_INVALID', 'invalid_request', name => 'twice');

# the key is not repeated to whoever reads the answer
unlike(http_post('/ok', 'x', { 'Idempotency-Key' => 'se/cret' })->raw,
       qr/cret/, 'the key is not in the answer');

is(app_count('/ok'), 0, 'nothing ran');

for my $where ([ '', 409 ], [ '/422', 422 ]) {
    my ($path, $status) = @$where;
    my %key = ('Idempotency-Key' => new_key());

    http_post("$path/ok", 'x', \%key);
    my $r = http_post("$path/ok", 'y', \%key);

    is_problem($r, $status, 'IDEMPOTENCY_CONFLICT', 'conflict',
               title => 'Idempotency-Key is already used');
    is($r->json->{detail},
       'This Idempotency-Key was used before with a different request.',
       'detail');
    like($r->json->{error}{details}{original_time},
         qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'original_time');
}



=== TEST 2: the holder still runs
--- config
    idempotency_retry_after  2500ms;

    location / {
        idempotency              $TEST_STORE;
        idempotency_wait         0;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /default/ {
        idempotency              $TEST_STORE;
        idempotency_wait         0;
        idempotency_retry_after  5s;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /wait/ {
        idempotency              $TEST_STORE;
        idempotency_wait         300ms;
        idempotency_max_waiters  1;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $hold = sub {
    my $path = shift;
    my $key = new_key();
    my $c = send_post("$path/hold?op=$key", 'x', { 'Idempotency-Key' => $key });
    app_wait_parked($key);
    return ($c, "$path/hold?op=$key", { 'Idempotency-Key' => $key });
};

my ($c, $uri, $headers) = $hold->('');

is_problem(http_post($uri, 'x', $headers), 409, 'CONCURRENT_REQUEST',
           'concurrent', retry => 2500,
           title => 'A request is outstanding for this Idempotency-Key');

($c, $uri, $headers) = $hold->('/default');

is_problem(http_post($uri, 'x', $headers), 409, 'CONCURRENT_REQUEST',
           'concurrent', retry => 5000);

($c, $uri, $headers) = $hold->('/wait');
my $waiter = send_post($uri, 'x', $headers);
my $second = send_post($uri, 'x', $headers);

# one of them waits, and in vain
my ($refused, $timeout) = sort { $a->status <=> $b->status }
                          map { $_->read_response } $waiter, $second;

is_problem($refused, 429, 'TOO_MANY_WAITERS', 'too_many_requests',
           retry => 2500);
is_problem($timeout, 503, 'LOCK_TIMEOUT', 'service_unavailable',
           retry => 2500);

is(app_count($headers->{'Idempotency-Key'}), 1, 'ran once');



=== TEST 3: the outcome is unknown
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_lease            20s;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /hold/ {
        idempotency                  $TEST_STORE;
        idempotency_unknown_outcome  hold;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(http_post('/reset', 'x', \%key)->status, 502, 'reset');
is_problem(http_post('/reset', 'x', \%key), 409, 'OUTCOME_UNKNOWN',
           'unknown_outcome', retry => [ 5001, 20000 ], name => 'lease');
is(app_count('/reset'), 1, 'ran once');

%key = ('Idempotency-Key' => new_key());

is(http_post('/hold/reset', 'x', \%key)->status, 502, 'reset, hold');
is_problem(http_post('/hold/reset', 'x', \%key), 409, 'OUTCOME_UNKNOWN',
           'unknown_outcome', name => 'hold');
is(app_count('/hold/reset'), 1, 'ran once, hold');



=== TEST 4: there is no response to replay
--- config
    location / {
        idempotency               $TEST_STORE;
        idempotency_max_response  1k;
        idempotency_stream        pass;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

is(length http_post('/size?n=5000&op=large', 'x', \%key)->body, 5000, 'large');
is_problem(http_post('/size?n=5000&op=large', 'x', \%key), 507,
           'RESPONSE_TOO_LARGE', 'not_replayable');

%key = ('Idempotency-Key' => new_key());

is(http_post('/sse?n=1&op=sse', 'x', \%key)->status, 200, 'a stream');
is_problem(http_post('/sse?n=1&op=sse', 'x', \%key), 507,
           'RESPONSE_NOT_KEPT', 'not_replayable');

is(app_count('large'), 1, 'ran once');
is(app_count('sse'), 1, 'ran once, too');



=== TEST 5: documentation
--- config
    location / {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_documentation  https://example.com/docs#keys;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /var/ {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_documentation  https://$host/"docs"?lang=$arg_lang;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /uri/ {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_documentation  https://$host$uri;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /empty/ {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_documentation  $arg_doc;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_documentation  https://example.com/docs;
        idempotency_error_body     off;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $r = http_post('/ok', 'x');
is_problem($r, 400, 'IDEMPOTENCY_KEY_MISSING', 'invalid_request',
           url => 'https://example.com/docs#keys', name => 'fixed');
is($r->header('Link'), '<https://example.com/docs#keys>; rel="describedby"',
   'Link');

$r = http_post('/var/ok?lang=en', 'x');
is_problem($r, 400, 'IDEMPOTENCY_KEY_MISSING', 'invalid_request',
           url => 'https://localhost/%22docs%22?lang=en', name => 'a variable');
is($r->header('Link'),
   '<https://localhost/%22docs%22?lang=en>; rel="describedby"',
   'Link with a variable');

# $uri is decoded: what a client put there makes no header of its own
$r = http_post('/uri/%0d%0aX-Own:%20%3Cb%3E%c3%a9%2520', 'x');
my $encoded = 'https://localhost/uri/%0D%0AX-Own:%20%3Cb%3E%C3%A9%20';
is_problem($r, 400, 'IDEMPOTENCY_KEY_MISSING', 'invalid_request',
           url => $encoded, name => 'decoded');
is($r->header('Link'), "<$encoded>; rel=\"describedby\"", 'encoded again');
is($r->header('X-Own'), undef, 'no header of the client\'s making');

$r = http_post('/empty/ok', 'x');
is_problem($r, 400, 'IDEMPOTENCY_KEY_MISSING', 'invalid_request',
           name => 'empty');
is($r->header('Link'), undef, 'no Link');

# a URL of any length
my $long = 'https://example.com/' . 'x' x 3000;
$r = http_post("/empty/ok?doc=$long", 'x');
is_problem($r, 400, 'IDEMPOTENCY_KEY_MISSING', 'invalid_request',
           url => $long, name => 'long');

$r = http_post('/page/ok', 'x');
is($r->status, 400, 'nginx\'s own page');
is($r->header('Link'), '<https://example.com/docs>; rel="describedby"',
   'Link with it');

# nothing of it on a response that is none of ours
is(http_post('/ok', 'x', { 'Idempotency-Key' => 'k' })->header('Link'), undef,
   'not on a response');



=== TEST 6: error_page
--- config
    idempotency              $TEST_STORE;
    idempotency_error_body   off;
    idempotency_required     on;
    idempotency_wait         0;
    idempotency_retry_after  7s;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /static/ {
        error_page  400 409 /refused.html;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /refused.html {
        root        html;
    }
    location /changed/ {
        error_page  400 409 =418 /refused.html;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /named/ {
        error_page  400 409 @return;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @return {
        default_type  text/plain;
        return        200 "refused as $idempotency_status\n";
    }
    location /proxied/ {
        error_page  400 409 @app;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @app {
        rewrite     ^ /ok?op=page? break;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /path/ {
        error_page  400 409 /app/ok?op=page;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /ok200/ {
        error_page  400 409 =200 /app/ok?op=page;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /recursive/ {
        recursive_error_pages  on;
        error_page             400 409 = @recursive;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @recursive {
        recursive_error_pages  on;
        error_page             400 409 = @recursive;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        error_page             400 409 @off;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @off {
        idempotency            off;
        proxy_pass             http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /app/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /elsewhere/ {
        error_page  400 409 https://example.com/refused;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> refused.html
a page
--- client
# each location refuses in the access phase (no key), and in pre-content (a
# conflict)

my $refusals = sub {
    my $path = shift;
    my $key = new_key();

    http_post("$path/ok?op=$key", 'x', { 'Idempotency-Key' => $key });
    my @r = (http_post("$path/ok?op=none", 'x'),
             http_post("$path/ok?op=$key", 'y', { 'Idempotency-Key' => $key }));
    is(app_count($key), 1, "$path: ran once");
    is(app_count('none'), 0, "$path: nothing ran without a key");
    return @r;
};

my ($missing, $conflict) = $refusals->('');
is($missing->status, 400, 'no error_page: 400');
is($conflict->status, 409, 'no error_page: 409');
like($conflict->body, qr/<html>/, 'a page of nginx');
is($conflict->header('Content-Type'), 'text/html', 'its type');

for my $r ($refusals->('/static')) {
    like($r->status, qr/^4/, 'static: a refusal');
    is($r->body, "a page\n", 'static: the page');
}

for my $r ($refusals->('/changed')) {
    is($r->status, 418, 'static: another status');
    is($r->body, "a page\n", 'static: the page');
}

($missing, $conflict) = $refusals->('/named');
is($missing->status, 400, 'named: the status stays');
is($missing->body, "refused as INVALID\n", 'named: its answer');
is($conflict->status, 409, 'named: the status stays');
is($conflict->body, "refused as CONFLICT\n", 'named: its answer');

for my $path (qw(/proxied /path /ok200 /recursive /off)) {
    ($missing, $conflict) = $refusals->($path);

    is($missing->status, 400, "$path: refused again");
    is($conflict->status, 409, "$path: refused again");
    is($missing->header('X-App'), undef, "$path: not by the application");
    is($conflict->header('X-App'), undef, "$path: not by the application");
    is(app_count('page'), 0, "$path: the page did not run either");
}

($missing, $conflict) = $refusals->('/elsewhere');
is($missing->status, 302, 'sent elsewhere');
is($conflict->header('Location'), 'https://example.com/refused', 'there');

# what goes with the status stays with it
my $c = send_post('/static/hold?op=h', 'x', { 'Idempotency-Key' => 'h' });
app_wait_parked('h');
my $r = http_post('/static/hold?op=h', 'x', { 'Idempotency-Key' => 'h' });
is($r->status, 409, 'busy');
is($r->body, "a page\n", 'busy: the page');
is($r->header('Retry-After'), 7, 'busy: Retry-After');
$r = http_post('/hold?op=h', 'x', { 'Idempotency-Key' => 'h' });
is($r->status, 409, 'a conflict by URI');



=== TEST 7: error_page leaves a problem of ours alone
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        error_page            400 409 @app;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @app {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is_problem(http_post('/ok', 'x'), 400, 'IDEMPOTENCY_KEY_MISSING',
           'invalid_request');
is(app_count('/ok'), 0, 'nothing ran');



=== TEST 8: the connection after a refusal
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_required    on;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        idempotency             $TEST_STORE;
        idempotency_required    on;
        idempotency_error_body  off;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $large = 'x' x 500_000;

# with a page of nginx's own, a 400 ends the connection, as always there
is(http_post('/page/ok?op=a', $large)->status, 400, 'a page: refused');

for my $where ('', '/page') {
    my $c = connect_client();

    if ($where eq '') {

        # refused before its body was read: that is not taken for a request
        $c->request('POST', '/ok?op=a', "GET /evil HTTP/1.1\r\n\r\n");
        is($c->read_response->status, 400, 'refused');

        $c->request('POST', '/ok?op=a', $large);
        is($c->read_response->status, 400, 'refused, a large body');

        # a body that comes late, and chunked
        $c->send_part("POST /ok?op=a HTTP/1.1\r\nHost: localhost\r\n"
                      . "Transfer-Encoding: chunked\r\n\r\n5\r\nab");
        is($c->read_response->status, 400, 'refused, half a body');
        $c->send_part("cde\r\n0\r\n\r\n");

        # two at once
        $c->send_part("POST /ok?op=a HTTP/1.1\r\nHost: localhost\r\n"
                      . "Content-Length: 3\r\n\r\nabc"
                      . "POST /ok?op=second HTTP/1.1\r\nHost: localhost\r\n"
                      . "Idempotency-Key: second\r\n"
                      . "Content-Length: 1\r\n\r\nx");
        is($c->read_response->status, 400, 'pipelined, the first');
        is($c->read_response->body, "run 1\n", 'pipelined, the second');
    }

    my $key = new_key();
    $c->request('POST', "$where/ok?op=$key", 'x', { 'Idempotency-Key' => $key });
    is($c->read_response->body, "run 1\n", "$where: the next one runs");

    # refused after it
    $c->request('POST', "$where/ok?op=$key", $large,
                { 'Idempotency-Key' => $key });
    is($c->read_response->status, 409, "$where: a conflict");

    $c->request('POST', "$where/ok?op=$key", 'x', { 'Idempotency-Key' => $key });
    my $r = $c->read_response;
    is($r->body, "run 1\n", "$where: and the next is replayed");
    is($r->header('Idempotent-Replayed'), 'true', "$where: says so");
}

is(app_count('a'), 0, 'nothing of it ran');
is(app_count('/evil'), 0, 'nor what it carried');



=== TEST 9: HEAD, and Expect: 100-continue
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        idempotency_methods   HEAD POST;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $c = connect_client();
$c->send_part("HEAD /ok?op=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
my $head = '';
ok(wait_for(sub {
    $head = $c->read_some(1 + length $head, 0.05);
    $head =~ /\r\n\r\n/;
}), 'an answer to HEAD');
like($head, qr{^HTTP/1\.1 400 }, 'HEAD: status');
like($head, qr{^Content-Type: application/problem\+json\r$}m, 'HEAD: type');
like($head, qr{^Content-Length: [1-9]\d+\r$}m, 'HEAD: length of the body');
$c->request('POST', '/ok', 'x', { 'Idempotency-Key' => 'next' });
like($c->read_some(50 + length $head),
     qr{^\Q$head\EHTTP/1\.1 200 }, 'HEAD: no body before the next response');

# refused without waiting for the body
$c = connect_client();
$c->send_part("POST /ok?op=a HTTP/1.1\r\nHost: localhost\r\n"
              . "Idempotency-Key: !\r\nContent-Length: 5\r\n"
              . "Expect: 100-continue\r\n\r\n");
my $text = '';
ok(wait_for(sub {
    $text = $c->read_some(1 + length $text, 0.05);
    $text =~ /\}\}\}\n\z/;
}), 'an answer to Expect');
like($text, qr{^HTTP/1\.1 400 }, 'Expect: refused, not asked for the body');
like($text, qr/"IDEMPOTENCY_KEY_INVALID"/, 'Expect: code');

# a request that is let in is asked for its body
$c = connect_client();
$c->send_part("POST /echo?op=e HTTP/1.1\r\nHost: localhost\r\n"
              . "Idempotency-Key: e\r\nContent-Length: 5\r\n"
              . "Expect: 100-continue\r\n\r\n");
like($c->read_some(25), qr{^HTTP/1\.1 100 Continue\r\n\r\n}, 'goes on');
$c->send_part('hello');
ok(app_wait('e'), 'runs');
is(http_post('/echo?op=e', 'hello', { 'Idempotency-Key' => 'e' })
   ->header('Idempotent-Replayed'), 'true', 'the same request without it');

is(app_count('a'), 0, 'nothing ran that was refused');



=== TEST 10: nginx acts on a refusal as on any response
--- config
    location / {
        idempotency           $TEST_STORE;
        idempotency_required  on;
        add_header            X-Always yes always;
        add_header            X-Only   yes;
        gzip                  on;
        gzip_min_length       1;
        gzip_types            application/problem+json;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $r = http_post('/ok', 'x', { 'If-Modified-Since' => 'x', 'If-Match' => '"a"',
                                'Range' => 'bytes=0-1' });
is_problem($r, 400, 'IDEMPOTENCY_KEY_MISSING', 'invalid_request');
is($r->header('X-Always'), 'yes', 'add_header always');
is($r->header('X-Only'), undef, 'add_header for success');

$r = http_post('/ok', 'x', { 'Accept-Encoding' => 'gzip' });
is($r->status, 400, 'with gzip');



=== TEST 11: over HTTP/2
--- h2
--- config
    location / {
        idempotency             $TEST_STORE;
        idempotency_required    on;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        idempotency             $TEST_STORE;
        idempotency_required    on;
        idempotency_error_body  off;
        error_page              400 409 @app;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @app {
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();

for my $where ('', '/page') {
    my $r = $h2->response($h2->request('POST', "$where/ok?op=a", 'x' x 50_000));
    is($r->status, 400, "$where: refused");
    is($r->error_code, 'IDEMPOTENCY_KEY_MISSING', "$where: code")
        if $where eq '';

    # before its body is there
    my $id = $h2->request('POST', "$where/ok?op=a", undef, {}, more => 1);
    is($h2->response($id)->status, 400, "$where: refused, half a request");

    my %key = ('idempotency-key' => new_key());
    my $uri = "$where/ok?op=$key{'idempotency-key'}";
    $r = $h2->response($h2->request('POST', $uri, 'x', \%key));
    is($r->body, "run 1\n", "$where: the next runs");

    $r = $h2->response($h2->request('POST', $uri, 'y', \%key));
    is($r->status, 409, "$where: a conflict");

    $r = $h2->response($h2->request('POST', $uri, 'x', \%key));
    is($r->header('idempotent-replayed'), 'true', "$where: a replay");
    ok($h2->ping, "$where: the connection lives");
}

is(app_count('a'), 0, 'nothing ran that was refused');
