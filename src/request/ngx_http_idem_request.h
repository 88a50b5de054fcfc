
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The room of the request: its context, its way through nginx's phases, its
 * body and fingerprint, and its execution.
 *
 * The context is what the rooms above the stores have in common.
 */


#ifndef _NGX_HTTP_IDEM_REQUEST_H_INCLUDED_
#define _NGX_HTTP_IDEM_REQUEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "canonical/ngx_http_idem_multipart.h"
#include "claim/ngx_http_idem_claim.h"
#include "response/ngx_http_idem_response.h"


/*
 * The states of a request.  One function, ngx_http_idem_run(), moves
 * it from one to the next up to EXECUTE; the filters take it from there.
 */

typedef enum {
    NGX_HTTP_IDEM_ADMIT = 0,
    NGX_HTTP_IDEM_READ_BODY,
    NGX_HTTP_IDEM_BEGIN,
    NGX_HTTP_IDEM_WAIT,
    NGX_HTTP_IDEM_EXECUTE,           /* the content handler runs            */
    NGX_HTTP_IDEM_HOLD,              /* its response is being captured      */
    NGX_HTTP_IDEM_STREAM,            /* ... and goes out meanwhile          */
    NGX_HTTP_IDEM_COMPRESS,          /* ... is complete, and compressed     */
    NGX_HTTP_IDEM_COMMIT,            /* ... and being stored                */
    NGX_HTTP_IDEM_SEND,              /* may go to the client                */
    NGX_HTTP_IDEM_FOLLOW,            /* to where the response was made      */
    NGX_HTTP_IDEM_REPLAY,
    NGX_HTTP_IDEM_REFUSE,
    NGX_HTTP_IDEM_PASS               /* not ours, or not any more           */
} ngx_http_idem_phase_e;


#define ngx_http_idem_holds(ctx)                                              \
    ((ctx)->conf->unknown_outcome == NGX_HTTP_IDEM_UNKNOWN_HOLD)


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


typedef struct ngx_http_idem_rest_s  ngx_http_idem_rest_t;
typedef struct ngx_http_idem_run_s   ngx_http_idem_run_t;


typedef struct {
    ngx_http_idem_digest_t       *digest;       /* NULL: not reading        */
    ngx_http_idem_multipart_t    *multipart;
    ngx_http_idem_json_t         *json;
    ngx_http_idem_form_t         *form;
    ngx_http_idem_rest_t         *rest;         /* to be parsed yet         */
    size_t                        parsed_len;   /* given to a parser        */
    ngx_http_idem_fingerprint_e   kind;         /* what "hash" is of        */
    u_char                        hash[NGX_HTTP_IDEM_HASH_LEN];
    unsigned                      late:1;       /* read before us           */
    unsigned                      parsed:1;     /* it is JSON               */
} ngx_http_idem_body_t;


/*
 * A request at work: the holder itself, or a subrequest that its content
 * handler made.  One upstream at a time is watched for it.
 */

struct ngx_http_idem_run_s {
    ngx_http_idem_run_t             *next;
    ngx_http_request_t              *request;

    /* the content handler that was called last */
    ngx_http_handler_pt              content_handler;
    ngx_http_upstream_t             *before;    /* r->upstream then         */
    ngx_uint_t                       err_status; /* ... and r->err_status   */

    /* its upstream, and what was put in the way of it */
    ngx_http_upstream_t             *upstream;
    ngx_int_t                      (*create)(ngx_http_request_t *r);
    void                           (*finalize)(ngx_http_request_t *r,
                                               ngx_int_t rc);
    ngx_int_t                      (*input_init)(void *data);
    ngx_int_t                      (*input)(void *data, ssize_t bytes);
    void                            *input_ctx;
    ngx_event_pipe_input_filter_pt   pipe_input;
    void                            *pipe_ctx;
    ngx_uint_t                       method;

    ngx_uint_t                       first;     /* upstream states, and
                                                   upstream, that were there
                                                   before it all            */
    ngx_http_upstream_t             *origin;
    ngx_uint_t                       broken;    /* ... when a response broke
                                                   off last                 */

    unsigned                         uri_changes:4; /* at the call          */
    unsigned                         error_page:1;
    unsigned                         recursive:1;
    unsigned                         called:1;
    unsigned                         inside:1;  /* has not returned         */
    unsigned                         phase:1;   /* one of the phase, as dav */
    unsigned                         masked:1;  /* the method               */
    unsigned                         broke:1;   /* some response            */
    unsigned                         invalid:1; /* the one that comes       */
    unsigned                         aside:1;   /* no part of the work      */
};


/* to another location, by a content handler, after begin */

typedef struct {
    ngx_str_t                            target;     /* a URI, or a name    */
    ngx_str_t                            args;
    ngx_str_t                            location;   /* where it came to    */
    unsigned                             get:1;      /* as GET              */
} ngx_http_idem_move_t;


/*
 * Its execution: who works on it, and whose response goes out.  Written by
 * ..._execute.c, ..._upstream.c and ..._moves.c.
 */

typedef struct {
    ngx_http_idem_run_t        run;             /* and subrequests          */
    ngx_http_upstream_t       *answering;       /* whose response it is;
                                                   NULL: no upstream's      */
    ngx_uint_t                 left;            /* what handlers that are no
                                                   upstreams made of it
                                                   before the last one      */
    ngx_array_t               *moves;           /* ..._move_t               */
    ngx_http_idem_move_t       move;            /* the one under way        */
} ngx_http_idem_work_t;


/* following the moves of a record that is to be replayed: ..._moves.c */

typedef struct {
    ngx_http_idem_cover_t     *cover;
    ngx_array_t               *steps;           /* ..._move_t               */
    ngx_uint_t                 step;
    ngx_str_t                  follower;        /* who made them            */
} ngx_http_idem_follow_t;


/* where the request came to, and as what: ..._ctx.c */

typedef struct {
    ngx_http_core_loc_conf_t  *location;
    ngx_uint_t                 err_status;
    unsigned                   uri_changes:4;
    unsigned                   error_page:1;
    unsigned                   let_in:1;        /* by all its checks        */
    unsigned                   led:1;           /* ... to the first of ours */
    unsigned                   probe:1;         /* of the filters           */
} ngx_http_idem_place_t;


/*
 * The context.  Its parts belong to a room each, which alone writes them; what
 * stands here by itself is the request's own.
 */

struct ngx_http_idem_ctx_s {
    ngx_http_request_t        *request;
    ngx_http_idem_loc_conf_t  *conf;            /* of the location where it
                                                   was admitted             */
    ngx_http_idem_phase_e      phase;
    ngx_http_idem_status_e     status;

    /* who and what */
    ngx_uint_t                 group;           /* and 1; 0: not known      */
    ngx_str_t                  sent_key;        /* with its quotes          */
    ngx_str_t                  key;
    ngx_http_idem_body_t       body;
    ngx_msec_t                 arrival;

    ngx_http_idem_claims_t     claims;          /* claim/                   */
    ngx_http_idem_wait_t       wait;
    ngx_http_idem_work_t       work;            /* request/                 */
    ngx_http_idem_follow_t     follow;
    ngx_http_idem_place_t      place;
    ngx_http_idem_capture_t    capture;         /* response/                */
    ngx_http_idem_stream_t     stream;
    ngx_http_idem_answer_t     answer;

    unsigned                      dry_known:1;       /* whether it is a    */
    unsigned                      dry:1;             /* ... dry run         */
    unsigned                   figured:1;       /* in the metrics           */
    unsigned                   admitted:1;
    unsigned                   bypassed:1;      /* where it was admitted    */
    unsigned                   key_in_body:1;
    unsigned                   body_variable:1; /* by $request_body         */
    unsigned                   bypass_in_body:1;
};


/* ..._ctx.c */

ngx_http_idem_ctx_t *ngx_http_idem_find_ctx(ngx_http_request_t *r);
ngx_http_idem_ctx_t *ngx_http_idem_create_ctx(
    ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf);
void ngx_http_idem_arrive(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_let_in(ngx_http_request_t *r);
void ngx_http_idem_enter(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_phase_e phase, const char *reason);
void ngx_http_idem_status(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_status_e status);
void ngx_http_idem_give_up(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_no_post_action(ngx_http_request_t *r);
ngx_uint_t ngx_http_idem_group(ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_is_dry_run(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_dry_run(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_status_e status);
extern ngx_str_t  ngx_http_idem_status_names[];

/* ..._request_events.c */

/*
 * Something happened to a request.  "word" says more, if it is not NULL: a
 * word of ours, never what a client or an application sent.
 */
void ngx_http_idem_event(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_event_e event, const char *word);

/* ... in one of its records, which need not be the primary one */
void ngx_http_idem_event_of(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover, ngx_http_idem_event_e event,
    const char *word);

/* the request ended: the event of its outcome */
void ngx_http_idem_outcome_event(ngx_http_idem_ctx_t *ctx);

/* ..._variables.c */

ngx_int_t ngx_http_idem_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_variable_answer(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
ngx_int_t ngx_http_idem_check_variables(ngx_conf_t *cf);

/* ..._phases.c */

ngx_int_t ngx_http_idem_phases_init(ngx_conf_t *cf);

/* ..._handler.c */

ngx_int_t ngx_http_idem_preaccess_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_precontent_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_park(ngx_http_request_t *r);
void ngx_http_idem_resume(ngx_http_request_t *r);

/* ..._moves.c */

ngx_int_t ngx_http_idem_redirected(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_move_start(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_move_end(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_moves_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers);
ngx_uint_t ngx_http_idem_is_moves(ngx_str_t *name);
ngx_uint_t ngx_http_idem_moved(ngx_http_idem_found_t *found);
ngx_int_t ngx_http_idem_follow_start(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover, ngx_http_idem_response_t *response);
ngx_int_t ngx_http_idem_follow(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

/* ..._execute.c */

ngx_int_t ngx_http_idem_execute(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_execute_part(ngx_http_request_t *r);
void ngx_http_idem_execute_done(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_guard(ngx_http_request_t *r);

/* the worker is told to end what is not through by now; nginx's handler does */
ngx_uint_t ngx_http_idem_cut_off(ngx_http_request_t *r);
void ngx_http_idem_execute_let_go(ngx_http_request_t *r);

/* ..._upstream.c */

void ngx_http_idem_upstream_start(ngx_http_request_t *r,
    ngx_http_idem_run_t *run);
void ngx_http_idem_upstream_answers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_upstream_broke(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_run_t *ngx_http_idem_run_of(
    ngx_http_idem_ctx_t *ctx, ngx_http_request_t *r);

/* ..._admit.c, ..._body.c, ..._rest.c, ..._fingerprint.c */

ngx_uint_t ngx_http_idem_covered(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
ngx_int_t ngx_http_idem_admit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_body_start(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_body_finish(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_body_canonical(ngx_http_idem_body_t *body);
void ngx_http_idem_body_ready(ngx_http_request_t *r, ngx_int_t rc);
ngx_int_t ngx_http_idem_rest_add(ngx_http_idem_ctx_t *ctx,
    u_char *p, size_t len);
ngx_int_t ngx_http_idem_rest_parse(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_rest_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_body_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_body_init(void);
void ngx_http_idem_body_reset(void);
ngx_int_t ngx_http_idem_filters_check(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_admit_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
uint64_t ngx_http_idem_arrival_time(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_identity(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, u_char *hash);
ngx_int_t ngx_http_idem_fingerprint(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t whole, u_char *identity,
    u_char *hash);
void ngx_http_idem_target(ngx_http_request_t *r, u_char *target);
ngx_int_t ngx_http_idem_url_digest(ngx_http_request_t *r,
    ngx_http_idem_dedupe_t *dedupe, const ngx_http_idem_json_member_t *member,
    u_char *hash);


/* the holder is at work, and what becomes of it is not known yet */

#define ngx_http_idem_at_work(ctx)                                            \
    ((ctx)->phase == NGX_HTTP_IDEM_EXECUTE                                    \
     || (ctx)->phase == NGX_HTTP_IDEM_HOLD                                    \
     || (ctx)->phase == NGX_HTTP_IDEM_STREAM)


/*
 * Handlers and filters are called for every request of the server, and most
 * may have nothing to do with us: that takes a few instructions.
 */

static ngx_inline ngx_http_idem_ctx_t *
ngx_http_idem_get_ctx(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    /* an internal redirect reset r->ctx */

    return ngx_http_idem_find_ctx(r);
}


#endif /* _NGX_HTTP_IDEM_REQUEST_H_INCLUDED_ */
