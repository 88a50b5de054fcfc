
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Large responses of the embedded store: the operations that copy one, a few
 * pieces per iteration of the event loop.  All such operations of a worker
 * share one queue, so an iteration takes no longer with many of them than
 * with one.
 *
 * Called by the operations of the embedded store; calls them again.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/memory/ngx_http_idem_memory.h"


/* pieces per iteration, each with a lock and unlock of its own */
#define NGX_HTTP_IDEM_TURN_PIECES  2

/* delay, ms; a timer of 0 would fire in the same iteration */
#define NGX_HTTP_IDEM_TURN_PAUSE   1


static void ngx_http_idem_turns_handler(ngx_event_t *ev);


void
ngx_http_idem_turns_init(ngx_http_idem_memory_t *m, ngx_log_t *log)
{
    ngx_queue_init(&m->turns);

    /* not cancelable: a worker that shuts down finishes them */

    m->turn.handler = ngx_http_idem_turns_handler;
    m->turn.data = m;
    m->turn.log = log;
}


ngx_int_t
ngx_http_idem_turns_first(ngx_http_idem_op_t *op, ngx_int_t rc)
{
    ngx_http_idem_memory_t  *m;

    if (rc == NGX_AGAIN) {
        m = op->store->conf;

        ngx_queue_insert_tail(&m->turns, &op->queue);

        if (!m->turn.timer_set) {
            ngx_add_timer(&m->turn, NGX_HTTP_IDEM_TURN_PAUSE);
        }
    }

    return rc;
}


static void
ngx_http_idem_turns_handler(ngx_event_t *ev)
{
    ngx_int_t                rc;
    ngx_uint_t               n;
    ngx_queue_t             *q;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_copy_t    *copy;
    ngx_http_idem_memory_t  *m;

    m = ev->data;

    for (n = 0; n < NGX_HTTP_IDEM_TURN_PIECES; n++) {

        if (ngx_queue_empty(&m->turns)) {
            return;
        }

        q = ngx_queue_head(&m->turns);
        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        ngx_queue_remove(q);

        if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
            rc = ngx_http_idem_memory_commit_piece(op);

        } else {

            /* a record that expired after the request arrived is found */

            copy = op->state_data;
            op->age += ngx_current_msec - copy->time;

            rc = ngx_http_idem_memory_begin_piece(op);
        }

        if (rc == NGX_AGAIN) {
            ngx_queue_insert_tail(&m->turns, q);

        } else {
            ngx_http_idem_store_complete(op);
        }
    }

    if (!ngx_queue_empty(&m->turns) && !ev->timer_set) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_TURN_PAUSE);
    }
}
