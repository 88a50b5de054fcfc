
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


/* instead of a file that libpq would look for */
#define NGX_HTTP_IDEM_PG_NO_FILE  "/nonexistent"

#define ngx_http_idem_pg_file(name)                                           \
    ((name)->len ? (char *) (name)->data : NGX_HTTP_IDEM_PG_NO_FILE)


static ngx_int_t ngx_http_idem_pg_resolve(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_server_t *server);
static void ngx_http_idem_pg_resolved(ngx_resolver_ctx_t *ctx);
static void ngx_http_idem_pg_start(ngx_http_idem_pg_conn_t *conn,
    struct sockaddr *sockaddr, socklen_t socklen);
static void ngx_http_idem_pg_notice(void *data, const char *message);


/* the parameters of a connection; those at the end are for TLS */

static const char  *ngx_http_idem_pg_params[] = {
    "port", "hostaddr", "host", "dbname", "user", "password", "passfile",
    "client_encoding", "application_name", "gssencmode",
    "target_session_attrs", "options", "sslmode", "sslrootcert", "sslcert",
    "sslkey", NULL
};


void
ngx_http_idem_pg_connect(ngx_http_idem_pg_conn_t *conn)
{
    ngx_addr_t                 *addr;
    ngx_http_idem_pg_t         *pg;
    ngx_http_idem_pg_server_t  *server;

    pg = conn->pg;

    conn->server = pg->server;
    conn->last_read = ngx_current_msec;
    conn->state = NGX_HTTP_IDEM_PG_CONNECTING;

    server = ngx_http_idem_pg_server(pg, conn->server);

    ngx_add_timer(&conn->timer, pg->connect_timeout);

    if (server->named && pg->store->resolver
        && ngx_http_idem_pg_resolve(conn, server) == NGX_OK)
    {
        return;
    }

    if (server->dir.len) {
        ngx_http_idem_pg_start(conn, NULL, 0);

    } else if (server->url.naddrs) {
        addr = &server->url.addrs[conn->address % server->url.naddrs];
        ngx_http_idem_pg_start(conn, addr->sockaddr, addr->socklen);

    } else {
        ngx_http_idem_pg_drop(conn, "its name can't be resolved");
    }
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
    ngx_addr_t                 *addr;
    ngx_resolver_addr_t        *found;
    ngx_http_idem_pg_conn_t    *conn;
    ngx_http_idem_pg_server_t  *server;

    conn = ctx->data;
    server = ngx_http_idem_pg_server(conn->pg, conn->server);

    conn->resolving = NULL;

    if (ctx->state == NGX_OK && ctx->naddrs) {
        found = &ctx->addrs[conn->address % ctx->naddrs];
        ngx_http_idem_pg_start(conn, found->sockaddr, found->socklen);

    } else if (server->url.naddrs) {

        /* fall back to the addresses found when the configuration was read */

        addr = &server->url.addrs[conn->address % server->url.naddrs];
        ngx_http_idem_pg_start(conn, addr->sockaddr, addr->socklen);

    } else {
        ngx_http_idem_pg_drop(conn, "its name can't be resolved: %s",
                              ngx_resolver_strerror(ctx->state));
    }

    ngx_resolve_name_done(ctx);
}


/*
 * Parameters are set explicitly, since libpq would read defaults from files
 * and the environment; NULL is not set
 */

static void
ngx_http_idem_pg_start(ngx_http_idem_pg_conn_t *conn,
    struct sockaddr *sockaddr, socklen_t socklen)
{
    size_t                      len;
    const char                **v;
    ngx_str_t                  *name;
    ngx_http_idem_pg_t         *pg;
    ngx_http_idem_pg_server_t  *server;

    const char  *values[sizeof(ngx_http_idem_pg_params)
                        / sizeof(ngx_http_idem_pg_params[0])];

    u_char  address[NGX_SOCKADDR_STRLEN + 1], port[NGX_INT_T_LEN + 1];

    pg = conn->pg;
    server = ngx_http_idem_pg_server(pg, conn->server);
    name = pg->tls_name.len ? &pg->tls_name : &server->host;

    *ngx_sprintf(port, "%ui", (ngx_uint_t) server->port) = '\0';

    if (sockaddr) {
        len = ngx_sock_ntop(sockaddr, socklen, address,
                            NGX_SOCKADDR_STRLEN, 0);
        address[len] = '\0';
    }

    v = values;

    *v++ = (char *) port;
    *v++ = sockaddr ? (char *) address : NULL;
    *v++ = (char *) (sockaddr ? name->data : server->dir.data);
    *v++ = (char *) pg->database.data;
    *v++ = (char *) pg->user.data;
    *v++ = pg->password.len ? (char *) pg->password.data : NULL;
    *v++ = pg->password.len ? NULL : NGX_HTTP_IDEM_PG_NO_FILE;
    *v++ = "UTF8";                                   /* client_encoding      */
    *v++ = "nginx idempotency";                      /* application_name     */
    *v++ = "disable";                                /* gssencmode           */
    *v++ = "any";                                    /* target_session_attrs */
    *v++ = "";                                       /* options              */
    *v++ = !pg->tls ? "disable" : pg->tls_verify ? "verify-full" : "require";

    if (pg->tls) {

        /* "require" would verify against a root certificate that exists */

        *v++ = pg->tls_verify ? (char *) pg->tls_trusted_certificate.data
                              : NGX_HTTP_IDEM_PG_NO_FILE;
        *v++ = ngx_http_idem_pg_file(&pg->tls_certificate);
        *v++ = ngx_http_idem_pg_file(&pg->tls_certificate_key);
    }

    ngx_memzero(v, (u_char *) values + sizeof(values) - (u_char *) v);

    conn->link = PQconnectStartParams(ngx_http_idem_pg_params, values, 0);

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
ngx_http_idem_pg_error_line(u_char *p, u_char *last, const char *message)
{
    u_char      *start;
    const char  *s;

    start = p;

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

    /* a sentence goes on behind the error */

    while (p > start && (p[-1] == '.' || p[-1] == ' ')) {
        p--;
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
