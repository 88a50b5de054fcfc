
/*
 * Which server has which record: the topology of a store, and its nodes.
 *
 *   ..._redis_single.c      one server has all
 *   ..._redis_cluster.c     a cluster: a key has a slot, a slot has a node
 *   ..._redis_sentinel.c    the master that sentinels name; _events.c: what
 *                           they publish
 *   ..._redis_control.c     asking servers about the topology
 *   ..._redis_parse.c       what they say of it, and the slot of a key
 *   ..._redis_node.c        nodes: a server, and the connections to it
 *   ..._redis_resolve.c     names of servers, looked up while nginx runs
 */


#ifndef _NGX_HTTP_IDEM_REDIS_TOPOLOGY_H_INCLUDED_
#define _NGX_HTTP_IDEM_REDIS_TOPOLOGY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


/*
 * Which server has which record.  All of it is this worker's own view, and
 * none of it blocks: what is not known is asked for in the background.
 */

struct ngx_http_idem_redis_topology_s {

    ngx_int_t                    (*init)(ngx_http_idem_redis_t *redis);
    void                         (*exit)(ngx_http_idem_redis_t *redis);

    /* the node of a record; NULL: not known yet, its calls wait */
    ngx_http_idem_redis_node_t  *(*node)(ngx_http_idem_redis_t *redis,
                                        u_char *id);

    /* where wake-ups are heard, rather not at "except"; NULL: nowhere yet */
    ngx_http_idem_redis_node_t  *(*listen)(ngx_http_idem_redis_t *redis,
                                    ngx_http_idem_redis_node_t *except);

    /* a connection broke, or could not be made; what was asked on it is in
       conn->unsent.  Nothing is changed before the caller is done */
    void                         (*failed)(ngx_http_idem_redis_conn_t *conn);

    /* an error came.  NGX_DECLINED: it is the answer; NGX_OK: the call went
       elsewhere, or is gone */
    ngx_int_t                    (*refused)(ngx_http_idem_redis_call_t *call,
                                    redisReply *reply);
};


/* how to ask about the topology */

struct ngx_http_idem_redis_asker_s {
    const char                           *what;      /* is asked for        */

    /* whom to ask next in this round, of those whose node->asked is not
       redis->control.round; NULL: nobody is left */
    ngx_http_idem_redis_node_t  *(*next)(ngx_http_idem_redis_t *redis);

    /* what is asked before that, or NULL; and what came in reply, be it an
       error */
    ngx_uint_t                   (*first)(ngx_http_idem_redis_t *redis,
                                        ngx_str_t *args);
    void                         (*before)(ngx_http_idem_redis_t *redis,
                                        redisReply *reply);

    ngx_uint_t                   (*question)(ngx_http_idem_redis_t *redis,
                                        ngx_str_t *args);

    /* NGX_DECLINED: ask another */
    ngx_int_t                    (*answer)(ngx_http_idem_redis_t *redis,
                                      ngx_http_idem_redis_node_t *node,
                                      redisReply *reply);

    /* until the next round, if nobody wants one before */
    ngx_msec_t                   (*pause)(ngx_http_idem_redis_t *redis);
};


/* of a redirect */

typedef struct {
    ngx_uint_t                            slot;
    ngx_str_t                             host;      /* empty: of the server
                                                        that said it        */
    in_port_t                             port;
    ngx_uint_t                            ask;       /* or moved            */
} ngx_http_idem_redis_redirect_t;


/* of CLUSTER SLOTS */

typedef struct {
    ngx_uint_t                            first;
    ngx_uint_t                            last;
    ngx_uint_t                            members;
    redisReply                           *reply;
} ngx_http_idem_redis_range_t;


/* ..._redis_single.c */

extern const ngx_http_idem_redis_topology_t
    ngx_http_idem_redis_single;

/* ..._redis_cluster.c */

extern const ngx_http_idem_redis_topology_t
    ngx_http_idem_redis_cluster;

/* ..._redis_sentinel.c */

extern const ngx_http_idem_redis_topology_t
    ngx_http_idem_redis_sentinel;

char *ngx_http_idem_redis_sentinel_conf(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);

/* a sentinel publishes that the master is there */
void ngx_http_idem_redis_sentinel_told(ngx_http_idem_redis_node_t *sentinel,
    ngx_str_t *host, in_port_t port);

/* ..._redis_sentinel_events.c */

ngx_int_t ngx_http_idem_redis_events_init(
    ngx_http_idem_redis_node_t *sentinel);
void ngx_http_idem_redis_events_exit(ngx_http_idem_redis_node_t *sentinel);
void ngx_http_idem_redis_events_check(ngx_http_idem_redis_t *redis);

/* ..._redis_control.c */

void ngx_http_idem_redis_control_init(ngx_http_idem_redis_t *redis,
    const ngx_http_idem_redis_asker_t *asker);
void ngx_http_idem_redis_control_exit(ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_control_want(ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_control_ask(ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_control_listen(ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_control_leave(ngx_http_idem_redis_node_t *node);

/* ..._redis_parse.c */

ngx_uint_t ngx_http_idem_redis_slot(u_char *key, size_t len);
uint16_t ngx_http_idem_redis_crc16(u_char *p, u_char *last);
ngx_int_t ngx_http_idem_redis_redirect(redisReply *reply,
    ngx_http_idem_redis_redirect_t *to);
ngx_int_t ngx_http_idem_redis_range(redisReply *reply, ngx_uint_t n,
    ngx_http_idem_redis_range_t *range);
ngx_int_t ngx_http_idem_redis_member(ngx_http_idem_redis_range_t *range,
    ngx_uint_t n, ngx_str_t *host, in_port_t *port);
ngx_int_t ngx_http_idem_redis_slots_check(redisReply *reply);
ngx_int_t ngx_http_idem_redis_master_addr(redisReply *reply,
    ngx_str_t *host, in_port_t *port);
int64_t ngx_http_idem_redis_config_epoch(redisReply *reply);
ngx_int_t ngx_http_idem_redis_switched(ngx_str_t *text,
    ngx_str_t *name, ngx_str_t *host, in_port_t *port);
ngx_int_t ngx_http_idem_redis_promoting(ngx_str_t *text,
    ngx_str_t *name, ngx_str_t *host, in_port_t *port);

/* ..._redis_node.c */

/* the node of that host and port, made if there is none */
ngx_http_idem_redis_node_t *ngx_http_idem_redis_node_get(
    ngx_http_idem_redis_t *redis, ngx_str_t *host, in_port_t port);
ngx_http_idem_redis_node_t *ngx_http_idem_redis_node_seed(
    ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_addr_t *addr);
ngx_uint_t ngx_http_idem_redis_node_silent(
    ngx_http_idem_redis_node_t *node, ngx_uint_t *waits);
ngx_uint_t ngx_http_idem_redis_node_failing(ngx_http_idem_redis_node_t *node);
ngx_str_t *ngx_http_idem_redis_node_label(ngx_http_idem_redis_node_t *node);

/* a store that is several servers has figures for each; "what" happened */
char *ngx_http_idem_redis_nodes_conf(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_node_count(ngx_http_idem_redis_node_t *node,
    ngx_http_idem_node_count_e what);

void ngx_http_idem_redis_node_vacate(ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_node_retire(ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_nodes_exit(ngx_http_idem_redis_t *redis);

/* ..._redis_resolve.c */

ngx_int_t ngx_http_idem_redis_resolve(ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_resolve_soon(ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_resolve_exit(ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_lookup(ngx_http_idem_redis_conn_t *conn);


#endif /* _NGX_HTTP_IDEM_REDIS_TOPOLOGY_H_INCLUDED_ */
