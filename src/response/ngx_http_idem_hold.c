
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Memory of a held response: pieces, up to a limit, until the record is
 * stored; and the range of them that is sent.
 *
 * Small pieces are allocated from the request's pool.  Large pieces are
 * blocks of one size that the worker reuses: memory freed by a pool returns
 * to the kernel, and the page faults of allocating it again were a third of
 * the cost of 1 MB.
 *
 * Called by the capture, by that of subrequests, and by other code that needs
 * pieces of a response.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_HOLD_MIN  1024
#define NGX_HTTP_IDEM_HOLD_MAX  65536

/* size of a block with its headers, and the number of spare blocks kept */
#define NGX_HTTP_IDEM_HOLD_BLOCK  65536
#define NGX_HTTP_IDEM_HOLD_SPARE  128


/* a piece of a response, in one allocation */

typedef struct {
    ngx_chain_t  link;      /* must be first */
    ngx_buf_t    buf;
    u_char       data[1];
} ngx_http_idem_piece_t;


struct ngx_http_idem_held_s {
    ngx_http_idem_held_t  *next;
    ngx_http_idem_piece_t   piece;                  /* must be last */
};


static ngx_int_t ngx_http_idem_hold_bytes(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *in);
static ngx_chain_t *ngx_http_idem_piece_init(ngx_http_idem_piece_t *piece,
    size_t size);
static ngx_chain_t *ngx_http_idem_hold_block(ngx_http_idem_ctx_t *ctx);
static void ngx_http_idem_held_free(ngx_http_idem_held_t *block);
static off_t ngx_http_idem_range_len(ngx_http_request_t *r);


static ngx_http_idem_held_t  *ngx_http_idem_hold_spare;
static ngx_uint_t              ngx_http_idem_hold_nspare;


/*
 * Consumes "b".  Returns a reason other than NONE if the rest of it can't be
 * held.
 */

ngx_http_idem_reason_e
ngx_http_idem_hold(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b)
{
    size_t  len;

    len = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;

    if (len > ctx->capture.max_response - ctx->capture.held_size) {
        return NGX_HTTP_IDEM_REASON_TOO_LARGE;
    }

    if (len && ngx_http_idem_hold_bytes(r, ctx, b) != NGX_OK) {
        return NGX_HTTP_IDEM_REASON_NO_ROOM;
    }

    b->pos = b->last;
    b->file_pos = b->file_last;

    return NGX_HTTP_IDEM_REASON_NONE;
}


/* consumes the held bytes of "in", even if there is no memory for the rest */

static ngx_int_t
ngx_http_idem_hold_bytes(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *in)
{
    off_t         expected;
    size_t        size, n, len;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    len = in->last - in->pos;

    ctx->capture.held_size += len;
    ctx->capture.response.body_len += len;

    while (len) {
        cl = ctx->capture.tail;
        b = cl ? cl->buf : NULL;

        if (b == NULL || b->last == b->end) {

            /* the whole length if it is known, otherwise growing pieces */

            expected = r->headers_out.content_length_n
                       - (off_t) (ctx->capture.response.body_len - len);

            size = ctx->capture.response.body_len;
            size = ngx_max(size, NGX_HTTP_IDEM_HOLD_MIN);
            size = ngx_min(size, NGX_HTTP_IDEM_HOLD_MAX);

            if (expected >= (off_t) len) {
                size = (size_t) expected;
            }

            size = ngx_max(size, len);

            cl = (size < NGX_HTTP_IDEM_HOLD_BLOCK)
                 ? ngx_http_idem_piece(r->pool, size)
                 : ngx_http_idem_hold_block(ctx);

            if (cl == NULL) {
                return NGX_ERROR;
            }

            b = cl->buf;

            *ctx->capture.last = cl;
            ctx->capture.last = &cl->next;
            ctx->capture.tail = cl;
        }

        n = ngx_min(len, (size_t) (b->end - b->last));

        b->last = ngx_cpymem(b->last, in->pos, n);
        in->pos += n;
        len -= n;
    }

    return NGX_OK;
}


ngx_chain_t *
ngx_http_idem_piece(ngx_pool_t *pool, size_t size)
{
    ngx_http_idem_piece_t  *piece;

    piece = ngx_palloc(pool, offsetof(ngx_http_idem_piece_t, data) + size);

    return piece ? ngx_http_idem_piece_init(piece, size) : NULL;
}


static ngx_chain_t *
ngx_http_idem_piece_init(ngx_http_idem_piece_t *piece, size_t size)
{
    ngx_buf_t  *b;

    b = &piece->buf;

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->start = piece->data;
    b->pos = piece->data;
    b->last = piece->data;
    b->end = piece->data + size;
    b->temporary = 1;

    piece->link.buf = b;
    piece->link.next = NULL;

    return &piece->link;
}


static ngx_chain_t *
ngx_http_idem_hold_block(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_held_t  *block;

    block = ngx_http_idem_hold_spare;

    if (block) {
        ngx_http_idem_hold_spare = block->next;
        ngx_http_idem_hold_nspare--;

    } else {
        block = ngx_alloc(NGX_HTTP_IDEM_HOLD_BLOCK,
                          ctx->request->connection->log);
        if (block == NULL) {
            return NULL;
        }
    }

    block->next = ctx->capture.blocks;
    ctx->capture.blocks = block;

    return ngx_http_idem_piece_init(&block->piece,
                              NGX_HTTP_IDEM_HOLD_BLOCK
                              - offsetof(ngx_http_idem_held_t, piece)
                              - offsetof(ngx_http_idem_piece_t, data));
}


static void
ngx_http_idem_held_free(ngx_http_idem_held_t *block)
{
    if (ngx_http_idem_hold_nspare == NGX_HTTP_IDEM_HOLD_SPARE) {
        ngx_free(block);
        return;
    }

    block->next = ngx_http_idem_hold_spare;
    ngx_http_idem_hold_spare = block;
    ngx_http_idem_hold_nspare++;
}


/* frees a piece that is not needed before the request ends */

void
ngx_http_idem_hold_drop(ngx_http_idem_ctx_t *ctx, ngx_chain_t *cl)
{
    ngx_http_idem_held_t  *block, **b;

    for (b = &ctx->capture.blocks; *b; b = &(*b)->next) {
        block = *b;

        if (cl == &block->piece.link) {
            *b = block->next;
            ngx_http_idem_held_free(block);
            return;
        }
    }

    (void) ngx_pfree(ctx->request->pool, cl);
}


/* called when the request's pool is destroyed: nothing uses the blocks */

void
ngx_http_idem_hold_cleanup(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_held_t  *block;

    while (ctx->capture.blocks) {
        block = ctx->capture.blocks;
        ctx->capture.blocks = block->next;

        ngx_http_idem_held_free(block);
    }
}


void
ngx_http_idem_hold_last(ngx_http_idem_ctx_t *ctx)
{
    ngx_buf_t  *b;

    if (ctx->capture.held && ctx->capture.segments == NULL) {
        b = ctx->capture.tail->buf;

    } else {
        b = &ctx->capture.end_buf;

        ctx->capture.end.buf = b;
        ctx->capture.end.next = NULL;

        *ctx->capture.last = &ctx->capture.end;
        ctx->capture.last = &ctx->capture.end.next;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;
}


/*
 * The length in Content-Range.  Trailers, for example, remove Content-Length
 * after nginx has set it.
 */

static off_t
ngx_http_idem_range_len(ngx_http_request_t *r)
{
    off_t             first, last;
    u_char           *p, *dash, *slash, *end;
    ngx_table_elt_t  *h;

    h = r->headers_out.content_range;

    if (h == NULL || h->value.len <= sizeof("bytes ") - 1) {
        return ngx_max(r->headers_out.content_length_n, 0);
    }

    p = h->value.data + sizeof("bytes ") - 1;
    end = h->value.data + h->value.len;

    dash = ngx_strlchr(p, end, '-');
    slash = ngx_strlchr(p, end, '/');

    if (dash == NULL || slash == NULL || slash < dash) {
        return ngx_max(r->headers_out.content_length_n, 0);
    }

    first = ngx_atoof(p, dash - p);
    last = ngx_atoof(dash + 1, slash - dash - 1);

    if (first == NGX_ERROR || last == NGX_ERROR || last < first) {
        return 0;
    }

    return last - first + 1;
}


/* reduces a whole response to the range that the client requested */

void
ngx_http_idem_hold_range(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    off_t         size, offset, len;
    ngx_buf_t    *b;
    ngx_chain_t  *cl, **ll;

    offset = r->headers_out.content_offset;
    len = ngx_http_idem_range_len(r);

    ll = &ctx->capture.held;

    while (*ll) {
        cl = *ll;
        b = cl->buf;

        size = b->last - b->pos;

        if (offset >= size || len == 0) {
            offset -= ngx_min(offset, size);
            *ll = cl->next;
            continue;
        }

        b->pos += offset;
        offset = 0;

        if (b->last - b->pos > len) {
            b->last = b->pos + len;
        }

        len -= b->last - b->pos;

        if (len == 0) {
            b->last_buf = 1;
            b->last_in_chain = 1;
        }

        ll = &cl->next;
    }
}
