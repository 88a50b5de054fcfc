# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# What the tutorial and README tell a stranger to type is typed here, in order,
# and what they say that will be seen is seen.

use strict;
use warnings;
use lib 't/lib';

use Cwd qw(getcwd);
use File::Path qw(remove_tree);
use IdempotencyTest::Process;
use Test::More;

plan skip_all => 'it brings its own stores'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';
plan skip_all => 'it is for the nginx of the distribution'
    if ($ENV{TEST_NGINX_BINARY} || '/usr/sbin/nginx') ne '/usr/sbin/nginx';

sub slurp {
    open my $fh, '<', $_[0] or return '';
    local $/;
    return scalar <$fh>;
}

# [ line, command, expected or undef ]: a block of sh, and the text below it

sub blocks {
    my $text = slurp($_[0]);
    my @found;

    while ($text =~ /^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?/msg) {
        push @found, [ 1 + substr($text, 0, $-[0]) =~ tr/\n//, $1, $2 ];
    }

    return @found;
}

# each line that is expected comes, in that order; "..." is anything

sub seen {
    my ($where, $said, $expected) = @_;

    $said =~ s/\r//g;

    my $like = join '.*', map { quotemeta } split /\.\.\./, $expected, -1;

    like($said, qr/\A$like\z/s, "$where: what is seen");
}

tutorial();
readme();

done_testing();


# All of it in one shell, in a folder of its own, on ports of its own.

sub tutorial {
    my $dir = getcwd() . "/build/tutorial-test.$$";
    my @blocks = blocks('docs/tutorial.md');

    cmp_ok(scalar @blocks, '>=', 15, 'the tutorial has blocks to run');

    my %port = map { $_ => IdempotencyTest::Process::free_port() } 8080, 8081, 6390;

    mkdir $dir or die "$dir: $!";

    my $script = '';

    for my $n (0 .. $#blocks) {
        my $block = $blocks[$n][1];

        $block =~ s/\b(8080|8081|6390)\b/$port{$1}/g;
        $block =~ s{\bbuild/tutorial\b}{build/tutorial-test.$$/place}g;
        $block =~ s{\.\./(ngx_http_idem)}{../../$1}g;
        $block =~ s{cd \.\./\.\. }{cd ../../.. }g;

        # "make build" has its own part of the test, and is done

        $block =~ s/^make build$/echo "built build\/ngx_http_idempotency_module.so"/m;

        $script .= "{\n$block} > $dir/out.$n 2>&1 < /dev/null\n"
                   . "echo \$? > $dir/rc.$n\n";
    }

    # whatever happens, nobody stays

    my $end = <<'END';
leave() {
    kill -9 $(jobs -p) 2> /dev/null
    for f in redis.pid nginx.pid; do
        [ ! -s $DIR/place/$f ] || kill $(cat $DIR/place/$f) 2> /dev/null
    done
}
trap leave EXIT
END
    open my $f, '>', "$dir/script" or die $!;
    print {$f} "DIR=$dir\n$end$script";
    close $f;

    system('timeout', '-k', '5', '300', 'bash', "$dir/script");

    for my $n (0 .. $#blocks) {
        my ($line, undef, $expected) = @{$blocks[$n]};
        my $said = slurp("$dir/out.$n");
        my $where = "docs/tutorial.md:$line";

        if (!-e "$dir/rc.$n") {
            fail("$where: it comes to its end");
            diag($said);
            last;
        }

        if (defined $expected) {
            seen($where, $said, $expected);
        } else {
            is($said =~ s/^\n+//r, '', "$where: nothing is said");
        }
    }

    ok(!-d "$dir/place", 'the tutorial cleans up');
    remove_tree($dir);
}


# Those of README belong to several places.  Each is tried, or has its own test;
# none is unknown.

sub readme {
    my %known = (
        'make run'     => 't/run.t',
        'make check'   => 'make -n',
        'make test'    => 'make -n',
        'make build'   => 'make -n',
        'make deb'     => 'tools/test-deb',
        'make install' => 't/install.t',
        'nginx -t'     => 'tools/test-deb',
    );

    my @lines = map { split /\n/, $_->[1] } blocks('README.md');
    push @lines, slurp('README.md') =~ /^\| `(make [^`]+)` \|/mg;

    # those that stand alone have a place to fill in, and may go on in the next
    # line

    push @lines, slurp('README.md') =~ s/^```.*?^```$//msgr
                 =~ s/ \\\n +/ /gr
                 =~ /^    (?=[a-z.])(\S.*)$/mg;

    my $demo = slurp('tools/run');

    for my $line (@lines) {
        if ($line =~ /^curl /) {

            # those that "make run" prints, with an address in them

            my $shape = quotemeta($line) =~ s/http\S+orders/\\\$url/r;
            like($demo, qr/^$shape$/m, "README: tools/run prints $line");
            next;
        }

        if ($line =~ m{^apt-get install ./build/deb/(\S+)_\*\.deb$}) {
            like(slurp('debian/control'), qr/^Package: \Q$1\E$/m,
                 "README: $1 is a package");
            next;
        }

        if ($line =~ m{^\./configure .* --(add-\S*module)=<checkout>$}) {
            like(slurp('tools/build'), qr/"--$1=\$root"/,
                 "README: tools/build does it with --$1, too");
            next;
        }

        # of nginx's own tree

        next if $line =~ /^make(?: modules)?$/;

        my ($goal) = $line =~ /^(make \S+)/;
        my $how = $known{$line} // ($goal && $known{$goal});

        ok($how, "README: $line is tried") or next;
        ok(-e $how, "README: by $how") if $how =~ m{/};

        # a port is any

        if ($line =~ /^make run (\w+)=([a-z]+)/) {
            like(slurp('t/run.t'), qr/\b$1 => '$2'/, "README: with $1=$2");
        }

        if ($goal) {
            my $said = `MAKEFLAGS= $goal -n 2>&1 | head -n 40`;
            unlike($said, qr/No rule to make/, "README: there is a $goal");
        }
    }

    # what README promises of the demonstration is what tools/run promises,
    # which t/run.t holds against the answers

    for my $block (grep { $_->[1] =~ /^curl / } blocks('README.md')) {
        for my $line (split /\n/, $block->[2] // fail('an answer to expect')) {
            next if $line =~ /^Content-Type: application\/problem\+json$/;
            like($demo, qr/^ +\Q$line\E$/m, "README:$block->[0]: $line");
        }
    }
}
