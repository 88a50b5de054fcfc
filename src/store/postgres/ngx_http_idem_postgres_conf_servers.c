
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The servers of a PostgreSQL store, and their TLS files.
 *
 * The master resolves host names when it reads the configuration, if it can.
 * With a resolver, workers resolve them again before they connect.  libpq
 * reads the TLS files in the workers, which need permission to; here the
 * module only checks that the files exist.
 *
 * Called while the configuration is read, and at the end of the block.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_PORT    5432
#define NGX_HTTP_IDEM_PG_SOCKET  "/.s.PGSQL."

#define NGX_HTTP_IDEM_PG_VERIFY_DEPTH  5

/* the file behind "system" in libpq 16 */
#define NGX_HTTP_IDEM_PG_SYSTEM_CA  "/etc/ssl/certs/ca-certificates.crt"


static char *ngx_http_idem_pg_add_server(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value);
static ngx_int_t ngx_http_idem_pg_add_unix(ngx_conf_t *cf,
    ngx_http_idem_pg_server_t *server, ngx_str_t *value);
static ngx_int_t ngx_http_idem_pg_copy(ngx_conf_t *cf, ngx_str_t *to,
    u_char *data, size_t len);
static char *ngx_http_idem_pg_check_trusted(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg);


/* server <host>[:<port>] | unix:<directory or socket> ... */

char *
ngx_http_idem_pg_set_server(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_http_idem_pg_add_server(cf, conf, &value[i]) != NGX_CONF_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_idem_pg_add_server(ngx_conf_t *cf,
    ngx_http_idem_pg_t *pg, ngx_str_t *value)
{
    u_char                     *host;
    size_t                      len;
    ngx_url_t                  *u;
    struct in_addr              in;
    ngx_http_idem_pg_server_t  *server;

    if (ngx_http_idem_store_has_secret(value)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, NGX_HTTP_IDEM_STORE_SECRET,
                           (ngx_str_t *) cf->args->elts);
        return NGX_CONF_ERROR;
    }

    server = ngx_array_push(&pg->servers);
    if (server == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(server, sizeof(ngx_http_idem_pg_server_t));

    server->file = cf->conf_file->file.name.data;
    server->line = cf->conf_file->line;

    u = &server->url;
    u->url = *value;
    u->default_port = NGX_HTTP_IDEM_PG_PORT;
    u->no_resolve = 1;

    if (value->len > 5 && ngx_strncmp(value->data, "unix:", 5) == 0) {

        if (ngx_http_idem_pg_add_unix(cf, server, value) != NGX_OK) {
            goto invalid;
        }

        return NGX_CONF_OK;
    }

    if (ngx_parse_url(cf->pool, u) != NGX_OK || u->uri.len) {
        goto invalid;
    }

    server->port = u->port;

    host = u->host.data;
    len = u->host.len;

    if (len > 2 && host[0] == '[') {
        host++;
        len -= 2;

    } else {
        in.s_addr = ngx_inet_addr(host, len);
        server->named = (in.s_addr == INADDR_NONE);
    }

    if (ngx_http_idem_pg_copy(cf, &server->host, host, len) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (u->naddrs == 0 && ngx_inet_resolve_host(cf->pool, u) != NGX_OK) {

        /* not an error yet: whether there is a resolver is known later */

        u->naddrs = 0;
    }

    return NGX_CONF_OK;

invalid:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid server \"%V\"%s%s: it is <host>:<port>, for "
                       "example 127.0.0.1:5432, or unix:<directory of the "
                       "socket>, for example unix:/run/postgresql", value,
                       u->err ? ", " : "", u->err ? u->err : "");

    return NGX_CONF_ERROR;
}


/* libpq takes a directory and a port, and makes the socket's name of them */

static ngx_int_t
ngx_http_idem_pg_add_unix(ngx_conf_t *cf,
    ngx_http_idem_pg_server_t *server, ngx_str_t *value)
{
    u_char     *p, *dir;
    size_t      len, mark;
    ngx_int_t   port;

    dir = value->data + 5;
    len = value->len - 5;
    port = NGX_HTTP_IDEM_PG_PORT;
    mark = sizeof(NGX_HTTP_IDEM_PG_SOCKET) - 1;

    if (dir[0] != '/') {
        return NGX_ERROR;
    }

    p = (u_char *) ngx_strstr(dir, NGX_HTTP_IDEM_PG_SOCKET);

    if (p) {
        port = ngx_atoi(p + mark, dir + len - p - mark);

        if (port < 1 || port > 65535) {
            return NGX_ERROR;
        }

        len = p - dir;

    } else if (len > 1 && dir[len - 1] == '/') {
        len--;
    }

    if (len == 0) {
        return NGX_ERROR;
    }

    server->port = (in_port_t) port;

    return ngx_http_idem_pg_copy(cf, &server->dir, dir, len);
}


static ngx_int_t
ngx_http_idem_pg_copy(ngx_conf_t *cf, ngx_str_t *to, u_char *data, size_t len)
{
    to->data = ngx_pnalloc(cf->pool, len + 1);
    if (to->data == NULL) {
        return NGX_ERROR;
    }

    *ngx_cpymem(to->data, data, len) = '\0';
    to->len = len;

    return NGX_OK;
}


char *
ngx_http_idem_pg_init_servers(ngx_conf_t *cf, ngx_http_idem_pg_t *pg)
{
    ngx_uint_t                  i;
    ngx_http_idem_pg_server_t  *server;

    if (pg->servers.nelts == 0) {
        return ngx_http_idem_pg_api->wrong(cf, pg->store,
                      "has no \"server\": it needs one, for example \"server "
                      "127.0.0.1:5432\" or \"server unix:/run/postgresql\"");
    }

    server = pg->servers.elts;

    for (i = 0; i < pg->servers.nelts; i++) {

        if (server[i].dir.len == 0 && server[i].url.naddrs == 0
            && ngx_http_idem_pg_api->not_found(cf, pg->store, "server",
                                               &server[i].url.url,
                                               server[i].file,
                                               server[i].line)
               != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idem_pg_init_tls(ngx_conf_t *cf, ngx_http_idem_pg_t *pg)
{
    ngx_uint_t        i;
    ngx_str_t        *files[3];
    ngx_file_info_t   info;

    if (!pg->tls) {

        if (pg->tls_verify != NGX_CONF_UNSET
            || pg->tls_trusted_certificate.len || pg->tls_name.len
            || pg->tls_certificate.len || pg->tls_certificate_key.len)
        {
            return ngx_http_idem_pg_api->wrong(cf, pg->store,
                          "has \"tls_...\" directives without \"tls on\"");
        }

        return NGX_CONF_OK;
    }

    ngx_conf_init_value(pg->tls_verify, 1);

    if ((pg->tls_certificate.len == 0) != (pg->tls_certificate_key.len == 0)) {
        return ngx_http_idem_pg_api->wrong(cf, pg->store,
                      "has one of \"tls_certificate\" and "
                      "\"tls_certificate_key\" without the other");
    }

    for (i = 0; i < pg->servers.nelts; i++) {
        if (ngx_http_idem_pg_server(pg, i)->dir.len) {
            return ngx_http_idem_pg_api->wrong(cf, pg->store,
                          "has \"tls on\" and a \"server\" that is a unix "
                          "socket: PostgreSQL has no TLS there");
        }
    }

    if (pg->tls_verify && pg->tls_trusted_certificate.len == 0) {
        ngx_str_set(&pg->tls_trusted_certificate, NGX_HTTP_IDEM_PG_SYSTEM_CA);
    }

    files[0] = &pg->tls_trusted_certificate;
    files[1] = &pg->tls_certificate;
    files[2] = &pg->tls_certificate_key;

    for (i = 0; i < 3; i++) {

        if (files[i]->len == 0) {
            continue;
        }

        if (ngx_http_idem_store_is_data(files[i])) {
            return ngx_http_idem_pg_api->wrong(cf, pg->store,
                          "has a certificate or a key as \"data:\": "
                          "libpq takes files only");
        }

        if (ngx_conf_full_name(cf->cycle, files[i], 1) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

        if (ngx_file_info(files[i]->data, &info) == NGX_FILE_ERROR) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, ngx_errno,
                          "store \"%V\" in %s:%ui: there is no file \"%V\" "
                          "for TLS", &pg->store->name, pg->store->file,
                          pg->store->line, files[i]);
            return NGX_CONF_ERROR;
        }
    }

    return ngx_http_idem_pg_check_trusted(cf, pg);
}


/*
 * libpq reads the file for each connection: a file without certificates would
 * fail there, after a reload that was accepted
 */

static char *
ngx_http_idem_pg_check_trusted(ngx_conf_t *cf, ngx_http_idem_pg_t *pg)
{
#if (NGX_SSL)
    ngx_int_t  rc;
    ngx_ssl_t  ssl;

    if (!pg->tls_verify) {
        return NGX_CONF_OK;
    }

    ngx_memzero(&ssl, sizeof(ngx_ssl_t));
    ssl.log = cf->log;

    if (ngx_ssl_create(&ssl, NGX_SSL_TLSv1_2|NGX_SSL_TLSv1_3, NULL)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    rc = ngx_ssl_trusted_certificate(cf, &ssl, &pg->tls_trusted_certificate,
                                     NGX_HTTP_IDEM_PG_VERIFY_DEPTH);

    ngx_ssl_cleanup_ctx(&ssl);

    if (rc != NGX_OK) {
        return ngx_http_idem_pg_api->wrong(cf, pg->store,
                        "has a \"tls_trusted_certificate\" that can't be "
                        "loaded");
    }
#endif

    return NGX_CONF_OK;
}
