
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Counts the replays of each record by this nginx, for
 * $idempotency_replay_count, the event member of that name and "replays" of
 * idempotency_admin.
 *
 * The counts are in a table in shared memory, common to all workers and
 * stores.  The table exists only if the variable is used, events are logged
 * or idempotency_admin is configured.  A record hashes to a set.  If the set
 * is full, the entry that was used least recently is replaced, and its record
 * is counted from zero if it is replayed again.
 *
 * Called by the replay, and by code that reports on a record.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "store/zone/ngx_http_idem_mutex.h"
#include "store/zone/ngx_http_idem_shared.h"


#define NGX_HTTP_IDEM_REPLAYS_SETS  8192
#define NGX_HTTP_IDEM_REPLAYS_WAYS  8


typedef struct {
    u_char      id[16];                         /* first half of the record
                                                   id                       */
    uint64_t    original;                       /* time of the response; a
                                                   new response resets the
                                                   count                    */
    uint32_t    used;
    uint32_t    count;
} ngx_http_idem_replays_entry_t;


typedef struct {
    ngx_http_idem_replays_entry_t
                sets[NGX_HTTP_IDEM_REPLAYS_SETS][NGX_HTTP_IDEM_REPLAYS_WAYS];
} ngx_http_idem_replays_t;


static ngx_http_idem_replays_entry_t *ngx_http_idem_replays_find(u_char *id);


static ngx_http_idem_shared_t  ngx_http_idem_replays_shared;

#define ngx_http_idem_replays                                                 \
    ((ngx_http_idem_replays_t *) ngx_http_idem_replays_shared.data)

#define ngx_http_idem_replays_of(e, record)                                   \
    ((e)->count && ngx_memcmp((e)->id, record, 16) == 0)


ngx_int_t
ngx_http_idem_replays_zone(ngx_conf_t *cf)
{
    ngx_uint_t                  i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_idem_main_conf_t  *mcf;

    static ngx_str_t  name = ngx_string("idempotency:replays");

    ngx_http_idem_replays_shared.data = NULL;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (ngx_http_idem_conf_is(&v[i].name, "idempotency_replay_count")) {
            break;
        }
    }

    if (i == cmcf->variables.nelts && ngx_queue_empty(&mcf->logs)
        && mcf->tap == NULL)
    {
        return NGX_OK;
    }

    return ngx_http_idem_shared_table(cf, &ngx_http_idem_replays_shared,
                                      sizeof(ngx_http_idem_replays_t), &name);
}


/* counts a replay; returns 0 if replays are not counted */

ngx_uint_t
ngx_http_idem_replays_count(ngx_http_idem_cover_t *cover, uint64_t original)
{
    ngx_uint_t                      n;
    ngx_http_idem_replays_entry_t  *e;

    if (ngx_http_idem_replays == NULL) {
        return 0;
    }

    ngx_http_idem_mutex_lock(ngx_http_idem_replays_shared.shpool);

    e = ngx_http_idem_replays_find(cover->id);

    if (!ngx_http_idem_replays_of(e, cover->id) || e->original != original) {
        ngx_memcpy(e->id, cover->id, 16);
        e->original = original;
        e->count = 0;
    }

    e->used = (uint32_t) ngx_time();
    n = ++e->count;

    ngx_http_idem_mutex_unlock(ngx_http_idem_replays_shared.shpool);

    return n;
}


ngx_int_t
ngx_http_idem_replays_read(u_char *id, ngx_uint_t *count, uint64_t *original)
{
    ngx_http_idem_replays_entry_t  *e;

    *count = 0;
    *original = 0;

    if (ngx_http_idem_replays == NULL) {
        return NGX_DECLINED;
    }

    ngx_http_idem_mutex_lock(ngx_http_idem_replays_shared.shpool);

    e = ngx_http_idem_replays_find(id);

    if (ngx_http_idem_replays_of(e, id)) {
        *count = e->count;
        *original = e->original;
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_replays_shared.shpool);

    return NGX_OK;
}


/* the entry of the record, or the one to be replaced */

static ngx_http_idem_replays_entry_t *
ngx_http_idem_replays_find(u_char *id)
{
    uint32_t                        set;
    ngx_uint_t                      i;
    ngx_http_idem_replays_entry_t  *e, *oldest;

    ngx_memcpy(&set, id + 16, sizeof(uint32_t));

    e = ngx_http_idem_replays->sets[set % NGX_HTTP_IDEM_REPLAYS_SETS];
    oldest = e;

    for (i = 0; i < NGX_HTTP_IDEM_REPLAYS_WAYS; i++) {

        if (ngx_http_idem_replays_of(&e[i], id)) {
            return &e[i];
        }

        if (e[i].used < oldest->used) {
            oldest = &e[i];
        }
    }

    return oldest;
}
