
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * What becomes of the parser's events: the canonical encoding, the wanted
 * members, the paths.  Inside of the JSON walker: json.c owns one of these, and
 * the parser calls it.
 */


#ifndef _NGX_HTTP_IDEM_JSON_WALK_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_WALK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_canon.h"
#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_json_parser.h"
#include "canonical/ngx_http_idem_json_paths.h"
#include "canonical/ngx_http_idem_json_pointer.h"


/* an open container */

typedef struct {
    size_t                               base;     /* of its children     */
    size_t                               path;     /* length of its own   */
    ngx_uint_t                           n;        /* children that count */
    ngx_uint_t                           index;    /* ... and those that do
                                                      not                 */
    unsigned                             object:1;
} ngx_http_idem_json_frame_t;


/* the lists of the options */

typedef enum {
    NGX_HTTP_IDEM_JSON_WANTED = 0,
    NGX_HTTP_IDEM_JSON_EXCLUDED,
    NGX_HTTP_IDEM_JSON_INCLUDED,
    NGX_HTTP_IDEM_JSON_REDACTED,
    NGX_HTTP_IDEM_JSON_TRACKS
} ngx_http_idem_json_track_e;


typedef struct {
    const ngx_http_idem_json_options_t  *options;

    ngx_http_idem_canon_t         canon;
    ngx_int_t                     rc;              /* if an event ends it */

    ngx_http_idem_json_frame_t   *frames;
    ngx_uint_t                    depth;           /* of them in use      */

    size_t                        hidden_base;     /* of what is left out */

    ngx_http_idem_json_track_t    tracks[NGX_HTTP_IDEM_JSON_TRACKS];
    ngx_http_idem_json_member_t  *members;         /* wanted members      */
    ngx_http_idem_json_member_t  *parts;           /* included members    */

    ngx_http_idem_json_paths_t   *paths;           /* NULL: not asked for */
    ngx_uint_t                    folded;          /* depth of the array
                                                      that is one leaf,
                                                      or 0                */
    unsigned                      pointers:1;      /* in one of the lists */
    unsigned                      closing:1;       /* a container, in steps */
} ngx_http_idem_json_walk_t;


extern const ngx_http_idem_json_events_t  ngx_http_idem_json_walk_events;


/* to be destroyed even if this fails */

ngx_int_t ngx_http_idem_json_walk_init(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_options_t *options);
ngx_int_t ngx_http_idem_json_walk_done(
    ngx_http_idem_json_walk_t *w, u_char *digest);
void ngx_http_idem_json_walk_destroy(ngx_http_idem_json_walk_t *w);

/* a step of closing a container, if it takes any: NGX_AGAIN, there are more */

ngx_int_t ngx_http_idem_json_close_step(ngx_http_idem_json_walk_t *w,
    size_t work);

/* ..._json_members.c: values of wanted members, and of included ones */

ngx_int_t ngx_http_idem_json_members(ngx_http_idem_json_member_t **members,
    ngx_uint_t n);
void ngx_http_idem_json_members_destroy(ngx_http_idem_json_member_t *members,
    ngx_uint_t n);

/* the value on top of the stack, from "base" on */
ngx_int_t ngx_http_idem_json_keep(ngx_http_idem_json_walk_t *w,
    ngx_http_idem_json_member_t *m, ngx_http_idem_json_kind_e kind,
    size_t base, const u_char *p, size_t len);

/* NGX_DECLINED: the document counts as a whole */
ngx_int_t ngx_http_idem_json_included(
    ngx_http_idem_json_walk_t *w, u_char *digest);


#endif /* _NGX_HTTP_IDEM_JSON_WALK_H_INCLUDED_ */
