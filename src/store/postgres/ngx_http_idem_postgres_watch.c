
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Waiters.  A begin or a watch says in the record that somebody waits; then a
 * commit or a release notifies, with the record's id, and the first connection
 * of each worker, which listens, wakes those of its own that wait for it: the
 * first module has them, in ..._remote.c.
 *
 * Called by that, and by the connection with notifications.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* how often to look while nobody listens, and where nobody ever will, ms */
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


/* it is in progress, for op->found.left at most */

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
 * The id in hex; with a "-" before it the record was deleted by hand.  Whatever
 * else comes on the channel is somebody else's.
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
