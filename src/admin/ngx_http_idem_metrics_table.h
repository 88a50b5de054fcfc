
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The table of metrics: names in Prometheus and in JSON, help, type, labels,
 * and location in memory.  The printers iterate over it; a new metric is a
 * new row.
 *
 * Metrics are integers or histograms, in shared memory or in a view of a
 * store that is made for one response.
 */


#ifndef _NGX_HTTP_IDEM_METRICS_TABLE_H_INCLUDED_
#define _NGX_HTTP_IDEM_METRICS_TABLE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_stats.h"
#include "store/layers/ngx_http_idem_layers.h"


typedef enum {
    NGX_HTTP_IDEM_COUNTER = 0,
    NGX_HTTP_IDEM_GAUGE,
    NGX_HTTP_IDEM_HISTOGRAM
} ngx_http_idem_metric_e;


/* the structure that a metric is in; a store may lack some of them */

typedef enum {
    NGX_HTTP_IDEM_FROM_NGINX = 0,               /* ..._view_nginx_t         */
    NGX_HTTP_IDEM_FROM_STORE,                   /* ..._metrics_t            */
    NGX_HTTP_IDEM_FROM_HELD,                    /* ..._store_stats_t        */
    NGX_HTTP_IDEM_FROM_ZONE,                    /* same, of shared memory   */
    NGX_HTTP_IDEM_FROM_SIZE,                    /* same, with a size limit  */
    NGX_HTTP_IDEM_FROM_PURGED,                  /* same, of what is purged  */
    NGX_HTTP_IDEM_FROM_USED,                    /* an integer               */
    NGX_HTTP_IDEM_FROM_BREAKER,                 /* an integer               */
    NGX_HTTP_IDEM_FROM_SERVER,                  /* ..._view_server_t        */
    NGX_HTTP_IDEM_FROM_SCAN,                    /* ..._view_scan_t          */
    NGX_HTTP_IDEM_FROM_OUTBOX,                  /* ..._view_outbox_t        */
    NGX_HTTP_IDEM_FROM_NODE,                    /* ..._node_counters_t      */
    NGX_HTTP_IDEM_FROM_NODE_BREAKER,            /* an integer               */
    NGX_HTTP_IDEM_FROM_N
} ngx_http_idem_from_e;


/* a label: an index into an array of metrics */

typedef struct {
    const char                     *label;
    const char                    **names;
    const char                    **members;    /* in JSON; NULL: as names  */
    ngx_uint_t                      first;
    ngx_uint_t                      n;
} ngx_http_idem_by_t;


typedef struct {
    const char                     *name;       /* NULL: only in JSON       */
    const char                     *json;       /* "member",
                                                   "object.member", or
                                                   "object." if the labels
                                                   are members of the
                                                   object; NULL: only in
                                                   Prometheus               */
    const char                     *help;
    ngx_http_idem_metric_e          type;
    ngx_http_idem_from_e            from;
    size_t                          offset;
    size_t                          stride;     /* between groups; 0: not
                                                   by group                 */
    const ngx_http_idem_by_t       *by[2];      /* or NULL                  */

    const uint64_t                 *bounds;     /* of a histogram           */
    const char                    **states;     /* names of values in JSON  */
    size_t                          times;      /* offset of histograms by
                                                   by[0], "time" in JSON    */
    unsigned                        all:1;      /* sum of all groups        */
    unsigned                        sparse:1;   /* Prometheus: omit zeros,
                                                   except for the last
                                                   label                    */
} ngx_http_idem_metric_t;


typedef struct {
    ngx_uint_t                      waiters;
    ngx_uint_t                      events_dropped;
} ngx_http_idem_view_nginx_t;


/* of a remote store */

typedef struct {
    ngx_uint_t                      up;
    ngx_uint_t                      queued;
} ngx_http_idem_view_server_t;


/* times are in seconds */

typedef struct {
    ngx_uint_t                      oldest;     /* age of the oldest lock   */
    ngx_uint_t                      age;        /* since the scan           */
    ngx_uint_t                      locks[NGX_HTTP_IDEM_HISTORY_AGES];
} ngx_http_idem_view_scan_t;


typedef struct {
    ngx_uint_t                      waiting;
    ngx_uint_t                      unacknowledged;
    ngx_http_idem_outbox_counters_t  counters;
} ngx_http_idem_view_outbox_t;


/* the data of a store, for one response */

typedef struct {
    ngx_http_idem_store_t          *store;
    ngx_http_idem_store_t          *inner;      /* without its layers       */
    ngx_http_idem_metrics_t        *metrics;
    void                           *from[NGX_HTTP_IDEM_FROM_N];

    ngx_http_idem_view_nginx_t      nginx;
    ngx_http_idem_store_stats_t     held;
    ngx_uint_t                      used;
    ngx_uint_t                      breaker;
    ngx_http_idem_view_server_t     server;
    ngx_http_idem_view_scan_t       scan;
    ngx_http_idem_view_outbox_t     outbox;
    ngx_uint_t                      node_breaker;
} ngx_http_idem_view_t;


/* instead of a group: all groups */
#define NGX_HTTP_IDEM_ALL_GROUPS  (NGX_HTTP_IDEM_METRICS_OTHER + 1)


void ngx_http_idem_view(ngx_http_idem_view_t *v, ngx_http_idem_store_t *store);
void ngx_http_idem_view_nginx(ngx_http_idem_view_t *v,
    ngx_http_idem_main_conf_t *mcf);

/* selects a node of the view by its index; NULL: there is none */
ngx_http_idem_node_counters_t *ngx_http_idem_view_node(ngx_http_idem_view_t *v,
    ngx_uint_t slot);

/* reads a metric by its indexes; an integer is returned in h->sum */
void ngx_http_idem_metric_read(const ngx_http_idem_metric_t *f,
    ngx_http_idem_view_t *v, ngx_uint_t group, ngx_uint_t i, ngx_uint_t j,
    ngx_http_idem_histogram_t *h);

/* whether a group has samples of a metric */
ngx_uint_t ngx_http_idem_metric_grouped(const ngx_http_idem_metric_t *f,
    ngx_http_idem_view_t *v, ngx_uint_t group);

#define ngx_http_idem_by_first(f, k)                                          \
    ((f)->by[k] ? (f)->by[k]->first : 0)
#define ngx_http_idem_by_n(f, k)  ((f)->by[k] ? (f)->by[k]->n : 1)


extern const ngx_http_idem_metric_t  ngx_http_idem_metrics_table[];


#endif /* _NGX_HTTP_IDEM_METRICS_TABLE_H_INCLUDED_ */
