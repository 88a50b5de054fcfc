
/*
 * idempotency_stats: the figures, as a page, as JSON, or for Prometheus.
 *
 * Which one is said by the directive, by the argument "format", or by what
 * the client accepts.  The page is a file of its own, embedded at build; it
 * has no outside asset, and asks this same address for JSON.
 *
 * A content handler; reads what the metrics keep.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"
#include "observe/ngx_http_idempotency_stats.h"


#define NGX_HTTP_IDEMPOTENCY_TEXT_SIZE  16384
#define NGX_HTTP_IDEMPOTENCY_TEXT_LINE  1024


static ngx_int_t ngx_http_idempotency_stats_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_idempotency_stats_format(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_uint_t ngx_http_idempotency_stats_accepts(ngx_http_request_t *r,
    const char *type);


const char  *ngx_http_idempotency_result_names[] = {
    "ok", "acquired", "found", "lost", "full", "error"
};

const char  *ngx_http_idempotency_waited_names[] = {
    "answered", "acquired", "timeout", "gone"
};

const char  *ngx_http_idempotency_state_names[] = {
    "", "in_progress", "completed", "unusable"
};


typedef enum {
    NGX_HTTP_IDEMPOTENCY_STATS_BY_ACCEPT = 0,
    NGX_HTTP_IDEMPOTENCY_STATS_PROMETHEUS,
    NGX_HTTP_IDEMPOTENCY_STATS_JSON
} ngx_http_idempotency_stats_e;


/* idempotency_stats [prometheus | json] */

char *
ngx_http_idempotency_conf_stats(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    value = cf->args->elts;

    if (cf->args->nelts == 1) {
        ilcf->stats = NGX_HTTP_IDEMPOTENCY_STATS_BY_ACCEPT;

    } else if (ngx_http_idempotency_conf_is(&value[1], "prometheus")) {
        ilcf->stats = NGX_HTTP_IDEMPOTENCY_STATS_PROMETHEUS;

    } else if (ngx_http_idempotency_conf_is(&value[1], "json")) {
        ilcf->stats = NGX_HTTP_IDEMPOTENCY_STATS_JSON;

    } else {
        return ngx_http_idempotency_conf_invalid(cf, &value[1],
                             "it is \"prometheus\" or \"json\", or nothing: "
                             "then it is what the client accepts");
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_idempotency_stats_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_idempotency_stats_handler(ngx_http_request_t *r)
{
    ngx_int_t                          rc;
    ngx_uint_t                         format;
    ngx_http_idempotency_text_t        t;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *mcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    ngx_memzero(&t, sizeof(ngx_http_idempotency_text_t));

    t.pool = r->pool;
    t.last = &t.first;

    format = ngx_http_idempotency_stats_format(r, conf);

    if (format == NGX_HTTP_IDEMPOTENCY_STATS_JSON) {
        ngx_str_set(&r->headers_out.content_type, "application/json");
        ngx_http_idempotency_stats_json(&t, mcf);

    } else {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4; charset=utf-8");
        ngx_http_idempotency_stats_prometheus(&t, mcf);
    }

    if (t.failed || t.buf == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    t.buf->last_buf = (r == r->main) ? 1 : 0;
    t.buf->last_in_chain = 1;

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = t.len;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, t.first);
}


static ngx_uint_t
ngx_http_idempotency_stats_format(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_str_t  value;

    if (conf->stats != NGX_HTTP_IDEMPOTENCY_STATS_BY_ACCEPT) {
        return conf->stats;
    }

    if (ngx_http_arg(r, (u_char *) "format", 6, &value) == NGX_OK) {
        if (ngx_http_idempotency_conf_is(&value, "json")) {
            return NGX_HTTP_IDEMPOTENCY_STATS_JSON;
        }

        return NGX_HTTP_IDEMPOTENCY_STATS_PROMETHEUS;
    }

    if (ngx_http_idempotency_stats_accepts(r, "application/json")) {
        return NGX_HTTP_IDEMPOTENCY_STATS_JSON;
    }

    return NGX_HTTP_IDEMPOTENCY_STATS_PROMETHEUS;
}


static ngx_uint_t
ngx_http_idempotency_stats_accepts(ngx_http_request_t *r, const char *type)
{
    ngx_str_t         name = ngx_string("accept");
    ngx_uint_t        n;
    ngx_table_elt_t  *h;

    h = ngx_http_idempotency_request_header(r, &name, &n);

    return n && ngx_strcasestrn(h->value.data, (char *) type,
                                ngx_strlen(type) - 1)
                != NULL;
}


/* a line or a part of one; at most so long as a line may be */

void
ngx_http_idempotency_text(ngx_http_idempotency_text_t *t, const char *fmt, ...)
{
    u_char       *p;
    va_list       args;
    ngx_chain_t  *cl;

    if (t->buf == NULL
        || t->buf->end - t->buf->last < NGX_HTTP_IDEMPOTENCY_TEXT_LINE)
    {
        t->buf = ngx_create_temp_buf(t->pool, NGX_HTTP_IDEMPOTENCY_TEXT_SIZE);
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
    t->buf->last = ngx_vslprintf(p, p + NGX_HTTP_IDEMPOTENCY_TEXT_LINE, fmt,
                                 args);
    va_end(args);

    t->len += t->buf->last - p;
}
