
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * yajl's memory: blocks in a list, so that all of them can be freed when there
 * is no more to be had.  Called by yajl, for the members that a replay sets
 * and for the details of a conflict.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "response/ngx_http_idem_yajl.h"


/* in front of each block; a union, to keep blocks aligned */

typedef union {
    struct {
        ngx_queue_t   queue;
    } head;

    long double       aligned;
} ngx_http_idem_yajl_block_t;


static void *ngx_http_idem_yajl_malloc(void *data, size_t size);
static void *ngx_http_idem_yajl_realloc(void *data, void *p, size_t size);
static void ngx_http_idem_yajl_free(void *data, void *p);


void
ngx_http_idem_yajl_init(ngx_http_idem_yajl_t *y)
{
    y->funcs.malloc = ngx_http_idem_yajl_malloc;
    y->funcs.realloc = ngx_http_idem_yajl_realloc;
    y->funcs.free = ngx_http_idem_yajl_free;
    y->funcs.ctx = y;

    ngx_queue_init(&y->blocks);
}


void
ngx_http_idem_yajl_done(ngx_http_idem_yajl_t *y)
{
    ngx_queue_t                 *q;
    ngx_http_idem_yajl_block_t  *block;

    while (!ngx_queue_empty(&y->blocks)) {
        q = ngx_queue_head(&y->blocks);
        block = ngx_queue_data(q, ngx_http_idem_yajl_block_t, head.queue);

        ngx_queue_remove(q);
        ngx_free(block);
    }
}


ngx_int_t
ngx_http_idem_yajl_valid(const ngx_str_t *text)
{
    yajl_handle           parser;
    yajl_status           status;
    ngx_http_idem_yajl_t  y;

    if (text->len == 0) {
        return NGX_DECLINED;
    }

    ngx_http_idem_yajl_init(&y);

    if (setjmp(y.no_memory)) {
        ngx_http_idem_yajl_done(&y);
        return NGX_ERROR;
    }

    parser = yajl_alloc(NULL, &y.funcs, NULL);

    status = yajl_parse(parser, text->data, text->len);

    if (status == yajl_status_ok) {
        status = yajl_complete_parse(parser);
    }

    ngx_http_idem_yajl_done(&y);

    return (status == yajl_status_ok) ? NGX_OK : NGX_DECLINED;
}


static void *
ngx_http_idem_yajl_malloc(void *data, size_t size)
{
    ngx_http_idem_yajl_t *y = data;

    ngx_http_idem_yajl_block_t  *block;

    block = ngx_alloc(sizeof(ngx_http_idem_yajl_block_t) + size,
                      ngx_cycle->log);
    if (block == NULL) {
        longjmp(y->no_memory, 1);
    }

    ngx_queue_insert_head(&y->blocks, &block->head.queue);

    return block + 1;
}


static void *
ngx_http_idem_yajl_realloc(void *data, void *p, size_t size)
{
    ngx_http_idem_yajl_t *y = data;

    ngx_http_idem_yajl_block_t  *block, *old;

    if (p == NULL) {
        return ngx_http_idem_yajl_malloc(data, size);
    }

    /* what is large is moved, and not copied */

    old = (ngx_http_idem_yajl_block_t *) p - 1;

    ngx_queue_remove(&old->head.queue);

    block = realloc(old, sizeof(ngx_http_idem_yajl_block_t) + size);

    if (block == NULL) {
        ngx_queue_insert_head(&y->blocks, &old->head.queue);
        longjmp(y->no_memory, 1);
    }

    ngx_queue_insert_head(&y->blocks, &block->head.queue);

    return block + 1;
}


static void
ngx_http_idem_yajl_free(void *data, void *p)
{
    ngx_http_idem_yajl_block_t  *block;

    if (p) {
        block = (ngx_http_idem_yajl_block_t *) p - 1;

        ngx_queue_remove(&block->head.queue);
        ngx_free(block);
    }
}
