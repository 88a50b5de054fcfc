
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Activity (idempotency_activity): how many executions a client of a scope
 * had lately, and when the last one was.  Windows of derived keys can adapt
 * to it.
 *
 * The counts are in a table of fixed size in shared memory, split into sets
 * of a few entries.  A client whose set is full replaces the entry that was
 * idle longest.  An entry has a ring of counters, one for each part of the
 * window; counters of parts that have passed are ignored.  The table has no
 * pointers.  A worker that is killed while it writes leaves a wrong count for
 * one client at worst, and its lock is freed like that of every zone
 * (store/zone/..._mutex.c).
 *
 * Called when a request is covered and when it is executed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "store/zone/ngx_http_idem_mutex.h"


#define NGX_HTTP_IDEM_ACTIVITY_MAGIC   0x49444131              /* "IDA1" */
#define NGX_HTTP_IDEM_ACTIVITY_WAYS    8
#define NGX_HTTP_IDEM_ACTIVITY_PARTS   16        /* parts of a window       */
#define NGX_HTTP_IDEM_ACTIVITY_MAX     0xffff    /* limit of a counter      */


typedef struct {
    u_char       id[NGX_HTTP_IDEM_ACTIVITY_ID_LEN];
    uint64_t     last;                           /* last execution, ms      */
    uint64_t     part;                           /* its part                */
    uint16_t     n[NGX_HTTP_IDEM_ACTIVITY_PARTS];
} ngx_http_idem_activity_entry_t;


typedef struct {
    uint32_t     magic;
    uint32_t     size;                           /* of an entry, bytes      */
    uint64_t     window;
    uint64_t     sets;

    ngx_http_idem_activity_entry_t  entries[1];
} ngx_http_idem_activity_table_t;


#define NGX_HTTP_IDEM_ACTIVITY_SET                                            \
    (NGX_HTTP_IDEM_ACTIVITY_WAYS * sizeof(ngx_http_idem_activity_entry_t))


static ngx_int_t ngx_http_idem_activity_init(ngx_shm_zone_t *shm_zone,
    void *data);
static uint64_t ngx_http_idem_activity_part(void);
static ngx_http_idem_activity_entry_t *ngx_http_idem_activity_find(
    const u_char *id, ngx_uint_t add);


static ngx_slab_pool_t                 *ngx_http_idem_activity_pool;
static ngx_http_idem_activity_table_t  *ngx_http_idem_activity_table;


ngx_int_t
ngx_http_idem_activity_zone(ngx_conf_t *cf)
{
    ngx_shm_zone_t             *shm_zone;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (mcf->activity.size == 0) {
        return NGX_OK;
    }

    shm_zone = ngx_shared_memory_add(cf, &mcf->activity.zone,
                                     mcf->activity.size,
                                     (void *) &ngx_http_core_module);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    if (shm_zone->init) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" of \"idempotency_activity\" is "
                           "already used for something else",
                           &mcf->activity.zone);
        return NGX_ERROR;
    }

    mcf->activity.shm_zone = shm_zone;

    shm_zone->init = ngx_http_idem_activity_init;
    shm_zone->data = &mcf->activity;

    return NGX_OK;
}


/*
 * Refuses a table of another version.  A changed window clears the table: the
 * counters are per part of the window.
 */

static ngx_int_t
ngx_http_idem_activity_init(ngx_shm_zone_t *shm_zone, void *data)
{
    size_t                           size, head;
    ngx_slab_pool_t                 *shpool;
    ngx_http_idem_activity_conf_t   *conf;
    ngx_http_idem_activity_table_t  *table;

    conf = shm_zone->data;
    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;
    table = shpool->data;

    if (table == NULL) {

        /* one allocation of the slab pool's whole room, never freed */

        shpool->log_nomem = 0;
        size = shpool->pfree * ngx_pagesize;
        head = offsetof(ngx_http_idem_activity_table_t, entries);

        if (size >= head + NGX_HTTP_IDEM_ACTIVITY_SET) {
            table = ngx_slab_calloc(shpool, size);
        }

        if (table == NULL) {
            ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                          "zone \"%V\" of \"idempotency_activity\" is too "
                          "small", &shm_zone->shm.name);
            return NGX_ERROR;
        }

        table->magic = NGX_HTTP_IDEM_ACTIVITY_MAGIC;
        table->size = sizeof(ngx_http_idem_activity_entry_t);
        table->sets = (size - head) / NGX_HTTP_IDEM_ACTIVITY_SET;

        shpool->data = table;
    }

    if (table->magic != NGX_HTTP_IDEM_ACTIVITY_MAGIC
        || table->size != sizeof(ngx_http_idem_activity_entry_t))
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" was laid out by another version of "
                      "ngx_http_idempotency_module, or for something else: "
                      "give the zone a new name, or restart nginx",
                      &shm_zone->shm.name);
        return NGX_ERROR;
    }

    if (table->window != conf->window) {
        table->window = conf->window;
        ngx_memzero(table->entries,
                    (size_t) table->sets * NGX_HTTP_IDEM_ACTIVITY_SET);
    }

    return NGX_OK;
}


/*
 * Each process uses the zone of its own cycle.  The zone of a failed reload
 * may be gone when the master starts another worker.
 */

void
ngx_http_idem_activity_init_process(ngx_cycle_t *cycle)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_idempotency_module);

    if (mcf->activity.shm_zone) {
        ngx_http_idem_activity_pool = (ngx_slab_pool_t *)
                                      mcf->activity.shm_zone->shm.addr;
        ngx_http_idem_activity_table = ngx_http_idem_activity_pool->data;
    }
}


/*
 * Reads the activity before this request.  It is read once, so the variables
 * stay the same for the whole request.
 */

ngx_int_t
ngx_http_idem_activity_read(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *scope, u_char *identity)
{
    u_char                           hash[NGX_HTTP_IDEM_HASH_LEN];
    uint64_t                         part;
    ngx_str_t                        fields[2];
    ngx_uint_t                       i;
    ngx_msec_int_t                   age;
    ngx_http_idem_activity_t        *activity;
    ngx_http_idem_activity_entry_t  *e;

    activity = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_activity_t));
    if (activity == NULL) {
        return NGX_ERROR;
    }

    fields[0] = *scope;
    fields[1].data = identity;
    fields[1].len = NGX_HTTP_IDEM_HASH_LEN;

    ngx_http_idem_digest_fields(hash, fields, 2);
    ngx_memcpy(activity->id, hash, NGX_HTTP_IDEM_ACTIVITY_ID_LEN);

    ctx->claims.activity = activity;

    part = ngx_http_idem_activity_part();

    ngx_http_idem_mutex_lock(ngx_http_idem_activity_pool);

    e = ngx_http_idem_activity_find(activity->id, 0);

    if (e) {
        age = (ngx_msec_int_t) (ngx_current_msec - (ngx_msec_t) e->last);

        /*
         * another worker's cached time may be ahead by one event loop
         * iteration
         */

        activity->age = (ngx_msec_t) ngx_max(age, 0);
        activity->known = (activity->age
                           < ngx_http_idem_activity_table->window);

        for (i = 0; i < NGX_HTTP_IDEM_ACTIVITY_PARTS; i++) {

            if (e->part >= i
                && part < e->part - i + NGX_HTTP_IDEM_ACTIVITY_PARTS)
            {
                activity->count += e->n[(e->part - i)
                                        % NGX_HTTP_IDEM_ACTIVITY_PARTS];
            }
        }
    }

    ngx_http_idem_mutex_unlock(ngx_http_idem_activity_pool);

    return NGX_OK;
}


/* counts an execution */

void
ngx_http_idem_activity_count(ngx_http_idem_activity_t *activity)
{
    uint16_t                        *n;
    uint64_t                         part;
    ngx_http_idem_activity_entry_t  *e;

    part = ngx_http_idem_activity_part();

    ngx_http_idem_mutex_lock(ngx_http_idem_activity_pool);

    e = ngx_http_idem_activity_find(activity->id, 1);

    if (part >= e->part + NGX_HTTP_IDEM_ACTIVITY_PARTS) {
        ngx_memzero(e->n, sizeof(e->n));
        e->part = part;
    }

    /* clear the counters of parts without an execution */

    while (e->part < part) {
        e->part++;
        e->n[e->part % NGX_HTTP_IDEM_ACTIVITY_PARTS] = 0;
    }

    n = &e->n[e->part % NGX_HTTP_IDEM_ACTIVITY_PARTS];

    if (*n < NGX_HTTP_IDEM_ACTIVITY_MAX) {
        (*n)++;
    }

    e->last = ngx_current_msec;

    ngx_http_idem_mutex_unlock(ngx_http_idem_activity_pool);
}


/* the number of the current part of the window */

static uint64_t
ngx_http_idem_activity_part(void)
{
    uint64_t  len;

    len = ngx_http_idem_activity_table->window / NGX_HTTP_IDEM_ACTIVITY_PARTS;

    return ngx_current_msec / ngx_max(len, 1);
}


/* called with the mutex held */

static ngx_http_idem_activity_entry_t *
ngx_http_idem_activity_find(const u_char *id, ngx_uint_t add)
{
    uint64_t                         set;
    ngx_uint_t                       i;
    ngx_http_idem_activity_entry_t  *e, *oldest;

    ngx_memcpy(&set, id, sizeof(uint64_t));

    e = &ngx_http_idem_activity_table->entries[
                                set % ngx_http_idem_activity_table->sets
                                * NGX_HTTP_IDEM_ACTIVITY_WAYS];
    oldest = e;

    for (i = 0; i < NGX_HTTP_IDEM_ACTIVITY_WAYS; i++, e++) {

        if (ngx_memcmp(e->id, id, NGX_HTTP_IDEM_ACTIVITY_ID_LEN) == 0) {
            return e;
        }

        if (e->last < oldest->last) {
            oldest = e;
        }
    }

    if (!add) {
        return NULL;
    }

    /* clear the old client's counters before its id is overwritten */

    ngx_memzero(oldest->n, sizeof(oldest->n));
    oldest->part = 0;
    ngx_memcpy(oldest->id, id, NGX_HTTP_IDEM_ACTIVITY_ID_LEN);

    return oldest;
}
