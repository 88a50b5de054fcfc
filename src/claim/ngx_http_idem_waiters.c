
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Counts waiters in a small table in shared memory.  An entry has the record,
 * its number of waiters, and the deadline of the last of them.  The deadline
 * corrects the count after a worker was killed with waiters.
 *
 * The table has a fixed size and consists of sets of a few entries.  A record
 * whose set is full of others is not counted: this may admit a waiter too
 * many, but never refuses one wrongly.
 *
 * Called by wait.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "claim/ngx_http_idem_claim.h"
#include "store/zone/ngx_http_idem_mutex.h"
#include "store/zone/ngx_http_idem_shared.h"


#define NGX_HTTP_IDEM_WAITERS_SETS  1024
#define NGX_HTTP_IDEM_WAITERS_WAYS  8


typedef struct {
    u_char                             id[16];    /* see ..._entry()        */
    ngx_msec_t                         until;
    ngx_int_t                          n;
} ngx_http_idem_waiters_entry_t;


typedef struct {
    ngx_http_idem_waiters_entry_t  sets[
                                       NGX_HTTP_IDEM_WAITERS_SETS]
                                      [NGX_HTTP_IDEM_WAITERS_WAYS];
} ngx_http_idem_waiters_t;


static ngx_http_idem_waiters_entry_t *ngx_http_idem_waiters_entry(
    ngx_str_t *store, u_char *record, ngx_uint_t add);


static ngx_http_idem_shared_t  ngx_http_idem_waiters_shared;

#define ngx_http_idem_waiters                                                 \
    ((ngx_http_idem_waiters_t *) ngx_http_idem_waiters_shared.data)


ngx_int_t
ngx_http_idem_waiters_zone(ngx_conf_t *cf)
{
    static ngx_str_t  name = ngx_string("idempotency:waiters");

    return ngx_http_idem_shared_table(cf, &ngx_http_idem_waiters_shared,
                                      sizeof(ngx_http_idem_waiters_t), &name);
}


ngx_int_t
ngx_http_idem_waiters_enter(ngx_str_t *store, u_char *id,
    ngx_msec_t time, ngx_int_t max)
{
    ngx_int_t                       rc;
    ngx_msec_t                      until;
    ngx_http_idem_waiters_entry_t  *e;

    rc = NGX_OK;
    until = ngx_current_msec + time;

    ngx_http_idem_mutex_lock(ngx_http_idem_waiters_shared.shpool);

    e = ngx_http_idem_waiters_entry(store, id, 1);

    if ((e ? e->n : 0) >= max) {
        rc = NGX_DECLINED;

    } else if (e
               && (e->n++ == 0 || (ngx_msec_int_t) (until - e->until) > 0))
    {
        e->until = until;
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_waiters_shared.shpool);

    return rc;
}


void
ngx_http_idem_waiters_leave(ngx_str_t *store, u_char *id)
{
    ngx_http_idem_waiters_entry_t  *e;

    ngx_http_idem_mutex_lock(ngx_http_idem_waiters_shared.shpool);

    e = ngx_http_idem_waiters_entry(store, id, 0);

    if (e && e->n > 0) {
        e->n--;
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_waiters_shared.shpool);
}


ngx_uint_t
ngx_http_idem_waiters_of(ngx_str_t *store, u_char *id)
{
    ngx_uint_t                      n;
    ngx_http_idem_waiters_entry_t  *e;

    ngx_http_idem_mutex_lock(ngx_http_idem_waiters_shared.shpool);

    e = ngx_http_idem_waiters_entry(store, id, 0);
    n = (e && e->n > 0) ? (ngx_uint_t) e->n : 0;

    ngx_http_idem_mutex_unlock(ngx_http_idem_waiters_shared.shpool);

    return n;
}


ngx_uint_t
ngx_http_idem_waiters_all(void)
{
    ngx_uint_t                      i, n;
    ngx_http_idem_waiters_entry_t  *e;

    n = 0;

    if (ngx_http_idem_waiters == NULL) {
        return 0;
    }

    e = ngx_http_idem_waiters->sets[0];

    /* read without the lock: an approximate figure of whole numbers */

    for (i = 0;
         i < NGX_HTTP_IDEM_WAITERS_SETS
             * NGX_HTTP_IDEM_WAITERS_WAYS;
         i++)
    {
        if (e[i].n > 0
            && (ngx_msec_int_t) (ngx_current_msec - e[i].until) <= 1000)
        {
            n += e[i].n;
        }
    }

    return n;
}


/*
 * The id of an entry is half of the record id, mixed with the store's name,
 * since records of different stores are distinct.
 */

static ngx_http_idem_waiters_entry_t *
ngx_http_idem_waiters_entry(ngx_str_t *store, u_char *record, ngx_uint_t add)
{
    u_char                          id[16];
    uint32_t                        hash;
    ngx_uint_t                      i;
    ngx_http_idem_waiters_entry_t  *set, *vacant;

    ngx_memcpy(id, record, sizeof(id));
    ngx_memcpy(&hash, record, sizeof(uint32_t));
    hash ^= ngx_crc32_short(store->data, store->len);
    ngx_memcpy(id, &hash, sizeof(uint32_t));

    set = ngx_http_idem_waiters->sets[
                                   hash % NGX_HTTP_IDEM_WAITERS_SETS];
    vacant = NULL;

    for (i = 0; i < NGX_HTTP_IDEM_WAITERS_WAYS; i++) {

        /* all counted waiters have reached their deadline or died */

        if (set[i].n
            && (ngx_msec_int_t) (ngx_current_msec - set[i].until) > 1000)
        {
            set[i].n = 0;
        }

        if (set[i].n == 0) {
            vacant = vacant ? vacant : &set[i];

        } else if (ngx_memcmp(set[i].id, id, sizeof(set[i].id)) == 0) {
            return &set[i];
        }
    }

    if (add && vacant) {
        ngx_memcpy(vacant->id, id, sizeof(vacant->id));
        return vacant;
    }

    return NULL;
}
