# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The documents say what the sources say: every directive with its context and
# its default, every variable, status and error code, in both directions.  And
# what they show as configuration is one that nginx takes.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use Test::More;

my $root = dirname(dirname(abs_path(__FILE__)));

my $nginx  = $ENV{TEST_NGINX_BINARY} || '/usr/sbin/nginx';
my $module = $ENV{IDEMPOTENCY_MODULE}
             || "$root/build/ngx_http_idempotency_module.so";

my $table     = text('ngx_http_idempotency_module.c');
my $merge     = text('src/conf/ngx_http_idem_conf.c');
my $sources   = join '', map { text($_) } files("$root/src", qr/\.[ch]$/);
my $reference = text('docs/directives.md');
my $readme    = text('README.md');

my %directive  = directives();
my @chapters   = $reference =~ /^## ((?:\w+ )?directives)$/mig;
my %documented = map { sections($reference, $_) } @chapters;

my %store      = map { $_ => 1 } backends();
my %in_store   = sections($reference, 'Stores');

names_agree();
syntax_agrees($_) for sort keys %directive;
defaults_agree();
stores_agree();
blocks_agree();
variables_agree();
statuses_agree();
errors_agree();
figures_agree();
events_agree();
messages_are_explained();
links_lead_somewhere();
documents_are_found();
examples_are_taken();

done_testing();


# --- what the sources say --------------------------------------------------

# name => { context, flags, setter, field, words }

sub directives {
    my %found;

    my ($body) = $table =~ /ngx_http_idem_commands\[\] = \{(.*?)^\};/ms
        or die 'no table of directives';

    # those of locations are rows of a macro, which says where they stand

    $body =~ s/ngx_http_idem_directive\( "(\w+)", \s* (\w+), \s*
               (\w+), \s* (\w+), \s* (&?\w+) \)/
               { ngx_string("$1"), ANYWHERE|$2, $3, 0, $4, $5 }/gx;

    while ($body =~ /\{ \s* ngx_string\("(\w+)"\), \s*
                     ([A-Z0-9_|]+), \s* (\w+), \s* \w+, \s*
                     (\w+), \s* (?: &? (\w+) ) \s* \}/gx)
    {
        my ($name, $flags, $setter, $field, $post) = ($1, $2, $3, $4, $5);

        # beside names there may be numbers; NULL has neither

        my @words = $table =~ /_choices_t \s+ $post \s = \s \{ [^;]*?
                               _NONE, \s 0, \s 0, (.*?) ^\};/xms
                    ? $1 =~ /ngx_string\("(\w+)"\)/g : ();

        $found{$name} = {
            context => contexts($flags),
            flags   => $flags,
            field   => $field,
            words   => \@words,
            choices => { choices($post) },
            setter  => $setter,
        };
    }

    return %found;
}


sub contexts {
    my $flags = shift;

    return $flags =~ /ANYWHERE/ ? 'http, server, location'
           : join ', ', map { $flags =~ /$_->[0]/ ? $_->[1] : () }
                        [ HTTP_MAIN_CONF => 'http' ],
                        [ HTTP_SRV_CONF  => 'server' ],
                        [ HTTP_LOC_CONF  => 'location' ];
}


# the value of an enum => its word

sub choices {
    my $post = shift;

    return if $table !~ /_choices_t\s+$post = \{(.*?)^\};/ms;
    return map { /ngx_string\("(\w+)"\), (\w+)/ ? ($2 => $1) : () }
               split /\n/, $1;
}


sub variables {
    my ($body) = text('src/request/ngx_http_idem_variables.c')
                 =~ /ngx_str_t\s+ngx_http_idem_vars\[\] = \{(.*?)^\};/ms
        or die 'no table of variables';

    return map { /_$/ ? "$_<type>" : $_ } $body =~ /ngx_string\("(\w+)"\)/g;
}


sub backends {
    my ($body) = text('src/store/ngx_http_idem_store.c')
                 =~ /ngx_http_idem_backends\[[^]]*\] =\s*\{(.*?)^\};/ms
        or die 'no table of stores';

    # PostgreSQL's is a module of its own, and adds itself

    return ($body =~ /&ngx_http_idem_(\w+)_backend/g,
            text('src/store/postgres/ngx_http_idem_postgres.c')
            =~ /_backend = \{\s*ngx_string\("(\w+)"\)/g);
}


# a number, if the text is one: macros are looked up, products worked out

sub number {
    my $value = shift;

    for (1 .. 5) {
        $value =~ s/\b([A-Z]\w+)\b/macro($1)/ge;
    }

    return $value =~ /^[\d\s*()+]+$/ ? eval $value : undef;
}


sub macro {
    my $name = shift;

    return $sources =~ /^#define\s+$name\s+(\S.*?)\s*(?:\/\*.*)?$/m ? $1
                                                                    : $name;
}


# The default as the merge has it: a number, the word of an enum, or undef for
# nothing.

sub source_default {
    my $d = shift;
    my $f = $d->{field};

    my ($value) =
        $merge =~ /_merge_\w+\( &? conf->$f, \s* &? prev->$f, \s*
                   ( (?: [^();] | \([^()]*\) )+ ) \);/x;

    # written out, since there is more than one field to it

    if (!defined $value) {
        ($value) = $merge =~ /== \s NGX_CONF_UNSET\w* \) \s \{ \s*
                              conf->$f(?:\.value)? \s = \s (?!prev) ([^;]+);/x;
    }

    return undef if !defined $value || $value eq 'NULL';

    $value =~ s/^\s+|\s+$//g;

    return $d->{choices}{$value} // number($value) // $value;
}


# --- what the documents say ------------------------------------------------

# heading => { syntax, default, context, text } of a chapter

sub sections {
    my ($text, $chapter) = @_;

    my ($body) = $text =~ /^## \Q$chapter\E\n(.*?)(?=^## |\z)/ms
        or die "no chapter $chapter";

    my (%found, @order);

    for my $section (split /^(?=### )/m, $body) {
        my ($name) = $section =~ /^### (\S+)/ or next;

        push @order, $name;

        $found{$name} = {
            text => $section,
            map { $_ => $section =~ /^- \*\*$_\*\*: (.+)$/m ? $1 : undef }
                qw(syntax default context),
        };
    }

    is(scalar @order, scalar keys %found, "$chapter: each is there once");

    return %found;
}


# the first cells of a table whose head begins with "head"

sub rows {
    my ($text, $head) = @_;

    my ($body) = $text =~ /^\| $head \|.*\n\|[- :|]+\n((?:\|.*\n)+)/m
        or die "no table of $head";

    return map { [ map { ($_ // '') =~ s/^\s+|\s+$//gr } (split /\|/)[1 .. 5] ] }
               split /\n/, $body;
}


# --- comparisons -----------------------------------------------------------

sub names_agree {
    is_deeply([ sort keys %documented ], [ sort keys %directive ],
              'docs/directives.md has every directive, and no other');

    my @linked;

    for my $row (rows($readme, 'directive')) {
        my ($name, $anchor) =
            $row->[0] =~ m{^\[`?(\w+)`?\]\(docs/directives\.md#(\w+)\)$}
                or do { fail("README: $row->[0] is a link"); next };

        is($anchor, $name, "README: $name leads to its section");
        push @linked, $name;

        # some are told in other words

        if ($row->[1] =~ /^`([^`]+)`$/ && $documented{$name}) {
            is("`$name $1;`", $documented{$name}{default},
               "README: $name has the same default");
        }
    }

    is_deeply([ sort @linked ], [ sort keys %directive ],
              "README's table has every directive, and no other");

    is_deeply(\@linked, [ $reference =~ /^### (idempotency\w*)/mg ],
              'in the same order');

    # also where they are only spoken of

    for my $file (qw(README.md docs/directives.md docs/design.md docs/decisions.md
                     docs/memory-internals.md))
    {
        my %wrong = map { $_ => 1 }
                    grep { !$directive{$_} }
                    text($file) =~ /(?<![\$\w.\/-])(idempotency_[a-z_]+[a-z])
                                    (?![\w<])/gx;

        is_deeply([ sort keys %wrong ], [], "$file names no other directive");
    }
}


sub syntax_agrees {
    my $name = shift;

    my $d = $directive{$name};
    my $doc = $documented{$name} or return;

    is($doc->{context}, $d->{context}, "$name: context");

    my $syntax = $doc->{syntax} // '';

    like($syntax, qr/^`$name .*(?:;|\})`$/, "$name: syntax");

    if ($d->{flags} =~ /CONF_FLAG/) {
        is($syntax, "`$name on | off;`", "$name: on or off");
    }

    if (@{$d->{words}}) {
        (my $words = $syntax) =~ s/ \[[^]]*\]//;
        is($words, "`$name " . join(' | ', @{$d->{words}}) . ';`',
           "$name: one of its words");
    }

    # a store can't have the names that its setter knows

    my @missing = $name eq 'idempotency_store' ? ()
                : grep { $syntax !~ /(?<![\w-])\Q$_\E(?<![\w-](?=[\w-]))/ }
                  map { split /(?<==)/ } words($d->{setter});

    is_deeply(\@missing, [], "$name: all its words are in the syntax");

    if ($d->{flags} =~ /CONF_1MORE/ && $d->{setter} =~ /_(?:names|values|key)$/) {
        like($syntax, qr/> …;/, "$name: takes several");
    }

    like($doc->{text}, qr/^```nginx\n(?:.*\n)*?[^#\n]*\b$name\b/m,
         "$name: has an example");

    # as on nginx.org: "Sets ...", "Refuses ..."

    like($doc->{text}, qr/^- \*\*context\*\*: .*\n\n[A-Z][a-z]+s\b/m,
         "$name: opens with a verb");
}


# What a setter compares its values with: "on", "min=", "quoted=required".

sub words {
    my $setter = shift;

    my $body = body_of($setter) or return;

    for my $helper ($body =~ /(ngx_http_idem_(?:conf|stats)_\w+)\(/g) {
        next if $helper =~ /_(?:is|invalid|complex)$/;
        $body .= body_of($helper);
    }

    my @words = (
        $body =~ /conf_is\(&?\w+(?:\[\w+\])?,\s*"([\w=]+)"\)/g,
        $body =~ /ngx_strncmp\([^,]+, "(\w+[=:])", \d\)/g,
        $body =~ /conf_option\([^,]+, "(\w+[=:])",/g,
    );

    for my $enum ($body =~ /conf_enum\((ngx_http_idem_\w+),/g,
                  $body =~ /e = (ngx_http_idem_\w+);/g)
    {
        $sources =~ /ngx_conf_enum_t\s+$enum\[\] = \{(.*?)^\};/ms or next;
        push @words, $1 =~ /ngx_string\("(\w+)"\)/g;
    }

    return @words;
}


sub body_of {
    my $function = shift;

    return $sources =~ /^$function\([^;{]*?\)\n(\{.*?^\})/ms ? $1 : '';
}


# Each default of the documents as a number or a word, beside that of the
# sources.  Those that the merge leaves to a function are spelled out there.

sub defaults_agree {
    my ($key, $scope, @identity) = strings('default_values');

    my %spelled = (
        idempotency             => 'off',
        idempotency_key         => $key,
        idempotency_key_format  => 'token min='
            . number('NGX_HTTP_IDEM_KEY_MIN') . ' max='
            . number('NGX_HTTP_IDEM_KEY_MAX') . ' quoted=optional',
        idempotency_methods     => join(' ', ($merge =~ /_methods\[\]\s*=
                                        \s*\{(.*?)\}/xs)[0]
                                   =~ /ngx_string\("([A-Z]+)"\)/g),
        idempotency_scope       => $scope,
        idempotency_identity    => "@identity",
        idempotency_fingerprint => lc(($merge =~ /canonical_default\s*=\s*
                                        \{\s*\w+_FINGERPRINT_([A-Z]+)/x)[0]),
        idempotency_dedupe      => 'off',
        idempotency_conflict_detail => 'off',
        idempotency_dry_run     => 'off',
        idempotency_required    => 'off',
        idempotency_log         => 'off',
        idempotency_ttl_header  => 'off',
        idempotency_keep_status => kept(),
        idempotency_replay_status => 'original',
        idempotency_stream      => lc(($merge =~ /_STREAM_([A-Z]+)\)/)[0]),
    );

    for my $name (sort keys %directive) {
        my $doc = $documented{$name} or next;

        my ($value) = ($doc->{default} // '') =~ /^`$name (.+);`$/;
        my $from = source_default($directive{$name});

        if (defined $spelled{$name}) {
            is($value, $spelled{$name}, "$name: default");

        } elsif (!defined $from) {
            is($doc->{default}, '—', "$name: no default");

        } else {
            is($from =~ /^\d+$/ ? measure($value) : $value, $from,
               "$name: default");
        }
    }
}


sub function {
    my $name = shift;

    $merge =~ /^ngx_http_idem_$name\(.*?^(\{.*?^\})/ms
        or die "no function $name";

    return $1;
}


sub strings {
    return function(shift) =~ /"(\$\w+)"/g;
}


sub kept {
    my ($kept) = text('src/conf/ngx_http_idem_directives.c')
                 =~ /\bkept\[\] = \{(.*?)\}/s or die 'no default statuses';

    return join ' ', $kept =~ /"(!?\d\w\w)"/g;
}


# on and off, a time in ms, a size in bytes, a number, or the word itself

sub measure {
    my $value = shift // return 'nothing';

    my %unit = (ms => 1, s => 1000, h => 3600000, d => 86400000,
                k => 1024, m => 1048576);

    return $value eq 'on' ? 1 : $value eq 'off' ? 0
           : $value =~ /^(\d+)(ms|[shdkm])$/ ? $1 * $unit{$2} : $value;
}


sub stores_agree {
    is_deeply([ sort keys %in_store ], [ sort keys %store ],
              'docs/directives.md has every kind of store, and no other');

    is($documented{idempotency_store}{syntax},
       '`idempotency_store <name> ' . join(' | ', backends()) . ' { … }`',
       'idempotency_store: its kinds');

    my ($chapter) = $readme =~ /^## Stores\n(.*?)(?=^## )/ms;

    for my $name (sort keys %store) {
        like($chapter // '', qr/\*\*\[?$name\b/, "README: store $name");
    }

    my $size = number('NGX_HTTP_IDEM_DEFAULT_SIZE');

    is(measure(($in_store{memory}{default} // '') =~ /:(\w+);/), $size,
       'memory: default size');
}


# The directives within the block of a store, in the order of the sources or not.

sub blocks_agree {
    my %of = (
        'docs/redis.md'    => 'src/store/redis/ngx_http_idem_redis_conf.c',
        'docs/postgres.md' => 'src/store/postgres/ngx_http_idem_postgres_conf.c',
        'docs/layers.md'   => 'src/store/layers/ngx_http_idem_layers_conf.c',
    );

    for my $file (sort keys %of) {
        my @there = text($of{$file}) =~ /\{ \{ ngx_string\("(\w+)"\)/g;

        my ($head, $cell) = $file =~ /layers/ ? ('layer', 1) : ('directive', 0);

        my @said = map { $_->[$cell] =~ /`(?!idempotency )(\w+) /g }
                   rows(text($file) =~ s/\\\|/or/gr, $head);

        is_deeply([ sort @said ], [ sort @there ],
                  "$file has every directive of the block, and no other");
    }
}


sub variables_agree {
    my @names = map { "`\$$_`" } variables();

    is_deeply([ map { $_->[0] } rows($reference, 'variable') ], \@names,
              'docs/directives.md has every variable, and no other');
    is_deeply([ map { $_->[0] } rows($readme, 'variable') ], \@names,
              "README's table has every variable, and no other");
}


sub statuses_agree {
    my ($body) = text('src/request/ngx_http_idem_ctx.c')
                 =~ /status_names\[\] = \{(.*?)^\};/ms;

    is_deeply([ map { $_->[0] } rows($reference, 'status') ],
              [ map { "`$_`" } $body =~ /"(\w+)"/g ],
              'every $idempotency_status, and no other');

    # also as labels of a figure, in documents and rules

    my %status = map { $_ => 1 } $body =~ /"(\w+)"/g;

    for my $file ('README.md', map { s{^\Q$root\E/}{}r }
                  files("$root/docs", qr/\.md$/),
                  files("$root/examples/monitoring", qr/alerts\.yml$/))
    {
        my @wrong = grep { !$status{$_} }
                    map { split /\|/ }
                    text($file) =~ /\boutcome=~?"([\w|]+)"/g;

        is_deeply(\@wrong, [], "$file: outcomes are statuses");
    }
}


sub errors_agree {
    my ($body) = text('src/response/ngx_http_idem_problem.c')
                 =~ /ngx_http_idem_problems\[\] =\s*\{(.*?)^\};/ms;

    my @problems;

    while ($body =~ /\{ \s (\d+), \s \w+, \s ([01]), \s*
                     "[\w-]+", \s "(\w+)", \s "(\w+)"/gx)
    {
        # of an unknown outcome idempotency_unknown_outcome decides

        push @problems, [ "`$3`", $1, "`$4`",
                          $3 eq 'OUTCOME_UNKNOWN' ? 'per policy'
                          : $2 ? 'yes' : 'no' ];
    }

    cmp_ok(scalar @problems, '>=', 10, 'a table of errors');

    is_deeply([ map { [ @$_[0 .. 3] ] } rows($reference, 'error\.code') ],
              \@problems, 'every error, and no other');
}


sub figures_agree {
    my ($body) = text('src/admin/ngx_http_idem_metrics_table.c')
                 =~ /ngx_http_idem_metrics_table\[\] = \{(.*?)^\};/ms;

    my %kind = (count => 'counter', times => 'histogram', state => 'gauge');
    my @families;

    while ($body =~ / (?: ngx_http_idem_(word|count|times|state)\( | \{ \s )
                      (?:[A-Z_]+,\s)? "(\w+)",
                      (?=.*?\b(COUNTER|GAUGE|HISTOGRAM)\b) /gsx)
    {
        my ($how, $name, $type) = ($1 // 'word', $2, lc $3);

        push @families, "`$name" . ($how eq 'count' ? '_total' : '') . '` '
                        . ($kind{$how} // $type);
    }

    is_deeply([ sort map { "$_->[0] $_->[1]" } rows($reference, 'metric') ],
              [ sort @families ], 'every metric, and no other');
}


sub events_agree {
    my ($body) = text('src/observe/ngx_http_idem_events.c')
                 =~ /ngx_http_idem_events\[\] = \{(.*?)^\};/ms;

    my @events;
    push @events, [ "`$1`", lc $2 ]
        while $body =~ /\{ "([\w.]+)", \w+_LEVEL_([A-Z]+) \}/g;

    is_deeply([ map { [ @$_[0, 1] ] } rows($reference, 'event') ], \@events,
              'every event, and no other');
}


# Each warning or error of the error log is found by its words where an operator
# looks.  Parameters of a message are "..." there, so its parts are looked for.

sub messages_are_explained {
    my $explained = join '', map { text($_) } 'docs/troubleshooting.md',
                                 files("$root/docs/runbooks", qr/\.md$/);

    my (@missing, $n);

    for my $file ((glob "$root/*.c"), files("$root/src", qr/\.c$/)) {
        my $text = text($file);

        while ($text =~ /\bngx_(?:(?:conf_)?log_error|http_idem_log_repeated)
                         (\( (?: [^()"] | "(?:[^"\\]|\\.)*" | (?1) )* \))/gx)
        {
            my $call = $1;
            next if $call =~ /^\(NGX_LOG_(?:EMERG|NOTICE|INFO|DEBUG)/;

            # adjacent literals are one; a conversion, or a macro, is a gap

            $call =~ s/(?<!\\)"\s+"//g;

            my @parts = grep { length >= 12 }
                        map { s/\\"/"/gr =~ s/^idempotency: |, record $//gr }
                        map { split /%[*0-9]*[A-Za-z]+/ }
                        $call =~ /"((?:[^"\\]|\\.)*)"/g;

            next if !@parts;
            $n++;

            push @missing, $parts[0]
                if !grep { index($explained, substr($_, 0, 20)) >= 0 } @parts;
        }
    }

    cmp_ok($n, '>=', 45, "$n messages of the error log");
    is(join("\n", @missing), '', 'each is explained to those who operate nginx');
}


# Every document of the tree: files that it links to, pictures, and headings.

sub links_lead_somewhere {
    my @documents = split /\n/,
        `cd $root && find . \\( -name build -o -name .git -o -name node_modules \\) -prune -o -name '*.md' -printf '%P\\n' | sort`;

    cmp_ok(scalar @documents, '>=', 35, scalar(@documents) . ' documents');

    for my $file (@documents) {
        my @broken;

        for my $link (text($file) =~ /\]\(([^)\s]+)\)/g) {
            next if $link =~ /^https?:/;

            my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;

            my $target = $path eq '' ? $file
                       : $file =~ m{/} ? dirname($file) . "/$path" : $path;

            if (!-e "$root/$target") {
                push @broken, $link;

            } elsif (defined $anchor) {
                my %anchor = map { (lc =~ s/[^\w\s-]//gr =~ s/ /-/gr) => 1 }
                             text($target) =~ /^#+ (.+)$/mg;
                push @broken, $link if !$anchor{$anchor};
            }
        }

        is_deeply(\@broken, [], "$file: its links lead somewhere");
    }
}


# no document that a reader of the table of contents, or of the site, misses

sub documents_are_found {
    my $index = text('docs/index.md');
    my $nav = text('packaging/mkdocs.yml');

    for my $file (map { s{^\Q$root\E/docs/}{}r } files("$root/docs", qr/\.md$/))
    {
        next if $file eq 'index.md';

        like($index, qr/\(\Q$file\E[)#]/, "docs/index.md has $file");
        like($nav, qr/: \Q$file\E$/m, "packaging/mkdocs.yml has $file");
    }
}


# --- examples --------------------------------------------------------------

sub examples_are_taken {
    my $dir = tempdir(CLEANUP => 1);

    mkdir "$dir/$_" for qw(logs html);

    for my $file ('README.md', map { s{^\Q$root\E/}{}r }
                  files("$root/docs", qr/\.md$/))
    {
        my $text = text($file);

        while ($text =~ /^```nginx\n(.*?)^```$/msg) {
            my ($example, $line) = ($1, 1 + substr($text, 0, $-[1]) =~ tr/\n//);

            my ($where) = $example =~ /^# (nginx\.conf|http|server|location)$/m;

            if (!defined $where) {
                next if $file !~ /^README|directives/;
                fail("$file:$line: the example says where it belongs");
                next;
            }

            my $said = try($dir, $where, $example);

            is($said, '', "$file:$line: nginx takes the example");
        }
    }

    # those that are ready to be included bring all that they name

    for my $file (map { s{^\Q$root\E/}{}r } glob "$root/examples/*.conf") {
        is(try($dir, 'include', text($file)), '', "nginx takes $file");
    }
}


# what nginx has to say

sub try {
    my ($dir, $where, $example) = @_;

    my $load = $module eq 'static' ? '' : "load_module $module;\n";
    my $second = $module =~ s/idempotency_module/idempotency_postgres_module/r;
    $load .= "load_module $second;\n" if $second ne $module && -e $second;
    my $user = $> ? '' : "user root;\n";
    my $conf = $example;

    if ($where eq 'location') {
        $conf = "location / {\n$conf}\n";
        $where = 'server';
    }

    if ($where eq 'server') {
        $conf = "server {\n$conf}\n";
        $where = 'http';
    }

    if ($where eq 'http' || $where eq 'include') {
        $conf = "${load}events { }\nhttp {\n$conf}\n";

    } else {
        $conf =~ s/^(?:load_module .*\n)+/$load/m;
    }

    # no port of the machine, no directory of its nginx, a secret of ours

    if ($conf =~ s{(password_file\s+)[^;]+;}{$1$dir/password;}g) {
        open my $f, '>', "$dir/password" or die "$dir/password: $!";
        print {$f} "secret\n";
        close $f;
    }

    my $n = 0;
    $conf =~ s/^\s*listen\s[^;]+;\n//mg;
    $conf =~ s/(\bserver \{\n)/$1 . "listen unix:$dir\/" . $n++ . ".sock;\n"/ge;

    my $http = join '', map { "${_}_temp_path $dir/$_;\n" }
                            qw(client_body proxy fastcgi uwsgi scgi);

    if ($where ne 'include' && $conf !~ /upstream app\b/) {
        $http .= "upstream app { server unix:$dir/app.sock; }\n";
    }

    $conf =~ s/(\bhttp \{\n)/$1$http/;

    open my $f, '>', "$dir/nginx.conf" or die "$dir/nginx.conf: $!";
    print {$f} "${user}pid $dir/nginx.pid;\n$conf";
    close $f or die "$dir/nginx.conf: $!";

    # what is left unfreed by an nginx that only looks is no leak
    local $ENV{ASAN_OPTIONS} = 'detect_leaks=0,detect_odr_violation=0';

    my $said = `$nginx -t -q -e stderr -p $dir/ -c $dir/nginx.conf 2>&1`;

    return $? ? "$said$conf" : $said;
}


# --- files -----------------------------------------------------------------

sub text {
    my $name = shift;

    open my $f, '<', $name =~ m{^/} ? $name : "$root/$name"
        or die "$name: $!\n";
    local $/;
    return scalar <$f>;
}


sub files {
    my ($dir, $like) = @_;

    my @found;

    for my $entry (sort glob "$dir/*") {
        push @found, -d $entry ? files($entry, $like)
                   : $entry =~ $like ? $entry : ();
    }

    return @found;
}
