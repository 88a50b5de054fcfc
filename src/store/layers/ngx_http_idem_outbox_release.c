
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Releases that failed: this worker retries them until the lease expires.
 * Under hold a lock outlives its lease; there the store inside sends the
 * releases itself (..._remote.c).
 *
 * Called by the outbox; calls the store inside it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* maximum per worker; the locks of others end with their lease */
#define NGX_HTTP_IDEM_OUTBOX_RELEASES     1024

/* maximum delay between two attempts, ms */
#define NGX_HTTP_IDEM_OUTBOX_RELEASE_MAX  10000


typedef struct {
    ngx_queue_t              queue;
    ngx_event_t              timer;
    ngx_http_idem_outbox_t  *outbox;
    ngx_http_idem_op_t      *op;
    ngx_msec_t               until;
    ngx_msec_t               delay;
} ngx_http_idem_outbox_release_t;


static void ngx_http_idem_outbox_release_again(ngx_event_t *ev);
static void ngx_http_idem_outbox_release_done(ngx_http_idem_op_t *op);
static void ngx_http_idem_outbox_release_free(
    ngx_http_idem_outbox_release_t *release);


void
ngx_http_idem_outbox_release_later(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op)
{
    ngx_msec_t                       until;
    ngx_http_idem_op_t              *again;
    ngx_http_idem_outbox_release_t  *release;

    until = op->start + op->lease;

    if ((ngx_msec_int_t) (op->locked_until - until) > 0) {
        /* under hold it does not end by itself */
        until = op->locked_until;
    }

    if (ngx_exiting
        || (ngx_msec_int_t) (until - op->start)
           <= NGX_HTTP_IDEM_OUTBOX_DELAY_MIN
        || o->nreleases >= NGX_HTTP_IDEM_OUTBOX_RELEASES)
    {
        return;
    }

    again = ngx_http_idem_op_detached(o->layer.inner,
                                      NGX_HTTP_IDEM_OP_RELEASE, op->id,
                                      op->token);
    if (again == NULL) {
        return;
    }

    release = ngx_pcalloc(again->pool,
                          sizeof(ngx_http_idem_outbox_release_t));
    if (release == NULL) {
        ngx_destroy_pool(again->pool);
        return;
    }

    release->outbox = o;
    release->op = again;
    release->until = until;
    release->delay = NGX_HTTP_IDEM_OUTBOX_DELAY_MIN;

    release->timer.handler = ngx_http_idem_outbox_release_again;
    release->timer.data = release;
    release->timer.log = ngx_cycle->log;
    release->timer.cancelable = 1;

    again->lease = op->lease;
    again->ttl = op->ttl;
    again->hold = op->hold;
    again->lock = op->lock;
    again->handler = ngx_http_idem_outbox_release_done;
    again->data = release;

    ngx_queue_insert_tail(&o->releases, &release->queue);
    o->nreleases++;

    ngx_add_timer(&release->timer, release->delay);
}


static void
ngx_http_idem_outbox_release_again(ngx_event_t *ev)
{
    ngx_http_idem_outbox_release_t  *release;

    release = ev->data;

    if (ngx_http_idem_store_submit(release->op) == NGX_OK) {
        ngx_http_idem_outbox_release_done(release->op);
    }
}


static void
ngx_http_idem_outbox_release_done(ngx_http_idem_op_t *op)
{
    ngx_http_idem_outbox_release_t  *release;

    release = op->data;

    release->delay = ngx_min(2 * release->delay,
                             NGX_HTTP_IDEM_OUTBOX_RELEASE_MAX);

    if (ngx_http_idem_layer_answered(op)
        || (ngx_msec_int_t) (release->until - ngx_current_msec
                             - release->delay)
           <= 0)
    {
        ngx_http_idem_outbox_release_free(release);
        return;
    }

    ngx_add_timer(&release->timer, release->delay);
}


static void
ngx_http_idem_outbox_release_free(ngx_http_idem_outbox_release_t *release)
{
    ngx_http_idem_store_cancel(release->op);

    if (release->timer.timer_set) {
        ngx_del_timer(&release->timer);
    }

    ngx_queue_remove(&release->queue);
    release->outbox->nreleases--;

    ngx_destroy_pool(release->op->pool);
}


void
ngx_http_idem_outbox_release_exit(ngx_http_idem_outbox_t *o)
{
    ngx_queue_t  *q;

    while (!ngx_queue_empty(&o->releases)) {
        q = ngx_queue_head(&o->releases);

        ngx_http_idem_outbox_release_free(
            ngx_queue_data(q, ngx_http_idem_outbox_release_t, queue));
    }
}
