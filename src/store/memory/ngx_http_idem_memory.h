
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The embedded store: records in a shared memory zone, shared by all workers
 * of an nginx.  Besides the zone (..._zone.h):
 *
 *   ..._memory_conf.c    its block of directives
 *   ..._memory.c         the backend: the operations
 *   ..._memory_found.c   the result of a begin that finds a record
 *   ..._memory_admin.c   administrative operations: get, remove, list
 *   ..._memory_report.c  log messages and events, after the lock is released
 *   ..._turns.c          large responses, copied over several event loop
 *                        iterations
 *   ..._wake.c           wakes waiters in other workers
 */


#ifndef _NGX_HTTP_IDEM_MEMORY_H_INCLUDED_
#define _NGX_HTTP_IDEM_MEMORY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_zone.h"


/*
 * A larger response is copied into the zone and out of it in pieces of this
 * size: each takes a millisecond under the lock at most.
 */
#ifndef NGX_HTTP_IDEM_PIECE
#define NGX_HTTP_IDEM_PIECE  (1024 * 1024)
#endif


typedef struct {
    ngx_http_idem_records_t  z;

    /* per worker */
    ngx_http_idem_store_t   *store;
    ngx_event_t              search;             /* searches for expired
                                                    records */
    ngx_int_t                slot;               /* -1: other workers can't
                                                    wake this one */
    ngx_socket_t             fd;
    ngx_http_idem_polls_t    polls;
    ngx_uint_t               evicted;            /* when it was locked */
    ngx_uint_t               expired;            /* same */
    time_t                   eviction_logged;
    time_t                   details_logged;
    ngx_uint_t               details_evicted;        /* logged so far */
    ngx_queue_t              turns;              /* operations with pieces
                                                    left */
    ngx_event_t              turn;
} ngx_http_idem_memory_t;


extern const ngx_http_idem_backend_t
    ngx_http_idem_memory_backend;


/* ..._memory_conf.c */

extern ngx_http_idem_store_command_t  ngx_http_idem_memory_commands[];

void *ngx_http_idem_memory_create_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
char *ngx_http_idem_memory_init_conf(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);


/* ..._memory.c: copies one piece; NGX_AGAIN: there are more */

ngx_int_t ngx_http_idem_memory_begin_piece(ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_memory_commit_piece(ngx_http_idem_op_t *op);


/* ..._memory_found.c: called with the zone locked; NGX_OK or NGX_AGAIN */

ngx_int_t ngx_http_idem_memory_found(ngx_http_idem_memory_t *m,
    ngx_http_idem_item_t *item, ngx_http_idem_op_t *op);

/* frees the pieces that a begin has read, if its result is another */
void ngx_http_idem_memory_found_other(ngx_http_idem_op_t *op);


/* ..._memory_admin.c */

ngx_int_t ngx_http_idem_memory_admin(ngx_http_idem_op_t *op);


/* ..._turns.c */

void ngx_http_idem_turns_init(ngx_http_idem_memory_t *m, ngx_log_t *log);

/* "rc" of the first piece; NGX_AGAIN: the operation is pending from now on */
ngx_int_t ngx_http_idem_turns_first(ngx_http_idem_op_t *op, ngx_int_t rc);


/* ..._memory_report.c */

void ngx_http_idem_memory_report_init(ngx_cycle_t *cycle,
    ngx_http_idem_memory_t *m);

/* lock the zone, and unlock it; the latter reports what was evicted or expired
   in between */
void ngx_http_idem_memory_lock(ngx_http_idem_memory_t *m);
void ngx_http_idem_memory_unlock(ngx_http_idem_memory_t *m, ngx_log_t *log);

/* ..._wake.c */

ngx_int_t ngx_http_idem_wake_init(ngx_cycle_t *cycle,
    ngx_http_idem_memory_t *m);
void ngx_http_idem_wake_exit(ngx_http_idem_memory_t *m);
void ngx_http_idem_wake(ngx_http_idem_memory_t *m, u_char *id,
    uint64_t waiting);
void ngx_http_idem_wake_watch(ngx_http_idem_memory_t *m,
    ngx_http_idem_op_t *op, ngx_msec_t lease_left);


#endif /* _NGX_HTTP_IDEM_MEMORY_H_INCLUDED_ */
