
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Nodes: a server, and the connections of this worker to it; and the topology
 * of a single server, which has all keys.
 *
 * A node is created when the topology first names it, and retired when the
 * topology has dropped it.  Its calls, whether sent or not, then move to the
 * nodes that have their keys now: every call may be repeated.  The node is
 * freed later, by a posted event, since a reply from the node itself may have
 * retired it.
 *
 * Called by the topologies.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


#define NGX_REDIS_NODE_SIZE  2048


static ngx_redis_node_t *ngx_redis_node_create(ngx_redis_t *redis,
    ngx_str_t *name, ngx_str_t *host, in_port_t port);
static ngx_redis_node_t *ngx_redis_node_at(ngx_redis_t *redis,
    ngx_queue_t *q);
static void ngx_redis_node_destroy(ngx_event_t *ev);
static ngx_int_t ngx_redis_single_init(ngx_redis_t *redis);
static ngx_redis_node_t *ngx_redis_single_node(ngx_redis_t *redis,
    ngx_str_t *key);
static ngx_int_t ngx_redis_single_refused(ngx_redis_call_t *call,
    redisReply *reply);


const ngx_redis_topology_t  ngx_redis_single = {
    ngx_redis_single_init,
    ngx_redis_single_node,
    NULL,
    ngx_redis_single_refused
};


ngx_redis_node_t *
ngx_redis_node_get(ngx_redis_t *redis, ngx_str_t *host, in_port_t port)
{
    u_char             text[NGX_MAXHOSTNAMELEN + sizeof("[]:65535")];
    ngx_str_t          name;
    ngx_addr_t        *addr;
    ngx_redis_node_t  *node;

    name.data = text;
    name.len = ngx_snprintf(text, sizeof(text),
                            ngx_strlchr(host->data, host->data + host->len,
                                        ':')
                                ? "[%V]:%ui" : "%V:%ui",
                            host, (ngx_uint_t) port)
               - text;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        if (node->name.len == name.len
            && ngx_strncmp(node->name.data, text, name.len) == 0)
        {
            return node;
        }
    }

    node = ngx_redis_node_create(redis, &name, host, port);

    if (node == NULL) {
        return NULL;
    }

    addr = ngx_palloc(node->pool, sizeof(ngx_addr_t));
    if (addr == NULL) {
        return node;
    }

    if (ngx_parse_addr(node->pool, addr, node->host.data, node->host.len)
        == NGX_OK)
    {
        ngx_inet_set_port(addr->sockaddr, port);
        addr->name = node->name;

        node->addrs = addr;
        node->naddrs = 1;

    } else {
        node->named = 1;
    }

    return node;
}


/* a node from the configuration; its host name may be resolved already */

ngx_redis_node_t *
ngx_redis_node_seed(ngx_redis_t *redis, ngx_redis_addr_t *addr)
{
    ngx_str_t          host;
    ngx_redis_node_t  *node;

    host = addr->url.host;

    if (host.len > 2 && host.data[0] == '[') {
        host.data++;
        host.len -= 2;
    }

    if (addr->url.family == AF_UNIX) {
        ngx_str_null(&host);

        node = ngx_redis_node_create(redis, &addr->url.url, &host, 0);
    } else {
        node = ngx_redis_node_get(redis, &host, addr->url.port);
    }

    if (node == NULL) {
        return NULL;
    }

    if (node->naddrs == 0) {
        node->addrs = addr->url.addrs;
        node->naddrs = addr->url.naddrs;
    }

    node->seed = 1;

    return node;
}


static ngx_redis_node_t *
ngx_redis_node_create(ngx_redis_t *redis, ngx_str_t *name, ngx_str_t *host,
    in_port_t port)
{
    u_char            *p;
    ngx_uint_t         i;
    ngx_pool_t        *pool;
    ngx_redis_node_t  *node;

    pool = ngx_create_pool(NGX_REDIS_NODE_SIZE, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    node = ngx_pcalloc(pool, sizeof(ngx_redis_node_t));
    if (node == NULL) {
        goto failed;
    }

    node->redis = redis;
    node->pool = pool;

    node->name.len = name->len;
    node->name.data = ngx_pstrdup(pool, name);
    if (node->name.data == NULL) {
        goto failed;
    }

    /* OpenSSL needs a NUL-terminated string */

    p = ngx_pnalloc(pool, host->len + 1);
    if (p == NULL) {
        goto failed;
    }

    node->host.len = host->len;
    node->host.data = p;
    node->port = port;

    *ngx_cpymem(p, host->data, host->len) = '\0';

    /* the resolver may modify the name */

    node->lookup.len = host->len;
    node->lookup.data = ngx_pstrdup(pool, &node->host);
    if (node->lookup.data == NULL) {
        goto failed;
    }

    /* with "replicas", the calls that need WAIT have as many connections
       again */

    node->nconns = redis->connections;
    node->total = redis->replicas ? 2 * node->nconns : node->nconns;

    node->conns = ngx_pcalloc(pool, node->total * sizeof(ngx_redis_conn_t));
    if (node->conns == NULL) {
        goto failed;
    }

    for (i = 0; i < node->total; i++) {
        ngx_redis_conn_init(&node->conns[i], redis, node);
        node->conns[i].waits = (i >= node->nconns);
    }

    ngx_housekeeping_init(&node->destroy, ngx_redis_node_destroy, node);

    if (redis->hooks->node(node) != NGX_OK) {
        goto failed;
    }

    ngx_queue_insert_tail(&redis->nodes, &node->queue);

    return node;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


ngx_redis_node_t *
ngx_redis_first(ngx_redis_t *redis)
{
    return ngx_redis_node_at(redis, ngx_queue_head(&redis->nodes));
}


ngx_redis_node_t *
ngx_redis_next(ngx_redis_node_t *node)
{
    return ngx_redis_node_at(node->redis, ngx_queue_next(&node->queue));
}


static ngx_redis_node_t *
ngx_redis_node_at(ngx_redis_t *redis, ngx_queue_t *q)
{
    return (q == ngx_queue_sentinel(&redis->nodes))
           ? NULL : ngx_queue_data(q, ngx_redis_node_t, queue);
}


/* whether the server has owed a reply for too long; sets "waits" if it owes a
   reply at all */

ngx_uint_t
ngx_redis_node_silent(ngx_redis_node_t *node, ngx_uint_t *waits)
{
    ngx_msec_t         since, limit;
    ngx_uint_t         i;
    ngx_redis_call_t  *call;
    ngx_redis_conn_t  *conn;

    limit = NGX_REDIS_SILENT + node->redis->replicas_timeout;

    for (i = 0; i < node->total; i++) {
        conn = &node->conns[i];

        if (ngx_queue_empty(&conn->sent)) {
            continue;
        }

        *waits = 1;

        call = ngx_queue_data(ngx_queue_head(&conn->sent), ngx_redis_call_t,
                              queue);

        since = ((ngx_msec_int_t) (conn->last_read - call->time) > 0)
                ? conn->last_read : call->time;

        if (ngx_current_msec - since >= limit) {
            return 1;
        }
    }

    return 0;
}


/* whether connect attempts are failing, or the server can't serve */

ngx_uint_t
ngx_redis_node_failing(ngx_redis_node_t *node)
{
    ngx_uint_t  i, waits;

    for (i = 0; i < node->total; i++) {
        if (node->conns[i].failures) {
            return 1;
        }
    }

    if (node->refused
        && ngx_current_msec - node->refused
           < 2 * NGX_REDIS_SILENT)
    {
        return 1;
    }

    return ngx_redis_node_silent(node, &waits);
}


ngx_str_t *
ngx_redis_node_label(ngx_redis_node_t *node)
{
    return node->naddrs ? &node->addrs[node->addr].name : &node->name;
}


/*
 * The node has no keys any more.  Its calls move to the nodes that have them,
 * its connections are closed, and the subscriber moves as well.  The new
 * nodes may lack some keys, so the user is told to write them again.
 */

void
ngx_redis_node_vacate(ngx_redis_node_t *node)
{
    ngx_uint_t         i, used;
    ngx_redis_call_t  *call;
    ngx_redis_conn_t  *conn;

    used = 0;

    for (i = 0; i < node->total; i++) {
        conn = &node->conns[i];

        used |= (conn->state != NGX_REDIS_CLOSED);

        ngx_redis_close(conn);

        conn->failures = 0;
        conn->failure_logged = 0;

        while (!ngx_queue_empty(&conn->unsent)) {
            call = ngx_queue_data(ngx_queue_head(&conn->unsent),
                                  ngx_redis_call_t, queue);
            ngx_redis_call_again(call);
        }
    }

    if (node->redis->subscriber.node == node) {
        ngx_redis_listen(node->redis, node);
    }

    if (used) {
        node->redis->hooks->suspect_loss(node->redis, NULL, 1);
    }
}


void
ngx_redis_node_retire(ngx_redis_node_t *node)
{
    if (node->retired) {
        return;
    }

    node->retired = 1;

    ngx_queue_remove(&node->queue);
    ngx_queue_insert_tail(&node->redis->retired, &node->queue);

    ngx_redis_node_vacate(node);
    ngx_redis_control_leave(node);
    ngx_redis_resolve_exit(node);

    ngx_post_event(&node->destroy, &ngx_posted_events);
}


static void
ngx_redis_node_destroy(ngx_event_t *ev)
{
    ngx_redis_node_t  *node;

    node = ev->data;

    ngx_queue_remove(&node->queue);

    if (node->addrs_pool) {
        ngx_destroy_pool(node->addrs_pool);
    }

    ngx_destroy_pool(node->pool);
}


void
ngx_redis_nodes_exit(ngx_redis_t *redis)
{
    ngx_uint_t         i;
    ngx_queue_t       *q;
    ngx_redis_conn_t  *conn;
    ngx_redis_node_t  *node;

    while (!ngx_queue_empty(&redis->nodes)) {
        q = ngx_queue_head(&redis->nodes);
        node = ngx_queue_data(q, ngx_redis_node_t, queue);

        ngx_redis_resolve_exit(node);
        ngx_redis_events_exit(node);

        for (i = 0; i < node->total; i++) {
            conn = &node->conns[i];

            ngx_redis_close(conn);
            ngx_redis_forget(&conn->unsent);
        }

        ngx_redis_node_destroy(&node->destroy);
    }

    while (!ngx_queue_empty(&redis->retired)) {
        q = ngx_queue_head(&redis->retired);
        node = ngx_queue_data(q, ngx_redis_node_t, queue);

        ngx_housekeeping_stop(&node->destroy);
        ngx_redis_node_destroy(&node->destroy);
    }

    redis->master = NULL;

    if (redis->slots) {
        ngx_memzero(redis->slots,
                    NGX_REDIS_SLOTS * sizeof(ngx_redis_node_t *));
    }
}


static ngx_uint_t
ngx_redis_count(ngx_queue_t *calls)
{
    ngx_uint_t    n;
    ngx_queue_t  *q;

    n = 0;

    for (q = ngx_queue_head(calls);
         q != ngx_queue_sentinel(calls);
         q = ngx_queue_next(q))
    {
        n++;
    }

    return n;
}


ngx_uint_t
ngx_redis_queued(ngx_redis_t *redis)
{
    ngx_uint_t         i, n;
    ngx_redis_node_t  *node;

    n = ngx_redis_count(&redis->waiting) + ngx_redis_count(&redis->later);

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        for (i = 0; i < node->total; i++) {
            n += ngx_redis_count(&node->conns[i].unsent);
        }
    }

    return n;
}


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


/*
 * The server is a replica.  Behind a name or a proxy another one may be the
 * master by now, and only a new connection leads there, also that of the
 * subscriber.
 */

static ngx_int_t
ngx_redis_single_refused(ngx_redis_call_t *call, redisReply *reply)
{
    ngx_addr_t        *addr;
    ngx_redis_conn_t  *conn;
    ngx_redis_node_t  *node;

    conn = call->conn;
    node = conn->node;

    if (!(ngx_redis_error_is(reply, "READONLY ")
          || ngx_redis_error_is(reply, "MASTERDOWN "))
        || conn->replica
        || ngx_current_msec - conn->ready_since < NGX_REDIS_REPLICA)
    {
        return NGX_DECLINED;
    }

    conn->replica = 1;

    addr = &node->addrs[node->addr];

    if (ngx_cmp_sockaddr(addr->sockaddr, addr->socklen,
                         &conn->sockaddr.sockaddr, conn->socklen, 1)
        == NGX_OK)
    {
        node->addr = (node->addr + 1) % node->naddrs;
    }

    ngx_redis_resolve_soon(node);

    conn = &node->redis->subscriber;

    if (conn->state == NGX_REDIS_READY) {
        ngx_redis_close(conn);

        if (node->redis->listeners) {
            ngx_redis_flush(conn);
        }
    }

    return NGX_DECLINED;
}
