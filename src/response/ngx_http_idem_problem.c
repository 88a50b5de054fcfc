
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Refusals: one JSON body that is both an RFC 9457 problem and the error
 * envelope that API clients know.
 *
 * With idempotency_error_body off, nginx's error_page handles the same
 * statuses; wherever it redirects, a refused request never runs.
 *
 * Called by all code that refuses a request.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* white space, control characters, and what RFC 3986 has no place for */

#define ngx_http_idem_problem_unsafe(c)                                       \
    ((c) <= ' ' || (c) >= 0x7f || ngx_strchr("\"<>\\^`{|}", (c)) != NULL)


static ngx_int_t ngx_http_idem_refuse_start(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_problem_e problem);
static ngx_int_t ngx_http_idem_refuse_send(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_spare_image(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_problem_url(ngx_pool_t *pool, ngx_str_t *url);
static ngx_int_t ngx_http_idem_problem_headers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_problem_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text);


/* in the order of ngx_http_idem_problem_e */

const ngx_http_idem_problem_t  ngx_http_idem_problems[] = {

    { 400, NGX_HTTP_IDEM_STATUS_INVALID, 0,
      "key-missing", "IDEMPOTENCY_KEY_MISSING", "invalid_request",
      "Idempotency-Key is missing",
      "This operation takes an Idempotency-Key, and the request has none." },

    { 400, NGX_HTTP_IDEM_STATUS_INVALID, 0,
      "key-invalid", "IDEMPOTENCY_KEY_INVALID", "invalid_request",
      "Idempotency-Key is invalid",
      "The Idempotency-Key " },

    { 409, NGX_HTTP_IDEM_STATUS_CONFLICT, 0,
      "conflict", "IDEMPOTENCY_CONFLICT", "conflict",
      "Idempotency-Key is already used",
      "This Idempotency-Key was used before with a different request." },

    { 409, NGX_HTTP_IDEM_STATUS_BUSY, 1,
      "concurrent-request", "CONCURRENT_REQUEST", "concurrent",
      "A request is outstanding for this Idempotency-Key",
      "A request with this Idempotency-Key is still being processed." },

    { 503, NGX_HTTP_IDEM_STATUS_TIMEOUT, 1,
      "lock-timeout", "LOCK_TIMEOUT", "service_unavailable",
      "The request with this Idempotency-Key takes too long",
      "A request with this Idempotency-Key is still being processed; "
      "its response was waited for in vain." },

    { 429, NGX_HTTP_IDEM_STATUS_WAITERS, 1,
      "too-many-waiters", "TOO_MANY_WAITERS", "too_many_requests",
      "Too many requests wait for this Idempotency-Key",
      "A request with this Idempotency-Key is still being processed, "
      "and too many others wait for its response." },

    { 503, NGX_HTTP_IDEM_STATUS_UNAVAILABLE, 1,
      "store-unavailable", "STORE_UNAVAILABLE", "service_unavailable",
      "Idempotency can't be assured at the moment",
      "The request was not processed: whether it was before can't be told." },

    { 409, NGX_HTTP_IDEM_STATUS_UNKNOWN, 0,
      "outcome-unknown", "OUTCOME_UNKNOWN", "unknown_outcome",
      "The outcome of the first request is unknown",
      "A request with this Idempotency-Key may have been processed; "
      "its response was lost." },

    { 507, NGX_HTTP_IDEM_STATUS_TOO_LARGE, 0,
      "response-too-large", "RESPONSE_TOO_LARGE", "not_replayable",
      "The response was too large to be kept",
      "A request with this Idempotency-Key was processed; "
      "its response was too large to be kept." },

    { 507, NGX_HTTP_IDEM_STATUS_TOO_LARGE, 0,
      "response-not-kept", "RESPONSE_NOT_KEPT", "not_replayable",
      "The response could not be kept",
      "A request with this Idempotency-Key was processed; "
      "its response could not be kept." },

    { 409, NGX_HTTP_IDEM_STATUS_CONFLICT, 0,
      "duplicate-request", "DUPLICATE_REQUEST", "duplicate",
      "The request is a duplicate",
      "A request that says the same was received a short time ago." }
};


ngx_int_t
ngx_http_idem_refuse(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_problem_e problem)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = ctx->request;

    if (ngx_http_idem_is_dry_run(ctx)) {
        return ngx_http_idem_dry_run(ctx,
                                     ngx_http_idem_problems[problem].status);
    }

    if (ngx_http_idem_refuse_start(r, ctx, problem) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_idem_body_pending(r)) {
        return ngx_http_idem_drain(r, ctx);
    }

    if (!ctx->answer.body) {
        return ctx->answer.status;
    }

    /* as nginx's own errors: no "100 Continue" for a body nobody reads */

    r->expect_tested = 1;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    rc = ngx_http_idem_refuse_send(r, ctx);

    if (rc == NGX_DECLINED) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_finalize_request(r, rc);

    return NGX_DONE;
}


/* the body has come, or takes too long */

void
ngx_http_idem_refuse_drained(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ctx->answer.body ? ngx_http_idem_refuse_send(r, ctx)
                          : (ngx_int_t) ctx->answer.status;

    ngx_http_finalize_request(r, rc == NGX_DECLINED
                                 ? NGX_HTTP_INTERNAL_SERVER_ERROR : rc);
}


/*
 * A conflict instead of a response whose header came to the header filter, as
 * ngx_http_filter_finalize_request() does it: the error ends the request.
 */

ngx_int_t
ngx_http_idem_refuse_instead(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  status;

    ngx_http_clean_header(r);

    r->err_status = 0;
    r->error_page = ctx->repeat->errors.error_page;
    r->header_only = 0;

    status = NGX_HTTP_INTERNAL_SERVER_ERROR;

    if (ngx_http_idem_refuse_start(r, ctx, NGX_HTTP_IDEM_PROBLEM_CONFLICT)
        == NGX_OK)
    {
        if (!ctx->answer.body) {
            status = ctx->answer.status;

        } else if (ngx_http_idem_refuse_send(r, ctx) != NGX_DECLINED) {
            return NGX_ERROR;
        }
    }

    (void) ngx_http_filter_finalize_request(r, &ngx_http_idempotency_module,
                                            status);

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_idem_refuse_start(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_problem_e problem)
{
    const ngx_http_idem_problem_t  *p;

    p = &ngx_http_idem_problems[problem];

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_REFUSE, p->code);

    ngx_http_idem_spare_image(r);

    ctx->answer.problem = problem;
    ctx->answer.refused = 1;
    ngx_http_idem_status(ctx, p->status);
    ctx->answer.status = (problem == NGX_HTTP_IDEM_PROBLEM_CONFLICT)
                   ? ngx_http_idem_choice(r, &ctx->conf->conflict_status,
                                          "idempotency_conflict_status",
                                          NGX_HTTP_CONFLICT)
                   : p->http;

    ctx->answer.body = ngx_http_idem_flag(r, &ctx->conf->error_body,
                                          "idempotency_error_body");

    if (p->retryable) {
        ctx->answer.retryable = 1;
        ctx->answer.retry_after = ngx_http_idem_time(r,
                                              &ctx->conf->retry_after,
                                              "idempotency_retry_after");
    }

    if (ctx->conf->documentation
        && (ngx_http_idem_value(r, ctx->conf->documentation,
                                &ctx->answer.documentation)
            != NGX_OK
            || ngx_http_idem_problem_url(r->pool, &ctx->answer.documentation)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_idem_problem_headers(r, ctx);
}


/*
 * Percent-encodes what no URL contains.  A variable may have it from the
 * client: $uri is decoded, and a line break in it would end the header Link.
 */

static ngx_int_t
ngx_http_idem_problem_url(ngx_pool_t *pool, ngx_str_t *url)
{
    u_char  *p, *dst, *last;
    size_t   n;

    if (url->len == 0) {
        return NGX_OK;
    }

    last = url->data + url->len;

    for (n = 0, p = url->data; p < last; p++) {
        n += ngx_http_idem_problem_unsafe(*p);
    }

    if (n == 0) {
        return NGX_OK;
    }

    dst = ngx_pnalloc(pool, url->len + 2 * n);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    p = url->data;
    url->data = dst;

    for ( /* void */ ; p < last; p++) {
        if (ngx_http_idem_problem_unsafe(*p)) {
            dst = ngx_sprintf(dst, "%%%02Xi", (ngx_int_t) *p);

        } else {
            *dst++ = *p;
        }
    }

    url->len = dst - url->data;

    return NGX_OK;
}


/*
 * A refusal is no image: image_filter would make 415 of it.  The filter passes
 * a header on if the request has any context of that module, since it sets one
 * before it sends its own error page.
 */

static void
ngx_http_idem_spare_image(ngx_http_request_t *r)
{
    ngx_module_t  *image;

    image = ngx_http_idem_modules.image;

    if (image && r->ctx[image->ctx_index] == NULL) {
        r->ctx[image->ctx_index] = r;
    }
}


/* NGX_DECLINED if nothing was sent */

static ngx_int_t
ngx_http_idem_refuse_send(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;
    ngx_str_t  text;

    if (ngx_http_idem_problem_body(r, ctx, &text) != NGX_OK) {
        return NGX_DECLINED;
    }

    r->headers_out.status = ctx->answer.status;
    r->headers_out.content_length_n = text.len;

    ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    r->disable_not_modified = 1;
    r->allow_ranges = 0;

    rc = ngx_http_send_header(r);

    if (rc != NGX_ERROR && rc <= NGX_OK && !r->header_only) {
        rc = ngx_http_idem_output(r, &ctx->capture.end_buf, &text);
    }

    return rc;
}


/*
 * An error_page has redirected a refused request.  A static page may be
 * served; a content handler must not run.
 */

ngx_int_t
ngx_http_idem_refuse_again(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (r->content_handler == NULL
        && (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)))
    {
        return NGX_DECLINED;
    }

    ngx_http_idem_spare_image(r);

    /* no further error_page: it could redirect here again */
    r->error_page = 1;

    return ctx->answer.status;
}


/* the message needs no escaping in a JSON string */

ngx_int_t
ngx_http_idem_problem_message(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text)
{
    const char  *detail;

    detail = ngx_http_idem_problems[ctx->answer.problem].detail;

    if (ctx->answer.problem != NGX_HTTP_IDEM_PROBLEM_KEY_INVALID) {
        text->data = (u_char *) detail;
        text->len = ngx_strlen(detail);
        return NGX_OK;
    }

    return ngx_http_idem_print(r->pool, text,
                               ngx_strlen(detail)
                               + ngx_strlen(ctx->answer.reason) + 1,
                               "%s%s.", detail, ctx->answer.reason);
}


static ngx_int_t
ngx_http_idem_problem_headers(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t  value, *documentation;

    documentation = &ctx->answer.documentation;

    if (ctx->answer.retryable
        && (ngx_http_idem_print(r->pool, &value, NGX_TIME_T_LEN, "%M",
                                (ctx->answer.retry_after + 999) / 1000)
            != NGX_OK
            || ngx_http_idem_add_header(r, "Retry-After", &value) != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (documentation->len
        && (ngx_http_idem_print(r->pool, &value,
                                documentation->len
                                + sizeof("<>; rel=\"describedby\"") - 1,
                                "<%V>; rel=\"describedby\"", documentation)
            != NGX_OK
            || ngx_http_idem_add_header(r, "Link", &value) != NGX_OK))
    {
        return NGX_ERROR;
    }

    ngx_str_set(&value, "en");

    return ctx->answer.body
           ? ngx_http_idem_add_header(r, "Content-Language", &value) : NGX_OK;
}


static ngx_int_t
ngx_http_idem_problem_body(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *text)
{
    u_char                         *p;
    size_t                          len, escaped;
    ngx_str_t                       diff, message, *documentation;
    ngx_uint_t                      more;
    const ngx_http_idem_problem_t  *problem;

    problem = &ngx_http_idem_problems[ctx->answer.problem];
    documentation = &ctx->answer.documentation;

    if (ngx_http_idem_problem_message(r, ctx, &message) != NGX_OK) {
        return NGX_ERROR;
    }

    escaped = documentation->len
              + ngx_escape_json(NULL, documentation->data, documentation->len);

    if (ngx_http_idem_diff(r, ctx, NGX_HTTP_IDEM_DIFF_OBJECTS,
                           &diff, &more)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    len = 2 * message.len + ngx_strlen(problem->title) + escaped + diff.len
          + 512;

    text->data = ngx_pnalloc(r->pool, len);
    if (text->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(text->data, "{\"type\":\"", 9);

    if (documentation->len) {
        p = (u_char *) ngx_escape_json(p, documentation->data,
                                       documentation->len);
    } else {
        p = ngx_sprintf(p, "about:blank#idempotency-%s", problem->slug);
    }

    p = ngx_sprintf(p, "\",\"title\":\"%s\",\"status\":%ui,\"detail\":\"%V\","
                    "\"ok\":false,\"error\":{\"type\":\"%s\",\"code\":\"%s\","
                    "\"message\":\"%V\",\"retryable\":%s,",
                    problem->title, ctx->answer.status, &message,
                    problem->type, problem->code, &message,
                    ctx->answer.retryable ? "true" : "false");

    if (ctx->answer.retryable) {
        p = ngx_sprintf(p, "\"retryAfterMs\":%M,", ctx->answer.retry_after);
    }

    p = ngx_cpymem(p, "\"details\":{", 11);

    /* a conflict with another identity's record discloses nothing */

    if (ctx->answer.original_time && !ctx->answer.undisclosed) {
        p = ngx_cpymem(p, "\"original_time\":\"", 17);
        p = ngx_http_idem_iso_time(p, ctx->answer.original_time);
        *p++ = '"';
    }

    if (diff.len) {
        p = ngx_sprintf(p, ",\"diff_summary\":%V%s", &diff,
                        more ? ",\"diff_more\":true" : "");
    }

    p = ngx_cpymem(p, "}}}\n", 4);

    text->len = p - text->data;

    return NGX_OK;
}
