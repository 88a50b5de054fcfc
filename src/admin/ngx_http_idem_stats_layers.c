
/*
 * The figures of what stands around a store, and of what it consists of: the
 * state of its breaker, what its outbox still has to deliver, its nodes.
 *
 * Called by the two writers of the status endpoint.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_stats.h"
#include "store/layers/ngx_http_idem_layers.h"


static void ngx_http_idem_stats_prometheus_nodes(
    ngx_http_idem_text_t *t, ngx_http_idem_main_conf_t *mcf);
static ngx_http_idem_node_figures_t *ngx_http_idem_stats_node(
    ngx_http_idem_main_conf_t *mcf, ngx_uint_t i, ngx_uint_t place);
static void ngx_http_idem_stats_json_nodes(
    ngx_http_idem_text_t *t, ngx_http_idem_store_t *store);


static const char  *ngx_http_idem_breaker_names[] = {
    "closed", "open", "half-open"
};


static ngx_http_idem_outbox_figures_t *
ngx_http_idem_outbox_figures(ngx_http_idem_store_t *store,
    ngx_uint_t *waiting)
{
    ngx_http_idem_outbox_t     *o;
    ngx_http_idem_outbox_sh_t  *sh;

    if (store->layers == NULL) {
        return NULL;
    }

    o = &store->layers->outbox;
    sh = o->shared.data;

    *waiting = ngx_http_idem_outbox_waiting(o);

    return &sh->figures;
}


/* 0 closed, 1 open, 2 half open; nothing for a store without a breaker */

void
ngx_http_idem_stats_prometheus_layers(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf)
{
    ngx_int_t                        state;
    ngx_uint_t                       i, n, waiting;
    ngx_http_idem_store_t          **store;
    ngx_http_idem_outbox_figures_t  *f;

    store = mcf->stores.elts;
    n = mcf->stores.nelts;

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_breaker_state The breaker of a store: "
        "0 closed, 1 open, 2 half open.\n"
        "# TYPE nginx_idempotency_breaker_state gauge\n");

    for (i = 0; i < n; i++) {
        state = ngx_http_idem_breaker_state(store[i], 0);

        if (state >= 0 && ngx_http_idem_stats_first(mcf, i)) {
            ngx_http_idem_text(t,
                "nginx_idempotency_breaker_state{store=\"%*s\"} %i\n",
                store[i]->metrics->len, store[i]->metrics->name, state);
        }
    }

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_outbox_records Commits that wait for the "
        "store to come back.\n"
        "# TYPE nginx_idempotency_outbox_records gauge\n");

    for (i = 0; i < n; i++) {
        if (ngx_http_idem_outbox_figures(store[i], &waiting)
            && ngx_http_idem_stats_first(mcf, i))
        {
            ngx_http_idem_text(t,
                "nginx_idempotency_outbox_records{store=\"%*s\"} %ui\n",
                store[i]->metrics->len, store[i]->metrics->name, waiting);
        }
    }

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_outbox_total Commits that the outbox took, "
        "by what became of them.\n"
        "# TYPE nginx_idempotency_outbox_total counter\n");

    for (i = 0; i < n; i++) {
        f = ngx_http_idem_outbox_figures(store[i], &waiting);

        if (f == NULL || !ngx_http_idem_stats_first(mcf, i)) {
            continue;
        }

        ngx_http_idem_text(t,
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

    ngx_http_idem_stats_prometheus_nodes(t, mcf);
}


/* nothing for a store that is one server: that has its figures already */

static void
ngx_http_idem_stats_prometheus_nodes(ngx_http_idem_text_t *t,
    ngx_http_idem_main_conf_t *mcf)
{
    ngx_int_t                  state;
    ngx_uint_t                 i, k, place;
    ngx_http_idem_store_t    **store;
    ngx_http_idem_node_figures_t   *node;

    store = mcf->stores.elts;

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_node_operations_total Operations by the "
        "node of a store that was asked.\n"
        "# TYPE nginx_idempotency_node_operations_total counter\n");

    for (i = 0; i < mcf->stores.nelts; i++) {
        for (place = 1; place <= NGX_HTTP_IDEM_NODES_MAX; place++) {

            node = ngx_http_idem_stats_node(mcf, i, place);

            for (k = 0; node && k < NGX_HTTP_IDEM_NODE_N; k++) {
                ngx_http_idem_text(t,
                    "nginx_idempotency_node_operations_total{store=\"%*s\","
                    "node=\"%*s\",result=\"%s\"} %uA\n",
                    store[i]->metrics->len, store[i]->metrics->name,
                    node->len, node->name,
                    ngx_http_idem_node_counts[k], node->counts[k]);
            }
        }
    }

    ngx_http_idem_text(t,
        "# HELP nginx_idempotency_node_breaker_state The breaker of a node: "
        "0 closed, 1 open, 2 half open.\n"
        "# TYPE nginx_idempotency_node_breaker_state gauge\n");

    for (i = 0; i < mcf->stores.nelts; i++) {
        for (place = 1; place <= NGX_HTTP_IDEM_NODES_MAX; place++) {

            node = ngx_http_idem_stats_node(mcf, i, place);

            if (node == NULL) {
                continue;
            }

            state = ngx_http_idem_breaker_state(store[i], place);

            if (state >= 0) {
                ngx_http_idem_text(t,
                    "nginx_idempotency_node_breaker_state{store=\"%*s\","
                    "node=\"%*s\"} %i\n",
                    store[i]->metrics->len, store[i]->metrics->name,
                    node->len, node->name, state);
            }
        }
    }
}


static ngx_http_idem_node_figures_t *
ngx_http_idem_stats_node(ngx_http_idem_main_conf_t *mcf,
    ngx_uint_t i, ngx_uint_t place)
{
    ngx_http_idem_store_t  **store;

    store = mcf->stores.elts;

    if (store[i]->nodes == NULL || !ngx_http_idem_stats_first(mcf, i)) {
        return NULL;
    }

    return ngx_http_idem_nodes_at(store[i]->nodes, place);
}


void
ngx_http_idem_stats_json_layers(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store)
{
    ngx_int_t                        state;
    ngx_uint_t                       waiting;
    ngx_http_idem_outbox_figures_t  *f;

    state = ngx_http_idem_breaker_state(store, 0);

    if (state >= 0) {
        ngx_http_idem_text(t, ",\"breaker\":\"%s\"",
                           ngx_http_idem_breaker_names[state]);
    }

    f = ngx_http_idem_outbox_figures(store, &waiting);

    if (f) {
        ngx_http_idem_text(t,
            ",\"outbox\":{\"waiting\":%ui,\"unacknowledged\":%ui,"
            "\"kept\":%uA,\"landed\":%uA,\"lost\":%uA,\"dropped\":%uA}",
            waiting,
            ngx_http_idem_outbox_sh(&store->layers->outbox)
                ->unacknowledged,
            f->kept, f->landed, f->lost, f->dropped);
    }

    if (store->nodes) {
        ngx_http_idem_stats_json_nodes(t, store);
    }
}


static void
ngx_http_idem_stats_json_nodes(ngx_http_idem_text_t *t,
    ngx_http_idem_store_t *store)
{
    ngx_int_t                        state;
    ngx_uint_t                       k, place, some;
    ngx_http_idem_node_figures_t  *node;

    some = 0;

    ngx_http_idem_text(t, ",\"nodes\":[");

    for (place = 1; place <= NGX_HTTP_IDEM_NODES_MAX; place++) {

        node = ngx_http_idem_nodes_at(store->nodes, place);

        if (node == NULL) {
            continue;
        }

        ngx_http_idem_text(t, "%s{\"name\":\"%*s\"",
                           some ? "," : "", node->len, node->name);
        some = 1;

        for (k = 0; k < NGX_HTTP_IDEM_NODE_N; k++) {
            ngx_http_idem_text(t, ",\"%s\":%uA",
                               ngx_http_idem_node_counts[k],
                               node->counts[k]);
        }

        state = ngx_http_idem_breaker_state(store, place);

        if (state >= 0) {
            ngx_http_idem_text(t, ",\"breaker\":\"%s\"",
                                   ngx_http_idem_breaker_names[state]);
        }

        ngx_http_idem_text(t, "}");
    }

    ngx_http_idem_text(t, "]");
}
