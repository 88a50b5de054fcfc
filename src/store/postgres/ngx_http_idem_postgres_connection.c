
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A connection: its queue of calls to send, its queue of batches that await
 * results, and what happens to both when the connection breaks.
 *
 * Sending is postponed to the end of the event loop iteration, so that all
 * calls of the iteration are sent together.  A connection is opened when a
 * call needs it.  After failures the delay between attempts grows, and
 * attempts rotate through the servers.  When a connection breaks, the
 * statements in flight are resent if their operations still wait: every
 * statement can be repeated, since the token identifies the owner of a lock.
 *
 * The socket is libpq's.  nginx polls it level-triggered, since libpq does
 * not read until EAGAIN, and never closes it.
 *
 * Called by the backend with calls, and by nginx's events; calls the connect,
 * and the batches to send and to read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_BACKOFF_MIN     50
#define NGX_HTTP_IDEM_PG_BACKOFF_MAX     2000

/* the maximum while calls wait, which must arrive before their lease ends */
#define NGX_HTTP_IDEM_PG_BACKOFF_WAITED  100

/* multiples of "timeout" that commits may take on a server that is alive */
#define NGX_HTTP_IDEM_PG_AWAITS          10

/* multiples of "connect_timeout" for a server that accepted and is silent */
#define NGX_HTTP_IDEM_PG_PATIENCE        4


static void ngx_http_idem_pg_close(ngx_http_idem_pg_conn_t *conn);
static ngx_uint_t ngx_http_idem_pg_consume(ngx_http_idem_pg_conn_t *conn);
static void ngx_http_idem_pg_flush_handler(ngx_event_t *ev);
static void ngx_http_idem_pg_event_handler(ngx_event_t *ev);
static void ngx_http_idem_pg_timer_handler(ngx_event_t *ev);
static ngx_int_t ngx_http_idem_pg_keep_waiting(ngx_http_idem_pg_conn_t *conn);
static void ngx_http_idem_pg_backoff(ngx_http_idem_pg_conn_t *conn);
static void ngx_http_idem_pg_unwatch(ngx_http_idem_pg_conn_t *conn);
static ngx_int_t ngx_http_idem_pg_set_event(ngx_event_t *ev, ngx_int_t event,
    ngx_uint_t wanted);


#define ngx_http_idem_pg_needed(conn)                                         \
    (!ngx_queue_empty(&(conn)->unsent) || !ngx_queue_empty(&(conn)->batches)  \
     || ((conn)->listens && (conn)->pg->remote.nwatches))

/* ... or to be notified of removals, for stores with local copies */
#define ngx_http_idem_pg_wanted(conn)                                         \
    (ngx_http_idem_pg_needed(conn)                                            \
     || ((conn)->listens && (conn)->pg->store->copies                         \
         && !ngx_exiting && !ngx_terminate && !ngx_quit))


void
ngx_http_idem_pg_conn_init(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_t *pg, ngx_http_idem_pg_role_e role)
{
    conn->pg = pg;
    conn->role = role;

    ngx_queue_init(&conn->unsent);
    ngx_queue_init(&conn->batches);

    ngx_housekeeping_init(&conn->flush, ngx_http_idem_pg_flush_handler, conn);
    ngx_housekeeping_init(&conn->timer, ngx_http_idem_pg_timer_handler, conn);
}


/* appends a new call to the send queue */

ngx_http_idem_pg_call_t *
ngx_http_idem_pg_call(ngx_http_idem_pg_conn_t *conn,
    ngx_uint_t step, u_char *id)
{
    ngx_http_idem_pg_call_t  *call;

    call = ngx_calloc(sizeof(ngx_http_idem_pg_call_t), ngx_cycle->log);
    if (call == NULL) {
        return NULL;
    }

    call->conn = conn;
    call->step = step;

    if (id) {
        ngx_memcpy(call->id, id, NGX_HTTP_IDEM_ID_LEN);
    }

    ngx_queue_insert_tail(&conn->unsent, &call->queue);

    ngx_http_idem_pg_flush(conn);

    return call;
}


void
ngx_http_idem_pg_call_free(ngx_http_idem_pg_call_t *call)
{
    ngx_queue_remove(&call->queue);

    PQclear(call->result);
    ngx_free(call);
}


void
ngx_http_idem_pg_flush(ngx_http_idem_pg_conn_t *conn)
{
    if (conn->state == NGX_HTTP_IDEM_PG_BACKOFF
        && !ngx_queue_empty(&conn->unsent))
    {
        ngx_housekeeping_within(&conn->timer,
                                NGX_HTTP_IDEM_PG_BACKOFF_WAITED);
    }

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
ngx_http_idem_pg_flush_handler(ngx_event_t *ev)
{
    ngx_http_idem_pg_conn_t  *conn;

    conn = ev->data;

    if (conn->state == NGX_HTTP_IDEM_PG_CLOSED) {
        if (ngx_http_idem_pg_wanted(conn)) {
            ngx_http_idem_pg_connect(conn);
        }

    } else if (conn->state == NGX_HTTP_IDEM_PG_READY) {
        if (ngx_http_idem_pg_batches_send(conn) != NGX_OK) {
            ngx_http_idem_pg_drop(conn, "no memory");
            return;
        }

        ngx_http_idem_pg_write(conn);
    }
}


/* flushes what the socket accepts; a write event sends the rest */

void
ngx_http_idem_pg_write(ngx_http_idem_pg_conn_t *conn)
{
    int  rc;

    rc = PQflush(conn->link);

    if (rc == -1) {
        ngx_http_idem_pg_drop(conn, "sending failed");
        return;
    }

    if (ngx_http_idem_pg_watch_socket(conn, 1, rc == 1) == NGX_OK) {
        ngx_http_idem_pg_idle(conn);
    }
}


/* an unused connection is idle: a worker that shuts down may close it */

void
ngx_http_idem_pg_idle(ngx_http_idem_pg_conn_t *conn)
{
    if (conn->connection) {
        conn->connection->idle =
            conn->state == NGX_HTTP_IDEM_PG_READY
            && !ngx_http_idem_pg_needed(conn);
    }
}


/*
 * libpq may change its socket in each step of a connect.  NGX_ERROR: the
 * connection was dropped.
 */

ngx_int_t
ngx_http_idem_pg_watch_socket(ngx_http_idem_pg_conn_t *conn,
    ngx_uint_t read, ngx_uint_t write)
{
    int                fd;
    ngx_connection_t  *c;

    fd = PQsocket(conn->link);

    if (fd == -1) {
        goto failed;
    }

    c = conn->connection;

    if (c && c->fd != (ngx_socket_t) fd) {
        ngx_http_idem_pg_unwatch(conn);
        c = NULL;
    }

    if (c == NULL) {
        c = ngx_get_connection((ngx_socket_t) fd, ngx_cycle->log);
        if (c == NULL) {
            goto failed;
        }

        c->data = conn;
        c->log_error = NGX_ERROR_INFO;

        c->read->handler = ngx_http_idem_pg_event_handler;
        c->read->log = ngx_cycle->log;
        c->write->handler = ngx_http_idem_pg_event_handler;
        c->write->log = ngx_cycle->log;

        conn->connection = c;
    }

    if (ngx_http_idem_pg_set_event(c->read, NGX_READ_EVENT, read) == NGX_OK
        && ngx_http_idem_pg_set_event(c->write, NGX_WRITE_EVENT, write)
           == NGX_OK)
    {
        return NGX_OK;
    }

failed:

    ngx_http_idem_pg_drop(conn, "no event for its socket");

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_idem_pg_set_event(ngx_event_t *ev, ngx_int_t event, ngx_uint_t wanted)
{
    if (wanted && !ev->active) {
        return ngx_add_event(ev, event, NGX_LEVEL_EVENT);
    }

    if (!wanted && ev->active) {
        return ngx_del_event(ev, event, 0);
    }

    return NGX_OK;
}


/*
 * Called before libpq closes the socket, since its number may be reused.  If
 * libpq has found that the connection broke, it has closed the socket
 * already.
 */

static void
ngx_http_idem_pg_unwatch(ngx_http_idem_pg_conn_t *conn)
{
    ngx_uint_t         flags;
    ngx_connection_t  *c;

    c = conn->connection;

    if (c == NULL) {
        return;
    }

    conn->connection = NULL;

    flags = ((ngx_socket_t) PQsocket(conn->link) == c->fd) ? 0
                                                           : NGX_CLOSE_EVENT;

    if (c->read->active) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, flags);
    }

    if (c->write->active) {
        (void) ngx_del_event(c->write, NGX_WRITE_EVENT, flags);
    }

    if (c->read->posted) {
        ngx_delete_posted_event(c->read);
    }

    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }

    c->read->closed = 1;
    c->write->closed = 1;

    ngx_reusable_connection(c, 0);
    ngx_free_connection(c);

    c->fd = (ngx_socket_t) -1;
}


static void
ngx_http_idem_pg_event_handler(ngx_event_t *ev)
{
    ngx_connection_t         *c;
    ngx_http_idem_pg_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    if (c->close) {

        /* a request that was ended before may have queued calls */

        ngx_http_idem_pg_idle(conn);

        if (c->idle) {
            ngx_http_idem_pg_close(conn);
            return;
        }

        /*
         * worker_shutdown_timeout expired.  The worker exits when the calls
         * have ended, by their replies or their own timeouts.
         */

        c->close = 0;
        c->error = 0;
        return;
    }

    if (conn->state == NGX_HTTP_IDEM_PG_CONNECTING) {
        ngx_http_idem_pg_poll(conn);
        return;
    }

    /* NGX_HTTP_IDEM_PG_SETUP, NGX_HTTP_IDEM_PG_READY */

    if (!ev->write) {
        if (!ngx_http_idem_pg_consume(conn)) {
            return;
        }

        if (conn->state == NGX_HTTP_IDEM_PG_SETUP) {
            ngx_http_idem_pg_setup_read(conn);

        } else {
            ngx_http_idem_pg_batches_read(conn);
        }
    }

    if (conn->connection == c) {
        ngx_http_idem_pg_write(conn);
    }
}


/* returns 0 if the connection broke */

static ngx_uint_t
ngx_http_idem_pg_consume(ngx_http_idem_pg_conn_t *conn)
{
#if (NGX_SSL)
    void  *ssl;

    ssl = conn->pg->tls ? PQsslStruct(conn->link, "OpenSSL") : NULL;
#endif

    conn->last_read = ngx_current_msec;

    while (PQconsumeInput(conn->link)) {

#if (NGX_SSL)

        /* data buffered in OpenSSL does not make the socket readable */

        if (ssl && SSL_pending(ssl) > 0) {
            continue;
        }

#endif

        return 1;
    }

    ngx_http_idem_pg_broken(conn);

    return 0;
}


/* drops a connection with libpq's own error */

void
ngx_http_idem_pg_broken(ngx_http_idem_pg_conn_t *conn)
{
    u_char  text[NGX_HTTP_IDEM_PG_ERROR_LEN];

    ngx_http_idem_pg_error_line(text, text + sizeof(text) - 1,
                                PQerrorMessage(conn->link));

    ngx_http_idem_pg_drop(conn, "%s", text);
}


/* closes the session, and leaves the queues alone */

static void
ngx_http_idem_pg_close(ngx_http_idem_pg_conn_t *conn)
{
    conn->state = NGX_HTTP_IDEM_PG_CLOSED;
    conn->timeouts = 0;

    ngx_housekeeping_stop(&conn->timer);
    ngx_housekeeping_stop(&conn->flush);

    if (conn->resolving) {
        ngx_resolve_name_done(conn->resolving);
        conn->resolving = NULL;
    }

    ngx_http_idem_pg_unwatch(conn);

    if (conn->link) {
        /* sends Terminate if the socket accepts it, without blocking */
        PQfinish(conn->link);
        conn->link = NULL;
    }
}


/*
 * The connection broke, or is not usable any more.  Cancelled calls are
 * freed, all others are queued again, in order.
 */

void
ngx_http_idem_pg_drop(ngx_http_idem_pg_conn_t *conn, const char *fmt, ...)
{
    u_char                     *p;
    va_list                     args;
    ngx_uint_t                  level, needed, ready;
    ngx_http_idem_pg_t         *pg;
    ngx_http_idem_pg_server_t  *server;

    va_start(args, fmt);
    p = ngx_vslprintf(conn->error,
                      conn->error + NGX_HTTP_IDEM_PG_ERROR_LEN - 1,
                      fmt, args);
    va_end(args);

    *p = '\0';

    pg = conn->pg;
    server = ngx_http_idem_pg_server(pg, conn->server);
    ready = (conn->state == NGX_HTTP_IDEM_PG_READY);
    needed = ngx_http_idem_pg_needed(conn);

    /* no error if idle: the connection is opened again when needed */

    level = (conn->failure_logged || (ready && !needed)
             || conn->role == NGX_HTTP_IDEM_PG_PURGE)
            ? NGX_LOG_INFO : NGX_LOG_ERR;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "idempotency: store \"%V\": %s to PostgreSQL at %V: %s",
                  &pg->store->name,
                  ready ? "lost the connection" : "can't connect",
                  &server->url.url, conn->error);

    if (level == NGX_LOG_ERR) {
        conn->failure_logged = 1;
    }

    conn->failures++;

    ngx_http_idem_pg_close(conn);
    ngx_http_idem_pg_batches_requeue(conn);

    if (pg->server == conn->server) {
        /* another server may accept writes by now */
        pg->server = (pg->server + 1) % pg->servers.nelts;
    }

    if (pg->server == 0) {
        conn->address++;
    }

    ngx_http_idem_pg_backoff(conn);

    if (ready && conn->role == NGX_HTTP_IDEM_PG_STEPS) {
        ngx_http_idem_pg_api->suspect_loss(pg->store, 0, NULL, NULL);
    }

    ngx_http_idem_pg_refuse_waiting(conn);
}


/* the first reconnect, and attempts at other servers, are not delayed */

static void
ngx_http_idem_pg_backoff(ngx_http_idem_pg_conn_t *conn)
{
    ngx_msec_t  delay, max;
    ngx_uint_t  rounds;

    conn->state = NGX_HTTP_IDEM_PG_BACKOFF;

    rounds = (conn->failures - 1) / conn->pg->servers.nelts;

    if (conn->failures == 1
        || (conn->failures - 1) % conn->pg->servers.nelts)
    {
        ngx_add_timer(&conn->timer, 1);
        return;
    }

    max = ngx_queue_empty(&conn->unsent)
          ? NGX_HTTP_IDEM_PG_BACKOFF_MAX
          : NGX_HTTP_IDEM_PG_BACKOFF_WAITED;

    delay = NGX_HTTP_IDEM_PG_BACKOFF_MIN << ngx_min(rounds, 8);
    delay = ngx_min(delay, max);

    /* jitter: workers should not reconnect all at once */

    delay = delay - delay / 4 + ngx_random() % (delay / 2 + 1);

    ngx_add_timer(&conn->timer, delay);
}


static void
ngx_http_idem_pg_timer_handler(ngx_event_t *ev)
{
    ngx_http_idem_pg_conn_t  *conn;

    conn = ev->data;

    if (conn->state != NGX_HTTP_IDEM_PG_BACKOFF) {

        if (ngx_http_idem_pg_keep_waiting(conn) != NGX_OK) {
            ngx_http_idem_pg_drop(conn, "no reply within %M ms",
                                  conn->pg->connect_timeout);
        }

        return;
    }

    conn->state = NGX_HTTP_IDEM_PG_CLOSED;

    if (ngx_http_idem_pg_wanted(conn)) {
        ngx_http_idem_pg_connect(conn);

    } else if (conn->pg->servers.nelts > 1) {
        /* unused: a later operation may try all servers before it fails */
        conn->failures = 0;
    }
}


/*
 * A server that accepted the connection and is silent has stalled, or is busy
 * with other connections: it starts a process for each, one after the other,
 * even for clients that are gone.  A new attempt would go to the end of that
 * queue, so the connection waits a few timeouts longer, unless there is
 * another server.  Operations that can fail at once do so.
 */

static ngx_int_t
ngx_http_idem_pg_keep_waiting(ngx_http_idem_pg_conn_t *conn)
{
    ngx_http_idem_pg_t  *pg;

    pg = conn->pg;

    if (pg->servers.nelts > 1
        || conn->link == NULL
        || PQstatus(conn->link) == CONNECTION_STARTED
        || ++conn->timeouts == NGX_HTTP_IDEM_PG_PATIENCE)
    {
        return NGX_DECLINED;
    }

    *ngx_snprintf(conn->error, NGX_HTTP_IDEM_PG_ERROR_LEN - 1,
                  "no reply within %M ms", pg->connect_timeout) = '\0';

    conn->failures++;

    ngx_add_timer(&conn->timer, pg->connect_timeout);

    ngx_http_idem_pg_refuse_waiting(conn);

    return NGX_OK;
}


/*
 * Commits may hang in a server that responds on other connections: they wait
 * for a synchronous standby that is gone.  Each reconnect would leave another
 * server process behind; the reply comes when the standby is back.
 */

ngx_uint_t
ngx_http_idem_pg_awaits_standby(ngx_http_idem_pg_conn_t *conn)
{
    ngx_uint_t           i;
    ngx_http_idem_pg_t  *pg;

    pg = conn->pg;

    if (conn->role != NGX_HTTP_IDEM_PG_COMMITS
        || ngx_current_msec - conn->last_read
           >= NGX_HTTP_IDEM_PG_AWAITS * pg->timeout)
    {
        return 0;
    }

    for (i = 0; i < (ngx_uint_t) pg->connections; i++) {
        if (pg->conns[i].state == NGX_HTTP_IDEM_PG_READY
            && ngx_current_msec - pg->conns[i].last_read < 2 * pg->timeout)
        {
            return 1;
        }
    }

    return 0;
}


/* the worker exits: frees all calls, without completing operations */

void
ngx_http_idem_pg_forget(ngx_http_idem_pg_conn_t *conn)
{
    ngx_queue_t              *q;
    ngx_http_idem_pg_call_t  *call;

    ngx_http_idem_pg_close(conn);
    ngx_http_idem_pg_batches_requeue(conn);

    while (!ngx_queue_empty(&conn->unsent)) {
        q = ngx_queue_head(&conn->unsent);
        call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

        if (call->op) {
            call->op->state_data = NULL;
        }

        ngx_http_idem_pg_call_free(call);
    }
}
