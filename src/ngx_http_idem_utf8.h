
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * UTF-8, for text of clients that goes where only UTF-8 is taken: JSON, and
 * columns of PostgreSQL.
 */


#ifndef _NGX_HTTP_IDEM_UTF8_H_INCLUDED_
#define _NGX_HTTP_IDEM_UTF8_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * The length of a character, or 0.  ngx_utf8_decode() accepts surrogates, and
 * any byte above 0x7f as a continuation.
 */

static ngx_inline size_t
ngx_http_idem_utf8_len(const u_char *src, const u_char *last)
{
    u_char    *p;
    uint32_t   ch;

    if (*src < 0x80) {
        return 1;
    }

    p = (u_char *) src;
    ch = ngx_utf8_decode(&p, last - src);

    if (*src >= 0xf8 || ch > 0x10ffff || (ch >= 0xd800 && ch <= 0xdfff)) {
        return 0;
    }

    last = p;

    while (--p > src) {
        if ((*p & 0xc0) != 0x80) {
            return 0;
        }
    }

    return last - src;
}


#endif /* _NGX_HTTP_IDEM_UTF8_H_INCLUDED_ */
