
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Locks in this nginx only: those of requests that run although the store
 * does not answer (idempotency_on_store_error pass).
 *
 * Neither other hosts nor the store know of these locks.  Their purpose is
 * that duplicates which reach this nginx wait for the running request and get
 * its response.  The response is kept like a failed commit, and written to
 * the store when it is back, unless the store has a record by then.
 *
 * If the worker does not renew the lock, the same request can take it over
 * after the lease expired; other requests can't, also not when the lock that
 * was taken over is released.
 *
 * Called by the outbox.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* limit of the polling interval of a waiter, ms */
#define NGX_HTTP_IDEM_OUTBOX_LOCAL_POLL  250


#define ngx_http_idem_outbox_local_ours(item, op)                             \
    (ngx_memcmp((item)->token, (op)->token, NGX_HTTP_IDEM_TOKEN_LEN) == 0)


static void ngx_http_idem_outbox_local_found(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_outbox_local_available(
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);
static void ngx_http_idem_outbox_local_release(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);


ngx_int_t
ngx_http_idem_outbox_local_begin(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op)
{
    ngx_http_idem_item_t  *item, *old;

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    if (item && !ngx_http_idem_outbox_local_available(item, op)) {
        ngx_http_idem_outbox_local_found(o, item, op);

    } else {

        old = item;

        item = ngx_http_idem_zone_insert(&o->z, op->id,
                        op->start + ngx_http_idem_lock_life(op));

        if (item) {
            ngx_http_idem_zone_state(&o->z, item, NGX_HTTP_IDEM_IN_PROGRESS,
                                     NGX_HTTP_IDEM_REASON_NONE);
            item->claim = *op->claim;
            item->hold = op->hold;
            item->until = op->start + op->lease;

            if (old) {
                item->again = ngx_http_idem_outbox_local_ours(old, op)
                              ? old->again : ngx_http_idem_zone_leased(old);
            }

            ngx_memcpy(item->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

            ngx_http_idem_zone_link(&o->z, item);

            if (old) {
                ngx_http_idem_zone_remove(&o->z, old);
            }

            op->result = NGX_HTTP_IDEM_ACQUIRED;

        } else {
            op->result = NGX_HTTP_IDEM_FULL;
        }
    }

    ngx_http_idem_outbox_unlock(o);

    return NGX_OK;
}


static void
ngx_http_idem_outbox_local_found(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    ngx_http_idem_found_t  *found;

    ngx_http_idem_zone_found(&o->z, item, op);

    op->kept = 1;

    found = &op->found;
    found->left = ngx_http_idem_outbox_left(item);

    if (item->state == NGX_HTTP_IDEM_IN_PROGRESS && found->left == 0) {

        /* the lease expired, but the record is held or of another request */

        found->left = item->expires - ngx_current_msec;
        found->state = NGX_HTTP_IDEM_UNUSABLE;
        found->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
    }
}


/* whether the request may take over the existing record */

static ngx_uint_t
ngx_http_idem_outbox_local_available(ngx_http_idem_item_t *item,
    ngx_http_idem_op_t *op)
{
    ngx_msec_t  until;

    if (item->state == NGX_HTTP_IDEM_IN_PROGRESS) {

        if (ngx_http_idem_outbox_local_ours(item, op)) {
            return 1;
        }

        until = item->until;

    } else if (ngx_http_idem_op_retryable(item)) {
        until = item->u.locked_until;

    } else {
        return (ngx_msec_int_t) (item->until + op->age - ngx_current_msec)
               <= 0;
    }

    /* after the lease expired the same request may run, and no other */

    if ((ngx_msec_int_t) (until - ngx_current_msec) > 0 || item->hold
        || !ngx_http_idem_claim_same(&item->claim, op->claim,
                                     op->key_alone))
    {
        return 0;
    }

    op->abandoned = (item->state == NGX_HTTP_IDEM_IN_PROGRESS);

    if (op->abandoned) {

        /* the previous holder was on this host: our own labels name it */

        op->original = item->claim.time;
        op->found.details = op->details;
    }

    return 1;
}


/* never returns LOST: no other host knows of the lock */

ngx_int_t
ngx_http_idem_outbox_local_update(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op)
{
    ngx_http_idem_item_t  *item;

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    if (item == NULL || item->state != NGX_HTTP_IDEM_IN_PROGRESS
        || !ngx_http_idem_outbox_local_ours(item, op))
    {
        /* another request has taken over */

    } else if (op->kind == NGX_HTTP_IDEM_OP_RELEASE) {
        ngx_http_idem_outbox_local_release(o, item, op);

    } else {
        ngx_http_idem_zone_change(&o->z, item);

        item->until = ngx_current_msec + op->lease;
        ngx_http_idem_zone_changed(&o->z);

        ngx_http_idem_zone_expire(&o->z, item, ngx_current_msec
                                        + ngx_http_idem_lock_life(op));
    }

    ngx_http_idem_outbox_unlock(o);

    op->result = NGX_HTTP_IDEM_OK;

    return NGX_OK;
}


/*
 * If the lock was taken over, the request may have run before.  Then the
 * record stays with an unknown outcome, so that another request finds it.
 */

static void
ngx_http_idem_outbox_local_release(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    if (!item->again) {
        ngx_http_idem_zone_remove(&o->z, item);
        return;
    }

    op->hold = 0;
    op->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
    op->locked_until = ngx_current_msec;

    ngx_http_idem_outbox_local_end(o, item, op, item->expires);

    ngx_http_idem_outbox_queue_use(o,
                       ngx_http_idem_outbox_queue(o, item->id,
                                          NGX_HTTP_IDEM_OUTBOX_FAILED));

    (void) ngx_atomic_fetch_add(&ngx_http_idem_outbox_sh(o)->counters.kept, 1);
}


/* makes an outcome without a response of the lock, in its place */

void
ngx_http_idem_outbox_local_end(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op, ngx_msec_t until)
{
    ngx_http_idem_zone_change(&o->z, item);

    item->hold = op->hold;
    item->again = NGX_HTTP_IDEM_OUTBOX_FAILED;
    item->until = until;
    item->u.locked_until = op->locked_until;

    ngx_http_idem_zone_state(&o->z, item, NGX_HTTP_IDEM_UNUSABLE, op->reason);

    ngx_http_idem_zone_changed(&o->z);

    ngx_http_idem_zone_requeue(&o->z, item);
}


ngx_int_t
ngx_http_idem_outbox_local_watch(ngx_http_idem_op_t *op)
{
    op->state_data = NULL;
    op->woken = 0;
    op->found.left = NGX_HTTP_IDEM_OUTBOX_LOCAL_POLL;

    ngx_http_idem_poll_wait(op, NGX_HTTP_IDEM_OUTBOX_LOCAL_POLL);

    return NGX_AGAIN;
}
