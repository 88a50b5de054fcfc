
/*
 * Waiters.  A begin or a watch says in the record that somebody waits; then a
 * commit or a release notifies, with the record's id, and the first connection
 * of each worker, which listens, wakes those of its own that wait for it.  A
 * notification may get lost with its connection: a watch also looks by itself
 * now and then, more often while nobody listens ("wake poll"), and to be woken
 * for nothing does no harm.
 *
 * A watch is entered before it is asked, so that a notification that is faster
 * than the answer finds it.
 *
 * Called by the backend, and by the connection with notifications.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/postgres/ngx_http_idem_postgres.h"


/* how often to look when nobody can tell, and when somebody should */
#define NGX_HTTP_IDEM_PG_POLL_MIN    10
#define NGX_HTTP_IDEM_PG_POLL_MAX    1000

/* ... and where nobody ever will */
#define NGX_HTTP_IDEM_PG_POLL_QUICK  250


static void ngx_http_idem_pg_watch_post(ngx_http_idem_op_t *op);
static void ngx_http_idem_pg_watch_handler(ngx_event_t *ev);


void
ngx_http_idem_pg_watch_enter(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_t       *pg;
    ngx_http_idem_pg_conn_t  *conn;

    pg = ngx_http_idem_pg_conf(op);
    conn = &pg->conns[0];

    op->woken = 0;

    ngx_queue_insert_tail(&pg->watches[op->id[0]], &op->queue);
    pg->nwatches++;

    if (conn->listens) {

        if (conn->state == NGX_HTTP_IDEM_PG_CLOSED) {
            ngx_http_idem_pg_flush(conn);
        }

        ngx_http_idem_pg_idle(conn);
    }
}


void
ngx_http_idem_pg_watch_leave(ngx_http_idem_op_t *op)
{
    ngx_http_idem_pg_t  *pg;

    pg = ngx_http_idem_pg_conf(op);

    ngx_queue_remove(&op->queue);
    pg->nwatches--;

    ngx_http_idem_pg_idle(&pg->conns[0]);
}


/* it is in progress, for op->found.left at most */

void
ngx_http_idem_pg_watch_wait(ngx_http_idem_op_t *op)
{
    ngx_msec_t           next, max;
    ngx_http_idem_pg_t  *pg;

    pg = ngx_http_idem_pg_conf(op);

    if (op->woken) {

        /*
         * The notification was read before this answer, in the same turn of
         * the event loop, and what was posted then went with the question
         */

        ngx_http_idem_pg_watch_post(op);
        return;
    }

    next = NGX_HTTP_IDEM_PG_POLL_MAX;

    if (!pg->conns[0].listens
        || pg->conns[0].state != NGX_HTTP_IDEM_PG_READY)
    {
        max = pg->conns[0].listens ? NGX_HTTP_IDEM_PG_POLL_MAX
                                   : NGX_HTTP_IDEM_PG_POLL_QUICK;
        next = NGX_HTTP_IDEM_PG_POLL_MIN << ngx_min(op->attempt, 8);
        next = ngx_min(next, max);
    }

    next = next - next / 4 + ngx_random() % (next / 4 + 1);
    next = ngx_min(next, op->found.left + 1);

    op->timer.handler = ngx_http_idem_pg_watch_handler;
    op->timer.cancelable = 1;

    ngx_add_timer(&op->timer, next);
}


/* the record changed, as far as we know */

void
ngx_http_idem_pg_wake(ngx_http_idem_pg_t *pg, u_char *id)
{
    ngx_queue_t         *q, *head;
    ngx_http_idem_op_t  *op;

    head = &pg->watches[id[0]];

    for (q = ngx_queue_head(head); q != head; q = ngx_queue_next(q)) {
        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (ngx_memcmp(op->id, id, NGX_HTTP_IDEM_ID_LEN) == 0) {
            ngx_http_idem_pg_watch_post(op);
        }
    }
}


/* posted: whoever wakes may be in the middle of a request */

static void
ngx_http_idem_pg_watch_post(ngx_http_idem_op_t *op)
{
    op->woken = 1;
    op->timer.handler = ngx_http_idem_pg_watch_handler;

    ngx_post_event(&op->timer, &ngx_posted_events);
}


static void
ngx_http_idem_pg_watch_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t  *op;

    op = ev->data;

    op->result = NGX_HTTP_IDEM_OK;

    /* if it is still being asked, the answer is nobody's */

    op->store->backend->cancel(op);

    ngx_http_idem_pg_api->complete(op);
}


/*
 * The id in hex; with a "-" before it the record was deleted by hand.  Whatever
 * else comes on the channel is somebody else's.
 */

void
ngx_http_idem_pg_notified(ngx_http_idem_pg_conn_t *conn)
{
    u_char      id[NGX_HTTP_IDEM_ID_LEN], *p;
    size_t      len;
    ngx_int_t   n;
    ngx_uint_t  i, removed;
    PGnotify   *notify;

    for ( ;; ) {
        notify = PQnotifies(conn->link);

        if (notify == NULL) {
            return;
        }

        p = (u_char *) notify->extra;
        len = ngx_strlen(p);

        removed = (len && *p == '-');

        p += removed;
        len -= removed;

        n = (len == 2 * NGX_HTTP_IDEM_ID_LEN) ? 0 : NGX_ERROR;

        for (i = 0; n != NGX_ERROR && i < NGX_HTTP_IDEM_ID_LEN; i++) {
            n = ngx_hextoi(p + 2 * i, 2);
            id[i] = (u_char) n;
        }

        PQfreemem(notify);

        if (n == NGX_ERROR) {
            continue;
        }

        ngx_http_idem_pg_wake(conn->pg, id);

        if (removed && conn->pg->store->forget) {
            conn->pg->store->forget(conn->pg->store, id);
        }
    }
}
