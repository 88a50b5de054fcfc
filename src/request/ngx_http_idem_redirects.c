
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
 * Called by the handlers.  The capture writes the header with the redirects,
 * and the replay reads it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <openssl/crypto.h>

#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN                                   \
    (2 * NGX_HTTP_IDEM_IDENTITY_LEN)

#define NGX_HTTP_IDEM_REDIRECT_PLACE_LEN                                      \
    (sizeof(" lp") - 1 + NGX_HTTP_IDEM_PLACE_ID_LEN)


static void ngx_http_idem_errors(ngx_http_request_t *r,
    ngx_http_idem_errors_t *errors);
static ngx_uint_t ngx_http_idem_by_page(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_errors_t *errors);
static ngx_int_t ngx_http_idem_redirect_copy(ngx_pool_t *pool,
    ngx_str_t *to, ngx_str_t *from);
static ngx_int_t ngx_http_idem_redirect_identity(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char *who);
static size_t ngx_http_idem_redirect_len(ngx_str_t *s);
static u_char *ngx_http_idem_redirect_write(u_char *p, u_char letter,
    ngx_str_t *s);
static ngx_int_t ngx_http_idem_redirects_field(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char letter, ngx_str_t *field);
static ngx_int_t ngx_http_idem_repeat_failed(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
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

    if (!ngx_http_idem_at_work(ctx)
        || ctx->work.redirect.target.len || r->post_action)
    {
        return NGX_OK;
    }

    redirect = &ctx->work.redirect;
    redirect->get = (r->method_name.data == ngx_http_core_get_method.data);

    ngx_http_idem_errors(r, &redirect->errors);

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    /* nginx forgets that of the "if" in a named location */

    if (clcf->named || (clcf->noname && clcf->name.len
                        && clcf->name.data[0] == '@'))
    {
        ngx_str_null(&redirect->args);

        return ngx_http_idem_redirect_copy(r->pool, &redirect->target,
                                           &clcf->name);
    }

    if (ngx_http_idem_redirect_copy(r->pool, &redirect->args, &r->args)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_idem_redirect_copy(r->pool, &redirect->target, &r->uri);
}


ngx_int_t
ngx_http_idem_redirected(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = (r == r->main) ? ngx_http_idem_get_ctx(r) : NULL;

    if (ctx == NULL) {
        return NGX_OK;
    }

    if (ngx_http_idem_at_work(ctx)) {
        ngx_http_idem_outcome_left(r, ctx);
    }

    if (ctx->stage == NGX_HTTP_IDEM_REPEAT) {
        ngx_http_idem_ask_redirected(r, ctx);
    }

    return ngx_http_idem_redirect_start(r, ctx);
}


static void
ngx_http_idem_errors(ngx_http_request_t *r, ngx_http_idem_errors_t *errors)
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

    return r->err_status != errors->err_status
           || r->error_page != errors->error_page
           || (r->method_name.data == ngx_http_core_get_method.data
               && r->method_name.data != errors->method_name)
           || (clcf->named
               && ctx->place.let_in_before != r->uri_changes + 1
               && ngx_http_idem_may_be_page(r));
}


static ngx_int_t
ngx_http_idem_redirect_copy(ngx_pool_t *pool, ngx_str_t *to, ngx_str_t *from)
{
    to->len = 0;

    to->data = ngx_pnalloc(pool, from->len + 1);
    if (to->data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(to->data, from->data, from->len);
    to->len = from->len;

    return NGX_OK;
}


/* the access checks of the new location passed */

ngx_int_t
ngx_http_idem_redirect_end(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_idem_loc_conf_t  *conf;
    ngx_http_idem_redirect_t  *redirect;

    if (r->post_action) {
        return NGX_OK;
    }

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

    *redirect = ctx->work.redirect;
    redirect->location = clcf->name;
    redirect->place = conf->place;
    redirect->page = ngx_http_idem_by_page(r, ctx, &redirect->errors);

    ngx_str_null(&ctx->work.redirect.target);

    return NGX_OK;
}


/*
 * The identity may be known only in the last location.  It is evaluated by
 * the configuration there if the module is enabled, otherwise by that of the
 * first location, with the variables that access checks have set meanwhile.
 */

static ngx_int_t
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
 * Writes the redirects as one more header of the stored response, which is not
 * sent to clients: escaped fields with a letter each, separated by spaces.  Of
 * two fields "w" the first is the place, of two fields "l" the id, and whether
 * an error page led there; versions without them ignore these.
 */

ngx_int_t
ngx_http_idem_redirects_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers)
{
    size_t                     len;
    u_char                    *p;
    ngx_uint_t                 i;
    ngx_http_idem_redirect_t  *redirect;
    ngx_http_idem_header_t    *kept;

    if (ctx->work.redirects == NULL || ctx->work.redirects->nelts == 0) {
        return NGX_OK;
    }

    redirect = ctx->work.redirects->elts;
    len = 1 + NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN
          + ngx_http_idem_place_len(redirect);

    for (i = 0; i < ctx->work.redirects->nelts; i++) {
        len += ngx_http_idem_redirect_len(&redirect[i].target)
               + ngx_http_idem_redirect_len(&redirect[i].args)
               + ngx_http_idem_redirect_len(&redirect[i].location)
               + NGX_HTTP_IDEM_REDIRECT_PLACE_LEN + 2;
    }

    kept = ngx_array_push(headers);
    if (kept == NULL) {
        return NGX_ERROR;
    }

    kept->kind = NGX_HTTP_IDEM_HEADER_PLAIN;
    kept->valid = 1;
    ngx_str_set(&kept->name, NGX_HTTP_IDEM_REDIRECTS);

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    kept->value.data = p;

    p = ngx_http_idem_place_write(p, redirect);

    *p++ = 'w';

    if (ctx->work.redirects->nelts == 1 && redirect->begin) {

        /* the identity was evaluated there at begin */

        ngx_hex_dump(p, ctx->claims.primary->claim.identity,
                     NGX_HTTP_IDEM_IDENTITY_LEN);

    } else if (ngx_http_idem_redirect_identity(r, ctx, p) != NGX_OK) {
        return NGX_ERROR;
    }

    p += NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN;

    for (i = 0; i < ctx->work.redirects->nelts; i++) {
        p = ngx_http_idem_redirect_write(p, 't', &redirect[i].target);
        p = ngx_http_idem_redirect_write(p, 'a', &redirect[i].args);
        p = ngx_sprintf(p, " l%016xL%s", redirect[i].place,
                        redirect[i].page ? "p" : "");
        p = ngx_http_idem_redirect_write(p, 'l', &redirect[i].location);

        if (redirect[i].get) {
            *p++ = ' ';
            *p++ = 'g';
        }
    }

    kept->value.len = p - kept->value.data;

    return NGX_OK;
}


static size_t
ngx_http_idem_redirect_len(ngx_str_t *s)
{
    return 2 + s->len
           + 2 * ngx_escape_uri(NULL, s->data, s->len,
                                NGX_ESCAPE_URI_COMPONENT);
}


static u_char *
ngx_http_idem_redirect_write(u_char *p, u_char letter, ngx_str_t *s)
{
    *p++ = ' ';
    *p++ = letter;

    return (u_char *) ngx_escape_uri(p, s->data, s->len,
                                     NGX_ESCAPE_URI_COMPONENT);
}


/*
 * NGX_DECLINED if there are no redirects: the response was made in the
 * location of the request.
 */

ngx_int_t
ngx_http_idem_repeat_start(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover, ngx_http_idem_response_t *response)
{
    ngx_uint_t                 i;
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_redirect_t  *step;
    ngx_http_idem_server_t    *server;

    ctx = cover->ctx;

    if (ctx->repeat.cover || ngx_http_idem_is_dry_run(ctx)) {
        return NGX_DECLINED;
    }

    for (i = 0; i < response->nheaders; i++) {

        if (!ngx_http_idem_is_redirects(&response->headers[i].name)) {
            continue;
        }

        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_REPEAT,
                            "there is a response of another location");

        ctx->repeat.cover = cover;

        switch (ngx_http_idem_redirects_read(r, ctx,
                                             &response->headers[i].value))
        {
        case NGX_OK:

            step = ctx->repeat.steps->elts;

            if (!step->begin && ngx_http_idem_is_past(r, ctx)) {
                return ngx_http_idem_repeat_failed(r, ctx);
            }

            server = ngx_http_idem_other_server(r, step->server);

            if (server && ngx_http_idem_place_closed(r, server)) {
                return ngx_http_idem_repeat_failed(r, ctx);
            }

            if (server) {
                r->srv_conf = server->cscf->ctx->srv_conf;

            } else if (ngx_http_idem_is_asked(r, step)) {

                if (!ngx_http_idem_is_here(r, step)) {
                    return ngx_http_idem_repeat_failed(r, ctx);
                }

                /* ... and was let in */

                if (++ctx->repeat.step == ctx->repeat.steps->nelts) {
                    return NGX_DECLINED;
                }
            }

            return ngx_http_idem_repeat_redirect(r, ctx);

        case NGX_DECLINED:
            return ngx_http_idem_refuse(r, ctx,
                               NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE);

        default:
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_idem_is_past(r, ctx) ? ngx_http_idem_repeat_failed(r, ctx)
                                         : NGX_DECLINED;
}


/* a conflict that discloses nothing about the original */

static ngx_int_t
ngx_http_idem_repeat_failed(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ctx->answer.foreign = 1;

    return ngx_http_idem_refuse(r, ctx, NGX_HTTP_IDEM_PROBLEM_CONFLICT);
}


/* NGX_DECLINED if it can't be read */

ngx_int_t
ngx_http_idem_redirects_read(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value)
{
    u_char    *p, *last, *start;
    ngx_int_t  rc;
    ngx_str_t  field;

    ngx_str_null(&ctx->repeat.where);
    ngx_str_null(&ctx->repeat.identity);

    ctx->repeat.steps = ngx_array_create(r->pool, 1,
                                         sizeof(ngx_http_idem_redirect_t));
    if (ctx->repeat.steps == NULL) {
        return NGX_ERROR;
    }

    p = value->data;
    last = value->data + value->len;

    while (p < last) {
        start = p;

        while (p < last && *p != ' ') {
            p++;
        }

        if (p == start) {
            return NGX_DECLINED;
        }

        field.data = start + 1;
        field.len = p - field.data;

        rc = ngx_http_idem_redirects_field(r, ctx, *start, &field);

        if (rc != NGX_OK) {
            return rc;
        }

        p++;
    }

    if (ctx->repeat.steps->nelts == 0 || ctx->repeat.identity.len == 0) {
        return NGX_DECLINED;
    }

    return ctx->repeat.where.len
           ? ngx_http_idem_place_read(r, &ctx->repeat.where,
                                      ctx->repeat.steps->elts)
           : NGX_OK;
}


static ngx_int_t
ngx_http_idem_redirects_field(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char letter, ngx_str_t *field)
{
    u_char                    *src, *dst;
    ngx_str_t                  s;
    ngx_http_idem_redirect_t  *step;

    if (letter == 'w') {
        ctx->repeat.where = ctx->repeat.identity;
        ctx->repeat.identity = *field;
        return NGX_OK;
    }

    s.data = ngx_pnalloc(r->pool, field->len + 1);
    if (s.data == NULL) {
        return NGX_ERROR;
    }

    src = field->data;
    dst = s.data;

    ngx_unescape_uri(&dst, &src, field->len, 0);

    s.len = dst - s.data;

    if (letter == 't') {
        step = ngx_array_push(ctx->repeat.steps);
        if (step == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(step, sizeof(ngx_http_idem_redirect_t));
        step->target = s;

        return s.len ? NGX_OK : NGX_DECLINED;
    }

    if (ctx->repeat.steps->nelts == 0) {
        return NGX_DECLINED;
    }

    step = ctx->repeat.steps->elts;
    step += ctx->repeat.steps->nelts - 1;

    switch (letter) {

    case 'a':
        step->args = s;
        return NGX_OK;

    case 'l':

        if (step->location.len >= NGX_HTTP_IDEM_PLACE_ID_LEN) {
            step->place = ngx_http_idem_place_id(&step->location, 0);
            step->page = step->location.len > NGX_HTTP_IDEM_PLACE_ID_LEN;
        }

        step->location = s;
        return NGX_OK;

    case 'g':
        step->get = 1;
        return NGX_OK;

    default:
        return NGX_DECLINED;
    }
}


static ngx_int_t
ngx_http_idem_repeat_redirect(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_redirect_t  *step;

    step = ctx->repeat.steps->elts;
    step += ctx->repeat.step;

    if (step->begin && ngx_http_idem_ask(r, ctx, step) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (step->get) {
        r->method = NGX_HTTP_GET;
        r->method_name = ngx_http_core_get_method;
    }

    ngx_http_idem_errors(r, &ctx->repeat.errors);

    /* as try_files does */

    if (step->target.data[0] == '@') {
        (void) ngx_http_named_location(r, &step->target);

    } else {
        (void) ngx_http_internal_redirect(r, &step->target,
                                          step->begin ? &ctx->repeat.args
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

    step = ctx->repeat.steps->elts;
    step += ctx->repeat.step;

    if (ngx_http_idem_by_page(r, ctx, &ctx->repeat.errors) != step->page
        || (step->place ? !ngx_http_idem_is_here(r, step)
                        : clcf->name.len != step->location.len
                          || ngx_strncmp(clcf->name.data, step->location.data,
                                         clcf->name.len)
                             != 0))
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
            return ngx_http_idem_repeat_failed(r, ctx);
        }

        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency: a stored response was made in location "
                      "\"%V\", its retry came to \"%V\" and is refused, record "
                      "%*xs", &step->location, &clcf->name, (size_t) 8,
                      ctx->repeat.cover->id);

        return ngx_http_idem_refuse(r, ctx,
                                    NGX_HTTP_IDEM_PROBLEM_RESPONSE_NOT_KEPT);
    }

    if ((step->begin && ctx->repeat.again)
        || ++ctx->repeat.step < ctx->repeat.steps->nelts)
    {
        return ngx_http_idem_repeat_redirect(r, ctx);
    }

    if (ngx_http_idem_redirect_identity(r, ctx, who) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idem_ask_end(r, ctx);

    if (ctx->repeat.identity.len != sizeof(who)
        || CRYPTO_memcmp(ctx->repeat.identity.data, who, sizeof(who)) != 0)
    {
        ctx->answer.foreign = 1;

        return ngx_http_idem_refuse(r, ctx, NGX_HTTP_IDEM_PROBLEM_CONFLICT);
    }

    return ngx_http_idem_replay(r, ctx->repeat.cover);
}
