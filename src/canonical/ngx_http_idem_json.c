
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The bytes of a JSON body on their way to yajl: the limit on size, the check
 * that is stricter than yajl's, and yajl's memory.  Called by the body
 * reader; yajl's events go to json_walk.c.
 */


#include <setjmp.h>

#include "canonical/ngx_http_idem_json_strict.h"
#include "canonical/ngx_http_idem_json_walk.h"


/* in front of each block that yajl has; a union, to keep blocks aligned */

typedef union {
    struct {
        ngx_queue_t                      queue;
        size_t                           size;
    } head;
    long double                          align;
} ngx_http_idem_json_block_t;


struct ngx_http_idem_json_s {
    ngx_http_idem_json_walk_t     walk;
    ngx_http_idem_json_strict_t   strict;
    ngx_http_idem_canon_mem_t     mem;
    ngx_int_t                     rc;
    size_t                        left;            /* of the size limit   */

    yajl_handle                   parser;
    ngx_queue_t                   blocks;          /* yajl's memory       */
    jmp_buf                       no_memory;

    size_t                        parsed;          /* bytes given to yajl */
    u_char                       *held;            /* not yet given       */
    size_t                        nheld;
    size_t                        held_size;
};


static ngx_int_t ngx_http_idem_json_parse(
    ngx_http_idem_json_t *j, const u_char *p, size_t len);
static ngx_int_t ngx_http_idem_json_parse_held(ngx_http_idem_json_t *j);
static void *ngx_http_idem_json_alloc(void *data, size_t size);
static void *ngx_http_idem_json_realloc(void *data, void *p, size_t size);
static void ngx_http_idem_json_free(void *data, void *p);


ngx_http_idem_json_t *
ngx_http_idem_json_create(const ngx_http_idem_json_options_t *options,
    const ngx_http_idem_canon_mem_t *mem)
{
    ngx_http_idem_json_t  *j;

    j = mem->alloc(mem->data, sizeof(ngx_http_idem_json_t));
    if (j == NULL) {
        return NULL;
    }

    ngx_memzero(j, sizeof(ngx_http_idem_json_t));

    j->mem = *mem;
    j->left = options->size;
    ngx_queue_init(&j->blocks);

    if (ngx_http_idem_json_walk_init(&j->walk, options, mem)
        != NGX_OK)
    {
        ngx_http_idem_json_destroy(j);
        return NULL;
    }

    return j;
}


/*
 * A token that is not complete makes yajl read it again from its beginning
 * with the next piece.  A long string in pieces of a byte would cost the
 * square of its length: so pieces are held back until they are a fair part
 * of what yajl already had.  A body that comes in one piece is not copied.
 */

ngx_int_t
ngx_http_idem_json_feed(ngx_http_idem_json_t *j, const u_char *p, size_t len)
{
    if (j->rc != NGX_OK || len == 0) {
        return j->rc;
    }

    if (len > j->left) {
        j->rc = NGX_DECLINED;
        return j->rc;
    }

    j->left -= len;

    j->rc = ngx_http_idem_json_strict(&j->strict, p, len);
    if (j->rc != NGX_OK) {
        return j->rc;
    }

    if (len > j->parsed / 4) {
        if (ngx_http_idem_json_parse_held(j) != NGX_OK) {
            return j->rc;
        }

        return ngx_http_idem_json_parse(j, p, len);
    }

    j->rc = ngx_http_idem_canon_grow(&j->mem, &j->held, j->nheld,
                                     &j->held_size, len);
    if (j->rc != NGX_OK) {
        return j->rc;
    }

    ngx_memcpy(j->held + j->nheld, p, len);
    j->nheld += len;

    if (j->nheld > j->parsed / 4) {
        return ngx_http_idem_json_parse_held(j);
    }

    return NGX_OK;
}


/* gives yajl what was held back */

ngx_int_t
ngx_http_idem_json_flush(ngx_http_idem_json_t *j)
{
    if (j->rc != NGX_OK) {
        return j->rc;
    }

    return ngx_http_idem_json_parse_held(j);
}


ngx_int_t
ngx_http_idem_json_work(ngx_http_idem_json_t *j, size_t work)
{
    ngx_int_t  rc;

    if (j->rc != NGX_OK) {
        return j->rc;
    }

    rc = ngx_http_idem_json_close_step(&j->walk, work);

    if (rc != NGX_AGAIN) {
        j->rc = rc;
    }

    return rc;
}


/*
 * Up to the end of a large container, so that nothing comes behind it.  Most
 * have none, and are not looked at.
 */

size_t
ngx_http_idem_json_cut(ngx_http_idem_json_t *j, const u_char *p, size_t len)
{
    size_t       i;
    ngx_uint_t   large, depth, quoted, escaped;

    if (ngx_http_idem_json_flush(j) != NGX_OK) {
        return len;
    }

    large = ngx_http_idem_json_large(&j->walk);

    if (large == 0) {
        return len;
    }

    depth = j->walk.depth;
    quoted = j->strict.quoted;
    escaped = (j->strict.state == NGX_HTTP_IDEM_JSON_ESCAPE);

    for (i = 0; i < len; i++) {

        if (escaped) {
            escaped = 0;
            continue;
        }

        switch (p[i]) {

        case '"':
            quoted = !quoted;
            break;

        case '\\':
            escaped = quoted;
            break;

        case '[':
        case '{':
            depth += !quoted;
            break;

        case ']':
        case '}':
            if (!quoted && --depth < large) {
                return i + 1;
            }

            break;
        }
    }

    return len;
}


ngx_int_t
ngx_http_idem_json_done(ngx_http_idem_json_t *j, u_char *digest)
{
    if (j->rc != NGX_OK
        || ngx_http_idem_json_parse_held(j) != NGX_OK
        || ngx_http_idem_json_parse(j, NULL, 0) != NGX_OK)
    {
        return j->rc;
    }

    if (j->strict.quoted) {
        j->rc = NGX_DECLINED;
        return j->rc;
    }

    j->rc = ngx_http_idem_json_walk_done(&j->walk, digest);

    return j->rc;
}


const ngx_http_idem_json_member_t *
ngx_http_idem_json_member(ngx_http_idem_json_t *j, ngx_uint_t i)
{
    return &j->walk.members[i];
}


void
ngx_http_idem_json_paths(ngx_http_idem_json_t *j, ngx_str_t *paths)
{
    if (j->walk.paths == NULL) {
        ngx_str_null(paths);
        return;
    }

    paths->data = j->walk.paths->buf;
    paths->len = j->walk.paths->len;
}


void
ngx_http_idem_json_destroy(ngx_http_idem_json_t *j)
{
    ngx_queue_t                *q;
    ngx_http_idem_canon_mem_t   mem;

    mem = j->mem;

    /* instead of yajl_free(), which can't be called once memory ran out */

    while (!ngx_queue_empty(&j->blocks)) {
        q = ngx_queue_head(&j->blocks);
        ngx_queue_remove(q);

        mem.free(mem.data, ngx_queue_data(q, ngx_http_idem_json_block_t,
                                          head.queue));
    }

    ngx_http_idem_json_walk_destroy(&j->walk);

    if (j->held) {
        mem.free(mem.data, j->held);
    }

    mem.free(mem.data, j);
}


/*
 * The one place that calls yajl; without bytes, to say that the body ended.
 * yajl does not look whether it got the memory it asked for: if there is
 * none, our allocator does not return to it, but comes back here.  yajl
 * holds nothing but memory, and that is in our list.
 */

static ngx_int_t
ngx_http_idem_json_parse(ngx_http_idem_json_t *j, const u_char *p, size_t len)
{
    yajl_status       status;
    yajl_alloc_funcs  funcs;

    j->parsed += len;

    if (setjmp(j->no_memory)) {
        j->rc = NGX_ERROR;
        return NGX_ERROR;
    }

    if (j->parser == NULL) {
        funcs.malloc = ngx_http_idem_json_alloc;
        funcs.realloc = ngx_http_idem_json_realloc;
        funcs.free = ngx_http_idem_json_free;
        funcs.ctx = j;

        j->parser = yajl_alloc(&ngx_http_idem_json_walk_callbacks, &funcs,
                               &j->walk);
    }

    status = len ? yajl_parse(j->parser, p, len)
                 : yajl_complete_parse(j->parser);

    switch (status) {

    case yajl_status_ok:
        break;

    case yajl_status_client_canceled:
        j->rc = j->walk.rc;
        break;

    default: /* yajl_status_error */
        j->rc = NGX_DECLINED;
    }

    return j->rc;
}


static ngx_int_t
ngx_http_idem_json_parse_held(ngx_http_idem_json_t *j)
{
    size_t  n;

    n = j->nheld;
    j->nheld = 0;

    return n ? ngx_http_idem_json_parse(j, j->held, n) : NGX_OK;
}


static void *
ngx_http_idem_json_alloc(void *data, size_t size)
{
    ngx_http_idem_json_t *j = data;

    ngx_http_idem_json_block_t  *block;

    block = j->mem.alloc(j->mem.data,
                         sizeof(ngx_http_idem_json_block_t) + size);
    if (block == NULL) {
        longjmp(j->no_memory, 1);
    }

    block->head.size = size;
    ngx_queue_insert_head(&j->blocks, &block->head.queue);

    return block + 1;
}


static void *
ngx_http_idem_json_realloc(void *data, void *p, size_t size)
{
    void                        *new;
    ngx_http_idem_json_block_t  *block;

    new = ngx_http_idem_json_alloc(data, size);

    if (p) {
        block = (ngx_http_idem_json_block_t *) p - 1;
        ngx_memcpy(new, p, ngx_min(size, block->head.size));
        ngx_http_idem_json_free(data, p);
    }

    return new;
}


static void
ngx_http_idem_json_free(void *data, void *p)
{
    ngx_http_idem_json_t *j = data;

    ngx_http_idem_json_block_t  *block;

    if (p == NULL) {
        return;
    }

    block = (ngx_http_idem_json_block_t *) p - 1;
    ngx_queue_remove(&block->head.queue);

    j->mem.free(j->mem.data, block);
}
