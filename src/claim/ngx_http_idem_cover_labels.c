
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Labels of the records of a request: group, tenant, actor and the name of
 * this host.  They are stored only if the configuration asks for them, see
 * ngx_http_idem_has_labels().  Other records have no labels.
 *
 * Called when the covers of a request are known.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


ngx_int_t
ngx_http_idem_cover_labels(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                 *p, hash[NGX_HTTP_IDEM_HASH_LEN];
    u_char                  hex[2 * NGX_HTTP_IDEM_HASH_LEN];
    size_t                  size;
    ngx_str_t               details;
    ngx_str_t               labels[NGX_HTTP_IDEM_LABEL_N], actor;
    ngx_uint_t              i;
    ngx_http_idem_cover_t  *cover;

    ngx_memzero(labels, sizeof(labels));

    if (ctx->conf->tenant
        && ngx_http_idem_value(r, ctx->conf->tenant,
                               &labels[NGX_HTTP_IDEM_LABEL_TENANT])
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->conf->actor) {

        if (ngx_http_idem_value(r, ctx->conf->actor, &actor) != NGX_OK) {
            return NGX_ERROR;
        }

        labels[NGX_HTTP_IDEM_LABEL_ACTOR] = actor;

        if (actor.len && !ctx->conf->actor_plain) {
            ngx_http_idem_digest_plain(hash, actor.data, actor.len);
            (void) ngx_hex_dump(hex, hash, sizeof(hash));

            labels[NGX_HTTP_IDEM_LABEL_ACTOR].data = hex;
            labels[NGX_HTTP_IDEM_LABEL_ACTOR].len = sizeof(hex);
        }
    }

    labels[NGX_HTTP_IDEM_LABEL_GROUP] =
        ngx_http_idem_metrics_group_name(ngx_http_idem_group(ctx));
    labels[NGX_HTTP_IDEM_LABEL_HOST] = ngx_cycle->hostname;

    size = ngx_http_idem_labels_size(labels);

    for (i = 0; i < ctx->claims.ncovers; i++) {
        cover = &ctx->claims.covers[i];

        details = cover->stored.len ? cover->stored : cover->details;

        cover->stored.len = size + details.len;
        cover->stored.data = ngx_pnalloc(r->pool, cover->stored.len);

        if (cover->stored.data == NULL) {
            return NGX_ERROR;
        }

        p = ngx_http_idem_labels_encode(cover->stored.data, labels);
        ngx_memcpy(p, details.data, details.len);
    }

    return NGX_OK;
}
