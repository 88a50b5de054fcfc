# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Stripe's own client for node, with its automatic retries, against
# examples/stripe.conf as it is: whatever breaks, an operation runs once.
#
# The package is fetched into build/npm when it is not there yet.  Where there is
# no npm to be had this test says so, and is skipped.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use IdempotencyTest::Npm;
use Test::Nginx::Socket;
use vars qw($URI $PACKAGE);

$URI = '/v1/payment_intents';
$PACKAGE = npm_package('stripe', '23.1.0', "Stripe's client");

plan('no_plan');

sub stripe
{
    my ($scenario, %o) = @_;

    return run_node($PACKAGE, 'stripe.mjs',
                    { scenario => $scenario, port => $ENV{TEST_NGINX_PORT_2} + 0,
                      %o });
}

sub intent { { status => 200, body => '{"id":"pi_{run}","object":"payment_intent"}',
               @_ } }

run_tests();

__DATA__

=== TEST 1: a payment, its key and its replay
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
app_answer($URI, intent());

my $first = stripe('create', key => 'order-17');

is($first->{id}, 'pi_1', 'created');
is($first->{echoed}, 'order-17', 'Idempotency-Key is echoed');
is($first->{replayed}, undef, 'ran');

my $again = stripe('create', key => 'order-17');

is($again->{id}, 'pi_1', 'again');
is($again->{replayed}, 'true', 'is a replay');
is($again->{asked}, 1, 'asked once');
is(app_count($URI), 1, 'ran once');

# the client makes a key by itself, and it counts

my $own = stripe('create');

is($own->{id}, 'pi_2', 'another payment');
like($own->{echoed}, qr/^stripe-node-retry-/, 'with a key of the client');



=== TEST 2: other parameters under the same key
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
app_answer($URI, intent());

my $r = stripe('mismatch', key => 'order-17');

is($r->{status}, 400, 'a 400');
is($r->{error}, 'StripeIdempotencyError', 'which the client knows');
is($r->{rawType}, 'idempotency_error', 'by its type');
like($r->{message}, qr/^Keys for idempotent requests can only be used with/,
     'and its message');
is($r->{asked}, 1, 'it does not try again');
is(app_count($URI), 1, 'ran once');



=== TEST 3: two at a time
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
app_answer($URI, intent(ms => 700));

my $r = stripe('twice', key => 'order-17');

is_deeply([ map { $_->{id} } @$r ], [ 'pi_1', 'pi_1' ], 'both get the payment');
cmp_ok($r->[0]{asked} + $r->[1]{asked}, '>', 2, 'one of them was told 409');
is(app_count($URI), 1, 'ran once');



=== TEST 4: the client's timeout
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
app_answer($URI, intent(ms => 900));

my $r = stripe('timeout');

is($r->{id}, 'pi_1', 'the client gets its payment in the end');
is($r->{replayed}, 'true', 'as a replay');
cmp_ok($r->{asked}, '>', 1, "after $r->{asked} tries");
is(@{ $r->{keys} }, 1, 'all with one key');
is(app_count($URI), 1, 'ran once');



=== TEST 5: connections that are closed
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
# ... when the response is on its way

app_answer($URI, intent());

my $r = stripe('closed', when => 'late');

is($r->{id}, 'pi_1', 'lost with the response');
is($r->{replayed}, 'true', 'replayed');
is($r->{asked}, 2, 'at the second try');
is(app_count($URI), 1, 'ran once');

# ... while it runs

app_answer($URI, intent(), intent(ms => 500));

$r = stripe('closed', when => 'early');

is($r->{id}, 'pi_2', 'lost while it ran');
is($r->{replayed}, 'true', 'replayed');
is(app_count($URI), 2, 'ran once');



=== TEST 6: errors of the application
--- http_config eval: main::example('stripe')
--- config
    location /unused { }
--- client
# 500: kept, and the client is told that it need not try

my $error = '{"error":{"type":"api_error","message":"no"}}';

app_answer($URI, { status => 500, body => $error }, intent());

my $r = stripe('create');

is($r->{status}, 500, 'a 500');
is($r->{error}, 'StripeAPIError', 'is an error');
is($r->{should}, 'false', 'Stripe-Should-Retry: false');
is($r->{asked}, 1, 'asked once');
is(app_count($URI), 1, 'ran once');

# 409 of the application itself: nothing was done, and the client tries again

app_answer($URI, intent(), { status => 409, body => $error }, intent());

$r = stripe('create');

is($r->{id}, 'pi_3', 'a 409 of its own is tried again');
is($r->{asked}, 2, 'once');

# it dies with the request: nobody knows, and it does not run again

app_answer($URI, intent(), intent(), intent(), { close => 1 }, intent());

$r = stripe('create');

is($r->{status}, 409, 'it died');
is($r->{should}, 'false', 'Stripe-Should-Retry: false');
cmp_ok($r->{asked}, '<=', 2, 'the client sees a 502, and then gives up');
is(app_count($URI), 4, 'ran once');
