
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Retries the commits in the outbox.
 *
 * One worker at a time does so, the owner.  It walks the records in the order
 * in which they were kept, a limited number per iteration of the event loop,
 * and attempts those that are due: one commit after each delay if the node
 * does not answer, all at once otherwise (..._outbox_queue.c).  Visited
 * records move to the end of the queue.  Ownership ends after a while unless
 * it is renewed, or when the worker is gone.  Committing twice does no harm:
 * the commit has the token of its holder.
 *
 * A worker that shuts down leaves the records to other workers, or to its
 * successor.  The outbox is lost when nginx itself stops.
 *
 * Called by the outbox; calls ..._outbox_try.c for each record.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* duration of ownership, ms: usually longer than a worker is blocked */
#define NGX_HTTP_IDEM_OUTBOX_OWNED     5000

/* minimum time between two rewrites of unacknowledged commits, ms */
#define NGX_HTTP_IDEM_OUTBOX_REWRITE   2000

/* records visited per iteration */
#define NGX_HTTP_IDEM_OUTBOX_SCAN      256


static void ngx_http_idem_outbox_tick(ngx_event_t *ev);
static ngx_msec_t ngx_http_idem_outbox_collect(
    ngx_http_idem_outbox_t *o, ngx_queue_t *ops);
static ngx_msec_t ngx_http_idem_outbox_pass(ngx_http_idem_outbox_t *o,
    ngx_queue_t *ops);
static ngx_int_t ngx_http_idem_outbox_own(ngx_http_idem_outbox_t *o);
static void ngx_http_idem_outbox_disown(ngx_http_idem_outbox_t *o);


ngx_int_t
ngx_http_idem_outbox_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t               i;
    ngx_http_idem_outbox_t  *o;

    if (ngx_http_idem_layer_init_process(cycle, store) != NGX_OK) {
        return NGX_ERROR;
    }

    o = store->conf;

    for (i = 0; i < NGX_HTTP_IDEM_OUTBOX_BUCKETS; i++) {
        ngx_queue_init(&o->tries[i]);
    }

    ngx_housekeeping_init(&o->tick, ngx_http_idem_outbox_tick, o);

    /* records of former workers, which may also add some while they exit */

    ngx_http_idem_outbox_schedule(o, ngx_http_idem_outbox_empty(o)
                                     ? NGX_HTTP_IDEM_OUTBOX_TICK
                                     : NGX_HTTP_IDEM_OUTBOX_DELAY_MIN);

    return NGX_OK;
}


void
ngx_http_idem_outbox_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_outbox_t  *o;

    o = store->conf;

    ngx_http_idem_outbox_disown(o);

    ngx_housekeeping_stop(&o->tick);

    ngx_http_idem_outbox_tries_end(o, 1);

    ngx_http_idem_layer_exit_process(cycle, store);
}


void
ngx_http_idem_outbox_schedule(ngx_http_idem_outbox_t *o, ngx_msec_t delay)
{
    if (!ngx_exiting) {
        ngx_housekeeping_within(&o->tick, delay);
    }
}


static void
ngx_http_idem_outbox_tick(ngx_event_t *ev)
{
    ngx_msec_t               wait;
    ngx_queue_t             *q, ops;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_outbox_t  *o;

    o = ev->data;

    if (ngx_exiting) {
        ngx_http_idem_outbox_disown(o);
        return;
    }

    ngx_http_idem_outbox_expired(o);

    if (ngx_http_idem_outbox_empty(o)) {
        ngx_http_idem_outbox_tries_end(o, 0);
        ngx_http_idem_outbox_disown(o);

        ngx_http_idem_outbox_schedule(o, NGX_HTTP_IDEM_OUTBOX_TICK);
        return;
    }

    ngx_queue_init(&ops);

    wait = ngx_http_idem_outbox_collect(o, &ops);

    ngx_http_idem_outbox_schedule(o, wait);

    while (!ngx_queue_empty(&ops)) {
        q = ngx_queue_head(&ops);
        ngx_queue_remove(q);

        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (ngx_http_idem_store_submit(op) == NGX_OK) {
            op->handler(op);
        }
    }
}


/* collects the commits to attempt now; returns the delay of the next tick */

static ngx_msec_t
ngx_http_idem_outbox_collect(ngx_http_idem_outbox_t *o, ngx_queue_t *ops)
{
    ngx_msec_t  wait;

    wait = NGX_HTTP_IDEM_OUTBOX_TICK;

    ngx_http_idem_outbox_lock(o);

    if (o->connects != o->layer.named->connects
        && ngx_current_msec - o->rewritten
           >= NGX_HTTP_IDEM_OUTBOX_REWRITE)
    {
        o->connects = o->layer.named->connects;
        o->rewritten = ngx_current_msec;

        ngx_http_idem_outbox_tries_end(o, 0);
        ngx_http_idem_outbox_queues_rewrite(o);
    }

    if (ngx_http_idem_outbox_own(o) == NGX_OK
        && !ngx_queue_empty(&o->z.zone->completed))
    {
        wait = ngx_http_idem_outbox_pass(o, ops);
    }

    ngx_http_idem_outbox_unlock(o);

    return wait;
}


/*
 * Goes on with the pass over the records, or starts one if a queue is due.
 * Called with the zone locked; returns the delay of the next tick.
 */

static ngx_msec_t
ngx_http_idem_outbox_pass(ngx_http_idem_outbox_t *o, ngx_queue_t *ops)
{
    ngx_uint_t             n;
    ngx_msec_t             wait;
    ngx_queue_t           *completed;
    ngx_http_idem_op_t    *op;
    ngx_http_idem_item_t  *item;

    completed = &o->z.zone->completed;

    if (o->left == 0) {
        wait = ngx_http_idem_outbox_queues_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);

        if (wait) {
            return wait;
        }

        ngx_http_idem_outbox_pass_start(o);
    }

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_SCAN && o->left; n++) {

        if (ngx_queue_empty(completed)) {
            o->left = 0;
            break;
        }

        o->left--;

        item = ngx_queue_data(ngx_queue_head(completed), ngx_http_idem_item_t,
                              completed);

        if ((ngx_msec_int_t) (item->expires - ngx_current_msec) <= 0) {
            ngx_http_idem_zone_remove(&o->z, item);
            o->z.zone->expired++;
            continue;
        }

        ngx_http_idem_zone_requeue(&o->z, item);

        /* after a repair of the zone, local locks are in this queue, too */

        if (item->state == NGX_HTTP_IDEM_IN_PROGRESS) {
            continue;
        }

        op = ngx_http_idem_outbox_try(o, item);
        if (op == NULL) {
            continue;
        }

        ngx_queue_insert_tail(ops, &op->queue);

        if (ngx_http_idem_outbox_queues_next(o, 1) != 0) {

            /* no queue is due any more; the other records keep their order */

            o->left = 0;
            return ngx_http_idem_outbox_queues_next(o,
                                                   NGX_HTTP_IDEM_OUTBOX_TICK);
        }
    }

    if (o->left) {
        return 0;
    }

    ngx_http_idem_outbox_pass_end(o);

    return ngx_http_idem_outbox_queues_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);
}


/* called with the zone locked; NGX_DECLINED: another worker is the owner */

static ngx_int_t
ngx_http_idem_outbox_own(ngx_http_idem_outbox_t *o)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (sh->owner && sh->owner != ngx_pid
        && (ngx_msec_int_t) (sh->owned_until - ngx_current_msec) > 0
        && !(kill(sh->owner, 0) == -1 && ngx_errno == ESRCH))
    {
        o->left = 0;
        return NGX_DECLINED;
    }

    sh->owner = ngx_pid;
    sh->owned_until = ngx_current_msec + NGX_HTTP_IDEM_OUTBOX_OWNED;

    return NGX_OK;
}


static void
ngx_http_idem_outbox_disown(ngx_http_idem_outbox_t *o)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (sh->owner != ngx_pid) {
        return;
    }

    ngx_http_idem_outbox_lock(o);

    if (sh->owner == ngx_pid) {
        sh->owner = 0;
    }

    ngx_http_idem_outbox_unlock(o);

    o->left = 0;
}
