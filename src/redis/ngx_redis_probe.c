
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Additional connect attempts while the first one is unanswered.
 *
 * If packets are dropped, the kernel repeats its SYN with an increasing
 * delay.  When the network is back, the attempt may not notice for as long as
 * the outage lasted.  So another attempt is made ten times a second, and the
 * first one that succeeds becomes the connection.  The last NGX_REDIS_PROBES
 * attempts are kept besides the first one, so that a distant server has time
 * to answer.  All of them end with the first one, after connect_timeout.
 *
 * Called when a connect attempt starts and ends; calls the setup when an
 * additional attempt succeeds.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


#define NGX_REDIS_PROBE  100


static void ngx_redis_probe_answer(ngx_event_t *ev);
static void ngx_redis_probe_adopt(ngx_redis_conn_t *conn,
    ngx_connection_t *c);
static void ngx_redis_probe_forget(ngx_redis_conn_t *conn,
    ngx_connection_t *c);


void
ngx_redis_probe(ngx_redis_conn_t *conn)
{
    /* other connections carry no commits, so they need not be back this
       fast */

    if (conn->owner || conn->channel) {
        return;
    }

    ngx_add_timer(&conn->probe, NGX_REDIS_PROBE);
}


void
ngx_redis_probe_stop(ngx_redis_conn_t *conn)
{
    ngx_uint_t  i;

    ngx_housekeeping_stop(&conn->probe);

    for (i = 0; i < NGX_REDIS_PROBES; i++) {
        if (conn->probes[i]) {
            ngx_close_connection(conn->probes[i]);
            conn->probes[i] = NULL;
        }
    }
}


void
ngx_redis_probe_handler(ngx_event_t *ev)
{
    ngx_int_t          rc;
    ngx_uint_t         last;
    ngx_connection_t  *c;
    ngx_redis_conn_t  *conn;

    conn = ev->data;
    last = NGX_REDIS_PROBES - 1;

    ngx_add_timer(ev, NGX_REDIS_PROBE);

    rc = ngx_redis_attempt(conn, ngx_redis_probe_answer, &c);

    if (rc == NGX_ERROR) {
        return;
    }

    if (conn->probes[last]) {
        ngx_close_connection(conn->probes[last]);
    }

    ngx_memmove(&conn->probes[1], &conn->probes[0],
                last * sizeof(ngx_connection_t *));

    conn->probes[0] = c;

    if (rc == NGX_OK) {
        ngx_redis_probe_adopt(conn, c);
    }
}


static void
ngx_redis_probe_answer(ngx_event_t *ev)
{
    ngx_connection_t  *c;
    ngx_redis_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    if (ngx_redis_connect_error(c)) {
        /* the first attempt will get the same error */
        ngx_redis_probe_forget(conn, c);
        ngx_close_connection(c);
        return;
    }

    if (ev->write) {
        ngx_redis_probe_adopt(conn, c);
    }
}


/* replaces the first attempt */

static void
ngx_redis_probe_adopt(ngx_redis_conn_t *conn, ngx_connection_t *c)
{
    ngx_connection_t  *old;

    ngx_redis_probe_forget(conn, c);

    old = conn->connection;

    c->pool = old->pool;
    old->pool = NULL;

    ngx_close_connection(old);

    conn->connection = c;

    c->read->handler = ngx_redis_connect_handler;
    c->write->handler = ngx_redis_connect_handler;

    /* TLS and the setup have the full timeout */

    ngx_del_timer(&conn->timer);
    ngx_add_timer(&conn->timer, conn->redis->connect_timeout);

    ngx_redis_connected(conn);
}


static void
ngx_redis_probe_forget(ngx_redis_conn_t *conn, ngx_connection_t *c)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_REDIS_PROBES; i++) {
        if (conn->probes[i] == c) {
            conn->probes[i] = NULL;
        }
    }
}
