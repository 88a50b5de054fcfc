
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The block of directives that declares a Redis store.
 *
 * An error names the invalid value and a valid example; a password is never
 * printed.  Addresses are in ..._redis_conf_servers.c.
 *
 * Called while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_PREFIX       "idempotency:"
#define NGX_HTTP_IDEM_REDIS_TIMEOUT      1000
#define NGX_HTTP_IDEM_REDIS_CONNECTIONS  1

#define NGX_HTTP_IDEM_REDIS_VERIFY_DEPTH  9


static char *ngx_http_idem_redis_init_tls(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);
static const char *ngx_http_idem_redis_check_tls(ngx_redis_t *client);
static char *ngx_http_idem_redis_create_ssl(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis);
#if (NGX_SSL)
static ngx_int_t ngx_http_idem_redis_certificate(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_ssl_t *ssl);
#endif
static char *ngx_http_idem_redis_check_prefix(ngx_conf_t *cf, void *post,
    void *data);


static ngx_conf_num_bounds_t  ngx_http_idem_redis_times = {
    ngx_http_idem_store_bounds, 1, NGX_HTTP_IDEM_HOUR
};


static ngx_conf_num_bounds_t  ngx_http_idem_redis_dbs = {
    ngx_http_idem_store_bounds, 0, 65535
};


static ngx_conf_num_bounds_t  ngx_http_idem_redis_connections = {
    ngx_http_idem_store_bounds, 1, 64
};


static ngx_conf_post_t  ngx_http_idem_redis_prefix = {
    ngx_http_idem_redis_check_prefix
};


ngx_http_idem_store_command_t  ngx_http_idem_redis_commands[] = {

    { { ngx_string("server"), NGX_CONF_1MORE,
        ngx_http_idem_redis_set_servers, 0,
        offsetof(ngx_http_idem_redis_t, client.servers), NULL },
      "<host>:<port> or unix:<path>, for example 127.0.0.1:6379" },

    { { ngx_string("user"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.user), NULL },
      "a name, for example nginx" },

    { { ngx_string("password"), NGX_CONF_TAKE1,
        ngx_http_idem_store_password, 0,
        offsetof(ngx_http_idem_redis_t, client.password), NULL },
      "the password" },

    { { ngx_string("password_file"), NGX_CONF_TAKE1,
        ngx_http_idem_store_password_file, 0,
        offsetof(ngx_http_idem_redis_t, client.password), NULL },
      "a file, for example /etc/nginx/redis.password" },

    { { ngx_string("db"), NGX_CONF_TAKE1, ngx_conf_set_num_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.db),
        &ngx_http_idem_redis_dbs },
      "a number from 0 to 65535" },

    { { ngx_string("prefix"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, prefix),
        &ngx_http_idem_redis_prefix },
      "at most 128 characters, for example idempotency:" },

    { { ngx_string("connect_timeout"), NGX_CONF_TAKE1,
        ngx_conf_set_msec_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.connect_timeout),
        &ngx_http_idem_redis_times },
      NGX_HTTP_IDEM_RIGHT_TIME },

    { { ngx_string("timeout"), NGX_CONF_TAKE1, ngx_conf_set_msec_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.timeout),
        &ngx_http_idem_redis_times },
      NGX_HTTP_IDEM_RIGHT_TIME },

    { { ngx_string("connections"), NGX_CONF_TAKE1, ngx_conf_set_num_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.connections),
        &ngx_http_idem_redis_connections },
      "a number from 1 to 64" },

    { { ngx_string("cluster"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.cluster), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("sentinel"), NGX_CONF_1MORE,
        ngx_http_idem_redis_set_servers, 0,
        offsetof(ngx_http_idem_redis_t, client.sentinels), NULL },
      "\"sentinel <host>:<port> ... master=<name>\"" },

    { { ngx_string("sentinel_user"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.sentinel_user), NULL },
      "a name, for example nginx" },

    { { ngx_string("sentinel_password"), NGX_CONF_TAKE1,
        ngx_http_idem_store_password, 0,
        offsetof(ngx_http_idem_redis_t, client.sentinel_password), NULL },
      "the password" },

    { { ngx_string("sentinel_password_file"), NGX_CONF_TAKE1,
        ngx_http_idem_store_password_file, 0,
        offsetof(ngx_http_idem_redis_t, client.sentinel_password), NULL },
      "a file, for example /etc/nginx/sentinel.password" },

    { { ngx_string("sentinel_tls"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.sentinel_tls), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("replicas"), NGX_CONF_1MORE,
        ngx_http_idem_redis_set_replicas, 0,
        offsetof(ngx_http_idem_redis_t, client.replicas), NULL },
      "\"replicas <n> [timeout=500ms]\"" },

    { { ngx_string("tls"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.tls), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("tls_verify"), NGX_CONF_FLAG, ngx_conf_set_flag_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.tls_verify), NULL },
      NGX_HTTP_IDEM_RIGHT_FLAG },

    { { ngx_string("tls_trusted_certificate"), NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.tls_trusted_certificate),
        NULL },
      "a file, for example /etc/nginx/redis-ca.pem" },

    { { ngx_string("tls_name"), NGX_CONF_TAKE1, ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.tls_name), NULL },
      "a name, for example redis.example.com" },

    { { ngx_string("tls_certificate"), NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.tls_certificate), NULL },
      "a file, for example /etc/nginx/redis-client.pem" },

    { { ngx_string("tls_certificate_key"), NGX_CONF_TAKE1,
        ngx_conf_set_str_slot, 0,
        offsetof(ngx_http_idem_redis_t, client.tls_certificate_key), NULL },
      "a file, for example /etc/nginx/redis-client.key" },

    { ngx_null_command, NULL }
};


void *
ngx_http_idem_redis_create_conf(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    ngx_http_idem_redis_t  *redis;

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_redis_t));
    if (redis == NULL) {
        return NULL;
    }

    redis->store = store;

    if (ngx_array_init(&redis->client.servers, cf->pool, 1,
                       sizeof(ngx_redis_addr_t))
        != NGX_OK
        || ngx_array_init(&redis->client.sentinels, cf->pool, 1,
                          sizeof(ngx_redis_addr_t))
           != NGX_OK)
    {
        return NULL;
    }

    redis->client.db = NGX_CONF_UNSET;
    redis->client.connect_timeout = NGX_CONF_UNSET_MSEC;
    redis->client.timeout = NGX_CONF_UNSET_MSEC;
    redis->client.connections = NGX_CONF_UNSET;
    redis->client.cluster = NGX_CONF_UNSET;
    redis->client.sentinel_tls = NGX_CONF_UNSET;
    redis->client.replicas = NGX_CONF_UNSET;
    redis->client.tls = NGX_CONF_UNSET;
    redis->client.tls_verify = NGX_CONF_UNSET;

    return redis;
}


char *
ngx_http_idem_redis_init_conf(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    u_char                 *p;
    ngx_http_idem_redis_t  *redis;

    redis = store->conf;

    ngx_conf_init_value(redis->client.cluster, 0);

    if (ngx_http_idem_redis_init_servers(cf, redis) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    if (redis->client.user.len && redis->client.password.len == 0) {
        return ngx_http_idem_store_wrong(cf, store,
                                         "has a \"user\" without a \"password"
                                         "\" or \"password_file\"");
    }

    ngx_conf_init_value(redis->client.db, 0);
    ngx_conf_init_msec_value(redis->client.connect_timeout,
                             NGX_HTTP_IDEM_REDIS_TIMEOUT);
    ngx_conf_init_msec_value(redis->client.timeout,
                             NGX_HTTP_IDEM_REDIS_TIMEOUT);
    ngx_conf_init_value(redis->client.connections,
                        NGX_HTTP_IDEM_REDIS_CONNECTIONS);
    ngx_conf_init_value(redis->client.replicas, 0);
    ngx_conf_init_value(redis->client.tls, 0);

    if (redis->prefix.len == 0) {
        ngx_str_set(&redis->prefix, NGX_HTTP_IDEM_REDIS_PREFIX);
    }

    p = redis->prefix.data + redis->prefix.len;

    if (redis->client.cluster
        && ngx_redis_slot(redis->prefix.data, redis->prefix.len)
           != ngx_redis_crc16(redis->prefix.data, p)
              % NGX_REDIS_SLOTS)
    {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "store \"%V\" in %s:%ui has a \"prefix\" with a hash "
                      "tag, \"%V\": all records are in one slot, and so on "
                      "one node of the cluster", &store->name, store->file,
                      store->line, &redis->prefix);
    }

    if ((redis->client.cluster || redis->client.master_name.len)
        && ngx_http_idem_redis_nodes_conf(cf, redis) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (redis->client.master_name.len
        && ngx_http_idem_redis_sentinel_conf(cf, redis) != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    p = ngx_pnalloc(cf->pool, redis->prefix.len + sizeof("wake") - 1
                              + sizeof("idempotency: store \"\"") - 1
                              + store->name.len);
    if (p == NULL) {
        return NGX_CONF_ERROR;
    }

    redis->client.channel.data = p;
    p = ngx_sprintf(p, "%Vwake", &redis->prefix);
    redis->client.channel.len = p - redis->client.channel.data;

    redis->client.label.data = p;
    p = ngx_sprintf(p, "idempotency: store \"%V\"", &store->name);
    redis->client.label.len = p - redis->client.label.data;

    return ngx_http_idem_redis_init_tls(cf, redis);
}


static char *
ngx_http_idem_redis_init_tls(ngx_conf_t *cf, ngx_http_idem_redis_t *redis)
{
    const char   *wrong;
    ngx_redis_t  *client;

    client = &redis->client;

    ngx_conf_init_value(client->sentinel_tls, client->tls);

    wrong = ngx_http_idem_redis_check_tls(client);

    if (wrong) {
        return ngx_http_idem_store_wrong(cf, redis->store, wrong);
    }

    if (!client->tls && !client->sentinel_tls) {
        return NGX_CONF_OK;
    }

    ngx_conf_init_value(client->tls_verify, 1);

    return ngx_http_idem_redis_create_ssl(cf, redis);
}


/* what is wrong with the combination of directives, or NULL */

static const char *
ngx_http_idem_redis_check_tls(ngx_redis_t *client)
{
    ngx_redis_addr_t  *server;

    if (!client->tls && !client->sentinel_tls) {

        if (client->tls_verify != NGX_CONF_UNSET
            || client->tls_trusted_certificate.len || client->tls_name.len
            || client->tls_certificate.len || client->tls_certificate_key.len)
        {
            return "has \"tls_...\" directives without \"tls on\"";
        }

        return NULL;
    }

    if ((client->tls_certificate.len == 0)
        != (client->tls_certificate_key.len == 0))
    {
        return "has one of \"tls_certificate\" and \"tls_certificate_key\" "
               "without the other";
    }

    /* without tls_name, a certificate is checked for the host of its server */

    server = client->servers.elts;

    if (client->tls_name.len == 0 && client->tls_verify != 0
        && client->servers.nelts && server->url.family == AF_UNIX)
    {
        return "has TLS on a unix socket: it needs a \"tls_name\" to check, "
               "or \"tls_verify off\"";
    }

#if !(NGX_SSL)
    return "has \"tls on\", and this nginx was built without TLS";
#else
    return NULL;
#endif
}


/* how servers are verified, and the client certificate */

static char *
ngx_http_idem_redis_create_ssl(ngx_conf_t *cf, ngx_http_idem_redis_t *redis)
{
#if (NGX_SSL)
    ngx_ssl_t           *ssl;
    ngx_redis_t         *client;
    ngx_pool_cleanup_t  *cln;

    client = &redis->client;

    ssl = ngx_pcalloc(cf->pool, sizeof(ngx_ssl_t));
    if (ssl == NULL) {
        return NGX_CONF_ERROR;
    }

    ssl->log = cf->log;

    if (ngx_ssl_create(ssl, NGX_SSL_TLSv1_2|NGX_SSL_TLSv1_3, NULL)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        ngx_ssl_cleanup_ctx(ssl);
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_ssl_cleanup_ctx;
    cln->data = ssl;

    if (client->tls_certificate.len
        && ngx_http_idem_redis_certificate(cf, redis, ssl) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (client->tls_verify && client->tls_trusted_certificate.len == 0
        && SSL_CTX_set_default_verify_paths(ssl->ctx) == 0)
    {
        return ngx_http_idem_store_wrong(cf, redis->store,
                        "needs \"tls_trusted_certificate\": the system's own "
                        "certificates can't be loaded");
    }

    if (client->tls_verify && client->tls_trusted_certificate.len
        && ngx_ssl_trusted_certificate(cf, ssl,
                                       &client->tls_trusted_certificate,
                                       NGX_HTTP_IDEM_REDIS_VERIFY_DEPTH)
           != NGX_OK)
    {
        return ngx_http_idem_store_wrong(cf, redis->store,
                        "has a \"tls_trusted_certificate\" that can't be "
                        "loaded");
    }

    client->ssl = ssl;
#endif

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_check_prefix(ngx_conf_t *cf, void *post, void *data)
{
    ngx_str_t  *prefix = data;

    return (prefix->len > NGX_HTTP_IDEM_REDIS_PREFIX_MAX) ? "invalid value"
                                                          : NGX_CONF_OK;
}


#if (NGX_SSL)

/*
 * nginx has the value in its messages, which is the key itself if it is given
 * as "data:".
 */

static ngx_int_t
ngx_http_idem_redis_certificate(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_ssl_t *ssl)
{
    ngx_int_t    rc;
    ngx_log_t    quiet;
    ngx_str_t   *cert, *key;
    ngx_uint_t   data;

    cert = &redis->client.tls_certificate;
    key = &redis->client.tls_certificate_key;

    data = ngx_http_idem_store_is_data(cert)
           || ngx_http_idem_store_is_data(key);

    if (data) {
        quiet = *cf->log;
        quiet.log_level = 0;
        ssl->log = &quiet;
    }

    rc = ngx_ssl_certificate(cf, ssl, cert, key, NULL);
    ssl->log = cf->log;

    if (rc != NGX_OK) {
        (void) ngx_http_idem_store_wrong(cf, redis->store, data
                        ? "has a \"tls_certificate\" and a "
                          "\"tls_certificate_key\", with \"data:\", that "
                          "can't be loaded or do not belong together"
                        : "has a \"tls_certificate\" and a "
                          "\"tls_certificate_key\" that can't be loaded or "
                          "do not belong together");
    }

    return rc;
}

#endif
