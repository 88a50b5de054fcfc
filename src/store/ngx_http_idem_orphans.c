
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
 * releases in its place.  The number of a dead process may be that of another
 * one by then, so an entry whose next release is overdue is taken over, too.
 *
 * The table has a fixed size and consists of sets: the id determines the set
 * of an entry, so a search is short.  When a set is full, an entry is replaced,
 * and only its own worker releases that lock: the oldest of those that the
 * store has released once, since they are only sent again for delayed copies;
 * or the oldest of the set, which is logged.
 *
 * An entry is complete before its owner is written, and vacant once its owner
 * is 0, so a worker may be killed at any instruction.
 *
 * Called by ..._remote.c, and by the module for the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_mutex.h"
#include "store/zone/ngx_http_idem_shared.h"


#define NGX_HTTP_IDEM_ORPHAN_SETS  128
#define NGX_HTTP_IDEM_ORPHAN_SET   64
#define NGX_HTTP_IDEM_ORPHANS                                                 \
    (NGX_HTTP_IDEM_ORPHAN_SETS * NGX_HTTP_IDEM_ORPHAN_SET)

/* how late a release may be before another worker takes the entry over, ms */
#define NGX_HTTP_IDEM_ORPHAN_LATE  10000


typedef struct {
    ngx_pid_t                  owner;             /* 0: vacant              */
    uint32_t                   store;             /* crc32 of its name      */
    ngx_uint_t                 released;          /* at least once          */
    ngx_msec_t                 since;
    ngx_msec_t                 due;               /* the next release       */
    ngx_msec_t                 until;             /* the record expires     */
    u_char                     id[NGX_HTTP_IDEM_ID_LEN];
    u_char                     token[NGX_HTTP_IDEM_TOKEN_LEN];
} ngx_http_idem_orphan_t;


typedef struct {
    ngx_uint_t                 n;                 /* never too small        */
    ngx_http_idem_orphan_t     entries[NGX_HTTP_IDEM_ORPHANS];
} ngx_http_idem_orphans_t;


static ngx_http_idem_orphan_t *ngx_http_idem_orphan_vacant(
    ngx_http_idem_op_t *op);
static ngx_http_idem_orphan_t *ngx_http_idem_orphan_lock(
    ngx_http_idem_op_t *op);


static ngx_http_idem_shared_t  ngx_http_idem_orphans_shared;

#define ngx_http_idem_orphans                                                 \
    ((ngx_http_idem_orphans_t *) ngx_http_idem_orphans_shared.data)

/* the first entry of a set: an id is a hash */
#define ngx_http_idem_orphan_set(op)                                          \
    (&ngx_http_idem_orphans->entries[(op)->id[0]                              \
                                     % NGX_HTTP_IDEM_ORPHAN_SETS              \
                                     * NGX_HTTP_IDEM_ORPHAN_SET])

#define ngx_http_idem_orphan_overdue(entry)                                   \
    ((ngx_msec_int_t) (ngx_current_msec - (entry)->due)                       \
     > NGX_HTTP_IDEM_ORPHAN_LATE)


ngx_int_t
ngx_http_idem_orphans_zone(ngx_conf_t *cf)
{
    static ngx_str_t  name = ngx_string("idempotency:orphans");

    return ngx_http_idem_shared_table(cf, &ngx_http_idem_orphans_shared,
                                      sizeof(ngx_http_idem_orphans_t), &name);
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

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_shared.shpool);

    entry = ngx_http_idem_orphan_vacant(op);

    if (entry->owner == 0) {
        ngx_http_idem_orphans->n++;

    } else {
        rc = entry->released ? NGX_OK : NGX_DECLINED;
        entry->owner = 0;
    }

    ngx_memory_barrier();

    entry->store = ngx_crc32_short(op->store->name.data, op->store->name.len);
    entry->released = 0;
    entry->since = ngx_current_msec;
    entry->due = ngx_current_msec;
    entry->until = ngx_current_msec + life;
    ngx_memcpy(entry->id, op->id, NGX_HTTP_IDEM_ID_LEN);
    ngx_memcpy(entry->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_memory_barrier();

    entry->owner = ngx_pid;

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_shared.shpool);

    return rc;
}


/* a vacant entry, or the one that is replaced */

static ngx_http_idem_orphan_t *
ngx_http_idem_orphan_vacant(ngx_http_idem_op_t *op)
{
    ngx_uint_t               i;
    ngx_http_idem_orphan_t  *entry, *oldest;

    entry = ngx_http_idem_orphan_set(op);
    oldest = NULL;

    for (i = 0; i < NGX_HTTP_IDEM_ORPHAN_SET; i++, entry++) {

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


/*
 * The entry of this worker for the lock of op->token, with the mutex locked.
 * NULL: there is none, and the mutex is not locked.
 */

static ngx_http_idem_orphan_t *
ngx_http_idem_orphan_lock(ngx_http_idem_op_t *op)
{
    ngx_uint_t               i;
    ngx_http_idem_orphan_t  *entry;

    if (ngx_http_idem_orphans == NULL) {
        return NULL;
    }

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_shared.shpool);

    entry = ngx_http_idem_orphan_set(op);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHAN_SET; i++, entry++) {

        if (entry->owner == ngx_pid
            && ngx_memcmp(entry->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN)
               == 0
            && ngx_memcmp(entry->id, op->id, NGX_HTTP_IDEM_ID_LEN) == 0)
        {
            return entry;
        }
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_shared.shpool);

    return NULL;
}


/*
 * The next release is sent, or its reply looked for, in "delay" ms.
 * "released": the store has answered the last one.
 */

void
ngx_http_idem_orphan_due(ngx_http_idem_op_t *op, ngx_msec_t delay,
    ngx_uint_t released)
{
    ngx_http_idem_orphan_t  *entry;

    entry = ngx_http_idem_orphan_lock(op);

    if (entry) {
        entry->due = ngx_current_msec + delay;
        entry->released |= released;

        ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_shared.shpool);
    }
}


/* no more releases are sent */

void
ngx_http_idem_orphan_remove(ngx_http_idem_op_t *op)
{
    ngx_http_idem_orphan_t  *entry;

    entry = ngx_http_idem_orphan_lock(op);

    if (entry) {
        entry->owner = 0;

        ngx_memory_barrier();

        ngx_http_idem_orphans->n--;

        ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_shared.shpool);
    }
}


/*
 * Takes over locks of "store" whose workers are dead, or do not send their
 * releases, "max" at most.  Returns their number.
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

    crc = ngx_crc32_short(store->name.data, store->name.len);
    n = 0;
    found = 0;
    dead = 0;
    alive = ngx_pid;

    ngx_http_idem_mutex_lock(ngx_http_idem_orphans_shared.shpool);

    for (i = 0; i < NGX_HTTP_IDEM_ORPHANS; i++) {
        entry = &ngx_http_idem_orphans->entries[i];

        if (entry->owner == 0) {
            continue;
        }

        n++;

        if (!ngx_http_idem_orphan_overdue(entry)) {

            /* most entries have the same owner */

            if (entry->owner == alive) {
                continue;
            }

            if (entry->owner != dead
                && (kill(entry->owner, 0) == 0 || ngx_errno != NGX_ESRCH))
            {
                alive = entry->owner;
                continue;
            }

            dead = entry->owner;
        }

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

        entry->due = ngx_current_msec;

        ngx_memory_barrier();

        entry->owner = ngx_pid;
    }

    /* a killed worker may have left the number too large */

    ngx_http_idem_orphans->n = n;

    ngx_http_idem_mutex_unlock(ngx_http_idem_orphans_shared.shpool);

    return found;
}
