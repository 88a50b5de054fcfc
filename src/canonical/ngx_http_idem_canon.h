
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The canonical encoding: what a parsed body comes down to before it is
 * hashed.  Used by the JSON walker and by the form reader, which push values
 * as they stream by; one stack of bytes, no tree, no recursion.
 *
 * A value is a tag, a length byte and its content, if that has at most 32
 * bytes; or a tag, the mark "hashed" and the SHA-256 of its content.
 * Either form tells where it ends, so a sequence of values can be read back
 * in one way only.  A container's content is the sequence of its children;
 * closing it replaces them by the container's own, short, encoding.  Hence
 * different documents have different encodings, up to a collision of
 * SHA-256, and the memory stays proportional to the text.
 *
 * Pure: no request, no pool; memory comes from the caller's functions.
 */


#ifndef _NGX_HTTP_IDEM_CANON_H_INCLUDED_
#define _NGX_HTTP_IDEM_CANON_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_digest.h"


#define NGX_HTTP_IDEM_CANON_DIGEST_LEN  32
#define NGX_HTTP_IDEM_CANON_INLINE_MAX  32
#define NGX_HTTP_IDEM_CANON_HASHED      0xff     /* in place of a length  */

/* tag, length, content */
#define NGX_HTTP_IDEM_CANON_VALUE_MAX                                         \
    (2 + NGX_HTTP_IDEM_CANON_INLINE_MAX)


/* the tags are hashed: a change of one is a change of the scheme */

#define NGX_HTTP_IDEM_CANON_STRING    's'
#define NGX_HTTP_IDEM_CANON_NUMBER    'n'
#define NGX_HTTP_IDEM_CANON_TRUE      't'
#define NGX_HTTP_IDEM_CANON_FALSE     'f'
#define NGX_HTTP_IDEM_CANON_NULL      'z'
#define NGX_HTTP_IDEM_CANON_ARRAY     'a'
#define NGX_HTTP_IDEM_CANON_SET       'u'            /* array, any order  */
#define NGX_HTTP_IDEM_CANON_OBJECT    'o'
#define NGX_HTTP_IDEM_CANON_FORM      'q'


/*
 * Memory of the parsers, of no pool; the room above says from where, and tests
 * count it.  "free" may be given NULL.
 */
void *ngx_http_idem_canon_alloc(size_t size);
void ngx_http_idem_canon_free(void *p);


/* zeroed */

static ngx_inline void *
ngx_http_idem_canon_calloc(size_t size)
{
    void  *p;

    p = ngx_http_idem_canon_alloc(size);

    if (p) {
        ngx_memzero(p, size);
    }

    return p;
}


/* the body that is to be parsed, as far as it was fed */

typedef struct {
    u_char                        *data;
    size_t                         len;
    size_t                         size;
} ngx_http_idem_canon_body_t;


typedef struct ngx_http_idem_canon_close_s  ngx_http_idem_canon_close_t;


/* zeroed at first */

typedef struct {
    u_char                        *stack;
    size_t                         len;       /* of the stack, in use     */
    size_t                         size;

    uint32_t                      *order;     /* where on the stack: to   */
    size_t                         norder;    /* sort children in         */
    ngx_http_idem_canon_close_t   *close;     /* of a large container     */
} ngx_http_idem_canon_t;


void ngx_http_idem_canon_destroy(ngx_http_idem_canon_t *c);


/* These push; NGX_ERROR if there is no memory. */

ngx_int_t ngx_http_idem_canon_scalar(ngx_http_idem_canon_t *c,
    u_char tag, const u_char *p, size_t len);

/*
 * Closes a container: all that was pushed since the stack was "base" long is
 * its content.
 */
ngx_int_t ngx_http_idem_canon_close(ngx_http_idem_canon_t *c,
    u_char tag, size_t base);

/*
 * The same, sorted, in steps.  There are "n" children; a child is "unit"
 * values in a row: 1 in an array; 2, a name and a value, in an object.
 * Children are ordered by the first value of each; those with the same one
 * stay in the order they came.  NGX_AGAIN: step on, and push nothing until
 * that says NGX_OK.  "work" is how much to do in a step: 1 is a few
 * nanoseconds.
 */
ngx_int_t ngx_http_idem_canon_close_start(ngx_http_idem_canon_t *c,
    u_char tag, size_t base, ngx_uint_t unit, size_t n);
ngx_int_t ngx_http_idem_canon_close_step(ngx_http_idem_canon_t *c,
    size_t work);


/* one value that is encoded already */

ngx_int_t ngx_http_idem_canon_put(ngx_http_idem_canon_t *c,
    const u_char *value);

/* the bytes of the "unit" values at p: a sort asks millions of times */

static ngx_inline size_t
ngx_http_idem_canon_skip(const u_char *p, ngx_uint_t unit)
{
    size_t  len, n;

    for (len = 0; unit; unit--) {
        n = p[len + 1];

        if (n == NGX_HTTP_IDEM_CANON_HASHED) {
            n = NGX_HTTP_IDEM_CANON_DIGEST_LEN;
        }

        len += 2 + n;
    }

    return len;
}


/* by their bytes; of two that begin alike the shorter one comes first */

static ngx_inline int
ngx_http_idem_canon_cmp(const u_char *p1, size_t n1, const u_char *p2,
    size_t n2)
{
    int  rc;

    rc = ngx_min(n1, n2) ? ngx_memcmp(p1, p2, ngx_min(n1, n2)) : 0;

    return rc ? rc : (n1 < n2) ? -1 : (n1 > n2);
}


/* the value of a hexadecimal digit, or -1 */

static ngx_inline int
ngx_http_idem_canon_hex(u_char ch)
{
    if (ch >= '0' && ch <= '9') {
        return ch - '0';
    }

    ch |= 0x20;

    return (ch >= 'a' && ch <= 'f') ? ch - 'a' + 10 : -1;
}


/*
 * Makes room for "need" more bytes behind the first "len" of *buf, at least
 * doubling it: for the growing buffers here and next door.
 */
ngx_int_t ngx_http_idem_canon_grow(u_char **buf, size_t len, size_t *size,
    size_t need);

/* NGX_DECLINED: it would be longer than "max" */
ngx_int_t ngx_http_idem_canon_collect(ngx_http_idem_canon_body_t *body,
    size_t max, const u_char *p, size_t len);


#endif /* _NGX_HTTP_IDEM_CANON_H_INCLUDED_ */
