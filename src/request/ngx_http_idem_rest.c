
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The rest of a large body, parsed in turns.
 *
 * To parse 1 MB of JSON can take tens of milliseconds, in which a worker would
 * serve nobody else.  So no more than a part of a body is parsed while it
 * comes in; what is behind that is copied, and parsed when all of it is there,
 * a piece in each turn of the event loop; the children of a large container
 * are sorted in turns, too.  A body beyond the limit of the
 * parsers is not copied: they decline it.
 *
 * Called by the body; goes on to begin when it is done.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_REST_PIECE  65536

/* the end closes what was opened at the beginning: a turn of its own */
#define NGX_HTTP_IDEM_REST_END    64

/* what is sorted and hashed in a turn: a millisecond or two */
#define NGX_HTTP_IDEM_REST_WORK   262144

/* of the next turn; with 0 it would be this one */
#define NGX_HTTP_IDEM_REST_PAUSE  1

/* more than any of the parsers takes */
#define NGX_HTTP_IDEM_REST_MAX                                                \
    (ngx_max(NGX_HTTP_IDEM_JSON_SIZE, NGX_HTTP_IDEM_FORM_SIZE)                \
     + 1)


struct ngx_http_idem_rest_s {
    u_char       *data;
    size_t        len;
    size_t        size;
    size_t        pos;
    ngx_event_t   event;
    unsigned      last:1;                        /* the parser knows its end */
};


static void ngx_http_idem_rest_handler(ngx_event_t *ev);
static ngx_int_t ngx_http_idem_rest_turn(ngx_http_idem_body_t *body);
static void *ngx_http_idem_rest_alloc(void *data, size_t size);
static void ngx_http_idem_rest_free(void *data, void *p);


ngx_int_t
ngx_http_idem_rest_add(ngx_http_idem_ctx_t *ctx, u_char *p, size_t len)
{
    ngx_http_request_t         *r;
    ngx_http_idem_rest_t       *rest;
    ngx_http_idem_canon_mem_t   mem;

    r = ctx->request;
    rest = ctx->body.rest;

    if (rest == NULL) {
        rest = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_rest_t));
        if (rest == NULL) {
            return NGX_ERROR;
        }

        ctx->body.rest = rest;
    }

    /* with a byte more than they take, the parsers decline the whole */

    len = ngx_min(len, NGX_HTTP_IDEM_REST_MAX - rest->len);

    if (len == 0) {
        return NGX_OK;
    }

    mem.alloc = ngx_http_idem_rest_alloc;
    mem.free = ngx_http_idem_rest_free;
    mem.data = r->connection->log;

    if (ngx_http_idem_canon_grow(&mem, &rest->data, rest->len,
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
ngx_http_idem_rest_parse(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_rest_t  *rest;

    rest = ctx->body.rest;

    if (rest->len == NGX_HTTP_IDEM_REST_MAX) {

        /* too large: it is declined at once */

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

    rest->event.handler = ngx_http_idem_rest_handler;
    rest->event.data = ctx;
    rest->event.log = r->connection->log;

    ngx_add_timer(&rest->event, NGX_HTTP_IDEM_REST_PAUSE);

    return NGX_AGAIN;
}


static void
ngx_http_idem_rest_handler(ngx_event_t *ev)
{
    ngx_connection_t     *c;
    ngx_http_request_t   *r;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "idempotency: a turn of parsing, at %uz of %uz",
                   ctx->body.rest->pos, ctx->body.rest->len);

    if (ngx_http_idem_rest_turn(&ctx->body) == NGX_AGAIN) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_REST_PAUSE);
        return;
    }

    ngx_http_idem_rest_cleanup(ctx);

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_idem_body_ready(r, ngx_http_idem_body_canonical(&ctx->body));

    ngx_http_run_posted_requests(c);
}


/* NGX_AGAIN, or NGX_OK: there is nothing left that takes its time */

static ngx_int_t
ngx_http_idem_rest_turn(ngx_http_idem_body_t *body)
{
    size_t                 n;
    u_char                *p;
    ngx_int_t              rc;
    ngx_http_idem_rest_t  *rest;

    rest = body->rest;

    /* the children of a container that has ended are sorted first */

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

    /* what no parser goes on with is not read to its end */

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

    if (rest->event.timer_set) {
        ngx_del_timer(&rest->event);
    }

    if (rest->data) {
        ngx_free(rest->data);
    }
}


static void *
ngx_http_idem_rest_alloc(void *data, size_t size)
{
    return ngx_alloc(size, data);
}


static void
ngx_http_idem_rest_free(void *data, void *p)
{
    ngx_free(p);
}
