
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Capture: holds the header and body of the holder's response, up to a limit,
 * until the record is stored; then sends them.  So a client that has seen a
 * response can get it again.
 *
 * A response that can't be held (too large) is sent unchanged, and its record
 * is marked unusable.  A stream is sent while it is captured: ..._stream.c.
 *
 * nginx calls the filters for every response.  They call the outcome to
 * decide what becomes of the record, and the commit.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/*
 * Functions that must not be inlined into the filters.  The filters are
 * called for every response, and return at once for most of them.
 */

#if (__GNUC__)
#define NGX_HTTP_IDEM_NOINLINE  __attribute__((noinline))
#else
#define NGX_HTTP_IDEM_NOINLINE
#endif


static ngx_int_t ngx_http_idem_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_idem_covered_header(ngx_http_request_t *r)
    NGX_HTTP_IDEM_NOINLINE;
static ngx_int_t ngx_http_idem_covered_body(ngx_http_request_t *r,
    ngx_chain_t *in) NGX_HTTP_IDEM_NOINLINE;
static ngx_int_t ngx_http_idem_capture_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx) NGX_HTTP_IDEM_NOINLINE;
static void ngx_http_idem_capture_reset(ngx_http_idem_ctx_t *ctx);
static ngx_http_idem_reason_e ngx_http_idem_not_held(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t head, ngx_uint_t stream);
static ngx_uint_t ngx_http_idem_header_only(ngx_http_request_t *r);
static ngx_uint_t ngx_http_idem_body_follows(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_complete_head(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_discard_chain(ngx_chain_t *in);
static ngx_int_t ngx_http_idem_capture_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
    NGX_HTTP_IDEM_NOINLINE;


/*
 * nginx declares it in no header; its context says that a range was requested
 */
extern ngx_module_t  ngx_http_range_body_filter_module;


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;


void
ngx_http_idem_capture_init(void)
{
    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_idem_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_idem_body_filter;
}


static ngx_int_t
ngx_http_idem_header_filter(ngx_http_request_t *r)
{
    if (ngx_http_get_module_ctx(r, ngx_http_idempotency_module) == NULL
        && !r->internal && !r->filter_finalize)
    {
        return ngx_http_next_header_filter(r);
    }

    return ngx_http_idem_covered_header(r);
}


static ngx_int_t
ngx_http_idem_covered_header(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || !ngx_http_idem_at_work(ctx)) {
        return ctx && ngx_http_idem_unheld_header(r, ctx) != NGX_OK
               ? NGX_ERROR : ngx_http_next_header_filter(r);
    }

    if (r != r->main) {
        ngx_http_idem_subrequest_header(r, ctx);
        return ngx_http_next_header_filter(r);
    }

    return ngx_http_idem_capture_header(r, ctx);
}


static ngx_int_t
ngx_http_idem_capture_header(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t               rc;
    ngx_uint_t              header_only, stream;
    ngx_http_idem_reason_e  reason;

    ngx_http_idem_upstream_answers(r, ctx);

    ngx_http_idem_capture_reset(ctx);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_HOLD, "a response has come");

    /*
     * first: X-Idempotency-Store also counts for a response that can't be
     * held
     */

    rc = ngx_http_idem_capture_head(r, ctx);

    ctx->capture.max_response = ngx_http_idem_size(r,
                                                   &ctx->conf->max_response,
                                                   "idempotency_max_response");
    ctx->capture.max_response = ngx_min(ctx->capture.max_response,
                                        NGX_HTTP_IDEM_RECORD_MAX_LEN);

    stream = ngx_http_idem_stream_found(r, ctx);
    header_only = ngx_http_idem_header_only(r);

    reason = ngx_http_idem_not_held(r, ctx, rc, stream);

    if (reason == NGX_HTTP_IDEM_REASON_NONE && !header_only
        && r->headers_out.content_length_n
           > (off_t) (ctx->capture.max_response - ctx->capture.held_size))
    {
        if (r->method == NGX_HTTP_HEAD) {
            return ngx_http_idem_complete_head(r, ctx);
        }

        reason = NGX_HTTP_IDEM_REASON_TOO_LARGE;
    }

    if (reason != NGX_HTTP_IDEM_REASON_NONE) {
        ngx_http_idem_let_through(r, ctx, reason);
        return ngx_http_idem_pass_header(r, ctx);
    }

    r->filter_need_in_memory = 1;

    /*
     * The range header filter runs after this filter and the range body
     * filter before it: a range is cut from the held body when it is sent
     */

    ctx->capture.ranges = r->allow_ranges && ngx_http_idem_may_range(r);
    r->allow_ranges = 0;

    if (header_only) {

        /* neither a body nor a last buffer will follow */

        r->header_only = 1;
        ctx->capture.response.header_only = 1;

        return ngx_http_idem_complete(r, ctx);
    }

    if (stream && r->method != NGX_HTTP_HEAD
        && !ngx_http_idem_status_bodiless(r->headers_out.status))
    {
        ctx->capture.ranges = 0;
        return ngx_http_idem_stream_header(r, ctx);
    }

    ngx_http_idem_charset(r, ctx);

    return NGX_OK;
}


/* the response may replace one that was held already */

static void
ngx_http_idem_capture_reset(ngx_http_idem_ctx_t *ctx)
{
    ngx_memzero(&ctx->capture, offsetof(ngx_http_idem_capture_t, blocks));
    ngx_memzero(&ctx->stream, sizeof(ngx_http_idem_stream_t));

    ctx->capture.last = &ctx->capture.held;
    ngx_http_idem_file_reset(ctx);
}


/* why a response can't be held, as far as its header tells; "head": captured */

static ngx_http_idem_reason_e
ngx_http_idem_not_held(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_int_t head, ngx_uint_t stream)
{
    if (r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS
        /* a tunnel (CONNECT, nginx 1.31) may have any status */
        || (ctx->work.answering && ctx->work.answering->upgrade)
        || ngx_http_idem_body_follows(r)
        || (stream
            && ngx_http_idem_choice(r, &ctx->conf->stream,
                                    "idempotency_stream",
                                    NGX_HTTP_IDEM_STREAM_TEE)
               == NGX_HTTP_IDEM_STREAM_PASS))
    {
        return NGX_HTTP_IDEM_REASON_STREAM;
    }

    if (r->headers_out.content_offset) {
        /* the slice module starts at the client's range */
        ctx->capture.composed = 1;
        return NGX_HTTP_IDEM_REASON_STREAM;
    }

    if (head != NGX_OK) {
        return NGX_HTTP_IDEM_REASON_NO_ROOM;
    }

    return ctx->capture.held_size > ctx->capture.max_response
           ? NGX_HTTP_IDEM_REASON_TOO_LARGE : NGX_HTTP_IDEM_REASON_NONE;
}


/*
 * Some handlers set header_only themselves (dav, "return 204"); for others
 * the header filter does, which runs after this one.  An upstream still ends
 * its empty body.  A response to HEAD does not count as header only here: a
 * filter such as image_filter may need the body before it can make the
 * header.
 */

static ngx_uint_t
ngx_http_idem_header_only(ngx_http_request_t *r)
{
    if (r->header_only) {
        return !ngx_http_idem_body_follows(r);
    }

    return r->headers_out.status_line.len == 0
           && ngx_http_idem_status_bodiless(r->headers_out.status);
}


/*
 * Some handlers (nchan's subscribers) have the header of a stream sent as one
 * of a response without a body, and send the body later.  The client is told
 * the status of the line: 200, although the status is 204.
 */

static ngx_uint_t
ngx_http_idem_body_follows(ngx_http_request_t *r)
{
    if (!r->header_only || r->method == NGX_HTTP_HEAD
        || r->headers_out.content_length_n != -1
        || r->headers_out.content_length)
    {
        return 0;
    }

    return !ngx_http_idem_told_bodiless(&r->headers_out.status_line,
                                        r->headers_out.status);
}


/* the client is told the status of the line, if there is one */

ngx_uint_t
ngx_http_idem_told_bodiless(ngx_str_t *line, ngx_uint_t status)
{
    ngx_int_t  told;

    told = (line->len < 3) ? (ngx_int_t) status : ngx_atoi(line->data, 3);

    return ngx_http_idem_status_bodiless(told);
}


/* completes a response to HEAD without the body that its handler may send */

static ngx_int_t
ngx_http_idem_complete_head(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ctx->capture.held = NULL;
    ctx->capture.last = &ctx->capture.held;
    ctx->capture.held_size = ctx->capture.head_size;

    ctx->capture.response.body_len = 0;

    return ngx_http_idem_complete(r, ctx);
}


static ngx_int_t
ngx_http_idem_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    if (ngx_http_get_module_ctx(r, ngx_http_idempotency_module) == NULL
        && r == r->main)
    {
        return ngx_http_next_body_filter(r, in);
    }

    return ngx_http_idem_covered_body(r, in);
}


static ngx_int_t
ngx_http_idem_covered_body(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t             rc;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (r != r->main) {

        if (ctx == NULL) {
            ctx = ngx_http_get_module_ctx(r->main,
                                          ngx_http_idempotency_module);
        }

        if (ctx && ctx->stage == NGX_HTTP_IDEM_STREAM) {
            return ngx_http_idem_stream_subrequest(r, ctx, in);
        }

        if (ctx == NULL || ctx->stage != NGX_HTTP_IDEM_HOLD) {
            return ngx_http_next_body_filter(r, in);
        }

        return ngx_http_idem_subrequest_body(r, ctx, in);
    }

    if (ctx == NULL) {
        return ngx_http_next_body_filter(r, in);
    }

    if (ctx->stage == NGX_HTTP_IDEM_HOLD) {
        rc = ngx_http_idem_capture_body(r, ctx, in);

        if (rc > NGX_OK && ctx->stage == NGX_HTTP_IDEM_SEND
            && !r->header_sent)
        {
            return ngx_http_idem_instead(r, ctx, rc);
        }

        return rc;
    }

    if (ctx->stage == NGX_HTTP_IDEM_STREAM) {
        return ngx_http_idem_stream_body(r, ctx, in);
    }

    if (ctx->stage == NGX_HTTP_IDEM_COMPRESS
        || ctx->stage == NGX_HTTP_IDEM_COMMIT
        || ctx->capture.instead)
    {
        ngx_http_idem_discard_chain(in);
        return NGX_AGAIN;
    }

    if (ctx->stage == NGX_HTTP_IDEM_SEND && r->header_only
        && !ngx_http_idem_body_follows(r))
    {

        /* a response to HEAD whose handler sends a body nevertheless */

        ngx_http_idem_discard_chain(in);
        in = NULL;
    }

    ngx_http_idem_through_end(r, ctx, in);

    return ngx_http_next_body_filter(r, in);
}


static void
ngx_http_idem_discard_chain(ngx_chain_t *in)
{
    for ( /* void */ ; in; in = in->next) {
        in->buf->pos = in->buf->last;
        in->buf->file_pos = in->buf->file_last;
    }
}


static ngx_int_t
ngx_http_idem_capture_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t               rc;
    ngx_uint_t              last, flush;
    ngx_http_idem_reason_e  reason;

    if (r->postponed || r != r->connection->data) {
        rc = ngx_http_idem_subrequests_pending(r, ctx, in);

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    if (ngx_http_idem_file_body(r, ctx, &in) == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    last = ctx->capture.ended;
    flush = 0;

    for ( /* void */ ; in; in = in->next) {
        reason = ngx_http_idem_hold(r, ctx, in->buf);

        if (reason != NGX_HTTP_IDEM_REASON_NONE) {

            if (r->method == NGX_HTTP_HEAD) {
                ngx_http_idem_discard_chain(in);
                return ngx_http_idem_complete_head(r, ctx);
            }

            ngx_http_idem_let_through(r, ctx, reason);

            ngx_http_idem_through_end(r, ctx, in);

            *ctx->capture.last = in;

            return ngx_http_idem_send(r, ctx);
        }

        last |= in->buf->last_buf;
        flush |= in->buf->flush;
    }

    if (last || (flush && ngx_http_idem_outcome_whole(r, ctx))) {
        return ngx_http_idem_complete(r, ctx);
    }

    if (!flush || !ngx_http_idem_upstream_broke(r, ctx)) {
        return NGX_OK;
    }

    if (r->method == NGX_HTTP_HEAD) {
        /* the body of a response to HEAD does not matter */
        return ngx_http_idem_complete_head(r, ctx);
    }

    /*
     * Nothing was sent to the client yet.  So instead of a truncated response
     * it gets the response that nginx sends when an upstream fails.
     */

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_EXECUTE, "the response broke off");

    ngx_http_clean_header(r);
    r->buffered &= ~NGX_HTTP_IDEM_BUFFERED;

    return NGX_HTTP_BAD_GATEWAY;
}


/*
 * Stops holding the response, and sends it.  If its status is kept, the record
 * is settled with a reason.  Otherwise a retry may run again, but not before
 * the end of the response: see below.
 */

void
ngx_http_idem_let_through(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason)
{
    ngx_http_idem_outcome_e  outcome;

    outcome = ngx_http_idem_outcome(r, ctx, 1);

    if (outcome == NGX_HTTP_IDEM_OUTCOME_KEEP) {
        ngx_http_idem_log_repeated(NGX_LOG_WARN, r->connection->log,
                      ctx->claims.primary->id,
                      "idempotency: a response is %s to be kept, its retry "
                      "is refused",
                      reason == NGX_HTTP_IDEM_REASON_STREAM
                          ? (ctx->capture.composed ? "made by subrequests, not"
                                           : "an endless stream, not")
                      : reason == NGX_HTTP_IDEM_REASON_NO_ROOM
                          ? "more than there is memory for, not"
                      : "too large");

    } else if (!ctx->capture.composed && r->method != NGX_HTTP_HEAD
               && !ngx_http_idem_header_only(r))
    {
        ctx->capture.through = 1;
    }

    if (ctx->capture.through) {
        ngx_http_idem_settle_status(ctx, outcome, reason);

    } else {
        (void) ngx_http_idem_settle(ctx, outcome, reason, 0);
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND, "it can't be held");

    ngx_http_idem_recheck_client(r);

    ctx->capture.ranges = 0;
    r->buffered &= ~NGX_HTTP_IDEM_BUFFERED;
}


/* settles the record if "in" has the end of a response that was not held */

void
ngx_http_idem_through_end(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *in)
{
    if (!ctx->capture.through) {
        return;
    }

    while (in && !in->buf->last_buf) {
        in = in->next;
    }

    if (in == NULL) {
        return;
    }

    ctx->capture.through = 0;

    (void) ngx_http_idem_settle(ctx, ngx_http_idem_outcome(r, ctx, 1),
                                NGX_HTTP_IDEM_REASON_STREAM, 0);
}


ngx_int_t
ngx_http_idem_complete(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                rc;
    ngx_http_idem_outcome_e  outcome;

    if (!ctx->stream.live) {
        ngx_http_idem_hold_last(ctx);
    }

    /* Content-Length of these responses is not the length of their body */

    if (ctx->capture.response.body_len == 0
        && (ngx_http_idem_status_bodiless(ctx->capture.response.status)
            || r->method == NGX_HTTP_HEAD))
    {
        ctx->capture.response.header_only = 1;
    }

    outcome = ngx_http_idem_outcome(r, ctx, 1);

    if (outcome == NGX_HTTP_IDEM_OUTCOME_KEEP
        && ctx->conf->keep_json && !ngx_http_idem_json_kept(r, ctx))
    {
        ctx->capture.unwanted = 1;
        outcome = ngx_http_idem_outcome(r, ctx, 1);
    }

    if (ngx_http_idem_outcome_short(r, ctx)) {
        outcome = NGX_HTTP_IDEM_OUTCOME_UNKNOWN;

        ctx->capture.ranges = 0;
        r->keepalive = 0;
    }

    if (outcome == NGX_HTTP_IDEM_OUTCOME_KEEP) {
        rc = ngx_http_idem_commit(r, ctx);

        if (rc != NGX_DECLINED) {
            return rc;
        }

        /* the request ran: a retry must learn that there is no response */

        ngx_http_idem_let_through(r, ctx, NGX_HTTP_IDEM_REASON_NO_ROOM);

        return ngx_http_idem_send(r, ctx);
    }

    rc = ngx_http_idem_settle(ctx, outcome, NGX_HTTP_IDEM_REASON_NONE, 1);

    ngx_http_idem_enter(ctx, rc == NGX_AGAIN ? NGX_HTTP_IDEM_COMMIT
                                             : NGX_HTTP_IDEM_SEND,
                        outcome == NGX_HTTP_IDEM_OUTCOME_UNKNOWN
                        ? "the outcome is unknown" : "not kept");

    if (rc == NGX_AGAIN) {
        ngx_http_idem_commit_block(r);
        return NGX_AGAIN;
    }

    return ngx_http_idem_send(r, ctx);
}


ngx_int_t
ngx_http_idem_pass_header(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t  value;

    if (ctx->claims.expired
        && ngx_http_idem_flag(r, &ctx->conf->headers, "idempotency_headers"))
    {

        /* only a hint: without memory, the response is sent without it */

        ngx_http_idem_hide_header(r, "X-Idempotency-Expired");

        ngx_str_set(&value, "true");
        (void) ngx_http_idem_add_header(r, "X-Idempotency-Expired", &value);
    }

    if (ctx->capture.charset) {
        ctx->capture.charset = 0;
        ngx_str_null(&r->headers_out.charset);
    }

    return ngx_http_next_header_filter(r);
}


ngx_int_t
ngx_http_idem_pass_body(ngx_http_request_t *r, ngx_chain_t *in)
{
    return ngx_http_next_body_filter(r, in);
}


/* sends the held response to the client */

ngx_int_t
ngx_http_idem_send(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    r->buffered &= ~NGX_HTTP_IDEM_BUFFERED;

    if (ctx->stream.live) {
        return ngx_http_idem_stream_finish(r, ctx);
    }

    if (ctx->capture.ranges) {

        /* one range only: the range body filter can't make several */

        r->allow_ranges = 1;
        r->single_range = 1;
    }

    rc = ngx_http_idem_pass_header(r, ctx);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (ctx->capture.ranges
        && ngx_http_get_module_ctx(r, ngx_http_range_body_filter_module))
    {
        ngx_http_idem_hold_range(r, ctx);
    }

    return ngx_http_next_body_filter(r, ctx->capture.held);
}
