
/*
 * The Redis store: one truth for many nginx hosts.
 *
 *   ..._redis.c             the backend: operations, their time, their end
 *   ..._redis_conf.c        its block of directives
 *   ..._redis_script.c      an operation as commands
 *   ..._redis_reply.c       their reply as its result
 *   ..._redis_record.c      a record as the bytes that are in Redis
 *   ..._redis_codec.c       bytes of commands and replies; hiredis reads
 *   ..._redis_connection.c  a connection: calls in flight, and their fate
 *                           when it breaks
 *   ..._redis_setup.c       from a socket to a connection that is ready
 *   ..._redis_watch.c       waiters: who is woken, and the net below
 *   *.lua                   what is done in Redis, atomically, on one key
 *
 * An operation becomes a call, which is routed by the record's id to a node
 * (a server) and one of its connections: always the same one, so that what is
 * asked of a record is done in the order it was asked.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_REDIS_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>

#include <hiredis/hiredis.h>

#include "store/ngx_http_idempotency_store.h"


/* of the stored form; a record of one more or one less is read, too */
#define NGX_HTTP_IDEMPOTENCY_REDIS_VERSION      1

/* of a record, before its response: ..._redis_record.c, and the scripts */
#define NGX_HTTP_IDEMPOTENCY_REDIS_HEAD_LEN                                   \
    (35 + NGX_HTTP_IDEMPOTENCY_CLAIM_LEN)

/* what a key may have to live: Redis refuses to count beyond its clock */
#define NGX_HTTP_IDEMPOTENCY_REDIS_LIFE_MAX                                   \
    ((uint64_t) 100 * 365 * 24 * 3600 * 1000)

/* of the tag that comes back in a reply */
#define NGX_HTTP_IDEMPOTENCY_REDIS_TAG_LEN      4

/* the script that is no operation's: behind theirs, also in conn->known */
#define NGX_HTTP_IDEMPOTENCY_REDIS_PLACE     NGX_HTTP_IDEMPOTENCY_OP_N

/* in conn->known: it has no SET with NX and GET, so all begins are scripts */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLAIN                                   \
    (1 << (NGX_HTTP_IDEMPOTENCY_OP_N + 1))

/* ... or does not let us use a key beside the record's */
#define NGX_HTTP_IDEMPOTENCY_REDIS_NO_PLACE                                   \
    (1 << (NGX_HTTP_IDEMPOTENCY_OP_N + 2))

#define NGX_HTTP_IDEMPOTENCY_REDIS_WATCHES      256

#define NGX_HTTP_IDEMPOTENCY_REDIS_ERROR_LEN    256

/* connect attempts in vain after which a begin no longer waits for one */
#define NGX_HTTP_IDEMPOTENCY_REDIS_GIVE_UP      3


typedef struct ngx_http_idempotency_redis_s       ngx_http_idempotency_redis_t;
typedef struct ngx_http_idempotency_redis_node_s
    ngx_http_idempotency_redis_node_t;
typedef struct ngx_http_idempotency_redis_conn_s
    ngx_http_idempotency_redis_conn_t;
typedef struct ngx_http_idempotency_redis_call_s
    ngx_http_idempotency_redis_call_t;


typedef void (*ngx_http_idempotency_redis_reply_pt)(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply);


/*
 * A command that waits to be sent, or for its reply.  It outlives an
 * operation that is cancelled: the reply is still to come, and belongs to
 * nobody.
 */

struct ngx_http_idempotency_redis_call_s {
    ngx_queue_t                           queue;     /* conn->unsent or sent */
    ngx_http_idempotency_redis_conn_t    *conn;
    ngx_http_idempotency_op_t            *op;        /* NULL: cancelled, or
                                                        a call of our own   */
    ngx_http_idempotency_redis_reply_pt   handler;
    ngx_msec_t                            time;      /* when it was sent    */
    uint32_t                              tag;       /* comes back in the
                                                        reply               */
    ngx_uint_t                            tries;     /* how often sent      */
    redisReply                           *before[2]; /* replies that come
                                                        before the last     */
    ngx_uint_t                            nbefore;
    ngx_uint_t                            due;       /* how many of these   */
    unsigned                              sent:1;
    unsigned                              replied:1;
    unsigned                              eval:1;    /* again, since the
                                                        server did not know
                                                        the script          */
    unsigned                              whole:1;   /* sent with its script */
    unsigned                              plain:1;   /* sent as commands
                                                        without a script    */
    unsigned                              place:1;   /* sent as a record
                                                        beside its key, and
                                                        a script            */
    unsigned                              script:1;  /* again, since these
                                                        did not decide it   */
};


typedef enum {
    NGX_HTTP_IDEMPOTENCY_REDIS_CLOSED = 0,   /* connects when it is needed  */
    NGX_HTTP_IDEMPOTENCY_REDIS_BACKOFF,      /* not before the timer        */
    NGX_HTTP_IDEMPOTENCY_REDIS_CONNECTING,
    NGX_HTTP_IDEMPOTENCY_REDIS_SETUP,        /* AUTH, SELECT, SUBSCRIBE     */
    NGX_HTTP_IDEMPOTENCY_REDIS_READY
} ngx_http_idempotency_redis_state_e;


struct ngx_http_idempotency_redis_conn_s {
    ngx_http_idempotency_redis_node_t    *node;
    ngx_http_idempotency_redis_state_e    state;
    ngx_connection_t                     *connection;
    redisReader                          *reader;

    ngx_queue_t                           unsent;    /* calls               */
    ngx_queue_t                           sent;      /* ... in the order in
                                                        which replies come  */
    ngx_buf_t                             out;       /* commands to be sent */

    ngx_event_t                           flush;     /* posted: send, or
                                                        connect             */
    ngx_event_t                           timer;     /* of connecting, and
                                                        of the backoff      */
    ngx_uint_t                            setup;     /* replies outstanding */
    ngx_uint_t                            failures;  /* in a row            */
    ngx_msec_t                            heard;     /* bytes, last         */
    uint32_t                              tag;
    ngx_uint_t                            known;     /* kinds of operations
                                                        whose script it has,
                                                        and what it has not:
                                                        NO_PLAIN, NO_PLACE  */
    u_char                                error[
                                       NGX_HTTP_IDEMPOTENCY_REDIS_ERROR_LEN];
    unsigned                              subscriber:1;
    unsigned                              answered:1;  /* since it connected */
    unsigned                              told:1;      /* it is in the log  */
};


/* a server, and this worker's connections to it */

struct ngx_http_idempotency_redis_node_s {
    ngx_http_idempotency_redis_t         *redis;
    ngx_addr_t                           *addrs;
    ngx_uint_t                            naddrs;
    ngx_uint_t                            addr;      /* the one in use      */
    ngx_http_idempotency_redis_conn_t    *conns;
    ngx_uint_t                            nconns;
};


struct ngx_http_idempotency_redis_s {
    ngx_http_idempotency_store_t         *store;

    /* the block */
    ngx_url_t                             url;
    ngx_str_t                             user;
    ngx_str_t                             password;
    ngx_int_t                             db;
    ngx_str_t                             prefix;
    ngx_str_t                             channel;
    ngx_msec_t                            connect_timeout;
    ngx_msec_t                            timeout;
    ngx_int_t                             connections;
    ngx_flag_t                            tls;
    ngx_flag_t                            tls_verify;
    ngx_str_t                             tls_trusted_certificate;
    ngx_str_t                             tls_name;
    ngx_str_t                             tls_certificate;
    ngx_str_t                             tls_certificate_key;
#if (NGX_SSL)
    ngx_ssl_t                            *ssl;
#endif

    /* this worker */
    ngx_http_idempotency_redis_node_t    *node;
    ngx_http_idempotency_redis_conn_t    *subscriber;
    ngx_queue_t                           watches[
                                          NGX_HTTP_IDEMPOTENCY_REDIS_WATCHES];
    ngx_uint_t                            nwatches;
    ngx_uint_t                            cleanups;  /* of given-up begins  */
    ngx_uint_t                            policy_asked;
};


extern const ngx_http_idempotency_backend_t
    ngx_http_idempotency_redis_backend;


/* ..._redis.c */

ngx_http_idempotency_redis_call_t *ngx_http_idempotency_redis_submit(
    ngx_http_idempotency_op_t *op);
void ngx_http_idempotency_redis_refuse_waiting(
    ngx_http_idempotency_redis_conn_t *conn);

/* ..._redis_conf.c */

void *ngx_http_idempotency_redis_create_conf(ngx_conf_t *cf,
    ngx_http_idempotency_store_t *store);
char *ngx_http_idempotency_redis_directive(ngx_conf_t *cf,
    ngx_http_idempotency_store_t *store);
char *ngx_http_idempotency_redis_init_conf(ngx_conf_t *cf,
    ngx_http_idempotency_store_t *store);

/* ..._redis_script.c */

void ngx_http_idempotency_redis_script_init(void);
ngx_int_t ngx_http_idempotency_redis_script_encode(
    ngx_http_idempotency_redis_call_t *call);

/* ..._redis_reply.c */

/* NGX_ERROR: the last of call->before can't be a reply to this call */
ngx_int_t ngx_http_idempotency_redis_reply_before(
    ngx_http_idempotency_redis_call_t *call);

/*
 * The result of call->op.  NGX_AGAIN: it is to be asked once more, in another
 * way; NGX_ERROR: that is not a reply to this call.
 */
ngx_int_t ngx_http_idempotency_redis_reply_result(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply);

/* ..._redis_record.c */

/* without the response; "size" is its size */
u_char *ngx_http_idempotency_redis_record_head(u_char *p,
    ngx_http_idempotency_op_t *op, uint64_t grace, size_t size);

/*
 * Whether a record that was found can be told without a script: it is one of
 * ours, not by our own token, and its lease or ttl lasts.
 */
ngx_uint_t ngx_http_idempotency_redis_record_lasts(
    ngx_http_idempotency_op_t *op, ngx_str_t *record, int64_t life);

/*
 * Fills op->found, whose response and details are in the record's own memory.
 * What is wrong with the record, or NULL.
 */
const char *ngx_http_idempotency_redis_record_found(
    ngx_http_idempotency_op_t *op, ngx_str_t *record, int64_t life);

/* a number in network order */
uint64_t ngx_http_idempotency_redis_get_bytes(u_char *p, ngx_uint_t bytes);

/* ..._redis_codec.c */

redisReader *ngx_http_idempotency_redis_reader(void);
u_char *ngx_http_idempotency_redis_reserve(
    ngx_http_idempotency_redis_conn_t *conn, size_t size);
u_char *ngx_http_idempotency_redis_put_count(u_char *p, ngx_uint_t n);
u_char *ngx_http_idempotency_redis_put(u_char *p, const void *data,
    size_t len);
u_char *ngx_http_idempotency_redis_put_number(u_char *p, uint64_t n);
u_char *ngx_http_idempotency_redis_put_line(u_char *p, u_char type,
    uint64_t n);
u_char *ngx_http_idempotency_redis_put_chain(u_char *p, ngx_chain_t *in,
    size_t size);
u_char *ngx_http_idempotency_redis_error_text(u_char *p, u_char *last,
    redisReply *reply);
ngx_uint_t ngx_http_idempotency_redis_error_is(redisReply *reply,
    const char *word);
ngx_int_t ngx_http_idempotency_redis_field(redisReply *reply, ngx_uint_t n,
    ngx_str_t *value);

/* room for an argument of that many bytes: its length line and both ends */
#define ngx_http_idempotency_redis_put_size(len)                              \
    (sizeof("$\r\n\r\n") - 1 + NGX_INT64_LEN + (len))

/* ..._redis_connection.c */

void ngx_http_idempotency_redis_conn_init(
    ngx_http_idempotency_redis_conn_t *conn,
    ngx_http_idempotency_redis_node_t *node);
ngx_http_idempotency_redis_call_t *ngx_http_idempotency_redis_call(
    ngx_http_idempotency_redis_conn_t *conn);
void ngx_http_idempotency_redis_call_free(
    ngx_http_idempotency_redis_call_t *call);
void ngx_http_idempotency_redis_call_unsent(
    ngx_http_idempotency_redis_call_t *call);
void ngx_http_idempotency_redis_call_retry(
    ngx_http_idempotency_redis_call_t *call);
ngx_int_t ngx_http_idempotency_redis_ask(
    ngx_http_idempotency_redis_conn_t *conn,
    ngx_http_idempotency_redis_reply_pt handler, ngx_str_t *args,
    ngx_uint_t n);
void ngx_http_idempotency_redis_flush(ngx_http_idempotency_redis_conn_t *conn);
void ngx_http_idempotency_redis_send(ngx_http_idempotency_redis_conn_t *conn);
void ngx_http_idempotency_redis_drop(ngx_http_idempotency_redis_conn_t *conn,
    const char *fmt, ...);
void ngx_http_idempotency_redis_close(ngx_http_idempotency_redis_conn_t *conn);
void ngx_http_idempotency_redis_works(ngx_http_idempotency_redis_conn_t *conn);
void ngx_http_idempotency_redis_idle(ngx_http_idempotency_redis_conn_t *conn);
void ngx_http_idempotency_redis_read_handler(ngx_event_t *rev);
void ngx_http_idempotency_redis_write_handler(ngx_event_t *wev);

/* ..._redis_setup.c */

void ngx_http_idempotency_redis_connect(
    ngx_http_idempotency_redis_conn_t *conn);

/* ..._redis_watch.c */

void ngx_http_idempotency_redis_watch_init(ngx_http_idempotency_redis_t *redis);
void ngx_http_idempotency_redis_watch_enter(ngx_http_idempotency_op_t *op);
void ngx_http_idempotency_redis_watch_leave(ngx_http_idempotency_op_t *op);
void ngx_http_idempotency_redis_watch_wait(ngx_http_idempotency_op_t *op);
void ngx_http_idempotency_redis_wake(ngx_http_idempotency_redis_t *redis,
    u_char *id);
void ngx_http_idempotency_redis_wake_all(ngx_http_idempotency_redis_t *redis);
ngx_int_t ngx_http_idempotency_redis_message(
    ngx_http_idempotency_redis_conn_t *conn, redisReply *reply);


#define ngx_http_idempotency_redis_conf(op)                                   \
    ((ngx_http_idempotency_redis_t *) (op)->store->conf)


#endif /* _NGX_HTTP_IDEMPOTENCY_REDIS_H_INCLUDED_ */
