# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Early hints (nginx 1.29 and later): a 103 of the application goes to the
# client while its response is still to come.  A client that does not take it,
# or is gone, does not end what runs.  An older nginx takes the 103 for the
# answer: nothing may run twice there, either.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $nginx = $ENV{TEST_NGINX_BINARY} || 'nginx';

`$nginx -v 2>&1` =~ m{nginx/(\d+)\.(\d+)} or die "$nginx has no version\n";

our $known = $1 > 1 || $2 >= 29;

our $config = <<'_EOC_';
    idempotency               $TEST_STORE;
    idempotency_wait          0;
    proxy_http_version        1.1;
    proxy_buffer_size         1m;
    proxy_buffers             2 1m;
    proxy_busy_buffers_size   1m;
    proxy_read_timeout        5s;

    location / {
        proxy_pass            http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location = /sync {
        idempotency           off;
        return                204;
    }
_EOC_

$config = "    early_hints  1;\n$config" if $known;


# with one worker: what came to nginx before was seen when this is answered

sub seen_by_nginx { http_get('/sync', {}, @_) for 1 .. 2 }


our %ways = (
    close => sub {
        my $c = send_request(@_);
        return sub { $c->abort };
    },
    RST => sub {
        my $c = send_request(@_);
        return sub { $c->reset };
    },
    RST_STREAM => sub {
        my $h2 = h2_connect();
        my $id = $h2->request(@_);
        return sub { $h2->rst($id); $h2->ping };
    },
    'HTTP/2 close' => sub {
        my $h2 = h2_connect();
        $h2->request(@_);
        return sub { $h2->abort };
    },
);


# The client leaves while the application is held; three tries after that.

sub leave
{
    my ($uri, $how) = @_;

    my $op = 'op' . ++(our $ops);
    my @key = ('Idempotency-Key' => new_key());
    my $name = "$uri, $how";

    $uri .= "&op=$op";

    my $go = $ways{$how}->('POST', $uri, 'x', \@key);
    is(app_wait_parked($op), 1, "$name: runs");
    seen_by_nginx();
    $go->();
    seen_by_nginx();
    app_release($op);

    answered($uri, $op, \@key, $name);
}


sub answered
{
    my ($uri, $op, $key, $name, @to) = @_;

    my $r;
    wait_for(sub {
        $r = http_post($uri, 'x', $key, @to);
        return $r->error_code ne 'CONCURRENT_REQUEST';
    }, 10);

    if ($known) {
        is($r->status, 200, "$name: answered");
        is($r->body, "run 1\n", "$name: with the response");
        is($r->header('Idempotent-Replayed'), 'true', "$name: replayed");
    } else {
        is($r->error_code, 'OUTCOME_UNKNOWN', "$name: unknown");
    }

    is(app_count($op), 1, "$name: ran once");
}

run_tests();

__DATA__

=== TEST 1: the client gets both, and a replay has no hints
--- h2
--- config eval: $::config
--- client
for my $uri ('/early?early=103') {
    my %key = ('Idempotency-Key' => new_key());
    my $c = send_post("$uri&op=both", 'x', \%key);
    my $r = $c->read_response;

    if ($::known) {
        is($r->status, 103, 'a hint');
        like($r->header('Link'), qr/preload/, 'with its header');
        $r = $c->read_response;
        is($r->status, 200, 'and the response');
        is($r->header('Link'), undef, 'without it');
        is($r->body, "run 1\n", 'its body');
    }

    answered("$uri&op=both", 'both', \%key, 'again');
}



=== TEST 2: the client is gone when the hint comes
--- h2
--- config eval: $::config
--- client
leave('/early?hold=1', $_) for sort keys %::ways;



=== TEST 3: the client leaves after the hint
--- h2
--- config eval: $::config
--- client
leave('/early?hold=answer', $_) for sort keys %::ways;



=== TEST 4: a client that does not take a long hint, and leaves or reads it
--- http_config eval
"server {
    listen  127.0.0.1:\$TEST_NGINX_PORT_2  sndbuf=8k;
    $::config
}"
--- config
--- client
my @to = (port => $ENV{TEST_NGINX_PORT_2});

for my $how (qw(close RST read)) {
    my $uri = "/early?hint=900000&hold=answer&op=$how";
    my %key = ('Idempotency-Key' => new_key());

    my $c = send_post($uri, 'x', \%key, @to);
    is(app_wait_parked($how), 1, "$how: runs");
    seen_by_nginx(@to);

    if ($how eq 'close') {
        $c->abort;
    } elsif ($how eq 'RST') {
        $c->reset;
    } elsif ($::known) {
        my $r = $c->read_response;
        is($r->status, 103, 'all of the hint');
        cmp_ok(length $r->header('Link'), '>', 900000, 'its header');
    }

    seen_by_nginx(@to);
    app_release($how);

    if ($how eq 'read' && $::known) {
        my $r = $c->read_response;
        is($r->status, 200, 'then the response');
        is($r->body, "run 1\n", 'its body');
    }

    answered($uri, $how, \%key, $how, @to);
}
