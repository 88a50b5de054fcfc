
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Operations of a holder that has the lock in both stores of a fallback:
 * renew, commit, release.  The result is that of the primary; the ledger is
 * updated before or after.
 *
 * A renewal is sent to both at once.  While it waits for the primary, or a
 * commit does, a keeper renews the lock in the ledger by itself, a third of the
 * lease after the last time: the primary may be silent for longer than a lease,
 * and all that is known of the holder then is in the ledger.
 *
 * Called by the fallback; calls both stores.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/* how long the ledger keeps a copy of a record in the primary, ms */
#define NGX_HTTP_IDEM_FALLBACK_COPY  10000


/* renews the lock in the ledger while an operation waits for the primary */

typedef struct {
    ngx_http_idem_op_t       renewal;           /* in the ledger */
    ngx_http_idem_claim_t    claim;
    ngx_http_idem_op_t      *op;                /* NULL: it has its result,
                                                   the last renewal has not */
    ngx_event_t              timer;
} ngx_http_idem_keeper_t;


static ngx_int_t ngx_http_idem_fallback_both_renewed(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_both_committed(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_copied(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_copied_kept(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_int_t ngx_http_idem_fallback_saved(
    ngx_http_idem_op_t *op, uintptr_t note);
static ngx_http_idem_keeper_t *ngx_http_idem_keeper_start(
    ngx_http_idem_op_t *op, ngx_http_idem_store_t *ledger);
static void ngx_http_idem_keeper_handler(ngx_event_t *ev);
static void ngx_http_idem_keeper_renewed(ngx_http_idem_op_t *renewal);


ngx_int_t
ngx_http_idem_fallback_both(ngx_http_idem_op_t *op)
{
    ngx_http_idem_keeper_t    *keeper;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    if (op->kind == NGX_HTTP_IDEM_OP_RELEASE) {

        /* by itself: the primary does not wait for a ledger that is silent */

        ngx_http_idem_fallback_give_back(op, f->ledger);

        return ngx_http_idem_layer_ask(op, &f->primary, NULL, 0);
    }

    keeper = ngx_http_idem_keeper_start(op, f->ledger);

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT) {
        return ngx_http_idem_layer_ask(op, &f->primary,
                                       ngx_http_idem_fallback_both_committed,
                                       (uintptr_t) keeper);
    }

    if (keeper) {
        ngx_http_idem_keeper_handler(&keeper->timer);
    }

    return ngx_http_idem_layer_ask(op, &f->primary,
                                   ngx_http_idem_fallback_both_renewed,
                                   (uintptr_t) keeper);
}


/*
 * The operation has its result, and the request goes on.  A renewal that is
 * pending in the ledger is not given up: it may not have been sent yet.
 */

static ngx_int_t
ngx_http_idem_fallback_both_renewed(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_keeper_t  *keeper;

    keeper = (ngx_http_idem_keeper_t *) note;

    if (keeper == NULL || !keeper->renewal.pending) {
        ngx_http_idem_fallback_both_end(note);
        return NGX_OK;
    }

    ngx_housekeeping_stop(&keeper->timer);

    op->lock.stray = 1;
    keeper->op = NULL;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_fallback_both_committed(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_op_t        *child;
    ngx_http_idem_layer_pt     copied;
    ngx_http_idem_fallback_t  *f;

    f = ngx_http_idem_fallback_conf(op);

    ngx_http_idem_fallback_both_end(note);

    switch (op->result) {

    case NGX_HTTP_IDEM_OK:
        copied = op->kept ? ngx_http_idem_fallback_copied_kept
                          : ngx_http_idem_fallback_copied;

        child = ngx_http_idem_layer_child(op, f->ledger, copied, 0);
        if (child == NULL) {
            return copied(op, 0);
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
    op->kept = 0;

    return NGX_OK;
}


/* the primary has it in its outbox only */

static ngx_int_t
ngx_http_idem_fallback_copied_kept(ngx_http_idem_op_t *op, uintptr_t note)
{
    op->result = NGX_HTTP_IDEM_OK;
    op->kept = 1;

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


/*
 * NULL: no memory.  The keeper has all that its renewals need, since the last
 * one may outlive the operation.
 */

static ngx_http_idem_keeper_t *
ngx_http_idem_keeper_start(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *ledger)
{
    u_char                  *details;
    ngx_http_idem_op_t      *renewal;
    ngx_http_idem_keeper_t  *keeper;

    keeper = ngx_calloc(sizeof(ngx_http_idem_keeper_t) + op->details.len,
                        ngx_cycle->log);
    if (keeper == NULL) {
        return NULL;
    }

    keeper->op = op;
    keeper->claim = *op->claim;

    details = (u_char *) (keeper + 1);

    if (op->details.len) {
        ngx_memcpy(details, op->details.data, op->details.len);
    }

    renewal = &keeper->renewal;

    renewal->kind = NGX_HTTP_IDEM_OP_RENEW;
    renewal->store = ledger;
    renewal->claim = &keeper->claim;
    renewal->details.data = details;
    renewal->details.len = op->details.len;
    renewal->lease = op->lease;
    renewal->ttl = op->ttl;
    renewal->grace = op->grace;
    renewal->log = ngx_cycle->log;
    renewal->handler = ngx_http_idem_keeper_renewed;
    renewal->data = keeper;

    ngx_memcpy(renewal->id, op->id, NGX_HTTP_IDEM_ID_LEN);
    ngx_memcpy(renewal->token, op->token, NGX_HTTP_IDEM_TOKEN_LEN);

    ngx_housekeeping_init(&keeper->timer, ngx_http_idem_keeper_handler,
                          keeper);
    ngx_add_timer(&keeper->timer, op->lease / 3);

    return keeper;
}


/* a renewal that is pending is not sent again: its store does that */

static void
ngx_http_idem_keeper_handler(ngx_event_t *ev)
{
    ngx_http_idem_keeper_t  *keeper;

    keeper = ev->data;

    if (!keeper->renewal.pending) {
        (void) ngx_http_idem_store_submit(&keeper->renewal);
    }

    if (!ev->timer_set) {
        ngx_add_timer(ev, keeper->renewal.lease / 3);
    }
}


/* whatever the result: that of the primary counts */

static void
ngx_http_idem_keeper_renewed(ngx_http_idem_op_t *renewal)
{
    ngx_http_idem_keeper_t  *keeper;

    keeper = renewal->data;

    if (keeper->op == NULL) {
        ngx_free(keeper);
    }
}


void
ngx_http_idem_fallback_both_end(uintptr_t note)
{
    ngx_http_idem_keeper_t  *keeper;

    keeper = (ngx_http_idem_keeper_t *) note;

    if (keeper == NULL) {
        return;
    }

    ngx_housekeeping_stop(&keeper->timer);

    if (keeper->renewal.pending || keeper->renewal.lock.stray) {
        keeper->op->lock.stray = 1;
    }

    ngx_http_idem_store_cancel(&keeper->renewal);

    ngx_free(keeper);
}
