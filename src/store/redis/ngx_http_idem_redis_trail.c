
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events in Redis: a stream with the key "<prefix>events", shared by all
 * hosts.
 *
 * A batch of events is written by one script; another one reads or removes a
 * slice.  Both are sent like any other operation, to the server of the key.
 * A cursor is the id of the last entry that was read.  The server assigns the
 * ids by its clock, so no entry is added before one that was read.
 *
 * Called when an operation is encoded and when it has a reply.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_TRAIL_ID    41          /* "<ms>-<n>"           */


static u_char *ngx_http_idem_redis_put_member(u_char *p, ngx_str_t *name,
    ngx_str_t *value);
static ngx_int_t ngx_http_idem_redis_trail_after(ngx_str_t *cursor,
    u_char **last);
static ngx_int_t ngx_http_idem_redis_trail_found(ngx_http_idem_op_t *op,
    u_char *p, u_char *last);


size_t
ngx_http_idem_redis_trail_key(ngx_http_idem_redis_t *redis, u_char *key)
{
    return ngx_sprintf(key, "%Vevents", &redis->prefix) - key;
}


size_t
ngx_http_idem_redis_trail_size(ngx_http_idem_op_t *op)
{
    return op->trail->lines.len
           + op->trail->name.len + 2 * op->trail->value.len
           + op->trail->other_name.len + 2 * op->trail->other.len
           + 2 * NGX_HTTP_IDEM_REDIS_TRAIL_ID + 32;
}


/* the arguments after the tag */

u_char *
ngx_http_idem_redis_put_trail(u_char *p, ngx_http_idem_redis_call_t *call)
{
    u_char                 *q, id[2 * NGX_HTTP_IDEM_REDIS_TRAIL_ID];
    ngx_http_idem_op_t     *op;
    ngx_http_idem_trail_t  *t;

    op = call->call.data;
    t = op->trail;

    if (op->kind == NGX_HTTP_IDEM_OP_LOG) {
        p = ngx_redis_put_number(p, t->max);
        return ngx_redis_put(p, t->lines.data, t->lines.len);
    }

    q = id;

    if (t->cursor.len == 0) {
        q = ngx_sprintf(id, "%uL", t->since);

    } else if (ngx_http_idem_redis_trail_after(&t->cursor, &q) != NGX_OK) {

        /* not a cursor of ours: read from the end, where there is nothing */

        *q++ = '+';
    }

    p = ngx_redis_put(p, id, q - id);

    q = t->until ? ngx_sprintf(id, "%uL", t->until - 1) : id;

    if (q == id) {
        *q++ = '+';
    }

    p = ngx_redis_put(p, id, q - id);
    p = ngx_redis_put_number(p, NGX_HTTP_IDEM_TRAIL_SLICE);

    p = ngx_http_idem_redis_put_member(p, &t->name, &t->value);
    p = ngx_http_idem_redis_put_member(p, &t->other_name, &t->other);

    return ngx_redis_put_number(p, t->remove);
}


/* "name":"value", as in an event; or an empty argument */

static u_char *
ngx_http_idem_redis_put_member(u_char *p, ngx_str_t *name, ngx_str_t *value)
{
    size_t  len;
    u_char  text[2 * NGX_HTTP_IDEM_LINE_STRING];

    if (name->len == 0 || value->len == 0) {
        return ngx_redis_put(p, "", 0);
    }

    len = ngx_http_idem_line_escape(text, value) - text;

    p = ngx_redis_put_line(p, '$', name->len + len + 5);

    return ngx_sprintf(p, "\"%V\":\"%*s\"\r\n", name, len, text);
}


/* the next id after the cursor: Redis before 6.2 has no exclusive ranges */

static ngx_int_t
ngx_http_idem_redis_trail_after(ngx_str_t *cursor, u_char **last)
{
    u_char     *dash;
    ngx_int_t   ms, n;

    dash = ngx_strlchr(cursor->data, cursor->data + cursor->len, '-');

    if (dash == NULL) {
        return NGX_ERROR;
    }

    ms = ngx_atoi(cursor->data, dash - cursor->data);
    n = ngx_atoi(dash + 1, cursor->data + cursor->len - dash - 1);

    if (ms == NGX_ERROR || n == NGX_ERROR) {
        return NGX_ERROR;
    }

    *last = ngx_sprintf(*last, "%i-%i", ms, n + 1);

    return NGX_OK;
}


/* "p" is after the code of the reply; NGX_ERROR: not a reply to this call */

ngx_int_t
ngx_http_idem_redis_trail_result(ngx_http_idem_redis_call_t *call,
    u_char code, u_char *p, u_char *last)
{
    ngx_str_t               id;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_trail_t  *t;

    op = call->call.data;
    t = op->trail;

    op->result = NGX_HTTP_IDEM_OK;

    if (op->kind == NGX_HTTP_IDEM_OP_LOG) {
        return NGX_OK;
    }

    if (last - p < 2) {
        return NGX_ERROR;
    }

    id.len = ngx_http_idem_get16(p);
    id.data = p + 2;

    if (id.len > NGX_HTTP_IDEM_REDIS_TRAIL_ID
        || (size_t) (last - id.data) < id.len + 4)
    {
        return NGX_ERROR;
    }

    p = id.data + id.len;

    if (id.len) {
        ngx_memcpy(t->next, id.data, id.len);

        t->cursor.data = t->next;
        t->cursor.len = id.len;
    }

    t->more = (code == '1');
    t->matched = ngx_http_idem_get32(p);

    return ngx_http_idem_redis_trail_found(op, p + 4, last);
}


static ngx_int_t
ngx_http_idem_redis_trail_found(ngx_http_idem_op_t *op, u_char *p,
    u_char *last)
{
    ngx_str_t  text, *line;

    while (p < last) {

        if (last - p < 4) {
            return NGX_ERROR;
        }

        text.len = ngx_http_idem_get32(p);
        text.data = p + 4;

        if ((size_t) (last - text.data) < text.len) {
            return NGX_ERROR;
        }

        line = ngx_array_push(&op->trail->found);

        if (line) {
            line->len = text.len;
            line->data = ngx_pstrdup(op->pool, &text);
        }

        if (line == NULL || line->data == NULL) {
            ngx_http_idem_op_error(op, "no memory for events");
            return NGX_OK;
        }

        p = text.data + text.len;
    }

    return NGX_OK;
}
