
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Decides by its JSON whether a response is stored (idempotency_keep_json),
 * for APIs that report errors with status 200.
 *
 * Called when a response is complete and its status would be kept.  A
 * response that is not JSON, or that the application has encoded, is kept.
 * In an event stream the JSON-RPC responses count.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_uint_t ngx_http_idem_keep_body(ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *body);
static ngx_uint_t ngx_http_idem_keep_events(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body);
static ngx_uint_t ngx_http_idem_keep_holds(ngx_http_idem_keep_t *rule,
    const ngx_http_idem_json_member_t *m);


ngx_uint_t
ngx_http_idem_json_kept(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char       *p;
    ngx_str_t     body;
    ngx_uint_t    kept;
    ngx_chain_t  *cl;

    if (r->headers_out.content_encoding
        && r->headers_out.content_encoding->value.len)
    {
        return 1;
    }

    if (!ngx_http_idem_is_sse(r)) {
        return ngx_http_idem_keep_body(ctx, ctx->capture.held);
    }

    body.len = ctx->capture.response.body_len;
    body.data = ngx_alloc(ngx_max(body.len, 1), r->connection->log);

    if (body.data == NULL) {
        return 1;
    }

    p = body.data;

    for (cl = ctx->capture.held; cl; cl = cl->next) {
        p = ngx_cpymem(p, cl->buf->pos, cl->buf->last - cl->buf->pos);
    }

    kept = ngx_http_idem_keep_events(r, ctx, &body);

    ngx_free(body.data);

    return kept;
}


/* several responses are a batch: if one is to be kept, all are */

static ngx_uint_t
ngx_http_idem_keep_events(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_buf_t                  b;
    ngx_str_t                  rest;
    ngx_int_t                  rc;
    ngx_uint_t                 kept;
    ngx_chain_t                cl;
    ngx_http_idem_sse_event_t  event;

    rest = *body;
    kept = 1;

    for ( ;; ) {
        rc = ngx_http_idem_sse_response(r->pool, &rest, &event);

        if (rc != NGX_OK) {
            return kept || rc == NGX_ERROR;
        }

        ngx_memzero(&b, sizeof(ngx_buf_t));

        b.pos = event.data.data;
        b.last = event.data.data + event.data.len;

        cl.buf = &b;
        cl.next = NULL;

        kept = ngx_http_idem_keep_body(ctx, &cl);

        if (kept) {
            return 1;
        }
    }
}


static ngx_uint_t
ngx_http_idem_keep_body(ngx_http_idem_ctx_t *ctx, ngx_chain_t *body)
{
    u_char                      digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
    ngx_int_t                   rc;
    ngx_uint_t                  i, kept;
    ngx_chain_t                *cl;
    ngx_http_idem_keep_t       *rule;
    ngx_http_idem_json_t       *json;

    json = ngx_http_idem_json_create(&ctx->conf->keep_options);
    if (json == NULL) {
        return 1;
    }

    rc = NGX_OK;

    for (cl = body; cl && rc == NGX_OK; cl = cl->next) {
        rc = ngx_http_idem_json_feed(json, cl->buf->pos,
                                     cl->buf->last - cl->buf->pos);
    }

    kept = 1;

    if (ngx_http_idem_json_done(json, digest) == NGX_OK) {
        rule = ctx->conf->keep_json->elts;

        for (i = 0; i < ctx->conf->keep_json->nelts && kept; i++) {
            kept = ngx_http_idem_keep_holds(&rule[i],
                                        ngx_http_idem_json_member(json, i));
        }
    }

    ngx_http_idem_json_destroy(json);

    return kept;
}


/* "*" is any value, including objects and arrays */

static ngx_uint_t
ngx_http_idem_keep_holds(ngx_http_idem_keep_t *rule,
    const ngx_http_idem_json_member_t *m)
{
    ngx_uint_t  same;

    if (rule->value.len == 1 && rule->value.data[0] == '*') {
        same = (m->count != 0);

    } else {
        same = m->count == 1
               && m->kind != NGX_HTTP_IDEM_JSON_ARRAY
               && m->kind != NGX_HTTP_IDEM_JSON_OBJECT
               && m->value.len == rule->value.len
               && (m->value.len == 0
                   || ngx_memcmp(m->value.data, rule->value.data,
                                 m->value.len)
                      == 0);
    }

    return rule->negated ? !same : same;
}
