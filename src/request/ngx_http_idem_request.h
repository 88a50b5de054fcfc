
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Requests: the context of a request, its way through nginx's phases, its
 * body and fingerprint, and its execution.
 *
 * The rooms above the stores share the context.
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
 * The states of a request.  One function, ngx_http_idem_run(), advances the
 * request up to EXECUTE; the filters advance it from there.
 */

typedef enum {
    NGX_HTTP_IDEM_ADMIT = 0,
    NGX_HTTP_IDEM_READ_BODY,
    NGX_HTTP_IDEM_BEGIN,
    NGX_HTTP_IDEM_WAIT,
    NGX_HTTP_IDEM_EXECUTE,           /* the content handler runs            */
    NGX_HTTP_IDEM_HOLD,              /* the response is being captured      */
    NGX_HTTP_IDEM_STREAM,            /* captured and sent at the same time  */
    NGX_HTTP_IDEM_COMPRESS,          /* complete, and being compressed      */
    NGX_HTTP_IDEM_COMMIT,            /* complete, and being stored          */
    NGX_HTTP_IDEM_SEND,              /* may be sent to the client           */
    NGX_HTTP_IDEM_REPEAT,            /* redirected to where the response
                                        was made, for a replay              */
    NGX_HTTP_IDEM_REPLAY,
    NGX_HTTP_IDEM_REFUSE,
    NGX_HTTP_IDEM_PASS               /* not covered, or no longer           */
} ngx_http_idem_stage_e;


#define ngx_http_idem_is_hold(ctx)                                            \
    ((ctx)->claims.unknown_outcome == NGX_HTTP_IDEM_UNKNOWN_HOLD)


typedef struct ngx_http_idem_run_s  ngx_http_idem_run_t;


/*
 * Continues the work of a request in later iterations of the event loop, so
 * that it does not hold up other requests.  A handler that returns NGX_AGAIN is
 * called in one more.  The struct has to be zeroed first, and cancelled before
 * it is freed.
 */

typedef ngx_int_t (*ngx_http_idem_turn_pt)(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

typedef struct {
    ngx_event_t                event;
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_turn_pt      handler;
    const char                *work;            /* for the debug log        */
} ngx_http_idem_turn_t;


typedef struct {
    ngx_http_idem_digest_t       *digest;       /* NULL: not being read     */
    ngx_http_idem_multipart_t    *multipart;
    ngx_http_idem_json_t         *json;
    ngx_http_idem_form_t         *form;
    ngx_http_idem_turn_t         *turn;         /* NULL: all is done at
                                                   once                     */
    ngx_chain_t                  *rest;         /* read by another module,
                                                   and not hashed yet, but
                                                   for its first bytes      */
    off_t                         hashed;       /* how many these are       */
    ngx_http_idem_fingerprint_e   kind;         /* how "hash" was computed  */
    ngx_uint_t                    detail;       /* of conflicts             */
    u_char                        hash[NGX_HTTP_IDEM_HASH_LEN];
    unsigned                      late:1;       /* read by another module   */
    unsigned                      parsed:1;     /* the body is valid JSON   */
} ngx_http_idem_body_t;


/* members of a request that an error page changes, as they were before */

typedef struct {
    ngx_uint_t                       err_status;
    u_char                          *method_name;
    unsigned                         error_page:1;
} ngx_http_idem_errors_t;


#define ngx_http_idem_errors_differ(r, e)                                     \
    ((r)->err_status != (e)->err_status || (r)->error_page != (e)->error_page)


/*
 * A request that executes: the holder itself, or a subrequest of its content
 * handler.  One upstream of it is watched at a time.
 */

struct ngx_http_idem_run_s {
    ngx_http_idem_run_t             *next;
    ngx_http_request_t              *request;

    /* the content handler that was called last, and values at that call */
    ngx_http_handler_pt              content_handler;
    ngx_http_upstream_t             *before;    /* r->upstream              */
    ngx_http_idem_errors_t           errors;
    void                           **loc_conf;  /* r->loc_conf              */

    /* its upstream, and the callbacks of the upstream that were replaced */
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

    ngx_uint_t                       first;     /* number of upstream
                                                   states before the
                                                   execution, and
                                                   r->upstream              */
    ngx_http_upstream_t             *origin;
    ngx_uint_t                       broken;    /* number of upstream
                                                   states when a response
                                                   broke off last           */

    unsigned                         uri_changes:4; /* at the call          */
    unsigned                         recursive:1;
    unsigned                         called:1;
    unsigned                         inside:1;  /* has not returned yet     */
    unsigned                         phase:1;   /* a handler of the content
                                                   phase, as dav            */
    unsigned                         broke:1;   /* a response broke off     */
    unsigned                         invalid:1; /* the current response is
                                                   invalid                  */
    unsigned                         aside:1;   /* a mirror's: not part of
                                                   the execution            */
};


/* an internal redirect to another location after begin, or begin itself */

typedef struct {
    ngx_str_t                            target;     /* a URI or a named
                                                        location            */
    ngx_str_t                            args;
    ngx_str_t                            location;   /* the location that
                                                        was reached         */
    unsigned                             get:1;      /* the method is GET   */
    unsigned                             begin:1;    /* location of begin   */
    unsigned                             page:1;     /* an error page led
                                                        to the location     */
    ngx_http_idem_errors_t               errors;     /* at its start        */

    uint64_t                             place;      /* id of the location,
                                                        0: unknown          */

    /* if begin: id of the server, and the rest of the request line */
    uint64_t                             server;     /* 0: none             */
    ngx_uint_t                           method;
    ngx_str_t                            method_name;
    ngx_str_t                            host;
} ngx_http_idem_redirect_t;


/*
 * The execution: the requests that run, and the upstream whose response is
 * sent.  Written by ..._execute.c, ..._upstream.c and ..._redirects.c.
 */

typedef struct {
    ngx_http_idem_run_t        run;             /* the holder; then its
                                                   subrequests              */
    ngx_http_upstream_t       *answering;       /* the upstream that sends
                                                   the response; NULL: no
                                                   upstream                 */
    ngx_uint_t                 redirected;      /* answers of handlers
                                                   without an upstream that
                                                   redirected the request   */
    ngx_array_t               *redirects;       /* ..._redirect_t           */
    ngx_http_idem_redirect_t  *redirect;        /* in progress; or NULL     */
} ngx_http_idem_work_t;


/* what a client asks for: ..._ask.c */

typedef struct {
    ngx_str_t                  request_line;
    ngx_str_t                  request_uri;
    ngx_str_t                  uri;
    ngx_str_t                  args;
    ngx_str_t                  host;
    ngx_str_t                  http_host;
    ngx_uint_t                 method;
    ngx_str_t                  method_name;
} ngx_http_idem_asked_t;


/* the address that realip has given to a client: ..._address.c */

typedef struct {
    ngx_pool_cleanup_t        *cleanup;         /* NULL: none               */
    struct sockaddr           *sockaddr;
    socklen_t                  socklen;
    ngx_str_t                  text;
} ngx_http_idem_address_t;


/* repeating the redirects of a record before its replay: ..._redirects.c */

typedef struct {
    ngx_http_idem_cover_t     *cover;
    ngx_array_t               *steps;           /* ..._redirect_t           */
    ngx_uint_t                 step;
    ngx_str_t                  identity;        /* hashed identity of the
                                                   original                 */

    /* while it asks for what the original asked for: its own request */
    ngx_http_idem_asked_t      own;
    ngx_http_idem_address_t    address;
    ngx_str_t                  args;            /* to ask for               */

    ngx_http_idem_errors_t     errors;          /* at the last redirect     */

    unsigned                   asking:1;        /* see "own"                */
    unsigned                   differs:1;       /* ... from "own"           */
    unsigned                   again:1;         /* with other arguments     */
    unsigned                   entered:1;       /* nginx has begun anew     */
} ngx_http_idem_repeat_t;


/* the location of the request, and the state it came in: ..._ctx.c */

typedef struct {
    ngx_http_core_loc_conf_t  *location;
    ngx_http_idem_errors_t     errors;
    unsigned                   uri_changes:4;
    unsigned                   granted:1;       /* all access checks passed */
    unsigned                   granted_at:4;    /* r->uri_changes then      */
    unsigned                   granted_before:4; /* and the time before     */
    unsigned                   redirected:1;    /* redirected here before
                                                   the context was created  */
    unsigned                   checked:1;       /* let in by the location of
                                                   its URI                  */
    unsigned                   probe:1;         /* probe of the filters     */
} ngx_http_idem_place_t;


/*
 * The context.  Each part is written by one room only; the other members
 * belong to this room.
 */

struct ngx_http_idem_ctx_s {
    ngx_http_request_t        *request;
    ngx_http_idem_loc_conf_t  *conf;            /* of the location where it
                                                   was admitted             */
    ngx_http_idem_stage_e      stage;
    ngx_http_idem_status_e     status;

    /* key and labels */
    ngx_uint_t                 group;           /* number + 1; 0: not known */
    ngx_str_t                  sent_key;        /* as sent, with quotes     */
    ngx_str_t                  key;
    ngx_http_idem_body_t       body;
    ngx_msec_t                 arrival;

    ngx_http_idem_claims_t     claims;          /* claim/                   */
    ngx_http_idem_wait_t       wait;
    ngx_http_idem_work_t       work;            /* request/                 */
    ngx_http_idem_repeat_t    *repeat;          /* NULL: none was read      */
    ngx_http_idem_place_t      place;
    ngx_http_idem_capture_t    capture;         /* response/                */
    ngx_http_idem_stream_t     stream;
    ngx_http_idem_answer_t     answer;

    unsigned                   dry_known:1;     /* "dry" is valid           */
    unsigned                   dry:1;           /* a dry run                */
    unsigned                   counted:1;       /* counted in metrics       */
    unsigned                   admitted:1;
    unsigned                   bypassed:1;      /* where it was admitted    */
    unsigned                   key_in_body:1;
    unsigned                   body_variable:1; /* by $request_body         */
    unsigned                   bypass_in_body:1;
    unsigned                   reading:1;       /* nginx was asked for the
                                                   body, and has not returned */
};


/* ..._turn.c */

void ngx_http_idem_turn(ngx_http_idem_turn_t *turn, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_turn_pt handler, const char *work);
void ngx_http_idem_turn_cancel(ngx_http_idem_turn_t *turn);

/* ..._ctx.c */

ngx_http_idem_ctx_t *ngx_http_idem_find_ctx(ngx_http_request_t *r);
ngx_http_idem_ctx_t *ngx_http_idem_create_ctx(
    ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf);
void ngx_http_idem_change_location(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_access_granted(ngx_http_request_t *r);
void ngx_http_idem_enter(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_stage_e stage, const char *reason);
void ngx_http_idem_end(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_no_post_action(ngx_http_request_t *r);
void ngx_http_idem_with_post_action(ngx_http_request_t *r);
void ngx_http_idem_post_action(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_unheld_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_group(ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_is_dry_run(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_dry_run(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_status_e status);
extern const char  *ngx_http_idem_status_names[];

/* sets $idempotency_status and the outcome in the metrics */
#define ngx_http_idem_status(ctx, s)  ((ctx)->status = (s))

/* ..._request_events.c */

/*
 * Reports that something happened to a request.  "word" adds a reason if it
 * is not NULL.  It is always one of the module's own words, never data of a
 * client or an application.
 */
void ngx_http_idem_event(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_event_e event, const char *word);

/* the same for one of the records, which need not be the primary one */
void ngx_http_idem_event_of(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover, ngx_http_idem_event_e event,
    const char *word);

/* reports the outcome when the request ends */
void ngx_http_idem_outcome_event(ngx_http_idem_ctx_t *ctx);

/* ..._variables.c */

ngx_int_t ngx_http_idem_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_check_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_print(ngx_pool_t *pool, ngx_str_t *value,
    size_t size, const char *fmt, ...);

/* ..._phases.c */

/* modules whose contexts or configurations are read; NULL: not loaded */

typedef struct {
    ngx_module_t              *charset;
    ngx_command_t             *charset_command;
    ngx_module_t              *image;
    ngx_module_t              *perl;
    ngx_module_t              *realip;
    ngx_module_t              *slice;
} ngx_http_idem_modules_t;

extern ngx_http_idem_modules_t  ngx_http_idem_modules;

void ngx_http_idem_modules_init(ngx_cycle_t *cycle);
ngx_int_t ngx_http_idem_phases_init(ngx_conf_t *cf);

/* ..._handler.c */

ngx_int_t ngx_http_idem_preaccess_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_precontent_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_no_page(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_park(ngx_http_request_t *r);
void ngx_http_idem_resume(ngx_http_request_t *r);

/* ..._redirects.c */

#define NGX_HTTP_IDEM_REDIRECTS  "X-Idempotency-Moves"

#define ngx_http_idem_is_redirects(name)                                      \
    ngx_http_idem_header_is(name, NGX_HTTP_IDEM_REDIRECTS)

void ngx_http_idem_errors_save(ngx_http_request_t *r,
    ngx_http_idem_errors_t *errors);
ngx_int_t ngx_http_idem_follow_redirect(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_redirect_start(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_redirect_end(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_repeat_start(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover, ngx_http_idem_response_t *response);
ngx_int_t ngx_http_idem_repeat_reached(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

#define NGX_HTTP_IDEM_REDIRECT_IDENTITY_LEN                                   \
    (2 * NGX_HTTP_IDEM_IDENTITY_LEN)

ngx_int_t ngx_http_idem_redirect_identity(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, u_char *who);

/* ..._redirects_header.c */

ngx_int_t ngx_http_idem_redirects_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers);
ngx_int_t ngx_http_idem_redirects_read(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_response_t *response);

/* ..._address.c */

void ngx_http_idem_address_init(ngx_cycle_t *cycle);
void ngx_http_idem_address_learn(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_address_ask(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_address_entered(ngx_http_request_t *r);
void ngx_http_idem_address_own(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

/* ..._place.c */

/*
 * whether a redirect or a "rewrite" chose the location; nginx does not count a
 * "rewrite" of the server
 */
#define ngx_http_idem_is_redirected(r)                                        \
    ((r)->uri_changes != NGX_HTTP_MAX_URI_CHANGES + 1                         \
     || ((r)->internal && ngx_http_idem_is_rewritten(r)))

ngx_int_t ngx_http_idem_rewritten(ngx_http_request_t *r);
ngx_uint_t ngx_http_idem_is_rewritten(ngx_http_request_t *r);

ngx_uint_t ngx_http_idem_is_elsewhere(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
ngx_uint_t ngx_http_idem_target_same(ngx_http_idem_cover_t *cover);
ngx_int_t ngx_http_idem_place_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_same_place(ngx_http_request_t *r,
    ngx_http_idem_redirect_t *step);
ngx_uint_t ngx_http_idem_server_refuses(ngx_http_request_t *r,
    ngx_http_idem_server_t *server);

/* in front of details: a mark, and the id of a place */
#define NGX_HTTP_IDEM_DETAILS_HEAD  (1 + sizeof(uint64_t))

u_char *ngx_http_idem_details_mark(ngx_http_request_t *r, u_char *p);
ngx_uint_t ngx_http_idem_details_hidden(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *details);
ngx_uint_t ngx_http_idem_is_hidden(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_found_t *found);

/* ..._ask.c */

ngx_int_t ngx_http_idem_parse_uri(ngx_http_request_t *r, ngx_str_t *uri,
    ngx_str_t *args);
ngx_int_t ngx_http_idem_same_target(ngx_http_request_t *r,
    ngx_http_idem_redirect_t *step);
ngx_int_t ngx_http_idem_ask(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_redirect_t *step);
void ngx_http_idem_ask_redirected(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_ask_end(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_ask_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);

/* ..._execute.c */

ngx_int_t ngx_http_idem_execute(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_execute_part(ngx_http_request_t *r);
void ngx_http_idem_execute_done(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_guard(ngx_http_request_t *r);

/*
 * whether nginx's handler is to end the request: the worker's shutdown
 * timeout expired
 */
ngx_uint_t ngx_http_idem_shutdown_expired(ngx_http_request_t *r);
void ngx_http_idem_recheck_client(ngx_http_request_t *r);

/* ..._upstream.c */

void ngx_http_idem_upstream_start(ngx_http_request_t *r,
    ngx_http_idem_run_t *run);
void ngx_http_idem_upstream_answers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_upstream_unbuffer(ngx_http_request_t *r,
    ngx_http_upstream_t *u);
ngx_uint_t ngx_http_idem_upstream_broke(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_run_t *ngx_http_idem_run_of(
    ngx_http_idem_ctx_t *ctx, ngx_http_request_t *r);

/* ..._body_late.c */

ngx_int_t ngx_http_idem_body_late(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_body_buf(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b);

/* ..._admit.c, ..._body.c, ..._fingerprint.c */

ngx_uint_t ngx_http_idem_covered(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
ngx_int_t ngx_http_idem_admit(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_body_start(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_body_finish(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_body_ready(ngx_http_request_t *r, ngx_int_t rc);
void ngx_http_idem_body_cleanup(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_body_init(void);
void ngx_http_idem_body_reset(void);
void ngx_http_idem_body_feed(ngx_http_idem_body_t *body, u_char *p,
    size_t len);
ngx_int_t ngx_http_idem_filters_check(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_admit_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_identity(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, u_char *hash);
ngx_int_t ngx_http_idem_fingerprint(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t whole, u_char *identity,
    u_char *hash);
uint32_t ngx_http_idem_request_scheme(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_target(ngx_http_request_t *r, u_char *target);
ngx_int_t ngx_http_idem_url_digest(ngx_http_request_t *r,
    ngx_http_idem_dedupe_t *dedupe, const ngx_http_idem_json_member_t *member,
    u_char *hash);


/* the holder runs, and its outcome is not known yet */

#define ngx_http_idem_at_work(ctx)                                            \
    ((ctx)->stage == NGX_HTTP_IDEM_EXECUTE                                    \
     || (ctx)->stage == NGX_HTTP_IDEM_HOLD                                    \
     || (ctx)->stage == NGX_HTTP_IDEM_STREAM)


/*
 * Handlers and filters are called for every request of the server, and most
 * requests are not covered: this takes a few instructions.
 */

static ngx_inline ngx_http_idem_ctx_t *
ngx_http_idem_get_ctx(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx || !(r->internal || r->filter_finalize)) {
        return ctx;
    }

    /* an internal redirect cleared r->ctx */

    return ngx_http_idem_find_ctx(r);
}


#endif /* _NGX_HTTP_IDEM_REQUEST_H_INCLUDED_ */
