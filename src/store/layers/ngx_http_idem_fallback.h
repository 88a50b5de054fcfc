
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The fallback: a store that combines two, the primary and the ledger, which
 * takes over while the primary fails.
 *
 *   ..._fallback.c        which of the two is asked
 *   ..._fallback_conf.c   "fallback=" in the configuration
 */


#ifndef _NGX_HTTP_IDEM_FALLBACK_H_INCLUDED_
#define _NGX_HTTP_IDEM_FALLBACK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layer.h"
#include "store/zone/ngx_http_idem_shared.h"


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


/* ..._fallback.c */

extern const ngx_http_idem_backend_t  ngx_http_idem_fallback_backend;

#define ngx_http_idem_fallback_conf(op)                                       \
    ((ngx_http_idem_fallback_t *) (op)->store->conf)

/* ..._fallback_conf.c */

/* returns the combined store of the two, which locations share */
ngx_http_idem_store_t *ngx_http_idem_fallback(ngx_conf_t *cf,
    ngx_array_t *all, ngx_http_idem_store_t *primary,
    ngx_http_idem_store_t *ledger);
ngx_int_t ngx_http_idem_fallback_left(ngx_conf_t *cf);
char *ngx_http_idem_fallback_init(ngx_conf_t *cf, ngx_array_t *all);
void ngx_http_idem_fallback_bind(ngx_array_t *all);


#endif /* _NGX_HTTP_IDEM_FALLBACK_H_INCLUDED_ */
