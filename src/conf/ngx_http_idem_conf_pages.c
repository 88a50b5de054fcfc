
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Error pages that nginx redirects a refused request to without marking the
 * request.
 *
 * A request that is refused by "return" or the like has no context yet.  If
 * an error_page redirects it to a covered location, it must not be covered
 * there: it could get a stored response although it was refused.  nginx marks
 * a redirected request, except if recursive_error_pages is on and the
 * error_page has "=" without a status.  So this file collects the named
 * locations of such error_pages.  An error_page with a URI changes the method
 * to GET, which shows the redirect.
 *
 * Called when locations are merged, and by the preaccess handler for requests
 * that have no context.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


/*
 * called for a location where the module is enabled; its error_pages are
 * merged
 */

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

        if (target->len && target->data[0] == '@'
            && page[i].value.lengths == NULL)
        {
            name = ngx_array_push(&mcf->pages);
            if (name == NULL) {
                return NGX_ERROR;
            }

            *name = *target;
            continue;
        }

        mcf->uri_page = 1;

        if (page[i].value.lengths
            && (target->data[0] == '@' || target->data[0] == '$'))
        {
            /* a variable may make a name of it */
            mcf->any_page = 1;
        }
    }

    return NGX_OK;
}


/* whether such an error_page may have redirected the request here */

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
        if (ngx_http_idem_same_text(&name[i], &clcf->name)) {
            return 1;
        }
    }

    return 0;
}
