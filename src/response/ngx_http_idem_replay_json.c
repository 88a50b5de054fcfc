
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Sets members of the JSON object that a replay sends
 * (idempotency_replay_json).
 *
 * canonical/..._json_edit.c parses the body and writes it again.  A body that
 * is not a JSON object stays unchanged.  In an event stream each JSON-RPC
 * response is rewritten, and everything else stays byte for byte.
 *
 * A large object is parsed in several iterations of the event loop.  Called by
 * the replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "canonical/ngx_http_idem_json_edit.h"


/* a larger body is parsed in several iterations of the event loop */
#define NGX_HTTP_IDEM_REWRITE_SMALL  (256 * 1024)

/* bytes rewritten per iteration: 1 to 3 ms */
#define NGX_HTTP_IDEM_REWRITE_WORK   (256 * 1024)


struct ngx_http_idem_rewrite_s {
    ngx_http_idem_json_edit_t   edit;
    ngx_http_idem_json_set_t   *set;
    ngx_uint_t                  nset;
    ngx_str_t                   body;
    ngx_http_idem_turn_t        turn;
};


static ngx_int_t ngx_http_idem_rewrite_value(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_replay_member_t *member,
    ngx_str_t *value);
static ngx_int_t ngx_http_idem_rewrite_string(ngx_http_request_t *r,
    ngx_str_t *value);
static ngx_int_t ngx_http_idem_rewrite_events(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_join(ngx_http_request_t *r,
    ngx_array_t *events, size_t len, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_object(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_init(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_handler(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/*
 * NGX_OK: rewritten, or not a JSON object; NGX_ERROR: no memory; NGX_AGAIN:
 * continues in later iterations of the event loop, and calls
 * ngx_http_idem_replay_rewritten() at the end.
 */

ngx_int_t
ngx_http_idem_replay_json(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body)
{
    ngx_int_t                       rc;
    ngx_str_t                       value;
    ngx_uint_t                      i, n;
    ngx_http_idem_rewrite_t        *w;
    ngx_http_idem_replay_member_t  *member;

    /* a body that the application has encoded stays unchanged */

    if (r->headers_out.content_encoding || body->len == 0) {
        return NGX_OK;
    }

    member = ctx->conf->replay_json->elts;
    n = ctx->conf->replay_json->nelts;

    w = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_rewrite_t)
                             + n * sizeof(ngx_http_idem_json_set_t));
    if (w == NULL) {
        return NGX_ERROR;
    }

    w->set = (ngx_http_idem_json_set_t *) (w + 1);

    for (i = 0; i < n; i++) {
        rc = ngx_http_idem_rewrite_value(r, ctx, &member[i], &value);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_OK) {
            w->set[w->nset].name = member[i].member;
            w->set[w->nset++].value = value;
        }
    }

    if (ngx_http_idem_is_sse(r)) {
        return ngx_http_idem_rewrite_events(r, w, body);
    }

    if (body->len <= NGX_HTTP_IDEM_REWRITE_SMALL) {
        return ngx_http_idem_rewrite_object(r, w, body);
    }

    w->body = *body;
    ctx->answer.rewrite = w;

    rc = ngx_http_idem_rewrite_init(r, w, body);

    if (rc != NGX_OK) {
        return (rc == NGX_DECLINED) ? NGX_OK : NGX_ERROR;
    }

    ngx_http_idem_turn(&w->turn, ctx, ngx_http_idem_rewrite_handler,
                       "rewriting");

    return NGX_AGAIN;
}


static ngx_int_t
ngx_http_idem_rewrite_handler(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                 rc;
    ngx_str_t                 text;
    ngx_http_idem_rewrite_t  *w;

    w = ctx->answer.rewrite;

    rc = ngx_http_idem_json_edit_step(&w->edit, NGX_HTTP_IDEM_REWRITE_WORK,
                                      &text);

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    if (rc == NGX_DECLINED) {
        text = w->body;
        rc = NGX_OK;
    }

    ngx_http_idem_replay_json_cleanup(ctx);

    ngx_http_idem_replay_rewritten(r, ctx, rc, &text);

    return NGX_OK;
}


void
ngx_http_idem_replay_json_cleanup(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_rewrite_t  *w;

    w = ctx->answer.rewrite;

    if (w) {
        ctx->answer.rewrite = NULL;

        ngx_http_idem_turn_cancel(&w->turn);
        ngx_http_idem_json_edit_destroy(&w->edit);
    }
}


/*
 * The value to set: a member of this request's body, with its JSON type, or a
 * text with variables.  NGX_DECLINED: the stored value stays.
 */

static ngx_int_t
ngx_http_idem_rewrite_value(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_replay_member_t *member, ngx_str_t *value)
{
    ngx_int_t                           rc;
    const ngx_http_idem_json_member_t  *m;

    if (member->from.len) {

        m = ctx->body.parsed
            ? ngx_http_idem_json_named(ctx->body.json, &member->from) : NULL;

        /* the member is missing, or occurs twice */

        if (m == NULL || m->count != 1
            || m->kind == NGX_HTTP_IDEM_JSON_ARRAY
            || m->kind == NGX_HTTP_IDEM_JSON_OBJECT)
        {
            return NGX_DECLINED;
        }

        *value = m->value;

        return (m->kind == NGX_HTTP_IDEM_JSON_STRING)
               ? ngx_http_idem_rewrite_string(r, value) : NGX_OK;
    }

    if (ngx_http_complex_value(r, &member->value, value) != NGX_OK) {
        return NGX_ERROR;
    }

    /* valid JSON is set unchanged, any other text as a string */

    rc = ngx_http_idem_json_valid(value);

    return (rc == NGX_DECLINED) ? ngx_http_idem_rewrite_string(r, value) : rc;
}


/* a variable may have any bytes, and JSON has UTF-8 only */

static ngx_int_t
ngx_http_idem_rewrite_string(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char     *p;
    ngx_int_t   rc;

    p = ngx_pnalloc(r->pool, 6 * value->len + 2);
    if (p == NULL) {
        return NGX_ERROR;
    }

    value->len = ngx_http_idem_json_edit_string(p, value->data, value->len)
                 - p;
    value->data = p;

    rc = ngx_http_idem_json_valid(value);

    if (rc == NGX_DECLINED) {
        ngx_str_set(value, "null");
        rc = NGX_OK;
    }

    return rc;
}


static ngx_int_t
ngx_http_idem_rewrite_events(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body)
{
    size_t                      len;
    ngx_int_t                   rc;
    ngx_str_t                   rest, text;
    ngx_array_t                 events;
    ngx_http_idem_sse_event_t   event, *e;

    if (ngx_array_init(&events, r->pool, 4, sizeof(ngx_http_idem_sse_event_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    rest = *body;
    len = body->len;

    for ( ;; ) {
        rc = ngx_http_idem_sse_response(r->pool, &rest, &event);

        if (rc == NGX_DONE) {
            break;
        }

        text = event.data;

        if (rc == NGX_ERROR
            || ngx_http_idem_rewrite_object(r, w, &text) != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (text.data == event.data.data) {
            continue;
        }

        e = ngx_array_push(&events);
        if (e == NULL) {
            return NGX_ERROR;
        }

        *e = event;
        e->data = text;

        len += sizeof("data: ") - 1 + text.len + event.end.len
               - event.lines.len;
    }

    return events.nelts ? ngx_http_idem_rewrite_join(r, &events, len, body)
                        : NGX_OK;
}


/* joins the rewritten events and everything between them */

static ngx_int_t
ngx_http_idem_rewrite_join(ngx_http_request_t *r, ngx_array_t *events,
    size_t len, ngx_str_t *body)
{
    u_char                     *p, *from;
    ngx_uint_t                  i;
    ngx_http_idem_sse_event_t  *e;

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    from = body->data;
    e = events->elts;

    len = body->len;

    body->data = p;

    for (i = 0; i < events->nelts; i++) {
        len -= e[i].lines.data + e[i].lines.len - from;

        p = ngx_cpymem(p, from, e[i].lines.data - from);
        p = ngx_cpymem(p, "data: ", sizeof("data: ") - 1);
        p = ngx_cpymem(p, e[i].data.data, e[i].data.len);
        p = ngx_cpymem(p, e[i].end.data, e[i].end.len);

        from = e[i].lines.data + e[i].lines.len;
    }

    p = ngx_cpymem(p, from, len);

    body->len = p - body->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_rewrite_object(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_rewrite_init(r, w, body);

    if (rc == NGX_OK) {
        rc = ngx_http_idem_json_edit_step(&w->edit, NGX_MAX_SIZE_T_VALUE,
                                          body);
    }

    ngx_http_idem_json_edit_destroy(&w->edit);

    return (rc == NGX_ERROR) ? NGX_ERROR : NGX_OK;
}


static ngx_int_t
ngx_http_idem_rewrite_init(ngx_http_request_t *r, ngx_http_idem_rewrite_t *w,
    ngx_str_t *body)
{
    u_char  *p;

    p = ngx_pnalloc(r->pool, ngx_http_idem_json_edit_size(body, w->set,
                                                          w->nset));
    if (p == NULL) {
        return NGX_ERROR;
    }

    return ngx_http_idem_json_edit_init(&w->edit, body, w->set, w->nset, p);
}
