
/*
 * The figures of what stands around a store: the state of its breaker, and
 * what its outbox still has to deliver.
 *
 * Called by the two writers of the status endpoint.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "core/ngx_http_idempotency.h"
#include "observe/ngx_http_idempotency_stats.h"
#include "store/layers/ngx_http_idempotency_layers.h"


static const char  *ngx_http_idempotency_breaker_names[] = {
    "closed", "half-open", "open"
};


static ngx_http_idempotency_outbox_figures_t *
ngx_http_idempotency_outbox_figures(ngx_http_idempotency_store_t *store,
    ngx_uint_t *waiting)
{
    ngx_http_idempotency_outbox_t     *o;
    ngx_http_idempotency_outbox_sh_t  *sh;

    if (store->layers == NULL) {
        return NULL;
    }

    o = &store->layers->outbox;
    sh = o->shared.data;

    *waiting = o->z.zone->records;

    return &sh->figures;
}


/* 0 closed, 1 half open, 2 open; nothing for a store without a breaker */

void
ngx_http_idempotency_stats_prometheus_layers(ngx_http_idempotency_text_t *t,
    ngx_http_idempotency_main_conf_t *mcf)
{
    ngx_int_t                               state;
    ngx_uint_t                              i, n, waiting;
    ngx_http_idempotency_store_t          **store;
    ngx_http_idempotency_outbox_figures_t  *f;

    store = mcf->stores.elts;
    n = mcf->stores.nelts;

    ngx_http_idempotency_text(t,
        "# HELP nginx_idempotency_breaker_state The breaker of a store: "
        "0 closed, 1 half open, 2 open.\n"
        "# TYPE nginx_idempotency_breaker_state gauge\n");

    for (i = 0; i < n; i++) {
        state = ngx_http_idempotency_breaker_state(store[i]);

        if (state >= 0) {
            ngx_http_idempotency_text(t,
                "nginx_idempotency_breaker_state{store=\"%*s\"} %i\n",
                store[i]->metrics->len, store[i]->metrics->name, state);
        }
    }

    ngx_http_idempotency_text(t,
        "# HELP nginx_idempotency_outbox_records Commits that wait for the "
        "store to come back.\n"
        "# TYPE nginx_idempotency_outbox_records gauge\n");

    for (i = 0; i < n; i++) {
        if (ngx_http_idempotency_outbox_figures(store[i], &waiting)) {
            ngx_http_idempotency_text(t,
                "nginx_idempotency_outbox_records{store=\"%*s\"} %ui\n",
                store[i]->metrics->len, store[i]->metrics->name, waiting);
        }
    }

    ngx_http_idempotency_text(t,
        "# HELP nginx_idempotency_outbox_total Commits that the outbox took, "
        "by what became of them.\n"
        "# TYPE nginx_idempotency_outbox_total counter\n");

    for (i = 0; i < n; i++) {
        f = ngx_http_idempotency_outbox_figures(store[i], &waiting);

        if (f == NULL) {
            continue;
        }

        ngx_http_idempotency_text(t,
            "nginx_idempotency_outbox_total{store=\"%*s\",result=\"kept\"} "
            "%uA\n"
            "nginx_idempotency_outbox_total{store=\"%*s\",result=\"landed\"} "
            "%uA\n"
            "nginx_idempotency_outbox_total{store=\"%*s\",result=\"lost\"} "
            "%uA\n"
            "nginx_idempotency_outbox_total{store=\"%*s\",result=\"dropped\"} "
            "%uA\n",
            store[i]->metrics->len, store[i]->metrics->name, f->kept,
            store[i]->metrics->len, store[i]->metrics->name, f->landed,
            store[i]->metrics->len, store[i]->metrics->name, f->lost,
            store[i]->metrics->len, store[i]->metrics->name, f->dropped);
    }
}


void
ngx_http_idempotency_stats_json_layers(ngx_http_idempotency_text_t *t,
    ngx_http_idempotency_store_t *store)
{
    ngx_int_t                               state;
    ngx_uint_t                              waiting;
    ngx_http_idempotency_outbox_figures_t  *f;

    state = ngx_http_idempotency_breaker_state(store);

    if (state >= 0) {
        ngx_http_idempotency_text(t, ",\"breaker\":\"%s\"",
                                  ngx_http_idempotency_breaker_names[state]);
    }

    f = ngx_http_idempotency_outbox_figures(store, &waiting);

    if (f) {
        ngx_http_idempotency_text(t,
            ",\"outbox\":{\"waiting\":%ui,\"kept\":%uA,\"landed\":%uA,"
            "\"lost\":%uA,\"dropped\":%uA}",
            waiting, f->kept, f->landed, f->lost, f->dropped);
    }
}
