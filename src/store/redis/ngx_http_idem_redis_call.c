
/*
 * Calls: to which connection one goes, and to which it goes instead when its
 * node breaks, leaves or refuses it.
 *
 * A call is in one queue at any time: to be sent on a connection, sent there,
 * or waiting for the topology to know its node.  A call that moves goes behind
 * all others, in the order in which its like were: so what is asked of one
 * record stays in order.  One that nobody waits for any more never moves: it
 * is forgotten with the connection that it was sent on, and with it the begin
 * that a release has to follow.
 *
 * Called by the backend with operations, and by whoever finds that calls have
 * to move; calls the topology.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"
#include "store/redis/topology/ngx_http_idem_redis_topology.h"


/* before a call is asked again that was refused for the time being */
#define NGX_HTTP_IDEM_REDIS_PAUSE  50


static ngx_uint_t ngx_http_idem_redis_concerns(void *data, u_char *id);
static void ngx_http_idem_redis_later_handler(ngx_event_t *ev);


/*
 * Of the connections to its node a record has always the same: what is asked
 * of it is done in order.  Save that commits that wait for replicas have some
 * of their own: they come last, and are fenced by their token.
 */

ngx_http_idem_redis_conn_t *
ngx_http_idem_redis_route(ngx_http_idem_redis_t *redis,
    ngx_http_idem_op_t *op, ngx_uint_t early)
{
    ngx_http_idem_redis_node_t  *node;

    node = (op->kind == NGX_HTTP_IDEM_OP_LIST)
           ? ngx_http_idem_redis_list_node(redis, op)
           : redis->topology->node(redis, op->id);

    if (node == NULL) {
        return NULL;
    }

    return ngx_http_idem_redis_conn_of(node, op, early);
}


ngx_http_idem_redis_conn_t *
ngx_http_idem_redis_conn_of(ngx_http_idem_redis_node_t *node,
    ngx_http_idem_op_t *op, ngx_uint_t early)
{
    ngx_uint_t  n;

    n = op->id[NGX_HTTP_IDEM_ID_LEN - 1] % node->nconns;

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT && node->redis->replicas
        && !op->hasty && !early)
    {
        n += node->nconns;
    }

    return &node->conns[n];
}


/*
 * A connection is there again, or just broke: the server may be another one,
 * or have been started anew without its data.  Then those that hold a lock lay
 * it anew, before anybody who waited for the connection as well takes it.  One
 * that broke is not made anew for that at once: attempts in vain would keep
 * others from being asked when the server is back.
 */

void
ngx_http_idem_redis_doubt(ngx_http_idem_redis_conn_t *conn, ngx_uint_t now)
{
    ngx_queue_t                 *q, *next;
    ngx_http_idem_redis_call_t  *call;

    ngx_http_idem_store_doubt(conn->redis->store, now,
                              ngx_http_idem_redis_concerns, conn);

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);

        if (call->op && call->op->kind == NGX_HTTP_IDEM_OP_RENEW) {
            ngx_queue_remove(q);
            ngx_queue_insert_head(&conn->unsent, q);
        }
    }
}


static ngx_uint_t
ngx_http_idem_redis_concerns(void *data, u_char *id)
{
    ngx_http_idem_redis_conn_t  *conn = data;
    ngx_http_idem_redis_node_t  *node;

    node = conn->redis->topology->node(conn->redis, id);

    return node == conn->node
           && &node->conns[id[NGX_HTTP_IDEM_ID_LEN - 1] % node->nconns]
              == conn;
}


/* a new call, the last of those to be sent; conn is NULL: it waits for one */

ngx_http_idem_redis_call_t *
ngx_http_idem_redis_call(ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_conn_t *conn)
{
    ngx_http_idem_redis_call_t  *call;

    call = ngx_alloc(sizeof(ngx_http_idem_redis_call_t), ngx_cycle->log);
    if (call == NULL) {
        return NULL;
    }

    ngx_memzero(call, sizeof(ngx_http_idem_redis_call_t));

    if (conn == NULL) {
        ngx_queue_insert_tail(&redis->waiting, &call->queue);
        return call;
    }

    call->conn = conn;
    ngx_queue_insert_tail(&conn->unsent, &call->queue);

    ngx_http_idem_redis_flush(conn);

    return call;
}


void
ngx_http_idem_redis_call_free(ngx_http_idem_redis_call_t *call)
{
    ngx_queue_remove(&call->queue);
    ngx_http_idem_redis_call_unsent(call);

    if (call->expected.len) {
        free(call->expected.data);
    }

    ngx_free(call);
}


/* whatever came in reply so far is of no use any more */

void
ngx_http_idem_redis_call_unsent(ngx_http_idem_redis_call_t *call)
{
    if (call->before) {
        freeReplyObject(call->before);
        call->before = NULL;
    }

    call->sent = 0;
    call->replied = 0;
    call->due = 0;
}


/* once more, there, behind all others */

void
ngx_http_idem_redis_call_to(ngx_http_idem_redis_call_t *call,
    ngx_http_idem_redis_conn_t *conn)
{
    ngx_http_idem_redis_call_unsent(call);

    call->conn = conn;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->unsent, &call->queue);

    ngx_http_idem_redis_flush(conn);
}


/* once more, wherever its record is now */

void
ngx_http_idem_redis_call_again(ngx_http_idem_redis_call_t *call)
{
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_conn_t  *conn;

    call->asking = 0;
    call->early = 0;

    redis = ngx_http_idem_redis_conf(call->op);
    conn = ngx_http_idem_redis_route(redis, call->op, 0);

    if (conn) {
        ngx_http_idem_redis_call_to(call, conn);
        return;
    }

    ngx_http_idem_redis_call_unsent(call);

    call->conn = NULL;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&redis->waiting, &call->queue);
}


/*
 * Once more, after a pause; what the server said is why it failed if there is
 * no time for that.  All pauses are of the same length, so the first is the
 * next.
 */

void
ngx_http_idem_redis_call_later(ngx_http_idem_redis_call_t *call,
    redisReply *reply)
{
    u_char                 *p;
    ngx_http_idem_redis_t  *redis;

    redis = ngx_http_idem_redis_conf(call->op);

    p = ngx_http_idem_redis_error_text(redis->error, redis->error
                               + NGX_HTTP_IDEM_REDIS_ERROR_LEN - 1,
                               reply);
    *p = '\0';

    ngx_http_idem_redis_call_unsent(call);

    call->asking = 0;
    call->conn = NULL;
    call->time = ngx_current_msec;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&redis->later, &call->queue);

    if (!redis->later_timer.timer_set) {
        ngx_add_timer(&redis->later_timer, NGX_HTTP_IDEM_REDIS_PAUSE);
    }
}


/* refused, not done, and soon it will be otherwise: here, or elsewhere */

ngx_uint_t
ngx_http_idem_redis_transient(redisReply *reply)
{
    const char         **word;

    static const char   *words[] = {
        "CLUSTERDOWN ", "LOADING ", "TRYAGAIN ", "MASTERDOWN ", NULL
    };

    for (word = words; *word; word++) {
        if ((size_t) reply->len >= ngx_strlen(*word)
            && ngx_strncmp(reply->str, *word, ngx_strlen(*word)) == 0)
        {
            return 1;
        }
    }

    return ngx_http_idem_redis_error_is(reply, "READONLY ");
}


/* the node is told that it may answer the next command, and that only */

ngx_int_t
ngx_http_idem_redis_call_asking(ngx_http_idem_redis_call_t *call)
{
    ngx_str_t  asking = ngx_string("ASKING");

    return ngx_http_idem_redis_ask(call->conn, ngx_http_idem_redis_ignored,
                                   &asking, 1);
}


void
ngx_http_idem_redis_ignored(ngx_http_idem_redis_call_t *call,
    redisReply *reply)
{
    ngx_http_idem_redis_call_free(call);
}


static void
ngx_http_idem_redis_later_handler(ngx_event_t *ev)
{
    ngx_msec_t                   over;
    ngx_queue_t                 *q;
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_call_t  *call;

    redis = ev->data;

    while (!ngx_queue_empty(&redis->later)) {
        q = ngx_queue_head(&redis->later);
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);

        over = ngx_current_msec - call->time;

        if (over < NGX_HTTP_IDEM_REDIS_PAUSE) {
            ngx_add_timer(ev, NGX_HTTP_IDEM_REDIS_PAUSE - over);
            return;
        }

        ngx_http_idem_redis_call_again(call);
    }
}


void
ngx_http_idem_redis_calls_init(ngx_http_idem_redis_t *redis)
{
    ngx_queue_init(&redis->waiting);
    ngx_queue_init(&redis->later);

    /* those that wait for it have timers of their own */

    redis->later_timer.handler = ngx_http_idem_redis_later_handler;
    redis->later_timer.data = redis;
    redis->later_timer.log = ngx_cycle->log;
    redis->later_timer.cancelable = 1;
}


void
ngx_http_idem_redis_calls_exit(ngx_http_idem_redis_t *redis)
{
    if (redis->later_timer.timer_set) {
        ngx_del_timer(&redis->later_timer);
    }

    ngx_http_idem_redis_forget(&redis->waiting);
    ngx_http_idem_redis_forget(&redis->later);
}


/* the worker leaves: nobody is told any more */

void
ngx_http_idem_redis_forget(ngx_queue_t *calls)
{
    ngx_http_idem_redis_call_t  *call;

    while (!ngx_queue_empty(calls)) {
        call = ngx_queue_data(ngx_queue_head(calls),
                              ngx_http_idem_redis_call_t, queue);

        if (call->op) {
            call->op->state_data = NULL;
        }

        ngx_http_idem_redis_call_free(call);
    }
}


/* what was sent is to be sent again, before the rest; or nobody wants it */

void
ngx_http_idem_redis_requeue(ngx_http_idem_redis_conn_t *conn)
{
    ngx_queue_t                 *q;
    ngx_http_idem_redis_call_t  *call;

    for (q = ngx_queue_head(&conn->unsent);
         q != ngx_queue_sentinel(&conn->unsent);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);
        call->asking = 0;
    }

    while (!ngx_queue_empty(&conn->sent)) {
        q = ngx_queue_last(&conn->sent);
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);

        if (call->op == NULL) {
            ngx_http_idem_redis_call_free(call);
            continue;
        }

        ngx_http_idem_redis_call_unsent(call);

        call->asking = 0;

        ngx_queue_remove(q);
        ngx_queue_insert_head(&conn->unsent, q);
    }

    /* replied to, but the replicas were not heard: these came before */

    ngx_queue_add(&conn->held, &conn->covered);
    ngx_queue_init(&conn->covered);
    ngx_queue_add(&conn->held, &conn->early);
    ngx_queue_init(&conn->early);

    while (!ngx_queue_empty(&conn->held)) {
        q = ngx_queue_last(&conn->held);
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);

        ngx_http_idem_redis_call_unsent(call);

        call->asking = 0;

        ngx_queue_remove(q);
        ngx_queue_insert_head(&conn->unsent, q);
    }
}


/* of calls that are not sent: those that another connection has by now */

void
ngx_http_idem_redis_reroute(ngx_http_idem_redis_t *redis, ngx_queue_t *calls)
{
    ngx_queue_t                 *q, *next;
    ngx_http_idem_redis_call_t  *call;

    for (q = ngx_queue_head(calls);
         q != ngx_queue_sentinel(calls);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);

        if (!call->asking
            && ngx_http_idem_redis_route(redis, call->op, call->early)
               != call->conn)
        {
            ngx_http_idem_redis_call_again(call);
        }
    }
}


/* a command of the connection's own; if it breaks, nobody misses the reply */

ngx_int_t
ngx_http_idem_redis_ask(ngx_http_idem_redis_conn_t *conn,
    ngx_http_idem_redis_reply_pt handler, ngx_str_t *args, ngx_uint_t n)
{
    size_t                       size;
    u_char                      *p;
    ngx_uint_t                   i;
    ngx_http_idem_redis_call_t  *call;

    size = ngx_http_idem_redis_put_size(0);

    for (i = 0; i < n; i++) {
        size += ngx_http_idem_redis_put_size(args[i].len);
    }

    p = ngx_http_idem_redis_reserve(conn, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    call = ngx_calloc(sizeof(ngx_http_idem_redis_call_t), ngx_cycle->log);
    if (call == NULL) {
        return NGX_ERROR;
    }

    p = ngx_http_idem_redis_put_count(p, n);

    for (i = 0; i < n; i++) {
        p = ngx_http_idem_redis_put(p, args[i].data, args[i].len);
    }

    conn->out.last = p;

    call->conn = conn;
    call->handler = handler;
    call->time = ngx_current_msec;
    call->sent = 1;

    ngx_queue_insert_tail(&conn->sent, &call->queue);

    return NGX_OK;
}
