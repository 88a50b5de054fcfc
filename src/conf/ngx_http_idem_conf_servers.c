
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Servers that the same request may reach by different addresses.
 *
 * nginx selects a server by the host of a request and by the address where it
 * came in.  The address is not part of the fingerprint, and "Host" is chosen by
 * the client.  So two servers with different addresses may get the same
 * request, and need not have the same access checks.  Then each server has an
 * id that is stored with a response, and a retry in another server is
 * redirected.  The id is a hash of the names and addresses of the server, so
 * that it survives a reload; ids of other hosts are unknown and ignored.
 *
 * Usually all servers have the same addresses, and nothing is stored.
 *
 * Called when locations are merged and after the configuration was read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


#define NGX_HTTP_IDEM_FNV        0xcbf29ce484222325ULL
#define NGX_HTTP_IDEM_FNV_PRIME  0x100000001b3ULL


static ngx_http_idem_server_t *ngx_http_idem_find_server(
    ngx_http_idem_main_conf_t *mcf, ngx_http_core_srv_conf_t *cscf);
static ngx_uint_t ngx_http_idem_same_servers(ngx_http_idem_main_conf_t *mcf,
    ngx_http_conf_addr_t *a, ngx_http_conf_addr_t *b);
static ngx_uint_t ngx_http_idem_has_server(ngx_http_conf_addr_t *addr,
    ngx_http_core_srv_conf_t *cscf);
static uint64_t ngx_http_idem_server_names(ngx_http_core_srv_conf_t *cscf);
static uint64_t ngx_http_idem_server_text(uint64_t sum, ngx_str_t *text);


/*
 * The id of a location: the name alone is not enough, since the same regular
 * expression may be in two locations, and "location = /a" may be next to
 * "location /a".  "if" and "limit_except" are part of their location.
 */

uint64_t
ngx_http_idem_conf_place(ngx_http_core_loc_conf_t *clcf, uint64_t outer)
{
    ngx_str_t  kind;

    if (clcf->noname || clcf->name.len == 0) {
        return outer;
    }

    ngx_str_set(&kind, "^");

    if (clcf->exact_match) {
        ngx_str_set(&kind, "=");
    }

#if (NGX_PCRE)
    if (clcf->regex) {
        ngx_str_set(&kind, "~");
    }
#endif

    outer = ngx_http_idem_server_text(outer ? outer : NGX_HTTP_IDEM_FNV, &kind);

    return ngx_http_idem_server_text(outer, &clcf->name);
}


/* called for a location where the module is enabled */

ngx_int_t
ngx_http_idem_conf_server(ngx_conf_t *cf)
{
    ngx_http_idem_server_t     *server;
    ngx_http_core_srv_conf_t   *cscf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    if (ngx_http_idem_find_server(mcf, cscf)) {
        return NGX_OK;
    }

    server = ngx_array_push(&mcf->servers);
    if (server == NULL) {
        return NGX_ERROR;
    }

    server->cscf = cscf;
    server->id = ngx_http_idem_server_names(cscf);

    return NGX_OK;
}


/* after the configuration was read: do the addresses differ? */

void
ngx_http_idem_conf_servers(ngx_conf_t *cf)
{
    ngx_uint_t                  i, j, k;
    ngx_http_conf_addr_t       *addr, *first;
    ngx_http_conf_port_t       *port;
    ngx_http_idem_server_t     *server;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (cmcf->ports == NULL || mcf->servers.nelts < 2) {
        return;
    }

    server = mcf->servers.elts;
    port = cmcf->ports->elts;
    first = NULL;

    for (i = 0; i < cmcf->ports->nelts; i++) {
        addr = port[i].addrs.elts;

        for (j = 0; j < port[i].addrs.nelts; j++) {

            for (k = 0; k < mcf->servers.nelts; k++) {

                if (!ngx_http_idem_has_server(&addr[j], server[k].cscf)) {
                    continue;
                }

                /* independent of the order of "listen" */

                server[k].id ^= ngx_http_idem_server_text(NGX_HTTP_IDEM_FNV,
                                                     &addr[j].opt.addr_text);

                if (first == NULL) {
                    first = &addr[j];
                }

                if (!ngx_http_idem_same_servers(mcf, first, &addr[j])) {
                    mcf->apart = 1;
                }
            }
        }
    }
}


static ngx_http_idem_server_t *
ngx_http_idem_find_server(ngx_http_idem_main_conf_t *mcf,
    ngx_http_core_srv_conf_t *cscf)
{
    ngx_uint_t               i;
    ngx_http_idem_server_t  *server;

    server = mcf->servers.elts;

    for (i = 0; i < mcf->servers.nelts; i++) {
        if (server[i].cscf == cscf) {
            return &server[i];
        }
    }

    return NULL;
}


/* compares the servers with this module, and the default server */

static ngx_uint_t
ngx_http_idem_same_servers(ngx_http_idem_main_conf_t *mcf,
    ngx_http_conf_addr_t *a, ngx_http_conf_addr_t *b)
{
    ngx_uint_t               i;
    ngx_http_idem_server_t  *server;

    server = mcf->servers.elts;

    for (i = 0; i < mcf->servers.nelts; i++) {

        if (ngx_http_idem_has_server(a, server[i].cscf)
            != ngx_http_idem_has_server(b, server[i].cscf)
            || (a->default_server == server[i].cscf)
               != (b->default_server == server[i].cscf))
        {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t
ngx_http_idem_has_server(ngx_http_conf_addr_t *addr,
    ngx_http_core_srv_conf_t *cscf)
{
    ngx_uint_t                  i;
    ngx_http_core_srv_conf_t  **cscfp;

    cscfp = addr->servers.elts;

    for (i = 0; i < addr->servers.nelts; i++) {
        if (cscfp[i] == cscf) {
            return 1;
        }
    }

    return 0;
}


static uint64_t
ngx_http_idem_server_names(ngx_http_core_srv_conf_t *cscf)
{
    uint64_t                 sum;
    ngx_uint_t               i;
    ngx_http_server_name_t  *name;

    sum = NGX_HTTP_IDEM_FNV;
    name = cscf->server_names.elts;

    for (i = 0; i < cscf->server_names.nelts; i++) {
        sum = ngx_http_idem_server_text(sum, &name[i].name);
    }

    return sum;
}


static uint64_t
ngx_http_idem_server_text(uint64_t sum, ngx_str_t *text)
{
    size_t  i;

    for (i = 0; i < text->len; i++) {
        sum = (sum ^ text->data[i]) * NGX_HTTP_IDEM_FNV_PRIME;
    }

    return (sum ^ '/') * NGX_HTTP_IDEM_FNV_PRIME;
}


/* NGX_DECLINED if all addresses have the same servers */

ngx_int_t
ngx_http_idem_server_id(ngx_http_request_t *r, uint64_t *id)
{
    ngx_http_idem_server_t     *server;
    ngx_http_core_srv_conf_t   *cscf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (!mcf->apart) {
        return NGX_DECLINED;
    }

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
    server = ngx_http_idem_find_server(mcf, cscf);

    if (server == NULL) {
        return NGX_DECLINED;
    }

    *id = server->id;

    return NGX_OK;
}


/* the server with that id; NULL if unknown or the current one */

ngx_http_core_srv_conf_t *
ngx_http_idem_other_server(ngx_http_request_t *r, uint64_t id)
{
    uint64_t                    here;
    ngx_uint_t                  i;
    ngx_http_idem_server_t     *server;
    ngx_http_idem_main_conf_t  *mcf;

    if (ngx_http_idem_server_id(r, &here) != NGX_OK || here == id) {
        return NULL;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    server = mcf->servers.elts;

    for (i = 0; i < mcf->servers.nelts; i++) {
        if (server[i].id == id) {
            return server[i].cscf;
        }
    }

    return NULL;
}
