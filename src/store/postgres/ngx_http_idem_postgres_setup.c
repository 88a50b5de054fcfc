
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The set-up of a session: settings, checks and prepared statements, in one
 * round trip before the first batch.
 *
 * A server has to accept writes, and to have the schema in a version that
 * this module knows; otherwise the next server is tried.  Statements are
 * prepared here, and the first connection of a worker executes LISTEN.
 *
 * Called when libpq has connected, and with the results; every failure drops
 * the connection.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* results of the set-up, in the order of its statements */

#define NGX_HTTP_IDEM_PG_SETUP_SETTINGS  0
#define NGX_HTTP_IDEM_PG_SETUP_VERSION   1


/* a statement without parameters */
#define ngx_http_idem_pg_query(conn, sql)                                     \
    PQsendQueryParams((conn)->link, sql, 0, NULL, NULL, NULL, NULL, 0)


static ngx_int_t ngx_http_idem_pg_setup_send(ngx_http_idem_pg_conn_t *conn);
static ngx_int_t ngx_http_idem_pg_setup_result(
    ngx_http_idem_pg_conn_t *conn, PGresult *result);
static ngx_int_t ngx_http_idem_pg_setup_version(
    ngx_http_idem_pg_conn_t *conn, PGresult *result);
static void ngx_http_idem_pg_ready(ngx_http_idem_pg_conn_t *conn);
static void ngx_http_idem_pg_renew_first(ngx_http_idem_pg_conn_t *conn);


static const char  ngx_http_idem_pg_transaction_settings[] =
    "SELECT pg_catalog.set_config('synchronous_commit', $1::text, "
    "true), pg_catalog.set_config('lock_timeout', $2::text, true), "
    "pg_catalog.set_config('statement_timeout', $3::text, true)";

/* the default of the database may be stricter than "on": keep it */

static const char  ngx_http_idem_pg_session_settings[] =
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
    "'read committed', false)";


void
ngx_http_idem_pg_setup(ngx_http_idem_pg_conn_t *conn)
{
    conn->state = NGX_HTTP_IDEM_PG_SETUP;
    conn->setup = 0;

    if (PQsetnonblocking(conn->link, 1) != 0
        || !PQenterPipelineMode(conn->link)
        || ngx_http_idem_pg_setup_send(conn) != NGX_OK)
    {
        ngx_http_idem_pg_drop(conn, "no memory");
        return;
    }

    ngx_http_idem_pg_write(conn);
}


static ngx_int_t
ngx_http_idem_pg_setup_send(ngx_http_idem_pg_conn_t *conn)
{
    u_char               name[2];
    ngx_uint_t           i;
    ngx_http_idem_pg_t  *pg;

    pg = conn->pg;

    if (pg->pooler) {

        /* settings are sent with each batch */

        if (!ngx_http_idem_pg_query(conn, "SELECT pg_catalog.current_setting("
                                          "'transaction_read_only')"))
        {
            return NGX_ERROR;
        }

    } else if (ngx_http_idem_pg_settings_send(conn, 1,
                                              ngx_http_idem_pg_durable(conn))
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!ngx_http_idem_pg_query(conn,
                                pg->sql[NGX_HTTP_IDEM_PG_STEP_VERSION]))
    {
        return NGX_ERROR;
    }

    if (!pg->pooler) {
        for (i = 0; ngx_http_idem_pg_named(i); i++) {
            name[0] = (u_char) ('a' + i);
            name[1] = '\0';

            if (!PQsendPrepare(conn->link, (char *) name, pg->sql[i], 0,
                               NULL))
            {
                return NGX_ERROR;
            }
        }

        if (conn->listens
            && !ngx_http_idem_pg_query(conn,
                                    pg->sql[NGX_HTTP_IDEM_PG_STEP_LISTEN]))
        {
            return NGX_ERROR;
        }
    }

    return PQpipelineSync(conn->link) ? NGX_OK : NGX_ERROR;
}


/* settings for the session, or for a single transaction */

ngx_int_t
ngx_http_idem_pg_settings_send(ngx_http_idem_pg_conn_t *conn,
    ngx_uint_t session, ngx_uint_t durable)
{
    const char          *values[3];
    ngx_http_idem_pg_t  *pg;
    u_char  timeout[NGX_INT_T_LEN + 1], lock_timeout[NGX_INT_T_LEN + 1];

    pg = conn->pg;

    *ngx_sprintf(timeout, "%M", pg->timeout) = '\0';
    *ngx_sprintf(lock_timeout, "%M", pg->lock_timeout) = '\0';

    values[0] = durable ? "on" : "off";
    values[1] = (char *) lock_timeout;
    values[2] = (char *) timeout;

    return PQsendQueryParams(conn->link,
                             session ? ngx_http_idem_pg_session_settings
                                     : ngx_http_idem_pg_transaction_settings,
                             3, NULL, values, NULL, NULL, 0)
           ? NGX_OK : NGX_ERROR;
}


void
ngx_http_idem_pg_setup_read(ngx_http_idem_pg_conn_t *conn)
{
    PGresult   *result;
    ngx_int_t   rc;

    while ((result = ngx_http_idem_pg_next_result(conn->link))) {

        if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
            PQclear(result);
            ngx_http_idem_pg_ready(conn);
            return;
        }

        rc = ngx_http_idem_pg_setup_result(conn, result);

        PQclear(result);

        if (rc != NGX_OK) {
            return;
        }

        conn->setup++;
    }
}


static ngx_int_t
ngx_http_idem_pg_setup_result(ngx_http_idem_pg_conn_t *conn, PGresult *result)
{
    u_char       text[NGX_HTTP_IDEM_PG_ERROR_LEN];
    const char  *state, *message;

    switch (PQresultStatus(result)) {

    case PGRES_TUPLES_OK:

        if (conn->setup == NGX_HTTP_IDEM_PG_SETUP_SETTINGS
            && PQntuples(result) == 1
            && ngx_strcmp(PQgetvalue(result, 0, 0), "on") == 0)
        {
            ngx_http_idem_pg_drop(conn, "it is read-only, as a "
                                  "standby is");
            return NGX_ERROR;
        }

        if (conn->setup == NGX_HTTP_IDEM_PG_SETUP_VERSION) {
            return ngx_http_idem_pg_setup_version(conn, result);
        }

        return NGX_OK;

    case PGRES_COMMAND_OK:
        return NGX_OK;

    default:
        break;
    }

    state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);

    ngx_http_idem_pg_error_line(text, text + sizeof(text) - 1,
                                message ? message
                                        : PQerrorMessage(conn->link));

    if (state && (ngx_strcmp(state, "3F000") == 0       /* no such schema */
                  || ngx_strcmp(state, "42883") == 0))  /* no such function */
    {
        ngx_http_idem_pg_drop(conn, "database \"%V\" has no schema "
                              "\"%V\" of this release: apply "
                              "sql/install.sql (%s)",
                              &conn->pg->database, &conn->pg->schema,
                              text);

    } else if (state && ngx_strcmp(state, "42501") == 0) {
        ngx_http_idem_pg_drop(conn, "user \"%V\" lacks a right: "
                              "\"GRANT idempotency_nginx TO %V\" (%s)",
                              &conn->pg->user, &conn->pg->user, text);

    } else {
        ngx_http_idem_pg_drop(conn, "%s", text);
    }

    return NGX_ERROR;
}


/* columns: version of the schema, oldest module version it supports */

static ngx_int_t
ngx_http_idem_pg_setup_version(ngx_http_idem_pg_conn_t *conn,
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

    if (version < NGX_HTTP_IDEM_PG_SCHEMA) {
        ngx_http_idem_pg_drop(conn, "schema \"%V\" has version %i, "
                              "this module needs %d: apply "
                              "sql/install.sql", &conn->pg->schema,
                              version, NGX_HTTP_IDEM_PG_SCHEMA);
        return NGX_ERROR;
    }

    if (compatible > NGX_HTTP_IDEM_PG_SCHEMA) {
        ngx_http_idem_pg_drop(conn, "schema \"%V\" has version %i, for "
                              "modules from version %i on, and this "
                              "one has %d: upgrade it",
                              &conn->pg->schema, version, compatible,
                              NGX_HTTP_IDEM_PG_SCHEMA);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_http_idem_pg_ready(ngx_http_idem_pg_conn_t *conn)
{
    ngx_uint_t                  i, again;
    ngx_http_idem_pg_t         *pg;
    ngx_http_idem_pg_conn_t    *other;
    ngx_http_idem_pg_server_t  *server;

    pg = conn->pg;
    server = ngx_http_idem_pg_server(pg, conn->server);

    ngx_del_timer(&conn->timer);

    again = conn->was_ready;

    conn->state = NGX_HTTP_IDEM_PG_READY;
    conn->failures = 0;
    conn->was_ready = 1;

    pg->store->connects++;
    pg->server = conn->server;

    if (conn->failure_logged) {
        conn->failure_logged = 0;

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: store \"%V\": PostgreSQL at %V answers "
                      "again", &pg->store->name, &server->url.url);
    }

    /*
     * one server for all connections: the former one must not be used any
     * more
     */

    for (i = 0; i < pg->nconns; i++) {
        other = &pg->conns[i];

        if (other->state == NGX_HTTP_IDEM_PG_READY
            && other->server != conn->server)
        {
            ngx_http_idem_pg_drop(other, "another server takes writes");
            pg->server = conn->server;
        }

        if (other->state == NGX_HTTP_IDEM_PG_READY) {
            continue;
        }

        /* the server is back: let other connections retry at once */

        other->failures = 0;

        if (other->state == NGX_HTTP_IDEM_PG_BACKOFF) {
            ngx_del_timer(&other->timer);
            other->state = NGX_HTTP_IDEM_PG_CLOSED;
            ngx_http_idem_pg_flush(other);
        }
    }

    if (again && conn->role == NGX_HTTP_IDEM_PG_STEPS) {

        /* a crash or a failover may have lost the latest locks */

        ngx_http_idem_pg_api->suspect_loss(pg->store, 1, NULL, NULL);
        ngx_http_idem_pg_renew_first(conn);
    }

    ngx_http_idem_pg_flush(conn);
}


/* holders renew their locks before queued begins can take them */

static void
ngx_http_idem_pg_renew_first(ngx_http_idem_pg_conn_t *conn)
{
    ngx_queue_t              *q, *next;
    ngx_http_idem_pg_call_t  *call;

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_idem_pg_call_t, queue);

        if (call->step == NGX_HTTP_IDEM_OP_RENEW) {
            ngx_queue_remove(q);
            ngx_queue_insert_head(&conn->unsent, q);
        }
    }
}
