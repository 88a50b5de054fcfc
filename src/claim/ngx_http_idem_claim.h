
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Claims: the records that cover a request, and their life cycle.  This room
 * derives records, acquires their locks, waits for them, renews them and
 * settles them.  No other room does.
 *
 * The request and response rooms call it; it calls the store.
 */


#ifndef _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_
#define _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


typedef struct ngx_http_idem_ctx_s    ngx_http_idem_ctx_t;
typedef struct ngx_http_idem_watch_s  ngx_http_idem_watch_t;


/*
 * One record that covers a request: the record of its key, or a record
 * derived from the request itself (idempotency_dedupe).  Most requests have
 * one.  Locks are acquired in order of the record ids.
 */

typedef struct {
    ngx_http_idem_ctx_t    *ctx;
    u_char                  id[NGX_HTTP_IDEM_ID_LEN];
    u_char                  token[NGX_HTTP_IDEM_TOKEN_LEN];
                                                /* of the last begin */
    ngx_http_idem_claim_t   claim;
    ngx_str_t               details;
    ngx_str_t               stored;             /* labels and details;
                                                   empty without labels     */
    ngx_http_idem_dedupe_t *dedupe;             /* the rule of a derived
                                                   record                   */
    ngx_msec_t              window;
    ngx_msec_t              linger;             /* fold time after the
                                                   commit                   */
    ngx_http_idem_op_t      op;                 /* begin, then commit       */
    ngx_http_idem_op_t     *renewal;            /* of a holder              */
    ngx_http_idem_op_t     *settling;           /* detached, and the response
                                                   waits for it             */
    ngx_http_idem_store_t  *where;              /* op.where of the begin
                                                   that acquired the lock
                                                   or found it held         */
    ngx_msec_t              locked_until;       /* held at least until
                                                   then, by this worker's
                                                   clock                    */
    unsigned                derived:1;
    unsigned                reject:1;           /* duplicates: no replay    */
    unsigned                asked:1;            /* 0: begin is to be sent   */
    unsigned                acquired:1;         /* this request holds the
                                                   lock                     */
    unsigned                unconfirmed:1;      /* the lease may be over:
                                                   begin is repeated        */
    unsigned                lost:1;             /* another request took
                                                   over                     */
} ngx_http_idem_cover_t;


/* what an execution does to its records; response/..._outcome.c decides */

typedef enum {
    NGX_HTTP_IDEM_OUTCOME_KEEP = 0,
    NGX_HTTP_IDEM_OUTCOME_RELEASE,
    NGX_HTTP_IDEM_OUTCOME_UNKNOWN
} ngx_http_idem_outcome_e;


#define NGX_HTTP_IDEM_ACTIVITY_ID_LEN  16


/* earlier executions of a client in a scope, within the last window */

typedef struct {
    u_char                  id[NGX_HTTP_IDEM_ACTIVITY_ID_LEN];
    ngx_uint_t              count;
    ngx_msec_t              age;                /* of the last execution    */
    unsigned                known:1;            /* there was an execution   */
} ngx_http_idem_activity_t;


/* all records of a request */

typedef struct {
    ngx_http_idem_cover_t   *covers;
    ngx_uint_t               ncovers;
    ngx_http_idem_cover_t   *primary;           /* of the key, or of the
                                                   first rule               */
    ngx_http_idem_cover_t   *replayed;          /* derived, has the
                                                   response                 */
    ngx_http_idem_cover_t   *blocked;           /* derived, held by another
                                                   request                  */
    ngx_http_idem_activity_t *activity;         /* NULL: activity is off    */
    ngx_msec_t               ttl;
    ngx_msec_t               lease;
    ngx_msec_t               grace;
    ngx_msec_t               reading;           /* from its arrival to begin:
                                                   the body came meanwhile  */
    ngx_uint_t               on_store_error;
    ngx_uint_t               unknown_outcome;
    ngx_http_idem_statuses_t *keep_status;

    ngx_queue_t              holder;            /* in the queue of holders  */
    ngx_msec_t               renew_at;          /* when to renew the locks  */
    ngx_msec_t               held_since;
    ngx_msec_t               store_time;
    ngx_uint_t               lapses;            /* leases that ended before
                                                   begin's reply was read   */
    ngx_uint_t               commits;           /* in flight, and releases  */

    unsigned                 renewing:1;        /* the locks are renewed    */
    unsigned                 folded:1;          /* "replayed" is the result */
    unsigned                 expired:1;         /* a record had expired     */
    unsigned                 unprotected:1;     /* the store does not
                                                   reply: the locks are in
                                                   this nginx only          */
} ngx_http_idem_claims_t;


/* waiting for the holder of one of the records */

typedef struct {
    ngx_http_idem_watch_t  *watch;
    ngx_http_idem_cover_t  *cover;
    ngx_queue_t             queue;              /* in watch->waiters        */
    ngx_event_t             deadline;
    ngx_msec_t              start;
    ngx_msec_t              until;
    ngx_msec_t              time;               /* total time waited        */

    unsigned                waited:1;
    unsigned                counted:1;          /* in the table of waiters  */
    unsigned                ready:1;            /* in the queue of requests
                                                   to resume                */
} ngx_http_idem_wait_t;


/* ..._cover.c */

ngx_int_t ngx_http_idem_cover(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_layer_e ngx_http_idem_cover_layer(ngx_http_idem_cover_t *cover);
ngx_int_t ngx_http_idem_cover_owner(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *labels, u_char *hex);
ngx_int_t ngx_http_idem_label_bounded(ngx_pool_t *pool, ngx_str_t *label);

/* ..._begin.c */

ngx_int_t ngx_http_idem_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_same_request(
    ngx_http_idem_cover_t *cover, ngx_http_idem_claim_t *claim);

/* ..._operation.c */

#define ngx_http_idem_key_alone(cover)                                        \
    ((cover)->ctx->conf->fingerprint->mode == NGX_HTTP_IDEM_FINGERPRINT_OFF)

void ngx_http_idem_claims_eval(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_op_prepare(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op, ngx_http_idem_op_e kind);
ngx_http_idem_op_t *ngx_http_idem_op_own(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_e kind);
void ngx_http_idem_op_failed(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
void ngx_http_idem_lock_acquired(ngx_http_idem_cover_t *cover);
void ngx_http_idem_lock_extended(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
ngx_http_idem_cover_t *ngx_http_idem_lock_lapsed(ngx_http_idem_ctx_t *ctx);
ngx_msec_t ngx_http_idem_commit_ttl(ngx_http_idem_cover_t *cover);

/* ..._settle.c */

ngx_int_t ngx_http_idem_claims_commit(ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *response, size_t size);
void ngx_http_idem_settle_status(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_outcome_e outcome, ngx_http_idem_reason_e reason);
ngx_int_t ngx_http_idem_settle(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_outcome_e outcome, ngx_http_idem_reason_e reason,
    ngx_uint_t wait);
ngx_int_t ngx_http_idem_settle_op(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
void ngx_http_idem_claims_cancel(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_release(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_abandon(ngx_http_idem_ctx_t *ctx);

/* ..._wait.c */

ngx_int_t ngx_http_idem_wait(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
void ngx_http_idem_wait_end(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_waited_e result);
void ngx_http_idem_wait_init(ngx_cycle_t *cycle);

/* ..._waiters.c: counts the waiters in all workers of this nginx */

ngx_int_t ngx_http_idem_waiters_zone(ngx_conf_t *cf);

/* NGX_DECLINED if the record already has "max" waiters */
ngx_int_t ngx_http_idem_waiters_enter(ngx_str_t *store, u_char *id,
    ngx_msec_t time, ngx_int_t max);
void ngx_http_idem_waiters_leave(ngx_str_t *store, u_char *id);

/* the current number of waiters for the record */
ngx_uint_t ngx_http_idem_waiters_of(ngx_str_t *store, u_char *id);

/* the current number of waiters for all records */
ngx_uint_t ngx_http_idem_waiters_all(void);

/* ..._activity.c */

ngx_int_t ngx_http_idem_activity_zone(ngx_conf_t *cf);
void ngx_http_idem_activity_init_process(ngx_cycle_t *cycle);
ngx_int_t ngx_http_idem_activity_read(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *scope, u_char *identity);
void ngx_http_idem_activity_count(ngx_http_idem_activity_t *activity);

/* ..._replays.c: counts the replays of a record by this nginx */

ngx_int_t ngx_http_idem_replays_zone(ngx_conf_t *cf);
ngx_uint_t ngx_http_idem_replays_count(ngx_http_idem_cover_t *cover,
    uint64_t original);

/*
 * Returns the number of replays so far and the time of the replayed response
 * (0 if there was none), or NGX_DECLINED if replays are not counted.
 */
ngx_int_t ngx_http_idem_replays_read(u_char *id, ngx_uint_t *count,
    uint64_t *original);

/* ..._renew.c */

void ngx_http_idem_renew_init(void);
ngx_int_t ngx_http_idem_renew_start(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_renew_stop(ngx_http_idem_ctx_t *ctx);


#endif /* _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_ */
