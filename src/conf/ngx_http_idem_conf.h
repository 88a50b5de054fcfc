
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Configuration: the settings of a location, and values that may differ by
 * request.
 *
 * All rooms above the stores read it.  Only nginx's parser writes it, through
 * the directives of ngx_http_idempotency_module.c.
 */


#ifndef _NGX_HTTP_IDEM_CONF_H_INCLUDED_
#define _NGX_HTTP_IDEM_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_idem.h"
#include "canonical/ngx_http_idem_digest.h"
#include "canonical/ngx_http_idem_form.h"
#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_key.h"
#include "observe/ngx_http_idem_log.h"
#include "store/ngx_http_idem_store.h"


#define NGX_HTTP_IDEM_TTL        (24 * 60 * 60 * 1000)
#define NGX_HTTP_IDEM_LEASE      (30 * 1000)
#define NGX_HTTP_IDEM_LEASE_MIN  100
#define NGX_HTTP_IDEM_WAIT_TIME  (10 * 1000)

/* 422 of RFC 9110, for which nginx has no constant */
#define NGX_HTTP_IDEM_UNPROCESSABLE  422


typedef enum {
    NGX_HTTP_IDEM_UNIT_NONE = 0,
    NGX_HTTP_IDEM_UNIT_TIME,
    NGX_HTTP_IDEM_UNIT_SIZE
} ngx_http_idem_unit_e;


/* valid values of a directive: names, and numbers, times or sizes */

typedef struct {
    char                            *valid;      /* for error messages      */
    ngx_http_idem_unit_e             unit;
    ngx_int_t                        min;        /* of a time: in the
                                                    configuration only      */
    ngx_int_t                        max;        /* 0: no numbers           */
    ngx_conf_enum_t                  names[5];   /* and an empty one        */
} ngx_http_idem_choices_t;


/* a value of a directive, which may differ by request */

typedef struct {
    ngx_http_complex_value_t        *complex;    /* NULL: a constant        */
    ngx_uint_t                       value;      /* or the default          */
    ngx_http_idem_choices_t         *choices;
} ngx_http_idem_choice_t;


/*
 * Kinds of values.  Most values are one variable, which can be read without a
 * script.
 */

typedef enum {
    NGX_HTTP_IDEM_VALUE_SCRIPT = 0,
    NGX_HTTP_IDEM_VALUE_HEADER,              /* $http_<name>                */
    NGX_HTTP_IDEM_VALUE_HOST,                /* $host                       */
    NGX_HTTP_IDEM_VALUE_CERTIFICATE          /* $ssl_client_fingerprint     */
} ngx_http_idem_value_e;


/* a string that may differ by request */

typedef struct {
    ngx_str_t                    text;
    ngx_http_idem_value_e        kind;
    ngx_str_t                    header;     /* name of an $http_ header,
                                                '_' for '-'                 */
    ngx_http_complex_value_t     script;
} ngx_http_idem_value_t;


/* a source of the key */

typedef struct {
    ngx_http_idem_value_t     value;
    ngx_str_t                 member;     /* of "json:", or empty           */
    ngx_array_t              *headers;    /* ..._value_t of the headers that
                                             the value is joined from; or
                                             NULL                           */
} ngx_http_idem_key_source_t;


/* a rule of idempotency_dedupe */

typedef struct {
    ngx_array_t              *members;           /* ngx_str_t; NULL: the
                                                    whole request           */
    ngx_str_t                 name;              /* "body", or "json:" and
                                                    the members             */
    ngx_http_idem_choice_t    window;
    ngx_http_idem_choice_t    linger;            /* after the response      */
    ngx_array_t              *strip;             /* ngx_str_t: URL
                                                    arguments to ignore     */
    ngx_http_idem_choice_t    always;            /* for requests with a
                                                    key, too                */
    ngx_http_idem_choice_t    reject;            /* instead of a replay     */
    unsigned                  url:1;             /* the members are URLs    */
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
    ngx_array_t                  *excluded;          /* ngx_str_t: member
                                                        names or pointers   */
    ngx_array_t                  *included;          /* ngx_str_t: pointers */
    unsigned                      unordered:1;
} ngx_http_idem_canonical_t;


/* idempotency_keep_json */

typedef struct {
    ngx_str_t                        value;      /* of keep_options.wanted  */
    unsigned                         negated:1;
} ngx_http_idem_keep_t;


/* idempotency_replay_json */

typedef struct {
    ngx_str_t                        member;
    ngx_str_t                        from;       /* a "json:" member of the
                                                    request body, or empty  */
    ngx_http_complex_value_t         value;
} ngx_http_idem_replay_member_t;


typedef enum {
    NGX_HTTP_IDEM_UNKNOWN_RETRY = 0,
    NGX_HTTP_IDEM_UNKNOWN_LEASE,
    NGX_HTTP_IDEM_UNKNOWN_HOLD
} ngx_http_idem_unknown_e;


typedef enum {
    NGX_HTTP_IDEM_STREAM_TEE = 0,
    NGX_HTTP_IDEM_STREAM_PASS
} ngx_http_idem_stream_e;


#define NGX_HTTP_IDEM_ON_ERROR_FAIL  0
#define NGX_HTTP_IDEM_ON_ERROR_PASS  1


/* idempotency_log_field */

typedef struct {
    ngx_http_idem_value_t            value;
    ngx_str_t                        name;       /* NUL-terminated          */
} ngx_http_idem_log_field_t;


/* a set of statuses 0..999, one bit each */

typedef struct {
    uint32_t                         bits[32];
} ngx_http_idem_statuses_t;


/* idempotency_activity <zone>:<size> window=<time> */

typedef struct {
    ngx_str_t                        zone;
    size_t                           size;       /* 0: no zone is declared  */
    ngx_msec_t                       window;
    ngx_shm_zone_t                  *shm_zone;
} ngx_http_idem_activity_conf_t;


/* where it is on: ..._conf_servers.c */

typedef struct {
    ngx_http_core_srv_conf_t        *cscf;
    uint32_t                         names;      /* a hash each             */
    uint32_t                         addrs;
    ngx_uint_t                       reach;
} ngx_http_idem_server_t;


typedef struct {
    ngx_array_t                      stores;     /* ..._store_t *           */
    ngx_array_t                      fallbacks;  /* pairs of stores         */
    ngx_array_t                      locations;  /* ..._loc_conf_t *:
                                                    locations where the
                                                    module is enabled       */
    ngx_array_t                      pages;      /* ngx_str_t: see
                                                    ..._conf_pages.c        */
    ngx_array_t                      servers;    /* ..._server_t            */
    ngx_queue_t                      logs;       /* ..._log_t               */
    ngx_shm_zone_t                  *tap;        /* zone of events, or NULL */
    ngx_http_idem_activity_conf_t    activity;
    ngx_int_t                        request_body; /* variable index        */
    ngx_int_t                        request_id; /* variable index          */
    ngx_uint_t                       stats;      /* statistics are served   */
    unsigned                         any_page:1;
    unsigned                         uri_page:1;
    unsigned                         places:1;   /* are stored with all
                                                    responses               */
} ngx_http_idem_main_conf_t;


typedef struct {
    ngx_http_idem_store_t        *store;                 /* NULL: off       */
    ngx_http_core_loc_conf_t     *clcf;                  /* where enabled   */
    /* id of the location, see ..._conf_servers.c; 0: a server */
    uint64_t                      place;
    unsigned                      own:1;                 /* set here, not
                                                            inherited       */
    unsigned                      checks:1;              /* an "if" with
                                                            checks          */
    ngx_uint_t                    ifs;                   /* how many        */
    /* set to off here or in an outer location */
    unsigned                      off:1;
    ngx_http_handler_pt           page;                  /* figures, admin  */

    ngx_array_t                  *keys;                  /* ..._key_source_t */
    ngx_http_idem_key_format_t   *key_format;
    ngx_http_idem_choice_t        key_kind;              /* by a variable   */
    ngx_http_idem_value_t        *required;              /* NULL: off       */
    ngx_array_t                  *methods;               /* ngx_str_t       */
    ngx_array_t                  *bypass;                /* ..._value_t     */
    /*
     * the key and bypass depend on the request header only, and are known in
     * the access phase
     */
    unsigned                      early:1;

    ngx_http_idem_value_t        *scope;
    ngx_array_t                  *identity;              /* ..._value_t     */
    u_char                        nobody[
                                           NGX_HTTP_IDEM_HASH_LEN];
                                                         /* hash of an
                                                            empty identity  */
    unsigned                      nobody_known:1;
    ngx_http_idem_canonical_t    *fingerprint;
    uint32_t                      scheme;
    ngx_array_t                  *dedupe;                /* ..._dedupe_t    */
    ngx_flag_t                    activity;
    u_char                       *activity_file;         /* where it says   */
    ngx_uint_t                    activity_line;         /* "on"            */
    ngx_http_idem_choice_t        conflict_detail;
    /* ngx_str_t: names or pointers */
    ngx_array_t                  *redacted;
    ngx_http_idem_json_options_t  json;
    ngx_http_idem_form_options_t  form;

    ngx_http_idem_choice_t        ttl;
    ngx_str_t                     ttl_header;            /* '_' for '-'     */
    ngx_http_idem_choice_t        ttl_header_max;        /* 0: no header    */
    ngx_http_idem_choice_t        expired_grace;
    ngx_http_idem_choice_t        lease;
    ngx_http_idem_choice_t        wait;
    ngx_http_idem_choice_t        max_waiters;
    ngx_http_idem_choice_t        retry_after;
    ngx_http_idem_choice_t        max_response;

    ngx_http_idem_statuses_t     *keep_status;
    ngx_http_complex_value_t     *keep_values;           /* NULL: constant  */
    ngx_array_t                  *keep_json;             /* ..._keep_t      */
    ngx_http_idem_json_options_t  keep_options;          /* to find the
                                                            pointers        */
    ngx_http_idem_choice_t        on_store_error;
    ngx_http_idem_choice_t        unknown_outcome;
    ngx_http_idem_choice_t        stream;
    /* ngx_str_t: streams besides SSE */
    ngx_array_t                  *stream_types;
    ngx_http_idem_choice_t        conflict_status;
    ngx_http_idem_choice_t        replay_status;         /* 0: original     */
    ngx_array_t                  *replay_json;           /* ..._member_t    */
    /* a member is read from the request body */
    unsigned                      replay_body:1;
    ngx_array_t                  *hide_headers;          /* ngx_str_t       */
    ngx_array_t                  *keep_headers;          /* ngx_str_t; NULL:
                                                            all             */
    ngx_http_idem_choice_t        compress;
    ngx_http_idem_choice_t        compress_min;
    ngx_http_idem_choice_t        headers;
    ngx_http_idem_choice_t        error_body;
    ngx_http_idem_value_t        *dry_run;               /* NULL: off       */
    ngx_http_idem_value_t        *documentation;
    ngx_http_idem_log_t          *log;
    ngx_http_idem_value_t        *tenant;                /* NULL: none      */
    ngx_http_idem_value_t        *actor;
    ngx_flag_t                    actor_plain;           /* stored unhashed */
    ngx_array_t                  *log_fields;            /* ..._log_field_t */
    ngx_str_t                     group_name;
    ngx_http_idem_value_t        *group_value;           /* NULL: a constant */
    /*
     * number of group_name in the metrics; the default if group_value is
     * empty
     */
    ngx_uint_t                    group;
    unsigned                      group_named:1;         /* by a directive  */
    unsigned                      labels:1;              /* records have
                                                            labels          */
    ngx_uint_t                    stats;                 /* format of
                                                            statistics      */
    ngx_uint_t                    admin;                 /* 0: not an admin
                                                            location        */
    /* copy of r->loc_conf without post_action, filled on first use */
    void                        **no_post_action;
} ngx_http_idem_loc_conf_t;


/* ..._conf.c, ..._conf_body.c, ..._conf_key.c, ..._conf_log.c,
   ..._conf_params.c, ..._conf_store.c, ..._directives.c */

void *ngx_http_idem_create_main_conf(ngx_conf_t *cf);
ngx_http_idem_store_t *ngx_http_idem_find_store(
    ngx_http_idem_main_conf_t *mcf, ngx_str_t *name);
void *ngx_http_idem_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_idem_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);
char *ngx_http_idem_check_activity(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);
ngx_int_t ngx_http_idem_body_options(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);

uint32_t ngx_http_idem_scheme(ngx_http_idem_loc_conf_t *conf);

char *ngx_http_idem_init_stores(ngx_conf_t *cf, void *conf);
ngx_http_idem_store_t *ngx_http_idem_conf_get_store(ngx_conf_t *cf,
    ngx_str_t *name);
char *ngx_http_idem_conf_member(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *name);
ngx_uint_t ngx_http_idem_conf_variable(ngx_str_t *rest, ngx_str_t *name);
ngx_uint_t ngx_http_idem_conf_option(ngx_str_t *value, const char *name,
    ngx_str_t *text);
void ngx_http_idem_conf_warn_useless(ngx_conf_t *cf);
char *ngx_http_idem_conf_warn_statuses(ngx_conf_t *cf,
    ngx_http_idem_statuses_t *kept);
ngx_uint_t ngx_http_idem_conf_is_off(ngx_conf_t *cf);
char *ngx_http_idem_conf_list_off(ngx_conf_t *cf, ngx_array_t **list,
    const char *usage);
char *ngx_http_idem_conf_once(ngx_conf_t *cf, ngx_uint_t first);
ngx_uint_t ngx_http_idem_conf_next(ngx_str_t *list, ngx_str_t *name);
void *ngx_http_idem_conf_add(ngx_conf_t *cf, ngx_array_t **array,
    size_t size);
char *ngx_http_idem_conf_part(ngx_conf_t *cf, ngx_array_t **names,
    ngx_str_t *name);
char *ngx_http_idem_conf_parts(ngx_conf_t *cf, ngx_array_t **names,
    ngx_str_t *value, ngx_str_t *list);
char *ngx_http_idem_conf_pointer(ngx_conf_t *cf, ngx_str_t *value,
    ngx_str_t *pointer);
ngx_int_t ngx_http_idem_conf_choose(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_idem_choices_t *choices, ngx_http_idem_choice_t *c);
ngx_uint_t ngx_http_idem_has_labels(ngx_http_idem_loc_conf_t *conf);
char *ngx_http_idem_conf_complex(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t *cv);
ngx_http_idem_statuses_t *ngx_http_idem_statuses(ngx_pool_t *pool,
    ngx_str_t *word, ngx_uint_t n, ngx_str_t **bad);

/* handlers of directives: they have nginx's signature */

typedef char *ngx_http_idem_setter_t(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

ngx_http_idem_setter_t
    ngx_http_idem_conf_store, ngx_http_idem_conf_switch,
    ngx_http_idem_conf_key, ngx_http_idem_conf_key_format,
    ngx_http_idem_conf_bypass_values, ngx_http_idem_conf_method_names,
    ngx_http_idem_conf_group, ngx_http_idem_conf_names,
    ngx_http_idem_conf_header_names,
    ngx_http_idem_conf_values, ngx_http_idem_conf_value,
    ngx_http_idem_conf_choice, ngx_http_idem_conf_fingerprint,
    ngx_http_idem_conf_dedupe, ngx_http_idem_conf_on_off,
    ngx_http_idem_conf_actor, ngx_http_idem_conf_log_field,
    ngx_http_idem_conf_detail, ngx_http_idem_conf_keep_json,
    ngx_http_idem_conf_activity, ngx_http_idem_conf_replay_json,
    ngx_http_idem_conf_compress, ngx_http_idem_conf_ttl_header,
    ngx_http_idem_conf_keep_status, ngx_http_idem_conf_stream,
    ngx_http_idem_conf_log;

/* ..._order.c, ..._content.c, ..._pages.c */

void ngx_http_idem_conf_order(ngx_conf_t *cf);
ngx_module_t *ngx_http_idem_find_module(ngx_cycle_t *cycle, const char *name);
ngx_int_t ngx_http_idem_conf_check_build(ngx_conf_t *cf);
void ngx_http_idem_conf_content(ngx_cycle_t *cycle, ngx_array_t *locations);
ngx_command_t *ngx_http_idem_find_command(ngx_cycle_t *cycle,
    const char *name, ngx_module_t **module);
ngx_int_t ngx_http_idem_conf_pages(ngx_conf_t *cf);

/* ..._conf_if.c */

void ngx_http_idem_conf_if_watch(ngx_conf_t *cf);
void ngx_http_idem_conf_if_read(void);
void ngx_http_idem_conf_if_place(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *prev, ngx_http_idem_loc_conf_t *conf);

/* ..._conf_servers.c */

uint64_t ngx_http_idem_conf_place(ngx_http_core_loc_conf_t *clcf,
    uint64_t outer);
ngx_int_t ngx_http_idem_conf_server(ngx_conf_t *cf);
void ngx_http_idem_conf_servers(ngx_conf_t *cf);
ngx_uint_t ngx_http_idem_places_stored(ngx_http_request_t *r);
ngx_int_t ngx_http_idem_server_id(ngx_http_request_t *r, uint64_t *id);
ngx_http_idem_server_t *ngx_http_idem_other_server(ngx_http_request_t *r,
    uint64_t id);
ngx_uint_t ngx_http_idem_reaches(ngx_http_request_t *r,
    ngx_http_idem_server_t *server);
ngx_uint_t ngx_http_idem_may_be_page(ngx_http_request_t *r);

/* ..._value.c */

char *ngx_http_idem_conf_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idem_value_t *value);
ngx_http_idem_value_t *ngx_http_idem_conf_compiled(ngx_conf_t *cf,
    ngx_str_t *text);
char *ngx_http_idem_conf_compile_all(ngx_conf_t *cf, ngx_str_t *text,
    ngx_uint_t n, ngx_array_t **values);
ngx_int_t ngx_http_idem_values_init(ngx_conf_t *cf);
ngx_int_t ngx_http_idem_value(ngx_http_request_t *r,
    ngx_http_idem_value_t *value, ngx_str_t *s);
ngx_int_t ngx_http_idem_value_early(ngx_http_request_t *r,
    ngx_http_idem_value_t *value, ngx_str_t *s);
void ngx_http_idem_value_body_read(ngx_http_request_t *r);
ngx_uint_t ngx_http_idem_value_too_early(ngx_http_request_t *r);
ngx_table_elt_t *ngx_http_idem_request_header(ngx_http_request_t *r,
    ngx_str_t *name, ngx_uint_t *n);
ngx_uint_t ngx_http_idem_choice_eval(ngx_http_request_t *r,
    ngx_http_idem_choice_t *c, const char *directive, ngx_uint_t failed);
ngx_int_t ngx_http_idem_choice_parse(ngx_http_idem_choices_t *choices,
    ngx_str_t *value);
ngx_int_t ngx_http_idem_conf_enum(ngx_conf_enum_t *e, ngx_str_t *value);
ngx_int_t ngx_http_idem_switch(ngx_http_request_t *r,
    ngx_http_idem_value_t *value);

extern ngx_http_idem_choices_t  ngx_http_idem_times;
extern ngx_http_idem_choices_t  ngx_http_idem_positive_times;
extern ngx_http_idem_choices_t  ngx_http_idem_sizes;


/* most values are constants */

#define ngx_http_idem_choice(r, c, directive, failed)                         \
    ((c)->complex ? ngx_http_idem_choice_eval(r, c, directive, failed)        \
                  : (c)->value)

/* a time, a size or a flag: its default if it can't be evaluated */

#define ngx_http_idem_time(r, t, directive)                                   \
    ngx_http_idem_choice(r, t, directive, (t)->value)

#define ngx_http_idem_size  ngx_http_idem_time
#define ngx_http_idem_flag  ngx_http_idem_time

/* a directive that was not given on this level */

#define ngx_http_idem_is_unset(c)  ((c)->choices == NULL)

#define ngx_http_idem_conf_is(value, text)                                    \
    ((value)->len == sizeof(text) - 1                                         \
     && ngx_strncmp((value)->data, text, sizeof(text) - 1) == 0)

ngx_http_idem_statuses_t *ngx_http_idem_kept_statuses(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);

#define ngx_http_idem_status_kept(s, code)                                    \
    ((code) < 1000 && ((s)->bits[(code) / 32] >> ((code) % 32)) & 1)


#endif /* _NGX_HTTP_IDEM_CONF_H_INCLUDED_ */
