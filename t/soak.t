# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Thousands of mixed requests over two workers, clients that leave among them:
# every operation runs at most once, and nothing is left behind: no lock, no
# connection, no memory.
#
#     SOAK=100000 prove -v t/soak.t     for a long run, which tells its figures

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

use Time::HiRes ();

our $requests = $ENV{SOAK} || 3000;
our $windows = $requests <= 10000 ? 6 : int($requests / 2500);
our (@pool, %bad, %seen, $sent, $op_number);

# what an operation may be: a URI, the status it is kept with, and how often
# that comes up

our @kinds = (
    [ '/ok',                   200, 40 ],
    [ '/headers',              201, 15 ],
    [ '/204',                  204, 5  ],
    [ '/status/404',           404, 5  ],
    [ '/size?n=3000',          200, 10 ],
    [ '/size?n=20000',         200, 5  ],
    [ '/size?n=9000&chunked=1', 200, 5 ],
    [ '/size?n=120000',        200, 1  ],
    [ '/slow?ms=15',           200, 6  ],
    [ '/unbuffered/size?n=3000', 200, 4 ],
    [ '/status/503',           503, 2  ],
    [ '/close',                502, 2  ],
);
our @lots = map { ($_) x $_->[2] } @kinds;


sub new_op
{
    my $kind = $lots[rand @lots];
    my $id = 'op' . ++$op_number;
    my $uri = $kind->[0] . ($kind->[0] =~ /\?/ ? '&' : '?') . "op=$id";

    return { id => $id, uri => $uri, status => $kind->[1], kind => $kind->[0],
             method => (qw(POST POST PUT DELETE PATCH))[rand 5],
             body => $id x (1 + int rand 20), key => new_key() };
}


sub send_op
{
    my ($c, $op, $body) = @_;

    $sent++;
    $c->request($op->{method}, $op->{uri}, defined $body ? $body : $op->{body},
                { 'Idempotency-Key' => $op->{key} });
}


# is this what a client may get for that operation?

sub look
{
    my ($op, $r, $what) = @_;

    if (!$r) {
        $bad{"$op->{kind}: no answer"}++;
        return;
    }

    $seen{$what . ' ' . $r->status}++;

    my $right;

    if ($what eq 'conflict') {
        $right = $r->error_code eq 'IDEMPOTENCY_CONFLICT';

    } elsif ($op->{status} == 502) {
        $right = $r->status == 502 || $r->error_code eq 'OUTCOME_UNKNOWN';

    } elsif ($op->{status} == 503) {
        $right = $r->status == 503 && $r->error_code eq '';

    } else {
        $right = $r->status == $op->{status}
                 && ($r->status == 204 || $r->body =~ /^run 1\b/)
                 || $r->error_code eq 'RESPONSE_NOT_KEPT' && $requests > 10000;
    }

    $bad{"$op->{kind}: $what " . $r->status . ' ' . substr $r->body, 0, 200}++
        if !$right;
}


sub soak
{
    my $n = shift;

    my (@ops, @done, $h2, %h2);
    my $end = $sent + $n;

    while ($sent < $end) {
        my @batch;

        for my $c (@pool) {
            my $dice = rand;

            if ($dice < 0.45 || !@done) {
                push @ops, my $op = new_op();
                send_op($c, $op);
                push @batch, [ $c, $op, 'first' ];

            } elsif ($dice < 0.75) {

                # of late, so also one that is under way on another connection

                my $op = $ops[-1 - int rand(@ops < 20 ? @ops : 20)];
                send_op($c, $op);
                push @batch, [ $c, $op, 'retry' ];

            } elsif ($dice < 0.80) {
                my $op = $done[rand @done];
                next if $op->{status} == 503;
                send_op($c, $op, "not $op->{body}");
                push @batch, [ $c, $op, 'conflict' ];

            } elsif ($dice < 0.87) {
                my $op = $dice < 0.84 ? new_op() : $ops[rand @ops];
                push @ops, $op if $dice < 0.84;

                my $left = connect_client();
                send_op($left, $op);
                $left->read_some(1, 0.003) if rand() < 0.5;
                rand() < 0.5 ? $left->abort : $left->reset;

            } elsif ($dice < 0.90) {
                my $half = connect_client();
                $sent++;
                $half->send_part("POST /ok?op=half HTTP/1.1\r\nHost: localhost"
                                 . "\r\nIdempotency-Key: half$sent\r\n"
                                 . "Content-Length: 10\r\n\r\n01234");
                rand() < 0.5 ? $half->abort : $half->reset;

            } elsif ($dice < 0.95) {
                $h2 ||= h2_connect();
                push @ops, my $op = new_op();
                $sent++;
                my $id = $h2->request($op->{method}, $op->{uri}, $op->{body},
                                      { 'idempotency-key' => $op->{key} });
                rand() < 0.3 ? $h2->rst($id) : ($h2{$id} = $op);

            } else {
                $sent++;
                $c->request('POST', '/ok', 'x', { 'Idempotency-Key' => 'a b' });
                $bad{'a bad key'}++ if $c->read_response->status != 400;
            }
        }

        for my $b (@batch) {
            my ($c, $op, $what) = @$b;
            look($op, $c->read_response, $what);
            push @done, $op if $what eq 'first';
        }

        if ($h2 && rand() < 0.2) {
            look($h2{$_}, $h2->response($_), 'HTTP/2') for keys %h2;
            rand() < 0.3 ? $h2->reset : $h2->abort;
            ($h2, %h2) = ();
        }
    }

    # Whatever became of the first tries: a retry of each is answered, which
    # takes that no lock is left.  Then nothing runs any more.

    for my $op (@ops) {
        next if $op->{status} == 503;
        my $c = $pool[0];
        send_op($c, $op);
        look($op, $c->read_response, 'last');
    }

    $h2->abort if $h2;

    my $control = connect_client(port => $ENV{TEST_NGINX_APP_PORT});

    for my $op (@ops) {
        next if $op->{status} == 503;
        $control->request('GET', "/_count?op=$op->{id}");
        my $ran = $control->read_response->body;
        $bad{"$op->{kind}: ran $ran times"}++ if $ran != 1;
    }

    $bad{'ran half a request'}++ if app_count('half');
    $control->abort;
    app_reset();

    return scalar @ops;
}


# of both workers: private memory in kB, without the zone that they share

sub memory
{
    my $sum = 0;

    for my $pid (nginx_workers()) {
        open my $in, '<', "/proc/$pid/status" or next;
        /^RssAnon:\s+(\d+)/ and $sum += $1 while <$in>;
    }

    return $sum;
}

sub descriptors
{
    my $sum = 0;

    for my $pid (nginx_workers()) {
        $sum += () = glob "/proc/$pid/fd/*";
    }

    return $sum;
}

run_tests();

__DATA__

=== TEST 1: soak
--- workers: 2
--- h2
--- client_timeout: 3600
--- config
    keepalive_requests    1000000;
    access_log            off;

    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  20s;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /unbuffered/ {
        idempotency       $TEST_STORE;
        idempotency_wait  20s;
        proxy_buffering   off;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
srand($ENV{SOAK_SEED} || 1);

my $start = Time::HiRes::time();
my $connections = descriptors();
my @workers = nginx_workers();

@::pool = map { connect_client() } 1 .. 16;
$::sent = 0;

my $ops = 0;
my @memory;

for my $window (1 .. $::windows) {
    $ops += soak($::requests / $::windows);
    push @memory, memory();

    Test::More::note(sprintf '%d requests, %d kB', $::sent, $memory[-1]);
}

my $took = Time::HiRes::time() - $start;

is_deeply(\%::bad, {}, 'every answer is right, and everything ran once');
cmp_ok($::seen{'retry 200'}, '>', 0, 'there were replays');
cmp_ok($::seen{'conflict 409'}, '>', 0, 'there were conflicts');
is_deeply([ nginx_workers() ], \@workers, 'no worker died');

# a store may have opened connections of its own, a few for each worker

$_->abort for @::pool;
ok(wait_for(sub { descriptors() <= $connections + 8 }, 10),
   'no connection is left')
    or diag('descriptors: ', $connections, ' before, ', descriptors(), ' now');

# a sanitizer keeps what is freed for a while

if (!$ENV{IDEMPOTENCY_SANITIZER_LOGS} && !$ENV{IDEMPOTENCY_VALGRIND}) {
    my $half = $memory[$#memory / 2];
    cmp_ok($memory[-1] - $half, '<', 512, 'memory does not grow (kB)');
}

if ($ENV{SOAK}) {
    diag(sprintf '%d requests, %d operations, %.0f s; private memory of both '
                 . 'workers in kB: %s', $::sent, $ops, $took, "@memory");
    diag(join ', ', map { "$_: $::seen{$_}" } sort keys %::seen);
}
