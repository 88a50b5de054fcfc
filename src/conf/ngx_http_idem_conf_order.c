
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Moves the module to its place among the filter modules, in whichever order
 * they were loaded.
 *
 * If a Lua, njs or subs filter ran before the capture, it would change a
 * response before it is stored, and again when it is replayed.  Of dynamic
 * filter modules the last one loaded runs first, and packages load them in
 * alphabetical order.
 *
 * Called by the directive "idempotency".  nginx does not iterate over its
 * list of modules at that time, and derives filters and phases from the list
 * after the configuration was read.  Other rooms find modules by their names
 * here.
 *
 * After the configuration was read, checks that the module was built with what
 * its nginx has.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


/*
 * cycle->modules belongs to this configuration; other modules keep their
 * order
 */

void
ngx_http_idem_conf_order(ngx_conf_t *cf)
{
    ngx_uint_t      i, own;
    ngx_module_t  **modules;

    modules = cf->cycle->modules;

    for (own = 0; modules[own]; own++) {
        if (modules[own] == &ngx_http_idempotency_module) {
            break;
        }
    }

    /*
     * in the list, nginx's own filters that run before these modules start
     * here
     */

    for (i = own; modules[i]; i++) {
        if (ngx_strcmp(modules[i]->name, "ngx_http_copy_filter_module") == 0) {
            break;
        }
    }

    if (modules[i] == NULL) {
        return;
    }

    for ( /* void */ ; own + 1 < i; own++) {
        modules[own] = modules[own + 1];
        modules[own + 1] = &ngx_http_idempotency_module;
    }
}


/* NULL: the module is not loaded */

ngx_module_t *
ngx_http_idem_find_module(ngx_cycle_t *cycle, const char *name)
{
    ngx_uint_t  i;

    for (i = 0; cycle->modules[i]; i++) {
        if (ngx_strcmp(cycle->modules[i]->name, name) == 0) {
            break;
        }
    }

    return cycle->modules[i];
}


/*
 * --with-compat lets nginx load a module that was built without an option of
 * nginx itself.  Without TLS the module does not see certificates of clients,
 * and would replay the response of one client to another.  Without HTTP/2 it
 * would refuse a request before nginx's access checks.
 */

ngx_int_t
ngx_http_idem_conf_check_build(ngx_conf_t *cf)
{
    const char  **name;

    static const char  *absent[] = {
#if !(NGX_HTTP_SSL)
        "ngx_http_ssl_module",
#endif
#if !(NGX_HTTP_V2)
        "ngx_http_v2_module",
#endif
        NULL
    };

    for (name = absent; *name; name++) {
        if (ngx_http_idem_find_module(cf->cycle, *name)) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "the idempotency module was built without "
                          "\"--with-%s\", which this nginx has",
                          *name + sizeof("ngx_") - 1);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
