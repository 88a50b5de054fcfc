# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Memory that can't be had, at every step: each allocation that a request makes
# fails once, and then once more with all that follow it.  The client gets an
# answer, the application runs at most once, and a retry is served at once.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest::Faults;              # before IdempotencyTest
use IdempotencyTest;
use IdempotencyTest::Walk;
use IdempotencyTest::Example;
use Test::Nginx::Socket 'no_plan';

our $Remote = ($ENV{IDEMPOTENCY_STORE} || '') =~ /^(?:redis|postgres)$/;

our $Paused;

if ($Remote) {
    $Paused = start_remote();
    $ENV{TEST_NGINX_PAUSED_PORT} = $main::Paused->{port};
}

run_tests();

walked(50);

__DATA__

=== TEST 1: a fresh request
--- config
    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
walk(name => 'fresh', retry => [200, 507]);



=== TEST 7: no memory at all for a while, and the lock in the store
--- store: redis postgres
--- config
    location / {
        idempotency        $TEST_STORE;
        idempotency_wait   0;
        idempotency_lease  300ms;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
walk(name => 'fresh', retry => [200, 507], all => 1);



=== TEST 2: a replay
--- config
    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $post = sub {
    send_post("/headers?op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
};

walk(name => 'replay', prepare => $post, request => $post, answers => [201],
     retry => [201]);



=== TEST 3: a replay never becomes an execution, whatever a store error means
--- store: memory
--- config
    location / {
        idempotency                 $TEST_STORE;
        idempotency_on_store_error  pass;
        idempotency_wait            0;
        proxy_pass                  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $post = sub {
    send_post("/ok?op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
};

walk(name => 'replay under pass', prepare => $post, request => $post);



=== TEST 4: a conflict, with everything it can tell
--- config
    location / {
        idempotency                  $TEST_STORE;
        idempotency_fingerprint      json;
        idempotency_conflict_detail  values;
        idempotency_documentation    https://$host/errors;
        idempotency_identity         $http_authorization;
        idempotency_wait             0;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $send = sub {
    my ($key, $body) = @_;

    send_post("/ok?op=$key", $body,
              { 'Idempotency-Key' => $key, Authorization => 'me',
                'Content-Type' => 'application/json' })->read_response(6);
};

my ($one, $two) = ('{"a":[1,{"b":"x"}],"c":null}', '{"a":[1,{"b":"y"}],"d":2}');

walk(name => 'conflict', answers => [409],
     prepare => sub { $send->($_[0], $one) },
     request => sub { $send->($_[0], $two) },
     again   => sub { $send->($_[0], $one) });



=== TEST 5: a holder that still runs: 409, or a wait
--- config
    location /busy/ {
        idempotency       $TEST_STORE;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        idempotency       $TEST_STORE;
        idempotency_wait  5s;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 180
--- client
my %holder;

my $busy = sub {
    send_post("/busy/ok?op=$_[0]&hold=1", 'x',
              { 'Idempotency-Key' => $_[0] });
};

walk(name => 'busy', answers => [409],
     prepare => sub { $holder{$_[0]} = $busy->($_[0]);
                      app_wait_parked($_[0]) },
     request => sub { $busy->($_[0])->read_response(6) },
     again   => sub { app_release($_[0]);
                      $holder{$_[0]}->read_response(6);
                      $busy->($_[0])->read_response(6) });

# the waiter is hit when it comes, and when its answer comes

my $post = sub {
    send_post("/ok?op=$_[0]&hold=1", 'x', { 'Idempotency-Key' => $_[0] });
};

walk(name => 'wait', answers => [200, 507], retry => [200, 507],
     prepare => sub { $holder{$_[0]} = $post->($_[0]);
                      app_wait_parked($_[0]) },
     request => sub {
         my @waiters = map { $post->($_[0]) } 1, 2;
         my @got = map { $_->read_response(0.05) } @waiters;
         app_release($_[0]);
         my $first = $holder{$_[0]}->read_response(6);
         die 'the holder got ' . told($first) . "\n"
             if !$first || $first->status != 200;
         $got[$_] ||= $waiters[$_]->read_response(6) for 0, 1;
         my ($bad) = grep { !$_ || $_->status != 200 } @got;
         return defined $bad || grep({ !$_ } @got) ? $bad : $got[0];
     },
     again   => sub { $post->($_[0])->read_response(6) });



=== TEST 6: outcomes: not kept, refused, truncated, too large, a stream, empty
--- config
    location / {
        idempotency               $TEST_STORE;
        idempotency_wait          0;
        idempotency_max_response  8k;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /live/ {
        idempotency               $TEST_STORE;
        idempotency_wait          0;
        idempotency_max_response  8k;
        proxy_buffering           off;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /dead/ {
        idempotency               $TEST_STORE;
        idempotency_wait          0;
        proxy_pass                http://127.0.0.1:$TEST_NGINX_DEAD_PORT;
    }
    location /retry/ {
        idempotency                  $TEST_STORE;
        idempotency_wait             0;
        idempotency_unknown_outcome  retry;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 180
--- client
sub post
{
    my $uri = shift;

    return sub {
        my $key = shift;
        (my $to = $uri) =~ s/OP/$key/;
        send_post($to, 'x', { 'Idempotency-Key' => $key })->read_response(6);
    };
}

walk(name => 'not kept', request => post('/status/503?op=OP'),
     answers => [503], retry => [503], runs => 2);

walk(name => 'refused', request => post('/dead/?op=OP'), answers => [502],
     retry => [502], runs => 0);

walk(name => 'unknown outcome', request => post('/retry/close?op=OP'),
     answers => [502], retry => [502], runs => 2);

walk(name => 'held as unknown', request => post('/close?op=OP'),
     answers => [502], retry => [502, 409]);

# what can't be held goes to the client as it comes

walk(name => 'truncated', request => post('/truncate?op=OP'),
     answers => [502, 200], retry => [502, 409, 507], truncated => 1);

walk(name => 'too large', request => post('/size?n=9000&op=OP'),
     retry => [507, 200]);

walk(name => 'too large, of no known length',
     request => post('/size?n=9000&chunked=1&op=OP'), retry => [507, 200]);

walk(name => 'in pieces', request => post('/size?n=7000&chunked=1&op=OP'),
     retry => [507, 200]);

# so does a stream, which breaks off where there is no memory to send it

for my $at ('', '/live') {
    walk(name => "a stream$at", request => post("$at/sse?n=2&op=OP"),
         retry => [507, 200], truncated => 1);

    walk(name => "a stream$at that gets too large",
         request => post("$at/size?n=9000&chunked=1&op=OP"
                         . '&type=text/event-stream'),
         retry => [507, 200], truncated => 1);
}

walk(name => 'empty', request => post('/204?op=OP'), answers => [204],
     retry => [204, 507]);



=== TEST 8: bodies in their canonical form, keys in them and derived from them
--- config
    location /json/ {
        idempotency              $TEST_STORE;
        idempotency_key          $http_idempotency_key json:id;
        idempotency_fingerprint  json exclude=at arrays=unordered;
        idempotency_wait         0;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /form/ {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  form exclude=at;
        idempotency_wait         0;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /multipart/ {
        idempotency              $TEST_STORE;
        idempotency_fingerprint  multipart;
        idempotency_wait         0;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /derived/ {
        idempotency         $TEST_STORE;
        idempotency_dedupe  body window=60s;
        idempotency_wait    0;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /both/ {
        idempotency         $TEST_STORE;
        idempotency_dedupe  json:url,id window=60s when=always;
        idempotency_wait    0;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 180
--- client
sub body
{
    my ($uri, $type, $body, %key) = @_;

    return sub {
        my $key = shift;
        my $text = $body;
        $text =~ s/KEY/$key/g;
        send_post("$uri?op=$key", $text,
                  { 'Content-Type' => $type,
                    $key{none} ? () : ('Idempotency-Key' => $key) })
            ->read_response(6);
    };
}

my @retry = (retry => [200, 507]);
my $json = '{"id":"KEY","a":[3,1,{"x":"\u00e9"}],"at":7,"b":{"c":null}}';

walk(name => 'canonical JSON', @retry,
     request => body('/json/ok', 'application/json', $json));

walk(name => 'a key in the body', @retry,
     request => body('/json/ok', 'application/json', $json, none => 1));

walk(name => 'a form', @retry,
     request => body('/form/ok', 'application/x-www-form-urlencoded',
                     join '&', 'at=1', map { "f$_=%41$_" } 1 .. 40));

walk(name => 'multipart', @retry,
     request => body('/multipart/ok', 'multipart/form-data; boundary=xyz',
                     "--xyz\r\nContent-Disposition: form-data; name=\"a\""
                     . "\r\n\r\n1\r\n--xyz--\r\n"));

walk(name => 'a derived key', @retry,
     request => body('/derived/ok', 'text/plain', 'KEY', none => 1));

my $both = '{"url":"u","id":"KEY"}';

walk(name => 'a key, and a derived one', @retry,
     request => body('/both/ok', 'application/json', $both));

# the first was sent under another key: the derived record has the response,
# and the key's record is to have it too

my $other = sub {
    my $key = shift;
    send_post("/both/ok?op=$key", qq({"url":"u","id":"$key"}),
              { 'Content-Type' => 'application/json',
                'Idempotency-Key' => new_key() })->read_response(6);
};

walk(name => 'a replay through a derived key', prepare => $other,
     request => body('/both/ok', 'application/json', $both));



=== TEST 9: what is said in an answer: compressed, set anew, expired, refused
--- config
    location / {
        idempotency              $TEST_STORE;
        idempotency_wait         0;
        idempotency_compress     on min=10;
        idempotency_replay_json  duplicate true;
        idempotency_replay_json  who $http_x_who;
        idempotency_keep_json    /result/isError=!true;
        proxy_pass               http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /short/ {
        idempotency                $TEST_STORE;
        idempotency_wait           0;
        idempotency_ttl            $arg_ttl;
        idempotency_lease          $arg_lease;
        idempotency_expired_grace  1h;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /required/ {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_documentation  https://$host/errors;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /page/ {
        idempotency                $TEST_STORE;
        idempotency_required       on;
        idempotency_error_body     off;
        error_page                 400 /400.html;
        proxy_pass                 http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- user_files
>>> 400.html
no key
--- client_timeout: 180
--- client
my $post = sub {
    send_post("/json?op=$_[0]&n=2000&type=application/json", 'x',
              { 'Idempotency-Key' => $_[0], 'X-Who' => 'me' })
        ->read_response(6);
};

walk(name => 'compressed', request => $post, retry => [200, 507]);
walk(name => 'a compressed one again', prepare => $post, request => $post);

my $json = sub {
    send_post("/json?op=$_[0]", 'x',
              { 'Idempotency-Key' => $_[0], 'X-Who' => 'me' })
        ->read_response(6);
};

walk(name => 'JSON with members of ours', prepare => $json, request => $json);

# the same in the events of a stream, which is looked into when it is stored

my $rpc = sub {
    send_post("/rpc/$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
};

my $answer = sub {
    app_answer("/rpc/$_[0]", {
        headers => [ [ 'Content-Type', 'text/event-stream' ] ],
        body => qq(data: {"jsonrpc":"2.0",\ndata: "id":1,"result":{}}\n\n) });
};

walk(name => 'JSON-RPC in events', prepare => $answer, request => $rpc,
     retry => [200, 507], truncated => 1);
walk(name => 'JSON-RPC in events again', request => $rpc,
     prepare => sub { $answer->($_[0]); $rpc->($_[0]) },
     again => sub { my $got = $rpc->($_[0]);
                    die "ran twice\n" if app_count("/rpc/$_[0]") != 1; $got });

my $short = sub {
    send_post("/short/ok?op=$_[0]&ttl=1ms&lease=5s", 'x',
              { 'Idempotency-Key' => $_[0] })->read_response(6);
};

walk(name => 'after one that expired', retry => [200, 507], runs => 3,
     prepare => sub { $short->($_[0]); select undef, undef, undef, 0.01 },
     request => $short);

walk(name => 'a key is missing', answers => [400], retry => [400], runs => 0,
     request => sub {
         send_post("/required/ok?op=$_[0]", 'x')->read_response(6);
     });

walk(name => 'a key is missing, and nginx says so', answers => [400],
     retry => [400], runs => 0,
     request => sub {
         send_post("/page/ok?op=$_[0]", 'x')->read_response(6);
     });



=== TEST 10: figures, events, variables
--- http_config
    log_format idempotency '$idempotency_status $idempotency_key_hash '
                           '$idempotency_record $idempotency_fingerprint '
                           '$idempotency_original_time $idempotency_age '
                           '$idempotency_wait_time $idempotency_store_time '
                           '$idempotency_key $idempotency_job_mail '
                           '$idempotency_conflict $idempotency_replayed';
--- config
    access_log  logs/access.log  idempotency;
    location / {
        idempotency      $TEST_STORE;
        idempotency_wait 0;
        idempotency_log  logs/events.log;
        proxy_pass       http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /stats  { idempotency_stats; }
    location /prom   { idempotency_stats prometheus; }
    location /json   { idempotency_stats json; }
    location /html   { idempotency_stats html; }
--- client_timeout: 120
--- client
walk(name => 'with events', retry => [200, 507]);

for my $page (qw(prom json html)) {
    walk(name => $page, runs => 0, request => sub {
        send_request('GET', "/$page", undef, {})->read_response(6);
    });
}



=== TEST 11: a store with a cache, and a commit that goes to the outbox
--- store: redis postgres
--- http_config
    idempotency_store cached $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PAUSED_PORT;
        cache    copies:1m ttl=30s;
    }
    idempotency_store ledger memory { zone ledger:1m; }
--- config
    location / {
        idempotency        cached;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /fallback/ {
        idempotency        cached fallback=ledger;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 180
--- client
my $post = sub {
    send_post("/ok?op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
};

walk(name => 'fresh, with a cache', retry => [200, 507]);
walk(name => 'replayed by the cache', prepare => $post, request => $post);

walk(name => 'fresh, with a fallback', retry => [200, 507], request => sub {
    send_post("/fallback/ok?op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
});



=== TEST 12: shared memory is full at every step
--- store: memory
--- config
    location / {
        idempotency                  on;
        idempotency_fingerprint      json;
        idempotency_conflict_detail  paths;
        idempotency_wait             0;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /pass/ {
        idempotency                  on;
        idempotency_on_store_error   pass;
        idempotency_wait             0;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $send = sub {
    send_post("/size?n=20000&op=$_[0]", '{"a":1}',
              { 'Idempotency-Key' => $_[0],
                'Content-Type' => 'application/json' })->read_response(6);
};

walk(name => 'a full zone', request => $send, arm => { slab => 1 },
     retry => [200, 507]);

# what is full at begin is a store error, and nothing ran

my $key = new_key();

faults_arm(1, all => 1, slab => 1);
my $full = $send->($key);
is($full->status, 503, 'no room for a record');
is($full->error_code, 'STORE_UNAVAILABLE', 'is a store error');
is(app_count($key), 0, 'and did not run');

my $passed = send_post("/pass/ok?op=$key", 'x',
                       { 'Idempotency-Key' => $key })->read_response(6);
faults_disarm();

is($passed->status, 200, 'unless it may pass');
is(app_count($key), 1, 'and ran');

# what has a record has room to say that it ran

my $busy = new_key();
my $holder = send_post("/size?n=20000&hold=1&op=$busy", '{"a":1}',
                       { 'Idempotency-Key' => $busy,
                         'Content-Type' => 'application/json' });
app_wait_parked($busy);
faults_arm(1, all => 1, slab => 1);
app_release($busy);

is($holder->read_response(6)->status, 200, 'the client has its response');
faults_disarm();

my $again = send_post("/size?n=20000&hold=1&op=$busy", '{"a":1}',
                      { 'Idempotency-Key' => $busy,
                        'Content-Type' => 'application/json' })
    ->read_response(6);

is($again->status, 507, 'there was no room for it');
is($again->error_code, 'RESPONSE_NOT_KEPT', 'which the record says');
is(app_count($busy), 1, 'and it ran once');



=== TEST 13: shared memory of the layers is full at every step
--- store: redis postgres
--- http_config
    idempotency_store cached $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PAUSED_PORT;
        cache    copies:1m ttl=30s;
    }
--- config
    location / {
        idempotency       cached;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $send = sub {
    send_post("/size?n=20000&op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
};

# a cache that is full is no reason for anything

walk(name => 'a full cache', request => $send, arm => { slab => 1 },
     all => 1);



=== TEST 14: a commit that goes to the outbox
--- store: redis postgres
--- http_config
    idempotency_store away $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PAUSED_PORT;
        timeout  100ms;
        cache    copies:1m ttl=30s;
    }
--- config
    location / {
        idempotency       away;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my %holder;

my $post = sub {
    send_post("/ok?hold=1&op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] });
};

walk(name => 'outbox', retry => [200, 507],
     prepare => sub {
         $holder{$_[0]} = $post->($_[0]);
         app_wait_parked($_[0]) or die "it does not run\n";
         $main::Paused->pause;
     },
     request => sub {
         app_release($_[0]);
         my $got = $holder{$_[0]}->read_response(6);
         $main::Paused->resume;
         return $got;
     },
     again => sub { $post->($_[0])->read_response(6) });



=== TEST 15: a connection to the store that is made anew
--- store: redis postgres
--- http_config
    idempotency_store away $TEST_REMOTE { server 127.0.0.1:$TEST_NGINX_PAUSED_PORT; }
--- config
    location / {
        idempotency       away;
        idempotency_wait  0;
        proxy_pass        http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
walk(name => 'connecting', retry => [200, 507], prepare => sub {
    $main::Paused->hang_up;
});



=== TEST 17: a store that is away: the ledger serves
--- store: redis postgres
--- http_config
    idempotency_store away $TEST_REMOTE {
        server   127.0.0.1:$TEST_NGINX_PAUSED_PORT;
        timeout  100ms;
        cache    copies:1m ttl=30s;
    }
    idempotency_store ledger memory { zone ledger:1m; }
--- config
    location / {
        idempotency        away fallback=ledger;
        idempotency_lease  100ms;
        idempotency_wait   0;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 120
--- client
my $post = sub {
    send_post("/ok?op=$_[0]", 'x', { 'Idempotency-Key' => $_[0] })
        ->read_response(6);
};

walk(name => 'away', retry => [200, 507], upto => 30,
     prepare => sub { $main::Paused->pause },
     request => sub {
         my $got = $post->($_[0]);
         $main::Paused->resume;
         return $got;
     });



=== TEST 16: a configuration is refused when there is no memory for it
--- store: memory
--- http_config
    idempotency_store shared redis {
        server                   127.0.0.1:$TEST_NGINX_DEAD_PORT;
        user                     me;
        password                 secret;
        prefix                   a:;
        tls                      on;
        tls_verify               off;
        cache                    copies:1m ttl=30s;
        breaker                  fails=3 reset=1s;
    }
    idempotency_store ledger memory { zone ledger:1m; }
--- config
    location / {
        idempotency                  on;
        idempotency_key              $http_idempotency_key json:id;
        idempotency_key_format       string min=2 max=80 quoted=optional;
        idempotency_methods          POST PUT;
        idempotency_bypass           $arg_bypass $http_x_bypass;
        idempotency_scope            $host$uri;
        idempotency_identity         $http_authorization $cookie_session;
        idempotency_fingerprint      json exclude=at,when arrays=unordered;
        idempotency_dedupe           json:url,id window=60s when=always;
        idempotency_ttl              $arg_ttl;
        idempotency_ttl_header       X-TTL max=1h;
        idempotency_max_response     $arg_max;
        idempotency_keep_status      2xx 404 !204;
        idempotency_replay_json      again true;
        idempotency_hide_header      X-Secret X-Other;
        idempotency_documentation    https://$host/errors;
        idempotency_conflict_detail  paths;
        idempotency_log              logs/events.log;
        idempotency_group            api;
        add_header                   X-Job $idempotency_job_mail;
        proxy_pass                   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /shared {
        idempotency                  shared fallback=ledger;
    }
    location = /stats { idempotency_stats; }
--- client_timeout: 180
--- client
my $conf = $Test::Nginx::Util::ConfFile;
my (@bad, $steps);

# "-t" leaves without freeing what it has read
local $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0';

# the worker that runs shares what is armed, and must have nothing to do: it
# would go on looking for its Redis
works();
settled();

my @workers = nginx_workers();
kill STOP => @workers;

for my $all (0, 1) {
    for my $n (1 .. 1000) {
        faults_arm($n, all => $all, shared => 1);
        my $said = qx($ENV{TEST_NGINX_BINARY} -t -q -e stderr -p $ENV{TEST_NGINX_SERVROOT}/ -c $conf 2>&1);
        my $status = $?;
        my $f = faults_disarm();

        if (!$f->{failed}) {
            push @bad, "it is refused anyway: $said" if $status;
            last;
        }

        $steps++;

        push @bad, "$f->{name} $n: ended by signal " . ($status & 127)
                   . " ($f->{where})" if $status & 127;
        push @bad, "$f->{name} $n: accepted ($f->{where})" if !$status;
    }
}

kill CONT => @workers;

cmp_ok($steps, '>', 100, "$steps failures");
ok(!@bad, 'each is an error') or diag(map { "$_\n" } @bad);



=== TEST 18: the response of a derived record can't be stored under the key
A client that had its replay: when the window is over, a retry does not run.
--- config
    location / {
        idempotency         $TEST_STORE;
        idempotency_dedupe  body window=1s when=always;
        idempotency_wait    0;
        proxy_pass          http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client_timeout: 180
--- client
my $post = sub {
    my ($op, $key) = @_;

    return send_post("/size?n=3000&op=$op", $op, { 'Idempotency-Key' => $key })->read_response(6);
};

my @replayed;

for my $n (1 .. 250) {
    my ($op, $key) = (new_key(), new_key());

    works();
    $post->($op, new_key());

    faults_arm($n);
    my $got = $post->($op, $key);
    my $f = faults_disarm();

    last if !$f->{failed};

    push @replayed, [ $op, $key, "$f->{name} $n ($f->{where})" ]
        if $got && $got->header('Idempotent-Replayed');
}

cmp_ok(scalar @replayed, '>', 0, scalar @replayed . ' replays');
sleep 1.2;

for my $r (@replayed) {
    my ($op, $key, $what) = @$r;

    $post->($op, $key);
    is(app_count($op), 1, $what);
}
