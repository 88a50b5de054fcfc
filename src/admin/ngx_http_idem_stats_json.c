
/*
 * The figures as JSON: for the page, and for whoever does not speak
 * Prometheus.  Times are in microseconds; histograms are pairs of an upper
 * bound and a count, not cumulative.
 *
 * Called by the status endpoint.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_stats.h"
#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_stats_store(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_stats_requests(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_stats_operations(
    ngx_http_idem_text_t *t, ngx_http_idem_store_t *store);
static void ngx_http_idem_stats_histogram(
    ngx_http_idem_text_t *t, ngx_http_idem_histogram_t *h,
    const uint64_t *bounds);
static void ngx_http_idem_stats_answers(ngx_http_idem_text_t *t,
    ngx_http_idem_metrics_t *m);
static void ngx_http_idem_stats_held(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store);


static const char  *ngx_http_idem_count_names[] = {
    "lock_abandoned", "lease_renewals", "lease_lost", "commit_failures",
    "breaker_opened", "breaker_rejected", "cache_hits", "cache_misses",
    "replicas_missed", "expired"
};


void
ngx_http_idem_stats_json(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf)
{
    ngx_uint_t               i;
    ngx_http_idem_store_t  **store;

    ngx_http_idem_text(t,
        "{\"version\":\"%s\",\"nginx\":\"%s\",\"pid\":%P,\"time\":%T.%03M,"
        "\"waiters\":%ui,\"events_dropped\":%uA,\"stores\":[",
        NGX_HTTP_IDEM_VERSION, NGINX_VERSION, ngx_pid, ngx_time(),
        (ngx_msec_t) ngx_timeofday()->msec,
        mcf->stores.nelts ? ngx_http_idem_waiters_all() : 0,
        mcf->stores.nelts ? ngx_http_idem_metrics_read()->events_dropped
                          : 0);

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {
        if (ngx_http_idem_stats_first(mcf, i)) {
            ngx_http_idem_text(t, "%s\n", i ? "," : "");
            ngx_http_idem_stats_store(t, store[i]);
        }
    }

    ngx_http_idem_text(t, "\n]}\n");
}


static void
ngx_http_idem_stats_store(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t  i;

    ngx_http_idem_text(t, "{\"name\":\"%*s\",\"backend\":\"%V\",",
                       store->metrics->len, store->metrics->name,
                       &store->backend->name);

    ngx_http_idem_stats_requests(t, store);
    ngx_http_idem_stats_operations(t, store);

    ngx_http_idem_text(t, "\"wait\":{");

    for (i = 0; i < NGX_HTTP_IDEM_WAITED_N; i++) {
        ngx_http_idem_text(t, "%s\"%s\":", i ? "," : "",
                           ngx_http_idem_waited_names[i]);
        ngx_http_idem_stats_histogram(t, &store->metrics->wait[i],
                                      ngx_http_idem_metrics_bounds);
    }

    ngx_http_idem_text(t, "},\"lock_held\":");
    ngx_http_idem_stats_histogram(t, &store->metrics->lock_held,
                                  ngx_http_idem_metrics_bounds);

    ngx_http_idem_stats_answers(t, store->metrics);

    ngx_http_idem_text(t, ",\"counts\":{");

    for (i = 0; i < NGX_HTTP_IDEM_COUNT_N; i++) {
        ngx_http_idem_text(t, "%s\"%s\":%uA", i ? "," : "",
                           ngx_http_idem_count_names[i],
                           store->metrics->counts[i]);
    }

    ngx_http_idem_text(t, "}");
    ngx_http_idem_stats_held(t, store);
    ngx_http_idem_stats_json_layers(t, store);
    ngx_http_idem_text(t, "}");
}


static void
ngx_http_idem_stats_requests(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store)
{
    ngx_str_t          name;
    ngx_uint_t         g, s, some, any;
    ngx_atomic_uint_t  n;

    any = 0;

    ngx_http_idem_text(t, "\"requests\":{");

    for (g = 0; g <= NGX_HTTP_IDEM_METRICS_OTHER; g++) {

        name = ngx_http_idem_metrics_group_name(g);
        some = 0;

        for (s = 1; s < NGX_HTTP_IDEM_METRICS_STATUSES; s++) {
            n = store->metrics->requests[g][s];

            if (n == 0) {
                continue;
            }

            if (!some) {
                ngx_http_idem_text(t, "%s\"%V\":{", any ? "," : "",
                                   &name);
            }

            ngx_http_idem_text(t, "%s\"%V\":%uA", some ? "," : "",
                               &ngx_http_idem_status_names[s],
                               n);
            some = 1;
            any = 1;
        }

        if (some) {
            ngx_http_idem_text(t, "}");
        }
    }

    ngx_http_idem_text(t, "},");
}


static void
ngx_http_idem_stats_operations(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t  k, r;

    ngx_http_idem_text(t, "\"operations\":{");

    for (k = 0; k < NGX_HTTP_IDEM_OP_N; k++) {
        ngx_http_idem_text(t, "%s\"%s\":{", k ? "," : "",
                           ngx_http_idem_op_names[k]);

        for (r = 0; r < NGX_HTTP_IDEM_METRICS_RESULTS; r++) {
            ngx_http_idem_text(t, "\"%s\":%uA,",
                               ngx_http_idem_result_names[r],
                               store->metrics->operations[k][r]);
        }

        ngx_http_idem_text(t, "\"time\":");
        ngx_http_idem_stats_histogram(t, &store->metrics->operation[k],
                                      ngx_http_idem_metrics_bounds);
        ngx_http_idem_text(t, "}");
    }

    ngx_http_idem_text(t, "},");
}


/* how requests were answered without being run, and how long they took */

static void
ngx_http_idem_stats_answers(ngx_http_idem_text_t *t,
    ngx_http_idem_metrics_t *m)
{
    ngx_uint_t  i;

    ngx_http_idem_text(t, ",\"replays\":{");

    for (i = 0; i < NGX_HTTP_IDEM_LAYER_N; i++) {
        ngx_http_idem_text(t, "%s\"%s\":%uA", i ? "," : "",
                           ngx_http_idem_layer_names[i], m->replays[i]);
    }

    ngx_http_idem_text(t, "},\"conflicts\":{");

    for (i = 0; i < NGX_HTTP_IDEM_CONFLICT_N; i++) {
        ngx_http_idem_text(t, "%s\"%s\":%uA", i ? "," : "",
                           ngx_http_idem_conflict_names[i], m->conflicts[i]);
    }

    ngx_http_idem_text(t, "},\"request_duration\":{\"replayed\":");
    ngx_http_idem_stats_histogram(t, &m->duration[1],
                                  ngx_http_idem_metrics_bounds);

    ngx_http_idem_text(t, ",\"not_replayed\":");
    ngx_http_idem_stats_histogram(t, &m->duration[0],
                                  ngx_http_idem_metrics_bounds);

    ngx_http_idem_text(t, "},\"replay_age\":");
    ngx_http_idem_stats_histogram(t, &m->replay_age,
                                  ngx_http_idem_metrics_ages);
}


static void
ngx_http_idem_stats_histogram(ngx_http_idem_text_t *t,
    ngx_http_idem_histogram_t *h, const uint64_t *bounds)
{
    ngx_uint_t  i;

    ngx_http_idem_text(t, "{\"sum\":%uA,\"buckets\":[", h->sum);

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        ngx_http_idem_text(t, "[%uL,%uA],",
                           bounds[i], h->buckets[i]);
    }

    ngx_http_idem_text(t, "[null,%uA]]}", h->buckets[i]);
}


static void
ngx_http_idem_stats_held(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t                   s;
    ngx_http_idem_store_stats_t  stats;

    if (store->backend->stats == NULL
        || store->backend->stats(store, &stats) != NGX_OK)
    {
        return;
    }

    ngx_http_idem_text(t, ",\"bytes\":%uz,\"size\":%uz,"
                       "\"evicted\":%ui,\"records\":{",
                       stats.bytes, stats.size, stats.evicted);

    for (s = NGX_HTTP_IDEM_IN_PROGRESS;
         s <= NGX_HTTP_IDEM_UNUSABLE;
         s++)
    {
        ngx_http_idem_text(t, "%s\"%s\":%ui",
                           s == NGX_HTTP_IDEM_IN_PROGRESS
                               ? "" : ",",
                           ngx_http_idem_state_names[s],
                           stats.records[s]);
    }

    ngx_http_idem_text(t, "}");
}
