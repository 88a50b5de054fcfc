
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
    size_t  i, n;

    n = (*src < 0x80) ? 1 : (*src < 0xc2) ? 0 : (*src < 0xe0) ? 2
        : (*src < 0xf0) ? 3 : (*src < 0xf5) ? 4 : 0;

    if ((size_t) (last - src) < n) {
        return 0;
    }

    for (i = 1; i < n; i++) {
        if ((src[i] & 0xc0) != 0x80) {
            return 0;
        }
    }

    /* longer than need be, a surrogate, or beyond U+10FFFF */

    if ((*src == 0xe0 && src[1] < 0xa0) || (*src == 0xed && src[1] > 0x9f)
        || (*src == 0xf0 && src[1] < 0x90) || (*src == 0xf4 && src[1] > 0x8f))
    {
        return 0;
    }

    return n;
}


#endif /* _NGX_HTTP_IDEM_UTF8_H_INCLUDED_ */
