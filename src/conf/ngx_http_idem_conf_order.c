
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Where the module stands among the others, whichever was loaded first.
 *
 * A filter of Lua, njs or subs that stands before the capture has changed a
 * response when it is stored, and changes it again when it is replayed.  Of
 * such modules the one that was loaded last stands first, and packages load
 * them by the alphabet.
 *
 * Called by the directive "idempotency": nginx goes through its list of
 * modules neither then nor in the blocks around it, and makes its filters and
 * phases of that list when the configuration was read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


/* the list is this configuration's own; the others keep their order */

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

    /* nginx's own filters that come before all of these begin with this one */

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
