
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Hashes the request body in a request body filter while it is read, so that
 * a body in a temporary file need not be read again.  A body that another
 * module has read earlier is hashed afterwards: ..._body_late.c.
 *
 * The handler starts and finishes it.  It feeds the digest, through the
 * multipart parser so that the boundary does not count, and the parsers of
 * JSON and forms if they are needed.  These collect the body, and parse it when
 * it is complete: 1 MB can take tens of milliseconds, during which the worker
 * would serve nobody else, so it is done in several iterations of the event
 * loop.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* units of work in an iteration: one or two milliseconds */
#define NGX_HTTP_IDEM_PARSE_WORK  262144


static ngx_int_t ngx_http_idem_request_body_filter(
    ngx_http_request_t *r, ngx_chain_t *in);
static ngx_int_t ngx_http_idem_body_work(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_http_idem_fingerprint_e ngx_http_idem_body_mode(
    ngx_http_idem_fingerprint_e mode, ngx_str_t *type);
static ngx_int_t ngx_http_idem_body_parsers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_fingerprint_e mode);
static ngx_http_idem_json_options_t *ngx_http_idem_body_secret(
    ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_body_turn(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_body_canonical(ngx_http_idem_body_t *body);
static void ngx_http_idem_body_multipart_update(void *data,
    const u_char *p, size_t len);


static ngx_http_request_body_filter_pt
    ngx_http_idem_next_request_body_filter;


/* in this process: whether nginx calls the module's filters */

static enum {
    NGX_HTTP_IDEM_FILTERS_UNKNOWN = 0,
    NGX_HTTP_IDEM_FILTERS_CALLED,
    NGX_HTTP_IDEM_FILTERS_GONE
} ngx_http_idem_filters;


void
ngx_http_idem_body_init(void)
{
    ngx_http_idem_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_idem_request_body_filter;
}


void
ngx_http_idem_body_reset(void)
{
    ngx_http_idem_filters = NGX_HTTP_IDEM_FILTERS_UNKNOWN;
}


/*
 * Checks that nginx calls the module's filters.  nginx builds its global
 * filter chains when it reads a configuration.  A failed reload may leave
 * chains without this module, if the module is not loaded in that
 * configuration or another one failed earlier.  A worker that the old cycle
 * starts then would run every request and store nothing.  So each worker
 * probes the chain once, with a call that nginx makes itself at times for a
 * body that was read already.  If the request body filter is in its chain,
 * the others are in theirs.
 */

ngx_int_t
ngx_http_idem_filters_check(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    unsigned                  no_buffering;
    ngx_http_request_body_t  *body, none;

    if (ngx_http_idem_filters == NGX_HTTP_IDEM_FILTERS_CALLED) {
        return NGX_OK;
    }

    if (ngx_http_idem_filters == NGX_HTTP_IDEM_FILTERS_UNKNOWN) {

        /* NULL if the body was discarded */

        body = r->request_body;

        if (body == NULL) {
            ngx_memzero(&none, sizeof(ngx_http_request_body_t));
            r->request_body = &none;
        }

        /* without buffering, nginx does nothing if there is no data */

        no_buffering = r->request_body_no_buffering;
        r->request_body_no_buffering = 1;
        ctx->place.probe = 1;

        (void) ngx_http_top_request_body_filter(r, NULL);

        r->request_body_no_buffering = no_buffering;
        r->request_body = body;

        if (!ctx->place.probe) {
            ngx_http_idem_filters = NGX_HTTP_IDEM_FILTERS_CALLED;
            return NGX_OK;
        }

        ctx->place.probe = 0;

        ngx_http_idem_filters = NGX_HTTP_IDEM_FILTERS_GONE;
    }

    ngx_http_idem_log_repeated(NGX_LOG_ALERT, r->connection->log, NULL,
                  "idempotency: this worker was started after a reload that "
                  "failed, and has no filters of ngx_http_idempotency_module: "
                  "the request is refused, since its response could not be "
                  "kept; reload with a configuration that is in order");

    return NGX_ERROR;
}


/*
 * The raw digest is always computed: a body that fails to parse is hashed
 * raw, and its beginning is gone by then.
 */

ngx_int_t
ngx_http_idem_body_start(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t                     boundary, *type;
    ngx_http_idem_body_t         *body;
    ngx_http_idem_loc_conf_t     *conf;
    ngx_http_idem_fingerprint_e   mode;

    conf = ctx->conf;
    body = &ctx->body;

    type = r->headers_in.content_type ? &r->headers_in.content_type->value
                                      : NULL;

    mode = ngx_http_idem_body_mode(conf->fingerprint->mode, type);

    if (mode == NGX_HTTP_IDEM_FINGERPRINT_OFF
        && conf->dedupe == NULL && !ctx->key_in_body && !conf->replay_body)
    {
        return NGX_OK;
    }

    body->kind = mode;
    body->detail = ngx_http_idem_choice(r, &conf->conflict_detail,
                                        "idempotency_conflict_detail",
                                        NGX_HTTP_IDEM_JSON_DETAIL_OFF);

    body->digest = ngx_palloc(r->pool, sizeof(ngx_http_idem_digest_t));
    if (body->digest == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idem_digest_start(body->digest);

    if (type && ngx_http_idem_multipart_boundary(type, &boundary) == NGX_OK) {
        body->multipart = ngx_palloc(r->pool,
                                     sizeof(ngx_http_idem_multipart_t));
        if (body->multipart == NULL) {
            return NGX_ERROR;
        }

        ngx_http_idem_multipart_init(body->multipart, &boundary,
                                     ngx_http_idem_body_multipart_update,
                                     body->digest);
    }

    if (ngx_http_idem_body_parsers(r, ctx, mode) != NGX_OK) {
        return NGX_ERROR;
    }

    /*
     * a module of an earlier phase has read the body: the filter won't see it
     */

    body->late = (r->request_body != NULL);

    if (body->late || body->json || body->form) {
        body->turn = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_turn_t));
        if (body->turn == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* "auto" depends on the media type */

static ngx_http_idem_fingerprint_e
ngx_http_idem_body_mode(ngx_http_idem_fingerprint_e mode, ngx_str_t *type)
{
    u_char     c;
    ngx_str_t  name;

    if (mode != NGX_HTTP_IDEM_FINGERPRINT_AUTO) {
        return mode;
    }

    if (type == NULL) {
        return NGX_HTTP_IDEM_FINGERPRINT_RAW;
    }

    name.data = type->data;

    for (name.len = 0; name.len < type->len; name.len++) {
        c = name.data[name.len];

        if (c == ';' || c == ' ' || c == '\t') {
            break;
        }
    }

    if (ngx_http_idem_header_is(&name, "application/json")
        || (name.len > 5
            && ngx_strncasecmp(name.data + name.len - 5, (u_char *) "+json", 5)
               == 0))
    {
        return NGX_HTTP_IDEM_FINGERPRINT_JSON;
    }

    if (ngx_http_idem_header_is(&name, "application/x-www-form-urlencoded")) {
        return NGX_HTTP_IDEM_FINGERPRINT_FORM;
    }

    return NGX_HTTP_IDEM_FINGERPRINT_RAW;
}


/*
 * JSON is also parsed if only a member is needed, or the paths for the
 * details of a conflict.
 */

static ngx_int_t
ngx_http_idem_body_parsers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_fingerprint_e mode)
{
    ngx_http_idem_body_t          *body;
    ngx_http_idem_json_options_t  *options;

    body = &ctx->body;
    options = &ctx->conf->json;

    if (mode != NGX_HTTP_IDEM_FINGERPRINT_JSON
        && mode != NGX_HTTP_IDEM_FINGERPRINT_FORM
        && options->nwanted == 0
        && body->detail == NGX_HTTP_IDEM_JSON_DETAIL_OFF)
    {
        return NGX_OK;
    }

    if (mode == NGX_HTTP_IDEM_FINGERPRINT_FORM) {
        body->form = ngx_http_idem_form_create(&ctx->conf->form);
        if (body->form == NULL) {
            return NGX_ERROR;
        }

        if (options->nwanted == 0) {
            return NGX_OK;
        }
    }

    if (body->detail != NGX_HTTP_IDEM_JSON_DETAIL_OFF) {
        options = ngx_http_idem_body_secret(r, ctx);
        if (options == NULL) {
            return NGX_ERROR;
        }
    }

    body->json = ngx_http_idem_json_create(options);

    return body->json ? NGX_OK : NGX_ERROR;
}


/*
 * The hashes of paths are keyed by the identity and the key, which are not in
 * the store.
 */

static ngx_http_idem_json_options_t *
ngx_http_idem_body_secret(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                        *secret;
    u_char                         identity[
                                            NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t                      fields[4];
    ngx_http_idem_json_options_t  *options;

    options = ngx_palloc(r->pool, sizeof(ngx_http_idem_json_options_t)
                                  + NGX_HTTP_IDEM_JSON_SECRET_LEN);
    if (options == NULL) {
        return NULL;
    }

    *options = ctx->conf->json;
    options->detail = ctx->body.detail;
    secret = (u_char *) (options + 1);
    options->secret = secret;

    ngx_str_set(&fields[0], "conflict_detail");

    fields[1].data = identity;
    fields[1].len = sizeof(identity);

    if (ngx_http_idem_identity(r, ctx->conf, identity) != NGX_OK
        || ngx_http_idem_value_early(r, ctx->conf->scope, &fields[2])
           == NGX_ERROR)
    {
        return NULL;
    }

    /* empty if the key is in the body: it is not known yet */
    fields[3] = ctx->key;

    ngx_http_idem_digest_fields(secret, fields, 4);

    return options;
}


void *
ngx_http_idem_canon_alloc(size_t size)
{
    return ngx_alloc(size, ngx_cycle->log);
}


void
ngx_http_idem_canon_free(void *p)
{
    ngx_free(p);
}


static ngx_int_t
ngx_http_idem_request_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_chain_t          *cl;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx == NULL) {
        return ngx_http_idem_next_request_body_filter(r, in);
    }

    if (ctx->place.probe) {
        ctx->place.probe = 0;
        return NGX_OK;
    }

    if (ctx->body.digest && !ctx->body.late && r == r->main
        && ctx->stage == NGX_HTTP_IDEM_READ_BODY)
    {
        for (cl = in; cl; cl = cl->next) {
            if (ngx_http_idem_body_buf(r, ctx, cl->buf) != NGX_OK) {
                return NGX_HTTP_INTERNAL_SERVER_ERROR;
            }
        }
    }

    return ngx_http_idem_next_request_body_filter(r, in);
}


/* NGX_AGAIN if it takes longer: ..._body_ready() will be called */

ngx_int_t
ngx_http_idem_body_finish(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t              rc;
    ngx_http_idem_body_t  *body;

    body = &ctx->body;

    if (body->digest == NULL) {
        return NGX_OK;
    }

    if (body->late && r->request_body) {
        body->rest = r->request_body->bufs;
    }

    rc = ngx_http_idem_body_work(r, ctx);

    if (rc == NGX_AGAIN) {
        ngx_http_idem_turn(body->turn, ctx, ngx_http_idem_body_turn,
                           "parsing");
    }

    return rc;
}


/* NGX_AGAIN if there is more to do in another iteration */

static ngx_int_t
ngx_http_idem_body_work(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t              rc;
    ngx_http_idem_body_t  *body;

    body = &ctx->body;

    if (body->digest) {
        rc = ngx_http_idem_body_late(r, ctx);

        if (rc != NGX_OK) {
            return rc;
        }

        if (body->multipart) {
            ngx_http_idem_multipart_done(body->multipart);
        }

        ngx_http_idem_digest_done(body->digest, body->hash);
        body->digest = NULL;
    }

    /* a parser keeps its failure, and ..._done() returns it */

    if (body->json
        && ngx_http_idem_json_work(body->json, NGX_HTTP_IDEM_PARSE_WORK)
           == NGX_AGAIN)
    {
        return NGX_AGAIN;
    }

    if (body->form
        && ngx_http_idem_form_work(body->form, NGX_HTTP_IDEM_PARSE_WORK)
           == NGX_AGAIN)
    {
        return NGX_AGAIN;
    }

    return ngx_http_idem_body_canonical(body);
}


static ngx_int_t
ngx_http_idem_body_turn(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_body_work(r, ctx);

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    ngx_http_idem_with_post_action(r);

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_idem_body_ready(r, rc);

    return NGX_OK;
}


/* replaces the raw digest by the canonical one if the body was parsed */

static ngx_int_t
ngx_http_idem_body_canonical(ngx_http_idem_body_t *body)
{
    u_char     hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t  rc;

    rc = NGX_DECLINED;

    if (body->form) {
        rc = ngx_http_idem_form_done(body->form, body->hash);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        ngx_http_idem_form_destroy(body->form);
        body->form = NULL;
    }

    if (body->json) {
        switch (ngx_http_idem_json_done(body->json, hash)) {

        case NGX_ERROR:
            return NGX_ERROR;

        case NGX_OK:
            body->parsed = 1;

            if (body->kind == NGX_HTTP_IDEM_FINGERPRINT_JSON) {
                ngx_memcpy(body->hash, hash, sizeof(hash));
                rc = NGX_OK;
            }

            break;

        default: /* NGX_DECLINED */
            break;
        }
    }

    if (rc != NGX_OK) {
        body->kind = NGX_HTTP_IDEM_FINGERPRINT_RAW;
    }

    return NGX_OK;
}


void
ngx_http_idem_body_cleanup(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_body_t  *body;

    body = &ctx->body;

    ngx_http_idem_turn_cancel(body->turn);

    if (body->json) {
        ngx_http_idem_json_destroy(body->json);
        body->json = NULL;
    }

    if (body->form) {
        ngx_http_idem_form_destroy(body->form);
        body->form = NULL;
    }
}


void
ngx_http_idem_body_feed(ngx_http_idem_body_t *body, u_char *p, size_t len)
{
    if (len == 0) {
        return;
    }

    if (body->multipart) {
        ngx_http_idem_multipart_feed(body->multipart, p, len);

    } else {
        ngx_http_idem_digest_update(body->digest, p, len);
    }

    if (body->json) {
        (void) ngx_http_idem_json_feed(body->json, p, len);
    }

    if (body->form) {
        (void) ngx_http_idem_form_feed(body->form, p, len);
    }
}


static void
ngx_http_idem_body_multipart_update(void *data, const u_char *p, size_t len)
{
    ngx_http_idem_digest_update(data, p, len);
}
