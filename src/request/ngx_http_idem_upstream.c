
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Watches the upstreams of an execution: when they start, respond and end.
 *
 * An upstream may start after its content handler has returned, for example
 * when it waits for the lock of a cache entry.  Once a request was sent,
 * nginx must not try a next peer, which it would do for PUT and DELETE.  A
 * response that ends early or whose body is invalid counts as broken off.
 * nginx sends no error response for that, since it assumes that the header
 * was sent.
 *
 * Some callbacks that the upstream's module has set are replaced by functions
 * of this file, which call the originals.  Called by the execution and the
 * capture.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_upstream_started(ngx_http_request_t *r,
    ngx_http_idem_run_t *run);
static ngx_uint_t ngx_http_idem_upstream_watch(ngx_http_upstream_t *u,
    ngx_http_idem_run_t *run);
static ngx_int_t ngx_http_idem_upstream_create(ngx_http_request_t *r);
static void ngx_http_idem_upstream_finalize(ngx_http_request_t *r,
    ngx_int_t rc);
static void ngx_http_idem_restore_method(ngx_http_idem_run_t *run);
static ngx_int_t ngx_http_idem_input_init(void *data);
static void ngx_http_idem_input_rejected(ngx_http_idem_run_t *run,
    ngx_uint_t buffering);
static ngx_int_t ngx_http_idem_input(void *data, ssize_t bytes);
static ngx_int_t ngx_http_idem_pipe_input(ngx_event_pipe_t *p,
    ngx_buf_t *buf);
static ngx_uint_t ngx_http_idem_invalid(ngx_http_idem_run_t *run);


/* methods for which nginx tries no next peer by default */
#define NGX_HTTP_IDEM_SPARED                                                  \
    (NGX_HTTP_POST|NGX_HTTP_LOCK|NGX_HTTP_PATCH)

/* methods of a subrequest that only reads */
#define NGX_HTTP_IDEM_SAFE                                                    \
    (NGX_HTTP_GET|NGX_HTTP_HEAD|NGX_HTTP_OPTIONS)


ngx_http_idem_run_t *
ngx_http_idem_run_of(ngx_http_idem_ctx_t *ctx, ngx_http_request_t *r)
{
    ngx_http_idem_run_t  *run;

    for (run = &ctx->work.run; run; run = run->next) {
        if (run->request == r) {
            return run;
        }
    }

    return NULL;
}


/*
 * the content handler has created an upstream, which may still have to wait
 */

void
ngx_http_idem_upstream_start(ngx_http_request_t *r, ngx_http_idem_run_t *run)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u->cleanup) {
        ngx_http_idem_upstream_started(r, run);

    } else if (u->create_request != ngx_http_idem_upstream_create) {
        run->create = u->create_request;
        u->create_request = ngx_http_idem_upstream_create;
    }
}


/* the first callback after nginx has installed its checks of the client */

static ngx_int_t
ngx_http_idem_upstream_create(ngx_http_request_t *r)
{
    ngx_int_t             rc;
    ngx_http_idem_ctx_t  *ctx;
    ngx_http_idem_run_t  *run;

    ctx = ngx_http_idem_get_ctx(r);
    run = ngx_http_idem_run_of(ctx, r);

    r->upstream->create_request = run->create;

    rc = run->create(r);

    if (rc == NGX_OK && ngx_http_idem_at_work(ctx)) {
        ngx_http_idem_upstream_started(r, run);
    }

    return rc;
}


static void
ngx_http_idem_upstream_started(ngx_http_request_t *r,
    ngx_http_idem_run_t *run)
{
    ngx_uint_t  spared;

    if (!ngx_http_idem_upstream_watch(r->upstream, run)) {
        return;
    }

    /*
     * Replaces the check of the client's connection.  The held response is
     * never written by this handler, so nothing is lost.
     */

    r->write_event_handler = ngx_http_request_empty_handler;

    spared = NGX_HTTP_IDEM_SPARED;

    if (r != r->main) {
        spared |= NGX_HTTP_IDEM_SAFE;
    }

    if (!(r->method & spared)) {
        run->method = r->method;
        r->method |= NGX_HTTP_PATCH;
    }
}


static ngx_uint_t
ngx_http_idem_upstream_watch(ngx_http_upstream_t *u, ngx_http_idem_run_t *run)
{
    if (u == run->upstream) {
        return 0;
    }

    run->upstream = u;
    run->invalid = 0;

    run->finalize = u->finalize_request;
    u->finalize_request = ngx_http_idem_upstream_finalize;

    return 1;
}


/*
 * Restores the method before an error_page or X-Accel-Redirect reads it.
 * "rc" says how the upstream ended: 0 is a normal end, NGX_DECLINED a normal
 * end by X-Accel-Redirect.
 */

static void
ngx_http_idem_upstream_finalize(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_http_upstream_t  *u;
    ngx_http_idem_ctx_t  *ctx;
    ngx_http_idem_run_t  *run;

    ctx = ngx_http_idem_get_ctx(r);
    run = ngx_http_idem_run_of(ctx, r);

    u = r->upstream;
    u->finalize_request = run->finalize;

    ngx_http_idem_restore_method(run);

    if (u->header_sent
        && rc != NGX_OK && rc != NGX_AGAIN && rc != NGX_DECLINED
        && !ngx_http_idem_outcome_whole(r, ctx))
    {
        run->broke = 1;
        run->broken = r->upstream_states ? r->upstream_states->nelts : 0;
    }

    run->finalize(r, rc);
}


static void
ngx_http_idem_restore_method(ngx_http_idem_run_t *run)
{
    if (run->method) {
        run->request->method = run->method;
        run->method = 0;
    }
}


/*
 * A response has arrived, so there is no next peer any more: the method is
 * restored for the filters.  The upstream that responds is recorded now:
 * other handlers may respond after an upstream has ended, while r->upstream
 * is still set.
 */

void
ngx_http_idem_upstream_answers(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;
    ngx_http_idem_run_t  *run;

    run = &ctx->work.run;
    u = r->upstream;

    ngx_http_idem_restore_method(run);

    if (u == NULL || u->cleanup == NULL || r->filter_finalize
#if (NGX_HTTP_CACHE)
        || r->cached
#endif
       )
    {
        ctx->work.answering = NULL;
        return;
    }

    ctx->work.answering = u;

    (void) ngx_http_idem_upstream_watch(u, run);

    if (u->input_filter_init == ngx_http_idem_input_init) {
        return;
    }

    run->input_init = u->input_filter_init;
    run->input_ctx = u->input_filter_ctx;

    u->input_filter_init = ngx_http_idem_input_init;
    u->input_filter_ctx = run;

    if (u->buffering && u->pipe) {
        run->pipe_ctx = u->pipe->input_ctx;
        u->pipe->input_ctx = run;
    }
}


/*
 * Lets a stream through as it comes: with proxy_buffering on, its events would
 * wait for a full buffer.  The same as X-Accel-Buffering: no, which nginx has
 * looked for by now.  Only a buffered response is cached or stored in a file,
 * or limited in its rate.
 */

void
ngx_http_idem_upstream_unbuffer(ngx_http_request_t *r,
    ngx_http_upstream_t *u)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (u->conf->change_buffering && !u->cacheable && !u->store
        && r->limit_rate == 0 && clcf->limit_rate == NULL)
    {
        u->buffering = 0;
    }
}


/* the upstream has ended without a last buffer */

ngx_uint_t
ngx_http_idem_upstream_broke(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    return ctx->work.answering && ctx->work.answering == r->upstream
           && ctx->work.answering->cleanup == NULL;
}


/*
 * only now that the header is known, the module may choose its input filter
 */

static ngx_int_t
ngx_http_idem_input_init(void *data)
{
    ngx_http_idem_run_t *run = data;

    off_t                *length;
    ngx_int_t             rc;
    ngx_uint_t            buffering;
    ngx_http_upstream_t  *u;

    u = run->upstream;
    buffering = u->buffering && u->pipe;

    u->input_filter_init = run->input_init;
    u->input_filter_ctx = run->input_ctx;

    if (buffering) {
        u->pipe->input_ctx = run->pipe_ctx;
    }

    if (run->input_init) {
        rc = run->input_init(buffering ? run->pipe_ctx : run->input_ctx);

        if (rc != NGX_OK) {

            if (rc != NGX_ERROR || !ngx_http_idem_invalid(run)) {
                return rc;
            }

            ngx_http_idem_input_rejected(run, buffering);

            return NGX_OK;
        }
    }

    /*
     * A FastCGI application marks the end of its response.  nginx also takes
     * a closed connection for the end, even if the application died in the
     * middle of its response.  A length of 1 makes nginx expect more until the
     * mark.  A response of its whole Content-Length is complete all the same.
     */

    length = buffering ? &u->pipe->length : &u->length;

    if (*length == -1 && ngx_http_idem_conf_is(&u->schema, "fastcgi://")) {
        *length = 1;
    }

    if (buffering) {
        run->pipe_input = u->pipe->input_filter;
        u->pipe->input_filter = ngx_http_idem_pipe_input;
        return NGX_OK;
    }

    run->input = u->input_filter;
    run->input_ctx = u->input_filter_ctx;

    u->input_filter = ngx_http_idem_input;
    u->input_filter_ctx = run;

    return NGX_OK;
}


/*
 * The header can't be that of a response: it ends an HTTP/2 stream, and has a
 * Content-Length.  The upstream ends like a lost connection.
 */

static void
ngx_http_idem_input_rejected(ngx_http_idem_run_t *run, ngx_uint_t buffering)
{
    ngx_http_upstream_t  *u;

    u = run->upstream;

    if (buffering) {
        u->pipe->upstream_error = 1;
        u->pipe->length = 1;
        return;
    }

    u->error = 1;
    u->length = 1;

    u->input_filter = ngx_http_idem_input;
    u->input_filter_ctx = run;

    if (u->buffer.pos == u->buffer.last) {

        /*
         * Without data behind the header nginx would wait for some before it
         * looks at the error: so it gets the last byte of the header again
         */

        u->buffer.pos--;
        u->state->response_length--;
    }
}


/* unbuffered; "u->error" ends the upstream like a lost connection */

static ngx_int_t
ngx_http_idem_input(void *data, ssize_t bytes)
{
    ngx_http_idem_run_t *run = data;

    ngx_int_t  rc;

    if (run->invalid) {
        /* discard the rest */
        return NGX_OK;
    }

    rc = run->input(run->input_ctx, bytes);

    if (rc != NGX_ERROR || !ngx_http_idem_invalid(run)) {
        return rc;
    }

    run->upstream->error = 1;
    run->upstream->length = 1;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_pipe_input(ngx_event_pipe_t *p, ngx_buf_t *buf)
{
    ngx_int_t             rc;
    ngx_uint_t            error;
    ngx_http_request_t   *r;
    ngx_http_idem_ctx_t  *ctx;
    ngx_http_idem_run_t  *run;

    r = p->output_ctx;

    ctx = ngx_http_idem_get_ctx(r);
    run = &ctx->work.run;

    if (run->invalid) {
        /* discard the rest */
        return NGX_OK;
    }

    /* set if the connection was reset, maybe behind a complete response */

    error = p->upstream_error;
    p->upstream_error = 0;

    rc = run->pipe_input(p, buf);

    if (p->upstream_error) {

        /*
         * A FastCGI application ended its response before its Content-Length.
         * With fastcgi_keep_conn, nginx expects a length of 0 now, and would
         * take that for the end in order.
         */

        p->length = 1;
    }

    p->upstream_error |= error;

    if (rc != NGX_ERROR || !ngx_http_idem_invalid(run)) {
        return rc;
    }

    p->upstream_error = 1;
    p->length = 1;

    return NGX_OK;
}


/* nginx would close the connection, but nothing was sent to the client yet */

static ngx_uint_t
ngx_http_idem_invalid(ngx_http_idem_run_t *run)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(run->request);

    if (ctx->stage != NGX_HTTP_IDEM_HOLD) {
        return 0;
    }

    run->invalid = 1;

    return 1;
}
