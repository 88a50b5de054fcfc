
/*
 * The canonical encoding: a stack of self-delimiting values, and how a
 * container is sorted and folded into one of them.  Called by the JSON
 * walker and the form reader; calls OpenSSL's SHA-256.  See the header.
 */


#include "request/canonical/ngx_http_idempotency_canon.h"


#define NGX_HTTP_IDEMPOTENCY_CANON_HASHED     0xff
#define NGX_HTTP_IDEMPOTENCY_CANON_STACK_MIN  512
#define NGX_HTTP_IDEMPOTENCY_CANON_ORDER_MIN  64


static ngx_int_t ngx_http_idempotency_canon_sort(
    ngx_http_idempotency_canon_t *c, size_t base, ngx_uint_t unit,
    size_t *n);
static void ngx_http_idempotency_canon_fold(
    ngx_http_idempotency_canon_t *c, u_char tag, size_t base,
    ngx_uint_t unit, size_t n, u_char *value);
static int ngx_http_idempotency_canon_cmp(const void *one, const void *two);
static size_t ngx_http_idempotency_canon_skip(const u_char *p,
    ngx_uint_t unit);
static ngx_int_t ngx_http_idempotency_canon_put(
    ngx_http_idempotency_canon_t *c, const u_char *value);


void
ngx_http_idempotency_canon_init(ngx_http_idempotency_canon_t *c,
    const ngx_http_idempotency_canon_mem_t *mem)
{
    ngx_memzero(c, sizeof(ngx_http_idempotency_canon_t));

    c->mem = *mem;
}


void
ngx_http_idempotency_canon_destroy(ngx_http_idempotency_canon_t *c)
{
    if (c->stack) {
        c->mem.free(c->mem.data, c->stack);
        c->stack = NULL;
    }

    if (c->order) {
        c->mem.free(c->mem.data, c->order);
        c->order = NULL;
    }
}


ngx_int_t
ngx_http_idempotency_canon_scalar(ngx_http_idempotency_canon_t *c, u_char tag,
    const u_char *p, size_t len)
{
    u_char     value[NGX_HTTP_IDEMPOTENCY_CANON_VALUE_MAX];
    ngx_str_t  content;

    value[0] = tag;

    if (len <= NGX_HTTP_IDEMPOTENCY_CANON_INLINE_MAX) {
        value[1] = (u_char) len;

        if (len) {
            ngx_memcpy(&value[2], p, len);
        }

        return ngx_http_idempotency_canon_put(c, value);
    }

    value[1] = NGX_HTTP_IDEMPOTENCY_CANON_HASHED;

    content.data = (u_char *) p;
    content.len = len;

    ngx_http_idempotency_canon_digest(&content, 1, &value[2]);

    return ngx_http_idempotency_canon_put(c, value);
}


ngx_int_t
ngx_http_idempotency_canon_close(ngx_http_idempotency_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, ngx_uint_t sort)
{
    size_t  n;
    u_char  value[NGX_HTTP_IDEMPOTENCY_CANON_VALUE_MAX];

    n = 0;

    if (sort
        && ngx_http_idempotency_canon_sort(c, base, unit, &n) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (n > 1) {
        ngx_http_idempotency_canon_fold(c, tag, base, unit, n, value);

        c->len = base;

        return ngx_http_idempotency_canon_put(c, value);
    }

    /* in the order in which they lie: the content is one piece, as a scalar */

    n = c->len - base;
    c->len = base;

    return ngx_http_idempotency_canon_scalar(c, tag,
                                             n ? c->stack + base : NULL, n);
}


/*
 * Fills c->order with the children in order.  qsort() is a merge sort in
 * glibc and a smoothsort in musl: no names make it quadratic.  Equal ones are
 * told apart by their address, which is the order they came in, so that it
 * does not have to be stable.
 */

static ngx_int_t
ngx_http_idempotency_canon_sort(ngx_http_idempotency_canon_t *c, size_t base,
    ngx_uint_t unit, size_t *n)
{
    u_char  *p, *last;
    size_t   i;

    if (c->len == base) {
        /* there may be no stack yet */
        *n = 0;
        return NGX_OK;
    }

    p = c->stack + base;
    last = c->stack + c->len;

    for (i = 0; p < last; i++) {
        p += ngx_http_idempotency_canon_skip(p, unit);
    }

    *n = i;

    if (i < 2) {
        return NGX_OK;
    }

    if (i > c->norder) {

        if (c->order) {
            c->mem.free(c->mem.data, c->order);
        }

        c->norder = ngx_max(i, NGX_HTTP_IDEMPOTENCY_CANON_ORDER_MIN);
        c->order = c->mem.alloc(c->mem.data, c->norder * sizeof(u_char *));

        if (c->order == NULL) {
            c->norder = 0;
            return NGX_ERROR;
        }
    }

    p = c->stack + base;

    for (i = 0; p < last; i++) {
        c->order[i] = p;
        p += ngx_http_idempotency_canon_skip(p, unit);
    }

    ngx_qsort(c->order, i, sizeof(u_char *), ngx_http_idempotency_canon_cmp);

    return NGX_OK;
}


static void
ngx_http_idempotency_canon_fold(ngx_http_idempotency_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, size_t n, u_char *value)
{
    u_char                         *p;
    size_t                          i, len;
    ngx_http_idempotency_digest_t   d;

    value[0] = tag;
    len = c->len - base;

    if (len <= NGX_HTTP_IDEMPOTENCY_CANON_INLINE_MAX) {
        value[1] = (u_char) len;
        p = &value[2];

        for (i = 0; i < n; i++) {
            len = ngx_http_idempotency_canon_skip(c->order[i], unit);
            p = ngx_cpymem(p, c->order[i], len);
        }

        return;
    }

    value[1] = NGX_HTTP_IDEMPOTENCY_CANON_HASHED;

    ngx_http_idempotency_digest_start(&d);

    for (i = 0; i < n; i++) {
        len = ngx_http_idempotency_canon_skip(c->order[i], unit);
        ngx_http_idempotency_digest_update(&d, c->order[i], len);
    }

    ngx_http_idempotency_digest_done(&d, &value[2]);
}


static int
ngx_http_idempotency_canon_cmp(const void *one, const void *two)
{
    int      rc;
    size_t   n1, n2;
    u_char  *p1, *p2;

    p1 = *(u_char **) one;
    p2 = *(u_char **) two;

    n1 = ngx_http_idempotency_canon_skip(p1, 1);
    n2 = ngx_http_idempotency_canon_skip(p2, 1);

    /* neither value can be the beginning of another one */

    rc = ngx_memcmp(p1, p2, ngx_min(n1, n2));

    if (rc) {
        return rc;
    }

    return (p1 < p2) ? -1 : (p1 > p2);
}


static size_t
ngx_http_idempotency_canon_skip(const u_char *p, ngx_uint_t unit)
{
    size_t  len, n;

    for (len = 0; unit; unit--) {
        n = p[len + 1];

        if (n == NGX_HTTP_IDEMPOTENCY_CANON_HASHED) {
            n = NGX_HTTP_IDEMPOTENCY_CANON_DIGEST_LEN;
        }

        len += 2 + n;
    }

    return len;
}


static ngx_int_t
ngx_http_idempotency_canon_put(ngx_http_idempotency_canon_t *c,
    const u_char *value)
{
    size_t  len;

    len = ngx_http_idempotency_canon_skip(value, 1);

    if (ngx_http_idempotency_canon_grow(&c->mem, &c->stack, c->len, &c->size,
                                        len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(c->stack + c->len, value, len);
    c->len += len;

    return NGX_OK;
}


void
ngx_http_idempotency_canon_digest(const ngx_str_t *piece, ngx_uint_t n,
    u_char *digest)
{
    ngx_uint_t                     i;
    ngx_http_idempotency_digest_t  d;

    ngx_http_idempotency_digest_start(&d);

    for (i = 0; i < n; i++) {
        ngx_http_idempotency_digest_update(&d, piece[i].data, piece[i].len);
    }

    ngx_http_idempotency_digest_done(&d, digest);
}


ngx_int_t
ngx_http_idempotency_canon_grow(const ngx_http_idempotency_canon_mem_t *mem,
    u_char **buf, size_t len, size_t *size, size_t need)
{
    u_char  *p;
    size_t   n;

    if (*size >= len + need) {
        return NGX_OK;
    }

    n = ngx_max(*size * 2, NGX_HTTP_IDEMPOTENCY_CANON_STACK_MIN);
    n = ngx_max(n, len + need);

    p = mem->alloc(mem->data, n);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (*buf) {
        ngx_memcpy(p, *buf, len);
        mem->free(mem->data, *buf);
    }

    *buf = p;
    *size = n;

    return NGX_OK;
}
