
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Attempts for single records of the outbox, and pauses of records that the
 * store refused or that have too few replicas.  Both are in the memory of
 * this worker only.
 *
 * Called by ..._outbox_retry.c; calls the store inside the outbox.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* pause of a record that the store refused, or that lacks replicas, ms */
#define NGX_HTTP_IDEM_OUTBOX_REFUSED   2000
#define NGX_HTTP_IDEM_OUTBOX_MISSED    5000


/* an attempt under way, or a pause */

typedef struct {
    ngx_queue_t              queue;             /* in its bucket */
    ngx_http_idem_outbox_t  *outbox;
    ngx_http_idem_op_t      *op;         /* NULL: pause until "until" */
    ngx_msec_t               until;
    ngx_uint_t               n;                 /* number of its queue */
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
} ngx_http_idem_outbox_try_t;


static void ngx_http_idem_outbox_try_done(ngx_http_idem_op_t *op);
static ngx_http_idem_outbox_try_t *ngx_http_idem_outbox_try_find(
    ngx_http_idem_outbox_t *o, u_char *id);


ngx_int_t
ngx_http_idem_outbox_tries_init(ngx_cycle_t *cycle, ngx_http_idem_outbox_t *o)
{
    ngx_uint_t  i;

    o->tries = ngx_palloc(cycle->pool,
                          NGX_HTTP_IDEM_OUTBOX_BUCKETS * sizeof(ngx_queue_t));
    if (o->tries == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_HTTP_IDEM_OUTBOX_BUCKETS; i++) {
        ngx_queue_init(&o->tries[i]);
    }

    return NGX_OK;
}


ngx_http_idem_op_t *
ngx_http_idem_outbox_try(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item)
{
    ngx_uint_t                   n;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_outbox_try_t  *try;

    n = ngx_http_idem_outbox_queue(o, item->id,
                                   ngx_http_idem_outbox_cause(item));

    o->work[n].seen = 1;

    if (ngx_http_idem_outbox_queue_room(o, n) == 0) {
        return NULL;
    }

    try = ngx_http_idem_outbox_try_find(o, item->id);

    if (try) {

        if (try->op
            || (try->n == n
                && (ngx_msec_int_t) (try->until - ngx_current_msec) > 0))
        {
            return NULL;
        }

        ngx_queue_remove(&try->queue);

    } else {
        try = ngx_alloc(sizeof(ngx_http_idem_outbox_try_t), ngx_cycle->log);
        if (try == NULL) {
            return NULL;
        }
    }

    op = ngx_http_idem_outbox_op(o, item);

    if (op == NULL) {
        ngx_free(try);
        return NULL;
    }

    try->outbox = o;
    try->op = op;
    try->n = n;
    ngx_memcpy(try->id, item->id, NGX_HTTP_IDEM_ID_LEN);

    ngx_queue_insert_tail(&o->tries[try->id[0]], &try->queue);

    op->handler = ngx_http_idem_outbox_try_done;
    op->data = try;

    ngx_http_idem_outbox_queue_take(o, n, op->size);

    /* probe of a node that may be down: the result should come soon */

    op->skip_replicas = (ngx_http_idem_outbox_cause(item)
                         == NGX_HTTP_IDEM_OUTBOX_FAILED
                         && !ngx_http_idem_outbox_sh(o)->queues[n].open);

    return op;
}


void
ngx_http_idem_outbox_try_submit(ngx_http_idem_op_t *op)
{
    if (ngx_http_idem_store_submit(op) == NGX_OK) {
        ngx_http_idem_outbox_try_done(op);
    }
}


static void
ngx_http_idem_outbox_try_done(ngx_http_idem_op_t *op)
{
    ngx_msec_t                   wait;
    ngx_uint_t                   answered, missed;
    ngx_http_idem_outbox_t      *o;
    ngx_http_idem_outbox_try_t  *try;

    try = op->data;
    o = try->outbox;

    (void) ngx_http_idem_outbox_result(o, op);

    answered = ngx_http_idem_layer_answered(op);
    missed = (op->unacknowledged && !op->skip_replicas);

    ngx_http_idem_outbox_lock(o);

    ngx_http_idem_outbox_queue_done(o, try->n, op->size);

    if (!answered) {
        ngx_http_idem_outbox_queue_failed(o, try->n);

    } else if (missed) {
        ngx_http_idem_outbox_queue_missed(o, try->n);

    } else {
        ngx_http_idem_outbox_queue_opened(o, try->n);
    }

    wait = ngx_http_idem_outbox_queues_next(o, NGX_HTTP_IDEM_OUTBOX_TICK);

    ngx_http_idem_outbox_unlock(o);

    ngx_http_idem_outbox_schedule(o, wait);

    if (op->running || op->bad_record || missed) {

        /* a pause for this record only; others are not delayed */

        try->op = NULL;
        try->until = ngx_current_msec
                     + (missed ? NGX_HTTP_IDEM_OUTBOX_MISSED
                               : NGX_HTTP_IDEM_OUTBOX_REFUSED);

    } else {
        ngx_queue_remove(&try->queue);
        ngx_free(try);
    }

    ngx_destroy_pool(op->pool);
}


static ngx_http_idem_outbox_try_t *
ngx_http_idem_outbox_try_find(ngx_http_idem_outbox_t *o, u_char *id)
{
    ngx_queue_t                 *q, *bucket;
    ngx_http_idem_outbox_try_t  *try;

    bucket = &o->tries[id[0]];

    for (q = ngx_queue_head(bucket); q != bucket; q = ngx_queue_next(q)) {
        try = ngx_queue_data(q, ngx_http_idem_outbox_try_t, queue);

        if (ngx_memcmp(try->id, id, NGX_HTTP_IDEM_ID_LEN) == 0) {
            return try;
        }
    }

    return NULL;
}


void
ngx_http_idem_outbox_tries_end(ngx_http_idem_outbox_t *o, ngx_uint_t all)
{
    ngx_uint_t                   i;
    ngx_queue_t                 *q, *next;
    ngx_http_idem_outbox_try_t  *try;

    for (i = 0; i < NGX_HTTP_IDEM_OUTBOX_BUCKETS; i++) {

        for (q = ngx_queue_head(&o->tries[i]);
             q != ngx_queue_sentinel(&o->tries[i]);
             q = next)
        {
            next = ngx_queue_next(q);
            try = ngx_queue_data(q, ngx_http_idem_outbox_try_t, queue);

            if (try->op && !all) {
                continue;
            }

            if (try->op) {
                ngx_http_idem_store_cancel(try->op);
                ngx_destroy_pool(try->op->pool);
            }

            ngx_queue_remove(q);
            ngx_free(try);
        }
    }
}
