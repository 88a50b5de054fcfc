
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The topology of a cluster: a key has a slot, a slot has a node.
 *
 * The slots are learned from the reply to CLUSTER SLOTS of any node that
 * answers.  All configured and all known nodes are candidates, including
 * replicas, so every node of the cluster may be replaced over time.  The
 * slots are queried at start, periodically, and after any sign of a change: a
 * redirect, or a node that can't be reached.  MOVED changes the slot at once,
 * ASK redirects a single call.
 *
 * While a node is down, the calls for its slots wait or fail, and no others.
 * The slots are then queried more often, to find the replica that is
 * promoted.
 *
 * Called through the table of topologies.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


/* time between rounds if there is no reason for an earlier one, ms */
#define NGX_REDIS_REFRESH        60000

/* how long a node that was the target of ASK is kept without slots, ms */
#define NGX_REDIS_IMPORTING      10000

/* redirects of one call: those that are followed at once, and the limit */
#define NGX_REDIS_REDIRECTS      4
#define NGX_REDIS_REDIRECTS_MAX  32


static ngx_int_t ngx_redis_cluster_init(ngx_redis_t *redis);
static ngx_redis_node_t *ngx_redis_cluster_node(ngx_redis_t *redis,
    ngx_str_t *key);
static ngx_redis_node_t *ngx_redis_cluster_listen(ngx_redis_t *redis,
    ngx_redis_node_t *except);
static ngx_int_t ngx_redis_cluster_refused(ngx_redis_call_t *call,
    redisReply *reply);
static ngx_int_t ngx_redis_cluster_redirected(ngx_redis_call_t *call,
    redisReply *reply, ngx_redis_redirect_t *to);
static void ngx_redis_cluster_host(ngx_redis_conn_t *conn, ngx_str_t *host,
    u_char *text);
static ngx_redis_node_t *ngx_redis_cluster_next(ngx_redis_t *redis);
static ngx_int_t ngx_redis_cluster_answer(ngx_redis_t *redis,
    ngx_redis_node_t *asked, redisReply *reply);
static ngx_msec_t ngx_redis_cluster_pause(ngx_redis_t *redis);
static void ngx_redis_cluster_map(ngx_redis_t *redis, redisReply *reply,
    ngx_str_t *host);
static void ngx_redis_cluster_sweep(ngx_redis_t *redis);


const ngx_redis_topology_t  ngx_redis_cluster = {
    ngx_redis_cluster_init,
    ngx_redis_cluster_node,
    ngx_redis_cluster_listen,
    ngx_redis_cluster_refused
};


static const ngx_redis_query_t  ngx_redis_cluster_query = {
    "the slots of the cluster",
    ngx_redis_cluster_next,
    { ngx_null_string, ngx_null_string },
    NULL,
    { ngx_string("CLUSTER"), ngx_string("SLOTS") },
    ngx_redis_cluster_answer,
    ngx_redis_cluster_pause
};


static ngx_int_t
ngx_redis_cluster_init(ngx_redis_t *redis)
{
    ngx_uint_t         i;
    ngx_redis_addr_t  *addr;

    redis->slots = ngx_pcalloc(ngx_cycle->pool,
                               NGX_REDIS_SLOTS * sizeof(ngx_redis_node_t *));
    if (redis->slots == NULL) {
        return NGX_ERROR;
    }

    addr = redis->servers.elts;

    for (i = 0; i < redis->servers.nelts; i++) {
        if (ngx_redis_node_seed(redis, &addr[i]) == NULL) {
            return NGX_ERROR;
        }
    }

    ngx_redis_control_init(redis, &ngx_redis_cluster_query);

    return NGX_OK;
}


static ngx_redis_node_t *
ngx_redis_cluster_node(ngx_redis_t *redis, ngx_str_t *key)
{
    ngx_redis_node_t  *node;

    node = redis->slots[ngx_redis_slot(key->data, key->len)];

    if (node == NULL) {
        ngx_redis_control_want(redis);
        return NULL;
    }

    ngx_redis_control_listen(redis);

    return node;
}


/* messages are propagated to all nodes of a cluster */

static ngx_redis_node_t *
ngx_redis_cluster_listen(ngx_redis_t *redis, ngx_redis_node_t *except)
{
    ngx_uint_t         n;
    ngx_redis_node_t  *node, *found;

    /* the choice is random, so that workers use different nodes */

    n = 0;
    found = NULL;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        if (node->owner && node != except
            && !ngx_redis_node_failing(node)
            && ngx_random() % ++n == 0)
        {
            found = node;
        }
    }

    if (found == NULL && except && except->owner && !except->retired) {
        return except;
    }

    return found;
}


static ngx_int_t
ngx_redis_cluster_refused(ngx_redis_call_t *call, redisReply *reply)
{
    ngx_int_t             rc;
    ngx_redis_redirect_t  to;

    rc = ngx_redis_redirect(reply, &to);

    if (rc == NGX_OK) {
        return ngx_redis_cluster_redirected(call, reply, &to);
    }

    if (rc == NGX_ERROR || !ngx_redis_transient(reply)) {
        return NGX_DECLINED;
    }

    /* a node that is cut off from the cluster still reports its old slots */

    call->conn->node->refused = ngx_current_msec | 1;

    ngx_redis_control_want(call->conn->redis);
    ngx_redis_call_later(call, reply);

    return NGX_OK;
}


/*
 * The node did not execute the command.  Other calls for this slot that were
 * sent there will be redirected as well; those still queued move behind this
 * one.
 */

static ngx_int_t
ngx_redis_cluster_redirected(ngx_redis_call_t *call, redisReply *reply,
    ngx_redis_redirect_t *to)
{
    u_char             text[NGX_SOCKADDR_STRLEN];
    ngx_redis_t       *redis;
    ngx_redis_node_t  *node;
    ngx_redis_conn_t  *conn;

    conn = call->conn;
    redis = conn->redis;

    redis->hooks->count(conn->node, NGX_REDIS_NODE_REDIRECTED);

    if (to->host.len == 0) {
        ngx_redis_cluster_host(conn, &to->host, text);
    }

    node = ngx_redis_node_get(redis, &to->host, to->port);
    if (node == NULL) {
        return NGX_DECLINED;
    }

    if (!to->ask) {
        redis->slots[to->slot] = node;
        node->owner = 1;

        ngx_redis_control_want(redis);
    }

    if (call->data == NULL) {
        ngx_redis_call_free(call);

    } else if (++call->redirects > NGX_REDIS_REDIRECTS_MAX) {
        return NGX_DECLINED;

    } else if (call->redirects > NGX_REDIS_REDIRECTS) {

        /* the nodes do not agree yet */

        ngx_redis_call_later(call, reply);

    } else if (to->ask) {
        ngx_redis_call_to(call, ngx_redis_conn_of(node, call));
        call->asking = 1;

        node->importing = ngx_current_msec | 1;

    } else {
        ngx_redis_call_again(call);
    }

    if (!to->ask) {
        ngx_redis_reroute(&conn->unsent);
        ngx_redis_reroute(&redis->waiting);
    }

    return NGX_OK;
}


/*
 * A server that reports no host means the host that was queried.  If a name
 * has several addresses, that is the address of the connection.
 */

static void
ngx_redis_cluster_host(ngx_redis_conn_t *conn, ngx_str_t *host, u_char *text)
{
    if (conn->node->named && conn->node->naddrs > 1) {
        host->data = text;
        host->len = ngx_sock_ntop(&conn->sockaddr.sockaddr, conn->socklen,
                                  text, NGX_SOCKADDR_STRLEN, 0);
        return;
    }

    *host = conn->node->host;
}


/*
 * Chooses a node, preferably one that is not failing.  In a periodic round
 * the connected node is queried again.  If the round was requested, any other
 * node is preferred: the connected one may be cut off from the cluster.
 */

static ngx_redis_node_t *
ngx_redis_cluster_next(ngx_redis_t *redis)
{
    ngx_uint_t         n, last;
    ngx_redis_node_t  *node, *found[3];

    n = 0;
    ngx_memzero(found, sizeof(found));

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {

        if (node->last_round == redis->control.round) {
            continue;
        }

        last = 0;

        if (ngx_redis_node_failing(node)) {
            last = 2;

        } else if (node == redis->control.conn.node) {

            if (!redis->control.urgent) {
                return node;
            }

            last = 1;
        }

        if (ngx_random() % ++n == 0 || found[last] == NULL) {
            found[last] = node;
        }
    }

    return found[0] ? found[0] : found[1] ? found[1] : found[2];
}


static ngx_int_t
ngx_redis_cluster_answer(ngx_redis_t *redis, ngx_redis_node_t *asked,
    redisReply *reply)
{
    u_char             text[NGX_SOCKADDR_STRLEN];
    ngx_str_t          host;
    ngx_uint_t         i;
    ngx_redis_node_t  *node;

    if (ngx_redis_slots_check(reply) != NGX_OK) {

        /* a node that was reset, or has not joined the cluster yet, has no
           slots */

        (void) ngx_sprintf(redis->control.conn.error,
                           "it does not know of any slots%Z");
        return NGX_DECLINED;
    }

    ngx_redis_cluster_host(&redis->control.conn, &host, text);
    ngx_redis_cluster_map(redis, reply, &host);
    ngx_redis_cluster_sweep(redis);

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        for (i = 0; i < node->total; i++) {
            ngx_redis_reroute(&node->conns[i].unsent);
        }
    }

    ngx_redis_reroute(&redis->waiting);

    if (redis->subscriber.node == NULL && redis->listeners) {
        ngx_redis_listen(redis, NULL);
    }

    if (ngx_queue_empty(&redis->waiting)) {
        redis->lost = 0;
        return NGX_OK;
    }

    (void) ngx_sprintf(redis->error, "no node has the slot%Z");

    if (++redis->lost >= NGX_REDIS_GIVE_UP) {
        ngx_redis_refuse_waiting(&redis->waiting, (char *) redis->error);
    }

    return NGX_OK;
}


/* "host" is the host of the server that replied, which may not know its
   own */

static void
ngx_redis_cluster_map(ngx_redis_t *redis, redisReply *reply, ngx_str_t *host)
{
    in_port_t          port;
    ngx_str_t          name;
    ngx_uint_t         i, n, slot;
    ngx_redis_node_t  *node;
    ngx_redis_range_t  range;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        node->member = 0;
        node->owner = 0;
    }

    ngx_memzero(redis->slots, NGX_REDIS_SLOTS * sizeof(ngx_redis_node_t *));

    for (i = 0; i < (ngx_uint_t) reply->elements; i++) {
        (void) ngx_redis_range(reply, i, &range);

        for (n = 0; n < range.members; n++) {

            if (ngx_redis_member(&range, n, &name, &port) != NGX_OK) {
                continue;
            }

            node = ngx_redis_node_get(redis, name.len ? &name : host, port);
            if (node == NULL) {
                continue;
            }

            node->member = 1;

            if (n > 0) {
                continue;
            }

            node->owner = 1;

            for (slot = range.first; slot <= range.last; slot++) {
                redis->slots[slot] = node;
            }
        }
    }
}


/* retires nodes that left, and closes connections to nodes without slots */

static void
ngx_redis_cluster_sweep(ngx_redis_t *redis)
{
    ngx_redis_node_t  *node, *next;

    for (node = ngx_redis_first(redis); node; node = next) {
        next = ngx_redis_next(node);

        if (node->importing
            && ngx_current_msec - node->importing
               < NGX_REDIS_IMPORTING)
        {
            /* the node is importing a slot, and CLUSTER SLOTS does not report
               it yet */
            continue;
        }

        if (!node->member && !node->seed) {
            ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                          "%V: Redis at %V left the "
                          "cluster", &redis->label, &node->name);

            ngx_redis_node_retire(node);

        } else if (!node->owner) {
            ngx_redis_node_vacate(node);
        }
    }
}


/* while a node is down, a replica may be promoted */

static ngx_msec_t
ngx_redis_cluster_pause(ngx_redis_t *redis)
{
    ngx_redis_node_t  *node;

    if (redis->lost) {
        return NGX_REDIS_INTERVAL;
    }

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        if (node->owner && ngx_redis_node_failing(node)) {
            return NGX_REDIS_INTERVAL;
        }
    }

    return NGX_REDIS_REFRESH;
}
