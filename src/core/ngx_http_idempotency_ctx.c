
/*
 * The context of a request: made at admission, found again after an internal
 * redirect, settled when the request ends however it ends.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"
#include "observe/ngx_http_idempotency_events.h"
#include "observe/ngx_http_idempotency_metrics.h"


static void ngx_http_idempotency_ctx_cleanup(void *data);
static void ngx_http_idempotency_ctx_free(void *data);


ngx_str_t  ngx_http_idempotency_status_names[] = {
    ngx_null_string,
    ngx_string("EXECUTED"),
    ngx_string("REPLAYED"),
    ngx_string("CONFLICT"),
    ngx_string("BUSY"),
    ngx_string("TIMEOUT"),
    ngx_string("WAITERS"),
    ngx_string("INVALID"),
    ngx_string("UNKNOWN"),
    ngx_string("TOO_LARGE"),
    ngx_string("RELEASED"),
    ngx_string("UNAVAILABLE"),
    ngx_string("UNPROTECTED"),
    ngx_string("BYPASS")
};


#if (NGX_DEBUG)

static const char  *ngx_http_idempotency_phase_names[] = {
    "admit", "read body", "begin", "wait", "execute", "hold", "compress",
    "commit", "send", "replay", "refuse", "pass"
};

#endif


/* what an internal redirect took out of r->ctx: the cleanup still has it */

ngx_http_idempotency_ctx_t *
ngx_http_idempotency_find_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_idempotency_ctx_free) {
            ctx = cln->data;
            ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
            return ctx;
        }
    }

    return NULL;
}


ngx_http_idempotency_ctx_t *
ngx_http_idempotency_create_ctx(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_http_cleanup_t          *hcln;
    ngx_pool_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_idempotency_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    hcln = ngx_http_cleanup_add(r, 0);
    if (hcln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_idempotency_ctx_t));

    ctx->request = r;
    ctx->arrival = ngx_current_msec;
    ctx->held_last = &ctx->held;

    cln->handler = ngx_http_idempotency_ctx_free;

    hcln->handler = ngx_http_idempotency_ctx_cleanup;
    hcln->data = ctx;

    ctx->conf = conf;
    ctx->uri_changes = r->uri_changes;

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    ngx_http_idempotency_arrive(r, ctx);

    return ctx;
}


/*
 * The request may have come here from another location, before it has begun.
 * Then it was refused there, and an error_page leads it: it must not find here
 * what it was kept from, for the record would be the same, nor take the lock.
 * Or a module sent it on, as ngx.exec() of Lua does: then it stays covered, as
 * it was where it came from.  With recursive_error_pages the two look alike.
 */

void
ngx_http_idempotency_arrive(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;

    if (ctx->phase != NGX_HTTP_IDEMPOTENCY_ADMIT) {
        return;
    }

    if (ctx->uri_changes != r->uri_changes
        && (ctx->recursive || (r->error_page && !ctx->error_page)))
    {
        ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_PASS,
                                   "an error_page of a refused request");
        return;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    ctx->uri_changes = r->uri_changes;
    ctx->error_page = r->error_page;
    ctx->recursive = clcf->recursive_error_pages;
}


void
ngx_http_idempotency_enter(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_phase_e phase, const char *reason)
{
    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "idempotency: %s -> %s: %s",
                   ngx_http_idempotency_phase_names[ctx->phase],
                   ngx_http_idempotency_phase_names[phase], reason);

    ctx->phase = phase;
}


/*
 * Under idempotency_dry_run: what would have become of the request is in
 * "status", and it goes on as if this module were not there.
 */

ngx_int_t
ngx_http_idempotency_dry_run(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e status)
{
    ctx->status = status;

    ngx_http_idempotency_enter(ctx, NGX_HTTP_IDEMPOTENCY_PASS, "dry run");

    return NGX_DECLINED;
}


/* a begin, and all that belongs to it */

void
ngx_http_idempotency_give_up(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t  i;

    for (i = 0; i < ctx->ncovers; i++) {
        ngx_http_idempotency_store_cancel(&ctx->covers[i].op);
    }

    ngx_http_idempotency_wait_cancel(ctx);
    ngx_http_idempotency_release(ctx);
}


/*
 * The request ends, in order or not: nobody may call us for it any more, and
 * what it was holder of must not stay locked.  It runs before the access log
 * is written, and after the upstream has said how much it was sent.
 */

static void
ngx_http_idempotency_ctx_cleanup(void *data)
{
    ngx_http_idempotency_ctx_t  *ctx = data;

    switch (ctx->phase) {

    case NGX_HTTP_IDEMPOTENCY_READ_BODY:
        ngx_http_idempotency_rest_cleanup(ctx);
        break;

    case NGX_HTTP_IDEMPOTENCY_BEGIN:
        ngx_http_idempotency_give_up(ctx);
        break;

    case NGX_HTTP_IDEMPOTENCY_WAIT:
        ngx_http_idempotency_wait_cancel(ctx);
        break;

    case NGX_HTTP_IDEMPOTENCY_EXECUTE:
    case NGX_HTTP_IDEMPOTENCY_HOLD:
        ngx_http_idempotency_abandon(ctx);
        break;

    default:
        /* a commit that is under way keeps the request alive: r->blocked */
        break;
    }

    if (ctx->status != NGX_HTTP_IDEMPOTENCY_STATUS_NONE && !ctx->figured) {
        ctx->figured = 1;
        ngx_http_idempotency_metrics_request(ctx->conf->store,
                                             ctx->conf->group, ctx->status);
        ngx_http_idempotency_outcome_event(ctx);
    }
}


static void
ngx_http_idempotency_ctx_free(void *data)
{
    ngx_http_idempotency_ctx_t  *ctx = data;

    ngx_uint_t  i;

    /* the rest of what could still call us; mostly there is none of it */

    ngx_http_idempotency_ctx_cleanup(ctx);
    ngx_http_idempotency_execute_done(ctx);
    ngx_http_idempotency_body_cleanup(ctx);
    ngx_http_idempotency_deflate_cleanup(ctx);

    for (i = 0; i < ctx->ncovers; i++) {
        ngx_http_idempotency_store_cancel(&ctx->covers[i].op);
    }

    ctx->phase = NGX_HTTP_IDEMPOTENCY_PASS;
}
