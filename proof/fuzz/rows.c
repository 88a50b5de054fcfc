
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/* sources: src/store/postgres/ngx_http_idem_postgres_result.c src/record/ngx_http_idem_record.c src/record/ngx_http_idem_sum.c ; libs: -lpq -lz */

/*
 * What a PostgreSQL says, as it is read: a first byte chooses the operation, a
 * second one how many columns its row has; each column is a length, or none,
 * and bytes.  What begin found lies in memory of the operation's own.
 *
 * nginx's own functions are not at hand here: those that reading needs are
 * below.
 */


#include "fuzz.h"

#include "record/ngx_http_idem_record.h"
#include "store/postgres/ngx_http_idem_postgres.h"


#define BLOCKS_MAX   16
#define COLUMNS_MAX  8


volatile ngx_cycle_t  *ngx_cycle;

static void   *blocks[BLOCKS_MAX];
static size_t  nblocks;

static ngx_pool_cleanup_t  cleanup;


void *
ngx_pnalloc(ngx_pool_t *pool, size_t size)
{
    if (nblocks == BLOCKS_MAX) {
        return NULL;
    }

    return blocks[nblocks++] = malloc(size);
}


ngx_pool_cleanup_t *
ngx_pool_cleanup_add(ngx_pool_t *pool, size_t size)
{
    return &cleanup;
}


u_char *
ngx_slprintf(u_char *buf, u_char *last, const char *fmt, ...)
{
    return buf;
}


u_char *
ngx_snprintf(u_char *buf, size_t max, const char *fmt, ...)
{
    return buf;
}


void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
}


void
ngx_http_idem_pg_admin_result(ngx_http_idem_pg_call_t *call)
{
}


void
ngx_http_idem_pg_trail_result(ngx_http_idem_pg_call_t *call)
{
}


void
ngx_http_idem_pg_expired(ngx_http_idem_pg_t *pg, PGresult *result, int row,
    u_char *id, const ngx_http_idem_pg_expired_t *at)
{
    fuzz_check(row < PQntuples(result));
}


void
ngx_http_idem_pg_error_line(u_char *p, u_char *last, const char *message)
{
    *p = '\0';
}


static const ngx_http_idem_store_api_t  api = {
    .claim_decode = ngx_http_idem_claim_decode
};

const ngx_http_idem_store_api_t  *ngx_http_idem_pg_api = &api;


/* a row of what is left of the input */

static PGresult *
make_row(fuzz_input_t *in)
{
    int             i, n, len;
    char            name[] = "c";
    PGresult       *result;
    PGresAttDesc    columns[COLUMNS_MAX];

    n = fuzz_byte(in) % (COLUMNS_MAX + 1);

    result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    fuzz_check(result != NULL);

    memset(columns, 0, sizeof(columns));

    for (i = 0; i < n; i++) {
        columns[i].name = name;
        columns[i].format = 1;
    }

    if (n == 0) {
        return result;
    }

    fuzz_check(PQsetResultAttrs(result, n, columns));

    for (i = 0; i < n; i++) {
        len = fuzz_byte(in);
        len = (len == 0xff) ? -1 : len * ((i == 6) ? 64 : 1);

        if (len > (int) in->len) {
            len = (int) in->len;
        }

        fuzz_check(PQsetvalue(result, 0, i, (char *) in->p, len));

        if (len > 0) {
            in->p += len;
            in->len -= len;
        }
    }

    return result;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                    n;
    uint64_t                  sum;
    ngx_log_t                 log;
    fuzz_input_t              in;
    ngx_http_idem_op_t        op;
    ngx_http_idem_pg_t        pg;
    ngx_http_idem_store_t     store;
    ngx_http_idem_pg_call_t   call;
    ngx_http_idem_pg_conn_t   conn;

    memset(&log, 0, sizeof(log));
    memset(&op, 0, sizeof(op));
    memset(&pg, 0, sizeof(pg));
    memset(&store, 0, sizeof(store));
    memset(&call, 0, sizeof(call));
    memset(&conn, 0, sizeof(conn));
    memset(&cleanup, 0, sizeof(cleanup));

    in.p = data;
    in.len = size;

    op.kind = fuzz_byte(&in) % NGX_HTTP_IDEM_OP_N;
    op.store = &store;
    op.log = &log;
    op.pool = (ngx_pool_t *) &op;           /* only handed on */
    store.conf = &pg;
    conn.pg = &pg;

    call.op = &op;
    call.conn = &conn;
    call.step = op.kind;
    call.bare = fuzz_byte(&in) & 1;
    call.result = make_row(&in);

    ngx_http_idem_pg_step_result(&call);

    fuzz_check(op.result <= NGX_HTTP_IDEM_ERROR);
    fuzz_check(op.result != NGX_HTTP_IDEM_ERROR || op.error != NULL);

    /* with the row gone, unless the pool has it: nothing points into it */

    PQclear(call.result);

    sum = 0;

    if (op.kind == NGX_HTTP_IDEM_OP_BEGIN
        && op.result == NGX_HTTP_IDEM_FOUND)
    {
        fuzz_check(op.found.state >= NGX_HTTP_IDEM_IN_PROGRESS
                   && op.found.state <= NGX_HTTP_IDEM_UNUSABLE);

        for (n = 0; n < op.found.response.len; n++) {
            sum = sum * 31 + op.found.response.data[n];
        }

        for (n = 0; n < op.found.details.len; n++) {
            sum = sum * 31 + op.found.details.data[n];
        }
    }

    if (cleanup.handler) {
        cleanup.handler(cleanup.data);
    }

    while (nblocks) {
        free(blocks[--nblocks]);
    }

    return sum == 1;                        /* so that it is read */
}
