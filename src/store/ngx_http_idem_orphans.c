
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Orphan locks: a table in shared memory of the locks that a worker has yet to
 * release.
 *
 * A begin under hold was abandoned after it was sent, or a release failed.
 * The lock may then stay in the store until the record expires, so the worker
 * sends releases until then (..._remote.c).  If that worker exits or is killed
 * before, another worker finds the entry of a dead process, and sends the
 * releases in its place.
 *
 * The table has a fixed size.  When it is full, the oldest entry is replaced:
 * only its own worker releases that lock.  An entry is complete before
 * its owner is written, and vacant once its owner is 0, so a worker may be
 * killed at any instruction.
 *
 * Called by ..._remote.c, and by the module for the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem.h"
#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_mutex.h"


#define NGX_HTTP_IDEM_ORPHANS        512
#define NGX_HTTP_IDEM_ORPHANS_MAGIC  0x49444f31        /* "IDO1" */


typedef struct {
    ngx_pid_t                  owner;             /* 0: vacant              */
    uint32_t                   store;             /* crc32 of its name      */
    ngx_msec_t                 since;
    ngx_msec_t                 until;             /* the record expires     */
    u_char                     id[NGX_HTTP_IDEM_ID_LEN];
    u_char                     token[NGX_HTTP_IDEM_TOKEN_LEN];
} ngx_http_idem_orphan_t;


typedef struct {
    uint32_t                   magic;
    ngx_uint_t                 n;                 /* never too small        */
    ngx_http_idem_orphan_t     entries[NGX_HTTP_IDEM_ORPHANS];
} ngx_http_idem_orphans_t;


/* the entry of this worker for that lock */
#define ngx_http_idem_orphan_is(entry, op)                                    \
    ((entry)->owner == ngx_pid                                                \
     && ngx_memcmp((entry)->token, (op)->token, NGX_HTTP_IDEM_TOKEN_LEN) == 0 \
     && ngx_memcmp((entry)->id, (op)->id, NGX_HTTP_IDEM_ID_LEN) == 0)


static ngx_int_t ngx_http_idem_orphans_init(ngx_shm_zone_t *shm_zone,
    void *data);
static uint32_t ngx_http_idem_orphans_store(ngx_http_idem_store_t *store);


static ngx_slab_pool_t          *ngx_http_idem_orphans_pool;
static ngx_http_idem_orphans_t  *ngx_http_idem_orphans;


ngx_int_t
ngx_http_idem_orphans_zone(ngx_conf_t *cf)
{
    ngx_shm_zone_t  *shm_zone;

    static ngx_str_t  name = ngx_string("idempotency:orphans");

    /* the slab pool needs a page or two beside the table */

    shm_zone = ngx_shared_memory_add(cf, &name,
                                     sizeof(ngx_http_idem_orphans_t)
                                     + 16 * ngx_pagesize,
                                     ngx_http_idem_zone_tag);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm_zone->init = ngx_http_idem_orphans_init;
    shm_zone->data = &ngx_http_idem_orphans;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_orphans_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t          *shpool;
    ngx_http_idem_orphans_t  *orphans;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shpool->data == NULL) {
        shpool->data = ngx_slab_calloc(shpool,
                                       sizeof(ngx_http_idem_orphans_t));
        if (shpool->data == NULL) {
            return NGX_ERROR;
        }
    }

    orphans = shpool->data;

    if (orphans->magic != NGX_HTTP_IDEM_ORPHANS_MAGIC) {
        ngx_memzero(orphans, sizeof(ngx_http_idem_orphans_t));
        orphans->magic = NGX_HTTP_IDEM_ORPHANS_MAGIC;
    }

    ngx_http_idem_orphans_pool = shpool;
    ngx_http_idem_orphans = orphans;

    return NGX_OK;
}


/* this worker sends releases of the lock of op->token, for "life" ms */

void
ngx_http_idem_orphan_add(ngx_http_idem_op_t *op, ngx_msec_t life)
{
    ngx_uint_t               i;
    ngx_http_idem_orphan_t  *entry, *vacant, *oldest;

    if (ngx_http_idem_orphans == NULL) {
        return;
    }

    vacant = NULL;
    oldest = &ngx_http_idem_orphans->entries[0];

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[i];

        if (entry->owner == 0) {
            vacant = vacant ? vacant : entry;

        } else if (ngx_http_idem_orphan_is(entry, op)) {
            /* adopted */
            goto done;

        } else if ((ngx_msec_int_t) (entry->since - oldest->since) < 0) {
            oldest = entry;
        }
    }

    entry = vacant;

    if (entry == NULL) {
        entry = oldest;
        entry->owner = 0;

    } else {
        ngx_http_idem_orphans->n++;
    }

    ngx_memory_barrier();

    entry->store = ngx_http_idem_orphans_store(op->store);
    entry->since = ngx_current_msec;
    entry->until = ngx_current_msec + life;
    ngx_memcpy(entry->id, op->id, NGX_HTTP_IDEM_ID_LEN);
    ngx_memcpy(entry->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_memory_barrier();

    entry->owner = ngx_pid;

done:

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);
}


/* the lock was released, or its record expired */

void
ngx_http_idem_orphan_remove(ngx_http_idem_op_t *op)
{
    ngx_uint_t               i;
    ngx_http_idem_orphan_t  *entry;

    if (ngx_http_idem_orphans == NULL) {
        return;
    }

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[i];

        if (ngx_http_idem_orphan_is(entry, op)) {
            entry->owner = 0;

            ngx_memory_barrier();

            ngx_http_idem_orphans->n--;
            break;
        }
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);
}


/*
 * Takes over a lock of "store" whose worker is dead: returns the id, the token,
 * and how long the lock may live.  NGX_DECLINED: there is none.
 */

ngx_int_t
ngx_http_idem_orphan_adopt(ngx_http_idem_store_t *store, u_char *id,
    u_char *token, ngx_msec_t *life)
{
    uint32_t                 crc;
    ngx_int_t                rc;
    ngx_uint_t               i, n;
    ngx_msec_int_t           left;
    ngx_http_idem_orphan_t  *entry;

    /* read without the mutex: the next call sees what this one missed */

    if (ngx_http_idem_orphans == NULL || ngx_http_idem_orphans->n == 0) {
        return NGX_DECLINED;
    }

    rc = NGX_DECLINED;
    crc = ngx_http_idem_orphans_store(store);
    n = 0;

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[i];

        if (entry->owner == 0) {
            continue;
        }

        n++;

        if (rc == NGX_OK || entry->owner == ngx_pid
            || kill(entry->owner, 0) == 0 || ngx_errno != NGX_ESRCH)
        {
            continue;
        }

        left = (ngx_msec_int_t) (entry->until - ngx_current_msec);

        if (left <= 0) {
            entry->owner = 0;
            n--;
            continue;
        }

        if (entry->store != crc) {
            continue;
        }

        ngx_memcpy(id, entry->id, NGX_HTTP_IDEM_ID_LEN);
        ngx_memcpy(token, entry->token, NGX_HTTP_IDEM_TOKEN_LEN);
        *life = (ngx_msec_t) left;

        entry->owner = ngx_pid;
        rc = NGX_OK;
    }

    /* a killed worker may have left the number too large */

    ngx_http_idem_orphans->n = n;

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);

    return rc;
}


static uint32_t
ngx_http_idem_orphans_store(ngx_http_idem_store_t *store)
{
    return ngx_crc32_short(store->name.data, store->name.len);
}
