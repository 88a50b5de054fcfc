
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Begins that find a record in the outbox after the lease of its holder may
 * have expired.
 *
 * Until the lease expires no other request can have run, and the record in
 * the outbox is valid.  After that another host may have taken over, and may
 * have sent its own response to clients; and a commit with too few replicas
 * may be lost with its server.  So the commit is retried at once, and the
 * begin waits for its result, but not for replicas:
 *
 *   committed  the record in the outbox is replayed
 *   lost       the begin is passed on to the store; the record is dropped,
 *              unless the request that took over still runs: it may release
 *              the lock
 *   no answer  the record in the outbox is replayed: nothing better is known
 *
 * All begins of this worker for the same record share one retry.  Another
 * worker may retry at the same time, or the outbox itself; committing twice
 * does no harm, and is logged once.
 *
 * Called by the outbox; calls the store inside it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


typedef struct {
    ngx_queue_t              queue;
    ngx_http_idem_outbox_t  *outbox;
    ngx_http_idem_op_t      *commit;
    ngx_queue_t              begins;            /* waiting begins, by
                                                   op->queue */
} ngx_http_idem_outbox_check_t;


static ngx_http_idem_outbox_check_t *
    ngx_http_idem_outbox_check_find(ngx_http_idem_outbox_t *o,
                                    ngx_http_idem_item_t *item);
static void ngx_http_idem_outbox_check_done(ngx_http_idem_op_t *commit);
static ngx_uint_t ngx_http_idem_outbox_check_end(
    ngx_http_idem_outbox_check_t *check);
static ngx_int_t ngx_http_idem_outbox_check_answer(
    ngx_http_idem_op_t *op, ngx_uint_t replay, ngx_uint_t kept);


/* op->found already has the record */

ngx_int_t
ngx_http_idem_outbox_check(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_uint_t                     replay, kept;
    ngx_http_idem_op_t            *commit;
    ngx_http_idem_item_t          *item;
    ngx_http_idem_outbox_check_t  *check;

    if (op->result != NGX_HTTP_IDEM_FOUND) {
        /* there was no memory for the response */
        return NGX_OK;
    }

    check = NULL;
    commit = NULL;

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    if (item) {
        check = ngx_http_idem_outbox_check_find(o, item);

        if (check == NULL) {
            commit = ngx_http_idem_outbox_op(o, item);
        }
    }

    ngx_http_idem_outbox_unlock(o);

    if (item == NULL) {
        /* another worker has removed the record */
        return ngx_http_idem_layer_pass(op);
    }

    if (commit) {
        check = ngx_palloc(commit->pool,
                           sizeof(ngx_http_idem_outbox_check_t));
        if (check == NULL) {
            ngx_destroy_pool(commit->pool);
        }
    }

    if (check == NULL) {
        ngx_http_idem_op_error(op, "no memory for an operation");
        return NGX_OK;
    }

    if (commit) {
        check->outbox = o;
        check->commit = commit;

        ngx_queue_init(&check->begins);
        ngx_queue_insert_tail(&o->checks, &check->queue);

        commit->handler = ngx_http_idem_outbox_check_done;
        commit->data = check;
        commit->skip_replicas = 1;

        if (ngx_http_idem_store_submit(commit) == NGX_OK) {
            kept = (commit->result == NGX_HTTP_IDEM_ERROR);
            replay = ngx_http_idem_outbox_check_end(check);

            ngx_destroy_pool(commit->pool);

            return ngx_http_idem_outbox_check_answer(op, replay, kept);
        }
    }

    op->state_data = NULL;
    ngx_queue_insert_tail(&check->begins, &op->queue);

    return NGX_AGAIN;
}


/* a check of the same record with the same token */

static ngx_http_idem_outbox_check_t *
ngx_http_idem_outbox_check_find(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item)
{
    ngx_queue_t                   *q;
    ngx_http_idem_outbox_check_t  *check;

    for (q = ngx_queue_head(&o->checks);
         q != ngx_queue_sentinel(&o->checks);
         q = ngx_queue_next(q))
    {
        check = ngx_queue_data(q, ngx_http_idem_outbox_check_t, queue);

        if (ngx_memcmp(check->commit->id, item->id,
                       NGX_HTTP_IDEM_ID_LEN)
            == 0
            && ngx_memcmp(check->commit->token, item->token,
                          NGX_HTTP_IDEM_TOKEN_LEN)
               == 0)
        {
            return check;
        }
    }

    return NULL;
}


static void
ngx_http_idem_outbox_check_done(ngx_http_idem_op_t *commit)
{
    ngx_uint_t                     replay, kept;
    ngx_queue_t                   *q;
    ngx_http_idem_op_t            *op;
    ngx_http_idem_outbox_check_t  *check;

    check = commit->data;

    kept = (commit->result == NGX_HTTP_IDEM_ERROR);
    replay = ngx_http_idem_outbox_check_end(check);

    /* completing one may cancel others: restart from the head each time */

    while (!ngx_queue_empty(&check->begins)) {
        q = ngx_queue_head(&check->begins);
        ngx_queue_remove(q);

        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (ngx_http_idem_outbox_check_answer(op, replay, kept)
            == NGX_OK)
        {
            ngx_http_idem_store_complete(op);
        }
    }

    ngx_destroy_pool(commit->pool);
}


/* returns whether the record in the outbox may be replayed */

static ngx_uint_t
ngx_http_idem_outbox_check_end(ngx_http_idem_outbox_check_t *check)
{
    ngx_uint_t               here;
    ngx_http_idem_op_t      *commit;
    ngx_http_idem_outbox_t  *o;

    o = check->outbox;
    commit = check->commit;

    /* a begin from now on starts a new check */

    ngx_queue_remove(&check->queue);

    here = ngx_http_idem_outbox_result(o, commit);

    /* no answer: if the record was removed, it must not be replayed */

    return commit->result == NGX_HTTP_IDEM_ERROR
           ? here : commit->result != NGX_HTTP_IDEM_LOST;
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


void
ngx_http_idem_outbox_check_exit(ngx_http_idem_outbox_t *o)
{
    ngx_queue_t                   *q;
    ngx_http_idem_outbox_check_t  *check;

    while (!ngx_queue_empty(&o->checks)) {
        q = ngx_queue_head(&o->checks);
        check = ngx_queue_data(q, ngx_http_idem_outbox_check_t, queue);

        ngx_queue_remove(q);

        while (!ngx_queue_empty(&check->begins)) {
            q = ngx_queue_head(&check->begins);
            ngx_queue_remove(q);
            ngx_queue_init(q);
        }

        ngx_http_idem_store_cancel(check->commit);
        ngx_destroy_pool(check->commit->pool);
    }
}
