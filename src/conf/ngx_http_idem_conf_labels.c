
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Directives for labels and event fields, dry runs and details of conflicts:
 * idempotency_actor, idempotency_log_field and
 * idempotency_conflict_detail.
 *
 * Called by nginx while it reads the configuration.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "conf/ngx_http_idem_conf.h"


#define NGX_HTTP_IDEM_LOG_FIELDS      16
#define NGX_HTTP_IDEM_LOG_FIELD_NAME  64


/* built-in members of events, including reserved ones */

static const char  *ngx_http_idem_event_members[] = {
    "event_id", "timestamp", "level", "component", "event", "host", "store",
    "group", "tenant", "actor", "request_id", "key_hash", "record", "method",
    "uri_group", "status", "duration_ms", "outcome", "wait_ms", "store_ms",
    "reason", "replay_count", "original_timestamp",
    "time_since_original_ms", "original_actor", "conflict_type",
    "original_fingerprint", "fingerprint", "ttl_ms", "expires_at",
    "lifetime_ms", "queue_depth", "lock_holder", "lock_age_ms",
    "response_size_bytes", "max_size_bytes", "threshold_ms", NULL
};


/*
 * Records have labels if a directive sets one, and in a store that people read
 * by other means (PostgreSQL).  Events of a remote store need them, too: only
 * the record tells which host holds a lock.
 */

ngx_uint_t
ngx_http_idem_has_labels(ngx_http_idem_loc_conf_t *conf)
{
    return conf->tenant || conf->actor || conf->group_named
           || conf->store->labels || (conf->log && conf->store->layers);
}


/* idempotency_actor <value> [plain] */

char *
ngx_http_idem_conf_actor(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value;

    value = cf->args->elts;

    if (cf->args->nelts == 3) {

        if (!ngx_http_idem_conf_is(&value[2], "plain")) {
            return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"plain\", or nothing: then a hash is "
                             "told");
        }

        ilcf->actor_plain = 1;
    }

    return ngx_http_idem_conf_value(cf, cmd, conf);
}


/* idempotency_log_field <name> <value>, repeats; or off */

char *
ngx_http_idem_conf_log_field(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    u_char                      ch;
    ngx_str_t                  *value;
    ngx_uint_t                  i;
    ngx_http_idem_log_field_t  *field, *added;

    value = cf->args->elts;

    if (cf->args->nelts == 2) {
        return ngx_http_idem_conf_list_off(cf, &ilcf->log_fields,
                             "it is a name and its value, or \"off\"");
    }

    if (ilcf->log_fields == NULL) {
        return "is duplicate";
    }

    for (i = 0; i < value[1].len; i++) {
        ch = value[1].data[i];

        if (!((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')
              || (ch >= '0' && ch <= '9') || ch == '_' || ch == '.'
              || ch == '-'))
        {
            break;
        }
    }

    if (value[1].len == 0 || i < value[1].len
        || i > NGX_HTTP_IDEM_LOG_FIELD_NAME)
    {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "it is a name of letters, digits, \"_\", \".\" "
                             "and \"-\", of 64 at most");
    }

    for (i = 0; ngx_http_idem_event_members[i]; i++) {
        if (ngx_strcmp(value[1].data, ngx_http_idem_event_members[i]) == 0) {
            return ngx_http_idem_conf_invalid(cf, &value[1],
                             "an event has a member of that name by itself");
        }
    }

    added = ngx_http_idem_conf_add(cf, &ilcf->log_fields,
                                   sizeof(ngx_http_idem_log_field_t));
    if (added == NULL) {
        return NGX_CONF_ERROR;
    }

    for (field = ilcf->log_fields->elts; field < added; field++) {
        if (ngx_strcmp(field->name.data, value[1].data) == 0) {
            return "is duplicate";
        }
    }

    if (ilcf->log_fields->nelts > NGX_HTTP_IDEM_LOG_FIELDS) {
        return ngx_http_idem_conf_invalid(cf, &value[1],
                             "there are 16 already, and no more can be");
    }

    added->name = value[1];

    return ngx_http_idem_conf_compile(cf, &value[2], &added->value);
}


/* idempotency_conflict_detail off | paths | values [redact=<name>,...] */

char *
ngx_http_idem_conf_detail(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_loc_conf_t  *ilcf = conf;

    char       *rv;
    ngx_str_t  *value, list;

    rv = ngx_http_idem_conf_choice(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    ilcf->redacted = NULL;
    value = cf->args->elts;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    if ((ilcf->conflict_detail.complex == NULL
         && ilcf->conflict_detail.value != NGX_HTTP_IDEM_JSON_DETAIL_VALUES)
        || !ngx_http_idem_conf_option(&value[2], "redact=", &list))
    {
        return ngx_http_idem_conf_invalid(cf, &value[2],
                             "it is \"redact=<name or /pointer>,...\", with "
                             "\"values\"");
    }

    return ngx_http_idem_conf_parts(cf, &ilcf->redacted, &value[2], &list);
}
