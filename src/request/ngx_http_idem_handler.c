
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The way of a request from its arrival to the content handler.
 *
 * The context is created before the access phase, and the request is usually
 * admitted in the access phase.  Neither phase uses the store, since the
 * client may still be refused, and an error_page may redirect a refused
 * request.  In pre-content, after all access checks, the body is read and the
 * record is begun; then the request runs, waits, is replayed or is refused.
 * Only ngx_http_idem_run() advances a request.  When an asynchronous
 * operation completes, the phases run again.
 *
 * Called by nginx's phases.  Calls the other files of request/, the claims,
 * and response/.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_not_covered(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
static ngx_int_t ngx_http_idem_run(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_failed(ngx_http_idem_ctx_t *ctx, ngx_int_t rc);
static ngx_int_t ngx_http_idem_run_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_uint_t ngx_http_idem_discarded(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_uint_t ngx_http_idem_is_partial(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_read_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_body_handler(ngx_http_request_t *r);


/*
 * Runs before anything that may refuse the request.  If the request is
 * redirected later, its context shows where it was first.
 */

ngx_int_t
ngx_http_idem_preaccess_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    /*
     * internal: redirected, possibly from a location where the module is
     * enabled
     */

    if ((conf->store == NULL && !r->internal) || r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (r->post_action) {

        if (ctx) {
            ngx_http_idem_post_action(r, ctx);
        }

        return NGX_DECLINED;
    }

    if (ctx) {

        if (ngx_http_idem_at_work(ctx)) {
            /*
             * a handler that delays the request here also watches the client
             */
            ngx_http_idem_guard(r);

            ngx_http_idem_outcome_redirected(r, ctx);

            return ngx_http_idem_redirect_start(r, ctx) == NGX_OK
                   ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_http_idem_change_location(r, ctx);

        return NGX_DECLINED;
    }

    if (conf->store == NULL) {
        return NGX_DECLINED;
    }

    if (conf->own
        || !(r->error_page || r->err_status || ngx_http_idem_may_be_page(r)))
    {
        return ngx_http_idem_create_ctx(r, conf) ? NGX_DECLINED
                                                 : ngx_http_idem_no_page(r);
    }

    /*
     * The request has no context and comes from an error_page: "return" or
     * limit_req may have refused it earlier, and this location serves the
     * error page.  The page must be neither stored nor replaced by a stored
     * response, unless the location itself has an "idempotency" directive.
     */

    ngx_http_idem_not_covered(r, conf);

    return NGX_DECLINED;
}


/*
 * Warns once, since some configurations use "return" and an error_page to
 * choose a location, and expect it to be covered.
 */

static void
ngx_http_idem_not_covered(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_uint_t  warned;

    if (warned || r->content_handler == NULL
        || !ngx_http_idem_covered(r, conf))
    {
        return;
    }

    warned = 1;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: an error_page led a request to location "
                  "\"%V\" that was refused by \"return\" or the like, and "
                  "it is not covered there; if it is meant to be, write "
                  "\"idempotency\" into that location", &clcf->name);
}


/*
 * Never grants access: returns NGX_DECLINED or refuses with 400.  Only used
 * if the key and the bypass depend on the request header alone: variables set
 * by other modules in this phase may not be set yet.
 */

ngx_int_t
ngx_http_idem_access_handler(ngx_http_request_t *r)
{
    ngx_int_t                  rc;
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (conf->store == NULL || !conf->early || r != r->main) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || ctx->stage != NGX_HTTP_IDEM_ADMIT || ctx->admitted) {
        return NGX_DECLINED;
    }

    if (ngx_http_idem_body_pending(r)) {
        /* the body of a refused request is read: only after all checks */
        return NGX_DECLINED;
    }

    rc = ngx_http_idem_admit(r, ctx);

    return (rc == NGX_OK) ? NGX_DECLINED : ngx_http_idem_failed(ctx, rc);
}


ngx_int_t
ngx_http_idem_precontent_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    if (r != r->main) {
        return ngx_http_idem_execute_part(r);
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL) {
        /*
         * the preaccess handler creates a context wherever the module is
         * enabled
         */
        return NGX_DECLINED;
    }

    if (ctx->place.uri_changes != r->uri_changes) {
        ngx_http_idem_change_location(r, ctx);
    }

    return ngx_http_idem_failed(ctx, ngx_http_idem_run(r, ctx));
}


/*
 * Advances the request as far as possible.  NGX_DECLINED: nginx continues
 * with the content handler; NGX_AGAIN: parked, the phases run again later;
 * NGX_DONE: answered, or reading the body; a status: nginx sends the
 * response.
 */

static ngx_int_t
ngx_http_idem_run(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    switch (ctx->stage) {

    case NGX_HTTP_IDEM_ADMIT:

        if (!ctx->admitted) {
            rc = ngx_http_idem_admit(r, ctx);

            if (rc != NGX_OK) {
                return rc;
            }
        }

        if (ctx->stage == NGX_HTTP_IDEM_PASS) {
            return NGX_DECLINED;
        }

        if (ngx_http_idem_discarded(r, ctx)) {
            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                                "the body was discarded");
            return NGX_DECLINED;
        }

        return ngx_http_idem_read_body(r, ctx);

    case NGX_HTTP_IDEM_READ_BODY:

        /* reading the body failed, and an error_page redirected here */

        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS, "the body was not read");
        return NGX_DECLINED;

    case NGX_HTTP_IDEM_BEGIN:
        return ngx_http_idem_run_begin(r, ctx);

    case NGX_HTTP_IDEM_WAIT:

        if (ctx->wait.watch) {
            return NGX_AGAIN;
        }

        return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_LOCK_TIMEOUT);

    case NGX_HTTP_IDEM_EXECUTE:
    case NGX_HTTP_IDEM_HOLD:
    case NGX_HTTP_IDEM_STREAM:
        return ngx_http_idem_execute(r, ctx);

    case NGX_HTTP_IDEM_REPEAT:
        return ngx_http_idem_repeat_reached(r, ctx);

    case NGX_HTTP_IDEM_REPLAY:
    case NGX_HTTP_IDEM_REFUSE:

        if (r->post_action) {
            return NGX_DECLINED;
        }

        return ngx_http_idem_refuse_again(r, ctx);

    default:
        return NGX_DECLINED;
    }
}


/*
 * Refuses a request that has failed before it ran: there is no memory, or its
 * body can't be read.  The request may live on, so it must not be resumed, and
 * an error_page must neither run it nor repeat redirects that are half read.
 */

static ngx_int_t
ngx_http_idem_failed(ngx_http_idem_ctx_t *ctx, ngx_int_t rc)
{
    if (rc < NGX_HTTP_SPECIAL_RESPONSE
        || (ctx->stage > NGX_HTTP_IDEM_BEGIN
            && ctx->stage != NGX_HTTP_IDEM_REPEAT))
    {
        return rc;
    }

    if (ctx->stage == NGX_HTTP_IDEM_READ_BODY
        && rc != NGX_HTTP_INTERNAL_SERVER_ERROR)
    {
        /* the client's fault */
        return rc;
    }

    ngx_http_idem_end(ctx);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_REFUSE, "it failed");

    ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_UNAVAILABLE);
    ctx->answer.status = rc;

    return rc;
}


/*
 * There is no memory for a context, or for the mark that has to be in its
 * place: without it an error_page would run the request, so it gets none.
 */

ngx_int_t
ngx_http_idem_no_page(ngx_http_request_t *r)
{
    r->error_page = 1;

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


static ngx_int_t
ngx_http_idem_run_begin(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->claims.ncovers == 0) {

        if (ngx_http_idem_filters_check(r, ctx) != NGX_OK) {
            return ngx_http_idem_refuse(ctx,
                                       NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE);
        }

        rc = ngx_http_idem_admit_body(r, ctx);

        if (rc != NGX_OK) {
            return rc;
        }

        if (ctx->stage == NGX_HTTP_IDEM_PASS) {
            return NGX_DECLINED;
        }

        if (ngx_http_idem_cover(r, ctx) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (ctx->claims.ncovers == 0) {
            ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_BYPASS);

            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS, "there is no key");
            return NGX_DECLINED;
        }
    }

    return ngx_http_idem_begin(r, ctx);
}


/*
 * A body that is too large is discarded before the module's phases, or not
 * read to its end by the handler of another location, and an error_page may
 * still redirect the request here; it is incomplete then and is not covered.
 * If Lua discards the body of a request that was not redirected, all handlers
 * see an empty body, and it is hashed as such.
 */

static ngx_uint_t
ngx_http_idem_discarded(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_table_elt_t  *length;

    if (r->request_body) {
        return ngx_http_idem_is_partial(r);
    }

    if (!ctx->place.redirected) {
        return 0;
    }

    if (r->discard_body) {
        return 1;
    }

#if (NGX_HTTP_V2)

    if (r->stream && r->stream->skip_data) {
        return 1;
    }

#endif

    length = r->headers_in.content_length;

    return length
           && ngx_atoof(length->value.data, length->value.len)
              != r->headers_in.content_length_n;
}


/*
 * Whether another location has left a part of the body only: it was not read to
 * its end, or was streamed to an upstream (proxy_request_buffering off).
 */

static ngx_uint_t
ngx_http_idem_is_partial(ngx_http_request_t *r)
{
    off_t                     size;
    ngx_chain_t              *cl;
    ngx_http_request_body_t  *rb;

    if (!r->internal) {
        return 0;
    }

    rb = r->request_body;

    /* the rest of a body that Lua has set is 0, and it has received 0 */

    if (rb->rest > 0 || (rb->rest == 0 && rb->received && !rb->last_saved)) {
        return 1;
    }

    if (!r->request_body_no_buffering) {
        return 0;
    }

    size = 0;

    for (cl = rb->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    return size < r->headers_in.content_length_n;
}


static ngx_int_t
ngx_http_idem_read_body(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_READ_BODY, "admitted, and let in");

    if (ngx_http_idem_body_start(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->method == NGX_HTTP_PUT && r->content_handler == NULL) {

        /* dav renames the body file, and reads the body with these flags */

        r->request_body_in_file_only = 1;
        r->request_body_in_persistent_file = 1;
        r->request_body_in_clean_file = 1;
        r->request_body_file_group_access = 1;
        r->request_body_file_log_level = 0;
    }

    /* even with proxy_request_buffering off: the whole body is hashed */

    ctx->reading = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_idem_body_handler);

    ctx->reading = 0;

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    if (ctx->stage == NGX_HTTP_IDEM_BEGIN) {

        /* the body had arrived with the header: the phases just go on */

        r->main->count--;
        return ngx_http_idem_run_begin(r, ctx);
    }

    ngx_http_finalize_request(r, NGX_DONE);
    return NGX_DONE;
}


static void
ngx_http_idem_body_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    /* keep the body for the content handler, even after a redirect */
    r->preserve_body = 1;

    ngx_http_idem_body_ready(r, ngx_http_idem_body_finish(r, ctx));
}


void
ngx_http_idem_body_ready(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    if (rc == NGX_AGAIN) {
        rc = ngx_http_idem_park(r);

        if (rc == NGX_AGAIN) {
            return;
        }

        /* cancel parsing: the request ends */
        ngx_http_idem_turn_cancel(ctx->body.turn);
    }

    if (rc != NGX_OK) {
        rc = ngx_http_idem_failed(ctx, NGX_HTTP_INTERNAL_SERVER_ERROR);
        ngx_http_finalize_request(r, rc);
        return;
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_BEGIN, "the body was read");

    if (ctx->reading) {
        return;
    }

    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


/*
 * Suspends a request; it ends if its client disconnects.  With a post_action,
 * nginx would not end it, but send it on with its operations pending.
 */

ngx_int_t
ngx_http_idem_park(ngx_http_request_t *r)
{
    ngx_event_t  *rev;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    ngx_http_idem_no_post_action(r);

    return NGX_AGAIN;
}


void
ngx_http_idem_resume(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_idem_with_post_action(r);

    ngx_http_set_log_request(c->log, r);

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);

    ngx_http_run_posted_requests(c);
}
