
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Administrative operations of the embedded store: get, remove and list.
 *
 * A record that is not in progress is removed at once.  A record in progress
 * leaves a tombstone, since its holder still runs: its renewal or commit
 * would write a missing record again.  The tombstone is an expired record
 * with a zero token; it stays until the lock would have expired.  A begin
 * takes the record as if it were missing.
 *
 * Called through the table of backends; calls the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/memory/ngx_http_idem_memory.h"


/* ms before now: before any waiting request arrived */
#define NGX_HTTP_IDEM_MEMORY_LONG_AGO  0x3fffffff


static uint64_t ngx_http_idem_memory_leave_tombstone(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item);
static void ngx_http_idem_memory_list(ngx_http_idem_memory_t *m,
    ngx_http_idem_op_t *op);


ngx_int_t
ngx_http_idem_memory_admin(ngx_http_idem_op_t *op)
{
    uint64_t                 waiting;
    ngx_http_idem_item_t    *item;
    ngx_http_idem_memory_t  *m;

    m = op->store->conf;

    if (op->kind == NGX_HTTP_IDEM_OP_LIST) {
        ngx_http_idem_memory_list(m, op);
        return NGX_OK;
    }

    waiting = 0;
    op->result = NGX_HTTP_IDEM_GONE;

    ngx_http_idem_memory_lock(m);

    item = ngx_http_idem_zone_find(&m->z, op->id);

    if (item && ngx_http_idem_zone_visible(item)
        && ngx_http_idem_op_listed(op, item)
        && ngx_http_idem_zone_entry(&m->z, item, op))
    {
        op->result = NGX_HTTP_IDEM_OK;

        if (op->kind == NGX_HTTP_IDEM_OP_GET) {
            op->result = NGX_HTTP_IDEM_FOUND;

        } else if (item->state == NGX_HTTP_IDEM_IN_PROGRESS) {
            waiting = ngx_http_idem_memory_leave_tombstone(m, item);

        } else {
            ngx_http_idem_zone_remove(&m->z, item);
        }
    }

    ngx_http_idem_memory_unlock(m, op->log);
    ngx_http_idem_wake(m, op->id, waiting);

    return NGX_OK;
}


/* leaves a tombstone; returns the workers with waiters */

static uint64_t
ngx_http_idem_memory_leave_tombstone(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item)
{
    uint64_t  waiting;

    ngx_http_idem_zone_details(&m->z, item, NULL);
    ngx_http_idem_zone_free_pieces(&m->z, item);

    ngx_http_idem_zone_change(&m->z, item);

    waiting = item->u.waiting;

    item->u.waiting = 0;
    item->hold = 0;
    item->again = 0;
    item->until = ngx_current_msec - NGX_HTTP_IDEM_MEMORY_LONG_AGO;

    ngx_memzero(item->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_http_idem_zone_state(&m->z, item, NGX_HTTP_IDEM_UNUSABLE,
                             NGX_HTTP_IDEM_REASON_DELETED);

    ngx_http_idem_zone_changed(&m->z);

    return waiting;
}


/* the cursor is the number of a bucket */

static void
ngx_http_idem_memory_list(ngx_http_idem_memory_t *m, ngx_http_idem_op_t *op)
{
    ngx_int_t   bucket;
    ngx_uint_t  next;

    bucket = 0;

    if (op->list->cursor.len) {
        bucket = ngx_atoi(op->list->cursor.data, op->list->cursor.len);

        if (bucket == NGX_ERROR) {
            ngx_http_idem_op_bad_record(op, "the cursor is not one of this "
                                            "store");
            return;
        }
    }

    next = ngx_http_idem_zone_walk(&m->z, op, bucket);

    op->list->cursor.len = 0;

    if (next == 0) {
        return;
    }

    op->list->cursor.data = op->list->next;
    op->list->cursor.len = ngx_sprintf(op->list->next, "%ui", next)
                           - op->list->next;
}
