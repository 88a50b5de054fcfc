
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Access checks in an "if" of a location.
 *
 * An "if" is part of its location, and whether it applies may depend on what is
 * not part of the request: a header, a cookie, an address.  Usually that does
 * not matter, since checks of access are not allowed in an "if".  Those of Lua
 * are.  A client must not get the response of a request that was checked there
 * by leaving out what the "if" looks for.  So such an "if" is a place of its
 * own.
 *
 * Which "if" has one is known to Lua alone.  So its directives are watched
 * while the configuration is read.
 *
 * Called before and after the configuration is read, and by the merge.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


typedef char *(*ngx_http_idem_set_pt)(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

typedef struct {
    const char                *name;
    ngx_command_t             *cmd;
    ngx_http_idem_set_pt       set;
} ngx_http_idem_watched_t;


static char *ngx_http_idem_conf_if_set(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static ngx_http_idem_watched_t  ngx_http_idem_watched[] = {
    { "access_by_lua", NULL, NULL },
    { "access_by_lua_block", NULL, NULL },
    { "access_by_lua_file", NULL, NULL },
    { "rewrite_by_lua", NULL, NULL },
    { "rewrite_by_lua_block", NULL, NULL },
    { "rewrite_by_lua_file", NULL, NULL }
};

#define NGX_HTTP_IDEM_WATCHED                                                 \
    (sizeof(ngx_http_idem_watched) / sizeof(ngx_http_idem_watched_t))


void
ngx_http_idem_conf_if_watch(ngx_conf_t *cf)
{
    ngx_uint_t                i;
    ngx_module_t             *lua;
    ngx_command_t            *cmd;
    ngx_http_idem_watched_t  *watched;

    for (i = 0; i < NGX_HTTP_IDEM_WATCHED; i++) {
        watched = &ngx_http_idem_watched[i];
        cmd = ngx_http_idem_find_command(cf->cycle, watched->name, &lua);

        watched->cmd = cmd;

        /* still watched: the configuration before could not be read */

        if (cmd && cmd->set != ngx_http_idem_conf_if_set) {
            watched->set = cmd->set;
            cmd->set = ngx_http_idem_conf_if_set;
        }
    }
}


void
ngx_http_idem_conf_if_read(void)
{
    ngx_uint_t                i;
    ngx_http_idem_watched_t  *watched;

    for (i = 0; i < NGX_HTTP_IDEM_WATCHED; i++) {
        watched = &ngx_http_idem_watched[i];

        if (watched->cmd) {
            watched->cmd->set = watched->set;
            watched->cmd = NULL;
        }
    }
}


static char *
ngx_http_idem_conf_if_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_uint_t                 i;
    ngx_http_idem_loc_conf_t  *ilcf;

    /* still watched, and read without this module, or by a newer file of it? */

    if (cf->cmd_type == NGX_HTTP_LIF_CONF
        && ngx_http_idem_find_module(cf->cycle,
                                     ngx_http_idempotency_module.name)
           == &ngx_http_idempotency_module)
    {
        ilcf = ngx_http_conf_get_module_loc_conf(cf,
                                                 ngx_http_idempotency_module);
        ilcf->checks = 1;
    }

    for (i = 0; i < NGX_HTTP_IDEM_WATCHED; i++) {
        if (ngx_http_idem_watched[i].cmd == cmd) {
            return ngx_http_idem_watched[i].set(cf, cmd, conf);
        }
    }

    return NGX_CONF_ERROR;
}


/*
 * The id of an "if" with checks: they are counted in each location.  Places are
 * stored with all responses then.
 */

void
ngx_http_idem_conf_if_place(ngx_conf_t *cf, ngx_http_idem_loc_conf_t *prev,
    ngx_http_idem_loc_conf_t *conf)
{
    ngx_http_idem_main_conf_t  *mcf;

    if (!conf->checks) {
        return;
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    mcf->places = 1;

    conf->place ^= ++prev->ifs;
}
