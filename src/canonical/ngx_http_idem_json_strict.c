
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A state machine over the bytes of a JSON body that finds what yajl lets
 * through and RFC 8259 does not.  Called by json_yajl.c for each piece of a
 * body before yajl sees it; calls nothing.  See the header.
 */


#include "canonical/ngx_http_idem_canon.h"
#include "canonical/ngx_http_idem_json_strict.h"


static ngx_int_t ngx_http_idem_json_strict_utf8(
    ngx_http_idem_json_strict_t *s, u_char ch);
static ngx_int_t ngx_http_idem_json_strict_hex(
    ngx_http_idem_json_strict_t *s, u_char ch);


ngx_int_t
ngx_http_idem_json_strict(ngx_http_idem_json_strict_t *s, const u_char **p,
    const u_char *last, size_t n)
{
    u_char         ch;
    ngx_int_t      rc;
    ngx_uint_t     depth;
    const u_char  *start;

    depth = 0;

    for (start = *p; *p < last; /* void */) {

        ch = *(*p)++;

        switch (s->state) {

        case NGX_HTTP_IDEM_JSON_TEXT:

            if (ch >= 0x80 || s->lead) {
                rc = ngx_http_idem_json_strict_utf8(s, ch);
                break;
            }

            if (ch == '\\') {
                s->state = NGX_HTTP_IDEM_JSON_ESCAPE;

            } else if (ch == '"') {
                s->quoted = !s->quoted;
            }

            rc = (ch == '\v' || ch == '\f') ? NGX_DECLINED : NGX_OK;
            break;

        case NGX_HTTP_IDEM_JSON_ESCAPE:

            s->state = (ch == 'u') ? NGX_HTTP_IDEM_JSON_HEX
                                   : NGX_HTTP_IDEM_JSON_TEXT;
            rc = NGX_OK;
            break;

        case NGX_HTTP_IDEM_JSON_HEX:

            rc = ngx_http_idem_json_strict_hex(s, ch);
            break;

        case NGX_HTTP_IDEM_JSON_HIGH:

            s->state = NGX_HTTP_IDEM_JSON_HIGH_ESCAPE;
            rc = (ch == '\\') ? NGX_OK : NGX_DECLINED;
            break;

        default: /* NGX_HTTP_IDEM_JSON_HIGH_ESCAPE */

            s->state = NGX_HTTP_IDEM_JSON_HEX;
            rc = (ch == 'u') ? NGX_OK : NGX_DECLINED;
            break;
        }

        if (rc != NGX_OK) {
            return rc;
        }

        if (s->quoted) {
            continue;
        }

        if (ch == '[' || ch == '{') {
            depth++;

        } else if (ch == ']' || ch == '}') {

            if (depth-- == 0) {
                break;
            }

        } else if (ch == ',' && (size_t) (*p - start) > n) {
            break;
        }
    }

    return NGX_OK;
}


/* the second byte of a sequence is where an improper one shows */

static ngx_int_t
ngx_http_idem_json_strict_utf8(ngx_http_idem_json_strict_t *s, u_char ch)
{
    u_char  lead;

    lead = s->lead;
    s->lead = 0;

    switch (lead) {

    case 0xe0:
        return (ch >= 0xa0) ? NGX_OK : NGX_DECLINED;

    case 0xed:
        return (ch <= 0x9f) ? NGX_OK : NGX_DECLINED;

    case 0xf0:
        return (ch >= 0x90) ? NGX_OK : NGX_DECLINED;

    case 0xf4:
        return (ch <= 0x8f) ? NGX_OK : NGX_DECLINED;
    }

    if (ch == 0xc0 || ch == 0xc1 || ch > 0xf4) {
        return NGX_DECLINED;
    }

    if (ch == 0xe0 || ch == 0xed || ch == 0xf0 || ch == 0xf4) {
        s->lead = ch;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_json_strict_hex(ngx_http_idem_json_strict_t *s, u_char ch)
{
    int  digit;

    digit = ngx_http_idem_canon_hex(ch);

    if (digit < 0) {
        return NGX_DECLINED;
    }

    s->code = s->code << 4 | (ngx_uint_t) digit;

    if (++s->digits < 4) {
        return NGX_OK;
    }

    ch = (u_char) (s->code >> 8 & 0xfc);

    s->digits = 0;
    s->code = 0;
    s->state = NGX_HTTP_IDEM_JSON_TEXT;

    if (s->high) {
        s->high = 0;
        return (ch == 0xdc) ? NGX_OK : NGX_DECLINED;
    }

    if (ch == 0xd8) {
        s->high = 1;
        s->state = NGX_HTTP_IDEM_JSON_HIGH;
    }

    return (ch == 0xdc) ? NGX_DECLINED : NGX_OK;
}
