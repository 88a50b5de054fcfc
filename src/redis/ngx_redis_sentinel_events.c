
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The events of sentinels.  Each worker subscribes to all of them: a sentinel
 * may be down or cut off, and the one that leads a failover publishes the
 * change only at the end, seconds after the others.
 *
 * The leading sentinel also publishes an event when it tells a replica to
 * become the master.  This is up to a second before any sentinel knows that
 * the replica is promoted.  Writes to the old master during that time are
 * lost, so calls are held back until the new master is known, but not for
 * long.
 *
 * Called by the topology; calls it with the events of its master.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


/* delay before reconnecting to a sentinel, ms */
#define NGX_REDIS_LISTEN  1000

/* how long calls are held back during a failover, ms */
#define NGX_REDIS_PROMOTING  3000


static void ngx_redis_events_connect(ngx_event_t *ev);
static void ngx_redis_events_ready(ngx_redis_conn_t *conn);
static void ngx_redis_events_lost(ngx_redis_conn_t *conn);
static void ngx_redis_events_promoting(ngx_redis_t *redis, ngx_str_t *text);
static void ngx_redis_events_promoted(ngx_event_t *ev);
static ngx_int_t ngx_redis_events_message(ngx_redis_conn_t *conn,
    redisReply *reply);


static const ngx_redis_owner_t
    ngx_redis_events_owner =
{
    ngx_redis_events_ready,
    ngx_redis_events_lost,
    ngx_redis_events_message
};


static ngx_str_t  ngx_redis_events_channel = ngx_string("+switch-master");

static ngx_str_t  ngx_redis_events_second =
    ngx_string("+failover-state-wait-promotion");


ngx_int_t
ngx_redis_events_init(ngx_redis_node_t *sentinel)
{
    ngx_redis_conn_t  *conn;

    if (sentinel->events) {
        /* the sentinel is configured twice */
        return NGX_OK;
    }

    conn = ngx_pcalloc(sentinel->pool, sizeof(ngx_redis_conn_t));
    if (conn == NULL) {
        return NGX_ERROR;
    }

    ngx_redis_conn_init(conn, sentinel->redis, sentinel);

    conn->owner = &ngx_redis_events_owner;
    conn->channel = &ngx_redis_events_channel;
    conn->second_channel = &ngx_redis_events_second;

    sentinel->events = conn;

    ngx_housekeeping_init(&sentinel->events_timer, ngx_redis_events_connect,
                         conn);
    ngx_post_event(&sentinel->events_timer, &ngx_posted_events);

    return NGX_OK;
}


void
ngx_redis_events_exit(ngx_redis_node_t *sentinel)
{
    if (sentinel->events == NULL) {
        return;
    }

    ngx_housekeeping_stop(&sentinel->events_timer);
    ngx_redis_close(sentinel->events);
}


/* tests the subscriptions to the sentinels */

void
ngx_redis_events_check(ngx_redis_t *redis)
{
    ngx_redis_node_t  *node;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        if (node->events) {
            ngx_redis_check(node->events);
        }
    }
}


static void
ngx_redis_events_connect(ngx_event_t *ev)
{
    ngx_redis_connect(ev->data);
}


/* events may have been missed */

static void
ngx_redis_events_ready(ngx_redis_conn_t *conn)
{
    ngx_redis_control_want(conn->redis);
}


static void
ngx_redis_events_lost(ngx_redis_conn_t *conn)
{
    ngx_add_timer(&conn->node->events_timer,
                  NGX_REDIS_LISTEN + ngx_random() % NGX_REDIS_LISTEN);
}


static ngx_int_t
ngx_redis_events_message(ngx_redis_conn_t *conn, redisReply *reply)
{
    in_port_t  port;
    ngx_str_t  host, text, channel;

    if (ngx_redis_field(reply, 1, &channel) != NGX_OK
        || ngx_redis_field(reply, 2, &text) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (channel.len == conn->second_channel->len
        && ngx_strncmp(channel.data, conn->second_channel->data, channel.len)
           == 0)
    {
        ngx_redis_events_promoting(conn->redis, &text);
        return NGX_OK;
    }

    if (ngx_redis_switched(&text, &conn->redis->master_name, &host, &port)
        == NGX_OK)
    {
        ngx_redis_sentinel_switched(conn->node, &host, port);
    }

    return NGX_OK;
}


static void
ngx_redis_events_promoting(ngx_redis_t *redis, ngx_str_t *text)
{
    in_port_t          port;
    ngx_str_t          host;
    ngx_redis_node_t  *master;

    master = redis->master;

    /* a late event of a master that is not in use any more is ignored */

    if (ngx_redis_promoting(text, &redis->master_name, &host, &port) != NGX_OK
        || redis->promoting.timer_set
        || !ngx_redis_sentinel_is(master, &host, port))
    {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "%V: the master \"%V\" at %V is "
                  "about to be replaced", &redis->label,
                  &redis->master_name, &master->name);

    ngx_housekeeping_init(&redis->promoting, ngx_redis_events_promoted, redis);
    ngx_add_timer(&redis->promoting, NGX_REDIS_PROMOTING);
}


/* the failover did not happen, or no sentinel published it */

static void
ngx_redis_events_promoted(ngx_event_t *ev)
{
    ngx_redis_t  *redis;

    redis = ev->data;

    ngx_redis_control_want(redis);
    ngx_redis_reroute(&redis->waiting);
}
