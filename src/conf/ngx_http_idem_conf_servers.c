
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
 * redirected.  So it is if the host is not part of the fingerprint.
 *
 * The id has a hash of the names and one of the addresses of the server, so
 * that it survives a reload.  If no server has the id, since the response was
 * made on another host or before a reload, a server with the same names is
 * meant; if there is none, the id is ignored.
 *
 * Nobody is redirected to a server with UNIX-domain sockets or loopback
 * addresses only who came by an address that others can reach.
 *
 * Usually all servers have the same addresses, the host counts, and nothing is
 * stored.
 *
 * Called when locations are merged and after the configuration was read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


#define NGX_HTTP_IDEM_FNV        0xcbf29ce484222325ULL
#define NGX_HTTP_IDEM_FNV_PRIME  0x100000001b3ULL

/* which clients can reach an address */
#define NGX_HTTP_IDEM_REACH_UNIX      0
#define NGX_HTTP_IDEM_REACH_LOOPBACK  1
#define NGX_HTTP_IDEM_REACH_ANY       2

#define ngx_http_idem_server_fold(sum)  (uint32_t) ((sum) ^ ((sum) >> 32))


static ngx_uint_t ngx_http_idem_conf_mixed(ngx_http_idem_main_conf_t *mcf);
static ngx_http_idem_server_t *ngx_http_idem_find_server(
    ngx_http_idem_main_conf_t *mcf, ngx_http_core_srv_conf_t *cscf);
static ngx_uint_t ngx_http_idem_same_servers(ngx_http_idem_main_conf_t *mcf,
    ngx_http_conf_addr_t *a, ngx_http_conf_addr_t *b);
static ngx_uint_t ngx_http_idem_has_server(ngx_http_conf_addr_t *addr,
    ngx_http_core_srv_conf_t *cscf);
static ngx_uint_t ngx_http_idem_reach(struct sockaddr *sa);
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
    uint64_t                    sum;
    ngx_uint_t                  i;
    ngx_http_server_name_t     *name;
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

    sum = NGX_HTTP_IDEM_FNV;
    name = cscf->server_names.elts;

    for (i = 0; i < cscf->server_names.nelts; i++) {
        sum = ngx_http_idem_server_text(sum, &name[i].name);
    }

    server->cscf = cscf;
    server->names = ngx_http_idem_server_fold(sum);
    server->addrs = 0;
    server->reach = NGX_HTTP_IDEM_REACH_UNIX;

    return NGX_OK;
}


/* after the configuration was read: do the addresses differ? */

void
ngx_http_idem_conf_servers(ngx_conf_t *cf)
{
    uint64_t                    sum;
    ngx_uint_t                  i, j, k;
    ngx_http_conf_addr_t       *addr, *first;
    ngx_http_conf_port_t       *port;
    ngx_http_idem_server_t     *server;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    if (ngx_http_idem_conf_mixed(mcf)) {
        mcf->places = 1;
    }

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

                /*
                 * independent of the order of "listen"; the same address may
                 * be there for TCP and for QUIC
                 */

                sum = ngx_http_idem_server_text(NGX_HTTP_IDEM_FNV,
                                                &addr[j].opt.addr_text);

                server[k].addrs += ngx_http_idem_server_fold(sum);
                server[k].reach = ngx_max(server[k].reach,
                                          ngx_http_idem_reach(
                                                      addr[j].opt.sockaddr));

                if (first == NULL) {
                    first = &addr[j];
                }

                if (!ngx_http_idem_same_servers(mcf, first, &addr[j])) {
                    mcf->places = 1;
                }
            }
        }
    }
}


/*
 * Whether the URI counts in some locations only: elsewhere another request may
 * find what such a location has stored.
 */

static ngx_uint_t
ngx_http_idem_conf_mixed(ngx_http_idem_main_conf_t *mcf)
{
    ngx_uint_t                  i, alone;
    ngx_http_idem_loc_conf_t  **conf;

    conf = mcf->locations.elts;
    alone = 0;

    for (i = 0; i < mcf->locations.nelts; i++) {
        alone += (conf[i]->fingerprint->mode == NGX_HTTP_IDEM_FINGERPRINT_OFF);
    }

    return alone && alone < mcf->locations.nelts;
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


static ngx_uint_t
ngx_http_idem_reach(struct sockaddr *sa)
{
    switch (sa->sa_family) {

#if (NGX_HAVE_UNIX_DOMAIN)
    case AF_UNIX:
        return NGX_HTTP_IDEM_REACH_UNIX;
#endif

#if (NGX_HAVE_INET6)
    case AF_INET6:
        return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *) sa)->sin6_addr)
               ? NGX_HTTP_IDEM_REACH_LOOPBACK : NGX_HTTP_IDEM_REACH_ANY;
#endif

    default: /* AF_INET */
        return ntohl(((struct sockaddr_in *) sa)->sin_addr.s_addr) >> 24 == 127
               ? NGX_HTTP_IDEM_REACH_LOOPBACK : NGX_HTTP_IDEM_REACH_ANY;
    }
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


/* whether the address selects the server, not the host alone, or an "if" may
   select other checks, or the URI counts in some locations only */

ngx_uint_t
ngx_http_idem_places_stored(ngx_http_request_t *r)
{
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    return mcf->places;
}


/* NGX_DECLINED if the module is not enabled in the server */

ngx_int_t
ngx_http_idem_server_id(ngx_http_request_t *r, uint64_t *id)
{
    ngx_http_idem_server_t     *server;
    ngx_http_core_srv_conf_t   *cscf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
    server = ngx_http_idem_find_server(mcf, cscf);

    if (server == NULL) {
        return NGX_DECLINED;
    }

    *id = (uint64_t) server->names << 32 | server->addrs;

    return NGX_OK;
}


/* the server with that id; NULL if unknown or the current one */

ngx_http_idem_server_t *
ngx_http_idem_other_server(ngx_http_request_t *r, uint64_t id)
{
    uint64_t                    here;
    ngx_uint_t                  i;
    ngx_http_idem_server_t     *server, *named;
    ngx_http_idem_main_conf_t  *mcf;

    if (ngx_http_idem_server_id(r, &here) != NGX_OK || here == id) {
        return NULL;
    }

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    server = mcf->servers.elts;
    named = NULL;

    for (i = 0; i < mcf->servers.nelts; i++) {

        if (server[i].names != id >> 32) {
            continue;
        }

        if (server[i].addrs == (uint32_t) id) {
            return &server[i];
        }

        named = named ? named : &server[i];
    }

    return (here >> 32 == id >> 32) ? NULL : named;
}


/* whether a client who came by this address might have reached that server */

ngx_uint_t
ngx_http_idem_reaches(ngx_http_request_t *r, ngx_http_idem_server_t *server)
{
    return server->reach == NGX_HTTP_IDEM_REACH_ANY
           || (ngx_connection_local_sockaddr(r->connection, NULL, 0) == NGX_OK
               && ngx_http_idem_reach(r->connection->local_sockaddr)
                  <= server->reach);
}
