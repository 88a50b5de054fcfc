
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Headers of responses: which headers are stored, and how they are restored.
 *
 * nginx has response headers in a list, and pointers and fields for those
 * that its filters use.  Both are stored, so that gzip, expires and other
 * filters treat a replay like the original.
 *
 * Called by the capture and by the replay.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"


/* fields that nginx does not list: the type, times, ranges and redirects */
#define NGX_HTTP_IDEM_HEADERS_BESIDE  4


/* one of the fields below that is set */

typedef struct {
    ngx_http_idem_header_e    kind;
    ngx_table_elt_t          *h;
} ngx_http_idem_pointed_t;


static ngx_int_t ngx_http_idem_capture_list(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers, ngx_int_t rc);
static ngx_int_t ngx_http_idem_listed_header(ngx_array_t *headers,
    ngx_http_idem_header_e kind, ngx_table_elt_t *h);
static ngx_uint_t ngx_http_idem_header_listed(ngx_array_t *names,
    ngx_str_t *header);
static ngx_uint_t ngx_http_idem_not_kept(ngx_str_t *name);
static ngx_uint_t ngx_http_idem_pointed(ngx_http_request_t *r,
    ngx_http_idem_pointed_t *pointed);
static ngx_http_idem_header_e ngx_http_idem_header_kind(
    ngx_http_idem_pointed_t *pointed, ngx_uint_t n,
    ngx_table_elt_t *h);
static void ngx_http_idem_store_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_table_elt_t *h);
static ngx_int_t ngx_http_idem_field(ngx_http_idem_ctx_t *ctx,
    ngx_array_t *headers, ngx_http_idem_header_e kind, ngx_str_t *name,
    ngx_str_t *value);
static ngx_int_t ngx_http_idem_last_modified(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers);
static ngx_int_t ngx_http_idem_accept_ranges(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_array_t *headers);
static ngx_int_t ngx_http_idem_set_cache_control(ngx_http_request_t *r,
    ngx_table_elt_t *h);


/* fields of r->headers_out that point into the list of headers */

static const struct {
    ngx_http_idem_header_e    kind;
    size_t                    offset;
} ngx_http_idem_pointers[] = {
    { NGX_HTTP_IDEM_HEADER_LOCATION,
      offsetof(ngx_http_headers_out_t, location) },
    { NGX_HTTP_IDEM_HEADER_ETAG,
      offsetof(ngx_http_headers_out_t, etag) },
    { NGX_HTTP_IDEM_HEADER_LAST_MODIFIED,
      offsetof(ngx_http_headers_out_t, last_modified) },
    { NGX_HTTP_IDEM_HEADER_CONTENT_ENCODING,
      offsetof(ngx_http_headers_out_t, content_encoding) },
    { NGX_HTTP_IDEM_HEADER_SERVER,
      offsetof(ngx_http_headers_out_t, server) },
    { NGX_HTTP_IDEM_HEADER_EXPIRES,
      offsetof(ngx_http_headers_out_t, expires) },
    { NGX_HTTP_IDEM_HEADER_WWW_AUTHENTICATE,
      offsetof(ngx_http_headers_out_t, www_authenticate) },
    { NGX_HTTP_IDEM_HEADER_ACCEPT_RANGES,
      offsetof(ngx_http_headers_out_t, accept_ranges) },
    { NGX_HTTP_IDEM_HEADER_REFRESH,
      offsetof(ngx_http_headers_out_t, refresh) }
};

#define NGX_HTTP_IDEM_POINTERS                                                \
    (sizeof(ngx_http_idem_pointers)                                           \
     / sizeof(ngx_http_idem_pointers[0]))


#define ngx_http_idem_pointer(r, offset)                                      \
    ((ngx_table_elt_t **) ((char *) &(r)->headers_out + (offset)))


ngx_int_t
ngx_http_idem_capture_head(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    ngx_int_t                  rc;
    ngx_array_t                headers;
    ngx_http_idem_response_t  *response;

    rc = ngx_array_init(&headers, r->pool,
                        r->headers_out.headers.part.nelts
                        + NGX_HTTP_IDEM_HEADERS_BESIDE,
                        sizeof(ngx_http_idem_header_t));

    if (rc == NGX_OK) {
        rc = ngx_http_idem_content_type(r, ctx, &headers);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_idem_last_modified(r, ctx, &headers);
    }

    rc = ngx_http_idem_capture_list(r, ctx, &headers, rc);

    if (rc == NGX_OK) {
        rc = ngx_http_idem_accept_ranges(r, ctx, &headers);
    }

    if (rc != NGX_OK
        || ngx_http_idem_redirects_header(r, ctx, &headers) != NGX_OK)
    {
        return NGX_ERROR;
    }

    response = &ctx->capture.response;

    response->status = r->headers_out.status;
    response->headers = headers.elts;
    response->nheaders = headers.nelts;
    response->content_length = r->headers_out.content_length_n;

    /* ngx_http_send_header() drops the status line if r->err_status is set */

    if (r->headers_out.status_line.len) {
        response->status_line = r->headers_out.status_line;
    }

    ctx->capture.head_size = ngx_http_idem_head_size(response);

    /* the header may exceed the limit of a record */

    ctx->capture.held_size = ctx->capture.head_size ? ctx->capture.head_size
                                                    : NGX_MAX_SIZE_T_VALUE;

    return NGX_OK;
}


/*
 * The headers of the list.  Without memory ("rc"), it is only searched for
 * X-Idempotency-Store.  nginx accepts names of headers that are invalid in a
 * record.
 */

static ngx_int_t
ngx_http_idem_capture_list(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_array_t *headers, ngx_int_t rc)
{
    ngx_uint_t                i, n;
    ngx_list_part_t          *part;
    ngx_table_elt_t          *h;
    ngx_http_idem_pointed_t   pointed[NGX_HTTP_IDEM_POINTERS];

    part = &r->headers_out.headers.part;

    n = part->nelts ? ngx_http_idem_pointed(r, pointed) : 0;

    for ( /* void */ ; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            /* "Server" with hash 0 keeps nginx from sending its own */

            if (h[i].hash == 0 && &h[i] != r->headers_out.server) {
                continue;
            }

            if (ngx_http_idem_header_is(&h[i].key,
                                        NGX_HTTP_IDEM_STORE_HEADER))
            {
                ngx_http_idem_store_header(r, ctx, &h[i]);
                continue;
            }

            if (rc != NGX_OK
                || ngx_http_idem_not_kept(&h[i].key)
                || !ngx_http_idem_header_valid(&h[i].key, &h[i].value)
                || ngx_http_idem_header_hidden(ctx, &h[i].key))
            {
                continue;
            }

            rc = ngx_http_idem_listed_header(headers,
                                 ngx_http_idem_header_kind(pointed, n, &h[i]),
                                 &h[i]);
        }
    }

    return rc;
}


/*
 * A header of the list.  An empty "Server" stands for one that is not sent, so
 * one that is sent empty follows as a header without a meaning to nginx.
 */

static ngx_int_t
ngx_http_idem_listed_header(ngx_array_t *headers, ngx_http_idem_header_e kind,
    ngx_table_elt_t *h)
{
    ngx_str_t  value;

    value = h->value;

    if (h->hash == 0) {
        value.len = 0;
    }

    if (ngx_http_idem_keep_header(headers, kind, 1, &h->key, &value)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (kind != NGX_HTTP_IDEM_HEADER_SERVER || h->hash == 0 || value.len) {
        return NGX_OK;
    }

    return ngx_http_idem_keep_header(headers, NGX_HTTP_IDEM_HEADER_PLAIN, 1,
                                     &h->key, &value);
}


/* "valid": the record can have the header as it is */

ngx_int_t
ngx_http_idem_keep_header(ngx_array_t *headers, ngx_http_idem_header_e kind,
    ngx_uint_t valid, ngx_str_t *name, ngx_str_t *value)
{
    ngx_http_idem_header_t  *kept;

    kept = ngx_array_push(headers);
    if (kept == NULL) {
        return NGX_ERROR;
    }

    kept->kind = kind;
    kept->valid = valid;
    kept->name = *name;
    kept->value = *value;

    return NGX_OK;
}


/* stores a header that nginx has as a field, and not in the list */

static ngx_int_t
ngx_http_idem_field(ngx_http_idem_ctx_t *ctx, ngx_array_t *headers,
    ngx_http_idem_header_e kind, ngx_str_t *name, ngx_str_t *value)
{
    return ngx_http_idem_header_hidden(ctx, name)
           ? NGX_OK
           : ngx_http_idem_keep_header(headers, kind, 1, name, value);
}


/* by idempotency_keep_header or idempotency_hide_header */

ngx_uint_t
ngx_http_idem_header_hidden(ngx_http_idem_ctx_t *ctx, ngx_str_t *name)
{
    /* without Content-Encoding and its like the body has another meaning */

    if (ctx->conf->keep_headers
        && !ngx_http_idem_header_listed(ctx->conf->keep_headers, name)
        && (name->len <= 8
            || ngx_strncasecmp(name->data, (u_char *) "content-", 8) != 0))
    {
        return 1;
    }

    return ctx->conf->hide_headers
           && ngx_http_idem_header_listed(ctx->conf->hide_headers, name);
}


static ngx_uint_t
ngx_http_idem_header_listed(ngx_array_t *names, ngx_str_t *header)
{
    ngx_str_t   *name;
    ngx_uint_t   i;

    name = names->elts;

    for (i = 0; i < names->nelts; i++) {
        if (header->len == name[i].len
            && ngx_strncasecmp(header->data, name[i].data, name[i].len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* made by nginx for each response, or hop-by-hop */

static ngx_uint_t
ngx_http_idem_not_kept(ngx_str_t *name)
{
    switch (name->len) {

    case 2:
        return ngx_http_idem_header_is(name, "te");

    case 4:
        return ngx_http_idem_header_is(name, "date");

    case 7:
        return ngx_http_idem_header_is(name, "trailer")
               || ngx_http_idem_header_is(name, "upgrade");

    case 10:
        return ngx_http_idem_header_is(name, "connection")
               || ngx_http_idem_header_is(name, "keep-alive");

    case 12:
        return ngx_http_idem_header_is(name, "content-type");

    case 14:
        return ngx_http_idem_header_is(name, "content-length");

    case 16:
        return ngx_http_idem_header_is(name, "proxy-connection");

    case 17:
        return ngx_http_idem_header_is(name, "transfer-encoding");

    case 19:
        return ngx_http_idem_is_redirects(name);

    default:
        return 0;
    }
}


/* collects the fields that are set, usually one or two */

static ngx_uint_t
ngx_http_idem_pointed(ngx_http_request_t *r, ngx_http_idem_pointed_t *pointed)
{
    ngx_uint_t        i, n;
    ngx_table_elt_t  *h;

    n = 0;

    for (i = 0; i < NGX_HTTP_IDEM_POINTERS; i++) {
        h = *ngx_http_idem_pointer(r, ngx_http_idem_pointers[i].offset);

        if (h) {
            pointed[n].kind = ngx_http_idem_pointers[i].kind;
            pointed[n].h = h;
            n++;
        }
    }

    return n;
}


static ngx_http_idem_header_e
ngx_http_idem_header_kind(ngx_http_idem_pointed_t *pointed,
    ngx_uint_t n, ngx_table_elt_t *h)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (pointed[i].h == h) {
            return pointed[i].kind;
        }
    }

    if (ngx_http_idem_header_is(&h->key, "Cache-Control")) {
        return NGX_HTTP_IDEM_HEADER_CACHE_CONTROL;
    }

    return NGX_HTTP_IDEM_HEADER_PLAIN;
}


/*
 * Another nginx with this module may be the application, or an application
 * that knows the same headers: a client must not get them twice.
 */

void
ngx_http_idem_hide_header(ngx_http_request_t *r, const char *name)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].key.len == len
                && ngx_strncasecmp(h[i].key.data, (u_char *) name, len) == 0)
            {
                h[i].hash = 0;
            }
        }
    }
}


/*
 * The application's X-Idempotency-Store: "off", or a TTL in seconds.  It is
 * removed from the response.
 */

static void
ngx_http_idem_store_header(ngx_http_request_t *r,
    ngx_http_idem_ctx_t *ctx, ngx_table_elt_t *h)
{
    ngx_int_t  n;

    h->hash = 0;

    if (ngx_http_idem_header_is(&h->value, "off")) {
        ctx->capture.unwanted = 1;
        return;
    }

    n = ngx_atoi(h->value.data, h->value.len);

    if (n > 0 && n <= NGX_MAX_INT32_VALUE) {
        ctx->capture.app_ttl = (ngx_msec_t) n * 1000;
        return;
    }

    if (!ngx_http_idem_log_is_repeated(NGX_LOG_WARN,
                      "idempotency: upstream sent a wrong \""
                      NGX_HTTP_IDEM_STORE_HEADER "\""))
    {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency: upstream sent \""
                      NGX_HTTP_IDEM_STORE_HEADER ": %V\", which is "
                      "neither \"off\" nor a number of seconds", &h->value);
    }
}


/*
 * A static file has its modification time as a number only.  It is stored as
 * the header that nginx would make of it, which comes before the list and is
 * sent with these statuses only.
 */

static ngx_int_t
ngx_http_idem_last_modified(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_array_t *headers)
{
    ngx_str_t  value;

    static ngx_str_t  name = ngx_string("Last-Modified");

    if (r->headers_out.last_modified
        || r->headers_out.last_modified_time == -1
        || (r->headers_out.status != NGX_HTTP_OK
            && r->headers_out.status != NGX_HTTP_PARTIAL_CONTENT
            && r->headers_out.status != NGX_HTTP_NOT_MODIFIED))
    {
        return NGX_OK;
    }

    value.data = ngx_pnalloc(r->pool,
                             sizeof("Mon, 28 Sep 1970 06:00:00 GMT") - 1);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_http_time(value.data, r->headers_out.last_modified_time)
                - value.data;

    return ngx_http_idem_field(ctx, headers,
                               NGX_HTTP_IDEM_HEADER_LAST_MODIFIED, &name,
                               &value);
}


/*
 * RFC 9110 has ranges for GET only, nginx for HEAD, too.  X-Accel-Redirect
 * sets r->method to GET, so the request line has to be checked.
 */

ngx_uint_t
ngx_http_idem_may_range(ngx_http_request_t *r)
{
    ngx_str_t  *line;

    line = &r->request_line;

    return line->len > 5
           && (ngx_strncmp(line->data, "GET ", 4) == 0
               || ngx_strncmp(line->data, "HEAD ", 5) == 0);
}


/* stores Accept-Ranges for responses from which nginx cuts ranges */

static ngx_int_t
ngx_http_idem_accept_ranges(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx,
    ngx_array_t *headers)
{
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  name = ngx_string("Accept-Ranges");
    static ngx_str_t  value = ngx_string("bytes");

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (!r->allow_ranges || r->headers_out.accept_ranges
        || clcf->max_ranges == 0
        || r->headers_out.status != NGX_HTTP_OK
        || !ngx_http_idem_may_range(r))
    {
        return NGX_OK;
    }

    return ngx_http_idem_field(ctx, headers,
                               NGX_HTTP_IDEM_HEADER_ACCEPT_RANGES, &name,
                               &value);
}


ngx_int_t
ngx_http_idem_restore_head(ngx_http_request_t *r,
    ngx_http_idem_response_t *response)
{
    ngx_uint_t               i, n;
    ngx_table_elt_t         *h;
    ngx_http_idem_header_t  *kept;

    r->headers_out.status = response->status;
    r->headers_out.status_line = response->status_line;

    for (i = 0; i < response->nheaders; i++) {
        kept = &response->headers[i];

        if (kept->kind == NGX_HTTP_IDEM_HEADER_CONTENT_TYPE) {
            ngx_http_idem_set_content_type(r, &kept->value);
            continue;
        }

        if (kept->kind == NGX_HTTP_IDEM_HEADER_CHARSET) {
            r->headers_out.override_charset = &kept->value;
            continue;
        }

        /*
         * the redirects; what is not stored is not in a record of this module,
         * and a length that somebody else wrote would break the connection
         */

        if (ngx_http_idem_not_kept(&kept->name)) {
            continue;
        }

        h = ngx_list_push(&r->headers_out.headers);
        if (h == NULL) {
            return NGX_ERROR;
        }

        ngx_memzero(h, sizeof(ngx_table_elt_t));

        h->hash = (kept->kind == NGX_HTTP_IDEM_HEADER_SERVER
                   && kept->value.len == 0) ? 0 : 1;
        h->key = kept->name;
        h->value = kept->value;

        if (kept->kind == NGX_HTTP_IDEM_HEADER_CACHE_CONTROL) {
            if (ngx_http_idem_set_cache_control(r, h) != NGX_OK) {
                return NGX_ERROR;
            }

            continue;
        }

        if (kept->kind == NGX_HTTP_IDEM_HEADER_PLAIN) {
            continue;
        }

        for (n = 0; n < NGX_HTTP_IDEM_POINTERS; n++) {
            if (ngx_http_idem_pointers[n].kind == kept->kind) {
                *ngx_http_idem_pointer(r, ngx_http_idem_pointers[n].offset)
                    = h;
            }
        }
    }

    if (r->headers_out.last_modified) {
        h = r->headers_out.last_modified;
        r->headers_out.last_modified_time = ngx_parse_http_time(h->value.data,
                                                                h->value.len);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_set_cache_control(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    ngx_table_elt_t  **p;

#if (nginx_version >= 1023000)

    for (p = &r->headers_out.cache_control; *p; p = &(*p)->next) {
        /* void */
    }

#else

    if (r->headers_out.cache_control.elts == NULL
        && ngx_array_init(&r->headers_out.cache_control, r->pool, 2,
                          sizeof(ngx_table_elt_t *))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    p = ngx_array_push(&r->headers_out.cache_control);
    if (p == NULL) {
        return NGX_ERROR;
    }

#endif

    *p = h;

    return NGX_OK;
}


/* adds a header to the response that is being sent */

ngx_int_t
ngx_http_idem_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(h, sizeof(ngx_table_elt_t));

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value = *value;

    return NGX_OK;
}
