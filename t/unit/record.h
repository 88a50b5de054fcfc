
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What the tests of the stored form share: a response, its encoding and its
 * decoding in memory of its own size, and a checksum by zlib alone.
 */


#ifndef _RECORD_H_INCLUDED_
#define _RECORD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <zlib.h>

#include "record/ngx_http_idem_record.h"
#include "unit.h"


#define HEADERS_MAX  65535          /* of a record */

#define text_set(s, text)                                                     \
    (s)->data = (u_char *) text; (s)->len = sizeof(text) - 1


static ngx_http_idem_header_t  headers_in[HEADERS_MAX + 1];
static ngx_http_idem_header_t  headers_out[HEADERS_MAX + 1];


static ngx_inline void
put32(u_char *p, uint32_t n)
{
    p[0] = n >> 24;
    p[1] = n >> 16;
    p[2] = n >> 8;
    p[3] = n;
}


/* the checksum by its definition, with zlib alone */

static ngx_inline void
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

static ngx_inline u_char *
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


static ngx_inline ngx_int_t
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
                || headers_out[i].kind > NGX_HTTP_IDEM_HEADER_CHARSET)
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


static ngx_inline ngx_uint_t
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


static ngx_inline ngx_uint_t
accepted(const u_char *p, size_t len)
{
    return !refused(p, len, 1, NULL);
}


/* encodes, decodes, and compares all there is */

static ngx_inline ngx_uint_t
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


static ngx_inline void
empty(ngx_http_idem_response_t *r)
{
    memset(r, 0, sizeof(*r));

    r->status = 204;
    r->content_length = -1;
    r->headers = headers_in;
}


static const u_char  sample_body[] = "{\"id\":1,\"a\":\"\0\xff\r\n\"}";


static ngx_inline void
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


#endif /* _RECORD_H_INCLUDED_ */
