
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What backends have in common whose store is elsewhere: how an operation that
 * was sent ends, the release that follows a begin that was given up, and the
 * waiters of this worker.
 *
 * A backend has a ngx_http_idem_remote_t as the first member of its conf, and
 * the few functions of ngx_http_idem_remote_type_t.  One that is a module of
 * its own calls these by the table.
 *
 * A part of ..._store.h, which includes it.
 */


#ifndef _NGX_HTTP_IDEM_REMOTE_H_INCLUDED_
#define _NGX_HTTP_IDEM_REMOTE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_WATCHES  256


typedef struct {

    /* NGX_ERROR: the operation failed already, op->result says so */
    ngx_int_t  (*submit)(ngx_http_idem_op_t *op);

    /*
     * The operation has left its call, which was op->state_data.  One that is
     * under way stays, since its reply will come.  How often it was sent.
     */
    ngx_uint_t (*leave)(void *call);

    /* there is a watch more, or one less */
    void       (*listen)(ngx_http_idem_op_t *op);
    void       (*unlisten)(ngx_http_idem_op_t *op);
} ngx_http_idem_remote_type_t;


/* of one worker */

typedef struct {
    const ngx_http_idem_remote_type_t
                *type;
    ngx_msec_t   timeout;                        /* of an operation         */
    ngx_uint_t   undos;                          /* of locks that may come  */
    ngx_uint_t   nwatches;
    ngx_queue_t  watches[NGX_HTTP_IDEM_WATCHES];
} ngx_http_idem_remote_t;


#define ngx_http_idem_remote(op)                                              \
    ((ngx_http_idem_remote_t *) (op)->store->conf)

/* a release of our own, of a lock that may be laid although nobody uses it */
#define ngx_http_idem_remote_is_undo(op)                                      \
    ((op)->data == (op)->store->conf)

/* the application did not run yet: nothing is lost by failing soon */
#define ngx_http_idem_remote_impatient(op)                                    \
    ((op)->kind == NGX_HTTP_IDEM_OP_BEGIN                                     \
     || (op)->kind == NGX_HTTP_IDEM_OP_WATCH                                  \
     || ngx_http_idem_op_is_admin(op))


/* one process */
void ngx_http_idem_remote_init(ngx_http_idem_remote_t *remote,
    const ngx_http_idem_remote_type_t *type, ngx_msec_t timeout);

/* for the table of a backend: every operation but a watch; a watch; cancel */
ngx_int_t ngx_http_idem_remote_ask(ngx_http_idem_op_t *op);
ngx_int_t ngx_http_idem_remote_watch(ngx_http_idem_op_t *op);
void ngx_http_idem_remote_cancel(ngx_http_idem_op_t *op);

/* the time that an operation has starts, when it is handed to a connection */
void ngx_http_idem_remote_start(ngx_http_idem_op_t *op,
    ngx_event_handler_pt timeout, ngx_msec_t time);

/* ... is over: NGX_DECLINED if it is not, since nobody waits for it */
ngx_int_t ngx_http_idem_remote_over(ngx_http_idem_op_t *op);

/*
 * The result is there: the operation leaves its call, a watch begins to wait
 * (for op->found.left at most; "poll" ms at most between two looks, 0: somebody
 * tells when the record changes), and the asker is told.
 */
ngx_uint_t ngx_http_idem_remote_leave(ngx_http_idem_op_t *op);
void ngx_http_idem_remote_wait(ngx_http_idem_op_t *op, ngx_msec_t poll);
void ngx_http_idem_remote_complete(ngx_http_idem_op_t *op);

/* there will be none: it leaves, and complete() is to follow */
void ngx_http_idem_remote_fail(ngx_http_idem_op_t *op, const char *error);

/* before that: a begin or a renewal was sent more than once */
void ngx_http_idem_remote_repeated(ngx_http_idem_op_t *op);

/* the record changed, as far as we know; all of them did */
void ngx_http_idem_remote_wake(ngx_http_idem_remote_t *remote, u_char *id);
void ngx_http_idem_remote_wake_all(ngx_http_idem_remote_t *remote);

/*
 * A message says so: the id in hex; or it was "removed", and copies in the
 * store as it was declared go, too.  Whatever else it says is somebody else's.
 */
void ngx_http_idem_remote_message(ngx_http_idem_remote_t *remote,
    ngx_http_idem_store_t *store, u_char *hex, size_t len,
    ngx_uint_t removed);


typedef struct {
    void       (*init)(ngx_http_idem_remote_t *remote,
                       const ngx_http_idem_remote_type_t *type,
                       ngx_msec_t timeout);
    ngx_int_t  (*ask)(ngx_http_idem_op_t *op);
    ngx_int_t  (*watch)(ngx_http_idem_op_t *op);
    void       (*cancel)(ngx_http_idem_op_t *op);
    void       (*start)(ngx_http_idem_op_t *op, ngx_event_handler_pt timeout,
                        ngx_msec_t time);
    ngx_int_t  (*over)(ngx_http_idem_op_t *op);
    ngx_uint_t (*leave)(ngx_http_idem_op_t *op);
    void       (*wait)(ngx_http_idem_op_t *op, ngx_msec_t poll);
    void       (*complete)(ngx_http_idem_op_t *op);
    void       (*fail)(ngx_http_idem_op_t *op, const char *error);
    void       (*repeated)(ngx_http_idem_op_t *op);
    void       (*wake)(ngx_http_idem_remote_t *remote, u_char *id);
    void       (*message)(ngx_http_idem_remote_t *remote,
                          ngx_http_idem_store_t *store, u_char *hex,
                          size_t len, ngx_uint_t removed);
} ngx_http_idem_remote_functions_t;


extern const ngx_http_idem_remote_functions_t  ngx_http_idem_remote_functions;


#endif /* _NGX_HTTP_IDEM_REMOTE_H_INCLUDED_ */
