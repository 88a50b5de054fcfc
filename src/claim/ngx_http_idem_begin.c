
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Begin: acquires the lock of each record that covers the request, or acts on
 * the record that is found instead.
 *
 * Records are begun one after the other, in order of their ids, so that two
 * requests with records in common do not deadlock.  If one lock can't be
 * acquired, those already acquired are released.  The record of the key
 * decides first: it is begun even if a derived record blocks the request.
 * Among the derived records that are found, the rule that comes first in the
 * configuration counts, so that a double tap is replayed before a later rule
 * rejects it.
 *
 * No request runs on a lock whose lease may be over.  A worker that stalled
 * reads the store's reply late, and a lease may end while the next lock is
 * acquired; another request may have taken over by then.  The begin of such a
 * lock is repeated with the same token.  If the lock was lost, the repeated
 * begin finds the new holder.
 *
 * Called by the handler.  Calls the store, then execution, waiting, replay or
 * refusal.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* how often a request repeats begins whose lease ended before the reply */
#define NGX_HTTP_IDEM_LAPSES  4


static ngx_int_t ngx_http_idem_begin_submit(ngx_http_idem_cover_t *cover);
static void ngx_http_idem_begin_replied(ngx_http_idem_cover_t *cover);
static ngx_uint_t ngx_http_idem_begin_before(ngx_http_idem_cover_t *cover,
    ngx_http_idem_cover_t *other);
static ngx_int_t ngx_http_idem_begun(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_begin_again(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
static void ngx_http_idem_begin_handler(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_found(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
static ngx_uint_t ngx_http_idem_may_fold(ngx_http_idem_cover_t *cover);
static ngx_uint_t ngx_http_idem_is_retry(ngx_http_idem_cover_t *cover);
static ngx_int_t ngx_http_idem_unusable(ngx_http_idem_cover_t *cover);
static ngx_int_t ngx_http_idem_fold(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_adopt(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_found_t *found);
static ngx_int_t ngx_http_idem_store_error(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
static void ngx_http_idem_store_failed(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_result_e result, const char *error, const char *then);


ngx_int_t
ngx_http_idem_begin(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_cover_t  *cover;

    if (ctx->claims.lease == 0) {
        ngx_http_idem_claims_eval(r, ctx);
    }

    if (ctx->claims.folded) {
        return ngx_http_idem_fold(r, ctx);
    }

    for (i = 0; i < ctx->claims.ncovers; i++) {

        cover = &ctx->claims.covers[i];
        op = &cover->op;

        if (ctx->claims.blocked && cover != ctx->claims.primary) {
            continue;
        }

        if (op->pending) {
            return NGX_AGAIN;
        }

        if (!cover->asked) {
            if (ngx_http_idem_begin_submit(cover) == NGX_AGAIN) {
                return ngx_http_idem_park(r);
            }
        }

        if ((cover->acquired && !cover->unconfirmed)
            || cover == ctx->claims.replayed)
        {
            continue;
        }

        ngx_http_idem_begin_replied(cover);

        switch (op->result) {

        case NGX_HTTP_IDEM_ACQUIRED:
            ngx_http_idem_lock_acquired(cover);
            break;

        case NGX_HTTP_IDEM_FOUND:

            if (cover == ctx->claims.primary) {
                if (ctx->claims.blocked) {
                    /*
                     * its result will be outdated if this request has to wait
                     */
                    ctx->claims.blocked->asked = 0;
                    ctx->claims.blocked = NULL;
                }

                return ngx_http_idem_found(r, cover);
            }

            if (op->found.state == NGX_HTTP_IDEM_COMPLETED
                && ngx_http_idem_same_request(cover, &op->found.claim))
            {
                /*
                 * replay this response unless the record of the key objects
                 */

                if (ngx_http_idem_begin_before(cover, ctx->claims.replayed)) {
                    ctx->claims.replayed = cover;
                }

                break;
            }

            ctx->claims.blocked = cover;
            break;

        default: /* NGX_HTTP_IDEM_FULL, NGX_HTTP_IDEM_ERROR */
            ctx->claims.blocked = NULL;
            return ngx_http_idem_store_error(r, cover);
        }
    }

    return ngx_http_idem_begun(r, ctx);
}


static ngx_int_t
ngx_http_idem_begin_submit(ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_op_prepare(cover, &cover->op, NGX_HTTP_IDEM_OP_BEGIN);
    cover->op.handler = ngx_http_idem_begin_handler;

    if (cover->acquired) {
        /* ask all stores again, as the first begin did */
        cover->op.where = NULL;
    }

    cover->asked = 1;

    /* the tap does not use events of level debug, only a log does */

    if (cover->ctx->conf->log) {
        ngx_http_idem_event_of(cover->ctx, cover,
                               NGX_HTTP_IDEM_EVENT_LOCK_ATTEMPT, NULL);
    }

    return ngx_http_idem_store_submit(&cover->op);
}


static void
ngx_http_idem_begin_replied(ngx_http_idem_cover_t *cover)
{
    const char          *word;
    ngx_http_idem_op_t  *op;

    op = &cover->op;

    cover->unconfirmed = 0;
    cover->ctx->claims.store_time += ngx_current_msec - op->start;

    if (cover->ctx->conf->log == NULL) {
        return;
    }

    if (op->result == NGX_HTTP_IDEM_ACQUIRED) {
        word = "miss";

    } else if (op->result != NGX_HTTP_IDEM_FOUND) {
        word = "no answer";

    } else {
        word = (op->found.state == NGX_HTTP_IDEM_IN_PROGRESS) ? "in progress"
                                                              : "hit";
    }

    ngx_http_idem_event_of(cover->ctx, cover,
                           NGX_HTTP_IDEM_EVENT_CACHE_LOOKUP, word);
}


/* whether the rule of "cover" comes before that of "other" */

static ngx_uint_t
ngx_http_idem_begin_before(ngx_http_idem_cover_t *cover,
    ngx_http_idem_cover_t *other)
{
    return other == NULL || cover->dedupe < other->dedupe;
}


/* the record of the key lets the request run; a derived record may not */

static ngx_int_t
ngx_http_idem_begun(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    cover = ctx->claims.blocked;
    ctx->claims.blocked = NULL;

    if (cover
        && !(cover->reject && ctx->claims.replayed
             && ngx_http_idem_begin_before(ctx->claims.replayed, cover)))
    {
        return ngx_http_idem_found(r, cover);
    }

    if (ctx->claims.replayed) {
        return ngx_http_idem_fold(r, ctx);
    }

    cover = ngx_http_idem_lock_lapsed(ctx);

    if (cover) {
        return ngx_http_idem_begin_again(r, cover);
    }

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        /*
         * with a key, the end of a derived record's window is no expired key
         */

        if (cover->op.expired && ctx->claims.grace
            && cover->derived == ctx->claims.primary->derived)
        {
            ctx->claims.expired = 1;
            ngx_http_idem_metrics_count(ctx->conf->store->metrics,
                                        NGX_HTTP_IDEM_COUNT_EXPIRED);
        }

        if (cover->op.abandoned) {
            ngx_http_idem_metrics_count(ctx->conf->store->metrics,
                                        NGX_HTTP_IDEM_COUNT_ABANDONED);
            ngx_http_idem_event_of(ctx, cover,
                                   NGX_HTTP_IDEM_EVENT_LOCK_ABANDONED, NULL);

            ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                          "idempotency: a lease of %M ms ran out without an "
                          "outcome, the request runs again, record %*xs",
                          ctx->claims.lease, (size_t) 8, cover->id);
        }
    }

    /* a record that this request waited for was released: forget it */

    ctx->answer.original_time = 0;
    ctx->answer.cover = NULL;

    if (!ctx->claims.unprotected) {
        ngx_http_idem_metrics_created(ctx->conf->store->metrics,
                              ngx_http_idem_cover_layer(ctx->claims.primary));
        ngx_http_idem_event(ctx,
                            ctx->claims.expired
                              ? NGX_HTTP_IDEM_EVENT_KEY_EXPIRED
                              : NGX_HTTP_IDEM_EVENT_KEY_CREATED,
                            NULL);
    }

    if (ctx->claims.activity) {
        ngx_http_idem_activity_count(ctx->claims.activity);
    }

    return ngx_http_idem_execute(r, ctx);
}


/*
 * "acquired" stays set until the reply: if the lock is lost by now, its parts
 * in other stores are released
 */

static ngx_int_t
ngx_http_idem_begin_again(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: a lease of %M ms was over before its lock was "
                  "seen, record %*xs", ctx->claims.lease, (size_t) 8,
                  cover->id);

    if (++ctx->claims.lapses > NGX_HTTP_IDEM_LAPSES) {
        cover->op.result = NGX_HTTP_IDEM_ERROR;
        cover->op.error = "it answers later than a lease lasts";

        return ngx_http_idem_store_error(r, cover);
    }

    cover->asked = 0;
    cover->unconfirmed = 1;

    return ngx_http_idem_begin(r, ctx);
}


static void
ngx_http_idem_begin_handler(ngx_http_idem_op_t *op)
{
    ngx_http_idem_cover_t  *cover;

    cover = op->data;

    ngx_http_idem_resume(cover->ctx->request);
}


/*
 * Acts on the record that was found: first compares identity and request,
 * then checks the state.
 */

static ngx_int_t
ngx_http_idem_found(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_found_t  *found;

    ctx = cover->ctx;
    found = &cover->op.found;

    ngx_http_idem_release(ctx);

    /* a waiter asks the store again: it may be reachable by then */

    ctx->claims.unprotected = 0;
    ctx->answer.original_time = found->claim.time;
    ctx->answer.cover = cover;

    if (!ngx_http_idem_same_request(cover, &found->claim)) {
        ctx->answer.details = found->details;
        ngx_http_idem_labels_skip(&ctx->answer.details);
        ctx->answer.undisclosed |= ngx_http_idem_is_hidden(r, ctx, found);
        ctx->answer.undisclosed |= ngx_http_idem_details_hidden(r, ctx,
                                                       &ctx->answer.details);

        /* the location of another URI may have checks of its own */

        if (!ngx_http_idem_target_same(cover)) {
            ngx_str_null(&ctx->answer.details);
        }

        return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_CONFLICT);
    }

    if (cover->reject && found->state != NGX_HTTP_IDEM_UNUSABLE) {
        /* whether the first request is done or still runs */

        if (found->state == NGX_HTTP_IDEM_IN_PROGRESS
            && (ngx_http_idem_may_fold(cover)
                || ngx_http_idem_is_retry(cover)))
        {
            return ngx_http_idem_wait(r, cover);
        }

        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_DUPLICATE_REQUEST);
    }

    switch (found->state) {

    case NGX_HTTP_IDEM_COMPLETED:
        return ngx_http_idem_replay(r, cover);

    case NGX_HTTP_IDEM_UNUSABLE:
        return ngx_http_idem_unusable(cover);

    default: /* NGX_HTTP_IDEM_IN_PROGRESS */
        return ngx_http_idem_wait(r, cover);
    }
}


/*
 * Whether an earlier rule would replay rather than reject.  That is certain
 * only when the holder is done: it may not have acquired that record yet.
 */

static ngx_uint_t
ngx_http_idem_may_fold(ngx_http_idem_cover_t *cover)
{
    ngx_uint_t               i;
    ngx_http_idem_cover_t   *other;
    ngx_http_idem_claims_t  *claims;

    claims = &cover->ctx->claims;

    for (i = 0; i < claims->ncovers; i++) {
        other = &claims->covers[i];

        if (other->derived && !other->reject
            && ngx_http_idem_begin_before(other, cover))
        {
            return 1;
        }
    }

    return 0;
}


/*
 * Whether the holder of a derived record has the key of this request, but not
 * its record yet: when it is done, the record of the key decides.
 */

static ngx_uint_t
ngx_http_idem_is_retry(ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_cover_t  *primary;

    primary = cover->ctx->claims.primary;

    return !primary->derived
           && ngx_memcmp(cover->op.found.claim.target, primary->id,
                         NGX_HTTP_IDEM_TARGET_LEN)
              == 0;
}


ngx_uint_t
ngx_http_idem_same_request(ngx_http_idem_cover_t *cover,
    ngx_http_idem_claim_t *claim)
{
    cover->ctx->answer.undisclosed = !ngx_http_idem_claim_same_identity(claim,
                                                              &cover->claim);

    return ngx_http_idem_claim_same(claim, &cover->claim,
                                    ngx_http_idem_key_alone(cover));
}


static ngx_int_t
ngx_http_idem_unusable(ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    switch (cover->op.found.reason) {

    case NGX_HTTP_IDEM_REASON_UNKNOWN:

        /* under "lease" the rest of the lease */

        if (!ngx_http_idem_is_hold(ctx)) {
            ctx->answer.retryable = 1;
            ctx->answer.retry_after = cover->op.found.left;
        }

        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_OUTCOME_UNKNOWN);

    case NGX_HTTP_IDEM_REASON_TOO_LARGE:
        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_RESPONSE_TOO_LARGE);

    default:
        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_RESPONSE_NOT_KEPT);
    }
}


/*
 * A derived record has the response.  The replay waits until the record of
 * the key has it, too: a client that retries at once must find it there.
 */

static ngx_int_t
ngx_http_idem_fold(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t               rc;
    ngx_http_idem_cover_t  *cover;

    cover = ctx->claims.replayed;

    if (!ctx->claims.folded) {
        ctx->claims.folded = 1;

        rc = cover->reject ? NGX_OK
                           : ngx_http_idem_adopt(ctx, &cover->op.found);

        ngx_http_idem_release(ctx);

        if (rc == NGX_AGAIN) {
            return ngx_http_idem_park(r);
        }

        if (rc == NGX_ERROR) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

    } else if (ctx->claims.commits) {
        return NGX_AGAIN;
    }

    return ngx_http_idem_found(r, cover);
}


/*
 * A request is replayed from a derived record.  Commits the same response to
 * the record of the key, with the key's own fingerprint and TTL, so that the
 * key still replays after the window.  NGX_AGAIN: the request is resumed when
 * the store has answered.  NGX_ERROR: there is no memory, and no replay, since
 * a retry would run after the window.
 */

static ngx_int_t
ngx_http_idem_adopt(ngx_http_idem_ctx_t *ctx, ngx_http_idem_found_t *found)
{
    ngx_buf_t              *b;
    ngx_chain_t            *cl;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_cover_t  *cover;

    cover = ctx->claims.primary;

    /*
     * A derived record adopts no response.  This request did not run; a later
     * one may share a member with it and none with the original.
     */

    if (!cover->acquired || cover->derived) {
        return NGX_OK;
    }

    op = ngx_http_idem_op_own(cover, NGX_HTTP_IDEM_OP_COMMIT);
    if (op == NULL) {
        return NGX_ERROR;
    }

    cl = ngx_http_idem_piece(op->pool, found->response.len);
    if (cl == NULL) {
        ngx_destroy_pool(op->pool);
        return NGX_ERROR;
    }

    b = cl->buf;
    b->last = ngx_cpymem(b->last, found->response.data, found->response.len);

    if (op->store->backend->remote && !found->verify) {
        /* a response found in a store of this nginx has no checksum */
        ngx_http_idem_response_seal(b->pos, found->response.len);
    }

    op->ttl = ngx_http_idem_commit_ttl(cover);
    op->state = NGX_HTTP_IDEM_COMPLETED;
    op->reason = NGX_HTTP_IDEM_REASON_NONE;
    op->response = cl;
    op->size = found->response.len;

    cover->acquired = 0;

    return ngx_http_idem_settle_op(cover, op);
}


static ngx_int_t
ngx_http_idem_store_error(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    ngx_int_t                rc;
    ngx_uint_t               i, pass;
    const char              *error;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_ctx_t     *ctx;
    ngx_http_idem_result_e   result;

    op = &cover->op;
    ctx = cover->ctx;
    result = op->result;
    error = op->error;

    ngx_http_idem_release(ctx);

    /* an unreadable record may be that of an execution: do not run */

    pass = (ctx->claims.on_store_error == NGX_HTTP_IDEM_ON_ERROR_PASS
            && !op->bad_record);

    if (pass && !ctx->claims.unprotected && ctx->conf->store->layers) {

        /*
         * This nginx keeps the locks and responses of unprotected requests:
         * begin with those.
         */

        ctx->claims.unprotected = 1;
        ctx->claims.replayed = NULL;

        for (i = 0; i < ctx->claims.ncovers; i++) {
            ctx->claims.covers[i].asked = 0;
            ctx->claims.covers[i].where = NULL;
        }

        rc = ngx_http_idem_begin(r, ctx);

        /* with any other result the request may be freed */

        if (rc == NGX_DECLINED && ctx->claims.unprotected
            && ctx->stage == NGX_HTTP_IDEM_EXECUTE)
        {
            ngx_http_idem_store_failed(ctx, result, error,
                                       "runs unprotected");
        }

        return rc;
    }

    ctx->claims.unprotected = 0;

    ngx_http_idem_store_failed(ctx, result, error,
                               pass ? "runs unprotected"
                                           : "is refused");

    if (!pass) {
        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE);
    }

    ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_UNPROTECTED);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS, "the store failed");

    return NGX_DECLINED;
}


static void
ngx_http_idem_store_failed(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_result_e result, const char *error, const char *then)
{
    ngx_uint_t  full;

    full = (result == NGX_HTTP_IDEM_FULL);

    /* while a store is unreachable, every request logs the same line */

    ngx_http_idem_log_repeated(NGX_LOG_ERR, ctx->request->connection->log,
                  NULL, "idempotency: store \"%V\" %s%s, the request %s",
                  &ctx->conf->store->name, full ? "is full" : "failed: ",
                  full ? "" : (error ? error : "no answer"), then);

    ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                        full ? "no room for a record" : error);
}
