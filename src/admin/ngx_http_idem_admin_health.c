
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * GET health: asks each store for a record that does not exist.  The status
 * is 200 if all stores reply, otherwise 503.  The number of commits that wait
 * in a store's outbox is reported, too.
 *
 * Called by the admin handler; calls the stores one after the other.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "store/layers/ngx_http_idem_layers.h"


typedef struct {
    ngx_http_idem_job_t        job;
    ngx_http_idem_text_t       text;
    ngx_http_idem_list_t       list;
    ngx_uint_t                 n;               /* index of the store       */
    ngx_uint_t                 failed;
} ngx_http_idem_health_t;


static void ngx_http_idem_health_run(ngx_http_idem_health_t *h);
static ngx_int_t ngx_http_idem_health_submit(ngx_http_idem_health_t *h,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_health_print(ngx_http_idem_health_t *h,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_health_handler(ngx_http_idem_op_t *op);


ngx_int_t
ngx_http_idem_admin_health(ngx_http_request_t *r)
{
    ngx_http_idem_health_t  *h;

    h = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_health_t), NULL);
    if (h == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idem_admin_text(r, &h->text);

    r->main->count++;
    r->read_event_handler = ngx_http_test_reading;

    ngx_http_idem_health_run(h);

    return NGX_DONE;
}


static void
ngx_http_idem_health_run(ngx_http_idem_health_t *h)
{
    ngx_int_t                    rc;
    ngx_http_request_t          *r;
    ngx_http_idem_store_t      **store;
    ngx_http_idem_main_conf_t   *mcf;

    r = h->job.request;

    mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    store = mcf->stores.elts;

    while (h->n < mcf->stores.nelts) {

        if (ngx_http_idem_health_submit(h, store[h->n]) == NGX_AGAIN) {
            return;
        }

        ngx_http_idem_health_print(h, store[h->n]);
    }

    ngx_http_idem_text(&h->text, "],\"status\":\"%s\"}\n",
                       h->failed ? "failing" : "ok");

    rc = ngx_http_idem_admin_send(r, h->failed ? NGX_HTTP_SERVICE_UNAVAILABLE
                                               : NGX_HTTP_OK, &h->text);

    ngx_http_finalize_request(r, rc);
}


static ngx_int_t
ngx_http_idem_health_submit(ngx_http_idem_health_t *h,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_op_t  *op;

    op = &h->job.op;

    ngx_memzero(op, sizeof(ngx_http_idem_op_t));

    op->kind = NGX_HTTP_IDEM_OP_GET;
    op->store = store;
    op->list = &h->list;
    op->pool = h->job.request->pool;
    op->log = h->job.request->connection->log;
    op->handler = ngx_http_idem_health_handler;
    op->data = h;

    if (ngx_array_init(&h->list.entries, op->pool, 1,
                       sizeof(ngx_http_idem_entry_t))
        != NGX_OK)
    {
        op->result = NGX_HTTP_IDEM_ERROR;
        op->error = "no memory";
        return NGX_OK;
    }

    return ngx_http_idem_store_submit(op);
}


static void
ngx_http_idem_health_print(ngx_http_idem_health_t *h,
    ngx_http_idem_store_t *store)
{
    ngx_uint_t  ok, asked;

    ok = (h->job.op.result != NGX_HTTP_IDEM_ERROR || h->job.op.bad_record);
    asked = (h->job.op.error != ngx_http_idem_no_admin);

    h->failed += (asked && !ok);

    ngx_http_idem_text(&h->text, "%s{\"name\":",
                       h->n ? "," : "{\"stores\":[");

    ngx_http_idem_admin_quoted(&h->text, &store->name);

    ngx_http_idem_text(&h->text, ",\"ok\":%s,\"duration_ms\":%M",
                       ok ? "true" : asked ? "false" : "null",
                       (ngx_msec_t) (ngx_current_msec - h->job.op.start));

    if (!ok && h->job.op.error) {
        ngx_http_idem_admin_word(&h->text, "error", h->job.op.error);
    }

    if (store->layers) {
        ngx_http_idem_text(&h->text, ",\"outbox_waiting\":%ui",
                 ngx_http_idem_outbox_waiting(&store->layers->outbox));
    }

    ngx_http_idem_text(&h->text, "}");

    h->n++;
}


static void
ngx_http_idem_health_handler(ngx_http_idem_op_t *op)
{
    ngx_connection_t        *c;
    ngx_http_idem_health_t  *h;

    h = op->data;
    c = h->job.request->connection;

    ngx_http_idem_health_print(h, op->store);
    ngx_http_idem_health_run(h);

    /* not in ..._run(): the first may end a request whose handler runs */

    ngx_http_run_posted_requests(c);
}
