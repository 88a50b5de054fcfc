
/*
 * The fallback, as locations name it: "idempotency <store> fallback=<store>".
 *
 * Called while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/layers/ngx_http_idem_layers.h"


/*
 * Neither of the two need be declared yet; locations that name the same two
 * have the same store.
 */

ngx_http_idem_store_t *
ngx_http_idem_fallback(ngx_conf_t *cf, ngx_array_t *all,
    ngx_http_idem_store_t *primary, ngx_http_idem_store_t *ledger)
{
    ngx_uint_t                  i;
    ngx_http_idem_fallback_t   *f, **p;

    p = all->elts;

    for (i = 0; i < all->nelts; i++) {
        if (p[i]->declared == primary && p[i]->ledger == ledger) {
            return &p[i]->store;
        }
    }

    f = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_fallback_t));
    if (f == NULL) {
        return NULL;
    }

    p = ngx_array_push(all);
    if (p == NULL) {
        return NULL;
    }

    *p = f;

    f->store.name = primary->name;
    f->store.backend = &ngx_http_idem_fallback_backend;
    f->store.conf = f;
    f->store.file = cf->conf_file->file.name.data;
    f->store.line = cf->conf_file->line;

    f->declared = primary;
    f->ledger = ledger;

    return &f->store;
}


/* all stores are there, and their layers around them */

char *
ngx_http_idem_fallback_init(ngx_conf_t *cf, ngx_array_t *all)
{
    ngx_uint_t                  i;
    ngx_http_idem_fallback_t   *f, **p;

    p = all->elts;

    for (i = 0; i < all->nelts; i++) {
        f = p[i];

        if (!f->declared->backend->remote) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "store \"%V\" can't have a fallback in %s:%ui: its "
                          "records are in this nginx itself, and it can't be "
                          "away", &f->declared->name,
                          f->store.file, f->store.line);
            return NGX_CONF_ERROR;
        }

        f->primary = *f->declared;
        f->primary.metrics = NULL;

        if (ngx_http_idem_shared_add(cf, &f->shared,
                                sizeof(ngx_http_idem_fallback_sh_t),
                                "idempotency_fallback",
                                &f->declared->name, &f->ledger->name)
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


void
ngx_http_idem_fallback_bind(ngx_array_t *all)
{
    ngx_uint_t                  i;
    ngx_http_idem_fallback_t  **p;

    p = all->elts;

    for (i = 0; i < all->nelts; i++) {
        p[i]->store.metrics = p[i]->declared->metrics;
    }
}
