
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
    u_char                  actor_hash[2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_uint_t              limit;
    ngx_str_t               cursor;             /* of the store             */
    u_char                  after[NGX_HTTP_IDEM_ID_LEN];
                                                /* last id within its slice */
    unsigned                resumed:1;          /* "after" is set           */
} ngx_http_idem_admin_query_t;


/* what all requests have that are answered later */

typedef struct {
    ngx_http_request_t           *request;
    ngx_http_idem_op_t            op;
    ngx_pool_t                   *pool;          /* of a slice              */
    ngx_event_t                   event;         /* resumes after a pause   */
} ngx_http_idem_job_t;


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
    ngx_uint_t                    n;             /* records in the response */
    ngx_uint_t                    slices;        /* since the last pause    */
    ngx_msec_t                    start;
    unsigned                      remove:1;
    unsigned                      removing:1;    /* a removal is pending    */
    unsigned                      failed:1;      /* the slice: see "op"     */
} ngx_http_idem_admin_t;


/* ..._admin.c */

char *ngx_http_idem_conf_admin(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* a structure of that size that begins with a job; NULL: no memory */
void *ngx_http_idem_admin_job(ngx_http_request_t *r, size_t size,
    ngx_event_handler_pt handler);

/* sends an error as JSON; returns what a content handler returns */
ngx_int_t ngx_http_idem_admin_error(ngx_http_request_t *r,
    ngx_uint_t status, const char *code, const char *fmt, ...);
ngx_int_t ngx_http_idem_admin_send(ngx_http_request_t *r,
    ngx_uint_t status, ngx_http_idem_text_t *t);
ngx_int_t ngx_http_idem_admin_header(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, off_t len);

/* an empty text; its type is JSON */
void ngx_http_idem_admin_text(ngx_http_request_t *r,
    ngx_http_idem_text_t *t);

/* ..._admin_query.c */

/* NGX_DECLINED: the arguments are invalid, and *rc is the error */
ngx_int_t ngx_http_idem_admin_query(ngx_http_request_t *r,
    ngx_http_idem_admin_query_t *q, ngx_int_t *rc);

/* of a DELETE: all arguments are among "names", once, and say something; else
   the same */
ngx_int_t ngx_http_idem_admin_deletion(ngx_http_request_t *r,
    const char **names, ngx_int_t *rc);
ngx_int_t ngx_http_idem_admin_dry_run(ngx_http_request_t *r,
    ngx_uint_t *dry_run);
ngx_int_t ngx_http_idem_admin_arg(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);
ngx_int_t ngx_http_idem_admin_id(ngx_str_t *text, u_char *id);

/* the record of ?key= and ?scope=; NGX_DECLINED: no key was given */
ngx_int_t ngx_http_idem_admin_key(ngx_http_request_t *r, u_char *id,
    u_char *hash, ngx_str_t *scope);
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
void ngx_http_idem_admin_word(ngx_http_idem_text_t *t, const char *name,
    const char *word);

/* NGX_HTTP_IDEM_LABEL_N labels of a record; empty if it has none */
void ngx_http_idem_admin_labels(ngx_http_idem_store_t *store,
    ngx_http_idem_entry_t *entry, ngx_str_t *labels);

/* ..._admin_health.c, ..._admin_events.c */

ngx_int_t ngx_http_idem_admin_health(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_admin_events(ngx_http_request_t *r);

/* of an event stream: its type, bytes, and r->write_event_handler */
#define NGX_HTTP_IDEM_ADMIN_STREAM  "text/event-stream"
ngx_int_t ngx_http_idem_admin_stream_send(ngx_http_request_t *r, u_char *p,
    u_char *last);
void ngx_http_idem_follow_write(ngx_http_request_t *r);

/* ..._admin_trail.c */

/* GET and DELETE of events?store= */
ngx_int_t ngx_http_idem_admin_trail(ngx_http_request_t *r,
    ngx_http_idem_store_t *store);


extern const char  *ngx_http_idem_label_names[];


#endif /* _NGX_HTTP_IDEM_ADMIN_H_INCLUDED_ */
