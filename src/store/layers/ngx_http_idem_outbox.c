
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The outbox: commits that could not reach the store after the application
 * ran.
 *
 * The record is kept in shared memory of this nginx.  A begin finds it here,
 * so that a retry of the request is replayed and does not run again.  The
 * commit is retried until the store accepts it, or another request turns out
 * to have taken over, or the record has expired and its lock, too
 * (..._outbox_retry.c).  Once its lease may have expired, another host may
 * have run the same request: then the commit is retried before a begin is
 * answered (..._outbox_try.c).
 * Records are never evicted.  Without room for its response, a new commit is
 * kept as an unusable record, so that a retry does not run again; without room
 * for that either, it is lost.
 *
 * A commit that the store has accepted, but too few of its replicas, is kept
 * as well, as long as half of the zone is free: until replicas have it, it
 * may be lost with its server, and it is written again to the server that
 * takes over.
 *
 * The outbox also has the locks and outcomes of requests that run although
 * the store does not answer a begin (..._outbox_local.c).
 *
 * While the outbox is empty, a begin costs one read of a counter.
 *
 * Called by the cache or the core; calls the breaker or the backend inside,
 * and the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* what the outbox knows of a record */

typedef enum {
    NGX_HTTP_IDEM_OUTBOX_NONE = 0,
    NGX_HTTP_IDEM_OUTBOX_KEPT,
    NGX_HTTP_IDEM_OUTBOX_DOUBTFUL,           /* the lease may have expired,
                                                and the store may know
                                                better */
    NGX_HTTP_IDEM_OUTBOX_RUNS                /* a lock in this nginx only */
} ngx_http_idem_outbox_has_e;


static ngx_int_t ngx_http_idem_outbox_begin(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_outbox_update(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_outbox_commit(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_outbox_watch(ngx_http_idem_op_t *op);
static void ngx_http_idem_outbox_cancel(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_outbox_committed(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_http_idem_outbox_has_e ngx_http_idem_outbox_lookup(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op,
    ngx_uint_t read);
static ngx_int_t ngx_http_idem_outbox_keep(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op, ngx_http_idem_outbox_cause_e cause);
static ngx_http_idem_item_t *ngx_http_idem_outbox_keep_bare(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op,
    ngx_http_idem_item_t *old, ngx_msec_t until, ngx_msec_t expires);
static void ngx_http_idem_outbox_report_kept(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op, ngx_uint_t waiting, ngx_uint_t kept,
    ngx_uint_t bare);


const ngx_http_idem_backend_t  ngx_http_idem_outbox_backend = {
    ngx_string("outbox"),
    NULL,
    NULL,
    NULL,
    ngx_http_idem_outbox_init_process,
    ngx_http_idem_outbox_exit_process,
    ngx_http_idem_outbox_begin,
    ngx_http_idem_outbox_update,           /* renew */
    ngx_http_idem_outbox_commit,
    ngx_http_idem_outbox_update,           /* release */
    ngx_http_idem_outbox_watch,
    ngx_http_idem_outbox_cancel,
    NULL,                                  /* stats */
    1,
    ngx_http_idem_outbox_admin,
    NGX_HTTP_IDEM_TRAIL_NONE                 /* see store->trail */
};


#define ngx_http_idem_outbox_conf(op)                                         \
    ((ngx_http_idem_outbox_t *) (op)->store->conf)


static ngx_int_t
ngx_http_idem_outbox_begin(ngx_http_idem_op_t *op)
{
    ngx_http_idem_outbox_t  *o;

    o = ngx_http_idem_outbox_conf(op);

    if (op->unprotected) {
        return ngx_http_idem_outbox_local_begin(o, op);
    }

    switch (ngx_http_idem_outbox_lookup(o, op, 1)) {

    case NGX_HTTP_IDEM_OUTBOX_KEPT:
    case NGX_HTTP_IDEM_OUTBOX_RUNS:
        op->kept = 1;
        return NGX_OK;

    case NGX_HTTP_IDEM_OUTBOX_DOUBTFUL:
        return ngx_http_idem_outbox_check(o, op);

    default: /* NGX_HTTP_IDEM_OUTBOX_NONE */
        return ngx_http_idem_layer_pass(op);
    }
}


/* the store inside sends a failed release again (..._remote.c) */

static ngx_int_t
ngx_http_idem_outbox_update(ngx_http_idem_op_t *op)
{
    if (op->unprotected) {
        return ngx_http_idem_outbox_local_update(
                                    ngx_http_idem_outbox_conf(op), op);
    }

    return ngx_http_idem_layer_pass(op);
}


static ngx_int_t
ngx_http_idem_outbox_commit(ngx_http_idem_op_t *op)
{
    if (op->unprotected) {

        /*
         * the store does not know of the request: it is retried like a failed
         * commit
         */

        ngx_http_idem_op_error(op, "it ran unprotected");

        /* another host may have run the request in the meantime */

        op->locked_until = ngx_current_msec
                           + (ngx_http_idem_op_retryable(op)
                              ? op->lease : 0);

        return ngx_http_idem_outbox_committed(op, 0);
    }

    return ngx_http_idem_layer_ask(op, ngx_http_idem_layer_inner(op),
                                   ngx_http_idem_outbox_committed, 0);
}


/*
 * A record with an outcome has changed already: there is nothing to wait for.
 * A doubtful one is passed on: the waiter may wait for a holder that the
 * store knows of.
 */

static ngx_int_t
ngx_http_idem_outbox_watch(ngx_http_idem_op_t *op)
{
    ngx_http_idem_outbox_t  *o;

    o = ngx_http_idem_outbox_conf(op);

    switch (ngx_http_idem_outbox_lookup(o, op, 0)) {

    case NGX_HTTP_IDEM_OUTBOX_KEPT:
        op->result = NGX_HTTP_IDEM_OK;
        return NGX_OK;

    case NGX_HTTP_IDEM_OUTBOX_RUNS:
        return ngx_http_idem_outbox_local_watch(op);

    default:
        return ngx_http_idem_layer_pass(op);
    }
}


/* the request was executed, even if it is gone: its commit is kept */

static void
ngx_http_idem_outbox_cancel(ngx_http_idem_op_t *op)
{
    ngx_http_idem_outbox_t  *o;

    o = ngx_http_idem_outbox_conf(op);

    if (op->state_data == NULL) {

        /*
         * no inner operation: a local watch, or a begin that waits for a
         * check
         */

        if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
            ngx_housekeeping_stop(&op->timer);

        } else {
            ngx_http_idem_outbox_check_cancel(op);
        }

        return;
    }

    ngx_http_idem_layer_cancel(op);

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
        op->error = "it was given up";

        if (ngx_http_idem_outbox_keep(o, op, NGX_HTTP_IDEM_OUTBOX_FAILED)
            != NGX_OK)
        {
            ngx_http_idem_metrics_count(o->layer.named->metrics,
                                        NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES);
        }
    }
}


static ngx_int_t
ngx_http_idem_outbox_committed(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_outbox_t  *o;

    o = ngx_http_idem_outbox_conf(op);

    if (op->result != NGX_HTTP_IDEM_ERROR) {

        if (op->unacknowledged) {
            (void) ngx_http_idem_outbox_keep(o, op,
                                  NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED);
        }

        return NGX_OK;
    }

    if (ngx_http_idem_outbox_keep(o, op,
                                  NGX_HTTP_IDEM_OUTBOX_FAILED)
        == NGX_OK)
    {
        op->result = NGX_HTTP_IDEM_OK;
        op->kept = 1;
    }

    return NGX_OK;
}


/* "read": fill op->found, and ignore a record that lets the request run */

static ngx_http_idem_outbox_has_e
ngx_http_idem_outbox_lookup(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op, ngx_uint_t read)
{
    ngx_msec_t                   age;
    ngx_http_idem_item_t        *item;
    ngx_http_idem_outbox_has_e   has;

    if (ngx_http_idem_outbox_empty(o)) {
        return NGX_HTTP_IDEM_OUTBOX_NONE;
    }

    /* the worker that added the record may be gone: retry by timer */

    ngx_http_idem_outbox_schedule(o, NGX_HTTP_IDEM_OUTBOX_TICK);

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    /* a lease ends for those that waited for it, too; an outcome does not */

    age = (item && item->state == NGX_HTTP_IDEM_IN_PROGRESS) ? 0 : op->age;

    if (item == NULL
        || (ngx_msec_int_t) (item->until + age - ngx_current_msec) <= 0)
    {
        has = NGX_HTTP_IDEM_OUTBOX_NONE;

    } else if (read && ngx_http_idem_op_retryable(item)
               && ngx_http_idem_outbox_left(item) == 0
               && ngx_http_idem_claim_same(&item->claim, op->claim,
                                           op->key_alone))
    {
        /* the same request may run: the store decides */

        has = NGX_HTTP_IDEM_OUTBOX_NONE;

    } else {
        has = item->state == NGX_HTTP_IDEM_IN_PROGRESS
                  ? NGX_HTTP_IDEM_OUTBOX_RUNS
              : (ngx_msec_int_t) (item->u.locked_until - ngx_current_msec) > 0
                && ngx_http_idem_outbox_cause(item)
                   == NGX_HTTP_IDEM_OUTBOX_FAILED
                  ? NGX_HTTP_IDEM_OUTBOX_KEPT
              : NGX_HTTP_IDEM_OUTBOX_DOUBTFUL;

        if (read) {
            ngx_http_idem_zone_found(&o->z, item, op);
            op->found.left = ngx_http_idem_outbox_left(item);
        }
    }

    ngx_http_idem_outbox_unlock(o);

    return has;
}


/* time to live; of an unknown outcome, time until the same request may run */

ngx_msec_t
ngx_http_idem_outbox_left(ngx_http_idem_item_t *item)
{
    ngx_msec_int_t  left;

    left = (ngx_msec_int_t) ((ngx_http_idem_op_retryable(item)
                              ? item->u.locked_until : item->until)
                             - ngx_current_msec);

    return ngx_max(left, 0);
}


/*
 * NGX_DECLINED: the response is not kept.  If there is room, a record without
 * a response is kept; the fallback may have room for the response.
 *
 * The record stays for as long as the store may have the lock, which nothing
 * else would end.
 */

static ngx_int_t
ngx_http_idem_outbox_keep(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op, ngx_http_idem_outbox_cause_e cause)
{
    ngx_msec_t                  until, life, expires;
    ngx_uint_t                  waiting, bare;
    ngx_http_idem_item_t       *item, *old;
    ngx_http_idem_outbox_sh_t  *sh;

    bare = 0;
    item = NULL;
    sh = ngx_http_idem_outbox_sh(o);

    until = op->start + op->ttl;
    life = op->unprotected ? 0 : op->lock_life;
    expires = op->start + ngx_max(op->ttl + op->grace, life);

    ngx_http_idem_outbox_lock(o);

    old = ngx_http_idem_zone_find(&o->z, op->id);

    if (old && sh->unacknowledged) {
        sh->unacknowledged -= ngx_http_idem_outbox_cause(old);
    }

    if (cause == NGX_HTTP_IDEM_OUTBOX_FAILED
        || 2 * o->z.zone->arena.nfree > o->z.zone->arena.n)
    {
        item = ngx_http_idem_zone_store(&o->z, op, until, expires);
    }

    if (item == NULL && cause == NGX_HTTP_IDEM_OUTBOX_FAILED) {
        item = ngx_http_idem_outbox_keep_bare(o, op, old, until, expires);
        bare = (item && op->state == NGX_HTTP_IDEM_COMPLETED);
    }

    if (item) {
        item->again = cause | (expires == until + op->grace
                               ? 0 : NGX_HTTP_IDEM_OUTBOX_OUTLIVED);
        sh->unacknowledged += cause;

        ngx_http_idem_outbox_queue_use(o,
                       ngx_http_idem_outbox_queue(o, op->id, cause));
    }

    waiting = ngx_http_idem_outbox_waiting(o);

    ngx_http_idem_outbox_unlock(o);

    if (item) {
        ngx_http_idem_outbox_schedule(o, NGX_HTTP_IDEM_OUTBOX_DELAY_MIN);
    }

    if (cause == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED) {
        return NGX_OK;
    }

    ngx_http_idem_outbox_report_kept(o, op, waiting, item != NULL, bare);

    return (item == NULL || bare) ? NGX_DECLINED : NGX_OK;
}


/*
 * Keeps a record without the response, which takes less room.  Without room
 * for that either, the outcome of a request that runs unprotected takes the
 * place of its lock.
 */

static ngx_http_idem_item_t *
ngx_http_idem_outbox_keep_bare(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op, ngx_http_idem_item_t *old, ngx_msec_t until,
    ngx_msec_t expires)
{
    ngx_http_idem_op_t     ran;
    ngx_http_idem_item_t  *item;

    ran = *op;
    item = NULL;

    if (op->state == NGX_HTTP_IDEM_COMPLETED) {
        ran.state = NGX_HTTP_IDEM_UNUSABLE;
        ran.reason = NGX_HTTP_IDEM_REASON_NO_ROOM;

        item = ngx_http_idem_zone_store(&o->z, &ran, until, expires);
    }

    if (item == NULL && old && old->state == NGX_HTTP_IDEM_IN_PROGRESS
        && ngx_memcmp(old->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN) == 0)
    {
        item = old;

        ngx_http_idem_outbox_local_end(o, item, &ran, until);
        ngx_http_idem_zone_expire(&o->z, item, expires);
    }

    return item;
}


static void
ngx_http_idem_outbox_report_kept(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op, ngx_uint_t waiting, ngx_uint_t kept,
    ngx_uint_t bare)
{
    const char                 *error;
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);
    error = op->error ? op->error : "no answer";

    (void) ngx_atomic_fetch_add(kept ? &sh->counters.kept
                                     : &sh->counters.dropped, 1);

    if (!kept || bare) {
        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: commit in store \"%V\" failed: %s; there "
                      "is no room for %s in zone \"%V\" with %ui waiting: %s, "
                      "record %*xs",
                      &o->layer.named->name, error,
                      bare ? "its response" : "it", &o->z.name, waiting,
                      bare ? "its retry is refused"
                           : "it is lost, and a retry may run again",
                      (size_t) 8, op->id);

        op->already_logged = 1;
        return;
    }

    ngx_http_idem_metrics_count(o->layer.named->metrics,
                                NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES);
    ngx_http_idem_store_event(o->layer.named,
                              NGX_HTTP_IDEM_EVENT_STORAGE_ERROR, op->id,
                              op->error);

    if (!op->unprotected) {
        ngx_log_error(NGX_LOG_WARN, op->log, 0,
                      "idempotency: commit in store \"%V\" failed: %s; it is "
                      "kept here and tried again, %ui waiting, record %*xs",
                      &o->layer.named->name, error, waiting, (size_t) 8,
                      op->id);
        return;
    }

    /* every request, for as long as the store is unreachable */

    ngx_http_idem_log_repeated(NGX_LOG_WARN, op->log, op->id,
                  "idempotency: commit in store \"%V\" failed: %s; it is kept "
                  "here and tried again", &o->layer.named->name, error);
}


/* commits that the store lacks; without the lock, so slightly outdated */

ngx_uint_t
ngx_http_idem_outbox_waiting(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t             others;
    ngx_http_idem_zone_t  *zone;

    zone = o->z.zone;

    others = ngx_http_idem_outbox_sh(o)->unacknowledged
             + zone->states[NGX_HTTP_IDEM_IN_PROGRESS];

    return zone->records > others ? zone->records - others : 0;
}
