
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A client for Redis and Valkey: connections, their setup and TLS, calls, and
 * the routing of keys to servers.  It knows bytes, calls and keys.  Which
 * commands are sent and what their replies mean is up to its user.
 *
 *   ..._codec.c        encodes commands; hiredis parses replies
 *   ..._bulk.c         sends and receives large strings without copying them
 *   ..._call.c         calls: routes them to connections, and reroutes them;
 *                      _alloc.c: their memory
 *   ..._connection.c   a connection: its queues of calls, sending, closing,
 *                      backoff; _receive.c: its replies
 *   ..._setup.c        from a socket to a connection that is ready; _probe.c:
 *                      more connect attempts while the first is unanswered
 *   ..._replicas.c     calls that need an acknowledgement by replicas (WAIT)
 *   ..._subscriber.c   the subscriber and its messages
 *   ..._topology.h     which server has which key: a single server, a cluster,
 *                      a master that is monitored by sentinels
 *
 * A user fills in the configuration of an ngx_redis_t and calls
 * ngx_redis_init() in each worker.  A call is a structure of the user's that
 * begins with an ngx_redis_call_t.  It is allocated by
 * ngx_redis_call_alloc(), and the client frees it.  Calls with the same
 * ordering key are sent in the order in which they were made.  A call may be
 * sent more than once: when a connection breaks, the client can't know
 * whether the server executed the command.
 */


#ifndef _NGX_REDIS_H_INCLUDED_
#define _NGX_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include <hiredis/hiredis.h>

#include "ngx_housekeeping.h"


#define NGX_REDIS_ERROR_LEN    256

#define NGX_REDIS_SLOTS        16384

/* minimum time between two rounds of topology queries, ms */
#define NGX_REDIS_INTERVAL     500

/* a connection to a replica that is younger is kept, ms */
#define NGX_REDIS_REPLICA      1000

/* a server that has owed a reply for this long is considered down by the
   topology, ms */
#define NGX_REDIS_SILENT       1000

/* concurrent connect attempts of one connection besides the first */
#define NGX_REDIS_PROBES       4

/* failed connect attempts after which an impatient call fails at once */
#define NGX_REDIS_GIVE_UP      3

/* strings of this size and above are sent from the user's memory, and
   received into the memory of the reply */
#define NGX_REDIS_BULK_MIN     16384

/* bytes sent or received on one connection in one event loop iteration */
#define NGX_REDIS_TURN_SIZE    (2 * 1024 * 1024)

/* the limit of a string in Redis */
#define NGX_REDIS_REPLY_MAX    (512 * 1024 * 1024)


typedef struct ngx_redis_s           ngx_redis_t;
typedef struct ngx_redis_node_s      ngx_redis_node_t;
typedef struct ngx_redis_conn_s      ngx_redis_conn_t;
typedef struct ngx_redis_call_s      ngx_redis_call_t;
typedef struct ngx_redis_bulk_s      ngx_redis_bulk_t;
typedef struct ngx_redis_topology_s  ngx_redis_topology_t;
typedef struct ngx_redis_query_s     ngx_redis_query_t;


/* handles the reply to a command of the client's own */
typedef void (*ngx_redis_reply_pt)(ngx_redis_conn_t *conn, redisReply *reply);


/* the result of a call at a node, for metrics */

typedef enum {
    NGX_REDIS_NODE_ANSWERED = 0,
    NGX_REDIS_NODE_FAILED,
    NGX_REDIS_NODE_REDIRECTED
} ngx_redis_count_e;


/* callbacks to the user of the client */

typedef struct {
    /* a node was created; the user may allocate from its pool */
    ngx_int_t  (*node)(ngx_redis_node_t *node);

    void       (*count)(ngx_redis_node_t *node, ngx_redis_count_e what);

    /* a connection for calls is set up */
    void       (*ready)(ngx_redis_conn_t *conn);

    /* a connection has received its first reply: the server really answers */
    void       (*first_reply)(ngx_redis_conn_t *conn);

    /*
     * What was written may be lost: another server has taken over, or a
     * connection broke and the server may have restarted without its data.
     * This concerns the keys of the calls that use "conn", or all keys if
     * "conn" is NULL.  With "now" the user should write again at once,
     * otherwise as soon as an attempt is likely to succeed.
     */
    void       (*suspect_loss)(ngx_redis_t *redis, ngx_redis_conn_t *conn,
                               ngx_uint_t now);

    /* the subscriber is ready; earlier messages were missed */
    void       (*listening)(ngx_redis_t *redis);

    void       (*message)(ngx_redis_t *redis, ngx_str_t *text);
} ngx_redis_hooks_t;


/* callbacks of a type of calls */

typedef struct {
    /* appends the command to call->conn->out */
    ngx_int_t  (*encode)(ngx_redis_call_t *call);

    /* frees the call, or sends it again */
    void       (*replied)(ngx_redis_call_t *call, redisReply *reply);

    /* an impatient call fails because its server can't be reached; if "error"
       is NULL, the worker is exiting and the call is about to be freed */
    void       (*failed)(ngx_redis_call_t *call, const char *error);

    /* WAIT was answered: with the number of replicas, or with an error */
    void       (*replicated)(ngx_redis_call_t *call, redisReply *reply);

    /* the master executed the call; the replicas have "time" to acknowledge
       it */
    void       (*extend)(ngx_redis_call_t *call, ngx_msec_t time);
} ngx_redis_call_type_t;


/*
 * The owner of a dedicated connection, one that is not used for calls.
 * "ready" is called when the owner may send commands, and "lost" when the
 * connection has ended; the owner then reconnects, to any node.
 */

typedef struct {
    void       (*ready)(ngx_redis_conn_t *conn);
    void       (*lost)(ngx_redis_conn_t *conn);
    ngx_int_t  (*message)(ngx_redis_conn_t *conn,
                          redisReply *reply);       /* of a subscriber      */
} ngx_redis_owner_t;


/*
 * A command that is queued, or that was sent and has no reply yet.  A call
 * that was sent outlives its cancellation, since its reply still has to be
 * read.
 */

struct ngx_redis_call_s {
    /* the queue it is in: conn->unsent, conn->sent, redis->waiting ... */
    ngx_queue_t                  queue;
    ngx_redis_t                 *redis;
    ngx_redis_conn_t            *conn;               /* NULL: not routed
                                                        yet                 */
    const ngx_redis_call_type_t *type;               /* NULL: the client's
                                                        own                 */
    ngx_redis_reply_pt           handler;            /* then; or NULL       */
    /* the user's data; NULL: the call was cancelled, or is the client's
       own */
    void                        *data;
    ngx_str_t                    key;                /* in the user's
                                                        memory              */
    /* instead of a key: the node with this name or, if there is none, the
       next one by name */
    ngx_str_t                   *node_name;
    ngx_uint_t                   order_key;
    ngx_msec_t                   time;               /* when it was sent    */
    ngx_uint_t                   tries;              /* how often it was
                                                        sent                */
    ngx_uint_t                   redirects;
    redisReply                  *first_reply;        /* of two              */
    void                        *to_free;            /* from malloc(),
                                                        freed with the call */
    ngx_redis_bulk_t            *bulk;               /* the unsent part of
                                                        its large string    */
    unsigned                     two_replies:1;
    unsigned                     sent:1;
    unsigned                     replied:1;
    /* ASKING is sent before it: the node is importing the slot */
    unsigned                     asking:1;
    unsigned                     impatient:1;        /* fails early while
                                                        its server is down  */
    /* goes to the front when the connection is ready */
    unsigned                     urgent:1;
    unsigned                     waits:1;            /* needs WAIT          */
    /* sent on a connection without WAIT; a later WAIT acknowledges it */
    unsigned                     early:1;
};


typedef enum {
    NGX_REDIS_CLOSED = 0,          /* connects when needed        */
    NGX_REDIS_BACKOFF,             /* waits for the timer         */
    NGX_REDIS_CONNECTING,
    NGX_REDIS_SETUP,               /* AUTH, SELECT, SUBSCRIBE ... */
    NGX_REDIS_READY
} ngx_redis_state_e;


struct ngx_redis_conn_s {
    ngx_redis_t                 *redis;
    ngx_redis_node_t            *node;               /* NULL: a subscriber
                                                        without a node      */
    ngx_redis_state_e            state;
    ngx_connection_t            *connection;
    ngx_sockaddr_t               sockaddr;           /* of the peer         */
    socklen_t                    socklen;
    redisReader                 *reader;

    ngx_queue_t                  unsent;             /* calls to be sent    */
    ngx_queue_t                  sent;               /* calls in the order
                                                        of their replies    */
    /* calls with a reply that wait for the reply to WAIT */
    ngx_queue_t                  held;
    /* calls that were executed on another connection and wait until the next
       WAIT is sent here */
    ngx_queue_t                  early;
    /* calls moved here from "early" when the WAIT was sent */
    ngx_queue_t                  covered;
    ngx_buf_t                    out;                /* encoded commands    */
    /* large strings to be sent between the bytes of "out" */
    ngx_queue_t                  bulks;
    size_t                       bulk;               /* unsent bytes of
                                                        "bulks"             */
    ngx_buf_t                    in;                 /* a large string that
                                                        is being received   */

    ngx_event_t                  flush;              /* posted: sends, or
                                                        connects            */
    /* connect timeout and backoff; while a WAIT is outstanding, when the
       queued calls go elsewhere */
    ngx_event_t                  timer;
    /* timer: the next additional connect attempt */
    ngx_event_t                  probe;
    ngx_connection_t            *probes[NGX_REDIS_PROBES];
    ngx_uint_t                   failures;           /* failed attempts in
                                                        a row               */
    ngx_msec_t                   last_read;          /* time of the last
                                                        received bytes      */
    ngx_msec_t                   wait_sent;          /* of the last WAIT    */
    ngx_msec_t                   ready_since;
    ngx_uint_t                   valkey;             /* 0: Redis            */
    ngx_uint_t                   version;            /* of the server, see
                                                        ngx_redis_version() */
    ngx_uint_t                   flags;              /* the user's; cleared
                                                        on connect          */
    const ngx_redis_owner_t     *owner;
    ngx_str_t                   *channel;            /* NULL: it is not a
                                                        subscriber          */
    ngx_str_t                   *second_channel;     /* or NULL             */
    u_char                       error[NGX_REDIS_ERROR_LEN];
    /* a connection for calls that need WAIT */
    unsigned                     waits:1;
    unsigned                     awaiting:1;         /* a WAIT has no reply */
    /* a call was executed here since the last WAIT was sent, so this WAIT
       covers a write */
    unsigned                     wrote:1;
    unsigned                     answered:1;         /* since it connected  */
    /* its server is a replica: closed when it has all replies */
    unsigned                     replica:1;
    unsigned                     failure_logged:1;
    /* a partly sent command can't be completed */
    unsigned                     truncated:1;
};


/*
 * A server, and the connections of this worker to it.  When a node leaves the
 * topology, its calls are first moved to other nodes, then the node is freed.
 */

struct ngx_redis_node_s {
    ngx_queue_t                  queue;              /* redis->nodes, or
                                                        redis->retired      */
    ngx_redis_t                 *redis;
    ngx_pool_t                  *pool;
    ngx_str_t                    name;               /* <host>:<port>       */
    void                        *data;               /* the user's          */
    ngx_str_t                    host;               /* NUL-terminated      */
    in_port_t                    port;

    /* the addresses of a host name may change */
    ngx_addr_t                  *addrs;
    ngx_pool_t                  *addrs_pool;
    ngx_uint_t                   naddrs;
    ngx_uint_t                   addr;               /* index of the one in
                                                        use                 */

    /* calls use the first nconns connections, by order_key; the others, up to
       "total", are for calls that need WAIT */
    ngx_redis_conn_t            *conns;
    ngx_uint_t                   nconns;
    ngx_uint_t                   total;

    ngx_str_t                    lookup;             /* host, as passed to
                                                        the resolver        */
    ngx_resolver_ctx_t          *resolving;
    ngx_event_t                  resolve_timer;
    ngx_msec_t                   resolved;           /* time of the last
                                                        lookup              */

    ngx_event_t                  destroy;            /* posted: frees the
                                                        node                */

    /* of a sentinel: the connection for its events, and the reconnect
       timer */
    ngx_redis_conn_t            *events;
    ngx_event_t                  events_timer;

    ngx_uint_t                   last_round;         /* round of the last
                                                        query               */
    /* time of the last ASK that led here; 0: none */
    ngx_msec_t                   importing;
    /* when the server last refused to serve or failed to answer a topology
       query; 0: it is fine */
    ngx_msec_t                   refused;

    unsigned                     retired:1;
    unsigned                     named:1;            /* by a host name      */
    unsigned                     unresolved:1;       /* this was logged     */
    unsigned                     sentinel:1;
    unsigned                     seed:1;             /* from the
                                                        configuration       */
    unsigned                     member:1;           /* of the cluster      */
    unsigned                     owner:1;            /* it has slots        */
};


/* the state of this worker's topology queries */

typedef struct {
    const ngx_redis_query_t     *query;
    ngx_redis_conn_t             conn;
    /* starts the next round, and limits the time of the current query */
    ngx_event_t                  timer;
    ngx_msec_t                   last;               /* start of the last
                                                        round               */
    ngx_uint_t                   round;
    ngx_redis_node_t            *first;              /* node to query
                                                        first, or NULL      */
    unsigned                     asking:1;
    unsigned                     wanted:1;           /* another round is
                                                        due                 */
    /* the current round was requested, as something seems wrong */
    unsigned                     urgent:1;
    unsigned                     failure_logged:1;
} ngx_redis_control_t;


/* a sentinel did not report an epoch with the address of the master */
#define NGX_REDIS_NO_EPOCH     -1


/* the latest master that any worker learned from sentinels; in shared
   memory */

typedef struct {
    ngx_atomic_t                 version;            /* changes with the
                                                        master; 0: unknown  */
    int64_t                      epoch;
    in_port_t                    port;
    size_t                       len;
    u_char                       host[NGX_MAXHOSTNAMELEN];
} ngx_redis_newest_t;


/* the address that sentinels report in one round, and how many agree on it */

typedef struct {
    int64_t                      epoch;              /* reported by the
                                                        sentinel in query   */
    ngx_uint_t                   round;
    ngx_uint_t                   n;
    in_port_t                    port;
    size_t                       len;
    u_char                       host[NGX_MAXHOSTNAMELEN];
} ngx_redis_vote_t;


/* the address of a server or a sentinel in the configuration */

typedef struct {
    ngx_url_t                    url;
    u_char                      *file;
    ngx_uint_t                   line;
} ngx_redis_addr_t;


struct ngx_redis_s {
    const ngx_redis_hooks_t     *hooks;
    void                        *data;               /* the user's          */
    ngx_str_t                    label;              /* prefix of log
                                                        messages            */
    ngx_resolver_t              *resolver;           /* or NULL             */

    /* the configuration */
    ngx_array_t                  servers;            /* ngx_redis_addr_t    */
    ngx_flag_t                   cluster;
    ngx_array_t                  sentinels;          /* ngx_redis_addr_t    */
    ngx_str_t                    master_name;
    ngx_str_t                    user;
    ngx_str_t                    password;
    ngx_str_t                    sentinel_user;
    ngx_str_t                    sentinel_password;
    ngx_int_t                    db;
    ngx_str_t                    channel;            /* to subscribe to     */
    ngx_msec_t                   connect_timeout;
    ngx_msec_t                   timeout;
    ngx_int_t                    connections;
    ngx_int_t                    replicas;           /* the argument of
                                                        WAIT; 0: no WAIT    */
    ngx_msec_t                   replicas_timeout;
    ngx_flag_t                   tls;
    ngx_flag_t                   sentinel_tls;
    ngx_flag_t                   tls_verify;
    ngx_str_t                    tls_trusted_certificate;
    ngx_str_t                    tls_name;           /* NUL-terminated      */
    ngx_str_t                    tls_certificate;
    ngx_str_t                    tls_certificate_key;
#if (NGX_SSL)
    ngx_ssl_t                   *ssl;
#endif

    /* the state of this worker */
    const ngx_redis_topology_t  *topology;
    ngx_queue_t                  nodes;
    ngx_queue_t                  retired;
    ngx_redis_node_t            *master;             /* of all keys         */
    ngx_redis_conn_t             subscriber;
    ngx_queue_t                  waiting;            /* calls whose node is
                                                        not known yet       */
    /* calls that are retried after a pause */
    ngx_queue_t                  later;
    ngx_event_t                  later_timer;
    ngx_redis_control_t          control;
    /* timer: looks for servers that owe replies */
    ngx_event_t                  silence;
    ngx_redis_node_t           **slots;              /* of a cluster        */
    ngx_redis_newest_t          *newest;             /* shared by all
                                                        workers             */
    ngx_slab_pool_t             *shpool;             /* its mutex guards
                                                        "newest"            */
    ngx_uint_t                   version;            /* newest->version
                                                        that is in use here */
    ngx_event_t                  renewed;            /* posted: adopts
                                                        "newest"            */
    /* timer: calls are held back during a failover */
    ngx_event_t                  promoting;
    ngx_redis_vote_t             vote;
    /* rounds in a row that found no master, or no node for a slot */
    ngx_uint_t                   lost;
    u_char                       error[NGX_REDIS_ERROR_LEN];
    ngx_uint_t                   listeners;          /* users of the
                                                        subscriber          */
    ngx_uint_t                   no_resolver;        /* this was logged     */
};


/* conn->version: 8.1 is 0x0801 */
#define ngx_redis_version(major, minor)  ((major) << 8 | (minor))


/* called in each worker; the configuration decides on redis->topology */

ngx_int_t ngx_redis_init(ngx_redis_t *redis);
void ngx_redis_exit(ngx_redis_t *redis);

/* ..._codec.c */

redisReader *ngx_redis_reader(size_t elements);
u_char *ngx_redis_reserve(ngx_redis_conn_t *conn, size_t size);
u_char *ngx_redis_put(u_char *p, const void *data, size_t len);
u_char *ngx_redis_put_number(u_char *p, uint64_t n);
u_char *ngx_redis_put_line(u_char *p, u_char type, uint64_t n);
u_char *ngx_redis_put_chain(u_char *p, ngx_chain_t *in, size_t size);
u_char *ngx_redis_error_text(u_char *p, u_char *last, redisReply *reply);
ngx_uint_t ngx_redis_error_is(redisReply *reply, const char *word);
ngx_int_t ngx_redis_field(redisReply *reply, ngx_uint_t n, ngx_str_t *value);

/* space for an argument of "len" bytes, with its length line and CRLFs */
#define ngx_redis_put_size(len)                                     \
    (sizeof("$\r\n\r\n") - 1 + NGX_INT64_LEN + (len))

/* ..._bulk.c */

/*
 * For encode().  ngx_redis_bulk() prepares a call for a string that is sent
 * without being copied, and ngx_redis_put_bulk() says which bytes it has.
 * The bytes are only read, and not after the call was replied to or
 * cancelled.
 */
ngx_int_t ngx_redis_bulk(ngx_redis_call_t *call);
u_char *ngx_redis_put_bulk(u_char *p, ngx_redis_call_t *call, ngx_chain_t *in,
    size_t size);
void ngx_redis_bulk_leave(ngx_redis_call_t *call);
ssize_t ngx_redis_bulk_send(ngx_redis_conn_t *conn, size_t max);
void ngx_redis_bulk_close(ngx_redis_conn_t *conn);
ngx_int_t ngx_redis_bulk_expect(ngx_redis_conn_t *conn);
redisReply *ngx_redis_bulk_reply(ngx_redis_conn_t *conn);

/* ..._alloc.c */

/* a zeroed call, with room for the user's struct around it */
void *ngx_redis_call_alloc(size_t size);

/* gives back a call that is in no queue */
void ngx_redis_call_discard(ngx_redis_call_t *call);

/* ..._call.c */

/* the connection to that node for a call */
ngx_redis_conn_t *ngx_redis_conn_of(ngx_redis_node_t *node,
    ngx_redis_call_t *call);

/*
 * Sends a call whose type, data, key and order_key are set.
 * NGX_ERROR: its server is down, and ngx_redis_call_error() says why; the call
 * still belongs to the user.
 */
ngx_int_t ngx_redis_call(ngx_redis_t *redis, ngx_redis_call_t *call);
const char *ngx_redis_call_error(ngx_redis_call_t *call);

/* the server owes a reply and has not sent any bytes for a while */
ngx_uint_t ngx_redis_call_silent(ngx_redis_call_t *call);

/* the first node by name among those that have keys and whose name is greater
   than "name", or equal to it if "same" is set */
ngx_redis_node_t *ngx_redis_node_after(ngx_redis_t *redis, ngx_str_t *name,
    ngx_uint_t same);

/* the node of a key, or NULL */
ngx_redis_node_t *ngx_redis_node_of(ngx_redis_t *redis, ngx_str_t *key);
/* whether calls with these keys use this connection */
ngx_uint_t ngx_redis_conn_has(ngx_redis_conn_t *conn, ngx_str_t *key,
    ngx_uint_t order_key);

/* cancels a call; the user must not touch it afterwards */
void ngx_redis_call_cancel(ngx_redis_call_t *call);

/* fails the impatient calls in a queue */
void ngx_redis_refuse_waiting(ngx_queue_t *calls, const char *error);

void ngx_redis_call_replied(ngx_redis_call_t *call, redisReply *reply);
void ngx_redis_call_free(ngx_redis_call_t *call);
void ngx_redis_call_unsent(ngx_redis_call_t *call);
void ngx_redis_call_to(ngx_redis_call_t *call, ngx_redis_conn_t *conn);
void ngx_redis_call_again(ngx_redis_call_t *call);
void ngx_redis_call_later(ngx_redis_call_t *call, redisReply *reply);
ngx_uint_t ngx_redis_transient(redisReply *reply);
void ngx_redis_forget(ngx_queue_t *calls);

/* the number of calls that wait for a connection or for a retry */
ngx_uint_t ngx_redis_queued(ngx_redis_t *redis);
void ngx_redis_requeue(ngx_redis_conn_t *conn);
void ngx_redis_append(ngx_queue_t *to, ngx_queue_t *calls);
void ngx_redis_reroute(ngx_queue_t *calls);
ngx_int_t ngx_redis_ask(ngx_redis_conn_t *conn, ngx_redis_reply_pt handler,
    ngx_str_t *args, ngx_uint_t n);
void ngx_redis_suspect_loss(ngx_redis_conn_t *conn, ngx_uint_t now);

/* ..._replicas.c */

/*
 * For a call that needs WAIT and that the master has executed:
 * call->type->replicated() follows.  NGX_DECLINED: no WAIT is sent for this
 * call.
 */
ngx_int_t ngx_redis_replicate(ngx_redis_call_t *call);
ngx_int_t ngx_redis_replicas_ask(ngx_redis_conn_t *conn);
void ngx_redis_replicas_hurry(ngx_redis_conn_t *conn);
void ngx_redis_replicas_cover(ngx_redis_conn_t *conn);

/* ..._connection.c */

void ngx_redis_conn_init(ngx_redis_conn_t *conn, ngx_redis_t *redis,
    ngx_redis_node_t *node);
void ngx_redis_flush(ngx_redis_conn_t *conn);
void ngx_redis_send(ngx_redis_conn_t *conn);
void ngx_redis_drop(ngx_redis_conn_t *conn, const char *fmt, ...);
void ngx_redis_close(ngx_redis_conn_t *conn);
void ngx_redis_first_reply(ngx_redis_conn_t *conn);
void ngx_redis_idle(ngx_redis_conn_t *conn);
void ngx_redis_write_handler(ngx_event_t *wev);

/* ..._receive.c */

void ngx_redis_read_handler(ngx_event_t *rev);

/* ..._setup.c */

void ngx_redis_connect(ngx_redis_conn_t *conn);
ngx_int_t ngx_redis_attempt(ngx_redis_conn_t *conn,
    ngx_event_handler_pt handler, ngx_connection_t **c);
void ngx_redis_connect_handler(ngx_event_t *ev);
ngx_err_t ngx_redis_connect_error(ngx_connection_t *c);

/* the socket is connected; all replies of the setup came */
void ngx_redis_connected(ngx_redis_conn_t *conn);
void ngx_redis_ready(ngx_redis_conn_t *conn);

/* ..._probe.c */

/* starts additional connect attempts, until one of them succeeds */
void ngx_redis_probe(ngx_redis_conn_t *conn);
void ngx_redis_probe_stop(ngx_redis_conn_t *conn);
void ngx_redis_probe_handler(ngx_event_t *ev);

/* ..._parse.c */

ngx_uint_t ngx_redis_slot(u_char *key, size_t len);
uint16_t ngx_redis_crc16(u_char *p, u_char *last);

/* ..._node.c */

/* the address in use, for the log */
ngx_str_t *ngx_redis_node_label(ngx_redis_node_t *node);

/* ..._subscriber.c */

/* adds or removes a user of the subscriber */
void ngx_redis_listen_enter(ngx_redis_t *redis);
void ngx_redis_listen_leave(ngx_redis_t *redis);

/* moves the subscriber to another node than "except", if there is one */
void ngx_redis_listen(ngx_redis_t *redis, ngx_redis_node_t *except);

/* tests a subscriber that has not received anything for a while */
void ngx_redis_check(ngx_redis_conn_t *conn);
ngx_uint_t ngx_redis_is_checked(ngx_redis_conn_t *conn, redisReply *reply);
ngx_int_t ngx_redis_message(ngx_redis_conn_t *conn, redisReply *reply);

/* publishes a message, at the server that executed the call */
void ngx_redis_publish(ngx_redis_call_t *call, ngx_str_t *text);


#endif /* _NGX_REDIS_H_INCLUDED_ */
