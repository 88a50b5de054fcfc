
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The audit trail in a store: lines of an event log, sent to the store in
 * batches.
 *
 * A batch is one operation, which belongs to no request.  While the store is
 * down, the log resends the batch, and drops and counts lines that do not fit
 * into its buffer.  A batch whose reply was lost is resent, too: then the
 * store has an event twice, with the same event_id.
 *
 * Called by the log; calls the store.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"


/* default number of events kept in memory, about 60 MB */
#define NGX_HTTP_IDEM_TRAIL_MAX  100000


typedef struct {
    ngx_http_idem_store_t   *store;
    ngx_http_idem_op_t       op;
    ngx_http_idem_trail_t    trail;
} ngx_http_idem_trail_log_t;


static void ngx_http_idem_trail_send(ngx_http_idem_log_t *log, u_char *p,
    size_t len);
static void ngx_http_idem_trail_sent(ngx_http_idem_op_t *op);


ngx_int_t
ngx_http_idem_trail_init(ngx_conf_t *cf, ngx_http_idem_log_t *log,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_trail_log_t  *t;

    t = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_trail_log_t));
    if (t == NULL) {
        return NGX_ERROR;
    }

    t->store = store;

    log->name = store->name;
    log->send = ngx_http_idem_trail_send;
    log->target = t;

    return NGX_OK;
}


static void
ngx_http_idem_trail_send(ngx_http_idem_log_t *log, u_char *p, size_t len)
{
    ngx_http_idem_op_t         *op;
    ngx_http_idem_trail_log_t  *t;

    t = log->target;
    op = &t->op;

    ngx_memzero(op, sizeof(ngx_http_idem_op_t));

    op->kind = NGX_HTTP_IDEM_OP_LOG;
    op->store = t->store;
    op->trail = &t->trail;
    op->handler = ngx_http_idem_trail_sent;
    op->data = log;
    op->log = ngx_cycle->log;

    t->trail.max = log->max ? log->max : NGX_HTTP_IDEM_TRAIL_MAX;
    t->trail.lines.data = p;
    t->trail.lines.len = len;
    t->trail.n = ngx_http_idem_log_lines(p, len);

    if (ngx_http_idem_store_submit(op) == NGX_OK) {
        ngx_http_idem_trail_sent(op);
    }
}


static void
ngx_http_idem_trail_sent(ngx_http_idem_op_t *op)
{
    ngx_http_idem_log_t  *log;

    log = op->data;

    if (op->result == NGX_HTTP_IDEM_OK) {
        ngx_http_idem_log_sent(log, 0, NULL);
        return;
    }

    if (op->bad_record) {
        ngx_http_idem_log_sent(log, op->trail->n, op->error);
        return;
    }

    ngx_http_idem_log_unsent(log, op->error ? op->error : "no reply");
}
