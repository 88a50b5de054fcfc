
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Reads a form, field by field, and pushes each on the canonical stack
 * (canon.c) as three values: its group, by which fields are sorted, its name,
 * and its value.  Called by the body reader.
 */


#include "ngx_http_idem_number.h"
#include "canonical/ngx_http_idem_form.h"


#define NGX_HTTP_IDEM_FORM_UNIT  3               /* group, name, value    */

/* the cost of a byte, in units of work */
#define NGX_HTTP_IDEM_FORM_BYTE  4


typedef enum {
    NGX_HTTP_IDEM_FORM_READ = 0,
    NGX_HTTP_IDEM_FORM_SORT,
    NGX_HTTP_IDEM_FORM_DONE
} ngx_http_idem_form_stage_e;


struct ngx_http_idem_form_s {
    const ngx_http_idem_form_options_t  *options;

    ngx_http_idem_canon_t         canon;
    ngx_int_t                     rc;
    ngx_http_idem_form_stage_e    stage;

    ngx_http_idem_canon_body_t    body;            /* the name or value is
                                                      decoded to its start */
    size_t                        read;            /* bytes of the body   */
    size_t                        len;             /* of the name or value */

    u_char                       *group;
    size_t                        group_size;

    size_t                        base;            /* of the field, on the
                                                      stack               */
    size_t                        n;               /* fields on the stack */
    uint32_t                      nothing;         /* fields of no byte   */
    unsigned                      value:1;         /* behind the "="      */
    unsigned                      excluded:1;
};


static ngx_int_t ngx_http_idem_form_read(ngx_http_idem_form_t *f, size_t n);
static ngx_int_t ngx_http_idem_form_byte(ngx_http_idem_form_t *f);
static ngx_int_t ngx_http_idem_form_name(ngx_http_idem_form_t *f);
static ngx_int_t ngx_http_idem_form_group(ngx_http_idem_form_t *f);
static ngx_int_t ngx_http_idem_form_field(ngx_http_idem_form_t *f);


ngx_http_idem_form_t *
ngx_http_idem_form_create(const ngx_http_idem_form_options_t *options)
{
    ngx_http_idem_form_t  *f;

    f = ngx_http_idem_canon_calloc(sizeof(ngx_http_idem_form_t));

    if (f) {
        f->options = options;
    }

    return f;
}


ngx_int_t
ngx_http_idem_form_feed(ngx_http_idem_form_t *f, const u_char *p, size_t len)
{
    if (f->rc == NGX_OK && len) {
        f->rc = ngx_http_idem_canon_collect(&f->body, f->options->size, p,
                                            len);
    }

    return f->rc;
}


/* the fields, one after the other; then, in their order, as one value */

ngx_int_t
ngx_http_idem_form_work(ngx_http_idem_form_t *f, size_t work)
{
    ngx_int_t  rc;

    if (f->rc != NGX_OK || f->stage == NGX_HTTP_IDEM_FORM_DONE) {
        return f->rc;
    }

    if (f->stage == NGX_HTTP_IDEM_FORM_SORT) {
        rc = ngx_http_idem_canon_close_step(&f->canon, work);

    } else {
        rc = ngx_http_idem_form_read(f, work / NGX_HTTP_IDEM_FORM_BYTE + 1);

        if (rc == NGX_OK) {
            f->stage = NGX_HTTP_IDEM_FORM_SORT;

            rc = ngx_http_idem_canon_close_start(&f->canon,
                                               NGX_HTTP_IDEM_CANON_FORM, 0,
                                               NGX_HTTP_IDEM_FORM_UNIT, f->n);
        }
    }

    if (rc != NGX_AGAIN) {
        f->stage = NGX_HTTP_IDEM_FORM_DONE;
        f->rc = rc;
    }

    return rc;
}


/* as many bytes of the body */

static ngx_int_t
ngx_http_idem_form_read(ngx_http_idem_form_t *f, size_t n)
{
    ngx_int_t  rc;

    while (f->read < f->body.len) {

        if (n-- == 0) {
            return NGX_AGAIN;
        }

        rc = ngx_http_idem_form_byte(f);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    /* an empty body has no field; "&" has two, of no byte */

    return f->body.len ? ngx_http_idem_form_field(f) : NGX_OK;
}


static ngx_int_t
ngx_http_idem_form_byte(ngx_http_idem_form_t *f)
{
    int     high, low;
    u_char  ch, *p;

    p = f->body.data + f->read++;
    ch = *p;

    switch (ch) {

    case '&':
        return ngx_http_idem_form_field(f);

    case '=':
        if (!f->value) {
            return ngx_http_idem_form_name(f);
        }

        break;

    case '%':
        if (f->body.len - f->read < 2) {
            return NGX_DECLINED;
        }

        high = ngx_http_idem_canon_hex(p[1]);
        low = ngx_http_idem_canon_hex(p[2]);

        if (high < 0 || low < 0) {
            return NGX_DECLINED;
        }

        ch = (u_char) (high << 4 | low);
        f->read += 2;
        break;

    case '+':
        ch = ' ';
        break;
    }

    f->body.data[f->len++] = ch;

    return NGX_OK;
}


/* the name is complete */

static ngx_int_t
ngx_http_idem_form_name(ngx_http_idem_form_t *f)
{
    ngx_str_t   *name;
    ngx_uint_t   i;

    f->base = f->canon.len;
    f->excluded = 0;

    name = f->options->excluded;

    for (i = 0; i < f->options->nexcluded; i++) {
        if (name[i].len == f->len
            && ngx_memcmp(name[i].data, f->body.data, f->len) == 0)
        {
            /* a JSON Pointer is not the name of a field */

            f->excluded = (f->len == 0 || f->body.data[0] != '/');
            break;
        }
    }

    if (ngx_http_idem_form_group(f) != NGX_OK
        || ngx_http_idem_canon_scalar(&f->canon, NGX_HTTP_IDEM_CANON_STRING,
                                      f->body.data, f->len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    f->len = 0;
    f->value = 1;

    return NGX_OK;
}


/*
 * Fields whose order is kept among them have the same group: their name in
 * lower case, without leading spaces, with "_" for " " and ".", up to a NUL
 * or to a "[" that is closed.
 */

static ngx_int_t
ngx_http_idem_form_group(ngx_http_idem_form_t *f)
{
    u_char  *p, *last, *close, *dst;

    if (ngx_http_idem_canon_grow(&f->group, 0, &f->group_size, f->len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    p = f->body.data;
    last = p + f->len;
    dst = f->group;

    for (close = last; close > p && close[-1] != ']'; close--) {
        /* void */
    }

    while (p < last && *p == ' ') {
        p++;
    }

    for ( /* void */ ; p < last; p++) {

        if (*p == '\0' || (*p == '[' && p < close)) {
            break;
        }

        *dst++ = (*p == ' ' || *p == '.' || *p == '[') ? '_'
                                                       : ngx_tolower(*p);
    }

    return ngx_http_idem_canon_scalar(&f->canon, NGX_HTTP_IDEM_CANON_STRING,
                                      f->group, dst - f->group);
}


/* the field is complete, with a value or without */

static ngx_int_t
ngx_http_idem_form_field(ngx_http_idem_form_t *f)
{
    u_char  tag;

    tag = NGX_HTTP_IDEM_CANON_STRING;

    if (!f->value && f->len == 0) {

        /* as in "&&&&": to count them is enough, they are all the same */

        f->nothing++;
        return NGX_OK;
    }

    if (!f->value) {
        tag = NGX_HTTP_IDEM_CANON_NULL;

        if (ngx_http_idem_form_name(f) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_idem_canon_scalar(&f->canon, tag, f->body.data, f->len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (f->excluded) {
        f->canon.len = f->base;

    } else {
        f->n++;
    }

    f->len = 0;
    f->value = 0;

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_form_done(ngx_http_idem_form_t *f, u_char *digest)
{
    u_char                  nothing[4];
    ngx_int_t               rc;
    ngx_http_idem_digest_t  d;

    do {
        rc = ngx_http_idem_form_work(f, NGX_MAX_SIZE_T_VALUE);
    } while (rc == NGX_AGAIN);

    if (rc != NGX_OK) {
        return rc;
    }

    ngx_http_idem_put32(nothing, f->nothing);

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, "form", 4);
    ngx_http_idem_digest_update(&d, nothing, sizeof(nothing));
    ngx_http_idem_digest_update(&d, f->canon.stack, f->canon.len);
    ngx_http_idem_digest_done(&d, digest);

    return NGX_OK;
}


void
ngx_http_idem_form_destroy(ngx_http_idem_form_t *f)
{
    ngx_http_idem_canon_destroy(&f->canon);
    ngx_http_idem_canon_free(f->body.data);
    ngx_http_idem_canon_free(f->group);
    ngx_http_idem_canon_free(f);
}
