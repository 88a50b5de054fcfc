
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The terms on which the records of a request are claimed: TTL, lease, grace,
 * and what happens if the store fails or the outcome is unknown.  Variables
 * may change while a request runs, so they are evaluated once, before begin.
 *
 * Called by begin.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_msec_t ngx_http_idem_ttl(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);


void
ngx_http_idem_terms(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ctx->claims.lease = ngx_http_idem_time(r, &ctx->conf->lease,
                                    "idempotency_lease");
    ctx->claims.lease = ngx_max(ctx->claims.lease, NGX_HTTP_IDEM_LEASE_MIN);
    ctx->claims.ttl = ngx_http_idem_ttl(r, ctx);
    ctx->claims.grace = ngx_http_idem_time(r, &ctx->conf->expired_grace,
                                    "idempotency_expired_grace");

    /* without memory for their values, nothing runs twice */

    ctx->claims.on_store_error = ngx_http_idem_choice(r,
                                    &ctx->conf->on_store_error,
                                    "idempotency_on_store_error",
                                    NGX_HTTP_IDEM_ON_ERROR_FAIL);
    ctx->claims.unknown_outcome = ngx_http_idem_choice(r,
                                    &ctx->conf->unknown_outcome,
                                    "idempotency_unknown_outcome",
                                    NGX_HTTP_IDEM_UNKNOWN_HOLD);
}


/* the TTL that the client asks for, up to the configured limit */

static ngx_msec_t
ngx_http_idem_ttl(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                  n;
    ngx_uint_t                 count;
    ngx_msec_t                 ttl, max;
    ngx_table_elt_t           *h;
    ngx_http_idem_loc_conf_t  *conf;

    conf = ctx->conf;

    ttl = ngx_http_idem_time(r, &conf->ttl, "idempotency_ttl");

    if (ttl == 0) {
        ttl = NGX_HTTP_IDEM_TTL;
    }

    if (conf->ttl_header.len == 0) {
        return ttl;
    }

    h = ngx_http_idem_request_header(r, &conf->ttl_header, &count);

    if (count != 1) {
        return ttl;
    }

    max = ngx_http_idem_time(r, &conf->ttl_header_max,
                             "idempotency_ttl_header");

    n = ngx_atoi(h->value.data, h->value.len);

    if (n == NGX_ERROR) {

        /* too many digits for an integer mean the limit */

        for (n = 0; n < (ngx_int_t) h->value.len; n++) {
            if (h->value.data[n] < '0' || h->value.data[n] > '9') {
                return ttl;
            }
        }

        n = h->value.len ? NGX_MAX_INT_T_VALUE : 0;
    }

    if (n == 0 || max == 0) {
        return ttl;
    }

    return ngx_min((ngx_msec_t) n, max);
}
