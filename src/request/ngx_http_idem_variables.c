
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Variables that describe what happened to a request, for log_format,
 * add_header, proxy_set_header and map: the request and its record; if it was
 * refused, why; what the original was, and what differs.  With an error_page
 * and "return" they make error bodies of any shape.  Variables that end in
 * _json are JSON literals; for a refused request they are never empty, but
 * null or [].
 *
 * $idempotency_key is the only one with data sent by the client; logging it
 * is the operator's choice.  Nothing of another identity's record is
 * disclosed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* the longest value that is printed: a hash in hex */
#define NGX_HTTP_IDEM_VAR_LEN  (2 * NGX_HTTP_IDEM_HASH_LEN)

#define ngx_http_idem_variable_print(r, value, ...)                           \
    ngx_http_idem_print((r)->pool, value, NGX_HTTP_IDEM_VAR_LEN, __VA_ARGS__)


typedef enum {
    NGX_HTTP_IDEM_VAR_STATUS = 0,
    NGX_HTTP_IDEM_VAR_KEY,
    NGX_HTTP_IDEM_VAR_KEY_HASH,
    NGX_HTTP_IDEM_VAR_RECORD,
    NGX_HTTP_IDEM_VAR_FINGERPRINT,
    NGX_HTTP_IDEM_VAR_REPLAYED,
    NGX_HTTP_IDEM_VAR_CONFLICT,
    NGX_HTTP_IDEM_VAR_ORIGINAL_TIME,
    NGX_HTTP_IDEM_VAR_AGE,
    NGX_HTTP_IDEM_VAR_WAIT_TIME,
    NGX_HTTP_IDEM_VAR_STORE_TIME,
    NGX_HTTP_IDEM_VAR_ERROR_CODE,
    NGX_HTTP_IDEM_VAR_ERROR_TYPE,
    NGX_HTTP_IDEM_VAR_ERROR_MESSAGE,
    NGX_HTTP_IDEM_VAR_RETRYABLE,
    NGX_HTTP_IDEM_VAR_RETRY_AFTER,
    NGX_HTTP_IDEM_VAR_DIFF_JSON,
    NGX_HTTP_IDEM_VAR_DIFF_TEXT_JSON,
    NGX_HTTP_IDEM_VAR_KEY_JSON,
    NGX_HTTP_IDEM_VAR_ORIGINAL_TIME_MS,
    NGX_HTTP_IDEM_VAR_ORIGINAL_FINGERPRINT,
    NGX_HTTP_IDEM_VAR_LAYER,
    NGX_HTTP_IDEM_VAR_REPLAY_COUNT,
    NGX_HTTP_IDEM_VAR_ACTIVITY_COUNT,
    NGX_HTTP_IDEM_VAR_ACTIVITY_AGE,
    NGX_HTTP_IDEM_VAR_JOB,
    NGX_HTTP_IDEM_VAR_N
} ngx_http_idem_var_e;


static ngx_uint_t ngx_http_idem_variable_find(ngx_str_t *name);
static ngx_int_t ngx_http_idem_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_idem_variable_value(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t var, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_original(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t var, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_refusal(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t var, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_diff(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_diff_e form, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value);
static void ngx_http_idem_variable_layer(ngx_http_idem_ctx_t *ctx,
    ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_job(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *name, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_hash(ngx_http_request_t *r,
    ngx_str_t *text, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_seconds(ngx_http_request_t *r,
    ngx_msec_t msec, ngx_str_t *value);


/* in the order of ngx_http_idem_var_e */

static ngx_str_t  ngx_http_idem_vars[] = {
    ngx_string("idempotency_status"),
    ngx_string("idempotency_key"),
    ngx_string("idempotency_key_hash"),
    ngx_string("idempotency_record"),
    ngx_string("idempotency_fingerprint"),
    ngx_string("idempotency_replayed"),
    ngx_string("idempotency_conflict"),
    ngx_string("idempotency_original_time"),
    ngx_string("idempotency_age"),
    ngx_string("idempotency_wait_time"),
    ngx_string("idempotency_store_time"),
    ngx_string("idempotency_error_code"),
    ngx_string("idempotency_error_type"),
    ngx_string("idempotency_error_message"),
    ngx_string("idempotency_retryable"),
    ngx_string("idempotency_retry_after"),
    ngx_string("idempotency_diff_json"),
    ngx_string("idempotency_diff_text_json"),
    ngx_string("idempotency_key_json"),
    ngx_string("idempotency_original_time_ms"),
    ngx_string("idempotency_original_fingerprint"),
    ngx_string("idempotency_layer"),
    ngx_string("idempotency_replay_count"),
    ngx_string("idempotency_activity_count"),
    ngx_string("idempotency_activity_age"),
    ngx_string("idempotency_job_")       /* with any <type> */
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

    var->get_handler = ngx_http_idem_variable;

    return NGX_OK;
}


/*
 * nginx accepts any name for a prefix variable.  This check makes names that
 * are neither known here nor defined by the configuration an error, and
 * prevents that the configuration redefines the variables.  The lines that
 * name a variable are not known any more; nginx's own message has none either.
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

        if (ngx_http_idem_variable_find(&key[n].key) != NGX_HTTP_IDEM_VAR_N) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
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
            || ngx_http_idem_variable_find(&v[i].name) != NGX_HTTP_IDEM_VAR_N)
        {
            continue;
        }

        for (n = 0; n < cmcf->variables_keys->keys.nelts; n++) {
            if (ngx_http_idem_same_text(&v[i].name, &key[n].key)) {
                break;
            }
        }

        if (n == cmcf->variables_keys->keys.nelts) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "unknown \"%V\" variable", &v[i].name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_variable_find(ngx_str_t *name)
{
    ngx_str_t   *var;
    ngx_uint_t   i;

    for (i = 0; i < NGX_HTTP_IDEM_VAR_N; i++) {
        var = &ngx_http_idem_vars[i];

        if ((name->len == var->len
             || (name->len > var->len && i == NGX_HTTP_IDEM_VAR_JOB))
            && ngx_strncmp(name->data, var->data, var->len) == 0)
        {
            break;
        }
    }

    return i;
}


static ngx_int_t
ngx_http_idem_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_int_t             rc;
    ngx_str_t            *name, value;
    ngx_uint_t            var;
    ngx_http_idem_ctx_t  *ctx;

    name = (ngx_str_t *) data;
    var = ngx_http_idem_variable_find(name);
    ctx = ngx_http_idem_get_ctx(r->main);

    ngx_str_null(&value);

    if (var == NGX_HTTP_IDEM_VAR_N) {
        /*
         * defined by "set" but not set yet, or looked up by name, as in Lua
         */
        rc = NGX_DECLINED;

    } else if (ctx == NULL
               || (ctx->stage == NGX_HTTP_IDEM_ADMIT && !ctx->admitted))
    {
        /* disabled here, or refused before admission */
        rc = NGX_DECLINED;

    } else if (var == NGX_HTTP_IDEM_VAR_JOB) {
        rc = ngx_http_idem_variable_job(r, ctx, name, &value);

    } else {
        rc = ngx_http_idem_variable_value(r, ctx, var, &value);
    }

    if (rc != NGX_OK) {
        v->not_found = 1;
        return (rc == NGX_DECLINED) ? NGX_OK : NGX_ERROR;
    }

    v->data = value.data;
    v->len = value.len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/* "value" stays empty where the variable has none */

static ngx_int_t
ngx_http_idem_variable_value(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t var, ngx_str_t *value)
{
    ngx_http_idem_cover_t  *primary;

    primary = ctx->claims.primary;

    switch (var) {

    case NGX_HTTP_IDEM_VAR_STATUS:
        value->data = (u_char *) ngx_http_idem_status_names[ctx->status];
        value->len = ngx_strlen(value->data);
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_KEY:
        *value = ctx->sent_key;
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_KEY_HASH:
        return ctx->key.len ? ngx_http_idem_variable_hash(r, &ctx->key, value)
                            : NGX_OK;

    case NGX_HTTP_IDEM_VAR_KEY_JSON:
        return ngx_http_idem_variable_key(r, ctx, value);

    case NGX_HTTP_IDEM_VAR_RECORD:
        return primary ? ngx_http_idem_variable_print(r, value, "%*xs",
                                   (size_t) NGX_HTTP_IDEM_ID_LEN, primary->id)
                       : NGX_OK;

    case NGX_HTTP_IDEM_VAR_FINGERPRINT:
        return primary ? ngx_http_idem_variable_print(r, value, "%*xs",
                                   (size_t) NGX_HTTP_IDEM_FINGERPRINT_LEN,
                                   primary->claim.fingerprint)
                       : NGX_OK;

    case NGX_HTTP_IDEM_VAR_REPLAYED:

        if (ctx->status == NGX_HTTP_IDEM_STATUS_REPLAYED) {
            ngx_str_set(value, "true");
        }

        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_CONFLICT:

        if (ctx->status == NGX_HTTP_IDEM_STATUS_CONFLICT
            && !ngx_http_idem_is_duplicate(ctx))
        {
            ngx_str_set(value, "body-mismatch");
        }

        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_WAIT_TIME:
        return ngx_http_idem_variable_seconds(r, ctx->wait.time, value);

    case NGX_HTTP_IDEM_VAR_STORE_TIME:
        return ngx_http_idem_variable_seconds(r, ctx->claims.store_time,
                                              value);

    default:
        return ngx_http_idem_variable_original(r, ctx, var, value);
    }
}


/* earlier requests: the original, its replays, and those of the client */

static ngx_int_t
ngx_http_idem_variable_original(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t var, ngx_str_t *value)
{
    u_char                     time[NGX_HTTP_IDEM_ISO_TIME_LEN];
    uint64_t                   original;
    ngx_http_idem_cover_t     *cover;
    ngx_http_idem_activity_t  *activity;

    cover = ctx->answer.cover;
    original = ctx->answer.original_time;
    activity = ctx->claims.activity;

    if (ctx->answer.undisclosed || ctx->stage == NGX_HTTP_IDEM_REPEAT) {
        /* the location of the response may refuse the client yet */
        original = 0;
    }

    ngx_http_idem_iso_time(time, original);

    switch (var) {

    case NGX_HTTP_IDEM_VAR_ORIGINAL_TIME:
        return original ? ngx_http_idem_variable_print(r, value, "%*s",
                                                       sizeof(time), time)
                        : NGX_OK;

    case NGX_HTTP_IDEM_VAR_ORIGINAL_TIME_MS:
        return (cover && original)
               ? ngx_http_idem_variable_print(r, value, "%*s.%03MZ",
                                              sizeof(time) - 1, time,
                                              (ngx_msec_t) (original % 1000))
               : NGX_OK;

    case NGX_HTTP_IDEM_VAR_ORIGINAL_FINGERPRINT:
        return (cover && original)
               ? ngx_http_idem_variable_print(r, value, "%*xs",
                                      (size_t) NGX_HTTP_IDEM_FINGERPRINT_LEN,
                                      cover->op.found.claim.fingerprint)
               : NGX_OK;

    case NGX_HTTP_IDEM_VAR_AGE:
        return (original && ctx->claims.primary->claim.time >= original)
               ? ngx_http_idem_variable_seconds(r,
                                (ngx_msec_t) (ctx->claims.primary->claim.time
                                              - original),
                                value)
               : NGX_OK;

    case NGX_HTTP_IDEM_VAR_LAYER:
        ngx_http_idem_variable_layer(ctx, value);
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_REPLAY_COUNT:
        return ctx->answer.count
               ? ngx_http_idem_variable_print(r, value, "%ui",
                                              ctx->answer.count)
               : NGX_OK;

    case NGX_HTTP_IDEM_VAR_ACTIVITY_COUNT:
        return activity ? ngx_http_idem_variable_print(r, value, "%ui",
                                                       activity->count)
                        : NGX_OK;

    case NGX_HTTP_IDEM_VAR_ACTIVITY_AGE:
        return (activity && activity->known)
               ? ngx_http_idem_variable_seconds(r, activity->age, value)
               : NGX_OK;

    default:
        return ctx->answer.refused
               ? ngx_http_idem_variable_refusal(r, ctx, var, value)
               : NGX_OK;
    }
}


static ngx_int_t
ngx_http_idem_variable_refusal(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t var, ngx_str_t *value)
{
    switch (var) {

    case NGX_HTTP_IDEM_VAR_ERROR_CODE:
        value->data = (u_char *)
                      ngx_http_idem_problems[ctx->answer.problem].code;
        value->len = ngx_strlen(value->data);
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_ERROR_TYPE:
        value->data = (u_char *)
                      ngx_http_idem_problems[ctx->answer.problem].type;
        value->len = ngx_strlen(value->data);
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_ERROR_MESSAGE:
        return ngx_http_idem_problem_message(r, ctx, value);

    case NGX_HTTP_IDEM_VAR_RETRYABLE:

        if (ctx->answer.retryable) {
            ngx_str_set(value, "true");

        } else {
            ngx_str_set(value, "false");
        }

        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_RETRY_AFTER:
        return ctx->answer.retryable
               ? ngx_http_idem_variable_print(r, value, "%M",
                                     (ctx->answer.retry_after + 999) / 1000)
               : NGX_OK;

    case NGX_HTTP_IDEM_VAR_DIFF_JSON:
        return ngx_http_idem_variable_diff(r, ctx, NGX_HTTP_IDEM_DIFF_OBJECTS,
                                           value);

    default: /* NGX_HTTP_IDEM_VAR_DIFF_TEXT_JSON */
        return ngx_http_idem_variable_diff(r, ctx, NGX_HTTP_IDEM_DIFF_TEXTS,
                                           value);
    }
}


static ngx_int_t
ngx_http_idem_variable_diff(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_diff_e form, ngx_str_t *value)
{
    ngx_uint_t  more;

    if (ngx_http_idem_diff(r, ctx, form, value, &more) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value->len == 0) {
        ngx_str_set(value, "[]");
    }

    return NGX_OK;
}


/* without its quotes; a malformed key as it was sent */

static ngx_int_t
ngx_http_idem_variable_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value)
{
    ngx_str_t  *key;

    key = ctx->key.len ? &ctx->key : &ctx->sent_key;

    if (key->len == 0) {
        ngx_str_set(value, "null");
        return NGX_OK;
    }

    value->data = ngx_pnalloc(r->pool, ngx_http_idem_json_quoted(key->len));
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    value->len = ngx_http_idem_json_quote(value->data, key) - value->data;

    return NGX_OK;
}


/* the kind of record by which the request was folded into another */

static void
ngx_http_idem_variable_layer(ngx_http_idem_ctx_t *ctx, ngx_str_t *value)
{
    if (ctx->answer.cover == NULL
        || (ctx->status == NGX_HTTP_IDEM_STATUS_CONFLICT
            && !ngx_http_idem_is_duplicate(ctx)))
    {
        return;
    }

    if (!ctx->answer.cover->derived) {
        ngx_str_set(value, "key");
        return;
    }

    *value = ctx->answer.cover->dedupe->name;

    if (value->len > 5 && ngx_strncmp(value->data, "json:", 5) == 0) {
        value->data += 5;
        value->len -= 5;
    }
}


/*
 * $idempotency_job_<type>: the same for all tries, different for each type.
 * It is the hash of "<key>:<type>", which sha256sum can reproduce.  Without a
 * key, the id of the derived record is used instead.
 */

static ngx_int_t
ngx_http_idem_variable_job(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *name, ngx_str_t *value)
{
    u_char     *p, id[2 * NGX_HTTP_IDEM_ID_LEN];
    size_t      len;
    ngx_str_t   text, key;

    if (ctx->key.len == 0 && ctx->claims.primary == NULL) {
        return NGX_DECLINED;
    }

    key = ctx->key;

    if (key.len == 0) {
        ngx_hex_dump(id, ctx->claims.primary->id, NGX_HTTP_IDEM_ID_LEN);

        key.data = id;
        key.len = sizeof(id);
    }

    len = ngx_http_idem_vars[NGX_HTTP_IDEM_VAR_JOB].len;

    text.len = key.len + 1 + name->len - len;
    text.data = ngx_pnalloc(r->pool, text.len);
    if (text.data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(text.data, key.data, key.len);
    *p++ = ':';
    ngx_memcpy(p, name->data + len, name->len - len);

    return ngx_http_idem_variable_hash(r, &text, value);
}


/* the same as sha256sum */

static ngx_int_t
ngx_http_idem_variable_hash(ngx_http_request_t *r, ngx_str_t *text,
    ngx_str_t *value)
{
    u_char  hash[NGX_HTTP_IDEM_HASH_LEN];

    ngx_http_idem_digest_plain(hash, text->data, text->len);

    return ngx_http_idem_variable_print(r, value, "%*xs", sizeof(hash), hash);
}


static ngx_int_t
ngx_http_idem_variable_seconds(ngx_http_request_t *r, ngx_msec_t msec,
    ngx_str_t *value)
{
    return ngx_http_idem_variable_print(r, value, "%T.%03M",
                                        (time_t) (msec / 1000), msec % 1000);
}


/* prints up to "size" bytes to memory of the pool */

ngx_int_t
ngx_http_idem_print(ngx_pool_t *pool, ngx_str_t *value, size_t size,
    const char *fmt, ...)
{
    u_char   *last;
    va_list   args;

    value->len = 0;
    value->data = ngx_pnalloc(pool, size);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    va_start(args, fmt);
    last = ngx_vslprintf(value->data, value->data + size, fmt, args);
    va_end(args);

    value->len = last - value->data;

    return NGX_OK;
}
