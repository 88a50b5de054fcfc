
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
 * anything else; or method, host and URI are not part of the fingerprint.
 * Then the place is stored with the response as the first of its redirects,
 * together with what was requested.  A retry in another location requests the
 * same, as its client could have done: ..._ask.c; so does one with another URI,
 * method or host in the same location.  If it does not reach the same location,
 * the response is not for this client: a conflict that discloses nothing.
 *
 * The address where a request came in is not part of the fingerprint either,
 * and may select another server.  The id of the server is stored, too, and the
 * URI is requested in that server.
 *
 * Called when a request is executed, by the capture, and before a replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_idem_number.h"
#include "request/ngx_http_idem_request.h"


/* no list of paths begins with it */
#define NGX_HTTP_IDEM_DETAILS_MARK  'P'


static ngx_uint_t ngx_http_idem_may_differ(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static uint64_t ngx_http_idem_place_form(ngx_http_request_t *r);
static void ngx_http_idem_rewritten_mark(void *data);
static ngx_uint_t ngx_http_idem_is_unchecked(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static uint64_t ngx_http_idem_details_id(ngx_http_request_t *r);


ngx_int_t
ngx_http_idem_place_begin(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_redirect_t  *redirect;

    if (!ngx_http_idem_may_differ(r, ctx)) {
        return NGX_OK;
    }

    if (ngx_http_idem_redirect_end(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    redirect = ctx->work.redirects->elts;
    redirect->begin = 1;
    redirect->place ^= ngx_http_idem_place_form(r);
    redirect->page |= (r->error_page || r->err_status);
    redirect->method = r->method;
    redirect->method_name = r->method_name;
    redirect->host = r->headers_in.server;

    if (ngx_http_idem_server_id(r, &redirect->server) != NGX_OK) {
        redirect->server = 0;
    }

    return ngx_http_idem_parse_uri(r, &redirect->target, &redirect->args);
}


static ngx_uint_t
ngx_http_idem_may_differ(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    if (ngx_http_idem_is_redirected(r) || ngx_http_idem_places_stored(r)) {
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


/*
 * Different requests may be for the same path, as "/a%2Fb" and "/a/b", and a
 * check may go by $request_uri.  The path is stored decoded, so the form of one
 * that decoding may have changed is part of its place; 0 for others.  Escapes
 * count in upper case, as nginx writes them when it requests the path.
 */

static uint64_t
ngx_http_idem_place_form(ngx_http_request_t *r)
{
    u_char                 *p, *start, *last, c, hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_uint_t              changed, digits;
    ngx_http_idem_digest_t  d;

    start = r->unparsed_uri.data;
    last = start + r->unparsed_uri.len;
    changed = 0;

    for (p = start; p < last && *p != '?'; p++) {

        if (*p == '%' || *p == '#'
            || (*p == '/' && p + 1 < last && (p[1] == '/' || p[1] == '.')))
        {
            changed = 1;
        }
    }

    if (!changed) {
        return 0;
    }

    last = p;
    digits = 0;

    ngx_http_idem_digest_start(&d);

    for (p = start; p < last; p++) {
        c = digits ? ngx_toupper(*p) : *p;
        ngx_http_idem_digest_update(&d, &c, 1);

        digits = (*p == '%') ? 2 : digits - (digits > 0);
    }

    ngx_http_idem_digest_done(&d, hash);

    return ngx_http_idem_get64(hash);
}


/*
 * A "rewrite" of the server has changed the URI before a location was found.
 * There is no context yet, so a clean-up of the request's pool is the mark.
 */

ngx_int_t
ngx_http_idem_rewritten(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(r->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_http_idem_rewritten_mark;

    return NGX_OK;
}


static void
ngx_http_idem_rewritten_mark(void *data)
{
    /* void */
}


ngx_uint_t
ngx_http_idem_is_rewritten(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_idem_rewritten_mark) {
            return 1;
        }
    }

    return 0;
}


/*
 * Whether a request has never been let in by the location of its URI.  A
 * record without a place was made there.
 */

static ngx_uint_t
ngx_http_idem_is_unchecked(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    return ngx_http_idem_is_redirected(r) && !ctx->place.checked;
}


/*
 * Whether a record without a place may be that of another location.  With
 * "idempotency_fingerprint off" here and another mode there, such a record was
 * made before a reload, or on another host.  A derived record has no target,
 * and has a place if the URI does not count.
 */

ngx_uint_t
ngx_http_idem_is_elsewhere(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    return ngx_http_idem_is_unchecked(r, cover->ctx)
           || (!cover->derived && !ngx_http_idem_target_same(cover));
}


/* whether the request asks for what the original asked for, but for its body */

ngx_uint_t
ngx_http_idem_target_same(ngx_http_idem_cover_t *cover)
{
    return ngx_memcmp(cover->op.found.claim.target, cover->claim.target,
                      NGX_HTTP_IDEM_TARGET_LEN)
           == 0;
}


/* whether the request is in the location where the original began */

ngx_uint_t
ngx_http_idem_same_place(ngx_http_request_t *r, ngx_http_idem_redirect_t *step)
{
    uint64_t                   place;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    place = conf->place;

    if (step->begin) {
        place ^= ngx_http_idem_place_form(r);
    }

    return place == step->place;
}


/*
 * Whether a server refuses clients before any phase, so not by a redirect: by
 * their certificates, or since they can't connect to it.
 */

ngx_uint_t
ngx_http_idem_server_refuses(ngx_http_request_t *r,
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
    ngx_int_t                  rc;
    ngx_str_t                  body;
    const char                *reason;
    ngx_http_idem_redirect_t  *step;
    ngx_http_idem_response_t   response;

    if (found->state != NGX_HTTP_IDEM_COMPLETED) {
        return 0;
    }

    rc = ngx_http_idem_replay_decode(r, found, &response, &body, 0, &reason);

    if (rc == NGX_OK) {
        rc = ngx_http_idem_redirects_read(r, ctx, &response);
    }

    if (rc == NGX_DONE) {
        return ngx_http_idem_is_unchecked(r, ctx);
    }

    if (rc != NGX_OK) {
        return 1;
    }

    step = ctx->repeat->steps->elts;

    return ctx->repeat->steps->nelts != 1
           || !step->begin
           || !ngx_http_idem_same_place(r, step)
           || ngx_http_idem_other_server(r, step->server);
}


/*
 * A record without a response has no place.  So details that another location
 * may find begin with a mark and the id of the place.
 */

u_char *
ngx_http_idem_details_mark(ngx_http_request_t *r, u_char *p)
{
    uint64_t  id;

    id = ngx_http_idem_details_id(r);

    *p++ = NGX_HTTP_IDEM_DETAILS_MARK;

    return ngx_cpymem(p, &id, sizeof(uint64_t));
}


/* whether details are those of another place; removes the id */

ngx_uint_t
ngx_http_idem_details_hidden(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *details)
{
    uint64_t  id;

    if (details->len < NGX_HTTP_IDEM_DETAILS_HEAD
        || details->data[0] != NGX_HTTP_IDEM_DETAILS_MARK)
    {
        return details->len && ngx_http_idem_is_unchecked(r, ctx);
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

    if (!ngx_http_idem_places_stored(r)
        || ngx_http_idem_server_id(r, &id) != NGX_OK)
    {
        id = 0;
    }

    return conf->place ^ (id >> 32);
}
