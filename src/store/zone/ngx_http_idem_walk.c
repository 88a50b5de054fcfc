
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The records of a zone as administrators see them: one record, or a slice of
 * all.
 *
 * A slice is a number of buckets.  The lock is held for one slice only, and
 * the work for a slice is bounded.  Records that are created or removed
 * between two slices may be listed or not; all others are listed once.
 *
 * Called by the embedded store and by the outbox.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_zone.h"


/* limits of a slice: about ten microseconds under the lock */
#define NGX_HTTP_IDEM_WALK_BUCKETS  1024
#define NGX_HTTP_IDEM_WALK_RECORDS  128


/*
 * Whether administrators see the record.  They see neither a record that has
 * expired and is kept for its grace, nor the tombstone of a removed record.
 */

ngx_uint_t
ngx_http_idem_zone_visible(ngx_http_idem_item_t *item)
{
    if ((ngx_msec_int_t) (item->expires - ngx_current_msec) <= 0) {
        return 0;
    }

    return ngx_http_idem_zone_leased(item)
           || (ngx_msec_int_t) (item->until - ngx_current_msec) > 0;
}


ngx_http_idem_entry_t *
ngx_http_idem_zone_entry(ngx_http_idem_records_t *z,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    ngx_msec_int_t          left;
    ngx_http_idem_entry_t  *entry;

    entry = ngx_http_idem_op_entry(op);
    if (entry == NULL) {
        return NULL;
    }

    /* an unknown outcome outlives its lease */

    left = (ngx_msec_int_t)
               ((item->reason == NGX_HTTP_IDEM_REASON_UNKNOWN ? item->expires
                                                              : item->until)
                - ngx_current_msec);

    ngx_memcpy(entry->id, item->id, NGX_HTTP_IDEM_ID_LEN);

    entry->state = item->state;
    entry->reason = item->reason;
    entry->claim = item->claim;
    entry->hold = item->hold ? 1 : 0;
    entry->left = (ngx_msec_t) ngx_max(left, 0);

    if (item->state == NGX_HTTP_IDEM_COMPLETED) {
        entry->size = item->size;
        entry->status = ngx_http_idem_response_status(item->data,
                            ngx_min(item->size, NGX_HTTP_IDEM_ITEM_ROOM));
    }

    ngx_http_idem_zone_copy_details(z, item, op->pool,
                                    NGX_HTTP_IDEM_ENTRY_DETAILS,
                                    &entry->details);

    if (item->details && entry->details.len == 0) {
        ngx_http_idem_op_error(op, "no memory for a list");
        return NULL;
    }

    return entry;
}


/* starts at "bucket"; returns the start of the next slice, 0: that was all */

ngx_uint_t
ngx_http_idem_zone_walk(ngx_http_idem_records_t *z,
    ngx_http_idem_op_t *op, ngx_uint_t bucket)
{
    ngx_uint_t             i, last;
    ngx_http_idem_item_t  *item;

    op->result = NGX_HTTP_IDEM_OK;

    ngx_http_idem_zone_lock(z);

    last = z->zone->mask + 1;

    for (i = 0; i < NGX_HTTP_IDEM_WALK_BUCKETS && bucket < last; i++) {

        for (item = z->zone->buckets[bucket]; item; item = item->next) {

            if (ngx_http_idem_zone_visible(item)
                && ngx_http_idem_zone_entry(z, item, op) == NULL)
            {
                ngx_http_idem_zone_unlock(z);
                return 0;
            }
        }

        bucket++;

        if (op->list->entries.nelts >= NGX_HTTP_IDEM_WALK_RECORDS) {
            break;
        }
    }

    ngx_http_idem_zone_unlock(z);

    return bucket < last ? bucket : 0;
}
