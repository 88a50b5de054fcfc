
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A JSON body as it counts for the fingerprint: key order, white space and
 * string escapes do not matter, everything else does.
 *
 * A walker over the body (json_parser.h says who parses).  It gives one digest
 * for the document, the values of wanted top-level members (for keys and
 * derived keys that come from the body), and, if asked, the list of paths
 * from which a conflict can tell what differs.
 *
 *   - A number counts by its text: 1, 1.0 and 1e0 are three numbers.
 *   - A string counts by its characters.
 *   - Names that come twice both count, in the order they came.
 *   - Excluded members are left out, by name at any depth or by pointer, with
 *     all below them; they are in no path, but may still be wanted.
 *   - Where pointers say what is included, nothing else counts.  A document
 *     that has none of it, or has one place twice, counts as a whole: all
 *     such documents would be the same.
 *   - What is no proper JSON (RFC 8259, and no half of a surrogate pair), is
 *     over the size or nested too deep, is DECLINED: such a body counts raw.
 *     A byte order mark is no proper JSON.
 *
 * The digest is one of another kind than that of the raw body: whoever puts
 * either into a fingerprint must put in which of them it is.
 *
 * Memory is bounded by the size limit (t/unit/json.c measures how much) and
 * freed by json_destroy().  Pure: no request, no pool.  Called by the body
 * reader; calls the parser, and canon.h for the encoding that is hashed.
 */


#ifndef _NGX_HTTP_IDEM_JSON_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_canon.h"


#define NGX_HTTP_IDEM_JSON_SIZE        (1024 * 1024)
#define NGX_HTTP_IDEM_JSON_DEPTH       128
#define NGX_HTTP_IDEM_JSON_PATHS       256
#define NGX_HTTP_IDEM_JSON_PATHS_SIZE  (32 * 1024)
#define NGX_HTTP_IDEM_JSON_SECRET_LEN  32


typedef enum {
    NGX_HTTP_IDEM_JSON_NONE = 0,             /* not there                 */
    NGX_HTTP_IDEM_JSON_STRING,
    NGX_HTTP_IDEM_JSON_NUMBER,
    NGX_HTTP_IDEM_JSON_TRUE,
    NGX_HTTP_IDEM_JSON_FALSE,
    NGX_HTTP_IDEM_JSON_NULL,
    NGX_HTTP_IDEM_JSON_ARRAY,
    NGX_HTTP_IDEM_JSON_OBJECT
} ngx_http_idem_json_kind_e;


typedef enum {
    NGX_HTTP_IDEM_JSON_DETAIL_OFF = 0,
    NGX_HTTP_IDEM_JSON_DETAIL_PATHS,
    NGX_HTTP_IDEM_JSON_DETAIL_VALUES
} ngx_http_idem_json_detail_e;


/* of a location; has to outlive the walkers that were made with it */

typedef struct {
    size_t                        size;              /* of a body, bytes  */
    ngx_uint_t                    depth;             /* of nesting, not 0 */

    ngx_str_t                    *excluded;          /* member names, or
                                                        JSON Pointers     */
    ngx_uint_t                    nexcluded;
    ngx_str_t                    *wanted;            /* top-level names, or
                                                        JSON Pointers     */
    ngx_uint_t                    nwanted;
    ngx_str_t                    *included;          /* JSON Pointers: only
                                                        these count       */
    ngx_uint_t                    nincluded;
    ngx_str_t                    *redacted;          /* names, or pointers:
                                                        paths have a hash in
                                                        place of the value */
    ngx_uint_t                    nredacted;

    ngx_http_idem_json_detail_e   detail;
    ngx_uint_t                    paths;             /* at most that many */
    size_t                        paths_size;        /* and bytes in all  */
    const u_char                 *secret;            /* of the path hashes:
                                                        _SECRET_LEN bytes */

    unsigned                      unordered:1;         /* arrays are sets */
} ngx_http_idem_json_options_t;


typedef struct {
    ngx_http_idem_json_kind_e     kind;
    ngx_uint_t                    count;            /* of occurrences; 2 is
                                                       2 or more: ambiguous */
    ngx_str_t                     value;            /* characters of a
                                                       string, text of any
                                                       other scalar, empty
                                                       for a container    */
    u_char       digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
} ngx_http_idem_json_member_t;


typedef struct ngx_http_idem_json_s  ngx_http_idem_json_t;


/* NULL if there is no memory */

ngx_http_idem_json_t *ngx_http_idem_json_create(
    const ngx_http_idem_json_options_t *options);

/*
 * Collects a body.  NGX_OK; NGX_DECLINED: the body counts raw; NGX_ERROR: no
 * memory.  After anything but NGX_OK the answer stays the same, and bytes cost
 * nothing.
 */
ngx_int_t ngx_http_idem_json_feed(ngx_http_idem_json_t *j,
    const u_char *p, size_t len);

/*
 * Does one step of the work after all bytes were fed, so that the caller is
 * not busy for long.  NGX_AGAIN: there is more; otherwise as above.
 */
ngx_int_t ngx_http_idem_json_work(ngx_http_idem_json_t *j, size_t work);

/* does all remaining work, once, at the end of the body; returns as above */

ngx_int_t ngx_http_idem_json_done(ngx_http_idem_json_t *j, u_char *digest);

/* after json_done() said NGX_OK, until json_destroy() */

const ngx_http_idem_json_member_t *ngx_http_idem_json_member(
    ngx_http_idem_json_t *j, ngx_uint_t i);
const ngx_http_idem_json_member_t *ngx_http_idem_json_named(
    ngx_http_idem_json_t *j, const ngx_str_t *name);
void ngx_http_idem_json_paths(ngx_http_idem_json_t *j, ngx_str_t *paths);

void ngx_http_idem_json_destroy(ngx_http_idem_json_t *j);


/* whether a text is JSON, of any depth; the answers of json_feed() */

ngx_int_t ngx_http_idem_json_valid(const ngx_str_t *text);


#endif /* _NGX_HTTP_IDEM_JSON_H_INCLUDED_ */
