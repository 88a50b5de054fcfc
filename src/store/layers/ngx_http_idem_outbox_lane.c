
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Lanes of the outbox: a lane is the set of commits of one node that are kept
 * for one cause, with its retry state.
 *
 * A lane is closed while its node does not answer: one commit is attempted
 * after each delay.  If that succeeds, the lane is open, and all its commits
 * are attempted at once.  So the commits of a node that is down do not delay
 * others.  A record may move to another node while it is kept; its lane is
 * determined at each attempt.
 *
 * Commits with too few replicas have lanes of their own.  Such a lane opens
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


/* limits of a lane: attempts under way, and bytes of their responses */
#define NGX_HTTP_IDEM_OUTBOX_TRIES_MAX  1024
#define NGX_HTTP_IDEM_OUTBOX_BYTES_MAX  (4 * 1024 * 1024)

/* delay if an open lane has nothing to attempt, ms */
#define NGX_HTTP_IDEM_OUTBOX_LANE_PAUSE  250


#define ngx_http_idem_outbox_lane_sh(o, n)                                    \
    (&ngx_http_idem_outbox_sh(o)->lanes[n])

#define ngx_http_idem_outbox_lane_cause(n)                                    \
    ((n) / NGX_HTTP_IDEM_OUTBOX_PLACES)

#define ngx_http_idem_outbox_lane_delay(n)                                    \
    (ngx_http_idem_outbox_lane_cause(n)                                       \
     == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED                                   \
     ? NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS                                    \
     : NGX_HTTP_IDEM_OUTBOX_DELAY_MIN)


/* the lane of the node that has the record, as far as this worker knows */

ngx_uint_t
ngx_http_idem_outbox_lane(ngx_http_idem_outbox_t *o, u_char *id,
    ngx_http_idem_outbox_cause_e cause)
{
    ngx_uint_t                   place;
    ngx_http_idem_nodes_t       *nodes;
    ngx_http_idem_store_node_t  *node;

    place = 0;
    nodes = o->layer.named->nodes;

    if (nodes) {
        node = nodes->find(nodes->data, id);
        place = node ? node->place : 0;
    }

    return cause * NGX_HTTP_IDEM_OUTBOX_PLACES + place;
}


void
ngx_http_idem_outbox_lane_use(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_lane_t  *lane;

    lane = ngx_http_idem_outbox_lane_sh(o, n);

    ngx_http_idem_outbox_sh(o)->keeps++;

    /* do not postpone the next attempt of a lane that is in use and closed */

    if (lane->used
        && (!lane->open
            || ngx_http_idem_outbox_lane_cause(n)
               == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED))
    {
        return;
    }

    lane->used = 1;
    lane->open = 0;
    lane->delay = ngx_http_idem_outbox_lane_delay(n);
    lane->next = ngx_current_msec + lane->delay;
}


ngx_uint_t
ngx_http_idem_outbox_lane_room(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_work_t  *work;
    ngx_http_idem_outbox_lane_t  *lane;

    work = &o->work[n];
    lane = ngx_http_idem_outbox_lane_sh(o, n);

    if (!lane->used) {

        /*
         * the record moved to another node, or a worker was killed before it
         * set "used"
         */

        ngx_http_idem_outbox_lane_use(o, n);
        lane->rewrite = 1;
    }

    if ((ngx_msec_int_t) (lane->next - ngx_current_msec) > 0
        && lane->next - ngx_current_msec
           <= 2 * NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS)
    {
        return 0;
    }

    if (!lane->open) {
        return work->tries == 0;
    }

    if (work->tries >= NGX_HTTP_IDEM_OUTBOX_TRIES_MAX
        || work->bytes >= NGX_HTTP_IDEM_OUTBOX_BYTES_MAX)
    {
        work->more = 1;
        return 0;
    }

    return NGX_HTTP_IDEM_OUTBOX_TRIES_MAX - work->tries;
}


void
ngx_http_idem_outbox_lane_take(ngx_http_idem_outbox_t *o,
    ngx_uint_t n, size_t size)
{
    ngx_http_idem_outbox_work_t  *work;

    work = &o->work[n];

    work->tries++;
    work->bytes += size;
    work->taken = 1;
}


void
ngx_http_idem_outbox_lane_done(ngx_http_idem_outbox_t *o,
    ngx_uint_t n, size_t size)
{
    ngx_http_idem_outbox_work_t  *work;

    work = &o->work[n];

    work->tries--;
    work->bytes -= size;

    if (work->more) {
        work->more = 0;
        ngx_http_idem_outbox_lane_sh(o, n)->next = ngx_current_msec;
    }
}


void
ngx_http_idem_outbox_lane_opened(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_lane_t  *lane;

    lane = ngx_http_idem_outbox_lane_sh(o, n);

    if (!lane->open) {
        lane->open = 1;
        lane->next = ngx_current_msec;
    }

    lane->delay = ngx_http_idem_outbox_lane_delay(n);
}


/* the server replied, but too few of its replicas acknowledged */

void
ngx_http_idem_outbox_lane_missed(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_lane_t  *lane;

    lane = ngx_http_idem_outbox_lane_sh(o, n);

    if (lane->rewrite
        || ngx_http_idem_outbox_lane_cause(n)
           == NGX_HTTP_IDEM_OUTBOX_FAILED)
    {
        ngx_http_idem_outbox_lane_opened(o, n);

    } else if (!lane->open) {
        ngx_http_idem_outbox_lane_failed(o, n);
    }
}


void
ngx_http_idem_outbox_lane_failed(ngx_http_idem_outbox_t *o, ngx_uint_t n)
{
    ngx_http_idem_outbox_lane_t  *lane;

    lane = ngx_http_idem_outbox_lane_sh(o, n);

    if (!lane->open
        && (ngx_msec_int_t) (lane->next - ngx_current_msec) > 0)
    {
        /* attempts that fail together count as one */
        return;
    }

    /* jitter: hosts that lost the same store should not all return at once */

    lane->open = 0;
    lane->next = ngx_current_msec + lane->delay
                 + (ngx_msec_t) ngx_random() % (lane->delay / 4 + 1);

    if (lane->delay < NGX_HTTP_IDEM_OUTBOX_DELAY_MAX) {
        lane->delay = ngx_min(2 * lane->delay,
                              NGX_HTTP_IDEM_OUTBOX_DELAY_MAX);
    }
}


void
ngx_http_idem_outbox_lanes_rewrite(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t                    n;
    ngx_http_idem_outbox_lane_t  *lane;

    for (n = NGX_HTTP_IDEM_OUTBOX_PLACES
             * NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED;
         n < NGX_HTTP_IDEM_OUTBOX_LANES;
         n++)
    {
        lane = ngx_http_idem_outbox_lane_sh(o, n);

        if (lane->used) {
            lane->open = 1;
            lane->rewrite = 1;
            lane->next = ngx_current_msec;
        }
    }
}


void
ngx_http_idem_outbox_pass_start(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t  n;

    o->left = o->z.zone->records;
    o->keeps = ngx_http_idem_outbox_sh(o)->keeps;

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_LANES; n++) {
        o->work[n].seen = 0;
        o->work[n].taken = 0;
        o->work[n].more = 0;
    }
}


/* called when all records were visited */

void
ngx_http_idem_outbox_pass_end(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t                    n;
    ngx_http_idem_outbox_lane_t  *lane;
    ngx_http_idem_outbox_work_t  *work;

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_LANES; n++) {
        work = &o->work[n];
        lane = ngx_http_idem_outbox_lane_sh(o, n);

        if (!lane->used || work->taken || work->more) {
            continue;
        }

        if (!work->seen && work->tries == 0) {

            if (o->keeps == ngx_http_idem_outbox_sh(o)->keeps) {
                ngx_memzero(lane, sizeof(ngx_http_idem_outbox_lane_t));
                continue;
            }

            /* a record may have been added since the pass began */
        }

        /* all records are being attempted, or have pauses of their own */

        if (ngx_http_idem_outbox_lane_cause(n)
            == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED
            && lane->open && work->tries == 0)
        {
            /* each was written once more: back to one attempt at a time */

            lane->open = 0;
            lane->rewrite = 0;
        }

        if ((ngx_msec_int_t) (lane->next - ngx_current_msec) <= 0) {
            lane->next = ngx_current_msec + NGX_HTTP_IDEM_OUTBOX_LANE_PAUSE;
        }
    }
}


ngx_msec_t
ngx_http_idem_outbox_lanes_next(ngx_http_idem_outbox_t *o, ngx_msec_t wait)
{
    ngx_uint_t                    n, used;
    ngx_msec_int_t                left;
    ngx_http_idem_outbox_work_t  *work;
    ngx_http_idem_outbox_lane_t  *lane;

    used = 0;

    for (n = 0; n < NGX_HTTP_IDEM_OUTBOX_LANES; n++) {
        work = &o->work[n];
        lane = ngx_http_idem_outbox_lane_sh(o, n);

        used += lane->used;

        if (!lane->used || work->more || (!lane->open && work->tries)) {
            continue;
        }

        left = (ngx_msec_int_t) (lane->next - ngx_current_msec);

        if (left <= 0) {
            return 0;
        }

        wait = ngx_min(wait, (ngx_msec_t) left);
    }

    /* a killed worker may have added a record without marking its lane */

    return used ? wait : 0;
}
