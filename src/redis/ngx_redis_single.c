
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
static ngx_redis_node_t *ngx_redis_single_node(ngx_redis_t *redis,
    ngx_str_t *key);


const ngx_redis_topology_t  ngx_redis_single = {
    ngx_redis_single_init,
    ngx_redis_single_node,
    NULL,
    NULL
};


static ngx_int_t
ngx_redis_single_init(ngx_redis_t *redis)
{
    redis->master = ngx_redis_node_seed(redis, redis->servers.elts);

    return redis->master ? NGX_OK : NGX_ERROR;
}


static ngx_redis_node_t *
ngx_redis_single_node(ngx_redis_t *redis, ngx_str_t *key)
{
    return redis->master;
}
