
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The table of backends, and the code that all of them share: submitting an
 * operation, completing it, and detached operations, which outlive their
 * request.
 *
 * Called by the core with operations; calls the backend of the store.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem.h"
#include "store/ngx_http_idem_store.h"
#include "store/memory/ngx_http_idem_memory.h"
#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_OP_POOL_SIZE  1024

/*
 * Detached operations that are allocated in advance, for when memory is
 * short: without one, a lock could be neither released nor marked as used.
 */
#define NGX_HTTP_IDEM_RESERVE       16

/* ms from which on an operation is reported as slow */
#define NGX_HTTP_IDEM_SLOW          100


/* a detached operation, with room for its claim */

typedef struct {
    ngx_http_idem_op_t       op;                /* must be first */
    ngx_http_idem_claim_t    claim;
} ngx_http_idem_detached_t;


static ngx_http_idem_op_t *ngx_http_idem_op_make(ngx_pool_t *pool);
static ngx_http_idem_op_t *ngx_http_idem_op_new(void);
static void ngx_http_idem_op_destroy(ngx_http_idem_op_t *op);
static void ngx_http_idem_op_count(ngx_http_idem_op_t *op);
static void ngx_http_idem_op_commit_failed(ngx_http_idem_op_t *op);
static const ngx_http_idem_backend_t **ngx_http_idem_backend_place(
    const ngx_str_t *name);
static ngx_int_t ngx_http_idem_backend_add(
    const ngx_http_idem_backend_t *backend);


static ngx_http_idem_op_t
    *ngx_http_idem_reserve[NGX_HTTP_IDEM_RESERVE];
static ngx_uint_t  ngx_http_idem_nreserve;

ngx_http_idem_suspect_loss_pt  ngx_http_idem_store_suspect_loss_handler;


/* including backends of other modules */

#define NGX_HTTP_IDEM_BACKENDS_MAX  8

const char  ngx_http_idem_no_admin[] = "its records can't be looked at";


static const ngx_http_idem_backend_t
    *ngx_http_idem_backends[NGX_HTTP_IDEM_BACKENDS_MAX + 1] =
{
    &ngx_http_idem_memory_backend,
    &ngx_http_idem_redis_backend,
    NULL
};


const ngx_http_idem_store_api_t  ngx_http_idem_store_api = {
    NGX_HTTP_IDEM_STORE_API_VERSION,
    sizeof(ngx_http_idem_op_t),
    sizeof(ngx_http_idem_store_t),
    ngx_http_idem_backend_add,
    ngx_http_idem_store_wrong,
    ngx_http_idem_store_not_found,
    ngx_http_idem_store_password,
    ngx_http_idem_store_password_file,
    ngx_http_idem_store_suspect_loss,
    ngx_http_idem_remote_init,
    ngx_http_idem_remote_exit,
    ngx_http_idem_remote_ask,
    ngx_http_idem_remote_cancel,
    ngx_http_idem_remote_time,
    ngx_http_idem_remote_over,
    ngx_http_idem_remote_replied,
    ngx_http_idem_remote_fail,
    ngx_http_idem_remote_complete,
    ngx_http_idem_remote_message,
    ngx_http_idem_claim_encode,
    ngx_http_idem_claim_decode,
    ngx_http_idem_label,
    ngx_http_idem_op_entry,
    ngx_http_idem_entry_details,
    ngx_http_idem_store_expired,
    ngx_http_idem_store_purged
};


const char  *ngx_http_idem_op_names[] = {
    "begin", "renew", "commit", "release", "watch", "", "get", "remove", "list",
    "log", "events"
};


/* the place of a backend in the table, or the free one behind all others */

static const ngx_http_idem_backend_t **
ngx_http_idem_backend_place(const ngx_str_t *name)
{
    const ngx_http_idem_backend_t  **b;

    for (b = ngx_http_idem_backends; *b; b++) {
        if (ngx_http_idem_same_text(&(*b)->name, name)) {
            break;
        }
    }

    return b;
}


const ngx_http_idem_backend_t *
ngx_http_idem_backend(ngx_str_t *name)
{
    return *ngx_http_idem_backend_place(name);
}


static ngx_int_t
ngx_http_idem_backend_add(const ngx_http_idem_backend_t *backend)
{
    const ngx_http_idem_backend_t  **b;

    b = ngx_http_idem_backend_place(&backend->name);

    if (b == &ngx_http_idem_backends[NGX_HTTP_IDEM_BACKENDS_MAX]) {
        return NGX_ERROR;
    }

    *b = backend;

    return NGX_OK;
}


ngx_str_t *
ngx_http_idem_backend_names(void)
{
    u_char                          *p, *last;
    const ngx_http_idem_backend_t  **b;

    static u_char                    text[128];
    static ngx_str_t                 names;

    p = text;
    last = text + sizeof(text);

    for (b = ngx_http_idem_backends; *b; b++) {
        p = ngx_slprintf(p, last, "%s\"%V\"", p == text ? "" : ", ",
                         &(*b)->name);
    }

    names.data = text;
    names.len = p - text;

    return &names;
}


void
ngx_http_idem_store_suspect_loss(ngx_http_idem_store_t *store,
    ngx_uint_t now, ngx_http_idem_concerns_pt concerns, void *data)
{
    ngx_http_idem_store_suspect_loss_handler(store, now, concerns, data);
}


ngx_int_t
ngx_http_idem_store_submit(ngx_http_idem_op_t *op)
{
    ngx_int_t                       rc;
    const ngx_http_idem_backend_t  *backend;

    backend = op->store->backend;

    op->start = ngx_current_msec;
    op->sent_at = op->start;

    if (op->store->metrics) {
        /* a store inside a layer has none: see ngx_http_idem_op_count() */
        op->clock = ngx_http_idem_metrics_clock();
    }

    op->error = NULL;
    op->turned_away = 0;
    op->bad_record = 0;
    op->denied = 0;
    op->running = 0;
    op->kept = 0;
    op->unacknowledged = 0;

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:

        if (ngx_http_idem_nreserve < NGX_HTTP_IDEM_RESERVE) {
            ngx_http_idem_store_reserve();
        }

        rc = backend->begin(op);
        break;

    case NGX_HTTP_IDEM_OP_RENEW:
        rc = backend->renew(op);
        break;

    case NGX_HTTP_IDEM_OP_COMMIT:
        rc = backend->commit(op);
        break;

    case NGX_HTTP_IDEM_OP_RELEASE:
        rc = backend->release(op);
        break;

    case NGX_HTTP_IDEM_OP_WATCH:
        rc = backend->watch(op);
        break;

    default: /* get, remove, list; log, events */

        if (backend->admin == NULL
            || (op->kind > NGX_HTTP_IDEM_OP_LIST && !op->store->trail))
        {
            ngx_http_idem_op_error(op, ngx_http_idem_no_admin);
            return NGX_OK;
        }

        rc = backend->admin(op);
    }

    op->pending = (rc == NGX_AGAIN);

    if (rc == NGX_OK) {
        ngx_http_idem_op_count(op);
    }

    return rc;
}


void
ngx_http_idem_store_event(ngx_http_idem_store_t *store,
    ngx_http_idem_event_e event, u_char *id, const char *word)
{
    ngx_http_idem_line_t  line;

    if (ngx_http_idem_line_start(&line, store->log, event, &store->name)
        != NGX_OK)
    {
        return;
    }

    if (id) {
        ngx_http_idem_line_hex(&line, "record", id, NGX_HTTP_IDEM_ID_LEN);
    }

    if (word) {
        ngx_http_idem_line_word(&line, "reason", word);
    }

    ngx_http_idem_line_write(&line);
}


/*
 * A store inside a layer has no metrics: the operation is counted where the
 * core submitted it.  Outages are reported by the innermost store, whatever
 * layers are around it.
 */

static void
ngx_http_idem_op_count(ngx_http_idem_op_t *op)
{
    ngx_http_idem_metrics_t  *m;

    /* an administrative operation may lack permission: no outage */

    if (op->store->outage && op->kind != NGX_HTTP_IDEM_OP_WATCH
        && !(ngx_http_idem_op_is_admin(op)
             && op->result == NGX_HTTP_IDEM_ERROR))
    {
        ngx_http_idem_outage(op->store->outage,
                             op->result != NGX_HTTP_IDEM_ERROR
                             || op->bad_record ? NULL
                             : op->error ? op->error : "no answer");
    }

    m = op->store->metrics;

    if (m == NULL || ngx_http_idem_op_is_admin(op)) {
        return;
    }

    /* a breaker rejected it: the latency is not the store's */

    if (op->turned_away && op->result == NGX_HTTP_IDEM_ERROR) {
        return;
    }

    ngx_http_idem_metrics_operation(m, op->kind, op->result);

    /* the duration of a watch is that of another request */

    if (op->kind != NGX_HTTP_IDEM_OP_WATCH) {
        ngx_http_idem_metrics_latency(m, op->kind,
                                  ngx_http_idem_metrics_clock() - op->clock);
    }
}


static void
ngx_http_idem_op_slow(ngx_http_idem_op_t *op)
{
    ngx_http_idem_line_t  line;

    if (ngx_http_idem_line_start(&line, op->store->log,
                                 NGX_HTTP_IDEM_EVENT_STORAGE_SLOW,
                                 &op->store->name)
        != NGX_OK)
    {
        return;
    }

    ngx_http_idem_line_number(&line, "duration_ms",
                              ngx_current_msec - op->start);
    ngx_http_idem_line_number(&line, "threshold_ms", NGX_HTTP_IDEM_SLOW);
    ngx_http_idem_line_word(&line, "reason", ngx_http_idem_op_names[op->kind]);

    ngx_http_idem_line_write(&line);
}


void
ngx_http_idem_store_complete(ngx_http_idem_op_t *op)
{
    op->pending = 0;

    ngx_http_idem_op_count(op);

    if (op->kind < NGX_HTTP_IDEM_OP_WATCH
        && ngx_current_msec - op->start >= NGX_HTTP_IDEM_SLOW)
    {
        ngx_http_idem_op_slow(op);
    }

    op->handler(op);
}


void
ngx_http_idem_store_cancel(ngx_http_idem_op_t *op)
{
    if (!op->pending) {
        return;
    }

    op->pending = 0;
    op->store->backend->cancel(op);
}


ngx_http_idem_entry_t *
ngx_http_idem_op_entry(ngx_http_idem_op_t *op)
{
    ngx_http_idem_entry_t  *entry;

    entry = ngx_array_push(&op->list->entries);

    if (entry == NULL) {
        ngx_http_idem_op_error(op, "no memory for a list");
        return NULL;
    }

    ngx_memzero(entry, sizeof(ngx_http_idem_entry_t));

    return entry;
}


ngx_int_t
ngx_http_idem_entry_details(ngx_http_idem_op_t *op,
    ngx_http_idem_entry_t *entry, u_char *p, size_t len)
{
    len = ngx_min(len, NGX_HTTP_IDEM_ENTRY_DETAILS);

    if (len == 0) {
        return NGX_OK;
    }

    entry->details.data = ngx_pnalloc(op->pool, len);
    if (entry->details.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(entry->details.data, p, len);
    entry->details.len = len;

    return NGX_OK;
}


/* allocates what it can; a later begin tries again */

void
ngx_http_idem_store_reserve(void)
{
    ngx_http_idem_op_t  *op;

    while (ngx_http_idem_nreserve < NGX_HTTP_IDEM_RESERVE) {

        op = ngx_http_idem_op_new();
        if (op == NULL) {
            return;
        }

        ngx_http_idem_reserve[ngx_http_idem_nreserve++] = op;
    }
}


ngx_http_idem_op_t *
ngx_http_idem_op_detached(ngx_http_idem_store_t *store,
    ngx_http_idem_op_e kind, u_char *id, u_char *token)
{
    ngx_http_idem_op_t  *op;

    op = ngx_http_idem_op_new();

    if (op == NULL) {

        if (ngx_http_idem_nreserve == 0) {
            return NULL;
        }

        op = ngx_http_idem_reserve[--ngx_http_idem_nreserve];
    }

    op->kind = kind;
    op->store = store;
    op->log = ngx_cycle->log;

    ngx_memcpy(op->id, id, NGX_HTTP_IDEM_ID_LEN);
    ngx_memcpy(op->token, token, NGX_HTTP_IDEM_TOKEN_LEN);

    return op;
}


static ngx_http_idem_op_t *
ngx_http_idem_op_new(void)
{
    ngx_pool_t          *pool;
    ngx_http_idem_op_t  *op;

    pool = ngx_create_pool(NGX_HTTP_IDEM_OP_POOL_SIZE, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    op = ngx_http_idem_op_make(pool);

    if (op == NULL) {
        ngx_destroy_pool(pool);
    }

    return op;
}


static ngx_http_idem_op_t *
ngx_http_idem_op_make(ngx_pool_t *pool)
{
    ngx_http_idem_detached_t  *d;

    d = ngx_pcalloc(pool, sizeof(ngx_http_idem_detached_t));
    if (d == NULL) {
        return NULL;
    }

    d->op.pool = pool;
    d->op.claim = &d->claim;

    return &d->op;
}


ngx_int_t
ngx_http_idem_op_detach(ngx_http_idem_op_t *op)
{
    op->handler = ngx_http_idem_op_destroy;

    if (ngx_http_idem_store_submit(op) == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    ngx_http_idem_op_destroy(op);

    return NGX_OK;
}


static void
ngx_http_idem_op_destroy(ngx_http_idem_op_t *op)
{
    ngx_pool_t  *pool;

    if (op->result == NGX_HTTP_IDEM_LOST
        || op->result == NGX_HTTP_IDEM_FULL
        || op->result == NGX_HTTP_IDEM_ERROR)
    {
        ngx_log_error(NGX_LOG_WARN, op->log, 0,
                      "idempotency: %s in store \"%V\" failed: %s",
                      ngx_http_idem_op_names[op->kind],
                      &op->store->name,
                      op->error ? op->error : "the lock was lost");

        if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
            ngx_http_idem_op_commit_failed(op);
        }
    }

    if (op->detached) {
        op->detached(op);
    }

    pool = op->pool;

    /* refill the reserve with this pool */

    if (ngx_http_idem_nreserve < NGX_HTTP_IDEM_RESERVE) {
        ngx_reset_pool(pool);

        op = ngx_http_idem_op_make(pool);

        if (op) {
            ngx_http_idem_reserve[ngx_http_idem_nreserve++] = op;
            return;
        }
    }

    ngx_destroy_pool(pool);
}


/*
 * A detached commit, of a request that is gone or has no response to store,
 * counts as any other.
 */

static void
ngx_http_idem_op_commit_failed(ngx_http_idem_op_t *op)
{
    if (op->result == NGX_HTTP_IDEM_LOST) {
        ngx_http_idem_metrics_count(op->store->metrics,
                                    NGX_HTTP_IDEM_COUNT_LEASE_LOST);
        ngx_http_idem_store_event(op->store, NGX_HTTP_IDEM_EVENT_LOCK_LOST,
                                  op->id, "commit");
        return;
    }

    if (op->result == NGX_HTTP_IDEM_ERROR) {
        ngx_http_idem_metrics_count(op->store->metrics,
                                    NGX_HTTP_IDEM_COUNT_COMMIT_FAILURES);
    }

    ngx_http_idem_store_event(op->store, NGX_HTTP_IDEM_EVENT_STORAGE_ERROR,
                              op->id, op->result == NGX_HTTP_IDEM_FULL
                                      ? "no room for the response"
                                      : op->error);
}
