# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The tools of the tests themselves: the scripted application, the clients, and
# what can be done to nginx.  No directive of the module is used here.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $proxy = <<'_EOC_';
    location / {
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_http_version   1.1;
        proxy_set_header     Connection "";
        proxy_pass_header    X-Accel-Buffering;
    }
_EOC_

run_tests();

__DATA__

=== TEST 1: what the application answers
--- config eval: $::proxy
--- client
my $r = http_post('/ok', 'x');
is($r->status, 200, 'ok: status');
is($r->body, "run 1\n", 'ok: body');
is(app_count('/ok'), 1, 'counted by path');

is(http_post('/ok?op=a', 'x')->body, "run 1\n", 'an operation has its count');
is(http_post('/headers?op=a', 'x')->header('Location'), '/things/2',
   'also over paths');
is(app_count('a'), 2, 'counted by operation');
is(app_count('nothing'), 0, 'never run');

is(http_post('/status/503', 'x')->status, 503, 'status by path');
is(http_post('/ok?status=202', 'x')->status, 202, 'status by argument');

$r = http_post('/headers', 'x');
is($r->status, 201, 'headers: status');
is_deeply([ $r->header('X-Repeated') ], [ qw(one two) ], 'repeated header');
is(scalar(my @cookies = $r->header('Set-Cookie')), 2, 'two cookies');
like($r->header_lines('Date', 'Server'), qr/^X-Lower-case: CaSe kept$/m,
     'header lines');

$r = http_post('/ok?header=X-Foo:%20bar&header=X-Foo:%20baz', 'x');
is_deeply([ $r->header('X-Foo') ], [ 'bar', 'baz' ], 'headers by argument');

is(http_get('/binary')->body, join('', map { chr } 0 .. 255) x 4, 'binary');

is(length http_get('/size?n=300000')->body, 300000, 'size');
$r = http_get('/size?n=5000&chunked=1');
is(length $r->body, 5000, 'size, chunked');
is($r->header('Transfer-Encoding'), 'chunked', 'chunked');
is(length http_get('/size?n=5000&nolength=1')->body, 5000, 'size, by close');
is(http_get('/size?n=0')->body, '', 'empty body');

$r = http_post('/204', 'x');
is($r->status, 204, 'No Content');
is($r->body, '', 'no body');

my $echo = http_put('/echo?a=b', 'hello', { 'X-Sent' => 'yes' })->json;
is($echo->{method}, 'PUT', 'echo: method');
is($echo->{uri}, '/echo?a=b', 'echo: uri');
is($echo->{length}, 5, 'echo: length');
is($echo->{sha256},
   '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824',
   'echo: body');
ok((grep { $_->[0] eq 'X-Sent' && $_->[1] eq 'yes' } @{ $echo->{headers} }),
   'echo: headers');
is(app_last('/echo')->{sha256}, $echo->{sha256}, 'asked for afterwards');

$r = http_get('/gzip');
is($r->header('Content-Encoding'), 'gzip', 'gzip');
like($r->body, qr/^\x1f\x8b/, 'gzipped');

$r = http_get('/sse?n=2');
is($r->header('Content-Type'), 'text/event-stream', 'sse: type');
is($r->body, "data: run 1 event 1\n\ndata: run 1 event 2\n\n", 'sse: events');

is(http_request('HEAD', '/ok')->status, 200, 'HEAD');
is(http_get('/json')->json->{ok}, 1, 'json');

app_reset();
is(app_count('/ok'), 0, 'reset');



=== TEST 2: how the application fails
--- config
    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_read_timeout  300ms;
    }
    location /dead/ {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
--- client
is(http_post('/reset', 'x')->status, 502, 'reset');
is(http_post('/close', 'x')->status, 502, 'close');
is(http_post('/garbage', 'x')->status, 502, 'garbage');
is(http_post('/hang', 'x')->status, 504, 'hang');
is(app_wait_closed('/hang'), 1, 'nginx closed, unanswered');
is(http_post('/dead/', 'x')->status, 502, 'refused');

my $r = http_post('/truncate', 'x');
ok($r->truncated, 'truncated');
is(length $r->body, 500, 'half of it');
ok(http_post('/truncate?chunked=1', 'x')->truncated, 'truncated, chunked');
ok(http_post('/reset?after=1', 'x')->truncated, 'reset in the body');

is(app_count('/reset'), 2, 'each counted');
error_log_like(qr/Connection reset by peer/, 'nginx saw a reset');
error_log_like(qr/upstream prematurely closed connection/, 'and a close');



=== TEST 3: held, released, awaited
--- config eval: $::proxy
--- client
my $c = send_post('/hold?op=h', 'x');

is(app_wait('h'), 1, 'started');
is(app_wait_parked('h'), 1, 'held');
is($c->read_response(0.2), undef, 'no answer yet');
is(app_release('h'), 1, 'one released');
is($c->read_response->body, "run 1\n", 'answered');

$c = send_post('/size?n=1000&hold=body&op=b', 'x');
my $d = send_post('/size?n=1000&hold=body&op=b', 'x');
is(app_wait_parked('b', 2), 2, 'two held in the body');
is($c->read_response(0.1), undef, 'not whole yet');
is(app_release('b', 2), 2, 'both released');
is(length $c->read_response->body, 1000, 'the first');
is(length $d->read_response->body, 1000, 'the second');

is(app_wait('never', 1, 0.1), 0, 'an end to waiting');
is(eval { app_release('never', 1, 0.1); 1 }, undef, 'nothing to release');

my $t = Time::HiRes::time();
is(http_post('/slow?ms=200', 'x')->status, 200, 'slow');
cmp_ok(Time::HiRes::time() - $t, '>', 0.19, 'late');



=== TEST 4: clients that leave
--- config eval: $::proxy
--- client
for my $how (qw(abort reset)) {
    my $c = send_post("/hold?op=$how", 'x');

    is(app_wait_parked($how), 1, "$how: held");
    $c->$how;
    is(app_wait_closed($how), 1, "$how: nginx closed to the application");
}

my $c = send_post('/stream', 'x');
cmp_ok(length $c->read_some(3000), '>=', 3000, 'a stream');
$c->abort;
is(app_wait_closed('/stream'), 1, 'stream closed');

# a request in parts
$c = connect_client();
$c->send_part("POST /echo HTTP/1.1\r\nHost: localhost\r\n");
$c->send_part("Content-Length: 10\r\n\r\n01234");
is($c->read_response(0.1), undef, 'waits for the rest');
is(app_count('/echo'), 0, 'has not run');
$c->send_part('56789');
is($c->read_response->json->{length}, 10, 'whole');

# the same connection once more
$c->request('POST', '/ok', 'x');
is($c->read_response->body, "run 1\n", 'keepalive');

# a chunked body
my $r = http_raw("POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                 . "Transfer-Encoding: chunked\r\n\r\n"
                 . "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
is($r->json->{length}, 5, 'chunked body');

# a header twice, in order
$r = http_get('/echo', [ 'X-A' => 1, 'X-B' => 2, 'X-A' => 3 ]);
is(join(' ', map { $_->[1] } grep { $_->[0] =~ /^X-/ }
             @{ $r->json->{headers} }), '1 2 3', 'headers in order');

$r = http_raw("BROKEN\r\n\r\n");
is($r->status, 400, 'bytes');
--- no_error_log
[error]



=== TEST 5: HTTP/2
--- h2
--- config eval: $::proxy
--- client
my $h2 = h2_connect();

my $id = $h2->request('POST', '/headers', 'hello', { 'x-sent' => 'yes' });
my $r = $h2->response($id);
is($r->status, 201, 'status');
is($r->header('location'), '/things/1', 'a header');
is(scalar(my @cookies = $r->header('set-cookie')), 2, 'cookies');
is($r->body, "run 1\n", 'body');

is($h2->response($h2->request('POST', '/echo', 'x' x 100_000))->json->{length},
   100_000, 'a large request body');
is(length $h2->response($h2->request('GET', '/size?n=300000'))->body, 300000,
   'a large response body');

# in parts
$id = $h2->request('POST', '/echo?op=parts', undef, {}, more => 1);
$h2->data($id, 'abc', 0);
is($h2->response($id, 0.1), undef, 'waits for the rest');
$h2->data($id, 'def', 1);
is($h2->response($id)->json->{length}, 6, 'whole');

# a stream reset, others go on
$id = $h2->request('POST', '/hold?op=rst', 'x');
is(app_wait_parked('rst'), 1, 'held');
$h2->rst($id);
is(app_wait_closed('rst'), 1, 'nginx closed to the application');
ok($h2->ping, 'the connection lives');
is($h2->response($h2->request('POST', '/ok', 'x'))->body, "run 1\n",
   'and serves');



=== TEST 6: reload, kill
--- workers: 2
--- config eval: $::proxy
--- provokes: exited on signal 9
--- client
my @before = nginx_workers();
is(scalar @before, 2, 'two workers');

my $c = send_post('/hold?op=r', 'x');
is(app_wait_parked('r'), 1, 'in flight');

ok(nginx_reload(), 'reload');
my @after = nginx_workers();
is(scalar @after, 2, 'two new workers');
isnt("@after", "@before", 'really new');

app_release('r');
is($c->read_response->body, "run 1\n", 'the old worker answered');

edit_config(sub { s/location \/ /location = \/new { return 200 new; } location \/ / });
ok(nginx_reload(), 'reload with another configuration');
is(http_get('/new')->body, 'new', 'in force');

my $pid = kill_worker();
ok(!grep({ $_ == $pid } nginx_workers()), 'killed and replaced');
is(http_post('/ok', 'x')->status, 200, 'serves');
error_log_like(qr/exited on signal 9/, 'and says so');



=== TEST 7: a refused reload
--- config eval: $::proxy
--- provokes: unknown directive
--- client
edit_config(sub { s/location/bad_directive; location/ });
ok(!nginx_reload(), 'refused');
is(http_post('/ok', 'x')->status, 200, 'still serves');



=== TEST 8: peers, FastCGI, X-Accel-Redirect, upgrade
--- http_config
    upstream peers {
        server 127.0.0.1:$TEST_NGINX_APP_PORT;
        server 127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
--- config
    location /peers/ {
        proxy_pass      http://peers/;
    }
    location /fcgi/ {
        fastcgi_pass    127.0.0.1:$TEST_NGINX_FCGI_PORT;
        fastcgi_param   REQUEST_METHOD  $request_method;
        fastcgi_param   REQUEST_URI     $request_uri;
        fastcgi_param   CONTENT_LENGTH  $content_length;
    }
    location /accel {
        proxy_pass      http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /there {
        internal;
        return 200 "there\n";
    }
    location /upgrade {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
        proxy_http_version  1.1;
        proxy_set_header    Upgrade     $http_upgrade;
        proxy_set_header    Connection  "upgrade";
    }
--- client
http_post('/peers/ok?op=p', 'x') for 1 .. 4;
is(app_count('p', peer => 1), 2, 'the first peer');
is(app_count('p', peer => 2), 2, 'the second peer');

my $r = http_post('/fcgi/headers', 'x');
is($r->status, 201, 'fastcgi: status');
is($r->header('Location'), '/things/1', 'fastcgi: header');
my $echo = http_post('/fcgi/echo', 'hello', { 'X-Sent' => 'yes' })->json;
is($echo->{length}, 5, 'fastcgi: body');
is(length http_post('/fcgi/size?n=200000', '')->body, 200000, 'fastcgi: large');
is(app_count('/fcgi/headers', peer => 'fastcgi'), 1, 'fastcgi: counted');

is(http_get('/accel?to=/there')->body, "there\n", 'X-Accel-Redirect');

my $c = send_request('GET', '/upgrade', undef,
                     { Upgrade => 'test', Connection => 'Upgrade' });
is($c->read_response->status, 101, 'upgraded');
$c->send_part('hello');
is($c->read_some(5), 'hello', 'echoed');



=== TEST 9: a configuration that is refused
--- config
    location / {
        proxy_pass_nowhere;
    }
--- must_die
--- error_log eval
qr/\[emerg\] .*unknown directive "proxy_pass_nowhere" in .*nginx\.conf:\d+/



=== TEST 10: Debian's Lua module beside ours
--- modules: lua
--- config
    location / {
        content_by_lua_block { ngx.say("lua") }
    }
--- client
is(http_get('/')->body, "lua\n", 'Lua');



=== TEST 11: a Redis of its own
--- config
--- client
my $redis = start_redis('--maxmemory', '50mb');

is($redis->command('SET', 'a', "b\r\nc"), 'OK', 'set');
is($redis->command('GET', 'a'), "b\r\nc", 'get');
is($redis->command('GET', 'none'), undef, 'nothing there');
is_deeply($redis->command('MGET', 'a', 'none'), [ "b\r\nc", undef ], 'a list');
ok(!eval { $redis->command('NONSENSE') }, 'an error');

$redis->stop;
ok(!eval { $redis->command('PING') }, 'gone');
