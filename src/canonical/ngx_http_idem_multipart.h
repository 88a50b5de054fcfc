
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A multipart body without its boundary.
 *
 * The boundary is made anew for each try, so it must not count; every other
 * byte does.  The body, taken as CRLF + body, is cut at each CRLF "--"
 * boundary; every segment is passed on as it streams by, followed by its
 * length.  Lengths that come last can be read back from the end, so two
 * bodies give the same output exactly when they differ by the boundary alone.
 *
 * Pure: fed by the body reader, feeds a digest through "update".
 */


#ifndef _NGX_HTTP_IDEM_MULTIPART_H_INCLUDED_
#define _NGX_HTTP_IDEM_MULTIPART_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_IDEM_BOUNDARY_MAX  70            /* RFC 2046, 5.1.1 */


typedef void (*ngx_http_idem_multipart_update_pt)(void *data,
    const u_char *p, size_t len);


typedef struct {
    ngx_http_idem_multipart_update_pt   update;
    void                               *data;

    u_char      delimiter[4 + NGX_HTTP_IDEM_BOUNDARY_MAX];
    size_t      len;                   /* of the delimiter                */
    size_t      matched;               /* of the delimiter, so far        */
    uint64_t    segment;               /* bytes of the segment, so far    */
} ngx_http_idem_multipart_t;


/*
 * Finds the boundary parameter of a multipart media type.  NGX_DECLINED if
 * "type" is not multipart, or has no boundary that RFC 2046 allows.
 */
ngx_int_t ngx_http_idem_multipart_boundary(const ngx_str_t *type,
    ngx_str_t *boundary);

/* "boundary" is one that the function above has found: no CR is in it */
void ngx_http_idem_multipart_init(ngx_http_idem_multipart_t *m,
    const ngx_str_t *boundary,
    ngx_http_idem_multipart_update_pt update, void *data);
void ngx_http_idem_multipart_feed(ngx_http_idem_multipart_t *m,
    const u_char *p, size_t len);
void ngx_http_idem_multipart_done(ngx_http_idem_multipart_t *m);


#endif /* _NGX_HTTP_IDEM_MULTIPART_H_INCLUDED_ */
