
/*
 * What sentinels publish.  Each worker listens to all of them: one may be away
 * or cut off, and the one that leads a failover publishes it when it is
 * through, seconds after the others.
 *
 * Called by the topology; calls it with what is published of its master.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/topology/ngx_http_idempotency_redis_topology.h"


/* before a sentinel that was lost is listened to again */
#define NGX_HTTP_IDEMPOTENCY_REDIS_LISTEN  1000


static void ngx_http_idempotency_redis_events_connect(ngx_event_t *ev);
static void ngx_http_idempotency_redis_events_ready(
    ngx_http_idempotency_redis_conn_t *conn);
static void ngx_http_idempotency_redis_events_lost(
    ngx_http_idempotency_redis_conn_t *conn);
static ngx_int_t ngx_http_idempotency_redis_events_message(
    ngx_http_idempotency_redis_conn_t *conn, redisReply *reply);


static const ngx_http_idempotency_redis_owner_t
    ngx_http_idempotency_redis_events_owner =
{
    ngx_http_idempotency_redis_events_ready,
    ngx_http_idempotency_redis_events_lost,
    ngx_http_idempotency_redis_events_message
};


static ngx_str_t  ngx_http_idempotency_redis_events_channel =
    ngx_string("+switch-master");


ngx_int_t
ngx_http_idempotency_redis_events_init(
    ngx_http_idempotency_redis_node_t *sentinel)
{
    ngx_http_idempotency_redis_conn_t  *conn;

    if (sentinel->events) {
        /* it is in the configuration twice */
        return NGX_OK;
    }

    conn = ngx_pcalloc(sentinel->pool,
                       sizeof(ngx_http_idempotency_redis_conn_t));
    if (conn == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_redis_conn_init(conn, sentinel->redis, sentinel);

    conn->owner = &ngx_http_idempotency_redis_events_owner;
    conn->subscriber = 1;
    conn->channel = &ngx_http_idempotency_redis_events_channel;

    sentinel->events = conn;

    sentinel->events_timer.handler =
                                   ngx_http_idempotency_redis_events_connect;
    sentinel->events_timer.data = conn;
    sentinel->events_timer.log = ngx_cycle->log;
    sentinel->events_timer.cancelable = 1;

    ngx_post_event(&sentinel->events_timer, &ngx_posted_events);

    return NGX_OK;
}


void
ngx_http_idempotency_redis_events_exit(
    ngx_http_idempotency_redis_node_t *sentinel)
{
    if (sentinel->events == NULL) {
        return;
    }

    if (sentinel->events_timer.timer_set) {
        ngx_del_timer(&sentinel->events_timer);
    }

    if (sentinel->events_timer.posted) {
        ngx_delete_posted_event(&sentinel->events_timer);
    }

    ngx_http_idempotency_redis_close(sentinel->events);
    ngx_http_idempotency_redis_requeue(sentinel->events);
}


/* do they still hear? */

void
ngx_http_idempotency_redis_events_check(ngx_http_idempotency_redis_t *redis)
{
    ngx_queue_t                        *q;
    ngx_http_idempotency_redis_node_t  *node;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_http_idempotency_redis_node_t, queue);

        if (node->events) {
            ngx_http_idempotency_redis_check(node->events);
        }
    }
}


static void
ngx_http_idempotency_redis_events_connect(ngx_event_t *ev)
{
    ngx_http_idempotency_redis_connect(ev->data);
}


/* what was published before went by */

static void
ngx_http_idempotency_redis_events_ready(
    ngx_http_idempotency_redis_conn_t *conn)
{
    ngx_http_idempotency_redis_control_want(conn->redis);
}


static void
ngx_http_idempotency_redis_events_lost(ngx_http_idempotency_redis_conn_t *conn)
{
    ngx_add_timer(&conn->node->events_timer,
                  NGX_HTTP_IDEMPOTENCY_REDIS_LISTEN
                  + ngx_random() % NGX_HTTP_IDEMPOTENCY_REDIS_LISTEN);
}


static ngx_int_t
ngx_http_idempotency_redis_events_message(
    ngx_http_idempotency_redis_conn_t *conn, redisReply *reply)
{
    in_port_t  port;
    ngx_str_t  host, text;

    if (ngx_http_idempotency_redis_is_checked(conn, reply)) {
        return NGX_OK;
    }

    if (ngx_http_idempotency_redis_field(reply, 2, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_idempotency_redis_switched(&text, &conn->redis->master_name,
                                            &host, &port)
        == NGX_OK)
    {
        ngx_http_idempotency_redis_sentinel_told(conn->node, &host, port);
    }

    return NGX_OK;
}
