
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The least that a replay can cost in nginx, for bench/bound.
 *
 * A replay has to read the body, to hash it, to name its record by a hash, and
 * to send a stored response with two headers of its own.  The content handler
 * "bound" does these steps and no other: it looks for no key, finds no record,
 * checks nothing and counts nothing.  What a replay costs beyond this handler
 * is the module's; what this handler costs beyond "return" no module can save.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>


static char *ngx_http_bound(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static void *ngx_http_bound_create_conf(ngx_conf_t *cf);
static ngx_int_t ngx_http_bound_handler(ngx_http_request_t *r);
static void ngx_http_bound_body_handler(ngx_http_request_t *r);
static void ngx_http_bound_hash(ngx_http_request_t *r);
static ngx_int_t ngx_http_bound_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);


typedef struct {
    ngx_str_t  response;
} ngx_http_bound_conf_t;


static ngx_command_t  ngx_http_bound_commands[] = {

    { ngx_string("bound"),
      NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_bound,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_bound_conf_t, response),
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_bound_module_ctx = {
    NULL,                                  /* preconfiguration */
    NULL,                                  /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_bound_create_conf,            /* create location configuration */
    NULL                                   /* merge location configuration */
};


ngx_module_t  ngx_http_bound_module = {
    NGX_MODULE_V1,
    &ngx_http_bound_module_ctx,            /* module context */
    ngx_http_bound_commands,               /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static char *
ngx_http_bound(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_bound_handler;

    return ngx_conf_set_str_slot(cf, cmd, conf);
}


static void *
ngx_http_bound_create_conf(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(ngx_http_bound_conf_t));
}


static ngx_int_t
ngx_http_bound_handler(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    rc = ngx_http_read_client_request_body(r, ngx_http_bound_body_handler);

    return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
}


static void
ngx_http_bound_body_handler(ngx_http_request_t *r)
{
    ngx_buf_t              *b;
    ngx_int_t               rc;
    ngx_chain_t             out;
    ngx_http_bound_conf_t  *conf;

    static ngx_str_t  replayed = ngx_string("Idempotent-Replayed");
    static ngx_str_t  yes = ngx_string("true");
    static ngx_str_t  time = ngx_string("X-Original-Request-Time");
    static ngx_str_t  then = ngx_string("2026-01-28T10:00:00Z");

    conf = ngx_http_get_module_loc_conf(r, ngx_http_bound_module);

    ngx_http_bound_hash(r);

    b = ngx_create_temp_buf(r->pool, conf->response.len);

    if (b == NULL
        || ngx_http_set_content_type(r) != NGX_OK
        || ngx_http_bound_header(r, &replayed, &yes) != NGX_OK
        || ngx_http_bound_header(r, &time, &then) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    b->last = ngx_cpymem(b->last, conf->response.data, conf->response.len);
    b->last_buf = 1;

    out.buf = b;
    out.next = NULL;

    r->headers_out.status = NGX_HTTP_CREATED;
    r->headers_out.content_length_n = conf->response.len;

    rc = ngx_http_send_header(r);

    if (rc == NGX_OK) {
        rc = ngx_http_output_filter(r, &out);
    }

    ngx_http_finalize_request(r, rc);
}


/* the body, then the fields of a fingerprint, then the name of a record */

static void
ngx_http_bound_hash(ngx_http_request_t *r)
{
    u_char        fields[153], hash[SHA256_DIGEST_LENGTH];
    SHA256_CTX    body;
    ngx_chain_t  *cl;

    SHA256_Init(&body);

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        SHA256_Update(&body, cl->buf->pos, cl->buf->last - cl->buf->pos);
    }

    SHA256_Final(hash, &body);

    ngx_memset(fields, 'f', sizeof(fields));
    ngx_memcpy(fields, hash, sizeof(hash));

    (void) SHA256(fields, sizeof(fields), hash);
    (void) SHA256(hash, sizeof(hash), fields);
}


static ngx_int_t
ngx_http_bound_header(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key = *name;
    h->value = *value;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return NGX_OK;
}


/* what configure makes for a dynamic module */

ngx_module_t  *ngx_modules[] = { &ngx_http_bound_module, NULL };
char  *ngx_module_names[] = { "ngx_http_bound_module", NULL };
char  *ngx_module_order[] = { NULL };
