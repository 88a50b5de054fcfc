
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Administrative operations of the outbox: get and remove also handle records
 * in the outbox.
 *
 * If a record is removed while its commit is being retried, the commit finds
 * the tombstone in the store and is lost (see remove in ..._store.h).  A list
 * has the records of the store only; the metrics tell how many are here.
 *
 * Called through the layers around it; calls the breaker or the backend
 * inside, and the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


static ngx_uint_t ngx_http_idem_outbox_ran(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_outbox_admin_done(ngx_http_idem_op_t *op,
    uintptr_t note);


ngx_int_t
ngx_http_idem_outbox_admin(ngx_http_idem_op_t *op)
{
    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE && op->listed_state
        && ngx_http_idem_outbox_ran(op))
    {
        op->result = NGX_HTTP_IDEM_GONE;
        return NGX_OK;
    }

    return ngx_http_idem_layer_ask(op, ngx_http_idem_layer_inner(op),
                                   op->kind >= NGX_HTTP_IDEM_OP_LIST
                                   ? NULL : ngx_http_idem_outbox_admin_done,
                                   0);
}


/*
 * The store lists a record as in progress whose outcome is kept here: it is
 * not the one that is to be removed.
 */

static ngx_uint_t
ngx_http_idem_outbox_ran(ngx_http_idem_op_t *op)
{
    ngx_uint_t               ran;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_outbox_t  *o;

    o = op->store->conf;

    if (ngx_http_idem_outbox_empty(o)) {
        return 0;
    }

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    ran = item && item->state != NGX_HTTP_IDEM_IN_PROGRESS
          && !ngx_http_idem_op_listed(op, item);

    ngx_http_idem_outbox_unlock(o);

    return ran;
}


static ngx_int_t
ngx_http_idem_outbox_admin_done(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_item_t    *item;
    ngx_http_idem_entry_t   *entry;
    ngx_http_idem_outbox_t  *o;

    o = op->store->conf;

    if (ngx_http_idem_outbox_empty(o)) {
        return NGX_OK;
    }

    /* a store that is down may have the record, too: keep ours */

    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE
        && op->result == NGX_HTTP_IDEM_ERROR)
    {
        return NGX_OK;
    }

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, op->id);

    /*
     * the lock of a request that runs without the store stays: its holder is
     * here
     */

    if (item == NULL
        || (op->kind == NGX_HTTP_IDEM_OP_REMOVE
            && (item->state == NGX_HTTP_IDEM_IN_PROGRESS
                || !ngx_http_idem_op_listed(op, item))))
    {
        ngx_http_idem_outbox_unlock(o);
        return NGX_OK;
    }

    /* only if the store has no entry, which would be newer */

    if (op->list->entries.nelts == 0) {
        entry = ngx_http_idem_zone_entry(&o->z, item, op);

        if (entry) {
            entry->kept = 1;
            op->error = NULL;
            op->result = (op->kind == NGX_HTTP_IDEM_OP_GET)
                         ? NGX_HTTP_IDEM_FOUND : NGX_HTTP_IDEM_OK;
        }
    }

    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE) {
        ngx_http_idem_outbox_remove(o, item);
    }

    ngx_http_idem_outbox_unlock(o);

    return NGX_OK;
}


void
ngx_http_idem_outbox_remove(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (sh->unacknowledged) {
        sh->unacknowledged -= ngx_http_idem_outbox_cause(item);
    }

    ngx_http_idem_zone_remove(&o->z, item);
}


/*
 * Another host removed the record: the store is asked before the commit that
 * is kept here is replayed.  There it is lost, if it is one of before the
 * removal.  The message alone does not tell: it may be late, or forged.  An
 * unknown outcome is not replayed, and is tried soon.
 */

void
ngx_http_idem_outbox_doubt(ngx_http_idem_outbox_t *o, u_char *id)
{
    ngx_http_idem_item_t  *item;

    if (ngx_http_idem_outbox_empty(o)) {
        return;
    }

    ngx_http_idem_outbox_lock(o);

    item = ngx_http_idem_zone_find(&o->z, id);

    if (item && item->state != NGX_HTTP_IDEM_IN_PROGRESS
        && !ngx_http_idem_op_retryable(item)
        && (ngx_msec_int_t) (item->u.locked_until - ngx_current_msec) > 0)
    {
        item->u.locked_until = ngx_current_msec;
    }

    ngx_http_idem_outbox_unlock(o);
}
