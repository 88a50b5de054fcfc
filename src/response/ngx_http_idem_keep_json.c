
/*
 * Whether a response is kept, by what its JSON says (idempotency_keep_json):
 * an API that answers 200 and means an error.
 *
 * Called when a response that its status would keep is complete.  One that is
 * no JSON, or that the application encoded, is kept: it says nothing else.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "request/ngx_http_idem_request.h"
#include "response/ngx_http_idem_response.h"


static void *ngx_http_idem_keep_alloc(void *data, size_t size);
static void ngx_http_idem_keep_free(void *data, void *p);
static ngx_uint_t ngx_http_idem_keep_holds(ngx_http_idem_keep_t *rule,
    const ngx_http_idem_json_member_t *m);


ngx_uint_t
ngx_http_idem_json_kept(ngx_http_request_t *r, ngx_http_idem_ctx_t *ctx)
{
    u_char                   digest[NGX_HTTP_IDEM_CANON_DIGEST_LEN];
    ngx_int_t                rc;
    ngx_uint_t               i, kept;
    ngx_chain_t             *cl;
    ngx_http_idem_keep_t    *rule;
    ngx_http_idem_json_t    *json;
    ngx_http_idem_canon_mem_t  mem;

    if (r->headers_out.content_encoding
        && r->headers_out.content_encoding->value.len)
    {
        return 1;
    }

    mem.alloc = ngx_http_idem_keep_alloc;
    mem.free = ngx_http_idem_keep_free;
    mem.data = r->connection->log;

    json = ngx_http_idem_json_create(&ctx->conf->keep_options, &mem);
    if (json == NULL) {
        return 1;
    }

    rc = NGX_OK;

    for (cl = ctx->capture.held; cl && rc == NGX_OK; cl = cl->next) {
        rc = ngx_http_idem_json_feed(json, cl->buf->pos,
                                     cl->buf->last - cl->buf->pos);
    }

    kept = 1;

    if (ngx_http_idem_json_done(json, digest) == NGX_OK) {
        rule = ctx->conf->keep_json->elts;

        for (i = 0; i < ctx->conf->keep_json->nelts && kept; i++) {
            kept = ngx_http_idem_keep_holds(&rule[i],
                                        ngx_http_idem_json_member(json, i));
        }
    }

    ngx_http_idem_json_destroy(json);

    return kept;
}


/* "*" is any value, also an object or an array */

static ngx_uint_t
ngx_http_idem_keep_holds(ngx_http_idem_keep_t *rule,
    const ngx_http_idem_json_member_t *m)
{
    ngx_uint_t  same;

    if (rule->value.len == 1 && rule->value.data[0] == '*') {
        same = (m->count != 0);

    } else {
        same = m->count == 1
               && m->kind != NGX_HTTP_IDEM_JSON_ARRAY
               && m->kind != NGX_HTTP_IDEM_JSON_OBJECT
               && m->value.len == rule->value.len
               && (m->value.len == 0
                   || ngx_memcmp(m->value.data, rule->value.data,
                                 m->value.len)
                      == 0);
    }

    return rule->negated ? !same : same;
}


static void *
ngx_http_idem_keep_alloc(void *data, size_t size)
{
    return ngx_alloc(size, data);
}


static void
ngx_http_idem_keep_free(void *data, void *p)
{
    ngx_free(p);
}
