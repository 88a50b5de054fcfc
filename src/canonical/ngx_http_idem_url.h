
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * URLs that mean the same, as the same text (RFC 3986, 6.2): for derived keys
 * that are made of a URL (idempotency_dedupe ... normalize=url).
 *
 *   - scheme and host in lower case, without the scheme's own port;
 *   - no dot segments, "/" for an empty path, no fragment;
 *   - what need not be escaped is not, what must be is, in capitals;
 *   - arguments by name, those of one name in their order; none that is empty,
 *     and none that is to be stripped.
 *
 * What is no absolute URL with a host, or is longer than the limit, is
 * DECLINED: it counts as it is.  Pure: no request, no pool.
 */


#ifndef _NGX_HTTP_IDEM_URL_H_INCLUDED_
#define _NGX_HTTP_IDEM_URL_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_URL_MAX   8192

/*
 * Room for the result of a URL of "len" bytes: each may become %XX, and there
 * is a "/"; and for its arguments before they are sorted.
 */
#define ngx_http_idem_url_room(len)  (2 * (3 * (len) + 1))

/* ... which are so many at the most */
#define ngx_http_idem_url_args(len)  ((len) / 2 + 1)


/*
 * "strip" are names of arguments, or their beginnings with a "*" behind.
 * "args" is room for arguments, "buf" for the result.
 */
ngx_int_t ngx_http_idem_url_normalize(const ngx_str_t *url,
    const ngx_str_t *strip, ngx_uint_t nstrip, ngx_str_t *args, u_char *buf,
    ngx_str_t *result);


#endif /* _NGX_HTTP_IDEM_URL_H_INCLUDED_ */
