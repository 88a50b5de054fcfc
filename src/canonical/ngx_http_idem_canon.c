
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The canonical encoding: a stack of self-delimiting values.  Called by the
 * JSON walker and the form reader; calls OpenSSL's SHA-256, and what sorts
 * the children of a container (canon_close.c).  See the header.
 */


#include "canonical/ngx_http_idem_canon.h"


#define NGX_HTTP_IDEM_CANON_STACK_MIN  512


void
ngx_http_idem_canon_destroy(ngx_http_idem_canon_t *c)
{
    ngx_http_idem_canon_free(c->stack);
    ngx_http_idem_canon_free(c->order);
    ngx_http_idem_canon_free(c->close);
}


ngx_int_t
ngx_http_idem_canon_scalar(ngx_http_idem_canon_t *c, u_char tag,
    const u_char *p, size_t len)
{
    u_char  value[NGX_HTTP_IDEM_CANON_VALUE_MAX];

    value[0] = tag;
    value[1] = (u_char) len;

    if (len > NGX_HTTP_IDEM_CANON_INLINE_MAX) {
        value[1] = NGX_HTTP_IDEM_CANON_HASHED;
        ngx_http_idem_digest_plain(&value[2], p, len);

    } else if (len) {
        ngx_memcpy(&value[2], p, len);
    }

    return ngx_http_idem_canon_put(c, value);
}


ngx_int_t
ngx_http_idem_canon_close(ngx_http_idem_canon_t *c, u_char tag, size_t base)
{
    size_t  n;

    /* in the order in which they lie: the content is one piece, as a scalar */

    n = c->len - base;
    c->len = base;

    return ngx_http_idem_canon_scalar(c, tag, n ? c->stack + base : NULL, n);
}


ngx_int_t
ngx_http_idem_canon_put(ngx_http_idem_canon_t *c, const u_char *value)
{
    size_t  len;

    len = ngx_http_idem_canon_skip(value, 1);

    if (ngx_http_idem_canon_grow(&c->stack, c->len, &c->size, len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(c->stack + c->len, value, len);
    c->len += len;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_canon_grow(u_char **buf, size_t len, size_t *size, size_t need)
{
    u_char  *p;
    size_t   n;

    if (*size >= len + need) {
        return NGX_OK;
    }

    n = ngx_max(*size * 2, NGX_HTTP_IDEM_CANON_STACK_MIN);
    n = ngx_max(n, len + need);

    p = ngx_http_idem_canon_alloc(n);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (*buf) {
        ngx_memcpy(p, *buf, len);
        ngx_http_idem_canon_free(*buf);
    }

    *buf = p;
    *size = n;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_canon_collect(ngx_http_idem_canon_body_t *body, size_t max,
    const u_char *p, size_t len)
{
    if (len > max - body->len) {
        return NGX_DECLINED;
    }

    if (ngx_http_idem_canon_grow(&body->data, body->len, &body->size, len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(body->data + body->len, p, len);
    body->len += len;

    return NGX_OK;
}
