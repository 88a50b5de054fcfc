
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

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

#include "canonical/ngx_http_idem_canon.h"


/* a list of names and pointers, and where the walker is with each */

typedef struct {
    const ngx_str_t                     *list;
    ngx_uint_t                           n;
    ngx_uint_t                          *reached;  /* matched tokens of each
                                                      pointer             */
    ngx_uint_t                           inside;   /* depth of the container
                                                      of the match, or 0  */
    unsigned                             pointers:1; /* not names only    */
    unsigned                             top:1;    /* names are those of the
                                                      document's own members */
} ngx_http_idem_json_track_t;


#define ngx_http_idem_json_is_pointer(name)                                   \
    ((name)->len && (name)->data[0] == '/')


/* whether "~" stands before 0 and 1 only */
ngx_uint_t ngx_http_idem_json_pointer_valid(const ngx_str_t *pointer);

/* "reached" is to be freed */
ngx_int_t ngx_http_idem_json_track_init(ngx_http_idem_json_track_t *t);

/* to a member, or an element, of the container that is "depth" deep */
void ngx_http_idem_json_track_step(ngx_http_idem_json_track_t *t,
    ngx_uint_t depth, ngx_uint_t member, const u_char *p, size_t len);

/* whether the i-th is a pointer to it, or its name */
ngx_uint_t ngx_http_idem_json_track_at(const ngx_http_idem_json_track_t *t,
    ngx_uint_t i, ngx_uint_t depth);


#endif /* _NGX_HTTP_IDEM_JSON_POINTER_H_INCLUDED_ */
