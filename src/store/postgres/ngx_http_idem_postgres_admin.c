
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Administrative operations of a PostgreSQL store: get, remove and list.
 *
 * The functions are those of sql/v1/admin.sql.  A list reads the records in
 * the order of their ids; its cursor is the id of the last one, in hex.  A
 * removed record leaves a tombstone row for a while, with a token that no
 * holder has, so that a holder that still runs does not write the record
 * again.
 *
 * Called with the cursor of the client, and with the rows of the reply.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* columns of a row */

enum {
    NGX_HTTP_IDEM_PG_ENTRY_ID = 0,
    NGX_HTTP_IDEM_PG_ENTRY_STATE,
    NGX_HTTP_IDEM_PG_ENTRY_REASON,
    NGX_HTTP_IDEM_PG_ENTRY_LEFT,
    NGX_HTTP_IDEM_PG_ENTRY_STATUS,
    NGX_HTTP_IDEM_PG_ENTRY_SIZE,
    NGX_HTTP_IDEM_PG_ENTRY_HOLD,
    NGX_HTTP_IDEM_PG_ENTRY_CLAIM,
    NGX_HTTP_IDEM_PG_ENTRY_DETAILS,
    NGX_HTTP_IDEM_PG_ENTRY_N,

    /* list: size of the table in bytes, in each row of the first slice */
    NGX_HTTP_IDEM_PG_LIST_HELD = NGX_HTTP_IDEM_PG_ENTRY_N,
    NGX_HTTP_IDEM_PG_LIST_N
};


static ngx_int_t ngx_http_idem_pg_entry(ngx_http_idem_op_t *op,
    PGresult *result, int row);
static void ngx_http_idem_pg_list_next(ngx_http_idem_op_t *op,
    PGresult *result);


/* op->result and op->error are already set for malformed rows */

void
ngx_http_idem_pg_admin_result(ngx_http_idem_pg_call_t *call)
{
    int                     row, rows;
    ngx_int_t               rc;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_claim_t   claim;

    op = call->op;
    rows = PQntuples(call->result);

    if (PQnfields(call->result) != (op->kind == NGX_HTTP_IDEM_OP_LIST
                                    ? NGX_HTTP_IDEM_PG_LIST_N
                                    : NGX_HTTP_IDEM_PG_ENTRY_N))
    {
        return;
    }

    op->error = NULL;

    /* a removal that was resent may find what its first copy has left */

    op->result = op->kind == NGX_HTTP_IDEM_OP_LIST ? NGX_HTTP_IDEM_OK
                 : rows == 0 ? NGX_HTTP_IDEM_GONE
                 : op->kind == NGX_HTTP_IDEM_OP_GET ? NGX_HTTP_IDEM_FOUND
                 : NGX_HTTP_IDEM_OK;

    for (row = 0; row < rows; row++) {
        rc = ngx_http_idem_pg_entry(op, call->result, row);

        if (rc == NGX_ERROR) {
            ngx_http_idem_op_error(op, "no memory for a list");
            return;
        }

        if (rc != NGX_OK && op->kind == NGX_HTTP_IDEM_OP_REMOVE
            && ngx_http_idem_pg_number(call->result, row,
                                       NGX_HTTP_IDEM_PG_ENTRY_STATE)
               == 0)
        {
            /*
             * A tombstone: if this statement was resent, its first copy left
             * it.  One that was left where no record was has an empty claim.
             */

            op->result = (call->tries > 1
                          && ngx_http_idem_pg_claim(call->result, row,
                                         NGX_HTTP_IDEM_PG_ENTRY_CLAIM, &claim)
                             == NGX_OK
                          && claim.time)
                         ? NGX_HTTP_IDEM_OK : NGX_HTTP_IDEM_GONE;
            return;
        }

        /* a list skips rows that can't be decoded */

        if (rc != NGX_OK && op->kind != NGX_HTTP_IDEM_OP_LIST) {
            ngx_http_idem_op_bad_record(op, "its row is not one of ours");
            return;
        }
    }

    if (op->kind == NGX_HTTP_IDEM_OP_LIST) {
        ngx_http_idem_pg_list_next(op, call->result);
    }
}


/* NGX_DECLINED: not a valid record; NGX_ERROR: no memory */

static ngx_int_t
ngx_http_idem_pg_entry(ngx_http_idem_op_t *op, PGresult *result, int row)
{
    int                     i;
    int64_t                 n[NGX_HTTP_IDEM_PG_ENTRY_CLAIM];
    ngx_http_idem_claim_t   claim;
    ngx_http_idem_entry_t  *entry;

    for (i = NGX_HTTP_IDEM_PG_ENTRY_STATE;
         i < NGX_HTTP_IDEM_PG_ENTRY_CLAIM;
         i++)
    {
        n[i] = ngx_http_idem_pg_number(result, row, i);
    }

    if (n[NGX_HTTP_IDEM_PG_ENTRY_STATE] < NGX_HTTP_IDEM_IN_PROGRESS
        || n[NGX_HTTP_IDEM_PG_ENTRY_STATE] > NGX_HTTP_IDEM_UNUSABLE
        || n[NGX_HTTP_IDEM_PG_ENTRY_REASON] < 0
        || n[NGX_HTTP_IDEM_PG_ENTRY_REASON] > NGX_HTTP_IDEM_REASON_DELETED
        || PQgetlength(result, row, NGX_HTTP_IDEM_PG_ENTRY_ID)
           != NGX_HTTP_IDEM_ID_LEN
        || ngx_http_idem_pg_claim(result, row, NGX_HTTP_IDEM_PG_ENTRY_CLAIM,
                                  &claim)
           != NGX_OK)
    {
        return NGX_DECLINED;
    }

    entry = ngx_http_idem_pg_api->entry(op);
    if (entry == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(entry->id, PQgetvalue(result, row, NGX_HTTP_IDEM_PG_ENTRY_ID),
               NGX_HTTP_IDEM_ID_LEN);

    entry->state = (ngx_http_idem_state_e) n[NGX_HTTP_IDEM_PG_ENTRY_STATE];
    entry->reason = (ngx_http_idem_reason_e) n[NGX_HTTP_IDEM_PG_ENTRY_REASON];
    entry->claim = claim;
    entry->left = (ngx_msec_t) ngx_max(n[NGX_HTTP_IDEM_PG_ENTRY_LEFT], 0);
    entry->status = (ngx_uint_t) ngx_max(n[NGX_HTTP_IDEM_PG_ENTRY_STATUS], 0);
    entry->size = (size_t) ngx_max(n[NGX_HTTP_IDEM_PG_ENTRY_SIZE], 0);
    entry->hold = (n[NGX_HTTP_IDEM_PG_ENTRY_HOLD] == 1);

    return ngx_http_idem_pg_api->entry_details(op, entry,
               (u_char *) PQgetvalue(result, row,
                                     NGX_HTTP_IDEM_PG_ENTRY_DETAILS),
               (size_t) PQgetlength(result, row,
                                    NGX_HTTP_IDEM_PG_ENTRY_DETAILS));
}


/*
 * A slice that is not full is the last one.  An empty slice is one row without
 * an id.
 */

static void
ngx_http_idem_pg_list_next(ngx_http_idem_op_t *op, PGresult *result)
{
    int      last;
    int64_t  held;

    held = ngx_http_idem_pg_number(result, 0, NGX_HTTP_IDEM_PG_LIST_HELD);

    op->list->held = (size_t) ngx_max(held, 0);
    op->list->cursor.len = 0;

    last = PQntuples(result) - 1;

    if (last + 1 < NGX_HTTP_IDEM_PG_SLICE
        || PQgetlength(result, last, NGX_HTTP_IDEM_PG_ENTRY_ID)
           != NGX_HTTP_IDEM_ID_LEN)
    {
        return;
    }

    op->list->cursor.data = op->list->next;
    op->list->cursor.len = ngx_hex_dump(op->list->next,
              (u_char *) PQgetvalue(result, last, NGX_HTTP_IDEM_PG_ENTRY_ID),
              NGX_HTTP_IDEM_ID_LEN)
        - op->list->next;
}
