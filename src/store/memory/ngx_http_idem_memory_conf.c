
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The configuration block of an embedded store, and the default zone of a
 * store without "zone".
 *
 * Called through the table of backends; calls the configuration of zones.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/memory/ngx_http_idem_memory.h"
#include "store/zone/ngx_http_idem_shared.h"


#define NGX_HTTP_IDEM_DEFAULT_SIZE  (32 * 1024 * 1024)


static char *ngx_http_idem_memory_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


ngx_http_idem_store_command_t  ngx_http_idem_memory_commands[] = {

    { { ngx_string("zone"), NGX_CONF_TAKE1, ngx_http_idem_memory_zone, 0, 0,
        NULL },
      "\"zone <name>:<size>\"" },

    { ngx_null_command, NULL }
};


void *
ngx_http_idem_memory_create_conf(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    ngx_http_idem_memory_t  *m;

    m = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_memory_t));
    if (m == NULL) {
        return NULL;
    }

    m->slot = -1;
    m->fd = (ngx_socket_t) -1;

    return m;
}


static char *
ngx_http_idem_memory_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_memory_t  *m = conf;

    ngx_str_t  *value;

    if (m->z.name.len) {
        return "is duplicate";
    }

    value = cf->args->elts;

    return ngx_http_idem_zone_parse(cf, &value[1], &m->z);
}


char *
ngx_http_idem_memory_init_conf(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    ngx_http_idem_memory_t  *m;

    m = store->conf;

    if (m->z.name.len == 0) {
        m->z.size = NGX_HTTP_IDEM_DEFAULT_SIZE;

        if (ngx_http_idem_shared_name(cf, &m->z.name, "idempotency",
                                      &store->name, NULL)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return ngx_http_idem_zone_add(cf, &m->z);
}
