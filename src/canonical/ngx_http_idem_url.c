
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * URLs that mean the same, as the same text.  Called for derived keys; calls
 * the comparison and the digits of canon.h.
 */


#include "canonical/ngx_http_idem_canon.h"
#include "canonical/ngx_http_idem_url.h"


static u_char *ngx_http_idem_url_authority(u_char *dst,
    const ngx_str_t *scheme, u_char *p, u_char *last);
static u_char *ngx_http_idem_url_path(u_char *dst, u_char *p, u_char *last);
static u_char *ngx_http_idem_url_query(u_char *dst, u_char *p, u_char *last,
    const ngx_str_t *strip, ngx_uint_t nstrip, ngx_str_t *args,
    u_char *scratch);
static u_char *ngx_http_idem_url_escape(u_char *dst, u_char *p, u_char *last);
static ngx_uint_t ngx_http_idem_url_stripped(const ngx_str_t *arg,
    const ngx_str_t *strip, ngx_uint_t nstrip);
static size_t ngx_http_idem_url_name(const ngx_str_t *arg);
static int ngx_libc_cdecl ngx_http_idem_url_cmp(const void *one,
    const void *two);
static u_char *ngx_http_idem_url_find(u_char *p, u_char *last,
    const char *any);


static const struct {
    const char  *scheme;
    const char  *port;
} ngx_http_idem_url_ports[] = {
    { "http", "80" },
    { "https", "443" },
    { "ws", "80" },
    { "wss", "443" },
    { "ftp", "21" }
};


#define ngx_http_idem_url_unreserved(ch)                                      \
    (((ch) >= 'a' && (ch) <= 'z') || ((ch) >= 'A' && (ch) <= 'Z')             \
     || ((ch) >= '0' && (ch) <= '9')                                          \
     || (ch) == '-' || (ch) == '.' || (ch) == '_' || (ch) == '~')


ngx_int_t
ngx_http_idem_url_normalize(const ngx_str_t *url, const ngx_str_t *strip,
    ngx_uint_t nstrip, ngx_str_t *args, u_char *buf, ngx_str_t *result)
{
    u_char     *p, *last, *end, *dst;
    ngx_str_t   scheme;

    if (url->len > NGX_HTTP_IDEM_URL_MAX) {
        return NGX_DECLINED;
    }

    p = url->data;
    last = p + url->len;
    dst = buf;

    while (p < last
           && (((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')
               || (p > url->data
                   && ((*p >= '0' && *p <= '9')
                       || *p == '+' || *p == '-' || *p == '.'))))
    {
        *dst++ = ngx_tolower(*p);
        p++;
    }

    if (p == url->data || last - p < 4 || ngx_strncmp(p, "://", 3) != 0) {
        return NGX_DECLINED;
    }

    scheme.data = buf;
    scheme.len = dst - buf;

    dst = ngx_cpymem(dst, "://", 3);
    p += 3;

    end = ngx_http_idem_url_find(p, last, "/?#");

    if (end == p) {
        return NGX_DECLINED;
    }

    dst = ngx_http_idem_url_authority(dst, &scheme, p, end);

    if (dst == NULL) {
        return NGX_DECLINED;
    }

    p = end;
    last = ngx_http_idem_url_find(p, last, "#");
    end = ngx_http_idem_url_find(p, last, "?");

    dst = ngx_http_idem_url_path(dst, p, end);

    if (end < last) {
        dst = ngx_http_idem_url_query(dst, end + 1, last, strip, nstrip, args,
                                      buf + 3 * url->len + 1);
    }

    result->data = buf;
    result->len = dst - buf;

    return NGX_OK;
}


/* a name and password stay as they are; the host has no case, and is there */

static u_char *
ngx_http_idem_url_authority(u_char *dst, const ngx_str_t *scheme, u_char *p,
    u_char *last)
{
    u_char      *host, *end, *port;
    ngx_uint_t   i;

    for (host = last; host > p && host[-1] != '@'; host--) { /* void */ }

    while (p < host) {
        *dst++ = *p++;
    }

    for (port = last; port > host && port[-1] >= '0' && port[-1] <= '9';
         port--)
    {
        /* void */
    }

    end = last;

    if (port > host && port[-1] == ':') {

        end = port - 1;

        for (i = 0; i < sizeof(ngx_http_idem_url_ports)
                        / sizeof(ngx_http_idem_url_ports[0]); i++)
        {
            if (ngx_strlen(ngx_http_idem_url_ports[i].scheme) == scheme->len
                && ngx_strncmp(ngx_http_idem_url_ports[i].scheme,
                               scheme->data, scheme->len)
                   == 0
                && ngx_strlen(ngx_http_idem_url_ports[i].port)
                   == (size_t) (last - port)
                && ngx_strncmp(ngx_http_idem_url_ports[i].port, port,
                               last - port)
                   == 0)
            {
                port = last;
                break;
            }
        }

    } else {
        port = last;
    }

    if (host == end
        || (*host != '[' && ngx_http_idem_url_find(host, end, ":") != end))
    {
        return NULL;
    }

    for ( /* void */ ; host < end; host++) {
        *dst++ = ngx_tolower(*host);
    }

    if (port < last) {
        *dst++ = ':';

        while (port < last) {
            *dst++ = *port++;
        }
    }

    return dst;
}


/* escapes first: "%2e" is a dot, too */

static u_char *
ngx_http_idem_url_path(u_char *dst, u_char *p, u_char *last)
{
    u_char  *start, *src, *segment, *end;

    start = dst;

    if (p == last) {
        *dst++ = '/';
        return dst;
    }

    end = ngx_http_idem_url_escape(dst, p, last);

    /* in place: the result is never longer than its source */

    for (src = start; src < end; src = segment) {

        segment = ngx_http_idem_url_find(src + 1, end, "/");

        if (segment - src == 2 && src[1] == '.') {

            if (segment == end) {
                *dst++ = '/';
            }

            continue;
        }

        if (segment - src == 3 && src[1] == '.' && src[2] == '.') {

            while (dst > start && *--dst != '/') { /* void */ }

            if (segment == end) {
                *dst++ = '/';
            }

            continue;
        }

        ngx_memmove(dst, src, segment - src);
        dst += segment - src;
    }

    if (dst == start) {
        *dst++ = '/';
    }

    return dst;
}


/* "scratch" is for the arguments as they are to be written, in their order */

static u_char *
ngx_http_idem_url_query(u_char *dst, u_char *p, u_char *last,
    const ngx_str_t *strip, ngx_uint_t nstrip, ngx_str_t *args,
    u_char *scratch)
{
    u_char      *end;
    ngx_str_t    arg;
    ngx_uint_t   i, n;

    last = ngx_http_idem_url_escape(scratch, p, last);

    n = 0;

    for (p = scratch; p < last; p = end + 1) {

        end = ngx_http_idem_url_find(p, last, "&");

        arg.data = p;
        arg.len = end - p;

        if (arg.len && !ngx_http_idem_url_stripped(&arg, strip, nstrip)) {
            args[n++] = arg;
        }
    }

    ngx_qsort(args, n, sizeof(ngx_str_t), ngx_http_idem_url_cmp);

    for (i = 0; i < n; i++) {
        *dst++ = i ? '&' : '?';
        dst = ngx_cpymem(dst, args[i].data, args[i].len);
    }

    return dst;
}


/* reserved characters stay as they are, escaped or not: they differ */

static u_char *
ngx_http_idem_url_escape(u_char *dst, u_char *p, u_char *last)
{
    int            high, low;
    u_char         ch;
    ngx_uint_t     escaped;
    static u_char  hex[] = "0123456789ABCDEF";

    for ( /* void */ ; p < last; p++) {
        ch = *p;
        escaped = 0;

        if (ch == '%' && last - p > 2) {
            high = ngx_http_idem_canon_hex(p[1]);
            low = ngx_http_idem_canon_hex(p[2]);

            if (high >= 0 && low >= 0) {
                ch = (u_char) (high << 4 | low);
                escaped = 1;
                p += 2;
            }
        }

        if (ngx_http_idem_url_unreserved(ch)
            || (!escaped && ch > 0x20 && ch < 0x7f
                && ngx_strchr("!$&'()*+,;=:@/?", ch)))
        {
            *dst++ = ch;
            continue;
        }

        *dst++ = '%';
        *dst++ = hex[ch >> 4];
        *dst++ = hex[ch & 0xf];
    }

    return dst;
}


static ngx_uint_t
ngx_http_idem_url_stripped(const ngx_str_t *arg, const ngx_str_t *strip,
    ngx_uint_t nstrip)
{
    size_t      len, n;
    ngx_uint_t  i, beginning;

    n = ngx_http_idem_url_name(arg);

    for (i = 0; i < nstrip; i++) {
        len = strip[i].len;
        beginning = (len && strip[i].data[len - 1] == '*');

        if (beginning) {
            len--;
        }

        if ((n == len || (beginning && n > len))
            && ngx_strncmp(arg->data, strip[i].data, len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static size_t
ngx_http_idem_url_name(const ngx_str_t *arg)
{
    return ngx_http_idem_url_find(arg->data, arg->data + arg->len, "=")
           - arg->data;
}


static int ngx_libc_cdecl
ngx_http_idem_url_cmp(const void *one, const void *two)
{
    int               rc;
    const ngx_str_t  *a, *b;

    a = one;
    b = two;

    rc = ngx_http_idem_canon_cmp(a->data, ngx_http_idem_url_name(a),
                                 b->data, ngx_http_idem_url_name(b));

    /* of one name: as they came */

    return rc ? rc : (a->data < b->data) ? -1 : (a->data > b->data);
}


/* the first of these characters, or the end */

static u_char *
ngx_http_idem_url_find(u_char *p, u_char *last, const char *any)
{
    while (p < last && (*p == '\0' || ngx_strchr(any, *p) == NULL)) {
        p++;
    }

    return p;
}
