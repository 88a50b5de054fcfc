
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * An operation that a layer passes on to the inner store.
 *
 * It is a separate operation, the child, since timer and queue of the outer
 * operation can be used by one backend only.  It uses the pool of the outer
 * operation for the record found.  When it completes, its result is copied to
 * the outer operation, and the layer examines it.  Then the outer operation
 * completes, or the layer submits another child.
 *
 * Children come from a free list of this worker: an operation need not have a
 * pool, and a long request renews its lease often, which would make a pool
 * grow.
 *
 * Called by the layers; calls the inner store.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/*
 * This many free children are reserved for commits and releases, so that
 * locks can be ended when memory is short.
 */
#define NGX_HTTP_IDEM_LAYER_RESERVE  16


typedef struct ngx_http_idem_child_s  ngx_http_idem_child_t;

struct ngx_http_idem_child_s {
    ngx_http_idem_op_t       op;                /* must be first */
    ngx_http_idem_op_t      *outer;
    ngx_http_idem_layer_pt   done;
    uintptr_t                note;
    ngx_http_idem_child_t   *next;              /* in the free list */
};


static void ngx_http_idem_layer_handler(ngx_http_idem_op_t *child);
static ngx_int_t ngx_http_idem_layer_end(ngx_http_idem_op_t *child);
static void ngx_http_idem_layer_free(ngx_http_idem_child_t *child);


static ngx_http_idem_child_t  *ngx_http_idem_layer_spare;
static ngx_uint_t                     ngx_http_idem_layer_nspare;


ngx_int_t
ngx_http_idem_layer_ask(ngx_http_idem_op_t *op, ngx_http_idem_store_t *inner,
    ngx_http_idem_layer_pt done, uintptr_t note)
{
    ngx_http_idem_op_t  *child;

    child = ngx_http_idem_layer_child(op, inner, done, note);

    if (child == NULL) {
        return done ? done(op, note) : NGX_OK;
    }

    return ngx_http_idem_layer_submit(child);
}


ngx_http_idem_op_t *
ngx_http_idem_layer_child(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *inner, ngx_http_idem_layer_pt done, uintptr_t note)
{
    ngx_http_idem_child_t  *child;

    child = ngx_http_idem_layer_spare;

    if (ngx_http_idem_layer_nspare
        > ((op->kind == NGX_HTTP_IDEM_OP_COMMIT
            || op->kind == NGX_HTTP_IDEM_OP_RELEASE)
           ? 0 : NGX_HTTP_IDEM_LAYER_RESERVE))
    {
        ngx_http_idem_layer_spare = child->next;
        ngx_http_idem_layer_nspare--;

    } else {
        child = ngx_alloc(sizeof(ngx_http_idem_child_t), ngx_cycle->log);
        if (child == NULL) {
            ngx_http_idem_op_error(op, "no memory for an operation");
            return NULL;
        }
    }

    child->op = *op;
    child->outer = op;
    child->done = done;
    child->note = note;

    /* another store may have been asked first, and have been slow */

    child->op.age = ngx_http_idem_op_age(op);

    child->op.store = inner;
    child->op.where = NULL;
    child->op.handler = ngx_http_idem_layer_handler;
    child->op.data = child;
    child->op.abandoned = 0;
    child->op.expired = 0;
    child->op.pending = 0;
    child->op.state_data = NULL;

    ngx_memzero(&child->op.timer, sizeof(ngx_event_t));

    return &child->op;
}


ngx_int_t
ngx_http_idem_layer_submit(ngx_http_idem_op_t *child)
{
    ngx_http_idem_child_t  *c;

    c = child->data;
    c->outer->state_data = c;

    if (ngx_http_idem_store_submit(child) == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    return ngx_http_idem_layer_end(child);
}


static void
ngx_http_idem_layer_handler(ngx_http_idem_op_t *child)
{
    ngx_http_idem_op_t     *op;
    ngx_http_idem_child_t  *c;

    c = child->data;
    op = c->outer;

    if (ngx_http_idem_layer_end(child) == NGX_OK) {
        ngx_http_idem_store_complete(op);
    }

    /* op->pending is still set if another child is pending */
}


static ngx_int_t
ngx_http_idem_layer_end(ngx_http_idem_op_t *child)
{
    uintptr_t                note;
    ngx_http_idem_op_t      *op;
    ngx_http_idem_child_t   *c;
    ngx_http_idem_layer_pt   done;

    c = child->data;
    op = c->outer;
    done = c->done;
    note = c->note;

    op->result = child->result;
    op->error = child->error;
    op->abandoned = child->abandoned;
    op->expired = child->expired;

    if (child->original) {
        op->original = child->original;
    }

    op->turned_away = child->turned_away;
    op->bad_record = child->bad_record;
    op->denied = child->denied;
    op->running = child->running;
    op->kept = child->kept;
    op->unacknowledged = child->unacknowledged;
    op->lock = child->lock;

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
        op->sent_at = child->sent_at;
    }

    if (child->result == NGX_HTTP_IDEM_FOUND) {
        op->found = child->found;

    } else if (child->abandoned) {
        op->found.details = child->found.details;
    }

    op->state_data = NULL;

    ngx_http_idem_layer_free(c);

    return done ? done(op, note) : NGX_OK;
}


static void
ngx_http_idem_layer_free(ngx_http_idem_child_t *child)
{
    child->next = ngx_http_idem_layer_spare;
    ngx_http_idem_layer_spare = child;
    ngx_http_idem_layer_nspare++;
}


uintptr_t
ngx_http_idem_layer_note(ngx_http_idem_op_t *op)
{
    ngx_http_idem_child_t  *child;

    child = op->state_data;

    return child->note;
}


void
ngx_http_idem_layer_cancel(ngx_http_idem_op_t *op)
{
    ngx_http_idem_child_t  *child;

    child = op->state_data;
    op->state_data = NULL;

    ngx_http_idem_store_cancel(&child->op);

    ngx_http_idem_layer_free(child);
}


ngx_int_t
ngx_http_idem_layer_pass(ngx_http_idem_op_t *op)
{
    return ngx_http_idem_layer_ask(op, ngx_http_idem_layer_inner(op), NULL,
                                   0);
}


ngx_int_t
ngx_http_idem_layer_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_child_t  *child;
    ngx_http_idem_layer_t  *layer;

    while (ngx_http_idem_layer_nspare < NGX_HTTP_IDEM_LAYER_RESERVE) {
        child = ngx_alloc(sizeof(ngx_http_idem_child_t), cycle->log);
        if (child == NULL) {
            return NGX_ERROR;
        }

        ngx_http_idem_layer_free(child);
    }

    layer = store->conf;

    return layer->inner->backend->init_process(cycle, layer->inner);
}


void
ngx_http_idem_layer_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_layer_t  *layer;

    layer = store->conf;

    layer->inner->backend->exit_process(cycle, layer->inner);
}
