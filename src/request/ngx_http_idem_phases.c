
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Installs the handlers into nginx's phases.
 *
 * Called once by the module after the configuration was read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_int_t ngx_http_idem_add_handler(ngx_array_t *handlers,
    ngx_http_handler_pt handler, ngx_uint_t place);
static ngx_int_t ngx_http_idem_server_rewrite(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_rewrite(ngx_http_request_t *r);
static ngx_int_t ngx_http_idem_try_files(ngx_http_request_t *r);


/*
 * Handlers of nginx's own modules that are wrapped, so that code runs right
 * before them in any order of handlers.
 */

static ngx_http_handler_pt  ngx_http_idem_next_server_rewrite;
static ngx_http_handler_pt  ngx_http_idem_next_rewrite;
static ngx_http_handler_pt  ngx_http_idem_next_try_files;

ngx_http_idem_modules_t  ngx_http_idem_modules;


/*
 * nginx calls the handlers of a phase from the last to the first.  Those of
 * its own modules are at the start of the array, whichever other modules are
 * loaded: rewrite in both its phases; mirror, then try_files in pre-content.
 * Handlers that redirect to a location with its own access checks must run
 * before begin, and mirror after it, so that replays are not mirrored.
 */

ngx_int_t
ngx_http_idem_phases_init(ngx_conf_t *cf)
{
    ngx_uint_t                  mirror;
    ngx_array_t                *rewrite, *location, *preaccess, *access;
    ngx_array_t                *precontent;
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    rewrite = &cmcf->phases[NGX_HTTP_SERVER_REWRITE_PHASE].handlers;
    location = &cmcf->phases[NGX_HTTP_REWRITE_PHASE].handlers;
    preaccess = &cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers;
    access = &cmcf->phases[NGX_HTTP_ACCESS_PHASE].handlers;
    precontent = &cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers;

    ngx_http_idem_next_server_rewrite = NULL;
    ngx_http_idem_next_rewrite = NULL;
    ngx_http_idem_next_try_files = NULL;

    mirror = ngx_http_idem_find_module(cf->cycle, "ngx_http_mirror_module")
             != NULL;

    if (rewrite->nelts
        && ngx_http_idem_find_module(cf->cycle, "ngx_http_rewrite_module"))
    {
        h = rewrite->elts;
        ngx_http_idem_next_server_rewrite = h[0];
        h[0] = ngx_http_idem_server_rewrite;

    } else if (ngx_http_idem_add_handler(rewrite,
                                    ngx_http_idem_server_rewrite, 0)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (location->nelts && ngx_http_idem_next_server_rewrite) {
        h = location->elts;
        ngx_http_idem_next_rewrite = h[0];
        h[0] = ngx_http_idem_rewrite;
    }

    if (precontent->nelts > mirror
        && ngx_http_idem_find_module(cf->cycle, "ngx_http_try_files_module"))
    {
        h = precontent->elts;
        ngx_http_idem_next_try_files = h[mirror];
        h[mirror] = ngx_http_idem_try_files;
    }

    if (ngx_http_idem_add_handler(precontent,
                                     ngx_http_idem_precontent_handler,
                                     mirror)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_idem_add_handler(preaccess, ngx_http_idem_preaccess_handler,
                                  preaccess->nelts)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_idem_find_module(cf->cycle, "ngx_http_lua_module")) {

        /*
         * access_by_lua may set the header with the key, and always runs last
         * in the access phase: the request is admitted in pre-content then
         */

        return NGX_OK;
    }

    return ngx_http_idem_add_handler(access, ngx_http_idem_access_handler,
                                     access->nelts);
}


/* handlers from "place" on move up by one */

static ngx_int_t
ngx_http_idem_add_handler(ngx_array_t *handlers,
    ngx_http_handler_pt handler, ngx_uint_t place)
{
    ngx_uint_t            i;
    ngx_http_handler_pt  *h;

    if (ngx_array_push(handlers) == NULL) {
        return NGX_ERROR;
    }

    h = handlers->elts;

    for (i = handlers->nelts - 1; i > place; i--) {
        h[i] = h[i - 1];
    }

    h[i] = handler;

    return NGX_OK;
}


/* called once a configuration is accepted, before its workers start */

void
ngx_http_idem_modules_init(ngx_cycle_t *cycle)
{
    ngx_http_idem_modules.charset_command =
                         ngx_http_idem_find_command(cycle, "charset",
                                              &ngx_http_idem_modules.charset);
    ngx_http_idem_modules.image = ngx_http_idem_find_module(cycle,
                                          "ngx_http_image_filter_module");
    ngx_http_idem_modules.perl = ngx_http_idem_find_module(cycle,
                                          "ngx_http_perl_module");
    ngx_http_idem_modules.slice = ngx_http_idem_find_module(cycle,
                                          "ngx_http_slice_filter_module");
}


/* the first phase of an internal redirect */

static ngx_int_t
ngx_http_idem_server_rewrite(ngx_http_request_t *r)
{
    if (r->internal && ngx_http_idem_follow_redirect(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idem_next_server_rewrite
           ? ngx_http_idem_next_server_rewrite(r) : NGX_DECLINED;
}


/*
 * a named location starts here, and its "rewrite" may redirect again; without
 * a redirect, the server's "rewrite" has led here
 */

static ngx_int_t
ngx_http_idem_rewrite(ngx_http_request_t *r)
{
    ngx_http_idem_loc_conf_t  *conf;

    if (r->internal) {

        if (ngx_http_idem_follow_redirect(r) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        if (conf->store && r == r->main
            && r->uri_changes == NGX_HTTP_MAX_URI_CHANGES + 1
            && ngx_http_idem_rewritten(r) != NGX_OK)
        {
            return ngx_http_idem_no_page(r);
        }
    }

    return ngx_http_idem_next_rewrite(r);
}


/* All access checks have passed: a redirect by try_files is no refusal. */

static ngx_int_t
ngx_http_idem_try_files(ngx_http_request_t *r)
{
    if (r->internal
        || ngx_http_get_module_ctx(r, ngx_http_idempotency_module))
    {
        ngx_http_idem_access_granted(r);
    }

    return ngx_http_idem_next_try_files(r);
}
