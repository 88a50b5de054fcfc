
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The layers in the configuration: their directives, which are in the block
 * of the store itself, and their nesting.
 *
 * A store keeps its address and its name.  Its backend and conf move to a new
 * inner store, and those of the outermost layer take their place.  So every
 * pointer to the store leads to the layers.
 *
 * Called by idempotency_store; calls the zones, and adds shared memory for
 * the state of the layers.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/layers/ngx_http_idem_layers.h"


#define NGX_HTTP_IDEM_BREAKER_FAILS  5
#define NGX_HTTP_IDEM_BREAKER_RESET  60000
#define NGX_HTTP_IDEM_CACHE_TTL      30000
#define NGX_HTTP_IDEM_OUTBOX_SIZE    (8 * 1024 * 1024)


static char *ngx_http_idem_layers_breaker(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_layers_cache(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_layers_outbox(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_layers_time(ngx_conf_t *cf,
    ngx_str_t *value, size_t skip, ngx_msec_t *time);
static char *ngx_http_idem_layers_put(ngx_conf_t *cf,
    ngx_http_idem_store_t *store, ngx_http_idem_layer_t *layer,
    const ngx_http_idem_backend_t *backend);
static void ngx_http_idem_layers_forget(ngx_http_idem_store_t *store,
    u_char *id);


#define NGX_HTTP_IDEM_BREAKER_SYNTAX  "\"breaker [fails=5] [reset=60s]\""
#define NGX_HTTP_IDEM_CACHE_SYNTAX    "\"cache <zone>:<size> [ttl=30s]\""


ngx_http_idem_store_command_t  ngx_http_idem_layers_commands[] = {

    { { ngx_string("breaker"), NGX_CONF_ANY, ngx_http_idem_layers_breaker, 0,
        0, NULL },
      NGX_HTTP_IDEM_BREAKER_SYNTAX },

    { { ngx_string("cache"), NGX_CONF_TAKE12, ngx_http_idem_layers_cache, 0,
        0, NULL },
      NGX_HTTP_IDEM_CACHE_SYNTAX },

    { { ngx_string("outbox"), NGX_CONF_TAKE1, ngx_http_idem_layers_outbox, 0,
        0, NULL },
      "\"outbox <size>\"" },

    { ngx_null_command, NULL }
};


#define ngx_http_idem_layers_begins(value, text)                              \
    ((value)->len > sizeof(text) - 1                                          \
     && ngx_strncmp((value)->data, text, sizeof(text) - 1) == 0)


static char *
ngx_http_idem_layers_breaker(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_layers_t  *layers = conf;

    ngx_int_t                 n;
    ngx_str_t                *value;
    ngx_uint_t                i;
    ngx_http_idem_breaker_t  *b;

    if (layers->breaker) {
        return "is duplicate";
    }

    b = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_breaker_t));
    if (b == NULL) {
        return NGX_CONF_ERROR;
    }

    b->fails = NGX_HTTP_IDEM_BREAKER_FAILS;
    b->reset = NGX_HTTP_IDEM_BREAKER_RESET;

    layers->breaker = b;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_http_idem_layers_begins(&value[i], "fails=")) {
            n = ngx_atoi(value[i].data + 6, value[i].len - 6);

            if (n == NGX_ERROR || n == 0) {
                return ngx_http_idem_conf_invalid(cf, &value[i],
                                    "a number of failures, at least 1");
            }

            b->fails = n;
            continue;
        }

        if (ngx_http_idem_layers_begins(&value[i], "reset=")) {
            if (ngx_http_idem_layers_time(cf, &value[i], 6, &b->reset)
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        return ngx_http_idem_conf_invalid(cf, &value[i],
                                    "it is " NGX_HTTP_IDEM_BREAKER_SYNTAX);
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_layers_cache(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_layers_t  *layers = conf;

    ngx_str_t              *value;
    ngx_http_idem_cache_t  *cache;

    if (layers->cache) {
        return "is duplicate";
    }

    value = cf->args->elts;

    cache = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_cache_t));
    if (cache == NULL) {
        return NGX_CONF_ERROR;
    }

    cache->ttl = NGX_HTTP_IDEM_CACHE_TTL;
    cache->z.full = NGX_HTTP_IDEM_FULL_FORGET;

    layers->cache = cache;

    if (cf->args->nelts == 3) {

        if (!ngx_http_idem_layers_begins(&value[2], "ttl=")) {
            return ngx_http_idem_conf_invalid(cf, &value[2],
                                        "it is " NGX_HTTP_IDEM_CACHE_SYNTAX);
        }

        if (ngx_http_idem_layers_time(cf, &value[2], 4, &cache->ttl)
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return ngx_http_idem_zone_parse(cf, &value[1], &cache->z);
}


static char *
ngx_http_idem_layers_outbox(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_layers_t  *layers = conf;

    ngx_str_t  *value;

    if (layers->outbox.z.size) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_str_set(&layers->outbox.z.name, "outbox");

    return ngx_http_idem_zone_size(cf, &value[1], &layers->outbox.z);
}


static char *
ngx_http_idem_layers_time(ngx_conf_t *cf, ngx_str_t *value,
    size_t skip, ngx_msec_t *time)
{
    ngx_int_t  n;
    ngx_str_t  s;

    s.data = value->data + skip;
    s.len = value->len - skip;

    n = ngx_parse_time(&s, 0);

    if (n == NGX_ERROR || n == 0) {
        return ngx_http_idem_conf_invalid(cf, value,
                                          "a time above 0, for example 30s");
    }

    *time = (ngx_msec_t) n;

    return NGX_CONF_OK;
}


/* from the innermost to the outermost */

char *
ngx_http_idem_layers_wrap(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    ngx_http_idem_cache_t    *cache;
    ngx_http_idem_layers_t   *layers;
    ngx_http_idem_outbox_t   *o;
    ngx_http_idem_breaker_t  *b;

    if (!store->backend->remote) {
        return NGX_CONF_OK;
    }

    layers = store->layers;

    store->forget = ngx_http_idem_layers_forget;
    store->copies = (layers->cache != NULL);

    b = layers->breaker;

    if (b && (ngx_http_idem_shared_add(cf, &b->shared,
                                  sizeof(ngx_http_idem_breaker_sh_t)
                                  * NGX_HTTP_IDEM_BREAKERS,
                                  "idempotency_breaker", &store->name, NULL)
              != NGX_CONF_OK
              || ngx_http_idem_layers_put(cf, store, &b->layer,
                                       &ngx_http_idem_breaker_backend)
                 != NGX_CONF_OK))
    {
        return NGX_CONF_ERROR;
    }

    o = &layers->outbox;

    if (o->z.size == 0) {
        o->z.size = NGX_HTTP_IDEM_OUTBOX_SIZE;
    }

    o->z.full = NGX_HTTP_IDEM_FULL_REFUSE;

    if (ngx_http_idem_shared_name(cf, &o->z.name,
                                  NGX_HTTP_IDEM_OUTBOX_PREFIX,
                                  &store->name, NULL)
        != NGX_OK
        || ngx_http_idem_zone_add(cf, &o->z) != NGX_CONF_OK
        || ngx_http_idem_shared_add(cf, &o->shared,
                                   sizeof(ngx_http_idem_outbox_sh_t),
                                   "idempotency_retries", &store->name, NULL)
           != NGX_CONF_OK
        || ngx_http_idem_layers_put(cf, store, &o->layer,
                                        &ngx_http_idem_outbox_backend)
           != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    cache = layers->cache;

    if (cache == NULL) {
        return NGX_CONF_OK;
    }

    if (ngx_http_idem_zone_add(cf, &cache->z) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_layers_put(cf, store, &cache->layer,
                                    &ngx_http_idem_cache_backend);
}


static char *
ngx_http_idem_layers_put(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    ngx_http_idem_layer_t *layer, const ngx_http_idem_backend_t *backend)
{
    layer->inner = ngx_palloc(cf->pool, sizeof(ngx_http_idem_store_t));
    if (layer->inner == NULL) {
        return NGX_CONF_ERROR;
    }

    /* metrics are those of the outermost store only */

    *layer->inner = *store;
    layer->inner->metrics = NULL;

    layer->named = store;

    store->backend = backend;
    store->conf = layer;

    return NGX_CONF_OK;
}


/* store->forget: the record was removed, possibly by another host */

static void
ngx_http_idem_layers_forget(ngx_http_idem_store_t *store, u_char *id)
{
    if (store->layers->cache) {
        ngx_http_idem_cache_drop(store->layers->cache, id);
    }

    ngx_http_idem_outbox_doubt(&store->layers->outbox, id);
}


ngx_http_idem_store_t *
ngx_http_idem_layer_innermost(ngx_http_idem_store_t *store)
{
    while (store->backend == &ngx_http_idem_cache_backend
           || store->backend == &ngx_http_idem_outbox_backend
           || store->backend == &ngx_http_idem_breaker_backend)
    {
        store = ((ngx_http_idem_layer_t *) store->conf)->inner;
    }

    return store;
}
