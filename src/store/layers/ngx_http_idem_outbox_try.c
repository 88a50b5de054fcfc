
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Attempts to commit single records of the outbox.  They are in the memory of
 * this worker only.
 *
 * The outbox retries a record by itself.  Then its state is a pause, if the
 * store refused the record or too few replicas have it.
 *
 * A response may be too large for the store: it takes longer than an operation
 * may take, or the server closes the connection.  Its commit would fail again
 * and again, and another host would run the request once the lease is over.  So
 * an attempt that got no answer is followed by a renewal, which is small.  If
 * the store answers that several times in a row, the response is dropped, and
 * the record that is committed says so.
 *
 * A begin may find the record after the lease of its holder may have expired.
 * Until the lease expires no other request can have run, and the record in the
 * outbox is valid.  After that another host may have taken over, and may have
 * sent its own response to clients; and a commit with too few replicas may be
 * lost with its server.  So the record is attempted at once, and the begin
 * waits for the result, but not for replicas:
 *
 *   committed  the record in the outbox is replayed
 *   lost       the begin is passed on to the store; the record is dropped,
 *              unless the request that took over still runs: it may release
 *              the lock
 *   no answer  the record in the outbox is replayed: nothing better is known
 *
 * Such an attempt is called a check.  All begins of this worker for the same
 * record share one.  Another worker may attempt it at the same time, or the
 * outbox itself; committing twice does no harm, and is logged once.
 *
 * Called by ..._outbox_retry.c and by begins; calls the store inside the
 * outbox.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* pause of a record that the store refused, or that lacks replicas, ms */
#define NGX_HTTP_IDEM_OUTBOX_REFUSED   2000
#define NGX_HTTP_IDEM_OUTBOX_MISSED    5000

/* a response of this size may be too large, and is after so many attempts */
#define NGX_HTTP_IDEM_OUTBOX_LARGE     65536
#define NGX_HTTP_IDEM_OUTBOX_SLOW_N    3

/* the lease that remains while that is found out, ms */
#define NGX_HTTP_IDEM_OUTBOX_LEASE     10000


/* an attempt under way, or a pause */

typedef struct {
    ngx_queue_t              queue;             /* in its bucket */
    ngx_http_idem_outbox_t  *outbox;
    ngx_http_idem_op_t      *op;                /* NULL: pause until "until" */
    ngx_msec_t               until;
    ngx_uint_t               n;                 /* number of its queue */

    /* attempts without an answer, each followed by a renewal with one */
    ngx_uint_t               slow;
    ngx_queue_t              begins;            /* of a check, by op->queue */
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    unsigned                 check:1;
} ngx_http_idem_outbox_try_t;


static void ngx_http_idem_outbox_try_done(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_outbox_try_renew(ngx_http_idem_op_t *op);
static void ngx_http_idem_outbox_try_renewed(ngx_http_idem_op_t *op);
static void ngx_http_idem_outbox_try_drop(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);
static ngx_http_idem_outbox_try_t *ngx_http_idem_outbox_try_new(
    ngx_http_idem_outbox_t *o, ngx_http_idem_item_t *item);
static ngx_http_idem_outbox_try_t *ngx_http_idem_outbox_try_find(
    ngx_http_idem_outbox_t *o, ngx_http_idem_item_t *item, ngx_uint_t check);
static void ngx_http_idem_outbox_try_free(ngx_http_idem_outbox_try_t *try);
static void ngx_http_idem_outbox_check_done(ngx_http_idem_op_t *commit);
static ngx_uint_t ngx_http_idem_outbox_check_end(
    ngx_http_idem_outbox_try_t *try);
static ngx_int_t ngx_http_idem_outbox_check_answer(
    ngx_http_idem_op_t *op, ngx_uint_t replay, ngx_uint_t kept);


ngx_http_idem_op_t *
ngx_http_idem_outbox_try(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item)
{
    ngx_uint_t                   n, slow;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_outbox_try_t  *try;

    n = ngx_http_idem_outbox_queue(o, item->id,
                                   ngx_http_idem_outbox_cause(item));

    o->work[n].seen = 1;

    if (!ngx_http_idem_outbox_queue_room(o, n)) {
        return NULL;
    }

    slow = 0;
    try = ngx_http_idem_outbox_try_find(o, item, 0);

    if (try) {

        if (try->op
            || (try->n == n
                && (ngx_msec_int_t) (try->until - ngx_current_msec) > 0))
        {
            return NULL;
        }

        slow = try->slow;
        ngx_http_idem_outbox_try_free(try);
    }

    try = ngx_http_idem_outbox_try_new(o, item);
    if (try == NULL) {
        return NULL;
    }

    try->n = n;
    try->slow = slow;

    op = try->op;
    op->handler = ngx_http_idem_outbox_try_done;

    o->work[n].tries++;
    o->work[n].bytes += op->size;
    o->work[n].taken = 1;

    /* probe of a node that may be down: the result should come soon */

    op->skip_replicas = (ngx_http_idem_outbox_cause(item)
                         == NGX_HTTP_IDEM_OUTBOX_FAILED
                         && !ngx_http_idem_outbox_sh(o)->queues[n].open);

    return op;
}


static void
ngx_http_idem_outbox_try_done(ngx_http_idem_op_t *op)
{
    ngx_msec_t                   wait;
    ngx_uint_t                   here, answered, missed;
    ngx_http_idem_outbox_t      *o;
    ngx_http_idem_outbox_try_t  *try;

    try = op->data;
    o = try->outbox;

    here = ngx_http_idem_outbox_result(o, op);

    answered = ngx_http_idem_layer_answered(op);
    missed = (op->unacknowledged && !op->skip_replicas);

    ngx_http_idem_outbox_lock(o);

    ngx_http_idem_outbox_queue_done(o, try->n, op, missed);

    wait = ngx_http_idem_outbox_queues_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);

    ngx_http_idem_outbox_unlock(o);

    ngx_http_idem_outbox_schedule(o, wait);

    if (op->running || op->bad_record || missed) {

        /* a pause for this record only; others are not delayed */

        try->op = NULL;
        try->until = ngx_current_msec
                     + (missed ? NGX_HTTP_IDEM_OUTBOX_MISSED
                               : NGX_HTTP_IDEM_OUTBOX_REFUSED);

    } else if (here && !answered
               && ngx_http_idem_outbox_try_renew(op) == NGX_OK)
    {
        return;

    } else {
        ngx_http_idem_outbox_try_free(try);
    }

    ngx_destroy_pool(op->pool);
}


/*
 * The commit got no answer: does the store answer at all?  The operation goes
 * on as a renewal.
 */

static ngx_int_t
ngx_http_idem_outbox_try_renew(ngx_http_idem_op_t *op)
{
    ngx_msec_int_t  left;

    if (op->state != NGX_HTTP_IDEM_COMPLETED
        || op->size < NGX_HTTP_IDEM_OUTBOX_LARGE || ngx_exiting)
    {
        return NGX_DECLINED;
    }

    left = (ngx_msec_int_t) (op->locked_until - ngx_current_msec);

    op->kind = NGX_HTTP_IDEM_OP_RENEW;
    op->lease = ngx_max(left, NGX_HTTP_IDEM_OUTBOX_LEASE);
    op->probe = 1;
    op->handler = ngx_http_idem_outbox_try_renewed;

    if (ngx_http_idem_store_submit(op) == NGX_OK) {
        ngx_http_idem_outbox_try_renewed(op);
    }

    return NGX_OK;
}


static void
ngx_http_idem_outbox_try_renewed(ngx_http_idem_op_t *op)
{
    ngx_http_idem_outbox_t      *o;
    ngx_http_idem_outbox_try_t  *try;

    try = op->data;
    o = try->outbox;

    try->slow = ngx_http_idem_layer_answered(op) ? try->slow + 1 : 0;

    if (try->slow >= NGX_HTTP_IDEM_OUTBOX_SLOW_N) {
        ngx_http_idem_outbox_try_drop(o, op);
        try->slow = 0;
    }

    if (try->slow) {

        /* remembers the number until the next attempt */

        try->op = NULL;
        try->until = ngx_current_msec;

    } else {
        ngx_http_idem_outbox_try_free(try);
    }

    ngx_http_idem_outbox_schedule(o, NGX_HTTP_IDEM_OUTBOX_DELAY_MIN);

    ngx_destroy_pool(op->pool);
}


/* drops the response, and keeps the record as an unusable one */

static void
ngx_http_idem_outbox_try_drop(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op)
{
    size_t                 size;
    ngx_http_idem_item_t  *item;

    size = 0;

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    if (item && item->state == NGX_HTTP_IDEM_COMPLETED
        && ngx_memcmp(item->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN) == 0)
    {
        size = item->size;

        ngx_http_idem_zone_evict(&o->z, item);
        ngx_http_idem_zone_requeue(&o->z, item);
    }

    ngx_http_idem_outbox_unlock(o);

    if (size) {
        ngx_http_idem_store_event(o->layer.named,
                                  NGX_HTTP_IDEM_EVENT_STORAGE_ERROR, op->id,
                                  "a response does not get through");

        ngx_log_error(NGX_LOG_ERR, op->log, 0,
                      "idempotency: a response of %uz bytes that is kept does "
                      "not get into store \"%V\", which answers: it is "
                      "dropped, its retry is refused, record %*xs",
                      size, &o->layer.named->name, (size_t) 8, op->id);
    }
}


/* called with the zone locked */

static ngx_http_idem_outbox_try_t *
ngx_http_idem_outbox_try_new(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item)
{
    ngx_http_idem_op_t          *op;
    ngx_http_idem_outbox_try_t  *try;

    op = ngx_http_idem_outbox_op(o, item);
    if (op == NULL) {
        return NULL;
    }

    try = ngx_calloc(sizeof(ngx_http_idem_outbox_try_t), ngx_cycle->log);
    if (try == NULL) {
        ngx_destroy_pool(op->pool);
        return NULL;
    }

    op->data = try;

    try->outbox = o;
    try->op = op;
    ngx_memcpy(try->id, item->id, NGX_HTTP_IDEM_ID_LEN);

    ngx_queue_init(&try->begins);
    ngx_queue_insert_tail(&o->tries[try->id[0]], &try->queue);

    return try;
}


/* a check has to be one of the same token */

static ngx_http_idem_outbox_try_t *
ngx_http_idem_outbox_try_find(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_uint_t check)
{
    ngx_queue_t                 *q, *bucket;
    ngx_http_idem_outbox_try_t  *try;

    bucket = &o->tries[item->id[0]];

    for (q = ngx_queue_head(bucket); q != bucket; q = ngx_queue_next(q)) {
        try = ngx_queue_data(q, ngx_http_idem_outbox_try_t, queue);

        if (try->check == check
            && ngx_memcmp(try->id, item->id, NGX_HTTP_IDEM_ID_LEN) == 0
            && (!check
                || ngx_memcmp(try->op->token, item->token,
                              NGX_HTTP_IDEM_TOKEN_LEN)
                   == 0))
        {
            return try;
        }
    }

    return NULL;
}


static void
ngx_http_idem_outbox_try_free(ngx_http_idem_outbox_try_t *try)
{
    ngx_queue_remove(&try->queue);
    ngx_free(try);
}


void
ngx_http_idem_outbox_tries_end(ngx_http_idem_outbox_t *o, ngx_uint_t all)
{
    ngx_uint_t                   i;
    ngx_queue_t                 *q, *next, *begin;
    ngx_http_idem_outbox_try_t  *try;

    for (i = 0; i < NGX_HTTP_IDEM_OUTBOX_BUCKETS; i++) {

        for (q = ngx_queue_head(&o->tries[i]);
             q != ngx_queue_sentinel(&o->tries[i]);
             q = next)
        {
            next = ngx_queue_next(q);
            try = ngx_queue_data(q, ngx_http_idem_outbox_try_t, queue);

            if (!all && (try->op
                         || (try->slow && !ngx_http_idem_outbox_empty(o))))
            {
                continue;
            }

            while (!ngx_queue_empty(&try->begins)) {
                begin = ngx_queue_head(&try->begins);
                ngx_queue_remove(begin);
                ngx_queue_init(begin);
            }

            if (try->op) {
                ngx_http_idem_store_cancel(try->op);
                ngx_destroy_pool(try->op->pool);
            }

            ngx_http_idem_outbox_try_free(try);
        }
    }
}


/* op->found already has the record */

ngx_int_t
ngx_http_idem_outbox_check(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_uint_t                   replay, kept, fresh;
    ngx_http_idem_op_t          *commit;
    ngx_http_idem_item_t        *item;
    ngx_http_idem_outbox_try_t  *try;

    if (op->result != NGX_HTTP_IDEM_FOUND) {
        /* there was no memory for the response */
        return NGX_OK;
    }

    try = NULL;
    fresh = 0;

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    if (item) {
        try = ngx_http_idem_outbox_try_find(o, item, 1);

        if (try == NULL) {
            try = ngx_http_idem_outbox_try_new(o, item);
            fresh = 1;
        }
    }

    ngx_http_idem_outbox_unlock(o);

    if (item == NULL) {
        /* another worker has removed the record */
        return ngx_http_idem_layer_pass(op);
    }

    if (try == NULL) {
        ngx_http_idem_op_error(op, "no memory for an operation");
        return NGX_OK;
    }

    if (fresh) {
        try->check = 1;

        commit = try->op;
        commit->handler = ngx_http_idem_outbox_check_done;
        commit->skip_replicas = 1;

        if (ngx_http_idem_store_submit(commit) == NGX_OK) {
            kept = (commit->result == NGX_HTTP_IDEM_ERROR);
            replay = ngx_http_idem_outbox_check_end(try);

            ngx_free(try);
            ngx_destroy_pool(commit->pool);

            return ngx_http_idem_outbox_check_answer(op, replay, kept);
        }
    }

    op->state_data = NULL;
    ngx_queue_insert_tail(&try->begins, &op->queue);

    return NGX_AGAIN;
}


static void
ngx_http_idem_outbox_check_done(ngx_http_idem_op_t *commit)
{
    ngx_uint_t                   replay, kept;
    ngx_queue_t                 *q;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_outbox_try_t  *try;

    try = commit->data;

    kept = (commit->result == NGX_HTTP_IDEM_ERROR);
    replay = ngx_http_idem_outbox_check_end(try);

    /* completing one may cancel others: restart from the head each time */

    while (!ngx_queue_empty(&try->begins)) {
        q = ngx_queue_head(&try->begins);
        ngx_queue_remove(q);

        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (ngx_http_idem_outbox_check_answer(op, replay, kept) == NGX_OK) {
            ngx_http_idem_store_complete(op);
        }
    }

    ngx_free(try);
    ngx_destroy_pool(commit->pool);
}


/* returns whether the record in the outbox may be replayed */

static ngx_uint_t
ngx_http_idem_outbox_check_end(ngx_http_idem_outbox_try_t *try)
{
    ngx_uint_t  here;

    /* a begin from now on starts a new check */

    ngx_queue_remove(&try->queue);

    here = ngx_http_idem_outbox_result(try->outbox, try->op);

    /* no answer: if the record was removed, it must not be replayed */

    return try->op->result == NGX_HTTP_IDEM_ERROR
           ? here : try->op->result != NGX_HTTP_IDEM_LOST;
}


static ngx_int_t
ngx_http_idem_outbox_check_answer(ngx_http_idem_op_t *op,
    ngx_uint_t replay, ngx_uint_t kept)
{
    if (!replay) {
        return ngx_http_idem_layer_pass(op);
    }

    op->kept = kept;

    return NGX_OK;
}


void
ngx_http_idem_outbox_check_cancel(ngx_http_idem_op_t *op)
{
    /* the commit continues: it has to be retried in any case */

    ngx_queue_remove(&op->queue);
}
