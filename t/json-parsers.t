# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# Hosts that were built with different JSON libraries have the same fingerprints
# and the same replays: yajl and yyjson say the same of each text
# (proof/json/compare.c).
# Where the distribution has no yyjson, that of another release is unpacked
# into build/.
#
#     JSON_SEED=7 JSON_CHANGES=5000 prove -v t/json-parsers.t     for longer

use strict;
use warnings;
use Test::More;
use File::Path qw(make_path);
use Cwd qw(getcwd);

my $root = getcwd();
my $dir = "$root/build/json";
my ($incs, $libs) = ('', '-lyyjson');

make_path("$dir/texts");

if (!-e '/usr/include/yyjson.h') {
    if (!-e "$dir/lib/libyyjson.so") {

        # with the C library of that release, which must not be linked

        chomp(my $place = `tools/foreign-apt sid unpack libyyjson-dev $dir/sid`);
        make_path("$dir/include", "$dir/lib");
        system("cp -a $place/usr/include/yyjson.h $dir/include/"
               . " && cp -a $place/usr/lib/*/libyyjson.so* $dir/lib/"
               . " && rm -rf $dir/sid") == 0
            or BAIL_OUT('there is no yyjson to be had');
    }

    $incs = "-isystem $dir/include";
    $libs = "-L$dir/lib -Wl,-rpath,$dir/lib -lyyjson";
}

# what JSON is, and what it is not, by one text each

my @texts = (
    '{}', '[]', '""', '0', '-0', '-', '1.', '1.0', '1e5', '1E+5', '.5', '01', '+1', '1e', 'null', 'nul',
    'true', 'false', 'True', 'NaN', 'Infinity', '{"a":1,"a":2}', '{"a":1,}', '[1,]', '[,1]', '{"a"}',
    '{a:1}', "{'a':1}", '[1 2]', '{} {}', '{}"anything', '"\\u0000"', '"\\ud800"', '"\\ud800\\u0041"',
    '"\\ud83d\\ude00"', '"\\udc00"', '"\\x"', '"\\u12"', "\"\t\"", "\"\x7f\"", "\"\x00\"", "[1]\x00", "\xef\xbb\xbf{}",
    "\"\xc3\xa9\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xf0\x9f\x98\x80\"", "\"\xc3\"",
    "\"\xe2\x82\"", "\"\xff\"", " \t\r\n[ 1 , 2 ] \n", "\x0b[]", "[]\x0c", '', ' ', '123456789012345678901234567890',
    '1e400', '9007199254740993', '"' . 'x' x 5000 . '"', '[' x 127 . ']' x 127, '[' x 128 . ']' x 128,
    '[' x 129 . ']' x 129, '[' x 200, '{"a":' x 128 . '1' . '}' x 128, '// x', '/* x */1', '"\\/\\b\\f\\n\\r\\t\\"\\\\"',
    '{"items":[{"id":1,"name":"a\\u00e9","price":10.50,"tags":["x","y"],"ok":true,"none":null}],"n":{"m":{}}}',

    # objects that are cut into pieces

    '{"a":{"a":1},"b":"' . 'long ' x 20 . '","a":[],"c":[[[[[[1,2],3],4],5],6],"x"],"d":{"e":{"f":{"g":null}}}}',
    '{ "one" : 1 , "a" : [ 1 , { "x" : "\\"\\\\" } ] , "two" : { "three" : [ true , false , null ] } , "four" : -1.5e-7 }' . "\n",
    '{"list":[' . join(',', map { "{\"id\":$_,\"t\":\"\\u00e9\\n\\/\"}" } 1 .. 12) . '],"n\\"\\n":1,"n":2}',
    '{"numbers":[' . join(',', 1 .. 60) . '],"strings":["' . join('","', 'a' .. 'z') . '"]}',
    '{' . join(',', map { "\"m$_\":" . ('{"x":[' x ($_ % 4)) . $_ . (']}' x ($_ % 4)) } 1 .. 20) . '}',
    '{"a":"\\u0000\\u001f\\u0041\\ud83d\\ude00","b":"\\\\\\\\\\"","c":"' . '\\\\' x 30 . '","d":"' . '\\"' x 30 . '"}',
);

for my $i (0 .. $#texts) {
    open my $f, '>', "$dir/texts/$i" or die "$dir/texts/$i: $!\n";
    binmode $f;
    print $f $texts[$i];
    close $f;
}

my $makefile = do { local (@ARGV, $/) = 'build/nginx/objs/Makefile'; <> };
my ($of_nginx) = $makefile =~ /^ALL_INCS = (.*?[^\\])$/ms;
$of_nginx =~ s/\\\n/ /g;
$of_nginx =~ s/\n.*//s;

my $files = join ' ', map { "$root/$_" } grep { !/_json_(?:diff)\.c/ }
            glob('src/canonical/*_json*.c'), glob('src/canonical/*_canon*.c');

my $built = system("cd build/nginx && \${CC:-cc} -g -O1 -W -Wall -Wno-unused-parameter -Werror"
                   . " -fsanitize=address,undefined -fno-sanitize-recover=undefined"
                   . " -DNGX_HTTP_IDEM_YYJSON_PIECE=24 -I $root/src $of_nginx $incs -o $dir/compare $root/proof/json/compare.c $files"
                   . " $libs -lyajl -lcrypto");

is($built, 0, 'both are compiled') or BAIL_OUT('compare.c does not compile');

my $seed = $ENV{JSON_SEED} || 20261117;
my $changes = $ENV{JSON_CHANGES} || 400;
my @files = sort glob("$dir/texts/*"), glob('proof/fuzz/corpus/json/*');

open my $out, '-|', "$dir/compare", $seed, $changes, @files or die "compare: $!\n";

while (<$out>) {
    if (/^(not )?ok \d+ - (.*)/) {
        ok(!$1, $2);
    } elsif (/^#/) {
        diag($_);
    }
}

ok(close($out), 'and ends well');

done_testing();
