
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* The circuit breaker: stops asking a store that is down, but for probes. */


#ifndef _NGX_HTTP_IDEM_BREAKER_H_INCLUDED_
#define _NGX_HTTP_IDEM_BREAKER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layer.h"
#include "store/zone/ngx_http_idem_shared.h"


/* state of a breaker; the numbers are those of the metrics */

typedef enum {
    NGX_HTTP_IDEM_BREAKER_CLOSED = 0,
    NGX_HTTP_IDEM_BREAKER_OPEN,
    NGX_HTTP_IDEM_BREAKER_HALF_OPEN
} ngx_http_idem_breaker_state_e;


/* per node, or for the whole store if it has no nodes */

typedef struct {
    ngx_uint_t                      owner;      /* of the slot of the node */
    ngx_uint_t                      state;
    ngx_uint_t                      fails;      /* consecutive failures */
    ngx_msec_t                      opened;
    ngx_msec_t                      until;      /* end of the open state, or
                                                   of the probe */
    uintptr_t                       probe;      /* number of the last probe */
} ngx_http_idem_breaker_sh_t;

/* by slot of the node; the first is for records without one */
#define NGX_HTTP_IDEM_BREAKERS  (1 + NGX_HTTP_IDEM_NODES_MAX)


typedef struct {
    ngx_http_idem_layer_t    layer;
    ngx_uint_t               fails;
    ngx_msec_t               reset;
    ngx_http_idem_shared_t   shared;
} ngx_http_idem_breaker_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_breaker_backend;

/*
 * For the status endpoint: the state for a node; with slot 0, the worst
 * state of the store.  NGX_DECLINED: the store has no breaker.
 */
ngx_int_t ngx_http_idem_breaker_state(
    ngx_http_idem_store_t *store, ngx_uint_t slot);


#endif /* _NGX_HTTP_IDEM_BREAKER_H_INCLUDED_ */
