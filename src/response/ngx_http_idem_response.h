
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The room of responses: what the outcome of an execution is, and what a client
 * gets: the response that was captured and committed, a replay, a refusal.
 *
 * Called by nginx's chains of filters and by the way of a request; calls the
 * claims to settle them.
 */


#ifndef _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_
#define _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "claim/ngx_http_idem_claim.h"


/* of r->buffered, whose low bits nginx gives to filters; others are in use */
#define NGX_HTTP_IDEM_BUFFERED  0x08


typedef struct ngx_http_idem_deflate_s  ngx_http_idem_deflate_t;
typedef struct ngx_http_idem_segment_s  ngx_http_idem_segment_t;
typedef struct ngx_http_idem_file_s     ngx_http_idem_file_t;
typedef struct ngx_http_idem_rewrite_s  ngx_http_idem_rewrite_t;
typedef struct ngx_http_idem_held_s     ngx_http_idem_held_t;


/* what the client is told; the rows of the table in problem.c */

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


/* what is captured, and held until it is stored */

typedef struct {
    size_t                     max_response;
    ngx_chain_t               *held;
    ngx_chain_t               *tail;            /* of what was held         */
    ngx_chain_t              **last;
    ngx_http_idem_held_t      *blocks;          /* memory of large pieces   */
    ngx_chain_t                end;             /* of a response: there     */
    ngx_buf_t                  end_buf;         /* even without memory      */
    ngx_http_idem_segment_t   *segments;        /* what was held while
                                                   subrequests ran          */
    size_t                     head_size;       /* in the record            */
    size_t                     held_size;       /* head and body            */
    ngx_http_idem_response_t   response;
    ngx_http_idem_deflate_t   *deflate;         /* under way                */
    ngx_chain_t               *compressed;      /* body of the record       */
    ngx_http_idem_file_t      *file;            /* of a file's response     */
    ngx_msec_t                 app_ttl;         /* X-Idempotency-Store      */
    ngx_int_t                  instead;         /* a status: what a filter
                                                   has in its place         */

    unsigned                   app_off:1;       /* X-Idempotency-Store      */
    unsigned                   ended:1;         /* a response, and not its
                                                   subrequests              */
    unsigned                   composed:1;      /* of subrequests'          */
    unsigned                   charset:1;       /* told ahead               */
    unsigned                   ranges:1;        /* may be cut out of what is
                                                   held                     */
} ngx_http_idem_capture_t;


/* of a response that goes out while it is captured: ..._stream.c */

typedef struct {
    ngx_chain_t               *piece;           /* of what is held, and     */
    u_char                    *pos;             /* where in it the next byte
                                                   for the client is        */
    size_t                     passed;          /* bytes of the body        */
    off_t                      length;          /* Content-Length, or -1    */
    ngx_chain_t               *free;
    ngx_chain_t               *busy;
    ngx_chain_t                flush_link;
    ngx_buf_t                  flush_buf;

    unsigned                   live:1;          /* its header is out        */
    unsigned                   ended:1;
    unsigned                   gone:1;          /* its client               */
    unsigned                   flush:1;         /* wanted with what is not
                                                   passed on yet            */
    unsigned                   recycled:1;      /* ... of scarce buffers    */
} ngx_http_idem_stream_t;


/* how the paths that differ are told: an array of objects, or of strings */

typedef enum {
    NGX_HTTP_IDEM_DIFF_OBJECTS = 0,
    NGX_HTTP_IDEM_DIFF_TEXTS,
    NGX_HTTP_IDEM_DIFF_N
} ngx_http_idem_diff_e;


/* room for n bytes as a JSON string: each escaped to six at most, quotes */
#define ngx_http_idem_json_quoted(n)  (6 * (n) + 2)


/* what the client is told in place of an execution: a refusal, or a replay */

typedef struct {
    ngx_http_idem_problem_e    problem;
    const char                *reason;
    ngx_uint_t                 status;          /* HTTP's                   */
    ngx_msec_t                 retry_after;
    uint64_t                   original_time;
    ngx_uint_t                 count;           /* of replays, 0: not told  */
    ngx_str_t                  details;         /* of what was found        */
    ngx_http_idem_cover_t     *met;             /* whose record decided it  */
    ngx_str_t                  diffs[NGX_HTTP_IDEM_DIFF_N];
                                                /* data is NULL: not made   */
    ngx_http_idem_cover_t     *replays;         /* while it is decompressed */
    ngx_http_idem_response_t  *response;
    ngx_http_idem_rewrite_t   *rewrite;         /* under way                */

    unsigned                   foreign:1;       /* another identity's record:
                                                   tell nothing             */
    unsigned                   retryable:1;
    unsigned                   refused:1;       /* "problem" says why       */
} ngx_http_idem_answer_t;


/* ..._outcome.c */

void ngx_http_idem_outcome_left(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_outcome_e ngx_http_idem_outcome(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t complete);

/* NGX_OK and a body; NGX_DECLINED, or NGX_ERROR of one that is rewritten */

typedef void (*ngx_http_idem_inflated_pt)(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc, ngx_str_t *body);


void ngx_http_idem_capture_init(void);
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
ngx_int_t ngx_http_idem_instead(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t status);
ngx_int_t ngx_http_idem_commit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_commit_block(ngx_http_request_t *r);
void ngx_http_idem_commit_unblock(ngx_http_request_t *r);
void ngx_http_idem_commit_return(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc);
ngx_uint_t ngx_http_idem_is_file(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_idem_file_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t **in);
void ngx_http_idem_file_reset(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_file_cleanup(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_send(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_http_idem_reason_e ngx_http_idem_hold(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b, size_t len);
void ngx_http_idem_hold_last(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_hold_drop(ngx_http_idem_ctx_t *ctx, ngx_chain_t *cl);
void ngx_http_idem_hold_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_let_through(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason);
ngx_int_t ngx_http_idem_pass_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_pass_body(ngx_http_request_t *r, ngx_chain_t *in);
ngx_int_t ngx_http_idem_complete(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_is_stream(ngx_http_request_t *r,
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
ngx_chain_t *ngx_http_idem_probe(ngx_http_request_t *r, ngx_chain_t *in,
    ngx_int_t *rc);
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
ngx_int_t ngx_http_idem_refuse(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_problem_e problem);
ngx_int_t ngx_http_idem_refuse_again(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
const char *ngx_http_idem_problem_code(ngx_http_idem_problem_e problem);
const char *ngx_http_idem_problem_type(ngx_http_idem_problem_e problem);
ngx_int_t ngx_http_idem_problem_message(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text);
ngx_int_t ngx_http_idem_diff(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_diff_e form, ngx_str_t *text,
    ngx_uint_t *more);
u_char *ngx_http_idem_json_quote(u_char *p, const ngx_str_t *text);
ngx_uint_t ngx_http_idem_json_kept(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_replay_json(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body,
    ngx_http_idem_inflated_pt rewritten);
void ngx_http_idem_replay_json_cleanup(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_deflate(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deflate_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deflated(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_inflate(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_response_t *response,
    ngx_str_t *body, ngx_http_idem_inflated_pt inflated);
ngx_table_elt_t *ngx_http_idem_add_header(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
u_char *ngx_http_idem_iso_time(u_char *p, uint64_t msec);

/* a duplicate is refused like a conflict, and is none: it says the same */

#define ngx_http_idem_is_duplicate(ctx)                                       \
    ((ctx)->answer.refused                                                    \
     && (ctx)->answer.problem == NGX_HTTP_IDEM_PROBLEM_DUPLICATE_REQUEST)

#define NGX_HTTP_IDEM_ISO_TIME_LEN                                            \
    (sizeof("1970-01-01T00:00:00Z") - 1)


#endif /* _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_ */
