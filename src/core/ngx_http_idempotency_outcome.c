
/*
 * What an execution does to its record: the table of outcomes.
 *
 * Judged by what was sent to which upstream, not by the status that comes
 * out: error_page can make a 200 of a refused connection, and a 502 of a
 * request that ran.
 *
 * Called when a response is complete, when it can't be kept, and when the
 * request ends without one.  Calls the store with operations of their own
 * life: nobody waits for them.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"


static ngx_http_idempotency_outcome_e ngx_http_idempotency_by_status(
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t status);
static ngx_int_t ngx_http_idempotency_last_sent(ngx_http_request_t *r);
static void ngx_http_idempotency_settled(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e status);
static void ngx_http_idempotency_settle_one(
    ngx_http_idempotency_cover_t *cover, ngx_http_idempotency_op_e kind,
    ngx_http_idempotency_reason_e reason, ngx_msec_t ttl);


/* "complete": the response that goes to the client is whole */

ngx_http_idempotency_outcome_e
ngx_http_idempotency_outcome(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t complete)
{
    ngx_int_t                   last;
    ngx_uint_t                  status;
    ngx_http_upstream_state_t  *state;

    status = r->headers_out.status;

    last = ngx_http_idempotency_last_sent(r);

    if (last == NGX_ERROR) {

        if (r->upstream || r->upstream_states) {
            /* tried, and never sent anything */
            return NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE;
        }

        if (!complete) {
            /* another kind of handler: who knows what it did */
            return ctx->handled ? NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN
                                : NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE;
        }

        if (!ctx->handled && r->err_status >= 400) {
            /* an error of nginx's own, as of try_files */
            return NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE;
        }

        /* a gateway of another kind, as one in Lua, has its status only */

        return ngx_http_idempotency_by_status(ctx, status);
    }

    state = r->upstream_states->elts;
    state += last;

    if (!complete
        || state->header_time == (ngx_msec_t) -1
        || ctx->truncated == (ngx_uint_t) last + 1)
    {
        return NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN;
    }

    if (state->status) {
        status = state->status;
    }

    return ngx_http_idempotency_by_status(ctx, status);
}


static ngx_http_idempotency_outcome_e
ngx_http_idempotency_by_status(ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t status)
{
    if (status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        /* it runs from now on, and there will be no other status */
        return NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP;
    }

    if (ngx_http_idempotency_status_kept(ctx->conf->keep_status, status)) {
        return NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP;
    }

    if (status == NGX_HTTP_BAD_GATEWAY
        || status == NGX_HTTP_GATEWAY_TIME_OUT)
    {
        return NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN;
    }

    return NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE;
}


/*
 * The last upstream, over all peers and all redirects, that was sent a byte.
 * u->request_sent would not do: it is zeroed for each peer.
 */

static ngx_int_t
ngx_http_idempotency_last_sent(ngx_http_request_t *r)
{
    ngx_int_t                   i;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    if (r->upstream_states == NULL || r->upstream_states->nelts == 0) {
        return NGX_ERROR;
    }

    i = (ngx_int_t) r->upstream_states->nelts - 1;
    u = r->upstream;

    if (u && u->peer.connection && u->peer.connection->sent > 0) {
        /* still at it: its state does not say so yet */
        return i;
    }

    state = r->upstream_states->elts;

    for ( /* void */ ; i >= 0; i--) {
        if (state[i].peer && state[i].bytes_sent > 0) {
            return i;
        }
    }

    return NGX_ERROR;
}


/*
 * Ends the records without a response.  KEEP: it ran, and "reason" says why
 * there is none.
 */

void
ngx_http_idempotency_settle(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_outcome_e outcome,
    ngx_http_idempotency_reason_e reason)
{
    ngx_msec_t                     ttl;
    ngx_uint_t                     i, policy;
    ngx_http_idempotency_cover_t  *cover;

    ngx_http_idempotency_execute_done(ctx);

    policy = ctx->conf->unknown_outcome;

    switch (outcome) {

    case NGX_HTTP_IDEMPOTENCY_OUTCOME_RELEASE:
        ngx_http_idempotency_settled(ctx,
                                    NGX_HTTP_IDEMPOTENCY_STATUS_RELEASED);
        ngx_http_idempotency_release(ctx);
        return;

    case NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN:
        ngx_http_idempotency_settled(ctx,
                                    NGX_HTTP_IDEMPOTENCY_STATUS_UNKNOWN);
        reason = NGX_HTTP_IDEMPOTENCY_REASON_UNKNOWN;

        if (policy == NGX_HTTP_IDEMPOTENCY_UNKNOWN_RETRY) {
            ngx_http_idempotency_release(ctx);
            return;
        }

        break;

    default: /* NGX_HTTP_IDEMPOTENCY_OUTCOME_KEEP */

        if (reason == NGX_HTTP_IDEMPOTENCY_REASON_TOO_LARGE) {
            ngx_http_idempotency_settled(ctx,
                                      NGX_HTTP_IDEMPOTENCY_STATUS_TOO_LARGE);
        }
    }

    for (i = 0; i < ctx->ncovers; i++) {
        cover = &ctx->covers[i];

        if (!cover->taken) {
            continue;
        }

        ttl = ngx_http_idempotency_commit_ttl(cover);

        if (outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN
            && policy == NGX_HTTP_IDEMPOTENCY_UNKNOWN_LEASE)
        {
            ttl = ctx->lease;
        }

        cover->taken = 0;
        ngx_http_idempotency_settle_one(cover,
                                        NGX_HTTP_IDEMPOTENCY_OP_COMMIT,
                                        reason, ttl);
    }
}


/* that it ran without the store says more than what became of it here */

static void
ngx_http_idempotency_settled(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e status)
{
    if (!ctx->unprotected) {
        ctx->status = status;
    }
}


/* gives back every lock that was taken */

void
ngx_http_idempotency_release(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                     i;
    ngx_http_idempotency_cover_t  *cover;

    for (i = 0; i < ctx->ncovers; i++) {
        cover = &ctx->covers[i];

        if (!cover->taken) {
            continue;
        }

        cover->taken = 0;
        cover->asked = 0;

        ngx_http_idempotency_settle_one(cover,
                                        NGX_HTTP_IDEMPOTENCY_OP_RELEASE,
                                        NGX_HTTP_IDEMPOTENCY_REASON_NONE,
                                        ctx->ttl);

        cover->where = NULL;
    }
}


static void
ngx_http_idempotency_settle_one(ngx_http_idempotency_cover_t *cover,
    ngx_http_idempotency_op_e kind, ngx_http_idempotency_reason_e reason,
    ngx_msec_t ttl)
{
    ngx_http_idempotency_op_t   *op;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = cover->ctx;

    op = ngx_http_idempotency_op_detached(ctx->conf->store, kind, cover->id,
                                          cover->token);
    if (op == NULL) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: no memory for a %s in store \"%V\", the "
                      "lock stays until its lease ends, record %*xs",
                      ngx_http_idempotency_op_names[kind],
                      &ctx->conf->store->name, (size_t) 8, cover->id);
        return;
    }

    *op->claim = cover->claim;

    op->where = cover->where;
    op->lease = ctx->lease;
    op->locked_until = cover->locked_until;
    op->unprotected = ctx->unprotected;
    op->ttl = ttl;
    op->state = NGX_HTTP_IDEMPOTENCY_UNUSABLE;
    op->reason = reason;

    ngx_http_idempotency_op_detach(op);
}


/* the request ended before a response was complete */

void
ngx_http_idempotency_abandon(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_outcome_e  outcome;

    outcome = ngx_http_idempotency_outcome(ctx->request, ctx, 0);

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_PASS,
                               outcome == NGX_HTTP_IDEMPOTENCY_OUTCOME_UNKNOWN
                               ? "it may have run" : "nothing was sent");

    ngx_http_idempotency_settle(ctx, outcome,
                                NGX_HTTP_IDEMPOTENCY_REASON_UNKNOWN);
}
