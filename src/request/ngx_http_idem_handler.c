
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The way of a request from its arrival to the content handler.
 *
 * Before the access phase its context is made, and in it it is admitted: no
 * store is touched there, since a client that is about to be refused gets that
 * far; nor is it later, where an error_page may lead it.  In pre-content, after
 * every access check, the body is read, the record is begun, and the request
 * runs, waits, is replayed or refused.  ngx_http_idem_run() is the one
 * function that advances it; whatever was asked asynchronously runs
 * the phases again when it is there.
 *
 * Called by nginx's phases; calls request/ to know what the request is, the
 * store, and response/ for an answer.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_not_covered(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
static ngx_int_t ngx_http_idem_run(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_run_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_uint_t ngx_http_idem_discarded(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_read_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_body_handler(ngx_http_request_t *r);


/*
 * Before anything that may refuse the request has had its say: what comes to
 * another location later on is known to have been here.
 */

ngx_int_t
ngx_http_idem_preaccess_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    /* internal: it may have come here from a location where it is on */

    if ((conf->store == NULL && !r->internal)
        || r != r->main || r->post_action)
    {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx) {

        if (ngx_http_idem_at_work(ctx)) {
            /* what may delay it here looks at the client, too */
            ngx_http_idem_guard(r);
        }

        ngx_http_idem_arrive(r, ctx);

        if (ngx_http_idem_move_start(r, ctx) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_DECLINED;
    }

    if (conf->store == NULL) {
        return NGX_DECLINED;
    }

    if (conf->own
        || !(r->error_page || r->err_status || ngx_http_idem_may_be_page(r)))
    {
        return (ngx_http_idem_create_ctx(r, conf) == NULL)
               ? NGX_HTTP_INTERNAL_SERVER_ERROR : NGX_DECLINED;
    }

    /*
     * It was seen in no location before, and comes from an error_page:
     * "return" or limit_req may have refused it ahead of this, and here is the
     * page that says so.  It is not to be stored, nor to be replaced by what
     * is, unless this location itself was told to.
     */

    ngx_http_idem_not_covered(r, conf);

    return NGX_DECLINED;
}


/*
 * Some use "return" and an error_page to choose a location, and expect it to
 * be covered as any other.
 */

static void
ngx_http_idem_not_covered(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_uint_t  told;

    if (told || r->content_handler == NULL
        || !ngx_http_idem_covered(r, conf))
    {
        return;
    }

    told = 1;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: an error_page led a request to location "
                  "\"%V\" that was refused by \"return\" or the like, and "
                  "it is not covered there; if it is meant to be, write "
                  "\"idempotency\" into that location", &clcf->name);
}


/*
 * Never grants access: it declines, or answers 400.  Only where the key and
 * the bypass are of the request's own header: what another module sets in
 * this phase may not be there yet.
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

    if (ctx == NULL || ctx->phase != NGX_HTTP_IDEM_ADMIT
        || ctx->admitted)
    {
        return NGX_DECLINED;
    }

    rc = ngx_http_idem_admit(r, ctx);

    return (rc == NGX_OK) ? NGX_DECLINED : rc;
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
        /* preaccess made one wherever it is on */
        return NGX_DECLINED;
    }

    ngx_http_idem_arrive(r, ctx);

    return ngx_http_idem_run(r, ctx);
}


/*
 * Advances the request as far as it can go now.  NGX_DECLINED: nginx goes on
 * to the content; NGX_AGAIN: parked, the phases are run again later; NGX_DONE:
 * answered, or reading the body; a status: nginx makes the answer.
 */

static ngx_int_t
ngx_http_idem_run(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    switch (ctx->phase) {

    case NGX_HTTP_IDEM_ADMIT:

        if (!ctx->admitted) {
            rc = ngx_http_idem_admit(r, ctx);

            if (rc != NGX_OK) {
                return rc;
            }
        }

        if (ctx->phase == NGX_HTTP_IDEM_PASS) {
            return NGX_DECLINED;
        }

        if (ngx_http_idem_discarded(r, ctx)) {
            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                                "the body was discarded");
            return NGX_DECLINED;
        }

        return ngx_http_idem_read_body(r, ctx);

    case NGX_HTTP_IDEM_READ_BODY:

        /* reading failed, and an error_page led here */

        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                            "the body was not read");
        return NGX_DECLINED;

    case NGX_HTTP_IDEM_BEGIN:

        rc = ngx_http_idem_run_begin(r, ctx);

        if (rc >= NGX_HTTP_SPECIAL_RESPONSE
            && ctx->phase == NGX_HTTP_IDEM_BEGIN)
        {
            /*
             * There was no memory.  The request may last for a while: nobody
             * is to resume it, and no error_page to run it
             */

            ngx_http_idem_give_up(ctx);

            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_REFUSE,
                                "it failed");

            ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_UNAVAILABLE);
            ctx->answer.status = rc;
        }

        return rc;

    case NGX_HTTP_IDEM_WAIT:

        if (ctx->wait.watch) {
            return NGX_AGAIN;
        }

        return ngx_http_idem_refuse(r, ctx,
                                    NGX_HTTP_IDEM_PROBLEM_LOCK_TIMEOUT);

    case NGX_HTTP_IDEM_EXECUTE:
    case NGX_HTTP_IDEM_HOLD:
    case NGX_HTTP_IDEM_STREAM:
        return ngx_http_idem_execute(r, ctx);

    case NGX_HTTP_IDEM_FOLLOW:
        return ngx_http_idem_follow(r, ctx);

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


static ngx_int_t
ngx_http_idem_run_begin(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->claims.ncovers == 0) {

        if (ngx_http_idem_filters_check(r, ctx) != NGX_OK) {
            return ngx_http_idem_refuse(r, ctx,
                               NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE);
        }

        rc = ngx_http_idem_admit_body(r, ctx);

        if (rc != NGX_OK) {
            return rc;
        }

        if (ctx->phase == NGX_HTTP_IDEM_PASS) {
            return NGX_DECLINED;
        }

        if (ngx_http_idem_cover(r, ctx) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (ctx->claims.ncovers == 0) {
            ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_BYPASS);

            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                                "there is no key");
            return NGX_DECLINED;
        }
    }

    return ngx_http_idem_begin(r, ctx);
}


/*
 * A body that is too large is thrown away before any phase of ours, and an
 * error_page may lead here all the same.  What is left of the request is not
 * what the client means by its key.  A body that Lua throws away where the
 * request came to by itself is another matter: there it is what everybody
 * gets to see, and it counts as an empty one.
 */

static ngx_uint_t
ngx_http_idem_discarded(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_table_elt_t  *length;

    if (r->request_body || !ctx->place.led) {
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


static ngx_int_t
ngx_http_idem_read_body(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_READ_BODY,
                        "admitted, and let in");

    if (ngx_http_idem_body_start(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->method == NGX_HTTP_PUT && r->content_handler == NULL) {

        /* dav makes the file of the body, and would have read it like this */

        r->request_body_in_file_only = 1;
        r->request_body_in_persistent_file = 1;
        r->request_body_in_clean_file = 1;
        r->request_body_file_group_access = 1;
        r->request_body_file_log_level = 0;
    }

    /* whatever proxy_request_buffering says: the body counts as a whole */

    rc = ngx_http_read_client_request_body(r, ngx_http_idem_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);
    return NGX_DONE;
}


static void
ngx_http_idem_body_handler(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    /* the content handler is to find it, even after a redirect */
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

        /* nobody is to go on with it */
        ngx_http_idem_rest_cleanup(ctx);
    }

    if (rc != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_BEGIN,
                        "the body was read");

    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


/* puts a request aside; a client that goes away ends it */

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

    return NGX_AGAIN;
}


void
ngx_http_idem_resume(ngx_http_request_t *r)
{
    ngx_connection_t  *c;

    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);

    ngx_http_run_posted_requests(c);
}
