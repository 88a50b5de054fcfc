
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A connection: calls that wait to be sent, calls that wait for their reply,
 * and what becomes of both when it breaks.
 *
 * Sending is put off to the end of the turn of the event loop: one write for
 * all that was asked in it.  When a connection ends, operations that still
 * have time are asked again on a new one; all of them may be repeated.  A
 * connection is made when somebody needs it; attempts that fail come ever more
 * rarely, and never two at a time.
 *
 * Called with calls, and by nginx's events; calls the set-up to connect.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


#define NGX_REDIS_BACKOFF_MIN  50
#define NGX_REDIS_BACKOFF_MAX  2000

/* ... while something waits that is not to be late */
#define NGX_REDIS_BACKOFF_WAITED  100

/* commands are written up to this before what there is of them is sent */
#define NGX_REDIS_OUT_SIZE     65536

/* ... of calls that wait for replicas together */
#define NGX_REDIS_LOT_SIZE     (16 * 65536)


static void ngx_redis_flush_handler(ngx_event_t *ev);
static ngx_int_t ngx_redis_encode(ngx_redis_conn_t *conn);
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

    conn->flush.handler = ngx_redis_flush_handler;
    conn->flush.data = conn;
    conn->flush.log = ngx_cycle->log;

    /* what waits for it has a timer of its own */

    conn->timer.handler = ngx_redis_timer_handler;
    conn->timer.data = conn;
    conn->timer.log = ngx_cycle->log;
    conn->timer.cancelable = 1;

    conn->knock.handler = ngx_redis_knock_handler;
    conn->knock.data = conn;
    conn->knock.log = ngx_cycle->log;
    conn->knock.cancelable = 1;
}


void
ngx_redis_flush(ngx_redis_conn_t *conn)
{
    if (conn->state == NGX_REDIS_BACKOFF
        && !ngx_queue_empty(&conn->unsent)
        && (ngx_msec_int_t) (conn->timer.timer.key - ngx_current_msec)
           > NGX_REDIS_BACKOFF_WAITED)
    {
        ngx_del_timer(&conn->timer);
        ngx_add_timer(&conn->timer, NGX_REDIS_BACKOFF_WAITED);
    }

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
ngx_redis_flush_handler(ngx_event_t *ev)
{
    ngx_redis_conn_t  *conn;

    conn = ev->data;

    switch (conn->state) {

    case NGX_REDIS_CLOSED:

        if (conn->node
            && (conn->subscriber || !ngx_queue_empty(&conn->unsent)))
        {
            ngx_redis_connect(conn);
        }

        return;

    case NGX_REDIS_READY:
        ngx_redis_send(conn);
        return;

    default:
        return;
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

        if (conn->cut) {
            ngx_redis_drop(conn, "a long command was given up");
            return;
        }

        if (conn->state == NGX_REDIS_READY
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

            /* others are to have their turn */

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
        if (conn->state == NGX_REDIS_SETUP) {
            /* a password was in it */
            ngx_explicit_memzero(b->start, b->end - b->start);
        }

        b->pos = b->start;
        b->last = b->start;

        if (b->end - b->start > NGX_REDIS_OUT_SIZE) {
            ngx_free(b->start);
            ngx_memzero(b, sizeof(ngx_buf_t));
        }
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        ngx_redis_drop(conn, "no event for writing");
        return;
    }

    ngx_redis_idle(conn);
}


static ngx_int_t
ngx_redis_encode(ngx_redis_conn_t *conn)
{
    ssize_t            max;
    ngx_queue_t       *q;
    ngx_redis_call_t  *call;

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

    max = conn->waits ? NGX_REDIS_LOT_SIZE
                        : NGX_REDIS_OUT_SIZE;

    while (!ngx_queue_empty(&conn->unsent)
           && conn->out.last - conn->out.pos + (ssize_t) conn->bulk < max)
    {
        q = ngx_queue_head(&conn->unsent);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        if (call->asking
            && ngx_redis_call_asking(call) != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (call->type->encode(call) != NGX_OK) {
            return NGX_ERROR;
        }

        call->sent = 1;
        call->tries++;
        call->time = ngx_current_msec;

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&conn->sent, q);
    }

    if (conn->waits) {
        return ngx_redis_replicas_ask(conn);
    }

    return NGX_OK;
}


/* a connection that nobody needs now may be closed by a worker that quits */

void
ngx_redis_idle(ngx_redis_conn_t *conn)
{
    conn->connection->idle =
        conn->state == NGX_REDIS_READY
        && (conn->owner
            || (ngx_queue_empty(&conn->sent)
                && ngx_queue_empty(&conn->unsent)
                && ngx_queue_empty(&conn->early)
                && (!conn->subscriber || conn->redis->listeners == 0)));
}


void
ngx_redis_write_handler(ngx_event_t *wev)
{
    ngx_connection_t  *c;

    c = wev->data;

    ngx_redis_send(c->data);
}


/* it is more than a port that is open */

void
ngx_redis_works(ngx_redis_conn_t *conn)
{
    conn->answered = 1;
    conn->failures = 0;
    conn->redis->hooks->works(conn);
    conn->node->refused = 0;

    if (conn->told) {
        conn->told = 0;

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "%V: Redis at %V answers again",
                      &conn->redis->label,
                      ngx_redis_node_label(conn->node));
    }
}


/* nobody waits for anything on it, or nobody is to wait any longer */

void
ngx_redis_close(ngx_redis_conn_t *conn)
{
    ngx_pool_t        *pool;
    ngx_connection_t  *c;

    conn->state = NGX_REDIS_CLOSED;
    conn->setup = 0;
    conn->awaiting = 0;

    ngx_redis_knock_stop(conn);

    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    if (conn->flush.posted) {
        ngx_delete_posted_event(&conn->flush);
    }

    ngx_redis_bulk_close(conn);

    if (conn->reader) {
        redisReaderFree(conn->reader);
        conn->reader = NULL;
    }

    if (conn->out.start) {
        /* what is in it may be a password */
        ngx_explicit_memzero(conn->out.start,
                             conn->out.end - conn->out.start);
        ngx_free(conn->out.start);
        ngx_memzero(&conn->out, sizeof(ngx_buf_t));
    }

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
 * It broke, or is not to be trusted any more.  Calls that nobody waits for
 * are forgotten, the others are asked again, in order.
 */

void
ngx_redis_drop(ngx_redis_conn_t *conn, const char *fmt, ...)
{
    u_char            *p;
    va_list            args;
    ngx_uint_t         level, needed, broke;
    ngx_redis_node_t  *node;

    va_start(args, fmt);
    p = ngx_vslprintf(conn->error, conn->error + NGX_REDIS_ERROR_LEN - 1, fmt,
                      args);
    va_end(args);

    *p = '\0';

    node = conn->node;

    /* an idle connection may be closed: it will be made anew when needed */

    needed = !ngx_queue_empty(&conn->unsent) || !ngx_queue_empty(&conn->sent)
             || (conn->subscriber && conn->redis->listeners);

    level = (conn->told || conn->owner || (conn->answered && !needed))
            ? NGX_LOG_INFO : NGX_LOG_ERR;

    ngx_log_error(level, ngx_cycle->log, 0,
                  "%V: %s to Redis at %V: %s",
                  &conn->redis->label,
                  conn->state == NGX_REDIS_READY
                      ? "lost the connection" : "can't connect",
                  ngx_redis_node_label(node), conn->error);

    if (level == NGX_LOG_ERR) {
        conn->told = 1;
    }

    broke = (conn->state == NGX_REDIS_READY
             && conn->answered);

    if (conn->state == NGX_REDIS_READY
        && (conn->answered || conn->owner))
    {
        conn->failures = 0;

    } else {
        conn->failures++;
        node->addr = node->naddrs ? (node->addr + 1) % node->naddrs : 0;

        ngx_redis_resolve_soon(node);
    }

    ngx_redis_close(conn);
    ngx_redis_requeue(conn);

    if (conn->owner) {
        conn->owner->lost(conn);
        return;
    }

    if (conn->failures) {
        ngx_redis_backoff(conn);

    } else if (needed) {
        ngx_redis_flush(conn);
    }

    if (conn->subscriber) {

        if (conn->failures) {
            ngx_redis_listen(conn->redis, node);
        }

        return;
    }

    conn->redis->topology->failed(conn);

    /* another node may have them by now */

    ngx_redis_reroute(conn->redis, &conn->unsent);

    if (broke && !conn->waits) {
        ngx_redis_doubt(conn, 0);
    }

    if (conn->failures >= NGX_REDIS_GIVE_UP) {
        ngx_redis_refuse_waiting(&conn->unsent, (char *) conn->error);
    }
}


static void
ngx_redis_backoff(ngx_redis_conn_t *conn)
{
    ngx_msec_t  delay, max;

    max = ngx_queue_empty(&conn->unsent)
          ? NGX_REDIS_BACKOFF_MAX
          : NGX_REDIS_BACKOFF_WAITED;

    delay = NGX_REDIS_BACKOFF_MIN
            << ngx_min(conn->failures - 1, 8);
    delay = ngx_min(delay, max);

    /* workers that lost it together do not come back together */

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
            || (conn->subscriber && conn->redis->listeners)))
    {
        ngx_redis_connect(conn);
    }
}
