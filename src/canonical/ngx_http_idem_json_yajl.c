
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * JSON by yajl, piece by piece: a check that is stricter than yajl's, and
 * yajl's memory.
 *
 * What yajl lets through and RFC 8259 does not, looked for in the bytes on
 * their way to the parser:
 *
 *   - a surrogate escape without its other half: yajl turns "\ud800" into
 *     "?", and "\ud800\u0041" into some other character;
 *   - UTF-8 that is longer than it need be, encodes a surrogate, or lies
 *     beyond U+10FFFF: yajl checks only how many bytes follow which;
 *   - vertical tab and form feed as white space;
 *   - a string behind the document that does not end: {}"anything.
 *
 * Each would let two different texts, or one that is no JSON, pass as the
 * same document.  Everything else is left to yajl.  A backslash or a byte
 * above 0x7f is taken as if it were in a string: outside of one, it is an
 * error to yajl anyway.
 *
 * Called by json.c and json_edit.c through the table; yajl calls the events.
 */


#include <setjmp.h>

#include <ngx_config.h>
#include <ngx_core.h>

#include <yajl/yajl_parse.h>

#include "ngx_http_idem_utf8.h"
#include "canonical/ngx_http_idem_json_parser.h"


/* the cost of a byte, in units of work */
#define NGX_HTTP_IDEM_YAJL_BYTE  4


/* in front of each block that yajl has; a union, to keep blocks aligned */

typedef union {
    struct {
        ngx_queue_t                     queue;
        size_t                          size;
    } head;
    long double                         align;
} ngx_http_idem_yajl_block_t;


typedef struct {
    const ngx_http_idem_json_events_t  *events;
    void                               *data;

    yajl_handle                         handle;
    ngx_queue_t                         blocks;   /* yajl's memory        */
    jmp_buf                             no_memory;

    const u_char                       *text;     /* not parsed yet       */
    const u_char                       *last;
} ngx_http_idem_yajl_t;


static void *ngx_http_idem_yajl_create(
    const ngx_http_idem_json_events_t *events, void *data, ngx_uint_t depth);
static ngx_int_t ngx_http_idem_yajl_text(void *parser, const u_char *p,
    size_t len);
static ngx_int_t ngx_http_idem_yajl_step(void *parser, size_t *work);
static void ngx_http_idem_yajl_destroy(void *parser);
static const u_char *ngx_http_idem_yajl_piece(const u_char *p,
    const u_char *last, size_t n);
static const u_char *ngx_http_idem_yajl_quoted(const u_char *p,
    const u_char *last);
static const u_char *ngx_http_idem_yajl_escape(const u_char *p,
    const u_char *last);
static ngx_int_t ngx_http_idem_yajl_hex(const u_char *p, const u_char *last);
static ngx_int_t ngx_http_idem_yajl_parse(ngx_http_idem_yajl_t *y,
    const u_char *p, size_t len);

static int ngx_http_idem_yajl_null(void *data);
static int ngx_http_idem_yajl_boolean(void *data, int value);
static int ngx_http_idem_yajl_number(void *data, const char *p, size_t len);
static int ngx_http_idem_yajl_string(void *data, const u_char *p, size_t len);
static int ngx_http_idem_yajl_start_map(void *data);
static int ngx_http_idem_yajl_name(void *data, const u_char *p, size_t len);
static int ngx_http_idem_yajl_start_array(void *data);
static int ngx_http_idem_yajl_end(void *data);

static void *ngx_http_idem_yajl_alloc(void *data, size_t size);
static void *ngx_http_idem_yajl_realloc(void *data, void *p, size_t size);
static void ngx_http_idem_yajl_free(void *data, void *p);


const ngx_http_idem_json_parser_t  ngx_http_idem_json_yajl = {
    "yajl",
    ngx_http_idem_yajl_create,
    ngx_http_idem_yajl_text,
    ngx_http_idem_yajl_step,
    ngx_http_idem_yajl_destroy
};


/* with "number", integers and doubles come as text, too */

static const yajl_callbacks  ngx_http_idem_yajl_callbacks = {
    ngx_http_idem_yajl_null,
    ngx_http_idem_yajl_boolean,
    NULL,
    NULL,
    ngx_http_idem_yajl_number,
    ngx_http_idem_yajl_string,
    ngx_http_idem_yajl_start_map,
    ngx_http_idem_yajl_name,
    ngx_http_idem_yajl_end,
    ngx_http_idem_yajl_start_array,
    ngx_http_idem_yajl_end
};


static void *
ngx_http_idem_yajl_create(const ngx_http_idem_json_events_t *events,
    void *data, ngx_uint_t depth)
{
    ngx_http_idem_yajl_t  *y;

    y = ngx_http_idem_canon_calloc(sizeof(ngx_http_idem_yajl_t));
    if (y == NULL) {
        return NULL;
    }

    y->events = events;
    y->data = data;
    ngx_queue_init(&y->blocks);

    return y;
}


static ngx_int_t
ngx_http_idem_yajl_text(void *parser, const u_char *p, size_t len)
{
    ngx_http_idem_yajl_t *y = parser;

    if (len == 0) {
        return NGX_DECLINED;
    }

    y->text = p;
    y->last = p + len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_yajl_step(void *parser, size_t *work)
{
    ngx_http_idem_yajl_t *y = parser;

    size_t         n;
    ngx_int_t      rc;
    const u_char  *p, *end;

    p = y->text;

    if (p == y->last) {
        return ngx_http_idem_yajl_parse(y, NULL, 0);
    }

    end = ngx_http_idem_yajl_piece(p, y->last,
                                   *work / NGX_HTTP_IDEM_YAJL_BYTE);
    if (end == NULL) {
        return NGX_DECLINED;
    }

    n = end - p;

    y->text = end;
    *work -= ngx_min(*work, n * NGX_HTTP_IDEM_YAJL_BYTE);

    rc = ngx_http_idem_yajl_parse(y, p, n);

    return (rc == NGX_OK) ? NGX_AGAIN : rc;
}


static void
ngx_http_idem_yajl_destroy(void *parser)
{
    ngx_http_idem_yajl_t *y = parser;

    ngx_queue_t  *q;

    /* instead of yajl_free(), which can't be called once memory ran out */

    while (!ngx_queue_empty(&y->blocks)) {
        q = ngx_queue_head(&y->blocks);
        ngx_queue_remove(q);

        ngx_http_idem_canon_free(ngx_queue_data(q, ngx_http_idem_yajl_block_t,
                                                head.queue));
    }

    ngx_http_idem_canon_free(y);
}


/*
 * These return what is behind a piece, a string and an escape, or NULL: the
 * text is not to be parsed.
 *
 * A piece ends with a container that was opened in a piece before, or with the
 * first comma behind "n" bytes, or with the text.  So no token is in two
 * pieces, which yajl would read twice.
 */

static const u_char *
ngx_http_idem_yajl_piece(const u_char *p, const u_char *last, size_t n)
{
    ngx_uint_t     depth;
    const u_char  *start;

    depth = 0;
    start = p;

    while (p && p < last) {

        switch (*p++) {

        case '"':
            p = ngx_http_idem_yajl_quoted(p, last);
            break;

        case '[':
        case '{':
            depth++;
            break;

        case ']':
        case '}':
            if (depth-- == 0) {
                return p;
            }

            break;

        case ',':
            if ((size_t) (p - start) > n) {
                return p;
            }

            break;

        case '\v':
        case '\f':
            return NULL;
        }
    }

    return p;
}


static const u_char *
ngx_http_idem_yajl_quoted(const u_char *p, const u_char *last)
{
    size_t  n;

    while (p && p < last) {

        if (*p == '"') {
            return p + 1;
        }

        if (*p == '\\') {
            p = ngx_http_idem_yajl_escape(p + 1, last);
            continue;
        }

        n = (*p < 0x80) ? 1 : ngx_http_idem_utf8_len(p, last);
        p = n ? p + n : NULL;
    }

    return NULL;
}


/* from behind its backslash on; a high surrogate, with the low one */

static const u_char *
ngx_http_idem_yajl_escape(const u_char *p, const u_char *last)
{
    ngx_int_t  code;

    if (p == last || *p != 'u') {
        return (p == last) ? NULL : p + 1;
    }

    code = ngx_http_idem_yajl_hex(p + 1, last);

    if (code == NGX_ERROR || (code & 0xfc00) == 0xdc00) {
        return NULL;
    }

    p += 5;

    if ((code & 0xfc00) != 0xd800) {
        return p;
    }

    if (last - p < 2 || p[0] != '\\' || p[1] != 'u') {
        return NULL;
    }

    code = ngx_http_idem_yajl_hex(p + 2, last);

    return (code != NGX_ERROR && (code & 0xfc00) == 0xdc00) ? p + 6 : NULL;
}


static ngx_int_t
ngx_http_idem_yajl_hex(const u_char *p, const u_char *last)
{
    int         digit;
    ngx_int_t   code;
    ngx_uint_t  i;

    if (last - p < 4) {
        return NGX_ERROR;
    }

    code = 0;

    for (i = 0; i < 4; i++) {
        digit = ngx_http_idem_canon_hex(p[i]);

        if (digit < 0) {
            return NGX_ERROR;
        }

        code = code << 4 | digit;
    }

    return code;
}


/*
 * The one place that calls yajl; without bytes, to say that the text ended.
 * yajl does not look whether it got the memory it asked for: if there is
 * none, our allocator does not return to it, but comes back here.  yajl
 * holds nothing but memory, and that is in our list.
 */

static ngx_int_t
ngx_http_idem_yajl_parse(ngx_http_idem_yajl_t *y, const u_char *p, size_t len)
{
    yajl_status       status;
    yajl_alloc_funcs  funcs;

    if (setjmp(y->no_memory)) {
        return NGX_ERROR;
    }

    if (y->handle == NULL) {
        funcs.malloc = ngx_http_idem_yajl_alloc;
        funcs.realloc = ngx_http_idem_yajl_realloc;
        funcs.free = ngx_http_idem_yajl_free;
        funcs.ctx = y;

        y->handle = yajl_alloc(y->events->scalar
                               ? &ngx_http_idem_yajl_callbacks : NULL,
                               &funcs, y);
    }

    status = len ? yajl_parse(y->handle, p, len)
                 : yajl_complete_parse(y->handle);

    switch (status) {

    case yajl_status_ok:
        return NGX_OK;

    case yajl_status_client_canceled:
        return NGX_ABORT;

    default: /* yajl_status_error */
        return NGX_DECLINED;
    }
}


static int
ngx_http_idem_yajl_null(void *data)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_NULL,
                             (u_char *) "null", 4);
}


static int
ngx_http_idem_yajl_boolean(void *data, int value)
{
    ngx_http_idem_yajl_t *y = data;

    return value ? y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_TRUE,
                                     (u_char *) "true", 4)
                 : y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_FALSE,
                                     (u_char *) "false", 5);
}


static int
ngx_http_idem_yajl_number(void *data, const char *p, size_t len)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_NUMBER,
                             (u_char *) p, len);
}


static int
ngx_http_idem_yajl_string(void *data, const u_char *p, size_t len)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->scalar(y->data, NGX_HTTP_IDEM_JSON_STRING, p, len);
}


static int
ngx_http_idem_yajl_start_map(void *data)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->start(y->data, 1);
}


static int
ngx_http_idem_yajl_name(void *data, const u_char *p, size_t len)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->name(y->data, p, len);
}


static int
ngx_http_idem_yajl_start_array(void *data)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->start(y->data, 0);
}


static int
ngx_http_idem_yajl_end(void *data)
{
    ngx_http_idem_yajl_t *y = data;

    return y->events->end(y->data);
}


static void *
ngx_http_idem_yajl_alloc(void *data, size_t size)
{
    ngx_http_idem_yajl_t *y = data;

    ngx_http_idem_yajl_block_t  *block;

    block = ngx_http_idem_canon_alloc(sizeof(ngx_http_idem_yajl_block_t)
                                      + size);
    if (block == NULL) {
        longjmp(y->no_memory, 1);
    }

    block->head.size = size;
    ngx_queue_insert_head(&y->blocks, &block->head.queue);

    return block + 1;
}


static void *
ngx_http_idem_yajl_realloc(void *data, void *p, size_t size)
{
    void                        *new;
    ngx_http_idem_yajl_block_t  *block;

    new = ngx_http_idem_yajl_alloc(data, size);

    if (p) {
        block = (ngx_http_idem_yajl_block_t *) p - 1;
        ngx_memcpy(new, p, ngx_min(size, block->head.size));
        ngx_http_idem_yajl_free(data, p);
    }

    return new;
}


static void
ngx_http_idem_yajl_free(void *data, void *p)
{
    ngx_http_idem_yajl_block_t  *block;

    if (p == NULL) {
        return;
    }

    block = (ngx_http_idem_yajl_block_t *) p - 1;
    ngx_queue_remove(&block->head.queue);

    ngx_http_idem_canon_free(block);
}
