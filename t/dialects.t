# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# docs/dialects.md leaves out no section of a document, names nothing that is
# not there, and has the figures that its tables have: tools/check-dialects
# finds each such mistake, and none in the file as it is.

use strict;
use warnings;

use File::Temp ();
use Test::More;

use lib 't/lib';
use IdempotencyTest::Figures;

my $text = do {
    open my $in, '<', 'docs/dialects.md' or die "docs/dialects.md: $!\n";
    local $/;
    <$in>;
};

sub check
{
    my $changed = shift;
    my $file = File::Temp->new;

    print $file $changed;
    close $file;

    my $out = `perl tools/check-dialects $file 2>&1`;

    return ($? >> 8, $out);
}

my ($status, $out) = check($text);

is($status, 0, 'docs/dialects.md is in order') or diag($out);
diag("\n$out");

# what is met does not become less; the target is 95 for each

my %least = (broker => 95, formbridge => 95, guardian => 95,
             'share-sheet' => 95, thorbis => 95);

for my $name (sort keys %least) {
    my ($percent) = $out =~ /^\Q$name\E .* ([\d.]+) %$/m;

    cmp_ok($percent || 0, '>=', $least{$name},
           "$name: $percent % of what applies is met");
}

# the documents' own conditions, in our figures: there are such figures, and
# promtool can read it

my $directives = do {
    open my $in, '<', 'docs/directives.md' or die "docs/directives.md: $!\n";
    local $/;
    <$in>;
};

my @promql = grep { !/^#/ } map { split /\n/ } $text =~ /^```promql\n(.*?)^```/msg;

cmp_ok(scalar @promql, '>=', 13, 'conditions of the documents');

for my $name (map { /nginx_idempotency_(\w+)/g } @promql) {
    (my $family = $name) =~ s/_bucket$//;
    like($directives, qr/`\Q$family\E`/, "$family is one of our figures");
}

my $rules = File::Temp->new(SUFFIX => '.yml');
my $n = 0;

print $rules "groups:\n- name: dialects\n  rules:\n",
             map { $n++; "  - record: r$n\n    expr: '$_'\n" } @promql;
close $rules;

my $promtool = promtool_path();
my $said = `$promtool check rules $rules 2>&1`;
is($?, 0, 'promtool reads them') or diag($said);

# each mistake is found

my %mistake = (
    'a block that is not there'
        => [ sub { s/\| dialect-broker 1 \|/| dialect-broker 99 |/ },
             qr/has no TEST 99/ ],
    'a test that is not there'
        => [ sub { s/\| dialect-broker 1 \|/| dialect-brokers 1 |/ },
             qr/there is no t\/dialect-brokers\.t/ ],
    'a directive that is not there'
        => [ sub { s/`idempotency_keep_status/`idempotency_keep_stati/ },
             qr/no directive idempotency_keep_stati/ ],
    'a variable that is not there'
        => [ sub { s/`\$idempotency_original_time_ms/`\$idempotency_original_time_us/ },
             qr/no variable \$idempotency_original_time_us/ ],
    'a metric that is not there'
        => [ sub { s/`nginx_idempotency_requests_total/`nginx_idempotency_requests_sum/ },
             qr/no metric nginx_idempotency_requests_sum/ ],
    'an event that is not there'
        => [ sub { s/`idempotency\.replay`/`idempotency.replays`/ },
             qr/no event idempotency\.replays/ ],
    'a file that is not there'
        => [ sub { s{`examples/monitoring/alerts.yml`}{`examples/monitoring/alert.yml`} },
             qr{no examples/monitoring/alert\.yml} ],
    'a row that was taken out'
        => [ sub { s/^\| test-1 .*\n//m }, qr/broker: the head says/ ],
    'a section that was taken out'
        => [ sub { s/^\| test-3 .*\n//mg }, qr/broker: nothing of section test-3/ ],
    'no proof'
        => [ sub { s/\| dialect-broker 1 \|/| of course |/ },
             qr/"of course" is no proof/ ],
    'no reason'
        => [ sub { s/\| no: [^|]* \|/| no: |/ }, qr/without a reason/ ],
);

for my $name (sort keys %mistake) {
    my ($change, $complaint) = @{ $mistake{$name} };
    local $_ = $text;

    $change->();
    isnt($_, $text, "$name: can be made");

    my ($status, $out) = check($_);

    is($status, 1, "$name: is found");
    like($out, $complaint, "$name: and named");
}

done_testing();
