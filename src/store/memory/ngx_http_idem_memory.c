
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The backend of the embedded store: each operation takes the zone's mutex
 * once and briefly.  All operations but watch complete at once, unless a
 * response is large: then begin and commit copy it piece by piece in further
 * iterations of the event loop, and each piece looks the record up as if it
 * were the first.
 *
 * Called through the table of backends; calls the zone, and wakes other
 * workers.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/memory/ngx_http_idem_memory.h"


/*
 * Records that each begin checks for expiry.  A begin adds one record, which
 * is checked a few times before it expires.
 */
#define NGX_HTTP_IDEM_PURGE_N       8

/* the same for the status endpoint: about ten microseconds */
#define NGX_HTTP_IDEM_MEMORY_STATS_PURGE  128


static ngx_int_t ngx_http_idem_memory_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_memory_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static ngx_int_t ngx_http_idem_memory_begin(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_memory_renew(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_memory_commit(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_memory_release(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_memory_watch(ngx_http_idem_op_t *op);
static void ngx_http_idem_memory_cancel(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_memory_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats);
static uint64_t ngx_http_idem_memory_finish(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op,
    ngx_http_idem_state_e state, ngx_http_idem_reason_e reason);
static ngx_int_t ngx_http_idem_memory_put(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);
static void ngx_http_idem_memory_drop_lock(
    ngx_http_idem_memory_t *m, ngx_http_idem_item_t *item);
static ngx_uint_t ngx_http_idem_memory_available(
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_memory_lapsed(
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);
static ngx_http_idem_item_t *ngx_http_idem_memory_create(
    ngx_http_idem_memory_t *m, ngx_http_idem_op_t *op);
static void ngx_http_idem_memory_take_over(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op, ngx_uint_t again);
static void ngx_http_idem_memory_set_lock(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);
static void ngx_http_idem_memory_set_lease(
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);


const ngx_http_idem_backend_t  ngx_http_idem_memory_backend = {
    ngx_string("memory"),
    ngx_http_idem_memory_create_conf,
    ngx_http_idem_memory_commands,
    ngx_http_idem_memory_init_conf,
    ngx_http_idem_memory_init_process,
    ngx_http_idem_memory_exit_process,
    ngx_http_idem_memory_begin,
    ngx_http_idem_memory_renew,
    ngx_http_idem_memory_commit,
    ngx_http_idem_memory_release,
    ngx_http_idem_memory_watch,
    ngx_http_idem_memory_cancel,
    ngx_http_idem_memory_stats,
    0,                                       /* remote */
    ngx_http_idem_memory_admin,
    NGX_HTTP_IDEM_TRAIL_NONE
};


#define ngx_http_idem_memory_ours(item, op)                                   \
    (ngx_memcmp((item)->token, (op)->token, NGX_HTTP_IDEM_TOKEN_LEN)          \
     == 0)


static ngx_int_t
ngx_http_idem_memory_begin(ngx_http_idem_op_t *op)
{
    op->state_data = NULL;

    return ngx_http_idem_turns_first(op, ngx_http_idem_memory_begin_piece(op));
}


ngx_int_t
ngx_http_idem_memory_begin_piece(ngx_http_idem_op_t *op)
{
    ngx_int_t                rc;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_memory_t  *m;

    m = op->store->conf;
    rc = NGX_OK;

    ngx_http_idem_memory_lock(m);

    ngx_http_idem_zone_purge(&m->z, NGX_HTTP_IDEM_PURGE_N);

    item = ngx_http_idem_zone_find(&m->z, op->id);

    if (item == NULL) {
        item = ngx_http_idem_memory_create(m, op);
        op->result = item ? NGX_HTTP_IDEM_ACQUIRED : NGX_HTTP_IDEM_FULL;

    } else if (ngx_http_idem_memory_ours(item, op)
               && item->state == NGX_HTTP_IDEM_IN_PROGRESS)
    {
        ngx_http_idem_memory_take_over(m, item, op, item->again);
        op->result = NGX_HTTP_IDEM_ACQUIRED;

    } else if (ngx_http_idem_memory_available(item, op)) {

        if (op->expired || op->abandoned) {
            m->z.zone->expired += op->expired;
            op->original = item->claim.time;
        }

        if (op->abandoned) {
            ngx_http_idem_zone_copy_details(&m->z, item, op->pool,
                                            NGX_HTTP_IDEM_LABELS_MAX,
                                            &op->found.details);
        }

        if (item->state == NGX_HTTP_IDEM_COMPLETED) {
            ngx_http_idem_zone_evict(&m->z, item);
        }

        ngx_http_idem_memory_take_over(m, item, op,
                                       ngx_http_idem_zone_leased(item));
        op->result = NGX_HTTP_IDEM_ACQUIRED;

    } else {
        rc = ngx_http_idem_memory_found(m, item, op);
    }

    ngx_http_idem_memory_unlock(m, op->log);

    if (op->state_data && rc == NGX_OK) {
        ngx_http_idem_memory_found_other(op);
    }

    return rc;
}


static ngx_int_t
ngx_http_idem_memory_renew(ngx_http_idem_op_t *op)
{
    ngx_http_idem_item_t    *item;
    ngx_http_idem_memory_t  *m;

    m = op->store->conf;

    ngx_http_idem_memory_lock(m);

    item = ngx_http_idem_zone_find(&m->z, op->id);

    if (item == NULL) {
        item = ngx_http_idem_memory_create(m, op);
        op->result = item ? NGX_HTTP_IDEM_OK : NGX_HTTP_IDEM_FULL;

    } else if (item->state == NGX_HTTP_IDEM_IN_PROGRESS
               && ngx_http_idem_memory_ours(item, op))
    {
        ngx_http_idem_zone_change(&m->z, item);
        ngx_http_idem_memory_set_lease(item, op);
        ngx_http_idem_zone_changed(&m->z);

        op->result = NGX_HTTP_IDEM_OK;

    } else if (ngx_http_idem_memory_lapsed(item, op)) {
        ngx_http_idem_memory_take_over(m, item, op, 1);
        op->result = NGX_HTTP_IDEM_OK;

    } else {
        op->result = NGX_HTTP_IDEM_LOST;
    }

    ngx_http_idem_memory_unlock(m, op->log);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_memory_commit(ngx_http_idem_op_t *op)
{
    op->state_data = NULL;

    if (op->state == NGX_HTTP_IDEM_COMPLETED
        && op->size > NGX_HTTP_IDEM_PIECE)
    {
        /* without memory for the copy, the response is stored in one piece */

        op->state_data = ngx_pcalloc(op->pool, sizeof(ngx_http_idem_copy_t));
    }

    return ngx_http_idem_turns_first(op,
                                     ngx_http_idem_memory_commit_piece(op));
}


ngx_int_t
ngx_http_idem_memory_commit_piece(ngx_http_idem_op_t *op)
{
    uint64_t                 waiting;
    ngx_int_t                rc;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_state_e    state;
    ngx_http_idem_memory_t  *m;
    ngx_http_idem_reason_e   reason;

    m = op->store->conf;
    waiting = 0;
    rc = NGX_OK;

    ngx_http_idem_memory_lock(m);

    item = ngx_http_idem_zone_find(&m->z, op->id);

    if (item == NULL) {
        item = ngx_http_idem_memory_create(m, op);

    } else if (!ngx_http_idem_memory_ours(item, op)) {

        if (!ngx_http_idem_memory_lapsed(item, op)) {
            op->result = NGX_HTTP_IDEM_LOST;
            goto done;
        }

        ngx_http_idem_memory_take_over(m, item, op, 1);

    } else if (item->state != NGX_HTTP_IDEM_IN_PROGRESS) {
        op->result = NGX_HTTP_IDEM_OK;
        goto done;
    }

    if (item == NULL) {
        op->result = NGX_HTTP_IDEM_FULL;
        goto done;
    }

    op->result = NGX_HTTP_IDEM_OK;
    state = op->state;
    reason = op->reason;

    if (op->spare && state == NGX_HTTP_IDEM_COMPLETED
        && 2 * m->z.zone->arena.nfree <= m->z.zone->arena.n)
    {
        state = NGX_HTTP_IDEM_UNUSABLE;
        reason = NGX_HTTP_IDEM_REASON_NO_ROOM;
    }

    if (state == NGX_HTTP_IDEM_COMPLETED) {
        rc = ngx_http_idem_memory_put(m, item, op);

    } else {
        ngx_http_idem_zone_free_pieces(&m->z, item);
    }

    if (rc == NGX_AGAIN) {
        goto done;
    }

    if (rc != NGX_OK) {
        rc = NGX_OK;
        state = NGX_HTTP_IDEM_UNUSABLE;
        reason = NGX_HTTP_IDEM_REASON_NO_ROOM;
        op->result = NGX_HTTP_IDEM_FULL;
    }

    waiting = ngx_http_idem_memory_finish(m, item, op, state, reason);

done:

    ngx_http_idem_memory_unlock(m, op->log);

    ngx_http_idem_wake(m, op->id, waiting);

    return rc;
}


/* changes the record in one step; returns the workers with waiters */

static uint64_t
ngx_http_idem_memory_finish(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op,
    ngx_http_idem_state_e state, ngx_http_idem_reason_e reason)
{
    uint64_t  waiting;

    ngx_http_idem_zone_change(&m->z, item);

    ngx_http_idem_zone_state(&m->z, item, state, reason);

    item->until = ngx_current_msec
                  + (ngx_http_idem_op_retryable(op) ? op->lease : op->ttl);

    ngx_http_idem_zone_expire(&m->z, item,
                              ngx_current_msec
                              + ngx_http_idem_record_life(op));

    waiting = item->u.waiting;
    item->u.ttl = op->ttl;

    ngx_http_idem_zone_changed(&m->z);

    return waiting;
}


/*
 * Stores the response, or a piece of it.  Each piece renews the lease: a
 * request that takes the record over would free the pieces.
 */

static ngx_int_t
ngx_http_idem_memory_put(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    if (op->state_data) {
        ngx_http_idem_zone_change(&m->z, item);
        ngx_http_idem_memory_set_lease(item, op);
        ngx_http_idem_zone_changed(&m->z);
    }

    return ngx_http_idem_zone_write(&m->z, item, op->state_data, op->response,
                                    op->size, NGX_HTTP_IDEM_PIECE);
}


static ngx_int_t
ngx_http_idem_memory_release(ngx_http_idem_op_t *op)
{
    uint64_t                 waiting;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_memory_t  *m;

    m = op->store->conf;
    waiting = 0;
    op->result = NGX_HTTP_IDEM_OK;

    ngx_http_idem_memory_lock(m);

    item = ngx_http_idem_zone_find(&m->z, op->id);

    if (item) {
        if (item->state == NGX_HTTP_IDEM_IN_PROGRESS
            && ngx_http_idem_memory_ours(item, op))
        {
            waiting = item->u.waiting;
            ngx_http_idem_memory_drop_lock(m, item);

        } else {
            op->result = NGX_HTTP_IDEM_LOST;
        }
    }

    ngx_http_idem_memory_unlock(m, op->log);
    ngx_http_idem_wake(m, op->id, waiting);

    return NGX_OK;
}


/*
 * Releases the lock of a request that did not run.  If it had taken the lock
 * over from a holder that may have run, the record stays with an unknown
 * outcome, so that another request still finds it.
 */

static void
ngx_http_idem_memory_drop_lock(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item)
{
    if (!item->again) {
        ngx_http_idem_zone_remove(&m->z, item);
        return;
    }

    ngx_http_idem_zone_free_pieces(&m->z, item);

    ngx_http_idem_zone_change(&m->z, item);

    item->hold = 0;
    item->u.waiting = 0;
    item->until = ngx_current_msec;

    ngx_http_idem_zone_state(&m->z, item, NGX_HTTP_IDEM_UNUSABLE,
                             NGX_HTTP_IDEM_REASON_UNKNOWN);

    ngx_http_idem_zone_changed(&m->z);
}


/*
 * The record may have changed since the begin: then there is nothing to wait
 * for.  Otherwise the worker is added to those that a commit or a release
 * wakes.
 */

static ngx_int_t
ngx_http_idem_memory_watch(ngx_http_idem_op_t *op)
{
    ngx_msec_int_t           left;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_memory_t  *m;

    m = op->store->conf;
    left = 0;
    op->result = NGX_HTTP_IDEM_OK;

    ngx_http_idem_memory_lock(m);

    item = ngx_http_idem_zone_find(&m->z, op->id);

    if (item && item->state == NGX_HTTP_IDEM_IN_PROGRESS) {
        left = (ngx_msec_int_t) (item->until - ngx_current_msec);

        if (left > 0 && m->slot >= 0) {
            item->u.waiting |= (uint64_t) 1 << m->slot;
        }
    }

    ngx_http_idem_memory_unlock(m, op->log);

    if (left <= 0) {
        return NGX_OK;
    }

    ngx_http_idem_wake_watch(m, op, (ngx_msec_t) left);

    return NGX_AGAIN;
}


static void
ngx_http_idem_memory_cancel(ngx_http_idem_op_t *op)
{
    ngx_queue_remove(&op->queue);

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        ngx_housekeeping_stop(&op->timer);

    } else if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {

        /* the request was executed, and its record has to say so */

        while (ngx_http_idem_memory_commit_piece(op) == NGX_AGAIN) {
            /* void */
        }
    }
}


static ngx_int_t
ngx_http_idem_memory_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats)
{
    ngx_http_idem_memory_t  *m;

    m = store->conf;

    ngx_http_idem_memory_lock(m);

    /* an idle store must not report expired records */

    ngx_http_idem_zone_purge(&m->z, NGX_HTTP_IDEM_MEMORY_STATS_PURGE);

    ngx_memcpy(stats->records, m->z.zone->states, sizeof(stats->records));

    stats->bytes = m->z.shm_zone->shm.size
                   - m->z.zone->arena.nfree * NGX_HTTP_IDEM_BLOCK_SIZE;
    stats->size = m->z.shm_zone->shm.size;
    stats->evicted = m->z.zone->evicted;
    stats->expired = m->z.zone->expired;

    ngx_http_idem_memory_unlock(m, ngx_cycle->log);

    return NGX_OK;
}


/* whether begin may take over an existing record */

static ngx_uint_t
ngx_http_idem_memory_available(ngx_http_idem_item_t *item,
    ngx_http_idem_op_t *op)
{
    ngx_msec_int_t  left;

    if (!ngx_http_idem_zone_leased(item)) {

        /* the record expired before the request arrived */

        left = (ngx_msec_int_t) (item->until - ngx_current_msec);

        if (left + (ngx_msec_int_t) op->age > 0) {
            return 0;
        }

        op->expired = (item->reason != NGX_HTTP_IDEM_REASON_DELETED);
        return 1;
    }

    if (!ngx_http_idem_memory_lapsed(item, op)) {
        return 0;
    }

    op->abandoned = (item->state == NGX_HTTP_IDEM_IN_PROGRESS);

    return 1;
}


/*
 * A lock whose lease expired, of the same request: a begin may take it over,
 * and so may a holder that had lost its lock to a holder that is gone by now.
 */

static ngx_uint_t
ngx_http_idem_memory_lapsed(ngx_http_idem_item_t *item,
    ngx_http_idem_op_t *op)
{
    return ngx_http_idem_zone_leased(item)
           && !item->hold
           && (ngx_msec_int_t) (item->until - ngx_current_msec) <= 0
           && ngx_http_idem_claim_same(&item->claim, op->claim,
                                       op->key_alone);
}


/* creates a record with a lock */

static ngx_http_idem_item_t *
ngx_http_idem_memory_create(ngx_http_idem_memory_t *m, ngx_http_idem_op_t *op)
{
    ngx_msec_t             expires;
    ngx_http_idem_item_t  *item;

    expires = ngx_current_msec + ngx_http_idem_lock_life(op);

    item = ngx_http_idem_zone_insert(&m->z, op->id, expires);

    if (item) {
        ngx_http_idem_memory_set_lock(m, item, op);
        item->again = 0;
        ngx_http_idem_zone_details(&m->z, item, &op->details);
        ngx_http_idem_zone_link(&m->z, item);
    }

    return item;
}


/*
 * Locks an existing record.  Its details are removed first and the new ones
 * are set last, so that the details of another request are never beside the
 * claim.  Pieces of a response that the former holder was storing are freed,
 * too.
 */

static void
ngx_http_idem_memory_take_over(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op, ngx_uint_t again)
{
    ngx_http_idem_zone_details(&m->z, item, NULL);
    ngx_http_idem_zone_free_pieces(&m->z, item);

    ngx_http_idem_zone_change(&m->z, item);

    if (item->state != NGX_HTTP_IDEM_IN_PROGRESS) {
        item->u.waiting = 0;                     /* was u.ttl before */
    }

    ngx_http_idem_memory_set_lock(m, item, op);
    item->again = (uint8_t) again;
    ngx_http_idem_zone_changed(&m->z);

    ngx_http_idem_zone_details(&m->z, item, &op->details);
}


static void
ngx_http_idem_memory_set_lock(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    ngx_http_idem_zone_state(&m->z, item, NGX_HTTP_IDEM_IN_PROGRESS,
                             NGX_HTTP_IDEM_REASON_NONE);

    item->hold = op->hold;
    item->claim = *op->claim;

    ngx_memcpy(item->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_http_idem_memory_set_lease(item, op);
}


static void
ngx_http_idem_memory_set_lease(ngx_http_idem_item_t *item,
    ngx_http_idem_op_t *op)
{
    ngx_msec_t  expires;

    item->until = ngx_current_msec + op->lease;

    /* only ever later, so the wheel needs no update: a purge checks again */

    expires = ngx_current_msec + ngx_http_idem_lock_life(op);

    if ((ngx_msec_int_t) (expires - item->expires) > 0) {
        item->expires = expires;
    }
}


static ngx_int_t
ngx_http_idem_memory_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_memory_t  *m;

    m = store->conf;

    m->store = store;
    m->details_evicted = m->z.zone->details_evicted;

    ngx_http_idem_turns_init(m, cycle->log);
    ngx_http_idem_memory_report_init(cycle, m);

    return ngx_http_idem_wake_init(cycle, m);
}


static void
ngx_http_idem_memory_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_memory_t  *m;

    m = store->conf;

    ngx_housekeeping_stop(&m->search);
    ngx_http_idem_wake_exit(m);
}
