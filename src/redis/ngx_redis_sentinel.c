
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The topology of a master that is monitored by sentinels: the master has all
 * keys, and the sentinels report its address.
 *
 * One sentinel is queried periodically, and more often while there is no
 * working master.  The worker subscribes to all of them: in a planned
 * failover, the sentinel that leads it publishes the change last.  A report
 * may be wrong: the sentinel may be late, or cut off together with a former
 * master.
 *
 *   - A server is asked for its ROLE before it is used.  A replica is dropped
 *     at once, and so is a master that replies READONLY.
 *   - The report with the newest configuration epoch is accepted, whichever
 *     sentinel it comes from.  A published change has no epoch, so its sender
 *     is queried at once.
 *   - A report with an older epoch is accepted only if most of the configured
 *     sentinels agree: they have been set up again.
 *   - The user may lack the permission to query the epoch.  Then a published
 *     change is accepted; a different report is accepted if the current
 *     master is not working, or if most sentinels agree.
 *
 * The latest accepted report is in shared memory, so all workers of one nginx
 * use the same master.
 *
 * When the master changes, the calls of the old one, whether sent or not, are
 * sent to the new one.
 *
 * Called through the table of topologies.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "ngx_redis_topology.h"


/* time between queries while the master is working, ms */
#define NGX_REDIS_POLL    10000


static ngx_int_t ngx_redis_sentinel_init(ngx_redis_t *redis);
static ngx_redis_node_t *ngx_redis_sentinel_node(ngx_redis_t *redis,
    ngx_str_t *key);
static ngx_int_t ngx_redis_sentinel_refused(ngx_redis_call_t *call,
    redisReply *reply);
static ngx_redis_node_t *ngx_redis_sentinel_next(ngx_redis_t *redis);
static void ngx_redis_sentinel_epoch(ngx_redis_conn_t *conn,
    redisReply *reply);
static ngx_int_t ngx_redis_sentinel_answer(ngx_redis_t *redis,
    ngx_redis_node_t *asked, redisReply *reply);
static ngx_int_t ngx_redis_sentinel_believed(ngx_redis_t *redis,
    ngx_str_t *host, in_port_t port);
static ngx_uint_t ngx_redis_sentinel_most(ngx_redis_t *redis, ngx_str_t *host,
    in_port_t port);
static ngx_msec_t ngx_redis_sentinel_pause(ngx_redis_t *redis);
static void ngx_redis_sentinel_adopt(ngx_redis_t *redis, ngx_str_t *host,
    in_port_t port);
static void ngx_redis_sentinel_renewed(ngx_event_t *ev);
static ngx_int_t ngx_redis_sentinel_newest(ngx_redis_t *redis,
    ngx_str_t *host, in_port_t port, int64_t epoch, ngx_uint_t force);


const ngx_redis_topology_t  ngx_redis_sentinel = {
    ngx_redis_sentinel_init,
    ngx_redis_sentinel_node,
    NULL,
    ngx_redis_sentinel_refused
};


/*
 * The epoch is queried first.  The answer contains an address as well, but it
 * lags behind get-master-addr-by-name in the sentinel that leads a failover.
 */

static const ngx_redis_query_t  ngx_redis_sentinel_query = {
    "which server is the master",
    ngx_redis_sentinel_next,
    { ngx_string("SENTINEL"), ngx_string("master") },
    ngx_redis_sentinel_epoch,
    { ngx_string("SENTINEL"), ngx_string("get-master-addr-by-name") },
    ngx_redis_sentinel_answer,
    ngx_redis_sentinel_pause
};


static ngx_int_t
ngx_redis_sentinel_init(ngx_redis_t *redis)
{
    ngx_uint_t         i;
    ngx_redis_addr_t  *addr;
    ngx_redis_node_t  *node;

    addr = redis->sentinels.elts;

    for (i = 0; i < redis->sentinels.nelts; i++) {
        node = ngx_redis_node_seed(redis, &addr[i]);

        if (node == NULL) {
            return NGX_ERROR;
        }

        node->sentinel = 1;

        if (ngx_redis_events_init(node) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_housekeeping_init(&redis->renewed, ngx_redis_sentinel_renewed, redis);

    /* the master in shared memory may be outdated: query the sentinels
       first */

    redis->version = redis->newest->version;

    ngx_redis_control_init(redis, &ngx_redis_sentinel_query);

    return NGX_OK;
}


static ngx_redis_node_t *
ngx_redis_sentinel_node(ngx_redis_t *redis, ngx_str_t *key)
{
    if (redis->version != redis->newest->version) {

        /* another worker knows another master; adopt it later, not inside
           this call */

        ngx_post_event(&redis->renewed, &ngx_posted_events);
        return NULL;
    }

    if (redis->promoting.timer_set) {
        return NULL;
    }

    if (redis->master == NULL) {
        ngx_redis_control_want(redis);
        return NULL;
    }

    ngx_redis_control_listen(redis);

    return redis->master;
}


static ngx_int_t
ngx_redis_sentinel_refused(ngx_redis_call_t *call, redisReply *reply)
{
    ngx_redis_t       *redis;
    ngx_redis_node_t  *node;

    if (!ngx_redis_transient(reply)) {
        return NGX_DECLINED;
    }

    node = call->conn->node;
    redis = node->redis;

    if (ngx_redis_error_is(reply, "READONLY ") && node == redis->master) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "%V: Redis at %V is not the "
                      "master any more", &redis->label,
                      ngx_redis_node_label(node));

        redis->master = NULL;
    }

    /* after a pause, since the same server may become the master again */

    ngx_redis_call_later(call, reply);

    if (redis->master == NULL) {
        ngx_redis_node_retire(node);
    }

    ngx_redis_control_want(redis);

    return NGX_OK;
}


/*
 * The head of the list is the sentinel that answered last.  A requested round
 * starts there.  A periodic round starts at the tail, so that all sentinels
 * take turns: the one that answered last may be cut off.
 */

static ngx_redis_node_t *
ngx_redis_sentinel_next(ngx_redis_t *redis)
{
    ngx_redis_node_t  *node, *last;

    last = NULL;

    for (node = ngx_redis_first(redis); node; node = ngx_redis_next(node)) {
        if (node->sentinel && node->last_round != redis->control.round) {

            if (redis->control.urgent) {
                return node;
            }

            last = node;
        }
    }

    return last;
}


static void
ngx_redis_sentinel_epoch(ngx_redis_conn_t *conn, redisReply *reply)
{
    conn->redis->vote.epoch = ngx_redis_config_epoch(reply);
}


static ngx_int_t
ngx_redis_sentinel_answer(ngx_redis_t *redis, ngx_redis_node_t *asked,
    redisReply *reply)
{
    u_char            *error, *last;
    in_port_t          port;
    ngx_int_t          rc;
    ngx_str_t          host;
    ngx_redis_node_t  *master;

    ngx_redis_events_check(redis);

    master = redis->master;
    error = redis->control.conn.error;
    last = error + NGX_REDIS_ERROR_LEN - 1;

    rc = ngx_redis_master_addr(reply, &host, &port);

    if (rc != NGX_OK) {
        (void) ngx_slprintf(error, last,
                            rc == NGX_DECLINED
                                ? "the sentinel at %V has no master named "
                                  "\"%V\"%Z"
                                : "the answer of the sentinel at %V is not "
                                  "an address%Z",
                            &asked->name, &redis->master_name);
        return NGX_DECLINED;
    }

    if (ngx_redis_sentinel_believed(redis, &host, port) != NGX_OK) {
        (void) ngx_slprintf(error, last,
                            "the sentinels do not agree, that at %V says "
                            "%V:%d%Z", &asked->name, &host, (int) port);
        return NGX_DECLINED;
    }

    if (ngx_redis_sentinel_is(master, &host, port)) {

        /* the current master is not working: ask the other sentinels */

        if (ngx_redis_node_failing(master) && ngx_redis_sentinel_next(redis)) {
            (void) ngx_slprintf(error, last,
                                "the master that it names, %V, does not "
                                "work%Z", &master->name);
            return NGX_DECLINED;
        }

    } else {
        ngx_redis_sentinel_adopt(redis, &host, port);
    }

    redis->lost = 0;

    ngx_queue_remove(&asked->queue);
    ngx_queue_insert_head(&redis->nodes, &asked->queue);

    return NGX_OK;
}


/* accepts or rejects a report, by its epoch or by majority: see above */

static ngx_int_t
ngx_redis_sentinel_believed(ngx_redis_t *redis, ngx_str_t *host,
    in_port_t port)
{
    int64_t            epoch;
    ngx_redis_node_t  *master;

    epoch = redis->vote.epoch;
    master = redis->master;

    if (ngx_redis_sentinel_newest(redis, host, port, epoch, 0) == NGX_OK) {
        return NGX_OK;
    }

    if (!ngx_redis_sentinel_most(redis, host, port)
        && (epoch != NGX_REDIS_NO_EPOCH
            || redis->newest->epoch != NGX_REDIS_NO_EPOCH
            || (master && !ngx_redis_node_failing(master))))
    {
        return NGX_DECLINED;
    }

    return ngx_redis_sentinel_newest(redis, host, port, epoch, 1);
}


/*
 * Stores the address in shared memory if its epoch is the newest, or if
 * "force" is set.  NGX_OK: it is the latest one now, or was already.
 * NGX_DECLINED: its epoch is older, or is the same with another address.
 */

static ngx_int_t
ngx_redis_sentinel_newest(ngx_redis_t *redis, ngx_str_t *host, in_port_t port,
    int64_t epoch, ngx_uint_t force)
{
    ngx_int_t            rc;
    ngx_uint_t           same;
    ngx_redis_newest_t  *newest;

    newest = redis->newest;

    if (host->len > sizeof(newest->host)) {
        return NGX_DECLINED;
    }

    rc = NGX_OK;

    ngx_shmtx_lock(&redis->shpool->mutex);

    same = (newest->version && newest->port == port
            && newest->len == host->len
            && ngx_memcmp(newest->host, host->data, host->len) == 0);

    if (newest->version == 0 || force || epoch > newest->epoch) {

        if (!same) {
            ngx_memcpy(newest->host, host->data, host->len);
            newest->len = host->len;
            newest->port = port;
            newest->version++;
        }

        newest->epoch = epoch;

    } else if (!same || epoch < newest->epoch) {
        rc = NGX_DECLINED;
    }

    if (rc == NGX_OK) {
        redis->version = newest->version;
    }

    ngx_shmtx_unlock(&redis->shpool->mutex);

    return rc;
}


ngx_uint_t
ngx_redis_sentinel_is(ngx_redis_node_t *master, ngx_str_t *host,
    in_port_t port)
{
    return master && master->port == port && master->host.len == host->len
           && ngx_strncmp(master->host.data, host->data, host->len) == 0;
}


/* whether most sentinels have reported this address in this round */

static ngx_uint_t
ngx_redis_sentinel_most(ngx_redis_t *redis, ngx_str_t *host, in_port_t port)
{
    ngx_redis_vote_t  *vote;

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
ngx_redis_sentinel_pause(ngx_redis_t *redis)
{
    return (redis->master && !ngx_redis_node_failing(redis->master))
           ? NGX_REDIS_POLL : NGX_REDIS_INTERVAL;
}


static void
ngx_redis_sentinel_adopt(ngx_redis_t *redis, ngx_str_t *host, in_port_t port)
{
    ngx_redis_node_t  *node, *old;

    node = ngx_redis_node_get(redis, host, port);

    if (node == NULL || node == redis->master) {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                  "%V: the master \"%V\" is at %V",
                  &redis->label, &redis->master_name, &node->name);

    ngx_housekeeping_stop(&redis->promoting);

    old = redis->master;

    redis->master = node;
    redis->lost = 0;

    if (old) {
        ngx_redis_node_retire(old);
    }

    ngx_redis_reroute(&redis->waiting);

    if (redis->subscriber.node == NULL && redis->listeners) {
        ngx_redis_listen(redis, NULL);
    }
}


/* another worker has changed the master */

static void
ngx_redis_sentinel_renewed(ngx_event_t *ev)
{
    u_char               text[NGX_MAXHOSTNAMELEN];
    in_port_t            port;
    ngx_str_t            host;
    ngx_redis_t         *redis;
    ngx_redis_newest_t  *newest;

    redis = ev->data;
    newest = redis->newest;

    ngx_shmtx_lock(&redis->shpool->mutex);

    redis->version = newest->version;
    port = newest->port;
    host.data = text;
    host.len = newest->len;
    ngx_memcpy(text, newest->host, newest->len);

    ngx_shmtx_unlock(&redis->shpool->mutex);

    ngx_redis_sentinel_adopt(redis, &host, port);

    /* calls may have been queued meanwhile, even if the master is the same */

    ngx_redis_reroute(&redis->waiting);
}


void
ngx_redis_sentinel_switched(ngx_redis_node_t *sentinel, ngx_str_t *host,
    in_port_t port)
{
    ngx_redis_t  *redis;

    redis = sentinel->redis;

    if (ngx_redis_sentinel_is(redis->master, host, port)) {
        return;
    }

    if (redis->newest->epoch != NGX_REDIS_NO_EPOCH) {
        redis->control.first = sentinel;
        ngx_redis_control_want(redis);
        return;
    }

    if (ngx_redis_sentinel_newest(redis, host, port, NGX_REDIS_NO_EPOCH, 1)
        == NGX_OK)
    {
        ngx_redis_sentinel_adopt(redis, host, port);
    }
}
