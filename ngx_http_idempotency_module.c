
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * ngx_http_idempotency_module: makes HTTP APIs safe to retry.
 *
 * This file has the table of directives and hooks the module into nginx;
 * nothing else.  The rooms below src/:
 *
 *   conf       configuration and its merge
 *   request    context, phases, admission, body, fingerprint, execution
 *   claim      the records that cover a request: begin, wait, renew, settle
 *   response   outcome, capture, commit, replay, refusal
 *   canonical  canonical JSON, forms and multipart, keys, digests
 *   record     the stored form of a record
 *   store      where records are kept
 *   redis      a Redis and Valkey client for nginx
 *   observe    metrics and events
 *   admin      statistics, inspection and deletion of records
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "admin/ngx_http_idem_admin.h"
#include "request/ngx_http_idem_request.h"
#include "store/ngx_http_idem_store.h"
#include "store/layers/ngx_http_idem_layers.h"
#include "store/zone/ngx_http_idem_zone.h"


static ngx_int_t ngx_http_idem_start(ngx_conf_t *cf);
static ngx_int_t ngx_http_idem_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_idem_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_idem_init_process(ngx_cycle_t *cycle);
static void ngx_http_idem_exit_process(ngx_cycle_t *cycle);
static void ngx_http_idem_exit_master(ngx_cycle_t *cycle);


static ngx_http_idem_choices_t  ngx_http_idem_on_store_error = {
    "it is \"fail\" or \"pass\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("fail"), NGX_HTTP_IDEM_ON_ERROR_FAIL },
      { ngx_string("pass"), NGX_HTTP_IDEM_ON_ERROR_PASS } }
};


static ngx_http_idem_choices_t  ngx_http_idem_unknown_outcome = {
    "it is \"retry\" or \"lease\" or \"hold\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("retry"), NGX_HTTP_IDEM_UNKNOWN_RETRY },
      { ngx_string("lease"), NGX_HTTP_IDEM_UNKNOWN_LEASE },
      { ngx_string("hold"), NGX_HTTP_IDEM_UNKNOWN_HOLD } }
};


static ngx_http_idem_choices_t  ngx_http_idem_details = {
    "it is \"off\" or \"paths\" or \"values\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("off"), NGX_HTTP_IDEM_JSON_DETAIL_OFF },
      { ngx_string("paths"), NGX_HTTP_IDEM_JSON_DETAIL_PATHS },
      { ngx_string("values"), NGX_HTTP_IDEM_JSON_DETAIL_VALUES } }
};


static ngx_http_idem_choices_t  ngx_http_idem_conflict_status = {
    "it is \"400\" or \"409\" or \"422\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("400"), NGX_HTTP_BAD_REQUEST },
      { ngx_string("409"), NGX_HTTP_CONFLICT },
      { ngx_string("422"), NGX_HTTP_IDEM_UNPROCESSABLE } }
};


static ngx_http_idem_choices_t  ngx_http_idem_replay_status = {
    "it is \"original\" or a status of 200 to 599", NGX_HTTP_IDEM_UNIT_NONE,
    200, 599, { { ngx_string("original"), 0 } }
};


/* in a variable "1" and "0" count as "on" and "off" */

static ngx_http_idem_choices_t  ngx_http_idem_flags = {
    "it is \"on\" or \"off\"", NGX_HTTP_IDEM_UNIT_NONE, 0, 1,
    { { ngx_string("on"), 1 },
      { ngx_string("off"), 0 } }
};


static ngx_http_idem_choices_t  ngx_http_idem_streams = {
    "it is \"tee\" or \"pass\", and only \"tee\" takes media types",
    NGX_HTTP_IDEM_UNIT_NONE, 0, 0,
    { { ngx_string("tee"), NGX_HTTP_IDEM_STREAM_TEE },
      { ngx_string("pass"), NGX_HTTP_IDEM_STREAM_PASS } }
};


static ngx_http_idem_choices_t  ngx_http_idem_max_waiters = {
    "it is a number of 0 or more", NGX_HTTP_IDEM_UNIT_NONE,
    0, NGX_MAX_INT_T_VALUE, { { ngx_null_string, 0 } }
};


/* a directive of a location, which servers and http may set for theirs */

#define ngx_http_idem_directive(name, takes, set, field, post)                \
    { ngx_string(name),                                                       \
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|takes,           \
      set, NGX_HTTP_LOC_CONF_OFFSET,                                          \
      offsetof(ngx_http_idem_loc_conf_t, field), post }


static ngx_command_t  ngx_http_idem_commands[] = {

    { ngx_string("idempotency_store"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE2,
      ngx_http_idem_conf_store,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    ngx_http_idem_directive("idempotency", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_switch, store, NULL),
    ngx_http_idem_directive("idempotency_key", NGX_CONF_1MORE,
                            ngx_http_idem_conf_key, keys, NULL),
    ngx_http_idem_directive("idempotency_key_format", NGX_CONF_1MORE,
                            ngx_http_idem_conf_key_format, key_format, NULL),
    ngx_http_idem_directive("idempotency_required", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_on_off, required, NULL),
    ngx_http_idem_directive("idempotency_methods", NGX_CONF_1MORE,
                            ngx_http_idem_conf_method_names, methods, NULL),
    ngx_http_idem_directive("idempotency_bypass", NGX_CONF_1MORE,
                            ngx_http_idem_conf_bypass_values, bypass, NULL),
    ngx_http_idem_directive("idempotency_scope", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_value, scope, NULL),
    ngx_http_idem_directive("idempotency_identity", NGX_CONF_1MORE,
                            ngx_http_idem_conf_values, identity, NULL),
    ngx_http_idem_directive("idempotency_fingerprint", NGX_CONF_1MORE,
                            ngx_http_idem_conf_fingerprint, fingerprint, NULL),
    ngx_http_idem_directive("idempotency_dedupe", NGX_CONF_1MORE,
                            ngx_http_idem_conf_dedupe, dedupe, NULL),
    ngx_http_idem_directive("idempotency_activity", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_activity, activity, NULL),
    ngx_http_idem_directive("idempotency_ttl", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, ttl,
                            &ngx_http_idem_positive_times),
    ngx_http_idem_directive("idempotency_ttl_header", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_ttl_header, ttl_header_max,
                            NULL),
    ngx_http_idem_directive("idempotency_expired_grace", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, expired_grace,
                            &ngx_http_idem_times),
    ngx_http_idem_directive("idempotency_lease", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, lease,
                            &ngx_http_idem_positive_times),
    ngx_http_idem_directive("idempotency_wait", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, wait,
                            &ngx_http_idem_times),
    ngx_http_idem_directive("idempotency_max_waiters", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, max_waiters,
                            &ngx_http_idem_max_waiters),
    ngx_http_idem_directive("idempotency_retry_after", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, retry_after,
                            &ngx_http_idem_times),
    ngx_http_idem_directive("idempotency_max_response", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, max_response,
                            &ngx_http_idem_sizes),
    ngx_http_idem_directive("idempotency_keep_status", NGX_CONF_1MORE,
                            ngx_http_idem_conf_keep_status, keep_status, NULL),
    ngx_http_idem_directive("idempotency_keep_json", NGX_CONF_1MORE,
                            ngx_http_idem_conf_keep_json, keep_json, NULL),
    ngx_http_idem_directive("idempotency_on_store_error", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, on_store_error,
                            &ngx_http_idem_on_store_error),
    ngx_http_idem_directive("idempotency_unknown_outcome", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, unknown_outcome,
                            &ngx_http_idem_unknown_outcome),
    ngx_http_idem_directive("idempotency_stream", NGX_CONF_1MORE,
                            ngx_http_idem_conf_stream, stream,
                            &ngx_http_idem_streams),
    ngx_http_idem_directive("idempotency_conflict_status", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, conflict_status,
                            &ngx_http_idem_conflict_status),
    ngx_http_idem_directive("idempotency_conflict_detail", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_detail, conflict_detail,
                            &ngx_http_idem_details),
    ngx_http_idem_directive("idempotency_replay_status", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, replay_status,
                            &ngx_http_idem_replay_status),
    ngx_http_idem_directive("idempotency_replay_json", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_replay_json, replay_json, NULL),
    ngx_http_idem_directive("idempotency_hide_header", NGX_CONF_1MORE,
                            ngx_http_idem_conf_header_names, hide_headers,
                            NULL),
    ngx_http_idem_directive("idempotency_keep_header", NGX_CONF_1MORE,
                            ngx_http_idem_conf_header_names, keep_headers,
                            NULL),
    ngx_http_idem_directive("idempotency_compress", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_compress, compress,
                            &ngx_http_idem_flags),
    ngx_http_idem_directive("idempotency_headers", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, headers,
                            &ngx_http_idem_flags),
    ngx_http_idem_directive("idempotency_error_body", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_choice, error_body,
                            &ngx_http_idem_flags),
    ngx_http_idem_directive("idempotency_documentation", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_value, documentation, NULL),
    ngx_http_idem_directive("idempotency_dry_run", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_on_off, dry_run, NULL),
    ngx_http_idem_directive("idempotency_group", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_group, group_name, NULL),
    ngx_http_idem_directive("idempotency_tenant", NGX_CONF_TAKE1,
                            ngx_http_idem_conf_value, tenant, NULL),
    ngx_http_idem_directive("idempotency_actor", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_actor, actor, NULL),
    ngx_http_idem_directive("idempotency_log_field", NGX_CONF_TAKE12,
                            ngx_http_idem_conf_log_field, log_fields, NULL),
    ngx_http_idem_directive("idempotency_log", NGX_CONF_1MORE,
                            ngx_http_idem_conf_log, log, NULL),

    { ngx_string("idempotency_stats"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_idem_conf_stats,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_admin"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_idem_conf_admin,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_idempotency_module_ctx = {
    ngx_http_idem_start,                   /* preconfiguration */
    ngx_http_idem_init,                    /* postconfiguration */

    ngx_http_idem_create_main_conf,        /* create main configuration */
    ngx_http_idem_init_stores,             /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_idem_create_loc_conf,         /* create location configuration */
    ngx_http_idem_merge_loc_conf           /* merge location configuration */
};


ngx_module_t  ngx_http_idempotency_module = {
    NGX_MODULE_V1,
    &ngx_http_idempotency_module_ctx,      /* module context */
    ngx_http_idem_commands,                /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_idem_init_module,             /* init module */
    ngx_http_idem_init_process,            /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_idem_exit_process,            /* exit process */
    ngx_http_idem_exit_master,             /* exit master */
    NGX_HTTP_IDEM_STORE_API_PADDING
};


static ngx_int_t
ngx_http_idem_start(ngx_conf_t *cf)
{
    ngx_http_idem_conf_if_watch(cf);

    return ngx_http_idem_add_variables(cf);
}


static ngx_int_t
ngx_http_idem_init(ngx_conf_t *cf)
{
    ngx_http_idem_main_conf_t  *mcf;

    ngx_http_idem_conf_if_read();

    if (ngx_http_idem_check_variables(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    /*
     * Filters are registered even if the module is not enabled anywhere.  The
     * filter chains are global and were reset for this configuration.  If it
     * is refused, workers that the old cycle starts later use the new chains.
     */

    ngx_http_idem_capture_init();
    ngx_http_idem_hints_init();
    ngx_http_idem_body_init();

    if (ngx_http_idem_zones_left(cf, ngx_http_idem_zone_dropped) != NGX_OK
        || ngx_http_idem_zones_left(cf, ngx_http_idem_fallback_dropped)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (mcf->stores.nelts == 0) {
        return NGX_OK;
    }

    if (ngx_http_idem_conf_check_build(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_idem_conf_servers(cf);

    if (ngx_http_idem_phases_init(cf) != NGX_OK
        || ngx_http_idem_values_init(cf) != NGX_OK
        || ngx_http_idem_waiters_zone(cf) != NGX_OK
        || ngx_http_idem_orphans_zone(cf) != NGX_OK
        || ngx_http_idem_activity_zone(cf) != NGX_OK
        || ngx_http_idem_replays_zone(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_idem_metrics_zone(cf);
}


/* called when the zones exist and before workers are started */

static ngx_int_t
ngx_http_idem_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i;
    ngx_http_idem_store_t     **store, *inner;
    ngx_http_idem_loc_conf_t  **conf;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_idempotency_module);

    ngx_http_idem_body_reset();
    ngx_http_idem_modules_init(cycle);

    if (mcf == NULL || mcf->stores.nelts == 0) {
        return NGX_OK;
    }

    ngx_http_idem_address_init(cycle);

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {
        store[i]->metrics = ngx_http_idem_metrics_bind(&store[i]->name);

        if (store[i]->metrics == NULL) {
            return NGX_ERROR;
        }

        inner = ngx_http_idem_layer_innermost(store[i]);

        if (inner->backend->remote) {
            inner->outage = &store[i]->metrics->history.outage;
        }
    }

    ngx_http_idem_fallback_bind(&mcf->fallbacks);
    ngx_http_idem_conf_content(cycle, &mcf->locations);

    conf = mcf->locations.elts;

    for (i = 0; i < mcf->locations.nelts; i++) {
        conf[i]->group = ngx_http_idem_metrics_group(&conf[i]->group_name);

        conf[i]->labels = ngx_http_idem_has_labels(conf[i]);

        if (conf[i]->group_value == NULL) {
            conf[i]->store->metrics->grouped[conf[i]->group] = 1;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i;
    ngx_http_idem_store_t     **store;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_idempotency_module);

    if (mcf == NULL || mcf->stores.nelts == 0
        || (ngx_process != NGX_PROCESS_WORKER
            && ngx_process != NGX_PROCESS_SINGLE))
    {
        return NGX_OK;
    }

    if (ngx_http_idem_digest_init(cycle->log) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_idem_tap_init_process(mcf->tap);
    ngx_http_idem_wait_init(cycle);
    ngx_http_idem_activity_init_process(cycle);
    ngx_http_idem_store_reserve();
    ngx_http_idem_renew_init();
    ngx_http_idem_store_replays = ngx_http_idem_replays_read;

    if (ngx_http_idem_log_init_process(cycle, &mcf->logs) != NGX_OK) {
        return NGX_ERROR;
    }

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {
        if (store[i]->backend->init_process(cycle, store[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_http_idem_stats_init_process(mcf);

    return NGX_OK;
}


static void
ngx_http_idem_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i;
    ngx_http_idem_store_t     **store;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_idempotency_module);

    if (mcf == NULL
        || (ngx_process != NGX_PROCESS_WORKER
            && ngx_process != NGX_PROCESS_SINGLE))
    {
        return;
    }

    ngx_http_idem_stats_exit_process(mcf);

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {
        store[i]->backend->exit_process(cycle, store[i]);
    }

    ngx_http_idem_log_exit_process(&mcf->logs);
}


/* the outboxes are in shared memory of this master */

static void
ngx_http_idem_exit_master(ngx_cycle_t *cycle)
{
    ngx_uint_t                  i, n;
    ngx_http_idem_store_t     **store;
    ngx_http_idem_main_conf_t  *mcf;

    mcf = ngx_http_cycle_get_module_main_conf(cycle,
                                              ngx_http_idempotency_module);

    if (mcf == NULL) {
        return;
    }

    store = mcf->stores.elts;

    for (i = 0; i < mcf->stores.nelts; i++) {

        if (store[i]->layers == NULL
            || store[i]->layers->outbox.z.zone == NULL)
        {
            continue;
        }

        n = ngx_http_idem_outbox_waiting(&store[i]->layers->outbox);

        if (n) {
            ngx_log_error(NGX_LOG_ERR, cycle->log, 0,
                          "idempotency: nginx exits with %ui commits that "
                          "store \"%V\" lacks: they are lost, and a retry "
                          "may run again", n, &store[i]->name);
        }
    }
}
