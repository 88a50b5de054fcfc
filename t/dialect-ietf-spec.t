# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The specification of idempot-js (tests/spec/idempotency.feature of the public
# repository idempot-dev/idempot-js), scenario by scenario, through the gateway:
# examples/ietf.conf as it is, and with what that project wants beside the draft.
# Its files are no part of this tree: a checkout is in build/idempot-js, or where
# IDEMPOT_JS says ("make test-idempot IDEMPOT_JS=<checkout>").  Where there is
# none this test says so, and is skipped; t/dialect-ietf.t has tests of our own
# for the same.
#
# Steps are read from the feature and done here; what is no step that is known
# is a failure, so that a new version of the specification does not pass unread.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use IdempotencyTest::Example;
use Test::Nginx::Socket;
use vars qw(@SCENARIOS $STORE %DIFFERS);

my $checkout = $ENV{IDEMPOT_JS} || 'build/idempot-js';
my $feature = "$checkout/tests/spec/idempotency.feature";

if (!-e $feature) {
    diag("\nSKIPPED: the specification of idempot-js was NOT run: there is no "
         . "$feature; IDEMPOT_JS=<checkout> names another place\n");
    plan(skip_all => "no $feature");
}

@SCENARIOS = scenarios($feature);
$STORE = ($ENV{IDEMPOTENCY_STORE} || 'memory') eq 'memory' ? 'default' : 'tested';

# Where examples/ietf.conf differs, by the step that says so, and why.  Nothing
# else may differ; docs/dialects.md has the same in words

%DIFFERS = (
    'the response status should be 409' => 'a new key is a new request',
    'the response body should contain "section-' => 'type is the documentation',
    'the response body should contain "instance"' => 'optional in RFC 9457',
    'the response body instance field' => 'optional in RFC 9457',
    'the response retryable field' => 'it is error.retryable',
    'the response body should contain "idempotency_key"' => 'not echoed',
    'the response idempotency_key field' => 'not echoed',
    'the response should have header "x-idempotent-replayed"'
        => 'it is Idempotent-Replayed',
    'the response status should be 400' => 'a String may have commas',
    'the response body should contain "processed"' => 'it says "outstanding"',
);


# --- the feature: [ name, [ step ... ] ] ...

sub scenarios
{
    my $file = shift;

    open my $in, '<', $file or die "$file: $!\n";

    my (@background, @all, $steps);

    while (<$in>) {
        s/^\s+|\s+$//g;

        if (/^Background:/) {
            $steps = \@background;

        } elsif (/^Scenario: (.*)/) {
            push @all, [ $1, [ @background ] ];
            $steps = $all[-1][1];

        } elsif (/^(?:Given|When|Then|And) (.*)/) {
            push @$steps, $1;
        }
    }

    return @all;
}


# --- what the steps do: the first that does not hold dies

my %do = (
    qr/^a \w+ endpoint at "(.*)" that creates an order$/
        => sub { app_answer($_[1], { body => '{"success":true}' }) },
    qr/^the SQLite store is clean$/ => sub { },
    qr/^the idempotency store is unavailable$/
        => sub { $_[0]{port} = $ENV{TEST_NGINX_PORT_3} },
    qr/^an empty Idempotency-Key header$/ => sub { $_[0]{key} = '' },
    qr/^an Idempotency-Key "(.*)"$/ => sub { $_[0]{key} = $_[1] },
    qr/^an Idempotency-Key of (\d+) characters$/
        => sub { $_[0]{key} = 'a' x $_[1] },
    qr/^the key "(.*)" is currently being processed$/ => sub {
        my ($w, $key) = @_;

        app_answer('/api', { body => '{"success":true}', hold => 1 });
        $w->{holder} = send_post('/api', '{"foo":"bar"}', headers($w, $key),
                                 port => $w->{port});
        app_wait_parked('/api');
    },
    qr/^I previously sent a POST request to "(.*)" with body '(.*)'$/
        => sub { request($_[0], 'POST', @_[1, 2]) },
    qr/^I send a (\w+) request to "(.*)" with body '(.*)'$/
        => sub { $_[0]{r} = request(@_) },
    qr/^I send a (GET|DELETE) request to "(.*)"$/
        => sub { $_[0]{r} = request(@_[0 .. 2], undef) },
    qr/^I send a POST request to "(.*)" with empty body$/
        => sub { $_[0]{r} = request($_[0], 'POST', $_[1], '{}') },
    qr/^I send a POST request to "(.*)" without an Idempotency-Key header$/
        => sub { delete $_[0]{key};
                 $_[0]{r} = request($_[0], 'POST', $_[1], '{"foo":"bar"}') },

    qr/^the response status should be (\d+)$/
        => sub { $_[0]{r}->status == $_[1] or die $_[0]{r}->status . "\n" },
    qr/^the response content-type should be "(.*)"$/
        => sub { ($_[0]{r}->header('Content-Type') || '') =~ /\Q$_[1]\E/
                 or die "another type\n" },
    qr/^the response body should contain "(.*)"$/
        => sub { $_[0]{r}->body =~ /\Q$_[1]\E/ or die $_[0]{r}->body },
    qr/^the response body instance field should match pattern "(.*)"$/
        => sub { ($_[0]{r}->json->{instance} || '') =~ /\Q$_[1]\E/
                 or die "no instance\n" },
    qr/^the response retryable field should be (true|false)$/
        => sub { my $is = $_[0]{r}->json->{retryable};
                 defined $is && ($is ? 'true' : 'false') eq $_[1]
                 or die "it is not\n" },
    qr/^the response idempotency_key field should be "(.*)"$/
        => sub { ($_[0]{r}->json->{idempotency_key} || '') eq $_[1]
                 or die "it is not\n" },
    qr/^the response should have header "(.*)" with value "(.*)"$/
        => sub { ($_[0]{r}->header($_[1]) || '') eq $_[2] or die "it is not\n" },

    qr/^an idempotency record should exist with key "(.*)"$/
        => sub { $_[0]{record} = record(@_);
                 $_[0]{record}{state} or die "no record\n" },
    qr/^(\d+) idempotency records should exist with key "(.*)"$/
        => sub { (record(@_[0, 2])->{state} ? 1 : 0) == $_[1]
                 or die "not so many\n" },
    qr/^the idempotency record status should be "complete"$/
        => sub { record($_[0], $_[0]{key})->{state} eq 'completed'
                 or die "it is not\n" },
    qr/^the idempotency record response status should be (\d+)$/
        => sub { record($_[0], $_[0]{key})->{status} == $_[1]
                 or die "it is not\n" },
    qr/^the idempotency record response body should contain "(.*)"$/
        => sub { my $r = request($_[0], 'POST', '/api', '{"foo":"bar"}');
                 $r->header('Idempotent-Replayed') && $r->body =~ /\Q$_[1]\E/
                 or die "it does not\n" },
    qr/^(\d+) orders should exist in the database$/
        => sub { app_count('/api') - $_[0]{orders} == $_[1]
                 or die app_count('/api') - $_[0]{orders}, "\n" },
);

sub step
{
    my ($w, $step) = @_;

    for my $known (keys %do) {
        if (my @args = $step =~ $known) {
            return $do{$known}->($w, $#+ ? @args : ());
        }
    }

    die "an unknown step\n";
}


# each scenario has a host of its own, which is its scope: its store is clean

sub headers
{
    my ($w, $key) = @_;

    return { Host => $w->{host}, 'Content-Type' => 'application/json',
             defined $key ? ('Idempotency-Key' => $w->{quoted}
                             ? "\"$key\"" : $key) : () };
}

sub request
{
    my ($w, $method, $uri, $body) = @_;

    return http_request($method, $uri, $body, headers($w, $w->{key}),
                        port => $w->{port});
}

sub record
{
    my ($w, $key) = @_;

    return http_request('GET', "/idem/records/$STORE?key=$key&scope=$w->{host}",
                        undef, {}, port => $w->{port})->json;
}


# runs all of them: { name of a scenario => step that did not hold }

sub run_scenarios
{
    my ($quoted) = @_;

    my ($n, %differs) = (0);

    for my $scenario (@SCENARIOS) {
        my ($name, $steps) = @$scenario;
        my $w = { host => 's' . ++$n . ($quoted ? 'q' : '') . '.example',
                  port => $ENV{TEST_NGINX_PORT_2}, quoted => $quoted,
                  orders => app_count('/api') };

        for my $step (@$steps) {
            next if eval { step($w, $step); 1 };

            chomp(my $why = $@);
            $differs{$name} = "$step: $why";
            last;
        }

        if ($w->{holder}) {
            app_release('/api');
            $w->{holder}->read_response;
        }
    }

    return %differs;
}

# the example, once with its store and once with one that is away

sub both
{
    my ($more) = @_;

    my $admin = sub {
        s/(\n    location \/ \{)/\n    location \/idem\/ { idempotency_admin read; }\n$1/
            or die;
        $more->() if $more;
    };

    my $away = main::example('ietf', sub {
        s/ietf_app/ietf_away/g;
        s/TEST_NGINX_PORT_2/TEST_NGINX_PORT_3/;
        s/\$TEST_STORE/away/g;
        $more->() if $more;
    });

    return "idempotency_store away redis { server 127.0.0.1:"
           . "\$TEST_NGINX_DEAD_PORT; connect_timeout 300ms; timeout 300ms; }\n"
           . main::example('ietf', $admin) . $away;
}

plan('no_plan');

run_tests();

__DATA__

=== TEST 1: examples/ietf.conf as it is
--- provokes: redis
--- client_timeout: 60
--- http_config eval: main::both()
--- config
    location /unused { }
--- client
cmp_ok(scalar @SCENARIOS, '>=', 49, scalar(@SCENARIOS) . ' scenarios');

my %differs = run_scenarios(1);
my $agree = @SCENARIOS - keys %differs;

for my $name (sort keys %differs) {
    my ($why) = map { $DIFFERS{$_} }
                grep { index($differs{$name}, $_) == 0 } keys %DIFFERS;

    $why = undef if $differs{$name} =~ /status should be 409/
                    && $name !~ /^(?:Different key|Fingerprint conflict)/
                    || $differs{$name} =~ /status should be 400/
                       && $name !~ /with commas/;

    ok($why, "$name: $differs{$name} (" . ($why || 'not expected') . ')');
}

diag("\nidempot-js: $agree of " . @SCENARIOS . ' scenarios agree with '
     . 'examples/ietf.conf; the others want what draft-07 does not say');

# of what the draft says all agree

for my $name (map { $_->[0] } grep { $_->[0] =~ /^(?:First|Store unavail.* 503|GET|
        PUT|DELETE|PATCH|Empty\ request|Duplicate\ .*(?:cached|not)|
        Multiple|Valid|.*follows\ RFC\ 9457$)/x } @SCENARIOS)
{
    next if $name =~ /^Fingerprint conflict/;
    ok(!$differs{$name}, "agrees: $name") or diag($differs{$name});
}



=== TEST 2: with what idempot-js wants beside the draft
--- provokes: redis
--- client_timeout: 60
--- http_config eval
<<'_EOC_' . main::both(sub {
    map $idempotency_error_code $spec_section {
        default             section-2.1;
        DUPLICATE_REQUEST   section-2.2;
        IDEMPOTENCY_CONFLICT  section-2.2;
        CONCURRENT_REQUEST  section-2.6;
        STORE_UNAVAILABLE   section-2.6;
    }
    map $request_id $spec_instance {
        "~^(........)(....)(....)(....)(............)$"  urn:uuid:$1-$2-$3-$4-$5;
    }
    map $idempotency_key_json $spec_key {
        ""       '""';
        default  $idempotency_key_json;
    }
_EOC_
    s/string quoted=required/token/ or die;
    s/(idempotency_documentation .*)/idempotency_dedupe body window=24h when=always action=reject;
        add_header x-idempotent-replayed \$idempotency_replayed;
        idempotency_error_body off;
        error_page 400 409 422 503 \@problem;/ or die;
    s/(\n    location \/ \{)/
    location \@problem {
        default_type application\/problem+json;
        return 200 '{"type":"https:\/\/example.com\/\$spec_section","title":"\$idempotency_error_code","detail":"\$idempotency_error_message (it is being processed, or was)","instance":"\$spec_instance","retryable":\$idempotency_retryable,"idempotency_key":\$spec_key}';
    }
$1/ or die;
})
--- config
    location /unused { }
--- client
my %differs = run_scenarios(0);

is_deeply(\%differs, {}, 'all ' . @SCENARIOS . ' scenarios agree');
