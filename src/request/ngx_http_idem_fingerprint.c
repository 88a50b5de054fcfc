
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The fingerprint and the identity of a request.  All fields are hashed with
 * their lengths.
 *
 * The identity is evaluated here and not earlier, since an access check may
 * set its variables.  Called when the covers of a request are computed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "canonical/ngx_http_idem_url.h"


/*
 * What COPY and MOVE (RFC 4918) do depends on their header, too.  Such
 * fingerprints have a scheme of their own, so that records of versions that
 * ignored the header are compared by their target.
 */
#define NGX_HTTP_IDEM_SCHEME_TRANSFER  0x44415631      /* "DAV1" */

#define ngx_http_idem_is_transfer(r)                                          \
    ((r)->method & (NGX_HTTP_COPY|NGX_HTTP_MOVE))


static void ngx_http_idem_transfer_digest(ngx_http_request_t *r, u_char *hash);
static ngx_int_t ngx_http_idem_media_type(ngx_http_request_t *r,
    ngx_str_t *type);
static u_char *ngx_http_idem_media_part(u_char **text, u_char *last,
    u_char *out, ngx_uint_t first);


/* headers of COPY and MOVE that count, in lower case */

static ngx_str_t  ngx_http_idem_transfer_headers[] = {
    ngx_string("destination"),
    ngx_string("overwrite"),
    ngx_string("depth")
};

#define NGX_HTTP_IDEM_TRANSFER_HEADERS                                        \
    (sizeof(ngx_http_idem_transfer_headers) / sizeof(ngx_str_t))


/*
 * Hashes the identity.  The hash is computed for each request and its values
 * are not kept.  The hash of an empty identity is constant for a location and
 * is cached.
 */

ngx_int_t
ngx_http_idem_identity(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf, u_char *hash)
{
    ngx_str_t                value;
    ngx_uint_t               i, n, empty;
    ngx_http_idem_digest_t   d;
    ngx_http_idem_value_t   *part;

    part = conf->identity->elts;
    n = conf->identity->nelts;

    /* skip leading empty values */

    value.len = 0;

    for (empty = 0; empty < n; empty++) {

        if (ngx_http_idem_value(r, &part[empty], &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len) {
            break;
        }
    }

    if (empty == n && conf->nobody_known) {
        ngx_memcpy(hash, conf->nobody, NGX_HTTP_IDEM_HASH_LEN);
        return NGX_OK;
    }

    ngx_http_idem_digest_start(&d);

    for (i = 0; i < n; i++) {

        if (i > empty && ngx_http_idem_value(r, &part[i], &value) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_http_idem_digest_field(&d, value.data,
                                   (i < empty) ? 0 : value.len);
    }

    ngx_http_idem_digest_done(&d, hash);

    if (empty == n) {
        ngx_memcpy(conf->nobody, hash, NGX_HTTP_IDEM_HASH_LEN);
        conf->nobody_known = 1;
    }

    return NGX_OK;
}


/*
 * Computes the fingerprint.  With "idempotency_fingerprint off" it consists
 * of the identity only; "whole" includes the request even then, for a derived
 * key.
 */

ngx_int_t
ngx_http_idem_fingerprint(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t whole, u_char *identity, u_char *hash)
{
    u_char      kind, transfer[NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t   fields[8];
    ngx_uint_t  n;

    fields[0].data = identity;
    fields[0].len = NGX_HTTP_IDEM_HASH_LEN;

    if (ctx->conf->fingerprint->mode == NGX_HTTP_IDEM_FINGERPRINT_OFF
        && !whole)
    {
        ngx_http_idem_digest_fields(hash, fields, 1);
        return NGX_OK;
    }

    fields[1] = r->method_name;
    fields[2] = r->headers_in.server;
    fields[3] = r->unparsed_uri;

    if (ngx_http_idem_media_type(r, &fields[4]) != NGX_OK) {
        return NGX_ERROR;
    }

    /* a raw body must not match a parsed one */

    kind = (u_char) ctx->body.kind;

    fields[5].data = &kind;
    fields[5].len = 1;

    fields[6].data = ctx->body.hash;
    fields[6].len = NGX_HTTP_IDEM_HASH_LEN;

    n = 7;

    if (ngx_http_idem_is_transfer(r)) {
        ngx_http_idem_transfer_digest(r, transfer);

        fields[n].data = transfer;
        fields[n++].len = NGX_HTTP_IDEM_HASH_LEN;
    }

    ngx_http_idem_digest_fields(hash, fields, n);

    return NGX_OK;
}


/* the scheme of the location, changed for requests whose header counts */

uint32_t
ngx_http_idem_request_scheme(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (ngx_http_idem_is_transfer(r)
        && ctx->conf->fingerprint->mode != NGX_HTTP_IDEM_FINGERPRINT_OFF)
    {
        return ctx->conf->scheme ^ NGX_HTTP_IDEM_SCHEME_TRANSFER;
    }

    return ctx->conf->scheme;
}


/* hashes every occurrence in order: the server decides which one it uses */

static void
ngx_http_idem_transfer_digest(ngx_http_request_t *r, u_char *hash)
{
    ngx_str_t               *name;
    ngx_uint_t               i, k;
    ngx_list_part_t         *part;
    ngx_table_elt_t         *h;
    ngx_http_idem_digest_t   d;

    ngx_http_idem_digest_start(&d);

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            for (k = 0; k < NGX_HTTP_IDEM_TRANSFER_HEADERS; k++) {
                name = &ngx_http_idem_transfer_headers[k];

                if (h[i].hash && h[i].key.len == name->len
                    && ngx_strncasecmp(h[i].key.data, name->data, name->len)
                       == 0)
                {
                    ngx_http_idem_digest_field(&d, name->data, name->len);
                    ngx_http_idem_digest_field(&d, h[i].value.data,
                                               h[i].value.len);
                }
            }
        }
    }

    ngx_http_idem_digest_done(&d, hash);
}


/*
 * Hashes the operation without its body.  It can be compared between
 * fingerprints that were made by different schemes.
 */

void
ngx_http_idem_target(ngx_http_request_t *r, u_char *target)
{
    u_char     hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t  fields[3];

    static ngx_http_idem_digest_memo_t  memo;

    fields[0] = r->method_name;
    fields[1] = r->headers_in.server;
    fields[2] = r->unparsed_uri;

    ngx_http_idem_digest_again(&memo, hash, fields, 3);

    ngx_memcpy(target, hash, NGX_HTTP_IDEM_TARGET_LEN);
}


/*
 * Normalizes the media type: names in lower case, no white space around
 * parameters, and no boundary, which differs for each try.
 */

static ngx_int_t
ngx_http_idem_media_type(ngx_http_request_t *r, ngx_str_t *type)
{
    u_char     *p, *last, *out;
    ngx_str_t  *value;

    ngx_str_null(type);

    if (r->headers_in.content_type == NULL) {
        return NGX_OK;
    }

    value = &r->headers_in.content_type->value;

    p = value->data;
    last = p + value->len;

    /* fast path: lower case and without parameters */

    while (p < last && *p > ' ' && *p != ';' && *p != '"'
           && (*p < 'A' || *p > 'Z'))
    {
        p++;
    }

    if (p == last) {
        *type = *value;
        return NGX_OK;
    }

    type->data = ngx_pnalloc(r->pool, value->len + 1);
    if (type->data == NULL) {
        return NGX_ERROR;
    }

    out = type->data;
    p = value->data;

    while (p < last) {
        out = ngx_http_idem_media_part(&p, last, out, out == type->data);
    }

    type->len = out - type->data;

    return NGX_OK;
}


/* the type itself, or a parameter; "text" advances behind its semicolon */

static u_char *
ngx_http_idem_media_part(u_char **text, u_char *last, u_char *out,
    ngx_uint_t first)
{
    u_char      *p, *start;
    ngx_uint_t   quoted, name;

    p = *text;

    while (p < last && (*p == ' ' || *p == '\t')) {
        p++;
    }

    start = out;
    quoted = 0;
    name = 1;

    if (!first) {
        *out++ = ';';
    }

    for ( /* void */ ; p < last && (quoted || *p != ';'); p++) {

        if (*p == '"') {
            quoted = !quoted;

        } else if (*p == '=') {
            name = first;
        }

        *out++ = name ? ngx_tolower(*p) : *p;
    }

    while (out > start && (out[-1] == ' ' || out[-1] == '\t')) {
        out--;
    }

    *text = p + 1;

    if (!first
        && (out - start == 1
            || (out - start > 10
                && ngx_strncmp(start + 1, "boundary=", 9) == 0)))
    {
        return start;
    }

    return out;
}


/* hashes a normalized URL; NGX_DECLINED if the member is not a valid URL */

ngx_int_t
ngx_http_idem_url_digest(ngx_http_request_t *r, ngx_http_idem_dedupe_t *dedupe,
    const ngx_http_idem_json_member_t *member, u_char *hash)
{
    size_t      len;
    u_char     *buf;
    ngx_str_t  *args, fields[2];

    len = member->value.len;

    if (len > NGX_HTTP_IDEM_URL_MAX) {
        return NGX_DECLINED;
    }

    buf = ngx_pnalloc(r->pool, ngx_http_idem_url_room(len));
    args = ngx_palloc(r->pool,
                      ngx_http_idem_url_args(len) * sizeof(ngx_str_t));

    if (buf == NULL || args == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_idem_url_normalize(&member->value,
                                    dedupe->strip ? dedupe->strip->elts : NULL,
                                    dedupe->strip ? dedupe->strip->nelts : 0,
                                    args, buf, &fields[1])
        != NGX_OK)
    {
        return NGX_DECLINED;
    }

    ngx_str_set(&fields[0], "url");

    ngx_http_idem_digest_fields(hash, fields, 2);

    return NGX_OK;
}
