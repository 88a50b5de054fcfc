
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Store operations on the records of a request.  This file evaluates the terms
 * on which the records are claimed (TTL, lease, grace), fills every operation,
 * and reports every failed renewal and commit.
 *
 * Called by begin, wait, renew and settle.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/*
 * How long a derived record is found after its window by requests that
 * arrived within the window, ms.  If the body of the first took long to come,
 * those of its duplicates may take as long, and this much longer.
 */
#define NGX_HTTP_IDEM_DERIVED_GRACE  5000

/*
 * A response is kept at least that long for its waiters, however short the
 * TTL: the commit wakes them.  A store that may fail to keeps it longer.
 */
#define NGX_HTTP_IDEM_WAITERS_GRACE  300


static ngx_msec_t ngx_http_idem_ttl(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_op_fill(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
static ngx_msec_t ngx_http_idem_lock_ttl(ngx_http_idem_cover_t *cover);


/*
 * Variables may change while a request runs, so the terms are evaluated once,
 * before begin.
 */

void
ngx_http_idem_claims_eval(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ctx->claims.lease = ngx_http_idem_time(r, &ctx->conf->lease,
                                    "idempotency_lease");
    ctx->claims.lease = ngx_max(ctx->claims.lease, NGX_HTTP_IDEM_LEASE_MIN);
    ctx->claims.reading = ngx_current_msec - ctx->arrival;
    ctx->claims.ttl = ngx_http_idem_ttl(r, ctx);
    ctx->claims.grace = ngx_http_idem_time(r, &ctx->conf->expired_grace,
                                    "idempotency_expired_grace");

    /* without memory for their values, nothing runs twice */

    ctx->claims.on_store_error = ngx_http_idem_choice(r,
                                    &ctx->conf->on_store_error,
                                    "idempotency_on_store_error",
                                    NGX_HTTP_IDEM_ON_ERROR_FAIL);
    ctx->claims.unknown_outcome = ngx_http_idem_choice(r,
                                    &ctx->conf->unknown_outcome,
                                    "idempotency_unknown_outcome",
                                    NGX_HTTP_IDEM_UNKNOWN_HOLD);
    ctx->claims.keep_status = ngx_http_idem_kept_statuses(r, ctx->conf);
}


/* the TTL that the client asks for, up to the configured limit */

static ngx_msec_t
ngx_http_idem_ttl(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                  n;
    ngx_uint_t                 count;
    ngx_msec_t                 ttl, max;
    ngx_table_elt_t           *h;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ctx->conf;

    ttl = ngx_http_idem_time(r, &conf->ttl, "idempotency_ttl");

    if (ttl == 0) {
        ttl = NGX_HTTP_IDEM_TTL;
    }

    if (conf->ttl_header.len == 0) {
        return ttl;
    }

    h = ngx_http_idem_request_header(r, &conf->ttl_header, &count);

    if (count != 1) {
        return ttl;
    }

    max = ngx_http_idem_time(r, &conf->ttl_header_max,
                             "idempotency_ttl_header");

    n = ngx_atoi(h->value.data, h->value.len);

    if (n == NGX_ERROR) {

        /* too many digits for an integer mean the limit */

        for (n = 0; n < (ngx_int_t) h->value.len; n++) {
            if (h->value.data[n] < '0' || h->value.data[n] > '9') {
                return ttl;
            }
        }

        n = h->value.len ? NGX_MAX_INT_T_VALUE : 0;
    }

    if (n == 0 || max == 0) {
        return ttl;
    }

    return ngx_min((ngx_msec_t) n, max);
}


/*
 * Prepares an operation that the request waits for.
 *
 * Each begin gets a new token.  A release of an earlier lock or of a
 * cancelled begin may be delayed on a broken connection, and must not match
 * the next lock.  A begin that is repeated for a lock already acquired keeps
 * its token, so that the store recognises the holder.
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
    op->age = cover->derived ? ngx_current_msec - ctx->arrival
              : ctx->wait.waited ? ngx_current_msec - ctx->wait.start : 0;
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

        if (!cover->acquired) {
            ngx_http_idem_token(cover->token);
            op->lock.stray = 0;
        }

        op->lock.store = NULL;
        op->may_wait = (ctx->conf->wait.value || ctx->conf->wait.complex)
                       && !ngx_http_idem_is_dry_run(ctx);
        op->is_waiter = 0;
    }

    ngx_memcpy(op->token, cover->token, NGX_HTTP_IDEM_TOKEN_LEN);
}


/* A detached operation, which outlives the request. NULL: no memory. */

ngx_http_idem_op_t *
ngx_http_idem_op_own(ngx_http_idem_cover_t *cover, ngx_http_idem_op_e kind)
{
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_op_detached(cover->ctx->conf->store, kind, cover->id,
                                   cover->token);
    if (op) {
        *op->claim = cover->claim;
        op->lock = cover->op.lock;
        ngx_http_idem_op_fill(cover, op);
    }

    return op;
}


static void
ngx_http_idem_op_fill(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op)
{
    ngx_msec_t            ttl;
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    op->where = cover->where;
    op->lease = ctx->claims.lease;
    op->ttl = ngx_http_idem_lock_ttl(cover);
    op->lock_life = ngx_http_idem_lock_life(op);
    op->hold = ngx_http_idem_is_hold(ctx);
    op->grace = cover->derived ? ngx_max(ctx->claims.grace,
                                         ctx->claims.reading
                                         + NGX_HTTP_IDEM_DERIVED_GRACE)
                               : ctx->claims.grace;

    /* a configured grace is not extended: it is visible to clients */

    op->for_waiters = (op->kind == NGX_HTTP_IDEM_OP_COMMIT && op->grace == 0);

    if (op->for_waiters) {
        ttl = ngx_http_idem_commit_ttl(cover);

        if (ttl < NGX_HTTP_IDEM_WAITERS_GRACE) {
            op->grace = NGX_HTTP_IDEM_WAITERS_GRACE - ttl;
        }
    }

    op->locked_until = cover->locked_until;
    op->unprotected = ctx->claims.unprotected;
}


/* begin acquired the lock */

void
ngx_http_idem_lock_acquired(ngx_http_idem_cover_t *cover)
{
    cover->acquired = 1;
    cover->where = cover->op.where;

    ngx_http_idem_lock_extended(cover, &cover->op);
}


/*
 * A begin or a renewal succeeded.  Computes until when the lock is certainly
 * held.  The store starts the lease when the operation arrives, so counting
 * from the time it was sent is safe.  Under "hold" nobody takes over when the
 * lease runs out.
 */

void
ngx_http_idem_lock_extended(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op)
{
    cover->locked_until = op->sent_at
                          + (op->hold ? ngx_http_idem_lock_life(op)
                                      : op->lease);
}


/*
 * A cover whose lease may be over, or NULL.  The lease has to last until its
 * renewal, which follows at once if the reply was late, has reached the store.
 */

ngx_http_idem_cover_t *
ngx_http_idem_lock_lapsed(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    /* the worker may have stalled in this event loop iteration */

    ngx_time_update();

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (cover->acquired
            && (ngx_msec_int_t) (cover->locked_until - ngx_current_msec)
               <= (ngx_msec_int_t) (ctx->claims.lease / 12))
        {
            return cover;
        }
    }

    return NULL;
}


/* the TTL of a lock: a derived one counts for as long as its holder runs */

static ngx_msec_t
ngx_http_idem_lock_ttl(ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_claims_t  *claims;

    claims = &cover->ctx->claims;

    return cover->derived ? cover->window + 2 * claims->lease : claims->ttl;
}


/*
 * The TTL of a record that is committed now.  A derived record folds requests
 * until the later of arrival + window and commit + linger.  Requests that
 * arrived in time still find it within the grace period.
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


/* reports a renewal or a commit that failed */

void
ngx_http_idem_op_failed(ngx_http_idem_cover_t *cover, ngx_http_idem_op_t *op)
{
    ngx_uint_t  commit;

    commit = (op->kind == NGX_HTTP_IDEM_OP_COMMIT);

    if (op->result == NGX_HTTP_IDEM_LOST) {
        cover->lost = 1;

        /* a commit that is kept is no longer the only response */

        cover->locked_until = ngx_current_msec;

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

        /* each running request renews three times in a lease */

        ngx_http_idem_log_repeated(NGX_LOG_WARN, op->log, cover->id,
                      "idempotency: a lease could not be renewed in store "
                      "\"%V\": %s", &op->store->name,
                      op->error ? op->error : "no room");
        return;
    }

    if (op->result == NGX_HTTP_IDEM_FULL) {
        ngx_http_idem_event(cover->ctx, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                            "no room for the response");

        /* every request, for as long as the store is full */

        ngx_http_idem_log_repeated(NGX_LOG_ERR, op->log, cover->id,
                      "idempotency: there is no room for a response in store "
                      "\"%V\", its retry is refused", &op->store->name);
        return;
    }

    ngx_http_idem_metrics_count(op->store->metrics,
                                NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES);
    ngx_http_idem_event(cover->ctx, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                        op->error);

    if (op->already_logged) {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: commit in store \"%V\" failed: %s, "
                  "record %*xs", &op->store->name,
                  op->error ? op->error : "no answer", (size_t) 8, cover->id);
}
