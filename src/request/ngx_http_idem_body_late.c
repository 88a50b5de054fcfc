
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Hashes a request body that another module has read before.
 *
 * It is read again, from its buffers or its file.  Hundreds of megabytes would
 * keep the worker from serving anybody else, so it is done in several
 * iterations of the event loop.
 *
 * Called by ..._body.c, which is fed with what is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


#define NGX_HTTP_IDEM_READ_SIZE   65536

/* bytes hashed per iteration: some milliseconds */
#define NGX_HTTP_IDEM_LATE_PIECE  (1024 * 1024)


static ngx_int_t ngx_http_idem_body_file(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b);


/* NGX_AGAIN if more is left for further iterations */

ngx_int_t
ngx_http_idem_body_late(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    off_t                  size, n, left;
    ngx_buf_t              b;
    ngx_http_idem_body_t  *body;

    body = &ctx->body;
    left = NGX_HTTP_IDEM_LATE_PIECE;

    while (body->rest) {
        b = *body->rest->buf;

        size = ngx_buf_size(&b) - body->hashed;
        n = ngx_min(size, left);

        if (ngx_buf_in_memory(&b)) {
            b.pos += body->hashed;
            b.last = b.pos + n;

        } else {
            b.file_pos += body->hashed;
            b.file_last = b.file_pos + n;
        }

        if (ngx_http_idem_body_buf(r, ctx, &b) != NGX_OK) {
            return NGX_ERROR;
        }

        if (n < size) {
            body->hashed += n;
            return NGX_AGAIN;
        }

        body->hashed = 0;
        body->rest = body->rest->next;
        left -= n;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_idem_body_buf(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b)
{
    if (ngx_buf_in_memory(b)) {
        ngx_http_idem_body_feed(&ctx->body, b->pos, b->last - b->pos);
        return NGX_OK;
    }

    return b->in_file ? ngx_http_idem_body_file(r, ctx, b) : NGX_OK;
}


static ngx_int_t
ngx_http_idem_body_file(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_buf_t *b)
{
    u_char     *buf;
    off_t       offset;
    size_t      size;
    ssize_t     n;
    ngx_int_t   rc;

    rc = NGX_OK;

    buf = ngx_alloc(NGX_HTTP_IDEM_READ_SIZE, r->connection->log);
    if (buf == NULL) {
        return NGX_ERROR;
    }

    for (offset = b->file_pos; offset < b->file_last; offset += n) {
        size = (size_t) ngx_min(b->file_last - offset,
                                NGX_HTTP_IDEM_READ_SIZE);

        n = ngx_read_file(b->file, buf, size, offset);

        if (n <= 0) {
            rc = NGX_ERROR;
            break;
        }

        ngx_http_idem_body_feed(&ctx->body, buf, (size_t) n);
    }

    ngx_free(buf);

    return rc;
}
