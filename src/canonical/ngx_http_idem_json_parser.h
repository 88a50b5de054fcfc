
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A JSON parser, whichever library it is: a text goes in, events come out.
 *
 * Two stand behind it, and the build says which: yajl, which reports events
 * while it reads, and yyjson, which makes trees and is faster.  Both take
 * exactly what RFC 8259 calls JSON, without halves of surrogate pairs and
 * without a byte order mark; numbers come as text, names that come twice come
 * twice.  So hosts with different libraries have the same fingerprints:
 * t/json-parsers.t holds one against the other.
 *
 * Pure.  Called by json.c and json_edit.c; calls the library, and the events.
 */


#ifndef _NGX_HTTP_IDEM_JSON_PARSER_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_PARSER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_json.h"


/* each returns 1, or 0: no more of this text */

typedef struct {
    /* characters of a string, text of any other */
    int  (*scalar)(void *data, ngx_http_idem_json_kind_e kind,
                   const u_char *p, size_t len);
    int  (*name)(void *data, const u_char *p, size_t len);
    int  (*start)(void *data, ngx_uint_t object);
    int  (*end)(void *data);
} ngx_http_idem_json_events_t;


/*
 * Answers: NGX_OK; NGX_DECLINED, it is no JSON; NGX_ABORT, an event said 0;
 * NGX_ERROR, there is no memory.  After anything but NGX_OK and NGX_AGAIN
 * nothing may be asked of a parser any more but to be destroyed.
 */

typedef struct {
    const char   *name;

    /* "depth": of nesting that the events go on with; 0: there are none.
       NULL: no memory */
    void         *(*create)(const ngx_http_idem_json_events_t *events,
                          void *data, ngx_uint_t depth);

    /* once; the text stays where it is until the parser is destroyed */
    ngx_int_t   (*text)(void *parser, const u_char *p, size_t len);

    /* NGX_AGAIN: behind the end of a large container, or since "work" has come
       down to 0, and there is more */
    ngx_int_t   (*step)(void *parser, size_t *work);

    void        (*destroy)(void *parser);
} ngx_http_idem_json_parser_t;


extern const ngx_http_idem_json_parser_t  ngx_http_idem_json_yajl;
extern const ngx_http_idem_json_parser_t  ngx_http_idem_json_yyjson;

/* the one that the build has chosen; tests set it */
extern const ngx_http_idem_json_parser_t  *ngx_http_idem_json_parser;


#endif /* _NGX_HTTP_IDEM_JSON_PARSER_H_INCLUDED_ */
