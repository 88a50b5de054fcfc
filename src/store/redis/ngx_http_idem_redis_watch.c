
/*
 * Waiters.  A watch says in the record that somebody waits; then the script of
 * a commit or a release publishes the record's key, or we do behind a commit
 * that was a plain command; and the one subscriber of each
 * worker wakes those of its own that wait for it.  A message may get lost, or
 * be forged: a watch also looks by itself now and then, more often while
 * there is no subscriber, and to be woken for nothing does no harm.
 *
 * A watch is entered before it is asked in Redis, so that a message that is
 * faster than the reply finds it.
 *
 * Called by the backend, and by the subscriber's connection with messages.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"
#include "store/redis/topology/ngx_http_idem_redis_topology.h"


/* how often to look when nobody can tell, and when somebody should */
#define NGX_HTTP_IDEM_REDIS_POLL_MIN  10
#define NGX_HTTP_IDEM_REDIS_POLL_MAX  1000

/* a subscriber that heard nothing for so long is asked whether it hears */
#define NGX_HTTP_IDEM_REDIS_QUIET     10000


static void ngx_http_idem_redis_watch_post(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_watch_handler(ngx_event_t *ev);


void
ngx_http_idem_redis_watch_init(ngx_http_idem_redis_t *redis)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_REDIS_WATCHES; i++) {
        ngx_queue_init(&redis->watches[i]);
    }

    ngx_http_idem_redis_conn_init(&redis->subscriber, redis, NULL);
    redis->subscriber.subscriber = 1;
    redis->subscriber.channel = &redis->channel;

    /* one that never ends, where copies are kept: the subscriber stays */

    redis->nwatches = (redis->store->forget != NULL);
}


/* the subscriber moves; or stays where it is, if there is no other place */

void
ngx_http_idem_redis_listen(ngx_http_idem_redis_t *redis,
    ngx_http_idem_redis_node_t *except)
{
    ngx_http_idem_redis_conn_t  *conn;
    ngx_http_idem_redis_node_t  *node;

    conn = &redis->subscriber;
    node = redis->topology->listen(redis, except);

    if (node == conn->node) {
        return;
    }

    if (conn->state != NGX_HTTP_IDEM_REDIS_BACKOFF) {
        ngx_http_idem_redis_close(conn);
        ngx_http_idem_redis_requeue(conn);
    }

    conn->node = node;

    if (node && redis->nwatches) {
        ngx_http_idem_redis_flush(conn);
    }
}


void
ngx_http_idem_redis_watch_enter(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_conn_t  *conn;

    redis = ngx_http_idem_redis_conf(op);
    conn = &redis->subscriber;

    op->woken = 0;

    ngx_queue_insert_tail(&redis->watches[op->id[0]], &op->queue);
    redis->nwatches++;

    if (conn->node == NULL) {
        ngx_http_idem_redis_listen(redis, NULL);
    }

    if (conn->state == NGX_HTTP_IDEM_REDIS_CLOSED) {
        ngx_http_idem_redis_flush(conn);

    } else if (conn->connection) {
        ngx_http_idem_redis_idle(conn);
    }
}


void
ngx_http_idem_redis_watch_leave(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_conn_t  *conn;

    redis = ngx_http_idem_redis_conf(op);
    conn = &redis->subscriber;

    ngx_queue_remove(&op->queue);
    redis->nwatches--;

    if (conn->connection) {
        ngx_http_idem_redis_idle(conn);
    }
}


/* it is in progress, for op->found.left at most */

void
ngx_http_idem_redis_watch_wait(ngx_http_idem_op_t *op)
{
    ngx_msec_t              next;
    ngx_http_idem_redis_t  *redis;

    redis = ngx_http_idem_redis_conf(op);

    if (op->woken) {

        /*
         * The message was read before this reply, in the same turn of the
         * event loop, and what was posted then went with the question
         */

        ngx_http_idem_redis_watch_post(op);
        return;
    }

    ngx_http_idem_redis_check(&redis->subscriber);

    next = NGX_HTTP_IDEM_REDIS_POLL_MAX;

    if (redis->subscriber.state != NGX_HTTP_IDEM_REDIS_READY) {
        next = NGX_HTTP_IDEM_REDIS_POLL_MIN << ngx_min(op->attempt, 8);
        next = ngx_min(next, NGX_HTTP_IDEM_REDIS_POLL_MAX);
    }

    next = next - next / 4 + ngx_random() % (next / 4 + 1);
    next = ngx_min(next, op->found.left + 1);

    op->timer.handler = ngx_http_idem_redis_watch_handler;
    op->timer.cancelable = 1;

    ngx_add_timer(&op->timer, next);
}


/*
 * Silence is the usual state of a subscriber, and that of one whose server is
 * gone without a word.  Subscribing once more tells them apart, and takes no
 * right that it does not have already.
 */

void
ngx_http_idem_redis_check(ngx_http_idem_redis_conn_t *conn)
{
    ngx_str_t               args[2];
    ngx_http_idem_redis_t  *redis;

    redis = conn->redis;

    if (conn->state != NGX_HTTP_IDEM_REDIS_READY
        || ngx_current_msec - conn->heard < NGX_HTTP_IDEM_REDIS_QUIET)
    {
        return;
    }

    if (!ngx_queue_empty(&conn->sent)) {

        if (ngx_current_msec - conn->heard
            > NGX_HTTP_IDEM_REDIS_QUIET + redis->timeout)
        {
            ngx_http_idem_redis_drop(conn, "the subscriber hears "
                                     "nothing");
        }

        return;
    }

    ngx_str_set(&args[0], "SUBSCRIBE");
    args[1] = *conn->channel;

    if (ngx_http_idem_redis_ask(conn, NULL, args, 2) == NGX_OK) {
        ngx_http_idem_redis_flush(conn);
    }
}


/*
 * A commit that was no script found that somebody waits.  Commits that wait
 * for replicas have a connection on which this would have to wait, too.
 */

void
ngx_http_idem_redis_publish(ngx_http_idem_redis_conn_t *conn,
    ngx_http_idem_op_t *op)
{
    u_char                      *p;
    u_char                       key[
                                       NGX_HTTP_IDEM_REDIS_PREFIX_MAX
                                       + 2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_str_t                    args[3];
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_conn_t  *other;

    redis = conn->redis;

    if (conn->commits) {
        other = &conn->node->conns[op->id[NGX_HTTP_IDEM_ID_LEN - 1]
                                   % conn->node->nconns];

        if (other->state == NGX_HTTP_IDEM_REDIS_READY) {
            conn = other;
        }
    }

    p = ngx_cpymem(key, redis->prefix.data, redis->prefix.len);
    p = ngx_hex_dump(p, op->id, NGX_HTTP_IDEM_ID_LEN);

    ngx_str_set(&args[0], "PUBLISH");
    args[1] = redis->channel;
    args[2].data = key;
    args[2].len = p - key;

    /* should it not get there, they look by themselves */

    if (ngx_http_idem_redis_ask(conn,
                                ngx_http_idem_redis_ignored,
                                args, 3)
        == NGX_OK)
    {
        ngx_http_idem_redis_flush(conn);
    }
}


/* the record changed, as far as we know */

void
ngx_http_idem_redis_wake(ngx_http_idem_redis_t *redis, u_char *id)
{
    ngx_queue_t         *q, *head;
    ngx_http_idem_op_t  *op;

    head = &redis->watches[id[0]];

    for (q = ngx_queue_head(head); q != head; q = ngx_queue_next(q)) {
        op = ngx_queue_data(q, ngx_http_idem_op_t, queue);

        if (ngx_memcmp(op->id, id, NGX_HTTP_IDEM_ID_LEN) == 0) {
            ngx_http_idem_redis_watch_post(op);
        }
    }
}


void
ngx_http_idem_redis_wake_all(ngx_http_idem_redis_t *redis)
{
    ngx_uint_t    i;
    ngx_queue_t  *q, *head;

    for (i = 0; i < NGX_HTTP_IDEM_REDIS_WATCHES; i++) {
        head = &redis->watches[i];

        for (q = ngx_queue_head(head); q != head; q = ngx_queue_next(q)) {
            ngx_http_idem_redis_watch_post(
                       ngx_queue_data(q, ngx_http_idem_op_t, queue));
        }
    }
}


/* posted: whoever wakes may be in the middle of a request */

static void
ngx_http_idem_redis_watch_post(ngx_http_idem_op_t *op)
{
    op->woken = 1;
    op->timer.handler = ngx_http_idem_redis_watch_handler;

    ngx_post_event(&op->timer, &ngx_posted_events);
}


static void
ngx_http_idem_redis_watch_handler(ngx_event_t *ev)
{
    ngx_http_idem_op_t  *op;

    op = ev->data;

    op->result = NGX_HTTP_IDEM_OK;

    /* if it is still being asked, the reply is nobody's */

    op->store->backend->cancel(op);

    ngx_http_idem_store_complete(op);
}


/* is it the answer to a check? */

ngx_uint_t
ngx_http_idem_redis_is_checked(ngx_http_idem_redis_conn_t *conn,
    redisReply *reply)
{
    ngx_str_t  kind;

    if (ngx_queue_empty(&conn->sent)
        || ngx_http_idem_redis_field(reply, 0, &kind) != NGX_OK
        || kind.len != 9 || ngx_strncmp(kind.data, "subscribe", 9) != 0)
    {
        return 0;
    }

    ngx_http_idem_redis_call_free(
                        ngx_queue_data(ngx_queue_head(&conn->sent),
                                       ngx_http_idem_redis_call_t,
                                       queue));
    return 1;
}


/*
 * { "message", channel, key of the record }, with "-" behind the key where it
 * was removed by hand; or { "subscribe", ... } where it was asked whether it
 * hears
 */

ngx_int_t
ngx_http_idem_redis_message(ngx_http_idem_redis_conn_t *conn,
    redisReply *reply)
{
    u_char                  id[NGX_HTTP_IDEM_ID_LEN], *p;
    ngx_int_t               n;
    ngx_str_t               kind, key;
    ngx_uint_t              i, removed;
    ngx_http_idem_redis_t  *redis;

    redis = conn->redis;

    if (ngx_http_idem_redis_is_checked(conn, reply)) {
        return NGX_OK;
    }

    if (ngx_http_idem_redis_field(reply, 0, &kind) != NGX_OK
        || kind.len != 7
        || ngx_strncmp(kind.data, "message", 7) != 0
        || ngx_http_idem_redis_field(reply, 2, &key) != NGX_OK)
    {
        return NGX_ERROR;
    }

    removed = (key.len && key.data[key.len - 1] == '-');
    key.len -= removed;

    if (key.len != redis->prefix.len + 2 * NGX_HTTP_IDEM_ID_LEN) {
        /* somebody else's */
        return NGX_OK;
    }

    p = key.data + redis->prefix.len;

    for (i = 0; i < NGX_HTTP_IDEM_ID_LEN; i++, p += 2) {
        n = ngx_hextoi(p, 2);

        if (n == NGX_ERROR) {
            return NGX_OK;
        }

        id[i] = (u_char) n;
    }

    ngx_http_idem_redis_wake(redis, id);

    if (removed && redis->store->forget) {
        redis->store->forget(redis->store, id);
    }

    return NGX_OK;
}
