
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Which server has which key: the topology, and its nodes.
 *
 *   ..._single.c      one server has all
 *   ..._cluster.c     a cluster: a key has a slot, a slot has a node
 *   ..._sentinel.c    the master that sentinels name; _events.c: what
 *                           they publish
 *   ..._control.c     asking servers about the topology
 *   ..._parse.c       what they say of it, and the slot of a key
 *   ..._node.c        nodes: a server, and the connections to it
 *   ..._resolve.c     names of servers, looked up while nginx runs
 */


#ifndef _NGX_REDIS_TOPOLOGY_H_INCLUDED_
#define _NGX_REDIS_TOPOLOGY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"


/*
 * Which server has which key.  All of it is this worker's own view, and
 * none of it blocks: what is not known is asked for in the background.
 */

struct ngx_redis_topology_s {

    ngx_int_t           (*init)(ngx_redis_t *redis);
    void                (*exit)(ngx_redis_t *redis);

    /* the node of a key; NULL: not known yet, its calls wait */
    ngx_redis_node_t   *(*node)(ngx_redis_t *redis, ngx_str_t *key);

    /* where wake-ups are heard, rather not at "except"; NULL: nowhere yet */
    ngx_redis_node_t   *(*listen)(ngx_redis_t *redis,
                                  ngx_redis_node_t *except);

    /* a connection broke, or could not be made; what was asked on it is in
       conn->unsent.  Nothing is changed before the caller is done */
    void                (*failed)(ngx_redis_conn_t *conn);

    /* an error came.  NGX_DECLINED: it is the answer; NGX_OK: the call went
       elsewhere, or is gone */
    ngx_int_t           (*refused)(ngx_redis_call_t *call, redisReply *reply);
};


/* how to ask about the topology */

struct ngx_redis_asker_s {
    const char         *what;           /* is asked for                     */

    /* whom to ask next in this round, of those whose node->asked is not
       redis->control.round; NULL: nobody is left */
    ngx_redis_node_t   *(*next)(ngx_redis_t *redis);

    /* what is asked before that, or NULL; and what came in reply, be it an
       error */
    ngx_uint_t          (*first)(ngx_redis_t *redis, ngx_str_t *args);
    void                (*before)(ngx_redis_t *redis, redisReply *reply);

    ngx_uint_t          (*question)(ngx_redis_t *redis, ngx_str_t *args);

    /* NGX_DECLINED: ask another */
    ngx_int_t           (*answer)(ngx_redis_t *redis,
                                  ngx_redis_node_t *node, redisReply *reply);

    /* until the next round, if nobody wants one before */
    ngx_msec_t          (*pause)(ngx_redis_t *redis);
};


/* of a redirect */

typedef struct {
    ngx_uint_t                            slot;
    ngx_str_t                             host;      /* empty: of the server
                                                        that said it        */
    in_port_t                             port;
    ngx_uint_t                            ask;       /* or moved            */
} ngx_redis_redirect_t;


/* of CLUSTER SLOTS */

typedef struct {
    ngx_uint_t                            first;
    ngx_uint_t                            last;
    ngx_uint_t                            members;
    redisReply                           *reply;
} ngx_redis_range_t;


/* ..._single.c */

extern const ngx_redis_topology_t  ngx_redis_single;

/* ..._cluster.c */

extern const ngx_redis_topology_t  ngx_redis_cluster;

/* ..._sentinel.c */

extern const ngx_redis_topology_t  ngx_redis_sentinel;

/* a sentinel publishes that the master is there */
void ngx_redis_sentinel_told(ngx_redis_node_t *sentinel, ngx_str_t *host,
    in_port_t port);

/* ..._sentinel_events.c */

ngx_int_t ngx_redis_events_init(ngx_redis_node_t *sentinel);
void ngx_redis_events_exit(ngx_redis_node_t *sentinel);
void ngx_redis_events_check(ngx_redis_t *redis);

/* ..._control.c */

void ngx_redis_control_init(ngx_redis_t *redis,
    const ngx_redis_asker_t *asker);
void ngx_redis_control_exit(ngx_redis_t *redis);
void ngx_redis_control_want(ngx_redis_t *redis);
void ngx_redis_control_ask(ngx_redis_node_t *node);
void ngx_redis_control_listen(ngx_redis_t *redis);
void ngx_redis_control_leave(ngx_redis_node_t *node);

/* ..._parse.c */

ngx_int_t ngx_redis_redirect(redisReply *reply, ngx_redis_redirect_t *to);
ngx_int_t ngx_redis_range(redisReply *reply, ngx_uint_t n,
    ngx_redis_range_t *range);
ngx_int_t ngx_redis_member(ngx_redis_range_t *range, ngx_uint_t n,
    ngx_str_t *host, in_port_t *port);
ngx_int_t ngx_redis_slots_check(redisReply *reply);
ngx_int_t ngx_redis_master_addr(redisReply *reply, ngx_str_t *host,
    in_port_t *port);
int64_t ngx_redis_config_epoch(redisReply *reply);
ngx_int_t ngx_redis_switched(ngx_str_t *text, ngx_str_t *name,
    ngx_str_t *host, in_port_t *port);
ngx_int_t ngx_redis_promoting(ngx_str_t *text, ngx_str_t *name,
    ngx_str_t *host, in_port_t *port);

/* ..._node.c */

/* the node of that host and port, made if there is none */
ngx_redis_node_t *ngx_redis_node_get(ngx_redis_t *redis, ngx_str_t *host,
    in_port_t port);
ngx_redis_node_t *ngx_redis_node_seed(ngx_redis_t *redis,
    ngx_redis_addr_t *addr);
ngx_uint_t ngx_redis_node_silent(ngx_redis_node_t *node, ngx_uint_t *waits);
ngx_uint_t ngx_redis_node_failing(ngx_redis_node_t *node);

void ngx_redis_node_vacate(ngx_redis_node_t *node);
void ngx_redis_node_retire(ngx_redis_node_t *node);
void ngx_redis_nodes_exit(ngx_redis_t *redis);

/* ..._resolve.c */

ngx_int_t ngx_redis_resolve(ngx_redis_node_t *node);
void ngx_redis_resolve_soon(ngx_redis_node_t *node);
void ngx_redis_resolve_exit(ngx_redis_node_t *node);
void ngx_redis_lookup(ngx_redis_conn_t *conn);


#endif /* _NGX_REDIS_TOPOLOGY_H_INCLUDED_ */
