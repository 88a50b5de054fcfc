
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Integers in network byte order, for data that leaves the process or is
 * hashed.
 */


#ifndef _NGX_HTTP_IDEM_NUMBER_H_INCLUDED_
#define _NGX_HTTP_IDEM_NUMBER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


static ngx_inline u_char *
ngx_http_idem_put16(u_char *p, ngx_uint_t n)
{
    *p++ = (u_char) (n >> 8);
    *p++ = (u_char) n;

    return p;
}


static ngx_inline u_char *
ngx_http_idem_put32(u_char *p, uint32_t n)
{
    p = ngx_http_idem_put16(p, n >> 16);

    return ngx_http_idem_put16(p, n & 0xffff);
}


static ngx_inline u_char *
ngx_http_idem_put64(u_char *p, uint64_t n)
{
    p = ngx_http_idem_put32(p, (uint32_t) (n >> 32));

    return ngx_http_idem_put32(p, (uint32_t) n);
}


static ngx_inline ngx_uint_t
ngx_http_idem_get16(const u_char *p)
{
    return (ngx_uint_t) p[0] << 8 | p[1];
}


static ngx_inline uint32_t
ngx_http_idem_get32(const u_char *p)
{
    return (uint32_t) ngx_http_idem_get16(p) << 16
           | (uint32_t) ngx_http_idem_get16(p + 2);
}


static ngx_inline uint64_t
ngx_http_idem_get64(const u_char *p)
{
    return (uint64_t) ngx_http_idem_get32(p) << 32
           | ngx_http_idem_get32(p + 4);
}


#endif /* _NGX_HTTP_IDEM_NUMBER_H_INCLUDED_ */
