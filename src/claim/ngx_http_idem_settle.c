
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Settles the records that a request has locked: commits the response to each
 * of them, marks them unusable, or releases them.
 *
 * Called by the response when its outcome is known, and by the context when a
 * request ends without one.
 *
 * A response that is held goes out when the store has answered: a client that
 * retries at once finds what became of the first try.  A commit with a response
 * is an operation of the request.  All others are detached, since they must
 * outlive a request that ends without a response.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_commit_handler(ngx_http_idem_op_t *op);
static void ngx_http_idem_committed(ngx_http_idem_op_t *op);
static void ngx_http_idem_settle_all(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_op_e kind, ngx_http_idem_reason_e reason,
    ngx_uint_t wait);
static void ngx_http_idem_settle_ttl(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op, ngx_http_idem_reason_e reason);
static void ngx_http_idem_settled(ngx_http_idem_op_t *op);


/*
 * NGX_OK if all commits are done, NGX_AGAIN if ngx_http_idem_commit_done()
 * will be called
 */

ngx_int_t
ngx_http_idem_claims_commit(ngx_http_idem_ctx_t *ctx, ngx_chain_t *response,
    size_t size)
{
    ngx_uint_t              i;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_cover_t  *cover;

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];
        op = &cover->op;

        if (!cover->acquired) {
            continue;
        }

        cover->acquired = 0;

        ngx_http_idem_op_prepare(cover, op, NGX_HTTP_IDEM_OP_COMMIT);

        op->handler = ngx_http_idem_commit_handler;
        op->state = NGX_HTTP_IDEM_COMPLETED;
        op->reason = NGX_HTTP_IDEM_REASON_NONE;
        op->ttl = ngx_http_idem_commit_ttl(cover);
        op->response = response;
        op->size = size;

        if (ngx_http_idem_store_submit(op) == NGX_OK) {
            ngx_http_idem_committed(op);

        } else {
            ctx->claims.commits++;
        }
    }

    return ctx->claims.commits ? NGX_AGAIN : NGX_OK;
}


static void
ngx_http_idem_commit_handler(ngx_http_idem_op_t *op)
{
    ngx_http_request_t     *r;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_cover_t  *cover;

    cover = op->data;
    ctx = cover->ctx;
    r = ctx->request;

    ngx_http_set_log_request(r->connection->log, r);

    ngx_http_idem_committed(op);

    if (--ctx->claims.commits == 0) {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND, "committed");
        ngx_http_idem_commit_done(r, ctx);
    }
}


static void
ngx_http_idem_committed(ngx_http_idem_op_t *op)
{
    ngx_http_idem_cover_t  *cover;

    cover = op->data;

    cover->ctx->claims.store_time += ngx_current_msec - op->start;

    if (op->result != NGX_HTTP_IDEM_OK) {
        ngx_http_idem_op_failed(cover, op);
        return;
    }

    ngx_http_idem_metrics_lifetime(cover->ctx->conf->store->metrics,
                     ngx_http_idem_group(cover->ctx),
                     ngx_current_msec - cover->ctx->claims.held_since
                     + op->ttl);
}


/*
 * Ends the records without a response.  With OUTCOME_KEEP the request ran,
 * and "reason" says why there is no response.  NGX_AGAIN, only with "wait":
 * ngx_http_idem_commit_done() will be called when the store has answered.
 */

ngx_int_t
ngx_http_idem_settle(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_outcome_e outcome, ngx_http_idem_reason_e reason,
    ngx_uint_t wait)
{
    ngx_http_idem_execute_done(ctx);

    ngx_http_idem_settle_status(ctx, outcome, reason);

    if (outcome == NGX_HTTP_IDEM_OUTCOME_RELEASE
        || (outcome == NGX_HTTP_IDEM_OUTCOME_UNKNOWN
            && ctx->claims.unknown_outcome == NGX_HTTP_IDEM_UNKNOWN_RETRY))
    {
        ngx_http_idem_settle_all(ctx, NGX_HTTP_IDEM_OP_RELEASE,
                                 NGX_HTTP_IDEM_REASON_NONE, wait);

    } else {
        ngx_http_idem_settle_all(ctx, NGX_HTTP_IDEM_OP_COMMIT,
                                 outcome == NGX_HTTP_IDEM_OUTCOME_UNKNOWN
                                 ? NGX_HTTP_IDEM_REASON_UNKNOWN : reason,
                                 wait);
    }

    return ctx->claims.commits ? NGX_AGAIN : NGX_OK;
}


/*
 * Reports the outcome, or what the header of a response suggests.  For an
 * unprotected request, UNPROTECTED stays the reported status.
 */

void
ngx_http_idem_settle_status(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_outcome_e outcome, ngx_http_idem_reason_e reason)
{
    if (ctx->claims.unprotected) {
        return;
    }

    if (outcome == NGX_HTTP_IDEM_OUTCOME_RELEASE) {
        ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_RELEASED);

    } else if (outcome == NGX_HTTP_IDEM_OUTCOME_UNKNOWN) {
        ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_UNKNOWN);

    } else if (reason == NGX_HTTP_IDEM_REASON_TOO_LARGE) {
        ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_TOO_LARGE);
    }
}


/* releases all locks of the request */

void
ngx_http_idem_release(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_settle_all(ctx, NGX_HTTP_IDEM_OP_RELEASE,
                             NGX_HTTP_IDEM_REASON_NONE, 0);
}


static void
ngx_http_idem_settle_all(ngx_http_idem_ctx_t *ctx, ngx_http_idem_op_e kind,
    ngx_http_idem_reason_e reason, ngx_uint_t wait)
{
    ngx_uint_t              i;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_cover_t  *cover;

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (!cover->acquired) {
            continue;
        }

        cover->acquired = 0;
        cover->asked = 0;

        op = ngx_http_idem_op_own(cover, kind);

        cover->where = NULL;

        if (op == NULL) {
            ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                          "idempotency: no memory for a %s in store \"%V\", "
                          "the lock stays until its lease ends, record %*xs",
                          ngx_http_idem_op_names[kind],
                          &ctx->conf->store->name, (size_t) 8, cover->id);
            continue;
        }

        ngx_http_idem_settle_ttl(cover, op, reason);
        op->state = NGX_HTTP_IDEM_UNUSABLE;
        op->reason = reason;

        (void) (wait ? ngx_http_idem_settle_op(cover, op)
                     : ngx_http_idem_op_detach(op));
    }
}


/*
 * A release that fails is sent again for as long as the lock may live.  An
 * unknown outcome under hold stays as long as the lock of a dead holder would:
 * the ttl may be shorter than a lease, and the window of a derived record over.
 */

static void
ngx_http_idem_settle_ttl(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op,
    ngx_http_idem_reason_e reason)
{
    ngx_msec_t  ttl;

    if (op->kind == NGX_HTTP_IDEM_OP_RELEASE) {
        return;
    }

    ttl = ngx_http_idem_commit_ttl(cover);

    if (op->hold && reason == NGX_HTTP_IDEM_REASON_UNKNOWN) {
        ttl = ngx_max(ttl, op->lock_life);
    }

    op->ttl = ttl;
}


/* detaches an operation; NGX_AGAIN: the request goes on when it is done */

ngx_int_t
ngx_http_idem_settle_op(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op)
{
    if (ngx_http_idem_op_detach(op) != NGX_AGAIN) {
        return NGX_OK;
    }

    op->detached = ngx_http_idem_settled;
    op->data = cover;

    cover->settling = op;
    cover->ctx->claims.commits++;

    return NGX_AGAIN;
}


/* the store has answered: the response, or the replay, may be sent */

static void
ngx_http_idem_settled(ngx_http_idem_op_t *op)
{
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_cover_t  *cover;

    cover = op->data;
    ctx = cover->ctx;

    cover->settling = NULL;
    ctx->claims.store_time += ngx_current_msec - op->start;

    ngx_http_set_log_request(ctx->request->connection->log, ctx->request);

    if (--ctx->claims.commits) {
        return;
    }

    if (ctx->claims.folded) {
        ngx_http_idem_resume(ctx->request);
        return;
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND, "settled");
    ngx_http_idem_commit_done(ctx->request, ctx);
}


/* nothing is to be called for the request any more */

void
ngx_http_idem_claims_cancel(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        ngx_http_idem_store_cancel(&cover->op);

        if (cover->settling) {
            cover->settling->detached = NULL;
            cover->settling = NULL;
        }
    }
}


/* the request ended before its response was complete */

void
ngx_http_idem_abandon(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_outcome_e  outcome;

    outcome = ngx_http_idem_outcome(ctx->request, ctx, 0);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                        outcome == NGX_HTTP_IDEM_OUTCOME_UNKNOWN
                        ? "it may have run" : "nothing was sent");

    (void) ngx_http_idem_settle(ctx, outcome, NGX_HTTP_IDEM_REASON_UNKNOWN, 0);
}
