
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




static ngx_http_idem_shared_t  ngx_http_idem_replays_shared;

#define ngx_http_idem_replays                                                 \
    ((ngx_http_idem_replays_t *) ngx_http_idem_replays_shared.data)


ngx_int_t
ngx_http_idem_replays_zone(ngx_conf_t *cf)
{
    ngx_uint_t                  i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_idem_main_conf_t  *mcf;

    static ngx_str_t  name = ngx_string("idempotency:replays");
    static ngx_str_t  variable = ngx_string("idempotency_replay_count");

    ngx_http_idem_replays_shared.data = NULL;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (v[i].name.len == variable.len
            && ngx_strncmp(v[i].name.data, variable.data, variable.len) == 0)
        {
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
    uint32_t                        set;
    ngx_uint_t                      i, n;
    ngx_http_idem_replays_entry_t  *e, *oldest;

    if (ngx_http_idem_replays == NULL) {
        return 0;
    }

    ngx_memcpy(&set, cover->id + 16, sizeof(uint32_t));

    e = ngx_http_idem_replays->sets[set % NGX_HTTP_IDEM_REPLAYS_SETS];
    oldest = e;

    ngx_http_idem_mutex_lock(ngx_http_idem_replays_shared.shpool);

    for (i = 0; i < NGX_HTTP_IDEM_REPLAYS_WAYS; i++) {

        if (e[i].count && ngx_memcmp(e[i].id, cover->id, 16) == 0) {
            oldest = &e[i];
            break;
        }

        if (e[i].used < oldest->used) {
            oldest = &e[i];
        }
    }

    if (i == NGX_HTTP_IDEM_REPLAYS_WAYS || oldest->original != original) {
        ngx_memcpy(oldest->id, cover->id, 16);
        oldest->original = original;
        oldest->count = 0;
    }

    oldest->used = (uint32_t) ngx_time();
    n = ++oldest->count;

    ngx_http_idem_mutex_unlock(ngx_http_idem_replays_shared.shpool);

    return n;
}


ngx_int_t
ngx_http_idem_replays_look(u_char *id, ngx_uint_t *count, uint64_t *original)
{
    uint32_t                        set;
    ngx_uint_t                      i;
    ngx_http_idem_replays_entry_t  *e;

    *count = 0;
    *original = 0;

    if (ngx_http_idem_replays == NULL) {
        return NGX_DECLINED;
    }

    ngx_memcpy(&set, id + 16, sizeof(uint32_t));

    e = ngx_http_idem_replays->sets[set % NGX_HTTP_IDEM_REPLAYS_SETS];

    ngx_http_idem_mutex_lock(ngx_http_idem_replays_shared.shpool);

    for (i = 0; i < NGX_HTTP_IDEM_REPLAYS_WAYS; i++) {

        if (e[i].count && ngx_memcmp(e[i].id, id, 16) == 0) {
            *count = e[i].count;
            *original = e[i].original;
            break;
        }
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_replays_shared.shpool);

    return NGX_OK;
}
