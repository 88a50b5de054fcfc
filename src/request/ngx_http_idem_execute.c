
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Executes the holder: its content handler, and those of its subrequests.
 * Keeps nginx from ending them early.
 *
 * A client that disconnects does not end the execution, since replaying lost
 * responses is the purpose of the module.  The upstream module, Lua, and
 * limit_req in a location reached by a redirect all check the client's
 * connection when nginx reports an event on it; so events are not reported
 * meanwhile.
 *
 * Called by the preaccess and pre-content handlers; the filters take over
 * from here.  Calls the upstream watch, and the outcome when a handler
 * redirects the request.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_int_t ngx_http_idem_content_handler(ngx_http_request_t *r);
static void ngx_http_idem_run_called(ngx_http_request_t *r,
    ngx_http_idem_run_t *run);
static ngx_uint_t ngx_http_idem_checks_access(ngx_http_request_t *r);
static ngx_http_idem_run_t *ngx_http_idem_add_run(
    ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_skip_mirrors(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_client_handler(ngx_event_t *rev);


/* the methods of dav, a handler of the content phase */
#define NGX_HTTP_IDEM_DAV                                                     \
    (NGX_HTTP_PUT|NGX_HTTP_DELETE|NGX_HTTP_MKCOL|NGX_HTTP_COPY|NGX_HTTP_MOVE)


/* nginx's own handler, the same for all connections with a request */
static ngx_event_handler_pt  ngx_http_idem_request_handler;


ngx_int_t
ngx_http_idem_execute(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_run_t  *run;

    run = &ctx->work.run;

    if (ctx->stage == NGX_HTTP_IDEM_BEGIN) {

        if (ngx_http_idem_place_begin(r, ctx) != NGX_OK
            || ngx_http_idem_renew_start(ctx) != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_EXECUTE, "the lock is ours");

        ngx_http_idem_status(ctx, ctx->claims.unprotected
                                  ? NGX_HTTP_IDEM_STATUS_UNPROTECTED
                                  : NGX_HTTP_IDEM_STATUS_EXECUTED);
        ctx->claims.held_since = ngx_current_msec;

        run->request = r;
        run->origin = r->upstream;
        run->first = r->upstream_states ? r->upstream_states->nelts : 0;

    } else {
        ngx_http_idem_outcome_redirected(r, ctx);

        if (ngx_http_idem_redirect_end(r, ctx) != NGX_OK) {

            /* without it, a replay might skip the access checks here */

            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    ngx_http_idem_guard(r);

    /* the handler of this location, which may differ after a redirect */

    if (r->content_handler == NULL) {

        if (r->method & NGX_HTTP_IDEM_DAV) {
            ngx_http_idem_run_called(r, run);
            run->phase = 1;
            run->inside = 0;
        }

    } else if (r->content_handler != ngx_http_idem_content_handler) {
        run->content_handler = r->content_handler;
        r->content_handler = ngx_http_idem_content_handler;
    }

    return NGX_DECLINED;
}


/*
 * A subrequest of the holder's content handler is part of the execution, as
 * with ngx.location.capture() of Lua.  A mirror subrequest is not: nobody
 * waits for it.  Nor is an auth_request subrequest in a location reached by a
 * redirect, which only checks access.
 */

ngx_int_t
ngx_http_idem_execute_part(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;
    ngx_http_idem_run_t  *run;

    ctx = ngx_http_idem_get_ctx(r->main);

    if (ctx == NULL || !ngx_http_idem_at_work(ctx)
        || r->content_handler == NULL
        || r->content_handler == ngx_http_idem_content_handler
        || ngx_http_idem_checks_access(r))
    {
        return NGX_DECLINED;
    }

    run = ngx_http_idem_run_of(ctx, r);

    if (run == NULL) {
        run = ngx_http_idem_add_run(r, ctx);
        if (run == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (run->aside) {
        return NGX_DECLINED;
    }

    run->content_handler = r->content_handler;
    r->content_handler = ngx_http_idem_content_handler;

    return NGX_DECLINED;
}


static ngx_http_idem_run_t *
ngx_http_idem_add_run(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_run_t  *run;

    run = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_run_t));
    if (run == NULL) {
        return NULL;
    }

    run->request = r;

    run->next = ctx->work.run.next;
    ctx->work.run.next = run;

    return run;
}


/*
 * Background subrequests made before the content handler is called are a
 * mirror's.
 */

static ngx_int_t
ngx_http_idem_skip_mirrors(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_run_t        *run;
    ngx_http_posted_request_t  *pr;

    for (pr = r->posted_requests; pr; pr = pr->next) {

        if (!pr->request->background || pr->request->parent != r
            || ngx_http_idem_run_of(ctx, pr->request))
        {
            continue;
        }

        run = ngx_http_idem_add_run(pr->request, ctx);
        if (run == NULL) {
            return NGX_ERROR;
        }

        run->aside = 1;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_checks_access(ngx_http_request_t *r)
{
    ngx_http_phase_handler_t   *ph;
    ngx_http_core_main_conf_t  *cmcf;

    if (!r->header_only) {
        return 0;
    }

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    ph = cmcf->phase_engine.handlers;

    return ph[r->main->phase_handler].checker == ngx_http_core_access_phase;
}


/* stops renewing the lease */

void
ngx_http_idem_execute_done(ngx_http_idem_ctx_t *ctx)
{
    if (ctx->claims.renewing) {
        ngx_http_idem_renew_stop(ctx);

        ngx_http_idem_metrics_lock_held(ctx->conf->store->metrics,
                                ngx_http_idem_group(ctx),
                                ngx_current_msec - ctx->claims.held_since);
    }
}


static ngx_int_t
ngx_http_idem_content_handler(ngx_http_request_t *r)
{
    ngx_int_t             rc;
    ngx_uint_t            uri_changes;
    ngx_http_upstream_t  *u;
    ngx_http_idem_ctx_t  *ctx;
    ngx_http_idem_run_t  *run;

    ctx = ngx_http_idem_get_ctx(r);
    run = ngx_http_idem_run_of(ctx, r);

    if (run == NULL) {
        /*
         * a background subrequest that copies the holder, as a cache update
         */
        return ctx->work.run.content_handler(r);
    }

    if (r == r->main && ngx_http_idem_skip_mirrors(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    uri_changes = r->uri_changes;

    ngx_http_idem_run_called(r, run);

    rc = run->content_handler(r);

    if (uri_changes != r->uri_changes) {
        /*
         * the handler redirected the request, and another handler was called
         */
        return rc;
    }

    run->inside = 0;

    /* NGX_DONE: the handler holds a reference, so r still exists */

    u = r->upstream;

    if (rc == NGX_DONE && u && u != run->before
        && ngx_http_idem_at_work(ctx))
    {
        ngx_http_idem_upstream_start(r, run);
    }

    return rc;
}


static void
ngx_http_idem_run_called(ngx_http_request_t *r, ngx_http_idem_run_t *run)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    run->before = r->upstream;
    run->loc_conf = r->loc_conf;
    run->uri_changes = r->uri_changes;
    run->recursive = clcf->recursive_error_pages;
    run->called = 1;
    run->inside = 1;
    run->phase = 0;

    ngx_http_idem_errors_save(r, &run->errors);
}


/*
 * Stops reporting events on the client's connection.  nginx restores its own
 * handler on errors, so each location that is entered sets this one again.
 */

void
ngx_http_idem_guard(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->handler != ngx_http_idem_client_handler) {
        ngx_http_idem_request_handler = rev->handler;
        rev->handler = ngx_http_idem_client_handler;
    }
}


static void
ngx_http_idem_client_handler(ngx_event_t *rev)
{
    ngx_connection_t     *c;
    ngx_http_request_t   *r;
    ngx_http_idem_ctx_t  *ctx;

    c = rev->data;
    r = c->data;
    r = r->main;

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx && !ngx_http_idem_shutdown_expired(r)
        && (ngx_http_idem_at_work(ctx)
            || ctx->stage == NGX_HTTP_IDEM_COMPRESS
            || ctx->stage == NGX_HTTP_IDEM_COMMIT))
    {
        ngx_http_block_reading(r);
        return;
    }

    rev->handler = ngx_http_idem_request_handler;
    rev->handler(rev);
}


/*
 * When worker_shutdown_timeout expires, nginx sets "close" and "error" on
 * each connection.  "close" alone is a QUIC connection closed by its client.
 * An HTTP/2 stream has only "error", as if its client had gone; the state of
 * the connection it belongs to tells the difference.
 */

ngx_uint_t
ngx_http_idem_shutdown_expired(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    if (c->close && c->error) {
        return 1;
    }

#if (NGX_HTTP_V2)

    if (r->stream && ngx_exiting && c->error) {
        c = r->stream->connection->connection;

        if (c->error && !c->timedout && !c->read->eof && !c->read->error
            && !c->write->error)
        {
            r->connection->close = 1;
            return 1;
        }
    }

#endif

    return 0;
}


/*
 * nothing is held any longer: a client that disconnects may end the upstream
 */

void
ngx_http_idem_recheck_client(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready && rev->handler == ngx_http_idem_client_handler) {
        /* the client may have gone already */
        ngx_post_event(rev, &ngx_posted_events);
    }
}
