
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
 * The table has a fixed size.  When it is full, an entry is replaced, and only
 * its own worker releases that lock: the oldest of those that the store has
 * released once, since they are only sent again for delayed copies; or the
 * oldest of all, which is logged.  The search for an entry starts at a place
 * that its id determines.
 *
 * An entry is complete before its owner is written, and vacant once its owner
 * is 0, so a worker may be killed at any instruction.
 *
 * Called by ..._remote.c, and by the module for the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem.h"
#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_mutex.h"


#define NGX_HTTP_IDEM_ORPHANS        8192
#define NGX_HTTP_IDEM_ORPHANS_MAGIC  0x49444f32        /* "IDO2" */


typedef struct {
    ngx_pid_t                  owner;             /* 0: vacant              */
    uint32_t                   store;             /* crc32 of its name      */
    ngx_uint_t                 released;          /* at least once          */
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


static ngx_int_t ngx_http_idem_orphans_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_http_idem_orphan_t *ngx_http_idem_orphan_vacant(
    ngx_http_idem_op_t *op);
static ngx_http_idem_orphan_t *ngx_http_idem_orphan_find(
    ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_orphan_start(ngx_http_idem_op_t *op);
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


/*
 * This worker sends releases of the lock of op->token, for "life" ms.
 * NGX_DECLINED: a lock that was not released yet had to make room.
 */

ngx_int_t
ngx_http_idem_orphan_add(ngx_http_idem_op_t *op, ngx_msec_t life)
{
    ngx_int_t                rc;
    ngx_http_idem_orphan_t  *entry;

    if (ngx_http_idem_orphans == NULL) {
        return NGX_OK;
    }

    rc = NGX_OK;

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    entry = ngx_http_idem_orphan_vacant(op);

    if (entry->owner == 0) {
        ngx_http_idem_orphans->n++;

    } else {
        rc = entry->released ? NGX_OK : NGX_DECLINED;
        entry->owner = 0;
    }

    ngx_memory_barrier();

    entry->store = ngx_http_idem_orphans_store(op->store);
    entry->released = 0;
    entry->since = ngx_current_msec;
    entry->until = ngx_current_msec + life;
    ngx_memcpy(entry->id, op->id, NGX_HTTP_IDEM_ID_LEN);
    ngx_memcpy(entry->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_memory_barrier();

    entry->owner = ngx_pid;

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);

    return rc;
}


/* a vacant entry, or the one that is replaced */

static ngx_http_idem_orphan_t *
ngx_http_idem_orphan_vacant(ngx_http_idem_op_t *op)
{
    ngx_uint_t               i, n;
    ngx_http_idem_orphan_t  *entry, *oldest;

    oldest = NULL;
    n = ngx_http_idem_orphan_start(op);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[(n + i)
                                                % NGX_HTTP_IDEM_ORPHANS];
        if (entry->owner == 0) {
            return entry;
        }

        if (oldest == NULL || entry->released > oldest->released
            || (entry->released == oldest->released
                && (ngx_msec_int_t) (entry->since - oldest->since) < 0))
        {
            oldest = entry;
        }
    }

    return oldest;
}


/* the entry of this worker for the lock of op->token, or NULL */

static ngx_http_idem_orphan_t *
ngx_http_idem_orphan_find(ngx_http_idem_op_t *op)
{
    ngx_uint_t               i, n;
    ngx_http_idem_orphan_t  *entry;

    n = ngx_http_idem_orphan_start(op);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[(n + i)
                                                % NGX_HTTP_IDEM_ORPHANS];

        if (entry->owner == ngx_pid
            && ngx_memcmp(entry->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN)
               == 0
            && ngx_memcmp(entry->id, op->id, NGX_HTTP_IDEM_ID_LEN) == 0)
        {
            return entry;
        }
    }

    return NULL;
}


/* an id is a hash */

static ngx_uint_t
ngx_http_idem_orphan_start(ngx_http_idem_op_t *op)
{
    return ((ngx_uint_t) op->id[0] << 8 | op->id[1]) % NGX_HTTP_IDEM_ORPHANS;
}


/* the store has answered a release */

void
ngx_http_idem_orphan_released(ngx_http_idem_op_t *op)
{
    ngx_http_idem_orphan_t  *entry;

    if (ngx_http_idem_orphans == NULL) {
        return;
    }

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    entry = ngx_http_idem_orphan_find(op);

    if (entry) {
        entry->released = 1;
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);
}


/* no more releases are sent */

void
ngx_http_idem_orphan_remove(ngx_http_idem_op_t *op)
{
    ngx_http_idem_orphan_t  *entry;

    if (ngx_http_idem_orphans == NULL) {
        return;
    }

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    entry = ngx_http_idem_orphan_find(op);

    if (entry) {
        entry->owner = 0;

        ngx_memory_barrier();

        ngx_http_idem_orphans->n--;
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);
}


/*
 * Takes over locks of "store" whose workers are dead, "max" at most.  Returns
 * their number.
 */

ngx_uint_t
ngx_http_idem_orphans_adopt(ngx_http_idem_store_t *store,
    ngx_http_idem_adopted_t *adopted, ngx_uint_t max)
{
    uint32_t                 crc;
    ngx_pid_t                dead, alive;
    ngx_uint_t               i, n, found;
    ngx_msec_int_t           left;
    ngx_http_idem_orphan_t  *entry;

    /* read without the mutex: the next call sees what this one missed */

    if (ngx_http_idem_orphans == NULL || ngx_http_idem_orphans->n == 0) {
        return 0;
    }

    crc = ngx_http_idem_orphans_store(store);
    n = 0;
    found = 0;
    dead = 0;
    alive = ngx_pid;

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_pool);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[i];

        if (entry->owner == 0) {
            continue;
        }

        n++;

        /* most entries have the same owner */

        if (entry->owner == ngx_pid || entry->owner == alive) {
            continue;
        }

        if (entry->owner != dead
            && (kill(entry->owner, 0) == 0 || ngx_errno != NGX_ESRCH))
        {
            alive = entry->owner;
            continue;
        }

        dead = entry->owner;
        left = (ngx_msec_int_t) (entry->until - ngx_current_msec);

        if (left <= 0) {
            entry->owner = 0;
            n--;
            continue;
        }

        if (entry->store != crc || found == max) {
            continue;
        }

        ngx_memcpy(adopted[found].id, entry->id, NGX_HTTP_IDEM_ID_LEN);
        ngx_memcpy(adopted[found].token, entry->token,
                   NGX_HTTP_IDEM_TOKEN_LEN);
        adopted[found++].life = (ngx_msec_t) left;

        entry->owner = ngx_pid;
    }

    /* a killed worker may have left the number too large */

    ngx_http_idem_orphans->n = n;

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_pool);

    return found;
}


static uint32_t
ngx_http_idem_orphans_store(ngx_http_idem_store_t *store)
{
    return ngx_crc32_short(store->name.data, store->name.len);
}
