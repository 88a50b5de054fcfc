
/*
 * Commit: a complete response goes into every record that covers the request,
 * then to the client.
 *
 * The request is kept until the store has answered, even if its client is
 * gone.  Called by the capture; calls the record's encoding and the store,
 * and the capture again to send.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_commit_block(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_submit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_chain_t *ngx_http_idem_encode(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, size_t *size);
static void ngx_http_idem_commit_stored(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_commit_done(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_finalize(ngx_http_request_t *r, ngx_int_t status);


/* NGX_DECLINED: there is no memory for it, and nothing was done */

ngx_int_t
ngx_http_idem_commit(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    ctx->capture.response.plain_len = ctx->capture.response.body_len;

    if (ctx->conf->compress
        && ctx->capture.response.body_len >= ctx->conf->compress_min
        && ngx_http_idem_deflate(r, ctx) == NGX_AGAIN)
    {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_COMPRESS,
                            "the response is complete");

        ngx_http_idem_commit_block(r);
        return NGX_AGAIN;
    }

    rc = ngx_http_idem_submit(r, ctx);

    if (rc == NGX_AGAIN) {
        ngx_http_idem_commit_block(r);
        return NGX_AGAIN;
    }

    if (rc == NGX_OK) {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND,
                            "committed");
        return ngx_http_idem_send(r, ctx);
    }

    return rc;
}


/* the request is there until the commit is, whatever its client does */

static void
ngx_http_idem_commit_block(ngx_http_request_t *r)
{
    r->buffered |= NGX_HTTP_IDEM_BUFFERED;

    r->main->blocked++;
    r->aio = 1;
}


/* compressed, in further turns of the event loop */

void
ngx_http_idem_deflated(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    switch (ngx_http_idem_submit(r, ctx)) {

    case NGX_AGAIN:
        return;

    case NGX_OK:
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND,
                            "committed");
        break;

    default: /* NGX_DECLINED */
        ngx_http_idem_let_through(r, ctx, NGX_HTTP_IDEM_REASON_NO_ROOM);
    }

    ngx_http_idem_commit_done(r, ctx);
}


/* NGX_OK: stored; NGX_AGAIN: will be; NGX_DECLINED: as above */

static ngx_int_t
ngx_http_idem_submit(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    size_t        size;
    ngx_chain_t  *response;

    response = ngx_http_idem_encode(r, ctx, &size);
    if (response == NULL) {
        return NGX_DECLINED;
    }

    ngx_http_idem_execute_done(ctx);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_COMMIT,
                        "the response is complete");

    return ngx_http_idem_claims_commit(ctx, response, size,
                                       ngx_http_idem_commit_stored);
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

    /* the head is what it was when it came: it is not checked again */

    *size = ctx->capture.head_size;

    cl = ngx_http_idem_piece(r->pool, *size);
    if (cl == NULL) {
        return NULL;
    }

    b = cl->buf;
    b->last = ngx_http_idem_head_encode(b->last, response);

    if (ctx->conf->store->backend->remote) {

        /* it leaves this nginx, and is not to be believed when it comes back */

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


static void
ngx_http_idem_commit_stored(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_SEND, "committed");

    ngx_http_idem_commit_done(r, ctx);
}


static void
ngx_http_idem_commit_done(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t          rc;
    ngx_connection_t  *c;

    c = r->connection;

    r->main->blocked--;
    r->aio = 0;

    rc = c->error ? NGX_ERROR : ngx_http_idem_send(r, ctx);

    if (rc == NGX_ERROR) {
        c->error = 1;
    }

#if (nginx_version >= 1025004)

    if (r->main->terminated) {
        c->write->handler(c->write);
        return;
    }

#endif

    if (r->done) {
        c->write->handler(c->write);
        return;
    }

    if (rc > NGX_OK) {

        /* a filter has another response for it, and nothing was sent yet */

        ngx_http_idem_finalize(r, rc);

    } else {
        r->write_event_handler(r);
    }

    ngx_http_run_posted_requests(c);
}


/*
 * What nginx does with a status that a filter returns, when whoever made the
 * response is through.  Otherwise (Lua goes on after ngx.eof()) the other
 * response is sent in its place, and the request ends as that one will.
 */

static void
ngx_http_idem_finalize(ngx_http_request_t *r, ngx_int_t status)
{
    if (r->http_state == NGX_HTTP_WRITING_REQUEST_STATE) {
        ngx_http_finalize_request(r, status);
        return;
    }

    (void) ngx_http_filter_finalize_request(r, &ngx_http_idempotency_module,
                                            status);

    r->write_event_handler(r);
}
