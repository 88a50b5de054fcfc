
/*
 * An operation as a statement, and a row, or an error, as its result.
 *
 * Each statement is one call of a function of sql/v1/steps.sql, with parameters
 * and results in binary form: numbers in network order, bytes as they are.
 * What is read is checked before anybody sees it.
 *
 * Called by the lots.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "record/ngx_http_idempotency_number.h"
#include "store/postgres/ngx_http_idempotency_postgres.h"


#define NGX_HTTP_IDEMPOTENCY_PG_PARAMS      16

/* the largest part of a row that is copied to the request's pool */
#define NGX_HTTP_IDEMPOTENCY_PG_COPY        2048

/* of an encoded response: see record/ */
#define NGX_HTTP_IDEMPOTENCY_PG_STATUS_AT   8

/* how begin answers */
#define NGX_HTTP_IDEMPOTENCY_PG_HOW_ABANDONED  1
#define NGX_HTTP_IDEMPOTENCY_PG_HOW_EXPIRED    2
#define NGX_HTTP_IDEMPOTENCY_PG_HOW_FOUND      3
#define NGX_HTTP_IDEMPOTENCY_PG_HOW_GONE       4

/* how commit does */
#define NGX_HTTP_IDEMPOTENCY_PG_DONE           1
#define NGX_HTTP_IDEMPOTENCY_PG_RUNNING        4


/* parameters of a statement, with room for what is encoded for it */

typedef struct {
    int              n;
    const char      *values[NGX_HTTP_IDEMPOTENCY_PG_PARAMS];
    int              lengths[NGX_HTTP_IDEMPOTENCY_PG_PARAMS];
    int              formats[NGX_HTTP_IDEMPOTENCY_PG_PARAMS];
    u_char          *last;
    u_char           room[256];
} ngx_http_idempotency_pg_args_t;


static void ngx_http_idempotency_pg_arg(ngx_http_idempotency_pg_args_t *args,
    const void *value, size_t len);
static void ngx_http_idempotency_pg_arg_number(
    ngx_http_idempotency_pg_args_t *args, int64_t n, size_t bytes);
static void ngx_http_idempotency_pg_arg_time(
    ngx_http_idempotency_pg_args_t *args, uint64_t time);
static void ngx_http_idempotency_pg_arg_claim(
    ngx_http_idempotency_pg_args_t *args, ngx_http_idempotency_op_t *op);
static void ngx_http_idempotency_pg_arg_labels(
    ngx_http_idempotency_pg_args_t *args);
static u_char *ngx_http_idempotency_pg_commit_args(
    ngx_http_idempotency_pg_args_t *args, ngx_http_idempotency_op_t *op,
    ngx_uint_t bare);
static u_char *ngx_http_idempotency_pg_gather(ngx_chain_t *chain,
    size_t size);
static ngx_int_t ngx_http_idempotency_pg_send(
    ngx_http_idempotency_pg_conn_t *conn, ngx_uint_t step,
    ngx_http_idempotency_pg_args_t *args);
static int64_t ngx_http_idempotency_pg_number(PGresult *result, int column);
static void ngx_http_idempotency_pg_begun(
    ngx_http_idempotency_pg_call_t *call);
static const char *ngx_http_idempotency_pg_found(
    ngx_http_idempotency_pg_call_t *call);
static const char *ngx_http_idempotency_pg_keep(
    ngx_http_idempotency_op_t *op, PGresult *result, int column,
    ngx_str_t *part);
static void ngx_http_idempotency_pg_clear(void *data);
static void ngx_http_idempotency_pg_explain(ngx_http_idempotency_op_t *op,
    const char *why, PGresult *error);


static const char  *ngx_http_idempotency_pg_texts[] = {

    "SELECT * FROM %V.idempotency_begin($1::bytea,$2::bytea,$3::bytea,"
    "$4::bytea,$5::int8,$6::int8,$7::bool,$8::int8,$9::bool,$10::int2,"
    "$11::text,$12::text,$13::text,$14::text)",

    "SELECT %V.idempotency_renew($1::bytea,$2::bytea,$3::bytea,$4::bytea,"
    "$5::int8,$6::int8,$7::bool,$8::bool,$9::text,$10::text,$11::text,"
    "$12::text)",

    "SELECT %V.idempotency_commit($1::bytea,$2::bytea,$3::bytea,$4::int2,"
    "$5::int2,$6::int2,$7::int8,$8::int8,$9::int8,$10::bool,$11::bool,"
    "$12::text,$13::text,$14::text,$15::text,$16::bytea)",

    "SELECT %V.idempotency_release($1::bytea,$2::bytea)",

    "SELECT %V.idempotency_watch($1::bytea)",

    "SELECT %V.idempotency_purge($1::int4,$2::bool)",

    "SELECT o_version, o_compatible FROM %V.idempotency_version()",

    "LISTEN \"%V\""
};


char *
ngx_http_idempotency_pg_step_conf(ngx_conf_t *cf,
    ngx_http_idempotency_pg_t *pg)
{
    char        *sql;
    size_t       len;
    ngx_uint_t   i, n;

    n = sizeof(ngx_http_idempotency_pg_texts) / sizeof(const char *);

    for (i = 0; i < n; i++) {
        len = ngx_strlen(ngx_http_idempotency_pg_texts[i]) + pg->schema.len;

        sql = ngx_pnalloc(cf->pool, len + 1);
        if (sql == NULL) {
            return NGX_CONF_ERROR;
        }

        *ngx_snprintf((u_char *) sql, len, ngx_http_idempotency_pg_texts[i],
                      &pg->schema)
            = '\0';

        if (i < NGX_HTTP_IDEMPOTENCY_PG_STEP_N) {
            pg->sql[i] = sql;

        } else if (i == NGX_HTTP_IDEMPOTENCY_PG_STEP_N) {
            pg->version_sql = sql;

        } else {
            pg->listen_sql = sql;
        }
    }

    return NGX_CONF_OK;
}


static void
ngx_http_idempotency_pg_arg(ngx_http_idempotency_pg_args_t *args,
    const void *value, size_t len)
{
    args->values[args->n] = value;
    args->lengths[args->n] = (int) len;
    args->formats[args->n] = 1;
    args->n++;
}


static void
ngx_http_idempotency_pg_arg_number(ngx_http_idempotency_pg_args_t *args,
    int64_t n, size_t bytes)
{
    u_char  *p;
    size_t   i;

    p = args->last;

    for (i = 0; i < bytes; i++) {
        p[i] = (u_char) ((uint64_t) n >> (8 * (bytes - 1 - i)));
    }

    args->last = p + bytes;

    ngx_http_idempotency_pg_arg(args, p, bytes);
}


static void
ngx_http_idempotency_pg_arg_time(ngx_http_idempotency_pg_args_t *args,
    uint64_t time)
{
    ngx_http_idempotency_pg_arg_number(args,
                  (int64_t) ngx_min(time, NGX_HTTP_IDEMPOTENCY_PG_LIFE_MAX),
                  8);
}


static void
ngx_http_idempotency_pg_arg_claim(ngx_http_idempotency_pg_args_t *args,
    ngx_http_idempotency_op_t *op)
{
    ngx_http_idempotency_pg_api->claim_encode(args->last, op->claim);

    ngx_http_idempotency_pg_arg(args, args->last,
                                NGX_HTTP_IDEMPOTENCY_CLAIM_LEN);

    args->last += NGX_HTTP_IDEMPOTENCY_CLAIM_LEN;
}


/* group, tenant and actor are not in an operation yet; the host is ours */

static void
ngx_http_idempotency_pg_arg_labels(ngx_http_idempotency_pg_args_t *args)
{
    ngx_http_idempotency_pg_arg(args, "", 0);
    ngx_http_idempotency_pg_arg(args, "", 0);
    ngx_http_idempotency_pg_arg(args, "", 0);
    ngx_http_idempotency_pg_arg(args, ngx_cycle->hostname.data,
                                ngx_cycle->hostname.len);
}


ngx_int_t
ngx_http_idempotency_pg_step_send(ngx_http_idempotency_pg_conn_t *conn,
    ngx_http_idempotency_pg_call_t *call)
{
    u_char                          *gathered;
    ngx_int_t                        rc;
    ngx_http_idempotency_op_t       *op;
    ngx_http_idempotency_pg_args_t   args;

    op = call->op;
    gathered = NULL;

    args.n = 0;
    args.last = args.room;

    if (call->step == NGX_HTTP_IDEMPOTENCY_PG_STEP_PURGE) {
        ngx_http_idempotency_pg_arg_number(&args, conn->pg->purge_batch, 4);
        ngx_http_idempotency_pg_arg_number(&args, conn->pg->purge_archive, 1);

        return ngx_http_idempotency_pg_send(conn, call->step, &args);
    }

    ngx_http_idempotency_pg_arg(&args, op->id, NGX_HTTP_IDEMPOTENCY_ID_LEN);

    if (call->step == NGX_HTTP_IDEMPOTENCY_OP_WATCH) {
        return ngx_http_idempotency_pg_send(conn, call->step, &args);
    }

    ngx_http_idempotency_pg_arg(&args, op->token,
                                NGX_HTTP_IDEMPOTENCY_TOKEN_LEN);

    switch (call->step) {

    case NGX_HTTP_IDEMPOTENCY_OP_BEGIN:
    case NGX_HTTP_IDEMPOTENCY_OP_RENEW:

        ngx_http_idempotency_pg_arg_claim(&args, op);
        ngx_http_idempotency_pg_arg(&args, op->details.len ? op->details.data
                                                           : NULL,
                                    op->details.len);
        ngx_http_idempotency_pg_arg_time(&args, op->lease);
        ngx_http_idempotency_pg_arg_time(&args, op->ttl);
        ngx_http_idempotency_pg_arg_number(&args, op->hold, 1);

        if (call->step == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
            ngx_http_idempotency_pg_arg_time(&args, op->age);
        }

        ngx_http_idempotency_pg_arg_number(&args, op->key_alone, 1);

        if (call->step == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
            ngx_http_idempotency_pg_arg_number(&args,
                                               op->again ? 2 + op->leased
                                                         : op->waits, 2);
        }

        ngx_http_idempotency_pg_arg_labels(&args);
        break;

    case NGX_HTTP_IDEMPOTENCY_OP_COMMIT:
        gathered = ngx_http_idempotency_pg_commit_args(&args, op, call->bare);

        if (gathered == NULL) {
            return NGX_ERROR;
        }

        break;

    default: /* NGX_HTTP_IDEMPOTENCY_OP_RELEASE */
        break;
    }

    rc = ngx_http_idempotency_pg_send(conn, call->step, &args);

    if (gathered && gathered != args.room) {
        ngx_free(gathered);
    }

    return rc;
}


/* memory to be freed, or that of args, or NULL: there is none */

static u_char *
ngx_http_idempotency_pg_commit_args(ngx_http_idempotency_pg_args_t *args,
    ngx_http_idempotency_op_t *op, ngx_uint_t bare)
{
    u_char  *gathered, *response;
    size_t   size;

    gathered = args->room;
    response = NULL;
    size = 0;

    if (op->state == NGX_HTTP_IDEMPOTENCY_COMPLETED && !bare && op->size) {
        size = op->size;

        if (op->response->next == NULL
            && (size_t) (op->response->buf->last - op->response->buf->pos)
               == size)
        {
            response = op->response->buf->pos;

        } else {
            gathered = ngx_http_idempotency_pg_gather(op->response, size);

            if (gathered == NULL) {
                return NULL;
            }

            response = gathered;
        }
    }

    ngx_http_idempotency_pg_arg_claim(args, op);

    ngx_http_idempotency_pg_arg_number(args, bare
                                      ? NGX_HTTP_IDEMPOTENCY_UNUSABLE
                                      : op->state, 2);
    ngx_http_idempotency_pg_arg_number(args, bare
                                      ? NGX_HTTP_IDEMPOTENCY_REASON_NO_ROOM
                                      : op->reason, 2);

    if (size >= NGX_HTTP_IDEMPOTENCY_PG_STATUS_AT + 2) {
        ngx_http_idempotency_pg_arg(args,
                           response + NGX_HTTP_IDEMPOTENCY_PG_STATUS_AT, 2);
    } else {
        ngx_http_idempotency_pg_arg(args, NULL, 0);
    }

    ngx_http_idempotency_pg_arg_time(args, op->ttl);
    ngx_http_idempotency_pg_arg_time(args, op->grace);
    ngx_http_idempotency_pg_arg_time(args, op->lease);
    ngx_http_idempotency_pg_arg_number(args, op->hold, 1);
    ngx_http_idempotency_pg_arg_number(args, op->key_alone, 1);
    ngx_http_idempotency_pg_arg_labels(args);
    ngx_http_idempotency_pg_arg(args, response, size);

    return gathered;
}


static u_char *
ngx_http_idempotency_pg_gather(ngx_chain_t *chain, size_t size)
{
    u_char  *p, *response;
    size_t   n;

    response = ngx_alloc(size, ngx_cycle->log);
    if (response == NULL) {
        return NULL;
    }

    for (p = response; chain && size; chain = chain->next) {
        n = ngx_min((size_t) (chain->buf->last - chain->buf->pos), size);

        p = ngx_cpymem(p, chain->buf->pos, n);
        size -= n;
    }

    return response;
}


/* behind a pooler a statement that has a name is not there in the next lot */

static ngx_int_t
ngx_http_idempotency_pg_send(ngx_http_idempotency_pg_conn_t *conn,
    ngx_uint_t step, ngx_http_idempotency_pg_args_t *args)
{
    int   rc;
    char  name[2];

    if (conn->pg->pooler) {
        rc = PQsendQueryParams(conn->link, conn->pg->sql[step], args->n, NULL,
                               args->values, args->lengths, args->formats, 1);
    } else {
        name[0] = (char) ('a' + step);
        name[1] = '\0';

        rc = PQsendQueryPrepared(conn->link, name, args->n, args->values,
                                 args->lengths, args->formats, 1);
    }

    return rc ? NGX_OK : NGX_ERROR;
}


/* settings for one transaction */

ngx_int_t
ngx_http_idempotency_pg_prelude_send(ngx_http_idempotency_pg_conn_t *conn,
    ngx_uint_t durable)
{
    const char                 *values[3];
    ngx_http_idempotency_pg_t  *pg;

    u_char  timeout[NGX_INT_T_LEN + 1], lock_timeout[NGX_INT_T_LEN + 1];

    pg = conn->pg;

    *ngx_sprintf(timeout, "%M", pg->timeout) = '\0';
    *ngx_sprintf(lock_timeout, "%M", pg->lock_timeout) = '\0';

    values[0] = durable ? "on" : "off";
    values[1] = (char *) lock_timeout;
    values[2] = (char *) timeout;

    return PQsendQueryParams(conn->link,
               "SELECT pg_catalog.set_config('synchronous_commit', $1::text, "
               "true), pg_catalog.set_config('lock_timeout', $2::text, true), "
               "pg_catalog.set_config('statement_timeout', $3::text, true)",
               3, NULL, values, NULL, NULL, 0)
           ? NGX_OK : NGX_ERROR;
}


/* a column of a row in binary form, of whatever width; -1 for anything else */

static int64_t
ngx_http_idempotency_pg_number(PGresult *result, int column)
{
    u_char    *p;
    int        i, len;
    uint64_t   n;

    if (PQntuples(result) < 1 || PQnfields(result) <= column
        || PQgetisnull(result, 0, column))
    {
        return -1;
    }

    len = PQgetlength(result, 0, column);
    p = (u_char *) PQgetvalue(result, 0, column);

    if (len != 2 && len != 4 && len != 8) {
        return -1;
    }

    n = (p[0] & 0x80) ? (uint64_t) -1 : 0;

    for (i = 0; i < len; i++) {
        n = n << 8 | p[i];
    }

    return (int64_t) n;
}


/* of a purge */

ngx_int_t
ngx_http_idempotency_pg_count(PGresult *result)
{
    return (ngx_int_t) ngx_http_idempotency_pg_number(result, 0);
}


/* of a statement that went well: op->result and what belongs to it */

void
ngx_http_idempotency_pg_step_result(ngx_http_idempotency_pg_call_t *call)
{
    int64_t                     n;
    ngx_http_idempotency_op_t  *op;

    op = call->op;

    op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
    op->error = "the row that came is not the one that was asked for";

    if (PQresultStatus(call->result) != PGRES_TUPLES_OK) {
        return;
    }

    n = ngx_http_idempotency_pg_number(call->result, 0);

    if (n < 0) {
        return;
    }

    switch (op->kind) {

    case NGX_HTTP_IDEMPOTENCY_OP_BEGIN:
        op->error = NULL;
        ngx_http_idempotency_pg_begun(call);
        return;

    case NGX_HTTP_IDEMPOTENCY_OP_WATCH:
        op->error = NULL;
        op->found.left = (ngx_msec_t) n;
        op->result = NGX_HTTP_IDEMPOTENCY_OK;
        return;

    case NGX_HTTP_IDEMPOTENCY_OP_COMMIT:

        op->running = (n == NGX_HTTP_IDEMPOTENCY_PG_RUNNING);

        if (n == NGX_HTTP_IDEMPOTENCY_PG_DONE && call->bare) {
            op->result = NGX_HTTP_IDEMPOTENCY_FULL;
            op->error = "there is no room in it";
            return;
        }

        /* fall through */

    default: /* renew, release */
        op->error = NULL;
        op->result = (n == NGX_HTTP_IDEMPOTENCY_PG_DONE)
                     ? NGX_HTTP_IDEMPOTENCY_OK : NGX_HTTP_IDEMPOTENCY_LOST;
        return;
    }
}


static void
ngx_http_idempotency_pg_begun(ngx_http_idempotency_pg_call_t *call)
{
    int64_t                     how;
    const char                 *wrong;
    ngx_http_idempotency_op_t  *op;

    op = call->op;
    how = ngx_http_idempotency_pg_number(call->result, 0);

    op->abandoned = 0;
    op->expired = 0;

    switch (how) {

    case NGX_HTTP_IDEMPOTENCY_PG_HOW_FOUND:
        break;

    case NGX_HTTP_IDEMPOTENCY_PG_HOW_GONE:
        op->result = NGX_HTTP_IDEMPOTENCY_GONE;
        return;

    default:
        op->result = NGX_HTTP_IDEMPOTENCY_ACQUIRED;
        op->abandoned = (how == NGX_HTTP_IDEMPOTENCY_PG_HOW_ABANDONED);
        op->expired = (how == NGX_HTTP_IDEMPOTENCY_PG_HOW_EXPIRED);
        return;
    }

    wrong = ngx_http_idempotency_pg_found(call);

    if (wrong == NULL) {
        op->result = NGX_HTTP_IDEMPOTENCY_FOUND;
        return;
    }

    op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
    op->error = wrong;
    op->bad_record = 1;

    ngx_log_error(NGX_LOG_ERR, op->log, 0,
                  "idempotency: store \"%V\": record %*xs is not usable: %s",
                  &op->store->name, (size_t) 8, op->id, wrong);
}


/* state, reason, left, claim, details, response: why not, or NULL */

static const char *
ngx_http_idempotency_pg_found(ngx_http_idempotency_pg_call_t *call)
{
    int64_t                        state, reason, left;
    PGresult                      *result;
    const char                    *wrong;
    ngx_pool_cleanup_t            *cln;
    ngx_http_idempotency_op_t     *op;
    ngx_http_idempotency_found_t  *found;

    op = call->op;
    result = call->result;
    found = &op->found;

    ngx_memzero(found, sizeof(ngx_http_idempotency_found_t));

    found->verify = 1;

    state = ngx_http_idempotency_pg_number(result, 1);
    reason = ngx_http_idempotency_pg_number(result, 2);
    left = ngx_http_idempotency_pg_number(result, 3);

    if (PQnfields(result) < 7
        || state < NGX_HTTP_IDEMPOTENCY_IN_PROGRESS
        || state > NGX_HTTP_IDEMPOTENCY_UNUSABLE)
    {
        return "its state is unknown";
    }

    if (reason < 0 || reason > NGX_HTTP_IDEMPOTENCY_REASON_EVICTED) {
        return "its reason is unknown";
    }

    found->state = (ngx_http_idempotency_state_e) state;
    found->reason = (ngx_http_idempotency_reason_e) reason;
    found->left = (ngx_msec_t) ngx_max(left, 0);

    if (ngx_http_idempotency_pg_api->claim_decode(
                                  (u_char *) PQgetvalue(result, 0, 4),
                                  (size_t) PQgetlength(result, 0, 4),
                                  &found->claim)
        != NGX_OK)
    {
        return "its claim is corrupt";
    }

    wrong = ngx_http_idempotency_pg_keep(op, result, 5, &found->details);

    if (wrong) {
        return wrong;
    }

    if (state != NGX_HTTP_IDEMPOTENCY_COMPLETED) {
        return NULL;
    }

    if (PQgetisnull(result, 0, 6)) {
        return "it has no response";
    }

    found->response.len = (size_t) PQgetlength(result, 0, 6);

    if (found->response.len <= NGX_HTTP_IDEMPOTENCY_PG_COPY) {
        return ngx_http_idempotency_pg_keep(op, result, 6, &found->response);
    }

    /* a large one is not copied: the row goes over to the pool */

    cln = ngx_pool_cleanup_add(op->pool, 0);
    if (cln == NULL) {
        return "there is no memory for its response";
    }

    cln->handler = ngx_http_idempotency_pg_clear;
    cln->data = result;

    found->response.data = (u_char *) PQgetvalue(result, 0, 6);
    call->result = NULL;

    return NULL;
}


static const char *
ngx_http_idempotency_pg_keep(ngx_http_idempotency_op_t *op, PGresult *result,
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
ngx_http_idempotency_pg_clear(void *data)
{
    PQclear(data);
}


/*
 * Of a statement, or of a transaction (call is NULL), that did not go well: by
 * the code of its error, and not by its words, which are in the server's
 * language.
 */

ngx_http_idempotency_pg_verdict_e
ngx_http_idempotency_pg_step_failed(ngx_http_idempotency_pg_call_t *call,
    PGresult *error)
{
    const char                 *state;
    ngx_http_idempotency_op_t  *op;

    op = call ? call->op : NULL;
    state = PQresultErrorField(error, PG_DIAG_SQLSTATE);

    /* without a code it is libpq's: the connection broke */

    if (state == NULL
        || ngx_strncmp(state, "08", 2) == 0         /* connection           */
        || ngx_strncmp(state, "57P", 3) == 0        /* shutdown, crash      */
        || ngx_strcmp(state, "25006") == 0          /* read-only by now     */
        || ngx_strcmp(state, "26000") == 0)         /* no such statement    */
    {
        return NGX_HTTP_IDEMPOTENCY_PG_BROKEN;
    }

    if (ngx_strncmp(state, "40", 2) == 0 || op == NULL) {
        /* serialization failure, deadlock; or it was one of many */

        if (op) {
            op->result = NGX_HTTP_IDEMPOTENCY_ERROR;
            ngx_http_idempotency_pg_explain(op, "", error);
        }

        return NGX_HTTP_IDEMPOTENCY_PG_AGAIN;
    }

    op->result = NGX_HTTP_IDEMPOTENCY_ERROR;

    if (ngx_strncmp(state, "53", 2) == 0) {         /* disk or memory full  */

        if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_COMMIT && !call->bare
            && op->state == NGX_HTTP_IDEMPOTENCY_COMPLETED)
        {
            return NGX_HTTP_IDEMPOTENCY_PG_AGAIN_BARE;
        }

        if (op->kind == NGX_HTTP_IDEMPOTENCY_OP_BEGIN) {
            op->result = NGX_HTTP_IDEMPOTENCY_FULL;
        }

        ngx_http_idempotency_pg_explain(op, "there is no room: ", error);

    } else if (ngx_strcmp(state, "55P03") == 0) {
        ngx_http_idempotency_pg_explain(op, "the record is locked: ", error);

    } else if (ngx_strcmp(state, "57014") == 0) {
        ngx_http_idempotency_pg_explain(op, "it took too long: ", error);

    } else if (ngx_strcmp(state, "42501") == 0) {
        ngx_http_idempotency_pg_explain(op, "the user may not do that: ",
                                        error);
    } else {
        ngx_http_idempotency_pg_explain(op, "", error);
    }

    return NGX_HTTP_IDEMPOTENCY_PG_FAILED;
}


/* the server's word for it, in op->error */

static void
ngx_http_idempotency_pg_explain(ngx_http_idempotency_op_t *op,
    const char *why, PGresult *error)
{
    u_char         *p, *last;
    const char     *message;

    static u_char   text[NGX_HTTP_IDEMPOTENCY_PG_ERROR_LEN];

    message = PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY);

    /* an error of a watch is gone before it could change */

    p = op->pool ? ngx_pnalloc(op->pool, sizeof(text)) : NULL;

    if (p == NULL) {
        p = text;
    }

    op->error = (char *) p;
    last = p + sizeof(text) - 1;

    p = ngx_slprintf(p, last, "%s", why);
    p = ngx_http_idempotency_pg_said(p, last, message ? message : "");
    *p = '\0';
}
