
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Metrics in the text format of Prometheus: each family with its help, type
 * and all of its samples.
 *
 * Called by idempotency_stats; iterates over the table of metrics.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_metrics_table.h"


/* maximum length of the labels of a sample */
#define NGX_HTTP_IDEM_LABELS_LEN  512


static void ngx_http_idem_samples(ngx_http_idem_text_t *t,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v,
    ngx_http_idem_node_counters_t *node);
static u_char *ngx_http_idem_bound(u_char *p, uint64_t usec);
static void ngx_http_idem_sample(ngx_http_idem_text_t *t,
    const ngx_http_idem_metric_t *f, ngx_http_idem_histogram_t *h,
    ngx_str_t *labels);
static void ngx_http_idem_sample_nodes(ngx_http_idem_text_t *t,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v);
static u_char *ngx_http_idem_label_by(u_char *p, u_char *last,
    ngx_uint_t comma, const ngx_http_idem_by_t *by, ngx_uint_t i);


static const char  *ngx_http_idem_type_names[] = {
    "counter", "gauge", "histogram"
};


void
ngx_http_idem_stats_prometheus(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf)
{
    ngx_uint_t                     i, n;
    ngx_http_idem_view_t          *v, nginx;
    ngx_http_idem_store_t        **store;
    const ngx_http_idem_metric_t  *f;

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_build_info What is running.\n"
        "# TYPE nginx_idempotency_build_info gauge\n"
        "nginx_idempotency_build_info{version=\"%s\",nginx=\"%s\"} 1\n",
        NGX_HTTP_IDEM_VERSION, NGINX_VERSION);

    ngx_http_idem_view_nginx(&nginx, mcf);

    store = mcf->stores.elts;
    n = 0;

    v = ngx_palloc(t->pool, mcf->stores.nelts * sizeof(ngx_http_idem_view_t));

    if (v == NULL) {
        t->failed = 1;
        return;
    }

    for (i = 0; i < mcf->stores.nelts; i++) {
        if (ngx_http_idem_stats_first(mcf, i)) {
            ngx_http_idem_view(&v[n++], store[i]);
        }
    }

    for (f = ngx_http_idem_metrics_table;
         f->from != NGX_HTTP_IDEM_FROM_N;
         f++)
    {

        if (f->name == NULL) {
            continue;
        }

        ngx_http_idem_text(t,
            "# HELP nginx_idempotency_%s %s\n"
            "# TYPE nginx_idempotency_%s %s\n",
            f->name, f->help, f->name, ngx_http_idem_type_names[f->type]);

        if (f->from == NGX_HTTP_IDEM_FROM_NGINX) {
            ngx_http_idem_samples(t, f, &nginx, NULL);
            continue;
        }

        for (i = 0; i < n; i++) {
            if (f->from == NGX_HTTP_IDEM_FROM_NODE
                || f->from == NGX_HTTP_IDEM_FROM_NODE_BREAKER)
            {
                ngx_http_idem_sample_nodes(t, f, &v[i]);

            } else {
                ngx_http_idem_samples(t, f, &v[i], NULL);
            }
        }
    }
}


/* none for a store with one server: its metrics are those of the store */

static void
ngx_http_idem_sample_nodes(ngx_http_idem_text_t *t,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v)
{
    ngx_uint_t                      slot;
    ngx_http_idem_node_counters_t  *node;

    for (slot = 1; slot <= NGX_HTTP_IDEM_NODES_MAX; slot++) {

        node = ngx_http_idem_view_node(v, slot);

        if (node) {
            ngx_http_idem_samples(t, f, v, node);
        }
    }
}


static void
ngx_http_idem_samples(ngx_http_idem_text_t *t,
    const ngx_http_idem_metric_t *f, ngx_http_idem_view_t *v,
    ngx_http_idem_node_counters_t *node)
{
    u_char                     *p, *last, *end;
    u_char                      buf[NGX_HTTP_IDEM_LABELS_LEN];
    ngx_str_t                   text, name;
    ngx_uint_t                  g, i, j, grouped;
    ngx_http_idem_histogram_t   h;

    if (v->from[f->from] == NULL) {
        return;
    }

    grouped = (f->stride && !f->all);
    g = grouped ? 0 : NGX_HTTP_IDEM_ALL_GROUPS;

    last = buf + sizeof(buf);
    text.data = buf;

    for ( /* void */ ; g <= NGX_HTTP_IDEM_ALL_GROUPS; g++) {

        end = buf;

        if (v->metrics) {
            end = ngx_slprintf(end, last, "store=\"%*s\"", v->metrics->len,
                               v->metrics->name);
        }

        if (node) {
            end = ngx_slprintf(end, last, ",node=\"%*s\"", node->len,
                               node->name);
        }

        if (grouped) {
            if (g == NGX_HTTP_IDEM_ALL_GROUPS) {
                return;
            }

            if (!ngx_http_idem_metric_grouped(f, v, g)) {
                continue;
            }

            name = ngx_http_idem_metrics_group_name(g);
            end = ngx_slprintf(end, last, ",group=\"%V\"", &name);
        }

        for (i = ngx_http_idem_by_first(f, 0);
             i < ngx_http_idem_by_n(f, 0);
             i++)
        {
            for (j = ngx_http_idem_by_first(f, 1);
                 j < ngx_http_idem_by_n(f, 1);
                 j++)
            {
                ngx_http_idem_metric_read(f, v, g, i, j, &h);

                /* not all operations have all results, but each may fail */

                if (f->sparse && h.sum == 0
                    && j + 1 < ngx_http_idem_by_n(f, 1))
                {
                    continue;
                }

                p = ngx_http_idem_label_by(end, last, end != buf, f->by[0],
                                           i);
                p = ngx_http_idem_label_by(p, last, p != buf, f->by[1], j);

                text.len = p - buf;
                ngx_http_idem_sample(t, f, &h, &text);
            }
        }
    }
}


static u_char *
ngx_http_idem_label_by(u_char *p, u_char *last, ngx_uint_t comma,
    const ngx_http_idem_by_t *by, ngx_uint_t i)
{
    if (by == NULL) {
        return p;
    }

    return ngx_slprintf(p, last, "%s%s=\"%s\"", comma ? "," : "", by->label,
                        by->names[i]);
}


/* microseconds as seconds, without floating point */

static void
ngx_http_idem_sample(ngx_http_idem_text_t *t,
    const ngx_http_idem_metric_t *f, ngx_http_idem_histogram_t *h,
    ngx_str_t *labels)
{
    u_char             buf[sizeof("18446744073709.551615")];
    uint64_t           sum;
    ngx_str_t          bound;
    ngx_uint_t         i;
    ngx_atomic_uint_t  n;

    if (f->type != NGX_HTTP_IDEM_HISTOGRAM) {
        ngx_http_idem_text(t, "nginx_idempotency_%s%s%V%s %uA\n", f->name,
                           labels->len ? "{" : "", labels,
                           labels->len ? "}" : "", h->sum);
        return;
    }

    n = 0;

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        bound.data = buf;
        bound.len = ngx_http_idem_bound(buf, f->bounds[i]) - buf;
        n += h->buckets[i];

        ngx_http_idem_text(t,
            "nginx_idempotency_%s_bucket{%V,le=\"%V\"} %uA\n",
            f->name, labels, &bound, n);
    }

    n += h->buckets[i];
    sum = h->sum;

    ngx_http_idem_text(t,
        "nginx_idempotency_%s_bucket{%V,le=\"+Inf\"} %uA\n",
        f->name, labels, n);
    ngx_http_idem_text(t, "nginx_idempotency_%s_sum{%V} %uL.%06uL\n",
        f->name, labels, sum / 1000000, sum % 1000000);
    ngx_http_idem_text(t, "nginx_idempotency_%s_count{%V} %uA\n",
        f->name, labels, n);
}


/* a bound as people write it in a query: 0.00025, 0.5, 10 */

static u_char *
ngx_http_idem_bound(u_char *p, uint64_t usec)
{
    p = ngx_sprintf(p, "%uL.%06uL", usec / 1000000, usec % 1000000);

    while (p[-1] == '0') {
        p--;
    }

    return p[-1] == '.' ? p - 1 : p;
}
