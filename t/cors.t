# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/cors.conf, as it is, with a real browser: a page of another origin
# can send keys, and can read replays and the module's own errors; a response
# that was stored for one origin is replayed to another one.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Browser;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

# pages are served by the test's own server, under two names; the API listens
# elsewhere, which makes it another origin

sub origins
{
    return sub {
        s{https://app\.example\.com }{"http://127.0.0.1:\$TEST_NGINX_SERVER_PORT" };
        s{https://admin\.example\.com }{"http://localhost:\$TEST_NGINX_SERVER_PORT" };
    };
}

sub page
{
    my ($browser, $host) = @_;

    $browser->open("http://$host:$ENV{TEST_NGINX_SERVER_PORT}/page.html");
}

# what a page gets to see: status, body and those headers that it may read; or
# that it may see nothing

sub fetched
{
    my ($browser, $uri, $body, $key, %o) = @_;

    my $options = JSON::PP->new->canonical->encode({
        method => $o{method} || 'POST', body => $body, credentials => 'include',
        headers => { 'Content-Type' => 'application/json',
                     $key ? ('Idempotency-Key' => $key) : (),
                     %{ $o{headers} || {} } },
    });

    return JSON::PP->new->utf8(0)->decode($browser->eval(qq{
        fetch("http://127.0.0.1:$ENV{TEST_NGINX_PORT_2}$uri", $options)
        .then(r => r.text().then(body => ({
            status: r.status, body,
            replayed: r.headers.get('Idempotent-Replayed'),
            time: r.headers.get('X-Original-Request-Time'),
            retry: r.headers.get('Retry-After'),
            location: r.headers.get('Location') })))
        .catch(e => ({ failed: e.name }))
        .then(JSON.stringify)
    }));
}

run_tests();

__DATA__

=== TEST 1: a page, its retries, and another page
--- http_config eval: main::example('cors', main::origins())
--- user_files
>>> page.html
<!doctype html><title>page</title>
--- config
    location / { root html; }
--- client
my $browser = eval { IdempotencyTest::Browser->new };

if (!ok($browser, 'there is a browser')) {
    diag($@);
    return;
}

# the application, too, has something to say of origins

app_answer('/orders', {
    status => 201, body => '{"order":{run}}', headers => [
        [ 'Content-Type', 'application/json' ], [ 'Location', '/orders/1' ],
        [ 'Access-Control-Allow-Origin',
          "http://127.0.0.1:$ENV{TEST_NGINX_SERVER_PORT}" ],
        [ 'Access-Control-Expose-Headers', 'X-Other' ],
    ] });

page($browser, '127.0.0.1');

my $first = fetched($browser, '/orders', '{"n":1}', 'k1');

is($first->{status}, 201, 'a page of another origin can send a key');
is($first->{body}, '{"order":1}', 'and read the response');
is($first->{location}, '/orders/1', 'and its headers');
is($first->{replayed}, undef, 'it ran');

my $retry = fetched($browser, '/orders', '{"n":1}', 'k1');

is($retry->{body}, '{"order":1}', 'a retry');
is($retry->{replayed}, 'true', 'is a replay, which the page can tell');
like($retry->{time}, qr/^\d{4}-/, 'and since when');

# an error of the module

my $conflict = fetched($browser, '/orders', '{"n":2}', 'k1');

is($conflict->{status}, 409, 'a conflict reaches the page');
like($conflict->{body} || '', qr/IDEMPOTENCY_CONFLICT/, 'with its code');

my $bad = fetched($browser, '/orders', '{"n":2}', 'not a key');

is($bad->{status}, 400, 'so does a key that is none');

# a method that the browser asks for by itself

app_answer('/orders/1', { body => '{"changed":{run}}' });
is(fetched($browser, '/orders/1', '{"n":3}', 'k2', method => 'PUT')->{body},
   '{"changed":1}', 'PUT');

# another page of the same user

page($browser, 'localhost');

my $other = fetched($browser, '/orders', '{"n":1}', 'k1');

is($other->{status}, 201, 'a page of yet another origin');
is($other->{body}, '{"order":1}', 'gets the stored response');
is($other->{replayed}, 'true', 'as a replay');
is(app_count('/orders'), 1, 'it ran once in all');



=== TEST 2: pages that may not
--- http_config eval
main::example('cors', sub {
    s{https://app\.example\.com }{"http://127.0.0.1:\$TEST_NGINX_SERVER_PORT" } })
--- user_files
>>> page.html
<!doctype html><title>page</title>
--- config
    location / { root html; }
--- client
my $browser = eval { IdempotencyTest::Browser->new };

if (!ok($browser, 'there is a browser')) {
    diag($@);
    return;
}

app_answer('/orders', { status => 201, body => '{"order":{run}}' });

page($browser, '127.0.0.1');
is(fetched($browser, '/orders', '{}', 'k1')->{status}, 201, 'a page that may');

page($browser, 'localhost');
is(fetched($browser, '/orders', '{}', 'k1')->{failed}, 'TypeError',
   'a page that may not sees no stored response');
is(app_count('/orders'), 1, 'and nothing ran');



=== TEST 3: the headers, by themselves
--- http_config eval: main::example('cors')
--- config
    location /unused { }
--- client
app_answer('/orders', { status => 201, body => '{"order":{run}}', hold => 1,
    headers => [ [ 'Access-Control-Allow-Origin', 'https://app.example.com' ] ] });

my %app = (Origin => 'https://app.example.com', 'Idempotency-Key' => 'k1');

my $r = example_request('OPTIONS', '/orders', undef, {
    Origin => 'https://app.example.com', 'Access-Control-Request-Method' => 'POST',
    'Access-Control-Request-Headers' => 'content-type,idempotency-key' });

is($r->status, 204, 'the question before it');
is($r->header('Access-Control-Allow-Origin'), 'https://app.example.com',
   'the origin may');
like($r->header('Access-Control-Allow-Headers'), qr/Idempotency-Key/,
     'with a key');
cmp_ok($r->header('Access-Control-Max-Age'), '>', 0, 'for a while');
is($r->header('Vary'), 'Origin', 'caches know');
is(app_count('/orders'), 0, 'which the application never sees');

my $c = example_send('/orders', 'x', \%app);
app_wait_parked('/orders');
app_release('/orders');

for my $r ($c->read_response,
           example_post('/orders', 'x', \%app),
           example_post('/orders', 'y', \%app))
{
    my @origin = $r->header('Access-Control-Allow-Origin');

    is_deeply(\@origin, [ 'https://app.example.com' ],
              $r->status . ': one origin');
    is($r->header('Vary'), 'Origin', $r->status . ': caches know');
    like($r->header('Access-Control-Expose-Headers'), qr/Idempotent-Replayed/,
         $r->status . ': what a page may read');
}

$r = example_post('/orders', 'x', { %app, Origin => 'https://admin.example.com' });
is_deeply([ $r->header('Access-Control-Allow-Origin') ],
          [ 'https://admin.example.com' ], 'a replay to another origin');

$r = example_post('/orders', 'x', { %app, Origin => 'https://evil.example' });
is_deeply([ $r->header('Access-Control-Allow-Origin') ], [],
          'none to one that may not');

# a key is one of its session, whatever page it comes from

my @session = map { (Cookie => "session=$_") } qw(a b);
my %own = (Origin => 'https://app.example.com', 'Idempotency-Key' => 'k3');

app_answer('/carts', { status => 201, body => '{"cart":{run}}' });

is(example_post('/carts', 'x', { %own, @session[0, 1] })->status, 201,
   'a session');
$r = example_post('/carts', 'x', { %own, @session[2, 3] });
is($r->status, 409, 'another one does not get its response');
unlike($r->body, qr/cart/, 'nor anything of it');
is(example_post('/carts', 'x', { %own, Origin => 'https://admin.example.com',
                                 @session[0, 1] })->status, 201,
   'the same one does, from another page');
is(app_count('/carts'), 1, 'it ran once');
