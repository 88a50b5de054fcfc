
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The breaker: asks a store that is down only now and then.
 */


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


/* of a node, or of the whole store where it has no nodes */

typedef struct {
    ngx_uint_t                      owner;      /* of the node's place      */
    ngx_uint_t                      state;
    ngx_uint_t                      fails;      /* in a row                 */
    ngx_msec_t                      opened;
    ngx_msec_t                      until;      /* open, or the probe's time */
    uintptr_t                       probe;      /* number of the last       */
} ngx_http_idem_breaker_sh_t;

/* by place of the node; the first is that of what has none */
#define NGX_HTTP_IDEM_BREAKERS  (1 + NGX_HTTP_IDEM_NODES_MAX)


typedef struct {
    ngx_http_idem_layer_t    layer;
    ngx_uint_t               fails;
    ngx_msec_t               reset;
    ngx_http_idem_shared_t   shared;
} ngx_http_idem_breaker_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_breaker_backend;

/*
 * For the figures: of the node at that place; at 0, the worst of the store.
 * NGX_DECLINED if the store has no breaker.
 */
ngx_int_t ngx_http_idem_breaker_state(
    ngx_http_idem_store_t *store, ngx_uint_t place);


#endif /* _NGX_HTTP_IDEM_BREAKER_H_INCLUDED_ */
