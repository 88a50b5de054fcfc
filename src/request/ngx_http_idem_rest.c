
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Parses the rest of a large body in several iterations of the event loop.
 *
 * Parsing 1 MB of JSON can take tens of milliseconds, during which the worker
 * would serve nobody else.  So only the first part of a body is parsed while
 * it is read.  The rest is copied, and parsed when the body is complete, one
 * piece per iteration; the children of large containers are sorted in several
 * iterations, too.  A body that exceeds the parsers' limit is not copied: the
 * parsers decline it.
 *
 * Called by the body; continues with begin when it is done.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_REST_PIECE  65536

/* the end closes the outermost containers: it gets an iteration of its own */
#define NGX_HTTP_IDEM_REST_END    64

/* bytes sorted and hashed per iteration: one or two milliseconds */
#define NGX_HTTP_IDEM_REST_WORK   262144

/* one byte more than any parser accepts */
#define NGX_HTTP_IDEM_REST_MAX                                                \
    (ngx_max(NGX_HTTP_IDEM_JSON_SIZE, NGX_HTTP_IDEM_FORM_SIZE)                \
     + 1)


struct ngx_http_idem_rest_s {
    u_char                *data;
    size_t                 len;
    size_t                 size;
    size_t                 pos;
    ngx_http_idem_turn_t   turn;
    unsigned               last:1;               /* the parser has seen the
                                                    end                     */
};


static ngx_int_t ngx_http_idem_rest_handler(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_rest_turn(ngx_http_idem_body_t *body);


ngx_int_t
ngx_http_idem_rest_add(ngx_http_idem_ctx_t *ctx, u_char *p, size_t len)
{
    ngx_http_idem_rest_t  *rest;

    rest = ctx->body.rest;

    if (rest == NULL) {
        rest = ngx_pcalloc(ctx->request->pool,
                           sizeof(ngx_http_idem_rest_t));
        if (rest == NULL) {
            return NGX_ERROR;
        }

        ctx->body.rest = rest;
    }

    /* with one byte over the limit, the parsers decline the body */

    len = ngx_min(len, NGX_HTTP_IDEM_REST_MAX - rest->len);

    if (len == 0) {
        return NGX_OK;
    }

    if (ngx_http_idem_canon_grow(&ngx_http_idem_mem, &rest->data, rest->len,
                                 &rest->size, len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(rest->data + rest->len, p, len);
    rest->len += len;

    return NGX_OK;
}


/* NGX_AGAIN: ngx_http_idem_body_ready() will be called */

ngx_int_t
ngx_http_idem_rest_parse(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_rest_t  *rest;

    rest = ctx->body.rest;

    if (rest->len == NGX_HTTP_IDEM_REST_MAX) {

        /* too large: the parsers decline it at once */

        if (ctx->body.json) {
            (void) ngx_http_idem_json_feed(ctx->body.json, rest->data,
                                           rest->len);
        }

        if (ctx->body.form) {
            (void) ngx_http_idem_form_feed(ctx->body.form, rest->data,
                                           rest->len);
        }

        ngx_http_idem_rest_cleanup(ctx);

        return ngx_http_idem_body_canonical(&ctx->body);
    }

    ngx_http_idem_turn(&rest->turn, ctx, ngx_http_idem_rest_handler,
                       "parsing");

    return NGX_AGAIN;
}


static ngx_int_t
ngx_http_idem_rest_handler(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (ngx_http_idem_rest_turn(&ctx->body) == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    ngx_http_idem_rest_cleanup(ctx);

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_idem_body_ready(r, ngx_http_idem_body_canonical(&ctx->body));

    return NGX_OK;
}


/* NGX_AGAIN, or NGX_OK if nothing expensive is left */

static ngx_int_t
ngx_http_idem_rest_turn(ngx_http_idem_body_t *body)
{
    size_t                 n;
    u_char                *p;
    ngx_int_t              rc;
    ngx_http_idem_rest_t  *rest;

    rest = body->rest;

    /* sort the children of containers that have ended first */

    if (body->json
        && ngx_http_idem_json_work(body->json, NGX_HTTP_IDEM_REST_WORK)
           == NGX_AGAIN)
    {
        return NGX_AGAIN;
    }

    p = rest->data + rest->pos;
    n = rest->len - rest->pos;

    if (n == 0 && !rest->last && body->json
        && ngx_http_idem_json_last(body->json) == NGX_OK)
    {
        rest->last = 1;
        return NGX_AGAIN;
    }

    if (n == 0) {
        return body->form
               && ngx_http_idem_form_close(body->form,
                                           NGX_HTTP_IDEM_REST_WORK)
                  == NGX_AGAIN
               ? NGX_AGAIN : NGX_OK;
    }

    if (n > NGX_HTTP_IDEM_REST_END) {
        n = ngx_min(n - NGX_HTTP_IDEM_REST_END, NGX_HTTP_IDEM_REST_PIECE);
    }

    if (body->json) {
        n = ngx_http_idem_json_cut(body->json, p, n);
    }

    rest->pos += n;

    rc = NGX_OK;

    if (body->json
        && ngx_http_idem_json_feed(body->json, p, n) == NGX_OK
        && ngx_http_idem_json_flush(body->json) == NGX_OK)
    {
        rc = NGX_AGAIN;
    }

    if (body->form
        && ngx_http_idem_form_feed(body->form, p, n) == NGX_OK)
    {
        rc = NGX_AGAIN;
    }

    /* if no parser continues, the rest is skipped */

    return rc;
}


void
ngx_http_idem_rest_cleanup(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_rest_t  *rest;

    rest = ctx->body.rest;

    if (rest == NULL) {
        return;
    }

    ctx->body.rest = NULL;

    ngx_http_idem_turn_cancel(&rest->turn);

    if (rest->data) {
        ngx_free(rest->data);
    }
}
