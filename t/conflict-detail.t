# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotency_conflict_detail: the refusal of a conflict names the paths of a
# JSON body that differ, and their values if that is asked for.  It is JSON
# whatever was sent, it has a limit, it tells nothing of somebody else's
# request, and nothing is stored that was not asked for.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use JSON::PP ();
use Test::Nginx::Socket 'no_plan';

# numbers as they stand in the text, and no other JSON than that of RFC 8259

sub json { JSON::PP->new->utf8->allow_nonref->allow_bignum }

# the answer to a second body under the key of a first one

sub conflict
{
    my ($uri, $one, $two, $more) = @_;

    my %h = ('Idempotency-Key' => new_key(),
             'Content-Type' => 'application/json');

    http_post($uri, $one, \%h)->status == 200 or return fail('did not run');
    my $r = http_post($uri, $two, { %h, %{ $more || {} } });

    is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict')
        or diag($r->raw);
    is($r->header('Content-Type'), 'application/problem+json', 'a problem');

    my $text = eval { json()->decode($r->body) };
    ok($text, 'is JSON') or diag($@, $r->body);

    return $text->{error}{details};
}

# the same as lines: "~ /a 1 2", "+ /b 3", "- /c 4"

sub summary
{
    my $details = conflict(@_);
    my %sign = (changed => '~', added => '+', removed => '-');

    return join '; ', map {
        my $d = $_;
        join ' ', $sign{$d->{change}}, $d->{path},
             map { exists $d->{$_} ? JSON::PP->new->allow_nonref->canonical
                                       ->allow_bignum->ascii->encode($d->{$_})
                                   : () } qw(old new)
    } @{ $details->{diff_summary} || [] };
}

# whether a text lies in the store, in whatever form it is kept

sub stored
{
    my $text = shift;

    if ($ENV{TEST_NGINX_REDIS_PORT}) {
        my $redis = bless { port => $ENV{TEST_NGINX_REDIS_PORT} },
                          'IdempotencyTest::Redis';

        for my $key (@{ $redis->command('KEYS', '*') }) {
            return 1 if index($redis->command('GET', $key), $text) >= 0;
        }

        return 0;
    }

    if ($ENV{TEST_NGINX_POSTGRES_PORT}) {
        my ($pg) = @IdempotencyTest::Postgres::All;

        return index($pg->sql("SELECT encode(id || token || claim || "
                              . "coalesce(details, '') || "
                              . "coalesce(response, ''), 'escape') "
                              . 'FROM idempotency.idempotency_keys'),
                     $text) >= 0;
    }

    # the zone is memory that all processes share

    my $pid = nginx_master();
    open my $maps, '<', "/proc/$pid/maps" or die "no maps: $!\n";
    open my $mem, '<:raw', "/proc/$pid/mem" or die "no memory: $!\n";

    my $seen = 0;

    while (<$maps>) {
        /^([0-9a-f]+)-([0-9a-f]+) rw-s .*\/dev\/zero/ or next;

        no warnings 'portable';
        my ($start, $size) = (hex $1, hex($2) - hex $1);
        sysseek $mem, $start, 0;

        my $zone = '';
        while (length $zone < $size) {
            sysread $mem, $zone, $size - length $zone, length $zone or last;
        }

        $seen += length $zone;
        return 1 if index($zone, $text) >= 0;
    }

    die "there is no zone\n" if !$seen;

    return 0;
}

run_tests();

__DATA__

=== TEST 1: the paths that differ
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  paths;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /json/ {
        idempotency_fingerprint  json exclude=secret,t;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /off/ {
        idempotency_conflict_detail  off;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $body = '{"a":1,"b":[1,{"c":"x"}],"d":null}';

my $details = conflict('/ok', $body, '{"a":2,"b":[1,{"c":"x"}],"d":null}');

is_deeply($details->{diff_summary}, [ { path => '/a', change => 'changed' } ],
          'one path, and no value');
like($details->{original_time}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/,
     'the time of the original');
ok(!exists $details->{diff_more}, 'that is all');

is(summary('/ok', $body, '{"a":1,"b":[1,{"c":"y"}],"d":null}'), '~ /b/1/c',
   'below an array');
is(summary('/ok', $body, '{"b":[1,{"c":"x"}],"d":null}'), '- /a', 'removed');
is(summary('/ok', $body, '{"a":1,"b":[1,{"c":"x"}],"d":null,"e":1}'), '+ /e',
   'added');
is(summary('/ok', $body, '{"a":1,"b":[1,{"c":"x"}]}'), '- /d',
   'null is there');
is(summary('/ok', $body, '{"a":"1","b":[1,{"c":"x"}],"d":null}'), '~ /a',
   'a string is no number');
is(summary('/ok', '{"a~b":1,"c/d":2,"":3}', '{"a~b":2,"c/d":3,"":4}'),
   '~ /; ~ /a~0b; ~ /c~1d', 'as JSON pointers');

# nothing to name

is(summary('/ok', $body, 'no JSON'), '', 'the second is no JSON');
is(summary('/ok', 'no JSON', $body), '', 'the first is no JSON');
is(summary('/ok', $body, "$body "), '', 'white space, where bytes count');
is(summary('/ok?a=1', $body, $body, { 'Content-Type' => 'text/x' }), '',
   'the media type');

# what does not count is not named, even if something else does

is(summary('/json/ok', '{"a":1,"secret":1,"n":{"t":1,"b":1}}',
           '{"a":2,"secret":2,"n":{"t":2,"b":2},"x":{"secret":3}}'),
   '~ /a; ~ /n/b; + /x', 'excluded members are not named');

# unless it is asked for

$details = conflict('/off/ok', $body, '{"a":2}');
ok(!exists $details->{diff_summary}, 'off: nothing is named');
ok(exists $details->{original_time}, 'off: the time is');



=== TEST 2: their values
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;
    idempotency_fingerprint      json exclude=secret;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(summary('/ok', '{"a":1,"b":"x","c":true,"d":null,"e":[],"f":{}}',
           '{"a":2,"b":"y","c":false,"d":0,"e":{},"f":[]}'),
   '~ /a 1 2; ~ /b "x" "y"; ~ /c true false; ~ /d null 0; '
   . '~ /e [] {}; ~ /f {} []', 'old and new');
is(summary('/ok', '{"a":1,"c":{"d":5}}', '{"b":"new"}'),
   '- /a 1; + /b "new"; - /c/d 5', 'added and removed');
is(summary('/ok', '{"n":9007199254740993}', '{"n":9007199254740992}'),
   '~ /n 9007199254740993 9007199254740992', 'numbers as they were sent');
is(summary('/ok', '{"a":1,"secret":"s3cr3t"}', '{"a":2,"secret":"other"}'),
   '~ /a 1 2', 'excluded members are not named');
is(summary('/ok', '"a"', '"b"'), '~  "a" "b"', 'one value');

# a value that was stored is not told any more when that is no longer wanted

my %h = ('Idempotency-Key' => new_key(), 'Content-Type' => 'application/json');
http_post('/ok', '{"a":"old"}', \%h);

edit_config(sub { s/(idempotency_conflict_detail +)values;/$1paths;/ or die });
ok(nginx_reload(), 'reloaded: paths');

my $r = http_post('/ok', '{"a":"new"}', \%h);
is($r->status, 409, 'a conflict');
is_deeply(json()->decode($r->body)->{error}{details}{diff_summary},
          [ { path => '/a', change => 'changed' } ], 'without its values');



=== TEST 3: the answer is JSON whatever was sent
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my @nasty = (
    '"', '\\', '\\"', '","x":"', "\n\r\t", "\x00\x01\x1f\x7f",
    "\xe2\x80\xa8\xe2\x80\xa9", "\xf0\x9f\x98\x80", "\xef\xbf\xbe",
    '</script>', '%s%n%V', '\u0022', '{"a":1}', '[', 'null', '1e5',
    'x' x 300, "\xc3\xa9" x 200, "\xf0\x9f\x98\x80" x 100, '\\' x 200,
    '"' x 200, "\x01" x 100, 'x' x 253 . '\\', 'x' x 254 . '"',
    'x' x 253 . "\xc3\xa9", 'x' x 252 . "\xe2\x82\xac",
    (map { 'x' x $_ . "\xf0\x9f\x98\x80" } 250 .. 256),
    (map { 'x' x $_ . "\x01" } 248 .. 256),
);

# as a JSON string in every way it can be written

sub written
{
    my $text = shift;

    utf8::decode(my $chars = $text);
    my $plain = JSON::PP->new->allow_nonref->utf8->encode($chars);
    my $ascii = JSON::PP->new->allow_nonref->ascii->encode($chars);

    return ($plain, $ascii);
}

my $n = 0;

for my $text (@nasty) {
    for my $string (written($text)) {
        my $name = substr unpack('H*', $text), 0, 20;

        # as a value, as the other value, as a name, and below it

        for my $pair ([ "{\"a\":$string}", '{"a":1}' ],
                      [ '{"a":1}', "{\"a\":$string}" ],
                      [ "{$string:1}", "{$string:2}" ],
                      [ "{$string:{$string:[1]}}", "{$string:{$string:[2]}}" ])
        {
            my ($one, $two) = @$pair;
            my %h = ('Idempotency-Key' => new_key(),
                     'Content-Type' => 'application/json');

            http_post('/ok', $one, \%h);
            my $r = http_post('/ok', $two, \%h);
            my $text = eval { json()->decode($r->body) };

            $n++ if $text && $text->{error}{code} eq 'IDEMPOTENCY_CONFLICT'
                    or diag("$name: $@ ", $r->body);
        }
    }
}

is($n, 8 * @nasty, 'every answer is JSON');

# and says what was sent

utf8::decode(my $smile = "\xf0\x9f\x98\x80");
my $details = conflict('/ok', '{"a\"b\\\\c":"x\ny\u0001\ud83d\ude00"}',
                       '{"a\"b\\\\c":"\"\\\\"}');
is_deeply($details->{diff_summary},
          [ { path => '/a"b\\c', change => 'changed',
              old => "x\ny\x01$smile", new => '"\\' } ], 'unharmed');

# of a long string its beginning, also where it is cut within an escape

for my $odd ('x', '\\"', '\\\\', '\\n', '\\u0001') {
    for my $n (244 .. 251) {
        my $long = 'x' x $n . $odd . 'x' x 50;

        $details = conflict('/ok', "{\"a\":\"a\\\"b$long\"}", '{"a":1}');

        my ($old) = ($details->{diff_summary}[0]{old}) =~ /^(.*)\.\.\.\z/s;
        my $whole = JSON::PP->new->allow_nonref->decode("\"a\\\"b$long\"");

        is($old, substr($whole, 0, length $old // ''), "'$odd' at $n");
        cmp_ok(length $old // '', '>=', 247, "'$odd' at $n: its beginning");
    }
}



=== TEST 4: within limits
--- config
    idempotency  $TEST_STORE;
    location / {
        idempotency_conflict_detail  values;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /paths/ {
        idempotency_conflict_detail  paths;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $uri ('/ok', '/paths/ok') {
    my $wide = sub { my $v = shift; '{' . join(',', map { "\"m$_\":$v" }
                                               1000 .. 2999) . '}' };
    my $details = conflict($uri, $wide->(1), $wide->(2));

    cmp_ok(scalar @{ $details->{diff_summary} }, '>', 5, "$uri: some");
    cmp_ok(scalar @{ $details->{diff_summary} }, '<', 100, "$uri: not all");
    ok($details->{diff_more}, "$uri: and says so");

    # long values, long names, a deep one

    my $long = 'x' x 100_000;

    $details = conflict($uri, "{\"a\":\"${long}1\",\"b\":1}",
                        "{\"a\":\"${long}2\",\"b\":1}");
    is($details->{diff_summary}[0]{path}, '/a', "$uri: a long value differs");
    cmp_ok(length json()->encode($details), '<', 2000, "$uri: but is cut");

    $details = conflict($uri, "{\"$long\":1,\"b\":1}", "{\"$long\":2,\"b\":2}");
    is($details->{diff_summary}[0]{path}, '/b', "$uri: a long name is not told");
    ok($details->{diff_more}, "$uri: which is said");

    my $deep = sub { '{"d":' x 120 . $_[0] . '}' x 120 };
    $details = conflict($uri, $deep->(1), $deep->(2));
    is($details->{diff_summary}[0]{path}, '/d' x 120, "$uri: deep");

    # beyond what is parsed

    conflict($uri, '[' x 100_000, '[' x 100_001);
    conflict($uri, '[1]', '[1' . ',1' x 200_000 . ']');
}

# all of the largest: still an answer

my $most = sub { '{' . join(',', map { '"' . 'n' x 400 . "$_\":\""
                                       . '\u0001' x 250 . "$_[0]\"" } 1 .. 60)
                 . '}' };
my $details = conflict('/ok', $most->('a'), $most->('b'));
ok(@{ $details->{diff_summary} }, 'the largest');



=== TEST 5: nothing of somebody else's request
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;
    location / {
        add_header  X-Time  "$idempotency_original_time" always;
        add_header  X-Age   "$idempotency_age" always;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $details = conflict('/ok', '{"card":"4111"}', '{"card":"4222"}',
                       { Authorization => 'somebody else' });

is_deeply($details, {}, 'no path, no value, no time');

my %h = ('Idempotency-Key' => new_key(), 'Content-Type' => 'application/json');
my $c = send_post('/ok?hold=1&op=a', '{"card":"4111"}', \%h);
app_wait_parked('a');

my $r = http_post('/ok?hold=1&op=a', '{"card":"4111"}',
                  { %h, Authorization => 'somebody else' });
is($r->status, 409, 'while it runs');
is_deeply(json()->decode($r->body)->{error}{details}, {}, 'nothing either');
is($r->header('X-Time'), undef, 'nor by a variable');
is($r->header('X-Age'), undef, 'of whatever kind');
unlike($r->raw, qr/4111/, 'not a word');

# its own it may see, also while it runs

$r = http_post('/ok?hold=1&op=a', '{"card":"4222"}', \%h);
is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'its own, while it runs');
is_deeply(json()->decode($r->body)->{error}{details}{diff_summary},
          [ { path => '/card', change => 'changed', old => '4111',
              new => '4222' } ], 'tells what differs');
ok($r->header('X-Time'), 'and when');

app_release('a');
is($c->read_response->status, 200, 'done');



=== TEST 6: after a replay through a derived record
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;
    idempotency_dedupe           json:url window=60s when=always;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
for my $n (1 .. 4) {
    my %h = ('Content-Type' => 'application/json');
    my $body = "{\"url\":\"$n\",\"x\":%d}";

    http_post('/ok', sprintf($body, 1), { %h, 'Idempotency-Key' => "a$n" });
    is(http_post('/ok', sprintf($body, 2), { %h, 'Idempotency-Key' => "b$n" })
       ->header('Idempotent-Replayed'), 'true', 'folds');

    my $r = http_post('/ok', sprintf($body, 3),
                      { %h, 'Idempotency-Key' => "b$n" });
    is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'the second key');
    is_deeply(json()->decode($r->body)->{error}{details}{diff_summary},
              [ { path => '/x', change => 'changed', old => 2, new => 3 } ],
              'with what was sent under it');
}



=== TEST 7: by default nothing of a body is stored
--- config
    idempotency              $TEST_STORE;
    idempotency_fingerprint  json exclude=hidden;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /paths/ {
        idempotency_conflict_detail  paths;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /values/ {
        idempotency_conflict_detail  values;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $send = sub {
    my ($uri, $what) = @_;

    http_post($uri, "{\"name_$what\":\"value_$what\",\"hidden\":\"not_$what\"}",
              { 'Idempotency-Key' => "key_$what",
                'Authorization' => "credential_$what" });
};

$send->('/ok', 'default');
$send->('/paths/ok', 'paths');
$send->('/values/ok', 'values');

ok(stored("run 1\n"), 'responses are');

for my $what (qw(default paths values)) {
    my $names = $what eq 'default' ? 'not ' : '';
    my $values = $what eq 'values' ? '' : 'not ';

    is(stored("name_$what") ? '' : 'not ', $names,
       "$what: names are ${names}stored");
    is(stored("value_$what") ? '' : 'not ', $values,
       "$what: values are ${values}stored");
    ok(!stored("not_$what"), "$what: what is excluded is not");
    ok(!stored("key_$what"), "$what: the key is not");
    ok(!stored("credential_$what"), "$what: the credential is not");
}



=== TEST 8: of a record that somebody has written to
--- store: redis postgres
--- config
    idempotency                  $TEST_STORE;
    idempotency_conflict_detail  values;
    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $redis = store_server();

# the head of the list as it was written, and entries of path, hash, whether
# the text was cut, and text

my $list = sub {
    my ($head, @entries) = @_;

    return substr($head, 0, 2) . pack('n', scalar @entries)
           . substr($head, 4, 4)
           . join '', map { pack 'n/a* a8 C n/a*', $_->[0], 'x' x 8,
                                 $_->[2] || 0, $_->[1] } @entries;
};

my %tampered = (
    'no number'        => [ [ '/a', '1e' ] ],
    'minus'            => [ [ '/a', '-' ] ],
    'two numbers'      => [ [ '/a', '1,2' ] ],
    'an end'           => [ [ '/a', '1}]' ] ],
    'an open string'   => [ [ '/a', '"x' ] ],
    'a bad escape'     => [ [ '/a', '"\\q"' ] ],
    'no UTF-8'         => [ [ '/a', "\"\xff\xc3\"" ] ],
    'no UTF-8, cut'    => [ [ '/a', "\"\xe2\x82", 1 ] ],
    'overlong'         => [ [ '/a', "\"\xc0\xaf\xe0\x80\xaf", 1 ] ],
    'a surrogate'      => [ [ '/a', "\"\xed\xa0\x80", 1 ] ],
    'no such plane'    => [ [ '/a', "\"\xf4\x90\x80\x80\xf8", 1 ] ],
    'no continuation'  => [ [ '/a', "\"\xc3\xff", 1 ] ],
    'a path'           => [ [ "/\"\\\x00\xff\xe9", '1' ] ],
    'a long path'      => [ [ '/' . "\x01" x 60_000, '1' ] ],
    'a long text'      => [ [ '/a', "\x01" x 60_000, 1 ] ],
    'many of the longest' => [ map { [ '/' . "\x01" x 507 . sprintf('%04d', $_),
                                       "\x01" x 256, 1 ] } 1 .. 200 ],
    'nothing'          => [],
);

for my $what (sort keys %tampered) {
    $redis->command('FLUSHALL');

    my %h = ('Idempotency-Key' => new_key(),
             'Content-Type' => 'application/json');

    http_post('/ok', '{"a":1}', \%h);

    my ($key) = $redis->keys;
    my $record = $redis->record($key);

    # labels stand before them where people read the store
    my $labels = $record->{d} =~ s{^(L(..))}{}s
                 ? $1 . substr($record->{d}, 0, unpack('n', $2), '') : '';

    ok(length $record->{d}, "$what: there are details");
    $record->{d} = $labels . $list->($record->{d}, @{ $tampered{$what} });
    $redis->write_record($key, $record, 100_000);

    my $r = http_post('/ok', '{"a":2}', \%h);

    is($r->status, 409, "$what: a conflict");
    my $text = eval { json()->decode($r->body) };
    is(ref $text, 'HASH', "$what: is JSON") or diag($@, $r->body);
}

is(http_post('/ok', '{}', { 'Idempotency-Key' => new_key() })->status, 200,
   'and nginx goes on');



=== TEST 9: of one with a large response
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_conflict_detail  values;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
is(summary('/size?n=20000', '{"a":1}', '{"a":2}'), '~ /a 1 2', 'told');
