
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_json.c src/canonical/ngx_http_idem_json_walk.c src/canonical/ngx_http_idem_json_pointer.c src/canonical/ngx_http_idem_json_members.c src/canonical/ngx_http_idem_json_@json@.c src/canonical/ngx_http_idem_json_paths.c src/canonical/ngx_http_idem_json_diff.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -l@json@ -lcrypto */

/*
 * Large and deep bodies: each is answered, in memory and time that grow with
 * the limits only, whatever the body and however it is cut into pieces.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <time.h>

#include "json.h"
#include "canonical/ngx_http_idem_json_parser.h"


#define MEGABYTE     (1024 * 1024)
#define MEMORY_MAX   8               /* times the limit on size           */
#define SECONDS_MAX  20.0            /* sanitized, on a slow machine      */


typedef struct {
    const char  *first;
    const char  *again;
    const char  *last;
    const char  *name;
} shape_t;


/* a document of nearly a megabyte: "first", "again" many times, "last" */

static shape_t  shapes[] = {
    { "[", "1,", "1]", "numbers" },
    { "[", "\"\",", "1]", "empty strings" },
    { "[", "[],", "1]", "empty arrays" },
    { "[", "[1],", "1]", "arrays of one" },
    { "[", "{},", "1]", "empty objects" },
    { "[", "{\"\":1},", "1]", "objects of one" },
    { "{", "\"\":1,", "\"\":1}", "members of one name" },
    { "[", "[[[[[[[[[]]]]]]]]],", "1]", "nested arrays" },
    { "\"", "x", "\"", "a long string" },
    { "\"", "\\n", "\"", "a long string of escapes" },
    { "\"", "\\ud83d\\ude00", "\"", "a long string of surrogates" },
    { "{\"", "x", "\":1}", "a long name" },
    { "{\"k\":\"", "\\u0000", "\"}", "a long member that is wanted" },
    { "", "1", "", "a long number" },
    { "", " ", "1", "white space" },
    { "[\"", "\xf0\x9f\x98\x80", "\"]", "characters of four bytes" }
};


/* of the processor: a busy machine makes it no slower */

static double
seconds(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);

    return (double) ts.tv_sec + (double) ts.tv_nsec / 1e9;
}


static u_char *
shape_text(const shape_t *shape, size_t size, size_t *len)
{
    u_char  *p, *text;
    size_t   n;

    text = malloc(size);
    n = strlen(shape->again);

    p = ngx_cpymem(text, shape->first, strlen(shape->first));

    while ((size_t) (p - text) + n + strlen(shape->last) <= size) {
        p = ngx_cpymem(p, shape->again, n);
    }

    p = ngx_cpymem(p, shape->last, strlen(shape->last));
    *len = p - text;

    return text;
}


static void
test_shapes(void)
{
    u_char                       *text, one[DIGEST_LEN],
                                         two[DIGEST_LEN];
    size_t                        len, peak;
    double                        start, time, time_bytes;
    ngx_int_t                     rc;
    ngx_uint_t                    i;
    ngx_http_idem_json_options_t  options;

    static ngx_str_t  wanted[] = { ngx_string("k") };

    options_init(&options);
    options.unordered = 1;
    options.detail = NGX_HTTP_IDEM_JSON_DETAIL_VALUES;
    options.wanted = wanted;
    options.nwanted = 1;

    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {

        text = shape_text(&shapes[i], MEGABYTE, &len);

        start = seconds();
        rc = run(&options, text, len, 0, one);
        time = seconds() - start;

        memory.peak = 0;
        start = seconds();
        rc |= run(&options, text, len, 1, two);
        time_bytes = seconds() - start;
        peak = memory.peak;

        ok(rc == NGX_OK && memcmp(one, two, DIGEST_LEN) == 0
           && peak < MEMORY_MAX * MEGABYTE
           && time_bytes < SECONDS_MAX,
           "1 MB of %s", shapes[i].name);

        printf("# %.1f MB of memory, %.0f ms, in pieces of a byte %.0f ms\n",
               (double) peak / MEGABYTE, time * 1e3, time_bytes * 1e3);

        free(text);
    }
}


static u_char *
members_text(ngx_uint_t n, ngx_uint_t reverse, size_t *len)
{
    u_char      *p, *text;
    ngx_uint_t   i;

    text = malloc(n * 16);
    p = text;
    *p++ = '{';

    for (i = 0; i < n; i++) {
        p += sprintf((char *) p, "\"%06lu\":%lu,",
                     (unsigned long) (reverse ? n - i : i + 1),
                     (unsigned long) (reverse ? n - i : i + 1) % 10);
    }

    p[-1] = '}';
    *len = p - text;

    return text;
}


static void
test_members(void)
{
    u_char                       *text, one[DIGEST_LEN],
                                         two[DIGEST_LEN];
    size_t                        len;
    ngx_int_t                     rc;
    ngx_http_idem_json_options_t  options;

    options_init(&options);

    text = members_text(90000, 0, &len);
    rc = run(&options, text, len, 0, one);
    free(text);

    text = members_text(90000, 1, &len);
    rc |= run(&options, text, len, 16384, two);
    free(text);

    ok(rc == NGX_OK && memcmp(one, two, DIGEST_LEN) == 0,
       "90,000 members forwards and backwards");
}


static void
test_size(void)
{
    u_char                       *text, digest[DIGEST_LEN];
    int                           piece;
    ngx_uint_t                    bad;
    ngx_http_idem_json_options_t  options;

    options_init(&options);

    text = malloc(MEGABYTE + 1);
    memset(text, ' ', MEGABYTE + 1);
    text[0] = '1';

    for (bad = 0, piece = 0; piece < 100000; piece += 9999) {
        bad += (run(&options, text, MEGABYTE, piece, digest) != NGX_OK);
        bad += (run(&options, text, MEGABYTE + 1, piece, digest)
                != NGX_DECLINED);
    }

    ok(bad == 0, "a body as long as the limit, and one byte longer");

    free(text);
}


static void
test_depth(void)
{
    u_char                       *text, digest[DIGEST_LEN];
    size_t                        i, n;
    ngx_http_idem_json_options_t  options;

    options_init(&options);

    text = malloc(600000);

    for (n = 128; n < 130; n++) {
        memset(text, '[', n);
        memset(text + n, ']', n);

        is(run(&options, text, 2 * n, -1, digest),
           (n == 128) ? NGX_OK : NGX_DECLINED,
           (n == 128) ? "depth 128" : "depth 129");
    }

    memset(text, '[', 100000);
    memory.peak = 0;

    is(run(&options, text, 100000, 0, digest), NGX_DECLINED,
       "100,000 open brackets");
    is(run(&options, text, 100000, 1, digest), NGX_DECLINED,
       "100,000 open brackets, one by one");

    for (i = 0; i < 100000; i++) {
        ngx_memcpy(text + 5 * i, "{\"a\":", 5);
    }

    is(run(&options, text, 500000, 1000, digest), NGX_DECLINED,
       "100,000 open objects");

    /*
     * Nothing grows with the depth.  The text is collected first: the buffer
     * doubles, up to twice the text, and while it grows there is the one
     * before, up to the text.
     */

    ok(memory.peak < 32768 + 3 * 500000,
       "they take %zu bytes of memory", memory.peak);

    options.depth = 100000;
    memset(text, '[', 100000);
    memset(text + 100000, ']', 100000);

    is(run(&options, text, 200000, -1, digest), NGX_OK,
       "depth 100,000, if the limit allows: there is no recursion");

    free(text);
}


int
main(void)
{
    plan(sizeof(shapes) / sizeof(shapes[0]) + 1 + 1 + 7 + 1);
    unit_seed();

    test_shapes();
    test_members();
    test_size();
    test_depth();

    ok(memory.blocks == 0, "all memory was given back");


    return done();
}
