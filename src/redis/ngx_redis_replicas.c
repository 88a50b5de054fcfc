
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Calls that count once so many replicas have what they wrote.
 *
 * They have connections of their own, since WAIT holds up what is behind it.
 * All that are there go out together with one WAIT behind them, which speaks
 * for every write of its connection; what comes meanwhile is the next lot.  A
 * call whose reply is there is held until that of its WAIT is.  If the
 * connection breaks before that, it is asked again: its user writes something
 * then, even if it was done before, so that the WAIT of the new connection has
 * something to speak for.
 *
 * Replicas that are there answer within a few milliseconds.  Where they do
 * not, what comes meanwhile is sent all the same, on a connection on which
 * nothing waits: only its acknowledgement is put off.  A WAIT also speaks for
 * whatever its server had done for others before the last write of its own
 * connection.  So of those that went ahead one is asked again, in front of the
 * next WAIT, and the rest are covered by it.
 *
 * A WAIT that counts too few is an answer.  A server that does not answer at
 * all is away, and the call failed, as without replicas.
 *
 * Called by the connection when it sends, and by the user with calls that are
 * done.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"



/* Redis looks ten times a second whether the time of a WAIT is over */
#define NGX_REDIS_REPLICAS_MARGIN   300

/* how long a call waits for the WAIT of others before it goes ahead */
#define NGX_REDIS_REPLICAS_HURRY    10

/* how often a call is asked of a server that stops being the master */
#define NGX_REDIS_REPLICAS_TRIES    5


static void ngx_redis_replicas_early(ngx_redis_call_t *call);
static void ngx_redis_replicas_hold(ngx_redis_call_t *call);
static void ngx_redis_replicas_time(ngx_redis_call_t *call, ngx_uint_t n);
static void ngx_redis_replicas_replied(ngx_redis_call_t *call,
    redisReply *reply);
static ngx_uint_t ngx_redis_replicas_demoted(redisReply *reply);


/* behind the calls of a lot */

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

    if (ngx_redis_ask(conn,
                        ngx_redis_replicas_replied, args, 3)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    conn->awaiting = 1;
    conn->wrote = 0;
    conn->asked = ngx_current_msec;

    /* these were done before anything of this lot is */

    ngx_queue_add(&conn->covered, &conn->early);
    ngx_queue_init(&conn->early);

    return NGX_OK;
}


/*
 * There are calls behind a WAIT that has no reply yet.  Once that takes long
 * they go ahead, to where they are not held up.
 */

void
ngx_redis_replicas_hurry(ngx_redis_conn_t *conn)
{
    ngx_msec_t         since;
    ngx_redis_call_t  *call;

    if (!conn->awaiting || ngx_queue_empty(&conn->unsent)) {
        return;
    }

    since = ngx_current_msec - conn->asked;

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


/* a call is done on the master: it waits for the replicas */

ngx_int_t
ngx_redis_replicate(ngx_redis_call_t *call)
{
    if (call->conn->waits) {
        ngx_redis_replicas_hold(call);
        return NGX_OK;
    }

    if (call->early) {
        ngx_redis_replicas_early(call);
        return NGX_OK;
    }

    return NGX_DECLINED;
}


/* one that went ahead is done; the next WAIT is to speak for it */

static void
ngx_redis_replicas_early(ngx_redis_call_t *call)
{
    ngx_redis_conn_t  *conn;

    ngx_redis_call_unsent(call);

    call->early = 0;
    conn = ngx_redis_conn_of(call->conn->node, call);
    call->conn = conn;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->early, &call->queue);

    /* that of the WAIT that is under way, and of the next one */

    ngx_redis_replicas_time(call, 2);

    ngx_redis_flush(conn);
}


/* a write for the next WAIT to speak for */

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


/* it is done on the master; its time now is that of the replicas */

static void
ngx_redis_replicas_hold(ngx_redis_call_t *call)
{
    ngx_redis_conn_t  *conn;

    conn = call->conn;
    conn->wrote = 1;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->held, &call->queue);

    ngx_redis_replicas_time(call, 1);
}


/* so many WAITs, and what the server takes to answer */

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
ngx_redis_replicas_replied(ngx_redis_call_t *call, redisReply *reply)
{
    ngx_queue_t       *q;
    ngx_redis_conn_t  *conn;

    conn = call->conn;

    ngx_redis_call_free(call);

    if (reply->type != REDIS_REPLY_INTEGER
        && reply->type != REDIS_REPLY_ERROR)
    {
        ngx_redis_drop(conn,
                                 "a reply does not fit its command");
        return;
    }

    conn->awaiting = 0;

    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    if (conn->wrote) {
        ngx_queue_add(&conn->held, &conn->covered);

    } else {
        /* it spoke for something older: the next one will do */
        ngx_queue_add(&conn->early, &conn->covered);
    }

    ngx_queue_init(&conn->covered);

    while (!ngx_queue_empty(&conn->held)) {
        q = ngx_queue_head(&conn->held);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        if (ngx_redis_replicas_demoted(reply)
            && call->tries < NGX_REDIS_REPLICAS_TRIES)
        {
            ngx_redis_call_again(call);
            continue;
        }

        call->type->replicated(call, reply);
    }

    /* the next lot */

    if (!ngx_queue_empty(&conn->unsent) || !ngx_queue_empty(&conn->early)) {
        ngx_redis_flush(conn);
    }
}


/* another one is the master: what it wrote may be worth nothing any more */

static ngx_uint_t
ngx_redis_replicas_demoted(redisReply *reply)
{
    return ngx_redis_error_is(reply, "UNBLOCKED")
           || ngx_redis_error_is(reply, "replica instances");
}
