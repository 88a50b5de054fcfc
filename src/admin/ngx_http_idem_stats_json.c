
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Metrics as JSON, for the page and for clients without support for
 * Prometheus.  Times are in microseconds.  Histograms are pairs of an upper
 * bound and a count, not cumulative.
 *
 * Called by idempotency_stats; iterates over the table of metrics.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "admin/ngx_http_idem_metrics_table.h"


/* the JSON object being written, and an open object within it */

typedef struct {
    ngx_http_idem_text_t  *text;
    ngx_str_t              open;                /* its name; empty: none    */
    ngx_uint_t             comma;               /* before the next member   */
} ngx_http_idem_object_t;


static void ngx_http_idem_object_store(ngx_http_idem_object_t *j,
    ngx_http_idem_view_t *v, ngx_http_idem_main_conf_t *mcf,
    ngx_uint_t history);
static void ngx_http_idem_object_metrics(ngx_http_idem_object_t *j,
    ngx_http_idem_view_t *v, ngx_http_idem_from_e first,
    ngx_http_idem_from_e last);
static void ngx_http_idem_object_path(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f);
static void ngx_http_idem_object_close(ngx_http_idem_object_t *j);
static void ngx_http_idem_object_groups(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v);
static void ngx_http_idem_object_by(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v,
    ngx_uint_t group);
static void ngx_http_idem_object_value(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f, ngx_http_idem_histogram_t *h);
static void ngx_http_idem_object_histogram(ngx_http_idem_object_t *j,
    ngx_http_idem_histogram_t *h, const uint64_t *bounds);


static void
ngx_http_idem_object_member(ngx_http_idem_object_t *j, const char *name)
{
    ngx_http_idem_text(j->text, "%s\"%s\":", j->comma ? "," : "", name);
    j->comma = 1;
}


static void
ngx_http_idem_object_open(ngx_http_idem_object_t *j)
{
    ngx_http_idem_text(j->text, "{");
    j->comma = 0;
}


static void
ngx_http_idem_object_end(ngx_http_idem_object_t *j)
{
    ngx_http_idem_text(j->text, "}");
    j->comma = 1;
}


void
ngx_http_idem_stats_json(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf, ngx_uint_t history)
{
    uint64_t                 started;
    ngx_str_t                host;
    ngx_uint_t               i;
    ngx_http_idem_view_t     v;
    ngx_http_idem_object_t     j;
    ngx_http_idem_store_t  **store;

    ngx_memzero(&j, sizeof(ngx_http_idem_object_t));

    j.text = t;
    j.comma = 1;

    ngx_http_idem_text(t,
        "{\"version\":\"%s\",\"nginx\":\"%s\",\"pid\":%P,\"time\":%T.%03M",
        NGX_HTTP_IDEM_VERSION, NGINX_VERSION, ngx_pid, ngx_time(),
        (ngx_msec_t) ngx_timeofday()->msec);

    host = ngx_cycle->hostname;
    ngx_http_idem_admin_string(t, "host", &host);

    if (mcf->stores.nelts) {
        started = ngx_http_idem_metrics_read()->started;
        ngx_http_idem_text(t, ",\"uptime\":%uL",
                       (ngx_http_idem_history_now() - started) / 1000);
    }

    ngx_http_idem_view_nginx(&v, mcf);
    ngx_http_idem_object_metrics(&j, &v, NGX_HTTP_IDEM_FROM_NGINX,
                               NGX_HTTP_IDEM_FROM_NGINX);

    ngx_http_idem_text(t, ",\"stores\":[");

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {
        if (ngx_http_idem_stats_first(mcf, i)) {
            ngx_http_idem_text(t, "%s\n", i ? "," : "");
            ngx_http_idem_view(&v, store[i]);
            ngx_http_idem_object_store(&j, &v, mcf, history);
        }
    }

    ngx_http_idem_text(t, "\n]}\n");
}


static void
ngx_http_idem_object_store(ngx_http_idem_object_t *j, ngx_http_idem_view_t *v,
    ngx_http_idem_main_conf_t *mcf, ngx_uint_t history)
{
    ngx_uint_t                      slot, some, i;
    ngx_http_idem_fallback_t      **f;
    ngx_http_idem_node_counters_t  *node;

    ngx_http_idem_text(j->text, "{\"name\":\"%*s\",\"backend\":\"%V\"",
                       v->metrics->len, v->metrics->name,
                       &v->inner->backend->name);

    f = mcf->fallbacks.elts;

    for (i = 0; i < mcf->fallbacks.nelts; i++) {
        if (f[i]->declared == v->store) {
            ngx_http_idem_admin_string(j->text, "fallback",
                                       &f[i]->ledger->name);
            break;
        }
    }

    j->comma = 1;

    ngx_http_idem_object_metrics(j, v, NGX_HTTP_IDEM_FROM_STORE,
                               NGX_HTTP_IDEM_FROM_OUTBOX);

    if (v->store->nodes) {
        ngx_http_idem_text(j->text, ",\"nodes\":[");
        some = 0;

        for (slot = 1; slot <= NGX_HTTP_IDEM_NODES_MAX; slot++) {

            node = ngx_http_idem_view_node(v, slot);

            if (node) {
                ngx_http_idem_text(j->text, "%s{\"name\":\"%*s\"",
                                   some ? "," : "", node->len, node->name);
                some = 1;
                ngx_http_idem_object_metrics(j, v, NGX_HTTP_IDEM_FROM_NODE,
                                           NGX_HTTP_IDEM_FROM_NODE_BREAKER);
                ngx_http_idem_object_end(j);
            }
        }

        ngx_http_idem_text(j->text, "]");
    }

    ngx_http_idem_stats_lately(j->text, v->metrics, history);
    ngx_http_idem_object_end(j);
}


static void
ngx_http_idem_object_metrics(ngx_http_idem_object_t *j,
    ngx_http_idem_view_t *v, ngx_http_idem_from_e first,
    ngx_http_idem_from_e last)
{
    const ngx_http_idem_metric_t  *f;

    for (f = ngx_http_idem_metrics_table;
         f->from != NGX_HTTP_IDEM_FROM_N;
         f++)
    {

        if (f->json == NULL || f->from < first || f->from > last
            || v->from[f->from] == NULL)
        {
            continue;
        }

        ngx_http_idem_object_path(j, f);

        if (f->stride && f->type != NGX_HTTP_IDEM_HISTOGRAM) {
            ngx_http_idem_object_groups(j, f, v);

        } else {
            ngx_http_idem_object_by(j, f, v, NGX_HTTP_IDEM_ALL_GROUPS);
        }
    }

    ngx_http_idem_object_close(j);
}


/* opens the object of a metric, and writes the name of its member */

static void
ngx_http_idem_object_path(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f)
{
    u_char     *dot;
    ngx_str_t   name;

    name.data = (u_char *) f->json;
    name.len = 0;

    dot = (u_char *) ngx_strchr(f->json, '.');

    if (dot) {
        name.len = dot - name.data;
        dot++;
    }

    if (name.len != j->open.len
        || ngx_strncmp(name.data, j->open.data, name.len) != 0)
    {
        ngx_http_idem_object_close(j);

        if (name.len) {
            ngx_http_idem_text(j->text, "%s\"%V\":", j->comma ? "," : "",
                               &name);
            ngx_http_idem_object_open(j);
            j->open = name;
        }
    }

    if (dot == NULL) {
        dot = name.data;
    }

    if (*dot) {
        ngx_http_idem_object_member(j, (char *) dot);
    }
}


static void
ngx_http_idem_object_close(ngx_http_idem_object_t *j)
{
    if (j->open.len) {
        ngx_http_idem_object_end(j);
        j->open.len = 0;
    }
}


static void
ngx_http_idem_object_groups(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v)
{
    ngx_str_t   name;
    ngx_uint_t  g;

    ngx_http_idem_object_open(j);

    for (g = 0; g <= NGX_HTTP_IDEM_METRICS_OTHER; g++) {

        if (ngx_http_idem_metric_grouped(f, v, g)) {
            name = ngx_http_idem_metrics_group_name(g);
            ngx_http_idem_text(j->text, "%s\"%V\":", j->comma ? "," : "",
                               &name);
            ngx_http_idem_object_by(j, f, v, g);
        }
    }

    ngx_http_idem_object_end(j);
}


/* an object by the first label, with objects by the second label */

static void
ngx_http_idem_object_by(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v,
    ngx_uint_t group)
{
    ngx_uint_t                   i, k, spread;
    ngx_http_idem_histogram_t    h, *times;
    const ngx_http_idem_by_t    *by;

    by = f->by[0];

    if (by == NULL) {
        ngx_http_idem_metric_read(f, v, group, 0, 0, &h);
        ngx_http_idem_object_value(j, f, &h);
        return;
    }

    spread = (*f->json == '\0' || f->json[ngx_strlen(f->json) - 1] == '.');

    if (!spread) {
        ngx_http_idem_object_open(j);
    }

    for (i = by->first; i < by->n; i++) {
        ngx_http_idem_metric_read(f, v, group, i, 0, &h);

        if (group < NGX_HTTP_IDEM_ALL_GROUPS && h.sum == 0) {
            continue;
        }

        ngx_http_idem_object_member(j, by->members ? by->members[i]
                                                 : by->names[i]);

        if (f->by[1] == NULL) {
            ngx_http_idem_object_value(j, f, &h);
            continue;
        }

        ngx_http_idem_object_open(j);

        for (k = f->by[1]->first; k < f->by[1]->n; k++) {
            ngx_http_idem_metric_read(f, v, group, i, k, &h);
            ngx_http_idem_object_member(j, f->by[1]->names[k]);
            ngx_http_idem_object_value(j, f, &h);
        }

        if (f->times) {
            times = (ngx_http_idem_histogram_t *)
                                    ((u_char *) v->from[f->from] + f->times);
            ngx_http_idem_object_member(j, "time");
            ngx_http_idem_object_histogram(j, &times[i], f->bounds);
        }

        ngx_http_idem_object_end(j);
    }

    if (!spread) {
        ngx_http_idem_object_end(j);
    }
}


static void
ngx_http_idem_object_value(ngx_http_idem_object_t *j,
    const ngx_http_idem_metric_t *f, ngx_http_idem_histogram_t *h)
{
    if (f->type == NGX_HTTP_IDEM_HISTOGRAM) {
        ngx_http_idem_object_histogram(j, h, f->bounds);

    } else if (f->states) {
        ngx_http_idem_text(j->text, "\"%s\"", f->states[h->sum]);

    } else {
        ngx_http_idem_text(j->text, "%uA", h->sum);
    }
}


static void
ngx_http_idem_object_histogram(ngx_http_idem_object_t *j,
    ngx_http_idem_histogram_t *h, const uint64_t *bounds)
{
    ngx_uint_t  i;

    ngx_http_idem_text(j->text, "{\"sum\":%uA,\"buckets\":[", h->sum);

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        ngx_http_idem_text(j->text, "[%uL,%uA],", bounds[i], h->buckets[i]);
    }

    ngx_http_idem_text(j->text, "[null,%uA]]}", h->buckets[i]);
}
