
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What differs between two lists of paths: a merge of two sorted lists, which
 * are read as they lie in the records, without memory of its own.  Called by
 * whoever answers a conflict.  The lists come from a store: each is checked
 * as a whole before anything is told of it.
 */


#include "ngx_http_idem_number.h"
#include "canonical/ngx_http_idem_json_paths.h"


typedef struct {
    const u_char                        *p;
    const u_char                        *last;
    ngx_uint_t                           left;     /* entries             */
    unsigned                             values:1;
    unsigned                             cut:1;

    /* the entry that was read */

    ngx_str_t                            path;
    const u_char                        *hash;
    ngx_str_t                            text;
    unsigned                             text_cut:1;
} ngx_http_idem_json_reader_t;


static ngx_int_t ngx_http_idem_json_check(
    ngx_http_idem_json_reader_t *r, const ngx_str_t *list);
static ngx_int_t ngx_http_idem_json_open(
    ngx_http_idem_json_reader_t *r, const ngx_str_t *list);
static ngx_int_t ngx_http_idem_json_read(ngx_http_idem_json_reader_t *r);
static ngx_int_t ngx_http_idem_json_field(
    ngx_http_idem_json_reader_t *r, ngx_str_t *field, size_t max);
static void ngx_http_idem_json_diff_set(ngx_http_idem_json_diff_t *diff,
    const ngx_http_idem_json_reader_t *one,
    const ngx_http_idem_json_reader_t *two);


ngx_int_t
ngx_http_idem_json_diff(const ngx_str_t *one, const ngx_str_t *two,
    ngx_uint_t max, ngx_http_idem_json_diff_pt handler, void *data,
    ngx_uint_t *more)
{
    ngx_int_t                    rc1, rc2, order;
    ngx_uint_t                   same;
    ngx_http_idem_json_diff_t    diff;
    ngx_http_idem_json_reader_t  r1, r2;

    *more = 0;

    if (ngx_http_idem_json_check(&r1, one) != NGX_OK
        || ngx_http_idem_json_check(&r2, two) != NGX_OK
        || ngx_memcmp(one->data + NGX_HTTP_IDEM_JSON_PATHS_ID,
                      two->data + NGX_HTTP_IDEM_JSON_PATHS_ID,
                      NGX_HTTP_IDEM_JSON_PATHS_HEAD
                      - NGX_HTTP_IDEM_JSON_PATHS_ID)
           != 0)
    {
        return NGX_DECLINED;
    }

    *more = (r1.cut || r2.cut);

    rc1 = ngx_http_idem_json_read(&r1);
    rc2 = ngx_http_idem_json_read(&r2);

    while (rc1 == NGX_OK || rc2 == NGX_OK) {

        order = (rc1 != NGX_OK) ? 1
                : (rc2 != NGX_OK) ? -1
                : ngx_http_idem_canon_cmp(r1.path.data, r1.path.len,
                                          r2.path.data, r2.path.len);

        if (order == 0) {
            same = (ngx_memcmp(r1.hash, r2.hash,
                               NGX_HTTP_IDEM_JSON_PATHS_HASH)
                    == 0);

        } else {
            /* a path that a cut list lacks may have been cut off */

            same = (order < 0) ? r2.cut : r1.cut;
        }

        if (!same) {

            if (max-- == 0) {
                *more = 1;
                return NGX_OK;
            }

            ngx_http_idem_json_diff_set(&diff, order <= 0 ? &r1 : NULL,
                                        order >= 0 ? &r2 : NULL);

            handler(data, &diff);
        }

        if (order <= 0) {
            rc1 = ngx_http_idem_json_read(&r1);
        }

        if (order >= 0) {
            rc2 = ngx_http_idem_json_read(&r2);
        }
    }

    return NGX_OK;
}


/*
 * All of a list: entries in order, as many as it says, and nothing behind.
 * The reader is then before the first of them.
 */

static ngx_int_t
ngx_http_idem_json_check(ngx_http_idem_json_reader_t *r,
    const ngx_str_t *list)
{
    ngx_int_t  rc;
    ngx_str_t  path;

    if (ngx_http_idem_json_open(r, list) != NGX_OK) {
        return NGX_DECLINED;
    }

    ngx_str_null(&path);

    for ( ;; ) {
        rc = ngx_http_idem_json_read(r);

        if (rc == NGX_DONE) {
            return (r->p == r->last) ? ngx_http_idem_json_open(r, list)
                                     : NGX_DECLINED;
        }

        if (rc != NGX_OK
            || (r->path.len && r->path.data[0] != '/')
            || ngx_http_idem_canon_cmp(path.data, path.len,
                                       r->path.data, r->path.len)
               > 0)
        {
            return NGX_DECLINED;
        }

        path = r->path;
    }
}


static ngx_int_t
ngx_http_idem_json_open(ngx_http_idem_json_reader_t *r, const ngx_str_t *list)
{
    const u_char  *p;

    p = list->data;

    if (list->len < NGX_HTTP_IDEM_JSON_PATHS_HEAD
        || p[0] != NGX_HTTP_IDEM_JSON_PATHS_VERSION
        || (p[1] & ~(NGX_HTTP_IDEM_JSON_PATHS_VALUES
                     | NGX_HTTP_IDEM_JSON_PATHS_CUT)))
    {
        return NGX_DECLINED;
    }

    ngx_memzero(r, sizeof(ngx_http_idem_json_reader_t));

    r->values = (p[1] & NGX_HTTP_IDEM_JSON_PATHS_VALUES) ? 1 : 0;
    r->cut = (p[1] & NGX_HTTP_IDEM_JSON_PATHS_CUT) ? 1 : 0;
    r->left = ngx_http_idem_get16(p + 2);
    r->p = p + NGX_HTTP_IDEM_JSON_PATHS_HEAD;
    r->last = p + list->len;

    return NGX_OK;
}


/* NGX_OK, NGX_DONE after the last entry, or NGX_DECLINED */

static ngx_int_t
ngx_http_idem_json_read(ngx_http_idem_json_reader_t *r)
{
    if (r->left == 0) {
        return NGX_DONE;
    }

    r->left--;

    if (ngx_http_idem_json_field(r, &r->path,
                                 NGX_HTTP_IDEM_JSON_PATH_MAX)
        != NGX_OK
        || r->last - r->p < NGX_HTTP_IDEM_JSON_PATHS_HASH)
    {
        return NGX_DECLINED;
    }

    r->hash = r->p;
    r->p += NGX_HTTP_IDEM_JSON_PATHS_HASH;

    if (!r->values) {
        return NGX_OK;
    }

    if (r->p == r->last || *r->p > 1) {
        return NGX_DECLINED;
    }

    r->text_cut = *r->p++;

    return ngx_http_idem_json_field(r, &r->text, NGX_HTTP_IDEM_JSON_TEXT_MAX);
}


/* a field is "max" bytes at most: the handler's buffers have that size */

static ngx_int_t
ngx_http_idem_json_field(ngx_http_idem_json_reader_t *r,
    ngx_str_t *field, size_t max)
{
    size_t  len;

    if (r->last - r->p < 2) {
        return NGX_DECLINED;
    }

    len = ngx_http_idem_get16(r->p);
    r->p += 2;

    if (len > max || (size_t) (r->last - r->p) < len) {
        return NGX_DECLINED;
    }

    field->data = (u_char *) r->p;
    field->len = len;
    r->p += len;

    return NGX_OK;
}


static void
ngx_http_idem_json_diff_set(ngx_http_idem_json_diff_t *diff,
    const ngx_http_idem_json_reader_t *one,
    const ngx_http_idem_json_reader_t *two)
{
    ngx_memzero(diff, sizeof(ngx_http_idem_json_diff_t));

    diff->change = (two == NULL) ? NGX_HTTP_IDEM_JSON_REMOVED
                   : (one == NULL) ? NGX_HTTP_IDEM_JSON_ADDED
                                   : NGX_HTTP_IDEM_JSON_CHANGED;

    /* of a change both have the same path */

    if (one) {
        diff->path = one->path;
        diff->old_text = one->text;
        diff->old_cut = one->text_cut;
    }

    if (two) {
        diff->path = two->path;
        diff->new_text = two->text;
        diff->new_cut = two->text_cut;
    }
}
