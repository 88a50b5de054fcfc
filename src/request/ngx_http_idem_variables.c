
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Variables that describe what happened to a request, for log_format,
 * add_header, proxy_set_header and map.
 *
 * $idempotency_key is the only one with data sent by the client; logging it
 * is the operator's choice.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "request/ngx_http_idem_variables.h"


static ngx_http_variable_t *ngx_http_idem_variable_find(ngx_str_t *name);
static ngx_int_t ngx_http_idem_variable_named(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_variable_job(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_variable_hash(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_str_t *text);
static ngx_int_t ngx_http_idem_variable_hex(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, u_char *bytes, size_t len);
static ngx_int_t ngx_http_idem_variable_seconds(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_msec_t msec);
static ngx_int_t ngx_http_idem_variable_time(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_http_idem_ctx_t *ctx);


static ngx_http_variable_t  ngx_http_idem_vars[] = {

    { ngx_string("idempotency_status"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_STATUS,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_key"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_KEY,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_key_hash"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_KEY_HASH,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_record"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_RECORD,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_fingerprint"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_FINGERPRINT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_replayed"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_REPLAYED,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_conflict"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_CONFLICT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_original_time"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ORIGINAL_TIME,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_age"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_AGE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_wait_time"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_WAIT_TIME,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_store_time"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_STORE_TIME,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_error_code"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ERROR_CODE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_error_type"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ERROR_TYPE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_error_message"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ERROR_MESSAGE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_retryable"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_RETRYABLE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_retry_after"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_RETRY_AFTER,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_diff_json"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_DIFF_JSON,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_diff_text_json"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_DIFF_TEXT_JSON,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_key_json"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_KEY_JSON,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_original_time_ms"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ORIGINAL_TIME_MS,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_original_fingerprint"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ORIGINAL_FINGERPRINT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_layer"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_LAYER,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_replay_count"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_REPLAY_COUNT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_activity_count"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ACTIVITY_COUNT,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_activity_age"), NULL,
      ngx_http_idem_variable, NGX_HTTP_IDEM_VAR_ACTIVITY_AGE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_job_"), NULL,
      ngx_http_idem_variable_job, 0,
      NGX_HTTP_VAR_NOCACHEABLE|NGX_HTTP_VAR_PREFIX, 0 },

      ngx_http_null_variable
};


/*
 * nginx has all variables in one hash of limited size, and warns if they do
 * not fit well.  A prefix variable is not in the hash, so there is only one.
 */

static ngx_str_t  ngx_http_idem_prefix = ngx_string("idempotency_");


ngx_int_t
ngx_http_idem_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var;

    var = ngx_http_add_variable(cf, &ngx_http_idem_prefix,
                                NGX_HTTP_VAR_NOCACHEABLE
                                |NGX_HTTP_VAR_PREFIX);
    if (var == NULL) {
        return NGX_ERROR;
    }

    var->get_handler = ngx_http_idem_variable_named;

    return NGX_OK;
}


/*
 * nginx accepts any name for a prefix variable.  This check makes names that
 * are neither known here nor defined by the configuration an error, and
 * prevents that the configuration redefines the variables.
 */

ngx_int_t
ngx_http_idem_check_variables(ngx_conf_t *cf)
{
    ngx_uint_t                  i, n;
    ngx_hash_key_t             *key;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    key = cmcf->variables_keys->keys.elts;

    for (n = 0; n < cmcf->variables_keys->keys.nelts; n++) {

        if (ngx_http_idem_variable_find(&key[n].key)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "the duplicate \"%V\" variable", &key[n].key);
            return NGX_ERROR;
        }
    }

    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if (v[i].name.len < ngx_http_idem_prefix.len
            || ngx_strncmp(v[i].name.data, ngx_http_idem_prefix.data,
                           ngx_http_idem_prefix.len)
               != 0
            || ngx_http_idem_variable_find(&v[i].name))
        {
            continue;
        }

        for (n = 0; n < cmcf->variables_keys->keys.nelts; n++) {
            if (v[i].name.len == key[n].key.len
                && ngx_strncmp(v[i].name.data, key[n].key.data,
                               v[i].name.len)
                   == 0)
            {
                break;
            }
        }

        if (n == cmcf->variables_keys->keys.nelts) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "unknown \"%V\" variable", &v[i].name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_http_variable_t *
ngx_http_idem_variable_find(ngx_str_t *name)
{
    ngx_http_variable_t  *v;

    for (v = ngx_http_idem_vars; v->name.len; v++) {

        if (name->len < v->name.len
            || (name->len > v->name.len && !(v->flags & NGX_HTTP_VAR_PREFIX)))
        {
            continue;
        }

        if (ngx_strncmp(name->data, v->name.data, v->name.len) == 0) {
            return v;
        }
    }

    return NULL;
}


static ngx_int_t
ngx_http_idem_variable_named(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_http_variable_t  *var;

    var = ngx_http_idem_variable_find((ngx_str_t *) data);

    if (var == NULL) {
        /*
         * defined by "set" but not set yet, or looked up by name, as in Lua
         */
        v->not_found = 1;
        return NGX_OK;
    }

    if (var->flags & NGX_HTTP_VAR_PREFIX) {
        return var->get_handler(r, v, data);
    }

    return var->get_handler(r, v, var->data);
}


static ngx_int_t
ngx_http_idem_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t               value;
    ngx_http_idem_ctx_t    *ctx;
    ngx_http_idem_claim_t  *claim;

    ctx = ngx_http_idem_get_ctx(r->main);

    if (ctx == NULL
        || (ctx->stage == NGX_HTTP_IDEM_ADMIT && !ctx->admitted))
    {
        /* disabled here, or refused before admission */
        v->not_found = 1;
        return NGX_OK;
    }

    ngx_str_null(&value);

    switch (data) {

    case NGX_HTTP_IDEM_VAR_STATUS:
        value = ngx_http_idem_status_names[ctx->status];
        break;

    case NGX_HTTP_IDEM_VAR_KEY:
        value = ctx->sent_key;
        break;

    case NGX_HTTP_IDEM_VAR_KEY_HASH:

        if (ctx->key.len) {
            return ngx_http_idem_variable_hash(r, v, &ctx->key);
        }

        break;

    case NGX_HTTP_IDEM_VAR_RECORD:

        if (ctx->claims.primary) {
            return ngx_http_idem_variable_hex(r, v, ctx->claims.primary->id,
                                              NGX_HTTP_IDEM_ID_LEN);
        }

        break;

    case NGX_HTTP_IDEM_VAR_FINGERPRINT:

        if (ctx->claims.primary) {
            claim = &ctx->claims.primary->claim;

            return ngx_http_idem_variable_hex(r, v, claim->fingerprint,
                                              NGX_HTTP_IDEM_FINGERPRINT_LEN);
        }

        break;

    case NGX_HTTP_IDEM_VAR_REPLAYED:

        if (ctx->status == NGX_HTTP_IDEM_STATUS_REPLAYED) {
            ngx_str_set(&value, "true");
        }

        break;

    case NGX_HTTP_IDEM_VAR_CONFLICT:

        if (ctx->status == NGX_HTTP_IDEM_STATUS_CONFLICT
            && !ngx_http_idem_is_duplicate(ctx))
        {
            ngx_str_set(&value, "body-mismatch");
        }

        break;

    case NGX_HTTP_IDEM_VAR_WAIT_TIME:
        return ngx_http_idem_variable_seconds(r, v, ctx->wait.time);

    case NGX_HTTP_IDEM_VAR_STORE_TIME:
        return ngx_http_idem_variable_seconds(r, v, ctx->claims.store_time);

    case NGX_HTTP_IDEM_VAR_ORIGINAL_TIME:

        if (ctx->answer.original_time && !ctx->answer.foreign) {
            return ngx_http_idem_variable_time(r, v, ctx);
        }

        break;

    case NGX_HTTP_IDEM_VAR_AGE:

        if (ctx->answer.original_time && !ctx->answer.foreign) {
            claim = &ctx->claims.primary->claim;

            if (claim->time >= ctx->answer.original_time) {
                return ngx_http_idem_variable_seconds(r, v,
                      (ngx_msec_t) (claim->time - ctx->answer.original_time));
            }
        }

        break;

    default:

        if (ngx_http_idem_variable_answer(r, ctx, data, &value) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    v->data = value.data;
    v->len = value.len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/*
 * $idempotency_job_<type>: the same for all tries, different for each type.
 * It is the hash of "<key>:<type>", which sha256sum can reproduce.  Without a
 * key, the id of the derived record is used instead.
 */

static ngx_int_t
ngx_http_idem_variable_job(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char               *p;
    size_t                len;
    ngx_str_t            *name, text, key;
    u_char                id[2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_http_idem_ctx_t  *ctx;

    name = (ngx_str_t *) data;
    ctx = ngx_http_idem_get_ctx(r->main);

    if (ctx == NULL || (ctx->key.len == 0 && ctx->claims.primary == NULL)) {
        v->not_found = 1;
        return NGX_OK;
    }

    key = ctx->key;

    if (key.len == 0) {
        ngx_hex_dump(id, ctx->claims.primary->id, NGX_HTTP_IDEM_ID_LEN);

        key.data = id;
        key.len = sizeof(id);
    }

    len = sizeof("idempotency_job_") - 1;

    text.len = key.len + 1 + name->len - len;
    text.data = ngx_pnalloc(r->pool, text.len);
    if (text.data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(text.data, key.data, key.len);
    *p++ = ':';
    ngx_memcpy(p, name->data + len, name->len - len);

    return ngx_http_idem_variable_hash(r, v, &text);
}


/* the same as sha256sum */

static ngx_int_t
ngx_http_idem_variable_hash(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_str_t *text)
{
    u_char  hash[NGX_HTTP_IDEM_HASH_LEN];

    ngx_http_idem_digest_plain(hash, text->data, text->len);

    return ngx_http_idem_variable_hex(r, v, hash, sizeof(hash));
}


static ngx_int_t
ngx_http_idem_variable_hex(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, u_char *bytes, size_t len)
{
    v->data = ngx_pnalloc(r->pool, 2 * len);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    ngx_hex_dump(v->data, bytes, len);

    v->len = 2 * len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_variable_seconds(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_msec_t msec)
{
    v->data = ngx_pnalloc(r->pool, NGX_TIME_T_LEN + 4);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(v->data, "%T.%03M", (time_t) (msec / 1000),
                         msec % 1000)
             - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_variable_time(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, ngx_http_idem_ctx_t *ctx)
{
    v->data = ngx_pnalloc(r->pool, NGX_HTTP_IDEM_ISO_TIME_LEN);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_http_idem_iso_time(v->data, ctx->answer.original_time)
             - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}
