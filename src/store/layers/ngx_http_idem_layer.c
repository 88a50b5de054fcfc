
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * An operation that a layer hands down to the store inside.
 *
 * It is an operation of its own (the asker's has one timer and one place in a
 * queue, which belong to the backend below), with the asker's pool for what
 * is found.  When it is done its answer is copied up, and the layer looks at
 * it; then the asker is told, or another one is handed down.
 *
 * They come from a list of this worker, since an operation need not have a
 * pool, and a request that runs for long renews its lease often.
 *
 * Called by the layers; calls the store inside.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/*
 * Of those that are spare, so many are for commits and releases: when memory
 * is short, it is not what ends a lock that fails
 */
#define NGX_HTTP_IDEM_LAYER_RESERVE  16


typedef struct ngx_http_idem_child_s  ngx_http_idem_child_t;

struct ngx_http_idem_child_s {
    ngx_http_idem_op_t       op;                /* first                    */
    ngx_http_idem_op_t      *outer;
    ngx_http_idem_layer_pt   done;
    uintptr_t                note;
    ngx_http_idem_child_t   *next;              /* that is free             */
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
        op->result = NGX_HTTP_IDEM_ERROR;
        op->error = "no memory for an operation";

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
            return NULL;
        }
    }

    child->op = *op;
    child->outer = op;
    child->done = done;
    child->note = note;

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

    /* op->pending is as it was: another one is under way */
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
    op->running = child->running;
    op->kept = child->kept;
    op->unacknowledged = child->unacknowledged;
    op->laid = child->laid;

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
        op->asked = child->asked;
    }

    if (child->result == NGX_HTTP_IDEM_FOUND) {
        op->found = child->found;
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

    while (ngx_http_idem_layer_nspare
           < NGX_HTTP_IDEM_LAYER_RESERVE)
    {
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
    ngx_http_idem_child_t  *child;
    ngx_http_idem_layer_t  *layer;

    layer = store->conf;

    layer->inner->backend->exit_process(cycle, layer->inner);

    while (ngx_http_idem_layer_spare) {
        child = ngx_http_idem_layer_spare;
        ngx_http_idem_layer_spare = child->next;
        ngx_http_idem_layer_nspare--;

        ngx_free(child);
    }
}
