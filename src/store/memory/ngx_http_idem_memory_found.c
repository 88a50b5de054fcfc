
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The result of a begin that finds a record in the embedded store.  A large
 * response is read piece by piece.  The record may change meanwhile: the
 * begin looks it up again before each piece, and its result is the record
 * that it finds then.
 *
 * Called by begin, with the zone locked; calls the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/memory/ngx_http_idem_memory.h"


/* a record that expires within this time is read at once, ms */
#define NGX_HTTP_IDEM_READ_TIME  2000


static ngx_int_t ngx_http_idem_memory_read(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);


ngx_int_t
ngx_http_idem_memory_found(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    ngx_int_t               rc;
    ngx_msec_int_t          left;
    ngx_http_idem_found_t  *found;

    if (item->state == NGX_HTTP_IDEM_COMPLETED
        && item->size > NGX_HTTP_IDEM_PIECE)
    {
        rc = ngx_http_idem_memory_read(m, item, op);

        if (rc != NGX_OK) {
            return rc == NGX_AGAIN ? NGX_AGAIN : NGX_OK;
        }

    } else {
        ngx_http_idem_zone_found(&m->z, item, op);
    }

    found = &op->found;

    left = (ngx_msec_int_t) (item->until - ngx_current_msec);

    if (left > 0) {
        return NGX_OK;
    }

    found->left = 0;

    if (item->state == NGX_HTTP_IDEM_IN_PROGRESS) {

        /* the lease expired, but the record is held or of another request */

        found->left = item->expires - ngx_current_msec;
        found->state = NGX_HTTP_IDEM_UNUSABLE;
        found->reason = NGX_HTTP_IDEM_REASON_UNKNOWN;
    }

    return NGX_OK;
}


/* NGX_AGAIN: there are more pieces; NGX_ERROR: op->result is set */

static ngx_int_t
ngx_http_idem_memory_read(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op)
{
    size_t                 piece;
    ngx_int_t              rc;
    ngx_http_idem_copy_t  *copy;

    copy = op->state_data;

    if (copy == NULL || !ngx_http_idem_zone_copy_valid(item, copy)) {

        if (copy) {
            ngx_http_idem_memory_found_other(op);
        }

        copy = ngx_pcalloc(op->pool, sizeof(ngx_http_idem_copy_t));

        if (copy) {
            copy->pos = ngx_pnalloc(op->pool, item->size);
        }

        if (copy == NULL || copy->pos == NULL) {
            ngx_http_idem_op_bad_record(op, "no memory for the response");
            return NGX_ERROR;
        }

        copy->out = copy->pos;
        op->state_data = copy;
    }

    piece = (ngx_msec_int_t) (item->expires - ngx_current_msec)
            < NGX_HTTP_IDEM_READ_TIME
            ? NGX_MAX_SIZE_T_VALUE : NGX_HTTP_IDEM_PIECE;

    rc = ngx_http_idem_zone_read_piece(&m->z, item, copy, piece);

    if (rc == NGX_AGAIN) {
        copy->time = ngx_current_msec;
        return NGX_AGAIN;
    }

    if (rc == NGX_ERROR) {
        ngx_http_idem_op_bad_record(op, "the response is not whole");
        return NGX_ERROR;
    }

    ngx_http_idem_zone_found_record(&m->z, item, op);

    op->found.response.data = copy->pos;
    op->found.response.len = item->size;

    op->state_data = NULL;

    return NGX_OK;
}


void
ngx_http_idem_memory_found_other(ngx_http_idem_op_t *op)
{
    ngx_http_idem_copy_t  *copy;

    copy = op->state_data;
    op->state_data = NULL;

    (void) ngx_pfree(op->pool, copy->pos);
}
