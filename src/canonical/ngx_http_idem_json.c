
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The bytes of a JSON body on their way to the parser: the limit on size, and
 * in what order things are done.  Called by the body reader; the parser's
 * events go to json_walk.c.
 */


#include "canonical/ngx_http_idem_json_walk.h"


struct ngx_http_idem_json_s {
    ngx_http_idem_json_walk_t           walk;
    ngx_int_t                           rc;
    size_t                              left;       /* of the size limit  */

    const ngx_http_idem_json_parser_t  *type;
    void                               *parser;
    unsigned                            complete:1; /* no byte follows    */
};


static ngx_int_t ngx_http_idem_json_answer(ngx_http_idem_json_t *j,
    ngx_int_t rc);


/* the build says which; tests have both */

#if (NGX_HTTP_IDEM_YYJSON)
const ngx_http_idem_json_parser_t  *ngx_http_idem_json_parser =
                                                  &ngx_http_idem_json_yyjson;
#else
const ngx_http_idem_json_parser_t  *ngx_http_idem_json_parser =
                                                  &ngx_http_idem_json_yajl;
#endif


ngx_http_idem_json_t *
ngx_http_idem_json_create(const ngx_http_idem_json_options_t *options,
    const ngx_http_idem_canon_mem_t *mem)
{
    ngx_http_idem_json_t  *j;

    j = ngx_http_idem_canon_calloc(mem, sizeof(ngx_http_idem_json_t));
    if (j == NULL) {
        return NULL;
    }

    j->left = options->size;
    j->type = ngx_http_idem_json_parser;

    if (ngx_http_idem_json_walk_init(&j->walk, options, mem) == NGX_OK) {
        j->parser = j->type->create(&ngx_http_idem_json_walk_events, &j->walk,
                                    options->depth, mem);
    }

    if (j->parser == NULL) {
        ngx_http_idem_json_destroy(j);
        return NULL;
    }

    return j;
}


ngx_int_t
ngx_http_idem_json_feed(ngx_http_idem_json_t *j, const u_char *p, size_t len)
{
    if (j->rc != NGX_OK || len == 0) {
        return j->rc;
    }

    if (len > j->left) {
        j->rc = NGX_DECLINED;
        return j->rc;
    }

    j->left -= len;

    return ngx_http_idem_json_answer(j, j->type->feed(j->parser, p, len));
}


ngx_int_t
ngx_http_idem_json_flush(ngx_http_idem_json_t *j)
{
    if (j->rc != NGX_OK || j->type->flush == NULL) {
        return j->rc;
    }

    return ngx_http_idem_json_answer(j, j->type->flush(j->parser));
}


ngx_int_t
ngx_http_idem_json_last(ngx_http_idem_json_t *j)
{
    if (j->rc != NGX_OK || j->complete) {
        return j->rc;
    }

    j->complete = 1;

    return ngx_http_idem_json_answer(j, j->type->last(j->parser));
}


ngx_int_t
ngx_http_idem_json_work(ngx_http_idem_json_t *j, size_t work)
{
    ngx_int_t  rc;

    if (j->rc != NGX_OK) {
        return j->rc;
    }

    for ( ;; ) {

        /* a container that ended comes first */

        rc = ngx_http_idem_json_close_step(&j->walk, work);

        if (rc != NGX_OK || !j->complete) {
            break;
        }

        rc = j->type->step(j->parser, &work);

        if (rc != NGX_AGAIN || work == 0) {
            break;
        }
    }

    return (rc == NGX_AGAIN) ? NGX_AGAIN : ngx_http_idem_json_answer(j, rc);
}


/*
 * Up to the end of a large container, so that nothing comes behind it.  Most
 * have none, and are not looked at.
 */

size_t
ngx_http_idem_json_cut(ngx_http_idem_json_t *j, const u_char *p, size_t len)
{
    ngx_uint_t  large;

    if (j->type->cut == NULL || ngx_http_idem_json_flush(j) != NGX_OK) {
        return len;
    }

    large = ngx_http_idem_json_large(&j->walk);

    return large ? j->type->cut(j->parser, large, j->walk.depth, p, len)
                 : len;
}


ngx_int_t
ngx_http_idem_json_done(ngx_http_idem_json_t *j, u_char *digest)
{
    ngx_int_t  rc;

    rc = ngx_http_idem_json_last(j);

    if (rc == NGX_OK) {
        do {
            rc = ngx_http_idem_json_work(j, NGX_MAX_SIZE_T_VALUE);
        } while (rc == NGX_AGAIN);
    }

    if (rc == NGX_OK) {
        j->rc = ngx_http_idem_json_walk_done(&j->walk, digest);
    }

    return j->rc;
}


const ngx_http_idem_json_member_t *
ngx_http_idem_json_member(ngx_http_idem_json_t *j, ngx_uint_t i)
{
    return &j->walk.members[i];
}


void
ngx_http_idem_json_paths(ngx_http_idem_json_t *j, ngx_str_t *paths)
{
    if (j->walk.paths == NULL) {
        ngx_str_null(paths);
        return;
    }

    paths->data = j->walk.paths->buf;
    paths->len = j->walk.paths->len;
}


void
ngx_http_idem_json_destroy(ngx_http_idem_json_t *j)
{
    ngx_http_idem_canon_mem_t  mem;

    mem = j->walk.canon.mem;

    if (j->parser) {
        j->type->destroy(j->parser);
    }

    ngx_http_idem_json_walk_destroy(&j->walk);

    mem.free(mem.data, j);
}


ngx_int_t
ngx_http_idem_json_valid(const ngx_str_t *text,
    const ngx_http_idem_canon_mem_t *mem)
{
    void                               *parser;
    ngx_int_t                           rc;
    const ngx_http_idem_json_parser_t  *type;

    static const ngx_http_idem_json_events_t  none;

    if (text->len == 0) {
        return NGX_DECLINED;
    }

    type = ngx_http_idem_json_parser;

    parser = type->create(&none, NULL, 0, mem);
    if (parser == NULL) {
        return NGX_ERROR;
    }

    rc = type->feed(parser, text->data, text->len);

    if (rc == NGX_OK) {
        rc = type->last(parser);
    }

    type->destroy(parser);

    return rc;
}


/* where an event ended it, the walker knows why */

static ngx_int_t
ngx_http_idem_json_answer(ngx_http_idem_json_t *j, ngx_int_t rc)
{
    j->rc = (rc == NGX_ABORT) ? j->walk.rc : rc;

    return j->rc;
}
