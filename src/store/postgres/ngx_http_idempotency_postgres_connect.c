
/*
 * From an address to a connection that is ready: the name, libpq's connect, and
 * what the server is asked and told first.
 *
 * libpq gets one numeric address at a time: its own look-up would block, and
 * when it goes on to a second address it does so on a socket that nginx does
 * not know of.  A server has to take writes, and to have the schema in a
 * version that this module knows; if not, the next one is tried.
 *
 * A password goes to libpq only.
 *
 * Called by the connection; everything that fails here drops it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idempotency_postgres.h"


#define NGX_HTTP_IDEMPOTENCY_PG_PARAMS_MAX  24


/* results of the set-up, in the order of its statements */

#define NGX_HTTP_IDEMPOTENCY_PG_SETUP_SETTINGS  0
#define NGX_HTTP_IDEMPOTENCY_PG_SETUP_VERSION   1


typedef struct {
    const char      *names[NGX_HTTP_IDEMPOTENCY_PG_PARAMS_MAX + 1];
    const char      *values[NGX_HTTP_IDEMPOTENCY_PG_PARAMS_MAX + 1];
    ngx_uint_t       n;
} ngx_http_idempotency_pg_params_t;


static ngx_int_t ngx_http_idempotency_pg_resolve(
    ngx_http_idempotency_pg_conn_t *conn,
    ngx_http_idempotency_pg_server_t *server);
static void ngx_http_idempotency_pg_resolved(ngx_resolver_ctx_t *ctx);
static void ngx_http_idempotency_pg_start(
    ngx_http_idempotency_pg_conn_t *conn, struct sockaddr *sockaddr,
    socklen_t socklen);
static void ngx_http_idempotency_pg_params(
    ngx_http_idempotency_pg_conn_t *conn,
    ngx_http_idempotency_pg_params_t *params);
static void ngx_http_idempotency_pg_param(
    ngx_http_idempotency_pg_params_t *params, const char *name,
    const char *value);
static void ngx_http_idempotency_pg_setup(
    ngx_http_idempotency_pg_conn_t *conn);
static ngx_int_t ngx_http_idempotency_pg_setup_send(
    ngx_http_idempotency_pg_conn_t *conn);
static ngx_int_t ngx_http_idempotency_pg_setup_result(
    ngx_http_idempotency_pg_conn_t *conn, PGresult *result);
static ngx_int_t ngx_http_idempotency_pg_setup_version(
    ngx_http_idempotency_pg_conn_t *conn, PGresult *result);
static void ngx_http_idempotency_pg_ready(
    ngx_http_idempotency_pg_conn_t *conn);
static void ngx_http_idempotency_pg_renew_first(
    ngx_http_idempotency_pg_conn_t *conn);
static void ngx_http_idempotency_pg_notice(void *data, const char *message);


#define ngx_http_idempotency_pg_listening(conn)                               \
    ((conn)->listens                                                          \
     && (conn)->pg->wake == NGX_HTTP_IDEMPOTENCY_PG_WAKE_NOTIFY)


void
ngx_http_idempotency_pg_connect(ngx_http_idempotency_pg_conn_t *conn)
{
    ngx_addr_t                        *addr;
    ngx_http_idempotency_pg_t         *pg;
    ngx_http_idempotency_pg_server_t  *server;

    pg = conn->pg;

    conn->server = pg->server;
    conn->heard = ngx_current_msec;
    conn->state = NGX_HTTP_IDEMPOTENCY_PG_RESOLVING;

    server = ngx_http_idempotency_pg_server(pg, conn->server);

    ngx_add_timer(&conn->timer, pg->connect_timeout);

    if (server->named && pg->store->resolver
        && ngx_http_idempotency_pg_resolve(conn, server) == NGX_OK)
    {
        return;
    }

    if (server->dir.len) {
        ngx_http_idempotency_pg_start(conn, NULL, 0);
        return;
    }

    if (server->url.naddrs == 0) {
        ngx_http_idempotency_pg_drop(conn, "its name can't be resolved");
        return;
    }

    addr = &server->url.addrs[conn->address % server->url.naddrs];

    ngx_http_idempotency_pg_start(conn, addr->sockaddr, addr->socklen);
}


/* NGX_OK: the handler will be called, or was */

static ngx_int_t
ngx_http_idempotency_pg_resolve(ngx_http_idempotency_pg_conn_t *conn,
    ngx_http_idempotency_pg_server_t *server)
{
    ngx_resolver_ctx_t  *ctx;

    ctx = ngx_resolve_start(conn->pg->store->resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return NGX_DECLINED;
    }

    ctx->name = server->host;
    ctx->handler = ngx_http_idempotency_pg_resolved;
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
ngx_http_idempotency_pg_resolved(ngx_resolver_ctx_t *ctx)
{
    socklen_t                          socklen;
    ngx_addr_t                        *addr;
    ngx_sockaddr_t                     sockaddr;
    ngx_resolver_addr_t               *found;
    ngx_http_idempotency_pg_conn_t    *conn;
    ngx_http_idempotency_pg_server_t  *server;

    conn = ctx->data;
    server = ngx_http_idempotency_pg_server(conn->pg, conn->server);
    socklen = 0;

    if (ctx->state == NGX_OK && ctx->naddrs) {
        found = &ctx->addrs[conn->address % ctx->naddrs];

        socklen = found->socklen;
        ngx_memcpy(&sockaddr, found->sockaddr, socklen);

    } else if (server->url.naddrs) {

        /* as it was when the configuration was read */

        addr = &server->url.addrs[conn->address % server->url.naddrs];

        socklen = addr->socklen;
        ngx_memcpy(&sockaddr, addr->sockaddr, socklen);
    }

    conn->resolving = NULL;

    if (socklen == 0) {
        ngx_http_idempotency_pg_drop(conn, "its name can't be resolved: %s",
                                     ngx_resolver_strerror(ctx->state));
        ngx_resolve_name_done(ctx);
        return;
    }

    ngx_resolve_name_done(ctx);

    ngx_http_idempotency_pg_start(conn, &sockaddr.sockaddr, socklen);
}


static void
ngx_http_idempotency_pg_start(ngx_http_idempotency_pg_conn_t *conn,
    struct sockaddr *sockaddr, socklen_t socklen)
{
    size_t                             len;
    ngx_http_idempotency_pg_params_t   params;
    ngx_http_idempotency_pg_server_t  *server;

    u_char  address[NGX_SOCKADDR_STRLEN + 1], port[NGX_INT_T_LEN + 1];

    server = ngx_http_idempotency_pg_server(conn->pg, conn->server);

    ngx_memzero(&params, sizeof(ngx_http_idempotency_pg_params_t));

    *ngx_sprintf(port, "%ui", (ngx_uint_t) server->port) = '\0';

    ngx_http_idempotency_pg_param(&params, "port", (char *) port);

    if (sockaddr) {
        len = ngx_sock_ntop(sockaddr, socklen, address,
                            NGX_SOCKADDR_STRLEN, 0);
        address[len] = '\0';

#if (NGX_HAVE_INET6)
        if (sockaddr->sa_family == AF_INET6 && address[0] == '[') {
            /* libpq has it without brackets */
            ngx_memmove(address, address + 1, len);
            *ngx_strlchr(address, address + len, ']') = '\0';
        }
#endif

        ngx_http_idempotency_pg_param(&params, "hostaddr", (char *) address);
        ngx_http_idempotency_pg_param(&params, "host",
                                      (char *) (conn->pg->tls_name.len
                                                ? conn->pg->tls_name.data
                                                : server->host.data));
    } else {
        ngx_http_idempotency_pg_param(&params, "host",
                                      (char *) server->dir.data);
    }

    ngx_http_idempotency_pg_params(conn, &params);

    conn->state = NGX_HTTP_IDEMPOTENCY_PG_CONNECTING;
    conn->link = PQconnectStartParams(params.names, params.values, 0);

    if (conn->link == NULL) {
        ngx_http_idempotency_pg_drop(conn, "no memory");
        return;
    }

    PQsetNoticeProcessor(conn->link, ngx_http_idempotency_pg_notice, conn);

    if (PQstatus(conn->link) == CONNECTION_BAD) {
        ngx_http_idempotency_pg_poll(conn);
        return;
    }

    if (ngx_http_idempotency_pg_watch_socket(conn, 0, 1) != NGX_OK) {
        ngx_http_idempotency_pg_drop(conn, "no event for its socket");
    }
}


/* what is not given here libpq would look for in files and the environment */

static void
ngx_http_idempotency_pg_params(ngx_http_idempotency_pg_conn_t *conn,
    ngx_http_idempotency_pg_params_t *params)
{
    ngx_http_idempotency_pg_t  *pg;

    pg = conn->pg;

    ngx_http_idempotency_pg_param(params, "dbname", (char *) pg->database.data);
    ngx_http_idempotency_pg_param(params, "user", (char *) pg->user.data);

    if (pg->password.len) {
        ngx_http_idempotency_pg_param(params, "password",
                                      (char *) pg->password.data);
    } else {
        ngx_http_idempotency_pg_param(params, "passfile", "/nonexistent");
    }

    ngx_http_idempotency_pg_param(params, "client_encoding", "UTF8");
    ngx_http_idempotency_pg_param(params, "application_name",
                                  "nginx idempotency");
    ngx_http_idempotency_pg_param(params, "gssencmode", "disable");
    ngx_http_idempotency_pg_param(params, "target_session_attrs", "any");
    ngx_http_idempotency_pg_param(params, "options", "");

    if (!pg->tls) {
        ngx_http_idempotency_pg_param(params, "sslmode", "disable");
        return;
    }

    ngx_http_idempotency_pg_param(params, "sslmode",
                                  pg->tls_verify ? "verify-full" : "require");

    /* with a file that is there, "require" would check it */

    ngx_http_idempotency_pg_param(params, "sslrootcert", pg->tls_verify
                                  ? (char *) pg->tls_trusted_certificate.data
                                  : "/nonexistent");

    ngx_http_idempotency_pg_param(params, "sslcert", pg->tls_certificate.len
                                  ? (char *) pg->tls_certificate.data
                                  : "/nonexistent");
    ngx_http_idempotency_pg_param(params, "sslkey", pg->tls_certificate_key.len
                                  ? (char *) pg->tls_certificate_key.data
                                  : "/nonexistent");
}


static void
ngx_http_idempotency_pg_param(ngx_http_idempotency_pg_params_t *params,
    const char *name, const char *value)
{
    params->names[params->n] = name;
    params->values[params->n] = value;
    params->n++;
}


void
ngx_http_idempotency_pg_poll(ngx_http_idempotency_pg_conn_t *conn)
{
    u_char                     *p, text[NGX_HTTP_IDEMPOTENCY_PG_ERROR_LEN];
    ngx_int_t                   rc;
    PostgresPollingStatusType   status;

    conn->heard = ngx_current_msec;

    status = PQconnectPoll(conn->link);

    switch (status) {

    case PGRES_POLLING_READING:
        rc = ngx_http_idempotency_pg_watch_socket(conn, 1, 0);
        break;

    case PGRES_POLLING_WRITING:
        rc = ngx_http_idempotency_pg_watch_socket(conn, 0, 1);
        break;

    case PGRES_POLLING_OK:
        ngx_http_idempotency_pg_setup(conn);
        return;

    default:
        p = ngx_http_idempotency_pg_said(text, text + sizeof(text) - 1,
                                         PQerrorMessage(conn->link));
        *p = '\0';

        ngx_http_idempotency_pg_drop(conn, "%s", text);
        return;
    }

    if (rc != NGX_OK) {
        ngx_http_idempotency_pg_drop(conn, "no event for its socket");
    }
}


/* what libpq says in one line; the address is in the log already */

u_char *
ngx_http_idempotency_pg_said(u_char *p, u_char *last, const char *message)
{
    const char  *s;

    s = ngx_strstr(message, " failed: ");

    if (s && ngx_strncmp(message, "connection to server", 20) == 0) {
        message = s + sizeof(" failed: ") - 1;
    }

    for ( /* void */ ; *message && p < last; message++) {

        if (*message == '\n' || *message == '\t' || *message == '\r') {

            /* hints that follow are for people at a terminal */

            if (message[1] == '\0' || message[1] == '\t') {
                break;
            }

            *p++ = ' ';
            continue;
        }

        *p++ = (u_char) *message;
    }

    return p;
}


static void
ngx_http_idempotency_pg_setup(ngx_http_idempotency_pg_conn_t *conn)
{
    conn->state = NGX_HTTP_IDEMPOTENCY_PG_SETUP;
    conn->setup = 0;

    if (PQsetnonblocking(conn->link, 1) != 0
        || !PQenterPipelineMode(conn->link)
        || ngx_http_idempotency_pg_setup_send(conn) != NGX_OK)
    {
        ngx_http_idempotency_pg_drop(conn, "no memory");
        return;
    }

    ngx_http_idempotency_pg_write(conn);
}


static ngx_int_t
ngx_http_idempotency_pg_setup_send(ngx_http_idempotency_pg_conn_t *conn)
{
    u_char                      name[2];
    ngx_uint_t                  i;
    const char                 *values[3];
    ngx_http_idempotency_pg_t  *pg;

    u_char  timeout[NGX_INT_T_LEN + 1], lock_timeout[NGX_INT_T_LEN + 1];

    pg = conn->pg;

    if (pg->pooler) {

        /* each lot has its own settings */

        if (!PQsendQueryParams(conn->link,
                               "SELECT pg_catalog.current_setting("
                               "'transaction_read_only')", 0, NULL, NULL,
                               NULL, NULL, 0))
        {
            return NGX_ERROR;
        }

    } else {
        *ngx_sprintf(timeout, "%M", pg->timeout) = '\0';
        *ngx_sprintf(lock_timeout, "%M", pg->lock_timeout) = '\0';

        values[0] = ngx_http_idempotency_pg_durable(conn) ? "on" : "off";
        values[1] = (char *) lock_timeout;
        values[2] = (char *) timeout;

        /* what the database has as a default may be stricter than "on" */

        if (!PQsendQueryParams(conn->link,
               "SELECT pg_catalog.current_setting('transaction_read_only'), "
               "pg_catalog.set_config('synchronous_commit', "
               "CASE WHEN $1::text = 'off' THEN 'off' "
               "WHEN pg_catalog.current_setting('synchronous_commit') = 'off' "
               "THEN 'on' "
               "ELSE pg_catalog.current_setting('synchronous_commit') END, "
               "false), "
               "pg_catalog.set_config('lock_timeout', $2::text, false), "
               "pg_catalog.set_config('statement_timeout', $3::text, false), "
               "pg_catalog.set_config('default_transaction_isolation', "
               "'read committed', false)", 3, NULL, values, NULL, NULL, 0))
        {
            return NGX_ERROR;
        }
    }

    if (!PQsendQueryParams(conn->link, pg->version_sql, 0, NULL, NULL, NULL,
                           NULL, 0))
    {
        return NGX_ERROR;
    }

    if (!pg->pooler) {
        for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PG_STEP_N; i++) {
            name[0] = (u_char) ('a' + i);
            name[1] = '\0';

            if (!PQsendPrepare(conn->link, (char *) name, pg->sql[i], 0,
                               NULL))
            {
                return NGX_ERROR;
            }
        }

        if (ngx_http_idempotency_pg_listening(conn)
            && !PQsendQueryParams(conn->link, pg->listen_sql, 0, NULL, NULL,
                                  NULL, NULL, 0))
        {
            return NGX_ERROR;
        }
    }

    return PQpipelineSync(conn->link) ? NGX_OK : NGX_ERROR;
}


void
ngx_http_idempotency_pg_setup_read(ngx_http_idempotency_pg_conn_t *conn)
{
    PGresult    *result;
    ngx_int_t    rc;
    ngx_uint_t   nulls;

    nulls = 0;

    while (!PQisBusy(conn->link)) {
        result = PQgetResult(conn->link);

        if (result == NULL) {

            if (++nulls > 2) {
                return;
            }

            continue;
        }

        nulls = 0;

        if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
            PQclear(result);
            ngx_http_idempotency_pg_ready(conn);
            return;
        }

        rc = ngx_http_idempotency_pg_setup_result(conn, result);

        PQclear(result);

        if (rc != NGX_OK) {
            return;
        }

        conn->setup++;
    }
}


static ngx_int_t
ngx_http_idempotency_pg_setup_result(ngx_http_idempotency_pg_conn_t *conn,
    PGresult *result)
{
    u_char       *p, text[NGX_HTTP_IDEMPOTENCY_PG_ERROR_LEN];
    const char   *state, *message;

    switch (PQresultStatus(result)) {

    case PGRES_TUPLES_OK:

        if (conn->setup == NGX_HTTP_IDEMPOTENCY_PG_SETUP_SETTINGS
            && PQntuples(result) == 1
            && ngx_strcmp(PQgetvalue(result, 0, 0), "on") == 0)
        {
            ngx_http_idempotency_pg_drop(conn, "it is read-only, as a "
                                         "standby is");
            return NGX_ERROR;
        }

        if (conn->setup == NGX_HTTP_IDEMPOTENCY_PG_SETUP_VERSION) {
            return ngx_http_idempotency_pg_setup_version(conn, result);
        }

        return NGX_OK;

    case PGRES_COMMAND_OK:
        return NGX_OK;

    default:
        break;
    }

    state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    p = ngx_http_idempotency_pg_said(text, text + sizeof(text) - 1,
                                     message ? message
                                             : PQerrorMessage(conn->link));
    *p = '\0';

    if (state && (ngx_strcmp(state, "3F000") == 0       /* no such schema   */
                  || ngx_strcmp(state, "42883") == 0))  /* no such function */
    {
        ngx_http_idempotency_pg_drop(conn, "database \"%V\" has no schema "
                                     "\"%V\" of this release: apply "
                                     "sql/install.sql (%s)",
                                     &conn->pg->database, &conn->pg->schema,
                                     text);

    } else if (state && ngx_strcmp(state, "42501") == 0) {
        ngx_http_idempotency_pg_drop(conn, "user \"%V\" lacks a right: "
                                     "\"GRANT idempotency_nginx TO %V\" (%s)",
                                     &conn->pg->user, &conn->pg->user, text);

    } else {
        ngx_http_idempotency_pg_drop(conn, "%s", text);
    }

    return NGX_ERROR;
}


/* the oldest version that the schema serves, and its own */

static ngx_int_t
ngx_http_idempotency_pg_setup_version(ngx_http_idempotency_pg_conn_t *conn,
    PGresult *result)
{
    ngx_int_t  version, compatible;

    version = 0;
    compatible = 0;

    if (PQntuples(result) == 1 && PQnfields(result) == 2) {
        version = ngx_atoi((u_char *) PQgetvalue(result, 0, 0),
                           PQgetlength(result, 0, 0));
        compatible = ngx_atoi((u_char *) PQgetvalue(result, 0, 1),
                              PQgetlength(result, 0, 1));
    }

    if (version < NGX_HTTP_IDEMPOTENCY_PG_SCHEMA) {
        ngx_http_idempotency_pg_drop(conn, "schema \"%V\" has version %i, "
                                     "this module needs %d: apply "
                                     "sql/install.sql", &conn->pg->schema,
                                     version, NGX_HTTP_IDEMPOTENCY_PG_SCHEMA);
        return NGX_ERROR;
    }

    if (compatible > NGX_HTTP_IDEMPOTENCY_PG_SCHEMA) {
        ngx_http_idempotency_pg_drop(conn, "schema \"%V\" has version %i, for "
                                     "modules from version %i on, and this "
                                     "one has %d: upgrade it",
                                     &conn->pg->schema, version, compatible,
                                     NGX_HTTP_IDEMPOTENCY_PG_SCHEMA);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_http_idempotency_pg_ready(ngx_http_idempotency_pg_conn_t *conn)
{
    ngx_uint_t                         i, again;
    ngx_http_idempotency_pg_t         *pg;
    ngx_http_idempotency_pg_conn_t    *other;
    ngx_http_idempotency_pg_server_t  *server;

    pg = conn->pg;
    server = ngx_http_idempotency_pg_server(pg, conn->server);

    ngx_del_timer(&conn->timer);

    again = conn->was_ready;

    conn->state = NGX_HTTP_IDEMPOTENCY_PG_READY;
    conn->failures = 0;
    conn->was_ready = 1;

    pg->store->connects++;
    pg->server = conn->server;

    if (conn->told) {
        conn->told = 0;

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: store \"%V\": PostgreSQL at %V answers "
                      "again", &pg->store->name, &server->url.url);
    }

    /* one server for all: another that took writes is not the one any more */

    for (i = 0; i < pg->nconns; i++) {
        other = &pg->conns[i];

        if (other->state == NGX_HTTP_IDEMPOTENCY_PG_READY
            && other->server != conn->server)
        {
            ngx_http_idempotency_pg_drop(other, "another server takes writes");
            pg->server = conn->server;
        }

        if (other->state == NGX_HTTP_IDEMPOTENCY_PG_READY) {
            continue;
        }

        /* it is back: what others know of it is old */

        other->failures = 0;

        if (other->state == NGX_HTTP_IDEMPOTENCY_PG_BACKOFF) {
            ngx_del_timer(&other->timer);
            other->state = NGX_HTTP_IDEMPOTENCY_PG_CLOSED;
            ngx_http_idempotency_pg_flush(other);
        }
    }

    if (again && conn->role == NGX_HTTP_IDEMPOTENCY_PG_STEPS) {

        /* a crash, or a failover, may have cost the last locks */

        ngx_http_idempotency_pg_api->doubt(pg->store, 1, NULL, NULL);
        ngx_http_idempotency_pg_renew_first(conn);
    }

    ngx_http_idempotency_pg_flush(conn);
}


/* who runs has the lock before anybody who waited for the connection as well */

static void
ngx_http_idempotency_pg_renew_first(ngx_http_idempotency_pg_conn_t *conn)
{
    ngx_queue_t                     *q, *next;
    ngx_http_idempotency_pg_call_t  *call;

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_idempotency_pg_call_t, queue);

        if (call->step == NGX_HTTP_IDEMPOTENCY_OP_RENEW) {
            ngx_queue_remove(q);
            ngx_queue_insert_head(&conn->unsent, q);
        }
    }
}


/* libpq would print it */

static void
ngx_http_idempotency_pg_notice(void *data, const char *message)
{
    ngx_log_debug1(NGX_LOG_DEBUG_CORE, ngx_cycle->log, 0,
                   "idempotency: PostgreSQL: %s", message);
}
