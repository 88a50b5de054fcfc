
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Early hints: a 103 response of the upstream, which nginx sends to the
 * client before the response ("early_hints", nginx 1.29).
 *
 * The response is held, but its hints are sent at once, while the upstream
 * runs; if writing them fails, nginx ends the upstream.  So no hints are sent
 * to a client that has gone, and the guard of the connection writes hints
 * that are still buffered, not nginx's handlers.
 *
 * Called by nginx's filter chain and by the guard.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


#if (nginx_version >= 1029000)

static ngx_int_t ngx_http_idem_hints_filter(ngx_http_request_t *r);


static ngx_http_output_header_filter_pt  ngx_http_next_early_hints_filter;

#endif


void
ngx_http_idem_hints_init(void)
{
#if (nginx_version >= 1029000)

    ngx_http_next_early_hints_filter = ngx_http_top_early_hints_filter;
    ngx_http_top_early_hints_filter = ngx_http_idem_hints_filter;

#endif
}


#if (nginx_version >= 1029000)

static ngx_int_t
ngx_http_idem_hints_filter(ngx_http_request_t *r)
{
    ngx_connection_t     *c;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || r != r->main || !ngx_http_idem_at_work(ctx)) {
        return ngx_http_next_early_hints_filter(r);
    }

    c = r->connection;

    if (c->error) {
        return NGX_OK;
    }

    /* if a hint can't be sent, the response is not affected */

    (void) ngx_http_next_early_hints_filter(r);

    if (c->buffered) {
        ngx_http_idem_stream_guard(r);
    }

    return NGX_OK;
}

#endif


/*
 * The client's connection is writable.  Returns nonzero if the response is
 * still to come, so nginx's handlers need not be called.
 */

ngx_uint_t
ngx_http_idem_hints_write(ngx_http_request_t *r)
{
#if (nginx_version >= 1029000)

    ngx_connection_t     *c;
    ngx_http_idem_ctx_t  *ctx;

    ctx = ngx_http_idem_get_ctx(r);

    if (ctx == NULL || !ngx_http_idem_at_work(ctx)
        || ngx_http_idem_is_ending(r))
    {
        return 0;
    }

    c = r->connection;

    if (c->buffered && !c->error) {
        (void) ngx_http_write_filter(r, NULL);
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        c->error = 1;
    }

    return 1;

#else

    return 0;

#endif
}
