
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The nodes of a store that consists of several servers: names and counters
 * in shared memory.
 *
 * A worker remembers the slot of each node together with the "owner" number
 * of the slot.  If the number has changed, the slot was reassigned, and the
 * worker looks the node up again.  So counting takes no lock.
 *
 * Called by backends that have nodes; read by the status endpoint.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_mutex.h"
#include "store/ngx_http_idem_nodes.h"


/* seconds after which a node that no worker has seen frees its slot */
#define NGX_HTTP_IDEM_NODES_GONE  600


static ngx_uint_t ngx_http_idem_nodes_assign(
    ngx_http_idem_nodes_sh_t *sh, ngx_str_t *name);


const char  *ngx_http_idem_node_counts[] = {
    "answered", "failed", "redirected"
};


#define ngx_http_idem_nodes_sh(nodes)                                         \
    ((ngx_http_idem_nodes_sh_t *) (nodes)->shared.data)

#define ngx_http_idem_nodes_gone(node)                                        \
    (ngx_time() - (node)->seen > NGX_HTTP_IDEM_NODES_GONE)


void
ngx_http_idem_nodes_touch(ngx_http_idem_nodes_t *nodes,
    ngx_http_idem_store_node_t *node)
{
    ngx_slab_pool_t                *shpool;
    ngx_http_idem_node_counters_t  *entry;
    ngx_http_idem_nodes_sh_t       *sh;

    sh = ngx_http_idem_nodes_sh(nodes);

    if (node->slot) {
        entry = &sh->nodes[node->slot - 1];

        if (entry->owner == node->owner) {
            entry->seen = ngx_time();
            return;
        }
    }

    shpool = nodes->shared.shpool;

    ngx_http_idem_mutex_lock(shpool);

    node->slot = ngx_http_idem_nodes_assign(sh, &node->name);

    if (node->slot) {
        entry = &sh->nodes[node->slot - 1];
        entry->seen = ngx_time();
        node->owner = entry->owner;
    }

    ngx_http_idem_mutex_unlock(shpool);
}


/* returns the slot of a name, or assigns a free one; 0: there is none */

static ngx_uint_t
ngx_http_idem_nodes_assign(ngx_http_idem_nodes_sh_t *sh, ngx_str_t *name)
{
    u_char                          c, text[NGX_HTTP_IDEM_NODES_NAME];
    size_t                          len;
    ngx_uint_t                      i, free;
    ngx_http_idem_node_counters_t  *entry;

    free = 0;
    len = ngx_min(name->len, NGX_HTTP_IDEM_NODES_NAME);

    /* names from servers are not trusted: they become labels unescaped */

    for (i = 0; i < len; i++) {
        c = name->data[i];
        text[i] = (c <= 0x20 || c >= 0x7f || c == '"' || c == '\\') ? '_' : c;
    }

    for (i = 0; i < NGX_HTTP_IDEM_NODES_MAX; i++) {
        entry = &sh->nodes[i];

        if (entry->len == len && ngx_memcmp(entry->name, text, len) == 0) {
            return i + 1;
        }

        if (free == 0
            && (entry->len == 0 || ngx_http_idem_nodes_gone(entry)))
        {
            free = i + 1;
        }
    }

    if (free) {
        entry = &sh->nodes[free - 1];

        ngx_memzero(entry, sizeof(ngx_http_idem_node_counters_t));
        ngx_memcpy(entry->name, text, len);

        entry->owner = ++sh->owners;

        /*
         * The length comes last: if the worker is killed before, the slot is
         * still free.
         */

        ngx_memory_barrier();

        entry->len = len;
    }

    return free;
}


void
ngx_http_idem_nodes_count(ngx_http_idem_nodes_t *nodes,
    ngx_http_idem_store_node_t *node, ngx_http_idem_node_count_e what)
{
    ngx_http_idem_nodes_touch(nodes, node);

    if (node->slot) {
        (void) ngx_atomic_fetch_add(
                &ngx_http_idem_nodes_sh(nodes)
                     ->nodes[node->slot - 1].counts[what], 1);
    }
}


ngx_http_idem_node_counters_t *
ngx_http_idem_nodes_at(ngx_http_idem_nodes_t *nodes, ngx_uint_t slot)
{
    ngx_http_idem_node_counters_t  *entry;

    if (slot == 0) {
        return NULL;
    }

    entry = &ngx_http_idem_nodes_sh(nodes)->nodes[slot - 1];

    if (entry->len == 0 || ngx_http_idem_nodes_gone(entry)) {
        return NULL;
    }

    return entry;
}
