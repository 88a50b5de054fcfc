
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The outbox: commits that could not reach the store.  Begins are answered
 * from it, and the commits are retried.
 *
 *   ..._outbox.c          the operations, and which commits are kept
 *   ..._outbox_retry.c    retries: when, and by which worker
 *   ..._outbox_queue.c    retries: pacing, per node
 *   ..._outbox_try.c      retries: one record; begins after the lease may have
 *                         expired
 *   ..._outbox_result.c   retries: results
 *   ..._outbox_local.c    locks in this nginx only
 *   ..._outbox_admin.c    administrative operations
 */


#ifndef _NGX_HTTP_IDEM_OUTBOX_H_INCLUDED_
#define _NGX_HTTP_IDEM_OUTBOX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layer.h"
#include "store/zone/ngx_http_idem_shared.h"
#include "store/zone/ngx_http_idem_zone.h"


/* counters for the metrics */

typedef struct {
    ngx_atomic_t                    kept;
    ngx_atomic_t                    landed;
    ngx_atomic_t                    lost;       /* another request took over */
    ngx_atomic_t                    dropped;    /* there was no room */
} ngx_http_idem_outbox_counters_t;


/* why a commit is in the outbox */

typedef enum {
    NGX_HTTP_IDEM_OUTBOX_FAILED = 0,            /* the store may lack it */
    NGX_HTTP_IDEM_OUTBOX_UNACKNOWLEDGED,        /* replicas may lack it */
    NGX_HTTP_IDEM_OUTBOX_CAUSES
} ngx_http_idem_outbox_cause_e;


/*
 * A queue: the commits of one node that are kept for one cause.  They are
 * retried, paused and resumed together, and do not delay other queues.
 */

typedef struct {
    ngx_msec_t                      next;       /* time of the next attempt */
    ngx_msec_t                      delay;      /* between failed attempts */
    ngx_uint_t                      used;       /* it may have records */
    ngx_uint_t                      open;       /* the last attempt succeeded:
                                                   retry all */
    ngx_uint_t                      rewrite;    /* write unacknowledged
                                                   commits once more: the
                                                   server may have changed */
} ngx_http_idem_outbox_queue_t;

/* by slot of the node; the first is for records without one */
#define NGX_HTTP_IDEM_OUTBOX_SLOTS                                            \
    (1 + NGX_HTTP_IDEM_NODES_MAX)

#define NGX_HTTP_IDEM_OUTBOX_QUEUES                                           \
    (NGX_HTTP_IDEM_OUTBOX_CAUSES * NGX_HTTP_IDEM_OUTBOX_SLOTS)


typedef struct {
    ngx_pid_t                       owner;      /* worker that retries; 0:
                                                   none */
    ngx_msec_t                      owned_until;
    ngx_uint_t                      expired;    /* z.zone->expired when last
                                                   logged */
    ngx_uint_t                      added;      /* commits kept so far */
    ngx_uint_t                      unacknowledged; /* number of records,
                                                       approximate */
    ngx_http_idem_outbox_counters_t  counters;
    ngx_http_idem_outbox_queue_t    queues[NGX_HTTP_IDEM_OUTBOX_QUEUES];
} ngx_http_idem_outbox_sh_t;


/* a queue in the worker that retries */

typedef struct {
    ngx_uint_t                      tries;      /* attempts under way */
    size_t                          bytes;      /* of their responses */
    unsigned                        seen:1;     /* has records in this pass */
    unsigned                        taken:1;    /* attempt started in this
                                                   pass */
    unsigned                        more:1;     /* limits were reached */
} ngx_http_idem_outbox_work_t;

/* hash of attempts by record id */
#define NGX_HTTP_IDEM_OUTBOX_BUCKETS  256


typedef struct {
    ngx_http_idem_layer_t    layer;
    ngx_http_idem_records_t  z;
    ngx_http_idem_shared_t   shared;

    /* per worker */
    ngx_event_t              tick;
    ngx_uint_t               connects;          /* store->connects when last
                                                   checked */
    ngx_msec_t               rewritten;         /* time of the last rewrite */
    ngx_uint_t               left;              /* records left in this pass */
    ngx_uint_t               added;             /* sh->added at its start */
    ngx_queue_t              tries[NGX_HTTP_IDEM_OUTBOX_BUCKETS];
    ngx_http_idem_outbox_work_t
                             work[NGX_HTTP_IDEM_OUTBOX_QUEUES];
} ngx_http_idem_outbox_t;


/* delay before a commit is retried, ms */
#define NGX_HTTP_IDEM_OUTBOX_DELAY_MIN  250
#define NGX_HTTP_IDEM_OUTBOX_DELAY_MAX  500

/* the same if too few replicas have it */
#define NGX_HTTP_IDEM_OUTBOX_DELAY_REPLICAS  1000

/*
 * how often each worker checks whether the outbox has records, and whether
 * another worker retries them, ms
 */
#define NGX_HTTP_IDEM_OUTBOX_TICK       1000

#define ngx_http_idem_outbox_sh(o)                                            \
    ((ngx_http_idem_outbox_sh_t *) (o)->shared.data)

#define ngx_http_idem_outbox_lock(o)                                          \
    ngx_http_idem_zone_lock(&(o)->z)
#define ngx_http_idem_outbox_unlock(o)                                        \
    ngx_http_idem_zone_unlock(&(o)->z)

/* a single read of shared memory, without the lock */
#define ngx_http_idem_outbox_empty(o)                                         \
    (*(volatile ngx_uint_t *) &(o)->z.zone->records == 0)

/*
 * In an outbox, "again" of a record with an outcome is the cause; and this is
 * added if the record stays after its grace, since its lock may.
 */
#define NGX_HTTP_IDEM_OUTBOX_OUTLIVED   0x80

#define ngx_http_idem_outbox_cause(item)                                      \
    ((item)->state == NGX_HTTP_IDEM_IN_PROGRESS                               \
     ? NGX_HTTP_IDEM_OUTBOX_FAILED                                            \
     : (ngx_http_idem_outbox_cause_e)                                         \
       ((item)->again & ~NGX_HTTP_IDEM_OUTBOX_OUTLIVED))


/* ..._outbox.c */

extern const ngx_http_idem_backend_t  ngx_http_idem_outbox_backend;

/* ..._outbox_admin.c */

ngx_int_t ngx_http_idem_outbox_admin(ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_doubt(ngx_http_idem_outbox_t *o, u_char *id);

/* called with the zone locked */
void ngx_http_idem_outbox_remove(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item);

/* op->found.left of a begin that finds the record */
ngx_msec_t ngx_http_idem_outbox_left(ngx_http_idem_item_t *item);

/* for the metrics: number of commits that the store lacks */
ngx_uint_t ngx_http_idem_outbox_waiting(ngx_http_idem_outbox_t *o);

/* ..._outbox_retry.c */

ngx_int_t ngx_http_idem_outbox_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
void ngx_http_idem_outbox_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);

/* wakes the retry timer after "delay" at the latest */
void ngx_http_idem_outbox_schedule(ngx_http_idem_outbox_t *o,
    ngx_msec_t delay);

/* ..._outbox_try.c */

/* returns the commit of a record if it is due; called with the zone locked */
ngx_http_idem_op_t *ngx_http_idem_outbox_try(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item);

/* removes pauses; "all": also cancels attempts, since the worker exits */
void ngx_http_idem_outbox_tries_end(ngx_http_idem_outbox_t *o,
    ngx_uint_t all);

/*
 * A begin found a record whose lease may have expired.  Returns NGX_OK or
 * NGX_AGAIN, as a begin does.
 */
ngx_int_t ngx_http_idem_outbox_check(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);
void ngx_http_idem_outbox_check_cancel(ngx_http_idem_op_t *op);

/* ..._outbox_result.c */

/* creates a commit from a record; the zone is locked; NULL: no memory */
ngx_http_idem_op_t *ngx_http_idem_outbox_op(
    ngx_http_idem_outbox_t *o, ngx_http_idem_item_t *item);

/*
 * Called with the result of such a commit.  Removes the record, unless the
 * commit failed or replicas lack it, and logs the result.  Returns whether
 * the record was still in the outbox.
 */
ngx_uint_t ngx_http_idem_outbox_result(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);

/* counts and logs commits that expired, whichever worker found them */
void ngx_http_idem_outbox_expired(ngx_http_idem_outbox_t *o);

/* ..._outbox_queue.c: called with the zone locked */

ngx_uint_t ngx_http_idem_outbox_queue(ngx_http_idem_outbox_t *o,
    u_char *id, ngx_http_idem_outbox_cause_e cause);

/* a commit was added to the queue */
void ngx_http_idem_outbox_queue_use(ngx_http_idem_outbox_t *o, ngx_uint_t n);

/* whether another attempt may start now */
ngx_uint_t ngx_http_idem_outbox_queue_room(
    ngx_http_idem_outbox_t *o, ngx_uint_t n);

/*
 * An attempt has its result: opens the queue, or closes it.  "missed": the
 * server replied, but too few of its replicas acknowledged.
 */
void ngx_http_idem_outbox_queue_done(ngx_http_idem_outbox_t *o, ngx_uint_t n,
    ngx_http_idem_op_t *op, ngx_uint_t missed);

/* after a reconnect: the server may lack what had too few replicas */
void ngx_http_idem_outbox_queues_rewrite(ngx_http_idem_outbox_t *o);

void ngx_http_idem_outbox_pass_start(ngx_http_idem_outbox_t *o);
void ngx_http_idem_outbox_pass_end(ngx_http_idem_outbox_t *o);

/* ms until the next attempt of any queue, at most "wait" */
ngx_msec_t ngx_http_idem_outbox_queues_next(
    ngx_http_idem_outbox_t *o, ngx_msec_t wait);

/* ..._outbox_local.c */

/* operations of requests that run although the store does not answer */
ngx_int_t ngx_http_idem_outbox_local_begin(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op);
/* renew and release */
ngx_int_t ngx_http_idem_outbox_local_update(
    ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op);

/*
 * Makes an outcome of a lock, in its place and without a response: hold,
 * reason and locked_until are those of "op".  Called with the zone locked.
 */
void ngx_http_idem_outbox_local_end(ngx_http_idem_outbox_t *o,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op, ngx_msec_t until);

/* completes after a while; there is no inner operation */
ngx_int_t ngx_http_idem_outbox_local_watch(ngx_http_idem_op_t *op);


#endif /* _NGX_HTTP_IDEM_OUTBOX_H_INCLUDED_ */
