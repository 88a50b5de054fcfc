
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Operations of a holder that has the lock in both stores of a fallback:
 * renew, commit, release.  The result is that of the primary; the ledger is
 * updated before or after.
 *
 * Called by the fallback; calls both stores.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/* note of the copy of a commit: the primary has it in its outbox only */

#define NGX_HTTP_IDEM_FALLBACK_KEPT  0x01

/* how long the ledger keeps a copy of a record in the primary, ms */
#define NGX_HTTP_IDEM_FALLBACK_COPY  10000


static ngx_int_t ngx_http_idem_fallback_both_next(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_both_committed(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_copied(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_saved(
    ngx_http_idem_op_t *op, uintptr_t note);


ngx_int_t
ngx_http_idem_fallback_both(ngx_http_idem_op_t *op)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
        return ngx_http_idem_layer_ask(op, &f->primary,
                                       ngx_http_idem_fallback_both_committed,
                                       0);
    }

    return ngx_http_idem_fallback_ask(op, f->ledger,
                                      ngx_http_idem_fallback_both_next, 0, 0,
                                      op->is_waiter);
}


static ngx_int_t
ngx_http_idem_fallback_both_next(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    return ngx_http_idem_layer_ask(op, &f->primary, NULL, 0);
}


static ngx_int_t
ngx_http_idem_fallback_both_committed(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_op_t        *child;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    switch (op->result) {

    case NGX_HTTP_IDEM_OK:
        note = op->kept ? NGX_HTTP_IDEM_FALLBACK_KEPT : 0;

        child = ngx_http_idem_layer_child(op, f->ledger,
                                          ngx_http_idem_fallback_copied, note);
        if (child == NULL) {
            return ngx_http_idem_fallback_copied(op, note);
        }

        child->ttl = ngx_min(op->ttl, NGX_HTTP_IDEM_FALLBACK_COPY);
        child->grace = 0;
        child->spare = 1;

        return ngx_http_idem_layer_submit(child);

    case NGX_HTTP_IDEM_ERROR:

        /* not even the outbox could keep the commit: the ledger can */

        ngx_http_idem_fallback_used(f, ngx_http_idem_record_life(op));

        return ngx_http_idem_layer_ask(op, f->ledger,
                                       ngx_http_idem_fallback_saved, 0);

    default: /* NGX_HTTP_IDEM_LOST, NGX_HTTP_IDEM_FULL */
        ngx_http_idem_fallback_give_back(op, f->ledger);
        return NGX_OK;
    }
}


static ngx_int_t
ngx_http_idem_fallback_copied(ngx_http_idem_op_t *op, uintptr_t note)
{
    op->result = NGX_HTTP_IDEM_OK;
    op->kept = (note & NGX_HTTP_IDEM_FALLBACK_KEPT) ? 1 : 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_fallback_saved(ngx_http_idem_op_t *op, uintptr_t note)
{
    if (op->result != NGX_HTTP_IDEM_OK) {
        ngx_http_idem_op_error(op, "no answer, and the fallback fails, too");
    }

    return NGX_OK;
}
