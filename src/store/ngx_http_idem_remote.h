
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The code that all remote backends share (those whose records are on a
 * server): how an operation that was sent completes, and the release that
 * follows an abandoned begin, or a release that failed.
 *
 * A backend has a ngx_http_idem_remote_t as the first member of its conf, and
 * implements the few functions of ngx_http_idem_remote_type_t.
 *
 * A backend may be a separate nginx module.  Then it calls the functions of
 * this one through a table, to which the ngx_module_t of this module points.
 * It finds the table by the name of this module among the modules of the
 * configuration that is read, and not by symbols.  After the file of this
 * module was replaced and nginx reloaded, one process may have two versions of
 * it loaded, and symbols resolve to the older one.  The sizes in the table
 * verify that both modules were compiled with the same structures.
 *
 * ..._store.h includes this header; do not include it directly.
 */


#ifndef _NGX_HTTP_IDEM_REMOTE_H_INCLUDED_
#define _NGX_HTTP_IDEM_REMOTE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {

    /* NGX_ERROR: the operation has failed, op->result is set */
    ngx_int_t  (*submit)(ngx_http_idem_op_t *op);

    /*
     * Detaches an operation from its call, which was op->state_data.  A call
     * that was sent stays queued, since its reply still arrives.  Returns how
     * many times the call was sent.
     */
    ngx_uint_t (*leave)(void *call);

    /* a watch was added, or removed */
    void       (*listen)(ngx_http_idem_op_t *op);
    void       (*unlisten)(ngx_http_idem_op_t *op);

    /* how often a watch polls, ms; 0: it is notified */
    ngx_msec_t (*poll)(ngx_http_idem_op_t *op);

    /* there was no reply in time */
    void       (*timeout)(ngx_http_idem_op_t *op);
} ngx_http_idem_remote_type_t;


/* one per store and worker */

typedef struct {
    const ngx_http_idem_remote_type_t
                *type;
    ngx_http_idem_store_t
                *store;
    ngx_msec_t   timeout;                        /* of one operation */
    ngx_queue_t  due;                            /* by op->due: those that
                                                    have this timeout, the
                                                    oldest first */
    ngx_event_t  overdue;                        /* at the end of the first */
    ngx_uint_t   undos;                          /* releases of abandoned
                                                    begins that are
                                                    outstanding */
    ngx_event_t  adopt;                          /* ... of workers that are
                                                    gone */
    ngx_uint_t   nwatches;
    ngx_http_idem_polls_t
                 polls;
} ngx_http_idem_remote_t;


#define ngx_http_idem_remote(op)                                              \
    ((ngx_http_idem_remote_t *) (op)->store->conf)

/* a release that this file sends by itself, of a lock that no request uses */
#define ngx_http_idem_remote_is_undo(op)                                      \
    ((op)->data == (op)->store->conf)

/* the application has not run yet, so failing early loses nothing */
#define ngx_http_idem_remote_impatient(op)                                    \
    ((op)->kind == NGX_HTTP_IDEM_OP_BEGIN                                     \
     || (op)->kind == NGX_HTTP_IDEM_OP_WATCH                                  \
     || ngx_http_idem_op_is_admin(op))


/* called in init_process */
void ngx_http_idem_remote_init(ngx_http_idem_remote_t *remote,
    const ngx_http_idem_remote_type_t *type, ngx_http_idem_store_t *store,
    ngx_msec_t timeout);
void ngx_http_idem_remote_exit(ngx_http_idem_remote_t *remote);

/* for the backend's table: all operations; cancel */
ngx_int_t ngx_http_idem_remote_ask(ngx_http_idem_op_t *op);
void ngx_http_idem_remote_cancel(ngx_http_idem_op_t *op);

/*
 * Calls type->timeout() in "time" ms, unless the operation is detached from
 * its call before.  A worker that shuts down waits for it.
 */
void ngx_http_idem_remote_time(ngx_http_idem_op_t *op, ngx_msec_t time);

/*
 * The timeout expired.  NGX_DECLINED: the operation continues; it is a
 * release that no request waits for.
 */
ngx_int_t ngx_http_idem_remote_over(ngx_http_idem_op_t *op);

/*
 * The reply has arrived, and the result is set: completes the operation, or
 * lets a watch wait.
 */
void ngx_http_idem_remote_replied(ngx_http_idem_op_t *op);

/* No reply will arrive: sets the error.  The caller then calls complete(). */
void ngx_http_idem_remote_fail(ngx_http_idem_op_t *op, const char *error);
void ngx_http_idem_remote_complete(ngx_http_idem_op_t *op);

/*
 * A notification from the server: the record with this id (in hex) changed.
 * If it was removed, copies of it in the layers around the store are not
 * replayed any more unless the store confirms them.  Messages of any other form
 * are ignored.
 */
void ngx_http_idem_remote_message(ngx_http_idem_remote_t *remote, u_char *hex,
    size_t len, ngx_uint_t removed);


/*
 * ..._orphans.c: locks that this worker gives back, and that another worker
 * gives back if this one is gone before
 */

typedef struct {
    u_char       id[NGX_HTTP_IDEM_ID_LEN];
    u_char       token[NGX_HTTP_IDEM_TOKEN_LEN];
    ngx_msec_t   life;                           /* of the lock, at most */
} ngx_http_idem_adopted_t;

ngx_int_t ngx_http_idem_orphans_zone(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_orphan_add(ngx_http_idem_op_t *op, ngx_msec_t life);
void ngx_http_idem_orphan_due(ngx_http_idem_op_t *op, ngx_msec_t delay,
    ngx_uint_t released);
void ngx_http_idem_orphan_remove(ngx_http_idem_op_t *op);
ngx_uint_t ngx_http_idem_orphans_adopt(ngx_http_idem_store_t *store,
    ngx_http_idem_adopted_t *adopted, ngx_uint_t max);


/* the table for separate modules */

#define NGX_HTTP_IDEM_STORE_API_VERSION  13


/* the type of each pointer is that of the function */
#define ngx_http_idem_api_pt(function, name)                                  \
    __typeof__(function) *name


typedef struct {
    ngx_uint_t     version;
    size_t         op_size;
    size_t         store_size;

    /* registers a backend; replaces one of the same name */
    ngx_int_t    (*add)(const ngx_http_idem_backend_t *backend);

    /* for its block: error messages, and slots for its commands */
    ngx_http_idem_api_pt(ngx_http_idem_store_wrong, wrong);
    ngx_http_idem_api_pt(ngx_http_idem_store_not_found, not_found);
    ngx_http_idem_api_pt(ngx_http_idem_store_password, password);
    ngx_http_idem_api_pt(ngx_http_idem_store_password_file, password_file);

    ngx_http_idem_api_pt(ngx_http_idem_store_suspect_loss, suspect_loss);

    /* the code that remote backends share */
    ngx_http_idem_api_pt(ngx_http_idem_remote_init, init);
    ngx_http_idem_api_pt(ngx_http_idem_remote_exit, exit);
    ngx_http_idem_api_pt(ngx_http_idem_remote_ask, ask);
    ngx_http_idem_api_pt(ngx_http_idem_remote_cancel, cancel);
    ngx_http_idem_api_pt(ngx_http_idem_remote_time, time);
    ngx_http_idem_api_pt(ngx_http_idem_remote_over, over);
    ngx_http_idem_api_pt(ngx_http_idem_remote_replied, replied);
    ngx_http_idem_api_pt(ngx_http_idem_remote_fail, fail);
    ngx_http_idem_api_pt(ngx_http_idem_remote_complete, complete);
    ngx_http_idem_api_pt(ngx_http_idem_remote_message, message);

    ngx_http_idem_api_pt(ngx_http_idem_claim_encode, claim_encode);
    ngx_http_idem_api_pt(ngx_http_idem_claim_decode, claim_decode);
    ngx_http_idem_api_pt(ngx_http_idem_label, label);

    ngx_http_idem_api_pt(ngx_http_idem_op_entry, entry);
    ngx_http_idem_api_pt(ngx_http_idem_entry_details, entry_details);
    ngx_http_idem_api_pt(ngx_http_idem_store_expired, expired);
    ngx_http_idem_api_pt(ngx_http_idem_store_purged, purged);
} ngx_http_idem_store_api_t;


extern const ngx_http_idem_store_api_t  ngx_http_idem_store_api;


/* the table of an ngx_module_t, if that is this module */
#define ngx_http_idem_store_api_of(module)                                    \
    ((const ngx_http_idem_store_api_t *) (module)->spare_hook0)

/* takes the place of NGX_MODULE_V1_PADDING */
#define NGX_HTTP_IDEM_STORE_API_PADDING                                       \
    (uintptr_t) &ngx_http_idem_store_api, 0, 0, 0, 0, 0, 0, 0


#endif /* _NGX_HTTP_IDEM_REMOTE_H_INCLUDED_ */
