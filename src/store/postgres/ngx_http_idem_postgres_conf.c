
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The configuration block of a PostgreSQL store.
 *
 * Error messages contain the invalid value, unless it is a password, and
 * describe valid ones.  Servers and TLS have a file of their own.
 *
 * Called while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_TIMEOUT          1000
#define NGX_HTTP_IDEM_PG_LOCK_TIMEOUT     250
#define NGX_HTTP_IDEM_PG_PURGE_EVERY      1000
#define NGX_HTTP_IDEM_PG_PURGE_BATCH      500
#define NGX_HTTP_IDEM_PG_BATCH_MAX        100000
#define NGX_HTTP_IDEM_PG_NAME_MAX         63


#define NGX_HTTP_IDEM_PG_PURGE_SYNTAX                                         \
    "\"purge on | off [every=1s] [batch=500] [archive]\""


static char *ngx_http_idem_pg_password(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_idem_pg_password_file(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_idem_pg_check_schema(ngx_conf_t *cf, void *post,
    void *data);
static char *ngx_http_idem_pg_set_purge(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static ngx_conf_num_bounds_t  ngx_http_idem_pg_times = {
    ngx_http_idem_store_bounds, 1, NGX_HTTP_IDEM_HOUR
};


static ngx_conf_num_bounds_t  ngx_http_idem_pg_connections = {
    ngx_http_idem_store_bounds, 1, 64
};


static ngx_conf_post_t  ngx_http_idem_pg_schema = {
    ngx_http_idem_pg_check_schema
};


static ngx_conf_enum_t  ngx_http_idem_pg_durables[] = {
    { ngx_string("all"), NGX_HTTP_IDEM_PG_DURABLE_ALL },
    { ngx_string("commits"), NGX_HTTP_IDEM_PG_DURABLE_COMMITS },
    { ngx_string("off"), NGX_HTTP_IDEM_PG_DURABLE_OFF },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idem_pg_wakes[] = {
    { ngx_string("notify"), NGX_HTTP_IDEM_PG_WAKE_NOTIFY },
    { ngx_string("poll"), NGX_HTTP_IDEM_PG_WAKE_POLL },
    { ngx_null_string, 0 }
};


ngx_http_idem_store_command_t  ngx_http_idem_pg_commands[] = {

    { { ngx_string("server"), NGX_CONF_1MORE, ngx_http_idem_pg_set_server, 0,
        offsetof(ngx_http_idem_pg_t, servers), NULL },
      "<host>:<port> or unix:<directory>, for example 127.0.0.1:5432" },

    { { ngx_string("database"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, database), NULL },
      "a name, for example idempotency" },

    { { ngx_string("user"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, user), NULL },
      "a name, for example nginx" },

    { { ngx_string("password"), NGX_CONF_TAKE1, ngx_http_idem_pg_password, 0,
        offsetof(ngx_http_idem_pg_t, password), NULL },
      "the password" },

    { { ngx_string("password_file"), NGX_CONF_TAKE1,
        ngx_http_idem_pg_password_file, 0,
        offsetof(ngx_http_idem_pg_t, password), NULL },
      "a file, for example /etc/nginx/postgres.password" },

    { { ngx_string("schema"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, schema), &ngx_http_idem_pg_schema },
      "lower-case letters, digits and \"_\", not a digit first, at most 63" },

    { { ngx_string("connections"), NGX_CONF_TAKE1, ngx_conf_set_num_slot, 0,
        offsetof(ngx_http_idem_pg_t, connections),
        &ngx_http_idem_pg_connections },
      "a number from 1 to 64" },

    { { ngx_string("timeout"), NGX_CONF_TAKE1, ngx_conf_set_msec_slot, 0,
        offsetof(ngx_http_idem_pg_t, timeout), &ngx_http_idem_pg_times },
      NGX_HTTP_IDEM_RIGHT_TIME },

    { { ngx_string("connect_timeout"), NGX_CONF_TAKE1,
        ngx_conf_set_msec_slot, 0,
        offsetof(ngx_http_idem_pg_t, connect_timeout),
        &ngx_http_idem_pg_times },
      NGX_HTTP_IDEM_RIGHT_TIME },

    { { ngx_string("lock_timeout"), NGX_CONF_TAKE1, ngx_conf_set_msec_slot, 0,
        offsetof(ngx_http_idem_pg_t, lock_timeout), &ngx_http_idem_pg_times },
      NGX_HTTP_IDEM_RIGHT_TIME },

    { { ngx_string("durable"), NGX_CONF_TAKE1, ngx_conf_set_enum_slot, 0,
        offsetof(ngx_http_idem_pg_t, durable), &ngx_http_idem_pg_durables },
      "\"all\", \"commits\" or \"off\"" },

    { { ngx_string("wake"), NGX_CONF_TAKE1, ngx_conf_set_enum_slot, 0,
        offsetof(ngx_http_idem_pg_t, wake), &ngx_http_idem_pg_wakes },
      "\"notify\" or \"poll\"" },

    { { ngx_string("pooler"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_pg_t, pooler), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("purge"), NGX_CONF_1MORE, ngx_http_idem_pg_set_purge, 0,
        offsetof(ngx_http_idem_pg_t, purge), NULL },
      NGX_HTTP_IDEM_PG_PURGE_SYNTAX },

    { { ngx_string("tls"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_pg_t, tls), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("tls_verify"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_pg_t, tls_verify), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("tls_trusted_certificate"), NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, tls_trusted_certificate), NULL },
      "a file, for example /etc/nginx/postgres-ca.pem" },

    { { ngx_string("tls_name"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, tls_name), NULL },
      "a name, for example db.example.com" },

    { { ngx_string("tls_certificate"), NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, tls_certificate), NULL },
      "a file, for example /etc/nginx/postgres-client.pem" },

    { { ngx_string("tls_certificate_key"), NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_pg_t, tls_certificate_key), NULL },
      "a file, for example /etc/nginx/postgres-client.key" },

    { ngx_null_command, NULL }
};


void *
ngx_http_idem_pg_create_conf(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    ngx_http_idem_pg_t  *pg;

    pg = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_pg_t));
    if (pg == NULL) {
        return NULL;
    }

    pg->store = store;
    store->labels = 1;

    if (ngx_array_init(&pg->servers, cf->pool, 1,
                       sizeof(ngx_http_idem_pg_server_t))
        != NGX_OK)
    {
        return NULL;
    }

    pg->connections = NGX_CONF_UNSET;
    pg->timeout = NGX_CONF_UNSET_MSEC;
    pg->connect_timeout = NGX_CONF_UNSET_MSEC;
    pg->lock_timeout = NGX_CONF_UNSET_MSEC;
    pg->durable = NGX_CONF_UNSET_UINT;
    pg->wake = NGX_CONF_UNSET_UINT;
    pg->pooler = NGX_CONF_UNSET;
    pg->purge = NGX_CONF_UNSET;
    pg->tls = NGX_CONF_UNSET;
    pg->tls_verify = NGX_CONF_UNSET;

    pg->purge_every = NGX_HTTP_IDEM_PG_PURGE_EVERY;
    pg->purge_batch = NGX_HTTP_IDEM_PG_PURGE_BATCH;

    return pg;
}


char *
ngx_http_idem_pg_init_conf(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    ngx_http_idem_pg_t  *pg;

    pg = store->conf;

    if (ngx_http_idem_pg_init_servers(cf, pg) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    if (pg->database.len == 0) {
        ngx_str_set(&pg->database, "idempotency");
    }

    if (pg->user.len == 0) {
        ngx_str_set(&pg->user, "nginx");
    }

    if (pg->schema.len == 0) {
        ngx_str_set(&pg->schema, "idempotency");
    }

    ngx_conf_init_value(pg->connections, 1);
    ngx_conf_init_msec_value(pg->timeout, NGX_HTTP_IDEM_PG_TIMEOUT);
    ngx_conf_init_msec_value(pg->connect_timeout, NGX_HTTP_IDEM_PG_TIMEOUT);
    ngx_conf_init_msec_value(pg->lock_timeout, NGX_HTTP_IDEM_PG_LOCK_TIMEOUT);
    ngx_conf_init_uint_value(pg->durable, NGX_HTTP_IDEM_PG_DURABLE_COMMITS);
    ngx_conf_init_value(pg->pooler, 0);
    ngx_conf_init_value(pg->purge, 1);
    ngx_conf_init_value(pg->tls, 0);

    if (pg->pooler) {

        /* LISTEN would succeed, but other clients use the connection next */

        if (pg->wake == NGX_HTTP_IDEM_PG_WAKE_NOTIFY) {
            return ngx_http_idem_pg_api->wrong(cf, store,
                          "has \"pooler on\" and \"wake notify\": behind a "
                          "pooler there is \"wake poll\" only");
        }

        pg->wake = NGX_HTTP_IDEM_PG_WAKE_POLL;
    }

    ngx_conf_init_uint_value(pg->wake, NGX_HTTP_IDEM_PG_WAKE_NOTIFY);

    if (ngx_http_idem_pg_init_tls(cf, pg) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_pg_step_conf(cf, pg);
}


static char *
ngx_http_idem_pg_password(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return ngx_http_idem_pg_api->password(cf, cmd, conf);
}


static char *
ngx_http_idem_pg_password_file(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return ngx_http_idem_pg_api->password_file(cf, cmd, conf);
}


/* a plain identifier: it is part of the statements, and the LISTEN channel */

static char *
ngx_http_idem_pg_check_schema(ngx_conf_t *cf, void *post, void *data)
{
    ngx_str_t  *schema = data;

    u_char  c;
    size_t  i;

    for (i = 0; i < schema->len; i++) {
        c = schema->data[i];

        if (!((c >= 'a' && c <= 'z') || c == '_'
              || (i && c >= '0' && c <= '9')))
        {
            return "invalid value";
        }
    }

    return (i > NGX_HTTP_IDEM_PG_NAME_MAX) ? "invalid value" : NGX_CONF_OK;
}


/* purge on | off [every=<time>] [batch=<n>] [archive] */

static char *
ngx_http_idem_pg_set_purge(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idem_pg_t  *pg = conf;

    char        *rv;
    ngx_int_t    n;
    ngx_str_t   *value, s;
    ngx_uint_t   i;

    rv = ngx_conf_set_flag_slot(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    value = cf->args->elts;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "archive") == 0) {

            if (pg->purge_archive) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "duplicate parameter \"archive\" in "
                                   "\"purge\" directive");
                return NGX_CONF_ERROR;
            }

            pg->purge_archive = 1;
            continue;
        }

        s.data = value[i].data + 6;
        s.len = value[i].len - 6;

        if (value[i].len > 6
            && ngx_strncmp(value[i].data, "every=", 6) == 0)
        {
            n = ngx_parse_time(&s, 0);

            if (n > 0) {
                pg->purge_every = (ngx_msec_t) n;
                continue;
            }

        } else if (value[i].len > 6
                   && ngx_strncmp(value[i].data, "batch=", 6) == 0)
        {
            n = ngx_atoi(s.data, s.len);

            if (n > 0 && n <= NGX_HTTP_IDEM_PG_BATCH_MAX) {
                pg->purge_batch = n;
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"purge\" directive: it "
                           "is " NGX_HTTP_IDEM_PG_PURGE_SYNTAX, &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
