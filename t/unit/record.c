
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/record/ngx_http_idem_record.c src/record/ngx_http_idem_sum.c ; libs: -lz */

/*
 * The stored form: what is encoded comes back, and what was cut, flipped,
 * forged or made up is refused, without a read outside of it.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <zlib.h>

#include "record/ngx_http_idem_record.h"
#include "unit.h"


#define HEADERS_MAX      65535          /* of a record */
#define RANDOM_STRINGS   1000000
#define RANDOM_MUTANTS   300000
#define RANDOM_RECORDS   3000
#define RANDOM_SUMS      20000

#define text_set(s, text)                                                     \
    (s)->data = (u_char *) text; (s)->len = sizeof(text) - 1


static ngx_http_idem_header_t  headers_in[HEADERS_MAX + 1];
static ngx_http_idem_header_t  headers_out[HEADERS_MAX + 1];


static void
put32(u_char *p, uint32_t n)
{
    p[0] = n >> 24;
    p[1] = n >> 16;
    p[2] = n >> 8;
    p[3] = n;
}


/* the checksum by its definition, with zlib alone */

static void
sign(u_char *record)
{
    u_char    *body, sum[4];
    uint32_t   head_len, body_len;

    head_len = (uint32_t) record[28] << 24 | record[29] << 16
               | record[30] << 8 | record[31];
    body_len = (uint32_t) record[32] << 24 | record[33] << 16
               | record[34] << 8 | record[35];

    body = record + head_len;

    put32(sum, adler32(1, body, body_len));
    put32(record + 4, adler32(adler32(adler32(1, record, 4), record + 8,
                                  head_len - 8),
                            sum, 4));
}


/* an encoded response and its length; the caller frees it */

static u_char *
encode(ngx_http_idem_response_t *r, const void *body, size_t *len)
{
    size_t     size, half;
    u_char    *p, *end;
    uint32_t   sum;

    size = ngx_http_idem_head_size(r);
    if (size == 0) {
        return NULL;
    }

    /* the body in two pieces, with an empty one between them */

    half = r->body_len / 2;

    sum = ngx_http_idem_body_sum(NGX_HTTP_IDEM_SUM, body, half);
    sum = ngx_http_idem_body_sum(sum, NULL, 0);
    sum = ngx_http_idem_body_sum(sum, (u_char *) body + half,
                                 r->body_len - half);

    *len = size + r->body_len;
    p = exact(NULL, *len);

    end = ngx_http_idem_head_encode(p, r);

    if (end != p + size) {
        abort();
    }

    ngx_http_idem_head_seal(p, size, sum);

    if (r->body_len) {
        memcpy(end, body, r->body_len);
    }

    return p;
}


static ngx_int_t
decode(const u_char *p, size_t len, ngx_uint_t verify,
    ngx_http_idem_response_t *r, ngx_str_t *body, const char **reason)
{
    u_char      *copy;
    ngx_int_t    rc, peek;
    ngx_uint_t   i, n;

    copy = exact(p, len);

    memset(r, 0x55, sizeof(*r));
    n = 0;
    *reason = NULL;

    peek = ngx_http_idem_head_peek(copy, len, &n, reason);

    /* just as much room as was asked for */

    r->headers = (ngx_http_idem_header_t *) (void *)
                 exact(NULL, n * sizeof(ngx_http_idem_header_t));

    rc = ngx_http_idem_response_decode(copy, len, r, body, verify, reason);

    if (peek != NGX_OK && rc == NGX_OK) {
        abort();
    }

    if (rc == NGX_OK) {

        /* they point into the copy: touch all of it, then point into "p" */

        if (r->nheaders != n || body->data + body->len != copy + len) {
            abort();
        }

        r->status_line.data = (u_char *) p + (r->status_line.data - copy);
        body->data = (u_char *) p + (body->data - copy);

        for (i = 0; i < n; i++) {
            headers_out[i] = r->headers[i];

            if (!ngx_http_idem_header_valid(&headers_out[i].name,
                                            &headers_out[i].value)
                || headers_out[i].kind > NGX_HTTP_IDEM_HEADER_LINK)
            {
                abort();
            }

            headers_out[i].name.data = (u_char *) p
                                       + (headers_out[i].name.data - copy);
            headers_out[i].value.data = (u_char *) p
                                       + (headers_out[i].value.data - copy);
        }

    } else if (*reason == NULL || **reason == '\0') {
        abort();
    }

    exact_free((u_char *) r->headers, n * sizeof(ngx_http_idem_header_t));
    exact_free(copy, len);

    r->headers = headers_out;

    return rc;
}


static ngx_uint_t
refused(const u_char *p, size_t len, ngx_uint_t verify, const char *why)
{
    ngx_int_t                  rc;
    ngx_str_t                  body;
    const char                *reason;
    ngx_http_idem_response_t   r;

    rc = decode(p, len, verify, &r, &body, &reason);

    if (rc == NGX_OK) {
        return 0;
    }

    if (why && strcmp(reason, why) != 0) {
        printf("# reason: %s\n", reason);
        return 0;
    }

    return 1;
}


static ngx_uint_t
accepted(const u_char *p, size_t len)
{
    return !refused(p, len, 1, NULL);
}


/* encodes, decodes, and compares all there is */

static ngx_uint_t
round_trip(ngx_http_idem_response_t *r, const void *data)
{
    size_t                     len;
    u_char                    *p;
    ngx_str_t                  body;
    ngx_uint_t                 i, same;
    const char                *reason;
    ngx_http_idem_response_t   got;

    p = encode(r, data, &len);
    if (p == NULL) {
        return 0;
    }

    if (decode(p, len, 1, &got, &body, &reason) != NGX_OK) {
        printf("# reason: %s\n", reason);
        exact_free(p, len);
        return 0;
    }

    same = got.status == r->status
           && unit_equal(got.status_line.data, got.status_line.len,
                         r->status_line.data, r->status_line.len)
           && got.time == r->time
           && got.content_length == r->content_length
           && got.nheaders == r->nheaders
           && got.body_len == r->body_len
           && got.plain_len == (r->compressed ? r->plain_len : r->body_len)
           && got.header_only == r->header_only
           && got.compressed == r->compressed
           && unit_equal(body.data, body.len, data, r->body_len);

    for (i = 0; same && i < r->nheaders; i++) {
        same = got.headers[i].kind == r->headers[i].kind
               && unit_equal(got.headers[i].name.data,
                             got.headers[i].name.len,
                             r->headers[i].name.data,
                             r->headers[i].name.len)
               && unit_equal(got.headers[i].value.data,
                             got.headers[i].value.len,
                             r->headers[i].value.data,
                             r->headers[i].value.len);
    }

    exact_free(p, len);

    return same;
}


static void
empty(ngx_http_idem_response_t *r)
{
    memset(r, 0, sizeof(*r));

    r->status = 204;
    r->content_length = -1;
    r->headers = headers_in;
}


static const u_char  sample_body[] = "{\"id\":1,\"a\":\"\0\xff\r\n\"}";


static void
sample(ngx_http_idem_response_t *r)
{
    empty(r);

    r->status = 201;
    text_set(&r->status_line, "201 Created");
    r->time = 1769594400123ULL;
    r->content_length = 0x7fffffffffffffffLL;
    r->nheaders = 4;
    r->body_len = sizeof(sample_body) - 1;

    memset(headers_in, 0, 4 * sizeof(headers_in[0]));

    headers_in[0].kind = NGX_HTTP_IDEM_HEADER_LOCATION;
    text_set(&headers_in[0].name, "Location");
    text_set(&headers_in[0].value, "/api/1");
    text_set(&headers_in[1].name, "Set-Cookie");
    text_set(&headers_in[1].value, "a=1; Path=/");
    text_set(&headers_in[2].name, "Set-Cookie");
    text_set(&headers_in[2].value, "b=\xc3\xbc\t2");
    text_set(&headers_in[3].name, "X-Empty");
    headers_in[3].value.data = (u_char *) "";
}


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
        headers_in[i].kind = i % 13;
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

    p[FIRST_HEADER] = 13;
    sign(p);
    ok(decode(p, len, 1, &got, &body, &reason) == NGX_OK
       && got.headers[0].kind == NGX_HTTP_IDEM_HEADER_PLAIN,
       "an unknown kind of header is plain");

    p[FIRST_HEADER] = 12;
    sign(p);
    ok(decode(p, len, 1, &got, &body, &reason) == NGX_OK
       && got.headers[0].kind == NGX_HTTP_IDEM_HEADER_LINK,
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
    plan(6 + 3 + 13 + 1 + 10 + 5 + 41 + 2 + 1 + 2);

    unit_seed();

    test_claim();
    test_layout();
    test_round_trips();
    test_random_round_trips();
    test_not_encoded();
    test_damage();
    test_forged();
    test_random_strings();
    test_mutants();
    test_sum();

    return done();
}
