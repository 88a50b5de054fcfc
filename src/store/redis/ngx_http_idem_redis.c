
/*
 * The backend of the Redis store: operations, the time they have, and how
 * they end.
 *
 * An operation is handed to the connection of its record as a call, and has
 * "timeout" for all of it, connecting included.  All of them may be asked
 * twice: the token says whose a lock is.  A begin that is given up after it
 * was sent is followed by a release of its token on the same connection, for
 * as long as its lease could last.
 *
 * While Redis can't be reached, a begin and a watch fail at once after a few
 * attempts; a renewal, a commit and a release use the time they have, since
 * the application ran.
 *
 * Called through the table of stores; calls the connection, and the watches.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"
#include "store/redis/topology/ngx_http_idem_redis_topology.h"


/* releases of given-up begins that may be outstanding; beyond, leases end */
#define NGX_HTTP_IDEM_REDIS_CLEANUPS  4096

/* how often such a release is sent, if the lock would not end by itself */
#define NGX_HTTP_IDEM_REDIS_UNDO_N    4


static ngx_int_t ngx_http_idem_redis_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_redis_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static ngx_int_t ngx_http_idem_redis_ask_op(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_redis_watch(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_cancel(ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_redis_hopeless(
    ngx_http_idem_op_t *op, ngx_http_idem_redis_conn_t *conn);
static void ngx_http_idem_redis_replied(
    ngx_http_idem_redis_call_t *call, redisReply *reply);
static void ngx_http_idem_redis_timeout(ngx_event_t *ev);
static void ngx_http_idem_redis_fail(ngx_http_idem_op_t *op,
    const char *error);
static void ngx_http_idem_redis_leave(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_complete(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_undo(ngx_http_idem_op_t *op);
static ngx_int_t ngx_http_idem_redis_undo_again(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_undo_handler(ngx_event_t *ev);


const ngx_http_idem_backend_t  ngx_http_idem_redis_backend = {
    ngx_string("redis"),
    ngx_http_idem_redis_create_conf,
    ngx_http_idem_redis_directive,
    ngx_http_idem_redis_init_conf,
    ngx_http_idem_redis_init_process,
    ngx_http_idem_redis_exit_process,
    ngx_http_idem_redis_ask_op,              /* begin   */
    ngx_http_idem_redis_ask_op,              /* renew   */
    ngx_http_idem_redis_ask_op,              /* commit  */
    ngx_http_idem_redis_ask_op,              /* release */
    ngx_http_idem_redis_watch,
    ngx_http_idem_redis_cancel,
    NULL,                                    /* stats   */
    1,                                       /* remote  */
    ngx_http_idem_redis_ask_op               /* admin   */
};


/* a release of our own, after a begin that was given up */
#define ngx_http_idem_redis_is_undo(op)                                       \
    ((op)->data == (op)->store->conf)

/* the application did not run yet: nothing is lost by failing soon */
#define ngx_http_idem_redis_impatient(op)                                     \
    ((op)->kind == NGX_HTTP_IDEM_OP_BEGIN                                     \
     || (op)->kind == NGX_HTTP_IDEM_OP_WATCH                                  \
     || ngx_http_idem_op_is_admin(op))


static ngx_int_t
ngx_http_idem_redis_ask_op(ngx_http_idem_op_t *op)
{
    if (ngx_http_idem_redis_submit(op)) {
        return NGX_AGAIN;
    }

    if (ngx_http_idem_redis_is_undo(op)) {
        ngx_http_idem_redis_conf(op)->cleanups--;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_idem_redis_watch(ngx_http_idem_op_t *op)
{
    /* before it is asked: a wake-up may be faster than the reply */

    ngx_http_idem_redis_watch_enter(op);

    if (ngx_http_idem_redis_submit(op)) {
        return NGX_AGAIN;
    }

    ngx_http_idem_redis_watch_leave(op);

    return NGX_OK;
}


/* NULL: the operation failed already, op->result says so */

ngx_http_idem_redis_call_t *
ngx_http_idem_redis_submit(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_call_t  *call;
    ngx_http_idem_redis_conn_t  *conn;

    redis = ngx_http_idem_redis_conf(op);
    conn = ngx_http_idem_redis_route(redis, op, 0);

    op->result = NGX_HTTP_IDEM_ERROR;
    op->state_data = NULL;

    if (ngx_http_idem_redis_impatient(op)
        && ngx_http_idem_redis_hopeless(op, conn))
    {
        op->error = (char *) (conn ? conn->error : redis->error);
        return NULL;
    }

    call = ngx_http_idem_redis_call(redis, conn);
    if (call == NULL) {
        op->error = "no memory for a call";
        return NULL;
    }

    call->op = op;
    call->handler = ngx_http_idem_redis_replied;

    op->state_data = call;

    /* not cancelable: a worker that is to quit waits for it */

    ngx_memzero(&op->timer, sizeof(ngx_event_t));

    op->timer.handler = ngx_http_idem_redis_timeout;
    op->timer.data = op;
    op->timer.log = ngx_cycle->log;

    ngx_add_timer(&op->timer, redis->timeout
                              + (op->kind == NGX_HTTP_IDEM_OP_COMMIT
                                 && redis->replicas && !op->hasty
                                 ? redis->replicas_timeout : 0));

    return call;
}


/* it was tried often enough, and will be tried again soon */

static ngx_uint_t
ngx_http_idem_redis_hopeless(ngx_http_idem_op_t *op,
    ngx_http_idem_redis_conn_t *conn)
{
    if (conn == NULL) {
        return ngx_http_idem_redis_conf(op)->lost
               >= NGX_HTTP_IDEM_REDIS_GIVE_UP;
    }

    return conn->failures >= NGX_HTTP_IDEM_REDIS_GIVE_UP
           && (conn->state == NGX_HTTP_IDEM_REDIS_BACKOFF
               || conn->state == NGX_HTTP_IDEM_REDIS_CONNECTING);
}


static void
ngx_http_idem_redis_replied(ngx_http_idem_redis_call_t *call,
    redisReply *reply)
{
    ngx_int_t                    rc;
    ngx_uint_t                   repeated;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_redis_conn_t  *conn;

    op = call->op;
    conn = call->conn;

    if (reply->type == REDIS_REPLY_ERROR
        && conn->redis->topology->refused(call, reply) == NGX_OK)
    {
        return;
    }

    ngx_http_idem_redis_node_count(conn->node, NGX_HTTP_IDEM_NODE_ANSWERED);

    if (op == NULL) {
        ngx_http_idem_redis_call_free(call);
        return;
    }

    rc = ngx_http_idem_redis_reply_result(call, reply);

    if (rc == NGX_AGAIN) {
        ngx_http_idem_redis_call_to(call, conn);
        return;
    }

    if (rc == NGX_ERROR) {
        ngx_http_idem_redis_drop(conn,
                                 "a reply does not fit its command");
        return;
    }

    if (call->waited) {
        call->waited = 0;
        ngx_http_idem_redis_publish(conn, op);
    }

    if (conn->redis->replicas && op->kind == NGX_HTTP_IDEM_OP_COMMIT
        && (op->result == NGX_HTTP_IDEM_OK
            || op->result == NGX_HTTP_IDEM_FULL))
    {
        if (conn->commits) {
            ngx_http_idem_redis_replicas_hold(call);
            return;
        }

        if (call->early) {
            ngx_http_idem_redis_replicas_early(call);
            return;
        }

        /* nobody waits for them */

        op->unacknowledged = 1;
    }

    repeated = (call->tries > (call->eval ? 2 : 1));

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT
        || op->kind == NGX_HTTP_IDEM_OP_RELEASE)
    {
        ngx_http_idem_redis_committed(op);
        return;
    }

    ngx_http_idem_redis_leave(op);

    switch (op->kind) {

    case NGX_HTTP_IDEM_OP_BEGIN:

        if (repeated && (op->result == NGX_HTTP_IDEM_ERROR
                         || op->result == NGX_HTTP_IDEM_FULL))
        {
            /* refused now; the first try may have got through */
            ngx_http_idem_redis_undo(op);

        } else if (op->result == NGX_HTTP_IDEM_ACQUIRED) {
            op->laid.store = op->store;
            (void) ngx_http_idem_redis_record_life(op, &op->laid.grace);
        }

        break;

    case NGX_HTTP_IDEM_OP_WATCH:

        if (op->result == NGX_HTTP_IDEM_OK && op->found.left) {
            ngx_http_idem_redis_watch_wait(op);
            return;
        }

        break;

    default:
        break;
    }

    ngx_http_idem_redis_complete(op);
}


/* committed or released */

void
ngx_http_idem_redis_committed(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_leave(op);

    /* faster than the message, and without it */

    ngx_http_idem_redis_wake(ngx_http_idem_redis_conf(op), op->id);

    ngx_http_idem_redis_complete(op);
}


static void
ngx_http_idem_redis_timeout(ngx_event_t *ev)
{
    char                        *error;
    ngx_msec_t                   since, over;
    ngx_uint_t                   silent;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_call_t  *call;
    ngx_http_idem_redis_conn_t  *conn;

    op = ev->data;
    redis = ngx_http_idem_redis_conf(op);
    call = op->state_data;
    conn = call->conn;

    /* a server that still talks is only slow: its replies stay in order */

    silent = 0;

    if (call->sent) {
        since = ((ngx_msec_int_t) (conn->heard - call->time) > 0)
                ? conn->heard : call->time;
        silent = (ngx_current_msec - since >= redis->timeout / 2);

    } else if (conn && conn->awaiting) {

        /* those whose WAIT it is may be gone */

        silent = (ngx_current_msec - conn->asked
                  >= redis->replicas_timeout + redis->timeout / 2);
    }

    over = ngx_current_msec - op->start;

    if (ngx_http_idem_redis_is_undo(op) && over < op->lease) {

        /* nobody waits for it: it may take longer, but keeps no worker */

        ev->cancelable = 1;
        ngx_add_timer(ev, ngx_min(op->lease - over, redis->timeout));

        if (silent) {
            ngx_http_idem_redis_drop(conn, "no reply within %M ms",
                                     redis->timeout);
        }

        return;
    }

    error = (char *) (conn ? conn->error : redis->error);

    if (call->sent || error[0] == '\0') {
        error = "no reply in time";
    }

    ngx_http_idem_redis_fail(op, error);

    if (silent) {
        ngx_http_idem_redis_drop(conn, "no reply within %M ms",
                                 redis->timeout);
    }

    ngx_http_idem_redis_complete(op);
}


/*
 * It is in vain for the time being.  What was asked before the application
 * ran is told so; the rest waits.
 */

void
ngx_http_idem_redis_refuse_waiting(ngx_queue_t *calls, const char *error)
{
    ngx_queue_t                 *q;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_redis_call_t  *call;

again:

    for (q = ngx_queue_head(calls);
         q != ngx_queue_sentinel(calls);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_idem_redis_call_t, queue);
        op = call->op;

        if (ngx_http_idem_redis_impatient(op)) {
            ngx_http_idem_redis_fail(op, error);
            ngx_http_idem_redis_complete(op);

            /* whoever that was may have changed the queue */
            goto again;
        }
    }
}


static void
ngx_http_idem_redis_fail(ngx_http_idem_op_t *op, const char *error)
{
    ngx_uint_t                   tried;
    ngx_http_idem_redis_call_t  *call;

    call = op->state_data;
    tried = call->tries;

    if (call->conn) {
        ngx_http_idem_redis_node_count(call->conn->node,
                                            NGX_HTTP_IDEM_NODE_FAILED);
    }

    op->result = NGX_HTTP_IDEM_ERROR;
    op->error = error;

    ngx_http_idem_redis_leave(op);

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN && tried) {
        ngx_http_idem_redis_undo(op);
    }
}


static void
ngx_http_idem_redis_cancel(ngx_http_idem_op_t *op)
{
    ngx_uint_t                   tried;
    ngx_http_idem_redis_call_t  *call;

    call = op->state_data;
    tried = call ? call->tries : 0;

    ngx_http_idem_redis_leave(op);

    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        ngx_http_idem_redis_watch_leave(op);

    } else if (op->kind == NGX_HTTP_IDEM_OP_BEGIN && tried) {
        ngx_http_idem_redis_undo(op);
    }
}


/*
 * An operation and its call part.  A call that is under way stays, since its
 * reply will come; one that was not sent is not.
 */

static void
ngx_http_idem_redis_leave(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_call_t  *call;

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    if (op->timer.posted) {
        ngx_delete_posted_event(&op->timer);
    }

    call = op->state_data;

    if (call == NULL) {
        return;
    }

    op->state_data = NULL;
    call->op = NULL;

    if (!call->sent || call->replied) {
        ngx_http_idem_redis_call_free(call);
    }
}


static void
ngx_http_idem_redis_complete(ngx_http_idem_op_t *op)
{
    if (op->kind == NGX_HTTP_IDEM_OP_WATCH) {
        ngx_http_idem_redis_watch_leave(op);
    }

    if (ngx_http_idem_redis_is_undo(op)) {

        if (ngx_http_idem_redis_undo_again(op) == NGX_OK) {
            return;
        }

        ngx_http_idem_redis_conf(op)->cleanups--;

        /* somebody else's record, or the lease is over: nothing to tell */
        op->result = NGX_HTTP_IDEM_OK;
    }

    ngx_http_idem_store_complete(op);
}


/* the begin may have taken the lock, and nobody will use it */

static void
ngx_http_idem_redis_undo(ngx_http_idem_op_t *begin)
{
    ngx_http_idem_op_t     *op;
    ngx_http_idem_redis_t  *redis;

    redis = ngx_http_idem_redis_conf(begin);

    if (redis->cleanups >= NGX_HTTP_IDEM_REDIS_CLEANUPS) {
        return;
    }

    op = ngx_http_idem_op_detached(begin->store, NGX_HTTP_IDEM_OP_RELEASE,
                                   begin->id, begin->token);
    if (op == NULL) {
        return;
    }

    redis->cleanups++;

    op->data = redis;

    /* as long as the lock may last: under hold it does not end by itself */

    op->lease = begin->hold ? ngx_http_idem_lock_life(begin)
                            : begin->lease;
    op->hold = begin->hold;

    ngx_http_idem_op_detach(op);
}


/*
 * The begin may be behind its own release: in the buffer of a connection that
 * was closed, while the server stood still, and the release came by another.
 * Then it lays its lock after all.  Mostly that ends with its lease; under
 * hold it does not, and the release is sent again, later and later.
 */

static ngx_int_t
ngx_http_idem_redis_undo_again(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_t  *redis;

    redis = ngx_http_idem_redis_conf(op);

    if (!op->hold || ngx_exiting
        || op->result == NGX_HTTP_IDEM_ERROR
        || ++op->attempt >= NGX_HTTP_IDEM_REDIS_UNDO_N)
    {
        return NGX_DECLINED;
    }

    ngx_memzero(&op->timer, sizeof(ngx_event_t));

    op->timer.handler = ngx_http_idem_redis_undo_handler;
    op->timer.data = op;
    op->timer.log = ngx_cycle->log;
    op->timer.cancelable = 1;

    ngx_add_timer(&op->timer, redis->timeout << (2 * op->attempt - 2));

    return NGX_OK;
}


static void
ngx_http_idem_redis_undo_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t  *op;

    op = ev->data;

    if (ngx_http_idem_redis_submit(op) == NULL) {
        ngx_http_idem_redis_complete(op);
    }
}


static ngx_int_t
ngx_http_idem_redis_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_redis_t  *redis;

    redis = store->conf;

    ngx_queue_init(&redis->nodes);
    ngx_queue_init(&redis->retired);

    redis->topology = redis->cluster
                          ? &ngx_http_idem_redis_cluster
                      : redis->sentinels.nelts
                          ? &ngx_http_idem_redis_sentinel
                      : &ngx_http_idem_redis_single;

    ngx_http_idem_redis_calls_init(redis);
    ngx_http_idem_redis_command_init();
    ngx_http_idem_redis_watch_init(redis);

    if (redis->topology->init(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    /* who keeps copies hears of what is removed */

    if (store->forget) {
        ngx_http_idem_redis_listen(redis, NULL);
    }

    return NGX_OK;
}


static void
ngx_http_idem_redis_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_redis_t  *redis;

    redis = store->conf;

    if (redis->topology == NULL) {
        return;
    }

    redis->topology->exit(redis);
    ngx_http_idem_redis_calls_exit(redis);

    ngx_http_idem_redis_close(&redis->subscriber);
    ngx_http_idem_redis_requeue(&redis->subscriber);
    ngx_http_idem_redis_nodes_exit(redis);
}
