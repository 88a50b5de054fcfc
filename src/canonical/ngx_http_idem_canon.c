
/*
 * The canonical encoding: a stack of self-delimiting values, and how a
 * container is sorted and folded into one of them.  Called by the JSON
 * walker and the form reader; calls OpenSSL's SHA-256.  See the header.
 */


#include "canonical/ngx_http_idem_canon.h"


#define NGX_HTTP_IDEM_CANON_HASHED     0xff
#define NGX_HTTP_IDEM_CANON_STACK_MIN  512
#define NGX_HTTP_IDEM_CANON_ORDER_MIN  64

/* so many bytes of a value are a key, and from so many on keys are sorted */
#define NGX_HTTP_IDEM_CANON_KEY_LEN    8
#define NGX_HTTP_IDEM_CANON_RADIX_MIN  32

/* small children are gathered to so many bytes before they are hashed */
#define NGX_HTTP_IDEM_CANON_GATHERED   4096


static ngx_int_t ngx_http_idem_canon_sort(ngx_http_idem_canon_t *c,
    size_t base, ngx_uint_t unit, size_t *n);
static void ngx_http_idem_canon_radix(const u_char *stack,
    uint32_t *order, uint32_t *scratch, size_t n, size_t at);
static void ngx_http_idem_canon_by_key(const u_char *stack,
    uint32_t *order, uint32_t *scratch, size_t n, size_t at);
static void ngx_http_idem_canon_insert(const u_char *stack,
    uint32_t *order, size_t n);
static uint64_t ngx_http_idem_canon_key(const u_char *p, size_t at);
static void ngx_http_idem_canon_fold(ngx_http_idem_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, size_t n, u_char *value);
static size_t ngx_http_idem_canon_skip(const u_char *p, ngx_uint_t unit);
static ngx_int_t ngx_http_idem_canon_put(
    ngx_http_idem_canon_t *c, const u_char *value);


void
ngx_http_idem_canon_init(ngx_http_idem_canon_t *c,
    const ngx_http_idem_canon_mem_t *mem)
{
    ngx_memzero(c, sizeof(ngx_http_idem_canon_t));

    c->mem = *mem;
}


void
ngx_http_idem_canon_destroy(ngx_http_idem_canon_t *c)
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
ngx_http_idem_canon_scalar(ngx_http_idem_canon_t *c, u_char tag,
    const u_char *p, size_t len)
{
    u_char     value[NGX_HTTP_IDEM_CANON_VALUE_MAX];
    ngx_str_t  content;

    value[0] = tag;

    if (len <= NGX_HTTP_IDEM_CANON_INLINE_MAX) {
        value[1] = (u_char) len;

        if (len) {
            ngx_memcpy(&value[2], p, len);
        }

        return ngx_http_idem_canon_put(c, value);
    }

    value[1] = NGX_HTTP_IDEM_CANON_HASHED;

    content.data = (u_char *) p;
    content.len = len;

    ngx_http_idem_canon_digest(&content, 1, &value[2]);

    return ngx_http_idem_canon_put(c, value);
}


ngx_int_t
ngx_http_idem_canon_close(ngx_http_idem_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, ngx_uint_t sort)
{
    size_t  n;
    u_char  value[NGX_HTTP_IDEM_CANON_VALUE_MAX];

    n = 0;

    if (sort
        && ngx_http_idem_canon_sort(c, base, unit, &n) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (n > 1) {
        ngx_http_idem_canon_fold(c, tag, base, unit, n, value);

        c->len = base;

        return ngx_http_idem_canon_put(c, value);
    }

    /* in the order in which they lie: the content is one piece, as a scalar */

    n = c->len - base;
    c->len = base;

    return ngx_http_idem_canon_scalar(c, tag,
                                      n ? c->stack + base : NULL, n);
}


/*
 * Fills c->order with the children in order.  A body of 1 MB can be half a
 * million of them, and to compare each with nineteen others would keep the
 * worker busy for a tenth of a second.  So many are sorted by the bytes of
 * their values, which takes a time in proportion to their number.
 */

static ngx_int_t
ngx_http_idem_canon_sort(ngx_http_idem_canon_t *c, size_t base,
    ngx_uint_t unit, size_t *n)
{
    u_char  *p, *last;
    size_t   i, size;

    if (c->len == base) {
        /* there may be no stack yet */
        *n = 0;
        return NGX_OK;
    }

    p = c->stack + base;
    last = c->stack + c->len;

    for (i = 0; p < last; i++) {
        p += ngx_http_idem_canon_skip(p, unit);
    }

    *n = i;

    if (i < 2) {
        return NGX_OK;
    }

    size = (i < NGX_HTTP_IDEM_CANON_RADIX_MIN) ? i : 2 * i;

    if (size > c->norder) {

        if (c->order) {
            c->mem.free(c->mem.data, c->order);
        }

        c->norder = ngx_max(size, NGX_HTTP_IDEM_CANON_ORDER_MIN);
        c->order = c->mem.alloc(c->mem.data, c->norder * sizeof(uint32_t));

        if (c->order == NULL) {
            c->norder = 0;
            return NGX_ERROR;
        }
    }

    p = c->stack + base;

    for (i = 0; p < last; i++) {
        c->order[i] = (uint32_t) (p - c->stack);
        p += ngx_http_idem_canon_skip(p, unit);
    }

    ngx_http_idem_canon_radix(c->stack, c->order, c->order + i, i, 0);

    return NGX_OK;
}


/*
 * Sorts children whose values are the same in their first "at" bytes, by the
 * next ones.  Equal ones stay in the order they came.
 */

static void
ngx_http_idem_canon_radix(const u_char *stack, uint32_t *order,
    uint32_t *scratch, size_t n, size_t at)
{
    size_t    i, end;
    uint64_t  key;

    if (n < NGX_HTTP_IDEM_CANON_RADIX_MIN) {
        ngx_http_idem_canon_insert(stack, order, n);
        return;
    }

    ngx_http_idem_canon_by_key(stack, order, scratch, n, at);

    for (i = 0; i < n; i = end) {
        key = ngx_http_idem_canon_key(stack + order[i], at);

        for (end = i + 1; end < n; end++) {
            if (ngx_http_idem_canon_key(stack + order[end], at)
                != key)
            {
                break;
            }
        }

        /* the length is in the first key: all end before that, or none */

        if (end - i > 1
            && ngx_http_idem_canon_skip(stack + order[i], 1)
               > at + NGX_HTTP_IDEM_CANON_KEY_LEN)
        {
            ngx_http_idem_canon_radix(stack, order + i, scratch, end - i,
                                      at + NGX_HTTP_IDEM_CANON_KEY_LEN);
        }
    }
}


/* by the last byte of the key, then the one before it, unless all are equal */

static void
ngx_http_idem_canon_by_key(const u_char *stack, uint32_t *order,
    uint32_t *scratch, size_t n, size_t at)
{
    size_t       i, sum, count;
    uint64_t     key, first, differ;
    uint32_t     counts[256], *from, *to, *swap;
    ngx_uint_t   shift, value;

    differ = 0;
    first = ngx_http_idem_canon_key(stack + order[0], at);

    for (i = 1; i < n; i++) {
        differ |= ngx_http_idem_canon_key(stack + order[i], at)
                  ^ first;
    }

    from = order;
    to = scratch;

    for (shift = 0; shift < 64; shift += 8) {

        if (((differ >> shift) & 0xff) == 0) {
            continue;
        }

        ngx_memzero(counts, sizeof(counts));

        for (i = 0; i < n; i++) {
            key = ngx_http_idem_canon_key(stack + from[i], at);
            counts[(key >> shift) & 0xff]++;
        }

        sum = 0;

        for (value = 0; value < 256; value++) {
            count = counts[value];
            counts[value] = (uint32_t) sum;
            sum += count;
        }

        for (i = 0; i < n; i++) {
            key = ngx_http_idem_canon_key(stack + from[i], at);
            to[counts[(key >> shift) & 0xff]++] = from[i];
        }

        swap = from;
        from = to;
        to = swap;
    }

    if (from != order) {
        ngx_memcpy(order, from, n * sizeof(uint32_t));
    }
}


static void
ngx_http_idem_canon_insert(const u_char *stack, uint32_t *order, size_t n)
{
    size_t         i, k, len;
    uint32_t       child;
    const u_char  *p;

    for (i = 1; i < n; i++) {
        child = order[i];
        p = stack + child;
        len = ngx_http_idem_canon_skip(p, 1);

        /*
         * Neither value can be the beginning of another one: where they
         * differ is within the shorter one.
         */

        for (k = i; k; k--) {
            if (ngx_memcmp(stack + order[k - 1], p,
                           ngx_min(len, ngx_http_idem_canon_skip(
                                                    stack + order[k - 1], 1)))
                <= 0)
            {
                break;
            }

            order[k] = order[k - 1];
        }

        order[k] = child;
    }
}


/* a value that ends before has zeroes there */

static uint64_t
ngx_http_idem_canon_key(const u_char *p, size_t at)
{
    size_t    len;
    uint64_t  key;

    len = ngx_http_idem_canon_skip(p, 1);

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

    if (len < NGX_HTTP_IDEM_CANON_KEY_LEN) {
        len = 8 * (NGX_HTTP_IDEM_CANON_KEY_LEN - len);
        key = (key >> len) << len;
    }

    return key;
}


static void
ngx_http_idem_canon_fold(ngx_http_idem_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, size_t n, u_char *value)
{
    u_char                  *p, *last, *child;
    size_t                   i, len;
    u_char                   buf[NGX_HTTP_IDEM_CANON_GATHERED];
    ngx_http_idem_digest_t   d;

    value[0] = tag;
    len = c->len - base;

    if (len <= NGX_HTTP_IDEM_CANON_INLINE_MAX) {
        value[1] = (u_char) len;
        p = &value[2];

        for (i = 0; i < n; i++) {
            child = c->stack + c->order[i];
            len = ngx_http_idem_canon_skip(child, unit);
            p = ngx_cpymem(p, child, len);
        }

        return;
    }

    value[1] = NGX_HTTP_IDEM_CANON_HASHED;

    ngx_http_idem_digest_start(&d);

    p = buf;
    last = buf + sizeof(buf);

    for (i = 0; i < n; i++) {
        child = c->stack + c->order[i];
        len = ngx_http_idem_canon_skip(child, unit);

        if (len > (size_t) (last - p)) {
            ngx_http_idem_digest_update(&d, buf, p - buf);
            p = buf;
        }

        p = ngx_cpymem(p, child, len);
    }

    ngx_http_idem_digest_update(&d, buf, p - buf);
    ngx_http_idem_digest_done(&d, &value[2]);
}


static size_t
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


static ngx_int_t
ngx_http_idem_canon_put(ngx_http_idem_canon_t *c, const u_char *value)
{
    size_t  len;

    len = ngx_http_idem_canon_skip(value, 1);

    if (ngx_http_idem_canon_grow(&c->mem, &c->stack, c->len, &c->size,
                                    len + NGX_HTTP_IDEM_CANON_KEY_LEN)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(c->stack + c->len, value, len);
    c->len += len;

    return NGX_OK;
}


void
ngx_http_idem_canon_digest(const ngx_str_t *piece, ngx_uint_t n,
    u_char *digest)
{
    ngx_uint_t              i;
    ngx_http_idem_digest_t  d;

    ngx_http_idem_digest_start(&d);

    for (i = 0; i < n; i++) {
        ngx_http_idem_digest_update(&d, piece[i].data, piece[i].len);
    }

    ngx_http_idem_digest_done(&d, digest);
}


ngx_int_t
ngx_http_idem_canon_grow(const ngx_http_idem_canon_mem_t *mem,
    u_char **buf, size_t len, size_t *size, size_t need)
{
    u_char  *p;
    size_t   n;

    if (*size >= len + need) {
        return NGX_OK;
    }

    n = ngx_max(*size * 2, NGX_HTTP_IDEM_CANON_STACK_MIN);
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
