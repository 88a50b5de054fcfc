
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * How a container whose children are in any order is sorted and folded into
 * one value of the canonical stack (canon.c).
 *
 * A body of 1 MB can be half a million children.  To compare each with
 * nineteen others would take a tenth of a second; so many are sorted by the
 * bytes of their values, which takes a time in proportion to their number.
 * That is still tens of milliseconds in which a worker would serve nobody
 * else.  So it is done in steps, each of a bounded amount of work; what is
 * between them is in ngx_http_idem_canon_close_t.
 */


#include "canonical/ngx_http_idem_canon.h"


#define NGX_HTTP_IDEM_CANON_ORDER_MIN  64

/* from so many on children are sorted by keys */
#define NGX_HTTP_IDEM_CANON_RADIX_MIN  32

/* small children are gathered to so many bytes before they are hashed */
#define NGX_HTTP_IDEM_CANON_GATHERED   4096

/* the keys of the longest value */
#define NGX_HTTP_IDEM_CANON_KEYS                                              \
    ((NGX_HTTP_IDEM_CANON_VALUE_MAX + NGX_HTTP_IDEM_CANON_KEY_LEN - 1)        \
     / NGX_HTTP_IDEM_CANON_KEY_LEN)


/* children whose values are the same in their first "at" bytes */

typedef struct {
    size_t                               first;    /* in the order        */
    size_t                               n;
    size_t                               at;
    size_t                               group;    /* those of one key ... */
    size_t                               end;      /* ... as far as seen  */
} ngx_http_idem_canon_range_t;


typedef enum {
    NGX_HTTP_IDEM_CANON_LIST = 0,         /* where they are, as they came */
    NGX_HTTP_IDEM_CANON_DIFFER,           /* which bytes of keys differ?  */
    NGX_HTTP_IDEM_CANON_COUNT,            /* the values of one of them    */
    NGX_HTTP_IDEM_CANON_MOVE,             /* by that one                  */
    NGX_HTTP_IDEM_CANON_GROUPS,           /* equal keys: by the next one  */
    NGX_HTTP_IDEM_CANON_FOLD              /* sorted                       */
} ngx_http_idem_canon_stage_e;


struct ngx_http_idem_canon_close_s {
    ngx_http_idem_canon_stage_e   stage;

    u_char                        tag;
    size_t                        base;
    ngx_uint_t                    unit;
    size_t                        n;

    ngx_http_idem_canon_range_t   ranges[NGX_HTTP_IDEM_CANON_KEYS];
    ngx_uint_t                    nranges;

    size_t                        i;               /* of a stage          */
    size_t                        next;            /* child on the stack  */
    uint64_t                      differ;
    ngx_uint_t                    shift;           /* the byte of the key */
    uint32_t                      counts[256];
    ngx_uint_t                    swapped;         /* in the scratch room */

    ngx_http_idem_digest_t        digest;
};


static ngx_int_t ngx_http_idem_canon_order(ngx_http_idem_canon_t *c,
    size_t size);
static void ngx_http_idem_canon_list(ngx_http_idem_canon_t *c,
    size_t *work);
static void ngx_http_idem_canon_range(ngx_http_idem_canon_close_t *close,
    size_t first, size_t n, size_t at);
static size_t ngx_http_idem_canon_sort_step(ngx_http_idem_canon_t *c,
    size_t work);
static void ngx_http_idem_canon_sorted(ngx_http_idem_canon_t *c,
    ngx_http_idem_canon_range_t *range);
static size_t ngx_http_idem_canon_groups(ngx_http_idem_canon_t *c,
    ngx_http_idem_canon_range_t *range, size_t work);
static void ngx_http_idem_canon_insert(const u_char *stack,
    uint32_t *order, size_t n);
static uint64_t ngx_http_idem_canon_key(const u_char *p, size_t at);
static ngx_int_t ngx_http_idem_canon_fold_step(ngx_http_idem_canon_t *c,
    size_t work);


ngx_int_t
ngx_http_idem_canon_close_start(ngx_http_idem_canon_t *c, u_char tag,
    size_t base, ngx_uint_t unit, size_t n)
{
    size_t                        work;
    ngx_uint_t                    few;
    ngx_http_idem_canon_close_t  *close;

    if (n < 2) {
        return ngx_http_idem_canon_close(c, tag, base);
    }

    close = c->close;

    if (close == NULL) {
        close = c->mem.alloc(c->mem.data,
                             sizeof(ngx_http_idem_canon_close_t));
        if (close == NULL) {
            return NGX_ERROR;
        }

        c->close = close;
    }

    close->tag = tag;
    close->base = base;
    close->unit = unit;
    close->n = n;
    close->next = base;
    close->i = 0;
    close->stage = NGX_HTTP_IDEM_CANON_LIST;

    /* most containers have a few children; many need scratch room */

    few = (n < NGX_HTTP_IDEM_CANON_RADIX_MIN);

    if (ngx_http_idem_canon_order(c, few ? n : 2 * n) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!few) {
        return NGX_AGAIN;
    }

    work = NGX_MAX_SIZE_T_VALUE;

    ngx_http_idem_canon_list(c, &work);
    ngx_http_idem_canon_insert(c->stack, c->order, n);

    close->i = 0;

    return ngx_http_idem_canon_fold_step(c, work);
}


ngx_int_t
ngx_http_idem_canon_close_step(ngx_http_idem_canon_t *c, size_t work)
{
    ngx_http_idem_canon_close_t  *close;

    close = c->close;

    if (close->stage == NGX_HTTP_IDEM_CANON_LIST) {
        ngx_http_idem_canon_list(c, &work);
    }

    while (close->stage != NGX_HTTP_IDEM_CANON_FOLD) {

        if (work == 0) {
            return NGX_AGAIN;
        }

        work = ngx_http_idem_canon_sort_step(c, work);
    }

    return ngx_http_idem_canon_fold_step(c, work);
}


static ngx_int_t
ngx_http_idem_canon_order(ngx_http_idem_canon_t *c, size_t size)
{
    if (size <= c->norder) {
        return NGX_OK;
    }

    ngx_http_idem_canon_free(&c->mem, c->order);

    c->norder = ngx_max(size, NGX_HTTP_IDEM_CANON_ORDER_MIN);
    c->order = c->mem.alloc(c->mem.data, c->norder * sizeof(uint32_t));

    if (c->order == NULL) {
        c->norder = 0;
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_http_idem_canon_list(ngx_http_idem_canon_t *c, size_t *work)
{
    u_char                       *p;
    ngx_http_idem_canon_close_t  *close;

    close = c->close;

    p = c->stack + close->next;

    while (close->i < close->n && *work) {
        c->order[close->i++] = (uint32_t) (p - c->stack);
        p += ngx_http_idem_canon_skip(p, close->unit);
        (*work)--;
    }

    close->next = p - c->stack;

    if (close->i == close->n) {
        close->nranges = 0;
        ngx_http_idem_canon_range(close, 0, close->n, 0);
    }
}


static void
ngx_http_idem_canon_range(ngx_http_idem_canon_close_t *close, size_t first,
    size_t n, size_t at)
{
    ngx_http_idem_canon_range_t  *range;

    range = &close->ranges[close->nranges++];

    range->first = first;
    range->n = n;
    range->at = at;

    close->stage = NGX_HTTP_IDEM_CANON_DIFFER;
    close->i = 0;
    close->differ = 0;
    close->shift = 0;
    close->swapped = 0;
}


/*
 * By the last byte of the key, then the one before it, leaving out those in
 * which all are equal: equal keys stay in the order they came.  Returns what
 * is left of the work.
 */

static size_t
ngx_http_idem_canon_sort_step(ngx_http_idem_canon_t *c, size_t work)
{
    size_t                        end, i;
    uint32_t                     *from, *to;
    uint64_t                      key, first;
    ngx_http_idem_canon_close_t  *close;
    ngx_http_idem_canon_range_t  *range;

    close = c->close;
    range = &close->ranges[close->nranges - 1];

    if (close->stage == NGX_HTTP_IDEM_CANON_GROUPS) {
        return ngx_http_idem_canon_groups(c, range, work);
    }

    from = c->order + (close->swapped ? close->n : range->first);
    to = c->order + (close->swapped ? range->first : close->n);

    i = close->i;
    end = i + ngx_min(range->n - i, work);
    work -= end - i;

    switch (close->stage) {

    case NGX_HTTP_IDEM_CANON_DIFFER:
        first = ngx_http_idem_canon_key(c->stack + from[0], range->at);

        for ( /* void */ ; i < end; i++) {
            key = ngx_http_idem_canon_key(c->stack + from[i], range->at);
            close->differ |= key ^ first;
        }

        break;

    case NGX_HTTP_IDEM_CANON_COUNT:
        for ( /* void */ ; i < end; i++) {
            key = ngx_http_idem_canon_key(c->stack + from[i], range->at);
            close->counts[(key >> close->shift) & 0xff]++;
        }

        break;

    default: /* NGX_HTTP_IDEM_CANON_MOVE */
        for ( /* void */ ; i < end; i++) {
            key = ngx_http_idem_canon_key(c->stack + from[i], range->at);
            to[close->counts[(key >> close->shift) & 0xff]++] = from[i];
        }

        break;
    }

    close->i = end;

    if (end == range->n) {
        close->i = 0;
        ngx_http_idem_canon_sorted(c, range);
    }

    return work;
}


/* all children of the range went through a stage: which is the next? */

static void
ngx_http_idem_canon_sorted(ngx_http_idem_canon_t *c,
    ngx_http_idem_canon_range_t *range)
{
    size_t                        sum, count;
    ngx_uint_t                    value;
    ngx_http_idem_canon_close_t  *close;

    close = c->close;

    if (close->stage == NGX_HTTP_IDEM_CANON_COUNT) {

        /* where those of each value begin */

        sum = 0;

        for (value = 0; value < 256; value++) {
            count = close->counts[value];
            close->counts[value] = (uint32_t) sum;
            sum += count;
        }

        close->stage = NGX_HTTP_IDEM_CANON_MOVE;
        return;
    }

    if (close->stage == NGX_HTTP_IDEM_CANON_MOVE) {
        close->swapped = !close->swapped;
        close->shift += 8;
    }

    while (close->shift < 64
           && ((close->differ >> close->shift) & 0xff) == 0)
    {
        close->shift += 8;
    }

    if (close->shift < 64) {
        ngx_memzero(close->counts, sizeof(close->counts));
        close->stage = NGX_HTTP_IDEM_CANON_COUNT;
        return;
    }

    if (close->swapped) {
        ngx_memcpy(c->order + range->first, c->order + close->n,
                   range->n * sizeof(uint32_t));
    }

    range->group = 0;
    range->end = 1;

    close->stage = NGX_HTTP_IDEM_CANON_GROUPS;
}


/* sorted by this key; those that have the same one by what is behind it */

static size_t
ngx_http_idem_canon_groups(ngx_http_idem_canon_t *c,
    ngx_http_idem_canon_range_t *range, size_t work)
{
    size_t                        n;
    uint32_t                     *order;
    uint64_t                      key;
    ngx_http_idem_canon_close_t  *close;

    close = c->close;
    order = c->order + range->first;

    while (range->group < range->n && work) {

        key = ngx_http_idem_canon_key(c->stack + order[range->group],
                                      range->at);

        for ( /* void */ ; range->end < range->n && work; range->end++) {
            if (ngx_http_idem_canon_key(c->stack + order[range->end],
                                        range->at)
                != key)
            {
                break;
            }

            work--;
        }

        if (work == 0) {
            return 0;
        }

        work--;

        order = c->order + range->first + range->group;
        n = range->end - range->group;

        range->group = range->end;
        range->end++;

        /* the length is in the first key: all end before that, or none */

        if (n > 1
            && ngx_http_idem_canon_skip(c->stack + order[0], 1)
               > range->at + NGX_HTTP_IDEM_CANON_KEY_LEN)
        {
            if (n < NGX_HTTP_IDEM_CANON_RADIX_MIN) {
                ngx_http_idem_canon_insert(c->stack, order, n);
                work -= ngx_min(n * n / 2, work);

            } else {
                ngx_http_idem_canon_range(close, order - c->order, n,
                                   range->at + NGX_HTTP_IDEM_CANON_KEY_LEN);
                return work;
            }
        }

        order = c->order + range->first;
    }

    if (range->group == range->n && --close->nranges == 0) {
        close->i = 0;
        close->stage = NGX_HTTP_IDEM_CANON_FOLD;
    }

    return work;
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


/* to hash a byte takes about as long as to look at a key */

static ngx_int_t
ngx_http_idem_canon_fold_step(ngx_http_idem_canon_t *c, size_t work)
{
    u_char                       *p, *last, *child;
    size_t                        len;
    u_char                        buf[NGX_HTTP_IDEM_CANON_GATHERED];
    u_char                        value[NGX_HTTP_IDEM_CANON_VALUE_MAX];
    ngx_http_idem_canon_close_t  *close;

    close = c->close;

    p = buf;
    last = buf + sizeof(buf);

    if (close->i == 0) {
        ngx_http_idem_digest_start(&close->digest);
    }

    while (close->i < close->n && work) {
        child = c->stack + c->order[close->i++];
        len = ngx_http_idem_canon_skip(child, close->unit);

        if (len > (size_t) (last - p)) {
            ngx_http_idem_digest_update(&close->digest, buf, p - buf);
            p = buf;
        }

        p = ngx_cpymem(p, child, len);
        work -= ngx_min(len, work);
    }

    if (c->len - close->base <= NGX_HTTP_IDEM_CANON_INLINE_MAX) {

        /* so few that they came in one step: the value has them as they are */

        c->len = close->base;

        return ngx_http_idem_canon_scalar(c, close->tag, buf, p - buf);
    }

    /* of the buffer what is filled, if anything: cppcheck 2.17 doubts it */
    /* cppcheck-suppress uninitvar */
    ngx_http_idem_digest_update(&close->digest, buf, p - buf);

    if (close->i < close->n) {
        return NGX_AGAIN;
    }

    value[0] = close->tag;
    value[1] = NGX_HTTP_IDEM_CANON_HASHED;

    ngx_http_idem_digest_done(&close->digest, &value[2]);

    c->len = close->base;

    return ngx_http_idem_canon_put(c, value);
}
