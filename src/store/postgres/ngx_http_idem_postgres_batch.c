
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Batches: all calls that are queued in one iteration of the event loop are
 * sent as one transaction, sorted by record id, with one Sync.
 *
 * The order prevents deadlocks between batches of different connections.  It
 * is stable, so the calls of one record stay in order.  On a connection for
 * commits the next batch waits for the results of this one: that makes few
 * large transactions, each with one flush to disk.
 *
 * A result is valid only after the Sync of its batch: if a later statement of
 * the batch fails, earlier ones are rolled back.  Then the others are resent,
 * each with a Sync of its own.
 *
 * Called by the connection to send, and when there is input.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_BATCH_MAX    128

/* size limit of the responses in a batch: a large one delays few small ones */
#define NGX_HTTP_IDEM_PG_BATCH_BYTES  (256 * 1024)

/* attempts of a statement that fails temporarily */
#define NGX_HTTP_IDEM_PG_TRIES      32


static ngx_int_t ngx_http_idem_pg_batch_send(ngx_http_idem_pg_conn_t *conn);
static ngx_uint_t ngx_http_idem_pg_batch_take(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t **calls);
static ngx_int_t ngx_http_idem_pg_batch_order(const void *one,
    const void *two);
static ngx_uint_t ngx_http_idem_pg_batch_durable(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t **calls, ngx_uint_t n);
static void ngx_http_idem_pg_batch_result(
    ngx_http_idem_pg_batch_t *batch, PGresult *result);
static void ngx_http_idem_pg_batch_done(
    ngx_http_idem_pg_conn_t *conn, ngx_http_idem_pg_batch_t *batch);
static ngx_int_t ngx_http_idem_pg_batch_failed(
    ngx_http_idem_pg_conn_t *conn, ngx_http_idem_pg_batch_t *batch);
static ngx_http_idem_pg_call_t *ngx_http_idem_pg_batch_culprit(
    ngx_http_idem_pg_batch_t *batch, PGresult **error);
static void ngx_http_idem_pg_call_requeue(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t *call);
static void ngx_http_idem_pg_notified(ngx_http_idem_pg_conn_t *conn);


#define ngx_http_idem_pg_is_error(result)                                     \
    (PQresultStatus(result) == PGRES_FATAL_ERROR                              \
     || PQresultStatus(result) == PGRES_BAD_RESPONSE)


ngx_int_t
ngx_http_idem_pg_batches_send(ngx_http_idem_pg_conn_t *conn)
{
    while (!ngx_queue_empty(&conn->unsent)) {

        if (conn->role == NGX_HTTP_IDEM_PG_COMMITS
            && !ngx_queue_empty(&conn->batches))
        {
            break;
        }

        if (ngx_http_idem_pg_batch_send(conn) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_pg_batch_send(ngx_http_idem_pg_conn_t *conn)
{
    ngx_uint_t                 i, n, durable;
    ngx_http_idem_pg_batch_t  *batch;
    ngx_http_idem_pg_call_t   *calls[NGX_HTTP_IDEM_PG_BATCH_MAX];

    batch = ngx_calloc(sizeof(ngx_http_idem_pg_batch_t), ngx_cycle->log);
    if (batch == NULL) {
        return NGX_ERROR;
    }

    n = ngx_http_idem_pg_batch_take(conn, calls);

    ngx_sort(calls, n, sizeof(calls[0]), ngx_http_idem_pg_batch_order);

    /* marked as sent first: if the connection is dropped, they are resent */

    ngx_queue_init(&batch->calls);
    ngx_queue_insert_tail(&conn->batches, &batch->queue);

    for (i = 0; i < n; i++) {
        ngx_queue_remove(&calls[i]->queue);
        ngx_queue_insert_tail(&batch->calls, &calls[i]->queue);

        calls[i]->sent = 1;
        calls[i]->tries++;
        calls[i]->time = ngx_current_msec;
    }

    batch->next = ngx_queue_head(&batch->calls);

    /* behind a pooler the session is shared, and has no settings of ours */

    durable = ngx_http_idem_pg_batch_durable(conn, calls, n);

    if (conn->pg->pooler || durable != ngx_http_idem_pg_durable(conn)) {
        batch->prelude = 1;

        if (ngx_http_idem_pg_settings_send(conn, 0, durable) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    for (i = 0; i < n; i++) {
        if (ngx_http_idem_pg_step_send(conn, calls[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return PQpipelineSync(conn->link) ? NGX_OK : NGX_ERROR;
}


/* takes the first call if it is single, otherwise all up to a single one */

static ngx_uint_t
ngx_http_idem_pg_batch_take(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t **calls)
{
    size_t                    size;
    ngx_uint_t                n;
    ngx_queue_t              *q;
    ngx_http_idem_pg_call_t  *call;

    n = 0;
    size = 0;

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent)
         && n < NGX_HTTP_IDEM_PG_BATCH_MAX
         && size < NGX_HTTP_IDEM_PG_BATCH_BYTES;
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

        if (call->single && n) {
            break;
        }

        calls[n++] = call;

        if (call->single) {
            break;
        }

        if (call->step == NGX_HTTP_IDEM_OP_COMMIT) {
            size += call->op->size;
        }
    }

    return n;
}


static ngx_int_t
ngx_http_idem_pg_batch_order(const void *one, const void *two)
{
    ngx_http_idem_pg_call_t  *first, *second;

    first = *(ngx_http_idem_pg_call_t **) one;
    second = *(ngx_http_idem_pg_call_t **) two;

    return ngx_memcmp(first->id, second->id, NGX_HTTP_IDEM_ID_LEN);
}


/*
 * Whether a transaction must be on disk before the server replies: if the
 * connection is durable, or if the batch has a commit without a response, or
 * acquires or releases a lock under hold.  Such a lock must survive a crash of
 * the server as a commit does, and would not expire if its release was lost.
 */

static ngx_uint_t
ngx_http_idem_pg_batch_durable(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t **calls, ngx_uint_t n)
{
    ngx_uint_t  i;

    if (ngx_http_idem_pg_durable(conn)) {
        return 1;
    }

    if (conn->pg->durable == NGX_HTTP_IDEM_PG_DURABLE_OFF) {
        return 0;
    }

    for (i = 0; i < n; i++) {
        if (calls[i]->step == NGX_HTTP_IDEM_OP_COMMIT
            || ((calls[i]->step == NGX_HTTP_IDEM_OP_BEGIN
                 || calls[i]->step == NGX_HTTP_IDEM_OP_RELEASE)
                && calls[i]->op->hold))
        {
            return 1;
        }
    }

    return 0;
}


/* the next result that was received completely, or NULL */

PGresult *
ngx_http_idem_pg_next_result(PGconn *link)
{
    PGresult    *result;
    ngx_uint_t   nulls;

    /* NULL ends the result of a statement; more than two: no more input */

    for (nulls = 0; nulls < 3 && !PQisBusy(link); nulls++) {
        result = PQgetResult(link);

        if (result) {
            return result;
        }
    }

    return NULL;
}


/* results come in the order of the statements, then that of the Sync */

void
ngx_http_idem_pg_batches_read(ngx_http_idem_pg_conn_t *conn)
{
    PGconn                    *link;
    PGresult                  *result;
    ngx_http_idem_pg_batch_t  *batch;

    link = conn->link;

    ngx_http_idem_pg_notified(conn);

    while (!ngx_queue_empty(&conn->batches)) {

        result = ngx_http_idem_pg_next_result(link);

        if (result == NULL) {
            break;
        }

        batch = ngx_queue_data(ngx_queue_head(&conn->batches),
                               ngx_http_idem_pg_batch_t, queue);

        if (PQresultStatus(result) != PGRES_PIPELINE_SYNC) {
            ngx_http_idem_pg_batch_result(batch, result);

            if (PQstatus(link) == CONNECTION_BAD) {
                break;
            }

            continue;
        }

        PQclear(result);

        ngx_http_idem_pg_batch_done(conn, batch);

        if (conn->link != link) {
            return;
        }
    }

    if (PQstatus(link) == CONNECTION_BAD) {
        ngx_http_idem_pg_broken(conn);
        return;
    }

    if (!ngx_queue_empty(&conn->unsent)) {
        ngx_http_idem_pg_flush(conn);
    }

    ngx_http_idem_pg_idle(conn);
}


/*
 * The payload is the id in hex; a "-" before it means that the record was
 * removed by an administrator.  Other payloads on the channel are ignored.
 */

static void
ngx_http_idem_pg_notified(ngx_http_idem_pg_conn_t *conn)
{
    u_char      *p;
    PGnotify    *notify;
    ngx_uint_t   removed;

    for ( ;; ) {
        notify = PQnotifies(conn->link);

        if (notify == NULL) {
            return;
        }

        p = (u_char *) notify->extra;
        removed = (*p == '-');
        p += removed;

        ngx_http_idem_pg_api->message(&conn->pg->remote, p, ngx_strlen(p),
                                      removed);

        PQfreemem(notify);
    }
}


static void
ngx_http_idem_pg_batch_result(ngx_http_idem_pg_batch_t *batch,
    PGresult *result)
{
    ngx_http_idem_pg_call_t  *call;

    if (batch->prelude) {
        batch->prelude = 0;

        if (!ngx_http_idem_pg_is_error(result)) {
            PQclear(result);
            return;
        }

    } else if (batch->next != ngx_queue_sentinel(&batch->calls)) {
        call = ngx_queue_data(batch->next, ngx_http_idem_pg_call_t, queue);
        batch->next = ngx_queue_next(batch->next);
        call->result = result;
        return;
    }

    /* of the transaction as a whole */

    if (batch->error == NULL && ngx_http_idem_pg_is_error(result)) {
        batch->error = result;
        return;
    }

    PQclear(result);
}


static void
ngx_http_idem_pg_batch_done(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_batch_t *batch)
{
    ngx_queue_t              *q;
    ngx_http_idem_pg_call_t  *call;

    ngx_queue_remove(&batch->queue);

    if (ngx_http_idem_pg_batch_failed(conn, batch) == NGX_OK) {

        /* a handler may submit operations, or cancel others of this batch */

        while (!ngx_queue_empty(&batch->calls)) {
            q = ngx_queue_head(&batch->calls);
            call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

            if (call->result == NULL) {

                /*
                 * a Sync without this result: libpq and this module disagree
                 * on it
                 */

                ngx_http_idem_pg_call_requeue(conn, call);
                continue;
            }

            ngx_http_idem_pg_deliver(call, 0);
        }
    }

    PQclear(batch->error);
    ngx_free(batch);
}


/* NGX_OK: no failure; otherwise all calls of the batch have been handled */

static ngx_int_t
ngx_http_idem_pg_batch_failed(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_batch_t *batch)
{
    u_char                      text[NGX_HTTP_IDEM_PG_ERROR_LEN];
    PGresult                   *error;
    const char                 *message;
    ngx_uint_t                  broken;
    ngx_queue_t                *q;
    ngx_http_idem_pg_call_t    *call, *culprit;
    ngx_http_idem_pg_verdict_e  verdict;

    culprit = ngx_http_idem_pg_batch_culprit(batch, &error);

    if (error == NULL) {
        return NGX_OK;
    }

    verdict = ngx_http_idem_pg_step_failed(culprit, error);

    broken = (verdict == NGX_HTTP_IDEM_PG_BROKEN);

    if (broken) {
        message = PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY);

        ngx_http_idem_pg_error_line(text, text + sizeof(text) - 1,
                                    message ? message : "it failed");
    }

    if (culprit && culprit->tries >= NGX_HTTP_IDEM_PG_TRIES
        && verdict == NGX_HTTP_IDEM_PG_AGAIN)
    {
        verdict = NGX_HTTP_IDEM_PG_FAILED;
    }

    if (culprit && verdict == NGX_HTTP_IDEM_PG_AGAIN_BARE) {
        culprit->bare = 1;
    }

    if (verdict == NGX_HTTP_IDEM_PG_FAILED) {
        /* completed last, after the others are queued again */
        if (culprit) {
            ngx_queue_remove(&culprit->queue);
            ngx_queue_init(&culprit->queue);
        }

    } else {
        culprit = NULL;
    }

    /* ahead of later calls, and in their former order */

    while (!ngx_queue_empty(&batch->calls)) {
        q = ngx_queue_last(&batch->calls);
        call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

        call->single = !broken;
        ngx_http_idem_pg_call_requeue(conn, call);
    }

    if (broken) {
        ngx_http_idem_pg_drop(conn, "%s", text);

    } else {
        ngx_http_idem_pg_flush(conn);
    }

    if (culprit) {
        ngx_http_idem_pg_deliver(culprit, 1);
    }

    return NGX_DECLINED;
}


/* the call that failed; NULL: the transaction as a whole did */

static ngx_http_idem_pg_call_t *
ngx_http_idem_pg_batch_culprit(ngx_http_idem_pg_batch_t *batch,
    PGresult **error)
{
    ngx_queue_t              *q;
    ngx_http_idem_pg_call_t  *call;

    *error = batch->error;

    for (q = ngx_queue_head(&batch->calls);
         q != ngx_queue_sentinel(&batch->calls) && *error == NULL;
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

        if (call->result && ngx_http_idem_pg_is_error(call->result)) {
            *error = call->result;
            return call;
        }
    }

    /* the error of a transaction with one call is that of the call */

    q = ngx_queue_head(&batch->calls);

    if (*error && q == ngx_queue_last(&batch->calls)
        && q != ngx_queue_sentinel(&batch->calls))
    {
        return ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);
    }

    return NULL;
}


/* puts a call back at the head of the send queue, unless it was cancelled */

static void
ngx_http_idem_pg_call_requeue(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t *call)
{
    if (call->op == NULL) {
        ngx_http_idem_pg_deliver(call, 1);
        return;
    }

    PQclear(call->result);

    call->result = NULL;
    call->sent = 0;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_head(&conn->unsent, &call->queue);
}


/* the connection is closed: all statements in flight have to be resent */

void
ngx_http_idem_pg_batches_requeue(ngx_http_idem_pg_conn_t *conn)
{
    ngx_queue_t               *q;
    ngx_http_idem_pg_batch_t  *batch;
    ngx_http_idem_pg_call_t   *call;

    while (!ngx_queue_empty(&conn->batches)) {
        q = ngx_queue_last(&conn->batches);
        batch = ngx_queue_data(q, ngx_http_idem_pg_batch_t, queue);

        while (!ngx_queue_empty(&batch->calls)) {
            call = ngx_queue_data(ngx_queue_last(&batch->calls),
                                  ngx_http_idem_pg_call_t, queue);

            ngx_http_idem_pg_call_requeue(conn, call);
        }

        ngx_queue_remove(q);
        PQclear(batch->error);
        ngx_free(batch);
    }
}
