# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A client that goes away, however and whenever it does, ends neither the
# execution nor what is made of it: the response is captured and stored, and
# the retry gets it.  Before the request was there as a whole nothing was
# begun, so nothing is left.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $config = <<'_EOC_';
    idempotency               $TEST_STORE;
    idempotency_wait          0;
    idempotency_max_response  2m;
    add_header                X-Status  $idempotency_status  always;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_buffering       off;
        proxy_http_version    1.1;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /streamed/ {
        proxy_request_buffering  off;
        proxy_http_version    1.1;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /fcgi/ {
        fastcgi_pass          127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param         REQUEST_METHOD  $request_method;
        fastcgi_param         REQUEST_URI     $request_uri;
        fastcgi_param         CONTENT_LENGTH  $content_length;
    }
    location /waiting/ {
        idempotency_wait      10s;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /small/ {
        idempotency_max_response  10k;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /sync {
        idempotency           off;
        return                204;
    }
_EOC_


# with one worker: what came to nginx before was seen when this is answered

sub seen_by_nginx { http_get('/sync') for 1 .. 2 }


# The ways to go.  Each takes method, URI, body and headers, sends the request,
# and returns the code that leaves.

our %ways = (
    close => sub {
        my $c = send_request(@_);
        return sub { $c->abort };
    },
    RST => sub {
        my $c = send_request(@_);
        return sub { $c->reset };
    },
    'half-close' => sub {
        my $c = send_request(@_);
        return sub { $c->finish_sending };
    },
    RST_STREAM => sub {
        my $h2 = h2_connect();
        my $id = $h2->request(@_);
        return sub { $h2->rst($id); $h2->ping };
    },
    'HTTP/2 close' => sub {
        my $h2 = h2_connect();
        $h2->request(@_);
        return sub { $h2->abort };
    },
    'HTTP/2 RST' => sub {
        my $h2 = h2_connect();
        $h2->request(@_);
        return sub { $h2->reset };
    },
);


# The application is held at some point, the client leaves, the application
# goes on.

sub leave
{
    my ($uri, $how, %o) = @_;

    my $method = $o{method} || 'POST';
    my %key = ('Idempotency-Key' => new_key());
    my $op = 'op' . ++(our $ops);
    my $name = "$method $uri, $how";

    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$op";

    my $go = $ways{$how}->($method, $uri, 'x', \%key);
    is(app_wait_parked($op), 1, "$name: runs");
    seen_by_nginx();

    $go->();
    seen_by_nginx();

    is(http_request($method, $uri, 'x', \%key)->error_code,
       'CONCURRENT_REQUEST', "$name: still runs");
    is(app_closed($op), 0, "$name: not aborted");
    app_release($op);

    # until the response is there

    my $r;
    wait_for(sub {
        $r = http_request($method, $uri, 'x', \%key);
        return $r->error_code ne 'CONCURRENT_REQUEST';
    }, 5);

    is(app_closed($op), 0, "$name: ended in order");
    is(app_count($op), $o{runs} || 1, "$name: ran once");

    return $r;
}

run_tests();

__DATA__

=== TEST 1: before the response
--- h2
--- config eval: $::config
--- client
for my $how (sort keys %::ways) {
    for my $uri ('/hold', '/unbuffered/hold') {
        my $r = leave($uri, $how);
        is($r->status, 200, "$how: answered");
        is($r->body, "run 1\n", "$how: replayed");
        is($r->header('Idempotent-Replayed'), 'true', "$how: says so");
    }
}

is(leave('/hold', 'RST', method => $_)->body, "run 1\n", "$_: replayed")
    for qw(PUT PATCH DELETE);
is(leave('/fcgi/ok?hold=1', $_)->body, "run 1\n", "fastcgi: replayed")
    for qw(RST RST_STREAM);
is(leave('/hold?status=404', 'RST')->status, 404, 'a 404 is kept');



=== TEST 2: during the response
--- h2
--- config eval: $::config
--- client
for my $how (sort keys %::ways) {
    for my $uri ('/size?n=5000&hold=body', '/size?n=5000&hold=body&chunked=1',
                 '/size?n=500000&hold=body',
                 '/unbuffered/size?n=5000&hold=body',
                 '/unbuffered/size?n=500000&hold=body&chunked=1')
    {
        my ($n) = $uri =~ /n=(\d+)/;
        my $r = leave($uri, $how);

        is(length $r->body, $n, "$uri, $how: all of it");
        like($r->body, qr/^run 1 /, "$uri, $how: of the first run");
        is($r->header('Idempotent-Replayed'), 'true', "$uri, $how: replayed");
    }
}



=== TEST 3: while the stored response goes out
--- h2
--- config eval: $::config
--- client
# far more than sockets and windows take: nginx is in the middle of sending

for my $how (qw(abort reset)) {
    my %key = ('Idempotency-Key' => new_key());

    my $c = send_post("/size?n=1900000&op=$how", 'x', \%key);
    like($c->read_some(1000), qr/run 1 /, "$how: begins");
    $c->$how;
    seen_by_nginx();

    my $r = http_post("/size?n=1900000&op=$how", 'x', \%key);
    is(length $r->body, 1900000, "$how: the retry gets all");
    is($r->header('Idempotent-Replayed'), 'true', "$how: a replay");

    # and once more, during the replay

    $c = send_post("/size?n=1900000&op=$how", 'x', \%key);
    like($c->read_some(1000), qr/run 1 /, "$how: a replay begins");
    $c->$how;
    seen_by_nginx();
    is(length http_post("/size?n=1900000&op=$how", 'x', \%key)->body, 1900000,
       "$how: and the next retry gets all");
    is(app_count($how), 1, "$how: ran once");
}



=== TEST 4: what it leaves behind is judged as ever
--- h2
--- config eval: $::config
--- client
for my $how (qw(RST RST_STREAM)) {

    # 503: released, so the last look runs it again

    my %key = ('Idempotency-Key' => new_key());
    my $go = $::ways{$how}->('POST', "/hold?status=503&op=$how", 'x', \%key);
    app_wait_parked($how);
    $go->();
    seen_by_nginx();
    app_release($how);

    my $c;
    ok(wait_for(sub {
        $c = send_post("/hold?status=503&op=$how", 'x', \%key);

        # it runs, or is refused since the first is not through yet
        wait_for(sub { app_parked($how) || $c->read_response(0.05) });
        return app_parked($how);
    }), "$how: released");
    is(app_count($how), 2, "$how: runs again");
    app_release($how);
    is($c->read_response->body, "run 2\n", "$how: is answered");

    # broken off: unknown

    is(leave('/close?hold=1', $how)->error_code, 'OUTCOME_UNKNOWN',
       "$how: closed: unknown");
    is(leave('/truncate?hold=1', $how)->error_code, 'OUTCOME_UNKNOWN',
       "$how: truncated: unknown");
}



=== TEST 5: others wait for what the one that left began
--- h2
--- log_level: debug
--- config eval: $::config
--- client
my $n = 0;

for my $how (sort keys %::ways) {
    my %key = ('Idempotency-Key' => new_key());
    my $uri = "/waiting/hold?op=$how";
    $uri =~ s/ /-/;
    (my $op = $uri) =~ s/.*op=//;

    my $go = $::ways{$how}->('POST', $uri, 'x', \%key);
    app_wait_parked($op);

    my @c = map { send_post($uri, 'x', \%key) } 1 .. 2;
    $n += 2;
    ok(wait_for(sub {
           $n <= (() = error_log() =~ /idempotency: begin -> wait: /g)
       }), "$how: two wait");

    $go->();
    seen_by_nginx();
    app_release($op);
    is($_->read_response->body, "run 1\n", "$how: answered") for @c;
    is(app_count($op), 1, "$how: ran once");
}



=== TEST 6: half a request
--- h2
--- config eval: $::config
--- client
my $half = sub {
    my ($uri, $key, $framing) = @_;

    my $c = connect_client();
    $c->send_part("POST $uri HTTP/1.1\r\nHost: localhost\r\n"
                  . "Idempotency-Key: $key\r\n"
                  . ($framing eq 'chunked'
                     ? "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n"
                     : "Content-Length: 10\r\n\r\n01234"));
    return $c;
};

for my $where ('/', '/streamed/') {
    for my $framing (qw(length chunked)) {
        for my $how (qw(abort reset finish_sending)) {
            my $name = "$where $framing $how";
            my $key = new_key();
            (my $op = $name) =~ s/\W/-/g;

            my $c = $half->("${where}ok?op=$op", $key, $framing);
            seen_by_nginx();

            # there is no lock to be seen while the body is on its way

            my $r = http_post("${where}ok?op=$op", '0123456789',
                              { 'Idempotency-Key' => $key });
            is($r->body, "run 1\n", "$name: nothing is in its way");

            # nor afterwards

            my $other = new_key();
            my $d = $half->("${where}ok?op=$op-2", $other, $framing);
            seen_by_nginx();
            $_->$how for $c, $d;
            seen_by_nginx();

            is(app_count("$op-2"), 0, "$name: nothing ran");
            $r = http_post("${where}ok?op=$op-2", '0123456789',
                           { 'Idempotency-Key' => $other });
            is($r->body, "run 1\n", "$name: the retry runs at once");
            is($r->header('X-Status'), 'EXECUTED', "$name: and is kept");
            is(app_count($op), 1, "$name: ran once");
        }
    }
}

for my $how (qw(rst abort reset)) {
    my %key = ('idempotency-key' => new_key());
    my $h2 = h2_connect();

    my $id = $h2->request('POST', "/ok?op=h2$how", undef, \%key, more => 1);
    $h2->data($id, '01234', 0);
    $h2->ping;
    $how eq 'rst' ? $h2->rst($id) : $h2->$how;
    seen_by_nginx();

    is(app_count("h2$how"), 0, "HTTP/2 $how: nothing ran");
    my $r = http_post("/ok?op=h2$how", '0123456789', \%key);
    is($r->body, "run 1\n", "HTTP/2 $how: the retry runs at once");
    is(app_count("h2$how"), 1, "HTTP/2 $how: ran once");
}

# a header that never ends

my $c = connect_client();
$c->send_part("POST /ok?op=header HTTP/1.1\r\nIdempotency-Key: header\r\n");
$c->reset;
is(http_post('/ok?op=header', 'x', { 'Idempotency-Key' => 'header' })->body,
   "run 1\n", 'half a header');



=== TEST 7: during a slow upload to a file
--- config
    client_body_buffer_size  1k;

    location / {
        idempotency          $TEST_STORE;
        idempotency_wait     0;
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /sync {
        return               204;
    }
--- client
for my $how (qw(abort reset)) {
    my $key = new_key();
    my $body = 'x' x 1_000_000;

    my $c = connect_client();
    $c->send_part("POST /echo?op=$how HTTP/1.1\r\nHost: localhost\r\n"
                  . "Idempotency-Key: $key\r\n"
                  . "Content-Length: 1000000\r\n\r\n");

    for (1 .. 5) {
        $c->send_part(substr $body, 0, 100_000);
        seen_by_nginx();
    }

    $c->$how;
    seen_by_nginx();

    is(app_count($how), 0, "$how: nothing ran");
    my $r = http_post("/echo?op=$how", $body, { 'Idempotency-Key' => $key });
    is($r->json->{length}, 1_000_000, "$how: the retry runs at once");
    is(app_count($how), 1, "$how: ran once");
}



=== TEST 8: a response that is not held
--- h2
--- config eval: "idempotency_stream  pass;\n$::config"
--- client
# nobody is there to read it, and nothing of it is kept: as nginx has it, the
# upstream is let go

for my $how (qw(close RST RST_STREAM), 'HTTP/2 close') {
    for my $uri ('/small/stream', '/sse?n=0') {
        my %key = ('Idempotency-Key' => new_key());
        my $op = 'op' . ++(our $streams);
        my $to = $uri . ($uri =~ /\?/ ? '&' : '?') . "op=$op";

        my $go = $::ways{$how}->('POST', $to, 'x', \%key);
        app_wait($op);

        my $r;
        ok(wait_for(sub {
               $r = http_post($to, 'x', \%key);
               return $r->status == 507;
           }), "$uri, $how: not kept");
        $go->();
        is(app_wait_closed($op), 1, "$uri, $how: the upstream is let go");
        is(http_post($to, 'x', \%key)->status, 507, "$uri, $how: still so");
        is(app_count($op), 1, "$uri, $how: ran once");
    }
}

# also where nothing comes that would have to be written

for my $how (qw(close RST RST_STREAM), 'HTTP/2 close') {
    my %key = ('Idempotency-Key' => new_key());
    (my $op = "idle$how") =~ s/\W/-/g;
    my $uri = "/size?n=1000&hold=body&type=text/event-stream&op=$op";

    my $go = $::ways{$how}->('POST', $uri, 'x', \%key);
    app_wait_parked($op);
    ok(wait_for(sub { http_post($uri, 'x', \%key)->status == 507 }),
       "idle, $how: not kept");
    $go->();
    is(app_wait_closed($op), 1, "idle, $how: the upstream is let go");
}



=== TEST 9: an upstream that starts late
--- h2
--- http_config
    proxy_cache_path  $TEST_NGINX_SERVER_ROOT/cache keys_zone=cache:1m;
--- config
    idempotency               $TEST_STORE;
    idempotency_wait          0;
    proxy_cache               cache;
    proxy_cache_methods       POST;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /locked/ {
        proxy_cache_lock          on;
        proxy_cache_lock_timeout  100ms;
        proxy_cache_key           locked;
        idempotency_methods       POST PUT;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /locked/held/ {
        proxy_cache_lock          on;
        proxy_cache_lock_timeout  100ms;
        proxy_cache_key           locked;
        idempotency_unknown_outcome  hold;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /threads/ {
        aio                   threads;
        proxy_cache_key       threads;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /sync {
        idempotency           off;
        proxy_cache           off;
        return                204;
    }
--- client
# somebody else has the lock of the cache entry all the time

my $c = send_post('/locked/hold?op=lock', 'x');
app_wait_parked('lock');

for my $how (sort keys %::ways) {
    for my $uri ('/locked/hold', '/locked/held/hold') {
        my $r = leave($uri, $how);
        is($r->body, "run 1\n", "$uri, $how: replayed");
        is($r->header('Idempotent-Replayed'), 'true', "$uri, $how: says so");
    }
}

is(leave('/locked/close?hold=1', 'RST')->error_code, 'OUTCOME_UNKNOWN',
   'closed: unknown');

app_release('lock');
$c->read_response;

# an entry that expires, read by a thread

http_post('/threads/ok?op=prime&header=X-Accel-Expires:%201', 'x');
sleep 2.2;

for my $how (sort keys %::ways) {
    my $r = leave('/threads/hold?header=X-Accel-Expires:%200', $how);
    is($r->body, "run 1\n", "threads, $how: replayed");
    is($r->header('Idempotent-Replayed'), 'true', "threads, $how: says so");
}



=== TEST 10: handlers that look at the client themselves
--- h2
--- modules: lua
--- config
    idempotency               $TEST_STORE;
    idempotency_wait          0;
    lua_check_client_abort    on;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /socket/ {
        content_by_lua_block {
            local socket = ngx.socket.tcp()
            socket:settimeout(20000)
            socket:connect("127.0.0.1", $TEST_NGINX_APP_PORT)
            socket:send("GET /hold?op=" .. ngx.var.arg_op
                        .. " HTTP/1.0\r\n\r\n")
            local answer = socket:receive("*a")
            ngx.print(answer:match("run.*"))
            ngx.flush(true)
        }
    }
    location /capture/ {
        content_by_lua_block {
            local res = ngx.location.capture("/app/hold", {
                method = ngx[ngx.var.arg_method or "HTTP_POST"],
                args = ngx.var.args
            })
            ngx.print(res.body)
        }
    }
    location /capture/off/ {
        lua_check_client_abort  off;
        content_by_lua_block {
            local res = ngx.location.capture("/app/hold", {
                method = ngx.HTTP_POST, args = ngx.var.args
            })
            ngx.print(res.body)
        }
    }
    location /capture/lua/ {
        content_by_lua_block {
            local res = ngx.location.capture("/socket/", {
                args = ngx.var.args
            })
            ngx.print(res.body)
        }
    }
    location /app/ {
        rewrite               ^/app(/.*) $1 break;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /exec/ {
        content_by_lua_block {
            ngx.sleep(0.01)
            ngx.exec("@app")
        }
    }
    location @app {
        access_by_lua_block   { ngx.sleep(0.01) }
        rewrite               ^ /hold break;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /sync {
        idempotency           off;
        return                204;
    }
--- client
for my $how (sort keys %::ways) {
    for my $uri (qw(/socket/ /capture/ /capture/off/ /capture/lua/ /exec/)) {

        # Lua has no subrequests for HTTP/2
        next if $uri =~ /capture/ && $how !~ /^(?:close|RST|half-close)$/;

        my $r = leave($uri, $how);
        is($r->body, "run 1\n", "$uri, $how: replayed");
        is($r->header('Idempotent-Replayed'), 'true', "$uri, $how: says so");
    }
}

is(leave('/capture/?method=HTTP_PUT', 'RST')->body, "run 1\n", 'PUT');



=== TEST 11: a redirect to where requests are delayed
--- h2
--- client_timeout: 120
--- http_config
    limit_req_zone  $server_name zone=slow:1m rate=20r/m;
--- config
    idempotency               $TEST_STORE;
    idempotency_wait          0;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /error/ {
        error_page            502 = @slow;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @slow {
        idempotency           off;
        limit_req             zone=slow burst=50;
        rewrite               ^ /ok break;
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location = /sync {
        idempotency           off;
        return                204;
    }
--- client
# each uses up what is allowed at once, so that the next is delayed

my $n = 0;
http_post('/accel?to=@slow&op=use', 'x');

for my $how ('close', 'RST', 'RST_STREAM', 'HTTP/2 close') {
    for my $uri ('/accel?to=@slow', '/error/close?x=1') {
        my %key = ('Idempotency-Key' => new_key());
        my $id = 'slow' . ++$n;
        my $to = "$uri&op=$id";

        my $go = $::ways{$how}->('POST', $to, 'x', \%key);
        is(app_wait($id), 1, "$uri, $how: the first one ran");
        seen_by_nginx();
        $go->();
        seen_by_nginx();
        is(http_post($to, 'x', \%key)->error_code, 'CONCURRENT_REQUEST',
           "$uri, $how: still runs");

        my $r;
        wait_for(sub {
            $r = http_post($to, 'x', \%key);
            return $r->error_code ne 'CONCURRENT_REQUEST';
        }, 15);
        is($r->status, 200, "$uri, $how: answered");
        is($r->header('Idempotent-Replayed'), 'true', "$uri, $how: replayed");
        is(app_count($id, peer => 1), 1, "$uri, $how: ran once");
        is(app_count($id, peer => 2), 1, "$uri, $how: the second one, too");
    }
}
