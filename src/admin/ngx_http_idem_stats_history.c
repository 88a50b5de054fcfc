
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * History of the metrics for the page: a row every ten seconds, written by
 * the worker whose timer fires first; and recent events as JSON.
 *
 * Timers run only if idempotency_stats is configured.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_housekeeping.h"
#include "admin/ngx_http_idem_admin.h"
#include "admin/ngx_http_idem_metrics_table.h"


/* interval at which a worker reports its queued operations, ms */
#define NGX_HTTP_IDEM_STATS_TICK  1000


static void ngx_http_idem_stats_tick(ngx_event_t *ev);
static void ngx_http_idem_stats_row(ngx_http_idem_store_t *store,
    uint64_t now);
static void ngx_http_idem_stats_quantiles(ngx_atomic_t *before,
    ngx_http_idem_histogram_t *h, ngx_atomic_uint_t *row);
static void ngx_http_idem_stats_add(ngx_http_idem_histogram_t *to,
    ngx_http_idem_histogram_t *from);
static void ngx_http_idem_stats_rows(ngx_http_idem_text_t *t,
    ngx_http_idem_history_t *h);


/* columns of a row; outcomes and columns that end in "_total" are counters */

static const char  *ngx_http_idem_stats_columns[] = {
    "time", "EXECUTED", "REPLAYED", "CONFLICT", "BUSY", "TIMEOUT", "WAITERS",
    "INVALID", "UNKNOWN", "TOO_LARGE", "RELEASED", "UNAVAILABLE",
    "UNPROTECTED", "BYPASS", "op50", "op95", "op99", "wait50", "wait95",
    "wait99", "errors_total", "records", "bytes", "outbox", "queued",
    "breaker", "down", NULL
};


static ngx_event_t  ngx_http_idem_stats_event;


void
ngx_http_idem_stats_init_process(ngx_http_idem_main_conf_t *mcf)
{
    if (!mcf->stats) {
        return;
    }

    ngx_housekeeping_init(&ngx_http_idem_stats_event, ngx_http_idem_stats_tick,
                          mcf);
    ngx_add_timer(&ngx_http_idem_stats_event, NGX_HTTP_IDEM_STATS_TICK);
}


void
ngx_http_idem_stats_exit_process(ngx_http_idem_main_conf_t *mcf)
{
    ngx_uint_t               i;
    ngx_http_idem_store_t  **store;

    store = mcf->stores.elts;

    for (i = 0; mcf->stats && i < mcf->stores.nelts; i++) {
        store[i]->metrics->history.queued[ngx_process_slot
                                    % NGX_HTTP_IDEM_HISTORY_WORKERS] = 0;
    }
}


static void
ngx_http_idem_stats_tick(ngx_event_t *ev)
{
    uint64_t                      now;
    ngx_uint_t                    i;
    ngx_http_idem_store_t       **store, *inner;
    ngx_http_idem_history_t      *h;
    ngx_http_idem_main_conf_t    *mcf;
    ngx_http_idem_store_stats_t   stats;

    mcf = ev->data;
    store = mcf->stores.elts;
    now = ngx_http_idem_history_now();

    for (i = 0; i < mcf->stores.nelts; i++) {

        if (!ngx_http_idem_stats_first(mcf, i)) {
            continue;
        }

        h = &store[i]->metrics->history;
        inner = ngx_http_idem_layer_innermost(store[i]);

        if (inner->backend->remote && inner->backend->stats) {
            ngx_memzero(&stats, sizeof(ngx_http_idem_store_stats_t));
            (void) inner->backend->stats(inner, &stats);

            h->queued[ngx_process_slot % NGX_HTTP_IDEM_HISTORY_WORKERS] =
                                                                stats.queued;
        }

        if (ngx_http_idem_history_turn(&h->due, now,
                                       now + NGX_HTTP_IDEM_HISTORY_STEP))
        {
            ngx_http_idem_stats_row(store[i], now);
        }
    }

    if (!ngx_exiting) {
        ngx_add_timer(ev, NGX_HTTP_IDEM_STATS_TICK);
    }
}


static void
ngx_http_idem_stats_row(ngx_http_idem_store_t *store, uint64_t now)
{
    ngx_uint_t                  g, i, n;
    ngx_atomic_uint_t          *row;
    ngx_http_idem_view_t        v;
    ngx_http_idem_history_t    *h;
    ngx_http_idem_metrics_t    *m;
    ngx_http_idem_histogram_t   ops, waits;

    m = store->metrics;
    h = &m->history;

    row = h->rows[h->row % NGX_HTTP_IDEM_HISTORY_ROWS];

    ngx_memzero(row, sizeof(h->rows[0]));
    ngx_memzero(&ops, sizeof(ngx_http_idem_histogram_t));
    ngx_memzero(&waits, sizeof(ngx_http_idem_histogram_t));

    n = 0;
    row[n++] = now;

    for (i = 1; i < NGX_HTTP_IDEM_METRICS_STATUSES; i++, n++) {
        for (g = 0; g <= NGX_HTTP_IDEM_METRICS_OTHER; g++) {
            row[n] += m->requests[g][i];
        }
    }

    for (i = 0; i < NGX_HTTP_IDEM_OP_WATCH; i++) {
        ngx_http_idem_stats_add(&ops, &m->operation[i]);
    }

    for (g = 0; g <= NGX_HTTP_IDEM_METRICS_OTHER; g++) {
        for (i = 0; i < NGX_HTTP_IDEM_WAITED_N; i++) {
            ngx_http_idem_stats_add(&waits, &m->wait[g][i]);
        }
    }

    ngx_http_idem_stats_quantiles(h->before[0], &ops, &row[n]);
    ngx_http_idem_stats_quantiles(h->before[1], &waits, &row[n + 3]);
    n += 6;

    for (i = 0; i < NGX_HTTP_IDEM_OP_N; i++) {
        row[n] += m->operations[i][NGX_HTTP_IDEM_ERROR]
                  + m->operations[i][NGX_HTTP_IDEM_FULL];
    }

    n++;

    ngx_http_idem_view(&v, store);

    row[n++] = v.held.records[NGX_HTTP_IDEM_IN_PROGRESS]
               + v.held.records[NGX_HTTP_IDEM_COMPLETED]
               + v.held.records[NGX_HTTP_IDEM_UNUSABLE];
    row[n++] = v.held.bytes;
    row[n++] = v.outbox.waiting;
    row[n++] = v.server.queued;
    row[n++] = v.breaker;
    row[n++] = (h->outage.since != 0);

    /* readers must see a complete row */

    ngx_memory_barrier();
    h->row++;
}


static void
ngx_http_idem_stats_add(ngx_http_idem_histogram_t *to,
    ngx_http_idem_histogram_t *from)
{
    ngx_uint_t  i;

    for (i = 0; i <= NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        to->buckets[i] += from->buckets[i];
    }
}


/*
 * Median, 95th and 99th percentile since the last row, in microseconds, or 0
 * without samples.  Samples are assumed to be distributed evenly within a
 * bucket.
 */

static void
ngx_http_idem_stats_quantiles(ngx_atomic_t *before,
    ngx_http_idem_histogram_t *h, ngx_atomic_uint_t *row)
{
    uint64_t            all, sum, rank, low, high, n;
    ngx_uint_t          i, q;

    static ngx_uint_t  percent[] = { 50, 95, 99 };

    all = 0;

    for (i = 0; i <= NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
        n = h->buckets[i] - before[i];
        before[i] = h->buckets[i];
        h->buckets[i] = n;
        all += n;
    }

    for (q = 0; all && q < 3; q++) {
        rank = all * percent[q];
        sum = 0;

        for (i = 0; i < NGX_HTTP_IDEM_METRICS_BUCKETS; i++) {
            n = (uint64_t) h->buckets[i] * 100;

            if (n && sum + n >= rank) {
                break;
            }

            sum += n;
        }

        low = i ? ngx_http_idem_metrics_bounds[i - 1] : 0;
        row[q] = low;

        if (i < NGX_HTTP_IDEM_METRICS_BUCKETS) {
            high = ngx_http_idem_metrics_bounds[i];
            row[q] += (high - low) * (rank - sum)
                      / ((uint64_t) h->buckets[i] * 100);
        }
    }
}


void
ngx_http_idem_stats_lately(ngx_http_idem_text_t *t,
    ngx_http_idem_metrics_t *m, ngx_uint_t history)
{
    ngx_str_t                  group;
    ngx_uint_t                 i, n;
    ngx_http_idem_recent_t    *c;
    ngx_http_idem_history_t   *h;
    ngx_http_idem_longest_t   *l;

    h = &m->history;

    if (h->outage.since) {
        ngx_http_idem_text(t, ",\"outage\":{\"since\":%uA",
                           h->outage.since / 1000);
        ngx_http_idem_admin_word(t, "error", (char *) h->outage.error);
        ngx_http_idem_text(t, "}");

    } else if (h->outage.last_to) {
        ngx_http_idem_text(t, ",\"last_outage\":{\"since\":%uA,\"until\":%uA",
                           h->outage.last_from / 1000,
                           h->outage.last_to / 1000);
        ngx_http_idem_admin_word(t, "error", (char *) h->outage.error);
        ngx_http_idem_text(t, "}");
    }

    ngx_http_idem_text(t, ",\"last_conflicts\":[");

    n = h->nconflicts;

    for (i = 0; i < ngx_min(n, NGX_HTTP_IDEM_HISTORY_CONFLICTS); i++) {
        c = &h->conflicts[(n - 1 - i) % NGX_HTTP_IDEM_HISTORY_CONFLICTS];
        group = ngx_http_idem_metrics_group_name(c->group);

        ngx_http_idem_text(t, "%s{\"record\":\"%*xs\",\"time\":%uA,"
                           "\"kind\":\"%s\",\"group\":\"%V\"}",
                           i ? "," : "",
                           (size_t) NGX_HTTP_IDEM_HISTORY_ID, c->id,
                           c->time / 1000,
                           ngx_http_idem_conflict_names[c->kind], &group);
    }

    ngx_http_idem_text(t, "],\"longest_held\":[");

    for (i = 0; i < h->scanned.tally.nlongest; i++) {
        l = &h->scanned.tally.longest[i];

        ngx_http_idem_text(t, "%s{\"record\":\"%*xs\",\"since\":%uL",
                           i ? "," : "",
                           (size_t) NGX_HTTP_IDEM_HISTORY_ID, l->id,
                           l->since / 1000);
        ngx_http_idem_admin_word(t, "group", (char *) l->group);
        ngx_http_idem_admin_word(t, "host", (char *) l->host);
        ngx_http_idem_text(t, "}");
    }

    ngx_http_idem_text(t, "]");

    if (history) {
        ngx_http_idem_stats_rows(t, h);
    }
}


/* the oldest first; numbers in the order of the columns */

static void
ngx_http_idem_stats_rows(ngx_http_idem_text_t *t, ngx_http_idem_history_t *h)
{
    ngx_uint_t   i, k, last;
    const char **name;

    ngx_http_idem_text(t, ",\"history\":{\"every\":%d,\"columns\":[",
                       NGX_HTTP_IDEM_HISTORY_STEP / 1000);

    for (name = ngx_http_idem_stats_columns; *name; name++) {
        ngx_http_idem_text(t, "%s\"%s\"",
                           name == ngx_http_idem_stats_columns ? "" : ",",
                           *name);
    }

    ngx_http_idem_text(t, "],\"rows\":[");

    last = h->row;
    i = last - ngx_min(last, NGX_HTTP_IDEM_HISTORY_ROWS - 1);

    for ( /* void */ ; i < last; i++) {
        for (k = 0; ngx_http_idem_stats_columns[k]; k++) {
            ngx_http_idem_text(t, "%s%uA", k ? "," : "[",
                         h->rows[i % NGX_HTTP_IDEM_HISTORY_ROWS][k]);
        }

        ngx_http_idem_text(t, "]%s", i + 1 < last ? "," : "");
    }

    ngx_http_idem_text(t, "]}");
}
