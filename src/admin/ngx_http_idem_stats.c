
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * idempotency_stats: metrics as an HTML page, as JSON, or for Prometheus.
 *
 * The format is chosen by the directive, by the argument "format", or by the
 * Accept header.  The page is embedded at build time from a file; it uses no
 * external assets, and requests JSON from its own URI.
 *
 * A content handler; reads the metrics.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "response/ngx_http_idem_response.h"

#include "ngx_http_idem_stats_html.h"


#define NGX_HTTP_IDEM_TEXT_SIZE  16384
#define NGX_HTTP_IDEM_TEXT_LINE  1024


static ngx_int_t ngx_http_idem_stats_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_idem_stats_format(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf);
static ngx_int_t ngx_http_idem_stats_csp(void);
static ngx_int_t ngx_http_idem_stats_hash(const char *open,
    const char *close, u_char *text);
static ngx_int_t ngx_http_idem_stats_page(ngx_http_request_t *r);
static ngx_uint_t ngx_http_idem_stats_accepted(ngx_http_request_t *r);


typedef enum {
    NGX_HTTP_IDEM_STATS_BY_ACCEPT = 0,
    NGX_HTTP_IDEM_STATS_PROMETHEUS,
    NGX_HTTP_IDEM_STATS_JSON,
    NGX_HTTP_IDEM_STATS_HTML
} ngx_http_idem_stats_e;


static ngx_conf_enum_t  ngx_http_idem_stats_formats[] = {
    { ngx_string("prometheus"), NGX_HTTP_IDEM_STATS_PROMETHEUS },
    { ngx_string("json"), NGX_HTTP_IDEM_STATS_JSON },
    { ngx_string("html"), NGX_HTTP_IDEM_STATS_HTML },
    { ngx_null_string, 0 }
};


/* as in Accept */

static ngx_conf_enum_t  ngx_http_idem_stats_types[] = {
    { ngx_string("text/html"), NGX_HTTP_IDEM_STATS_HTML },
    { ngx_string("application/json"), NGX_HTTP_IDEM_STATS_JSON },
    { ngx_string("text/plain"), NGX_HTTP_IDEM_STATS_PROMETHEUS },
    { ngx_string("application/openmetrics-text"),
      NGX_HTTP_IDEM_STATS_PROMETHEUS },
    { ngx_null_string, 0 }
};


/*
 * The Content-Security-Policy of the page, with the hashes of its script and
 * style.  It is static and not in a pool: it is made once, while pools of a
 * configuration are destroyed with it.
 */
static u_char     ngx_http_idem_stats_policy_data[512];
static ngx_str_t  ngx_http_idem_stats_policy;


/* idempotency_stats [prometheus | json | html] */

char *
ngx_http_idem_conf_stats(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_int_t                   format;
    ngx_str_t                  *value;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_idem_main_conf_t  *mcf;

    if (ilcf->page) {
        return ilcf->admin ? "takes a location without \"idempotency_admin\""
                           : "is duplicate";
    }

    value = cf->args->elts;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    mcf->stats = 1;

    ilcf->stats = NGX_HTTP_IDEM_STATS_BY_ACCEPT;
    ilcf->page = ngx_http_idem_stats_handler;

    if (cf->args->nelts == 2) {
        format = ngx_http_idem_conf_enum(ngx_http_idem_stats_formats,
                                         &value[1]);

        if (format == NGX_ERROR) {
            return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is \"prometheus\", \"json\" or \"html\", "
                             "or nothing: then it is what the client accepts");
        }

        ilcf->stats = format;
    }

    if (ngx_http_idem_stats_csp() != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_idem_stats_handler;

    return NGX_CONF_OK;
}


/*
 * The policy allows the page nothing but itself.  Its script and style are
 * inline, so they are allowed by their SHA-256.
 */

static ngx_int_t
ngx_http_idem_stats_csp(void)
{
    u_char  *p, script[64], style[64];

    if (ngx_http_idem_stats_policy.len) {
        return NGX_OK;
    }

    if (ngx_http_idem_stats_hash("<script>", "</script>", script)
            != NGX_OK
        || ngx_http_idem_stats_hash("<style>", "</style>", style)
            != NGX_OK)
    {
        return NGX_ERROR;
    }

    p = ngx_http_idem_stats_policy_data;

    ngx_http_idem_stats_policy.data = p;
    ngx_http_idem_stats_policy.len = ngx_sprintf(p,
        "default-src 'none'; script-src 'sha256-%s'; style-src 'sha256-%s'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'", script, style)
        - p;

    return NGX_OK;
}


/* the hash of the text between two tags of the page, in base64 */

static ngx_int_t
ngx_http_idem_stats_hash(const char *open, const char *close, u_char *text)
{
    u_char     *page, *start, *end;
    u_char      hash[NGX_HTTP_IDEM_HASH_LEN];
    ngx_str_t   src, dst;

    page = (u_char *) ngx_http_idem_stats_html;

    start = (u_char *) ngx_strstr(page, open);
    end = (u_char *) ngx_strstr(page, close);

    if (start == NULL || end == NULL) {
        return NGX_ERROR;
    }

    start += ngx_strlen(open);

    ngx_http_idem_digest_plain(hash, start, end - start);

    src.data = hash;
    src.len = sizeof(hash);
    dst.data = text;

    ngx_encode_base64(&dst, &src);
    text[dst.len] = '\0';

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_stats_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_str_t                   value;
    ngx_uint_t                  format;
    ngx_http_idem_text_t        t;
    ngx_http_idem_loc_conf_t   *conf;
    ngx_http_idem_main_conf_t  *mcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        ngx_str_set(&value, "GET, HEAD");
        (void) ngx_http_idem_add_header(r, "Allow", &value);

        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    ngx_http_idem_admin_text(r, &t);

    format = ngx_http_idem_stats_format(r, conf);

    ngx_str_set(&value, "no-store");

    if (ngx_http_idem_add_header(r, "Cache-Control", &value) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (format == NGX_HTTP_IDEM_STATS_HTML) {
        return ngx_http_idem_stats_page(r);
    }

    if (format == NGX_HTTP_IDEM_STATS_JSON) {
        ngx_http_idem_stats_json(&t, mcf,
              ngx_http_arg(r, (u_char *) "history", 7, &value) == NGX_OK);

    } else {
        t.type = "text/plain; version=0.0.4; charset=utf-8";
        ngx_http_idem_stats_prometheus(&t, mcf);
    }

    ngx_http_idem_scan(mcf);

    return ngx_http_idem_admin_send(r, NGX_HTTP_OK, &t);
}


static ngx_int_t
ngx_http_idem_stats_page(ngx_http_request_t *r)
{
    ngx_buf_t  *b;
    ngx_int_t   rc;
    ngx_str_t   page;

    b = ngx_calloc_buf(r->pool);

    if (b == NULL
        || ngx_http_idem_add_header(r, "Content-Security-Policy",
                                    &ngx_http_idem_stats_policy)
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    page.data = (u_char *) ngx_http_idem_stats_html;
    page.len = ngx_http_idem_stats_html_len;

    rc = ngx_http_idem_admin_header(r, NGX_HTTP_OK,
                                    "text/html; charset=utf-8", page.len);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_idem_output(r, b, &page);
}


static ngx_uint_t
ngx_http_idem_stats_format(ngx_http_request_t *r,
    ngx_http_idem_loc_conf_t *conf)
{
    ngx_int_t  format;
    ngx_str_t  value;

    if (conf->stats == NGX_HTTP_IDEM_STATS_PROMETHEUS
        || conf->stats == NGX_HTTP_IDEM_STATS_JSON)
    {
        return conf->stats;
    }

    if (ngx_http_arg(r, (u_char *) "format", 6, &value) == NGX_OK) {
        format = ngx_http_idem_conf_enum(ngx_http_idem_stats_formats, &value);

        if (format != NGX_ERROR) {
            return format;
        }
    }

    /* the page requests its data from the same location */

    if (conf->stats == NGX_HTTP_IDEM_STATS_HTML) {
        return conf->stats;
    }

    return ngx_http_idem_stats_accepted(r);
}


/*
 * The known format with the highest weight, and the first of those with equal
 * weights.  Clients that accept none of them get text, for example scrapers
 * and curl.
 */

static ngx_uint_t
ngx_http_idem_stats_accepted(ngx_http_request_t *r)
{
    size_t            len;
    u_char           *p, *last, *end, *q;
    ngx_int_t         weight, best;
    ngx_str_t         name = ngx_string("accept");
    ngx_uint_t        i, n, format;
    ngx_table_elt_t  *h;

    format = NGX_HTTP_IDEM_STATS_PROMETHEUS;

    h = ngx_http_idem_request_header(r, &name, &n);

    if (n == 0) {
        return format;
    }

    best = 0;
    last = h->value.data + h->value.len;

    for (p = h->value.data; p < last; p = end + 1) {

        end = ngx_strlchr(p, last, ',');
        end = end ? end : last;

        while (p < end && (*p == ' ' || *p == '\t')) {
            p++;
        }

        weight = 1000;

        q = ngx_strlchr(p, end, ';');
        q = q ? ngx_strlcasestrn(q, end, (u_char *) "q=", 1) : NULL;

        if (q && (q[-1] == ';' || q[-1] == ' ')) {
            q += 2;

            for (len = 0; q + len < end && q[len] > ' ' && q[len] != ';'; len++)
            {
                /* void */
            }

            weight = ngx_atofp(q, len, 3);
        }

        if (weight <= best) {
            continue;
        }

        for (i = 0; ngx_http_idem_stats_types[i].name.len; i++) {
            name = ngx_http_idem_stats_types[i].name;

            if ((size_t) (end - p) >= name.len
                && ngx_strncasecmp(p, name.data, name.len) == 0)
            {
                best = weight;
                format = ngx_http_idem_stats_types[i].value;
                break;
            }
        }
    }

    return format;
}


ngx_uint_t
ngx_http_idem_stats_first(ngx_http_idem_main_conf_t *mcf, ngx_uint_t i)
{
    ngx_uint_t               k;
    ngx_http_idem_store_t  **store;

    store = mcf->stores.elts;

    for (k = 0; k < i; k++) {
        if (store[k]->metrics == store[i]->metrics) {
            return 0;
        }
    }

    return 1;
}


/* prints a line or a part of one, up to the maximum length of a line */

void
ngx_http_idem_text(ngx_http_idem_text_t *t, const char *fmt, ...)
{
    u_char       *p;
    va_list       args;
    ngx_chain_t  *cl;

    if (t->buf == NULL
        || t->buf->end - t->buf->last < NGX_HTTP_IDEM_TEXT_LINE)
    {
        t->buf = ngx_create_temp_buf(t->pool, NGX_HTTP_IDEM_TEXT_SIZE);
        cl = ngx_alloc_chain_link(t->pool);

        if (t->buf == NULL || cl == NULL) {
            t->failed = 1;
            t->buf = NULL;
            return;
        }

        cl->buf = t->buf;
        cl->next = NULL;

        *t->last = cl;
        t->last = &cl->next;
    }

    p = t->buf->last;

    va_start(args, fmt);
    t->buf->last = ngx_vslprintf(p, p + NGX_HTTP_IDEM_TEXT_LINE, fmt, args);
    va_end(args);

    t->len += t->buf->last - p;
}
