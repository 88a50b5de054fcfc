
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The end of a container.  Its children are sorted, if they may come in any
 * order, and folded into one value (canon_close.c).  With many of them that is
 * left to steps, between which a worker can serve others: the parser has
 * nothing to say meanwhile, if the piece that it was fed ends there.  If it
 * has, all steps are made at once.
 *
 * Called by the parser, by the walker, and by json.c.
 */


#include "canonical/ngx_http_idem_json_walk.h"


/* bytes of children: what is less is closed at once */
#define NGX_HTTP_IDEM_JSON_LARGE  65536


#define ngx_http_idem_json_sorted(w, f)                                       \
    ((f)->object || (w)->options->unordered)

#define ngx_http_idem_json_is_large(w, f)                                     \
    ((w)->canon.len - (f)->base >= NGX_HTTP_IDEM_JSON_LARGE)


static int ngx_http_idem_json_ended(ngx_http_idem_json_walk_t *w);


int
ngx_http_idem_json_end(void *data)
{
    ngx_http_idem_json_walk_t *w = data;

    ngx_int_t                    rc;
    ngx_uint_t                   object;
    ngx_http_idem_json_frame_t  *f;

    if (w->closing && ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return 0;
    }

    f = &w->frames[w->depth - 1];
    object = f->object;

    if (ngx_http_idem_json_sorted(w, f)) {
        rc = ngx_http_idem_canon_close_start(&w->canon,
                                             object
                                             ? NGX_HTTP_IDEM_CANON_OBJECT
                                             : NGX_HTTP_IDEM_CANON_SET,
                                             f->base, object ? 2 : 1, f->n);

        if (rc == NGX_AGAIN) {
            w->closing = 1;

            return ngx_http_idem_json_is_large(w, f)
                   || ngx_http_idem_json_close_finish(w) == NGX_OK;
        }

    } else {
        rc = ngx_http_idem_canon_close(&w->canon, NGX_HTTP_IDEM_CANON_ARRAY,
                                       f->base);
    }

    if (rc != NGX_OK) {
        return ngx_http_idem_json_stop(w, NGX_ERROR);
    }

    return ngx_http_idem_json_ended(w);
}


ngx_int_t
ngx_http_idem_json_close_step(ngx_http_idem_json_walk_t *w, size_t work)
{
    ngx_int_t  rc;

    if (!w->closing) {
        return NGX_OK;
    }

    rc = ngx_http_idem_canon_close_step(&w->canon, work);

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    w->closing = 0;

    if (rc != NGX_OK) {
        (void) ngx_http_idem_json_stop(w, NGX_ERROR);
        return NGX_ERROR;
    }

    return ngx_http_idem_json_ended(w) ? NGX_OK : w->rc;
}


ngx_int_t
ngx_http_idem_json_close_finish(ngx_http_idem_json_walk_t *w)
{
    ngx_int_t  rc;

    do {
        rc = ngx_http_idem_json_close_step(w, NGX_MAX_SIZE_T_VALUE);
    } while (rc == NGX_AGAIN);

    return rc;
}


ngx_uint_t
ngx_http_idem_json_large(ngx_http_idem_json_walk_t *w)
{
    ngx_uint_t                   depth;
    ngx_http_idem_json_frame_t  *f;

    for (depth = w->depth; depth; depth--) {
        f = &w->frames[depth - 1];

        if (ngx_http_idem_json_sorted(w, f)
            && ngx_http_idem_json_is_large(w, f))
        {
            return depth;
        }
    }

    return 0;
}


/* it is one value on the stack now */

static int
ngx_http_idem_json_ended(ngx_http_idem_json_walk_t *w)
{
    ngx_uint_t                   leaf, object;
    ngx_http_idem_json_frame_t  *f;

    f = &w->frames[w->depth - 1];
    object = f->object;

    if (ngx_http_idem_json_listed(w)) {

        if (w->folded) {
            ngx_http_idem_json_paths_text(w->paths,
                                             (u_char *) (object ? "}" : "]"),
                                             1);

            leaf = (w->folded == w->depth);

        } else {
            leaf = (f->n == 0);

            if (leaf) {
                ngx_http_idem_json_paths_text(w->paths,
                                           (u_char *) (object ? "{}" : "[]"),
                                           2);
            }
        }

        if (leaf) {

            /* the path is its own still: no child has set another */

            w->folded = 0;

            if (ngx_http_idem_json_leaf(w, f->base) != NGX_OK) {
                return ngx_http_idem_json_stop(w, NGX_ERROR);
            }
        }
    }

    w->depth--;

    return ngx_http_idem_json_leave(w,
                                 object ? NGX_HTTP_IDEM_JSON_OBJECT
                                        : NGX_HTTP_IDEM_JSON_ARRAY,
                                 f->base, NULL, 0);
}
