
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A small structure in shared memory, which survives a reload: a zone of its
 * own, named after the store it belongs to.
 *
 * Called while the configuration is read, by the owners of such structures.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem.h"
#include "store/zone/ngx_http_idem_shared.h"
#include "store/zone/ngx_http_idem_zone.h"


#define NGX_HTTP_IDEM_SHARED_MAGIC   0x49445331        /* "IDS1" */


/* a header identifies the structure: another build may have changed it */

typedef struct {
    uint32_t                        magic;
    uint32_t                        size;
    u_char                          data[1];
} ngx_http_idem_shared_head_t;

#define NGX_HTTP_IDEM_SHARED_DATA                                             \
    ngx_align(offsetof(ngx_http_idem_shared_head_t, data),                    \
              NGX_ALIGNMENT)


/* the slab pool needs some pages for itself, which have room for a small
   structure */
#define NGX_HTTP_IDEM_SHARED_PAGES                                            \
    (NGX_HTTP_IDEM_MIN_PAGES * ngx_pagesize)


static ngx_int_t ngx_http_idem_shared_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_int_t ngx_http_idem_shared_table_init(ngx_shm_zone_t *shm_zone,
    void *data);


ngx_int_t
ngx_http_idem_shared_name(ngx_conf_t *cf, ngx_str_t *dst,
    const char *prefix, ngx_str_t *name, ngx_str_t *other)
{
    u_char  *p;

    dst->data = ngx_pnalloc(cf->pool, ngx_strlen(prefix) + 1 + name->len
                                      + 1 + (other ? other->len : 0));
    if (dst->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(dst->data, "%s_%V", prefix, name);

    if (other) {
        p = ngx_sprintf(p, "_%V", other);
    }

    dst->len = p - dst->data;

    return NGX_OK;
}


char *
ngx_http_idem_shared_add(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, const char *prefix, ngx_str_t *name, ngx_str_t *other)
{
    ngx_str_t  zone;

    if (ngx_http_idem_shared_name(cf, &zone, prefix, name, other) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_shared_zone(cf, s, size, &zone);
}


char *
ngx_http_idem_shared_zone(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, ngx_str_t *zone)
{
    s->size = size;

    return ngx_http_idem_shared_memory(cf, zone, NGX_HTTP_IDEM_SHARED_PAGES,
                                       ngx_http_idem_shared_init, s)
           ? NGX_CONF_OK : NGX_CONF_ERROR;
}


ngx_int_t
ngx_http_idem_shared_table(ngx_conf_t *cf, ngx_http_idem_shared_t *s,
    size_t size, ngx_str_t *zone)
{
    s->size = size;

    return ngx_http_idem_shared_memory(cf, zone,
                                       size + NGX_HTTP_IDEM_SHARED_PAGES,
                                       ngx_http_idem_shared_table_init, s)
           ? NGX_OK : NGX_ERROR;
}


/* the tag is an address in nginx itself */

ngx_shm_zone_t *
ngx_http_idem_shared_memory(ngx_conf_t *cf, ngx_str_t *zone, size_t size,
    ngx_shm_zone_init_pt init, void *data)
{
    ngx_shm_zone_t  *shm_zone;

    shm_zone = ngx_shared_memory_add(cf, zone, size, ngx_http_idem_zone_tag);
    if (shm_zone == NULL) {
        return NULL;
    }

    if (shm_zone->init) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is already used by another store",
                           zone);
        return NULL;
    }

    shm_zone->init = init;
    shm_zone->data = data;

    return shm_zone;
}


static ngx_int_t
ngx_http_idem_shared_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_idem_shared_t       *s;
    ngx_http_idem_shared_head_t  *head;

    s = shm_zone->data;
    s->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;
    s->data = ngx_http_idem_shared_find(shm_zone, s->size);

    if (s->data) {
        return NGX_OK;
    }

    /* new, or of another build, whose data is short-lived */

    head = ngx_slab_calloc(s->shpool, NGX_HTTP_IDEM_SHARED_DATA + s->size);
    if (head == NULL) {
        return NGX_ERROR;
    }

    head->magic = NGX_HTTP_IDEM_SHARED_MAGIC;
    head->size = (uint32_t) s->size;

    s->shpool->data = head;
    s->data = (u_char *) head + NGX_HTTP_IDEM_SHARED_DATA;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_shared_table_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_idem_shared_t  *s;

    s = shm_zone->data;
    s->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (s->shpool->data == NULL) {
        s->shpool->data = ngx_slab_calloc(s->shpool, s->size);
    }

    s->data = s->shpool->data;

    return s->data ? NGX_OK : NGX_ERROR;
}


void *
ngx_http_idem_shared_find(ngx_shm_zone_t *shm_zone, size_t size)
{
    ngx_slab_pool_t              *shpool;
    ngx_http_idem_shared_head_t  *head;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;
    head = shpool ? shpool->data : NULL;

    if (head == NULL
        || head->magic != NGX_HTTP_IDEM_SHARED_MAGIC
        || head->size != size)
    {
        return NULL;
    }

    return (u_char *) head + NGX_HTTP_IDEM_SHARED_DATA;
}
