
/*
 * The addresses of a Redis store: "server", "sentinel", and what of both goes
 * together.
 *
 * A name is looked up here, by the master, if it can be; where a resolver is
 * configured, workers look it up again.
 *
 * Called while the configuration is read, and when the block is at its end.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_PORT           6379
#define NGX_HTTP_IDEM_REDIS_SENTINEL_PORT  26379


static char *ngx_http_idem_redis_add(ngx_conf_t *cf,
    ngx_array_t *addrs, ngx_str_t *value, in_port_t port, const char *what);
static const char *ngx_http_idem_redis_check_servers(
    ngx_http_idem_redis_t *redis);
static ngx_int_t ngx_http_idem_redis_check_names(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_array_t *addrs);


/* server <address> ... */

char *
ngx_http_idem_redis_set_server(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field)
{
    ngx_uint_t  i;

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_http_idem_redis_add(cf, field, &value[i],
                                    NGX_HTTP_IDEM_REDIS_PORT,
                                    "server")
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* sentinel <address> ... master=<name> */

char *
ngx_http_idem_redis_set_sentinel(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field)
{
    ngx_str_t   name;
    ngx_uint_t  i;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "master=", 7) != 0) {

            if (ngx_http_idem_redis_add(cf, field, &value[i],
                                    NGX_HTTP_IDEM_REDIS_SENTINEL_PORT,
                                    "sentinel")
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        name.data = value[i].data + 7;
        name.len = value[i].len - 7;

        if (name.len == 0
            || (redis->master_name.len
                && (redis->master_name.len != name.len
                    || ngx_strncmp(redis->master_name.data, name.data,
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

        redis->master_name = name;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_add(ngx_conf_t *cf, ngx_array_t *addrs,
    ngx_str_t *value, in_port_t port, const char *what)
{
    ngx_url_t                   *u;
    ngx_http_idem_redis_addr_t  *addr;

    addr = ngx_array_push(addrs);
    if (addr == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(addr, sizeof(ngx_http_idem_redis_addr_t));

    addr->file = cf->conf_file->file.name.data;
    addr->line = cf->conf_file->line;

    u = &addr->url;

    u->url = *value;
    u->default_port = port;
    u->no_resolve = 1;

    if (ngx_parse_url(cf->pool, u) != NGX_OK || u->uri.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid %s \"%V\"%s%s: it is <host>:<port>%s, for "
                           "example 127.0.0.1:%d", what, value,
                           u->err ? ", " : "", u->err ? u->err : "",
                           port == NGX_HTTP_IDEM_REDIS_PORT
                               ? " or unix:<path>" : "", (int) port);
        return NGX_CONF_ERROR;
    }

    if (u->naddrs == 0 && ngx_inet_resolve_host(cf->pool, u) != NGX_OK) {

        /* workers may find it, if there is a resolver: known in the end */

        u->naddrs = 0;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idem_redis_init_servers(ngx_conf_t *cf, ngx_http_idem_redis_t *redis)
{
    const char  *wrong;

    wrong = ngx_http_idem_redis_check_servers(redis);

    if (wrong) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "store \"%V\" in %s:%ui %s",
                      &redis->store->name, redis->store->file,
                      redis->store->line, wrong);
        return NGX_CONF_ERROR;
    }

    if (ngx_http_idem_redis_check_names(cf, redis, &redis->servers)
        != NGX_OK
        || ngx_http_idem_redis_check_names(cf, redis, &redis->sentinels)
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* what is wrong with all of it together, or NULL */

static const char *
ngx_http_idem_redis_check_servers(ngx_http_idem_redis_t *redis)
{
    ngx_uint_t                   i;
    ngx_http_idem_redis_addr_t  *addr;

    if (redis->sentinels.nelts == 0) {

        if (redis->master_name.len) {
            return "has a \"sentinel\" without an address: it needs one, for "
                   "example \"sentinel 127.0.0.1:26379 master=mymaster\"";
        }

        if (redis->sentinel_user.len || redis->sentinel_password.len
            || redis->sentinel_tls != NGX_CONF_UNSET)
        {
            return "has \"sentinel_...\" directives without a \"sentinel\"";
        }

        if (redis->servers.nelts == 0) {
            return "has no \"server\": it needs one, for example \"server "
                   "127.0.0.1:6379\", or a \"sentinel\"";
        }

        if (redis->servers.nelts > 1 && !redis->cluster) {
            return "has more than one \"server\": this is for \"cluster on\", "
                   "otherwise there is one";
        }

    } else {

        if (redis->cluster) {
            return "has \"sentinel\" and \"cluster on\": a cluster elects its "
                   "masters itself, it has \"server\" only";
        }

        if (redis->servers.nelts) {
            return "has \"sentinel\" and \"server\": the sentinels tell which "
                   "server it is, remove one of both";
        }

        if (redis->master_name.len == 0) {
            return "has a \"sentinel\" without \"master=\": it needs the "
                   "master's name, for example \"sentinel 127.0.0.1:26379 "
                   "master=mymaster\"";
        }

        if (redis->sentinel_user.len && redis->sentinel_password.len == 0) {
            return "has a \"sentinel_user\" without a \"sentinel_password\" "
                   "or \"sentinel_password_file\"";
        }
    }

    addr = redis->servers.elts;

    for (i = 0; i < redis->servers.nelts && redis->cluster; i++) {
        if (addr[i].url.family == AF_UNIX) {
            return "has \"cluster on\" and a \"server\" that is a unix "
                   "socket: the nodes of a cluster have addresses and ports";
        }
    }

    addr = redis->sentinels.elts;

    for (i = 0; i < redis->sentinels.nelts; i++) {
        if (addr[i].url.family == AF_UNIX) {
            return "has a \"sentinel\" that is a unix socket: sentinels have "
                   "addresses and ports";
        }
    }

    if (redis->cluster && redis->db != NGX_CONF_UNSET && redis->db != 0) {
        return "has \"cluster on\" and a \"db\" other than 0: a cluster has "
               "no other";
    }

    return NULL;
}


/* a name that was not found: workers look for it, if they can */

static ngx_int_t
ngx_http_idem_redis_check_names(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_array_t *addrs)
{
    ngx_uint_t                   i, level;
    ngx_http_idem_redis_addr_t  *addr;

    addr = addrs->elts;

    for (i = 0; i < addrs->nelts; i++) {

        if (addr[i].url.naddrs) {
            continue;
        }

        level = redis->store->resolver ? NGX_LOG_WARN : NGX_LOG_EMERG;

        ngx_log_error(level, cf->log, 0,
                      "host not found in \"%s %V\" of store \"%V\" in %s:%ui%s",
                      addrs == &redis->servers ? "server" : "sentinel",
                      &addr[i].url.url, &redis->store->name, addr[i].file,
                      addr[i].line,
                      redis->store->resolver ? "; workers will look for it"
                          : "; with a \"resolver\" in the http block, workers "
                            "would look for it");

        if (redis->store->resolver == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
