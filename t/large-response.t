# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A response that is larger than idempotency_max_response, or that has no end
# to wait for, goes through as if the module were not there: every byte, as it
# comes.  That it ran is still remembered, so its retry is told why there is
# nothing to replay, and does not run again.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# the body that the application makes in its first run

sub body_of
{
    my $n = shift;

    my $line = join('', 'a' .. 'z', 0 .. 9) . "\n";

    return substr 'run 1 ' . $line x (1 + int($n / length $line)), 0, $n;
}


sub is_refused
{
    my ($retry, $code, $name) = @_;

    is($retry->status, 507, "$name: refused");
    is($retry->error_code, $code, "$name: $code");
    return if $retry->error_code ne $code;

    my $error = $retry->json->{error};
    is($error->{type}, 'not_replayable', "$name: type");
    ok(!$error->{retryable}, "$name: not to be tried again");
    is($retry->header('Retry-After'), undef, "$name: at no time");
    like($error->{details}{original_time}, qr/^\d{4}-.*Z$/, "$name: when");
}

run_tests();

__DATA__

=== TEST 1: too large, by its length and while it comes
--- http_config
    log_format  status  '$arg_op $idempotency_status';
--- config
    access_log  logs/access.log status;
    proxy_http_version        1.1;
    proxy_set_header          Connection "";
    idempotency_max_response  10k;

    location / {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /buffered/ {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        idempotency      $TEST_STORE;
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /file/ {
        idempotency   $TEST_STORE;
        proxy_buffer_size        4k;
        proxy_buffers            4 4k;
        proxy_busy_buffers_size  4k;
        proxy_store   $TEST_NGINX_SERVER_ROOT/html/stored;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where ('/buffered', '/unbuffered', '/file') {
    for my $how ('', '&chunked=1', '&nolength=1') {
        my $name = "$where$how";
        my %key = ('Idempotency-Key' => new_key());
        my $uri = "$where/size?n=300000&op=$key{'Idempotency-Key'}$how";

        my $untouched = http_post("/size?n=300000&op=other$name$how", 'x');
        my $first = http_post($uri, 'x', \%key);
        my $retry = http_post($uri, 'x', \%key);

        is($first->status, 200, "$name: ran");
        ok($first->body eq body_of(300_000), "$name: every byte");
        is($first->header_lines('Date'), $untouched->header_lines('Date'),
           "$name: every header");
        is_refused($retry, 'RESPONSE_TOO_LARGE', $name);
        is(app_count($key{'Idempotency-Key'}), 1, "$name: ran once");
        access_log_like(qr/^(?:$key{'Idempotency-Key'}\ TOO_LARGE\n){2}/m,
                        "$name: and said so");

        is(http_post($uri, 'y', \%key)->error_code, 'IDEMPOTENCY_CONFLICT',
           "$name: still knows its request");
    }
}

error_log_like(qr/\[warn\] .*a response is too large to be kept/, 'logged');



=== TEST 2: what else is said of a large response
--- config
    location / {
        idempotency               $TEST_STORE;
        idempotency_methods       POST HEAD;
        idempotency_max_response  10k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
# a status that is not kept is not, however large

my %key = ('Idempotency-Key' => new_key());
for my $run (1, 2) {
    my $r = http_post('/status/503?n=20000', 'x', \%key);
    is($r->status, 503, "503: run $run");
    like($r->body, qr/^run $run /, "503: ran again");
}

# and so if the application says so

%key = ('Idempotency-Key' => new_key());
for my $run (1, 2) {
    my $r = http_post('/size?n=20000&header=X-Idempotency-Store:%20off', 'x',
                      \%key);
    is($r->header('X-Idempotency-Store'), undef, "off: removed");
    like($r->body, qr/^run $run /, "off: ran again");
}

# what is not sent is not large

%key = ('Idempotency-Key' => new_key());
my $first = http_request('HEAD', '/size?n=20000&op=head', undef, \%key);
my $retry = http_request('HEAD', '/size?n=20000&op=head', undef, \%key);
is($first->header('Content-Length'), 20000, 'HEAD');
is($retry->header('Idempotent-Replayed'), 'true', 'HEAD: kept');
is($retry->header('Content-Length'), 20000, 'HEAD: with its length');

# a large header counts

my $large = '&header=X-Large:%20' . 'x' x 3000;
%key = ('Idempotency-Key' => new_key());
my $uri = "/size?n=5000&op=header$large";
is(length http_post($uri, 'x', \%key)->body, 5000, 'a large header');
is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
   'still small enough');
$uri = "/size?n=8000&op=header$large";
%key = ('Idempotency-Key' => new_key());
is(length http_post($uri, 'x', \%key)->body, 8000, 'a large header and body');
is_refused(http_post($uri, 'x', \%key), 'RESPONSE_TOO_LARGE',
           'together too large');



=== TEST 3: exactly at the limit
--- config
    location / {
        idempotency               $TEST_STORE;
        idempotency_max_response  $arg_max;
        proxy_http_version        1.1;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
sub kept
{
    my ($max, $uri) = @_;

    my %key = ('Idempotency-Key' => new_key());
    http_post("$uri&max=$max", 'x', \%key);

    return http_post("$uri&max=$max", 'x', \%key)->status == 200;
}

# the smallest limit under which it is kept

sub limit_of
{
    my $uri = shift;
    my ($no, $yes) = (4000, 8000);

    ok(!kept($no, $uri) && kept($yes, $uri), "$uri: somewhere between");

    while ($yes - $no > 1) {
        my $middle = int(($no + $yes) / 2);
        kept($middle, $uri) ? ($yes = $middle) : ($no = $middle);
    }

    return $yes;
}

my $limit = limit_of('/size?n=5000');

cmp_ok($limit, '>', 5000 + length('text/plain') + length('X-App1'),
       'header and body count');
cmp_ok($limit, '<', 5500, 'and little else');

ok(kept($limit + 1, '/size?n=5001'), 'one byte of body more, kept');
ok(!kept($limit, '/size?n=5001'), 'is one byte more');
ok(kept($limit, '/size?n=5000&chunked=1'), 'chunked, at the limit');
ok(!kept($limit - 1, '/size?n=5000&chunked=1'), 'chunked, beyond');
ok(!kept($limit, '/size?n=5000&header=X-A:%20b'), 'a header more');

# a value that is none

is(kept('much', '/size?n=5000'), 1, 'the default then');
error_log_like(qr/"idempotency_max_response" evaluates to "much"/, 'and said');



=== TEST 4: it comes as it comes
--- config
    idempotency               $TEST_STORE;
    idempotency_max_response  10k;
    proxy_http_version        1.1;
    proxy_set_header          Connection "";
    location / {
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_buffering  off;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $where ('', '/unbuffered') {
    for my $how ('', '&chunked=1') {
        my $name = "'$where$how'";
        my %key = ('Idempotency-Key' => new_key());
        my $uri = "$where/size?n=200000&hold=body&op=half$how";

        my $c = send_post($uri, 'x', \%key);
        app_wait_parked('half');
        cmp_ok(length $c->read_some(90_000), '>=', 90_000, "$name: begins");

        is_refused(http_post($uri, 'x', \%key), 'RESPONSE_TOO_LARGE',
                   "$name, still under way");

        app_release('half');
        ok($c->read_response->body eq body_of(200_000), "$name: every byte");
        is(app_count('half'), 1, "$name: ran once");
        app_reset();
    }
}

# one without an end, that nobody announced as such

my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/stream', 'x', \%key);

cmp_ok(length $c->read_some(20_000), '>=', 20_000, 'endless');
is_refused(http_post('/stream', 'x', \%key), 'RESPONSE_TOO_LARGE', 'endless');
$c->abort;
is(app_wait_closed('/stream'), 1, 'its client gone, it ends');



=== TEST 5: a client that reads late
--- http_config
    server {
    listen       127.0.0.1:$TEST_NGINX_PORT_2 sndbuf=16k;
    server_name  localhost;
    location / {
        idempotency               $TEST_STORE;
        idempotency_max_response  100k;
        proxy_buffer_size         4k;
        proxy_buffers             8 4k;
        proxy_busy_buffers_size   8k;
        sendfile                  on;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    }
--- config
--- client
my @port = (port => $ENV{TEST_NGINX_PORT_2});

for my $how ('', '&nolength=1') {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "/size?n=3000000&op=late$how";

    my $c = send_post($uri, 'x', \%key, @port);

    error_log_like(qr/response is buffered to a temporary file .*late$how /,
                   "'$how': spooled");
    ok($c->read_response(30)->body eq body_of(3_000_000),
       "'$how': every byte");
    is_refused(http_post($uri, 'x', \%key, @port), 'RESPONSE_TOO_LARGE',
               "'$how'");
    app_reset();
}



=== TEST 6: streams that are not to be kept
--- http_config
    log_format  status  '$arg_op $idempotency_status';
--- config
    access_log  logs/access.log status;
    idempotency         $TEST_STORE;
    idempotency_stream  pass;
    location / {
        proxy_pass      http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_buffering off;
        proxy_pass      http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /fcgi/ {
        fastcgi_pass    127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param   REQUEST_METHOD  $request_method;
        fastcgi_param   REQUEST_URI     $request_uri;
        fastcgi_param   CONTENT_LENGTH  $content_length;
    }
--- client
# events, without an end

my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/unbuffered/sse?n=0&op=sse', 'x', \%key);

ok(wait_for(sub { $c->read_some(length($c->{in}) + 1) =~ /event 3\n/ }, 10),
   'events arrive while there are more');
like($c->{in}, qr{^HTTP/1.1 200 }, 'after a header');

my $retry = http_post('/unbuffered/sse?n=0&op=sse', 'x', \%key);
is_refused($retry, 'RESPONSE_NOT_KEPT', 'events');
is(app_count('sse'), 1, 'events: ran once');
is(http_post('/unbuffered/sse?n=0&op=sse', 'y', \%key)->error_code,
   'IDEMPOTENCY_CONFLICT', 'events: still knows its request');

$c->abort;
is(app_wait_closed('sse'), 1, 'events: their client gone, they end');

# events, with an end

%key = ('Idempotency-Key' => new_key());
my $first = http_post('/sse?n=3&op=three', 'x', \%key);
is($first->body, join('', map { "data: run 1 event $_\n\n" } 1 .. 3),
   'three events');
is($first->header('Cache-Control'), 'no-cache', 'and their headers');
is_refused(http_post('/sse?n=3&op=three', 'x', \%key), 'RESPONSE_NOT_KEPT',
           'three events');

# said in other words

for my $how ('type=text/event-stream;%20charset=utf-8',
             'type=Text/Event-Stream', 'header=X-Accel-Buffering:%20no',
             'header=x-accel-buffering:%20No')
{
    %key = ('Idempotency-Key' => new_key());
    my $uri = "/size?n=10000&hold=body&op=half&$how";

    my $c = send_post($uri, 'x', \%key);
    app_wait_parked('half');
    # as much as nginx buffers is not sent
    cmp_ok(length $c->read_some(4000), '>=', 4000, "$how: begins");
    is_refused(http_post($uri, 'x', \%key), 'RESPONSE_NOT_KEPT',
               "$how, still under way");
    app_release('half');
    ok($c->read_response->body eq body_of(10_000), "$how: every byte");
    is_refused(http_post($uri, 'x', \%key), 'RESPONSE_NOT_KEPT',
               "$how, at its end");
    is(app_count('half'), 1, "$how: ran once");
    app_reset();
}

# not a stream

for my $how ('type=text/event-stream-not', 'type=text/event',
             'header=X-Accel-Buffering:%20yes')
{
    %key = ('Idempotency-Key' => new_key());
    my $uri = "/ok?op=not&$how";
    http_post($uri, 'x', \%key);
    is(http_post($uri, 'x', \%key)->header('Idempotent-Replayed'), 'true',
       "$how: kept");
}

# of another protocol, and of a status that is not kept

%key = ('Idempotency-Key' => new_key());
my $uri = '/fcgi/ok?header=X-Accel-Buffering:%20no';
is(http_post($uri, 'x', \%key)->body, "run 1\n", 'FastCGI');
is_refused(http_post($uri, 'x', \%key), 'RESPONSE_NOT_KEPT', 'FastCGI');

%key = ('Idempotency-Key' => new_key());
$uri = '/status/503?type=text/event-stream';
is(http_post($uri, 'x', \%key)->body, "run $_\n", "503: run $_") for 1, 2;

error_log_like(qr/\[warn\] .*a response is an endless stream/, 'logged');



=== TEST 7: a stream ends with its client, also where nothing comes
--- h2
--- config
    idempotency               $TEST_STORE;
    idempotency_stream        pass;
    idempotency_max_response  10k;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $uri ('/size?n=10000&hold=body&type=text/event-stream&op=idle',
             '/size?n=20000&hold=body&op=idle')
{
    for my $how ('abort', 'reset') {
        my $c = send_post($uri, 'x', { 'Idempotency-Key' => new_key() });

        app_wait_parked('idle');
        $c->read_some(4000);
        $c->$how;
        is(app_wait_closed('idle'), 1, "$uri: closed by the client ($how)");
        app_reset();
    }

    my $h2 = h2_connect();
    my $id = $h2->request('POST', $uri, 'x',
                          { 'idempotency-key' => new_key() });
    app_wait_parked('idle');
    $h2->body_so_far($id, 3000);
    $h2->rst($id);
    is(app_wait_closed('idle'), 1, "$uri: reset by an HTTP/2 client");
    is($h2->ping, 1, 'whose connection lives on');
    app_reset();
}



=== TEST 8: an upgraded connection
--- config
    location / {
        idempotency          $TEST_STORE;
        idempotency_methods  GET POST;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_http_version   1.1;
        proxy_set_header     Upgrade     $http_upgrade;
        proxy_set_header     Connection  "upgrade";
    }
--- client
for my $method ('POST', 'GET') {
    my %headers = ('Idempotency-Key' => new_key(), Upgrade => 'test',
                   Connection => 'Upgrade');

    my $c = send_request($method, "/upgrade?op=$method", undef, \%headers);

    is($c->read_response->status, 101, "$method: upgraded");
    $c->send_part('hello');
    is($c->read_some(5), 'hello', "$method: echoed");

    is_refused(http_request($method, "/upgrade?op=$method", undef, \%headers),
               'RESPONSE_NOT_KEPT', $method);
    is(app_count($method), 1, "$method: ran once");

    $c->send_part(' again');
    is($c->read_some(11), 'hello again', "$method: goes on");
}



=== TEST 9: what is not kept may run again when it is through, not before
--- config
    idempotency               $TEST_STORE;
    idempotency_max_response  10k;
    idempotency_wait          0;
    idempotency_lease         1s;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /hold/ {
        idempotency_unknown_outcome  hold;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency_stream    pass;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $off = 'header=X-Idempotency-Store:%20off';

for my $uri ('/status/503?n=40000', '/status/503?n=40000&chunked=1',
             "/ok?n=40000&$off", "/ok?n=40000&chunked=1&$off",
             '/pass/status/503?n=40000&type=text/event-stream',
             "/pass/ok?n=40000&type=text/event-stream&$off")
{
    my %key = ('Idempotency-Key' => new_key());
    my $to = "$uri&hold=body&op=h";

    my $c = send_post($to, 'x', \%key);
    app_wait_parked('h');
    cmp_ok(length $c->read_some(1000), '>=', 1000, "$uri: it goes out");

    select undef, undef, undef, 1.5;

    is(http_post($to, 'x', \%key)->error_code, 'CONCURRENT_REQUEST',
       "$uri: still runs, longer than a lease");
    is(app_count('h'), 1, "$uri: and did not run beside it");

    app_release('h');
    $c->read_response;

    my $d = send_post($to, 'x', \%key);
    ok(app_wait('h', 2), "$uri: through, so that a retry runs");
    app_release('h');
    $d->read_response;
    app_reset();
}

# ... unless it broke off

for my $uri ('/hold/truncate?status=503&n=40000',
             '/hold/truncate?status=503&n=40000&chunked=1',
             "/hold/truncate?n=40000&$off")
{
    my %key = ('Idempotency-Key' => new_key());

    my $first = http_post("$uri&op=b", 'x', \%key);

    ok($first->truncated, "$uri: broke off");
    is(http_post("$uri&op=b", 'x', \%key)->error_code, 'OUTCOME_UNKNOWN',
       "$uri: unknown") for 1 .. 2;
    is(app_count('b'), 1, "$uri: ran once");
    app_reset();
}



=== TEST 10: the log has one line, and then a count
--- workers: 1
--- config
    idempotency               $TEST_STORE;
    idempotency_max_response  1k;
    proxy_buffering           off;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency_stream    pass;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $n (1 .. 20) {
    is(length http_post("/size?n=5000&op=l$n", 'x', { 'Idempotency-Key' => new_key() })->body,
       5000, "large, $n");
    is(http_post("/pass/size?n=10&op=s$n&header=X-Accel-Buffering:%20no", 'x',
                 { 'Idempotency-Key' => new_key() })->status, 200, "a stream, $n");
}

for ('too large to be kept', 'an endless stream, not to be kept') {
    error_log_like(qr/\[warn\] [^\n]*idempotency: a response is $_, its retry is refused, record [0-9a-f]{16}/,
                   "$_: the first has its record");
    error_log_like(qr/idempotency: a response is $_, its retry is refused: \d+ more in the last second/,
                   'and the others are counted');
    cmp_ok(scalar(() = error_log() =~ /$_/g), '<=', 6, 'in few lines');
}
