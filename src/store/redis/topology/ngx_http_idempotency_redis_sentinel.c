
/*
 * The topology of a master that sentinels watch over: every record is at the
 * master, and which server that is, they tell.
 *
 * One sentinel is asked now and then, often while there is no master that
 * works, and another one is listened to, which publishes when it changes.
 * What a sentinel says need not be so: it may be cut off, together with a
 * former master.
 *
 *   - A server is asked for its role before anything else is asked of it: a
 *     replica is left at once, and so is a master that answers READONLY.
 *   - A change that is published is believed: sentinels publish one only when
 *     they learn of a newer configuration than theirs.
 *   - An answer that differs is believed if the master that we have does not
 *     work.  While it works, only if most of the configured sentinels say the
 *     same.
 *
 * At a change what was asked of the old master, sent or not, is asked of the
 * new one, with the same tokens.
 *
 * Called through the table of topologies.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/topology/ngx_http_idempotency_redis_topology.h"


/* between questions while the master works */
#define NGX_HTTP_IDEMPOTENCY_REDIS_POLL    10000

/* before another sentinel is listened to */
#define NGX_HTTP_IDEMPOTENCY_REDIS_LISTEN  1000


static ngx_int_t ngx_http_idempotency_redis_sentinel_init(
    ngx_http_idempotency_redis_t *redis);
static void ngx_http_idempotency_redis_sentinel_exit(
    ngx_http_idempotency_redis_t *redis);
static ngx_http_idempotency_redis_node_t *
    ngx_http_idempotency_redis_sentinel_node(
    ngx_http_idempotency_redis_t *redis, u_char *id);
static ngx_http_idempotency_redis_node_t *
    ngx_http_idempotency_redis_sentinel_listen(
    ngx_http_idempotency_redis_t *redis,
    ngx_http_idempotency_redis_node_t *except);
static void ngx_http_idempotency_redis_sentinel_failed(
    ngx_http_idempotency_redis_conn_t *conn);
static ngx_int_t ngx_http_idempotency_redis_sentinel_refused(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply);
static ngx_http_idempotency_redis_node_t *
    ngx_http_idempotency_redis_sentinel_next(
    ngx_http_idempotency_redis_t *redis);
static ngx_uint_t ngx_http_idempotency_redis_sentinel_question(
    ngx_http_idempotency_redis_t *redis, ngx_str_t *args);
static ngx_int_t ngx_http_idempotency_redis_sentinel_answer(
    ngx_http_idempotency_redis_t *redis,
    ngx_http_idempotency_redis_node_t *asked, redisReply *reply);
static ngx_uint_t ngx_http_idempotency_redis_sentinel_most(
    ngx_http_idempotency_redis_t *redis, ngx_str_t *host, in_port_t port);
static ngx_msec_t ngx_http_idempotency_redis_sentinel_pause(
    ngx_http_idempotency_redis_t *redis);
static void ngx_http_idempotency_redis_sentinel_adopt(
    ngx_http_idempotency_redis_t *redis, ngx_str_t *host, in_port_t port);
static void ngx_http_idempotency_redis_events_connect(ngx_event_t *ev);
static void ngx_http_idempotency_redis_events_ready(
    ngx_http_idempotency_redis_conn_t *conn);
static void ngx_http_idempotency_redis_events_lost(
    ngx_http_idempotency_redis_conn_t *conn);
static ngx_int_t ngx_http_idempotency_redis_events_message(
    ngx_http_idempotency_redis_conn_t *conn, redisReply *reply);


const ngx_http_idempotency_redis_topology_t
    ngx_http_idempotency_redis_sentinel =
{
    ngx_http_idempotency_redis_sentinel_init,
    ngx_http_idempotency_redis_sentinel_exit,
    ngx_http_idempotency_redis_sentinel_node,
    ngx_http_idempotency_redis_sentinel_listen,
    ngx_http_idempotency_redis_sentinel_failed,
    ngx_http_idempotency_redis_sentinel_refused
};


static const ngx_http_idempotency_redis_asker_t
    ngx_http_idempotency_redis_sentinel_asker =
{
    "which server is the master",
    ngx_http_idempotency_redis_sentinel_next,
    ngx_http_idempotency_redis_sentinel_question,
    ngx_http_idempotency_redis_sentinel_answer,
    ngx_http_idempotency_redis_sentinel_pause
};


static const ngx_http_idempotency_redis_owner_t
    ngx_http_idempotency_redis_events_owner =
{
    ngx_http_idempotency_redis_events_ready,
    ngx_http_idempotency_redis_events_lost,
    ngx_http_idempotency_redis_events_message
};


static ngx_str_t  ngx_http_idempotency_redis_events_channel =
    ngx_string("+switch-master");


static ngx_int_t
ngx_http_idempotency_redis_sentinel_init(ngx_http_idempotency_redis_t *redis)
{
    ngx_uint_t                          i;
    ngx_http_idempotency_redis_addr_t  *addr;
    ngx_http_idempotency_redis_conn_t  *conn;
    ngx_http_idempotency_redis_node_t  *node;

    addr = redis->sentinels.elts;

    for (i = 0; i < redis->sentinels.nelts; i++) {
        node = ngx_http_idempotency_redis_node_seed(redis, &addr[i]);

        if (node == NULL) {
            return NGX_ERROR;
        }

        node->sentinel = 1;
    }

    conn = &redis->events;

    ngx_http_idempotency_redis_conn_init(conn, redis, NULL);

    conn->owner = &ngx_http_idempotency_redis_events_owner;
    conn->subscriber = 1;
    conn->channel = &ngx_http_idempotency_redis_events_channel;

    redis->events_timer.handler = ngx_http_idempotency_redis_events_connect;
    redis->events_timer.data = redis;
    redis->events_timer.log = ngx_cycle->log;
    redis->events_timer.cancelable = 1;

    ngx_post_event(&redis->events_timer, &ngx_posted_events);

    ngx_http_idempotency_redis_control_init(redis,
                                 &ngx_http_idempotency_redis_sentinel_asker);

    return NGX_OK;
}


static void
ngx_http_idempotency_redis_sentinel_exit(ngx_http_idempotency_redis_t *redis)
{
    if (redis->control.asker == NULL) {
        return;
    }

    ngx_http_idempotency_redis_control_exit(redis);

    if (redis->events_timer.timer_set) {
        ngx_del_timer(&redis->events_timer);
    }

    if (redis->events_timer.posted) {
        ngx_delete_posted_event(&redis->events_timer);
    }

    ngx_http_idempotency_redis_close(&redis->events);
    ngx_http_idempotency_redis_requeue(&redis->events);

    redis->master = NULL;
}


static ngx_http_idempotency_redis_node_t *
ngx_http_idempotency_redis_sentinel_node(ngx_http_idempotency_redis_t *redis,
    u_char *id)
{
    if (redis->master == NULL) {
        ngx_http_idempotency_redis_control_want(redis);
        return NULL;
    }

    ngx_http_idempotency_redis_control_listen(redis);

    return redis->master;
}


static ngx_http_idempotency_redis_node_t *
ngx_http_idempotency_redis_sentinel_listen(ngx_http_idempotency_redis_t *redis,
    ngx_http_idempotency_redis_node_t *except)
{
    return redis->master;
}


static void
ngx_http_idempotency_redis_sentinel_failed(
    ngx_http_idempotency_redis_conn_t *conn)
{
    ngx_http_idempotency_redis_control_want(conn->redis);
}


static ngx_int_t
ngx_http_idempotency_redis_sentinel_refused(
    ngx_http_idempotency_redis_call_t *call, redisReply *reply)
{
    ngx_http_idempotency_redis_t       *redis;
    ngx_http_idempotency_redis_node_t  *node;

    if (!ngx_http_idempotency_redis_transient(reply)) {
        return NGX_DECLINED;
    }

    node = call->conn->node;
    redis = node->redis;

    if (ngx_http_idempotency_redis_error_is(reply, "READONLY ")
        && node == redis->master)
    {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: store \"%V\": Redis at %V is not the "
                      "master any more", &redis->store->name,
                      ngx_http_idempotency_redis_node_label(node));

        redis->master = NULL;
    }

    /* after a pause: whoever is the master next may be the same again */

    if (call->op == NULL) {
        ngx_http_idempotency_redis_call_free(call);

    } else {
        ngx_http_idempotency_redis_call_later(call, reply);
    }

    if (redis->master == NULL) {
        ngx_http_idempotency_redis_node_retire(node);
    }

    ngx_http_idempotency_redis_control_want(redis);

    return NGX_OK;
}


/*
 * The first of them is the one that answered last.  As long as nothing seems
 * wrong the others have their turn, too: that one may be cut off.
 */

static ngx_http_idempotency_redis_node_t *
ngx_http_idempotency_redis_sentinel_next(ngx_http_idempotency_redis_t *redis)
{
    ngx_queue_t                        *q;
    ngx_http_idempotency_redis_node_t  *node, *last;

    last = NULL;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_http_idempotency_redis_node_t, queue);

        if (node->sentinel && node->asked != redis->control.round) {

            if (redis->control.urgent) {
                return node;
            }

            last = node;
        }
    }

    return last;
}


static ngx_uint_t
ngx_http_idempotency_redis_sentinel_question(
    ngx_http_idempotency_redis_t *redis, ngx_str_t *args)
{
    ngx_str_set(&args[0], "SENTINEL");
    ngx_str_set(&args[1], "get-master-addr-by-name");
    args[2] = redis->master_name;

    return 3;
}


static ngx_int_t
ngx_http_idempotency_redis_sentinel_answer(ngx_http_idempotency_redis_t *redis,
    ngx_http_idempotency_redis_node_t *asked, redisReply *reply)
{
    u_char                             *error;
    in_port_t                           port;
    ngx_int_t                           rc;
    ngx_str_t                           host;
    ngx_http_idempotency_redis_node_t  *master;

    ngx_http_idempotency_redis_check(&redis->events);

    rc = ngx_http_idempotency_redis_master_addr(reply, &host, &port);

    if (rc != NGX_OK) {
        error = redis->control.conn.error;

        (void) ngx_slprintf(error,
                            error + NGX_HTTP_IDEMPOTENCY_REDIS_ERROR_LEN - 1,
                            rc == NGX_DECLINED
                                ? "the sentinel at %V has no master named "
                                  "\"%V\"%Z"
                                : "the answer of the sentinel at %V is not "
                                  "an address%Z",
                            &asked->name, &redis->master_name);
        return NGX_DECLINED;
    }

    master = redis->master;

    if (master && master->port == port && master->host.len == host.len
        && ngx_strncmp(master->host.data, host.data, host.len) == 0)
    {
        /* it does not work: do others know of a better one? */

        if (ngx_http_idempotency_redis_node_failing(master)
            && ngx_http_idempotency_redis_sentinel_next(redis))
        {
            error = redis->control.conn.error;

            (void) ngx_slprintf(error, error
                                + NGX_HTTP_IDEMPOTENCY_REDIS_ERROR_LEN - 1,
                                "the master that it names, %V, does not "
                                "work%Z", &master->name);
            return NGX_DECLINED;
        }

    } else {

        if (master && !ngx_http_idempotency_redis_node_failing(master)
            && !ngx_http_idempotency_redis_sentinel_most(redis, &host, port))
        {
            error = redis->control.conn.error;

            (void) ngx_slprintf(error, error
                                + NGX_HTTP_IDEMPOTENCY_REDIS_ERROR_LEN - 1,
                                "the sentinels do not agree, that at %V says "
                                "%V:%d%Z", &asked->name, &host, (int) port);
            return NGX_DECLINED;
        }

        ngx_http_idempotency_redis_sentinel_adopt(redis, &host, port);
    }

    redis->lost = 0;

    ngx_queue_remove(&asked->queue);
    ngx_queue_insert_head(&redis->nodes, &asked->queue);

    return NGX_OK;
}


/* do most of the sentinels say so, of those asked in this round? */

static ngx_uint_t
ngx_http_idempotency_redis_sentinel_most(ngx_http_idempotency_redis_t *redis,
    ngx_str_t *host, in_port_t port)
{
    ngx_http_idempotency_redis_vote_t  *vote;

    vote = &redis->vote;

    if (vote->round != redis->control.round) {
        vote->round = redis->control.round;
        vote->n = 0;
        vote->port = port;
        vote->len = ngx_min(host->len, sizeof(vote->host));
        ngx_memcpy(vote->host, host->data, vote->len);
    }

    if (vote->port != port || vote->len != host->len
        || ngx_memcmp(vote->host, host->data, host->len) != 0)
    {
        return 0;
    }

    return ++vote->n > redis->sentinels.nelts / 2;
}


static ngx_msec_t
ngx_http_idempotency_redis_sentinel_pause(ngx_http_idempotency_redis_t *redis)
{
    if (redis->master
        && !ngx_http_idempotency_redis_node_failing(redis->master))
    {
        return NGX_HTTP_IDEMPOTENCY_REDIS_POLL;
    }

    return NGX_HTTP_IDEMPOTENCY_REDIS_INTERVAL;
}


static void
ngx_http_idempotency_redis_sentinel_adopt(ngx_http_idempotency_redis_t *redis,
    ngx_str_t *host, in_port_t port)
{
    ngx_http_idempotency_redis_node_t  *node, *old;

    node = ngx_http_idempotency_redis_node_get(redis, host, port);

    if (node == NULL || node == redis->master) {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "idempotency: store \"%V\": the master \"%V\" is at %V",
                  &redis->store->name, &redis->master_name, &node->name);

    old = redis->master;

    redis->master = node;
    redis->lost = 0;

    if (old) {
        ngx_http_idempotency_redis_node_retire(old);
    }

    ngx_http_idempotency_redis_reroute(redis, &redis->waiting);

    if (redis->subscriber.node == NULL && redis->nwatches) {
        ngx_http_idempotency_redis_listen(redis, NULL);
    }
}


/* to the next sentinel */

static void
ngx_http_idempotency_redis_events_connect(ngx_event_t *ev)
{
    ngx_queue_t                        *q;
    ngx_http_idempotency_redis_t       *redis;
    ngx_http_idempotency_redis_conn_t  *conn;
    ngx_http_idempotency_redis_node_t  *node, *first;

    redis = ev->data;
    conn = &redis->events;
    first = NULL;

    for (q = ngx_queue_last(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_prev(q))
    {
        node = ngx_queue_data(q, ngx_http_idempotency_redis_node_t, queue);

        if (!node->sentinel) {
            continue;
        }

        if (node == conn->node && first) {
            break;
        }

        first = node;
    }

    conn->node = first;

    ngx_http_idempotency_redis_connect(conn);
}


/* what was published before went by */

static void
ngx_http_idempotency_redis_events_ready(
    ngx_http_idempotency_redis_conn_t *conn)
{
    ngx_http_idempotency_redis_control_want(conn->redis);
}


static void
ngx_http_idempotency_redis_events_lost(ngx_http_idempotency_redis_conn_t *conn)
{
    ngx_add_timer(&conn->redis->events_timer,
                  NGX_HTTP_IDEMPOTENCY_REDIS_LISTEN
                  + ngx_random() % NGX_HTTP_IDEMPOTENCY_REDIS_LISTEN);
}


static ngx_int_t
ngx_http_idempotency_redis_events_message(
    ngx_http_idempotency_redis_conn_t *conn, redisReply *reply)
{
    in_port_t                      port;
    ngx_str_t                      host, text;
    ngx_http_idempotency_redis_t  *redis;

    redis = conn->redis;

    if (ngx_http_idempotency_redis_is_checked(conn, reply)) {
        return NGX_OK;
    }

    if (ngx_http_idempotency_redis_field(reply, 2, &text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_idempotency_redis_switched(&text, &redis->master_name, &host,
                                            &port)
        == NGX_OK)
    {
        ngx_http_idempotency_redis_sentinel_adopt(redis, &host, port);
    }

    return NGX_OK;
}
