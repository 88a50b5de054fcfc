
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The outcome of an execution: what it does to its record.
 *
 * The outcome depends on what was sent to which upstream, not on the final
 * status: error_page can make a 200 of a refused connection, and a 502 of a
 * request that ran.
 *
 * Called when a response is complete, when it can't be kept, and when the
 * request ends without one. claim/..._settle.c acts on it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_uint_t ngx_http_idem_page(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t all, ngx_uint_t last);
static ngx_uint_t ngx_http_idem_is_perl(ngx_http_idem_run_t *run);
static ngx_uint_t ngx_http_idem_all_upstreams(ngx_http_idem_ctx_t *ctx,
    ngx_uint_t *before, ngx_uint_t *last);
static ngx_uint_t ngx_http_idem_unstarted(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_uint_t ngx_http_idem_upstreams(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t *last);
static ngx_uint_t ngx_http_idem_answer(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t n);
static ngx_uint_t ngx_http_idem_by_status(
    ngx_http_idem_ctx_t *ctx, ngx_uint_t status);


/* the answer of an upstream, or of another handler, as a bit */

#define NGX_HTTP_IDEM_ANSWER_KEPT   0x01
#define NGX_HTTP_IDEM_ANSWER_OTHER  0x02           /* complete, not kept    */
#define NGX_HTTP_IDEM_ANSWER_NONE   0x04           /* no complete answer    */


/*
 * "complete": the client gets a whole response.  It is made by an upstream,
 * by another content handler, or by nginx itself.
 */

ngx_http_idem_outcome_e
ngx_http_idem_outcome(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t complete)
{
    ngx_uint_t            all, before, last, answer, upstream, other, beside;
    ngx_http_idem_run_t  *run;

    ngx_http_idem_outcome_redirected(r, ctx);

    run = &ctx->work.run;

    upstream = run->called && r->upstream && r->upstream != run->before;

    other = run->called && !upstream
            && !(run->phase && r->err_status >= NGX_HTTP_BAD_REQUEST);

    all = ngx_http_idem_all_upstreams(ctx, &before, &last);

    beside = ngx_http_idem_unstarted(r, ctx);

#if (NGX_HTTP_CACHE)

    if (r->cache && r->cache->background) {
        /* while nginx sends a stale response, it may update the cache */
        beside = 1;
    }

#endif

    if (!complete) {
        /* a handler without an upstream may have done its work */
        return (all || other || beside)
               ? NGX_HTTP_IDEM_OUTCOME_UNKNOWN
               : NGX_HTTP_IDEM_OUTCOME_RELEASE;
    }

    if (r->headers_out.status == 0) {
        /* HTTP/0.9: the response has no status */
        return NGX_HTTP_IDEM_OUTCOME_UNKNOWN;
    }

    if (upstream && ctx->work.answering == r->upstream) {
        /* an error_page may have changed the status */
        answer = last;

    } else if (other) {
        answer = ngx_http_idem_by_status(ctx, r->headers_out.status);
        before |= last;

    } else {
        answer = ngx_http_idem_page(r, ctx, all, last);
        before |= last;
    }

    if (answer == NGX_HTTP_IDEM_ANSWER_KEPT) {

        if (!ctx->capture.unwanted) {
            return NGX_HTTP_IDEM_OUTCOME_KEEP;
        }

        /* who says so speaks for its subrequests, too */

        answer = NGX_HTTP_IDEM_ANSWER_OTHER;
        all = before;
    }

    /* the last response says nothing about earlier upstreams */

    if (beside || (all | answer) != NGX_HTTP_IDEM_ANSWER_OTHER) {
        return NGX_HTTP_IDEM_OUTCOME_UNKNOWN;
    }

    return NGX_HTTP_IDEM_OUTCOME_RELEASE;
}


/*
 * Whether the whole response has come, though its upstream has not ended in
 * order: the connection was closed or reset before the mark that FastCGI and
 * HTTP/2 have at the end.  Its client would see a whole response.  That of a
 * gRPC call ends with its trailers only.
 */

ngx_uint_t
ngx_http_idem_outcome_whole(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_upstream_t       *u;
    ngx_http_idem_response_t  *response;

    u = ctx->work.answering;
    response = &ctx->capture.response;

    if (u == NULL || u != r->upstream || u->cleanup || ctx->work.run.invalid
        || (ctx->stage != NGX_HTTP_IDEM_HOLD
            && ctx->stage != NGX_HTTP_IDEM_STREAM)
        || r->method == NGX_HTTP_HEAD
        || ngx_http_idem_conf_is(&u->schema, "grpc://")
        || ngx_http_idem_conf_is(&u->schema, "grpcs://"))
    {
        return 0;
    }

    return ngx_http_idem_status_bodiless(response->status)
           || response->content_length == (off_t) response->body_len;
}


/*
 * Whether a response that ended in order is not what its Content-Length says:
 * a slice broke off and nginx continued, or a handler without an upstream sent
 * less.  Its client sees a truncated response.
 */

ngx_uint_t
ngx_http_idem_outcome_short(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    off_t                      len;
    ngx_http_idem_response_t  *response;

    response = &ctx->capture.response;
    len = response->body_len;

    if (r->method == NGX_HTTP_HEAD || response->header_only) {
        return 0;
    }

    if (ctx->capture.composed) {
        return r->headers_out.content_length_n != len;
    }

    if (response->content_length <= len
        || ngx_http_idem_status_bodiless(response->status))
    {
        return 0;
    }

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: a response has %O bytes of %O, its outcome is "
                  "unknown, record %*xs",
                  len, response->content_length,
                  (size_t) 8, ctx->claims.primary->id);

    return 1;
}


/*
 * The answer if nginx itself sends the response: a file, "return", an error,
 * or a cached response.  It depends on what happened before.
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
            /* the cache had the response: no upstream was needed */
            tried = 0;
        }

#endif

        if (tried || r->err_status >= NGX_HTTP_BAD_REQUEST) {
            /*
             * nothing was sent to an upstream, or an error of nginx, as of
             * try_files
             */
            return NGX_HTTP_IDEM_ANSWER_OTHER;
        }

    } else if (last == NGX_HTTP_IDEM_ANSWER_NONE
               || last == NGX_HTTP_IDEM_ANSWER_OTHER)
    {
        /* an error_page may have changed the status */
        return last;

    } else if (last == 0
               && (ctx->work.redirected == 0
                   || ctx->work.redirected & NGX_HTTP_IDEM_ANSWER_NONE))
    {
        /* a page of nginx does not speak for a subrequest or for Lua */
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    return ngx_http_idem_by_status(ctx, r->headers_out.status);
}


/*
 * Records the answer of a handler without an upstream after the request was
 * redirected to another handler, by an error or by the handler itself.  A
 * handler that redirects before it returns has only chosen the location,
 * except perl, which always blocks until it is done.
 *
 * Called as early as possible in the new location, whose errors are not those
 * of the handler.  In a named location without a rewrite module it is called
 * later: then the error was the handler's if an error_page led there.
 */

void
ngx_http_idem_outcome_redirected(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx)
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

    failed = ngx_http_idem_errors_differ(r, &run->errors);

    if (!run->recursive
        && (r->error_page == run->errors.error_page
            || run->uri_changes - r->uri_changes > 1))
    {
        failed = 0;
    }

    if (run->inside && !failed && !run->recursive
        && !ngx_http_idem_is_perl(run))
    {
        return;
    }

    ctx->work.redirected |= (failed && r->err_status)
                            ? ngx_http_idem_by_status(ctx, r->err_status)
                            : NGX_HTTP_IDEM_ANSWER_NONE;
}


/*
 * The configuration of the perl module in a location starts with a pointer to
 * the perl function, NULL if there is none.
 */

static ngx_uint_t
ngx_http_idem_is_perl(ngx_http_idem_run_t *run)
{
    void          **conf;
    ngx_module_t   *perl;

    perl = ngx_http_idem_modules.perl;
    conf = perl ? run->loc_conf[perl->ctx_index] : NULL;

    return conf && conf[0];
}


/*
 * Combines the answers of all tries, redirects and subrequests.  "last" is
 * the answer of the last upstream that the main request was sent to, "before"
 * those of the upstreams and other handlers that had the request before it.
 */

static ngx_uint_t
ngx_http_idem_all_upstreams(ngx_http_idem_ctx_t *ctx, ngx_uint_t *before,
    ngx_uint_t *last)
{
    ngx_uint_t            all;
    ngx_http_idem_run_t  *run;

    *last = 0;
    *before = ngx_http_idem_upstreams(ctx, &ctx->work.run, last)
              | ctx->work.redirected;

    all = *before | *last;

    for (run = ctx->work.run.next; run; run = run->next) {
        all |= ngx_http_idem_upstreams(ctx, run, NULL);
    }

    return all;
}


/*
 * A handler may create a subrequest and respond without waiting for it, as
 * r.subrequest() of njs.  nginx runs it when the handler has returned: what
 * the handler says of a failure is not said of the subrequest.
 */

static ngx_uint_t
ngx_http_idem_unstarted(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_posted_request_t  *pr;

    for (pr = r->main->posted_requests; pr; pr = pr->next) {

        if (pr->request != r->main
            && ngx_http_idem_run_of(ctx, pr->request) == NULL)
        {
            return 1;
        }
    }

    return 0;
}


/* combines the answers of a request's upstreams, without the last if wanted */

static ngx_uint_t
ngx_http_idem_upstreams(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_run_t *run, ngx_uint_t *last)
{
    ngx_uint_t           i, all, answer;
    ngx_http_request_t  *r;

    r = run->request;
    all = 0;

    if (r == NULL || run->aside) {
        return 0;
    }

    if (run->broke || (r != r->main && r->upstream && r->upstream->cleanup)) {
        /* ... or the upstream of a subrequest is still at work */
        all = NGX_HTTP_IDEM_ANSWER_NONE;
    }

    if (r->upstream_states == NULL) {
        return all;
    }

    for (i = run->first; i < r->upstream_states->nelts; i++) {
        answer = ngx_http_idem_answer(ctx, run, i);

        if (answer && last) {
            all |= *last;
            *last = answer;

        } else {
            all |= answer;
        }
    }

    return all;
}


/*
 * The answer of one upstream.  0: nothing was sent to it. u->request_sent
 * can't tell, since nginx resets it for each peer.
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

    /* the array may have been reallocated, so u->state may be outside it */

    current = u && u->state && n == r->upstream_states->nelts - 1
              && state->peer == u->state->peer;

    if (state->peer == NULL
        || (state->bytes_sent == 0

            /* still sending: bytes_sent is not set yet */

            && !(current && u->peer.connection
                 && u->peer.connection->sent > 0)))
    {
        return 0;
    }

    if (state->header_time == (ngx_msec_t) -1 || run->broken == n + 1) {
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    status = state->status;

    if (status < NGX_HTTP_OK && current) {
        /* after a 1xx response the state has its status */
        status = u->headers_in.status_n;
    }

    return ngx_http_idem_by_status(ctx, status);
}


/* other gateways, such as one in Lua, are judged by their status only */

static ngx_uint_t
ngx_http_idem_by_status(ngx_http_idem_ctx_t *ctx, ngx_uint_t status)
{
    ngx_http_idem_statuses_t  *kept;

    if (status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        /* the tunnel runs from now on, and no other status follows */
        return NGX_HTTP_IDEM_ANSWER_KEPT;
    }

    if (status < NGX_HTTP_OK) {
        /* a 1xx is not the final response */
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    kept = ctx->claims.keep_status;

    if (kept == NULL) {
        kept = ctx->conf->keep_status;          /* before begin */
    }

    if (ngx_http_idem_status_kept(kept, status)) {
        return NGX_HTTP_IDEM_ANSWER_KEPT;
    }

    if (status == NGX_HTTP_BAD_GATEWAY
        || status == NGX_HTTP_GATEWAY_TIME_OUT)
    {
        return NGX_HTTP_IDEM_ANSWER_NONE;
    }

    return NGX_HTTP_IDEM_ANSWER_OTHER;
}
