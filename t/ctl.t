# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# idempotencyctl: the questions of people, from a terminal, on every store.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Admin;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';
use Digest::SHA 'sha256_hex';
use JSON::PP;
use IO::Socket::INET;
use POSIX ();
use Sys::Hostname ();

our $api = admin_config('$TEST_STORE',
    'add_header  X-Key-Hash $idempotency_key_hash always;');

# what it says, and its exit code
sub ctl {
    my $url = $_[0] =~ m{^(http|unix):} ? shift
              : "http://127.0.0.1:$port/ops/";

    my $command = join ' ', map { "'$_'" } 'build/idempotencyctl', '--url',
                  $url, @_;
    my $out = qx($command 2>&1);

    return wantarray ? ($out, $? >> 8) : $out;
}

run_tests();

__DATA__

=== TEST 1: inspect, delete, id
--- config eval: $::api
--- client
my $key = new_key();
my $first = post('/ok?op=a', $key);
my $id = $first->header('X-Record');

my ($out, $code) = ctl('inspect', '--key', $key, '--scope', 'api');

is($code, 0, 'found');
like($out, qr/^record\s+$id$/m, 'its id');
like($out, qr/^state\s+completed$/m, 'its state');
like($out, qr/^status\s+200$/m, 'its status');

is(decode_json(scalar ctl('inspect', '--record', $id, '--json'))->{record},
   $id, 'as JSON');

($out, $code) = ctl('http://127.0.0.1:1/', 'id', '--key', $key,
                    '--scope', 'api');

is($code, 0, 'an id needs no server');
like($out, qr/^record\s+$id$/m, 'it is that of the module');
like($out, qr/^key_hash\s+@{[ $first->header('X-Key-Hash') ]}$/m,
     'and so is the hash');

($out, $code) = ctl('delete', '--record', $id, '--dry-run');

is("$out$code", "would delete 1 record\n0", 'a dry run');
is(post('/ok?op=a', $key)->header('X-Status'), 'REPLAYED', 'it is there');

($out, $code) = ctl("http://127.0.0.1:$port/look/", 'delete', '--record', $id);

is($code, 3, 'refused where it is read only');
like($out, qr/nothing is deleted here/, 'and says why');

($out, $code) = ctl('delete', '--key', $key, '--scope', 'api');

is("$out$code", "deleted 1 record\n0", 'deleted');

($out, $code) = ctl('inspect', '--record', $id);

is($code, 1, 'there is none');
like($out, qr/There is no such record/, 'and says so');
is(post('/ok?op=a', $key)->header('X-Status'), 'EXECUTED', 'it runs again');

# a key in quotes is the same key

my %sent = ('"q\"\\\\z"' => 'q"\\z', '"q";a=1' => 'q', '"q" r' => '"q" r',
            '"q' => '"q', '""' => '""');

like(scalar(ctl('id', '--key', $_, '--scope', 'api')),
     qr/^key_hash +@{[ sha256_hex($sent{$_}) ]}$/m, "the key of $_")
    for sort keys %sent;

my $quoted = '"' . new_key() . '"';

$id = post('/ok?op=q', $quoted)->header('X-Record');

like(scalar(ctl('id', '--key', $quoted, '--scope', 'api')),
     qr/^record\s+$id$/m, 'the id of a key in quotes');
like(scalar(ctl('inspect', '--key', $quoted, '--scope', 'api')),
     qr/^record\s+$id$/m, 'and its record');

# what the location says of it

is(scalar(ctl('id', '--key', 'q', '--scope', $_->[0], '--json')),
   http_get("/ops/id?key=q&scope=$_->[1]")->body, "id --json: scope $_->[0]")
    for [ 'api', 'api' ], [ 'a"b\\c', 'a%22b%5Cc' ];

# the key is not in an address, and so in no log of nginx

access_log_like(qr/"GET \S+\/$id\b/, 'by its id');

unlike(access_log(), qr/\Q$key\E/, 'no key in access.log');
error_log_unlike(qr/\Q$key\E/, 'nor in error.log');



=== TEST 2: list, stats, cleanup, health
--- config eval: $::api
--- client
my $held = send_post('/hold?op=h', 'body', { 'Idempotency-Key' => new_key() });

app_wait_parked('h');
post("/ok?op=b$_", new_key()) for 1 .. 5;

my ($out, $code) = ctl('list');

is($code, 0, 'a list');
like($out, qr/^RECORD +STATE +STATUS +AGE +LEFT +SIZE +TENANT +GROUP *$/m,
     'its head');
is(scalar(() = $out =~ /^[0-9a-f]{64} +completed +200 /mg), 5, 'five are over');
is(scalar(() = $out =~ /^[0-9a-f]{64} +in_progress +- /mg), 1, 'one runs');
is(scalar(() = ctl('list', '--limit', 2) =~ /^[0-9a-f]{64}/mg), 2, 'a limit');

$out = ctl('list', '--state', 'in_progress');
my $host = substr lc Sys::Hostname::hostname(), 0, 10;
like($out, qr/^RECORD +STATE +STATUS +AGE +LEFT +HOST +TENANT/, 'of locks');
like($out, qr/^[0-9a-f]{64} +in_progress .* \Q$host\E /m, 'who holds them')
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'redis';

is(scalar(ctl('stats')), "in_progress  1\ncompleted    5\nunusable     0\n",
   'counted');

like(scalar(ctl('--version')), qr/^idempotencyctl \d+\.\d+\.\d+\n\z/,
     'which version it is');

is(scalar(ctl('cleanup', '--state', 'in_progress', '--older', '1h')),
   "deleted 0 records\n", 'none is that old');
is(scalar(ctl('cleanup', '--state', 'in_progress', '--older', '1ms',
              '--dry-run')), "would delete 1 record\n", 'one would go');
is(scalar(ctl('cleanup', '--state', 'completed', '--older', '1ms')),
   "deleted 5 records\n", 'five go');
like(scalar(ctl('stats', '--json')),
     qr/^\{"in_progress":1,"completed":0,"unusable":0\}$/, 'one is left');

($out, $code) = ctl('health');

is($code, 0, 'all well');
like($out, qr/^\w+ +ok /, 'said so');

app_release('h');
$held->read_response;



=== TEST 3: what is asked wrongly, and nobody who answers
--- config eval: $::api
--- client
for ([ 2, qr/which record/, 'inspect' ],
     [ 2, qr/clean up what/, 'cleanup' ],
     [ 2, qr/purge whose/, 'purge' ],
     [ 2, qr/of which key/, 'id', '--key', 'k' ],
     [ 2, qr/which record\? --key is empty/, 'inspect', '--key', '',
       '--scope', 'api' ],
     [ 2, qr/--record does not choose/, 'cleanup', '--older', '1h',
       '--record', '0' x 64 ],
     [ 2, qr/--key does not choose/, 'purge', '--tenant', 'a', '--key', 'k' ],
     [ 2, qr/--scope does not choose/, 'cleanup', '--older', '1h', '--scope',
       's' ],
     [ 2, qr/--state does not choose/, 'delete', '--key', 'k', '--state',
       'in_progress' ],
     [ 2, qr/--tenant does not choose/, 'delete', '--key', 'k', '--scope', 's',
       '--tenant', 'a' ],
     [ 2, qr/--scope does not choose/, 'delete', '--record', '0' x 64,
       '--scope', 's' ],
     [ 2, qr/what is "more"/, 'list', 'more' ],
     [ 2, qr/"tail" does not take --tenant/, 'tail', '--tenant', 'a' ],
     [ 2, qr/"inspect" does not take --actor/, 'inspect', '--record', '0' x 64,
       '--actor', 'a' ],
     [ 2, qr/"list" does not take --scope/, 'list', '--scope', 's' ],
     [ 2, qr/"stats" does not take --state/, 'stats', '--state', 'completed' ],
     [ 2, qr/"health" does not take --key/, '--key', 'k', 'health' ],
     [ 2, qr/"list" does not take --dry-run/, 'list', '-n' ],
     [ 2, qr/there is no command "dance"/, 'dance' ],
     [ 2, qr/state.*is in_progress/, 'list', '--state', 'done' ],
     [ 2, qr/a limit is a number/, 'list', '--limit', 'few' ],
     [ 1, qr/There is no such store/, 'tail', '--store', 'nowhere' ],
     [ 2, qr/"record" is 64/, 'tail', '--record', 'first' ],
     [ 1, qr/There is no such store/, 'list', '--store', 'nowhere' ])
{
    my ($wanted, $text, @args) = @$_;
    my ($out, $code) = ctl(@args);

    is($code, $wanted, "@args: $wanted");
    like($out, $text, 'and why');
}

is((ctl("http://127.0.0.1:$ENV{TEST_NGINX_DEAD_PORT}/", 'list'))[1], 3,
   'nobody is there');
like(scalar qx(IDEMPOTENCY_URL= build/idempotencyctl list 2>&1),
     qr/where\? Say --url/, 'an empty variable says nothing');
is($? >> 8, 2, 'it was asked wrongly');
is((ctl("http://127.0.0.1:$port/other", 'health'))[1], 3,
   'it is another location');



=== TEST 4: several stores
--- http_config
    idempotency_store small memory { zone small:1m; }
--- config eval
$::api . <<'_EOC_'
    location /small/ {
        idempotency        small;
        idempotency_scope  api;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
_EOC_
--- client
post('/ok?op=a', new_key());
post("/small/ok?op=b$_", new_key()) for 1, 2;

my ($out, $code) = ctl('stats');

is($code, 0, 'stats');
like($out, qr/^small\n  in_progress  0\n  completed    2\n  unusable     0$/m,
     'of each of them');

my %n = map { $_->{name} => $_->{completed} }
        @{ decode_json(scalar ctl('stats', '--json'))->{stores} };

is($n{small}, 2, 'in JSON');
is(join(' ', sort { $a <=> $b } values %n), '1 2', 'all');
is(scalar(ctl('stats', '--store', 'small')),
   "in_progress  0\ncompleted    2\nunusable     0\n", 'or of one');
is((ctl('list'))[1], 2, 'a list is of one');



=== TEST 5: over a unix socket, and following events
--- http_config
    server {
        listen unix:$TEST_NGINX_SERVER_ROOT/ops.sock;
        location / { idempotency_admin; }
    }
--- config eval: $::api
--- client
my $url = "unix:$ENV{TEST_NGINX_SERVER_ROOT}/ops.sock:/";
my $key = new_key();
my $id = post('/ok?op=s', $key)->header('X-Record');

like(scalar(ctl($url, 'inspect', '--record', $id)), qr/^state +completed/m,
     'by a socket');
like(scalar(ctl("http://$url", 'inspect', '--record', $id)),
     qr/^state +completed/m, 'written as in proxy_pass');

my $pid = open my $tail, '-|', 'build/idempotencyctl', '--url', $url, 'tail',
               '--key', $key or die $!;
my $line;

# the first looks come before it follows
wait_for(sub {
    post('/ok?op=s', $key);
    my $in = '';
    vec($in, fileno $tail, 1) = 1;
    select($in, undef, undef, 0.2) and $line = <$tail>;
}, 10);

is(decode_json($line || '{}')->{event}, 'idempotency.replay', 'a replay');
is(decode_json($line || '{}')->{record}, $id, 'of that record');

kill 'TERM', $pid;
close $tail;



=== TEST 6: for people on a terminal
--- config eval
$::api =~ s/idempotency_scope/idempotency_tenant \$http_x_tenant; idempotency_group pay; idempotency_scope/r
--- client
my $key = new_key();
my %h = ('Idempotency-Key' => $key, 'X-Tenant' => "a\e[2Jb");
my $id = http_post('/ok?op=p', 'body', \%h)->header('X-Record');

# on a terminal, of 80 columns
my $on = sub {
    my $command = join ' ', 'build/idempotencyctl', '--url',
                  "http://127.0.0.1:$port/ops/", @_;
    my $pid = open my $out, '-|', 'exec script -qefc "stty cols 80; '
                   . "TERM=xterm exec $command\" /dev/null 2>/dev/null"
        or die $!;
    return ($pid, $out);
};

like(scalar(ctl('list')), qr/ a\?\[2Jb +pay *$/m, 'a tenant and a group');

my $other = http_post('/ok?op=q', 'body', { 'Idempotency-Key' => new_key() });
my $none = $other->header('X-Record');
like(scalar(ctl('list')), qr/^$none .* - +pay *$/m, 'a group is no tenant');

my (undef, $list) = $on->('list');
my $text = do { local $/; <$list> };
my $short = substr $id, 0, 12;

like($text, qr/^$short  completed/m, 'a row, with the beginning of the id');
like($text, qr/ a\?\[2Jb/, 'what a client put into a label is harmless');
unlike($text, qr/\e\[2J/, 'in any case');
is(scalar(grep { s/\e\[[\d;]*[mK]//gr =~ /^[^\r\n]{80,}/ } split /^/m, $text), 0,
   'no line is too long');

my (undef, $health) = $on->('health');
like(do { local $/; <$health> }, qr/\e\[32mok/, 'in colours');
unlike(scalar(ctl('health')), qr/\e\[/, 'but only there');

my $read = '';
my ($pid, $tail) = $on->('tail', '--key', $key, '--scope', 'api');
my $line = sub {
    my ($wanted, $do) = @_;
    my $found;

    wait_for(sub {
        $do->();

        my $in = '';
        vec($in, fileno $tail, 1) = 1;

        while (select(my $ready = $in, undef, undef, 0.3)) {
            sysread($tail, $read, 65536, length $read) or return 1;
        }

        while ($read =~ s/^(.*)\n//) {
            my $l = $1 =~ s/\e\[[\d;]*m|\r//gr;
            $found //= $l if $l =~ /$wanted/;
        }

        return $found;
    }, 20);

    return $found // '';
};

like($line->('replay', sub { http_post('/ok?op=p', 'body', \%h) }),
     qr/^\d\d:\d\d:\d\d\.\d{3} info  replay {17}$short pay {8}200  REPLAYED, replays \d/,
     'an event is a line');

ok(nginx_reload(), 'a reload');
like($line->('conflict', sub { http_post('/ok?op=p', 'other', \%h) }),
     qr/ error conflict {15}$short pay {8}409  CONFLICT, payload.*, store \w+, host /,
     'does not end it');

kill 'TERM', $pid;
close $tail;

# --json is for programs, there, too
$read = '';
($pid, $tail) = $on->('--json', 'tail', '--key', $key, '--scope', 'api');
is(eval { decode_json($line->('"event"', sub { http_post('/ok?op=p', 'body',
                                                         \%h) }))->{record} },
   $id, 'JSON');
kill 'TERM', $pid;
close $tail;

access_log_like(qr/"GET \S+events\?record=$id\b/, 'asked by the id');
unlike(access_log(), qr/\Q$key\E/, 'no key in access.log');



=== TEST 7: several pages are one list
--- config eval: $::api
--- client
# a location with more records than fit a page
my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1:0', Listen => 5)
    or die $!;
my $url = 'http://127.0.0.1:' . $listen->sockport . '/';
my $pid = fork // die $!;

if ($pid == 0) {
    my %page = ('' => [ 'ab', 'c1' ], c1 => [ '', 'c2' ], c2 => [ 'cd', '' ]);

    while (my $c = $listen->accept) {
        my $head = '';
        sysread $c, $head, 65536, length $head or last
            until $head =~ /\r\n\r\n/;

        my ($cursor) = $head =~ /cursor=(\w+)/;
        my ($ids, $next) = @{ $page{ $cursor // '' } };
        my $status = '200 OK';

        if ($head =~ m{ /broken/}) {
            ($ids, $next) = ('x', 'c2') if $cursor && $cursor eq 'c1';
            $status = '503 Away' if $cursor && $cursor eq 'c2';
        }

        my $body = $status ne '200 OK'
                   ? '{"ok":false,"error":{"message":"Store \"s\" is away."}}'
                   : '{"records":[' . join(",\n", map { "{\"record\":\"$_\"}" }
                                                 split //, $ids) . ']'
                   . ($next ? ",\"cursor\":\"$next\"" : '') . "}\n";
        print $c "HTTP/1.1 $status\r\nConnection: close\r\nContent-Length: "
                 . length($body) . "\r\n\r\n$body";
        close $c;
    }

    POSIX::_exit(0);
}

for ([ 'list', 'abcd' ], [ 'purge --tenant x', 'abcd', 4 ]) {
    my ($command, $ids, $deleted) = @$_;
    my $json = eval { decode_json(scalar ctl($url, '--json', '--store', 's',
                                             split / /, $command)) };

    is(join('', map { $_->{record} } @{ $json->{records} || [] }), $ids,
       "$command: one document");
    is($json->{deleted}, $deleted, 'and what was deleted');
}

like(scalar(qx(script -qefc "build/idempotencyctl --url $url --store s list" /dev/null)),
     qr/\r2 so far .*\r\e\[K/s, 'how far it is, on a terminal');
unlike(scalar(ctl($url, '--store', 's', 'list')), qr/so far/, 'and only there');

# a page that is refused: still one document, with what was done before

for ([ 'list' ], [ 'purge --tenant x', 3 ]) {
    my ($command, $deleted) = @$_;
    my $said = qx(build/idempotencyctl --url ${url}broken/ --json --store s $command 2>/dev/null);
    is($? >> 8, 1, "$command: a page is refused");

    my $json = eval { decode_json($said) };
    is(join('', map { $_->{record} } @{ $json->{records} || [] }), 'abx',
       'one document');
    is($json->{deleted}, $deleted, 'and what was deleted');
    is($json->{error}{message}, 'Store "s" is away.', 'and why no more');
}

my ($said, $status) = ctl("${url}broken/", '--store', 's', 'purge', '--tenant',
                          'x');
is($status, 1, 'for people');
like($said, qr/^deleted 3 records$/m, 'what was deleted');
like($said, qr/is away/, 'and why no more');

kill 'KILL', $pid;
waitpid $pid, 0;



=== TEST 8: one store does not answer, another has an odd name
--- http_config
    idempotency_store away redis { server 127.0.0.1:$TEST_NGINX_DEAD_PORT; }
    idempotency_store 'a "b\\' memory { zone odd:1m; }
--- config eval
$::api . <<'_EOC_'
    location /odd/ {
        idempotency        'a "b\\';
        idempotency_scope  api;
        proxy_pass         http://127.0.0.1:$TEST_NGINX_APP_PORT/;
    }
_EOC_
--- client
my $odd = 'a "b\\';
my $url = "http://127.0.0.1:$port/ops/";
post('/odd/ok?op=a', new_key());

my $json = eval { decode_json(scalar qx(build/idempotencyctl --url $url stats --json 2>/dev/null)) };
is($? >> 8, 1, 'stats: one does not answer');
my %store = map { $_->{name} => $_ } @{ $json->{stores} || [] };

is($store{$odd}{completed}, 1, 'the one behind it is counted');
like($store{away}{error}{message}, qr/does not answer/, 'why not, in JSON');
is($store{away}{completed}, undef, 'and no figure');

my ($out, $code) = ctl('stats');
is($code, 1, 'for people, too');
like($out, qr/Store "away" does not answer/, 'why not');
like($out, qr/^\Q$odd\E\n  in_progress  0\n  completed    1$/m, 'and the others');

like(scalar(ctl('list', '--store', $odd)), qr/ completed /, 'named in an address');

is((ctl('health'))[1], 1, 'health of all');
($out, $code) = ctl('health', '--store', $odd);
is($code, 0, 'health of one');
like($out, qr/^\Q$odd\E +ok +\d+ms *\n\z/, 'and of no other');
is((ctl('health', '--store', 'away'))[1], 1, 'of the one that is away');
($out, $code) = ctl('health', '--store', 'nowhere');
is($code, 1, 'of none');
like($out, qr/There is no such store/, 'why');

is(http_get('/ops/health')->status, 503, 'the location: all');
my $r = http_get('/ops/health?store=a+%22b%5C' =~ s/\+/%20/r);
is($r->status, 200, 'one');
is(scalar @{ $r->json->{stores} }, 1, 'alone');
is(http_get('/ops/health?store=away')->status, 503, 'the one that is away');
$r = http_get('/ops/health?store=nowhere');
is($r->status, 404, 'none');
is($r->json->{error}{code}, 'STORE_UNKNOWN', 'says so');

($out, $code) = ctl('list', '--store', $odd, '--key', 'k');
is($code, 2, 'a list is not of one key');
like($out, qr/that is "inspect"/, 'says so');



=== TEST 9: who may ask is nginx's to say, and who asked is told
--- config eval
$::api . <<'_EOC_'
    idempotency_log  $TEST_NGINX_SERVER_ROOT/logs/events.json;

    location /pw/ {
        idempotency_admin;
        auth_basic            "operators";
        auth_basic_user_file  $TEST_NGINX_SERVER_ROOT/operators;
    }
    location /nobody/ {
        idempotency_admin;
        deny  all;
    }
_EOC_
--- client
open my $fh, '>', "$ENV{TEST_NGINX_SERVER_ROOT}/operators" or die $!;
print $fh "ann:{PLAIN}sEcReT\n";
close $fh;

my $url = "http://127.0.0.1:$port/pw/";
my $id = post('/ok?op=u', new_key())->header('X-Record');

is((ctl($url, 'inspect', '--record', $id))[1], 3, 'not without a password');
is((ctl($url, '--user', 'ann:wrong', 'inspect', '--record', $id))[1], 3,
   'nor with a wrong one');
is((ctl("http://127.0.0.1:$port/nobody/", 'delete', '--record', $id))[1], 3,
   'nor where nobody may');
like(scalar(ctl($url, '--user', 'ann:sEcReT', 'inspect', '--record', $id)),
     qr/^state +completed/m, 'but with the right one');
is((ctl($url, '--user', 'ann:sEcReT', 'delete', '--record', $id))[0],
   "deleted 1 record\n", 'deleted');

my @deleted;
ok(wait_for(sub {
    @deleted = grep { $_->{event} eq 'idempotency.record.deleted' }
                    read_events("$ENV{TEST_NGINX_SERVER_ROOT}/logs/events.json");
}, 10), 'it is an event');
is($deleted[0]{by}, 'ann', 'with the user');
is($deleted[0]{record}, $id, 'and the record');
error_log_unlike(qr/sEcReT/, 'never the password');

# a password in the address is not told when something is wrong

my $closed = free_port();

for my $where ("127.0.0.1:$closed/", "127.0.0.1:$port/nobody/",
               "127.0.0.1:$port/ok")
{
    for my $command ('list', 'health', 'stats') {
        my ($out, $code) = ctl("http://ann:sEcReT\@$where", $command);

        isnt($code, 0, "$where: $command fails");
        like($out, qr/\Q$where\E/, "$where: $command tells where");
        unlike($out, qr/sEcReT/, "$where: $command: without the password");
    }
}



=== TEST 10: an address that is not that of the administration
--- config
    default_type  application/json;

    location /page/ {
        return  200 "<html></html>";
    }
    location /loop/ {
        return  200 '{"records":[],"matched":0,"deleted":0,"cursor":"again"}';
    }
    location /list/ {
        return  200 '{"records":[{"record":"a","state":"completed"}],"cursor":"again"}';
    }
    location /names/ {
        return  200 '{"\u001b[2J":"\u0007"}';
    }
--- client
my $record = 'a' x 64;
my $url = "http://127.0.0.1:$port";

for my $command ([ 'inspect' ], [ 'delete' ], [ 'delete', '--dry-run' ],
                 [ 'inspect', '--json' ], [ 'delete', '--json' ])
{
    my ($out, $code) = ctl("$url/page/", '--store', 's', @$command,
                           '--record', $record);

    is($code, 3, "@$command: failed");
    like($out, qr/does not answer with JSON/, "@$command: says why");
    unlike($out, qr/deleted|html/, "@$command: nothing else");
}

for my $command ([ 'list' ], [ 'list', '--json' ],
                 [ 'cleanup', '--older', '1h' ], [ 'purge', '--tenant', 't' ],
                 [ 'stats' ])
{
    my ($out, $code) = ctl("$url/loop/", '--store', 's', @$command);

    is($code, 3, "@$command: ends");
    like($out, qr/the same page again/, "@$command: says why");
}

my $out = ctl("$url/list/", '--store', 's', 'list', '--json');
like($out, qr/"error":\{"message":"the same page again"\}\}$/m,
     'a list that is half told');

like(scalar(ctl("$url/names/", '--store', 's', 'inspect', '--record',
                $record)),
     qr/^\?\[2J +\?$/, 'no control characters');
