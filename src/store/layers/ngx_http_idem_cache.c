
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The cache: completed records of a remote store, kept in shared memory of
 * this nginx for a while.
 *
 * A begin whose record is cached needs no round trip, and works while the
 * store is down.  Only records that can't change any more are cached:
 * completed ones, until they expire or the "ttl" of the cache is over,
 * whichever comes first.  Both count from when the store was asked, which is
 * before it answered, so that nothing is replayed after its expiry.  Records
 * are added by begins that find them, and by commits of this nginx.  Evicted
 * records are simply forgotten, since the store has them.
 *
 * The cache does not compare requests: the claim is cached with the record,
 * and the core checks it.
 *
 * Called by the core as the store; calls the outbox inside, and the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/* a response larger than 1/8 of the zone is not cached */
#define NGX_HTTP_IDEM_CACHE_PART  8

/* records that are checked for expiry when one is added */
#define NGX_HTTP_IDEM_CACHE_PURGE_N  8


static ngx_int_t ngx_http_idem_cache_begin(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_cache_pass(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_cache_begun(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_cache_passed(
    ngx_http_idem_op_t *op, uintptr_t note);
static void ngx_http_idem_cache_fill(ngx_http_idem_cache_t *cache,
    ngx_http_idem_op_t *op, ngx_msec_t left);


const ngx_http_idem_backend_t  ngx_http_idem_cache_backend = {
    ngx_string("cache"),
    NULL,
    NULL,
    NULL,
    ngx_http_idem_layer_init_process,
    ngx_http_idem_layer_exit_process,
    ngx_http_idem_cache_begin,
    ngx_http_idem_layer_pass,                /* renew */
    ngx_http_idem_cache_pass,                /* commit */
    ngx_http_idem_layer_pass,                /* release */
    ngx_http_idem_layer_pass,                /* watch */
    ngx_http_idem_layer_cancel,
    NULL,                                  /* stats */
    1,
    ngx_http_idem_cache_pass,                /* admin */
    NGX_HTTP_IDEM_TRAIL_NONE                 /* see store->trail */
};


#define ngx_http_idem_cache_conf(op)                                          \
    ((ngx_http_idem_cache_t *) (op)->store->conf)


static ngx_int_t
ngx_http_idem_cache_begin(ngx_http_idem_op_t *op)
{
    ngx_http_idem_item_t   *item;
    ngx_http_idem_cache_t  *cache;

    cache = ngx_http_idem_cache_conf(op);

    ngx_http_idem_zone_lock(&cache->z);

    item = ngx_http_idem_zone_find(&cache->z, op->id);

    if (item) {
        ngx_http_idem_zone_found(&cache->z, item, op);
    }

    ngx_http_idem_zone_unlock(&cache->z);

    if (item && op->result == NGX_HTTP_IDEM_FOUND) {
        ngx_http_idem_metrics_count(cache->layer.named->metrics,
                                    NGX_HTTP_IDEM_COUNT_CACHE_HITS);
        return NGX_OK;
    }

    ngx_http_idem_metrics_count(cache->layer.named->metrics,
                                NGX_HTTP_IDEM_COUNT_CACHE_MISSES);

    op->need_left = 1;

    return ngx_http_idem_layer_ask(op, cache->layer.inner,
                                   ngx_http_idem_cache_begun, 0);
}


static ngx_int_t
ngx_http_idem_cache_begun(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_buf_t               b;
    ngx_chain_t             cl;
    ngx_http_idem_op_t      commit;
    ngx_http_idem_found_t  *found;

    found = &op->found;

    if (op->result != NGX_HTTP_IDEM_FOUND
        || found->state != NGX_HTTP_IDEM_COMPLETED
        || op->kept)
    {
        return NGX_OK;
    }

    /* verified once, when it comes from the store, and not at each hit */

    if (found->verify) {

        if (!ngx_http_idem_response_intact(found->response.data,
                                           found->response.len))
        {
            return NGX_OK;
        }

        found->verify = 0;
    }

    ngx_memzero(&b, sizeof(ngx_buf_t));

    b.memory = 1;
    b.pos = found->response.data;
    b.last = found->response.data + found->response.len;

    cl.buf = &b;
    cl.next = NULL;

    /* cache the record as if it had been committed here */

    ngx_memzero(&commit, sizeof(ngx_http_idem_op_t));

    commit.start = op->start;
    commit.claim = &found->claim;
    commit.details = found->details;
    commit.state = found->state;
    commit.response = &cl;
    commit.size = found->response.len;

    ngx_memcpy(commit.id, op->id, NGX_HTTP_IDEM_ID_LEN);

    ngx_http_idem_cache_fill(ngx_http_idem_cache_conf(op), &commit,
                             found->left);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_cache_pass(ngx_http_idem_op_t *op)
{
    return ngx_http_idem_layer_ask(op, ngx_http_idem_layer_inner(op),
                                   ngx_http_idem_cache_passed, 0);
}


static ngx_int_t
ngx_http_idem_cache_passed(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_cache_t  *cache;

    cache = ngx_http_idem_cache_conf(op);

    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE) {

        /* after the store has: a begin could cache it again before */

        ngx_http_idem_cache_drop(cache, op->id);

    } else if (op->kind == NGX_HTTP_IDEM_OP_COMMIT
               && op->result == NGX_HTTP_IDEM_OK
               && op->state == NGX_HTTP_IDEM_COMPLETED
               && !op->kept)
    {
        /* a commit in the outbox may still turn out to be lost */

        ngx_http_idem_cache_fill(cache, op, op->ttl);
    }

    return NGX_OK;
}


static void
ngx_http_idem_cache_fill(ngx_http_idem_cache_t *cache,
    ngx_http_idem_op_t *op, ngx_msec_t left)
{
    ngx_msec_t  fresh_until, expires;

    fresh_until = op->start + left;
    expires = op->start + ngx_min(left, cache->ttl);

    if ((ngx_msec_int_t) (expires - ngx_current_msec) <= 0
        || op->size > (size_t) cache->z.size / NGX_HTTP_IDEM_CACHE_PART)
    {
        return;
    }

    ngx_http_idem_zone_lock(&cache->z);

    ngx_http_idem_zone_purge(&cache->z, NGX_HTTP_IDEM_CACHE_PURGE_N);

    /*
     * the store may have replied before the record was removed, and the reply
     * came after the notification of that
     */

    if ((ngx_msec_int_t) (op->start - cache->z.zone->removed) > 0) {
        (void) ngx_http_idem_zone_store(&cache->z, op, fresh_until, expires);
    }

    ngx_http_idem_zone_unlock(&cache->z);
}


void
ngx_http_idem_cache_drop(ngx_http_idem_cache_t *cache, u_char *id)
{
    ngx_http_idem_item_t  *item;

    ngx_http_idem_zone_lock(&cache->z);

    cache->z.zone->removed = ngx_current_msec;

    item = ngx_http_idem_zone_find(&cache->z, id);

    if (item) {
        ngx_http_idem_zone_remove(&cache->z, item);
    }

    ngx_http_idem_zone_unlock(&cache->z);
}
