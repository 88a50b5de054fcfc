
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotency_admin: inspection and deletion of records over HTTP.
 *
 *   ..._admin.c          the directive, routing, and small responses
 *   ..._admin_query.c    request arguments that select records
 *   ..._admin_records.c  shows or deletes one record or many, in slices
 *   ..._admin_print.c    a record as JSON, without body, headers, key, token
 *   ..._admin_health.c   asks each store
 *   ..._admin_events.c   live events of this nginx, as server-sent events
 *   ..._admin_trail.c    stored events of all hosts
 */


#ifndef _NGX_HTTP_IDEM_ADMIN_H_INCLUDED_
#define _NGX_HTTP_IDEM_ADMIN_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_stats.h"


/* conf->admin */
#define NGX_HTTP_IDEM_ADMIN_FULL  1
#define NGX_HTTP_IDEM_ADMIN_READ  2


/*
 * A page may end within a slice.  Its cursor then names the records of that
 * slice which are on a page: the first bytes of their ids, in hexadecimal.
 */
#define NGX_HTTP_IDEM_SEEN_LEN    16

/* a slice has a few more than 100 */
#define NGX_HTTP_IDEM_SEEN_MAX    256


/* the arguments that there are, decoded; without data: not given */

typedef enum {
    NGX_HTTP_IDEM_ARG_GROUP = 0,                /* as the labels            */
    NGX_HTTP_IDEM_ARG_TENANT,
    NGX_HTTP_IDEM_ARG_ACTOR,
    NGX_HTTP_IDEM_ARG_KEY,
    NGX_HTTP_IDEM_ARG_SCOPE,
    NGX_HTTP_IDEM_ARG_DRY_RUN,
    NGX_HTTP_IDEM_ARG_OLDER,
    NGX_HTTP_IDEM_ARG_STATE,
    NGX_HTTP_IDEM_ARG_LIMIT,
    NGX_HTTP_IDEM_ARG_CURSOR,
    NGX_HTTP_IDEM_ARG_STORE,
    NGX_HTTP_IDEM_ARG_SINCE,
    NGX_HTTP_IDEM_ARG_UNTIL,
    NGX_HTTP_IDEM_ARG_RECORD,
    NGX_HTTP_IDEM_ARG_AFTER,
    NGX_HTTP_IDEM_ARG_FOLLOW,
    NGX_HTTP_IDEM_ARG_N
} ngx_http_idem_arg_e;


/* selection of records */

typedef struct {
    u_char                  id[NGX_HTTP_IDEM_ID_LEN];
    unsigned                one:1;              /* by "id"                  */
    unsigned                some:1;             /* many, by a filter        */
    unsigned                dry_run:1;
    ngx_uint_t              state;              /* 0: any                   */
    ngx_msec_t              older;
    ngx_str_t               labels[NGX_HTTP_IDEM_LABEL_N];
                                                /* empty: any               */
    ngx_str_t               bounded[NGX_HTTP_IDEM_LABEL_N];
                                                /* as in a record, if other */
    u_char                  actor_hash[2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_uint_t              limit;
    ngx_str_t               cursor;             /* of the store             */
    ngx_str_t               seen;               /* of its slice, on pages
                                                   before: see "seen" below */
    ngx_str_t               host;               /* is the scope; empty: the
                                                   scope was given          */
} ngx_http_idem_admin_query_t;


/*
 * A request that is answered later.  "run" is called at first, when the
 * operation is complete, and when the event fires.  It returns NGX_AGAIN if it
 * waits for one of them, otherwise the result to finalize the request with.
 */

typedef struct ngx_http_idem_job_s  ngx_http_idem_job_t;

struct ngx_http_idem_job_s {
    ngx_http_request_t           *request;
    ngx_int_t                   (*run)(ngx_http_idem_job_t *job);
    ngx_http_idem_op_t            op;
    ngx_pool_t                   *pool;          /* of a slice              */
    ngx_event_t                   event;         /* resumes after a pause   */
    ngx_msec_t                    sent;          /* last, of a stream       */
    ngx_buf_t                     data;          /* of a stream: used again */
    ngx_buf_t                     comment;       /* when they were sent     */
    unsigned                      asked:1;       /* see "op" for the answer */
};


typedef struct {
    ngx_http_idem_job_t           job;
    ngx_http_idem_store_t        *store;
    ngx_http_idem_admin_query_t   query;
    ngx_http_idem_text_t          text;
    ngx_http_idem_list_t          list;          /* of a slice              */
    ngx_http_idem_list_t          removed;       /* a record of the slice
                                                    that was removed        */
    u_char                        cursor[NGX_HTTP_IDEM_CURSOR_MAX];
    size_t                        cursor_len;    /* of this slice           */
    u_char                        next[NGX_HTTP_IDEM_CURSOR_MAX];
    size_t                        next_len;      /* of the next slice       */
    ngx_uint_t                    entry;         /* next entry of the slice */
    u_char                        seen[NGX_HTTP_IDEM_SEEN_MAX
                                       * NGX_HTTP_IDEM_SEEN_LEN];
    size_t                        seen_len;      /* of the slice            */
    ngx_uint_t                    n;             /* records in the response */
    ngx_uint_t                    slices;        /* since the last pause    */
    ngx_msec_t                    start;
    unsigned                      remove:1;
} ngx_http_idem_admin_t;


/* ..._admin.c */

char *ngx_http_idem_conf_admin(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* a structure of that size that begins with a job; NULL: no memory */
void *ngx_http_idem_admin_job(ngx_http_request_t *r, size_t size,
    ngx_int_t (*run)(ngx_http_idem_job_t *job));

/* runs a job; returns what a content handler returns */
ngx_int_t ngx_http_idem_admin_start(void *data);

/*
 * Submits an operation to a store; sets "asked".  "id", "list" and "trail" are
 * NULL unless the kind needs them.  NGX_OK: answered; NGX_AGAIN: "run" is
 * called once it is; otherwise the status for a request without memory.
 */
ngx_int_t ngx_http_idem_admin_ask(ngx_http_idem_job_t *job,
    ngx_http_idem_store_t *store, ngx_http_idem_op_e kind, u_char *id,
    ngx_http_idem_list_t *list, ngx_http_idem_trail_t *trail);

/* removes a record; "state" and "time" as op->listed_state and listed_time */
ngx_int_t ngx_http_idem_admin_ask_remove(ngx_http_idem_job_t *job,
    ngx_http_idem_store_t *store, u_char *id, ngx_http_idem_state_e state,
    uint64_t time, ngx_http_idem_list_t *list);

/* sends an error as JSON; returns what a content handler returns */
ngx_int_t ngx_http_idem_admin_error(ngx_http_request_t *r,
    ngx_uint_t status, const char *code, const char *fmt, ...);
ngx_int_t ngx_http_idem_admin_no_store(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_admin_send(ngx_http_request_t *r,
    ngx_uint_t status, ngx_http_idem_text_t *t);
ngx_int_t ngx_http_idem_admin_header(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, off_t len);

/* an empty text; its type is JSON */
void ngx_http_idem_admin_text(ngx_http_request_t *r, ngx_http_idem_text_t *t);

/* ..._admin_query.c */

/* fills NGX_HTTP_IDEM_ARG_N arguments; NGX_ERROR: no memory */
ngx_int_t ngx_http_idem_admin_args(ngx_http_request_t *r, ngx_str_t *args);

/* NGX_DECLINED: the arguments are invalid, and *rc is the error */
ngx_int_t ngx_http_idem_admin_query(ngx_http_request_t *r, ngx_str_t *args,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc);

/* checks that each argument of a DELETE is one of "known", a bit each, is
   given once and is not empty; NGX_DECLINED as above */
ngx_int_t ngx_http_idem_admin_deletion(ngx_http_request_t *r,
    ngx_uint_t known, ngx_int_t *rc);

/* an argument that is a switch, and says "0" */
#define ngx_http_idem_admin_is_0(arg)                                         \
    ((arg)->len == 1 && (arg)->data[0] == '0')

#define ngx_http_idem_admin_is_dry_run(args)                                  \
    ((args)[NGX_HTTP_IDEM_ARG_DRY_RUN].len                                    \
     && !ngx_http_idem_admin_is_0(&(args)[NGX_HTTP_IDEM_ARG_DRY_RUN]))

/* the record of ?key= and ?scope=; NGX_DECLINED: no key was given */
ngx_int_t ngx_http_idem_admin_key(ngx_http_request_t *r, ngx_str_t *args,
    u_char *id, u_char *hash, ngx_str_t *scope);

/*
 * The record of ?record= or of ?key=&scope= in hexadecimal, or that and the
 * hash of a ?key= without a scope; both are empty if neither is given.  Each
 * has room for that.  NGX_DECLINED: it is no record; NGX_ERROR: no memory.
 */
ngx_int_t ngx_http_idem_admin_selected(ngx_http_request_t *r, ngx_str_t *args,
    ngx_str_t *record, ngx_str_t *hash);
ngx_uint_t ngx_http_idem_admin_match(ngx_http_idem_admin_query_t *q,
    ngx_http_idem_store_t *store, ngx_http_idem_entry_t *entry);

/* ..._admin_records.c */

ngx_int_t ngx_http_idem_admin_records(ngx_http_request_t *r,
    ngx_http_idem_store_t *store, ngx_http_idem_admin_query_t *q);

/* ..._admin_print.c */

void ngx_http_idem_admin_entry(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store, ngx_http_idem_entry_t *entry);
void ngx_http_idem_admin_string(ngx_http_idem_text_t *t, const char *name,
    ngx_str_t *s);
void ngx_http_idem_admin_quoted(ngx_http_idem_text_t *t, ngx_str_t *s);
void ngx_http_idem_admin_long(ngx_http_idem_text_t *t, ngx_str_t *s);
void ngx_http_idem_admin_word(ngx_http_idem_text_t *t, const char *name,
    const char *word);

/* NGX_HTTP_IDEM_LABEL_N labels of a record; empty if it has none */
void ngx_http_idem_admin_labels(ngx_http_idem_store_t *store,
    ngx_http_idem_entry_t *entry, ngx_str_t *labels);

/* ..._admin_health.c, ..._admin_events.c */

ngx_int_t ngx_http_idem_admin_health(ngx_http_request_t *r, ngx_str_t *args);
ngx_int_t ngx_http_idem_admin_events(ngx_http_request_t *r, ngx_str_t *args);

/*
 * A stream of server-sent events: its header and a comment; bytes, which stay
 * where they are while it is busy; a comment, if nothing was sent for long;
 * its end.  NGX_OK, or what the request ends with.
 */
ngx_int_t ngx_http_idem_stream_begin(ngx_http_idem_job_t *job,
    const char *hello);
ngx_int_t ngx_http_idem_stream_send(ngx_http_idem_job_t *job, u_char *p,
    u_char *last);
ngx_int_t ngx_http_idem_stream_alive(ngx_http_idem_job_t *job);
ngx_int_t ngx_http_idem_stream_end(ngx_http_idem_job_t *job);

#define ngx_http_idem_stream_busy(r)                                          \
    ((r)->buffered || (r)->connection->buffered || (r)->out)

/* ..._admin_trail.c */

/* GET and DELETE of events?store= */
ngx_int_t ngx_http_idem_admin_trail(ngx_http_request_t *r, ngx_str_t *args,
    ngx_http_idem_store_t *store);


extern const char  *ngx_http_idem_label_names[];


#endif /* _NGX_HTTP_IDEM_ADMIN_H_INCLUDED_ */
