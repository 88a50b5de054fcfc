
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Calls: routes them to connections, and to other connections when a node
 * fails, leaves or refuses them.
 *
 * A call is in one queue at any time: to be sent on a connection, sent there,
 * or waiting until the topology knows its node.  Calls that move are appended
 * to the new queue in their old order, so the calls for one key stay in
 * order.  A cancelled call never moves: it is freed with the connection that
 * it was sent on.
 *
 * Called by the user, and by the connections and topologies that have to move
 * calls; calls the topology.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis.h"
#include "ngx_redis_topology.h"


/* delay before a call is sent again after a temporary error, ms */
#define NGX_REDIS_PAUSE  50


static ngx_redis_conn_t *ngx_redis_route(ngx_redis_call_t *call);
static void ngx_redis_enqueue(ngx_redis_call_t *call);
static ngx_uint_t ngx_redis_unreachable(ngx_redis_call_t *call);
static void ngx_redis_later_handler(ngx_event_t *ev);


/*
 * The connection for a call; NULL: its node is not known yet.  Calls with the
 * same ordering key use the same connection to a node, so they are executed in
 * order.  Calls that need WAIT have separate connections.
 */

static ngx_redis_conn_t *
ngx_redis_route(ngx_redis_call_t *call)
{
    ngx_redis_node_t  *node;

    node = call->node_name
           ? ngx_redis_node_after(call->redis, call->node_name, 1)
           : call->redis->topology->node(call->redis, &call->key);

    return node ? ngx_redis_conn_of(node, call) : NULL;
}


ngx_redis_conn_t *
ngx_redis_conn_of(ngx_redis_node_t *node, ngx_redis_call_t *call)
{
    ngx_uint_t  n;

    n = call->order_key % node->nconns;

    if (call->waits && node->redis->replicas && !call->early) {
        n += node->nconns;
    }

    return &node->conns[n];
}


ngx_redis_node_t *
ngx_redis_node_after(ngx_redis_t *redis, ngx_str_t *name, ngx_uint_t same)
{
    ngx_int_t          rc;
    ngx_redis_node_t  *node, *best;

    best = NULL;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {

        if (!node->owner || node->retired) {
            continue;
        }

        rc = ngx_memn2cmp(node->name.data, name->data, node->name.len,
                          name->len);

        if (rc < 0 || (rc == 0 && !same)) {
            continue;
        }

        if (best == NULL
            || ngx_memn2cmp(node->name.data, best->name.data,
                            node->name.len, best->name.len)
               < 0)
        {
            best = node;
        }
    }

    return best;
}


ngx_redis_node_t *
ngx_redis_node_of(ngx_redis_t *redis, ngx_str_t *key)
{
    return redis->topology->node(redis, key);
}


/*
 * The server behind this connection may be another one now, or may have
 * restarted without its data.  The user is told to write its keys again, and
 * the urgent calls move to the front of the queue.  If the connection has
 * just broken, "now" is 0, and the user does not reconnect for this: the
 * failed attempts would count against the calls that follow when the server
 * is back.
 */

void
ngx_redis_suspect_loss(ngx_redis_conn_t *conn, ngx_uint_t now)
{
    ngx_queue_t       *q, *next;
    ngx_redis_call_t  *call;

    conn->redis->hooks->suspect_loss(conn->redis, conn, now);

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        if (call->data && call->urgent) {
            ngx_queue_remove(q);
            ngx_queue_insert_head(&conn->unsent, q);
        }
    }
}


ngx_uint_t
ngx_redis_conn_has(ngx_redis_conn_t *conn, ngx_str_t *key,
    ngx_uint_t order_key)
{
    ngx_redis_node_t  *node;

    node = conn->redis->topology->node(conn->redis, key);

    return node == conn->node
           && &node->conns[order_key % node->nconns] == conn;
}


/* queues a call, on its connection or until its node is known */

ngx_int_t
ngx_redis_call(ngx_redis_t *redis, ngx_redis_call_t *call)
{
    call->redis = redis;
    call->conn = ngx_redis_route(call);

    if (call->impatient && ngx_redis_unreachable(call)) {
        return NGX_ERROR;
    }

    ngx_redis_enqueue(call);

    return NGX_OK;
}


/* enough attempts have failed, and the next one is scheduled */

static ngx_uint_t
ngx_redis_unreachable(ngx_redis_call_t *call)
{
    ngx_redis_conn_t  *conn;

    conn = call->conn;

    if (conn == NULL) {
        return call->redis->lost >= NGX_REDIS_GIVE_UP;
    }

    return conn->failures >= NGX_REDIS_GIVE_UP
           && (conn->state == NGX_REDIS_BACKOFF
               || conn->state == NGX_REDIS_CONNECTING);
}


const char *
ngx_redis_call_error(ngx_redis_call_t *call)
{
    return (char *) (call->conn ? call->conn->error : call->redis->error);
}


/*
 * Whether the server owes a reply and is silent.  A server that still sends
 * something is only slow, and its replies stay in order.
 */

ngx_uint_t
ngx_redis_call_silent(ngx_redis_call_t *call)
{
    ngx_msec_t         since;
    ngx_redis_t       *redis;
    ngx_redis_conn_t  *conn;

    conn = call->conn;
    redis = call->redis;

    if (call->sent) {
        since = ((ngx_msec_int_t) (conn->last_read - call->time) > 0)
                ? conn->last_read : call->time;
        return ngx_current_msec - since >= redis->timeout / 2;
    }

    /* a queued call: the connection may still wait for the WAIT of calls that
       were cancelled */

    return conn && conn->awaiting
           && ngx_current_msec - conn->wait_sent
              >= redis->replicas_timeout + redis->timeout / 2;
}


/* a call that was sent is kept, since its reply will come */

void
ngx_redis_call_cancel(ngx_redis_call_t *call)
{
    call->data = NULL;

    if (!call->sent || call->replied) {
        ngx_redis_call_free(call);
        return;
    }

    ngx_redis_bulk_leave(call);
}


/* handles the reply to a call */

void
ngx_redis_call_replied(ngx_redis_call_t *call, redisReply *reply)
{
    ngx_redis_t         *redis;
    ngx_redis_conn_t    *conn;
    ngx_redis_reply_pt   handler;

    if (call->type == NULL) {
        conn = call->conn;
        handler = call->handler;

        ngx_redis_call_free(call);

        if (handler) {
            handler(conn, reply);
        }

        /* that was the last command of the setup */

        if (conn->state == NGX_REDIS_SETUP && ngx_queue_empty(&conn->sent)) {
            ngx_redis_ready(conn);
        }

        return;
    }

    redis = call->redis;

    if (reply->type == REDIS_REPLY_ERROR && redis->topology->refused
        && redis->topology->refused(call, reply) == NGX_OK)
    {
        return;
    }

    redis->hooks->count(call->conn->node, NGX_REDIS_NODE_ANSWERED);

    if (call->data == NULL) {
        ngx_redis_call_free(call);
        return;
    }

    call->type->replied(call, reply);
}


void
ngx_redis_refuse_waiting(ngx_queue_t *calls, const char *error)
{
    ngx_queue_t       *q;
    ngx_redis_call_t  *call;

again:

    for (q = ngx_queue_head(calls);
         q != ngx_queue_sentinel(calls);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        if (call->impatient) {
            call->type->failed(call, error);

            /* the callback may have changed the queue */
            goto again;
        }
    }
}


void
ngx_redis_call_free(ngx_redis_call_t *call)
{
    ngx_queue_remove(&call->queue);
    ngx_redis_call_unsent(call);

    if (call->to_free) {
        free(call->to_free);
    }

    ngx_redis_call_discard(call);
}


/* drops the replies received so far */

void
ngx_redis_call_unsent(ngx_redis_call_t *call)
{
    if (call->first_reply) {
        freeReplyObject(call->first_reply);
        call->first_reply = NULL;
    }

    ngx_redis_bulk_leave(call);

    call->sent = 0;
    call->replied = 0;
    call->two_replies = 0;
}


/* sends a call again on "conn", after all others; NULL: when its node is
   known */

void
ngx_redis_call_to(ngx_redis_call_t *call, ngx_redis_conn_t *conn)
{
    ngx_redis_call_unsent(call);
    ngx_queue_remove(&call->queue);

    call->conn = conn;
    ngx_redis_enqueue(call);
}


static void
ngx_redis_enqueue(ngx_redis_call_t *call)
{
    if (call->conn == NULL) {
        ngx_queue_insert_tail(&call->redis->waiting, &call->queue);
        return;
    }

    ngx_queue_insert_tail(&call->conn->unsent, &call->queue);

    ngx_redis_flush(call->conn);
}


/* sends a call again, to the node that has its key now */

void
ngx_redis_call_again(ngx_redis_call_t *call)
{
    call->asking = 0;
    call->early = 0;

    ngx_redis_call_to(call, ngx_redis_route(call));
}


/*
 * Sends a call again after a pause, unless it was cancelled.  If the call
 * times out meanwhile, the error of the server is the reason.  All pauses have
 * the same length, so the queue is ordered by time.
 */

void
ngx_redis_call_later(ngx_redis_call_t *call, redisReply *reply)
{
    ngx_redis_t  *redis;

    if (call->data == NULL) {
        ngx_redis_call_free(call);
        return;
    }

    redis = call->redis;

    (void) ngx_redis_error_text(redis->error,
                                redis->error + NGX_REDIS_ERROR_LEN, reply);
    ngx_redis_call_unsent(call);

    call->asking = 0;
    call->conn = NULL;
    call->time = ngx_current_msec;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&redis->later, &call->queue);

    if (!redis->later_timer.timer_set) {
        ngx_add_timer(&redis->later_timer, NGX_REDIS_PAUSE);
    }
}


/* the server refused the command without executing it, and the reason is
   temporary */

ngx_uint_t
ngx_redis_transient(redisReply *reply)
{
    const char  **word;

    static const char   *words[] = {
        "CLUSTERDOWN ", "LOADING ", "TRYAGAIN ", "MASTERDOWN ", NULL
    };

    for (word = words; *word; word++) {
        if (ngx_strncmp(reply->str, *word, ngx_strlen(*word)) == 0) {
            return 1;
        }
    }

    return ngx_redis_error_is(reply, "READONLY ");
}


static void
ngx_redis_later_handler(ngx_event_t *ev)
{
    ngx_msec_t         over;
    ngx_queue_t       *q;
    ngx_redis_t       *redis;
    ngx_redis_call_t  *call;

    redis = ev->data;

    while (!ngx_queue_empty(&redis->later)) {
        q = ngx_queue_head(&redis->later);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        over = ngx_current_msec - call->time;

        if (over < NGX_REDIS_PAUSE) {
            ngx_add_timer(ev, NGX_REDIS_PAUSE - over);
            return;
        }

        ngx_redis_call_again(call);
    }
}


/* the worker is exiting: calls are freed without a result */

void
ngx_redis_forget(ngx_queue_t *calls)
{
    ngx_redis_call_t  *call;

    while (!ngx_queue_empty(calls)) {
        call = ngx_queue_data(ngx_queue_head(calls), ngx_redis_call_t, queue);

        if (call->data) {
            call->type->failed(call, NULL);
        }

        ngx_redis_call_free(call);
    }
}


/* moves calls that were sent back to the front of the queue; frees those that
   were cancelled */

void
ngx_redis_requeue(ngx_redis_conn_t *conn)
{
    ngx_queue_t       *q, *next;
    ngx_redis_call_t  *call;

    /* the replies of these calls came earlier, but not that of WAIT */

    ngx_redis_append(&conn->held, &conn->covered);
    ngx_redis_append(&conn->held, &conn->early);

    ngx_redis_append(&conn->held, &conn->sent);
    ngx_redis_append(&conn->held, &conn->unsent);
    ngx_redis_append(&conn->unsent, &conn->held);

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        if (call->data == NULL) {
            ngx_redis_call_free(call);
            continue;
        }

        ngx_redis_call_unsent(call);

        call->asking = 0;
    }
}


/* moves all calls of a queue to the end of another one */

void
ngx_redis_append(ngx_queue_t *to, ngx_queue_t *calls)
{
    ngx_queue_add(to, calls);
    ngx_queue_init(calls);
}


/* moves unsent calls whose keys belong to another connection by now */

void
ngx_redis_reroute(ngx_queue_t *calls)
{
    ngx_queue_t       *q, *next;
    ngx_redis_call_t  *call;

    for (q = ngx_queue_head(calls);
         q != ngx_queue_sentinel(calls);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_redis_call_t, queue);

        if (!call->asking && ngx_redis_route(call) != call->conn) {
            ngx_redis_call_again(call);
        }
    }
}


/* sends a command of the client's own; it is not repeated if the connection
   breaks.  Without a handler, its reply is ignored */

ngx_int_t
ngx_redis_ask(ngx_redis_conn_t *conn, ngx_redis_reply_pt handler,
    ngx_str_t *args, ngx_uint_t n)
{
    size_t             size;
    u_char            *p;
    ngx_uint_t         i;
    ngx_redis_call_t  *call;

    size = ngx_redis_put_size(0);

    for (i = 0; i < n; i++) {
        size += ngx_redis_put_size(args[i].len);
    }

    p = ngx_redis_reserve(conn, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    call = ngx_redis_call_alloc(sizeof(ngx_redis_call_t));
    if (call == NULL) {
        return NGX_ERROR;
    }

    p = ngx_redis_put_line(p, '*', n);

    for (i = 0; i < n; i++) {
        p = ngx_redis_put(p, args[i].data, args[i].len);
    }

    conn->out.last = p;

    call->conn = conn;
    call->handler = handler;
    call->time = ngx_current_msec;
    call->sent = 1;

    ngx_queue_insert_tail(&conn->sent, &call->queue);

    return NGX_OK;
}


ngx_int_t
ngx_redis_init(ngx_redis_t *redis)
{
    ngx_queue_init(&redis->nodes);
    ngx_queue_init(&redis->retired);
    ngx_queue_init(&redis->waiting);
    ngx_queue_init(&redis->later);

    ngx_housekeeping_init(&redis->later_timer, ngx_redis_later_handler, redis);

    redis->topology = redis->cluster ? &ngx_redis_cluster
                      : redis->sentinels.nelts ? &ngx_redis_sentinel
                      : &ngx_redis_single;

    ngx_redis_conn_init(&redis->subscriber, redis, NULL);
    redis->subscriber.channel = &redis->channel;

    return redis->topology->init(redis);
}


void
ngx_redis_exit(ngx_redis_t *redis)
{
    ngx_redis_control_exit(redis);
    ngx_housekeeping_stop(&redis->later_timer);
    ngx_redis_forget(&redis->waiting);
    ngx_redis_forget(&redis->later);

    ngx_redis_close(&redis->subscriber);
    ngx_redis_nodes_exit(redis);
}
