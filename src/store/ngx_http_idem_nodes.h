
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The nodes of a store that is several servers: their names and figures, in
 * shared memory, one set for all workers.
 *
 * A backend has its own idea of a node; what the rest of the module may know
 * of it stands here.  Names are addresses of servers, which come from the
 * configuration or from the servers themselves, so their number is bounded: a
 * node for which there is no place is counted as none.  A place is given to
 * another once nobody has heard of its node for a while.
 */


#ifndef _NGX_HTTP_IDEM_NODES_H_INCLUDED_
#define _NGX_HTTP_IDEM_NODES_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/zone/ngx_http_idem_shared.h"


#define NGX_HTTP_IDEM_NODES_MAX   64
#define NGX_HTTP_IDEM_NODES_NAME  80            /* an IPv6 address and a port
                                                   are 47, a name may be more */


typedef enum {
    NGX_HTTP_IDEM_NODE_ANSWERED = 0,
    NGX_HTTP_IDEM_NODE_FAILED,
    NGX_HTTP_IDEM_NODE_REDIRECTED,              /* it is another's          */
    NGX_HTTP_IDEM_NODE_N
} ngx_http_idem_node_count_e;


/* what a backend has of a node, in a worker */

typedef struct {
    ngx_str_t                       name;
    ngx_uint_t                      place;      /* from 1; 0: it has none   */
    ngx_uint_t                      owner;      /* of the place, by number  */
} ngx_http_idem_store_node_t;


/* ... in shared memory */

typedef struct {
    u_char                          name[NGX_HTTP_IDEM_NODES_NAME];
    size_t                          len;        /* 0: free                  */
    ngx_uint_t                      owner;      /* changes with the name    */
    time_t                          seen;
    ngx_atomic_t                    counts[NGX_HTTP_IDEM_NODE_N];
} ngx_http_idem_node_figures_t;


/* of a store; "find" tells where a record is now, or NULL: not known */

typedef struct ngx_http_idem_nodes_s  ngx_http_idem_nodes_t;

struct ngx_http_idem_nodes_s {
    ngx_http_idem_shared_t   shared;
    ngx_http_idem_store_node_t  *(*find)(void *data, u_char *id);
    void                           *data;       /* the backend's            */
};


char *ngx_http_idem_nodes_add(ngx_conf_t *cf,
    ngx_http_idem_nodes_t *nodes, ngx_str_t *store);

/* a worker knows of a node: it gets a place, and keeps it while it is seen */
void ngx_http_idem_nodes_see(ngx_http_idem_nodes_t *nodes,
    ngx_http_idem_store_node_t *node);

void ngx_http_idem_nodes_count(ngx_http_idem_nodes_t *nodes,
    ngx_http_idem_store_node_t *node, ngx_http_idem_node_count_e what);

/* for the figures: the node of a place, or NULL */
ngx_http_idem_node_figures_t *ngx_http_idem_nodes_at(
    ngx_http_idem_nodes_t *nodes, ngx_uint_t place);


extern const char  *ngx_http_idem_node_counts[];


#endif /* _NGX_HTTP_IDEM_NODES_H_INCLUDED_ */
