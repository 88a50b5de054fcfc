
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The topology of a single server, or of a single address with any server
 * behind it: it has all keys.
 *
 * Called through the table of topologies.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


static ngx_int_t ngx_redis_single_init(ngx_redis_t *redis);
static void ngx_redis_single_exit(ngx_redis_t *redis);
static ngx_redis_node_t *ngx_redis_single_node(ngx_redis_t *redis,
    ngx_str_t *key);
static ngx_redis_node_t *ngx_redis_single_listen(ngx_redis_t *redis,
    ngx_redis_node_t *except);
static void ngx_redis_single_failed(ngx_redis_conn_t *conn);
static ngx_int_t ngx_redis_single_refused(ngx_redis_call_t *call,
    redisReply *reply);


const ngx_redis_topology_t  ngx_redis_single = {
    ngx_redis_single_init,
    ngx_redis_single_exit,
    ngx_redis_single_node,
    ngx_redis_single_listen,
    ngx_redis_single_failed,
    ngx_redis_single_refused
};


static ngx_int_t
ngx_redis_single_init(ngx_redis_t *redis)
{
    ngx_redis_node_t  *node;

    node = ngx_redis_node_seed(redis, redis->servers.elts);
    if (node == NULL) {
        return NGX_ERROR;
    }

    redis->master = node;

    return NGX_OK;
}


static void
ngx_redis_single_exit(ngx_redis_t *redis)
{
    redis->master = NULL;
}


static ngx_redis_node_t *
ngx_redis_single_node(ngx_redis_t *redis, ngx_str_t *key)
{
    return redis->master;
}


static ngx_redis_node_t *
ngx_redis_single_listen(ngx_redis_t *redis, ngx_redis_node_t *except)
{
    return redis->master;
}


static void
ngx_redis_single_failed(ngx_redis_conn_t *conn)
{
    /* there is no other node */
}


static ngx_int_t
ngx_redis_single_refused(ngx_redis_call_t *call, redisReply *reply)
{
    return NGX_DECLINED;
}
