
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Values of a JSON document that are kept apart: those that keys come from,
 * and those that alone count where a fingerprint says what is included.
 * Called by the walker.
 */


#include "canonical/ngx_http_idem_json_walk.h"


ngx_int_t
ngx_http_idem_json_members(ngx_http_idem_json_member_t **members, ngx_uint_t n)
{
    if (n == 0) {
        return NGX_OK;
    }

    *members = ngx_http_idem_canon_calloc(
                                      n * sizeof(ngx_http_idem_json_member_t));

    return *members ? NGX_OK : NGX_ERROR;
}


void
ngx_http_idem_json_members_destroy(ngx_http_idem_json_member_t *members,
    ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n && members; i++) {
        ngx_http_idem_canon_free(members[i].value.data);
    }

    ngx_http_idem_canon_free(members);
}


ngx_int_t
ngx_http_idem_json_keep(ngx_http_idem_json_walk_t *w,
    ngx_http_idem_json_member_t *m, ngx_http_idem_json_kind_e kind,
    size_t base, const u_char *p, size_t len)
{
    ngx_http_idem_digest_t  d;

    if (m->count) {
        m->count = 2;
        return NGX_OK;
    }

    m->count = 1;
    m->kind = kind;

    if (len) {
        m->value.data = ngx_http_idem_canon_alloc(len);
        if (m->value.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(m->value.data, p, len);
        m->value.len = len;
    }

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, "member", 6);
    ngx_http_idem_digest_update(&d, w->canon.stack + base,
                                w->canon.len - base);
    ngx_http_idem_digest_done(&d, m->digest);

    return NGX_OK;
}


/*
 * The digest of what is included: place by place, in the order in which the
 * configuration names them.
 */

ngx_int_t
ngx_http_idem_json_included(ngx_http_idem_json_walk_t *w, u_char *digest)
{
    ngx_uint_t                     i, n;
    ngx_http_idem_digest_t         d;
    ngx_http_idem_json_member_t   *m;

    static u_char  none[NGX_HTTP_IDEM_CANON_DIGEST_LEN];

    n = 0;

    for (i = 0; i < w->options->nincluded; i++) {

        if (w->parts[i].count > 1) {
            return NGX_DECLINED;
        }

        n += w->parts[i].count;
    }

    if (n == 0) {
        return NGX_DECLINED;
    }

    ngx_http_idem_digest_start(&d);
    ngx_http_idem_digest_update(&d, "json parts", 10);

    for (i = 0; i < w->options->nincluded; i++) {
        m = &w->parts[i];

        ngx_http_idem_digest_update(&d, m->count ? m->digest : none,
                                      NGX_HTTP_IDEM_CANON_DIGEST_LEN);
    }

    ngx_http_idem_digest_done(&d, digest);

    return NGX_OK;
}
