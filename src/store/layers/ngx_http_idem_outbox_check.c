
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Before it is told too late: what is kept in the outbox, once the lease of
 * its execution may be over.
 *
 * While the lease lasts nobody else can have run, and what is kept is true.
 * After that another host may have taken over, and have told its own response
 * to others; and what too few replicas had may be gone with its server.  So
 * the commit is tried at once, and who asked waits for that, but not for any
 * replicas:
 *
 *   it landed          what is kept is replayed
 *   it is lost         the store is asked as usual; the copy is gone, unless
 *                      the one that took over still runs, and may give back
 *   there is no answer what is kept is replayed: nothing better can be known
 *
 * All who ask in this worker while it is under way share one try.  Another
 * worker may try at the same time, or the outbox itself; a commit that is
 * tried twice does no harm, and is told of once.
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
    ngx_queue_t              askers;            /* begins, by op->queue     */
} ngx_http_idem_outbox_check_t;


static ngx_http_idem_outbox_check_t *
    ngx_http_idem_outbox_check_find(ngx_http_idem_outbox_t *o,
                                    ngx_http_idem_node_t *node);
static void ngx_http_idem_outbox_check_done(ngx_http_idem_op_t *commit);
static ngx_uint_t ngx_http_idem_outbox_check_end(
    ngx_http_idem_outbox_check_t *check);
static ngx_int_t ngx_http_idem_outbox_check_answer(
    ngx_http_idem_op_t *op, ngx_uint_t replay, ngx_uint_t kept);


/* what is kept was read into op->found already */

ngx_int_t
ngx_http_idem_outbox_check(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_uint_t                     replay, kept;
    ngx_http_idem_op_t            *commit;
    ngx_http_idem_node_t          *node;
    ngx_http_idem_outbox_check_t  *check;

    if (op->result != NGX_HTTP_IDEM_FOUND) {
        /* there was no memory for it */
        return NGX_OK;
    }

    check = NULL;
    commit = NULL;

    ngx_http_idem_outbox_lock(o);

    node = ngx_http_idem_zone_find(&o->z, op->id);

    if (node) {
        check = ngx_http_idem_outbox_check_find(o, node);

        if (check == NULL) {
            commit = ngx_http_idem_outbox_op(o, node);
        }
    }

    ngx_http_idem_outbox_unlock(o);

    if (node == NULL) {
        /* another worker was faster */
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
        op->result = NGX_HTTP_IDEM_ERROR;
        op->error = "no memory for an operation";
        return NGX_OK;
    }

    if (commit) {
        check->outbox = o;
        check->commit = commit;

        ngx_queue_init(&check->askers);
        ngx_queue_insert_tail(&o->checks, &check->queue);

        commit->handler = ngx_http_idem_outbox_check_done;
        commit->data = check;
        commit->hasty = 1;

        if (ngx_http_idem_store_submit(commit) == NGX_OK) {
            kept = (commit->result == NGX_HTTP_IDEM_ERROR);
            replay = ngx_http_idem_outbox_check_end(check);

            ngx_destroy_pool(commit->pool);

            return ngx_http_idem_outbox_check_answer(op, replay, kept);
        }
    }

    op->state_data = NULL;
    ngx_queue_insert_tail(&check->askers, &op->queue);

    return NGX_AGAIN;
}


/* the same record, by the same holder */

static ngx_http_idem_outbox_check_t *
ngx_http_idem_outbox_check_find(ngx_http_idem_outbox_t *o,
    ngx_http_idem_node_t *node)
{
    ngx_queue_t                   *q;
    ngx_http_idem_outbox_check_t  *check;

    for (q = ngx_queue_head(&o->checks);
         q != ngx_queue_sentinel(&o->checks);
         q = ngx_queue_next(q))
    {
        check = ngx_queue_data(q, ngx_http_idem_outbox_check_t, queue);

        if (ngx_memcmp(check->commit->id, node->id,
                       NGX_HTTP_IDEM_ID_LEN)
            == 0
            && ngx_memcmp(check->commit->token, node->token,
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

    /* whoever is answered may cancel others: each time from the beginning */

    while (!ngx_queue_empty(&check->askers)) {
        q = ngx_queue_head(&check->askers);
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


/* returns whether what is kept may be told */

static ngx_uint_t
ngx_http_idem_outbox_check_end(ngx_http_idem_outbox_check_t *check)
{
    ngx_uint_t               here;
    ngx_http_idem_op_t      *commit;
    ngx_http_idem_outbox_t  *o;

    o = check->outbox;
    commit = check->commit;

    /* who asks from now on begins a check of his own */

    ngx_queue_remove(&check->queue);

    here = ngx_http_idem_outbox_tried(o, commit);

    switch (commit->result) {

    case NGX_HTTP_IDEM_LOST:
        return 0;

    case NGX_HTTP_IDEM_ERROR:

        /* gone meanwhile: somebody knows better */
        return here;

    default: /* NGX_HTTP_IDEM_OK, NGX_HTTP_IDEM_FULL */
        return 1;
    }
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
    /* the commit goes on: it has to be tried in any case */

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

        while (!ngx_queue_empty(&check->askers)) {
            q = ngx_queue_head(&check->askers);
            ngx_queue_remove(q);
            ngx_queue_init(q);
        }

        ngx_http_idem_store_cancel(check->commit);
        ngx_destroy_pool(check->commit->pool);
    }
}
