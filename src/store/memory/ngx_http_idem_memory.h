
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The embedded store: records in a shared memory zone, one for all workers of
 * an nginx.  Beside the zone (..._zone.h):
 *
 *   ..._memory_conf.c  its block of directives
 *   ..._memory.c  the backend: the operations
 *   ..._memory_found.c  what a begin finds
 *   ..._memory_admin.c  what people ask: a record, its removal, a list
 *   ..._memory_tell.c  what is told when the lock was given back
 *   ..._turns.c   large responses, in further turns of the event loop
 *   ..._wake.c    telling a waiter in another worker that a record changed
 */


#ifndef _NGX_HTTP_IDEM_MEMORY_H_INCLUDED_
#define _NGX_HTTP_IDEM_MEMORY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/ngx_http_idem_store.h"
#include "store/zone/ngx_http_idem_zone.h"


#define NGX_HTTP_IDEM_WATCH_BUCKETS  256

/*
 * A response that is larger goes into the zone and out of it in pieces of that
 * size: a millisecond under the lock at most
 */
#ifndef NGX_HTTP_IDEM_PIECE
#define NGX_HTTP_IDEM_PIECE  (1024 * 1024)
#endif


typedef struct {
    ngx_http_idem_records_t  z;

    /* this worker */
    ngx_http_idem_store_t   *store;
    ngx_event_t              look;               /* for what has expired    */
    ngx_int_t                slot;               /* -1: it is not woken     */
    ngx_socket_t             fd;
    ngx_queue_t              watches[
                                        NGX_HTTP_IDEM_WATCH_BUCKETS];
    time_t                   eviction_logged;
    time_t                   details_logged;
    ngx_uint_t               details_dropped;        /* that were logged    */
    ngx_queue_t              turns;              /* operations that go on   */
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


/* ..._memory.c: a piece of an operation; NGX_AGAIN: there are more */

ngx_int_t ngx_http_idem_memory_begin_piece(ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_memory_commit_piece(ngx_http_idem_op_t *op);


/* ..._memory_found.c: called with the zone locked; NGX_OK or NGX_AGAIN */

ngx_int_t ngx_http_idem_memory_found(ngx_http_idem_memory_t *m,
    ngx_http_idem_node_t *node, ngx_http_idem_op_t *op);

/* a begin that has read pieces of a response, and answers something else */
void ngx_http_idem_memory_found_other(ngx_http_idem_op_t *op);


/* ..._memory_admin.c */

ngx_int_t ngx_http_idem_memory_admin(ngx_http_idem_op_t *op);


/* ..._turns.c */

void ngx_http_idem_turns_init(ngx_http_idem_memory_t *m, ngx_log_t *log);

/* an operation that is pending from now on, after its first piece */
void ngx_http_idem_turns_add(ngx_http_idem_memory_t *m,
    ngx_http_idem_op_t *op);
void ngx_http_idem_turns_cancel(ngx_http_idem_op_t *op);


/* ..._memory_tell.c */

void ngx_http_idem_memory_tell_init(ngx_cycle_t *cycle,
    ngx_http_idem_memory_t *m);
void ngx_http_idem_memory_tell_exit(ngx_http_idem_memory_t *m);

/* gives the lock back; "evicted" is how many had been when it was taken */
void ngx_http_idem_memory_unlock(ngx_http_idem_memory_t *m,
    ngx_uint_t evicted, ngx_log_t *log);

/* the lock was given back: tells which records had expired */
void ngx_http_idem_memory_told(ngx_http_idem_memory_t *m);

#define ngx_http_idem_memory_tell(m)                                          \
    if ((m)->z.gone && (m)->z.gone->n) {                                      \
        ngx_http_idem_memory_told(m);                                         \
    }


/* ..._wake.c */

ngx_int_t ngx_http_idem_wake_init(ngx_cycle_t *cycle,
    ngx_http_idem_memory_t *m);
void ngx_http_idem_wake_exit(ngx_http_idem_memory_t *m);
void ngx_http_idem_wake(ngx_http_idem_memory_t *m, u_char *id,
    uint64_t waiting);
void ngx_http_idem_wake_watch(ngx_http_idem_memory_t *m,
    ngx_http_idem_op_t *op, ngx_msec_t lease_left);
void ngx_http_idem_wake_cancel(ngx_http_idem_op_t *op);


#endif /* _NGX_HTTP_IDEM_MEMORY_H_INCLUDED_ */
