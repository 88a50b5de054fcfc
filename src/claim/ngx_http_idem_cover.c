
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Cover: derives the records that cover a request, from its key and from the
 * rules of idempotency_dedupe.
 *
 * Scope and identity are evaluated here and not earlier, since an access
 * check may set their variables.  Called once the body was read; begin then
 * acquires the records.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* the scheme of derived records: the id includes the fingerprint */
#define NGX_HTTP_IDEM_SCHEME_DERIVED  1


static ngx_int_t ngx_http_idem_cover_key(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *scope, u_char *identity,
    ngx_http_idem_cover_t *cover);
static ngx_int_t ngx_http_idem_cover_derived(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_dedupe_t *dedupe,
    ngx_str_t *scope, u_char *identity, ngx_http_idem_cover_t *cover);
static ngx_int_t ngx_http_idem_cover_members(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_dedupe_t *dedupe,
    ngx_http_idem_digest_t *d);
static ngx_uint_t ngx_http_idem_cover_again(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover);
static void ngx_http_idem_cover_sort(ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_cover_stored(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/* sets ctx->claims.ncovers to 0 if no record covers the request */

ngx_int_t
ngx_http_idem_cover(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                   identity[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t                rc;
    ngx_str_t                scope;
    ngx_uint_t               i, n;
    ngx_http_idem_cover_t   *cover;
    ngx_http_idem_dedupe_t  *dedupe;

    dedupe = ctx->conf->dedupe ? ctx->conf->dedupe->elts : NULL;
    n = ctx->conf->dedupe ? ctx->conf->dedupe->nelts : 0;

    ctx->claims.covers = ngx_pcalloc(r->pool,
                                     (n + 1) * sizeof(ngx_http_idem_cover_t));
    if (ctx->claims.covers == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_idem_value(r, ctx->conf->scope, &scope) != NGX_OK
        || ngx_http_idem_identity(r, ctx->conf, identity) != NGX_OK
        || (ctx->conf->activity
            && ngx_http_idem_activity_read(r, ctx, &scope, identity)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    cover = ctx->claims.covers;

    if (ctx->key.len) {
        if (ngx_http_idem_cover_key(r, ctx, &scope, identity, cover)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        cover++;
    }

    for (i = 0; i < n; i++) {

        if (ctx->key.len
            && !ngx_http_idem_flag(r, &dedupe[i].always,
                                   "idempotency_dedupe"))
        {
            continue;
        }

        rc = ngx_http_idem_cover_derived(r, ctx, &dedupe[i], &scope,
                                         identity, cover);
        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_OK && !ngx_http_idem_cover_again(ctx, cover)) {
            cover->ctx = ctx;
            cover++;
        }
    }

    ctx->claims.ncovers = cover - ctx->claims.covers;

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        ngx_memcpy(cover->claim.identity, identity,
                   NGX_HTTP_IDEM_IDENTITY_LEN);
        cover->claim.time = ngx_http_idem_history_now()
                            - (ngx_current_msec - ctx->arrival);
    }

    ngx_http_idem_cover_sort(ctx);

    return ngx_http_idem_cover_stored(r, ctx);
}


static ngx_int_t
ngx_http_idem_cover_key(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *scope, u_char *identity, ngx_http_idem_cover_t *cover)
{
    ngx_str_t  fields[2];

    cover->ctx = ctx;
    cover->claim.scheme = ngx_http_idem_request_scheme(r, ctx);

    if (ctx->body.parsed) {
        ngx_http_idem_json_paths(ctx->body.json, &cover->details);
    }

    fields[0] = *scope;
    fields[1] = ctx->key;

    ngx_http_idem_digest_fields(cover->id, fields, 2);
    ngx_http_idem_target(r, cover->claim.target);

    return ngx_http_idem_fingerprint(r, ctx, 0, identity,
                                     cover->claim.fingerprint);
}


/*
 * NGX_DECLINED if the rule does not apply: the body lacks the members, or the
 * window is 0.
 */

static ngx_int_t
ngx_http_idem_cover_derived(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_dedupe_t *dedupe,
    ngx_str_t *scope, u_char *identity, ngx_http_idem_cover_t *cover)
{
    u_char                  whole[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t               rc;
    ngx_http_idem_digest_t  d;

    cover->window = ngx_http_idem_time(r, &dedupe->window,
                                       "idempotency_dedupe");
    if (cover->window == 0) {
        return NGX_DECLINED;
    }

    cover->linger = ngx_http_idem_time(r, &dedupe->linger,
                                       "idempotency_dedupe");

    if (dedupe->members == NULL
        && ngx_http_idem_fingerprint(r, ctx, 1, identity, whole)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_idem_digest_start(&d);

    /* At least three fields, while the id of a key has two: the ids differ */

    ngx_http_idem_digest_field(&d, dedupe->name.data, dedupe->name.len);
    ngx_http_idem_digest_field(&d, scope->data, scope->len);
    ngx_http_idem_digest_field(&d, identity, NGX_HTTP_IDEM_HASH_LEN);

    if (dedupe->members) {
        rc = ngx_http_idem_cover_members(r, ctx, dedupe, &d);

        if (rc != NGX_OK) {
            return rc;
        }

    } else {
        ngx_http_idem_digest_field(&d, whole, sizeof(whole));
    }

    ngx_http_idem_digest_done(&d, cover->id);

    ngx_memcpy(cover->claim.fingerprint, cover->id,
               NGX_HTTP_IDEM_FINGERPRINT_LEN);

    cover->claim.scheme = NGX_HTTP_IDEM_SCHEME_DERIVED;

    if (ctx->key.len) {
        /* of no other use here: the record of the key that it stands beside */
        ngx_memcpy(cover->claim.target, ctx->claims.covers->id,
                   NGX_HTTP_IDEM_TARGET_LEN);
    }

    cover->derived = 1;
    cover->dedupe = dedupe;
    cover->reject = ngx_http_idem_flag(r, &dedupe->reject,
                                       "idempotency_dedupe");

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_cover_members(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_dedupe_t *dedupe, ngx_http_idem_digest_t *d)
{
    u_char                              hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_int_t                           rc;
    ngx_str_t                          *name;
    ngx_uint_t                          i, n;
    const ngx_http_idem_json_member_t  *member;

    if (!ctx->body.parsed) {
        return NGX_DECLINED;
    }

    n = 0;
    name = dedupe->members->elts;

    for (i = 0; i < dedupe->members->nelts; i++) {
        member = ngx_http_idem_json_named(ctx->body.json, &name[i]);

        /* which of two equal members the application reads is unknown */

        if (member->count > 1) {
            return NGX_DECLINED;
        }

        if (member->kind == NGX_HTTP_IDEM_JSON_NONE) {
            ngx_http_idem_digest_field(d, (u_char *) "", 0);
            continue;
        }

        rc = NGX_DECLINED;

        if (dedupe->url && member->kind == NGX_HTTP_IDEM_JSON_STRING) {
            rc = ngx_http_idem_url_digest(r, dedupe, member, hash);

            if (rc == NGX_ERROR) {
                return NGX_ERROR;
            }
        }

        ngx_http_idem_digest_field(d, rc == NGX_OK ? hash : member->digest,
                                   NGX_HTTP_IDEM_CANON_DIGEST_LEN);
        n++;
    }

    return n ? NGX_OK : NGX_DECLINED;
}


/*
 * Whether an earlier rule derives the same record: two rules of one name, or
 * with and without "normalize".  The request would wait for its own lock.  The
 * longer times count, and what else the earlier rule says.
 */

static ngx_uint_t
ngx_http_idem_cover_again(ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_cover_t *cover)
{
    ngx_http_idem_cover_t  *other;

    for (other = ctx->claims.covers; other < cover; other++) {

        if (ngx_memcmp(other->id, cover->id, NGX_HTTP_IDEM_ID_LEN) == 0) {
            other->window = ngx_max(other->window, cover->window);
            other->linger = ngx_max(other->linger, cover->linger);

            return 1;
        }
    }

    return 0;
}


static void
ngx_http_idem_cover_sort(ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t              i, k;
    ngx_http_idem_cover_t  *covers, cover;

    /* there are few covers, and nothing points to them yet */

    covers = ctx->claims.covers;

    for (i = 1; i < ctx->claims.ncovers; i++) {
        for (k = i;
             k > 0
             && ngx_memcmp(covers[k - 1].id, covers[k].id,
                           NGX_HTTP_IDEM_ID_LEN) > 0;
             k--)
        {
            cover = covers[k];
            covers[k] = covers[k - 1];
            covers[k - 1] = cover;
        }
    }

    /* the cover of the key has no rule: NULL sorts before all rules */

    ctx->claims.primary = covers;

    for (i = 1; i < ctx->claims.ncovers; i++) {
        if (covers[i].dedupe < ctx->claims.primary->dedupe) {
            ctx->claims.primary = &covers[i];
        }
    }
}


/*
 * What is stored with the records of a request: labels, that is group, tenant,
 * actor and the name of this host, and the details of the body.  Labels are
 * stored only if the configuration asks for them, see
 * ngx_http_idem_has_labels().  If another location may get the same request,
 * the details have the place in front.
 */

static ngx_int_t
ngx_http_idem_cover_stored(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                 *p, hex[2 * NGX_HTTP_IDEM_HASH_LEN];
    size_t                  size, mark;
    ngx_str_t               labels[NGX_HTTP_IDEM_LABEL_N];
    ngx_uint_t              i, elsewhere;
    ngx_http_idem_cover_t  *cover;

    elsewhere = ngx_http_idem_is_redirected(r)
                || ngx_http_idem_places_stored(r);

    if (!elsewhere && !ctx->conf->labels) {
        return NGX_OK;
    }

    ngx_memzero(labels, sizeof(labels));

    if (ctx->conf->labels) {
        if (ngx_http_idem_cover_owner(r, ctx, labels, hex) != NGX_OK) {
            return NGX_ERROR;
        }

        labels[NGX_HTTP_IDEM_LABEL_GROUP] =
            ngx_http_idem_metrics_group_name(ngx_http_idem_group(ctx));
        labels[NGX_HTTP_IDEM_LABEL_HOST] = ngx_cycle->hostname;
    }

    size = ngx_http_idem_labels_size(labels);

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        mark = (elsewhere && cover->details.len)
               ? NGX_HTTP_IDEM_DETAILS_HEAD : 0;

        if (size + mark == 0) {
            continue;
        }

        cover->stored.len = size + mark + cover->details.len;
        cover->stored.data = ngx_pnalloc(r->pool, cover->stored.len);

        if (cover->stored.data == NULL) {
            return NGX_ERROR;
        }

        p = ngx_http_idem_labels_encode(cover->stored.data, labels);

        if (mark) {
            p = ngx_http_idem_details_mark(r, p);
        }

        ngx_memcpy(p, cover->details.data, cover->details.len);
    }

    return NGX_OK;
}


ngx_http_idem_layer_e
ngx_http_idem_cover_layer(ngx_http_idem_cover_t *cover)
{
    if (!cover->derived) {
        return NGX_HTTP_IDEM_LAYER_KEY;
    }

    return cover->dedupe->members ? NGX_HTTP_IDEM_LAYER_JSON
                                  : NGX_HTTP_IDEM_LAYER_BODY;
}


/* tenant and actor; "hex" has room for the hash of an actor */

ngx_int_t
ngx_http_idem_cover_owner(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_str_t *labels, u_char *hex)
{
    u_char      hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t  *actor, *tenant;

    actor = &labels[NGX_HTTP_IDEM_LABEL_ACTOR];
    tenant = &labels[NGX_HTTP_IDEM_LABEL_TENANT];

    if (ctx->conf->tenant
        && (ngx_http_idem_value(r, ctx->conf->tenant, tenant) != NGX_OK
            || ngx_http_idem_label_bounded(r->pool, tenant) != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (ctx->conf->actor
        && ngx_http_idem_value(r, ctx->conf->actor, actor) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (actor->len && ctx->conf->actor_plain) {
        return ngx_http_idem_label_bounded(r->pool, actor);
    }

    if (actor->len) {
        ngx_http_idem_digest_plain(hash, actor->data, actor->len);

        actor->data = hex;
        actor->len = ngx_hex_dump(hex, hash, sizeof(hash)) - hex;
    }

    return NGX_OK;
}


/*
 * A label that is too long for a record becomes its hash.  Cut, two tenants
 * with the same beginning would be one, and a deletion would take the records
 * of both.  So does one that looks like such a hash.
 */

ngx_int_t
ngx_http_idem_label_bounded(ngx_pool_t *pool, ngx_str_t *label)
{
    u_char  *p, hash[NGX_HTTP_IDEM_HASH_LEN];

    static ngx_str_t  mark = ngx_string("sha256:");

    if (label->len <= NGX_HTTP_IDEM_LABEL_MAX
        && (label->len < mark.len
            || ngx_strncmp(label->data, mark.data, mark.len) != 0))
    {
        return NGX_OK;
    }

    p = ngx_pnalloc(pool, mark.len + 2 * sizeof(hash));
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idem_digest_plain(hash, label->data, label->len);

    label->data = p;
    p = ngx_cpymem(p, mark.data, mark.len);
    label->len = ngx_hex_dump(p, hash, sizeof(hash)) - label->data;

    return NGX_OK;
}
