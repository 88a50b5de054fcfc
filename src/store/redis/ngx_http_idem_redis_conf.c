
/*
 * The block of directives that declares a Redis store.
 *
 * Every value that is wrong is named, with what would be right; a password is
 * not.  Addresses and TLS have files of their own, ..._redis_conf_servers.c and
 * ..._redis_conf_tls.c.
 *
 * Called while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#define NGX_HTTP_IDEM_REDIS_PREFIX           "idempotency:"
#define NGX_HTTP_IDEM_REDIS_TIMEOUT          1000
#define NGX_HTTP_IDEM_REDIS_TIMEOUT_MAX      3600000
#define NGX_HTTP_IDEM_REDIS_CONNECTIONS      1
#define NGX_HTTP_IDEM_REDIS_CONNECTIONS_MAX  64
#define NGX_HTTP_IDEM_REDIS_DB_MAX           65535
#define NGX_HTTP_IDEM_REDIS_PASSWORD_MAX     4096


typedef struct {
    const char      *name;
    char          *(*set)(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
                          ngx_str_t *value, void *field);
    size_t           offset;
    const char      *example;
    ngx_uint_t       many;              /* it takes several arguments       */
} ngx_http_idem_redis_command_t;


static char *ngx_http_idem_redis_set_str(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_file(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_password(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_password_file(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_prefix(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_number(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_time(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);
static char *ngx_http_idem_redis_set_flag(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field);


static ngx_http_idem_redis_command_t
    ngx_http_idem_redis_commands[] =
{
    { "server",
      ngx_http_idem_redis_set_server,
      offsetof(ngx_http_idem_redis_t, client.servers),
      "127.0.0.1:6379 or unix:/run/redis.sock", 1 },

    { "user",
      ngx_http_idem_redis_set_str,
      offsetof(ngx_http_idem_redis_t, client.user),
      "nginx", 0 },

    { "password",
      ngx_http_idem_redis_set_password,
      offsetof(ngx_http_idem_redis_t, client.password),
      "<the password>", 0 },

    { "password_file",
      ngx_http_idem_redis_set_password_file,
      offsetof(ngx_http_idem_redis_t, client.password),
      "/etc/nginx/redis.password", 0 },

    { "db",
      ngx_http_idem_redis_set_number,
      offsetof(ngx_http_idem_redis_t, client.db),
      "0", 0 },

    { "prefix",
      ngx_http_idem_redis_set_prefix,
      offsetof(ngx_http_idem_redis_t, prefix),
      "idempotency:", 0 },

    { "connect_timeout",
      ngx_http_idem_redis_set_time,
      offsetof(ngx_http_idem_redis_t, client.connect_timeout),
      "1s", 0 },

    { "timeout",
      ngx_http_idem_redis_set_time,
      offsetof(ngx_http_idem_redis_t, client.timeout),
      "1s", 0 },

    { "connections",
      ngx_http_idem_redis_set_number,
      offsetof(ngx_http_idem_redis_t, client.connections),
      "1", 0 },

    { "cluster",
      ngx_http_idem_redis_set_flag,
      offsetof(ngx_http_idem_redis_t, client.cluster),
      "on", 0 },

    { "sentinel",
      ngx_http_idem_redis_set_sentinel,
      offsetof(ngx_http_idem_redis_t, client.sentinels),
      "127.0.0.1:26379 master=mymaster", 1 },

    { "sentinel_user",
      ngx_http_idem_redis_set_str,
      offsetof(ngx_http_idem_redis_t, client.sentinel_user),
      "nginx", 0 },

    { "sentinel_password",
      ngx_http_idem_redis_set_password,
      offsetof(ngx_http_idem_redis_t, client.sentinel_password),
      "<the password>", 0 },

    { "sentinel_password_file",
      ngx_http_idem_redis_set_password_file,
      offsetof(ngx_http_idem_redis_t, client.sentinel_password),
      "/etc/nginx/sentinel.password", 0 },

    { "sentinel_tls",
      ngx_http_idem_redis_set_flag,
      offsetof(ngx_http_idem_redis_t, client.sentinel_tls),
      "on", 0 },

    { "replicas",
      ngx_http_idem_redis_set_replicas,
      offsetof(ngx_http_idem_redis_t, client.replicas),
      "1 timeout=500ms", 1 },

    { "tls",
      ngx_http_idem_redis_set_flag,
      offsetof(ngx_http_idem_redis_t, client.tls),
      "on", 0 },

    { "tls_verify",
      ngx_http_idem_redis_set_flag,
      offsetof(ngx_http_idem_redis_t, client.tls_verify),
      "on", 0 },

    { "tls_trusted_certificate",
      ngx_http_idem_redis_set_file,
      offsetof(ngx_http_idem_redis_t, client.tls_trusted_certificate),
      "/etc/nginx/redis-ca.pem", 0 },

    { "tls_name",
      ngx_http_idem_redis_set_str,
      offsetof(ngx_http_idem_redis_t, client.tls_name),
      "redis.example.com", 0 },

    { "tls_certificate",
      ngx_http_idem_redis_set_file,
      offsetof(ngx_http_idem_redis_t, client.tls_certificate),
      "/etc/nginx/redis-client.pem", 0 },

    { "tls_certificate_key",
      ngx_http_idem_redis_set_file,
      offsetof(ngx_http_idem_redis_t, client.tls_certificate_key),
      "/etc/nginx/redis-client.key", 0 },

    { NULL, NULL, 0, NULL, 0 }
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
ngx_http_idem_redis_directive(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    u_char                         *p, *last;
    ngx_str_t                      *value;
    ngx_http_idem_redis_command_t  *cmd;

    u_char  names[512];

    value = cf->args->elts;

    p = names;
    last = names + sizeof(names);

    for (cmd = ngx_http_idem_redis_commands; cmd->name; cmd++) {

        if (ngx_strcmp(value[0].data, cmd->name) == 0) {
            break;
        }

        p = ngx_slprintf(p, last, "%s%s", p == names ? "" : ", ", cmd->name);
    }

    if (cmd->name == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown directive \"%V\" in a redis store: it "
                           "has %*s", &value[0], (size_t) (p - names), names);
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts < 2 || value[1].len == 0
        || (cf->args->nelts > 2 && !cmd->many))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of arguments in \"%s\" directive: "
                           "it takes one%s that is not empty, for example "
                           "\"%s %s\"", cmd->name, cmd->many ? " or more" : "",
                           cmd->name, cmd->example);
        return NGX_CONF_ERROR;
    }

    return cmd->set(cf, store->conf, value,
                    (char *) store->conf + cmd->offset);
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
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "store \"%V\" in %s:%ui has a \"user\" without a "
                      "\"password\" or \"password_file\"",
                      &store->name, store->file, store->line);
        return NGX_CONF_ERROR;
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
ngx_http_idem_redis_set_str(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    ngx_str_t  *s = field;

    if (s->len) {
        return "is duplicate";
    }

    *s = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_set_file(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    ngx_str_t  *s = field;

    if (s->len) {
        return "is duplicate";
    }

    *s = value[1];

    if (ngx_conf_full_name(cf->cycle, s, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_set_password(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    ngx_str_t  *password = field;

    if (password->len) {
        return "is duplicate: there is one password, in \"password\" or in "
               "\"password_file\"";
    }

    *password = value[1];

    return NGX_CONF_OK;
}


/* the first line of it; read by the master, which may read more than workers */

static char *
ngx_http_idem_redis_set_password_file(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis, ngx_str_t *value, void *field)
{
    ngx_str_t  *password = field;

    u_char      *p, *last;
    ssize_t      n;
    ngx_fd_t     fd;
    ngx_str_t    name;
    const char  *wrong;

    if (password->len) {
        return "is duplicate: there is one password, in \"password\" or in "
               "\"password_file\"";
    }

    name = value[1];

    if (ngx_conf_full_name(cf->cycle, &name, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    fd = ngx_open_file(name.data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" of \"%V\" failed",
                           &name, &value[0]);
        return NGX_CONF_ERROR;
    }

    wrong = NULL;

    p = ngx_pnalloc(cf->pool, NGX_HTTP_IDEM_REDIS_PASSWORD_MAX);

    if (p == NULL) {
        wrong = "there is no memory for it";
        goto done;
    }

    n = ngx_read_fd(fd, p, NGX_HTTP_IDEM_REDIS_PASSWORD_MAX);

    if (n == -1) {
        wrong = "it can't be read";
        goto done;
    }

    if (n == NGX_HTTP_IDEM_REDIS_PASSWORD_MAX) {
        wrong = "it is too long";
        goto done;
    }

    last = p + n;

    if (last > p && last[-1] == LF) {
        last--;
    }

    if (last > p && last[-1] == CR) {
        last--;
    }

    if (last == p) {
        wrong = "it is empty";
        goto done;
    }

    password->data = p;
    password->len = last - p;

done:

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_errno,
                           ngx_close_file_n " \"%V\" failed", &name);
    }

    if (wrong) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid %V \"%V\": %s; it holds the password "
                           "and nothing else", &value[0], &name, wrong);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_set_prefix(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    if (redis->prefix.len) {
        return "is duplicate";
    }

    if (value[1].len > NGX_HTTP_IDEM_REDIS_PREFIX_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid prefix \"%V\": it is too long, at most "
                           "%d characters", &value[1],
                           NGX_HTTP_IDEM_REDIS_PREFIX_MAX);
        return NGX_CONF_ERROR;
    }

    redis->prefix = value[1];

    return NGX_CONF_OK;
}


/* "db" and "connections" */

static char *
ngx_http_idem_redis_set_number(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    ngx_int_t  *n = field;
    ngx_int_t   min, max;

    if (*n != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    if (n == &redis->client.db) {
        min = 0;
        max = NGX_HTTP_IDEM_REDIS_DB_MAX;

    } else {
        min = 1;
        max = NGX_HTTP_IDEM_REDIS_CONNECTIONS_MAX;
    }

    *n = ngx_atoi(value[1].data, value[1].len);

    if (*n == NGX_ERROR || *n < min || *n > max) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive: it is "
                           "a number from %i to %i", &value[1], &value[0],
                           min, max);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_set_time(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    ngx_msec_t  *t = field;
    ngx_int_t    n;

    if (*t != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    n = ngx_parse_time(&value[1], 0);

    if (n == NGX_ERROR || n == 0
        || n > NGX_HTTP_IDEM_REDIS_TIMEOUT_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive: it is "
                           "a time from 1ms to 1h, for example 1s or 500ms",
                           &value[1], &value[0]);
        return NGX_CONF_ERROR;
    }

    *t = (ngx_msec_t) n;

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_redis_set_flag(ngx_conf_t *cf, ngx_http_idem_redis_t *redis,
    ngx_str_t *value, void *field)
{
    ngx_flag_t  *flag = field;

    if (*flag != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    if (ngx_strcmp(value[1].data, "on") == 0) {
        *flag = 1;

    } else if (ngx_strcmp(value[1].data, "off") == 0) {
        *flag = 0;

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\" directive: it is "
                           "\"on\" or \"off\"", &value[1], &value[0]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
