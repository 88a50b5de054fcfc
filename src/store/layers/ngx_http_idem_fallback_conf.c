
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The configuration of the fallback: "idempotency <store> fallback=<store>".
 *
 * Called while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_http_idem.h"
#include "store/layers/ngx_http_idem_layers.h"
#include "store/zone/ngx_http_idem_zone.h"


#define NGX_HTTP_IDEM_FALLBACK_PREFIX  "idempotency_fallback"


/*
 * The two stores may be declared later.  Locations that name the same two
 * share one combined store.
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


/* called after all stores have their layers */

char *
ngx_http_idem_fallback_init(ngx_conf_t *cf, ngx_array_t *all)
{
    ngx_uint_t                  i;
    ngx_http_idem_fallback_t   *f, **p;

    p = all->elts;

    for (i = 0; i < all->nelts; i++) {
        f = p[i];

        if (!f->declared->backend->remote) {
            ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                          "the fallback of store \"%V\" in %s:%ui is never "
                          "asked: the records of that store are in this nginx "
                          "itself, and it can't be away", &f->declared->name,
                          f->store.file, f->store.line);

            f->store = *f->declared;
            continue;
        }

        f->primary = *f->declared;
        f->primary.metrics = NULL;

        f->store.layers = f->declared->layers;

        f->store.labels = f->declared->labels || f->ledger->labels;

        if (ngx_http_idem_shared_add(cf, &f->shared,
                                sizeof(ngx_http_idem_fallback_sh_t),
                                NGX_HTTP_IDEM_FALLBACK_PREFIX,
                                &f->declared->name, &f->ledger->name)
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* called when each location has its store and its log */

void
ngx_http_idem_fallback_bind(ngx_array_t *all)
{
    ngx_uint_t                  i;
    ngx_http_idem_fallback_t  **p;

    p = all->elts;

    for (i = 0; i < all->nelts; i++) {
        p[i]->store.metrics = p[i]->declared->metrics;

        /* both report events of their own: a breaker, an expired record */

        if (p[i]->declared->log == NULL) {
            p[i]->declared->log = p[i]->store.log;
        }

        if (p[i]->ledger->log == NULL) {
            p[i]->ledger->log = p[i]->store.log;
        }
    }
}


/*
 * A reload may remove "fallback=" while the ledger has records that the
 * primary lacks: no request would look for them any more.  That is logged.
 * The time of their expiry is kept, in case another reload restores the
 * fallback.
 */

ngx_int_t
ngx_http_idem_fallback_dropped(ngx_conf_t *cf, ngx_shm_zone_t *old)
{
    size_t                        len;
    ngx_str_t                     name, pair;
    ngx_msec_int_t                left;
    ngx_http_idem_shared_t       *s;
    ngx_http_idem_fallback_sh_t  *sh;

    len = sizeof(NGX_HTTP_IDEM_FALLBACK_PREFIX "_") - 1;

    if (old->shm.name.len <= len
        || ngx_strncmp(old->shm.name.data, NGX_HTTP_IDEM_FALLBACK_PREFIX "_",
                       len)
           != 0)
    {
        return NGX_OK;
    }

    sh = ngx_http_idem_shared_find(old, sizeof(ngx_http_idem_fallback_sh_t));

    if (sh == NULL || sh->until == 0) {
        return NGX_OK;
    }

    left = (ngx_msec_int_t) ((ngx_msec_t) sh->until - ngx_current_msec);

    if (left <= 0) {
        return NGX_OK;
    }

    s = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_shared_t));
    if (s == NULL) {
        return NGX_ERROR;
    }

    name.len = old->shm.name.len;
    name.data = ngx_pstrdup(cf->pool, &old->shm.name);

    if (name.data == NULL
        || ngx_http_idem_shared_zone(cf, s,
                                     sizeof(ngx_http_idem_fallback_sh_t),
                                     &name)
           != NGX_CONF_OK)
    {
        return NGX_ERROR;
    }

    pair.data = name.data + len;
    pair.len = name.len - len;

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "idempotency: the fallback \"%V\" (store_ledger) is gone "
                  "from the configuration, and its ledger may hold records "
                  "for %i s yet that the store does not have: retries of "
                  "their requests may run again; leave \"fallback=\" in place "
                  "until then",
                  &pair, (ngx_int_t) (left / 1000 + 1));

    return NGX_OK;
}
