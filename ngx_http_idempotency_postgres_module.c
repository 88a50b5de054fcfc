
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * ngx_http_idempotency_postgres_module: the PostgreSQL store, in a module of
 * its own so that only its users need libpq.
 *
 * The module has no directives.  Before nginx reads the http block, it looks
 * for ngx_http_idempotency_module among the modules of the configuration, in
 * any order of loading, and adds its backend to the types of
 * "idempotency_store".
 *
 * Called by nginx.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_FIRST  "ngx_http_idempotency_module"


static ngx_int_t ngx_http_idem_pg_preconfiguration(ngx_conf_t *cf);


static ngx_http_module_t  ngx_http_idempotency_postgres_module_ctx = {
    ngx_http_idem_pg_preconfiguration,
                                           /* preconfiguration */
    NULL,                                  /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    NULL,                                  /* create location configuration */
    NULL                                   /* merge location configuration */
};


ngx_module_t  ngx_http_idempotency_postgres_module = {
    NGX_MODULE_V1,
    &ngx_http_idempotency_postgres_module_ctx, /* module context */
    NULL,                                      /* module directives */
    NGX_HTTP_MODULE,                           /* module type */
    NULL,                                      /* init master */
    NULL,                                      /* init module */
    NULL,                                      /* init process */
    NULL,                                      /* init thread */
    NULL,                                      /* exit thread */
    NULL,                                      /* exit process */
    NULL,                                      /* exit master */
    NGX_MODULE_V1_PADDING
};


const ngx_http_idem_store_api_t  *ngx_http_idem_pg_api;


static ngx_int_t
ngx_http_idem_pg_preconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_module_t                    **modules;
    const ngx_http_idem_store_api_t  *api;

    modules = cf->cycle->modules;

    for (i = 0; modules[i]; i++) {
        if (ngx_strcmp(modules[i]->name, NGX_HTTP_IDEM_PG_FIRST) == 0) {
            break;
        }
    }

    if (modules[i] == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "ngx_http_idempotency_postgres_module needs "
                      NGX_HTTP_IDEM_PG_FIRST ", which is not loaded: "
                      "\"load_module modules/" NGX_HTTP_IDEM_PG_FIRST
                      ".so\"");
        return NGX_ERROR;
    }

    api = ngx_http_idem_store_api_of(modules[i]);

    if (api == NULL
        || api->version != NGX_HTTP_IDEM_STORE_API_VERSION
        || api->op_size != sizeof(ngx_http_idem_op_t)
        || api->store_size != sizeof(ngx_http_idem_store_t))
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "ngx_http_idempotency_postgres_module and "
                      NGX_HTTP_IDEM_PG_FIRST " are of different "
                      "releases: install both of the same");
        return NGX_ERROR;
    }

    ngx_http_idem_pg_api = api;

    return api->add(&ngx_http_idem_pg_backend);
}
