
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The table of figures: what each is called in Prometheus and in JSON, what it
 * counts, by which labels, and where it is.  The printers walk it; a figure
 * more is a line more.
 *
 * Figures are words or histograms, in shared memory or in the view of a store
 * that is made for one answer.
 */


#ifndef _NGX_HTTP_IDEM_FIGURES_H_INCLUDED_
#define _NGX_HTTP_IDEM_FIGURES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_stats.h"
#include "store/layers/ngx_http_idem_layers.h"


typedef enum {
    NGX_HTTP_IDEM_COUNTER = 0,
    NGX_HTTP_IDEM_GAUGE,
    NGX_HTTP_IDEM_HISTOGRAM
} ngx_http_idem_figure_e;


/* of what a figure is a part; a store may have none of some */

typedef enum {
    NGX_HTTP_IDEM_FROM_NGINX = 0,               /* ..._view_nginx_t         */
    NGX_HTTP_IDEM_FROM_STORE,                   /* ..._metrics_t            */
    NGX_HTTP_IDEM_FROM_HELD,                    /* ..._store_stats_t        */
    NGX_HTTP_IDEM_FROM_ZONE,                    /* ... of shared memory     */
    NGX_HTTP_IDEM_FROM_SIZE,                    /* ... if it is limited     */
    NGX_HTTP_IDEM_FROM_USED,                    /* a word                   */
    NGX_HTTP_IDEM_FROM_BREAKER,                 /* a word                   */
    NGX_HTTP_IDEM_FROM_SERVER,                  /* ..._view_server_t        */
    NGX_HTTP_IDEM_FROM_SCAN,                    /* ..._view_scan_t          */
    NGX_HTTP_IDEM_FROM_OUTBOX,                  /* ..._view_outbox_t        */
    NGX_HTTP_IDEM_FROM_NODE,                    /* ..._node_figures_t       */
    NGX_HTTP_IDEM_FROM_NODE_BREAKER,            /* a word                   */
    NGX_HTTP_IDEM_FROM_N
} ngx_http_idem_from_e;


/* a label: an index into an array of figures */

typedef struct {
    const char                     *label;
    const char                    **names;
    const char                    **members;    /* in JSON; NULL: as names  */
    ngx_uint_t                      first;
    ngx_uint_t                      n;
} ngx_http_idem_by_t;


typedef struct {
    const char                     *name;       /* NULL: only in JSON       */
    const char                     *json;       /* "member", "object.member",
                                                   "object." where the labels
                                                   are members of the object;
                                                   NULL: only in Prometheus */
    const char                     *help;
    ngx_http_idem_figure_e          type;
    ngx_http_idem_from_e            from;
    size_t                          offset;
    size_t                          stride;     /* from group to group; 0: it
                                                   has none                 */
    const ngx_http_idem_by_t       *by[2];      /* or NULL                  */

    const uint64_t                 *bounds;     /* of a histogram           */
    const char                    **states;     /* a word in JSON           */
    size_t                          times;      /* JSON: a histogram for each
                                                   of by[0], as "time"      */
    unsigned                        all:1;      /* groups are added up      */
    unsigned                        sparse:1;   /* Prometheus: noughts are left
                                                   out, but of the last     */
} ngx_http_idem_figure_t;


typedef struct {
    ngx_uint_t                      waiters;
    ngx_uint_t                      events_dropped;
} ngx_http_idem_view_nginx_t;


/* of a store that is elsewhere */

typedef struct {
    ngx_uint_t                      up;
    ngx_uint_t                      queued;
} ngx_http_idem_view_server_t;


/* seconds */

typedef struct {
    ngx_uint_t                      oldest;     /* lock                     */
    ngx_uint_t                      age;        /* of what was found        */
} ngx_http_idem_view_scan_t;


typedef struct {
    ngx_uint_t                      waiting;
    ngx_uint_t                      unacknowledged;
    ngx_http_idem_outbox_figures_t  figures;
} ngx_http_idem_view_outbox_t;


/* what there is of a store, for one answer */

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


/* instead of a group: all of them */
#define NGX_HTTP_IDEM_ALL_GROUPS  (NGX_HTTP_IDEM_METRICS_OTHER + 1)


void ngx_http_idem_view(ngx_http_idem_view_t *v, ngx_http_idem_store_t *store);
void ngx_http_idem_view_nginx(ngx_http_idem_view_t *v,
    ngx_http_idem_main_conf_t *mcf);

/* the view is of the node at that place; NULL: there is none */
ngx_http_idem_node_figures_t *ngx_http_idem_view_node(ngx_http_idem_view_t *v,
    ngx_uint_t place);

/* a figure by its indices; a word is in h->sum */
void ngx_http_idem_figure_read(const ngx_http_idem_figure_t *f,
    ngx_http_idem_view_t *v, ngx_uint_t group, ngx_uint_t i, ngx_uint_t j,
    ngx_http_idem_histogram_t *h);

/* whether a group has samples of a figure */
ngx_uint_t ngx_http_idem_figure_grouped(const ngx_http_idem_figure_t *f,
    ngx_http_idem_view_t *v, ngx_uint_t group);

#define ngx_http_idem_by_first(f, k)                                          \
    ((f)->by[k] ? (f)->by[k]->first : 0)
#define ngx_http_idem_by_n(f, k)  ((f)->by[k] ? (f)->by[k]->n : 1)


extern const ngx_http_idem_figure_t  ngx_http_idem_figures[];


#endif /* _NGX_HTTP_IDEM_FIGURES_H_INCLUDED_ */
