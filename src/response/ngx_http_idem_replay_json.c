
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Members that a replay sets in the JSON object it answers with
 * (idempotency_replay_json).
 *
 * The body is parsed and written again by yajl: the order of members and the
 * text of numbers stay, white space and the form of escapes may not.  A body
 * that is not a JSON object is left as it is.  Of an event stream each JSON-RPC
 * response is such an object, and what is around it stays byte for byte.
 * Called by the replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <yajl/yajl_gen.h>

#include "request/ngx_http_idem_request.h"
#include "response/ngx_http_idem_sse.h"
#include "response/ngx_http_idem_yajl.h"


/* a member, and its value for this request */

typedef struct {
    ngx_str_t                              text;
    ngx_uint_t                             json;     /* it stands as it is  */
    ngx_uint_t                      keep;            /* what is stored      */
} ngx_http_idem_rewrite_value_t;


typedef struct {
    ngx_http_idem_yajl_t            yajl;
    yajl_gen                        gen;
    ngx_http_idem_replay_member_t  *member;
    ngx_http_idem_rewrite_value_t  *value;
    ngx_uint_t                      nmembers;
    ngx_uint_t                      depth;
    ngx_uint_t                      skip;            /* depth of a member that
                                                        is set anew, and its
                                                        value left out     */
    ngx_uint_t                      object;
} ngx_http_idem_rewrite_t;


static ngx_int_t ngx_http_idem_rewrite_value(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_replay_member_t *member,
    ngx_http_idem_rewrite_value_t *value);
static ngx_int_t ngx_http_idem_rewrite_events(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_join(ngx_http_request_t *r,
    ngx_array_t *events, size_t len, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_object(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static void ngx_http_idem_rewrite_set(ngx_http_idem_rewrite_t *w);
static int ngx_http_idem_rewrite_skipped(ngx_http_idem_rewrite_t *w);
static int ngx_http_idem_rewrite_null(void *data);
static int ngx_http_idem_rewrite_boolean(void *data, int value);
static int ngx_http_idem_rewrite_number(void *data, const char *p,
    size_t len);
static int ngx_http_idem_rewrite_string(void *data,
    const unsigned char *p, size_t len);
static int ngx_http_idem_rewrite_start_map(void *data);
static int ngx_http_idem_rewrite_map_key(void *data,
    const unsigned char *p, size_t len);
static int ngx_http_idem_rewrite_end_map(void *data);
static int ngx_http_idem_rewrite_start_array(void *data);
static int ngx_http_idem_rewrite_end_array(void *data);


static yajl_callbacks  ngx_http_idem_rewrite_callbacks = {
    ngx_http_idem_rewrite_null,
    ngx_http_idem_rewrite_boolean,
    NULL,
    NULL,
    ngx_http_idem_rewrite_number,
    ngx_http_idem_rewrite_string,
    ngx_http_idem_rewrite_start_map,
    ngx_http_idem_rewrite_map_key,
    ngx_http_idem_rewrite_end_map,
    ngx_http_idem_rewrite_start_array,
    ngx_http_idem_rewrite_end_array
};


#define ngx_http_idem_rewrite_ok(rc)  ((rc) == yajl_gen_status_ok)


/* NGX_OK whether or not it was rewritten; NGX_ERROR: no memory */

ngx_int_t
ngx_http_idem_replay_json(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body)
{
    ngx_uint_t               i;
    ngx_http_idem_rewrite_t  w;

    /* what the application itself encoded is not ours to open */

    if (r->headers_out.content_encoding || body->len == 0) {
        return NGX_OK;
    }

    ngx_memzero(&w, sizeof(ngx_http_idem_rewrite_t));

    w.member = ctx->conf->replay_json->elts;
    w.nmembers = ctx->conf->replay_json->nelts;

    w.value = ngx_palloc(r->pool,
                         w.nmembers * sizeof(ngx_http_idem_rewrite_value_t));
    if (w.value == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < w.nmembers; i++) {
        if (ngx_http_idem_rewrite_value(r, ctx, &w.member[i], &w.value[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_idem_is_sse(r)
           ? ngx_http_idem_rewrite_events(r, &w, body)
           : ngx_http_idem_rewrite_object(r, &w, body);
}


/* for this request: of its own body, with its JSON type; or of variables */

static ngx_int_t
ngx_http_idem_rewrite_value(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_replay_member_t *member,
    ngx_http_idem_rewrite_value_t *value)
{
    ngx_int_t                           rc;
    const ngx_http_idem_json_member_t  *m;

    value->keep = 0;

    if (member->from.len) {

        m = ctx->body.parsed
            ? ngx_http_idem_json_member(ctx->body.json, member->wanted) : NULL;

        /* without it, or with two of it, the stored one stays */

        if (m == NULL || m->count != 1
            || m->kind == NGX_HTTP_IDEM_JSON_ARRAY
            || m->kind == NGX_HTTP_IDEM_JSON_OBJECT)
        {
            value->keep = 1;
            return NGX_OK;
        }

        value->text = m->value;
        value->json = (m->kind != NGX_HTTP_IDEM_JSON_STRING);

        return NGX_OK;
    }

    if (ngx_http_complex_value(r, &member->value, &value->text) != NGX_OK) {
        return NGX_ERROR;
    }

    /* true, 17, "text" or {"a":1} as they are; all else is a string */

    rc = ngx_http_idem_yajl_valid(&value->text);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    value->json = (rc == NGX_OK);

    return NGX_OK;
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
        rc = ngx_http_idem_sse_next(r->pool, &rest, &event);

        if (rc == NGX_DONE) {
            break;
        }

        if (rc == NGX_OK) {
            rc = ngx_http_idem_is_rpc_response(&event.data,
                                               r->connection->log);
        }

        if (rc == NGX_DECLINED) {
            continue;
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


/* the events that were rewritten, and all that is between them */

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

    w->depth = 0;
    w->skip = 0;
    w->object = 0;

    ngx_http_idem_yajl_init(&w->yajl);

    rc = ngx_http_idem_rewrite(r, w, body);

    ngx_http_idem_yajl_done(&w->yajl);

    return rc;
}


static ngx_int_t
ngx_http_idem_rewrite(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body)
{
    size_t                len;
    u_char               *p;
    yajl_handle           parser;
    yajl_status           status;
    const unsigned char  *text;

    if (setjmp(w->yajl.no_memory)) {
        return NGX_ERROR;
    }

    w->gen = yajl_gen_alloc(&w->yajl.funcs);
    (void) yajl_gen_config(w->gen, yajl_gen_validate_utf8, 1);

    parser = yajl_alloc(&ngx_http_idem_rewrite_callbacks, &w->yajl.funcs, w);

    status = yajl_parse(parser, body->data, body->len);

    if (status == yajl_status_ok) {
        status = yajl_complete_parse(parser);
    }

    if (status != yajl_status_ok || !w->object
        || !ngx_http_idem_rewrite_ok(yajl_gen_get_buf(w->gen, &text,
                                                      &len)))
    {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, text, len);

    body->data = p;
    body->len = len;

    return NGX_OK;
}


/* at the end of the object, in the order of the directives */

static void
ngx_http_idem_rewrite_set(ngx_http_idem_rewrite_t *w)
{
    ngx_uint_t  i;

    for (i = 0; i < w->nmembers; i++) {

        if (w->value[i].keep) {
            continue;
        }

        (void) yajl_gen_string(w->gen, w->member[i].member.data,
                               w->member[i].member.len);

        if (w->value[i].json) {
            (void) yajl_gen_number(w->gen, (char *) w->value[i].text.data,
                                   w->value[i].text.len);

        } else if (yajl_gen_string(w->gen, w->value[i].text.data,
                                   w->value[i].text.len)
                   == yajl_gen_invalid_string)
        {
            /* a variable may have any bytes, and JSON has UTF-8 only */

            (void) yajl_gen_null(w->gen);
        }
    }
}


static int
ngx_http_idem_rewrite_skipped(ngx_http_idem_rewrite_t *w)
{
    if (w->skip == 0) {
        return 0;
    }

    /* the value of the member itself ends the leaving out */

    if (w->depth == w->skip) {
        w->skip = 0;
    }

    return 1;
}


static int
ngx_http_idem_rewrite_null(void *data)
{
    ngx_http_idem_rewrite_t  *w = data;

    return ngx_http_idem_rewrite_skipped(w)
           || ngx_http_idem_rewrite_ok(yajl_gen_null(w->gen));
}


static int
ngx_http_idem_rewrite_boolean(void *data, int value)
{
    ngx_http_idem_rewrite_t  *w = data;

    return ngx_http_idem_rewrite_skipped(w)
           || ngx_http_idem_rewrite_ok(yajl_gen_bool(w->gen, value));
}


static int
ngx_http_idem_rewrite_number(void *data, const char *p, size_t len)
{
    ngx_http_idem_rewrite_t  *w = data;

    return ngx_http_idem_rewrite_skipped(w)
           || ngx_http_idem_rewrite_ok(yajl_gen_number(w->gen, p, len));
}


static int
ngx_http_idem_rewrite_string(void *data, const unsigned char *p, size_t len)
{
    ngx_http_idem_rewrite_t  *w = data;

    return ngx_http_idem_rewrite_skipped(w)
           || ngx_http_idem_rewrite_ok(yajl_gen_string(w->gen, p, len));
}


static int
ngx_http_idem_rewrite_start_map(void *data)
{
    ngx_http_idem_rewrite_t  *w = data;

    if (w->depth++ == 0) {
        w->object = 1;
    }

    return w->skip
           || ngx_http_idem_rewrite_ok(yajl_gen_map_open(w->gen));
}


static int
ngx_http_idem_rewrite_map_key(void *data, const unsigned char *p, size_t len)
{
    ngx_http_idem_rewrite_t  *w = data;

    ngx_uint_t  i;

    if (w->skip) {
        return 1;
    }

    if (w->depth == 1) {
        for (i = 0; i < w->nmembers; i++) {
            if (!w->value[i].keep && w->member[i].member.len == len
                && ngx_memcmp(w->member[i].member.data, p, len) == 0)
            {
                w->skip = w->depth;
                return 1;
            }
        }
    }

    return ngx_http_idem_rewrite_ok(yajl_gen_string(w->gen, p, len));
}


static int
ngx_http_idem_rewrite_end_map(void *data)
{
    ngx_http_idem_rewrite_t  *w = data;

    w->depth--;

    if (ngx_http_idem_rewrite_skipped(w)) {
        return 1;
    }

    if (w->depth == 0) {
        ngx_http_idem_rewrite_set(w);
    }

    return ngx_http_idem_rewrite_ok(yajl_gen_map_close(w->gen));
}


static int
ngx_http_idem_rewrite_start_array(void *data)
{
    ngx_http_idem_rewrite_t  *w = data;

    if (w->depth++ == 0) {
        return 0;
    }

    return w->skip
           || ngx_http_idem_rewrite_ok(yajl_gen_array_open(w->gen));
}


static int
ngx_http_idem_rewrite_end_array(void *data)
{
    ngx_http_idem_rewrite_t  *w = data;

    w->depth--;

    return ngx_http_idem_rewrite_skipped(w)
           || ngx_http_idem_rewrite_ok(yajl_gen_array_close(w->gen));
}
