# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The examples of monitoring speak of what is exposed: alert rules that promtool
# accepts, each with a runbook that exists; a dashboard with no query for a name
# or a label that is not there; and tracing.conf, as it stands.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use IdempotencyTest::Figures;
use Test::Nginx::Socket 'no_plan';

our $monitoring = 'examples/monitoring';

sub slurp {
    open my $fh, '<', $_[0] or die "$_[0]: $!\n";
    local $/;
    return scalar <$fh>;
}

# tracing.conf as a part of the http block of a test

sub tracing {
    return example('tracing', sub {
        s{logs/traced.log}{\$TEST_NGINX_SERVER_ROOT/logs/traced.log};
    });
}

# names and labels that an expression asks for: [ name, label ... ]

sub asked {
    my ($expr) = @_;
    my @asked;

    while ($expr =~ /\b(nginx_idempotency_\w+)\s*(?:\{([^}]*)\})?/g) {
        my ($name, $selector) = ($1, $2 // '');
        push @asked, [ $name, $selector =~ /(\w+)\s*(?:=~|!~|!=|=)\s*"/g ];
    }

    # a label to group by must be one of every metric in the expression

    for my $by ($expr =~ /\bby\s*\(([^)]*)\)/g) {
        push @$_, split /\s*,\s*/, $by for @asked;
    }

    return @asked;
}

run_tests();

__DATA__

=== TEST 1: alert rules and dashboard ask for what there is
--- client_timeout: 180
--- config
    location = /stats { idempotency_stats; }

    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
http_post('/ok', 'x', { 'Idempotency-Key' => new_key() });

my $f = parse_prometheus(http_get('/stats')->body);
my %exposed;

for my $family (values %$f) {
    for my $s (@{ $family->{samples} // [] }) {
        $exposed{ $s->{name} }{$_} = 1 for keys %{ $s->{labels} };
        $exposed{ $s->{name} }{$_} = 1 for qw(instance job);
    }
}

# what only some kinds of store have

my %some = (breaker_state => [], outbox_records => [],
            outbox_total => [ 'result' ], records => [ 'state' ],
            store_bytes => [], store_size_bytes => [],
            server_used_bytes => [], evictions_total => [],
            node_operations_total => [ 'node', 'result' ],
            node_breaker_state => [ 'node' ], store_up => [],
            store_queued => [], oldest_lock_seconds => [],
            scan_age_seconds => [], records_expired_total => [],
            locks => [ 'age' ]);

$exposed{"nginx_idempotency_$_"} //= { map { $_ => 1 } qw(store instance job),
                                                       @{ $some{$_} } }
    for keys %some;

my $check = sub {
    my ($where, $expr) = @_;
    my @asked = asked($expr);

    ok(@asked, "$where: asks for something of ours");

    for (@asked) {
        my ($name, @labels) = @$_;

        ok($exposed{$name}, "$where: $name is exposed") or next;
        is_deeply([ grep { !$exposed{$name}{$_} } @labels ], [],
                  "$where: and has these labels");
    }
};

# the rules

my $rules = slurp("$::monitoring/alerts.yml");
my $promtool = promtool_path();
my $verdict = `$promtool check rules $::monitoring/alerts.yml 2>&1`;

is($?, 0, 'promtool accepts the rules') or diag($verdict);
like($verdict, qr/SUCCESS: (\d+) rules found/, 'and finds them');

my @alerts = split /^ {6}- alert: /m, $rules;
shift @alerts;

cmp_ok(scalar @alerts, '>=', 10, scalar(@alerts) . ' alerts');

# each of them fired, and cleared, in a real outage: tools/outage recorded what
# Prometheus saw

my $tests = '';

for my $file (<$::monitoring/*_test.yml>) {
    $verdict = `$promtool test rules $file 2>&1`;
    is($?, 0, "promtool: the alerts of $file fire and clear")
        or diag($verdict);
    $tests .= slurp($file);
}

for my $name (map { /^(\w+)/ } @alerts) {
    like($tests, qr/ ="$name", .* \n .* \n \s+ exp_samples: \s \[ \{ .* \n
                     .* ="$name", .* \n .* \n \s+ exp_samples: \s \[\]/x,
         "$name: fires, and clears");
}

my %runbooks;

for my $alert (@alerts) {
    my ($name) = $alert =~ /^(\w+)/;
    my ($expr) = $alert =~ /expr: >-\n((?: {10}.*\n)+)/;
    my ($runbook) = $alert =~ m{runbook_url: (docs/runbooks/[\w-]+\.md)$}m;

    $check->($name, $expr);

    ok($runbook && -s $runbook, "$name: has a runbook") or next;
    like(slurp($runbook), qr/\b$name\b/, "$name: which speaks of it");
    like($alert, qr/severity: (?:critical|warning|info)$/m, "$name: severity");
    like($alert, qr/summary: .*description: /s, "$name: says what it is");
    $runbooks{$runbook} = 1;
}

is_deeply([ grep { !$runbooks{$_} && !/README/ } <docs/runbooks/*.md> ], [],
          'every runbook has an alert that leads to it');

# the dashboard; its expressions as rules, so that promtool parses them

my $dashboard = JSON::PP::decode_json(slurp("$::monitoring/dashboard.json"));
my @exprs;

for my $panel (@{ $dashboard->{panels} }) {
    ok(@{ $panel->{targets} }, "$panel->{title}: has queries");

    for my $target (@{ $panel->{targets} }) {
        $check->($panel->{title}, $target->{expr});
        push @exprs, $target->{expr};
    }
}

for my $v (grep { $_->{type} eq 'query' } @{ $dashboard->{templating}{list} }) {
    my ($metric, $label) = $v->{query} =~ /^label_values\((\w+), (\w+)\)$/
        or fail("variable $v->{name}");

    ok($exposed{$metric} && $exposed{$metric}{$label}, "variable $v->{name}");
}

my %names = map { $_->[0] =~ s/_(?:bucket|sum|count)$//r => 1 }
            map { asked($_) } @exprs;

# what is a sum of another family need not be drawn again

delete $names{$_} for grep { !/^nginx_idempotency_/ } keys %names;
is_deeply([ grep { !$names{$_}
                   && !/_(?:replays_total|conflicts_total|build_info)$/ }
            sort keys %$f ], [], 'every family is on it');

my $text = "groups:\n  - name: dashboard\n    rules:\n";
my $n = 0;

for my $expr (@exprs) {
    $expr =~ s/\$__rate_interval/5m/g;
    $expr =~ s/\$\w+/x/g;
    $text .= "      - record: r" . $n++ . "\n        expr: '$expr'\n";
}

my $file = "$ENV{TEST_NGINX_SERVER_ROOT}/dashboard.yml";

open my $fh, '>', $file or die;
print $fh $text;
close $fh;

$verdict = `$promtool check rules $file 2>&1`;
is($?, 0, "promtool parses the $n queries of the dashboard") or diag($verdict);



=== TEST 2: tracing.conf
--- http_config eval: ::tracing()
--- config
--- client
my $key = new_key();
my %headers = ('Idempotency-Key' => $key, Host => 'api.example.com',
               traceparent => '00-0af7651916cd43dd8448eb211c80319c-'
                              . 'b7ad6b7169203331-01');
my @port = (port => $ENV{TEST_NGINX_PORT_2});

my $first = http_post('/api/echo?op=a', 'x', \%headers, @port);
my %got = map { lc $_->[0] => $_->[1] } @{ app_last('a')->{headers} };
my $record = $first->header('X-Idempotency-Record');

is($first->status, 200, 'ran');
like($record, qr/^[0-9a-f]{64}$/, 'the client knows the record');
is($got{'x-idempotency-record'}, $record, 'and so does the application');
like($got{'x-idempotency-key-hash'}, qr/^[0-9a-f]{64}$/, 'with the hash');
is($got{traceparent}, $headers{traceparent}, 'the trace goes on');
is($got{baggage}, "idempotency.record=$record", 'baggage');
like($got{'x-job-email'}, qr/^[0-9a-f]{64}$/, 'a job id');

my $retry = http_post('/api/echo?op=a', 'x', \%headers, @port);

is($retry->header('X-Idempotency-Record'), $record, 'the same for a retry');

http_post('/api/echo?op=b', 'x', { %headers, 'Idempotency-Key' => new_key(),
                                   baggage => 'user=1' }, @port);
%got = map { lc $_->[0] => $_->[1] } @{ app_last('b')->{headers} };
like($got{baggage}, qr/^user=1,idempotency\.record=[0-9a-f]{64}$/,
     'behind what the client sent');

# a refused one is in the log as well

is(http_post('/api/echo?op=a', 'y', \%headers, @port)->status, 409,
   'conflict');

my $log = "$ENV{TEST_NGINX_SERVER_ROOT}/logs/traced.log";

ok(wait_for(sub { -e $log && slurp($log) =~ tr/\n// == 4 }), 'four lines');

my @lines = map { JSON::PP::decode_json($_) } split /\n/, slurp($log);

is_deeply([ map { $_->{idempotency}{status} } @lines ],
          [ qw(EXECUTED REPLAYED EXECUTED CONFLICT) ], 'status');
is($lines[$_]{idempotency}{record}, $record, 'record') for 0, 1, 3;
is($lines[$_]{idempotency}{key_hash}, $lines[0]{idempotency}{key_hash},
   'key_hash') for 1, 3;
is($lines[1]{idempotency}{replayed}, 'true', 'replayed');
unlike(slurp($log), qr/\Q$key/, 'and never the key');
