
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * TLS of a Redis store: how servers are verified, and the client certificate.
 *
 * Called when the block of the store has been read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_VERIFY_DEPTH  9


char *
ngx_http_idem_redis_init_tls(ngx_conf_t *cf, ngx_http_idem_redis_t *redis)
{
#if (NGX_SSL)
    u_char              *name;
    ngx_ssl_t           *ssl;
    ngx_pool_cleanup_t  *cln;
#endif

    ngx_conf_init_value(redis->client.sentinel_tls, redis->client.tls);

    if (!redis->client.tls && !redis->client.sentinel_tls) {

        if (redis->client.tls_verify != NGX_CONF_UNSET
            || redis->client.tls_trusted_certificate.len
            || redis->client.tls_name.len
            || redis->client.tls_certificate.len
            || redis->client.tls_certificate_key.len)
        {
            return ngx_http_idem_store_wrong(cf, redis->store,
                                             "has \"tls_...\" directives "
                                             "without \"tls on\"");
        }

        return NGX_CONF_OK;
    }

    ngx_conf_init_value(redis->client.tls_verify, 1);

    if ((redis->client.tls_certificate.len == 0)
        != (redis->client.tls_certificate_key.len == 0))
    {
        return ngx_http_idem_store_wrong(cf, redis->store,
                                         "has one of \"tls_certificate\" and "
                                         "\"tls_certificate_key\" without the "
                                         "other");
    }

    /* without tls_name, a certificate is checked for the host of its
       server */

    if (redis->client.tls_name.len == 0 && redis->client.tls_verify
        && redis->client.servers.nelts
        && ((ngx_redis_addr_t *) redis->client.servers.elts)->url
           .family == AF_UNIX)
    {
        return ngx_http_idem_store_wrong(cf, redis->store,
                                         "has TLS on a unix socket: it needs "
                                         "a \"tls_name\" to check, or "
                                         "\"tls_verify off\"");
    }

#if (NGX_SSL)

    /* OpenSSL needs a NUL-terminated string */

    name = ngx_pnalloc(cf->pool, redis->client.tls_name.len + 1);
    if (name == NULL) {
        return NGX_CONF_ERROR;
    }

    *ngx_cpymem(name, redis->client.tls_name.data,
                redis->client.tls_name.len) = '\0';
    redis->client.tls_name.data = name;

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

    if (redis->client.tls_certificate.len
        && ngx_ssl_certificate(cf, ssl, &redis->client.tls_certificate,
                               &redis->client.tls_certificate_key, NULL)
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (redis->client.tls_verify) {

        if (redis->client.tls_trusted_certificate.len == 0) {

            if (SSL_CTX_set_default_verify_paths(ssl->ctx) == 0) {
                return ngx_http_idem_store_wrong(cf, redis->store,
                            "needs \"tls_trusted_certificate\": the system's "
                            "own certificates can't be loaded");
            }

        } else if (ngx_ssl_trusted_certificate(cf, ssl,
                                    &redis->client.tls_trusted_certificate,
                                    NGX_HTTP_IDEM_REDIS_VERIFY_DEPTH)
                   != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    redis->client.ssl = ssl;

    return NGX_CONF_OK;

#else

    return ngx_http_idem_store_wrong(cf, redis->store,
                                     "has \"tls on\", and this nginx was "
                                     "built without TLS");

#endif
}
