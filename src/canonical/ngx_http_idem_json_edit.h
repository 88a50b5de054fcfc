
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A JSON object with some of its members set.
 *
 * The object is parsed (json_parser.h) and written again: the order of members
 * and the text of numbers stay; white space goes, and strings have no escapes
 * but those they need.  Members that are set come at the end, in the order
 * given, in place of all that have their name.
 *
 * Works in steps.  Pure: no request, no pool.  Called by the replay.
 */


#ifndef _NGX_HTTP_IDEM_JSON_EDIT_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_EDIT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_canon.h"
#include "canonical/ngx_http_idem_json_parser.h"


/* an object that is nested deeper is left alone */
#define NGX_HTTP_IDEM_JSON_EDIT_DEPTH  127


typedef struct {
    ngx_str_t                           name;
    ngx_str_t                           value;    /* JSON                 */
} ngx_http_idem_json_set_t;


typedef struct {
    const ngx_http_idem_json_parser_t  *type;
    void                               *parser;
    const ngx_http_idem_json_set_t     *set;
    ngx_uint_t                          nset;

    u_char                             *start;
    u_char                             *last;
    ngx_uint_t                          depth;
    ngx_uint_t                          skip;     /* depth of a member that
                                                     is set, or 0         */
    ngx_uint_t                          first;    /* no comma is needed   */
    u_char                 close[NGX_HTTP_IDEM_JSON_EDIT_DEPTH];
} ngx_http_idem_json_edit_t;


/* no more bytes than this are written */

size_t ngx_http_idem_json_edit_size(const ngx_str_t *text,
    const ngx_http_idem_json_set_t *set, ngx_uint_t nset);

/*
 * Writes to "buf".  The text and "set" have to stay where they are.  NGX_OK;
 * NGX_DECLINED: it is no JSON; NGX_ERROR: no memory.  To be destroyed even if
 * this fails.
 */
ngx_int_t ngx_http_idem_json_edit_init(ngx_http_idem_json_edit_t *e,
    const ngx_str_t *text, const ngx_http_idem_json_set_t *set,
    ngx_uint_t nset, u_char *buf);

/*
 * NGX_AGAIN: there is more to do than "work", of which 1 is a few nanoseconds.
 * NGX_OK: "out" is the object.  Otherwise as above; what is JSON, but no
 * object, is declined, too.
 */
ngx_int_t ngx_http_idem_json_edit_step(ngx_http_idem_json_edit_t *e,
    size_t work, ngx_str_t *out);

void ngx_http_idem_json_edit_destroy(ngx_http_idem_json_edit_t *e);


/* a string in quotes, of 6 times its bytes and 2 at most; where it ends */

u_char *ngx_http_idem_json_edit_string(u_char *p, const u_char *s,
    size_t len);


#endif /* _NGX_HTTP_IDEM_JSON_EDIT_H_INCLUDED_ */
