
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Which server has which key: the topology, and its nodes.
 *
 *   ..._cluster.c     a cluster: a key has a slot, a slot has a node
 *   ..._sentinel.c    the master that sentinels report; _events.c: the events
 *                     that they publish
 *   ..._control.c     queries servers for the topology
 *   ..._parse.c       parses their answers; computes the slot of a key
 *   ..._node.c        nodes: a server, and the connections to it; a single
 *                     server has all keys
 *   ..._resolve.c     resolves host names at run time
 */


#ifndef _NGX_REDIS_TOPOLOGY_H_INCLUDED_
#define _NGX_REDIS_TOPOLOGY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"


/*
 * A topology maps keys to servers.  Each worker has its own view of it.  None
 * of these functions blocks: what is unknown is queried in the background.
 */

struct ngx_redis_topology_s {

    ngx_int_t           (*init)(ngx_redis_t *redis);

    /* the node of a key; NULL: not known yet, its calls are queued */
    ngx_redis_node_t   *(*node)(ngx_redis_t *redis, ngx_str_t *key);

    /* optional: the node for the subscriber, preferably not "except"; NULL:
       none yet.  By default it is the master */
    ngx_redis_node_t   *(*listen)(ngx_redis_t *redis,
                                  ngx_redis_node_t *except);

    /* optional: a call got an error.  NGX_DECLINED: the error is its reply;
       NGX_OK: the call was moved or freed */
    ngx_int_t           (*refused)(ngx_redis_call_t *call, redisReply *reply);
};


/* how a topology queries its servers */

struct ngx_redis_query_s {
    const char         *what;           /* what is queried, for the log     */

    /* the node to query next in this round, one with node->last_round other
       than redis->control.round; NULL: all were queried */
    ngx_redis_node_t   *(*next)(ngx_redis_t *redis);

    /* an optional query that is sent before "question", and the handler of its
       reply, which may be an error */
    ngx_str_t           first_question[2];
    ngx_redis_reply_pt  first_answer;

    ngx_str_t           question[2];

    /* NGX_DECLINED: query the next node */
    ngx_int_t           (*answer)(ngx_redis_t *redis,
                                  ngx_redis_node_t *node, redisReply *reply);

    /* delay before the next round, unless one is requested earlier */
    ngx_msec_t          (*pause)(ngx_redis_t *redis);
};


/* a parsed MOVED or ASK */

typedef struct {
    ngx_uint_t                            slot;
    ngx_str_t                             host;      /* empty: the host of
                                                        the replying server */
    in_port_t                             port;
    ngx_uint_t                            ask;       /* 0: MOVED            */
} ngx_redis_redirect_t;


/* a range in the reply to CLUSTER SLOTS */

typedef struct {
    ngx_uint_t                            first;
    ngx_uint_t                            last;
    ngx_uint_t                            members;
    redisReply                           *reply;
} ngx_redis_range_t;


/* ..._cluster.c */

extern const ngx_redis_topology_t  ngx_redis_cluster;

/* ..._sentinel.c */

extern const ngx_redis_topology_t  ngx_redis_sentinel;

/* whether this is the address of the master; NULL: there is none */
ngx_uint_t ngx_redis_sentinel_is(ngx_redis_node_t *master, ngx_str_t *host,
    in_port_t port);

/* a sentinel published the address of the new master */
void ngx_redis_sentinel_switched(ngx_redis_node_t *sentinel, ngx_str_t *host,
    in_port_t port);

/* ..._sentinel_events.c */

ngx_int_t ngx_redis_events_init(ngx_redis_node_t *sentinel);
void ngx_redis_events_exit(ngx_redis_node_t *sentinel);
void ngx_redis_events_check(ngx_redis_t *redis);

/* ..._control.c */

void ngx_redis_control_init(ngx_redis_t *redis,
    const ngx_redis_query_t *query);
void ngx_redis_control_exit(ngx_redis_t *redis);
void ngx_redis_control_want(ngx_redis_t *redis);
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
void ngx_redis_value(redisReply *reply, const char *name, ngx_str_t *value);
ngx_int_t ngx_redis_event(ngx_str_t *text, const char *form, ngx_str_t *name,
    ngx_str_t *host, in_port_t *port);

/* +switch-master: "<name> <host> <port> <host> <port>" with the addresses of
   the old and of the new master */
#define ngx_redis_switched(text, name, host, port)                            \
    ngx_redis_event(text, "n..hp", name, host, port)

/* +failover-state-wait-promotion: "slave <name> <host> <port> @ <name> <host>
   <port>" with the addresses of the replica and of the master */
#define ngx_redis_promoting(text, name, host, port)                           \
    ngx_redis_event(text, ".....nhp", name, host, port)

/* ..._node.c */

extern const ngx_redis_topology_t  ngx_redis_single;

/* returns the node of that host and port; creates it if needed */
ngx_redis_node_t *ngx_redis_node_get(ngx_redis_t *redis, ngx_str_t *host,
    in_port_t port);
ngx_redis_node_t *ngx_redis_node_seed(ngx_redis_t *redis,
    ngx_redis_addr_t *addr);

/* the nodes of the topology, one after the other */
ngx_redis_node_t *ngx_redis_first(ngx_redis_t *redis);
ngx_redis_node_t *ngx_redis_next(ngx_redis_node_t *node);

ngx_uint_t ngx_redis_node_silent(ngx_redis_node_t *node, ngx_uint_t *waits);
ngx_uint_t ngx_redis_node_failing(ngx_redis_node_t *node);

void ngx_redis_node_vacate(ngx_redis_node_t *node);
void ngx_redis_node_retire(ngx_redis_node_t *node);
void ngx_redis_nodes_exit(ngx_redis_t *redis);

/* ..._resolve.c */

void ngx_redis_resolve_soon(ngx_redis_node_t *node);
void ngx_redis_resolve_exit(ngx_redis_node_t *node);
void ngx_redis_lookup(ngx_redis_conn_t *conn);


#endif /* _NGX_REDIS_TOPOLOGY_H_INCLUDED_ */
