
/*
 * JSON Pointers (RFC 6901): "/a/0/b" is a way from the document to a value in
 * it, by names and places.  In a name "~1" stands for "/", "~0" for "~".
 *
 * Pure.  Called by the walker.
 */


#ifndef _NGX_HTTP_IDEM_JSON_POINTER_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_POINTER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


ngx_uint_t ngx_http_idem_json_pointer_tokens(const ngx_str_t *pointer);

/* whether its n-th token, from 1 on, is this */
ngx_uint_t ngx_http_idem_json_pointer_is(const ngx_str_t *pointer,
    ngx_uint_t n, const u_char *p, size_t len);


#endif /* _NGX_HTTP_IDEM_JSON_POINTER_H_INCLUDED_ */
