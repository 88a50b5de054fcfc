
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The backend of the PostgreSQL store: operations, their timeouts, their
 * completion, and waiters.
 *
 * An operation is queued as a call on the connection of its record.
 * "timeout" limits the whole operation, including a connect.  The release
 * that follows an abandoned begin (..._remote.c) uses the same connection.
 *
 * While no server can be reached, begin and watch fail at once after a few
 * attempts.  Renew, commit and release wait until their timeout, since the
 * application has run.
 *
 * A begin or a watch marks the record as waited for.  Then a commit or a
 * release sends a notification with the record's id.  The first connection of
 * each worker listens, and the worker wakes its own waiters, which ..._poll.c
 * of the main module has.
 *
 * Called through the table of backends and by ..._remote.c; calls the
 * connections.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/*
 * failed connects, plus one per server, after which begin and watch fail at
 * once
 */
#define NGX_HTTP_IDEM_PG_GIVE_UP     2

/* polling interval, ms: while the listening connection is down; without it */
#define NGX_HTTP_IDEM_PG_POLL        1000
#define NGX_HTTP_IDEM_PG_POLL_QUICK  250


static ngx_int_t ngx_http_idem_pg_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_pg_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static ngx_int_t ngx_http_idem_pg_ask(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_pg_admin(ngx_http_idem_op_t *op);
static void ngx_http_idem_pg_cancel(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_pg_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats);
static ngx_http_idem_pg_conn_t *ngx_http_idem_pg_route(
    ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_pg_submit(ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_pg_leave(void *data);
static void ngx_http_idem_pg_timeout(ngx_http_idem_op_t *op);
static void ngx_http_idem_pg_listen(ngx_http_idem_op_t *op);
static void ngx_http_idem_pg_unlisten(ngx_http_idem_op_t *op);
static ngx_msec_t ngx_http_idem_pg_poll_time(ngx_http_idem_op_t *op);


const ngx_http_idem_backend_t  ngx_http_idem_pg_backend = {
    ngx_string("postgres"),
    ngx_http_idem_pg_create_conf,
    ngx_http_idem_pg_commands,
    ngx_http_idem_pg_init_conf,
    ngx_http_idem_pg_init_process,
    ngx_http_idem_pg_exit_process,
    ngx_http_idem_pg_ask,                    /* begin */
    ngx_http_idem_pg_ask,                    /* renew */
    ngx_http_idem_pg_ask,                    /* commit */
    ngx_http_idem_pg_ask,                    /* release */
    ngx_http_idem_pg_ask,                    /* watch */
    ngx_http_idem_pg_cancel,
    ngx_http_idem_pg_stats,
    1,                                       /* remote */
    ngx_http_idem_pg_admin,
    NGX_HTTP_IDEM_TRAIL_ALL
};


static const ngx_http_idem_remote_type_t  ngx_http_idem_pg_remote_type = {
    ngx_http_idem_pg_submit,
    ngx_http_idem_pg_leave,
    ngx_http_idem_pg_listen,
    ngx_http_idem_pg_unlisten,
    ngx_http_idem_pg_poll_time,
    ngx_http_idem_pg_timeout
};


/* enough connects have failed */

#define ngx_http_idem_pg_gave_up(conn)                                        \
    ((conn)->failures                                                         \
     >= NGX_HTTP_IDEM_PG_GIVE_UP + (conn)->pg->servers.nelts)

/* ... and another attempt follows soon */

#define ngx_http_idem_pg_unreachable(conn)                                    \
    (ngx_http_idem_pg_gave_up(conn)                                           \
     && (conn)->state != NGX_HTTP_IDEM_PG_READY                               \
     && (conn)->state != NGX_HTTP_IDEM_PG_CLOSED)


/* functions of the main module, for the backend's table */

static ngx_int_t
ngx_http_idem_pg_ask(ngx_http_idem_op_t *op)
{
    return ngx_http_idem_pg_api->ask(op);
}


static void
ngx_http_idem_pg_cancel(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_api->cancel(op);
}


static ngx_int_t
ngx_http_idem_pg_admin(ngx_http_idem_op_t *op)
{
    u_char  id[NGX_HTTP_IDEM_ID_LEN];

    if (op->kind == NGX_HTTP_IDEM_OP_LIST && op->list->cursor.len
        && ngx_http_idem_id_parse(op->list->cursor.data, op->list->cursor.len,
                                  id)
           != NGX_OK)
    {
        ngx_http_idem_op_bad_record(op, "the cursor is not one of this store");
        return NGX_OK;
    }

    return ngx_http_idem_pg_ask(op);
}


/*
 * All operations of a record use the same connection, so they are executed in
 * order.  Commits of a response have other connections.  They need no order,
 * since the client gets the response only after the commit, and can't retry
 * before.  A commit without a response stays in order, since the client may
 * retry at any time.  A removal is on disk before it is reported, as a commit
 * is.
 */

static ngx_http_idem_pg_conn_t *
ngx_http_idem_pg_route(ngx_http_idem_op_t *op)
{
    ngx_uint_t           n;
    ngx_http_idem_pg_t  *pg;

    pg = ngx_http_idem_pg_conf(op);

    /*
     * events use the connection of the purge, so that no record waits for
     * them
     */

    if (op->kind > NGX_HTTP_IDEM_OP_LIST) {
        return &pg->conns[pg->nconns - 1];
    }

    n = op->id[NGX_HTTP_IDEM_ID_LEN - 1] % pg->connections;

    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE
        || (op->kind == NGX_HTTP_IDEM_OP_COMMIT
            && op->state == NGX_HTTP_IDEM_COMPLETED))
    {
        n += pg->connections;
    }

    return &pg->conns[n];
}


static ngx_int_t
ngx_http_idem_pg_submit(ngx_http_idem_op_t *op)
{
    ngx_uint_t                step;
    ngx_http_idem_pg_t       *pg;
    ngx_http_idem_pg_call_t  *call;
    ngx_http_idem_pg_conn_t  *conn;

    pg = ngx_http_idem_pg_conf(op);
    conn = ngx_http_idem_pg_route(op);

    op->result = NGX_HTTP_IDEM_ERROR;
    op->state_data = NULL;

    if (op->probe) {

        /*
         * a commit waits for a synchronous standby, and a renewal does not.
         * Nor is this needed: a connection of commits is kept while the
         * server is alive, until the response has got through.
         */

        op->error = "a renewal tells nothing of a commit";
        return NGX_ERROR;
    }

    if (ngx_http_idem_remote_impatient(op)
        && ngx_http_idem_pg_unreachable(conn))
    {
        op->error = (char *) conn->error;
        return NGX_ERROR;
    }

    step = (op->kind == NGX_HTTP_IDEM_OP_LIST && op->list->tally)
           ? NGX_HTTP_IDEM_PG_STEP_TALLY : op->kind;

    call = ngx_http_idem_pg_call(conn, step, op->id);
    if (call == NULL) {
        op->error = "no memory for a call";
        return NGX_ERROR;
    }

    call->op = op;
    call->single = (op->kind > NGX_HTTP_IDEM_OP_LIST);
    op->state_data = call;

    ngx_http_idem_pg_api->time(op, pg->timeout);

    return NGX_OK;
}


/* the Sync of the batch was read; or the call failed and op->result is set */

void
ngx_http_idem_pg_deliver(ngx_http_idem_pg_call_t *call, ngx_uint_t failed)
{
    ngx_http_idem_op_t  *op;

    op = call->op;

    if (op == NULL) {

        if (ngx_http_idem_pg_purges(call->step)) {
            ngx_http_idem_pg_purged(call->conn->pg, failed ? NGX_ERROR
                                    : ngx_http_idem_pg_removed(call));
        }

        ngx_http_idem_pg_call_free(call);
        return;
    }

    if (!failed) {
        ngx_http_idem_pg_step_result(call);
    }

    /* the call is complete, so leave() frees it */

    call->sent = 0;

    ngx_http_idem_pg_api->replied(op);
}


static void
ngx_http_idem_pg_timeout(ngx_http_idem_op_t *op)
{
    char                     *error;
    ngx_msec_t                since;
    ngx_uint_t                silent, over;
    ngx_http_idem_pg_t       *pg;
    ngx_http_idem_pg_call_t  *call;
    ngx_http_idem_pg_conn_t  *conn;

    pg = ngx_http_idem_pg_conf(op);
    call = op->state_data;
    conn = call->conn;

    /* a server that still sends is only slow: keep the connection */

    silent = 0;

    if (!ngx_queue_empty(&conn->batches)) {
        since = call->sent
                && (ngx_msec_int_t) (conn->last_read - call->time) < 0
                ? call->time : conn->last_read;
        silent = (ngx_current_msec - since >= pg->timeout / 2
                  && !ngx_http_idem_pg_awaits_standby(conn));
    }

    over = (ngx_http_idem_pg_api->over(op) == NGX_OK);

    if (over) {
        error = (char *) conn->error;

        if (call->sent || error[0] == '\0'
            || conn->state == NGX_HTTP_IDEM_PG_READY)
        {
            error = "no reply in time";
        }

        ngx_http_idem_pg_api->fail(op, error);
    }

    if (silent) {
        ngx_http_idem_pg_drop(conn, "no reply within %M ms", pg->timeout);
    }

    if (over) {
        ngx_http_idem_pg_api->complete(op);
    }
}


/*
 * If no server can be reached for now, fails the queued operations that come
 * before the application runs; the others wait.
 */

void
ngx_http_idem_pg_refuse_waiting(ngx_http_idem_pg_conn_t *conn)
{
    ngx_queue_t              *q;
    ngx_http_idem_op_t       *op;
    ngx_http_idem_pg_call_t  *call;

    if (!ngx_http_idem_pg_gave_up(conn)) {
        return;
    }

again:

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);
        op = call->op;

        if (op && ngx_http_idem_remote_impatient(op)) {
            ngx_http_idem_pg_api->fail(op, (char *) conn->error);
            ngx_http_idem_pg_api->complete(op);

            /* the handler may have changed the queue */
            goto again;
        }
    }
}


static ngx_uint_t
ngx_http_idem_pg_leave(void *data)
{
    ngx_http_idem_pg_call_t  *call = data;

    ngx_uint_t  tries;

    tries = call->tries;

    call->op = NULL;

    if (!call->sent) {
        ngx_http_idem_pg_call_free(call);
    }

    return tries;
}


static void
ngx_http_idem_pg_listen(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_conn_t  *conn;

    conn = &ngx_http_idem_pg_conf(op)->conns[0];

    if (conn->listens) {

        if (conn->state == NGX_HTTP_IDEM_PG_CLOSED) {
            ngx_http_idem_pg_flush(conn);
        }

        ngx_http_idem_pg_idle(conn);
    }
}


static void
ngx_http_idem_pg_unlisten(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_idle(&ngx_http_idem_pg_conf(op)->conns[0]);
}


static ngx_msec_t
ngx_http_idem_pg_poll_time(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_conn_t  *conn;

    conn = &ngx_http_idem_pg_conf(op)->conns[0];

    return !conn->listens ? NGX_HTTP_IDEM_PG_POLL_QUICK
           : conn->state != NGX_HTTP_IDEM_PG_READY ? NGX_HTTP_IDEM_PG_POLL
           : 0;
}


static ngx_int_t
ngx_http_idem_pg_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t           i;
    ngx_http_idem_pg_t  *pg;

    pg = store->conf;

    /* the last one is for events, and for the purge in one worker */

    pg->nconns = 2 * pg->connections + 1;

    pg->conns = ngx_pcalloc(cycle->pool,
                            pg->nconns
                            * sizeof(ngx_http_idem_pg_conn_t));
    if (pg->conns == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < pg->nconns; i++) {
        ngx_http_idem_pg_conn_init(&pg->conns[i], pg,
                    i < (ngx_uint_t) pg->connections
                        ? NGX_HTTP_IDEM_PG_STEPS
                    : i < 2 * (ngx_uint_t) pg->connections
                        ? NGX_HTTP_IDEM_PG_COMMITS
                    : NGX_HTTP_IDEM_PG_PURGE);
    }

    pg->conns[0].listens = (pg->wake == NGX_HTTP_IDEM_PG_WAKE_NOTIFY);

    ngx_http_idem_pg_api->init(&pg->remote, &ngx_http_idem_pg_remote_type,
                               store, pg->timeout);

    ngx_http_idem_pg_purge_init(pg);

    /* local copies: listen for removals as long as the worker lives */

    if (store->copies && pg->conns[0].listens) {
        ngx_http_idem_pg_flush(&pg->conns[0]);
    }

    return NGX_OK;
}


static void
ngx_http_idem_pg_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t           i;
    ngx_http_idem_pg_t  *pg;

    pg = store->conf;

    ngx_http_idem_pg_api->exit(&pg->remote);

    ngx_housekeeping_stop(&pg->purge_timer);
    pg->purge = 0;

    for (i = 0; i < pg->nconns; i++) {
        ngx_http_idem_pg_forget(&pg->conns[i]);
    }
}


static ngx_int_t
ngx_http_idem_pg_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats)
{
    ngx_uint_t           i;
    ngx_queue_t         *q, *calls;
    ngx_http_idem_pg_t  *pg;

    pg = store->conf;

    for (i = 0; i < pg->nconns; i++) {
        calls = &pg->conns[i].unsent;

        for (q = ngx_queue_head(calls);
             q != ngx_queue_sentinel(calls);
             q = ngx_queue_next(q))
        {
            stats->queued++;
        }
    }

    return NGX_DECLINED;
}
