
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The layers around a remote store, which may be down.  Each layer is itself
 * a store:
 *
 *   cache    keeps completed records in this nginx for a while
 *   outbox   keeps commits that could not reach the store, answers begins from
 *            them, and retries them
 *   breaker  stops asking a store that is down, but for probes
 *
 * in that order, the outermost first.  The fallback is a store that combines
 * two: a primary, and a ledger that takes over while the primary fails.
 *
 *   ..._layer.c           operations that a layer passes on to the inner store
 *   ..._layers_conf.c     directives in the block of a store; nesting
 */


#ifndef _NGX_HTTP_IDEM_LAYERS_H_INCLUDED_
#define _NGX_HTTP_IDEM_LAYERS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layer.h"
#include "store/layers/ngx_http_idem_outbox.h"
#include "store/zone/ngx_http_idem_shared.h"
#include "store/zone/ngx_http_idem_zone.h"


/* ..._breaker.c */

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


/* ..._cache.c */

typedef struct {
    ngx_http_idem_layer_t    layer;
    ngx_msec_t               ttl;
    ngx_http_idem_records_t  z;
} ngx_http_idem_cache_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_cache_backend;

/* drops a record that was removed, possibly by another host */
void ngx_http_idem_cache_drop(ngx_http_idem_cache_t *cache, u_char *id);


/* ..._fallback.c: which of the two stores is asked */

/* in shared memory */

typedef struct {
    ngx_atomic_t                    until;      /* when the last record in the
                                                   ledger expires; 0: it has
                                                   none */
} ngx_http_idem_fallback_sh_t;


typedef struct {
    ngx_http_idem_store_t    store;             /* the combined store */
    ngx_http_idem_store_t    primary;           /* as declared, but without
                                                   metrics: the combined store
                                                   has them */
    ngx_http_idem_store_t   *declared;
    ngx_http_idem_store_t   *ledger;
    ngx_http_idem_store_t    both;              /* only a value for
                                                   op->where */
    ngx_http_idem_shared_t   shared;
    time_t                   logged;            /* last warning of this
                                                   worker */
} ngx_http_idem_fallback_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_fallback_backend;

#define ngx_http_idem_fallback_conf(op)                                       \
    ((ngx_http_idem_fallback_t *) (op)->store->conf)

/* as ngx_http_idem_layer_ask(), with another hold and is_waiter */
ngx_int_t ngx_http_idem_fallback_ask(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *store, ngx_http_idem_layer_pt done, uintptr_t note,
    ngx_uint_t hold, ngx_uint_t is_waiter);

/* releases the lock of a begin or a commit in one of the two stores */
void ngx_http_idem_fallback_give_back(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *store);

/* the ledger has a record that lives for "life" */
void ngx_http_idem_fallback_used(ngx_http_idem_fallback_t *f,
    ngx_msec_t life);

/* ..._fallback_both.c */

ngx_int_t ngx_http_idem_fallback_both(ngx_http_idem_op_t *op);

/*
 * The lock in the ledger is about to end, or has been renewed; "note" is that
 * of the inner operation.
 */
void ngx_http_idem_fallback_both_end(uintptr_t note);

/* ..._fallback_conf.c */

/* returns the combined store of the two, which locations share */
ngx_http_idem_store_t *ngx_http_idem_fallback(ngx_conf_t *cf,
    ngx_array_t *all, ngx_http_idem_store_t *primary,
    ngx_http_idem_store_t *ledger);
char *ngx_http_idem_fallback_init(ngx_conf_t *cf, ngx_array_t *all);
void ngx_http_idem_fallback_bind(ngx_array_t *all);

/* for ngx_http_idem_zones_left() */
ngx_int_t ngx_http_idem_fallback_dropped(ngx_conf_t *cf,
    ngx_shm_zone_t *old);


/* ..._layers_conf.c */

/* for remote stores only */

struct ngx_http_idem_layers_s {
    ngx_http_idem_breaker_t *breaker;           /* or NULL */
    ngx_http_idem_cache_t   *cache;             /* or NULL */
    ngx_http_idem_outbox_t   outbox;
};


/* directives in the block of a store; their conf is store->layers */
extern ngx_http_idem_store_command_t  ngx_http_idem_layers_commands[];

/* puts the layers around a store after init_conf() of its backend */
char *ngx_http_idem_layers_wrap(ngx_conf_t *cf, ngx_http_idem_store_t *store);


#endif /* _NGX_HTTP_IDEM_LAYERS_H_INCLUDED_ */
