# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_keep_header: only these headers of a response are stored, and
# those that describe its body.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== TEST 1: what is kept, and what is not
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_keep_header  x-repeated Location;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /hide/ {
        idempotency_keep_header  X-Repeated Location;
        idempotency_hide_header  location;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /all/ {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /files/ {
        idempotency_keep_header  X-None;
        idempotency_methods      GET;
        alias                    html/;
    }
--- user_files
>>> a.html
a file
--- client
my %key = ('Idempotency-Key' => new_key());

my $first = http_post('/headers?op=a', 'x', \%key);
my $retry = http_post('/headers?op=a', 'x', \%key);

is(scalar(my @c = $first->header('Set-Cookie')), 2, 'the first has all');
ok($first->header('ETag'), 'an ETag');

is($retry->header('Idempotent-Replayed'), 'true', 'replayed');
is($retry->status, 201, 'its status');
is($retry->body, $first->body, 'its body');
is($retry->header('Content-Type'), $first->header('Content-Type'),
   'its type');
is_deeply([ $retry->header('X-Repeated') ], [ $first->header('X-Repeated') ],
          'kept, both');
is($retry->header('Location'), $first->header('Location'), 'kept');
is(scalar $retry->header($_), undef, "not kept: $_")
    for qw(Set-Cookie ETag Link Last-Modified WWW-Authenticate X-Empty X-App);

# what describes the body

my %gzip = ('Idempotency-Key' => new_key(), 'Accept-Encoding' => 'gzip');
$first = http_post('/gzip?op=b', 'x', \%gzip);
$retry = http_post('/gzip?op=b', 'x', \%gzip);
is($retry->header('Content-Encoding'), 'gzip', 'how it is encoded');
is($retry->body, $first->body, 'the same bytes');

# beside idempotency_hide_header

%key = ('Idempotency-Key' => new_key());
http_post('/hide/headers?op=c', 'x', \%key);
$retry = http_post('/hide/headers?op=c', 'x', \%key);
ok($retry->header('X-Repeated'), 'kept');
is($retry->header('Location'), undef, 'hidden');

%key = ('Idempotency-Key' => new_key());
http_post('/all/headers?op=d', 'x', \%key);
$retry = http_post('/all/headers?op=d', 'x', \%key);
ok($retry->header('ETag'), 'all, by default');

%key = ('Idempotency-Key' => new_key());
$first = http_get('/files/a.html', \%key);
$retry = http_get('/files/a.html', \%key);
ok($first->header('Last-Modified'), 'of a file');
is($retry->body, "a file\n", 'replayed');
is($retry->header('Last-Modified'), undef, 'not kept');



=== TEST 2: headers that nginx makes itself
--- config
    idempotency          $TEST_STORE;
    idempotency_methods  GET POST;
    location /all/ {
        alias  html/;
    }
    location /keep/ {
        idempotency_keep_header  Accept-Ranges;
        alias                    html/;
    }
    location /etag/ {
        idempotency_keep_header  ETag;
        alias                    html/;
    }
    location /hide/ {
        idempotency_hide_header  last-modified accept-ranges content-type;
        alias                    html/;
    }
    location / {
        idempotency_hide_header  Content-Type;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> a.html
a file
--- client
for (['all', 'Content-Type Last-Modified ETag Accept-Ranges'],
     ['keep', 'Content-Type Accept-Ranges'],
     ['etag', 'Content-Type ETag'],
     ['hide', 'ETag'])
{
    my ($where, $kept) = @$_;
    my %key = ('Idempotency-Key' => new_key());

    my ($first, $retry) = map { http_get("/$where/a.html", \%key) } 1, 2;

    is($retry->header('Idempotent-Replayed'), 'true', "$where: replayed");
    is($retry->body, "a file\n", "$where: the file");

    for my $name (qw(Content-Type Last-Modified ETag Accept-Ranges)) {
        ok($first->header($name), "$where: the first has $name");
        is($retry->header($name),
           $kept =~ /$name/ ? $first->header($name) : undef,
           "$where: $name of a replay");
    }
}

my %key = ('Idempotency-Key' => new_key());
my ($first, $retry) = map { http_post('/json', 'x', \%key) } 1, 2;

like($first->header('Content-Type'), qr/json/, 'the first has a type');
is($retry->header('Content-Type'), undef, 'hidden in a replay');
is($retry->body, $first->body, 'its body');



=== TEST 3: a wrong name
--- config
    idempotency_keep_header "a b";
--- must_die
--- error_log eval
qr/\[emerg\] .*invalid value "a b" in "idempotency_keep_header".* in .*nginx\.conf:\d+/
