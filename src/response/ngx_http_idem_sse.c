
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Stored event streams: finds their events, and the JSON-RPC responses among
 * them, as MCP sends.
 *
 * Called by code that inspects a response when it is stored and when it is
 * replayed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "record/ngx_http_idem_record.h"


static ngx_int_t ngx_http_idem_sse_data(ngx_pool_t *pool,
    ngx_http_idem_sse_event_t *event, ngx_uint_t nlines);
static u_char *ngx_http_idem_sse_value(u_char *line, u_char *end,
    const ngx_str_t *name);
static u_char *ngx_http_idem_sse_eol(u_char *p, u_char *last);
static u_char *ngx_http_idem_sse_skip_eol(u_char *p, u_char *last);
static ngx_int_t ngx_http_idem_is_rpc_response(ngx_str_t *data);


/* members that a JSON-RPC response has, or must not have */

enum {
    NGX_HTTP_IDEM_RPC_VERSION = 0,
    NGX_HTTP_IDEM_RPC_RESULT,
    NGX_HTTP_IDEM_RPC_ERROR,
    NGX_HTTP_IDEM_RPC_METHOD,
    NGX_HTTP_IDEM_RPC_N
};


static ngx_str_t  ngx_http_idem_rpc_members[] = {
    ngx_string("jsonrpc"),
    ngx_string("result"),
    ngx_string("error"),
    ngx_string("method")
};


static ngx_http_idem_json_options_t  ngx_http_idem_rpc_options = {
    .size = NGX_HTTP_IDEM_RECORD_MAX_LEN,
    .depth = NGX_HTTP_IDEM_JSON_DEPTH,
    .wanted = ngx_http_idem_rpc_members,
    .nwanted = NGX_HTTP_IDEM_RPC_N
};


static const ngx_str_t  ngx_http_idem_sse_data_name = ngx_string("data");
static const ngx_str_t  ngx_http_idem_sse_id_name = ngx_string("id");


ngx_uint_t
ngx_http_idem_is_type(ngx_http_request_t *r, const ngx_str_t *type)
{
    ngx_str_t  *sent;

    sent = &r->headers_out.content_type;

    return sent->len >= type->len
           && ngx_strncasecmp(sent->data, type->data, type->len) == 0
           && (sent->len == type->len
               || sent->data[type->len] == ';'
               || sent->data[type->len] == ' ');
}


ngx_uint_t
ngx_http_idem_is_sse(ngx_http_request_t *r)
{
    static const ngx_str_t  sse = ngx_string("text/event-stream");

    return ngx_http_idem_is_type(r, &sse);
}


ngx_int_t
ngx_http_idem_sse_response(ngx_pool_t *pool, ngx_str_t *rest,
    ngx_http_idem_sse_event_t *event)
{
    u_char      *p, *line, *eol, *last;
    ngx_int_t    rc;
    ngx_uint_t   n, apart;

    p = rest->data;
    last = p + rest->len;

    n = 0;
    apart = 0;

    ngx_memzero(event, sizeof(ngx_http_idem_sse_event_t));

    while (p < last) {
        line = p;
        eol = ngx_http_idem_sse_eol(p, last);
        p = ngx_http_idem_sse_skip_eol(eol, last);

        if (p == eol) {
            break;
        }

        if (line != eol) {

            if (ngx_http_idem_sse_value(line, eol,
                                        &ngx_http_idem_sse_data_name)
                == NULL)
            {
                continue;
            }

            if (n++ == 0) {
                event->lines.data = line;

            } else if (event->lines.data + event->lines.len != line) {
                apart = 1;
            }

            event->lines.len = p - event->lines.data;
            event->end.data = eol;
            event->end.len = p - eol;

            continue;
        }

        /* a blank line ends an event */

        rest->data = p;
        rest->len = last - p;

        if (n && !apart) {
            rc = ngx_http_idem_sse_data(pool, event, n);

            if (rc == NGX_OK) {
                rc = ngx_http_idem_is_rpc_response(&event->data);
            }

            if (rc != NGX_DECLINED) {
                return rc;
            }
        }

        n = 0;
        apart = 0;
        event->lines.len = 0;
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_idem_sse_data(ngx_pool_t *pool, ngx_http_idem_sse_event_t *event,
    ngx_uint_t nlines)
{
    u_char  *p, *value, *eol, *last, *dst;

    p = event->lines.data;
    last = p + event->lines.len;

    if (nlines == 1) {
        event->data.data = ngx_http_idem_sse_value(p, event->end.data,
                                               &ngx_http_idem_sse_data_name);
        event->data.len = event->end.data - event->data.data;
        return NGX_OK;
    }

    dst = ngx_pnalloc(pool, event->lines.len);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    event->data.data = dst;

    while (p < last) {
        eol = ngx_http_idem_sse_eol(p, last);
        value = ngx_http_idem_sse_value(p, eol, &ngx_http_idem_sse_data_name);

        dst = ngx_cpymem(dst, value, eol - value);
        *dst++ = '\n';

        p = ngx_http_idem_sse_skip_eol(eol, last);
    }

    event->data.len = dst - 1 - event->data.data;

    return NGX_OK;
}


/* the value of "name: value", "name:value" or "name"; NULL: another field */

static u_char *
ngx_http_idem_sse_value(u_char *line, u_char *end, const ngx_str_t *name)
{
    if ((size_t) (end - line) < name->len
        || ngx_memcmp(line, name->data, name->len) != 0)
    {
        return NULL;
    }

    line += name->len;

    if (line == end) {
        return line;
    }

    if (*line++ != ':') {
        return NULL;
    }

    return (line < end && *line == ' ') ? line + 1 : line;
}


static u_char *
ngx_http_idem_sse_eol(u_char *p, u_char *last)
{
    while (p < last && *p != CR && *p != LF) {
        p++;
    }

    return p;
}


static u_char *
ngx_http_idem_sse_skip_eol(u_char *p, u_char *last)
{
    if (p < last && *p == CR) {
        p++;

        return (p < last && *p == LF) ? p + 1 : p;
    }

    return (p < last) ? p + 1 : p;
}


/* if the id is not found, the client gets the whole body */

void
ngx_http_idem_sse_resume(ngx_http_request_t *r, ngx_str_t *body)
{
    u_char           *p, *line, *eol, *last, *id;
    ngx_uint_t        found, n;
    ngx_table_elt_t  *h;

    static ngx_str_t  name = ngx_string("last_event_id");

    h = ngx_http_idem_request_header(r, &name, &n);

    if (h == NULL || h->value.len == 0) {
        return;
    }

    p = body->data;
    last = p + body->len;

    found = 0;

    while (p < last) {
        line = p;
        eol = ngx_http_idem_sse_eol(p, last);
        p = ngx_http_idem_sse_skip_eol(eol, last);

        if (line == eol && found) {
            body->data = p;
            body->len = last - p;
            return;
        }

        id = ngx_http_idem_sse_value(line, eol, &ngx_http_idem_sse_id_name);

        if (id) {
            found = (size_t) (eol - id) == h->value.len
                    && ngx_memcmp(id, h->value.data, h->value.len) == 0;
        }
    }
}


/* NGX_OK: a JSON-RPC response; NGX_DECLINED: none; NGX_ERROR: no memory */

static ngx_int_t
ngx_http_idem_is_rpc_response(ngx_str_t *data)
{
    u_char                              digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
    ngx_int_t                           rc;
    ngx_uint_t                          i, count[NGX_HTTP_IDEM_RPC_N];
    ngx_http_idem_json_t               *json;

    /* a quick check saves the parser in most cases */

    if (data->len < sizeof("\"jsonrpc\"")
        || ngx_strnstr(data->data, "\"jsonrpc\"", data->len) == NULL)
    {
        return NGX_DECLINED;
    }

    json = ngx_http_idem_json_create(&ngx_http_idem_rpc_options);
    if (json == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_http_idem_json_feed(json, data->data, data->len);

    rc = ngx_http_idem_json_done(json, digest);

    if (rc == NGX_OK) {
        for (i = 0; i < NGX_HTTP_IDEM_RPC_N; i++) {
            count[i] = ngx_http_idem_json_member(json, i)->count;
        }

        if (count[NGX_HTTP_IDEM_RPC_VERSION] == 0
            || count[NGX_HTTP_IDEM_RPC_METHOD]
            || (count[NGX_HTTP_IDEM_RPC_RESULT] == 0
                && count[NGX_HTTP_IDEM_RPC_ERROR] == 0))
        {
            rc = NGX_DECLINED;
        }
    }

    ngx_http_idem_json_destroy(json);

    return rc;
}
