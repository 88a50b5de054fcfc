
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Responses: the outcome of an execution, and what the client gets: the
 * response that was captured and committed, a replay, or a refusal.
 *
 * Called by nginx's filter chains and by the request; calls the claims to
 * settle them.
 */


#ifndef _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_
#define _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "claim/ngx_http_idem_claim.h"


/* a bit of r->buffered that no filter of nginx uses */
#define NGX_HTTP_IDEM_BUFFERED  0x08

#define NGX_HTTP_IDEM_STORE_HEADER  "X-Idempotency-Store"

/* nginx ends the request as soon as nothing keeps it alive */
#if (nginx_version >= 1025004)
#define ngx_http_idem_is_ending(r)  ((r)->done || (r)->main->terminated)
#else
#define ngx_http_idem_is_ending(r)  ((r)->done)
#endif


typedef struct ngx_http_idem_deflate_s  ngx_http_idem_deflate_t;
typedef struct ngx_http_idem_segment_s  ngx_http_idem_segment_t;
typedef struct ngx_http_idem_file_s     ngx_http_idem_file_t;
typedef struct ngx_http_idem_rewrite_s  ngx_http_idem_rewrite_t;
typedef struct ngx_http_idem_held_s     ngx_http_idem_held_t;


/* $idempotency_status */

typedef enum {
    NGX_HTTP_IDEM_STATUS_NONE = 0,
    NGX_HTTP_IDEM_STATUS_EXECUTED,
    NGX_HTTP_IDEM_STATUS_REPLAYED,
    NGX_HTTP_IDEM_STATUS_CONFLICT,
    NGX_HTTP_IDEM_STATUS_BUSY,
    NGX_HTTP_IDEM_STATUS_TIMEOUT,
    NGX_HTTP_IDEM_STATUS_WAITERS,
    NGX_HTTP_IDEM_STATUS_INVALID,
    NGX_HTTP_IDEM_STATUS_UNKNOWN,
    NGX_HTTP_IDEM_STATUS_TOO_LARGE,
    NGX_HTTP_IDEM_STATUS_RELEASED,
    NGX_HTTP_IDEM_STATUS_UNAVAILABLE,
    NGX_HTTP_IDEM_STATUS_UNPROTECTED,
    NGX_HTTP_IDEM_STATUS_BYPASS
} ngx_http_idem_status_e;


/* refusals; the rows of the table in ..._problem.c */

typedef enum {
    NGX_HTTP_IDEM_PROBLEM_KEY_MISSING = 0,
    NGX_HTTP_IDEM_PROBLEM_KEY_INVALID,
    NGX_HTTP_IDEM_PROBLEM_CONFLICT,
    NGX_HTTP_IDEM_PROBLEM_CONCURRENT_REQUEST,
    NGX_HTTP_IDEM_PROBLEM_LOCK_TIMEOUT,
    NGX_HTTP_IDEM_PROBLEM_TOO_MANY_WAITERS,
    NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE,
    NGX_HTTP_IDEM_PROBLEM_OUTCOME_UNKNOWN,
    NGX_HTTP_IDEM_PROBLEM_RESPONSE_TOO_LARGE,
    NGX_HTTP_IDEM_PROBLEM_RESPONSE_NOT_KEPT,
    NGX_HTTP_IDEM_PROBLEM_DUPLICATE_REQUEST
} ngx_http_idem_problem_e;


typedef struct {
    ngx_uint_t               http;
    ngx_http_idem_status_e   status;
    unsigned                 retryable:1;
    const char              *slug;
    const char              *code;
    const char              *type;
    const char              *title;
    const char              *detail;
} ngx_http_idem_problem_t;


/*
 * A response that is captured, and held until it is stored.  A response that
 * replaces another one clears the members before "blocks".
 */

typedef struct {
    ngx_chain_t               *held;
    ngx_chain_t               *tail;            /* last piece of "held"     */
    ngx_chain_t              **last;
    ngx_http_idem_segment_t   *segments;        /* parts held while
                                                   subrequests ran          */
    size_t                     head_size;       /* encoded header           */
    size_t                     held_size;       /* header and body          */
    ngx_http_idem_response_t   response;

    ngx_msec_t                 app_ttl;         /* X-Idempotency-Store      */
    unsigned                   unwanted:1;      /* not to be stored, as the
                                                   application or its JSON
                                                   says                     */
    unsigned                   through:1;       /* sent without being held,
                                                   settled at its end       */
    unsigned                   ended:1;         /* complete, except for its
                                                   subrequests              */
    unsigned                   composed:1;      /* made by subrequests      */
    unsigned                   charset:1;       /* set early for autoindex  */
    unsigned                   ranges:1;        /* a range may be cut from
                                                   the held body            */

    ngx_http_idem_held_t      *blocks;          /* memory of large pieces   */
    size_t                     max_response;
    ngx_chain_t                end;             /* preallocated last link,  */
    ngx_buf_t                  end_buf;         /* needs no memory          */
    ngx_http_idem_deflate_t   *deflate;         /* in progress              */
    ngx_chain_t               *compressed;      /* body of the record       */
    ngx_http_idem_file_t      *file;            /* state of a file response */
    ngx_int_t                  instead;         /* status of the response
                                                   that a filter sends in
                                                   its place                */
} ngx_http_idem_capture_t;


/* a response that is sent while it is captured: ..._stream.c */

typedef struct {
    ngx_chain_t               *piece;           /* piece of "held", and     */
    u_char                    *pos;             /* position in it of the
                                                   next byte to send        */
    size_t                     passed;          /* bytes of the body sent   */
    off_t                      length;          /* Content-Length, or -1    */
    ngx_chain_t               *free;
    ngx_chain_t               *busy;
    ngx_chain_t                flush_link;
    ngx_buf_t                  flush_buf;

    unsigned                   live:1;          /* the header was sent      */
    unsigned                   ended:1;
    unsigned                   gone:1;          /* the client has gone      */
    unsigned                   flush:1;         /* flush with the next
                                                   bytes                    */
    unsigned                   recycled:1;      /* the upstream needs its
                                                   buffers back             */
} ngx_http_idem_stream_t;


/* formats of differing paths: an array of objects, or of strings */

typedef enum {
    NGX_HTTP_IDEM_DIFF_OBJECTS = 0,
    NGX_HTTP_IDEM_DIFF_TEXTS,
    NGX_HTTP_IDEM_DIFF_N
} ngx_http_idem_diff_e;


/* size of n bytes as a JSON string: each is escaped to six at most */
#define ngx_http_idem_json_quoted(n)  (6 * (n) + 2)


/* an event of a stored event stream */

typedef struct {
    ngx_str_t    data;             /* the joined data lines                 */
    ngx_str_t    lines;            /* the data lines as stored              */
    ngx_str_t    end;              /* of the last line: CR, LF or both      */
} ngx_http_idem_sse_event_t;


/* a refusal or a replay, sent instead of an execution */

typedef struct {
    ngx_http_idem_problem_e    problem;
    unsigned                   refused:1;       /* see "problem"            */
    unsigned                   retryable:1;
    unsigned                   body:1;          /* a refusal has its own    */
    unsigned                   undisclosed:1;   /* another identity's
                                                   record, or of a place
                                                   that refused the client  */
    const char                *reason;
    ngx_str_t                  documentation;   /* its URL                  */
    ngx_uint_t                 status;          /* of HTTP                  */
    ngx_msec_t                 retry_after;
    uint64_t                   original_time;
    ngx_uint_t                 count;           /* of replays; 0: not
                                                   counted                  */
    ngx_str_t                  details;         /* of the record found      */
    ngx_http_idem_cover_t     *cover;           /* cover of the record that
                                                   decided                  */
    ngx_str_t                  diffs[NGX_HTTP_IDEM_DIFF_N];
                                                /* data is NULL: not made   */
    ngx_http_idem_response_t  *response;
    ngx_http_idem_rewrite_t   *rewrite;         /* in progress              */
    ngx_event_t               *drain;           /* of a refusal, while the
                                                   body is read             */
} ngx_http_idem_answer_t;


/* responses with these statuses have no body, whatever their Content-Length */
#define ngx_http_idem_status_bodiless(status)                                 \
    ((status) == NGX_HTTP_NO_CONTENT || (status) == NGX_HTTP_NOT_MODIFIED)


/* ..._outcome.c */

void ngx_http_idem_outcome_redirected(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_outcome_whole(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_outcome_short(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_outcome_e ngx_http_idem_outcome(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t complete);

void ngx_http_idem_capture_init(void);
ngx_uint_t ngx_http_idem_told_bodiless(ngx_str_t *line, ngx_uint_t status);
void ngx_http_idem_hints_init(void);
ngx_uint_t ngx_http_idem_hints_write(ngx_http_request_t *r);
void ngx_http_idem_hold_range(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_chain_t *ngx_http_idem_piece(ngx_pool_t *pool, size_t size);
ngx_int_t ngx_http_idem_capture_head(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_may_range(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_replay(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
ngx_int_t ngx_http_idem_replay_decode(ngx_http_request_t *r,
    ngx_http_idem_found_t *found, ngx_http_idem_response_t *response,
    ngx_str_t *body, ngx_uint_t verify, const char **reason);
void ngx_http_idem_replay_inflated(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc, ngx_str_t *body);
void ngx_http_idem_replay_rewritten(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc, ngx_str_t *body);
ngx_int_t ngx_http_idem_instead(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t status);
ngx_int_t ngx_http_idem_commit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_commit_done(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_commit_block(ngx_http_request_t *r);
void ngx_http_idem_commit_unblock(ngx_http_request_t *r);
void ngx_http_idem_commit_return(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc);
ngx_int_t ngx_http_idem_file_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t **in);
void ngx_http_idem_file_reset(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_file_cleanup(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_send(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_http_idem_reason_e ngx_http_idem_hold(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b);
void ngx_http_idem_hold_last(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_hold_drop(ngx_http_idem_ctx_t *ctx, ngx_chain_t *cl);
void ngx_http_idem_hold_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_let_through(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason);
void ngx_http_idem_through_end(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_idem_pass_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_pass_body(ngx_http_request_t *r, ngx_chain_t *in);
ngx_int_t ngx_http_idem_complete(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_stream_found(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_stream_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_stream_guard(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_stream_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_idem_stream_finish(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_stream_subrequest(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
ngx_chain_t *ngx_http_idem_probe_output(ngx_http_request_t *r,
    ngx_chain_t *in, ngx_int_t *rc);
ngx_int_t ngx_http_idem_content_type(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers);
void ngx_http_idem_set_content_type(ngx_http_request_t *r, ngx_str_t *value);
void ngx_http_idem_charset(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_subrequest_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_subrequest_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_idem_subrequests_pending(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_idem_restore_head(ngx_http_request_t *r,
    ngx_http_idem_response_t *response);
ngx_int_t ngx_http_idem_output(ngx_http_request_t *r, ngx_buf_t *b,
    ngx_str_t *body);
ngx_int_t ngx_http_idem_refuse(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_problem_e problem);
ngx_uint_t ngx_http_idem_body_pending(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_drain(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_refuse_drained(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_refuse_instead(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_refuse_again(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
extern const ngx_http_idem_problem_t  ngx_http_idem_problems[];
ngx_int_t ngx_http_idem_problem_message(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text);
ngx_int_t ngx_http_idem_diff(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_diff_e form, ngx_str_t *text,
    ngx_uint_t *more);
u_char *ngx_http_idem_json_quote(u_char *p, const ngx_str_t *text);
ngx_uint_t ngx_http_idem_json_kept(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_replay_json(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body);
void ngx_http_idem_replay_json_cleanup(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_deflate(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deflate_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deflated(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_inflate(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_response_t *response,
    ngx_str_t *body);
ngx_uint_t ngx_http_idem_header_hidden(ngx_http_idem_ctx_t *ctx,
    ngx_str_t *name);
ngx_int_t ngx_http_idem_keep_header(ngx_array_t *headers,
    ngx_http_idem_header_e kind, ngx_uint_t valid, ngx_str_t *name,
    ngx_str_t *value);
void ngx_http_idem_hide_header(ngx_http_request_t *r, const char *name);
ngx_int_t ngx_http_idem_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);

/* ..._sse.c: events of a stored text/event-stream */

ngx_uint_t ngx_http_idem_is_type(ngx_http_request_t *r,
    const ngx_str_t *type);
ngx_uint_t ngx_http_idem_is_sse(ngx_http_request_t *r);

/*
 * Finds the next complete event in "rest" whose data lines are adjacent and
 * are a JSON-RPC response: NGX_OK, or NGX_DONE if there is none, or NGX_ERROR
 * without memory
 */
ngx_int_t ngx_http_idem_sse_response(ngx_pool_t *pool, ngx_str_t *rest,
    ngx_http_idem_sse_event_t *event);

/*
 * An EventSource that reconnects sends the id of its last event
 * (Last-Event-ID): removes the events up to that one from "body"
 */
void ngx_http_idem_sse_resume(ngx_http_request_t *r, ngx_str_t *body);

#define ngx_http_idem_header_is(name, text)                                   \
    ((name)->len == sizeof(text) - 1                                          \
     && ngx_strncasecmp((name)->data, (u_char *) text, sizeof(text) - 1) == 0)

/* a duplicate is refused with the status of a conflict, but is no conflict */

#define ngx_http_idem_is_duplicate(ctx)                                       \
    ((ctx)->answer.refused                                                    \
     && (ctx)->answer.problem == NGX_HTTP_IDEM_PROBLEM_DUPLICATE_REQUEST)


#endif /* _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_ */
