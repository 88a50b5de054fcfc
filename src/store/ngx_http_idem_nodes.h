
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The nodes of a store that consists of several servers: their names and
 * counters, in shared memory, one set for all workers.
 *
 * A node is a server of a cluster.  Each backend has a node structure of its
 * own; this header is all that the rest of the module knows of a node.  Node
 * names are server addresses, which come from the configuration or from the
 * servers themselves.  Their number is bounded: a node without a slot is not
 * counted.  The slot of a node that no worker has seen for a while is reused.
 */


#ifndef _NGX_HTTP_IDEM_NODES_H_INCLUDED_
#define _NGX_HTTP_IDEM_NODES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_shared.h"


#define NGX_HTTP_IDEM_NODES_MAX   64
#define NGX_HTTP_IDEM_NODES_NAME  80            /* an IPv6 address and a port
                                                   take 47; a host name may
                                                   take more */


typedef enum {
    NGX_HTTP_IDEM_NODE_ANSWERED = 0,
    NGX_HTTP_IDEM_NODE_FAILED,
    NGX_HTTP_IDEM_NODE_REDIRECTED,              /* another node serves the
                                                   record */
    NGX_HTTP_IDEM_NODE_N
} ngx_http_idem_node_count_e;


/* a node in the memory of a worker, part of the backend's node structure */

typedef struct {
    ngx_str_t                       name;
    ngx_uint_t                      slot;       /* from 1; 0: none */
    ngx_uint_t                      owner;      /* "owner" of the slot when it
                                                   was assigned */
} ngx_http_idem_store_node_t;


/* a node in shared memory */

typedef struct {
    u_char                          name[NGX_HTTP_IDEM_NODES_NAME];
    size_t                          len;        /* 0: the slot is free */
    ngx_uint_t                      owner;      /* a new number for each node
                                                   that gets the slot */
    time_t                          seen;
    ngx_atomic_t                    counts[NGX_HTTP_IDEM_NODE_N];
} ngx_http_idem_node_counters_t;


typedef struct {
    ngx_uint_t                      owners;     /* last number assigned */
    ngx_http_idem_node_counters_t  nodes[NGX_HTTP_IDEM_NODES_MAX];
} ngx_http_idem_nodes_sh_t;


/*
 * the nodes of a store; find() returns the node that holds a record, or NULL
 * if the backend does not know
 */

typedef struct {
    ngx_http_idem_shared_t   shared;
    ngx_http_idem_store_node_t  *(*find)(void *data, u_char *id);
    void                           *data;       /* for find(), set by the
                                                   backend */
} ngx_http_idem_nodes_t;


/* assigns a slot to a node that the worker knows, or keeps it alive */
void ngx_http_idem_nodes_touch(ngx_http_idem_nodes_t *nodes,
    ngx_http_idem_store_node_t *node);

void ngx_http_idem_nodes_count(ngx_http_idem_nodes_t *nodes,
    ngx_http_idem_store_node_t *node, ngx_http_idem_node_count_e what);

/* for the status endpoint: the node in a slot, or NULL */
ngx_http_idem_node_counters_t *ngx_http_idem_nodes_at(
    ngx_http_idem_nodes_t *nodes, ngx_uint_t slot);


extern const char  *ngx_http_idem_node_counts[];


#endif /* _NGX_HTTP_IDEM_NODES_H_INCLUDED_ */
