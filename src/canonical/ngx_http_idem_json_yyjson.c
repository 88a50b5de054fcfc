
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * JSON by yyjson, which makes a tree of a text: a large text is parsed in
 * pieces, and the trees are walked.
 *
 * By itself yyjson refuses all that RFC 8259 does, and asks whether it got the
 * memory that it asked for.  Where the build finds no yyjson, ..._json_yajl.c
 * is compiled instead.
 *
 * Called by json.c and json_edit.c through the table; calls the events.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <yyjson.h>

#include "canonical/ngx_http_idem_json_parser.h"


/* the cost of an event, and the bytes that cost 1, in units of work */
#define NGX_HTTP_IDEM_YYJSON_EVENT  8
#define NGX_HTTP_IDEM_YYJSON_BYTES  4


/* a text that is larger is parsed in pieces of about this size; tests have
   smaller ones */
#ifndef NGX_HTTP_IDEM_YYJSON_PIECE
#define NGX_HTTP_IDEM_YYJSON_PIECE  65536
#endif


/* an open container */

typedef struct {
    union {
        yyjson_arr_iter                 array;
        yyjson_obj_iter                 object;
    } children;
    unsigned                            is_object:1;
    unsigned                            in_pieces:1; /* the text has more
                                                        children           */
    unsigned                            comma:1;     /* ... one at least   */
    unsigned                            entered:1;   /* its last child was in
                                                        pieces, too        */
} ngx_http_idem_yyjson_frame_t;


typedef struct {
    const ngx_http_idem_json_events_t  *events;
    void                               *data;
    yyjson_alc                          alc;

    const u_char                       *rest;     /* of a text in pieces: */
    const u_char                       *end;      /* to be parsed yet     */

    u_char                             *piece;    /* text of "doc"        */
    size_t                              piece_size;
    yyjson_doc                         *doc;
    yyjson_val                         *next;     /* whose event is next, or
                                                     NULL: the innermost
                                                     container's child     */
    ngx_uint_t                          enter;    /* the next container is
                                                     in pieces            */

    ngx_http_idem_yyjson_frame_t       *frames;
    ngx_uint_t                          nframes;
    ngx_uint_t                          depth;    /* of them in use       */
} ngx_http_idem_yyjson_t;


static void *ngx_http_idem_yyjson_create(
    const ngx_http_idem_json_events_t *events, void *data, ngx_uint_t depth);
static ngx_int_t ngx_http_idem_yyjson_text(void *parser, const u_char *p,
    size_t len);
static ngx_int_t ngx_http_idem_yyjson_read(ngx_http_idem_yyjson_t *y,
    u_char open, const u_char *p, const u_char *stop);
static ngx_int_t ngx_http_idem_yyjson_step(void *parser, size_t *work);
static ngx_int_t ngx_http_idem_yyjson_child(ngx_http_idem_yyjson_t *y,
    size_t *cost);
static ngx_int_t ngx_http_idem_yyjson_piece(ngx_http_idem_yyjson_t *y,
    ngx_http_idem_yyjson_frame_t *f);
static const u_char *ngx_http_idem_yyjson_stop(const u_char *p,
    const u_char *end);
static const u_char *ngx_http_idem_yyjson_quote(const u_char *p,
    const u_char *end);
static const u_char *ngx_http_idem_yyjson_blanks(const u_char *p,
    const u_char *end);
static int ngx_http_idem_yyjson_value(ngx_http_idem_yyjson_t *y,
    yyjson_val *v);
static int ngx_http_idem_yyjson_open(ngx_http_idem_yyjson_t *y,
    yyjson_val *v, ngx_uint_t object);
static void ngx_http_idem_yyjson_destroy(void *parser);

static void *ngx_http_idem_yyjson_alloc(void *data, size_t size);
static void *ngx_http_idem_yyjson_realloc(void *data, void *p, size_t old,
    size_t size);
static void ngx_http_idem_yyjson_free(void *data, void *p);


const ngx_http_idem_json_parser_t  ngx_http_idem_json_yyjson = {
    "yyjson",
    ngx_http_idem_yyjson_create,
    ngx_http_idem_yyjson_text,
    ngx_http_idem_yyjson_step,
    ngx_http_idem_yyjson_destroy
};


static void *
ngx_http_idem_yyjson_create(const ngx_http_idem_json_events_t *events,
    void *data, ngx_uint_t depth)
{
    size_t                   size;
    ngx_http_idem_yyjson_t  *y;

    size = sizeof(ngx_http_idem_yyjson_t)
           + depth * sizeof(ngx_http_idem_yyjson_frame_t);

    y = ngx_http_idem_canon_alloc(size);
    if (y == NULL) {
        return NULL;
    }

    ngx_memzero(y, sizeof(ngx_http_idem_yyjson_t));

    y->events = events;
    y->data = data;
    y->frames = (ngx_http_idem_yyjson_frame_t *) (y + 1);
    y->nframes = depth;

    y->alc.malloc = ngx_http_idem_yyjson_alloc;
    y->alc.realloc = ngx_http_idem_yyjson_realloc;
    y->alc.free = ngx_http_idem_yyjson_free;

    return y;
}


/*
 * yyjson parses a text at once, which would take too long for a large one, and
 * 16 times its memory.  So a large container is cut into pieces at its commas,
 * and each piece, with brackets of its own, is a text for yyjson.  A child that
 * is too large for a piece is opened by a piece that has its name and its two
 * brackets only; the child is cut then, too.  yyjson checks each piece; what is
 * between them is checked here.
 */

static ngx_int_t
ngx_http_idem_yyjson_text(void *parser, const u_char *p, size_t len)
{
    ngx_http_idem_yyjson_t *y = parser;

    ngx_int_t      rc;
    const u_char  *start, *end;

    if (len == 0) {
        return NGX_DECLINED;
    }

    end = p + len;
    start = ngx_http_idem_yyjson_blanks(p, end);

    if (len > NGX_HTTP_IDEM_YYJSON_PIECE && y->nframes
        && start < end && (*start == '{' || *start == '['))
    {
        y->rest = start + 1;
        y->end = end;
        y->enter = 1;

        return ngx_http_idem_yyjson_read(y, 0, start, start);
    }

    rc = ngx_http_idem_yyjson_read(y, 0, p, end);

    if (y->nframes == 0) {

        /* no event is wanted */

        y->next = NULL;
    }

    return rc;
}


/*
 * Parses what is between "p" and "stop", in brackets if "open" is one.  Where
 * "stop" is a bracket that opens a child, the child is empty.  Brackets that
 * belong together are two characters apart.
 */

static ngx_int_t
ngx_http_idem_yyjson_read(ngx_http_idem_yyjson_t *y, u_char open,
    const u_char *p, const u_char *stop)
{
    size_t           len;
    u_char          *t;
    yyjson_read_err  err;

    len = stop - p;

    if (ngx_http_idem_canon_grow(&y->piece, 0, &y->piece_size,
                                 len + 4 + YYJSON_PADDING_SIZE)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    t = y->piece;

    if (open) {
        *t++ = open;
    }

    t = ngx_cpymem(t, p, len);

    if (y->enter) {
        *t++ = *stop;
        *t++ = *stop + 2;
    }

    if (open) {
        *t++ = open + 2;
    }

    ngx_memzero(t, YYJSON_PADDING_SIZE);

    yyjson_doc_free(y->doc);

    y->doc = yyjson_read_opts((char *) y->piece, t - y->piece,
                              YYJSON_READ_INSITU|YYJSON_READ_NUMBER_AS_RAW,
                              &y->alc, &err);

    if (y->doc == NULL) {
        return (err.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
               ? NGX_ERROR : NGX_DECLINED;
    }

    y->next = yyjson_doc_get_root(y->doc);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_yyjson_step(void *parser, size_t *work)
{
    ngx_http_idem_yyjson_t *y = parser;

    size_t       cost;
    ngx_int_t    rc;
    yyjson_val  *v;
    ngx_uint_t   depth;

    while (y->next || y->depth) {

        if (*work == 0) {
            return NGX_AGAIN;
        }

        cost = NGX_HTTP_IDEM_YYJSON_EVENT;

        v = y->next;
        depth = y->depth;

        if (v) {
            y->next = NULL;

            if (yyjson_is_str(v)) {
                cost += yyjson_get_len(v) / NGX_HTTP_IDEM_YYJSON_BYTES;
            }

            if (!ngx_http_idem_yyjson_value(y, v)) {
                return NGX_ABORT;
            }

        } else {
            rc = ngx_http_idem_yyjson_child(y, &cost);

            if (rc != NGX_OK) {
                return rc;
            }
        }

        *work -= ngx_min(*work, cost);

        if (y->depth < depth) {
            return NGX_AGAIN;
        }
    }

    return (ngx_http_idem_yyjson_blanks(y->rest, y->end) == y->end)
           ? NGX_OK : NGX_DECLINED;
}


/* the next child of the innermost container, or its end */

static ngx_int_t
ngx_http_idem_yyjson_child(ngx_http_idem_yyjson_t *y, size_t *cost)
{
    ngx_int_t                      rc;
    yyjson_val                    *name;
    ngx_http_idem_yyjson_frame_t  *f;

    f = &y->frames[y->depth - 1];

    for ( ;; ) {

        if (!f->is_object) {
            y->next = yyjson_arr_iter_next(&f->children.array);

        } else {
            name = yyjson_obj_iter_next(&f->children.object);

            if (name) {
                y->next = yyjson_obj_iter_get_val(name);

                return y->events->name(y->data,
                                       (u_char *) yyjson_get_str(name),
                                       yyjson_get_len(name))
                       ? NGX_OK : NGX_ABORT;
            }
        }

        if (y->next) {
            return NGX_OK;
        }

        if (!f->in_pieces) {
            break;
        }

        rc = ngx_http_idem_yyjson_piece(y, f);

        if (rc != NGX_OK) {
            return rc;
        }

        *cost += NGX_HTTP_IDEM_YYJSON_PIECE / NGX_HTTP_IDEM_YYJSON_BYTES;
    }

    y->depth--;

    return y->events->end(y->data) ? NGX_OK : NGX_ABORT;
}


/* the next children of a container that is in pieces */

static ngx_int_t
ngx_http_idem_yyjson_piece(ngx_http_idem_yyjson_t *y,
    ngx_http_idem_yyjson_frame_t *f)
{
    u_char         open;
    size_t         n;
    ngx_int_t      rc;
    const u_char  *p, *stop;

    p = y->rest;
    open = f->is_object ? '{' : '[';

    if (f->entered) {
        f->entered = 0;

        p = ngx_http_idem_yyjson_blanks(p, y->end);

        if (p == y->end) {
            return NGX_DECLINED;
        }

        f->comma = (*p == ',');

        if (f->comma) {
            p++;

        } else if (*p != ']' && *p != '}') {
            return NGX_DECLINED;
        }
    }

    stop = ngx_http_idem_yyjson_stop(p, y->end);

    if (stop == NULL) {
        return NGX_DECLINED;
    }

    y->enter = (*stop == '{' || *stop == '[');

    if (!y->enter && *stop != ',' && *stop != open + 2) {
        return NGX_DECLINED;
    }

    rc = ngx_http_idem_yyjson_read(y, open, p, stop);

    if (rc != NGX_OK) {
        return rc;
    }

    n = yyjson_get_len(y->next);

    if ((n == 0 && (f->comma || *stop == ',')) || (y->enter && n != 1)) {
        return NGX_DECLINED;
    }

    y->rest = stop + 1;

    f->comma = (*stop == ',');
    f->entered = y->enter;
    f->in_pieces = (f->comma || f->entered);

    (void) (f->is_object
            ? yyjson_obj_iter_init(y->next, &f->children.object)
            : yyjson_arr_iter_init(y->next, &f->children.array));

    y->next = NULL;

    return NGX_OK;
}


/*
 * Where a piece ends: at the end of the container; or at the last comma that
 * is near enough; or where a child begins that is too large.
 */

static const u_char *
ngx_http_idem_yyjson_stop(const u_char *p, const u_char *end)
{
    ngx_uint_t     depth;
    const u_char  *stop, *start;

    stop = NULL;
    start = p;
    depth = 0;

    for ( /* void */ ; p < end; p++) {

        if (stop && p - start >= NGX_HTTP_IDEM_YYJSON_PIECE) {
            break;
        }

        switch (*p) {

        case '"':
            p = ngx_http_idem_yyjson_quote(p + 1, end);

            if (p == NULL) {
                return NULL;
            }

            break;

        case '{':
        case '[':
            if (depth++ == 0 && stop == NULL) {
                stop = p;
            }

            break;

        case '}':
        case ']':
            if (depth-- == 0) {
                return p;
            }

            break;

        case ',':
            if (depth == 0) {
                stop = p;
            }

            break;
        }
    }

    return stop;
}


/* the one that ends a string */

static const u_char *
ngx_http_idem_yyjson_quote(const u_char *p, const u_char *end)
{
    const u_char  *quote, *q;

    for ( /* void */ ; p < end; p = quote + 1) {
        quote = memchr(p, '"', end - p);

        if (quote == NULL) {
            break;
        }

        for (q = quote; q > p && q[-1] == '\\'; q--) { /* void */ }

        if ((quote - q) % 2 == 0) {
            return quote;
        }
    }

    return NULL;
}


static const u_char *
ngx_http_idem_yyjson_blanks(const u_char *p, const u_char *end)
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) {
        p++;
    }

    return p;
}


static int
ngx_http_idem_yyjson_value(ngx_http_idem_yyjson_t *y, yyjson_val *v)
{
    switch (yyjson_get_type(v)) {

    case YYJSON_TYPE_NULL:
        return y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_NULL,
                                 (u_char *) "null", 4);

    case YYJSON_TYPE_BOOL:
        return yyjson_get_bool(v)
               ? y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_TRUE,
                                   (u_char *) "true", 4)
               : y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_FALSE,
                                   (u_char *) "false", 5);

    case YYJSON_TYPE_RAW:
        return y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_NUMBER,
                                 (u_char *) yyjson_get_raw(v),
                                 yyjson_get_len(v));

    case YYJSON_TYPE_STR:
        return y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_STRING,
                                 (u_char *) yyjson_get_str(v),
                                 yyjson_get_len(v));

    default: /* YYJSON_TYPE_ARR, YYJSON_TYPE_OBJ */
        return ngx_http_idem_yyjson_open(y, v, yyjson_is_obj(v));
    }
}


/* the event limits the depth, so there is a frame for the container */

static int
ngx_http_idem_yyjson_open(ngx_http_idem_yyjson_t *y, yyjson_val *v,
    ngx_uint_t object)
{
    ngx_http_idem_yyjson_frame_t  *f;

    if (!y->events->start(y->data, object)) {
        return 0;
    }

    f = &y->frames[y->depth++];

    f->is_object = object;
    f->in_pieces = y->enter;
    f->comma = 0;
    f->entered = 0;

    y->enter = 0;

    return object ? yyjson_obj_iter_init(v, &f->children.object)
                  : yyjson_arr_iter_init(v, &f->children.array);
}


static void
ngx_http_idem_yyjson_destroy(void *parser)
{
    ngx_http_idem_yyjson_t *y = parser;

    yyjson_doc_free(y->doc);

    ngx_http_idem_canon_free(y->piece);
    ngx_http_idem_canon_free(y);
}


static void *
ngx_http_idem_yyjson_alloc(void *data, size_t size)
{
    return ngx_http_idem_canon_alloc(size);
}


static void *
ngx_http_idem_yyjson_realloc(void *data, void *p, size_t old, size_t size)
{
    void  *new;

    new = ngx_http_idem_canon_alloc(size);

    if (new && p) {
        ngx_memcpy(new, p, ngx_min(old, size));
        ngx_http_idem_canon_free(p);
    }

    return new;
}


static void
ngx_http_idem_yyjson_free(void *data, void *p)
{
    ngx_http_idem_canon_free(p);
}
