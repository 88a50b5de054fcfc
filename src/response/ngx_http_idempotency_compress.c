
/*
 * Bodies that are stored compressed (idempotency_compress), with zlib.
 *
 * Called by the commit and by the replay.  What comes from a store is not
 * trusted: it is inflated to the length the record gives, and not a byte more.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <zlib.h>

#include "core/ngx_http_idempotency.h"


/* the most that zlib makes of a byte is 1032: RFC 1951's longest match */
#define NGX_HTTP_IDEMPOTENCY_INFLATE_RATIO  1032


/*
 * NGX_OK: "body" is the compressed one, and the response says so.
 * NGX_DECLINED: it would not become smaller, or there is no memory for it.
 */

ngx_int_t
ngx_http_idempotency_deflate(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t **body)
{
    int                               rc;
    ngx_buf_t                        *b;
    z_stream                          z;
    ngx_chain_t                      *in, *cl;
    ngx_http_idempotency_response_t  *response;

    response = &ctx->response;

    /* room for less than it is now: with more it is not worth it */

    cl = ngx_http_idempotency_piece(r->pool, response->body_len);
    if (cl == NULL) {
        return NGX_DECLINED;
    }

    b = cl->buf;

    ngx_memzero(&z, sizeof(z_stream));

    if (deflateInit(&z, Z_BEST_SPEED) != Z_OK) {
        return NGX_DECLINED;
    }

    z.next_out = b->last;
    z.avail_out = (uInt) (b->end - b->last);

    rc = Z_OK;

    for (in = *body; in; in = in->next) {
        z.next_in = in->buf->pos;
        z.avail_in = (uInt) (in->buf->last - in->buf->pos);

        rc = deflate(&z, in->next ? Z_NO_FLUSH : Z_FINISH);

        if (z.avail_in || rc == Z_STREAM_ERROR) {
            break;
        }
    }

    (void) deflateEnd(&z);

    if (rc != Z_STREAM_END || z.avail_out == 0) {
        ngx_pfree(r->pool, cl);
        return NGX_DECLINED;
    }

    b->last = z.next_out;

    *body = cl;

    response->compressed = 1;
    response->body_len = b->last - b->pos;

    return NGX_OK;
}


/* NGX_DECLINED if it is not what the record says */

ngx_int_t
ngx_http_idempotency_inflate(ngx_http_request_t *r,
    ngx_http_idempotency_response_t *response, ngx_str_t *body)
{
    int        rc;
    z_stream   z;
    ngx_str_t  plain;

    if (response->plain_len / NGX_HTTP_IDEMPOTENCY_INFLATE_RATIO > body->len) {
        return NGX_DECLINED;
    }

    plain.len = response->plain_len;
    plain.data = ngx_pnalloc(r->pool, ngx_max(plain.len, 1));
    if (plain.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&z, sizeof(z_stream));

    if (inflateInit(&z) != Z_OK) {
        return NGX_ERROR;
    }

    z.next_in = body->data;
    z.avail_in = (uInt) body->len;
    z.next_out = plain.data;
    z.avail_out = (uInt) plain.len;

    rc = inflate(&z, Z_FINISH);

    (void) inflateEnd(&z);

    if (rc != Z_STREAM_END || z.avail_out || z.avail_in) {
        return NGX_DECLINED;
    }

    *body = plain;

    return NGX_OK;
}
