
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What the tests of the JSON walker share: options with the usual limits, and
 * the digest of a body.
 */


#ifndef _JSON_H_INCLUDED_
#define _JSON_H_INCLUDED_


#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_json_paths.h"
#include "canon.h"


static ngx_inline void
options_init(ngx_http_idem_json_options_t *options)
{
    ngx_memzero(options, sizeof(ngx_http_idem_json_options_t));

    options->size = NGX_HTTP_IDEM_JSON_SIZE;
    options->depth = NGX_HTTP_IDEM_JSON_DEPTH;
    options->paths = NGX_HTTP_IDEM_JSON_PATHS;
    options->paths_size = NGX_HTTP_IDEM_JSON_PATHS_SIZE;
    options->secret = (u_char *) "0123456789abcdef0123456789abcdef";
}


static ngx_inline ngx_int_t
feed_json(void *reader, const u_char *p, size_t len)
{
    return ngx_http_idem_json_feed(reader, p, len);
}


static ngx_inline ngx_int_t
run(void *options, const void *text, size_t len, int piece, u_char *digest)
{
    ngx_int_t              rc, done_rc;
    ngx_http_idem_json_t  *j;

    j = ngx_http_idem_json_create(options);
    if (j == NULL) {
        return NGX_ERROR;
    }

    rc = feed(feed_json, j, text, len, piece);
    done_rc = ngx_http_idem_json_done(j, digest);

    if (rc != NGX_OK && done_rc != rc) {
        done_rc = NGX_ABORT;                       /* an answer must stay */
    }

    ngx_http_idem_json_destroy(j);

    return done_rc;
}


#endif /* _JSON_H_INCLUDED_ */
