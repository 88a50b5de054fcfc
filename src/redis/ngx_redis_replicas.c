
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Calls that complete once enough replicas have acknowledged their writes.
 *
 * These calls have separate connections, since WAIT blocks the commands
 * behind it.  All queued calls are sent together with one WAIT behind them,
 * which covers every write of its connection; calls that arrive meanwhile
 * form the next batch.  A call that was replied to is held until its WAIT is
 * replied to.  If the connection breaks before that, the call is sent again.
 * The user then writes something even if the command was executed before, so
 * that the WAIT on the new connection covers a write.
 *
 * Replicas that are up acknowledge within a few milliseconds.  If they do
 * not, calls that arrive meanwhile are sent on a connection without WAIT, so
 * that only their acknowledgement is delayed.  A WAIT also covers everything
 * that the server executed on other connections before the last write on the
 * WAIT's own connection.  So one of the early calls is sent again in front of
 * the next WAIT, and this WAIT covers the others as well.
 *
 * A WAIT that reports too few replicas is a valid answer.  If the server does
 * not answer at all, the call fails, as without replicas.
 *
 * Called by the connection when it sends, and by the user for calls that the
 * master has executed.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"


/* Redis checks the timeout of a WAIT ten times a second */
#define NGX_REDIS_REPLICAS_MARGIN   300

/* how long a call is queued behind a WAIT before it is sent elsewhere, ms */
#define NGX_REDIS_REPLICAS_HURRY    10

/* how often a call is sent to a server that is being demoted */
#define NGX_REDIS_REPLICAS_TRIES    5


static void ngx_redis_replicas_time(ngx_redis_call_t *call, ngx_uint_t n);
static void ngx_redis_replicas_replied(ngx_redis_conn_t *conn,
    redisReply *reply);


/* sends the WAIT of a batch */

ngx_int_t
ngx_redis_replicas_ask(ngx_redis_conn_t *conn)
{
    u_char     number[NGX_INT_T_LEN], time[NGX_INT_T_LEN];
    ngx_str_t  args[3];

    ngx_str_set(&args[0], "WAIT");

    args[1].data = number;
    args[1].len = ngx_sprintf(number, "%i", conn->redis->replicas) - number;

    args[2].data = time;
    args[2].len = ngx_sprintf(time, "%M", conn->redis->replicas_timeout)
                  - time;

    if (ngx_redis_ask(conn, ngx_redis_replicas_replied, args, 3) != NGX_OK) {
        return NGX_ERROR;
    }

    conn->awaiting = 1;
    conn->wrote = 0;
    conn->wait_sent = ngx_current_msec;

    /* the early calls were executed before any call of this batch */

    ngx_redis_append(&conn->covered, &conn->early);

    return NGX_OK;
}


/*
 * Called when calls are queued behind an outstanding WAIT.  After a while
 * they are sent on a connection where nothing blocks them.
 */

void
ngx_redis_replicas_hurry(ngx_redis_conn_t *conn)
{
    ngx_msec_t         since;
    ngx_redis_call_t  *call;

    if (!conn->awaiting || ngx_queue_empty(&conn->unsent)) {
        return;
    }

    since = ngx_current_msec - conn->wait_sent;

    if (since < NGX_REDIS_REPLICAS_HURRY) {

        if (!conn->timer.timer_set) {
            ngx_add_timer(&conn->timer, NGX_REDIS_REPLICAS_HURRY - since);
        }

        return;
    }

    while (!ngx_queue_empty(&conn->unsent)) {
        call = ngx_queue_data(ngx_queue_head(&conn->unsent), ngx_redis_call_t,
                              queue);

        call->early = 1;

        ngx_redis_call_to(call, ngx_redis_conn_of(conn->node, call));
    }
}


/* the master has executed the call; it now waits for the replicas, and its
   timeout starts again */

ngx_int_t
ngx_redis_replicate(ngx_redis_call_t *call)
{
    ngx_redis_conn_t  *conn;

    conn = call->conn;

    if (conn->waits) {
        conn->wrote = 1;

        ngx_queue_remove(&call->queue);
        ngx_queue_insert_tail(&conn->held, &call->queue);

        ngx_redis_replicas_time(call, 1);

        return NGX_OK;
    }

    if (!call->early) {
        return NGX_DECLINED;
    }

    /* the next WAIT will cover it */

    ngx_redis_call_unsent(call);

    call->early = 0;
    conn = ngx_redis_conn_of(conn->node, call);
    call->conn = conn;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->early, &call->queue);

    /* the time of the outstanding WAIT and of the next one */

    ngx_redis_replicas_time(call, 2);

    ngx_redis_flush(conn);

    return NGX_OK;
}


/* queues one of the early calls again, as a write for the next WAIT */

void
ngx_redis_replicas_cover(ngx_redis_conn_t *conn)
{
    ngx_queue_t  *q;

    if (ngx_queue_empty(&conn->early)) {
        return;
    }

    q = ngx_queue_head(&conn->early);

    ngx_queue_remove(q);
    ngx_queue_insert_head(&conn->unsent, q);
}


/* the timeout of "n" WAITs, and the time the server needs to reply */

static void
ngx_redis_replicas_time(ngx_redis_call_t *call, ngx_uint_t n)
{
    ngx_redis_t  *redis;

    redis = call->redis;

    call->type->extend(call, n * redis->replicas_timeout
                             + ngx_max(redis->timeout,
                                       NGX_REDIS_REPLICAS_MARGIN));
}


static void
ngx_redis_replicas_replied(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_uint_t         demoted;
    ngx_redis_call_t  *call;

    if (reply->type != REDIS_REPLY_INTEGER
        && reply->type != REDIS_REPLY_ERROR)
    {
        ngx_redis_drop(conn, "a reply does not fit its command");
        return;
    }

    conn->awaiting = 0;

    ngx_housekeeping_stop(&conn->timer);

    /* if no write preceded this WAIT, it does not cover the early calls: they
       wait for the next one */

    ngx_redis_append(conn->wrote ? &conn->held : &conn->early, &conn->covered);

    /* the server is not the master any more, so the write may be lost */

    demoted = ngx_redis_error_is(reply, "UNBLOCKED")
              || ngx_redis_error_is(reply, "replica instances");

    while (!ngx_queue_empty(&conn->held)) {
        call = ngx_queue_data(ngx_queue_head(&conn->held), ngx_redis_call_t,
                              queue);

        if (demoted && call->tries < NGX_REDIS_REPLICAS_TRIES) {
            ngx_redis_call_again(call);
            continue;
        }

        call->type->replicated(call, reply);
    }

    /* the next batch */

    if (!ngx_queue_empty(&conn->unsent) || !ngx_queue_empty(&conn->early)) {
        ngx_redis_flush(conn);
    }
}
