# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A reload that fails, and a worker that is started after it.  nginx goes on with
# the configuration before, but its filters are those of the one that it
# refused: a covered request is kept as ever, or refused, and never run
# unprotected.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $config = <<'_EOC_';
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /plain/ {
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
_EOC_

# the http block is in order, and what comes after it is not

sub refused_reload
{
    my $edit = shift;

    my $conf = "$ENV{TEST_NGINX_SERVER_ROOT}/conf/nginx.conf";

    open my $in, '<', $conf or die "$conf: $!";
    my $text = do { local $/; <$in> };
    close $in;

    edit_config(sub { $edit->(); $_ .= "\nno_such_directive on;\n" });
    ok(!nginx_reload(), 'the reload is refused');
    edit_config(sub { $_ = $text });
}

sub post
{
    my ($uri, $key) = @_;
    return http_post($uri, 'x', { 'Idempotency-Key' => $key });
}

run_tests();

__DATA__

=== TEST 1: it is nowhere on in what was refused
--- provokes: exited on signal 9|unknown directive "no_such_directive"
--- config eval: $::config
--- client
my $key = new_key();

is(post('/ok?op=a', $key)->body, "run 1\n", 'before');

refused_reload(sub { s/^\s*idempotency(?:_store)?\s[^;{]*(?:;|\{[^}]*\})//mg });
kill_worker();

is(post('/ok?op=a', $key)->header('Idempotent-Replayed'), 'true', 'replayed');

my $new = new_key();

is(post('/ok?op=b', $new)->body, "run 1\n", 'ran') for 1 .. 3;
is(app_count('b'), 1, 'ran once');
is(post('/plain/ok?op=c', $new)->body, "run $_\n", 'not covered') for 1, 2;



=== TEST 2: the module is not loaded in what was refused
--- provokes: exited on signal 9|unknown directive "no_such_directive"|has no filters of ngx_http_idempotency_module
--- config eval: $::config
--- client
my $key = new_key();

is(post('/ok?op=a', $key)->body, "run 1\n", 'before');

refused_reload(sub {
    s/^\s*load_module[^;]*idempotency[^;]*;//mg;
    s/^\s*idempotency(?:_store)?\s[^;{]*(?:;|\{[^}]*\})//mg;
});

is(post('/ok?op=a', $key)->header('Idempotent-Replayed'), 'true',
   'the worker that was there goes on');

kill_worker();

for my $op (qw(a b)) {
    my $r = post("/ok?op=$op", $op eq 'a' ? $key : new_key());

    is($r->status, 503, 'a new worker refuses');
    is($r->error_code, 'STORE_UNAVAILABLE', 'and says so');
    ok($r->header('Retry-After'), 'for the time being');
}

is(app_count('b'), 0, 'nothing runs');
is(http_post('/ok?op=d', 'x')->body, "run 1\n", 'without a key it does');
is(post('/plain/ok?op=c', $key)->body, "run $_\n", 'nor is it covered')
    for 1, 2;
error_log_like(qr/\[alert\] .*started after a reload that failed.*reload with/,
               'which is told');

ok(nginx_reload(), 'a reload in order');

is(post('/ok?op=a', $key)->header('Idempotent-Replayed'), 'true', 'replayed');
is(post('/ok?op=e', $key . 'e')->body, "run 1\n", 'and kept') for 1, 2;
is(app_count('e'), 1, 'again');



=== TEST 3: a body that is in a file, one that is empty, and a PUT
--- provokes: exited on signal 9|unknown directive "no_such_directive"|has no filters of ngx_http_idempotency_module
--- config eval: $::config =~ s/proxy_pass/client_body_buffer_size 1k; client_body_in_file_only clean; proxy_pass/r
--- client
refused_reload(sub {
    s/^\s*load_module[^;]*idempotency[^;]*;//mg;
    s/^\s*idempotency(?:_store)?\s[^;{]*(?:;|\{[^}]*\})//mg;
});

for my $body ('', 'x' x 5000) {
    for my $method (qw(POST PUT)) {
        kill_worker();

        is(http_request($method, '/ok?op=a', $body,
                        { 'Idempotency-Key' => new_key() })->status, 503,
           "$method of " . length($body) . ': refused');
    }
}

is(app_count('a'), 0, 'nothing ran');



=== TEST 4: it is loaded in what was refused only
--- provokes: exited on signal 9|unknown directive "no_such_directive"
--- config eval: $::config
--- client
my $conf = "$ENV{TEST_NGINX_SERVER_ROOT}/conf/nginx.conf";

open my $in, '<', $conf or die "$conf: $!";
my $text = do { local $/; <$in> };
close $in;

edit_config(sub {
    s/^\s*load_module[^;]*idempotency[^;]*;//mg;
    s/^\s*idempotency(?:_store)?\s[^;{]*(?:;|\{[^}]*\})//mg;
});
ok(nginx_reload(), 'reloaded without it');
is(post('/ok?op=a', 'a')->body, "run 1\n", 'runs');
ok(wait_for(sub { my @all = nginx_workers('all'); @all == 1 }, 10),
   'nobody else is there');

refused_reload(sub { $_ = $text });
kill_worker();

is(post('/ok?op=a', 'a')->body, "run $_\n", 'runs, and again') for 2, 3;



=== TEST 5: Lua's directives, once the module is no longer loaded
--- modules: lua
--- provokes: unknown directive "no_such_directive"
--- config
    location / {
        idempotency          $TEST_STORE;
        access_by_lua_block  { ngx.header["X-Checked"] = "yes" }
        proxy_pass           http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $text;

edit_config(sub { $text = $_; s/(access_by_lua)/no_such_directive on; $1/ });
ok(!nginx_reload(), 'a reload is refused within the http block');

edit_config(sub {
    $_ = $text;
    s/^\s*load_module[^;]*idempotency[^;]*;//mg;
    s/^\s*idempotency(?:_store)?\s[^;{]*(?:;|\{[^}]*\})//mg;
});

for my $n (1, 2) {
    ok(nginx_reload(), "reload $n without the module");
    is(post('/ok?op=a', 'a')->header('X-Checked'), 'yes', 'Lua checks');
}

edit_config(sub { $_ = $text });
ok(nginx_reload(), 'a reload with the module');
is(post('/ok?op=b', 'b')->body, "run 1\n", 'covered') for 1, 2;
