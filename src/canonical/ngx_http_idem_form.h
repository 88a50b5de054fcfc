
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A form (application/x-www-form-urlencoded) as it counts for the
 * fingerprint: how a character is escaped does not matter, nor does the order
 * of fields with different names; everything else does.
 *
 *   - "+", "%20" and a space are the same, so are "~", "%7E" and "%7e".
 *   - Fields with the same name keep their order.  So do those that an
 *     application may take for the same, or put together by order: names
 *     that differ in case, in " ", "." and "_", or behind a "[": to Rack,
 *     a[][x]=1&a[][y]=2&a[][x]=3 is not a[][x]=1&a[][x]=3&a[][y]=2.
 *   - "a" is not "a=", and "a=1&&b=2" is not "a=1&b=2".
 *   - Fields with an excluded name are left out.
 *   - A body with a broken escape, or over the size, is DECLINED: it counts
 *     raw.
 *
 * As with JSON, the digest is one of another kind than that of the raw body.
 * Pure: no request, no pool.  Called by the body reader; calls canon.h.
 */


#ifndef _NGX_HTTP_IDEM_FORM_H_INCLUDED_
#define _NGX_HTTP_IDEM_FORM_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_canon.h"


#define NGX_HTTP_IDEM_FORM_SIZE  (1024 * 1024)


/* of a location; has to outlive the readers that were made with it */

typedef struct {
    size_t                               size;       /* of a body, bytes  */
    ngx_str_t                           *excluded;   /* field names, and
                                                        JSON Pointers, which
                                                        are for JSON alone */
    ngx_uint_t                           nexcluded;
} ngx_http_idem_form_options_t;


typedef struct ngx_http_idem_form_s  ngx_http_idem_form_t;


/* NULL if there is no memory */

ngx_http_idem_form_t *ngx_http_idem_form_create(
    const ngx_http_idem_form_options_t *options);

/*
 * As with JSON (json.h): collects a body; when all was fed, a step of what is
 * to do; and once, at the end of the body, all that is left to do, which sets
 * the digest if it says NGX_OK.
 */
ngx_int_t ngx_http_idem_form_feed(ngx_http_idem_form_t *f,
    const u_char *p, size_t len);
ngx_int_t ngx_http_idem_form_work(ngx_http_idem_form_t *f, size_t work);
ngx_int_t ngx_http_idem_form_done(ngx_http_idem_form_t *f, u_char *digest);

void ngx_http_idem_form_destroy(ngx_http_idem_form_t *f);


#endif /* _NGX_HTTP_IDEM_FORM_H_INCLUDED_ */
