
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The leases of the requests that run: renewed at a third of their time.
 *
 * There is one timer for all holders of a worker and not one for each: most
 * requests are through long before their lease is renewed, and need not go in
 * and out of nginx's tree of timers.  It goes off when the first is due, and
 * then all are looked at.  Those that are due within a twelfth of their lease
 * are renewed as well, so that it does not go off for each.  A renewal that
 * failed is tried again soon: a third of the lease later it may be over.
 *
 * A store that may have lost its records says so: then those of its holders
 * are renewed at once, which lays their locks anew where they are gone.
 *
 * Called when a request begins to run and when it is through; calls the
 * store.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* how soon a renewal that failed is tried again */
#define NGX_HTTP_IDEM_RENEW_AGAIN(lease)  ngx_max((lease) / 12, 50)


static void ngx_http_idem_renew_due(ngx_msec_t time);
static void ngx_http_idem_renew_handler(ngx_event_t *ev);
static void ngx_http_idem_renew_doubt(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data);
static ngx_uint_t ngx_http_idem_renew_concerns(
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_store_t *store,
    ngx_http_idem_concerns_pt concerns, void *data);
static void ngx_http_idem_renew(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_renewed(ngx_http_idem_op_t *op);


static ngx_queue_t       ngx_http_idem_holders;
static ngx_uint_t        ngx_http_idem_nholders;
static ngx_event_t       ngx_http_idem_renewal;
static ngx_connection_t  ngx_http_idem_renewal_dumb;


void
ngx_http_idem_renew_init(ngx_cycle_t *cycle)
{
    ngx_event_t  *ev;

    ngx_queue_init(&ngx_http_idem_holders);
    ngx_http_idem_nholders = 0;

    ngx_http_idem_store_on_doubt(ngx_http_idem_renew_doubt);

    ngx_http_idem_renewal_dumb.fd = (ngx_socket_t) -1;

    ev = &ngx_http_idem_renewal;

    ngx_memzero(ev, sizeof(ngx_event_t));

    ev->handler = ngx_http_idem_renew_handler;
    ev->data = &ngx_http_idem_renewal_dumb;
    ev->log = cycle->log;
    ev->cancelable = 1;
}


void
ngx_http_idem_renew_start(ngx_http_idem_ctx_t *ctx)
{
    ctx->claims.renew_at = ngx_current_msec + ctx->claims.lease / 3;
    ctx->claims.holding = 1;

    ngx_queue_insert_tail(&ngx_http_idem_holders, &ctx->claims.holder);
    ngx_http_idem_nholders++;

    /* a worker that is to quit waits while there are holders, but no longer */

    ngx_http_idem_renewal.cancelable = 0;

    ngx_http_idem_renew_due(ctx->claims.renew_at);
}


void
ngx_http_idem_renew_stop(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    ctx->claims.holding = 0;

    ngx_queue_remove(&ctx->claims.holder);
    ngx_http_idem_nholders--;

    if (ngx_http_idem_nholders == 0) {
        /* the timer stays, for the next one */
        ngx_http_idem_renewal.cancelable = 1;
    }

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (cover->renewal.pending) {
            cover->op.laid.stray = 1;
        }

        ngx_http_idem_store_cancel(&cover->renewal);
    }
}


/* the timer is to go off by then; mostly it will in any case */

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

        /* ngx_add_timer() would leave it where it is for 300 ms */

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
     * A store that fails may end requests, and begin others, while it is asked
     * here: so each goes from a queue of its own back to that of the holders
     * before anything is done to it.
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
 * Of a store that may have lost them.  Not by the timer: who asks the store
 * meanwhile is to find the locks.
 */

static void
ngx_http_idem_renew_doubt(ngx_http_idem_store_t *store,
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

        /* a store has several parts, and one name; a fallback has another */

        name = (cover->where && cover->where->name.len)
               ? &cover->where->name : &ctx->conf->store->name;

        if (cover->taken && !cover->lost
            && name->len == store->name.len
            && ngx_strncmp(name->data, store->name.data, name->len) == 0
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
        op = &cover->renewal;

        /* the last one may still be under way */

        if (!cover->taken || cover->lost || op->pending) {
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
    ngx_http_idem_cover_t  *cover;

    cover = op->data;

    if (op->laid.stray) {
        cover->op.laid.stray = 1;
    }

    switch (op->result) {

    case NGX_HTTP_IDEM_OK:
        ngx_http_idem_locked(cover, op);
        ngx_http_idem_metrics_count(op->store->metrics,
                                    NGX_HTTP_IDEM_COUNT_RENEWALS);
        break;

    case NGX_HTTP_IDEM_LOST:
        ngx_http_idem_op_failed(cover, op);
        break;

    default:
        cover->ctx->claims.renew_at = ngx_current_msec
                            + NGX_HTTP_IDEM_RENEW_AGAIN(
                                                  cover->ctx->claims.lease);
        ngx_http_idem_renew_due(cover->ctx->claims.renew_at);

        ngx_http_idem_op_failed(cover, op);
        break;
    }
}
