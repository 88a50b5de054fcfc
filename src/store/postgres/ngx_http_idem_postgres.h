
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The PostgreSQL store: declarations that its files share.
 *
 *   ..._postgres_conf*.c       the block of directives
 *   ..._postgres.c             operations, their timeouts, their completion,
 *                              waiters
 *   ..._postgres_connection.c  a connection: its queues, and what happens to
 *                              them when the connection breaks
 *   ..._postgres_connect.c     connecting: from an address to a session
 *   ..._postgres_setup.c       set-up of a session
 *   ..._postgres_batch.c       batches of statements with one Sync, and
 *                              notifications
 *   ..._postgres_step.c        operations encoded as statements
 *   ..._postgres_result.c      rows and errors decoded as results
 *   ..._postgres_admin.c       rows decoded as entries, for administrators
 *   ..._postgres_trail.c       events
 *   ..._postgres_purge.c       the purge, by one worker of a host
 *
 * libpq speaks the protocol, in pipeline mode; events, timers and the
 * resolver are nginx's.  The module makes no libpq call that may block.
 *
 * The store is a separate nginx module, and uses no symbol of the main
 * module: the file of that may have been replaced and loaded a second time,
 * and symbols would resolve to the old one.  The functions it needs are in a
 * table to which the ngx_module_t of the main module points, see
 * ..._remote.h.
 */


#ifndef _NGX_HTTP_IDEM_POSTGRES_H_INCLUDED_
#define _NGX_HTTP_IDEM_POSTGRES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include <libpq-fe.h>

#include "store/ngx_http_idem_store.h"


/* version of the schema in sql/ that this code requires */
#define NGX_HTTP_IDEM_PG_SCHEMA     1

#define NGX_HTTP_IDEM_PG_ERROR_LEN  256


/* limit of times in ms, so that "+ interval" can't overflow: 100 years */
#define NGX_HTTP_IDEM_PG_LIFE_MAX                                             \
    ((uint64_t) 100 * 365 * 24 * 3600 * 1000)


typedef struct ngx_http_idem_pg_s       ngx_http_idem_pg_t;
typedef struct ngx_http_idem_pg_conn_s  ngx_http_idem_pg_conn_t;
typedef struct ngx_http_idem_pg_call_s  ngx_http_idem_pg_call_t;


typedef enum {
    NGX_HTTP_IDEM_PG_DURABLE_ALL = 0,
    NGX_HTTP_IDEM_PG_DURABLE_COMMITS,
    NGX_HTTP_IDEM_PG_DURABLE_OFF
} ngx_http_idem_pg_durable_e;


typedef enum {
    NGX_HTTP_IDEM_PG_WAKE_NOTIFY = 0,
    NGX_HTTP_IDEM_PG_WAKE_POLL
} ngx_http_idem_pg_wake_e;


/* the role of a connection */

typedef enum {
    NGX_HTTP_IDEM_PG_STEPS = 0,             /* all but commits; the first of
                                               them listens */
    NGX_HTTP_IDEM_PG_COMMITS,
    NGX_HTTP_IDEM_PG_PURGE                  /* and events */
} ngx_http_idem_pg_role_e;


typedef enum {
    NGX_HTTP_IDEM_PG_CLOSED = 0,
    NGX_HTTP_IDEM_PG_BACKOFF,
    NGX_HTTP_IDEM_PG_CONNECTING,
    NGX_HTTP_IDEM_PG_SETUP,
    NGX_HTTP_IDEM_PG_READY
} ngx_http_idem_pg_state_e;


/*
 * Statements: numbered as the operations, with the purge at OP_N.  EXPIRE is
 * a purge that returns the removed records, for events.  TALLY is a list for
 * the figures, which needs no right of an administrator.  The last two are
 * those of the set-up.
 */

#define NGX_HTTP_IDEM_PG_STEP_PURGE    NGX_HTTP_IDEM_OP_N
#define NGX_HTTP_IDEM_PG_STEP_EXPIRE   (NGX_HTTP_IDEM_OP_EVENTS + 1)
#define NGX_HTTP_IDEM_PG_STEP_TALLY    (NGX_HTTP_IDEM_PG_STEP_EXPIRE + 1)
#define NGX_HTTP_IDEM_PG_STEP_VERSION  (NGX_HTTP_IDEM_PG_STEP_EXPIRE + 2)
#define NGX_HTTP_IDEM_PG_STEP_LISTEN   (NGX_HTTP_IDEM_PG_STEP_EXPIRE + 3)
#define NGX_HTTP_IDEM_PG_STEP_N        (NGX_HTTP_IDEM_PG_STEP_EXPIRE + 4)

/* whether a statement is one of the two purges */
#define ngx_http_idem_pg_purges(step)                                         \
    ((step) == NGX_HTTP_IDEM_PG_STEP_PURGE                                    \
     || (step) == NGX_HTTP_IDEM_PG_STEP_EXPIRE)

/*
 * Administrative statements are not prepared: the user may lack permission,
 * and older installations of the schema lack the functions.
 */
#define ngx_http_idem_pg_named(step)                                          \
    ((step) <= NGX_HTTP_IDEM_PG_STEP_PURGE)

/* rows that one slice of a list reads */
#define NGX_HTTP_IDEM_PG_SLICE       100


typedef struct {
    ngx_url_t                       url;
    ngx_str_t                       host;       /* without port,
                                                   NUL-terminated */
    ngx_str_t                       dir;        /* of a unix socket,
                                                   NUL-terminated */
    in_port_t                       port;
    u_char                         *file;       /* where declared */
    ngx_uint_t                      line;
    unsigned                        named:1;    /* a host name, not an
                                                   address */
} ngx_http_idem_pg_server_t;


/* a statement, with its operation unless that was cancelled */

struct ngx_http_idem_pg_call_s {
    ngx_queue_t                queue;
    ngx_http_idem_op_t        *op;
    ngx_http_idem_pg_conn_t   *conn;
    PGresult                  *result;          /* valid after the Sync */
    ngx_uint_t                 step;
    ngx_uint_t                 tries;
    ngx_msec_t                 time;            /* when it was sent */
    u_char                     id[NGX_HTTP_IDEM_ID_LEN];
    unsigned                   sent:1;
    unsigned                   single:1;        /* in a batch of its own */
    unsigned                   bare:1;          /* a commit without the
                                                   response: the disk is
                                                   full */
};


/* statements that are sent together and end with one Sync */

typedef struct {
    ngx_queue_t                     queue;
    ngx_queue_t                     calls;
    ngx_queue_t                    *next;       /* next call to get a result */
    PGresult                       *error;      /* of the transaction as a
                                                   whole */
    unsigned                        prelude:1;  /* result of the settings is
                                                   due */
} ngx_http_idem_pg_batch_t;


struct ngx_http_idem_pg_conn_s {
    ngx_http_idem_pg_t        *pg;
    ngx_http_idem_pg_role_e    role;
    ngx_http_idem_pg_state_e   state;

    PGconn                    *link;
    ngx_connection_t          *connection;          /* nginx's, for the
                                                       socket */
    ngx_resolver_ctx_t        *resolving;
    ngx_uint_t                 server;              /* index in pg->servers */
    ngx_uint_t                 setup;               /* results of the set-up
                                                       read */

    ngx_queue_t                unsent;              /* calls to send */
    ngx_queue_t                batches;             /* batches without their
                                                       Sync */

    ngx_event_t                flush;
    ngx_event_t                timer;               /* connecting, backoff */
    ngx_msec_t                 last_read;
    ngx_uint_t                 failures;
    ngx_uint_t                 address;             /* of the server: next
                                                       after failures */
    ngx_uint_t                 timeouts;            /* connect_timeouts
                                                       waited */
    unsigned                   listens:1;
    unsigned                   failure_logged:1;
    unsigned                   was_ready:1;

    u_char                     error[NGX_HTTP_IDEM_PG_ERROR_LEN];
};


struct ngx_http_idem_pg_s {
    ngx_http_idem_remote_t     remote;              /* must be first */
    ngx_http_idem_store_t     *store;

    /* the configuration */
    ngx_array_t                servers;
    ngx_str_t                  database;
    ngx_str_t                  user;
    ngx_str_t                  password;
    ngx_str_t                  schema;
    ngx_int_t                  connections;
    ngx_msec_t                 timeout;
    ngx_msec_t                 connect_timeout;
    ngx_msec_t                 lock_timeout;
    ngx_uint_t                 durable;
    ngx_uint_t                 wake;
    ngx_flag_t                 pooler;

    ngx_flag_t                 purge;
    ngx_msec_t                 purge_every;
    ngx_int_t                  purge_batch;
    ngx_flag_t                 purge_archive;

    ngx_flag_t                 tls;
    ngx_flag_t                 tls_verify;
    ngx_str_t                  tls_trusted_certificate;
    ngx_str_t                  tls_name;
    ngx_str_t                  tls_certificate;
    ngx_str_t                  tls_certificate_key;

    char                      *sql[NGX_HTTP_IDEM_PG_STEP_N];

    /* per worker */
    ngx_http_idem_pg_conn_t   *conns;               /* for steps, then for
                                                       commits, then the
                                                       purge's */
    ngx_uint_t                 nconns;
    ngx_uint_t                 server;              /* last known to accept
                                                       writes */
    ngx_event_t                purge_timer;
    ngx_uint_t                 purge_silent;        /* the schema has no
                                                       EXPIRE */
};


#define ngx_http_idem_pg_conf(op)                                             \
    ((ngx_http_idem_pg_t *) (op)->store->conf)

#define ngx_http_idem_pg_server(pg, n)                                        \
    (&((ngx_http_idem_pg_server_t *) (pg)->servers.elts)[n])


/* whether transactions are on disk before the server replies */
#define ngx_http_idem_pg_durable(conn)                                        \
    ((conn)->role != NGX_HTTP_IDEM_PG_PURGE                                   \
     && ((conn)->pg->durable == NGX_HTTP_IDEM_PG_DURABLE_ALL                  \
         || ((conn)->pg->durable == NGX_HTTP_IDEM_PG_DURABLE_COMMITS          \
             && (conn)->role == NGX_HTTP_IDEM_PG_COMMITS)))


/* the functions of the main module */
extern const ngx_http_idem_store_api_t  *ngx_http_idem_pg_api;

extern const ngx_http_idem_backend_t  ngx_http_idem_pg_backend;


/* configuration */

extern ngx_http_idem_store_command_t  ngx_http_idem_pg_commands[];

void *ngx_http_idem_pg_create_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_pg_init_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_pg_set_server(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_pg_init_servers(ngx_conf_t *cf, ngx_http_idem_pg_t *pg);
char *ngx_http_idem_pg_init_tls(ngx_conf_t *cf, ngx_http_idem_pg_t *pg);

/* operations: ..._postgres.c */
void ngx_http_idem_pg_deliver(ngx_http_idem_pg_call_t *call,
    ngx_uint_t failed);
void ngx_http_idem_pg_refuse_waiting(ngx_http_idem_pg_conn_t *conn);

/* a connection: ..._postgres_connection.c */
void ngx_http_idem_pg_conn_init(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_t *pg, ngx_http_idem_pg_role_e role);
ngx_http_idem_pg_call_t *ngx_http_idem_pg_call(
    ngx_http_idem_pg_conn_t *conn, ngx_uint_t step, u_char *id);
void ngx_http_idem_pg_call_free(ngx_http_idem_pg_call_t *call);
void ngx_http_idem_pg_flush(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_write(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_idle(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_forget(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_drop(ngx_http_idem_pg_conn_t *conn,
    const char *fmt, ...);
void ngx_http_idem_pg_broken(ngx_http_idem_pg_conn_t *conn);
ngx_int_t ngx_http_idem_pg_watch_socket(
    ngx_http_idem_pg_conn_t *conn, ngx_uint_t read, ngx_uint_t write);
ngx_uint_t ngx_http_idem_pg_awaits_standby(ngx_http_idem_pg_conn_t *conn);

/* connecting and set-up */
void ngx_http_idem_pg_connect(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_poll(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_setup(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_setup_read(ngx_http_idem_pg_conn_t *conn);
ngx_int_t ngx_http_idem_pg_settings_send(ngx_http_idem_pg_conn_t *conn,
    ngx_uint_t session, ngx_uint_t durable);
void ngx_http_idem_pg_error_line(u_char *p, u_char *last, const char *message);

/* batches */
ngx_int_t ngx_http_idem_pg_batches_send(ngx_http_idem_pg_conn_t *conn);
PGresult *ngx_http_idem_pg_next_result(PGconn *link);
void ngx_http_idem_pg_batches_read(ngx_http_idem_pg_conn_t *conn);
void ngx_http_idem_pg_batches_requeue(ngx_http_idem_pg_conn_t *conn);

/* statements */

#define NGX_HTTP_IDEM_PG_PARAMS      16

/* the parameters of a statement, with a buffer for encoded values */

typedef struct {
    int              n;
    const char      *values[NGX_HTTP_IDEM_PG_PARAMS];
    int              lengths[NGX_HTTP_IDEM_PG_PARAMS];
    int              formats[NGX_HTTP_IDEM_PG_PARAMS];
    u_char          *memory;                        /* to free, or NULL */
    u_char          *last;
    u_char           room[256 + NGX_HTTP_IDEM_LABEL_N
                                * NGX_HTTP_IDEM_LABEL_MAX];
} ngx_http_idem_pg_args_t;

void ngx_http_idem_pg_arg(ngx_http_idem_pg_args_t *args, const void *value,
    size_t len);
void ngx_http_idem_pg_arg_number(ngx_http_idem_pg_args_t *args, int64_t n,
    size_t bytes);
void ngx_http_idem_pg_arg_label(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_str_t *label);
ngx_uint_t ngx_http_idem_pg_ascii(ngx_http_idem_pg_conn_t *conn);

ngx_int_t ngx_http_idem_pg_step_send(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t *call);
char *ngx_http_idem_pg_step_conf(ngx_conf_t *cf, ngx_http_idem_pg_t *pg);
void ngx_http_idem_pg_step_result(ngx_http_idem_pg_call_t *call);
int64_t ngx_http_idem_pg_number(PGresult *result, int row, int column);
ngx_int_t ngx_http_idem_pg_claim(PGresult *result, int row, int column,
    ngx_http_idem_claim_t *claim);

/* administration */
void ngx_http_idem_pg_admin_result(ngx_http_idem_pg_call_t *call);

/* events */
void ngx_http_idem_pg_events_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_trail_t *t);
ngx_int_t ngx_http_idem_pg_log_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_trail_t *t);
void ngx_http_idem_pg_trail_result(ngx_http_idem_pg_call_t *call);

/* what to do after a statement failed */

typedef enum {
    NGX_HTTP_IDEM_PG_FAILED = 0,            /* fail; op->error is set */
    NGX_HTTP_IDEM_PG_AGAIN,                 /* resend, in a batch of its own */
    NGX_HTTP_IDEM_PG_AGAIN_BARE,            /* resend without the response */
    NGX_HTTP_IDEM_PG_BROKEN                 /* the connection or its server is
                                               unusable */
} ngx_http_idem_pg_verdict_e;

ngx_http_idem_pg_verdict_e ngx_http_idem_pg_step_failed(
    ngx_http_idem_pg_call_t *call, PGresult *error);


/* purge */
void ngx_http_idem_pg_purge_init(ngx_http_idem_pg_t *pg);
void ngx_http_idem_pg_purged(ngx_http_idem_pg_t *pg, ngx_int_t removed);
ngx_int_t ngx_http_idem_pg_removed(ngx_http_idem_pg_call_t *call);

/* columns of the data of an expired record; -1: none */

typedef struct {
    int  claim;
    int  ttl;
    int  ago;
    int  details;
} ngx_http_idem_pg_expired_t;

void ngx_http_idem_pg_expired(ngx_http_idem_pg_t *pg, PGresult *result,
    int row, u_char *id, const ngx_http_idem_pg_expired_t *at);


#endif /* _NGX_HTTP_IDEM_POSTGRES_H_INCLUDED_ */
