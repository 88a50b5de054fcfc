
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Warns of content that a replay can't stand for, in locations where the
 * module is enabled.
 *
 * A gRPC client needs the trailers of a response, and they are not stored.
 * nchan_authorize_request refuses clients in the content handler, which a
 * replay does not call: a client that it would refuse could get a stored
 * response.  Other modules may do the like; only known directives can be
 * recognised.
 *
 * Called once the configuration was read: nchan sets its handlers late.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


static ngx_uint_t ngx_http_idem_conf_handles(ngx_http_core_loc_conf_t *clcf,
    ngx_module_t *module);


void
ngx_http_idem_conf_content(ngx_cycle_t *cycle, ngx_array_t *locations)
{
    u_char                      *conf;
    ngx_uint_t                   i;
    ngx_module_t                *grpc, *nchan;
    ngx_command_t               *pass, *ask;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_idem_loc_conf_t   **location;
    ngx_http_upstream_conf_t    *upstream;

    pass = ngx_http_idem_find_command(cycle, "grpc_pass", &grpc);
    ask = ngx_http_idem_find_command(cycle, "nchan_authorize_request", &nchan);

    if (ask && ask->set != ngx_http_set_complex_value_slot) {
        ask = NULL;
    }

    location = locations->elts;

    for (i = 0; i < locations->nelts; i++) {
        clcf = location[i]->clcf;

        /* "if" and "limit_except" inherit the handler */

        if (clcf->handler == NULL || clcf->noname) {
            continue;
        }

        if (pass) {
            upstream = clcf->loc_conf[grpc->ctx_index];

            if (upstream->upstream) {
                ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                              "idempotency: gRPC is not supported: requests "
                              "with a key are not streamed in location "
                              "\"%V\", and a replay has no trailers, without "
                              "which a client takes it for an error; write "
                              "\"idempotency off\" there", &clcf->name);
            }
        }

        if (ask && ngx_http_idem_conf_handles(clcf, nchan)) {
            conf = clcf->loc_conf[nchan->ctx_index];

            if (*(void **) (conf + ask->offset)) {
                ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                              "idempotency: \"nchan_authorize_request\" in "
                              "location \"%V\" is not asked for replays; use "
                              "\"auth_request\", or name in "
                              "\"idempotency_identity\" what it goes by",
                              &clcf->name);
            }
        }
    }
}


/* a directive of locations, and its module; NULL: there is none */

ngx_command_t *
ngx_http_idem_find_command(ngx_cycle_t *cycle, const char *name,
    ngx_module_t **module)
{
    ngx_uint_t      i;
    ngx_command_t  *cmd;

    for (i = 0; cycle->modules[i]; i++) {
        *module = cycle->modules[i];

        if ((*module)->type != NGX_HTTP_MODULE || (*module)->commands == NULL)
        {
            continue;
        }

        for (cmd = (*module)->commands; cmd->name.len; cmd++) {
            if (cmd->conf == NGX_HTTP_LOC_CONF_OFFSET
                && ngx_strcmp(cmd->name.data, name) == 0)
            {
                return cmd;
            }
        }
    }

    return NULL;
}


/*
 * Whether the content handler of a location is one of the module: its
 * directives may be inherited by a location with another handler.  Both are in
 * the same file then.
 */

static ngx_uint_t
ngx_http_idem_conf_handles(ngx_http_core_loc_conf_t *clcf,
    ngx_module_t *module)
{
    Dl_info  handler, owner;

    return dladdr((void *) clcf->handler, &handler)
           && dladdr(module, &owner)
           && handler.dli_fbase == owner.dli_fbase;
}
