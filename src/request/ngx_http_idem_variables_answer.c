
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Variables of responses that are not the application's: why a request was
 * refused, what the original was, what differs.  With an error_page and
 * "return" they make error bodies of any shape.  Variables that end in _json
 * are JSON literals; for a refused request they are never empty, but null or
 * [].
 *
 * They disclose nothing of another identity's record.  Called by
 * ..._variables.c.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "request/ngx_http_idem_variables.h"


static ngx_int_t ngx_http_idem_variable_count(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_refusal(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_diff(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_diff_e form, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_original(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value);
static ngx_int_t ngx_http_idem_variable_activity(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value);
static void ngx_http_idem_variable_layer(
    ngx_http_idem_ctx_t *ctx, ngx_str_t *value);


ngx_int_t
ngx_http_idem_variable_answer(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    uintptr_t data, ngx_str_t *value)
{
    switch (data) {

    case NGX_HTTP_IDEM_VAR_KEY_JSON:
        return ngx_http_idem_variable_key(r, ctx, value);

    case NGX_HTTP_IDEM_VAR_ORIGINAL_TIME_MS:
    case NGX_HTTP_IDEM_VAR_ORIGINAL_FINGERPRINT:
        return ngx_http_idem_variable_original(r, ctx, data, value);

    case NGX_HTTP_IDEM_VAR_LAYER:
        ngx_http_idem_variable_layer(ctx, value);
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_REPLAY_COUNT:
        return ngx_http_idem_variable_count(r, ctx, value);

    case NGX_HTTP_IDEM_VAR_ACTIVITY_COUNT:
    case NGX_HTTP_IDEM_VAR_ACTIVITY_AGE:
        return ngx_http_idem_variable_activity(r, ctx, data, value);

    default:
        return ctx->answer.refused
               ? ngx_http_idem_variable_refusal(r, ctx, data, value)
               : NGX_OK;
    }
}


static ngx_int_t
ngx_http_idem_variable_count(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *value)
{
    if (ctx->answer.count == 0) {
        return NGX_OK;
    }

    value->data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    value->len = ngx_sprintf(value->data, "%ui", ctx->answer.count)
                 - value->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_variable_refusal(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value)
{
    switch (data) {

    case NGX_HTTP_IDEM_VAR_ERROR_CODE:
        value->data = (u_char *)
                      ngx_http_idem_problem_code(ctx->answer.problem);
        value->len = ngx_strlen(value->data);
        return NGX_OK;

    case NGX_HTTP_IDEM_VAR_ERROR_TYPE:
        value->data = (u_char *)
                      ngx_http_idem_problem_type(ctx->answer.problem);
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

        if (!ctx->answer.retryable) {
            return NGX_OK;
        }

        value->data = ngx_pnalloc(r->pool, NGX_TIME_T_LEN);
        if (value->data == NULL) {
            return NGX_ERROR;
        }

        value->len = ngx_sprintf(value->data, "%M",
                                 (ctx->answer.retry_after + 999) / 1000)
                     - value->data;

        return NGX_OK;

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

    value->len = ngx_http_idem_json_quote(value->data, key)
                 - value->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_variable_original(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value)
{
    u_char  *p;

    if (ctx->answer.met == NULL || ctx->answer.original_time == 0
        || ctx->answer.foreign)
    {
        return NGX_OK;
    }

    if (data == NGX_HTTP_IDEM_VAR_ORIGINAL_FINGERPRINT) {
        value->len = 2 * NGX_HTTP_IDEM_FINGERPRINT_LEN;
        value->data = ngx_pnalloc(r->pool, value->len);
        if (value->data == NULL) {
            return NGX_ERROR;
        }

        ngx_hex_dump(value->data, ctx->answer.met->op.found.claim.fingerprint,
                     NGX_HTTP_IDEM_FINGERPRINT_LEN);

        return NGX_OK;
    }

    value->data = ngx_pnalloc(r->pool, NGX_HTTP_IDEM_ISO_TIME_LEN
                                       + sizeof(".000") - 1);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_idem_iso_time(value->data, ctx->answer.original_time);

    p = ngx_sprintf(p - 1, ".%03MZ",
                    (ngx_msec_t) (ctx->answer.original_time % 1000));

    value->len = p - value->data;

    return NGX_OK;
}


/* the kind of record by which the request was folded into another */

static void
ngx_http_idem_variable_layer(ngx_http_idem_ctx_t *ctx, ngx_str_t *value)
{
    if (ctx->answer.met == NULL
        || (ctx->status == NGX_HTTP_IDEM_STATUS_CONFLICT
            && !ngx_http_idem_is_duplicate(ctx)))
    {
        return;
    }

    if (!ctx->answer.met->derived) {
        ngx_str_set(value, "key");
        return;
    }

    *value = ctx->answer.met->dedupe->name;

    if (value->len > 5 && ngx_strncmp(value->data, "json:", 5) == 0) {
        value->data += 5;
        value->len -= 5;
    }
}


/* before this request */

static ngx_int_t
ngx_http_idem_variable_activity(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, uintptr_t data, ngx_str_t *value)
{
    ngx_http_idem_activity_t  *activity;

    activity = ctx->claims.activity;

    if (activity == NULL
        || (data == NGX_HTTP_IDEM_VAR_ACTIVITY_AGE && !activity->known))
    {
        return NGX_OK;
    }

    value->data = ngx_pnalloc(r->pool, NGX_TIME_T_LEN + sizeof(".000") - 1);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    if (data == NGX_HTTP_IDEM_VAR_ACTIVITY_COUNT) {
        value->len = ngx_sprintf(value->data, "%ui", activity->count)
                     - value->data;

    } else {
        value->len = ngx_sprintf(value->data, "%T.%03M",
                                 (time_t) (activity->age / 1000),
                                 activity->age % 1000)
                     - value->data;
    }

    return NGX_OK;
}
