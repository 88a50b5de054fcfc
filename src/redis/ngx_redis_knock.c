
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * More attempts to connect, while the first gets no answer.
 *
 * Where packets are dropped, an attempt to connect hears nothing, and the
 * kernel repeats it ever more rarely: when the network is back, that attempt
 * may not notice for as long as it was away.  So another one is made ten times
 * a second, and the first that succeeds becomes the connection.  The last few
 * live on beside the first one, so that a server which is far away has the
 * time to answer.  All of them end with the first, after connect_timeout.
 *
 * Called when an attempt begins and when it ends; calls the set-up with the
 * one that succeeded.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


#define NGX_REDIS_KNOCK  100


static void ngx_redis_knock_answer(ngx_event_t *ev);
static void ngx_redis_knock_adopt(ngx_redis_conn_t *conn,
    ngx_connection_t *c);
static void ngx_redis_knock_forget(ngx_redis_conn_t *conn,
    ngx_connection_t *c);


void
ngx_redis_knock(ngx_redis_conn_t *conn)
{
    /* nothing that ran waits for the others */

    if (conn->owner || conn->subscriber) {
        return;
    }

    ngx_add_timer(&conn->knock, NGX_REDIS_KNOCK);
}


void
ngx_redis_knock_stop(ngx_redis_conn_t *conn)
{
    ngx_uint_t  i;

    if (conn->knock.timer_set) {
        ngx_del_timer(&conn->knock);
    }

    for (i = 0; i < NGX_REDIS_KNOCKS; i++) {
        if (conn->knocks[i]) {
            ngx_close_connection(conn->knocks[i]);
            conn->knocks[i] = NULL;
        }
    }
}


void
ngx_redis_knock_handler(ngx_event_t *ev)
{
    ngx_int_t              rc;
    ngx_uint_t             last;
    ngx_connection_t      *c;
    ngx_peer_connection_t  pc;
    ngx_redis_conn_t      *conn;

    conn = ev->data;
    last = NGX_REDIS_KNOCKS - 1;

    ngx_add_timer(ev, NGX_REDIS_KNOCK);

    ngx_memzero(&pc, sizeof(ngx_peer_connection_t));

    pc.sockaddr = &conn->sockaddr.sockaddr;
    pc.socklen = conn->socklen;
    pc.name = ngx_redis_node_label(conn->node);
    pc.get = ngx_event_get_peer;
    pc.log = ngx_cycle->log;
    pc.log_error = NGX_ERROR_INFO;

    rc = ngx_event_connect_peer(&pc);

    if (rc != NGX_OK && rc != NGX_AGAIN) {
        return;
    }

    c = pc.connection;

    c->data = conn;
    c->read->handler = ngx_redis_knock_answer;
    c->write->handler = ngx_redis_knock_answer;

    if (conn->knocks[last]) {
        ngx_close_connection(conn->knocks[last]);
    }

    ngx_memmove(&conn->knocks[1], &conn->knocks[0],
                last * sizeof(ngx_connection_t *));

    conn->knocks[0] = c;

    if (rc == NGX_OK) {
        ngx_redis_knock_adopt(conn, c);
    }
}


static void
ngx_redis_knock_answer(ngx_event_t *ev)
{
    ngx_connection_t  *c;
    ngx_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    if (ngx_redis_connect_error(c)) {
        /* the first attempt is told the same, sooner or later */
        ngx_redis_knock_forget(conn, c);
        ngx_close_connection(c);
        return;
    }

    if (ev->write) {
        ngx_redis_knock_adopt(conn, c);
    }
}


/* in place of the one that got no answer */

static void
ngx_redis_knock_adopt(ngx_redis_conn_t *conn, ngx_connection_t *c)
{
    ngx_connection_t  *old;

    ngx_redis_knock_forget(conn, c);

    old = conn->connection;

    c->pool = old->pool;
    old->pool = NULL;

    ngx_close_connection(old);

    conn->connection = c;

    c->read->handler = ngx_redis_connect_handler;
    c->write->handler = ngx_redis_connect_handler;

    /* TLS and the set-up have their time from now on */

    ngx_del_timer(&conn->timer);
    ngx_add_timer(&conn->timer, conn->redis->connect_timeout);

    ngx_redis_connected(conn);
}


static void
ngx_redis_knock_forget(ngx_redis_conn_t *conn, ngx_connection_t *c)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_REDIS_KNOCKS; i++) {
        if (conn->knocks[i] == c) {
            conn->knocks[i] = NULL;
        }
    }
}
