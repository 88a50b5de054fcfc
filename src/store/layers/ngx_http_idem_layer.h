
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A layer: a store around another store, the inner one.  It passes operations
 * on to the inner store as operations of its own.
 */


#ifndef _NGX_HTTP_IDEM_LAYER_H_INCLUDED_
#define _NGX_HTTP_IDEM_LAYER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/ngx_http_idem_store.h"


/* the first member of every layer's conf */

typedef struct {
    ngx_http_idem_store_t   *inner;
    ngx_http_idem_store_t   *named;             /* as declared: the outermost,
                                                   which has the metrics */
} ngx_http_idem_layer_t;


/*
 * Called when the inner operation is complete and its result is copied to
 * "op".  NGX_OK: the operation is complete; NGX_AGAIN: another inner
 * operation is pending.
 */
typedef ngx_int_t (*ngx_http_idem_layer_pt)(
    ngx_http_idem_op_t *op, uintptr_t note);

/* submits an inner operation; NGX_OK or NGX_AGAIN; "done" may be NULL */
ngx_int_t ngx_http_idem_layer_ask(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *inner, ngx_http_idem_layer_pt done,
    uintptr_t note);

/*
 * The same in two steps, to change the inner operation.  Without memory
 * child() sets op->result and op->error, and returns NULL.
 */
ngx_http_idem_op_t *ngx_http_idem_layer_child(
    ngx_http_idem_op_t *op, ngx_http_idem_store_t *inner,
    ngx_http_idem_layer_pt done, uintptr_t note);
ngx_int_t ngx_http_idem_layer_submit(ngx_http_idem_op_t *child);

/* note() returns the note of the inner operation; cancel() cancels it */
uintptr_t ngx_http_idem_layer_note(ngx_http_idem_op_t *op);
void ngx_http_idem_layer_cancel(ngx_http_idem_op_t *op);

/* for layers that pass an operation on unchanged */
ngx_int_t ngx_http_idem_layer_pass(ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_layer_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
void ngx_http_idem_layer_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);

#define ngx_http_idem_layer_inner(op)                                         \
    (((ngx_http_idem_layer_t *) (op)->store->conf)->inner)

/* the backend inside all layers */
ngx_http_idem_store_t *ngx_http_idem_layer_innermost(
    ngx_http_idem_store_t *store);

/* the store replied, whatever the result */
#define ngx_http_idem_layer_answered(op)                                      \
    ((op)->result != NGX_HTTP_IDEM_ERROR || (op)->bad_record)


#endif /* _NGX_HTTP_IDEM_LAYER_H_INCLUDED_ */
