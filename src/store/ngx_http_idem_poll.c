
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The watches of this worker, by record: how they wait, and how they are
 * woken.
 *
 * Notifications may get lost or be forged.  Therefore a watch also polls, more
 * often if there are no notifications, and a spurious wake-up does no harm.
 *
 * Called by the backends.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/ngx_http_idem_store.h"


/* polling interval, ms: the first without notifications; with them */
#define NGX_HTTP_IDEM_POLL_MIN  10
#define NGX_HTTP_IDEM_POLL_MAX  1000


static void ngx_http_idem_poll_post(ngx_http_idem_op_t *op);
static void ngx_http_idem_poll_handler(ngx_event_t *ev);
static void ngx_http_idem_op_event(ngx_http_idem_op_t *op,
    ngx_event_handler_pt handler);


void
ngx_http_idem_polls_init(ngx_http_idem_polls_t *polls)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_POLLS; i++) {
        ngx_queue_init(&polls->by_id[i]);
    }
}


void
ngx_http_idem_poll_wait(ngx_http_idem_op_t *op, ngx_msec_t poll)
{
    ngx_msec_t  next;

    if (op->woken) {

        /*
         * The notification was read before the reply to the watch, in the
         * same iteration of the event loop; the event that was posted then is
         * deleted.
         */

        ngx_http_idem_poll_post(op);
        return;
    }

    next = NGX_HTTP_IDEM_POLL_MAX;

    if (poll) {
        next = NGX_HTTP_IDEM_POLL_MIN << ngx_min(op->attempt, 8);
        next = ngx_min(next, poll);
    }

    next = next - next / 4 + ngx_random() % (next / 4 + 1);
    next = ngx_min(next, op->found.left + 1);

    ngx_http_idem_op_timer(op, ngx_http_idem_poll_handler, next);
    op->timer.cancelable = 1;
}


void
ngx_http_idem_polls_wake(ngx_http_idem_polls_t *polls, u_char *id)
{
    ngx_uint_t           i, last;
    ngx_queue_t         *q, *head;
    ngx_http_idem_op_t  *op;

    last = id ? id[0] : NGX_HTTP_IDEM_POLLS - 1;

    for (i = id ? id[0] : 0; i <= last; i++) {
        head = &polls->by_id[i];

        for (q = ngx_queue_head(head); q != head; q = ngx_queue_next(q)) {
            op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

            if (id == NULL
                || ngx_memcmp(op->id, id, NGX_HTTP_IDEM_ID_LEN) == 0)
            {
                ngx_http_idem_poll_post(op);
            }
        }
    }
}


/* posted, since the caller may be in the middle of another request */

static void
ngx_http_idem_poll_post(ngx_http_idem_op_t *op)
{
    op->woken = 1;

    ngx_http_idem_op_event(op, ngx_http_idem_poll_handler);
    ngx_post_event(&op->timer, &ngx_posted_events);
}


/* if the watch was sent and not answered, its reply will be ignored */

static void
ngx_http_idem_poll_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t  *op;

    op = ev->data;

    op->store->backend->cancel(op);
    op->result = NGX_HTTP_IDEM_OK;

    ngx_http_idem_store_complete(op);
}


void
ngx_http_idem_op_timer(ngx_http_idem_op_t *op, ngx_event_handler_pt handler,
    ngx_msec_t time)
{
    ngx_memzero(&op->timer, sizeof(ngx_event_t));

    ngx_http_idem_op_event(op, handler);
    ngx_add_timer(&op->timer, time);
}


static void
ngx_http_idem_op_event(ngx_http_idem_op_t *op, ngx_event_handler_pt handler)
{
    op->timer.handler = handler;
    op->timer.data = op;
    op->timer.log = ngx_cycle->log;
}
