
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The room of claims: the records that cover a request, and their life.  They
 * are derived, begun, waited for, renewed and settled here, and nowhere else.
 *
 * Called by the way of a request and by the response; calls the store.
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
 * One record that covers a request: that of its key, or one derived from what
 * it is.  Mostly there is one.  They are asked for in order of their ids.
 */

typedef struct {
    ngx_http_idem_ctx_t    *ctx;
    u_char                  id[NGX_HTTP_IDEM_ID_LEN];
    u_char                  token[NGX_HTTP_IDEM_TOKEN_LEN];
                                                /* of the last begin        */
    ngx_http_idem_claim_t   claim;
    ngx_str_t               details;
    ngx_str_t               stored;             /* labels and details; empty:
                                                   there are no labels      */
    ngx_http_idem_dedupe_t *dedupe;             /* of a derived one:        */
    ngx_msec_t              window;
    ngx_msec_t              linger;             /* after its commit         */
    ngx_http_idem_op_t      op;                 /* begin, then commit       */
    ngx_http_idem_op_t      renewal;
    ngx_http_idem_store_t  *where;              /* op.where of the begin that
                                                   took the lock, or found it
                                                   taken                    */
    ngx_msec_t              locked_until;       /* at the least, by our own
                                                   clock                    */
    unsigned                derived:1;
    unsigned                asked:1;
    unsigned                taken:1;            /* the lock is ours         */
    unsigned                doubted:1;          /* ... if it did not end: it is
                                                   asked for again          */
    unsigned                lost:1;             /* not any more             */
} ngx_http_idem_cover_t;


/* every commit of a request is done */
typedef void (*ngx_http_idem_claims_pt)(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/* what an execution does to its records: response/..._outcome.c judges */

typedef enum {
    NGX_HTTP_IDEM_OUTCOME_KEEP = 0,
    NGX_HTTP_IDEM_OUTCOME_RELEASE,
    NGX_HTTP_IDEM_OUTCOME_UNKNOWN
} ngx_http_idem_outcome_e;


#define NGX_HTTP_IDEM_ACTIVITY_ID_LEN  16


/* what a client of a scope has had executed before, in the last window */

typedef struct {
    u_char                  id[NGX_HTTP_IDEM_ACTIVITY_ID_LEN];
    ngx_uint_t              count;
    ngx_msec_t              age;                /* of the last              */
    unsigned                known:1;            /* there was one            */
} ngx_http_idem_activity_t;


/* all of a request's */

typedef struct {
    ngx_http_idem_cover_t   *covers;
    ngx_uint_t               ncovers;
    ngx_http_idem_cover_t   *primary;           /* the key's, or that of the
                                                   first rule               */
    ngx_http_idem_cover_t   *replayed;          /* a derived one that has the
                                                   response                 */
    ngx_http_idem_cover_t   *blocked;           /* a derived one that can't be
                                                   had                      */
    ngx_http_idem_activity_t *activity;         /* NULL: it is not on       */
    ngx_msec_t               ttl;
    ngx_msec_t               lease;
    ngx_msec_t               grace;

    ngx_queue_t              holder;            /* among those that run     */
    ngx_msec_t               renew_at;          /* the locks                */
    ngx_msec_t               held_since;
    ngx_msec_t               store_time;
    ngx_uint_t               lapses;            /* locks that were seen too
                                                   late                     */
    ngx_uint_t               commits;           /* under way                */
    ngx_http_idem_claims_pt  done;              /* ... called after them    */

    unsigned                 holding:1;         /* its locks are renewed    */
    unsigned                 expired:1;         /* there was a record       */
    unsigned                 unprotected:1;     /* the store does not answer:
                                                   its locks are this nginx's
                                                   own                      */
} ngx_http_idem_claims_t;


/* waiting for the holder of one of them */

typedef struct {
    ngx_http_idem_watch_t  *watch;
    ngx_http_idem_cover_t  *cover;
    ngx_queue_t             queue;              /* in watch->waiters        */
    ngx_event_t             deadline;
    ngx_msec_t              start;
    ngx_msec_t              until;
    ngx_msec_t              time;               /* in all                   */

    unsigned                waited:1;
    unsigned                counted:1;          /* among the waiters        */
    unsigned                ready:1;            /* to be resumed            */
} ngx_http_idem_wait_t;


/* ..._cover.c */

ngx_int_t ngx_http_idem_cover(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

/* ..._begin.c */

ngx_int_t ngx_http_idem_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_same_request(
    ngx_http_idem_cover_t *cover, ngx_http_idem_claim_t *claim);

/* ..._operation.c */

#define ngx_http_idem_key_alone(cover)                                        \
    ((cover)->ctx->conf->fingerprint->mode == NGX_HTTP_IDEM_FINGERPRINT_OFF)

void ngx_http_idem_op_prepare(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op, ngx_http_idem_op_e kind);
ngx_http_idem_op_t *ngx_http_idem_op_own(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_e kind);
void ngx_http_idem_op_failed(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
void ngx_http_idem_taken(ngx_http_idem_cover_t *cover);
void ngx_http_idem_locked(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
ngx_http_idem_cover_t *ngx_http_idem_lapsed(ngx_http_idem_ctx_t *ctx);
ngx_msec_t ngx_http_idem_commit_ttl(ngx_http_idem_cover_t *cover);

/* ..._settle.c */

ngx_int_t ngx_http_idem_claims_commit(ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *response, size_t size, ngx_http_idem_claims_pt done);
void ngx_http_idem_settle(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_outcome_e outcome, ngx_http_idem_reason_e reason);
void ngx_http_idem_release(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_abandon(ngx_http_idem_ctx_t *ctx);

/* ..._wait.c */

ngx_int_t ngx_http_idem_wait(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
void ngx_http_idem_wait_cancel(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_wait_init(ngx_cycle_t *cycle);

/* ..._waiters.c: how many requests wait, in all workers of this nginx */

ngx_int_t ngx_http_idem_waiters_zone(ngx_conf_t *cf);

/* NGX_DECLINED if there are "max" of that record already */
ngx_int_t ngx_http_idem_waiters_enter(ngx_str_t *store, u_char *id,
    ngx_msec_t time, ngx_int_t max);
void ngx_http_idem_waiters_leave(ngx_str_t *store, u_char *id);

/* how many wait now, for that record */
ngx_uint_t ngx_http_idem_waiters_of(ngx_str_t *store, u_char *id);

/* how many wait now, for any record */
ngx_uint_t ngx_http_idem_waiters_all(void);

/* ..._activity.c */

ngx_int_t ngx_http_idem_activity_zone(ngx_conf_t *cf);
void ngx_http_idem_activity_init_process(ngx_cycle_t *cycle);
ngx_int_t ngx_http_idem_activity_look(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *scope, u_char *identity);
void ngx_http_idem_activity_count(ngx_http_idem_activity_t *activity);

/* ..._replays.c: how often a record was replayed, by this nginx */

ngx_int_t ngx_http_idem_replays_zone(ngx_conf_t *cf);
ngx_uint_t ngx_http_idem_replays_count(ngx_http_idem_cover_t *cover,
    uint64_t original);

/*
 * So far; and the time of the response that was replayed, 0: none was.
 * NGX_DECLINED: nobody counts.
 */
ngx_int_t ngx_http_idem_replays_look(u_char *id, ngx_uint_t *count,
    uint64_t *original);

/* ..._renew.c */

void ngx_http_idem_renew_init(ngx_cycle_t *cycle);
void ngx_http_idem_renew_start(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_renew_stop(ngx_http_idem_ctx_t *ctx);


/* ..._cover_labels.c */

ngx_int_t ngx_http_idem_cover_labels(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


#endif /* _NGX_HTTP_IDEM_CLAIM_H_INCLUDED_ */
