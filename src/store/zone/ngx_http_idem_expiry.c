
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The records of a zone by time of expiry: a timer wheel as in kernels, so
 * that a record takes two pointers and a few instructions, however many
 * records there are.
 *
 * A queue of the lowest level has the records that expire within one tick of
 * 64 ms; there are 64 of these queues, for the next 4 seconds.  A queue of
 * the next level covers 64 ticks, and so on.  When the time of a queue has
 * come, all its records are moved to "due" in one step.  A purge takes a few
 * records from there: it removes those that have expired, and puts the others
 * where they belong now.  Renewing a lease therefore leaves the record where
 * it is.  So a record is checked once for each level it passes: five times at
 * most in two years.
 *
 * A wheel that is far behind the clock does not catch up at once, since
 * others wait for the lock of the zone; records are then purged late.
 *
 * Called by the zone, with the zone locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_zone.h"


/* bits per level, and bits of milliseconds within a tick */
#define NGX_HTTP_IDEM_EXPIRY_BITS       6
#define NGX_HTTP_IDEM_EXPIRY_TICK_BITS  6

#define NGX_HTTP_IDEM_EXPIRY_TICK                                             \
    (1 << NGX_HTTP_IDEM_EXPIRY_TICK_BITS)

#define NGX_HTTP_IDEM_EXPIRY_MASK                                             \
    (NGX_HTTP_IDEM_EXPIRY_SLOTS - 1)


static void ngx_http_idem_expiry_tick(ngx_http_idem_expiry_t *expiry);
static void ngx_http_idem_expiry_due(
    ngx_http_idem_expiry_t *expiry, ngx_uint_t level, ngx_uint_t n);


void
ngx_http_idem_expiry_init(ngx_http_idem_expiry_t *expiry)
{
    ngx_uint_t  level, i;

    expiry->tick = 0;
    expiry->time = ngx_current_msec;

    ngx_queue_init(&expiry->due);

    for (level = 0; level < NGX_HTTP_IDEM_EXPIRY_LEVELS; level++) {
        for (i = 0; i < NGX_HTTP_IDEM_EXPIRY_SLOTS; i++) {
            ngx_queue_init(&expiry->slots[level][i]);
        }
    }
}


/* the queue is chosen by node->expires */

void
ngx_http_idem_expiry_add(ngx_http_idem_expiry_t *expiry,
    ngx_http_idem_item_t *item)
{
    ngx_uint_t      ahead, level, n;
    ngx_msec_int_t  left;

    left = (ngx_msec_int_t) (item->expires - expiry->time);
    ahead = (left > 0)
            ? (ngx_uint_t) left >> NGX_HTTP_IDEM_EXPIRY_TICK_BITS : 0;

    for (level = 0;
         level < NGX_HTTP_IDEM_EXPIRY_LEVELS
         && ahead >> (level + 1) * NGX_HTTP_IDEM_EXPIRY_BITS;
         level++)
    {
        /* void */
    }

    if (level == NGX_HTTP_IDEM_EXPIRY_LEVELS) {

        /* beyond the wheel: into its last queue, and from there again */

        level--;
        ahead = ((ngx_uint_t) 1 << NGX_HTTP_IDEM_EXPIRY_LEVELS
                                   * NGX_HTTP_IDEM_EXPIRY_BITS) - 1;
    }

    n = (expiry->tick + ahead) >> level * NGX_HTTP_IDEM_EXPIRY_BITS;

    ngx_queue_insert_tail(
               &expiry->slots[level][n & NGX_HTTP_IDEM_EXPIRY_MASK],
               &item->expiry);
}


ngx_http_idem_item_t *
ngx_http_idem_expiry_next(ngx_http_idem_expiry_t *expiry, ngx_uint_t *work)
{
    for ( ;; ) {

        if (*work == 0) {
            return NULL;
        }

        (*work)--;

        if (!ngx_queue_empty(&expiry->due)) {
            return ngx_queue_data(ngx_queue_head(&expiry->due),
                                  ngx_http_idem_item_t, expiry);
        }

        if ((ngx_msec_int_t) (ngx_current_msec - expiry->time)
            < NGX_HTTP_IDEM_EXPIRY_TICK)
        {
            return NULL;
        }

        ngx_http_idem_expiry_tick(expiry);
    }
}


/* ends the current tick */

static void
ngx_http_idem_expiry_tick(ngx_http_idem_expiry_t *expiry)
{
    ngx_uint_t  level, n;

    ngx_http_idem_expiry_due(expiry, 0, expiry->tick);

    expiry->tick++;
    expiry->time += NGX_HTTP_IDEM_EXPIRY_TICK;

    /* a full turn: the next queue of the level above is due, and so on */

    n = expiry->tick;

    for (level = 1;
         level < NGX_HTTP_IDEM_EXPIRY_LEVELS
         && (n & NGX_HTTP_IDEM_EXPIRY_MASK) == 0;
         level++)
    {
        n >>= NGX_HTTP_IDEM_EXPIRY_BITS;

        ngx_http_idem_expiry_due(expiry, level, n);
    }
}


static void
ngx_http_idem_expiry_due(ngx_http_idem_expiry_t *expiry,
    ngx_uint_t level, ngx_uint_t n)
{
    ngx_queue_t  *slot;

    slot = &expiry->slots[level][n & NGX_HTTP_IDEM_EXPIRY_MASK];

    if (!ngx_queue_empty(slot)) {
        ngx_queue_add(&expiry->due, slot);
        ngx_queue_init(slot);
    }
}
