
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Reads a form as it streams by, field by field, and pushes each on the
 * canonical stack (canon.c) as three values: its group, by which fields are
 * sorted, its name, and its value.  Called by the body reader.
 */


#include "ngx_http_idem_number.h"
#include "canonical/ngx_http_idem_form.h"


#define NGX_HTTP_IDEM_FORM_UNIT  3               /* group, name, value    */


typedef enum {
    NGX_HTTP_IDEM_FORM_PLAIN = 0,
    NGX_HTTP_IDEM_FORM_PERCENT,           /* behind a "%"          */
    NGX_HTTP_IDEM_FORM_DIGIT                     /* ... and a digit       */
} ngx_http_idem_form_state_e;


struct ngx_http_idem_form_s {
    const ngx_http_idem_form_options_t  *options;

    ngx_http_idem_canon_t         canon;
    ngx_int_t                     rc;
    size_t                        left;            /* of the size limit   */

    ngx_http_idem_form_state_e    state;
    u_char                        digit;           /* first of an escape  */

    u_char                       *text;            /* name or value, as
                                                      far as it was read  */
    size_t                        len;
    size_t                        size;

    size_t                        base;            /* of the field, on the
                                                      stack               */
    size_t                        n;               /* fields on the stack */
    uint32_t                      nothing;         /* fields of no byte   */
    unsigned                      value:1;  /* behind the "="      */
    unsigned                      excluded:1;
    unsigned                      closing:1;       /* no byte will come   */
    unsigned                      closed:1;
};


static ngx_int_t ngx_http_idem_form_byte(ngx_http_idem_form_t *f, u_char ch);
static ngx_int_t ngx_http_idem_form_escape(
    ngx_http_idem_form_t *f, u_char ch);
static ngx_int_t ngx_http_idem_form_name(ngx_http_idem_form_t *f);
static ngx_int_t ngx_http_idem_form_group(ngx_http_idem_form_t *f);
static ngx_int_t ngx_http_idem_form_field(ngx_http_idem_form_t *f);


ngx_http_idem_form_t *
ngx_http_idem_form_create(const ngx_http_idem_form_options_t *options,
    const ngx_http_idem_canon_mem_t *mem)
{
    ngx_http_idem_form_t  *f;

    f = ngx_http_idem_canon_calloc(mem, sizeof(ngx_http_idem_form_t));
    if (f == NULL) {
        return NULL;
    }

    f->options = options;
    f->left = options->size;

    ngx_http_idem_canon_init(&f->canon, mem);

    return f;
}


ngx_int_t
ngx_http_idem_form_feed(ngx_http_idem_form_t *f, const u_char *p, size_t len)
{
    const u_char  *last;

    if (f->rc != NGX_OK || len == 0) {
        return f->rc;
    }

    if (len > f->left) {
        f->rc = NGX_DECLINED;
        return f->rc;
    }

    f->left -= len;

    /* what is read is no longer than what it is read from */

    f->rc = ngx_http_idem_canon_grow(&f->canon.mem, &f->text, f->len,
                                     &f->size, len);

    for (last = p + len; p < last && f->rc == NGX_OK; p++) {
        f->rc = ngx_http_idem_form_byte(f, *p);
    }

    return f->rc;
}


static ngx_int_t
ngx_http_idem_form_byte(ngx_http_idem_form_t *f, u_char ch)
{
    if (f->state != NGX_HTTP_IDEM_FORM_PLAIN) {
        return ngx_http_idem_form_escape(f, ch);
    }

    switch (ch) {

    case '&':
        return ngx_http_idem_form_field(f);

    case '=':
        if (!f->value) {
            return ngx_http_idem_form_name(f);
        }

        break;

    case '%':
        f->state = NGX_HTTP_IDEM_FORM_PERCENT;
        return NGX_OK;

    case '+':
        ch = ' ';
        break;
    }

    f->text[f->len++] = ch;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_form_escape(ngx_http_idem_form_t *f, u_char ch)
{
    int  digit;

    digit = ngx_http_idem_canon_hex(ch);

    if (digit < 0) {
        return NGX_DECLINED;
    }

    if (f->state == NGX_HTTP_IDEM_FORM_PERCENT) {
        f->digit = (u_char) digit;
        f->state = NGX_HTTP_IDEM_FORM_DIGIT;
        return NGX_OK;
    }

    f->text[f->len++] = (u_char) (f->digit << 4 | digit);
    f->state = NGX_HTTP_IDEM_FORM_PLAIN;

    return NGX_OK;
}


/* the name is complete */

static ngx_int_t
ngx_http_idem_form_name(ngx_http_idem_form_t *f)
{
    size_t       len;
    ngx_str_t   *name;
    ngx_uint_t   i;

    len = f->len;

    f->base = f->canon.len;
    f->excluded = 0;

    name = f->options->excluded;

    for (i = 0; i < f->options->nexcluded; i++) {
        if (name[i].len == len
            && ngx_memcmp(name[i].data, f->text, len) == 0)
        {
            /* a JSON Pointer is not the name of a field */

            f->excluded = (len == 0 || f->text[0] != '/');
            break;
        }
    }

    if (ngx_http_idem_form_group(f) != NGX_OK) {
        return NGX_ERROR;
    }

    f->len = 0;
    f->value = 1;

    return ngx_http_idem_canon_scalar(&f->canon, NGX_HTTP_IDEM_CANON_STRING,
                                      f->text, len);
}


/*
 * Fields whose order is kept among them have the same group: their name in
 * lower case, without leading spaces, with "_" for " " and ".", up to a NUL
 * or to a "[" that is closed.
 */

static ngx_int_t
ngx_http_idem_form_group(ngx_http_idem_form_t *f)
{
    u_char  *p, *last, *close, *group, *dst;

    if (ngx_http_idem_canon_grow(&f->canon.mem, &f->text, f->len, &f->size,
                                 f->len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    p = f->text;
    last = p + f->len;

    group = last;
    dst = last;

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
                                      group, dst - group);
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

    if (ngx_http_idem_canon_scalar(&f->canon, tag, f->text, f->len)
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


/* the fields are in their order, and one value: before that, in steps */

ngx_int_t
ngx_http_idem_form_close(ngx_http_idem_form_t *f, size_t work)
{
    ngx_int_t  rc;

    if (f->rc != NGX_OK || f->closed) {
        return f->rc;
    }

    if (f->closing) {
        rc = ngx_http_idem_canon_close_step(&f->canon, work);

    } else {

        if (f->state != NGX_HTTP_IDEM_FORM_PLAIN) {
            f->rc = NGX_DECLINED;
            return f->rc;
        }

        /* an empty body has no field; "&" has two, of no byte */

        if (f->left < f->options->size) {
            f->rc = ngx_http_idem_form_field(f);
            if (f->rc != NGX_OK) {
                return f->rc;
            }
        }

        f->closing = 1;

        rc = ngx_http_idem_canon_close_start(&f->canon,
                                             NGX_HTTP_IDEM_CANON_FORM, 0,
                                             NGX_HTTP_IDEM_FORM_UNIT, f->n);
    }

    if (rc != NGX_AGAIN) {
        f->closed = 1;
        f->rc = rc;
    }

    return rc;
}


ngx_int_t
ngx_http_idem_form_done(ngx_http_idem_form_t *f, u_char *digest)
{
    u_char                  nothing[4];
    ngx_int_t               rc;
    ngx_http_idem_digest_t  d;

    do {
        rc = ngx_http_idem_form_close(f, NGX_MAX_SIZE_T_VALUE);
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
    ngx_http_idem_canon_mem_t  mem;

    mem = f->canon.mem;

    ngx_http_idem_canon_destroy(&f->canon);
    ngx_http_idem_canon_free(&mem, f->text);

    mem.free(mem.data, f);
}
