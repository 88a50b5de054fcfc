
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The tokens of a JSON Pointer, compared where they stand: they are few and
 * short, and nothing is made of them beforehand.  A track knows how many
 * tokens of each pointer of a list have been met on the way to where the
 * walker is.
 */


#include "canonical/ngx_http_idem_json_pointer.h"


ngx_uint_t
ngx_http_idem_json_pointer_valid(const ngx_str_t *pointer)
{
    size_t  i;

    for (i = 0; i < pointer->len; i++) {

        if (pointer->data[i] != '~') {
            continue;
        }

        if (++i == pointer->len
            || (pointer->data[i] != '0' && pointer->data[i] != '1'))
        {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t
ngx_http_idem_json_pointer_tokens(const ngx_str_t *pointer)
{
    size_t      i;
    ngx_uint_t  n;

    if (!ngx_http_idem_json_is_pointer(pointer)) {
        return 1;
    }

    for (i = 0, n = 0; i < pointer->len; i++) {
        n += (pointer->data[i] == '/');
    }

    return n;
}


/* whether the n-th token of a pointer, from 1 on, is this */

static ngx_uint_t
ngx_http_idem_json_pointer_is(const ngx_str_t *pointer, ngx_uint_t n,
    const u_char *p, size_t len)
{
    u_char         ch;
    const u_char  *q, *last;

    q = pointer->data;
    last = pointer->data + pointer->len;

    for ( /* void */ ; q < last; q++) {
        if (*q == '/' && --n == 0) {
            break;
        }
    }

    if (q == last) {
        return 0;
    }

    for (q++; q < last && *q != '/'; q++) {
        ch = *q;

        if (ch == '~' && q + 1 < last) {
            ch = (*++q == '1') ? '/' : '~';
        }

        if (len == 0 || *p != ch) {
            return 0;
        }

        p++;
        len--;
    }

    return len == 0;
}


ngx_int_t
ngx_http_idem_json_track_init(ngx_http_idem_json_track_t *t)
{
    ngx_uint_t  i;

    if (t->n == 0) {
        return NGX_OK;
    }

    for (i = 0; i < t->n; i++) {
        t->pointers |= ngx_http_idem_json_is_pointer(&t->list[i]);
    }

    t->reached = ngx_http_idem_canon_calloc(t->n * sizeof(ngx_uint_t));

    return t->reached ? NGX_OK : NGX_ERROR;
}


void
ngx_http_idem_json_track_step(ngx_http_idem_json_track_t *t,
    ngx_uint_t depth, ngx_uint_t member, const u_char *p, size_t len)
{
    ngx_uint_t        i, met;
    const ngx_str_t  *name;

    for (i = 0; i < t->n; i++) {
        name = &t->list[i];

        if (ngx_http_idem_json_is_pointer(name)) {

            if (t->reached[i] + 1 < depth) {
                continue;
            }

            t->reached[i] = depth - 1
                            + ngx_http_idem_json_pointer_is(name, depth, p,
                                                            len);

            met = ngx_http_idem_json_track_at(t, i, depth);

        } else {

            if (!member || (t->top && depth > 1)) {
                continue;
            }

            met = (name->len == len && ngx_memcmp(name->data, p, len) == 0);

            if (t->top) {
                t->reached[i] = met;
            }
        }

        if (met && !t->inside) {
            t->inside = depth;
        }
    }
}


ngx_uint_t
ngx_http_idem_json_track_at(const ngx_http_idem_json_track_t *t,
    ngx_uint_t i, ngx_uint_t depth)
{
    return t->reached[i] == depth
           && ngx_http_idem_json_pointer_tokens(&t->list[i]) == depth;
}
