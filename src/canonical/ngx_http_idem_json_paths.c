
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Collects the paths of a JSON document and writes their stored form, which
 * json_paths.h describes.  Called by json_walk.c; json_diff.c reads it.
 */


#include "ngx_http_idem_number.h"
#include "canonical/ngx_http_idem_json_paths.h"


static void ngx_http_idem_json_paths_push(
    ngx_http_idem_json_paths_t *pp, const u_char *p, size_t len);
static void ngx_http_idem_json_paths_hash(ngx_http_idem_json_paths_t *pp,
    const ngx_str_t *value, u_char *digest);
static ngx_int_t ngx_http_idem_json_paths_sort(
    ngx_http_idem_json_paths_t *pp);
static void ngx_http_idem_json_paths_head(ngx_http_idem_json_paths_t *pp);
static size_t ngx_http_idem_json_paths_entry(
    ngx_http_idem_json_paths_t *pp, const u_char *p);
static int ngx_http_idem_json_paths_cmp(const void *one, const void *two);


/* bytes of the hash that stands for a value */
#define NGX_HTTP_IDEM_JSON_REDACTED  4


void
ngx_http_idem_json_paths_init(ngx_http_idem_json_paths_t *pp,
    const ngx_http_idem_json_options_t *options)
{
    ngx_memzero(pp, sizeof(ngx_http_idem_json_paths_t));

    pp->secret = options->secret;
    pp->max = ngx_min(options->paths, 0xffff);
    pp->max_size = options->paths_size;
    pp->values = (options->detail == NGX_HTTP_IDEM_JSON_DETAIL_VALUES);

    pp->len = NGX_HTTP_IDEM_JSON_PATHS_HEAD;
}


void
ngx_http_idem_json_paths_name(ngx_http_idem_json_paths_t *pp,
    size_t parent, const u_char *p, size_t len)
{
    size_t  i, start;

    pp->path_len = parent;
    ngx_http_idem_json_paths_push(pp, (u_char *) "/", 1);

    start = 0;

    for (i = 0; i < len; i++) {

        if (p[i] != '~' && p[i] != '/') {
            continue;
        }

        ngx_http_idem_json_paths_push(pp, p + start, i - start);
        ngx_http_idem_json_paths_push(pp,
                                   (u_char *) (p[i] == '~' ? "~0" : "~1"), 2);
        start = i + 1;
    }

    ngx_http_idem_json_paths_push(pp, p + start, len - start);
}


static void
ngx_http_idem_json_paths_push(ngx_http_idem_json_paths_t *pp,
    const u_char *p, size_t len)
{
    if (pp->path_len == NGX_HTTP_IDEM_JSON_PATH_LOST) {
        return;
    }

    if (len > NGX_HTTP_IDEM_JSON_PATH_MAX - pp->path_len) {
        pp->path_len = NGX_HTTP_IDEM_JSON_PATH_LOST;
        return;
    }

    ngx_memcpy(pp->path + pp->path_len, p, len);
    pp->path_len += len;
}


void
ngx_http_idem_json_paths_text(ngx_http_idem_json_paths_t *pp,
    const u_char *p, size_t len)
{
    if (!pp->values || pp->text_cut) {
        return;
    }

    if (len > NGX_HTTP_IDEM_JSON_TEXT_MAX - pp->text_len) {
        len = NGX_HTTP_IDEM_JSON_TEXT_MAX - pp->text_len;
        pp->text_cut = 1;

        /* not within a character */

        while (len && (p[len] & 0xc0) == 0x80) {
            len--;
        }
    }

    ngx_memcpy(pp->text + pp->text_len, p, len);
    pp->text_len += len;
}


void
ngx_http_idem_json_paths_string(ngx_http_idem_json_paths_t *pp,
    const u_char *p, size_t len)
{
    u_char         escape[6];
    size_t         i, start, n;
    static u_char  hex[] = "0123456789abcdef";

    if (!pp->values) {
        return;
    }

    ngx_http_idem_json_paths_text(pp, (u_char *) "\"", 1);

    start = 0;

    for (i = 0; i < len && !pp->text_cut; i++) {

        if (p[i] >= 0x20 && p[i] != '"' && p[i] != '\\') {
            continue;
        }

        ngx_http_idem_json_paths_text(pp, p + start, i - start);
        start = i + 1;

        escape[0] = '\\';
        escape[1] = p[i];
        n = 2;

        if (p[i] < 0x20) {
            ngx_memcpy(&escape[1], "u00", 3);
            escape[4] = hex[p[i] >> 4];
            escape[5] = hex[p[i] & 0xf];
            n = 6;
        }

        ngx_http_idem_json_paths_text(pp, escape, n);
    }

    ngx_http_idem_json_paths_text(pp, p + start, len - start);
    ngx_http_idem_json_paths_text(pp, (u_char *) "\"", 1);
}


void
ngx_http_idem_json_paths_redacted(ngx_http_idem_json_paths_t *pp,
    const u_char *p, size_t len)
{
    u_char  text[2 * NGX_HTTP_IDEM_JSON_REDACTED + 3];
    u_char  digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
    size_t  i;

    static u_char  hex[] = "0123456789abcdef";

    ngx_http_idem_digest_plain(digest, p, len);

    for (i = 0; i < NGX_HTTP_IDEM_JSON_REDACTED; i++) {
        text[2 * i] = hex[digest[i] >> 4];
        text[2 * i + 1] = hex[digest[i] & 0xf];
    }

    ngx_memcpy(&text[2 * i], "***", 3);

    ngx_http_idem_json_paths_string(pp, text, sizeof(text));
}


ngx_int_t
ngx_http_idem_json_paths_add(ngx_http_idem_json_paths_t *pp,
    const ngx_str_t *value)
{
    u_char  *p, digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
    size_t   size, text_len, text_cut;

    text_len = pp->text_len;
    text_cut = pp->text_cut;

    pp->text_len = 0;
    pp->text_cut = 0;

    if (pp->path_len == NGX_HTTP_IDEM_JSON_PATH_LOST || pp->n == pp->max) {
        pp->cut = 1;
        return NGX_OK;
    }

    size = 2 + pp->path_len + NGX_HTTP_IDEM_JSON_PATHS_HASH;

    if (pp->values) {
        size += 1 + 2 + text_len;
    }

    if (pp->len + size > pp->max_size) {
        pp->cut = 1;
        return NGX_OK;
    }

    if (ngx_http_idem_canon_grow(&pp->buf, pp->len, &pp->size, size) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_idem_json_paths_hash(pp, value, digest);

    p = pp->buf + pp->len;

    p = ngx_http_idem_put16(p, pp->path_len);
    p = ngx_cpymem(p, pp->path, pp->path_len);
    p = ngx_cpymem(p, digest, NGX_HTTP_IDEM_JSON_PATHS_HASH);

    if (pp->values) {
        *p++ = (u_char) text_cut;
        p = ngx_http_idem_put16(p, text_len);
        ngx_memcpy(p, pp->text, text_len);
    }

    pp->len += size;
    pp->n++;

    return NGX_OK;
}


static void
ngx_http_idem_json_paths_hash(ngx_http_idem_json_paths_t *pp,
    const ngx_str_t *value, u_char *digest)
{
    u_char                  len[2];
    ngx_http_idem_digest_t  d;

    ngx_http_idem_put16(len, pp->path_len);

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, pp->secret,
                                NGX_HTTP_IDEM_JSON_SECRET_LEN);
    ngx_http_idem_digest_update(&d, len, sizeof(len));
    ngx_http_idem_digest_update(&d, pp->path, pp->path_len);
    ngx_http_idem_digest_update(&d, value->data, value->len);
    ngx_http_idem_digest_done(&d, digest);
}


ngx_int_t
ngx_http_idem_json_paths_done(ngx_http_idem_json_paths_t *pp)
{
    /* not even room for the head: this is a list too, of nothing */

    if (ngx_http_idem_canon_grow(&pp->buf, pp->len, &pp->size, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_idem_json_paths_head(pp);

    return (pp->n > 1) ? ngx_http_idem_json_paths_sort(pp) : NGX_OK;
}


static ngx_int_t
ngx_http_idem_json_paths_sort(ngx_http_idem_json_paths_t *pp)
{
    u_char      *p, *sorted, **entries;
    ngx_uint_t   i;

    entries = ngx_http_idem_canon_alloc(pp->n * sizeof(u_char *));
    if (entries == NULL) {
        return NGX_ERROR;
    }

    sorted = ngx_http_idem_canon_alloc(pp->len);
    if (sorted == NULL) {
        ngx_http_idem_canon_free(entries);
        return NGX_ERROR;
    }

    p = pp->buf + NGX_HTTP_IDEM_JSON_PATHS_HEAD;

    for (i = 0; i < pp->n; i++) {
        entries[i] = p;
        p += ngx_http_idem_json_paths_entry(pp, p);
    }

    ngx_qsort(entries, pp->n, sizeof(u_char *), ngx_http_idem_json_paths_cmp);

    p = ngx_cpymem(sorted, pp->buf, NGX_HTTP_IDEM_JSON_PATHS_HEAD);

    for (i = 0; i < pp->n; i++) {
        p = ngx_cpymem(p, entries[i],
                       ngx_http_idem_json_paths_entry(pp, entries[i]));
    }

    ngx_http_idem_canon_free(entries);
    ngx_http_idem_canon_free(pp->buf);

    pp->buf = sorted;
    pp->size = pp->len;

    return NGX_OK;
}


static void
ngx_http_idem_json_paths_head(ngx_http_idem_json_paths_t *pp)
{
    u_char                  *p, digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
    ngx_http_idem_digest_t   d;

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, "id of the secret", 16);
    ngx_http_idem_digest_update(&d, pp->secret,
                                NGX_HTTP_IDEM_JSON_SECRET_LEN);
    ngx_http_idem_digest_done(&d, digest);

    p = pp->buf;

    *p++ = NGX_HTTP_IDEM_JSON_PATHS_VERSION;
    *p++ = (u_char)
           ((pp->values ? NGX_HTTP_IDEM_JSON_PATHS_VALUES : 0)
            | (pp->cut ? NGX_HTTP_IDEM_JSON_PATHS_CUT : 0));
    p = ngx_http_idem_put16(p, pp->n);

    ngx_memcpy(p, digest, NGX_HTTP_IDEM_JSON_PATHS_ID);
}


/* the length of our own entry at p */

static size_t
ngx_http_idem_json_paths_entry(ngx_http_idem_json_paths_t *pp,
    const u_char *p)
{
    size_t  len;

    len = 2 + ngx_http_idem_get16(p) + NGX_HTTP_IDEM_JSON_PATHS_HASH;

    if (pp->values) {
        len++;
        len += 2 + ngx_http_idem_get16(p + len);
    }

    return len;
}


static int
ngx_http_idem_json_paths_cmp(const void *one, const void *two)
{
    int      rc;
    u_char  *p1, *p2;

    p1 = *(u_char **) one;
    p2 = *(u_char **) two;

    rc = ngx_http_idem_canon_cmp(p1 + 2, ngx_http_idem_get16(p1),
                                 p2 + 2, ngx_http_idem_get16(p2));

    /* the same path twice: the order they came in */

    return rc ? rc : (p1 < p2) ? -1 : (p1 > p2);
}
