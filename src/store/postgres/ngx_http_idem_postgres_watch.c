
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Waiters.  A begin or a watch marks the record as waited for.  Then a commit
 * or a release sends a notification with the record's id.  The first
 * connection of each worker listens, and the worker wakes its own waiters,
 * which ..._remote.c of the main module has.
 *
 * Called by ..._remote.c, and by the connection with notifications.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* polling interval, ms: while the listening connection is down; without it */
#define NGX_HTTP_IDEM_PG_POLL        1000
#define NGX_HTTP_IDEM_PG_POLL_QUICK  250


void
ngx_http_idem_pg_listen(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_conn_t  *conn;

    conn = &ngx_http_idem_pg_conf(op)->conns[0];

    if (conn->listens) {

        if (conn->state == NGX_HTTP_IDEM_PG_CLOSED) {
            ngx_http_idem_pg_flush(conn);
        }

        ngx_http_idem_pg_idle(conn);
    }
}


void
ngx_http_idem_pg_unlisten(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_idle(&ngx_http_idem_pg_conf(op)->conns[0]);
}


/* the record is in progress: wait for op->found.left at most */

void
ngx_http_idem_pg_wait(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_conn_t  *conn;

    conn = &ngx_http_idem_pg_conf(op)->conns[0];

    ngx_http_idem_pg_remote->wait(op,
                    !conn->listens ? NGX_HTTP_IDEM_PG_POLL_QUICK
                    : conn->state != NGX_HTTP_IDEM_PG_READY
                      ? NGX_HTTP_IDEM_PG_POLL : 0);
}


/*
 * The payload is the id in hex; a "-" before it means that the record was
 * removed by an administrator.  Other payloads on the channel are ignored.
 */

void
ngx_http_idem_pg_notified(ngx_http_idem_pg_conn_t *conn)
{
    u_char      *p;
    PGnotify    *notify;
    ngx_uint_t   removed;

    for ( ;; ) {
        notify = PQnotifies(conn->link);

        if (notify == NULL) {
            return;
        }

        p = (u_char *) notify->extra;
        removed = (*p == '-');
        p += removed;

        ngx_http_idem_pg_remote->message(&conn->pg->remote, conn->pg->store,
                                         p, ngx_strlen(p), removed);

        PQfreemem(notify);
    }
}
