
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/record/ngx_http_idem_record.c src/record/ngx_http_idem_sum.c ; libs: -lz */

/*
 * The stored form: what is encoded comes back, and what can't be stored is not
 * encoded.
 */


#include "record.h"


#define RANDOM_RECORDS  3000
#define RANDOM_SUMS     20000


static void
test_claim(void)
{
    size_t                  len;
    u_char                  p[NGX_HTTP_IDEM_CLAIM_LEN + 8], *q;
    ngx_uint_t              i, failed;
    ngx_http_idem_claim_t   claim, got;

    memset(&claim, 0, sizeof(claim));
    memset(&got, 0x55, sizeof(got));
    memset(p, 0, sizeof(p));

    claim.scheme = 0xfedcba98;
    claim.time = 0x0123456789abcdefULL;

    for (i = 0; i < 32; i++) {
        claim.fingerprint[i] = i;
    }

    for (i = 0; i < 16; i++) {
        claim.identity[i] = 0xf0 + i;
    }

    for (i = 0; i < NGX_HTTP_IDEM_TARGET_LEN; i++) {
        claim.target[i] = 0xc0 + i;
    }

    q = exact(NULL, NGX_HTTP_IDEM_CLAIM_LEN);
    ngx_http_idem_claim_encode(q, &claim);
    memcpy(p, q, NGX_HTTP_IDEM_CLAIM_LEN);

    ok(ngx_http_idem_claim_decode(q, NGX_HTTP_IDEM_CLAIM_LEN,
                                  &got) == NGX_OK
       && got.scheme == claim.scheme && got.time == claim.time
       && memcmp(got.fingerprint, claim.fingerprint, 32) == 0
       && memcmp(got.identity, claim.identity, 16) == 0
       && memcmp(got.target, claim.target,
                 NGX_HTTP_IDEM_TARGET_LEN) == 0,
       "a claim comes back");

    exact_free(q, NGX_HTTP_IDEM_CLAIM_LEN);

    ok(memcmp(p, "\x01\xfe\xdc\xba\x98\x01\x23\x45\x67\x89\xab\xcd\xef\0\x01",
              15) == 0,
       "a claim is big-endian");

    failed = 0;

    for (len = 0; len < sizeof(p); len++) {
        q = exact(p, len);
        failed += (ngx_http_idem_claim_decode(q, len, &got) == NGX_OK)
                  != (len == NGX_HTTP_IDEM_CLAIM_LEN);
        exact_free(q, len);
    }

    is(failed, 0, "a claim of any other length is refused");

    failed = 0;

    for (i = 0; i < 256; i++) {
        p[0] = i;
        failed += (ngx_http_idem_claim_decode(p,
                                            NGX_HTTP_IDEM_CLAIM_LEN,
                                            &got) == NGX_OK)
                  != (i == 1 || i == 2);
    }

    is(failed, 0, "a claim of this version and of the next is read");

    p[0] = 2;
    ok(ngx_http_idem_claim_decode(p, sizeof(p), &got) == NGX_OK
       && got.scheme == claim.scheme,
       "a claim of the next version may be longer");

    len = NGX_HTTP_IDEM_CLAIM_LEN - 1;
    q = exact(p, len);
    ok(ngx_http_idem_claim_decode(q, len, &got) == NGX_ERROR,
       "but not shorter");
    exact_free(q, len);
}


static void
test_layout(void)
{
    size_t                     len;
    u_char                    *p, sum[4];
    ngx_http_idem_response_t   r;

    static const u_char        expected[] =
        "IR\x01\x02" "\0\0\0\0"                     /* checksum: below */
        "\0\xc9" "\0\x01"
        "\0\0\0\0\0\0\x01\x02" "\0\0\0\0\0\0\0\x06"
        "\0\0\0\x38" "\0\0\0\x03" "\0\0\0\x09"
        "\x03" "201"
        "\x02" "\0\x04" "\0\0\0\x01" "ETag" "x";

    empty(&r);

    r.status = 201;
    text_set(&r.status_line, "201");
    r.time = 0x102;
    r.content_length = 5;
    r.compressed = 1;
    r.plain_len = 9;
    r.body_len = 3;
    r.nheaders = 1;
    headers_in[0].kind = NGX_HTTP_IDEM_HEADER_ETAG;
    text_set(&headers_in[0].name, "ETag");
    text_set(&headers_in[0].value, "x");

    p = encode(&r, "zzz", &len);

    is(len, sizeof(expected) - 1 + 3, "length of a record");
    ok(memcmp(p, expected, 4) == 0
       && memcmp(p + 8, expected + 8, sizeof(expected) - 1 - 8) == 0
       && memcmp(p + sizeof(expected) - 1, "zzz", 3) == 0,
       "the layout of version 1, byte for byte");

    memcpy(sum, p + 4, 4);
    sign(p);
    ok(memcmp(sum, p + 4, 4) == 0, "the checksum, as documented");

    exact_free(p, len);
}


static void
test_round_trips(void)
{
    size_t                     i;
    u_char                    *body;
    static u_char              name[65535], value[70000];
    ngx_uint_t                 c, failed;
    ngx_http_idem_response_t   r;

    empty(&r);
    ok(round_trip(&r, ""), "nothing but a status");

    sample(&r);
    ok(round_trip(&r, sample_body), "headers and a binary body");

    empty(&r);
    r.header_only = 1;
    r.content_length = 0;
    ok(round_trip(&r, ""), "header only, content length 0");

    sample(&r);
    r.compressed = 1;
    r.plain_len = 0xffffffff;
    ok(round_trip(&r, sample_body), "compressed");

    sample(&r);
    r.plain_len = 12345;
    ok(round_trip(&r, sample_body), "length of a plain body is its own");

    sample(&r);
    r.time = ~(uint64_t) 0;
    ok(round_trip(&r, sample_body), "the end of time");

    body = exact(NULL, 1 << 20);

    for (i = 0; i < 1 << 20; i++) {
        body[i] = (u_char) unit_random();
    }

    sample(&r);
    r.body_len = 1 << 20;
    ok(round_trip(&r, body), "a body of 1m");

    exact_free(body, 1 << 20);

    empty(&r);
    r.nheaders = HEADERS_MAX;

    for (i = 0; i < HEADERS_MAX; i++) {
        headers_in[i].kind = i % 14;
        headers_in[i].name.data = (u_char *) "abcdefghijklmnopq" + i % 16;
        headers_in[i].name.len = 1 + i % 16 / 8;
        headers_in[i].value.data = (u_char *) "value";
        headers_in[i].value.len = i % 6;
    }

    ok(round_trip(&r, ""), "65535 headers");

    memset(name, 'n', sizeof(name));
    memset(value, 'v', sizeof(value));

    empty(&r);
    r.nheaders = 1;
    r.status_line.data = value;
    r.status_line.len = 255;
    headers_in[0].name.data = name;
    headers_in[0].name.len = sizeof(name);
    headers_in[0].value.data = value;
    headers_in[0].value.len = sizeof(value);
    ok(round_trip(&r, ""), "long name, long value, long status line");

    failed = 0;

    for (c = 0; c < 256; c++) {
        value[1] = c;
        headers_in[0].value.len = 3;
        failed += round_trip(&r, "")
                  != (c != '\0' && c != '\r' && c != '\n');
        r.status_line.len = 0;
    }

    is(failed, 0, "each byte in a value");

    /* beside what is above ASCII, and what is just not below a space */

    failed = 0;
    headers_in[0].value.len = 20;

    for (i = 0; i < 20; i++) {
        for (c = 0; c < 256; c++) {
            memset(value, (i % 2) ? 0xff : ' ', 20);
            value[i] = c;
            failed += ngx_http_idem_header_valid(&headers_in[0].name,
                                                 &headers_in[0].value)
                      != (c != '\0' && c != '\r' && c != '\n');
        }
    }

    is(failed, 0, "each byte at each place of a longer value");

    failed = 0;
    headers_in[0].value.len = 0;
    headers_in[0].name.len = 3;

    for (c = 0; c < 256; c++) {
        name[1] = c;
        failed += round_trip(&r, "")
                  != (c && strchr("!#$%&'*+-.^_`|~0123456789"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "abcdefghijklmnopqrstuvwxyz", (int) c));
    }

    is(failed, 0, "each byte in a name");

    failed = 0;

    for (r.nheaders = 0, r.status = 0; r.status < 70000; r.status++) {
        failed += round_trip(&r, "") != (r.status >= 100 && r.status <= 999);
    }

    is(failed, 0, "each status");
}


static void
test_random_round_trips(void)
{
    int                        n;
    size_t                     i, k;
    u_char                     text[512], body[300];
    ngx_uint_t                 failed;
    ngx_http_idem_response_t   r;

    for (i = 0; i < sizeof(text); i++) {
        text[i] = "abcXYZ-_0129"[i % 12];
    }

    failed = 0;

    for (n = 0; n < RANDOM_RECORDS; n++) {
        empty(&r);

        r.status = 100 + unit_below(900);
        r.time = unit_random();
        r.content_length = (int64_t) (unit_random() >> 1) - 1;
        r.status_line.data = text;
        r.status_line.len = unit_below(256);
        r.nheaders = unit_below(40);
        r.header_only = unit_below(4) == 0;
        r.compressed = unit_below(2);
        r.plain_len = (uint32_t) unit_random();
        r.body_len = r.header_only ? 0 : unit_below(sizeof(body));

        for (i = 0; i < r.body_len; i++) {
            body[i] = (u_char) unit_random();
        }

        for (i = 0; i < r.nheaders; i++) {
            k = unit_below(200);
            headers_in[i].kind = unit_below(13);
            headers_in[i].name.data = text + k;
            headers_in[i].name.len = 1 + unit_below(100);
            headers_in[i].value.data = text + k;
            headers_in[i].value.len = unit_below(300);
        }

        failed += !round_trip(&r, body);
    }

    ok(failed == 0, "%d random responses come back", n);
}


static void
test_not_encoded(void)
{
    static u_char              line[256], name[65536];
    size_t                     len;
    u_char                    *p;
    ngx_str_t                  body;
    const char                *reason;
    ngx_http_idem_response_t   r, got;

    sample(&r);
    r.header_only = 1;
    is(ngx_http_idem_head_size(&r), 0, "size: header only, a body");

    empty(&r);

    for (r.nheaders = 0; r.nheaders < 65536; r.nheaders++) {
        text_set(&headers_in[r.nheaders].name, "X");
        text_set(&headers_in[r.nheaders].value, "");
    }

    is(ngx_http_idem_head_size(&r), 0, "size: too many headers");

    sample(&r);
    r.body_len = (size_t) 1 << 32;
    is(ngx_http_idem_head_size(&r), 0, "size: body of 4g");

    sample(&r);
    r.compressed = 1;
    r.plain_len = (size_t) 1 << 32;
    is(ngx_http_idem_head_size(&r), 0, "size: plain body of 4g");

    memset(name, 'n', sizeof(name));
    sample(&r);
    headers_in[0].name.data = name;
    headers_in[0].name.len = sizeof(name);
    is(ngx_http_idem_head_size(&r), 0, "size: name of 64k");

    sample(&r);
    headers_in[0].value.len = (size_t) 1 << 32;
    is(ngx_http_idem_head_size(&r), 0, "size: value of 4g");

    sample(&r);
    headers_in[0].name.len = 0;
    is(ngx_http_idem_head_size(&r), 0, "size: no name");

    sample(&r);
    text_set(&headers_in[2].value, "a\r\nSet-Cookie: b");
    is(ngx_http_idem_head_size(&r), 0, "size: CRLF in a value");

    memset(line, 'x', sizeof(line));
    sample(&r);
    r.status_line.data = line;
    r.status_line.len = 256;
    p = encode(&r, sample_body, &len);
    ok(p && decode(p, len, 1, &got, &body, &reason) == NGX_OK
       && got.status == 201 && got.status_line.len == 0,
       "a status line that is too long is left out");
    exact_free(p, len);

    line[10] = '\n';
    r.status_line.len = 20;
    p = encode(&r, sample_body, &len);
    ok(p && decode(p, len, 1, &got, &body, &reason) == NGX_OK
       && got.status == 201 && got.status_line.len == 0,
       "a status line with a line feed is left out");
    exact_free(p, len);
}


/* the checksum is zlib's, whatever is summed, from wherever it goes on */

static void
test_sum(void)
{
    int        n, wrong;
    size_t     len, size;
    u_char    *p;
    uint32_t   sum;

    size = 17 * 1024 * 1024;
    p = malloc(size);
    wrong = 0;

    memset(p, 0xff, size);

    ok(ngx_http_idem_body_sum(NGX_HTTP_IDEM_SUM, p, size)
       == adler32(1, p, size), "the sum of %d MB of the largest bytes",
       (int) (size / 1024 / 1024));

    for (len = 0; len < 65536; len++) {
        p[len] = unit_random();
    }

    for (n = 0; n < RANDOM_SUMS; n++) {
        len = unit_below(unit_below(2) ? 400 : 60000);
        sum = (uint32_t) unit_below(65521) << 16 | unit_below(65521);

        wrong += ngx_http_idem_body_sum(sum, p + unit_below(1000), 0) != sum;
        wrong += ngx_http_idem_body_sum(sum, p + n % 64, len)
                 != adler32(sum, p + n % 64, len);
    }

    ok(wrong == 0, "%d sums, of which %d are not zlib's", n, wrong);

    free(p);
}


int
main(void)
{
    plan(6 + 3 + 13 + 1 + 10 + 2);

    unit_seed();

    test_claim();
    test_layout();
    test_round_trips();
    test_random_round_trips();
    test_not_encoded();
    test_sum();

    return done();
}
