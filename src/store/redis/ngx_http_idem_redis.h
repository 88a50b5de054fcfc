
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The Redis store: records shared by many nginx hosts, in Redis or Valkey.
 *
 *   ..._redis.c             the backend: starts operations, times them out,
 *                           completes them; waiters, and their wake-up
 *   ..._redis_conf.c        its block of directives; _conf_servers.c:
 *                           addresses
 *   ..._redis_command.c     encodes an operation as a native command of the
 *                           server, or as a script
 *   ..._redis_reply.c       turns a reply into the result of the operation
 *   ..._redis_record.c      the stored form of a record
 *   ..._redis_admin.c       administration: get, remove and list records
 *   ..._redis_trail.c       events, in a stream
 *   ..._redis_client.c      callbacks of the client: nodes, records that may
 *                           be lost, commits that replicas lack, servers that
 *                           may evict records
 *
 * The client, redis/ngx_redis.h, has the connections and knows which server
 * has which record.
 */


#ifndef _NGX_HTTP_IDEM_REDIS_H_INCLUDED_
#define _NGX_HTTP_IDEM_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_redis.h"
#include "store/ngx_http_idem_store.h"


#define NGX_HTTP_IDEM_REDIS_PREFIX_MAX   128

/* version of the stored form; versions one above and one below are read,
   too */
#define NGX_HTTP_IDEM_REDIS_VERSION      2

/* length of a record without its details and its response, see
   ..._redis_record.c and the scripts */
#define NGX_HTTP_IDEM_REDIS_RECORD_LEN   117

/* longest time to live of a key, ms: Redis refuses an expiry beyond the range
   of its clock */
#define NGX_HTTP_IDEM_REDIS_LIFE_MAX                                          \
    ((uint64_t) 100 * 365 * 24 * 3600 * 1000)

/* instead of the result of PTTL, if it was not sent */
#define NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN  -3

/* length of the tag that a script returns in its reply */
#define NGX_HTTP_IDEM_REDIS_TAG_LEN      4

/* index of a script that belongs to no operation */
#define NGX_HTTP_IDEM_REDIS_UPGRADE      NGX_HTTP_IDEM_OP_N

/* conn->flags: the server has cached this script, or has refused this native
   command */
#define ngx_http_idem_redis_has(script)  (1 << (script))
#define ngx_http_idem_redis_scripts_all                                       \
    (ngx_http_idem_redis_has(NGX_HTTP_IDEM_OP_EVENTS + 1) - 1)
#define ngx_http_idem_redis_not(kind)                                         \
    (1 << (NGX_HTTP_IDEM_OP_EVENTS + 1 + (kind)))

/* how often a waiter polls a record that it can't mark, ms */
#define NGX_HTTP_IDEM_REDIS_LOOK         1000

/* waiters may hear late of a commit, and find a response that is kept this
   long, ms */
#define NGX_HTTP_IDEM_REDIS_WAITERS      10000


typedef struct {
    ngx_http_idem_remote_t       remote;             /* must be first       */
    ngx_redis_t                  client;
    ngx_http_idem_store_t       *store;
    ngx_str_t                    prefix;
    /* the master, if sentinels are configured */
    ngx_http_idem_shared_t       newest;

    /* the state of this worker */
    /* the last warning about missing replicas */
    time_t                       missed;
} ngx_http_idem_redis_t;


/* call.data is the operation */

typedef struct {
    ngx_redis_call_t             call;
    u_char                       key[NGX_HTTP_IDEM_REDIS_PREFIX_MAX
                                     + 2 * NGX_HTTP_IDEM_ID_LEN];
    uint32_t                     tag;                /* a script returns it */
    ngx_str_t                    list_node;          /* of a list           */
    /* a lock with our token that a commit found */
    ngx_str_t                    expected;
    unsigned                     native:1;           /* sent as a native
                                                        command             */
    /* send a script: the native command did not decide */
    unsigned                     script:1;
    /* send the script itself: the server has not cached it */
    unsigned                     eval:1;
    unsigned                     whole:1;            /* sent with the
                                                        script itself       */
    /* the record has the form of the previous version */
    unsigned                     upgrade:1;
    unsigned                     upgraded:1;         /* upgrade was tried   */
    /* publish: a request is waiting for the record */
    unsigned                     waited:1;
} ngx_http_idem_redis_call_t;


/* the user's data of a node */

typedef struct {
    ngx_http_idem_store_node_t   known;              /* for breaker and
                                                        metrics             */
    unsigned                     policy_asked:1;
} ngx_http_idem_redis_node_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_redis_backend;
extern const ngx_redis_hooks_t  ngx_http_idem_redis_hooks;


/* ..._redis.c */

/* callbacks of the subscriber */
void ngx_http_idem_redis_wake_all(ngx_redis_t *client);
void ngx_http_idem_redis_message(ngx_redis_t *client, ngx_str_t *key);

/* ..._redis_conf.c */

extern ngx_http_idem_store_command_t  ngx_http_idem_redis_commands[];

void *ngx_http_idem_redis_create_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_redis_init_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);

/* ..._redis_conf_servers.c */

char *ngx_http_idem_redis_set_servers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_redis_set_replicas(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_redis_init_servers(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);

/* ..._redis_command.c */

void ngx_http_idem_redis_command_init(void);
ngx_int_t ngx_http_idem_redis_command_encode(ngx_redis_call_t *call);

/* writes the key of a record, returns its length */
size_t ngx_http_idem_redis_key(ngx_http_idem_redis_t *redis, u_char *id,
    u_char *key);

/* ..._redis_reply.c */

/*
 * The result of an operation.  NGX_AGAIN: the operation is to be sent again,
 * in another form; NGX_ERROR: this is not a reply to this call.
 */
ngx_int_t ngx_http_idem_redis_reply_result(ngx_http_idem_redis_call_t *call,
    redisReply *reply);

/* ..._redis_record.c */

/*
 * The time to live of the key that a begin, a renewal or a commit sets.  Less
 * "grace", it is the lease or the ttl.
 */
uint64_t ngx_http_idem_redis_record_life(ngx_http_idem_op_t *op,
    uint64_t *grace);

u_char *ngx_http_idem_redis_record_lock(u_char *p, ngx_http_idem_op_t *op);
u_char *ngx_http_idem_redis_record_outcome(u_char *p, ngx_http_idem_op_t *op,
    ngx_str_t *details, size_t size);

/* the record is not the one that was requested */
ngx_uint_t ngx_http_idem_redis_record_other(ngx_http_idem_op_t *op,
    ngx_str_t *record);

/* the record is the lock of this operation's holder, unchanged */
ngx_uint_t ngx_http_idem_redis_record_is_lock(ngx_http_idem_op_t *op,
    ngx_str_t *record);

/* the record is in progress, with the token of this operation */
ngx_uint_t ngx_http_idem_redis_record_ours(ngx_http_idem_op_t *op,
    ngx_str_t *record);

/* of a complete record: whether a request is waiting for it, and its
   details */
ngx_uint_t ngx_http_idem_redis_record_waited(ngx_str_t *record);
void ngx_http_idem_redis_record_details(ngx_str_t *record,
    ngx_str_t *details);

/*
 * Whether the record that begin found can be used without a script: it is
 * valid, and its lease or ttl has not expired.
 */
ngx_uint_t ngx_http_idem_redis_record_usable(ngx_http_idem_op_t *op,
    ngx_str_t *record, int64_t life);

/*
 * Fills op->found; the response and the details point into the record.
 * Returns what is wrong with the record, or NULL.
 */
const char *ngx_http_idem_redis_record_found(ngx_http_idem_op_t *op,
    ngx_str_t *record, int64_t life);

/*
 * The same for the first bytes of a record, without an operation and without
 * the response.  record_free() is true for a lock that was released for a
 * waiter.
 */
const char *ngx_http_idem_redis_record_peek(ngx_str_t *head,
    ngx_http_idem_found_t *found, uint64_t *grace);
ngx_uint_t ngx_http_idem_redis_record_free(ngx_str_t *head);

/* ..._redis_admin.c */

/* sets call->call.node_name, the node for a slice of a list */
ngx_int_t ngx_http_idem_redis_list_node(ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_call_t *call);
size_t ngx_http_idem_redis_admin_size(ngx_http_idem_redis_t *redis);
u_char *ngx_http_idem_redis_put_admin(u_char *p,
    ngx_http_idem_redis_call_t *call);
ngx_int_t ngx_http_idem_redis_admin_result(
    ngx_http_idem_redis_call_t *call, u_char code, u_char *p, u_char *last);

/* ..._redis_trail.c */

/* writes the key of the stream, returns its length */
size_t ngx_http_idem_redis_trail_key(ngx_http_idem_redis_t *redis,
    u_char *key);
size_t ngx_http_idem_redis_trail_size(ngx_http_idem_op_t *op);
u_char *ngx_http_idem_redis_put_trail(u_char *p,
    ngx_http_idem_redis_call_t *call);
ngx_int_t ngx_http_idem_redis_trail_result(
    ngx_http_idem_redis_call_t *call, u_char code, u_char *p, u_char *last);

/* ..._redis_client.c */

void ngx_http_idem_redis_replicated(ngx_redis_call_t *call,
    redisReply *reply);
char *ngx_http_idem_redis_nodes_conf(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);
char *ngx_http_idem_redis_sentinel_conf(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);


/* the index of the script of a call */
#define ngx_http_idem_redis_script_of(c)                                      \
    ((c)->upgrade ? NGX_HTTP_IDEM_REDIS_UPGRADE                               \
                  : (ngx_uint_t) ((ngx_http_idem_op_t *) (c)->call.data)->kind)

/* operations on one record are executed in order */
#define ngx_http_idem_redis_order_key(id)  ((id)[NGX_HTTP_IDEM_ID_LEN - 1])

#define ngx_http_idem_redis_conf(op)                                          \
    ((ngx_http_idem_redis_t *) (op)->store->conf)


#endif /* _NGX_HTTP_IDEM_REDIS_H_INCLUDED_ */
