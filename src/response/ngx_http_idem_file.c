
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Captures a response that is a file.  nginx reads the file into a few small
 * buffers, and continues as long as the filters consume them.  After some
 * megabytes this file leaves the buffers unconsumed, as a slow client would,
 * until the next iteration of the event loop.
 *
 * Not used for upstream responses, which arrive in pieces.
 *
 * Called by the capture; calls nginx's filters, which call the capture again.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* bytes captured per iteration: about 3 ms */
#define NGX_HTTP_IDEM_FILE_PIECE  (2 * 1024 * 1024)


struct ngx_http_idem_file_s {
    ngx_chain_t                *left;            /* for the next iteration  */
    ngx_chain_t               **last;
    size_t                      taken;           /* in this iteration       */
    ngx_http_idem_turn_t        turn;
};


static ngx_int_t ngx_http_idem_file_handler(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


/*
 * nginx declares it in no header; this filter reads files for the later ones
 */
extern ngx_module_t  ngx_http_copy_filter_module;


/*
 * NGX_OK: "in" is to be captured now, or is no file; NGX_AGAIN: nothing now,
 * capturing continues in a later iteration.  If there is no memory to pause,
 * capturing goes on.
 */

ngx_int_t
ngx_http_idem_file_body(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_chain_t **in)
{
    ngx_uint_t             paused;
    ngx_chain_t           *cl, *copy;
    ngx_http_idem_file_t  *file;

    file = ctx->capture.file;

    if (file == NULL) {
        if (*in == NULL
            || (*in)->buf->tag != (ngx_buf_tag_t) &ngx_http_copy_filter_module
            || (r->upstream && r->upstream->cleanup))
        {
            return NGX_OK;
        }

        file = ngx_pcalloc(r->pool, sizeof(ngx_http_idem_file_t));
        if (file == NULL) {
            return NGX_OK;
        }

        file->last = &file->left;

        ctx->capture.file = file;
    }

    for (cl = *in; cl; cl = cl->next) {
        if (ngx_buf_in_memory(cl->buf)) {
            file->taken += cl->buf->last - cl->buf->pos;
        }
    }

    copy = NULL;
    paused = file->turn.event.timer_set;

    /* the buffers are deferred, their links belong to the caller */

    if ((paused || file->taken > NGX_HTTP_IDEM_FILE_PIECE)
        && ngx_chain_add_copy(r->pool, &copy, *in) == NGX_OK)
    {
        *file->last = copy;

        while (*file->last) {
            file->last = &(*file->last)->next;
        }

        if (!paused) {
            ngx_http_idem_commit_block(r);
            ngx_http_idem_turn(&file->turn, ctx, ngx_http_idem_file_handler,
                               "a file");
        }

        return NGX_AGAIN;
    }

    if (file->left) {
        *file->last = *in;
        *in = file->left;

        file->left = NULL;
        file->last = &file->left;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_file_handler(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t              rc;
    ngx_http_idem_file_t  *file;

    file = ctx->capture.file;

    file->taken = 0;

    ngx_http_idem_commit_unblock(r);

    rc = ngx_http_output_filter(r, NULL);

    /* r->aio: another pause, the commit, or a thread that reads the file */

    if (!r->aio) {
        ngx_http_idem_commit_return(r, ctx, rc);
    }

    return NGX_OK;
}


/* another response replaces this one: forget its buffers */

void
ngx_http_idem_file_reset(ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_file_t  *file;

    file = ctx->capture.file;

    if (file) {
        file->left = NULL;
        file->last = &file->left;
    }
}


void
ngx_http_idem_file_cleanup(ngx_http_idem_ctx_t *ctx)
{
    if (ctx->capture.file) {
        ngx_http_idem_turn_cancel(&ctx->capture.file->turn);
    }
}
