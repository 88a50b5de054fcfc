
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Checks whether the server may evict records: one of the workers queries the
 * maxmemory-policy of each node once.
 *
 * Called when a connection is ready.  A script first checks the permissions
 * of the user, see policy.lua.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


#include "ngx_http_idem_policy_lua.h"


static void ngx_http_idem_redis_policy_rights(ngx_redis_conn_t *conn,
    redisReply *reply);
static void ngx_http_idem_redis_policy_config(ngx_redis_conn_t *conn,
    redisReply *reply);
static void ngx_http_idem_redis_policy(ngx_redis_node_t *node,
    ngx_str_t *policy);


void
ngx_http_idem_redis_policy_ask(ngx_redis_conn_t *conn)
{
    ngx_str_t  args[3];

    ngx_str_set(&args[0], "EVAL");
    args[1].data = (u_char *) ngx_http_idem_policy_lua;
    args[1].len = ngx_http_idem_policy_lua_len;
    ngx_str_set(&args[2], "0");

    (void) ngx_redis_ask(conn, ngx_http_idem_redis_policy_rights, args, 3);
}


static void
ngx_http_idem_redis_policy_rights(ngx_redis_conn_t *conn, redisReply *reply)
{
    u_char     *p, *last;
    ngx_str_t   args[3], policy;

    if (reply->type != REDIS_REPLY_STRING) {
        return;
    }

    /* Redis before 7.0 can't tell; the default user usually has all
       permissions */

    if (ngx_strcmp(reply->str, "config") == 0
        || (ngx_strcmp(reply->str, "unknown") == 0
            && conn->redis->user.len == 0))
    {
        ngx_str_set(&args[0], "CONFIG");
        ngx_str_set(&args[1], "GET");
        ngx_str_set(&args[2], "maxmemory-policy");

        if (ngx_redis_ask(conn, ngx_http_idem_redis_policy_config, args, 3)
            == NGX_OK)
        {
            ngx_redis_flush(conn);
        }

        return;
    }

    last = (u_char *) reply->str + reply->len;

    p = ngx_strnstr((u_char *) reply->str, "maxmemory_policy:",
                    (size_t) reply->len);
    if (p == NULL) {
        return;
    }

    policy.data = p + sizeof("maxmemory_policy:") - 1;

    for (p = policy.data; p < last && *p > ' '; p++) { /* void */ }

    policy.len = p - policy.data;

    ngx_http_idem_redis_policy(conn->node, &policy);
}


static void
ngx_http_idem_redis_policy_config(ngx_redis_conn_t *conn, redisReply *reply)
{
    ngx_str_t  policy;

    if (ngx_redis_field(reply, 1, &policy) == NGX_OK) {
        ngx_http_idem_redis_policy(conn->node, &policy);
    }
}


static void
ngx_http_idem_redis_policy(ngx_redis_node_t *node, ngx_str_t *policy)
{
    if (policy->len == sizeof("noeviction") - 1
        && ngx_strncmp(policy->data, "noeviction", policy->len) == 0)
    {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "%V: the maxmemory-policy of Redis "
                  "is \"%V\" at %V: it may forget records before their time, "
                  "and their requests run again; it should be \"noeviction\"",
                  &node->redis->label, policy,
                  ngx_redis_node_label(node));
}
