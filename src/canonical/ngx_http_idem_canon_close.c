
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
 * bytes of their values, which takes a time in proportion to all their bytes:
 * by length first, then by each byte, from the last one to the first, those
 * that are long enough to have it; equal ones stay in the order they came.
 * That is still tens of milliseconds in which a worker would serve nobody
 * else.  So it is done in steps, each of a bounded amount of work; what is
 * between them is in ngx_http_idem_canon_close_t.
 */


#include "canonical/ngx_http_idem_canon.h"


#define NGX_HTTP_IDEM_CANON_ORDER_MIN  64

/* from so many on children are sorted by their bytes */
#define NGX_HTTP_IDEM_CANON_RADIX_MIN  64

/* small children are gathered to so many bytes before they are hashed */
#define NGX_HTTP_IDEM_CANON_GATHERED   4096

/* in place of the number of a byte: by their lengths */
#define NGX_HTTP_IDEM_CANON_LENGTHS    NGX_HTTP_IDEM_CANON_VALUE_MAX


typedef enum {
    NGX_HTTP_IDEM_CANON_LIST = 0,         /* where they are, as they came */
    NGX_HTTP_IDEM_CANON_COUNT,            /* the values of one byte       */
    NGX_HTTP_IDEM_CANON_MOVE,             /* by that byte                 */
    NGX_HTTP_IDEM_CANON_FOLD              /* sorted                       */
} ngx_http_idem_canon_stage_e;


struct ngx_http_idem_canon_close_s {
    ngx_http_idem_canon_stage_e   stage;

    u_char                        tag;
    size_t                        base;
    ngx_uint_t                    unit;
    size_t                        n;

    size_t                        i;               /* of a stage          */
    size_t                        next;            /* child on the stack  */
    ngx_uint_t                    byte;            /* of the values       */
    size_t                        first;           /* in the order, with
                                                      that byte           */
    uint32_t                      counts[256];

    /* number of values that have at most that many bytes */
    uint32_t                      shorter[NGX_HTTP_IDEM_CANON_VALUE_MAX];

    ngx_http_idem_digest_t        digest;
};


static ngx_int_t ngx_http_idem_canon_order(ngx_http_idem_canon_t *c,
    size_t size);
static void ngx_http_idem_canon_list(ngx_http_idem_canon_t *c, size_t *work);
static void ngx_http_idem_canon_sort(ngx_http_idem_canon_t *c, size_t *work);
static void ngx_http_idem_canon_counted(ngx_http_idem_canon_close_t *close);
static void ngx_http_idem_canon_next_byte(ngx_http_idem_canon_close_t *close);
static void ngx_http_idem_canon_insert(const u_char *stack,
    uint32_t *order, size_t n);
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
        close = ngx_http_idem_canon_alloc(
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

        ngx_http_idem_canon_sort(c, &work);
    }

    return ngx_http_idem_canon_fold_step(c, work);
}


static ngx_int_t
ngx_http_idem_canon_order(ngx_http_idem_canon_t *c, size_t size)
{
    if (size <= c->norder) {
        return NGX_OK;
    }

    ngx_http_idem_canon_free(c->order);

    c->norder = ngx_max(size, NGX_HTTP_IDEM_CANON_ORDER_MIN);
    c->order = ngx_http_idem_canon_alloc(c->norder * sizeof(uint32_t));

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
        close->stage = NGX_HTTP_IDEM_CANON_COUNT;
        close->byte = NGX_HTTP_IDEM_CANON_LENGTHS;
        close->first = 0;
        close->i = 0;

        ngx_memzero(close->counts, sizeof(close->counts));
    }
}


/* counts the children by a byte of their values, or moves them by it */

static void
ngx_http_idem_canon_sort(ngx_http_idem_canon_t *c, size_t *work)
{
    u_char                       *p;
    size_t                        end, key;
    uint32_t                     *scratch;
    ngx_http_idem_canon_close_t  *close;

    close = c->close;
    scratch = c->order + close->n;

    end = close->i + ngx_min(close->n - close->i, *work);
    *work -= end - close->i;

    for ( /* void */ ; close->i < end; close->i++) {
        p = c->stack + c->order[close->i];

        key = (close->byte == NGX_HTTP_IDEM_CANON_LENGTHS)
              ? ngx_http_idem_canon_skip(p, 1) : p[close->byte];

        if (close->stage == NGX_HTTP_IDEM_CANON_COUNT) {
            close->counts[key]++;

        } else {
            scratch[close->counts[key]++] = c->order[close->i];
        }
    }

    if (end < close->n) {
        return;
    }

    if (close->stage == NGX_HTTP_IDEM_CANON_COUNT) {
        ngx_http_idem_canon_counted(close);
        return;
    }

    ngx_memcpy(c->order + close->first, scratch + close->first,
               (close->n - close->first) * sizeof(uint32_t));

    ngx_http_idem_canon_next_byte(close);
}


/* turns counts into offsets; if all values are equal, none is moved */

static void
ngx_http_idem_canon_counted(ngx_http_idem_canon_close_t *close)
{
    size_t      begin, count;
    ngx_uint_t  value, same;

    begin = close->first;
    same = 0;

    for (value = 0; value < 256; value++) {
        count = close->counts[value];
        close->counts[value] = (uint32_t) begin;
        begin += count;

        same |= (count == close->n - close->first);
    }

    if (close->byte == NGX_HTTP_IDEM_CANON_LENGTHS) {
        ngx_memcpy(close->shorter, &close->counts[1], sizeof(close->shorter));
    }

    if (same) {
        ngx_http_idem_canon_next_byte(close);
        return;
    }

    close->stage = NGX_HTTP_IDEM_CANON_MOVE;
    close->i = close->first;
}


/* the previous byte; values long enough to have it are last in the order */

static void
ngx_http_idem_canon_next_byte(ngx_http_idem_canon_close_t *close)
{
    do {
        if (close->byte == 0) {
            close->stage = NGX_HTTP_IDEM_CANON_FOLD;
            close->i = 0;
            return;
        }

        close->byte--;
        close->first = close->shorter[close->byte];

    } while (close->first == close->n);

    ngx_memzero(close->counts, sizeof(close->counts));

    close->stage = NGX_HTTP_IDEM_CANON_COUNT;
    close->i = close->first;
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


/* a hashed byte counts as a unit of work, as a compared key does */

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

        /* few children, collected in one step: the value contains them */

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
