
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Queues of the outbox: a queue is the set of commits of one node that are
 * kept for one cause, with its retry state.
 *
 * A queue is closed while its node does not answer: one commit is attempted
 * after each delay.  If that succeeds, the queue is open, and all its commits
 * are attempted at once.  So the commits of a node that is down do not delay
 * others.  A record may move to another node while it is kept; its queue is
 * determined at each attempt.
 *
 * Commits with too few replicas have queues of their own.  Such a queue opens
 * when an attempt is acknowledged by replicas.  After a reconnect, or when
 * another server has the record, each of these commits is written once more:
 * the server may have taken over, and may lack it.
 *
 * All of this is timing only, so a worker that is killed leaves nothing that
 * has to be repaired.
 *
 * Called by the outbox, with its zone locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* limits of a queue: attempts under way, and bytes of their responses */
#define NGX_HTTP_IDEM_OUTBOX_TRIES_MAX  1024
#define NGX_HTTP_IDEM_OUTBOX_BYTES_MAX  (4 * 1024 * 1024)

/* delay if an open queue has nothing to attempt, ms */
#define NGX_HTTP_IDEM_OUTBOX_QUEUE_PAUSE  250


static void ngx_http_idem_outbox_queue_failed(
    ngx_http_idem_outbox_queue_t *queue);


#define ngx_http_idem_outbox_queue_sh(o, n)                                   \
    (&ngx_http_idem_outbox_sh(o)->queues[n])

#define ngx_http_idem_outbox_queue_cause(n)                                   \
    ((n) / NGX_HTTP_IDEM_OUTBOX_SLOTS)

#define ngx_http_idem_outbox_queue_delay(n)                                   \
    (ngx_http_idem_outbox_queue_cause(n)                                      \
     == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED                                   \
     ? NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS                                    \
     : NGX_HTTP_IDEM_OUTBOX_DELAY_MIN)


/* the queue of the node that has the record, as far as this worker knows */

ngx_uint_t
ngx_http_idem_outbox_queue(ngx_http_idem_outbox_t *o, u_char *id,
    ngx_http_idem_outbox_cause_e cause)
{
    ngx_uint_t                   slot;
    ngx_http_idem_nodes_t       *nodes;
    ngx_http_idem_store_node_t  *node;

    slot = 0;
    nodes = o->layer.named->nodes;

    if (nodes) {
        node = nodes->find(nodes->data, id);
        slot = node ? node->slot : 0;
    }

    return cause * NGX_HTTP_IDEM_OUTBOX_SLOTS + slot;
}


void
ngx_http_idem_outbox_queue_use(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_queue_t  *queue;

    queue = ngx_http_idem_outbox_queue_sh(o, n);

    ngx_http_idem_outbox_sh(o)->added++;

    /* do not postpone the next attempt of a queue that is in use and closed */

    if (queue->used
        && (!queue->open
            || ngx_http_idem_outbox_queue_cause(n)
               == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED))
    {
        return;
    }

    queue->used = 1;
    queue->open = 0;
    queue->delay = ngx_http_idem_outbox_queue_delay(n);
    queue->next = ngx_current_msec + queue->delay;
}


ngx_uint_t
ngx_http_idem_outbox_queue_room(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_work_t   *work;
    ngx_http_idem_outbox_queue_t  *queue;

    work = &o->work[n];
    queue = ngx_http_idem_outbox_queue_sh(o, n);

    if (!queue->used) {

        /*
         * the record moved to another node, or a worker was killed before it
         * set "used"
         */

        ngx_http_idem_outbox_queue_use(o, n);
        queue->rewrite = 1;
    }

    if ((ngx_msec_int_t) (queue->next - ngx_current_msec) > 0
        && queue->next - ngx_current_msec
           <= 2 * NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS)
    {
        return 0;
    }

    if (!queue->open) {
        return work->tries == 0;
    }

    if (work->tries >= NGX_HTTP_IDEM_OUTBOX_TRIES_MAX
        || work->bytes >= NGX_HTTP_IDEM_OUTBOX_BYTES_MAX)
    {
        work->more = 1;
        return 0;
    }

    return 1;
}


void
ngx_http_idem_outbox_queue_done(ngx_http_idem_outbox_t *o, ngx_uint_t n,
    ngx_http_idem_op_t *op, ngx_uint_t missed)
{
    ngx_uint_t                     unacknowledged;
    ngx_http_idem_outbox_work_t   *work;
    ngx_http_idem_outbox_queue_t  *queue;

    work = &o->work[n];
    queue = ngx_http_idem_outbox_queue_sh(o, n);

    work->tries--;
    work->bytes -= op->size;

    if (work->more) {
        work->more = 0;
        queue->next = ngx_current_msec;
    }

    unacknowledged = (ngx_http_idem_outbox_queue_cause(n)
                      == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED);

    if (!ngx_http_idem_layer_answered(op)) {
        ngx_http_idem_outbox_queue_failed(queue);

    } else if (missed && unacknowledged && !queue->rewrite) {

        if (!queue->open) {
            ngx_http_idem_outbox_queue_failed(queue);
        }

    } else {

        if (!queue->open) {
            queue->open = 1;
            queue->next = ngx_current_msec;
        }

        queue->delay = ngx_http_idem_outbox_queue_delay(n);
    }
}


static void
ngx_http_idem_outbox_queue_failed(ngx_http_idem_outbox_queue_t *queue)
{
    if (!queue->open
        && (ngx_msec_int_t) (queue->next - ngx_current_msec) > 0)
    {
        /* attempts that fail together count as one */
        return;
    }

    /* jitter: hosts that lost the same store should not all return at once */

    queue->open = 0;
    queue->next = ngx_current_msec + queue->delay
                  + (ngx_msec_t) ngx_random() % (queue->delay / 4 + 1);

    if (queue->delay < NGX_HTTP_IDEM_OUTBOX_DELAY_MAX) {
        queue->delay = ngx_min(2 * queue->delay,
                               NGX_HTTP_IDEM_OUTBOX_DELAY_MAX);
    }
}


void
ngx_http_idem_outbox_queues_rewrite(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t                     n;
    ngx_http_idem_outbox_queue_t  *queue;

    for (n = NGX_HTTP_IDEM_OUTBOX_SLOTS
             * NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED;
         n < NGX_HTTP_IDEM_OUTBOX_QUEUES;
         n++)
    {
        queue = ngx_http_idem_outbox_queue_sh(o, n);

        if (queue->used) {
            queue->open = 1;
            queue->rewrite = 1;
            queue->next = ngx_current_msec;
        }
    }
}


void
ngx_http_idem_outbox_pass_start(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t  n;

    o->left = o->z.zone->records;
    o->added = ngx_http_idem_outbox_sh(o)->added;

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_QUEUES; n++) {
        o->work[n].seen = 0;
        o->work[n].taken = 0;
        o->work[n].more = 0;
    }
}


/* called when all records were visited */

void
ngx_http_idem_outbox_pass_end(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t                     n;
    ngx_http_idem_outbox_queue_t  *queue;
    ngx_http_idem_outbox_work_t   *work;

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_QUEUES; n++) {
        work = &o->work[n];
        queue = ngx_http_idem_outbox_queue_sh(o, n);

        if (!queue->used || work->taken || work->more) {
            continue;
        }

        /* unless a record was added since the pass began */

        if (!work->seen && work->tries == 0
            && o->added == ngx_http_idem_outbox_sh(o)->added)
        {
            ngx_memzero(queue, sizeof(ngx_http_idem_outbox_queue_t));
            continue;
        }

        /* all records are being attempted, or have pauses of their own */

        if (ngx_http_idem_outbox_queue_cause(n)
            == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED
            && queue->open && work->tries == 0)
        {
            /* each was written once more: back to one attempt at a time */

            queue->open = 0;
            queue->rewrite = 0;
        }

        if ((ngx_msec_int_t) (queue->next - ngx_current_msec) <= 0) {
            queue->next = ngx_current_msec + NGX_HTTP_IDEM_OUTBOX_QUEUE_PAUSE;
        }
    }
}


ngx_msec_t
ngx_http_idem_outbox_queues_next(ngx_http_idem_outbox_t *o, ngx_msec_t wait)
{
    ngx_uint_t                     n, used;
    ngx_msec_int_t                 left;
    ngx_http_idem_outbox_work_t   *work;
    ngx_http_idem_outbox_queue_t  *queue;

    used = 0;

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_QUEUES; n++) {
        work = &o->work[n];
        queue = ngx_http_idem_outbox_queue_sh(o, n);

        used += queue->used;

        if (!queue->used || work->more || (!queue->open && work->tries)) {
            continue;
        }

        left = (ngx_msec_int_t) (queue->next - ngx_current_msec);

        if (left <= 0) {
            return 0;
        }

        wait = ngx_min(wait, (ngx_msec_t) left);
    }

    /* a killed worker may have added a record without marking its queue */

    return used ? wait : 0;
}
