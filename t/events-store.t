# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The events of a store that is elsewhere: it is slow, it fails, its breaker
# opens and closes, a commit does not get through.  Each is a line of JSON, and
# none has a key, a body or a credential in it.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our ($redis);

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'redis') {
    $redis = start_redis('--requirepass', 'the-password-of-redis');
    $redis->{auth} = 'the-password-of-redis';
}

if (($ENV{IDEMPOTENCY_STORE} || '') eq 'postgres') {
    $redis = start_postgres();
    $redis->sql("ALTER ROLE nginx PASSWORD 'the-password-of-redis'");
    $redis->ask_passwords;
}

$ENV{TEST_NGINX_OWN_PORT} = $redis->{port} if $redis;

add_block_preprocessor(sub { $redis->resume if $redis });

sub lines { return "$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json" }

sub wait_event
{
    my ($name) = @_;

    my @found;

    wait_for(sub { @found = grep { $_->{event} eq "idempotency.$name" }
                                 read_events(lines(), slow => 1) }, 10);

    ok(scalar @found, "idempotency.$name");
    return $found[0] || {};
}

run_tests();

__DATA__

=== TEST 1: slow, failing, open, closed
--- store: redis postgres
--- http_config
    idempotency_store shared $TEST_REMOTE {
        server           127.0.0.1:$TEST_NGINX_OWN_PORT;
        password         the-password-of-redis;
        connect_timeout  400ms;
        timeout          400ms;
        breaker          fails=2 reset=300ms;
    }
--- config
    location / {
        idempotency      shared;
        idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %secret = (Authorization => 'Bearer the-token-of-the-client');
my $ask = sub {
    my ($key) = @_;
    return http_post('/ok?op=a', 'the-body-of-the-request',
                     { 'Idempotency-Key' => "the-key-$key", %secret });
};

is($ask->(1)->status, 200, 'ran');

# slower than 100 ms, and in time

$::redis->pause;
my $c = send_post('/ok?op=b', 'the-body-of-the-request',
                  { 'Idempotency-Key' => 'the-key-2', %secret });
sleep 0.2;
$::redis->resume;
is($c->read_response->status, 200, 'ran, late');

my $slow = wait_event('storage.slow');
is($slow->{level}, 'warn', 'a warning');
is($slow->{store}, 'shared', 'of the store');
like($slow->{reason}, qr/^(?:begin|commit)$/, 'says which operation');
cmp_ok($slow->{duration_ms}, '>=', 100, 'how long it took');
is($slow->{threshold_ms}, 100, 'and what is slow');

# away: two failures open the breaker

$::redis->pause;
is($ask->(3)->error_code, 'STORE_UNAVAILABLE', 'refused');
is($ask->(4)->error_code, 'STORE_UNAVAILABLE', 'refused');

my $error = wait_event('storage.error');
is($error->{level}, 'error', 'an error');
is($error->{outcome} // '', '', 'before there is an outcome');

my $opened = wait_event('circuit_breaker.opened');
is($opened->{level}, 'warn', 'a warning');
is($opened->{store}, 'shared', 'of the store');
is($opened->{failure_count}, 2, 'after two failures');
is($opened->{threshold}, 2, 'which is what it takes');
ok($opened->{reason}, 'with the last error');

# back: a probe closes it

$::redis->resume;
ok(wait_for(sub { $ask->(5)->status == 200 || (sleep(0.05), 0)[1] }, 10),
   'it answers again');

is(wait_event('circuit_breaker.closed')->{level}, 'info', 'information');

# a commit that does not get through

$c = send_post('/hold?op=c', 'the-body-of-the-request',
               { 'Idempotency-Key' => 'the-key-6', %secret });
app_wait_parked('c');
my $before = grep { $_->{event} eq 'idempotency.storage.error' }
                  read_events(lines());
$::redis->pause;
app_release('c');
is($c->read_response->status, 200, 'the client has its response');

ok(wait_for(sub { (grep { $_->{event} eq 'idempotency.storage.error' }
                        read_events(lines())) > $before }, 10),
   'the commit that failed is told');
$::redis->resume;

# nothing of it is secret

open my $f, '<', lines() or die $!;
my $text = join '', <$f>;
unlike($text, qr/the-(?:key|body|token|password)/, 'no secret in an event');
unlike(join("\n", grep { /idempotency/ && !/the-key.*request:/ }
                  split /\n/, error_log()),
       qr/the-(?:key|body|token|password)/, 'nor in the log');
