
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The parser's events, one after the other: values are pushed on the canonical
 * stack (canon.c), wanted members are kept, leaves go into the list of paths
 * (json_paths.c).  Called by the parser, which json.c runs.  Each open
 * container has a frame; there is no tree and no recursion.
 *
 * An excluded member is read like any other and taken off the stack again
 * when its value is complete, since it may be a wanted one.
 *
 * At the end of a container its children are sorted, if they may come in any
 * order, and folded into one value (canon_close.c).  With many of them that is
 * left to steps, between which a worker can serve others: behind a large
 * container the parser stops, and json.c makes the steps before it goes on.
 * Where the parser does not stop, they are made with the next event.
 */


#include "canonical/ngx_http_idem_json_walk.h"


static int ngx_http_idem_json_scalar(void *data,
    ngx_http_idem_json_kind_e kind, const u_char *p, size_t len);
static int ngx_http_idem_json_name(void *data, const u_char *p, size_t len);
static int ngx_http_idem_json_start(void *data, ngx_uint_t object);
static int ngx_http_idem_json_end(void *data);

static ngx_int_t ngx_http_idem_json_enter(ngx_http_idem_json_walk_t *w);
static void ngx_http_idem_json_step(ngx_http_idem_json_walk_t *w,
    ngx_uint_t member, const u_char *p, size_t len);
static int ngx_http_idem_json_ended(ngx_http_idem_json_walk_t *w);
static ngx_int_t ngx_http_idem_json_close_finish(
    ngx_http_idem_json_walk_t *w);
static int ngx_http_idem_json_leave(ngx_http_idem_json_walk_t *w,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len);
static ngx_int_t ngx_http_idem_json_arrive(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_track_t *t, ngx_http_idem_json_member_t *members,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len);
static ngx_int_t ngx_http_idem_json_leaf(ngx_http_idem_json_walk_t *w,
    size_t base);


#define ngx_http_idem_json_inside(w, list)                                    \
    ((w)->tracks[NGX_HTTP_IDEM_JSON_##list].inside)

/* whether what comes now has a path */

#define ngx_http_idem_json_shown(w)                                           \
    ((w)->paths && !ngx_http_idem_json_inside(w, EXCLUDED))

/* ... and is for the list of them */

#define ngx_http_idem_json_listed(w)                                          \
    (ngx_http_idem_json_shown(w)                                              \
     && ((w)->parts == NULL || ngx_http_idem_json_inside(w, INCLUDED)))


static const u_char  ngx_http_idem_json_tags[] = {
    0,                                           /* by kind, scalars only */
    NGX_HTTP_IDEM_CANON_STRING,
    NGX_HTTP_IDEM_CANON_NUMBER,
    NGX_HTTP_IDEM_CANON_TRUE,
    NGX_HTTP_IDEM_CANON_FALSE,
    NGX_HTTP_IDEM_CANON_NULL
};


const ngx_http_idem_json_events_t  ngx_http_idem_json_walk_events = {
    ngx_http_idem_json_scalar,
    ngx_http_idem_json_name,
    ngx_http_idem_json_start,
    ngx_http_idem_json_end
};


ngx_int_t
ngx_http_idem_json_walk_init(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_options_t *options)
{
    ngx_uint_t                   i;
    ngx_http_idem_json_track_t  *t;

    w->options = options;
    w->rc = NGX_ERROR;

    t = w->tracks;

    t[NGX_HTTP_IDEM_JSON_WANTED].list = options->wanted;
    t[NGX_HTTP_IDEM_JSON_WANTED].n = options->nwanted;
    t[NGX_HTTP_IDEM_JSON_WANTED].top = 1;
    t[NGX_HTTP_IDEM_JSON_EXCLUDED].list = options->excluded;
    t[NGX_HTTP_IDEM_JSON_EXCLUDED].n = options->nexcluded;
    t[NGX_HTTP_IDEM_JSON_INCLUDED].list = options->included;
    t[NGX_HTTP_IDEM_JSON_INCLUDED].n = options->nincluded;
    t[NGX_HTTP_IDEM_JSON_REDACTED].list = options->redacted;
    t[NGX_HTTP_IDEM_JSON_REDACTED].n = options->nredacted;

    w->frames = ngx_http_idem_canon_alloc(options->depth
                                       * sizeof(ngx_http_idem_json_frame_t));
    if (w->frames == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_HTTP_IDEM_JSON_TRACKS; i++) {
        if (ngx_http_idem_json_track_init(&t[i]) != NGX_OK) {
            return NGX_ERROR;
        }

        w->pointers |= t[i].pointers;
    }

    if (ngx_http_idem_json_members(&w->members, options->nwanted) != NGX_OK
        || ngx_http_idem_json_members(&w->parts, options->nincluded) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (options->detail != NGX_HTTP_IDEM_JSON_DETAIL_OFF) {
        w->paths = ngx_http_idem_canon_alloc(
                                         sizeof(ngx_http_idem_json_paths_t));
        if (w->paths == NULL) {
            return NGX_ERROR;
        }

        ngx_http_idem_json_paths_init(w->paths, options);
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_json_walk_done(ngx_http_idem_json_walk_t *w, u_char *digest)
{
    ngx_http_idem_digest_t  d;

    if (w->paths && ngx_http_idem_json_paths_done(w->paths) != NGX_OK) {
        return NGX_ERROR;
    }

    if (w->parts && ngx_http_idem_json_included(w, digest) == NGX_OK) {
        return NGX_OK;
    }

    /* all that is left on the stack is the document, as one value */

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, "json", 4);
    ngx_http_idem_digest_update(&d, w->canon.stack, w->canon.len);
    ngx_http_idem_digest_done(&d, digest);

    return NGX_OK;
}


void
ngx_http_idem_json_walk_destroy(ngx_http_idem_json_walk_t *w)
{
    ngx_uint_t  i;

    ngx_http_idem_json_members_destroy(w->members, w->options->nwanted);
    ngx_http_idem_json_members_destroy(w->parts, w->options->nincluded);

    for (i = 0; i < NGX_HTTP_IDEM_JSON_TRACKS; i++) {
        ngx_http_idem_canon_free(w->tracks[i].reached);
    }

    if (w->paths) {
        ngx_http_idem_canon_free(w->paths->buf);
        ngx_http_idem_canon_free(w->paths);
    }

    ngx_http_idem_canon_free(w->frames);

    ngx_http_idem_canon_destroy(&w->canon);
}


static int
ngx_http_idem_json_scalar(void *data, ngx_http_idem_json_kind_e kind,
    const u_char *p, size_t len)
{
    ngx_http_idem_json_walk_t *w = data;

    size_t  base;

    if (ngx_http_idem_json_enter(w) != NGX_OK) {
        return 0;
    }

    base = w->canon.len;

    if (ngx_http_idem_canon_scalar(&w->canon,
                                   ngx_http_idem_json_tags[kind],
                                   p, len)
        != NGX_OK)
    {
        return 0;
    }

    if (ngx_http_idem_json_listed(w)) {

        if (ngx_http_idem_json_inside(w, REDACTED)) {
            ngx_http_idem_json_paths_redacted(w->paths, p, len);

        } else if (kind == NGX_HTTP_IDEM_JSON_STRING) {
            ngx_http_idem_json_paths_string(w->paths, p, len);

        } else {
            ngx_http_idem_json_paths_text(w->paths, p, len);
        }

        if (!w->folded && ngx_http_idem_json_leaf(w, base) != NGX_OK) {
            return 0;
        }
    }

    return ngx_http_idem_json_leave(w, kind, base, p, len);
}


static int
ngx_http_idem_json_name(void *data, const u_char *p, size_t len)
{
    ngx_http_idem_json_walk_t *w = data;

    ngx_http_idem_json_frame_t  *f;

    if (ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return 0;
    }

    f = &w->frames[w->depth - 1];

    ngx_http_idem_json_step(w, 1, p, len);

    if (ngx_http_idem_json_shown(w)) {

        if (!w->folded) {
            ngx_http_idem_json_paths_name(w->paths, f->path, p, len);

        } else {
            if (f->n) {
                ngx_http_idem_json_paths_text(w->paths, (u_char *) ",", 1);
            }

            ngx_http_idem_json_paths_string(w->paths, p, len);
            ngx_http_idem_json_paths_text(w->paths, (u_char *) ":", 1);
        }
    }

    return ngx_http_idem_canon_scalar(&w->canon, NGX_HTTP_IDEM_CANON_STRING,
                                      p, len)
           == NGX_OK;
}


static int
ngx_http_idem_json_start(void *data, ngx_uint_t object)
{
    ngx_http_idem_json_walk_t *w = data;

    ngx_http_idem_json_frame_t  *f;

    if (w->depth == w->options->depth) {
        w->rc = NGX_DECLINED;
        return 0;
    }

    if (ngx_http_idem_json_enter(w) != NGX_OK) {
        return 0;
    }

    f = &w->frames[w->depth++];

    f->base = w->canon.len;
    f->path = w->paths ? w->paths->path_len : 0;
    f->n = 0;
    f->index = 0;
    f->object = object;

    if (ngx_http_idem_json_listed(w)) {

        if (!w->folded && !object && w->options->unordered) {
            w->folded = w->depth;
        }

        if (w->folded) {
            ngx_http_idem_json_paths_text(w->paths,
                                             (u_char *) (object ? "{" : "["),
                                             1);
        }
    }

    return 1;
}


static int
ngx_http_idem_json_end(void *data)
{
    ngx_http_idem_json_walk_t *w = data;

    ngx_int_t                    rc;
    ngx_uint_t                   object;
    ngx_http_idem_json_frame_t  *f;

    if (ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return 0;
    }

    f = &w->frames[w->depth - 1];
    object = f->object;

    if (object || w->options->unordered) {
        rc = ngx_http_idem_canon_close_start(&w->canon,
                                             object
                                             ? NGX_HTTP_IDEM_CANON_OBJECT
                                             : NGX_HTTP_IDEM_CANON_SET,
                                             f->base, object ? 2 : 1, f->n);

        if (rc == NGX_AGAIN) {
            w->closing = 1;
            return 1;
        }

    } else {
        rc = ngx_http_idem_canon_close(&w->canon, NGX_HTTP_IDEM_CANON_ARRAY,
                                       f->base);
    }

    return rc == NGX_OK && ngx_http_idem_json_ended(w);
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

    return (rc == NGX_OK && ngx_http_idem_json_ended(w)) ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_idem_json_close_finish(ngx_http_idem_json_walk_t *w)
{
    ngx_int_t  rc;

    do {
        rc = ngx_http_idem_json_close_step(w, NGX_MAX_SIZE_T_VALUE);
    } while (rc == NGX_AGAIN);

    return rc;
}


/* a container has ended, and is one value on the stack now */

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
                return 0;
            }
        }
    }

    w->depth--;

    return ngx_http_idem_json_leave(w,
                                 object ? NGX_HTTP_IDEM_JSON_OBJECT
                                        : NGX_HTTP_IDEM_JSON_ARRAY,
                                 f->base, NULL, 0);
}


/* before any value: an element of an array has no name, but a place */

static ngx_int_t
ngx_http_idem_json_enter(ngx_http_idem_json_walk_t *w)
{
    u_char                       index[NGX_INT_T_LEN], *p, *last;
    ngx_uint_t                   n;
    ngx_http_idem_json_frame_t  *f;

    if (ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return NGX_ERROR;
    }

    if (w->depth == 0) {
        return NGX_OK;
    }

    f = &w->frames[w->depth - 1];

    if (f->object || !(w->paths || w->pointers)) {
        return NGX_OK;
    }

    p = last = index + sizeof(index);
    n = f->index;

    do {
        *--p = (u_char) ('0' + n % 10);
        n /= 10;
    } while (n);

    ngx_http_idem_json_step(w, 0, p, last - p);

    if (!ngx_http_idem_json_shown(w)) {
        return NGX_OK;
    }

    if (!w->folded) {
        ngx_http_idem_json_paths_name(w->paths, f->path, p, last - p);

    } else if (f->n) {
        ngx_http_idem_json_paths_text(w->paths, (u_char *) ",", 1);
    }

    return NGX_OK;
}


/* after any value, which is on top of the stack, from "base" on */

static int
ngx_http_idem_json_leave(ngx_http_idem_json_walk_t *w,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len)
{
    ngx_uint_t  i, excluded;

    if (w->depth == 0) {
        return 1;
    }

    if (ngx_http_idem_json_arrive(w, &w->tracks[NGX_HTTP_IDEM_JSON_WANTED],
                                  w->members, kind, base, p, len)
        != NGX_OK
        || ngx_http_idem_json_arrive(w,
                                     &w->tracks[NGX_HTTP_IDEM_JSON_INCLUDED],
                                     w->parts, kind, base, p, len)
           != NGX_OK)
    {
        return 0;
    }

    excluded = (ngx_http_idem_json_inside(w, EXCLUDED) == w->depth);

    for (i = 0; i < NGX_HTTP_IDEM_JSON_TRACKS; i++) {
        if (w->tracks[i].inside == w->depth) {
            w->tracks[i].inside = 0;
        }
    }

    w->frames[w->depth - 1].index++;

    if (excluded) {
        w->canon.len = w->hidden_base;

    } else {
        w->frames[w->depth - 1].n++;
    }

    return 1;
}


/* to a member or element of the open container, behind its name */

static void
ngx_http_idem_json_step(ngx_http_idem_json_walk_t *w, ngx_uint_t member,
    const u_char *p, size_t len)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_JSON_TRACKS; i++) {
        ngx_http_idem_json_track_step(&w->tracks[i], w->depth, member, p, len);
    }

    if (ngx_http_idem_json_inside(w, EXCLUDED) == w->depth) {
        w->hidden_base = w->canon.len;
    }
}


/* the value that ends may be one that is in the list */

static ngx_int_t
ngx_http_idem_json_arrive(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_track_t *t, ngx_http_idem_json_member_t *members,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len)
{
    ngx_uint_t  i;

    for (i = 0; i < t->n; i++) {

        if (ngx_http_idem_json_track_at(t, i, w->depth)
            && ngx_http_idem_json_keep(w, &members[i], kind, base, p, len)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_json_leaf(ngx_http_idem_json_walk_t *w, size_t base)
{
    ngx_str_t  value;

    value.data = w->canon.stack + base;
    value.len = w->canon.len - base;

    return ngx_http_idem_json_paths_add(w->paths, &value);
}
