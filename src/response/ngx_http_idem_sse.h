
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The events of a stored text/event-stream, and the JSON-RPC responses among
 * them: what idempotency_replay_json and idempotency_keep_json are about.
 */


#ifndef _NGX_HTTP_IDEM_SSE_H_INCLUDED_
#define _NGX_HTTP_IDEM_SSE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "canonical/ngx_http_idem_canon.h"


typedef struct {
    ngx_str_t    data;             /* its lines joined                      */
    ngx_str_t    lines;            /* that it is in, as they stand          */
    ngx_str_t    end;              /* of the last one: CR, LF or both       */
} ngx_http_idem_sse_event_t;


ngx_uint_t ngx_http_idem_is_type(ngx_http_request_t *r,
    const ngx_str_t *type);
ngx_uint_t ngx_http_idem_is_sse(ngx_http_request_t *r);

/*
 * The next event of "rest" that has data in lines that follow each other, for
 * as long as there is an event that ended: NGX_OK, or NGX_DONE; NGX_ERROR: no
 * memory
 */
ngx_int_t ngx_http_idem_sse_next(ngx_pool_t *pool, ngx_str_t *rest,
    ngx_http_idem_sse_event_t *event);

/*
 * An EventSource that comes back tells the last event it has (Last-Event-ID):
 * what is before the end of that one is taken out of "body"
 */
void ngx_http_idem_sse_resume(ngx_http_request_t *r, ngx_str_t *body);

/* NGX_OK: a JSON-RPC response; NGX_DECLINED: none; NGX_ERROR: no memory */
ngx_int_t ngx_http_idem_is_rpc_response(ngx_str_t *data, ngx_log_t *log);

/* memory for the parser, not of a pool */
void ngx_http_idem_log_mem(ngx_http_idem_canon_mem_t *mem, ngx_log_t *log);


#endif /* _NGX_HTTP_IDEM_SSE_H_INCLUDED_ */
