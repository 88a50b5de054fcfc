
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The interface of a store: the operations that the core may submit,
 * whichever backend the store has.
 *
 * Every request to a store is an operation object.  The backend either
 * completes it before the call returns (NGX_OK, no callback), or later
 * (NGX_AGAIN, then op->handler is called once, unless the operation is
 * cancelled first).  An error is a result, not a return code, so there is one
 * path for both.
 *
 * A store knows records by id and holders by token; it knows nothing of HTTP.
 * A backend is a const ngx_http_idem_backend_t in the table of
 * ngx_http_idem_store.c; no other file names a backend.
 */


#ifndef _NGX_HTTP_IDEM_STORE_H_INCLUDED_
#define _NGX_HTTP_IDEM_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_housekeeping.h"
#include "observe/ngx_http_idem_events.h"
#include "observe/ngx_http_idem_metrics.h"
#include "record/ngx_http_idem_record.h"
#include "store/ngx_http_idem_nodes.h"


typedef struct ngx_http_idem_store_s  ngx_http_idem_store_t;
typedef struct ngx_http_idem_op_s     ngx_http_idem_op_t;

#include "store/ngx_http_idem_store_conf.h"

/* the layers around a remote store: layers/..._layers.h */
typedef struct ngx_http_idem_layers_s  ngx_http_idem_layers_t;


typedef enum {
    NGX_HTTP_IDEM_OP_BEGIN = 0,
    NGX_HTTP_IDEM_OP_RENEW,
    NGX_HTTP_IDEM_OP_COMMIT,
    NGX_HTTP_IDEM_OP_RELEASE,
    NGX_HTTP_IDEM_OP_WATCH,
    NGX_HTTP_IDEM_OP_N,                  /* operations below this have
                                            metrics */
    NGX_HTTP_IDEM_OP_GET,                /* for administration: ..._admin.c */
    NGX_HTTP_IDEM_OP_REMOVE,
    NGX_HTTP_IDEM_OP_LIST,
    NGX_HTTP_IDEM_OP_LOG,                /* for the audit trail: ..._trail.c */
    NGX_HTTP_IDEM_OP_EVENTS
} ngx_http_idem_op_e;

#define ngx_http_idem_op_is_admin(op)  ((op)->kind > NGX_HTTP_IDEM_OP_N)


typedef enum {
    NGX_HTTP_IDEM_OK = 0,                /* renewed, committed, released */
    NGX_HTTP_IDEM_ACQUIRED,              /* begin: the request is the holder */
    NGX_HTTP_IDEM_FOUND,                 /* begin, get: there is a record */
    NGX_HTTP_IDEM_LOST,                  /* the record has another token */
    NGX_HTTP_IDEM_GONE,                  /* begin: the record that a waiter
                                            waits for is missing and was not
                                            released; get, remove: no such
                                            record */
    NGX_HTTP_IDEM_FULL,                  /* no room in the store */
    NGX_HTTP_IDEM_ERROR                  /* the store did not answer */
} ngx_http_idem_result_e;


/*
 * The record that begin found; filled for NGX_HTTP_IDEM_FOUND only.  Details
 * are an exception: with op->abandoned they are those of the previous holder,
 * the labels at least, or empty.
 */

typedef struct {
    ngx_http_idem_state_e    state;
    ngx_http_idem_reason_e   reason;            /* if the record is unusable */
    ngx_http_idem_claim_t    claim;
    ngx_str_t                response;          /* encoded, in op->pool */
    ngx_str_t                details;           /* as op->details; may be
                                                   empty */
    ngx_msec_t               left;              /* in progress: time to the
                                                   end of the lease;
                                                   otherwise: time to live */
    unsigned                 verify:1;          /* the response was outside
                                                   this process: verify its
                                                   checksum */
} ngx_http_idem_found_t;


/* the lock as begin wrote it, which lets some stores commit faster */

typedef struct {
    ngx_http_idem_store_t   *store;             /* the store that wrote it;
                                                   NULL: unknown */
    uint64_t                 grace;             /* ms for which the lock
                                                   outlives its lease */
    unsigned                 stray:1;           /* the command that writes the
                                                   lock was sent twice or not
                                                   answered: a copy may take
                                                   effect after a release */
} ngx_http_idem_lock_t;


/* a record as administrators see it, without its response */

typedef struct {
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    ngx_http_idem_state_e    state;
    ngx_http_idem_reason_e   reason;            /* if the record is unusable */
    ngx_http_idem_claim_t    claim;
    ngx_str_t                details;           /* as op->details, in
                                                   op->pool; may be
                                                   truncated */
    ngx_msec_t               left;              /* in progress: time to the
                                                   end of the lease;
                                                   otherwise: time to live; 0:
                                                   the time is over */
    size_t                   size;              /* of the response, in bytes */
    ngx_uint_t               status;            /* of the response; 0:
                                                   unknown */
    unsigned                 hold:1;
    unsigned                 kept:1;            /* kept by this nginx until
                                                   the store accepts it */
} ngx_http_idem_entry_t;


/* size of a cursor, including NUL */
#define NGX_HTTP_IDEM_CURSOR_MAX  256


/*
 * The result of get, remove and list.  A list is read in slices: a cursor is
 * a few printable characters that only the store interprets, empty for the
 * first slice, and empty again after the last.  The work for a slice is
 * bounded, so a slice may be empty although more records follow.
 */

typedef struct {
    ngx_array_t              entries;           /* of ..._entry_t; the
                                                   caller's */
    ngx_str_t                cursor;            /* in and out */
    u_char                   next[NGX_HTTP_IDEM_CURSOR_MAX];  /* room for it */

    /* bytes that records take: of this slice, or of the whole store with its
       first slice; 0: unknown */
    size_t                   held;

    /* set by the first slice of each server, in bytes; 0: unknown */
    size_t                   used;              /* memory in use on the
                                                   server, in total */
    size_t                   size;              /* memory limit of the
                                                   server */

    /* for the figures: ids may be shortened, and labels left out, that the
       user of the store has no right to */
    unsigned                 tally:1;
} ngx_http_idem_list_t;

/*
 * The audit trail: events that a store keeps for all hosts, in the order of
 * arrival.  They are read, and removed, in slices: "more" is set if the end
 * was not reached.
 */

typedef struct {
    /* log */
    ngx_str_t                lines;             /* each line ends with LF */
    ngx_uint_t               n;                 /* number of lines */
    ngx_uint_t               max;               /* approximate number of
                                                   events kept, in stores that
                                                   keep them in memory */

    /* events */
    ngx_str_t                cursor;            /* start after this event;
                                                   empty: start at "since"; in
                                                   and out */
    u_char                   next[NGX_HTTP_IDEM_CURSOR_MAX];  /* room for it */
    uint64_t                 since;             /* ms since the epoch */
    uint64_t                 until;             /* 0: unlimited */
    ngx_str_t                name;              /* filter: name of a JSON
                                                   member, */
    ngx_str_t                value;             /* and its value */
    ngx_str_t                other_name;        /* or the name of another, */
    ngx_str_t                other;             /* and its value */
    ngx_array_t              found;             /* of ngx_str_t; the
                                                   caller's */
    ngx_uint_t               matched;
    unsigned                 remove:1;          /* remove them, return none */
    unsigned                 more:1;
} ngx_http_idem_trail_t;

/* backend->trail: the backend keeps no events, the latest, or all */
#define NGX_HTTP_IDEM_TRAIL_NONE   0
#define NGX_HTTP_IDEM_TRAIL_LAST   1
#define NGX_HTTP_IDEM_TRAIL_ALL    2

/* events that one slice examines */
#define NGX_HTTP_IDEM_TRAIL_SLICE  100


/* bytes of the details that an entry keeps */
#define NGX_HTTP_IDEM_ENTRY_DETAILS  512


typedef void (*ngx_http_idem_op_pt)(ngx_http_idem_op_t *op);


struct ngx_http_idem_op_s {
    ngx_http_idem_op_e       kind;
    ngx_http_idem_store_t   *store;

    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    u_char                   token[NGX_HTTP_IDEM_TOKEN_LEN];

    /* begin and renew */
    ngx_http_idem_claim_t   *claim;
    ngx_str_t                details;           /* stored beside the claim
                                                   if there is room; may be
                                                   empty */
    ngx_msec_t               lease;             /* in a commit of an unknown
                                                   outcome: a retry may run
                                                   after it */
    unsigned                 hold:1;            /* an expired lease keeps the
                                                   record: the outcome is
                                                   unknown for the whole ttl */

    /* begin */
    ngx_msec_t               age;               /* time since the request
                                                   arrived: a record that had
                                                   not expired then is found
                                                   while its grace lasts */
    unsigned                 key_alone:1;        /* argument of
                                                    ..._claim_same() */
    unsigned                 may_wait:1;        /* the request would wait for
                                                   a holder, and must learn of
                                                   a release */
    unsigned                 is_waiter:1;       /* the request waits already:
                                                   do not take the lock if the
                                                   record is missing and was
                                                   not released */
    unsigned                 lease_valid:1;     /* ... and the lease that the
                                                   waiter knows of has not
                                                   expired */
    unsigned                 need_left:1;       /* found.left is required */

    /* watch */
    ngx_uint_t               attempt;           /* checks so far without a
                                                   change */
    unsigned                 woken:1;           /* a notification came before
                                                   the reply */

    /* begin (for the record it creates), commit */
    ngx_msec_t               ttl;
    ngx_msec_t               grace;             /* time after the ttl during
                                                   which begin reports that
                                                   the record expired */

    /* commit */
    ngx_http_idem_state_e    state;             /* completed or unusable */
    ngx_http_idem_reason_e   reason;
    ngx_chain_t             *response;          /* encoded; in memory */
    size_t                   size;              /* of the response, in bytes */
    ngx_msec_t               locked_until;        /* the lock is ours until
                                                     then, counted from when
                                                     the last successful begin
                                                     or renewal was sent */
    ngx_msec_t               lock_life;         /* the store may have the lock
                                                   for so long, if the commit
                                                   does not get there */
    unsigned                 for_waiters:1;     /* the grace is for waiters
                                                   only, and may be longer */
    unsigned                 skip_replicas:1;   /* do not wait for replicas */
    unsigned                 spare:1;           /* another store has the
                                                   response, too: no other
                                                   record gives way to it */
    unsigned                 probe:1;           /* renew: an answer has to
                                                   mean that a small commit
                                                   would get one, too */
    unsigned                 already_logged:1;  /* the failure was logged, or
                                                   missing replicas were
                                                   logged and counted before */

    /* get, remove, list */
    ngx_http_idem_list_t    *list;

    /* remove: only a record that is still as it was listed; 0: any */
    ngx_http_idem_state_e    listed_state;
    uint64_t                 listed_time;       /* of its claim; or
                                                   ..._LISTED_NONE */

    /* log, events */
    ngx_http_idem_trail_t   *trail;

    /*
     * all but watch: the request runs although the store did not answer; this
     * nginx keeps its lock and its outcome until the store is back
     */
    unsigned                 unprotected:1;

    /*
     * Set by begin if the store consists of several stores: the one that
     * answered.  The caller passes it on to the operations that follow.
     */
    ngx_http_idem_store_t   *where;

    /*
     * set by a begin that acquired the lock, or by a renewal; commit and
     * release read it
     */
    ngx_http_idem_lock_t     lock;

    /* the result */
    ngx_http_idem_result_e   result;
    ngx_http_idem_found_t    found;
    const char              *error;             /* for the log, or NULL */
    unsigned                 abandoned:1;        /* acquired from a holder
                                                    whose lease expired */
    unsigned                 expired:1;         /* acquired; a former record
                                                   expired within its grace */
    uint64_t                 original;          /* time of the request of that
                                                   record or holder; 0:
                                                   unknown */
    unsigned                 turned_away:1;     /* error: rejected by a
                                                   breaker */
    unsigned                 bad_record:1;        /* error: the store works,
                                                     but not for this record */
    unsigned                 denied:1;          /* error: the store's user
                                                   lacks a right */
    unsigned                 running:1;         /* lost: to a holder that
                                                   still runs and may release
                                                   the record */
    unsigned                 kept:1;            /* committed or found in this
                                                   nginx only; the store has
                                                   not accepted it yet */
    unsigned                 unacknowledged:1;        /* committed, but on too
                                                         few replicas */

    ngx_pool_t              *pool;              /* for op->found */
    ngx_log_t               *log;
    ngx_http_idem_op_pt      handler;
    ngx_http_idem_op_pt      detached;          /* detached: called when it
                                                   has its result; or NULL */
    void                    *data;              /* the caller's */
    ngx_msec_t               start;
    uint64_t                 clock;             /* the same, in microseconds */
    ngx_msec_t               sent_at;           /* to the store that answered:
                                                   the lease began no
                                                   earlier */
    unsigned                 pending:1;         /* the handler will be
                                                   called */

    /* for the backend, while the operation is pending */
    ngx_queue_t              queue;
    ngx_queue_t              due;               /* ..._remote_time() */
    ngx_msec_t               due_at;
    ngx_event_t              timer;
    void                    *state_data;
};


/* a record that expired, for the event "key expired" */

typedef struct {
    u_char      *id;
    uint64_t     time;                           /* when its request arrived */
    uint64_t     ttl;                            /* 0: unknown */
    uint64_t     ago;                            /* time since it expired */
    ngx_str_t    details;                        /* the event has its labels
                                                    only */
} ngx_http_idem_expired_t;


typedef struct {
    ngx_uint_t   records[NGX_HTTP_IDEM_UNUSABLE + 1];          /* by state */
    size_t       bytes;
    size_t       size;
    ngx_uint_t   evicted;
    ngx_uint_t   expired;
    ngx_uint_t   queued;                         /* operations of this
                                                    worker that wait for a
                                                    connection */
} ngx_http_idem_store_stats_t;


typedef struct {
    ngx_str_t    name;                           /* as in idempotency_store */

    /*
     * configuration: create_conf() and commands[] for the block, init_conf()
     * after all of http{} was read
     */
    void      *(*create_conf)(ngx_conf_t *cf, ngx_http_idem_store_t *s);
    ngx_http_idem_store_command_t
                *commands;
    char      *(*init_conf)(ngx_conf_t *cf, ngx_http_idem_store_t *s);

    /* called in init_process and exit_process */
    ngx_int_t  (*init_process)(ngx_cycle_t *cycle, ngx_http_idem_store_t *s);
    void       (*exit_process)(ngx_cycle_t *cycle, ngx_http_idem_store_t *s);

    /*
     * operations: NGX_OK or NGX_AGAIN
     *
     * begin    takes the lock with (token, claim, lease), or returns the
     *          record.  A lock with our own token is ours.  A lock whose lease
     *          expired, or an unknown outcome whose lease expired, goes to the
     *          same request only; another request finds it until the ttl ends.
     *          A store that may lose records reports a missing record to
     *          waiters (op->is_waiter).
     * renew    fenced; writes the lock again if the record is missing.
     * commit   fenced; writes the record if it is missing; wakes the waiters.
     * release  fenced; wakes the waiters.
     * watch    completes when the record changed, or when it is time to check
     *          again; may complete spuriously.
     * cancel   the request is gone: the handler is not called.  An abandoned
     *          begin leaves no lock behind.
     */
    ngx_int_t  (*begin)(ngx_http_idem_op_t *op);
    ngx_int_t  (*renew)(ngx_http_idem_op_t *op);
    ngx_int_t  (*commit)(ngx_http_idem_op_t *op);
    ngx_int_t  (*release)(ngx_http_idem_op_t *op);
    ngx_int_t  (*watch)(ngx_http_idem_op_t *op);
    void       (*cancel)(ngx_http_idem_op_t *op);

    /*
     * Fills what the store holds now.  NGX_DECLINED: the store knows only
     * stats->queued.  May be NULL.
     */
    ngx_int_t  (*stats)(ngx_http_idem_store_t *s,
                        ngx_http_idem_store_stats_t *stats);

    ngx_uint_t   remote;                         /* on a server that may be
                                                    down */

    /*
     * Administrative operations; NULL: not supported.
     *
     * get      FOUND, with one entry; or GONE.
     * remove   OK, with the entry of the removed record; or GONE, also if the
     *          record is not the one that was listed any more.  The holder
     *          of a removed record has lost its lock: its renewal and its
     *          commit return LOST and write nothing.  Waiters are woken and
     *          begin as if there had been no record.  Hosts that keep a copy
     *          (store->forget) are notified.
     * list     OK, with the entries of a slice.
     *
     * With "trail", stores that keep events for all hosts, also
     *
     * log      OK: the events are stored, some of them possibly twice.
     *          bad_record: a retry would fail, too.
     * events   OK, with the events of a slice.
     */
    ngx_int_t  (*admin)(ngx_http_idem_op_t *op);
    ngx_uint_t   trail;                          /* ..._TRAIL_... */
} ngx_http_idem_backend_t;


/*
 * a message says that a record was removed, possibly by another host: its
 * local copies are replayed only if the store confirms them
 */
typedef void (*ngx_http_idem_forget_pt)(ngx_http_idem_store_t *store,
    u_char *id);


struct ngx_http_idem_store_s {
    ngx_str_t                        name;
    const ngx_http_idem_backend_t   *backend;
    void                            *conf;            /* the backend's */
    ngx_http_idem_layers_t          *layers;          /* or NULL */
    ngx_http_idem_forget_pt          forget;          /* NULL: no local
                                                         copies */
    ngx_uint_t                       copies;          /* a begin may be
                                                         answered from a local
                                                         copy: the backend
                                                         listens permanently */
    ngx_uint_t                       trail;           /* it keeps events */
    ngx_http_idem_nodes_t           *nodes;           /* NULL: a single
                                                         server */
    ngx_uint_t                       removed;         /* expired records, by
                                                         this worker; not
                                                         logged yet */
    time_t                           removed_logged;
    ngx_uint_t                       connects;        /* by this worker: after
                                                         a reconnect, a server
                                                         may have lost
                                                         unreplicated writes */
    ngx_http_idem_metrics_t         *metrics;
    ngx_http_idem_outage_t          *outage;          /* of the server; or
                                                         NULL */
    ngx_http_idem_log_t             *log;             /* for its events */
    ngx_resolver_t                  *resolver;        /* for names that
                                                         workers resolve, or
                                                         NULL */
    u_char                          *file;            /* where declared */
    ngx_uint_t                       line;
    unsigned                         labels:1;        /* records always have
                                                         labels, since users
                                                         read them by other
                                                         means, too */
};


/*
 * For backends: how long a lock is stored if it is not renewed.  Its
 * fingerprint stays for the ttl.  The lock outlives its lease even if the ttl
 * is shorter, since a record does not expire while its holder runs.
 *
 * The life without the lease, the grace of a lock, is stored with it.  A begin
 * that finds a lock with its own grace knows that the lock was written with
 * its own life, too: if more is left, the server's clock was set back.  A lock
 * with another lease has another grace, and may rightly live longer.
 */
#define ngx_http_idem_lock_life(op)                                           \
    ((op)->ttl >= 2 * (op)->lease ? (op)->ttl : (op)->ttl + 2 * (op)->lease)

/* op->age now: the operation may have waited for another store, or for a new
   connection */
#define ngx_http_idem_op_age(op)                                              \
    ((op)->age + (ngx_current_msec - (op)->start))

/* a commit after which the same request may run once the lease expired */
#define ngx_http_idem_op_retryable(op)                                        \
    ((op)->state == NGX_HTTP_IDEM_UNUSABLE                                    \
     && (op)->reason == NGX_HTTP_IDEM_REASON_UNKNOWN && !(op)->hold)

/* op->listed_time if there was no record */
#define NGX_HTTP_IDEM_LISTED_NONE  ((uint64_t) -1)

/* for backends: whether a record is the one that is to be removed */
#define ngx_http_idem_op_listed(op, item)                                     \
    (((op)->listed_state == 0 || (op)->listed_state == (item)->state)         \
     && ((op)->listed_time == 0 || (op)->listed_time == (item)->claim.time))

/* for backends: the operation failed; for this record only */

static ngx_inline void
ngx_http_idem_op_error(ngx_http_idem_op_t *op, const char *error)
{
    op->result = NGX_HTTP_IDEM_ERROR;
    op->error = error;
}

static ngx_inline void
ngx_http_idem_op_bad_record(ngx_http_idem_op_t *op, const char *error)
{
    ngx_http_idem_op_error(op, error);
    op->bad_record = 1;
}


/* for backends: how long the record that a commit writes is stored */
#define ngx_http_idem_record_life(op)                                         \
    (ngx_http_idem_op_retryable(op)                                           \
     ? ngx_max((op)->ttl, (op)->lease) : (op)->ttl + (op)->grace)


const ngx_http_idem_backend_t *ngx_http_idem_backend(ngx_str_t *name);

/* the names of all backends, for an error message */
ngx_str_t *ngx_http_idem_backend_names(void);

/* op->error of get, remove and list in a backend without them */
extern const char  ngx_http_idem_no_admin[];

ngx_int_t ngx_http_idem_store_submit(ngx_http_idem_op_t *op);
void ngx_http_idem_store_cancel(ngx_http_idem_op_t *op);

/* adds an entry to op->list; NULL: no memory, op->result is set */
ngx_http_idem_entry_t *ngx_http_idem_op_entry(ngx_http_idem_op_t *op);

/* copies the details into an entry, truncated */
ngx_int_t ngx_http_idem_entry_details(ngx_http_idem_op_t *op,
    ngx_http_idem_entry_t *entry, u_char *p, size_t len);

/* makes a log send its lines to a store, as log->send */
ngx_int_t ngx_http_idem_trail_init(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_http_idem_store_t *store);

/* logs an event of the store, or of one of its records ("id" may be NULL) */
void ngx_http_idem_store_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, u_char *id, const char *word);

/* logs the event of an expired record; times are in milliseconds */
void ngx_http_idem_store_expired(ngx_http_idem_store_t *store,
    ngx_http_idem_expired_t *expired);

/* expired records were removed: logs how many, now and then */
void ngx_http_idem_store_removed(ngx_http_idem_store_t *store, ngx_uint_t n);

/* the same after a purge by the server of a store, which is counted, too;
   NGX_ERROR: it failed */
void ngx_http_idem_store_purged(ngx_http_idem_store_t *store, ngx_int_t n);

/*
 * returns the replays of a record; NGX_DECLINED: they are not counted; set in
 * init_process
 */
typedef ngx_int_t (*ngx_http_idem_replays_pt)(u_char *id, ngx_uint_t *count,
    uint64_t *original);

extern ngx_http_idem_replays_pt  ngx_http_idem_store_replays;

/* for backends: a pending operation has its result */
void ngx_http_idem_store_complete(ngx_http_idem_op_t *op);

/*
 * For backends: locks may be lost, because another server has the records
 * now, or because a connection broke and the server may have restarted.
 * Holders renew their locks at once ("now"), or as soon as the store may
 * answer.  "concerns" selects records by id; NULL: all records.
 */
typedef ngx_uint_t (*ngx_http_idem_concerns_pt)(void *data, u_char *id);
typedef void (*ngx_http_idem_suspect_loss_pt)(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data);

void ngx_http_idem_store_suspect_loss(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data);

/* the function that renews them; set in init_process */
extern ngx_http_idem_suspect_loss_pt
    ngx_http_idem_store_suspect_loss_handler;

/* operations kept in reserve for when memory is short; one set per process */
void ngx_http_idem_store_reserve(void);

/*
 * A detached operation, which outlives its request: it has a pool of its own,
 * which is destroyed when it completes.  op->claim has room for a claim.
 * NGX_AGAIN: it is pending; op->detached and op->data may be set until then.
 */
ngx_http_idem_op_t *ngx_http_idem_op_detached(ngx_http_idem_store_t *store,
    ngx_http_idem_op_e kind, u_char *id, u_char *token);
ngx_int_t ngx_http_idem_op_detach(ngx_http_idem_op_t *op);


extern const char  *ngx_http_idem_op_names[];


/* ..._poll.c */

#define NGX_HTTP_IDEM_POLLS  256

typedef struct {
    ngx_queue_t  by_id[NGX_HTTP_IDEM_POLLS];     /* watches, by op->queue */
} ngx_http_idem_polls_t;

void ngx_http_idem_polls_init(ngx_http_idem_polls_t *polls);

/*
 * Makes a watch complete when it is woken, or after op->found.left ms at the
 * latest.  With "poll" it does so every "poll" ms at the latest; 0: there are
 * notifications.  The backend's cancel() is called first.
 */
void ngx_http_idem_poll_wait(ngx_http_idem_op_t *op, ngx_msec_t poll);

/* wakes the watches of a record after a possible change; NULL: all watches */
void ngx_http_idem_polls_wake(ngx_http_idem_polls_t *polls, u_char *id);

/*
 * For backends: starts op->timer.  It is not cancelable: a worker that shuts
 * down waits for it.
 */
void ngx_http_idem_op_timer(ngx_http_idem_op_t *op,
    ngx_event_handler_pt handler, ngx_msec_t time);


#include "store/ngx_http_idem_remote.h"


#endif /* _NGX_HTTP_IDEM_STORE_H_INCLUDED_ */
