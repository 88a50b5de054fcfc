
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The cache: completed records of a remote store, kept in this nginx for a
 * while.
 */


#ifndef _NGX_HTTP_IDEM_CACHE_H_INCLUDED_
#define _NGX_HTTP_IDEM_CACHE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layer.h"
#include "store/zone/ngx_http_idem_zone.h"


typedef struct {
    ngx_http_idem_layer_t    layer;
    ngx_msec_t               ttl;
    ngx_http_idem_records_t  z;
} ngx_http_idem_cache_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_cache_backend;

/* drops a record that was removed, possibly by another host */
void ngx_http_idem_cache_drop(ngx_http_idem_cache_t *cache, u_char *id);


#endif /* _NGX_HTTP_IDEM_CACHE_H_INCLUDED_ */
