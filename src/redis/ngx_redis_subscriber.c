
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Messages: each worker has one subscriber, which is connected to a node that
 * the topology chooses, while there are listeners.
 *
 * Called by the user, and by the connection of the subscriber with messages.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


/* a subscriber that received nothing for this long is tested, ms */
#define NGX_REDIS_QUIET  10000


void
ngx_redis_listen_enter(ngx_redis_t *redis)
{
    ngx_redis_conn_t  *conn;

    conn = &redis->subscriber;

    redis->listeners++;

    if (conn->node == NULL) {
        ngx_redis_listen(redis, NULL);
    }

    if (conn->state == NGX_REDIS_CLOSED) {
        ngx_redis_flush(conn);

    } else if (conn->connection) {
        ngx_redis_idle(conn);
    }
}


void
ngx_redis_listen_leave(ngx_redis_t *redis)
{
    redis->listeners--;

    if (redis->subscriber.connection) {
        ngx_redis_idle(&redis->subscriber);
    }
}


/* moves the subscriber; it stays where it is if there is no other node */

void
ngx_redis_listen(ngx_redis_t *redis, ngx_redis_node_t *except)
{
    ngx_redis_conn_t  *conn;
    ngx_redis_node_t  *node;

    conn = &redis->subscriber;
    node = redis->topology->listen ? redis->topology->listen(redis, except)
                                   : redis->master;

    if (node == conn->node) {
        return;
    }

    if (conn->state != NGX_REDIS_BACKOFF) {
        ngx_redis_close(conn);
    }

    conn->node = node;

    if (node && redis->listeners) {
        ngx_redis_flush(conn);
    }
}


/*
 * A subscriber is usually silent, and so is one whose server has vanished.
 * Another SUBSCRIBE to the same channel tells them apart, and needs no
 * further permission.
 */

void
ngx_redis_check(ngx_redis_conn_t *conn)
{
    ngx_str_t     args[2];
    ngx_redis_t  *redis;

    redis = conn->redis;

    if (conn->state != NGX_REDIS_READY
        || ngx_current_msec - conn->last_read < NGX_REDIS_QUIET)
    {
        return;
    }

    if (!ngx_queue_empty(&conn->sent)) {

        if (ngx_current_msec - conn->last_read
            > NGX_REDIS_QUIET + redis->timeout)
        {
            ngx_redis_drop(conn, "the subscriber hears nothing");
        }

        return;
    }

    ngx_str_set(&args[0], "SUBSCRIBE");
    args[1] = *conn->channel;

    if (ngx_redis_ask(conn, NULL, args, 2) == NGX_OK) {
        ngx_redis_flush(conn);
    }
}


/* whether the reply is that of a test */

ngx_uint_t
ngx_redis_is_checked(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_str_t  kind;

    if (ngx_queue_empty(&conn->sent)
        || ngx_redis_field(reply, 0, &kind) != NGX_OK
        || kind.len != 9 || ngx_strncmp(kind.data, "subscribe", 9) != 0)
    {
        return 0;
    }

    ngx_redis_call_free(ngx_queue_data(ngx_queue_head(&conn->sent),
                                       ngx_redis_call_t, queue));
    return 1;
}


/* { "message", channel, text } */

ngx_int_t
ngx_redis_message(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_str_t  kind, text;

    if (ngx_redis_field(reply, 0, &kind) != NGX_OK
        || kind.len != 7
        || ngx_strncmp(kind.data, "message", 7) != 0
        || ngx_redis_field(reply, 2, &text) != NGX_OK)
    {
        return NGX_ERROR;
    }

    conn->redis->hooks->message(conn->redis, &text);

    return NGX_OK;
}


/* not on a connection where a WAIT would block it */

void
ngx_redis_publish(ngx_redis_call_t *call, ngx_str_t *text)
{
    ngx_str_t          args[3];
    ngx_redis_conn_t  *conn, *other;

    conn = call->conn;

    if (conn->waits) {
        other = &conn->node->conns[call->order_key % conn->node->nconns];

        if (other->state == NGX_REDIS_READY) {
            conn = other;
        }
    }

    ngx_str_set(&args[0], "PUBLISH");
    args[1] = conn->redis->channel;
    args[2] = *text;

    /* if the message is lost, the waiters find out by polling */

    if (ngx_redis_ask(conn, NULL, args, 3) == NGX_OK) {
        ngx_redis_flush(conn);
    }
}
