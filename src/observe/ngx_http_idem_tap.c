
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The tap: lines in a ring of shared memory, for clients that follow events.
 *
 * Called by the events with lines, and by the admin endpoint that sends them.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "observe/ngx_http_idem_tap.h"


#define NGX_HTTP_IDEM_TAP_SIZE  (512 * 1024)

/* how long a client counts without calling ngx_http_idem_tap_follow(), ms */
#define NGX_HTTP_IDEM_TAP_TIME  5000


static ngx_int_t ngx_http_idem_tap_init(ngx_shm_zone_t *zone, void *data);
static void ngx_http_idem_tap_copy(u_char *dst, uint64_t at, size_t len);


ngx_http_idem_tap_t        *ngx_http_idem_tap;

static ngx_slab_pool_t     *ngx_http_idem_tap_pool;


ngx_shm_zone_t *
ngx_http_idem_tap_zone(ngx_conf_t *cf, void *tag)
{
    ngx_str_t        name = ngx_string("idempotency_events");
    ngx_shm_zone_t  *zone;

    zone = ngx_shared_memory_add(cf, &name,
                                 NGX_HTTP_IDEM_TAP_SIZE + 8 * ngx_pagesize,
                                 tag);
    if (zone) {
        zone->init = ngx_http_idem_tap_init;
    }

    return zone;
}


/* not when the zone is created, since a configuration that is rejected
   creates a zone, too */

void
ngx_http_idem_tap_init_process(ngx_shm_zone_t *zone)
{
    if (zone == NULL) {
        return;
    }

    ngx_http_idem_tap = zone->data;
    ngx_http_idem_tap_pool = (ngx_slab_pool_t *) zone->shm.addr;
}


static ngx_int_t
ngx_http_idem_tap_init(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t      *pool;
    ngx_http_idem_tap_t  *tap;

    pool = (ngx_slab_pool_t *) zone->shm.addr;
    tap = data ? data : zone->shm.exists ? pool->data : NULL;

    if (tap == NULL) {
        tap = ngx_slab_calloc(pool, sizeof(ngx_http_idem_tap_t)
                                    + NGX_HTTP_IDEM_TAP_SIZE);
        if (tap == NULL) {
            return NGX_ERROR;
        }

        tap->size = NGX_HTTP_IDEM_TAP_SIZE;
        pool->data = tap;
    }

    zone->data = tap;

    return NGX_OK;
}


void
ngx_http_idem_tap_write(u_char *p, size_t len)
{
    u_char                head[sizeof(uint32_t)];
    size_t                i, at;
    uint32_t              n;
    ngx_http_idem_tap_t  *tap;

    tap = ngx_http_idem_tap;

    n = (uint32_t) len;
    ngx_memcpy(head, &n, sizeof(n));

    ngx_shmtx_lock(&ngx_http_idem_tap_pool->mutex);

    at = (size_t) (tap->head % tap->size);

    for (i = 0; i < sizeof(head); i++) {
        tap->data[at] = head[i];
        at = (at + 1 == tap->size) ? 0 : at + 1;
    }

    i = ngx_min(len, tap->size - at);

    ngx_memcpy(tap->data + at, p, i);
    ngx_memcpy(tap->data, p + i, len - i);

    tap->head += sizeof(head) + len;

    ngx_shmtx_unlock(&ngx_http_idem_tap_pool->mutex);
}


uint64_t
ngx_http_idem_tap_now(void)
{
    uint64_t  head;

    ngx_shmtx_lock(&ngx_http_idem_tap_pool->mutex);
    head = ngx_http_idem_tap->head;
    ngx_shmtx_unlock(&ngx_http_idem_tap_pool->mutex);

    return head;
}


void
ngx_http_idem_tap_follow(void)
{
    ngx_http_idem_tap->until = ngx_current_msec + NGX_HTTP_IDEM_TAP_TIME;
}


size_t
ngx_http_idem_tap_read(uint64_t *at, u_char *buf, size_t size,
    ngx_uint_t *missed)
{
    uint32_t              len;
    ngx_http_idem_tap_t  *tap;

    tap = ngx_http_idem_tap;
    len = 0;

    ngx_shmtx_lock(&ngx_http_idem_tap_pool->mutex);

    if (tap->head - *at > tap->size) {
        *missed = 1;
        *at = tap->head;
    }

    if (*at < tap->head) {
        ngx_http_idem_tap_copy((u_char *) &len, *at, sizeof(len));

        if (len > size || len > tap->head - *at) {

            /* a worker was killed while writing: these bytes are not a
               line */

            len = 0;
            *missed = 1;
            *at = tap->head;

        } else {
            ngx_http_idem_tap_copy(buf, *at + sizeof(len), len);
            *at += sizeof(len) + len;
        }
    }

    ngx_shmtx_unlock(&ngx_http_idem_tap_pool->mutex);

    return len;
}


static void
ngx_http_idem_tap_copy(u_char *dst, uint64_t at, size_t len)
{
    size_t                from, n;
    ngx_http_idem_tap_t  *tap;

    tap = ngx_http_idem_tap;

    from = (size_t) (at % tap->size);
    n = ngx_min(len, tap->size - from);

    ngx_memcpy(dst, tap->data + from, n);
    ngx_memcpy(dst + n, tap->data, len - n);
}
