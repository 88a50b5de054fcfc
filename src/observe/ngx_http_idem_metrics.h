
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The metrics: counters and histograms in shared memory, one set for all
 * workers, kept over a reload.
 *
 * An update takes no mutex, but a single atomic addition.  The only labels
 * are store and group, never anything that a client sent, so their number is
 * limited.  All parts of the module update metrics here; the status endpoint
 * reads them.
 */


#ifndef _NGX_HTTP_IDEM_METRICS_H_INCLUDED_
#define _NGX_HTTP_IDEM_METRICS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "observe/ngx_http_idem_history.h"

#define NGX_HTTP_IDEM_METRICS_STORES   16
#define NGX_HTTP_IDEM_METRICS_GROUPS   64
#define NGX_HTTP_IDEM_METRICS_OTHER    64            /* all further groups  */
#define NGX_HTTP_IDEM_METRICS_NAME     64

/* the numbers of statuses of requests, of operations of a store, and of their
   results */
#define NGX_HTTP_IDEM_METRICS_STATUSES    14
#define NGX_HTTP_IDEM_METRICS_OPERATIONS  5
#define NGX_HTTP_IDEM_METRICS_RESULTS     7

#define NGX_HTTP_IDEM_METRICS_BUCKETS  23


/* plain counters of a store */

typedef enum {
    NGX_HTTP_IDEM_COUNT_ABANDONED = 0,          /* locks taken over         */
    NGX_HTTP_IDEM_COUNT_RENEWALS,
    NGX_HTTP_IDEM_COUNT_LEASE_LOST,
    NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES,
    NGX_HTTP_IDEM_COUNT_BREAKER_OPENED,
    NGX_HTTP_IDEM_COUNT_BREAKER_REJECTED,
    NGX_HTTP_IDEM_COUNT_CACHE_HITS,
    NGX_HTTP_IDEM_COUNT_CACHE_MISSES,
    NGX_HTTP_IDEM_COUNT_REPLICAS_MISSED,
    NGX_HTTP_IDEM_COUNT_EXPIRED,                /* and requested again      */
    NGX_HTTP_IDEM_COUNT_PURGES,                 /* by the server of a store */
    NGX_HTTP_IDEM_COUNT_PURGE_FAILURES,
    NGX_HTTP_IDEM_COUNT_PURGED,                 /* records                  */
    NGX_HTTP_IDEM_COUNT_N
} ngx_http_idem_count_e;


/* how a wait ended */

typedef enum {
    NGX_HTTP_IDEM_WAITED_ANSWERED = 0,
    NGX_HTTP_IDEM_WAITED_ACQUIRED,
    NGX_HTTP_IDEM_WAITED_TIMEOUT,
    NGX_HTTP_IDEM_WAITED_GONE,
    NGX_HTTP_IDEM_WAITED_N
} ngx_http_idem_waited_e;


/* the record that covers a request: that of its key, or a derived one */

typedef enum {
    NGX_HTTP_IDEM_LAYER_KEY = 0,
    NGX_HTTP_IDEM_LAYER_BODY,
    NGX_HTTP_IDEM_LAYER_JSON,
    NGX_HTTP_IDEM_LAYER_N
} ngx_http_idem_layer_e;


/* how a request differs from the one that its record was begun for */

typedef enum {
    NGX_HTTP_IDEM_CONFLICT_PAYLOAD = 0,
    NGX_HTTP_IDEM_CONFLICT_IDENTITY,
    NGX_HTTP_IDEM_CONFLICT_DUPLICATE,           /* not at all: rejected     */
    NGX_HTTP_IDEM_CONFLICT_N
} ngx_http_idem_conflict_e;


typedef struct {
    ngx_atomic_t  buckets[NGX_HTTP_IDEM_METRICS_BUCKETS + 1];
    ngx_atomic_t  sum;                          /* microseconds             */
} ngx_http_idem_histogram_t;


/* of one store */

typedef struct {
    u_char                     name[NGX_HTTP_IDEM_METRICS_NAME];
    size_t                     len;

    ngx_atomic_t               requests
                                     [NGX_HTTP_IDEM_METRICS_GROUPS + 1]
                                     [NGX_HTTP_IDEM_METRICS_STATUSES];
    ngx_atomic_t               counts[NGX_HTTP_IDEM_COUNT_N];
    ngx_atomic_t               operations
                                     [NGX_HTTP_IDEM_METRICS_OPERATIONS]
                                     [NGX_HTTP_IDEM_METRICS_RESULTS];
    ngx_http_idem_histogram_t  operation[NGX_HTTP_IDEM_METRICS_OPERATIONS];
    ngx_http_idem_histogram_t  wait[NGX_HTTP_IDEM_METRICS_GROUPS + 1]
                                   [NGX_HTTP_IDEM_WAITED_N];
    ngx_http_idem_histogram_t  lock_held[NGX_HTTP_IDEM_METRICS_GROUPS + 1];
    ngx_http_idem_histogram_t  lifetime[NGX_HTTP_IDEM_METRICS_GROUPS + 1];
                                                /* buckets: ..._ages        */
    /* configured groups, which are exported even if their counters are zero */
    ngx_atomic_t               grouped[NGX_HTTP_IDEM_METRICS_GROUPS + 1];

    ngx_atomic_t               created[NGX_HTTP_IDEM_LAYER_N];
    ngx_atomic_t               replays[NGX_HTTP_IDEM_LAYER_N];
    ngx_atomic_t               conflicts[NGX_HTTP_IDEM_CONFLICT_N];
    ngx_http_idem_histogram_t  duration[NGX_HTTP_IDEM_METRICS_GROUPS + 1]
                                       [2];     /* executed, or refused;
                                                   replayed                 */
    ngx_http_idem_histogram_t  replay_age;      /* buckets: ..._ages        */

    ngx_http_idem_history_t    history;
} ngx_http_idem_metrics_t;


typedef struct {
    uint32_t                   magic;
    uint32_t                   version;
    ngx_atomic_t               events_dropped;
    uint64_t                   started;         /* ms since 1970            */
    ngx_http_idem_metrics_t   *stores[NGX_HTTP_IDEM_METRICS_STORES];
    struct {
        u_char                 name[NGX_HTTP_IDEM_METRICS_NAME];
        size_t                 len;
    } groups[NGX_HTTP_IDEM_METRICS_GROUPS];
} ngx_http_idem_metrics_shared_t;


ngx_int_t ngx_http_idem_metrics_zone(ngx_conf_t *cf);

/* the metrics of a store; a store with a known name continues the old ones;
   may be NULL */
ngx_http_idem_metrics_t *ngx_http_idem_metrics_bind(ngx_str_t *store);

/* the index of a group, the same in all locations that name it */
ngx_uint_t ngx_http_idem_metrics_group(ngx_str_t *group);

/* the name of a group in metrics and events */
ngx_str_t ngx_http_idem_metrics_group_name(ngx_uint_t group);

void ngx_http_idem_metrics_count(ngx_http_idem_metrics_t *m,
    ngx_http_idem_count_e what);
void ngx_http_idem_metrics_replay(ngx_http_idem_metrics_t *m,
    ngx_http_idem_layer_e layer, uint64_t age);
void ngx_http_idem_metrics_observe(ngx_http_idem_histogram_t *h,
    const uint64_t *bounds, uint64_t usec);

/* lines of the event log were lost */
void ngx_http_idem_metrics_dropped(ngx_uint_t n);

/* a monotonic clock with microseconds */
uint64_t ngx_http_idem_metrics_clock(void);

/* for the status endpoint */
ngx_http_idem_metrics_shared_t *ngx_http_idem_metrics_read(void);

extern const uint64_t  ngx_http_idem_metrics_bounds[];            /* us */
extern const uint64_t  ngx_http_idem_metrics_ages[];              /* us */


#define ngx_http_idem_metrics_request(m, group, status)                       \
    (void) ngx_atomic_fetch_add(&(m)->requests[group][status], 1)

#define ngx_http_idem_metrics_operation(m, kind, result)                      \
    (void) ngx_atomic_fetch_add(&(m)->operations[kind][result], 1)

#define ngx_http_idem_metrics_created(m, layer)                               \
    (void) ngx_atomic_fetch_add(&(m)->created[layer], 1)

#define ngx_http_idem_metrics_conflict(m, kind)                               \
    (void) ngx_atomic_fetch_add(&(m)->conflicts[kind], 1)

#define ngx_http_idem_metrics_time(h, usec)                                   \
    ngx_http_idem_metrics_observe(h, ngx_http_idem_metrics_bounds, usec)

#define ngx_http_idem_metrics_latency(m, kind, usec)                          \
    ngx_http_idem_metrics_time(&(m)->operation[kind], usec)

#define ngx_http_idem_metrics_wait(m, group, result, msec)                    \
    ngx_http_idem_metrics_time(&(m)->wait[group][result],                     \
                               (uint64_t) (msec) * 1000)

#define ngx_http_idem_metrics_lock_held(m, group, msec)                       \
    ngx_http_idem_metrics_time(&(m)->lock_held[group],                        \
                               (uint64_t) (msec) * 1000)

#define ngx_http_idem_metrics_lifetime(m, group, msec)                        \
    ngx_http_idem_metrics_observe(&(m)->lifetime[group],                      \
                                  ngx_http_idem_metrics_ages,                 \
                                  (uint64_t) (msec) * 1000)

#define ngx_http_idem_metrics_duration(m, group, replayed, msec)              \
    ngx_http_idem_metrics_time(&(m)->duration[group][replayed],               \
                               (uint64_t) (msec) * 1000)


#endif /* _NGX_HTTP_IDEM_METRICS_H_INCLUDED_ */
