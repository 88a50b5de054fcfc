
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The syntax of a key: what the client may send, and what it then means.
 *
 * A key comes bare (abc-123) or as an RFC 8941 Item ("abc-123"); both name
 * the same operation.  Pure functions on bytes: called by admission, unit
 * tested by t/unit/key.c, knows nothing of a request.
 */


#ifndef _NGX_HTTP_IDEM_KEY_H_INCLUDED_
#define _NGX_HTTP_IDEM_KEY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_KEY_UUID_LEN  36
#define NGX_HTTP_IDEM_KEY_MIN  1
#define NGX_HTTP_IDEM_KEY_MAX  255


typedef enum {
    NGX_HTTP_IDEM_KEY_TOKEN = 0,             /* A-Z a-z 0-9 _ . -         */
    NGX_HTTP_IDEM_KEY_UUID,                  /* 8-4-4-4-12 hex digits     */
    NGX_HTTP_IDEM_KEY_UUID4,                 /* ... version 4, variant 1  */
    NGX_HTTP_IDEM_KEY_STRING                 /* any RFC 8941 String       */
} ngx_http_idem_key_kind_e;


typedef struct {
    ngx_http_idem_key_kind_e  kind;
    size_t                    min;           /* characters, unquoted      */
    size_t                    max;
    unsigned                  quoted_required:1;
} ngx_http_idem_key_format_t;


/*
 * Parses "raw", a field value with the surrounding white space still on it;
 * or, with "text", a JSON string, which needs no further quotes.  On NGX_OK
 * "key" is the key without quotes and escapes; it points into "raw", or into
 * "buf" (raw->len bytes of the caller's) where an escape had to be taken out.
 * On NGX_DECLINED "reason" is a short English phrase that completes "the key
 * ...", fit for the client; it never quotes the key.
 */

ngx_int_t ngx_http_idem_key_parse(const ngx_http_idem_key_format_t *format,
    const ngx_str_t *raw, ngx_uint_t text, u_char *buf, ngx_str_t *key,
    const char **reason);


#endif /* _NGX_HTTP_IDEM_KEY_H_INCLUDED_ */
