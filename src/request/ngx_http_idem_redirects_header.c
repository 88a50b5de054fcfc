
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The header of a stored response that has its redirects: see ..._redirects.c.
 *
 * The capture writes it; a replay reads it, and so does a conflict.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_REDIRECT_PLACE_LEN                                      \
    (sizeof(" lp") - 1 + NGX_HTTP_IDEM_PLACE_ID_LEN)


static size_t ngx_http_idem_redirect_len(ngx_str_t *s);
static u_char *ngx_http_idem_redirect_write(u_char *p, u_char letter,
    ngx_str_t *s);
static ngx_int_t ngx_http_idem_redirects_field(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char letter, ngx_str_t *field);


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
