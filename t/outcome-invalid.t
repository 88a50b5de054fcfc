# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Upstreams that do not keep to HTTP: a 1xx in place of an answer, a status
# that nobody knows, no status at all, a body that is not what its header says.
# What is not a complete answer is none, and none is taken for one.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IO::Socket::INET;
use Test::Nginx::Socket 'no_plan';

our $op = 0;


# Three tries of one operation: it ran once, and the first try was answered
# with this status.  Returns that answer.

sub three
{
    my ($uri, $status, $outcome, %o) = @_;

    my $id = 'op' . ++$::op;
    my $name = $o{name} || $uri;
    my @key = ('Idempotency-Key' => new_key());

    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$id";

    my @r = map { http_post($uri, 'x', \@key) } 1 .. 3;

    is($r[0]->status, $status, "$name: answered $status");
    ok(!$r[0]->truncated, "$name: in full");
    is($r[0]->header('X-Outcome'), uc $outcome, "$name: $outcome");

    for my $r (@r[1, 2]) {
        if ($outcome eq 'executed') {
            is($r->status, $status, "$name: replayed");
            is($r->header('Idempotent-Replayed'), 'true', "$name: says so");
        } else {
            is($r->error_code, 'OUTCOME_UNKNOWN', "$name: refused");
        }
    }

    is(app_count($id), 1, "$name: ran once") if !$o{elsewhere};

    return $r[0];
}


# The same where what the client gets of the first try is nginx's own idea.

sub once
{
    my $uri = shift;

    my $id = 'op' . ++$::op;
    my $key = new_key();
    my $to = $uri . ($uri =~ /\?/ ? '&' : '?') . "op=$id";

    my $c = send_post($to, 'x', { 'Idempotency-Key' => $key,
                                  Connection => 'close' });
    $c->closed(5);

    my @r = map { http_post($to, 'x', { 'Idempotency-Key' => $key }) } 1 .. 3;

    for my $r (@r) {
        if (($r->header('Idempotent-Replayed') || '') eq 'true') {
            # an nginx that knows what a 1xx is
            is($r->status, 200, "$uri: the answer that came after it");
            is($r->body, "run 1\n", "$uri: its body");
        } else {
            is($r->error_code, 'OUTCOME_UNKNOWN', "$uri: unknown");
        }
    }

    is(app_count($id), 1, "$uri: ran once");
}


# A server for other protocols: whoever connects and sends something gets
# these bytes, and then the end, or a reset.

our @children;

sub start_raw
{
    my ($bytes, $port, $hold, $reset) = @_;

    my $socket = IO::Socket::INET->new(
        LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 16,
        ReuseAddr => 1) or die "cannot listen: $!\n";

    pipe my $read, my $write or die;

    my $pid = fork;
    die "cannot fork: $!\n" if !defined $pid;

    if (!$pid) {
        my @open;
        $SIG{TERM} = 'DEFAULT';
        close $read;
        while (my $c = $socket->accept) {
            sysread $c, my $in, 65536;
            syswrite $write, '.';
            syswrite $c, $bytes;
            setsockopt $c, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0) if $reset;
            if ($hold) { push @open, $c } else { close $c }
        }
        POSIX::_exit(0);
    }

    close $write;
    $read->blocking(0);
    push @::children, $pid;

    return $read;
}

sub served
{
    my $read = shift;

    my $n = sysread $read, my $in, 100;
    return $n || 0;
}

sub stop_raw
{
    kill TERM => $_ for @::children;
    waitpid $_, 0 for @::children;
    @::children = ();
}

END { local $?; stop_raw() }

run_tests();

__DATA__

=== TEST 1: a 1xx is no answer, hold
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    idempotency_keep_status      any;
    add_header                   X-Outcome  $idempotency_status  always;

    # a connection that is kept alive does not end what nginx takes for a body
    proxy_read_timeout           1s;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /http11/ {
        proxy_http_version  1.1;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $status (100, 102, 103, 199) {
    for my $where ('', '/http11', '/unbuffered') {
        once("$where/early?early=$status");
        once("$where/early?early=$status&alone=1") if $status != 103;
    }
}

once('/http09');
once('/unbuffered/http09');



=== TEST 2: a 1xx is no answer, lease
--- config
    idempotency         $TEST_STORE;
    proxy_read_timeout  1s;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
once("/early?early=$_") for 100, 102, 103, 199;
once('/http09');



=== TEST 3: "any" is 200 to 999
--- config
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location / {
        idempotency_unknown_outcome  hold;
        idempotency_keep_status      any;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /less/ {
        idempotency_keep_status  any !5xx;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /default/ {
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
three("/status/$_", $_, 'executed') for 200, 299, 599, 600, 700, 999;
three('/less/status/600', 600, 'executed');

my %key = ('Idempotency-Key' => new_key());
is(http_post('/default/status/600?op=d', 'x', \%key)->header('X-Outcome'),
   'RELEASED', 'by default it is another status');



=== TEST 4: an invalid body, hold
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    idempotency_keep_status      any;
    add_header                   X-Outcome  $idempotency_status  always;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /http11/ {
        proxy_http_version  1.1;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_http_version  1.1;
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        error_page          502 =200 /page.html;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /page.html {
    }
    location /fcgi/ {
        fastcgi_pass        127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param       REQUEST_METHOD  $request_method;
        fastcgi_param       REQUEST_URI     $request_uri;
        fastcgi_param       CONTENT_LENGTH  $content_length;
    }
    location /fcgi/unbuffered/ {
        fastcgi_buffering   off;
        fastcgi_pass        127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param       REQUEST_METHOD  $request_method;
        fastcgi_param       REQUEST_URI     $request_uri;
        fastcgi_param       CONTENT_LENGTH  $content_length;
    }
    location /small/ {
        idempotency_max_response  300;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> page.html
page
--- client
for my $where ('', '/http11', '/unbuffered') {
    three("$where/invalid", 502, 'unknown');
    three("$where/invalid?apart=1", 502, 'unknown');
}

three('/fcgi/invalid', 502, 'unknown');
three('/fcgi/unbuffered/invalid', 502, 'unknown');

is(three('/page/invalid', 200, 'unknown')->body, "page\n", 'an error_page');

# what is let through breaks off as it always did

my %key = ('Idempotency-Key' => new_key());
my $c = send_post('/small/invalid?op=small', 'x', \%key);
ok($c->closed(5), 'let through: the connection is closed');
is(http_post('/small/invalid?op=small', 'x', \%key)->status, 507,
   'let through: too large');
is(app_count('small'), 1, 'let through: ran once');



=== TEST 5: an invalid body, lease
--- config
    idempotency  $TEST_STORE;
    add_header   X-Outcome  $idempotency_status  always;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        proxy_http_version  1.1;
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
three('/invalid', 502, 'unknown');
three('/unbuffered/invalid?apart=1', 502, 'unknown');



=== TEST 6: over HTTP/2 to the client
--- h2
--- config
    location / {
        idempotency         $TEST_STORE;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $h2 = h2_connect();
my %key = ('idempotency-key' => new_key());

for my $status (502, 409) {
    my $r = $h2->response($h2->request('POST', '/invalid?op=h2', 'x', \%key));
    is($r->status, $status, "answered $status");
    ok(!$r->truncated, 'in full');
}

is(app_count('h2'), 1, 'ran once');



=== TEST 7: gRPC, SCGI and uwsgi
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    add_header                   X-Outcome  $idempotency_status  always;

    location /grpc/ {
        grpc_pass    127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /scgi/ {
        scgi_pass    127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi/ {
        uwsgi_pass   127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi/unbuffered/ {
        uwsgi_buffering  off;
        uwsgi_pass   127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $frame = sub {
    my ($type, $flags, $stream, $data) = @_;
    return substr(pack('N', length $data), 1) . pack('CCN', $type, $flags, $stream)
           . $data;
};

my $settings = $frame->(4, 0, 0, '');
my $headers = $frame->(1, 4, 1, "\x88");
my $data = $frame->(0, 0, 1, 'x' x 100);

my %grpc = (
    'a frame of a stream that is not there' =>
        $settings . $headers . $data . $frame->(0, 0, 3, 'y' x 10),
    'a reset' => $settings . $headers . $data . $frame->(3, 0, 1, pack 'N', 2),
    'a goaway' => $settings . $headers . $data
                  . $frame->(7, 0, 0, pack 'NN', 0, 1),
    'the end of the connection' => $settings . $headers . $data,
    'a length, and less' =>
        $settings . $frame->(1, 4, 1, "\x88\x0f\x0d\x041000")
        . $frame->(0, 1, 1, 'x' x 100),
);

for my $how (sort keys %grpc) {
    my $raw = start_raw($grpc{$how}, $ENV{TEST_NGINX_PORT_2},
                        $how !~ /^the end/);
    three('/grpc/x', 502, 'unknown', name => "gRPC: $how", elsewhere => 1);
    is(served($raw), 1, "gRPC: $how: ran once");
    stop_raw();
}

for my $where ('/scgi/', '/uwsgi/', '/uwsgi/unbuffered/') {
    my $raw = start_raw("Status: 200 OK\r\nContent-Length: 1000\r\n\r\nxxx",
                        $ENV{TEST_NGINX_PORT_2});
    three($where, 502, 'unknown', elsewhere => 1);
    is(served($raw), 1, "$where: ran once");
    stop_raw();
}



=== TEST 8: a FastCGI application that dies before it says that it is through
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    add_header                   X-Outcome $idempotency_status always;
    fastcgi_param                REQUEST_METHOD  $request_method;
    fastcgi_param                REQUEST_URI     $request_uri;
    fastcgi_param                CONTENT_LENGTH  $content_length;

    location / {
        fastcgi_pass       127.0.0.1:$TEST_NGINX_FCGI_PORT;
    }
    location /keep/ {
        fastcgi_keep_conn  on;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_FCGI_PORT;
    }
    location /unbuffered/ {
        fastcgi_buffering  off;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_FCGI_PORT;
    }
--- client
for my $at ('', '/keep', '/unbuffered') {
    three("$at/truncate", 502, 'unknown');
    three("$at/truncate?n=40000", 502, 'unknown');
    three("$at/ok", 200, 'executed');
    three("$at/ok?n=40000", 200, 'executed');
    three("$at/status/404", 404, 'executed');
    three("$at/status/204", 204, 'executed');
}

# as a stream, it breaks off for the client, too

my %key = ('Idempotency-Key' => new_key());
my $first = http_post('/truncate?op=s&type=text/event-stream', 'x', \%key);

is($first->status, 200, 'a stream');
is(http_post('/truncate?op=s&type=text/event-stream', 'x', \%key)->error_code,
   'OUTCOME_UNKNOWN', 'a stream: unknown');
is(app_count('s'), 1, 'a stream: ran once');



=== TEST 9: a length, and less than that, or nothing, or more
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    idempotency_compress         on min=0;
    add_header                   X-Outcome  $idempotency_status  always;

    location /proxy/ {
        proxy_pass         http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /proxy/unbuffered/ {
        proxy_buffering    off;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /scgi/ {
        scgi_pass          127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /scgi/unbuffered/ {
        scgi_buffering     off;
        scgi_pass          127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi/ {
        uwsgi_pass         127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi/unbuffered/ {
        uwsgi_buffering    off;
        uwsgi_pass         127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/ {
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/keep/ {
        fastcgi_keep_conn  on;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/unbuffered/ {
        fastcgi_buffering  off;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client_timeout: 60
--- client
my $record = sub {
    my ($type, $data) = @_;
    return pack('CCnnCC', 1, $type, 1, length $data, 0, 0) . $data;
};

my %where = (
    proxy => [ '/proxy/', '/proxy/unbuffered/' ],
    cgi   => [ '/scgi/', '/scgi/unbuffered/', '/uwsgi/', '/uwsgi/unbuffered/' ],
    fcgi  => [ '/fcgi/', '/fcgi/keep/', '/fcgi/unbuffered/' ],
);

for my $status (200, 204, 503) {
    for my $n (0, 500, 1000, 1100) {

        my $head = "Content-Length: 1000\r\nX-App: 1\r\n\r\n";
        my $body = 'x' x $n;

        my %bytes = (
            proxy => "HTTP/1.1 $status Reason\r\n$head$body",
            cgi   => "Status: $status Reason\r\n$head$body",
            fcgi  => $record->(6, "Status: $status Reason\r\n$head")
                     . ($n ? $record->(6, $body) : '')
                     . $record->(6, '') . $record->(3, "\0" x 8),
        );

        for my $kind (sort keys %where) {
            my $raw = start_raw($bytes{$kind}, $ENV{TEST_NGINX_PORT_2});

            for my $where (@{$where{$kind}}) {
                my $name = "$where $status, $n bytes";

                if ($status == 503 && $n >= 1000) {
                    my %key = ('Idempotency-Key' => new_key());
                    for (1, 2) {
                        is(http_post($where, 'x', \%key)->header('X-Outcome'),
                           'RELEASED', "$name: released");
                    }
                    is(served($raw), 2, "$name: ran again");

                } else {
                    three($where, @{$status == 204 || $n >= 1000
                                    ? [ $status, 'executed' ]
                                    : [ 502, 'unknown' ]},
                          name => $name, elsewhere => 1);
                    is(served($raw), 1, "$name: ran once");
                }
            }

            stop_raw();
        }
    }
}



=== TEST 10: a handler without an upstream that sends less than its length
--- modules: lua perl
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    add_header                   X-Outcome  $idempotency_status  always;

    location /lua {
        content_by_lua_block {
            ngx.header.content_length = 1000
            ngx.print("xxx")
        }
    }
    location /lua/stream {
        content_by_lua_block {
            ngx.header.content_type = "text/event-stream"
            ngx.header.content_length = 1000
            ngx.print("xxx")
        }
    }
    location /lua/exact {
        content_by_lua_block {
            ngx.header.content_length = 3
            ngx.print("xxx")
        }
    }
    location /perl {
        perl 'sub {
            my $r = shift;
            $r->header_out("Content-Length", 1000);
            $r->send_http_header("text/plain");
            $r->print("xxx");
            return OK;
        }';
    }
--- client
for my $where ('/lua', '/lua/stream', '/perl') {
    my %key = ('Idempotency-Key' => new_key());

    my $c = send_post($where, 'x', \%key);

    ok($c->closed(5), "$where: the connection is closed");

    my $first = $c->read_response(1);

    is($first->body, 'xxx', "$where: what there is");
    ok($first->truncated, "$where: not all of it");

    is(http_post($where, 'x', \%key)->error_code, 'OUTCOME_UNKNOWN',
       "$where: unknown");
}

three('/lua/exact', 200, 'executed', elsewhere => 1);



=== TEST 11: the length that a HEAD is told is that of the application
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  HEAD;

    location /scgi/ {
        scgi_pass          127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /scgi/unbuffered/ {
        scgi_buffering     off;
        scgi_pass          127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /uwsgi/ {
        uwsgi_pass         127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
for my $n (0, 500, 1000, 1100) {
    for my $length ("Content-Length: 1000\r\n", '') {
        my $raw = start_raw("Status: 200 OK\r\n$length\r\n" . 'x' x $n,
                            $ENV{TEST_NGINX_PORT_2});

        for my $where ('/scgi/', '/scgi/unbuffered/', '/uwsgi/') {
            my $name = "$where, $n bytes" . ($length ? ' of 1000' : '');
            my %key = ('Idempotency-Key' => new_key());

            my @r = map { http_request('HEAD', $where, undef, \%key) } 1, 2;

            is($r[1]->header('Idempotent-Replayed'), 'true',
               "$name: replayed");
            is($r[0]->header('Content-Length'), $length ? 1000 : undef,
               "$name: the length");
            is($r[1]->header('Content-Length'), $length ? 1000 : undef,
               "$name: the same in the replay");
        }

        stop_raw();
    }
}



=== TEST 12: HTTP/2 to the upstream
--- skip_nginx: 1: < 1.31.4
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    add_header                   X-Outcome  $idempotency_status  always;

    location /h2/ {
        proxy_http_version  2;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /h2/unbuffered/ {
        proxy_http_version  2;
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /grpc/ {
        grpc_pass           127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $frame = sub {
    my ($type, $flags, $data) = @_;
    return substr(pack('N', length $data), 1) . pack('CCN', $type, $flags, 1)
           . $data;
};

my $settings = pack('x3CCN', 4, 0, 0);
my $length = "\x88\x0f\x0d\x041000";
my $ping = substr(pack('N', 8), 1) . pack('CCN', 6, 0, 0) . 'x' x 8;

my @cases = (
    [ 'in full', 200,
      $frame->(1, 4, $length) . $frame->(0, 1, 'x' x 1000) ],
    [ 'in full, closed', 200,
      $frame->(1, 4, $length) . $frame->(0, 1, 'x' x 1000), 'closed' ],
    [ 'in full, no end, closed', 200,
      $frame->(1, 4, $length) . $frame->(0, 0, 'x' x 1000), 'closed' ],
    [ 'less, closed', 502,
      $frame->(1, 4, $length) . $frame->(0, 0, 'x' x 999), 'closed' ],
    [ 'in two pieces', 200,
      $frame->(1, 4, $length) . $frame->(0, 0, 'x' x 500)
      . $frame->(0, 1, 'x' x 500) ],
    [ 'no length', 200, $frame->(1, 4, "\x88") . $frame->(0, 1, 'x' x 10) ],
    [ 'no length, no body', 200, $frame->(1, 5, "\x88") ],
    [ '204', 204, $frame->(1, 5, "\x89") ],
    [ 'less', 502, $frame->(1, 4, $length) . $frame->(0, 1, 'x' x 500) ],
    [ 'nothing', 502, $frame->(1, 4, $length) . $frame->(0, 1, '') ],
    [ 'more', 502, $frame->(1, 4, $length) . $frame->(0, 1, 'x' x 1100) ],
    [ 'a reset', 502,
      $frame->(1, 4, "\x88") . $frame->(0, 0, 'x') . $frame->(3, 0, pack 'N', 2) ],

    # the header ends the stream

    [ 'a length and no body', 502, $frame->(1, 5, $length) ],
    [ 'a length, no body, a ping', 502, $frame->(1, 5, $length) . $ping ],
);

for my $case (@cases) {
    my ($name, $status, $bytes, $closed) = @$case;

    my $raw = start_raw($settings . $bytes, $ENV{TEST_NGINX_PORT_2}, !$closed);

    for my $where ('/h2/', '/h2/unbuffered/', '/grpc/') {

        # what a gRPC call has to say comes with its end; if that has come,
        # nginx may still miss that the connection was closed behind it

        next if $where eq '/grpc/' && $name eq 'in full, closed';

        my $code = ($closed && $where eq '/grpc/') ? 502 : $status;

        three($where, $code, $code == 502 ? 'unknown' : 'executed',
              name => "$where, $name", elsewhere => 1);
        is(served($raw), 1, "$where, $name: ran once");
    }

    stop_raw();
}



=== TEST 13: a response that is complete before the connection is reset
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    add_header                   X-Outcome  $idempotency_status  always;

    location /proxy/ {
        proxy_pass         http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /proxy/unbuffered/ {
        proxy_buffering    off;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/ {
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/keep/ {
        fastcgi_keep_conn  on;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $record = sub {
    my ($type, $data) = @_;
    return pack('CCnnCC', 1, $type, 1, length $data, 0, 0) . $data;
};

for my $n (1000, 500) {

    my $head = "Content-Length: 1000\r\n\r\n";
    my $body = 'x' x $n;

    my %bytes = (
        '/proxy/' => "HTTP/1.1 200 OK\r\n$head$body",
        '/fcgi/'  => $record->(6, "Status: 200 OK\r\n$head")
                     . $record->(6, $body) . $record->(6, '')
                     . $record->(3, "\0" x 8),
    );

    $bytes{'/proxy/unbuffered/'} = $bytes{'/proxy/'};
    $bytes{'/fcgi/keep/'} = $bytes{'/fcgi/'};

    for my $where (sort keys %bytes) {
        my $raw = start_raw($bytes{$where}, $ENV{TEST_NGINX_PORT_2}, 0, 1);

        # the reset may come before or after nginx has read the response

        for (1 .. 5) {
            three($where, $n == 1000 ? (200, 'executed') : (502, 'unknown'),
                  name => "$where, $n bytes", elsewhere => 1);
        }

        is(served($raw), 5, "$where, $n bytes: ran once each");
        stop_raw();
    }
}



=== TEST 14: a FastCGI application that closes the connection behind its length
--- config
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  hold;
    add_header                   X-Outcome  $idempotency_status  always;

    location /fcgi/ {
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/keep/ {
        fastcgi_keep_conn  on;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
    location /fcgi/unbuffered/ {
        fastcgi_buffering  off;
        fastcgi_pass       127.0.0.1:$TEST_NGINX_PORT_2;
    }
--- client
my $record = sub {
    my ($type, $data) = @_;
    return pack('CCnnCC', 1, $type, 1, length $data, 0, 0) . $data;
};

# status, length, bytes of the body, and the answer; in one record, in two,
# and in two with a reset in place of the end

for my $case ([ 200, 1000, 1000, 200 ], [ 200, 0, 0, 200 ], [ 404, 10, 10, 404 ],
              [ 204, undef, 0, 204 ],
              [ 200, 1000, 999, 502 ], [ 200, 1000, 0, 502 ],
              [ 200, undef, 1000, 502 ], [ 200, 60_000, 60_000, 200 ],
              [ 200, 60_000, 59_999, 502 ])
{
    my ($status, $length, $n, $answer) = @$case;

    for my $parts (1, 2, 3) {
        my $reset = ($parts == 3);
        my $head = defined $length ? "Content-Length: $length\r\n" : '';
        my $out = "Status: $status Reason\r\n$head\r\n" . 'x' x $n;
        my $at = $parts == 1 ? length $out : 600;

        my $bytes = $record->(6, substr $out, 0, $at);
        $bytes .= $record->(6, substr $out, $at) if $at < length $out;

        my $raw = start_raw($bytes, $ENV{TEST_NGINX_PORT_2}, 0, $reset);

        for my $where ('/fcgi/', '/fcgi/keep/', '/fcgi/unbuffered/') {
            my $name = "$where, $status, $n of "
                       . (defined $length ? $length : '?')
                       . ($reset ? ', reset' : ", in $parts");

            three($where, $answer, $answer == 502 ? 'unknown' : 'executed',
                  name => $name, elsewhere => 1);
            is(served($raw), 1, "$name: ran once");
        }

        stop_raw();
    }
}

# as a stream: all of it, and all but the last byte

for my $n (1000, 999) {
    my $raw = start_raw($record->(6, "Status: 200 OK\r\nContent-Length: 1000"
                                     . "\r\nContent-Type: text/event-stream"
                                     . "\r\n\r\n" . 'x' x $n),
                        $ENV{TEST_NGINX_PORT_2});

    for my $where ('/fcgi/', '/fcgi/keep/', '/fcgi/unbuffered/') {
        my %key = ('Idempotency-Key' => new_key());

        my $c = send_post($where, 'x', { %key, Connection => 'close' });
        ok($c->closed(5), "$where, a stream of $n: ends");

        my $first = $c->read_response(1);
        my $retry = http_post($where, 'x', \%key);

        is(length $first->body, $n, "$where, a stream of $n: what there is");

        if ($n == 1000) {
            is($retry->body, $first->body, "$where, a stream: replayed");
        } else {
            is($retry->error_code, 'OUTCOME_UNKNOWN',
               "$where, a stream that is too short: unknown");
        }

        is(served($raw), 1, "$where, a stream of $n: ran once");
    }

    stop_raw();
}
