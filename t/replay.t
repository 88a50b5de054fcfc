# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A replay is the response of the first try: status and reason, every header in
# its order, every byte of the body, however the application had framed it and
# however nginx had buffered it.  What belongs to one connection or one moment
# is not part of it.  Also which responses are kept, and who has a say in that.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

# what a replay need not have in common with the original
sub own { qw(Date Connection Idempotent-Replayed X-Original-Request-Time) }
sub framing { own(), qw(Content-Length Transfer-Encoding) }


# a request, and its retry

sub twice
{
    my ($method, $uri, %headers) = @_;

    $headers{'Idempotency-Key'} = new_key();
    my $body = $method eq 'HEAD' || $method eq 'GET' ? undef : 'x';

    return map { http_request($method, $uri, $body, \%headers) } 1 .. 2;
}


sub is_replay
{
    my ($first, $retry, $name, @less) = @_;

    is($first->header('Idempotent-Replayed'), undef, "$name: the first ran");
    is($retry->header('Idempotent-Replayed'), 'true', "$name: replayed");
    is($retry->status . ' ' . $retry->reason,
       $first->status . ' ' . $first->reason, "$name: same status line");
    is($retry->header_lines(@less ? @less : own()),
       $first->header_lines(@less ? @less : own()), "$name: same headers");
    ok($retry->body eq $first->body, "$name: same body");
}


# whether responses of this status are kept

sub kept
{
    my $uri = shift;

    my ($first, $retry) = twice('POST', $uri);

    return $retry->header('Idempotent-Replayed') ? 'kept' : 'released';
}


run_tests();

__DATA__

=== TEST 1: status line, headers and bodies of all kinds
--- config
    proxy_http_version  1.1;
    proxy_set_header    Connection "";
    location / {
        idempotency          $TEST_STORE;
        idempotency_methods  POST HEAD GET;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($first, $retry) = twice('POST', '/headers?op=headers');

is($first->reason, 'Made It', 'a reason phrase of its own');
is_replay($first, $retry, 'headers');
is_deeply([ $retry->header('Set-Cookie') ],
          [ 'a=1; Path=/; HttpOnly', 'b=2, with comma; Path=/b' ],
          'two cookies stay two');
is_deeply([ $retry->header('X-Repeated') ], [ 'one', 'two' ], 'repeated');
is_deeply([ $retry->header('Link') ],
          [ '</a>; rel="next"', '</b>; rel="prev"' ], 'Link twice');
is($retry->header('Location'), '/things/1', 'Location');
is($retry->header('ETag'), '"v1"', 'ETag');
is($retry->header('Last-Modified'), 'Wed, 28 Jan 2026 10:00:00 GMT',
   'Last-Modified');
is($retry->header('WWW-Authenticate'), 'Basic realm="x"', 'WWW-Authenticate');
is($retry->header('X-Empty'), '', 'an empty header');
is($retry->header('X-Lower-case'), 'CaSe kept', 'case of names and values');
is(app_count('headers'), 1, 'ran once');

is_replay(twice('POST', '/ok?type=text/html'), 'no charset');
is_replay(twice('POST', '/ok?type=text/html;%20charset=KOI8-r'), 'charset');
is_replay(twice('POST', '/ok?type=text/html;%20charset=%22UTF-8%22'),
          'quoted charset');
is_replay(twice('POST', '/ok?type=multipart/mixed;%20boundary=a;%20charset=b'),
          'charset after another parameter');
is_replay(twice('POST', '/binary'), 'binary');
is_replay(twice('POST', '/size?n=0'), 'empty body');
is_replay(twice('POST', '/size?n=1'), 'one byte');
is_replay(twice('POST', '/status/404'), '404');
is_replay(twice('POST', '/status/303?header=Location:%20/there'), '303');
is_replay(twice('POST', '/status/302?header=Location:%20http://a.test/b'),
          '302');

# neither a length nor a body where there was none

($first, $retry) = twice('POST', '/204?header=X-Foo:%20bar');
is_replay($first, $retry, '204');
is($retry->header('Content-Length'), undef, '204 has no length');
is($retry->header('X-Foo'), 'bar', '204 has its headers');

($first, $retry) = twice('POST', '/status/304?header=ETag:%20%22a%22');
is($first->header('Content-Length'), 6, '304: the length of what it spares');
is_replay($first, $retry, '304');

is_replay(twice('HEAD', '/size?n=12345'), 'HEAD');
is_replay(twice('HEAD', '/size?n=12345&chunked=1'), 'HEAD, chunked',
          framing());
is_replay(twice('HEAD', '/headers'), 'HEAD, headers');
is_replay(twice('GET', '/headers'), 'GET');

# a connection can go on after a replay

my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/size?n=5000&op=alive', 'x', \%key);
is(length $c->read_response->body, 5000, 'on one connection');

for my $uri ('/size?n=5000&op=alive', '/size?n=5000&op=alive') {
    $c->request('POST', $uri, 'x', \%key);
    is(length $c->read_response->body, 5000, 'again');
}

is(app_count('alive'), 1, 'ran once');
--- no_error_log
[error]
[warn]



=== TEST 2: however it is framed and buffered
--- config
    proxy_http_version  1.1;
    proxy_set_header    Connection "";
    idempotency         $TEST_STORE;
    location / {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_buffering      off;
    }
    location /small/ {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_buffer_size    4k;
        proxy_buffers        4 4k;
        proxy_busy_buffers_size  4k;
        proxy_max_temp_file_size  0;
    }

    # all of the response goes through a file
    location /file/ {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_buffer_size    4k;
        proxy_buffers        4 4k;
        proxy_busy_buffers_size  4k;
        proxy_store          $TEST_NGINX_SERVER_ROOT/html/stored;
    }
    location /threads/ {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_buffer_size    4k;
        proxy_buffers        4 4k;
        proxy_busy_buffers_size  4k;
        aio                  threads;
        sendfile             on;
        proxy_store          $TEST_NGINX_SERVER_ROOT/html/stored;
    }
--- client
for my $where ('', '/unbuffered', '/small', '/file', '/threads') {
    for my $how ('', '&chunked=1', '&nolength=1') {
        my $name = "$where/size?n=300000$how";
        my ($first, $retry) = twice('POST', $name);

        is(length $first->body, 300000, "$name: whole");
        is_replay($first, $retry, $name, $how ? framing() : own());
        is($retry->header('Content-Length'), 300000, "$name: length");
        is(app_count("$where/size"), 1, "$name: ran once");
        app_reset();

        if ($where =~ /file|threads/) {
            my $file = "$ENV{TEST_NGINX_SERVROOT}/html/stored";

            is(-s $file, 300000, "$name: was in a file");
            unlink $file;
        }
    }

    is_replay(twice('POST', "$where/size?n=0&chunked=1"),
              "$where: empty, chunked", framing());
    is_replay(twice('POST', "$where/204"), "$where: 204");
    is_replay(twice('POST', "$where/binary?chunked=1"),
              "$where: binary, chunked", framing());

    # the second half comes later

    my %key = ('Idempotency-Key' => new_key());
    my $c = send_post("$where/size?n=20000&op=half&hold=body", 'x', \%key);

    is(app_wait_parked('half'), 1, "$where: half of it came");
    app_release('half');
    my $first = $c->read_response;

    is(length $first->body, 20000, "$where: two halves");
    is_replay($first, http_post("$where/size?n=20000&op=half&hold=body", 'x',
                                \%key), "$where: two halves");
    app_reset();
}
--- no_error_log
[error]



=== TEST 3: what is not part of the response
--- config
    location / {
        idempotency        $TEST_STORE;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_pass_header  Date;
        proxy_pass_header  Server;
    }
--- client
my $then = 'Sun, 06 Nov 1994 08:49:37 GMT';
my @hop = qw(Proxy-Connection TE Trailer Upgrade);
my $args = join '&', map { s/ /%20/gr } "header=Date: $then",
           'header=Server: app/1', (map { "header=$_: x" } @hop);

my ($first, $retry) = twice('POST', "/ok?$args");

is($first->header('Date'), $then, "the application's date");
isnt($retry->header('Date'), $then, 'is not replayed');
is(scalar(my @dates = $retry->header('Date')), 1, 'one date');
is_deeply([ $retry->header('Server') ], [ 'app/1' ],
          "the application's server is");
is($retry->header($_), undef, "$_ is not replayed") for @hop;
is_replay($first, $retry, 'the rest', own(), @hop);



=== TEST 4: what a replay says of itself
--- config
    location / {
        idempotency          $TEST_STORE;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /quiet/ {
        idempotency          $TEST_STORE;
        idempotency_headers  off;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $before = int Time::HiRes::time();
my $c = send_post('/hold?op=time', 'x', \%key);
app_wait_parked('time');
my $after = int Time::HiRes::time();

# into the next second, so that no other time can be taken for this one
wait_for(sub { int Time::HiRes::time() > $after }, 5);
app_release('time');

my $first = $c->read_response;
my $retry = http_post('/hold?op=time', 'x', \%key);

is($first->header('X-Original-Request-Time'), undef, 'the first has no time');
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');

my $time = $retry->header('X-Original-Request-Time');
like($time, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/, 'ISO 8601');

my @possible = map { my @t = gmtime $_;
                     sprintf '%04d-%02d-%02dT%02d:%02d:%02dZ', $t[5] + 1900,
                             $t[4] + 1, @t[3, 2, 1, 0] } $before .. $after;
ok((grep { $_ eq $time } @possible), 'the time of the original')
    or diag("$time is none of @possible");

is(http_post('/hold?op=time', 'x', \%key)->header('X-Original-Request-Time'),
   $time, 'each time');

($first, $retry) = twice('POST', '/quiet/headers?op=quiet');

is(app_count('quiet'), 1, 'quiet: replayed');
is($retry->header('Idempotent-Replayed'), undef, 'quiet: no header of ours');
is($retry->header('X-Original-Request-Time'), undef, 'quiet: nor the time');
is($retry->header_lines('Date'), $first->header_lines('Date'),
   'quiet: not to be told from the first');



=== TEST 5: headers that are not to be stored
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_hide_header  Set-Cookie x-repeated ETag;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($first, $retry) = twice('POST', '/headers');
my @hidden = qw(Set-Cookie X-Repeated ETag);

is(scalar(my @a = $first->header($_)), $_ eq 'ETag' ? 1 : 2, "$_ goes out")
    for @hidden;
is($retry->header($_), undef, "$_ is not replayed") for @hidden;
is_replay($first, $retry, 'the rest', own(), @hidden);



=== TEST 6: another status for replays of success
--- config
    location / {
        idempotency                $TEST_STORE;
        idempotency_replay_status  200;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /original/ {
        idempotency                $TEST_STORE;
        idempotency_replay_status  original;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my ($first, $retry) = twice('POST', '/headers');

is($first->status, 201, 'made');
is($retry->status, 200, 'replayed with another status');
is($retry->reason, 'OK', 'and its reason');
is($retry->header_lines(own()), $first->header_lines(own()), 'same headers');
is($retry->body, $first->body, 'same body');

($first, $retry) = twice('POST', '/status/404');
is($retry->status, 404, 'no success: its own');
is($retry->header('Idempotent-Replayed'), 'true', 'replayed');

($first, $retry) = twice('POST', '/status/303?header=Location:%20/a');
is($retry->status, 303, 'a redirect: its own');

($first, $retry) = twice('POST', '/original/headers');
is_replay($first, $retry, 'original');



=== TEST 7: which statuses are kept
--- http_config
    log_format  status  '$arg_op $idempotency_status';
--- config
    access_log  logs/access.log status;
    idempotency  $TEST_STORE;
    location / {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /some/ {
        idempotency_keep_status  2xx !202 404 500;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /not-first/ {
        idempotency_keep_status  !201 2xx;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /any/ {
        idempotency_keep_status  any;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /less/ {
        idempotency_keep_status  !404 !3xx;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /nearly/ {
        idempotency_keep_status  any !5xx !404;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %kept = (
    '' => [ qw(200 201 202 203 206 299 301 302 303 307 308 400 402 404 405 406
               410 411 412 413 415 418 422 424 451 499) ],
    '/some' => [ qw(200 201 204 404 500) ],
    '/not-first' => [ qw(200 202) ],
    '/any' => [ qw(200 302 401 403 408 409 429 500 501 502 503 504 599) ],
    '/less' => [ qw(200 201 400 422) ],
    '/nearly' => [ qw(200 302 401 429) ],
);
my %released = (
    '' => [ qw(401 403 407 408 409 423 425 429 500 501 503 507 599) ],
    '/some' => [ qw(202 301 400 403 501 503) ],
    '/not-first' => [ 201 ],
    '/less' => [ qw(302 401 404 429 500) ],
    '/nearly' => [ qw(500 503 404) ],
);

for my $where (sort keys %kept) {
    is(join(' ', grep { kept("$where/status/$_") eq 'kept' }
                 @{ $kept{$where} }),
       join(' ', @{ $kept{$where} }), "'$where': kept");
    is(join(' ', grep { kept("$where/status/$_") eq 'released' }
                 @{ $released{$where} || [] }),
       join(' ', @{ $released{$where} || [] }), "'$where': released");
}

my ($first, $retry) = twice('POST', '/status/503?op=again');
is($retry->body, "run 2\n", 'what is not kept runs again');
is(app_count('again'), 2, 'at the application');

twice('POST', '/status/422?op=kept');
access_log_like(qr/^again RELEASED\nagain RELEASED$/m, 'status: released');
access_log_like(qr/^kept EXECUTED\nkept REPLAYED$/m, 'status: kept');



=== TEST 8: the application has a say
--- config
    location / {
        idempotency      $TEST_STORE;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency      $TEST_STORE;
        idempotency_ttl  500ms;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $header = 'header=X-Idempotency-Store:%20';

my ($first, $retry) = twice('POST', "/ok?op=off&${header}off");

is($first->body, "run 1\n", 'off: ran');
is($first->header('X-Idempotency-Store'), undef, 'off: the header is ours');
is($retry->body, "run 2\n", 'off: ran again');
is($retry->header('Idempotent-Replayed'), undef, 'off: no replay');
is($retry->header('X-App'), 1, 'off: the other headers are there');

($first, $retry) = twice('POST', "/status/503?${header}60");
is($first->header('X-Idempotency-Store'), undef, 'not kept: removed as well');

# the response is a stream: nothing else differs

($first, $retry) = twice('POST', "/sse?n=1&op=sse&${header}off");
is($first->header('X-Idempotency-Store'), undef, 'stream: removed as well');
is($retry->status, 200, 'stream: and off means off');
is(app_count('sse'), 2, 'stream: ran again');

# for how long: shorter and longer than it would have been

my %short = ('Idempotency-Key' => new_key());
my %long = ('Idempotency-Key' => new_key());
my $short = "/ok?op=two&${header}2";
my $long = "/short/ok?op=hour&${header}3600";

is(http_post($short, 'x', \%short)->header('X-Idempotency-Store'), undef,
   'seconds: the header is ours');
is(http_post($short, 'x', \%short)->body, "run 1\n", 'replayed');
is(http_post($long, 'x', \%long)->body, "run 1\n", 'and another');

ok(wait_for(sub { http_post($short, 'x', \%short)->body eq "run 2\n" }, 8),
   'runs again when the seconds are over');

$retry = http_post($long, 'x', \%long);
is($retry->header('Idempotent-Replayed'), 'true', 'longer than the ttl');
is($retry->header('X-Idempotency-Store'), undef, 'not replayed');

# neither: it is kept, and that is said

($first, $retry) = twice('POST', "/ok?op=odd&${header}soon");
is($retry->header('Idempotent-Replayed'), 'true', 'odd value: kept');
is($first->header('X-Idempotency-Store'), undef, 'odd value: removed');
error_log_like(qr/\[warn\] .*"X-Idempotency-Store: soon"/, 'odd value: said');

# without a key, and with a method that is not covered, it is not for the client

$first = http_post("/ok?op=without&${header}off", 'x', {});
is($first->header('X-Idempotency-Store'), undef, 'no key: removed');
is($first->header('X-App'), 1, 'no key: the others are there');
is(http_get("/ok?op=get&${header}60")->header('X-Idempotency-Store'), undef,
   'another method: removed');



=== TEST 9: the response to a HEAD is none to another method
--- config
    idempotency              $TEST_STORE;
    idempotency_methods      GET HEAD POST;
    idempotency_fingerprint  off;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $uri ('/size?n=1000', '/size?n=1000&chunked=1') {
    for my $method ('GET', 'POST') {
        my %key = ('Idempotency-Key' => new_key());
        my $op = new_key();
        my $name = "$uri, $method";

        is(http_request('HEAD', "$uri&op=$op", undef, \%key)->status, 200,
           "$name: a HEAD");

        my $r = http_request($method, "$uri&op=$op", 'x', \%key);

        is($r->error_code, 'IDEMPOTENCY_CONFLICT', "$name: a conflict");
        unlike($r->body, qr/original_time/, "$name: that tells nothing");

        is(http_request('HEAD', "$uri&op=$op", undef, \%key)
               ->header('Idempotent-Replayed'), 'true', "$name: HEAD again");
        is(app_count($op), 1, "$name: ran once");

        # the other way there is all that a HEAD wants

        %key = ('Idempotency-Key' => new_key());

        my $first = http_request($method, $uri, 'x', \%key);
        my $retry = http_request('HEAD', $uri, undef, \%key);

        is($retry->header('Idempotent-Replayed'), 'true',
           "$name, then HEAD: replayed");
        is($retry->header('Content-Length'), $first->header('Content-Length'),
           "$name, then HEAD: its length");
        is($retry->body, '', "$name, then HEAD: no body");
    }
}

# a status, or a length, without a body is a whole response

for my $uri ('/204?x=1', '/size?n=0') {
    my %key = ('Idempotency-Key' => new_key());

    my $first = http_request('HEAD', $uri, undef, \%key);
    my $retry = http_request('GET', $uri, undef, \%key);

    is($retry->header('Idempotent-Replayed'), 'true', "$uri: replayed");
    is($retry->status, $first->status, "$uri: status");
    is($retry->body, '', "$uri: no body");
}
