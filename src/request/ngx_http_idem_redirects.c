
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Internal redirects of a request after its begin.
 *
 * "index", error_page, X-Accel-Redirect, ngx.exec() and the like redirect a
 * request while its content handler runs, and the new location may have
 * access checks of its own.  The original request passed those checks; a
 * retry has not.  So the redirects are stored with the response, and a replay
 * repeats them first: nginx checks the access to each location on the way,
 * and the response is sent from the last one.  A client that is refused there
 * gets the same answer as for an unused key.
 *
 * If the same request could begin elsewhere, the location of its begin is the
 * first redirect: see ..._place.c.
 *
 * A redirect starts when nginx enters a location and ends when the access
 * checks have passed.  Whatever the location does to the request in between
 * (rewrite, try_files) happens again.  If the retry reaches another location
 * nevertheless, nothing is replayed.
 *
 * Called by the handlers, and by the replay.  The redirects are stored as a
 * header: ..._redirects_header.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <openssl/crypto.h>

#include "request/ngx_http_idem_request.h"


static ngx_uint_t ngx_http_idem_by_page(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_errors_t *errors);
static ngx_int_t ngx_http_idem_repeat_first(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_repeat_failed(ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_repeat_redirect(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/*
 * nginx enters a location.  The first call for a location counts: for a URI
 * that is before rewrites; a named location is noticed later.
 */

ngx_int_t
ngx_http_idem_redirect_start(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_idem_redirect_t  *redirect;

    if (ctx->work.redirect) {
        return NGX_OK;
    }

    redirect = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_redirect_t));
    if (redirect == NULL) {
        return NGX_ERROR;
    }

    redirect->get = (r->method_name.data == ngx_http_core_get_method.data);

    ngx_http_idem_errors_save(r, &redirect->errors);

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    /* the location of an "if" in a named location has its name only */

    if (clcf->named || (clcf->noname && clcf->name.len
                        && clcf->name.data[0] == '@'))
    {
        redirect->target = clcf->name;
        ctx->work.redirect = redirect;
        return NGX_OK;
    }

    redirect->args.len = r->args.len;
    redirect->args.data = ngx_pstrdup(r->pool, &r->args);
    redirect->target.data = ngx_pstrdup(r->pool, &r->uri);

    if (redirect->args.data == NULL || redirect->target.data == NULL) {
        return NGX_ERROR;
    }

    redirect->target.len = r->uri.len;
    ctx->work.redirect = redirect;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_follow_redirect(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = (r == r->main) ? ngx_http_idem_get_ctx(r) : NULL;

    if (ctx == NULL) {
        return NGX_OK;
    }

    if (r->post_action) {
        ngx_http_idem_post_action(r, ctx);
        return NGX_OK;
    }

    if (ngx_http_idem_at_work(ctx)) {
        ngx_http_idem_outcome_redirected(r, ctx);

        return ngx_http_idem_redirect_start(r, ctx);
    }

    if (ctx->stage == NGX_HTTP_IDEM_REPEAT) {
        ngx_http_idem_ask_redirected(r, ctx);
    }

    return NGX_OK;
}


void
ngx_http_idem_errors_save(ngx_http_request_t *r,
    ngx_http_idem_errors_t *errors)
{
    errors->err_status = r->err_status;
    errors->error_page = r->error_page;
    errors->method_name = r->method_name.data;
}


/*
 * Whether an error page led to the location since then, not the redirect or
 * try_files: the page may be in the location that refused the request, or the
 * named location that try_files leads to.  If nginx leaves no mark, each named
 * location that may be a page counts as one.
 */

static ngx_uint_t
ngx_http_idem_by_page(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_errors_t *errors)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    return ngx_http_idem_errors_differ(r, errors)
           || (r->method_name.data == ngx_http_core_get_method.data
               && r->method_name.data != errors->method_name)
           || (clcf->named
               && ctx->place.granted_before != r->uri_changes + 1
               && ngx_http_idem_may_be_page(r));
}


/* the access checks of the new location passed */

ngx_int_t
ngx_http_idem_redirect_end(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_idem_loc_conf_t  *conf;
    ngx_http_idem_redirect_t  *redirect;

    if (ngx_http_idem_redirect_start(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->work.redirects == NULL) {
        ctx->work.redirects =
            ngx_array_create(r->pool, 1, sizeof(ngx_http_idem_redirect_t));
        if (ctx->work.redirects == NULL) {
            return NGX_ERROR;
        }
    }

    redirect = ngx_array_push(ctx->work.redirects);
    if (redirect == NULL) {
        return NGX_ERROR;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    *redirect = *ctx->work.redirect;
    redirect->location = clcf->name;
    redirect->place = conf->place;
    redirect->page = ngx_http_idem_by_page(r, ctx, &redirect->errors);

    ctx->work.redirect = NULL;

    return NGX_OK;
}


/*
 * The identity may be known only in the last location.  It is evaluated by
 * the configuration there if the module is enabled, otherwise by that of the
 * first location, with the variables that access checks have set meanwhile.
 */

ngx_int_t
ngx_http_idem_redirect_identity(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char *who)
{
    u_char                     hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (ngx_http_idem_identity(r, conf->store ? conf : ctx->conf, hash)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_hex_dump(who, hash, NGX_HTTP_IDEM_IDENTITY_LEN);

    return NGX_OK;
}


/*
 * NGX_DECLINED if there are no redirects: the response was made in the
 * location of the request.
 */

ngx_int_t
ngx_http_idem_repeat_start(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover, ngx_http_idem_response_t *response)
{
    ngx_int_t             rc;
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    if ((ctx->repeat && ctx->repeat->cover) || ngx_http_idem_is_dry_run(ctx)) {
        return NGX_DECLINED;
    }

    rc = ngx_http_idem_redirects_read(r, ctx, response);

    if (rc == NGX_DONE) {
        return ngx_http_idem_is_elsewhere(r, cover)
               ? ngx_http_idem_repeat_failed(ctx) : NGX_DECLINED;
    }

    if (ctx->repeat == NULL) {
        /* no memory for it */
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_REPEAT,
                        "there is a response of another location");
    ctx->repeat->cover = cover;

    switch (rc) {

    case NGX_OK:
        return ngx_http_idem_repeat_first(r, ctx);

    case NGX_DECLINED:
        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE);

    default: /* NGX_ERROR */
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
}


/*
 * NGX_DECLINED if the retry is where the response was made, since it asks for
 * the same
 */

static ngx_int_t
ngx_http_idem_repeat_first(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                  rc;
    ngx_http_idem_redirect_t  *step;
    ngx_http_idem_server_t    *server;

    step = ctx->repeat->steps->elts;

    if (!step->begin && ngx_http_idem_is_elsewhere(r, ctx->repeat->cover)) {
        return ngx_http_idem_repeat_failed(ctx);
    }

    server = ngx_http_idem_other_server(r, step->server);

    if (server) {

        if (ngx_http_idem_server_refuses(r, server)) {
            return ngx_http_idem_repeat_failed(ctx);
        }

        r->srv_conf = server->cscf->ctx->srv_conf;

        return ngx_http_idem_repeat_redirect(r, ctx);
    }

    rc = ngx_http_idem_same_target(r, step);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_OK) {

        if (!ngx_http_idem_same_place(r, step)) {
            return ngx_http_idem_repeat_failed(ctx);
        }

        /* ... and was let in */

        if (++ctx->repeat->step == ctx->repeat->steps->nelts) {
            return NGX_DECLINED;
        }
    }

    return ngx_http_idem_repeat_redirect(r, ctx);
}


/* a conflict that discloses nothing about the original */

static ngx_int_t
ngx_http_idem_repeat_failed(ngx_http_idem_ctx_t *ctx)
{
    ctx->answer.undisclosed = 1;

    return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_CONFLICT);
}


static ngx_int_t
ngx_http_idem_repeat_redirect(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                  rc;
    ngx_http_idem_redirect_t  *step;

    step = ctx->repeat->steps->elts;
    step += ctx->repeat->step;

    rc = step->begin ? ngx_http_idem_ask(r, ctx, step) : NGX_OK;

    if (rc == NGX_DECLINED) {
        return ngx_http_idem_repeat_failed(ctx);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (step->get) {
        r->method = NGX_HTTP_GET;
        r->method_name = ngx_http_core_get_method;
    }

    ngx_http_idem_errors_save(r, &ctx->repeat->errors);

    /* as try_files does */

    if (step->target.data[0] == '@') {
        (void) ngx_http_named_location(r, &step->target);

    } else {
        (void) ngx_http_internal_redirect(r, &step->target,
                                          step->begin ? &ctx->repeat->args
                                                      : &step->args);
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


/* the access checks passed in the location that was reached */

ngx_int_t
ngx_http_idem_repeat_reached(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                     who[NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN];
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_idem_redirect_t  *step;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    step = ctx->repeat->steps->elts;
    step += ctx->repeat->step;

    if (ngx_http_idem_by_page(r, ctx, &ctx->repeat->errors) != step->page
        || (step->place ? !ngx_http_idem_same_place(r, step)
                        : !ngx_http_idem_same_text(&clcf->name,
                                                   &step->location)))
    {
        ngx_http_idem_ask_end(r, ctx);

        /*
         * refused by the access checks, and redirected to a static error page
         */

        if (r->content_handler == NULL
            && (r->error_page || r->err_status)
            && (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)))
        {
            return NGX_DECLINED;
        }

        if (step->begin) {
            return ngx_http_idem_repeat_failed(ctx);
        }

        ngx_http_idem_log_repeated(NGX_LOG_WARN, r->connection->log,
                      ctx->repeat->cover->id,
                      "idempotency: a stored response was made in location "
                      "\"%V\", its retry came to \"%V\" and is refused",
                      &step->location, &clcf->name);

        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_RESPONSE_NOT_KEPT);
    }

    if ((step->begin && ctx->repeat->again)
        || ++ctx->repeat->step < ctx->repeat->steps->nelts)
    {
        return ngx_http_idem_repeat_redirect(r, ctx);
    }

    if (ngx_http_idem_redirect_identity(r, ctx, who) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idem_ask_end(r, ctx);

    if (ctx->repeat->identity.len != sizeof(who)
        || CRYPTO_memcmp(ctx->repeat->identity.data, who, sizeof(who)) != 0)
    {
        return ngx_http_idem_repeat_failed(ctx);
    }

    return ngx_http_idem_replay(r, ctx->repeat->cover);
}
