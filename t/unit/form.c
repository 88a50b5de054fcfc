
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_form.c src/canonical/ngx_http_idem_canon.c src/canonical/ngx_http_idem_canon_close.c ; libs: -lcrypto */

/*
 * A form as it counts: which pairs are the same, which are not, which bodies
 * are broken; random pairs by a rule of its own; limits; memory.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <time.h>

#include "canonical/ngx_http_idem_form.h"
#include "canon.h"


#define PAIRS       100000
#define FIELDS_MAX  10
#define MEGABYTE    (1024 * 1024)
#define MEMORY_MAX  16                /* times the limit on size          */


typedef struct {
    const char  *name;                /* as it is after the escapes       */
    const char  *group;               /* order is kept in it              */
    const char  *value;               /* NULL: no "="                     */
} field_t;


static pair_t  same[] = {
    { S("a=1&b=2"), S("b=2&a=1") },
    { S("a=%7E"), S("a=~") },
    { S("a=%7e"), S("a=%7E") },
    { S("a=x+y"), S("a=x%20y") },
    { S("a=x y"), S("a=x+y") },
    { S("a%5B%5D=1"), S("a[]=1") },
    { S("%61=1"), S("a=1") },
    { S("a==="), S("a=%3D%3D") },
    { S("a=\xc3\xa9"), S("a=%C3%a9") },
    { S("a=1&b=0&a=2"), S("b=0&a=1&a=2") },
    { S("a&b"), S("b&a") },
    { S("&a=1"), S("a=1&") },
    { S("first_name=x&first_date=y"), S("first_date=y&first_name=x") },
    { S("x[a]=1&y[a]=2"), S("y[a]=2&x[a]=1") }
};


static pair_t  different[] = {
    { S("a=1"), S("a=2") },
    { S("a=1"), S("b=1") },
    { S("a=1"), S("A=1") },
    { S("a=1&a=2"), S("a=2&a=1") },
    { S("a=1&a=2"), S("a=1") },
    { S("a=1&a=1"), S("a=1") },
    { S("a"), S("a=") },
    { S("a="), S("") },
    { S(""), S("&") },
    { S("&"), S("&&") },
    { S("="), S("") },
    { S("="), S("&") },
    { S("a=1&b=2"), S("a=1&&b=2") },
    { S("a=1&b=2"), S("a=1%26b=2") },
    { S("a=1&b=2"), S("a=1%26b%3D2") },
    { S("a=1"), S("a%3D1") },
    { S("a=b=c"), S("a%3Db=c") },
    { S("a=%2B"), S("a=+") },
    { S("a=%2525"), S("a=%25") },
    { S("a=%00"), S("a=") },
    { S("a=x%00y"), S("a=x%00z") },
    { S("a=bc"), S("ab=c") },
    { S("a=1;b=2"), S("a=1&b=2") },
    { S("a=1"), S("a=1\n") },
    { S("a=1"), S("a=01") },
    { S("a=%C3%A9"), S("a=e%CC%81") },

    /* the order counts where an application may see one name */

    { S("a[][x]=1&a[][y]=2&a[][x]=3"), S("a[][x]=1&a[][x]=3&a[][y]=2") },
    { S("a[]=1&a[5]=2&a[]=3"), S("a[5]=2&a[]=1&a[]=3") },
    { S("a.b=1&a_b=2"), S("a_b=2&a.b=1") },
    { S("a+b=1&a_b=2"), S("a_b=2&a+b=1") },
    { S("a[b=1&a_b=2"), S("a_b=2&a[b=1") },
    { S("+a=1&a=2"), S("a=2&+a=1") },
    { S("a%00x=1&a=2"), S("a=2&a%00x=1") },
    { S("a=1&A=2"), S("A=2&a=1") }
};


static pair_t  excluded_same[] = {
    { S("a=1&ts=1"), S("a=1&ts=2") },
    { S("a=1&ts=1"), S("a=1") },
    { S("ts&a=1&%74s=x&ts="), S("a=1") },
    { S("trace+id=1"), S("") }
};


static pair_t  excluded_different[] = {
    { S("a=ts"), S("a=tt") },
    { S("ts=1&a=1"), S("ts=1&a=2") },
    { S("Ts=1"), S("Ts=2") },
    { S("ts[]=1"), S("ts[]=2") },
    { S("xts=1"), S("xts=2") }
};


static const char  *declined[] = {
    "a=%", "a=%4", "a=%4&b=1", "a=%g1", "a=%1g", "%", "a=%%20", "a=%u0041",
    "a=1&%=2", "a=% 1", "a=%+1"
};


static ngx_str_t  excluded[] = {
    ngx_string("ts"), ngx_string("trace id")
};


static ngx_int_t
feed_form(void *reader, const u_char *p, size_t len)
{
    return ngx_http_idem_form_feed(reader, p, len);
}


static ngx_int_t
run(void *options, const void *text, size_t len, int piece, u_char *digest)
{
    ngx_int_t              rc, done_rc;
    ngx_http_idem_form_t  *f;

    f = ngx_http_idem_form_create(options);
    if (f == NULL) {
        return NGX_ERROR;
    }

    rc = feed(feed_form, f, text, len, piece);
    done_rc = ngx_http_idem_form_done(f, digest);

    if (rc != NGX_OK && done_rc != rc) {
        done_rc = NGX_ABORT;                       /* an answer must stay */
    }

    ngx_http_idem_form_destroy(f);

    return done_rc;
}


#define check_pairs(options, pairs, expected)                                 \
    for (i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {                  \
        ok(compare(run, options, &pairs[i]) == expected, #pairs ": %s, %s",   \
           pairs[i].one, pairs[i].two);                                       \
    }


static void
test_pairs(void)
{
    u_char                        digest[DIGEST_LEN];
    ngx_uint_t                    i;
    ngx_http_idem_form_options_t  options;

    ngx_memzero(&options, sizeof(options));
    options.size = MEGABYTE;

    check_pairs(&options, same, 1)
    check_pairs(&options, different, 0)

    for (i = 0; i < sizeof(declined) / sizeof(declined[0]); i++) {
        ok(run(&options, declined[i], strlen(declined[i]), 0, digest)
           == NGX_DECLINED
           && run(&options, declined[i], strlen(declined[i]), 1, digest)
              == NGX_DECLINED,
           "no form: %s", declined[i]);
    }

    options.excluded = excluded;
    options.nexcluded = 2;

    check_pairs(&options, excluded_same, 1)
    check_pairs(&options, excluded_different, 0)
}


static const field_t  kinds[] = {
    { "a", "a", "" }, { "b", "b", "" }, { "A", "a", "" }, { "a[]", "a", "" },
    { "ab", "ab", "" }, { "a b", "a_b", "" }, { "a.b", "a_b", "" },
    { "a=b", "a=b", "" }, { "ts", "ts", "" }, { "a&", "a&", "" },
    { "", "", "" }
};

static const char  *values[] = { NULL, "", "1", "2", "a b", "=&+%~", "12" };


static size_t
write_text(u_char *text, const field_t *fields, ngx_uint_t n)
{
    u_char      *p;
    ngx_uint_t   i, k;
    const char  *s, *plain;

    p = text;

    for (i = 0; i < n; i++) {

        if (i) {
            *p++ = '&';
        }

        for (k = 0; k < 2; k++) {

            s = k ? fields[i].value : fields[i].name;

            if (k && s) {
                *p++ = '=';
            }

            /* "=" is plain in a value, where it ends nothing */

            plain = k ? "ab12=~ []." : "abts[]. ";

            for ( /* void */ ; s && *s; s++) {

                if (*s == ' ' && unit_below(2)) {
                    *p++ = '+';

                } else if (strchr(plain, *s) && unit_below(3)) {
                    *p++ = (u_char) *s;

                } else {
                    p += sprintf((char *) p, unit_below(2) ? "%%%02x"
                                                           : "%%%02X", *s);
                }
            }
        }
    }

    return p - text;
}


static ngx_uint_t
equal_strings(const char *a, const char *b)
{
    return a ? (b && strcmp(a, b) == 0) : (b == NULL);
}


/* group by group, the fields are the same in the same order */

static ngx_uint_t
equal(const field_t *a, ngx_uint_t na, const field_t *b, ngx_uint_t nb)
{
    ngx_uint_t  g, i, k;

    for (g = 0; g < sizeof(kinds) / sizeof(kinds[0]); g++) {

        for (i = 0, k = 0; ; i++, k++) {

            while (i < na && strcmp(a[i].group, kinds[g].group) != 0) {
                i++;
            }

            while (k < nb && strcmp(b[k].group, kinds[g].group) != 0) {
                k++;
            }

            if (i == na || k == nb) {
                break;
            }

            if (!equal_strings(a[i].name, b[k].name)
                || !equal_strings(a[i].value, b[k].value))
            {
                return 0;
            }
        }

        if (i < na || k < nb) {
            return 0;
        }
    }

    return 1;
}


static void
test_random(void)
{
    u_char                        text[2][2048], one[DIGEST_LEN],
                                         two[DIGEST_LEN];
    size_t                        len[2];
    field_t                       a[FIELDS_MAX], b[FIELDS_MAX], t;
    ngx_uint_t                    i, k, n, na, nb, is_same, nsame,
                                         wrong;
    ngx_http_idem_form_options_t  options;

    ngx_memzero(&options, sizeof(options));
    options.size = MEGABYTE;

    nsame = 0;
    wrong = 0;

    for (i = 0; i < PAIRS; i++) {

        na = 1 + unit_below(FIELDS_MAX);
        nb = na;

        for (k = 0; k < na; k++) {

            a[k] = kinds[unit_below(sizeof(kinds) / sizeof(kinds[0]))];
            a[k].value = values[unit_below(7)];

            if (a[k].name[0] == '\0' && a[k].value == NULL) {
                a[k].value = "";              /* nothing has its own test */
            }

            b[k] = a[k];
        }

        for (k = unit_below(4); k; k--) {
            n = unit_below(na);
            t = b[n];
            b[n] = b[0];
            b[0] = t;
        }

        switch (unit_below(6)) {

        case 0:
            b[unit_below(nb)].value = values[1 + unit_below(6)];
            break;

        case 1:
            t = kinds[unit_below(10)];
            t.value = b[0].value;
            b[0] = t;
            break;

        case 2:
            if (nb > 1) {
                nb--;
            }

            break;
        }

        len[0] = write_text(text[0], a, na);
        len[1] = write_text(text[1], b, nb);

        is_same = equal(a, na, b, nb);
        nsame += is_same;

        if (run(&options, text[0], len[0], -1, one) != NGX_OK
            || run(&options, text[1], len[1], -1, two) != NGX_OK
            || is_same != (memcmp(one, two, DIGEST_LEN) == 0))
        {
            if (wrong++ < 3) {
                printf("# %s\n", is_same ? "the same" : "different");
                unit_dump("one: ", text[0], len[0]);
                unit_dump("two: ", text[1], len[1]);
            }
        }
    }

    ok(wrong == 0, "%d pairs, %lu the same", PAIRS, (unsigned long) nsame);
    ok(nsame > PAIRS / 4 && nsame < PAIRS * 3 / 4, "a fair part of either");
}


static void
test_large(const char *again, int piece)
{
    u_char                       *text, digest[DIGEST_LEN];
    size_t                        i, n;
    clock_t                       start;
    ngx_int_t                     rc;
    ngx_http_idem_form_options_t  options;

    ngx_memzero(&options, sizeof(options));
    options.size = MEGABYTE;

    n = strlen(again);
    text = malloc(MEGABYTE + 1);

    for (i = 0; i <= MEGABYTE; i++) {
        text[i] = (u_char) again[i % n];
    }

    memory.peak = 0;
    start = clock();
    rc = run(&options, text, MEGABYTE / n * n, piece, digest);

    ok(rc == NGX_OK && memory.peak < MEMORY_MAX * MEGABYTE,
       "1 MB of %s in pieces of %d", again, piece);
    printf("# %.1f MB of memory, %.0f ms\n",
           (double) memory.peak / MEGABYTE,
           (double) (clock() - start) * 1e3 / CLOCKS_PER_SEC);

    if (piece) {
        is(run(&options, text, MEGABYTE + 1, piece, digest), NGX_DECLINED,
           "a byte over the limit");
    }

    free(text);
}


static void
test_memory(void)
{
    long                          n;
    char                          text[8192], *p;
    u_char                        digest[DIGEST_LEN];
    ngx_int_t                     rc;
    ngx_uint_t                    i, bad;
    ngx_http_idem_form_options_t  options;

    ngx_memzero(&options, sizeof(options));
    options.size = MEGABYTE;

    p = text;

    for (i = 0; i < 200; i++) {
        p += sprintf(p, "&name%lu=%lu", (unsigned long) i, (unsigned long) i);
    }

    p += sprintf(p, "&%02000d=%02000d", 0, 0);

    for (bad = 0, n = 0; ; n++) {
        memory.left = n;
        rc = run(&options, text, p - text, 700, digest);

        if (rc == NGX_OK) {
            break;
        }

        bad += (rc != NGX_ERROR || memory.blocks != 0);
    }

    memory.left = -1;

    ok(bad == 0 && n > 5, "each of %ld allocations failed once, cleanly", n);
}


int
main(void)
{
    plan((int) (sizeof(same) / sizeof(same[0])
                + sizeof(different) / sizeof(different[0])
                + sizeof(declined) / sizeof(declined[0])
                + sizeof(excluded_same) / sizeof(excluded_same[0])
                + sizeof(excluded_different) / sizeof(excluded_different[0])
                + 2 + 12 + 1 + 1));
    unit_seed();

    test_pairs();
    test_random();
    test_large("&", 0);
    test_large("a&", 0);
    test_large("a=&", 1000);
    test_large("=&", 0);
    test_large("[", 0);
    test_large("%5b", 1);
    test_large("a=1", 1);
    test_large(".[]", 1000);
    test_memory();

    ok(memory.blocks == 0, "all memory was given back");


    return done();
}
