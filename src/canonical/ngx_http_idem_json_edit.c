
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Writes a JSON object as the parser's events tell it, and sets members of it.
 * See the header.
 */


#include "canonical/ngx_http_idem_json_edit.h"


static ngx_uint_t ngx_http_idem_json_edit_skipped(
    ngx_http_idem_json_edit_t *e);
static void ngx_http_idem_json_edit_comma(ngx_http_idem_json_edit_t *e);
static void ngx_http_idem_json_edit_name(ngx_http_idem_json_edit_t *e,
    const u_char *p, size_t len);

static int ngx_http_idem_json_edit_on_scalar(void *data,
    ngx_http_idem_json_kind_e kind, const u_char *p, size_t len);
static int ngx_http_idem_json_edit_on_name(void *data, const u_char *p,
    size_t len);
static int ngx_http_idem_json_edit_on_start(void *data, ngx_uint_t object);
static int ngx_http_idem_json_edit_on_end(void *data);


static const ngx_http_idem_json_events_t  ngx_http_idem_json_edit_events = {
    ngx_http_idem_json_edit_on_scalar,
    ngx_http_idem_json_edit_on_name,
    ngx_http_idem_json_edit_on_start,
    ngx_http_idem_json_edit_on_end
};


/* a string is never longer than it was: it has fewer escapes, if any */

size_t
ngx_http_idem_json_edit_size(const ngx_str_t *text,
    const ngx_http_idem_json_set_t *set, ngx_uint_t nset)
{
    size_t      size;
    ngx_uint_t  i;

    size = text->len;

    for (i = 0; i < nset; i++) {
        /* a name may be all escapes */

        size += sizeof(",\"\":") - 1 + 6 * set[i].name.len + set[i].value.len;
    }

    return size;
}


ngx_int_t
ngx_http_idem_json_edit_init(ngx_http_idem_json_edit_t *e,
    const ngx_str_t *text, const ngx_http_idem_json_set_t *set,
    ngx_uint_t nset, u_char *buf)
{
    ngx_memzero(e, sizeof(ngx_http_idem_json_edit_t));

    e->type = ngx_http_idem_json_parser;
    e->set = set;
    e->nset = nset;
    e->start = buf;
    e->last = buf;
    e->first = 1;

    e->parser = e->type->create(&ngx_http_idem_json_edit_events, e,
                                NGX_HTTP_IDEM_JSON_EDIT_DEPTH);
    if (e->parser == NULL) {
        return NGX_ERROR;
    }

    return e->type->text(e->parser, text->data, text->len);
}


ngx_int_t
ngx_http_idem_json_edit_step(ngx_http_idem_json_edit_t *e, size_t work,
    ngx_str_t *out)
{
    ngx_int_t  rc;

    do {
        rc = e->type->step(e->parser, &work);
    } while (rc == NGX_AGAIN && work);

    if (rc == NGX_ABORT || (rc == NGX_OK && *e->start != '{')) {
        return NGX_DECLINED;
    }

    if (rc == NGX_OK) {
        out->data = e->start;
        out->len = e->last - e->start;
    }

    return rc;
}


void
ngx_http_idem_json_edit_destroy(ngx_http_idem_json_edit_t *e)
{
    if (e->parser) {
        e->type->destroy(e->parser);
        e->parser = NULL;
    }
}


u_char *
ngx_http_idem_json_edit_string(u_char *p, const u_char *s, size_t len)
{
    u_char         ch;
    const u_char  *last, *plain;

    /* by the character: its escape, or "u" */

    static const u_char  escapes[] = "uuuuuuuubtnufruuuuuuuuuuuuuuuuuu";
    static const u_char  hex[] = "0123456789ABCDEF";

    *p++ = '"';

    for (last = s + len; s < last; s++) {

        plain = s;

        while (s < last && *s >= 0x20 && *s != '"' && *s != '\\') {
            s++;
        }

        p = ngx_cpymem(p, plain, s - plain);

        if (s == last) {
            break;
        }

        *p++ = '\\';
        ch = (*s < 0x20) ? escapes[*s] : *s;
        *p++ = ch;

        if (ch == 'u') {
            *p++ = '0';
            *p++ = '0';
            *p++ = hex[*s >> 4];
            *p++ = hex[*s & 0xf];
        }
    }

    *p++ = '"';

    return p;
}


/* whether a value that is complete belongs to a member that is set */

static ngx_uint_t
ngx_http_idem_json_edit_skipped(ngx_http_idem_json_edit_t *e)
{
    if (e->skip == 0) {
        return 0;
    }

    if (e->depth == e->skip) {
        e->skip = 0;
    }

    return 1;
}


static void
ngx_http_idem_json_edit_comma(ngx_http_idem_json_edit_t *e)
{
    if (!e->first) {
        *e->last++ = ',';
    }

    e->first = 0;
}


static void
ngx_http_idem_json_edit_name(ngx_http_idem_json_edit_t *e, const u_char *p,
    size_t len)
{
    ngx_http_idem_json_edit_comma(e);

    e->last = ngx_http_idem_json_edit_string(e->last, p, len);
    *e->last++ = ':';

    e->first = 1;
}


static int
ngx_http_idem_json_edit_on_scalar(void *data, ngx_http_idem_json_kind_e kind,
    const u_char *p, size_t len)
{
    ngx_http_idem_json_edit_t *e = data;

    if (ngx_http_idem_json_edit_skipped(e)) {
        return 1;
    }

    ngx_http_idem_json_edit_comma(e);

    e->last = (kind == NGX_HTTP_IDEM_JSON_STRING)
              ? ngx_http_idem_json_edit_string(e->last, p, len)
              : ngx_cpymem(e->last, p, len);

    return 1;
}


static int
ngx_http_idem_json_edit_on_name(void *data, const u_char *p, size_t len)
{
    ngx_http_idem_json_edit_t *e = data;

    ngx_uint_t  i;

    if (e->skip) {
        return 1;
    }

    for (i = 0; i < e->nset && e->depth == 1; i++) {

        if (e->set[i].name.len == len
            && ngx_memcmp(e->set[i].name.data, p, len) == 0)
        {
            e->skip = 1;
            return 1;
        }
    }

    ngx_http_idem_json_edit_name(e, p, len);

    return 1;
}


/*
 * An array as a whole is no object.  Brackets that belong together are two
 * characters apart.
 */

static int
ngx_http_idem_json_edit_on_start(void *data, ngx_uint_t object)
{
    ngx_http_idem_json_edit_t *e = data;

    u_char  bracket;

    if (e->depth == NGX_HTTP_IDEM_JSON_EDIT_DEPTH
        || (e->depth == 0 && !object))
    {
        return 0;
    }

    bracket = object ? '{' : '[';
    e->close[e->depth++] = bracket + 2;

    if (e->skip == 0) {
        ngx_http_idem_json_edit_comma(e);
        *e->last++ = bracket;
        e->first = 1;
    }

    return 1;
}


static int
ngx_http_idem_json_edit_on_end(void *data)
{
    ngx_http_idem_json_edit_t *e = data;

    ngx_uint_t  i;

    e->depth--;

    if (ngx_http_idem_json_edit_skipped(e)) {
        return 1;
    }

    for (i = 0; i < e->nset && e->depth == 0; i++) {
        ngx_http_idem_json_edit_name(e, e->set[i].name.data,
                                     e->set[i].name.len);

        e->last = ngx_cpymem(e->last, e->set[i].value.data,
                             e->set[i].value.len);
        e->first = 0;
    }

    *e->last++ = e->close[e->depth];
    e->first = 0;

    return 1;
}
