
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
static ngx_int_t ngx_http_idem_redis_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats);
static void ngx_http_idem_redis_replied(ngx_redis_call_t *c,
    redisReply *reply);
static void ngx_http_idem_redis_failed(ngx_redis_call_t *call,
    const char *error);
static void ngx_http_idem_redis_extend(ngx_redis_call_t *call,
    ngx_msec_t time);
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
    ngx_http_idem_redis_commands,
    ngx_http_idem_redis_init_conf,
    ngx_http_idem_redis_init_process,
    ngx_http_idem_redis_exit_process,
    ngx_http_idem_redis_ask_op,              /* begin   */
    ngx_http_idem_redis_ask_op,              /* renew   */
    ngx_http_idem_redis_ask_op,              /* commit  */
    ngx_http_idem_redis_ask_op,              /* release */
    ngx_http_idem_redis_watch,
    ngx_http_idem_redis_cancel,
    ngx_http_idem_redis_stats,
    1,                                       /* remote  */
    ngx_http_idem_redis_ask_op,              /* admin   */
    NGX_HTTP_IDEM_TRAIL_LAST
};


static const ngx_redis_call_type_t  ngx_http_idem_redis_call_type = {
    ngx_http_idem_redis_command_encode,
    ngx_http_idem_redis_failed,
    ngx_http_idem_redis_replicated,
    ngx_http_idem_redis_extend
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

    redis = ngx_http_idem_redis_conf(op);

    op->result = NGX_HTTP_IDEM_ERROR;
    op->state_data = NULL;

    call = ngx_alloc(sizeof(ngx_http_idem_redis_call_t), ngx_cycle->log);
    if (call == NULL) {
        op->error = "no memory for a call";
        return NULL;
    }

    ngx_memzero(call, sizeof(ngx_http_idem_redis_call_t));

    call->call.type = &ngx_http_idem_redis_call_type;
    call->call.handler = ngx_http_idem_redis_replied;
    call->call.data = op;
    call->call.key.data = call->key;
    call->call.key.len = (op->kind > NGX_HTTP_IDEM_OP_LIST)
                         ? ngx_http_idem_redis_trail_key(redis, call->key)
                         : ngx_http_idem_redis_key(redis, op->id, call->key);
    call->call.lane = ngx_http_idem_redis_lane(op->id);
    call->call.impatient = ngx_http_idem_redis_impatient(op);
    call->call.urgent = (op->kind == NGX_HTTP_IDEM_OP_RENEW);
    call->call.waits = (op->kind == NGX_HTTP_IDEM_OP_COMMIT
                        && redis->client.replicas && !op->hasty);

    if (op->kind == NGX_HTTP_IDEM_OP_LIST) {
        ngx_http_idem_redis_list_from(redis, call);
    }

    if (ngx_redis_call(&redis->client, &call->call) != NGX_OK) {
        op->error = ngx_redis_call_error(&call->call);
        ngx_free(call);
        return NULL;
    }

    op->state_data = call;

    /* not cancelable: a worker that is to quit waits for it */

    ngx_memzero(&op->timer, sizeof(ngx_event_t));

    op->timer.handler = ngx_http_idem_redis_timeout;
    op->timer.data = op;
    op->timer.log = ngx_cycle->log;

    ngx_add_timer(&op->timer, redis->client.timeout
                              + (call->call.waits
                                 ? redis->client.replicas_timeout : 0));

    return call;
}


static void
ngx_http_idem_redis_replied(ngx_redis_call_t *c, redisReply *reply)
{
    ngx_int_t                    rc;
    ngx_uint_t                   repeated;
    ngx_http_idem_op_t          *op;
    ngx_http_idem_redis_call_t  *call;

    op = c->data;
    call = (ngx_http_idem_redis_call_t *) c;

    rc = ngx_http_idem_redis_reply_result(call, reply);

    if (rc == NGX_AGAIN) {
        ngx_redis_call_to(c, c->conn);
        return;
    }

    if (rc == NGX_ERROR) {
        ngx_redis_drop(c->conn, "a reply does not fit its command");
        return;
    }

    if (call->waited) {
        call->waited = 0;
        ngx_redis_publish(c, &c->key);
    }

    if (op->kind == NGX_HTTP_IDEM_OP_COMMIT && c->redis->replicas
        && (op->result == NGX_HTTP_IDEM_OK
            || op->result == NGX_HTTP_IDEM_FULL))
    {
        if (c->waits && ngx_redis_replicate(c) == NGX_OK) {
            return;
        }

        /* nobody waits for them */

        op->unacknowledged = 1;
    }

    repeated = (c->tries > (call->eval ? 2 : 1));

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
    const char          *error;
    ngx_msec_t           over;
    ngx_uint_t           silent;
    ngx_redis_t         *client;
    ngx_redis_call_t    *call;
    ngx_redis_conn_t    *conn;
    ngx_http_idem_op_t  *op;

    op = ev->data;
    client = &ngx_http_idem_redis_conf(op)->client;
    call = op->state_data;
    conn = call->conn;

    silent = ngx_redis_call_silent(call);
    over = ngx_current_msec - op->start;

    if (ngx_http_idem_redis_is_undo(op) && over < op->lease) {

        /* nobody waits for it: it may take longer, but keeps no worker */

        ev->cancelable = 1;
        ngx_add_timer(ev, ngx_min(op->lease - over, client->timeout));

        if (silent) {
            ngx_redis_drop(conn, "no reply within %M ms", client->timeout);
        }

        return;
    }

    error = ngx_redis_call_error(call);

    if (call->sent || error[0] == '\0') {
        error = "no reply in time";
    }

    ngx_http_idem_redis_fail(op, error);

    if (silent) {
        ngx_redis_drop(conn, "no reply within %M ms", client->timeout);
    }

    ngx_http_idem_redis_complete(op);
}


/* its server is away; or the worker leaves, and nobody is told any more */

static void
ngx_http_idem_redis_failed(ngx_redis_call_t *call, const char *error)
{
    ngx_http_idem_op_t  *op;

    op = call->data;

    if (error == NULL) {
        op->state_data = NULL;
        return;
    }

    ngx_http_idem_redis_fail(op, error);
    ngx_http_idem_redis_complete(op);
}


static void
ngx_http_idem_redis_extend(ngx_redis_call_t *call, ngx_msec_t time)
{
    ngx_event_t         *timer;
    ngx_http_idem_op_t  *op;

    op = call->data;
    timer = &op->timer;

    /* anew: it would be left as it is if it is about the same */

    if (timer->timer_set) {
        ngx_del_timer(timer);
    }

    ngx_add_timer(timer, time);
}


static void
ngx_http_idem_redis_fail(ngx_http_idem_op_t *op, const char *error)
{
    ngx_uint_t         tried;
    ngx_redis_call_t  *call;

    call = op->state_data;
    tried = call->tries;

    if (call->conn) {
        call->redis->hooks->count(call->conn->node, NGX_REDIS_NODE_FAILED);
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
    ngx_uint_t         tried;
    ngx_redis_call_t  *call;

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
    ngx_redis_call_t  *call;

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

    ngx_redis_call_cancel(call);
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

    ngx_add_timer(&op->timer, redis->client.timeout << (2 * op->attempt - 2));

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

    redis->client.hooks = &ngx_http_idem_redis_hooks;
    redis->client.data = redis;
    redis->client.resolver = store->resolver;
    redis->client.newest = redis->newest.data;
    redis->client.shpool = redis->newest.shpool;

    ngx_http_idem_redis_command_init();
    ngx_http_idem_redis_watch_init(redis);

    if (ngx_redis_init(&redis->client) != NGX_OK) {
        return NGX_ERROR;
    }

    /* who keeps copies hears of what is removed, as long as the worker lives */

    if (store->forget) {
        ngx_redis_listen_enter(&redis->client);
    }

    return NGX_OK;
}


static void
ngx_http_idem_redis_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store)
{
    ngx_http_idem_redis_t  *redis;

    redis = store->conf;

    ngx_redis_exit(&redis->client);
}


static ngx_int_t
ngx_http_idem_redis_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats)
{
    ngx_http_idem_redis_t  *redis;

    redis = store->conf;
    stats->queued = ngx_redis_queued(&redis->client);

    return NGX_DECLINED;
}
