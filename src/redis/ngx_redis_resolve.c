
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Resolves the host names of servers at run time, with nginx's resolver.
 *
 * A name from the configuration has addresses from the start, if the master
 * process could resolve it.  A name that is announced by a cluster or a
 * sentinel has none.  A name is resolved when the first connection is opened,
 * when a connection can't be opened, and when the result expires.  Meanwhile
 * connections use the addresses that are known, or wait if there are none.  A
 * connection to an address that the name does not have any more is dropped,
 * and its calls are sent again.
 *
 * Called by the setup, and when a connection fails.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


/* minimum time between two lookups of a name, and the delay after a failed
   lookup without and with known addresses, ms */
#define NGX_REDIS_RESOLVE_MIN   1000
#define NGX_REDIS_RESOLVE_RETRY 5000
#define NGX_REDIS_RESOLVE_LONG  60000

/* limit of the TTL of a result, s */
#define NGX_REDIS_RESOLVE_MAX   3600

#define NGX_REDIS_ADDRS_SIZE    512


static ngx_int_t ngx_redis_resolve(ngx_redis_node_t *node);
static void ngx_redis_resolve_handler(ngx_resolver_ctx_t *ctx);
static void ngx_redis_resolved(ngx_redis_node_t *node,
    ngx_resolver_ctx_t *ctx);
static ngx_addr_t *ngx_redis_resolved_addrs(ngx_pool_t *pool,
    ngx_resolver_ctx_t *ctx, in_port_t port);
static ngx_uint_t ngx_redis_has_addr(ngx_redis_node_t *node,
    struct sockaddr *sockaddr, socklen_t socklen);
static void ngx_redis_resolve_again(ngx_redis_node_t *node, ngx_msec_t delay);
static void ngx_redis_resolve_timer(ngx_event_t *ev);
static void ngx_redis_resolved_conn(ngx_redis_conn_t *conn);


/*
 * NGX_DECLINED: the lookup could not be started.  Otherwise the connections
 * that wait for the result are continued; before this function returns, if
 * the resolver has the result in its cache.
 */

static ngx_int_t
ngx_redis_resolve(ngx_redis_node_t *node)
{
    ngx_resolver_t      *resolver;
    ngx_resolver_ctx_t  *ctx;

    resolver = node->redis->resolver;

    if (resolver == NULL) {
        return NGX_DECLINED;
    }

    if (node->resolving || node->retired) {
        return NGX_OK;
    }

    if (node->resolved
        && ngx_current_msec - node->resolved
           < NGX_REDIS_RESOLVE_MIN)
    {
        ngx_redis_resolve_again(node, NGX_REDIS_RESOLVE_MIN);
        return NGX_OK;
    }

    node->resolved = ngx_current_msec | 1;

    ctx = ngx_resolve_start(resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return NGX_DECLINED;
    }

    ctx->name = node->lookup;
    ctx->handler = ngx_redis_resolve_handler;
    ctx->data = node;
    ctx->timeout = node->redis->connect_timeout;
    ctx->cancelable = 1;

    node->resolving = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        node->resolving = NULL;
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* deferred, since the caller is still using the connection */

void
ngx_redis_resolve_soon(ngx_redis_node_t *node)
{
    if (node->named && node->redis->resolver && !node->resolving
        && !node->retired)
    {
        ngx_redis_resolve_again(node, 1);
    }
}


/* the node is retired, or the worker is exiting */

void
ngx_redis_resolve_exit(ngx_redis_node_t *node)
{
    if (node->resolving) {
        ngx_resolve_name_done(node->resolving);
        node->resolving = NULL;
    }

    ngx_housekeeping_stop(&node->resolve_timer);
}


static void
ngx_redis_resolve_handler(ngx_resolver_ctx_t *ctx)
{
    ngx_uint_t         i, level;
    ngx_redis_conn_t  *more[3];
    ngx_redis_node_t  *node;

    node = ctx->data;

    if (ctx->state == NGX_OK) {
        node->unresolved = 0;

        ngx_redis_resolved(node, ctx);

    } else {
        level = node->unresolved ? NGX_LOG_INFO
                : node->naddrs ? NGX_LOG_WARN
                : NGX_LOG_ERR;

        ngx_log_error(level, ngx_cycle->log, 0,
                      "%V: the name of Redis at %V "
                      "could not be resolved (%i: %s)",
                      &node->redis->label, &node->name, ctx->state,
                      ngx_resolver_strerror(ctx->state));

        node->unresolved = 1;

        ngx_redis_resolve_again(node, node->naddrs
                                   ? NGX_REDIS_RESOLVE_LONG
                                   : NGX_REDIS_RESOLVE_RETRY);
    }

    ngx_resolve_name_done(ctx);
    node->resolving = NULL;

    for (i = 0; i < node->total; i++) {
        ngx_redis_resolved_conn(&node->conns[i]);
    }

    /* the dedicated connections, which may be to this node */

    more[0] = &node->redis->subscriber;
    more[1] = &node->redis->control.conn;
    more[2] = node->events;

    for (i = 0; i < 3; i++) {
        if (more[i] && more[i]->node == node) {
            ngx_redis_resolved_conn(more[i]);
        }
    }
}


static void
ngx_redis_resolved(ngx_redis_node_t *node, ngx_resolver_ctx_t *ctx)
{
    time_t       left;
    ngx_uint_t   i, same;
    ngx_addr_t  *addrs;
    ngx_pool_t  *pool;

    left = ctx->valid - ngx_time();
    left = ngx_max(left, 1);
    left = ngx_min(left, NGX_REDIS_RESOLVE_MAX);

    ngx_redis_resolve_again(node, (ngx_msec_t) left * 1000);

    pool = ngx_create_pool(NGX_REDIS_ADDRS_SIZE, ngx_cycle->log);
    if (pool == NULL) {
        return;
    }

    addrs = ngx_redis_resolved_addrs(pool, ctx, node->port);

    if (addrs == NULL) {
        ngx_destroy_pool(pool);
        return;
    }

    /* name servers rotate the addresses, so their order does not count */

    same = (node->naddrs == ctx->naddrs);

    for (i = 0; same && i < ctx->naddrs; i++) {
        same = ngx_redis_has_addr(node, addrs[i].sockaddr, addrs[i].socklen);
    }

    if (same) {
        ngx_destroy_pool(pool);
        return;
    }

    ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                  "%V: Redis at %V is at %V%s",
                  &node->redis->label, &node->name, &addrs[0].name,
                  ctx->naddrs > 1 ? " and others" : "");

    if (node->addrs_pool) {
        ngx_destroy_pool(node->addrs_pool);
    }

    node->addrs_pool = pool;
    node->addrs = addrs;
    node->naddrs = ctx->naddrs;
    node->addr = 0;
}


static ngx_addr_t *
ngx_redis_resolved_addrs(ngx_pool_t *pool, ngx_resolver_ctx_t *ctx,
    in_port_t port)
{
    u_char           *p;
    ngx_uint_t        i;
    ngx_addr_t       *addrs;
    struct sockaddr  *sockaddr;

    addrs = ngx_pcalloc(pool, ctx->naddrs * sizeof(ngx_addr_t));
    if (addrs == NULL) {
        return NULL;
    }

    for (i = 0; i < ctx->naddrs; i++) {
        sockaddr = ngx_palloc(pool, ctx->addrs[i].socklen);
        p = ngx_pnalloc(pool, NGX_SOCKADDR_STRLEN);

        if (sockaddr == NULL || p == NULL) {
            return NULL;
        }

        ngx_memcpy(sockaddr, ctx->addrs[i].sockaddr, ctx->addrs[i].socklen);
        ngx_inet_set_port(sockaddr, port);

        addrs[i].sockaddr = sockaddr;
        addrs[i].socklen = ctx->addrs[i].socklen;
        addrs[i].name.data = p;
        addrs[i].name.len = ngx_sock_ntop(sockaddr, addrs[i].socklen, p,
                                          NGX_SOCKADDR_STRLEN, 1);
    }

    return addrs;
}


static ngx_uint_t
ngx_redis_has_addr(ngx_redis_node_t *node, struct sockaddr *sockaddr,
    socklen_t socklen)
{
    ngx_uint_t  i;

    for (i = 0; i < node->naddrs; i++) {
        if (ngx_cmp_sockaddr(node->addrs[i].sockaddr, node->addrs[i].socklen,
                             sockaddr, socklen, 1)
            == NGX_OK)
        {
            return 1;
        }
    }

    return 0;
}


static void
ngx_redis_resolve_again(ngx_redis_node_t *node, ngx_msec_t delay)
{
    ngx_housekeeping_init(&node->resolve_timer, ngx_redis_resolve_timer, node);
    ngx_housekeeping_within(&node->resolve_timer, delay);
}


static void
ngx_redis_resolve_timer(ngx_event_t *ev)
{
    (void) ngx_redis_resolve(ev->data);
}


/*
 * Drops a connection to an address that the name does not have any more, and
 * continues one that waits for the addresses.  A name never loses its last
 * address, so a node has connections of one kind only.
 */

static void
ngx_redis_resolved_conn(ngx_redis_conn_t *conn)
{
    if (conn->connection) {

        if (!ngx_redis_has_addr(conn->node, &conn->sockaddr.sockaddr,
                                conn->socklen))
        {
            ngx_redis_drop(conn, "its name has other addresses now");
        }

        return;
    }

    if (conn->state != NGX_REDIS_CONNECTING) {
        return;
    }

    if (conn->node->naddrs == 0) {
        ngx_redis_drop(conn, "its name could not be resolved");
        return;
    }

    ngx_housekeeping_stop(&conn->timer);
    ngx_redis_connect(conn);
}


/* the node has no address yet */

void
ngx_redis_lookup(ngx_redis_conn_t *conn)
{
    ngx_redis_t  *redis;

    redis = conn->redis;

    ngx_add_timer(&conn->timer, redis->connect_timeout);

    /* this may continue the connection before it returns */

    if (ngx_redis_resolve(conn->node) != NGX_DECLINED) {
        return;
    }

    if (redis->resolver == NULL && !redis->no_resolver) {
        redis->no_resolver = 1;

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "%V: a server is announced as "
                      "\"%V\", and there is no \"resolver\" directive in the "
                      "http block to look up its name",
                      &redis->label, &conn->node->name);
    }

    ngx_redis_drop(conn, "its name can't be looked up");
}
