
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events of a stored text/event-stream, and the JSON-RPC responses among
 * them.  Used by idempotency_replay_json and idempotency_keep_json.
 */


#ifndef _NGX_HTTP_IDEM_SSE_H_INCLUDED_
#define _NGX_HTTP_IDEM_SSE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


typedef struct {
    ngx_str_t    data;             /* the joined data lines                 */
    ngx_str_t    lines;            /* the data lines as stored              */
    ngx_str_t    end;              /* of the last line: CR, LF or both      */
} ngx_http_idem_sse_event_t;


ngx_uint_t ngx_http_idem_is_type(ngx_http_request_t *r,
    const ngx_str_t *type);
ngx_uint_t ngx_http_idem_is_sse(ngx_http_request_t *r);

/*
 * Finds the next complete event in "rest" whose data lines are adjacent:
 * NGX_OK, or NGX_DONE if there is none, or NGX_ERROR without memory
 */
ngx_int_t ngx_http_idem_sse_next(ngx_pool_t *pool, ngx_str_t *rest,
    ngx_http_idem_sse_event_t *event);

/*
 * An EventSource that reconnects sends the id of its last event
 * (Last-Event-ID): removes the events up to that one from "body"
 */
void ngx_http_idem_sse_resume(ngx_http_request_t *r, ngx_str_t *body);

/* NGX_OK: a JSON-RPC response; NGX_DECLINED: none; NGX_ERROR: no memory */
ngx_int_t ngx_http_idem_is_rpc_response(ngx_str_t *data, ngx_log_t *log);


#endif /* _NGX_HTTP_IDEM_SSE_H_INCLUDED_ */
