
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Reads the body of an HTTP/2 request that is refused before its body came.
 *
 * nginx resets a stream that it has answered while the client still sends, and
 * some clients (curl 7.88) drop the response then.  So the body is read first,
 * as if the request ran, and the refusal follows.  Over HTTP/1 nginx itself
 * reads the rest, after the response.  A body that takes longer
 * than lingering_timeout is not waited for.  If the client leaves meanwhile,
 * or its body is too large, nginx ends the request, and no refusal follows.
 *
 * Called when a key is missing or malformed, after all access checks.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_housekeeping.h"
#include "request/ngx_http_idem_request.h"


#if (NGX_HTTP_V2)

static void ngx_http_idem_drained(ngx_http_request_t *r);
static void ngx_http_idem_drain_timeout(ngx_event_t *ev);
static void ngx_http_idem_drain_cleanup(void *data);

#endif


/* a client that waits for "100 Continue" sends nothing */

ngx_uint_t
ngx_http_idem_body_pending(ngx_http_request_t *r)
{
#if (NGX_HTTP_V2)

    return r->stream
           && !r->stream->in_closed && !r->stream->skip_data
           && r->request_body == NULL
           && r->headers_in.expect == NULL;

#else

    return 0;

#endif
}


/*
 * Calls ngx_http_idem_refuse_drained() when the body was read.  Returns what
 * the phase handler has to return.
 */

ngx_int_t
ngx_http_idem_drain(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
#if (NGX_HTTP_V2)

    ngx_int_t                  rc;
    ngx_event_t               *timer;
    ngx_pool_cleanup_t        *cln;
    ngx_http_core_loc_conf_t  *clcf;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_event_t));
    if (cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    timer = cln->data;
    cln->handler = ngx_http_idem_drain_cleanup;

    ngx_memzero(timer, sizeof(ngx_event_t));

    timer->handler = ngx_http_idem_drain_timeout;
    timer->data = r;
    timer->log = r->connection->log;

    ctx->answer.drain = timer;

    /* it would run for a client that leaves, with the timer set */

    ngx_http_idem_no_post_action(r);

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    ngx_add_timer(timer, clcf->lingering_timeout);

    rc = ngx_http_read_client_request_body(r, ngx_http_idem_drained);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        ngx_http_idem_drain_cleanup(timer);
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;

#else

    return NGX_HTTP_INTERNAL_SERVER_ERROR;

#endif
}


#if (NGX_HTTP_V2)

static void
ngx_http_idem_drained(ngx_http_request_t *r)
{
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    ngx_http_idem_drain_cleanup(ctx->answer.drain);
    ngx_http_idem_refuse_drained(r, ctx);
}


/* nginx skips what comes from now on */

static void
ngx_http_idem_drain_timeout(ngx_event_t *ev)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ev->data;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (r->stream->skip_data) {
        /* the body could not be read, and the request has its answer */
        return;
    }

    if (c->read->timer_set) {
        ngx_del_timer(c->read);
    }

    r->stream->skip_data = 1;
    r->read_event_handler = ngx_http_block_reading;

    ngx_http_idem_drained(r);

    ngx_http_run_posted_requests(c);
}


static void
ngx_http_idem_drain_cleanup(void *data)
{
    ngx_housekeeping_stop(data);
}

#endif
