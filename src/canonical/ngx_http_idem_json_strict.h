
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What yajl lets through and RFC 8259 does not, looked for in the bytes on
 * their way to the parser:
 *
 *   - a surrogate escape without its other half: yajl turns "\ud800" into
 *     "?", and "\ud800\u0041" into some other character;
 *   - UTF-8 that is longer than it need be, encodes a surrogate, or lies
 *     beyond U+10FFFF: yajl checks only how many bytes follow which;
 *   - vertical tab and form feed as white space;
 *   - a string behind the document that does not end: {}"anything.
 *
 * Each would let two different texts, or one that is no JSON, pass as the
 * same document.  Everything else is left to yajl.  A backslash or a byte
 * above 0x7f is taken as if it were in a string: outside of one, it is an
 * error to yajl anyway.  Pure; called by json_yajl.c.
 */


#ifndef _NGX_HTTP_IDEM_JSON_STRICT_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_STRICT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef enum {
    NGX_HTTP_IDEM_JSON_TEXT = 0,
    NGX_HTTP_IDEM_JSON_ESCAPE,               /* behind a backslash        */
    NGX_HTTP_IDEM_JSON_HEX,                  /* in the digits of \uXXXX   */
    NGX_HTTP_IDEM_JSON_HIGH,                 /* behind a high surrogate   */
    NGX_HTTP_IDEM_JSON_HIGH_ESCAPE           /* ... and a backslash       */
} ngx_http_idem_json_strict_e;


/* all zero is the beginning of a body */

typedef struct {
    ngx_http_idem_json_strict_e  state;
    ngx_uint_t                   code;             /* of \uXXXX, so far   */
    u_char                       digits;           /* of it, so far       */
    u_char                       lead;             /* byte whose follower
                                                      has a limited range */
    unsigned                     high:1;           /* low half must come  */
    unsigned                     quoted:1;         /* in a string: at the
                                                      end, not to be      */
} ngx_http_idem_json_strict_t;


/*
 * Reads a piece, and moves "p" behind it: up to the end of a container that was
 * opened in a piece before, or to the first comma behind "n" bytes, or to the
 * end.  So no token is in two pieces, which yajl would read twice.  NGX_OK, or
 * NGX_DECLINED: not to be parsed.
 */

ngx_int_t ngx_http_idem_json_strict(ngx_http_idem_json_strict_t *s,
    const u_char **p, const u_char *last, size_t n);


#endif /* _NGX_HTTP_IDEM_JSON_STRICT_H_INCLUDED_ */
