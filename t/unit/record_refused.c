
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/record/ngx_http_idem_record.c src/record/ngx_http_idem_sum.c ; libs: -lz */

/*
 * The stored form: what was cut, flipped, forged or made up is refused, without
 * a read outside of it.
 */


#include "record.h"


#define RANDOM_STRINGS  1000000
#define RANDOM_MUTANTS  300000


static void
test_damage(void)
{
    size_t                     len, i;
    u_char                    *p, *longer;
    ngx_uint_t                 failed;
    ngx_http_idem_response_t   r;

    sample(&r);
    p = encode(&r, sample_body, &len);

    failed = 0;

    for (i = 0; i < len; i++) {
        failed += !refused(p, i, 0, NULL);
        failed += !refused(p, i, 1, NULL);
    }

    is(failed, 0, "each truncation is refused");

    longer = exact(NULL, len + 1);
    memcpy(longer, p, len);
    longer[len] = 0;
    ok(refused(longer, len + 1, 0, "wrong length"), "one byte more");
    exact_free(longer, len + 1);

    failed = 0;

    for (i = 0; i < len * 8; i++) {
        p[i / 8] ^= 1 << i % 8;
        failed += !refused(p, len, 1, NULL);
        p[i / 8] ^= 1 << i % 8;
    }

    is(failed, 0, "each flipped bit is refused");
    ok(accepted(p, len), "... and without one it is not");

    exact_free(p, len);

    /* with no body, a flag would change the meaning unseen */

    empty(&r);
    p = encode(&r, "", &len);

    failed = 0;

    for (i = 0; i < len * 8; i++) {
        p[i / 8] ^= 1 << i % 8;
        failed += !refused(p, len, 1, NULL);
        p[i / 8] ^= 1 << i % 8;
    }

    is(failed, 0, "each flipped bit is refused, without a body");

    exact_free(p, len);
}


/* records with a right checksum and something wrong in them */

static void
test_forged(void)
{
    size_t                     len, n;
    u_char                    *p, *q;
    ngx_uint_t                 v, failed;
    ngx_http_idem_response_t   r, got;
    ngx_str_t                  body;
    const char                *reason;

#define FIRST_HEADER  (41 + 11)

#define forge(change, why, name)                                              \
    q = exact(p, len);                                                        \
    change;                                                                   \
    ok(refused(q, len, 0, why), name);                                        \
    exact_free(q, len)

#define forge_signed(change, why, name)                                       \
    q = exact(p, len);                                                        \
    change;                                                                   \
    sign(q);                                                                  \
    ok(refused(q, len, 1, why), name);                                        \
    exact_free(q, len)

    sample(&r);
    p = encode(&r, sample_body, &len);

    forge(q[0] = 'J', "not a record", "another magic");
    forge(q[1] = 'r', "not a record", "another magic, second byte");

    failed = 0;

    for (v = 0; v < 256; v++) {
        q = exact(p, len);
        q[2] = v;
        sign(q);
        failed += accepted(q, len) != (v == 1 || v == 2);
        exact_free(q, len);
    }

    is(failed, 0, "this version and the next are read, no other");

    failed = 0;

    for (v = 0; v < 256; v++) {
        q = exact(p, len);
        q[3] = v;
        sign(q);

        /* header_only does not go with the body; 0x0c may be ignored */

        failed += accepted(q, len) != ((v & 0xf1) == 0);
        exact_free(q, len);
    }

    is(failed, 0, "critical flags are refused, others ignored");

    forge_signed(q[3] |= 1, "bad body length", "header only, with a body");
    forge_signed(put32(q + 36, 1), "bad body length", "two body lengths");
    forge_signed((q[8] = 0, q[9] = 99), "bad status", "status 99");
    forge_signed((q[8] = 1000 >> 8, q[9] = 1000 & 0xff), "bad status",
                 "status 1000");
    forge_signed(put32(q + 20, 0x80000001), "bad content length",
                 "content length over an off_t");

    forge(put32(q + 28, 0), "wrong length", "head of 0");
    forge(put32(q + 28, 40), "wrong length", "head below its least");
    forge((put32(q + 28, 40), put32(q + 32, len - 40)), "wrong length",
          "head below its least, the sum is right");
    forge(put32(q + 28, len + 1), "wrong length", "head beyond the end");
    forge(put32(q + 28, 0xffffffff), "wrong length", "head of 4g");
    forge(put32(q + 32, 0xffffffff), "wrong length", "body of 4g");
    forge((put32(q + 28, 0x80000000), put32(q + 32, 0x80000000 + len)),
          "wrong length", "lengths whose sum wraps");

    forge(put32(q + 8, 201 << 16 | 0xffff), "too many headers",
          "more headers than there is room for");
    forge(put32(q + 8, 201 << 16 | 5), "bad header", "one header more");
    forge(put32(q + 8, 201 << 16 | 3), "wrong length", "one header less");
    forge(q[40] = 255, "bad status line", "status line beyond the head");
    forge(q[42] = '\n', "bad status line", "line feed in a status line");

    forge(q[FIRST_HEADER + 1] = 0xff, "bad header", "name beyond the head");
    forge((q[FIRST_HEADER + 1] = 0, q[FIRST_HEADER + 2] = 0), "bad header",
          "no name");
    forge(put32(q + FIRST_HEADER + 3, 0xffffffff), "bad header",
          "value of 4g");
    forge(put32(q + FIRST_HEADER + 3, 0xfffffff8), "bad header",
          "name and value whose sum wraps");
    forge(put32(q + FIRST_HEADER + 3, 1000), "bad header",
          "value beyond the head");
    forge_signed(q[FIRST_HEADER + 8] = ':', "bad header", "colon in a name");
    forge_signed(q[FIRST_HEADER + 8] = ' ', "bad header", "space in a name");
    forge_signed(q[FIRST_HEADER + 16] = '\r', "bad header", "CR in a value");
    forge_signed(q[FIRST_HEADER + 16] = '\n', "bad header", "LF in a value");
    forge_signed(q[FIRST_HEADER + 16] = '\0', "bad header", "NUL in a value");
    forge_signed(q[FIRST_HEADER + 2] = 0, "bad header", "name cut to none");

    p[4] ^= 1;
    ok(refused(p, len, 1, "wrong checksum"), "wrong checksum");
    ok(!refused(p, len, 0, NULL), "... which is not looked at unasked");
    ok(!ngx_http_idem_response_intact(p, len), "... and not intact");

    ngx_http_idem_response_seal(p, len);
    ok(ngx_http_idem_response_intact(p, len)
       && !refused(p, len, 1, NULL), "... until it is sealed");

    exact_free(p, len);

    /* with nothing behind it, a value too long is read beyond the record */

    empty(&r);
    r.nheaders = 1;
    p = encode(&r, "", &len);
    put32(p + 41 + 3, 0xfffffff8);
    ok(refused(p, len, 0, "bad header"),
       "name and value whose sum wraps, at the end of the record");
    exact_free(p, len);

    /* fields that a newer version adds */

    sample(&r);

    p = encode(&r, sample_body, &len);
    n = len - r.body_len;
    q = exact(NULL, len + 5);
    memcpy(q, p, n);
    memcpy(q + n, "more!", 5);
    memcpy(q + n + 5, sample_body, r.body_len);
    put32(q + 28, n + 5);
    sign(q);
    ok(refused(q, len + 5, 1, "wrong length"),
       "this version has nothing behind the headers");

    q[2] = 2;
    sign(q);
    ok(decode(q, len + 5, 1, &got, &body, &reason) == NGX_OK
       && got.nheaders == 4
       && unit_equal(body.data, body.len, sample_body, r.body_len),
       "what a newer version adds is skipped");
    exact_free(q, len + 5);

    p[FIRST_HEADER] = 14;
    sign(p);
    ok(decode(p, len, 1, &got, &body, &reason) == NGX_OK
       && got.headers[0].kind == NGX_HTTP_IDEM_HEADER_PLAIN,
       "an unknown kind of header is plain");

    p[FIRST_HEADER] = 13;
    sign(p);
    ok(decode(p, len, 1, &got, &body, &reason) == NGX_OK
       && got.headers[0].kind == NGX_HTTP_IDEM_HEADER_CHARSET,
       "the last known kind is not");

    exact_free(p, len);
}


/*
 * Random bytes; of every two strings, one has a fixed part that passes, so
 * that the parts behind it are reached.
 */

static void
test_random_strings(void)
{
    int       n, passed;
    u_char    p[200];
    size_t    i, len, head;

    passed = 0;

    for (n = 0; n < RANDOM_STRINGS; n++) {
        len = unit_below(sizeof(p));

        for (i = 0; i < len; i++) {
            p[i] = (u_char) unit_random();
        }

        if (n & 1 && len >= 41) {
            head = 41 + unit_below(len - 40);

            memcpy(p, "IR\x01", 3);
            p[3] &= 0x0e;
            p[2] += p[3] >> 3;
            put32(p + 8, 200 << 16 | unit_below(6));
            p[20] &= 0x7f;
            put32(p + 28, head);
            put32(p + 32, len - head);
            put32(p + 36, len - head);
            p[40] = unit_below(10);

            for (i = 41; i < head; i++) {
                if (unit_below(8)) {
                    p[i] = "\0\0\0\1\2abc"[unit_below(8)];
                }
            }
        }

        passed += !refused(p, len, n >> 1 & 1, NULL);
    }

    ok(1, "%d random strings, of which %d passed", n, passed);
    ok(passed > RANDOM_STRINGS / 1000, "enough were decoded to the end");
}


static void
test_mutants(void)
{
    int                        n, passed, i;
    size_t                     len;
    u_char                    *p, *q;
    ngx_http_idem_response_t   r;

    sample(&r);
    p = encode(&r, sample_body, &len);
    passed = 0;

    for (n = 0; n < RANDOM_MUTANTS; n++) {
        q = exact(p, len);

        for (i = unit_below(4); i >= 0; i--) {
            q[unit_below(len)] = unit_below(2) ? unit_random()
                                               : unit_below(3);
        }

        passed += !refused(q, len, 0, NULL);

        exact_free(q, len);
    }

    ok(passed > RANDOM_MUTANTS / 20, "%d mutants, of which %d passed", n,
       passed);

    exact_free(p, len);
}


int
main(void)
{
    plan(5 + 41 + 2 + 1);

    unit_seed();

    test_damage();
    test_forged();
    test_random_strings();
    test_mutants();

    return done();
}
