
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The outbox: commits that could not reach the store.  They are answered from
 * here, and tried again.
 *
 *   ..._outbox.c          what is kept
 *   ..._outbox_retry.c    trying again: when, and by which worker
 *   ..._outbox_lane.c     ... each node by itself
 *   ..._outbox_try.c      ... one record
 *   ..._outbox_result.c   ... and what becomes of it
 *   ..._outbox_release.c  locks that could not be given back
 *   ..._outbox_check.c    looks before it is told too late
 *   ..._outbox_local.c    locks of this nginx only
 *   ..._outbox_admin.c    what people ask
 */


#ifndef _NGX_HTTP_IDEM_OUTBOX_H_INCLUDED_
#define _NGX_HTTP_IDEM_OUTBOX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layer.h"
#include "store/zone/ngx_http_idem_shared.h"
#include "store/zone/ngx_http_idem_zone.h"


/* of an outbox, for the metrics; "waiting" is the number of its records */

typedef struct {
    ngx_atomic_t                    kept;
    ngx_atomic_t                    landed;
    ngx_atomic_t                    lost;       /* somebody else took over  */
    ngx_atomic_t                    dropped;    /* there was no room        */
} ngx_http_idem_outbox_figures_t;


/* why a commit is in the outbox */

typedef enum {
    NGX_HTTP_IDEM_OUTBOX_FAILED = 0,            /* the store may not have it */
    NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED,        /* its replicas may not      */
    NGX_HTTP_IDEM_OUTBOX_CAUSES
} ngx_http_idem_outbox_cause_e;


/*
 * Commits of one node that are kept for one cause: these are tried, paused and
 * resumed together, and hold up no others.
 */

typedef struct {
    ngx_msec_t                      next;       /* when to try              */
    ngx_msec_t                      delay;      /* between tries in vain    */
    ngx_uint_t                      used;       /* there may be some        */
    ngx_uint_t                      open;       /* the last try succeeded:
                                                   all are tried at once    */
    ngx_uint_t                      rewrite;    /* unacknowledged ones, once
                                                   each: the server may be
                                                   another one              */
} ngx_http_idem_outbox_lane_t;

/* by place of the node; the first is that of what has none */
#define NGX_HTTP_IDEM_OUTBOX_PLACES                                           \
    (1 + NGX_HTTP_IDEM_NODES_MAX)

#define NGX_HTTP_IDEM_OUTBOX_LANES                                            \
    (NGX_HTTP_IDEM_OUTBOX_CAUSES * NGX_HTTP_IDEM_OUTBOX_PLACES)


typedef struct {
    ngx_pid_t                       owner;      /* who tries, 0: nobody     */
    ngx_msec_t                      owned_until;
    ngx_uint_t                      expired;    /* of the zone, as logged   */
    ngx_uint_t                      keeps;      /* so far                   */
    ngx_uint_t                      unacknowledged; /* records, about       */
    ngx_http_idem_outbox_figures_t  figures;
    ngx_http_idem_outbox_lane_t  lanes[
                                           NGX_HTTP_IDEM_OUTBOX_LANES];
} ngx_http_idem_outbox_sh_t;


/* of a lane, in the worker that tries */

typedef struct {
    ngx_uint_t                      tries;      /* under way                */
    size_t                          bytes;      /* of their responses       */
    unsigned                        seen:1;     /* in this pass             */
    unsigned                        taken:1;    /* in this pass             */
    unsigned                        more:1;     /* some had to wait         */
} ngx_http_idem_outbox_work_t;

/* tries by id of the record */
#define NGX_HTTP_IDEM_OUTBOX_BUCKETS  256


typedef struct {
    ngx_http_idem_layer_t    layer;
    ngx_http_idem_records_t  z;
    ngx_http_idem_shared_t   shared;

    /* this worker */
    ngx_event_t              tick;
    ngx_uint_t               connects;          /* of the store, as seen    */
    ngx_msec_t               rewritten;         /* ... when                 */
    ngx_uint_t               left;              /* of this pass             */
    ngx_uint_t               keeps;             /* when it began            */
    ngx_queue_t             *tries;
    ngx_http_idem_outbox_work_t  *work;         /* by lane                  */
    ngx_queue_t                     checks;     /* those somebody waits for */
    ngx_queue_t                     releases;   /* to be tried again        */
    ngx_uint_t                      nreleases;
} ngx_http_idem_outbox_t;


/* how soon a commit is tried again */
#define NGX_HTTP_IDEM_OUTBOX_DELAY_MIN  250
#define NGX_HTTP_IDEM_OUTBOX_DELAY_MAX  500

/* ... where too few replicas have it */
#define NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS  1000

/* how often every worker looks whether somebody tries, while one waits */
#define NGX_HTTP_IDEM_OUTBOX_TICK       1000

#define ngx_http_idem_outbox_sh(o)                                            \
    ((ngx_http_idem_outbox_sh_t *) (o)->shared.data)

#define ngx_http_idem_outbox_lock(o)                                          \
    ngx_http_idem_zone_lock(&(o)->z)
#define ngx_http_idem_outbox_unlock(o)                                        \
    ngx_http_idem_zone_unlock(&(o)->z)

/* one read of shared memory: whether there is anything in it */
#define ngx_http_idem_outbox_empty(o)                                         \
    (*(volatile ngx_uint_t *) &(o)->z.zone->records == 0)

/* an outcome has no use for "again": it is the cause for which it is kept */
#define ngx_http_idem_outbox_cause(node)                                      \
    ((ngx_http_idem_outbox_cause_e) (node)->again)


/* ..._outbox.c */

extern const ngx_http_idem_backend_t  ngx_http_idem_outbox_backend;

/* ..._outbox_admin.c */

ngx_int_t ngx_http_idem_outbox_admin(ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_drop(ngx_http_idem_outbox_t *o, u_char *id);

/* what begin tells of the time that is left */
ngx_msec_t ngx_http_idem_outbox_left(ngx_http_idem_node_t *node);

/* for the figures: commits that are kept since the store lacks them */
ngx_uint_t ngx_http_idem_outbox_waiting(ngx_http_idem_outbox_t *o);

/* ..._outbox_check.c */

/*
 * A begin found what is kept here, but its lease may be over.  NGX_OK or
 * NGX_AGAIN, as of a begin.
 */
ngx_int_t ngx_http_idem_outbox_check(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_check_cancel(ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_check_exit(ngx_http_idem_outbox_t *o);

/* ..._outbox_retry.c */

ngx_int_t ngx_http_idem_outbox_retry_init(ngx_cycle_t *cycle,
    ngx_http_idem_outbox_t *o);
void ngx_http_idem_outbox_retry_exit(ngx_http_idem_outbox_t *o);

/* looks at what waits, in that time or before */
void ngx_http_idem_outbox_arm(ngx_http_idem_outbox_t *o, ngx_msec_t delay);

/* ..._outbox_try.c */

ngx_int_t ngx_http_idem_outbox_tries_init(ngx_cycle_t *cycle,
    ngx_http_idem_outbox_t *o);

/* the commit of a record, if it may be tried now; the zone is locked */
ngx_http_idem_op_t *ngx_http_idem_outbox_try(ngx_http_idem_outbox_t *o,
    ngx_http_idem_node_t *node);
void ngx_http_idem_outbox_try_submit(ngx_http_idem_op_t *op);

/* forgets pauses; "all": and what is under way, since the worker leaves */
void ngx_http_idem_outbox_tries_end(ngx_http_idem_outbox_t *o,
    ngx_uint_t all);

/* ..._outbox_result.c */

/* what is kept, as a commit of its own; the zone is locked; may be NULL */
ngx_http_idem_op_t *ngx_http_idem_outbox_op(
    ngx_http_idem_outbox_t *o, ngx_http_idem_node_t *node);

/*
 * Such a commit is done: its record leaves the outbox, unless there was no
 * answer or replicas lack it, and that is logged.  Returns whether it was
 * still here.
 */
ngx_uint_t ngx_http_idem_outbox_tried(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);

/* counts and logs those whose time was over, whoever found them */
void ngx_http_idem_outbox_expired(ngx_http_idem_outbox_t *o);

/* ..._outbox_lane.c: called with the zone locked */

ngx_uint_t ngx_http_idem_outbox_lane(ngx_http_idem_outbox_t *o,
    u_char *id, ngx_http_idem_outbox_cause_e cause);

/* a commit of the lane was kept */
void ngx_http_idem_outbox_lane_use(ngx_http_idem_outbox_t *o, ngx_uint_t n);

/* how many more may be tried now */
ngx_uint_t ngx_http_idem_outbox_lane_room(
    ngx_http_idem_outbox_t *o, ngx_uint_t n);

/* a try begins, and is done; with or without success */
void ngx_http_idem_outbox_lane_take(ngx_http_idem_outbox_t *o,
    ngx_uint_t n, size_t size);
void ngx_http_idem_outbox_lane_done(ngx_http_idem_outbox_t *o,
    ngx_uint_t n, size_t size);
void ngx_http_idem_outbox_lane_opened(ngx_http_idem_outbox_t *o,
    ngx_uint_t n);
void ngx_http_idem_outbox_lane_missed(ngx_http_idem_outbox_t *o,
    ngx_uint_t n);
void ngx_http_idem_outbox_lane_failed(ngx_http_idem_outbox_t *o,
    ngx_uint_t n);

/* a server was connected anew: it may lack what replicas did not have */
void ngx_http_idem_outbox_lanes_rewrite(ngx_http_idem_outbox_t *o);

void ngx_http_idem_outbox_pass_start(ngx_http_idem_outbox_t *o);
void ngx_http_idem_outbox_pass_end(ngx_http_idem_outbox_t *o);

/* until the next is due, or "wait" */
ngx_msec_t ngx_http_idem_outbox_lanes_next(
    ngx_http_idem_outbox_t *o, ngx_msec_t wait);

/* ..._outbox_release.c */

/* a lock could not be given back: tries on, while its lease can last */
void ngx_http_idem_outbox_release_later(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_release_exit(ngx_http_idem_outbox_t *o);

/* ..._outbox_local.c */

/* locks of requests that run although the store does not answer */
ngx_int_t ngx_http_idem_outbox_local_begin(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_outbox_local_renew(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_outbox_local_release(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op);

/* looks again after a while; nothing is handed down */
ngx_int_t ngx_http_idem_outbox_local_watch(ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_local_cancel(ngx_http_idem_op_t *op);


#endif /* _NGX_HTTP_IDEM_OUTBOX_H_INCLUDED_ */
