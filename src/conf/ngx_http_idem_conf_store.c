
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Stores in the configuration: their declaration, their lookup by name, and
 * the store that a location uses.
 *
 * Called by nginx while it reads the configuration.  Calls the backend and
 * the layers for the directives in the block, and then the layers to wrap the
 * backend.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"
#include "store/layers/ngx_http_idem_layers.h"


static char *ngx_http_idem_conf_store_name(ngx_conf_t *cf, ngx_str_t *name);
static char *ngx_http_idem_conf_store_directive(ngx_conf_t *cf,
    ngx_command_t *dummy, void *conf);
static char *ngx_http_idem_conf_store_unknown(ngx_conf_t *cf,
    ngx_http_idem_store_t *store, ngx_str_t *name);
static char *ngx_http_idem_init_store(ngx_conf_t *cf,
    ngx_http_idem_store_t *store);
static char *ngx_http_idem_init_trail(ngx_conf_t *cf,
    ngx_http_idem_store_t *store, ngx_http_idem_log_t *log);
static ngx_http_idem_log_t *ngx_http_idem_find_log(
    ngx_http_idem_main_conf_t *mcf, ngx_http_idem_store_t *store,
    ngx_http_idem_log_t *log);


/* idempotency_store <name> <backend> { ... } */

char *
ngx_http_idem_conf_store(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char                   *rv;
    ngx_str_t              *value;
    ngx_conf_t              save;
    ngx_http_idem_store_t  *store;

    value = cf->args->elts;

    rv = ngx_http_idem_conf_store_name(cf, &value[1]);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    store = ngx_http_idem_conf_get_store(cf, &value[1]);
    if (store == NULL) {
        return NGX_CONF_ERROR;
    }

    if (store->backend) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "idempotency_store \"%V\" is already declared in "
                           "%s:%ui", &value[1], store->file, store->line);
        return NGX_CONF_ERROR;
    }

    store->backend = ngx_http_idem_backend(&value[2]);

    if (store->backend == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown kind of store \"%V\" in "
                           "\"idempotency_store\" directive: there is %V%s",
                           &value[2], ngx_http_idem_backend_names(),
                           ngx_http_idem_conf_is(&value[2], "postgres")
                               ? "; \"postgres\" is a module of its own, "
                                 "\"load_module modules/ngx_http_"
                                 "idempotency_postgres_module.so\"" : "");
        return NGX_CONF_ERROR;
    }

    store->file = cf->conf_file->file.name.data;
    store->line = cf->conf_file->line;

    store->conf = store->backend->create_conf(cf, store);
    if (store->conf == NULL) {
        return NGX_CONF_ERROR;
    }

    if (store->backend->remote) {
        store->layers = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_layers_t));
        if (store->layers == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    save = *cf;

    cf->handler = ngx_http_idem_conf_store_directive;
    cf->handler_conf = (void *) store;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    return rv;
}


static char *
ngx_http_idem_conf_store_name(ngx_conf_t *cf, ngx_str_t *name)
{
    if (ngx_http_idem_conf_is(name, "on")
        || ngx_http_idem_conf_is(name, "off"))
    {
        return ngx_http_idem_conf_invalid(cf, name,
                   "a store can't be named so, since \"idempotency on\" and "
                   "\"idempotency off\" mean something else");
    }

    /* addresses of idempotency_admin contain the name */

    if (name->len == 0
        || ngx_strlchr(name->data, name->data + name->len, '/'))
    {
        return ngx_http_idem_conf_invalid(cf, name,
                   "the name of a store is not empty, and has no slash in it");
    }

    return NGX_CONF_OK;
}


/* a directive in the block: of the backend, or of a layer */

static char *
ngx_http_idem_conf_store_directive(ngx_conf_t *cf,
    ngx_command_t *dummy, void *conf)
{
    ngx_str_t                      *value;
    ngx_http_idem_store_t          *store;
    ngx_http_idem_store_command_t  *c;

    store = conf;
    value = cf->args->elts;

    if (ngx_http_idem_conf_is(&value[0], "include")) {

        if (cf->args->nelts == 2) {
            return ngx_conf_include(cf, dummy, conf);
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of arguments in \"include\" "
                           "directive");
        return NGX_CONF_ERROR;
    }

    if (ngx_http_idem_conf_once(cf, 1) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    c = ngx_http_idem_store_command(store->backend->commands, &value[0]);

    if (c) {
        return ngx_http_idem_store_set(cf, c, store->conf);
    }

    c = ngx_http_idem_store_command(ngx_http_idem_layers_commands, &value[0]);

    if (c == NULL) {
        return ngx_http_idem_conf_store_unknown(cf, store, &value[0]);
    }

    if (!store->backend->remote) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is of no use in a %V store: its records "
                           "are in this nginx itself, without a round trip, "
                           "and it can't be away", &value[0],
                           &store->backend->name);
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_store_set(cf, c, store->layers);
}


static char *
ngx_http_idem_conf_store_unknown(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    ngx_str_t *name)
{
    u_char                         *p, *last, names[512];
    ngx_http_idem_store_command_t  *c;

    p = names;
    last = names + sizeof(names);

    for (c = store->backend->commands; c->command.name.len; c++) {
        p = ngx_slprintf(p, last, "%s%V", p == names ? "" : ", ",
                         &c->command.name);
    }

    c = ngx_http_idem_layers_commands;

    for ( /* void */ ; store->layers && c->command.name.len; c++) {
        p = ngx_slprintf(p, last, ", %V", &c->command.name);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unknown directive \"%V\" in a %V store: it has %*s",
                       name, &store->backend->name, (size_t) (p - names),
                       names);

    return NGX_CONF_ERROR;
}


/* finds or creates a store: its name may be used before its declaration */

ngx_http_idem_store_t *
ngx_http_idem_conf_get_store(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_http_idem_store_t      *store, **p;
    ngx_http_idem_main_conf_t  *mcf;

    if (ngx_http_script_variables_count(name)) {
        (void) ngx_http_idem_conf_invalid(cf, name,
                   "the name of a store has no variables: a location has one "
                   "store for all requests");
        return NULL;
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    store = ngx_http_idem_find_store(mcf, name);

    if (store) {
        return store;
    }

    store = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_store_t));
    if (store == NULL) {
        return NULL;
    }

    p = ngx_array_push(&mcf->stores);
    if (p == NULL) {
        return NULL;
    }

    *p = store;

    store->name = *name;
    store->file = cf->conf_file->file.name.data;
    store->line = cf->conf_file->line;

    return store;
}


ngx_http_idem_store_t *
ngx_http_idem_find_store(ngx_http_idem_main_conf_t *mcf, ngx_str_t *name)
{
    ngx_uint_t               i;
    ngx_http_idem_store_t  **store;

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {
        if (ngx_http_idem_same_text(&store[i]->name, name)) {
            return store[i];
        }
    }

    return NULL;
}


char *
ngx_http_idem_init_stores(ngx_conf_t *cf, void *conf)
{
    ngx_http_idem_main_conf_t  *mcf = conf;

    char                       *rv;
    ngx_str_t                   memory = ngx_string("memory");
    ngx_uint_t                  i;
    ngx_resolver_t             *resolver;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_idem_store_t      *store;
    ngx_http_idem_log_t        *log;

    /* the http block's resolver; if none was configured, it has no servers */

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    resolver = clcf->resolver;

    if (resolver && resolver->connections.nelts == 0) {
        resolver = NULL;
    }

    for (i = 0; i < mcf->stores.nelts; i++) {
        store = ((ngx_http_idem_store_t **) mcf->stores.elts)[i];

        if (store->backend == NULL) {

            if (!ngx_http_idem_conf_is(&store->name, "default")) {
                log = ngx_http_idem_find_log(mcf, store, NULL);

                ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                              "unknown store \"%V\" in \"idempotency%s\" "
                              "directive in %s:%ui: declare it with "
                              "\"idempotency_store %V ...\" in the http "
                              "block%s",
                              &store->name,
                              log && log->conf_line == store->line ? "_log"
                                                                   : "",
                              store->file, store->line, &store->name,
                              log ? ""
                              : ", or say \"on\" for the embedded one");
                return NGX_CONF_ERROR;
            }

            store->backend = ngx_http_idem_backend(&memory);

            store->conf = store->backend->create_conf(cf, store);
            if (store->conf == NULL) {
                return NGX_CONF_ERROR;
            }
        }

        store->resolver = resolver;
        store->trail = store->backend->trail;

        for (log = ngx_http_idem_find_log(mcf, store, NULL);
             log;
             log = ngx_http_idem_find_log(mcf, store, log))
        {
            if (ngx_http_idem_init_trail(cf, store, log) != NGX_CONF_OK) {
                return NGX_CONF_ERROR;
            }
        }

        rv = ngx_http_idem_init_store(cf, store);

        if (rv != NGX_CONF_OK) {
            return rv;
        }
    }

    return ngx_http_idem_fallback_init(cf, &mcf->fallbacks);
}


/*
 * The configuration has been read to the end of the http block.  Messages
 * about the store, nginx's own among them, name the line that declares it.
 */

static char *
ngx_http_idem_init_store(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    char             *rv;
    ngx_conf_file_t  *file, declared;

    file = cf->conf_file;

    declared = *file;
    declared.file.name.data = store->file;
    declared.line = store->line;

    cf->conf_file = &declared;

    rv = store->backend->init_conf(cf, store);

    if (rv == NGX_CONF_OK) {
        rv = ngx_http_idem_layers_wrap(cf, store);
    }

    cf->conf_file = file;

    return rv;
}


/* the next log that writes to the store */

static ngx_http_idem_log_t *
ngx_http_idem_find_log(ngx_http_idem_main_conf_t *mcf,
    ngx_http_idem_store_t *store, ngx_http_idem_log_t *log)
{
    ngx_queue_t  *q;

    for (q = log ? ngx_queue_next(&log->queue) : ngx_queue_head(&mcf->logs);
         q != ngx_queue_sentinel(&mcf->logs);
         q = ngx_queue_next(q))
    {
        log = ngx_queue_data(q, ngx_http_idem_log_t, queue);

        if (log->send && ngx_http_idem_same_text(&log->name, &store->name)) {
            return log;
        }
    }

    return NULL;
}


static char *
ngx_http_idem_init_trail(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    ngx_http_idem_log_t *log)
{
    if (store->trail == NGX_HTTP_IDEM_TRAIL_NONE) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "invalid value \"store:%V\" in \"idempotency_log\" "
                      "directive in %s:%ui: a store of kind \"%V\" keeps no "
                      "events; take a file, syslog, or a store of kind "
                      "\"redis\" or \"postgres\"", &store->name,
                      log->conf_file, log->conf_line, &store->backend->name);
        return NGX_CONF_ERROR;
    }

    if (log->max && store->trail == NGX_HTTP_IDEM_TRAIL_ALL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "invalid value \"max=%ui\" in \"idempotency_log\" "
                      "directive in %s:%ui: a store of kind \"%V\" keeps "
                      "events until they are purged by their age", log->max,
                      log->conf_file, log->conf_line, &store->backend->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* idempotency on | off | <store> [fallback=<store>] */

char *
ngx_http_idem_conf_switch(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t                  *value, name;
    ngx_http_idem_store_t      *ledger;
    ngx_http_idem_main_conf_t  *mcf;

    if (ilcf->store != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    ilcf->own = 1;

    ngx_http_idem_conf_order(cf);

    value = cf->args->elts;
    name = value[1];

    if (ngx_http_idem_conf_is(&name, "off")) {

        if (cf->args->nelts > 2) {
            return ngx_http_idem_conf_invalid(cf, &value[2],
                                      "where it is off there is no fallback");
        }

        ilcf->store = NULL;
        ilcf->off = (cf->cmd_type & (NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF))
                    ? 0 : 1;

        return NGX_CONF_OK;
    }

    if (ngx_http_idem_conf_is(&name, "on")) {
        ngx_str_set(&name, "default");
    }

    ilcf->store = ngx_http_idem_conf_get_store(cf, &name);

    if (ilcf->store == NULL) {
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    if (!ngx_http_idem_conf_option(&value[2], "fallback=", &name)) {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                              "it is \"idempotency <store> "
                              "[fallback=<store>]\"");
    }

    if (ngx_http_idem_conf_is(&name, "on")) {
        ngx_str_set(&name, "default");
    }

    ledger = ngx_http_idem_conf_get_store(cf, &name);
    if (ledger == NULL) {
        return NGX_CONF_ERROR;
    }

    if (ledger == ilcf->store) {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                              "a store is no fallback of itself");
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    ilcf->store = ngx_http_idem_fallback(cf, &mcf->fallbacks, ilcf->store,
                                         ledger);

    return ilcf->store ? NGX_CONF_OK : NGX_CONF_ERROR;
}
