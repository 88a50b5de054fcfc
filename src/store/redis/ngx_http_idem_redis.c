
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The backend of the Redis store: starts operations, times them out and
 * completes them.
 *
 * An operation becomes a call on the connection of its record.  It has
 * "timeout" for all of it, including connecting.  If a begin is given up, the
 * release that follows it (see ..._remote.c) is sent on the same connection.
 *
 * While Redis can't be reached, a begin and a watch fail at once after a few
 * failed connect attempts.  A renewal, a commit and a release use all of
 * their time, since the application has run.
 *
 * A watch marks the record as waited for.  The script of a commit or a release
 * then publishes the key of the record; after a native commit the worker does
 * so itself.  The subscriber of each worker receives the message and wakes the
 * waiters of that worker, which are in ..._poll.c.
 *
 * Called through the table of stores and by ..._remote.c; calls the client.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


/* limit of the polling interval while there is no subscriber, ms */
#define NGX_HTTP_IDEM_REDIS_POLL  1000


static ngx_int_t ngx_http_idem_redis_init_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static void ngx_http_idem_redis_exit_process(ngx_cycle_t *cycle,
    ngx_http_idem_store_t *store);
static ngx_int_t ngx_http_idem_redis_stats(ngx_http_idem_store_t *store,
    ngx_http_idem_store_stats_t *stats);
static ngx_int_t ngx_http_idem_redis_submit(ngx_http_idem_op_t *op);
static ngx_uint_t ngx_http_idem_redis_leave(void *data);
static void ngx_http_idem_redis_replied(ngx_redis_call_t *c,
    redisReply *reply);
static void ngx_http_idem_redis_failed(ngx_redis_call_t *call,
    const char *error);
static void ngx_http_idem_redis_extend(ngx_redis_call_t *call,
    ngx_msec_t time);
static void ngx_http_idem_redis_timeout(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_fail(ngx_http_idem_op_t *op,
    const char *error);
static void ngx_http_idem_redis_listen(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_unlisten(ngx_http_idem_op_t *op);
static ngx_msec_t ngx_http_idem_redis_poll(ngx_http_idem_op_t *op);


const ngx_http_idem_backend_t  ngx_http_idem_redis_backend = {
    ngx_string("redis"),
    ngx_http_idem_redis_create_conf,
    ngx_http_idem_redis_commands,
    ngx_http_idem_redis_init_conf,
    ngx_http_idem_redis_init_process,
    ngx_http_idem_redis_exit_process,
    ngx_http_idem_remote_ask,                /* begin   */
    ngx_http_idem_remote_ask,                /* renew   */
    ngx_http_idem_remote_ask,                /* commit  */
    ngx_http_idem_remote_ask,                /* release */
    ngx_http_idem_remote_ask,                /* watch   */
    ngx_http_idem_remote_cancel,
    ngx_http_idem_redis_stats,
    1,                                       /* remote  */
    ngx_http_idem_remote_ask,                /* admin   */
    NGX_HTTP_IDEM_TRAIL_LAST
};


static const ngx_redis_call_type_t  ngx_http_idem_redis_call_type = {
    ngx_http_idem_redis_command_encode,
    ngx_http_idem_redis_replied,
    ngx_http_idem_redis_failed,
    ngx_http_idem_redis_replicated,
    ngx_http_idem_redis_extend
};


static const ngx_http_idem_remote_type_t  ngx_http_idem_redis_remote = {
    ngx_http_idem_redis_submit,
    ngx_http_idem_redis_leave,
    ngx_http_idem_redis_listen,
    ngx_http_idem_redis_unlisten,
    ngx_http_idem_redis_poll,
    ngx_http_idem_redis_timeout
};


static ngx_int_t
ngx_http_idem_redis_submit(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_call_t  *call;

    redis = ngx_http_idem_redis_conf(op);

    op->result = NGX_HTTP_IDEM_ERROR;
    op->state_data = NULL;

    call = ngx_redis_call_alloc(sizeof(ngx_http_idem_redis_call_t));
    if (call == NULL) {
        op->error = "no memory for a call";
        return NGX_ERROR;
    }

    call->call.type = &ngx_http_idem_redis_call_type;
    call->call.data = op;
    call->call.key.data = call->key;
    call->call.key.len = (op->kind > NGX_HTTP_IDEM_OP_LIST)
                         ? ngx_http_idem_redis_trail_key(redis, call->key)
                         : ngx_http_idem_redis_key(redis, op->id, call->key);
    call->call.order_key = ngx_http_idem_redis_order_key(op->id);
    call->call.impatient = ngx_http_idem_remote_impatient(op);
    call->call.urgent = (op->kind == NGX_HTTP_IDEM_OP_RENEW);
    call->call.waits = (op->kind == NGX_HTTP_IDEM_OP_COMMIT
                        && redis->client.replicas && !op->skip_replicas);

    if (op->kind == NGX_HTTP_IDEM_OP_LIST
        && ngx_http_idem_redis_list_node(redis, call) != NGX_OK)
    {
        ngx_redis_call_discard(&call->call);
        return NGX_ERROR;
    }

    if (ngx_redis_call(&redis->client, &call->call) != NGX_OK) {
        op->error = ngx_redis_call_error(&call->call);
        ngx_redis_call_discard(&call->call);
        return NGX_ERROR;
    }

    op->state_data = call;

    ngx_http_idem_remote_time(op, redis->client.timeout
                                  + (call->call.waits
                                     ? redis->client.replicas_timeout : 0));

    return NGX_OK;
}


static void
ngx_http_idem_redis_replied(ngx_redis_call_t *c, redisReply *reply)
{
    ngx_int_t                    rc;
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

        /* no WAIT was sent for this commit */

        op->unacknowledged = 1;
    }

    if (op->kind == NGX_HTTP_IDEM_OP_BEGIN
        && op->result == NGX_HTTP_IDEM_ACQUIRED)
    {
        op->lock.store = op->store;
        (void) ngx_http_idem_redis_record_life(op, &op->lock.grace);
    }

    ngx_http_idem_remote_replied(op);
}


static void
ngx_http_idem_redis_timeout(ngx_http_idem_op_t *op)
{
    const char        *error;
    ngx_uint_t         silent, over;
    ngx_redis_t       *client;
    ngx_redis_call_t  *call;
    ngx_redis_conn_t  *conn;

    client = &ngx_http_idem_redis_conf(op)->client;
    call = op->state_data;
    conn = call->conn;

    silent = ngx_redis_call_silent(call);
    over = (ngx_http_idem_remote_over(op) == NGX_OK);

    if (over) {
        error = ngx_redis_call_error(call);

        if (call->sent || error[0] == '\0') {
            error = "no reply in time";
        }

        ngx_http_idem_redis_fail(op, error);
    }

    if (silent) {
        ngx_redis_drop(conn, "no reply within %M ms", client->timeout);
    }

    if (over) {
        ngx_http_idem_remote_complete(op);
    }
}


/* the server is down; or the worker is exiting, and the result is dropped */

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
    ngx_http_idem_remote_complete(op);
}


static void
ngx_http_idem_redis_extend(ngx_redis_call_t *call, ngx_msec_t time)
{
    ngx_http_idem_remote_time(call->data, time);
}


static void
ngx_http_idem_redis_fail(ngx_http_idem_op_t *op, const char *error)
{
    ngx_redis_call_t  *call;

    call = op->state_data;

    if (call->conn) {
        call->redis->hooks->count(call->conn->node, NGX_REDIS_NODE_FAILED);
    }

    ngx_http_idem_remote_fail(op, error);
}


static ngx_uint_t
ngx_http_idem_redis_leave(void *data)
{
    ngx_redis_call_t  *call = data;

    ngx_uint_t  tries;

    tries = call->tries;

    ngx_redis_call_cancel(call);

    return tries;
}


static void
ngx_http_idem_redis_listen(ngx_http_idem_op_t *op)
{
    ngx_redis_listen_enter(&ngx_http_idem_redis_conf(op)->client);
}


static void
ngx_http_idem_redis_unlisten(ngx_http_idem_op_t *op)
{
    ngx_redis_listen_leave(&ngx_http_idem_redis_conf(op)->client);
}


static ngx_msec_t
ngx_http_idem_redis_poll(ngx_http_idem_op_t *op)
{
    ngx_redis_conn_t  *subscriber;

    subscriber = &ngx_http_idem_redis_conf(op)->client.subscriber;

    if (!op->woken) {
        ngx_redis_check(subscriber);
    }

    return (subscriber->state == NGX_REDIS_READY) ? 0
                                                  : NGX_HTTP_IDEM_REDIS_POLL;
}


/* the subscriber is ready; earlier messages were missed */

void
ngx_http_idem_redis_wake_all(ngx_redis_t *client)
{
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    ngx_http_idem_polls_wake(&redis->remote.polls, NULL);
}


/*
 * The key of a record, followed by "-" if an administrator has removed it.
 * Other clients may publish anything on this channel.
 */

void
ngx_http_idem_redis_message(ngx_redis_t *client, ngx_str_t *text)
{
    ngx_str_t               key;
    ngx_uint_t              removed;
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    key = *text;
    removed = (key.len && key.data[key.len - 1] == '-');
    key.len -= removed;

    if (key.len > redis->prefix.len) {
        ngx_http_idem_remote_message(&redis->remote,
                                     key.data + redis->prefix.len,
                                     key.len - redis->prefix.len, removed);
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
    ngx_http_idem_remote_init(&redis->remote, &ngx_http_idem_redis_remote,
                              store, redis->client.timeout);

    if (ngx_redis_init(&redis->client) != NGX_OK) {
        return NGX_ERROR;
    }

    /* the cache must learn of removed records, so this worker always
       listens */

    if (store->copies) {
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

    ngx_http_idem_remote_exit(&redis->remote);
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
