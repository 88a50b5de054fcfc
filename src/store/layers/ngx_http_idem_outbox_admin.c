
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What people ask of the outbox: a record that waits here is shown and
 * removed, too.
 *
 * A commit that is on its way while its record is removed finds what the store
 * leaves in its place, and is lost: ..._store.h, remove.  A list is of what the
 * store has; how much waits here is in the figures.
 *
 * Called through the layers around it; calls the breaker or the backend inside,
 * and the zone.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_outbox.h"


static ngx_int_t ngx_http_idem_outbox_asked(ngx_http_idem_op_t *op,
    uintptr_t note);
static void ngx_http_idem_outbox_take(ngx_http_idem_outbox_t *o,
    ngx_http_idem_node_t *node);
static void ngx_http_idem_outbox_look(ngx_http_idem_outbox_t *o,
    ngx_http_idem_op_t *op);


ngx_int_t
ngx_http_idem_outbox_admin(ngx_http_idem_op_t *op)
{
    return ngx_http_idem_layer_ask(op, ngx_http_idem_layer_inner(op),
                                   op->kind >= NGX_HTTP_IDEM_OP_LIST
                                   ? NULL : ngx_http_idem_outbox_asked, 0);
}


static ngx_int_t
ngx_http_idem_outbox_asked(ngx_http_idem_op_t *op, uintptr_t note)
{
    ngx_http_idem_outbox_t  *o;

    o = op->store->conf;

    if (ngx_http_idem_outbox_empty(o)) {
        return NGX_OK;
    }

    /* a store that is away may have it: what is here alone is not removed */

    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE
        && op->result == NGX_HTTP_IDEM_ERROR)
    {
        return NGX_OK;
    }

    ngx_http_idem_outbox_look(o, op);

    return NGX_OK;
}


static void
ngx_http_idem_outbox_look(ngx_http_idem_outbox_t *o, ngx_http_idem_op_t *op)
{
    ngx_http_idem_node_t   *node;
    ngx_http_idem_entry_t  *entry;

    ngx_http_idem_outbox_lock(o);

    node = ngx_http_idem_zone_find(&o->z, op->id);

    /* the lock of one that runs without the store stays: its holder is here */

    if (node == NULL
        || (op->kind == NGX_HTTP_IDEM_OP_REMOVE
            && node->state == NGX_HTTP_IDEM_IN_PROGRESS))
    {
        ngx_http_idem_outbox_unlock(o);
        return;
    }

    /* of what the store lacks only: it has the newer ones */

    if (op->list->entries.nelts == 0) {
        entry = ngx_http_idem_zone_entry(&o->z, node, op);

        if (entry) {
            entry->kept = 1;
            op->error = NULL;
            op->result = (op->kind == NGX_HTTP_IDEM_OP_GET)
                         ? NGX_HTTP_IDEM_FOUND : NGX_HTTP_IDEM_OK;
        }
    }

    if (op->kind == NGX_HTTP_IDEM_OP_REMOVE) {
        ngx_http_idem_outbox_take(o, node);
    }

    ngx_http_idem_outbox_unlock(o);
}


static void
ngx_http_idem_outbox_take(ngx_http_idem_outbox_t *o,
    ngx_http_idem_node_t *node)
{
    ngx_http_idem_outbox_sh_t  *sh;

    sh = ngx_http_idem_outbox_sh(o);

    if (sh->unacknowledged) {
        sh->unacknowledged -= ngx_http_idem_outbox_cause(node);
    }

    ngx_http_idem_zone_remove(&o->z, node);
}


/* of a record that was removed on another host */

void
ngx_http_idem_outbox_drop(ngx_http_idem_outbox_t *o, u_char *id)
{
    ngx_http_idem_node_t  *node;

    if (ngx_http_idem_outbox_empty(o)) {
        return;
    }

    ngx_http_idem_outbox_lock(o);

    node = ngx_http_idem_zone_find(&o->z, id);

    if (node && node->state != NGX_HTTP_IDEM_IN_PROGRESS) {
        ngx_http_idem_outbox_take(o, node);
    }

    ngx_http_idem_outbox_unlock(o);
}
