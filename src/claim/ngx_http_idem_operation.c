
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The operations on the records of a request: the one place that fills them,
 * and the one that reports what became of those that failed.
 *
 * Called by begin, wait, renew and settle.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* for so long those who came within the window of a record still find it */
#define NGX_HTTP_IDEM_DERIVED_GRACE  5000


static void ngx_http_idem_op_fill(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);


/*
 * An operation that the request waits for; claims and times as the request has
 * them.
 *
 * Each begin has a token of its own.  The release of a lock that was given
 * back, or of a begin that was given up, may still be on its way, on a
 * connection that broke: it must not find the same token in the next lock.
 * A lock that is asked for again keeps its token, which says whose it is.
 */

void
ngx_http_idem_op_prepare(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op, ngx_http_idem_op_e kind)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    op->kind = kind;
    op->store = ctx->conf->store;
    op->claim = &cover->claim;
    op->details = cover->stored.len ? cover->stored : cover->details;
    op->ttl = cover->derived ? cover->window + ctx->claims.lease
                             : ctx->claims.ttl;
    op->age = cover->derived ? ngx_current_msec - ctx->arrival : 0;
    op->key_alone = ngx_http_idem_key_alone(cover);
    op->abandoned = 0;
    op->expired = 0;
    op->original = 0;
    op->pool = ctx->request->pool;
    op->log = ctx->request->connection->log;
    op->data = cover;

    ngx_http_idem_op_fill(cover, op);

    ngx_memcpy(op->id, cover->id, NGX_HTTP_IDEM_ID_LEN);

    if (kind == NGX_HTTP_IDEM_OP_BEGIN) {

        if (!cover->taken) {
            ngx_http_idem_token(cover->token);
            op->laid.stray = 0;
        }

        op->laid.store = NULL;
        op->waits = (ctx->conf->wait.value || ctx->conf->wait.complex)
                    && !ngx_http_idem_is_dry_run(ctx);
        op->again = 0;
    }

    ngx_memcpy(op->token, cover->token, NGX_HTTP_IDEM_TOKEN_LEN);
}


/* one of its own life: nobody waits for it.  NULL: there is no memory */

ngx_http_idem_op_t *
ngx_http_idem_op_own(ngx_http_idem_cover_t *cover, ngx_http_idem_op_e kind)
{
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_op_detached(cover->ctx->conf->store, kind, cover->id,
                                   cover->token);
    if (op) {
        *op->claim = cover->claim;
        op->laid = cover->op.laid;
        ngx_http_idem_op_fill(cover, op);
        op->laid = cover->op.laid;
    }

    return op;
}


static void
ngx_http_idem_op_fill(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    op->where = cover->where;
    op->lease = ctx->claims.lease;
    op->hold = ngx_http_idem_holds(ctx);
    op->grace = cover->derived ? ngx_max(ctx->claims.grace,
                                         NGX_HTTP_IDEM_DERIVED_GRACE)
                               : ctx->claims.grace;
    op->locked_until = cover->locked_until;
    op->unprotected = ctx->claims.unprotected;
}


/* its begin got the lock */

void
ngx_http_idem_taken(ngx_http_idem_cover_t *cover)
{
    cover->taken = 1;
    cover->where = cover->op.where;

    ngx_http_idem_locked(cover, &cover->op);
}


/*
 * A begin or a renewal got through: until when the lock is ours for certain.
 * The store counts from when it was asked, which is not before it was sent.
 * Under hold nobody takes over when the lease has run out.
 */

void
ngx_http_idem_locked(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op)
{
    cover->locked_until = op->asked
                          + (op->hold ? ngx_http_idem_lock_life(op)
                                      : op->lease);
}


/* one whose lock may not be ours any more, or NULL */

ngx_http_idem_cover_t *
ngx_http_idem_lapsed(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    /* the worker may have stood still in this turn of the event loop */

    ngx_time_update();

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (cover->taken
            && (ngx_msec_int_t) (cover->locked_until - ngx_current_msec) <= 0)
        {
            return cover;
        }
    }

    return NULL;
}


/*
 * For how long a record that is committed now is kept.  A derived one folds
 * those who come until the later of arrival + window and commit + linger; and
 * those who came in time find it for its grace.
 */

ngx_msec_t
ngx_http_idem_commit_ttl(ngx_http_idem_cover_t *cover)
{
    ngx_msec_int_t  left;

    if (!cover->derived) {
        return cover->ctx->capture.app_ttl ? cover->ctx->capture.app_ttl
                                           : cover->ctx->claims.ttl;
    }

    left = (ngx_msec_int_t) (cover->ctx->arrival + cover->window
                             - ngx_current_msec);

    return (ngx_msec_t) ngx_max(left, (ngx_msec_int_t) cover->linger);
}


/* a renewal or a commit did not get through */

void
ngx_http_idem_op_failed(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op)
{
    ngx_uint_t  commit;

    commit = (op->kind == NGX_HTTP_IDEM_OP_COMMIT);

    if (op->result == NGX_HTTP_IDEM_LOST) {
        cover->lost = 1;

        ngx_http_idem_metrics_count(op->store->metrics,
                                    NGX_HTTP_IDEM_COUNT_LEASE_LOST);
        ngx_http_idem_event(cover->ctx, NGX_HTTP_IDEM_EVENT_LOCK_LOST,
                            ngx_http_idem_op_names[op->kind]);

        ngx_log_error(NGX_LOG_WARN, op->log, 0, "idempotency: %s, record %*xs",
                      commit ? "a response was not stored, the lock had been "
                               "lost to another request"
                             : "the lease of a running request was lost to "
                               "another one",
                      (size_t) 8, cover->id);
        return;
    }

    if (!commit) {
        ngx_log_error(NGX_LOG_WARN, op->log, 0,
                      "idempotency: a lease could not be renewed in store "
                      "\"%V\": %s, record %*xs", &op->store->name,
                      op->error ? op->error : "no room",
                      (size_t) 8, cover->id);
        return;
    }

    if (op->result == NGX_HTTP_IDEM_FULL) {
        ngx_http_idem_event(cover->ctx, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                            "no room for the response");

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: there is no room for a response in store "
                      "\"%V\", its retry is refused, record %*xs",
                      &op->store->name, (size_t) 8, cover->id);
        return;
    }

    ngx_http_idem_metrics_count(op->store->metrics,
                                NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES);
    ngx_http_idem_event(cover->ctx, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                        op->error);

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: commit in store \"%V\" failed: %s, "
                  "record %*xs", &op->store->name,
                  op->error ? op->error : "no answer", (size_t) 8, cover->id);
}
