# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# examples/share-sheet.conf, as it is, gets the requests of the share sheet's
# decision record, its tests and its chaos tests among them, and answers what is
# expected there.  docs/dialects.md has the table.

use strict;
use warnings;
use Digest::SHA ();
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';
use vars qw($SHARES $BATCH $REGISTER $BODY $STORE $LEDGER);

$SHARES = '/v1/shares';
$BATCH = '/v1/shares/batch';
$REGISTER = '/v1/auth/register';
$BODY = '{"url":"https://example.com"}';

sub headers
{
    my %h = (Authorization => 'Bearer u1', 'Content-Type' => 'application/json',
             @_);

    delete $h{$_} for grep { !defined $h{$_} } keys %h;

    return \%h;
}

sub key { ('Idempotency-Key' => defined $_[0] ? $_[0] : new_key()) }

# every execution makes a share of its own

sub shares
{
    app_answer($_, { status => 202, body => '{"data":{"id":{run}}}', @_ })
        for $SHARES, $BATCH, $REGISTER;
}

sub share { example_post($SHARES, @_) }
sub id { $_[0]->json->{data}{id} }

# headers that the application got with the last request

sub got
{
    my ($uri, $name) = @_;

    my %h = map { lc $_->[0] => $_->[1] } @{ app_last($uri)->{headers} };

    return $h{lc $name};
}

# for a store that can be killed

sub chaos_and
{
    my ($stores, $change) = @_;

    return "idempotency_store away \$TEST_REMOTE { server 127.0.0.1:\$TEST_NGINX_CHAOS_PORT;"
           . " timeout 300ms; connect_timeout 300ms; }\n$stores"
           . main::example('share-sheet', $change);
}

# what the store under test is called

$STORE = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 'default' : 'tested';

our $REDIS;

# the document's second store is a database; where its module is not built, it
# is the embedded one

our $SECOND = "idempotency_store second memory { zone second:1m; }\n";

if (($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/) {
    $REDIS = start_remote();
    $ENV{TEST_NGINX_CHAOS_PORT} = $REDIS->{port};

    if ($ENV{IDEMPOTENCY_STORE} eq 'redis'
        && -e 'build/ngx_http_idempotency_postgres_module.so')
    {
        $LEDGER = start_postgres();
        $ENV{TEST_NGINX_LEDGER_PORT} = $LEDGER->{port};
        $SECOND = 'idempotency_store second postgres { server 127.0.0.1:'
                  . "\$TEST_NGINX_LEDGER_PORT; }\n";
    }
}

run_tests();

__DATA__

=== TEST 1: the tests of the document: a double tap, no key, concurrent processing
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
# prevents double-tap within coalesce window: three at once with one key

shares(hold => 1);

my $key = '7d444840-9dc0-11d1-b245-5ffdce74fad2';
my @c = map { example_send($SHARES, $BODY, headers(key($key))) } 1 .. 3;

app_wait_parked($SHARES);
app_release($SHARES);

my @r = map { $_->read_response } @c;

is_deeply([ map { id($_) } @r ], [ 1, 1, 1 ], 'all return the same share');
is_deeply([ map { $_->status } @r ], [ 202, 202, 202 ], 'with 202');

# deduplicates by content when key missing

my $other = '{"url":"https://example.com/other"}';

@c = map { example_send($SHARES, $other, headers()) } 1, 2;
app_wait_parked($SHARES);
app_release($SHARES);
@r = map { $_->read_response } @c;
is_deeply([ map { id($_) } @r ], [ 2, 2 ], 'without a key');

# handles concurrent processing correctly: the second comes while the first runs

$key = new_key();
my $first = example_send($SHARES, '', headers(key($key)));
app_wait_parked($SHARES);
my $second = example_send($SHARES, '', headers(key($key)));
app_release($SHARES);

is($first->read_response->status, 202, 'first');
my $r = $second->read_response;
is($r->status, 202, 'second');
is(id($r), 3, 'the same share');
is(app_count($SHARES), 3, 'three executions in all');



=== TEST 2: two users are two shares
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
shares();

is(id(share($BODY, headers())), 1, 'one user');
is(id(share($BODY, headers(Authorization => 'Bearer u2'))), 2,
   'another one, who shares the same link');
is(id(share($BODY, headers(Authorization => 'Bearer u2'))), 2, 'twice');
is(id(share($BODY, headers())), 1, 'each has their own');

# and keys

my $key = new_key();

is(id(share('{"url":"https://a.example"}', headers(key($key)))), 3, 'a key');
is(id(share('{"url":"https://a.example"}',
            headers(key($key), Authorization => 'Bearer u2'))), 4,
   'of another user is another key');



=== TEST 3: the same link, whatever its key and however it is written
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
shares();

my $r = share('{"url":"https://example.com/a?x=1&y=2","title":"A"}',
              headers(key()));
is(id($r), 1, 'a link');

# clients that make a new key for each retry

my @new = key();
$r = share('{"url":"https://example.com/a?x=1&y=2","title":"B"}',
           headers(@new));
is(id($r), 1, 'a new key, and other metadata: the share that is there');
is($r->header('Idempotent-Replayed'), 'true', 'is replayed');
is(id(share('{"url":"https://example.com/a?x=1&y=2","title":"B"}',
            headers(@new))), 1, 'the new key has it now');

for my $same ('HTTPS://EXAMPLE.com/a?x=1&y=2', 'https://example.com:443/a?x=1&y=2',
              'https://example.com/b/../a?x=1&y=2',
              'https://example.com/%61?x=1&y=2',
              'https://example.com/a?x=1&y=2#top',
              'https://example.com/a?y=2&x=1')
{
    is(id(share("{\"url\":\"$same\"}", headers(key()))), 1, "the same: $same");
}

is(id(share('{"url":"https://example.com"}', headers())), 2, 'no path');
is(id(share('{"url":"https://example.com/"}', headers())), 2,
   'is the same as an empty one');

my $n = 2;

for my $other ('https://example.com/A?x=1&y=2', 'http://example.com/a?x=1&y=2',
               'https://example.com/a?x=1&y=3', 'https://example.com/a?x=1&y=2&z=')
{
    is(id(share("{\"url\":\"$other\"}", headers(key()))), ++$n,
       "not the same: $other");
}

# a key that was used for another link is a conflict

is(share('{"url":"https://elsewhere.example"}', headers(@new))->status, 409,
   'a used key for another link');



=== TEST 4: canonical body: a double tap by content
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
# what has no link is told by its body, within the window

shares(hold => 1);

my $one = example_send($SHARES, '{"text":"x","tags":{"a":1,"b":2}}', headers());
app_wait_parked($SHARES);
my $two = example_send($SHARES, "{ \"tags\": {\"b\":2, \"a\":1},\n\"text\": \"x\" }",
                       headers(key()));
my $three = example_send($SHARES, '{"text":"y"}', headers());
app_wait_parked($SHARES, 2);
app_release($SHARES);

is(id($one->read_response), 1, 'a tap');
is(id($two->read_response), 1, 'the same in another order, under a key');
is(id($three->read_response), 2, 'another text');

# after 100 ms, and the 200 for which the answer is kept, it is a new one

shares();

ok(wait_for(sub { id(share('{"text":"x","tags":{"a":1,"b":2}}', headers())) > 2 },
            10), 'after the window it runs');



=== TEST 5: windows that adapt
--- http_config eval: "log_format w '\$http_x_n \$share_window';\n" . main::example('share-sheet', sub { s/(listen .*)/$1 access_log logs\/access.log w;/ })
--- config
    location /unused { }
--- client
shares();

my $n = 0;

my $send = sub {
    my ($window, $name, @h) = @_;

    $n++;
    share("{\"url\":\"https://example.com/$n\"}", headers('X-N' => "n$n", @h));
    access_log_like(qr/^n$n \Q$window\E$/m, $name);
};

$send->('24h', 'nothing shared yet: a day');
$send->('60s', 'in a session: a minute');
$send->('24h', 'which is of one user', Authorization => 'Bearer u2');



=== TEST 6: windows that adapt, after the session
--- client_timeout: 60
--- http_config eval
"log_format w '\$http_x_n \$share_window';\n"
. main::example('share-sheet', sub {
    s/(listen .*)/$1 access_log logs\/access.log w;/;
    s/"~\^\[0-5\]\?\[0-9\]\(\\\.\|\$\)"/"~^0(\\.|\$)"/ or die 'no session' })
--- config
    location /unused { }
--- client
# a session of one second, in place of sixty

shares();

my $n = 0;

my $send = sub {
    my ($user) = @_;

    $n++;
    share("{\"url\":\"https://example.com/$n\"}",
          headers('X-N' => "n$n", Authorization => "Bearer $user"));
};

$send->('busy') for 1 .. 12;
$send->('calm');

select undef, undef, undef, 2.2;

$send->('busy');
access_log_like(qr/^n$n 5m$/m, 'more than ten: five minutes');
$send->('calm');
access_log_like(qr/^n$n 24h$/m, 'not many: a day');



=== TEST 7: the endpoints, by their settings
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
shares();

# batch: no fingerprinting

is(id(example_post($BATCH, '[{"url":"a"}]', headers())), 1, 'a batch');
is(id(example_post($BATCH, '[{"url":"a"}]', headers())), 2,
   'the same again is another one');

my @key = key();
is(id(example_post($BATCH, '[{"url":"a"}]', headers(@key))), 3, 'with a key');
is(id(example_post($BATCH, '[{"url":"a"}]', headers(@key))), 3, 'which counts');

# a key of one endpoint is none of another's

is(share($BODY, headers(@key))->status, 202, 'the key at another endpoint');

# register: the same address is a duplicate, and is refused

app_answer($REGISTER, { status => 201, body => '{"data":{"id":{run}}}' });

my $form = '{"email":"ann@example.com","password":"one"}';

is(example_post($REGISTER, $form, headers(key(), Authorization => undef))
   ->status, 201, 'a registration: 201');

my $r = example_post($REGISTER, '{"email":"ann@example.com","password":"two"}',
                     headers(key(), Authorization => undef));

is($r->status, 409, 'the same address');
is($r->error_code, 'DUPLICATE_REQUEST', 'is a duplicate');
is($r->json->{error}{type}, 'duplicate', 'by its type');
ok(!$r->json->{error}{retryable}, 'which is not to be retried');
unlike($r->body, qr/ann|"data"/, 'and tells nothing of the first');
is(example_post($REGISTER, '{"email":"bob@example.com"}',
                headers(key(), Authorization => undef))->status, 201,
   'another address');
is(app_count($REGISTER), 2, 'two registrations');

# a double tap is the same in all, and gets the first answer: without a key, and
# with a new one for each

for my $keyed (0, 1) {
    my $tap = "{\"email\":\"tap$keyed\@example.com\",\"password\":\"x\"}";
    my $runs = app_count($REGISTER);

    app_answer($REGISTER, { status => 201, body => '{"data":{"id":{run}}}',
                            hold => 1 });

    my @tap = map { example_send($REGISTER, $tap,
                                 headers($keyed ? key() : (),
                                         Authorization => undef)) } 1 .. 3;

    app_wait_parked($REGISTER);
    app_release($REGISTER);
    is_deeply([ map { $_->read_response->body } @tap ],
              [ ('{"data":{"id":' . ($runs + 1) . '}}') x 3 ],
              'a double tap of one address');
    is(app_count($REGISTER), $runs + 1, 'is one registration');

    app_answer($REGISTER, { status => 201, body => '{"data":{"id":{run}}}' });

    is(example_post($REGISTER, $tap =~ s/"x"/"y"/r,
                    headers($keyed ? key() : (), Authorization => undef))
       ->error_code, 'DUPLICATE_REQUEST', 'another body with it is refused');
}

# a double tap, of something that has no address

app_answer($REGISTER, { status => 201, body => '{"data":{"id":{run}}}', hold => 1 });

my @c = map { example_send($REGISTER, '{"invite":"x"}',
                           headers(Authorization => undef)) } 1, 2;

app_wait_parked($REGISTER);
app_release($REGISTER);
is_deeply([ map { $_->read_response->status } @c ], [ 201, 201 ],
          'a double tap folds');
is(app_count($REGISTER), 5, 'into one registration');

app_answer($REGISTER, { status => 201, body => '{"data":{"id":{run}}}' });

# a retry under its key is no duplicate of that kind: it gets its answer

@key = key();
my @retry = map { example_post($REGISTER, '{"email":"eve@example.com"}',
                               headers(@key, Authorization => undef)) } 1, 2;

is_deeply([ map { $_->status } @retry ], [ 201, 201 ],
          'a retry under the same key');
is($retry[1]->header('Idempotent-Replayed'), 'true', 'is a replay');
is(app_count($REGISTER), 6, 'and no registration');

# the conflict of a key tells of an address only that it is another one

@key = key();
example_post($REGISTER, '{"email":"carl@example.com","plan":"a"}',
             headers(@key, Authorization => undef));
$r = example_post($REGISTER, '{"email":"dora@example.com","plan":"b"}',
                  headers(@key, Authorization => undef));

is($r->error_code, 'IDEMPOTENCY_CONFLICT', 'a conflict');
unlike($r->body, qr/carl|dora/, 'without the addresses');
like($r->body, qr/"plan"|\/plan/, 'with what else differs');

my $hash = substr Digest::SHA::sha256_hex('carl@example.com'), 0, 8;
like($r->body, qr/\Q$hash***\E/, 'an address is the first 8 of its hash');



=== TEST 8: how long
--- client_timeout: 60
--- http_config eval
main::example('share-sheet', sub {
    s/(idempotency_ttl +)24h;/${1}1s;/ && s/(idempotency_ttl +)1h;/${1}1s;/
    && s/(idempotency_ttl +)5m;/${1}1s;/ && s/window=5m/window=1s/ && s/(default +)24h;/${1}1s;/
    && s/\~\^1 +60s/~^1 1s/ or die })
--- config
    location /unused { }
--- client
shares();

my @key = key();

my $batch = sub { id(example_post($BATCH, '[]', headers(@key))) };
my $n = 0;
my $register = sub {
    $n++;
    example_post($REGISTER, "{\"email\":\"ann\@example.com\",\"n\":$n}",
                 headers(key(), Authorization => undef))->status
};

is($batch->(), 1, 'a batch');
is(id(share($BODY, headers(@key))), 1, 'a share');
is($register->(), 202, 'a registration');
is($register->(), 409, 'its duplicate');

ok(wait_for(sub { $batch->() != 1 }, 15), 'a batch expires');
ok(wait_for(sub { id(share($BODY, headers(@key))) != 1 }, 15),
   'so does a key, and a link');
ok(wait_for(sub { $register->() == 202 }, 15), 'and an address');

# a key of a registration, too: it has neither address nor body in common

my @own = key();
my $keyed = sub { example_post($REGISTER, '{"plan":"a"}',
                               headers(@own, Authorization => undef)) };
my $made = id($keyed->());

is(id($keyed->()), $made, 'the key of a registration');
ok(wait_for(sub { id($keyed->()) != $made }, 15), 'expires');



=== TEST 9: job ids by the document's formula
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
app_answer($SHARES, { status => 503, body => '{}' });

my $key = '7d444840-9dc0-11d1-b245-5ffdce74fad2';

for my $try (1, 2) {
    share($BODY, headers(key($key)));

    is(got($SHARES, 'X-Job-Id'), Digest::SHA::sha256_hex("$key:process"),
       "try $try: sha256 of key:type");
    is(got($SHARES, 'X-Notify-Job-Id'), Digest::SHA::sha256_hex("$key:notify"),
       "try $try: one for each type");
    is(got($SHARES, 'Idempotency-Key'), $key, "try $try: the key is passed on");
    like(got($SHARES, 'X-Request-Timestamp'), qr/^\d{13}$/,
         "try $try: with the time at the gateway, in milliseconds");
}

is(app_count($SHARES), 2, 'it ran twice');

# without a key: the same for each try, too

share('{"url":"https://keyless.example"}', headers());
my $job = got($SHARES, 'X-Job-Id');

like($job, qr/^[0-9a-f]{64}$/, 'a keyless request has one');
share('{"url":"https://keyless.example"}', headers());
is(got($SHARES, 'X-Job-Id'), $job, 'the same for its retry');
share('{"url":"https://another.example"}', headers());
isnt(got($SHARES, 'X-Job-Id'), $job, 'another for another link');



=== TEST 10: waits at most 5 s, then 503
--- http_config eval
main::example('share-sheet', sub { s/(idempotency_wait +)5s;/${1}500ms;/ })
--- config
    location /unused { }
--- client
shares(hold => 1);

for my $uri ($SHARES, $BATCH, $REGISTER) {
    my @key = key();
    my $c = example_send($uri, '{"n":1}', headers(@key));
    app_wait_parked($uri);

    my $r = example_post($uri, '{"n":1}', headers(@key));
    is($r->status, 503, "$uri: waited in vain");
    is($r->error_code, 'LOCK_TIMEOUT', "$uri: and says so");

    app_release($uri);
    is($c->read_response->status, 202, "$uri: done");
}



=== TEST 11: strict when the store fails
--- store: memory
--- http_config eval
"idempotency_store tiny memory { zone tiny:64k; }\n"
. main::example('share-sheet', sub { s/\$TEST_STORE/tiny/g })
--- config
    location /unused { }
--- client
shares();

my ($r, $n);

for ($n = 1; $n < 2000; $n++) {
    $r = example_post($BATCH, "[$n]", headers(key()));
    last if $r->status != 202;
}

is($r->status, 503, 'there is no room');
is($r->error_code, 'STORE_UNAVAILABLE', 'which is said');
is(app_count($BATCH), $n - 1, 'it did not run');

$r = share($BODY, headers(key()));
is($r->error_code, 'STORE_UNAVAILABLE', 'nor did this');
is(app_count($SHARES), 0, 'at all');



=== TEST 12: labels of few values
--- http_config eval
main::example('share-sheet', sub {
    s/(location = \/v1\/shares \{)/location = \/stats { idempotency_stats prometheus; }\n$1/ })
--- config
    location /unused { }
--- client
shares();

my @platform = (qw(ios android web), 'Nokia 3310', "x\"y");

share("{\"url\":\"https://example.com/$_\"}",
      headers(key(), 'X-Client-Platform' => $platform[$_])) for 0 .. $#platform;

example_post($BATCH, '[]', headers(key(), 'X-Client-Platform' => 'web'));
example_post($REGISTER, '{}', headers(key(), 'X-Client-Platform' => 'ios'));

my $stats = example_request('GET', '/stats')->body;

like($stats, qr/requests_total\{[^}]*group="$_"/, "group $_")
    for qw(batch-web register-ios);

for my $label (qw(ios android web other)) {
    like($stats, qr/requests_total\{[^}]*group="shares-$label"/,
         "platform $label");
}

unlike($stats, qr/Nokia|example\.com|Bearer/, 'nothing that a client sent');



=== TEST 13: chaos: Redis dies in the middle of a request
--- store: redis postgres
--- provokes: redis
--- client_timeout: 60
--- http_config eval
main::chaos_and($main::SECOND, sub {
    s/idempotency( +)\$TEST_STORE;/idempotency$1away fallback=second;/g })
--- config
    location /unused { }
--- client
shares(hold => 1);

my @key = key();
my $c = example_send($SHARES, $BODY, headers(@key));

app_wait_parked($SHARES);
$main::REDIS->kill_it;
app_release($SHARES);

my $r = $c->read_response;
is($r->status, 202, 'the request that ran gets its answer');

shares();

my $second = share($BODY, headers(@key));
is($second->status, 202, 'a retry finds it');
is(id($second), id($r), 'and is the same share');

# what is new meanwhile is kept by the fallback

@key = key();
$r = share('{"url":"https://new.example"}', headers(@key));
is($r->status, 202, 'new shares are taken');
is(id(share('{"url":"https://new.example"}', headers(@key))), id($r),
   'and are told again');

SKIP: {
    skip('no PostgreSQL', 1) if !$LEDGER;

    cmp_ok($LEDGER->sql('SELECT count(*) FROM idempotency.idempotency_keys '
                        . 'WHERE state = 2'), '>=', 1, 'by the database');
}

$main::REDIS->spawn;



=== TEST 14: chaos: a crash leaves a lock
--- client_timeout: 60
--- provokes: exited on signal 9
--- http_config eval
main::example('share-sheet', sub { s/(idempotency_lease +)30s;/${1}1s;/ })
--- config
    location /unused { }
--- client
shares(hold => 1);

my @key = key();
example_send($SHARES, $BODY, headers(@key));
app_wait_parked($SHARES);

kill_worker();

shares();

my $r;
ok(wait_for(sub { ($r = share($BODY, headers(@key)))->status == 202 }, 30),
   'a new request gets the lock when the lease is over');
is(app_count($SHARES), 2, 'and runs');



=== TEST 15: chaos: no store is left
--- store: redis postgres
--- provokes: redis
--- client_timeout: 60
--- http_config eval
main::chaos_and($main::SECOND =~ s/second/gone/gr =~ s/LEDGER/DEAD/r, sub {
    my $then = $main::LEDGER ? ' fallback=gone' : '';

    s/idempotency( +)\$TEST_STORE;/idempotency$1away$then;/g;
    s/(on_store_error +)fail/${1}pass/ })
--- config
    location /unused { }
--- client
# strict is what the document decides for; its chaos test wants that rapid
# duplicates fold nevertheless: that is "pass"

$main::REDIS->kill_it;

shares(hold => 1);

my @c = map { example_send($SHARES, $BODY, headers(key('rapid'))) } 1, 2;

app_wait_parked($SHARES);
app_release($SHARES);

my @r = map { $_->read_response } @c;

is_deeply([ map { $_->status } @r ], [ 202, 202 ], 'both are answered');
is(id($r[0]), id($r[1]), 'with the same share');
is(app_count($SHARES), 1, 'which ran once');

# as it is printed: without a key

@c = map { example_send($SHARES, '{"url":"https://example.com/rapid"}',
                        headers()) } 1, 2;

app_wait_parked($SHARES);
app_release($SHARES);

@r = map { $_->read_response } @c;

is_deeply([ map { $_->status } @r ], [ 202, 202 ], 'no key: both are answered');
is(id($r[0]), id($r[1]), 'no key: with the same share');
is(app_count($SHARES), 2, 'no key: which ran once');

$main::REDIS->spawn;



=== TEST 16: chaos: no store is left, and strict
--- store: redis postgres
--- provokes: redis
--- http_config eval
main::chaos_and('', sub { s/idempotency( +)\$TEST_STORE;/idempotency$1away;/g })
--- config
    location /unused { }
--- client
$main::REDIS->kill_it;

shares();

my $r = share($BODY, headers(key()));
is($r->status, 503, 'nothing runs');
is($r->error_code, 'STORE_UNAVAILABLE', 'and says why');
is(app_count($SHARES), 0, 'at all');

$main::REDIS->spawn;



=== TEST 17: rollout, one platform first
--- http_config eval
main::example('share-sheet', sub {
    s/(share_dry_run \{\n +default +)off;/${1}on; ios off;/
    && s/(location = \/v1\/shares \{)/location = \/stats { idempotency_stats prometheus; }\n$1/
    or die })
--- config
    location /unused { }
--- client
shares();

my $send = sub { share($BODY, headers('X-Client-Platform' => $_[0],
                                      Authorization => "Bearer $_[0]")) };

is(id($send->('android')), 1, 'android: a share');
is(id($send->('android')), 2, 'android: runs as ever');
is(id($send->('ios')), 3, 'ios: a share');
is(id($send->('ios')), 3, 'ios: folds');

my $stats = example_request('GET', '/stats')->body;

like($stats, qr/requests_total\{[^\n]*group="shares-android"[^\n]*outcome="REPLAYED"\} 1$/m,
     'the figures tell what would have been');



=== TEST 18: rollout by percentage
--- http_config eval
"split_clients \$http_authorization \$share_part { 50% off; * on; }\n"
. main::example('share-sheet', sub {
    s/(share_dry_run \{\n +default +)off;/${1}\$share_part;/ or die })
--- config
    location /unused { }
--- client
shares();

my $folded = 0;

for my $user (1 .. 40) {
    my @id = map { id(share($BODY, headers(Authorization => "Bearer u$user"))) }
             1, 2;
    $folded++ if $id[0] == $id[1];
}

cmp_ok($folded, '>', 5, "some are in: $folded of 40");
cmp_ok($folded, '<', 35, 'some are not');



=== TEST 19: the audit trail
--- http_config eval
main::example('share-sheet', sub {
    s/(location = \/v1\/shares \{)/location \/idem\/ { idempotency_admin read; }\n$1/ })
--- config
    location /unused { }
--- client
shares();

my $trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
my $key = '7d444840-9dc0-11d1-b245-5ffdce74fad2';

share($BODY, headers(key($key), 'X-Client-Platform' => 'ios',
                     'X-Client-Version' => '2.1.0', traceparent => $trace))
    for 1, 2;
share($BODY, headers(key(), 'X-Client-Platform' => 'android'));

my @events;

ok(wait_for(sub {
    open my $in, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/logs/idempotency.json"
        or return 0;
    @events = grep { $_->{event} eq 'idempotency.replay' }
              map { JSON::PP->new->decode($_) } grep { /\n\z/ } <$in>;
    return @events >= 2;
}, 10), 'two duplicates were prevented');

my $e = $events[0];

is($e->{level}, 'info', 'info');
is($e->{key_hash}, Digest::SHA::sha256_hex($key), 'key, hashed');
is($e->{actor}, Digest::SHA::sha256_hex('Bearer u1'), 'userId, hashed');
is($e->{uri_group}, 'shares-ios', 'endpointGroup');
is($e->{outcome}, 'REPLAYED', 'result');
like($e->{original_timestamp}, qr/^20\d\d-\d\d-\d\dT/, 'originalRequestTime');
is($e->{platform}, 'ios', 'platform');
is($e->{client_version}, '2.1.0', 'clientVersion');
is($e->{trace_id}, $trace, 'traceId');
is($events[1]{platform}, 'android', 'the other platform');
unlike(JSON::PP->new->encode(\@events), qr/Bearer|example\.com|7d444840-/,
       'and no key, user or body');

# inspect --user

my $list = example_request('GET', "/idem/records/$STORE?actor=Bearer%20u1")->json;

cmp_ok(scalar @{ $list->{records} }, '>=', 2, 'the records of a user');
is_deeply([ grep { $_->{state} ne 'completed' } @{ $list->{records} } ], [],
          'and what became of them');
is_deeply(example_request('GET', "/idem/records/$STORE?actor=Bearer%20u2")
          ->json->{records}, [], 'another user has none');



=== TEST 20: results of a batch are streamed
--- http_config eval: main::example('share-sheet')
--- config
    location /unused { }
--- client
my $lines = join '', map { "{\"item\":$_,\"run\":{run}}\n" } 1 .. 3;

app_answer($BATCH, { status => 202, body => $lines,
                     headers => [ [ 'Content-Type', 'application/x-ndjson' ],
                                  [ 'X-Accel-Buffering', 'no' ] ] });

my @key = key();
my @r = map { example_post($BATCH, '[1,2,3]', headers(@key)) } 1, 2;

is($_->status, 202, 'status 202') for @r;
like($r[0]->body, qr/\A(?:\{"item":\d,"run":1\}\n){3}\z/, 'all of it');
is($r[1]->body, $r[0]->body, 'a retry gets the same');
is($r[1]->header('Idempotent-Replayed'), 'true', 'which is a replay');
is(app_count($BATCH), 1, 'ran once');



=== TEST 21: a renewed token is the same user, if the access check says so
--- http_config eval
main::example('share-sheet', sub {
    s/map \$http_authorization \$share_user \{\n +default +\$http_authorization;/map \$http_x_checked_user \$share_user {\n    default \$http_x_checked_user;/
        or die })
--- config
    location /unused { }
--- client
# what an access check would have set, in place of a header

shares();

my @ann = ('X-Checked-User' => 'ann');
my @key = key();

is(id(share($BODY, headers(@key, @ann))), 1, 'a share');

my $r = share($BODY, headers(@key, @ann, Authorization => 'Bearer renewed'));
is($r->status, 202, 'its retry with a new token');
is(id($r), 1, 'is the same share');
is(id(share('{"url":"https://example.com/","title":"B"}',
            headers(key(), @ann, Authorization => 'Bearer renewed'))), 1,
   'and so is the same link');
is(id(share($BODY, headers(@key, 'X-Checked-User' => 'bob'))), 2,
   'another user has their own, whatever the token');
