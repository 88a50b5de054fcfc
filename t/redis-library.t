# Copyright (C) the contributors of ngx_http_idempotency_module
# SPDX-License-Identifier: BSD-2-Clause

# A module that brings a hiredis of its own, as nchan does.  nginx loads modules
# with their symbols in the open: neither of the two may call the other's.

use strict;
use warnings;
use lib 't/lib';
use IdempotencyTest;
use Test::Nginx::Socket;
use File::Temp qw(tempdir);

my $cc = $ENV{CC} || 'cc';
my ($archive) = `$cc -print-file-name=libhiredis.a 2>&1` || '';

if ($archive !~ m{^/}) {
    plan(skip_all => 'there is no compiler, or no archive of hiredis');
}

plan('no_plan');

# a module of nginx without any, which has functions of hiredis

my $dir = tempdir('idempotency-test-XXXXXX', TMPDIR => 1, CLEANUP => 1);

our $other = "$dir/other.so";

open(my $source, '>', "$dir/other.c") or die $!;
print $source <<'_EOC_';
#include <stdlib.h>

void  *ngx_modules[] = { NULL };
char  *ngx_module_names[] = { NULL };
char  *ngx_module_order[] = { NULL };

static char  own;

void *redisReaderCreate(void) { return &own; }
int redisReaderFeed(void *reader, const char *p, size_t n) { abort(); }
int redisReaderGetReply(void *reader, void **reply) { abort(); }
void redisReaderFree(void *reader) { abort(); }
void freeReplyObject(void *reply) { abort(); }

/* runs when it is loaded */

__attribute__((constructor)) static void
check(void)
{
    if (redisReaderCreate() != &own) {
        abort();
    }
}
_EOC_
close($source) or die $!;

system($cc, '-w', '-shared', '-fPIC', '-o', $other, "$dir/other.c") == 0
    or die "$cc: $?";

sub replays
{
    my %key = ('Idempotency-Key' => new_key());

    is(http_post('/ok?op=a', 'x', \%key)->body, "run 1\n", 'ran');

    my $retry = http_post('/ok?op=a', 'x', \%key);
    is($retry->body, "run 1\n", 'replayed');
    is($retry->header('Idempotent-Replayed'), 'true', 'says so');
}

run_tests();

__DATA__

=== TEST 1: it is loaded before
--- store: redis
--- modules eval: $::other
--- config
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
replays();



=== TEST 2: it is loaded after
--- store: redis
--- modules_after eval: $::other
--- config
    location / {
        idempotency  $TEST_STORE;
        proxy_pass   http://127.0.0.1:$TEST_NGINX_APP_PORT;
    }
--- client
replays();
