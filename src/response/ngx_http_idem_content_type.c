
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The type of a response's body and its charset.
 *
 * nginx has them in fields of their own, besides the list of headers, and
 * upstreams and handlers fill these in different ways: the charset within the
 * type, the charset in its own field, or a charset that the charset filter has
 * to convert the body to (X-Accel-Charset).  A record has what a replay needs
 * to fill them again.
 *
 * Called by the capture of headers and by the replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


static ngx_int_t ngx_http_idem_content_type_value(ngx_http_request_t *r,
    ngx_str_t *value);


ngx_int_t
ngx_http_idem_content_type(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_array_t *headers)
{
    ngx_str_t  value, *charset;

    static ngx_str_t  type_name = ngx_string("Content-Type");
    static ngx_str_t  charset_name = ngx_string("X-Accel-Charset");

    charset = r->headers_out.override_charset;

    if (ngx_http_idem_header_hidden(ctx, &type_name)) {
        return NGX_OK;
    }

    if (charset && charset->len
        && ngx_http_idem_keep_header(headers, NGX_HTTP_IDEM_HEADER_CHARSET,
                          ngx_http_idem_text_valid(charset->data, charset->len),
                          &charset_name, charset)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (r->headers_out.content_type.len == 0) {
        return NGX_OK;
    }

    if (ngx_http_idem_content_type_value(r, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_idem_keep_header(headers,
                                NGX_HTTP_IDEM_HEADER_CONTENT_TYPE,
                                ngx_http_idem_text_valid(value.data, value.len),
                                &type_name, &value);
}


/* appends the charset where nginx's header filter would */

static ngx_int_t
ngx_http_idem_content_type_value(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char     *p;
    ngx_str_t  *type, *charset;

    type = &r->headers_out.content_type;
    charset = &r->headers_out.charset;

    *value = *type;

    if (charset->len == 0 || r->headers_out.content_type_len != type->len) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, type->len + sizeof("; charset=") - 1
                             + charset->len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    value->data = p;
    value->len = ngx_sprintf(p, "%V; charset=%V", type, charset) - p;

    return NGX_OK;
}


/* separates the charset from the type, as upstream responses have it */

void
ngx_http_idem_set_content_type(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char  *p, *last, *start;

    r->headers_out.content_type = *value;
    r->headers_out.content_type_len = value->len;
    r->headers_out.content_type_lowcase = NULL;

    p = memchr(value->data, ';', value->len);
    if (p == NULL) {
        return;
    }

    last = value->data + value->len;

    for ( /* void */ ; p < last; p++) {

        if (*p != ';') {
            continue;
        }

        start = p++;

        while (p < last && *p == ' ') {
            p++;
        }

        if (last - p >= 8
            && ngx_strncasecmp(p, (u_char *) "charset=", 8) == 0)
        {
            p += 8;

            r->headers_out.content_type_len = start - value->data;

            if (p < last && *p == '"') {
                p++;
            }

            if (p < last && last[-1] == '"') {
                last--;
            }

            r->headers_out.charset.data = p;
            r->headers_out.charset.len = last - p;
            return;
        }

        p--;
    }
}
