
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The interface of a store: what the core may ask of one, whichever it is.
 *
 * Every question is an operation object.  The backend either completes it
 * before the call returns (NGX_OK, no callback), or later (NGX_AGAIN, then
 * op->handler is called once, unless the operation is cancelled first).  An
 * error is a result, not a return code, so there is one path for both.
 *
 * A store knows records by id and holders by token; it knows nothing of HTTP.
 * A backend is a const ngx_http_idem_backend_t that stands in the
 * table of ngx_http_idem_store.c; nobody else names one.
 */


#ifndef _NGX_HTTP_IDEM_STORE_H_INCLUDED_
#define _NGX_HTTP_IDEM_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "observe/ngx_http_idem_events.h"
#include "observe/ngx_http_idem_metrics.h"
#include "record/ngx_http_idem_record.h"
#include "store/ngx_http_idem_nodes.h"


typedef struct ngx_http_idem_store_s  ngx_http_idem_store_t;
typedef struct ngx_http_idem_op_s     ngx_http_idem_op_t;

#include "store/ngx_http_idem_store_conf.h"

/* what stands around one that is elsewhere: layers/..._layers.h */
typedef struct ngx_http_idem_layers_s  ngx_http_idem_layers_t;


typedef enum {
    NGX_HTTP_IDEM_OP_BEGIN = 0,
    NGX_HTTP_IDEM_OP_RENEW,
    NGX_HTTP_IDEM_OP_COMMIT,
    NGX_HTTP_IDEM_OP_RELEASE,
    NGX_HTTP_IDEM_OP_WATCH,
    NGX_HTTP_IDEM_OP_N,                  /* those of requests, with figures */
    NGX_HTTP_IDEM_OP_GET,                /* of people: ..._admin.c          */
    NGX_HTTP_IDEM_OP_REMOVE,
    NGX_HTTP_IDEM_OP_LIST,
    NGX_HTTP_IDEM_OP_LOG,                /* of the audit trail: ..._trail.c */
    NGX_HTTP_IDEM_OP_EVENTS
} ngx_http_idem_op_e;

#define ngx_http_idem_op_is_admin(op)  ((op)->kind > NGX_HTTP_IDEM_OP_N)


typedef enum {
    NGX_HTTP_IDEM_OK = 0,                /* renewed, committed, released    */
    NGX_HTTP_IDEM_ACQUIRED,              /* begin: we are the holder        */
    NGX_HTTP_IDEM_FOUND,                 /* begin: op->found says what      */
    NGX_HTTP_IDEM_LOST,                  /* somebody else's token is there  */
    NGX_HTTP_IDEM_GONE,                  /* begin: what was in progress is
                                            not there any more, and nobody
                                            gave it back; get, remove: there
                                            is none                         */
    NGX_HTTP_IDEM_FULL,                  /* there is no room                */
    NGX_HTTP_IDEM_ERROR                  /* the store did not answer        */
} ngx_http_idem_result_e;


/* what begin found in place of nothing; filled for NGX_..._FOUND only */

typedef struct {
    ngx_http_idem_state_e    state;
    ngx_http_idem_reason_e   reason;            /* of an unusable record    */
    ngx_http_idem_claim_t    claim;
    ngx_str_t                response;          /* encoded, in op->pool     */
    ngx_str_t                details;           /* as op->details, or empty */
    ngx_msec_t               left;              /* of the lease if it is in
                                                   progress, of its life
                                                   otherwise                */
    unsigned                 verify:1;          /* the bytes left the process:
                                                   check their sum          */
} ngx_http_idem_found_t;


/* a lock as begin laid it, for a store that can make use of that in commit */

typedef struct {
    ngx_http_idem_store_t   *store;             /* where; NULL: not told    */
    uint64_t                 grace;             /* ms for which it outlives
                                                   its lease                */
    unsigned                 stray:1;           /* what lays it was sent more
                                                   than once, or got no answer:
                                                   a copy may come later than
                                                   a release                */
} ngx_http_idem_laid_t;


/* a record as people see it; what it answers stays where it is */

typedef struct {
    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    ngx_http_idem_state_e    state;
    ngx_http_idem_reason_e   reason;            /* of an unusable record    */
    ngx_http_idem_claim_t    claim;
    ngx_str_t                details;           /* as op->details, in the
                                                   pool; of a long one only
                                                   the beginning            */
    ngx_msec_t               left;              /* of the lease if it is in
                                                   progress, of its life
                                                   otherwise; 0: it is over */
    size_t                   size;              /* of the response          */
    ngx_uint_t               status;            /* ... 0: not known         */
    unsigned                 hold:1;
    unsigned                 kept:1;            /* in this nginx only, until
                                                   the store takes it       */
} ngx_http_idem_entry_t;


/*
 * What get, remove and list fill.  A list is asked for in slices: a cursor is
 * a few printable characters of the store's own, empty for the first slice,
 * and empty again after the last.  The work of a slice is bounded, whatever it
 * finds: it may find nothing, and there may be more.
 */

typedef struct {
    ngx_array_t              entries;           /* ..._entry_t; the asker's */
    ngx_str_t                cursor;            /* asked, then answered: in
                                                   op->pool                 */

    /* of servers that this slice is the first of, in bytes; 0: not known */
    size_t                   used;              /* memory, by all there is  */
    size_t                   size;              /* ... that there may be    */
} ngx_http_idem_list_t;

/*
 * Events that a store keeps for all hosts, in the order in which they came.
 * They are read, and removed, in slices: "more" says that the end was not
 * reached.
 */

typedef struct {
    /* log */
    ngx_str_t                lines;             /* each ends with LF        */
    ngx_uint_t               n;                 /* of them                  */
    ngx_uint_t               max;               /* about so many stay, where
                                                   events are in memory     */

    /* events */
    ngx_str_t                cursor;            /* behind it; empty: "since";
                                                   asked, then answered: in
                                                   op->pool                 */
    uint64_t                 since;             /* ms since the epoch       */
    uint64_t                 until;             /* 0: no end                */
    ngx_str_t                name;              /* of a member, and ...     */
    ngx_str_t                value;             /* its value: those only    */
    ngx_str_t                other_name;        /* ... or this member, and  */
    ngx_str_t                other;             /* its value                */
    ngx_array_t              found;             /* ngx_str_t; the asker's   */
    ngx_uint_t               matched;
    unsigned                 remove:1;          /* they are not told        */
    unsigned                 more:1;
} ngx_http_idem_trail_t;

/* of a backend: it keeps no events; the last ones, or all */
#define NGX_HTTP_IDEM_TRAIL_NONE   0
#define NGX_HTTP_IDEM_TRAIL_LAST   1
#define NGX_HTTP_IDEM_TRAIL_ALL    2

/* events that a slice looks at */
#define NGX_HTTP_IDEM_TRAIL_SLICE  100


/* of a cursor, with its NUL */
#define NGX_HTTP_IDEM_CURSOR_MAX  256

/* the beginning of details that an entry is sure to have */
#define NGX_HTTP_IDEM_ENTRY_DETAILS  512


typedef void (*ngx_http_idem_op_pt)(ngx_http_idem_op_t *op);


struct ngx_http_idem_op_s {
    ngx_http_idem_op_e       kind;
    ngx_http_idem_store_t   *store;

    u_char                   id[NGX_HTTP_IDEM_ID_LEN];
    u_char                   token[NGX_HTTP_IDEM_TOKEN_LEN];

    /* begin and renew */
    ngx_http_idem_claim_t   *claim;
    ngx_str_t                details;           /* kept beside the claim, if
                                                   there is room; or empty  */
    ngx_msec_t               lease;             /* also of a commit that says
                                                   that the outcome is unknown:
                                                   then a retry may run     */
    unsigned                 hold:1;            /* a lease that ran out keeps
                                                   the record: the outcome is
                                                   unknown for the whole ttl */

    /* begin */
    ngx_msec_t               age;               /* since the asker came: what
                                                   had not expired then is
                                                   found, within its grace  */
    unsigned                 key_alone:1;        /* of claim_same()         */
    unsigned                 waits:1;           /* whoever asks would wait for
                                                   a holder, and is to find out
                                                   that it gave the record
                                                   back                     */
    unsigned                 again:1;           /* it waits already: a record
                                                   that is gone, and was not
                                                   given back, is not taken */
    unsigned                 leased:1;          /* ... and the lease that it
                                                   knows of is not over     */
    unsigned                 lasting:1;         /* what is left of a record
                                                   has to be told           */

    /* watch */
    ngx_uint_t               attempt;           /* looks in vain, so far    */
    unsigned                 woken:1;           /* while it was still being
                                                   asked                    */

    /* begin (of the record that is to be), commit */
    ngx_msec_t               ttl;
    ngx_msec_t               grace;             /* after the ttl a begin still
                                                   learns that it expired   */

    /* commit */
    ngx_http_idem_state_e    state;             /* completed or unusable    */
    ngx_http_idem_reason_e   reason;
    ngx_chain_t             *response;          /* encoded; in memory       */
    size_t                   size;              /* of it                    */
    ngx_msec_t               locked_until;        /* nobody else can have had
                                                   the lock before: counted
                                                   from when the last begin or
                                                   renewal that got through
                                                   was sent                 */
    unsigned                 hasty:1;           /* does not wait until
                                                   replicas have it         */
    unsigned                 known:1;           /* that replicas lack it was
                                                   logged and counted before */

    /* get, remove, list */
    ngx_http_idem_list_t    *list;

    /* log, events */
    ngx_http_idem_trail_t   *trail;

    /* all but watch: the request runs although the store did not answer; its
       lock and its outcome are this nginx's own, until the store is back */
    unsigned                 unprotected:1;

    /*
     * The answer of a begin, if the store is several: which of them it is
     * from.  Whoever asks carries it on to what follows.
     */
    ngx_http_idem_store_t   *where;

    /* the answer of a begin that took the lock, or of a renewal, and still
       there in a commit or a release */
    ngx_http_idem_laid_t     laid;

    /* the answer */
    ngx_http_idem_result_e   result;
    ngx_http_idem_found_t    found;
    const char              *error;             /* for the log              */
    unsigned                 abandoned:1;        /* acquired from a holder
                                                   whose lease ran out      */
    unsigned                 expired:1;         /* acquired; there was one, and
                                                   it expired within grace  */
    uint64_t                 original;          /* ... when the request of
                                                   that came, or of a holder
                                                   that is gone; 0: not
                                                   known                    */
    unsigned                 turned_away:1;     /* error: a breaker did not
                                                   let it through           */
    unsigned                 bad_record:1;        /* error: the store answers,
                                                   but not this record      */
    unsigned                 running:1;         /* lost: to one that has no
                                                   outcome yet, and may still
                                                   give it back             */
    unsigned                 kept:1;            /* the store does not have it
                                                   yet, this nginx keeps it:
                                                   committed, or found so   */
    unsigned                 unacknowledged:1;        /* committed, and lost if
                                                   its server is: too few
                                                   replicas have it         */

    ngx_pool_t              *pool;              /* for op->found            */
    ngx_log_t               *log;
    ngx_http_idem_op_pt      handler;
    void                    *data;              /* the asker's              */
    ngx_msec_t               start;
    uint64_t                 clock;             /* the same, microseconds   */
    ngx_msec_t               asked;             /* the same, of the store that
                                                   answered: a lease began not
                                                   before                   */
    unsigned                 pending:1;         /* the handler will be called */

    /* the backend's own, while it is pending */
    ngx_queue_t              queue;
    ngx_event_t              timer;
    void                    *state_data;
};


/* a record that expired, and that nobody had come back for */

typedef struct {
    u_char      *id;
    uint64_t     time;                           /* its request came        */
    uint64_t     ttl;                            /* 0: not known            */
    uint64_t     ago;                            /* since it was over       */
    ngx_str_t    details;                        /* of which labels are told */
} ngx_http_idem_expired_t;


typedef struct {
    ngx_uint_t   records[NGX_HTTP_IDEM_UNUSABLE + 1];          /* by state  */
    size_t       bytes;
    size_t       size;
    ngx_uint_t   evicted;
    ngx_uint_t   expired;
    ngx_uint_t   queued;                         /* operations of this worker
                                                    that wait for a
                                                    connection              */
} ngx_http_idem_store_stats_t;


typedef struct {
    ngx_str_t    name;                           /* in idempotency_store    */

    /* configuration: a block of directives, then the whole */
    void      *(*create_conf)(ngx_conf_t *cf, ngx_http_idem_store_t *s);
    ngx_http_idem_store_command_t
                *commands;
    char      *(*init_conf)(ngx_conf_t *cf, ngx_http_idem_store_t *s);

    /* one process */
    ngx_int_t  (*init_process)(ngx_cycle_t *cycle, ngx_http_idem_store_t *s);
    void       (*exit_process)(ngx_cycle_t *cycle, ngx_http_idem_store_t *s);

    /*
     * operations: NGX_OK or NGX_AGAIN
     *
     * begin    takes the lock with (token, claim, lease), or tells what is
     *          there.  A lock with our own token is ours.  One whose lease ran
     *          out, or an unknown outcome whose lease did, goes to the same
     *          request only; another one finds it, until its ttl ends.
     *          A store that may lose records tells who waits (op->again) that
     *          one is gone.
     * renew    fenced; lays the lock anew where the record is gone.
     * commit   fenced; writes where the record is gone; wakes the waiters.
     * release  fenced; wakes the waiters.
     * watch    completes when the record changed, or when it is time to look
     *          again; spuriously, too.
     * cancel   the asker is gone: the handler is not called.  A begin that is
     *          given up leaves no lock behind.
     */
    ngx_int_t  (*begin)(ngx_http_idem_op_t *op);
    ngx_int_t  (*renew)(ngx_http_idem_op_t *op);
    ngx_int_t  (*commit)(ngx_http_idem_op_t *op);
    ngx_int_t  (*release)(ngx_http_idem_op_t *op);
    ngx_int_t  (*watch)(ngx_http_idem_op_t *op);
    void       (*cancel)(ngx_http_idem_op_t *op);

    /*
     * What it holds now; NGX_DECLINED: that it does not know, only what is
     * queued.  May be NULL
     */
    ngx_int_t  (*stats)(ngx_http_idem_store_t *s,
                        ngx_http_idem_store_stats_t *stats);

    ngx_uint_t   remote;                         /* it can be away          */

    /*
     * What people ask, an operation as the others; NULL: it can't be asked.
     *
     * get      FOUND, with one entry; or GONE.
     * remove   OK, with the entry that it was; or GONE.  Whoever holds the
     *          lock of a record that is removed has lost it: a renewal and a
     *          commit say so, and write nothing.  Those who wait are woken, and
     *          begin as if nothing were there.  Hosts that keep a copy
     *          (store->forget) are told.
     * list     OK, with the entries of a slice.
     *
     * Where it keeps events for all hosts ("trail"), also
     *
     * log      OK: they are there, or some of them twice.  bad_record: it is
     *          no use to try again.
     * events   OK, with those of a slice.
     */
    ngx_int_t  (*admin)(ngx_http_idem_op_t *op);
    ngx_uint_t   trail;                          /* ..._TRAIL_...           */
} ngx_http_idem_backend_t;


/* a record was removed, on another host perhaps: drops what is kept of it */
typedef void (*ngx_http_idem_forget_pt)(ngx_http_idem_store_t *store,
    u_char *id);


struct ngx_http_idem_store_s {
    ngx_str_t                        name;
    const ngx_http_idem_backend_t   *backend;
    void                            *conf;            /* the backend's      */
    ngx_http_idem_layers_t          *layers;          /* or NULL            */
    ngx_http_idem_forget_pt          forget;          /* NULL: nothing is
                                                         kept               */
    ngx_uint_t                       copies;          /* ... and who asks for
                                                         a record may not ask
                                                         the store: it listens
                                                         all the time       */
    ngx_uint_t                       trail;           /* it keeps events    */
    ngx_http_idem_nodes_t           *nodes;           /* NULL: it is one    */
    ngx_uint_t                       connects;        /* by this worker: a
                                                         server that was
                                                         connected anew may
                                                         have lost what its
                                                         replicas did not have
                                                         */
    ngx_http_idem_metrics_t         *metrics;
    ngx_http_idem_outage_t          *outage;          /* of a server; or NULL */
    ngx_http_idem_log_t             *log;             /* of its events      */
    ngx_resolver_t                  *resolver;        /* for names that are
                                                         looked up while it
                                                         runs, or NULL      */
    u_char                          *file;            /* where declared     */
    ngx_uint_t                       line;
    unsigned                         labels:1;        /* people read it by
                                                         other means, too: all
                                                         its records have
                                                         labels             */
};


/*
 * For backends: how long a lock is remembered if nobody renews it.  Its
 * fingerprint stays for the ttl; and for a while longer than the lease, however
 * short the ttl, since a record does not expire while its holder runs.
 */
#define ngx_http_idem_lock_life(op)                                           \
    ngx_max((op)->ttl, 2 * (op)->lease)

/* a commit after which, once the lease is over, the same request may run */
#define ngx_http_idem_op_retryable(op)                                        \
    ((op)->state == NGX_HTTP_IDEM_UNUSABLE                                    \
     && (op)->reason == NGX_HTTP_IDEM_REASON_UNKNOWN && !(op)->hold)

/* ... and how long what a commit makes of it is */
#define ngx_http_idem_record_life(op)                                         \
    (ngx_http_idem_op_retryable(op)                                           \
     ? ngx_max((op)->ttl, (op)->lease) : (op)->ttl + (op)->grace)


const ngx_http_idem_backend_t *ngx_http_idem_backend(ngx_str_t *name);

/* the names of all backends, for an error message */
ngx_str_t *ngx_http_idem_backend_names(void);

/* op->error of get, remove and list where a backend has none of them */
extern const char  ngx_http_idem_no_admin[];

ngx_int_t ngx_http_idem_store_submit(ngx_http_idem_op_t *op);
void ngx_http_idem_store_cancel(ngx_http_idem_op_t *op);

/* a new entry of op->list; NULL: no memory, and op->result says so */
ngx_http_idem_entry_t *ngx_http_idem_op_entry(ngx_http_idem_op_t *op);

/* ... its details, of which it keeps the beginning */
ngx_int_t ngx_http_idem_entry_details(ngx_http_idem_op_t *op,
    ngx_http_idem_entry_t *entry, u_char *p, size_t len);

/* log->send, of a log whose lines go to a store */
ngx_int_t ngx_http_idem_trail_init(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_http_idem_store_t *store);

/* an event: of the store, or of one of its records ("id", or NULL) */
void ngx_http_idem_store_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, u_char *id, const char *word);

/* ... that a record expired; times are in milliseconds */
void ngx_http_idem_store_expired(ngx_http_idem_store_t *store,
    ngx_http_idem_expired_t *expired);

/* one process: who counts replays, NGX_DECLINED: nobody does */
typedef ngx_int_t (*ngx_http_idem_replays_pt)(u_char *id, ngx_uint_t *count,
    uint64_t *original);

void ngx_http_idem_store_on_expiry(ngx_http_idem_replays_pt replays);

/* for backends: the answer to an operation that was pending is there */
void ngx_http_idem_store_complete(ngx_http_idem_op_t *op);

/*
 * For backends: records may be lost, since another server has them now, or
 * since a connection broke and the server may have been started anew.  Whoever
 * holds locks there renews them "now", or as soon as it is worth trying.
 * "concerns" tells of a record whether it is one of them; NULL: they all are.
 */
typedef ngx_uint_t (*ngx_http_idem_concerns_pt)(void *data, u_char *id);
typedef void (*ngx_http_idem_doubt_pt)(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data);

void ngx_http_idem_store_doubt(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data);

/* one process: who is told of that */
void ngx_http_idem_store_on_doubt(ngx_http_idem_doubt_pt handler);

/* one process: operations of their own life for when memory is short */
void ngx_http_idem_store_reserve(void);
void ngx_http_idem_store_unreserve(void);

/*
 * An operation that outlives whoever asked: it has a pool of its own, and
 * goes with it when it is done.  op->claim has room for a claim.
 */
ngx_http_idem_op_t *ngx_http_idem_op_detached(ngx_http_idem_store_t *store,
    ngx_http_idem_op_e kind, u_char *id, u_char *token);
void ngx_http_idem_op_detach(ngx_http_idem_op_t *op);


extern const char  *ngx_http_idem_op_names[];


#include "store/ngx_http_idem_remote.h"
#include "store/ngx_http_idem_store_api.h"


#endif /* _NGX_HTTP_IDEM_STORE_H_INCLUDED_ */
