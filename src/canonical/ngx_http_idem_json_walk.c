
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The parser's events, one after the other: values are pushed on the canonical
 * stack (canon.c), wanted members are kept, leaves go into the list of paths
 * (json_paths.c).  Called by the parser, which json.c feeds.  Each open
 * container has a frame (its end: json_close.c); there is no tree and no
 * recursion.
 *
 * An excluded member is read like any other and taken off the stack again
 * when its value is complete, since it may be a wanted one.
 */


#include "canonical/ngx_http_idem_json_walk.h"


static int ngx_http_idem_json_scalar(void *data,
    ngx_http_idem_json_kind_e kind, const u_char *p, size_t len);
static int ngx_http_idem_json_name(void *data, const u_char *p, size_t len);
static int ngx_http_idem_json_start(void *data, ngx_uint_t object);

static void ngx_http_idem_json_enter(ngx_http_idem_json_walk_t *w);
static void ngx_http_idem_json_step(
    ngx_http_idem_json_walk_t *w, const u_char *p, size_t len);
static ngx_int_t ngx_http_idem_json_arrive(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_track_t *t, ngx_http_idem_json_member_t *members,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len);


#define ngx_http_idem_json_tracked(w)                                         \
    ((w)->pointers.reached || (w)->excluded.reached || (w)->included.reached   \
     || (w)->redacted.reached)


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
    const ngx_http_idem_json_options_t *options,
    const ngx_http_idem_canon_mem_t *mem)
{
    size_t  size;

    ngx_memzero(w, sizeof(ngx_http_idem_json_walk_t));

    w->options = options;
    ngx_http_idem_canon_init(&w->canon, mem);

    size = options->depth * sizeof(ngx_http_idem_json_frame_t);

    w->frames = mem->alloc(mem->data, size);
    if (w->frames == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_idem_json_members(w, &w->members, options->nwanted)
        != NGX_OK
        || ngx_http_idem_json_members(w, &w->parts, options->nincluded)
           != NGX_OK
        || ngx_http_idem_json_track_init(&w->pointers, options->wanted,
                                         options->nwanted, mem)
           != NGX_OK
        || ngx_http_idem_json_track_init(&w->excluded, options->excluded,
                                         options->nexcluded, mem)
           != NGX_OK
        || ngx_http_idem_json_track_init(&w->included, options->included,
                                         options->nincluded, mem)
           != NGX_OK
        || ngx_http_idem_json_track_init(&w->redacted, options->redacted,
                                         options->nredacted, mem)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (options->detail != NGX_HTTP_IDEM_JSON_DETAIL_OFF) {
        size = sizeof(ngx_http_idem_json_paths_t);

        w->paths = mem->alloc(mem->data, size);
        if (w->paths == NULL) {
            return NGX_ERROR;
        }

        ngx_http_idem_json_paths_init(w->paths, options, mem);
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_json_walk_done(ngx_http_idem_json_walk_t *w, u_char *digest)
{
    ngx_http_idem_digest_t  d;

    if (w->closing && ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return w->rc;
    }

    if (w->paths
        && ngx_http_idem_json_paths_done(w->paths) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (w->parts
        && ngx_http_idem_json_included(w, digest) == NGX_OK)
    {
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
    ngx_http_idem_canon_mem_t  *mem;

    mem = &w->canon.mem;

    ngx_http_idem_json_members_destroy(w, w->members, w->options->nwanted);
    ngx_http_idem_json_members_destroy(w, w->parts, w->options->nincluded);

    ngx_http_idem_canon_free(mem, w->pointers.reached);
    ngx_http_idem_canon_free(mem, w->excluded.reached);
    ngx_http_idem_canon_free(mem, w->included.reached);
    ngx_http_idem_canon_free(mem, w->redacted.reached);

    if (w->paths) {
        ngx_http_idem_canon_free(mem, w->paths->buf);
        ngx_http_idem_canon_free(mem, w->paths);
    }

    ngx_http_idem_canon_free(mem, w->frames);

    ngx_http_idem_canon_destroy(&w->canon);
}


static int
ngx_http_idem_json_scalar(void *data, ngx_http_idem_json_kind_e kind,
    const u_char *p, size_t len)
{
    ngx_http_idem_json_walk_t *w = data;

    size_t  base;

    if (w->closing && ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return 0;
    }

    ngx_http_idem_json_enter(w);

    base = w->canon.len;

    if (ngx_http_idem_canon_scalar(&w->canon,
                                   ngx_http_idem_json_tags[kind],
                                   p, len)
        != NGX_OK)
    {
        return ngx_http_idem_json_stop(w, NGX_ERROR);
    }

    if (ngx_http_idem_json_listed(w)) {

        if (w->redacted.inside) {
            ngx_http_idem_json_paths_redacted(w->paths, p, len);

        } else if (kind == NGX_HTTP_IDEM_JSON_STRING) {
            ngx_http_idem_json_paths_string(w->paths, p, len);

        } else {
            ngx_http_idem_json_paths_text(w->paths, p, len);
        }

        if (!w->folded
            && ngx_http_idem_json_leaf(w, base) != NGX_OK)
        {
            return ngx_http_idem_json_stop(w, NGX_ERROR);
        }
    }

    return ngx_http_idem_json_leave(w, kind, base, p, len);
}


static int
ngx_http_idem_json_name(void *data, const u_char *p, size_t len)
{
    ngx_http_idem_json_walk_t *w = data;

    ngx_http_idem_json_frame_t  *f;

    if (w->closing && ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return 0;
    }

    f = &w->frames[w->depth - 1];

    if (w->depth == 1) {
        w->wanted = ngx_http_idem_json_track_find(&w->pointers, p, len);
    }

    if (!w->excluded.inside
        && ngx_http_idem_json_track_find(&w->excluded, p, len))
    {
        w->excluded.inside = w->depth;
    }

    if (!w->redacted.inside
        && ngx_http_idem_json_track_find(&w->redacted, p, len))
    {
        w->redacted.inside = w->depth;
    }

    ngx_http_idem_json_step(w, p, len);

    if (ngx_http_idem_json_shown(w)) {

        if (!w->folded) {
            ngx_http_idem_json_paths_name(w->paths, f->path, p, len);

        } else {
            if (f->n) {
                ngx_http_idem_json_paths_text(w->paths,
                                              (u_char *) ",", 1);
            }

            ngx_http_idem_json_paths_string(w->paths, p, len);
            ngx_http_idem_json_paths_text(w->paths, (u_char *) ":", 1);
        }
    }

    if (ngx_http_idem_canon_scalar(&w->canon,
                                   NGX_HTTP_IDEM_CANON_STRING,
                                   p, len)
        != NGX_OK)
    {
        return ngx_http_idem_json_stop(w, NGX_ERROR);
    }

    return 1;
}


static int
ngx_http_idem_json_start(void *data, ngx_uint_t object)
{
    ngx_http_idem_json_walk_t *w = data;

    ngx_http_idem_json_frame_t  *f;

    if (w->closing && ngx_http_idem_json_close_finish(w) != NGX_OK) {
        return 0;
    }

    if (w->depth == w->options->depth) {
        return ngx_http_idem_json_stop(w, NGX_DECLINED);
    }

    ngx_http_idem_json_enter(w);

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


/* before any value: an element of an array has no name, but a place */

static void
ngx_http_idem_json_enter(ngx_http_idem_json_walk_t *w)
{
    u_char                       index[NGX_INT_T_LEN], *p, *last;
    ngx_uint_t                   n;
    ngx_http_idem_json_frame_t  *f;

    if (w->depth == 0) {
        return;
    }

    f = &w->frames[w->depth - 1];

    if (f->object || !(w->paths || ngx_http_idem_json_tracked(w))) {
        return;
    }

    p = last = index + sizeof(index);
    n = f->index;

    do {
        *--p = (u_char) ('0' + n % 10);
        n /= 10;
    } while (n);

    ngx_http_idem_json_step(w, p, last - p);

    if (!ngx_http_idem_json_shown(w)) {
        return;
    }

    if (!w->folded) {
        ngx_http_idem_json_paths_name(w->paths, f->path, p, last - p);

    } else if (f->n) {
        ngx_http_idem_json_paths_text(w->paths, (u_char *) ",", 1);
    }
}


/* after any value, which is on top of the stack, from "base" on */

int
ngx_http_idem_json_leave(ngx_http_idem_json_walk_t *w,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len)
{
    ngx_str_t   *names;
    ngx_uint_t   i;

    if (w->depth == 1 && w->wanted) {

        /* a name may be in the list more than once */

        names = w->options->wanted;

        for (i = w->wanted - 1; i < w->options->nwanted; i++) {

            if (ngx_http_idem_json_track_find(&w->pointers, names[i].data,
                                              names[i].len)
                == w->wanted
                && ngx_http_idem_json_keep(w, &w->members[i], kind, base,
                                           p, len)
                   != NGX_OK)
            {
                return ngx_http_idem_json_stop(w, NGX_ERROR);
            }
        }

        w->wanted = 0;
    }

    if (ngx_http_idem_json_arrive(w, &w->pointers, w->members, kind,
                                  base, p, len)
        != NGX_OK
        || ngx_http_idem_json_arrive(w, &w->included, w->parts, kind,
                                     base, p, len)
           != NGX_OK)
    {
        return ngx_http_idem_json_stop(w, NGX_ERROR);
    }

    if (w->depth) {
        w->frames[w->depth - 1].index++;
    }

    if (w->included.inside == w->depth) {
        w->included.inside = 0;
    }

    if (w->redacted.inside == w->depth) {
        w->redacted.inside = 0;
    }

    if (w->excluded.inside && w->excluded.inside == w->depth) {
        w->excluded.inside = 0;
        w->canon.len = w->hidden_base;
        return 1;
    }

    if (w->depth) {
        w->frames[w->depth - 1].n++;
    }

    return 1;
}


/* to a member or element of the open container, behind its name */

static void
ngx_http_idem_json_step(ngx_http_idem_json_walk_t *w,
    const u_char *p, size_t len)
{
    if (ngx_http_idem_json_tracked(w)) {
        ngx_http_idem_json_track_step(&w->pointers, w->depth, p, len);
        ngx_http_idem_json_track_step(&w->excluded, w->depth, p, len);
        ngx_http_idem_json_track_step(&w->redacted, w->depth, p, len);
        ngx_http_idem_json_track_step(&w->included, w->depth, p, len);
    }

    if (w->excluded.inside == w->depth) {
        w->hidden_base = w->canon.len;
    }
}


/* the value that ends is one that a pointer leads to */

static ngx_int_t
ngx_http_idem_json_arrive(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_track_t *t, ngx_http_idem_json_member_t *members,
    ngx_http_idem_json_kind_e kind, size_t base, const u_char *p, size_t len)
{
    ngx_uint_t  i;

    if (t->reached == NULL) {
        return NGX_OK;
    }

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


ngx_int_t
ngx_http_idem_json_leaf(ngx_http_idem_json_walk_t *w, size_t base)
{
    ngx_str_t  value;

    value.data = w->canon.stack + base;
    value.len = w->canon.len - base;

    return ngx_http_idem_json_paths_add(w->paths, &value);
}


int
ngx_http_idem_json_stop(ngx_http_idem_json_walk_t *w, ngx_int_t rc)
{
    w->rc = rc;

    return 0;
}
