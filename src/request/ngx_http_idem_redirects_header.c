/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The header of a stored response that has its redirects: see ..._redirects.c.
 *
 * Written by the capture, read by a replay and by a conflict; never sent to
 * clients.  Its value is a list of fields, each a letter and a text, separated
 * by spaces:
 *
 *     w  the place of begin: ids of the server and of the location, method,
 *        host; absent unless the first redirect is the begin itself
 *     w  the hashed identity of the client in the last location
 *
 * and for each redirect
 *
 *     t  its target, the first field of a redirect
 *     a  the arguments
 *     l  the id of the location, and "p" if an error page led there
 *     l  the name of the location
 *     g  the method is GET
 *
 * Versions without the first "w" and the first "l" ignore them: the last field
 * of each letter counts there.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* an id in hex */
#define NGX_HTTP_IDEM_PLACE_ID_LEN  16

/* ids of the server and of the location, and the method */
#define NGX_HTTP_IDEM_PLACE_IDS_LEN  (3 * NGX_HTTP_IDEM_PLACE_ID_LEN)

/* the longest form of a text: each byte is escaped to three */
#define ngx_http_idem_redirect_room(s)  (sizeof(" t") - 1 + 3 * (s)->len)


static u_char *ngx_http_idem_redirect_write(u_char *p, const char *name,
    ngx_str_t *s);
static ngx_int_t ngx_http_idem_redirects_fields(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t ngx_http_idem_redirects_field(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char letter, ngx_str_t *field);
static ngx_int_t ngx_http_idem_redirects_place(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *place);
static ngx_int_t ngx_http_idem_redirect_read(ngx_pool_t *pool,
    ngx_str_t *field, ngx_str_t *s);
static uint64_t ngx_http_idem_place_id(ngx_str_t *value, ngx_uint_t n);


static ngx_str_t  ngx_http_idem_redirects_name =
                                         ngx_string(NGX_HTTP_IDEM_REDIRECTS);


ngx_int_t
ngx_http_idem_redirects_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers)
{
    size_t                     len;
    u_char                    *p;
    ngx_str_t                  value;
    ngx_uint_t                 i, n;
    ngx_http_idem_redirect_t  *redirect;

    if (ctx->work.redirects == NULL || ctx->work.redirects->nelts == 0) {
        return NGX_OK;
    }

    redirect = ctx->work.redirects->elts;
    n = ctx->work.redirects->nelts;

    len = sizeof("w: w") - 1 + NGX_HTTP_IDEM_PLACE_IDS_LEN
          + redirect->method_name.len
          + ngx_http_idem_redirect_room(&redirect->host)
          + NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN;

    for (i = 0; i < n; i++) {
        len += ngx_http_idem_redirect_room(&redirect[i].target)
               + ngx_http_idem_redirect_room(&redirect[i].args)
               + ngx_http_idem_redirect_room(&redirect[i].location)
               + sizeof(" lp g") - 1 + NGX_HTTP_IDEM_PLACE_ID_LEN;
    }

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    value.data = p;

    if (redirect->begin) {
        p = ngx_sprintf(p, "w%016xL%016xL%016xL%V", redirect->server,
                        redirect->place, (uint64_t) redirect->method,
                        &redirect->method_name);
        p = ngx_http_idem_redirect_write(p, ":", &redirect->host);
        *p++ = ' ';
    }

    *p++ = 'w';

    if (n == 1 && redirect->begin) {
        /* the identity was evaluated there at begin */
        ngx_hex_dump(p, ctx->claims.primary->claim.identity,
                     NGX_HTTP_IDEM_IDENTITY_LEN);

    } else if (ngx_http_idem_redirect_identity(r, ctx, p) != NGX_OK) {
        return NGX_ERROR;
    }

    p += NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN;

    for (i = 0; i < n; i++) {
        p = ngx_http_idem_redirect_write(p, " t", &redirect[i].target);
        p = ngx_http_idem_redirect_write(p, " a", &redirect[i].args);
        p = ngx_sprintf(p, " l%016xL%s", redirect[i].place,
                        redirect[i].page ? "p" : "");
        p = ngx_http_idem_redirect_write(p, " l", &redirect[i].location);

        if (redirect[i].get) {
            p = ngx_cpymem(p, " g", 2);
        }
    }

    value.len = p - value.data;

    return ngx_http_idem_keep_header(headers, NGX_HTTP_IDEM_HEADER_PLAIN, 1,
                                     &ngx_http_idem_redirects_name, &value);
}


static u_char *
ngx_http_idem_redirect_write(u_char *p, const char *name, ngx_str_t *s)
{
    p = ngx_cpymem(p, name, ngx_strlen(name));

    return (u_char *) ngx_escape_uri(p, s->data, s->len,
                                     NGX_ESCAPE_URI_COMPONENT);
}


/*
 * Reads the redirects of a response to ctx->repeat->  NGX_DONE if it has none,
 * NGX_DECLINED if they can't be read.
 */

ngx_int_t
ngx_http_idem_redirects_read(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_response_t *response)
{
    ngx_uint_t  i;

    for (i = 0; i < response->nheaders; i++) {
        if (ngx_http_idem_is_redirects(&response->headers[i].name)) {
            return ngx_http_idem_redirects_fields(r, ctx,
                                              &response->headers[i].value);
        }
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_idem_redirects_fields(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value)
{
    u_char     *p, *last, *start;
    ngx_int_t   rc;
    ngx_str_t   field, place;

    ngx_str_null(&place);

    if (ctx->repeat == NULL) {
        ctx->repeat = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_repeat_t));
        if (ctx->repeat == NULL) {
            return NGX_ERROR;
        }
    }

    ngx_str_null(&ctx->repeat->identity);

    ctx->repeat->steps = ngx_array_create(r->pool, 1,
                                          sizeof(ngx_http_idem_redirect_t));
    if (ctx->repeat->steps == NULL) {
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

        if (*start == 'w') {
            place = ctx->repeat->identity;
            ctx->repeat->identity = field;

        } else {
            rc = ngx_http_idem_redirects_field(r, ctx, *start, &field);
            if (rc != NGX_OK) {
                return rc;
            }
        }

        p++;
    }

    if (ctx->repeat->steps->nelts == 0 || ctx->repeat->identity.len == 0) {
        return NGX_DECLINED;
    }

    return place.len ? ngx_http_idem_redirects_place(r, ctx, &place) : NGX_OK;
}


static ngx_int_t
ngx_http_idem_redirects_field(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char letter, ngx_str_t *field)
{
    ngx_str_t                  s;
    ngx_http_idem_redirect_t  *step;

    if (ngx_http_idem_redirect_read(r->pool, field, &s) != NGX_OK) {
        return NGX_ERROR;
    }

    if (letter == 't') {
        step = ngx_array_push(ctx->repeat->steps);
        if (step == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(step, sizeof(ngx_http_idem_redirect_t));
        step->target = s;

        return s.len ? NGX_OK : NGX_DECLINED;
    }

    if (ctx->repeat->steps->nelts == 0) {
        return NGX_DECLINED;
    }

    step = ctx->repeat->steps->elts;
    step += ctx->repeat->steps->nelts - 1;

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
ngx_http_idem_redirects_place(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *place)
{
    u_char                    *p;
    ngx_str_t                  host;
    ngx_http_idem_redirect_t  *step;

    p = ngx_strlchr(place->data, place->data + place->len, ':');

    if (p == NULL || p - place->data < NGX_HTTP_IDEM_PLACE_IDS_LEN) {
        return NGX_DECLINED;
    }

    step = ctx->repeat->steps->elts;
    step->begin = 1;
    step->server = ngx_http_idem_place_id(place, 0);
    step->place = ngx_http_idem_place_id(place, 1);
    step->method = ngx_http_idem_place_id(place, 2);
    step->method_name.data = place->data + NGX_HTTP_IDEM_PLACE_IDS_LEN;
    step->method_name.len = p++ - step->method_name.data;

    host.data = p;
    host.len = place->data + place->len - p;

    return ngx_http_idem_redirect_read(r->pool, &host, &step->host);
}


static ngx_int_t
ngx_http_idem_redirect_read(ngx_pool_t *pool, ngx_str_t *field, ngx_str_t *s)
{
    u_char  *src, *dst;

    s->data = ngx_pnalloc(pool, field->len + 1);
    if (s->data == NULL) {
        return NGX_ERROR;
    }

    src = field->data;
    dst = s->data;

    ngx_unescape_uri(&dst, &src, field->len, 0);
    s->len = dst - s->data;

    return NGX_OK;
}


/* the n-th id */

static uint64_t
ngx_http_idem_place_id(ngx_str_t *value, ngx_uint_t n)
{
    char  text[NGX_HTTP_IDEM_PLACE_ID_LEN + 1];

    (void) ngx_cpystrn((u_char *) text,
                       value->data + n * NGX_HTTP_IDEM_PLACE_ID_LEN,
                       sizeof(text));

    return strtoull(text, NULL, 16);
}
