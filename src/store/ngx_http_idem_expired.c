
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Reports of expired records: an event for each, their number in the error
 * log, and the counters of purges.
 *
 * Called by the stores that remove expired records themselves, without a lock
 * of their own; calls the log of events and the metrics.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"


/* how often the number of removed records is logged, s */
#define NGX_HTTP_IDEM_REMOVED_EVERY  60


ngx_http_idem_replays_pt  ngx_http_idem_store_replays;


/* a busy store removes records with every request: a line a minute tells */

void
ngx_http_idem_store_removed(ngx_http_idem_store_t *store, ngx_uint_t n)
{
    store->removed += n;

    if (store->removed == 0
        || ngx_time() - store->removed_logged < NGX_HTTP_IDEM_REMOVED_EVERY)
    {
        return;
    }

    ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                  "idempotency: %ui expired records were removed from store "
                  "\"%V\"", store->removed, &store->name);

    store->removed = 0;
    store->removed_logged = ngx_time();
}


void
ngx_http_idem_store_purged(ngx_http_idem_store_t *store, ngx_int_t n)
{
    ngx_atomic_t  *counts;

    counts = store->metrics->counts;

    if (n == NGX_ERROR) {
        ngx_atomic_fetch_add(&counts[NGX_HTTP_IDEM_COUNT_PURGE_FAILURES], 1);
        return;
    }

    ngx_atomic_fetch_add(&counts[NGX_HTTP_IDEM_COUNT_PURGES], 1);
    ngx_atomic_fetch_add(&counts[NGX_HTTP_IDEM_COUNT_PURGED], n);

    ngx_http_idem_store_removed(store, n);
}


void
ngx_http_idem_store_expired(ngx_http_idem_store_t *store,
    ngx_http_idem_expired_t *expired)
{
    uint64_t               now, original;
    ngx_str_t              label;
    ngx_uint_t             i, count;
    ngx_time_t            *tp;
    ngx_http_idem_line_t   line;

    static const char  *names[] = { "group", "tenant", "actor" };

    if (ngx_http_idem_line_start(&line, store->log,
                                 NGX_HTTP_IDEM_EVENT_KEY_EXPIRED,
                                 &store->name)
        != NGX_OK)
    {
        return;
    }

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_HOST; i++) {
        ngx_http_idem_label(&expired->details, i, &label);

        if (label.len) {
            ngx_http_idem_line_string(&line, names[i], &label);
        }
    }

    ngx_http_idem_line_hex(&line, "record", expired->id,
                           NGX_HTTP_IDEM_ID_LEN);

    if (expired->ttl) {
        ngx_http_idem_line_number(&line, "ttl_ms", expired->ttl);
    }

    tp = ngx_timeofday();
    now = (uint64_t) tp->sec * 1000 + tp->msec - expired->ago;

    ngx_http_idem_line_number(&line, "lifetime_ms",
                              now > expired->time ? now - expired->time : 0);

    /* replays of this response only, not of a former one of the record */

    if (ngx_http_idem_store_replays(expired->id, &count, &original)
        == NGX_OK)
    {
        ngx_http_idem_line_number(&line, "replay_count",
                                  original == expired->time ? count : 0);
    }

    ngx_http_idem_line_write(&line);
}
