
/*
 * What differs: the paths of a JSON body that a conflict names
 * (idempotency_conflict_detail).
 *
 * The list of the original comes from the store, and is not trusted: every
 * text of it goes out as a JSON string.  Called by the refusal; calls the
 * comparison of paths.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "canonical/ngx_http_idem_json_paths.h"
#include "response/ngx_http_idem_yajl.h"


#define NGX_HTTP_IDEM_DIFF_MAX  20


typedef struct {
    u_char       *last;
    ngx_uint_t    n;
    ngx_uint_t    values;
} ngx_http_idem_diff_t;


/* a text of n bytes, each escaped to six at most, with quotes */
#define ngx_http_idem_diff_room(n)  (6 * (n) + 2)

#define NGX_HTTP_IDEM_DIFF_ENTRY                                              \
    (ngx_http_idem_diff_room(NGX_HTTP_IDEM_JSON_PATH_MAX)                     \
     + 2 * ngx_http_idem_diff_room(NGX_HTTP_IDEM_JSON_TEXT_MAX)               \
     + sizeof("{\"path\":,\"change\":\"changed\",\"old\":,\"new\":},"))


static ngx_int_t ngx_http_idem_diff_entry(void *data,
    const ngx_http_idem_json_diff_t *diff);
static u_char *ngx_http_idem_diff_text(u_char *p,
    const ngx_str_t *text, ngx_uint_t cut);
static u_char *ngx_http_idem_diff_string(u_char *p, const ngx_str_t *text);
static size_t ngx_http_idem_diff_char(const u_char *src, const u_char *last);


/* "text" is a JSON array, or empty if nothing can be named */

ngx_int_t
ngx_http_idem_diff_summary(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_str_t *text)
{
    u_char                *start;
    ngx_int_t              rc;
    ngx_uint_t             more;
    ngx_http_idem_diff_t   d;

    if (ctx->claims.primary->details.len == 0) {
        return NGX_OK;
    }

    start = ngx_pnalloc(r->pool, NGX_HTTP_IDEM_DIFF_MAX
                                 * NGX_HTTP_IDEM_DIFF_ENTRY + 64);
    if (start == NULL) {
        return NGX_ERROR;
    }

    d.last = start;
    d.n = 0;
    d.values = (ctx->conf->conflict_detail
                == NGX_HTTP_IDEM_JSON_DETAIL_VALUES);

    *d.last++ = '[';

    more = 0;

    rc = ngx_http_idem_json_diff(&ctx->answer.details,
                                 &ctx->claims.primary->details,
                                 NGX_HTTP_IDEM_DIFF_MAX,
                                 ngx_http_idem_diff_entry, &d, &more);
    if (rc != NGX_OK || d.n == 0) {
        return NGX_OK;
    }

    *d.last++ = ']';

    if (more) {
        d.last = ngx_cpymem(d.last, ",\"diff_more\":true", 17);
    }

    text->data = start;
    text->len = d.last - start;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_diff_entry(void *data, const ngx_http_idem_json_diff_t *diff)
{
    ngx_http_idem_diff_t  *d = data;

    u_char      *p;

    static const char  *changes[] = { "changed", "added", "removed" };

    p = d->last;

    if (d->n++) {
        *p++ = ',';
    }

    p = ngx_cpymem(p, "{\"path\":", 8);
    p = ngx_http_idem_diff_string(p, &diff->path);
    p = ngx_sprintf(p, ",\"change\":\"%s\"", changes[diff->change]);

    if (d->values && diff->old_text.data) {
        p = ngx_cpymem(p, ",\"old\":", 7);
        p = ngx_http_idem_diff_text(p, &diff->old_text, diff->old_cut);
    }

    if (d->values && diff->new_text.data) {
        p = ngx_cpymem(p, ",\"new\":", 7);
        p = ngx_http_idem_diff_text(p, &diff->new_text, diff->new_cut);
    }

    *p++ = '}';

    d->last = p;

    return NGX_OK;
}


/*
 * JSON as it is; a string that was cut, or whatever else is no JSON any more,
 * goes out as a string of its own.
 */

static u_char *
ngx_http_idem_diff_text(u_char *p, const ngx_str_t *text, ngx_uint_t cut)
{
    /* whether it may stand in JSON as it is: yajl knows, UTF-8 included */

    if (!cut && ngx_http_idem_yajl_valid(text) == NGX_OK) {
        return ngx_cpymem(p, text->data, text->len);
    }

    return ngx_http_idem_diff_string(p, text);
}


static u_char *
ngx_http_idem_diff_string(u_char *p, const ngx_str_t *text)
{
    u_char  *src, *last;
    size_t   n;

    *p++ = '"';

    src = text->data;
    last = src + text->len;

    while (src < last) {

        if (*src < 0x20 || *src == 0x7f) {
            p = ngx_sprintf(p, "\\u%04xd", (int) *src++);
            continue;
        }

        if (*src == '"' || *src == '\\') {
            *p++ = '\\';
        }

        n = ngx_http_idem_diff_char(src, last);

        if (n == 0) {
            /* U+FFFD in place of what is no character */

            p = ngx_cpymem(p, "\\ufffd", 6);
            src++;
            continue;
        }

        p = ngx_cpymem(p, src, n);
        src += n;
    }

    *p++ = '"';

    return p;
}


/* the length of a character, or 0: nginx's own decoder lets too much pass */

static size_t
ngx_http_idem_diff_char(const u_char *src, const u_char *last)
{
    u_char    *p;
    uint32_t   ch;

    if (*src < 0x80) {
        return 1;
    }

    p = (u_char *) src;
    ch = ngx_utf8_decode(&p, last - src);

    if (ch > 0x10ffff || (ch >= 0xd800 && ch <= 0xdfff)) {
        return 0;
    }

    last = p;

    while (--p > src) {
        if ((*p & 0xc0) != 0x80) {
            return 0;
        }
    }

    return last - src;
}
