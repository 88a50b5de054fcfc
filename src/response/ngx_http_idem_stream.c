
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Streams: responses that are sent to the client while they are captured.
 *
 * Incoming data is copied to the held pieces, and the client is served from
 * these at its own speed: a slow client does not delay the upstream, and one
 * that disconnects does not end it.  The end of the response is sent after
 * the commit, so that a client that has seen it can get the whole response
 * again.
 *
 * Called by the capture, by nginx when the client's connection is writable,
 * and by code that sends held responses.  Calls the capture when the stream
 * is complete.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* data that the client's connection has not taken yet */
#define NGX_HTTP_IDEM_STREAM_BLOCKED                                          \
    (NGX_HTTP_WRITE_BUFFERED|NGX_LOWLEVEL_BUFFERED)


static ngx_uint_t ngx_http_idem_is_stream(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_uint_t ngx_http_idem_unbuffered(ngx_http_upstream_t *u);
static void ngx_http_idem_stream_write_handler(ngx_event_t *wev);
static ngx_int_t ngx_http_idem_stream_through(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason,
    ngx_chain_t *in);
static ngx_int_t ngx_http_idem_stream_pass(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_stream_next(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *out);
static ngx_chain_t *ngx_http_idem_stream_chain(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static size_t ngx_http_idem_stream_unsent(ngx_http_idem_ctx_t *ctx);
static ngx_chain_t *ngx_http_idem_stream_link(ngx_http_request_t *r,
    ngx_http_idem_stream_t *s, size_t n);
static ngx_chain_t *ngx_http_idem_stream_rest(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_stream_gone(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static off_t ngx_http_idem_stream_sent(ngx_http_request_t *r);


/* nginx's own handler, the same for all connections with a request */
static ngx_event_handler_pt  ngx_http_idem_stream_request_handler;


/* whether a response is a stream: then nginx is not to buffer it either */

ngx_uint_t
ngx_http_idem_stream_found(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (!ngx_http_idem_is_stream(r, ctx)) {
        return 0;
    }

    if (ctx->work.answering) {
        ngx_http_idem_upstream_unbuffer(r, ctx->work.answering);
    }

    return 1;
}


/* the client can't wait for its end */

static ngx_uint_t
ngx_http_idem_is_stream(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t   *type;
    ngx_uint_t   i;

    if (ngx_http_idem_is_sse(r)) {
        return 1;
    }

    if (ctx->conf->stream_types) {
        type = ctx->conf->stream_types->elts;

        for (i = 0; i < ctx->conf->stream_types->nelts; i++) {
            if (ngx_http_idem_is_type(r, &type[i])) {
                return 1;
            }
        }
    }

    return ctx->work.answering
           && ngx_http_idem_unbuffered(ctx->work.answering);
}


/*
 * nginx removes X-Accel-Buffering from the response: check what it received
 */

static ngx_uint_t
ngx_http_idem_unbuffered(ngx_http_upstream_t *u)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    if (u->conf->ignore_headers & NGX_HTTP_UPSTREAM_IGN_XA_BUFFERING) {
        return 0;
    }

    for (part = &u->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_idem_header_is(&h[i].key, "X-Accel-Buffering")
                && ngx_http_idem_header_is(&h[i].value, "no"))
            {
                return 1;
            }
        }
    }

    return 0;
}


/* sends the header at once */

ngx_int_t
ngx_http_idem_stream_header(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_STREAM, "it goes out as it comes");

    ctx->stream.live = 1;
    ctx->stream.length = r->headers_out.content_length_n;

    ngx_http_idem_stream_guard(r);

    rc = ngx_http_idem_pass_header(r, ctx);

    if (rc > NGX_OK) {

        /* a filter replaces the response, and nothing was sent yet */

        ctx->stream.live = 0;
        return rc;
    }

    if (rc == NGX_ERROR) {
        ngx_http_idem_stream_gone(r, ctx);
        return NGX_OK;
    }

    return rc;
}


/*
 * A client that can't be written to must not end the execution.  nginx's
 * handlers would end it after send_timeout.
 */

void
ngx_http_idem_stream_guard(ngx_http_request_t *r)
{
    ngx_event_t  *wev;

    wev = r->connection->write;

    if (wev->handler != ngx_http_idem_stream_write_handler) {
        ngx_http_idem_stream_request_handler = wev->handler;
        wev->handler = ngx_http_idem_stream_write_handler;
    }
}


static void
ngx_http_idem_stream_write_handler(ngx_event_t *wev)
{
    ngx_uint_t            cut_off;
    ngx_connection_t     *c;
    ngx_http_request_t   *r;
    ngx_http_idem_ctx_t  *ctx;

    c = wev->data;
    r = c->data;
    r = r->main;

    ctx = ngx_http_idem_get_ctx(r);
    cut_off = ngx_http_idem_shutdown_expired(r);

    if (cut_off || ctx == NULL || ctx->stage != NGX_HTTP_IDEM_STREAM) {

        if (!cut_off && ngx_http_idem_hints_write(r)) {
            return;
        }

        wev->handler = ngx_http_idem_stream_request_handler;
        wev->handler(wev);
        return;
    }

    if (wev->timedout) {
        wev->timedout = 0;

        if (wev->delayed) {
            /* delayed by limit_rate, not by the client */
            wev->delayed = 0;

        } else {
            c->timedout = 1;
            ngx_connection_error(c, NGX_ETIMEDOUT, "client timed out");
            ngx_http_idem_stream_gone(r, ctx);
        }
    }

    if (c->buffered & NGX_HTTP_IDEM_STREAM_BLOCKED) {
        (void) ngx_http_idem_stream_next(r, ctx, NULL);
    }

    (void) ngx_http_idem_stream_pass(r, ctx);

    ngx_http_idem_stream_request_handler(wev);
}


ngx_int_t
ngx_http_idem_stream_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_buf_t              *b;
    ngx_uint_t              last, flush;
    ngx_http_idem_reason_e  reason;

    last = 0;
    flush = 0;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;

        reason = ngx_http_idem_hold(r, ctx, b);

        if (reason != NGX_HTTP_IDEM_REASON_NONE) {
            return ngx_http_idem_stream_through(r, ctx, reason, in);
        }

        last |= b->last_buf;
        flush |= b->flush;
        ctx->stream.recycled |= b->recycled;
    }

    ctx->stream.flush |= flush;

    if (last || (flush && ngx_http_idem_outcome_whole(r, ctx))) {
        ctx->stream.ended = 1;
        ctx->stream.flush = 1;

        if (r->postponed || r != r->connection->data) {
            /* subrequests may still add to the response */
            ctx->capture.composed = 1;
            return ngx_http_idem_stream_through(r, ctx,
                                                NGX_HTTP_IDEM_REASON_STREAM,
                                                NULL);
        }

        /* the end itself is sent after the commit */

        (void) ngx_http_idem_stream_pass(r, ctx);

        return ngx_http_idem_complete(r, ctx);
    }

    if (flush && ngx_http_idem_upstream_broke(r, ctx)) {

        /* the client sees a truncated response, as without this module */

        (void) ngx_http_idem_settle(ctx, NGX_HTTP_IDEM_OUTCOME_UNKNOWN,
                                    NGX_HTTP_IDEM_REASON_UNKNOWN, 0);

        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND, "the stream broke off");

        return ngx_http_idem_stream_finish(r, ctx);
    }

    if (r->connection->buffered & NGX_HTTP_IDEM_STREAM_BLOCKED
        && ctx->work.answering == NULL)
    {
        /* a handler without an upstream waits for the client itself */
        (void) ngx_http_idem_stream_next(r, ctx, NULL);
    }

    return ngx_http_idem_stream_pass(r, ctx);
}


/* sends a stream that can't be kept: held but unsent data, then the rest */

static ngx_int_t
ngx_http_idem_stream_through(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_reason_e reason, ngx_chain_t *in)
{
    ngx_chain_t  *cl;

    ngx_http_idem_let_through(r, ctx, reason);

    ngx_http_idem_through_end(r, ctx, in);

    *ctx->capture.last = in;

    if (ctx->stream.piece && ctx->stream.busy == NULL) {

        /* drop the pieces that were sent */

        while (ctx->capture.held != ctx->stream.piece) {
            cl = ctx->capture.held;
            ctx->capture.held = cl->next;
            ngx_http_idem_hold_drop(ctx, cl);
        }
    }

    return ngx_http_idem_stream_finish(r, ctx);
}


/* sends the rest, with the end if there is one */

ngx_int_t
ngx_http_idem_stream_finish(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_chain_t  *out;

    if (ctx->stream.gone || r->connection->error) {
        r->connection->error = 1;
        return NGX_ERROR;
    }

    if (r->header_only) {
        return NGX_OK;
    }

    out = ngx_http_idem_stream_rest(ctx);

    return out ? ngx_http_idem_pass_body(r, out) : NGX_OK;
}


/*
 * Uses the pieces themselves: they are complete, and the record is stored, so
 * that filters may consume them.
 */

static ngx_chain_t *
ngx_http_idem_stream_rest(ngx_http_idem_ctx_t *ctx)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = ctx->stream.piece;

    if (cl == NULL) {
        cl = ctx->capture.held;

    } else {
        b = cl->buf;
        b->pos = ctx->stream.pos;

        if (b->pos == b->last) {
            cl = cl->next;
        }
    }

    if (!ctx->stream.ended && !ctx->stream.flush) {
        return cl;
    }

    b = &ctx->capture.end_buf;

    if (ctx->stream.ended) {
        b->last_buf = 1;
        b->last_in_chain = 1;

    } else {
        b->flush = 1;
    }

    ctx->capture.end.buf = b;
    ctx->capture.end.next = NULL;

    if (cl == NULL) {
        return &ctx->capture.end;
    }

    if (ctx->stream.ended || *ctx->capture.last == NULL) {
        *ctx->capture.last = &ctx->capture.end;
    }

    return cl;
}


/*
 * Sends what is available.  While the client has not taken earlier data, an
 * upstream's response waits in the pieces; other handlers wait for the client
 * themselves.
 */

static ngx_int_t
ngx_http_idem_stream_pass(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_chain_t  *out;

    if (ctx->stream.gone) {
        return NGX_OK;
    }

    if (r->connection->error) {
        ngx_http_idem_stream_gone(r, ctx);
        return NGX_OK;
    }

    if (ctx->work.answering
        && r->connection->buffered & NGX_HTTP_IDEM_STREAM_BLOCKED)
    {
        return NGX_OK;
    }

    out = ngx_http_idem_stream_chain(r, ctx);

    return out ? ngx_http_idem_stream_next(r, ctx, out) : NGX_OK;
}


/* returns success to the upstream even if the client has gone */

static ngx_int_t
ngx_http_idem_stream_next(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *out)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_pass_body(r, out);

    if (out == &ctx->stream.flush_link) {
        out = NULL;
    }

    ngx_chain_update_chains(r->pool, &ctx->stream.free, &ctx->stream.busy,
                            &out,
                            (ngx_buf_tag_t) &ngx_http_idempotency_module);

    if (rc == NGX_ERROR) {
        ngx_http_idem_stream_gone(r, ctx);
        return NGX_OK;
    }

    return rc;
}


/*
 * Makes separate buffers for the unsent data: a piece grows, and the store
 * reads it.  NULL: there is nothing to send.
 */

static ngx_chain_t *
ngx_http_idem_stream_chain(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    size_t                   n, len;
    ngx_buf_t               *b;
    ngx_chain_t             *cl, *out, **ll;
    ngx_http_idem_stream_t  *s;

    s = &ctx->stream;

    ll = &out;
    b = NULL;

    len = ngx_http_idem_stream_unsent(ctx);

    if (len && s->piece == NULL) {
        s->piece = ctx->capture.held;
        s->pos = s->piece->buf->pos;
    }

    while (len) {
        n = ngx_min(len, (size_t) (s->piece->buf->last - s->pos));

        if (n == 0) {
            s->piece = s->piece->next;
            s->pos = s->piece->buf->pos;
            continue;
        }

        cl = ngx_http_idem_stream_link(r, s, n);

        if (cl == NULL) {
            /* ..._stream_rest() sends the remaining data */
            break;
        }

        b = cl->buf;
        len -= n;

        *ll = cl;
        ll = &cl->next;
    }

    *ll = NULL;

    if (b == NULL) {

        if (!s->flush) {
            return NULL;
        }

        out = &s->flush_link;
        b = &s->flush_buf;

        out->buf = b;
        out->next = NULL;
    }

    b->flush = s->flush;
    b->recycled = s->recycled;

    s->flush = 0;
    s->recycled = 0;

    return out;
}


/*
 * With a Content-Length the last byte ends the response for the client: it is
 * withheld until the commit.
 */

static size_t
ngx_http_idem_stream_unsent(ngx_http_idem_ctx_t *ctx)
{
    size_t                   len;
    ngx_http_idem_stream_t  *s;

    s = &ctx->stream;
    len = ctx->capture.response.body_len;

    if (s->length > 0 && (off_t) len >= s->length) {
        len = (size_t) s->length - 1;
    }

    return len - ngx_min(len, s->passed);
}


/* a buffer for the next n bytes of the piece */

static ngx_chain_t *
ngx_http_idem_stream_link(ngx_http_request_t *r, ngx_http_idem_stream_t *s,
    size_t n)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = ngx_chain_get_free_buf(r->pool, &s->free);
    if (cl == NULL) {
        return NULL;
    }

    b = cl->buf;

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->start = s->pos;
    b->pos = s->pos;
    b->last = s->pos + n;
    b->end = b->last;
    b->memory = 1;
    b->tag = (ngx_buf_tag_t) &ngx_http_idempotency_module;

    s->pos += n;
    s->passed += n;

    return cl;
}


/* stops writing to the client; the execution goes on */

static void
ngx_http_idem_stream_gone(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_event_t       *wev;
    ngx_connection_t  *c;

    if (ctx->stream.gone) {
        return;
    }

    ctx->stream.gone = 1;

    c = r->connection;
    wev = c->write;

    ngx_log_error(NGX_LOG_INFO, c->log, 0,
                  "idempotency: the client of a stream is gone, the stream "
                  "is captured to its end, record %*xs",
                  (size_t) 8, ctx->claims.primary->id);

    /* with an error set, the end of a subrequest would end the request */

    c->error = 0;

    c->buffered = 0;
    r->out = NULL;
    r->keepalive = 0;

    wev->delayed = 0;
    wev->ready = 1;

    if (wev->timer_set) {
        ngx_del_timer(wev);
    }
}


/*
 * The output of a subrequest is passed on.  If any of it is sent, the
 * response is more than what is captured.
 */

ngx_int_t
ngx_http_idem_stream_subrequest(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    off_t       sent;
    ngx_int_t   rc;
    ngx_uint_t  seen;

    if (ctx->stream.gone) {
        seen = ngx_http_idem_probe_output(r, in, &rc) != NULL;

    } else {
        sent = ngx_http_idem_stream_sent(r->main);
        rc = ngx_http_idem_pass_body(r, in);
        seen = sent != ngx_http_idem_stream_sent(r->main);
    }

    if (!seen || ctx->stage != NGX_HTTP_IDEM_STREAM) {
        return rc;
    }

    ctx->capture.composed = 1;

    if (ngx_http_idem_stream_through(r->main, ctx,
                                     NGX_HTTP_IDEM_REASON_STREAM, NULL)
        == NGX_ERROR)
    {
        return NGX_ERROR;
    }

    return rc;
}


static off_t
ngx_http_idem_stream_sent(ngx_http_request_t *r)
{
    off_t         sent;
    ngx_chain_t  *cl;

    sent = r->connection->sent;

    for (cl = r->out; cl; cl = cl->next) {
        sent += ngx_buf_size(cl->buf);
    }

    return sent;
}
