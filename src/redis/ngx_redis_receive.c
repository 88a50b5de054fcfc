
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Receives replies and passes them to the calls that were sent, in order.  A
 * reply without a call, or bytes that are not a reply, close the connection.
 *
 * Called by nginx's events; calls the handlers of the calls.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"


#define NGX_REDIS_READ_SIZE  65536


static ngx_int_t ngx_redis_received(ngx_redis_conn_t *conn, u_char *buffer,
    size_t n);
static ngx_int_t ngx_redis_reply(ngx_redis_conn_t *conn, redisReply *reply);


void
ngx_redis_read_handler(ngx_event_t *rev)
{
    size_t             got;
    ssize_t            n;
    ngx_connection_t  *c;
    ngx_redis_conn_t  *conn;

    static u_char  buffer[NGX_REDIS_READ_SIZE];

    c = rev->data;
    conn = c->data;

    if (c->close) {

        /* a request that was ended before may have queued calls */

        ngx_redis_idle(conn);

        if (c->idle) {
            ngx_redis_close(conn);
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

    for (got = 0; rev->ready || got == 0; got += n) {

        if (got >= NGX_REDIS_TURN_SIZE) {

            /* let other connections proceed */

            ngx_post_event(rev, &ngx_posted_next_events);
            break;
        }

        n = conn->in.start
            ? c->recv(c, conn->in.last, conn->in.end - conn->in.last)
            : c->recv(c, buffer, sizeof(buffer));

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == 0) {
            ngx_redis_drop(conn, "the server closed it");
            return;
        }

        if (n == NGX_ERROR) {
            ngx_redis_drop(conn, "receiving failed");
            return;
        }

        conn->last_read = ngx_current_msec;

        if (ngx_redis_received(conn, buffer, n) != NGX_OK) {
            return;
        }
    }

    if (conn->replica && ngx_queue_empty(&conn->sent)) {
        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "%V: Redis at %V is a replica, connecting anew",
                      &conn->redis->label, ngx_redis_node_label(conn->node));

        ngx_redis_close(conn);
        ngx_redis_flush(conn);
        return;
    }

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_redis_drop(conn, "no event for reading");
        return;
    }

    ngx_redis_idle(conn);
}


/* NGX_DONE: the connection was closed */

static ngx_int_t
ngx_redis_received(ngx_redis_conn_t *conn, u_char *buffer, size_t n)
{
    void  *reply;

    if (conn->in.start) {
        conn->in.last += n;

        if (conn->in.last < conn->in.end) {
            return NGX_OK;
        }

        reply = ngx_redis_bulk_reply(conn);

        if (reply == NULL) {
            ngx_redis_drop(conn, "it does not speak the protocol");
            return NGX_DONE;
        }

        return ngx_redis_reply(conn, reply);
    }

    if (conn->reader->len > NGX_REDIS_REPLY_MAX
        || redisReaderFeed(conn->reader, (char *) buffer, n) != REDIS_OK)
    {
        ngx_redis_drop(conn, "a reply is too large");
        return NGX_DONE;
    }

    for ( ;; ) {
        reply = NULL;

        if (redisReaderGetReply(conn->reader, &reply) != REDIS_OK) {
            ngx_redis_drop(conn, "it does not speak the protocol");
            return NGX_DONE;
        }

        if (reply == NULL) {

            if (ngx_redis_bulk_expect(conn) != NGX_OK) {
                ngx_redis_drop(conn, "a reply is too large");
                return NGX_DONE;
            }

            return NGX_OK;
        }

        if (ngx_redis_reply(conn, reply) != NGX_OK) {
            return NGX_DONE;
        }
    }
}


static ngx_int_t
ngx_redis_reply(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_int_t          rc;
    ngx_queue_t       *q;
    ngx_connection_t  *c;
    ngx_redis_call_t  *call;

    c = conn->connection;

    if (conn->channel && conn->state == NGX_REDIS_READY) {
        rc = ngx_redis_is_checked(conn, reply) ? NGX_OK
             : conn->owner ? conn->owner->message(conn, reply)
             : ngx_redis_message(conn, reply);

        freeReplyObject(reply);

        if (conn->connection != c) {
            return NGX_DONE;
        }

        if (rc != NGX_OK) {
            ngx_redis_drop(conn, "not a message of ours");
            return NGX_DONE;
        }

        return NGX_OK;
    }

    if (ngx_queue_empty(&conn->sent)) {
        freeReplyObject(reply);
        ngx_redis_drop(conn, "an unasked reply came");
        return NGX_DONE;
    }

    q = ngx_queue_head(&conn->sent);
    call = ngx_queue_data(q, ngx_redis_call_t, queue);

    if (conn->state == NGX_REDIS_READY && !conn->answered && !conn->owner) {
        ngx_redis_first_reply(conn);
    }

    if (call->two_replies && call->first_reply == NULL) {
        call->first_reply = reply;
        return NGX_OK;
    }

    /*
     * There are more replies than calls, so one of the replies so far was
     * unexpected.  It may be this one, and not every reply can be recognized.
     */

    if (ngx_queue_next(q) == ngx_queue_sentinel(&conn->sent)
        && conn->reader->pos < conn->reader->len)
    {
        freeReplyObject(reply);
        ngx_redis_drop(conn, "an unasked reply came");
        return NGX_DONE;
    }

    /* the handler frees the call, or sends it again */

    call->replied = 1;
    ngx_redis_call_replied(call, reply);

    freeReplyObject(reply);

    return (conn->connection == c) ? NGX_OK : NGX_DONE;
}
