
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Configuration: defaults and inheritance.
 *
 * Called by nginx while it reads the configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


#define NGX_HTTP_IDEM_MAX_WAITERS   10
#define NGX_HTTP_IDEM_RETRY_AFTER   5000
#define NGX_HTTP_IDEM_MAX_RESPONSE  (1024 * 1024)


static char *ngx_http_idem_merge_location(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf, ngx_http_idem_loc_conf_t *prev);
static void ngx_http_idem_merge_request(ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev);
static void ngx_http_idem_merge_response(ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev);
static char *ngx_http_idem_init_loc_conf(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);
static char *ngx_http_idem_default_values(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);
static ngx_int_t ngx_http_idem_merge_group(ngx_conf_t *cf,
    ngx_http_idem_loc_conf_t *conf);
static ngx_uint_t ngx_http_idem_early(ngx_http_idem_loc_conf_t *conf);
static ngx_uint_t ngx_http_idem_request_only(ngx_str_t *value);
static void ngx_http_idem_merge_choice(ngx_http_idem_choice_t *conf,
    ngx_http_idem_choice_t *prev, ngx_uint_t value);


static ngx_http_idem_key_format_t  ngx_http_idem_key_default = {
    NGX_HTTP_IDEM_KEY_TOKEN,
    NGX_HTTP_IDEM_KEY_MIN,
    NGX_HTTP_IDEM_KEY_MAX,
    0
};


static ngx_http_idem_canonical_t
    ngx_http_idem_canonical_default =
{
    NGX_HTTP_IDEM_FINGERPRINT_RAW, NULL, NULL, 0
};


static ngx_str_t  ngx_http_idem_methods[] = {
    ngx_string("POST"), ngx_string("PUT"), ngx_string("PATCH"),
    ngx_string("DELETE")
};

static ngx_array_t  ngx_http_idem_methods_default = {
    ngx_http_idem_methods, 4, sizeof(ngx_str_t), 4, NULL
};


void *
ngx_http_idem_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_main_conf_t));
    if (mcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&mcf->stores, cf->pool, 2,
                       sizeof(ngx_http_idem_store_t *))
        != NGX_OK
        || ngx_array_init(&mcf->fallbacks, cf->pool, 1, sizeof(void *))
           != NGX_OK
        || ngx_array_init(&mcf->locations, cf->pool, 8,
                          sizeof(ngx_http_idem_loc_conf_t *))
           != NGX_OK
        || ngx_array_init(&mcf->servers, cf->pool, 1,
                          sizeof(ngx_http_idem_server_t))
           != NGX_OK
        || ngx_array_init(&mcf->pages, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK)
    {
        return NULL;
    }

    ngx_queue_init(&mcf->logs);

    return mcf;
}


void *
ngx_http_idem_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->store = NGX_CONF_UNSET_PTR;
    conf->keys = NGX_CONF_UNSET_PTR;
    conf->key_format = NGX_CONF_UNSET_PTR;
    conf->required = NGX_CONF_UNSET_PTR;
    conf->methods = NGX_CONF_UNSET_PTR;
    conf->bypass = NGX_CONF_UNSET_PTR;
    conf->scope = NGX_CONF_UNSET_PTR;
    conf->identity = NGX_CONF_UNSET_PTR;
    conf->fingerprint = NGX_CONF_UNSET_PTR;
    conf->dedupe = NGX_CONF_UNSET_PTR;
    conf->activity = NGX_CONF_UNSET;
    conf->replay_json = NGX_CONF_UNSET_PTR;
    conf->keep_status = NGX_CONF_UNSET_PTR;
    conf->keep_json = NGX_CONF_UNSET_PTR;
    conf->hide_headers = NGX_CONF_UNSET_PTR;
    conf->keep_headers = NGX_CONF_UNSET_PTR;
    conf->dry_run = NGX_CONF_UNSET_PTR;
    conf->log = NGX_CONF_UNSET_PTR;
    conf->tenant = NGX_CONF_UNSET_PTR;
    conf->actor = NGX_CONF_UNSET_PTR;
    conf->log_fields = NGX_CONF_UNSET_PTR;
    conf->redacted = NGX_CONF_UNSET_PTR;
    conf->documentation = NGX_CONF_UNSET_PTR;

    return conf;
}


char *
ngx_http_idem_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_idem_loc_conf_t  *prev = parent;
    ngx_http_idem_loc_conf_t  *conf = child;

    if (ngx_http_idem_merge_location(cf, conf, prev) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_http_idem_merge_request(conf, prev);
    ngx_http_idem_merge_response(conf, prev);

    return conf->store ? ngx_http_idem_init_loc_conf(cf, conf) : NGX_CONF_OK;
}


/* whether the module is on, and what the location is beside that */

static char *
ngx_http_idem_merge_location(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev)
{
    ngx_http_core_loc_conf_t  *clcf;

    /* "if" and "limit_except" blocks count as the location around them */

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->noname && conf->store == NGX_CONF_UNSET_PTR) {
        conf->own = prev->own;
    }

    if (clcf->noname && conf->page == NULL) {
        conf->page = prev->page;
        conf->admin = prev->admin;
        conf->stats = prev->stats;

        if (clcf->lmt_excpt && clcf->handler == NULL) {
            clcf->handler = conf->page;
        }
    }

    conf->clcf = clcf;
    conf->place = ngx_http_idem_conf_place(clcf, prev->place);

    ngx_http_idem_conf_if_place(cf, prev, conf);

    if (clcf->post_action.data) {
        conf->no_post_action = ngx_pcalloc(cf->pool,
                                     sizeof(void *) * ngx_http_max_module
                                     + sizeof(ngx_http_core_loc_conf_t));
        if (conf->no_post_action == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (conf->store == NGX_CONF_UNSET_PTR && conf->page) {

        /* a deletion needs no key, and its answer is not to be stored */

        conf->store = NULL;
        conf->off = 1;
    }

    if (conf->store == NGX_CONF_UNSET_PTR) {
        conf->off = prev->off;
    }

    ngx_conf_merge_ptr_value(conf->store, prev->store, NULL);

    return NGX_CONF_OK;
}


/* which requests are covered, what tells them apart, the life of a record */

static void
ngx_http_idem_merge_request(ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev)
{
    ngx_conf_merge_ptr_value(conf->keys, prev->keys, NULL);

    if (conf->key_format == NGX_CONF_UNSET_PTR) {
        conf->key_kind = prev->key_kind;
    }

    ngx_conf_merge_ptr_value(conf->key_format, prev->key_format,
                             &ngx_http_idem_key_default);
    ngx_conf_merge_ptr_value(conf->required, prev->required, NULL);
    ngx_conf_merge_ptr_value(conf->methods, prev->methods,
                             &ngx_http_idem_methods_default);
    ngx_conf_merge_ptr_value(conf->bypass, prev->bypass, NULL);
    ngx_conf_merge_ptr_value(conf->dry_run, prev->dry_run, NULL);
    ngx_conf_merge_ptr_value(conf->scope, prev->scope, NULL);
    ngx_conf_merge_ptr_value(conf->identity, prev->identity, NULL);
    ngx_conf_merge_ptr_value(conf->fingerprint, prev->fingerprint,
                             &ngx_http_idem_canonical_default);
    ngx_conf_merge_ptr_value(conf->dedupe, prev->dedupe, NULL);

    if (conf->activity == NGX_CONF_UNSET) {
        conf->activity_file = prev->activity_file;
        conf->activity_line = prev->activity_line;
    }

    ngx_conf_merge_value(conf->activity, prev->activity, 0);

    ngx_http_idem_merge_choice(&conf->ttl, &prev->ttl, NGX_HTTP_IDEM_TTL);

    if (ngx_http_idem_is_unset(&conf->ttl_header_max)) {
        conf->ttl_header = prev->ttl_header;
    }

    ngx_http_idem_merge_choice(&conf->ttl_header_max, &prev->ttl_header_max,
                               0);
    ngx_http_idem_merge_choice(&conf->expired_grace, &prev->expired_grace, 0);
    ngx_http_idem_merge_choice(&conf->lease, &prev->lease,
                               NGX_HTTP_IDEM_LEASE);
    ngx_http_idem_merge_choice(&conf->wait, &prev->wait,
                               NGX_HTTP_IDEM_WAIT_TIME);
    ngx_http_idem_merge_choice(&conf->max_waiters, &prev->max_waiters,
                               NGX_HTTP_IDEM_MAX_WAITERS);
    ngx_http_idem_merge_choice(&conf->retry_after, &prev->retry_after,
                               NGX_HTTP_IDEM_RETRY_AFTER);
    ngx_http_idem_merge_choice(&conf->on_store_error, &prev->on_store_error,
                               NGX_HTTP_IDEM_ON_ERROR_FAIL);
    ngx_http_idem_merge_choice(&conf->unknown_outcome, &prev->unknown_outcome,
                               NGX_HTTP_IDEM_UNKNOWN_LEASE);
}


/* what is kept of a response and how it is replayed, refusals, and events */

static void
ngx_http_idem_merge_response(ngx_http_idem_loc_conf_t *conf,
    ngx_http_idem_loc_conf_t *prev)
{
    ngx_http_idem_merge_choice(&conf->max_response, &prev->max_response,
                               NGX_HTTP_IDEM_MAX_RESPONSE);

    if (ngx_http_idem_is_unset(&conf->compress)) {
        conf->compress_min = prev->compress_min;
    }

    ngx_http_idem_merge_choice(&conf->compress, &prev->compress, 0);

    if (conf->keep_status == NGX_CONF_UNSET_PTR) {
        conf->keep_values = prev->keep_values;
    }

    ngx_conf_merge_ptr_value(conf->keep_status, prev->keep_status, NULL);

    if (conf->keep_json == NGX_CONF_UNSET_PTR) {
        conf->keep_options = prev->keep_options;
    }

    ngx_conf_merge_ptr_value(conf->keep_json, prev->keep_json, NULL);

    if (ngx_http_idem_is_unset(&conf->stream)) {
        conf->stream_types = prev->stream_types;
    }

    ngx_http_idem_merge_choice(&conf->stream, &prev->stream,
                               NGX_HTTP_IDEM_STREAM_TEE);
    ngx_conf_merge_ptr_value(conf->hide_headers, prev->hide_headers, NULL);
    ngx_conf_merge_ptr_value(conf->keep_headers, prev->keep_headers, NULL);
    ngx_conf_merge_ptr_value(conf->replay_json, prev->replay_json, NULL);
    ngx_http_idem_merge_choice(&conf->replay_status, &prev->replay_status, 0);
    ngx_http_idem_merge_choice(&conf->conflict_status, &prev->conflict_status,
                               NGX_HTTP_CONFLICT);
    ngx_http_idem_merge_choice(&conf->conflict_detail, &prev->conflict_detail,
                               NGX_HTTP_IDEM_JSON_DETAIL_OFF);
    ngx_http_idem_merge_choice(&conf->headers, &prev->headers, 1);
    ngx_http_idem_merge_choice(&conf->error_body, &prev->error_body, 1);
    ngx_conf_merge_ptr_value(conf->documentation, prev->documentation, NULL);

    ngx_conf_merge_ptr_value(conf->log, prev->log, NULL);
    ngx_conf_merge_ptr_value(conf->tenant, prev->tenant, NULL);

    if (conf->actor == NGX_CONF_UNSET_PTR) {
        conf->actor_plain = prev->actor_plain;
    }

    ngx_conf_merge_ptr_value(conf->actor, prev->actor, NULL);
    ngx_conf_merge_ptr_value(conf->log_fields, prev->log_fields, NULL);
    ngx_conf_merge_ptr_value(conf->redacted, prev->redacted, NULL);

    if (conf->group_name.len == 0 && conf->group_value == NULL) {
        conf->group_name = prev->group_name;
        conf->group_value = prev->group_value;
        conf->group_named = prev->group_named;
    }
}


/* completes and checks a location that has a store */

static char *
ngx_http_idem_init_loc_conf(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    if (ngx_http_idem_check_activity(cf, conf) != NGX_CONF_OK
        || ngx_http_idem_conf_pages(cf) != NGX_OK
        || ngx_http_idem_conf_server(cf) != NGX_OK
        || ngx_http_idem_default_values(cf, conf) != NGX_CONF_OK
        || ngx_http_idem_body_options(cf, conf) != NGX_OK
        || ngx_http_idem_merge_group(cf, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    /* events of a store go to the log of the first location that uses it */

    if (conf->store->log == NULL) {
        conf->store->log = conf->log;
    }

    conf->early = ngx_http_idem_early(conf);
    conf->scheme = ngx_http_idem_scheme(conf);

    return NGX_CONF_OK;
}


/*
 * The group of a location: the configured name, or the server's name.  Its
 * number is assigned after the configuration was read, when the metrics zone
 * exists.
 */

static ngx_int_t
ngx_http_idem_merge_group(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_core_srv_conf_t    *cscf;
    ngx_http_idem_loc_conf_t   **p;
    ngx_http_idem_main_conf_t   *mcf;

    if (conf->group_name.len == 0) {
        cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);
        conf->group_name = cscf->server_name;
    }

    if (conf->group_name.len == 0) {
        ngx_str_set(&conf->group_name, "_");
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    p = ngx_array_push(&mcf->locations);
    if (p == NULL) {
        return NGX_ERROR;
    }

    *p = conf;

    return NGX_OK;
}


static void
ngx_http_idem_merge_choice(ngx_http_idem_choice_t *conf,
    ngx_http_idem_choice_t *prev, ngx_uint_t value)
{
    if (ngx_http_idem_is_unset(conf)) {
        *conf = *prev;
    }

    /* also the default if a variable is empty or invalid */

    if (ngx_http_idem_is_unset(conf) || conf->value == NGX_CONF_UNSET_UINT) {
        conf->value = value;
    }
}


static char *
ngx_http_idem_default_values(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *conf)
{
    ngx_str_t                   *bad;
    ngx_http_idem_key_source_t  *source;

    static ngx_str_t  key = ngx_string("$http_idempotency_key");
    static ngx_str_t  scope = ngx_string("$host");

    static ngx_str_t  identity[] = {
        ngx_string("$http_authorization"), ngx_string("$http_x_api_key"),
#if (NGX_HTTP_SSL)
        ngx_string("$ssl_client_fingerprint"),
#endif
    };

    if (conf->keys == NULL) {
        source = ngx_http_idem_conf_add(cf, &conf->keys,
                                        sizeof(ngx_http_idem_key_source_t));

        if (source == NULL
            || ngx_http_idem_conf_compile(cf, &key, &source->value)
               != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    if (conf->scope == NULL) {
        conf->scope = ngx_http_idem_conf_compiled(cf, &scope);
    }

    if (conf->keep_status == NULL) {
        conf->keep_status = ngx_http_idem_statuses(cf->pool, NULL, 0, &bad);
    }

    if (conf->scope == NULL || conf->keep_status == NULL) {
        return NGX_CONF_ERROR;
    }

    return conf->identity
           ? NGX_CONF_OK
           : ngx_http_idem_conf_compile_all(cf, identity,
                                     sizeof(identity) / sizeof(identity[0]),
                                     &conf->identity);
}


/*
 * Whether the key, its format and the bypass can be evaluated in the access
 * phase: their variables depend on the request header only, not on other
 * modules.
 */

static ngx_uint_t
ngx_http_idem_early(ngx_http_idem_loc_conf_t *conf)
{
    ngx_uint_t                   i;
    ngx_http_idem_value_t       *bypass;
    ngx_http_idem_key_source_t  *source;

    source = conf->keys->elts;

    for (i = 0; i < conf->keys->nelts; i++) {
        if (source[i].member.len
            || !ngx_http_idem_request_only(&source[i].value.text))
        {
            return 0;
        }
    }

    if (conf->key_kind.complex
        && !ngx_http_idem_request_only(&conf->key_kind.complex->value))
    {
        return 0;
    }

    for (i = 0; conf->bypass && i < conf->bypass->nelts; i++) {
        bypass = conf->bypass->elts;

        if (!ngx_http_idem_request_only(&bypass[i].text)) {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t
ngx_http_idem_request_only(ngx_str_t *value)
{
    ngx_str_t  *prefix, rest, name;

    static ngx_str_t  prefixes[] = {
        ngx_string("http_"), ngx_string("arg_"), ngx_string("cookie_"),
        ngx_string("request_method"), ngx_null_string
    };

    rest = *value;

    while (ngx_http_idem_conf_variable(&rest, &name)) {

        for (prefix = prefixes; prefix->len; prefix++) {
            if (name.len >= prefix->len
                && ngx_strncmp(name.data, prefix->data, prefix->len) == 0)
            {
                break;
            }
        }

        if (prefix->len == 0) {
            return 0;
        }
    }

    return 1;
}
