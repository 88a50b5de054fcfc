
/*
 * What a request is, in hashes: the id of its record, its fingerprint, and
 * who asks.  Every string goes in with its length.
 *
 * Scope and identity are evaluated here and not before: they may be what an
 * access check has set.  Called once the body is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"


static ngx_int_t ngx_http_idempotency_record_id(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, u_char *hash);
static ngx_int_t ngx_http_idempotency_fingerprint(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, u_char *identity);
static ngx_int_t ngx_http_idempotency_media_type(ngx_http_request_t *r,
    ngx_str_t *type);


ngx_int_t
ngx_http_idempotency_identify(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    u_char       identity[NGX_HTTP_IDEMPOTENCY_HASH_LEN];
    ngx_time_t  *tp;

    if (ngx_http_idempotency_record_id(r, ctx) != NGX_OK
        || ngx_http_idempotency_identity(r, ctx, identity) != NGX_OK
        || ngx_http_idempotency_fingerprint(r, ctx, identity) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(ctx->claim.identity, identity,
               NGX_HTTP_IDEMPOTENCY_IDENTITY_LEN);

    tp = ngx_timeofday();

    ctx->claim.scheme = ctx->conf->scheme;
    ctx->claim.time = (uint64_t) tp->sec * 1000 + tp->msec
                      - (ngx_current_msec - ctx->arrival);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idempotency_record_id(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t  fields[2];

    if (ngx_http_complex_value(r, ctx->conf->scope, &fields[0]) != NGX_OK) {
        return NGX_ERROR;
    }

    fields[1] = ctx->key;

    return ngx_http_idempotency_digest_fields(ctx->id, fields, 2);
}


static ngx_int_t
ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, u_char *hash)
{
    ngx_str_t                  value;
    ngx_uint_t                 i;
    EVP_MD_CTX                *md;
    ngx_http_complex_value_t  *cv;

    md = ngx_http_idempotency_digest_get();
    if (md == NULL) {
        return NGX_ERROR;
    }

    cv = ctx->conf->identity->elts;

    for (i = 0; i < ctx->conf->identity->nelts; i++) {

        if (ngx_http_complex_value(r, &cv[i], &value) != NGX_OK) {
            ngx_http_idempotency_digest_put(md);
            return NGX_ERROR;
        }

        ngx_http_idempotency_digest_field(md, value.data, value.len);
    }

    ngx_http_idempotency_digest_done(md, hash);

    return NGX_OK;
}


/*
 * With "idempotency_fingerprint off" the key alone decides what a request is;
 * who asks still counts.
 */

static ngx_int_t
ngx_http_idempotency_fingerprint(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, u_char *identity)
{
    ngx_str_t  fields[6];

    fields[0].data = identity;
    fields[0].len = NGX_HTTP_IDEMPOTENCY_HASH_LEN;

    if (ctx->conf->fingerprint == NGX_HTTP_IDEMPOTENCY_FINGERPRINT_OFF) {
        return ngx_http_idempotency_digest_fields(ctx->claim.fingerprint,
                                                  fields, 1);
    }

    fields[1] = r->method_name;
    fields[2] = r->headers_in.server;
    fields[3] = r->unparsed_uri;

    if (ngx_http_idempotency_media_type(r, &fields[4]) != NGX_OK) {
        return NGX_ERROR;
    }

    fields[5].data = ctx->body.hash;
    fields[5].len = NGX_HTTP_IDEMPOTENCY_HASH_LEN;

    return ngx_http_idempotency_digest_fields(ctx->claim.fingerprint, fields,
                                              6);
}


/*
 * The media type without white space around its parameters, its names in
 * lower case, and without a boundary: that is made anew for each try.
 */

static ngx_int_t
ngx_http_idempotency_media_type(ngx_http_request_t *r, ngx_str_t *type)
{
    u_char      *p, *last, *out, *start;
    ngx_str_t   *value;
    ngx_uint_t   quoted, name;

    ngx_str_null(type);

    if (r->headers_in.content_type == NULL) {
        return NGX_OK;
    }

    value = &r->headers_in.content_type->value;

    type->data = ngx_pnalloc(r->pool, value->len + 1);
    if (type->data == NULL) {
        return NGX_ERROR;
    }

    out = type->data;
    p = value->data;
    last = p + value->len;

    while (p < last) {

        /* a part: the type itself, or a parameter */

        while (p < last && (*p == ' ' || *p == '\t')) {
            p++;
        }

        start = out;
        quoted = 0;
        name = 1;

        if (start != type->data) {
            *out++ = ';';
        }

        for ( /* void */ ; p < last && (quoted || *p != ';'); p++) {

            if (*p == '"') {
                quoted = !quoted;

            } else if (*p == '=') {
                name = (start == type->data);
            }

            *out++ = name ? ngx_tolower(*p) : *p;
        }

        while (out > start && (out[-1] == ' ' || out[-1] == '\t')) {
            out--;
        }

        if (start != type->data
            && (out - start == 1
                || (out - start > 10
                    && ngx_strncmp(start + 1, "boundary=", 9) == 0)))
        {
            out = start;
        }

        p++;
    }

    type->len = out - type->data;

    return NGX_OK;
}


/* a number for the way in which fingerprints are made here */

uint32_t
ngx_http_idempotency_scheme(ngx_http_idempotency_loc_conf_t *conf)
{
    return (uint32_t) conf->fingerprint + 1;
}
