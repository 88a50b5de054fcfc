
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Scans each store: counts its records and bytes, and finds the locks that
 * are held longest.
 *
 * A remote store can't report this, since its server has other keys, too.  So
 * its records are listed in slices, with pauses that are much longer than the
 * slices take.  A scan starts on one worker when the metrics are read, and
 * its result is shown to the next readers.  If nobody reads the metrics, no
 * store is scanned.
 *
 * Called by idempotency_stats; calls the stores.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_housekeeping.h"
#include "admin/ngx_http_idem_admin.h"


/* minimum interval between two scans, ms; also after a failed scan */
#define NGX_HTTP_IDEM_SCAN_EVERY   10000

/* how long other workers wait for a scan that does not progress, ms */
#define NGX_HTTP_IDEM_SCAN_LEASE   30000

/* locks are counted by age: up to a minute, up to five, older; ms */
#define NGX_HTTP_IDEM_SCAN_YOUNG   60000
#define NGX_HTTP_IDEM_SCAN_OLD     300000

/* pause between two slices: minimum, and multiple of a slice's duration */
#define NGX_HTTP_IDEM_SCAN_PAUSE   5
#define NGX_HTTP_IDEM_SCAN_SHARE   20


typedef struct {
    ngx_http_idem_op_t       op;
    ngx_http_idem_list_t     list;
    ngx_event_t              timer;
    ngx_pool_t              *pool;               /* of a slice              */
    uint64_t                 start;
    u_char                   cursor[NGX_HTTP_IDEM_CURSOR_MAX];
    size_t                   cursor_len;
    ngx_http_idem_tally_t   tally;
    unsigned                 running:1;
} ngx_http_idem_scan_t;


static void ngx_http_idem_scan_slice(ngx_event_t *ev);
static void ngx_http_idem_scan_handler(ngx_http_idem_op_t *op);
static void ngx_http_idem_scan_count(ngx_http_idem_scan_t *s,
    ngx_http_idem_entry_t *entry);
static void ngx_http_idem_scan_label(u_char *dst, ngx_str_t *label);


/* scans of this worker, by store */
static ngx_http_idem_scan_t
    *ngx_http_idem_scans[NGX_HTTP_IDEM_METRICS_STORES];


void
ngx_http_idem_scan(ngx_http_idem_main_conf_t *mcf)
{
    uint64_t                  now;
    ngx_uint_t                i;
    ngx_http_idem_scan_t     *s;
    ngx_http_idem_store_t   **store;

    store = mcf->stores.elts;
    now = ngx_http_idem_history_now();

    for (i = 0;
         i < mcf->stores.nelts && i < NGX_HTTP_IDEM_METRICS_STORES;
         i++)
    {
        if (!ngx_http_idem_stats_first(mcf, i)
            || store[i]->backend->admin == NULL)
        {
            continue;
        }

        s = ngx_http_idem_scans[i];

        if (s == NULL) {
            s = ngx_calloc(sizeof(ngx_http_idem_scan_t), ngx_cycle->log);
            if (s == NULL) {
                return;
            }

            ngx_http_idem_scans[i] = s;
        }

        if (s->running
            || !ngx_http_idem_history_turn(
                              &store[i]->metrics->history.scanned.next, now,
                              now + NGX_HTTP_IDEM_SCAN_LEASE))
        {
            continue;
        }

        ngx_memzero(&s->tally, sizeof(ngx_http_idem_tally_t));

        s->running = 1;
        s->start = now;
        s->cursor_len = 0;
        s->op.store = store[i];

        ngx_housekeeping_init(&s->timer, ngx_http_idem_scan_slice, s);

        /* later: the client waits for its response now */

        ngx_add_timer(&s->timer, 1);
    }
}


static void
ngx_http_idem_scan_slice(ngx_event_t *ev)
{
    ngx_http_idem_op_t     *op;
    ngx_http_idem_scan_t   *s;
    ngx_http_idem_store_t  *store;

    s = ev->data;
    op = &s->op;
    store = op->store;

    ngx_memzero(op, sizeof(ngx_http_idem_op_t));

    op->kind = NGX_HTTP_IDEM_OP_LIST;
    op->store = store;
    op->list = &s->list;
    op->log = ngx_cycle->log;
    op->handler = ngx_http_idem_scan_handler;
    op->data = s;

    ngx_memzero(&s->list, sizeof(ngx_http_idem_list_t));

    s->list.cursor.data = s->cursor;
    s->list.cursor.len = s->cursor_len;
    s->list.tally = 1;

    s->pool = ngx_create_pool(4096, ngx_cycle->log);
    op->pool = s->pool;

    if (s->pool == NULL
        || ngx_exiting
        || ngx_array_init(&s->list.entries, s->pool, 128,
                          sizeof(ngx_http_idem_entry_t))
           != NGX_OK)
    {
        op->result = NGX_HTTP_IDEM_ERROR;
        ngx_http_idem_scan_handler(op);
        return;
    }

    if (ngx_http_idem_store_submit(op) == NGX_OK) {
        ngx_http_idem_scan_handler(op);
    }
}


static void
ngx_http_idem_scan_handler(ngx_http_idem_op_t *op)
{
    uint64_t                  now;
    ngx_uint_t                i;
    ngx_msec_t                pause;
    ngx_http_idem_scan_t     *s;
    ngx_http_idem_entry_t    *entry;
    ngx_http_idem_scanned_t  *shared;

    s = op->data;
    now = ngx_http_idem_history_now();
    shared = &op->store->metrics->history.scanned;

    if (op->result == NGX_HTTP_IDEM_OK) {
        entry = s->list.entries.elts;

        s->tally.bytes += s->list.held;
        s->tally.used += s->list.used;
        s->tally.size += s->list.size;

        for (i = 0; i < s->list.entries.nelts; i++) {
            ngx_http_idem_scan_count(s, &entry[i]);
        }

        s->cursor_len = ngx_min(s->list.cursor.len, sizeof(s->cursor));
        ngx_memcpy(s->cursor, s->list.cursor.data, s->cursor_len);
    }

    if (s->pool) {
        ngx_destroy_pool(s->pool);
        s->pool = NULL;
    }

    if (op->result != NGX_HTTP_IDEM_OK || s->cursor_len == 0) {

        if (op->result == NGX_HTTP_IDEM_OK) {
            shared->tally = s->tally;
            shared->ended = now;
        }

        s->running = 0;

        /* a long scan is followed by a pause of the same length */

        shared->next = now + ngx_max(now - ngx_min(now, s->start),
                                     NGX_HTTP_IDEM_SCAN_EVERY);
        return;
    }

    shared->next = now + NGX_HTTP_IDEM_SCAN_LEASE;

    pause = (ngx_msec_t) (ngx_http_idem_metrics_clock() - op->clock)
            * NGX_HTTP_IDEM_SCAN_SHARE / 1000;

    ngx_add_timer(&s->timer, ngx_min(ngx_max(pause, NGX_HTTP_IDEM_SCAN_PAUSE),
                                     NGX_HTTP_IDEM_SCAN_LEASE / 2));
}


static void
ngx_http_idem_scan_count(ngx_http_idem_scan_t *s,
    ngx_http_idem_entry_t *entry)
{
    uint64_t                  now, age;
    ngx_str_t                 labels[NGX_HTTP_IDEM_LABEL_N];
    ngx_uint_t                i;
    ngx_http_idem_tally_t    *tally;
    ngx_http_idem_longest_t  *longest;

    tally = &s->tally;

    tally->records[entry->state & 3]++;

    /* an expired lock has no holder; under hold it still blocks its key */

    if (entry->state != NGX_HTTP_IDEM_IN_PROGRESS
        || (entry->left == 0 && !entry->hold))
    {
        return;
    }

    now = ngx_http_idem_history_now();
    age = now - ngx_min(now, entry->claim.time);

    tally->locks[(age >= NGX_HTTP_IDEM_SCAN_YOUNG)
                 + (age >= NGX_HTTP_IDEM_SCAN_OLD)]++;

    /* sorted, the oldest first */

    i = tally->nlongest;

    while (i > 0 && tally->longest[i - 1].since > entry->claim.time) {
        i--;
    }

    if (i == NGX_HTTP_IDEM_HISTORY_LONGEST) {
        return;
    }

    longest = &tally->longest[i];

    if (tally->nlongest < NGX_HTTP_IDEM_HISTORY_LONGEST) {
        tally->nlongest++;
    }

    ngx_memmove(longest + 1, longest,
                (tally->nlongest - 1 - i) * sizeof(ngx_http_idem_longest_t));

    ngx_http_idem_admin_labels(s->op.store, entry, labels);

    ngx_memcpy(longest->id, entry->id, NGX_HTTP_IDEM_HISTORY_ID);
    longest->since = entry->claim.time;

    ngx_http_idem_scan_label(longest->group,
                             &labels[NGX_HTTP_IDEM_LABEL_GROUP]);
    ngx_http_idem_scan_label(longest->host,
                             &labels[NGX_HTTP_IDEM_LABEL_HOST]);
}


static void
ngx_http_idem_scan_label(u_char *dst, ngx_str_t *label)
{
    size_t  len;

    len = ngx_min(label->len, NGX_HTTP_IDEM_HISTORY_TEXT - 1);

    ngx_memcpy(dst, label->data, len);
    dst[len] = '\0';
}
