# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package IdempotencyTest::Figures;

# Reads what idempotency_stats and idempotency_log write, with parsers that
# know nothing of the module.

use strict;
use warnings;

use Exporter 'import';
use File::Temp ();
use JSON::PP ();

our @EXPORT = qw(parse_prometheus sample promtool promtool_path read_events);


# { name => { type, help, samples => [ { labels => {}, value } ] } }; a sample
# of a histogram is in its family.  Dies on a line that it can't read.

sub parse_prometheus {
    my ($text) = @_;
    my (%families, %series);

    for my $line (split /\n/, $text) {

        if ($line =~ /^# (HELP|TYPE) ([a-z_]+) (.+)$/) {
            die "$1 of $2 twice\n" if exists $families{$2}{ lc $1 };
            $families{$2}{ lc $1 } = $3;
            next;
        }

        $line =~ /^([a-z_]+)(?:\{(.*)\})? ([0-9.]+)$/
            or die "not a sample: $line\n";

        my ($name, $labels, $value) = ($1, $2, $3);
        my %labels;

        die "a series twice: $name {" . ($labels // '') . "}\n"
            if $series{ $name . '{' . ($labels // '') }++;

        while (defined $labels && length $labels) {
            $labels =~ s/^([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)//
                or die "not labels: $line\n";
            $labels{$1} = $2;
        }

        my ($base) = $name =~ /^(.*?)(?:_bucket|_sum|_count)?$/;
        my $family = $families{$name} // $families{$base}
            or die "no family: $line\n";

        push @{ $family->{samples} },
             { name => $name, labels => \%labels, value => $value };
    }

    return \%families;
}


# the sum of the samples of that name with those labels; undef if none has them

sub sample {
    my ($families, $name, %labels) = @_;
    my $sum;

    my ($base) = $name =~ /^(.*?)(?:_bucket|_sum|_count)?$/;
    my $family = $families->{$name} // $families->{$base} // return undef;

    SAMPLE: for my $s (@{ $family->{samples} // [] }) {
        next if $s->{name} ne $name;

        for my $label (keys %labels) {
            next SAMPLE if ($s->{labels}{$label} // '') ne $labels{$label};
        }

        $sum = ($sum // 0) + $s->{value};
    }

    return $sum;
}


# tools/setup puts it in build/tools, unless the machine has one

sub promtool_path {
    for my $path ('build/tools/promtool',
                  map { "$_/promtool" } split /:/, $ENV{PATH})
    {
        return $path if -x $path;
    }

    die "there is no promtool: run \"make setup\"\n";
}


# promtool('check metrics', $text): its words, empty if it has none

sub promtool {
    my ($command, $text) = @_;

    my $file = File::Temp->new;
    print $file $text;
    close $file;

    my $words = join ' ', $command;
    my $out = `@{[ promtool_path() ]} $words < $file 2>&1`;

    return $? ? "exit $?: $out" : $out;
}


# The events of a file, in their order; dies if a line is not a JSON object.
# That the storage was slow is not among them, since a busy machine makes it so;
# slow => 1: it is.

sub read_events {
    my ($file, %o) = @_;

    my @lines;

    # who reads while a worker writes may see the first part of that

    for (1 .. 50) {
        open my $fh, '<', $file or return ();
        @lines = <$fh>;
        close $fh;

        last if !@lines || $lines[-1] =~ /\n\z/;
        select undef, undef, undef, 0.1;
    }

    return grep { $o{slow} || $_->{event} ne 'idempotency.storage.slow' } map {
        my $line = $_;

        /\n\z/ or die "a line without its end: $line\n";

        my $event = eval { JSON::PP->new->utf8->decode($line) };
        ref $event eq 'HASH' or die "not an object: $line: $@\n";

        $event;
    } @lines;
}

1;
