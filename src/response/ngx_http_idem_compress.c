
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Compresses stored bodies (idempotency_compress) with zlib.
 *
 * Called by the commit and by the replay.  Data from a store is not trusted:
 * it is inflated to exactly the length in the record.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <zlib.h>

#include "request/ngx_http_idem_request.h"


/* zlib's maximum ratio, from the longest match of RFC 1951 */
#define NGX_HTTP_IDEM_INFLATE_RATIO  1032


/* bytes compressed per iteration of the event loop: about 3 ms */
#define NGX_HTTP_IDEM_DEFLATE_PIECE  (256 * 1024)

/* bytes decompressed per iteration of the event loop: about 3 ms */
#define NGX_HTTP_IDEM_INFLATE_PIECE  (512 * 1024)


struct ngx_http_idem_deflate_s {
    z_stream                    z;
    ngx_chain_t                *in;
    ngx_chain_t                *out;
    ngx_str_t                   plain;           /* decompressed body       */
    ngx_http_idem_turn_t        turn;
    unsigned                    inflate:1;       /* not compressing         */
};


static ngx_int_t ngx_http_idem_deflate_turn(ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_deflate_handler(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_inflate_turn(ngx_http_idem_ctx_t *ctx,
    ngx_str_t *body);
static ngx_int_t ngx_http_idem_inflate_handler(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/*
 * Compresses the held body.  NGX_OK: done, or compression does not pay, or
 * there is no memory.  NGX_AGAIN: continues in later iterations of the event
 * loop, and calls ngx_http_idem_deflated() at the end.
 */

ngx_int_t
ngx_http_idem_deflate(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_deflate_t  *d;

    d = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_deflate_t));
    if (d == NULL) {
        return NGX_OK;
    }

    /* no larger than the body: otherwise compression does not pay */

    d->out = ngx_http_idem_piece(r->pool, ctx->capture.response.body_len);
    if (d->out == NULL) {
        return NGX_OK;
    }

    if (deflateInit(&d->z, Z_BEST_SPEED) != Z_OK) {
        return NGX_OK;
    }

    d->in = ctx->capture.held;
    d->z.next_in = d->in->buf->pos;
    d->z.next_out = d->out->buf->last;
    d->z.avail_out = (uInt) (d->out->buf->end - d->out->buf->last);

    ctx->capture.deflate = d;

    if (ngx_http_idem_deflate_turn(ctx) == NGX_OK) {
        return NGX_OK;
    }

    ngx_http_idem_turn(&d->turn, ctx, ngx_http_idem_deflate_handler,
                       "compression");

    return NGX_AGAIN;
}


static ngx_int_t
ngx_http_idem_deflate_turn(ngx_http_idem_ctx_t *ctx)
{
    int                       rc;
    size_t                    left, n;
    ngx_buf_t                *b;
    ngx_uint_t                last;
    ngx_http_idem_deflate_t  *d;

    d = ctx->capture.deflate;
    left = NGX_HTTP_IDEM_DEFLATE_PIECE;

    for ( ;; ) {
        b = d->in->buf;

        n = ngx_min((size_t) (b->last - d->z.next_in), left);
        last = (d->in->next == NULL && d->z.next_in + n == b->last);

        d->z.avail_in = (uInt) n;
        left -= n;

        rc = deflate(&d->z, last ? Z_FINISH : Z_NO_FLUSH);

        if (last || d->z.avail_in || rc == Z_STREAM_ERROR) {
            break;
        }

        if (d->z.next_in == b->last) {
            d->in = d->in->next;
            d->z.next_in = d->in->buf->pos;
        }

        if (left == 0) {
            return NGX_AGAIN;
        }
    }

    if (rc != Z_STREAM_END || d->z.avail_out == 0) {
        ngx_pfree(ctx->request->pool, d->out);

    } else {
        b = d->out->buf;
        b->last = d->z.next_out;

        ctx->capture.compressed = d->out;
        ctx->capture.response.compressed = 1;
        ctx->capture.response.body_len = b->last - b->pos;
    }

    ngx_http_idem_deflate_cleanup(ctx);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_deflate_handler(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (ngx_http_idem_deflate_turn(ctx) == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    ngx_http_idem_deflated(r, ctx);

    return NGX_OK;
}


void
ngx_http_idem_deflate_cleanup(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_deflate_t  *d;

    d = ctx->capture.deflate;

    if (d == NULL) {
        return;
    }

    ctx->capture.deflate = NULL;

    ngx_http_idem_turn_cancel(&d->turn);

    (void) (d->inflate ? inflateEnd(&d->z) : deflateEnd(&d->z));
}


/*
 * Decompresses the body of a record.  NGX_OK: the result is in "body";
 * NGX_DECLINED: the data does not match the record; NGX_AGAIN: continues in
 * later iterations of the event loop, and calls
 * ngx_http_idem_replay_inflated() at the end.
 */

ngx_int_t
ngx_http_idem_inflate(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_response_t *response, ngx_str_t *body)
{
    ngx_int_t                 rc;
    ngx_http_idem_deflate_t  *d;

    if (response->plain_len / NGX_HTTP_IDEM_INFLATE_RATIO > body->len) {
        return NGX_DECLINED;
    }

    d = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_deflate_t));
    if (d == NULL) {
        return NGX_ERROR;
    }

    d->inflate = 1;
    d->plain.len = response->plain_len;
    d->plain.data = ngx_pnalloc(r->pool, ngx_max(d->plain.len, 1));

    if (d->plain.data == NULL || inflateInit(&d->z) != Z_OK) {
        return NGX_ERROR;
    }

    d->z.next_in = body->data;
    d->z.avail_in = (uInt) body->len;
    d->z.next_out = d->plain.data;

    ctx->capture.deflate = d;

    rc = ngx_http_idem_inflate_turn(ctx, body);

    if (rc == NGX_AGAIN) {
        ngx_http_idem_turn(&d->turn, ctx, ngx_http_idem_inflate_handler,
                           "decompression");
    }

    return rc;
}


static ngx_int_t
ngx_http_idem_inflate_turn(ngx_http_idem_ctx_t *ctx, ngx_str_t *body)
{
    int                       rc;
    size_t                    left;
    ngx_int_t                 result;
    ngx_http_idem_deflate_t  *d;

    d = ctx->capture.deflate;

    left = d->plain.data + d->plain.len - d->z.next_out;

    d->z.avail_out = (uInt) ngx_min(left, NGX_HTTP_IDEM_INFLATE_PIECE);

    rc = inflate(&d->z, Z_SYNC_FLUSH);

    left = d->plain.data + d->plain.len - d->z.next_out;

    if (rc == Z_OK && d->z.avail_out == 0 && left) {
        return NGX_AGAIN;
    }

    /* only the trailer is left, which produces no output */

    if (rc == Z_OK && left == 0) {
        rc = inflate(&d->z, Z_FINISH);
    }

    if (rc == Z_STREAM_END && left == 0 && d->z.avail_in == 0) {
        *body = d->plain;
        result = NGX_OK;

    } else {
        result = NGX_DECLINED;
    }

    ngx_http_idem_deflate_cleanup(ctx);

    return result;
}


static ngx_int_t
ngx_http_idem_inflate_handler(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t  rc;
    ngx_str_t  body;

    ngx_str_null(&body);

    rc = ngx_http_idem_inflate_turn(ctx, &body);

    if (rc != NGX_AGAIN) {
        ngx_http_idem_replay_inflated(r, ctx, rc, &body);
    }

    return rc;
}
