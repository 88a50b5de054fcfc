
/*
 * The Redis store: one truth for many nginx hosts.
 *
 *   ..._redis.c             the backend: operations, their time, their end
 *   ..._redis_conf.c        its block of directives; _conf_servers.c and
 *                           _conf_tls.c: addresses, and TLS
 *   ..._redis_command.c     an operation as the command that does it: one
 *                           that the server knows, or a script
 *   ..._redis_reply.c       their reply as its result
 *   ..._redis_record.c      a record as it is in Redis
 *   ..._redis_codec.c       bytes of commands and replies; hiredis reads
 *   ..._redis_call.c        calls: to which connection, and to which instead
 *   topology/               which server has which record: one server, a
 *                           cluster, a master that sentinels name
 *   ..._redis_connection.c  a connection: calls in flight, and their fate
 *                           when it breaks
 *   ..._redis_setup.c       from a socket to a connection that is ready;
 *                           _policy.c: whether the server evicts;
 *                           _knock.c: more sockets, while the first gets no
 *                           answer
 *   ..._redis_replicas.c    commits that wait for replicas to have them
 *   ..._redis_admin.c       what people ask: a record, its removal, a list
 *   ..._redis_watch.c       waiters: who is woken, and the net below
 *   *.lua                   what is done in Redis, atomically, on one key
 *
 * An operation becomes a call.  The topology (one server, a sentinel's
 * master, a cluster) tells by the record's id to which node it goes, or that
 * this is not known yet: then it waits.  Of the connections to a node a record
 * has always the same one, so that what is asked of it is done in the order
 * it was asked.
 */


#ifndef _NGX_HTTP_IDEM_REDIS_H_INCLUDED_
#define _NGX_HTTP_IDEM_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include <hiredis/hiredis.h>

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

/* conn->commands: what its server knows, see ..._redis_command.c */
#define NGX_HTTP_IDEM_REDIS_NX_GET       0x0001
#define NGX_HTTP_IDEM_REDIS_IFEQ         0x0002
#define NGX_HTTP_IDEM_REDIS_DELIFEQ      0x0004
#define NGX_HTTP_IDEM_REDIS_DELEX        0x0008

/* a script beside those of the operations */
#define NGX_HTTP_IDEM_REDIS_UPGRADE      NGX_HTTP_IDEM_OP_N

/* how often a waiter looks at a record that it can't mark, ms */
#define NGX_HTTP_IDEM_REDIS_LOOK         1000

#define NGX_HTTP_IDEM_REDIS_WATCHES      256

#define NGX_HTTP_IDEM_REDIS_ERROR_LEN    256

#define NGX_HTTP_IDEM_REDIS_SLOTS        16384

/* between two rounds of asking about the topology, at least */
#define NGX_HTTP_IDEM_REDIS_INTERVAL     500

/* a server that owes a reply for so long is taken for one that is away, as
   far as the topology is concerned */
#define NGX_HTTP_IDEM_REDIS_SILENT       1000

/* attempts to connect that may be under way beside the first */
#define NGX_HTTP_IDEM_REDIS_KNOCKS       4

/* connect attempts in vain after which a begin no longer waits for one */
#define NGX_HTTP_IDEM_REDIS_GIVE_UP      3


typedef struct ngx_http_idem_redis_s       ngx_http_idem_redis_t;
typedef struct ngx_http_idem_redis_node_s
    ngx_http_idem_redis_node_t;
typedef struct ngx_http_idem_redis_conn_s
    ngx_http_idem_redis_conn_t;
typedef struct ngx_http_idem_redis_call_s
    ngx_http_idem_redis_call_t;
typedef struct ngx_http_idem_redis_topology_s
    ngx_http_idem_redis_topology_t;
typedef struct ngx_http_idem_redis_asker_s
    ngx_http_idem_redis_asker_t;


typedef void (*ngx_http_idem_redis_reply_pt)(
    ngx_http_idem_redis_call_t *call, redisReply *reply);


/*
 * Who has a connection to itself, beside those for records.  It is told when
 * it may ask, and when it has to connect again, to whom it likes.
 */

typedef struct {
    void       (*ready)(ngx_http_idem_redis_conn_t *conn);
    void       (*lost)(ngx_http_idem_redis_conn_t *conn);
    ngx_int_t  (*message)(ngx_http_idem_redis_conn_t *conn,
                          redisReply *reply);       /* of a subscriber      */
} ngx_http_idem_redis_owner_t;


/*
 * A command that waits to be sent, or for its reply.  It outlives an
 * operation that is cancelled: the reply is still to come, and belongs to
 * nobody.
 */

struct ngx_http_idem_redis_call_s {
    ngx_queue_t                    queue;            /* conn->unsent or sent,
                                                        redis->waiting      */
    ngx_http_idem_redis_conn_t    *conn;             /* NULL: none yet      */
    ngx_http_idem_op_t            *op;               /* NULL: cancelled, or
                                                        a call of our own   */
    ngx_http_idem_redis_reply_pt   handler;
    ngx_msec_t                     time;             /* when it was sent    */
    uint32_t                       tag;              /* comes back in the
                                                        reply               */
    ngx_uint_t                     tries;            /* how often sent      */
    ngx_uint_t                     redirects;
    redisReply                    *before;           /* the first of two
                                                        replies             */
    ngx_str_t                      expected;         /* a lock that was found
                                                        to be ours; of malloc
                                                        */
    unsigned                       due:1;            /* two replies         */
    unsigned                       sent:1;
    unsigned                       replied:1;
    unsigned                       eval:1;           /* again, since the
                                                        server did not know
                                                        the script          */
    unsigned                       whole:1;          /* sent with its script */
    unsigned                       asking:1;         /* this once, of one that
                                                        does not have its
                                                        slot yet            */
    unsigned                       native:1;         /* sent as a command
                                                        without a script    */
    unsigned                       script:1;         /* again, since that did
                                                        not decide it       */
    unsigned                       upgrade:1;        /* of a record in the
                                                        form of the version
                                                        before              */
    unsigned                       upgraded:1;        /* it was tried        */
    unsigned                       waited:1;         /* somebody waits, and is
                                                        to be told          */
    unsigned                       early:1;          /* a commit whose WAIT is
                                                        put off: it goes where
                                                        nothing waits       */
};


typedef enum {
    NGX_HTTP_IDEM_REDIS_CLOSED = 0,          /* connects when it is needed  */
    NGX_HTTP_IDEM_REDIS_BACKOFF,             /* not before the timer        */
    NGX_HTTP_IDEM_REDIS_CONNECTING,
    NGX_HTTP_IDEM_REDIS_SETUP,               /* AUTH, SELECT, SUBSCRIBE     */
    NGX_HTTP_IDEM_REDIS_READY
} ngx_http_idem_redis_state_e;


struct ngx_http_idem_redis_conn_s {
    ngx_http_idem_redis_t         *redis;
    ngx_http_idem_redis_node_t    *node;             /* NULL: a subscriber that
                                                        has none yet        */
    ngx_http_idem_redis_state_e    state;
    ngx_connection_t              *connection;
    ngx_sockaddr_t                 sockaddr;         /* of the peer         */
    socklen_t                      socklen;
    redisReader                   *reader;

    ngx_queue_t                    unsent;           /* calls               */
    ngx_queue_t                    sent;             /* ... in the order in
                                                        which replies come  */
    ngx_queue_t                    held;             /* ... replied to, until
                                                        replicas have them  */
    ngx_queue_t                    early;            /* ... replied to before
                                                        the WAIT that is to
                                                        speak for them could
                                                        be asked            */
    ngx_queue_t                    covered;          /* ... and was         */
    ngx_buf_t                      out;              /* commands to be sent */

    ngx_event_t                    flush;            /* posted: send, or
                                                        connect             */
    ngx_event_t                    timer;            /* of connecting, and
                                                        of the backoff      */
    ngx_event_t                    knock;            /* timer: another try to
                                                        connect             */
    ngx_connection_t              *knocks[
                                         NGX_HTTP_IDEM_REDIS_KNOCKS];
    ngx_uint_t                     setup;            /* replies outstanding */
    ngx_uint_t                     failures;         /* in a row            */
    ngx_msec_t                     heard;            /* bytes, last         */
    ngx_msec_t                     asked;            /* the last WAIT       */
    uint32_t                       tag;
    ngx_uint_t                     commands;         /* that it knows       */
    ngx_uint_t                     known;            /* kinds of operations
                                                        whose script it has */
    const ngx_http_idem_redis_owner_t  *owner;
    ngx_str_t                            *channel;   /* of a subscriber     */
    ngx_str_t                            *also;      /* ... another, or NULL */
    u_char                                error[
                                       NGX_HTTP_IDEM_REDIS_ERROR_LEN];
    unsigned                              subscriber:1;
    unsigned                              commits:1;   /* only, with a WAIT
                                                          behind them       */
    unsigned                              awaiting:1;  /* its reply         */
    unsigned                              wrote:1;     /* something that it
                                                          speaks for        */
    unsigned                              answered:1;  /* since it connected */
    unsigned                              told:1;      /* it is in the log  */
};


/*
 * A server, and this worker's connections to it.  It goes when it left the
 * topology: first what was asked of it, to other nodes, then itself.
 */

struct ngx_http_idem_redis_node_s {
    ngx_queue_t                    queue;            /* redis->nodes, or
                                                        retired             */
    ngx_http_idem_redis_t         *redis;
    ngx_pool_t                    *pool;
    ngx_str_t                      name;             /* <host>:<port>       */
    ngx_http_idem_store_node_t     known;            /* to breaker, figures */
    ngx_str_t                      host;             /* with a NUL behind   */
    in_port_t                      port;

    /* of a name they may change */
    ngx_addr_t                    *addrs;
    ngx_pool_t                    *addrs_pool;
    ngx_uint_t                     naddrs;
    ngx_uint_t                     addr;             /* the one in use      */

    /* a record has one of the first nconns; total: these and all others */
    ngx_http_idem_redis_conn_t    *conns;
    ngx_uint_t                     nconns;
    ngx_uint_t                     total;

    ngx_str_t                      lookup;           /* host, as the resolver
                                                        has it              */
    ngx_resolver_ctx_t            *resolving;
    ngx_event_t                    resolve_timer;
    ngx_msec_t                     resolved;         /* asked, last         */

    ngx_event_t                    destroy;          /* posted              */

    /* of a sentinel: what it publishes, and when to connect for that again */
    ngx_http_idem_redis_conn_t    *events;
    ngx_event_t                    events_timer;

    ngx_uint_t                     asked;            /* in which round      */
    ngx_msec_t                     importing;        /* when an ASK led here */
    ngx_msec_t                     refused;          /* when it said that it
                                                        can't serve now, or
                                                        did not answer when it
                                                        was asked about the
                                                        topology            */

    unsigned                       retired:1;
    unsigned                       named:1;          /* not by an address   */
    unsigned                       unresolved:1;         /* it is in the log */
    unsigned                       sentinel:1;
    unsigned                       seed:1;           /* of the configuration */
    unsigned                       member:1;         /* of the cluster      */
    unsigned                       owner:1;          /* it has slots        */
    unsigned                       policy_asked:1;
};


/* of this worker's questions about the topology */

typedef struct {
    const ngx_http_idem_redis_asker_t  *asker;
    ngx_http_idem_redis_conn_t     conn;
    ngx_event_t                    timer;            /* of the next round, and
                                                        of the one that is
                                                        being asked         */
    ngx_msec_t                     last;             /* round began         */
    ngx_uint_t                     round;
    ngx_http_idem_redis_node_t    *first;            /* to be asked, or NULL */
    unsigned                       asking:1;
    unsigned                       wanted:1;         /* one more            */
    unsigned                       urgent:1;         /* this one was wanted:
                                                        something is wrong  */
    unsigned                       told:1;           /* it is in the log    */
} ngx_http_idem_redis_control_t;


/* a sentinel does not tell the epoch of what it says */
#define NGX_HTTP_IDEM_REDIS_NO_EPOCH     -1


/* the newest that sentinels said of the master, in shared memory */

typedef struct {
    ngx_atomic_t                          version;   /* of it, 0: nothing is
                                                        known yet           */
    int64_t                               epoch;
    in_port_t                             port;
    size_t                                len;
    u_char                                host[NGX_MAXHOSTNAMELEN];
} ngx_http_idem_redis_newest_t;


/* what sentinels say of the master, in one round */

typedef struct {
    int64_t                               epoch;     /* of the one that is
                                                        being asked         */
    ngx_uint_t                            round;
    ngx_uint_t                            n;
    in_port_t                             port;
    size_t                                len;
    u_char                                host[NGX_MAXHOSTNAMELEN];
} ngx_http_idem_redis_vote_t;


/* "server" or "sentinel", as it stands in the block */

typedef struct {
    ngx_url_t                             url;
    u_char                               *file;
    ngx_uint_t                            line;
} ngx_http_idem_redis_addr_t;


struct ngx_http_idem_redis_s {
    ngx_http_idem_store_t         *store;

    /* the block */
    ngx_array_t                    servers;          /* ..._redis_addr_t    */
    ngx_flag_t                     cluster;
    ngx_array_t                    sentinels;        /* ..._redis_addr_t    */
    ngx_str_t                      master_name;
    ngx_str_t                      user;
    ngx_str_t                      password;
    ngx_str_t                      sentinel_user;
    ngx_str_t                      sentinel_password;
    ngx_int_t                      db;
    ngx_str_t                      prefix;
    ngx_str_t                      channel;
    ngx_msec_t                     connect_timeout;
    ngx_msec_t                     timeout;
    ngx_int_t                      connections;
    ngx_int_t                      replicas;         /* to have a commit    */
    ngx_msec_t                     replicas_timeout;
    ngx_flag_t                     tls;
    ngx_flag_t                     sentinel_tls;
    ngx_flag_t                     tls_verify;
    ngx_str_t                      tls_trusted_certificate;
    ngx_str_t                      tls_name;
    ngx_str_t                      tls_certificate;
    ngx_str_t                      tls_certificate_key;
#if (NGX_SSL)
    ngx_ssl_t                            *ssl;
#endif

    /* this worker */
    const ngx_http_idem_redis_topology_t  *topology;
    ngx_queue_t                    nodes;
    ngx_queue_t                    retired;
    ngx_http_idem_redis_node_t    *master;           /* of all records      */
    ngx_http_idem_redis_conn_t     subscriber;
    ngx_queue_t                    waiting;          /* calls that have no
                                                        node yet            */
    ngx_queue_t                    later;            /* calls that are asked
                                                        again in a while    */
    ngx_event_t                    later_timer;
    ngx_http_idem_redis_control_t  control;
    ngx_event_t                    silence;          /* timer: does a server
                                                        owe a reply?        */
    ngx_http_idem_redis_node_t   **slots;            /* of a cluster        */
    ngx_http_idem_shared_t         newest;           /* of all workers      */
    ngx_uint_t                     version;          /* of that, as adopted */
    ngx_event_t                    renewed;          /* posted: it changed  */
    ngx_event_t                    promoting;        /* timer: there will be
                                                        another master      */
    ngx_http_idem_redis_vote_t     vote;
    ngx_uint_t                     lost;             /* attempts to find one,
                                                        in vain, in a row   */
    u_char                         error[
                                       NGX_HTTP_IDEM_REDIS_ERROR_LEN];
    ngx_queue_t                    watches[
                                          NGX_HTTP_IDEM_REDIS_WATCHES];
    ngx_uint_t                     nwatches;
    ngx_uint_t                     cleanups;         /* of given-up begins  */
    ngx_uint_t                     no_resolver;        /* it is in the log  */
    time_t                         missed;           /* replicas, last told */
};


extern const ngx_http_idem_backend_t
    ngx_http_idem_redis_backend;


/* ..._redis.c */

ngx_http_idem_redis_call_t *ngx_http_idem_redis_submit(
    ngx_http_idem_op_t *op);

/* it is done: whoever asked is told, and who waits for the record */
void ngx_http_idem_redis_committed(ngx_http_idem_op_t *op);

/* those of conn->unsent or redis->waiting that need not wait any longer */
void ngx_http_idem_redis_refuse_waiting(ngx_queue_t *calls,
    const char *error);

/* ..._redis_conf.c */

void *ngx_http_idem_redis_create_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_redis_directive(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_redis_init_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);

/* ..._redis_conf_servers.c */

char *ngx_http_idem_redis_set_server(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
char *ngx_http_idem_redis_set_sentinel(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
char *ngx_http_idem_redis_init_servers(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);

/* ..._redis_conf_tls.c */

char *ngx_http_idem_redis_init_tls(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);

/* ..._redis_command.c */

void ngx_http_idem_redis_command_init(void);
ngx_int_t ngx_http_idem_redis_command_encode(
    ngx_http_idem_redis_call_t *call);

/* ..._redis_reply.c */

/*
 * The result of call->op.  NGX_AGAIN: it is to be asked once more, in another
 * way; NGX_ERROR: that is not a reply to this call.
 */
ngx_int_t ngx_http_idem_redis_reply_result(
    ngx_http_idem_redis_call_t *call, redisReply *reply);

/* ..._redis_record.c */

/*
 * What the key is to live for; less "grace", for its lease or its ttl.  Of a
 * begin and a renewal, and of a commit that sets it.
 */
uint64_t ngx_http_idem_redis_record_life(ngx_http_idem_op_t *op,
    uint64_t *grace);

u_char *ngx_http_idem_redis_record_lock(u_char *p, ngx_http_idem_op_t *op);
u_char *ngx_http_idem_redis_record_outcome(u_char *p,
    ngx_http_idem_op_t *op, ngx_str_t *details, size_t size);

/* it is another record than the one that was asked for */
ngx_uint_t ngx_http_idem_redis_record_other(
    ngx_http_idem_op_t *op, ngx_str_t *record);

/* it is the lock of this operation's holder, as that wrote it */
ngx_uint_t ngx_http_idem_redis_record_is_lock(
    ngx_http_idem_op_t *op, ngx_str_t *record);

/* it is in progress, under the token of this operation */
ngx_uint_t ngx_http_idem_redis_record_ours(
    ngx_http_idem_op_t *op, ngx_str_t *record);

/* of one that is whole: somebody waits for it; its details */
ngx_uint_t ngx_http_idem_redis_record_waited(ngx_str_t *record);
void ngx_http_idem_redis_record_details(ngx_str_t *record,
    ngx_str_t *details);

/*
 * Whether a record that was found can be told without a script: it is one of
 * ours, and its lease or ttl lasts.
 */
ngx_uint_t ngx_http_idem_redis_record_lasts(
    ngx_http_idem_op_t *op, ngx_str_t *record, int64_t life);

/*
 * Fills op->found, whose response and details are in the memory of the record.
 * What is wrong with the record, or NULL.
 */
const char *ngx_http_idem_redis_record_found(
    ngx_http_idem_op_t *op, ngx_str_t *record, int64_t life);

/*
 * The same without an operation, of the first bytes of a record; its response
 * is left out.  "free": of a lock that was given back.
 */
const char *ngx_http_idem_redis_record_peek(ngx_str_t *head,
    ngx_http_idem_found_t *found, uint64_t *grace);
ngx_uint_t ngx_http_idem_redis_record_free(ngx_str_t *head);

/* ..._redis_admin.c */

ngx_http_idem_redis_node_t *ngx_http_idem_redis_list_node(
    ngx_http_idem_redis_t *redis, ngx_http_idem_op_t *op);
size_t ngx_http_idem_redis_admin_size(ngx_http_idem_redis_t *redis);
u_char *ngx_http_idem_redis_put_admin(u_char *p,
    ngx_http_idem_redis_call_t *call);
ngx_int_t ngx_http_idem_redis_admin_result(
    ngx_http_idem_redis_call_t *call, u_char code, u_char *p, u_char *last);

/* ..._redis_codec.c */

redisReader *ngx_http_idem_redis_reader(size_t elements);
u_char *ngx_http_idem_redis_reserve(
    ngx_http_idem_redis_conn_t *conn, size_t size);
u_char *ngx_http_idem_redis_put_count(u_char *p, ngx_uint_t n);
u_char *ngx_http_idem_redis_put(u_char *p, const void *data, size_t len);
u_char *ngx_http_idem_redis_put_number(u_char *p, uint64_t n);
u_char *ngx_http_idem_redis_put_line(u_char *p, u_char type, uint64_t n);
u_char *ngx_http_idem_redis_put_chain(u_char *p, ngx_chain_t *in,
    size_t size);
u_char *ngx_http_idem_redis_error_text(u_char *p, u_char *last,
    redisReply *reply);
ngx_uint_t ngx_http_idem_redis_error_is(redisReply *reply, const char *word);
ngx_int_t ngx_http_idem_redis_field(redisReply *reply, ngx_uint_t n,
    ngx_str_t *value);

/* room for an argument of that many bytes: its length line and both ends */
#define ngx_http_idem_redis_put_size(len)                                     \
    (sizeof("$\r\n\r\n") - 1 + NGX_INT64_LEN + (len))

/* ..._redis_call.c */

/* the connection for op; NULL: its node is not known yet */
ngx_http_idem_redis_conn_t *ngx_http_idem_redis_route(
    ngx_http_idem_redis_t *redis, ngx_http_idem_op_t *op,
    ngx_uint_t early);
/* ... and of those to a node */
ngx_http_idem_redis_conn_t *ngx_http_idem_redis_conn_of(
    ngx_http_idem_redis_node_t *node, ngx_http_idem_op_t *op,
    ngx_uint_t early);
ngx_http_idem_redis_call_t *ngx_http_idem_redis_call(
    ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_call_free(ngx_http_idem_redis_call_t *call);
void ngx_http_idem_redis_call_unsent(ngx_http_idem_redis_call_t *call);
void ngx_http_idem_redis_call_to(ngx_http_idem_redis_call_t *call,
    ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_call_again(ngx_http_idem_redis_call_t *call);
void ngx_http_idem_redis_call_later(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
ngx_uint_t ngx_http_idem_redis_transient(redisReply *reply);
ngx_int_t ngx_http_idem_redis_call_asking(ngx_http_idem_redis_call_t *call);
void ngx_http_idem_redis_calls_init(ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_forget(ngx_queue_t *calls);
void ngx_http_idem_redis_calls_exit(ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_requeue(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_reroute(
    ngx_http_idem_redis_t *redis, ngx_queue_t *calls);
ngx_int_t ngx_http_idem_redis_ask(ngx_http_idem_redis_conn_t *conn,
    ngx_http_idem_redis_reply_pt handler, ngx_str_t *args, ngx_uint_t n);
/* what its records were may be lost: holders renew, now or soon */
void ngx_http_idem_redis_doubt(ngx_http_idem_redis_conn_t *conn,
    ngx_uint_t now);
void ngx_http_idem_redis_ignored(
    ngx_http_idem_redis_call_t *call, redisReply *reply);

/* ..._redis_replicas.c */

ngx_int_t ngx_http_idem_redis_replicas_ask(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_replicas_hold(ngx_http_idem_redis_call_t *call);
void ngx_http_idem_redis_replicas_hurry(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_replicas_early(ngx_http_idem_redis_call_t *call);
void ngx_http_idem_redis_replicas_cover(ngx_http_idem_redis_conn_t *conn);
char *ngx_http_idem_redis_set_replicas(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);

/* ..._redis_connection.c */

void ngx_http_idem_redis_conn_init(ngx_http_idem_redis_conn_t *conn,
    ngx_http_idem_redis_t *redis, ngx_http_idem_redis_node_t *node);
void ngx_http_idem_redis_flush(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_send(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_drop(ngx_http_idem_redis_conn_t *conn,
    const char *fmt, ...);
void ngx_http_idem_redis_close(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_works(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_idle(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_read_handler(ngx_event_t *rev);
void ngx_http_idem_redis_write_handler(ngx_event_t *wev);

/* ..._redis_setup.c */

void ngx_http_idem_redis_connect(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_connect_handler(ngx_event_t *ev);
ngx_err_t ngx_http_idem_redis_connect_error(ngx_connection_t *c);

/* its socket is there */
void ngx_http_idem_redis_connected(ngx_http_idem_redis_conn_t *conn);

/* ..._redis_knock.c */

/* an attempt to connect is under way: others follow, until one succeeds */
void ngx_http_idem_redis_knock(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_knock_stop(ngx_http_idem_redis_conn_t *conn);
void ngx_http_idem_redis_knock_handler(ngx_event_t *ev);

/* ..._redis_policy.c */

void ngx_http_idem_redis_policy_ask(ngx_http_idem_redis_conn_t *conn);

/* ..._redis_watch.c */

void ngx_http_idem_redis_watch_init(ngx_http_idem_redis_t *redis);
void ngx_http_idem_redis_listen(ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_node_t *except);
void ngx_http_idem_redis_check(ngx_http_idem_redis_conn_t *conn);
ngx_uint_t ngx_http_idem_redis_is_checked(
    ngx_http_idem_redis_conn_t *conn, redisReply *reply);
void ngx_http_idem_redis_watch_enter(ngx_http_idem_op_t *op);
void ngx_http_idem_redis_watch_leave(ngx_http_idem_op_t *op);
void ngx_http_idem_redis_watch_wait(ngx_http_idem_op_t *op);
void ngx_http_idem_redis_publish(
    ngx_http_idem_redis_conn_t *conn, ngx_http_idem_op_t *op);
void ngx_http_idem_redis_wake(ngx_http_idem_redis_t *redis, u_char *id);
void ngx_http_idem_redis_wake_all(ngx_http_idem_redis_t *redis);
ngx_int_t ngx_http_idem_redis_message(
    ngx_http_idem_redis_conn_t *conn, redisReply *reply);


#define ngx_http_idem_redis_conf(op)                                          \
    ((ngx_http_idem_redis_t *) (op)->store->conf)


#endif /* _NGX_HTTP_IDEM_REDIS_H_INCLUDED_ */
