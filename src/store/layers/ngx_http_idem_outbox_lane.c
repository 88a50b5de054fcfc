
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Lanes of the outbox: the commits of one node that are kept for one cause.
 *
 * A lane is closed while its node does not answer: one commit is tried after
 * each delay.  When that succeeds it is open, and all that it has are tried at
 * once.  So the commits of a node that is away hold up no others.  Where a
 * record is may change while it is kept: its lane is asked for each time.
 *
 * Commits that too few replicas have are in a lane of their own.  It is open
 * when a try was acknowledged.  And when a server was connected anew, or has
 * the record now, each is written once: that server may have taken over, and
 * lack it.
 *
 * All of this is a matter of time only: a worker that is killed leaves nothing
 * here that has to be put right.
 *
 * Called by the outbox with its zone locked.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/* tries of a lane that are under way, and the bytes they have in memory */
#define NGX_HTTP_IDEM_OUTBOX_TRIES_MAX  1024
#define NGX_HTTP_IDEM_OUTBOX_BYTES_MAX  (4 * 1024 * 1024)

/* between looks at an open lane which has nothing that could be tried */
#define NGX_HTTP_IDEM_OUTBOX_LOOK       250


#define ngx_http_idem_outbox_lane_sh(o, n)                                    \
    (&ngx_http_idem_outbox_sh(o)->lanes[n])

#define ngx_http_idem_outbox_lane_cause(n)                                    \
    ((n) / NGX_HTTP_IDEM_OUTBOX_PLACES)

#define ngx_http_idem_outbox_lane_delay(n)                                    \
    (ngx_http_idem_outbox_lane_cause(n)                                       \
     == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED                                   \
     ? NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS                                    \
     : NGX_HTTP_IDEM_OUTBOX_DELAY_MIN)


/* that of the node the record is on, as far as this worker knows */

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

    /* a lane that is closed has its time: others that fail do not put it off */

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

        /* its node changed, or its worker was killed before it said so */

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


/* the server answered, but too few of its replicas did */

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
        /* one of many that were tried at once: it counts as one */
        return;
    }

    /* hosts that lost the same store do not come back all at once */

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


/* every record that waits was looked at */

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

            /* there may be one that came since the pass began */
        }

        /* all are under way, or have to wait each for itself */

        if (ngx_http_idem_outbox_lane_cause(n)
            == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED
            && lane->open && work->tries == 0)
        {
            /* each was written once more: on with one at a time */

            lane->open = 0;
            lane->rewrite = 0;
        }

        if ((ngx_msec_int_t) (lane->next - ngx_current_msec) <= 0) {
            lane->next = ngx_current_msec + NGX_HTTP_IDEM_OUTBOX_LOOK;
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

    /* a worker that was killed may not have said where it put a record */

    return used ? wait : 0;
}
