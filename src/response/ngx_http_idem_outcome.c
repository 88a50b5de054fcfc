
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What an execution does to its record: the table of outcomes.
 *
 * Judged by what was sent to which upstream, not by the status that comes
 * out: error_page can make a 200 of a refused connection, and a 502 of a
 * request that ran.
 *
 * Called when a response is complete, when it can't be kept, and when the
 * request ends without one; claim/..._settle.c does what follows from it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_uint_t ngx_http_idem_page(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t all, ngx_uint_t last);
static ngx_uint_t ngx_http_idem_all_upstreams(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t *last);
static ngx_uint_t ngx_http_idem_upstreams(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t *last);
static ngx_uint_t ngx_http_idem_answer(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t n);
static ngx_uint_t ngx_http_idem_by_status(
    ngx_http_idem_ctx_t *ctx, ngx_uint_t status);


/* what an upstream, or any other handler, made of the request */

#define NGX_HTTP_IDEM_ANSWER_KEPT   0x01
#define NGX_HTTP_IDEM_ANSWER_OTHER  0x02           /* complete, and not kept */
#define NGX_HTTP_IDEM_ANSWER_NONE   0x04           /* ... that is complete   */


/*
 * "complete": the response that goes to the client is whole.  Who has the last
 * word is an upstream, another handler of a location, or nginx.
 */

ngx_http_idem_outcome_e
ngx_http_idem_outcome(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t complete)
{
    ngx_uint_t            all, last, answer, upstream, other, beside;
    ngx_http_idem_run_t  *run;

    ngx_http_idem_outcome_left(r, ctx);

    run = &ctx->work.run;

    upstream = run->called && r->upstream && r->upstream != run->before;

    other = run->called && !upstream
            && !(run->phase && r->err_status >= NGX_HTTP_BAD_REQUEST);

    all = ngx_http_idem_all_upstreams(r, ctx, &last) | ctx->work.left;

    beside = 0;

#if (NGX_HTTP_CACHE)

    /* while a stale answer goes out, nginx may ask for a new one */
    beside = r->cache && r->cache->background;

#endif

    if (!complete) {
        /* of another kind of handler nobody knows what it did */
        return (all || other || beside)
               ? NGX_HTTP_IDEM_OUTCOME_UNKNOWN
               : NGX_HTTP_IDEM_OUTCOME_RELEASE;
    }

    if (r->headers_out.status == 0) {
        /* HTTP/0.9: nobody was told how it ended */
        return NGX_HTTP_IDEM_OUTCOME_UNKNOWN;
    }

    if (upstream && ctx->work.answering == r->upstream) {
        /* an error_page may have made another status of it */
        answer = last;

    } else if (other) {
        answer = ngx_http_idem_by_status(ctx, r->headers_out.status);

    } else {
        answer = ngx_http_idem_page(r, ctx, all, last);
    }

    if (answer == NGX_HTTP_IDEM_ANSWER_KEPT) {
        return NGX_HTTP_IDEM_OUTCOME_KEEP;
    }

    /* what went out last says nothing about what ran first */

    if (beside || (all | answer) != NGX_HTTP_IDEM_ANSWER_OTHER) {
        return NGX_HTTP_IDEM_OUTCOME_UNKNOWN;
    }

    return NGX_HTTP_IDEM_OUTCOME_RELEASE;
}


/*
 * What nginx itself sends, as a file, "return", an error, or an answer that it
 * has in a cache, counts for as much as is behind it.
 */

static ngx_uint_t
ngx_http_idem_page(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t all, ngx_uint_t last)
{
    ngx_uint_t  tried;

    if (all == 0) {
        tried = r->upstream && r->upstream != ctx->work.run.origin;

#if (NGX_HTTP_CACHE)

        if (r->cached
            && (r->upstream_states == NULL
                || r->upstream_states->nelts == ctx->work.run.first))
        {
            /* nobody had to be asked */
            tried = 0;
        }

#endif

        if (tried || r->err_status >= NGX_HTTP_BAD_REQUEST) {
            /* never sent anything; an error of its own, as of try_files */
            return NGX_HTTP_IDEM_ANSWER_OTHER;
        }

    } else if (last == NGX_HTTP_IDEM_ANSWER_NONE
               || last == NGX_HTTP_IDEM_ANSWER_OTHER)
    {
        /* whatever an error_page makes of it */
        return last;

    } else if (last == 0
               && (ctx->work.left == 0
                   || ctx->work.left & NGX_HTTP_IDEM_ANSWER_NONE))
    {
        /* nor does a page speak for a subrequest, or for Lua */
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    return ngx_http_idem_by_status(ctx, r->headers_out.status);
}


/*
 * A handler that is no upstream, and is not the last one any more: the request
 * was sent on, by an error that it ended with, or by itself.  If it did that
 * before it ever waited for anything, all it did was to choose the way.
 */

void
ngx_http_idem_outcome_left(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t            failed;
    ngx_http_idem_run_t  *run;

    run = &ctx->work.run;

    if (!run->called || run->uri_changes == r->uri_changes) {
        return;
    }

    run->called = 0;

    if (run->phase || r->upstream != run->before) {
        return;
    }

    failed = r->err_status != run->err_status
             || r->error_page != run->error_page;

    if (run->inside && !failed && !run->recursive) {
        return;
    }

    ctx->work.left |= (failed && r->err_status)
                 ? ngx_http_idem_by_status(ctx, r->err_status)
                 : NGX_HTTP_IDEM_ANSWER_NONE;
}


/*
 * Over all tries, all redirects and all subrequests.  "last" is that of the
 * last upstream of the request itself that was sent something.
 */

static ngx_uint_t
ngx_http_idem_all_upstreams(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t *last)
{
    ngx_uint_t            all;
    ngx_http_idem_run_t  *run;

    *last = 0;
    all = ngx_http_idem_upstreams(ctx, &ctx->work.run, last);

    for (run = ctx->work.run.next; run; run = run->next) {
        all |= ngx_http_idem_upstreams(ctx, run, NULL);
    }

    return all;
}


static ngx_uint_t
ngx_http_idem_upstreams(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t *last)
{
    ngx_uint_t           i, all, answer;
    ngx_http_request_t  *r;

    r = run->request;
    all = 0;

    if (r == NULL || r->upstream_states == NULL || run->aside) {
        return 0;
    }

    if (run->broke) {
        all = NGX_HTTP_IDEM_ANSWER_NONE;
    }

    for (i = run->first; i < r->upstream_states->nelts; i++) {
        answer = ngx_http_idem_answer(ctx, run, i);

        if (answer) {
            all |= answer;

            if (last) {
                *last = answer;
            }
        }
    }

    return all;
}


/*
 * Of one upstream.  0: it was sent nothing.  u->request_sent would not do for
 * that: it is zeroed for each peer.
 */

static ngx_uint_t
ngx_http_idem_answer(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t n)
{
    ngx_uint_t                  current, status;
    ngx_http_request_t         *r;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    r = run->request;
    u = r->upstream;

    state = r->upstream_states->elts;
    state += n;

    /* the array may have moved, so u->state need not be in it */

    current = u && u->state && n == r->upstream_states->nelts - 1
              && state->peer == u->state->peer;

    if (state->peer == NULL
        || (state->bytes_sent == 0

            /* still at it: its state does not say so yet */

            && !(current && u->peer.connection
                 && u->peer.connection->sent > 0)))
    {
        return 0;
    }

    if (state->header_time == (ngx_msec_t) -1
        || run->broken == n + 1
        || (current && u->cleanup && r != r->main))
    {
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    status = state->status;

    if (status < NGX_HTTP_OK && current) {
        /* where a 1xx came first, the state has that */
        status = u->headers_in.status_n;
    }

    return ngx_http_idem_by_status(ctx, status);
}


/* a gateway of another kind, as one in Lua, has its status only */

static ngx_uint_t
ngx_http_idem_by_status(ngx_http_idem_ctx_t *ctx, ngx_uint_t status)
{
    if (status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        /* it runs from now on, and there will be no other status */
        return NGX_HTTP_IDEM_ANSWER_KEPT;
    }

    if (status < NGX_HTTP_OK) {
        /* the answer was to come after it */
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    if (ngx_http_idem_status_kept(ctx->conf->keep_status, status)) {
        return NGX_HTTP_IDEM_ANSWER_KEPT;
    }

    if (status == NGX_HTTP_BAD_GATEWAY
        || status == NGX_HTTP_GATEWAY_TIME_OUT)
    {
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    return NGX_HTTP_IDEM_ANSWER_OTHER;
}
