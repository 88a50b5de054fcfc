
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Renews the leases of running requests after a third of the lease.
 *
 * All holders of a worker share one timer.  Most requests end long before
 * their lease is renewed, and a timer for each would cost an insertion into
 * and a removal from nginx's timer tree.  The timer fires when the first
 * lease is due and checks all holders.  Leases due within a twelfth of their
 * length are renewed too, so that the timer does not fire for each.  A third
 * of the lease counts from when the last begin or renewal was sent.  A failed
 * renewal is retried soon: a third of the lease later the lease may be over.
 *
 * A store that may have lost its records reports that.  The leases of its
 * holders are then renewed at once, which restores lost locks.
 *
 * Called when a request starts to run and when it is done; calls the store.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_housekeeping.h"
#include "request/ngx_http_idem_request.h"


/* delay before a failed renewal is retried */
#define NGX_HTTP_IDEM_RENEW_AGAIN(lease)  ngx_max((lease) / 12, 50)


static void ngx_http_idem_renew_after(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_op_t *op);
static void ngx_http_idem_renew_due(ngx_msec_t time);
static void ngx_http_idem_renew_handler(ngx_event_t *ev);
static void ngx_http_idem_renew_suspected(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data);
static ngx_uint_t ngx_http_idem_renew_concerns(
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_store_t *store,
    ngx_http_idem_concerns_pt concerns, void *data);
static void ngx_http_idem_renew(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_renewed(ngx_http_idem_op_t *op);


static ngx_queue_t       ngx_http_idem_holders;
static ngx_uint_t        ngx_http_idem_nholders;
static ngx_event_t       ngx_http_idem_renewal;


void
ngx_http_idem_renew_init(void)
{
    ngx_queue_init(&ngx_http_idem_holders);
    ngx_http_idem_nholders = 0;

    ngx_http_idem_store_suspect_loss_handler = ngx_http_idem_renew_suspected;

    ngx_housekeeping_init(&ngx_http_idem_renewal, ngx_http_idem_renew_handler,
                          &ngx_http_idem_renewal);
}


/* allocates all that renewals need: later there may be no memory for them */

ngx_int_t
ngx_http_idem_renew_start(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t           i;
    ngx_http_idem_op_t  *renewals;

    renewals = ngx_pcalloc(ctx->request->pool,
                           ctx->claims.ncovers * sizeof(ngx_http_idem_op_t));
    if (renewals == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->claims.ncovers; i++) {
        ctx->claims.covers[i].renewal = &renewals[i];
    }

    ctx->claims.renew_at = ngx_current_msec + ctx->claims.lease / 3;
    ctx->claims.renewing = 1;

    ngx_queue_insert_tail(&ngx_http_idem_holders, &ctx->claims.holder);
    ngx_http_idem_nholders++;

    /* a worker that shuts down waits for its holders only */

    ngx_http_idem_renewal.cancelable = 0;

    ngx_http_idem_renew_due(ctx->claims.renew_at);

    /* the store may have replied late, or have been asked for other locks */

    for (i = 0; i < ctx->claims.ncovers; i++) {
        ngx_http_idem_renew_after(ctx, &ctx->claims.covers[i].op);
    }

    return NGX_OK;
}


void
ngx_http_idem_renew_stop(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    ctx->claims.renewing = 0;

    ngx_queue_remove(&ctx->claims.holder);
    ngx_http_idem_nholders--;

    if (ngx_http_idem_nholders == 0) {
        /* the timer stays set for the next holder */
        ngx_http_idem_renewal.cancelable = 1;
    }

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (cover->renewal->pending) {
            cover->op.lock.stray = 1;
        }

        ngx_http_idem_store_cancel(cover->renewal);
    }
}


/* the lease counts from when a begin or a renewal was sent, not replied to */

static void
ngx_http_idem_renew_after(ngx_http_idem_ctx_t *ctx, ngx_http_idem_op_t *op)
{
    ngx_msec_t  due;

    due = op->sent_at + ctx->claims.lease / 3;

    if ((ngx_msec_int_t) (ctx->claims.renew_at - due) > 0) {
        ctx->claims.renew_at = due;
        ngx_http_idem_renew_due(due);
    }
}


/* makes sure that the timer fires by "time"; usually it is set already */

static void
ngx_http_idem_renew_due(ngx_msec_t time)
{
    ngx_event_t     *ev;
    ngx_msec_int_t   left;

    ev = &ngx_http_idem_renewal;

    if (ev->timer_set) {

        if ((ngx_msec_int_t) (time - ev->timer.key) >= 0) {
            return;
        }

        /* ngx_add_timer() would keep the old time if it is within 300 ms */

        ngx_del_timer(ev);
    }

    left = (ngx_msec_int_t) (time - ngx_current_msec);

    ngx_add_timer(ev, (ngx_msec_t) ngx_max(left, 1));
}


static void
ngx_http_idem_renew_handler(ngx_event_t *ev)
{
    ngx_queue_t          *q, all;
    ngx_msec_int_t        left;
    ngx_http_idem_ctx_t  *ctx;

    if (ngx_http_idem_nholders == 0) {
        return;
    }

    /*
     * While a renewal is submitted, a failing store may end requests and
     * start others.  So each holder moves from a local queue back to the
     * queue of holders before it is renewed.
     */

    ngx_queue_init(&all);
    ngx_queue_add(&all, &ngx_http_idem_holders);
    ngx_queue_init(&ngx_http_idem_holders);

    while (!ngx_queue_empty(&all)) {
        q = ngx_queue_head(&all);
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, claims.holder);

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&ngx_http_idem_holders, q);

        left = (ngx_msec_int_t) (ctx->claims.renew_at - ngx_current_msec);

        if (left > (ngx_msec_int_t) (ctx->claims.lease / 12)) {
            ngx_http_idem_renew_due(ctx->claims.renew_at);
            continue;
        }

        ctx->claims.renew_at = ngx_current_msec + ctx->claims.lease / 3;

        ngx_http_idem_renew_due(ctx->claims.renew_at);

        ngx_http_idem_renew(ctx);
    }
}


/*
 * Renews the leases in a store that may have lost its records.  With "now" it
 * does not wait for the timer, so that other requests find the locks.
 */

static void
ngx_http_idem_renew_suspected(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data)
{
    ngx_msec_t            due;
    ngx_uint_t            n;
    ngx_queue_t          *q;
    ngx_http_idem_ctx_t  *ctx;

    n = 0;

    for (q = ngx_queue_head(&ngx_http_idem_holders);
         q != ngx_queue_sentinel(&ngx_http_idem_holders);
         q = ngx_queue_next(q))
    {
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, claims.holder);

        if (!ngx_http_idem_renew_concerns(ctx, store, concerns, data)) {
            continue;
        }

        if (now) {
            ctx->claims.renew_at = ngx_current_msec;
            n++;
            continue;
        }

        due = ngx_current_msec + NGX_HTTP_IDEM_RENEW_AGAIN(ctx->claims.lease);

        if ((ngx_msec_int_t) (ctx->claims.renew_at - due) > 0) {
            ctx->claims.renew_at = due;
            ngx_http_idem_renew_due(due);
        }
    }

    if (n) {
        ngx_http_idem_renew_handler(&ngx_http_idem_renewal);
    }
}


static ngx_uint_t
ngx_http_idem_renew_concerns(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_store_t *store,
    ngx_http_idem_concerns_pt concerns, void *data)
{
    ngx_str_t              *name;
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        /* parts of one store share its name; a fallback has its own name */

        name = (cover->where && cover->where->name.len)
               ? &cover->where->name : &ctx->conf->store->name;

        if (cover->acquired && !cover->lost
            && ngx_http_idem_same_text(name, &store->name)
            && (concerns == NULL || concerns(data, cover->id)))
        {
            return 1;
        }
    }

    return 0;
}


static void
ngx_http_idem_renew(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_cover_t  *cover;

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];
        op = cover->renewal;

        /* the previous renewal may still be pending */

        if (!cover->acquired || cover->lost || op->pending) {
            continue;
        }

        ngx_http_idem_op_prepare(cover, op, NGX_HTTP_IDEM_OP_RENEW);
        op->handler = ngx_http_idem_renewed;

        if (ngx_http_idem_store_submit(op) == NGX_OK) {
            ngx_http_idem_renewed(op);
        }
    }
}


static void
ngx_http_idem_renewed(ngx_http_idem_op_t *op)
{
    ngx_http_idem_cover_t   *cover;
    ngx_http_idem_claims_t  *claims;

    cover = op->data;

    if (op->lock.stray) {
        cover->op.lock.stray = 1;
    }

    if (op->result == NGX_HTTP_IDEM_OK) {
        ngx_http_idem_lock_extended(cover, op);
        ngx_http_idem_renew_after(cover->ctx, op);
        ngx_http_idem_metrics_count(op->store->metrics,
                                    NGX_HTTP_IDEM_COUNT_RENEWALS);
        return;
    }

    if (op->result != NGX_HTTP_IDEM_LOST) {
        claims = &cover->ctx->claims;
        claims->renew_at = ngx_current_msec
                           + NGX_HTTP_IDEM_RENEW_AGAIN(claims->lease);
        ngx_http_idem_renew_due(claims->renew_at);
    }

    ngx_http_idem_op_failed(cover, op);
}
