
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * JSON by yyjson, which makes a tree of the whole text: bytes are collected,
 * parsed in place when the last one is there, and the tree is walked, in steps
 * if need be.  A megabyte takes yyjson a millisecond or two.
 *
 * By itself yyjson refuses all that RFC 8259 does, and asks whether it got the
 * memory that it asked for.  Compiled with IDEMPOTENCY_JSON=yyjson, instead of
 * ..._json_yajl.c.
 *
 * Called by json.c through the table; calls the events.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <yyjson.h>

#include "canonical/ngx_http_idem_json_parser.h"


/* what an event costs, in the unit of a step's work; and 1 for some bytes */
#define NGX_HTTP_IDEM_YYJSON_EVENT  16
#define NGX_HTTP_IDEM_YYJSON_BYTES  4


/* an open container */

typedef struct {
    union {
        yyjson_arr_iter                 array;
        yyjson_obj_iter                 object;
    } children;
    unsigned                            is_object:1;
} ngx_http_idem_yyjson_frame_t;


typedef struct {
    const ngx_http_idem_json_events_t  *events;
    void                               *data;
    ngx_http_idem_canon_mem_t           mem;
    yyjson_alc                          alc;

    u_char                             *text;
    size_t                              len;
    size_t                              size;

    yyjson_doc                         *doc;
    yyjson_val                         *next;     /* whose event is next, or
                                                     NULL: the innermost
                                                     container's child     */

    ngx_http_idem_yyjson_frame_t       *frames;
    ngx_uint_t                          depth;    /* of them in use       */
} ngx_http_idem_yyjson_t;


static void *ngx_http_idem_yyjson_create(
    const ngx_http_idem_json_events_t *events, void *data, ngx_uint_t depth,
    const ngx_http_idem_canon_mem_t *mem);
static ngx_int_t ngx_http_idem_yyjson_feed(void *parser, const u_char *p,
    size_t len);
static ngx_int_t ngx_http_idem_yyjson_flush(void *parser);
static size_t ngx_http_idem_yyjson_cut(void *parser, ngx_uint_t large,
    ngx_uint_t depth, const u_char *p, size_t len);
static ngx_int_t ngx_http_idem_yyjson_last(void *parser);
static ngx_int_t ngx_http_idem_yyjson_step(void *parser, size_t *work);
static int ngx_http_idem_yyjson_child(ngx_http_idem_yyjson_t *y);
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
    ngx_http_idem_yyjson_feed,
    ngx_http_idem_yyjson_flush,
    ngx_http_idem_yyjson_cut,
    ngx_http_idem_yyjson_last,
    ngx_http_idem_yyjson_step,
    ngx_http_idem_yyjson_destroy
};


static void *
ngx_http_idem_yyjson_create(const ngx_http_idem_json_events_t *events,
    void *data, ngx_uint_t depth, const ngx_http_idem_canon_mem_t *mem)
{
    size_t                   size;
    ngx_http_idem_yyjson_t  *y;

    size = sizeof(ngx_http_idem_yyjson_t)
           + depth * sizeof(ngx_http_idem_yyjson_frame_t);

    y = mem->alloc(mem->data, size);
    if (y == NULL) {
        return NULL;
    }

    ngx_memzero(y, sizeof(ngx_http_idem_yyjson_t));

    y->events = events;
    y->data = data;
    y->mem = *mem;
    y->frames = (ngx_http_idem_yyjson_frame_t *) (y + 1);

    y->alc.malloc = ngx_http_idem_yyjson_alloc;
    y->alc.realloc = ngx_http_idem_yyjson_realloc;
    y->alc.free = ngx_http_idem_yyjson_free;
    y->alc.ctx = &y->mem;

    return y;
}


static ngx_int_t
ngx_http_idem_yyjson_feed(void *parser, const u_char *p, size_t len)
{
    ngx_http_idem_yyjson_t *y = parser;

    if (ngx_http_idem_canon_grow(&y->mem, &y->text, y->len, &y->size,
                                 len + YYJSON_PADDING_SIZE)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(y->text + y->len, p, len);
    y->len += len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_yyjson_flush(void *parser)
{
    return NGX_OK;
}


static size_t
ngx_http_idem_yyjson_cut(void *parser, ngx_uint_t large, ngx_uint_t depth,
    const u_char *p, size_t len)
{
    return len;
}


static ngx_int_t
ngx_http_idem_yyjson_last(void *parser)
{
    ngx_http_idem_yyjson_t *y = parser;

    yyjson_read_err  err;

    if (y->len == 0) {
        return NGX_DECLINED;
    }

    ngx_memzero(y->text + y->len, YYJSON_PADDING_SIZE);

    y->doc = yyjson_read_opts((char *) y->text, y->len,
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

        } else if (!ngx_http_idem_yyjson_child(y)) {
            return NGX_ABORT;
        }

        *work -= ngx_min(*work, cost);

        if (y->depth < depth) {
            return NGX_AGAIN;
        }
    }

    return NGX_OK;
}


/* the next child of the innermost container, or its end */

static int
ngx_http_idem_yyjson_child(ngx_http_idem_yyjson_t *y)
{
    yyjson_val                    *name;
    ngx_http_idem_yyjson_frame_t  *f;

    f = &y->frames[y->depth - 1];

    if (!f->is_object) {
        y->next = yyjson_arr_iter_next(&f->children.array);

    } else {
        name = yyjson_obj_iter_next(&f->children.object);

        if (name) {
            y->next = yyjson_obj_iter_get_val(name);

            return y->events->name(y->data, (u_char *) yyjson_get_str(name),
                                   yyjson_get_len(name));
        }
    }

    if (y->next) {
        return 1;
    }

    y->depth--;

    return y->events->end(y->data);
}


static int
ngx_http_idem_yyjson_value(ngx_http_idem_yyjson_t *y, yyjson_val *v)
{
    switch (yyjson_get_type(v)) {

    case YYJSON_TYPE_NULL:
        return y->events->null(y->data);

    case YYJSON_TYPE_BOOL:
        return y->events->boolean(y->data, yyjson_get_bool(v));

    case YYJSON_TYPE_RAW:
        return y->events->number(y->data, yyjson_get_raw(v),
                                 yyjson_get_len(v));

    case YYJSON_TYPE_STR:
        return y->events->string(y->data, (u_char *) yyjson_get_str(v),
                                 yyjson_get_len(v));

    case YYJSON_TYPE_ARR:
        return ngx_http_idem_yyjson_open(y, v, 0);

    default: /* YYJSON_TYPE_OBJ */
        return ngx_http_idem_yyjson_open(y, v, 1);
    }
}


/* that there is a frame for it is up to the event, which counts them */

static int
ngx_http_idem_yyjson_open(ngx_http_idem_yyjson_t *y, yyjson_val *v,
    ngx_uint_t object)
{
    ngx_http_idem_yyjson_frame_t  *f;

    if (!(object ? y->events->start_object(y->data)
                 : y->events->start_array(y->data)))
    {
        return 0;
    }

    f = &y->frames[y->depth++];

    f->is_object = object;

    return object ? yyjson_obj_iter_init(v, &f->children.object)
                  : yyjson_arr_iter_init(v, &f->children.array);
}


static void
ngx_http_idem_yyjson_destroy(void *parser)
{
    ngx_http_idem_yyjson_t *y = parser;

    ngx_http_idem_canon_mem_t  mem;

    mem = y->mem;

    yyjson_doc_free(y->doc);

    if (y->text) {
        mem.free(mem.data, y->text);
    }

    mem.free(mem.data, y);
}


static void *
ngx_http_idem_yyjson_alloc(void *data, size_t size)
{
    ngx_http_idem_canon_mem_t *mem = data;

    return mem->alloc(mem->data, size);
}


static void *
ngx_http_idem_yyjson_realloc(void *data, void *p, size_t old, size_t size)
{
    ngx_http_idem_canon_mem_t *mem = data;

    void  *new;

    new = mem->alloc(mem->data, size);

    if (new && p) {
        ngx_memcpy(new, p, ngx_min(old, size));
        mem->free(mem->data, p);
    }

    return new;
}


static void
ngx_http_idem_yyjson_free(void *data, void *p)
{
    ngx_http_idem_canon_mem_t *mem = data;

    if (p) {
        mem->free(mem->data, p);
    }
}
