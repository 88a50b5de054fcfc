
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Pages that nginx leads a refused request to without leaving a mark on it.
 *
 * A request that "return" or the like refuses has no context yet.  Where an
 * error_page takes it, it must not be covered: it would find what it was kept
 * from.  nginx marks such a request, unless recursive_error_pages are on and
 * the page has "=" without a status.  So the named locations of such pages are
 * collected.  A page with a URI changes the method to GET, which is a mark.
 *
 * Called when locations are merged; asked by the handler in preaccess, where
 * a request comes by that was not seen before.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


/* of a location where it is on; nginx has merged its error_pages before */

ngx_int_t
ngx_http_idem_conf_pages(ngx_conf_t *cf)
{
    ngx_str_t                  *name, *target;
    ngx_uint_t                  i;
    ngx_http_err_page_t        *page;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_idem_main_conf_t  *mcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->recursive_error_pages != 1 || clcf->error_pages == NULL) {
        return NGX_OK;
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    page = clcf->error_pages->elts;

    for (i = 0; i < clcf->error_pages->nelts; i++) {

        if (page[i].overwrite != 0) {
            continue;
        }

        target = &page[i].value.value;

        if (page[i].value.lengths) {
            mcf->any_page = 1;
            mcf->uri_page = 1;
            continue;
        }

        if (target->len == 0 || target->data[0] != '@') {
            mcf->uri_page = 1;
            continue;
        }

        name = ngx_array_push(&mcf->pages);
        if (name == NULL) {
            return NGX_ERROR;
        }

        *name = *target;
    }

    return NGX_OK;
}


/* whether one of these pages may have led the request to where it is */

ngx_uint_t
ngx_http_idem_may_be_page(ngx_http_request_t *r)
{
    ngx_str_t                  *name;
    ngx_uint_t                  i;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_idem_main_conf_t  *mcf;

    if (!r->internal) {
        return 0;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!clcf->named) {
        return mcf->uri_page
               && (r->method == NGX_HTTP_HEAD
                   || r->method_name.data == ngx_http_core_get_method.data);
    }

    if (mcf->any_page) {
        return 1;
    }

    name = mcf->pages.elts;

    for (i = 0; i < mcf->pages.nelts; i++) {
        if (name[i].len == clcf->name.len
            && ngx_strncmp(name[i].data, clcf->name.data, name[i].len) == 0)
        {
            return 1;
        }
    }

    return 0;
}
