
/*
 * Waiters.  A watch says in the record that somebody waits; then the script of
 * a commit or a release publishes the record's key, or the backend does behind
 * a commit that was a native command; and the one subscriber of each worker
 * wakes those of its own that wait for it.  A message may get lost, or
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


/* how often to look when nobody can tell, and when somebody should */
#define NGX_HTTP_IDEM_REDIS_POLL_MIN  10
#define NGX_HTTP_IDEM_REDIS_POLL_MAX  1000


static void ngx_http_idem_redis_watch_post(ngx_http_idem_op_t *op);
static void ngx_http_idem_redis_watch_handler(ngx_event_t *ev);


void
ngx_http_idem_redis_watch_init(ngx_http_idem_redis_t *redis)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_IDEM_REDIS_WATCHES; i++) {
        ngx_queue_init(&redis->watches[i]);
    }
}


void
ngx_http_idem_redis_watch_enter(ngx_http_idem_op_t *op)
{
    ngx_http_idem_redis_t  *redis;

    redis = ngx_http_idem_redis_conf(op);

    op->woken = 0;

    ngx_queue_insert_tail(&redis->watches[op->id[0]], &op->queue);
    ngx_redis_listen_enter(&redis->client);
}


void
ngx_http_idem_redis_watch_leave(ngx_http_idem_op_t *op)
{
    ngx_queue_remove(&op->queue);
    ngx_redis_listen_leave(&ngx_http_idem_redis_conf(op)->client);
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

    ngx_redis_check(&redis->client.subscriber);

    next = NGX_HTTP_IDEM_REDIS_POLL_MAX;

    if (redis->client.subscriber.state != NGX_REDIS_READY) {
        next = NGX_HTTP_IDEM_REDIS_POLL_MIN << ngx_min(op->attempt, 8);
        next = ngx_min(next, NGX_HTTP_IDEM_REDIS_POLL_MAX);
    }

    next = next - next / 4 + ngx_random() % (next / 4 + 1);
    next = ngx_min(next, op->found.left + 1);

    op->timer.handler = ngx_http_idem_redis_watch_handler;
    op->timer.cancelable = 1;

    ngx_add_timer(&op->timer, next);
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


/* the subscriber is there: what was published before went by */

void
ngx_http_idem_redis_wake_all(ngx_redis_t *client)
{
    ngx_uint_t              i;
    ngx_queue_t            *q, *head;
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

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


/*
 * The key of a record, with "-" behind it where that was removed by hand; or
 * whatever somebody else publishes there.
 */

void
ngx_http_idem_redis_message(ngx_redis_t *client, ngx_str_t *text)
{
    u_char                  id[NGX_HTTP_IDEM_ID_LEN], *p;
    ngx_int_t               n;
    ngx_str_t               key;
    ngx_uint_t              i, removed;
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    key = *text;
    removed = (key.len && key.data[key.len - 1] == '-');
    key.len -= removed;

    if (key.len != redis->prefix.len + 2 * NGX_HTTP_IDEM_ID_LEN) {
        return;
    }

    p = key.data + redis->prefix.len;

    for (i = 0; i < NGX_HTTP_IDEM_ID_LEN; i++, p += 2) {
        n = ngx_hextoi(p, 2);

        if (n == NGX_ERROR) {
            return;
        }

        id[i] = (u_char) n;
    }

    ngx_http_idem_redis_wake(redis, id);

    if (removed && redis->store->forget) {
        redis->store->forget(redis->store, id);
    }
}
