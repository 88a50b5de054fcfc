
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Replay: sends a stored response, byte for byte, to a client that passed the
 * access checks.
 *
 * The response passes all of nginx's filters, so add_header, gzip and others
 * act on it as on any response.  The module's own filters let it pass.
 *
 * Called by begin when it finds a completed record of the same request.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_int_t ngx_http_idem_replay_unreadable(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover, const char *reason);
static ngx_uint_t ngx_http_idem_replay_bodiless(ngx_http_request_t *r,
    ngx_http_idem_response_t *response);
static ngx_int_t ngx_http_idem_replay_wait(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_replay_send(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body);
static ngx_int_t ngx_http_idem_replay_output(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *body);
static ngx_int_t ngx_http_idem_replay_headers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_replay_ranges(ngx_http_request_t *r);


ngx_int_t
ngx_http_idem_replay(ngx_http_request_t *r, ngx_http_idem_cover_t *cover)
{
    ngx_int_t                  rc;
    ngx_str_t                  body;
    const char                *reason;
    ngx_http_idem_ctx_t       *ctx;
    ngx_http_idem_response_t  *response;

    ctx = cover->ctx;

    response = ngx_palloc(r->pool, sizeof(ngx_http_idem_response_t));
    if (response == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_idem_replay_decode(r, &cover->op.found, response, &body,
                                     cover->op.found.verify, &reason);
    if (rc == NGX_DECLINED) {
        return ngx_http_idem_replay_unreadable(r, cover, reason);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_idem_replay_bodiless(r, response)) {
        ctx->answer.undisclosed = 1;
        return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_CONFLICT);
    }

    rc = ngx_http_idem_repeat_start(r, cover, response);

    if (rc != NGX_DECLINED) {
        return rc;
    }

    if (ngx_http_idem_is_dry_run(ctx)) {
        ctx->answer.original_time = response->time;
        return ngx_http_idem_dry_run(ctx, NGX_HTTP_IDEM_STATUS_REPLAYED);
    }

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_REPLAY, "there is a response");

    ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_REPLAYED);

    /* the record may belong to a later request that adopted this response */
    ctx->answer.original_time = response->time;
    ctx->answer.count = ngx_http_idem_replays_count(cover, response->time);

    /* if a filter fails, its error_page must not run the request */

    ctx->answer.status = NGX_HTTP_INTERNAL_SERVER_ERROR;

    /* unread data of the request must not be taken for the next request */

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    ctx->answer.response = response;

    if (response->compressed) {
        rc = ngx_http_idem_inflate(r, ctx, response, &body);

        if (rc == NGX_AGAIN) {
            return ngx_http_idem_replay_wait(r);
        }

        if (rc == NGX_DECLINED) {
            return ngx_http_idem_replay_unreadable(r, cover,
                                           "its body can't be decompressed");
        }

        if (rc != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_idem_replay_send(r, ctx, &body);
}


/*
 * Where the method is not part of the fingerprint, a record of a HEAD may be
 * found by another method, whose response has a body.
 */

static ngx_uint_t
ngx_http_idem_replay_bodiless(ngx_http_request_t *r,
    ngx_http_idem_response_t *response)
{
    return response->header_only && response->content_length != 0
           && r->method != NGX_HTTP_HEAD
           && !ngx_http_idem_told_bodiless(&response->status_line,
                                           response->status);
}


/* waits for later iterations; events of the client are ignored */

static ngx_int_t
ngx_http_idem_replay_wait(ngx_http_request_t *r)
{
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return NGX_AGAIN;
}


/*
 * Refuses whatever idempotency_on_store_error says: the request ran, and must
 * not run again.
 */

static ngx_int_t
ngx_http_idem_replay_unreadable(ngx_http_request_t *r,
    ngx_http_idem_cover_t *cover, const char *reason)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = cover->ctx;

    ngx_http_idem_log_repeated(NGX_LOG_ERR, r->connection->log, cover->id,
                  "idempotency: store \"%V\" has a record that can't be "
                  "read: %s", &ctx->conf->store->name, reason);

    return ngx_http_idem_refuse(ctx, NGX_HTTP_IDEM_PROBLEM_STORE_UNAVAILABLE);
}


/* decompression finished in a later iteration of the event loop */

void
ngx_http_idem_replay_inflated(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_int_t rc, ngx_str_t *body)
{
    if (rc == NGX_OK) {
        rc = ngx_http_idem_replay_send(r, ctx, body);

    } else {
        rc = ngx_http_idem_replay_unreadable(r, ctx->answer.cover,
                                           "its body can't be decompressed");
    }

    if (rc != NGX_DONE && rc != NGX_AGAIN) {
        ngx_http_finalize_request(r, rc);
    }
}


static ngx_int_t
ngx_http_idem_replay_send(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_int_t                  rc;
    ngx_http_idem_response_t  *response;

    rc = NGX_OK;
    response = ctx->answer.response;

    if (ngx_http_idem_restore_head(r, response) != NGX_OK
        || ngx_http_idem_replay_headers(r, ctx) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!response->header_only && ngx_http_idem_is_sse(r)
        && r->headers_out.content_encoding == NULL)
    {
        ngx_http_idem_sse_resume(r, body);
    }

    if (ctx->conf->replay_json && !response->header_only) {
        rc = ngx_http_idem_replay_json(r, ctx, body);
    }

    if (rc == NGX_AGAIN) {
        return ngx_http_idem_replay_wait(r);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_replay_output(r, ctx, body);
}


/* rewriting finished in a later iteration of the event loop */

void
ngx_http_idem_replay_rewritten(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_int_t rc, ngx_str_t *body)
{
    if (rc == NGX_OK) {
        (void) ngx_http_idem_replay_output(r, ctx, body);
        return;
    }

    ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
}


/* returns NGX_DONE: the request is finalized */

static ngx_int_t
ngx_http_idem_replay_output(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *body)
{
    ngx_int_t                  rc;
    ngx_uint_t                 status;
    ngx_http_idem_response_t  *response;

    response = ctx->answer.response;

    status = ngx_http_idem_choice(r, &ctx->conf->replay_status,
                                  "idempotency_replay_status", 0);

    if (status && response->status / 100 == 2) {
        r->headers_out.status = status;
        ngx_str_null(&r->headers_out.status_line);
    }

    /* a condition in the retry must not change the response */

    r->disable_not_modified = 1;
    r->allow_ranges = 0;

    /* a HEAD is told what the handler said, whatever it sent for filters */

    r->headers_out.content_length_n = (response->header_only
                                       || r->method == NGX_HTTP_HEAD)
                                      ? response->content_length
                                      : (off_t) body->len;

    ngx_http_idem_replay_ranges(r);

    rc = ngx_http_send_header(r);

    if (rc != NGX_ERROR && rc <= NGX_OK && !r->header_only) {
        rc = ngx_http_idem_output(r, &ctx->capture.end_buf, body);
    }

    ngx_http_finalize_request(r, rc);

    return NGX_DONE;
}


/* NGX_DECLINED if the record can't be decoded */

ngx_int_t
ngx_http_idem_replay_decode(ngx_http_request_t *r,
    ngx_http_idem_found_t *found, ngx_http_idem_response_t *response,
    ngx_str_t *body, ngx_uint_t verify, const char **reason)
{
    ngx_uint_t  n;

    ngx_memzero(response, sizeof(ngx_http_idem_response_t));

    if (ngx_http_idem_head_peek(found->response.data,
                                found->response.len, &n, reason)
        != NGX_OK)
    {
        return NGX_DECLINED;
    }

    response->headers = ngx_palloc(r->pool, ngx_max(n, 1)
                                    * sizeof(ngx_http_idem_header_t));
    if (response->headers == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_idem_response_decode(found->response.data,
                                      found->response.len, response,
                                      body, verify, reason)
        != NGX_OK)
    {
        return NGX_DECLINED;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_replay_headers(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t  value;

    if (!ngx_http_idem_flag(r, &ctx->conf->headers, "idempotency_headers")) {
        return NGX_OK;
    }

    ngx_http_idem_hide_header(r, "X-Idempotency-Expired");
    ngx_http_idem_hide_header(r, "Idempotent-Replayed");
    ngx_http_idem_hide_header(r, "X-Original-Request-Time");

    ngx_str_set(&value, "true");

    if (ngx_http_idem_add_header(r, "Idempotent-Replayed", &value) != NGX_OK) {
        return NGX_ERROR;
    }

    value.data = ngx_pnalloc(r->pool, NGX_HTTP_IDEM_ISO_TIME_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_http_idem_iso_time(value.data, ctx->answer.original_time)
                - value.data;

    return ngx_http_idem_add_header(r, "X-Original-Request-Time", &value);
}


/*
 * Enables ranges if the stored response has Accept-Ranges: nginx cuts the
 * range and adds the header again.  Only one range, as for the original
 * (..._send()).
 */

static void
ngx_http_idem_replay_ranges(ngx_http_request_t *r)
{
    ngx_table_elt_t           *h;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    h = r->headers_out.accept_ranges;

    if (h == NULL
        || !ngx_http_idem_header_is(&h->value, "bytes")
        || !ngx_http_idem_may_range(r)
        || r->headers_out.status != NGX_HTTP_OK
        || r->headers_out.content_length_n == -1
        || r->http_version < NGX_HTTP_VERSION_10
        || clcf->max_ranges == 0)
    {
        return;
    }

    h->hash = 0;
    r->headers_out.accept_ranges = NULL;

    r->allow_ranges = 1;
    r->single_range = 1;
}


/*
 * Sends a whole body through all filters.  The caller provides a zeroed
 * buffer: once the header is sent, an allocation must not fail.
 */

ngx_int_t
ngx_http_idem_output(ngx_http_request_t *r, ngx_buf_t *b, ngx_str_t *body)
{
    ngx_chain_t  out;

    if (body->len) {
        b->pos = body->data;
        b->last = body->data + body->len;
        b->memory = 1;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}
