
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* A small structure in shared memory, which survives a reload. */


#ifndef _NGX_HTTP_IDEM_SHARED_H_INCLUDED_
#define _NGX_HTTP_IDEM_SHARED_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    size_t                          size;
    ngx_slab_pool_t                *shpool;
    void                           *data;
} ngx_http_idem_shared_t;


/* s->data is valid, and zeroed at first, once nginx has created its zones */
char *ngx_http_idem_shared_add(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, const char *prefix, ngx_str_t *name, ngx_str_t *other);

/* the same, with the full name of the zone */
char *ngx_http_idem_shared_zone(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, ngx_str_t *zone);

/*
 * The same for a large table.  Only its size identifies it: a table with
 * another layout needs another size.
 */
ngx_int_t ngx_http_idem_shared_table(ngx_conf_t *cf,
    ngx_http_idem_shared_t *s, size_t size, ngx_str_t *zone);

/* the structure in a zone; NULL: there is none, or an incompatible one */
void *ngx_http_idem_shared_find(ngx_shm_zone_t *shm_zone, size_t size);

/* declares a zone of this module; NULL: it was logged why not */
ngx_shm_zone_t *ngx_http_idem_shared_memory(ngx_conf_t *cf, ngx_str_t *zone,
    size_t size, ngx_shm_zone_init_pt init, void *data);

/* makes the name "<prefix>_<name>[_<other>]" */
ngx_int_t ngx_http_idem_shared_name(ngx_conf_t *cf, ngx_str_t *dst,
    const char *prefix, ngx_str_t *name, ngx_str_t *other);


#endif /* _NGX_HTTP_IDEM_SHARED_H_INCLUDED_ */
