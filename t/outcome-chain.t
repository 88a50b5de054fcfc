# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# More than one of nginx's handlers may have a hand in a request: a next peer,
# an error_page, X-Accel-Redirect, subrequests, Lua that sends it on.  What
# went out last says nothing about what ran first: a record is released only if
# all that were sent something said in full that it failed.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $head = <<'_EOC_';
    idempotency                  $TEST_STORE;
    idempotency_unknown_outcome  $TEST_POLICY;
    add_header                   X-Outcome  $idempotency_status  always;

    location = /sorry.html {
    }
    location @app {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @dead {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @second {
        rewrite             ^ /status/$arg_second break;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
_EOC_

# WORK in a handler: it calls the application by a connection of its own

our %work = (lua => <<'_EOC_', perl => <<'_EOC_');
            local socket = ngx.socket.tcp()
            socket:connect("127.0.0.1", $TEST_NGINX_APP_PORT)
            socket:send("GET /ok?op=" .. ngx.var.arg_op .. " HTTP/1.0\r\n\r\n")
            socket:receive("*a")
_EOC_
            require IO::Socket::INET;
            my $s = IO::Socket::INET->new(
                PeerAddr => "127.0.0.1:$TEST_NGINX_APP_PORT");
            my ($op) = $r->args =~ /op=(\w+)/;
            print $s "GET /ok?op=$op HTTP/1.0\r\n\r\n";
            my @answer = <$s>;
_EOC_

sub config
{
    my ($policy, $more, $language) = @_;

    (my $config = $::head) =~ s/\$TEST_POLICY/$policy/;

    $more =~ s/^ *WORK\n/$work{$language}/mg if $language;

    return $config . $more;
}


# Three tries of one operation.  "executed": the first one ran, the others got
# its response.  "unknown": the others were refused.  "released": all ran.

our $op = 0;

sub three
{
    my ($uri, $status, $outcome, %o) = @_;

    my $id = 'op' . ++$::op;
    my $method = $o{method} || 'POST';
    my $name = $o{name} || "$method $uri";
    my @key = ('Idempotency-Key' => new_key());

    $uri .= ($uri =~ /\?/ ? '&' : '?') . "op=$id";

    my $body = $method eq 'DELETE' ? '' : 'x';
    my @r = map { http_request($method, $uri, $body, \@key) } 1 .. 3;

    is($r[0]->status, $status, "$name: answered $status");
    ok(!$r[0]->truncated, "$name: in full");
    is($r[0]->header('X-Outcome'), uc $outcome, "$name: $outcome");
    is($r[0]->body, $o{body}, "$name: its body") if defined $o{body};

    for (1, 2) {
        my $r = $r[$_];

        if ($outcome eq 'executed') {
            is($r->status, $status, "$name: replayed, $_");
            is($r->body, $r[0]->body, "$name: same body, $_");
            is($r->header('Idempotent-Replayed'), 'true', "$name: so, $_");

        } elsif ($outcome eq 'unknown') {
            is($r->status, 409, "$name: refused, $_");
            is($r->error_code, 'OUTCOME_UNKNOWN', "$name: unknown, $_");

        } else {
            is($r->status, $status, "$name: tried again, $_");
            is($r->header('Idempotent-Replayed'), undef, "$name: runs, $_");
        }
    }

    my $runs = $outcome eq 'released' ? 3 : 1;
    $runs = $o{runs} if defined $o{runs};
    app_wait($id) if $o{late};
    is(app_count($id, peer => $o{peer} || 1), $runs, "$name: ran $runs times");
}


our $upstreams = <<'_EOC_';
    upstream two {
        server  127.0.0.1:$TEST_NGINX_APP_PORT max_fails=0;
        server  127.0.0.1:$TEST_NGINX_PORT_2 max_fails=0 backup;
    }
    server {
        listen  127.0.0.1:$TEST_NGINX_PORT_2;
        return  503;
    }
_EOC_

our $chains = <<'_EOC_';
    location /second/ {
        error_page              502 504 = @second;
        proxy_read_timeout      300ms;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /intercept/ {
        proxy_intercept_errors  on;
        error_page              404 410 500 502 503 = @second;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        proxy_intercept_errors  on;
        error_page              404 500 =503 /sorry.html;
        error_page              410 =503 @return;
        error_page              502 =200 /sorry.html;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @return {
        return                  503;
    }
    location /three/ {
        recursive_error_pages   on;
        proxy_intercept_errors  on;
        error_page              404 500 502 = @middle;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @middle {
        recursive_error_pages   on;
        proxy_intercept_errors  on;
        error_page              404 500 502 = @second;
        rewrite                 ^ /$arg_middle break;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location /next/ {
        proxy_next_upstream     error timeout http_503 http_404
                                non_idempotent;
        proxy_read_timeout      300ms;
        proxy_pass              http://two;
    }
    location /accel {
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /inner/ {
        internal;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location = /inner-503 {
        internal;
        return                  503 "no\n";
    }
    location = /inner-dead {
        internal;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location = /inner-page {
        internal;
        error_page              502 =200 /sorry.html;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /guarded/ {
        error_page              502 = @guarded;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @guarded {
        auth_request            /auth;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /auth {
        internal;
        proxy_pass_request_body off;
        proxy_set_header        Content-Length "";
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT/ok?op=auth;
    }
    location /mirrored/ {
        mirror                  /mirror;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /mirror {
        internal;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT/ok?op=mirror;
    }
    location = /front/accel {
        idempotency             off;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
    location @covered {
        rewrite                 ^ /status/503 break;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /dav/ {
        error_page              502 = @dav;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @dav {
        root                    html/dav;
        dav_methods             DELETE;
    }
    location /nobody/ {
        error_page              502 =200 /sorry.html;
        proxy_pass              http://$arg_to;
    }
    location /json/ {
        idempotency_keep_json   /ok=!true;
        proxy_intercept_errors  on;
        error_page              404 500 502 = @json;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /json/dead/ {
        idempotency_keep_json   /ok=!true;
        error_page              502 = @json;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @json {
        rewrite                 ^ /json break;
        proxy_pass              http://127.0.0.1:$TEST_NGINX_APP2_PORT;
    }
_EOC_


sub chains
{
    # the first got it, and gave no complete answer

    for my $how (qw(close reset truncate truncate?chunked=1 hang garbage)) {
        my $to = "/second/$how" . ($how =~ /\?/ ? '&' : '?');

        three("${to}second=503", 503, 'unknown');
        three("${to}second=200", 200, 'executed');
        three("${to}second=404", 404, 'executed');
    }

    # the first answered, and what it said is kept

    three('/intercept/status/404?second=503', 503, 'unknown');
    three('/intercept/status/410?second=429', 429, 'unknown');
    three('/intercept/status/404?second=201', 201, 'executed');
    three('/page/status/410', 503, 'unknown');
    three('/page/status/404', 503, 'unknown');
    three('/page/close', 200, 'unknown', name => 'a page after a close');

    # all said that it failed

    three('/intercept/status/500?second=503', 503, 'released');
    three('/intercept/status/503?second=500', 500, 'released');
    three('/intercept/status/502?second=503', 503, 'unknown');
    three('/intercept/status/500?second=502', 502, 'unknown');
    three('/page/status/500', 503, 'released');

    # three of them

    three('/three/status/500?middle=status/500&second=503', 503, 'released');
    three('/three/close?middle=status/500&second=503', 503, 'unknown');
    three('/three/truncate?middle=truncate&second=503', 503, 'unknown');
    three('/three/truncate?middle=status/500&second=503', 503, 'unknown');
    three('/three/status/500?middle=close&second=503', 503, 'unknown');
    three('/three/status/404?middle=status/500&second=503', 503, 'unknown');
    three('/three/status/500?middle=status/404&second=503', 503, 'unknown');
    three('/three/close?middle=close&second=200', 200, 'executed');

    # a next peer, as non_idempotent allows it

    three('/next/status/503', 503, 'released');
    three('/next/status/404', 503, 'unknown');
    three('/next/close', 503, 'unknown');
    three('/next/hang', 503, 'unknown');
    three('/next/ok', 200, 'executed');

    # X-Accel-Redirect

    three('/accel?to=/inner/status/503', 503, 'unknown');
    three('/accel?to=@second&second=503', 503, 'unknown');
    three('/accel?to=@second&second=200', 200, 'executed');
    three('/accel?to=/inner-503', 503, 'unknown');
    three('/accel?to=/inner-dead', 502, 'unknown');
    three('/accel?to=/inner-page', 200, 'executed');
    three('/accel?to=/sorry.html', 200, 'executed', body => "sorry\n");
    three('/accel?to=/sorry.html&header=X-Accel-Buffering:%20no', 200,
          'executed', body => "sorry\n");
    three('/accel?to=/inner/status/404', 404, 'executed');
    three('/accel?to=/inner/close', 502, 'unknown');
    three('/accel?to=/inner/status/503&status=500', 503, 'released');

    # what went out last is not to be kept, by its header or its JSON

    my $off = 'header=X-Idempotency-Store:%20off';

    three("/second/close?second=200&$off", 200, 'unknown');
    three("/second/truncate?second=200&$off", 200, 'unknown');
    three("/intercept/status/404?second=200&$off", 200, 'unknown');
    three("/intercept/status/500?second=200&$off", 200, 'released');
    three("/next/ok?$off", 200, 'released');
    three("/accel?to=\@second&second=200&$off", 200, 'unknown');
    three('/json/close', 200, 'unknown');
    three('/json/status/404', 200, 'unknown');
    three('/json/status/500', 200, 'released');
    three('/json/json', 200, 'released');
    three('/json/dead/x', 200, 'released', peer => 2);

    # what is no part of it: who may, a copy, and what ran before it began

    three('/guarded/status/503', 503, 'released');
    three('/guarded/ok', 200, 'executed');
    three('/mirrored/status/503', 503, 'released');
    three('/mirrored/ok', 200, 'executed');
    three('/front/accel?to=@covered', 503, 'released');

    # dav is no upstream, and it did it

    three('/dav/there.txt', 204, 'executed', method => 'DELETE', runs => 0);
    three('/dav/none.txt', 404, 'released', method => 'DELETE', runs => 0);

    # nothing was sent

    three('/nobody/x?to=nowhere.invalid', 200, 'released', runs => 0);
    three('/nobody/x?to=', 500, 'released', runs => 0);
}


our $lua = <<'_EOC_';
    location /app/ {
        proxy_read_timeout  300ms;
        rewrite             ^/app(/.*) $1 break;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /capture {
        content_by_lua_block {
            local how = ngx.var.arg_how
            local res = ngx.location.capture("/app/" .. how, {
                method = ngx.HTTP_POST, body = "x",
                args = "op=" .. ngx.var.arg_op
            })
            local status = tonumber(ngx.var.arg_status)

            if ngx.var.arg_to then
                return ngx.exec(ngx.var.arg_to)
            end
            if ngx.var.arg_exit then
                return ngx.exit(status)
            end
            ngx.status = status
            ngx.header["X-Idempotency-Store"] = ngx.var.arg_store
            ngx.say("lua")
        }
    }
    location /socket {
        content_by_lua_block {
            WORK

            if ngx.var.arg_to then
                return ngx.exec(ngx.var.arg_to)
            end
            ngx.exit(tonumber(ngx.var.arg_status))
        }
    }
    location /page/socket {
        error_page  503 /sorry.html;
        error_page  502 =503 /sorry.html;
        error_page  500 = @dead;
        rewrite     ^ /socket last;
    }
    location /exit/ {
        error_page  404 503 /sorry.html;
        error_page  500 = @dead;
        content_by_lua_block { ngx.exit(tonumber(ngx.var.arg_status)) }
    }
    location /route/ {
        content_by_lua_block { ngx.exec(ngx.var.arg_to) }
    }
    location /busy {
        return      503;
    }
    location @busy {
        return      503;
    }
    location /busy/page {
        error_page  503 /sorry.html;
        return      503;
    }
    location @busy_page {
        error_page  503 /sorry.html;
        return      503;
    }
    location /denied {
        deny        all;
    }
    location @denied {
        deny        all;
    }
    location /dead/ {
        error_page  502 = @work;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @work {
        content_by_lua_block {
            WORK
            ngx.status = tonumber(ngx.var.arg_status)
            ngx.say("lua")
        }
    }
    location /flushed/ {
        proxy_intercept_errors  on;
        error_page  404 500 = @flush;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @flush {
        content_by_lua_block {
            ngx.say("one")
            ngx.flush(true)
            ngx.sleep(0.02)
            ngx.say("two")
            ngx.flush(true)
        }
    }
    location /accel {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /nobody {
        error_page  500 = @flush;
        proxy_pass  http://$arg_b;
    }
    location /dying {
        error_page  502 = @flush;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
_EOC_


sub lua
{
    # work that was done in a subrequest

    three('/capture?how=ok&to=@dead', 502, 'unknown');
    three('/capture?how=ok&to=@second&second=503', 503, 'unknown');
    three('/capture?how=status/404&to=@second&second=503', 503, 'unknown');
    three('/capture?how=close&to=@second&second=503', 503, 'unknown');
    three('/capture?how=ok&status=503', 503, 'unknown');
    three('/capture?how=ok&status=503&exit=1', 503, 'unknown');
    three('/capture?how=hang&status=503', 503, 'unknown');
    three('/capture?how=truncate&status=503', 503, 'unknown');
    three('/capture?how=status/503&status=503', 503, 'released');
    three('/capture?how=status/500&status=500&exit=1', 500, 'released');
    three('/capture?how=ok&status=200', 200, 'executed', body => "lua\n");
    three('/capture?how=close&status=404', 404, 'executed');
    three('/capture?how=ok&status=200&store=off', 200, 'released');

    # ... or by a connection of its own

    three('/socket?to=@dead', 502, 'unknown');
    three('/socket?to=@second&second=503', 503, 'unknown');
    three('/socket?to=@second&second=200', 200, 'executed');
    three('/socket?status=503', 503, 'released');

    # ... and it is refused where it is sent to

    three("/socket?to=$_", 503, 'unknown')
        for qw(/busy @busy /busy/page @busy_page);
    three("/socket?to=$_", 403, 'unknown') for qw(/denied @denied);
    three("/route/x?to=$_", 503, 'released', runs => 0)
        for qw(/busy @busy /busy/page @busy_page);
    three("/route/x?to=$_", 403, 'released', runs => 0)
        for qw(/denied @denied);
    three('/socket?status=502', 502, 'unknown');

    # what it ended with, made into a page

    three('/exit/x?status=503', 503, 'released', runs => 0);
    three('/exit/x?status=404', 404, 'executed', runs => 0);
    three('/exit/x?status=500', 502, 'unknown', runs => 0);

    # all it did was to choose the way

    three('/route/status/503?to=@app', 503, 'released');
    three('/route/ok?to=@app', 200, 'executed');
    three('/route/ok?to=@dead', 502, 'released', runs => 0);

    # the last handler did it, whatever was dead before

    three('/dead/x?status=200', 200, 'executed', body => "lua\n");
    three('/dead/x?status=404', 404, 'executed');
    three('/dead/x?status=503', 503, 'released');
    three('/dead/x?status=502', 502, 'unknown');

    # a flush is not the end

    three('/flushed/status/404', 200, 'executed', body => "one\ntwo\n");
    three('/flushed/status/500', 200, 'executed', body => "one\ntwo\n");
    three('/accel?to=@flush', 200, 'executed', body => "one\ntwo\n");
    three('/nobody?b=', 200, 'executed', body => "one\ntwo\n", runs => 0);
    three('/dying', 200, 'executed', body => "one\ntwo\n", runs => 0);
}


our $others = <<'_EOC_';
    location /accel {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /flushed/ {
        proxy_intercept_errors  on;
        error_page  404 = @echo;
        error_page  410 = @perl;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location @echo {
        echo        one;
        echo_flush;
        echo_sleep  0.02;
        echo        two;
        echo_flush;
    }
    location @perl {
        perl 'sub {
            my $r = shift;
            $r->send_http_header("text/plain");
            $r->print("one\n");
            $r->flush;
            $r->print("two\n");
            return OK;
        }';
    }
    location /dead/perl/ {
        error_page  502 = @work;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @work {
        perl 'sub {
            my $r = shift;
            WORK
            my ($status) = $r->args =~ /status=(\d+)/;
            $r->status($status);
            $r->send_http_header("text/plain");
            $r->print("perl\n");
            return OK;
        }';
    }
    location /dead/perl/exit/ {
        error_page  502 = @exit;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location @exit {
        perl 'sub {
            my $r = shift;
            my ($status) = $r->args =~ /status=(\d+)/;
            return $status;
        }';
    }
    location /perl/work {
        perl 'sub {
            my $r = shift;
            WORK
            my ($to) = $r->args =~ /to=(\w+)/;
            $r->internal_redirect("/perl/$to");
            return OK;
        }';
    }
    location /perl/gone {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /perl/busy {
        return      503;
    }
    location /perl/page {
        return      200 page;
    }
_EOC_


sub others
{
    three('/flushed/status/404', 200, 'executed', body => "one\ntwo\n");
    three('/flushed/status/410', 200, 'executed', body => "one\ntwo\n");
    three('/accel?to=@echo', 200, 'executed', body => "one\ntwo\n");
    three('/accel?to=@perl', 200, 'executed', body => "one\ntwo\n");

    three('/dead/perl/x?status=200', 200, 'executed', body => "perl\n");
    three('/dead/perl/x?status=503', 503, 'released');
    three('/dead/perl/x?status=504', 504, 'unknown');
    three('/dead/perl/exit/x?status=503', 503, 'released', runs => 0);
    three('/dead/perl/exit/x?status=404', 404, 'executed', runs => 0);

    # it did its work, and then sent the request on

    three('/perl/work?to=gone', 502, 'unknown');
    three('/perl/work?to=busy', 503, 'unknown');
    three('/perl/work?to=page', 200, 'unknown', body => 'page');
}


our $js = <<'_EOC_';
    location /dead/ {
        error_page  502 = @js;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /js/ {
        js_content  test.work;
    }
    location @js {
        js_content  test.work;
    }
    location @busy {
        return      503;
    }
    location @denied {
        deny        all;
    }
    location /part/ {
        js_content  test.part;
    }
    location /late/ {
        js_content  test.late;
    }
    location /aside/ {
        js_content  test.aside;
    }
    location /app/ {
        internal;
        rewrite     ^/app(/.*) $1 break;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_


sub js
{
    three('/dead/x?status=200', 200, 'executed', body => "js\n");
    three('/dead/x?status=503', 503, 'released');
    three('/js/x?to=@dead', 502, 'unknown');
    three('/js/x?to=@busy', 503, 'unknown');
    three('/js/x?to=@denied', 403, 'unknown');
    three('/part/x?to=@dead', 502, 'unknown');
    three('/part/x?status=503', 503, 'unknown');
    three('/part/x?status=200', 200, 'executed', body => "js\n");

    # it answers before its subrequest has begun

    for my $at ('late', 'aside') {
        three("/$at/x?status=503", 503, 'unknown', late => 1);
        three("/$at/x?status=200", 200, 'executed', late => 1);
    }
}

our $js_file = <<'_EOC_';
>>> test.js
function end(r) {
    if (r.args.to) {
        r.internalRedirect(r.args.to);
        return;
    }
    r.return(Number(r.args.status), "js\n");
}

async function work(r) {
    let reply = await ngx.fetch('http://127.0.0.1:' + r.variables.app
                                + '/ok?op=' + r.args.op);
    await reply.text();
    end(r);
}

async function part(r) {
    await r.subrequest('/app/ok', { method: 'POST', args: 'op=' + r.args.op });
    end(r);
}

function late(r) {
    r.subrequest('/app/ok', { method: 'POST', args: 'op=' + r.args.op })
        .then(() => {});
    end(r);
}

function aside(r) {
    r.subrequest('/app/ok', { method: 'POST', args: 'op=' + r.args.op,
                              detached: true });
    end(r);
}

export default { work, part, late, aside };
_EOC_

run_tests();

__DATA__

=== TEST 1: nginx's own ways, hold
--- http_config eval: $::upstreams
--- config eval: ::config('hold', $::chains)
--- user_files
>>> sorry.html
sorry
>>> dav/dav/there.txt
there
--- client
chains();



=== TEST 2: nginx's own ways, lease
--- http_config eval: $::upstreams
--- config eval: ::config('lease', $::chains)
--- user_files
>>> sorry.html
sorry
>>> dav/dav/there.txt
there
--- client
chains();



=== TEST 3: Lua, hold
--- modules: lua
--- config eval: ::config('hold', $::lua, 'lua')
--- user_files
>>> sorry.html
sorry
--- client
lua();



=== TEST 4: Lua, lease
--- modules: lua
--- config eval: ::config('lease', $::lua, 'lua')
--- user_files
>>> sorry.html
sorry
--- client
lua();



=== TEST 5: echo and perl, hold
--- modules: echo perl
--- config eval: ::config('hold', $::others, 'perl')
--- client
others();



=== TEST 6: echo and perl, lease
--- modules: echo perl
--- config eval: ::config('lease', $::others, 'perl')
--- client
others();



=== TEST 7: njs, hold
--- modules: js
--- http_config
    js_path    "$TEST_NGINX_SERVER_ROOT/html";
    js_import  test.js;
--- config eval: ::config('hold', $::js) . 'set $app $TEST_NGINX_APP_PORT;'
--- user_files eval: $::js_file
--- client
js();



=== TEST 8: njs, lease
--- modules: js
--- http_config
    js_path    "$TEST_NGINX_SERVER_ROOT/html";
    js_import  test.js;
--- config eval: ::config('lease', $::js) . 'set $app $TEST_NGINX_APP_PORT;'
--- user_files eval: $::js_file
--- client
js();
