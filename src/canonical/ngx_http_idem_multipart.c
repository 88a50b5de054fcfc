
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A multipart body without its boundary.
 *
 * The fingerprint asks ngx_http_idem_multipart_boundary() for the
 * boundary of the media type; the body reader then feeds the body in pieces
 * of any size as they arrive, and the pieces go on, less the delimiters, to
 * the digest behind "update".  Nothing is buffered but a count: bytes that
 * may yet turn out to be a delimiter equal the delimiter's own first bytes,
 * so those are passed on in their place.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "canonical/ngx_http_idem_multipart.h"


#define ngx_http_idem_multipart_is_ows(c)  ((c) == ' ' || (c) == '\t')


static u_char *ngx_http_idem_multipart_parameter(u_char *p,
    u_char *last, ngx_str_t *name, ngx_str_t *value);
static ngx_uint_t ngx_http_idem_multipart_equal(const u_char *p,
    const char *lowcase, size_t len);
static ngx_uint_t ngx_http_idem_multipart_valid(const ngx_str_t *boundary);
static void ngx_http_idem_multipart_pass(
    ngx_http_idem_multipart_t *m, const u_char *p, size_t len);
static void ngx_http_idem_multipart_cut(ngx_http_idem_multipart_t *m);


/*
 * A media type that leaves any doubt about its boundary is declined: such a
 * body then counts byte by byte, which may refuse a retry but never takes
 * another request for one.
 */

ngx_int_t
ngx_http_idem_multipart_boundary(const ngx_str_t *type, ngx_str_t *boundary)
{
    u_char      *p, *last, *subtype;
    ngx_str_t    name, value, found;

    p = type->data;
    last = p + type->len;

    while (p < last && ngx_http_idem_multipart_is_ows(*p)) {
        p++;
    }

    if ((size_t) (last - p) < sizeof("multipart/") - 1
        || !ngx_http_idem_multipart_equal(p, "multipart/",
                                          sizeof("multipart/") - 1))
    {
        return NGX_DECLINED;
    }

    p += sizeof("multipart/") - 1;

    for (subtype = p; p < last; p++) {
        if (*p == ';' || ngx_http_idem_multipart_is_ows(*p)) {
            break;
        }
    }

    if (p == subtype) {
        return NGX_DECLINED;
    }

    ngx_str_null(&found);

    for ( ;; ) {

        p = ngx_http_idem_multipart_parameter(p, last, &name, &value);

        if (p == NULL) {
            return NGX_DECLINED;
        }

        if (name.len == sizeof("boundary") - 1
            && ngx_http_idem_multipart_equal(name.data, "boundary",
                                             sizeof("boundary") - 1))
        {
            if (found.data) {
                return NGX_DECLINED;
            }

            found = value;
        }

        if (p == last) {
            break;
        }
    }

    if (found.data == NULL || !ngx_http_idem_multipart_valid(&found)) {
        return NGX_DECLINED;
    }

    *boundary = found;

    return NGX_OK;
}


/*
 * OWS ";" OWS [ name "=" value ] OWS, RFC 9110, 5.6.6; returns what is behind
 * it, or NULL.  At the end of the type, and where there is nothing between
 * two semicolons, "name" is empty.  A quoted value comes without its quotes,
 * with its escapes: a boundary has none.  An unquoted one ends at white space
 * or ";" only, since clients leave the quotes off around "=", "/" and such.
 */

static u_char *
ngx_http_idem_multipart_parameter(u_char *p, u_char *last,
    ngx_str_t *name, ngx_str_t *value)
{
    ngx_str_null(name);
    ngx_str_null(value);

    while (p < last && ngx_http_idem_multipart_is_ows(*p)) {
        p++;
    }

    if (p == last) {
        return p;
    }

    if (*p++ != ';') {
        return NULL;
    }

    while (p < last && ngx_http_idem_multipart_is_ows(*p)) {
        p++;
    }

    if (p == last || *p == ';') {
        return p;
    }

    for (name->data = p; p < last && *p != '='; p++) {
        if (*p == ';' || *p == '"'
            || ngx_http_idem_multipart_is_ows(*p))
        {
            return NULL;
        }
    }

    name->len = p - name->data;

    if (p == last) {
        return NULL;
    }

    p++;

    if (p < last && *p == '"') {
        p++;

        for (value->data = p; p < last && *p != '"'; p++) {
            if (*p == '\\' && ++p == last) {
                return NULL;
            }
        }

        if (p == last) {
            return NULL;
        }

        value->len = p - value->data;

        return p + 1;
    }

    for (value->data = p; p < last && *p != ';'; p++) {
        if (ngx_http_idem_multipart_is_ows(*p)) {
            break;
        }
    }

    value->len = p - value->data;

    return p;
}


/* not ngx_strncasecmp(): this file links without nginx */

static ngx_uint_t
ngx_http_idem_multipart_equal(const u_char *p, const char *lowcase,
    size_t len)
{
    size_t  i;

    for (i = 0; i < len; i++) {
        if (ngx_tolower(p[i]) != (u_char) lowcase[i]) {
            return 0;
        }
    }

    return 1;
}


/* bchars of RFC 2046, 5.1.1: 1 to 70 of them, the last one not a space */

static ngx_uint_t
ngx_http_idem_multipart_valid(const ngx_str_t *boundary)
{
    u_char  c;
    size_t  i;

    if (boundary->len == 0
        || boundary->len > NGX_HTTP_IDEM_BOUNDARY_MAX
        || boundary->data[boundary->len - 1] == ' ')
    {
        return 0;
    }

    for (i = 0; i < boundary->len; i++) {
        c = boundary->data[i];

        if (!((c >= '0' && c <= '9')
              || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c && ngx_strchr("'()+_,-./:=? ", c))))
        {
            return 0;
        }
    }

    return 1;
}


void
ngx_http_idem_multipart_init(ngx_http_idem_multipart_t *m,
    const ngx_str_t *boundary,
    ngx_http_idem_multipart_update_pt update, void *data)
{
    size_t  len;

    m->update = update;
    m->data = data;

    len = ngx_min(boundary->len, NGX_HTTP_IDEM_BOUNDARY_MAX);

    ngx_memcpy(m->delimiter, "\r\n--", 4);
    ngx_memcpy(m->delimiter + 4, boundary->data, len);

    m->len = 4 + len;

    /* the first delimiter has no CRLF before it: take it as seen */

    m->matched = 2;
    m->segment = 0;
}


/*
 * No failure function as in Knuth-Morris-Pratt is needed, whatever repeats
 * within the boundary: a delimiter begins with CR, and has no other, so where
 * a match breaks off no shorter one can be under way.  The byte that broke
 * it is looked at again, as it may be a CR itself.
 */

void
ngx_http_idem_multipart_feed(ngx_http_idem_multipart_t *m,
    const u_char *p, size_t len)
{
    const u_char  *last, *cr;

    last = p + len;

    while (p < last) {

        if (m->matched == 0) {
            cr = memchr(p, CR, last - p);

            if (cr == NULL) {
                ngx_http_idem_multipart_pass(m, p, last - p);
                return;
            }

            ngx_http_idem_multipart_pass(m, p, cr - p);

            m->matched = 1;
            p = cr + 1;

        } else if (*p == m->delimiter[m->matched]) {
            m->matched++;
            p++;

            if (m->matched == m->len) {
                ngx_http_idem_multipart_cut(m);
                m->matched = 0;
            }

        } else {
            ngx_http_idem_multipart_pass(m, m->delimiter, m->matched);
            m->matched = 0;
        }
    }
}


void
ngx_http_idem_multipart_done(ngx_http_idem_multipart_t *m)
{
    ngx_http_idem_multipart_pass(m, m->delimiter, m->matched);
    ngx_http_idem_multipart_cut(m);

    m->matched = 0;
}


static void
ngx_http_idem_multipart_pass(ngx_http_idem_multipart_t *m,
    const u_char *p, size_t len)
{
    if (len == 0) {
        return;
    }

    m->update(m->data, p, len);
    m->segment += len;
}


/* the end of a segment: its length, 8 bytes, the most significant first */

static void
ngx_http_idem_multipart_cut(ngx_http_idem_multipart_t *m)
{
    u_char  len[8];

    ngx_http_idem_put64(len, m->segment);

    m->update(m->data, len, 8);
    m->segment = 0;
}
