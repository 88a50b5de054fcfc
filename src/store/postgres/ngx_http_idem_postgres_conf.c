
/*
 * The block of directives that declares a PostgreSQL store.
 *
 * Every value that is wrong is named, with what would be right; a password is
 * not.  Servers and TLS have a file of their own.
 *
 * Called while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_TIMEOUT          1000
#define NGX_HTTP_IDEM_PG_LOCK_TIMEOUT     250
#define NGX_HTTP_IDEM_PG_TIMEOUT_MAX      3600000
#define NGX_HTTP_IDEM_PG_CONNECTIONS_MAX  64
#define NGX_HTTP_IDEM_PG_PURGE_EVERY      1000
#define NGX_HTTP_IDEM_PG_PURGE_BATCH      500
#define NGX_HTTP_IDEM_PG_BATCH_MAX        100000
#define NGX_HTTP_IDEM_PG_PASSWORD_MAX     4096
#define NGX_HTTP_IDEM_PG_NAME_MAX         63


typedef char *(*ngx_http_idem_pg_set_pt)(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);


typedef struct {
    const char               *name;
    ngx_http_idem_pg_set_pt   set;
    size_t                    offset;
    const char               *example;
    ngx_uint_t                many;            /* it takes several arguments */
} ngx_http_idem_pg_command_t;


static char *ngx_http_idem_pg_set_str(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_file(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_password_file(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static const char *ngx_http_idem_pg_read_password(ngx_conf_t *cf,
    ngx_fd_t fd, ngx_str_t *password);
static char *ngx_http_idem_pg_set_schema(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_connections(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_time(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_flag(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_durable(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_wake(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_set_purge(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field);
static char *ngx_http_idem_pg_invalid(ngx_conf_t *cf, ngx_str_t *value,
    const char *right);
static char *ngx_http_idem_pg_set_word(ngx_conf_t *cf, ngx_str_t *value,
    ngx_uint_t *field, const char **words, const char *right);


#define ngx_http_idem_pg_field(name)                                          \
    offsetof(ngx_http_idem_pg_t, name)


static ngx_http_idem_pg_command_t
    ngx_http_idem_pg_commands[] =
{
    { "server", ngx_http_idem_pg_set_server,
      ngx_http_idem_pg_field(servers),
      "127.0.0.1:5432 or unix:/run/postgresql", 1 },

    { "database", ngx_http_idem_pg_set_str,
      ngx_http_idem_pg_field(database), "idempotency", 0 },

    { "user", ngx_http_idem_pg_set_str,
      ngx_http_idem_pg_field(user), "nginx", 0 },

    { "password", ngx_http_idem_pg_set_str,
      ngx_http_idem_pg_field(password), "<the password>", 0 },

    { "password_file", ngx_http_idem_pg_set_password_file,
      ngx_http_idem_pg_field(password),
      "/etc/nginx/postgres.password", 0 },

    { "schema", ngx_http_idem_pg_set_schema,
      ngx_http_idem_pg_field(schema), "idempotency", 0 },

    { "connections", ngx_http_idem_pg_set_connections,
      ngx_http_idem_pg_field(connections), "1", 0 },

    { "timeout", ngx_http_idem_pg_set_time,
      ngx_http_idem_pg_field(timeout), "1s", 0 },

    { "connect_timeout", ngx_http_idem_pg_set_time,
      ngx_http_idem_pg_field(connect_timeout), "1s", 0 },

    { "lock_timeout", ngx_http_idem_pg_set_time,
      ngx_http_idem_pg_field(lock_timeout), "250ms", 0 },

    { "durable", ngx_http_idem_pg_set_durable,
      ngx_http_idem_pg_field(durable), "commits", 0 },

    { "wake", ngx_http_idem_pg_set_wake,
      ngx_http_idem_pg_field(wake), "notify", 0 },

    { "pooler", ngx_http_idem_pg_set_flag,
      ngx_http_idem_pg_field(pooler), "on", 0 },

    { "purge", ngx_http_idem_pg_set_purge,
      ngx_http_idem_pg_field(purge), "on every=1s batch=500", 1 },

    { "tls", ngx_http_idem_pg_set_flag,
      ngx_http_idem_pg_field(tls), "on", 0 },

    { "tls_verify", ngx_http_idem_pg_set_flag,
      ngx_http_idem_pg_field(tls_verify), "on", 0 },

    { "tls_trusted_certificate", ngx_http_idem_pg_set_file,
      ngx_http_idem_pg_field(tls_trusted_certificate),
      "/etc/nginx/postgres-ca.pem", 0 },

    { "tls_name", ngx_http_idem_pg_set_str,
      ngx_http_idem_pg_field(tls_name), "db.example.com", 0 },

    { "tls_certificate", ngx_http_idem_pg_set_file,
      ngx_http_idem_pg_field(tls_certificate),
      "/etc/nginx/postgres-client.pem", 0 },

    { "tls_certificate_key", ngx_http_idem_pg_set_file,
      ngx_http_idem_pg_field(tls_certificate_key),
      "/etc/nginx/postgres-client.key", 0 },

    { NULL, NULL, 0, NULL, 0 }
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
ngx_http_idem_pg_directive(ngx_conf_t *cf, ngx_http_idem_store_t *store)
{
    u_char                      *p, *last;
    ngx_str_t                   *value;
    ngx_http_idem_pg_command_t  *cmd;

    u_char  names[512];

    value = cf->args->elts;

    p = names;
    last = names + sizeof(names);

    for (cmd = ngx_http_idem_pg_commands; cmd->name; cmd++) {

        if (ngx_strcmp(value[0].data, cmd->name) == 0) {
            break;
        }

        p = ngx_slprintf(p, last, "%s%s", p == names ? "" : ", ", cmd->name);
    }

    if (cmd->name == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown directive \"%V\" in a postgres store: it "
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

        /* LISTEN seems to work, on a connection that is somebody else's next */

        if (pg->wake == NGX_HTTP_IDEM_PG_WAKE_NOTIFY) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "store \"%V\" in %s:%ui has \"pooler on\" and "
                          "\"wake notify\": behind a pooler there is "
                          "\"wake poll\" only", &store->name, store->file,
                          store->line);
            return NGX_CONF_ERROR;
        }

        pg->wake = NGX_HTTP_IDEM_PG_WAKE_POLL;
    }

    ngx_conf_init_uint_value(pg->wake, NGX_HTTP_IDEM_PG_WAKE_NOTIFY);

    if (ngx_http_idem_pg_init_tls(cf, pg) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_idem_pg_step_conf(cf, pg);
}


/* also "password": there is one, here or in a file */

static char *
ngx_http_idem_pg_set_str(ngx_conf_t *cf, ngx_http_idem_pg_t *pg,
    ngx_str_t *value, void *field)
{
    ngx_str_t  *s = field;

    if (s->len) {
        return (s == &pg->password)
               ? "is duplicate: there is one password, in \"password\" or in "
                 "\"password_file\""
               : "is duplicate";
    }

    *s = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_set_file(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
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


/* the first line of it; read by the master, which may read more than workers */

static char *
ngx_http_idem_pg_set_password_file(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    ngx_fd_t     fd;
    ngx_str_t    name;
    const char  *wrong;

    if (pg->password.len) {
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

    wrong = ngx_http_idem_pg_read_password(cf, fd, &pg->password);

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


static const char *
ngx_http_idem_pg_read_password(ngx_conf_t *cf, ngx_fd_t fd,
    ngx_str_t *password)
{
    u_char   *p, *last;
    ssize_t   n;

    p = ngx_pnalloc(cf->pool, NGX_HTTP_IDEM_PG_PASSWORD_MAX);
    if (p == NULL) {
        return "there is no memory for it";
    }

    n = ngx_read_fd(fd, p, NGX_HTTP_IDEM_PG_PASSWORD_MAX);

    if (n == -1) {
        return "it can't be read";
    }

    if (n == NGX_HTTP_IDEM_PG_PASSWORD_MAX) {
        return "it is too long";
    }

    last = p + n;

    if (last > p && last[-1] == LF) {
        last--;
    }

    if (last > p && last[-1] == CR) {
        last--;
    }

    if (last == p) {
        return "it is empty";
    }

    if (ngx_strlchr(p, last, LF) || ngx_strlchr(p, last, '\0')) {
        return "it has more than one line, or a NUL";
    }

    /* libpq takes it with a NUL */

    *last = '\0';

    password->data = p;
    password->len = last - p;

    return NULL;
}


/* a plain name: it is part of the statements, and the channel of wake-ups */

static char *
ngx_http_idem_pg_set_schema(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    u_char  c;
    size_t  i;

    if (pg->schema.len) {
        return "is duplicate";
    }

    for (i = 0; i < value[1].len; i++) {
        c = value[1].data[i];

        if ((c >= 'a' && c <= 'z') || c == '_'
            || (i && c >= '0' && c <= '9'))
        {
            continue;
        }

        return ngx_http_idem_pg_invalid(cf, value,
                  "lower-case letters, digits and \"_\", not a digit first");
    }

    if (value[1].len > NGX_HTTP_IDEM_PG_NAME_MAX) {
        return ngx_http_idem_pg_invalid(cf, value,
                                        "at most 63 characters");
    }

    pg->schema = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_set_connections(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    if (pg->connections != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    pg->connections = ngx_atoi(value[1].data, value[1].len);

    if (pg->connections < 1
        || pg->connections > NGX_HTTP_IDEM_PG_CONNECTIONS_MAX)
    {
        return ngx_http_idem_pg_invalid(cf, value,
                                        "a number from 1 to 64");
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_set_time(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    ngx_msec_t  *t = field;
    ngx_int_t    n;

    if (*t != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    n = ngx_parse_time(&value[1], 0);

    if (n == NGX_ERROR || n == 0 || n > NGX_HTTP_IDEM_PG_TIMEOUT_MAX) {
        return ngx_http_idem_pg_invalid(cf, value,
                         "a time from 1ms to 1h, for example 1s or 500ms");
    }

    *t = (ngx_msec_t) n;

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_set_flag(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
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
        return ngx_http_idem_pg_invalid(cf, value,
                                        "\"on\" or \"off\"");
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_set_durable(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    static const char  *words[] = { "all", "commits", "off", NULL };

    return ngx_http_idem_pg_set_word(cf, value, field, words,
                                         "\"all\", \"commits\" or \"off\"");
}


static char *
ngx_http_idem_pg_set_wake(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    static const char  *words[] = { "notify", "poll", NULL };

    return ngx_http_idem_pg_set_word(cf, value, field, words,
                                     "\"notify\" or \"poll\"");
}


static char *
ngx_http_idem_pg_set_word(ngx_conf_t *cf, ngx_str_t *value,
    ngx_uint_t *field, const char **words, const char *right)
{
    ngx_uint_t  i;

    if (*field != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    for (i = 0; words[i]; i++) {
        if (ngx_strcmp(value[1].data, words[i]) == 0) {
            *field = i;
            return NGX_CONF_OK;
        }
    }

    return ngx_http_idem_pg_invalid(cf, value, right);
}


/* purge on | off [every=<time>] [batch=<n>] [archive] */

static char *
ngx_http_idem_pg_set_purge(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value, void *field)
{
    char        *rv;
    ngx_int_t    n;
    ngx_str_t    s;
    ngx_uint_t   i;

    rv = ngx_http_idem_pg_set_flag(cf, pg, value, field);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "archive") == 0) {
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
                           "is \"purge on | off [every=1s] [batch=500] "
                           "[archive]\"", &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_invalid(ngx_conf_t *cf, ngx_str_t *value, const char *right)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\" directive: it is %s",
                       &value[1], &value[0], right);

    return NGX_CONF_ERROR;
}
