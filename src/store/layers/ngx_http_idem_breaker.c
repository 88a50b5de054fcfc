
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The circuit breaker: after a number of consecutive failures a store is
 * asked only by probes, so that requests do not wait for a store that does
 * not answer.
 *
 * The breaker rejects begin and watch only, which come before the application
 * runs.  The operations that follow (renew, commit, release) always pass, and
 * their results count as well: any failure is one more, and any reply of the
 * store resets the count.  A completed watch is no reply, since it may be due
 * to its timer; and an error that concerns one record is no failure of the
 * store.
 *
 * Closed: everything passes.  Open, for "reset": begin and watch fail at
 * once.  Then half open: one begin of all workers passes, the probe.  Its
 * reply closes the breaker, its failure opens it again.  A probe is limited
 * in time: after that, for example if its worker was killed, the next begin
 * is the probe.
 *
 * A store that consists of several servers has a breaker for each of them, so
 * that a server that is down does not block requests to the others.  Results
 * count for the node that was asked first, even if it redirects.
 *
 * The state is in shared memory.  While the store works, its lock is not
 * taken.
 *
 * Called through the layers around it; calls the backend.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/zone/ngx_http_idem_mutex.h"
#include "store/layers/ngx_http_idem_layers.h"


/* bounds of the time limit of a probe, ms */
#define NGX_HTTP_IDEM_PROBE_MIN  1000
#define NGX_HTTP_IDEM_PROBE_MAX  10000

/* the probe number of other operations */
#define NGX_HTTP_IDEM_NO_PROBE   0

/* length of "node <node> of store <name>" */
#define NGX_HTTP_IDEM_BREAKER_TEXT_LEN  256


static ngx_int_t ngx_http_idem_breaker_ask(ngx_http_idem_op_t *op);
static void ngx_http_idem_breaker_cancel(ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_breaker_slot(
    ngx_http_idem_breaker_t *b, u_char *id);
static ngx_int_t ngx_http_idem_breaker_gate(
    ngx_http_idem_breaker_t *b, ngx_uint_t slot, uintptr_t *probe);
static ngx_int_t ngx_http_idem_breaker_done(
    ngx_http_idem_op_t *op, uintptr_t note);
static void ngx_http_idem_breaker_answered(ngx_http_idem_breaker_t *b,
    ngx_http_idem_op_t *op, ngx_uint_t slot, uintptr_t probe);
static void ngx_http_idem_breaker_failed(ngx_http_idem_breaker_t *b,
    ngx_http_idem_op_t *op, ngx_uint_t slot, uintptr_t probe);
static void ngx_http_idem_breaker_opened(ngx_http_idem_breaker_t *b,
    ngx_http_idem_op_t *op, ngx_uint_t fails);
static u_char *ngx_http_idem_breaker_describe(ngx_http_idem_breaker_t *b,
    ngx_uint_t slot, u_char *p, u_char *last);


const ngx_http_idem_backend_t  ngx_http_idem_breaker_backend = {
    ngx_string("breaker"),
    NULL,
    NULL,
    NULL,
    ngx_http_idem_layer_init_process,
    ngx_http_idem_layer_exit_process,
    ngx_http_idem_breaker_ask,               /* begin */
    ngx_http_idem_breaker_ask,               /* renew */
    ngx_http_idem_breaker_ask,               /* commit */
    ngx_http_idem_breaker_ask,               /* release */
    ngx_http_idem_breaker_ask,               /* watch */
    ngx_http_idem_breaker_cancel,
    NULL,                                  /* stats */
    1,
    ngx_http_idem_layer_pass,                /* admin */
    NGX_HTTP_IDEM_TRAIL_NONE                 /* see store->trail */
};


#define ngx_http_idem_breaker_conf(op)                                        \
    ((ngx_http_idem_breaker_t *) (op)->store->conf)

#define ngx_http_idem_breaker_sh(b, slot)                                     \
    (&((ngx_http_idem_breaker_sh_t *) (b)->shared.data)[slot])

/* read without the lock: the value may be slightly outdated */
#define ngx_http_idem_breaker_is(b, slot, what)                               \
    (*(volatile ngx_uint_t *)                                                 \
         &ngx_http_idem_breaker_sh(b, slot)->what)

/* the note of an inner operation: slot of the node, number of the probe */
#define ngx_http_idem_breaker_note(slot, probe)                               \
    ((probe) * NGX_HTTP_IDEM_BREAKERS + (slot))
#define ngx_http_idem_breaker_note_slot(note)                                 \
    ((note) % NGX_HTTP_IDEM_BREAKERS)
#define ngx_http_idem_breaker_note_probe(note)                                \
    ((note) / NGX_HTTP_IDEM_BREAKERS)

/* probe numbers wrap before a note overflows */
#define NGX_HTTP_IDEM_PROBE_LAST                                              \
    ((uintptr_t) -1 / NGX_HTTP_IDEM_BREAKERS - 1)


/* a watch is never a probe */

static ngx_int_t
ngx_http_idem_breaker_ask(ngx_http_idem_op_t *op)
{
    uintptr_t                 probe;
    ngx_uint_t                slot;
    ngx_http_idem_breaker_t  *b;

    b = ngx_http_idem_breaker_conf(op);
    slot = ngx_http_idem_breaker_slot(b, op->id);
    probe = NGX_HTTP_IDEM_NO_PROBE;

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN
        && ngx_http_idem_breaker_gate(b, slot, &probe) != NGX_OK)
    {
        ngx_http_idem_metrics_count(b->layer.named->metrics,
                                    NGX_HTTP_IDEM_COUNT_BREAKER_REJECTED);
        goto rejected;
    }

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH
        && ngx_http_idem_breaker_is(b, slot, state)
           != NGX_HTTP_IDEM_BREAKER_CLOSED)
    {
        goto rejected;
    }

    return ngx_http_idem_layer_ask(op, b->layer.inner,
                                   ngx_http_idem_breaker_done,
                                   ngx_http_idem_breaker_note(slot, probe));

rejected:

    ngx_http_idem_op_error(op, "the breaker is open");
    op->turned_away = 1;

    return NGX_OK;
}


static void
ngx_http_idem_breaker_cancel(ngx_http_idem_op_t *op)
{
    uintptr_t                    note, probe;
    ngx_http_idem_breaker_t     *b;
    ngx_http_idem_breaker_sh_t  *sh;

    b = ngx_http_idem_breaker_conf(op);
    note = ngx_http_idem_layer_note(op);
    probe = ngx_http_idem_breaker_note_probe(note);

    ngx_http_idem_layer_cancel(op);

    if (probe == NGX_HTTP_IDEM_NO_PROBE) {
        return;
    }

    /* the probe has no result: let the next begin be the probe */

    sh = ngx_http_idem_breaker_sh(b, ngx_http_idem_breaker_note_slot(note));

    ngx_http_idem_mutex_lock(b->shared.shpool);

    if (sh->state == NGX_HTTP_IDEM_BREAKER_HALF_OPEN && sh->probe == probe) {
        sh->until = ngx_current_msec;
    }

    ngx_http_idem_mutex_unlock(b->shared.shpool);
}


/* the slot of the node that has the record, as far as this worker knows */

static ngx_uint_t
ngx_http_idem_breaker_slot(ngx_http_idem_breaker_t *b, u_char *id)
{
    ngx_http_idem_nodes_t       *nodes;
    ngx_http_idem_store_node_t  *node;
    ngx_http_idem_breaker_sh_t  *sh;

    nodes = b->layer.named->nodes;

    if (nodes == NULL) {
        return 0;
    }

    node = nodes->find(nodes->data, id);

    if (node == NULL || node->slot == 0) {
        return 0;
    }

    if (ngx_http_idem_breaker_is(b, node->slot, owner) != node->owner) {
        /* the slot was reassigned: discard the state of the former node */

        sh = ngx_http_idem_breaker_sh(b, node->slot);

        ngx_http_idem_mutex_lock(b->shared.shpool);

        if (sh->owner != node->owner) {
            ngx_memzero(sh, sizeof(ngx_http_idem_breaker_sh_t));

            ngx_memory_barrier();

            sh->owner = node->owner;
        }

        ngx_http_idem_mutex_unlock(b->shared.shpool);
    }

    return node->slot;
}


/* NGX_OK: pass, as a probe if *probe was set; NGX_DECLINED: reject */

static ngx_int_t
ngx_http_idem_breaker_gate(ngx_http_idem_breaker_t *b,
    ngx_uint_t slot, uintptr_t *probe)
{
    ngx_int_t                    rc;
    ngx_msec_t                   time;
    ngx_http_idem_breaker_sh_t  *sh;

    if (ngx_http_idem_breaker_is(b, slot, state)
        == NGX_HTTP_IDEM_BREAKER_CLOSED)
    {
        return NGX_OK;
    }

    rc = NGX_OK;
    sh = ngx_http_idem_breaker_sh(b, slot);

    ngx_http_idem_mutex_lock(b->shared.shpool);

    if (sh->state == NGX_HTTP_IDEM_BREAKER_CLOSED) {
        /* closed in the meantime */

    } else if ((ngx_msec_int_t) (sh->until - ngx_current_msec) > 0) {
        rc = NGX_DECLINED;

    } else {
        time = ngx_min(b->reset, NGX_HTTP_IDEM_PROBE_MAX);
        time = ngx_max(time, NGX_HTTP_IDEM_PROBE_MIN);

        if (++sh->probe > NGX_HTTP_IDEM_PROBE_LAST) {
            sh->probe = NGX_HTTP_IDEM_NO_PROBE + 1;
        }

        sh->state = NGX_HTTP_IDEM_BREAKER_HALF_OPEN;
        sh->until = ngx_current_msec + time;

        *probe = sh->probe;
    }

    ngx_http_idem_mutex_unlock(b->shared.shpool);

    return rc;
}


static ngx_int_t
ngx_http_idem_breaker_done(ngx_http_idem_op_t *op, uintptr_t note)
{
    uintptr_t                 probe;
    ngx_uint_t                slot;
    ngx_http_idem_breaker_t  *b;

    b = ngx_http_idem_breaker_conf(op);
    slot = ngx_http_idem_breaker_note_slot(note);
    probe = ngx_http_idem_breaker_note_probe(note);

    if (!ngx_http_idem_layer_answered(op)) {
        ngx_http_idem_breaker_failed(b, op, slot, probe);

    } else if (op->kind != NGX_HTTP_IDEM_OP_WATCH
               && (ngx_http_idem_breaker_is(b, slot, fails)
                   || ngx_http_idem_breaker_is(b, slot, state)
                      != NGX_HTTP_IDEM_BREAKER_CLOSED))
    {
        ngx_http_idem_breaker_answered(b, op, slot, probe);
    }

    return NGX_OK;
}


static void
ngx_http_idem_breaker_answered(ngx_http_idem_breaker_t *b,
    ngx_http_idem_op_t *op, ngx_uint_t slot, uintptr_t probe)
{
    u_char                      *p;
    u_char                       text[NGX_HTTP_IDEM_BREAKER_TEXT_LEN];
    ngx_uint_t                   closed;
    ngx_http_idem_breaker_sh_t  *sh;

    closed = 0;
    sh = ngx_http_idem_breaker_sh(b, slot);

    ngx_http_idem_mutex_lock(b->shared.shpool);

    if (sh->state == NGX_HTTP_IDEM_BREAKER_CLOSED) {
        sh->fails = 0;

    } else if (probe != NGX_HTTP_IDEM_NO_PROBE
               || (ngx_msec_int_t) (op->start - sh->opened) > 0)
    {
        /*
         * not a late reply to an operation submitted before the breaker
         * opened
         */

        sh->state = NGX_HTTP_IDEM_BREAKER_CLOSED;
        sh->fails = 0;
        closed = 1;
    }

    ngx_http_idem_mutex_unlock(b->shared.shpool);

    if (closed) {
        ngx_http_idem_store_event(b->layer.named,
                                  NGX_HTTP_IDEM_EVENT_BREAKER_CLOSED, NULL,
                                  NULL);

        p = ngx_http_idem_breaker_describe(b, slot, text,
                                           text + sizeof(text));

        ngx_log_error(NGX_LOG_NOTICE, op->log, 0,
                      "idempotency: %*s answers again, its breaker is closed",
                      p - text, text);
    }
}


static void
ngx_http_idem_breaker_failed(ngx_http_idem_breaker_t *b,
    ngx_http_idem_op_t *op, ngx_uint_t slot, uintptr_t probe)
{
    u_char                      *p;
    u_char                       text[NGX_HTTP_IDEM_BREAKER_TEXT_LEN];
    ngx_uint_t                   fails, opened, again;
    ngx_http_idem_breaker_sh_t  *sh;

    opened = 0;
    again = 0;
    sh = ngx_http_idem_breaker_sh(b, slot);

    ngx_http_idem_mutex_lock(b->shared.shpool);

    if (sh->state == NGX_HTTP_IDEM_BREAKER_CLOSED) {
        opened = (++sh->fails >= b->fails);

    } else if (sh->state == NGX_HTTP_IDEM_BREAKER_HALF_OPEN) {
        again = (probe != NGX_HTTP_IDEM_NO_PROBE && probe == sh->probe);
    }

    if (again && op->start == ngx_current_msec) {

        /*
         * The backend failed the probe at once, without asking the server,
         * since it is between two attempts to connect.  That proves nothing,
         * so the next probe may follow soon.
         */

        again = 0;
        sh->until = ngx_current_msec + ngx_min(b->reset,
                                               NGX_HTTP_IDEM_PROBE_MIN);
    }

    if (opened || again) {
        sh->state = NGX_HTTP_IDEM_BREAKER_OPEN;
        sh->opened = ngx_current_msec;
        sh->until = ngx_current_msec + b->reset;
    }

    fails = sh->fails;

    ngx_http_idem_mutex_unlock(b->shared.shpool);

    if (!opened && !again) {
        return;
    }

    p = ngx_http_idem_breaker_describe(b, slot, text, text + sizeof(text));

    if (again) {
        ngx_log_error(NGX_LOG_NOTICE, op->log, 0,
                      "idempotency: %*s still fails, its breaker stays open "
                      "for %M ms: %s", p - text, text, b->reset,
                      op->error ? op->error : "no answer");
        return;
    }

    ngx_http_idem_metrics_count(b->layer.named->metrics,
                                NGX_HTTP_IDEM_COUNT_BREAKER_OPENED);
    ngx_http_idem_breaker_opened(b, op, fails);

    ngx_log_error(NGX_LOG_WARN, op->log, 0,
                  "idempotency: %*s failed %ui times in a row, its breaker is "
                  "open for %M ms: %s", p - text, text, b->fails, b->reset,
                  op->error ? op->error : "no answer");
}


static void
ngx_http_idem_breaker_opened(ngx_http_idem_breaker_t *b,
    ngx_http_idem_op_t *op, ngx_uint_t fails)
{
    ngx_http_idem_line_t  line;

    if (ngx_http_idem_line_start(&line, b->layer.named->log,
                                 NGX_HTTP_IDEM_EVENT_BREAKER_OPENED,
                                 &b->layer.named->name)
        != NGX_OK)
    {
        return;
    }

    if (op->error) {
        ngx_http_idem_line_word(&line, "reason", op->error);
    }

    ngx_http_idem_line_number(&line, "failure_count", fails);
    ngx_http_idem_line_number(&line, "threshold", b->fails);

    ngx_http_idem_line_write(&line);
}


static u_char *
ngx_http_idem_breaker_describe(ngx_http_idem_breaker_t *b,
    ngx_uint_t slot, u_char *p, u_char *last)
{
    ngx_http_idem_node_counters_t  *node;

    node = ngx_http_idem_nodes_at(b->layer.named->nodes, slot);

    if (node) {
        p = ngx_slprintf(p, last, "node %*s of ", node->len, node->name);
    }

    return ngx_slprintf(p, last, "store \"%V\"", &b->layer.named->name);
}


/* read without the lock, for statistics only */

ngx_int_t
ngx_http_idem_breaker_state(ngx_http_idem_store_t *store, ngx_uint_t slot)
{
    ngx_int_t                 worst, state;
    ngx_uint_t                i;
    ngx_http_idem_breaker_t  *b;

    if (store->layers == NULL || store->layers->breaker == NULL) {
        return NGX_DECLINED;
    }

    b = store->layers->breaker;

    worst = ngx_http_idem_breaker_sh(b, slot)->state;

    if (slot || store->nodes == NULL) {
        return worst;
    }

    for (i = 1; i < NGX_HTTP_IDEM_BREAKERS; i++) {
        if (ngx_http_idem_nodes_at(store->nodes, i)) {
            state = ngx_http_idem_breaker_sh(b, i)->state;

            /* open is worse than half open, which is worse than closed */

            if (state == NGX_HTTP_IDEM_BREAKER_OPEN
                || worst == NGX_HTTP_IDEM_BREAKER_CLOSED)
            {
                worst = state;
            }
        }
    }

    return worst;
}
