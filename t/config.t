# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A configuration that is wrong is refused when it is read, with a message
# that names the directive, the value, what would be right, and the file and
# line; one that is right is taken in every context, and inherited.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket 'no_plan';

our $config = <<'_EOC_';
    # server
    location / {
        # location
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
        if ($http_x_if) {
            # if
        }
    }
_EOC_


# What nginx -t says of the running configuration with a line put in its place
# (http, server, location or if; "main" is outside of all); '' if it is fine.
# The number of that line comes second.

sub try_config
{
    my ($place, $text) = @_;

    my $file = "$ENV{TEST_NGINX_SERVROOT}/conf/tried.conf";

    open my $in, '<', "$ENV{TEST_NGINX_SERVROOT}/conf/nginx.conf"
        or die "nginx.conf: $!\n";
    my $conf = do { local $/; <$in> };

    if ($place eq 'main') {
        $conf =~ s/^(?=http \{|http$)/$text\n/m or die "no http block\n";
    } else {
        $conf =~ s/^ *# \Q$place\E$/$text/m or die "no place for $place\n";
    }

    my $line = 1 + (substr($conf, 0, index $conf, $text) =~ tr/\n//);

    open my $out, '>', $file or die "$file: $!\n";
    print $out $conf;
    close $out or die "$file: $!\n";

    # it leaves without freeing what it has read
    local $ENV{ASAN_OPTIONS} = ($ENV{ASAN_OPTIONS} || '') . ',detect_leaks=0';

    my $said = `$ENV{TEST_NGINX_BINARY} -t -q -e stderr -p $ENV{TEST_NGINX_SERVROOT}/ -c $file 2>&1`;

    return ($? ? $said || 'refused' : $said, $line);
}

sub takes
{
    my ($place, $text) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($said) = try_config($place, $text);
    is($said, '', "$place takes: " . (split /\n/, $text)[0]);
}


# "line" is counted from the first of the text; each of "what" is in the message

sub refuses
{
    my ($place, $text, $at, @what) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    my ($said, $line) = try_config($place, $text);
    my $name = "$place refuses: " . join ' ', split /\s*\n\s*/, $text;

    $line += $at;
    my ($emerg) = $said =~ /(\[emerg\].*)/;
    $emerg = "nothing: $said" if !defined $emerg;

    like($emerg, qr/^\[emerg\] .*\bin \S*tried\.conf:$line\b/,
         "$name: file and line");

    for my $what (@what) {
        like($emerg, ref $what ? $what : qr/\Q$what\E/, "$name: $what");
    }
}

run_tests();

__DATA__

=== TEST 1: wrong values
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
my $wrong = sub {
    my ($directive, $values, @right) = @_;

    for my $value (@$values) {
        my ($named) = $value =~ /("[^"]*"|\S+)$/;
        $named =~ tr/"//d;

        refuses('location', "idempotency on; $directive $value;", 0,
                "invalid value \"$named\" in \"$directive\" directive",
                @right);
    }
};

my $time = qr/it is a time.*\bas 24h or 30s or 500ms/;

$wrong->('idempotency_ttl', [ qw(0 soon 1x -1s "" 0s) ], $time);
$wrong->('idempotency_lease', [ qw(0 soon 1x 0ms) ], $time);
$wrong->('idempotency_wait', [ qw(forever -1 1y2x) ], $time);
$wrong->('idempotency_retry_after', [ qw(later 5sec) ], $time);
$wrong->('idempotency_max_response', [ qw(large 1g1 -1 1.5m) ], 'it is a size');
$wrong->('idempotency_max_waiters', [ qw(many -1 1.5) ], 'it is a number');
$wrong->('idempotency_key_format', [ 'integer', 'UUID' ],
         '"token"', '"uuid"', '"uuid4"', '"string"');
$wrong->('idempotency_key_format',
         [ 'token min=0', 'token max=', 'token max=x', 'token min=-1',
           'token quoted=yes', 'token quoted', 'token 5', 'uuid uuid4' ],
         '"min=n"', '"max=n"', '"quoted=optional"', '"quoted=required"');
$wrong->('idempotency_methods', [ 'post', 'POST,PUT', 'POST 1', '""' ],
         'it is a method, in capitals');
$wrong->('idempotency_hide_header', [ '"X Y"', 'X:', '"Set-Cookie="', '""' ],
         'it is the name of a header');
$wrong->('idempotency_fingerprint', [ qw(none RAW body) ], '"raw"', '"off"');
$wrong->('idempotency_on_store_error', [ qw(retry on) ],
         'it is "fail" or "pass"');
$wrong->('idempotency_unknown_outcome', [ qw(fail leases) ],
         'it is "retry" or "lease" or "hold"');
$wrong->('idempotency_conflict_status', [ qw(401 4222 conflict) ],
         'it is "400" or "409" or "422"');
$wrong->('idempotency_replay_status', [ qw(100 600 99999 same -200) ],
         '"original"', '200 to 599');
$wrong->('idempotency_keep_status',
         [ qw(2x 6xx 1xx 199 600 !7xx all ! 2000 2XX ""), '2xx !' ],
         'a status as 201', 'a class as 2xx', '"any"', '"!"');
$wrong->('idempotency_ttl_header', [ 'on', 'X-TTL' ], '"off"', '"max=<time>"');
$wrong->('idempotency_ttl_header',
         [ 'X-TTL 7d', 'X-TTL max=', 'X-TTL max=x', 'X-TTL max=0',
           'X-TTL min=1s' ],
         '"max=<time>", as max=7d');

$wrong->('idempotency_ttl_header', [ 'off max=1s' ], '"off" stands alone');

for my $name ('"X TTL"', 'X:TTL', '""') {
    (my $bare = $name) =~ tr/"//d;
    refuses('location', "idempotency_ttl_header $name max=7d;", 0,
            "invalid value \"$bare\" in \"idempotency_ttl_header\"",
            'the name of a header');
}

refuses('location', 'idempotency_log "";', 0, 'invalid value "" in "idempotency_log" directive',
        'it is a file, "syslog:server=<address>", "store:<name>" or "off"');

for my $flag (qw(headers error_body compress)) {
    refuses('location', "idempotency_$flag maybe;", 0,
            "invalid value \"maybe\" in \"idempotency_$flag\" directive",
            'it is "on" or "off"');
}

for my $flag (qw(required dry_run)) {
    refuses('location', "idempotency_$flag maybe;", 0,
            "invalid value \"maybe\" in \"idempotency_$flag\" directive",
            'it is "on", "off", or a value with variables');
}

refuses('location', 'idempotency_key_format token min=5 max=4;', 0,
        'min=5 max=4', '"idempotency_key_format" directive');
refuses('location', 'idempotency_key_format token min=256;', 0,
        'min=256 max=255', '"idempotency_key_format" directive');

# what no key can be

refuses('location', 'idempotency_key_format uuid max=10;', 0,
        'min=1 max=10', 'a UUID has 36 characters');
refuses('location', 'idempotency_key_format uuid4 min=37;', 0,
        'min=37 max=255', 'a UUID has 36 characters');

for my $key (qw($http_Idempotency-Key $http_x-request-id)) {
    refuses('location', "idempotency on; idempotency_key $key;", 0,
            "invalid value \"$key\" in \"idempotency_key\" directive",
            'a variable ends before a hyphen');
}

takes('location', "idempotency on; idempotency_key $_;")
    for '${http_a}-b', '$http_a-$http_b', '$http_x_request_id';

# these are made of the key: a request would have none

for my $key (qw($idempotency_key ${idempotency_key} $Idempotency_Key
                $idempotency_key_hash $idempotency_key_json
                $idempotency_record))
{
    refuses('location', "idempotency on; idempotency_key \"$key\";", 0,
            "invalid value \"$key\" in \"idempotency_key\" directive",
            'it is made of the key; a header is $http_<name>, as $http_idempotency_key');
}

$wrong->('idempotency_compress', [ 'off min=1k', 'on min=x', 'on 1k' ],
         'it is "min=<size>" behind "on"');
$wrong->('idempotency_stream', [ 'attach', 'both' ],
         'it is "tee" or "pass", and only "tee" takes media types');
$wrong->('idempotency_stream', [ 'tee json', 'pass text/plain' ],
         'a media type behind "tee"');

# variables that nobody has
for my $directive (qw(key bypass scope identity ttl lease wait retry_after
                      max_response documentation headers error_body
                      stream compress))
{
    my ($said) = try_config('location',
                            "idempotency on; idempotency_$directive \$nobody_has;");
    like($said, qr/\[emerg\] .*unknown "nobody_has" variable/,
         "idempotency_$directive: an unknown variable");
    refuses('location', "idempotency on; idempotency_$directive \$;", 0,
            'invalid variable name');
}



=== TEST 2: too many values, and too few
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
for my $line ('idempotency', 'idempotency on off on', 'idempotency_key',
              'idempotency_key_format', 'idempotency_required',
              'idempotency_required on on', 'idempotency_methods',
              'idempotency_bypass', 'idempotency_scope',
              'idempotency_scope a b', 'idempotency_identity',
              'idempotency_ttl', 'idempotency_ttl 1s 2s',
              'idempotency_ttl_header', 'idempotency_ttl_header a max=1s b',
              'idempotency_lease', 'idempotency_wait', 'idempotency_max_waiters',
              'idempotency_retry_after', 'idempotency_max_response',
              'idempotency_keep_status', 'idempotency_on_store_error',
              'idempotency_unknown_outcome', 'idempotency_conflict_status',
              'idempotency_replay_status', 'idempotency_hide_header',
              'idempotency_headers', 'idempotency_error_body',
              'idempotency_documentation')
{
    my ($directive) = split / /, $line;
    refuses('location', "$line;", 0,
            "invalid number of arguments in \"$directive\" directive");
}

refuses('http', 'idempotency_store a { }', 0, 'invalid number of arguments');
refuses('http', 'idempotency_store a memory;', 0, 'has no opening "{"');
refuses('location', 'idempotency { }', 0,
        qr/idempotency/, qr/not terminated by ";"|unexpected "\{"|has no/);



=== TEST 3: twice
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
for my $line ('idempotency on', 'idempotency off', 'idempotency_key $arg_a',
              'idempotency_key_format token', 'idempotency_required on',
              'idempotency_methods POST', 'idempotency_bypass $arg_b',
              'idempotency_scope $host', 'idempotency_identity $remote_user',
              'idempotency_fingerprint raw', 'idempotency_ttl 1h',
              'idempotency_ttl $arg_ttl', 'idempotency_ttl_header T max=1h',
              'idempotency_ttl_header off', 'idempotency_lease 1s',
              'idempotency_wait 1s', 'idempotency_max_waiters 3',
              'idempotency_retry_after 1s', 'idempotency_max_response 1m',
              'idempotency_max_response $arg_max',
              'idempotency_keep_status 2xx', 'idempotency_on_store_error pass',
              'idempotency_unknown_outcome hold',
              'idempotency_conflict_status 422',
              'idempotency_replay_status 200',
              'idempotency_replay_status original',
              'idempotency_hide_header X-A', 'idempotency_headers off',
              'idempotency_error_body off', 'idempotency_documentation /d')
{
    my ($directive) = split / /, $line;

    for my $place (qw(http server location)) {
        refuses($place, "$line;\n$line;", 1,
                "\"$directive\" directive is duplicate");
    }
}

# a parameter: neither value can be told to be the meant one
my $twice = qr/duplicate parameter "\w+=[^"]*" in "\w+" directive/;

for my $line ('_key_format token min=1 min=2', '_key_format token max=9 max=8',
              '_key_format token quoted=optional min=1 quoted=required',
              '_fingerprint json arrays=ordered arrays=unordered',
              '_dedupe body window=1s window=2s',
              '_dedupe body window=1s when=missing when=always',
              '_dedupe body window=1s linger=1s linger=$arg_l',
              '_dedupe body action=replay window=1s action=reject',
              '_dedupe json:a window=1s normalize=url normalize=url',
              '_log logs/e level=info level=warn',
              '_log logs/e sample=1 level=info sample=0.5')
{
    refuses('location', "idempotency on; idempotency$line;", 0, $twice);
}

for my $line ('breaker fails=1 fails=2', 'breaker reset=1s fails=2 reset=2s',
              'cache c:1m ttl=1s ttl=2s', 'replicas 1 timeout=1s timeout=2s')
{
    refuses('http', "idempotency_store a redis { server 127.0.0.1:1; $line; }",
            0, $twice);
}

# lists may be given in parts
takes('location', "idempotency_$_;")
    for 'fingerprint json exclude=a exclude=b include=/c include=/d',
        'dedupe json:u window=1s normalize=url strip=a strip=b';

# a member or a field of one name, and "off" beside a list
for my $pair ([ 'replay_json a 1', 'replay_json /a 2' ],
              [ 'replay_json a 1', 'replay_json off' ],
              [ 'replay_json off', 'replay_json a 1' ],
              [ 'log_field a 1', 'log_field a 2' ],
              [ 'log_field a 1', 'log_field off' ],
              [ 'log_field off', 'log_field a 1' ],
              [ 'hide_header off', 'hide_header A' ],
              [ 'keep_header A', 'keep_header off' ],
              [ 'keep_json /a=1', 'keep_json off' ])
{
    refuses('server', join("\n", map "idempotency_$_;", @$pair), 1,
            qr/"idempotency_\w+" directive is duplicate/);
}

# pages
refuses('location', "idempotency_$_;\nidempotency_$_;", 1,
        qr/"idempotency_\w+" directive is duplicate/)
    for 'stats', 'stats json', 'admin', 'admin read';
refuses('location', "idempotency_$_->[0];\nidempotency_$_->[1];", 1,
        "\"idempotency_$_->[1]\" directive takes a location without \"idempotency_$_->[0]\"")
    for [ 'stats', 'admin' ], [ 'admin', 'stats' ];
refuses('server', "location $_ { idempotency_admin; }", 0,
        '"idempotency_admin" directive takes a location with a prefix')
    for '= /ops/', '@ops', '~ ^/ops/';

refuses('server', "idempotency_$_;", 0, 'invalid value', 'off')
    for 'replay_json a', 'log_field a', 'hide_header off A',
        'keep_header A off';



=== TEST 4: the wrong place
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
for my $line ('idempotency on', 'idempotency_key $arg_a',
              'idempotency_required on', 'idempotency_ttl 1h')
{
    my ($directive) = split / /, $line;

    refuses($_, "$line;", 0, "\"$directive\" directive is not allowed here")
        for qw(main if);
}

refuses($_, 'idempotency_store a memory { }', 0,
        '"idempotency_store" directive is not allowed here')
    for qw(main server location if);



=== TEST 5: stores
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
refuses('location', 'idempotency nowhere;', 0,
        'unknown store "nowhere" in "idempotency" directive',
        'idempotency_store nowhere', '"on"');
refuses('server', "idempotency ledger;\nidempotency_ttl 1h;", 0,
        'unknown store "ledger"');
refuses($_->[0], "$_->[1];", 0, 'invalid value "$host" in "idempotency',
        'the name of a store has no variables')
    for [ 'location', 'idempotency $host' ],
        [ 'location', 'idempotency on fallback=$host' ],
        [ 'server', 'idempotency_log store:$host' ];

refuses('http', "idempotency_store $_ memory { }", 0,
        "invalid value \"$_\" in \"idempotency_store\" directive",
        'a store can\'t be named so') for qw(on off);

# it is a part of an address
refuses('http', "idempotency_store '$_' memory { }", 0, 'invalid value',
        'is not empty, and has no slash') for '', 'a/b';

refuses('http', 'idempotency_store a files { }', 0,
        'unknown kind of store "files" in "idempotency_store"',
        'there is', 'memory');

my ($said, $line) = try_config('http', "idempotency_store a memory { }\n"
                               . 'idempotency_store a memory { }');
$line++;
like($said, qr/\[emerg\] .*"a" is already declared in \S*tried\.conf:(\d+)/,
     'declared twice');
$said =~ /already declared in \S*:(\d+)/;
is($1, $line - 1, 'names the first');
like($said, qr/ in \S*tried\.conf:$line$/m, 'and the second');

my $zone = sub {
    my ($zone, @what) = @_;
    refuses('http', "idempotency_store a memory {\n$zone;\n}", 1, @what);
};

$zone->('zone a', 'invalid zone "a"', '<name>:<size>', '32m');
$zone->('zone :1m', 'invalid zone ":1m"', '<name>:<size>');
$zone->('zone a:', 'invalid size "" of zone "a"', '32m');
$zone->('zone a:large', 'invalid size "large" of zone "a"', '32m');
$zone->('zone a:-1m', 'invalid size "-1m" of zone "a"');
$zone->('zone a:1m:2m', 'invalid size "1m:2m"');
$zone->('zone a:999999999999999m', 'invalid size');
$zone->('zone a:1k', 'zone "a" is too small', '1024 bytes', 'at least');
$zone->('zone a:0', 'zone "a" is too small');
$zone->('zone', 'number of arguments', 'zone <name>:<size>');
$zone->('zone a:1m b:1m', 'number of arguments', 'zone <name>:<size>');
$zone->('size 1m', 'unknown directive "size" in a memory store', 'zone');

refuses('http', "idempotency_store a memory {\nzone a:1m;\nzone b:1m;\n}", 2,
        '"zone" directive is duplicate');

# two stores can't share a zone, neither with each other nor with others
refuses('http', "idempotency_store a memory { zone z:1m; }\n"
                . 'idempotency_store b memory { zone z:1m; }', 1,
        'zone "z" is already used by another store');
refuses('http', "limit_req_zone \$host zone=z:1m rate=1r/s;\n"
                . 'idempotency_store a memory { zone z:1m; }', 1, '"z"');

# a zone may be declared below the line that uses it
refuses('location', "idempotency on;\nidempotency_activity on;", 1,
        'invalid value "on" in "idempotency_activity" directive',
        'takes a zone as well, in http');
refuses('server', "idempotency_activity on;\nidempotency on;\n", 0,
        'invalid value "on" in "idempotency_activity" directive');
takes('http', "idempotency on;\nidempotency_activity on;\n"
              . 'idempotency_activity a:1m window=1h;');

takes('http', 'idempotency_store a memory { zone a:64k; }');
takes('http', 'idempotency_store default memory { zone a:1m; }');
takes('http', "idempotency_store a memory { }\nidempotency_store b memory { }");
takes('http', "idempotency b;\nidempotency_store b memory { zone b:2m; }");



=== TEST 6: what is right, in every place
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
for my $line ('idempotency on', 'idempotency off', 'idempotency default',
              'idempotency_key $http_idempotency_key',
              'idempotency_key $arg_key "$remote_user-${http_x_key}" $uri',
              'idempotency_key_format token',
              'idempotency_key_format uuid', 'idempotency_key_format uuid4',
              'idempotency_key_format string max=1024 quoted=required min=8',
              'idempotency_key_format token min=1 max=1 quoted=optional',
              'idempotency_required on', 'idempotency_required off',
              'idempotency_methods POST', 'idempotency_methods GET M-SEARCH',
              'idempotency_bypass $http_x_a $cookie_b 0',
              'idempotency_scope $host$uri', 'idempotency_scope ""',
              'idempotency_identity $remote_user $cookie_session',
              'idempotency_identity ""',
              'idempotency_fingerprint raw', 'idempotency_fingerprint off',
              'idempotency_ttl 1d12h', 'idempotency_ttl 500ms',
              'idempotency_ttl $arg_ttl',
              'idempotency_ttl_header X-TTL max=7d',
              'idempotency_ttl_header off',
              'idempotency_lease 500ms', 'idempotency_lease $arg_l',
              'idempotency_wait 0', 'idempotency_wait 1m',
              'idempotency_wait $arg_w',
              'idempotency_max_waiters 0', 'idempotency_max_waiters 1000',
              'idempotency_retry_after 0', 'idempotency_retry_after $arg_r',
              'idempotency_max_response 64k', 'idempotency_max_response $arg_m',
              'idempotency_keep_status any', 'idempotency_keep_status 2xx',
              'idempotency_keep_status 2xx 3xx 404 !204 !3xx',
              'idempotency_keep_status any !503',
              'idempotency_on_store_error fail',
              'idempotency_on_store_error pass',
              'idempotency_unknown_outcome retry',
              'idempotency_unknown_outcome lease',
              'idempotency_unknown_outcome hold',
              'idempotency_conflict_status 409',
              'idempotency_conflict_status 422',
              'idempotency_replay_status original',
              'idempotency_replay_status 208',
              'idempotency_hide_header X-Request-Id Set-Cookie',
              'idempotency_headers on', 'idempotency_headers off',
              'idempotency_error_body on', 'idempotency_error_body off',
              'idempotency_documentation https://$host/docs')
{
    takes($_, "$line;") for qw(http server location);
}



=== TEST 7: inherited, and replaced
--- http_config
    idempotency_key              $http_x_key;
    idempotency_key_format       string;
    idempotency_scope            one;
    idempotency_identity         $http_x_user;
    idempotency_fingerprint      off;
    idempotency_conflict_status  422;
    idempotency_retry_after      9s;
    idempotency_wait             0;
    idempotency_max_response     900;
    idempotency_keep_status      any;
    idempotency_replay_status    208;
    idempotency_hide_header      X-Repeated;
    idempotency_headers          off;
    idempotency_documentation    https://example.com/http;
--- config
    idempotency  $TEST_STORE;

    location / {
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
    location /other/ {
        idempotency_key              $http_x_other;
        idempotency_key_format       uuid;
        idempotency_scope            two;
        idempotency_identity         "";
        idempotency_fingerprint      raw;
        idempotency_conflict_status  409;
        idempotency_retry_after      3s;
        idempotency_max_response     1m;
        idempotency_keep_status      2xx;
        idempotency_replay_status    original;
        idempotency_hide_header      X-Nothing;
        idempotency_headers          on;
        idempotency_documentation    https://example.com/other;
        proxy_pass  http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
my $uuid = '16fd2706-8baf-433b-82eb-8c7fada847da';

# a location that says nothing
my @key = ('X-Key' => '"a b"', 'X-User' => 'u');
my $r = http_post('/headers?op=a', 'x', \@key);
is($r->status, 201, 'http: ran');
my $retry = http_post('/headers?op=b', 'y', \@key);
is($retry->status, 208, 'http: key, format, fingerprint, replay_status');
is($retry->header('X-Repeated'), undef, 'http: hide_header');
is($retry->header('Set-Cookie'), ($r->header('Set-Cookie'))[0], 'http: others');
is($retry->header('Idempotent-Replayed'), undef, 'http: headers');
$r = http_post('/headers?op=a', 'x', [ 'X-Key' => '"a b"', 'X-User' => 'v' ]);
is($r->status, 422, 'http: identity, conflict_status');
is($r->json->{type}, 'https://example.com/http', 'http: documentation');
is(http_post('/status/500?op=k', 'x', [ 'X-Key' => 'k' ])->status, 500, 'http');
http_post('/status/500?op=k', 'x', [ 'X-Key' => 'k' ]);
is(app_count('k'), 1, 'http: keep_status');
http_post('/size?n=2000&op=l', 'x', [ 'X-Key' => 'l' ]);
is(http_post('/size?n=2000&op=l', 'x', [ 'X-Key' => 'l' ])->status, 507,
   'http: max_response');
my $c = send_post('/hold?op=h', 'x', [ 'X-Key' => 'h' ]);
app_wait_parked('h');
is(http_post('/hold?op=h', 'x', [ 'X-Key' => 'h' ])->header('Retry-After'), 9,
   'http: wait, retry_after');

# a location that says something else
@key = ('X-Other' => $uuid);
$r = http_post('/other/headers?op=o', 'x', \@key);
is($r->status, 201, 'location: ran');
$retry = http_post('/other/headers?op=o', 'x', [ @key, 'X-User' => 'u' ]);
is($retry->status, 201, 'location: key, identity, replay_status');
is($retry->header('X-Repeated'), 'one', 'location: hide_header');
is($retry->header('Idempotent-Replayed'), 'true', 'location: headers');
$r = http_post('/other/headers?op=o', 'y', \@key);
is($r->status, 409, 'location: fingerprint, conflict_status');
is($r->json->{type}, 'https://example.com/other', 'location: documentation');
is(http_post('/other/ok', 'x', [ 'X-Other' => 'a' ])->status, 400,
   'location: key_format');
@key = ('X-Other' => $uuid =~ s/16/17/r);
http_post('/other/status/500?op=p', 'x', \@key) for 1, 2;
is(app_count('p'), 2, 'location: keep_status');
http_post('/other/size?n=2000&op=q', 'x', \@key) for 1, 2;
is(app_count('q'), 1, 'location: max_response');
is(http_post('/other/size?n=2000&op=q', 'x', \@key)->status, 200, 'and kept');



=== TEST 8: the block of a store that is elsewhere
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
# the block of another store: nginx's own slots, and messages that say more
my $redis = sub {
    my ($line, @what) = @_;
    refuses('http', "idempotency_store a redis {\nserver 127.0.0.1:1;\n$line;\n}",
            2, @what);
};

for (['connections', '0', '65', 'many'], ['db', '-1', '65536', 'a']) {
    my ($name, @values) = @$_;
    $redis->("$name $_", qq(invalid value "$_" in "$name" directive),
             'it is a number from ') for @values;
}

$redis->("timeout $_", qq(invalid value "$_" in "timeout" directive),
         'it is a time from 1ms to 1h') for qw(0 3601s soon);
$redis->("tls $_", qq(invalid value "$_" in "tls" directive),
         'it is "on" or "off"') for qw(yes ON);
$redis->('prefix ' . 'x' x 129, 'in "prefix" directive', 'at most 128');
$redis->($_, 'invalid number of arguments in "', 'it takes one value, and is ')
    for 'user', 'user a b', 'tls on off', 'outbox';
$redis->($_, 'invalid number of arguments in "', 'it takes one or more values, and is ')
    for 'sentinel', 'server';
$redis->('cache a:1m ttl=1s x', 'invalid number of arguments in "cache"',
         'it takes one or two values, and is "cache <zone>:<size> [ttl=30s]"');
$redis->(qq($_ ""), qq(invalid value "" in "$_" directive: it can't be empty; it is ))
    for qw(user password prefix server outbox);

# nginx's own message has neither the directive nor the line
for ('tls_trusted_certificate /etc/hostname;',
     'tls_certificate /etc/hostname; tls_certificate_key /etc/hostname;')
{
    my ($what) = /^(\w+)/;
    my ($said) = try_config('http', "idempotency_store a redis { server 127.0.0.1:1; tls on; $_ }");

    like($said, qr/\[emerg\] .*store "a" in \S*tried\.conf:\d+ has a "$what"/,
         "$what: store and line");
}
$redis->("$_; $_", qr/"\w+" directive is duplicate/)
    for 'user a', 'timeout 1s', 'connections 1', 'tls off', 'prefix a';

# nginx takes it in every context
my $included = "$ENV{TEST_NGINX_SERVROOT}/conf/store.inc";

for ([ '', 'timeout 2s;' ], [ 'unknown directive "tiemout"', "db 1;\ntiemout 2s;" ]) {
    open my $out, '>', $included or die "$included: $!\n";
    print $out $_->[1];
    close $out or die "$included: $!\n";

    my ($said) = main::try_config('http', "idempotency_store a redis { server 127.0.0.1:1; include store.inc; }");

    $_->[0] ? like($said, qr/$_->[0].* in \S*store\.inc:2$/m, 'included: file and line')
            : is($said, '', 'included');
}

$redis->($_, 'invalid number of arguments in "include" directive')
    for 'include', 'include a b';



=== TEST 9: a lease that is too short: a warning
--- store: memory
--- config eval: $::config
--- client
my $warns = sub {
    my ($text, @what) = @_;
    my ($said) = main::try_config('location', $text);

    like($said, qr/\[warn\]/, "warned of: $text");
    like($said, qr/\Q$_\E/, "... $_") for @what;
    unlike($said, qr/\[emerg\]/, '... and taken');
};

$warns->('idempotency on; idempotency_lease 5ms;', '"idempotency_lease 5ms" is too short, it counts as 100ms',
         'tried.conf:');

# what auth_request found has to be taken over: the main request has no
# upstream yet, and all clients would be one
$warns->("idempotency on; $_->[0] $_->[1];",
         qq("$_->[1]" in "$_->[0]" directive belongs to a response, and is empty when a request begins),
         'auth_request_set', 'tried.conf:')
    for [ 'idempotency_identity', '$upstream_http_x_user' ], [ 'idempotency_identity', 'a${Sent_http_x}' ],
        [ 'idempotency_scope', '$host$upstream_cookie_a' ], [ 'idempotency_key', '$upstream_http_key' ];

# nginx's own id is no header
$warns->("idempotency on; $_->[0] $_->[1];",
         qq("$_->[1]" in "$_->[0]" directive is new in each request, and a retry has another one),
         '$http_x_request_id', 'tried.conf:')
    for [ 'idempotency_key', '$request_id' ], [ 'idempotency_key', '${request_id}x' ],
        [ 'idempotency_scope', '$host-$msec' ], [ 'idempotency_identity', '$Connection' ];

takes('location', 'set $request_identity a; set $connection_name b; idempotency on; '
                  . 'idempotency_key $http_x_request_id $request_identity$connection_name;');
takes('location', "idempotency on; idempotency_identity $_;")
    for '$http_upstream_http_a', '$http_a$cookie_sent_http_';
takes('location', 'idempotency on; idempotency_tenant $upstream_http_x;');

# "500" alone does not add to the default, but replaces it
$warns->("idempotency on; idempotency_keep_status $_;",
         '"idempotency_keep_status" keeps no 2xx', 'runs again', 'tried.conf:')
    for '500', '3xx 4xx', '!2xx', 'any !2xx';
takes('location', "idempotency on; idempotency_keep_status $_;") for '201', '!500', '!200', 'any', '$arg_s';

# a method that is misspelt would leave its requests without protection
$warns->("idempotency on; idempotency_methods $_;",
         'is no method that is known, in "idempotency_methods" directive', 'tried.conf:')
    for 'PSOT', 'POST PATHC';
takes('location', "idempotency on; idempotency_methods $_;")
    for 'GET HEAD POST PUT DELETE PATCH CONNECT OPTIONS TRACE', 'MKCOL COPY MOVE LOCK PROPFIND PROPPATCH UNLOCK',
        'QUERY REPORT SEARCH LINK UNLINK VERSION-CONTROL PURGE';

# an "off" that is meant to end an inherited bypass would end all protection
$warns->("idempotency on; idempotency_bypass $_;",
         qq("idempotency_bypass" with "off" lets every request pass), 'write "0"', 'tried.conf:')
    for 'off', '$arg_a off';

takes('location', "idempotency on; idempotency_bypass $_;") for '0', '""', '$arg_a', '0 $arg_a', '"0 $arg_a"';

takes('location', $_) for 'idempotency on; idempotency_lease 100ms;', 'idempotency on; idempotency_lease $arg_l;',
                          'idempotency on; idempotency_ttl 5ms;';



=== TEST 10: gRPC is not supported: a warning
--- store: memory
--- config eval: $::config
--- client
my ($said) = main::try_config('server', 'location /grpc/ { idempotency on; grpc_pass 127.0.0.1:1; }');

like($said, qr{\[warn\].*gRPC is not supported.*location "/grpc/"}, 'warned of');
like($said, qr/"idempotency off"/, 'with a way out');
unlike($said, qr/\[emerg\]/, 'and taken');

takes('server', $_)
    for 'location /grpc/ { grpc_pass 127.0.0.1:1; }',
        'idempotency on; location /grpc/ { idempotency off; grpc_pass 127.0.0.1:1; }';



=== TEST 11: no password and no key in a message
A URL in place of an address, and a key that does not belong to its certificate.
--- store: memory
--- http_config
    # http
--- config eval: $::config
--- client
my $dir = $ENV{TEST_NGINX_SERVROOT};

system("openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=a"
       . " -keyout $dir/own.key -out $dir/own.pem > $dir/openssl.log 2>&1"
       . " && openssl genrsa -out $dir/other.key 2048 2>> $dir/openssl.log")
    == 0 or die "openssl: $?\n";

open my $in, '<', "$dir/other.key" or die "other.key: $!\n";
my $key = do { local $/; <$in> };
my ($secret) = $key =~ /\n(\S{40})/;

my $hides = sub {
    my ($lines, @what) = @_;

    my ($said) = main::try_config('http', "idempotency_store a redis {\n$lines\n}");

    like($said, qr/\[emerg\]/, 'refused');
    like($said, qr/\Q$_\E/, "... $_") for @what;
    unlike($said, qr/s3cret|\Q$secret\E/, '... without the secret');
};

for my $address ('redis://user:s3cret@127.0.0.1:6379', ':s3cret@127.0.0.1', 's3cret@localhost') {
    $hides->("server $address;", 'a "server" has no user and no password in it');
    $hides->("sentinel $address master=a;", 'a "sentinel" has no user');
}

my $tls = "server 127.0.0.1; tls on; tls_certificate $dir/own.pem;";

$hides->("$tls tls_certificate_key 'data:$_';", "or do not belong together")
    for $key, substr($key, 0, 300);
$hides->("server 127.0.0.1; tls on; tls_certificate 'data:$key'; tls_certificate_key $dir/own.key;",
         "can't be loaded");

open $in, '<', "$dir/own.key" or die "own.key: $!\n";
my $own = do { local $/; <$in> };
takes('http', "idempotency_store a redis {\n$tls tls_certificate_key 'data:$own';\n}");
takes('http', "idempotency_store a redis {\nserver unix:/tmp/a\@b;\n}");
