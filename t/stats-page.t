# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The page of the figures in a real browser: it loads under its policy without
# a word on the console, asks nobody but this address, and its numbers move
# while traffic runs.  Leaves pictures of itself in build/screenshots; those
# called page-* are in docs/images.
#
# IDEMPOTENCY_NO_BROWSER=1 leaves it out.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Browser;
use Test::Nginx::Socket $ENV{IDEMPOTENCY_NO_BROWSER}
                        ? (skip_all => 'IDEMPOTENCY_NO_BROWSER is set')
                        : 'no_plan';

our $screenshots = 'build/screenshots';

mkdir $_ for 'build', $screenshots;

our $redis;

if (!$ENV{IDEMPOTENCY_NO_BROWSER}) {
    $redis = start_redis();
    $ENV{TEST_NGINX_OWN_PORT} = $redis->{port};
}

run_tests();

__DATA__

=== TEST 1: the page under traffic
--- client_timeout: 120
--- http_config
    idempotency_store ledger memory { zone ledger:8m; }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency              $TEST_STORE;
        idempotency_wait         200ms;
        idempotency_max_waiters  2;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /ledger/ {
        idempotency               ledger;
        idempotency_group         ledger;
        idempotency_max_response  4k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $browser = eval { IdempotencyTest::Browser->new };

if (!ok($browser, 'there is a browser')) {
    diag($@);
    return;
}

# a little of everything; some more each time

my $round = 0;
my @keys = map { { 'Idempotency-Key' => new_key() } } 1 .. 8;

my $traffic = sub {
    $round++;

    for my $n (1 .. 6 + $round % 5) {
        http_post('/ok', 'x', { 'Idempotency-Key' => new_key() });
        http_post("/ledger/size?n=$n", 'x', $keys[$n % 8]);
        http_post('/ok?op=same', 'x', $keys[$n % 3]);
        http_post('/ok?op=same', $n, $keys[0]) if $n % 4 == 0;
    }

    http_post('/ok', 'x', { 'Idempotency-Key' => 'not a key' })
        if $round % 3 == 0;
    http_post('/status/503', 'x', { 'Idempotency-Key' => new_key() });
    http_post('/ledger/size?n=9000', 'x', { 'Idempotency-Key' => new_key() })
        if $round % 4 == 0;

    my %key = ('Idempotency-Key' => new_key());
    my @c = map { send_post('/slow?ms=30', 'x', \%key) } 1 .. 2;

    $_->read_response for @c;
};

$traffic->();

# what a browser sends, without an argument, chooses the page

$browser->look;
$browser->open("http://127.0.0.1:$port/stats#every=250");

ok($browser->wait_for(q{document.title === 'Idempotency'}), 'loaded');
ok($browser->wait_for(
       q{document.getElementById('updated').textContent.startsWith('as of')}),
   'has figures');
like($browser->eval(q{document.getElementById('version').textContent}),
     qr/^module \d+\.\d+\.\d+, nginx \d/, 'says of what');

my $total = q{+document.querySelector('#total').textContent.replace(/\D/g, '')};
my $before = $browser->eval($total);

cmp_ok($before, '>', 0, "there were $before requests before");

# twenty steps of it

my $until = time + 5;

$traffic->() while time < $until;

ok($browser->wait_for("$total > $before"), 'the number of requests moves');
ok($browser->wait_for(q{parseFloat(document.getElementById('rate').textContent)
                        >= 0}), 'there is a rate');

cmp_ok($browser->eval(q{document.querySelectorAll('#outcomes path').length}),
       '>=', 4, 'outcomes are drawn');
cmp_ok(length $browser->eval(
           q{document.querySelector('#outcomes path').getAttribute('d')}),
       '>', 40, 'over some time');

# a wait is drawn in the step that it ends in: some of them have one

ok($browser->wait_for(
       q{[...document.querySelectorAll('#waits path')]
            .some(p => p.getAttribute('d').length > 5)}), 'waiting is drawn');
ok($browser->wait_for(
       q{[...document.querySelectorAll('#store path')]
            .some(p => p.getAttribute('d').length > 20)}),
   'store operations are drawn');

my $rows = $browser->eval(
    q{[...document.querySelectorAll('#refusals tbody tr')]
         .map(r => r.cells[0].textContent).join()});

like($rows, qr/CONFLICT/, 'refusals by kind');
like($rows, qr/INVALID/, 'and another kind');

my $stores = $browser->eval(
    q{[...document.querySelectorAll('#stores tbody tr')]
         .map(r => [...r.cells].map(c => c.textContent).join('|')).join('\n')});

like($stores, qr/^ledger\|memory\|/m, 'a store');
is(scalar(my @lines = split /\n/, $stores), 2, 'both of them');
like($stores, qr/\b[\d.]+ [kM]B of 8\.\d MB/, 'and how full it is');

$browser->screenshot("$::screenshots/stats-light.png");
$browser->screenshot("$::screenshots/page-busy.png", 900);

# a dark room, and a phone: nothing sticks out

$browser->look(scheme => 'dark');
$traffic->();
ok($browser->wait_for(
       q{getComputedStyle(document.body).backgroundColor
             .match(/\d+/g).every(n => n < 60)}), 'dark');
$browser->screenshot("$::screenshots/stats-dark.png");

for my $scheme (qw(light dark)) {
    $browser->look(scheme => $scheme, phone => 1, width => 390, height => 844);
    $traffic->();
    ok($browser->wait_for(q{document.documentElement.scrollWidth <= 390}),
       "fits a phone, $scheme");
    $browser->screenshot("$::screenshots/stats-phone-$scheme.png");
}

cmp_ok(-s $_, '>', 20000, "$_ is a picture") for <$::screenshots/stats-*.png>;

is_deeply([ $browser->complaints ], [], 'no word on the console');

my %asked = map { s/\?.*//r => 1 } $browser->requests;

is_deeply([ keys %asked ], [ "http://127.0.0.1:$port/stats" ],
          'asked nobody else');

# the policy holds: what somebody might put into the page does not run

$browser->eval(q{
    const s = document.createElement('script');
    s.textContent = 'window.pwned = 1';
    document.body.append(s);
    const i = document.createElement('img');
    i.src = 'http://127.0.0.1:1/x';
    document.body.append(i);
});

ok($browser->wait_for(q{window.pwned === undefined}), 'no other script');
ok((grep { /Content Security Policy/ } $browser->complaints),
   'and the browser says why');



=== TEST 2: nothing to show, and nobody to ask
--- client_timeout: 90
--- config
    location = /stats { idempotency_stats html; }
--- client
my $browser = eval { IdempotencyTest::Browser->new };

if (!ok($browser, 'there is a browser')) {
    diag($@);
    return;
}

$browser->open("http://127.0.0.1:$port/stats#every=250");

my $error = q{document.getElementById('error').textContent};

ok($browser->wait_for("$error.match(/on nowhere/)"),
   'says that there is no store');
is_deeply([ $browser->complaints ], [], 'no word on the console');

edit_config(sub { s{location = /stats \S[^\}]*\}}{} });
ok(nginx_reload(), 'the figures are gone');
ok($browser->wait_for("$error.match(/no figures: HTTP 404/)"), 'says so');



=== TEST 3: an outage, a full store, and the hour before the page was opened
--- client_timeout: 240
--- http_config
    idempotency_store shared redis {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        connect_timeout  400ms;
        timeout          400ms;
        breaker          fails=3 reset=1s;
    }
    idempotency_store small memory { zone small:64k; }
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency        shared;
        idempotency_group  api;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /small/ {
        idempotency        small;
        idempotency_group  small;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $browser = eval { IdempotencyTest::Browser->new };

if (!ok($browser, 'there is a browser')) {
    diag($@);
    return;
}

my $post = sub {
    return http_post($_[0], 'x', { 'Idempotency-Key' => new_key() });
};

$browser->look(width => 820, height => 700);
$browser->open("http://127.0.0.1:$port/stats#every=250");

my $state = q{document.getElementById('state')};

ok($browser->wait_for("$state.textContent === 'all well'"), 'all well');
is($browser->eval("$state.getAttribute('role')"), 'status',
   'which is read out when it changes');
$browser->screenshot("$::screenshots/page-empty.png", 520);

$post->('/ok') for 1 .. 5;

my $held = { 'Idempotency-Key' => new_key() };
my $c = send_post('/hold?op=h', 'x', $held);

app_wait_parked('h');

# Redis is gone, and what was running ends meanwhile

$::redis->kill_it;
app_release('h');
is($c->read_response->status, 200, 'the client has its response');
$post->('/ok') for 1 .. 6;

ok($browser->wait_for("$state.className === 'bad'"), 'red');
ok($browser->wait_for("$state.textContent.match(/1 commit waits here/)"),
   'says what waits');
like($browser->eval("$state.textContent"),
     qr/^store shared: \w.* since \d\d:\d\d( [AP]M)?, 1 commit waits here$/,
     'which store, why, since when');
ok($browser->eval("+getComputedStyle($state).backgroundColor"
                  . ".match(/\\d+/)[0] > 120"), 'red it is');

for my $width (360, 820) {
    for my $scheme (qw(light dark)) {
        $browser->look(scheme => $scheme, width => $width, height => 700,
                       phone => $width == 360);
        ok($browser->wait_for(
               "document.documentElement.scrollWidth <= $width"),
           "fits $width px, $scheme");
    }
}

$browser->look(width => 820, height => 700);
$browser->screenshot("$::screenshots/page-outage.png", 900);

# the kind of a store is not that of what stands around it

like($browser->eval(q{[...document.querySelectorAll('#stores tbody tr')]
         .map(r => r.cells[0].textContent + ' ' + r.cells[1].textContent)
         .join()}), qr/^shared redis,small memory$/, 'kinds of stores');
like($browser->eval(q{document.getElementById('host').textContent}),
     qr/^\S+, up \d+ s/, 'host and uptime');

# by keyboard: first past the head, then the links

my @stops;

for (1 .. 3) {
    $browser->call('Input.dispatchKeyEvent', type => $_, key => 'Tab',
                   code => 'Tab', windowsVirtualKeyCode => 9)
        for qw(keyDown keyUp);
    push @stops, $browser->eval(q{document.activeElement.textContent});
}

is_deeply(\@stops, [ 'Skip to the stores', 'JSON', 'Prometheus' ],
          'stops of the tab key');
is($browser->eval(q{[...document.querySelectorAll('svg')]
                        .filter(e => !e.getAttribute('aria-label')).length}),
   0, 'every picture says what it is');
is($browser->eval(q{[...document.querySelectorAll('table')]
                        .filter(e => !e.caption || e.querySelector(
                                'thead th:not([scope])')).length}),
   0, 'and every table');

$::redis->spawn;
ok($browser->wait_for("$state.textContent.match(/all well/)"), 'quiet');
is($browser->eval("$state.className"), '', 'not red any more');
like($browser->eval("$state.textContent"), qr/shared was away from .* to /,
     'but says that it was away');

# a store that is full

for (1 .. 500) {
    last if $post->('/small/size?n=500')->status == 503;
}

ok($browser->wait_for("$state.textContent.match(/store small is full/)"),
   'full');
is($browser->eval("$state.className"), 'bad', 'red');
$browser->look(width => 820, height => 700);
$browser->screenshot("$::screenshots/page-full.png", 520);

is_deeply([ $browser->complaints ], [], 'no word on the console');

# who opens it now sees what was before

my $rows = q{fetch('?format=json&history=1').then(r => r.json())
             .then(j => j.stores[0].history.rows.length > 1)};

ok($browser->wait_for($rows, 30), 'two rows');

$browser->open("http://127.0.0.1:$port/stats?format=html#every=600000");
ok($browser->wait_for(
       q{[...document.querySelectorAll('#outcomes path')]
            .some(p => p.getAttribute('d').length > 5)}),
   'is drawn before anything was asked twice');
--- no_check_log
