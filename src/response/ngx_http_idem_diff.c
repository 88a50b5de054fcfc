
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Differences: the paths of a JSON body that a conflict names
 * (idempotency_conflict_detail).
 *
 * The list of the original comes from the store and is not trusted: all its
 * texts are sent as JSON strings.  Called by the refusal; calls the
 * comparison of paths.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "canonical/ngx_http_idem_json_paths.h"
#include "ngx_http_idem_utf8.h"


#define NGX_HTTP_IDEM_DIFF_MAX  20


/* stands for a missing value in an array of strings */
#define NGX_HTTP_IDEM_DIFF_NONE  "(none)"


typedef struct {
    u_char                *last;
    ngx_uint_t             n;
    ngx_uint_t             values;
    ngx_http_idem_diff_e   form;
} ngx_http_idem_diff_t;


#define NGX_HTTP_IDEM_DIFF_ENTRY                                              \
    (ngx_http_idem_json_quoted(NGX_HTTP_IDEM_JSON_PATH_MAX)                   \
     + 2 * ngx_http_idem_json_quoted(                                         \
                                        NGX_HTTP_IDEM_JSON_TEXT_MAX)          \
     + sizeof("{\"path\":,\"change\":\"changed\",\"old\":,\"new\":},"))


static void ngx_http_idem_diff_entry(void *data,
    const ngx_http_idem_json_diff_t *diff);
static u_char *ngx_http_idem_diff_object(ngx_http_idem_diff_t *d, u_char *p,
    const ngx_http_idem_json_diff_t *diff);
static u_char *ngx_http_idem_diff_line(ngx_http_idem_diff_t *d,
    u_char *p, const ngx_http_idem_json_diff_t *diff);
static u_char *ngx_http_idem_diff_path(u_char *p, const ngx_str_t *path);
static u_char *ngx_http_idem_diff_value(u_char *p,
    const ngx_str_t *text, ngx_uint_t cut);
static u_char *ngx_http_idem_diff_text(u_char *p,
    const ngx_str_t *text, ngx_uint_t cut);
static u_char *ngx_http_idem_diff_beginning(u_char *p, const ngx_str_t *text);
static u_char *ngx_http_idem_diff_escape(u_char *p, const u_char *src,
    const u_char *last);


static const char  *ngx_http_idem_diff_changes[] = {
    "changed", "added", "removed"
};


/*
 * Sets "text" to a JSON array, or to an empty string if nothing can be named,
 * as for another identity's record.  The array is made once for a request.
 */

ngx_int_t
ngx_http_idem_diff(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_diff_e form, ngx_str_t *text, ngx_uint_t *more)
{
    u_char                *start;
    ngx_int_t              rc;
    ngx_http_idem_diff_t   d;

    *more = 0;
    *text = ctx->answer.diffs[form];

    if (text->data || ctx->answer.details.len == 0 || ctx->answer.undisclosed
        || ctx->claims.primary->details.len == 0)
    {
        return NGX_OK;
    }

    start = ngx_pnalloc(r->pool, NGX_HTTP_IDEM_DIFF_MAX
                                 * NGX_HTTP_IDEM_DIFF_ENTRY + 64);
    if (start == NULL) {
        return NGX_ERROR;
    }

    d.last = start;
    d.n = 0;
    d.form = form;
    d.values = (ctx->body.detail == NGX_HTTP_IDEM_JSON_DETAIL_VALUES);

    *d.last++ = '[';

    rc = ngx_http_idem_json_diff(&ctx->answer.details,
                                 &ctx->claims.primary->details,
                                 NGX_HTTP_IDEM_DIFF_MAX,
                                 ngx_http_idem_diff_entry, &d, more);

    text->data = start;

    if (rc == NGX_OK && d.n) {
        *d.last++ = ']';
        text->len = d.last - start;

    } else {
        text->len = 0;
        *more = 0;
    }

    ctx->answer.diffs[form] = *text;

    return NGX_OK;
}


static void
ngx_http_idem_diff_entry(void *data, const ngx_http_idem_json_diff_t *diff)
{
    ngx_http_idem_diff_t  *d = data;

    u_char  *p;

    p = d->last;

    if (d->n++) {
        *p++ = ',';
    }

    d->last = (d->form == NGX_HTTP_IDEM_DIFF_OBJECTS)
              ? ngx_http_idem_diff_object(d, p, diff)
              : ngx_http_idem_diff_line(d, p, diff);
}


static u_char *
ngx_http_idem_diff_object(ngx_http_idem_diff_t *d, u_char *p,
    const ngx_http_idem_json_diff_t *diff)
{
    p = ngx_cpymem(p, "{\"path\":", 8);
    p = ngx_http_idem_json_quote(p, &diff->path);
    p = ngx_sprintf(p, ",\"change\":\"%s\"",
                    ngx_http_idem_diff_changes[diff->change]);

    if (d->values && diff->old_text.data) {
        p = ngx_cpymem(p, ",\"old\":", 7);
        p = ngx_http_idem_diff_text(p, &diff->old_text, diff->old_cut);
    }

    if (d->values && diff->new_text.data) {
        p = ngx_cpymem(p, ",\"new\":", 7);
        p = ngx_http_idem_diff_text(p, &diff->new_text, diff->new_cut);
    }

    *p++ = '}';

    return p;
}


/* "a.b: 'old' -> 'new'", or "a.b: changed" if values are not stored */

static u_char *
ngx_http_idem_diff_line(ngx_http_idem_diff_t *d, u_char *p,
    const ngx_http_idem_json_diff_t *diff)
{
    *p++ = '"';
    p = ngx_http_idem_diff_path(p, &diff->path);
    p = ngx_cpymem(p, ": ", 2);

    if (!d->values
        || (diff->old_text.data == NULL && diff->new_text.data == NULL))
    {
        p = ngx_sprintf(p, "%s\"",
                        ngx_http_idem_diff_changes[diff->change]);
        return p;
    }

    p = ngx_http_idem_diff_value(p, &diff->old_text, diff->old_cut);
    p = ngx_cpymem(p, " \xe2\x86\x92 ", 5);
    p = ngx_http_idem_diff_value(p, &diff->new_text, diff->new_cut);
    *p++ = '"';

    return p;
}


/* writes "/a~1b/0" as "a/b.0" */

static u_char *
ngx_http_idem_diff_path(u_char *p, const ngx_str_t *path)
{
    u_char  *src, *start, *last;

    if (path->len == 0) {
        return ngx_cpymem(p, "(body)", 6);
    }

    last = path->data + path->len;
    start = path->data + 1;

    for (src = start; src < last; src++) {

        if (*src != '/' && (*src != '~' || src + 1 == last)) {
            continue;
        }

        p = ngx_http_idem_diff_escape(p, start, src);

        if (*src == '/') {
            *p++ = '.';

        } else {
            *p++ = (*++src == '1') ? '/' : '~';
        }

        start = src + 1;
    }

    return ngx_http_idem_diff_escape(p, start, last);
}


/*
 * in single quotes: a string without its double quotes, other values as JSON
 */

static u_char *
ngx_http_idem_diff_value(u_char *p, const ngx_str_t *text, ngx_uint_t cut)
{
    u_char  *last;

    if (text->data == NULL) {
        return ngx_cpymem(p, NGX_HTTP_IDEM_DIFF_NONE,
                          sizeof(NGX_HTTP_IDEM_DIFF_NONE) - 1);
    }

    last = text->data + text->len;

    *p++ = '\'';

    if (!cut && text->len >= 2 && text->data[0] == '"'
        && ngx_http_idem_json_valid(text) == NGX_OK)
    {
        /* already escaped for JSON */
        p = ngx_cpymem(p, text->data + 1, text->len - 2);

    } else if (cut && text->len && text->data[0] == '"') {
        p = ngx_http_idem_diff_beginning(p, text);

    } else if (text->len && text->data[0] == '"') {
        p = ngx_http_idem_diff_escape(p, text->data + 1, last);

    } else {
        p = ngx_http_idem_diff_escape(p, text->data, last);
    }

    if (cut) {
        p = ngx_cpymem(p, "...", 3);
    }

    *p++ = '\'';

    return p;
}


/*
 * Writes valid JSON unchanged.  A truncated text or anything else that is not
 * valid JSON becomes a JSON string.
 */

static u_char *
ngx_http_idem_diff_text(u_char *p, const ngx_str_t *text, ngx_uint_t cut)
{
    if (!cut && ngx_http_idem_json_valid(text) == NGX_OK) {
        return ngx_cpymem(p, text->data, text->len);
    }

    if (cut && text->len && text->data[0] == '"') {
        *p++ = '"';
        p = ngx_http_idem_diff_beginning(p, text);
        return ngx_cpymem(p, "...\"", 4);
    }

    return ngx_http_idem_json_quote(p, text);
}


/*
 * The beginning of a string that was truncated, without its opening quote.
 * Its characters are escaped for JSON already; the last one may be incomplete.
 * Only escapes that the canonical form has are taken for such.
 */

static u_char *
ngx_http_idem_diff_beginning(u_char *p, const ngx_str_t *text)
{
    size_t   n;
    u_char  *src, *start, *last;

    start = text->data + 1;
    last = text->data + text->len;

    for (src = start; src < last; /* void */ ) {

        if (*src != '\\') {
            src++;
            continue;
        }

        p = ngx_http_idem_diff_escape(p, start, src);
        start = src;

        n = (last - src > 1 && src[1] == 'u') ? 6 : 2;

        if ((size_t) (last - src) < n) {
            return p;
        }

        if (n == 2 ? ngx_strchr("\"\\/bfnrt", src[1]) == NULL || src[1] == 0
                   : (src[2] != '0' || src[3] != '0'
                      || ngx_hextoi(&src[4], 2) == NGX_ERROR))
        {
            src++;
            continue;
        }

        p = ngx_cpymem(p, src, n);
        src += n;
        start = src;
    }

    return ngx_http_idem_diff_escape(p, start, last);
}


u_char *
ngx_http_idem_json_quote(u_char *p, const ngx_str_t *text)
{
    *p++ = '"';
    p = ngx_http_idem_diff_escape(p, text->data, text->data + text->len);
    *p++ = '"';

    return p;
}


static u_char *
ngx_http_idem_diff_escape(u_char *p, const u_char *src, const u_char *last)
{
    size_t  n;

    while (src < last) {

        if (*src < 0x20 || *src == 0x7f) {
            p = ngx_sprintf(p, "\\u%04xd", (int) *src++);
            continue;
        }

        if (*src == '"' || *src == '\\') {
            *p++ = '\\';
        }

        n = ngx_http_idem_utf8_len(src, last);

        if (n == 0) {
            /* U+FFFD replaces invalid bytes */

            p = ngx_cpymem(p, "\\ufffd", 6);
            src++;
            continue;
        }

        p = ngx_cpymem(p, src, n);
        src += n;
    }

    return p;
}
