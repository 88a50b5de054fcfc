
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The purge of expired records.  One worker of each host requests it
 * periodically, on a connection of its own; an advisory lock in the database
 * lets one host at a time through.  A full batch is soon followed by another.
 * The semantics of records do not depend on the purge: begin ignores expired
 * rows.  If there is a log for events, the database returns the removed
 * records, and the host that removed them logs the events.
 *
 * Called when a worker starts, by its timer, and with the result.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* pause between batches, so that others can lock their rows, ms */
#define NGX_HTTP_IDEM_PG_PURGE_NEXT  10


static void ngx_http_idem_pg_purge_handler(ngx_event_t *ev);
static ngx_uint_t ngx_http_idem_pg_purge_silent(
    ngx_http_idem_pg_conn_t *conn);


void
ngx_http_idem_pg_purge_init(ngx_http_idem_pg_t *pg)
{
    if (!pg->purge || !ngx_housekeeping_is_ours()) {
        return;
    }

    ngx_housekeeping_init(&pg->purge_timer, ngx_http_idem_pg_purge_handler,
                          pg);
    ngx_add_timer(&pg->purge_timer, pg->purge_every);
}


static void
ngx_http_idem_pg_purge_handler(ngx_event_t *ev)
{
    ngx_http_idem_pg_t       *pg;
    ngx_http_idem_pg_conn_t  *conn;

    pg = ev->data;

    if (ngx_exiting || ngx_terminate) {
        return;
    }

    conn = &pg->conns[pg->nconns - 1];

    ngx_add_timer(ev, pg->purge_every);

    if (ngx_http_idem_pg_purge_silent(conn)) {
        ngx_http_idem_pg_drop(conn, "no reply within %M ms", pg->timeout);
    }

    if (ngx_queue_empty(&conn->unsent) && ngx_queue_empty(&conn->batches)) {
        (void) ngx_http_idem_pg_call(conn, pg->store->log && !pg->purge_silent
                                           ? NGX_HTTP_IDEM_PG_STEP_EXPIRE
                                           : NGX_HTTP_IDEM_PG_STEP_PURGE,
                                     NULL);
    }
}


/*
 * A purge is no operation with a timeout of its own.  The server ends it after
 * "timeout", so one without an answer for twice as long gets none.
 */

static ngx_uint_t
ngx_http_idem_pg_purge_silent(ngx_http_idem_pg_conn_t *conn)
{
    ngx_queue_t               *q;
    ngx_http_idem_pg_call_t   *call;
    ngx_http_idem_pg_batch_t  *batch;

    if (ngx_queue_empty(&conn->batches)) {
        return 0;
    }

    q = ngx_queue_head(&conn->batches);
    batch = ngx_queue_data(q, ngx_http_idem_pg_batch_t, queue);

    q = ngx_queue_head(&batch->calls);
    call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

    return ngx_current_msec - call->time >= 2 * conn->pg->timeout
           && ngx_current_msec - conn->last_read >= 2 * conn->pg->timeout;
}


/* "removed": number of rows; NGX_BUSY: another host purges; NGX_ERROR */

void
ngx_http_idem_pg_purged(ngx_http_idem_pg_t *pg, ngx_int_t removed)
{
    if (!pg->purge) {
        return;
    }

    if (removed != NGX_BUSY) {
        ngx_http_idem_pg_api->purged(pg->store, removed);
    }

    if (removed >= pg->purge_batch) {
        ngx_housekeeping_within(&pg->purge_timer,
                                NGX_HTTP_IDEM_PG_PURGE_NEXT);
    }
}


/* number of rows: the statement returns that, or the rows themselves */

ngx_int_t
ngx_http_idem_pg_removed(ngx_http_idem_pg_call_t *call)
{
    int       i, n;
    u_char   *id;
    int64_t   purged;

    static const ngx_http_idem_pg_expired_t  columns = { 1, 2, 3, 4 };

    if (call->step == NGX_HTTP_IDEM_PG_STEP_PURGE) {
        purged = ngx_http_idem_pg_number(call->result, 0, 0);

        return (purged < 0) ? NGX_BUSY : (ngx_int_t) purged;
    }

    n = PQntuples(call->result);

    for (i = 0; i < n && PQnfields(call->result) == 5; i++) {

        if (PQgetlength(call->result, i, 0) == NGX_HTTP_IDEM_ID_LEN) {
            id = (u_char *) PQgetvalue(call->result, i, 0);
            ngx_http_idem_pg_expired(call->conn->pg, call->result, i, id,
                                     &columns);
        }
    }

    return n;
}


void
ngx_http_idem_pg_expired(ngx_http_idem_pg_t *pg, PGresult *result, int row,
    u_char *id, const ngx_http_idem_pg_expired_t *at)
{
    int64_t                  ttl, ago;
    ngx_http_idem_claim_t    claim;
    ngx_http_idem_expired_t  expired;

    if (ngx_http_idem_pg_claim(result, row, at->claim, &claim) != NGX_OK) {
        return;
    }

    ttl = ngx_http_idem_pg_number(result, row, at->ttl);
    ago = ngx_http_idem_pg_number(result, row, at->ago);

    expired.id = id;
    expired.time = claim.time;
    expired.ttl = (uint64_t) ngx_max(ttl, 0);
    expired.ago = (uint64_t) ngx_max(ago, 0);
    expired.details.data = (u_char *) PQgetvalue(result, row, at->details);
    expired.details.len = (size_t) PQgetlength(result, row, at->details);

    ngx_http_idem_pg_api->expired(pg->store, &expired);
}
