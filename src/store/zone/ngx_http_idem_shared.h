
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A small state that all workers share, and that a reload finds again.
 */


#ifndef _NGX_HTTP_IDEM_SHARED_H_INCLUDED_
#define _NGX_HTTP_IDEM_SHARED_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    size_t                          size;
    ngx_slab_pool_t                *shpool;
    void                           *data;
} ngx_http_idem_shared_t;


/* "s->data" is there, zeroed, once nginx has made its zones */
char *ngx_http_idem_shared_add(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, const char *prefix, ngx_str_t *name, ngx_str_t *other);

/* the same, by the whole name of the zone */
char *ngx_http_idem_shared_zone(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, ngx_str_t *zone);

/* what a zone of the configuration before holds; NULL: not such a thing */
void *ngx_http_idem_shared_old(ngx_shm_zone_t *old, size_t size);

/* <prefix>_<name>[_<other>] */
ngx_int_t ngx_http_idem_shared_name(ngx_conf_t *cf, ngx_str_t *dst,
    const char *prefix, ngx_str_t *name, ngx_str_t *other);


#endif /* _NGX_HTTP_IDEM_SHARED_H_INCLUDED_ */
