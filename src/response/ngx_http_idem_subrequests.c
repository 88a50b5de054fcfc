
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Subrequests that run while the main response is held.
 *
 * Usually their output is not sent: ngx.location.capture() of Lua, njs and
 * auth_request keep it.  But modules such as echo_location and slice add it
 * to the response.  nginx's postpone filter, which runs after this module's
 * and orders all parts, would send it ahead of the header.
 *
 * The slices of a file are parts of one response and are held like the rest
 * of it.  Any other subrequest is another response with its own filters, and
 * only the last filter shows whether any of it is sent.  So its output is
 * passed down to nginx's write filter, which is kept from sending.  If data
 * arrives there, the response is made by subrequests: the main response is
 * sent, with its parts before and between them, and its record says that the
 * request ran and can't be replayed.
 *
 * Called by the capture.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* data of the main request that follows an unfinished subrequest */

struct ngx_http_idem_segment_s {
    ngx_http_request_t       *after;
    ngx_chain_t             **start;            /* its first link in "held" */
    ngx_http_idem_segment_t  *next;
};


static ngx_uint_t ngx_http_idem_slice(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_hold_part(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t ngx_http_idem_segment(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_compose(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason);
static ngx_chain_t *ngx_http_idem_cut_chain(ngx_http_idem_segment_t *segment);
static ngx_int_t ngx_http_idem_activate(ngx_http_request_t *r,
    ngx_http_postponed_request_t **rest, ngx_http_request_t *active);
static void ngx_http_idem_postpone(ngx_http_request_t *r,
    ngx_http_postponed_request_t **rest, ngx_http_request_t *upto);
static ngx_int_t ngx_http_idem_pass_filtered(ngx_http_request_t *r,
    ngx_chain_t *in);


void
ngx_http_idem_subrequest_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx)
{
    if (ctx->stage == NGX_HTTP_IDEM_HOLD && ngx_http_idem_slice(r)) {
        r->filter_need_in_memory = 1;

        /* the client's range is cut from the whole, not from each slice */

        r->allow_ranges = 0;
    }
}


/* subrequests of the slice module share its context */

static ngx_uint_t
ngx_http_idem_slice(ngx_http_request_t *r)
{
    ngx_module_t  *slice;

    slice = ngx_http_idem_modules.slice;

    return slice && r->ctx[slice->ctx_index]
           && r->ctx[slice->ctx_index] == r->main->ctx[slice->ctx_index];
}


/* the body filter of a subrequest while the main response is held */

ngx_int_t
ngx_http_idem_subrequest_body(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t     rc;
    ngx_chain_t  *out;

    if (r->subrequest_in_memory) {
        return ngx_http_idem_pass_body(r, in);
    }

    if (in && r == r->connection->data && r->postponed == NULL
        && ngx_http_idem_slice(r))
    {
        ctx->capture.composed = 1;
        return ngx_http_idem_hold_part(r, ctx, in);
    }

    out = ngx_http_idem_probe_output(r, in, &rc);

    if (out == NULL || rc == NGX_ERROR) {
        return rc;
    }

    rc = ngx_http_idem_compose(r->main, ctx, NGX_HTTP_IDEM_REASON_STREAM);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    return ngx_http_idem_pass_filtered(r, out);
}


/* holds data of the main request or of a slice, in the order of the response */

static ngx_int_t
ngx_http_idem_hold_part(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_http_idem_reason_e  reason;

    for ( /* void */ ; in; in = in->next) {
        reason = ngx_http_idem_hold(r->main, ctx, in->buf);

        if (reason == NGX_HTTP_IDEM_REASON_NONE) {
            continue;
        }

        if (r == r->main) {
            /* the end of the response, if it has come, is in "in" */
            ctx->capture.ended = 0;
        }

        return (ngx_http_idem_compose(r->main, ctx, reason) == NGX_ERROR)
               ? NGX_ERROR : ngx_http_idem_pass_body(r, in);
    }

    return NGX_OK;
}


/*
 * Passes "in" down to the write filter, but not to the client.  Returns the
 * chain that arrived there, or NULL if it has no data.
 */

ngx_chain_t *
ngx_http_idem_probe_output(ngx_http_request_t *r, ngx_chain_t *in,
    ngx_int_t *rc)
{
    ngx_uint_t         delayed;
    ngx_chain_t       *cl, *out;
    ngx_connection_t  *c;

    c = r->connection;

    delayed = c->write->delayed;
    c->write->delayed = 1;

    *rc = ngx_http_idem_pass_body(r, in);

    c->write->delayed = delayed;

    out = r->main->out;

    if (out == NULL) {
        return NULL;
    }

    r->main->out = NULL;
    c->buffered &= ~NGX_HTTP_WRITE_BUFFERED;

    if (*rc == NGX_AGAIN) {
        *rc = NGX_OK;
    }

    for (cl = out; cl; cl = cl->next) {
        if (ngx_buf_size(cl->buf)) {
            return out;
        }
    }

    return NULL;
}


/*
 * The main request sends data, or is resumed, while subrequests are
 * unfinished.  NGX_DECLINED: "in" is to be held, or there is nothing to wait
 * for.
 */

ngx_int_t
ngx_http_idem_subrequests_pending(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    if (in == NULL) {

        /* the postpone filter wakes the next subrequest */

        (void) ngx_http_idem_probe_output(r, NULL, &rc);

        return rc;
    }

    for (cl = in; cl; cl = cl->next) {

        if (cl->buf->last_buf) {
            ctx->capture.ended = 1;
            r->buffered |= NGX_HTTP_IDEM_BUFFERED;
        }
    }

    if (ngx_http_idem_segment(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_idem_hold_part(r, ctx, in);
}


/* data held from now on comes after the present subrequests */

static ngx_int_t
ngx_http_idem_segment(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_request_t             *after;
    ngx_http_postponed_request_t   *pr;
    ngx_http_idem_segment_t        *segment, **last;

    after = NULL;

    for (pr = r->postponed; pr; pr = pr->next) {
        after = pr->request;
    }

    segment = NULL;

    for (last = &ctx->capture.segments; *last; last = &(*last)->next) {
        segment = *last;
    }

    if (segment
        && (segment->after == after || segment->start == ctx->capture.last))
    {
        segment->after = after;
        return NGX_OK;
    }

    segment = ngx_palloc(r->pool, sizeof(ngx_http_idem_segment_t));
    if (segment == NULL) {
        return NGX_ERROR;
    }

    segment->after = after;
    segment->start = ctx->capture.last;
    segment->next = NULL;

    *last = segment;

    /* do not append to the previous segment's buffer */
    ctx->capture.tail = NULL;

    return NGX_OK;
}


/*
 * Sends the main response while it has subrequests, each part in its place.
 * NGX_ERROR: sending failed, or a filter replaces the response by another
 * status, of which the subrequests' data would not be a part.
 */

static ngx_int_t
ngx_http_idem_compose(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_http_idem_reason_e reason)
{
    ngx_int_t                      rc;
    ngx_chain_t                   *cl, *next;
    ngx_http_request_t            *active;
    ngx_http_postponed_request_t  *rest;
    ngx_http_idem_segment_t       *segment;

    if (ctx->capture.ended) {
        ngx_http_idem_hold_last(ctx);
    }

    ctx->capture.composed = 1;

    ngx_http_idem_let_through(r, ctx, reason);

    /* data before the first subrequest, as if there were none yet */

    active = r->connection->data;
    rest = r->postponed;

    r->connection->data = r;
    r->postponed = NULL;

    segment = ctx->capture.segments;
    next = segment ? ngx_http_idem_cut_chain(segment) : NULL;

    rc = ngx_http_idem_pass_header(r, ctx);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->capture.held && !r->header_only
        && ngx_http_idem_pass_body(r, ctx->capture.held) == NGX_ERROR)
    {
        return NGX_ERROR;
    }

    if (ngx_http_idem_activate(r, &rest, active) != NGX_OK) {
        return NGX_ERROR;
    }

    for ( /* void */ ; segment; segment = segment->next) {
        ngx_http_idem_postpone(r, &rest, segment->after);

        cl = next;
        next = segment->next ? ngx_http_idem_cut_chain(segment->next) : NULL;

        if (cl && !r->header_only
            && ngx_http_idem_pass_body(r, cl) == NGX_ERROR)
        {
            return NGX_ERROR;
        }
    }

    while (rest) {
        ngx_http_idem_postpone(r, &rest, rest->request);
    }

    return NGX_OK;
}


/* detaches the chain of a segment from the previous one */

static ngx_chain_t *
ngx_http_idem_cut_chain(ngx_http_idem_segment_t *segment)
{
    ngx_chain_t  *cl;

    cl = *segment->start;
    *segment->start = NULL;

    return cl;
}


/*
 * Resumes the request whose turn it was.  If the filters have made new
 * subrequests, as ssi does, it comes after them.
 */

static ngx_int_t
ngx_http_idem_activate(ngx_http_request_t *r,
    ngx_http_postponed_request_t **rest, ngx_http_request_t *active)
{
    ngx_http_request_t            *parent;
    ngx_http_postponed_request_t  *pr, **last;

    if (r->postponed == NULL) {
        r->connection->data = active;
        return NGX_OK;
    }

    if (active == r) {
        return NGX_OK;
    }

    /* the active request stays in its list while it is its turn */

    for (parent = active; parent != r; parent = parent->parent) {
        if (*rest && (*rest)->request == parent) {
            *rest = (*rest)->next;
            break;
        }
    }

    pr = ngx_palloc(r->pool, sizeof(ngx_http_postponed_request_t));
    if (pr == NULL) {
        return NGX_ERROR;
    }

    pr->request = active;
    pr->out = NULL;
    pr->next = NULL;

    for (last = &r->postponed; *last; last = &(*last)->next) { /* void */ }

    *last = pr;

    return NGX_OK;
}


/* moves the subrequests up to "upto" from "rest" to r->postponed, if found */

static void
ngx_http_idem_postpone(ngx_http_request_t *r,
    ngx_http_postponed_request_t **rest, ngx_http_request_t *upto)
{
    ngx_http_postponed_request_t  *pr, **last;

    for (pr = *rest; pr; pr = pr->next) {
        if (pr->request == upto) {
            break;
        }
    }

    if (pr == NULL) {
        return;
    }

    for (last = &r->postponed; *last; last = &(*last)->next) { /* void */ }

    *last = *rest;
    *rest = pr->next;
    pr->next = NULL;
}


/* passes on data that the subrequest's own filters have processed already */

static ngx_int_t
ngx_http_idem_pass_filtered(ngx_http_request_t *r, ngx_chain_t *in)
{
    void                          **ctx;
    ngx_int_t                       rc;
    ngx_http_postponed_request_t   *children, **last;

    ctx = r->ctx;
    children = r->postponed;

    r->ctx = ngx_pcalloc(r->pool, sizeof(void *) * ngx_http_max_module);

    if (r->ctx == NULL) {
        r->ctx = ctx;
        return NGX_ERROR;
    }

    r->postponed = NULL;

    rc = ngx_http_idem_pass_body(r, in);

    r->ctx = ctx;

    for (last = &r->postponed; *last; last = &(*last)->next) { /* void */ }

    *last = children;

    return rc;
}
