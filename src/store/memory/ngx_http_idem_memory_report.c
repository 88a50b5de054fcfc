
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Reports of the embedded store after it has released the lock: evicted
 * responses go to the error log, and so does the number of expired records,
 * which become events, too.
 *
 * Operations find expired records in passing.  If there are listeners for
 * events, expired records are collected in the memory of the process while
 * the lock is held, and reported after the unlock.  One worker also searches
 * periodically, since an idle store has no operations.  Without listeners
 * nothing is collected.
 *
 * Called by the operations of the store, and by a timer; calls the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/memory/ngx_http_idem_memory.h"


/* interval of the periodic search, and delay if more records are due, ms */
#define NGX_HTTP_IDEM_MEMORY_SEARCH  1000
#define NGX_HTTP_IDEM_MEMORY_AGAIN   10


static void ngx_http_idem_memory_report_expired(ngx_http_idem_memory_t *m);
static void ngx_http_idem_memory_search(ngx_event_t *ev);


void
ngx_http_idem_memory_lock(ngx_http_idem_memory_t *m)
{
    ngx_http_idem_zone_lock(&m->z);

    m->evicted = m->z.zone->evicted;
    m->expired = m->z.zone->expired;
}


void
ngx_http_idem_memory_unlock(ngx_http_idem_memory_t *m, ngx_log_t *log)
{
    ngx_uint_t  n, expired, records, details;

    n = m->z.zone->evicted - m->evicted;
    expired = m->z.zone->expired - m->expired;
    records = m->z.zone->records;
    details = m->z.zone->details_evicted - m->details_evicted;

    ngx_http_idem_zone_unlock(&m->z);

    if (m->z.gone && m->z.gone->n) {
        ngx_http_idem_memory_report_expired(m);
    }

    ngx_http_idem_store_removed(m->store, expired);

    /* a zone that is too small evicts at every request: log once a second */

    if (n && m->eviction_logged != ngx_time()) {
        m->eviction_logged = ngx_time();

        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "idempotency: zone \"%V\" is full: %ui of its %ui "
                      "records lost their response, the oldest first; "
                      "make it larger, or idempotency_ttl shorter",
                      &m->z.name, n, records);
    }

    if (details && m->details_logged != ngx_time()) {
        m->details_logged = ngx_time();
        m->details_evicted += details;

        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "idempotency: zone \"%V\" is full: %ui of its records "
                      "lost what idempotency_conflict_detail keeps, the "
                      "oldest first", &m->z.name, details);
    }
}


/* an event for each expired record */

static void
ngx_http_idem_memory_report_expired(ngx_http_idem_memory_t *m)
{
    ngx_uint_t                  i;
    ngx_http_idem_zone_gone_t  *gone;

    gone = m->z.gone;

    for (i = 0; i < gone->n; i++) {
        ngx_http_idem_store_expired(m->store, &gone->records[i].expired);
    }

    if (gone->missed) {
        ngx_http_idem_metrics_dropped(gone->missed);
    }

    gone->n = 0;
    gone->missed = 0;
}


/* all workers collect expired records; the first searches for them, too */

void
ngx_http_idem_memory_report_init(ngx_cycle_t *cycle, ngx_http_idem_memory_t *m)
{
    m->z.gone = NULL;

    if (m->store->log == NULL && ngx_http_idem_tap == NULL) {
        return;
    }

    m->z.gone = ngx_pcalloc(cycle->pool, sizeof(ngx_http_idem_zone_gone_t));

    if (m->z.gone == NULL || !ngx_housekeeping_is_ours()) {
        return;
    }

    ngx_housekeeping_init(&m->search, ngx_http_idem_memory_search, m);
    ngx_add_timer(&m->search, NGX_HTTP_IDEM_MEMORY_SEARCH);
}


static void
ngx_http_idem_memory_search(ngx_event_t *ev)
{
    ngx_uint_t               more;
    ngx_http_idem_memory_t  *m;

    m = ev->data;
    more = 0;

    if (ngx_http_idem_events_wanted(m->store->log)) {
        ngx_http_idem_memory_lock(m);

        ngx_http_idem_zone_purge(&m->z, NGX_HTTP_IDEM_GONE_MAX);
        more = !ngx_queue_empty(&m->z.zone->expiry.due);

        ngx_http_idem_memory_unlock(m, ev->log);
    }

    if (!ngx_exiting) {
        ngx_add_timer(ev, more ? NGX_HTTP_IDEM_MEMORY_AGAIN
                               : NGX_HTTP_IDEM_MEMORY_SEARCH);
    }
}
