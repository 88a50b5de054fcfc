# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The promises over HTTP/3, with curl: replays, conflicts, waiting, streams, and
# clients that leave.  "make test-http3" builds the nginx and fetches the curl
# that this takes; where they are not there, this says so and is skipped.

use strict;
use warnings;
use lib 't/lib';

our ($NGINX, $CURL);

BEGIN {
    $NGINX = $ENV{IDEMPOTENCY_HTTP3_NGINX} || 'build/http3/objs/nginx';
    $CURL = 'build/http3/curl';

    # the module is in that nginx

    if (-x $NGINX && -x $CURL) {
        require Cwd;
        $ENV{TEST_NGINX_BINARY} = Cwd::abs_path($NGINX);
        $ENV{IDEMPOTENCY_MODULE} = 'static';
    }
}

use IdempotencyTest;
use Test::Nginx::Socket;
use Time::HiRes qw(time);

if (!-x $NGINX || !-x $CURL) {
    diag("\nSKIPPED: HTTP/3 was NOT tested: \"make test-http3\" does\n");
    plan(skip_all => 'no nginx and curl with HTTP/3, see "make test-http3"');
}

plan('no_plan');

our $H3 = $ENV{TEST_NGINX_H3_PORT} = free_port();
our $DIR = Cwd::cwd() . "/build/http3.$$";

mkdir $DIR;
system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
       . " -keyout $DIR/key.pem -out $DIR/cert.pem > $DIR/log 2>&1") == 0
    or die "openssl: no certificate, see $DIR/log\n";

$ENV{TEST_NGINX_H3_DIR} = $DIR;

END { system('rm', '-rf', $DIR) if $DIR }


# a curl that runs: { pid, out }; its output comes as it is received

our @running;

sub h3_send
{
    my ($uri, $key, @more) = @_;

    my $pid = open my $out, '-|', "./$CURL", '--http3-only', '-k', '-s', '-N',
        '-i', '--resolve', "localhost:$H3:127.0.0.1", '--max-time', '40',
        '-X', 'POST', '--data', 'x', '-H', "Idempotency-Key: $key", @more,
        "https://localhost:$H3$uri";

    die "curl: $!\n" if !$pid;
    push @running, $pid;

    return { pid => $pid, out => $out, in => '' };
}

sub h3_read
{
    my $c = shift;

    local $/;
    $c->{in} .= readline($c->{out}) // '';
    close $c->{out};
    $c->{exit} = $? >> 8;

    my ($head, $body) = split /\r\n\r\n/, $c->{in}, 2;
    my ($status) = ($head // '') =~ m{^HTTP/3 (\d+)};
    my ($code) = ($body // '') =~ /"code":"(\w+)"/;

    return { status => $status || 0, body => $body // '', exit => $c->{exit},
             code => $code || '', head => $head // '',
             replayed => scalar(($head // '') =~ /^idempotent-replayed: true/mi) };
}

# what came, once it is so much

sub h3_some
{
    my ($c, $re) = @_;

    while ($c->{in} !~ $re) {
        sysread $c->{out}, $c->{in}, 65536, length $c->{in} or last;
    }

    return $c->{in};
}

sub h3 { return h3_read(h3_send(@_)) }

# It leaves in order (curl gives up, and says so to the server), or vanishes.
# Then nginx waits for keepalive_timeout before it leaves, with the module and
# without.

sub h3_vanish { my $c = shift; kill KILL => $c->{pid}; close $c->{out} }

run_tests();

__DATA__

=== TEST 1: replays, conflicts, refusals, waiting
--- config
    listen                  127.0.0.1:$TEST_NGINX_H3_PORT quic;
    ssl_certificate         $TEST_NGINX_H3_DIR/cert.pem;
    ssl_certificate_key     $TEST_NGINX_H3_DIR/key.pem;

    idempotency             $TEST_STORE;
    idempotency_wait        20s;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /now/ {
        idempotency_wait    0;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $key = new_key();
my $first = main::h3('/headers?op=pay', $key);
my $again = main::h3('/headers?op=pay', $key);

is($first->{status}, 201, 'ran, over HTTP/3');
is($again->{status}, 201, 'again');
ok($again->{replayed} && !$first->{replayed}, 'replayed');
is($again->{body}, $first->{body}, 'the same body');
is(join("\n", grep { /^set-cookie/i } split /\r\n/, $again->{head}),
   join("\n", grep { /^set-cookie/i } split /\r\n/, $first->{head}),
   'the same cookies');
is(http_post('/headers?op=pay', 'x',
             { 'Idempotency-Key' => $key,
               'Content-Type' => 'application/x-www-form-urlencoded' })
       ->header('Idempotent-Replayed'), 'true', 'and over HTTP/1');
is(app_count('pay'), 1, 'ran once');

is(main::h3('/headers?op=pay', $key, '--data', 'y')->{code},
   'IDEMPOTENCY_CONFLICT', 'another body');
is(main::h3('/ok', '%20bad%20')->{code}, 'IDEMPOTENCY_KEY_INVALID', 'a bad key');

$key = new_key();
is(main::h3('/status/503?op=no', $key)->{body}, "run $_\n", "503: run $_")
    for 1, 2;

$key = new_key();
for my $n (1, 2) {
    my $big = main::h3('/size?n=700000&op=big', $key);
    is(length $big->{body}, 700_000, "large: $n");
}
is(app_count('big'), 1, 'large: ran once');

$key = new_key();
my $holder = main::h3_send('/ok?hold=1&op=wait', $key);
app_wait_parked('wait', 1, 20);
is(main::h3('/now/ok?op=other', $key)->{code}, 'IDEMPOTENCY_CONFLICT',
   'another request meanwhile');
my $waiter = main::h3_send('/ok?hold=1&op=wait', $key);
app_release('wait');
is(main::h3_read($_)->{body}, "run 1\n", 'holder and waiter')
    for $holder, $waiter;
is(app_count('wait'), 1, 'ran once');



=== TEST 2: streams, and clients that leave
--- config
    listen                  127.0.0.1:$TEST_NGINX_H3_PORT quic;
    ssl_certificate         $TEST_NGINX_H3_DIR/cert.pem;
    ssl_certificate_key     $TEST_NGINX_H3_DIR/key.pem;
    keepalive_timeout       8s;

    idempotency             $TEST_STORE;
    idempotency_wait        20s;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $type = 'type=text/event-stream';

for my $at ('', '/off') {
    my $key = new_key();
    my $uri = "$at/size?n=20000&hold=body&$type&op=half";

    my $c = main::h3_send($uri, $key);
    app_wait_parked('half', 1, 20);
    like(main::h3_some($c, qr/\r\n\r\n.{5000}/s), qr/\r\n\r\n.{5000}/s,
         "$uri: goes out as it comes");
    app_release('half');
    is(length main::h3_read($c)->{body}, 20_000, "$uri: whole");
    my $again = main::h3($uri, $key);
    ok($again->{replayed}, "$uri: replayed");
    is(length $again->{body}, 20_000, "$uri: whole again");
    is(app_count('half'), 1, "$uri: ran once");
    app_reset();

    # in the middle of it, and before there was anything

    for my $case ([ 'body', $type ], [ 1, $type ], [ 1, 'type=text/plain' ]) {
        my ($hold, $type) = @$case;

        for my $how (qw(gives_up vanishes)) {
            my $key = new_key();
            my $uri = "$at/size?n=20000&hold=$hold&$type&op=left";

            my $c = main::h3_send($uri, $key, $how eq 'gives_up'
                                              ? ('--max-time', 3) : ());
            app_wait_parked('left', 1, 20);

            if ($hold eq 'body') {
                main::h3_some($c, qr/\r\n\r\n.{5000}/s);
            }

            $how eq 'gives_up' ? main::h3_read($c) : main::h3_vanish($c);
            app_release('left');

            my $again = main::h3($uri, $key);
            ok($again->{replayed}, "$uri $how: replayed");
            is(length $again->{body}, 20_000, "$uri $how: whole");
            is(app_count('left'), 1, "$uri $how: ran once");
            is(app_closed('left'), 0, "$uri $how: to its end");
            app_reset();
        }
    }

    # broken off, too large

    $key = new_key();
    $uri = "$at/truncate?chunked=1&header=X-Accel-Buffering:%20no&op=broke";
    isnt(main::h3($uri, $key)->{exit}, 0, "$uri: curl sees it break off");
    is(main::h3($uri, $key)->{code}, 'OUTCOME_UNKNOWN', "$uri: unknown");

    $key = new_key();
    $uri = "$at/size?n=1200000&chunked=1&$type&op=large";
    is(length main::h3($uri, $key)->{body}, 1_200_000, "$uri: whole");
    is(main::h3($uri, $key)->{code}, 'RESPONSE_TOO_LARGE', "$uri: not kept");
    is(app_count('large'), 1, "$uri: ran once");
    app_reset();
}



=== TEST 3: a client that takes nothing does not hold it up
--- config
    listen                  127.0.0.1:$TEST_NGINX_H3_PORT quic;
    ssl_certificate         $TEST_NGINX_H3_DIR/cert.pem;
    ssl_certificate_key     $TEST_NGINX_H3_DIR/key.pem;
    keepalive_timeout       8s;

    idempotency               $TEST_STORE;
    idempotency_wait          20s;
    idempotency_max_response  4m;
    send_timeout              3s;

    location / {
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        proxy_buffering     off;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
for my $at ('', '/off') {
    my $key = new_key();
    my $uri = "$at/size?n=3500000&chunked=1&type=text/event-stream&op=still";

    # nobody reads what curl writes, so it stops to read, too

    my $c = main::h3_send($uri, $key);
    app_wait('still', 1, 20);
    my $again = main::h3($uri, $key);
    ok($again->{replayed}, "$uri: the retry gets it");
    is(length $again->{body}, 3_500_000, "$uri: all of it");
    is(app_count('still'), 1, "$uri: ran once");
    main::h3_vanish($c);
    app_reset();
}
