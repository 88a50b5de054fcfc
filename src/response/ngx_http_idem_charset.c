
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Sets the charset of a held response early.
 *
 * autoindex reads the charset after it has sent its header, to cut UTF-8
 * names at character boundaries.  The charset filter has not seen the header
 * of a held response by then, so this file finds the charset that the filter
 * will set.  The filter's configuration is private: its table of directives
 * has the offset of "charset", and its main configuration starts with the
 * array of names.
 *
 * Called by the capture.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* values of "charset" from here on are indexes of variables */
#define NGX_HTTP_IDEM_CHARSET_VAR  0x10000


/* the first members of the charset filter's description of a charset */

typedef struct {
    u_char     **tables;
    ngx_str_t    name;
} ngx_http_idem_charset_t;


static ngx_int_t ngx_http_idem_charset_name(ngx_http_request_t *r,
    ngx_str_t *name);


void
ngx_http_idem_charset(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_str_t  name;

    /* only directory listings, which have no content handler */

    if (r->upstream || r->content_handler
        || r->headers_out.charset.len
        || r->headers_out.override_charset
        || r->uri.len == 0 || r->uri.data[r->uri.len - 1] != '/'
        || r->headers_out.content_type_len != sizeof("text/html") - 1
        || ngx_strncasecmp(r->headers_out.content_type.data,
                           (u_char *) "text/html", sizeof("text/html") - 1)
           != 0)
    {
        return;
    }

    if (ngx_http_idem_charset_name(r, &name) == NGX_OK) {
        r->headers_out.charset = name;
        ctx->capture.charset = 1;
    }
}


static ngx_int_t
ngx_http_idem_charset_name(ngx_http_request_t *r, ngx_str_t *name)
{
    char                       *conf;
    ngx_int_t                   charset;
    ngx_array_t                *charsets;
    ngx_module_t               *module;
    ngx_command_t              *cmd;
    ngx_http_variable_value_t  *vv;
    ngx_http_idem_charset_t    *found;

    module = ngx_http_idem_modules.charset;
    cmd = ngx_http_idem_modules.charset_command;

    if (cmd == NULL) {
        return NGX_DECLINED;
    }

    conf = r->loc_conf[module->ctx_index];
    charset = *(ngx_int_t *) (conf + cmd->offset);

    if (charset >= NGX_HTTP_IDEM_CHARSET_VAR) {
        vv = ngx_http_get_indexed_variable(r,
                                 charset - NGX_HTTP_IDEM_CHARSET_VAR);

        if (vv == NULL || vv->not_found) {
            return NGX_DECLINED;
        }

        name->len = vv->len;
        name->data = vv->data;

        return NGX_OK;
    }

    charsets = r->main_conf[module->ctx_index];

    if (charset < 0 || (ngx_uint_t) charset >= charsets->nelts) {
        /* "charset off" */
        return NGX_DECLINED;
    }

    found = (ngx_http_idem_charset_t *)
                ((u_char *) charsets->elts + charset * charsets->size);

    *name = found->name;

    return NGX_OK;
}
