
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The place of begin: the location and the server where a request began, if a
 * retry of it may begin elsewhere.
 *
 * Usually the URI decides on the location, and the URI is part of the
 * fingerprint.  But a request may have been redirected before its begin, by
 * "rewrite" in an "if", try_files or Lua, depending on a cookie, an address or
 * anything else; or the URI is not part of the fingerprint.  Then the place is
 * stored with the response as the first of its redirects, together with the
 * URI that was requested.  A retry in another location requests that URI, as
 * its client could have done; so does one with another URI in the same
 * location.
 * If it does not reach the same location, the response is not for this client:
 * a conflict that discloses nothing.
 *
 * The address where a request came in is not part of the fingerprint either,
 * and may select another server.  Then the id of the server is stored, too,
 * and the URI is requested in that server.
 *
 * Called when a request is executed, by the capture, and before a replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* a header of the stored response that is never sent */
#define NGX_HTTP_IDEM_PLACE      "X-Idempotency-Place"
#define NGX_HTTP_IDEM_PLACE_LEN  (sizeof(NGX_HTTP_IDEM_PLACE) - 1)

/* its value: the ids of the server and of the location in hex */
#define NGX_HTTP_IDEM_PLACE_ID_LEN  16

/* in front of details: no list of paths begins with it */
#define NGX_HTTP_IDEM_DETAILS_MARK  'P'
#define NGX_HTTP_IDEM_DETAILS_HEAD  (1 + sizeof(uint64_t))


static ngx_int_t ngx_http_idem_asked(ngx_http_request_t *r, ngx_str_t *uri,
    ngx_str_t *args);
static ngx_uint_t ngx_http_idem_may_differ(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_request_uri(ngx_http_request_t *r, ngx_str_t *uri);
static ngx_uint_t ngx_http_idem_same_text(ngx_str_t *a, ngx_str_t *b);
static ngx_http_idem_header_t *ngx_http_idem_find_place(
    ngx_http_idem_response_t *response);
static uint64_t ngx_http_idem_place_id(ngx_http_idem_header_t *kept,
    ngx_uint_t n);
static ngx_uint_t ngx_http_idem_is_place(ngx_str_t *name);
static uint64_t ngx_http_idem_details_id(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_place_decode(ngx_http_request_t *r,
    ngx_http_idem_found_t *found, ngx_http_idem_response_t *response);


ngx_int_t
ngx_http_idem_place_begin(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_redirect_t  *redirect;
    ngx_http_idem_loc_conf_t  *conf;

    if (!ngx_http_idem_may_differ(r, ctx)) {
        return NGX_OK;
    }

    if (ngx_http_idem_redirect_end(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    redirect = ctx->work.redirects->elts;
    redirect->begin = 1;
    redirect->place = conf->place;

    return ngx_http_idem_asked(r, &redirect->target, &redirect->args);
}


/* the requested URI, parsed again: r->uri may have been rewritten */

static ngx_int_t
ngx_http_idem_asked(ngx_http_request_t *r, ngx_str_t *uri, ngx_str_t *args)
{
    size_t                     len;
    u_char                    *p;
    ngx_http_request_t        *asked;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    len = r->unparsed_uri.len;

    asked = ngx_pcalloc(r->pool, sizeof(ngx_http_request_t));
    p = ngx_pnalloc(r->pool, 2 * (len + 2));

    if (asked == NULL || p == NULL) {
        return NGX_ERROR;
    }

    asked->connection = r->connection;
    asked->uri_start = p;

    /* "POST http://host?args" has no path */

    if (len == 0 || r->unparsed_uri.data[0] != '/') {
        *p++ = '/';
    }

    asked->uri_end = ngx_cpymem(p, r->unparsed_uri.data, len);
    *asked->uri_end = ' ';
    asked->uri.data = asked->uri_end + 1;

    if (ngx_http_parse_complex_uri(asked, cscf->merge_slashes) != NGX_OK
        || asked->uri.len == 0)
    {
        return NGX_ERROR;
    }

    if (asked->args_start) {
        asked->args.data = asked->args_start;
        asked->args.len = asked->uri_end - asked->args_start;
    }

    *uri = asked->uri;
    *args = asked->args;

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_may_differ(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    uint64_t                id;
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    if (r->uri_changes != NGX_HTTP_MAX_URI_CHANGES + 1
        || ngx_http_idem_server_id(r, &id) == NGX_OK)
    {
        return 1;
    }

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (cover->derived ? cover->dedupe->members != NULL
                           : ngx_http_idem_key_alone(cover))
        {
            return 1;
        }
    }

    return 0;
}


/* marks the first redirect as a place: ids of the server, or 0, and location */

ngx_int_t
ngx_http_idem_place_header(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_array_t *headers)
{
    uint64_t                   id;
    ngx_http_idem_redirect_t  *redirect;
    ngx_http_idem_header_t    *kept;

    redirect = ctx->work.redirects ? ctx->work.redirects->elts : NULL;

    if (redirect == NULL || !redirect->begin) {
        return NGX_OK;
    }

    if (ngx_http_idem_server_id(r, &id) != NGX_OK) {
        id = 0;
    }

    kept = ngx_array_push(headers);
    if (kept == NULL) {
        return NGX_ERROR;
    }

    kept->kind = NGX_HTTP_IDEM_HEADER_PLAIN;
    kept->valid = 1;
    ngx_str_set(&kept->name, NGX_HTTP_IDEM_PLACE);

    kept->value.len = 2 * NGX_HTTP_IDEM_PLACE_ID_LEN;
    kept->value.data = ngx_pnalloc(r->pool, kept->value.len);
    if (kept->value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(kept->value.data, "%016xL%016xL", id, redirect->place);

    return NGX_OK;
}


/* whether the request is in the location where the original began */

ngx_uint_t
ngx_http_idem_is_here(ngx_http_request_t *r, ngx_http_idem_redirect_t *step)
{
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    return step->begin && conf->place == step->place;
}


/* whether the same URI was requested */

ngx_uint_t
ngx_http_idem_is_asked(ngx_http_request_t *r, ngx_http_idem_redirect_t *step)
{
    ngx_str_t  uri, args;

    return step->begin
           && (ngx_http_idem_asked(r, &uri, &args) != NGX_OK
               || (ngx_http_idem_same_text(&uri, &step->target)
                   && ngx_http_idem_same_text(&args, &step->args)));
}


/*
 * A retry that requests the URI of its original: access checks may depend on
 * $request_uri, as those of auth_request do.
 */

ngx_int_t
ngx_http_idem_place_ask(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_redirect_t *step)
{
    u_char     *p;
    ngx_str_t   uri;

    uri.data = ngx_pnalloc(r->pool, 3 * step->target.len + 1 + step->args.len);
    if (uri.data == NULL) {
        return NGX_ERROR;
    }

    p = (u_char *) ngx_escape_uri(uri.data, step->target.data,
                                  step->target.len, NGX_ESCAPE_URI);

    if (step->args.len) {
        *p++ = '?';
        p = ngx_cpymem(p, step->args.data, step->args.len);
    }

    uri.len = p - uri.data;

    ctx->repeat.page = (r->error_page || r->err_status);
    ctx->repeat.asked = r->unparsed_uri;
    ngx_http_idem_request_uri(r, &uri);

    return NGX_OK;
}


void
ngx_http_idem_place_restore(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (ctx->repeat.asked.len) {
        ngx_http_idem_request_uri(r, &ctx->repeat.asked);
        ngx_str_null(&ctx->repeat.asked);
    }
}


static void
ngx_http_idem_request_uri(ngx_http_request_t *r, ngx_str_t *uri)
{
    ngx_http_variable_value_t  *v;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    r->unparsed_uri = *uri;

    v = &r->variables[mcf->request_uri];
    v->valid = 0;
    v->not_found = 0;
}


static ngx_uint_t
ngx_http_idem_same_text(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0;
}


/* the server where the original began, NULL if it is the current one */

ngx_http_idem_server_t *
ngx_http_idem_place_server(ngx_http_request_t *r,
    ngx_http_idem_response_t *response)
{
    ngx_http_idem_header_t  *kept;

    kept = ngx_http_idem_find_place(response);

    if (kept == NULL) {
        return NULL;
    }

    return ngx_http_idem_other_server(r, ngx_http_idem_place_id(kept, 0));
}


/* the n-th id in the header; 0 if it is not there */

static uint64_t
ngx_http_idem_place_id(ngx_http_idem_header_t *kept, ngx_uint_t n)
{
    u_char      c, *p;
    uint64_t    id;
    ngx_uint_t  i;

    if (kept->value.len != 2 * NGX_HTTP_IDEM_PLACE_ID_LEN) {
        return 0;
    }

    p = kept->value.data + n * NGX_HTTP_IDEM_PLACE_ID_LEN;
    id = 0;

    for (i = 0; i < NGX_HTTP_IDEM_PLACE_ID_LEN; i++) {
        c = p[i];
        id = (id << 4) | (c <= '9' ? c - '0' : c - 'a' + 10);
    }

    return id;
}


/* ngx_http_idem_redirects_read(), and what is known of the first redirect */

ngx_int_t
ngx_http_idem_way_read(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_response_t *response, ngx_str_t *value)
{
    ngx_int_t                  rc;
    ngx_http_idem_redirect_t  *step;
    ngx_http_idem_header_t    *kept;

    rc = ngx_http_idem_redirects_read(r, ctx, value);

    kept = ngx_http_idem_find_place(response);

    if (rc != NGX_OK || kept == NULL) {
        return rc;
    }

    step = ctx->repeat.steps->elts;
    step->begin = 1;
    step->place = ngx_http_idem_place_id(kept, 1);

    return NGX_OK;
}


static ngx_http_idem_header_t *
ngx_http_idem_find_place(ngx_http_idem_response_t *response)
{
    ngx_uint_t  i;

    for (i = 0; i < response->nheaders; i++) {
        if (ngx_http_idem_is_place(&response->headers[i].name)) {
            return &response->headers[i];
        }
    }

    return NULL;
}


/*
 * Whether a server refuses clients before any phase, so not by a redirect: by
 * their certificates, or since they can't connect to it.
 */

ngx_uint_t
ngx_http_idem_place_closed(ngx_http_request_t *r,
    ngx_http_idem_server_t *server)
{
#if (NGX_HTTP_SSL)
    ngx_http_ssl_srv_conf_t  *sscf;

    sscf = server->cscf->ctx->srv_conf[ngx_http_ssl_module.ctx_index];

    if (sscf->verify) {
        return 1;
    }
#endif

    return !ngx_http_idem_reaches(r, server);
}


/*
 * Whether a response was made in another place.  A request that conflicts with
 * it was not checked there, so the conflict must not disclose anything about
 * the original.
 */

ngx_uint_t
ngx_http_idem_is_hidden(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_found_t *found)
{
    ngx_uint_t                i;
    ngx_http_idem_response_t  response;

    if (found->state != NGX_HTTP_IDEM_COMPLETED) {
        return 0;
    }

    if (ngx_http_idem_place_decode(r, found, &response) != NGX_OK
        || ngx_http_idem_place_server(r, &response))
    {
        return 1;
    }

    for (i = 0; i < response.nheaders; i++) {

        if (!ngx_http_idem_is_redirects(&response.headers[i].name)) {
            continue;
        }

        return ngx_http_idem_way_read(r, ctx, &response,
                                      &response.headers[i].value)
               != NGX_OK
               || ctx->repeat.steps->nelts != 1
               || !ngx_http_idem_is_here(r, ctx->repeat.steps->elts);
    }

    return 0;
}


/*
 * A record without a response has no place.  So the details of the body, if
 * another location may get the same request, have a mark and the id of the
 * place in front.
 */

ngx_int_t
ngx_http_idem_place_details(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                 *p;
    uint64_t                id;
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    if (r->uri_changes == NGX_HTTP_MAX_URI_CHANGES + 1
        && ngx_http_idem_server_id(r, &id) != NGX_OK)
    {
        return NGX_OK;
    }

    id = ngx_http_idem_details_id(r);

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        if (cover->details.len == 0) {
            continue;
        }

        cover->stored.len = NGX_HTTP_IDEM_DETAILS_HEAD + cover->details.len;
        cover->stored.data = ngx_pnalloc(r->pool, cover->stored.len);

        if (cover->stored.data == NULL) {
            return NGX_ERROR;
        }

        p = cover->stored.data;
        *p++ = NGX_HTTP_IDEM_DETAILS_MARK;
        p = ngx_cpymem(p, &id, sizeof(uint64_t));
        ngx_memcpy(p, cover->details.data, cover->details.len);
    }

    return NGX_OK;
}


/* whether they are those of another place; removes the id */

ngx_uint_t
ngx_http_idem_details_hidden(ngx_http_request_t *r, ngx_str_t *details)
{
    uint64_t  id;

    if (details->len < NGX_HTTP_IDEM_DETAILS_HEAD
        || details->data[0] != NGX_HTTP_IDEM_DETAILS_MARK)
    {
        return 0;
    }

    ngx_memcpy(&id, details->data + 1, sizeof(uint64_t));

    details->data += NGX_HTTP_IDEM_DETAILS_HEAD;
    details->len -= NGX_HTTP_IDEM_DETAILS_HEAD;

    return id != ngx_http_idem_details_id(r);
}


/* location and names of the server: addresses differ between hosts */

static uint64_t
ngx_http_idem_details_id(ngx_http_request_t *r)
{
    uint64_t                   id;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    return conf->place ^ (ngx_http_idem_server_id(r, &id) == NGX_OK ? id >> 32
                                                                    : 0);
}


static ngx_int_t
ngx_http_idem_place_decode(ngx_http_request_t *r, ngx_http_idem_found_t *found,
    ngx_http_idem_response_t *response)
{
    ngx_str_t    body;
    ngx_uint_t   n;
    const char  *reason;

    if (ngx_http_idem_head_peek(found->response.data, found->response.len,
                                &n, &reason)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    response->headers = ngx_palloc(r->pool, ngx_max(n, 1)
                                    * sizeof(ngx_http_idem_header_t));
    if (response->headers == NULL) {
        return NGX_ERROR;
    }

    return ngx_http_idem_response_decode(found->response.data,
                                         found->response.len, response, &body,
                                         0, &reason);
}


ngx_uint_t
ngx_http_idem_is_redirects(ngx_str_t *name)
{
    return name->len == sizeof(NGX_HTTP_IDEM_REDIRECTS) - 1
           && ngx_strncasecmp(name->data, (u_char *) NGX_HTTP_IDEM_REDIRECTS,
                              name->len)
              == 0;
}


static ngx_uint_t
ngx_http_idem_is_place(ngx_str_t *name)
{
    return name->len == NGX_HTTP_IDEM_PLACE_LEN
           && ngx_strncasecmp(name->data, (u_char *) NGX_HTTP_IDEM_PLACE,
                              NGX_HTTP_IDEM_PLACE_LEN)
              == 0;
}


/* headers of this module in a stored response, ignored in any other */

ngx_uint_t
ngx_http_idem_is_way(ngx_str_t *name)
{
    return ngx_http_idem_is_redirects(name) || ngx_http_idem_is_place(name);
}
