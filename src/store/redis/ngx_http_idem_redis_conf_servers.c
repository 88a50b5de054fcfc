
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The addresses of a Redis store: "server", "sentinel", "replicas", and the
 * checks of their combinations.
 *
 * The master process resolves a host name here, if it can.  If a resolver is
 * configured, workers resolve it again.
 *
 * Called while the configuration is read, and at the end of the block.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_REPLICAS_MAX      100
#define NGX_HTTP_IDEM_REDIS_REPLICAS_TIMEOUT  500

#define NGX_HTTP_IDEM_REDIS_PORT           6379
#define NGX_HTTP_IDEM_REDIS_SENTINEL_PORT  26379


static char *ngx_http_idem_redis_add(ngx_conf_t *cf, ngx_array_t *addrs,
    ngx_str_t *value, in_port_t port, ngx_str_t *directive);
static const char *ngx_http_idem_redis_check_servers(ngx_redis_t *client);
static const char *ngx_http_idem_redis_check_sentinels(ngx_redis_t *client);
static char *ngx_http_idem_redis_check_names(ngx_conf_t *cf,
    ngx_http_idem_store_t *store, const char *directive, ngx_array_t *addrs);


/* server <address> ...; sentinel <address> ... master=<name> */

char *
ngx_http_idem_redis_set_servers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idem_redis_t  *redis = conf;

    ngx_str_t    *value, name;
    in_port_t     port;
    ngx_uint_t    i;
    ngx_array_t  *addrs;

    value = cf->args->elts;
    addrs = (ngx_array_t *) ((char *) conf + cmd->offset);

    port = (addrs == &redis->client.servers)
           ? NGX_HTTP_IDEM_REDIS_PORT : NGX_HTTP_IDEM_REDIS_SENTINEL_PORT;

    for (i = 1; i < cf->args->nelts; i++) {

        if (addrs == &redis->client.servers
            || ngx_strncmp(value[i].data, "master=", 7) != 0)
        {
            if (ngx_http_idem_redis_add(cf, addrs, &value[i], port,
                                        &cmd->name)
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        name.data = value[i].data + 7;
        name.len = value[i].len - 7;

        if (name.len == 0
            || (redis->client.master_name.len
                && (redis->client.master_name.len != name.len
                    || ngx_strncmp(redis->client.master_name.data, name.data,
                                   name.len)
                       != 0)))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid \"%V\" in \"sentinel\" directive: it "
                               "is the name that all sentinels have for the "
                               "one master, for example master=mymaster",
                               &value[i]);
            return NGX_CONF_ERROR;
        }

        redis->client.master_name = name;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_add(ngx_conf_t *cf, ngx_array_t *addrs, ngx_str_t *value,
    in_port_t port, ngx_str_t *directive)
{
    ngx_url_t         *u;
    ngx_redis_addr_t  *addr;

    if (ngx_http_idem_store_has_secret(value)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, NGX_HTTP_IDEM_STORE_SECRET,
                           directive);
        return NGX_CONF_ERROR;
    }

    addr = ngx_array_push(addrs);
    if (addr == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(addr, sizeof(ngx_redis_addr_t));

    addr->file = cf->conf_file->file.name.data;
    addr->line = cf->conf_file->line;

    u = &addr->url;

    u->url = *value;
    u->default_port = port;
    u->no_resolve = 1;

    if (ngx_parse_url(cf->pool, u) != NGX_OK || u->uri.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid %V \"%V\"%s%s: it is <host>:<port>%s, for "
                           "example 127.0.0.1:%d", directive, value,
                           u->err ? ", " : "", u->err ? u->err : "",
                           port == NGX_HTTP_IDEM_REDIS_PORT
                               ? " or unix:<path>" : "", (int) port);
        return NGX_CONF_ERROR;
    }

    if (u->naddrs == 0 && ngx_inet_resolve_host(cf->pool, u) != NGX_OK) {

        /* workers may resolve it, if a resolver is configured, which is not
           known before the end of the configuration */

        u->naddrs = 0;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idem_redis_init_servers(ngx_conf_t *cf, ngx_http_idem_redis_t *redis)
{
    const char  *wrong;

    wrong = ngx_http_idem_redis_check_servers(&redis->client);

    if (wrong) {
        return ngx_http_idem_store_wrong(cf, redis->store, wrong);
    }

    if (ngx_http_idem_redis_check_names(cf, redis->store, "server",
                                        &redis->client.servers)
        != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_redis_check_names(cf, redis->store, "sentinel",
                                           &redis->client.sentinels);
}


/* what is wrong with the combination of directives, or NULL */

static const char *
ngx_http_idem_redis_check_servers(ngx_redis_t *client)
{
    ngx_uint_t         i;
    ngx_redis_addr_t  *addr;

    if (client->sentinels.nelts) {
        return ngx_http_idem_redis_check_sentinels(client);
    }

    if (client->master_name.len) {
        return "has a \"sentinel\" without an address: it needs one, for "
               "example \"sentinel 127.0.0.1:26379 master=mymaster\"";
    }

    if (client->sentinel_user.len || client->sentinel_password.len
        || client->sentinel_tls != NGX_CONF_UNSET)
    {
        return "has \"sentinel_...\" directives without a \"sentinel\"";
    }

    if (client->servers.nelts == 0) {
        return "has no \"server\": it needs one, for example \"server "
               "127.0.0.1:6379\", or a \"sentinel\"";
    }

    if (!client->cluster) {
        return client->servers.nelts == 1 ? NULL
               : "has more than one \"server\": this is for \"cluster on\", "
                 "otherwise there is one";
    }

    addr = client->servers.elts;

    for (i = 0; i < client->servers.nelts; i++) {
        if (addr[i].url.family == AF_UNIX) {
            return "has \"cluster on\" and a \"server\" that is a unix "
                   "socket: the nodes of a cluster have addresses and ports";
        }
    }

    if (client->db != NGX_CONF_UNSET && client->db != 0) {
        return "has \"cluster on\" and a \"db\" other than 0: a cluster has "
               "no other";
    }

    return NULL;
}


static const char *
ngx_http_idem_redis_check_sentinels(ngx_redis_t *client)
{
    ngx_uint_t         i;
    ngx_redis_addr_t  *addr;

    if (client->cluster) {
        return "has \"sentinel\" and \"cluster on\": a cluster elects its "
               "masters itself, it has \"server\" only";
    }

    if (client->servers.nelts) {
        return "has \"sentinel\" and \"server\": the sentinels tell which "
               "server it is, remove one of both";
    }

    if (client->master_name.len == 0) {
        return "has a \"sentinel\" without \"master=\": it needs the "
               "master's name, for example \"sentinel 127.0.0.1:26379 "
               "master=mymaster\"";
    }

    if (client->sentinel_user.len && client->sentinel_password.len == 0) {
        return "has a \"sentinel_user\" without a \"sentinel_password\" "
               "or \"sentinel_password_file\"";
    }

    addr = client->sentinels.elts;

    for (i = 0; i < client->sentinels.nelts; i++) {
        if (addr[i].url.family == AF_UNIX) {
            return "has a \"sentinel\" that is a unix socket: sentinels have "
                   "addresses and ports";
        }
    }

    return NULL;
}


static char *
ngx_http_idem_redis_check_names(ngx_conf_t *cf, ngx_http_idem_store_t *store,
    const char *directive, ngx_array_t *addrs)
{
    ngx_uint_t         i;
    ngx_redis_addr_t  *addr;

    addr = addrs->elts;

    for (i = 0; i < addrs->nelts; i++) {
        if (addr[i].url.naddrs == 0
            && ngx_http_idem_store_not_found(cf, store, directive,
                                             &addr[i].url.url, addr[i].file,
                                             addr[i].line)
               != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* replicas <n> [timeout=<time>]; 0: off */

char *
ngx_http_idem_redis_set_replicas(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_idem_redis_t  *redis = conf;

    ngx_int_t   n;
    ngx_str_t  *value, s;

    value = cf->args->elts;

    if (redis->client.replicas != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n > NGX_HTTP_IDEM_REDIS_REPLICAS_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of replicas \"%V\" in "
                           "\"replicas\" directive: it is from 0 (off) to "
                           "%d", &value[1],
                           NGX_HTTP_IDEM_REDIS_REPLICAS_MAX);
        return NGX_CONF_ERROR;
    }

    redis->client.replicas = n;
    redis->client.replicas_timeout = NGX_HTTP_IDEM_REDIS_REPLICAS_TIMEOUT;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    if (cf->args->nelts > 3
        || ngx_strncmp(value[2].data, "timeout=", 8) != 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"replicas\" "
                           "directive: it takes a number and a time, for "
                           "example \"replicas 1 timeout=500ms\"",
                           &value[cf->args->nelts - 1]);
        return NGX_CONF_ERROR;
    }

    s.data = value[2].data + 8;
    s.len = value[2].len - 8;

    n = ngx_parse_time(&s, 0);

    /* for WAIT, 0 is no limit */

    if (n == NGX_ERROR || n == 0 || n > NGX_HTTP_IDEM_HOUR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"replicas\" directive: "
                           "it is a time from 1ms to 1h, for example "
                           "timeout=500ms", &value[2]);
        return NGX_CONF_ERROR;
    }

    redis->client.replicas_timeout = (ngx_msec_t) n;

    return NGX_CONF_OK;
}
