
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Decodes rows and errors as results of operations.
 *
 * Rows are in binary format, as ..._postgres_step.c requests them.  All
 * values are validated.
 *
 * Called by the batches after the Sync of a statement.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* larger responses are not copied to the pool of the request */
#define NGX_HTTP_IDEM_PG_COPY        2048

/* the column of the claim in the row of a begin; details follow */
#define NGX_HTTP_IDEM_PG_CLAIM          4

/* first column of begin */
#define NGX_HTTP_IDEM_PG_HOW_FREE       0
#define NGX_HTTP_IDEM_PG_HOW_ABANDONED  1
#define NGX_HTTP_IDEM_PG_HOW_EXPIRED    2
#define NGX_HTTP_IDEM_PG_HOW_FOUND      3
#define NGX_HTTP_IDEM_PG_HOW_GONE       4

/* result of commit */
#define NGX_HTTP_IDEM_PG_DONE           1
#define NGX_HTTP_IDEM_PG_RUNNING        4


static void ngx_http_idem_pg_begun(ngx_http_idem_pg_call_t *call,
    int64_t how);
static const char *ngx_http_idem_pg_found(ngx_http_idem_pg_call_t *call);
static const char *ngx_http_idem_pg_copy_column(ngx_http_idem_op_t *op,
    PGresult *result, int column, ngx_str_t *part);
static void ngx_http_idem_pg_clear(void *data);
static const char *ngx_http_idem_pg_refused(ngx_http_idem_op_t *op,
    const char *state);
static void ngx_http_idem_pg_explain(ngx_http_idem_op_t *op,
    const char *why, PGresult *error);


/* an integer column in binary format, of any width; -1: invalid */

int64_t
ngx_http_idem_pg_number(PGresult *result, int row, int column)
{
    u_char    *p;
    int        i, len;
    uint64_t   n;

    if (PQntuples(result) <= row || column < 0 || PQnfields(result) <= column
        || PQgetisnull(result, row, column))
    {
        return -1;
    }

    len = PQgetlength(result, row, column);
    p = (u_char *) PQgetvalue(result, row, column);

    if (len != 2 && len != 4 && len != 8) {
        return -1;
    }

    n = (p[0] & 0x80) ? (uint64_t) -1 : 0;

    for (i = 0; i < len; i++) {
        n = n << 8 | p[i];
    }

    return (int64_t) n;
}


ngx_int_t
ngx_http_idem_pg_claim(PGresult *result, int row, int column,
    ngx_http_idem_claim_t *claim)
{
    if (PQnfields(result) <= column) {
        return NGX_ERROR;
    }

    return ngx_http_idem_pg_api->claim_decode(
                               (u_char *) PQgetvalue(result, row, column),
                               (size_t) PQgetlength(result, row, column),
                               claim);
}


/* sets op->result and the rest of the result, of a successful statement */

void
ngx_http_idem_pg_step_result(ngx_http_idem_pg_call_t *call)
{
    int64_t              n;
    ngx_http_idem_op_t  *op;

    op = call->op;

    ngx_http_idem_op_error(op, "the row that came is not the one that was "
                               "asked for");

    if (PQresultStatus(call->result) != PGRES_TUPLES_OK) {
        return;
    }

    if (op->kind > NGX_HTTP_IDEM_OP_LIST) {
        ngx_http_idem_pg_trail_result(call);
        return;
    }

    if (ngx_http_idem_op_is_admin(op)) {
        ngx_http_idem_pg_admin_result(call);
        return;
    }

    n = ngx_http_idem_pg_number(call->result, 0, 0);

    if (n < 0) {
        return;
    }

    op->error = NULL;

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:
        ngx_http_idem_pg_begun(call, n);
        return;

    case NGX_HTTP_IDEM_OP_WATCH:
        op->found.left = (ngx_msec_t) n;
        op->result = NGX_HTTP_IDEM_OK;
        return;

    case NGX_HTTP_IDEM_OP_COMMIT:

        op->running = (n == NGX_HTTP_IDEM_PG_RUNNING);

        if (n == NGX_HTTP_IDEM_PG_DONE && call->bare) {
            op->result = NGX_HTTP_IDEM_FULL;
            op->error = "there is no room in it";
            return;
        }

        /* fall through */

    default: /* renew, release */
        op->result = (n == NGX_HTTP_IDEM_PG_DONE)
                     ? NGX_HTTP_IDEM_OK : NGX_HTTP_IDEM_LOST;
        return;
    }
}


static void
ngx_http_idem_pg_begun(ngx_http_idem_pg_call_t *call, int64_t how)
{
    const char             *wrong;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_claim_t   claim;

    static const ngx_http_idem_pg_expired_t  columns =
        { NGX_HTTP_IDEM_PG_CLAIM, NGX_HTTP_IDEM_PG_CLAIM - 1, -1,
          NGX_HTTP_IDEM_PG_CLAIM + 1 };

    op = call->op;

    op->abandoned = 0;
    op->expired = 0;

    if (how == NGX_HTTP_IDEM_PG_HOW_FREE
        && PQnfields(call->result) > NGX_HTTP_IDEM_PG_CLAIM + 1
        && !PQgetisnull(call->result, 0, NGX_HTTP_IDEM_PG_CLAIM))
    {
        /* replaces a record that had expired and was not purged yet */

        ngx_http_idem_pg_expired(call->conn->pg, call->result, 0, op->id,
                                 &columns);
    }

    switch (how) {

    case NGX_HTTP_IDEM_PG_HOW_FOUND:
        break;

    case NGX_HTTP_IDEM_PG_HOW_GONE:
        op->result = NGX_HTTP_IDEM_GONE;
        return;

    default:
        op->result = NGX_HTTP_IDEM_ACQUIRED;
        op->abandoned = (how == NGX_HTTP_IDEM_PG_HOW_ABANDONED);
        op->expired = (how == NGX_HTTP_IDEM_PG_HOW_EXPIRED);

        if ((op->expired || op->abandoned)
            && ngx_http_idem_pg_claim(call->result, 0, NGX_HTTP_IDEM_PG_CLAIM,
                                      &claim)
               == NGX_OK)
        {
            op->original = claim.time;
        }

        if (op->abandoned
            && (PQnfields(call->result) <= NGX_HTTP_IDEM_PG_CLAIM + 1
                || ngx_http_idem_pg_copy_column(op, call->result,
                                                NGX_HTTP_IDEM_PG_CLAIM + 1,
                                                &op->found.details)
                   != NULL))
        {
            ngx_str_null(&op->found.details);
        }

        return;
    }

    wrong = ngx_http_idem_pg_found(call);

    if (wrong == NULL) {
        op->result = NGX_HTTP_IDEM_FOUND;
        return;
    }

    ngx_http_idem_op_bad_record(op, wrong);

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: store \"%V\": record %*xs is not usable: %s",
                  &op->store->name, (size_t) 8, op->id, wrong);
}


/* decodes state, reason, left, claim, details, response; NULL, or an error */

static const char *
ngx_http_idem_pg_found(ngx_http_idem_pg_call_t *call)
{
    int64_t                 state, reason, left;
    PGresult               *result;
    const char             *wrong;
    ngx_pool_cleanup_t     *cln;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_found_t  *found;

    op = call->op;
    result = call->result;
    found = &op->found;

    ngx_memzero(found, sizeof(ngx_http_idem_found_t));

    found->verify = 1;

    state = ngx_http_idem_pg_number(result, 0, 1);
    reason = ngx_http_idem_pg_number(result, 0, 2);
    left = ngx_http_idem_pg_number(result, 0, 3);

    if (PQnfields(result) < 7
        || state < NGX_HTTP_IDEM_IN_PROGRESS
        || state > NGX_HTTP_IDEM_UNUSABLE)
    {
        return "its state is unknown";
    }

    if (reason < 0 || reason > NGX_HTTP_IDEM_REASON_EVICTED) {
        return "its reason is unknown";
    }

    found->state = (ngx_http_idem_state_e) state;
    found->reason = (ngx_http_idem_reason_e) reason;
    found->left = (ngx_msec_t) ngx_max(left, 0);

    if (ngx_http_idem_pg_claim(result, 0, NGX_HTTP_IDEM_PG_CLAIM,
                               &found->claim)
        != NGX_OK)
    {
        return "its claim is corrupt";
    }

    wrong = ngx_http_idem_pg_copy_column(op, result, 5, &found->details);

    if (wrong) {
        return wrong;
    }

    if (state != NGX_HTTP_IDEM_COMPLETED) {
        return NULL;
    }

    if (PQgetisnull(result, 0, 6)) {
        return "it has no response";
    }

    found->response.len = (size_t) PQgetlength(result, 0, 6);

    if (found->response.len <= NGX_HTTP_IDEM_PG_COPY) {
        return ngx_http_idem_pg_copy_column(op, result, 6, &found->response);
    }

    /* a large response is not copied: the pool takes over the row */

    cln = ngx_pool_cleanup_add(op->pool, 0);
    if (cln == NULL) {
        return "there is no memory for its response";
    }

    cln->handler = ngx_http_idem_pg_clear;
    cln->data = result;

    found->response.data = (u_char *) PQgetvalue(result, 0, 6);
    call->result = NULL;

    return NULL;
}


static const char *
ngx_http_idem_pg_copy_column(ngx_http_idem_op_t *op, PGresult *result,
    int column, ngx_str_t *part)
{
    size_t  len;

    len = (size_t) PQgetlength(result, 0, column);

    if (PQgetisnull(result, 0, column) || len == 0) {
        ngx_str_null(part);
        return NULL;
    }

    part->data = ngx_pnalloc(op->pool, len);
    if (part->data == NULL) {
        return "there is no memory for its response";
    }

    ngx_memcpy(part->data, PQgetvalue(result, 0, column), len);
    part->len = len;

    return NULL;
}


static void
ngx_http_idem_pg_clear(void *data)
{
    PQclear(data);
}


/*
 * Classifies the error of a statement, or of a transaction (call is NULL).
 * By SQLSTATE, since messages are in the server's language.
 */

ngx_http_idem_pg_verdict_e
ngx_http_idem_pg_step_failed(ngx_http_idem_pg_call_t *call, PGresult *error)
{
    const char          *state;
    ngx_http_idem_op_t  *op;

    op = call ? call->op : NULL;
    state = PQresultErrorField(error, PG_DIAG_SQLSTATE);

    /* an older installation of the schema has the plain purge only */

    if (call && call->step == NGX_HTTP_IDEM_PG_STEP_EXPIRE && state
        && (ngx_strcmp(state, "42883") == 0 || ngx_strcmp(state, "42501") == 0))
    {
        call->conn->pg->purge_silent = 1;

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: store \"%V\" does not tell which records "
                      "expired: apply sql/install.sql of this release",
                      &call->conn->pg->store->name);
    }

    /* errors without SQLSTATE are libpq's own: the connection broke */

    if (state == NULL
        || ngx_strncmp(state, "08", 2) == 0         /* connection */
        || ngx_strncmp(state, "57P", 3) == 0        /* shutdown, crash */
        || ngx_strcmp(state, "25006") == 0          /* a standby by now */
        || ngx_strcmp(state, "26000") == 0)         /* not prepared */
    {
        return NGX_HTTP_IDEM_PG_BROKEN;
    }

    /* feature_not_supported: the plan of a prepared statement is that of a
       function which was made anew with other columns */

    if (ngx_strcmp(state, "0A000") == 0 && call && call->tries == 1) {
        return NGX_HTTP_IDEM_PG_BROKEN;
    }

    if (ngx_strncmp(state, "40", 2) == 0 || op == NULL) {
        /* serialization failure, deadlock; or an error of a whole batch */

        if (op) {
            op->result = NGX_HTTP_IDEM_ERROR;
            ngx_http_idem_pg_explain(op, "", error);
        }

        return NGX_HTTP_IDEM_PG_AGAIN;
    }

    op->result = NGX_HTTP_IDEM_ERROR;

    if (ngx_strncmp(state, "53", 2) == 0            /* disk or memory full */
        && op->kind == NGX_HTTP_IDEM_OP_COMMIT && !call->bare
        && op->state == NGX_HTTP_IDEM_COMPLETED)
    {
        return NGX_HTTP_IDEM_PG_AGAIN_BARE;
    }

    ngx_http_idem_pg_explain(op, ngx_http_idem_pg_refused(op, state), error);

    return NGX_HTTP_IDEM_PG_FAILED;
}


/* sets the result of an operation that the server refused; returns why */

static const char *
ngx_http_idem_pg_refused(ngx_http_idem_op_t *op, const char *state)
{
    if (ngx_strncmp(state, "53", 2) == 0) {

        if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
            op->result = NGX_HTTP_IDEM_FULL;
        }

        return "there is no room: ";
    }

    if (ngx_strcmp(state, "55P03") == 0) {
        return "the record is locked: ";
    }

    if (ngx_strcmp(state, "57014") == 0) {
        return "it took too long: ";
    }

    if (ngx_strcmp(state, "42501") == 0) {

        /* the store works, but the user lacks permission: no outage */

        op->denied = 1;
        op->bad_record = (op->kind == NGX_HTTP_IDEM_OP_GET);

        return (op->kind == NGX_HTTP_IDEM_OP_REMOVE
                || op->kind == NGX_HTTP_IDEM_OP_LIST
                || op->kind == NGX_HTTP_IDEM_OP_EVENTS)
               ? "the user may not do that, grant it idempotency_admin: "
               : "the user may not do that: ";
    }

    if (ngx_strcmp(state, "42883") == 0 && ngx_http_idem_op_is_admin(op)) {
        op->bad_record = (op->kind == NGX_HTTP_IDEM_OP_GET);
        return "apply sql/install.sql of this release: ";
    }

    /* malformed JSON would fail again */

    op->bad_record = (op->kind == NGX_HTTP_IDEM_OP_LOG
                      && ngx_strncmp(state, "22", 2) == 0);
    return "";
}


/* puts the server's message into op->error */

static void
ngx_http_idem_pg_explain(ngx_http_idem_op_t *op,
    const char *why, PGresult *error)
{
    u_char         *p, *last;
    const char     *message;

    static u_char   text[NGX_HTTP_IDEM_PG_ERROR_LEN];

    message = PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY);

    /* without a pool: the error is used before the next one overwrites it */

    p = op->pool ? ngx_pnalloc(op->pool, sizeof(text)) : NULL;

    if (p == NULL) {
        p = text;
    }

    op->error = (char *) p;
    last = p + sizeof(text) - 1;

    p = ngx_slprintf(p, last, "%s", why);
    ngx_http_idem_pg_error_line(p, last, message ? message : "");
}
