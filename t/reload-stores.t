# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A reload that takes a store away.  Its records are kept as long as they live,
# in case that it comes back, and that is told; commits that could not reach
# it yet are not given up: the reload is refused.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';
use Time::HiRes qw(sleep time);

our ($redis, $proxy) = start_proxied();

sub post
{
    my ($uri, $key) = @_;
    return http_post($uri, 'x', { 'Idempotency-Key' => $key });
}

run_tests();

__DATA__

=== TEST 1: on, off, on
--- store: memory
--- config
    location / {
        idempotency  on;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();

is(post('/ok?op=a', $key)->body, "run 1\n", 'ran');

edit_config(sub { s/idempotency  on/idempotency  off/ });
ok(nginx_reload(), 'off');

is(post('/ok?op=b', $key)->body, "run $_\n", 'off') for 1, 2;
error_log_like(qr/\[warn\] .*no store uses zone "idempotency_default" any more, which holds 1 unexpired records: retries of their requests may run again/,
               'what it means is told');

# once more, and with nothing else in between

ok(nginx_reload(), 'still off');

edit_config(sub { s/idempotency  off/idempotency  on/ });
ok(nginx_reload(), 'on');

my $r = post('/ok?op=a', $key);

is($r->body, "run 1\n", 'the record is there');
is($r->header('Idempotent-Replayed'), 'true', 'replayed');
is(app_count('a'), 1, 'ran once');



=== TEST 2: a zone is renamed, and named as before
--- store: memory
--- http_config
    idempotency_store ledger memory { zone one:1m; }
--- config
    location / {
        idempotency  ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();

is(post('/ok?op=a', $key)->body, "run 1\n", 'ran');

# the store is renamed, and its zone is not

edit_config(sub { s/ledger/book/g });
ok(nginx_reload(), 'another name of the store');
is(post('/ok?op=a', $key)->body, "run 1\n", 'its zone has the record');
error_log_unlike(qr/no store uses zone/, 'nothing to tell');

edit_config(sub { s/zone one:1m/zone two:2m/ });
ok(nginx_reload(), 'another zone');
error_log_like(qr/\[warn\] .*no store uses zone "one" any more, which holds 1 unexpired/,
               'it is told');
is(post('/ok?op=a', $key)->body, "run 2\n", 'runs again, as it said');

edit_config(sub { s/zone two:2m/zone one:1m/ });
ok(nginx_reload(), 'the zone from before');
is(post('/ok?op=a', $key)->body, "run 1\n", 'and its record');



=== TEST 3: nothing is kept once it has expired
--- store: memory
--- config
    location / {
        idempotency      on;
        idempotency_ttl  300ms;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();

is(post('/ok?op=a', $key)->body, "run 1\n", 'ran');
sleep 0.6;

edit_config(sub { s/idempotency      on/idempotency  off/ });
ok(nginx_reload(), 'off');
error_log_unlike(qr/no store uses zone/, 'nothing to tell');

# so another size is no other size

edit_config(sub { s/idempotency  off/idempotency small/;
                  s/(http \{)/$1 idempotency_store small memory { zone idempotency_default:1m; }/ });
ok(nginx_reload(), 'the zone is gone');
is(post('/ok?op=a', $key)->body, "run 2\n", 'made anew');



=== TEST 4: commits that could not reach the store
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_PROXY_PORT;
        connect_timeout  2s;
        timeout          2s;
    }
--- config
    location / {
        idempotency  shared;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- provokes: is gone from the configuration
--- client
my $key = new_key();

my $c = send_post('/hold?op=a', 'x', { 'Idempotency-Key' => $key });
app_wait_parked('a');
$::proxy->tell('refuse');
$::proxy->tell('hold');
app_release('a');

is($c->read_response->body, "run 1\n", 'ran, and its commit is kept');
error_log_like(qr/it is kept here and tried again/, 'in this nginx');

my $conf = "$ENV{TEST_NGINX_SERVER_ROOT}/conf/nginx.conf";
open my $in, '<', $conf or die "$conf: $!";
my $text = do { local $/; <$in> };
close $in;

for my $change ([ 'renamed', sub { s/shared/common/g } ],
                [ 'removed', sub { s/idempotency_store shared \w+ \{.*?\}//s;
                                   s/idempotency  shared/idempotency  on/ } ],
                [ 'off', sub { s/idempotency_store shared \w+ \{.*?\}//s;
                               s/idempotency  shared/idempotency  off/ } ])
{
    my ($how, $edit) = @$change;

    edit_config($edit);
    ok(!nginx_reload(), "$how: refused");
    edit_config(sub { $_ = $text });
}

error_log_like(qr/\[emerg\] .*idempotency_store "shared" is gone from the configuration, and 1 commits are kept.*retries of their requests would run again: declare it under that name/,
               'with the way out');

is(post('/hold?op=a', $key)->body, "run 1\n", 'it is still replayed');

# a reload that has it goes on with it

ok(nginx_reload(), 'reloaded, as it was');
is(post('/hold?op=a', $key)->body, "run 1\n", 'and still');

$::proxy->tell('pass');
error_log_like(qr/a kept commit landed|landed/, 'it landed', 20);

edit_config(sub { s/shared/common/g });
ok(wait_for(sub { nginx_reload() }, 10), 'now it may be renamed');
is(post('/hold?op=a', $key)->body, "run 1\n", 'replayed from there');
is(app_count('a'), 1, 'ran once');



=== TEST 5: a fallback is taken away, while its ledger holds records
--- store: redis
--- http_config
    idempotency_store shared redis {
        server           127.0.0.1:$TEST_NGINX_PROXY_PORT;
        connect_timeout  300ms;
        timeout          300ms;
    }
    idempotency_store ledger memory {
        zone  ledger:2m;
    }
--- config
    location / {
        idempotency  shared fallback=ledger;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $key = new_key();

edit_config(sub { s/ fallback=ledger// });
ok(nginx_reload(), 'taken away, unused');
error_log_unlike(qr/fallback.*is gone from the configuration/, 'nothing to tell');

edit_config(sub { s/idempotency  shared;/idempotency  shared fallback=ledger;/ });
ok(nginx_reload(), 'it is back');

$::proxy->tell('refuse');
$::proxy->tell('cut');
$::proxy->tell('refuse');
is(post('/ok?op=a', $key)->body, "run 1\n", 'ran, by the ledger');
$::proxy->tell('pass');

edit_config(sub { s/ fallback=ledger// });
ok(nginx_reload(), 'taken away');
error_log_like(qr/\[warn\] .*fallback "shared_ledger".*is gone from the configuration.*may run again; leave "fallback=" in place/,
               'with a word');

edit_config(sub { s/idempotency  shared;/idempotency  shared fallback=ledger;/ });
ok(nginx_reload(), 'it is back');
is(post('/ok?op=a', $key)->body, "run 1\n", 'its records count again');
is(app_count('a'), 1, 'ran once');
