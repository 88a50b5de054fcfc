
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The table of metrics, and functions that read them.
 *
 * Called by the printers of idempotency_stats.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_metrics_table.h"
#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_view_scanned(ngx_http_idem_view_t *v,
    ngx_http_idem_scanned_t *scanned);


static const char  *ngx_http_idem_result_names[] = {
    "ok", "acquired", "found", "lost", "gone", "full", "error"
};

static const char  *ngx_http_idem_waited_names[] = {
    "answered", "acquired", "timeout", "gone"
};

static const char  *ngx_http_idem_layer_names[] = { "key", "body", "json" };

const char  *ngx_http_idem_conflict_names[] = {
    "payload", "identity", "duplicate"
};

static const char  *ngx_http_idem_replayed_names[] = { "false", "true" };
static const char  *ngx_http_idem_replayed_members[] = {
    "not_replayed", "replayed"
};

static const char  *ngx_http_idem_outbox_names[] = {
    "kept", "landed", "lost", "dropped"
};

static const char  *ngx_http_idem_breaker_names[] = {
    "closed", "open", "half-open"
};

static const char  *ngx_http_idem_age_names[] = { "0-1m", "1-5m", "5m+" };

const char  *ngx_http_idem_state_names[] = {
    "", "in_progress", "completed", "unusable"
};


#define ngx_http_idem_by(name, label, names, members, first, n)               \
    static const ngx_http_idem_by_t  ngx_http_idem_by_##name = {              \
        label, names, members, first, n                                       \
    }

ngx_http_idem_by(outcome, "outcome", ngx_http_idem_status_names, NULL, 1,
                 NGX_HTTP_IDEM_METRICS_STATUSES);
ngx_http_idem_by(layer, "layer", ngx_http_idem_layer_names, NULL, 0,
                 NGX_HTTP_IDEM_LAYER_N);
ngx_http_idem_by(kind, "kind", ngx_http_idem_conflict_names, NULL, 0,
                 NGX_HTTP_IDEM_CONFLICT_N);
ngx_http_idem_by(replayed, "replayed", ngx_http_idem_replayed_names,
                 ngx_http_idem_replayed_members, 0, 2);
ngx_http_idem_by(waited, "result", ngx_http_idem_waited_names, NULL, 0,
                 NGX_HTTP_IDEM_WAITED_N);
ngx_http_idem_by(operation, "operation", ngx_http_idem_op_names, NULL, 0,
                 NGX_HTTP_IDEM_OP_N);
ngx_http_idem_by(timed, "operation", ngx_http_idem_op_names, NULL, 0,
                 NGX_HTTP_IDEM_OP_WATCH);
ngx_http_idem_by(result, "result", ngx_http_idem_result_names, NULL, 0,
                 NGX_HTTP_IDEM_METRICS_RESULTS);
ngx_http_idem_by(state, "state", ngx_http_idem_state_names, NULL,
                 NGX_HTTP_IDEM_IN_PROGRESS, NGX_HTTP_IDEM_UNUSABLE + 1);
ngx_http_idem_by(age, "age", ngx_http_idem_age_names, NULL, 0,
                 NGX_HTTP_IDEM_HISTORY_AGES);
ngx_http_idem_by(outbox, "result", ngx_http_idem_outbox_names, NULL, 0, 4);
ngx_http_idem_by(node, "result", ngx_http_idem_node_counts, NULL, 0,
                 NGX_HTTP_IDEM_NODE_N);


/* an integer, or an array of integers by a label */

#define ngx_http_idem_word(name, json, help, type, from, offset, by)          \
    { name, json, help, NGX_HTTP_IDEM_##type, NGX_HTTP_IDEM_FROM_##from,      \
      offset, 0, { by, NULL }, NULL, NULL, 0, 0, 0 }

#define ngx_http_idem_state(name, json, help, from)                           \
    { name, json, help, NGX_HTTP_IDEM_GAUGE, NGX_HTTP_IDEM_FROM_##from,       \
      0, 0, { NULL, NULL }, NULL, ngx_http_idem_breaker_names, 0, 0, 0 }

#define ngx_http_idem_count(what, name, help)                                 \
    ngx_http_idem_word(name "_total", "counts." name, help, COUNTER, STORE,   \
        offsetof(ngx_http_idem_metrics_t, counts)                             \
        + NGX_HTTP_IDEM_COUNT_##what * sizeof(ngx_atomic_t), NULL)

#define ngx_http_idem_times(name, json, help, field, stride, by, bounds)      \
    { name, json, help, NGX_HTTP_IDEM_HISTOGRAM, NGX_HTTP_IDEM_FROM_STORE,    \
      offsetof(ngx_http_idem_metrics_t, field), stride, { by, NULL },         \
      bounds, NULL, 0, 0, 0 }

#define ngx_http_idem_sizeof(field)                                           \
    sizeof(((ngx_http_idem_metrics_t *) NULL)->field)


const ngx_http_idem_metric_t  ngx_http_idem_metrics_table[] = {

    ngx_http_idem_word("waiters", "waiters",
        "Requests that wait now.",
        GAUGE, NGINX, offsetof(ngx_http_idem_view_nginx_t, waiters), NULL),

    ngx_http_idem_word("events_dropped_total", "events_dropped",
        "Events that could not be written, or that there was no room for.",
        COUNTER, NGINX,
        offsetof(ngx_http_idem_view_nginx_t, events_dropped), NULL),

    { "requests_total", "requests",
      "Requests, by what became of them.",
      NGX_HTTP_IDEM_COUNTER, NGX_HTTP_IDEM_FROM_STORE,
      offsetof(ngx_http_idem_metrics_t, requests),
      ngx_http_idem_sizeof(requests[0]), { &ngx_http_idem_by_outcome, NULL },
      NULL, NULL, 0, 0, 0 },

    { "unprotected_total", NULL,
      "Requests that ran without protection, since the store failed.",
      NGX_HTTP_IDEM_COUNTER, NGX_HTTP_IDEM_FROM_STORE,
      offsetof(ngx_http_idem_metrics_t,
               requests[0][NGX_HTTP_IDEM_STATUS_UNPROTECTED]),
      ngx_http_idem_sizeof(requests[0]), { NULL, NULL },
      NULL, NULL, 0, 1, 0 },

    { "store_operations_total", "operations",
      "Operations of a store, by kind and result.",
      NGX_HTTP_IDEM_COUNTER, NGX_HTTP_IDEM_FROM_STORE,
      offsetof(ngx_http_idem_metrics_t, operations), 0,
      { &ngx_http_idem_by_operation, &ngx_http_idem_by_result },
      ngx_http_idem_metrics_bounds, NULL,
      offsetof(ngx_http_idem_metrics_t, operation), 0, 1 },

    ngx_http_idem_times("store_operation_seconds", NULL,
        "Time that operations of a store took, by kind.",
        operation, 0, &ngx_http_idem_by_timed, ngx_http_idem_metrics_bounds),

    ngx_http_idem_times("wait_seconds", "wait",
        "Time that requests waited for another one, by how that ended.",
        wait, ngx_http_idem_sizeof(wait[0]), &ngx_http_idem_by_waited,
        ngx_http_idem_metrics_bounds),

    ngx_http_idem_times("lock_held_seconds", "lock_held",
        "Time that executions held the lock.",
        lock_held, ngx_http_idem_sizeof(lock_held[0]), NULL,
        ngx_http_idem_metrics_bounds),

    ngx_http_idem_times("record_lifetime_seconds", "record_lifetime",
        "Time from a request to the expiry of its record, as it was stored.",
        lifetime, ngx_http_idem_sizeof(lifetime[0]), NULL,
        ngx_http_idem_metrics_ages),

    ngx_http_idem_word("created_total", "created",
        "Requests that ran with a new record, by layer.",
        COUNTER, STORE, offsetof(ngx_http_idem_metrics_t, created),
        &ngx_http_idem_by_layer),

    ngx_http_idem_word("replays_total", "replays",
        "Requests that were answered with a stored response, by layer.",
        COUNTER, STORE, offsetof(ngx_http_idem_metrics_t, replays),
        &ngx_http_idem_by_layer),

    ngx_http_idem_word("conflicts_total", "conflicts",
        "Requests whose key had been used with another request, by kind.",
        COUNTER, STORE, offsetof(ngx_http_idem_metrics_t, conflicts),
        &ngx_http_idem_by_kind),

    ngx_http_idem_times("request_duration_seconds", "request_duration",
        "Time that requests took in all, by whether they were replayed.",
        duration, ngx_http_idem_sizeof(duration[0]),
        &ngx_http_idem_by_replayed, ngx_http_idem_metrics_bounds),

    ngx_http_idem_times("replay_age_seconds", "replay_age",
        "How long ago that was received which was replayed.",
        replay_age, 0, NULL, ngx_http_idem_metrics_ages),

    ngx_http_idem_count(EXPIRED, "expired",
        "Requests whose key had a record that expired."),
    ngx_http_idem_count(ABANDONED, "lock_abandoned",
        "Locks whose lease ran out, and that were taken over."),
    ngx_http_idem_count(RENEWALS, "lease_renewals",
        "Leases renewed while an execution ran."),
    ngx_http_idem_count(LEASE_LOST, "lease_lost",
        "Executions that lost their lock to another request."),
    ngx_http_idem_count(BREAKER_OPENED, "breaker_opened",
        "How often the breaker of a store opened."),
    ngx_http_idem_count(BREAKER_REJECTED, "breaker_rejected",
        "Operations that an open breaker did not let through."),
    ngx_http_idem_count(CACHE_HITS, "cache_hits",
        "Begins that the cache answered."),
    ngx_http_idem_count(CACHE_MISSES, "cache_misses",
        "Begins that the cache could not answer."),
    ngx_http_idem_count(COMMIT_FAILURES, "commit_failures",
        "Commits that did not reach the store."),
    ngx_http_idem_count(REPLICAS_MISSED, "replicas_missed",
        "Commits that fewer replicas had in time than were wanted."),
    ngx_http_idem_count(PURGES, "purges",
        "Purges of expired records that the server of a store has done."),
    ngx_http_idem_count(PURGE_FAILURES, "purge_failures",
        "Purges of expired records that failed."),

    ngx_http_idem_word("store_bytes", "bytes",
        "Bytes of a store that are in use.",
        GAUGE, HELD, offsetof(ngx_http_idem_store_stats_t, bytes), NULL),
    ngx_http_idem_word("store_size_bytes", "size",
        "Bytes that a store has room for in all.",
        GAUGE, SIZE, offsetof(ngx_http_idem_store_stats_t, size), NULL),
    ngx_http_idem_word("server_used_bytes", "server_used",
        "Memory that the servers of a store use, by all that is there.",
        GAUGE, USED, 0, NULL),
    ngx_http_idem_word("evictions_total", "evicted",
        "Records that lost their response, since the store was full.",
        COUNTER, ZONE, offsetof(ngx_http_idem_store_stats_t, evicted), NULL),
    ngx_http_idem_word("records", "records",
        "Records that a store holds, by state.",
        GAUGE, HELD, offsetof(ngx_http_idem_store_stats_t, records),
        &ngx_http_idem_by_state),

    ngx_http_idem_word("records_expired_total", "expired",
        "Records whose time was over, and that were taken out.",
        COUNTER, PURGED, offsetof(ngx_http_idem_store_stats_t, expired),
        NULL),

    ngx_http_idem_word("store_up", "up",
        "Whether a store that is elsewhere answered what it was asked last.",
        GAUGE, SERVER, offsetof(ngx_http_idem_view_server_t, up), NULL),
    ngx_http_idem_word("store_queued", "queued",
        "Operations that wait for a connection to the store.",
        GAUGE, SERVER, offsetof(ngx_http_idem_view_server_t, queued), NULL),

    ngx_http_idem_word("oldest_lock_seconds", "oldest_lock",
        "How long ago the oldest request came that holds a lock.",
        GAUGE, SCAN, offsetof(ngx_http_idem_view_scan_t, oldest), NULL),
    ngx_http_idem_word("locks", "locks",
        "Locks that are held, by how long ago their request came.",
        GAUGE, SCAN, offsetof(ngx_http_idem_view_scan_t, locks),
        &ngx_http_idem_by_age),
    ngx_http_idem_word("scan_age_seconds", "scan_age",
        "How long ago the records of a store were counted.",
        GAUGE, SCAN, offsetof(ngx_http_idem_view_scan_t, age), NULL),

    ngx_http_idem_state("breaker_state", "breaker",
        "The breaker of a store: 0 closed, 1 open, 2 half open.", BREAKER),

    ngx_http_idem_word("outbox_records", "outbox.waiting",
        "Commits that wait for the store to come back.",
        GAUGE, OUTBOX, offsetof(ngx_http_idem_view_outbox_t, waiting), NULL),
    ngx_http_idem_word(NULL, "outbox.unacknowledged", NULL,
        GAUGE, OUTBOX,
        offsetof(ngx_http_idem_view_outbox_t, unacknowledged), NULL),
    ngx_http_idem_word("outbox_total", "outbox.",
        "Commits that the outbox took, by what became of them.",
        COUNTER, OUTBOX, offsetof(ngx_http_idem_view_outbox_t, counters),
        &ngx_http_idem_by_outbox),

    ngx_http_idem_word("node_operations_total", "",
        "Operations by the node of a store that was asked.",
        COUNTER, NODE, offsetof(ngx_http_idem_node_counters_t, counts),
        &ngx_http_idem_by_node),
    ngx_http_idem_state("node_breaker_state", "breaker",
        "The breaker of a node: 0 closed, 1 open, 2 half open.",
        NODE_BREAKER),

    ngx_http_idem_word(NULL, NULL, NULL, COUNTER, N, 0, NULL)
};


void
ngx_http_idem_view_nginx(ngx_http_idem_view_t *v,
    ngx_http_idem_main_conf_t *mcf)
{
    ngx_memzero(v, sizeof(ngx_http_idem_view_t));

    if (mcf->stores.nelts) {
        v->nginx.waiters = ngx_http_idem_waiters_all();
        v->nginx.events_dropped =
                               ngx_http_idem_metrics_read()->events_dropped;
    }

    v->from[NGX_HTTP_IDEM_FROM_NGINX] = &v->nginx;
}


void
ngx_http_idem_view(ngx_http_idem_view_t *v, ngx_http_idem_store_t *store)
{
    ngx_int_t                   state;
    ngx_uint_t                  i;
    ngx_http_idem_outbox_t     *o;
    ngx_http_idem_history_t    *h;
    ngx_http_idem_outbox_sh_t  *sh;

    ngx_memzero(v, sizeof(ngx_http_idem_view_t));

    v->store = store;
    v->inner = ngx_http_idem_layer_innermost(store);
    v->metrics = store->metrics;
    v->from[NGX_HTTP_IDEM_FROM_STORE] = store->metrics;

    h = &store->metrics->history;

    if (h->scanned.ended) {
        ngx_http_idem_view_scanned(v, &h->scanned);
    }

    if (v->inner->backend->stats
        && v->inner->backend->stats(v->inner, &v->held) == NGX_OK)
    {
        v->from[NGX_HTTP_IDEM_FROM_HELD] = &v->held;
        v->from[NGX_HTTP_IDEM_FROM_ZONE] = &v->held;
        v->from[NGX_HTTP_IDEM_FROM_SIZE] = &v->held;
        v->from[NGX_HTTP_IDEM_FROM_PURGED] = &v->held;

    } else if (v->metrics->counts[NGX_HTTP_IDEM_COUNT_PURGES]) {
        v->held.expired = v->metrics->counts[NGX_HTTP_IDEM_COUNT_PURGED];
        v->from[NGX_HTTP_IDEM_FROM_PURGED] = &v->held;
    }

    if (v->inner->backend->remote) {
        v->server.up = (h->outage.since == 0);

        for (i = 0; i < NGX_HTTP_IDEM_HISTORY_WORKERS; i++) {
            v->server.queued += h->queued[i];
        }

        v->from[NGX_HTTP_IDEM_FROM_SERVER] = &v->server;
    }

    state = ngx_http_idem_breaker_state(store, 0);

    if (state >= 0) {
        v->breaker = state;
        v->from[NGX_HTTP_IDEM_FROM_BREAKER] = &v->breaker;
    }

    if (store->layers) {
        o = &store->layers->outbox;
        sh = ngx_http_idem_outbox_sh(o);

        v->outbox.waiting = ngx_http_idem_outbox_waiting(o);
        v->outbox.unacknowledged = sh->unacknowledged;
        v->outbox.counters = sh->counters;
        v->from[NGX_HTTP_IDEM_FROM_OUTBOX] = &v->outbox;
    }
}


/* for a store that can't report its contents: the result of the last scan */

static void
ngx_http_idem_view_scanned(ngx_http_idem_view_t *v,
    ngx_http_idem_scanned_t *scanned)
{
    uint64_t                now;
    ngx_http_idem_tally_t  *tally;

    now = ngx_http_idem_history_now();
    tally = &scanned->tally;

    v->scan.age = (now - ngx_min(now, scanned->ended)) / 1000;

    if (tally->nlongest) {
        v->scan.oldest = (scanned->ended - ngx_min(scanned->ended,
                                                   tally->longest[0].since))
                         / 1000;
    }

    ngx_memcpy(v->scan.locks, tally->locks, sizeof(v->scan.locks));

    v->from[NGX_HTTP_IDEM_FROM_SCAN] = &v->scan;

    ngx_memcpy(v->held.records, tally->records, sizeof(v->held.records));
    v->held.bytes = tally->bytes;
    v->from[NGX_HTTP_IDEM_FROM_HELD] = &v->held;

    if (tally->used) {
        v->used = tally->used;
        v->from[NGX_HTTP_IDEM_FROM_USED] = &v->used;
    }

    if (tally->size) {
        v->held.size = tally->size;
        v->from[NGX_HTTP_IDEM_FROM_SIZE] = &v->held;
    }
}


ngx_http_idem_node_counters_t *
ngx_http_idem_view_node(ngx_http_idem_view_t *v, ngx_uint_t slot)
{
    ngx_int_t                       state;
    ngx_http_idem_node_counters_t  *node;

    node = v->store->nodes ? ngx_http_idem_nodes_at(v->store->nodes, slot)
                           : NULL;

    v->from[NGX_HTTP_IDEM_FROM_NODE] = node;
    v->from[NGX_HTTP_IDEM_FROM_NODE_BREAKER] = NULL;

    if (node) {
        state = ngx_http_idem_breaker_state(v->store, slot);

        if (state >= 0) {
            v->node_breaker = state;
            v->from[NGX_HTTP_IDEM_FROM_NODE_BREAKER] = &v->node_breaker;
        }
    }

    return node;
}


void
ngx_http_idem_metric_read(const ngx_http_idem_metric_t *f,
    ngx_http_idem_view_t *v, ngx_uint_t group, ngx_uint_t i, ngx_uint_t j,
    ngx_http_idem_histogram_t *h)
{
    u_char                     *p;
    ngx_uint_t                  g, last, k;
    ngx_http_idem_histogram_t  *from;

    ngx_memzero(h, sizeof(ngx_http_idem_histogram_t));

    k = i * ngx_http_idem_by_n(f, 1) + j;
    g = group;
    last = group;

    if (group == NGX_HTTP_IDEM_ALL_GROUPS) {
        g = 0;
        last = f->stride ? NGX_HTTP_IDEM_METRICS_OTHER : 0;
    }

    for ( /* void */ ; g <= last; g++) {
        p = (u_char *) v->from[f->from] + f->offset + g * f->stride;

        if (f->type != NGX_HTTP_IDEM_HISTOGRAM) {
            h->sum += ((ngx_atomic_t *) p)[k];
            continue;
        }

        from = (ngx_http_idem_histogram_t *) p + k;
        h->sum += from->sum;

        for (i = 0; i <= NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
            h->buckets[i] += from->buckets[i];
        }
    }
}


/* zeros count as well: rate() needs the first value */

ngx_uint_t
ngx_http_idem_metric_grouped(const ngx_http_idem_metric_t *f,
    ngx_http_idem_view_t *v, ngx_uint_t group)
{
    ngx_uint_t  s;

    if (f->type == NGX_HTTP_IDEM_HISTOGRAM && v->metrics->grouped[group]) {
        return 1;
    }

    for (s = 1; s < NGX_HTTP_IDEM_METRICS_STATUSES; s++) {
        if (v->metrics->requests[group][s]) {
            return 1;
        }
    }

    return 0;
}
