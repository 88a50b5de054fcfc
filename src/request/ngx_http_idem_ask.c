
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * A retry that asks for what its original asked for.
 *
 * If method, host or URI are not part of the fingerprint, or a retry came to
 * another server, access checks have to see the request that the response was
 * made for: auth_request may pass $request_uri on, limit_except looks at the
 * method.  So the retry takes over the request line of its original, begins
 * anew with it, and gets its own back once it was checked or refused.
 *
 * A client that is refused must not learn what the original asked for.  nginx's
 * own error pages do not tell; what "return" or Lua make of $uri does, and is
 * replaced by a conflict.
 *
 * Called before a replay, while it repeats redirects, and by the header
 * filter.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static void ngx_http_idem_ask_save(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx);
static ngx_int_t ngx_http_idem_ask_uri(ngx_http_request_t *r, ngx_str_t *path,
    ngx_str_t *args);
static void ngx_http_idem_ask_host(ngx_http_request_t *r, ngx_str_t *host,
    ngx_str_t *http_host);
static void ngx_http_idem_ask_own(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_uint_t uri);
static void ngx_http_idem_ask_forget(ngx_http_request_t *r);
static ngx_uint_t ngx_http_idem_same_method_host(ngx_http_request_t *r,
    ngx_http_idem_redirect_t *step);


/* the requested URI, parsed again: r->uri may have been rewritten */

ngx_int_t
ngx_http_idem_parse_uri(ngx_http_request_t *r, ngx_str_t *uri, ngx_str_t *args)
{
    size_t                     len;
    u_char                    *p;
    ngx_http_request_t        *asked;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    len = r->unparsed_uri.len;

    asked = ngx_pcalloc(r->pool, sizeof(ngx_http_request_t));
    p = ngx_pnalloc(r->pool, 2 * (len + 2));

    if (asked == NULL || p == NULL) {
        return NGX_ERROR;
    }

    asked->connection = r->connection;
    asked->uri_start = p;

    /* "POST http://host?args" has no path */

    if (len == 0 || r->unparsed_uri.data[0] != '/') {
        *p++ = '/';
    }

    asked->uri_end = ngx_cpymem(p, r->unparsed_uri.data, len);
    *asked->uri_end = ' ';
    asked->uri.data = asked->uri_end + 1;

    if (ngx_http_parse_complex_uri(asked, cscf->merge_slashes) != NGX_OK
        || asked->uri.len == 0)
    {
        return NGX_ERROR;
    }

    if (asked->args_start) {
        asked->args.data = asked->args_start;
        asked->args.len = asked->uri_end - asked->args_start;
    }

    *uri = asked->uri;
    *args = asked->args;

    return NGX_OK;
}


/* NGX_DECLINED if the request asks for something else */

ngx_int_t
ngx_http_idem_same_target(ngx_http_request_t *r, ngx_http_idem_redirect_t *step)
{
    ngx_str_t  uri, args;

    if (!step->begin || !ngx_http_idem_same_method_host(r, step)) {
        return NGX_DECLINED;
    }

    if (ngx_http_idem_parse_uri(r, &uri, &args) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_idem_same_text(&uri, &step->target)
           && ngx_http_idem_same_text(&args, &step->args)
           ? NGX_OK : NGX_DECLINED;
}


static ngx_uint_t
ngx_http_idem_same_method_host(ngx_http_request_t *r,
    ngx_http_idem_redirect_t *step)
{
    return ngx_http_idem_same_text(&r->method_name, &step->method_name)
           && ngx_http_idem_same_text(&r->headers_in.server, &step->host);
}


/*
 * Arguments may be credentials, as those of secure_link.  So with another path
 * the retry asks twice: for the path of the original with its own arguments,
 * then with those of the original.  NGX_DECLINED if it can't ask with the
 * address of its connection.
 */

ngx_int_t
ngx_http_idem_ask(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_http_idem_redirect_t *step)
{
    ngx_int_t   rc;
    ngx_str_t   uri, args;
    ngx_uint_t  same_path, same_args;

    ngx_str_null(&uri);
    ngx_str_null(&args);

    if (!ctx->repeat->asking
        && ngx_http_idem_parse_uri(r, &uri, &args) != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_http_idem_address_ask(r, ctx);

    if (rc != NGX_OK) {
        return rc;
    }

    same_path = 0;
    same_args = 0;

    if (ctx->repeat->asking) {
        ctx->repeat->again = 0;
        ctx->repeat->args = step->args;

    } else {
        same_path = ngx_http_idem_same_text(&uri, &step->target);
        same_args = ngx_http_idem_same_text(&args, &step->args);

        ngx_http_idem_ask_save(r, ctx);

        ctx->repeat->differs = !same_path || !same_args
                               || !ngx_http_idem_same_method_host(r, step);
        ctx->repeat->again = !same_path && !same_args;
        ctx->repeat->args = ctx->repeat->again ? args : step->args;
        ctx->repeat->asking = 1;
    }

    ctx->repeat->entered = 0;

    r->error_page = 0;
    r->err_status = 0;

    if (!(same_path && same_args)
        && ngx_http_idem_ask_uri(r, &step->target, &ctx->repeat->args)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!ngx_http_idem_same_text(&r->headers_in.server, &step->host)) {
        ngx_http_idem_ask_host(r, &step->host, &step->host);
    }

    if (!ngx_http_idem_same_text(&r->method_name, &step->method_name)) {
        r->method = step->method;
        r->method_name = step->method_name;
    }

    ngx_http_idem_ask_forget(r);

    if (!ctx->repeat->differs) {
        return NGX_OK;
    }

    return ngx_http_idem_print(r->pool, &r->request_line,
                               r->method_name.len + r->unparsed_uri.len
                               + r->http_protocol.len + 2,
                               "%V %V %V", &r->method_name, &r->unparsed_uri,
                               &r->http_protocol);
}


static void
ngx_http_idem_ask_save(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_idem_asked_t  *own;

    own = &ctx->repeat->own;

    own->request_line = r->request_line;
    own->request_uri = r->unparsed_uri;
    own->uri = r->uri;
    own->args = r->args;
    own->method = r->method;
    own->method_name = r->method_name;
    own->host = r->headers_in.server;

    if (r->headers_in.host) {
        own->http_host = r->headers_in.host->value;
    }
}


static ngx_int_t
ngx_http_idem_ask_uri(ngx_http_request_t *r, ngx_str_t *path, ngx_str_t *args)
{
    u_char     *p;
    ngx_str_t  *uri;

    uri = &r->unparsed_uri;

    uri->data = ngx_pnalloc(r->pool, 3 * path->len + 1 + args->len);
    if (uri->data == NULL) {
        uri->len = 0;
        return NGX_ERROR;
    }

    p = (u_char *) ngx_escape_uri(uri->data, path->data, path->len,
                                  NGX_ESCAPE_URI);

    if (args->len) {
        *p++ = '?';
        p = ngx_cpymem(p, args->data, args->len);
    }

    uri->len = p - uri->data;

    return NGX_OK;
}


static void
ngx_http_idem_ask_host(ngx_http_request_t *r, ngx_str_t *host,
    ngx_str_t *http_host)
{
    r->headers_in.server = *host;

    if (r->headers_in.host) {
        r->headers_in.host->value = *http_host;
    }
}


/*
 * Forgets what variables were evaluated to for the other request: nginx caches
 * "map", $secure_link and others.  Only $request_id must not change.
 */

static void
ngx_http_idem_ask_forget(ngx_http_request_t *r)
{
    ngx_uint_t                  i;
    ngx_http_core_main_conf_t  *cmcf;
    ngx_http_idem_main_conf_t  *mcf;

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if ((ngx_int_t) i != mcf->request_id) {
            r->variables[i].valid = 0;
            r->variables[i].not_found = 0;
        }
    }
}


/*
 * nginx begins with the request of the original, or with an error page or a
 * post_action
 */

void
ngx_http_idem_ask_redirected(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;

    if (!ctx->repeat->asking) {
        return;
    }

    if (!ctx->repeat->entered) {

        /* checks that spare internal redirects must not spare this one */

        ctx->repeat->entered = 1;
        r->internal = 0;
        ngx_http_idem_address_entered(r);
        return;
    }

    if (r->error_page || r->err_status || r->post_action) {
        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

        /* a page by URI has a URI of its own */

        ngx_http_idem_ask_own(r, ctx, clcf->named);
    }
}


/*
 * The retry was checked, or ends before that: neither "add_header" nor the log
 * may have the request line of its original.
 */

void
ngx_http_idem_ask_end(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    if (ctx->repeat->asking) {
        ngx_http_idem_ask_own(r, ctx, 1);
    }
}


static void
ngx_http_idem_ask_own(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_uint_t uri)
{
    ngx_str_t               address;
    ngx_http_idem_asked_t  *own;

    own = &ctx->repeat->own;
    address = r->connection->addr_text;

    r->request_line = own->request_line;
    r->unparsed_uri = own->request_uri;

    ngx_http_idem_ask_host(r, &own->host, &own->http_host);

    if (uri) {
        r->uri = own->uri;
        r->args = own->args;
        (void) ngx_http_set_exten(r);
    }

    /* an error page by URI is asked for by GET */

    if (r->method_name.data == ctx->repeat->errors.method_name) {
        r->method = own->method;
        r->method_name = own->method_name;
    }

    ngx_http_idem_address_own(r, ctx);

    /* nothing gives "set" and auth_request_set their values back */

    if (ctx->repeat->differs
        || !ngx_http_idem_same_text(&address, &r->connection->addr_text))
    {
        ngx_http_idem_ask_forget(r);
    }

    ctx->repeat->asking = 0;
    ctx->repeat->differs = 0;
}


/* a response to a retry on its way: it was refused */

ngx_int_t
ngx_http_idem_ask_header(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_uint_t  differs;

    if (!ctx->repeat->asking) {
        return NGX_OK;
    }

    differs = ctx->repeat->differs;

    ngx_http_idem_ask_own(r, ctx, 1);

    if (!differs || r->err_status >= NGX_HTTP_BAD_REQUEST) {
        return NGX_OK;
    }

    ctx->answer.undisclosed = 1;

    return ngx_http_idem_refuse_instead(r, ctx);
}
