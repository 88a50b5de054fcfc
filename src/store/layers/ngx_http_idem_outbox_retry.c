
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Trying again: commits that wait in the outbox.
 *
 * Of all workers one at a time does it.  It passes through what waits in the
 * order in which it was kept, so many records in a turn of the event loop, and
 * takes what may be tried now: of a node that does not answer one commit after
 * each delay, of any other all at once (..._outbox_lane.c).  What was looked
 * at goes behind the others.  Who tries has the right to do so for a while, or
 * until it is gone.  A commit that is tried twice does no harm: it carries the
 * token of its holder.
 *
 * A worker that quits leaves what waits to the others, or to its successor;
 * it ends with nginx itself.
 *
 * Called by the outbox; calls ..._outbox_try.c for each record.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* the right to try: longer than a worker is busy, mostly */
#define NGX_HTTP_IDEM_OUTBOX_OWNED     5000

/* between two rewrites of what replicas may lack */
#define NGX_HTTP_IDEM_OUTBOX_REWRITE   2000

/* records that are looked at in a turn */
#define NGX_HTTP_IDEM_OUTBOX_SCAN      256


static void ngx_http_idem_outbox_tick(ngx_event_t *ev);
static ngx_msec_t ngx_http_idem_outbox_take(
    ngx_http_idem_outbox_t *o, ngx_queue_t *ops);
static ngx_int_t ngx_http_idem_outbox_own(ngx_http_idem_outbox_t *o);
static void ngx_http_idem_outbox_disown(ngx_http_idem_outbox_t *o);


ngx_int_t
ngx_http_idem_outbox_retry_init(ngx_cycle_t *cycle, ngx_http_idem_outbox_t *o)
{
    ngx_queue_init(&o->releases);
    ngx_queue_init(&o->checks);

    o->work = ngx_pcalloc(cycle->pool, NGX_HTTP_IDEM_OUTBOX_LANES
                               * sizeof(ngx_http_idem_outbox_work_t));

    if (o->work == NULL
        || ngx_http_idem_outbox_tries_init(cycle, o) != NGX_OK)
    {
        return NGX_ERROR;
    }

    o->tick.handler = ngx_http_idem_outbox_tick;
    o->tick.data = o;
    o->tick.log = cycle->log;
    o->tick.cancelable = 1;

    /* what others left */

    if (!ngx_http_idem_outbox_empty(o)) {
        ngx_http_idem_outbox_arm(o, NGX_HTTP_IDEM_OUTBOX_DELAY_MIN);
    }

    return NGX_OK;
}


void
ngx_http_idem_outbox_retry_exit(ngx_http_idem_outbox_t *o)
{
    ngx_http_idem_outbox_disown(o);

    if (o->tick.timer_set) {
        ngx_del_timer(&o->tick);
    }

    ngx_http_idem_outbox_tries_end(o, 1);
    ngx_http_idem_outbox_check_exit(o);
    ngx_http_idem_outbox_release_exit(o);
}


void
ngx_http_idem_outbox_arm(ngx_http_idem_outbox_t *o, ngx_msec_t delay)
{
    if (ngx_exiting) {
        return;
    }

    if (o->tick.timer_set) {

        if ((ngx_msec_int_t) (o->tick.timer.key - ngx_current_msec)
            <= (ngx_msec_int_t) delay)
        {
            return;
        }

        ngx_del_timer(&o->tick);
    }

    ngx_add_timer(&o->tick, delay);
}


static void
ngx_http_idem_outbox_tick(ngx_event_t *ev)
{
    ngx_msec_t               wait;
    ngx_queue_t             *q, ops;
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
        return;
    }

    ngx_queue_init(&ops);

    wait = ngx_http_idem_outbox_take(o, &ops);

    ngx_http_idem_outbox_arm(o, wait);

    while (!ngx_queue_empty(&ops)) {
        q = ngx_queue_head(&ops);
        ngx_queue_remove(q);

        ngx_http_idem_outbox_try_submit(
                            ngx_queue_data(q, ngx_http_idem_op_t, queue));
    }
}


/* the commits that are to be tried now, by us; returns when to look again */

static ngx_msec_t
ngx_http_idem_outbox_take(ngx_http_idem_outbox_t *o, ngx_queue_t *ops)
{
    ngx_uint_t             n;
    ngx_msec_t             wait;
    ngx_queue_t           *q, *completed;
    ngx_http_idem_op_t    *op;
    ngx_http_idem_node_t  *node;

    completed = &o->z.zone->completed;

    ngx_http_idem_outbox_lock(o);

    if (o->connects != o->layer.named->connects
        && ngx_current_msec - o->rewritten
           >= NGX_HTTP_IDEM_OUTBOX_REWRITE)
    {
        o->connects = o->layer.named->connects;
        o->rewritten = ngx_current_msec;

        ngx_http_idem_outbox_tries_end(o, 0);
        ngx_http_idem_outbox_lanes_rewrite(o);
    }

    wait = NGX_HTTP_IDEM_OUTBOX_TICK;

    if (ngx_http_idem_outbox_own(o) != NGX_OK
        || ngx_queue_empty(completed))
    {
        goto done;
    }

    if (o->left == 0) {
        wait = ngx_http_idem_outbox_lanes_next(o, wait);

        if (wait) {
            goto done;
        }

        ngx_http_idem_outbox_pass_start(o);
    }

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_SCAN && o->left; n++) {

        if (ngx_queue_empty(completed)) {
            o->left = 0;
            break;
        }

        o->left--;

        q = ngx_queue_head(completed);
        node = ngx_queue_data(q, ngx_http_idem_node_t, completed);

        if ((ngx_msec_int_t) (node->expires - ngx_current_msec) <= 0) {
            ngx_http_idem_zone_remove(&o->z, node);
            o->z.zone->expired++;
            continue;
        }

        ngx_http_idem_zone_requeue(&o->z, node);

        /* a lock of this nginx is among them after the zone was repaired */

        op = node->state != NGX_HTTP_IDEM_IN_PROGRESS
             ? ngx_http_idem_outbox_try(o, node) : NULL;

        if (op == NULL) {
            continue;
        }

        ngx_queue_insert_tail(ops, &op->queue);

        if (ngx_http_idem_outbox_lanes_next(o, 1) != 0) {
            /* that was all for now; what was not looked at stays as it is */
            o->left = 0;
            goto next;
        }
    }

    if (o->left) {
        wait = 0;
        goto done;
    }

    ngx_http_idem_outbox_pass_end(o);

next:

    wait = ngx_http_idem_outbox_lanes_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);

done:

    ngx_http_idem_outbox_unlock(o);

    return wait;
}


/* the zone is locked; NGX_DECLINED: another worker does it */

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
