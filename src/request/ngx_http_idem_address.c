
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The address of a client that asks for what its original asked for.
 *
 * realip replaces the address of a connection by what a header says, for the
 * whole request, as told by the server and the location where the request came
 * in.  The server or the location of the original may trust another header, or
 * none, and may check the address.  So the connection gets its own address back
 * before a retry begins anew there, realip of that server replaces it, and the
 * retry gets the address that it came with back once it was checked or refused,
 * or ends.
 *
 * realip keeps the address of the connection as its context and as the data of
 * a clean-up, whose handler puts the address back.  A redirect clears the
 * context, so the handler is remembered: it is the same for all requests.
 *
 * Called by ..._ask.c, and when a request was let in.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_pool_cleanup_t *ngx_http_idem_address_cleanup(
    ngx_http_request_t *r);
static ngx_uint_t ngx_http_idem_address_replaced(ngx_http_request_t *r);
static void ngx_http_idem_address_undo(ngx_pool_cleanup_t *cln);
static ngx_int_t ngx_http_idem_address_redo(ngx_http_request_t *r);


#define ngx_http_idem_address_ctx(r)                                          \
    (r)->ctx[ngx_http_idem_modules.realip->ctx_index]


/* the phase handler of realip; NULL: it was not found */
static ngx_http_handler_pt  ngx_http_idem_address_realip;

/* its clean-up; NULL until it has replaced an address in this process */
static ngx_pool_cleanup_pt  ngx_http_idem_address_handler;


/*
 * realip is the one module whose handler is in both phases.  Other handlers of
 * these phases come behind those of nginx's own modules.
 */

void
ngx_http_idem_address_init(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i, k;
    ngx_array_t                *read, *preaccess;
    ngx_http_handler_pt        *a, *b;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_core_module);

    ngx_http_idem_modules.realip = ngx_http_idem_find_module(cycle,
                                          "ngx_http_realip_module");
    ngx_http_idem_address_realip = NULL;

    if (ngx_http_idem_modules.realip == NULL) {
        return;
    }

    read = &cmcf->phases[NGX_HTTP_POST_READ_PHASE].handlers;
    preaccess = &cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers;

    a = read->elts;
    b = preaccess->elts;

    for (i = 0; i < read->nelts; i++) {
        for (k = 0; k < preaccess->nelts; k++) {

            if (a[i] == b[k]) {
                ngx_http_idem_address_realip = a[i];
                return;
            }
        }
    }
}


/* the request was let in: its context of realip is not cleared yet */

void
ngx_http_idem_address_learn(ngx_http_request_t *r)
{
    if (ngx_http_idem_address_handler == NULL
        && ngx_http_idem_modules.realip && ngx_http_idem_address_ctx(r))
    {
        (void) ngx_http_idem_address_cleanup(r);
    }
}


/* the clean-up of the address that realip has replaced */

static ngx_pool_cleanup_t *
ngx_http_idem_address_cleanup(ngx_http_request_t *r)
{
    void                *data;
    ngx_pool_cleanup_t  *cln;

    data = ngx_http_idem_address_ctx(r);

    for (cln = r->pool->cleanup; cln; cln = cln->next) {

        if (cln->handler == NULL) {
            continue;
        }

        if (data && cln->data == data) {
            ngx_http_idem_address_handler = cln->handler;
            return cln;
        }

        if (cln->handler == ngx_http_idem_address_handler) {
            return cln;
        }
    }

    return NULL;
}


/*
 * The request is about to begin anew in another server or location.
 * NGX_DECLINED if its address was replaced, and can't be put back.
 */

ngx_int_t
ngx_http_idem_address_ask(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_connection_t         *c;
    ngx_pool_cleanup_t       *cln;
    ngx_http_idem_address_t  *own;

    if (ngx_http_idem_modules.realip == NULL) {
        return NGX_OK;
    }

    c = r->connection;
    cln = ngx_http_idem_address_cleanup(r);

    if (cln) {
        own = &ctx->repeat->address;

        if (!ctx->repeat->asking) {
            own->cleanup = cln;
            own->sockaddr = c->sockaddr;
            own->socklen = c->socklen;
            own->text = c->addr_text;
        }

        ngx_http_idem_address_undo(cln);

    } else if (ngx_http_idem_address_replaced(r)) {
        return NGX_DECLINED;
    }

    if (ngx_http_idem_address_redo(r) != NGX_OK) {
        ngx_http_idem_address_own(r, ctx);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_uint_t
ngx_http_idem_address_replaced(ngx_http_request_t *r)
{
    ngx_uint_t                  hash;
    ngx_http_variable_value_t  *v;

    static ngx_str_t  name = ngx_string("realip_remote_addr");

    hash = ngx_hash_key(name.data, name.len);
    v = ngx_http_get_variable(r, &name, hash);

    return v == NULL || v->not_found
           || v->len != r->connection->addr_text.len
           || ngx_memcmp(v->data, r->connection->addr_text.data, v->len) != 0;
}


static void
ngx_http_idem_address_undo(ngx_pool_cleanup_t *cln)
{
    cln->handler(cln->data);
    cln->handler = NULL;
}


/* what realip does before a request is in a location */

static ngx_int_t
ngx_http_idem_address_redo(ngx_http_request_t *r)
{
    void                      **loc_conf;
    ngx_int_t                   rc;
    ngx_uint_t                  internal;
    ngx_http_core_srv_conf_t   *cscf;

    if (ngx_http_idem_address_realip == NULL) {
        return NGX_OK;
    }

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    loc_conf = r->loc_conf;
    internal = r->internal;

    ngx_http_idem_address_ctx(r) = NULL;
    r->loc_conf = cscf->ctx->loc_conf;
    r->internal = 0;

    rc = ngx_http_idem_address_realip(r);

    r->loc_conf = loc_conf;
    r->internal = internal;

    (void) ngx_http_idem_address_cleanup(r);

    return (rc == NGX_DECLINED) ? NGX_OK : NGX_ERROR;
}


/* nginx has begun anew: realip must not replace the address a second time */

void
ngx_http_idem_address_entered(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;

    cln = ngx_http_idem_modules.realip ? ngx_http_idem_address_cleanup(r)
                                       : NULL;

    if (cln) {
        ngx_http_idem_address_ctx(r) = cln->data;
    }
}


/* the request was checked or refused, and goes on with its own address */

void
ngx_http_idem_address_own(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_connection_t         *c;
    ngx_pool_cleanup_t       *cln;
    ngx_http_idem_address_t  *own;

    if (ngx_http_idem_modules.realip == NULL) {
        return;
    }

    cln = ngx_http_idem_address_cleanup(r);

    if (cln) {
        ngx_http_idem_address_undo(cln);
    }

    ngx_http_idem_address_ctx(r) = NULL;

    own = &ctx->repeat->address;

    if (own->cleanup == NULL) {
        return;
    }

    c = r->connection;

    c->sockaddr = own->sockaddr;
    c->socklen = own->socklen;
    c->addr_text = own->text;

    own->cleanup->handler = ngx_http_idem_address_handler;
    ngx_http_idem_address_ctx(r) = own->cleanup->data;
}
