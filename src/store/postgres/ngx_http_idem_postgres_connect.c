
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Connecting: resolves the name and runs libpq's connect, up to a session.
 *
 * libpq gets one numeric address at a time: its own name resolution would
 * block, and it would try a second address on a socket that nginx does not
 * know of.  The password is passed to libpq only.
 *
 * Called by the connection; calls the set-up when the session is established.
 * Every failure here drops the connection.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


#define NGX_HTTP_IDEM_PG_PARAMS_MAX  24


typedef struct {
    const char      *names[NGX_HTTP_IDEM_PG_PARAMS_MAX + 1];
    const char      *values[NGX_HTTP_IDEM_PG_PARAMS_MAX + 1];
    ngx_uint_t       n;
} ngx_http_idem_pg_params_t;


static ngx_int_t ngx_http_idem_pg_resolve(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_server_t *server);
static void ngx_http_idem_pg_resolved(ngx_resolver_ctx_t *ctx);
static void ngx_http_idem_pg_start(ngx_http_idem_pg_conn_t *conn,
    struct sockaddr *sockaddr, socklen_t socklen);
static void ngx_http_idem_pg_params(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_params_t *params);
static void ngx_http_idem_pg_param(ngx_http_idem_pg_params_t *params,
    const char *name, const char *value);
static void ngx_http_idem_pg_notice(void *data, const char *message);


void
ngx_http_idem_pg_connect(ngx_http_idem_pg_conn_t *conn)
{
    ngx_addr_t                 *addr;
    ngx_http_idem_pg_t         *pg;
    ngx_http_idem_pg_server_t  *server;

    pg = conn->pg;

    conn->server = pg->server;
    conn->last_read = ngx_current_msec;
    conn->state = NGX_HTTP_IDEM_PG_RESOLVING;

    server = ngx_http_idem_pg_server(pg, conn->server);

    ngx_add_timer(&conn->timer, pg->connect_timeout);

    if (server->named && pg->store->resolver
        && ngx_http_idem_pg_resolve(conn, server) == NGX_OK)
    {
        return;
    }

    if (server->dir.len) {
        ngx_http_idem_pg_start(conn, NULL, 0);
        return;
    }

    if (server->url.naddrs == 0) {
        ngx_http_idem_pg_drop(conn, "its name can't be resolved");
        return;
    }

    addr = &server->url.addrs[conn->address % server->url.naddrs];

    ngx_http_idem_pg_start(conn, addr->sockaddr, addr->socklen);
}


/* NGX_OK: the handler will be called, or has been called */

static ngx_int_t
ngx_http_idem_pg_resolve(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_server_t *server)
{
    ngx_resolver_ctx_t  *ctx;

    ctx = ngx_resolve_start(conn->pg->store->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return NGX_DECLINED;
    }

    ctx->name = server->host;
    ctx->handler = ngx_http_idem_pg_resolved;
    ctx->data = conn;
    ctx->timeout = conn->pg->connect_timeout;
    ctx->cancelable = 1;

    conn->resolving = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        conn->resolving = NULL;
        return NGX_DECLINED;
    }

    return NGX_OK;
}


static void
ngx_http_idem_pg_resolved(ngx_resolver_ctx_t *ctx)
{
    socklen_t                   socklen;
    ngx_addr_t                 *addr;
    ngx_sockaddr_t              sockaddr;
    ngx_resolver_addr_t        *found;
    ngx_http_idem_pg_conn_t    *conn;
    ngx_http_idem_pg_server_t  *server;

    conn = ctx->data;
    server = ngx_http_idem_pg_server(conn->pg, conn->server);
    socklen = 0;

    if (ctx->state == NGX_OK && ctx->naddrs) {
        found = &ctx->addrs[conn->address % ctx->naddrs];

        socklen = found->socklen;
        ngx_memcpy(&sockaddr, found->sockaddr, socklen);

    } else if (server->url.naddrs) {

        /* fall back to the addresses found when the configuration was read */

        addr = &server->url.addrs[conn->address % server->url.naddrs];

        socklen = addr->socklen;
        ngx_memcpy(&sockaddr, addr->sockaddr, socklen);
    }

    conn->resolving = NULL;

    if (socklen == 0) {
        ngx_http_idem_pg_drop(conn, "its name can't be resolved: %s",
                              ngx_resolver_strerror(ctx->state));
        ngx_resolve_name_done(ctx);
        return;
    }

    ngx_resolve_name_done(ctx);

    ngx_http_idem_pg_start(conn, &sockaddr.sockaddr, socklen);
}


static void
ngx_http_idem_pg_start(ngx_http_idem_pg_conn_t *conn,
    struct sockaddr *sockaddr, socklen_t socklen)
{
    size_t                      len;
    ngx_http_idem_pg_params_t   params;
    ngx_http_idem_pg_server_t  *server;

    u_char  address[NGX_SOCKADDR_STRLEN + 1], port[NGX_INT_T_LEN + 1];

    server = ngx_http_idem_pg_server(conn->pg, conn->server);

    ngx_memzero(&params, sizeof(ngx_http_idem_pg_params_t));

    *ngx_sprintf(port, "%ui", (ngx_uint_t) server->port) = '\0';

    ngx_http_idem_pg_param(&params, "port", (char *) port);

    if (sockaddr) {
        len = ngx_sock_ntop(sockaddr, socklen, address,
                            NGX_SOCKADDR_STRLEN, 0);
        address[len] = '\0';

        ngx_http_idem_pg_param(&params, "hostaddr", (char *) address);
        ngx_http_idem_pg_param(&params, "host",
                               (char *) (conn->pg->tls_name.len
                                         ? conn->pg->tls_name.data
                                         : server->host.data));
    } else {
        ngx_http_idem_pg_param(&params, "host",
                               (char *) server->dir.data);
    }

    ngx_http_idem_pg_params(conn, &params);

    conn->state = NGX_HTTP_IDEM_PG_CONNECTING;
    conn->link = PQconnectStartParams(params.names, params.values, 0);

    if (conn->link == NULL) {
        ngx_http_idem_pg_drop(conn, "no memory");
        return;
    }

    PQsetNoticeProcessor(conn->link, ngx_http_idem_pg_notice, conn);

    if (PQstatus(conn->link) == CONNECTION_BAD) {
        ngx_http_idem_pg_poll(conn);
        return;
    }

    (void) ngx_http_idem_pg_watch_socket(conn, 0, 1);
}


/* set explicitly: libpq would read defaults from files and environment */

static void
ngx_http_idem_pg_params(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_params_t *params)
{
    ngx_http_idem_pg_t  *pg;

    pg = conn->pg;

    ngx_http_idem_pg_param(params, "dbname", (char *) pg->database.data);
    ngx_http_idem_pg_param(params, "user", (char *) pg->user.data);

    if (pg->password.len) {
        ngx_http_idem_pg_param(params, "password",
                               (char *) pg->password.data);
    } else {
        ngx_http_idem_pg_param(params, "passfile", "/nonexistent");
    }

    ngx_http_idem_pg_param(params, "client_encoding", "UTF8");
    ngx_http_idem_pg_param(params, "application_name",
                           "nginx idempotency");
    ngx_http_idem_pg_param(params, "gssencmode", "disable");
    ngx_http_idem_pg_param(params, "target_session_attrs", "any");
    ngx_http_idem_pg_param(params, "options", "");

    if (!pg->tls) {
        ngx_http_idem_pg_param(params, "sslmode", "disable");
        return;
    }

    ngx_http_idem_pg_param(params, "sslmode",
                           pg->tls_verify ? "verify-full" : "require");

    /* "require" would verify against a root certificate file that exists */

    ngx_http_idem_pg_param(params, "sslrootcert", pg->tls_verify
                           ? (char *) pg->tls_trusted_certificate.data
                           : "/nonexistent");

    ngx_http_idem_pg_param(params, "sslcert", pg->tls_certificate.len
                           ? (char *) pg->tls_certificate.data
                           : "/nonexistent");
    ngx_http_idem_pg_param(params, "sslkey", pg->tls_certificate_key.len
                           ? (char *) pg->tls_certificate_key.data
                           : "/nonexistent");
}


static void
ngx_http_idem_pg_param(ngx_http_idem_pg_params_t *params,
    const char *name, const char *value)
{
    params->names[params->n] = name;
    params->values[params->n] = value;
    params->n++;
}


void
ngx_http_idem_pg_poll(ngx_http_idem_pg_conn_t *conn)
{
    conn->last_read = ngx_current_msec;

    switch (PQconnectPoll(conn->link)) {

    case PGRES_POLLING_READING:
        (void) ngx_http_idem_pg_watch_socket(conn, 1, 0);
        break;

    case PGRES_POLLING_WRITING:
        (void) ngx_http_idem_pg_watch_socket(conn, 0, 1);
        break;

    case PGRES_POLLING_OK:
        ngx_http_idem_pg_setup(conn);
        break;

    default:
        ngx_http_idem_pg_broken(conn);
        break;
    }
}


/* an error of libpq in one line, without the address, which the log has */

void
ngx_http_idem_pg_said(u_char *p, u_char *last, const char *message)
{
    const char  *s;

    s = ngx_strstr(message, " failed: ");

    if (s && ngx_strncmp(message, "connection to server", 20) == 0) {
        message = s + sizeof(" failed: ") - 1;
    }

    for ( /* void */ ; *message && p < last; message++) {

        if (*message == '\n' || *message == '\t' || *message == '\r') {

            /* the hints that follow are for interactive users */

            if (message[1] == '\0' || message[1] == '\t') {
                break;
            }

            *p++ = ' ';
            continue;
        }

        *p++ = (u_char) *message;
    }

    *p = '\0';
}


/* without a processor libpq would print notices */

static void
ngx_http_idem_pg_notice(void *data, const char *message)
{
    ngx_log_debug1(NGX_LOG_DEBUG_CORE, ngx_cycle->log, 0,
                   "idempotency: PostgreSQL: %s", message);
}
