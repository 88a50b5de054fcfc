# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# The packages of the clients: they are made without a network, have in them
# what they should, work when they are installed, and the one for browsers is
# small.  esbuild and typescript are fetched from npm into build/npm where
# CLIENTS_FULL=1 lets them; what is not to be had is left out, and said to be.

use strict;
use warnings;

use Cwd ();
use File::Path ();
use File::Temp ();
use IO::Compress::Gzip ();
use Test::More;

plan skip_all => 'it is run once, with the memory store'
    if ($ENV{IDEMPOTENCY_STORE} || 'memory') ne 'memory';

use constant LIMIT => 4000;           # bytes, minified and gzipped

my $root = Cwd::cwd();
my $npm  = "$root/build/npm";
my $dir  = File::Temp->newdir;

# nothing may come from elsewhere

local @ENV{qw(npm_config_offline PIP_NO_INDEX)} = ('true', '1');

my $said = qx(clients/pack 2>&1);
is($?, 0, 'packages are made') or diag($said);

javascript();
python();
size();
types();

done_testing();


sub javascript {
    my ($package) = glob "$root/build/clients/*.tgz";

    SKIP: {
        if (!has('npm')) {
            skip_loudly('npm', 'the package for JavaScript', 3);
        }

        is(join(' ', sort map { s{^package/}{}r } split ' ', qx(tar tzf $package)),
           'LICENSE README.md index.d.ts index.js node.d.ts node.js package.json',
           'what is in it');

        # installed by hand, as npm does

        my $at = "$dir/node_modules/nginx-idempotency-client";

        File::Path::make_path($at);
        system "tar xzf $package -C $at --strip-components 1";

        is(run_in($dir, qq{node --input-type=module -e "
               import * as c from 'nginx-idempotency-client';
               console.log(Object.keys(c).join(' '))"}),
           'IdempotencyClient IdempotencyError fileStorage jobKey memoryStorage '
           . 'randomKey testKey webStorage withIdempotencyKey workflowKey',
           'node finds it, with storage in files');
        is(run_in($dir, qq{node --conditions=browser --input-type=module -e "
               const c = await import('$at/index.js');
               console.log('fileStorage' in c)"}),
           'false', 'browsers have it without');
    }
}


sub python {
    my ($wheel) = glob "$root/build/clients/*.whl";
    my ($sdist) = glob "$root/build/clients/*.tar.gz";

    SKIP: {
        if (!has('python3')) {
            skip_loudly('python3', 'the package for Python', 4);
        }

        is(run_in($dir, "PYTHONPATH=$wheel python3 -c 'import idempotency_client "
                        . "as c; print(c.__version__, c.Client().options.tries)'"),
           qx(cat VERSION) =~ s/\n/ 8/r, 'the wheel can be imported');

        # each file is what RECORD says that it is

        is(run_in($dir, <<"CODE"), 'ok', 'and is whole');
python3 - <<'END'
import base64, hashlib, zipfile
z = zipfile.ZipFile("$wheel")
names = set(z.namelist())
record = next(n for n in names if n.endswith("/RECORD"))
for line in z.read(record).decode().split():
    name, digest, size = line.rsplit(",", 2)
    names.remove(name)
    if digest:
        data = z.read(name)
        got = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        assert digest == "sha256=" + got.rstrip(b"=").decode(), name
        assert int(size) == len(data), name
print("ok" if not names else names)
END
CODE

        # an sdist makes the same wheel

        system "tar xzf $sdist -C $dir";
        my ($source) = glob "$dir/nginx_idempotency_client-*";

        run_in($source, 'python3 build.py out');
        my ($again) = glob "$source/out/*.whl";

        ok($again, 'the sdist makes a wheel');
        is(system("cmp -s $wheel $again"), 0, 'the same one');
    }
}


sub size {
    SKIP: {
        my $esbuild = tool('esbuild', 'esbuild')
            or skip_loudly('esbuild', 'the size of the client for browsers', 1);

        my $code = qx($esbuild clients/js/index.js --bundle --minify --format=esm);
        my $zipped;

        IO::Compress::Gzip::gzip(\$code, \$zipped, -Level => 9, -Minimal => 1);
        cmp_ok(length $zipped, '<', LIMIT, 'small, minified and gzipped');
        diag(sprintf 'size of the JavaScript client: %d bytes, minified %d, '
                     . 'and gzipped %d', -s 'clients/js/index.js', length $code,
                     length $zipped) if $ENV{CLIENTS_FULL};
    }
}


# what index.d.ts says is what a program can be written against

sub types {
    SKIP: {
        my $tsc = tool('typescript', 'tsc')
            or skip_loudly('typescript', 'the types', 2);

        my $good = <<'CODE';
import { IdempotencyClient, IdempotencyError, fileStorage, jobKey, webStorage,
         withIdempotencyKey } from 'nginx-idempotency-client';

const client = new IdempotencyClient({ storage: fileStorage('x'),
    onEvent: (e) => { const t: string = e.type; } });
const r = await client.fetch('/a', { method: 'POST', body: 'x' },
                             { operation: 'o', unknown: 'retry' });
const tries: number | undefined = r.idempotency?.tries;
const wrapped = withIdempotencyKey(fetch, { storage: webStorage() });
await wrapped(new URL('https://a/'), undefined, { key: jobKey(7) });
try { await client.forget((await client.pending())[0].name); }
catch (e) { if (e instanceof IdempotencyError && e.outcome === 'ran') throw e; }
CODE
        my $bad = $good =~ s/unknown: 'retry'/unknown: 'maybe'/r;

        my $check = sub {
            my ($name, $text) = @_;

            open my $out, '>', "$dir/$name.ts" or die $!;
            print $out $text;
            close $out;

            run_in($dir, "$tsc --noEmit --strict --target es2022 --module nodenext "
                         . "--moduleResolution nodenext --lib es2022,dom "
                         . "--types '' $name.ts");
            return $?;
        };

        open my $out, '>', "$dir/package.json" or die $!;
        print $out '{"type":"module"}';
        close $out;

        is($check->('good', $good), 0, 'types: a program that is right');
        isnt($check->('bad', $bad), 0, 'types: and one that is not');
    }
}


# --- tools -----------------------------------------------------------------

sub has { system("command -v $_[0] >/dev/null 2>&1") == 0 }


# of npm, in build/

sub tool {
    my ($package, $name) = @_;

    my $path = "$npm/node_modules/.bin/$name";

    if (!-x $path && $ENV{CLIENTS_FULL} && has('npm')) {
        local $ENV{npm_config_offline} = 'false';

        File::Path::make_path($npm);
        system "timeout 300 npm install --silent --no-audit --no-fund "
               . "--prefix $npm $package >/dev/null 2>&1";
    }

    return -x $path ? $path : undef;
}


sub run_in {
    my ($where, $command) = @_;

    my $text = qx(cd $where && { $command\n} 2>&1);

    $text =~ s/\s+\z//;
    note($text) if $?;
    return $text;
}


sub skip_loudly {
    my ($tool, $what, $tests) = @_;

    diag("there is no $tool: $what is NOT tested");
    skip("no $tool", $tests);
}
