
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Encodes operations as statements.
 *
 * Each statement calls one function of sql/v1/, with parameters in binary
 * format: integers in network byte order, bytea unchanged.
 *
 * Called by the batches.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_idem_number.h"
#include "ngx_http_idem_utf8.h"
#include "store/postgres/ngx_http_idem_postgres.h"


/* offset of the status in an encoded response: see record/ */
#define NGX_HTTP_IDEM_PG_STATUS_AT   8


static void ngx_http_idem_pg_arg_time(
    ngx_http_idem_pg_args_t *args, uint64_t time);
static void ngx_http_idem_pg_arg_claim(
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op);
static void ngx_http_idem_pg_arg_labels(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_pg_step_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_pg_call_t *call);
static void ngx_http_idem_pg_begin_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_pg_commit_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op, ngx_uint_t bare);


/* the first slice also returns the size of the table */

#define ngx_http_idem_pg_list(function)                                       \
    "SELECT e.*, f.held FROM (SELECT CASE WHEN $1::bytea IS NULL THEN "       \
    "(SELECT o_bytes FROM %V.idempotency_figures()) END AS held) f "          \
    "LEFT JOIN %V." function "($1::bytea,$2::int4) e ON true "                \
    "ORDER BY e.o_id"


static const char  *ngx_http_idem_pg_texts[NGX_HTTP_IDEM_PG_STEP_N] = {

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

    "SELECT * FROM %V.idempotency_entry($1::bytea)",

    /* only if it is as it was listed: state, and time of its claim */

    "SELECT * FROM %V.idempotency_delete_listed($1::bytea,$2::int2,$3::int8)",

    ngx_http_idem_pg_list("idempotency_entries"),

    "SELECT %V.idempotency_log($1::text::jsonb)",

    "SELECT * FROM %V.idempotency_trail($1::int8,$2::int8,$3::int8,$4::text,"
    "$5::text,$6::text,$7::int4,$8::bool)",

    "SELECT * FROM %V.idempotency_expire($1::int4,$2::bool)",

    ngx_http_idem_pg_list("idempotency_tally"),

    "SELECT o_version, o_compatible FROM %V.idempotency_version()",

    "LISTEN \"%V\""
};


char *
ngx_http_idem_pg_step_conf(ngx_conf_t *cf, ngx_http_idem_pg_t *pg)
{
    char        *sql;
    size_t       len;
    ngx_uint_t   i;

    for (i = 0; i < NGX_HTTP_IDEM_PG_STEP_N; i++) {
        len = ngx_strlen(ngx_http_idem_pg_texts[i]) + 2 * pg->schema.len;

        sql = ngx_pnalloc(cf->pool, len + 1);
        if (sql == NULL) {
            return NGX_CONF_ERROR;
        }

        *ngx_snprintf((u_char *) sql, len, ngx_http_idem_pg_texts[i],
                      &pg->schema, &pg->schema)
            = '\0';

        pg->sql[i] = sql;
    }

    return NGX_CONF_OK;
}


void
ngx_http_idem_pg_arg(ngx_http_idem_pg_args_t *args,
    const void *value, size_t len)
{
    args->values[args->n] = value;
    args->lengths[args->n] = (int) len;
    args->formats[args->n] = 1;
    args->n++;
}


void
ngx_http_idem_pg_arg_number(ngx_http_idem_pg_args_t *args,
    int64_t n, size_t bytes)
{
    args->last = ngx_http_idem_put64(args->last, (uint64_t) n);

    ngx_http_idem_pg_arg(args, args->last - bytes, bytes);
}


static void
ngx_http_idem_pg_arg_time(ngx_http_idem_pg_args_t *args, uint64_t time)
{
    ngx_http_idem_pg_arg_number(args,
                  (int64_t) ngx_min(time, NGX_HTTP_IDEM_PG_LIFE_MAX), 8);
}


static void
ngx_http_idem_pg_arg_claim(ngx_http_idem_pg_args_t *args,
    ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_api->claim_encode(args->last, op->claim);

    ngx_http_idem_pg_arg(args, args->last, NGX_HTTP_IDEM_CLAIM_LEN);

    args->last += NGX_HTTP_IDEM_CLAIM_LEN;
}


/* labels as columns, in addition to the details; the host is this one */

static void
ngx_http_idem_pg_arg_labels(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op)
{
    ngx_str_t   label;
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_LABEL_HOST; i++) {
        ngx_http_idem_pg_api->label(&op->details, i, &label);
        ngx_http_idem_pg_arg_label(conn, args, &label);
    }

    label = ngx_cycle->hostname;
    label.len = ngx_min(label.len, NGX_HTTP_IDEM_LABEL_MAX);

    ngx_http_idem_pg_arg_label(conn, args, &label);
}


/*
 * Replaces invalid characters, which would make the statement fail.  Labels
 * come from clients and may have any bytes, and may be truncated inside a
 * character.
 */

void
ngx_http_idem_pg_arg_label(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_str_t *label)
{
    size_t       n;
    u_char      *p, *last, *dst;
    ngx_uint_t   ascii;

    ascii = ngx_http_idem_pg_ascii(conn);

    dst = args->last;
    last = label->data + label->len;

    for (p = label->data; p < last; p += n) {
        n = ngx_http_idem_utf8_len(p, last);

        if (n == 0 || *p == '\0' || (ascii && n > 1)) {
            *dst++ = '?';
            n = 1;
            continue;
        }

        dst = ngx_cpymem(dst, p, n);
    }

    ngx_http_idem_pg_arg(args, args->last, dst - args->last);

    args->last = dst;
}


/* text that is not ASCII may have no place in the encoding of the database */

ngx_uint_t
ngx_http_idem_pg_ascii(ngx_http_idem_pg_conn_t *conn)
{
    const char  *encoding;

    encoding = PQparameterStatus(conn->link, "server_encoding");

    return encoding == NULL || ngx_strcmp(encoding, "UTF8") != 0;
}


ngx_int_t
ngx_http_idem_pg_step_send(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_call_t *call)
{
    int                       rc;
    char                      name[2];
    ngx_http_idem_pg_args_t   args;

    args.n = 0;
    args.last = args.room;
    args.memory = NULL;

    if (ngx_http_idem_pg_step_args(conn, &args, call) != NGX_OK) {
        return NGX_ERROR;
    }

    /* behind a pooler, prepared statements do not outlive a transaction */

    if (conn->pg->pooler || !ngx_http_idem_pg_named(call->step)) {
        rc = PQsendQueryParams(conn->link, conn->pg->sql[call->step], args.n,
                               NULL, args.values, args.lengths, args.formats,
                               1);
    } else {
        name[0] = (char) ('a' + call->step);
        name[1] = '\0';

        rc = PQsendQueryPrepared(conn->link, name, args.n, args.values,
                                 args.lengths, args.formats, 1);
    }

    if (args.memory) {
        ngx_free(args.memory);
    }

    return rc ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_idem_pg_step_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_pg_call_t *call)
{
    ngx_http_idem_op_t  *op;

    op = call->op;

    switch (call->step) {

    case NGX_HTTP_IDEM_OP_BEGIN:
    case NGX_HTTP_IDEM_OP_RENEW:
        ngx_http_idem_pg_begin_args(conn, args, op);
        return NGX_OK;

    case NGX_HTTP_IDEM_OP_COMMIT:
        return ngx_http_idem_pg_commit_args(conn, args, op, call->bare);

    case NGX_HTTP_IDEM_OP_RELEASE:
        ngx_http_idem_pg_arg(args, op->id, NGX_HTTP_IDEM_ID_LEN);
        ngx_http_idem_pg_arg(args, op->token, NGX_HTTP_IDEM_TOKEN_LEN);
        return NGX_OK;

    case NGX_HTTP_IDEM_OP_LIST:
    case NGX_HTTP_IDEM_PG_STEP_TALLY:

        if (ngx_http_idem_id_parse(op->list->cursor.data,
                                   op->list->cursor.len, args->last)
            == NGX_OK)
        {
            ngx_http_idem_pg_arg(args, args->last, NGX_HTTP_IDEM_ID_LEN);
            args->last += NGX_HTTP_IDEM_ID_LEN;

        } else {
            ngx_http_idem_pg_arg(args, NULL, 0);
        }

        ngx_http_idem_pg_arg_number(args, NGX_HTTP_IDEM_PG_SLICE, 4);
        return NGX_OK;

    case NGX_HTTP_IDEM_OP_LOG:
        return ngx_http_idem_pg_log_args(conn, args, op->trail);

    case NGX_HTTP_IDEM_OP_EVENTS:
        ngx_http_idem_pg_events_args(conn, args, op->trail);
        return NGX_OK;

    case NGX_HTTP_IDEM_PG_STEP_PURGE:
    case NGX_HTTP_IDEM_PG_STEP_EXPIRE:
        ngx_http_idem_pg_arg_number(args, conn->pg->purge_batch, 4);
        ngx_http_idem_pg_arg_number(args, conn->pg->purge_archive, 1);
        return NGX_OK;

    case NGX_HTTP_IDEM_OP_REMOVE:
        ngx_http_idem_pg_arg(args, op->id, NGX_HTTP_IDEM_ID_LEN);
        ngx_http_idem_pg_arg_number(args, op->listed_state, 2);
        ngx_http_idem_pg_arg_number(args, op->listed_time, 8);
        return NGX_OK;

    default: /* watch, get */
        ngx_http_idem_pg_arg(args, op->id, NGX_HTTP_IDEM_ID_LEN);
        return NGX_OK;
    }
}


static void
ngx_http_idem_pg_begin_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_arg(args, op->id, NGX_HTTP_IDEM_ID_LEN);
    ngx_http_idem_pg_arg(args, op->token, NGX_HTTP_IDEM_TOKEN_LEN);
    ngx_http_idem_pg_arg_claim(args, op);
    ngx_http_idem_pg_arg(args, op->details.len ? op->details.data : NULL,
                         op->details.len);
    ngx_http_idem_pg_arg_time(args, op->lease);
    ngx_http_idem_pg_arg_time(args, ngx_http_idem_lock_life(op));
    ngx_http_idem_pg_arg_number(args, op->hold, 1);

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
        ngx_http_idem_pg_arg_time(args, ngx_http_idem_op_age(op));
    }

    ngx_http_idem_pg_arg_number(args, op->key_alone, 1);

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN) {
        ngx_http_idem_pg_arg_number(args,
                                    op->is_waiter ? 2 + op->lease_valid
                                                  : op->may_wait, 2);
    }

    ngx_http_idem_pg_arg_labels(conn, args, op);
}


static ngx_int_t
ngx_http_idem_pg_commit_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_op_t *op, ngx_uint_t bare)
{
    u_char       *p, *response;
    size_t        n, left, size;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    response = NULL;
    size = 0;

    if (op->state == NGX_HTTP_IDEM_COMPLETED && !bare && op->size) {
        size = op->size;
        b = op->response->buf;

        if (op->response->next == NULL && (size_t) (b->last - b->pos) == size)
        {
            response = b->pos;

        } else {
            response = ngx_alloc(size, ngx_cycle->log);
            if (response == NULL) {
                return NGX_ERROR;
            }

            args->memory = response;
            p = response;

            for (cl = op->response, left = size; cl && left; left -= n) {
                n = ngx_min((size_t) (cl->buf->last - cl->buf->pos), left);

                p = ngx_cpymem(p, cl->buf->pos, n);
                cl = cl->next;
            }
        }
    }

    ngx_http_idem_pg_arg(args, op->id, NGX_HTTP_IDEM_ID_LEN);
    ngx_http_idem_pg_arg(args, op->token, NGX_HTTP_IDEM_TOKEN_LEN);
    ngx_http_idem_pg_arg_claim(args, op);

    ngx_http_idem_pg_arg_number(args, bare
                                      ? NGX_HTTP_IDEM_UNUSABLE
                                      : op->state, 2);
    ngx_http_idem_pg_arg_number(args, bare
                                      ? NGX_HTTP_IDEM_REASON_NO_ROOM
                                      : op->reason, 2);

    if (size >= NGX_HTTP_IDEM_PG_STATUS_AT + 2) {
        ngx_http_idem_pg_arg(args, response + NGX_HTTP_IDEM_PG_STATUS_AT, 2);
    } else {
        ngx_http_idem_pg_arg(args, NULL, 0);
    }

    ngx_http_idem_pg_arg_time(args, op->ttl);
    ngx_http_idem_pg_arg_time(args, op->grace);
    ngx_http_idem_pg_arg_time(args, op->lease);
    ngx_http_idem_pg_arg_number(args, op->hold, 1);
    ngx_http_idem_pg_arg_number(args, op->key_alone, 1);
    ngx_http_idem_pg_arg_labels(conn, args, op);
    ngx_http_idem_pg_arg(args, response, size);

    return NGX_OK;
}
