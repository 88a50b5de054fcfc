
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Zones of records in the configuration: name and size, and the creation of
 * the zone when nginx starts.  A reload reuses the zone if its size is the
 * same.  A different size is refused, since the records would be lost.
 *
 * Called by the embedded store, and by the layers of remote stores, while
 * nginx reads the configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/rand.h>

#include "ngx_http_idem.h"
#include "store/zone/ngx_http_idem_shared.h"
#include "store/zone/ngx_http_idem_zone.h"


/* bytes of the zone per bucket: at most twice the size of a record */
#define NGX_HTTP_IDEM_BUCKET_BYTES  512

/* how long a reload waits for the lock of a zone, ms */
#define NGX_HTTP_IDEM_LOCK_TIME  1000


static ngx_int_t ngx_http_idem_zone_init(ngx_shm_zone_t *shm_zone,
    void *data);
static ngx_shm_zone_t *ngx_http_idem_zone_named(ngx_cycle_t *cycle,
    ngx_str_t *name);
static ngx_shm_zone_t *ngx_http_idem_zone_next(ngx_list_part_t **part,
    ngx_uint_t *i);
static ngx_int_t ngx_http_idem_zone_commits_lost(ngx_conf_t *cf,
    ngx_shm_zone_t *old, ngx_uint_t n);
static ngx_uint_t ngx_http_idem_zone_unexpired(ngx_shm_zone_t *old,
    ngx_http_idem_zone_t *zone);
static ngx_int_t ngx_http_idem_zone_create(ngx_http_idem_records_t *z);


/* a reload must not use a zone of another kind, either */
#define ngx_http_idem_zone_magic(z)                                           \
    (NGX_HTTP_IDEM_ZONE_MAGIC + (uint32_t) (z)->full)


char *
ngx_http_idem_zone_parse(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_records_t *z)
{
    u_char     *p;
    ngx_str_t   s, *directive;

    p = (u_char *) ngx_strchr(value->data, ':');

    if (p == NULL || p == value->data) {
        directive = cf->args->elts;
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"%V\": it is <name>:<size>, "
                           "for example ledger:32m, in \"%V\"",
                           value, directive);
        return NGX_CONF_ERROR;
    }

    z->name.data = value->data;
    z->name.len = p - value->data;

    s.data = p + 1;
    s.len = value->data + value->len - s.data;

    return ngx_http_idem_zone_size(cf, &s, z);
}


char *
ngx_http_idem_zone_size(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_records_t *z)
{
    z->size = ngx_parse_size(value);

    if (z->size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid size \"%V\" of zone \"%V\": it is a "
                           "number with an optional k or m, "
                           "for example 32m", value, &z->name);
        return NGX_CONF_ERROR;
    }

    if (z->size < (ssize_t) (NGX_HTTP_IDEM_MIN_PAGES * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small: %z bytes, it takes "
                           "at least %uz", &z->name, z->size,
                           (size_t) (NGX_HTTP_IDEM_MIN_PAGES
                                     * ngx_pagesize));
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idem_zone_add(ngx_conf_t *cf, ngx_http_idem_records_t *z)
{
    ngx_shm_zone_t  *old;

    /*
     * nginx itself would silently replace a zone whose size has changed.
     * That does no harm to a cache only.
     */

    old = ngx_http_idem_zone_named(cf->cycle->old_cycle, &z->name);

    if (old && z->full != NGX_HTTP_IDEM_FULL_FORGET
        && old->tag == ngx_http_idem_zone_tag
        && old->shm.size != (size_t) z->size)
    {
        /* an outbox has no name that could be changed */

        if (z->full == NGX_HTTP_IDEM_FULL_REFUSE) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "the size of zone \"%V\" was changed from %uz "
                               "to %z bytes; a reload would forget the "
                               "commits in it: keep \"outbox %uz\", or "
                               "restart nginx when no commit waits",
                               &z->name, old->shm.size, z->size,
                               old->shm.size);
            return NGX_CONF_ERROR;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the size of zone \"%V\" was changed from %uz "
                           "to %z bytes; a reload would forget every "
                           "record in it: keep the size, give the zone "
                           "a new name, or restart nginx",
                           &z->name, old->shm.size, z->size);
        return NGX_CONF_ERROR;
    }

    z->shm_zone = ngx_http_idem_shared_memory(cf, &z->name, z->size,
                                              ngx_http_idem_zone_init, z);

    return z->shm_zone ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static ngx_int_t
ngx_http_idem_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_idem_records_t  *z;

    z = shm_zone->data;
    z->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {
        return ngx_http_idem_zone_create(z);
    }

    /*
     * "data" belongs to the previous cycle, and perhaps to another build of
     * this module: only the zone itself is examined
     */

    z->zone = z->shpool->data;

    if (z->zone == NULL
        || z->zone->magic != ngx_http_idem_zone_magic(z)
        || z->zone->version != NGX_HTTP_IDEM_ZONE_VERSION)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "zone \"%V\" was laid out by another version of "
                      "ngx_http_idempotency_module, or for another use: "
                      "give the zone a new name, or restart nginx",
                      &shm_zone->shm.name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * The whole zone is one allocation of the slab pool, which is not used again:
 * ..._arena.h explains why.  It holds the zone structure, the buckets, the
 * name for nginx's log, and then the memory for records.
 */

static ngx_int_t
ngx_http_idem_zone_create(ngx_http_idem_records_t *z)
{
    size_t                 size;
    u_char                *p, *end;
    ngx_str_t             *name;
    ngx_uint_t             n;
    ngx_http_idem_zone_t  *zone;

    /* a full zone is an expected result, and is logged elsewhere */
    z->shpool->log_nomem = 0;

    /* a new pool has only adjacent free pages */

    size = z->shpool->pfree * ngx_pagesize;

    p = ngx_slab_alloc(z->shpool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    end = p + size;

    zone = (ngx_http_idem_zone_t *) p;
    ngx_memzero(zone, sizeof(ngx_http_idem_zone_t));
    p += sizeof(ngx_http_idem_zone_t);

    for (n = 64; n * NGX_HTTP_IDEM_BUCKET_BYTES < (size_t) z->size; ) {
        n *= 2;
    }

    p = ngx_align_ptr(p, NGX_ALIGNMENT);

    zone->buckets = (ngx_http_idem_item_t **) p;
    zone->mask = n - 1;
    p += n * sizeof(ngx_http_idem_item_t *);

    name = &z->shm_zone->shm.name;

    if ((size_t) (end - p) < sizeof(" in idempotency zone \"\"") + name->len) {
        return NGX_ERROR;
    }

    ngx_memzero(zone->buckets, n * sizeof(ngx_http_idem_item_t *));

    z->shpool->log_ctx = p;
    p = ngx_sprintf(p, " in idempotency zone \"%V\"%Z", name);

    ngx_http_idem_arena_init(&zone->arena, p, end - p);

    if (RAND_bytes(zone->nonce, sizeof(zone->nonce)) != 1) {
        return NGX_ERROR;
    }

    ngx_http_idem_expiry_init(&zone->expiry);
    ngx_queue_init(&zone->completed);
    ngx_queue_init(&zone->writing);
    ngx_queue_init(&zone->details);

    zone->magic = ngx_http_idem_zone_magic(z);
    zone->version = NGX_HTTP_IDEM_ZONE_VERSION;

    z->shpool->data = zone;
    z->zone = zone;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_zones_left(ngx_conf_t *cf, ngx_http_idem_zone_left_pt handler)
{
    ngx_uint_t        i;
    ngx_shm_zone_t   *zone;
    ngx_list_part_t  *part;

    part = &cf->cycle->old_cycle->shared_memory.part;
    i = 0;

    while ((zone = ngx_http_idem_zone_next(&part, &i))) {

        if (zone->tag == ngx_http_idem_zone_tag
            && zone->shm.addr
            && ngx_http_idem_zone_named(cf->cycle, &zone->shm.name) == NULL
            && handler(cf, zone) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_shm_zone_t *
ngx_http_idem_zone_named(ngx_cycle_t *cycle, ngx_str_t *name)
{
    ngx_uint_t        i;
    ngx_shm_zone_t   *zone;
    ngx_list_part_t  *part;

    part = &cycle->shared_memory.part;
    i = 0;

    while ((zone = ngx_http_idem_zone_next(&part, &i))) {

        if (ngx_http_idem_same_text(&zone->shm.name, name)) {
            break;
        }
    }

    return zone;
}


/* iterates over shared_memory.part of a cycle; "i" is 0 at first */

static ngx_shm_zone_t *
ngx_http_idem_zone_next(ngx_list_part_t **part, ngx_uint_t *i)
{
    ngx_shm_zone_t  *zone;

    for ( /* void */ ; *part; *part = (*part)->next, *i = 0) {

        if (*i < (*part)->nelts) {
            zone = (*part)->elts;
            return &zone[(*i)++];
        }
    }

    return NULL;
}


/*
 * If a zone has commits that a store has not accepted yet, the reload is
 * refused.  A zone of records is kept while it has unexpired records, in case
 * a store is declared for it again.
 */

ngx_int_t
ngx_http_idem_zone_dropped(ngx_conf_t *cf, ngx_shm_zone_t *old)
{
    uint32_t                  full;
    ngx_uint_t                n;
    ngx_slab_pool_t          *shpool;
    ngx_http_idem_zone_t     *zone;
    ngx_http_idem_records_t  *z;

    shpool = (ngx_slab_pool_t *) old->shm.addr;
    zone = shpool->data;

    /* other zones of this module hold nothing that would be missed */

    if (zone == NULL || zone->version != NGX_HTTP_IDEM_ZONE_VERSION) {
        return NGX_OK;
    }

    full = zone->magic - NGX_HTTP_IDEM_ZONE_MAGIC;

    if (full != NGX_HTTP_IDEM_FULL_EVICT && full != NGX_HTTP_IDEM_FULL_REFUSE)
    {
        return NGX_OK;
    }

    n = ngx_http_idem_zone_unexpired(old, zone);

    if (n == 0) {
        return NGX_OK;
    }

    if (full == NGX_HTTP_IDEM_FULL_REFUSE) {
        return ngx_http_idem_zone_commits_lost(cf, old, n);
    }

    /* zeroed: NGX_HTTP_IDEM_FULL_EVICT */

    z = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_records_t));
    if (z == NULL) {
        return NGX_ERROR;
    }

    z->size = old->shm.size;
    z->name.len = old->shm.name.len;
    z->name.data = ngx_pstrdup(cf->pool, &old->shm.name);

    if (z->name.data == NULL
        || ngx_http_idem_zone_add(cf, z) != NGX_CONF_OK)
    {
        return NGX_ERROR;
    }

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "idempotency: no store uses zone \"%V\" any more, which "
                  "holds %ui unexpired records: retries of their requests "
                  "may run again; the zone is kept until they have expired, "
                  "for a store that uses it again", &z->name, n);

    return NGX_OK;
}


/* the name of an outbox zone ends with the name of its store */

static ngx_int_t
ngx_http_idem_zone_commits_lost(ngx_conf_t *cf, ngx_shm_zone_t *old,
    ngx_uint_t n)
{
    size_t     len;
    ngx_str_t  store;

    store = old->shm.name;
    len = sizeof(NGX_HTTP_IDEM_OUTBOX_PREFIX "_") - 1;

    if (store.len > len
        && ngx_strncmp(store.data, NGX_HTTP_IDEM_OUTBOX_PREFIX "_", len)
           == 0)
    {
        store.data += len;
        store.len -= len;
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "idempotency_store \"%V\" is gone from the configuration, "
                  "and %ui commits are kept for it that could not reach its "
                  "server yet; a reload would forget them, and retries of "
                  "their requests would run again: declare it under that "
                  "name until they have landed, or restart nginx to give "
                  "them up",
                  &store, n);

    return NGX_ERROR;
}


/*
 * Counts unexpired records.  A zone whose lock can't be taken in time, or
 * that a dead worker left inconsistent, counts as having at least one.
 */

static ngx_uint_t
ngx_http_idem_zone_unexpired(ngx_shm_zone_t *old, ngx_http_idem_zone_t *zone)
{
    u_char                *start, *end;
    ngx_uint_t             i, n, seen, most, tries;
    ngx_slab_pool_t       *shpool;
    ngx_http_idem_item_t  *item;

    shpool = (ngx_slab_pool_t *) old->shm.addr;

    for (tries = 0; !ngx_shmtx_trylock(&shpool->mutex); tries++) {

        if (tries == NGX_HTTP_IDEM_LOCK_TIME) {
            return ngx_max(zone->records, 1);
        }

        ngx_msleep(1);
    }

    n = 0;
    seen = 0;
    start = old->shm.addr;
    end = start + old->shm.size;
    most = old->shm.size / sizeof(ngx_http_idem_item_t);

    for (i = 0; i <= zone->mask; i++) {

        for (item = zone->buckets[i]; item; item = item->next) {

            if ((u_char *) item < start
                || (u_char *) item
                   > end - sizeof(ngx_http_idem_item_t)
                || ++seen > most)
            {
                ngx_shmtx_unlock(&shpool->mutex);
                return ngx_max(n, 1);
            }

            if ((ngx_msec_int_t) (item->expires - ngx_current_msec) > 0) {
                n++;
            }
        }
    }

    ngx_shmtx_unlock(&shpool->mutex);

    return n;
}
