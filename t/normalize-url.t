# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_dedupe json:<member> normalize=url: URLs that mean the same are
# the same (t/unit/url.c has every rule).

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

sub outcome
{
    my ($uri, $body) = @_;

    my $r = http_post($uri, $body, { 'Content-Type' => 'application/json' });
    my $text = $r->body;

    $text =~ s/\n\z//;
    $text .= ' replayed' if $r->header('Idempotent-Replayed');

    return $text;
}

run_tests();

__DATA__

=== TEST 1: URLs that mean the same
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_dedupe  json:url window=60s normalize=url strip=utm_*,fbclid;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /all/ {
        idempotency_dedupe  json:/share/url,title window=60s normalize=url;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /plain/ {
        idempotency_dedupe  json:url window=60s;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(outcome('/ok?op=a', '{"url":"https://example.com/a/b?x=1&y=2"}'), 'run 1',
   'ran');

is(outcome('/ok?op=a', qq({"url":"$_","note":1})), 'run 1 replayed', $_)
    for 'HTTPS://Example.COM:443/a/./c/../b?y=2&x=1#top',
        'https://example.com/%61/b?utm_source=mail&x=1&y=2&fbclid=z',
        'https:\/\/example.com\/a\/b?x=%31&y=2';

my $n = 1;

is(outcome('/ok?op=a', qq({"url":"$_"})), 'run ' . ++$n, "another: $_")
    for 'http://example.com/a/b?x=1&y=2', 'https://example.com/A/b?x=1&y=2',
        'https://example.com/a/b?x=1', 'https://example.com/a/b?x=2&y=1',
        'https://example.com/a/b/?x=1&y=2', 'not a url';

# where no argument is named, all count; what is no URL counts as it is

is(outcome('/all/ok?op=b', '{"share":{"url":"http://h?utm_x=1"},"title":"A"}'),
   'run 1', 'ran');
is(outcome('/all/ok?op=b', '{"title":"A","share":{"url":"http://H/?utm_x=1"}}'),
   'run 1 replayed', 'again');
is(outcome('/all/ok?op=b', '{"share":{"url":"http://h/"},"title":"A"}'),
   'run 2', 'without the argument');
is(outcome('/all/ok?op=b', '{"share":{"url":"http://h?utm_x=1"},"title":"a"}'),
   'run 3', 'another title');

my $long = 'http://h/' . 'x' x 20_000;
is(outcome('/ok?op=c', qq({"url":"$long"})), 'run 1', 'a very long one');
is(outcome('/ok?op=c', qq({"url":"$long"})), 'run 1 replayed', 'again');
is(outcome('/ok?op=c', qq({"url":"$long#a"})), 'run 2', '... as it is');

is(outcome('/plain/ok?op=d', '{"url":"http://h"}'), 'run 1', 'plain');
is(outcome('/plain/ok?op=d', '{"url":"http://h/"}'), 'run 2',
   'not normalized');



=== TEST 2: what makes no sense is refused
--- store: memory
--- config
    location / { idempotency on; }
--- client
for (
    [ 'body window=1s normalize=url', 'of members that are URLs' ],
    [ 'json:u window=1s strip=utm_*', 'takes "normalize=url" as well' ],
    [ 'json:u window=1s normalize=url strip=a*b', 'strip=fbclid,utm_*' ],
    [ 'json:u window=1s normalize=url strip=*', 'strip=fbclid,utm_*' ],
    [ 'json:u window=1s normalize=url strip=a,,b', 'strip=fbclid,utm_*' ],
    [ 'json:u window=1s normalize=mail', '"normalize=url"' ],
) {
    my ($options, $right) = @$_;

    edit_config(sub { s/idempotency on;.*\}/idempotency on; idempotency_dedupe $options; }/ });
    ok(!nginx_reload(), "refused: $options");
    error_log_like(qr/\[emerg\].* in "idempotency_dedupe" directive: .*\Q$right\E.* in \S+:\d+/,
                   'says what would be right');
}

edit_config(sub { s/idempotency on;.*\}/idempotency on; }/ });
--- provokes: \[emerg\]
