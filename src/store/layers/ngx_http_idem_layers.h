
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The layers around a remote store, which may be down.  Each layer is itself
 * a store, with a header of its own:
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

#include "store/layers/ngx_http_idem_breaker.h"
#include "store/layers/ngx_http_idem_cache.h"
#include "store/layers/ngx_http_idem_fallback.h"
#include "store/layers/ngx_http_idem_outbox.h"


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
