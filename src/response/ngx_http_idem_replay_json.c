
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
 *
 * A large object is parsed in further turns of the event loop.  Called by the
 * replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <yajl/yajl_gen.h>

#include "request/ngx_http_idem_request.h"
#include "response/ngx_http_idem_sse.h"
#include "response/ngx_http_idem_yajl.h"


/* what is parsed in one turn of the event loop: 1 to 3 ms */
#define NGX_HTTP_IDEM_REWRITE_PIECE  (256 * 1024)

/* of the next turn; with 0 it would be this one */
#define NGX_HTTP_IDEM_REWRITE_PAUSE  1


/* a member, and its value for this request */

typedef struct {
    ngx_str_t                              text;
    ngx_uint_t                             json;     /* it stands as it is  */
    ngx_uint_t                      keep;            /* what is stored      */
} ngx_http_idem_rewrite_value_t;


struct ngx_http_idem_rewrite_s {
    ngx_http_idem_yajl_t            yajl;
    yajl_gen                        gen;
    yajl_handle                     parser;
    ngx_http_idem_replay_member_t  *member;
    ngx_http_idem_rewrite_value_t  *value;
    ngx_uint_t                      nmembers;
    ngx_uint_t                      depth;
    ngx_uint_t                      skip;            /* depth of a member that
                                                        is set anew, and its
                                                        value left out     */
    ngx_uint_t                      object;
    ngx_str_t                       body;
    size_t                          parsed;          /* bytes of it         */
    ngx_http_idem_inflated_pt       rewritten;
    ngx_event_t                     event;
};


static ngx_int_t ngx_http_idem_rewrite_value(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_replay_member_t *member,
    ngx_http_idem_rewrite_value_t *value);
static ngx_int_t ngx_http_idem_rewrite_events(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_join(ngx_http_request_t *r,
    ngx_array_t *events, size_t len, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_object(ngx_http_request_t *r,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite_start(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_rewrite_t *w, ngx_str_t *body);
static void ngx_http_idem_rewrite_handler(ngx_event_t *ev);
static void ngx_http_idem_rewrite_done(void *data);
static void ngx_http_idem_rewrite_init(ngx_http_idem_rewrite_t *w,
    ngx_str_t *body);
static ngx_int_t ngx_http_idem_rewrite(ngx_http_idem_rewrite_t *w,
    size_t piece, ngx_str_t *text);
static ngx_int_t ngx_http_idem_rewrite_piece(ngx_http_idem_rewrite_t *w,
    size_t piece, ngx_str_t *text);
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


/*
 * NGX_OK whether or not it was rewritten; NGX_ERROR: no memory; NGX_AGAIN: it
 * goes on in further turns, and "rewritten" is called in the end.
 */

ngx_int_t
ngx_http_idem_replay_json(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body,
    ngx_http_idem_inflated_pt rewritten)
{
    ngx_uint_t                i;
    ngx_http_idem_rewrite_t  *w;

    /* what the application itself encoded is not ours to open */

    if (r->headers_out.content_encoding || body->len == 0) {
        return NGX_OK;
    }

    w = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_rewrite_t));
    if (w == NULL) {
        return NGX_ERROR;
    }

    w->rewritten = rewritten;
    w->member = ctx->conf->replay_json->elts;
    w->nmembers = ctx->conf->replay_json->nelts;

    w->value = ngx_palloc(r->pool, w->nmembers
                                   * sizeof(ngx_http_idem_rewrite_value_t));
    if (w->value == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < w->nmembers; i++) {
        if (ngx_http_idem_rewrite_value(r, ctx, &w->member[i], &w->value[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_idem_is_sse(r)) {
        return ngx_http_idem_rewrite_events(r, w, body);
    }

    return body->len <= NGX_HTTP_IDEM_REWRITE_PIECE
           ? ngx_http_idem_rewrite_object(r, w, body)
           : ngx_http_idem_rewrite_start(r, ctx, w, body);
}


/* the text that is made stays where it is: what is large is not copied */

static ngx_int_t
ngx_http_idem_rewrite_start(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_rewrite_t *w, ngx_str_t *body)
{
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(r->pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idem_rewrite_init(w, body);

    cln->handler = ngx_http_idem_rewrite_done;
    cln->data = w;

    w->event.handler = ngx_http_idem_rewrite_handler;
    w->event.data = ctx;
    w->event.log = r->connection->log;

    ctx->answer.rewrite = w;

    ngx_add_timer(&w->event, NGX_HTTP_IDEM_REWRITE_PAUSE);

    return NGX_AGAIN;
}


static void
ngx_http_idem_rewrite_handler(ngx_event_t *ev)
{
    ngx_int_t                 rc;
    ngx_str_t                 text;
    ngx_connection_t         *c;
    ngx_http_request_t       *r;
    ngx_http_idem_ctx_t      *ctx;
    ngx_http_idem_rewrite_t  *w;

    ctx = ev->data;
    r = ctx->request;
    c = r->connection;
    w = ctx->answer.rewrite;

    ngx_http_set_log_request(c->log, r);

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, c->log, 0,
                   "idempotency: a turn of rewriting, at %uz", w->parsed);

    rc = ngx_http_idem_rewrite(w, NGX_HTTP_IDEM_REWRITE_PIECE, &text);

    if (rc == NGX_AGAIN) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_REWRITE_PAUSE);
        return;
    }

    if (rc == NGX_DECLINED) {
        text = w->body;
        rc = NGX_OK;
    }

    ctx->answer.rewrite = NULL;

    w->rewritten(r, ctx, rc, &text);

    ngx_http_run_posted_requests(c);
}


void
ngx_http_idem_replay_json_cleanup(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_rewrite_t  *w;

    w = ctx->answer.rewrite;

    if (w && w->event.timer_set) {
        ngx_del_timer(&w->event);
    }
}


static void
ngx_http_idem_rewrite_done(void *data)
{
    ngx_http_idem_rewrite_t  *w = data;

    ngx_http_idem_yajl_done(&w->yajl);
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
    u_char     *p;
    ngx_int_t   rc;
    ngx_str_t   text;

    ngx_http_idem_rewrite_init(w, body);

    rc = ngx_http_idem_rewrite(w, body->len, &text);

    if (rc == NGX_OK) {
        p = ngx_pnalloc(r->pool, text.len);

        if (p) {
            ngx_memcpy(p, text.data, text.len);

            body->data = p;
            body->len = text.len;

        } else {
            rc = NGX_ERROR;
        }
    }

    ngx_http_idem_yajl_done(&w->yajl);

    return rc == NGX_ERROR ? NGX_ERROR : NGX_OK;
}


static void
ngx_http_idem_rewrite_init(ngx_http_idem_rewrite_t *w, ngx_str_t *body)
{
    w->depth = 0;
    w->skip = 0;
    w->object = 0;
    w->parser = NULL;
    w->parsed = 0;
    w->body = *body;

    ngx_http_idem_yajl_init(&w->yajl);
}


/*
 * Parses a piece more.  NGX_OK: "text" is the whole in its new form, in yajl's
 * memory; NGX_DECLINED: it is no object, and stays as it is.
 */

static ngx_int_t
ngx_http_idem_rewrite(ngx_http_idem_rewrite_t *w, size_t piece,
    ngx_str_t *text)
{
    /* in a frame of its own: variables do not survive a longjmp() */

    return setjmp(w->yajl.no_memory) ? NGX_ERROR
                                     : ngx_http_idem_rewrite_piece(w, piece,
                                                                   text);
}


static ngx_int_t
ngx_http_idem_rewrite_piece(ngx_http_idem_rewrite_t *w, size_t piece,
    ngx_str_t *text)
{
    size_t                len;
    yajl_status           status;
    const unsigned char  *p;

    if (w->parser == NULL) {
        w->gen = yajl_gen_alloc(&w->yajl.funcs);
        (void) yajl_gen_config(w->gen, yajl_gen_validate_utf8, 1);

        w->parser = yajl_alloc(&ngx_http_idem_rewrite_callbacks,
                               &w->yajl.funcs, w);
    }

    piece = ngx_min(piece, w->body.len - w->parsed);

    status = yajl_parse(w->parser, w->body.data + w->parsed, piece);

    w->parsed += piece;

    if (status == yajl_status_ok && w->parsed < w->body.len) {
        return NGX_AGAIN;
    }

    if (status == yajl_status_ok) {
        status = yajl_complete_parse(w->parser);
    }

    if (status != yajl_status_ok || !w->object
        || !ngx_http_idem_rewrite_ok(yajl_gen_get_buf(w->gen, &p, &len)))
    {
        return NGX_DECLINED;
    }

    text->data = (u_char *) p;
    text->len = len;

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
