
/*
 * What becomes of yajl's events: the canonical encoding, the wanted members,
 * the paths.  Inside of the JSON walker: json.c owns one of these, and yajl
 * calls it.
 */


#ifndef _NGX_HTTP_IDEM_JSON_WALK_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_WALK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <yajl/yajl_parse.h>

#include "canonical/ngx_http_idem_canon.h"
#include "canonical/ngx_http_idem_json.h"
#include "canonical/ngx_http_idem_json_paths.h"


/* an open container */

typedef struct {
    size_t                               base;     /* of its children     */
    size_t                               path;     /* length of its own   */
    ngx_uint_t                           n;        /* children that count */
    unsigned                             object:1;
} ngx_http_idem_json_frame_t;


typedef struct {
    const ngx_http_idem_json_options_t  *options;

    ngx_http_idem_canon_t         canon;
    ngx_int_t                     rc;              /* why it was ended    */

    ngx_http_idem_json_frame_t   *frames;
    ngx_uint_t                    depth;           /* of them in use      */

    ngx_uint_t                    hidden;          /* depth of the object
                                                      whose member is left
                                                      out, or 0           */
    size_t                        hidden_base;

    ngx_http_idem_json_member_t  *members;
    ngx_uint_t                    wanted;          /* the member is       */
    ngx_uint_t                   *reached;         /* by wanted pointer: so
                                                      many of its tokens are
                                                      where we are; NULL:
                                                      there are none      */

    ngx_http_idem_json_paths_t   *paths;           /* NULL: not asked for */
    ngx_uint_t                    folded;          /* depth of the array
                                                      that is one leaf,
                                                      or 0                */
} ngx_http_idem_json_walk_t;


extern const yajl_callbacks  ngx_http_idem_json_walk_callbacks;


/* to be destroyed even if this fails */

ngx_int_t ngx_http_idem_json_walk_init(ngx_http_idem_json_walk_t *w,
    const ngx_http_idem_json_options_t *options,
    const ngx_http_idem_canon_mem_t *mem);
ngx_int_t ngx_http_idem_json_walk_done(
    ngx_http_idem_json_walk_t *w, u_char *digest);
void ngx_http_idem_json_walk_destroy(ngx_http_idem_json_walk_t *w);


#endif /* _NGX_HTTP_IDEM_JSON_WALK_H_INCLUDED_ */
