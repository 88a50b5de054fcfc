# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# limit_req and limit_conn act before: a retry counts against a limit as any
# request does, and one that a limit refuses leaves no trace in the store.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: limit_req
--- http_config
    limit_req_zone  $http_x_client  zone=strict:1m  rate=1r/m;
    limit_req_zone  $http_x_client  zone=delayed:1m  rate=4r/s;
    log_format      status  '$arg_op $status [$idempotency_status]';
--- config
    access_log        logs/access.log status;
    idempotency       $TEST_STORE;
    limit_req_status  429;
    location / {
        limit_req     zone=strict;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /delayed/ {
        limit_req     zone=delayed burst=5;
        proxy_pass    http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
sub try_as
{
    my ($client, $uri, $body, $key) = @_;

    return http_post($uri, $body, { 'Idempotency-Key' => $key,
                                    'X-Client' => $client });
}

my $key = new_key();

is(try_as('a', '/ok?op=one', 'x', $key)->body, "run 1\n", 'let in');

my $r = try_as('a', '/ok?op=one', 'x', $key);
is($r->status, 429, 'a replay is over the limit');
is($r->error_code, '', "of nginx's own");
is(try_as('a', '/ok?op=one', 'y', $key)->status, 429, 'a conflict too');
is(try_as('a', '/ok?op=one', 'y', 'a b')->status, 429, 'a wrong key too');
access_log_like(qr/^one 200 \[EXECUTED\]\n(?:one 429 \[-\]\n){3}/m,
                'none of them is looked at');

is(try_as('b', '/ok?op=one', 'x', $key)->header('Idempotent-Replayed'), 'true',
   'within the limit, replayed');
is(try_as('b', '/ok?op=one', 'x', $key)->status, 429,
   'which has counted against it');
is(app_count('one'), 1, 'ran once');

# refused at first: nothing is taken for it

$key = new_key();
is(try_as('a', '/ok?op=two', 'x', $key)->status, 429, 'refused');
is(try_as('c', '/ok?op=two', 'y', $key)->body, "run 1\n",
   'no record, so no conflict');
is(try_as('d', '/ok?op=two', 'y', $key)->header('Idempotent-Replayed'), 'true',
   'the one that ran is replayed');

# put off: in the end as without

$key = new_key();
my @c = map { send_post('/delayed/hold?op=three', 'x',
                        { 'Idempotency-Key' => $key, 'X-Client' => 'e' }) }
        1 .. 3;
is(app_wait_parked('three'), 1, 'the first runs');
app_release('three');

my @r = map { $_->read_response } @c;
is($_->body, "run 1\n", 'answered') for @r;
is(scalar(grep { $_->header('Idempotent-Replayed') } @r), 2, 'two replays');
is(app_count('three'), 1, 'ran once');



=== TEST 2: limit_conn
--- http_config
    limit_conn_zone    $http_idempotency_key  zone=one:1m;
--- config
    location / {
        idempotency        $TEST_STORE;
        limit_conn         one 1;
        limit_conn_status  429;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my %key = ('Idempotency-Key' => new_key());

my $holder = send_post('/hold?op=a', 'x', \%key);
app_wait_parked('a');

my $r = http_post('/hold?op=a', 'x', \%key);
is($r->status, 429, 'a second one does not wait');
is($r->error_code, '', "it is nginx's limit");

app_release('a');
is($holder->read_response->body, "run 1\n", 'the first is answered');
is(http_post('/hold?op=a', 'x', \%key)->header('Idempotent-Replayed'), 'true',
   'and replayed after that');
