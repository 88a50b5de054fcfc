
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A JSON body on its way to the parser: its bytes are collected, up to the
 * limit on size, and parsed in steps.  Called by the body reader; the parser's
 * events go to json_walk.c.
 */


#include "canonical/ngx_http_idem_json_walk.h"


struct ngx_http_idem_json_s {
    ngx_http_idem_json_walk_t           walk;
    ngx_int_t                           rc;

    ngx_http_idem_canon_body_t          body;

    const ngx_http_idem_json_parser_t  *type;
    void                               *parser;
    unsigned                            parsing:1;  /* no byte follows    */
};


static void ngx_http_idem_json_release(ngx_http_idem_json_t *j);


/* the build says which; tests have both */

#if (NGX_HTTP_IDEM_YYJSON)
const ngx_http_idem_json_parser_t  *ngx_http_idem_json_parser =
                                                  &ngx_http_idem_json_yyjson;
#else
const ngx_http_idem_json_parser_t  *ngx_http_idem_json_parser =
                                                  &ngx_http_idem_json_yajl;
#endif


ngx_http_idem_json_t *
ngx_http_idem_json_create(const ngx_http_idem_json_options_t *options)
{
    ngx_http_idem_json_t  *j;

    j = ngx_http_idem_canon_calloc(sizeof(ngx_http_idem_json_t));
    if (j == NULL) {
        return NULL;
    }

    j->type = ngx_http_idem_json_parser;

    if (ngx_http_idem_json_walk_init(&j->walk, options) == NGX_OK) {
        j->parser = j->type->create(&ngx_http_idem_json_walk_events, &j->walk,
                                    options->depth);
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
    if (j->rc == NGX_OK && len) {
        j->rc = ngx_http_idem_canon_collect(&j->body, j->walk.options->size,
                                            p, len);
    }

    return j->rc;
}


ngx_int_t
ngx_http_idem_json_work(ngx_http_idem_json_t *j, size_t work)
{
    ngx_int_t  rc;

    if (j->rc == NGX_OK && !j->parsing) {
        j->parsing = 1;
        j->rc = j->type->text(j->parser, j->body.data, j->body.len);
    }

    if (j->rc != NGX_OK) {
        return j->rc;
    }

    for ( ;; ) {

        /* a container that ended comes first */

        rc = ngx_http_idem_json_close_step(&j->walk, work);

        if (rc != NGX_OK) {
            break;
        }

        rc = j->type->step(j->parser, &work);

        if (rc != NGX_AGAIN || work == 0) {
            break;
        }
    }

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    /* where an event ended it, the walker knows why */

    j->rc = (rc == NGX_ABORT) ? j->walk.rc : rc;

    return j->rc;
}


ngx_int_t
ngx_http_idem_json_done(ngx_http_idem_json_t *j, u_char *digest)
{
    while (ngx_http_idem_json_work(j, NGX_MAX_SIZE_T_VALUE) == NGX_AGAIN) {
        /* void */
    }

    if (j->rc == NGX_OK) {
        j->rc = ngx_http_idem_json_walk_done(&j->walk, digest);
    }

    /* members and paths may be wanted for long */

    ngx_http_idem_json_release(j);

    return j->rc;
}


const ngx_http_idem_json_member_t *
ngx_http_idem_json_member(ngx_http_idem_json_t *j, ngx_uint_t i)
{
    return &j->walk.members[i];
}


/* a member by its name; few are wanted, so all are compared */

const ngx_http_idem_json_member_t *
ngx_http_idem_json_named(ngx_http_idem_json_t *j, const ngx_str_t *name)
{
    ngx_str_t   *wanted;
    ngx_uint_t   i;

    static const ngx_http_idem_json_member_t  none;

    wanted = j->walk.options->wanted;

    for (i = 0; i < j->walk.options->nwanted; i++) {
        if (wanted[i].len == name->len
            && ngx_memcmp(wanted[i].data, name->data, name->len) == 0)
        {
            return &j->walk.members[i];
        }
    }

    return &none;
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
    ngx_http_idem_json_release(j);
    ngx_http_idem_json_walk_destroy(&j->walk);
    ngx_http_idem_canon_free(j);
}


/* the body, and all that the parser has */

static void
ngx_http_idem_json_release(ngx_http_idem_json_t *j)
{
    if (j->parser) {
        j->type->destroy(j->parser);
        j->parser = NULL;
    }

    ngx_http_idem_canon_free(j->body.data);
    j->body.data = NULL;
}


ngx_int_t
ngx_http_idem_json_valid(const ngx_str_t *text)
{
    void                               *parser;
    size_t                              work;
    ngx_int_t                           rc;
    const ngx_http_idem_json_parser_t  *type;

    static const ngx_http_idem_json_events_t  none;

    type = ngx_http_idem_json_parser;

    parser = type->create(&none, NULL, 0);
    if (parser == NULL) {
        return NGX_ERROR;
    }

    rc = type->text(parser, text->data, text->len);

    if (rc == NGX_OK) {
        do {
            work = NGX_MAX_SIZE_T_VALUE;
            rc = type->step(parser, &work);
        } while (rc == NGX_AGAIN);
    }

    type->destroy(parser);

    return rc;
}
