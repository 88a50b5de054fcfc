
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events of requests: when they are written, and their members.
 *
 * Called wherever an event occurs; calls the line writer of observe/.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_event_write(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover, ngx_http_idem_event_e event,
    const char *word);
static void ngx_http_idem_event_base(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_cover_t *cover);
static void ngx_http_idem_event_more(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_cover_t *cover,
    ngx_http_idem_event_e event);
static void ngx_http_idem_event_key(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_event_e event);
static void ngx_http_idem_event_found(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_event_e event);
static void ngx_http_idem_event_holder(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_str_t *details);
static void ngx_http_idem_event_since(ngx_http_idem_line_t *line,
    const char *name, uint64_t time);
static void ngx_http_idem_event_text(ngx_http_idem_line_t *line,
    const char *name, ngx_str_t *value);
static void ngx_http_idem_event_fields(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line);


void
ngx_http_idem_event(ngx_http_idem_ctx_t *ctx, ngx_http_idem_event_e event,
    const char *word)
{
    ngx_http_idem_event_of(ctx, ctx->claims.primary, event, word);
}


/* a line takes 6 kB of the stack, which most requests need not touch */

void
ngx_http_idem_event_of(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover, ngx_http_idem_event_e event,
    const char *word)
{
    if (ngx_http_idem_events_wanted(ctx->conf->log)) {
        ngx_http_idem_event_write(ctx, cover, event, word);
    }
}


static void
ngx_http_idem_event_write(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover, ngx_http_idem_event_e event,
    const char *word)
{
    ngx_http_idem_line_t  line;

    if (ngx_http_idem_line_start(&line, ctx->conf->log, event,
                                 &ctx->conf->store->name)
        != NGX_OK)
    {
        return;
    }

    ngx_http_idem_event_base(ctx, &line, cover);

    if (ctx->status) {
        ngx_http_idem_line_word(&line, "outcome",
                                ngx_http_idem_status_names[ctx->status]);
    }

    if (ctx->wait.waited || event == NGX_HTTP_IDEM_EVENT_LOCK_CONTENTION) {
        ngx_http_idem_line_number(&line, "wait_ms", ctx->wait.time);
    }

    if (ctx->claims.store_time) {
        ngx_http_idem_line_number(&line, "store_ms", ctx->claims.store_time);
    }

    if (word) {
        ngx_http_idem_line_word(&line, "reason", word);
    }

    ngx_http_idem_event_more(ctx, &line, cover, event);
    ngx_http_idem_event_fields(ctx, &line);

    ngx_http_idem_line_write(&line);
}


/* members of all events */

static void
ngx_http_idem_event_base(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_cover_t *cover)
{
    u_char                      hash[NGX_HTTP_IDEM_HASH_LEN];
    u_char                      hex[2 * NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t                   group, id, labels[NGX_HTTP_IDEM_LABEL_N];
    ngx_uint_t                  status;
    ngx_http_request_t         *r;
    ngx_http_variable_value_t  *v;
    ngx_http_idem_main_conf_t  *mcf;

    r = ctx->request;
    group = ngx_http_idem_metrics_group_name(ngx_http_idem_group(ctx));

    ngx_http_idem_line_string(line, "group", &group);

    ngx_memzero(labels, sizeof(labels));

    if (ngx_http_idem_cover_owner(r, ctx, labels, hex) == NGX_OK) {
        ngx_http_idem_event_text(line, "tenant",
                                 &labels[NGX_HTTP_IDEM_LABEL_TENANT]);
        ngx_http_idem_event_text(line, "actor",
                                 &labels[NGX_HTTP_IDEM_LABEL_ACTOR]);
    }

    /* the indexed variable has the value that upstream and access_log use */

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    v = ngx_http_get_indexed_variable(r, mcf->request_id);

    if (v && !v->not_found) {
        id.len = v->len;
        id.data = v->data;
        ngx_http_idem_event_text(line, "request_id", &id);
    }

    if (ctx->key.len) {
        ngx_http_idem_digest_plain(hash, ctx->key.data, ctx->key.len);
        ngx_http_idem_line_hex(line, "key_hash", hash, sizeof(hash));
    }

    if (cover) {
        ngx_http_idem_line_hex(line, "record", cover->id,
                               NGX_HTTP_IDEM_ID_LEN);
    }

    ngx_http_idem_line_string(line, "method", &r->method_name);
    ngx_http_idem_line_string(line, "uri_group", &group);

    status = r->err_status ? r->err_status : r->headers_out.status;

    if (status) {
        ngx_http_idem_line_number(line, "status", status);
    }

    ngx_http_idem_line_number(line, "duration_ms",
                              ngx_current_msec - ctx->arrival);
}


/* members of some events, as far as the request knows them */

static void
ngx_http_idem_event_more(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_cover_t *cover,
    ngx_http_idem_event_e event)
{
    ngx_http_idem_cover_t  *found;

    found = ctx->answer.cover;

    switch (event) {

    case NGX_HTTP_IDEM_EVENT_REPLAY:
    case NGX_HTTP_IDEM_EVENT_CONFLICT:
        if (found) {
            ngx_http_idem_event_found(ctx, line, event);
        }

        break;

    case NGX_HTTP_IDEM_EVENT_KEY_CREATED:
    case NGX_HTTP_IDEM_EVENT_KEY_EXPIRED:
        ngx_http_idem_event_key(ctx, line, event);
        break;

    case NGX_HTTP_IDEM_EVENT_LOCK_CONTENTION:
        if (found) {
            ngx_http_idem_line_number(line, "queue_depth",
                       ngx_http_idem_waiters_of(&ctx->conf->store->name,
                                                found->id));
            ngx_http_idem_event_holder(ctx, line, &found->op.found.details);
        }

        break;

    case NGX_HTTP_IDEM_EVENT_LOCK_ABANDONED:
        /* known from the store's reply, or from waiting for that holder */
        ngx_http_idem_event_since(line, "lock_age_ms",
                                  cover->op.original
                                  ? cover->op.original
                                  : ctx->answer.original_time);
        ngx_http_idem_event_holder(ctx, line, &cover->op.found.details);
        break;

    case NGX_HTTP_IDEM_EVENT_PROCESSED:
        if (cover && cover->op.kind == NGX_HTTP_IDEM_OP_COMMIT) {
            ngx_http_idem_line_number(line, "response_size_bytes",
                                      ctx->capture.response.plain_len);
        }

        break;

    case NGX_HTTP_IDEM_EVENT_TOO_LARGE:
        if (ctx->request->headers_out.content_length_n >= 0) {
            ngx_http_idem_line_number(line, "response_size_bytes",
                             ctx->request->headers_out.content_length_n);
        }

        ngx_http_idem_line_number(line, "max_size_bytes",
                                  ctx->capture.max_response);
        break;

    default:
        break;
    }
}


static void
ngx_http_idem_event_key(ngx_http_idem_ctx_t *ctx, ngx_http_idem_line_t *line,
    ngx_http_idem_event_e event)
{
    uint64_t                original;
    ngx_msec_t              ttl;
    ngx_uint_t              count;
    ngx_http_idem_cover_t  *cover;

    cover = ctx->claims.primary;
    ttl = ngx_http_idem_commit_ttl(cover);

    ngx_http_idem_line_number(line, "ttl_ms", ttl);

    if (event == NGX_HTTP_IDEM_EVENT_KEY_CREATED) {
        ngx_http_idem_line_time(line, "expires_at",
                                ngx_http_idem_history_now() + ttl);
        return;
    }

    /* members of the expired record; this nginx counts its own replays */

    if (ngx_http_idem_replays_read(cover->id, &count, &original) == NGX_OK) {
        ngx_http_idem_line_number(line, "replay_count", count);
    }

    ngx_http_idem_event_since(line, "lifetime_ms",
                              cover->op.original ? cover->op.original
                                                 : original);
}


/* another identity's record discloses only its time and actor */

static void
ngx_http_idem_event_found(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_http_idem_event_e event)
{
    uint64_t                now, original;
    ngx_str_t               actor;
    ngx_http_idem_cover_t  *cover;

    cover = ctx->answer.cover;
    original = ctx->answer.original_time;

    if (event == NGX_HTTP_IDEM_EVENT_CONFLICT) {
        ngx_http_idem_line_word(line, "conflict_type",
                  ngx_http_idem_claim_same_identity(&cover->op.found.claim,
                                                    &cover->claim)
                  ? "payload" : "identity");

        if (!ctx->answer.undisclosed) {
            ngx_http_idem_line_hex(line, "original_fingerprint",
                                   cover->op.found.claim.fingerprint,
                                   NGX_HTTP_IDEM_FINGERPRINT_LEN);
        }

        ngx_http_idem_line_hex(line, "fingerprint", cover->claim.fingerprint,
                               NGX_HTTP_IDEM_FINGERPRINT_LEN);
    }

    if (original) {
        ngx_http_idem_line_time(line, "original_timestamp", original);
    }

    if (event == NGX_HTTP_IDEM_EVENT_REPLAY) {
        if (original) {
            now = ngx_http_idem_history_now();
            ngx_http_idem_line_number(line, "time_since_original_ms",
                                      now > original ? now - original : 0);
        }

        if (ctx->answer.count) {
            ngx_http_idem_line_number(line, "replay_count",
                                      ctx->answer.count);
        }
    }

    ngx_http_idem_label(&cover->op.found.details, NGX_HTTP_IDEM_LABEL_ACTOR,
                        &actor);
    ngx_http_idem_event_text(line, "original_actor", &actor);
}


/* the host of the holder: records of the embedded store are this host's */

static void
ngx_http_idem_event_holder(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line, ngx_str_t *details)
{
    ngx_str_t  value;

    ngx_http_idem_label(details, NGX_HTTP_IDEM_LABEL_HOST, &value);

    if (value.len == 0 && ctx->conf->store->layers == NULL) {
        value = ngx_cycle->hostname;
    }

    ngx_http_idem_event_text(line, "lock_holder", &value);
}


/* the time since then, unless it is unknown or the clock was set back */

static void
ngx_http_idem_event_since(ngx_http_idem_line_t *line, const char *name,
    uint64_t time)
{
    uint64_t  now;

    now = ngx_http_idem_history_now();

    if (time && now > time) {
        ngx_http_idem_line_number(line, name, now - time);
    }
}


/* a member that is left out if it is empty */

static void
ngx_http_idem_event_text(ngx_http_idem_line_t *line, const char *name,
    ngx_str_t *value)
{
    if (value->len) {
        ngx_http_idem_line_string(line, name, value);
    }
}


/* the fields of idempotency_log_field */

static void
ngx_http_idem_event_fields(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_line_t *line)
{
    ngx_str_t                   value;
    ngx_uint_t                  i;
    ngx_http_idem_log_field_t  *field;

    if (ctx->conf->log_fields == NULL) {
        return;
    }

    field = ctx->conf->log_fields->elts;

    for (i = 0; i < ctx->conf->log_fields->nelts; i++) {

        if (ngx_http_idem_value(ctx->request, &field[i].value, &value)
            == NGX_OK)
        {
            ngx_http_idem_line_string(line, (char *) field[i].name.data,
                                      &value);
        }
    }
}


void
ngx_http_idem_outcome_event(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_event_e  event;

    if (!ngx_http_idem_events_wanted(ctx->conf->log)) {
        return;
    }

    event = NGX_HTTP_IDEM_EVENT_PROCESSED;

    switch (ctx->status) {

    case NGX_HTTP_IDEM_STATUS_TOO_LARGE:

        /* for the request that ran, not for its refused retries */

        if (ctx->stage == NGX_HTTP_IDEM_SEND) {
            ngx_http_idem_event(ctx, NGX_HTTP_IDEM_EVENT_TOO_LARGE, NULL);
        }

        break;

    case NGX_HTTP_IDEM_STATUS_REPLAYED:
        event = NGX_HTTP_IDEM_EVENT_REPLAY;
        break;

    case NGX_HTTP_IDEM_STATUS_CONFLICT:

        if (!ngx_http_idem_is_duplicate(ctx)) {
            event = NGX_HTTP_IDEM_EVENT_CONFLICT;
        }

        break;

    case NGX_HTTP_IDEM_STATUS_BUSY:
    case NGX_HTTP_IDEM_STATUS_WAITERS:
        event = NGX_HTTP_IDEM_EVENT_LOCK_CONTENTION;
        break;

    case NGX_HTTP_IDEM_STATUS_TIMEOUT:
        event = NGX_HTTP_IDEM_EVENT_LOCK_TIMEOUT;
        break;

    case NGX_HTTP_IDEM_STATUS_BYPASS:
        return;

    default:
        break;
    }

    ngx_http_idem_event(ctx, event, NULL);
}
