# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The JavaScript client in a real browser, through the real gateway: the page is
# reloaded, the network goes away, a button is tapped twice, two documents begin
# the same operation.  One execution each, and its answer in the end.
#
# IDEMPOTENCY_NO_BROWSER=1 leaves it out.

use strict;
use warnings;
use lib 't/lib';
use Cwd ();
use IdempotencyTest;
use IdempotencyTest::Browser;
use Test::Nginx::Socket $ENV{IDEMPOTENCY_NO_BROWSER}
                        ? (skip_all => 'IDEMPOTENCY_NO_BROWSER is set')
                        : 'no_plan';

$ENV{TEST_NGINX_CLIENT_JS} = Cwd::cwd() . '/clients/js';

our $browser = eval { IdempotencyTest::Browser->new };

Test::More::ok($browser, 'there is a browser') or Test::More::diag($@);

# every block has a page of its own: storage is by address, and so by port, and
# the gateway of another block knows nothing of what this one remembers

add_block_preprocessor(sub {
    my $block = shift;

    $block->set_value('config', <<'CONFIG') if !defined $block->config;
    # a browser connects in advance, and nginx waits for what it might ask
    client_header_timeout  2s;

    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }

    location /client/ {
        alias         $TEST_NGINX_CLIENT_JS/;
        types         { text/javascript js; }
    }

    location = /page {
        default_type  text/html;
        return 200 '<!doctype html><title>page</title><button>Pay</button>
<script type="module">
import * as idempotency from "/client/index.js";

window.told = [];
window.client = new idempotency.IdempotencyClient({
    storage: idempotency.webStorage(), tryMs: 15000,
    onEvent: (e) => told.push(e.type),
});
window.post = async (path, body, call, init) => {
    try {
        const r = await client.fetch(path, { method: "POST", body, ...init }, call);
        return { status: r.status, body: await r.text(), ...r.idempotency };
    } catch (e) {
        return { code: e.code, name: e.name, outcome: e.outcome };
    }
};
</script>';
    }
CONFIG
});

run_tests();


sub open_page {
    $browser->open("http://127.0.0.1:$IdempotencyTest::port/page");
    $browser->wait_for('!!window.post') or die "the client is not loaded\n";
}

sub reload_page {
    $browser->eval('window.post = null, 1');
    $browser->call('Page.reload');
    $browser->wait_for('!!window.post') or die "the client is not loaded\n";
}

END { undef $browser }

__DATA__

=== TEST 1: the page is reloaded while it runs
--- client
main::open_page();
$::browser->eval(q{localStorage.clear(),
                 post('/hold?op=pay', '{"a":1}', { operation: 'pay' }), 1});
ok(app_wait_parked('pay'), 'it runs');

main::reload_page();
is($::browser->eval(q{client.pending().then((p) => p[0].operation)}), 'pay',
   'the page knows what it was about');
$::browser->eval(q{window.answer = post('/hold?op=pay', '{"a":1}',
                                      { operation: 'pay' }), 1});
app_release('pay');

my $r = $::browser->eval('answer');

is($r->{status}, 200, 'there is an answer');
is($r->{body}, "run 1\n", 'of the one execution');
is($r->{replayed}, JSON::PP::true(), 'the gateway had it');
is($r->{local}, JSON::PP::false(), 'and the page had not');
is(app_count('pay'), 1, 'ran once');

main::reload_page();
$r = $::browser->eval(q{post('/hold?op=pay', '{"a":1}', { operation: 'pay' })});
is($r->{body}, "run 1\n", 'a late retry, after another reload');
is($r->{local}, JSON::PP::true(), 'is answered by the page');
is($::browser->eval(q{told.includes('try')}), JSON::PP::false(), 'and not sent');

$r = $::browser->eval(q{post('/ok?op=pay', '{"a":2}', { operation: 'pay' })});
is($r->{body}, "run 2\n", 'another payload is another operation');



=== TEST 2: the network goes away while it runs
--- client
main::open_page();

my @how = (latency => 0, downloadThroughput => -1, uploadThroughput => -1);

$::browser->eval(q{localStorage.clear(),
                 window.answer = post('/hold?op=net', 'x'), 1});
ok(app_wait_parked('net'), 'it runs');
$::browser->call('Network.emulateNetworkConditions', offline => JSON::PP::true(),
               @how);
ok($::browser->wait_for(q{told.filter((t) => t === 'try').length > 1}),
   'the page tries again');
app_release('net');
$::browser->call('Network.emulateNetworkConditions', offline => JSON::PP::false(),
               @how);

my $r = $::browser->eval('answer');

is($r->{body}, "run 1\n", 'the answer of the one execution');
cmp_ok($r->{tries}, '>', 1, 'in some tries');
is(app_count('net'), 1, 'ran once');



=== TEST 3: a button is tapped twice
--- client
main::open_page();
$::browser->eval(q{localStorage.clear(), window.answers = [],
    document.querySelector('button').onclick =
        () => answers.push(post('/slow?op=tap&ms=300', 'x')), 1});
$::browser->eval(q{document.querySelector('button').click(),
                 document.querySelector('button').click(), 1});

my $r = $::browser->eval('Promise.all(answers)');

is(scalar @$r, 2, 'two answers');
is($_->{body}, "run 1\n", 'of one execution') for @$r;
is(app_count('tap'), 1, 'ran once');
is($::browser->eval(q{told.filter((t) => t === 'fold').length}), 1, 'folded here');



=== TEST 4: two documents begin the same operation
--- client
main::open_page();
$::browser->eval(q{localStorage.clear(),
    document.body.appendChild(document.createElement('iframe')).src = '/page',
    1});
ok($::browser->wait_for('!!frames[0].post'), 'there are two');

my $r = $::browser->eval(q{Promise.all([window, frames[0]].map(
    (w) => w.post('/slow?op=two&ms=300', 'x', { operation: 'two' })))});

is($_->{body}, "run 1\n", 'the answer') for @$r;
is($r->[0]{key}, $r->[1]{key}, 'under one key');
is(app_count('two'), 1, 'ran once');



=== TEST 5: the caller does not want it any more
--- client
main::open_page();
$::browser->eval(q{localStorage.clear(), window.abort = new AbortController(),
    window.answer = post('/hold?op=stop', 'x', { operation: 'stop' },
                         { signal: abort.signal }), 1});
ok(app_wait_parked('stop'), 'it runs');
is($::browser->eval(q{abort.abort(), answer})->{name}, 'AbortError', 'told');
app_release('stop');

my $r = $::browser->eval(q{post('/hold?op=stop', 'x', { operation: 'stop' })});

is($r->{body}, "run 1\n", 'who asks again has the answer');
is($r->{replayed}, JSON::PP::true(), 'that was kept');
is(app_count('stop'), 1, 'ran once');



=== TEST 6: a stream is read as it comes, and a form is sent
--- client
main::open_page();
is($::browser->eval(q{localStorage.clear(), client.fetch('/sse?op=s&n=3', {
       method: 'POST', body: 'x' }).then(async (r) => {
           const reader = r.body.getReader();
           let text = '';
           for (;;) {
               const { done, value } = await reader.read();
               if (done) return text;
               text += new TextDecoder().decode(value);
           }
       })}), join('', map { "data: run 1 event $_\n\n" } 1 .. 3), 'events');

my $r = $::browser->eval(q{(() => { const form = new FormData();
    form.set('a', '1'); return post('/echo?op=form', form); })()});

is($r->{status}, 200, 'a form');
like($r->{body}, qr/multipart\\?\/form-data; boundary=/, 'with its boundary');
