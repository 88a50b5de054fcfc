
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Commit: stores a complete response in all records that cover the request,
 * then sends it to the client.
 *
 * The request stays alive until the store has replied, even if its client has
 * gone.  Called by the capture.  Calls the encoder of records and the claims,
 * and the capture again to send.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* interval for checking whether a handler has finished, ms */
#define NGX_HTTP_IDEM_INSTEAD_PAUSE  10


static ngx_int_t ngx_http_idem_submit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_chain_t *ngx_http_idem_encode(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, size_t *size);
static void ngx_http_idem_instead_handler(ngx_event_t *ev);


/* NGX_DECLINED: no memory, and nothing was done */

ngx_int_t
ngx_http_idem_commit(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    size_t     len;
    ngx_int_t  rc;

    len = ctx->capture.response.body_len;

    ctx->capture.response.plain_len = len;

    if (len
        && ngx_http_idem_flag(r, &ctx->conf->compress, "idempotency_compress")
        && len >= ngx_http_idem_size(r, &ctx->conf->compress_min,
                                     "idempotency_compress")
        && ngx_http_idem_deflate(r, ctx) == NGX_AGAIN)
    {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_COMPRESS,
                            "the response is complete");
        rc = NGX_AGAIN;

    } else {
        rc = ngx_http_idem_submit(r, ctx);
    }

    if (rc == NGX_AGAIN) {
        ngx_http_idem_commit_block(r);
    }

    return (rc == NGX_OK) ? ngx_http_idem_send(r, ctx) : rc;
}


/*
 * Keeps the request alive until the commit is done, even without a client.
 * send_timeout does not end it meanwhile: the client is not the one that is
 * waited for.  nginx sets no such timer for a connection that is "delayed".
 * The timer of limit_rate goes as well, since nginx would set send_timeout
 * after it; the next output makes a new one.
 */

void
ngx_http_idem_commit_block(ngx_http_request_t *r)
{
    ngx_event_t  *wev;

    wev = r->connection->write;

    if (wev->timer_set) {
        ngx_del_timer(wev);
    }

    wev->delayed = 1;

    r->buffered |= NGX_HTTP_IDEM_BUFFERED;

    r->main->blocked++;
    r->aio = 1;

    /*
     * nginx would take a response that a filter made in place of another
     * (412) for sent when its handler returns, and close the connection.
     */

    r->filter_finalize = 0;
}


void
ngx_http_idem_commit_unblock(ngx_http_request_t *r)
{
    r->connection->write->delayed = 0;

    r->buffered &= ~NGX_HTTP_IDEM_BUFFERED;

    r->main->blocked--;
    r->aio = 0;
}


/* compression finished in a later iteration of the event loop */

void
ngx_http_idem_deflated(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_submit(r, ctx);

    if (rc == NGX_AGAIN) {
        return;
    }

    if (rc == NGX_DECLINED) {
        ngx_http_idem_let_through(r, ctx, NGX_HTTP_IDEM_REASON_NO_ROOM);
    }

    ngx_http_idem_commit_done(r, ctx);
}


/* NGX_OK: stored; NGX_AGAIN: in progress; NGX_DECLINED: no memory */

static ngx_int_t
ngx_http_idem_submit(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    size_t        size;
    ngx_int_t     rc;
    ngx_chain_t  *response;

    response = ngx_http_idem_encode(r, ctx, &size);
    if (response == NULL) {
        return NGX_DECLINED;
    }

    ngx_http_idem_execute_done(ctx);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_COMMIT,
                        "the response is complete");

    rc = ngx_http_idem_claims_commit(ctx, response, size);

    if (rc == NGX_OK) {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND, "committed");
    }

    return rc;
}


static ngx_chain_t *
ngx_http_idem_encode(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, size_t *size)
{
    uint32_t                   sum;
    ngx_buf_t                 *b;
    ngx_chain_t               *cl, *body, *in;
    ngx_http_idem_response_t  *response;

    response = &ctx->capture.response;

    response->time = ctx->claims.primary->claim.time;

    body = response->compressed ? ctx->capture.compressed : ctx->capture.held;

    /* the header was validated when it was captured */

    *size = ctx->capture.head_size;

    cl = ngx_http_idem_piece(r->pool, *size);
    if (cl == NULL) {
        return NULL;
    }

    b = cl->buf;
    b->last = ngx_http_idem_head_encode(b->last, response);

    if (ctx->conf->store->backend->remote) {

        /* the response leaves this nginx: a replay verifies the checksum */

        sum = NGX_HTTP_IDEM_SUM;

        for (in = body; in; in = in->next) {
            sum = ngx_http_idem_body_sum(sum, in->buf->pos,
                                         in->buf->last - in->buf->pos);
        }

        ngx_http_idem_head_seal(b->pos, *size, sum);
    }

    cl->next = body;

    *size += response->body_len;

    return cl;
}


/* the commits are done, or there was no memory for them */

void
ngx_http_idem_commit_done(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t          rc;
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_idem_commit_unblock(r);

    if (ctx->capture.compressed) {

        /* stored, and not needed any longer */

        (void) ngx_pfree(r->pool, ctx->capture.compressed);
        ctx->capture.compressed = NULL;
    }

    if (c->error) {
        rc = NGX_ERROR;

    } else if (r->header_sent && !ctx->stream.live) {
        /* the handler failed meanwhile, and nginx has sent an error */
        rc = NGX_OK;

    } else {
        rc = ngx_http_idem_send(r, ctx);
    }

    ngx_http_idem_commit_return(r, ctx, rc);
}


/* resumes the handler that made the response or waits for its end */

void
ngx_http_idem_commit_return(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc)
{
    ngx_connection_t  *c;

    c = r->connection;

    if (rc > NGX_OK) {
        rc = ngx_http_idem_instead(r, ctx, rc);

        if (rc == NGX_AGAIN) {
            return;
        }
    }

    if (rc == NGX_ERROR) {
        c->error = 1;
    }

    if (ngx_http_idem_is_ending(r)) {
        c->write->handler(c->write);
        return;
    }

    r->write_event_handler(r);

    ngx_http_run_posted_requests(c);
}


/*
 * A filter replaces the response that is being sent by one with another
 * status; nothing was sent yet.  Without this module the content handler
 * would learn that when it sends its header.  Here the handler may have
 * finished already (with a remote store), may ignore the result of sending
 * its body (perl, njs), or may continue after the last byte (Lua, after
 * ngx.eof()).  So the request is finalized with that status once the handler
 * has finished.
 */

ngx_int_t
ngx_http_idem_instead(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t status)
{
    ngx_event_t  *ev;

    ev = ngx_pcalloc(r->pool, sizeof(ngx_event_t));
    if (ev == NULL) {
        return NGX_ERROR;
    }

    ev->handler = ngx_http_idem_instead_handler;
    ev->data = ctx;
    ev->log = r->connection->log;

    ctx->capture.instead = status;

    ngx_http_idem_commit_block(r);

    ngx_post_event(ev, &ngx_posted_events);

    return NGX_AGAIN;
}


static void
ngx_http_idem_instead_handler(ngx_event_t *ev)
{
    ngx_int_t             status;
    ngx_connection_t     *c;
    ngx_http_request_t   *r;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    status = ctx->capture.instead;

    if (c->error || ngx_http_idem_is_ending(r) || r->header_sent) {

        /*
         * the client has gone, or the handler failed and nginx has sent an
         * error
         */

        status = NGX_OK;

    } else if (r->http_state != NGX_HTTP_WRITING_REQUEST_STATE) {

        /* no event reports the end of a handler */

        ngx_add_timer(ev, NGX_HTTP_IDEM_INSTEAD_PAUSE);
        return;
    }

    ctx->capture.instead = NGX_OK;

    ngx_http_idem_commit_unblock(r);

    if (status == NGX_OK) {
        ngx_http_idem_commit_return(r, ctx, NGX_OK);
        return;
    }

    ngx_http_finalize_request(r, status);
    ngx_http_run_posted_requests(c);
}
