
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Creates the commit of a record in the outbox, and handles its result: the
 * record is removed or stays, and that is counted and logged.  Also logs
 * records that expired.
 *
 * Called by ..._outbox_try.c and ..._outbox_retry.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


/*
 * Grace of a commit whose lock would outlive it, ms: for those that waited for
 * it on other hosts.
 */
#define NGX_HTTP_IDEM_OUTBOX_GRACE  10000


/*
 * The result is final.  A commit that lost to a request which still runs is
 * not final: that request may release the lock, and then this is the only
 * response.
 */
#define ngx_http_idem_outbox_is_final(op)                                     \
    ((op)->result != NGX_HTTP_IDEM_ERROR && !(op)->running)


static void ngx_http_idem_outbox_report(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);


/* the commit with the remaining ttl and grace */

ngx_http_idem_op_t *
ngx_http_idem_outbox_op(ngx_http_idem_outbox_t *o, ngx_http_idem_item_t *item)
{
    ngx_buf_t           *b;
    ngx_chain_t         *cl;
    ngx_msec_int_t       left;
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_op_detached(o->layer.inner, NGX_HTTP_IDEM_OP_COMMIT,
                                   item->id, item->token);
    if (op == NULL) {
        return NULL;
    }

    b = ngx_create_temp_buf(op->pool, ngx_max(item->size, 1));
    cl = ngx_alloc_chain_link(op->pool);

    if (b == NULL || cl == NULL
        || ngx_http_idem_zone_read(&o->z, item, b->last) != NGX_OK)
    {
        ngx_destroy_pool(op->pool);
        return NULL;
    }

    ngx_http_idem_zone_copy_details(&o->z, item, op->pool,
                                    NGX_MAX_SIZE_T_VALUE, &op->details);

    *op->claim = item->claim;

    b->last += item->size;

    cl->buf = b;
    cl->next = NULL;

    left = (ngx_msec_int_t) (item->until - ngx_current_msec);

    op->ttl = ngx_max(left, 0);
    op->lease = op->ttl;
    op->grace = item->expires - ngx_current_msec - op->ttl;

    if (item->again & NGX_HTTP_IDEM_OUTBOX_OUTLIVED) {
        /* not its grace, but the rest of its lock */
        op->grace = ngx_min(op->grace, NGX_HTTP_IDEM_OUTBOX_GRACE);
    }

    op->locked_until = item->u.locked_until;
    op->hold = item->hold;
    op->already_logged = (ngx_http_idem_outbox_cause(item)
                          == NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED);
    op->state = item->state;
    op->reason = item->reason;

    if (ngx_http_idem_op_retryable(op)) {

        /* the rest of the lease: after it the same request may run */

        left = (ngx_msec_int_t) (item->u.locked_until - ngx_current_msec);
        op->lease = ngx_max(left, 1);
    }

    op->response = cl;
    op->size = item->size;

    return op;
}


ngx_uint_t
ngx_http_idem_outbox_result(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_uint_t                  here, lacking;
    ngx_http_idem_item_t       *item;
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);
    lacking = 0;

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    /* two attempts at the same time: the second finds no record */

    here = item
           && ngx_memcmp(item->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN)
              == 0;

    if (here) {
        lacking = (ngx_http_idem_outbox_cause(item)
                   == NGX_HTTP_IDEM_OUTBOX_FAILED);

        if (!ngx_http_idem_outbox_is_final(op)) {
            /* the record stays */

        } else if (!op->unacknowledged) {
            ngx_http_idem_outbox_remove(o, item);

        } else if (lacking) {

            /* the server has it, but it may be lost with the server */

            item->again |= NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED;
            sh->unacknowledged++;

            ngx_http_idem_outbox_queue_use(o,
                ngx_http_idem_outbox_queue(o, item->id,
                                 NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED));
        }
    }

    ngx_http_idem_outbox_unlock(o);

    if (here && (lacking || op->result == NGX_HTTP_IDEM_LOST)) {
        ngx_http_idem_outbox_report(o, op);
    }

    return here;
}


static void
ngx_http_idem_outbox_report(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_uint_t                  level;
    const char                 *what, *then, *why;
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);
    why = "";

    switch (op->result) {

    case NGX_HTTP_IDEM_OK:
        (void) ngx_atomic_fetch_add(&sh->counters.landed, 1);

        level = NGX_LOG_NOTICE;
        what = "a commit that was kept is in";
        then = " now";
        break;

    case NGX_HTTP_IDEM_FULL:
        (void) ngx_atomic_fetch_add(&sh->counters.landed, 1);

        ngx_http_idem_store_event(o->layer.named,
                                  NGX_HTTP_IDEM_EVENT_STORAGE_ERROR, op->id,
                                  "no room for the response");

        level = NGX_LOG_ERR;
        what = "there is no room in";
        then = " for a response that was kept, its retry is refused";
        break;

    case NGX_HTTP_IDEM_LOST:
        if (op->running) {
            level = NGX_LOG_INFO;
            what = "a commit that is kept has to wait, another request has "
                   "taken over in";
            then = " and still runs";
            break;
        }

        (void) ngx_atomic_fetch_add(&sh->counters.lost, 1);

        ngx_http_idem_metrics_count(o->layer.named->metrics,
                                    NGX_HTTP_IDEM_COUNT_LEASE_LOST);
        ngx_http_idem_store_event(o->layer.named,
                                  NGX_HTTP_IDEM_EVENT_LOCK_LOST, op->id,
                                  "outbox");

        level = NGX_LOG_WARN;
        what = "a commit that was kept is dropped, another request had taken "
               "over in";
        then = " meanwhile";
        break;

    default:
        level = NGX_LOG_INFO;
        what = "a commit that is kept failed again in";
        then = ": ";
        why = op->error ? op->error : "no answer";
        break;
    }

    ngx_log_error(level, op->log, 0,
                  "idempotency: %s store \"%V\"%s%s, record %*xs", what,
                  &o->layer.named->name, then, why, (size_t) 8, op->id);
}


/* unacknowledged commits that expired did reach the store: not logged */

void
ngx_http_idem_outbox_expired(ngx_http_idem_outbox_t *o)
{
    ngx_uint_t                  n, known;
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    ngx_http_idem_outbox_lock(o);

    n = o->z.zone->expired - sh->expired;
    sh->expired += n;

    known = ngx_min(n, sh->unacknowledged);
    sh->unacknowledged -= known;
    n -= known;

    if (o->z.zone->records == 0) {
        sh->unacknowledged = 0;
    }

    ngx_http_idem_outbox_unlock(o);

    if (n) {
        ngx_log_error(NGX_LOG_WARN, o->tick.log, 0,
                      "idempotency: %ui commits that were kept never reached "
                      "store \"%V\", their time is over",
                      n, &o->layer.named->name);
    }
}
