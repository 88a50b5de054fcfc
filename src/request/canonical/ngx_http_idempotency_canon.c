
/*
 * The canonical encoding: a stack of self-delimiting values, and how a
 * container is sorted and folded into one of them.  Called by the JSON
 * walker and the form reader; calls OpenSSL's SHA-256.  See the header.
 */


#include "request/canonical/ngx_http_idempotency_canon.h"


#define NGX_HTTP_IDEMPOTENCY_CANON_HASHED     0xff
#define NGX_HTTP_IDEMPOTENCY_CANON_STACK_MIN  512
#define NGX_HTTP_IDEMPOTENCY_CANON_ORDER_MIN  64

/* so many bytes of a value are a key, and from so many on keys are sorted */
#define NGX_HTTP_IDEMPOTENCY_CANON_KEY_LEN    8
#define NGX_HTTP_IDEMPOTENCY_CANON_RADIX_MIN  256

/* small children are gathered to so many bytes before they are hashed */
#define NGX_HTTP_IDEMPOTENCY_CANON_GATHERED   4096


static ngx_int_t ngx_http_idempotency_canon_sort(
    ngx_http_idempotency_canon_t *c, size_t base, ngx_uint_t unit,
    size_t *n);
static void ngx_http_idempotency_canon_radix(
    ngx_http_idempotency_canon_child_t *child,
    ngx_http_idempotency_canon_child_t *scratch, size_t n, size_t at);
static void ngx_http_idempotency_canon_by_key(
    ngx_http_idempotency_canon_child_t *child,
    ngx_http_idempotency_canon_child_t *scratch, size_t n);
static uint64_t ngx_http_idempotency_canon_key(const u_char *p, size_t at);
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
 * Fills c->order with the children in order.  A body of 1 MB can be half a
 * million of them, and to compare each with nineteen others would keep the
 * worker busy for a tenth of a second.  So many are sorted by the bytes of
 * their values, which takes a time in proportion to their number.
 */

static ngx_int_t
ngx_http_idempotency_canon_sort(ngx_http_idempotency_canon_t *c, size_t base,
    ngx_uint_t unit, size_t *n)
{
    u_char                              *p, *last;
    size_t                               i, size;
    ngx_http_idempotency_canon_child_t  *child;

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

    size = (i < NGX_HTTP_IDEMPOTENCY_CANON_RADIX_MIN) ? i : 2 * i;

    if (size > c->norder) {

        if (c->order) {
            c->mem.free(c->mem.data, c->order);
        }

        c->norder = ngx_max(size, NGX_HTTP_IDEMPOTENCY_CANON_ORDER_MIN);
        c->order = c->mem.alloc(c->mem.data,
                                c->norder
                                * sizeof(ngx_http_idempotency_canon_child_t));

        if (c->order == NULL) {
            c->norder = 0;
            return NGX_ERROR;
        }
    }

    p = c->stack + base;
    child = c->order;

    for (i = 0; p < last; i++) {
        child[i].key = ngx_http_idempotency_canon_key(p, 0);
        child[i].p = p;
        p += ngx_http_idempotency_canon_skip(p, unit);
    }

    ngx_http_idempotency_canon_radix(child, child + i, i, 0);

    return NGX_OK;
}


/*
 * Sorts children whose values are the same in their first "at" bytes, and
 * whose keys are the next ones.  Equal ones stay in the order they came.
 */

static void
ngx_http_idempotency_canon_radix(ngx_http_idempotency_canon_child_t *child,
    ngx_http_idempotency_canon_child_t *scratch, size_t n, size_t at)
{
    size_t    i, k, end;
    uint64_t  key;

    if (n < NGX_HTTP_IDEMPOTENCY_CANON_RADIX_MIN) {
        ngx_qsort(child, n, sizeof(ngx_http_idempotency_canon_child_t),
                  ngx_http_idempotency_canon_cmp);
        return;
    }

    ngx_http_idempotency_canon_by_key(child, scratch, n);

    at += NGX_HTTP_IDEMPOTENCY_CANON_KEY_LEN;

    for (i = 0; i < n; i = end) {
        key = child[i].key;

        for (end = i + 1; end < n && child[end].key == key; end++) {
            /* void */
        }

        /* the length is in the first key: all end before "at", or none */

        if (end - i == 1
            || ngx_http_idempotency_canon_skip(child[i].p, 1) <= at)
        {
            continue;
        }

        for (k = i; k < end; k++) {
            child[k].key = ngx_http_idempotency_canon_key(child[k].p, at);
        }

        ngx_http_idempotency_canon_radix(child + i, scratch, end - i, at);
    }
}


/* by the last byte of the key, then the one before it, unless all are equal */

static void
ngx_http_idempotency_canon_by_key(ngx_http_idempotency_canon_child_t *child,
    ngx_http_idempotency_canon_child_t *scratch, size_t n)
{
    size_t                               i, sum, count;
    uint64_t                             differ;
    uint32_t                             counts[256];
    ngx_uint_t                           shift, value;
    ngx_http_idempotency_canon_child_t  *from, *to, *swap;

    differ = 0;

    for (i = 1; i < n; i++) {
        differ |= child[i].key ^ child[0].key;
    }

    from = child;
    to = scratch;

    for (shift = 0; shift < 64; shift += 8) {

        if (((differ >> shift) & 0xff) == 0) {
            continue;
        }

        ngx_memzero(counts, sizeof(counts));

        for (i = 0; i < n; i++) {
            counts[(from[i].key >> shift) & 0xff]++;
        }

        sum = 0;

        for (value = 0; value < 256; value++) {
            count = counts[value];
            counts[value] = (uint32_t) sum;
            sum += count;
        }

        for (i = 0; i < n; i++) {
            to[counts[(from[i].key >> shift) & 0xff]++] = from[i];
        }

        swap = from;
        from = to;
        to = swap;
    }

    if (from != child) {
        ngx_memcpy(child, from,
                   n * sizeof(ngx_http_idempotency_canon_child_t));
    }
}


/* a value that ends before has zeroes there */

static uint64_t
ngx_http_idempotency_canon_key(const u_char *p, size_t at)
{
    size_t    len;
    uint64_t  key;

    len = ngx_http_idempotency_canon_skip(p, 1);

    if (len <= at) {
        return 0;
    }

    /* the stack goes on for so many bytes behind its last value */

    p += at;
    len -= at;

    key = (uint64_t) p[0] << 56 | (uint64_t) p[1] << 48
          | (uint64_t) p[2] << 40 | (uint64_t) p[3] << 32
          | (uint64_t) p[4] << 24 | (uint64_t) p[5] << 16
          | (uint64_t) p[6] << 8 | (uint64_t) p[7];

    if (len < NGX_HTTP_IDEMPOTENCY_CANON_KEY_LEN) {
        len = 8 * (NGX_HTTP_IDEMPOTENCY_CANON_KEY_LEN - len);
        key = (key >> len) << len;
    }

    return key;
}


static void
ngx_http_idempotency_canon_fold(ngx_http_idempotency_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, size_t n, u_char *value)
{
    u_char                         *p, *last;
    size_t                          i, len;
    u_char                          buf[NGX_HTTP_IDEMPOTENCY_CANON_GATHERED];
    ngx_http_idempotency_digest_t   d;

    value[0] = tag;
    len = c->len - base;

    if (len <= NGX_HTTP_IDEMPOTENCY_CANON_INLINE_MAX) {
        value[1] = (u_char) len;
        p = &value[2];

        for (i = 0; i < n; i++) {
            len = ngx_http_idempotency_canon_skip(c->order[i].p, unit);
            p = ngx_cpymem(p, c->order[i].p, len);
        }

        return;
    }

    value[1] = NGX_HTTP_IDEMPOTENCY_CANON_HASHED;

    ngx_http_idempotency_digest_start(&d);

    p = buf;
    last = buf + sizeof(buf);

    for (i = 0; i < n; i++) {
        len = ngx_http_idempotency_canon_skip(c->order[i].p, unit);

        if (len > (size_t) (last - p)) {
            ngx_http_idempotency_digest_update(&d, buf, p - buf);
            p = buf;
        }

        p = ngx_cpymem(p, c->order[i].p, len);
    }

    ngx_http_idempotency_digest_update(&d, buf, p - buf);
    ngx_http_idempotency_digest_done(&d, &value[2]);
}


static int
ngx_http_idempotency_canon_cmp(const void *one, const void *two)
{
    int                                        rc;
    size_t                                     n1, n2;
    const ngx_http_idempotency_canon_child_t  *c1, *c2;

    c1 = one;
    c2 = two;

    if (c1->key != c2->key) {
        return (c1->key < c2->key) ? -1 : 1;
    }

    n1 = ngx_http_idempotency_canon_skip(c1->p, 1);
    n2 = ngx_http_idempotency_canon_skip(c2->p, 1);

    /* neither value can be the beginning of another one */

    rc = ngx_memcmp(c1->p, c2->p, ngx_min(n1, n2));

    if (rc) {
        return rc;
    }

    return (c1->p < c2->p) ? -1 : (c1->p > c2->p);
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
                                    len + NGX_HTTP_IDEMPOTENCY_CANON_KEY_LEN)
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
