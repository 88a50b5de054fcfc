
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Waiters: requests that arrive while the holder of their record runs.
 *
 * All waiters of one record in a worker share one watch, so the store is
 * asked once for all of them.  When the store reports a change, the first
 * waiter begins again.  If it acquires the lock, it leaves and the others
 * keep waiting; if it finds a result, all waiters get that result.  If the
 * store fails meanwhile, the waiters keep waiting until their deadline, since
 * the holder may still run.  The exception is a holder that ran unprotected:
 * its lock was in this nginx, which knows that it ended.
 *
 * The waiters also keep waiting if the store lost the record, because it was
 * restarted, flushed, or replaced by a replica without the record.  The
 * holder restores its lock at the next renewal; until that is due, no waiter
 * runs.  The store distinguishes a lost record from one that the holder
 * released.
 *
 * Called by the handler.  Calls the store, and the handler to resume
 * requests.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_housekeeping.h"
#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_WATCHES  256


struct ngx_http_idem_watch_s {
    ngx_queue_t            link;               /* in its bucket             */
    ngx_queue_t            waiters;            /* in order of arrival       */
    ngx_http_idem_op_t     op;                 /* the watch in the store    */
    ngx_http_idem_ctx_t   *asking;             /* the waiter whose begin is
                                                  pending                   */
    ngx_event_t            retry;              /* posted or a timer: begin
                                                  again                     */
    ngx_msec_t             lease_end;          /* known end of the holder's
                                                  lease                     */
    ngx_msec_t             lease;              /* how long that lease may be,
                                                  in all                    */
    ngx_msec_t             until;              /* no waiter runs earlier if
                                                  the record is lost        */
    unsigned               busy:1;             /* results are being shared:
                                                  do not free or arm the
                                                  watch                     */
    unsigned               gone:1;             /* the store lost the record */
    unsigned               local:1;            /* the holder runs
                                                  unprotected: its lock is
                                                  in this nginx and not
                                                  over                      */
};


/* delays before a store that failed is asked again; doubled each time */
#define NGX_HTTP_IDEM_RETRY_MIN   10
#define NGX_HTTP_IDEM_RETRY_MAX   1000

/* longest interval between checks whether a lost record was restored */
#define NGX_HTTP_IDEM_RETRY_LOST  250

/*
 * a renewal is due after a third of a lease, plus a margin for the timer and
 * the store
 */
#define NGX_HTTP_IDEM_RENEWED(lease)                                          \
    ((lease) / 3 + (lease) / 12 + 1000)

#define ngx_http_idem_watch_idle(watch)                                       \
    (!(watch)->op.pending && (watch)->asking == NULL && !(watch)->busy        \
     && !(watch)->retry.posted && !(watch)->retry.timer_set)


static ngx_int_t ngx_http_idem_wait_join(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
static ngx_http_idem_watch_t *ngx_http_idem_watch_get(
    ngx_http_idem_cover_t *cover);
static void ngx_http_idem_watch_arm(ngx_http_idem_watch_t *watch);
static void ngx_http_idem_watch_handler(ngx_http_idem_op_t *op);
static void ngx_http_idem_watch_begin(ngx_event_t *ev);
static void ngx_http_idem_watch_begun(ngx_http_idem_op_t *op);
static void ngx_http_idem_watch_retry(
    ngx_http_idem_watch_t *watch, ngx_msec_t max);
static void ngx_http_idem_watch_leased(
    ngx_http_idem_watch_t *watch, ngx_msec_t left);
static void ngx_http_idem_watch_lost(
    ngx_http_idem_watch_t *watch, ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_watch_share(
    ngx_http_idem_watch_t *watch, ngx_http_idem_found_t *found);
static ngx_int_t ngx_http_idem_watch_copy(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_op_t *op, ngx_http_idem_found_t *found);
static void ngx_http_idem_watch_leave(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_watch_free(ngx_http_idem_watch_t *watch);
static void ngx_http_idem_ready(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_ready_handler(ngx_event_t *ev);
static void ngx_http_idem_deadline_handler(ngx_event_t *ev);


static ngx_queue_t  ngx_http_idem_watches[NGX_HTTP_IDEM_WATCHES];

/* waiters that have a result and are resumed one by one */
static ngx_queue_t  ngx_http_idem_ready_queue;
static ngx_event_t  ngx_http_idem_ready_event;


void
ngx_http_idem_wait_init(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_WATCHES; i++) {
        ngx_queue_init(&ngx_http_idem_watches[i]);
    }

    ngx_queue_init(&ngx_http_idem_ready_queue);

    ngx_http_idem_ready_event.handler = ngx_http_idem_ready_handler;
    ngx_http_idem_ready_event.log = cycle->log;
}


ngx_int_t
ngx_http_idem_wait(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    ngx_msec_int_t        left;
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    if (ngx_http_idem_is_dry_run(ctx)) {
        return ngx_http_idem_dry_run(ctx, NGX_HTTP_IDEM_STATUS_BUSY);
    }

    if (!ctx->wait.waited) {
        ctx->wait.start = ngx_current_msec;
        ctx->wait.until = ngx_current_msec
                          + ngx_http_idem_time(r, &ctx->conf->wait,
                                               "idempotency_wait");

        if (ctx->wait.until == ctx->wait.start) {
            return ngx_http_idem_refuse(ctx,
                                      NGX_HTTP_IDEM_PROBLEM_CONCURRENT_REQUEST);
        }
    }

    /*
     * the deadline stays the same, however often and for whichever record the
     * request waits
     */

    left = (ngx_msec_int_t) (ctx->wait.until - ngx_current_msec);

    if (left <= 0) {
        return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_LOCK_TIMEOUT);
    }

    if (ngx_http_idem_waiters_enter(&ctx->conf->store->name, cover->id,
                                    (ngx_msec_t) left,
                                    ngx_http_idem_choice(r,
                                              &ctx->conf->max_waiters,
                                              "idempotency_max_waiters",
                                              0))
        != NGX_OK)
    {
        return ngx_http_idem_refuse(ctx,
                                    NGX_HTTP_IDEM_PROBLEM_TOO_MANY_WAITERS);
    }

    if (!ctx->wait.waited) {
        ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_LOCK_CONTENTION, NULL);
    }

    ctx->wait.waited = 1;
    ctx->wait.counted = 1;
    ctx->wait.cover = cover;
    cover->asked = 0;
    cover->where = cover->op.where;

    ctx->wait.deadline.handler = ngx_http_idem_deadline_handler;
    ctx->wait.deadline.data = ctx;
    ctx->wait.deadline.log = r->connection->log;

    /* not cancelable: keeps a worker that shuts down alive for the waiter */

    ngx_add_timer(&ctx->wait.deadline, (ngx_msec_t) left);

    return ngx_http_idem_wait_join(r, cover);
}


/* the request is counted, and its deadline set: it waits with the others */

static ngx_int_t
ngx_http_idem_wait_join(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    ngx_int_t               rc;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_watch_t  *watch;

    ctx = cover->ctx;

    watch = ngx_http_idem_watch_get(cover);
    if (watch == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_idem_park(r);

    if (rc != NGX_AGAIN) {
        if (ngx_queue_empty(&watch->waiters)) {
            ngx_http_idem_watch_free(watch);
        }

        return rc;
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_WAIT, "the holder still runs");

    ctx->wait.watch = watch;
    ngx_queue_insert_tail(&watch->waiters, &ctx->wait.queue);

    /* this request has just found the record, whatever others found before */

    watch->gone = 0;
    watch->local = (cover->op.kept && cover->op.found.left);
    ngx_http_idem_watch_leased(watch, cover->op.found.left);

    if (ngx_http_idem_watch_idle(watch)) {
        ngx_http_idem_watch_arm(watch);
    }

    return NGX_AGAIN;
}


void
ngx_http_idem_wait_end(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_waited_e result)
{
    ngx_housekeeping_stop(&ctx->wait.deadline);

    if (ctx->wait.counted) {
        ctx->wait.counted = 0;
        ctx->wait.time = ngx_current_msec - ctx->wait.start;
        ngx_http_idem_metrics_wait(ctx->conf->store->metrics,
                                   ngx_http_idem_group(ctx), result,
                                   ctx->wait.time);
        ngx_http_idem_waiters_leave(&ctx->conf->store->name,
                                    ctx->wait.cover->id);
    }

    if (ctx->wait.ready) {
        ctx->wait.ready = 0;
        ngx_queue_remove(&ctx->wait.queue);
    }

    if (ctx->wait.watch) {
        ngx_http_idem_watch_leave(ctx);
    }
}


static ngx_http_idem_watch_t *
ngx_http_idem_watch_get(ngx_http_idem_cover_t *cover)
{
    ngx_queue_t            *q, *bucket;
    ngx_http_idem_watch_t  *watch;

    bucket = &ngx_http_idem_watches[cover->id[0]];

    for (q = ngx_queue_head(bucket); q != bucket; q = ngx_queue_next(q)) {
        watch = ngx_queue_data(q, ngx_http_idem_watch_t, link);

        if (watch->op.store == cover->ctx->conf->store
            && watch->op.where == cover->where
            && ngx_memcmp(watch->op.id, cover->id, NGX_HTTP_IDEM_ID_LEN)
               == 0)
        {
            return watch;
        }
    }

    watch = ngx_calloc(sizeof(ngx_http_idem_watch_t), ngx_cycle->log);
    if (watch == NULL) {
        return NULL;
    }

    ngx_queue_init(&watch->waiters);
    ngx_queue_insert_head(bucket, &watch->link);

    watch->op.kind = NGX_HTTP_IDEM_OP_WATCH;
    watch->op.store = cover->ctx->conf->store;
    watch->op.where = cover->where;
    watch->op.log = ngx_cycle->log;
    watch->op.handler = ngx_http_idem_watch_handler;
    watch->op.data = watch;
    ngx_memcpy(watch->op.id, cover->id, NGX_HTTP_IDEM_ID_LEN);

    ngx_housekeeping_init(&watch->retry, ngx_http_idem_watch_begin, watch);

    return watch;
}


static void
ngx_http_idem_watch_arm(ngx_http_idem_watch_t *watch)
{
    if (ngx_http_idem_store_submit(&watch->op) == NGX_OK) {

        /*
         * The record changed already.  Posted, since a request may be
         * executing below this call; for the next iteration, since nginx runs
         * this one until nothing is posted, and deadlines have to be met even
         * if a begin finds the record as it was.
         */

        ngx_post_event(&watch->retry, &ngx_posted_next_events);
    }
}


static void
ngx_http_idem_watch_handler(ngx_http_idem_op_t *op)
{
    ngx_http_idem_watch_t  *watch;

    watch = op->data;

    ngx_http_idem_watch_begin(&watch->retry);
}


/* the first waiter begins again */

static void
ngx_http_idem_watch_begin(ngx_event_t *ev)
{
    ngx_queue_t            *q;
    ngx_msec_int_t          left;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_watch_t  *watch;

    watch = ev->data;

    q = ngx_queue_head(&watch->waiters);
    ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, wait.queue);

    watch->asking = ctx;

    op = &ctx->wait.cover->op;

    ngx_http_idem_op_prepare(ctx->wait.cover, op, NGX_HTTP_IDEM_OP_BEGIN);
    op->handler = ngx_http_idem_watch_begun;

    left = (ngx_msec_int_t) (watch->until - ngx_current_msec);

    /* the store never had the record of an unprotected holder */

    op->is_waiter = !watch->local && (!watch->gone || left > 0);
    op->lease_valid = op->is_waiter
                      && (ngx_msec_int_t) (watch->lease_end
                                           - ngx_current_msec) > 0;

    if (ngx_http_idem_store_submit(op) == NGX_OK) {
        ngx_http_idem_watch_begun(op);
    }
}


static void
ngx_http_idem_watch_begun(ngx_http_idem_op_t *op)
{
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_cover_t  *cover;
    ngx_http_idem_watch_t  *watch;

    cover = op->data;
    ctx = cover->ctx;
    watch = ctx->wait.watch;

    watch->asking = NULL;
    watch->busy = 1;

    switch (op->result) {

    case NGX_HTTP_IDEM_ACQUIRED:
        watch->op.attempt = 0;
        watch->gone = 0;
        watch->local = 0;
        ngx_http_idem_watch_leased(watch, ctx->claims.lease);
        ngx_http_idem_lock_acquired(cover);
        ngx_http_idem_ready(ctx);
        break;

    case NGX_HTTP_IDEM_FOUND:
        watch->op.attempt++;
        watch->op.where = op->where;
        watch->gone = 0;
        watch->local = (op->kept && op->found.left);
        ngx_http_idem_watch_leased(watch, op->found.left);
        ngx_http_idem_watch_share(watch, &op->found);
        break;

    case NGX_HTTP_IDEM_GONE:
        ngx_http_idem_watch_lost(watch, ctx);
        break;

    default: /* NGX_HTTP_IDEM_FULL, NGX_HTTP_IDEM_ERROR */

        /*
         * The holder may still run.  An unprotected holder whose lock is no
         * longer in this nginx has released it, so this waiter may run
         * unprotected too; the others find its lock.
         */

        if (watch->local && !op->bad_record
            && ctx->claims.on_store_error == NGX_HTTP_IDEM_ON_ERROR_PASS)
        {
            watch->op.attempt = 0;
            ngx_http_idem_ready(ctx);
        }

        ngx_http_idem_watch_retry(watch, NGX_HTTP_IDEM_RETRY_MAX);
        break;
    }

    watch->busy = 0;

    if (ngx_queue_empty(&watch->waiters)) {
        ngx_http_idem_watch_free(watch);

    } else if (!watch->retry.timer_set) {
        ngx_http_idem_watch_arm(watch);
    }
}


static void
ngx_http_idem_watch_retry(ngx_http_idem_watch_t *watch, ngx_msec_t max)
{
    ngx_msec_t  delay;

    watch->op.attempt++;

    delay = NGX_HTTP_IDEM_RETRY_MIN << ngx_min(watch->op.attempt, 8);

    ngx_add_timer(&watch->retry, ngx_min(delay, max));
}


/*
 * The holder's lease has "left" ms left.  It may be longer than that of the
 * waiters, whose configuration may be another.  It is renewed after a third, so
 * at least two thirds of it were left when it was longest.
 */

static void
ngx_http_idem_watch_leased(ngx_http_idem_watch_t *watch, ngx_msec_t left)
{
    watch->lease_end = ngx_current_msec + left;
    watch->lease = ngx_max(watch->lease, left + left / 2);
}


/*
 * The record is lost rather than released.  The holder gets the time of one
 * renewal to restore its lock, but no longer than the rest of its lease.
 */

static void
ngx_http_idem_watch_lost(ngx_http_idem_watch_t *watch,
    ngx_http_idem_ctx_t *ctx)
{
    ngx_msec_int_t  left, leased;

    if (!watch->gone) {
        watch->gone = 1;
        watch->op.attempt = 0;

        left = (ngx_msec_int_t) NGX_HTTP_IDEM_RENEWED(
                                   ngx_max(watch->lease, ctx->claims.lease));
        leased = (ngx_msec_int_t) (watch->lease_end - ngx_current_msec);

        watch->until = ngx_current_msec
                       + (ngx_msec_t) ngx_max(ngx_min(left, leased), 0);

        ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                      "idempotency: store \"%V\" lost the record of a request "
                      "that may still run; those that wait for it do so for "
                      "%M ms more, record %*xs", &watch->op.store->name,
                      (ngx_msec_t) (watch->until - ngx_current_msec),
                      (size_t) 8, watch->op.id);
    }

    left = (ngx_msec_int_t) (watch->until - ngx_current_msec);

    ngx_http_idem_watch_retry(watch,
                    (ngx_msec_t) ngx_max(1, ngx_min(left,
                               NGX_HTTP_IDEM_RETRY_LOST)));
}


/*
 * Passes a result to all waiters.  Each gets its own copy of the data, since
 * requests end in any order.  Waiters that still have to wait stay in the
 * queue.
 */

static void
ngx_http_idem_watch_share(ngx_http_idem_watch_t *watch,
    ngx_http_idem_found_t *found)
{
    ngx_queue_t            *q, *next;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_cover_t  *cover;

    for (q = ngx_queue_head(&watch->waiters);
         q != ngx_queue_sentinel(&watch->waiters);
         q = next)
    {
        next = ngx_queue_next(q);
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, wait.queue);
        cover = ctx->wait.cover;

        if (found->state == NGX_HTTP_IDEM_IN_PROGRESS
            && ngx_http_idem_same_request(cover, &found->claim))
        {
            cover->where = watch->op.where;
            continue;
        }

        if (&cover->op.found != found
            && ngx_http_idem_watch_copy(ctx, &cover->op, found)
               != NGX_OK)
        {
            cover->op.result = NGX_HTTP_IDEM_ERROR;
            cover->op.error = "no memory for the response";
            cover->op.bad_record = 1;
        }

        ngx_http_idem_ready(ctx);
    }
}


static ngx_int_t
ngx_http_idem_watch_copy(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_op_t *op, ngx_http_idem_found_t *found)
{
    ngx_pool_t  *pool;

    pool = ctx->request->pool;

    op->result = NGX_HTTP_IDEM_FOUND;
    op->start = ngx_current_msec;
    op->found = *found;

    if (found->response.len) {
        op->found.response.data = ngx_pstrdup(pool, &found->response);
        if (op->found.response.data == NULL) {
            return NGX_ERROR;
        }
    }

    if (found->details.len) {
        op->found.details.data = ngx_pstrdup(pool, &found->details);
        if (op->found.details.data == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static void
ngx_http_idem_watch_leave(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_watch_t  *watch;

    watch = ctx->wait.watch;
    ctx->wait.watch = NULL;

    ngx_queue_remove(&ctx->wait.queue);

    if (watch->asking == ctx) {
        watch->asking = NULL;
        ngx_http_idem_store_cancel(&ctx->wait.cover->op);
    }

    if (watch->busy) {
        return;
    }

    if (ngx_queue_empty(&watch->waiters)) {
        ngx_http_idem_watch_free(watch);

    } else if (ngx_http_idem_watch_idle(watch)) {
        /* the waiter that asked has left */
        ngx_post_event(&watch->retry, &ngx_posted_events);
    }
}


static void
ngx_http_idem_watch_free(ngx_http_idem_watch_t *watch)
{
    ngx_http_idem_store_cancel(&watch->op);
    ngx_housekeeping_stop(&watch->retry);

    ngx_queue_remove(&watch->link);
    ngx_free(watch);
}


/*
 * The result is in the waiter's op.  The request is resumed from the event
 * loop, never from here.
 */

static void
ngx_http_idem_ready(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_wait_end(ctx,
                           ctx->wait.cover->acquired
                               ? NGX_HTTP_IDEM_WAITED_ACQUIRED
                               : NGX_HTTP_IDEM_WAITED_ANSWERED);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_BEGIN, "the record changed");

    ctx->wait.cover->asked = 1;

    ctx->wait.ready = 1;
    ngx_queue_insert_tail(&ngx_http_idem_ready_queue, &ctx->wait.queue);

    ngx_post_event(&ngx_http_idem_ready_event, &ngx_posted_events);
}


static void
ngx_http_idem_ready_handler(ngx_event_t *ev)
{
    ngx_queue_t          *q;
    ngx_http_idem_ctx_t  *ctx;

    while (!ngx_queue_empty(&ngx_http_idem_ready_queue)) {
        q = ngx_queue_head(&ngx_http_idem_ready_queue);
        ctx = ngx_queue_data(q, ngx_http_idem_ctx_t, wait.queue);

        ctx->wait.ready = 0;
        ngx_queue_remove(q);

        ngx_http_idem_resume(ctx->request);
    }
}


static void
ngx_http_idem_deadline_handler(ngx_event_t *ev)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ev->data;

    ngx_http_idem_wait_end(ctx, NGX_HTTP_IDEM_WAITED_TIMEOUT);

    ngx_http_idem_resume(ctx->request);
}
