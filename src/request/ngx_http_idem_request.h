
/*
 * What the rooms of the module share: its configuration, the context of a
 * request, and the functions that one room calls in another.
 */


#ifndef _NGX_HTTP_IDEM_H_INCLUDED_
#define _NGX_HTTP_IDEM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "record/ngx_http_idem_record.h"
#include "canonical/ngx_http_idem_digest.h"
#include "canonical/ngx_http_idem_form.h"
#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_key.h"
#include "canonical/ngx_http_idem_multipart.h"
#include "store/ngx_http_idem_store.h"
#include "store/layers/ngx_http_idem_layers.h"


#define NGX_HTTP_IDEM_VERSION   "0.1.0"

#define NGX_HTTP_IDEM_TTL        (24 * 60 * 60 * 1000)
#define NGX_HTTP_IDEM_LEASE      (30 * 1000)
#define NGX_HTTP_IDEM_LEASE_MIN  100
#define NGX_HTTP_IDEM_WAIT_TIME  (10 * 1000)

/* RFC 9110's 422, for which nginx has no name */
#define NGX_HTTP_IDEM_UNPROCESSABLE  422

/* of r->buffered, whose low bits nginx gives to filters; others are in use */
#define NGX_HTTP_IDEM_BUFFERED  0x08


/* where events go: observe/..._log.c */
typedef struct ngx_http_idem_log_s  ngx_http_idem_log_t;


/* a directive's value that may differ by request */

typedef struct {
    ngx_http_complex_value_t        *complex;    /* NULL: a constant        */
    ngx_msec_t                       value;
} ngx_http_idem_time_t;


typedef struct {
    ngx_http_complex_value_t        *complex;
    size_t                           value;
} ngx_http_idem_size_t;


/* what a value is: most are one variable, which need not be a script */

typedef enum {
    NGX_HTTP_IDEM_VALUE_SCRIPT = 0,
    NGX_HTTP_IDEM_VALUE_HEADER,              /* $http_<name>                */
    NGX_HTTP_IDEM_VALUE_HOST,                /* $host                       */
    NGX_HTTP_IDEM_VALUE_CERTIFICATE          /* $ssl_client_fingerprint     */
} ngx_http_idem_value_e;


/* a value that may differ by request */

typedef struct {
    ngx_str_t                    text;
    ngx_http_idem_value_e        kind;
    ngx_str_t                    header;     /* of "$http_...": its name,
                                                    '_' for '-'              */
    ngx_http_complex_value_t     script;
} ngx_http_idem_value_t;


/* where a key may come from */

typedef struct {
    ngx_http_idem_value_t     value;
    ngx_int_t                 member;     /* of "json:...": its number
                                                    among those wanted, or -1 */
} ngx_http_idem_key_source_t;


/* a rule for derived keys */

typedef struct {
    ngx_array_t              *members;           /* ngx_uint_t: numbers of
                                                    wanted JSON members;
                                                    NULL: the whole request */
    ngx_str_t                 name;       /* "body", or the members  */
    ngx_http_idem_time_t      window;
    ngx_http_idem_time_t      linger;            /* after the response      */
    unsigned                  always:1;          /* also beside a key       */
} ngx_http_idem_dedupe_t;


typedef enum {
    NGX_HTTP_IDEM_FINGERPRINT_RAW = 0,
    NGX_HTTP_IDEM_FINGERPRINT_JSON,
    NGX_HTTP_IDEM_FINGERPRINT_FORM,
    NGX_HTTP_IDEM_FINGERPRINT_MULTIPART,
    NGX_HTTP_IDEM_FINGERPRINT_AUTO,
    NGX_HTTP_IDEM_FINGERPRINT_OFF
} ngx_http_idem_fingerprint_e;


/* idempotency_fingerprint */

typedef struct {
    ngx_http_idem_fingerprint_e   mode;
    ngx_array_t                  *excluded;          /* ngx_str_t: names of
                                                        members, or pointers */
    ngx_array_t                  *names;             /* of them, no pointers */
    ngx_array_t                  *included;          /* ngx_str_t: pointers */
    unsigned                      unordered:1;
} ngx_http_idem_canonical_t;


/* idempotency_replay_json */

typedef struct {
    ngx_str_t                        member;
    ngx_http_complex_value_t         value;
} ngx_http_idem_replay_member_t;


typedef enum {
    NGX_HTTP_IDEM_UNKNOWN_RETRY = 0,
    NGX_HTTP_IDEM_UNKNOWN_LEASE,
    NGX_HTTP_IDEM_UNKNOWN_HOLD
} ngx_http_idem_unknown_e;


#define NGX_HTTP_IDEM_ON_ERROR_FAIL  0
#define NGX_HTTP_IDEM_ON_ERROR_PASS  1


/* statuses 0..999, one bit each */

typedef struct {
    uint32_t                         bits[32];
} ngx_http_idem_statuses_t;


typedef struct {
    ngx_array_t                      stores;     /* of ..._store_t *        */
    ngx_array_t                      fallbacks;  /* stores of two of them   */
    ngx_array_t                      locations;  /* of ..._loc_conf_t *: where
                                                    it is on                */
    ngx_queue_t                      logs;       /* of ..._log_t            */
    ngx_int_t                        request_body; /* index of the variable,
                                                    or -1                   */
} ngx_http_idem_main_conf_t;


typedef struct {
    ngx_http_idem_store_t        *store;                 /* NULL: off       */
    unsigned                      own:1;                 /* said here, and not
                                                            inherited       */
    unsigned                      off:1;                 /* said so here, or in
                                                            a location around
                                                            it              */

    ngx_array_t                  *keys;                  /* ..._key_source_t */
    ngx_http_idem_key_format_t   *key_format;
    ngx_flag_t                    required;
    ngx_array_t                  *methods;               /* ngx_str_t       */
    ngx_array_t                  *bypass;                /* ..._value_t     */
    unsigned                      early:1;               /* key and bypass are
                                                            of the request's
                                                            own header: known
                                                            in access phase */

    ngx_http_idem_value_t        *scope;
    ngx_array_t                  *identity;              /* ..._value_t     */
    u_char                        nobody[
                                           NGX_HTTP_IDEM_HASH_LEN];
                                                         /* hash of it if all
                                                            are empty       */
    unsigned                      nobody_known:1;
    ngx_http_idem_canonical_t    *fingerprint;
    uint32_t                      scheme;
    ngx_array_t                  *dedupe;                /* ..._dedupe_t    */
    ngx_array_t                  *wanted;                /* ngx_str_t: JSON
                                                            members that keys
                                                            come from       */
    ngx_uint_t                    conflict_detail;
    ngx_http_idem_json_options_t  json;
    ngx_http_idem_form_options_t  form;

    ngx_http_idem_time_t          ttl;
    ngx_str_t                     ttl_header;            /* '_' for '-'     */
    ngx_msec_t                    ttl_header_max;
    ngx_http_idem_time_t          expired_grace;
    ngx_http_idem_time_t          lease;
    ngx_http_idem_time_t          wait;
    ngx_int_t                     max_waiters;
    ngx_http_idem_time_t          retry_after;
    ngx_http_idem_size_t          max_response;

    ngx_http_idem_statuses_t     *keep_status;
    ngx_uint_t                    on_store_error;
    ngx_uint_t                    unknown_outcome;
    ngx_uint_t                    conflict_status;
    ngx_int_t                     replay_status;         /* 0: original     */
    ngx_array_t                  *replay_json;           /* ..._member_t    */
    ngx_array_t                  *hide_headers;          /* ngx_str_t       */
    ngx_flag_t                    compress;
    size_t                        compress_min;
    ngx_flag_t                    headers;
    ngx_flag_t                    error_body;
    ngx_flag_t                    dry_run;
    ngx_http_idem_value_t        *documentation;
    ngx_http_idem_log_t          *log;
    ngx_str_t                     group_name;
    ngx_http_idem_value_t        *group_value;           /* NULL: a constant */
    ngx_uint_t                    group;                 /* of figures, or of
                                                            a value that is
                                                            empty           */
    ngx_uint_t                    stats;                 /* how to serve them */
} ngx_http_idem_loc_conf_t;


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


/* how the paths that differ are told: an array of objects, or of strings */

typedef enum {
    NGX_HTTP_IDEM_DIFF_OBJECTS = 0,
    NGX_HTTP_IDEM_DIFF_TEXTS
} ngx_http_idem_diff_e;


/* room for n bytes as a JSON string: each escaped to six at most, quotes */
#define ngx_http_idem_json_quoted(n)  (6 * (n) + 2)


typedef struct ngx_http_idem_deflate_s  ngx_http_idem_deflate_t;
typedef struct ngx_http_idem_rest_s     ngx_http_idem_rest_t;


typedef struct {
    ngx_http_idem_digest_t       *digest;            /* NULL: not reading   */
    ngx_http_idem_multipart_t    *multipart;
    ngx_http_idem_json_t         *json;
    ngx_http_idem_form_t         *form;
    ngx_http_idem_rest_t         *rest;              /* to be parsed yet    */
    size_t                        parsed_len;        /* given to a parser   */
    ngx_http_idem_fingerprint_e   kind;       /* what "hash" is of   */
    u_char                        hash[NGX_HTTP_IDEM_HASH_LEN];
    unsigned                      late:1;            /* read before us      */
    unsigned                      parsed:1;          /* it is JSON          */
} ngx_http_idem_body_t;


typedef struct ngx_http_idem_segment_s
    ngx_http_idem_segment_t;
typedef struct ngx_http_idem_watch_s  ngx_http_idem_watch_t;
typedef struct ngx_http_idem_ctx_s    ngx_http_idem_ctx_t;
typedef struct ngx_http_idem_run_s    ngx_http_idem_run_t;


/*
 * A request at work: the holder itself, or a subrequest that its content
 * handler made.  One upstream at a time is watched for it.
 */

struct ngx_http_idem_run_s {
    ngx_http_idem_run_t          *next;
    ngx_http_request_t           *request;

    /* the content handler that was called last */
    ngx_http_handler_pt           content_handler;
    ngx_http_upstream_t          *before;            /* r->upstream then    */
    ngx_uint_t                    err_status;        /* ... and r->err_status */

    /* its upstream, and what was put in the way of it */
    ngx_http_upstream_t          *upstream;
    ngx_int_t                          (*create)(ngx_http_request_t *r);
    void                               (*finalize)(ngx_http_request_t *r,
                                                   ngx_int_t rc);
    ngx_int_t                          (*input_init)(void *data);
    ngx_int_t                          (*input)(void *data, ssize_t bytes);
    void                                *input_ctx;
    ngx_event_pipe_input_filter_pt       pipe_input;
    void                                *pipe_ctx;
    ngx_uint_t                           method;

    ngx_uint_t                           first;      /* upstream states, and
                                                        upstream, that were
                                                        there before it all */
    ngx_http_upstream_t                 *origin;
    ngx_uint_t                           broken;     /* ... when a response
                                                        broke off last      */

    unsigned                             uri_changes:4; /* at the call      */
    unsigned                             error_page:1;
    unsigned                             recursive:1;
    unsigned                             called:1;
    unsigned                             inside:1;   /* has not returned    */
    unsigned                             phase:1;    /* one of the phase, as
                                                        dav                 */
    unsigned                             masked:1;   /* the method          */
    unsigned                             broke:1;    /* some response       */
    unsigned                             invalid:1;  /* the one that comes  */
    unsigned                             aside:1;    /* no part of the work */
};


/*
 * One record that covers a request: that of its key, or one derived from what
 * it is.  Mostly there is one.  They are asked for in order of their ids.
 */

typedef struct {
    ngx_http_idem_ctx_t          *ctx;
    u_char                        id[NGX_HTTP_IDEM_ID_LEN];
    u_char                        token[NGX_HTTP_IDEM_TOKEN_LEN];
                                                     /* of the last begin   */
    ngx_http_idem_claim_t         claim;
    ngx_str_t                     details;
    ngx_http_idem_dedupe_t       *dedupe;            /* of a derived one:   */
    ngx_msec_t                    window;
    ngx_msec_t                    linger;            /* after its commit    */
    ngx_http_idem_op_t            op;                /* begin, then commit  */
    ngx_http_idem_op_t            renewal;
    ngx_http_idem_store_t        *where;             /* op.where of the begin
                                                        that took the lock, or
                                                        found it taken      */
    ngx_msec_t                    locked_until;        /* at the least, by our
                                                        own clock           */
    unsigned                      derived:1;
    unsigned                      asked:1;
    unsigned                      taken:1;           /* the lock is ours    */
    unsigned                      lost:1;            /* not any more        */
} ngx_http_idem_cover_t;


/* to another location, by a content handler, after begin */

typedef struct {
    ngx_str_t                            target;     /* a URI, or a name    */
    ngx_str_t                            args;
    ngx_str_t                            location;   /* where it came to    */
    unsigned                             get:1;      /* as GET              */
} ngx_http_idem_move_t;


struct ngx_http_idem_ctx_s {
    ngx_http_request_t           *request;
    ngx_http_idem_loc_conf_t     *conf;              /* of the location where
                                                        it was admitted     */
    ngx_http_idem_phase_e         phase;
    ngx_http_idem_status_e        status;

    /* who and what */
    ngx_uint_t                    group;             /* and 1; 0: not known */
    ngx_str_t                     sent_key;          /* with its quotes     */
    ngx_str_t                     key;
    ngx_http_idem_body_t          body;
    ngx_msec_t                    arrival;
    ngx_msec_t                    ttl;
    ngx_msec_t                    lease;
    ngx_msec_t                    grace;

    /* the store */
    ngx_http_idem_cover_t        *covers;
    ngx_uint_t                    ncovers;
    ngx_http_idem_cover_t        *primary;           /* the key's, or the
                                                        first derived one   */
    ngx_http_idem_cover_t        *replayed;          /* a derived one that has
                                                        the response        */
    ngx_http_idem_cover_t        *blocked;           /* a derived one that
                                                        can't be had        */
    ngx_queue_t                   holder;            /* among those that run */
    ngx_msec_t                    renew_at;          /* the locks           */
    ngx_msec_t                    held_since;
    ngx_msec_t                    store_time;
    ngx_uint_t                    commits;           /* under way           */

    /* waiting */
    ngx_http_idem_watch_t        *watch;
    ngx_http_idem_cover_t        *waiting;           /* for which of them   */
    ngx_queue_t                   queue;             /* in watch->waiters   */
    ngx_event_t                   deadline;
    ngx_msec_t                    wait_start;
    ngx_msec_t                    wait_until;
    ngx_msec_t                    wait_time;

    /* executing */
    ngx_http_idem_run_t           run;               /* ... and subrequests  */
    ngx_http_upstream_t          *answering;         /* whose response it is;
                                                        NULL: no upstream's */
    ngx_uint_t                    left;              /* what handlers that are
                                                        no upstreams made of it
                                                        before the last one */

    ngx_array_t                  *moves;             /* ..._move_t          */
    ngx_http_idem_move_t          move;              /* the one under way   */

    /* capturing */
    size_t                        max_response;
    ngx_chain_t                  *held;
    ngx_chain_t                  *tail;              /* of what was held    */
    ngx_chain_t                 **held_last;
    ngx_chain_t                   end;               /* of a response: there */
    ngx_buf_t                     end_buf;           /* even without memory  */
    ngx_http_idem_segment_t      *segments;          /* what was held while
                                                        subrequests ran     */
    size_t                        head_size;         /* in the record       */
    size_t                        held_size;         /* head and body       */
    ngx_http_idem_response_t      response;
    ngx_http_idem_deflate_t      *deflate;           /* under way           */
    ngx_chain_t                  *compressed;        /* body of the record  */
    ngx_msec_t                    app_ttl;           /* X-Idempotency-Store */

    /* what was refused, or replayed */
    ngx_http_idem_problem_e       problem;
    const char                   *reason;
    ngx_uint_t                    refusal;           /* HTTP status         */
    ngx_msec_t                    retry_after;
    uint64_t                      original_time;
    ngx_str_t                     found_details;
    ngx_http_idem_cover_t        *met;               /* the one whose record
                                                        decided it          */
    ngx_str_t                     diffs[2];          /* by ..._diff_e; data is
                                                        NULL: not made yet  */

    /* following the moves of the one that is to be replayed */
    ngx_http_idem_cover_t        *followed;
    ngx_array_t                  *steps;             /* ..._move_t          */
    ngx_uint_t                    step;
    ngx_str_t                     follower;          /* who made them       */

    /* of the request, when it came to the location where it is */
    ngx_http_core_loc_conf_t     *place;
    ngx_uint_t                    err_status;
    unsigned                      uri_changes:4;
    unsigned                      error_page:1;
    unsigned                      let_in:1;          /* by all its checks   */
    unsigned                      probe:1;           /* of the filters      */

    unsigned                      holding:1;         /* its locks are renewed */
    unsigned                      figured:1;         /* in the metrics      */
    unsigned                      admitted:1;
    unsigned                      bypassed:1;        /* where it was admitted */
    unsigned                      key_in_body:1;
    unsigned                      body_variable:1;        /* by $request_body */
    unsigned                      bypass_in_body:1;
    unsigned                      expired:1;         /* there was a record  */
    unsigned                      app_off:1;         /* X-Idempotency-Store */
    unsigned                      ended:1;           /* a response, and not its
                                                        subrequests         */
    unsigned                      composed:1;        /* of subrequests'     */
    unsigned                      charset:1;         /* told ahead          */
    unsigned                      ranges:1;          /* may be cut out of what
                                                        is held             */
    unsigned                      foreign:1;         /* another identity's
                                                        record: tell nothing */
    unsigned                      waited:1;
    unsigned                      counted:1;         /* among the waiters   */
    unsigned                      ready:1;           /* to be resumed       */
    unsigned                      retryable:1;
    unsigned                      refused:1;  /* "problem" says why   */
    unsigned                      unprotected:1;        /* the store does not
                                                        answer: its locks are
                                                        this nginx's own    */
};


/* request/..._ctx.c */

ngx_http_idem_ctx_t *ngx_http_idem_find_ctx(ngx_http_request_t *r);
ngx_http_idem_ctx_t *ngx_http_idem_create_ctx(
    ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf);
void ngx_http_idem_arrive(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_let_in(ngx_http_request_t *r);
void ngx_http_idem_enter(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_phase_e phase, const char *reason);
void ngx_http_idem_give_up(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_no_post_action(ngx_http_request_t *r);
ngx_uint_t ngx_http_idem_group(ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_dry_run(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_status_e status);
extern ngx_str_t  ngx_http_idem_status_names[];

/* conf/..._value.c */

char *ngx_http_idem_conf_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idem_value_t *value);
ngx_int_t ngx_http_idem_values_init(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_value(ngx_http_request_t *r,
    ngx_http_idem_value_t *value, ngx_str_t *s);
ngx_int_t ngx_http_idem_value_early(ngx_http_request_t *r,
    ngx_http_idem_value_t *value, ngx_str_t *s);
void ngx_http_idem_value_body_read(ngx_http_request_t *r);
ngx_uint_t ngx_http_idem_value_too_early(ngx_http_request_t *r);
ngx_table_elt_t *ngx_http_idem_request_header(ngx_http_request_t *r,
    ngx_str_t *name, ngx_uint_t *n);
ngx_msec_t ngx_http_idem_time(ngx_http_request_t *r,
    ngx_http_idem_time_t *t, const char *directive);
size_t ngx_http_idem_size(ngx_http_request_t *r,
    ngx_http_idem_size_t *s, const char *directive);

/* request/..._phases.c */

ngx_int_t ngx_http_idem_phases_init(ngx_conf_t *cf);
void ngx_http_idem_phases_ready(ngx_cycle_t *cycle);

/* request/..._handler.c */

ngx_int_t ngx_http_idem_preaccess_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_precontent_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_park(ngx_http_request_t *r);
void ngx_http_idem_resume(ngx_http_request_t *r);

/* request/..._moves.c */

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

/* claim/..._begin.c */

ngx_int_t ngx_http_idem_begin(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_op_prepare(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op, ngx_http_idem_op_e kind);
void ngx_http_idem_locked(ngx_http_idem_cover_t *cover,
    ngx_http_idem_op_t *op);
ngx_msec_t ngx_http_idem_grace(ngx_http_idem_cover_t *cover);
ngx_msec_t ngx_http_idem_commit_ttl(ngx_http_idem_cover_t *cover);
ngx_uint_t ngx_http_idem_same_request(
    ngx_http_idem_cover_t *cover, ngx_http_idem_claim_t *claim);

/* claim/..._wait.c */

ngx_int_t ngx_http_idem_wait(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover);
void ngx_http_idem_wait_cancel(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_wait_init(ngx_cycle_t *cycle);

/* claim/..._renew.c */

void ngx_http_idem_renew_init(ngx_cycle_t *cycle);
void ngx_http_idem_renew_start(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_renew_stop(ngx_http_idem_ctx_t *ctx);

/* request/..._execute.c */

ngx_int_t ngx_http_idem_execute(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_execute_part(ngx_http_request_t *r);
void ngx_http_idem_execute_done(ngx_http_idem_ctx_t *ctx);
void ngx_http_idem_guard(ngx_http_request_t *r);
void ngx_http_idem_execute_let_go(ngx_http_request_t *r);

/* request/..._upstream.c */

void ngx_http_idem_upstream_start(ngx_http_request_t *r,
    ngx_http_idem_run_t *run);
void ngx_http_idem_upstream_answers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_uint_t ngx_http_idem_upstream_broke(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_http_idem_run_t *ngx_http_idem_run_of(
    ngx_http_idem_ctx_t *ctx, ngx_http_request_t *r);

/* response/..._outcome.c */

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

/* request/ */

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
ngx_int_t ngx_http_idem_cover(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
ngx_int_t ngx_http_idem_identity(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, u_char *hash);
ngx_int_t ngx_http_idem_fingerprint(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t whole, u_char *identity,
    u_char *hash);
void ngx_http_idem_target(ngx_http_request_t *r, u_char *target);
uint32_t ngx_http_idem_scheme(ngx_http_idem_loc_conf_t *conf);

/* response/ */

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
const char *ngx_http_idem_problem_code(ngx_http_idem_problem_e problem);
const char *ngx_http_idem_problem_type(ngx_http_idem_problem_e problem);
ngx_int_t ngx_http_idem_problem_message(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text);
ngx_int_t ngx_http_idem_diff(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_diff_e form, ngx_str_t *text, ngx_uint_t *more);
u_char *ngx_http_idem_json_quote(u_char *p, const ngx_str_t *text);
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

/* observe/ */

ngx_int_t ngx_http_idem_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_variable_answer(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
ngx_int_t ngx_http_idem_check_variables(ngx_conf_t *cf);
char *ngx_http_idem_conf_stats(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* conf/..._conf.c, ..._conf_body.c, ..._conf_store.c, ..._directives.c */

void *ngx_http_idem_create_main_conf(ngx_conf_t *cf);
void *ngx_http_idem_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_idem_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);
ngx_int_t ngx_http_idem_body_options(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);

char *ngx_http_idem_init_stores(ngx_conf_t *cf, void *conf);
char *ngx_http_idem_conf_store(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_switch(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_idem_conf_member(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *name);
char *ngx_http_idem_conf_pointer(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *pointer);
char *ngx_http_idem_conf_key_format(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_group(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_names(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_values(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_value(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_choice(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_number(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_fingerprint(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
char *ngx_http_idem_conf_time(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_idem_conf_size(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_idem_conf_dedupe(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_replay_json(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
char *ngx_http_idem_conf_compress(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_invalid(ngx_conf_t *cf, ngx_str_t *value,
    const char *right);
char *ngx_http_idem_conf_complex(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t *cv);
char *ngx_http_idem_conf_ttl_header(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idem_conf_keep_status(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
char *ngx_http_idem_conf_replay_status(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);


#define ngx_http_idem_conf_is(value, text)                                    \
    ((value)->len == sizeof(text) - 1                                         \
     && ngx_strncmp((value)->data, text, sizeof(text) - 1) == 0)

#define ngx_http_idem_status_kept(s, code)                                    \
    ((code) < 1000 && ((s)->bits[(code) / 32] >> ((code) % 32)) & 1)


/* the holder is at work, and nobody has been told anything yet */

#define ngx_http_idem_at_work(ctx)                                            \
    ((ctx)->phase == NGX_HTTP_IDEM_EXECUTE                                    \
     || (ctx)->phase == NGX_HTTP_IDEM_HOLD)


extern ngx_module_t  ngx_http_idempotency_module;


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


#endif /* _NGX_HTTP_IDEM_H_INCLUDED_ */
