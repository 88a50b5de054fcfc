
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The Redis store: one truth for many nginx hosts, on Redis or Valkey.
 *
 *   ..._redis.c             the backend: operations, their time, their end
 *   ..._redis_conf.c        its block of directives; _conf_servers.c and
 *                           _conf_tls.c: addresses, and TLS
 *   ..._redis_command.c     an operation as the command that does it: one
 *                           that the server knows, or a script
 *   ..._redis_reply.c       its reply as its result
 *   ..._redis_record.c      a record as it is in Redis
 *   ..._redis_admin.c       what people ask: a record, its removal, a list
 *   ..._redis_trail.c       events, in a stream
 *   ..._redis_watch.c       waiters, and who wakes them
 *   ..._redis_client.c      what the client tells: nodes, lost records,
 *                           replicas that are missing
 *   ..._redis_policy.c      whether the server evicts
 *
 * Connections, and which server has which record, are the client's:
 * redis/ngx_redis.h.
 */


#ifndef _NGX_HTTP_IDEM_REDIS_H_INCLUDED_
#define _NGX_HTTP_IDEM_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "redis/ngx_redis.h"
#include "store/ngx_http_idem_store.h"


#define NGX_HTTP_IDEM_REDIS_PREFIX_MAX   128

/* of the stored form; a record of one more or one less is read, too */
#define NGX_HTTP_IDEM_REDIS_VERSION      2

/* of a record, before its details and its response: ..._redis_record.c, and
   the scripts */
#define NGX_HTTP_IDEM_REDIS_RECORD_LEN   117

/* what a key may have to live: Redis refuses to count beyond its clock */
#define NGX_HTTP_IDEM_REDIS_LIFE_MAX                                          \
    ((uint64_t) 100 * 365 * 24 * 3600 * 1000)

/* ... in place of what PTTL tells, where it was not asked */
#define NGX_HTTP_IDEM_REDIS_LIFE_UNKNOWN  -3

/* of the tag that comes back in a reply */
#define NGX_HTTP_IDEM_REDIS_TAG_LEN      4

/* a script beside those of the operations */
#define NGX_HTTP_IDEM_REDIS_UPGRADE      NGX_HTTP_IDEM_OP_N

/* conn->flags: the server has that script; it refused the native command */
#define ngx_http_idem_redis_has(script)  (1 << (script))
#define ngx_http_idem_redis_scripts_all                                       \
    (ngx_http_idem_redis_has(NGX_HTTP_IDEM_OP_EVENTS + 1) - 1)
#define ngx_http_idem_redis_not(kind)                                         \
    (1 << (NGX_HTTP_IDEM_OP_EVENTS + 1 + (kind)))

/* how often a waiter looks at a record that it can't mark, ms */
#define NGX_HTTP_IDEM_REDIS_LOOK         1000


typedef struct {
    ngx_http_idem_remote_t       remote;             /* first               */
    ngx_redis_t                  client;
    ngx_http_idem_store_t       *store;
    ngx_str_t                    prefix;
    ngx_http_idem_shared_t       newest;             /* of sentinels        */

    /* this worker */
    time_t                       missed;             /* replicas, last told */
} ngx_http_idem_redis_t;


/* call.data is the operation */

typedef struct {
    ngx_redis_call_t             call;
    u_char                       key[NGX_HTTP_IDEM_REDIS_PREFIX_MAX
                                     + 2 * NGX_HTTP_IDEM_ID_LEN];
    uint32_t                     tag;                /* comes back in the
                                                        reply               */
    ngx_str_t                    from;               /* of a list           */
    ngx_str_t                    expected;           /* a lock that was found
                                                        to be ours          */
    unsigned                     native:1;           /* sent as a command
                                                        without a script    */
    unsigned                     script:1;           /* again, since that did
                                                        not decide it       */
    unsigned                     eval:1;             /* again, since the
                                                        server did not know
                                                        the script          */
    unsigned                     whole:1;            /* sent with its script */
    unsigned                     upgrade:1;          /* of a record in the
                                                        form of the version
                                                        before              */
    unsigned                     upgraded:1;         /* it was tried        */
    unsigned                     waited:1;           /* somebody waits, and is
                                                        to be told          */
} ngx_http_idem_redis_call_t;


/* what the rest of the module may know of a node */

typedef struct {
    ngx_http_idem_store_node_t   known;              /* to breaker, figures */
    unsigned                     policy_asked:1;
} ngx_http_idem_redis_node_t;


extern const ngx_http_idem_backend_t  ngx_http_idem_redis_backend;
extern const ngx_redis_user_t  ngx_http_idem_redis_hooks;


/* ..._redis.c */

/* it is done: whoever asked is told, and who waits for the record */
void ngx_http_idem_redis_committed(ngx_http_idem_op_t *op);

/* ..._redis_conf.c */

extern ngx_http_idem_store_command_t  ngx_http_idem_redis_commands[];

void *ngx_http_idem_redis_create_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_redis_init_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);

/* ..._redis_conf_servers.c */

char *ngx_http_idem_redis_set_server(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_redis_set_sentinel(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_redis_set_replicas(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_redis_init_servers(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);

/* ..._redis_conf_tls.c */

char *ngx_http_idem_redis_init_tls(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);

/* ..._redis_command.c */

void ngx_http_idem_redis_command_init(void);
ngx_int_t ngx_http_idem_redis_command_encode(ngx_redis_call_t *call);

/* the key of a record; its size */
size_t ngx_http_idem_redis_key(ngx_http_idem_redis_t *redis, u_char *id,
    u_char *key);

/* ..._redis_reply.c */

/*
 * The result of an operation.  NGX_AGAIN: it is to be asked once more, in
 * another way; NGX_ERROR: that is not a reply to this call.
 */
ngx_int_t ngx_http_idem_redis_reply_result(ngx_http_idem_redis_call_t *call,
    redisReply *reply);

/* ..._redis_record.c */

/*
 * What the key is to live for; less "grace", for its lease or its ttl.  Of a
 * begin and a renewal, and of a commit that sets it.
 */
uint64_t ngx_http_idem_redis_record_life(ngx_http_idem_op_t *op,
    uint64_t *grace);

u_char *ngx_http_idem_redis_record_lock(u_char *p, ngx_http_idem_op_t *op);
u_char *ngx_http_idem_redis_record_outcome(u_char *p, ngx_http_idem_op_t *op,
    ngx_str_t *details, size_t size);

/* it is another record than the one that was asked for */
ngx_uint_t ngx_http_idem_redis_record_other(ngx_http_idem_op_t *op,
    ngx_str_t *record);

/* it is the lock of this operation's holder, as that wrote it */
ngx_uint_t ngx_http_idem_redis_record_is_lock(ngx_http_idem_op_t *op,
    ngx_str_t *record);

/* it is in progress, under the token of this operation */
ngx_uint_t ngx_http_idem_redis_record_ours(ngx_http_idem_op_t *op,
    ngx_str_t *record);

/* of one that is whole: somebody waits for it; its details */
ngx_uint_t ngx_http_idem_redis_record_waited(ngx_str_t *record);
void ngx_http_idem_redis_record_details(ngx_str_t *record,
    ngx_str_t *details);

/*
 * Whether a record that was found can be told without a script: it is one of
 * ours, and its lease or ttl lasts.
 */
ngx_uint_t ngx_http_idem_redis_record_lasts(ngx_http_idem_op_t *op,
    ngx_str_t *record, int64_t life);

/*
 * Fills op->found, whose response and details are in the memory of the record.
 * What is wrong with the record, or NULL.
 */
const char *ngx_http_idem_redis_record_found(ngx_http_idem_op_t *op,
    ngx_str_t *record, int64_t life);

/*
 * The same without an operation, of the first bytes of a record; its response
 * is left out.  "free": of a lock that was given back.
 */
const char *ngx_http_idem_redis_record_peek(ngx_str_t *head,
    ngx_http_idem_found_t *found, uint64_t *grace);
ngx_uint_t ngx_http_idem_redis_record_free(ngx_str_t *head);

/* ..._redis_admin.c */

/* where a slice of a list is asked: call->call.from */
ngx_int_t ngx_http_idem_redis_list_from(ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_call_t *call);
size_t ngx_http_idem_redis_admin_size(ngx_http_idem_redis_t *redis);
u_char *ngx_http_idem_redis_put_admin(u_char *p,
    ngx_http_idem_redis_call_t *call);
ngx_int_t ngx_http_idem_redis_admin_result(
    ngx_http_idem_redis_call_t *call, u_char code, u_char *p, u_char *last);

/* ..._redis_trail.c */

/* the key of the stream; its size */
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

/* ..._redis_policy.c */

void ngx_http_idem_redis_policy_ask(ngx_redis_conn_t *conn);

/* ..._redis_watch.c */

void ngx_http_idem_redis_listen(ngx_http_idem_op_t *op);
void ngx_http_idem_redis_unlisten(ngx_http_idem_op_t *op);
void ngx_http_idem_redis_wait(ngx_http_idem_op_t *op);
void ngx_http_idem_redis_wake_all(ngx_redis_t *client);
void ngx_http_idem_redis_message(ngx_redis_t *client, ngx_str_t *key);


/* what is asked of one record is done in order */
#define ngx_http_idem_redis_lane(id)  ((id)[NGX_HTTP_IDEM_ID_LEN - 1])

#define ngx_http_idem_redis_conf(op)                                          \
    ((ngx_http_idem_redis_t *) (op)->store->conf)


#endif /* _NGX_HTTP_IDEM_REDIS_H_INCLUDED_ */
