
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The stored form of a claim and of a response.
 *
 * Stores and the response side call it, to make the bytes of a record and to
 * read them back; it calls the checksum and nothing else.  The bytes may come
 * from a shared zone, from a server on the network or from a host with
 * another release.  So every length is checked before it is used, and a
 * header that could not have come from an HTTP message is refused: a foreign
 * record must not become a header injection.
 *
 * All numbers are big-endian.  A response, version 1:
 *
 *     0   'I' 'R'
 *     2   u8   version
 *     3   u8   flags: 0x01 header_only, 0x02 compressed; unknown flags are
 *              ignored (0x04, 0x08), or refused (0xf0)
 *     4   u32  checksum
 *     8   u16  status, 100 to 999
 *     10  u16  number of headers
 *     12  u64  time
 *     20  u64  content_length + 1; 0 for none
 *     28  u32  length of the head, which is the offset of the body
 *     32  u32  length of the body, as stored
 *     36  u32  length of the body, uncompressed
 *     40  u8   length of the status line; the status line
 *         for each header: u8 kind, u16 name length, u32 value length,
 *         the name, the value
 *         fields that a newer version adds to the head
 *         the body
 *
 * The checksum is the Adler-32 of the head, without the checksum itself, and
 * then of the body's Adler-32 as 4 bytes.  A record that never leaves this
 * nginx has none: the field is 0 and is not checked.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "record/ngx_http_idem_record.h"


/* versions that can be read: one below and one above; the first is 1 */
#define NGX_HTTP_IDEM_RECORD_OLDEST       1
#define NGX_HTTP_IDEM_RECORD_NEWEST                                           \
    (NGX_HTTP_IDEM_RECORD_VERSION + 1)

#define NGX_HTTP_IDEM_RECORD_HEADER_ONLY  0x01
#define NGX_HTTP_IDEM_RECORD_COMPRESSED   0x02
#define NGX_HTTP_IDEM_RECORD_CRITICAL     0xf0

#define NGX_HTTP_IDEM_RECORD_SUM          4             /* offsets */
#define NGX_HTTP_IDEM_RECORD_STATUS       8
#define NGX_HTTP_IDEM_RECORD_NHEADERS     10
#define NGX_HTTP_IDEM_RECORD_TIME         12
#define NGX_HTTP_IDEM_RECORD_LENGTH       20
#define NGX_HTTP_IDEM_RECORD_HEAD_LEN     28
#define NGX_HTTP_IDEM_RECORD_BODY_LEN     32
#define NGX_HTTP_IDEM_RECORD_PLAIN_LEN    36
#define NGX_HTTP_IDEM_RECORD_STATUS_LINE  40

/* the head with neither status line nor headers */
#define NGX_HTTP_IDEM_RECORD_HEAD_MIN     41

/* kind, name length, value length */
#define NGX_HTTP_IDEM_RECORD_HEADER_MIN   (1 + 2 + 4)


static size_t ngx_http_idem_record_status_line(
    const ngx_http_idem_response_t *response);
static uint32_t ngx_http_idem_record_sum(const u_char *p,
    size_t head_len, uint32_t body_sum);
static uint32_t ngx_http_idem_record_whole_sum(const u_char *p, size_t len);
static ngx_uint_t ngx_http_idem_record_readable(u_char version);
static ngx_int_t ngx_http_idem_record_fixed(const u_char *p,
    ngx_http_idem_response_t *response, const char **reason);
static const u_char *ngx_http_idem_record_header(const u_char *p,
    const u_char *last, ngx_http_idem_header_t *header);


/* the bytes of a token, RFC 9110; 0 for all others */

static const u_char  ngx_http_idem_token_chars[256] =
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    "\0!\0#$%&'\0\0*+\0-.\0" "0123456789\0\0\0\0\0\0"
    "\0ABCDEFGHIJKLMNOPQRSTUVWXYZ\0\0\0^_"
    "`abcdefghijklmnopqrstuvwxyz\0|\0~\0";


void
ngx_http_idem_claim_encode(u_char *p, const ngx_http_idem_claim_t *claim)
{
    *p++ = NGX_HTTP_IDEM_RECORD_VERSION;

    p = ngx_http_idem_put32(p, claim->scheme);
    p = ngx_http_idem_put64(p, claim->time);
    p = ngx_cpymem(p, claim->fingerprint, NGX_HTTP_IDEM_FINGERPRINT_LEN);

    p = ngx_cpymem(p, claim->identity, NGX_HTTP_IDEM_IDENTITY_LEN);

    ngx_memcpy(p, claim->target, NGX_HTTP_IDEM_TARGET_LEN);
}


ngx_int_t
ngx_http_idem_claim_decode(const u_char *p, size_t len,
    ngx_http_idem_claim_t *claim)
{
    if (len < NGX_HTTP_IDEM_CLAIM_LEN || !ngx_http_idem_record_readable(*p)) {
        return NGX_ERROR;
    }

    /* a newer version may append fields */

    if (*p <= NGX_HTTP_IDEM_RECORD_VERSION
        && len != NGX_HTTP_IDEM_CLAIM_LEN)
    {
        return NGX_ERROR;
    }

    p++;

    claim->scheme = ngx_http_idem_get32(p);
    p += 4;

    claim->time = ngx_http_idem_get64(p);
    p += 8;

    ngx_memcpy(claim->fingerprint, p, NGX_HTTP_IDEM_FINGERPRINT_LEN);
    p += NGX_HTTP_IDEM_FINGERPRINT_LEN;

    ngx_memcpy(claim->identity, p, NGX_HTTP_IDEM_IDENTITY_LEN);
    p += NGX_HTTP_IDEM_IDENTITY_LEN;

    ngx_memcpy(claim->target, p, NGX_HTTP_IDEM_TARGET_LEN);

    return NGX_OK;
}


ngx_uint_t
ngx_http_idem_header_valid(const ngx_str_t *name, const ngx_str_t *value)
{
    size_t  i;

    if (name->len == 0) {
        return 0;
    }

    for (i = 0; i < name->len; i++) {
        if (!ngx_http_idem_token_chars[name->data[i]]) {
            return 0;
        }
    }

    return ngx_http_idem_text_valid(value->data, value->len);
}


ngx_uint_t
ngx_http_idem_text_valid(const u_char *p, size_t len)
{
    size_t    i;
    uint64_t  word;

    /*
     * Checks eight bytes at a time while none of them is below a space, which
     * is the usual case.  The first term sets the top bit of such bytes, and
     * of those from 0xa0 on, which the second term masks out.
     */

    for ( /* void */ ; len >= 8; p += 8, len -= 8) {
        ngx_memcpy(&word, p, 8);

        if ((word - 0x2020202020202020ULL) & ~word & 0x8080808080808080ULL) {
            break;
        }
    }

    for (i = 0; i < len; i++) {
        if (p[i] == '\0' || p[i] == CR || p[i] == LF) {
            return 0;
        }
    }

    return 1;
}


size_t
ngx_http_idem_head_size(const ngx_http_idem_response_t *response)
{
    uint64_t                 size;
    ngx_uint_t               i;
    ngx_http_idem_header_t  *h;

    if (response->status < 100 || response->status > 999
        || response->nheaders > 0xffff
        || (uint64_t) response->body_len > NGX_HTTP_IDEM_RECORD_MAX_LEN
        || (response->compressed
            && (uint64_t) response->plain_len
               > NGX_HTTP_IDEM_RECORD_MAX_LEN)
        || (response->header_only && response->body_len))
    {
        return 0;
    }

    size = NGX_HTTP_IDEM_RECORD_HEAD_MIN
           + ngx_http_idem_record_status_line(response);

    for (i = 0; i < response->nheaders; i++) {
        h = &response->headers[i];

        if (h->name.len > 0xffff
            || (uint64_t) h->value.len > NGX_HTTP_IDEM_RECORD_MAX_LEN
            || (!h->valid
                && !ngx_http_idem_header_valid(&h->name, &h->value)))
        {
            return 0;
        }

        size += NGX_HTTP_IDEM_RECORD_HEADER_MIN + h->name.len + h->value.len;
    }

    if (size > NGX_HTTP_IDEM_RECORD_MAX_LEN) {
        return 0;
    }

    return (size_t) size;
}


/*
 * The length of the status line as stored.  Clients do not interpret the
 * reason phrase, so a response is stored without a status line that does not
 * fit; nginx then makes one of the status.
 */

static size_t
ngx_http_idem_record_status_line(const ngx_http_idem_response_t *response)
{
    const ngx_str_t  *line;

    line = &response->status_line;

    if (line->len > 0xff
        || !ngx_http_idem_text_valid(line->data, line->len))
    {
        return 0;
    }

    return line->len;
}


u_char *
ngx_http_idem_head_encode(u_char *p, const ngx_http_idem_response_t *response)
{
    size_t                   len;
    u_char                  *head, flags;
    uint64_t                 length;
    ngx_uint_t               i;
    ngx_http_idem_header_t  *h;

    head = p;

    flags = 0;

    if (response->header_only) {
        flags |= NGX_HTTP_IDEM_RECORD_HEADER_ONLY;
    }

    if (response->compressed) {
        flags |= NGX_HTTP_IDEM_RECORD_COMPRESSED;
    }

    length = (response->content_length < 0)
             ? 0 : (uint64_t) response->content_length + 1;

    *p++ = 'I';
    *p++ = 'R';
    *p++ = NGX_HTTP_IDEM_RECORD_VERSION;
    *p++ = flags;

    p = ngx_http_idem_put32(p, 0);   /* the checksum: "head_seal" */
    p = ngx_http_idem_put16(p, response->status);
    p = ngx_http_idem_put16(p, response->nheaders);
    p = ngx_http_idem_put64(p, response->time);
    p = ngx_http_idem_put64(p, length);
    p = ngx_http_idem_put32(p, 0);   /* the length of the head: below */
    p = ngx_http_idem_put32(p, (uint32_t) response->body_len);
    p = ngx_http_idem_put32(p, (uint32_t) (response->compressed
                                           ? response->plain_len
                                           : response->body_len));

    len = ngx_http_idem_record_status_line(response);

    *p++ = (u_char) len;

    if (len) {
        p = ngx_cpymem(p, response->status_line.data, len);
    }

    for (i = 0; i < response->nheaders; i++) {
        h = &response->headers[i];

        *p++ = (u_char) h->kind;

        p = ngx_http_idem_put16(p, h->name.len);
        p = ngx_http_idem_put32(p, (uint32_t) h->value.len);
        p = ngx_cpymem(p, h->name.data, h->name.len);

        if (h->value.len) {
            p = ngx_cpymem(p, h->value.data, h->value.len);
        }
    }

    ngx_http_idem_put32(head + NGX_HTTP_IDEM_RECORD_HEAD_LEN,
                        (uint32_t) (p - head));

    return p;
}


void
ngx_http_idem_head_seal(u_char *p, size_t head_len, uint32_t body_sum)
{
    ngx_http_idem_put32(p + NGX_HTTP_IDEM_RECORD_SUM,
                        ngx_http_idem_record_sum(p, head_len, body_sum));
}


static uint32_t
ngx_http_idem_record_sum(const u_char *p, size_t head_len, uint32_t body_sum)
{
    u_char    body[4];
    uint32_t  sum;

    ngx_http_idem_put32(body, body_sum);

    /* version and flags count, too: a wrong flag changes the meaning of the
       body */

    sum = ngx_http_idem_body_sum(NGX_HTTP_IDEM_SUM, p,
                                 NGX_HTTP_IDEM_RECORD_SUM);
    sum = ngx_http_idem_body_sum(sum, p + NGX_HTTP_IDEM_RECORD_STATUS,
                                 head_len - NGX_HTTP_IDEM_RECORD_STATUS);

    return ngx_http_idem_body_sum(sum, body, 4);
}


/* the sum of head and body; the record has passed "head_peek" */

static uint32_t
ngx_http_idem_record_whole_sum(const u_char *p, size_t len)
{
    size_t    head_len;
    uint32_t  sum;

    head_len = ngx_http_idem_get32(p + NGX_HTTP_IDEM_RECORD_HEAD_LEN);

    sum = ngx_http_idem_body_sum(NGX_HTTP_IDEM_SUM, p + head_len,
                                 len - head_len);

    return ngx_http_idem_record_sum(p, head_len, sum);
}


ngx_uint_t
ngx_http_idem_response_intact(const u_char *p, size_t len)
{
    ngx_uint_t   n;
    const char  *reason;

    return ngx_http_idem_head_peek(p, len, &n, &reason) == NGX_OK
           && ngx_http_idem_record_whole_sum(p, len)
              == ngx_http_idem_get32(p + NGX_HTTP_IDEM_RECORD_SUM);
}


void
ngx_http_idem_response_seal(u_char *p, size_t len)
{
    ngx_uint_t   n;
    const char  *reason;

    if (ngx_http_idem_head_peek(p, len, &n, &reason) == NGX_OK) {
        ngx_http_idem_put32(p + NGX_HTTP_IDEM_RECORD_SUM,
                            ngx_http_idem_record_whole_sum(p, len));
    }
}


static ngx_uint_t
ngx_http_idem_record_readable(u_char version)
{
    return version >= NGX_HTTP_IDEM_RECORD_OLDEST
           && version <= NGX_HTTP_IDEM_RECORD_NEWEST;
}


ngx_uint_t
ngx_http_idem_response_status(const u_char *p, size_t len)
{
    if (len < NGX_HTTP_IDEM_STATUS_PEEK || p[0] != 'I' || p[1] != 'R') {
        return 0;
    }

    return ((ngx_uint_t) p[8] << 8) + p[9];
}


/*
 * Checks everything but the headers.  The number of headers is checked against
 * the length of the head, so that a caller does not allocate more for them
 * than the size of the record accounts for.
 */

ngx_int_t
ngx_http_idem_head_peek(const u_char *p, size_t len,
    ngx_uint_t *nheaders, const char **reason)
{
    uint32_t    head_len, body_len;
    ngx_uint_t  n;

    if (len < NGX_HTTP_IDEM_RECORD_HEAD_MIN) {
        *reason = "truncated head";
        return NGX_ERROR;
    }

    if (p[0] != 'I' || p[1] != 'R') {
        *reason = "not a record";
        return NGX_ERROR;
    }

    if (!ngx_http_idem_record_readable(p[2])) {
        *reason = "unknown version";
        return NGX_ERROR;
    }

    if (p[3] & NGX_HTTP_IDEM_RECORD_CRITICAL) {
        *reason = "unknown flags";
        return NGX_ERROR;
    }

    head_len = ngx_http_idem_get32(p + NGX_HTTP_IDEM_RECORD_HEAD_LEN);
    body_len = ngx_http_idem_get32(p + NGX_HTTP_IDEM_RECORD_BODY_LEN);

    if (head_len < NGX_HTTP_IDEM_RECORD_HEAD_MIN
        || head_len > len || len - head_len != body_len)
    {
        *reason = "wrong length";
        return NGX_ERROR;
    }

    n = ngx_http_idem_get16(p + NGX_HTTP_IDEM_RECORD_NHEADERS);

    if (n > (head_len - NGX_HTTP_IDEM_RECORD_HEAD_MIN)
            / NGX_HTTP_IDEM_RECORD_HEADER_MIN)
    {
        *reason = "too many headers";
        return NGX_ERROR;
    }

    *nheaders = n;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_response_decode(const u_char *p, size_t len,
    ngx_http_idem_response_t *response, ngx_str_t *body,
    ngx_uint_t verify, const char **reason)
{
    size_t         head_len, line_len;
    ngx_uint_t     i, n;
    const u_char  *pos, *last;

    if (ngx_http_idem_head_peek(p, len, &n, reason) != NGX_OK) {
        return NGX_ERROR;
    }

    head_len = ngx_http_idem_get32(p + NGX_HTTP_IDEM_RECORD_HEAD_LEN);

    if (verify
        && ngx_http_idem_record_whole_sum(p, len)
           != ngx_http_idem_get32(p + NGX_HTTP_IDEM_RECORD_SUM))
    {
        *reason = "wrong checksum";
        return NGX_ERROR;
    }

    if (ngx_http_idem_record_fixed(p, response, reason) != NGX_OK) {
        return NGX_ERROR;
    }

    last = p + head_len;
    pos = p + NGX_HTTP_IDEM_RECORD_STATUS_LINE;

    line_len = *pos++;

    if ((size_t) (last - pos) < line_len
        || !ngx_http_idem_text_valid(pos, line_len))
    {
        *reason = "bad status line";
        return NGX_ERROR;
    }

    response->status_line.len = line_len;
    response->status_line.data = (u_char *) pos;

    pos += line_len;

    for (i = 0; i < n; i++) {
        pos = ngx_http_idem_record_header(pos, last, &response->headers[i]);
        if (pos == NULL) {
            *reason = "bad header";
            return NGX_ERROR;
        }
    }

    if (pos != last && p[2] <= NGX_HTTP_IDEM_RECORD_VERSION) {
        *reason = "wrong length";
        return NGX_ERROR;
    }

    /* pos < last: fields of a newer version are skipped */

    response->nheaders = n;

    body->data = (u_char *) last;
    body->len = len - head_len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_record_fixed(const u_char *p,
    ngx_http_idem_response_t *response, const char **reason)
{
    uint64_t  length;

    response->header_only = (p[3] & NGX_HTTP_IDEM_RECORD_HEADER_ONLY) ? 1 : 0;
    response->compressed = (p[3] & NGX_HTTP_IDEM_RECORD_COMPRESSED) ? 1 : 0;

    response->status = ngx_http_idem_get16(p + NGX_HTTP_IDEM_RECORD_STATUS);

    if (response->status < 100 || response->status > 999) {
        *reason = "bad status";
        return NGX_ERROR;
    }

    response->time = ngx_http_idem_get64(p + NGX_HTTP_IDEM_RECORD_TIME);

    length = ngx_http_idem_get64(p + NGX_HTTP_IDEM_RECORD_LENGTH);

    if (length > (uint64_t) 1 << 63) {
        *reason = "bad content length";
        return NGX_ERROR;
    }

    response->content_length = length ? (int64_t) (length - 1) : -1;

    response->body_len = ngx_http_idem_get32(p
                                     + NGX_HTTP_IDEM_RECORD_BODY_LEN);
    response->plain_len = ngx_http_idem_get32(p
                                    + NGX_HTTP_IDEM_RECORD_PLAIN_LEN);

    if ((response->header_only && response->body_len)
        || (!response->compressed
            && response->plain_len != response->body_len))
    {
        *reason = "bad body length";
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* decodes a header, returns its end, or NULL */

static const u_char *
ngx_http_idem_record_header(const u_char *p, const u_char *last,
    ngx_http_idem_header_t *header)
{
    size_t      left;
    ngx_uint_t  kind;

    left = last - p;

    if (left < NGX_HTTP_IDEM_RECORD_HEADER_MIN) {
        return NULL;
    }

    left -= NGX_HTTP_IDEM_RECORD_HEADER_MIN;

    kind = p[0];
    header->name.len = ngx_http_idem_get16(p + 1);
    header->value.len = ngx_http_idem_get32(p + 3);

    /* one by one, since the sum might overflow */

    if (header->name.len > left || header->value.len > left - header->name.len)
    {
        return NULL;
    }

    /* an unknown kind of a newer version is a plain header */

    header->kind = (kind > NGX_HTTP_IDEM_HEADER_CHARSET)
                   ? NGX_HTTP_IDEM_HEADER_PLAIN : kind;

    header->name.data = (u_char *) p + NGX_HTTP_IDEM_RECORD_HEADER_MIN;
    header->value.data = header->name.data + header->name.len;

    if (!ngx_http_idem_header_valid(&header->name, &header->value)) {
        return NULL;
    }

    header->valid = 1;

    return header->value.data + header->value.len;
}
