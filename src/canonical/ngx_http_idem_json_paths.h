
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The paths of a JSON document: what is kept of a request so that a conflict
 * can name what differs (idempotency_conflict_detail).
 *
 * The list has an entry for each leaf: a scalar, or an empty container.  An
 * entry is its path, as a JSON Pointer (RFC 6901), the first 8 bytes of
 * SHA-256 over a secret, the path and the value, and with "values" the
 * value's JSON text, cut at 256 bytes.  If arrays are unordered, an array is
 * one leaf, compared as a whole at its own path: its elements have no place
 * that could be named.  The list is bounded; what does not fit is left out,
 * and then the list says that it is cut.
 *
 * The stored form, numbers in network order:
 *
 *     version  1    flags  1    count  2    id of the secret  4
 *     each entry, sorted by path, equal ones as they came:
 *         length 2, path; hash 8; with values: cut 1, length 2, text
 *
 * json_diff() compares two such lists.  It treats them as hostile: the bytes
 * come from a store.  Pure; filled by the JSON walker, compared by whoever
 * answers a conflict.
 */


#ifndef _NGX_HTTP_IDEM_JSON_PATHS_H_INCLUDED_
#define _NGX_HTTP_IDEM_JSON_PATHS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "canonical/ngx_http_idem_json.h"


#define NGX_HTTP_IDEM_JSON_PATHS_VERSION  1
#define NGX_HTTP_IDEM_JSON_PATHS_HEAD     8
#define NGX_HTTP_IDEM_JSON_PATHS_ID       4           /* where, and length */
#define NGX_HTTP_IDEM_JSON_PATHS_VALUES   0x01
#define NGX_HTTP_IDEM_JSON_PATHS_CUT      0x02
#define NGX_HTTP_IDEM_JSON_PATHS_HASH     8

#define NGX_HTTP_IDEM_JSON_PATH_MAX       512
#define NGX_HTTP_IDEM_JSON_TEXT_MAX       256

/* the length of a path that was too long to be kept */
#define NGX_HTTP_IDEM_JSON_PATH_LOST      ((size_t) -1)


typedef struct {
    const u_char                 *secret;
    ngx_uint_t                    max;
    size_t                        max_size;

    u_char                       *buf;              /* entries as they
                                                       come, then sorted  */
    size_t                        len;
    size_t                        size;
    ngx_uint_t                    n;

    size_t                        path_len;
    size_t                        text_len;
    unsigned                      values:1;
    unsigned                      cut:1;             /* the list          */
    unsigned                      text_cut:1;

    u_char       path[NGX_HTTP_IDEM_JSON_PATH_MAX];
    u_char       text[NGX_HTTP_IDEM_JSON_TEXT_MAX];
} ngx_http_idem_json_paths_t;


/* "buf" is to be freed */

void ngx_http_idem_json_paths_init(ngx_http_idem_json_paths_t *pp,
    const ngx_http_idem_json_options_t *options);

/* the path becomes that of a child of the one that was "parent" long; the name
   of an element are the digits of its place */

void ngx_http_idem_json_paths_name(ngx_http_idem_json_paths_t *pp,
    size_t parent, const u_char *p, size_t len);

/* the JSON text of the leaf: added piece by piece, bounded */

void ngx_http_idem_json_paths_text(
    ngx_http_idem_json_paths_t *pp, const u_char *p, size_t len);
void ngx_http_idem_json_paths_string(
    ngx_http_idem_json_paths_t *pp, const u_char *p, size_t len);

/* the first digits of a hash, in place of the value */

void ngx_http_idem_json_paths_redacted(ngx_http_idem_json_paths_t *pp,
    const u_char *p, size_t len);

/* adds the leaf at the path, with its text, which is then empty again */

ngx_int_t ngx_http_idem_json_paths_add(
    ngx_http_idem_json_paths_t *pp, const ngx_str_t *value);

/* sorts, and writes the stored form */

ngx_int_t ngx_http_idem_json_paths_done(ngx_http_idem_json_paths_t *pp);


typedef enum {
    NGX_HTTP_IDEM_JSON_CHANGED = 0,
    NGX_HTTP_IDEM_JSON_ADDED,
    NGX_HTTP_IDEM_JSON_REMOVED
} ngx_http_idem_json_change_e;


/* "data" is NULL where there is no such leaf, or its value was not kept */

typedef struct {
    ngx_http_idem_json_change_e   change;
    ngx_str_t                     path;
    ngx_str_t                     old_text;
    ngx_str_t                     new_text;
    unsigned                      old_cut:1;         /* no JSON as it is  */
    unsigned                      new_cut:1;
} ngx_http_idem_json_diff_t;


typedef void (*ngx_http_idem_json_diff_pt)(void *data,
    const ngx_http_idem_json_diff_t *diff);


/*
 * Calls "handler" for at most "max" paths that differ, sorted by path; "more"
 * is set if there are others, or may be, since a list is cut.  A path
 * that a cut list lacks is not reported: it may have been cut off.
 *
 * NGX_OK; NGX_DECLINED if "one" or "two" is not a list, or they were made
 * with different secrets: then nothing was called.  No path at all may differ
 * though the documents do: [1] and {"0":1}, some with a name twice, and where
 * a list is cut.
 */
ngx_int_t ngx_http_idem_json_diff(const ngx_str_t *one,
    const ngx_str_t *two, ngx_uint_t max,
    ngx_http_idem_json_diff_pt handler, void *data, ngx_uint_t *more);


#endif /* _NGX_HTTP_IDEM_JSON_PATHS_H_INCLUDED_ */
