
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A layer: a store whose conf begins with the one inside, to which it hands an
 * operation down as one of its own.
 */


#ifndef _NGX_HTTP_IDEM_LAYER_H_INCLUDED_
#define _NGX_HTTP_IDEM_LAYER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/ngx_http_idem_store.h"


/* the beginning of every layer's conf */

typedef struct {
    ngx_http_idem_store_t   *inner;
    ngx_http_idem_store_t   *named;             /* as declared: the outermost,
                                                   which has the figures    */
} ngx_http_idem_layer_t;


/*
 * The inner operation is done, and its answer stands in "op".  NGX_OK: that
 * was all; NGX_AGAIN: another one was handed down, and is under way.
 */
typedef ngx_int_t (*ngx_http_idem_layer_pt)(
    ngx_http_idem_op_t *op, uintptr_t note);

/* for begin, renew ... of a layer: NGX_OK or NGX_AGAIN; "done" may be NULL */
ngx_int_t ngx_http_idem_layer_ask(ngx_http_idem_op_t *op,
    ngx_http_idem_store_t *inner, ngx_http_idem_layer_pt done,
    uintptr_t note);

/* the same in two steps, for one who changes it in between; may be NULL */
ngx_http_idem_op_t *ngx_http_idem_layer_child(
    ngx_http_idem_op_t *op, ngx_http_idem_store_t *inner,
    ngx_http_idem_layer_pt done, uintptr_t note);
ngx_int_t ngx_http_idem_layer_submit(ngx_http_idem_op_t *child);

/* the note of the inner operation, which is cancelled */
uintptr_t ngx_http_idem_layer_note(ngx_http_idem_op_t *op);
void ngx_http_idem_layer_cancel(ngx_http_idem_op_t *op);

/* operations of a layer that has nothing to say to them */
ngx_int_t ngx_http_idem_layer_pass(ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_layer_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
void ngx_http_idem_layer_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);

#define ngx_http_idem_layer_inner(op)                                         \
    (((ngx_http_idem_layer_t *) (op)->store->conf)->inner)

/* what the layers stand around: the backend itself */
ngx_http_idem_store_t *ngx_http_idem_layer_innermost(
    ngx_http_idem_store_t *store);

/* the store answered, whatever it said */
#define ngx_http_idem_layer_answered(op)                                      \
    ((op)->result != NGX_HTTP_IDEM_ERROR || (op)->bad_record)


#endif /* _NGX_HTTP_IDEM_LAYER_H_INCLUDED_ */
