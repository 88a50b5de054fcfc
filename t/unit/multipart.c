
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/canonical/ngx_http_idem_multipart.c ; libs: */

/*
 * A multipart body without its boundary: the same output whatever the
 * boundary and however the body is cut into pieces, another output for any
 * other body.  Held against a naive version that has the whole body at once,
 * and against the inverse, which makes the body from the output.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_multipart.h"
#include "unit.h"


#define OUTPUT_MAX     65536
#define RANDOM_BODIES  20000

#define S(s)  s, sizeof(s) - 1


typedef struct {
    u_char  data[OUTPUT_MAX];
    size_t  len;
} output_t;


/* "boundary" is NULL for a type that has to be declined */

typedef struct {
    const char  *type;
    size_t       len;
    const char  *boundary;
    const char  *name;
} vector_t;


#define B70  "01234567890123456789012345678901234"                            \
             "56789012345678901234567890123456789"


static vector_t  types[] = {

    { S("multipart/form-data; boundary=abc"), "abc", "unquoted" },
    { S("multipart/form-data; boundary=\"abc\""), "abc", "quoted" },
    { S("multipart/form-data;boundary=abc"), "abc", "no space" },
    { S("multipart/form-data \t;\t boundary=abc \t"), "abc", "white space" },
    { S(" multipart/mixed;boundary=abc"), "abc", "white space first" },
    { S("MultiPart/Form-Data; BOUNDARY=AbC"), "AbC", "case" },
    { S("multipart/form-data; charset=utf-8; boundary=abc"), "abc",
      "another parameter first" },
    { S("multipart/form-data; boundary=abc; charset=utf-8"), "abc",
      "another parameter last" },
    { S("multipart/form-data; boundary=abc;"), "abc", "semicolon last" },
    { S("multipart/form-data;; ;boundary=abc;;"), "abc", "semicolons" },
    { S("multipart/related; start=\"a;boundary=no\"; boundary=abc"), "abc",
      "boundary= in a quoted value" },
    { S("multipart/related; start=\"\\\";boundary=no\"; boundary=abc"),
      "abc", "boundary= behind an escaped quote" },
    { S("multipart/form-data; x=; boundary=abc"), "abc",
      "another parameter without a value" },
    { S("multipart/form-data; xboundary=no; boundary=abc"), "abc",
      "a name that ends in boundary" },
    { S("multipart/form-data; boundary=----=_Part_1/2:3?(4),5'+."),
      "----=_Part_1/2:3?(4),5'+.", "unquoted, as clients do" },
    { S("multipart/form-data; boundary=\"a b;c\""), NULL,
      "quoted with a semicolon" },
    { S("multipart/form-data; boundary=\"a b\""), "a b",
      "quoted with a space" },
    { S("multipart/form-data; boundary=a"), "a", "one character" },
    { S("multipart/form-data; boundary=" B70), B70, "70 characters" },

    { S("multipart/form-data; boundary=" B70 "x"), NULL, "71 characters" },
    { S("multipart/form-data; boundary=\"" B70 "x\""), NULL,
      "71 characters, quoted" },
    { S(""), NULL, "nothing" },
    { S("multipart"), NULL, "no slash" },
    { S("multipart/"), NULL, "no subtype" },
    { S("multipart/;boundary=abc"), NULL, "no subtype but a boundary" },
    { S("multipart/form-data"), NULL, "no parameter" },
    { S("multipart/form-data;"), NULL, "semicolon and no parameter" },
    { S("multipart/form-data; charset=utf-8"), NULL, "no boundary" },
    { S("multipart/form-data; boundary"), NULL, "no value" },
    { S("multipart/form-data; boundary="), NULL, "empty" },
    { S("multipart/form-data; boundary=; x=y"), NULL, "empty, not last" },
    { S("multipart/form-data; boundary=\"\""), NULL, "empty, quoted" },
    { S("multipart/form-data; boundary=\"abc"), NULL, "not closed" },
    { S("multipart/form-data; boundary=\"abc\\\""), NULL, "quote escaped" },
    { S("multipart/form-data; boundary=\"abc\\"), NULL, "ends in an escape" },
    { S("multipart/form-data; boundary=\"a\\bc\""), NULL, "escape" },
    { S("multipart/form-data; boundary=\"abc\"d"), NULL, "behind quotes" },
    { S("multipart/form-data; boundary=\"abc \""), NULL, "ends in a space" },
    { S("multipart/form-data; boundary = abc"), NULL, "spaces around =" },
    { S("multipart/form-data; boundary= abc"), NULL, "space behind =" },
    { S("multipart/form-data; boundary=abc def"), NULL, "unquoted space" },
    { S("multipart/form-data; boundary=a, text/plain"), NULL, "a list" },
    { S("multipart/form-data; boundary=abc; boundary=def"), NULL, "twice" },
    { S("multipart/form-data; boundary=abc; Boundary=abc"), NULL,
      "twice the same" },
    { S("multipart/form-data boundary=abc"), NULL, "no semicolon" },
    { S("multipart/form-data; boundary=a@b"), NULL, "at sign" },
    { S("multipart/form-data; boundary=a\"b"), NULL, "quote within" },
    { S("multipart/form-data; boundary=a\rb"), NULL, "CR" },
    { S("multipart/form-data; boundary=\"a\r\nb\""), NULL, "CRLF, quoted" },
    { S("multipart/form-data; boundary=a\0b"), NULL, "NUL" },
    { S("multipart/form-data; boundary=a\xc3\xbc"), NULL, "UTF-8" },
    { S("application/json; boundary=abc"), NULL, "another type" },
    { S("xmultipart/form-data; boundary=abc"), NULL, "type of another name" },
    { S("text/plain"), NULL, "plain text" }
};


static void
collect(void *data, const u_char *p, size_t len)
{
    output_t  *out = data;

    if (out->len + len > OUTPUT_MAX) {
        abort();
    }

    memcpy(out->data + out->len, p, len);
    out->len += len;
}


static void
put_length(output_t *out, uint64_t n)
{
    int     i;
    u_char  c;

    for (i = 7; i >= 0; i--) {
        c = (u_char) (n >> (8 * i) & 0xff);
        collect(out, &c, 1);
    }
}


/* the whole body at once, by the words of the header alone */

static void
naive(output_t *out, const u_char *body, size_t len, const char *boundary)
{
    char           delimiter[128];
    size_t         i, n, start;
    static u_char  all[OUTPUT_MAX];

    n = sprintf(delimiter, "\r\n--%s", boundary);

    memcpy(all, "\r\n", 2);
    memcpy(all + 2, body, len);
    len += 2;

    out->len = 0;
    start = 0;
    i = 0;

    while (i < len) {
        if (len - i >= n && memcmp(all + i, delimiter, n) == 0) {
            collect(out, all + start, i - start);
            put_length(out, i - start);
            i += n;
            start = i;

        } else {
            i++;
        }
    }

    collect(out, all + start, len - start);
    put_length(out, len - start);
}


/*
 * The body that the output was made of: segments are read from the end.
 * That there is such a function is what makes the output fit for a digest.
 */

static ngx_uint_t
inverse(const output_t *out, const char *boundary, const u_char *body,
    size_t len)
{
    int             i;
    size_t          pos;
    uint64_t        n;
    ngx_uint_t      first;
    static u_char   made[OUTPUT_MAX];
    u_char         *p;

    p = made + OUTPUT_MAX;
    pos = out->len;
    first = 1;

    while (pos) {
        if (pos < 8) {
            return 0;
        }

        n = 0;
        pos -= 8;

        for (i = 0; i < 8; i++) {
            n = n << 8 | out->data[pos + i];
        }

        if (n > pos) {
            return 0;
        }

        if (!first) {
            p -= strlen(boundary);
            memcpy(p, boundary, strlen(boundary));
            p -= 4;
            memcpy(p, "\r\n--", 4);
        }

        first = 0;
        pos -= n;
        p -= n;
        memcpy(p, out->data + pos, n);
    }

    return made + OUTPUT_MAX - p >= 2
           && p[0] == '\r' && p[1] == '\n'
           && unit_equal(p + 2, made + OUTPUT_MAX - p - 2, body, len);
}


/*
 * Feeds the body in pieces: bit i of "cuts" cuts behind byte i, or, with no
 * cuts given, each piece is of a random length up to "piece".
 */

static void
run(output_t *out, const u_char *body, size_t len, const char *boundary,
    uint64_t cuts, size_t piece)
{
    size_t                      i, n;
    u_char                     *p;
    ngx_str_t                   b;
    ngx_http_idem_multipart_t   m;

    out->len = 0;

    b.len = strlen(boundary);
    b.data = exact(boundary, b.len);

    memset(&m, 0xaa, sizeof(m));

    ngx_http_idem_multipart_init(&m, &b, collect, out);

    exact_free(b.data, b.len);

    for (i = 0; i < len; i += n) {

        if (piece) {
            n = unit_below(piece + 1);
            n = ngx_min(n, len - i);

        } else {
            for (n = 1; i + n < len; n++) {
                if (i + n <= 64 && cuts >> (i + n - 1) & 1) {
                    break;
                }
            }
        }

        p = exact(body + i, n);
        ngx_http_idem_multipart_feed(&m, p, n);
        exact_free(p, n);
    }

    ngx_http_idem_multipart_done(&m);
}


static ngx_uint_t
same(const output_t *a, const output_t *b)
{
    return unit_equal(a->data, a->len, b->data, b->len);
}


static output_t  out1, out2;


static void
test_types(void)
{
    size_t      i;
    ngx_int_t   rc;
    ngx_str_t   type, boundary;
    ngx_uint_t  passed;
    vector_t   *v;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        v = &types[i];

        type.len = v->len;
        type.data = exact(v->type, v->len);

        rc = ngx_http_idem_multipart_boundary(&type, &boundary);

        if (v->boundary) {
            passed = (rc == NGX_OK
                      && unit_equal(boundary.data, boundary.len,
                                    (u_char *) v->boundary,
                                    strlen(v->boundary)));

        } else {
            passed = (rc == NGX_DECLINED);
        }

        ok(passed, "%s: %s", v->boundary ? "boundary" : "declined", v->name);

        exact_free(type.data, type.len);
    }
}


/* what RFC 2046 has in a boundary, and nothing else */

static void
test_boundary_bytes(void)
{
    char        type[64];
    size_t      len;
    ngx_int_t   rc;
    ngx_str_t   t, boundary;
    ngx_uint_t  c, valid, failed;

    failed = 0;

    for (c = 0; c < 256; c++) {
        len = sprintf(type, "multipart/x; boundary=\"a_a\"");
        type[len - 3] = (char) c;

        t.len = len;
        t.data = exact(type, len);

        valid = c && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
                            "abcdefghijklmnopqrstuvwxyz'()+_,-./:=?", (int) c)
                     != NULL;

        rc = ngx_http_idem_multipart_boundary(&t, &boundary);

        failed += (rc != (valid ? NGX_OK : NGX_DECLINED));

        exact_free(t.data, len);
    }

    is(failed, 0, "each byte in a boundary");
}


static void
test_fixed_outputs(void)
{
    run(&out1, (u_char *) "", 0, "b", 0, 0);
    is_bytes(out1.data, out1.len,
             (u_char *) S("\r\n" "\0\0\0\0\0\0\0\x02"),
             "empty body: the CRLF before it");

    run(&out1, (u_char *) S("hello"), "b", 0, 0);
    is_bytes(out1.data, out1.len,
             (u_char *) S("\r\nhello" "\0\0\0\0\0\0\0\x07"),
             "no delimiter: one segment");

    run(&out1, (u_char *) S("--b\r\nx\r\n--b--\r\n"), "b", 0, 0);
    is_bytes(out1.data, out1.len,
             (u_char *) S("\0\0\0\0\0\0\0\0"
                          "\r\nx" "\0\0\0\0\0\0\0\x03"
                          "--\r\n" "\0\0\0\0\0\0\0\x04"),
             "segments, each with its length behind it");

    run(&out1, (u_char *) S("x--b\r\n--"), "b", 0, 0);
    is_bytes(out1.data, out1.len,
             (u_char *) S("\r\nx--b\r\n--" "\0\0\0\0\0\0\0\x0a"),
             "a delimiter begins a line, and is whole");

    run(&out1, (u_char *) S("a\r\r\n--b\r\n-\r\n--b"), "b", 0, 0);
    is_bytes(out1.data, out1.len,
             (u_char *) S("\r\na\r" "\0\0\0\0\0\0\0\x04"
                          "\r\n-" "\0\0\0\0\0\0\0\x03"
                          "\0\0\0\0\0\0\0\0"),
             "a match that breaks off at the CR of the next");
}


static void
test_every_chunking(void)
{
    size_t                i, len;
    uint64_t              cuts;
    ngx_uint_t            failed;
    const char           *b;
    const u_char         *body;

    static const char    *bodies[] = {
        "ab", "--ab\r\r\n--ab\r\n",
        "ab", "\r\n--a\r\n--abx\r",
        "--a--a", "----a--a\r\n----a-",
        "--a--a", "\r\n----a--a--a--a",
        "-", "---\r\n---\r\n--\r\n"
    };

    for (i = 0; i < sizeof(bodies) / sizeof(char *); i += 2) {
        b = bodies[i];
        body = (u_char *) bodies[i + 1];
        len = strlen(bodies[i + 1]);

        naive(&out1, body, len, b);
        failed = 0;

        for (cuts = 0; cuts < (uint64_t) 1 << (len - 1); cuts++) {
            run(&out2, body, len, b, cuts, 0);
            failed += !same(&out1, &out2);
        }

        ok(failed == 0, "%d ways to cut body %d with boundary \"%s\"",
           1 << (len - 1), (int) i / 2 + 1, b);
    }
}


/* a body as browsers send it; %s is the boundary */

static const char  form[] =
    "--%s\r\n"
    "Content-Disposition: form-data; name=\"amount\"\r\n\r\n"
    "100\r\n"
    "--%s\r\n"
    "Content-Disposition: form-data; name=\"f\"; filename=\"a.bin\"\r\n"
    "Content-Type: application/octet-stream\r\n\r\n"
    "\r\n--\r\n\r\r\n--other\r\n"
    "--%s--\r\n";


static void
test_form(void)
{
    char        body[1024], other[1024];
    size_t      len, i, n;
    ngx_uint_t  c, failed;

    len = sprintf(body, form, "----WebKitFormBoundaryA",
                  "----WebKitFormBoundaryA", "----WebKitFormBoundaryA");
    naive(&out1, (u_char *) body, len, "----WebKitFormBoundaryA");

    failed = 0;

    for (i = 1; i <= len; i++) {
        for (n = 0; n < 4; n++) {
            run(&out2, (u_char *) body, len, "----WebKitFormBoundaryA", 0, i);
            failed += !same(&out1, &out2);
        }
    }

    is(failed, 0, "a form, in pieces of all sizes");

    n = sprintf(other, form, "x", "x", "x");
    run(&out2, (u_char *) other, n, "x", 0, 3);
    ok(same(&out1, &out2), "another boundary, the same output");

    n = sprintf(other, form, "x", "x", "x");
    run(&out2, (u_char *) other, n, "y", 0, 3);
    ok(!same(&out1, &out2), "not the body's boundary, another output");

    failed = 0;

    for (i = 0; i < len; i++) {
        for (c = 1; c < 256; c++) {
            body[i] ^= c;
            run(&out2, (u_char *) body, len, "----WebKitFormBoundaryA", 0, 0);
            failed += same(&out1, &out2);
            body[i] ^= c;
        }
    }

    is(failed, 0, "any byte changed to any other: another output");

    failed = 0;

    for (i = 0; i < len; i++) {
        run(&out2, (u_char *) body, i, "----WebKitFormBoundaryA", 0, 0);
        failed += same(&out1, &out2);

        memcpy(other, body, i);
        memcpy(other + i, body + i + 1, len - i - 1);
        run(&out2, (u_char *) other, len - 1, "----WebKitFormBoundaryA", 0,
            0);
        failed += same(&out1, &out2);
    }

    is(failed, 0, "cut short, or a byte less: another output");

    len = sprintf(body, "--a\r\n--b\r\n--a--");
    run(&out1, (u_char *) body, len, "a", 0, 0);
    run(&out2, (u_char *) body, len, "b", 0, 0);
    ok(!same(&out1, &out2), "the content of one is the boundary of another");
}


/* all bodies of the bytes that matter, up to a length */

static void
test_all_short_bodies(void)
{
    u_char      body[8];
    size_t      len, i, n, all;
    ngx_uint_t  differs, lost;

    differs = 0;
    lost = 0;
    all = 0;

    for (len = 0; len <= 8; len++) {
        for (n = 0; n < (size_t) 1 << (2 * len); n++) {

            for (i = 0; i < len; i++) {
                body[i] = "\r\n-a"[n >> (2 * i) & 3];
            }

            naive(&out1, body, len, "a");
            run(&out2, body, len, "a", n, 0);

            differs += !same(&out1, &out2);
            lost += !inverse(&out2, "a", body, len);
            all++;
        }
    }

    ok(differs == 0, "%d short bodies: as the naive version", (int) all);
    ok(lost == 0, "%d short bodies: can be made from the output", (int) all);
}


static void
test_random(void)
{
    int                 n;
    size_t              len, i;
    u_char              body[4096], swapped[4096];
    size_t              swapped_len;
    ngx_uint_t          differs, lost, compared, moved;
    const char         *b, *with;

    static const char  *boundaries[] = {
        "a", "-", "--", "--a--a", "a--a--a", "-a-a-a-b", "aaaa", "aaab", B70
    };

    differs = 0;
    lost = 0;
    compared = 0;
    moved = 0;

    for (n = 0; n < RANDOM_BODIES; n++) {
        b = boundaries[unit_below(sizeof(boundaries) / sizeof(char *))];
        len = 0;
        swapped_len = 0;
        with = "0123";     /* not in any body, nor does it make a delimiter */

        for (i = unit_below(40); i; i--) {

            if (unit_below(4) == 0) {
                if (len) {
                    memcpy(body + len, "\r\n", 2);
                    memcpy(swapped + swapped_len, "\r\n", 2);
                    len += 2;
                    swapped_len += 2;
                }

                len += sprintf((char *) body + len, "--%s", b);
                swapped_len += sprintf((char *) swapped + swapped_len,
                                       "--%s", with);

            } else {
                body[len] = "\r\n-ab"[unit_below(5)];
                swapped[swapped_len++] = body[len++];
            }
        }

        naive(&out1, body, len, b);
        run(&out2, body, len, b, 0, 1 + unit_below(12));

        differs += !same(&out1, &out2);
        lost += !inverse(&out2, b, body, len);

        /*
         * the bytes in between may have made a delimiter of their own, which
         * then was not swapped: compare if the lengths agree
         */

        naive(&out1, swapped, swapped_len, with);

        if (out1.len == out2.len) {
            run(&out1, swapped, swapped_len, with, 0, 1 + unit_below(12));
            moved += !same(&out1, &out2);
            compared++;
        }
    }

    ok(differs == 0, "%d random bodies: as the naive version", n);
    ok(lost == 0, "%d random bodies: can be made from the output", n);
    ok(moved == 0 && compared > RANDOM_BODIES / 2,
       "%d random bodies: another boundary, same output", (int) compared);
}


static void
test_long_boundary(void)
{
    char  boundary[200];

    /* not what the header allows, yet no reason to write out of bounds */

    memset(boundary, 'x', sizeof(boundary));
    boundary[199] = '\0';

    run(&out1, (u_char *) S("hello"), boundary, 0, 0);
    is(out1.len, 15, "a boundary that was not checked is cut");
}


int
main(void)
{
    plan((int) (sizeof(types) / sizeof(types[0]) + 1 + 5 + 5 + 6 + 2 + 3
                + 1));

    unit_seed();

    test_types();
    test_boundary_bytes();
    test_fixed_outputs();
    test_every_chunking();
    test_form();
    test_all_short_bodies();
    test_random();
    test_long_boundary();

    return done();
}
