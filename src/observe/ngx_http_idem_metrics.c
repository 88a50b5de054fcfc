
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The metrics of all workers.  The zone keeps them by the names of stores and
 * groups, so that a reload with another order of them continues the counters.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem.h"
#include "observe/ngx_http_idem_metrics.h"


#define NGX_HTTP_IDEM_METRICS_MAGIC    0x49444d31      /* "IDM1" */
#define NGX_HTTP_IDEM_METRICS_VERSION  7


static ngx_int_t ngx_http_idem_metrics_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_uint_t ngx_http_idem_metrics_find_group(u_char *name, size_t len);
static size_t ngx_http_idem_metrics_label(u_char *dst, ngx_str_t *name);



/* upper bounds of the buckets, microseconds; a last bucket has all above */

const uint64_t  ngx_http_idem_metrics_bounds[] = {
    50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000,
    350000, 500000, 600000, 750000, 1000000, 1500000, 2500000, 5000000,
    10000000, 30000000, 60000000
};


/* as many upper bounds for ages, from 0.1 s to a week */

#define ngx_http_idem_metrics_s(n)  ((uint64_t) (n) * 1000000)

const uint64_t  ngx_http_idem_metrics_ages[] = {
    100000, 250000, 500000,
    ngx_http_idem_metrics_s(1), 2500000, ngx_http_idem_metrics_s(5),
    ngx_http_idem_metrics_s(10), ngx_http_idem_metrics_s(15),
    ngx_http_idem_metrics_s(30), ngx_http_idem_metrics_s(60),
    ngx_http_idem_metrics_s(120), ngx_http_idem_metrics_s(300),
    ngx_http_idem_metrics_s(600), ngx_http_idem_metrics_s(900),
    ngx_http_idem_metrics_s(1800), ngx_http_idem_metrics_s(3600),
    ngx_http_idem_metrics_s(7200), ngx_http_idem_metrics_s(14400),
    ngx_http_idem_metrics_s(21600), ngx_http_idem_metrics_s(43200),
    ngx_http_idem_metrics_s(86400), ngx_http_idem_metrics_s(259200),
    ngx_http_idem_metrics_s(604800)
};


static ngx_slab_pool_t  *ngx_http_idem_metrics_pool;
static ngx_http_idem_metrics_shared_t  *ngx_http_idem_metrics;


ngx_int_t
ngx_http_idem_metrics_zone(ngx_conf_t *cf)
{
    ngx_shm_zone_t  *shm_zone;

    static ngx_str_t  name = ngx_string("idempotency:metrics");

    shm_zone = ngx_shared_memory_add(cf, &name,
                               sizeof(ngx_http_idem_metrics_shared_t)
                               + NGX_HTTP_IDEM_METRICS_STORES
                                 * (sizeof(ngx_http_idem_metrics_t)
                                    + ngx_pagesize)
                               + 16 * ngx_pagesize,
                               ngx_http_idem_zone_tag);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm_zone->init = ngx_http_idem_metrics_init;
    shm_zone->data = &ngx_http_idem_metrics;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_metrics_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_slab_pool_t                 *shpool;
    ngx_http_idem_metrics_shared_t  *shared;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shpool->data == NULL) {
        shared = ngx_slab_calloc(shpool,
                                 sizeof(ngx_http_idem_metrics_shared_t));
        if (shared == NULL) {
            return NGX_ERROR;
        }

        shared->magic = NGX_HTTP_IDEM_METRICS_MAGIC;
        shared->version = NGX_HTTP_IDEM_METRICS_VERSION;
        shared->started = ngx_http_idem_history_now();

        shpool->data = shared;
    }

    shared = shpool->data;

    if (shared->magic != NGX_HTTP_IDEM_METRICS_MAGIC
        || shared->version != NGX_HTTP_IDEM_METRICS_VERSION)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" was laid out by another version of "
                      "ngx_http_idempotency_module: restart nginx",
                      &shm_zone->shm.name);
        return NGX_ERROR;
    }

    ngx_http_idem_metrics = shared;
    ngx_http_idem_metrics_pool = shpool;

    return NGX_OK;
}


/* a name that can be quoted in any output format */

static size_t
ngx_http_idem_metrics_label(u_char *dst, ngx_str_t *name)
{
    size_t  i, len;

    len = ngx_min(name->len, NGX_HTTP_IDEM_METRICS_NAME);

    for (i = 0; i < len; i++) {
        dst[i] = name->data[i];

        if (dst[i] < 0x20 || dst[i] > 0x7e || dst[i] == '"' || dst[i] == '\\') {
            dst[i] = '_';
        }
    }

    return len;
}


/*
 * Called by the master at start and on reload, once the zone exists.  Stores
 * without a slot of their own share one, "other".
 */

ngx_http_idem_metrics_t *
ngx_http_idem_metrics_bind(ngx_str_t *store)
{
    u_char                    name[NGX_HTTP_IDEM_METRICS_NAME];
    size_t                    len;
    ngx_uint_t                i;
    ngx_http_idem_metrics_t  *m;

    len = ngx_http_idem_metrics_label(name, store);

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_STORES - 1; i++) {
        m = ngx_http_idem_metrics->stores[i];

        if (m == NULL
            || (m->len == len
                && ngx_memcmp(m->name, name, len) == 0))
        {
            break;
        }
    }

    if (i == NGX_HTTP_IDEM_METRICS_STORES - 1) {
        len = sizeof("other") - 1;
        ngx_memcpy(name, "other", len);
    }

    m = ngx_http_idem_metrics->stores[i];

    if (m == NULL) {
        m = ngx_slab_alloc(ngx_http_idem_metrics_pool,
                           sizeof(ngx_http_idem_metrics_t));
        if (m == NULL) {
            return NULL;
        }

        /* rows are written before they are read, so their pages are not
           touched yet */

        ngx_memzero(m, offsetof(ngx_http_idem_metrics_t, history.rows));

        ngx_memcpy(m->name, name, len);
        m->len = len;

        ngx_http_idem_metrics->stores[i] = m;
    }

    return m;
}


/*
 * Called by the master, and by workers for groups that are named by
 * variables.  A name is permanent: it is written before its length, and never
 * changes.
 */

ngx_uint_t
ngx_http_idem_metrics_group(ngx_str_t *group)
{
    u_char      name[NGX_HTTP_IDEM_METRICS_NAME];
    size_t      len;
    ngx_uint_t  i;

    len = ngx_http_idem_metrics_label(name, group);

    /* a group that the operator named "other" is the same in every format */

    if (len == sizeof("other") - 1 && ngx_memcmp(name, "other", len) == 0) {
        return NGX_HTTP_IDEM_METRICS_OTHER;
    }

    i = ngx_http_idem_metrics_find_group(name, len);

    if (i == NGX_HTTP_IDEM_METRICS_OTHER
        || ngx_http_idem_metrics->groups[i].len)
    {
        return i;
    }

    ngx_shmtx_lock(&ngx_http_idem_metrics_pool->mutex);

    i = ngx_http_idem_metrics_find_group(name, len);

    if (i != NGX_HTTP_IDEM_METRICS_OTHER
        && ngx_http_idem_metrics->groups[i].len == 0)
    {
        ngx_memcpy(ngx_http_idem_metrics->groups[i].name, name, len);
        ngx_memory_barrier();
        ngx_http_idem_metrics->groups[i].len = len;
    }

    ngx_shmtx_unlock(&ngx_http_idem_metrics_pool->mutex);

    return i;
}


/* the slot of a group, or a free one, or NGX_HTTP_IDEM_METRICS_OTHER */

static ngx_uint_t
ngx_http_idem_metrics_find_group(u_char *name, size_t len)
{
    size_t      n;
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_GROUPS; i++) {

        n = ngx_http_idem_metrics->groups[i].len;

        if (n == 0
            || (n == len
                && ngx_memcmp(ngx_http_idem_metrics->groups[i].name,
                              name, len)
                   == 0))
        {
            return i;
        }
    }

    return NGX_HTTP_IDEM_METRICS_OTHER;
}


void
ngx_http_idem_metrics_count(ngx_http_idem_metrics_t *m,
    ngx_http_idem_count_e what)
{
    (void) ngx_atomic_fetch_add(&m->counts[what], 1);
}


/* "age" is the age of the replayed response, ms */

void
ngx_http_idem_metrics_replay(ngx_http_idem_metrics_t *m,
    ngx_http_idem_layer_e layer, uint64_t age)
{
    (void) ngx_atomic_fetch_add(&m->replays[layer], 1);

    ngx_http_idem_metrics_observe(&m->replay_age, ngx_http_idem_metrics_ages,
                                  age * 1000);
}


void
ngx_http_idem_metrics_dropped(ngx_uint_t n)
{
    (void) ngx_atomic_fetch_add(&ngx_http_idem_metrics->events_dropped,
                                (ngx_atomic_int_t) n);
}


void
ngx_http_idem_metrics_observe(ngx_http_idem_histogram_t *h,
    const uint64_t *bounds, uint64_t usec)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        if (usec <= bounds[i]) {
            break;
        }
    }

    (void) ngx_atomic_fetch_add(&h->buckets[i], 1);

    if (usec) {
        (void) ngx_atomic_fetch_add(&h->sum, (ngx_atomic_int_t) usec);
    }
}


uint64_t
ngx_http_idem_metrics_clock(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}


ngx_str_t
ngx_http_idem_metrics_group_name(ngx_uint_t group)
{
    ngx_str_t  name;

    ngx_str_set(&name, "other");

    if (group < NGX_HTTP_IDEM_METRICS_OTHER) {
        name.data = ngx_http_idem_metrics->groups[group].name;
        name.len = ngx_http_idem_metrics->groups[group].len;
    }

    return name;
}


ngx_http_idem_metrics_shared_t *
ngx_http_idem_metrics_read(void)
{
    return ngx_http_idem_metrics;
}
