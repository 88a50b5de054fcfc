
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A connection: the calls that are to be sent, the calls that have no reply
 * yet, and what happens to both when the connection breaks.
 *
 * Sending is deferred to the end of the event loop iteration, so that all
 * calls made in it take one write.  When a connection ends, its calls are
 * sent again on a new one if they have time left; every call may be
 * repeated.  Connections are opened on demand.  Failed attempts are repeated
 * with an increasing delay; ..._probe.c makes additional ones meanwhile.
 *
 * Called with calls and by nginx's events; calls the setup to connect.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


#define NGX_REDIS_BACKOFF_MIN  50
#define NGX_REDIS_BACKOFF_MAX  2000

/* the longest backoff while calls are queued */
#define NGX_REDIS_BACKOFF_QUEUED  100

/* size of the encoded commands after which they are sent, before more are
   encoded */
#define NGX_REDIS_OUT_SIZE     65536

/* the same for a batch of calls that need WAIT */
#define NGX_REDIS_BATCH_SIZE   (16 * 65536)


static void ngx_redis_flush_handler(ngx_event_t *ev);
static void ngx_redis_reset_out(ngx_redis_conn_t *conn);
static ngx_int_t ngx_redis_encode(ngx_redis_conn_t *conn);
static void ngx_redis_log_drop(ngx_redis_conn_t *conn, ngx_uint_t needed);
static void ngx_redis_backoff(ngx_redis_conn_t *conn);
static void ngx_redis_timer_handler(ngx_event_t *ev);


void
ngx_redis_conn_init(ngx_redis_conn_t *conn, ngx_redis_t *redis,
    ngx_redis_node_t *node)
{
    conn->redis = redis;
    conn->node = node;

    ngx_queue_init(&conn->unsent);
    ngx_queue_init(&conn->sent);
    ngx_queue_init(&conn->held);
    ngx_queue_init(&conn->early);
    ngx_queue_init(&conn->covered);
    ngx_queue_init(&conn->bulks);

    ngx_housekeeping_init(&conn->flush, ngx_redis_flush_handler, conn);
    ngx_housekeeping_init(&conn->timer, ngx_redis_timer_handler, conn);
    ngx_housekeeping_init(&conn->probe, ngx_redis_probe_handler, conn);
}


void
ngx_redis_flush(ngx_redis_conn_t *conn)
{
    if (conn->state == NGX_REDIS_BACKOFF && !ngx_queue_empty(&conn->unsent)) {
        ngx_housekeeping_within(&conn->timer, NGX_REDIS_BACKOFF_QUEUED);
    }

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
ngx_redis_flush_handler(ngx_event_t *ev)
{
    ngx_redis_conn_t  *conn;

    conn = ev->data;

    if (conn->state == NGX_REDIS_READY) {
        ngx_redis_send(conn);

    } else if (conn->state == NGX_REDIS_CLOSED && conn->node
               && (conn->channel || !ngx_queue_empty(&conn->unsent)))
    {
        ngx_redis_connect(conn);
    }
}


void
ngx_redis_send(ngx_redis_conn_t *conn)
{
    size_t             max;
    ssize_t            n;
    ngx_buf_t         *b;
    ngx_connection_t  *c;

    b = &conn->out;
    c = conn->connection;

    c->idle = 0;

    for (max = NGX_REDIS_TURN_SIZE; /* void */ ; max -= n) {

        if (conn->truncated) {
            ngx_redis_drop(conn, "a long command was given up");
            return;
        }

        /* a connection to a replica sends no further call, and is closed */

        if (conn->state == NGX_REDIS_READY && !conn->replica
            && ngx_redis_encode(conn) != NGX_OK)
        {
            ngx_redis_drop(conn, "no memory");
            return;
        }

        if (b->pos == b->last) {
            break;
        }

        if (!c->write->ready) {
            break;
        }

        if (max == 0) {

            /* let other connections proceed */

            ngx_post_event(&conn->flush, &ngx_posted_next_events);
            break;
        }

        if (conn->bulk) {
            n = ngx_redis_bulk_send(conn, max);

        } else {
            n = c->send(c, b->pos, ngx_min((size_t) (b->last - b->pos), max));
            b->pos += ngx_max(n, 0);
        }

        if (n == NGX_ERROR) {
            ngx_redis_drop(conn, "sending failed");
            return;
        }

        if (n == NGX_AGAIN) {
            break;
        }
    }

    if (b->pos == b->last) {
        ngx_redis_reset_out(conn);
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        ngx_redis_drop(conn, "no event for writing");
        return;
    }

    ngx_redis_idle(conn);
}


static void
ngx_redis_reset_out(ngx_redis_conn_t *conn)
{
    ngx_buf_t  *b;

    b = &conn->out;

    if (conn->state == NGX_REDIS_SETUP) {
        /* the setup commands may contain a password */
        ngx_explicit_memzero(b->start, b->end - b->start);
    }

    b->pos = b->start;
    b->last = b->start;

    if (b->end - b->start > NGX_REDIS_OUT_SIZE) {
        ngx_free(b->start);
        ngx_memzero(b, sizeof(ngx_buf_t));
    }
}


static ngx_int_t
ngx_redis_encode(ngx_redis_conn_t *conn)
{
    ssize_t            max;
    ngx_queue_t       *q;
    ngx_redis_call_t  *call;

    static ngx_str_t   asking = ngx_string("ASKING");

    if (conn->waits) {

        if (conn->awaiting) {
            ngx_redis_replicas_hurry(conn);
            return NGX_OK;
        }

        ngx_redis_replicas_cover(conn);
    }

    if (ngx_queue_empty(&conn->unsent)) {
        return NGX_OK;
    }

    max = conn->waits ? NGX_REDIS_BATCH_SIZE : NGX_REDIS_OUT_SIZE;

    while (!ngx_queue_empty(&conn->unsent)
           && conn->out.last - conn->out.pos + (ssize_t) conn->bulk < max)
    {
        q = ngx_queue_head(&conn->unsent);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        /* ASKING lets an importing node serve the next command, and only that
           one */

        if ((call->asking && ngx_redis_ask(conn, NULL, &asking, 1) != NGX_OK)
            || call->type->encode(call) != NGX_OK)
        {
            return NGX_ERROR;
        }

        call->sent = 1;
        call->tries++;
        call->time = ngx_current_msec;

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&conn->sent, q);
    }

    return conn->waits ? ngx_redis_replicas_ask(conn) : NGX_OK;
}


/* lets a worker that shuts down close a connection that is not needed now */

void
ngx_redis_idle(ngx_redis_conn_t *conn)
{
    conn->connection->idle =
        conn->state == NGX_REDIS_READY
        && ngx_queue_empty(&conn->sent)
        && ngx_queue_empty(&conn->unsent)
        && ngx_queue_empty(&conn->early)
        && (conn->channel == NULL || conn->owner
            || conn->redis->listeners == 0);
}


void
ngx_redis_write_handler(ngx_event_t *wev)
{
    ngx_connection_t  *c;

    c = wev->data;

    ngx_redis_send(c->data);
}


/* the first reply came: the server really answers */

void
ngx_redis_first_reply(ngx_redis_conn_t *conn)
{
    conn->answered = 1;
    conn->failures = 0;
    conn->redis->hooks->first_reply(conn);
    conn->node->refused = 0;

    if (conn->failure_logged) {
        conn->failure_logged = 0;

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "%V: Redis at %V answers again",
                      &conn->redis->label,
                      ngx_redis_node_label(conn->node));
    }
}


/* closes the connection; its calls are queued again */

void
ngx_redis_close(ngx_redis_conn_t *conn)
{
    ngx_pool_t        *pool;
    ngx_connection_t  *c;

    conn->state = NGX_REDIS_CLOSED;
    conn->awaiting = 0;

    ngx_redis_probe_stop(conn);

    ngx_housekeeping_stop(&conn->timer);
    ngx_housekeeping_stop(&conn->flush);
    ngx_redis_bulk_close(conn);

    if (conn->reader) {
        redisReaderFree(conn->reader);
        conn->reader = NULL;
    }

    if (conn->out.start) {
        /* the commands may contain a password */
        ngx_explicit_memzero(conn->out.start,
                             conn->out.end - conn->out.start);
        ngx_free(conn->out.start);
        ngx_memzero(&conn->out, sizeof(ngx_buf_t));
    }

    ngx_redis_requeue(conn);

    c = conn->connection;

    if (c == NULL) {
        return;
    }

    conn->connection = NULL;

#if (NGX_SSL)

    if (c->ssl) {
        c->ssl->no_wait_shutdown = 1;
        c->ssl->no_send_shutdown = 1;

        (void) ngx_ssl_shutdown(c);
    }

#endif

    pool = c->pool;

    ngx_close_connection(c);

    if (pool) {
        ngx_destroy_pool(pool);
    }
}


/*
 * The connection broke, or can't be trusted any more.  Cancelled calls are
 * freed, the others are queued again in order.
 */

void
ngx_redis_drop(ngx_redis_conn_t *conn, const char *fmt, ...)
{
    u_char            *p;
    va_list            args;
    ngx_uint_t         needed, broke;
    ngx_redis_node_t  *node;

    va_start(args, fmt);
    p = ngx_vslprintf(conn->error, conn->error + NGX_REDIS_ERROR_LEN - 1, fmt,
                      args);
    va_end(args);

    *p = '\0';

    node = conn->node;

    /* a server may close an idle connection; it is reopened when needed */

    needed = !ngx_queue_empty(&conn->unsent) || !ngx_queue_empty(&conn->sent)
             || (conn->channel && conn->redis->listeners);

    ngx_redis_log_drop(conn, needed);

    broke = (conn->state == NGX_REDIS_READY && conn->answered);

    if (conn->state == NGX_REDIS_READY && (conn->answered || conn->owner)) {
        conn->failures = 0;

    } else {
        conn->failures++;
        node->addr = node->naddrs ? (node->addr + 1) % node->naddrs : 0;

        ngx_redis_resolve_soon(node);
    }

    ngx_redis_close(conn);

    if (conn->owner) {
        conn->owner->lost(conn);
        return;
    }

    if (conn->failures) {
        ngx_redis_backoff(conn);

    } else if (needed) {
        ngx_redis_flush(conn);
    }

    if (conn->channel) {

        if (conn->failures) {
            ngx_redis_listen(conn->redis, node);
        }

        return;
    }

    ngx_redis_control_want(conn->redis);

    /* the topology may have moved their keys */

    ngx_redis_reroute(&conn->unsent);

    if (broke && !conn->waits) {
        ngx_redis_suspect_loss(conn, 0);
    }

    if (conn->failures >= NGX_REDIS_GIVE_UP) {
        ngx_redis_refuse_waiting(&conn->unsent, (char *) conn->error);
    }
}


static void
ngx_redis_log_drop(ngx_redis_conn_t *conn, ngx_uint_t needed)
{
    ngx_uint_t  level;

    level = (conn->failure_logged || conn->owner
             || (conn->answered && !needed))
            ? NGX_LOG_INFO : NGX_LOG_ERR;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "%V: %s to Redis at %V: %s",
                  &conn->redis->label,
                  conn->state == NGX_REDIS_READY
                      ? "lost the connection" : "can't connect",
                  ngx_redis_node_label(conn->node), conn->error);

    if (level == NGX_LOG_ERR) {
        conn->failure_logged = 1;
    }
}


static void
ngx_redis_backoff(ngx_redis_conn_t *conn)
{
    ngx_msec_t  delay, max;

    max = ngx_queue_empty(&conn->unsent)
          ? NGX_REDIS_BACKOFF_MAX
          : NGX_REDIS_BACKOFF_QUEUED;

    delay = NGX_REDIS_BACKOFF_MIN << ngx_min(conn->failures - 1, 8);
    delay = ngx_min(delay, max);

    /* avoids that all workers reconnect at the same time */

    delay = delay - delay / 4 + ngx_random() % (delay / 2 + 1);

    conn->state = NGX_REDIS_BACKOFF;

    ngx_add_timer(&conn->timer, delay);
}


static void
ngx_redis_timer_handler(ngx_event_t *ev)
{
    ngx_redis_conn_t  *conn;

    conn = ev->data;

    if (conn->state == NGX_REDIS_READY) {
        ngx_redis_replicas_hurry(conn);
        return;
    }

    if (conn->state != NGX_REDIS_BACKOFF) {
        ngx_redis_drop(conn, "no answer within %M ms",
                       conn->redis->connect_timeout);
        return;
    }

    conn->state = NGX_REDIS_CLOSED;

    if (conn->node
        && (!ngx_queue_empty(&conn->unsent)
            || (conn->channel && conn->redis->listeners)))
    {
        ngx_redis_connect(conn);
    }
}
