
/*
 * Copyright (C) the contributors of ngx_http_idempotency_module
 * SPDX-License-Identifier: BSD-2-Clause
 */

/*
 * Waiters.  A watch says in the record that somebody waits; then the script of
 * a commit or a release publishes the record's key, or the backend does behind
 * a commit that was a native command; and the one subscriber of each worker
 * wakes those of its own that wait for it: ..._remote.c has them.
 *
 * Called by ..._remote.c, and by the subscriber's connection with messages.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "store/redis/ngx_http_idem_redis.h"


/* how often to look while there is no subscriber, at most */
#define NGX_HTTP_IDEM_REDIS_POLL  1000


void
ngx_http_idem_redis_listen(ngx_http_idem_op_t *op)
{
    ngx_redis_listen_enter(&ngx_http_idem_redis_conf(op)->client);
}


void
ngx_http_idem_redis_unlisten(ngx_http_idem_op_t *op)
{
    ngx_redis_listen_leave(&ngx_http_idem_redis_conf(op)->client);
}


/* it is in progress, for op->found.left at most */

void
ngx_http_idem_redis_wait(ngx_http_idem_op_t *op)
{
    ngx_redis_t  *client;

    client = &ngx_http_idem_redis_conf(op)->client;

    if (!op->woken) {
        ngx_redis_check(&client->subscriber);
    }

    ngx_http_idem_remote_wait(op, client->subscriber.state == NGX_REDIS_READY
                                  ? 0 : NGX_HTTP_IDEM_REDIS_POLL);
}


/* the subscriber is there: what was published before went by */

void
ngx_http_idem_redis_wake_all(ngx_redis_t *client)
{
    ngx_http_idem_redis_t  *redis;

    redis = client->data;

    ngx_http_idem_remote_wake_all(&redis->remote);
}


/*
 * The key of a record, with "-" behind it where that was removed by hand; or
 * whatever somebody else publishes there.
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
        ngx_http_idem_remote_message(&redis->remote, redis->store,
                                     key.data + redis->prefix.len,
                                     key.len - redis->prefix.len, removed);
    }
}
