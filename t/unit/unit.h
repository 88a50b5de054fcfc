
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What the unit tests share: TAP output, memory of an exact size, so that
 * the address sanitizer sees a read one byte too far, and random numbers
 * that are the same in each run.
 *
 * A test prints plan(n), then n lines through ok() and its kin, and returns
 * done() from main().  A check that is made many times counts its failures
 * and ends in one ok().
 */


#ifndef _UNIT_H_INCLUDED_
#define _UNIT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define UNIT_SEED  0x1de3907e5eedULL


static int       unit_planned;
static int       unit_run;
static int       unit_failed;
static uint64_t  unit_state;


static ngx_inline void
plan(int n)
{
    unit_planned = n;

    printf("1..%d\n", n);
}


static ngx_inline ngx_uint_t
ok(ngx_uint_t passed, const char *fmt, ...)
{
    va_list  args;

    if (!passed) {
        unit_failed++;
    }

    printf("%s %d - ", passed ? "ok" : "not ok", ++unit_run);

    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);

    printf("\n");
    fflush(stdout);

    return passed;
}


static ngx_inline ngx_uint_t
is(long long got, long long expected, const char *name)
{
    if (ok(got == expected, "%s", name)) {
        return 1;
    }

    printf("#      got: %lld\n# expected: %lld\n", got, expected);

    return 0;
}


static ngx_inline void
unit_dump(const char *what, const u_char *p, size_t len)
{
    size_t  i;

    printf("# %s", what);

    for (i = 0; i < len && i < 400; i++) {
        if (p[i] >= 0x20 && p[i] <= 0x7e && p[i] != '\\') {
            printf("%c", p[i]);

        } else {
            printf("\\x%02x", p[i]);
        }
    }

    printf("%s\n", (i < len) ? "..." : "");
}


static ngx_inline ngx_uint_t
unit_equal(const u_char *got, size_t got_len, const u_char *expected,
    size_t expected_len)
{
    return got_len == expected_len
           && (got_len == 0 || memcmp(got, expected, got_len) == 0);
}


static ngx_inline ngx_uint_t
is_bytes(const u_char *got, size_t got_len, const u_char *expected,
    size_t expected_len, const char *name)
{
    if (ok(unit_equal(got, got_len, expected, expected_len), "%s", name)) {
        return 1;
    }

    unit_dump("     got: ", got, got_len);
    unit_dump("expected: ", expected, expected_len);

    return 0;
}


static ngx_inline int
done(void)
{
    if (unit_run != unit_planned) {
        printf("# planned %d tests but ran %d\n", unit_planned, unit_run);
        return 1;
    }

    if (unit_failed) {
        printf("# failed %d of %d tests\n", unit_failed, unit_run);
        return 1;
    }

    return 0;
}


/*
 * A copy that ends where the allocation does.  malloc(0) may be read one byte
 * far without a complaint, so nothing is the end of something.
 */

static ngx_inline u_char *
exact(const void *data, size_t len)
{
    u_char  *p;

    p = malloc(len ? len : 1);
    if (p == NULL) {
        abort();
    }

    if (len == 0) {
        return p + 1;
    }

    if (data) {
        memcpy(p, data, len);
    }

    return p;
}


static ngx_inline void
exact_free(u_char *p, size_t len)
{
    free(len ? p : p - 1);
}


/* xorshift64*; UNIT_SEED in the environment gives another run */

static ngx_inline void
unit_seed(void)
{
    char  *env;

    env = getenv("UNIT_SEED");

    unit_state = env ? strtoull(env, NULL, 0) : UNIT_SEED;

    if (unit_state == 0) {
        unit_state = 1;
    }

    printf("# seed 0x%llx\n", (unsigned long long) unit_state);
}


static ngx_inline uint64_t
unit_random(void)
{
    unit_state ^= unit_state >> 12;
    unit_state ^= unit_state << 25;
    unit_state ^= unit_state >> 27;

    return unit_state * 0x2545f4914f6cdd1dULL;
}


static ngx_inline size_t
unit_below(size_t n)
{
    return (size_t) ((unit_random() >> 16) % n);
}


#endif /* _UNIT_H_INCLUDED_ */
