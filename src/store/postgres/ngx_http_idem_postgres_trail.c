
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Events in PostgreSQL: rows of idempotency_events, for all hosts.
 *
 * A batch of events is one call of idempotency_log(); a slice to read or to
 * remove is one call of idempotency_trail().  Both use the connection of the
 * purge.  The cursor is the number of the last row.
 *
 * Called when an operation is sent, and with its rows.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* columns of a row */

enum {
    NGX_HTTP_IDEM_PG_TRAIL_SEQ = 0,
    NGX_HTTP_IDEM_PG_TRAIL_AT,
    NGX_HTTP_IDEM_PG_TRAIL_LINE,
    NGX_HTTP_IDEM_PG_TRAIL_N
};


static ngx_int_t ngx_http_idem_pg_trail_line(ngx_http_idem_op_t *op,
    PGresult *result, int row);


void
ngx_http_idem_pg_events_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_trail_t *t)
{
    ngx_int_t  after;

    if (t->cursor.len) {

        /* a malformed cursor: start at the end, where there are no events */

        after = ngx_atoi(t->cursor.data, t->cursor.len);

        ngx_http_idem_pg_arg_number(args,
                                    after == NGX_ERROR ? NGX_MAX_INT_T_VALUE
                                                       : after, 8);
    } else {
        ngx_http_idem_pg_arg(args, NULL, 0);
    }

    ngx_http_idem_pg_arg_number(args, (int64_t) t->since, 8);
    ngx_http_idem_pg_arg_number(args, (int64_t) t->until, 8);
    ngx_http_idem_pg_arg(args, t->name.len ? t->name.data : NULL,
                         t->name.len);
    ngx_http_idem_pg_arg(args, t->name.len ? t->value.data : NULL,
                         t->value.len);

    if (t->other.len) {
        ngx_http_idem_pg_arg_label(conn, args, &t->other);

    } else {
        ngx_http_idem_pg_arg(args, NULL, 0);
    }

    ngx_http_idem_pg_arg_number(args, NGX_HTTP_IDEM_TRAIL_SLICE, 4);
    ngx_http_idem_pg_arg_number(args, t->remove, 1);
}


/* lines as a JSON array: "[", commas instead of line feeds, "]" at the end */

ngx_int_t
ngx_http_idem_pg_log_args(ngx_http_idem_pg_conn_t *conn,
    ngx_http_idem_pg_args_t *args, ngx_http_idem_trail_t *t)
{
    u_char       c, *p;
    size_t       i;
    ngx_uint_t   ascii;

    ascii = ngx_http_idem_pg_ascii(conn);

    p = ngx_alloc(t->lines.len + 1, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    p[0] = '[';

    for (i = 0; i < t->lines.len; i++) {
        c = t->lines.data[i];
        p[i + 1] = (c == LF) ? ',' : (ascii && c > 0x7f) ? '?' : c;
    }

    p[t->lines.len] = ']';

    args->memory = p;
    ngx_http_idem_pg_arg(args, p, t->lines.len + 1);

    return NGX_OK;
}


void
ngx_http_idem_pg_trail_result(ngx_http_idem_pg_call_t *call)
{
    int                     row, rows;
    ngx_uint_t              late;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_trail_t  *t;

    op = call->op;
    t = op->trail;

    if (op->kind == NGX_HTTP_IDEM_OP_LOG) {
        op->result = NGX_HTTP_IDEM_OK;
        op->error = NULL;
        return;
    }

    if (PQnfields(call->result) != NGX_HTTP_IDEM_PG_TRAIL_N) {
        return;
    }

    rows = PQntuples(call->result);
    late = 0;

    for (row = 0; row < rows; row++) {

        late += (t->until
                 && ngx_http_idem_pg_number(call->result, row,
                                            NGX_HTTP_IDEM_PG_TRAIL_AT)
                    >= (int64_t) t->until);

        if (ngx_http_idem_pg_trail_line(op, call->result, row) != NGX_OK) {
            op->error = "no memory for events";
            return;
        }
    }

    if (rows) {
        t->cursor.data = t->next;
        t->cursor.len = ngx_sprintf(t->next, "%L",
                                    ngx_http_idem_pg_number(call->result,
                                              rows - 1,
                                              NGX_HTTP_IDEM_PG_TRAIL_SEQ))
                        - t->next;
    }

    /* rows are only roughly ordered by time, which is good enough here */

    t->more = (rows == NGX_HTTP_IDEM_TRAIL_SLICE && late < (ngx_uint_t) rows);

    op->result = NGX_HTTP_IDEM_OK;
    op->error = NULL;
}


static ngx_int_t
ngx_http_idem_pg_trail_line(ngx_http_idem_op_t *op, PGresult *result, int row)
{
    char       *text;
    size_t      i, len;
    u_char     *p;
    ngx_str_t  *line;
    ngx_uint_t  quoted;

    if (PQgetisnull(result, row, NGX_HTTP_IDEM_PG_TRAIL_LINE)) {
        return NGX_OK;
    }

    op->trail->matched++;

    if (op->trail->remove) {
        return NGX_OK;
    }

    text = PQgetvalue(result, row, NGX_HTTP_IDEM_PG_TRAIL_LINE);
    len = (size_t) PQgetlength(result, row, NGX_HTTP_IDEM_PG_TRAIL_LINE);

    line = ngx_array_push(&op->trail->found);
    if (line == NULL) {
        return NGX_ERROR;
    }

    line->data = ngx_pnalloc(op->pool, len);
    if (line->data == NULL) {
        return NGX_ERROR;
    }

    /*
     * PostgreSQL writes a space behind commas and colons.  The line is as a
     * log has it, so that the same grep serves for both.
     */

    p = line->data;
    quoted = 0;

    for (i = 0; i < len; i++) {

        if (text[i] == ' ' && !quoted) {
            continue;
        }

        *p++ = (u_char) text[i];

        if (text[i] == '"') {
            quoted = !quoted;

        } else if (text[i] == '\\' && i + 1 < len) {
            *p++ = (u_char) text[++i];
        }
    }

    line->len = p - line->data;

    return NGX_OK;
}
