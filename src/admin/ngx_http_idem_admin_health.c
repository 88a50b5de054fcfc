
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * GET health: asks each store, or the one that "store" names, for a record
 * that does not exist.  The status is 200 if all of them reply, otherwise 503.
 * The number of commits that wait in a store's outbox is reported, too.
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
    ngx_http_idem_store_t     *only;            /* NULL: all stores         */
    ngx_uint_t                 n;               /* index of the store       */
    ngx_uint_t                 told;            /* stores in the response   */
    ngx_uint_t                 failed;
} ngx_http_idem_health_t;


static ngx_int_t ngx_http_idem_health_run(ngx_http_idem_job_t *job);
static void ngx_http_idem_health_print(ngx_http_idem_health_t *h,
    ngx_http_idem_store_t *store);


ngx_int_t
ngx_http_idem_admin_health(ngx_http_request_t *r, ngx_str_t *args)
{
    ngx_str_t                  *name;
    ngx_http_idem_store_t      *store;
    ngx_http_idem_health_t     *h;
    ngx_http_idem_main_conf_t  *mcf;

    store = NULL;
    name = &args[NGX_HTTP_IDEM_ARG_STORE];

    if (name->data) {
        mcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
        store = ngx_http_idem_find_store(mcf, name);

        if (store == NULL) {
            return ngx_http_idem_admin_no_store(r);
        }
    }

    h = ngx_http_idem_admin_job(r, sizeof(ngx_http_idem_health_t),
                                ngx_http_idem_health_run);
    if (h == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    h->only = store;

    ngx_http_idem_admin_text(r, &h->text);

    return ngx_http_idem_admin_start(h);
}


static ngx_int_t
ngx_http_idem_health_run(ngx_http_idem_job_t *job)
{
    ngx_int_t                    rc;
    ngx_http_idem_store_t      **store;
    ngx_http_idem_health_t      *h;
    ngx_http_idem_main_conf_t   *mcf;

    h = (ngx_http_idem_health_t *) job;

    mcf = ngx_http_get_module_main_conf(job->request,
                                        ngx_http_idempotency_module);
    store = mcf->stores.elts;

    for ( /* void */ ; h->n < mcf->stores.nelts; h->n++) {

        if (h->only && store[h->n] != h->only) {
            continue;
        }

        if (!job->asked) {
            rc = ngx_http_idem_admin_ask(job, store[h->n],
                                         NGX_HTTP_IDEM_OP_GET, NULL, &h->list,
                                         NULL);
            if (rc != NGX_OK) {
                return rc;
            }
        }

        job->asked = 0;

        ngx_http_idem_health_print(h, store[h->n]);
    }

    ngx_http_idem_text(&h->text, "],\"status\":\"%s\"}\n",
                       h->failed ? "failing" : "ok");

    return ngx_http_idem_admin_send(job->request,
                                    h->failed ? NGX_HTTP_SERVICE_UNAVAILABLE
                                              : NGX_HTTP_OK, &h->text);
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
                       h->told++ ? "," : "{\"stores\":[");

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
}
