# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

package Plot;

# Two kinds of plot, as SVG: bars by name, and lines over a logarithmic axis.
# Colours are those of a reader's light or dark page.

use strict;
use warnings;

my @colours = ('#2a6fb0', '#e08a1e');

my $licence = <<'END';
<!-- Copyright (C) the contributors of ngx_http_idempotency_module
     SPDX-License-Identifier: BSD-2-Clause -->
END

my $style = <<'END';
<style>
text { font: 13px sans-serif; fill: #222 }
.title { font-size: 15px; font-weight: bold }
line, path { stroke: #999 }
@media (prefers-color-scheme: dark) {
    .page { fill: #111 }
    text { fill: #ddd }
}
</style>
END


sub escape
{
    my $text = shift;

    $text =~ s/`//g;
    $text =~ s/&/&amp;/g;
    $text =~ s/</&lt;/g;

    return $text;
}


sub document
{
    my ($file, $width, $height, $title, @parts) = @_;

    open my $out, '>', $file or die "$file: $!\n";

    print $out qq(<svg xmlns="http://www.w3.org/2000/svg" width="$width" )
               . qq(height="$height" viewBox="0 0 $width $height" role="img">\n),
               $licence, '<title>', escape($title), "</title>\n", $style,
               qq(<rect class="page" width="$width" height="$height" fill="#fff"/>\n),
               qq(<text class="title" x="16" y="26">), escape($title),
               "</text>\n", map({ "$_\n" } @parts), "</svg>\n";

    close $out or die "$file: $!\n";
}


sub legend
{
    my ($y, @names) = @_;

    my $x = 16;
    my @parts;

    for my $i (0 .. $#names) {
        push @parts, qq(<rect x="$x" y="@{[ $y - 10 ]}" width="12" height="12" fill="$colours[$i]"/>),
             qq(<text x="@{[ $x + 18 ]}" y="$y">) . escape($names[$i]) . '</text>';
        $x += 40 + 9 * length $names[$i];
    }

    return @parts;
}


# rows are [ name, a value for each series ]

sub bars
{
    my ($file, $title, $series, @rows) = @_;

    my ($left, $bar, $wide, $top) = (360, 14, 460, 70);
    my ($max) = sort { $b <=> $a } map { @$_[1 .. $#$_] } @rows;
    my $step = $bar * @$series + 14;
    my @parts = legend(48, @$series);

    for my $i (0 .. $#rows) {
        my ($name, @values) = @{ $rows[$i] };
        my $y = $top + $i * $step;

        push @parts, sprintf '<text x="%d" y="%d" text-anchor="end">%s</text>',
             $left - 10, $y + $bar * @values / 2 + 5, escape($name);

        for my $j (0 .. $#values) {
            my $w = $wide * $values[$j] / $max;
            push @parts, sprintf('<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>',
                 $left, $y + $j * $bar, $w, $bar - 2, $colours[$j]),
                 sprintf '<text x="%.1f" y="%d">%.0f</text>', $left + $w + 6,
                 $y + $j * $bar + 11, $values[$j];
        }
    }

    document($file, $left + $wide + 80, $top + @rows * $step + 10, $title, @parts);
}


# lines are [ name, [ x, y ] ... ]; x is logarithmic, y begins at 0

sub lines
{
    my ($file, $title, $x_name, $y_name, @lines) = @_;

    my ($left, $top, $wide, $high) = (70, 70, 560, 260);
    my @points = map { @$_[1 .. $#$_] } @lines;
    my ($y_max) = sort { $b <=> $a } map { $_->[1] } @points;
    my @x = sort { $a <=> $b } map { $_->[0] } @points;
    my ($x_min, $x_max) = (log $x[0], log $x[-1]);

    $y_max *= 1.15;
    $x_max = $x_min + 1 if $x_max == $x_min;

    my $x_at = sub { $left + 20 + ($wide - 40) * (log($_[0]) - $x_min) / ($x_max - $x_min) };
    my $y_at = sub { $top + $high - $high * $_[0] / $y_max };

    my @parts = (legend(48, map { $_->[0] } @lines),
        qq(<line x1="$left" y1="$top" x2="$left" y2="@{[ $top + $high ]}"/>),
        qq(<line x1="$left" y1="@{[ $top + $high ]}" x2="@{[ $left + $wide ]}" y2="@{[ $top + $high ]}"/>),
        sprintf('<text x="%d" y="%d" text-anchor="middle">%s</text>',
                $left + $wide / 2, $top + $high + 44, escape($x_name)),
        sprintf('<text x="%d" y="%d" text-anchor="end">%s</text>', $left - 8,
                $top + 4, escape($y_name)));

    my %seen;
    for my $x (grep { !$seen{$_}++ } @x) {
        push @parts, sprintf '<text x="%.1f" y="%d" text-anchor="middle">%d</text>',
             $x_at->($x), $top + $high + 20, $x;
    }

    for my $i (0 .. $#lines) {
        my ($name, @at) = @{ $lines[$i] };

        push @parts, sprintf '<path fill="none" style="stroke:%s;stroke-width:2" d="M%s"/>',
             $colours[$i], join ' L', map { sprintf '%.1f,%.1f', $x_at->($_->[0]), $y_at->($_->[1]) } @at;

        for (@at) {
            push @parts, sprintf('<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>',
                 $x_at->($_->[0]), $y_at->($_->[1]), $colours[$i]),
                 sprintf '<text x="%.1f" y="%.1f" text-anchor="middle">%.1f</text>',
                 $x_at->($_->[0]), $y_at->($_->[1]) - 9, $_->[1];
        }
    }

    document($file, $left + $wide + 30, $top + $high + 60, $title, @parts);
}

1;
