
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
    NGX_HTTP_IDEM_PROBLEM_RESPONSE_NOT_KEPT
} ngx_http_idem_problem_e;


/* ..._outcome.c */

typedef enum {
    NGX_HTTP_IDEM_OUTCOME_KEEP = 0,
    NGX_HTTP_IDEM_OUTCOME_RELEASE,
    NGX_HTTP_IDEM_OUTCOME_UNKNOWN
} ngx_http_idem_outcome_e;

void ngx_http_idem_outcome_left(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_outcome_e ngx_http_idem_outcome(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t complete);
void ngx_http_idem_settle(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_outcome_e outcome, ngx_http_idem_reason_e reason);
void ngx_http_idem_release(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_abandon(ngx_http_idem_ctx_t *ctx);

void ngx_http_idem_capture_init(void);
void ngx_http_idem_hold_range(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_chain_t *ngx_http_idem_piece(ngx_pool_t *pool, size_t size);
ngx_int_t ngx_http_idem_capture_head(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_may_range(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_replay(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
ngx_int_t ngx_http_idem_commit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_send(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_http_idem_reason_e ngx_http_idem_hold(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b, size_t len);
void ngx_http_idem_hold_last(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_let_through(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason);
ngx_int_t ngx_http_idem_pass_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_pass_body(ngx_http_request_t *r, ngx_chain_t *in);
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
ngx_int_t ngx_http_idem_diff_summary(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text);
ngx_int_t ngx_http_idem_replay_json(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body);
ngx_int_t ngx_http_idem_deflate(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deflate_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_deflated(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_inflate(ngx_http_request_t *r,
    ngx_http_idem_response_t *response, ngx_str_t *body);
ngx_table_elt_t *ngx_http_idem_add_header(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
u_char *ngx_http_idem_iso_time(u_char *p, uint64_t msec);

#define NGX_HTTP_IDEM_ISO_TIME_LEN                                            \
    (sizeof("1970-01-01T00:00:00Z") - 1)


#endif /* _NGX_HTTP_IDEM_RESPONSE_H_INCLUDED_ */
