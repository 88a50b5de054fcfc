
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A client for Redis and Valkey, for nginx: connections, their set-up and TLS,
 * calls, and which server has which key.  It knows bytes, calls and keys; what
 * is asked, and what the replies mean, is its user's own.
 *
 *   ..._codec.c        bytes of commands and replies; hiredis reads
 *   ..._bulk.c         large strings, which are not copied
 *   ..._call.c         calls: to which connection, and to which instead
 *   ..._connection.c   a connection: calls in flight, and their fate when it
 *                      breaks; _receive.c: their replies
 *   ..._setup.c        from a socket to a connection that is ready; _knock.c:
 *                      more sockets, while the first gets no answer
 *   ..._replicas.c     calls that wait for replicas to have what they wrote
 *   ..._subscriber.c   messages
 *   ..._topology.h     which server has which key: one server, a cluster, a
 *                      master that sentinels name
 *
 * A user fills the configuration of an ngx_redis_t, and in each worker calls
 * ngx_redis_init().  A call is a structure of its own that begins with an
 * ngx_redis_call_t, in memory of ngx_alloc(); the client frees it.  Calls of
 * one lane are sent in the order in which they were asked.  A call may be sent
 * more than once: where a connection breaks, the client can't know whether it
 * was done.
 */


#ifndef _NGX_REDIS_H_INCLUDED_
#define _NGX_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include <hiredis/hiredis.h>


#define NGX_REDIS_ERROR_LEN    256

#define NGX_REDIS_SLOTS        16384

/* between two rounds of asking about the topology, at least */
#define NGX_REDIS_INTERVAL     500

/* a server that owes a reply for so long is taken for one that is away, as
   far as the topology is concerned */
#define NGX_REDIS_SILENT       1000

/* attempts to connect that may be under way beside the first */
#define NGX_REDIS_KNOCKS       4

/* connect attempts in vain after which an impatient call does not wait */
#define NGX_REDIS_GIVE_UP      3

/* from so many bytes on a string is sent from where it is, and received into
   the memory in which it stays */
#define NGX_REDIS_BULK_MIN     16384

/* of one connection in one turn of the event loop */
#define NGX_REDIS_TURN_SIZE    (2 * 1024 * 1024)

/* as Redis itself has it */
#define NGX_REDIS_REPLY_MAX    (512 * 1024 * 1024)


typedef struct ngx_redis_s           ngx_redis_t;
typedef struct ngx_redis_node_s      ngx_redis_node_t;
typedef struct ngx_redis_conn_s      ngx_redis_conn_t;
typedef struct ngx_redis_call_s      ngx_redis_call_t;
typedef struct ngx_redis_bulk_s      ngx_redis_bulk_t;
typedef struct ngx_redis_topology_s  ngx_redis_topology_t;
typedef struct ngx_redis_asker_s     ngx_redis_asker_t;


typedef void (*ngx_redis_reply_pt)(ngx_redis_call_t *call, redisReply *reply);


/* what became of a call at a node, for figures */

typedef enum {
    NGX_REDIS_NODE_ANSWERED = 0,
    NGX_REDIS_NODE_FAILED,
    NGX_REDIS_NODE_REDIRECTED
} ngx_redis_count_e;


/* what its user is told */

typedef struct {
    /* a node is there; its pool is at hand */
    ngx_int_t  (*node)(ngx_redis_node_t *node);

    void       (*count)(ngx_redis_node_t *node, ngx_redis_count_e what);

    /* a connection for calls is ready */
    void       (*ready)(ngx_redis_conn_t *conn);

    /* it answers: it is more than a port that is open */
    void       (*works)(ngx_redis_conn_t *conn);

    /*
     * What was written may be lost, since another server has it now, or since
     * a connection broke and the server may have been started anew: that of
     * the calls of "conn", or all if it is NULL.  "now", or when it is worth
     * trying
     */
    void       (*doubt)(ngx_redis_t *redis, ngx_redis_conn_t *conn,
                        ngx_uint_t now);

    /* the subscriber listens: what was published before went by */
    void       (*listening)(ngx_redis_t *redis);

    void       (*message)(ngx_redis_t *redis, ngx_str_t *text);
} ngx_redis_user_t;


/* ... of its calls */

typedef struct {
    /* writes the command behind what call->conn is to send */
    ngx_int_t  (*encode)(ngx_redis_call_t *call);

    /* it is in vain for the time being, and the call is impatient; error is
       NULL: the worker leaves, and the call goes */
    void       (*failed)(ngx_redis_call_t *call, const char *error);

    /* the replicas were asked, and so many have it; or an error */
    void       (*replicated)(ngx_redis_call_t *call, redisReply *reply);

    /* it is done, and has so much time more until the replicas have it */
    void       (*extend)(ngx_redis_call_t *call, ngx_msec_t time);
} ngx_redis_call_type_t;


/*
 * Who has a connection to itself, beside those for calls.  It is told when it
 * may ask, and when it has to connect again, to whom it likes.
 */

typedef struct {
    void       (*ready)(ngx_redis_conn_t *conn);
    void       (*lost)(ngx_redis_conn_t *conn);
    ngx_int_t  (*message)(ngx_redis_conn_t *conn,
                          redisReply *reply);       /* of a subscriber      */
} ngx_redis_owner_t;


/*
 * A command that waits to be sent, or for its reply.  It outlives whoever
 * asked: the reply is still to come, and belongs to nobody.
 */

struct ngx_redis_call_s {
    ngx_queue_t                  queue;              /* conn->unsent or sent,
                                                        redis->waiting      */
    ngx_redis_t                 *redis;
    ngx_redis_conn_t            *conn;               /* NULL: none yet      */
    const ngx_redis_call_type_t *type;
    ngx_redis_reply_pt           handler;
    void                        *data;               /* the user's; NULL: it
                                                        was cancelled, or is
                                                        a call of our own   */
    ngx_str_t                    key;                /* the user's memory   */
    ngx_str_t                   *from;               /* in place of a key: the
                                                        server of that name, or
                                                        the next one        */
    ngx_uint_t                   lane;
    ngx_msec_t                   time;               /* when it was sent    */
    ngx_uint_t                   tries;              /* how often sent      */
    ngx_uint_t                   redirects;
    redisReply                  *before;             /* the first of two
                                                        replies             */
    void                        *memory;             /* of malloc(): goes with
                                                        it                  */
    ngx_redis_bulk_t            *bulk;               /* what of it is not sent
                                                        yet, or NULL        */
    unsigned                     due:1;              /* two replies         */
    unsigned                     sent:1;
    unsigned                     replied:1;
    unsigned                     asking:1;           /* this once, of one that
                                                        does not have its
                                                        slot yet            */
    unsigned                     impatient:1;        /* fails soon while its
                                                        server is away      */
    unsigned                     urgent:1;           /* comes first on a new
                                                        connection          */
    unsigned                     waits:1;            /* for replicas        */
    unsigned                     early:1;            /* its WAIT is put off:
                                                        it goes where nothing
                                                        waits               */
};


typedef enum {
    NGX_REDIS_CLOSED = 0,          /* connects when it is needed  */
    NGX_REDIS_BACKOFF,             /* not before the timer        */
    NGX_REDIS_CONNECTING,
    NGX_REDIS_SETUP,               /* AUTH, SELECT, SUBSCRIBE     */
    NGX_REDIS_READY
} ngx_redis_state_e;


struct ngx_redis_conn_s {
    ngx_redis_t                 *redis;
    ngx_redis_node_t            *node;               /* NULL: a subscriber that
                                                        has none yet        */
    ngx_redis_state_e            state;
    ngx_connection_t            *connection;
    ngx_sockaddr_t               sockaddr;           /* of the peer         */
    socklen_t                    socklen;
    redisReader                 *reader;

    ngx_queue_t                  unsent;             /* calls               */
    ngx_queue_t                  sent;               /* ... in the order in
                                                        which replies come  */
    ngx_queue_t                  held;               /* ... replied to, until
                                                        replicas have them  */
    ngx_queue_t                  early;              /* ... replied to before
                                                        the WAIT that is to
                                                        speak for them could
                                                        be asked            */
    ngx_queue_t                  covered;            /* ... and was         */
    ngx_buf_t                    out;                /* commands to be sent */
    ngx_queue_t                  bulks;              /* ... the strings that
                                                        stand between them  */
    size_t                       bulk;               /* ... their bytes     */
    ngx_buf_t                    in;                 /* a string that comes */

    ngx_event_t                  flush;              /* posted: send, or
                                                        connect             */
    ngx_event_t                  timer;              /* of connecting, and
                                                        of the backoff      */
    ngx_event_t                  knock;              /* timer: another try to
                                                        connect             */
    ngx_connection_t            *knocks[NGX_REDIS_KNOCKS];
    ngx_uint_t                   setup;              /* replies outstanding */
    ngx_uint_t                   failures;           /* in a row            */
    ngx_msec_t                   heard;              /* bytes, last         */
    ngx_msec_t                   asked;              /* the last WAIT       */
    ngx_uint_t                   valkey;             /* or Redis            */
    ngx_uint_t                   version;            /* of the server, see
                                                        ngx_redis_version() */
    ngx_uint_t                   flags;              /* the user's own: zero
                                                        when it is set up   */
    const ngx_redis_owner_t     *owner;
    ngx_str_t                   *channel;            /* of a subscriber     */
    ngx_str_t                   *also;               /* ... another, or NULL */
    u_char                       error[NGX_REDIS_ERROR_LEN];
    unsigned                     subscriber:1;
    unsigned                     waits:1;            /* for replicas: calls
                                                        have a WAIT behind
                                                        them              */
    unsigned                     awaiting:1;         /* its reply         */
    unsigned                     wrote:1;            /* something that it
                                                        speaks for        */
    unsigned                     answered:1;         /* since it connected */
    unsigned                     told:1;             /* it is in the log  */
    unsigned                     cut:1;              /* the rest of a command
                                                        is lost           */
};


/*
 * A server, and this worker's connections to it.  It goes when it left the
 * topology: first what was asked of it, to other nodes, then itself.
 */

struct ngx_redis_node_s {
    ngx_queue_t                  queue;              /* redis->nodes, or
                                                        retired             */
    ngx_redis_t                 *redis;
    ngx_pool_t                  *pool;
    ngx_str_t                    name;               /* <host>:<port>       */
    void                        *data;               /* the user's own      */
    ngx_str_t                    host;               /* with a NUL behind   */
    in_port_t                    port;

    /* of a name they may change */
    ngx_addr_t                  *addrs;
    ngx_pool_t                  *addrs_pool;
    ngx_uint_t                   naddrs;
    ngx_uint_t                   addr;               /* the one in use      */

    /* a lane has one of the first nconns; total: these and all others */
    ngx_redis_conn_t            *conns;
    ngx_uint_t                   nconns;
    ngx_uint_t                   total;

    ngx_str_t                    lookup;             /* host, as the resolver
                                                        has it              */
    ngx_resolver_ctx_t          *resolving;
    ngx_event_t                  resolve_timer;
    ngx_msec_t                   resolved;           /* asked, last         */

    ngx_event_t                  destroy;            /* posted              */

    /* of a sentinel: what it publishes, and when to connect for that again */
    ngx_redis_conn_t            *events;
    ngx_event_t                  events_timer;

    ngx_uint_t                   asked;              /* in which round      */
    ngx_msec_t                   importing;          /* when an ASK led here */
    ngx_msec_t                   refused;            /* when it said that it
                                                        can't serve now, or
                                                        did not answer when it
                                                        was asked about the
                                                        topology            */

    unsigned                     retired:1;
    unsigned                     named:1;            /* not by an address   */
    unsigned                     unresolved:1;       /* it is in the log */
    unsigned                     sentinel:1;
    unsigned                     seed:1;             /* of the configuration */
    unsigned                     member:1;           /* of the cluster      */
    unsigned                     owner:1;            /* it has slots        */
};


/* of this worker's questions about the topology */

typedef struct {
    const ngx_redis_asker_t     *asker;
    ngx_redis_conn_t             conn;
    ngx_event_t                  timer;              /* of the next round, and
                                                        of the one that is
                                                        being asked         */
    ngx_msec_t                   last;               /* round began         */
    ngx_uint_t                   round;
    ngx_redis_node_t            *first;              /* to be asked, or NULL */
    unsigned                     asking:1;
    unsigned                     wanted:1;           /* one more            */
    unsigned                     urgent:1;           /* this one was wanted:
                                                        something is wrong  */
    unsigned                     told:1;             /* it is in the log    */
} ngx_redis_control_t;


/* a sentinel does not tell the epoch of what it says */
#define NGX_REDIS_NO_EPOCH     -1


/* the newest that sentinels said of the master, in shared memory */

typedef struct {
    ngx_atomic_t                 version;            /* of it, 0: nothing is
                                                        known yet           */
    int64_t                      epoch;
    in_port_t                    port;
    size_t                       len;
    u_char                       host[NGX_MAXHOSTNAMELEN];
} ngx_redis_newest_t;


/* what sentinels say of the master, in one round */

typedef struct {
    int64_t                      epoch;              /* of the one that is
                                                        being asked         */
    ngx_uint_t                   round;
    ngx_uint_t                   n;
    in_port_t                    port;
    size_t                       len;
    u_char                       host[NGX_MAXHOSTNAMELEN];
} ngx_redis_vote_t;


/* a server or a sentinel, as it is configured */

typedef struct {
    ngx_url_t                    url;
    u_char                      *file;
    ngx_uint_t                   line;
} ngx_redis_addr_t;


struct ngx_redis_s {
    const ngx_redis_user_t      *hooks;
    void                        *data;               /* the user's own      */
    ngx_str_t                    label;              /* for the log         */
    ngx_resolver_t              *resolver;           /* or NULL             */

    /* the configuration */
    ngx_array_t                  servers;            /* ..._redis_addr_t    */
    ngx_flag_t                   cluster;
    ngx_array_t                  sentinels;          /* ..._redis_addr_t    */
    ngx_str_t                    master_name;
    ngx_str_t                    user;
    ngx_str_t                    password;
    ngx_str_t                    sentinel_user;
    ngx_str_t                    sentinel_password;
    ngx_int_t                    db;
    ngx_str_t                    channel;            /* is subscribed to    */
    ngx_msec_t                   connect_timeout;
    ngx_msec_t                   timeout;
    ngx_int_t                    connections;
    ngx_int_t                    replicas;           /* to have what waits
                                                        for them            */
    ngx_msec_t                   replicas_timeout;
    ngx_flag_t                   tls;
    ngx_flag_t                   sentinel_tls;
    ngx_flag_t                   tls_verify;
    ngx_str_t                    tls_trusted_certificate;
    ngx_str_t                    tls_name;
    ngx_str_t                    tls_certificate;
    ngx_str_t                    tls_certificate_key;
#if (NGX_SSL)
    ngx_ssl_t                   *ssl;
#endif

    /* this worker */
    const ngx_redis_topology_t  *topology;
    ngx_queue_t                  nodes;
    ngx_queue_t                  retired;
    ngx_redis_node_t            *master;             /* of all keys         */
    ngx_redis_conn_t             subscriber;
    ngx_queue_t                  waiting;            /* calls that have no
                                                        node yet            */
    ngx_queue_t                  later;              /* calls that are asked
                                                        again in a while    */
    ngx_event_t                  later_timer;
    ngx_redis_control_t          control;
    ngx_event_t                  silence;            /* timer: does a server
                                                        owe a reply?        */
    ngx_redis_node_t           **slots;              /* of a cluster        */
    ngx_redis_newest_t          *newest;             /* of all workers      */
    ngx_slab_pool_t             *shpool;             /* ... its lock        */
    ngx_uint_t                   version;            /* of that, as adopted */
    ngx_event_t                  renewed;            /* posted: it changed  */
    ngx_event_t                  promoting;          /* timer: there will be
                                                        another master      */
    ngx_redis_vote_t             vote;
    ngx_uint_t                   lost;               /* attempts to find one,
                                                        in vain, in a row   */
    u_char                       error[NGX_REDIS_ERROR_LEN];
    ngx_uint_t                   listeners;          /* who want messages   */
    ngx_uint_t                   no_resolver;        /* it is in the log  */
};


/* of conn->version: 8.1 is 0x0801 */
#define ngx_redis_version(major, minor)  ((major) << 8 | (minor))


/* one process: redis->topology follows from the configuration */

ngx_int_t ngx_redis_init(ngx_redis_t *redis);
void ngx_redis_exit(ngx_redis_t *redis);

/* ..._codec.c */

redisReader *ngx_redis_reader(size_t elements);
u_char *ngx_redis_reserve(ngx_redis_conn_t *conn, size_t size);
u_char *ngx_redis_put_count(u_char *p, ngx_uint_t n);
u_char *ngx_redis_put(u_char *p, const void *data, size_t len);
u_char *ngx_redis_put_number(u_char *p, uint64_t n);
u_char *ngx_redis_put_line(u_char *p, u_char type, uint64_t n);
u_char *ngx_redis_put_chain(u_char *p, ngx_chain_t *in, size_t size);
u_char *ngx_redis_error_text(u_char *p, u_char *last, redisReply *reply);
ngx_uint_t ngx_redis_error_is(redisReply *reply, const char *word);
ngx_int_t ngx_redis_field(redisReply *reply, ngx_uint_t n, ngx_str_t *value);

/* room for an argument of that many bytes: its length line and both ends */
#define ngx_redis_put_size(len)                                     \
    (sizeof("$\r\n\r\n") - 1 + NGX_INT64_LEN + (len))

/* ..._bulk.c */

/*
 * For encode(): the call is to have a string that is not copied; then, in the
 * place of its bytes, which they are.  They are only read, and not any more
 * once the call is replied to or cancelled.
 */
ngx_int_t ngx_redis_bulk(ngx_redis_call_t *call);
u_char *ngx_redis_put_bulk(u_char *p, ngx_redis_call_t *call, ngx_chain_t *in,
    size_t size);
void ngx_redis_bulk_leave(ngx_redis_call_t *call);
ssize_t ngx_redis_bulk_send(ngx_redis_conn_t *conn, size_t max);
void ngx_redis_bulk_close(ngx_redis_conn_t *conn);
ngx_int_t ngx_redis_bulk_expect(ngx_redis_conn_t *conn);
redisReply *ngx_redis_bulk_reply(ngx_redis_conn_t *conn);

/* ..._call.c */

/* the connection for a call; NULL: its node is not known yet */
ngx_redis_conn_t *ngx_redis_route(ngx_redis_call_t *call);
/* ... and of those to a node */
ngx_redis_conn_t *ngx_redis_conn_of(ngx_redis_node_t *node,
    ngx_redis_call_t *call);

/*
 * Asks a call, whose type, handler, data, key and lane are filled.  NGX_ERROR:
 * its server is away, call->redis->error or that of its connection says why;
 * the call is still the user's.
 */
ngx_int_t ngx_redis_call(ngx_redis_t *redis, ngx_redis_call_t *call);
const char *ngx_redis_call_error(ngx_redis_call_t *call);

/* its server owes a reply, and says nothing */
ngx_uint_t ngx_redis_call_silent(ngx_redis_call_t *call);

/* the node of a key, or NULL; whether its calls are on that connection */
/* of those that have keys, the first by name; from "name" on, or behind it */
ngx_redis_node_t *ngx_redis_node_after(ngx_redis_t *redis, ngx_str_t *name,
    ngx_uint_t same);
ngx_redis_node_t *ngx_redis_node_of(ngx_redis_t *redis, ngx_str_t *key);
ngx_uint_t ngx_redis_conn_has(ngx_redis_conn_t *conn, ngx_str_t *key,
    ngx_uint_t lane);

/* nobody waits for it any more; after that it is not the user's */
void ngx_redis_call_cancel(ngx_redis_call_t *call);

/* an impatient one of them is told that it is in vain */
void ngx_redis_refuse_waiting(ngx_queue_t *calls, const char *error);

void ngx_redis_call_replied(ngx_redis_call_t *call, redisReply *reply);
void ngx_redis_call_free(ngx_redis_call_t *call);
void ngx_redis_call_unsent(ngx_redis_call_t *call);
void ngx_redis_call_to(ngx_redis_call_t *call, ngx_redis_conn_t *conn);
void ngx_redis_call_again(ngx_redis_call_t *call);
void ngx_redis_call_later(ngx_redis_call_t *call, redisReply *reply);
ngx_uint_t ngx_redis_transient(redisReply *reply);
ngx_int_t ngx_redis_call_asking(ngx_redis_call_t *call);
void ngx_redis_calls_init(ngx_redis_t *redis);
void ngx_redis_forget(ngx_queue_t *calls);

/* calls that wait for a connection, or to be asked again */
ngx_uint_t ngx_redis_queued(ngx_redis_t *redis);
void ngx_redis_calls_exit(ngx_redis_t *redis);
void ngx_redis_requeue(ngx_redis_conn_t *conn);
void ngx_redis_reroute(ngx_redis_t *redis, ngx_queue_t *calls);
ngx_int_t ngx_redis_ask(ngx_redis_conn_t *conn, ngx_redis_reply_pt handler,
    ngx_str_t *args, ngx_uint_t n);
void ngx_redis_doubt(ngx_redis_conn_t *conn, ngx_uint_t now);
void ngx_redis_ignored(ngx_redis_call_t *call, redisReply *reply);

/* ..._replicas.c */

/*
 * A call that waits for replicas is done: call->type->replicated() follows.
 * NGX_DECLINED: nobody was asked to wait
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
void ngx_redis_works(ngx_redis_conn_t *conn);
void ngx_redis_idle(ngx_redis_conn_t *conn);
void ngx_redis_write_handler(ngx_event_t *wev);

/* ..._receive.c */

void ngx_redis_read_handler(ngx_event_t *rev);

/* ..._setup.c */

void ngx_redis_connect(ngx_redis_conn_t *conn);
void ngx_redis_connect_handler(ngx_event_t *ev);
ngx_err_t ngx_redis_connect_error(ngx_connection_t *c);

/* its socket is there */
void ngx_redis_connected(ngx_redis_conn_t *conn);

/* ..._knock.c */

/* an attempt to connect is under way: others follow, until one succeeds */
void ngx_redis_knock(ngx_redis_conn_t *conn);
void ngx_redis_knock_stop(ngx_redis_conn_t *conn);
void ngx_redis_knock_handler(ngx_event_t *ev);

/* ..._parse.c */

ngx_uint_t ngx_redis_slot(u_char *key, size_t len);
uint16_t ngx_redis_crc16(u_char *p, u_char *last);

/* ..._node.c */

/* for the log: the address that is in use */
ngx_str_t *ngx_redis_node_label(ngx_redis_node_t *node);

/* ..._subscriber.c */

void ngx_redis_subscriber_init(ngx_redis_t *redis);

/* one more, or one less, who wants messages */
void ngx_redis_listen_enter(ngx_redis_t *redis);
void ngx_redis_listen_leave(ngx_redis_t *redis);

/* the subscriber moves to another node than "except", if there is one */
void ngx_redis_listen(ngx_redis_t *redis, ngx_redis_node_t *except);

/* asks a subscriber that heard nothing for long whether it hears */
void ngx_redis_check(ngx_redis_conn_t *conn);
ngx_uint_t ngx_redis_is_checked(ngx_redis_conn_t *conn, redisReply *reply);
ngx_int_t ngx_redis_message(ngx_redis_conn_t *conn, redisReply *reply);

/* tells those who listen, by way of the server that a call was done at */
void ngx_redis_publish(ngx_redis_call_t *call, ngx_str_t *text);


#endif /* _NGX_REDIS_H_INCLUDED_ */
