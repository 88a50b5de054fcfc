
/*
 * The body as it counts: hashed while it streams in, by a filter on the
 * request body, so that what was spooled to a file is not read again.  Where
 * another module had read the body before, it is hashed from there.
 *
 * Started and finished by the handler; feeds the digest, through the
 * multipart reader where the boundary must not count.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"


#define NGX_HTTP_IDEMPOTENCY_READ_SIZE  65536


static ngx_int_t ngx_http_idempotency_request_body_filter(
    ngx_http_request_t *r, ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_body_chain(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_body_file(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *b);
static void ngx_http_idempotency_body_feed(ngx_http_idempotency_ctx_t *ctx,
    u_char *p, size_t len);
static void ngx_http_idempotency_body_multipart_update(void *data,
    const u_char *p, size_t len);


static ngx_http_request_body_filter_pt
    ngx_http_idempotency_next_request_body_filter;


void
ngx_http_idempotency_body_init(void)
{
    ngx_http_idempotency_next_request_body_filter =
                                             ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter = ngx_http_idempotency_request_body_filter;
}


ngx_int_t
ngx_http_idempotency_body_start(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                     boundary;
    ngx_http_idempotency_body_t  *body;

    if (ctx->conf->fingerprint == NGX_HTTP_IDEMPOTENCY_FINGERPRINT_OFF) {
        return NGX_OK;
    }

    body = &ctx->body;

    body->digest = ngx_http_idempotency_digest_get();
    if (body->digest == NULL) {
        return NGX_ERROR;
    }

    if (r->headers_in.content_type
        && ngx_http_idempotency_multipart_boundary(
               &r->headers_in.content_type->value, &boundary)
           == NGX_OK)
    {
        body->multipart = ngx_palloc(r->pool,
                                    sizeof(ngx_http_idempotency_multipart_t));
        if (body->multipart == NULL) {
            return NGX_ERROR;
        }

        ngx_http_idempotency_multipart_init(body->multipart, &boundary,
                              ngx_http_idempotency_body_multipart_update,
                              body->digest);
    }

    /* read already, by a module of an earlier phase: no filter will see it */

    body->late = (r->request_body != NULL);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idempotency_request_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx && ctx->body.digest && !ctx->body.late && r == r->main
        && ctx->phase == NGX_HTTP_IDEMPOTENCY_READ_BODY)
    {
        if (ngx_http_idempotency_body_chain(r, ctx, in) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    return ngx_http_idempotency_next_request_body_filter(r, in);
}


ngx_int_t
ngx_http_idempotency_body_finish(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_body_t  *body;

    body = &ctx->body;

    if (body->digest == NULL) {
        return NGX_OK;
    }

    if (body->late && r->request_body
        && ngx_http_idempotency_body_chain(r, ctx, r->request_body->bufs)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (body->multipart) {
        ngx_http_idempotency_multipart_done(body->multipart);
    }

    ngx_http_idempotency_digest_done(body->digest, body->hash);
    body->digest = NULL;

    return NGX_OK;
}


void
ngx_http_idempotency_body_cleanup(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->body.digest) {
        ngx_http_idempotency_digest_put(ctx->body.digest);
        ctx->body.digest = NULL;
    }
}


static ngx_int_t
ngx_http_idempotency_body_chain(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_buf_t  *b;

    for ( /* void */ ; in; in = in->next) {
        b = in->buf;

        if (ngx_buf_in_memory(b)) {
            ngx_http_idempotency_body_feed(ctx, b->pos, b->last - b->pos);

        } else if (b->in_file
                   && ngx_http_idempotency_body_file(r, ctx, b) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idempotency_body_file(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *b)
{
    u_char   *buf;
    off_t     offset;
    size_t    size;
    ssize_t   n;

    buf = ngx_alloc(NGX_HTTP_IDEMPOTENCY_READ_SIZE, r->connection->log);
    if (buf == NULL) {
        return NGX_ERROR;
    }

    for (offset = b->file_pos; offset < b->file_last; offset += n) {
        size = (size_t) ngx_min(b->file_last - offset,
                                NGX_HTTP_IDEMPOTENCY_READ_SIZE);

        n = ngx_read_file(b->file, buf, size, offset);

        if (n <= 0) {
            ngx_free(buf);
            return NGX_ERROR;
        }

        ngx_http_idempotency_body_feed(ctx, buf, (size_t) n);
    }

    ngx_free(buf);

    return NGX_OK;
}


static void
ngx_http_idempotency_body_feed(ngx_http_idempotency_ctx_t *ctx, u_char *p,
    size_t len)
{
    if (len == 0) {
        return;
    }

    if (ctx->body.multipart) {
        ngx_http_idempotency_multipart_feed(ctx->body.multipart, p, len);

    } else {
        ngx_http_idempotency_digest_update(ctx->body.digest, p, len);
    }
}


static void
ngx_http_idempotency_body_multipart_update(void *data, const u_char *p,
    size_t len)
{
    ngx_http_idempotency_digest_update(data, p, len);
}
