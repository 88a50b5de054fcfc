
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The context of a request: created before the access phase, found again
 * after an internal redirect, and settled when the request ends in any way.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_place_save(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_uint_t ngx_http_idem_by_error_page(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_ctx_cleanup(void *data);
static void ngx_http_idem_ctx_count(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_ctx_free(void *data);


const char  *ngx_http_idem_status_names[] = {
    "", "EXECUTED", "REPLAYED", "CONFLICT", "BUSY", "TIMEOUT", "WAITERS",
    "INVALID", "UNKNOWN", "TOO_LARGE", "RELEASED", "UNAVAILABLE",
    "UNPROTECTED", "BYPASS"
};


#if (NGX_DEBUG)

static const char  *ngx_http_idem_stage_names[] = {
    "admit", "read body", "begin", "wait", "execute", "hold", "stream",
    "compress", "commit", "send", "repeat", "replay", "refuse", "pass"
};

#endif


/*
 * an internal redirect clears r->ctx, but the pool cleanup keeps the context
 */

ngx_http_idem_ctx_t *
ngx_http_idem_find_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t   *cln;
    ngx_http_idem_ctx_t  *ctx;

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_idem_ctx_free) {
            ctx = cln->data;
            ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
            return ctx;
        }
    }

    return NULL;
}


ngx_http_idem_ctx_t *
ngx_http_idem_create_ctx(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_cleanup_t   *hcln;
    ngx_pool_cleanup_t   *cln;
    ngx_http_idem_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_idem_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    hcln = ngx_http_cleanup_add(r, 0);
    if (hcln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_idem_ctx_t));

    ctx->request = r;
    ctx->arrival = ngx_current_msec;
    ctx->capture.last = &ctx->capture.held;

    cln->handler = ngx_http_idem_ctx_free;

    hcln->handler = ngx_http_idem_ctx_cleanup;
    hcln->data = ctx;

    ctx->conf = conf;
    ctx->place.redirected = r->internal;

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    ngx_http_idem_place_save(r, ctx);

    return ctx;
}


/*
 * The request may have been redirected to another location before begin.
 * Either it was refused there, and an error_page redirected it.  Then it must
 * not be covered here: it could get the stored response or the lock of the
 * request that was refused.  Or try_files or a module redirected it, as
 * ngx.exec() of Lua does.  Then the configuration of the new location counts,
 * with its access checks and the variables they set.  A location without
 * "idempotency" leaves the context as it was.
 */

void
ngx_http_idem_change_location(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_loc_conf_t  *conf;

    if ((ctx->stage != NGX_HTTP_IDEM_ADMIT && !ctx->bypassed)
        || ctx->place.uri_changes == r->uri_changes)
    {
        return;
    }

    if (ngx_http_idem_by_error_page(r, ctx)) {
        ctx->bypassed = 0;
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                            "an error_page of a refused request");
        return;
    }

    ngx_http_idem_place_save(r, ctx);

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (conf == ctx->conf || (conf->store == NULL && !conf->off)) {
        return;
    }

    ctx->bypassed = 0;
    ctx->admitted = 0;
    ctx->key_in_body = 0;
    ctx->body_variable = 0;
    ctx->bypass_in_body = 0;
    ngx_http_idem_status(ctx, NGX_HTTP_IDEM_STATUS_NONE);

    ngx_str_null(&ctx->key);
    ngx_str_null(&ctx->sent_key);

    if (conf->store == NULL) {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS,
                            "it is off where it came to");
        return;
    }

    ctx->conf = conf;

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_ADMIT,
                        "it came to another location");
}


/* the access checks passed: a redirect from here is no refusal */

void
ngx_http_idem_access_granted(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = (r == r->main) ? ngx_http_idem_get_ctx(r) : NULL;

    if (ctx) {

        if (ctx->place.uri_changes != r->uri_changes) {
            ngx_http_idem_change_location(r, ctx);
        }

        ngx_http_idem_address_learn(r);

        ctx->place.granted = 1;

        if (ctx->place.granted_at != r->uri_changes) {
            ctx->place.granted_before = ctx->place.granted_at;
            ctx->place.granted_at = r->uri_changes;
        }

        if (!ngx_http_idem_is_redirected(r)) {
            ctx->place.checked = 1;
        }
    }
}


static void
ngx_http_idem_place_save(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ctx->place.location = ngx_http_get_module_loc_conf(r,
                                                       ngx_http_core_module);
    ctx->place.uri_changes = r->uri_changes;
    ctx->place.granted = 0;

    ngx_http_idem_errors_save(r, &ctx->place.errors);
}


/*
 * Whether an error_page redirected a request that was refused.  nginx marks
 * such a request, except if recursive_error_pages is on and the error_page
 * has "=" without a status.  Then a request in any location that such an
 * error_page redirects to counts as redirected.
 */

static ngx_uint_t
ngx_http_idem_by_error_page(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                  status;
    ngx_str_t                 *target;
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *clcf;

    if (ctx->place.granted) {
        return 0;
    }

    if (ngx_http_idem_errors_differ(r, &ctx->place.errors)) {
        return 1;
    }

    if (!ctx->place.location->recursive_error_pages
        || ctx->place.location->error_pages == NULL)
    {
        return 0;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    page = ctx->place.location->error_pages->elts;

    for (i = 0; i < ctx->place.location->error_pages->nelts; i++) {

        status = (page[i].overwrite >= 0) ? page[i].overwrite
                                          : page[i].status;

        if (status != (ngx_int_t) r->err_status) {
            continue;
        }

        target = &page[i].value.value;

        if (target->data[0] != '@' && target->data[0] != '$') {

            /* a page with a URI is asked for by GET, or HEAD */

            if (r->method == NGX_HTTP_HEAD
                || r->method_name.data == ngx_http_core_get_method.data)
            {
                return 1;
            }

            continue;
        }

        if (page[i].value.lengths
            || ngx_http_idem_same_text(&clcf->name, target))
        {
            return 1;
        }
    }

    return 0;
}


/* the header of a response that is not the holder's */

ngx_int_t
ngx_http_idem_unheld_header(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    switch (ctx->stage) {

    case NGX_HTTP_IDEM_REPLAY:
    case NGX_HTTP_IDEM_REFUSE:
        ngx_http_idem_no_post_action(r);
        return NGX_OK;

    case NGX_HTTP_IDEM_REPEAT:
        return r == r->main ? ngx_http_idem_ask_header(r, ctx) : NGX_OK;

    case NGX_HTTP_IDEM_PASS:
        /*
         * It runs without a record, as one without a key: the application
         * can't know, and its header is not for the client either.
         */
        ngx_http_idem_hide_header(r, NGX_HTTP_IDEM_STORE_HEADER);
        return NGX_OK;

    default:
        return NGX_OK;
    }
}


/*
 * A replayed or refused request did not run, so post_action must not run for
 * it, nor for one whose client leaves before it runs.  nginx reads post_action
 * from the location after the request; this request gets a copy of the
 * location configuration without it.  The copy is made once per location, in
 * memory that the configuration has set aside: a keepalive connection reads it
 * when the request is freed.  It leads back to the original, which nginx's own
 * member does for locations only, not for what a server has outside of them.
 */

void
ngx_http_idem_no_post_action(ngx_http_request_t *r)
{
    void                     **loc_conf;
    ngx_http_core_loc_conf_t  *clcf, *copy;
    ngx_http_idem_loc_conf_t  *conf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (clcf->post_action.data == NULL) {
        return;
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    loc_conf = conf->no_post_action;

    if (loc_conf[ngx_http_core_module.ctx_index] == NULL) {
        ngx_memcpy(loc_conf, r->loc_conf,
                   sizeof(void *) * ngx_http_max_module);

        copy = (ngx_http_core_loc_conf_t *) (loc_conf + ngx_http_max_module);

        *copy = *clcf;
        copy->loc_conf = r->loc_conf;
        ngx_str_null(&copy->post_action);

        loc_conf[ngx_http_core_module.ctx_index] = copy;
    }

    r->loc_conf = loc_conf;
}


/* the request runs after all */

void
ngx_http_idem_with_post_action(ngx_http_request_t *r)
{
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (r->loc_conf == conf->no_post_action) {
        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
        r->loc_conf = clcf->loc_conf;
    }
}


void
ngx_http_idem_enter(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_stage_e stage, const char *reason)
{
    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "idempotency: %s -> %s: %s",
                   ngx_http_idem_stage_names[ctx->stage],
                   ngx_http_idem_stage_names[stage], reason);

    ctx->stage = stage;
}


/* the group in metrics and events; it stays the same during a request */

ngx_uint_t
ngx_http_idem_group(ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t  name;

    if (ctx->conf->group_value == NULL) {
        return ctx->conf->group;
    }

    if (ctx->group == 0) {

        if (ngx_http_idem_value(ctx->request, ctx->conf->group_value,
                                &name)
            != NGX_OK
            || name.len == 0)
        {
            return ctx->conf->group;
        }

        ctx->group = ngx_http_idem_metrics_group(&name) + 1;
    }

    return ctx->group - 1;
}


/* evaluated once: a variable may change during the request */

ngx_uint_t
ngx_http_idem_is_dry_run(ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  on;

    if (ctx->conf->dry_run == NULL) {
        return 0;
    }

    if (!ctx->dry_known) {
        on = ngx_http_idem_switch(ctx->request, ctx->conf->dry_run);

        /* if the value can't be evaluated, the request is protected */

        if (on == NGX_ERROR) {
            return 0;
        }

        ctx->dry_known = 1;
        ctx->dry = on;
    }

    return ctx->dry;
}


/*
 * idempotency_dry_run: sets the status that the request would have got, and
 * passes it on unprotected.
 */

ngx_int_t
ngx_http_idem_dry_run(ngx_http_idem_ctx_t *ctx, ngx_http_idem_status_e status)
{
    ngx_http_idem_status(ctx, status);

    ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS, "dry run");

    return NGX_DECLINED;
}


/*
 * nginx runs a post_action as a part of the request: when that is through, and
 * as well when it fails or its client leaves.  The action neither begins a
 * record nor answers for the request that ran: what is not through by now ends
 * without a response.
 */

void
ngx_http_idem_post_action(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    /* the handler of the request has not redirected it here */

    ctx->work.run.uri_changes = r->uri_changes;

    if (ctx->stage == NGX_HTTP_IDEM_REPEAT) {
        ngx_http_idem_ask_redirected(r, ctx);

    } else {
        ngx_http_idem_end(ctx);
    }

    if (ctx->stage <= NGX_HTTP_IDEM_WAIT
        || ctx->stage == NGX_HTTP_IDEM_REPEAT)
    {
        ngx_http_idem_enter(ctx, NGX_HTTP_IDEM_PASS, "a post_action");
    }
}


/*
 * The request ends, normally or not: cancels all callbacks for it, and
 * settles its locks.
 */

void
ngx_http_idem_end(ngx_http_idem_ctx_t *ctx)
{
    switch (ctx->stage) {

    case NGX_HTTP_IDEM_READ_BODY:
        ngx_http_idem_turn_cancel(ctx->body.turn);
        break;

    case NGX_HTTP_IDEM_BEGIN:
        ngx_http_idem_claims_cancel(ctx);
        ngx_http_idem_wait_end(ctx, NGX_HTTP_IDEM_WAITED_GONE);
        ngx_http_idem_release(ctx);
        break;

    case NGX_HTTP_IDEM_WAIT:
        ngx_http_idem_wait_end(ctx, NGX_HTTP_IDEM_WAITED_GONE);
        break;

    case NGX_HTTP_IDEM_EXECUTE:
    case NGX_HTTP_IDEM_HOLD:
    case NGX_HTTP_IDEM_STREAM:
        ngx_http_idem_abandon(ctx);
        break;

    case NGX_HTTP_IDEM_SEND:

        if (ctx->capture.through) {
            ctx->capture.through = 0;
            ngx_http_idem_abandon(ctx);
        }

        break;

    case NGX_HTTP_IDEM_REPEAT:
        /* the log has what was requested, and by whom */
        ngx_http_idem_ask_end(ctx->request, ctx);
        break;

    default:
        /* during a commit r->blocked keeps the request alive */
        break;
    }
}


/*
 * Called before the access log is written, and after the upstream has recorded
 * the number of bytes sent.
 */

static void
ngx_http_idem_ctx_cleanup(void *data)
{
    ngx_http_idem_ctx_t  *ctx = data;

    ngx_http_idem_end(ctx);

    if (ctx->status != NGX_HTTP_IDEM_STATUS_NONE && !ctx->counted) {
        ctx->counted = 1;
        ngx_http_idem_ctx_count(ctx);
        ngx_http_idem_outcome_event(ctx);
    }
}


/* counts the outcome and the duration in the metrics */

static void
ngx_http_idem_ctx_count(ngx_http_idem_ctx_t *ctx)
{
    uint64_t                  now, age;
    ngx_time_t               *tp;
    ngx_msec_int_t            ms;
    ngx_uint_t                group, replayed;
    ngx_http_idem_cover_t    *cover;
    ngx_http_idem_metrics_t  *m;
    ngx_http_idem_conflict_e  kind;

    m = ctx->conf->store->metrics;
    group = ngx_http_idem_group(ctx);

    ngx_http_idem_metrics_request(m, group, ctx->status);

    if (ctx->status == NGX_HTTP_IDEM_STATUS_BYPASS) {
        return;
    }

    tp = ngx_timeofday();
    replayed = 0;

    switch (ctx->status) {

    case NGX_HTTP_IDEM_STATUS_REPLAYED:
        /* the clock may have been set back */

        now = (uint64_t) tp->sec * 1000 + tp->msec;
        age = ctx->answer.original_time;
        age = (age && age < now) ? now - age : 0;

        ngx_http_idem_metrics_replay(m,
                                     ngx_http_idem_cover_layer(
                                                         ctx->answer.cover),
                                     age);

        /* in a dry run the request ran */

        replayed = !ctx->dry;
        break;

    case NGX_HTTP_IDEM_STATUS_CONFLICT:
        cover = ctx->answer.cover;
        kind = ngx_http_idem_is_duplicate(ctx)
               ? NGX_HTTP_IDEM_CONFLICT_DUPLICATE
               : ctx->answer.undisclosed ? NGX_HTTP_IDEM_CONFLICT_IDENTITY
                                         : NGX_HTTP_IDEM_CONFLICT_PAYLOAD;

        ngx_http_idem_metrics_conflict(m, kind);

        if (cover) {
            ngx_http_idem_history_conflict(&m->history, cover->id, group,
                                           kind);
        }

        break;

    default:
        break;
    }

    ms = (ngx_msec_int_t) ((tp->sec - ctx->request->start_sec) * 1000
                           + (tp->msec - ctx->request->start_msec));

    ngx_http_idem_metrics_duration(m, group, replayed,
                                   (ngx_msec_t) ngx_max(ms, 0));
}


static void
ngx_http_idem_ctx_free(void *data)
{
    ngx_http_idem_ctx_t  *ctx = data;

    /* cancel everything that could still call back */

    ngx_http_idem_ctx_cleanup(ctx);
    ngx_http_idem_execute_done(ctx);
    ngx_http_idem_body_cleanup(ctx);
    ngx_http_idem_deflate_cleanup(ctx);
    ngx_http_idem_file_cleanup(ctx);
    ngx_http_idem_replay_json_cleanup(ctx);

    ngx_http_idem_claims_cancel(ctx);

    /* after the operations: a commit sends these blocks */

    ngx_http_idem_hold_cleanup(ctx);

    ctx->stage = NGX_HTTP_IDEM_PASS;
}
