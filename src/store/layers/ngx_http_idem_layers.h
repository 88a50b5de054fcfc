
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What stands around a store that is elsewhere, and can be away.  Each layer
 * is itself a store, with a header of its own:
 *
 *   cache    completed records, in this nginx for a while
 *   outbox   commits that could not reach the store: answered from here, and
 *            tried again
 *   breaker  asks a store that is down only now and then
 *
 * in that order, the outermost first.  The fallback is a store of two: one
 * that is asked, and one for when it fails.
 *
 *   ..._layer.c           an operation handed down as one of its own
 *   ..._layers_conf.c     directives in the block of a store; who is in whom
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


/* of a store that is elsewhere; of others there is none */

struct ngx_http_idem_layers_s {
    ngx_http_idem_breaker_t *breaker;           /* or NULL                  */
    ngx_http_idem_cache_t   *cache;             /* or NULL                  */
    ngx_http_idem_outbox_t   outbox;
};


/* directives in the block of a store: they set store->layers */
extern ngx_http_idem_store_command_t  ngx_http_idem_layers_commands[];

/* puts the layers around a store whose own conf is done */
char *ngx_http_idem_layers_wrap(ngx_conf_t *cf, ngx_http_idem_store_t *store);


#endif /* _NGX_HTTP_IDEM_LAYERS_H_INCLUDED_ */
