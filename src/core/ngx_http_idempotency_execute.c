
/*
 * The holder at work: its content handler, and what nginx must not do to it
 * meanwhile.
 *
 * Once the upstream runs, a client that goes away does not end it: the lost
 * response is what this module exists for.  And once something was sent, nginx
 * does not try a next peer by itself: it would for PUT and DELETE.
 *
 * Called by the handler in pre-content; the filters take over from here.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"
#include "observe/ngx_http_idempotency_metrics.h"


static ngx_int_t ngx_http_idempotency_content_handler(ngx_http_request_t *r);
static void ngx_http_idempotency_upstream_finalize(ngx_http_request_t *r,
    ngx_int_t rc);


/* methods after which nginx tries no next peer anyway */
#define NGX_HTTP_IDEMPOTENCY_SPARED                                           \
    (NGX_HTTP_POST|NGX_HTTP_LOCK|NGX_HTTP_PATCH)


ngx_int_t
ngx_http_idempotency_execute(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->phase == NGX_HTTP_IDEMPOTENCY_BEGIN) {
        ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_EXECUTE,
                                   "the lock is ours");

        ctx->status = ctx->unprotected
                      ? NGX_HTTP_IDEMPOTENCY_STATUS_UNPROTECTED
                      : NGX_HTTP_IDEMPOTENCY_STATUS_EXECUTED;
        ctx->held_since = ngx_current_msec;

        ngx_http_idempotency_renew_start(ctx);
    }

    /* the handler of this location; after a redirect it is another one's */

    if (r->content_handler
        && r->content_handler != ngx_http_idempotency_content_handler)
    {
        ctx->content_handler = r->content_handler;
        r->content_handler = ngx_http_idempotency_content_handler;
    }

    return NGX_DECLINED;
}


/* nobody renews the lease any more */

void
ngx_http_idempotency_execute_done(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->holding) {
        ngx_http_idempotency_renew_stop(ctx);

        ngx_http_idempotency_metrics_lock_held(ctx->conf->store,
                                               ngx_current_msec
                                               - ctx->held_since);
    }
}


static ngx_int_t
ngx_http_idempotency_content_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_http_upstream_t         *u;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);
    ctx->handled = 1;

    rc = ctx->content_handler(r);

    u = r->upstream;

    /* NGX_DONE: the handler holds a reference, so r is still there */

    if (rc != NGX_DONE || u == NULL || u->cleanup == NULL) {
        return rc;
    }

    /*
     * In place of the upstream's checks of the client's connection.  The held
     * response is never written to it, so that it is not missed.  One that is
     * let through gets them back.
     */

    if (ctx->phase == NGX_HTTP_IDEMPOTENCY_EXECUTE
        || ctx->phase == NGX_HTTP_IDEMPOTENCY_HOLD)
    {
        ctx->read_event_handler = r->read_event_handler;
        r->read_event_handler = ngx_http_block_reading;
    }

    if (ctx->phase == NGX_HTTP_IDEMPOTENCY_EXECUTE) {
        r->write_event_handler = ngx_http_request_empty_handler;
    }

    if (!(r->method & NGX_HTTP_IDEMPOTENCY_SPARED)
        && ctx->upstream_finalize == NULL)
    {
        ctx->method = r->method;
        r->method |= NGX_HTTP_PATCH;

        ctx->upstream_finalize = u->finalize_request;
        u->finalize_request = ngx_http_idempotency_upstream_finalize;
    }

    return rc;
}


/*
 * A response has come, so that there is no next peer any more: the filters are
 * to find the method as it was.
 */

void
ngx_http_idempotency_restore_method(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->upstream_finalize) {
        r->method = ctx->method;
    }
}


/* nothing is held any more: a client that goes away may end the upstream */

void
ngx_http_idempotency_execute_let_go(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_event_t  *rev;

    if (ctx->read_event_handler == NULL
        || r->upstream == NULL || r->upstream->cleanup == NULL)
    {
        return;
    }

    r->read_event_handler = ctx->read_event_handler;
    ctx->read_event_handler = NULL;

    rev = r->connection->read;

    if (rev->ready) {
        /* it may be gone already */
        ngx_post_event(rev, &ngx_posted_events);
    }
}


/* the method is as it was before an error_page or X-Accel-Redirect reads it */

static void
ngx_http_idempotency_upstream_finalize(ngx_http_request_t *r, ngx_int_t rc)
{
    void                       (*finalize)(ngx_http_request_t *r,
                                           ngx_int_t rc);
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    r->method = ctx->method;

    finalize = ctx->upstream_finalize;
    ctx->upstream_finalize = NULL;

    finalize(r, rc);
}
