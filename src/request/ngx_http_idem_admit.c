
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Admission: decides whether a request is covered, and finds its key.
 *
 * Admission does not use the store and does not grant access.  Called in the
 * access phase if the request header is sufficient, otherwise in
 * pre-content.  Calls the parser of keys, and refuses malformed keys.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_int_t ngx_http_idem_bypassed(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t body);
static ngx_int_t ngx_http_idem_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t body);
static ngx_uint_t ngx_http_idem_key_repeated(ngx_http_request_t *r,
    ngx_array_t *headers);
static ngx_int_t ngx_http_idem_no_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t body);
static ngx_int_t ngx_http_idem_key_check(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t text);
static ngx_int_t ngx_http_idem_key_invalid(ngx_http_idem_ctx_t *ctx,
    const char *reason);
static ngx_int_t ngx_http_idem_key_member(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *name);


ngx_int_t
ngx_http_idem_admit(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t    rc;
    const char  *why;

    why = "the method is not covered";
    rc = NGX_DECLINED;

    if (ngx_http_idem_covered(r, ctx->conf)) {
        why = "bypassed";
        rc = ngx_http_idem_bypassed(r, ctx, 0);
    }

    if (rc == NGX_OK) {
        why = "there is no key";
        rc = ngx_http_idem_key(r, ctx, 0);
    }

    if (rc == NGX_DECLINED) {

        /* in a dry run a refused request is in PASS already */

        if (ctx->stage != NGX_HTTP_IDEM_PASS) {
            ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_BYPASS);
            ctx->bypassed = 1;
            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS, why);
        }

    } else if (rc != NGX_OK) {
        return rc;
    }

    ctx->admitted = 1;

    return NGX_OK;
}


/* the body was read: it may have the key */

ngx_int_t
ngx_http_idem_admit_body(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (!ctx->key_in_body && !ctx->bypass_in_body) {
        return NGX_OK;
    }

    ngx_http_idem_value_body_read(r);

    if (ctx->bypass_in_body) {
        rc = ngx_http_idem_bypassed(r, ctx, 1);

        if (rc == NGX_DECLINED) {
            ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_BYPASS);
            ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                                "bypassed, by its body");
            return NGX_OK;
        }

        if (rc != NGX_OK || !ctx->key_in_body) {
            return rc;
        }
    }

    rc = ngx_http_idem_key(r, ctx, 1);

    /* without a key, derived records may still cover the request */

    return (rc == NGX_DECLINED) ? NGX_OK : rc;
}


ngx_uint_t
ngx_http_idem_covered(ngx_http_request_t *r, ngx_http_idem_loc_conf_t *conf)
{
    ngx_str_t   *method;
    ngx_uint_t   i;

    method = conf->methods->elts;

    for (i = 0; i < conf->methods->nelts; i++) {
        if (ngx_http_idem_same_text(&method[i], &r->method_name)) {
            return 1;
        }
    }

    return 0;
}


/* NGX_DECLINED if the request is bypassed */

static ngx_int_t
ngx_http_idem_bypassed(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t body)
{
    ngx_int_t               rc;
    ngx_str_t               value;
    ngx_uint_t              i;
    ngx_array_t            *values;
    ngx_http_idem_value_t  *bypass;

    values = ctx->conf->bypass;

    if (values == NULL) {
        return NGX_OK;
    }

    bypass = values->elts;

    for (i = 0; i < values->nelts; i++) {

        rc = body ? ngx_http_idem_value(r, &bypass[i], &value)
                  : ngx_http_idem_value_early(r, &bypass[i], &value);

        if (rc == NGX_AGAIN) {
            ctx->bypass_in_body = 1;
            continue;
        }

        if (rc != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (value.len && (value.len != 1 || value.data[0] != '0')) {
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


/*
 * Finds the first value that is not empty.  An empty header was meant to be a
 * key: that is an error, not a missing key.  Returns NGX_DECLINED if there is
 * no key, and NGX_OK also if the body has to be read first.
 */

static ngx_int_t
ngx_http_idem_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t body)
{
    ngx_int_t                    rc;
    ngx_uint_t                   i, n, empty;
    ngx_table_elt_t             *h;
    ngx_http_idem_value_t       *value;
    ngx_http_idem_key_source_t  *source;

    h = NULL;
    n = 0;
    empty = 0;
    source = ctx->conf->keys->elts;

    for (i = 0; i < ctx->conf->keys->nelts; i++) {

        if (source[i].member.len) {

            if (!body) {
                ctx->key_in_body = 1;
                return NGX_OK;
            }

            rc = ngx_http_idem_key_member(r, ctx, &source[i].member);

            if (rc != NGX_DECLINED) {
                return rc;
            }

            continue;
        }

        value = &source[i].value;

        if (value->header.len) {
            h = ngx_http_idem_request_header(r, &value->header, &n);
            empty |= n;
        }

        if ((value->header.len && n > 1)
            || ngx_http_idem_key_repeated(r, source[i].headers))
        {
            return ngx_http_idem_key_invalid(ctx, "was sent more than once");
        }

        if (value->kind == NGX_HTTP_IDEM_VALUE_HEADER) {

            if (n == 0) {
                continue;
            }

            ctx->sent_key = h->value;

        } else {
            rc = body ? ngx_http_idem_value(r, value, &ctx->sent_key)
                      : ngx_http_idem_value_early(r, value, &ctx->sent_key);

            if (rc == NGX_AGAIN) {
                ngx_str_null(&ctx->sent_key);
                ctx->key_in_body = 1;
                ctx->body_variable = 1;
                return NGX_OK;
            }

            if (rc != NGX_OK) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }
        }

        if (ctx->sent_key.len) {
            return ngx_http_idem_key_check(r, ctx, 0);
        }
    }

    if (empty) {
        return ngx_http_idem_key_invalid(ctx, "is empty");
    }

    return ngx_http_idem_no_key(r, ctx, body);
}


/* whether one of the headers that a value is joined from was sent twice */

static ngx_uint_t
ngx_http_idem_key_repeated(ngx_http_request_t *r, ngx_array_t *headers)
{
    ngx_uint_t              i, n;
    ngx_http_idem_value_t  *header;

    if (headers == NULL) {
        return 0;
    }

    header = headers->elts;

    for (i = 0; i < headers->nelts; i++) {

        if (header[i].header.len) {
            (void) ngx_http_idem_request_header(r, &header[i].header, &n);

            if (n > 1) {
                return 1;
            }
        }
    }

    return 0;
}


/* no key was found, and no empty header was sent */

static ngx_int_t
ngx_http_idem_no_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t body)
{
    static ngx_uint_t  warned;

    if (body && ctx->body_variable && r->request_body
        && r->request_body->temp_file)
    {
        /*
         * nginx has no $request_body for a body in a file: it may have a key
         */

        return ngx_http_idem_key_invalid(ctx,
                                         "is looked for in the body, which "
                                         "is too large for it");
    }

    if (!body && !warned && ngx_http_idem_value_too_early(r)) {
        warned = 1;
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency: there is no key, and $request_body was "
                      "asked for before the body was read: in "
                      "\"idempotency_key\" use it itself or a \"map\" of "
                      "it, since \"set\" and \"if\" come too early");
    }

    switch (ngx_http_idem_switch(r, ctx->conf->required)) {

    case 0:
        return (ctx->conf->dedupe && !body) ? NGX_OK : NGX_DECLINED;

    case NGX_ERROR:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;

    default: /* 1 */
        return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_KEY_MISSING);
    }
}


/* "text": the key is a JSON string */

static ngx_int_t
ngx_http_idem_key_check(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t text)
{
    u_char                      *buf;
    ngx_http_idem_key_format_t   format;

    buf = ngx_pnalloc(r->pool, ctx->sent_key.len);
    if (buf == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    format = *ctx->conf->key_format;

    if (ctx->conf->key_kind.complex) {
        format.kind = ngx_http_idem_choice_eval(r, &ctx->conf->key_kind,
                                                "idempotency_key_format",
                                                NGX_HTTP_IDEM_KEY_TOKEN);
    }

    if (ngx_http_idem_key_parse(&format, &ctx->sent_key, text,
                                buf, &ctx->key, &ctx->answer.reason)
        != NGX_OK)
    {
        return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_KEY_INVALID);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_key_invalid(ngx_http_idem_ctx_t *ctx, const char *reason)
{
    ctx->answer.reason = reason;
    return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_KEY_INVALID);
}


/* a key in a JSON body: a string or a number */

static ngx_int_t
ngx_http_idem_key_member(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *name)
{
    const ngx_http_idem_json_member_t  *member;

    if (!ctx->body.parsed) {
        return NGX_DECLINED;
    }

    member = ngx_http_idem_json_named(ctx->body.json, name);

    if (member->count > 1) {
        return ngx_http_idem_key_invalid(ctx, "was sent more than once");
    }

    switch (member->kind) {

    case NGX_HTTP_IDEM_JSON_NONE:
    case NGX_HTTP_IDEM_JSON_NULL:
        return NGX_DECLINED;

    case NGX_HTTP_IDEM_JSON_STRING:
    case NGX_HTTP_IDEM_JSON_NUMBER:
        break;

    default:
        return ngx_http_idem_key_invalid(ctx,
                                         "is neither a string nor a number");
    }

    if (member->value.len == 0) {
        return ngx_http_idem_key_invalid(ctx, "is empty");
    }

    ctx->sent_key.len = member->value.len;
    ctx->sent_key.data = ngx_pstrdup(r->pool, (ngx_str_t *) &member->value);
    if (ctx->sent_key.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_key_check(r, ctx,
                              member->kind == NGX_HTTP_IDEM_JSON_STRING);
}
