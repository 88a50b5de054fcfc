
/*
 * The figures in the text format of Prometheus: a family after the other,
 * each with its help and type, all of its samples together.
 *
 * Called by the status endpoint.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_stats.h"
#include "request/ngx_http_idem_request.h"


typedef void (*ngx_http_idem_samples_pt)(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);


/* a family, and who writes the samples of a store with which "data" */

typedef struct {
    const char                *name;
    const char                *type;
    const char                *help;
    ngx_http_idem_samples_pt   samples;
    ngx_uint_t                 data;
} ngx_http_idem_family_t;


static void ngx_http_idem_samples_requests(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_status(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t status);
static void ngx_http_idem_samples_replays(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_conflicts(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_duration(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_age(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_count(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t what);
static void ngx_http_idem_samples_operations(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_operation(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_wait(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_lock_held(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data);
static void ngx_http_idem_samples_held(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t what);
static void ngx_http_idem_samples_histogram(ngx_http_idem_text_t *t,
    const char *name, ngx_str_t *labels, ngx_http_idem_histogram_t *h,
    const uint64_t *bounds);


/* what of ..._store_stats_t a family of samples_held() is */

#define NGX_HTTP_IDEM_HELD_RECORDS   0
#define NGX_HTTP_IDEM_HELD_BYTES     1
#define NGX_HTTP_IDEM_HELD_EVICTED   2
#define NGX_HTTP_IDEM_HELD_SIZE      3


static ngx_http_idem_family_t  ngx_http_idem_families[] = {

    { "requests_total", "counter",
      "Requests, by what became of them.",
      ngx_http_idem_samples_requests, 0 },

    { "replays_total", "counter",
      "Requests that were answered with a stored response, by layer.",
      ngx_http_idem_samples_replays, 0 },

    { "conflicts_total", "counter",
      "Requests whose key had been used with another request, by kind.",
      ngx_http_idem_samples_conflicts, 0 },

    { "request_duration_seconds", "histogram",
      "Time that requests took in all, by whether they were replayed.",
      ngx_http_idem_samples_duration, 0 },

    { "replay_age_seconds", "histogram",
      "How long ago that was received which was replayed.",
      ngx_http_idem_samples_age, 0 },

    { "expired_total", "counter",
      "Requests whose key had a record that expired.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_EXPIRED },

    { "unprotected_total", "counter",
      "Requests that ran without protection, since the store failed.",
      ngx_http_idem_samples_status,
      NGX_HTTP_IDEM_STATUS_UNPROTECTED },

    { "wait_seconds", "histogram",
      "Time that requests waited for another one, by how that ended.",
      ngx_http_idem_samples_wait, 0 },

    { "lock_held_seconds", "histogram",
      "Time that executions held the lock.",
      ngx_http_idem_samples_lock_held, 0 },

    { "lock_abandoned_total", "counter",
      "Locks whose lease ran out, and that were taken over.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_ABANDONED },

    { "lease_renewals_total", "counter",
      "Leases renewed while an execution ran.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_RENEWALS },

    { "lease_lost_total", "counter",
      "Executions that lost their lock to another request.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_LEASE_LOST },

    { "store_operations_total", "counter",
      "Operations of a store, by kind and result.",
      ngx_http_idem_samples_operations, 0 },

    { "store_operation_seconds", "histogram",
      "Time that operations of a store took, by kind.",
      ngx_http_idem_samples_operation, 0 },

    { "breaker_opened_total", "counter",
      "How often the breaker of a store opened.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_BREAKER_OPENED },

    { "breaker_rejected_total", "counter",
      "Operations that an open breaker did not let through.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_BREAKER_REJECTED },

    { "cache_hits_total", "counter",
      "Begins that the cache answered.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_CACHE_HITS },

    { "cache_misses_total", "counter",
      "Begins that the cache could not answer.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_CACHE_MISSES },

    { "commit_failures_total", "counter",
      "Commits that did not reach the store.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES },

    { "replicas_missed_total", "counter",
      "Commits that fewer replicas had in time than were wanted.",
      ngx_http_idem_samples_count,
      NGX_HTTP_IDEM_COUNT_REPLICAS_MISSED },

    { "records", "gauge",
      "Records that a store holds, by state.",
      ngx_http_idem_samples_held, NGX_HTTP_IDEM_HELD_RECORDS },

    { "store_bytes", "gauge",
      "Bytes of a store that are in use.",
      ngx_http_idem_samples_held, NGX_HTTP_IDEM_HELD_BYTES },

    { "store_size_bytes", "gauge",
      "Bytes that a store has room for in all.",
      ngx_http_idem_samples_held, NGX_HTTP_IDEM_HELD_SIZE },

    { "evictions_total", "counter",
      "Records that lost their response, since the store was full.",
      ngx_http_idem_samples_held, NGX_HTTP_IDEM_HELD_EVICTED },

    { NULL, NULL, NULL, NULL, 0 }
};


#define ngx_http_idem_store_label(store)                                      \
    (store)->metrics->len, (store)->metrics->name


void
ngx_http_idem_stats_prometheus(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf)
{
    ngx_uint_t                i;
    ngx_http_idem_store_t   **store;
    ngx_http_idem_family_t   *f;

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_build_info What is running.\n"
        "# TYPE nginx_idempotency_build_info gauge\n"
        "nginx_idempotency_build_info{version=\"%s\",nginx=\"%s\"} 1\n",
        NGX_HTTP_IDEM_VERSION, NGINX_VERSION);

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_waiters Requests that wait now.\n"
        "# TYPE nginx_idempotency_waiters gauge\n"
        "nginx_idempotency_waiters %ui\n",
        mcf->stores.nelts ? ngx_http_idem_waiters_all() : 0);

    if (mcf->stores.nelts) {
        ngx_http_idem_text(t,
            "# HELP nginx_idempotency_events_dropped_total Events that "
            "could not be written, or that there was no room for.\n"
            "# TYPE nginx_idempotency_events_dropped_total counter\n"
            "nginx_idempotency_events_dropped_total %uA\n",
            ngx_http_idem_metrics_read()->events_dropped);
    }

    store = mcf->stores.elts;

    for (f = ngx_http_idem_families; f->name; f++) {
        ngx_http_idem_text(t,
            "# HELP nginx_idempotency_%s %s\n"
            "# TYPE nginx_idempotency_%s %s\n",
            f->name, f->help, f->name, f->type);

        for (i = 0; i < mcf->stores.nelts; i++) {
            if (ngx_http_idem_stats_first(mcf, i)) {
                f->samples(t, store[i], f->name, f->data);
            }
        }
    }

    ngx_http_idem_stats_prometheus_layers(t, mcf);
}


static void
ngx_http_idem_samples_requests(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    ngx_str_t          group;
    ngx_uint_t         g, s;
    ngx_atomic_uint_t  all;

    for (g = 0; g <= NGX_HTTP_IDEM_METRICS_OTHER; g++) {

        all = 0;

        for (s = 1; s < NGX_HTTP_IDEM_METRICS_STATUSES; s++) {
            all += store->metrics->requests[g][s];
        }

        if (all == 0) {
            continue;
        }

        /* noughts as well: a rate() needs to have seen where it began */

        group = ngx_http_idem_metrics_group_name(g);

        for (s = 1; s < NGX_HTTP_IDEM_METRICS_STATUSES; s++) {
            ngx_http_idem_text(t,
                "nginx_idempotency_%s{store=\"%*s\",group=\"%V\","
                "outcome=\"%V\"} %uA\n",
                name, ngx_http_idem_store_label(store), &group,
                &ngx_http_idem_status_names[s],
                store->metrics->requests[g][s]);
        }
    }
}


/* one outcome of all groups */

static void
ngx_http_idem_samples_status(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t status)
{
    ngx_uint_t         g;
    ngx_atomic_uint_t  n;

    n = 0;

    for (g = 0; g <= NGX_HTTP_IDEM_METRICS_OTHER; g++) {
        n += store->metrics->requests[g][status];
    }

    ngx_http_idem_text(t,
        "nginx_idempotency_%s{store=\"%*s\"} %uA\n",
        name, ngx_http_idem_store_label(store), n);
}


static void
ngx_http_idem_samples_replays(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_LAYER_N; i++) {
        ngx_http_idem_text(t,
            "nginx_idempotency_%s{store=\"%*s\",layer=\"%s\"} %uA\n",
            name, ngx_http_idem_store_label(store),
            ngx_http_idem_layer_names[i], store->metrics->replays[i]);
    }
}


static void
ngx_http_idem_samples_conflicts(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_CONFLICT_N; i++) {
        ngx_http_idem_text(t,
            "nginx_idempotency_%s{store=\"%*s\",kind=\"%s\"} %uA\n",
            name, ngx_http_idem_store_label(store),
            ngx_http_idem_conflict_names[i], store->metrics->conflicts[i]);
    }
}


static void
ngx_http_idem_samples_duration(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    u_char      buf[256];
    ngx_str_t   labels;
    ngx_uint_t  i;

    labels.data = buf;

    for (i = 0; i < 2; i++) {
        labels.len = ngx_snprintf(buf, sizeof(buf),
                                  "store=\"%*s\",replayed=\"%s\"",
                                  ngx_http_idem_store_label(store),
                                  i ? "true" : "false")
                     - buf;

        ngx_http_idem_samples_histogram(t, name, &labels,
                                        &store->metrics->duration[i],
                                        ngx_http_idem_metrics_bounds);
    }
}


static void
ngx_http_idem_samples_age(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    u_char     buf[256];
    ngx_str_t  labels;

    labels.data = buf;
    labels.len = ngx_snprintf(buf, sizeof(buf), "store=\"%*s\"",
                              ngx_http_idem_store_label(store))
                 - buf;

    ngx_http_idem_samples_histogram(t, name, &labels,
                                    &store->metrics->replay_age,
                                    ngx_http_idem_metrics_ages);
}


static void
ngx_http_idem_samples_count(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t what)
{
    ngx_http_idem_text(t,
        "nginx_idempotency_%s{store=\"%*s\"} %uA\n",
        name, ngx_http_idem_store_label(store),
        store->metrics->counts[what]);
}


static void
ngx_http_idem_samples_operations(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    ngx_uint_t         k, r;
    ngx_atomic_uint_t  n;

    for (k = 0; k < NGX_HTTP_IDEM_OP_N; k++) {
        for (r = 0; r < NGX_HTTP_IDEM_METRICS_RESULTS; r++) {
            n = store->metrics->operations[k][r];

            /* not every kind has every result, but all may fail */

            if (n == 0 && r != NGX_HTTP_IDEM_ERROR) {
                continue;
            }

            ngx_http_idem_text(t,
                "nginx_idempotency_%s{store=\"%*s\",operation=\"%s\","
                "result=\"%s\"} %uA\n",
                name, ngx_http_idem_store_label(store),
                ngx_http_idem_op_names[k],
                ngx_http_idem_result_names[r], n);
        }
    }
}


static void
ngx_http_idem_samples_operation(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    u_char      buf[256];
    ngx_str_t   labels;
    ngx_uint_t  k;

    labels.data = buf;

    for (k = 0; k < NGX_HTTP_IDEM_OP_WATCH; k++) {
        labels.len = ngx_snprintf(buf, sizeof(buf),
                                  "store=\"%*s\",operation=\"%s\"",
                                  ngx_http_idem_store_label(store),
                                  ngx_http_idem_op_names[k])
                     - buf;

        ngx_http_idem_samples_histogram(t, name, &labels,
                                        &store->metrics->operation[k],
                                        ngx_http_idem_metrics_bounds);
    }
}


static void
ngx_http_idem_samples_wait(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    u_char      buf[256];
    ngx_str_t   labels;
    ngx_uint_t  w;

    labels.data = buf;

    for (w = 0; w < NGX_HTTP_IDEM_WAITED_N; w++) {
        labels.len = ngx_snprintf(buf, sizeof(buf),
                                  "store=\"%*s\",result=\"%s\"",
                                  ngx_http_idem_store_label(store),
                                  ngx_http_idem_waited_names[w])
                     - buf;

        ngx_http_idem_samples_histogram(t, name, &labels,
                                        &store->metrics->wait[w],
                                        ngx_http_idem_metrics_bounds);
    }
}


static void
ngx_http_idem_samples_lock_held(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t data)
{
    u_char     buf[256];
    ngx_str_t  labels;

    labels.data = buf;
    labels.len = ngx_snprintf(buf, sizeof(buf), "store=\"%*s\"",
                              ngx_http_idem_store_label(store))
                 - buf;

    ngx_http_idem_samples_histogram(t, name, &labels,
                                    &store->metrics->lock_held,
                                    ngx_http_idem_metrics_bounds);
}


/* seconds from microseconds, without a double: 0.00025 */

static void
ngx_http_idem_samples_histogram(ngx_http_idem_text_t *t,
    const char *name, ngx_str_t *labels, ngx_http_idem_histogram_t *h,
    const uint64_t *bounds)
{
    uint64_t           bound, sum;
    ngx_uint_t         i;
    ngx_atomic_uint_t  n;

    n = 0;

    for (i = 0; i < NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        bound = bounds[i];
        n += h->buckets[i];

        ngx_http_idem_text(t,
            "nginx_idempotency_%s_bucket{%V,le=\"%uL.%06uL\"} %uA\n",
            name, labels, bound / 1000000, bound % 1000000, n);
    }

    n += h->buckets[i];
    sum = h->sum;

    ngx_http_idem_text(t,
        "nginx_idempotency_%s_bucket{%V,le=\"+Inf\"} %uA\n"
        "nginx_idempotency_%s_sum{%V} %uL.%06uL\n"
        "nginx_idempotency_%s_count{%V} %uA\n",
        name, labels, n, name, labels, sum / 1000000, sum % 1000000,
        name, labels, n);
}


static void
ngx_http_idem_samples_held(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, const char *name, ngx_uint_t what)
{
    ngx_uint_t                   s;
    ngx_http_idem_store_stats_t  stats;

    if (store->backend->stats == NULL
        || store->backend->stats(store, &stats) != NGX_OK)
    {
        return;
    }

    if (what != NGX_HTTP_IDEM_HELD_RECORDS) {
        ngx_http_idem_text(t,
            "nginx_idempotency_%s{store=\"%*s\"} %uz\n",
            name, ngx_http_idem_store_label(store),
            what == NGX_HTTP_IDEM_HELD_BYTES ? stats.bytes
            : what == NGX_HTTP_IDEM_HELD_SIZE ? stats.size
                                             : (size_t) stats.evicted);
        return;
    }

    for (s = NGX_HTTP_IDEM_IN_PROGRESS;
         s <= NGX_HTTP_IDEM_UNUSABLE;
         s++)
    {
        ngx_http_idem_text(t,
            "nginx_idempotency_%s{store=\"%*s\",state=\"%s\"} %ui\n",
            name, ngx_http_idem_store_label(store),
            ngx_http_idem_state_names[s], stats.records[s]);
    }
}
