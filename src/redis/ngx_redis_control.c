
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Queries for the topology: servers are queried one after the other, until
 * one of them gives a usable answer.
 *
 * A round starts on request or periodically, but never sooner than
 * NGX_REDIS_INTERVAL after the last one, however many requests there are.
 * The queries use a dedicated connection, which stays open to the server that
 * answered last.  Each server has the time of connect_timeout and timeout
 * together, or a part of it; then the next one is queried.
 *
 * All of this is housekeeping and does not keep a worker from exiting.
 *
 * Called by the topologies; calls the one in use, for candidates, the query
 * and its answer.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


/* a server first has this fraction of the time to answer */
#define NGX_REDIS_QUERY_FRACTION  8


static void ngx_redis_control_silence(ngx_event_t *ev);
static void ngx_redis_control_handler(ngx_event_t *ev);
static void ngx_redis_control_next(ngx_redis_t *redis);
static void ngx_redis_control_ready(ngx_redis_conn_t *conn);
static ngx_int_t ngx_redis_control_send(ngx_redis_conn_t *conn,
    const ngx_str_t *question, ngx_redis_reply_pt handler);
static void ngx_redis_control_lost(ngx_redis_conn_t *conn);
static void ngx_redis_control_reply(ngx_redis_conn_t *conn,
    redisReply *reply);
static void ngx_redis_control_done(ngx_redis_t *redis,
    ngx_redis_node_t *node);
static void ngx_redis_control_exhausted(ngx_redis_t *redis);
static void ngx_redis_control_plan(ngx_redis_t *redis, ngx_msec_t delay);


static const ngx_redis_owner_t
    ngx_redis_control_owner =
{
    ngx_redis_control_ready,
    ngx_redis_control_lost,
    NULL
};


void
ngx_redis_control_init(ngx_redis_t *redis, const ngx_redis_query_t *query)
{
    ngx_redis_control_t  *control;

    control = &redis->control;

    control->query = query;

    ngx_redis_conn_init(&control->conn, redis, NULL);
    control->conn.owner = &ngx_redis_control_owner;

    control->last = ngx_current_msec - NGX_REDIS_INTERVAL;
    control->wanted = 1;

    ngx_housekeeping_init(&control->timer, ngx_redis_control_handler, redis);
    ngx_housekeeping_init(&redis->silence, ngx_redis_control_silence, redis);

    ngx_post_event(&control->timer, &ngx_posted_events);
}


void
ngx_redis_control_exit(ngx_redis_t *redis)
{
    ngx_redis_control_t  *control;

    control = &redis->control;

    if (control->query == NULL) {
        return;
    }

    ngx_housekeeping_stop(&control->timer);
    ngx_housekeeping_stop(&redis->silence);
    ngx_housekeeping_stop(&redis->renewed);
    ngx_housekeeping_stop(&redis->promoting);
    ngx_redis_close(&control->conn);
}


/* requests a round, if there are servers to query; one that is in progress is
   not enough.  If there is a node to query first, it starts without a delay */

void
ngx_redis_control_want(ngx_redis_t *redis)
{
    ngx_msec_int_t        left;
    ngx_redis_control_t  *control;

    control = &redis->control;

    control->wanted = 1;

    if (control->asking || control->query == NULL) {
        return;
    }

    left = (ngx_msec_int_t) (control->last + NGX_REDIS_INTERVAL
                             - ngx_current_msec);

    if (control->first) {
        left = 0;
    }

    ngx_redis_control_plan(redis, left > 0 ? left : 0);
}


/*
 * While calls are outstanding, a timer looks for servers that have become
 * silent.  The timeout of the calls may be longer than a failover takes.
 */

void
ngx_redis_control_listen(ngx_redis_t *redis)
{
    if (!redis->silence.timer_set) {
        ngx_add_timer(&redis->silence, NGX_REDIS_SILENT / 2);
    }
}


static void
ngx_redis_control_silence(ngx_event_t *ev)
{
    ngx_uint_t         waits;
    ngx_redis_t       *redis;
    ngx_redis_node_t  *node;

    redis = ev->data;
    waits = 0;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        if (ngx_redis_node_silent(node, &waits)) {
            ngx_redis_control_want(redis);
        }
    }

    if (waits) {
        ngx_redis_control_listen(redis);
    }
}


/* the node is being removed */

void
ngx_redis_control_leave(ngx_redis_node_t *node)
{
    ngx_redis_control_t  *control;

    control = &node->redis->control;

    if (control->conn.node != node) {
        return;
    }

    ngx_redis_close(&control->conn);

    control->conn.node = NULL;

    if (control->asking) {
        ngx_post_event(&control->timer, &ngx_posted_events);
    }
}


/* starts a round, or queries the next server if the current one is too slow
   or gone */

static void
ngx_redis_control_handler(ngx_event_t *ev)
{
    ngx_redis_t          *redis;
    ngx_redis_control_t  *control;

    redis = ev->data;
    control = &redis->control;

    if (!control->asking) {
        control->asking = 1;
        control->urgent = control->wanted;
        control->wanted = 0;
        control->last = ngx_current_msec;
        control->round++;

    } else if (control->conn.connection) {
        ngx_redis_drop(&control->conn, "no answer in time");
        /* the lost() callback has posted this event again */
        return;
    }

    ngx_redis_control_next(redis);
}


static void
ngx_redis_control_next(ngx_redis_t *redis)
{
    ngx_msec_t            timeout;
    ngx_redis_conn_t     *conn;
    ngx_redis_node_t     *node;
    ngx_redis_control_t  *control;

    control = &redis->control;
    conn = &control->conn;

    if (control->timer.timer_set) {
        ngx_del_timer(&control->timer);
    }

    node = control->first;
    control->first = NULL;

    if (node == NULL || node->last_round == control->round) {
        node = control->query->next(redis);
    }

    if (node == NULL) {
        ngx_redis_control_exhausted(redis);
        return;
    }

    node->last_round = control->round;

    /*
     * Calls are waiting for the answer, so a frozen server must not hold up
     * the query of the next one.  If no server answered in the last round,
     * all of them may be slow, and they have the full time.
     */

    timeout = redis->connect_timeout + redis->timeout;

    if (redis->lost == 0) {
        timeout = timeout / NGX_REDIS_QUERY_FRACTION + 1;
    }

    ngx_add_timer(&control->timer, timeout);

    if (conn->node == node && conn->state == NGX_REDIS_READY) {
        ngx_redis_control_ready(conn);
        return;
    }

    ngx_redis_close(conn);

    conn->node = node;

    ngx_redis_connect(conn);
}


static void
ngx_redis_control_ready(ngx_redis_conn_t *conn)
{
    const ngx_redis_query_t  *query;

    query = conn->redis->control.query;

    if (!conn->redis->control.asking) {
        return;
    }

    if ((query->first_answer
         && ngx_redis_control_send(conn, query->first_question,
                                   query->first_answer)
            != NGX_OK)
        || ngx_redis_control_send(conn, query->question,
                                  ngx_redis_control_reply)
           != NGX_OK)
    {
        ngx_redis_drop(conn, "no memory");
        return;
    }

    ngx_redis_flush(conn);
}


/* sentinels are asked about a master */

static ngx_int_t
ngx_redis_control_send(ngx_redis_conn_t *conn, const ngx_str_t *question,
    ngx_redis_reply_pt handler)
{
    ngx_str_t  args[3];

    args[0] = question[0];
    args[1] = question[1];
    args[2] = conn->redis->master_name;

    return ngx_redis_ask(conn, handler, args, args[2].len ? 3 : 2);
}


static void
ngx_redis_control_lost(ngx_redis_conn_t *conn)
{
    ngx_redis_control_t  *control;

    control = &conn->redis->control;

    if (!control->asking) {
        return;
    }

    conn->node->refused = ngx_current_msec | 1;

    ngx_post_event(&control->timer, &ngx_posted_events);
}


static void
ngx_redis_control_reply(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_redis_t          *redis;
    ngx_redis_node_t     *node;
    ngx_redis_control_t  *control;

    node = conn->node;
    redis = conn->redis;
    control = &redis->control;

    if (!control->asking) {
        return;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        (void) ngx_redis_error_text(conn->error,
                                    conn->error + NGX_REDIS_ERROR_LEN, reply);

    } else {

        /* the answer may retire the node that gave it; the next node must not
           be queried for that */

        control->asking = 0;

        if (control->query->answer(redis, node, reply) == NGX_OK) {
            ngx_redis_control_done(redis, node);
            return;
        }

        control->asking = 1;
    }

    /* the server answers, but not usefully; query the next one */

    ngx_post_event(&control->timer, &ngx_posted_events);

    if (conn->connection) {
        ngx_redis_close(conn);
    }
}


static void
ngx_redis_control_done(ngx_redis_t *redis, ngx_redis_node_t *node)
{
    ngx_redis_control_t  *control;

    control = &redis->control;

    node->refused = 0;

    if (control->timer.timer_set) {
        ngx_del_timer(&control->timer);
    }

    if (control->failure_logged) {
        control->failure_logged = 0;

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "%V: %s: known again",
                      &redis->label, control->query->what);
    }

    ngx_redis_control_plan(redis, control->query->pause(redis));

    if (control->wanted) {
        ngx_redis_control_want(redis);
    }
}


/* all servers were queried in vain */

static void
ngx_redis_control_exhausted(ngx_redis_t *redis)
{
    u_char               *p, *last;
    ngx_uint_t            level;
    ngx_redis_control_t  *control;

    control = &redis->control;

    control->asking = 0;

    level = control->failure_logged ? NGX_LOG_INFO : NGX_LOG_ERR;

    p = redis->error;
    last = p + NGX_REDIS_ERROR_LEN - 1;

    p = ngx_slprintf(p, last, "nobody tells %s", control->query->what);

    if (control->conn.node) {
        p = ngx_slprintf(p, last, ", %V was asked last: %s",
                         &control->conn.node->name, control->conn.error);
    }

    *p = '\0';

    ngx_log_error(level, ngx_cycle->log, 0, "%V: %s",
                  &redis->label, redis->error);

    control->failure_logged = 1;

    redis->lost++;

    ngx_redis_control_plan(redis, control->query->pause(redis));

    if (control->first) {
        ngx_redis_control_want(redis);
    }

    if (redis->lost >= NGX_REDIS_GIVE_UP) {
        ngx_redis_refuse_waiting(&redis->waiting, (char *) redis->error);
    }
}


/* starts the next round after "delay" at the latest */

static void
ngx_redis_control_plan(ngx_redis_t *redis, ngx_msec_t delay)
{
    ngx_event_t  *ev;

    ev = &redis->control.timer;

    if (ev->posted) {
        return;
    }

    /* avoids that all workers start at the same time */

    delay += ngx_random() % (delay / 4 + 1);

    ngx_housekeeping_within(ev, delay);
}
