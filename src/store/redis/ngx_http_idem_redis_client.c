
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * The callbacks of the client, ngx_redis.h: nodes and their metrics, records
 * that may be lost, commits that replicas have not acknowledged.  One of the
 * workers checks once for each node whether it may evict records: it queries
 * the maxmemory-policy.
 *
 * Called by the client, and while the configuration is read.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "observe/ngx_http_idem_metrics.h"
#include "store/redis/ngx_http_idem_redis.h"

#include "ngx_http_idem_policy_lua.h"


static ngx_int_t ngx_http_idem_redis_node(ngx_redis_node_t *node);
static void ngx_http_idem_redis_count(ngx_redis_node_t *node,
    ngx_redis_count_e what);
static void ngx_http_idem_redis_ready(ngx_redis_conn_t *conn);
static void ngx_http_idem_redis_policy_rights(ngx_redis_conn_t *conn,
    redisReply *reply);
static void ngx_http_idem_redis_policy(ngx_redis_conn_t *conn,
    redisReply *reply);
static void ngx_http_idem_redis_first_reply(ngx_redis_conn_t *conn);
static void ngx_http_idem_redis_suspect_loss(ngx_redis_t *client,
    ngx_redis_conn_t *conn, ngx_uint_t now);
static ngx_uint_t ngx_http_idem_redis_concerns(void *data, u_char *id);
static void ngx_http_idem_redis_replicas_missed(ngx_redis_call_t *call,
    redisReply *reply);
static ngx_http_idem_store_node_t *ngx_http_idem_redis_node_of(void *data,
    u_char *id);


const ngx_redis_hooks_t  ngx_http_idem_redis_hooks = {
    ngx_http_idem_redis_node,
    ngx_http_idem_redis_count,
    ngx_http_idem_redis_ready,
    ngx_http_idem_redis_first_reply,
    ngx_http_idem_redis_suspect_loss,
    ngx_http_idem_redis_wake_all,
    ngx_http_idem_redis_message
};


static ngx_int_t
ngx_http_idem_redis_node(ngx_redis_node_t *node)
{
    ngx_http_idem_redis_node_t  *n;

    n = ngx_pcalloc(node->pool, sizeof(ngx_http_idem_redis_node_t));
    if (n == NULL) {
        return NGX_ERROR;
    }

    n->known.name = node->name;
    node->data = n;

    return NGX_OK;
}


static void
ngx_http_idem_redis_count(ngx_redis_node_t *node, ngx_redis_count_e what)
{
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_node_t  *n;

    n = node->data;
    redis = node->redis->data;

    if (redis->store->nodes) {
        /* both count in the same order */

        ngx_http_idem_nodes_count(redis->store->nodes, &n->known,
                                  (ngx_http_idem_node_count_e) what);
    }
}


static void
ngx_http_idem_redis_ready(ngx_redis_conn_t *conn)
{
    ngx_str_t                    args[3];
    ngx_http_idem_redis_node_t  *n;

    n = conn->node->data;

    if (ngx_worker || n->policy_asked) {
        return;
    }

    n->policy_asked = 1;

    /* the script first checks the permissions of the user */

    ngx_str_set(&args[0], "EVAL");
    args[1].data = (u_char *) ngx_http_idem_policy_lua;
    args[1].len = ngx_http_idem_policy_lua_len;
    ngx_str_set(&args[2], "0");

    (void) ngx_redis_ask(conn, ngx_http_idem_redis_policy_rights, args, 3);
}


static void
ngx_http_idem_redis_policy_rights(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_str_t  args[3];

    if (reply->type != REDIS_REPLY_STRING) {
        ngx_http_idem_redis_policy(conn, reply);
        return;
    }

    /* Redis before 7.0 can't tell; the default user usually has all
       permissions */

    if (ngx_strcmp(reply->str, "config") != 0
        && (ngx_strcmp(reply->str, "unknown") != 0 || conn->redis->user.len))
    {
        return;
    }

    ngx_str_set(&args[0], "CONFIG");
    ngx_str_set(&args[1], "GET");
    ngx_str_set(&args[2], "maxmemory-policy");

    if (ngx_redis_ask(conn, ngx_http_idem_redis_policy, args, 3) == NGX_OK) {
        ngx_redis_flush(conn);
    }
}


static void
ngx_http_idem_redis_policy(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_str_t  policy;

    if (ngx_redis_field(reply, 1, &policy) != NGX_OK
        || (policy.len == sizeof("noeviction") - 1
            && ngx_strncmp(policy.data, "noeviction", policy.len) == 0))
    {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "%V: the maxmemory-policy of Redis "
                  "is \"%V\" at %V: it may forget records before their time, "
                  "and their requests run again; it should be \"noeviction\"",
                  &conn->redis->label, &policy,
                  ngx_redis_node_label(conn->node));
}


static void
ngx_http_idem_redis_first_reply(ngx_redis_conn_t *conn)
{
    ngx_http_idem_redis_t  *redis;

    redis = conn->redis->data;
    redis->store->connects++;
}


/* holders renew their leases, which restores lost records */

static void
ngx_http_idem_redis_suspect_loss(ngx_redis_t *client, ngx_redis_conn_t *conn,
    ngx_uint_t now)
{
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    ngx_http_idem_store_suspect_loss(redis->store, now,
                                     conn ? ngx_http_idem_redis_concerns
                                          : NULL, conn);
}


static ngx_uint_t
ngx_http_idem_redis_concerns(void *data, u_char *id)
{
    ngx_redis_conn_t  *conn = data;

    u_char     text[NGX_HTTP_IDEM_REDIS_PREFIX_MAX
                    + 2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_str_t  key;

    key.data = text;
    key.len = ngx_http_idem_redis_key(conn->redis->data, id, text);

    return ngx_redis_conn_has(conn, &key, ngx_http_idem_redis_order_key(id));
}


/* WAIT was answered; a commit that too few replicas have is still a commit */

void
ngx_http_idem_redis_replicated(ngx_redis_call_t *call, redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR
        || reply->integer < call->redis->replicas)
    {
        ngx_http_idem_redis_replicas_missed(call, reply);
    }

    ngx_http_idem_remote_replied(call->data);
}


/* warns once a second only, since there may be thousands of commits */

static void
ngx_http_idem_redis_replicas_missed(ngx_redis_call_t *call, redisReply *reply)
{
    u_char                 *p;
    u_char                  why[128 + 1];
    ngx_uint_t              level;
    ngx_http_idem_op_t     *op;
    ngx_http_idem_redis_t  *redis;

    op = call->data;
    redis = ngx_http_idem_redis_conf(op);

    op->unacknowledged = 1;

    if (op->already_logged) {
        return;
    }

    ngx_http_idem_metrics_count(redis->store->metrics,
                                NGX_HTTP_IDEM_COUNT_REPLICAS_MISSED);

    level = NGX_LOG_INFO;

    if (redis->missed != ngx_time()) {
        redis->missed = ngx_time();
        level = NGX_LOG_WARN;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        p = ngx_sprintf(why, "WAIT is refused: ");
        p = ngx_redis_error_text(p, why + sizeof(why), reply);

    } else {
        p = ngx_snprintf(why, sizeof(why), "after %M ms",
                         ngx_current_msec - call->conn->wait_sent);
    }

    ngx_log_error(level, op->log, 0,
                  "%V: a commit is on %L of %i replicas of %V, %*s; it is "
                  "lost if its master is, record %*xs",
                  &redis->client.label,
                  (int64_t) (reply->type == REDIS_REPLY_INTEGER
                             ? reply->integer : 0),
                  redis->client.replicas, &call->conn->node->name,
                  (size_t) (p - why), why, (size_t) 8, op->id);
}


/* a store with several servers has metrics for each of them */

char *
ngx_http_idem_redis_nodes_conf(ngx_conf_t *cf, ngx_http_idem_redis_t *redis)
{
    ngx_http_idem_nodes_t  *nodes;

    nodes = ngx_pcalloc(cf->pool, sizeof(ngx_http_idem_nodes_t));
    if (nodes == NULL) {
        return NGX_CONF_ERROR;
    }

    nodes->find = ngx_http_idem_redis_node_of;
    nodes->data = redis;

    redis->store->nodes = nodes;

    return ngx_http_idem_shared_add(cf, &nodes->shared,
                                    sizeof(ngx_http_idem_nodes_sh_t),
                                    "idempotency_nodes",
                                    &redis->store->name, NULL);
}


/* the node that has the record, or that will be asked for it */

static ngx_http_idem_store_node_t *
ngx_http_idem_redis_node_of(void *data, u_char *id)
{
    u_char                       text[NGX_HTTP_IDEM_REDIS_PREFIX_MAX
                                      + 2 * NGX_HTTP_IDEM_ID_LEN];
    ngx_str_t                    key;
    ngx_redis_node_t            *node;
    ngx_http_idem_redis_t       *redis;
    ngx_http_idem_redis_node_t  *n;

    redis = data;
    key.data = text;
    key.len = ngx_http_idem_redis_key(redis, id, text);

    node = ngx_redis_node_of(&redis->client, &key);
    if (node == NULL) {
        return NULL;
    }

    n = node->data;

    ngx_http_idem_nodes_touch(redis->store->nodes, &n->known);

    return &n->known;
}


/*
 * The master that one worker learned from the sentinels is shared with the
 * other workers.  It is identified by its name and by the sentinels, so that
 * it is not inherited on reload if either changes.
 */

char *
ngx_http_idem_redis_sentinel_conf(ngx_conf_t *cf,
    ngx_http_idem_redis_t *redis)
{
    u_char            *p;
    uint32_t           crc;
    ngx_str_t          name;
    ngx_uint_t         i;
    ngx_redis_addr_t  *addr;

    addr = redis->client.sentinels.elts;

    ngx_crc32_init(crc);

    for (i = 0; i < redis->client.sentinels.nelts; i++) {
        ngx_crc32_update(&crc, addr[i].url.url.data, addr[i].url.url.len);
        ngx_crc32_update(&crc, (u_char *) " ", 1);
    }

    ngx_crc32_final(crc);

    p = ngx_pnalloc(cf->pool, redis->client.master_name.len + 1 + 8);
    if (p == NULL) {
        return NGX_CONF_ERROR;
    }

    name.data = p;
    name.len = ngx_sprintf(p, "%V_%08xD", &redis->client.master_name, crc)
               - p;

    return ngx_http_idem_shared_add(cf, &redis->newest,
                                    sizeof(ngx_redis_newest_t),
                                    "idempotency_master",
                                    &redis->store->name, &name);
}
